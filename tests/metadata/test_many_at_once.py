"""Threads that share commits, processes that exclude each other, a process that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.errors import MetadataError, StoreClosedError
from tieredstore.testing.metadata_contract import log_segment

ROOT = Path(__file__).parents[2]
THREADS = 8
PUTS = 50


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tieredStoreMetadata.json"


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("journal_bytes_max", [None, 5_000])
def test_eight_threads_lose_no_row(path: Path, journal_bytes_max: int | None) -> None:
    def put(thread: int) -> None:
        for number in range(PUTS):
            store.put(log_segment(number, path=f"p{thread}"))
            if number % 10 == 0:
                store.add_topic(f"T{number}")

    with JsonMetadataStore.open(path, journal_bytes_max=journal_bytes_max) as store:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(put, range(THREADS)))
        expected = store.snapshot_bytes()
    with JsonMetadataStore.open(path) as store:
        assert store.snapshot_bytes() == expected
        assert len(store.segments()) == THREADS * PUTS
        assert sorted(row.topic_id for row in store.topics()) == [0, 1, 2, 3, 4]


def test_batches_that_wait_for_one_sync_share_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync = os.fdatasync
    first, go_on = threading.Event(), threading.Event()
    syncs = 0

    def slow(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == 1:
            first.set()
            assert go_on.wait(240)
        fdatasync(descriptor)

    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        monkeypatch.setattr(os, "fdatasync", slow)
        with ThreadPoolExecutor(THREADS) as pool:
            leader = pool.submit(store.put, log_segment(1))
            assert first.wait(240)
            assert store.segment(*key(1)) is None  # not durable yet, so nobody sees it
            others = [pool.submit(store.put, log_segment(10 + n)) for n in range(THREADS - 1)]
            while len(store._pending) < THREADS - 1:
                os.sched_yield()
            go_on.set()
            for future in (leader, *others):
                future.result()
        assert syncs == 2
        assert len(store.segments()) == 1 + THREADS


def key(base_offset: int) -> tuple[str, Any, int]:
    row = log_segment(base_offset)
    return row.path, row.type, row.base_offset


def test_a_failed_sync_fails_every_batch_that_shared_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError("the disk is broken")

    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        monkeypatch.setattr(os, "fdatasync", broken)

        def refused(thread: int) -> bool:
            with pytest.raises(MetadataError, match="not written"):
                store.put(log_segment(1 + thread))
            return True

        with ThreadPoolExecutor(THREADS) as pool:
            assert all(pool.map(refused, range(THREADS)))
        assert len(store.segments()) == 1


def test_closing_under_writers_keeps_every_batch_that_was_acknowledged(path: Path) -> None:
    store = JsonMetadataStore.open(path)
    started = threading.Barrier(THREADS + 1)

    def put(thread: int) -> int:
        started.wait(240)
        for number in range(10_000):
            try:
                store.put(log_segment(number, path=f"p{thread}"))
            except StoreClosedError:
                return number
        raise AssertionError("it was never closed")

    with ThreadPoolExecutor(THREADS) as pool:
        counts = pool.map(put, range(THREADS))
        started.wait(240)
        store.close()
    with JsonMetadataStore.open(path) as store:
        for thread, count in enumerate(counts):
            assert len(store.segments(f"p{thread}")) == count


def test_one_process_opens_a_store_for_writing_once(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        with pytest.raises(MetadataError, match="another process has it open"):
            JsonMetadataStore.open(path)
        store.put(log_segment(0))
        with JsonMetadataStore.open(path, read_only=True) as reader:
            assert len(reader.segments()) == 1
    JsonMetadataStore.open(path).close()


HOLD = """
import sys
from tieredstore.metadata import JsonMetadataStore
with JsonMetadataStore.open(sys.argv[1]) as store:
    store.add_topic("A")
    print("open", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_write_one_store(path: Path) -> None:
    with child(HOLD, path) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(MetadataError, match="another process has it open"):
            JsonMetadataStore.open(path)
        with JsonMetadataStore.open(path, read_only=True) as reader:
            assert [row.topic for row in reader.topics()] == ["A"]
        holder.stdin.close()
        assert holder.wait(240) == 0
    with JsonMetadataStore.open(path) as store:
        assert store.add_topic("B").topic_id == 1


COMMIT = """
import sys, threading
from tieredstore.metadata import JsonMetadataStore
from tieredstore.testing.metadata_contract import log_segment
store = JsonMetadataStore.open(sys.argv[1], journal_bytes_max=20_000)
def put(thread):
    for number in range(10_000_000):
        offset = int(sys.argv[2]) + number
        store.put(log_segment(offset, path=f"p{thread}"), log_segment(offset, path=f"q{thread}"))
        sys.stdout.write(f"{thread} {offset}\\n")
        sys.stdout.flush()
threads = [threading.Thread(target=put, args=(thread,), daemon=True) for thread in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def kill_and_look(path: Path, first: int, lines_before: int) -> None:
    process = child(COMMIT, path, first)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline() for _ in range(lines_before)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    acknowledged += rest.splitlines(keepends=True)
    with JsonMetadataStore.open(path, read_only=True) as reader:
        seen = reader.snapshot_bytes()
    with JsonMetadataStore.open(path) as store:
        assert store.snapshot_bytes() == seen
        for line in acknowledged:
            if line.endswith("\n") and line.count(" ") == 1:
                thread, offset = line.split()
                for name in ("p", "q"):
                    row = log_segment(int(offset), path=f"{name}{thread}")
                    assert store.segment(row.path, row.type, row.base_offset) == row
        for number in range(4):  # both rows of a batch or none
            of_p = [row.base_offset for row in store.segments(f"p{number}")]
            assert of_p == [row.base_offset for row in store.segments(f"q{number}")]


def rounds(path: Path, count: int, spread: Callable[[int], int]) -> None:
    for number in range(count):
        kill_and_look(path, number * 1_000_000, spread(number))


def test_a_killed_process_loses_nothing_that_it_acknowledged(path: Path) -> None:
    rounds(path, 3, lambda number: 50 + 123 * number)


@pytest.mark.torture
def test_a_process_killed_over_and_over_loses_nothing(path: Path) -> None:
    rounds(path, 60, lambda number: 1 + 37 * number % 500)


# Each child has imported the rows and read none: what its threads meet is the first use.
FIRST_USE = """
import os, sys, threading
from tieredstore.metadata.tables import read_queue, read_segment, read_topic

rows = [
    (read_segment, {"path": "b/t/0", "type": 0, "baseOffset": 0}),
    (read_queue, {"queue": {"brokerName": "b", "topic": "t", "queueId": 0}}),
    (read_topic, {"topic": "t", "topicId": 0}),
]

def read(start):
    start.wait()
    for call, row in rows * 5:
        call(row)

sys.setswitchinterval(1e-6)
for _ in range(50):
    child = os.fork()
    if not child:
        start = threading.Barrier(8)
        threads = [threading.Thread(target=read, args=(start,)) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(status, flush=True)
"""


def test_the_first_rows_may_be_read_by_many_threads_at_once() -> None:
    said, _ = child(FIRST_USE).communicate(timeout=60)
    assert said.split() == ["0"] * 50
