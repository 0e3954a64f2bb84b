"""Columns that act as a sequence of messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.local.store_audit import opened
from tieredstore.codec.names import encode_offset_id
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.message_columns import MessageColumns, unchanging
from tieredstore.model.messages import Message
from tieredstore.model.values import Host

HOST = Host(bytes([10, 0, 0, 1]), 7)


def test_each_row_is_a_message() -> None:
    columns = MessageColumns(
        topics=["A", "B", "A"],
        queue_ids=np.array([0, 1, 2], np.int32),
        bodies=[b"x", b"y", b"z"],
        properties_texts=["KEYS\x01k\x02", b"", "TAGS\x01t"],
        flags=(1, 2, 3),
        born_timestamps=range(5, 8),
        born_hosts=HOST,
        store_hosts=[HOST, Host(bytes(4), 0), HOST],
    )
    assert len(columns) == 3
    assert columns[1] == Message(
        topic="B",
        queue_id=1,
        body=b"y",
        properties_text=b"",
        flag=2,
        born_timestamp=6,
        born_host=HOST,
        store_host=Host(bytes(4), 0),
    )
    assert columns[0].properties == {"KEYS": "k"}
    assert [message.body for message in columns] == [b"x", b"y", b"z"]
    assert [message.flag for message in columns[1:]] == [2, 3]
    assert columns[-1] == columns[2]
    with pytest.raises(IndexError):
        columns[3]


def test_a_list_of_the_caller_may_change_afterwards() -> None:
    bodies = [b"x"]
    columns = MessageColumns(topics="A", queue_ids=0, bodies=bodies)
    bodies.append(b"y")
    assert len(columns) == 1
    assert unchanging(columns) is columns
    messages = [columns[0]]
    kept = unchanging(messages)
    messages.clear()
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"topics": ["A"]}, "topics: 1 for 2 bodies"),
        ({"queue_ids": [0, 1, 2]}, "queue_ids: 3 for 2 bodies"),
        ({"properties_texts": []}, "properties_texts: 0 for 2 bodies"),
        ({"properties_texts": ["", None]}, "want text or bytes for each"),
    ],
)
def test_columns_that_are_none_are_refused(wrong: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"topics": "A", "queue_ids": 0, "bodies": [b"x", b"y"]}
    with pytest.raises(InvalidArgumentError, match=reason):
        MessageColumns(**{**given, **wrong})


def test_the_ids_of_stored_columns_name_their_hosts(tmp_path: Path) -> None:
    hosts = [Host(bytes([10, 0, 0, number]), 10911) for number in range(20)]
    columns = MessageColumns(topics="A", queue_ids=0, bodies=[b"x"] * 20, store_hosts=hosts)
    store = opened(tmp_path)
    for host, put in zip(hosts, store.put_messages(columns), strict=True):
        assert put.message_id == encode_offset_id(host, log_offset=put.log_offset)
