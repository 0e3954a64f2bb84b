"""What goes wrong is one line on stderr, and the exit code says what kind of thing it was."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.cli_kit import ROOT, SIZE_OPTIONS, Command, started
from tests.cli.verb_kit import commands
from tests.codec.golden_files import GOLDEN
from tieredstore.cli.main import main
from tieredstore.cli.output import parse_time, shown_time

CLEAN = GOLDEN / "local-clean"


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (3, ["cat", "no-such-directory"], "no such directory"),
        (3, ["info", GOLDEN / "metadata"], "no local store"),
        (3, ["cat", CLEAN, "--topic", "Nobody"], "no topic 'Nobody'"),
        (3, ["cat", CLEAN, "--topic", "GoldAa", "--queue", "9"], "no queue 9"),
        (3, ["query", CLEAN, "Nobody", "key"], "no topic"),
        (3, ["offset", CLEAN, "GoldAa", "9", "0"], "no queue 9"),
        (2, ["offset", CLEAN, "GoldAa", "0", "yesterday"], "ISO 8601"),
        (2, ["offset", CLEAN, "GoldAa", "zero", "0"], "QUEUE"),
        (2, ["query", CLEAN, "GoldAa", "k", "--begin", "soon"], "ISO 8601"),
        (2, ["cat", CLEAN, "--from", "-1"], "--from"),
        (2, ["cat", CLEAN, "--nonsense"], "--nonsense"),
        (2, ["cat", CLEAN, "--commit-log-file-bytes", "16384"], "commit_log_file_bytes"),
        (2, ["cat", CLEAN, "--queue-file-bytes", "800"], "--queue-file-bytes"),
        (2, ["cat", CLEAN, "--index-slots", "100"], "index_slot_count"),
        (2, ["frobnicate"], "frobnicate"),
        (2, ["cat"], "DIR"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    command: Command, code: int, words: list[object], told: str
) -> None:
    verb, *rest = words
    sizes = () if verb == "frobnicate" else SIZE_OPTIONS
    ran = command.run("local", verb, *sizes, *rest, *([] if len(words) < 2 else ["--json"]))
    ran.refused(code, told)


def test_sizes_that_are_not_given_are_the_defaults(command: Command) -> None:
    ran = command.run("local", "info", CLEAN)
    ran.refused(2)
    assert "32768 bytes, not 1073741824" in ran.err
    assert "--commit-log-file-bytes" in ran.err


def test_a_directory_that_may_not_be_read_is_refused(command: Command, tmp_path: Path) -> None:
    shutil.copytree(CLEAN, tmp_path / "store")
    (tmp_path / "store" / "config").write_bytes(b"a file where a directory should be")
    ran = command.golden("info", tmp_path / "store")
    ran.refused(5)


def test_debug_shows_where_at_any_place(command: Command) -> None:
    for words in (["--debug", "local", "info", "nowhere"], ["local", "info", "nowhere", "--debug"]):
        ran = command.run(*words)
        assert ran.code == 3
        assert "Traceback" in ran.err
        assert ran.err.splitlines()[-1].startswith("tieredstore: nowhere")


def test_a_bug_says_that_it_is_one(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("tieredstore.cli.local._gathered", broken)
    ran = command.golden("info", CLEAN)
    ran.refused(1, "RuntimeError: two lines")


def test_no_words_at_all_get_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert "Usage:" in said.out + said.err


def test_the_process_ends_with_the_code_and_the_line() -> None:
    with started("local", "cat", "nowhere") as process:
        out, said = process.communicate()
    assert (process.returncode, out) == (3, b"")
    assert said == b"tieredstore: nowhere: there is no such directory\n"


HEAVY = (
    *("rich.console", "pyspark", "numpy", "tieredstore.local"),
    *("tieredstore.cli.tier", "tieredstore.cli.read"),
)


def help_ran(program: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )


def test_no_help_imports_anything_heavy() -> None:
    every = [[], *(name.split() for name in commands()), ["local"], ["metadata"]]
    ran = help_ran(
        "import sys; from tieredstore.cli.main import main; "
        f"[main([*words, '--help']) for words in {every}]; "
        f"sys.exit(','.join(name for name in {HEAVY} if name in sys.modules) or 0)"
    )
    assert ran.returncode == 0, ran.stderr


def test_the_list_of_all_verbs_imports_none_of_them() -> None:
    ran = help_ran(
        "import sys; from tieredstore.cli.main import main; main(['--help']); "
        "sys.exit(any(name.startswith('tieredstore.cli.') for name in sys.modules "
        "if name not in ('tieredstore.cli.main', 'tieredstore.cli.output')))"
    )
    assert ran.returncode == 0, ran.stderr


def test_help_takes_little_longer_than_the_library_below_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice as long. Of a processor: neither what else the machine does counts, nor its speed."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # all but the first find bytecode

    def spent(run: Callable[[], object]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def show_help() -> None:
        with started("--help") as process:
            process.communicate()

    turns = [(spent(show_help), spent(lambda: help_ran("import typer"))) for _ in range(4)]
    ours, below = (min(column) for column in zip(*turns, strict=True))
    assert ours < 5 * below


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("0", 0),
        ("1795171540000", 1795171540000),
        ("1970-01-01", 0),
        ("2026-11-20T10:45:32.778Z", 1795171532778),
        ("2026-11-20 10:45:32.778", 1795171532778),
        ("2026-11-20T12:45:32.778+02:00", 1795171532778),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_times_are_read(text: str, time: int) -> None:
    assert parse_time(text) == time


@pytest.mark.parametrize("text", ["", "now", "-5", str(2**63), "1969-12-31", "2026-13-01", "1.5"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


def test_times_are_shown_whatever_they_are() -> None:
    assert shown_time(1795171532778) == "2026-11-20T10:45:32.778Z"
    assert shown_time(2**63 - 1) == str(2**63 - 1)
