"""The parts of a footer: groups of slots, the tail, and a copy that is cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.index.store_kit import Shop, open_below
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    COMPACTED_SLOT_DTYPE,
    TieredIndexHeader,
    slot_position,
)
from tieredstore.driver.segment import Buffer
from tieredstore.index import footer
from tieredstore.index.compaction import fences_of_table
from tieredstore.index.footer import (
    BLOCK_BYTES,
    CHECKED,
    CRC32C,
    GROUP_BYTES,
    MAGIC,
    TRAILER_BYTES,
    UNCHECKED,
    Footer,
    Groups,
    NearFooter,
    checksum,
    decode_tail,
    encode_fences,
    encode_tail,
    find_groups,
    groups_of,
)
from tieredstore.index.footer_cache import FooterCache, FooterCopy, Origin
from tieredstore.index.keys import TimeRange
from tieredstore.model.errors import SegmentCorruptError


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([GROUP_BYTES // 4] * 10, [0, 4, 8]),
        ([GROUP_BYTES // 4] * 8, [0, 4]),
        ([GROUP_BYTES] * 3, [0, 1, 2]),
        ([GROUP_BYTES + 1, 1, GROUP_BYTES + 1, 0, 0], [0, 1, 2, 3]),
        ([0, 0, 0], [0]),
        ([1], [0]),
    ],
)
def test_a_group_is_as_many_slots_as_one_read_takes(sizes: list[int], groups: list[int]) -> None:
    starts = np.cumsum([100, *sizes]).astype(np.int32)
    assert groups_of(starts, version=UNCHECKED).slots.tolist() == groups


def test_a_copy_of_a_footer_that_lacks_its_begin_is_damage(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"] * 5)
    shop.index.seal()
    data = bytes(shop.uploaded_bytes())
    size = decode_tail(data, file_bytes=len(data)).footer_bytes
    for cut in (0, 1, 28):
        copy: Buffer = data[len(data) - size + cut :]

        def read(position: int, length: int, copy: Buffer = copy) -> bytes:
            return bytes(copy[position : position + length])

        if cut:
            with pytest.raises(SegmentCorruptError, match="cut off|another checksum"):
                NearFooter.open(read, size - cut, file_bytes=len(data), path="copy")
        else:
            near = NearFooter.open(read, size, file_bytes=len(data), path="copy")
            assert near.footer.footer_bytes == size


FOOTER = Footer(
    slot_count=4,
    item_count=3,
    used_slot_count=2,
    group_count=2,
    filter_blocks=0,
    begin_timestamp=1,
    end_timestamp=2,
    times=TimeRange(first=1, last=2),
    first_slots=[0],
)
FIRST, END = FOOTER.items_position, FOOTER.position


@pytest.mark.parametrize(
    ("edges", "is_sound"),
    [
        ([FIRST, FIRST + 28, END], True),
        ([FIRST, FIRST + 29, END], False),
        ([FIRST + 1, FIRST + 29, END], False),
        ([FIRST - 28, FIRST + 28, END], False),
        ([FIRST, END + 28, END], False),
        ([FIRST + 28, FIRST, END], False),
    ],
)
def test_a_group_is_whole_items_of_the_file(edges: list[int], is_sound: bool) -> None:
    groups = Groups(np.array([0, 2]), np.array(edges), CHECKED)
    (block,) = encode_fences(groups)
    if is_sound:
        (found,) = find_groups(block, 1, FOOTER, path="index", position=0)
        assert (found.start, found.end) == (FIRST, FIRST + 28)
    else:
        with pytest.raises(SegmentCorruptError, match="a group from"):
            find_groups(block, 1, FOOTER, path="index", position=0)


@pytest.mark.parametrize("fences", [1, 42, 1000])
def test_a_tail_that_has_no_room_for_its_first_slots_is_damage(fences: int) -> None:
    """Even if its checksum is right."""
    total = BLOCK_BYTES * fences + TRAILER_BYTES
    body = footer._BODY.pack(total, 4, 3, 2, 2, fences, 0, 0, 1, 2, 1, 2, CRC32C)
    tail = body + footer._END.pack(checksum(body), CHECKED, MAGIC)
    with pytest.raises(SegmentCorruptError, match="another checksum"):
        decode_tail(tail, file_bytes=END + total)


@pytest.mark.parametrize("more", [0, 28])
def test_a_footer_is_no_longer_than_what_it_has(more: int) -> None:
    """Even if its checksum is right."""
    total = FOOTER.footer_bytes + more
    head = bytes(4).ljust(total - BLOCK_BYTES - TRAILER_BYTES, b"\0")
    body = footer._BODY.pack(total, 4, 3, 2, 2, 1, 0, 0, 1, 2, 1, 2, CRC32C)
    tail = head + body + footer._END.pack(checksum(head + body), CHECKED, MAGIC)
    if more:
        with pytest.raises(SegmentCorruptError, match="a footer of another file"):
            decode_tail(tail, file_bytes=END + total)
    else:
        assert decode_tail(tail, file_bytes=END + total).footer_bytes == total


def test_a_footer_without_a_group_is_damage() -> None:
    """Even if its checksum is right, and the lengths add up."""
    body = footer._BODY.pack(TRAILER_BYTES, 4, 3, 2, 0, 0, 0, 0, 1, 2, 1, 2, CRC32C)
    tail = body + footer._END.pack(checksum(body), CHECKED, MAGIC)
    with pytest.raises(SegmentCorruptError, match="another checksum"):
        decode_tail(tail, file_bytes=END + TRAILER_BYTES)


@pytest.mark.parametrize(("used", "is_sound"), [(-1, False), (0, True), (4, True), (5, False)])
def test_no_more_slots_are_in_use_than_there_are(used: int, is_sound: bool) -> None:
    """The count may be 0, or all slots of the file."""
    tail = encode_tail(replace(FOOTER, used_slot_count=used))
    file_bytes = FOOTER.position + FOOTER.footer_bytes
    if is_sound:
        assert decode_tail(tail, file_bytes=file_bytes).used_slot_count == used
    else:
        with pytest.raises(SegmentCorruptError, match="another checksum"):
            decode_tail(tail, file_bytes=file_bytes)


@pytest.mark.parametrize(
    ("seconds", "known"), [(0, True), ((1 << 30) - 2, True), ((1 << 30) - 1, False)]
)
def test_so_much_disorder_that_the_field_cannot_say_it_is_unknown(
    seconds: int, known: bool
) -> None:
    tail = encode_tail(replace(FOOTER, disorder_seconds=seconds))
    found = decode_tail(tail, file_bytes=FOOTER.position + FOOTER.footer_bytes)
    assert found.disorder_seconds == (seconds if known else None)


def test_a_copy_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    cache = FooterCache(tmp_path / "footers", bytes_max=100)
    cache.load()
    copy = FooterCopy(cache)
    assert not copy.keep(Origin(0, 1, 100))  # nothing is written yet
    copy.write(b"abc")
    assert [path.read_bytes() for path in cache.folder.iterdir()] == [b"abc"]
    assert len(open_below(tmp_path)) == 1
    copy.close()
    assert not open_below(tmp_path)
    assert not list(cache.folder.iterdir())
    copy.write(b"too late")
    assert not copy.keep(Origin(0, 1, 100))


def test_a_folder_that_cannot_be_made_costs_the_copy_only(tmp_path: Path) -> None:
    (tmp_path / "footers").write_bytes(b"a file")
    copy = FooterCopy(FooterCache(tmp_path / "footers", bytes_max=100))
    copy.write(b"abc")
    assert not copy.keep(Origin(0, 1, 100))
    copy.close()  # does not raise


def test_no_fences_are_made_of_a_table_that_leaves_items_out() -> None:
    slots = np.zeros(4, COMPACTED_SLOT_DTYPE)
    slots["items_bytes"] = [28, 0, 56, 0]
    ends = np.cumsum(slots["items_bytes"].astype(np.int64))
    slots["position"] = slot_position(4) + ends - slots["items_bytes"]
    table = slots.tobytes()

    def read(position: int, length: int) -> bytes:
        start = position - slot_position(0)
        return table[start : start + length]

    times = TimeRange(first=1, last=2)
    for item_count in (2, 3, 4):
        header = TieredIndexHeader(
            magic=BEGIN_MAGIC,
            begin_timestamp=1,
            end_timestamp=2,
            used_slot_count=2,
            item_count=item_count,
        )
        if item_count == 3:
            assert fences_of_table(read, header, times, slot_count=4, path="index")
        else:
            with pytest.raises(SegmentCorruptError, match="do not add up"):
                fences_of_table(read, header, times, slot_count=4, path="index")
