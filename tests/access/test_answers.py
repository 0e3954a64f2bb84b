"""Which of the two stores answers at which level, and how their answers are merged."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.access import tiered_kit
from tests.access.tiered_kit import STEP_MS, Broker, numbers, time_of
from tieredstore.codec.message import decode_message
from tieredstore.driver.metrics import API_LATENCY, GET_MESSAGE_FALLBACK, MESSAGES_OUT
from tieredstore.driver.runtime import InlinePool
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    SegmentCorruptError,
    StoreClosedError,
)
from tieredstore.model.messages import GetResult, MessageRun, QueryResult
from tieredstore.model.values import Boundary, GetStatus, QueueKey, StorageLevel
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_body

DISABLE, NOT_IN_DISK, NOT_IN_MEM, FORCE = StorageLevel


def got_from_tier(broker: Broker, offset: int) -> bool:
    """Whether a read at this offset asks the tier for bytes."""
    before = broker.faults.steps
    broker.store.get_message(TOPIC, 0, offset)
    return broker.faults.steps > before


# Rows: level, first kept on disk, first kept in memory; which of the offsets 0, 4 and 8 are tiered.
@pytest.mark.parametrize(
    ("level", "kept_from", "cached_from", "tiered"),
    [
        (DISABLE, 2, 6, []),
        (DISABLE, 10, 10, []),
        (NOT_IN_DISK, 0, 0, []),
        (NOT_IN_DISK, 0, 6, []),
        (NOT_IN_DISK, 2, 6, [0]),
        (NOT_IN_DISK, 10, 10, [0, 4, 8]),
        (NOT_IN_MEM, 0, 0, []),
        (NOT_IN_MEM, 0, 6, [0, 4]),
        (NOT_IN_MEM, 2, 6, [0, 4]),
        (NOT_IN_MEM, 10, 10, [0, 4, 8]),
        (FORCE, 0, 0, [0, 4, 8]),
        (FORCE, 2, 6, [0, 4, 8]),
    ],
)
def test_the_level_says_which_reads_go_to_the_tier(
    broker: Broker, level: StorageLevel, kept_from: int, cached_from: int, tiered: list[int]
) -> None:
    broker.fill(10)
    broker.local.kept_from, broker.local.cached_from = kept_from, cached_from
    broker.store.level = level
    assert [offset for offset in (0, 4, 8) if got_from_tier(broker, offset)] == tiered


def test_the_level_of_the_settings_counts_until_another_is_set(tmp_path: Path) -> None:
    broker = Broker(tmp_path, storage_level=2)
    assert broker.store.level is NOT_IN_MEM
    broker.store.level = StorageLevel(3)
    assert broker.store.level is FORCE
    with pytest.raises(ValueError):
        broker.store.level = 7  # type: ignore[assignment]
    assert broker.store.level is FORCE


def test_a_level_that_is_set_survives_a_restart_of_the_store(broker: Broker) -> None:
    broker.store.level = FORCE
    broker.store.shutdown()
    broker.open()
    broker.fill(3)
    assert got_from_tier(broker, 1)


def test_what_is_not_tiered_yet_is_the_next_stores(broker: Broker) -> None:
    broker.fill(5, kept_from=5)
    broker.put(5, first=5)
    assert numbers(broker.store.get_message(TOPIC, 0, 5)) == [5, 6, 7, 8, 9]
    assert broker.local.calls == ["get_message"]


def test_all_messages_are_read_across_the_border_of_the_stores(broker: Broker) -> None:
    broker.fill(8, kept_from=6)
    broker.put(4, first=8)
    offset, found = 0, []
    while offset < 12:
        result = broker.store.get_message(TOPIC, 0, offset, count_max=5)
        assert result.status is GetStatus.FOUND
        found += numbers(result)
        offset = result.next_offset
    assert found == list(range(12))


def test_a_topic_that_stays_out_of_the_tier_is_the_next_stores(broker: Broker) -> None:
    broker.store.level = FORCE
    broker.put(3, topic="rmq_sys_REVIVE_LOG_x")
    wanted = broker.local.get_message("rmq_sys_REVIVE_LOG_x", 0, 0)
    answers: list[GetResult] = []

    def answer(*args: object, **kwargs: object) -> GetResult:
        answers.append(wanted)
        return wanted

    broker.local.get_message = answer  # type: ignore[method-assign]
    assert broker.store.get_message("rmq_sys_REVIVE_LOG_x", 0, 0) is wanted
    assert len(answers) == 1


@pytest.mark.parametrize(
    "status",
    [
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.OFFSET_OVERFLOW_ONE,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_RESET,
    ],
)
def test_what_the_tier_says_of_offsets_nobody_has_comes_as_it_is(
    broker: Broker, status: GetStatus
) -> None:
    broker.fill(3)
    broker.store.level = FORCE
    wanted = GetResult(status=status, next_offset=7, min_offset=0, max_offset=3)
    broker.tier.fetcher.get_message = lambda *_, **__: wanted  # type: ignore[method-assign]
    assert broker.store.get_message(TOPIC, 0, 50) is wanted


@pytest.mark.parametrize(
    "status",
    [
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.MESSAGE_WAS_REMOVING,
    ],
)
def test_what_the_tier_has_not_got_is_read_from_the_next_store(
    broker: Broker, status: GetStatus
) -> None:
    broker.fill(3)
    broker.store.level = FORCE
    lacking = GetResult(status=status, next_offset=3, min_offset=3, max_offset=3)
    broker.tier.fetcher.get_message = lambda *_, **__: lacking  # type: ignore[method-assign]
    assert numbers(broker.store.get_message(TOPIC, 0, 1, group="g")) == [1, 2]
    assert broker.metrics.of(GET_MESSAGE_FALLBACK) == 1
    wanted = {"operation": "get_message", "topic": TOPIC, "group": "g"}
    assert (GET_MESSAGE_FALLBACK.name, wanted) in broker.metrics.labels


def test_the_minimum_of_an_answer_is_the_smaller_one_and_its_maximum_the_tiers(
    broker: Broker,
) -> None:
    broker.fill(5)
    broker.put(5, first=5)
    broker.store.level = FORCE
    later = broker.store.get_message(TOPIC, 0, 2)
    assert (later.min_offset, later.max_offset) == (0, 5)
    result = replace(later, min_offset=2)
    broker.tier.fetcher.get_message = lambda *_, **__: result  # type: ignore[method-assign]
    answer = broker.store.get_message(TOPIC, 0, 2)
    assert (answer.min_offset, answer.max_offset) == (0, 5)
    broker.local.kept_from = 3
    assert broker.store.get_message(TOPIC, 0, 2) is result


def test_nobody_is_sent_past_messages_that_only_the_next_store_has(tmp_path: Path) -> None:
    """The tier began late: the next store has offsets that are too small for the tier."""
    broker = Broker(tmp_path, initial_offset="recent")
    broker.open()
    broker.put(300)
    assert broker.store.flush()
    begin = broker.tier.fetcher.min_offset(TOPIC, 0)
    assert begin is not None
    assert 0 < begin < 300
    broker.store.level = FORCE
    assert numbers(broker.store.get_message(TOPIC, 0, 0, count_max=2)) == [0, 1]
    below = broker.store.get_message(TOPIC, 0, -1)
    assert (below.status, below.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 0)
    assert broker.store.min_offset(TOPIC, 0) == 0
    broker.store.shutdown()


def test_what_goes_while_it_is_read_is_found_in_the_tier(broker: Broker) -> None:
    """The next store's retention runs between the decision and the read."""
    broker.fill(6)
    contains = broker.local.contains

    def contains_and_forgets(topic: str, queue_id: int, offset: int) -> bool:
        had = contains(topic, queue_id, offset)
        broker.local.kept_from = 4
        return had

    broker.local.contains = contains_and_forgets  # type: ignore[method-assign]
    assert numbers(broker.store.get_message(TOPIC, 0, 1)) == [1, 2, 3, 4, 5]


