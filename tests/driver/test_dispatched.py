"""Batches of messages as dispatchers get them: columns that act as requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.local.store_audit import opened
from tieredstore.driver.dispatched import Arrived, DispatchColumns, arrived
from tieredstore.model.messages import DispatchRequest, Message
from tieredstore.testing.samples import a_message

PREPARED = 0x04


def heard(tmp_path: Path, messages: list[Message]) -> DispatchColumns:
    store = opened(tmp_path)
    batches: list[DispatchColumns] = []
    store.add_dispatcher(batches.append)  # type: ignore[arg-type]
    store.put_messages(messages)
    [batch] = batches
    assert isinstance(batch, DispatchColumns)
    return batch


def some_messages(count: int) -> list[Message]:
    """Messages of three queues; every fifth is prepared, and so is in no queue."""
    return [
        replace(
            a_message(
                number,
                topic="A" if number % 3 else "B",
                queue_id=number // 7,
                properties={"KEYS": f"k{number} common", "UNIQ_KEY": f"u{number}", "TAGS": "t"},
            ),
            sys_flag=PREPARED if number % 5 == 0 else 0,
        )
        for number in range(count)
    ]


def test_each_is_the_request_of_its_message(tmp_path: Path) -> None:
    sent = some_messages(40)
    seen = [message for message in sent if not message.sys_flag]
    batch = heard(tmp_path, sent)
    assert len(batch) == len(seen) == len(list(batch))
    for request, message in zip(batch, seen, strict=True):
        assert (request.topic, request.queue_id) == (message.topic, message.queue_id)
        assert request.unique_key == message.properties["UNIQ_KEY"]
        assert request.keys == tuple(message.properties["KEYS"].split())
        assert request.tags_code == ord("t")
        assert (request.store_timestamp > 0, request.size > 91) == (True, True)
    assert batch[3] is batch[3:5][0]
    assert batch[-1] == list(batch)[-1]
    with pytest.raises(IndexError):
        batch[40]


def test_what_came_to_a_queue_is_known_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = heard(tmp_path, some_messages(40))
    requests = list(batch)
    with monkeypatch.context() as patch:
        patch.setattr(DispatchColumns, "__getitem__", lambda *_: pytest.fail("made one"))
        found = list(arrived(batch))
    assert found == list(arrived(requests))
    at = 0
    for one in found:
        part = requests[at : at + one.message_count]
        at += one.message_count
        assert {(each.topic, each.queue_id) for each in part} == {(one.topic, one.queue_id)}
        assert one.end_offset == part[-1].queue_offset + 1
        assert one.record_bytes == sum(each.size for each in part)
    assert at == len(batch)


def test_requests_of_other_stores_are_counted_too() -> None:
    one = DispatchRequest(
        topic="A",
        queue_id=0,
        queue_offset=4,
        log_offset=0,
        size=100,
        tags_code=0,
        store_timestamp=1,
    )
    assert list(arrived([one])) == [Arrived("A", 0, 5, 1, 100)]
    assert not list(arrived([]))
