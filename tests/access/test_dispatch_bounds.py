"""Buffered bytes, uploads under way and threads stay within their bounds.

A queue that gets messages all the time is uploaded in full batches, not in small ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier
from tieredstore.access.admission import UploadBudget
from tieredstore.access.dispatcher import Pass
from tieredstore.driver.provider import WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore

WAIT = 240.0  # far more than any machine needs


class CountingBudget:
    """Wraps a budget and records the most that was ever used."""

    def __init__(self, budget: UploadBudget) -> None:
        self.peak_bytes = self.peak_uploads = 0
        take, start = budget.take, budget.start_upload

        def watched_take(count: int, *, instead_of: int = 0) -> bool:
            taken = take(count, instead_of=instead_of)
            self.peak_bytes = max(self.peak_bytes, budget.used_bytes)
            return taken

        def watched_start() -> bool:
            started = start()
            self.peak_uploads = max(self.peak_uploads, budget.uploads)
            return started

        budget.take = watched_take  # type: ignore[method-assign]
        budget.start_upload = watched_start  # type: ignore[method-assign]


class HeldProvider(MemoryProvider):
    """Writes pairs only when a test lets it."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.waiting: list[tuple[WritePair, Future[None]]] = []
        self.sent_bytes = 0
        self.most_waiting = self.most_bytes = 0
        self._guard = threading.Lock()
        self.arrived = threading.Event()

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        futures: list[Future[None]] = [Future() for _ in pairs]
        with self._guard:
            self.waiting += zip(pairs, futures, strict=True)
            self.most_waiting = max(self.most_waiting, len(self.waiting))
            held = sum(len(pair.log.data) for pair, _ in self.waiting if pair.log is not None)
            self.most_bytes = max(self.most_bytes, held)
        self.arrived.set()
        return futures

    def let_go(self) -> int:
        with self._guard:
            going, self.waiting = self.waiting, []
            self.arrived.clear()
        for pair, future in going:
            for each in (pair.log, pair.queue):
                if each is not None:
                    each.segment.write(each.position, each.data)
            future.set_result(None)
        return len(going)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime.threads(dispatch_threads=3, fetch_threads=2) as runtime:
        yield runtime


def drained(tier: Tier, provider: HeldProvider) -> None:
    """Flush in another thread while all waiting uploads are let go again and again."""
    done: list[bool] = []
    flushing = threading.Thread(target=lambda: done.append(tier.flush(timeout=WAIT)), daemon=True)
    flushing.start()
    while flushing.is_alive():
        if provider.arrived.wait(0.02):
            provider.let_go()
    assert done == [True]


def test_with_a_slow_backend_no_bound_is_ever_exceeded(tmp_path: Path, runtime: Runtime) -> None:
    provider, store, index = (
        HeldProvider(runtime),
        ListMessageStore.opened(runtime),
        RecordingIndex(),
    )
    keys = [QueueKey("T", number) for number in range(40)]
    for key in keys:
        store.fill(20, key=key, body_bytes=400)
    tier = Tier(
        tmp_path,
        store,
        runtime=runtime,
        provider=provider,
        index=index,
        dispatch_buffer_bytes=40_000,
        group_commit_bytes=4_000,
        pending_count_max=20,
    )
    watched = CountingBudget(tier.dispatcher.budget)
    drained(tier, provider)
    assert 0 < watched.peak_bytes <= 40_000
    assert 0 < provider.most_bytes <= 40_000
    assert 0 < watched.peak_uploads <= 5
    assert 0 < provider.most_waiting <= 5
    assert (tier.dispatcher.budget.used_bytes, tier.dispatcher.budget.uploads) == (0, 0)
    for key in keys:
        assert index.offsets(key) == list(range(20))
    tier.check()
    tier.close()


def test_one_batch_larger_than_everything_allowed_goes_alone(
    tmp_path: Path, runtime: Runtime
) -> None:
    provider, store = HeldProvider(runtime), ListMessageStore.opened(runtime)
    keys = [QueueKey("T", number) for number in range(5)]
    for key in keys:
        store.fill(2, key=key)
        store.fill(1, key=key, body_bytes=9_000)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider, dispatch_buffer_bytes=4_000)
    drained(tier, provider)
    assert provider.most_bytes < 18_000
    assert all(tier.span(key) == (0, 3) for key in keys)
    tier.check()
    tier.close()


