"""Our footer behind the last item of an uploaded index file, where RocketMQ never looks.

What lives here: its layout, encoding and reading its tail. The blocks in it are in `key_filter` and
`fences`; what they are built from is in `footer_build`.

    | part           | bytes           |                                                        |
    | -------------- | --------------- | ------------------------------------------------------ |
    | filter blocks  | 4096 each       | none where not all keys are known                      |
    | fence blocks   | 4096 each       |                                                        |
    | first slots    | 4 each          | i32, the first slot of each fence block                |
    | padding        | 0 to 27         | zeros: the footer is a multiple of 28 bytes            |
    | trailer        | 84              | big-endian, below                                      |

    | offset | width | field of the trailer                                                  |
    | ------ | ----- | --------------------------------------------------------------------- |
    |      0 | i32   | bytes of the footer                                                   |
    |      4 | i32   | slots of the file                                                     |
    |      8 | i32   | items                                                                 |
    |     12 | i32   | slots in use                                                          |
    |     16 | i32   | groups                                                                |
    |     20 | i32   | fence blocks                                                          |
    |     24 | i32   | filter blocks                                                         |
    |     28 | i32   | bit 0: the times are exact, not up to 999 ms too wide; above it n + 1  |
    |        |       | if no item is over n seconds older than one put before, 0 if unknown  |
    |     32 | i64   | begin timestamp of the file                                           |
    |     40 | i64   | end timestamp of its header                                           |
    |     48 | i64   | smallest store timestamp                                              |
    |     56 | i64   | largest store timestamp                                               |
    |     64 | i32   | checksum: 1 = CRC32C                                                  |
    |     68 | u32   | checksum of first slots, padding and the trailer up to here           |
    |     72 | i32   | version: 1                                                            |
    |     76 |     8 | magic `TSINDEX1`                                                      |

The length of the whole file stays what it was modulo 28, by which files of RocketMQ 5.1 are told;
they end in another magic. A footer with filter blocks says that all keys were put by us, so that
their hashes follow the classic rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.tiered_index import COMPACTED_ITEM_BYTES, HEADER_BYTES, SLOT_BYTES
from tieredstore.index.fences import FENCES_A_BLOCK
from tieredstore.index.key_filter import BLOCK_BYTES, checksum
from tieredstore.index.rows import TimeRange
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

MAGIC: Final = b"TSINDEX1"
VERSION: Final = 1
CRC32C: Final = 1
TRAILER_BYTES: Final = 84
TAIL_BYTES: Final = 16 * 1024
"""The tail of any file of at most 2 GiB fits: it has fewer than 600 fence blocks."""

_LATENESS_END: Final = (1 << 30) - 1
_BODY: Final = Struct(">iiiiiiiiqqqqi")
_END: Final = Struct(">4si8s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What the tail of a file says: enough to find each block, and small enough to be kept."""

    slot_count: int
    item_count: int
    used_slot_count: int
    group_count: int
    filter_blocks: int
    begin_timestamp: int
    end_timestamp: int
    times: TimeRange
    first_slots: Sequence[int]
    lateness: int | None = None  # no item is more seconds older than one put before it

    @property
    def fence_blocks(self) -> int:
        return -(-self.group_count // FENCES_A_BLOCK)

    @property
    def items_position(self) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slot_count

    @property
    def position(self) -> int:
        """Where the footer begins in the file; positions of blocks count from here."""
        return self.items_position + COMPACTED_ITEM_BYTES * self.item_count

    @property
    def footer_bytes(self) -> int:
        blocks = self.filter_blocks + self.fence_blocks
        unpadded = BLOCK_BYTES * blocks + 4 * self.fence_blocks + TRAILER_BYTES
        return -(-unpadded // COMPACTED_ITEM_BYTES) * COMPACTED_ITEM_BYTES

    def fence_block_position(self, slot: int) -> int:
        """Within the footer: the block that knows the slot's group."""
        number = bisect_right(self.first_slots, slot) - 1
        return BLOCK_BYTES * (self.filter_blocks + number)


def encode_tail(footer: Footer) -> bytes:
    """Everything behind the blocks."""
    head = np.array(footer.first_slots, ">i4").tobytes()
    blocks = footer.filter_blocks + footer.fence_blocks
    padding = bytes(footer.footer_bytes - BLOCK_BYTES * blocks - len(head) - TRAILER_BYTES)
    late = footer.lateness
    order = 0 if late is None or late >= _LATENESS_END else late + 1
    body = _BODY.pack(
        *(footer.footer_bytes, footer.slot_count, footer.item_count, footer.used_slot_count),
        *(
            footer.group_count,
            footer.fence_blocks,
            footer.filter_blocks,
            2 * order + footer.times.exact,
        ),
        *(footer.begin_timestamp, footer.end_timestamp, footer.times.first, footer.times.last),
        CRC32C,
    )
    covered = head + padding + body
    return covered + _END.pack(checksum(covered), VERSION, MAGIC)


def has_footer(tail: Buffer) -> bool:
    """Whether a file that ends so has a footer of ours, of whatever version."""
    return len(tail) >= TRAILER_BYTES and bytes(tail[-len(MAGIC) :]) == MAGIC


def decode_tail(tail: Buffer, *, file_bytes: int, path: str = "") -> Footer:
    """The footer of a file that ends in these bytes: give its last 16 KiB, or all that it has.

    Nothing in it is believed before the checksum is right and the lengths add up.
    """
    at = file_bytes - TRAILER_BYTES
    if not has_footer(tail):
        raise SegmentCorruptError(path, "no footer", position=max(0, at))
    trailer = bytes(tail[-TRAILER_BYTES:])
    total, slots, items, used, groups, fences, filters, flags, *times, kind = _BODY.unpack_from(
        trailer
    )
    found, version, _ = _END.unpack_from(trailer, _BODY.size)
    if version != VERSION or kind != CRC32C:
        reason = f"a footer of version {version} with checksum {kind}"
        raise SegmentCorruptError(path, reason, position=at)
    begin, end, first, last = times
    blocks = BLOCK_BYTES * (filters + fences)
    tail_bytes = total - blocks
    sound = min(slots, items, groups, fences) > 0 and filters >= 0 and 0 <= used <= slots
    sound = sound and 4 * fences + TRAILER_BYTES <= tail_bytes <= len(tail)
    if not sound or checksum(memoryview(tail)[-tail_bytes : _BODY.size - TRAILER_BYTES]) != found:
        raise SegmentCorruptError(path, "a footer with another checksum", position=at)
    start = len(tail) - tail_bytes
    footer = Footer(
        slot_count=slots,
        item_count=items,
        used_slot_count=used,
        group_count=groups,
        filter_blocks=filters,
        begin_timestamp=begin,
        end_timestamp=end,
        times=TimeRange(first=first, last=last, exact=flags % 2 == 1),
        first_slots=np.frombuffer(tail, ">i4", fences, start).tolist(),
        lateness=flags // 2 - 1 if flags > 1 else None,
    )
    adds_up = footer.fence_blocks == fences and footer.footer_bytes == total
    adds_up = adds_up and footer.position + total == file_bytes and file_bytes <= INT32_MAX
    if not adds_up or footer.first_slots[0] != 0:
        raise SegmentCorruptError(path, "a footer of another file", position=at)
    return footer
