"""Our footer behind the last item of an uploaded index file, where RocketMQ never looks: which keys
the file cannot hold, and where the items of a slot lie.

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

The length of the whole file stays what it was modulo 28, by which files of RocketMQ 5.1 are known;
they end in another magic. A footer with filter blocks says that all keys were put by us, so that
their hashes follow the classic rule.

**The filter** is a Bloom filter in blocks; a key is probed in one of them. A block is 4 KiB: 32 736
bits and the CRC32C of their bytes, u32 big-endian. With m the mixed hash of a key
(`key_hashes.mixed`), it belongs to block (m >> 32) * blocks >> 32. Of it, six bits are set: with s
= (m * 9E3779B97F4A7C15 modulo 2^64) >> 32 | 1, bit number (((m + i * s) modulo 2^32) * 32736) >> 32
for i from 0 to 5; bit b is 1 << b % 8 of byte b / 8. Twelve bits a key let 0.4 % of other keys
through.

**The fences** say where the items of a slot lie, without the slot table. A group is a run of slots
whose items take at most 16 380 bytes together, or exactly one slot that takes more. A block is 4
KiB, big-endian:

    | offset | width | field                                                              |
    | ------ | ----- | ------------------------------------------------------------------ |
    |  8 * i | i32   | first slot of a group; 2^31 - 1 behind the last group              |
    |      4 | i32   | position in the file where its items start                         |
    |   4088 | i32   | position where the items of the block's last group end              |
    |   4092 | u32   | CRC32C of the bytes before                                         |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer
from tieredstore.codec.key_hashes import Hashes, mixed
from tieredstore.codec.tiered_index import (
    COMPACTED_ITEM_BYTES,
    HEADER_BYTES,
    SLOT_BYTES,
    TieredIndexHeader,
    decode_header,
)
from tieredstore.index.keys import TimeRange
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

BLOCK_BYTES: Final = 4096
CHECKSUM_BYTES: Final = 4
PAYLOAD_BYTES: Final = BLOCK_BYTES - CHECKSUM_BYTES
_BLOCK_BITS: Final = 8 * PAYLOAD_BYTES
_BITS_A_KEY: Final = 12
PROBES: Final = 6
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
_HASHES_A_TURN: Final = 1 << 16
_BLOCKS_A_PASS: Final = 1900  # 62 MB while their bits are set
GROUP_BYTES: Final = 16 * 1024 // COMPACTED_ITEM_BYTES * COMPACTED_ITEM_BYTES
FENCES_A_BLOCK: Final = (PAYLOAD_BYTES - 4) // 8
MAGIC: Final = b"TSINDEX1"
VERSION: Final = 1
CRC32C: Final = 1
TRAILER_BYTES: Final = 84
TAIL_BYTES: Final = 16 * 1024
"""The tail of any file of at most 2 GiB fits: it has fewer than 600 fence blocks."""
_DISORDER_END: Final = (1 << 30) - 1
_BODY: Final = Struct(">iiiiiiiiqqqqi")
_END: Final = Struct(">4si8s")
Read = Callable[[int, int], bytes]
"""Position and length to exactly so many bytes."""


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
    disorder_seconds: int | None = None  # no item is more seconds older than one put before it

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NearFooter:
    """A footer whose bytes are at hand: `read` counts from its first byte."""

    footer: Footer
    read: Read

    @classmethod
    def open(cls, read: Read, footer_bytes: int, *, file_bytes: int, path: str) -> NearFooter:
        """A copy of the footer; `file_bytes` is the file with it, even if it has none itself."""
        size = min(footer_bytes, TAIL_BYTES)
        tail = read(footer_bytes - size, size)
        footer = decode_tail(tail, file_bytes=file_bytes, path=path)
        if footer.footer_bytes != footer_bytes:
            raise SegmentCorruptError(path, "the copy of a footer is cut off", position=0)
        return cls(footer=footer, read=read)


class Group(NamedTuple):
    """The bytes of a file that hold all items of a slot, and perhaps those of its neighbours."""

    start: int
    end: int


def has_footer(tail: Buffer) -> bool:
    """Whether a file that ends so has a footer of ours, of whatever version."""
    return len(tail) >= TRAILER_BYTES and bytes(tail[-len(MAGIC) :]) == MAGIC


def footer_or_header(read: Read, size: int, *, path: str) -> Footer | TieredIndexHeader:
    """What the end of an uploaded file says, or its begin where it has no footer of ours."""
    tail_bytes = min(size, TAIL_BYTES)
    tail = read(size - tail_bytes, tail_bytes)
    if has_footer(tail):
        return decode_tail(tail, file_bytes=size, path=path)
    return decode_header(read(0, min(size, HEADER_BYTES)), path=path)


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
        disorder_seconds=flags // 2 - 1 if flags > 1 else None,
    )
    adds_up = footer.fence_blocks == fences and footer.footer_bytes == total
    adds_up = adds_up and footer.position + total == file_bytes and file_bytes <= INT32_MAX
    if not adds_up or footer.first_slots[0] != 0:
        raise SegmentCorruptError(path, "a footer of another file", position=at)
    return footer


def encode_tail(footer: Footer) -> bytes:
    """Everything behind the blocks."""
    head = np.array(footer.first_slots, ">i4").tobytes()
    blocks = footer.filter_blocks + footer.fence_blocks
    padding = bytes(footer.footer_bytes - BLOCK_BYTES * blocks - len(head) - TRAILER_BYTES)
    late = footer.disorder_seconds
    order = 0 if late is None or late >= _DISORDER_END else late + 1
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


def filter_block_count(key_count: int) -> int:
    return -(-key_count * _BITS_A_KEY // _BLOCK_BITS)


def build_filter(
    hashes: Callable[[], Iterable[Hashes]], block_count: int
) -> Iterator[NDArray[np.uint8]]:
    """All blocks with their checksums, one row a block; every pass over the hashes makes some.

    Bits are set one byte each, which is several times as fast, in a range that fits the memory.
    """
    for first in range(0, block_count, _BLOCKS_A_PASS):
        count = min(_BLOCKS_A_PASS, block_count - first)
        bits = np.zeros(count * _BLOCK_BITS, np.bool_)
        for block in hashes():
            for start in range(0, len(block), _HASHES_A_TURN):
                values = mixed(block[start : start + _HASHES_A_TURN])
                _set_bits(bits, values, first, count, block_count)
        blocks = np.empty((count, BLOCK_BYTES), np.uint8)
        blocks[:, :PAYLOAD_BYTES] = np.packbits(bits.reshape(count, -1), axis=1, bitorder="little")
        del bits
        for row in blocks:
            row[PAYLOAD_BYTES:] = np.frombuffer(checksum(row[:PAYLOAD_BYTES].data), np.uint8)
        yield blocks


def block_of(key_hash: int, block_count: int) -> int:
    """In which block the bits of a key are."""
    return (_mixed_one(key_hash) >> 32) * block_count >> 32


def may_hold(block: Buffer, key_hash: int, *, path: str, position: int) -> bool:
    """False only if no key with this hash was put. A damaged block is never believed."""
    check_block(block, path=path, position=position)
    value = _mixed_one(key_hash)
    step = ((value * int(_STEP) & 0xFFFFFFFFFFFFFFFF) >> 32) | 1
    for probe in range(PROBES):
        bit = ((value + probe * step) & 0xFFFFFFFF) * _BLOCK_BITS >> 32
        if not block[bit >> 3] >> (bit & 7) & 1:
            return False
    return True


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


def check_block(block: Buffer, *, path: str, position: int) -> None:
    """SegmentCorruptError unless these are 4 KiB that end in their checksum."""
    if len(block) != BLOCK_BYTES:
        raise SegmentCorruptError(path, f"a block of {len(block)} bytes", position=position)
    whole = memoryview(block)
    if bytes(whole[PAYLOAD_BYTES:]) != checksum(whole[:PAYLOAD_BYTES]):
        raise SegmentCorruptError(path, "a block has another checksum", position=position)


def checksum(data: Buffer) -> bytes:
    return int(crc32c(bytes(data))).to_bytes(CHECKSUM_BYTES)


def _set_bits(
    bits: NDArray[np.bool_], values: Hashes, first: int, count: int, block_count: int
) -> None:
    owners = (values >> _HALF) * np.uint64(block_count) >> _HALF
    if count < block_count:
        mine = owners - np.uint64(first) < np.uint64(count)  # smaller ones wrap around
        values, owners = values[mine], owners[mine]
    starts = (owners - np.uint64(first)) * np.uint64(_BLOCK_BITS)
    for places in _bits(values):
        bits[(places + starts).view(np.int64)] = True


def _bits(values: Hashes) -> Iterator[Hashes]:
    steps = (values * _STEP >> _HALF) | np.uint64(1)
    sums = values.copy()
    for _ in range(PROBES):
        yield (sums & _LOW) * np.uint64(_BLOCK_BITS) >> _HALF
        sums += steps


def _mixed_one(key_hash: int) -> int:
    return int(mixed(np.array([key_hash], np.uint64))[0])
