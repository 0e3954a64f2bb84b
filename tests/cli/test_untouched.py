"""Looking at a tier or a local store changes not one byte of it, and makes no file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import VERBS, asked
from tests.codec.golden_files import GOLDEN

TIERS = ["tier-posix", "legacy"]
STORES = ["local-clean", "local-expired", "local-crash/torn", "local-crash/torn-and-queues-behind"]
EITHER = pytest.mark.parametrize("name", ["tier-posix", "local-clean"])


@pytest.fixture
def place(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(GOLDEN / name, tmp_path / "place"))


def ask_everything(command: Command, place: Path) -> None:
    if (place / "commitlog").is_dir():
        for words in (
            ("cat", place, "--json"),
            ("cat", place),
            ("query", place, "GoldAa", "order-0", "--json"),
            ("offset", place, "GoldAa", "0", "1795171540000"),
            ("info", place, "--json"),
            ("info", place),
        ):
            assert command.golden(*words).code == 0
        return
    for verb in VERBS:
        of_tier = ["offset", "GoldAa", 1, 0] if verb[0] == "offset" else verb
        for json in ([], ["--json"]):
            assert asked(command, place, *of_tier, *json).code == 0


@pytest.mark.parametrize("name", [*TIERS, *STORES])
def test_looking_changes_not_one_byte(command: Command, tmp_path: Path, place: Path) -> None:
    before = picture(tmp_path)
    ask_everything(command, place)
    assert picture(tmp_path) == before


@EITHER
def test_a_place_that_cannot_be_written_is_read(command: Command, place: Path) -> None:
    paths = [place, *place.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        before = picture(place)
        ask_everything(command, place)
        assert picture(place) == before
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


@EITHER
def test_every_file_is_opened_for_reading_only(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write everything is not stopped by modes: so the opens themselves are seen."""
    opened: list[int] = []
    real = os.open

    def seen(path: str, flags: int, *rest: int, **more: int) -> int:
        if str(path).startswith(str(place)):
            opened.append(flags)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", seen)
    ask_everything(command, place)
    assert len(opened) > 50
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) for flags in opened)