def test_nobody_is_sent_past_messages_that_are_uploaded_while_they_are_read(
    broker: Broker,
) -> None:
    """Behind a message that is lost, others are uploaded and expire between the two reads."""
    broker.fill(6)
    broker.put(4, first=6)
    broker.store.level, broker.local.kept_from = FORCE, 7
    get = broker.local.get_message

    def get_late(*place: Any, **limits: Any) -> GetResult:
        broker.local.get_message = get  # type: ignore[method-assign]
        assert broker.store.flush()
        broker.local.kept_from = 10
        return get(*place, **limits)

    broker.local.get_message = get_late  # type: ignore[method-assign]
    assert broker.store.get_message(TOPIC, 0, 6).next_offset == 7


def test_nor_past_those_below_a_fork_that_go_while_they_are_read(broker: Broker) -> None:
    """The next store has deleted a file of its log, but not yet the units that name it."""
    broker.fill(6)
    broker.store._loaded().decision.forks[QueueKey(TOPIC, 0)] = 5

    def get_gone(topic: str, queue_id: int, offset: int, **limits: Any) -> GetResult:
        return GetResult(
            status=GetStatus.MESSAGE_WAS_REMOVING, next_offset=4, min_offset=0, max_offset=6
        )

    broker.local.get_message = get_gone  # type: ignore[method-assign]
    assert numbers(broker.store.get_message(TOPIC, 0, 1)) == [1, 2, 3, 4]


def test_a_queue_that_the_next_store_lost_whole_is_the_tiers(broker: Broker) -> None:
    broker.fill(4)
    broker.local.delete_topics([TOPIC])
    assert numbers(broker.store.get_message(TOPIC, 0, 0)) == [0, 1, 2, 3]
    at_end = broker.store.get_message(TOPIC, 0, 4)
    assert (at_end.status, at_end.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 4)
    assert broker.store.max_offset(TOPIC, 0) == 4


@pytest.fixture
def cut_back(tmp_path: Path) -> Iterator[Broker]:
    """The next store has lost the end of a queue, and an hour, and cannot continue it."""
    broker = Broker(tmp_path)
    broker.open()
    broker.put(4)
    broker.runtime.clock.sleep(3_600)
    end = broker.local.end
    broker.put(2, first=4)
    assert broker.store.flush()
    broker.store.shutdown()
    broker.local.lose_from(end)
    broker.local.begin_queues = None  # type: ignore[assignment, method-assign]
    broker.open()
    yield broker
    broker.store.shutdown()


@pytest.mark.parametrize("level", [NOT_IN_DISK, NOT_IN_MEM, FORCE])
def test_nobody_is_sent_back_to_where_a_next_store_ends_too_early(
    cut_back: Broker, level: StorageLevel
) -> None:
    store = cut_back.store
    store.level = level
    assert numbers(store.get_message(TOPIC, 0, 4)) == [4, 5]
    for offset, status in (
        (6, GetStatus.OFFSET_OVERFLOW_ONE),
        (9, GetStatus.OFFSET_OVERFLOW_BADLY),
    ):
        for page in (
            store.get_message(TOPIC, 0, offset),
            store.get_message_future(TOPIC, 0, offset).result(),
        ):
            assert (page.status, page.next_offset) == (status, 6)


def test_the_end_of_a_queue_is_the_tiers_where_the_next_store_has_lost_it(cut_back: Broker) -> None:
    assert cut_back.store.max_offset(TOPIC, 0) == 6
    cut_back.store.level = DISABLE
    assert cut_back.store.max_offset(TOPIC, 0) == 4


@pytest.mark.parametrize("level", [NOT_IN_DISK, NOT_IN_MEM, FORCE])
def test_readers_reach_the_end_of_a_queue_that_has_expired_behind_the_next_stores_end(
    cut_back: Broker, level: StorageLevel
) -> None:
    """Else they would be told again and again that there are messages, and get none."""
    cut_back.runtime.clock.sleep(1_000 * 3_600)
    cut_back.sealing.step()
    cut_back.retention.step()
    assert not cut_back.tier.fetcher.has_messages(TOPIC, 0)
    store = cut_back.store
    store.level = level
    for page in (
        store.get_message(TOPIC, 0, 4),
        store.get_message_future(TOPIC, 0, 4).result(),
    ):
        assert (page.status, page.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 6)
    assert store.max_offset(TOPIC, 0) == 6


