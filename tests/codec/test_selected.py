"""A message that a read returned has the fields of its record."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tieredstore.codec.message import encode_message
from tieredstore.codec.selected import SelectedRecord
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import Host

HOST = Host(b"\x7f\x00\x00\x01", 1)
RECORD = encode_message(
    topic="T",
    queue_id=0,
    queue_offset=3,
    log_offset=4,
    born_timestamp=6,
    born_host=HOST,
    store_timestamp=7,
    store_host=HOST,
    body=b"hello",
    property_bytes=b"TAGS\x01new\x02KEYS\x01a b\x02",
)


def selected(record: bytes) -> SelectedMessage:
    return SelectedRecord(queue_offset=3, log_offset=4, tags_code=5, record=record)


def test_a_message_has_the_fields_of_its_record() -> None:
    message = selected(RECORD)
    assert message.body == b"hello"
    assert message.properties == {"TAGS": "new", "KEYS": "a b"}
    assert (message.tags, message.keys, message.store_timestamp) == ("new", ("a", "b"), 7)


def test_one_that_was_looked_into_is_no_other_message() -> None:
    message = selected(RECORD)
    assert message.body
    assert message == selected(RECORD)
    assert hash(message) == hash(selected(RECORD))
    assert repr(message) == repr(selected(RECORD))
    assert pickle.loads(pickle.dumps(message)).tags == "new"  # noqa: S301


def test_a_copy_with_another_record_has_the_fields_of_that() -> None:
    message = selected(RECORD)
    assert message.tags == "new"
    other = replace(message, record=RECORD.replace(b"new", b"old"))
    assert (other.tags, message.tags) == ("old", "new")


def test_a_damaged_record_is_an_error_when_it_is_looked_into() -> None:
    for record in (b"no record", RECORD.replace(b"hello", b"jello")):
        with pytest.raises(SegmentCorruptError):
            selected(record).body  # noqa: B018
