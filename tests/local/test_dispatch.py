"""Dispatch during puts, and dispatchers that call the store, fail, or are slow.

No message is missed or dispatched twice, and the order is kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.local.store_audit import a_config, opened, parts_of
from tieredstore.driver.runtime import Runtime
from tieredstore.local import dispatch
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.dispatch import INDEX_BATCHES, Dispatch, Notifier
from tieredstore.local.encoder import RecordEncoder
from tieredstore.local.index_service import IndexBatch, IndexService
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError
from tieredstore.model.messages import DispatchRequest
from tieredstore.testing.samples import TOPIC, a_message

WRITERS, MESSAGES = 4, 400


@pytest.mark.parametrize("interval_ms", [0, 1])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_message_is_dispatched_once_and_in_log_order(
    tmp_path: Path, interval_ms: int, flush: str
) -> None:
    config = LocalConfig(
        store_path=str(tmp_path),
        commit_log_file_bytes=1 << 20,
        queue_file_bytes=4_000,
        index_slot_count=101,
        index_item_count=100_000,
        dispatch_count_max=7,
        dispatch_interval_ms=interval_ms,
        flush_disk_type=flush,
    )
    seen: list[DispatchRequest] = []
    with Runtime.threads() as runtime:
        store = LocalMessageStore(config, runtime)
        store.add_dispatcher(seen.extend)
        store.load()
        store.start()

        def put(queue_id: int) -> None:
            for number in range(0, MESSAGES, 5):
                batch = [a_message(n, queue_id=queue_id) for n in range(number, number + 5)]
                assert store.put_messages(batch).all_ok

        writers = [runtime.fetch.submit(put, queue_id) for queue_id in range(WRITERS)]
        while not all(writer.done() for writer in writers):
            store.max_offset(TOPIC, 0)  # a reader that dispatches for the writers
        for writer in writers:
            writer.result()
        for queue_id in range(WRITERS):
            assert store.max_offset(TOPIC, queue_id) == MESSAGES
        store.shutdown()
    places = [request.log_offset for request in seen]
    assert places == sorted(set(places))
    assert len(places) == WRITERS * MESSAGES
    for queue_id in range(WRITERS):
        offsets = [one.queue_offset for one in seen if one.queue_id == queue_id]
        assert offsets == list(range(MESSAGES))


def test_a_dispatcher_that_fails_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LocalConfig(store_path=str(tmp_path), dispatch_interval_ms=0, index_enabled=False)
    store = LocalMessageStore(config, Runtime.inline())
    seen: list[DispatchRequest] = []

    def fail(requests: object) -> None:
        raise RuntimeError("somebody else's trouble")

    store.add_dispatcher(fail)
    store.add_dispatcher(seen.extend)
    store.load()
    store.start()
    for number in range(3):
        store.put_message(a_message(number))
    assert [request.queue_offset for request in seen] == [0, 1, 2]
    assert store.max_offset(TOPIC, 0) == 3
    assert "somebody else's trouble" in caplog.text
    store.shutdown()
    assert not (tmp_path / "abort").exists()


class Puts:
    """Submits one message after another, as a log would."""

    def __init__(
        self, root: Path, index: IndexService | None = None, *, count_max: int = 256
    ) -> None:
        self.queues = ConsumeQueues(root, file_bytes=400, files=MappedFiles())
        self.dispatch = Dispatch(self.queues, index, limit=lambda: 1_000_000, count_max=count_max)
        self._encoder = RecordEncoder(LocalConfig(store_path=str(root)))
        self._count = 0

    def put(self) -> None:
        record = self._encoder.encode(a_message(0))
        record.queue_offset = self._count
        record.placed(record.size * self._count, 1)
        self.dispatch.submit_one(record)
        self._count += 1


class CountedIndex(IndexService):
    """Counts what it is given instead of keeping it."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalConfig(store_path=str(root)), clock=Runtime.inline().clock)
        self.counts: list[int] = []
        self.is_full = False

    def put(self, batch: IndexBatch) -> int:
        if self.is_full:
            raise BackendRefusedError("index", "create", "No space left on device")
        self.counts.append(len(batch))
        return len(batch)


