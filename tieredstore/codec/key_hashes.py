"""One 64-bit hash for each `topic#key`, with the index's own hash in the lower half.

The hash is h = M * h + unit over UTF-16 units, modulo 2^64, where M is 31 modulo 2^32. So its lower
32 bits are String.hashCode, and one pass over all units gives both. M is odd, so it has an inverse:
multiply unit i of many texts in a row by M^-(i+1), sum up each text and multiply by M^(end). The
upper half distinguishes texts with equal Java hashes. It need not be hard to guess, since a wrong
filter only costs a read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import INT32_MIN, tiered_places

MULTIPLIER: Final = 0x9E3779B5_0000001F
_INVERSE: Final = pow(MULTIPLIER, -1, 1 << 64)
_MASK: Final = (1 << 64) - 1
_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_GROUP_CHARACTERS: Final = 1 << 15
_GROUP_TEXTS: Final = 1 << 10
_SPAN_CHARACTERS: Final = 1 << 17  # hashed together; each takes eight bytes
_END: Final = "\0"
_VECTOR_KEYS_MIN: Final = 8

Hashes = NDArray[np.uint64]


def key_hash(text: str) -> int:
    """The hash of one text: 0 to 2^64 - 1."""
    if text.isascii():
        units: bytes | memoryview[int] = text.encode()
    else:
        units = memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = value * MULTIPLIER + unit & _MASK
    return value


def key_hashes(texts: Sequence[str], *, prefix: str = "") -> Hashes:
    """The hashes of `prefix + text` for many texts, such as `topic#` and its keys."""
    count = len(texts)
    if count <= _GROUP_TEXTS:
        return _hash_group(texts, prefix)
    hashes = np.empty(count, np.uint64)
    for start in range(0, count, _GROUP_TEXTS):
        stop = start + _GROUP_TEXTS
        hashes[start:stop] = _hash_group(texts[start:stop], prefix)
    return hashes


def span_hashes(
    data: Any,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    kind: type[np.unsignedinteger[Any]] = np.uint64,
) -> NDArray[np.unsignedinteger[Any]]:
    """The hashes of the ASCII texts `data[start:end]`. A narrower `kind` gives their lower bits:
    String.hashCode has 32. Texts of one length are hashed together."""
    lengths = ends - starts
    hashes = np.zeros(len(starts), kind)
    powers = _power_tables()[0]
    longest = len(powers) - 1
    for row in np.flatnonzero(lengths > longest).tolist():
        whole = key_hash(bytes(data[int(starts[row]) : int(ends[row])]).decode("ascii"))
        hashes[row] = np.uint64(whole).astype(kind)
    for length in np.flatnonzero(np.bincount(lengths[lengths <= longest])).tolist():
        if not length:
            continue
        rows = np.flatnonzero(lengths == length)
        windows: NDArray[Any] = np.ndarray(
            (len(data) - length + 1,), f"V{length}", data, strides=(1,)
        )
        factors = powers[:length][::-1].astype(kind)
        step = max(1, _SPAN_CHARACTERS // length)
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            units = windows[starts[some]].view(np.uint8).reshape(-1, length).astype(kind)
            hashes[some] = np.einsum("ij,j->i", units, factors)
    return hashes


def hashes_behind(before: Hashes, hashes: Hashes, lengths: NDArray[np.int64]) -> Hashes:
    """The hashes of texts with a prefix: `before` has the hashes of the prefixes, `hashes` those of
    the texts alone, `lengths` the number of units of each text."""
    powers, _ = _power_tables()
    longest = len(powers) - 1
    factors = powers[np.minimum(lengths, longest)]
    for row in np.flatnonzero(lengths > longest).tolist():
        factors[row] = pow(MULTIPLIER, int(lengths[row]), 1 << 64)
    return before * factors + hashes


def utf16_lengths(texts: Sequence[str]) -> NDArray[np.int64]:
    """How many units each text has."""
    sizes = (len(text.encode(_UTF16, "surrogatepass")) for text in texts)
    return np.fromiter(sizes, np.int64, len(texts)) // 2


def _hash_group(texts: Sequence[str], prefix: str) -> Hashes:
    count = len(texts)
    if count < _VECTOR_KEYS_MIN:
        return np.fromiter((key_hash(prefix + text) for text in texts), np.uint64, count)
    joined = _END.join(texts) + _END
    if len(joined) > _GROUP_CHARACTERS:
        half = count // 2
        parts = (_hash_group(texts[:half], prefix), _hash_group(texts[half:], prefix))
        return np.concatenate(parts)
    if joined.isascii():
        units = np.frombuffer(joined.encode(), np.uint8)
        ends = np.flatnonzero(units == ord(_END))
        terms = units.astype(np.uint64)
    else:
        wide = np.frombuffer(joined.encode(_UTF16, "surrogatepass"), np.uint16)
        ends = np.flatnonzero(wide == ord(_END))
        terms = wide.astype(np.uint64)
    if len(ends) != count:  # a text contains the separator
        return np.fromiter((key_hash(prefix + text) for text in texts), np.uint64, count)
    starts = np.empty(count, np.int64)
    starts[0] = 0
    np.add(ends[:-1], 1, out=starts[1:])
    powers, inverses = _power_tables()
    terms *= inverses[1 : len(terms) + 1]
    terms[ends] = 0
    hashes = np.add.reduceat(terms, starts)
    hashes *= powers[ends]
    if prefix:
        hashes += powers[ends - starts] * np.uint64(key_hash(prefix))
    return hashes


@cache
def _power_tables() -> tuple[Hashes, Hashes]:
    """M^i and M^-i for all units of a group: 256 KiB each, computed once."""
    tables = []
    for factor in (MULTIPLIER, _INVERSE):
        table = np.full(2 * _GROUP_CHARACTERS + 1, factor, np.uint64)
        table[0] = 1
        tables.append(np.multiply.accumulate(table, dtype=np.uint64))
    return tables[0], tables[1]


def item_places(hashes: Hashes, slot_count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The hash that an item holds and its slot, by the classic rule."""
    classic = hashes.astype(np.uint32).view(np.int32)
    np.abs(classic, out=classic)  # -2^31 stays, as it does in Java
    if classic.size and classic.min() == INT32_MIN:
        return tiered_places(classic, slot_count)
    return classic, slots_of(classic, slot_count)


def slots_of(item_hashes: NDArray[np.int32], slot_count: int) -> NDArray[np.int32]:
    """The slots of item hashes. None may be negative, except -2^31 with a power of two as
    `slot_count`."""
    unsigned = item_hashes.view(np.uint32)
    divisor = np.uint32(slot_count)
    quotients = unsigned // divisor  # numpy divides faster than it takes remainders
    quotients *= divisor
    np.subtract(unsigned, quotients, out=quotients)
    return quotients.view(np.int32)


def mixed(hashes: Hashes) -> Hashes:
    """Spread every bit of a hash over all bits, for use in a filter."""
    values = hashes ^ (hashes >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
