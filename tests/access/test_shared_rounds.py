"""Rounds that all queues share, for a provider to which a round costs the same for any content."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.access import test_rounds
from tests.access.dispatch_kit import KEY, RecordingIndex, Tier
from tests.access.shared_kit import SharedProvider
from tieredstore.access import dispatcher as dispatching
from tieredstore.access.dispatcher import Pass
from tieredstore.access.upkeep import expire
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import Change
from tieredstore.driver.provider import Fence, WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import CommittedRun, Index, NoIndex
from tieredstore.model.values import INT64_MAX, QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault
from tieredstore.testing.message_store_contract import ListMessageStore

WAIT = 240.0  # far more than any machine needs
DUE_MS = 31_000


class Indexed(NoIndex):
    """Counts messages by queue; a test can wait for a number of them."""

    def __init__(self) -> None:
        self.counts: dict[QueueKey, int] = {}
        self.wanted = 0
        self.done = threading.Event()
        self._guard = threading.Lock()

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        key = QueueKey(topic, queue_id)
        with self._guard:
            assert run.run.first_offset == self.counts.get(key, run.run.first_offset)
            self.counts[key] = run.run.end_offset
            if self.wanted and sum(self.counts.values()) >= self.wanted:
                self.done.set()

    def wait_for(self, count: int) -> None:
        with self._guard:
            self.wanted = count
            if sum(self.counts.values()) < count:
                self.done.clear()
        assert self.done.wait(WAIT)


def queues(count: int) -> list[QueueKey]:
    return [QueueKey(f"T{number % 50}", number // 50) for number in range(count)]


def fill(store: ListMessageStore, keys: Iterable[QueueKey], count: int = 1) -> None:
    for key in keys:
        store.fill(count, key=key)


class Shared(Tier):
    """Runs everything in one thread, unless a test gives another runtime."""

    provider: SharedProvider
    store: ListMessageStore

    @classmethod
    def made(
        cls,
        root: Path,
        *,
        runtime: Runtime | None = None,
        index: Index | None = None,
        **settings: object,
    ) -> Shared:
        runtime = runtime or Runtime.inline()
        provider = SharedProvider(runtime)
        return cls(
            root,
            ListMessageStore.opened(runtime),
            runtime=runtime,
            provider=provider,
            metadata=provider.rows,
            index=index or RecordingIndex(),
            **settings,  # type: ignore[arg-type]
        )

    def opened_again(self) -> Shared:
        return self.reopened(metadata=self.provider.rows)

    def assert_committed(self, keys: Iterable[QueueKey], count: int) -> None:
        assert {self.dispatcher.committed_offset(*key) for key in keys} == {count}


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime.threads(dispatch_threads=3, fetch_threads=2) as runtime:
        yield runtime


# One call for all queues


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_all_queues_are_one_call_of_the_provider(tmp_path: Path, count: int) -> None:
    tier = Shared.made(tmp_path, index=NoIndex())
    keys = queues(count)
    for turn in range(1, 3):
        fill(tier.store, keys)
        assert tier.dispatch()
        assert tier.provider.rounds == [count] * (turn - 1)
        tier.later(DUE_MS)
        assert tier.dispatch()
        assert tier.provider.rounds == [count] * turn
        tier.assert_committed(keys, turn)
    assert tier.provider.rows.applied == 0  # all rows were written with the bytes
    assert (tier.dispatcher.budget.used_bytes, tier.dispatcher.budget.uploads) == (0, 0)
    tier.check(*keys[::500])


def test_queues_that_begin_at_the_same_time_share_their_first_round(
    tmp_path: Path, runtime: Runtime
) -> None:
    index, keys = Indexed(), queues(1_000)
    tier = Shared.made(tmp_path, runtime=runtime, index=index, group_commit_enabled=False)
    fill(tier.store, keys)
    tier.dispatcher.start()
    index.wait_for(1_000)
    assert tier.dispatcher.shutdown(timeout=WAIT)
    assert tier.provider.rounds == [1_000]
    tier.close()


def test_queues_whose_ends_are_not_known_share_it_too(tmp_path: Path, runtime: Runtime) -> None:
    index, keys = Indexed(), queues(300)
    tier = Shared.made(tmp_path, runtime=runtime, index=index)
    fill(tier.store, keys)
    assert tier.flush(timeout=WAIT)
    tier = tier.opened_again()
    fill(tier.store, keys)
    tier.provider.asked = 0
    assert tier.flush(timeout=WAIT)
    assert tier.provider.asked == 600
    assert tier.provider.rounds == [300, 300]
    tier.assert_committed(keys, 2)
    tier.check()
    tier.close()


def test_who_has_something_joins_a_queue_that_is_due_and_nobody_else_is_read(
    tmp_path: Path, runtime: Runtime
) -> None:
    index, keys = Indexed(), queues(50)
    tier = Shared.made(tmp_path, runtime=runtime, index=index, group_commit_count=10)
    fill(tier.store, [KEY, *keys])
    assert tier.flush(timeout=WAIT)
    tier.dispatcher.start()
    fill(tier.store, keys[:20])
    tier.store.calls.clear()
    fill(tier.store, [KEY], 10)
    index.wait_for(51 + 30)
    assert tier.dispatcher.shutdown(timeout=WAIT)
    assert tier.provider.rounds == [51, 21]
    assert tier.store.calls.count("read_range") == 21
    tier.assert_committed(keys[:20], 2)
    tier.assert_committed(keys[20:], 1)
    tier.close()


def test_what_may_still_be_lost_is_not_in_it(tmp_path: Path) -> None:
    tier = Shared.made(tmp_path)
    keys = queues(4)
    fill(tier.store, keys[:3])
    tier.store.confirmed = tier.store.confirmed_offset()
    fill(tier.store, keys[2:])
    assert tier.dispatch(force=True)
    assert tier.provider.rounds == [3]
    assert [tier.dispatcher.committed_offset(*key) for key in keys] == [1, 1, 1, 0]
    tier.store.confirmed = None
    assert tier.dispatch(force=True)
    tier.assert_committed(keys[:2], 1)
    assert [tier.dispatcher.committed_offset(*key) for key in keys[2:]] == [2, 1]


# One round after the other


def test_the_next_round_waits_for_the_last_and_then_for_messages_that_are_due(
    tmp_path: Path,
) -> None:
    tier = Shared.made(tmp_path)
    keys = queues(20)
    fill(tier.store, keys)
    tier.provider.is_held = True
    tier.dispatcher.start()
    assert not tier.dispatch(force=True)
    fill(tier.store, [*keys, KEY])
    assert not tier.dispatch(force=True)  # the provider refuses a second call at a time
    assert tier.provider.rounds == [20]
    tier.provider.is_held = False
    tier.provider.let_go()
    assert tier.dispatch()
    assert tier.provider.rounds == [20]
    tier.later(DUE_MS)
    assert tier.dispatch()
    assert tier.provider.rounds == [20, 21]
    tier.check()


def test_a_backlog_goes_on_by_itself_round_after_round(tmp_path: Path, runtime: Runtime) -> None:
    index, keys = Indexed(), queues(30)
    tier = Shared.made(tmp_path, runtime=runtime, index=index, group_commit_count=10)
    fill(tier.store, keys, 40)
    tier.dispatcher.start()
    index.wait_for(1_200)
    assert tier.dispatcher.shutdown(timeout=WAIT)
    assert tier.provider.rounds == [30] * 4
    tier.check()
    tier.close()


def test_a_flush_waits_for_the_round_under_way(tmp_path: Path, runtime: Runtime) -> None:
    index, keys = Indexed(), queues(40)
    tier = Shared.made(tmp_path, runtime=runtime, index=index, group_commit_count=5)
    sent = threading.Event()
    write_many = tier.provider.write_many

    def held(pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        futures = write_many(pairs)
        sent.set()
        return futures

    tier.provider.write_many = held  # type: ignore[method-assign]
    tier.provider.is_held = True
    fill(tier.store, keys, 5)
    tier.dispatcher.start()
    assert sent.wait(WAIT)
    fill(tier.store, keys)
    done: list[bool] = []
    flushing = threading.Thread(target=lambda: done.append(tier.flush(timeout=WAIT)), daemon=True)
    flushing.start()
    assert not tier.flush(timeout=0.05)
    assert len(tier.provider.rounds) == 1
    tier.provider.is_held = False
    tier.provider.let_go()
    flushing.join(WAIT)
    assert done == [True]
    tier.assert_committed(keys, 6)
    assert tier.dispatcher.shutdown(timeout=WAIT)
    assert len(tier.provider.rounds) == 2
    tier.close()


def test_a_shutdown_waits_for_the_round_under_way(tmp_path: Path, runtime: Runtime) -> None:
    tier = Shared.made(tmp_path, runtime=runtime, index=Indexed())
    tier.provider.is_held = True
    fill(tier.store, [KEY])
    assert not tier.flush(timeout=0.5)
    assert tier.provider.waiting
    assert not tier.dispatcher.shutdown(timeout=0.05)
    tier.provider.let_go()
    assert tier.dispatcher.shutdown(timeout=WAIT)
    assert tier.span() == (0, 1)
    tier.close()


def test_a_chore_that_hangs_keeps_no_round_back(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = threading.Event()

    class Hanging(Indexed):
        def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
            assert (topic, queue_id) != KEY or may_go.wait(WAIT)
            return None

    keys = queues(10)
    tier = Shared.made(tmp_path, runtime=runtime, index=Indexed())
    fill(tier.store, [KEY, *keys])
    assert tier.flush(timeout=WAIT)
    tier = tier.reopened(metadata=tier.provider.rows, index=Hanging())
    monkeypatch.setattr(dispatching, "CHORE_SECONDS", 0.02)
    fill(tier.store, [KEY, *keys])
    for _ in range(1_000):  # the others may take long on a busy machine
        assert not tier.flush(timeout=0.2)
        if {tier.dispatcher.committed_offset(*key) for key in keys} == {2}:
            break
    tier.assert_committed(keys, 2)
    assert tier.span() == (0, 1)
    may_go.set()
    assert tier.flush(timeout=WAIT)
    assert tier.span() == (0, 2)
    tier.close()


# Bounds


def test_the_buffer_alone_cuts_a_round(tmp_path: Path) -> None:
    tier = Shared.made(tmp_path, dispatch_buffer_bytes=100_000, pending_count_max=4)
    keys = queues(60)
    fill(tier.store, keys)
    most = 0
    take = tier.dispatcher.budget.take

    def watched(count: int, *, instead_of: int = 0) -> bool:
        nonlocal most
        taken = take(count, instead_of=instead_of)
        most = max(most, tier.dispatcher.budget.used_bytes)
        return taken

    tier.dispatcher.budget.take = watched  # type: ignore[method-assign]
    assert tier.dispatch(force=True)
    assert 50_000 < most <= 100_000
    assert sum(tier.provider.rounds) == 60
    assert len(tier.provider.rounds) <= 3
    tier.check()


# Failures


def test_a_round_whose_reply_was_lost_is_found_to_be_there(tmp_path: Path) -> None:
    tier = Shared.made(tmp_path)
    keys = queues(30)
    fill(tier.store, keys)
    tier.provider.fails = True
    assert not tier.dispatch(force=True)
    assert tier.dispatcher.health().failing.keys() == set(keys)
    tier.assert_committed(keys, 0)
    tier.provider.fails = False
    assert tier.dispatch(force=True)
    assert tier.provider.rounds == [30]
    tier.assert_committed(keys, 1)
    assert tier.is_sound
    fill(tier.store, keys)
    assert tier.dispatch(force=True)
    tier.check()


def test_what_has_expired_stays_beside_messages_that_may_have_landed(tmp_path: Path) -> None:
    """Their units begin a segment, and their records lie in that of the old ones."""
    tier = Shared.made(tmp_path, consume_queue_segment_bytes=UNIT_BYTES)
    tier.store.fill(1)
    assert tier.flush()
    tier.provider.fails = True
    tier.store.fill(1)
    assert not tier.flush()
    assert tier.dispatcher._walk._relieve(Pass())  # as other queues needed the memory
    tier.provider.fails = False
    expire(tier.file(), INT64_MAX)
    assert tier.flush()
    tier.check()
    expire(tier.file(), INT64_MAX)
    assert tier.span() == (2, 2)
    tier.store.fill(1)
    assert tier.flush()
    tier.check()


@pytest.mark.parametrize("step", ["chore", "ask", "join", "settle"])
def test_whoever_waits_for_a_step_that_is_cancelled_before_it_begins_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A runtime cancels what has not begun when its time to close is over."""
    monkeypatch.setattr(SharedProvider, "shares_rounds", step != "ask")
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
    tier = Shared.made(tmp_path, runtime=runtime)
    tier.store.fill(1)
    if step != "chore":
        assert tier.flush()
        tier.store.fill(1)
    asks = step in ("ask", "join")
    if asks:  # the end of the queue has to be asked for
        tier.provider.fails = True
        assert not tier.flush()
        tier.provider.fails = False
    pool, count = (runtime.fetch, 1) if asks else (runtime.dispatch, 2)  # a recovery too
    begun, go_on = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        assert go_on.wait(WAIT)

    submit = pool.submit
    submit(busy)
    assert begun.wait(WAIT)
    submitted = threading.Semaphore(0)

    def counted(call: Callable[..., None], *args: object) -> Future[None]:
        future = submit(call, *args)
        submitted.release()
        return future

    monkeypatch.setattr(pool, "submit", counted)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(tier.flush()), daemon=True)
    waiting.start()
    for _ in range(count):
        assert submitted.acquire(timeout=WAIT)
    assert not runtime.close(0)
    go_on.set()
    waiting.join(30)
    assert answers == [False]
    assert not tier.dispatcher._claims.busy_count
    assert not tier.dispatcher.budget.uploads