def test_keys_and_times_of_what_a_next_store_has_lost_are_found_in_the_tier(
    cut_back: Broker,
) -> None:
    answer = cut_back.store.query_message(TOPIC, "shared")
    assert (numbers(answer), answer.complete) == ([5, 4, 3, 2, 1, 0], True)
    assert numbers(cut_back.store.query_message(TOPIC, "shared", count_max=1)) == [5]
    for number in range(6):
        time = cut_back.store.store_time(TOPIC, 0, number)
        assert time is not None
        for boundary in Boundary:
            assert cut_back.store.offset_by_time(TOPIC, 0, time, boundary) == number


# Runs


def runs_of(broker: Broker, *, first: int = 0, count_max: int = 4) -> list[range]:
    """All runs of the queue, in order; each must hold the messages that it claims to hold."""
    found = []
    while len(
        run := broker.store.read_range(TOPIC, 0, first, count_max=count_max, bytes_max=9_999)
    ):
        for row in range(len(run)):
            assert decode_message(run.record(row)).body == a_body(first + row)
        found.append(range(first, run.end_offset))
        assert run.first_offset == first
        first = run.end_offset
    return found


@pytest.mark.parametrize("level", StorageLevel)
@pytest.mark.parametrize("kept_from", [0, 3, 8])
@pytest.mark.parametrize("count_max", [1, 4, 100])
def test_runs_pass_over_both_stores_and_miss_nothing(
    broker: Broker, level: StorageLevel, kept_from: int, count_max: int
) -> None:
    broker.fill(8, kept_from=kept_from)
    broker.put(4, first=8)
    broker.store.level = level
    first = kept_from if level is DISABLE else 0
    runs = runs_of(broker, first=first, count_max=count_max)
    assert [offset for run in runs for offset in run] == list(range(first, 12))
    for offset in (-1, 12, 99):
        assert not runs_of(broker, first=offset)
    assert not len(broker.store.read_range(TOPIC, 0, 9, count_max=0, bytes_max=9_999))


def test_a_run_comes_from_the_store_that_has_it_at_hand(broker: Broker) -> None:
    broker.fill(8, kept_from=5)
    before = broker.faults.steps
    assert runs_of(broker, first=5) == [range(5, 8)]
    assert broker.faults.steps == before
    broker.local.calls.clear()
    assert len(broker.store.read_range(TOPIC, 0, 2, count_max=9, bytes_max=9_999)) == 6
    assert broker.faults.steps > before
    assert "read_range" not in broker.local.calls


def test_a_run_ends_before_a_gap_and_none_begins_in_it(broker: Broker) -> None:
    broker.put(8)
    broker.local.missing.update((TOPIC, 0, offset) for offset in (3, 4))
    assert runs_of(broker) == [range(3)]
    assert runs_of(broker, first=5) == [range(5, 8)]


@pytest.mark.parametrize("level", [NOT_IN_MEM, FORCE])
def test_a_run_of_an_unreachable_tier_comes_from_the_next_store_or_fails(
    broker: Broker, level: StorageLevel
) -> None:
    broker.fill(6, kept_from=4)
    broker.local.cached_from = 6
    broker.store.level = level
    broker.cut()
    assert runs_of(broker, first=4) == [range(4, 6)]
    assert broker.metrics.of(GET_MESSAGE_FALLBACK) == 1
    with pytest.raises(BackendUnavailableError):
        runs_of(broker, first=3)


def test_what_goes_before_its_run_is_read_is_found_in_the_tier(broker: Broker) -> None:
    broker.fill(6)
    read = broker.local.read_range

    def expired_first(*place: Any, **limits: Any) -> MessageRun:
        broker.local.kept_from = broker.local.cached_from = 6
        return read(*place, **limits)

    broker.local.read_range = expired_first  # type: ignore[method-assign]
    assert runs_of(broker, count_max=9) == [range(6)]


# Backends that fail


@pytest.mark.parametrize("level", [NOT_IN_MEM, FORCE])
def test_an_unreachable_tier_is_no_error_while_the_next_store_has_the_message(
    broker: Broker, level: StorageLevel
) -> None:
    broker.fill(6)
    broker.local.cached_from = 6
    broker.store.level = level
    broker.cut()
    assert numbers(broker.store.get_message(TOPIC, 0, 2)) == [2, 3, 4, 5]
    future = broker.store.get_message_future(TOPIC, 0, 3)
    assert numbers(future.result(0)) == [3, 4, 5]
    assert broker.metrics.of(GET_MESSAGE_FALLBACK) == 2


@pytest.mark.parametrize("level", [NOT_IN_MEM, FORCE])
def test_nor_is_one_that_refuses(broker: Broker, level: StorageLevel) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise BackendRefusedError("tier", "read", "its keys have expired")

    broker.fill(6, kept_from=1)
    broker.local.cached_from = 6
    broker.store.level = level
    fetcher = broker.tier.fetcher
    for name in ("get_message", "read_range", "store_time", "query_message"):
        setattr(fetcher, name, refused)
    assert numbers(broker.store.get_message(TOPIC, 0, 2)) == [2, 3, 4, 5]
    assert len(broker.store.read_range(TOPIC, 0, 4, count_max=9, bytes_max=9_999)) == 2
    assert broker.store.store_time(TOPIC, 0, 2) is not None
    assert not broker.store.query_message(TOPIC, "no key").complete
    with pytest.raises(BackendRefusedError):
        broker.store.get_message(TOPIC, 0, 0)


def test_an_unreachable_tier_is_an_error_where_nobody_else_has_the_message(broker: Broker) -> None:
    broker.fill(6, kept_from=4)
    broker.cut()
    with pytest.raises(BackendUnavailableError):
        broker.store.get_message(TOPIC, 0, 2)
    with pytest.raises(BackendUnavailableError):
        broker.store.get_message_future(TOPIC, 0, 2).result(0)
    assert broker.metrics.of(GET_MESSAGE_FALLBACK) == 0
    broker.faults.always = None
    assert numbers(broker.store.get_message(TOPIC, 0, 2)) == [2, 3, 4, 5]


