"""Java's treatment of text and numbers, reproduced so that our files match RocketMQ's.

Java hashes UTF-16 code units: h = 31 * h + unit, modulo 2^32. For many texts this is one pass over
all units. 31 is odd, so it has an inverse modulo 2^32: multiply unit i by 31^-(i+1), sum up from
the left, take the difference of the sums at both ends of a text, and multiply it by 31^(end).

Signs of index hashes. The local index takes the absolute value, and 0 for -2^31. The index of
the tier negates negative hashes, which does not change -2^31; the slot of that hash, a remainder in
Java, is negative unless the slot count is a power of two. Java writes to that place before the
slots: with few slots it overwrites the header, otherwise it throws and the key is lost. See
`tiered_place` for what we do. Later brokers are said to mask the hash instead, so readers try both:
`tiered_probes`.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from functools import cache
from operator import mul
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.model.values import INT32_MAX

INT32_MIN: Final = -INT32_MAX - 1

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_INVERSE_OF_31: Final = pow(31, -1, 1 << 32)
_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_RUN_UNITS: Final = 256
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_RUN_UNITS + 1))
_GROUP_CHARACTERS: Final = 1 << 15
_VECTOR_KEYS_MIN: Final = 8
KEY_CHARACTERS_MAX: Final = _GROUP_CHARACTERS
"""The longest text that `joined_key_hashes` takes."""
_REPLACE: Final = "tieredstore-java"
_TRIMMED: Final = "".join(map(chr, range(33)))


def string_hash(text: str) -> int:
    """String.hashCode: a signed 32-bit number."""
    units = _units(text)
    total: int
    if len(units) <= _RUN_UNITS:
        total = sum(map(mul, units[::-1], _POWERS))
    else:
        total = 0
        for start in range(0, len(units), _RUN_UNITS):
            run = units[start : start + _RUN_UNITS]
            total = total * _POWERS[len(run)] + sum(map(mul, run[::-1], _POWERS)) & _MASK
    return ((total & _MASK) ^ _SIGN) - _SIGN


def _units(text: str) -> bytes | memoryview[int]:
    """UTF-16 code units as numbers; for ASCII they are the bytes."""
    if text.isascii():
        return text.encode()
    return memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")


def string_hashes(texts: Sequence[str]) -> NDArray[np.int32]:
    """String.hashCode of many texts; faster than one by one from about eight on."""
    count = len(texts)
    if count < _VECTOR_KEYS_MIN:
        return np.fromiter(map(string_hash, texts), np.int32, count)
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, count))
    if ends[-1] <= _GROUP_CHARACTERS:
        return _hash_group(texts, ends)
    hashes = np.empty(count, np.int32)
    start = before = 0
    while start < count:
        stop = int(np.searchsorted(ends, before + _GROUP_CHARACTERS, side="right"))
        if stop == start:  # a text longer than a group
            hashes[start] = string_hash(texts[start])
            stop = start + 1
        else:
            hashes[start:stop] = _hash_group(texts[start:stop], ends[start:stop] - before)
        before = int(ends[stop - 1])
        start = stop
    return hashes


def _hash_group(texts: Sequence[str], ends: NDArray[np.int64]) -> NDArray[np.int32]:
    joined = "".join(texts)
    units: NDArray[np.uint8] | NDArray[np.uint16]
    if joined.isascii():
        units = np.frombuffer(joined.encode(), np.uint8)
    else:
        units = np.frombuffer(joined.encode(_UTF16, "surrogatepass"), np.uint16)
        if len(units) != len(joined):
            ends = _unit_ends(joined, ends)
    powers, inverses = _power_tables()
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units * inverses[1 : len(units) + 1], dtype=np.uint32, out=sums[1:])
    at_ends = sums[ends]
    hashes = at_ends.copy()
    hashes[1:] -= at_ends[:-1]
    hashes *= powers[ends]
    return hashes.view(np.int32)


def _unit_ends(joined: str, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ends in UTF-16 units from ends in characters: astral characters are two units."""
    points = np.frombuffer(joined.encode(_UTF16.replace("16", "32"), "surrogatepass"), np.uint32)
    astral_before = np.zeros(len(points) + 1, np.int64)
    np.cumsum(points > 0xFFFF, out=astral_before[1:])
    return ends + astral_before[ends]


@cache
def _power_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """31^i and 31^-i for all units of a group: 256 KiB each, computed once."""
    tables = []
    for base in (31, _INVERSE_OF_31):
        table = np.full(2 * _GROUP_CHARACTERS + 1, base, np.uint32)
        table[0] = 1
        tables.append(np.multiply.accumulate(table, dtype=np.uint32))
    return tables[0], tables[1]


def index_key(topic: str, key: str) -> str:
    """The text that both indexes hash."""
    return f"{topic}#{key}"


def local_key_hash(text: str) -> int:
    """The hash as the local index stores it: 0 to 2^31 - 1."""
    value = abs(string_hash(text))
    return 0 if value == _SIGN else value


def local_key_hashes(texts: Sequence[str]) -> NDArray[np.int32]:
    return _local(string_hashes(texts))


