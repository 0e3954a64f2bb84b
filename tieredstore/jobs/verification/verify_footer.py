"""Our footer of an index file: its blocks, and whether its fences say what the slots do.

What lives here: `wrong_in_footer`. The layout is in `index.footer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.tiered_index import (
    SLOT_BYTES,
    TieredIndexHeader,
    compacted_file_bytes,
    slot_position,
)
from tieredstore.codec.tiered_index_columns import COMPACTED_SLOT_DTYPE
from tieredstore.driver.segment import FileSegment
from tieredstore.index.fences import FENCES_A_BLOCK, encode_fences, first_slots
from tieredstore.index.footer import Footer
from tieredstore.index.key_filter import BLOCK_BYTES, check_block
from tieredstore.model.errors import SegmentError

_SLOTS_AT_ONCE: Final = 1 << 17
_BLOCKS_AT_ONCE: Final = 1_024


def wrong_in_footer(
    segment: FileSegment, footer: Footer, header: TieredIndexHeader, with_fences: bool
) -> Iterator[tuple[str, int]]:
    """What is wrong, and at which byte of the file."""
    said = footer.item_count, footer.used_slot_count, footer.begin_timestamp, footer.end_timestamp
    if said != (
        *(header.item_count, header.used_slot_count),
        *(header.begin_timestamp, header.end_timestamp),
    ):
        yield "footer and header differ", footer.position
    fences: list[bytes] = []
    for at, block in _blocks(segment, footer):
        try:
            check_block(block, path=segment.path, position=at)
        except SegmentError as error:
            yield str(error), at
        if at >= footer.position + BLOCK_BYTES * footer.filter_blocks:
            fences.append(block)
    if not with_fences:
        return
    starts = _starts(segment, footer)
    firsts = first_slots(starts)
    if encode_fences(firsts, starts) != fences:
        at = footer.position + BLOCK_BYTES * footer.filter_blocks
        yield "its fences lead elsewhere than its slots", at
    if list(footer.first_slots) != firsts[::FENCES_A_BLOCK].tolist():
        yield "its fences are not found where they are", footer.position


def _blocks(segment: FileSegment, footer: Footer) -> Iterator[tuple[int, bytes]]:
    count = footer.filter_blocks + footer.fence_blocks
    for first in range(0, count, _BLOCKS_AT_ONCE):
        some = min(_BLOCKS_AT_ONCE, count - first)
        start = footer.position + BLOCK_BYTES * first
        data = segment.read(start, BLOCK_BYTES * some)
        for number in range(some):
            at = BLOCK_BYTES * number
            yield start + at, data[at : at + BLOCK_BYTES]


def _starts(segment: FileSegment, footer: Footer) -> NDArray[np.int32]:
    """Where the items of each slot begin, and where those of the last end."""
    slots = footer.slot_count
    starts = np.empty(slots + 1, np.int32)
    for at in range(0, slots, _SLOTS_AT_ONCE):
        count = min(_SLOTS_AT_ONCE, slots - at)
        data = segment.read(slot_position(at), SLOT_BYTES * count)
        starts[at : at + count] = np.frombuffer(data, COMPACTED_SLOT_DTYPE)["position"]
    starts[slots] = compacted_file_bytes(slot_count=slots, item_count=footer.item_count)
    return starts
