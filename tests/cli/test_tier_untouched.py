"""Looking at a tier changes not one byte of it, and makes no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import (
    TIER,
    VERBS,
    asked,
    copied,
)


def ask_everything(command: Command, root: Path) -> None:
    for words in VERBS:
        for json in ([], ["--json"]):
            assert asked(command, root, *words, *json).code == 0


@pytest.mark.parametrize("name", ["tier-posix", "legacy"])
def test_looking_changes_not_one_byte(command: Command, tmp_path: Path, name: str) -> None:
    root = copied(tmp_path / "tier", TIER.with_name(name))
    before = picture(tmp_path)
    for verb in VERBS:
        words = ["offset", "GoldAa", 1, 0] if verb[0] == "offset" else verb
        assert asked(command, root, *words, "--json").code == 0
        assert asked(command, root, *words).code == 0
    assert picture(tmp_path) == before


def test_a_tier_that_cannot_be_written_is_read(command: Command, tmp_path: Path) -> None:
    root = copied(tmp_path / "tier")
    paths = [root, *root.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        before = picture(root)
        ask_everything(command, root)
        assert picture(root) == before
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_every_segment_is_opened_for_reading_only(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write everything is not stopped by modes: so the opens themselves are seen."""
    root = copied(tmp_path / "tier")
    opened: list[int] = []
    real = os.open

    def seen(path: str, flags: int, *rest: int, **more: int) -> int:
        if str(path).startswith(str(root)):
            opened.append(flags)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", seen)
    ask_everything(command, root)
    assert len(opened) > 50
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) for flags in opened)
