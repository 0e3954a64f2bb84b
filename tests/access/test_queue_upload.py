"""The rules of an upload, in order: what is uploaded when, and what is not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier, a_tier
from tests.access.lost_disks import ONE, Machine
from tests.access.tiered_kit import Broker
from tieredstore.access.rounds import BatchOutcome
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.flat.reading import read_run
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import Message, MessageRun
from tieredstore.model.values import AppendStatus, QueueKey, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

OTHER = QueueKey("Other", 3)


def test_a_queue_begins_at_its_oldest_local_message_and_is_uploaded_whole(tmp_path: Path) -> None:
    store, tier, index = a_tier(tmp_path)
    store.fill(200)
    store.kept_from = 100
    assert tier.dispatch(force=True)
    assert tier.span() == (100, 200)
    assert tier.file().append_offset == 200
    assert index.offsets() == list(range(100, 200))
    tier.check()


def test_begun_recently_it_starts_with_the_messages_of_the_last_two_minutes(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, initial_offset="recent")
    store.fill(50)
    tier.later(121_000)
    store.fill(50)
    assert tier.dispatch(force=True)
    assert tier.span() == (50, 100)


def test_begun_recently_where_all_is_old_it_starts_at_the_end(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, initial_offset="recent")
    store.fill(5)
    tier.later(121_000)
    tier.dispatch(force=True)
    assert tier.file().commit_offset == tier.file().min_offset == 5
    store.fill(2)
    tier.dispatch(force=True)
    assert tier.span() == (5, 7)


def test_begun_recently_it_never_starts_below_the_oldest_local_message(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, initial_offset="recent")
    store.fill(50)
    store.kept_from = 20
    tier.dispatch(force=True)
    assert tier.span() == (20, 50)


def test_an_empty_queue_makes_no_rows(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(3)
    store.kept_from = 3
    assert tier.dispatch(force=True)
    assert not tier.files.files()
    assert not tier.metadata.queues()


def test_what_is_young_and_little_is_held(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, group_commit_count=10)
    store.fill(9)
    tier.later(30_000)
    assert tier.dispatch()
    assert tier.file().commit_offset == 0
    tier.later(1)
    tier.dispatch()
    assert tier.file().commit_offset == 9


def test_what_was_stored_before_the_clock_was_set_back_waits_no_longer(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(1)
    clock = tier.runtime.clock
    assert isinstance(clock, ManualClock)
    clock._start_ms -= 24 * 3_600_000
    tier.dispatch()
    tier.later(30_000)
    tier.dispatch()
    assert tier.file().commit_offset == 0
    tier.later(1)
    tier.dispatch()
    assert tier.file().commit_offset == 1


def test_a_full_batch_is_due_at_once_and_what_is_left_is_held(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, group_commit_count=10)
    store.fill(25)
    tier.dispatch()
    assert tier.file().commit_offset == 20


def test_bytes_that_the_store_told_of_make_a_batch_due(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, group_commit_bytes=2_000)
    tier.dispatcher.start()
    store.fill(1, body_bytes=500)
    tier.dispatch()
    assert tier.file().commit_offset == 0
    store.fill(3, body_bytes=500)
    tier.dispatch()
    assert tier.file().commit_offset >= 3


def test_without_group_commit_everything_is_due(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, group_commit_enabled=False)
    store.fill(1)
    tier.dispatch()
    assert tier.file().commit_offset == 1


LARGE: Final = [a_message(0), a_message(1, body_bytes=5_000), a_message(2)]


@pytest.mark.parametrize(
    ("settings", "messages", "segment_count"),
    [
        pytest.param(
            {"group_commit_count": 7, "group_commit_bytes": 1_500},
            [a_message(number) for number in range(100)],
            1,
            id="a queue that is far behind is repeated until it is not",
        ),
        pytest.param(
            {"group_commit_bytes": 1_000}, LARGE, 1, id="larger than a batch, it goes alone"
        ),
        pytest.param(
            {"commit_log_segment_bytes": 2_000}, LARGE, 3, id="larger than a segment, in its own"
        ),
        pytest.param(
            {}, [a_message(0), a_message(1, properties={}), a_message(2)], 1, id="no properties"
        ),
    ],
)
def test_messages_of_any_size_and_number_are_uploaded_whole(
    tmp_path: Path, settings: dict[str, int], messages: list[Message], segment_count: int
) -> None:
    store, tier, index = a_tier(tmp_path, **settings)
    for message in messages:
        store.put_message(message)
    assert tier.dispatch(force=True)
    assert tier.span() == (0, len(messages))
    assert len(tier.file().log.segments) == segment_count
    assert index.offsets() == list(range(len(messages)))
    tier.check()


def test_nothing_is_uploaded_that_the_local_store_may_still_lose(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(10)
    run = store.read_range(*KEY, 0, count_max=10, bytes_max=1 << 20)
    store.confirmed = int(run.log_offsets[6]) + 1  # within message 6
    assert tier.dispatch(force=True)
    assert tier.file().commit_offset == 6
    store.confirmed = int(run.log_offsets[7])  # at its end
    tier.dispatch(force=True)
    assert tier.file().commit_offset == 7
    store.confirmed = None
    tier.dispatch(force=True)
    assert tier.file().commit_offset == 10


def test_messages_lost_before_their_upload_leave_a_gap_and_no_more(tmp_path: Path) -> None:
    store, tier, index = a_tier(tmp_path)
    store.fill(10)
    tier.dispatch(force=True)
    store.fill(20)
    store.kept_from = 25
    tier.dispatch(force=True)
    assert tier.span() == (0, 30)
    assert tier.dispatcher.health().lost == {KEY: 15}
    assert index.offsets() == [*range(10), *range(25, 30)]
    run = read_run(tier.file(), 0, count_max=64, bytes_max=1 << 20)
    assert run.end_offset == 10
    assert tier.reopened().dispatcher.health().lost == {KEY: 15}


def test_messages_lost_before_the_first_upload_are_counted_too(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(10)
    tier.dispatch()  # the queue begins at 0, and nothing is due
    store.kept_from = 4
    tier.dispatch(force=True)
    assert tier.span() == (4, 10)
    assert tier.dispatcher.health().lost == {KEY: 4}


def test_a_log_segment_that_is_old_and_large_rolls_before_the_next_batch(tmp_path: Path) -> None:
    store, tier, _ = a_tier(
        tmp_path, commit_log_rolling_hours=1, commit_log_rolling_min_bytes=1_000
    )
    store.fill(10)
    tier.dispatch(force=True)
    tier.later(3_600_001)
    store.fill(1)
    tier.dispatch(force=True)
    bases = [each.base for each in tier.file().log.segments]
    assert len(bases) == 2
    assert tier.span() == (0, 11)
    tier.check()


def test_the_tiers_queue_of_a_rejected_topic_is_destroyed(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(3)
    store.fill(3, key=OTHER)
    tier.dispatch(force=True)
    tier.dispatcher.topic_filter.reject(TOPIC)
    store.fill(3)
    tier.dispatch(force=True)
    assert [file.key for file in tier.files.files()] == [OTHER]
    assert [row.topic for row in tier.metadata.queues()] == ["Other"]
    assert not tier.metadata.segments(f"broker-a/{TOPIC}/0")
    assert not list(tier.provider.list(f"broker-a/{TOPIC}"))


@pytest.mark.parametrize("topic", ["rmq_sys_X", "TBW102", "%LMQ%a", "broker-a", "DefaultCluster"])
def test_a_topic_that_stays_out_leaves_no_trace(tmp_path: Path, topic: str) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(3, key=QueueKey(topic, 0))
    assert tier.dispatch(force=True)
    assert not tier.metadata.topics()
    assert not list(tier.provider.list())


def test_queues_go_their_own_ways_in_one_round(tmp_path: Path) -> None:
    store, tier, index = a_tier(tmp_path)
    keys = [QueueKey(f"T{number % 5}", number // 5) for number in range(20)]
    for number, key in enumerate(keys):
        store.fill(number + 1, key=key)
    assert tier.dispatch(force=True)
    for number, key in enumerate(keys):
        assert tier.span(key) == (0, number + 1)
        assert index.offsets(key) == list(range(number + 1))
    tier.check()


def test_what_was_committed_is_in_the_catalogue(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(5)
    tier.dispatch(force=True)
    for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE):
        (row,) = tier.metadata.segments(f"broker-a/{TOPIC}/0", kind)
        listed = {each.type: each.size for each in tier.provider.list()}
        assert row.size == listed[kind] > 0
        assert row.begin_timestamp == row.end_timestamp == tier.runtime.clock.now_ms()


def test_a_pass_ends_where_the_queue_ended_when_it_began(tmp_path: Path) -> None:
    class Growing(ListMessageStore):
        def read_range(
            self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
        ) -> MessageRun:
            self.fill(3)
            return super().read_range(
                topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max
            )

    runtime = Runtime.inline()
    store = Growing.opened(runtime)
    store.fill(10)
    tier = Tier(tmp_path, store, runtime=runtime, index=RecordingIndex(), group_commit_count=4)
    assert tier.dispatch(force=True)
    assert 10 <= tier.file().commit_offset < 20


def test_where_the_local_message_is_gone_nothing_speaks_against_it(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, group_commit_enabled=False)
    store.fill(10)
    tier.dispatch()
    tier = tier.reopened()
    store.fill(10)
    store.kept_from = 10
    tier.dispatch()
    assert tier.span() == (0, 20)


# What RocketMQ's tests of the dispatcher demand, in terms of our own parts


SECOND = QueueKey("Other", 0)


class Failing:
    """A queue with ten messages whose upload fails until `faults.always` is cleared."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.faults = Faults()
        runtime = Runtime.inline()
        self.store, self.index = ListMessageStore.opened(runtime), RecordingIndex()
        self.store.fill(1)
        provider = FaultyProvider(MemoryProvider(runtime), self.faults, runtime)
        self.tier = Tier(
            root,
            self.store,
            runtime=runtime,
            provider=provider,
            index=self.index,
            **settings,  # type: ignore[arg-type]
        )
        assert self.tier.flush()
        self.faults.always = Fault.BEFORE
        self.store.fill(9)
        assert not self.tier.flush()
        self.parts = self.tier.dispatcher._walk
        self.work = self.parts.work_of(KEY)
        assert [len(batch) for batch in self.work.batches] == [9]
        assert self.tier.dispatcher.budget.used_bytes == self.work.buffered_bytes > 0