def _local(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.abs(hashes) & INT32_MAX  # -2^31 is its own absolute value, and becomes 0


def joined_key_hashes(
    joined: str, row_end: str, piece_end: str, topics: Sequence[str]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """`local_key_hash` of `index_key(topic, piece)` for each piece of each row of a text.

    `joined` holds one row for each topic; both separators are ASCII. Empty pieces are skipped. The
    second result is the number of pieces in each row. No string is made per piece: the hash of its
    topic is multiplied by 31 for each unit of the piece.
    """
    units: NDArray[np.uint8] | NDArray[np.uint16]
    if joined.isascii():
        units = np.frombuffer(joined.encode(), np.uint8)
    else:
        units = np.frombuffer(joined.encode(_UTF16, "surrogatepass"), np.uint16)
    row_ends = units == ord(row_end)
    ends = np.append(np.flatnonzero(row_ends | (units == ord(piece_end))), len(units))
    starts = np.concatenate(([0], ends[:-1] + 1))
    rows = np.concatenate(([0], row_ends[ends[:-1]].cumsum()))
    powers, inverses = _power_tables()
    terms = np.zeros(len(units) + 1, np.uint32)
    np.multiply(units, inverses[1 : len(units) + 1], out=terms[:-1])
    terms[ends] = 0  # the separators
    heads = {topic: string_hash(index_key(topic, "")) & _MASK for topic in set(topics)}
    hashes = powers[ends - starts]
    if len(heads) == 1:
        hashes *= np.uint32(heads[topics[0]])
    else:
        hashes *= np.array([heads[topic] for topic in topics], np.uint32)[rows]
    hashes += np.add.reduceat(terms, starts) * powers[ends]
    held = ends > starts
    if not held.all():
        hashes, rows = hashes[held], rows[held]
    return _local(hashes.view(np.int32)), np.bincount(rows, minlength=len(topics))


def local_slot(key_hash: int, slot_count: int) -> int:
    return key_hash % slot_count


def tiered_place(key_hash: int, slot_count: int) -> tuple[int, int]:
    """The hash and the slot that we write.

    If Java's slot is negative, nobody can find the key by Java's rule. So it is written as hash 0
    in slot 0, where a broker that masks hashes finds it, and so do our `tiered_probes`.
    """
    slot = java_remainder(key_hash, slot_count)
    return (key_hash, slot) if slot >= 0 else (0, 0)


def tiered_places(
    key_hashes: NDArray[np.int32], slot_count: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`tiered_place` for many hashes: hashes and slots."""
    slots = np.fmod(key_hashes, np.int32(slot_count))  # fmod has the sign of Java's remainder
    if slots.size and slots.min() < 0:
        lost = slots < 0
        return np.where(lost, np.int32(0), key_hashes), np.where(lost, np.int32(0), slots)
    return key_hashes, slots


def tiered_probes(text: str, slot_count: int) -> tuple[tuple[int, int], ...]:
    """Every (hash, slot) under which a file of the tier may hold the key, the usual one first."""
    value = string_hash(text)
    if value >= 0:
        return ((value, value % slot_count),)
    classic = tiered_place(-value if value > INT32_MIN else value, slot_count)
    masked = value & INT32_MAX
    probes = (classic, (masked, masked % slot_count))
    return probes if probes[0] != probes[1] else probes[:1]


def java_divide(dividend: int, divisor: int) -> int:
    """Java's `/`: truncates toward zero."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def java_remainder(dividend: int, divisor: int) -> int:
    """Java's `%`: has the sign of the dividend."""
    return dividend - divisor * java_divide(dividend, divisor)


def wrap_int32(value: int) -> int:
    """Java's cast to int."""
    return ((value & _MASK) ^ _SIGN) - _SIGN


def trim(text: str) -> str:
    """Java's `String.trim`: unlike Python's `strip` it keeps wide blanks."""
    return text.strip(_TRIMMED)


def encode_utf8(text: str) -> bytes:
    """UTF-8; a lone surrogate becomes `?`."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Python keeps two surrogates apart where Java sees one character: join them first.
        paired = text.encode(_UTF16, "surrogatepass").decode(_UTF16, "surrogatepass")
        return paired.encode("utf-8", "replace")


def decode_utf8(data: bytes | bytearray | memoryview) -> str:
    """Text; bytes that are not UTF-8 become U+FFFD, as many as in Java. Never raises."""
    return str(data, "utf-8", _REPLACE)


def _replace_like_java(problem: UnicodeError) -> tuple[str, int]:
    """Java counts an encoded surrogate (ED A0..BF xx) as one error, Python as two or three."""
    assert isinstance(problem, UnicodeDecodeError)
    wrong = problem.object[problem.start : problem.start + 3]
    if wrong[0] != 0xED or len(wrong) < 2 or not 0xA0 <= wrong[1] <= 0xBF:
        return "\ufffd", problem.end
    whole = len(wrong) == 3 and 0x80 <= wrong[2] <= 0xBF
    return "\ufffd", problem.start + (3 if whole else 2)


codecs.register_error(_REPLACE, _replace_like_java)
