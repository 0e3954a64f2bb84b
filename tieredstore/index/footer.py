"""Our footer follows the last item of an uploaded index file, where RocketMQ never looks. It says
which keys the file cannot have, and where the items of a slot are.

    | part           | bytes           |                                                        |
    | -------------- | --------------- | ------------------------------------------------------ |
    | filter blocks  | 4096 each       | none unless all keys are known                         |
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
    |     72 | i32   | version: 2; 1 has no checksums of items                               |
    |     76 |     8 | magic `TSINDEX1`                                                      |

The footer does not change the length of the file modulo 28, as files of RocketMQ 5.1 are recognised
by that; they end in another magic. A footer with filter blocks says that we put all keys, so that
their hashes follow the classic rule.

**The filter** is a Bloom filter in blocks; a key is probed in one of them. A block is 4 KiB: 32 736
bits and the CRC32C of their bytes, u32 big-endian. Let m be the mixed hash of a key
(`key_hashes.mixed`): the key belongs to block (m >> 32) * blocks >> 32. Six bits of that block are
set: with s = (m * 9E3779B97F4A7C15 modulo 2^64) >> 32 | 1, bit number
(((m + i * s) modulo 2^32) * 32736) >> 32 for i from 0 to 5; bit b is 1 << b % 8 of byte b / 8. With
twelve bits per key, 0.4 % of other keys pass.

**The fences** say where the items of a slot are, without the slot table, and what their checksum
is. A look-up reads one group at a time: a run of slots whose items take at most 16 380 bytes
together, or a page of that size if one slot takes more. A block is 4 KiB, big-endian:

    | offset | width | field                                                              |
    | ------ | ----- | ------------------------------------------------------------------ |
    | 12 * i | i32   | first slot of group i, from 0 to 339; 2^31 - 1 behind the last one |
    |      4 | i32   | position in the file where its items start                         |
    |      8 | u32   | CRC32C of its items                                                |
    |   4088 | i32   | position where the items of the block's last group end              |
    |   4092 | u32   | CRC32C of the bytes before                                         |

If a block begins within a slot, its *first slot* in the tail is the next slot. So the items of a
slot begin in the last block whose first slot is not above that slot.

In version 1 a group has 8 bytes without a checksum, a block has 511 groups, and a slot that takes
more is one group. Fences made from the slot table of a file that is not ours still have this form,
as its items were not read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from google_crc32c import extend as extend_crc32c
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
MAGIC: Final = b"TSINDEX1"
UNCHECKED, CHECKED = 1, 2
"""Versions: without and with checksums of items."""
_FENCE_WORDS: Final = {UNCHECKED: 2, CHECKED: 3}
_END_WORD: Final = PAYLOAD_BYTES // 4 - 1
CRC32C: Final = 1
TRAILER_BYTES: Final = 84
TAIL_BYTES: Final = 16 * 1024
"""Holds the tail of any file of up to 2 GiB, which has fewer than 800 fence blocks."""
_DISORDER_END: Final = (1 << 30) - 1
_BODY: Final = Struct(">iiiiiiiiqqqqi")
_END: Final = Struct(">4si8s")
Read = Callable[[int, int], bytes]
"""Takes position and length; returns exactly that many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The tail of a file: enough to find each block, and small enough to keep."""

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
    version: int = CHECKED

    @property
    def fence_blocks(self) -> int:
        return -(-self.group_count // fences_a_block(self.version))

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

    def fence_block(self, slot: int) -> int:
        """The number of the block with the slot's group; the first if there are several."""
        return bisect_right(self.first_slots, slot) - 1

    def may_go_on(self, number: int, slot: int) -> bool:
        """Whether the next block may have more pages of the slot."""
        behind = number + 1
        return behind < len(self.first_slots) and self.first_slots[behind] == slot + 1

    def fence_block_position(self, number: int) -> int:
        """The position of a block within the footer."""
        return BLOCK_BYTES * (self.filter_blocks + number)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearFooter:
    """A footer with a copy nearby: positions for `read` count from its first byte."""

    footer: Footer
    read: Read

    @classmethod
    def open(cls, read: Read, footer_bytes: int, *, file_bytes: int, path: str) -> NearFooter:
        """A copy of a footer; `file_bytes` is the size of the file with the footer, even if the
        file has none itself."""
        size = min(footer_bytes, TAIL_BYTES)
        tail = read(footer_bytes - size, size)
        footer = decode_tail(tail, file_bytes=file_bytes, path=path)
        if footer.footer_bytes != footer_bytes:
            raise SegmentCorruptError(path, "the copy of a footer is cut off", position=0)
        return cls(footer=footer, read=read)


class Group(NamedTuple):
    """Part of a file that holds all items of a slot, perhaps with those of its neighbours, or a
    page of a slot with many items; and its CRC32C, if known."""

    start: int
    end: int
    checksum: int | None = None