def test_a_queue_that_fails_before_it_is_left_out(tmp_path: Path) -> None:
    tier = Shared.made(tmp_path)
    keys = queues(30)
    fill(tier.store, keys)
    tier.store.damaged.add((*keys[7], 0))
    assert not tier.dispatch(force=True)
    assert tier.provider.rounds == [29]
    assert tier.dispatcher.health().failing.keys() == {keys[7]}
    tier.store.damaged.clear()
    assert tier.dispatch(force=True)
    assert tier.provider.rounds == [29, 1]


def test_a_round_is_one_change_of_the_catalogue(tmp_path: Path, runtime: Runtime) -> None:
    tier = Shared.made(tmp_path, runtime=runtime)
    keys = queues(100)
    fill(tier.store, keys)
    assert tier.flush(timeout=WAIT)
    calls: list[int] = []
    apply = tier.metadata.apply

    def counted(changes: Iterable[Change]) -> None:
        found = list(changes)
        calls.append(len(found))
        apply(found)

    tier.metadata.apply = counted  # type: ignore[method-assign]
    fill(tier.store, keys)
    assert tier.flush(timeout=WAIT)
    assert calls == [200]
    tier.close()


def test_a_crash_before_the_first_round_leaves_a_tier_that_begins_again(tmp_path: Path) -> None:
    tier = Shared.made(tmp_path)
    keys = queues(20)
    fill(tier.store, keys, 2)
    tier.store.confirmed = 0  # queues begin, but none of their messages can be sent
    assert tier.dispatch(force=True)
    assert len(tier.metadata.queues()) == 20
    assert not tier.provider.rounds
    tier.provider.rows.crash()
    assert not tier.metadata.queues()
    tier.store.confirmed = None
    tier = tier.opened_again()
    assert tier.dispatch(force=True)
    tier.provider.rows.crash()  # acknowledged rows stay
    tier = tier.opened_again()
    tier.assert_committed(keys, 2)
    tier.check()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.HALF])