def test_a_full_buffer_holds_a_queue_back_and_nothing_is_refused(tmp_path: Path) -> None:
    """RocketMQ's segment answers BUFFER_FULL; our dispatcher does not even read the queue."""
    assert "BUFFER_FULL" not in AppendStatus.__members__
    failing = Failing(tmp_path, dispatch_buffer_bytes=8_000)
    tier, budget = failing.tier, failing.tier.dispatcher.budget
    assert budget.take(8_000 - budget.used_bytes)  # by other queues
    failing.store.fill(5, key=SECOND)
    tier.flush()
    other = failing.parts.work_of(SECOND)
    assert other.file is not None
    assert failing.parts._batches.take(other, other.file) is BatchOutcome.NO_ROOM
    assert (other.file.waiting_bytes, other.failure, other.batches) == (0, None, [])
    failing.faults.always = None
    budget.give(budget.used_bytes - failing.work.buffered_bytes)
    assert tier.flush()
    assert (tier.span(KEY), tier.span(SECOND)) == ((0, 10), (0, 5))
    assert budget.used_bytes == 0
    tier.check()


def test_what_a_batch_holds_is_given_back_whole_and_again_without_harm(tmp_path: Path) -> None:
    failing = Failing(tmp_path)
    work, budget = failing.work, failing.tier.dispatcher.budget
    assert work.file is not None
    for _ in range(2):  # the second time there is nothing to give back
        assert failing.parts._batches.drop(work, work.file)
        assert (work.batches, work.buffered_bytes, work.file.waiting_bytes) == ([], 0, 0)
        assert budget.used_bytes == 0
    failing.faults.always = None
    assert failing.tier.flush()
    assert failing.index.offsets() == list(range(10))
    failing.tier.check()


