"""The life of a dispatcher: start, the service, the store's callback, the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier, a_tier
from tieredstore.access.admission import PendingCounts, QueueClaims
from tieredstore.driver.metrics import (
    MESSAGES_DISPATCHED,
    Labels,
    Metric,
    NoMetrics,
)
from tieredstore.driver.provider import WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import CommittedRun
from tieredstore.model.messages import DispatchRequest
from tieredstore.model.values import QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC

WAIT = 240.0  # far more than any machine needs


class SlowProvider(MemoryProvider):
    """Holds uploads until a test lets them go on."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.may_go = threading.Event()
        self.arrived = threading.Event()

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        def later(pair: WritePair) -> None:
            self.arrived.set()
            assert self.may_go.wait(WAIT)
            for each in (pair.log, pair.queue):
                if each is not None:
                    each.segment.write(each.position, each.data)

        return [self._runtime.dispatch.submit(later, pair) for pair in pairs]


class Uploaded(RecordingIndex):
    """Sets `done` once it has been given `count` messages."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.done = threading.Event()

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        super().put(topic, topic_id, queue_id, run)
        if len(self.puts) >= self.count:
            self.done.set()


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime.threads(dispatch_threads=3, fetch_threads=2) as runtime:
        yield runtime


def test_nothing_happens_before_start(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, group_commit_count=1)
    store.fill(5)
    assert not tier.files.files()
    assert tier.dispatcher.committed_offset(TOPIC, 0) is None


def test_the_service_uploads_by_itself_when_a_batch_is_full(
    tmp_path: Path, runtime: Runtime
) -> None:
    store, index = ListMessageStore.opened(runtime), Uploaded(50)
    tier = Tier(tmp_path, store, runtime=runtime, index=index, group_commit_count=10)
    tier.dispatcher.start()
    tier.dispatcher.start()
    store.fill(50)
    assert index.done.wait(WAIT)
    assert tier.dispatcher.shutdown(timeout=WAIT)
    assert tier.dispatcher.shutdown(timeout=WAIT)
    assert tier.dispatcher.committed_offset(TOPIC, 0) == 50
    tier.close()


def test_the_service_looks_at_all_queues_when_it_starts(tmp_path: Path, runtime: Runtime) -> None:
    store, index = ListMessageStore.opened(runtime), Uploaded(5)
    store.fill(5)
    tier = Tier(tmp_path, store, runtime=runtime, index=index, group_commit_enabled=False)
    tier.dispatcher.start()
    assert index.done.wait(WAIT)
    tier.dispatcher.shutdown(timeout=WAIT)
    tier.close()


def test_a_shutdown_that_drains_leaves_nothing_behind(tmp_path: Path, runtime: Runtime) -> None:
    store, index = ListMessageStore.opened(runtime), RecordingIndex()
    tier = Tier(tmp_path, store, runtime=runtime, index=index)
    tier.dispatcher.start()
    for number in range(20):
        store.fill(3, key=QueueKey("T", number))
    assert tier.dispatcher.shutdown(drain=True, timeout=WAIT)
    assert all(tier.span(QueueKey("T", number)) == (0, 3) for number in range(20))
    store.fill(5)
    assert tier.dispatcher.committed_offset(TOPIC, 0) is None
    tier.close()


def test_a_shutdown_does_not_wait_for_ever(tmp_path: Path, runtime: Runtime) -> None:
    provider = SlowProvider(runtime)
    store, index = ListMessageStore.opened(runtime), RecordingIndex()
    store.fill(3)
    tier = Tier(
        tmp_path,
        store,
        runtime=runtime,
        provider=provider,
        index=index,
        group_commit_enabled=False,
    )
    tier.dispatcher.start()
    assert provider.arrived.wait(WAIT)
    assert not tier.dispatcher.shutdown(drain=True, timeout=0.05)
    provider.may_go.set()
    assert tier.dispatcher.shutdown(timeout=WAIT)
    assert index.offsets() == [0, 1, 2]
    tier.close()


def test_it_can_be_started_again(tmp_path: Path, runtime: Runtime) -> None:
    store, index = ListMessageStore.opened(runtime), Uploaded(5)
    tier = Tier(tmp_path, store, runtime=runtime, index=index, group_commit_count=5)
    tier.dispatcher.start()
    tier.dispatcher.shutdown(timeout=WAIT)
    tier.dispatcher.start()
    store.fill(5)
    assert index.done.wait(WAIT)
    tier.dispatcher.shutdown(timeout=WAIT)
    tier.close()


class _GivenBack(QueueClaims):
    """Another thread gives its claim back right after this one has counted the claims."""

    @property
    def busy_count(self) -> int:
        count = super().busy_count
        self.give(KEY)
        return count

    def wait_for_change(self, since: int, timeout: float | None, *, many: int = 1) -> bool:
        assert since != self.changes, "nobody is left to end this wait"
        return super().wait_for_change(since, timeout, many=many)


def test_a_shutdown_does_not_wait_for_a_claim_that_was_given_back_just_now(
    tmp_path: Path, runtime: Runtime
) -> None:
    tier = Tier(tmp_path, ListMessageStore.opened(runtime), runtime=runtime)
    tier.dispatcher._claims = _GivenBack()
    assert tier.dispatcher._claims.take(KEY)
    assert tier.dispatcher.shutdown(timeout=None)
    tier.close()


def test_a_store_closed_meanwhile_ends_the_look_quietly(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(5)
    tier.dispatch(force=True)
    store.shutdown()
    assert tier.dispatch(force=True)
    assert tier.is_sound


def test_flush_says_whether_all_that_is_confirmed_is_in_the_tier(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(5)
    assert tier.flush()
    assert tier.span() == (0, 5)
    store.cut_to(KEY, 2)
    assert not tier.flush()


def test_who_is_alone_with_a_queue_holds_its_uploads(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(5)
    with tier.dispatcher.alone_with(KEY) as alone:
        assert alone
        assert not tier.dispatch(force=True)
        assert not tier.files.files()
        with tier.dispatcher.alone_with(KEY, timeout=0) as twice:
            assert not twice
    assert tier.dispatch(force=True)
    assert tier.span() == (0, 5)


def test_the_local_store_keeps_what_the_tier_still_needs(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    other, out = QueueKey("Other", 0), QueueKey("rmq_sys_X", 0)
    store.fill(1, key=out)
    store.fill(5)
    store.fill(5, key=other)
    tier.dispatcher.start()
    place = int(store.read_range(*KEY, 0, count_max=1, bytes_max=1).log_offsets[0])
    assert tier.dispatcher.needed_from() == place
    tier.dispatch(force=True)
    assert tier.dispatcher.needed_from() is None
    store.fill(2, key=other)
    place = int(store.read_range(*other, 5, count_max=1, bytes_max=1).log_offsets[0])
    assert tier.dispatcher.needed_from() == place
    store.calls.clear()
    assert tier.dispatcher.needed_from() == place
    assert "read_range" not in store.calls
    tier.dispatcher.shutdown()
    assert tier.dispatcher.needed_from() == place


def test_the_local_store_keeps_it_before_the_start_and_while_it_is_drained(
    tmp_path: Path, runtime: Runtime
) -> None:
    provider, store = SlowProvider(runtime), ListMessageStore.opened(runtime)
    store.fill(5)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider)
    assert tier.dispatcher.needed_from() == 0
    tier.dispatcher.start()
    ending = threading.Thread(
        target=lambda: tier.dispatcher.shutdown(drain=True, timeout=WAIT), daemon=True
    )
    ending.start()
    assert provider.arrived.wait(WAIT)
    assert tier.dispatcher.needed_from() == 0
    provider.may_go.set()
    ending.join(WAIT)
    assert tier.dispatcher.needed_from() is None
    tier.close()


def test_a_stopped_queue_does_not_keep_the_local_store_for_ever(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    tier.dispatcher.start()
    store.fill(10)
    tier.dispatch(force=True)
    store.cut_to(KEY, 5)
    tier.dispatch(force=True)
    store.fill(10)
    assert tier.dispatcher.needed_from() is None


class Recorder(NoMetrics):
    """Metrics that keep what they are told."""

    def __init__(self) -> None:
        self.counted: list[tuple[Metric, int, Labels]] = []

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        self.counted.append((metric, amount, labels))


def test_the_metrics_count_what_was_uploaded(tmp_path: Path) -> None:
    runtime, metrics = Runtime.inline(), Recorder()
    store = ListMessageStore.opened(runtime)
    tier = Tier(tmp_path, store, runtime=runtime, metrics=metrics)
    tier.dispatcher.start()
    store.fill(5)
    tier.dispatch(force=True)
    labels = {"topic": TOPIC, "queue_id": "0"}
    assert metrics.counted == [(MESSAGES_DISPATCHED, 5, {**labels, "file_type": "commit_log"})]


def a_request(offset: int, *, topic: str = TOPIC, size: int = 100) -> DispatchRequest:
    return DispatchRequest(
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        log_offset=offset * 100,
        size=size,
        tags_code=0,
        store_timestamp=0,
    )


def test_the_callback_wakes_once_for_a_full_batch() -> None:
    counts = PendingCounts(full_count=3, full_bytes=10_000, rejects=lambda topic: topic == "Out")
    assert not counts.note([a_request(0), a_request(1)])
    assert not counts.note([a_request(at, topic="Out") for at in range(9)])
    assert counts.note([a_request(2)])
    assert not counts.note([a_request(3)])
    assert counts.take_due() == [KEY]
    assert counts.is_full(KEY)
    counts.took(KEY, 3, 300)
    assert not counts.is_full(KEY)
    assert counts.note([a_request(4, size=20_000)])
    counts.none_wait(KEY)
    assert not counts.is_full(KEY)
    counts.keep([])
    assert not counts.is_full(KEY)