def test_the_index_gets_several_batches_at_once_and_all_where_it_is_asked(tmp_path: Path) -> None:
    index = CountedIndex(tmp_path)
    puts = Puts(tmp_path, index, count_max=2)
    for _ in range(2 * INDEX_BATCHES):
        puts.put()
        puts.dispatch.keep_up()
    assert index.counts == [2 * INDEX_BATCHES]
    puts.put()
    puts.dispatch.drain(indexed=False)
    assert puts.queues.max_offset(TOPIC, 0) == 2 * INDEX_BATCHES + 1
    assert puts.dispatch.behind_count == 1
    assert puts.dispatch.undispatched_from  # its part of the log must be kept
    puts.dispatch.drain()
    assert index.counts == [2 * INDEX_BATCHES, 1]
    assert puts.dispatch.behind_count == 0
    assert puts.dispatch.undispatched_from is None


def test_an_index_that_takes_nothing_holds_up_the_queues_behind_it(tmp_path: Path) -> None:
    index = CountedIndex(tmp_path)
    index.is_full = True
    puts = Puts(tmp_path, index, count_max=2)
    for _ in range(10 * INDEX_BATCHES):
        puts.put()
        puts.dispatch.keep_up()
    assert puts.dispatch.failure
    assert puts.queues.max_offset(TOPIC, 0) == 2 * INDEX_BATCHES
    assert puts.dispatch.behind_count == 10 * INDEX_BATCHES
    index.is_full = False
    puts.dispatch.keep_up()
    assert not puts.dispatch.failure
    assert puts.queues.max_offset(TOPIC, 0) == 10 * INDEX_BATCHES
    assert index.counts == [2 * INDEX_BATCHES] * 5
    assert puts.dispatch.behind_count == 0


class InterruptedOnce(deque[Any]):
    """A line of puts; Ctrl-C comes when the second of them leaves it."""

    left = 2

    def popleft(self) -> object:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().popleft()


def test_a_dispatch_that_is_interrupted_leaves_no_key_out(tmp_path: Path) -> None:
    store = opened(tmp_path, dispatch_interval_ms=60_000)
    for number in range(4):
        store.put_message(a_message(number))
    parts = parts_of(store)
    parts.dispatch._waiting = InterruptedOnce(parts.dispatch._waiting)
    with pytest.raises(KeyboardInterrupt):
        store.max_offset(TOPIC, 0)
    for number in range(4):
        answer = store.query_message(TOPIC, f"key-{number}")
        assert (len(answer.messages), answer.complete) == (1, True)
    assert (store.max_offset(TOPIC, 0), parts.dispatch.behind_count) == (4, 0)
    store.shutdown()
    assert not (tmp_path / "abort").exists()


def test_what_nobody_dispatches_is_dispatched_by_the_second_look(tmp_path: Path) -> None:
    puts = Puts(tmp_path)
    puts.put()
    puts.dispatch.drain()
    puts.put()
    puts.dispatch.step()
    assert puts.dispatch.behind_count == 1
    puts.dispatch.step()
    assert puts.dispatch.behind_count == 0


def test_puts_that_dispatch_themselves_are_left_alone(tmp_path: Path) -> None:
    puts = Puts(tmp_path)
    for _ in range(5):
        puts.put()
        puts.dispatch.drain()
        puts.put()
        puts.dispatch.step()
        assert puts.dispatch.behind_count == 1


