"""Every option that names a file writes what it names, and replaces no node by a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_kit import ROOT, Command, started
from tests.cli.tier_kit import TIER, named
from tieredstore.cli.output import CommandError, ExitCode, OutputFile

# A verb that writes a file, and how its content begins.
WRITING: dict[str, tuple[list[str], bytes]] = {
    "report": (["report", "--out"], b"<!doctype html>"),
    "verify": (["verify", "--report"], b'{\n  "job": "verify"'),
    "metadata snapshot": (["metadata", "snapshot", "--output"], b"{"),
}


def ran(command: Command, verb: str, target: object, *others: object) -> tuple[int, str, str]:
    return command.run(*WRITING[verb][0], target, *named(TIER), *others)


@pytest.mark.parametrize("verb", WRITING)
def test_a_new_file_is_written(command: Command, tmp_path: Path, verb: str) -> None:
    target = tmp_path / "new"
    code, out, err = ran(command, verb, target)
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
    if verb != "metadata snapshot":  # that one writes new files only: its link leads to none yet
        real.write_text("old")
    assert ran(command, verb, link)[0] == 0
    assert link.is_symlink()
    assert real.read_bytes().startswith(WRITING[verb][1])


def test_a_file_that_must_be_new_is_not_written_over(command: Command, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("kept")
    link.symlink_to(real)
    for target in (real, link):
        code, out, err = ran(command, "metadata snapshot", target)
        assert (code, out, err.count("\n")) == (5, "", 1)
        assert "it is there already" in err
    assert real.read_text() == "kept"


@pytest.mark.parametrize("verb", WRITING)
def test_a_fifo_stays_one_and_its_reader_gets_it(tmp_path: Path, verb: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(held, True)
    words, begin = WRITING[verb]
    with started(*words, fifo, *named(TIER)) as process, os.fdopen(held, "rb") as opened:
        first = b""
        while not first and process.poll() is None:  # no writer has opened it yet
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
    code, out, err = ran(command, "report", fifo)
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert "nobody reads it" in err
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_stdout_gets_the_file_and_nothing_else(verb: str, name: str, tmp_path: Path) -> None:
    words, begin = WRITING[verb]
    if name != "-" and not Path(name).exists():
        pytest.skip("this system has no such name")
    with started(*words, name, *named(TIER)) as process:
        data, said = process.communicate()
    assert process.returncode == 0, said
    assert data.startswith(begin)
    assert data.rstrip().endswith((b"</html>", b"}"))
    assert b"Traceback" not in said
    with (
        (tmp_path / "file").open("wb") as opened,  # the shell's `> file`
        started(*words, name, *named(TIER), stdout=opened.fileno()) as process,
    ):
        process.communicate()
    assert (tmp_path / "file").read_bytes().startswith(begin)
    assert not (ROOT / "-").exists()


@pytest.mark.parametrize("verb", WRITING)
def test_stdout_cannot_be_for_rows_too(command: Command, verb: str) -> None:
    code, out, err = ran(command, verb, "-", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--json" in err


@pytest.mark.parametrize("verb", WRITING)
def test_a_folder_is_refused_and_one_that_is_not_there_is_told(
    command: Command, tmp_path: Path, verb: str
) -> None:
    for target, code in ((tmp_path, 5), (tmp_path / "no" / "file", 3)):
        got, out, err = ran(command, verb, target)
        assert (got, out, err.count("\n")) == (code, "", 1), err
        assert str(target) in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", WRITING)
def test_what_goes_to_null_is_gone_and_null_stays(command: Command, verb: str) -> None:
    before = os.stat(os.devnull)
    assert ran(command, verb, os.devnull)[0] == 0
    after = os.stat(os.devnull)
    assert (before.st_ino, before.st_rdev, before.st_mode) == (
        *(after.st_ino, after.st_rdev, after.st_mode),
    )


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_a_device_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: int) -> None:
    """Asked of a file that says it is one: a test makes no nodes."""
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
    code, out, err = ran(command, "report", "/dev/full")
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


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
