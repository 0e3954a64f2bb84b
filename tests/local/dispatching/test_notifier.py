"""Dispatchers of others call the store, wait for it, are slow: nothing stops, the order stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.local.store_audit import a_config, opened
from tieredstore.driver.runtime import Runtime
from tieredstore.local import dispatch
from tieredstore.local.dispatch import Notifier
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import DispatchRequest
from tieredstore.testing.samples import TOPIC, a_message

SECONDS = 240.0  # for what has to come; nobody waits that long


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime.threads() as runtime:
        yield runtime


def ended(runtime: Runtime, work: Callable[[], object]) -> None:
    """The work comes to its end in a thread of its own: a lock that is waited for fails a test."""
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
