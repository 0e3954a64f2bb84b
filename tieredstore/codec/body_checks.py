"""Checks many bodies against the checksums in their records, without a call for each.

XORing a CRC's register into the next four bytes clears the register. So the checksum in each record
is XORed into the following body: if it is right, the register starts again from zero, and one call
covers a block of bodies. If one is wrong, the register is wrong at the end.

* This is as strong as single checks. Damage of one body always shows, because a register that
  differs keeps differing; so does the same damage in two bodies. Any other damage of several bodies
  passes once in 2^32 times. The result does not tell which body is damaged: only then is each
  checked alone.
* A record holds 31 of the 32 bits. The top bit is the parity of some bits of the body, and is
  computed for all bodies at once. It comes from the body itself, so exactly the 31 bits of the
  record are compared.
* Sizes may differ. Zeros in front fill bodies up to a common width: they do not change a register
  that begins with 0.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer, crc32
from tieredstore.model.values import INT32_MAX

LONG_BYTES: Final = 2048  # longer bodies are not faster together
MANY: Final = 256  # fewer bodies are not faster together either
_STEP_BITS: Final = 6
_STEP: Final = 1 << _STEP_BITS  # bodies with sizes between two multiples get a common width
_LONG: Final = LONG_BYTES // _STEP + 1
_WORD: Final = 8
_BLOCK_BYTES: Final = 1024 * 1024  # copied at a time; each block takes a few calls
_ONES: Final = 0xFFFF_FFFF
_POLYNOMIAL: Final = 0xEDB8_8320

Rows: TypeAlias = NDArray[np.int64]


def bodies_match(data: Buffer, starts: Rows, sizes: Rows, crcs: Rows) -> NDArray[np.bool_]:
    """Whether each body has the CRC in its record. All bodies lie within the data."""
    kinds = np.minimum((sizes + (_STEP - 1)) >> _STEP_BITS, _LONG)
    kinds[(starts < _STEP) | (crcs < 0)] = 0  # no room for a fill; or a CRC that is never right
    counts = np.bincount(kinds, minlength=_LONG + 1)
    counts[[0, _LONG]] = 0
    groups = [np.flatnonzero(kinds == kind) for kind in np.flatnonzero(counts >= MANY)]
    ends = starts + sizes
    if not groups or not all(_match(data, ends[rows], sizes[rows], crcs[rows]) for rows in groups):
        return _match_singly(data, starts, sizes, crcs)
    same: NDArray[np.bool_] = counts[kinds] >= MANY
    rest = np.flatnonzero(~same)
    if len(rest):
        same[rest] = _match_singly(data, starts[rest], sizes[rest], crcs[rest])
    return same


def _match_singly(data: Buffer, starts: Rows, sizes: Rows, crcs: Rows) -> NDArray[np.bool_]:
    view, ends = memoryview(data), (starts + sizes).tolist()
    bodies = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    found = np.array(bodies, np.uint32)
    same: NDArray[np.bool_] = (found & INT32_MAX) == crcs
    return same


def _match(data: Any, ends: Rows, sizes: Rows, crcs: Rows) -> bool:
    """Whether all of these bodies, of similar length, have these CRCs."""
    width = -(-int(sizes.max()) // _WORD) * _WORD
    windows: NDArray[Any] = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    deciding = _deciding_bits()[-width:].view(np.uint64)
    low = (crcs.astype(np.uint32) ^ _of_zeros()[sizes]) & np.uint32(INT32_MAX)
    starts, fills = ends - width, width - sizes
    filled = -(-int(fills.max()) // _WORD)  # leading words that may contain a fill
    step = _BLOCK_BYTES // width
    for at in range(0, len(ends), step):
        block = slice(at, at + step)
        words = windows[starts[block]].view(np.uint64).reshape(-1, width // _WORD)
        if filled:
            words[:, :filled] &= _behind_fill()[fills[block], :filled]
        deciders = np.bitwise_count(np.bitwise_xor.reduce(words & deciding, axis=1))
        said = low[block] | ((deciders & 1).astype(np.uint32) << np.uint32(31))
        words.view("<u4")[1:, 0] ^= said[:-1]
        if crc32(words, _ONES) ^ _ONES != said[-1]:
            return False
    return True


@cache
def _deciding_bits() -> NDArray[np.uint8]:
    """The bits of the last LONG_BYTES of a body whose parity is the top bit of its register."""
    register, tops = 1, []
    for _ in range(8 * LONG_BYTES):  # what one bit becomes with each bit after it
        register = register >> 1 ^ (register & 1) * _POLYNOMIAL
        tops.append(register >> 31)
    return np.packbits(tops[::-1], bitorder="little")


@cache
def _of_zeros() -> NDArray[np.uint32]:
    """The CRC of n zeros, for each n: how a CRC differs from a register that began with 0."""
    return np.array([crc32(bytes(size)) for size in range(LONG_BYTES + 1)], np.uint32)


@cache
def _behind_fill() -> NDArray[np.uint64]:
    """Masks for the first words: clear the bytes of a fill, keep all bytes after it."""
    fills = np.arange(_STEP)
    return np.where(fills >= fills[:, None], 0xFF, 0).astype(np.uint8).view(np.uint64)
