"""The parts of a record: log offset, properties, checksums, ids and end marks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import (
    decode_coda,
    decode_offset_id,
    encode_coda,
    patch_log_offset,
    rewrite_log_offset,
)
from tests.codec.test_message import COMMON
from tests.codec.values import HOSTS, INT64, PLAIN_TEXT
from tieredstore.codec import checks, message, names
from tieredstore.codec import record as properties
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import (
    peek_log_offset,
)
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import Host

RECORD = encode_message(**COMMON)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1)


@given(INT64)
def test_a_rewritten_log_offset_changes_eight_bytes(log_offset: int) -> None:
    record = rewrite_log_offset(RECORD, log_offset)
    assert peek_log_offset(record) == log_offset
    assert (record[:28], record[36:]) == (RECORD[:28], RECORD[36:])
    assert decode_message(record).log_offset == log_offset


def test_a_log_offset_is_patched_in_place() -> None:
    batch = bytearray(RECORD + RECORD)
    patch_log_offset(memoryview(batch), 777, position=len(RECORD))
    assert batch == RECORD + rewrite_log_offset(RECORD, 777)


@pytest.mark.parametrize(("log_offset", "position"), [(2**63, 0), (0, -1), (0, len(RECORD) - 35)])
def test_a_log_offset_that_does_not_fit_is_refused(log_offset: int, position: int) -> None:
    batch = bytearray(RECORD)
    with pytest.raises(ValueError, match="log_offset|position"):
        patch_log_offset(batch, log_offset, position=position)
    assert batch == RECORD


@pytest.mark.parametrize(
    ("data", "decoded"),
    [
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01\x02", {}),
        (b"\x01b\x02", {}),
        (b"ab\x02", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"x\x02a\x01b\x02", {"a": "b"}),
        (b"", {}),
        (b"\x02\x02\x02", {}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x02b\x01c\x02", {"b": "c"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_properties_are_decoded_as_java_decodes_them(data: bytes, decoded: dict[str, str]) -> None:
    assert properties.decode_properties(data) == decoded


@given(st.dictionaries(NAMES, VALUES))
def test_properties_round_trip(mapping: dict[str, str]) -> None:
    assert properties.decode_properties(properties.encode_properties(mapping)) == mapping


def test_an_empty_value_is_written_and_not_read() -> None:
    data = properties.encode_properties({"a": "", "b": "c"})
    assert data == b"a\x01\x02b\x01c\x02"
    assert properties.decode_properties(data) == {"b": "c"}


@pytest.mark.parametrize(
    ("name", "value"), [("", "v"), ("a\x01", "v"), ("a\x02", "v"), ("a", "v\x02w")]
)
def test_properties_that_would_change_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="property"):
        properties.encode_properties({name: value})


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (None, ()),
        ("", ()),
        (" ", ()),
        ("a", ("a",)),
        (" a  b ", ("a", "b")),
        ("a a", ("a", "a")),
        ("a\tb c\u00a0d", ("a\tb", "c\u00a0d")),
    ],
)
def test_keys_are_split_at_single_spaces_only(text: str | None, keys: tuple[str, ...]) -> None:
    assert properties.split_keys(text) == keys


@pytest.mark.parametrize(
    ("tags", "code"), [(None, 0), ("", 0), ("TagA", 2598919), ("TagB", 2598920), ("标签", 857175)]
)
def test_tags_have_a_code(tags: str | None, code: int) -> None:
    assert properties.tags_code(tags) == code


@pytest.mark.parametrize(("body", "crc"), [(b"hello", 907060870), (b"123456789", 1274296614)])
def test_the_body_crc_has_no_sign(body: bytes, crc: int) -> None:
    assert checks.body_crc(body) == crc
    assert checks.body_crc(memoryview(b"")) == 0


def test_the_property_crc_is_written_backwards() -> None:
    data = checks.encode_property_crc(1248037756)
    assert data == b"__CRC32#\x016577308421\x02"
    assert checks.encode_property_crc(120) == b"__CRC32#\x010210000000\x02"
    with pytest.raises(ValueError, match="property CRC"):
        checks.encode_property_crc(-1)


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b"", b""),
        (b"a\x01b\x02", b"a\x01b\x02"),
        (b"a\x01b", b"a\x01b\x02"),
        (b"a\x01b\x02__CRC32#\x01123\x02", b"a\x01b\x02"),
        (b"__CRC32#\x01123\x02a\x01b", b"a\x01b\x02"),
        (b"a\x01b\x02__CRC32#\x01123", b"a\x01b\x02"),
        (b"x__CRC32#\x01123\x02", b"x__CRC32#\x01123\x02"),
    ],
)
def test_room_for_a_property_crc_replaces_an_older_one(before: bytes, kept: bytes) -> None:
    assert checks.reserve_property_crc(before) == kept + bytes(20)


@given(st.binary(max_size=40), st.integers(0, 2**30))
def test_the_property_crc_covers_the_whole_record(property_bytes: bytes, place: int) -> None:
    values: dict[str, Any] = {**COMMON, "property_bytes": property_bytes}
    record = encode_message(**values, append_property_crc=True)
    assert checks.has_property_crc(record)
    assert checks.matches_property_crc(record)
    damaged = bytearray(record)
    damaged[place % len(record)] ^= 0x55
    assert not checks.matches_property_crc(damaged)


def test_the_property_crc_is_filled_again_after_a_rewrite() -> None:
    record = bytearray(encode_message(**COMMON, append_property_crc=True))
    patch_log_offset(record, 4711)
    assert checks.has_property_crc(record)
    assert not checks.matches_property_crc(record)
    checks.fill_property_crc(record)
    assert record == encode_message(**{**COMMON, "log_offset": 4711}, append_property_crc=True)


def test_short_data_have_no_property_crc() -> None:
    for size in range(20):
        assert not checks.has_property_crc(bytes(size))
        assert not checks.matches_property_crc(bytes(size))
    with pytest.raises(ValueError, match="no room"):
        checks.fill_property_crc(bytearray(19))


@given(HOSTS, INT64)
def test_message_ids_round_trip(host: Host, log_offset: int) -> None:
    text = names.encode_offset_id(host, log_offset=log_offset)
    assert len(text) == (56 if host.is_ipv6 else 32)
    assert decode_offset_id(text) == (host, log_offset)


def test_the_message_id_of_the_format_notes_is_reproduced() -> None:
    host = Host(bytes([10, 0, 0, 5]), 10911)
    text = names.encode_offset_id(host, log_offset=1073741840)
    assert text == "0A00000500002A9F0000000040000010"


@pytest.mark.parametrize(("address", "port"), [(b"123", 1), (b"1234", 2**31)])
def test_a_host_that_is_none_has_no_message_id(address: bytes, port: int) -> None:
    with pytest.raises(ValueError, match="store_host|port"):
        names.encode_offset_id(Host(address, port), log_offset=0)


def test_a_blank_record_says_how_much_is_left() -> None:
    assert message.encode_blank(100).hex() == "00000064cbd43194"
    assert message.is_blank(b"xx" + message.encode_blank(8), 2)
    assert not message.is_blank(RECORD)
    assert not message.is_blank(message.encode_blank(8)[:7])
    assert not message.is_blank(message.encode_blank(8), -8)
    for size in (7, 2**31):
        with pytest.raises(ValueError, match="rest_bytes"):
            message.encode_blank(size)


@given(INT64, st.binary(max_size=5))
def test_end_markers_round_trip(store_timestamp: int, before: bytes) -> None:
    data = before + encode_coda(store_timestamp)
    assert message.is_coda(data, len(before))
    assert message.is_blank(data, len(before))
    assert decode_coda(data, len(before)) == store_timestamp


@pytest.mark.parametrize("data", [b"", RECORD, message.encode_blank(100) + bytes(8)])
def test_what_is_no_end_marker_is_refused(data: bytes) -> None:
    assert not message.is_coda(data)
    with pytest.raises(SegmentCorruptError, match="end marker"):
        decode_coda(data)
    assert not message.is_coda(encode_coda(1), -16)


def test_a_cut_end_marker_is_damage() -> None:
    for size in range(16):
        data = encode_coda(1)[:size]
        assert not message.is_coda(data)
        with pytest.raises(SegmentCorruptError):
            decode_coda(data)


@given(PLAIN_TEXT)
def test_any_text_makes_a_property(text: str) -> None:
    clean = text.replace("\x02", "")
    decoded = properties.decode_properties(properties.encode_properties({"KEYS": clean}))
    assert decoded.get("KEYS", "") == clean
