"""What an index file says of itself, and what it must say after a crash or after Java had it.

What lives here: reading the header, and making slots and header say what the items do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from mmap import mmap

import numpy as np

from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    HEADER_BYTES,
    TieredIndexHeader,
    decode_header,
)
from tieredstore.index.file_check import Examined, examine
from tieredstore.index.item_chain import store_header, view_heads
from tieredstore.index.key_notes import KeyNotes
from tieredstore.index.rows import SECOND_SLACK_MS, TimeRange
from tieredstore.model.errors import SegmentCorruptError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """What never changes about a file; `path` and `begin_timestamp` are those of its name."""

    path: str
    begin_timestamp: int
    slot_count: int
    item_capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """What changes with every put. `times` is None without items, and where it is not known."""

    end_timestamp: int = 0
    used_slot_count: int = 0
    item_count: int = 0
    times: TimeRange | None = None

    def header(self, begin_timestamp: int) -> TieredIndexHeader:
        return TieredIndexHeader(
            begin_timestamp=begin_timestamp,
            end_timestamp=self.end_timestamp,
            used_slot_count=self.used_slot_count,
            item_count=self.item_count,
        )


def write_state(data: mmap, state: FileState, sizes: FileSizes) -> None:
    store_header(
        data,
        begin=sizes.begin_timestamp,
        end=state.end_timestamp,
        used_slots=state.used_slot_count,
        items=state.item_count,
        capacity=sizes.item_capacity,
    )


def read_state(data: mmap, sizes: FileSizes) -> FileState:
    """What the header says; SegmentCorruptError if it cannot be right."""
    header = decode_header(
        data[:HEADER_BYTES],
        slot_count=sizes.slot_count,
        item_capacity=sizes.item_capacity - 1,
        path=sizes.path,
    )
    if header.begin_timestamp != sizes.begin_timestamp:
        reason = f"the begin timestamp is {header.begin_timestamp}"
        raise SegmentCorruptError(sizes.path, reason, position=4)
    return FileState(
        end_timestamp=header.end_timestamp,
        used_slot_count=header.used_slot_count,
        item_count=header.item_count,
    )


def mend(data: mmap, sizes: FileSizes, notes: KeyNotes | None, item_count: int | None) -> FileState:
    """Make slots and header say what the first items do; all of them if no count is given.

    The end timestamp too, which Java forgets when it opens a file (10656). Nothing is written
    where nothing is wrong. SegmentCorruptError where it cannot be mended.
    """
    state = read_state(data, sizes)
    count = state.item_count if item_count is None else item_count
    if count > state.item_count:
        reason = f"{state.item_count} items, but {count} were durable"
        raise SegmentCorruptError(sizes.path, reason, position=24)
    found = examine(
        data,
        slot_count=sizes.slot_count,
        item_count=count,
        begin_timestamp=sizes.begin_timestamp,
        path=sizes.path,
    )
    heads = view_heads(data, sizes.slot_count)
    if not np.array_equal(np.maximum(heads, 0), found.heads):
        heads[:] = found.heads
    cut = count < state.item_count
    times = _times(found, notes, cut=cut, begin=sizes.begin_timestamp)
    end = state.end_timestamp
    if times is None:
        end = 0
    elif cut or end < found.least_end or (times.exact and end != max(0, times.last)):
        end = max(0, times.last)
    mended = FileState(
        end_timestamp=end, used_slot_count=found.used_slots, item_count=count, times=times
    )
    if mended != replace(state, times=times) or _has_wrong_magic(data, count, sizes):
        write_state(data, mended, sizes)
    return mended


def _times(found: Examined, notes: KeyNotes | None, *, cut: bool, begin: int) -> TimeRange | None:
    """Exact times where they were noted, else from the items' seconds."""
    bounds = found.times
    if bounds is None:
        if notes is not None and notes.times is not None:
            notes.forget_times()
        return None
    noted = None if notes is None else notes.times
    if noted is not None and noted.outruns_seconds(begin):  # then the items cannot say
        return replace(noted.joined(bounds), exact=False)
    if cut:
        return bounds
    if noted is None or not found.least_end <= noted.last <= bounds.last:
        return bounds
    near = bounds.first <= noted.first <= bounds.first + 2 * SECOND_SLACK_MS
    return noted if near else bounds


def _has_wrong_magic(data: mmap, item_count: int, sizes: FileSizes) -> bool:
    is_begin = int.from_bytes(data[:4], signed=True) == BEGIN_MAGIC
    return is_begin == (item_count + 1 == sizes.item_capacity)