def test_damage_in_the_tier_is_never_hidden(broker: Broker) -> None:
    broker.fill(6)
    broker.store.level = FORCE
    fetcher = broker.tier.fetcher

    def damaged(*_: object, **__: object) -> GetResult:
        raise SegmentCorruptError("broker-a/TopicTest/0", "a flipped bit", position=3)

    fetcher.get_message = damaged  # type: ignore[method-assign]
    with pytest.raises(SegmentCorruptError):
        broker.store.get_message(TOPIC, 0, 2)
    fetcher.get_message_future = damaged  # type: ignore[method-assign, assignment]
    with pytest.raises(SegmentCorruptError):
        broker.store.get_message_future(TOPIC, 0, 2).result(0)
    assert broker.metrics.of(GET_MESSAGE_FALLBACK) == 0


# What is measured


def test_reads_of_the_tier_are_measured_and_others_are_not(broker: Broker) -> None:
    broker.fill(6, kept_from=4)
    broker.metrics.labels.clear()
    broker.store.get_message(TOPIC, 0, 4, group="g")
    assert [name for name, _ in broker.metrics.labels if name == API_LATENCY.name] == []
    broker.store.get_message(TOPIC, 0, 1, group="g")
    wanted = {"operation": "get_message", "topic": TOPIC, "group": "g"}
    assert (API_LATENCY.name, wanted) in broker.metrics.labels
    assert (MESSAGES_OUT.name, {"topic": TOPIC, "group": "g"}) in broker.metrics.labels
    assert broker.metrics.of(MESSAGES_OUT) == 5


# Futures


