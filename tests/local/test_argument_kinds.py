"""A value that is not a topic, a queue id or a whole number is refused with our own error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.access.tiered_kit import a_config
from tests.local.store_audit import opened
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.sql_filter import SqlFilter
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.messages import Message
from tieredstore.model.values import PutStatus, StorageLevel
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.samples import TOPIC, a_message

PLACE = {"topic": TOPIC, "queue_id": 0}
PAGE = {**PLACE, "offset": 0, "count_max": 3, "bytes_max": 100}
QUESTIONS: dict[str, dict[str, Any]] = {
    "get_message": PAGE,
    "read_range": PAGE,
    "min_offset": PLACE,
    "max_offset": PLACE,
    "offset_by_time": {**PLACE, "timestamp": 5},
    "store_time": {**PLACE, "offset": 0},
    "earliest_time": PLACE,
    "query_message": {"topic": TOPIC, "key": "k", "count_max": 3, "begin": 0, "end": 9},
    "message_at": {"log_offset": 0, "size": None},
    "contains": {**PLACE, "offset": 0},
    "in_memory": {**PLACE, "offset": 0, "count": 1},
}
ODD: list[Any] = [True, 1.0, float("nan"), "1", b"x", [], {}, object(), ("t",)]


@pytest.fixture(params=["local", "tiered"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MessageStore]:
    store: MessageStore = opened(tmp_path / "store")
    if request.param == "tiered":
        runtime = Runtime.inline()
        provider = MemoryProvider(runtime)
        store = TieredMessageStore(
            store,
            a_config(tmp_path, storage_level=StorageLevel.FORCE),
            runtime=runtime,
            provider=provider,
        )
        store.load()
        store.start()
    store.put_message(a_message(0))
    if isinstance(store, TieredMessageStore):
        assert store.flush()
    yield store
    store.shutdown()


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_argument_of_another_kind_is_refused(store: MessageStore, question: str) -> None:
    refused = 0
    for name in QUESTIONS[question]:
        for odd in ODD:
            if name in ("topic", "key") and isinstance(odd, str):
                continue
            with pytest.raises(InvalidArgumentError):
                getattr(store, question)(**{**QUESTIONS[question], name: odd})
            refused += 1
    assert refused


@pytest.mark.parametrize("question", QUESTIONS)
def test_numbers_of_numpy_are_whole_numbers(store: MessageStore, question: str) -> None:
    asked = {
        name: np.int64(value) if type(value) is int else value
        for name, value in QUESTIONS[question].items()
    }
    getattr(store, question)(**asked)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.uint64])
@pytest.mark.parametrize("count", [1, 40])
def test_narrow_numbers_of_numpy_lead_to_the_same_messages(
    store: MessageStore, kind: Any, count: int
) -> None:
    sent = [replace(a_message(number), queue_id=kind(3)) for number in range(250)]
    for first in range(0, 250, count):
        assert all(result.stored for result in store.put_messages(sent[first : first + count]))
    if isinstance(store, TieredMessageStore):
        assert store.flush()
    place: dict[str, Any] = {"topic": TOPIC, "queue_id": kind(3), "offset": kind(120)}
    for wanted in (None, SqlFilter("KEYS IS NOT NULL")):
        page = store.get_message(**place, count_max=kind(20), message_filter=wanted)
        offsets = [one.queue_offset for one in page.messages]
        assert (offsets, page.next_offset) == (list(range(120, 140)), 140)
        assert set(map(type, [*offsets, page.next_offset])) == {int}
    run = store.read_range(**place, count_max=kind(100), bytes_max=kind(200))
    assert run.end_offset > 120
    assert type(run.end_offset) is int
    assert store.contains(**place)
    assert store.store_time(**place)
    assert {type(key.queue_id) for key in store.queues()} == {int}
    found = store.query_message(TOPIC, "key-120")
    assert [one.queue_offset for one in found.messages] == [120]
    assert found.complete


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("odd", [None, *ODD])
@pytest.mark.parametrize(
    "name",
    ["topic", "queue_id", "properties", "flag", "sys_flag", "born_host", "store_host", "message"],
)
def test_a_message_of_odd_parts_is_refused_and_the_others_are_stored(
    tmp_path: Path, name: str, odd: Any, count: int
) -> None:
    if (name, odd) in (("topic", "1"), ("properties", {})) or (
        odd is True and name in ("flag", "sys_flag")  # True equals 1 and is written as 1
    ):
        return
    store = opened(tmp_path)
    usual = {"topic": TOPIC, "queue_id": 0, "body": b"x"}
    sent = [a_message(number) for number in range(count)]
    sent.append(odd if name == "message" else Message(**{**usual, name: odd}))
    results = list(store.put_messages(sent))
    assert [result.stored for result in results] == [True] * count + [False]
    assert results[-1].status is PutStatus.MESSAGE_ILLEGAL
    assert results[-1].reason
    assert store.max_offset(TOPIC, 0) == count
    store.shutdown()


def test_topics_to_delete_are_text(store: MessageStore) -> None:
    for odd in ODD:
        if not isinstance(odd, str):
            for call in (store.delete_topics, store.clean_unused_topics):
                with pytest.raises(InvalidArgumentError):
                    call([odd])
    assert store.max_offset(TOPIC, 0) == 1


@pytest.mark.parametrize("odd", [TOPIC, TOPIC[0], 7, None])
def test_one_topic_alone_is_not_taken_for_the_topics_of_its_letters(
    store: MessageStore, odd: Any
) -> None:
    store.put_message(a_message(0, topic=TOPIC[0]))
    calls: list[Any] = [store.delete_topics, store.clean_unused_topics]
    if isinstance(store, TieredMessageStore):
        calls.append(store.consumer_offsets.forget_topics)
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="want a collection of texts"):
            call(odd)
    assert store.max_offset(TOPIC[0], 0) == store.max_offset(TOPIC, 0) == 1
