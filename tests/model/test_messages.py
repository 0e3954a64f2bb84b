"""Messages whose properties came as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tieredstore.codec.record import property_bytes_of
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.messages import Message

TEXT = "b\x011\x02a\x01\x02b\x012\x02KEYS\x01k"


def a_message(**fields: Any) -> Message:
    return Message(topic="T", queue_id=0, body=b"x", **fields)


@pytest.mark.parametrize("text", [TEXT, TEXT.encode()])
def test_they_are_read_from_the_text_as_a_reader_of_the_record_does(text: str | bytes) -> None:
    message = a_message(properties_text=text)
    assert message.properties == {"b": "2", "KEYS": "k"}
    assert list(message.properties) == ["b", "KEYS"]
    assert property_bytes_of(message) == TEXT.encode()


def test_a_copy_keeps_them_and_may_be_given_others() -> None:
    message = a_message(properties_text=TEXT)
    assert replace(message, queue_id=0) == message
    assert property_bytes_of(replace(message, queue_id=3)) == TEXT.encode()
    other = replace(message, properties_text="c\x013")
    assert other.properties == {"c": "3"}
    named = replace(message, properties={**message.properties, "c": "3"}, properties_text=None)
    assert property_bytes_of(named) == b"b\x012\x02KEYS\x01k\x02c\x013\x02"


def test_both_forms_at_once_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="only one of them"):
        a_message(properties={"a": "1"}, properties_text="a\x011")
    with pytest.raises(InvalidArgumentError, match="only one of them"):
        replace(a_message(properties_text=TEXT), properties={"a": "1"})
    with pytest.raises(InvalidArgumentError, match="want text or bytes"):
        a_message(properties_text={"a": "1"})


def test_an_empty_text_is_no_properties() -> None:
    message = a_message(properties_text="")
    assert not message.properties
    assert property_bytes_of(message) == b""
