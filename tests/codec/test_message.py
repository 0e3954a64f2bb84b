"""Stored records: the printed vectors, round trips, and what the encoder refuses."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import encode_stored
from tests.codec.values import HOSTS, INT32, INT64, PLAIN_TEXT
from tieredstore.codec.message import (
    PROPERTY_BYTES_MAX,
    StoredMessage,
    decode_message,
    encode_message,
)
from tieredstore.codec.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    peek_queue_offset,
    peek_sys_flag,
)
from tieredstore.model.values import Host

BORN = Host(bytes([192, 168, 1, 10]), 54321)
STORE = Host(bytes([10, 0, 0, 5]), 10911)
BORN_6 = Host(bytes.fromhex("105000000000000000050600300c326b"), 123)
STORE_6 = Host(bytes(15) + b"\x01", 124)

COMMON: dict[str, Any] = {
    "topic": "TopicTest",
    "queue_id": 3,
    "flag": 7,
    "queue_offset": 42,
    "log_offset": 16,
    "born_timestamp": 1700000000123,
    "born_host": BORN,
    "store_timestamp": 1700000000456,
    "store_host": STORE,
    "reconsume_times": 2,
    "prepared_transaction_offset": 99,
    "body": b"hello",
    "property_bytes": b"TAGS\x01TagA\x02",
}

# Made by Java 5.3.3 from the values above and those in the first column.
VECTORS: list[tuple[dict[str, Any], str]] = [
    (
        {
            "log_offset": 1073741840,
            "property_bytes": b"KEYS\x01k1 k2\x02UNIQ_KEY\x01AC1100010000000000000001\x02"
            b"TAGS\x01TagA\x02",
        },
        "000000a0daa320a73610a6860000000300000007000000000000002a0000000040000010000000000000018bcf"
        "e5687bc0a8010a0000d4310000018bcfe569c80a00000500002a9f000000020000000000000063000000056865"
        "6c6c6f09546f7069635465737400374b455953016b31206b3202554e49515f4b45590141433131303030313030"
        "303030303030303030303030303102544147530154616741"
        "02",
    ),
    (
        {"born_host": BORN_6, "store_host": STORE_6},
        "0000008bdaa320a73610a6860000000300000007000000000000002a0000000000000010000000300000018bcf"
        "e5687b105000000000000000050600300c326b0000007b0000018bcfe569c80000000000000000000000000000"
        "00010000007c0000000200000000000000630000000568656c6c6f09546f70696354657374000a544147530154"
        "61674102",
    ),
    (
        {"append_property_crc": True},
        "00000087daa320a73610a6860000000300000007000000000000002a0000000000000010000000000000018bcf"
        "e5687bc0a8010a0000d4310000018bcfe569c80a00000500002a9f000000020000000000000063000000056865"
        "6c6c6f09546f70696354657374001e544147530154616741025f5f435243333223013635373733303834323102",
    ),
    (
        {"topic": "T", "body": b"", "property_bytes": b""},
        "0000005cdaa320a7000000000000000300000007000000000000002a0000000000000010000000000000018bcf"
        "e5687bc0a8010a0000d4310000018bcfe569c80a00000500002a9f000000020000000000000063000000000154"
        "0000",
    ),
]

MESSAGES = st.builds(
    StoredMessage,
    topic=PLAIN_TEXT,
    queue_id=INT32,
    queue_offset=INT64,
    log_offset=INT64,
    born_timestamp=INT64,
    born_host=HOSTS,
    store_timestamp=INT64,
    store_host=HOSTS,
    body=st.binary(),
    property_bytes=st.binary(),
    flag=INT32,
    sys_flag=INT32,
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
    body_crc=INT32,
    version=st.just(2),
)


@pytest.mark.parametrize(("values", "record"), VECTORS)
def test_the_vectors_of_the_format_notes_are_reproduced(
    values: dict[str, Any], record: str
) -> None:
    data = encode_message(**{**COMMON, **values})
    assert data.hex() == record
    assert encode_stored(decode_message(data)) == data


def test_the_first_vector_reads_back() -> None:
    message = decode_message(bytes.fromhex(VECTORS[0][1]))
    assert message.offset_id == "0A00000500002A9F0000000040000010"
    assert message.tags_code == 2598919
    assert message.tags == "TagA"
    assert message.keys == ("k1", "k2")
    assert message.unique_key == "AC1100010000000000000001"
    assert (message.born_host, message.store_host) == (BORN, STORE)
    assert (message.topic, message.body, message.version) == ("TopicTest", b"hello", 1)


@pytest.mark.parametrize(
    ("transaction", "queue_offset"),
    [(0, 42), (TRANSACTION_PREPARED, 0), (TRANSACTION_COMMIT, 42), (TRANSACTION_ROLLBACK, 0)],
)
def test_prepared_and_rolled_back_messages_have_no_queue_offset(
    transaction: int, queue_offset: int
) -> None:
    data = encode_message(**COMMON, sys_flag=transaction)
    assert peek_queue_offset(data) == queue_offset
    assert decode_message(data).transaction == transaction


@given(MESSAGES)
def test_messages_round_trip(message: StoredMessage) -> None:
    data = encode_stored(message)
    decoded = decode_message(data, check_crc=False)
    bits = (message.born_host.is_ipv6 << 4) | (message.store_host.is_ipv6 << 5)
    sys_flag = message.sys_flag & ~0x30 | bits
    hidden = message.transaction in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
    queue_offset = 0 if hidden else message.queue_offset
    assert decoded == replace(message, sys_flag=sys_flag, queue_offset=queue_offset)
    assert encode_stored(decoded) == data


@given(MESSAGES, st.binary(), st.binary(), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_message_is_read_from_the_middle_of_any_buffer(
    message: StoredMessage, before: bytes, after: bytes, kind: Any
) -> None:
    data = encode_stored(message)
    decoded = decode_message(kind(before + data + after), len(before), check_crc=False)
    assert encode_stored(decoded) == data
    assert type(decoded.body) is type(decoded.property_bytes) is bytes


@pytest.mark.parametrize(
    ("topic", "version"), [("t" * 127, 1), ("t" * 128, 2), ("键" * 42, 1), ("键" * 43, 2)]
)
def test_the_bytes_of_the_topic_choose_the_version(topic: str, version: int) -> None:
    data = encode_message(**{**COMMON, "topic": topic})
    message = decode_message(data)
    assert (message.topic, message.version) == (topic, version)


def test_a_short_topic_may_be_written_as_version_two() -> None:
    data = encode_message(**{**COMMON, "topic": ""}, version=2)
    assert decode_message(data).version == 2
    assert data[4:8].hex() == "daa320ab"


def test_host_bits_follow_the_addresses() -> None:
    data = encode_message(**{**COMMON, "store_host": STORE_6}, sys_flag=0x10)
    assert peek_sys_flag(data) == 0x20


def test_properties_are_read_once_and_cannot_be_changed() -> None:
    message = decode_message(encode_message(**COMMON))
    assert message.properties == {"TAGS": "TagA"}
    assert message.properties["TAGS"] is message.properties["TAGS"]
    with pytest.raises(TypeError):
        message.properties["TAGS"] = "TagB"  # type: ignore[index]


def test_messages_travel_between_processes() -> None:
    message = decode_message(encode_message(**COMMON))
    assert message.tags == "TagA"
    again = pickle.loads(pickle.dumps(message))  # noqa: S301
    assert again == message
    assert again.tags == "TagA"


def test_bodies_stay_out_of_repr() -> None:
    assert "hello" not in repr(decode_message(encode_message(**COMMON)))


@pytest.mark.parametrize("size", [PROPERTY_BYTES_MAX, PROPERTY_BYTES_MAX + 1])
def test_properties_have_a_limit(size: int) -> None:
    values = {**COMMON, "property_bytes": b"p" * size}
    if size <= PROPERTY_BYTES_MAX:
        assert len(decode_message(encode_message(**values)).property_bytes) == size
        values["append_property_crc"] = True
    with pytest.raises(ValueError, match="property_bytes"):
        encode_message(**values)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"queue_id": 2**31}, "queue_id"),
        ({"flag": -(2**31) - 1}, "flag"),
        ({"queue_offset": 2**63}, "queue_offset"),
        ({"log_offset": 2**63}, "log_offset"),
        ({"log_offset": 10**5000}, "log_offset"),
        ({"log_offset": "5"}, "log_offset"),
        ({"log_offset": 1.5}, "log_offset"),
        ({"sys_flag": 2**31}, "sys_flag"),
        ({"born_timestamp": 2**63}, "born_timestamp"),
        ({"store_timestamp": 2**63}, "store_timestamp"),
        ({"born_host": Host(b"12345", 1)}, "born_host"),
        ({"born_host": Host(b"1234", 2**31)}, "born_host port"),
        ({"store_host": Host(b"", 1)}, "store_host"),
        ({"store_host": Host(b"1234", 2**31)}, "store_host port"),
        ({"reconsume_times": 2**31}, "reconsume_times"),
        ({"prepared_transaction_offset": 2**63}, "prepared_transaction_offset"),
        ({"body_crc": 2**32}, "body_crc"),
        ({"topic": "t" * 32768}, "topic"),
        ({"topic": "t" * 128, "version": 1}, "topic"),
        ({"version": 3}, "version"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: "):
        encode_message(**{**COMMON, **values})
