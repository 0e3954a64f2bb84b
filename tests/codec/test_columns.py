"""All readers agree on a record: alone, among many, for the index and in the local log."""

from __future__ import annotations

import random
import struct
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.columns import Properties, Records, joined_texts, sound_columns, texts_are
from tieredstore.codec.java import decode_utf8
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import decode_properties, encode_properties, tags_code
from tieredstore.index.contract import CommittedRun
from tieredstore.index.keys import keys_of_run
from tieredstore.local.record_scan import RecordState, check_record
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import Host

V4, V6 = Host(bytes([10, 0, 0, 1]), 4711), Host(bytes(range(16)), 10911)
TOPICS = st.sampled_from(["", "T", "主题", "T" * 127, "T" * 200])
TEXTS = st.lists(
    st.sampled_from(
        [b"TAGS\x01a\x02", b"TAGS\x01\x02", b"TAGS\x01\xe4\xb8", b"\x02", b"\x01", b"KEYS\x01k "]
    ),
    max_size=5,
).map(b"".join)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    return encode_message(
        topic=draw(TOPICS),
        queue_id=3,
        queue_offset=4,
        log_offset=0,
        born_timestamp=5,
        born_host=draw(st.sampled_from([V4, V6])),
        store_timestamp=draw(st.integers(0, 2**62)),
        store_host=draw(st.sampled_from([V4, V6])),
        body=draw(st.binary(max_size=20)),
        property_bytes=draw(st.sampled_from([b"", encode_properties({"KEYS": "k", "TAGS": "t"})])),
    )


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Records with wrong lengths, flags and magics, cut off, or with bytes after their end."""
    record = bytearray(draw(records()))
    way = draw(st.sampled_from(["whole", "byte", "length", "cut", "longer", "claims"]))
    if way == "byte":
        record[draw(st.integers(0, len(record) - 1))] = draw(st.integers(0, 255))
    elif way == "length":
        at = draw(st.sampled_from([0, 4, 36, 84, 96, 108]))
        value = draw(st.sampled_from([-(2**31), -1, 0, 1, 88, 91, 127, 2**31 - 1]))
        struct.pack_into(">i", record, min(at, len(record) - 4), value)
    elif way == "cut":
        del record[draw(st.integers(0, len(record) - 1)) :]
    elif way in ("longer", "claims"):
        record += draw(st.binary(min_size=1, max_size=5))
    if way in ("cut", "claims") and len(record) >= 4:
        struct.pack_into(">i", record, 0, len(record))
    return bytes(record)


def is_message(record: bytes, *, check_crc: bool = False) -> bool:
    """The codec's own verdict; it ignores bytes beyond the size that a record claims."""
    try:
        message = decode_message(record, check_crc=check_crc)
    except SegmentCorruptError:
        return False
    return len(record) == struct.unpack_from(">i", record)[0] and message.version in (1, 2)