class _ClosingPool(InlinePool):
    """Is closed before its calls begin, as by a shutdown that has waited long enough."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.cancel()
        return future


@pytest.mark.parametrize("level", [NOT_IN_DISK, FORCE])
def test_a_read_that_a_shutdown_leaves_undone_is_refused_and_not_cancelled(
    broker: Broker, level: StorageLevel
) -> None:
    """A task that awaits it would end without a word, as if somebody had cancelled it."""
    broker.fill(4)
    broker.local.cached_from, broker.store.level = 4, level
    broker.runtime.fetch = _ClosingPool()
    future = broker.store.get_message_future(TOPIC, 0, 2)
    with pytest.raises(StoreClosedError):
        future.result(0)


def test_a_future_says_what_a_call_says(broker: Broker) -> None:
    broker.fill(6, kept_from=3)
    for offset in (-1, 0, 2, 3, 5, 6, 9):
        future = broker.store.get_message_future(TOPIC, 0, offset, count_max=2)
        assert future.result(0) == broker.store.get_message(TOPIC, 0, offset, count_max=2)


# Reads that only the next store answers


@pytest.mark.parametrize("offset", [-5, -1])
def test_a_tier_that_has_nothing_of_a_queue_yet_is_not_asked_for_it(
    broker: Broker, offset: int
) -> None:
    broker.tier.files.create(TOPIC, 0).start_at(0)
    broker.put(20)
    own = broker.local.get_message(TOPIC, 0, offset)
    assert own.status is GetStatus.OFFSET_TOO_SMALL
    assert broker.store.get_message(TOPIC, 0, offset) == own
    assert broker.store.get_message_future(TOPIC, 0, offset).result() == own


def test_a_tier_that_begins_late_and_has_nothing_yet_leaves_reads_to_the_next_store(
    broker: Broker,
) -> None:
    broker.put(20)
    broker.local.kept_from = broker.local.cached_from = 5
    broker.tier.files.create(TOPIC, 0).start_at(8)
    result = broker.store.get_message(TOPIC, 0, 2)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 5)


def test_a_store_that_has_all_of_a_queue_needs_no_tier_for_its_first_time(broker: Broker) -> None:
    broker.fill(10)
    broker.cut()
    assert broker.store.offset_by_time(TOPIC, 0, time_of(0)) == 0
    assert broker.store.offset_by_time(TOPIC, 0, time_of(0), Boundary.UPPER) == 0


# Answers merged from both stores: offsets, times and keys


LOWER, UPPER = Boundary


# Offsets


def test_the_minimum_is_the_smaller_one(tiered: Broker) -> None:
    assert tiered.local.min_offset(TOPIC, 0) == 6
    assert tiered.store.min_offset(TOPIC, 0) == 0


def test_what_the_next_store_does_not_know_never_wins(tiered: Broker) -> None:
    tiered.local.delete_topics([TOPIC])
    assert tiered.store.min_offset(TOPIC, 0) == 0
    assert tiered.store.max_offset(TOPIC, 0) == 10
    assert tiered.store.earliest_time(TOPIC, 0) == time_of(0)


def test_a_queue_that_only_the_next_store_has_is_its_own(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    tiered.put(3, topic="New")
    assert tiered.store.min_offset("New", 0) == 0
    assert tiered.store.max_offset("New", 0) == 3
    assert tiered.store.committed_offset("New", 0) is None


def test_an_empty_queue_of_the_tier_does_not_say_where_messages_begin(tiered: Broker) -> None:
    tiered.tier.files.create("Late", 0).start_at(0)
    tiered.put(9, topic="Late")
    tiered.local.kept_from = 8
    assert tiered.store.min_offset("Late", 0) == 8
    tiered.local.delete_topics(["Late"])
    assert tiered.store.min_offset("Late", 0) == 0


def test_the_maximum_is_the_next_stores(tiered: Broker) -> None:
    tiered.put(3, first=10)
    assert tiered.store.max_offset(TOPIC, 0) == 13
    assert tiered.store.committed_offset(TOPIC, 0) == 10


def test_a_message_is_there_if_either_has_it(tiered: Broker) -> None:
    tiered.put(1, first=10)
    there = [offset for offset in range(-1, 13) if tiered.store.contains(TOPIC, 0, offset)]
    assert there == list(range(11))


def test_queues_of_both_are_named_once(tiered: Broker) -> None:
    tiered.put(1, topic="New", queue_id=3)
    tiered.local.delete_topics([TOPIC])
    assert sorted(tiered.store.queues()) == [QueueKey("New", 3), QueueKey(TOPIC, 0)]


def test_a_tier_that_cannot_say_where_it_begins_is_an_error_not_a_wrong_answer(
    tiered: Broker,
) -> None:
    fetcher = tiered.tier.fetcher

    def unreachable(*_: object) -> int:
        raise BackendUnavailableError("tier", "read", "planned")

    fetcher.min_offset = unreachable  # type: ignore[method-assign, assignment]
    with pytest.raises(BackendUnavailableError):
        tiered.store.min_offset(TOPIC, 0)


# Times


@pytest.mark.parametrize(
    ("near", "far", "wanted"),
    [(0, 1, 0), (None, 2, 2), (3, None, 3), (5, 4, 4), (None, None, None)],
)
def test_the_earliest_time_of_a_queue_is_the_smaller_one_that_is_known(
    tiered: Broker, near: int | None, far: int | None, wanted: int | None
) -> None:
    tiered.local.earliest_time = lambda *_: near  # type: ignore[method-assign]
    fetcher = tiered.tier.fetcher
    fetcher.earliest_time = lambda *_: far  # type: ignore[method-assign]
    assert tiered.store.earliest_time(TOPIC, 0) == wanted


def test_the_earliest_time_of_the_store_is_the_next_stores(tiered: Broker) -> None:
    assert tiered.store.earliest_time() == time_of(6)


def test_the_store_time_comes_from_the_store_that_has_the_message(tiered: Broker) -> None:
    times = [tiered.store.store_time(TOPIC, 0, offset) for offset in range(-1, 11)]
    assert times == [None, *map(time_of, range(10)), None]
    assert tiered.local.calls.count("store_time") <= 6  # for its four, and two that no store has


def test_the_level_says_who_is_asked_for_a_store_time(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    tiered.local.store_time = lambda *_: 2  # type: ignore[method-assign]
    fetcher = tiered.tier.fetcher
    fetcher.store_time = lambda *_: 1  # type: ignore[method-assign]
    tiered.store.level = StorageLevel.DISABLE
    assert tiered.store.store_time(TOPIC, 0, 3) == 2
    tiered.store.level = StorageLevel.FORCE
    assert tiered.store.store_time(TOPIC, 0, 3) == 1
    fetcher.store_time = lambda *_: None  # type: ignore[method-assign]
    assert tiered.store.store_time(TOPIC, 0, 3) == 2


def test_a_store_time_falls_back_while_the_next_store_has_the_message(tiered: Broker) -> None:
    tiered.store.level = StorageLevel.FORCE
    tiered.cut()
    assert tiered.store.store_time(TOPIC, 0, 8) == time_of(8)
    assert tiered.metrics.of(GET_MESSAGE_FALLBACK) == 1
    with pytest.raises(BackendUnavailableError):
        tiered.store.store_time(TOPIC, 0, 2)


def test_a_store_time_comes_from_the_tier_if_its_message_expires_meanwhile(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    store_time = tiered.local.store_time

    def expire_and_ask(topic: str, queue_id: int, offset: int) -> int | None:
        tiered.local.kept_from = 6
        return store_time(topic, queue_id, offset)

    tiered.local.store_time = expire_and_ask  # type: ignore[method-assign]
    assert tiered.store.store_time(TOPIC, 0, 2) == time_of(2)


@pytest.mark.parametrize("boundary", [LOWER, UPPER])
@pytest.mark.parametrize("number", range(10))
def test_every_time_leads_to_its_message_whoever_has_it(
    tiered: Broker, boundary: Boundary, number: int
) -> None:
    at = time_of(number)
    assert tiered.store.offset_by_time(TOPIC, 0, at, boundary) == number
    assert tiered.store.offset_by_time(TOPIC, 0, at - 1, boundary) == number
    assert tiered.store.offset_by_time(TOPIC, 0, at + 1, boundary) == number + 1


class LocalTimes(ListMessageStore):
    """Searches like RocketMQ's local store: UPPER is the last message not later than the time."""

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = LOWER
    ) -> int | None:
        first_behind = super().offset_by_time(topic, queue_id, timestamp + 1, LOWER)
        if boundary is LOWER or first_behind is None:
            return super().offset_by_time(topic, queue_id, timestamp, LOWER)
        return max(self.min_offset(topic, queue_id) or 0, first_behind - 1)


# Rows: the time asked for, and the offset for each boundary. Messages 3 and 4 have the same time.
@pytest.mark.parametrize(
    ("at", "lower", "upper"),
    [
        (-1, 0, 0),
        (0, 0, 0),
        (1, 1, 1),
        (2000, 2, 2),
        (2001, 3, 3),
        (3000, 3, 4),
        (3001, 5, 5),
        (4000, 5, 5),
        (4001, 6, 6),
        (9999, 6, 6),
    ],
)
@pytest.mark.parametrize("kept_from", [0, 2, 4, 6])
@pytest.mark.parametrize("level", StorageLevel)
def test_a_time_leads_to_one_place_whichever_store_is_asked(
    tmp_path: Path, level: StorageLevel, kept_from: int, at: int, lower: int, upper: int
) -> None:
    tiered = Broker(tmp_path)
    tiered.local = LocalTimes(tiered.runtime)
    tiered.store = tiered.wrap(tiered.local)
    tiered.open()
    for number in range(6):
        tiered.put(1, first=number)
        if number == 3:
            tiered.runtime.clock._passed_ms -= STEP_MS  # type: ignore[attr-defined]
    assert tiered.store.flush()
    tiered.store.level = level
    tiered.local.kept_from = 0 if level is StorageLevel.DISABLE else kept_from
    for boundary, wanted in ((LOWER, lower), (UPPER, upper)):
        assert tiered.store.offset_by_time(TOPIC, 0, time_of(0) + at, boundary) == wanted
    tiered.store.shutdown()


