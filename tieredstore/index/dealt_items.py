"""Sorts the items of an index file into slot order, through an unnamed file.

Each block of items is divided into ranges of 65 536 slots. Then one range after another is sorted
by 16-bit numbers, for which numpy needs no comparisons. So a file of any size takes little memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.key_hashes import slots_of
from tieredstore.codec.tiered_index import COMPACTED_ITEM_BYTES
from tieredstore.driver.durable import read_all, write_all
from tieredstore.model.errors import SegmentCorruptError, refused_by_system

RANGE_SLOTS: Final = 1 << 16
_DEALT_ITEMS: Final = 1 << 18
_SORTED_ITEMS: Final = 1 << 19
_WORDS: Final = COMPACTED_ITEM_BYTES // 4


class Spool:
    """A file without a name; it is gone when it is closed or its process ends."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = str(folder or tempfile.gettempdir())
        self.size = 0
        with refused_by_system(self._folder, "create a file in"):
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115

    def append(self, data: memoryview) -> None:
        with refused_by_system(self._folder, "write to a file in"):
            write_all(self._file.fileno(), data, self.size)
        self.size += len(data)

    def read(self, position: int, length: int) -> bytes:
        with refused_by_system(self._folder, "read a file in"):
            data = read_all(self._file.fileno(), length, position)
        if len(data) < length:
            raise SegmentCorruptError(self._folder, "a file became shorter", position=position)
        return data

    def read_into(self, data: bytearray, position: int) -> None:
        """Fill `data` with the bytes from `position` on."""
        view = memoryview(data)
        with refused_by_system(self._folder, "read a file in"):
            while view:
                got = os.preadv(self._file.fileno(), [view], position)
                if not got:
                    raise SegmentCorruptError(
                        self._folder, "a file became shorter", position=position
                    )
                view, position = view[got:], position + got

    def close(self) -> None:
        self._file.close()


class DealtItems:
    """Takes items oldest first; returns them slot by slot, the newest of each slot first.

    It takes 28 bytes per item in `folder`, and in memory four bytes per slot and some 60 MB.
    """

    def __init__(self, slot_count: int, folder: Path | None) -> None:
        self.slot_count = slot_count
        self.item_count = 0
        self.counts = np.zeros(slot_count, np.int32)
        """How many items each slot has."""
        self._edges: list[NDArray[np.int64]] = []  # per block, where its ranges begin and end
        self._spool = Spool(folder)

    def add(self, items: NDArray[np.uint32]) -> None:
        """Add rows of seven words, as in the uploaded file."""
        for start in range(0, len(items), _DEALT_ITEMS):
            self._deal(items[start : start + _DEALT_ITEMS])

    def blocks(self) -> Iterator[NDArray[np.uint32]]:
        """All items; may be called more than once."""
        for first in range(0, self.slot_count, RANGE_SLOTS):
            yield from self._sorted(first, min(first + RANGE_SLOTS, self.slot_count))

    def close(self) -> None:
        self._spool.close()

    def _deal(self, items: NDArray[np.uint32]) -> None:
        slots = _slots(items, self.slot_count)
        np.add.at(self.counts, slots, np.int32(1))
        ranges = (slots // RANGE_SLOTS).astype(np.uint16)
        edges = np.zeros(-(-self.slot_count // RANGE_SLOTS) + 1, np.int64)
        np.cumsum(np.bincount(ranges, minlength=len(edges) - 1), out=edges[1:])
        self._edges.append(edges + self.item_count)
        self.item_count += len(items)
        dealt = items.take(np.argsort(ranges, kind="stable"), axis=0)
        self._spool.append(dealt.reshape(-1).view(np.uint8).data)

    def _sorted(self, first: int, stop: int) -> Iterator[NDArray[np.uint32]]:
        """The items of these slots of one range. If they are too many to be sorted in memory, the
        slots are halved. Items of a single slot are in order already, block by block."""
        count = int(self.counts[first:stop].sum())
        if not count:
            return
        if count <= _SORTED_ITEMS:
            newest_first = np.concatenate([*self._found(first, stop)])[::-1]
            slots = (_slots(newest_first, self.slot_count) - first).astype(np.uint16)
            yield newest_first.take(np.argsort(slots, kind="stable"), axis=0)
        elif stop - first > 1:
            middle = (first + stop) // 2
            yield from self._sorted(first, middle)
            yield from self._sorted(middle, stop)
        else:
            for items in self._found(first, stop, newest_first=True):
                yield np.ascontiguousarray(items[::-1])

    def _found(
        self, first: int, stop: int, *, newest_first: bool = False
    ) -> Iterator[NDArray[np.uint32]]:
        """The items of these slots in each block, oldest first within the block."""
        number = first // RANGE_SLOTS
        is_whole = stop - first == min(RANGE_SLOTS, self.slot_count - number * RANGE_SLOTS)
        for edges in reversed(self._edges) if newest_first else self._edges:
            start, end = edges[number : number + 2].tolist()
            width = COMPACTED_ITEM_BYTES
            data = self._spool.read(width * start, width * (end - start))
            items = np.frombuffer(data, np.uint32).reshape(-1, _WORDS)
            if not is_whole:
                slots = _slots(items, self.slot_count)
                items = items[(first <= slots) & (slots < stop)]
            yield items


def _slots(items: NDArray[np.uint32], slot_count: int) -> NDArray[np.int32]:
    return slots_of(items[:, 0].byteswap().view(np.int32), slot_count)
