"""Where output goes: closed, full or ASCII-only streams, and files that options name."""

from __future__ import annotations

import os
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_kit import ROOT, Command, started
from tests.cli.tier_kit import TIER, named, tier_beside
from tests.cli.verb_kit import documented_codes
from tieredstore.cli.main import main
from tieredstore.cli.output import CommandError, ExitCode, OutputFile

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def by_shell(
    words: list[str],
    redirected: str = "",
    *,
    others: Mapping[str, str] | None = None,
    at: Path = ROOT,
) -> subprocess.CompletedProcess[bytes]:
    """Run in a shell, which closes a stream as an operator does."""
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
    "rows": ["cat", "GoldAa", *named(TIER), "--json"],
    "a table": ["topics", *named(TIER)],
    "an error": ["cat", "Nobody", *named(TIER)],
    "a file": ["catalogue", "snapshot", "--out", "-", *named(TIER)],
}


@pytest.mark.parametrize("name", ["help", "rows"])
def test_a_closed_stdout_is_one_line_and_nothing_is_done(name: str) -> None:
    found = by_shell(WORDS[name], ">&-")
    assert found.returncode == documented_codes()["stdout is closed or full"]
    assert found.stderr == b"tieredstore: stdout is closed: for no output, send it to /dev/null\n"


def test_nothing_was_put_where_nobody_could_be_told(tmp_path: Path) -> None:
    words = ["put", "t", "--store-path", str(tmp_path / "s"), "--body", "x"]
    assert by_shell(words, ">&-").returncode == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rows", "an error"])
@pytest.mark.parametrize("to", ["&-", "/dev/full"])
def test_a_stderr_that_takes_nothing_changes_neither_the_output_nor_the_code(
    command: Command, name: str, to: str
) -> None:
    found, wanted = by_shell(WORDS[name], f"2>{to}"), command.run(*WORDS[name])
    assert (found.returncode, found.stdout.decode()) == (wanted.code, wanted.out)


def test_all_streams_closed_end_with_the_code_of_stdout() -> None:
    assert by_shell(["topics", *named(TIER)], "<&- >&- 2>&-").returncode == 5


def test_a_closed_stdin_is_told_to_who_reads_it(tmp_path: Path) -> None:
    words = ["put", "t", "--store-path", str(tmp_path / "s")]
    found = by_shell(words, "<&-")
    assert (found.returncode, found.stdout) == (2, b"")
    assert found.stderr == b"tieredstore: stdin is closed: give the message with --body\n"
    assert by_shell([*words, "--body", "x"], "<&-").returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has none")
@pytest.mark.parametrize("name", ["help", "rows", "a table", "a file"])
def test_a_full_disk_behind_stdout_is_one_line(name: str) -> None:
    found = by_shell(WORDS[name], ">/dev/full")
    assert found.returncode == documented_codes()["stdout is closed or full"]
    assert found.stderr.endswith(b"No space left on device\n")
    assert found.stderr.count(b"\n") == 1


@pytest.mark.parametrize("name", ["help", "rows", "a file"])
def test_a_reader_that_stops_ends_it_without_a_word(name: str) -> None:
    found = by_shell(WORDS[name], "| head -c 1")
    assert (len(found.stdout), found.stderr) == (1, b"")


