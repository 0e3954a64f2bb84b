"""Progress of long work: its lines under a test's clock, and real processes on a terminal or under
Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.cli.cli_kit import ROOT, Command
from tests.cli.tier_kit import TIER, named, tier_beside
from tests.disk_with_room import sitecustomize
from tests.examples.example_kit import interruptible
from tests.jobs.job_kit import table
from tieredstore.cli.progress import (
    FIRST_SECONDS,
    LOG_SECONDS,
    Asked,
    Work,
    asked,
    command_line,
    shown_work,
    span_text,
)
from tieredstore.driver.metrics import DOWNLOAD_BYTES, MESSAGES_DISPATCHED, RPC_LATENCY
from tieredstore.driver.metrics import UPLOAD_BYTES as WRITTEN
from tieredstore.driver.runtime import ManualClock
from tieredstore.jobs.job import Progress
from tieredstore.model.amounts import shown_size

MIB = 1 << 20
GIB = 1 << 30


class Watched:
    """Work with its own clock, and what it printed."""

    def __init__(self, verb: str = "verify", *, on_terminal: bool = False) -> None:
        self.clock = ManualClock()
        self.out = io.StringIO()
        self.work = Work(verb, self.out, self.clock, on_terminal=on_terminal)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and run the ticks that fall due."""
        for _ in range(int(seconds * 4)):
            self.clock.advance(250)
            self.work.tick()

    def said(self) -> list[str]:
        lines = self.out.getvalue().splitlines()
        self.out.seek(0)
        self.out.truncate()
        return lines


def progress(items: int, size: int) -> Progress:
    return Progress(items_done=items, items_total=40, bytes_done=size, bytes_total=10 * GIB)


def moved(size: int, *, by: str = "read", path: str = "broker-a/Orders/3") -> dict[str, str]:
    return {"path": path, "file_type": "commit_log", "operation": by}


def test_a_log_gets_a_line_every_half_minute_and_nothing_before() -> None:
    watched = Watched()
    watched.work.of_job(progress(0, 0))
    watched.pass_time(LOG_SECONDS - 1)
    assert watched.said() == []
    watched.work.of_job(progress(4, GIB))
    watched.pass_time(1)
    (line,) = watched.said()
    assert line.startswith("tieredstore: verify: 1.0 GiB of 10.0 GiB, 4 of 40 parts, 10%, ")
    watched.pass_time(2 * LOG_SECONDS)
    assert len(watched.said()) == 2


def test_the_rate_and_what_is_left_are_those_of_the_last_half_minute() -> None:
    """A gibibyte in the last minute, after ten minutes without any."""
    watched = Watched()
    watched.work.of_job(progress(0, 0))
    watched.pass_time(600)
    for _ in range(60):
        watched.work.record(DOWNLOAD_BYTES, GIB / 60, moved(1))
        watched.pass_time(1)
    found = re.search(
        r", ([\d.]+) MiB/s, ([\d.]+) min left, broker-a/Orders/3$", watched.said()[-1]
    )
    assert found is not None
    assert float(found[1]) == pytest.approx(1024 / 60, rel=0.05)
    assert float(found[2]) == pytest.approx(9, rel=0.05)


def test_bytes_that_are_under_way_count_before_their_item_ends() -> None:
    watched = Watched()
    watched.work.of_job(progress(0, 0))
    watched.work.record(DOWNLOAD_BYTES, 2 * GIB, moved(1))
    watched.pass_time(LOG_SECONDS)
    assert "2.0 GiB of 10.0 GiB, 0 of 40 parts, 20%" in watched.said()[0]


def test_what_was_written_counts_and_not_what_is_read_back_to_be_compared() -> None:
    watched = Watched("migrate")
    watched.work.of_job(progress(0, 0))
    for _ in range(2):
        watched.work.record(DOWNLOAD_BYTES, 3 * GIB, moved(1))
    watched.work.record(WRITTEN, 3 * GIB, moved(1, by="write"))
    watched.pass_time(LOG_SECONDS)
    assert "3.0 GiB of 10.0 GiB" in watched.said()[0]


def test_the_next_step_of_a_job_begins_anew() -> None:
    watched = Watched("reindex")
    watched.work.of_job(progress(40, 10 * GIB))
    watched.work.record(DOWNLOAD_BYTES, 10 * GIB, moved(1))
    watched.pass_time(LOG_SECONDS)
    assert "40 of 40 parts, 100%, ending" in watched.said()[0]
    watched.work.of_job(Progress(items_done=0, items_total=2, bytes_done=0, bytes_total=MIB))
    watched.pass_time(LOG_SECONDS)
    assert "tieredstore: reindex: 0 B of 1.0 MiB, 0 of 2 parts, 0%" in watched.said()[0]


