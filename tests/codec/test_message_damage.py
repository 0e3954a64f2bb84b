"""Damaged records are told from whole ones, and the damage is located."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.codec.golden_files import local_records
from tieredstore.codec import record as fields
from tieredstore.codec.message import decode_message, encode_blank, encode_message
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import Host

RECORD = encode_message(
    topic="TopicTest",
    queue_id=3,
    queue_offset=42,
    log_offset=16,
    born_timestamp=1700000000123,
    born_host=Host(b"\x7f\x00\x00\x01", 54321),
    store_timestamp=1700000000456,
    store_host=Host(b"\x7f\x00\x00\x02", 10911),
    body=b"hello",
    property_bytes=b"TAGS\x01TagA\x02",
)
TOPIC_AT = 88 + 5
PROPERTIES_AT = TOPIC_AT + 1 + 9


def patched(position: int, data: bytes) -> bytes:
    return RECORD[:position] + data + RECORD[position + len(data) :]


def some_records() -> list[bytes]:
    """One record of each shape: version and hosts."""
    shapes = {(fields.peek_magic(r), fields.peek_sys_flag(r) & 0x30): r for r in local_records()}
    return list(shapes.values())


@pytest.mark.parametrize("record", some_records(), ids=lambda record: record[4:8].hex())
def test_a_record_cut_anywhere_is_damaged(record: bytes) -> None:
    for end in range(len(record)):
        with pytest.raises(SegmentCorruptError):
            decode_message(record[:end])


def test_a_record_that_claims_to_be_shorter_or_longer_is_damaged() -> None:
    for size in range(-2, 2 * len(RECORD)):
        data = patched(0, size.to_bytes(4, signed=True)) + bytes(len(RECORD))
        if size != len(RECORD):
            with pytest.raises(SegmentCorruptError):
                decode_message(data)


@pytest.mark.parametrize("sys_flag", [0x10, 0x20, 0x30])
def test_a_record_too_short_for_its_hosts_is_damaged(sys_flag: int) -> None:
    short = bytearray(patched(36, sys_flag.to_bytes(4))[:92])
    short[0:4] = len(short).to_bytes(4)
    with pytest.raises(SegmentCorruptError, match="too short for its hosts"):
        decode_message(short)


def number(value: int, width: int) -> bytes:
    return value.to_bytes(width, signed=True)


@pytest.mark.parametrize(
    ("data", "position", "word"),
    [
        (patched(0, number(0, 4)), 0, "a record of 0 bytes"),
        (patched(0, number(-1, 4)), 0, "a record of -1 bytes"),
        (patched(0, number(2**31 - 1, 4)), 0, "where there are"),
        (patched(4, bytes(4)), 4, "magic 00000000"),
        (patched(4, bytes.fromhex("daa320a8")), 4, "magic DAA320A8"),
        (patched(4, bytes.fromhex("daa320ab")), TOPIC_AT, "topic"),
        (patched(8, number(5, 4)), 88, "CRC"),
        (patched(36, number(0x10, 4)), 96, "body"),
        (patched(36, number(0x20, 4)), 96, "body"),
        (patched(84, number(-1, 4)), 84, "a body of -1 bytes"),
        (patched(84, number(2**31 - 1, 4)), 84, "body"),
        (patched(84, number(4, 4)), TOPIC_AT - 1, "topic"),
        (patched(84, number(27, 4)), 88 + 27, "ends before its topic"),
        (patched(90, b"?"), 88, "CRC"),
        (patched(TOPIC_AT, number(-1, 1)), TOPIC_AT, "a topic of -1 bytes"),
        (patched(TOPIC_AT, number(127, 1)), TOPIC_AT, "topic"),
        (patched(TOPIC_AT, number(8, 1)), PROPERTIES_AT - 1, "property bytes"),
        (patched(PROPERTIES_AT, number(-1, 2)), PROPERTIES_AT, "-1 property bytes"),
        (patched(PROPERTIES_AT, number(32767, 2)), PROPERTIES_AT, "32767 property bytes"),
        (patched(PROPERTIES_AT, number(9, 2)), PROPERTIES_AT, "9 property bytes"),
        (encode_blank(100) + bytes(92), 4, "a blank record"),
        (b"", 0, "8 bytes"),
    ],
)
def test_a_damaged_field_is_named_with_its_place(data: bytes, position: int, word: str) -> None:
    with pytest.raises(SegmentCorruptError, match=word) as caught:
        decode_message(b"xyz" + data, 3, path="log")
    assert caught.value.path == "log"
    assert caught.value.position == 3 + position


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_the_body_is_noticed(bit: int) -> None:
    for position in range(88, 93):
        data = bytearray(RECORD)
        data[position] ^= 1 << bit
        with pytest.raises(SegmentCorruptError, match="CRC"):
            decode_message(data)
        assert decode_message(data, check_crc=False).body != b"hello"


@pytest.mark.parametrize("position", [-1, -len(RECORD), len(RECORD), len(RECORD) + 1, 2**70])
def test_positions_beyond_the_bytes_are_damage_too(position: int) -> None:
    with pytest.raises(SegmentCorruptError):
        decode_message(RECORD, position)


PEEKS: list[tuple[Callable[..., object], int]] = [
    (fields.peek_message_bytes, 4),
    (fields.peek_magic, 8),
    (fields.peek_queue_id, 16),
    (fields.peek_queue_offset, 28),
    (fields.peek_log_offset, 36),
    (fields.peek_sys_flag, 40),
    (fields.peek_store_timestamp, 64),
    (fields.peek_topic, PROPERTIES_AT),
    (fields.peek_property_bytes, len(RECORD)),
]


@pytest.mark.parametrize(("peek", "needed"), PEEKS)
def test_a_peek_needs_its_field_and_nothing_behind(
    peek: Callable[..., object], needed: int
) -> None:
    whole = peek(RECORD)
    assert peek(RECORD[:needed]) == whole
    assert peek(memoryview(b"before" + RECORD), 6) == whole
    for end in range(needed):
        with pytest.raises(SegmentCorruptError):
            peek(RECORD[:end])
    with pytest.raises(SegmentCorruptError):
        peek(RECORD, -1)


def test_a_topic_is_not_read_from_what_is_no_message() -> None:
    with pytest.raises(SegmentCorruptError, match="no message"):
        fields.peek_topic(patched(4, bytes(4)))
    with pytest.raises(SegmentCorruptError, match="topic"):
        fields.peek_topic(patched(TOPIC_AT, number(-1, 1)))
    with pytest.raises(SegmentCorruptError, match="properties"):
        fields.peek_property_bytes(patched(PROPERTIES_AT, number(-1, 2)))
