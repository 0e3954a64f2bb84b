"""Frames of the log: golden bytes, round trips, and no damage that goes unseen."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from struct import pack
from typing import Any

import numpy as np
import pytest
from google_crc32c import value as crc32c_of
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.model.errors import InvalidArgumentError, MetadataError
from tieredstore.model.values import Json
from tieredstore.roundlog import frames
from tieredstore.roundlog.frames import (
    Frame,
    FrameKind,
    Ints,
    NeedMore,
    check_payload,
    crc32c,
    decode,
    decode_tail,
    encode,
    encode_table,
)

HEAD: dict[str, Json] = {"epoch": 3, "changes": [{"begin": [0, "b/t/0", 1, 20]}]}
COLUMNS: dict[str, Ints] = {
    "number": np.array([7, 7, 9], np.int64),
    "offset": np.array([1_000_000, 1_000_300, 1_000_601], np.int64),
    "crc": np.array([0, 0xFFFFFFFF, 5], np.uint32),
}
# Written by hand from docs/formats.md.
GOLDEN_HEAD = (
    b'{"head":{"epoch":3,"changes":[{"begin":[0,"b/t/0",1,20]}]},"columns":['
    b'{"name":"number","type":"int64","rows":3,"width":1,"base":7},'
    b'{"name":"offset","type":"int64","rows":3,"width":1,"base":300,"first":1000000},'
    b'{"name":"crc","type":"uint32","rows":3,"width":4,"base":0}]}'
)
GOLDEN_COLUMNS = bytes.fromhex("000002000100000000ffffffff05000000")


def sealed_header(*fields: int, magic: bytes = b"TSRL") -> bytes:
    """Version, kind, four sizes, bytes and checksum of the payload, checksum of the rest."""
    header = pack("<4sHBxIIIIQI20xI", magic, *fields)
    return header + pack("<I", crc32c_of(header))


def framed(
    head: bytes,
    columns: bytes = b"",
    *,
    kind: int = 1,
    raw: tuple[int, int] | None = None,
) -> bytes:
    """An object with right checksums, whatever its contents."""
    raw_head, raw_columns = raw or (len(head), len(columns))
    sizes = (raw_head, len(head), raw_columns, len(columns))
    return sealed_header(1, kind, *sizes, 0, 0, crc32c_of(head + columns)) + head + columns


def told(width: int = 1, rows: int = 2, **more: Any) -> bytes:
    """A head with one column."""
    extra = "".join(f',"{name}":{value}' for name, value in more.items())
    column = f'"name":"n","type":"int64","rows":{rows},"width":{width},"base":0{extra}'
    return f'{{"head":{{}},"columns":[{{{column}}}]}}'.encode()


def assert_same(found: Frame, head: object, columns: Mapping[str, Ints]) -> None:
    assert found.head == head
    assert list(found.columns) == list(columns)
    for name, column in columns.items():
        assert found.columns[name].dtype == column.dtype
        assert found.columns[name].tolist() == column.tolist()


def test_an_entry_has_the_golden_bytes() -> None:
    stored_head = zlib.compress(GOLDEN_HEAD, 1)
    sizes = (len(GOLDEN_HEAD), len(stored_head), len(GOLDEN_COLUMNS), len(GOLDEN_COLUMNS))
    checksum = crc32c_of(stored_head + GOLDEN_COLUMNS)
    payload = sealed_header(1, 1, *sizes, 5, crc32c_of(b"bytes"), checksum)
    golden = payload + stored_head + GOLDEN_COLUMNS + b"bytes"
    assert encode(FrameKind.ENTRY, HEAD, COLUMNS, [b"by", memoryview(b"tes")]) == golden
    found = decode(golden, kind=FrameKind.ENTRY, name="entry", object_bytes=len(golden))
    assert_same(found, HEAD, COLUMNS)
    assert (found.kind, found.version) == (FrameKind.ENTRY, 1)
    assert (found.payload_start, found.payload_bytes) == (len(golden) - 5, 5)
    check_payload(found, golden[found.payload_start :], name="entry")


def test_the_least_frame_is_a_header_and_an_empty_head() -> None:
    golden = framed(b'{"head":{},"columns":[]}', kind=2)
    assert encode(FrameKind.STATE, {}, {}) == golden
    assert len(golden) == 64 + 24
    assert_same(decode(golden, kind=FrameKind.STATE, name="state"), {}, {})


def test_a_data_object_ends_in_its_table() -> None:
    table = framed(b'{"head":{},"columns":[]}', kind=3)
    head = pack("<QI", 5, crc32c_of(b"bytes"))
    assert table[24:36] == bytes(12)  # where the payload's fields are
    fields = table[:24] + head + table[36:60]
    table = fields + pack("<I", crc32c_of(fields)) + table[64:]
    ending = table + pack("<Q", len(table)) + b"TSRLTAIL"
    assert encode_table({}, {}, payload_bytes=5, payload_crc=crc32c_of(b"bytes")) == ending
    data = b"bytes" + ending
    for cut in range(6):
        found = decode_tail(memoryview(data)[cut:], len(data), name="data")
        assert (found.kind, found.payload_start, found.payload_bytes) == (FrameKind.TABLE, 0, 5)
        check_payload(found, data[:5], name="data")
    with pytest.raises(NeedMore) as more:
        decode_tail(data[6:], len(data), name="data")
    assert more.value.bytes == len(ending)
    with pytest.raises(NeedMore) as more:
        decode_tail(data[-15:], len(data), name="data")
    assert more.value.bytes == 16


INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Ints]:
    found: dict[str, Ints] = {}
    for name in draw(st.lists(st.text(max_size=3), max_size=4, unique=True)):
        dtype: Any = np.dtype(draw(st.sampled_from(INTS)))
        limits = np.iinfo(dtype)
        numbers = st.integers(int(limits.min), int(limits.max)) | st.integers(
            max(int(limits.min), -3), 100
        )
        values = draw(st.lists(numbers, max_size=6))
        if draw(st.booleans()):
            values.sort()
        found[name] = np.array(values * draw(st.integers(1, 30)), dtype)
    return found


heads = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    ),
    max_size=4,
)


@given(heads, columns(), st.lists(st.binary(max_size=40), max_size=3))
def test_what_is_encoded_is_decoded(
    head: dict[str, Json], numbers: dict[str, Ints], pieces: list[bytes]
) -> None:
    data = encode(FrameKind.STATE, head, numbers, pieces)
    payload = b"".join(pieces)
    found = decode(bytearray(data), kind=FrameKind.STATE, name="", object_bytes=len(data))
    assert_same(found, head, numbers)
    assert data[found.payload_start :] == payload
    check_payload(found, payload, name="")
    ending = encode_table(head, numbers, payload_bytes=len(payload), payload_crc=crc32c(payload))
    table = decode_tail(payload + ending, len(payload + ending), name="")
    assert_same(table, head, numbers)
    check_payload(table, payload, name="")


@pytest.mark.parametrize("stride", [1, 2, -1])
def test_a_column_need_not_lie_in_one_piece(stride: int) -> None:
    column = np.arange(1000)[::stride]
    found = decode(encode(FrameKind.STATE, {}, {"n": column}), kind=FrameKind.STATE, name="")
    assert_same(found, {}, {"n": column})
    assert len(encode(FrameKind.STATE, {}, {"n": column})) < 200  # all steps are equal
    with pytest.raises(ValueError, match="read-only"):
        found.columns["n"][0] = 1


def test_numbers_of_any_byte_order_are_written_alike() -> None:
    column = np.array([1, 70_000, 3], ">i8")
    assert encode(FrameKind.ENTRY, {}, {"n": column}) == encode(
        FrameKind.ENTRY, {}, {"n": column.astype("<i8")}
    )


A_FRAME = encode(FrameKind.ENTRY, HEAD, COLUMNS, [b"bytes"])
PAYLOAD_AT = len(A_FRAME) - 5


def read(data: bytes, object_bytes: int | None = None) -> None:
    found = decode(data, kind=FrameKind.ENTRY, name="entry", object_bytes=object_bytes)
    check_payload(found, data[found.payload_start :], name="entry")


@pytest.mark.parametrize("known", [True, False])
def test_every_flipped_bit_is_an_error(known: bool) -> None:
    for bit in range(8 * len(A_FRAME)):
        damaged = bytearray(A_FRAME)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MetadataError) as caught:
            read(bytes(damaged), len(damaged) if known else None)
        assert caught.value.is_damage
        assert caught.value.path == "entry"


def test_damage_behind_what_was_asked_for_is_not_read() -> None:
    for cut in range(PAYLOAD_AT, len(A_FRAME)):
        beginning = A_FRAME[:cut]
        found = decode(beginning, kind=FrameKind.ENTRY, name="", object_bytes=len(A_FRAME))
        assert_same(found, HEAD, COLUMNS)
        assert_same(decode(beginning, kind=FrameKind.ENTRY, name=""), HEAD, COLUMNS)


def test_every_cut_says_how_much_is_needed_or_that_it_is_damage() -> None:
    for cut in range(len(A_FRAME)):
        if cut < PAYLOAD_AT:
            with pytest.raises(NeedMore) as more:
                decode(A_FRAME[:cut], kind=FrameKind.ENTRY, name="")
            assert more.value.bytes == (PAYLOAD_AT if cut >= 64 else 64)
        with pytest.raises(MetadataError):
            decode(A_FRAME[:cut], kind=FrameKind.ENTRY, name="", object_bytes=cut)
        with pytest.raises(MetadataError):
            read(A_FRAME[:cut], cut)


def test_an_object_that_is_too_long_is_damaged() -> None:
    with pytest.raises(MetadataError, match="should have"):
        decode(A_FRAME + b"!", kind=FrameKind.ENTRY, name="")
    with pytest.raises(MetadataError, match="should have"):
        decode(A_FRAME, kind=FrameKind.ENTRY, name="", object_bytes=len(A_FRAME) + 1)


def test_every_damaged_bit_and_every_cut_of_a_data_object_is_an_error() -> None:
    ending = encode_table(HEAD, COLUMNS, payload_bytes=5, payload_crc=crc32c(b"bytes"))
    data = b"bytes" + ending

    def read_data(whole: bytes) -> None:
        found = decode_tail(whole, len(whole), name="data")
        check_payload(found, whole[: found.payload_bytes], name="data")

    read_data(data)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MetadataError):
            read_data(bytes(damaged))
    for cut in range(len(data)):
        with pytest.raises(MetadataError):
            read_data(data[:cut])
        if cut:
            with pytest.raises(MetadataError):
                read_data(data[cut:])


def test_a_table_with_bytes_of_its_own_behind_it_is_damaged() -> None:
    table = encode(FrameKind.TABLE, {}, {}, [b"bytes"])
    data = table + pack("<Q", len(table)) + b"TSRLTAIL"
    with pytest.raises(MetadataError, match="another object"):
        decode_tail(data, len(data), name="data")


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_an_error(data: bytes, begun: bool) -> None:
    data = A_FRAME[:64] + data if begun else data
    with pytest.raises((MetadataError, NeedMore)):
        read(data)
    with pytest.raises(MetadataError):
        decode_tail(data, len(data), name="")


def test_another_kind_and_a_newer_version_say_so() -> None:
    with pytest.raises(MetadataError, match="it is of kind 1, not 2"):
        decode(A_FRAME, kind=FrameKind.STATE, name="state")
    newer = A_FRAME[:4] + pack("<H", 2) + A_FRAME[6:]
    with pytest.raises(MetadataError, match=r"version 2 .* reads up to 1: use a newer one"):
        decode(newer, kind=FrameKind.ENTRY, name="entry")


@pytest.mark.parametrize(
    "data",
    [
        framed(b"{}"),
        framed(b"[]"),
        framed(b'{"head":[],"columns":[]}'),
        framed(b'{"head":{},"columns":[]} {}'),
        framed(b'{"head":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b'},"columns":[]}'),
        framed(b'{"head":{},"columns":[]}', b"!"),
        framed(told(), b"1"),
        framed(told(), b"123"),
        framed(told(width=3), b"123456"),
        framed(told(rows=-1), b""),
        framed(told(rows=1 << 40, width=0), b""),
        framed(told(rows=0, width=0, first=5), b""),
        framed(told(rows=0, first=5), b""),
        framed(told(base='"7"'), b"12"),
        framed(told(), zlib.compress(b"12"), raw=(len(told()), 2)),
        framed(told(rows=50), zlib.compress(bytes(50))[:-1], raw=(len(told(rows=50)), 50)),
        framed(told(rows=50), zlib.compress(bytes(51)), raw=(len(told(rows=50)), 50)),
        framed(told(rows=50), zlib.compress(bytes(49)), raw=(len(told(rows=50)), 50)),
        framed(told(rows=50), zlib.compress(bytes(50)) + b"!", raw=(len(told(rows=50)), 50)),
        framed(told(rows=50), b"not deflated", raw=(len(told(rows=50)), 50)),
    ],
)
def test_what_makes_no_sense_is_damage_though_its_checksums_are_right(data: bytes) -> None:
    with pytest.raises(MetadataError, match="damaged"):
        decode(data, kind=FrameKind.ENTRY, name="")


@pytest.mark.parametrize(
    "sizes",
    [(1 << 30, 9, 1, 1), (1 << 31, 1 << 28, 1, 1), (9, 10, 0, 0), (0, 0, 9, 10)],
)
def test_no_length_is_believed_that_is_too_large(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(MetadataError, match="header makes no sense"):
        decode(sealed_header(1, 1, *sizes, 0, 0, 0), kind=FrameKind.ENTRY, name="")


def test_what_no_reader_would_take_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for column in (np.zeros(3), np.zeros((2, 2), np.int64), np.array([True])):
        with pytest.raises(InvalidArgumentError, match="whole numbers in a row"):
            encode(FrameKind.ENTRY, {}, {"n": column})  # type: ignore[dict-item]
    monkeypatch.setattr(frames, "RAW_BYTES_MAX", 800)
    with pytest.raises(InvalidArgumentError, match="101 values are too many"):
        encode(FrameKind.ENTRY, {}, {"n": np.zeros(101, np.int64)})
    assert encode(FrameKind.ENTRY, {}, {"n": np.zeros(100, np.int64)})
    with pytest.raises(InvalidArgumentError, match="too long"):
        encode(FrameKind.ENTRY, {"a": "b" * 800}, {})
    monkeypatch.setattr(frames, "STORED_BYTES_MAX", 30)
    with pytest.raises(InvalidArgumentError, match="too long"):
        encode(FrameKind.ENTRY, {"a": "bcd"}, {})


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_a_checksum_goes_on_behind_another(first: bytes, second: bytes) -> None:
    whole = crc32c_of(first + second)
    assert crc32c(second, crc32c(first)) == whole == crc32c(bytearray(first + second))


def test_a_long_buffer_has_the_checksum_of_its_bytes() -> None:
    data = bytes(range(256)) * 3000
    assert crc32c(memoryview(data)[1:]) == crc32c_of(data[1:])


def test_a_head_of_just_the_length_that_is_allowed_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(FrameKind.ENTRY, {"a": "b"}, {"n": np.array([7, 1, 99, 3, 50])})
    _, _, _, text_bytes, _, numbers_bytes, *_ = frames._HEADER.unpack_from(data)
    for limit, is_read in ((text_bytes + numbers_bytes, True), (text_bytes, False)):
        monkeypatch.setattr(frames, "RAW_BYTES_MAX", limit)
        if is_read:
            assert decode(data, kind=FrameKind.ENTRY, name="").head == {"a": "b"}
        else:
            with pytest.raises(MetadataError, match="header makes no sense"):
                decode(data, kind=FrameKind.ENTRY, name="")