class LaggingTimes(LocalTimes):
    """Its minimum is below its first message: its queues lag behind the expiry of its log."""

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        return max(0, self.kept_from - 2)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = LOWER
    ) -> int | None:
        found = super().offset_by_time(topic, queue_id, timestamp, boundary)
        is_before = found is not None and found < self.kept_from
        return found if boundary is not LOWER or not is_before else self.kept_from


def lagging(folder: Path) -> Broker:
    """Ten messages in both stores; the local one is a LaggingTimes."""
    tiered = Broker(folder)
    tiered.local = LaggingTimes(tiered.runtime)
    tiered.store = tiered.wrap(tiered.local)
    tiered.open()
    tiered.put(10)
    assert tiered.store.flush()
    return tiered


@pytest.mark.parametrize("boundary", [LOWER, UPPER])
@pytest.mark.parametrize("ahead_ms", [0, 1])
def test_a_minimum_that_lags_is_no_place_of_a_time(
    tmp_path: Path, ahead_ms: int, boundary: Boundary
) -> None:
    tiered = lagging(tmp_path)
    for tiered.local.kept_from in range(10):
        for number in range(10):
            found = tiered.store.offset_by_time(TOPIC, 0, time_of(number) - ahead_ms, boundary)
            assert found == number, tiered.local.kept_from
    tiered.local.kept_from = 6
    tiered.local.earliest_time = lambda *_: time_of(0)  # type: ignore[method-assign] # of another queue
    assert tiered.store.offset_by_time(TOPIC, 0, time_of(6) - ahead_ms, boundary) == 6
    tiered.store.shutdown()


@pytest.mark.parametrize("boundary", [LOWER, UPPER])
@pytest.mark.parametrize("ahead_ms", [0, 1])
def test_nor_is_it_where_the_histories_of_both_part(
    tmp_path: Path, ahead_ms: int, boundary: Boundary
) -> None:
    tiered = lagging(tmp_path)
    tiered.store._loaded().decision.forks[QueueKey(TOPIC, 0)] = 8
    for tiered.local.kept_from in range(9):
        for number in range(10):
            found = tiered.store.offset_by_time(TOPIC, 0, time_of(number) - ahead_ms, boundary)
            assert found == number, tiered.local.kept_from
    tiered.store.shutdown()


def test_a_time_is_looked_up_in_the_tier_if_its_message_expires_meanwhile(tiered: Broker) -> None:
    tiered.local.kept_from = 2
    ask = tiered.local.offset_by_time

    def expire_and_ask(*args: Any) -> int | None:
        tiered.local.kept_from = 8
        return ask(*args)

    tiered.local.offset_by_time = expire_and_ask  # type: ignore[method-assign, assignment]
    assert tiered.store.offset_by_time(TOPIC, 0, time_of(4)) == 4


def test_a_time_that_the_next_store_covers_is_not_looked_up_in_the_tier(tiered: Broker) -> None:
    steps = tiered.faults.steps
    assert tiered.store.offset_by_time(TOPIC, 0, time_of(7)) == 7
    assert tiered.faults.steps == steps
    assert tiered.local.calls == ["offset_by_time lower"]


@pytest.mark.parametrize(("boundary", "wanted"), [(LOWER, 10), (UPPER, 13)])
def test_a_time_is_looked_up_on_both_sides_of_the_millisecond_at_which_the_next_store_begins(
    tiered: Broker, boundary: Boundary, wanted: int
) -> None:
    at = tiered.runtime.clock.now_ms()
    for number in range(10, 14):
        tiered.put(1, first=number)
        tiered.runtime.clock._passed_ms -= STEP_MS  # type: ignore[attr-defined]
    assert tiered.store.flush()
    tiered.local.kept_from = 12
    assert tiered.local.earliest_time() == at
    assert tiered.store.offset_by_time(TOPIC, 0, at, boundary) == wanted
    assert tiered.store.offset_by_time(TOPIC, 0, at - 1, boundary) == 10


def test_the_boundary_is_handed_on(tiered: Broker) -> None:
    asked: list[object] = []
    fetcher = tiered.tier.fetcher
    fetcher.offset_by_time = lambda *args: asked.append(args[-1])  # type: ignore[method-assign]
    assert tiered.store.offset_by_time(TOPIC, 0, time_of(1), UPPER) == 6
    assert asked == [UPPER]
    assert tiered.local.calls[0] == "offset_by_time upper"


