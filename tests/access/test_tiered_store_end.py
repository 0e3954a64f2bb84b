"""The shutdown of a tiered store, and its use by many threads: nothing that waits is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.access.dispatch_kit import KEY
from tests.access.tiered_kit import Broker, a_config, numbers
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.message_store import MessageStore, RetentionGuard
from tieredstore.driver.provider import SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidArgumentError, StoreClosedError
from tieredstore.model.values import GetStatus, QueueKey, SegmentType, StorageLevel
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

WAIT = 240.0  # far more than any machine needs
SECONDS = 0.3  # the timeout of a shutdown
LATE = 60.0  # too late, even on the slowest of machines
may_go = threading.Event()
arrived = threading.Event()


class _HungSegment(SegmentWrapper):
    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        arrived.set()
        assert may_go.wait(WAIT)
        self.inner.write(position, data)


class HungProvider(MemoryProvider):
    """A backend that does not answer until `may_go` is set."""

    def open(  # type: ignore[override]
        self, path: str, type: SegmentType, base_offset: int
    ) -> FileSegment:
        return _HungSegment(super().open(path, type, base_offset))


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    may_go.clear()
    arrived.clear()
    yield
    may_go.set()


def a_hung_store(
    folder: Path, local: MessageStore, runtime: Runtime | None = None
) -> TieredMessageStore:
    config = StoreConfig(
        broker_name="broker-a",
        store_path=str(folder),
        provider=f"{__name__}.HungProvider",
        index_enabled=False,
        group_commit_enabled=False,
        dispatch_interval_ms=10,
    )
    return TieredMessageStore(local, config, runtime=runtime)


def seconds_of(call: Callable[[], object]) -> float:
    """The duration of a call; fails if it takes too long."""
    began = monotonic()
    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    calling.join(WAIT / 2)
    assert not calling.is_alive(), "it does not end"
    return monotonic() - began


def test_with_a_runtime_of_its_own_a_backend_that_never_answers_ends_in_time(
    tmp_path: Path,
) -> None:
    with Runtime.threads() as runtime:
        local = ListMessageStore.opened(runtime)
        store = a_hung_store(tmp_path, local)
        store.load()
        store.start()
        for number in range(3):
            local.fill(1, key=QueueKey("T", number))
        assert arrived.wait(WAIT)
        assert seconds_of(lambda: store.shutdown(timeout=SECONDS)) < LATE
        may_go.set()


@pytest.mark.parametrize("drain", [True, False])
def test_with_full_pools_too(tmp_path: Path, drain: bool) -> None:
    with Runtime.threads(dispatch_threads=2, fetch_threads=2, pending_max=4) as runtime:
        local = ListMessageStore.opened(runtime)
        store = a_hung_store(tmp_path, local, runtime)
        store.load()
        store.start()
        for number in range(30):
            local.fill(1, key=QueueKey("T", number))
        assert arrived.wait(WAIT)
        assert seconds_of(lambda: store.shutdown(drain=drain, timeout=SECONDS)) < LATE
        may_go.set()


def test_a_chore_that_hangs_does_not_keep_the_store_from_ending(tmp_path: Path) -> None:
    with Runtime.threads() as runtime:
        local = ListMessageStore.opened(runtime)
        store = a_hung_store(tmp_path, local, runtime)
        store.load()
        hanging = threading.Event()

        def hang() -> dict[str, str]:
            hanging.set()
            may_go.wait(WAIT)
            return {}

        store._loaded().sealing.step = hang  # type: ignore[method-assign]
        store.start()
        assert hanging.wait(WAIT)
        assert seconds_of(lambda: store.shutdown(timeout=SECONDS)) < LATE
        may_go.set()


def test_a_timeout_may_be_endless_and_one_that_is_no_number_ends_nothing(tmp_path: Path) -> None:
    may_go.set()
    with Runtime.threads() as runtime:
        local = ListMessageStore.opened(runtime)
        store = a_hung_store(tmp_path, local, runtime)
        store.load()
        store.start()
        local.fill(3)
        assert store.flush(float("inf"))
        assert store.resume_queue(TOPIC, 0, timeout=float("inf")) is None
        wrong: Any = "soon"
        for call in (store.flush, lambda timeout: store.shutdown(timeout=timeout)):
            with pytest.raises(InvalidArgumentError):
                call(wrong)
        assert store.committed_offset(TOPIC, 0) == 3  # the store is still open
        store.shutdown(timeout=1e30)
        with pytest.raises(StoreClosedError):
            store.health()


def test_an_index_that_hangs_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.access.wiring.END_SECONDS_MIN", SECONDS)
    with Runtime.threads() as runtime:
        store = a_hung_store(tmp_path, ListMessageStore.opened(runtime), runtime)
        store.load()

        def hang() -> None:
            may_go.wait(WAIT)

        store._loaded().tier.index.shutdown = hang  # type: ignore[method-assign]
        assert seconds_of(lambda: store.shutdown(timeout=SECONDS)) < LATE
        may_go.set()


def test_a_catalogue_whose_last_entry_hangs_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.wiring.END_SECONDS_MIN", SECONDS)
    with Runtime.threads() as runtime:
        local = ListMessageStore.opened(runtime)
        store = a_hung_store(tmp_path, local, runtime)
        closed = JsonMetadataStore.close

        def hang(catalogue: JsonMetadataStore) -> None:
            arrived.set()
            may_go.wait(WAIT)
            closed(catalogue)

        monkeypatch.setattr(JsonMetadataStore, "close", hang)
        store.load()
        assert seconds_of(lambda: store.shutdown(timeout=SECONDS)) < LATE
        assert arrived.is_set()
        with pytest.raises(StoreClosedError):  # the next store has ended too
            local.queues()
        may_go.set()


@pytest.mark.parametrize("pending_max", [4, 1_000], ids=["full pools", "pools with room"])
def test_a_flush_ends_in_time_too_and_leaves_one_thread_behind(
    tmp_path: Path, pending_max: int
) -> None:
    before = set(threading.enumerate())  # a thread of another test may still be ending
    with Runtime.threads(dispatch_threads=2, fetch_threads=2, pending_max=pending_max) as runtime:
        local = ListMessageStore.opened(runtime)
        store = a_hung_store(tmp_path, local, runtime)
        store.load()
        store.start()
        for number in range(30):
            local.fill(1, key=QueueKey("T", number))
        assert arrived.wait(WAIT)
        answers: list[bool] = []
        for _ in range(3):
            assert seconds_of(lambda: answers.append(store.flush(SECONDS, seal=True))) < LATE
        assert answers == [False] * 3
        ours = set(threading.enumerate()) - before
        assert sum("tier-flush" in thread.name for thread in ours) <= 1
        may_go.set()
        assert store.flush(WAIT)
        assert store.committed_offset("T", 29) == 1
        store.shutdown()


def test_a_flush_ends_in_time_where_the_index_hangs(tmp_path: Path) -> None:
    may_go.set()
    with Runtime.threads() as runtime:
        store = a_hung_store(tmp_path, ListMessageStore.opened(runtime), runtime)
        store.load()
        store.start()
        may_go.clear()

        def hang() -> None:
            may_go.wait(WAIT)

        store._loaded().tier.index.seal = hang  # type: ignore[method-assign]
        answers: list[bool] = []
        assert seconds_of(lambda: answers.append(store.flush(SECONDS, seal=True))) < LATE
        assert answers == [False]
        may_go.set()
        store.shutdown()


def test_the_next_store_is_told_what_is_needed_before_it_starts_and_until_it_has_ended(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path)
    guards: list[RetentionGuard] = []
    broker.local.add_retention_guard = guards.append  # type: ignore[method-assign, assignment]
    answers: dict[str, int | None] = {}
    starts, ends = broker.local.start, broker.local.shutdown

    def start() -> None:
        answers["start"] = guards[0]()
        starts()

    def shutdown() -> None:
        answers["shutdown"] = guards[0]()
        ends()
        answers["ended"] = guards[0]()

    broker.open()
    broker.put(3)
    broker.store.shutdown(drain=False)
    broker.local.start, broker.local.shutdown = start, shutdown  # type: ignore[method-assign]
    broker.open()
    broker.cut()
    broker.store.shutdown()
    assert answers == {"start": 0, "shutdown": 0, "ended": 0}
    assert guards[0]() is None


def test_the_retention_of_a_local_store_takes_nothing_that_is_being_drained(
    tmp_path: Path,
) -> None:
    with Runtime.threads() as runtime:
        local = LocalMessageStore(
            LocalConfig(
                store_path=str(tmp_path / "local"),
                commit_log_file_bytes=4096,
                queue_file_bytes=200,
                index_slot_count=101,
                index_item_count=4000,
                dispatch_interval_ms=0,
                flush_disk_type="SYNC_FLUSH",
                sync_flush_timeout_ms=600_000,
                reserve_hours=1,
                delete_count_max=100,
            ),
            runtime,
        )
        store = a_hung_store(tmp_path / "tier", local, runtime)
        store.load()
        store.start()
        for number in range(100):
            store.put_message(a_message(number, body_bytes=200))
        assert arrived.wait(WAIT)
        for file in (tmp_path / "local" / "commitlog").iterdir():
            os.utime(file, (0, 0))
        assert local._parts is not None
        retention = local._parts.retention
        dispatcher, draining = store._loaded().dispatcher, threading.Event()
        dispatch_once = dispatcher.dispatch_once

        def drain(*, force: bool = False, timeout: float | None = None) -> bool:
            draining.set()
            return dispatch_once(force=force, timeout=timeout)

        dispatcher.dispatch_once = drain  # type: ignore[method-assign]
        ending = threading.Thread(target=lambda: store.shutdown(timeout=WAIT), daemon=True)
        ending.start()
        assert draining.wait(WAIT)
        retention.step()
        assert local.min_offset(*KEY) == 0
        may_go.set()
        ending.join(WAIT)
        assert not ending.is_alive()


class _ForeignError(Exception):
    pass


def test_a_foreign_store_that_fails_while_it_is_drained_keeps_nothing_from_being_closed(
    tmp_path: Path,
) -> None:
    with Runtime.threads() as runtime:
        local = ListMessageStore.opened(runtime)
        store = a_hung_store(tmp_path, local, runtime)
        store.load()
        store.start()
        local.fill(1)
        assert arrived.wait(WAIT)
        opened = store._loaded()
        ended: list[str] = []
        end_local = local.shutdown

        def fail() -> Iterator[QueueKey]:
            may_go.set()  # uploads under way end after the drain has failed
            raise _ForeignError("no queues today")

        def local_ends() -> None:
            ended.append("local")
            end_local()

        def parts_close() -> None:
            assert not opened.dispatcher._claims.busy_count
            ended.append("parts")

        local.queues = fail  # type: ignore[method-assign]
        local.shutdown = local_ends  # type: ignore[method-assign]
        opened.tier._owned.callback(parts_close)
        with pytest.raises(_ForeignError, match="no queues today"):
            store.shutdown(timeout=WAIT)
        assert ended == ["parts", "local"]
        assert opened.dispatcher._walk.is_stopped


# Readers, a writer, uploads and the loss of local messages, all at the same time


COUNT = 400


def read_everything(store: TieredMessageStore, *, in_futures: bool) -> list[int]:
    ask = store.get_message_future if in_futures else None
    found: list[int] = []
    while len(found) < COUNT:
        at = len(found)
        result = ask(TOPIC, 0, at).result(WAIT) if ask else store.get_message(TOPIC, 0, at)
        if result.status is GetStatus.FOUND:
            found += numbers(result)
            assert result.next_offset == len(found)
        else:
            assert result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE)
    return found


@pytest.mark.parametrize("level", [StorageLevel.NOT_IN_DISK, StorageLevel.NOT_IN_MEM])
def test_every_reader_sees_every_message_once_and_in_order(
    tmp_path: Path, level: StorageLevel
) -> None:
    runtime = Runtime.threads(dispatch_threads=2, fetch_threads=2)
    local = ListMessageStore(runtime)
    config = a_config(tmp_path, storage_level=level, group_commit_count=20, read_ahead_enabled=True)
    store = TieredMessageStore(local, config, runtime=runtime)
    seen: list[list[int]] = []

    def read(in_futures: bool) -> None:
        seen.append(read_everything(store, in_futures=in_futures))

    with store:
        readers = [threading.Thread(target=read, args=(n % 2 == 0,), daemon=True) for n in range(3)]
        for reader in readers:
            reader.start()
        for number in range(COUNT):
            store.put_message(a_message(number))
            committed = store.committed_offset(TOPIC, 0) or 0
            local.kept_from = committed // 2
            local.cached_from = committed
        for reader in readers:
            reader.join(WAIT)
        assert store.flush(WAIT)
        assert store.health().ok
    assert seen == [list(range(COUNT))] * 3
    runtime.close()


def test_readers_of_a_store_that_is_shut_down_are_told_so_and_none_waits(tmp_path: Path) -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=2)
    local = ListMessageStore(runtime)
    store = TieredMessageStore(local, a_config(tmp_path, storage_level="FORCE"), runtime=runtime)
    outcomes: list[str] = []
    reading = threading.Barrier(4)

    def read() -> None:
        reading.wait(WAIT)
        try:
            while True:
                store.get_message_future(TOPIC, 0, 3).result(WAIT)
        except StoreClosedError:
            outcomes.append("closed")

    with store:
        for number in range(20):
            store.put_message(a_message(number))
        assert store.flush(WAIT)
        readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
        for reader in readers:
            reader.start()
        reading.wait(WAIT)
    for reader in readers:
        reader.join(WAIT)
    assert outcomes == ["closed"] * 3
    runtime.close()
