"""Which keys an uploaded file cannot hold: a Bloom filter in blocks, each probed alone.

What lives here: building the blocks from the hashes of all keys, and asking one. Where they lie in
a file is in `footer`.

A block is 4 KiB: 32 736 bits and the CRC32C of their bytes, u32 big-endian. With m the mixed hash
of a key (`key_hashes.mixed`), it belongs to block (m >> 32) * blocks >> 32. Of it, six bits are
set: with s = (m * 9E3779B97F4A7C15 modulo 2^64) >> 32 | 1, bit number
(((m + i * s) modulo 2^32) * 32736) >> 32 for i from 0 to 5; bit b is 1 << b % 8 of byte b / 8.
Twelve bits a key let 0.4 % of other keys through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from tieredstore.codec.bounds import Buffer
from tieredstore.index.key_hashes import Hashes, mixed
from tieredstore.model.errors import SegmentCorruptError

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


def _mixed_one(key_hash: int) -> int:
    return int(mixed(np.array([key_hash], np.uint64))[0])


def checksum(data: Buffer) -> bytes:
    return int(crc32c(bytes(data))).to_bytes(CHECKSUM_BYTES)


def check_block(block: Buffer, *, path: str, position: int) -> None:
    """SegmentCorruptError unless these are 4 KiB that end in their checksum."""
    if len(block) != BLOCK_BYTES:
        raise SegmentCorruptError(path, f"a block of {len(block)} bytes", position=position)
    whole = memoryview(block)
    if bytes(whole[PAYLOAD_BYTES:]) != checksum(whole[:PAYLOAD_BYTES]):
        raise SegmentCorruptError(path, "a block has another checksum", position=position)
