"""The local key index: the broker's files, the printed files, round trips, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import GOLDEN, expected
from tests.codec.values import COUNT32, INT32, INT64
from tieredstore.codec import local_index
from tieredstore.codec.local_index import LocalIndexHeader
from tieredstore.model.errors import SegmentCorruptError

SLOTS, CAPACITY = 101, 400
FILES: list[dict[str, Any]] = expected("local-clean.expect-state.json")["indexFiles"]
PATHS = [GOLDEN / "local-clean" / "index" / row["file"] for row in FILES]

HEADERS = st.builds(
    LocalIndexHeader,
    begin_timestamp=INT64,
    end_timestamp=INT64,
    begin_log_offset=INT64,
    end_log_offset=INT64,
    used_slot_count=COUNT32,
    next_item=st.integers(1, 2**31 - 1),
)

PRINTED = (
    "0000018bcfe568000000018bcff4aa40000000000000006400000000000002bc00000004000000080000000500000007"
    "000000000000000000000000000000000000000600000002000000000000000000000000000000000000000000000000"
    "0000000000013ff20000000000000064000000000000000000013ff300000000000000c8000000010000000000013ff2"
    "000000000000012c000000020000000100013ffc000000000000019000000000000000030000000000000000000001f4"
    "000000070000000000013ff20000000000000258000003e7000000040001400b00000000000002bc000003e800000000"
)
ROLLED = (
    "0000018bcff4bdc80000018bcff4c3a4000000000000038400000000000003e8000000010000000300000000"
    "0000000000000000000000000000000000000000000000020000000000000000000000000000000000000000"
    "00000000000000000000000000013ff20000000000000384000000050000000000013ff200000000000003e8"
    "0000000100000001"
) + "00" * 100


def test_the_printed_file_is_read_item_by_item() -> None:
    data = bytes.fromhex(PRINTED)
    header = local_index.decode_header(data, slot_count=10, item_capacity=8)
    assert header == LocalIndexHeader(
        begin_timestamp=1700000000000,
        end_timestamp=1700001000000,
        begin_log_offset=100,
        end_log_offset=700,
        used_slot_count=4,
        next_item=8,
    )
    slots = [local_index.decode_slot(data, 40 + 4 * slot) for slot in range(10)]
    assert slots == [5, 7, 0, 0, 0, 0, 6, 2, 0, 0]
    assert [
        local_index.decode_item(data, local_index.item_position(number, slot_count=10))
        for number in range(1, header.next_item)
    ] == [
        (81906, 100, 0, 0),
        (81907, 200, 1, 0),
        (81906, 300, 2, 1),
        (81916, 400, 0, 3),
        (0, 500, 7, 0),
        (81906, 600, 999, 4),
        (81931, 700, 1000, 0),
    ]


@pytest.mark.parametrize(
    ("path", "row"), list(zip(PATHS, FILES, strict=True)), ids=lambda value: str(value)[-17:]
)
def test_every_golden_header_is_read_and_written_again(path: Path, row: dict[str, Any]) -> None:
    data = path.read_bytes()
    assert len(data) == row["size"]
    assert len(data) == local_index.file_bytes(slot_count=SLOTS, item_capacity=CAPACITY)
    header = local_index.decode_header(data, slot_count=SLOTS, item_capacity=CAPACITY)
    assert local_index.encode_header(header) == data[:40]
    assert (header.begin_timestamp, header.end_timestamp, header.begin_log_offset) == (
        row["beginTimestamp"],
        row["endTimestamp"],
        row["beginPhyOffset"],
    )
    assert (header.end_log_offset, header.used_slot_count, header.next_item) == (
        row["endPhyOffset"],
        row["usedSlots"],
        row["indexCount"],
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_golden_slot_and_item_is_read(path: Path) -> None:
    data = path.read_bytes()
    header = local_index.decode_header(data)
    start = local_index.item_position(1, slot_count=SLOTS)
    items = np.frombuffer(data, local_index.ITEM_DTYPE, header.item_count, start)
    assert items.tolist() == [
        local_index.decode_item(data, local_index.item_position(number, slot_count=SLOTS))
        for number in range(1, header.next_item)
    ]
    slots = [local_index.decode_slot(data, 40 + 4 * slot) for slot in range(SLOTS)]
    assert sum(slot > 0 for slot in slots) == header.used_slot_count


@given(HEADERS)
def test_headers_round_trip(header: LocalIndexHeader) -> None:
    assert local_index.decode_header(local_index.encode_header(header)) == header


@given(INT32)
def test_slots_round_trip(item: int) -> None:
    assert local_index.decode_slot(b"xx" + local_index.encode_slot(item), 2) == item


@pytest.mark.parametrize(
    ("timestamp", "begin", "seconds"),
    [
        (1999, 1000, 0),
        (2000, 1000, 1),
        (999, 1000, 0),
        (5000, 0, 0),
        (5000, -5, 0),
        (2**62, 1, 2**31 - 1),
    ],
)
def test_times_are_whole_seconds_and_never_negative(
    timestamp: int, begin: int, seconds: int
) -> None:
    assert local_index.seconds_after_begin(timestamp, begin_timestamp=begin) == seconds


def test_an_item_stands_for_the_start_of_its_second() -> None:
    assert local_index.item_timestamp(3, begin_timestamp=1700000000123) == 1700000003123


def test_an_unused_file_has_no_items() -> None:
    header = local_index.decode_header(bytes(40), slot_count=10, item_capacity=8)
    assert header == LocalIndexHeader()
    assert header.item_count == 0


@pytest.mark.parametrize(
    ("header", "position"),
    [
        ({"used_slot_count": -1}, 32),
        ({"used_slot_count": 11}, 32),
        ({"next_item": -1}, 36),
        ({"next_item": 9}, 36),
    ],
)
def test_counts_beyond_the_capacity_are_damage(header: dict[str, int], position: int) -> None:
    data = local_index.encode_header(LocalIndexHeader(**header))
    with pytest.raises(SegmentCorruptError) as caught:
        local_index.decode_header(data, slot_count=10, item_capacity=8, path="index")
    assert caught.value.position == position


def test_cut_files_are_damage() -> None:
    data = bytes.fromhex(PRINTED)
    for size in range(40):
        with pytest.raises(SegmentCorruptError):
            local_index.decode_header(data[:size])
    for position in (-1, -20, len(data) - 3, 2**70):
        with pytest.raises(SegmentCorruptError):
            local_index.decode_item(data, position)
        with pytest.raises(SegmentCorruptError):
            local_index.decode_slot(data, position)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="^next_item: "):
        local_index.encode_header(LocalIndexHeader(next_item=2**31))
    with pytest.raises(ValueError, match="^item: "):
        local_index.encode_slot(2**31)
