"""Streams that are closed, full, or speak ASCII only: one line, a code, and never a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.cli_kit import ROOT
from tests.cli.tier_kit import TIER, named
from tests.cli.verb_kit import documented_codes

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def ran(
    words: list[str],
    redirected: str = "",
    *,
    others: Mapping[str, str] | None = None,
    at: Path = ROOT,
) -> subprocess.CompletedProcess[bytes]:
    """By a shell, which closes a stream as an operator does."""
    command = f"{shlex.join([sys.executable, '-m', 'tieredstore', *words])} {redirected}"
    return subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        cwd=at,
        env={**ENVIRONMENT, **(others or {})},
        check=False,
    )


WORDS = {
    "help": ["--help"],
    "help of a verb": ["topics", "--help"],
    "rows": ["cat", "GoldAa", *named(TIER), "--json"],
    "a table": ["topics", *named(TIER)],
    "an error": ["cat", "Nobody", *named(TIER)],
    "a file": ["metadata", "snapshot", "--output", "-", *named(TIER)],
}


@pytest.mark.parametrize("name", WORDS)
def test_a_closed_stdout_is_one_line_and_nothing_is_done(name: str) -> None:
    found = ran(WORDS[name], ">&-")
    assert found.returncode == documented_codes()["stdout is closed or full"]
    assert found.stderr == b"tieredstore: stdout is closed: for no output, send it to /dev/null\n"


def test_nothing_was_put_where_nobody_could_be_told(tmp_path: Path) -> None:
    words = ["put", "t", "--store-path", str(tmp_path / "s"), "--body", "x"]
    assert ran(words, ">&-").returncode == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", WORDS)
def test_a_closed_stderr_changes_neither_the_output_nor_the_code(name: str) -> None:
    found, wanted = ran(WORDS[name], "2>&-"), ran(WORDS[name])
    assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)


def test_all_streams_closed_end_with_the_code_of_stdout() -> None:
    assert ran(["topics", *named(TIER)], "<&- >&- 2>&-").returncode == 5


def test_a_closed_stdin_is_told_to_who_reads_it(tmp_path: Path) -> None:
    words = ["put", "t", "--store-path", str(tmp_path / "s")]
    found = ran(words, "<&-")
    assert (found.returncode, found.stdout) == (2, b"")
    assert found.stderr == b"tieredstore: stdin is closed: give the message with --body\n"
    assert ran([*words, "--body", "x"], "<&-").returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has none")
@pytest.mark.parametrize("name", WORDS)
def test_a_full_disk_behind_a_stream_is_one_line(name: str) -> None:
    wanted = ran(WORDS[name])
    if name != "an error":  # which prints nothing
        found = ran(WORDS[name], ">/dev/full")
        assert found.returncode == documented_codes()["stdout is closed or full"]
        assert found.stderr.endswith(b"No space left on device\n")
        assert found.stderr.count(b"\n") == 1
    found = ran(WORDS[name], "2>/dev/full")
    assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)


@pytest.mark.parametrize("name", ["help", "rows", "a table", "a file"])
def test_a_reader_that_stops_ends_it_without_a_word(name: str) -> None:
    found = ran(WORDS[name], "| head -c 1")
    assert (len(found.stdout), found.stderr) == (1, b"")


@pytest.fixture(scope="module")
def other_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tier with a topic that ASCII has no letters for."""
    store = tmp_path_factory.mktemp("names") / "s"
    words = ["put", "ünï", "--store-path", str(store), "--body", "ß", "--key", "kü"]
    assert ran(words).returncode == 0
    assert ran(["offload", "--store-path", str(store), "--broker", "b"]).returncode == 0
    return ["--provider", "posix", "--path", str(store / "tier"), "--store-path", str(store),
            "--broker", "b"]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        *(["topics"], ["cat", "ünï", "--body"], ["queues", "ünï"], ["why", "ünï", "0", "0"]),
        *(["report", "--out", "-"], ["query", "ünï", "nö"], ["audit"], ["cat", "nöpe"]),
    ],
    ids=" ".join,
)
def test_a_terminal_of_ascii_gets_ascii(other_names: list[str], words: list[str]) -> None:
    wanted = ran([*words, *other_names])
    found = ran([*words, *other_names], others={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert found.returncode == wanted.returncode
    assert found.stdout.isascii() or words[0] == "report"  # a page says itself what it speaks
    assert found.stderr.isascii()
    assert b"Traceback" not in found.stderr
    assert b"(a bug" not in found.stderr


@pytest.mark.parametrize("words", [["topics"], ["cat", "ünï"], ["report", "--out", "-"]])
def test_a_system_that_cannot_name_the_files_is_told(
    other_names: list[str], words: list[str]
) -> None:
    found = ran([*words, *other_names], others=ASCII)
    assert (found.returncode, found.stdout, found.stderr.count(b"\n")) == (2, b"", 1)
    assert b"PYTHONUTF8=1" in found.stderr
    again = ran([*words, *other_names], others={**ASCII, "PYTHONUTF8": "1"})
    assert again.returncode == 0
