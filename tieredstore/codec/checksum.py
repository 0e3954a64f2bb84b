"""The two checksums of a stored record.

What lives here: the CRC of the body, and the CRC of the whole record that a broker may append as
its last property. Both are CRC-32 without the sign bit.

The property, always the last 20 bytes of the record:

    | offset | width | content                                                       |
    | ------ | ----- | ------------------------------------------------------------- |
    |      0 |     8 | `__CRC32#`                                                     |
    |      8 |     1 | 0x01                                                          |
    |      9 |    10 | the value in ASCII digits, the last digit first, zeros behind |
    |     19 |     1 | 0x02                                                          |

It covers every byte before it, the log offset too: a record whose log offset is rewritten, as the
tier does, no longer matches.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.crc32 import crc32
from tieredstore.model.values import INT32_MAX

PROPERTY_CRC_NAME: Final = "__CRC32#"
PROPERTY_CRC_BYTES: Final = 20

_START: Final = b"__CRC32#\x01"
_ENTRY: Final = re.compile(rb"__CRC32#\x01([0-9]{10})\x02", re.DOTALL)
_PIECE: Final = re.compile(rb"[^\x02]*\x02|[^\x02]+")


def body_crc(body: Buffer) -> int:
    """The CRC as a record stores it; 0 for an empty body."""
    return crc32(body) & INT32_MAX


def bodies_match(
    data: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.int64], crcs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Of many bodies whether each has the CRC that its record stores. They lie within the data."""
    spans = map(slice, starts.tolist(), (starts + sizes).tolist())
    bodies = map(memoryview(data).__getitem__, spans)
    found = np.fromiter(map(crc32, bodies), np.uint32, len(starts))
    same: NDArray[np.bool_] = (found & INT32_MAX) == crcs
    return same


def encode_property_crc(value: int) -> bytes:
    """The 20 bytes of the property."""
    if not 0 <= value <= INT32_MAX:
        raise ValueError(f"property CRC: {value} is not within 0 to {INT32_MAX}")
    return _START + str(value)[::-1].ljust(10, "0").encode() + b"\x02"


def reserve_property_crc(property_bytes: bytes) -> bytes:
    """The property bytes with an empty CRC property at the end; one that was there is dropped."""
    kept = b"".join(
        piece for piece in _PIECE.findall(property_bytes) if not piece.startswith(_START)
    )
    separator = b"\x02" if kept and not kept.endswith(b"\x02") else b""
    return kept + separator + bytes(PROPERTY_CRC_BYTES)


def property_crc_of(record: Buffer) -> int:
    """The value that the property at the end of this record should have."""
    return crc32(memoryview(record)[:-PROPERTY_CRC_BYTES]) & INT32_MAX


def fill_property_crc(record: bytearray | memoryview) -> None:
    """Write the property into the last 20 bytes, which must have been reserved for it."""
    if len(record) < PROPERTY_CRC_BYTES:
        raise ValueError(f"record: {len(record)} bytes have no room for a property CRC")
    record[-PROPERTY_CRC_BYTES:] = encode_property_crc(property_crc_of(record))


def has_property_crc(record: Buffer) -> bool:
    """Whether the record ends in a property CRC, right or wrong."""
    return _ENTRY.fullmatch(bytes(record[-PROPERTY_CRC_BYTES:])) is not None


def matches_property_crc(record: Buffer) -> bool:
    """Whether the record ends in a property CRC that is right. Give exactly one record."""
    tail = bytes(record[-PROPERTY_CRC_BYTES:])
    if _ENTRY.fullmatch(tail) is None:
        return False
    return encode_property_crc(property_crc_of(record)) == tail


def gainsays_property_crc(record: Buffer) -> bool:
    """Whether the record ends in a property CRC that is wrong. One that carries none may be right:
    it may be older than the setting."""
    tail = bytes(record[-PROPERTY_CRC_BYTES:])
    return _ENTRY.fullmatch(tail) is not None and not matches_property_crc(record)