class Groups(NamedTuple):
    """All groups of a file in order; `positions` has one more entry: the end of the last one."""

    slots: NDArray[np.int64]
    positions: NDArray[np.int64]
    version: int

    @property
    def first_slots(self) -> list[int]:
        """The first slot of each block, as the tail lists it."""
        heads = np.arange(0, len(self.slots), fences_a_block(self.version))
        goes_on = self.slots[heads] == np.append(-1, self.slots)[heads]
        found: list[int] = (self.slots[heads] + goes_on).tolist()
        return found


class DamagedItemsError(SegmentCorruptError):
    """Items of an uploaded file do not match its footer."""


class GroupSums:
    """The CRC32C of the items of each group; the items come in order, in blocks of any size."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.sums = np.zeros(len(groups.slots), np.uint32)
        self._ends: list[int] = groups.positions[1:].tolist()
        self._position = int(groups.positions[0])
        self._at = 0

    @property
    def is_whole(self) -> bool:
        return self._position == self._ends[-1]

    def add(self, items: Buffer) -> None:
        view = memoryview(items).cast("B")
        while view:
            size = min(len(view), self._ends[self._at] - self._position)
            found = extend_crc32c(int(self.sums[self._at]), bytes(view[:size]))
            self.sums[self._at] = found
            view = view[size:]
            self._position += size
            while self._at + 1 < len(self._ends) and self._position == self._ends[self._at]:
                self._at += 1


def has_footer(tail: Buffer) -> bool:
    """Whether a file with this end has a footer of ours, of any version."""
    return len(tail) >= TRAILER_BYTES and bytes(tail[-len(MAGIC) :]) == MAGIC


def footer_or_header(read: Read, size: int, *, path: str) -> Footer | TieredIndexHeader:
    """The footer of an uploaded file, or its header if it has no footer of ours."""
    tail_bytes = min(size, TAIL_BYTES)
    tail = read(size - tail_bytes, tail_bytes)
    if has_footer(tail):
        return decode_tail(tail, file_bytes=size, path=path)
    return decode_header(read(0, min(size, HEADER_BYTES)), path=path)


def decode_tail(tail: Buffer, *, file_bytes: int, path: str = "") -> Footer:
    """The footer of a file that ends in these bytes: its last 16 KiB, or the whole file if shorter.

    Nothing in it is trusted until the checksum is right and the lengths add up.
    """
    at = file_bytes - TRAILER_BYTES
    if not has_footer(tail):
        raise SegmentCorruptError(path, "no footer", position=max(0, at))
    trailer = bytes(tail[-TRAILER_BYTES:])
    total, slots, items, used, groups, fences, filters, flags, *times, kind = _BODY.unpack_from(
        trailer
    )
    found, version, _ = _END.unpack_from(trailer, _BODY.size)
    if version not in _FENCE_WORDS or kind != CRC32C:
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
        version=version,
    )
    adds_up = footer.fence_blocks == fences and footer.footer_bytes == total
    adds_up = adds_up and footer.position + total == file_bytes and file_bytes <= INT32_MAX
    if not adds_up or footer.first_slots[0] != 0:
        raise SegmentCorruptError(path, "a footer of another file", position=at)
    return footer


def encode_tail(footer: Footer) -> bytes:
    """Everything after the blocks."""
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
    return covered + _END.pack(checksum(covered), footer.version, MAGIC)


def filter_block_count(key_count: int) -> int:
    return -(-key_count * _BITS_A_KEY // _BLOCK_BITS)


def build_filter(
    hashes: Callable[[], Iterable[Hashes]], block_count: int
) -> Iterator[NDArray[np.uint8]]:
    """All blocks with their checksums, one row per block; each pass over the hashes makes some.

    A pass covers a range of blocks that fits in memory with one byte per bit, which is several
    times as fast.
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
    """The block that has the bits of a key."""
    return (_mixed_one(key_hash) >> 32) * block_count >> 32


def may_hold(block: Buffer, key_hash: int, *, path: str, position: int) -> bool:
    """False only if no key with this hash was put. SegmentCorruptError if the block is damaged."""
    check_block(block, path=path, position=position)
    value = _mixed_one(key_hash)
    step = ((value * int(_STEP) & 0xFFFFFFFFFFFFFFFF) >> 32) | 1
    for probe in range(PROBES):
        bit = ((value + probe * step) & 0xFFFFFFFF) * _BLOCK_BITS >> 32
        if not block[bit >> 3] >> (bit & 7) & 1:
            return False
    return True


def fences_a_block(version: int) -> int:
    return _END_WORD // _FENCE_WORDS[version]


