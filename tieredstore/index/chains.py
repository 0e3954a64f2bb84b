"""The chains inside an index file: linking new items, and walking back from a slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.key_hashes import item_places
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    END_MAGIC,
    HEADER_BYTES,
    ITEM_BYTES,
    SLOT_BYTES,
    item_position,
    seconds_after_begin_many,
)
from tieredstore.index.rows import IndexColumns
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

VECTOR_ITEMS_MIN: Final = 16
"""From here on numpy links a batch faster than a loop does (measured)."""

SORT_BITS: Final = 16

# The codec checks what it packs and unpacks, which would triple the cost of a lookup or a put.
_HEADER: Final = Struct(">iqqii")
_SLOT: Final = Struct(">i")
ITEM: Final = Struct(">iiiqiii")
_WORDS: Final = ITEM_BYTES // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedItems:
    """What a batch changes: items are written first, then the header, then the slots.

    In this order a reader in another thread never meets a slot whose item is not counted yet.
    """

    items: memoryview
    slots: NDArray[np.int64]
    newest: NDArray[np.int64]
    used_slots: int  # how many of the slots were empty


def link_items(
    data: mmap, columns: IndexColumns, *, first_item: int, begin_timestamp: int, slot_count: int
) -> LinkedItems:
    """Chain the items inside the batch and to the file; the bytes are those of single puts."""
    hashes, slots = item_places(columns.key_hashes, slot_count)
    words = np.empty((len(columns), _WORDS), ">i4")
    words[:, 0] = hashes
    words[:, 1] = _wrapped(columns.topic_ids)
    words[:, 2] = columns.queue_ids
    words[:, 3] = columns.log_offsets >> 32
    words[:, 4] = columns.log_offsets.astype(np.int32)
    words[:, 5] = columns.message_bytes
    words[:, 6] = _seconds(columns.store_timestamps, begin_timestamp)
    previous = words[:, 7]
    if len(columns) >= VECTOR_ITEMS_MIN:
        touched, newest, fresh = _link_many(data, previous, slots, first_item, slot_count)
    else:
        touched, newest, fresh = _link_few(data, previous, slots, first_item)
    return LinkedItems(
        items=words.reshape(-1).view(np.uint8).data,
        slots=touched,
        newest=newest,
        used_slots=fresh,
    )


def _wrapped(topic_ids: NDArray[np.int64] | int) -> NDArray[np.int32] | int:
    """The lower 32 bits of the topics' numbers."""
    if isinstance(topic_ids, int):
        return ((topic_ids & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
    return topic_ids.astype(np.int32)


def _seconds(timestamps: NDArray[np.int64], begin: int) -> NDArray[np.int64] | NDArray[np.int32]:
    least = timestamps.min()
    if least >= begin and timestamps.max() - begin <= 1000 * INT32_MAX:
        after: NDArray[np.int64] = (timestamps - begin) // 1000
        return after
    return seconds_after_begin_many(timestamps, begin_timestamp=begin)


_Linked = tuple[NDArray[np.int64], NDArray[np.int64], int]


def _link_many(
    data: mmap,
    previous: NDArray[Any],
    slots: NDArray[np.int32],
    first_item: int,
    slot_count: int,
) -> _Linked:
    count = len(slots)
    order = _order_by_slot(slots, slot_count)  # and within a slot as they came
    in_order = slots[order]
    numbers = order + first_item
    starts = np.empty(count, np.bool_)
    starts[0] = True
    np.not_equal(in_order[1:], in_order[:-1], out=starts[1:])
    touched = in_order[starts].astype(np.int64)
    heads = view_heads(data, slot_count)[touched].astype(np.int64)
    heads[(heads < 0) | (heads >= first_item)] = 0
    chained = np.empty(count, np.int64)
    chained[1:] = numbers[:-1]
    chained[starts] = heads
    previous[order] = chained
    ends = np.empty(count, np.bool_)
    ends[-1] = True
    ends[:-1] = starts[1:]
    return touched, numbers[ends], int(np.count_nonzero(heads == 0))


def _order_by_slot(slots: NDArray[np.int32], slot_count: int) -> NDArray[np.int64]:
    """A stable order. Numbers of 16 bits are sorted by radix, several times as fast."""
    if slot_count <= 1 << SORT_BITS:
        return np.argsort(slots.astype(np.uint16), kind="stable")
    low = np.argsort(slots.astype(np.uint16), kind="stable")
    high = (slots >> SORT_BITS).astype(np.uint16)[low]
    return low[np.argsort(high, kind="stable")]


def _link_few(
    data: mmap, previous: NDArray[Any], slots: NDArray[np.int32], first_item: int
) -> _Linked:
    heads: dict[int, int] = {}
    fresh = 0
    for at, slot in enumerate(slots.tolist()):
        head = heads.get(slot)
        if head is None:
            head = read_head(data, slot)
            if not 0 < head < first_item:
                head = 0
                fresh += 1
        previous[at] = head
        heads[slot] = first_item + at
    touched = np.fromiter(heads.keys(), np.int64, len(heads))
    return touched, np.fromiter(heads.values(), np.int64, len(heads)), fresh


def store_slots(data: mmap, linked: LinkedItems, *, slot_count: int) -> None:
    if len(linked.slots) < VECTOR_ITEMS_MIN:
        for slot, item in zip(linked.slots.tolist(), linked.newest.tolist(), strict=True):
            at = HEADER_BYTES + SLOT_BYTES * slot
            data[at : at + _SLOT.size] = _SLOT.pack(item)
    else:
        view_heads(data, slot_count)[linked.slots] = linked.newest


def store_header(
    data: mmap, *, begin: int, end: int, used_slots: int, items: int, capacity: int
) -> None:
    magic = END_MAGIC if items + 1 == capacity else BEGIN_MAGIC
    # In one copy: `pack_into` writes byte by byte, and a kill would leave half a number.
    data[:HEADER_BYTES] = _HEADER.pack(magic, begin, end, used_slots, items)


def view_heads(data: mmap, slot_count: int) -> NDArray[np.int32]:
    """The first halves of all slots, in place."""
    halves: NDArray[Any] = np.frombuffer(data, ">i4", 2 * slot_count, HEADER_BYTES)
    return halves[::2]


def read_head(data: mmap, slot: int) -> int:
    item: int = _SLOT.unpack_from(data, HEADER_BYTES + SLOT_BYTES * slot)[0]
    return item


def walk(
    data: mmap,
    head: int,
    *,
    item_count: int,
    slot_count: int,
    key_hash: int,
    window: tuple[int, int],
    path: str,
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Numbers and fields of the items of a chain that match, newest first.

    A chain always leads to smaller numbers: one that does not is damage, not an endless walk.
    """
    first, last = window
    items = item_position(0, slot_count=slot_count)
    unpack = ITEM.unpack_from
    item, above = head, min(item_count, INT32_MAX) + 1
    while item > 0:
        if item >= above:
            reason = f"item {item} of {item_count} follows item {above}"
            raise SegmentCorruptError(path, reason, position=items + ITEM_BYTES * item)
        fields = unpack(data, items + ITEM_BYTES * item)
        if fields[0] == key_hash and first <= fields[5] <= last:
            yield item, fields
        above, item = item, fields[6]