def test_a_thousand_queues_are_uploaded_in_few_rounds_by_few_threads(
    tmp_path: Path, runtime: Runtime
) -> None:
    store, index = ListMessageStore.opened(runtime), RecordingIndex()
    keys = [QueueKey(f"T{number % 50}", number // 50) for number in range(1_000)]
    for key in keys:
        store.fill(1, key=key)
    rounds: list[int] = []

    class Counting(MemoryProvider):
        def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
            rounds.append(len(pairs))
            return super().write_many(pairs)

    provider = Counting(runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider, index=index)
    before = threading.active_count()
    assert tier.flush(timeout=WAIT)
    assert threading.active_count() - before <= 5
    assert len(index.puts) == 1_000
    rounds.clear()
    for key in keys:
        store.fill(1, key=key)
    assert tier.flush(timeout=WAIT)
    assert len(index.puts) == 2_000
    assert len(rounds) < 20
    tier.close()


def test_what_is_not_confirmed_yet_is_hardly_read(tmp_path: Path) -> None:
    """Without a bound, reading it at each look would cost more than the uploads themselves."""

    class Counting(ListMessageStore):
        read_count = 0

        def read_range(
            self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
        ) -> MessageRun:
            run = super().read_range(
                topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max
            )
            self.read_count += len(run)
            return run

    runtime = Runtime.inline()
    store = Counting.opened(runtime)
    store.fill(100)
    confirmed = store.confirmed_offset()
    store.fill(900)
    store.confirmed = confirmed
    tier = Tier(tmp_path, store, runtime=runtime, group_commit_count=500)
    for _ in range(5):
        tier.dispatch(force=True)
    assert tier.span() == (0, 100)
    assert store.read_count < 200
    store.confirmed = None
    assert tier.flush()
    assert tier.span() == (0, 1_000)
    tier.check()
    tier.close()


class SteppedByHand:
    """A service whose steps the test runs; it counts how often it is woken."""

    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def stop(self, timeout: float | None = None) -> bool:
        return True


def test_puts_that_are_not_confirmed_wake_nobody_until_the_confirmed_offset_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each batch of puts would make the upload read a message and drain the store's
    dispatch.
    """
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
    service = SteppedByHand()
    steps: list[Callable[[], object]] = []

    def by_hand(name: str, step: Callable[[], object], *, interval_ms: int) -> SteppedByHand:
        steps.append(step)
        return service

    monkeypatch.setattr(runtime, "service", by_hand)
    store = ListMessageStore.opened(runtime)
    store.fill(1)
    tier = Tier(tmp_path, store, runtime=runtime, group_commit_count=10)
    assert tier.flush(timeout=WAIT)
    store.confirmed = store.confirmed_offset()
    tier.dispatcher.start()
    step = steps[-1]
    step()  # looks at all queues
    for _ in range(5):
        store.fill(10)
        step()
    looks, wakes = store.calls.count("read_range"), service.wakes
    for _ in range(20):
        store.fill(10)
        step()
    assert service.wakes == wakes
    assert store.calls.count("read_range") == looks
    store.confirmed = None
    step()
    assert store.calls.count("read_range") > looks
    assert tier.flush(timeout=WAIT)
    assert tier.span() == (0, 251)
    tier.check()
    tier.dispatcher.shutdown()
    tier.close()
    runtime.close()


def test_queues_with_little_share_a_buffer_that_one_whole_batch_would_fill(tmp_path: Path) -> None:
    runtime = Runtime.inline()
    provider, store = HeldProvider(runtime), ListMessageStore.opened(runtime)
    keys = [QueueKey("T", number) for number in range(20)]
    for key in keys:
        store.fill(1, key=key)
    much = QueueKey("Much", 0)
    store.fill(400, key=much)
    tier = Tier(
        tmp_path,
        store,
        runtime=runtime,
        provider=provider,
        dispatch_buffer_bytes=64_000,
        group_commit_count=50,
    )
    watched = CountingBudget(tier.dispatcher.budget)
    tier.dispatch(force=True)
    assert provider.let_go() >= len(keys)
    while not tier.flush():
        assert provider.let_go()
    assert watched.peak_bytes <= 64_000
    assert all(tier.span(key) == (0, 1) for key in keys)
    assert tier.span(much) == (0, 400)
    tier.check()
    tier.close()


def test_a_queue_whose_upload_hangs_delays_nobody_else(tmp_path: Path, runtime: Runtime) -> None:
    hung, good = QueueKey("Hung", 0), QueueKey("Good", 0)

    class Hanging(HeldProvider):
        def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
            futures: list[Future[None]] = []
            for pair in pairs:
                is_hung = pair.log is not None and "Hung" in pair.log.segment.queue_path
                futures += (super().write_many if is_hung else self.at_once)([pair])
            return futures

        def at_once(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
            return MemoryProvider.write_many(self, pairs)

    provider, store = Hanging(runtime), ListMessageStore.opened(runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider)
    store.fill(3, key=hung)
    for count in (3, 6):
        store.fill(3, key=good)
        for _ in range(1_000):  # an upload may take long on a busy machine
            assert not tier.flush(timeout=0.2)
            if tier.dispatcher.committed_offset(*good) == count:
                break
    assert provider.arrived.wait(WAIT)
    assert tier.span(good) == (0, 6)
    assert tier.span(hung) == (0, 0)
    assert provider.let_go() == 1
    assert tier.flush(timeout=WAIT)
    assert tier.span(hung) == (0, 3)
    tier.close()


def test_the_budget_refuses_what_is_too_much_and_changes_nothing_then() -> None:
    budget = UploadBudget(bytes_max=100, uploads_max=1)
    assert budget.take(60)
    assert not budget.take(41)
    assert budget.take(40)
    assert budget.used_bytes == 100
    assert not budget.take(90, instead_of=40)
    budget.give(60)
    assert budget.take(500, instead_of=40)
    assert not budget.take(1)
    budget.give(500)
    assert budget.used_bytes == 0
    assert budget.start_upload()
    assert not budget.start_upload()
    budget.end_upload()
    assert budget.start_upload()


# A queue that gets messages all the time is uploaded in full batches, not in small ones


COUNT = 10


class BusyProvider(MemoryProvider):
    """Puts a message during each upload; counts the uploads."""

    def __init__(self, runtime: Runtime, store: ListMessageStore) -> None:
        super().__init__(runtime)
        self.store = store
        self.commits = 0

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        self.commits += len(pairs)
        self.store.fill(1)
        return super().write_many(pairs)


@pytest.mark.parametrize(
    "full", [{"group_commit_count": COUNT}, {"group_commit_bytes": 2_000}], ids=str
)
def test_a_busy_queue_behind_a_slow_backend_waits_for_each_full_batch(
    tmp_path: Path, full: dict[str, object]
) -> None:
    runtime = Runtime.inline()
    store = ListMessageStore.opened(runtime)
    provider = BusyProvider(runtime, store)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider, **full)  # type: ignore[arg-type]
    tier.dispatcher.start()
    for _ in range(10 * COUNT):
        store.fill(1)
        tier.dispatch()
    assert 5 <= provider.commits <= 20  # not one for each message
    tier.dispatch(force=True)
    tier.check()


def test_a_batch_that_was_dropped_from_memory_waits_again(tmp_path: Path) -> None:
    runtime, faults = Runtime.inline(), Faults()
    store = ListMessageStore.opened(runtime)
    provider = FaultyProvider(MemoryProvider(runtime), faults, runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider, group_commit_count=COUNT)
    tier.dispatcher.start()
    store.fill(1)
    tier.dispatch(force=True)
    faults.always = Fault.BEFORE
    store.fill(COUNT)
    tier.dispatch()
    parts = tier.dispatcher
    assert not parts._pending.is_full(KEY)
    faults.always = None
    assert parts._walk._relieve(Pass())
    assert parts._pending.is_full(KEY)
    assert tier.dispatch()
    assert tier.span() == (0, COUNT + 1)
