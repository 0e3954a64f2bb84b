"""The key index of the tier: the broker's files, the printed values, round trips, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.codec.encoders import encode_compacted_item, encode_compacted_slot
from tests.codec.golden_files import BROKER, CLUSTER, GOLDEN, expected, sha256
from tests.codec.values import COUNT32, INT64
from tieredstore.codec import tiered_index
from tieredstore.codec.names import index_queue_path
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    END_MAGIC,
    CompactedItem,
    CompactedSlot,
    TieredIndexHeader,
)

POSIX: dict[str, Any] = expected("tier-posix.expect-index.json")
INDEX: dict[str, Any] = expected("tier-index.expect.json")
UPLOADED: list[tuple[str, dict[str, Any], int]] = [
    *(("tier-posix", row, 64) for row in POSIX["uploaded"]),
    *(("tier-index", row, 97) for row in INDEX["segments"]),
]
WRITTEN: list[tuple[str, int, int]] = [
    ("tier-posix/store/tiered_index_file/1795171586054", 64, 300),
    ("tier-index/store/tiered_index_file/1750014400271", 97, 1300),
    ("tier-index/local-before-upload/1750000000123", 97, 1300),
    ("tier-index/local-before-upload/1750003600160", 97, 1300),
]

HEADERS = st.builds(
    TieredIndexHeader,
    magic=st.sampled_from([BEGIN_MAGIC, END_MAGIC]),
    begin_timestamp=INT64,
    end_timestamp=INT64,
    used_slot_count=COUNT32,
    item_count=COUNT32,
)


def segment_path(root: str, name: str) -> Path:
    return GOLDEN / root / "tiered" / CLUSTER / index_queue_path(BROKER) / "INDEX" / name


def items_by_slot(data: bytes, slot_count: int) -> list[tuple[int, CompactedItem]]:
    """Every item of an uploaded file with its slot, in file order."""
    found: list[tuple[int, CompactedItem]] = []
    for slot in range(slot_count):
        place = tiered_index.decode_compacted_slot(data, tiered_index.slot_position(slot))
        items = data[place.position : place.position + place.items_bytes]
        rows = tiered_index.view_compacted_items(items).tolist()
        found.extend((slot, CompactedItem._make(row)) for row in rows)
    return found


def newest_items(data: bytes, slot_count: int) -> NDArray[np.int32]:
    """The item that each slot of a file before upload names."""
    return np.frombuffer(data, ">i4", 2 * slot_count, 28)[::2]


@pytest.mark.parametrize(("root", "row", "slot_count"), UPLOADED)
def test_every_uploaded_file_is_read_and_written_again(
    root: str, row: dict[str, Any], slot_count: int
) -> None:
    data = segment_path(root, row["fileName"]).read_bytes()
    assert sha256(data) == row["sha256"]
    header = tiered_index.decode_header(data, slot_count=slot_count)
    wanted: dict[str, Any] = row["content"] if "content" in row else row["header"]
    assert header == TieredIndexHeader(
        magic=END_MAGIC,
        begin_timestamp=wanted["beginTimestamp"],
        end_timestamp=wanted["endTimestamp"],
        used_slot_count=wanted["usedSlots"],
        item_count=wanted["itemCount"],
    )
    size = tiered_index.compacted_file_bytes(slot_count=slot_count, item_count=header.item_count)
    assert len(data) == size
    found = items_by_slot(data, slot_count)
    assert len(found) == header.item_count
    assert len({slot for slot, _ in found}) == header.used_slot_count
    if "content" in row:
        assert [[slot, *item] for slot, item in found] == row["content"]["items"]
    start = tiered_index.slot_position(slot_count)
    view = tiered_index.view_compacted_items(memoryview(data)[start:])
    assert view.tolist() == [item for _, item in found]
    slots = np.frombuffer(data, tiered_index.COMPACTED_SLOT_DTYPE, slot_count, 28).tolist()
    again = [
        tiered_index.encode_header(header),
        *(encode_compacted_slot(position=at, items_bytes=size) for at, size in slots),
        *(encode_compacted_item(item) for _, item in found),
    ]
    assert b"".join(again) == data


@pytest.mark.parametrize(("name", "slot_count", "item_capacity"), WRITTEN)
def test_every_file_before_upload_is_read_and_written_again(
    name: str, slot_count: int, item_capacity: int
) -> None:
    data = (GOLDEN / name).read_bytes()
    size = tiered_index.file_bytes(slot_count=slot_count, item_capacity=item_capacity)
    assert len(data) == size
    header = tiered_index.decode_header(data, slot_count=slot_count, item_capacity=item_capacity)
    assert header.begin_timestamp == int(Path(name).name)
    assert tiered_index.encode_header(header) == data[:28]
    start = tiered_index.item_position(1, slot_count=slot_count)
    view = tiered_index.view_items(data, slot_count=slot_count, item_count=header.item_count)
    assert view.tobytes() == data[start : start + 32 * header.item_count]
    assert sum(newest_items(data, slot_count) > 0) == header.used_slot_count


@pytest.mark.parametrize(
    ("name", "slot_count", "row"), [(WRITTEN[0][0], 64, POSIX["local"][0]["content"])]
)
def test_the_items_before_upload_are_those_java_listed(
    name: str, slot_count: int, row: dict[str, Any]
) -> None:
    data = (GOLDEN / name).read_bytes()
    header = tiered_index.decode_header(data)
    assert (len(data), header.magic) == (row["fileSize"], row["magic"])
    assert header.end_timestamp == row["endTimestamp"]
    assert (header.used_slot_count, header.item_count) == (row["usedSlots"], row["itemCount"])
    view = tiered_index.view_items(data, slot_count=slot_count, item_count=header.item_count)
    assert [list(item) for item in view.tolist()] == row["items"]


@pytest.mark.parametrize("name", ["1750000000123", "1750003600160"])
def test_slot_chains_lead_to_the_uploaded_order(name: str) -> None:
    data = (GOLDEN / "tier-index" / "local-before-upload" / name).read_bytes()
    row = next(row for row in INDEX["segments"] if row["beginTimestamp"] == int(name))
    uploaded = items_by_slot(segment_path("tier-index", row["fileName"]).read_bytes(), 97)
    items = tiered_index.view_items(
        data, slot_count=97, item_count=tiered_index.decode_header(data).item_count
    ).tolist()
    chained = []
    for slot, newest in enumerate(newest_items(data, 97).tolist()):
        number = newest
        while number > 0:
            *item, number = items[number - 1]
            chained.append((slot, CompactedItem._make(item)))
    assert chained == uploaded


def test_every_golden_item_lies_in_the_slot_of_its_hash() -> None:
    for row in POSIX["uploaded"]:
        data = segment_path("tier-posix", row["fileName"]).read_bytes()
        for slot, item in items_by_slot(data, 64):
            assert abs(item.key_hash) % 64 == slot


def test_the_printed_values_are_reproduced() -> None:
    begin = 1700000000000
    header = TieredIndexHeader(
        begin_timestamp=begin, end_timestamp=begin + 7500, used_slot_count=4, item_count=7
    )
    printed = "bcc502890000018bcfe568000000018bcfe5854c0000000400000007"
    assert tiered_index.encode_header(header).hex() == printed
    item = "62b2f65a000000000000000300000000000002e20000007bfffffffe00000000"
    data = bytes(28 + 8 * 5 + 32) + bytes.fromhex(item)
    view = tiered_index.view_items(data, slot_count=5, item_count=1)
    assert view.tolist() == [(1655895642, 0, 3, 738, 123, -2, 0)]
    assert tiered_index.slot_position(5) == 0x44
    assert encode_compacted_slot(position=0x7C, items_bytes=0x1C).hex() == ("0000007c0000001c")
    assert tiered_index.file_bytes(slot_count=5, item_capacity=20) == 708
    assert tiered_index.compacted_file_bytes(slot_count=5, item_count=7) == 264


def test_default_sizes_are_those_of_the_format_notes() -> None:
    slots, items = 5_000_000, 20_000_000
    assert tiered_index.file_bytes(slot_count=slots, item_capacity=items) == 680_000_028
    assert tiered_index.compacted_file_bytes(slot_count=slots, item_count=items - 1) == 600_000_000
    assert tiered_index.compacted_file_bytes(slot_count=slots, item_count=0) == 0


@given(HEADERS)
def test_headers_round_trip(header: TieredIndexHeader) -> None:
    assert tiered_index.decode_header(tiered_index.encode_header(header)) == header


@given(st.integers(0, 2**31 - 1), st.integers(0, (2**31 - 1) // 28))
def test_slots_round_trip(position: int, item_count: int) -> None:
    slot = CompactedSlot(position, 28 * item_count)
    data = b"x" + encode_compacted_slot(**slot._asdict())
    assert tiered_index.decode_compacted_slot(data, 1) == slot


@pytest.mark.parametrize(
    ("timestamp", "begin", "seconds"),
    [
        (1999, 1000, 0),
        (2000, 1000, 1),
        (1, 1000, 0),
        (0, 1000, -1),
        (-1500, 1000, -2),
        # Part of an IPv6 address is read as a timestamp: first 64 bits wrap, then 32, as in Java.
        (720619920815973931, 1795171532107, -77213031),
        (2**63 - 1, -1, 1511828489),
    ],
)
def test_times_are_cut_toward_zero_and_may_be_negative(
    timestamp: int, begin: int, seconds: int
) -> None:
    many = tiered_index.seconds_after_begin_many(
        np.array([begin, timestamp, begin], np.int64), begin_timestamp=begin
    )
    assert many.tolist() == [0, seconds, 0]


def test_an_item_stands_for_a_time_near_its_message() -> None:
    assert tiered_index.item_timestamp(-2, begin_timestamp=1700000000000) == 1699999998000


def test_files_of_old_brokers_are_recognised_by_their_length() -> None:
    header = TieredIndexHeader(begin_timestamp=1, used_slot_count=97, item_count=10)
    size = tiered_index.compacted_file_bytes(slot_count=97, item_count=10)
    for extra, legacy in [(0, False), (4, True), (5, True), (28, False), (32, True)]:
        found = tiered_index.is_legacy_compacted(header, file_bytes=size + extra, slot_count=97)
        assert found is legacy
    other = TieredIndexHeader(begin_timestamp=1, used_slot_count=96, item_count=10)
    assert not tiered_index.is_legacy_compacted(other, file_bytes=size + 5, slot_count=97)
    written = tiered_index.file_bytes(slot_count=97, item_capacity=1300)
    for extra, legacy in [(0, False), (16, True), (4, False)]:
        found = tiered_index.is_legacy_written(
            file_bytes=written + extra, slot_count=97, item_capacity=1300
        )
        assert found is legacy


def test_golden_files_are_not_taken_for_old_ones() -> None:
    for root, row, slot_count in UPLOADED:
        data = segment_path(root, row["fileName"]).read_bytes()
        header = tiered_index.decode_header(data)
        size = len(data)
        assert not tiered_index.is_legacy_compacted(header, file_bytes=size, slot_count=slot_count)