def test_forced_a_time_that_the_tier_has_is_looked_up_there(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    tiered.store.level = StorageLevel.FORCE
    steps = tiered.faults.steps
    assert tiered.store.offset_by_time(TOPIC, 0, time_of(7)) == 7
    assert tiered.faults.steps > steps
    assert tiered.store.offset_by_time("Unknown", 0, time_of(7)) is None


def test_forced_no_time_passes_what_only_the_next_store_has(tiered: Broker) -> None:
    tiered.put(4, first=10)
    tiered.local.kept_from = tiered.local.cached_from = 12
    assert tiered.store.flush()
    tiered.put(2, topic="New")
    tiered.store.level = StorageLevel.FORCE
    tiered.local.kept_from = tiered.local.cached_from = 10  # an older disk is restored
    assert [tiered.store.offset_by_time(TOPIC, 0, time_of(number)) for number in range(9, 14)] == [
        *range(9, 14)
    ]
    tiered.local.kept_from = 0
    assert tiered.store.offset_by_time("New", 0, time_of(15)) == 1


def test_forced_the_first_message_of_a_time_may_still_wait_for_its_upload(tiered: Broker) -> None:
    tiered.put(4, first=10)
    tiered.store.level = StorageLevel.FORCE
    for boundary in Boundary:
        found = [
            tiered.store.offset_by_time(TOPIC, 0, time_of(number), boundary)
            for number in range(9, 15)
        ]
        assert found == [*range(9, 15)]


def test_the_first_message_of_the_next_store_counts_where_the_tier_begins_later(
    tmp_path: Path,
) -> None:
    tiered = Broker(tmp_path, initial_offset="recent")
    tiered.open()
    tiered.put(200)
    assert tiered.store.flush()
    assert tiered.store.offset_by_time(TOPIC, 0, time_of(0) - 5) == 0
    tiered.local.kept_from = 10
    assert tiered.store.offset_by_time(TOPIC, 0, time_of(3)) == 10
    tiered.store.shutdown()


def test_an_empty_next_store_leaves_times_to_the_tier(tiered: Broker) -> None:
    tiered.local.kept_from = 10
    assert tiered.store.earliest_time() is None
    assert tiered.store.offset_by_time(TOPIC, 0, time_of(8)) == 8
    assert tiered.store.store_time(TOPIC, 0, 8) == time_of(8)


# Keys


def test_a_key_is_found_in_both_newest_first_and_each_message_once(tiered: Broker) -> None:
    result = tiered.store.query_message(TOPIC, "shared")
    assert numbers(result) == list(range(9, -1, -1))
    assert result.complete
    assert numbers(tiered.store.query_message(TOPIC, "key-2")) == [2]
    assert numbers(tiered.store.query_message(TOPIC, "UNIQ-00000008")) == [8]


@pytest.mark.parametrize(("count_max", "wanted"), [(2, [9, 8]), (6, [9, 8, 7, 6, 5, 4]), (0, [])])
def test_a_key_gives_the_newest_up_to_the_count(
    tiered: Broker, count_max: int, wanted: list[int]
) -> None:
    assert numbers(tiered.store.query_message(TOPIC, "shared", count_max=count_max)) == wanted


@pytest.mark.parametrize(
    ("begin", "end", "asked", "wanted"),
    [
        (0, 5, ["tier"], [5, 4, 3, 2, 1, 0]),
        (6, 9, ["next", "tier"], [9, 8, 7, 6]),
        (7, 9, ["next"], [9, 8, 7]),
        (4, 7, ["next", "tier"], [7, 6, 5, 4]),
    ],
)
def test_the_time_window_says_who_is_asked_for_a_key(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    begin: int,
    end: int,
    asked: list[str],
    wanted: list[int],
) -> None:
    # Further apart than the clock may be set back: nearer to the border, both are asked.
    monkeypatch.setattr(tiered_kit, "STEP_MS", 20 * 60_000)
    broker.fill(kept_from=6)
    queries: list[str] = []
    query = broker.index.query

    def watched(*args: object, **kwargs: object) -> object:
        queries.append("tier")
        return query(*args, **kwargs)  # type: ignore[arg-type]

    broker.index.query = watched  # type: ignore[method-assign, assignment]
    result = broker.store.query_message(TOPIC, "shared", begin=time_of(begin), end=time_of(end))
    assert numbers(result) == wanted
    assert ["next"] * broker.local.calls.count("query_message") + queries == asked


def test_a_key_is_found_whose_message_waits_and_is_earlier_than_the_next_stores_oldest(
    broker: Broker,
) -> None:
    broker.put(1)
    broker.runtime.clock._start_ms -= 60_000  # type: ignore[attr-defined]
    broker.put(1, first=1)
    window = {"begin": time_of(0) - 60_000, "end": time_of(0) - 1}
    result = broker.store.query_message(TOPIC, "key-1", **window)
    assert (numbers(result), result.complete) == ([1], True)


@pytest.mark.parametrize("begin", [0, time_of(0) + 30_000])
@pytest.mark.parametrize("count_max", [1, 32])
def test_a_key_is_found_whose_message_expired_locally_and_is_later_than_the_next_stores_oldest(
    broker: Broker, begin: int, count_max: int
) -> None:
    broker.runtime.clock._start_ms += 60_000  # type: ignore[attr-defined]
    broker.put(2)
    broker.runtime.clock._start_ms -= 60_000  # type: ignore[attr-defined]
    broker.put(2, first=2)
    assert broker.store.flush()
    broker.local.kept_from = 2
    query = broker.store.query_message
    result = query(TOPIC, "key-1", begin=begin, count_max=count_max)
    assert (numbers(result), result.complete) == ([1], True)
    shared = query(TOPIC, "shared", begin=begin, count_max=count_max)
    assert numbers(shared) == ([1, 0, 3, 2] if not begin else [1, 0])[:count_max]


def test_forced_the_tier_alone_is_asked_for_a_key(tiered: Broker) -> None:
    tiered.put(2, first=10)
    tiered.store.level = StorageLevel.FORCE
    assert numbers(tiered.store.query_message(TOPIC, "shared")) == list(range(9, -1, -1))
    assert "query_message" not in tiered.local.calls


def test_a_query_by_key_does_not_walk_through_the_queues_of_other_topics(tiered: Broker) -> None:
    tiered.tier.files.files = nobody_may  # type: ignore[method-assign]
    assert len(tiered.store.query_message(TOPIC, "shared").messages) == 10
    assert tiered.tier.fetcher.queues(TOPIC) == [QueueKey(TOPIC, 0)]
    assert tiered.tier.fetcher.queues("Unknown") == []
    del tiered.tier.files.files


def nobody_may() -> NoReturn:
    raise AssertionError("there may be thousands")


def test_what_expires_during_a_query_by_key_is_found_in_the_tier(tiered: Broker) -> None:
    """The next store has the messages when the query begins, but not when it is asked."""
    query = tiered.local.query_message

    def expire_first(*arguments: Any, **named: Any) -> QueryResult:
        tiered.local.kept_from = tiered.local.cached_from = 9
        return query(*arguments, **named)

    tiered.local.query_message = expire_first  # type: ignore[method-assign]
    result = tiered.store.query_message(TOPIC, "shared")
    assert result.complete
    assert numbers(result) == list(range(9, -1, -1))


def test_forced_an_answer_lags_while_messages_wait_for_their_upload(tiered: Broker) -> None:
    tiered.store.level = StorageLevel.FORCE
    assert tiered.store.query_message(TOPIC, "shared").complete
    tiered.put(2, first=10)
    result = tiered.store.query_message(TOPIC, "shared")
    assert (result.complete, result.lags) == (False, True)
    assert tiered.store.flush()
    assert tiered.store.query_message(TOPIC, "shared").complete


def test_forced_an_answer_of_an_unreachable_tier_is_not_complete(tmp_path: Path) -> None:
    """The backend went in the middle of an expiry, and nobody knows where the tier begins."""
    broker = Broker(tmp_path, commit_log_segment_bytes=1_000, reserve_hours=1)
    broker.open()
    broker.put(8)
    assert broker.store.flush()
    file = broker.tier.files.get(QueueKey(TOPIC, 0))
    assert file is not None
    file.log.drop(file.log.segments[:1])
    broker.cut()
    broker.store.level = StorageLevel.FORCE
    assert not broker.store.query_message(TOPIC, "shared").complete
    broker.faults.always = None
    broker.store.shutdown()


def test_forced_an_answer_lags_if_the_next_store_has_messages_in_a_gap_of_the_tier(
    tiered: Broker,
) -> None:
    """As after a decision on two histories, if an older disk is restored."""
    tiered.put(4, first=10)
    tiered.local.kept_from = tiered.local.cached_from = 12
    assert tiered.store.flush()
    tiered.store.level = StorageLevel.FORCE
    result = tiered.store.query_message(TOPIC, "shared")
    assert (numbers(result), result.complete) == ([13, 12, *range(9, -1, -1)], True)
    tiered.local.kept_from = tiered.local.cached_from = 10
    assert numbers(tiered.store.get_message(TOPIC, 0, 10))[:2] == [10, 11]
    result = tiered.store.query_message(TOPIC, "shared")
    assert (result.complete, result.lags) == (False, True)


def test_forced_an_answer_lags_if_the_next_store_has_young_messages_before_the_first_of_the_tier(
    tiered: Broker,
) -> None:
    tiered.local.kept_from = tiered.local.cached_from = 2
    tiered.put(4, topic="Late")
    assert tiered.store.flush()
    tiered.store.level = StorageLevel.FORCE
    assert tiered.store.query_message("Late", "shared").complete
    tiered.local.kept_from = tiered.local.cached_from = 0  # an older disk is restored
    result = tiered.store.query_message("Late", "shared")
    assert (numbers(result), result.complete, result.lags) == ([3, 2], False, True)
    tiered.runtime.clock.sleep(10_000 * 3_600)  # they would have expired
    assert tiered.store.query_message("Late", "shared").complete


def test_forced_an_answer_lags_behind_the_number_from_which_on_both_histories_differ(
    tiered: Broker,
) -> None:
    tiered.store._loaded().decision.forks[QueueKey(TOPIC, 0)] = 8
    tiered.store.level = StorageLevel.FORCE
    result = tiered.store.query_message(TOPIC, "shared")
    assert numbers(result) == list(range(7, -1, -1))
    assert (result.complete, result.lags) == (False, True)
    tiered.store.level = StorageLevel.NOT_IN_DISK
    assert tiered.store.query_message(TOPIC, "shared").complete


def test_forced_an_answer_waits_for_nothing_that_has_expired_before_its_upload(
    tiered: Broker,
) -> None:
    tiered.put(2, first=10)
    tiered.local.kept_from = 12
    tiered.store.level = StorageLevel.FORCE
    result = tiered.store.query_message(TOPIC, "shared")
    assert (len(result.messages), result.complete, result.lags) == (10, True, False)


def test_forced_an_answer_lags_though_all_is_uploaded_behind_the_question(tiered: Broker) -> None:
    tiered.put(3, first=10)
    tiered.store.level = StorageLevel.FORCE
    fetcher = tiered.tier.fetcher
    ask = fetcher.query_message

    def ask_and_upload(*arguments: Any, **named: Any) -> Any:
        answer = ask(*arguments, **named)
        assert tiered.store.flush()
        return answer

    fetcher.query_message = ask_and_upload  # type: ignore[method-assign]
    result = tiered.store.query_message(TOPIC, "shared")
    assert (result.complete, result.lags) == (False, True)


def test_messages_of_one_millisecond_on_both_sides_come_once(tiered: Broker) -> None:
    """The border between the stores divides messages that have the same store time."""
    tiered.local.kept_from = 10
    at = tiered.runtime.clock.now_ms()
    for number in range(10, 14):
        tiered.put(1, first=number)
        tiered.runtime.clock._passed_ms -= STEP_MS  # type: ignore[attr-defined]
    assert tiered.store.flush()
    tiered.local.kept_from = 12
    for begin in (at - 1, at):
        result = tiered.store.query_message(TOPIC, "shared", begin=begin)
        assert sorted(numbers(result)) == [10, 11, 12, 13]


def test_an_answer_that_leaves_something_out_says_so(tiered: Broker) -> None:
    tiered.index.complete = False
    assert not tiered.store.query_message(TOPIC, "shared").complete
    tiered.index.complete = True
    tiered.index.failure = BackendUnavailableError("index", "read", "planned")
    result = tiered.store.query_message(TOPIC, "shared")
    assert not result.complete
    assert numbers(result) == [9, 8, 7, 6]


def test_what_is_asked_of_the_tier_is_measured(tiered: Broker) -> None:
    tiered.metrics.labels.clear()
    tiered.store.query_message(TOPIC, "shared")
    tiered.store.offset_by_time(TOPIC, 0, time_of(1))
    tiered.store.store_time(TOPIC, 0, 1)
    measured = [
        labels["operation"] for name, labels in tiered.metrics.labels if name == API_LATENCY.name
    ]
    assert measured == ["query_message", "get_offset_by_time", "get_time_by_offset"]


def test_of_a_queue_that_only_the_tier_knows_the_tier_says_where_it_ends(broker: Broker) -> None:
    broker.fill(3, topic="Other")
    wanted = GetResult(status=GetStatus.OFFSET_TOO_SMALL, next_offset=3, min_offset=3, max_offset=3)
    broker.tier.fetcher.commit_offset = lambda *_: 3  # type: ignore[method-assign]
    broker.tier.fetcher.has_messages = lambda *_: False  # type: ignore[method-assign]
    broker.tier.fetcher.get_message = lambda *_, **__: wanted  # type: ignore[method-assign]
    assert broker.store.get_message(TOPIC, 7, 0) is wanted
