"""Puts by future: one thread waits for the disk for all puts, and each put gets its own result."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tieredstore.driver.runtime import Runtime
from tieredstore.local import commit_log
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError, StoreClosedError
from tieredstore.model.values import PutStatus
from tieredstore.testing.samples import TOPIC, a_message

SECONDS = 240.0  # an upper bound: no sound run waits that long


class Disk:
    """A store with sync flush, on a disk whose syncs wait until `is_open` is set."""

    def __init__(self, root: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        config = LocalConfig(
            store_path=str(root), flush_disk_type="SYNC_FLUSH", flush_interval_ms=10**8
        )
        self.store = LocalMessageStore(config, runtime)
        self.store.load()
        self.store.start()
        self.store.put_message(a_message(0))
        self.is_open = threading.Event()
        self.reached = threading.Event()
        self.failure: BackendRefusedError | None = None
        self.syncs = 0
        self._sync = self.store._loaded().log.flush
        monkeypatch.setattr(self.store._loaded().flusher, "_flush", self._slowly)

    def _slowly(self) -> int:
        self.syncs += 1
        self.reached.set()
        assert self.is_open.wait(SECONDS)
        if self.failure is not None:
            raise self.failure
        return self._sync()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with Runtime.threads(dispatch_threads=1, fetch_threads=1) as runtime:
        disk = Disk(tmp_path / "store", runtime, monkeypatch)
        yield disk
        disk.is_open.set()
        disk.store.shutdown()


def test_thousands_wait_for_two_syncs_and_no_thread_for_each(disk: Disk) -> None:
    first = disk.store.put_message_future(a_message(1))
    assert disk.reached.wait(SECONDS)
    threads = threading.active_count()
    others = [disk.store.put_message_future(a_message(number)) for number in range(2, 3_000)]
    assert threading.active_count() == threads
    assert not any(one.done() for one in (first, *others))
    assert disk.store.max_offset(TOPIC, 0) == 1  # readers do not see what is not on disk
    disk.is_open.set()
    results = [one.result(SECONDS) for one in (first, *others)]
    assert [put.queue_offset for put in results] == list(range(1, 3_000))
    assert disk.syncs <= 2  # one if the thread had not yet looked how far to sync
    assert disk.store.confirmed_offset() >= results[-1].log_offset + results[-1].size
    assert disk.store.max_offset(TOPIC, 0) == 3_000


def test_messages_that_need_no_disk_do_not_wait_for_it(disk: Disk) -> None:
    waiting = disk.store.put_message_future(a_message(1))
    assert disk.reached.wait(SECONDS)
    put = disk.store.put_message_future(a_message(2, properties={"WAIT": "false"}))
    refused = disk.store.put_message_future(a_message(3, topic=""))
    assert (put.done(), put.result().queue_offset) == (True, 2)
    assert (refused.done(), refused.result().stored) == (True, False)
    assert not waiting.done()


def test_a_sync_that_fails_is_the_error_of_all_that_waited_for_it(disk: Disk) -> None:
    waiting = [disk.store.put_message_future(a_message(number)) for number in (1, 2)]
    disk.failure = BackendRefusedError("log", "flush", "planned")
    disk.is_open.set()
    for future in waiting:
        with pytest.raises(BackendRefusedError):
            future.result(SECONDS)
    with pytest.raises(BackendRefusedError):
        disk.store.put_message_future(a_message(3)).result(SECONDS)


def test_a_sync_of_others_that_is_late_is_said_so(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.store._loaded().flusher, "wait_until_flushed", lambda *_: False)
    late = disk.store.put_message_future(a_message(1)).result(SECONDS)
    assert (late.status, late.queue_offset) == (PutStatus.FLUSH_DISK_TIMEOUT, 1)


def test_only_so_many_wait(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "PROMISED_MAX", 5)
    first = disk.store.put_message_future(a_message(1))
    assert disk.reached.wait(SECONDS)
    taken = [disk.store.put_message_future(a_message(number)) for number in range(2, 7)]
    refused = disk.store.put_message_future(a_message(7)).result(0)
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    disk.is_open.set()
    assert all(one.result(SECONDS).stored for one in (first, *taken))
    assert disk.store.put_message_future(a_message(8)).result(SECONDS).queue_offset == 7


def test_a_shutdown_keeps_what_was_promised(disk: Disk) -> None:
    futures = [disk.store.put_message_future(a_message(number)) for number in range(1, 50)]
    ending = threading.Thread(target=disk.store.shutdown)
    ending.start()
    disk.is_open.set()
    ending.join(SECONDS)
    assert [one.result(0).queue_offset for one in futures] == list(range(1, 50))
    with pytest.raises(StoreClosedError):
        disk.store.put_message_future(a_message(50))