def test_messages_are_counted_where_bytes_have_no_total() -> None:
    watched = Watched("offload")
    watched.work.of_messages(400)
    watched.pass_time(10)
    watched.work.add(MESSAGES_DISPATCHED, 100, {})
    watched.work.record(WRITTEN, MIB, moved(1, by="write"))
    watched.work.record(RPC_LATENCY, 5, {})
    watched.pass_time(20)
    (line,) = watched.said()
    assert line.startswith("tieredstore: offload: 1.0 MiB, 100 of 400 messages, 25%, ")
    assert ", 89 s left, broker-a/Orders/3" in line


def test_work_without_a_total_says_how_long_it_has_taken() -> None:
    watched = Watched("audit")
    watched.pass_time(LOG_SECONDS)
    assert watched.said() == ["tieredstore: audit: 30 s"]
    watched.work.record(DOWNLOAD_BYTES, 5 * MIB, moved(1))
    watched.pass_time(LOG_SECONDS)
    (line,) = watched.said()
    assert line.startswith("tieredstore: audit: 5.0 MiB, ")
    assert line.endswith("60 s, broker-a/Orders/3")


def test_a_terminal_has_one_line_that_is_redrawn_and_taken_away() -> None:
    watched = Watched(on_terminal=True)
    watched.work.of_job(progress(0, 0))
    watched.pass_time(FIRST_SECONDS - 0.25)
    assert watched.out.getvalue() == ""  # quick work shows nothing
    watched.pass_time(1)
    drawn = watched.out.getvalue()
    assert "\n" not in drawn
    assert drawn.count("\r\x1b[K") == 4  # four times a second
    watched.work.make_room()
    assert watched.out.getvalue().endswith("\r\x1b[K")
    length = len(watched.out.getvalue())
    watched.work.make_room()
    watched.pass_time(FIRST_SECONDS - 0.25)  # no line follows a row so soon
    assert len(watched.out.getvalue()) == length


def test_the_line_is_no_wider_than_the_terminal_and_moves_no_cursor() -> None:
    watched = Watched(on_terminal=True)
    watched.work.record(DOWNLOAD_BYTES, 1, moved(1, path="b/" + "訂單" * 60 + "\x1b[2J/0"))
    watched.pass_time(2)
    line = watched.out.getvalue().rpartition("\x1b[K")[2]
    assert 0 < len(line) <= 79
    assert "\x1b" not in line
    assert line.isprintable()


def test_a_stderr_that_is_closed_ends_nothing() -> None:
    watched = Watched()
    watched.out.close()
    watched.pass_time(2 * LOG_SECONDS)
    assert watched.out.closed


def test_quiet_work_says_nothing_and_starts_no_thread(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with asked(["verify"], quiet=True), shown_work() as work:
        assert threading.active_count() == before
        work.of_job(progress(1, 1))
    with asked(["verify"], quiet=False):
        with shown_work() as work, shown_work() as inner:
            assert inner is work
            assert threading.active_count() == before + 1
        assert threading.active_count() == before
    assert capsys.readouterr().err == ""
    assert command_line() == Asked()


def test_a_command_can_be_said_again_with_one_more_word() -> None:
    again = Asked(words=["migrate", "--path", "a b"]).with_word("--cut-over")
    assert again == "tieredstore migrate --path 'a b' --cut-over"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (shown_size(0), "0 B"), (shown_size(1023), "1,023 B"), (shown_size(1536), "1.5 KiB"),
        (shown_size(3 * GIB), "3.0 GiB"), (shown_size(5000 * GIB * 1024), "5,000.0 TiB"),
        (span_text(0), "0 s"), (span_text(119), "119 s"), (span_text(120), "2.0 min"),
        (span_text(3599), "60 min"), (span_text(7200), "2.0 h"), (span_text(864_000), "10 days"),
    ],
)  # fmt: skip
def test_sizes_and_times_are_shown_as_people_say_them(text: str, shown: str) -> None:
    assert text == shown


# Real processes

_HELD = """
import sys
from tieredstore.providers.posix import PosixFileSegment as Segment
real, free = Segment.{call}, iter(range({free}))
def held(*words):
    if next(free, None) is None:
        sys.stderr.write("held\\n")
        sys.stderr.flush()
        sys.stdin.buffer.read(1)
    return real(*words)
Segment.{call} = held
from tieredstore.__main__ import main
sys.exit(main())
"""
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(sitecustomize.FOLDER)]),
    "TERM": "xterm",
}


