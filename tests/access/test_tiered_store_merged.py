"""Answers that two stores give together: offsets, times and keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import STEP_MS, Broker, numbers, time_of
from tieredstore.driver.metrics import API_LATENCY, GET_MESSAGE_FALLBACK
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import Boundary, QueueKey, StorageLevel
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC

LOWER, UPPER = Boundary


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Ten messages in the tier; the next store has lost the first six."""
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(10, kept_from=6)
    yield broker
    broker.faults.always = None
    broker.store.shutdown()


# Offsets


def test_the_minimum_is_the_smaller_one(broker: Broker) -> None:
    assert broker.local.min_offset(TOPIC, 0) == 6
    assert broker.store.min_offset(TOPIC, 0) == 0


def test_what_the_next_store_does_not_know_never_wins(broker: Broker) -> None:
    broker.local.delete_topics([TOPIC])
    assert broker.store.min_offset(TOPIC, 0) == 0
    assert broker.store.max_offset(TOPIC, 0) == 10
    assert broker.store.earliest_time(TOPIC, 0) == time_of(0)


def test_a_queue_that_only_the_next_store_has_is_its_own(broker: Broker) -> None:
    broker.local.kept_from = 0
    broker.put(3, topic="New")
    assert broker.store.min_offset("New", 0) == 0
    assert broker.store.max_offset("New", 0) == 3
    assert broker.store.committed_offset("New", 0) is None


def test_an_empty_queue_of_the_tier_does_not_say_where_messages_begin(broker: Broker) -> None:
    broker.tier.files.create("Late", 0).start_at(0)
    broker.put(9, topic="Late")
    broker.local.kept_from = 8
    assert broker.store.min_offset("Late", 0) == 8
    broker.local.delete_topics(["Late"])
    assert broker.store.min_offset("Late", 0) == 0


def test_the_maximum_is_the_next_stores(broker: Broker) -> None:
    broker.put(3, first=10)
    assert broker.store.max_offset(TOPIC, 0) == 13
    assert broker.store.committed_offset(TOPIC, 0) == 10


def test_a_message_is_there_if_either_has_it(broker: Broker) -> None:
    broker.put(1, first=10)
    there = [offset for offset in range(-1, 13) if broker.store.contains(TOPIC, 0, offset)]
    assert there == list(range(11))


def test_queues_of_both_are_named_once(broker: Broker) -> None:
    broker.put(1, topic="New", queue_id=3)
    broker.local.delete_topics([TOPIC])
    assert sorted(broker.store.queues()) == [QueueKey("New", 3), QueueKey(TOPIC, 0)]


def test_a_tier_that_cannot_say_where_it_begins_is_an_error_not_a_wrong_answer(
    broker: Broker,
) -> None:
    fetcher = broker.tier.fetcher

    def unreachable(*_: object) -> int:
        raise BackendUnavailableError("tier", "read", "planned")

    fetcher.min_offset = unreachable  # type: ignore[method-assign, assignment]
    with pytest.raises(BackendUnavailableError):
        broker.store.min_offset(TOPIC, 0)


# Times


@pytest.mark.parametrize(
    ("near", "far", "wanted"),
    [(0, 1, 0), (None, 2, 2), (3, None, 3), (5, 4, 4), (None, None, None)],
)
def test_the_earliest_time_of_a_queue_is_the_smaller_one_that_is_known(
    broker: Broker, near: int | None, far: int | None, wanted: int | None
) -> None:
    broker.local.earliest_time = lambda *_: near  # type: ignore[method-assign]
    fetcher = broker.tier.fetcher
    fetcher.earliest_time = lambda *_: far  # type: ignore[method-assign]
    assert broker.store.earliest_time(TOPIC, 0) == wanted


def test_the_earliest_time_of_the_store_is_the_next_stores(broker: Broker) -> None:
    assert broker.store.earliest_time() == time_of(6)


def test_the_store_time_comes_from_the_store_that_has_the_message(broker: Broker) -> None:
    times = [broker.store.store_time(TOPIC, 0, offset) for offset in range(-1, 11)]
    assert times == [None, *map(time_of, range(10)), None]
    assert broker.local.calls.count("store_time") <= 6  # those it has, and those nobody has


def test_the_level_says_who_is_asked_for_a_store_time(broker: Broker) -> None:
    broker.local.kept_from = 0
    broker.local.store_time = lambda *_: 2  # type: ignore[method-assign]
    fetcher = broker.tier.fetcher
    fetcher.store_time = lambda *_: 1  # type: ignore[method-assign]
    broker.store.level = StorageLevel.DISABLE
    assert broker.store.store_time(TOPIC, 0, 3) == 2
    broker.store.level = StorageLevel.FORCE
    assert broker.store.store_time(TOPIC, 0, 3) == 1
    fetcher.store_time = lambda *_: None  # type: ignore[method-assign]
    assert broker.store.store_time(TOPIC, 0, 3) == 2


