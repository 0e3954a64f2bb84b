"""The command as a whole: help, errors, signals and its process."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.cli_kit import ROOT, Command, started
from tests.cli.verb_kit import CLEAN, commands, documented_codes
from tests.examples.example_kit import interruptible
from tieredstore.cli.main import main
from tieredstore.cli.output import parse_time, shown_time


def test_debug_shows_where_at_any_place(command: Command) -> None:
    for words, code, said in (
        (["--debug", "local", "info", "nowhere"], 3, "no such directory: nowhere"),
        (["local", "info", "nowhere", "--debug"], 3, "no such directory: nowhere"),
        (["topics", "--debug", "--no-such-option"], 2, "No such option"),
    ):
        ran = command.run(*words)
        assert ran.code == code
        assert "Traceback" in ran.err
        assert ran.err.splitlines()[-1].startswith(f"tieredstore: {said}")


def test_a_bug_says_that_it_is_one(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("tieredstore.cli.local._gathered", broken)
    command.golden("info", CLEAN).refused(1, "RuntimeError: two lines")


def test_no_words_at_all_get_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert "Usage:" in said.out + said.err


def test_an_interrupt_ends_the_process_with_its_code(tmp_path: Path) -> None:
    """It is waiting for the next line of stdin; what it has already put is reported."""
    words = ("put", "t", "--store-path", tmp_path, "--json")
    with interruptible():
        process = started(*words, stdin=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n" * 256)  # these are put together
        process.stdin.flush()
        assert b'"queue_offset": 0' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == documented_codes()["interrupted"] == 130
    assert said == b"tieredstore: interrupted; what was put and synced before stays\n"


def test_the_process_ends_with_the_code_and_the_line() -> None:
    with started("local", "cat", "nowhere") as process:
        out, said = process.communicate()
    assert (process.returncode, out) == (3, b"")
    assert said == b"tieredstore: no such directory: nowhere\n"


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
    every = [[], *(name.split() for name in commands()), ["local"], ["catalogue"]]
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
        "if name.rpartition('.')[2] not in ('main', 'output', 'progress')))"
    )
    assert ran.returncode == 0, ran.stderr


def test_help_takes_little_longer_than_the_library_below_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """About twice as long, in CPU time: neither other load nor the machine's speed matters."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # later runs find bytecode

    def spent(run: Callable[[], object]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def show_help() -> None:
        with started("--help") as process:
            process.communicate()

    turns = [(spent(show_help), spent(lambda: help_ran("import typer"))) for _ in range(3)]
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


def test_the_package_runs_as_the_command_does() -> None:
    arguments = ["local", "no-such-command"]
    code = main(arguments)
    ended = subprocess.run(
        [sys.executable, "-m", "tieredstore", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert code != 0
    assert ended.returncode == code
    assert "no-such-command" in ended.stderr


def test_without_what_the_command_needs_it_says_how_to_get_it() -> None:
    """Only the library is installed: with the script, but without typer."""
    program = (
        "import sys; sys.modules['typer'] = None; "
        "from tieredstore.__main__ import main; sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "topics"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "tieredstore: typer is missing: pip install 'tieredstore[cli]'\n"
