"""Sizes as the verbs show them: whole bytes, where RocketMQ's tests round to KB and MB."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import asked, copied


def test_a_size_is_shown_in_bytes_so_that_it_can_be_compared_with_the_file(
    command: Command, tmp_path: Path
) -> None:
    root = copied(tmp_path / "tier")
    held = sorted(
        path.stat().st_size
        for path in root.rglob("GoldAa/*/*/*")
        if path.is_file() and path.parent.name in ("COMMIT_LOG", "CONSUME_QUEUE")
    )
    assert held[-1] > 10_000
    rows = asked(command, root, "segments", "GoldAa", "--json").rows
    assert sorted(row["size"] for row in rows) == held
    table = asked(command, root, "segments", "GoldAa").out.split()
    assert all(str(size) in table for size in held)
