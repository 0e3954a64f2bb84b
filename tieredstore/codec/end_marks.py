"""What may follow the last record of a commit log: blank records and old end markers.

What lives here: both marks, written and recognised. They share a magic number and differ in use.

Blank record: fills a file of the local log up to its end. Only these 8 bytes are defined:

    | offset | width | field                                   |
    | ------ | ----- | --------------------------------------- |
    |      0 | i32   | bytes left in the file, these included  |
    |      4 | u32   | magic CBD43194                          |

Coda: closes a segment that RocketMQ 5.1.0 to 5.2.0 sealed. It counts into the segment's size:

    | offset | width | field                                   |
    | ------ | ----- | --------------------------------------- |
    |      0 | i32   | 16                                      |
    |      4 | u32   | magic CBD43194                          |
    |      8 | i64   | largest store timestamp of the segment  |
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from tieredstore.codec.bounds import Buffer, pack_fields, require
from tieredstore.model.errors import SegmentCorruptError

BLANK_MAGIC: Final = 0xCBD43194
BLANK_BYTES: Final = 8
CODA_BYTES: Final = 16

_BLANK: Final = Struct(">iI")
_CODA: Final = Struct(">iIq")


def encode_blank(rest_bytes: int) -> bytes:
    """The 8 bytes that say: the rest of this file is empty."""
    if rest_bytes < BLANK_BYTES:
        raise ValueError(f"rest_bytes: {rest_bytes} leave no room for a blank record")
    return pack_fields(_BLANK, ("rest_bytes", "magic"), rest_bytes, BLANK_MAGIC)


def is_blank(data: Buffer, position: int = 0) -> bool:
    """Whether a blank record or a coda starts here; False where there is too little to tell."""
    if position < 0 or position + BLANK_BYTES > len(data):
        return False
    magic: int = _BLANK.unpack_from(data, position)[1]
    return magic == BLANK_MAGIC


def encode_coda(store_timestamp: int) -> bytes:
    """An end marker. We never write one; tests and old tools do."""
    return pack_fields(
        _CODA, ("size", "magic", "store_timestamp"), 16, BLANK_MAGIC, store_timestamp
    )


def is_coda(data: Buffer, position: int = 0) -> bool:
    if position < 0 or position + CODA_BYTES > len(data):
        return False
    size, magic, _ = _CODA.unpack_from(data, position)
    return bool(size == CODA_BYTES and magic == BLANK_MAGIC)


def decode_coda(data: Buffer, position: int = 0, *, path: str = "") -> int:
    """The largest store timestamp of the segment that the coda closes."""
    require(data, position=position, size=CODA_BYTES, path=path, what="end marker")
    size, magic, store_timestamp = _CODA.unpack_from(data, position)
    if size != CODA_BYTES or magic != BLANK_MAGIC:
        raise SegmentCorruptError(path, "no end marker starts here", position=position)
    return int(store_timestamp)