def test_a_look_that_fails_is_repeated_ever_later_and_not_for_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = Puts(tmp_path)
    puts.put()
    tries: list[int] = []

    taken = 0  # steps so far

    def full(*_: object) -> int:
        tries.append(taken)
        raise BackendRefusedError("consumequeue", "create", "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "put", full)
        for taken in range(3_000):  # noqa: B007 - `full` reads it
            with contextlib.suppress(BackendRefusedError):
                puts.dispatch.step()
    waits = [later - earlier - 1 for earlier, later in pairwise(tries)]
    assert waits[:5] == [2, 4, 8, 16, 32]
    assert max(waits) == 512
    for _ in range(520):
        puts.dispatch.step()
    assert puts.dispatch.behind_count == 0


SECONDS = 240.0  # an upper bound: no sound run waits that long


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime.threads() as runtime:
        yield runtime


def ended(runtime: Runtime, work: Callable[[], object]) -> None:
    """Run the work in a thread of its own, so that a deadlock fails the test."""
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    future = runtime.dispatch.submit(run)
    assert done.wait(SECONDS), "it waits for itself"
    future.result()


def a_store(root: Path, runtime: Runtime, **settings: object) -> LocalMessageStore:
    store = LocalMessageStore(a_config(root, **settings), runtime)
    store.load()
    store.start()
    return store


def request(number: int) -> DispatchRequest:
    return DispatchRequest(
        topic=TOPIC,
        queue_id=0,
        queue_offset=number,
        log_offset=number,
        size=1,
        tags_code=0,
        store_timestamp=0,
    )


def test_a_dispatcher_may_put_into_the_store_that_calls_it(
    tmp_path: Path, runtime: Runtime
) -> None:
    store = a_store(tmp_path, runtime)
    seen: list[DispatchRequest] = []

    def echo(requests: Sequence[DispatchRequest]) -> None:
        seen.extend(requests)
        for one in requests:
            if one.topic == TOPIC:
                assert store.put_message(a_message(one.queue_offset, topic="Echo")).stored

    store.add_dispatcher(echo)
    ended(runtime, lambda: [store.put_message(a_message(number)) for number in range(5)])
    places = [one.log_offset for one in seen]
    assert places == sorted(set(places))
    assert [one.topic for one in seen] == [TOPIC, "Echo"] * 5
    store.shutdown()


def test_a_dispatcher_may_do_all_that_anybody_may(tmp_path: Path, runtime: Runtime) -> None:
    store = a_store(tmp_path, runtime)
    seen: list[DispatchRequest] = []

    def use(requests: Sequence[DispatchRequest]) -> None:
        seen.extend(requests)
        for one in requests:
            got = store.get_message(one.topic, one.queue_id, one.queue_offset, count_max=1)
            assert [found.log_offset for found in got.messages] == [one.log_offset]
            store.put_message(a_message(1, topic="Gone")) if one.topic == TOPIC else None
            store.flush()
            store.delete_topics(["Gone"])

    store.add_dispatcher(use)
    ended(runtime, lambda: store.put_message(a_message(0)))
    ended(runtime, lambda: (store.put_message(a_message(1)), store.delete_topics(["None"])))
    ended(runtime, store.flush)
    assert [one.queue_offset for one in seen if one.topic == TOPIC] == [0, 1]
    ended(runtime, store.shutdown)


def test_a_dispatcher_may_put_while_topics_are_deleted(tmp_path: Path, runtime: Runtime) -> None:
    store = a_store(tmp_path, runtime, dispatch_interval_ms=60_000)
    told: list[str] = []

    def echo(requests: Sequence[DispatchRequest]) -> None:
        told.extend(one.topic for one in requests)
        if "Echo" not in told:
            store.put_message(a_message(7, topic="Echo"))

    store.add_dispatcher(echo)
    store.put_message(a_message(0))
    ended(runtime, lambda: store.delete_topics(["Unknown"]))
    assert told == [TOPIC]
    assert store.max_offset("Echo", 0) == 1
    store.shutdown()


def test_a_dispatcher_may_shut_the_store_down(tmp_path: Path, runtime: Runtime) -> None:
    store = a_store(tmp_path, runtime)
    store.add_dispatcher(lambda _: store.shutdown())
    ended(runtime, lambda: store.put_message(a_message(0)))
    again = opened(tmp_path)
    assert again.max_offset(TOPIC, 0) == 1
    again.shutdown()


def test_a_dispatcher_may_wait_for_another_thread_that_puts(
    tmp_path: Path, runtime: Runtime
) -> None:
    store = a_store(tmp_path, runtime)
    seen: list[int] = []

    def hand_over(requests: Sequence[DispatchRequest]) -> None:
        seen.extend(one.log_offset for one in requests)
        if len(seen) < 4:
            runtime.fetch.submit(store.put_message, a_message(len(seen))).result(SECONDS)

    store.add_dispatcher(hand_over)
    ended(runtime, lambda: store.put_message(a_message(0)))
    assert seen == sorted(set(seen))
    assert len(seen) == 4
    store.shutdown()


def test_dispatchers_get_everything_before_the_end(tmp_path: Path, runtime: Runtime) -> None:
    store = a_store(tmp_path, runtime)
    begun, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def slow(requests: Sequence[DispatchRequest]) -> None:
        begun.set()
        assert go_on.wait(SECONDS)
        seen.extend(one.queue_offset for one in requests)

    store.add_dispatcher(slow)
    first = runtime.dispatch.submit(store.put_message, a_message(0))
    assert begun.wait(SECONDS)
    assert store.put_message(a_message(1)).stored  # does not wait for the slow one
    ending = runtime.dispatch.submit(store.shutdown)
    go_on.set()
    ending.result(SECONDS)
    assert seen == [0, 1]
    first.result(SECONDS)


def test_each_batch_is_passed_on_once_and_in_order_in_any_thread(runtime: Runtime) -> None:
    notifier = Notifier()
    seen: list[int] = []
    notifier.add_dispatcher(lambda requests: seen.extend(one.log_offset for one in requests))
    order = threading.Lock()
    given = iter(range(4_000))

    def work() -> None:
        for _ in range(1_000):
            with order:
                number = next(given)
                notifier.add(lambda number=number: [request(number)])  # type: ignore[misc]
            notifier.notify()
            notifier.keep_pace()

    for future in [runtime.dispatch.submit(work) for _ in range(4)]:
        future.result(SECONDS)
    assert notifier.finish()
    assert seen == list(range(4_000))


def test_who_puts_waits_for_a_dispatcher_that_is_far_behind(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "WAIT_SECONDS", SECONDS)
    notifier = Notifier()
    begun, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def slow(requests: Sequence[DispatchRequest]) -> None:
        begun.set()
        assert go_on.wait(SECONDS)
        seen.append(requests[0].log_offset)

    notifier.add_dispatcher(slow)
    notifier.add(lambda: [request(0)])
    notifying = runtime.dispatch.submit(notifier.notify)
    assert begun.wait(SECONDS)
    for _ in range(dispatch.PENDING_MAX):
        notifier.add(lambda: [request(1)])
        notifier.keep_pace()
    notifier.add(lambda: [request(2)])
    waiting = runtime.dispatch.submit(notifier.keep_pace)
    assert not waiting.done()
    go_on.set()
    waiting.result(SECONDS)
    notifying.result(SECONDS)
    assert (len(seen), seen[-1]) == (dispatch.PENDING_MAX + 2, 2)


def test_a_dispatcher_that_is_waited_for_too_long_is_left_behind(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "WAIT_SECONDS", 0.001)
    monkeypatch.setattr(dispatch, "END_WAIT_SECONDS", 0.001)
    notifier = Notifier()
    begun, go_on = threading.Event(), threading.Event()

    def stuck(_: object) -> None:
        begun.set()
        go_on.wait(SECONDS)

    notifier.add_dispatcher(stuck)
    notifier.add(lambda: [request(0)])
    notifying = runtime.dispatch.submit(notifier.notify)
    assert begun.wait(SECONDS)
    for _ in range(2 * dispatch.PENDING_MAX):
        notifier.add(lambda: [request(1)])
        notifier.keep_pace()
    assert not notifier.finish()
    go_on.set()
    notifying.result(SECONDS)
    assert notifier.finish()
