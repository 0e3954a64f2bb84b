"""Who waits for the disk, who syncs, and who is told what."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tieredstore.driver.runtime import Runtime
from tieredstore.local.commit_log import Flusher
from tieredstore.model.errors import BackendRefusedError


class Disk:
    """A log of numbers: `wrote` is appended to, a sync moves `flushed` there."""

    def __init__(self) -> None:
        self.wrote = 0
        self.flushed = 0
        self.syncs = 0
        self.during: Callable[[], None] = lambda: None
        self.guard = threading.Lock()

    def append(self) -> int:
        with self.guard:
            self.wrote += 1
            return self.wrote

    def flush(self) -> int:
        end = self.wrote
        self.syncs += 1
        self.during()
        self.flushed = end
        return end


def a_flusher(disk: Disk, runtime: Runtime | None = None) -> Flusher:
    return Flusher(
        disk.flush, lambda: disk.flushed, runtime or Runtime.inline(), interval_ms=500, path="log"
    )


def test_a_lone_waiter_syncs_in_its_own_thread() -> None:
    disk = Disk()
    threads: list[threading.Thread] = []
    disk.during = lambda: threads.append(threading.current_thread())
    assert a_flusher(disk).wait_until_flushed(disk.append(), 1000)
    assert threads == [threading.current_thread()]


def test_what_is_on_disk_already_needs_no_sync() -> None:
    disk = Disk()
    disk.flushed = 5
    assert a_flusher(disk).wait_until_flushed(5, 0)
    assert disk.syncs == 0


def test_all_who_came_during_one_sync_share_the_next() -> None:
    disk = Disk()
    flusher = a_flusher(disk, Runtime.threads())
    waiting = threading.Barrier(16)
    first = threading.Event()
    gate = threading.Event()

    def hold() -> None:
        first.set()
        assert gate.wait(240)

    disk.during = hold
    told: list[bool] = []

    def put_first() -> None:
        told.append(flusher.wait_until_flushed(disk.append(), 600_000))

    def put() -> None:
        offset = disk.append()
        waiting.wait(240)
        told.append(flusher.wait_until_flushed(offset, 600_000) and disk.flushed >= offset)

    threads = [threading.Thread(target=put_first)]
    threads[0].start()
    assert first.wait(240)
    threads += [threading.Thread(target=put) for _ in range(15)]
    for thread in threads[1:]:
        thread.start()
    waiting.wait(240)  # all have appended, behind the sync that is under way
    gate.set()
    for thread in threads:
        thread.join()
    assert told == [True] * 16
    assert disk.syncs == 2


def test_a_wait_ends_when_the_time_is_up_while_another_syncs() -> None:
    disk = Disk()
    flusher = a_flusher(disk)
    started, gate = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert gate.wait(240)

    disk.during = hold
    other = threading.Thread(target=flusher.wait_until_flushed, args=(disk.append(), 1000))
    other.start()
    assert started.wait(240)
    assert not flusher.wait_until_flushed(disk.append(), 0)
    gate.set()
    other.join()
    disk.during = lambda: None
    assert flusher.wait_until_flushed(2, 0)


def test_after_a_failed_sync_nobody_is_told_that_anything_is_on_disk() -> None:
    disk = Disk()
    flusher = a_flusher(disk)

    def fail() -> None:
        raise BackendRefusedError("log", "fdatasync", "no space left")

    disk.during = fail
    with pytest.raises(BackendRefusedError, match="no space left"):
        flusher.wait_until_flushed(disk.append(), 1000)
    disk.during = lambda: None
    with pytest.raises(BackendRefusedError, match="failed before"):
        flusher.wait_until_flushed(disk.append(), 1000)
    with pytest.raises(BackendRefusedError, match="failed before"):
        flusher.flush()
    assert (disk.syncs, disk.flushed) == (1, 0)


def test_those_who_wait_for_a_sync_that_fails_fail_too() -> None:
    disk = Disk()
    flusher = a_flusher(disk)
    started, gate = threading.Event(), threading.Event()

    def fail() -> None:
        started.set()
        assert gate.wait(240)
        raise BackendRefusedError("log", "fdatasync", "no space left")

    disk.during = fail
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            flusher.wait_until_flushed(disk.append(), 600_000)
        except BackendRefusedError as error:
            failed.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    threads[0].start()
    assert started.wait(240)
    for thread in threads[1:]:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert len(failed) == 4
    assert disk.syncs == 1


def test_the_service_syncs_when_woken_and_is_quiet_after_a_failure() -> None:
    disk = Disk()
    flusher = a_flusher(disk)
    flusher.wake()
    flusher.start()
    flusher.start()
    disk.append()
    flusher.wake()
    assert disk.flushed == 1

    def fail() -> None:
        raise BackendRefusedError("log", "fdatasync", "no space left")

    disk.during = fail
    with pytest.raises(BackendRefusedError):
        flusher.wake()
    flusher.wake()
    assert disk.syncs == 2
    flusher.stop()
    flusher.stop()
    flusher.wake()
    assert disk.syncs == 2


def test_the_service_of_a_threaded_runtime_syncs_without_being_asked() -> None:
    disk = Disk()
    synced = threading.Event()
    disk.during = synced.set
    runtime = Runtime.threads()
    flusher = Flusher(disk.flush, lambda: disk.flushed, runtime, interval_ms=1)
    flusher.start()
    assert synced.wait(240)
    flusher.stop()
    runtime.close()