def groups_of(starts: NDArray[np.int32], *, version: int = CHECKED) -> Groups:
    """Divide the items of a file; `starts` are the slots' positions and the end of the last."""
    slot_count = len(starts) - 1
    slots: list[int] = []
    positions: list[int] = []
    slot = 0
    while slot < slot_count:
        start = int(starts[slot])
        limit = np.int32(min(start + GROUP_BYTES, INT32_MAX))
        after = int(starts.searchsorted(limit, side="right")) - 1
        pages = [start]
        if after <= slot:
            after = slot + 1
            if version == CHECKED:
                pages = list(range(start, int(starts[after]), GROUP_BYTES))
        slots += [slot] * len(pages)
        positions += pages
        slot = after
    positions.append(int(starts[-1]))
    return Groups(np.array(slots, np.int64), np.array(positions, np.int64), version)


def encode_fences(groups: Groups, sums: NDArray[np.uint32] | None = None) -> list[bytes]:
    """The blocks in order, with the checksums of the groups except in version 1."""
    blocks = []
    count, width = fences_a_block(groups.version), _FENCE_WORDS[groups.version]
    for at in range(0, len(groups.slots), count):
        held = groups.slots[at : at + count]
        end = int(groups.positions[at + len(held)])
        words = np.zeros(PAYLOAD_BYTES // 4, ">i4")
        rows = words[: count * width].reshape(count, width)
        rows[:, 0], rows[:, 1] = INT32_MAX, end
        rows[: len(held), 0] = held
        rows[: len(held), 1] = groups.positions[at : at + len(held)]
        if sums is not None and groups.version == CHECKED:
            rows[: len(held), 2] = sums[at : at + len(held)].view(np.int32)
        words[_END_WORD] = end
        payload = words.tobytes()
        blocks.append(payload + checksum(payload))
    return blocks


def find_groups(
    block: Buffer, slot: int, footer: Footer, *, path: str, position: int
) -> list[Group]:
    """The group of a slot, or those of its pages that this block has; none if the block begins
    after the slot."""
    slots, edges, sums = _fences(block, footer, path, position)
    behind = int(np.searchsorted(slots, slot, side="right"))
    if not behind:
        return []
    head = int(np.searchsorted(slots, slots[behind - 1], side="left"))
    return _sound_groups(edges[head : behind + 1], sums[head:behind], footer, path, position)


def all_groups(block: Buffer, footer: Footer, *, path: str, position: int) -> list[Group]:
    slots, edges, sums = _fences(block, footer, path, position)
    count = int(np.searchsorted(slots, INT32_MAX, side="left"))
    return _sound_groups(edges[: count + 1], sums[:count], footer, path, position)


def check_items(items: Buffer, group: Group, *, path: str) -> None:
    """DamagedItemsError unless these are the items of the group."""
    if group.checksum is not None and crc32c(bytes(items)) != group.checksum:
        reason = f"{len(items)} bytes of items have another checksum"
        raise DamagedItemsError(path, reason, position=group.start)


def check_block(block: Buffer, *, path: str, position: int) -> None:
    """SegmentCorruptError unless these are 4 KiB that end in their checksum."""
    if len(block) != BLOCK_BYTES:
        raise SegmentCorruptError(path, f"a block of {len(block)} bytes", position=position)
    whole = memoryview(block)
    if bytes(whole[PAYLOAD_BYTES:]) != checksum(whole[:PAYLOAD_BYTES]):
        raise SegmentCorruptError(path, "a block has another checksum", position=position)


def checksum(data: Buffer) -> bytes:
    return int(crc32c(bytes(data))).to_bytes(CHECKSUM_BYTES)


def _fences(
    block: Buffer, footer: Footer, path: str, position: int
) -> tuple[NDArray[Any], list[int], list[int | None]]:
    """First slots; where the groups begin and the last one ends; checksums."""
    check_block(block, path=path, position=position)
    count, width = fences_a_block(footer.version), _FENCE_WORDS[footer.version]
    words = np.frombuffer(block, ">i4", PAYLOAD_BYTES // 4)
    rows = words[: count * width].reshape(count, width)
    edges = [*rows[:, 1].tolist(), int(words[_END_WORD])]
    if footer.version == UNCHECKED:
        return rows[:, 0], edges, [None] * count
    return rows[:, 0], edges, rows[:, 2].astype(np.uint32).tolist()


def _sound_groups(
    edges: list[int], sums: list[int | None], footer: Footer, path: str, position: int
) -> list[Group]:
    first, end = footer.items_position, footer.position
    found = []
    for (start, stop), total in zip(pairwise(edges), sums, strict=True):
        whole = (stop - start) % COMPACTED_ITEM_BYTES == 0 and (
            start - first
        ) % COMPACTED_ITEM_BYTES == 0
        if not (first <= start <= stop <= end and whole):
            reason = f"a group from {start} to {stop}, but items lie within {first} to {end}"
            raise SegmentCorruptError(path, reason, position=position)
        found.append(Group(start, stop, total))
    return found


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