def bounds_of(found: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(list(accumulate(map(len, found), initial=0)), np.int64)


def run_of(found: list[bytes]) -> MessageRun:
    starts = bounds_of(found)[:-1]
    return MessageRun(
        first_offset=0,
        log_offsets=starts,
        message_bytes=np.array(list(map(len, found)), np.int32),
        tags_codes=np.zeros(len(found), np.int64),
        starts=starts,
        records=b"".join(found),
    )


def local_verdict(record: bytes) -> bool:
    """The verdict of a local log's scan, without the two checks that only it makes."""
    check = check_record(record, check_crc=False)
    is_torn = "zeros" in check.reason and check.reason != "zeros"
    is_record = check.state is RecordState.MESSAGE and check.size == len(record)
    return is_record or (is_torn and is_message(record))


@given(st.lists(damaged(), min_size=1, max_size=5))
def test_every_reader_has_the_same_verdict_on_a_record(found: list[bytes]) -> None:
    wanted = [is_message(record) for record in found]
    run = run_of(found)
    columns = Records(run.records, run.starts, run.message_bytes)
    assert columns.sound.tolist() == wanted
    assert [local_verdict(record) for record in found] == wanted
    taken = keys_of_run("T", 1, 2, CommittedRun(run=run, log_offsets=run.log_offsets)).columns
    has_keys = [
        row
        for row, record in enumerate(found)
        if wanted[row] and decode_message(record, check_crc=False).keys
    ]
    assert taken.log_offsets.tolist() == [run.log_offsets[row] for row in has_keys]


@given(st.lists(damaged(), min_size=1, max_size=5))
def test_fields_and_checksums_of_sound_records_are_those_of_the_decoder(
    found: list[bytes],
) -> None:
    run = run_of(found)
    columns = Records(run.records, run.starts, run.message_bytes)
    bodies = columns.sound_bodies()
    for row in np.flatnonzero(columns.sound).tolist():
        one = decode_message(found[row], check_crc=False)
        start, size = int(columns.topic_starts[row]), int(columns.topic_bytes[row])
        assert decode_utf8(run.records[start : start + size]) == one.topic
        assert columns.properties(np.array([row])).data == one.property_bytes
        assert columns.store_times()[row] == one.store_timestamp
        assert columns.own_queue_offsets()[row] == one.queue_offset
        assert bodies[row] == is_message(found[row], check_crc=True)
    columns.leave_out_damaged_bodies()
    assert columns.sound.tolist() == [is_message(record, check_crc=True) for record in found]


@given(st.lists(records(), min_size=1, max_size=4), st.integers(0, 3), damaged())
def test_a_scan_takes_what_is_sound_up_to_the_first_that_is_not(
    found: list[bytes], row: int, other: bytes
) -> None:
    found[row % len(found)] = other
    bounds = bounds_of(found)
    data = bytearray().join(found)
    places = bounds[:-1].tolist()
    for place, record in zip(places, found, strict=True):
        if len(record) >= 36:
            struct.pack_into(">q", data, place + 28, place)
    view = memoryview(data)
    whole = [
        check_record(view[place : place + len(record)], log_offset=place).state
        is RecordState.MESSAGE
        and is_message(bytes(view[place : place + len(record)]))
        for place, record in zip(places, found, strict=True)
    ]
    count = whole.index(False) if False in whole else len(whole)
    assert len(sound_columns(view, bounds, bounds[:-1])) == count


@pytest.mark.parametrize("more", [1, 4, 100])
def test_a_record_with_bytes_behind_its_properties_is_damage_for_everyone(more: int) -> None:
    record = bytearray(
        encode_message(
            topic="orders",
            queue_id=0,
            queue_offset=0,
            log_offset=0,
            born_timestamp=5,
            born_host=V4,
            store_timestamp=6,
            store_host=V4,
            property_bytes=encode_properties({"KEYS": "k1"}),
        )
        + bytes(more)
    )
    struct.pack_into(">i", record, 0, len(record))
    run = run_of([bytes(record)])
    keys = keys_of_run("orders", 0, 0, CommittedRun(run=run, log_offsets=run.log_offsets))
    assert len(keys.columns) == 0
    assert not Records(run.records, run.starts, run.message_bytes).is_sound
    with pytest.raises(SegmentCorruptError, match="property bytes do not end with the record"):
        decode_message(bytes(record))


@given(st.lists(TEXTS, max_size=6))
def test_tags_codes_of_many_texts_are_those_of_each(texts: list[bytes]) -> None:
    wanted = [tags_code(decode_properties(text).get("TAGS")) for text in texts]
    assert Properties.of_texts(texts).tags_codes().tolist() == wanted


@given(
    names=st.lists(st.sampled_from(["TAGS", "KEYS", "TAGSX", "A"]), min_size=1, max_size=4),
    values=st.lists(st.lists(st.sampled_from(["", "a", "bc", "主"]), min_size=4, max_size=4)),
    odd=st.sampled_from([b"", b"TAGS\x01z\x02", b"KEYS\x01z", b"A\x01z\x02A\x01y\x02", b"\x02"]),
)
def test_values_are_those_of_each_text_be_the_texts_alike_or_not(
    names: list[str], values: list[list[str]], odd: bytes
) -> None:
    """An empty value does not count, so it also makes a text differ from the others."""
    pairs = [zip(names, row, strict=False) for row in values]
    texts = ["".join(f"{name}\x01{value}\x02" for name, value in each).encode() for each in pairs]
    for many in (texts, [*texts, odd], [odd, *texts]):
        properties = Properties.of_texts(many)
        for name in ("TAGS", "KEYS", "A", "B"):
            rows, starts, ends = properties.values(name)
            decoded = [decode_properties(text).get(name) for text in many]
            wanted = [(row, value) for row, value in enumerate(decoded) if value]
            found = properties.texts(starts, ends)
            assert [*zip(rows.tolist(), found, strict=True)] == wanted


def test_texts_are_compared_byte_by_byte_with_their_zeros() -> None:
    data = b"ab\0cab\0\0xyab"
    starts, sizes = np.array([0, 4, 5, 10, 4]), np.array([3, 3, 3, 2, 4])
    assert texts_are(data, starts, sizes, b"ab\0").tolist() == [True, True, False, False, False]
    assert texts_are(data, starts, sizes, b"ab\0\0").tolist() == [False] * 4 + [True]
    assert texts_are(data, starts, sizes, b"").tolist() == [False] * 5


def test_no_record_has_fields_too() -> None:
    records = Records(bytes(200), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert len(records) == len(records.store_times()) == len(records.own_log_offsets()) == 0


@given(
    sizes=st.one_of(
        st.lists(st.integers(0, 60), max_size=5).map(lambda few: few * 80),
        st.lists(st.integers(30, 50), max_size=200),
        st.lists(st.just(40), min_size=120, max_size=140),
    ),
    before=st.integers(0, 100),
    gap=st.integers(0, 3),
)
def test_texts_are_joined_whatever_their_sizes(sizes: list[int], before: int, gap: int) -> None:
    data = random.Random(before).randbytes(before + sum(sizes) + gap * len(sizes))
    lengths = np.array(sizes, np.int64)
    starts = before + np.cumsum(lengths + gap) - lengths - gap
    wanted = b"".join(data[at : at + size] for at, size in zip(starts, sizes, strict=True))
    for kind in (data, bytearray(data), memoryview(data)):
        assert joined_texts(kind, starts, lengths) == wanted
