"""CRC-32C of what is put into an object store, and of pieces one behind the other.

What lives here: the checksum as text for an object's metadata, and `joined`, which gives the
checksum of a whole from those of its pieces without reading them again.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import google_crc32c

from tieredstore.driver.segment import Buffer

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, its bits reflected
_ONE: Final = 1 << 31


def crc32c(data: Buffer) -> int:
    return int(google_crc32c.value(data if isinstance(data, bytes) else bytes(data)))


def joined(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two pieces from theirs and the length of the second."""
    return _product(_power(8 * second_bytes), first) ^ second


def _product(left: int, right: int) -> int:
    """Of two polynomials over GF(2), modulo the one of the checksum."""
    result, bit = 0, _ONE
    while bit:
        if left & bit:
            result ^= right
        right = (right >> 1) ^ (_POLYNOMIAL if right & 1 else 0)
        bit >>= 1
    return result


@cache
def _squared(times: int) -> int:
    """x squared this often."""
    if not times:
        return _ONE >> 1
    half = _squared(times - 1)
    return _product(half, half)


def _power(exponent: int) -> int:
    """x to this power."""
    result, times = _ONE, 0
    while exponent:
        if exponent & 1:
            result = _product(_squared(times), result)
        exponent >>= 1
        times += 1
    return result
