"""Offsets outside, unknown topics, odd counts and closed stores, asked through every face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import Broker, numbers
from tieredstore.access.store import TieredMessageStore
from tieredstore.aio import AsyncTieredStore
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.messages import GetResult, QueryResult
from tieredstore.model.values import INT64_MAX, Boundary, GetStatus, StorageLevel
from tieredstore.testing.samples import TOPIC, a_message

Face = Callable[..., Any]


def sync_face(store: TieredMessageStore, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(store, name)(*args, **kwargs)


def future_face(store: TieredMessageStore, name: str, *args: Any, **kwargs: Any) -> Any:
    if name == "get_message":
        return store.get_message_future(*args, **kwargs).result(240)
    return sync_face(store, name, *args, **kwargs)


def async_face(store: TieredMessageStore, name: str, *args: Any, **kwargs: Any) -> Any:
    async def ask() -> Any:
        return await getattr(AsyncTieredStore(store), name)(*args, **kwargs)

    return asyncio.run(ask())


FACES = pytest.mark.parametrize("face", [sync_face, future_face, async_face])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Twelve messages: 0 to 5 in the tier only, 6 to 9 in both, 10 and 11 not tiered yet."""
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(10, kept_from=6)
    broker.put(2, first=10)
    yield broker
    broker.store.shutdown()


@FACES
@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-INT64_MAX, GetStatus.OFFSET_TOO_SMALL, 0),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 1),
        (5, GetStatus.FOUND, 6),
        (6, GetStatus.FOUND, 7),
        (9, GetStatus.FOUND, 10),
        (10, GetStatus.FOUND, 11),
        (12, GetStatus.OFFSET_OVERFLOW_ONE, 12),
        (13, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
        (INT64_MAX, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
    ],
)
def test_every_offset_has_a_status_and_where_to_go_on(
    broker: Broker, face: Face, offset: int, status: GetStatus, next_offset: int
) -> None:
    result: GetResult = face(broker.store, "get_message", TOPIC, 0, offset, count_max=1)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert numbers(result) == ([offset] if status is GetStatus.FOUND else [])


@FACES
@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (9, GetStatus.FOUND, 10),
        (10, GetStatus.FOUND, 11),
        (11, GetStatus.FOUND, 12),
        (12, GetStatus.OFFSET_OVERFLOW_ONE, 12),
        (13, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
    ],
)
def test_forced_the_ends_count_what_waits_for_its_upload(
    broker: Broker, face: Face, offset: int, status: GetStatus, next_offset: int
) -> None:
    broker.store.level = StorageLevel.FORCE
    result: GetResult = face(broker.store, "get_message", TOPIC, 0, offset, count_max=1)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert numbers(result) == ([offset] if status is GetStatus.FOUND else [])


@FACES
@pytest.mark.parametrize("level", StorageLevel)
@pytest.mark.parametrize(("topic", "queue_id"), [("Nowhere", 0), (TOPIC, 99), (TOPIC, -1), ("", 0)])
def test_what_is_not_there_is_absence(
    broker: Broker, face: Face, level: StorageLevel, topic: str, queue_id: int
) -> None:
    broker.store.level = level
    store = broker.store
    result: GetResult = face(store, "get_message", topic, queue_id, 0)
    assert result.status in (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE)
    assert list(result.messages) == []
    for name in ("min_offset", "max_offset", "committed_offset"):
        assert face(store, name, topic, queue_id) is None
    assert face(store, "earliest_time", topic, queue_id) is None
    for offset in (-1, 0, INT64_MAX):
        assert face(store, "store_time", topic, queue_id, offset) is None
        assert not face(store, "contains", topic, queue_id, offset)
        assert face(store, "offset_by_time", topic, queue_id, offset) is None


@FACES
@pytest.mark.parametrize("level", StorageLevel)
@pytest.mark.parametrize("count_max", [-5, 0])
@pytest.mark.parametrize("offset", [6, 9, 10, 11])
def test_a_page_of_no_messages_has_none_and_goes_nowhere(
    broker: Broker, face: Face, level: StorageLevel, count_max: int, offset: int
) -> None:
    broker.store.level = level
    result: GetResult = face(broker.store, "get_message", TOPIC, 0, offset, count_max=count_max)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, offset)
    assert not result.messages