def test_two_who_look_at_once_both_find_that_a_queue_is_gone(tmp_path: Path) -> None:
    failing = Failing(tmp_path)
    failing.faults.always = None
    failing.store.delete_topics([KEY.topic])
    failing.tier.files.destroy(KEY)
    walk, claims = failing.parts, failing.parts._claims
    take = claims.take

    def other_first(key: QueueKey) -> bool:
        claims.take = take  # type: ignore[method-assign]
        walk.forget_others([])
        return take(key)

    claims.take = other_first  # type: ignore[method-assign]
    walk.forget_others([])
    assert walk.works == {}
    assert not claims.busy_count


def test_a_queue_that_is_made_anew_has_lost_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(3)
    broker.put(4, first=3)
    broker.local.kept_from = 6
    assert broker.store.flush()
    assert broker.dispatcher.health().lost == {KEY: 3}
    assert broker.store.delete_topics([TOPIC]) == 1
    broker.local.kept_from = 0
    broker.put(2)
    assert broker.store.flush()
    assert broker.dispatcher.health().lost == {}
    broker.store.shutdown()


def test_nothing_is_kept_of_a_queue_that_was_destroyed_while_its_upload_failed(
    tmp_path: Path,
) -> None:
    failing = Failing(tmp_path)
    failing.faults.always = None
    failing.store.delete_topics([KEY.topic])
    failing.tier.files.destroy(KEY)
    failing.tier.flush()
    assert failing.parts.works == {}
    assert failing.tier.dispatcher.budget.used_bytes == 0


def test_nothing_is_uploaded_of_a_topic_while_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue may appear during the deletion; its upload would bring back rows of the topic."""
    machine = Machine(tmp_path, "bucket")
    store = machine.open(group_commit_count=1)
    delete = LocalMessageStore.delete_topics

    def and_put(local: LocalMessageStore, topics: Iterable[str]) -> int:
        count = delete(local, topics)
        assert store.put_message(machine.message(ONE)).stored
        local.flush()
        store._loaded().dispatcher.dispatch_once()
        assert not store.committed_offset(*ONE)
        return count

    monkeypatch.setattr(LocalMessageStore, "delete_topics", and_put)
    store.delete_topics([ONE.topic])
    assert store.flush()
    assert store.committed_offset(*ONE) == 1
    machine.end()
