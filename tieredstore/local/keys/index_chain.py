"""The chains inside an index file: linking new items, walking from the newest item of a slot back.

What lives here: functions over the mapped bytes of one file. Nothing that opens, rolls or counts
files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import local_slot
from tieredstore.codec.local_index import (
    HEADER_BYTES,
    ITEM_BYTES,
    ITEM_DTYPE,
    SLOT_BYTES,
    SLOT_DTYPE,
    LocalIndexHeader,
    item_position,
    seconds_after_begin,
)
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

VECTOR_ITEMS_MIN: Final = 24
"""From here on numpy links a batch faster than a loop does (measured)."""

CLOCK_SLACK_MS: Final = 600_000
"""How far a store timestamp may lie below an earlier one: the clock of a broker may be set back."""

# The codec checks what it packs and unpacks, which would triple the cost of a lookup or a put.
_HEADER: Final = Struct(">qqqqii")
_SLOT: Final = Struct(">i")
_ITEM: Final = Struct(">iqii")


@dataclass(slots=True, kw_only=True)  # frozen ones take three times as long to make
class ItemColumns:
    """Keys to be put, in order: one entry a key."""

    key_hashes: NDArray[np.int32]
    log_offsets: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.key_hashes)

    def part(self, start: int, stop: int | None = None) -> ItemColumns:
        where = slice(start, stop)
        return ItemColumns(
            key_hashes=self.key_hashes[where],
            log_offsets=self.log_offsets[where],
            store_timestamps=self.store_timestamps[where],
        )


@dataclass(slots=True, kw_only=True)
class LinkedItems:
    """What a batch changes in a file: written items first, then the header, then the slots.

    In this order a reader in another thread never meets a slot whose item is not there yet.
    """

    items: bytes
    slots: NDArray[np.int64]
    newest: NDArray[np.int64]
    header: LocalIndexHeader


def link_items(
    data: mmap, header: LocalIndexHeader, columns: ItemColumns, *, slot_count: int
) -> LinkedItems:
    """Chain the items inside the batch and to the file; the bytes are those of single puts."""
    many = len(columns) >= VECTOR_ITEMS_MIN
    link = _link_many if many else _link_few
    items, slots, newest, fresh = link(data, header, columns, slot_count)
    first = header.next_item <= 1
    return LinkedItems(
        items=items,
        slots=slots,
        newest=newest,
        header=LocalIndexHeader(
            begin_timestamp=int(columns.store_timestamps[0]) if first else header.begin_timestamp,
            end_timestamp=int(columns.store_timestamps[-1]),
            begin_log_offset=int(columns.log_offsets[0]) if first else header.begin_log_offset,
            end_log_offset=int(columns.log_offsets[-1]),
            used_slot_count=header.used_slot_count + fresh,
            next_item=header.next_item + len(columns),
        ),
    )


_Linked = tuple[bytes, NDArray[np.int64], NDArray[np.int64], int]


def _link_many(
    data: mmap, header: LocalIndexHeader, columns: ItemColumns, slot_count: int
) -> _Linked:
    count = len(columns)
    slots = (columns.key_hashes % np.int32(slot_count)).astype(np.int64)
    order = np.argsort(slots, kind="stable")  # by slot, and within a slot as they came
    in_order = slots[order]
    numbers = order + header.next_item
    starts = np.empty(count, np.bool_)
    starts[0] = True
    np.not_equal(in_order[1:], in_order[:-1], out=starts[1:])
    touched = in_order[starts]

    heads = _view_slots(data, slot_count)[touched].astype(np.int64)
    heads[(heads < 0) | (heads > numbers[starts])] = 0
    previous = np.empty(count, np.int64)
    previous[1:] = numbers[:-1]
    previous[starts] = heads
    items = np.empty(count, ITEM_DTYPE)
    items["key_hash"] = columns.key_hashes
    items["log_offset"] = columns.log_offsets
    items["seconds"] = _seconds(header, columns.store_timestamps)
    items["previous"][order] = previous

    ends = np.empty(count, np.bool_)
    ends[-1] = True
    ends[:-1] = starts[1:]
    return items.tobytes(), touched, numbers[ends], int(np.count_nonzero(heads == 0))


def _seconds(header: LocalIndexHeader, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    first = header.next_item <= 1
    begin = int(timestamps[0]) if first else header.begin_timestamp
    if begin > 0:
        after = np.maximum(timestamps, begin) - begin
        seconds: NDArray[np.int64] = np.minimum(after // 1000, INT32_MAX)
    else:
        seconds = np.zeros(len(timestamps), np.int64)
    if first:  # the first item of a rolled file counts from the end of the file before
        seconds[0] = seconds_after_begin(int(timestamps[0]), begin_timestamp=header.begin_timestamp)
    return seconds


def _link_few(
    data: mmap, header: LocalIndexHeader, columns: ItemColumns, slot_count: int
) -> _Linked:
    heads: dict[int, int] = {}
    items = bytearray()
    number, begin, fresh = header.next_item, header.begin_timestamp, 0
    rows = zip(
        columns.key_hashes.tolist(),
        columns.log_offsets.tolist(),
        columns.store_timestamps.tolist(),
        strict=True,
    )
    for key_hash, log_offset, timestamp in rows:
        slot = key_hash % slot_count
        head = heads.get(slot)
        if head is None:
            head = read_slot(data, slot)
        if not 0 < head <= number:
            head = 0
            fresh += 1
        seconds = seconds_after_begin(timestamp, begin_timestamp=begin)
        items += _ITEM.pack(key_hash, log_offset, seconds, head)
        if number <= 1:
            begin = timestamp
        heads[slot] = number
        number += 1
    slots = np.fromiter(heads.keys(), np.int64, len(heads))
    return bytes(items), slots, np.fromiter(heads.values(), np.int64, len(heads)), fresh


def store_header(data: mmap, header: LocalIndexHeader) -> None:
    _HEADER.pack_into(
        data,
        0,
        header.begin_timestamp,
        header.end_timestamp,
        header.begin_log_offset,
        header.end_log_offset,
        header.used_slot_count,
        header.next_item,
    )


def store_slots(data: mmap, linked: LinkedItems, *, slot_count: int) -> None:
    if len(linked.slots) < VECTOR_ITEMS_MIN:
        for slot, item in zip(linked.slots.tolist(), linked.newest.tolist(), strict=True):
            _SLOT.pack_into(data, HEADER_BYTES + SLOT_BYTES * slot, item)
    else:
        _view_slots(data, slot_count)[linked.slots] = linked.newest


def _view_slots(data: mmap, slot_count: int) -> NDArray[np.int32]:
    return np.frombuffer(data, SLOT_DTYPE, slot_count, HEADER_BYTES)


def read_slot(data: mmap, slot: int) -> int:
    item: int = _SLOT.unpack_from(data, HEADER_BYTES + SLOT_BYTES * slot)[0]
    return item


def read_item(data: mmap, item: int, *, slot_count: int) -> tuple[int, int, int, int]:
    """Key hash, log offset, seconds, previous item."""
    values: tuple[int, int, int, int] = _ITEM.unpack_from(
        data, item_position(item, slot_count=slot_count)
    )
    return values


def select_like_java(
    data: mmap,
    header: LocalIndexHeader,
    item: int,
    *,
    key_hash: int,
    begin: int,
    end: int,
    room: int,
    slot_count: int,
) -> list[int]:
    """The log offsets that Java finds from this item back, newest first, at most `room`.

    A link that does not lead to an older item ends the walk: with Java only one to the item itself
    does, and a damaged file may keep it walking for ever.
    """
    found: list[int] = []
    base = item_position(0, slot_count=slot_count)
    if header.next_item <= 1 or not 0 < item < header.next_item:
        return found
    while len(found) < room:
        stored, log_offset, seconds, previous = _ITEM.unpack_from(data, base + ITEM_BYTES * item)
        if seconds < 0:
            break
        timestamp = header.begin_timestamp + 1000 * seconds
        if stored == key_hash and begin <= timestamp <= end:
            found.append(log_offset)
        if not 0 < previous < item or timestamp < begin:
            break
        item = previous
    return found


def walk_candidates(
    data: mmap,
    header: LocalIndexHeader,
    item: int,
    *,
    key_hash: int,
    begin: int,
    end: int,
    slot_count: int,
    path: str,
) -> Iterator[int]:
    """Every log offset whose message may have been stored within begin to end, newest first.

    An item stands for the second that starts at its time; one of 0 seconds also for all times
    before the file's begin, which are stored as 0. The first item was stored at the begin itself,
    whatever it says. Nothing older follows once a time lies below `begin` by more than the slack.

    Nothing in the file carries a checksum. SegmentCorruptError where the chain shows that: a link
    to no older item, an item of another slot, a negative time, a place that the header does not
    span. What stands before it in the chain cannot be found then.
    """
    base = item_position(0, slot_count=slot_count)
    file_begin = header.begin_timestamp
    slot = local_slot(key_hash, slot_count)
    first, last = header.begin_log_offset, header.end_log_offset
    if not 0 <= item < header.next_item:
        raise _broken(path, HEADER_BYTES + SLOT_BYTES * slot, f"a slot names item {item}")
    if not item:
        return
    while True:
        at = base + ITEM_BYTES * item
        stored, log_offset, seconds, previous = _ITEM.unpack_from(data, at)
        if stored < 0 or local_slot(stored, slot_count) != slot:
            raise _broken(path, at, f"item {item} is not of the slot that leads to it")
        if seconds < 0 or not first <= log_offset <= last or not 0 <= previous <= item:
            raise _broken(path, at, f"item {item} says what cannot be true")
        earliest = latest = file_begin
        if item > 1:
            earliest = file_begin + 1000 * seconds
            latest = earliest + 999
            if seconds == 0:
                earliest -= CLOCK_SLACK_MS
            elif seconds == INT32_MAX:
                latest = max(latest, end)
        if file_begin <= 0:  # no times were kept
            earliest, latest = begin, end
        if stored == key_hash and latest >= begin and earliest <= end:
            yield log_offset
        if not 0 < previous < item or latest + CLOCK_SLACK_MS < begin:
            return
        item = previous


def _broken(path: str, position: int, reason: str) -> SegmentCorruptError:
    return SegmentCorruptError(path, reason, position=position)