def test_a_store_time_falls_back_while_the_next_store_has_the_message(broker: Broker) -> None:
    broker.store.level = StorageLevel.FORCE
    broker.cut()
    assert broker.store.store_time(TOPIC, 0, 8) == time_of(8)
    assert broker.metrics.of(GET_MESSAGE_FALLBACK) == 1
    with pytest.raises(BackendUnavailableError):
        broker.store.store_time(TOPIC, 0, 2)


@pytest.mark.parametrize("boundary", [LOWER, UPPER])
@pytest.mark.parametrize("number", range(10))
def test_every_time_leads_to_its_message_whoever_has_it(
    broker: Broker, boundary: Boundary, number: int
) -> None:
    at = time_of(number)
    assert broker.store.offset_by_time(TOPIC, 0, at, boundary) == number
    assert broker.store.offset_by_time(TOPIC, 0, at - 1, boundary) == number
    assert broker.store.offset_by_time(TOPIC, 0, at + 1, boundary) == number + 1


class LocalTimes(ListMessageStore):
    """It searches as RocketMQ's local store does: UPPER is the last message not behind the time."""

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = LOWER
    ) -> int | None:
        first_behind = super().offset_by_time(topic, queue_id, timestamp + 1, LOWER)
        if boundary is LOWER or first_behind is None:
            return super().offset_by_time(topic, queue_id, timestamp, LOWER)
        return max(self.min_offset(topic, queue_id) or 0, first_behind - 1)


# Rows: the time asked for, and where each boundary leads. Messages 3 and 4 are of one time.
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
    broker = Broker(tmp_path)
    broker.local = LocalTimes(broker.runtime)
    broker.store = broker.wrap(broker.local)
    broker.open()
    for number in range(6):
        broker.put(1, first=number)
        if number == 3:
            broker.runtime.clock._passed_ms -= STEP_MS  # type: ignore[attr-defined]
    assert broker.store.flush()
    broker.store.level = level
    broker.local.kept_from = 0 if level is StorageLevel.DISABLE else kept_from
    for boundary, wanted in ((LOWER, lower), (UPPER, upper)):
        assert broker.store.offset_by_time(TOPIC, 0, time_of(0) + at, boundary) == wanted
    broker.store.shutdown()


def test_a_time_is_looked_up_in_the_tier_if_its_message_expires_meanwhile(broker: Broker) -> None:
    broker.local.kept_from = 2
    ask = broker.local.offset_by_time

    def expire_and_ask(*args: Any) -> int | None:
        broker.local.kept_from = 8
        return ask(*args)

    broker.local.offset_by_time = expire_and_ask  # type: ignore[method-assign, assignment]
    assert broker.store.offset_by_time(TOPIC, 0, time_of(4)) == 4


def test_a_time_that_the_next_store_covers_is_not_looked_up_in_the_tier(broker: Broker) -> None:
    steps = broker.faults.steps
    assert broker.store.offset_by_time(TOPIC, 0, time_of(7)) == 7
    assert broker.faults.steps == steps
    assert broker.local.calls == ["offset_by_time lower"]


@pytest.mark.parametrize(("boundary", "wanted"), [(LOWER, 10), (UPPER, 13)])
def test_a_time_is_looked_up_on_both_sides_of_the_millisecond_at_which_the_next_store_begins(
    broker: Broker, boundary: Boundary, wanted: int
) -> None:
    at = broker.runtime.clock.now_ms()
    for number in range(10, 14):
        broker.put(1, first=number)
        broker.runtime.clock._passed_ms -= STEP_MS  # type: ignore[attr-defined]
    assert broker.store.flush()
    broker.local.kept_from = 12
    assert broker.local.earliest_time() == at
    assert broker.store.offset_by_time(TOPIC, 0, at, boundary) == wanted
    assert broker.store.offset_by_time(TOPIC, 0, at - 1, boundary) == 10


def test_the_boundary_is_handed_on(broker: Broker) -> None:
    asked: list[object] = []
    fetcher = broker.tier.fetcher
    fetcher.offset_by_time = lambda *args: asked.append(args[-1])  # type: ignore[method-assign]
    assert broker.store.offset_by_time(TOPIC, 0, time_of(1), UPPER) == 6
    assert asked == [UPPER]
    assert broker.local.calls[0] == "offset_by_time upper"


