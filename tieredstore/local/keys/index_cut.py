"""An index file cut back to its first items, as it was when it held no more.

What lives here: `cut_back` and `items_below`. Why and where to cut is `index_service`.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.local_index import (
    HEADER_BYTES,
    ITEM_BYTES,
    ITEM_DTYPE,
    LocalIndexHeader,
    encode_header,
    file_bytes,
    item_position,
)
from tieredstore.driver.durable import write_all
from tieredstore.local.keys.index_file import IndexFile
from tieredstore.model.errors import SegmentCorruptError

_BLOCK_ITEMS: Final = 1 << 18
_BLOCK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCut:
    """How much of a file stays, and the end the header gets."""

    item_count: int
    end_timestamp: int


def items_below(file: IndexFile, log_offset: int) -> int:
    """How many of the items lie below a log offset; they are in the order of the log."""
    numbers = range(1, file.header.next_item)
    return bisect_left(numbers, log_offset, key=file.log_offset_at)


def cut_back(path: Path, cut: IndexCut, *, slot_count: int, item_capacity: int) -> IndexFile:
    """Keep the first items, at least one, and forget the rest: the bytes of that moment, durable.

    Items are written once, so those that were durable at that moment still are. Slots and header
    are written again and again, so what a crash left of them is worth nothing: they are made anew
    from the items. May be repeated when interrupted. SegmentCorruptError if the items kept cannot
    be right: then the file is not changed.
    """
    size = file_bytes(slot_count=slot_count, item_capacity=item_capacity)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        held = os.fstat(descriptor).st_size
        shortest = item_position(cut.item_count + 1, slot_count=slot_count)  # interrupted here
        if held not in (size, shortest) or not 0 < cut.item_count < item_capacity:
            reason = f"{held} bytes of {size}, {cut.item_count} items of {item_capacity - 1}"
            raise SegmentCorruptError(str(path), reason, position=0)
        begin_timestamp = int.from_bytes(os.pread(descriptor, 8, 0), signed=True)
        slots, first, last = _read_items(descriptor, path, cut.item_count, slot_count)
        os.ftruncate(descriptor, shortest)
        os.ftruncate(descriptor, size)
        _store_slots(descriptor, size, slots)
        header = LocalIndexHeader(
            begin_timestamp=begin_timestamp,
            end_timestamp=cut.end_timestamp,
            begin_log_offset=first,
            end_log_offset=last,
            used_slot_count=int(np.count_nonzero(slots)),
            next_item=cut.item_count + 1,
        )
        write_all(descriptor, encode_header(header), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return IndexFile(path, header, slot_count=slot_count, item_capacity=item_capacity)


def _read_items(
    descriptor: int, path: Path, item_count: int, slot_count: int
) -> tuple[NDArray[np.int32], int, int]:
    """The slots that the items make, and the first and last log offset."""
    slots = np.zeros(slot_count, ">i4")
    first = last = -1
    for start in range(1, item_count + 1, _BLOCK_ITEMS):
        count = min(_BLOCK_ITEMS, item_count + 1 - start)
        position = item_position(start, slot_count=slot_count)
        items = np.frombuffer(os.pread(descriptor, count * ITEM_BYTES, position), ITEM_DTYPE)
        log_offsets = items["log_offset"].astype(np.int64)
        numbers = np.arange(start, start + count)
        wrong = (items["key_hash"] < 0) | (items["seconds"] < 0) | (items["previous"] < 0)
        wrong |= items["previous"] >= numbers
        wrong |= np.diff(log_offsets, prepend=max(last, 0)) < 0
        if wrong.any():
            at = position + ITEM_BYTES * int(wrong.argmax())
            raise SegmentCorruptError(str(path), "an index item cannot be right", position=at)
        # where a slot is named twice the last one stays, which is the newest
        slots[items["key_hash"].astype(np.int64) % slot_count] = numbers
        first = int(log_offsets[0]) if start == 1 else first
        last = int(log_offsets[-1])
    return slots, first, last


def _store_slots(descriptor: int, size: int, slots: NDArray[np.int32]) -> None:
    """Write only what differs, so that a sparse file stays sparse."""
    wanted = slots.tobytes()
    with mmap(descriptor, size, access=ACCESS_READ) as data:
        for start in range(0, len(wanted), _BLOCK_BYTES):
            block = wanted[start : start + _BLOCK_BYTES]
            at = HEADER_BYTES + start
            if data[at : at + len(block)] != block:
                write_all(descriptor, block, at)  # through the map a full disk would kill us
