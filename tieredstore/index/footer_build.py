"""The footer of an uploaded file, made when it is compacted or by one pass over its slot table.

What lives here: `footer_blocks`, and `fences_of_table` for files without a footer of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.tiered_index import (
    SLOT_BYTES,
    TieredIndexHeader,
    compacted_file_bytes,
    slot_position,
)
from tieredstore.codec.tiered_index_columns import COMPACTED_SLOT_DTYPE
from tieredstore.index.compaction import Compaction
from tieredstore.index.fences import FENCES_A_BLOCK, encode_fences, first_slots
from tieredstore.index.footer import Footer, encode_tail
from tieredstore.index.key_filter import build_filter, filter_block_count
from tieredstore.index.key_hashes import Hashes, item_places
from tieredstore.index.key_notes import KeyNotes
from tieredstore.index.put_order import PutOrder
from tieredstore.index.rows import TimeRange
from tieredstore.model.errors import SegmentCorruptError

_TABLE_SLOTS: Final = 1 << 17


class _NotAllNoted(Exception):
    """A key is not among the notes."""


def footer_blocks(
    compaction: Compaction, items: NDArray[Any], times: TimeRange, notes: KeyNotes | None
) -> Iterator[Buffer]:
    """The footer in order: it has a filter if `notes` hold every key of the items."""
    if not compaction.item_count:
        return
    count = 0
    if notes is not None:
        wanted = filter_block_count(compaction.item_count)
        checked = _Checked(notes, items, compaction.slot_count)
        try:
            for blocks in build_filter(checked.hashes, wanted):
                count = wanted  # the first pass has seen all notes
                yield blocks.reshape(-1).data
        except _NotAllNoted as error:
            if count:
                reason = "it changed while a filter was made"
                raise SegmentCorruptError(str(notes.path), reason, position=0) from error
    lateness = PutOrder().with_items(items).lateness
    yield from _fence_blocks(
        compaction.starts(), compaction.header, times, filter_blocks=count, lateness=lateness
    )


class _Checked:
    """The notes of all items, compared with the items when they are read for the first time."""

    def __init__(self, notes: KeyNotes, items: NDArray[Any], slot_count: int) -> None:
        self._notes = notes
        self._items = items
        self._slot_count = slot_count
        self._are_right = False

    def hashes(self) -> Iterator[Hashes]:
        done = 0
        for block in self._notes.blocks(len(self._items)):
            if not self._are_right:
                wanted, _ = item_places(block, self._slot_count)
                held = self._items["key_hash"][done : done + len(block)]
                if not block.all() or not np.array_equal(wanted, held):
                    raise _NotAllNoted
            done += len(block)
            yield block
        if done < len(self._items):
            raise _NotAllNoted
        self._are_right = True


def _fence_blocks(
    starts: NDArray[np.int32],
    header: TieredIndexHeader,
    times: TimeRange,
    *,
    filter_blocks: int,
    lateness: int | None = None,
) -> Iterator[Buffer]:
    firsts = first_slots(starts)
    fences = encode_fences(firsts, starts)
    yield b"".join(fences)
    yield encode_tail(
        Footer(
            slot_count=len(starts) - 1,
            item_count=header.item_count,
            used_slot_count=header.used_slot_count,
            group_count=len(firsts),
            filter_blocks=filter_blocks,
            begin_timestamp=header.begin_timestamp,
            end_timestamp=header.end_timestamp,
            times=times,
            first_slots=firsts[::FENCES_A_BLOCK].tolist(),
            lateness=lateness,
        )
    )


def fences_of_table(
    read: Callable[[int, int], bytes],
    header: TieredIndexHeader,
    times: TimeRange,
    *,
    slot_count: int,
    path: str,
) -> bytes:
    """A footer without filter for a file that has none, to be kept in a local cache.

    One pass over the slot table; SegmentCorruptError if it is not what compaction writes.
    """
    starts = np.empty(slot_count + 1, np.int64)
    end = slot_position(slot_count)
    for first in range(0, slot_count, _TABLE_SLOTS):
        count = min(_TABLE_SLOTS, slot_count - first)
        data = read(slot_position(first), SLOT_BYTES * count)
        table = np.frombuffer(data, COMPACTED_SLOT_DTYPE, count)
        sizes = table["items_bytes"].astype(np.int64)
        wanted = end + np.cumsum(sizes) - sizes
        if (sizes < 0).any() or not np.array_equal(wanted, table["position"]):
            at = slot_position(first)
            raise SegmentCorruptError(path, "a slot table with gaps", position=at)
        starts[first : first + count] = wanted
        end = int(wanted[-1] + sizes[-1])
    starts[slot_count] = end
    if end != compacted_file_bytes(slot_count=slot_count, item_count=header.item_count):
        raise SegmentCorruptError(path, "slots and items do not add up", position=24)
    blocks = _fence_blocks(starts.astype(np.int32), header, times, filter_blocks=0)
    return b"".join(bytes(block) for block in blocks)
