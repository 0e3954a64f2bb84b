"""Where the items of a slot lie in an uploaded file, without its slot table.

What lives here: cutting the items into groups, the blocks that say where each group starts, and
looking a slot up in one. Where the blocks lie in a file is in `footer`.

A group is a run of slots whose items take at most 16 380 bytes together, or exactly one slot that
takes more. A block is 4 KiB, big-endian:

    | offset | width | field                                                              |
    | ------ | ----- | ------------------------------------------------------------------ |
    |  8 * i | i32   | first slot of a group; 2^31 - 1 behind the last group              |
    |      4 | i32   | position in the file where its items start                         |
    |   4088 | i32   | position where the items of the block's last group end              |
    |   4092 | u32   | CRC32C of the bytes before                                         |
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.tiered_index import COMPACTED_ITEM_BYTES
from tieredstore.index.key_filter import PAYLOAD_BYTES, check_block, checksum
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

GROUP_BYTES: Final = 16 * 1024 // COMPACTED_ITEM_BYTES * COMPACTED_ITEM_BYTES
FENCES_A_BLOCK: Final = (PAYLOAD_BYTES - 4) // 8


class Group(NamedTuple):
    """The bytes of a file that hold all items of a slot, and perhaps those of its neighbours."""

    start: int
    end: int


def first_slots(starts: NDArray[np.int32]) -> NDArray[np.int64]:
    """The first slot of each group; `starts` are the slots' positions and the end of the last."""
    slot_count = len(starts) - 1
    found = []
    slot = 0
    while slot < slot_count:
        found.append(slot)
        limit = np.int32(min(int(starts[slot]) + GROUP_BYTES, INT32_MAX))
        after = int(np.searchsorted(starts, limit, side="right")) - 1
        slot = max(slot + 1, after)
    return np.array(found, np.int64)


def encode_fences(firsts: NDArray[np.int64], starts: NDArray[np.int32]) -> list[bytes]:
    """The blocks, in order."""
    blocks = []
    for at in range(0, len(firsts), FENCES_A_BLOCK):
        held = firsts[at : at + FENCES_A_BLOCK]
        after = at + FENCES_A_BLOCK
        end = int(starts[firsts[after]]) if after < len(firsts) else int(starts[-1])
        words = np.empty(PAYLOAD_BYTES // 4, ">i4")
        words[:-1:2] = INT32_MAX
        words[1::2] = end
        words[-1] = end
        words[: 2 * len(held) : 2] = held
        words[1 : 2 * len(held) : 2] = starts[held]
        payload = words.tobytes()
        blocks.append(payload + checksum(payload))
    return blocks


def find_group(
    block: Buffer, slot: int, *, first: int, end: int, path: str, position: int
) -> Group:
    """The group of a slot that this block covers; groups lie within `first` to `end`."""
    check_block(block, path=path, position=position)
    words = np.frombuffer(block, ">i4", PAYLOAD_BYTES // 4)
    slots, starts = words[:-1:2], words[1:-1:2]
    at = int(np.searchsorted(slots, slot, side="right")) - 1
    if at < 0:
        raise SegmentCorruptError(path, f"slot {slot} lies before its block", position=position)
    start = int(starts[at])
    stop = int(starts[at + 1]) if at + 1 < len(starts) else int(words[-1])
    whole = (stop - start) % COMPACTED_ITEM_BYTES == 0 and (
        start - first
    ) % COMPACTED_ITEM_BYTES == 0
    if not (first <= start <= stop <= end and whole):
        reason = f"a group from {start} to {stop}, but items lie within {first} to {end}"
        raise SegmentCorruptError(path, reason, position=position)
    return Group(start, stop)
