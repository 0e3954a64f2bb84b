"""Tables on a narrow terminal and in a pipe: no number is ever cut off."""

from __future__ import annotations

import sys

import pytest

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import TIER, asked


def test_a_pipe_gets_all_of_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    for verb in ("topics", "queues"):
        said = asked(command, TIER, verb).out
        assert "0123456789  " in said  # the end of the long name
        assert "…" not in said
        assert "\x1b" not in said


@pytest.mark.parametrize("columns", ["80", "40"])
def test_on_a_narrow_terminal_a_long_name_is_cut_and_nothing_else(
    command: Command, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    wanted = asked(command, TIER, "topics", "--json").rows
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = asked(command, TIER, "topics").out
    lines = [line for line in said.splitlines() if "(default)" in line]
    assert len(lines) == len(wanted)
    for row, line in zip(wanted, lines, strict=True):
        assert line.split()[1:-2] == [
            str(row[name]) for name in ("topic_id", "queue_count", "log_bytes", "queue_bytes")
        ]
        assert line.startswith(row["topic"][:15])
        assert len(line) <= 80