@pytest.fixture(scope="module")
def other_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tier with a topic whose name is not ASCII."""
    store = str(tmp_path_factory.mktemp("names") / "s")
    put = ["put", "ünï", "--store-path", store, "--body", "ß", "--key", "kü"]
    assert main(put) == main(["offload", "--store-path", store, "--broker", "b"]) == 0
    return [str(word) for word in tier_beside(Path(store))]


@pytest.mark.parametrize(
    "words",
    [
        *(["topics"], ["cat", "ünï", "--with-body"], ["queues", "ünï"], ["why", "ünï", "0", "0"]),
        *(["report", "--out", "-"], ["query", "ünï", "nö"], ["audit"], ["cat", "nöpe"]),
    ],
    ids=" ".join,
)
def test_a_terminal_of_ascii_gets_ascii(
    command: Command, monkeypatch: pytest.MonkeyPatch, other_names: list[str], words: list[str]
) -> None:
    wanted = command.run(*words, *other_names)
    out, err = (TextIOWrapper(BytesIO(), encoding="ascii") for _ in range(2))
    with monkeypatch.context() as terminal:
        terminal.setattr("sys.stdout", out)
        terminal.setattr("sys.stderr", err)
        code = main([*words, *other_names])
    said = b"".join(stream.detach().getvalue() for stream in (out, err))
    assert code == wanted.code
    assert said
    assert said.isascii() or words[0] == "report"  # the page declares its encoding
    assert b"(a bug" not in said


@pytest.mark.parametrize("words", [["topics"], ["cat", "ünï"]])
def test_a_system_that_cannot_name_the_files_is_told(
    other_names: list[str], words: list[str]
) -> None:
    found = by_shell([*words, *other_names], others=ASCII)
    assert (found.returncode, found.stdout, found.stderr.count(b"\n")) == (2, b"", 1)
    assert b"PYTHONUTF8=1" in found.stderr
    again = by_shell([*words, *other_names], others={**ASCII, "PYTHONUTF8": "1"})
    assert again.returncode == 0


# The verbs that write a file, and how its content begins.
WRITING: dict[str, tuple[list[str], bytes]] = {
    "report": (["report", "--out"], b"<!doctype html>"),
    "verify": (["verify", "--report"], b'{\n  "job": "verify"'),
    "catalogue snapshot": (["catalogue", "snapshot", "--out"], b"{"),
}


def written(command: Command, verb: str, target: object, *others: object) -> tuple[int, str, str]:
    return command.run(*WRITING[verb][0], target, *named(TIER), *others)


@pytest.mark.parametrize("verb", WRITING)
def test_a_new_file_is_written(command: Command, tmp_path: Path, verb: str) -> None:
    target = tmp_path / "new"
    code, out, err = written(command, verb, target)
    assert (code, err) == (0, "")
    assert str(target) in out or verb == "verify"
    assert target.read_bytes().startswith(WRITING[verb][1])
    assert sorted(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("verb", WRITING)
def test_a_link_stays_and_what_it_names_is_written(
    command: Command, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "below").mkdir()
    real, link = tmp_path / "below" / "real", tmp_path / "link"
    link.symlink_to("below/real")
    if verb != "catalogue snapshot":  # it writes only new files, so its link leads to none yet
        real.write_text("old")
    assert written(command, verb, link)[0] == 0
    assert link.is_symlink()
    assert real.read_bytes().startswith(WRITING[verb][1])


def test_a_file_that_must_be_new_is_not_written_over(command: Command, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("kept")
    link.symlink_to(real)
    for target in (real, link):
        code, out, err = written(command, "catalogue snapshot", target)
        assert (code, out, err.count("\n")) == (5, "", 1)
        assert "it is there already" in err
    assert real.read_text() == "kept"


@pytest.mark.parametrize("verb", ["report", "catalogue snapshot"])
def test_a_fifo_stays_one_and_its_reader_gets_it(tmp_path: Path, verb: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(held, True)
    words, begin = WRITING[verb]
    with started(*words, fifo, *named(TIER)) as process, os.fdopen(held, "rb") as opened:
        first = b""
        while not first and process.poll() is None:  # the writer has not opened it yet
            first = opened.read(1)
        data = first + opened.read()
        _, said = process.communicate()
    assert (process.returncode, said) == (0, b"")
    assert data.startswith(begin)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_fifo_that_nobody_reads_is_told_and_not_waited_for(
    command: Command, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code, out, err = written(command, "report", fifo)
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert "nobody reads it" in err
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("verb", WRITING)
def test_a_pipe_gets_the_file_and_nothing_else(verb: str) -> None:
    words, begin = WRITING[verb]
    with started(*words, "-", *named(TIER)) as process:
        data, said = process.communicate()
    assert process.returncode == 0, said
    assert data.startswith(begin)
    assert data.rstrip().endswith((b"</html>", b"}"))
    assert b"Traceback" not in said
    assert not (ROOT / "-").exists()


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_any_name_of_stdout_is_stdout(name: str, tmp_path: Path) -> None:
    """Stdout is a file here, as with the shell's `> file`."""
    if name != "-" and not Path(name).exists():
        pytest.skip("this system has no such name")
    words, begin = WRITING["report"]
    with (
        (tmp_path / "file").open("wb") as opened,
        started(*words, name, *named(TIER), stdout=opened.fileno()) as process,
    ):
        process.communicate()
    data = (tmp_path / "file").read_bytes()
    assert data.startswith(begin)
    assert data.endswith(b"</html>\n")