def interrupted(call: str, free: int, *words: object) -> str:
    """What a command prints if Ctrl-C meets it at this segment call, after `free` earlier ones."""
    with interruptible():
        process = subprocess.Popen(
            [sys.executable, "-c", _HELD.format(call=call, free=free), *map(str, words)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline() == "held\n"
        process.send_signal(signal.SIGINT)
        out, said = process.communicate()  # this closes stdin, and so the call goes on
        assert process.returncode == 130
        assert not out or out.endswith("\n")
        return said.replace("held\n", "")


def test_an_interrupted_migration_goes_on_where_it_was(command: Command, tmp_path: Path) -> None:
    target = ("--to-provider", "posix", "--to-path", tmp_path / "new")
    words = ["migrate", *named(TIER), *target, "--to-catalogue-file", tmp_path / "new.json"]
    said = interrupted("read", 30, *words, "--threads", 2)
    assert said == "tieredstore: interrupted; run it again to go on\n"
    assert not (tmp_path / "new.json").exists()
    report = command.run(*words, "--json").rows[-1]
    assert report["state"] == "done"
    assert (
        0 < report["counts"]["copied"] < len(command.run("segments", *named(TIER), "--json").rows)
    )
    ran = command.run(*words)
    assert ran.out.splitlines()[-1].endswith("new.json --cut-over")
    done = command.run(*words, "--cut-over")
    assert done.out.splitlines()[-1].startswith("# next: start the broker with these settings.")
    moved_tier = named(TIER, path=tmp_path / "new", catalogue_file=tmp_path / "new.json")
    assert command.run("audit", *moved_tier).code == 0


def test_an_interrupted_verify_has_changed_nothing_and_says_so(command: Command) -> None:
    said = interrupted("read", 20, "verify", *named(TIER))
    assert said == "tieredstore: interrupted; nothing was changed\n"


def test_an_interrupted_offload_goes_on_where_it_was(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "s"
    for queue in range(4):
        put = ("put", "Orders", "--store-path", store, "--queue", queue, "--body", "x")
        assert command.run(*put, "--repeat", 50).code == 0
    words = ("offload", "--store-path", store, "--broker", "b")
    said = interrupted("write", 3, *words)
    assert said == "tieredstore: interrupted; run it again to go on\n"
    rows = command.run(*words, "--json").done().rows
    assert [row["committed_offset"] for row in rows] == [50] * 4
    assert command.run("verify", *tier_beside(store)).code == 0


@contextmanager
def on_a_terminal(*words: object) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command whose stderr is a terminal, and that terminal's other end."""
    master, slave = pty.openpty()
    with closing(os.fdopen(master, "rb", buffering=0, closefd=False)):
        process = subprocess.Popen(
            [sys.executable, "-m", "tieredstore", *map(str, words)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=slave,
        )
        os.close(slave)
        try:
            with process:
                yield process, master
        finally:
            os.close(master)


def read_until(master: int, text: bytes) -> bytes:
    said = b""
    while text not in said:
        said += os.read(master, 4096)
    return said


def rest_of(master: int) -> bytes:
    said = b""
    while True:
        try:
            more = os.read(master, 4096)
        except OSError:  # the process has closed its end
            return said
        if not more:
            return said
        said += more


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_real_terminal_sees_one_line_and_none_when_it_is_done(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The command puts lines of stdin, so it runs as long as the test wants."""
    with on_a_terminal("put", "t", "--store-path", tmp_path, *words) as (process, master):
        assert process.stdin is not None
        process.stdin.write(b"one\n" * 256)
        process.stdin.flush()
        drawn = read_until(master, b"256 messages")
        assert drawn.startswith(b"\r\x1b[Kput: ")
        out, _ = process.communicate()
        said = rest_of(master)
    assert process.returncode == 0
    assert said.endswith(b"\r\x1b[K")
    assert b"\n" not in drawn + said
    assert len(out.splitlines()) == (256 if words else 2)


def test_ctrl_c_on_a_terminal_takes_the_line_away_first(tmp_path: Path) -> None:
    with interruptible(), on_a_terminal("put", "t", "--store-path", tmp_path) as (process, master):
        assert process.stdin is not None
        process.stdin.write(b"one\n" * 256)
        process.stdin.flush()
        read_until(master, b"256 messages")
        process.send_signal(signal.SIGINT)
        process.communicate()
        said = rest_of(master)
    assert process.returncode == 130
    last = said.rpartition(b"\r\x1b[K")[2]
    assert last == b"tieredstore: interrupted; what was put and synced before stays\r\n"


@pytest.mark.slow
def test_an_interrupted_export_or_reindex_loses_and_doubles_nothing(
    command: Command, root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "parquet"
    for words in (["export", *named(root), "--to", out], ["reindex", *named(root)]):
        said = interrupted("read", 8, *words, "--threads", 1)
        assert said == "tieredstore: interrupted; run it again to go on\n"
        assert command.run(*words, "--json").done().rows[-1]["state"] == "done"
    assert len(table(out)) == 533
    assert command.run("verify", *named(root)).code == 0
