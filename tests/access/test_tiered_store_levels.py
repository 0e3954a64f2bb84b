"""Which store serves a read at which level, and what happens where that one cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.access.tiered_kit import Broker, numbers
from tieredstore.driver.metrics import API_LATENCY, GET_MESSAGE_FALLBACK, MESSAGES_OUT
from tieredstore.model.errors import BackendUnavailableError, SegmentCorruptError
from tieredstore.model.messages import GetResult
from tieredstore.model.values import GetStatus, StorageLevel
from tieredstore.testing.samples import TOPIC

DISABLE, NOT_IN_DISK, NOT_IN_MEM, FORCE = StorageLevel


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    broker.open()
    yield broker
    broker.faults.always = None
    broker.store.shutdown()


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
    """The tier began late: what it calls too small is there all the same."""
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


def test_a_queue_that_the_next_store_lost_whole_is_the_tiers(broker: Broker) -> None:
    broker.fill(4)
    broker.local.delete_topics([TOPIC])
    assert numbers(broker.store.get_message(TOPIC, 0, 0)) == [0, 1, 2, 3]
    at_end = broker.store.get_message(TOPIC, 0, 4)
    assert (at_end.status, at_end.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 4)
    assert broker.store.max_offset(TOPIC, 0) == 4


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


def test_a_future_says_what_a_call_says(broker: Broker) -> None:
    broker.fill(6, kept_from=3)
    for offset in (-1, 0, 2, 3, 5, 6, 9):
        future = broker.store.get_message_future(TOPIC, 0, offset, count_max=2)
        assert future.result(0) == broker.store.get_message(TOPIC, 0, offset, count_max=2)
