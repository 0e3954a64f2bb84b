"""A full index file as it is uploaded: items in slot order, newest first, and the footer behind.

The file is built one range of slots after another, so that it can be streamed and never lies in
memory as a whole. First all items are dealt to ranges of at most 65 536 slots, which takes six
bytes an item; then each range is sorted by 16-bit numbers and its items are copied. What was read
of the mapped file is unloaded as it goes on, since mapped pages count as memory of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer
from tieredstore.codec.key_hashes import Hashes, item_places, slots_of
from tieredstore.codec.tiered_index import (
    COMPACTED_ITEM_BYTES,
    COMPACTED_SLOT_DTYPE,
    END_MAGIC,
    HEADER_BYTES,
    ITEM_BYTES,
    SLOT_BYTES,
    TieredIndexHeader,
    compacted_file_bytes,
    encode_header,
    slot_position,
)
from tieredstore.index.footer import (
    UNCHECKED,
    Footer,
    Groups,
    GroupSums,
    build_filter,
    encode_fences,
    encode_tail,
    filter_block_count,
    groups_of,
)
from tieredstore.index.keys import KeyNotes, TimeDisorder, TimeRange
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.model.errors import SegmentCorruptError

RANGE_BITS: Final = 16
_DEALT_ITEMS: Final = 1 << 18
_COPIED_ITEMS: Final = 1 << 19
_LOADED_ITEMS: Final = 1 << 20  # 32 MiB of the file
_LOOKED_AT_ITEMS: Final = 1 << 19
_SLOTS_A_BLOCK: Final = 1 << 18
_WORDS: Final = ITEM_BYTES // 4
_TABLE_SLOTS: Final = 1 << 17


class Compaction:
    """What is uploaded of one file that takes no more keys; `blocks` may be asked for again.

    The bytes are Java's: each slot has the position where its items are or would be, an empty one
    too. Without items there is nothing at all. Anonymous memory: about six bytes an item, eight a
    slot and some twenty MiB.
    """

    def __init__(self, file: IndexStoreFile) -> None:
        self.slot_count = file.slot_count
        self._file = file
        self._header = file.header()
        self._items = file.items()
        self._starts: NDArray[np.int32] | None = None
        self._sums: GroupSums | None = None
        self._are_notes_right = False

    @property
    def item_count(self) -> int:
        return len(self._items)

    @property
    def items_position(self) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slot_count

    @property
    def end(self) -> int:
        """Where the last item ends, and the footer begins."""
        return self.items_position + COMPACTED_ITEM_BYTES * self.item_count

    def starts(self) -> NDArray[np.int32]:
        """Where the items of each slot start; one entry more for where the last one's end."""
        if self._starts is None:
            counts = np.zeros(self.slot_count, np.int32)
            for _, slots in self._slots():
                if self.slot_count > 4 * len(slots):
                    np.add.at(counts, slots, np.int32(1))
                else:
                    counts += np.bincount(slots, minlength=self.slot_count).astype(np.int32)
            starts = np.empty(self.slot_count + 1, np.int32)
            starts[0] = 0
            np.cumsum(counts, out=starts[1:], dtype=np.int32)
            starts *= np.int32(COMPACTED_ITEM_BYTES)
            starts += np.int32(self.items_position)
            self._starts = starts
        return self._starts

    def blocks(self) -> Iterator[Buffer]:
        """The whole file in order, in blocks of a few MiB."""
        if not self.item_count:
            return
        yield encode_header(replace(self._header, magic=END_MAGIC))
        starts = self.starts()
        for first in range(0, self.slot_count, _SLOTS_A_BLOCK):
            ends = starts[first : first + _SLOTS_A_BLOCK + 1]
            table = np.empty(len(ends) - 1, COMPACTED_SLOT_DTYPE)
            table["position"] = ends[:-1]
            table["items_bytes"] = np.diff(ends)
            yield table.view(np.uint8).data
        self._sums = sums = GroupSums(groups_of(starts))
        for items in self._item_blocks(starts):
            sums.add(items)
            yield items

    def footer(self) -> Iterator[Buffer]:
        """The footer in order, after `blocks`.

        It has a filter if the notes beside the file hold all its keys.
        """
        times, notes = self._file.times, self._file.notes
        if not self.item_count:
            return
        if self._sums is None or not self._sums.is_whole:
            raise ValueError("a footer has checksums of the blocks before it")
        if times is None:
            raise SegmentCorruptError(str(self._file.path), "items without times", position=0)
        count = 0
        if notes is not None:
            wanted = filter_block_count(self.item_count)
            try:
                for blocks in build_filter(partial(self._noted_hashes, notes), wanted):
                    count = wanted  # the first pass has seen all notes
                    yield blocks.reshape(-1).data
            except _NotAllNoted as error:
                if count:
                    reason = "it changed while a filter was made"
                    raise SegmentCorruptError(str(notes.path), reason, position=0) from error
        yield from _fence_blocks(
            self._sums.groups,
            self._header,
            times,
            slot_count=self.slot_count,
            filter_blocks=count,
            disorder_seconds=self._disorder_seconds(),
            sums=self._sums.sums,
        )

    def _item_blocks(self, starts: NDArray[np.int32]) -> Iterator[Buffer]:
        order, low, bounds = self._dealt(starts)
        for start, stop in pairwise(bounds):
            numbers = order[start:stop][::-1]  # a stable sort then puts the newest first
            order[start:stop] = numbers[np.argsort(low[start:stop][::-1], kind="stable")]
        del low
        for at in range(0, len(order), _COPIED_ITEMS):
            yield self._copied(order[at : at + _COPIED_ITEMS])

    def _copied(self, numbers: NDArray[np.int32]) -> Buffer:
        """These items as they are uploaded. They lie all over the file, so they are read in the
        order of the file: then few of its pages are in memory at a time."""
        rows = self._items.view(np.uint32).reshape(-1, _WORDS)
        in_file_order = np.argsort(numbers)
        copied = np.empty((len(numbers), _WORDS - 1), np.uint32)
        edges = np.arange(0, self.item_count + _LOADED_ITEMS, _LOADED_ITEMS)
        bounds = np.searchsorted(numbers, edges, sorter=in_file_order)
        for start, stop in pairwise(bounds.tolist()):
            places = in_file_order[start:stop]
            copied[places] = rows.take(numbers[places], axis=0)[:, :-1]
            self._file.unload_items()
        return copied.reshape(-1).view(np.uint8).data

    def _disorder_seconds(self) -> int:
        disorder = TimeDisorder()
        while disorder.item_count < self.item_count:
            end = disorder.item_count + _LOOKED_AT_ITEMS
            disorder = disorder.with_items(self._items[:end])
            self._file.unload_items()
        return disorder.max_seconds

    def _dealt(
        self, starts: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.uint16], list[int]]:
        """Item numbers by range of slots, the slots' lower halves, and where each range starts."""
        edges = starts[:: 1 << RANGE_BITS].astype(np.int64) - self.items_position
        bounds = [*(edges // COMPACTED_ITEM_BYTES).tolist(), self.item_count]
        order = np.empty(self.item_count, np.int32)
        low = np.empty(self.item_count, np.uint16)
        filled = np.array(bounds[:-1], np.int64)
        for first, slots in self._slots():
            ranges = (slots >> RANGE_BITS).astype(np.uint16)
            by_range = np.argsort(ranges, kind="stable")
            counts = np.bincount(ranges, minlength=len(filled))
            numbers = (by_range + first).astype(np.int32)
            halves = slots.astype(np.uint16)[by_range]
            taken = 0
            for held in np.flatnonzero(counts).tolist():
                count = int(counts[held])
                at = int(filled[held])
                order[at : at + count] = numbers[taken : taken + count]
                low[at : at + count] = halves[taken : taken + count]
                taken += count
            filled += counts
        return order, low, bounds

    def _slots(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        hashes = self._items["key_hash"]
        for first in range(0, len(hashes), _DEALT_ITEMS):
            block = hashes[first : first + _DEALT_ITEMS].astype(np.int32)
            self._file.unload_items()
            yield first, slots_of(block, self.slot_count)

    def _noted_hashes(self, notes: KeyNotes) -> Iterator[Hashes]:
        """The notes of all items, compared with the items when they are read for the first time."""
        done = 0
        for block in notes.blocks(self.item_count):
            if not self._are_notes_right:
                wanted, _ = item_places(block, self.slot_count)
                held = self._items["key_hash"][done : done + len(block)]
                if not block.all() or not np.array_equal(wanted, held):
                    raise _NotAllNoted
                self._file.unload_items()
            done += len(block)
            yield block
        if done < self.item_count:
            raise _NotAllNoted
        self._are_notes_right = True


class _NotAllNoted(Exception):
    """A key is not among the notes."""


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
    groups = groups_of(starts.astype(np.int32), version=UNCHECKED)
    blocks = _fence_blocks(groups, header, times, slot_count=slot_count, filter_blocks=0)
    return b"".join(bytes(block) for block in blocks)


def _fence_blocks(
    groups: Groups,
    header: TieredIndexHeader,
    times: TimeRange,
    *,
    slot_count: int,
    filter_blocks: int,
    disorder_seconds: int | None = None,
    sums: NDArray[np.uint32] | None = None,
) -> Iterator[Buffer]:
    yield b"".join(encode_fences(groups, sums))
    yield encode_tail(
        Footer(
            slot_count=slot_count,
            item_count=header.item_count,
            used_slot_count=header.used_slot_count,
            group_count=len(groups.slots),
            filter_blocks=filter_blocks,
            begin_timestamp=header.begin_timestamp,
            end_timestamp=header.end_timestamp,
            times=times,
            first_slots=groups.first_slots,
            disorder_seconds=disorder_seconds,
            version=groups.version,
        )
    )
