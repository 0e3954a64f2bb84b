"""Is an index file what its items say: every item in one chain, every chain in order.

What lives here: `examine`, which reads all items of a file once, in blocks, and tells what slots
and header must say. A put that a crash cut short leaves slots behind, which this mends; items that
did not reach the disk are damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import INT32_MIN
from tieredstore.codec.tiered_index import item_position
from tieredstore.codec.tiered_index_columns import ITEM_DTYPE
from tieredstore.index.key_hashes import slots_of
from tieredstore.index.rows import TimeRange, times_of_seconds
from tieredstore.model.errors import SegmentCorruptError

_BLOCK_ITEMS: Final = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The newest item of each slot, how many slots have one, and the times of the items."""

    heads: NDArray[np.int32]
    used_slots: int
    least_end: int  # no smaller end timestamp can be right
    times: TimeRange | None


def items_of(data: mmap, *, slot_count: int, item_count: int) -> NDArray[Any]:
    """Items 1 to `item_count`, in place."""
    return np.frombuffer(data, ITEM_DTYPE, item_count, item_position(1, slot_count=slot_count))


def examine(
    data: mmap, *, slot_count: int, item_count: int, begin_timestamp: int, path: str
) -> Examined:
    """SegmentCorruptError unless the items are whole and form one chain for each slot."""
    items = items_of(data, slot_count=slot_count, item_count=item_count)
    hashes = items["key_hash"]
    heads = np.zeros(slot_count, np.int32)
    followed = np.zeros(item_count + 1, np.bool_)
    chained = 0
    seconds: list[int] = []
    for start in range(0, item_count, _BLOCK_ITEMS):
        block = items[start : start + _BLOCK_ITEMS]
        slots = _slots(block, start, slot_count, path)
        numbers = np.arange(start + 1, start + 1 + len(block), dtype=np.int32)
        previous = block["previous"].astype(np.int32)
        _refuse((previous < 0) | (previous >= numbers), start, slot_count, path, "has no older one")
        held = previous > 0
        before = previous[held]
        theirs = slots_of(hashes[before - 1].astype(np.int32), slot_count)
        strange = np.zeros(len(block), np.bool_)
        strange[held] = theirs != slots[held]
        _refuse(strange, start, slot_count, path, "follows one of another slot")
        chained += len(before)
        followed[before] = True
        heads[slots] = numbers  # of equal ones the last stays
        seconds += (int(block["seconds"].min()), int(block["seconds"].max()))
    used_slots = int(np.count_nonzero(heads))
    if np.count_nonzero(followed) != chained or item_count - chained != used_slots:
        at = item_position(1, slot_count=slot_count)
        raise SegmentCorruptError(path, "items that are in no chain or in two", position=at)
    if not seconds:
        return Examined(heads=heads, used_slots=0, least_end=0, times=None)
    greatest = max(seconds)
    return Examined(
        heads=heads,
        used_slots=used_slots,
        least_end=begin_timestamp + 1000 * greatest - (999 if greatest <= 0 else 0),
        times=times_of_seconds(min(seconds), greatest, begin_timestamp=begin_timestamp),
    )


def _slots(block: NDArray[Any], start: int, slot_count: int, path: str) -> NDArray[np.int32]:
    hashes = block["key_hash"].astype(np.int32)
    _refuse(block["message_bytes"] <= 0, start, slot_count, path, "is of a message without bytes")
    negative = hashes < 0
    if negative.any():
        if (INT32_MIN % slot_count) == 0:  # then Java finds a slot for this one
            negative &= hashes != INT32_MIN
        _refuse(negative, start, slot_count, path, "has a negative hash")
    return slots_of(hashes, slot_count)


def _refuse(wrong: NDArray[np.bool_], start: int, slot_count: int, path: str, reason: str) -> None:
    if wrong.any():
        item = start + 1 + int(np.argmax(wrong))
        at = item_position(item, slot_count=slot_count)
        raise SegmentCorruptError(path, f"item {item} {reason}", position=at)