def test_forced_the_tier_alone_is_asked_for_a_time(broker: Broker) -> None:
    broker.put(3, first=10)
    broker.store.level = StorageLevel.FORCE
    assert broker.store.offset_by_time(TOPIC, 0, time_of(11)) == 10
    assert broker.store.offset_by_time("Unknown", 0, time_of(11)) is None
    assert broker.local.calls == []


def test_the_first_message_of_the_next_store_counts_where_the_tier_begins_later(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path, initial_offset="recent")
    broker.open()
    broker.put(200)
    assert broker.store.flush()
    assert broker.store.offset_by_time(TOPIC, 0, time_of(0) - 5) == 0
    broker.local.kept_from = 10
    assert broker.store.offset_by_time(TOPIC, 0, time_of(3)) == 10
    broker.store.shutdown()


def test_an_empty_next_store_leaves_times_to_the_tier(broker: Broker) -> None:
    broker.local.kept_from = 10
    assert broker.store.earliest_time() is None
    assert broker.store.offset_by_time(TOPIC, 0, time_of(8)) == 8
    assert broker.store.store_time(TOPIC, 0, 8) == time_of(8)


# Keys


def test_a_key_is_found_in_both_newest_first_and_each_message_once(broker: Broker) -> None:
    result = broker.store.query_message(TOPIC, "shared")
    assert numbers(result) == list(range(9, -1, -1))
    assert result.complete
    assert numbers(broker.store.query_message(TOPIC, "key-2")) == [2]
    assert numbers(broker.store.query_message(TOPIC, "UNIQ-00000008")) == [8]


@pytest.mark.parametrize(("count_max", "wanted"), [(2, [9, 8]), (6, [9, 8, 7, 6, 5, 4]), (0, [])])
def test_a_key_gives_the_newest_up_to_the_count(
    broker: Broker, count_max: int, wanted: list[int]
) -> None:
    assert numbers(broker.store.query_message(TOPIC, "shared", count_max=count_max)) == wanted


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
    broker: Broker, begin: int, end: int, asked: list[str], wanted: list[int]
) -> None:
    queries: list[str] = []
    query = broker.index.query

    def watched(*args: object, **kwargs: object) -> object:
        queries.append("tier")
        return query(*args, **kwargs)  # type: ignore[arg-type]

    broker.index.query = watched  # type: ignore[method-assign, assignment]
    result = broker.store.query_message(TOPIC, "shared", begin=time_of(begin), end=time_of(end))
    assert numbers(result) == wanted
    assert ["next"] * broker.local.calls.count("query_message") + queries == asked


def test_forced_the_tier_alone_is_asked_for_a_key(broker: Broker) -> None:
    broker.put(2, first=10)
    broker.store.level = StorageLevel.FORCE
    assert numbers(broker.store.query_message(TOPIC, "shared")) == list(range(9, -1, -1))
    assert "query_message" not in broker.local.calls


def test_messages_of_one_millisecond_on_both_sides_come_once(broker: Broker) -> None:
    """The border between the stores goes through messages that were stored at the same time."""
    broker.local.kept_from = 10
    at = broker.runtime.clock.now_ms()
    for number in range(10, 14):
        broker.put(1, first=number)
        broker.runtime.clock._passed_ms -= STEP_MS  # type: ignore[attr-defined]
    assert broker.store.flush()
    broker.local.kept_from = 12
    for begin in (at - 1, at):
        result = broker.store.query_message(TOPIC, "shared", begin=begin)
        assert sorted(numbers(result)) == [10, 11, 12, 13]


def test_an_answer_that_leaves_something_out_says_so(broker: Broker) -> None:
    broker.index.complete = False
    assert not broker.store.query_message(TOPIC, "shared").complete
    broker.index.complete = True
    broker.index.failure = BackendUnavailableError("index", "read", "planned")
    result = broker.store.query_message(TOPIC, "shared")
    assert not result.complete
    assert numbers(result) == [9, 8, 7, 6]


def test_what_is_asked_of_the_tier_is_measured(broker: Broker) -> None:
    broker.metrics.labels.clear()
    broker.store.query_message(TOPIC, "shared")
    broker.store.offset_by_time(TOPIC, 0, time_of(1))
    broker.store.store_time(TOPIC, 0, 1)
    measured = [
        labels["operation"] for name, labels in broker.metrics.labels if name == API_LATENCY.name
    ]
    assert measured == ["query_message", "get_offset_by_time", "get_time_by_offset"]