@pytest.mark.parametrize("verb", WRITING)
def test_stdout_cannot_be_for_rows_too(command: Command, verb: str) -> None:
    code, out, err = written(command, verb, "-", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--json" in err


@pytest.mark.parametrize("verb", WRITING)
def test_a_folder_is_refused_and_one_that_is_not_there_is_told(
    command: Command, tmp_path: Path, verb: str
) -> None:
    for target, code in ((tmp_path, 5), (tmp_path / "no" / "file", 3)):
        got, out, err = written(command, verb, target)
        assert (got, out, err.count("\n")) == (code, "", 1), err
        assert str(target) in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", WRITING)
def test_a_folder_that_takes_no_file_is_told_before_the_work(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The superuser may write everywhere: so this asks for what the system would answer others."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, out, err = written(command, verb, tmp_path / "file")
    assert (code, out, err.count("\n")) == (5, "", 1), err
    assert f"{tmp_path} cannot be written to" in err


@pytest.mark.parametrize("verb", WRITING)
def test_an_empty_name_is_refused(command: Command, verb: str) -> None:
    code, out, err = written(command, verb, "")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "the name of the file is empty" in err


@pytest.mark.parametrize("verb", WRITING)
def test_what_goes_to_null_is_gone_and_null_stays(command: Command, verb: str) -> None:
    before = os.stat(os.devnull)
    assert written(command, verb, os.devnull)[0] == 0
    after = os.stat(os.devnull)
    assert (before.st_ino, before.st_rdev, before.st_mode) == (
        *(after.st_ino, after.st_rdev, after.st_mode),
    )


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_a_device_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: int) -> None:
    """A test cannot make device nodes, so `os.stat` reports a plain file as one."""
    node = tmp_path / "node"
    node.write_bytes(b"kept")
    truth = os.stat

    def told(path: str, **options: Any) -> os.stat_result:
        found = list(truth(path, **options))
        if str(path) == str(node):
            found[0] = kind | 0o600
        return os.stat_result(found)

    target = OutputFile("--out", str(node))
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", told)
        patched.setattr(OutputFile, "_is_harmless", lambda _: False)
        with pytest.raises(CommandError, match="a device or a socket") as refused:
            target.check()
        assert refused.value.code is ExitCode.REFUSED
        with pytest.raises(CommandError, match="a device or a socket"):
            target.write(b"lost")
    assert node.read_bytes() == b"kept"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has none")
def test_a_full_device_is_refused_and_stays_a_device(command: Command) -> None:
    code, out, err = written(command, "report", "/dev/full")
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.parametrize("must_be_new", [False, True])
def test_a_file_that_finds_no_room_is_named(tmp_path: Path, must_be_new: bool) -> None:
    """The system does not name it: its error is of a file that is open."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    target = OutputFile("--out", str(tmp_path / "page"), must_be_new=must_be_new)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
        with pytest.raises(CommandError, match="--out .*page: File too large") as refused:
            target.write(bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert refused.value.code is ExitCode.REFUSED
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_is_written_to() -> None:
    inner, outer = os.openpty()
    try:
        target = OutputFile("--out", os.ttyname(outer))
        target.check()
        target.write(b"hello")
        assert os.read(inner, 5) == b"hello"
    finally:
        os.close(inner)
        os.close(outer)