@pytest.mark.parametrize("step", range(6))
def test_a_part_of_a_round_that_failed_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, fault: Fault
) -> None:
    monkeypatch.setattr(MemoryProvider, "shares_rounds", True)
    test_rounds.test_a_failed_commit_is_repaired_and_its_index_work_kept(tmp_path, step, fault)


@pytest.mark.parametrize("seed", range(3))
def test_in_the_end_every_message_is_in_the_tier_and_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Producers, the service, flushes and a backend that fails at times, all at once."""
    monkeypatch.setattr(MemoryProvider, "shares_rounds", True)
    test_rounds.test_in_the_end_every_message_is_in_the_tier_and_indexed(tmp_path, seed)


# Another writer


def test_a_fenced_writer_sends_nothing_more_and_says_so(tmp_path: Path) -> None:
    tier = Shared.made(tmp_path)
    keys = queues(20)
    fill(tier.store, [*keys, KEY])
    assert tier.dispatch(force=True)
    fill(tier.store, keys)
    tier.provider.fenced = Fence(epoch=7, since_ms=1)
    needed = tier.dispatcher.needed_from()
    assert needed is not None
    for _ in range(3):
        assert not tier.flush()
        tier.assert_committed(keys, 1)
        failing = tier.dispatcher.health().failing
        assert failing.keys() == set(keys)
        assert all("fenced by epoch 7" in text for text in failing.values())
        assert tier.dispatcher.needed_from() == needed
    assert tier.provider.rounds == [21]
    assert tier.dispatcher.budget.used_bytes == 0
    reason = tier.dispatcher.resume(keys[0])
    assert reason is not None
    assert "fenced by epoch 7" in reason


def test_who_finds_out_by_a_round_tries_no_other(tmp_path: Path) -> None:
    tier = Shared.made(tmp_path)
    keys = queues(20)
    fill(tier.store, keys)
    tier.provider.is_held = True
    assert not tier.dispatch(force=True)
    tier.provider.fenced = Fence(epoch=2, since_ms=1)
    tier.provider.let_go()
    failing = tier.dispatcher.health().failing
    assert failing.keys() == set(keys)
    assert all("fenced by epoch 2" in text for text in failing.values())
    assert tier.dispatcher.budget.used_bytes > 0
    tier.later(DUE_MS)
    assert not tier.dispatch()
    assert tier.provider.rounds == [20]
    assert tier.dispatcher.health().failing.keys() == set(keys)
    assert tier.dispatcher.budget.used_bytes == 0  # batches that will never be sent are dropped
    assert tier.dispatcher.needed_from() == 0
    tier.assert_committed(keys, 0)
