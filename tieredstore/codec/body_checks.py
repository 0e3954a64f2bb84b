"""Whether many bodies have the checksums that their records say, found without a call for each.

A CRC is linear. Of bodies that stand one behind the other it is the sum of their own ones, each
times x to the power of the bits behind it. So one call for all of them, beside the sum of what the
records say, takes a quarter of the time of a call for each.

* The sum is as strong as single checks. Damage of one body always changes it, for powers of x have
  inverses; so does the same damage in two bodies, for their powers differ. Any other damage of
  several bodies passes once in 2^32 times. Which body is damaged the sum does not say: only then is
  each looked at alone.
* A record says 31 of the 32 bits. The top one, as linear as the rest, is the parity of some bits of
  the body, and is found for all bodies at once. It is taken from the body as it is: the sum then
  compares the bits that the record says, no more and no less.
* Sizes may differ. Zeros in front fill bodies up to a common width: they leave a register that
  begins with 0, which is what all of this is about, as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer, crc32
from tieredstore.model.values import INT32_MAX

LONG_BYTES: Final = 2048  # longer bodies are not quicker together
MANY: Final = 256  # fewer ones neither
_STEP_BITS: Final = 6
_STEP: Final = 1 << _STEP_BITS  # bodies of sizes between two multiples of it get a common width
_LONG: Final = LONG_BYTES // _STEP + 1
_WORD: Final = 8
_BLOCK_BYTES: Final = 256 * 1024  # what the nearest cache of a processor holds
_ONES: Final = 0xFFFF_FFFF
_LEVELS: Final = 4  # digits of 8 bits in a number of bytes below 4 GiB

Rows: TypeAlias = NDArray[np.int64]
Crcs: TypeAlias = NDArray[np.uint32]


def bodies_match(data: Buffer, starts: Rows, sizes: Rows, crcs: Rows) -> NDArray[np.bool_]:
    """Of many bodies whether each has the CRC that its record stores. They lie within the data."""
    kinds = np.minimum((sizes + (_STEP - 1)) >> _STEP_BITS, _LONG)
    kinds[(starts < _STEP) | (crcs < 0)] = 0  # no room for what goes before; never right
    counts = np.bincount(kinds, minlength=_LONG + 1)
    counts[[0, _LONG]] = 0
    groups = [np.flatnonzero(kinds == kind) for kind in np.flatnonzero(counts >= MANY)]
    if not groups or not _sum_is_right(data, starts + sizes, sizes, crcs, groups):
        return _match_singly(data, starts, sizes, crcs)
    same: NDArray[np.bool_] = counts[kinds] >= MANY
    rest = np.flatnonzero(~same)
    if len(rest):
        same[rest] = _match_singly(data, starts[rest], sizes[rest], crcs[rest])
    return same


def _match_singly(data: Buffer, starts: Rows, sizes: Rows, crcs: Rows) -> NDArray[np.bool_]:
    spans = map(slice, starts.tolist(), (starts + sizes).tolist())
    bodies = map(memoryview(data).__getitem__, spans)
    found = np.fromiter(map(crc32, bodies), np.uint32, len(starts))
    same: NDArray[np.bool_] = (found & INT32_MAX) == crcs
    return same


def _sum_is_right(
    data: Buffer, ends: Rows, sizes: Rows, crcs: Rows, groups: Sequence[Rows]
) -> bool:
    """Whether all rows of these groups together have the CRC that theirs add up to."""
    register = 0
    said: list[Crcs] = []
    widths: list[int] = []
    for rows in groups:
        group = sizes[rows]
        width = -(-int(group.max()) // _WORD) * _WORD
        register, tops = _read(data, ends[rows], group, width, register)
        low = (crcs[rows].astype(np.uint32) ^ _of_zeros()[group]) & np.uint32(INT32_MAX)
        said.append(low | tops)
        widths.append(width)
    each = np.repeat(widths, [len(rows) for rows in groups])
    return _sum(np.concatenate(said), np.cumsum(each[::-1])[::-1] - each) == register


def _read(data: Any, ends: Rows, sizes: Rows, width: int, register: int) -> tuple[int, Crcs]:
    """The register behind these bodies, each filled up to `width`; and the top bit of each."""
    windows: NDArray[Any] = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    deciding = _deciding_bits()[-width:].view(np.uint64)
    starts, fills = ends - width, width - sizes
    filled = -(-int(fills.max()) // _WORD)  # words of which not all are the body's
    found = np.empty(len(ends), np.uint64)
    step = _BLOCK_BYTES // width
    for at in range(0, len(ends), step):
        block = slice(at, at + step)
        words = windows[starts[block]].view(np.uint64).reshape(-1, width // _WORD)
        if filled:
            words[:, :filled] &= _behind_fill()[fills[block], :filled]
        register = _register(words, register)
        words &= deciding
        np.bitwise_xor.reduce(words, axis=1, out=found[block])
    return register, (np.bitwise_count(found) & 1).astype(np.uint32) << np.uint32(31)


def _sum(registers: Crcs, behind: Rows) -> int:
    """The sum of these, each shifted by the bytes behind it, which are fewer from row to row."""
    for level in range(_LEVELS):
        registers = _times(_powers(level)[0], (behind & 0xFF) << 10, registers)
        behind = behind >> 8
        first = np.flatnonzero(np.diff(behind, prepend=-1))
        registers, behind = np.bitwise_xor.reduceat(registers, first), behind[first]
        if not behind[0]:
            break
    return int(registers[0])


# Tables


def _register(data: Any, register: int) -> int:
    """The register of a CRC behind these bytes, without the ones that begin and end a CRC."""
    return crc32(data, register ^ _ONES) ^ _ONES


def _times(table: Crcs, at: Rows | int, registers: Crcs) -> Crcs:
    """Each register times what the table has from `at` on: 256 entries for each of its bytes."""
    found: Crcs = table[at + (registers & 0xFF)]
    for byte in (1, 2, 3):
        found ^= table[at + ((registers >> 8 * byte & 0xFF) + 256 * byte)]
    return found


@cache
def _powers(level: int) -> tuple[Crcs, Crcs]:
    """Tables of x to the power 8 · e · 256^level, for e below 256; and where e is 256 the images of
    single bits."""
    bits = ones = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if level:
        step = _powers(level - 1)[1]
    else:
        step = np.array([_register(b"\0", bit) for bit in ones.tolist()], np.uint32)
    for _ in range(8):
        table = _of_bytes(step)
        bits = np.concatenate((bits, _times(table, 0, bits)))
        step = _times(table, 0, step)
    return _of_bytes(bits), step


def _of_bytes(bits: Crcs) -> Crcs:
    """From the images of the 32 single bits those of all values of the 4 bytes."""
    parts = bits.reshape(-1, 8)
    table = np.zeros((len(parts), 1), np.uint32)
    for bit in range(8):
        table = np.concatenate((table, table ^ parts[:, bit : bit + 1]), axis=1)
    return table.reshape(-1)


@cache
def _deciding_bits() -> NDArray[np.uint8]:
    """The bits of the last LONG_BYTES of a body whose parity is the top bit of its register."""
    behind = np.arange(LONG_BYTES, 0, -1)[:, None]
    ones = 1 << np.arange(8)
    shifted = _powers(0)[0][((behind & 0xFF) << 10) + ones]
    shifted = _times(_powers(1)[0], (behind >> 8) << 10, shifted)
    return np.packbits((shifted >> 31).astype(np.bool_), axis=1, bitorder="little").reshape(-1)


@cache
def _of_zeros() -> Crcs:
    """The CRC of as many zeros: what a CRC has beyond its register, for each size."""
    return np.array([crc32(bytes(size)) for size in range(LONG_BYTES + 1)], np.uint32)


@cache
def _behind_fill() -> NDArray[np.uint64]:
    """Masks for the first words: none of the bytes of a fill, all of those behind it."""
    fills = np.arange(_STEP)
    return np.where(fills >= fills[:, None], 0xFF, 0).astype(np.uint8).view(np.uint64)