@FACES
@pytest.mark.parametrize("count_max", [-5, 0])
def test_nor_has_one_of_messages_that_only_the_tier_has(
    broker: Broker, face: Face, count_max: int
) -> None:
    result: GetResult = face(broker.store, "get_message", TOPIC, 0, 2, count_max=count_max)
    assert (numbers(result), result.next_offset) == ([], 2)
    assert numbers(face(broker.store, "get_message", TOPIC, 0, 2, count_max=1)) == [2]


@FACES
@pytest.mark.parametrize("bytes_max", [-5, 0, 1])
def test_at_least_one_message_comes_however_few_bytes_are_allowed(
    broker: Broker, face: Face, bytes_max: int
) -> None:
    result: GetResult = face(broker.store, "get_message", TOPIC, 0, 2, bytes_max=bytes_max)
    assert numbers(result) == [2]


@FACES
def test_huge_counts_and_sizes_give_what_there_is(broker: Broker, face: Face) -> None:
    result: GetResult = face(
        broker.store, "get_message", TOPIC, 0, 1, count_max=INT64_MAX, bytes_max=INT64_MAX
    )
    assert numbers(result) == list(range(1, 10))


@FACES
@pytest.mark.parametrize("count_max", [-1, 0])
def test_a_query_for_no_messages_gives_none(broker: Broker, face: Face, count_max: int) -> None:
    result: QueryResult = face(broker.store, "query_message", TOPIC, "shared", count_max=count_max)
    assert list(result.messages) == []


@FACES
@pytest.mark.parametrize(
    ("topic", "key", "begin", "end"),
    [
        ("Nowhere", "shared", 0, INT64_MAX),
        (TOPIC, "", 0, INT64_MAX),
        (TOPIC, "no such key", 0, INT64_MAX),
        (TOPIC, "shared", 5, 4),
        (TOPIC, "shared", -10, -1),
        (TOPIC, "shared", INT64_MAX, INT64_MAX),
    ],
)
def test_a_query_that_fits_nothing_is_empty_and_complete(
    broker: Broker, face: Face, topic: str, key: str, begin: int, end: int
) -> None:
    result: QueryResult = face(broker.store, "query_message", topic, key, begin=begin, end=end)
    assert list(result.messages) == []
    assert result.complete


@FACES
@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize(("time", "wanted"), [(-INT64_MAX, 0), (0, 0), (INT64_MAX, 12)])
def test_times_outside_lead_to_the_ends(
    broker: Broker, face: Face, boundary: Boundary, time: int, wanted: int
) -> None:
    assert face(broker.store, "offset_by_time", TOPIC, 0, time, boundary) == wanted


@FACES
@pytest.mark.parametrize("when", ["before load", "after shutdown"])
def test_a_closed_store_says_so(tmp_path: Path, face: Face, when: str) -> None:
    broker = Broker(tmp_path)
    if when == "after shutdown":
        broker.open()
        broker.fill(2)
        broker.store.shutdown()
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("put_message", (a_message(0),)),
        ("get_message", (TOPIC, 0, 0)),
        ("min_offset", (TOPIC, 0)),
        ("max_offset", (TOPIC, 0)),
        ("committed_offset", (TOPIC, 0)),
        ("offset_by_time", (TOPIC, 0, 0)),
        ("store_time", (TOPIC, 0, 0)),
        ("earliest_time", ()),
        ("earliest_time", (TOPIC, 0)),
        ("query_message", (TOPIC, "key")),
        ("message_at", (0,)),
        ("contains", (TOPIC, 0, 0)),
        ("queues", ()),
        ("flush", ()),
        ("health", ()),
        ("delete_topics", ([TOPIC],)),
        ("clean_unused_topics", ([],)),
        ("start", ()),
    ]
    for name, args in calls:
        with pytest.raises(StoreClosedError):
            face(broker.store, name, *args)


def test_a_closed_store_answers_none_of_the_questions_about_the_log(tmp_path: Path) -> None:
    store = Broker(tmp_path).store
    for call in (
        store.confirmed_offset,
        store.min_log_offset,
        lambda: store.in_memory(TOPIC, 0, 0),
        lambda: store.read_range(TOPIC, 0, 0, count_max=1, bytes_max=1),
        lambda: store.get_message_future(TOPIC, 0, 0),
    ):
        with pytest.raises(StoreClosedError):
            call()
