"""Bounds checks and checksums that all codecs share.

A stored record may have two checksums: one of its body, in a field, and one of the whole record, in
a property that is always its last 20 bytes:

    | offset | width | content                                                       |
    | ------ | ----- | ------------------------------------------------------------- |
    |      0 |     8 | `__CRC32#`                                                     |
    |      8 |     1 | 0x01                                                          |
    |      9 |    10 | the value in ASCII digits, the last digit first, zeros behind |
    |     19 |     1 | 0x02                                                          |

The second covers every byte before it, even the log offset: a record whose log offset is rewritten,
as the tier does, no longer matches.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from struct import Struct, error, pack
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What decoders accept; the items of a memoryview must be single bytes."""


_FIELD = re.compile(r"\d*[a-zA-Z]")
_WIDTHS: Final = {
    "b": "a signed byte",
    "h": "16 signed bits",
    "i": "32 signed bits",
    "I": "32 unsigned bits",
    "q": "64 signed bits",
}


def require(data: Buffer, *, position: int, size: int, path: str, what: str) -> None:
    """Raise SegmentCorruptError unless `size` bytes can be read from `position` on."""
    if position < 0 or size < 0 or position + size > len(data):
        held = max(0, len(data) - max(0, position))
        raise SegmentCorruptError(
            path, f"{what} needs {size} bytes, but there are {held}", position=position
        )


def require_multiple(data: Buffer, *, size: int, path: str, what: str) -> None:
    """Raise SegmentCorruptError unless the data is a whole number of entries of `size` bytes."""
    rest = len(data) % size
    if rest:
        raise SegmentCorruptError(
            path, f"{what}: {rest} bytes are left over", position=len(data) - rest
        )


def pack_fields(layout: Struct, names: Sequence[str], *values: Any) -> bytes:
    """Pack the values. Raises ValueError, with the field's name, for one that does not fit."""
    try:
        return layout.pack(*values)
    except error:
        raise misfit(layout, names, values) from None


def misfit(layout: Struct, names: Sequence[str], values: Sequence[Any]) -> ValueError:
    """The ValueError for the first value that the layout refuses."""
    for kind, name, value in zip(_FIELD.findall(layout.format), names, values, strict=True):
        try:
            pack(">" + kind, value)
        except error:
            # Python refuses to print numbers of thousands of digits.
            vast = isinstance(value, int) and value.bit_length() > 128
            shown = "a vast number" if vast else reprlib.repr(value)
            return ValueError(f"{name}: {shown} does not fit {_WIDTHS.get(kind, kind)}")
    return ValueError("the values do not fit")


def column(name: str, values: ArrayLike, *, bits: int = 64) -> NDArray[np.int64]:
    """The values as a column of int64. Raises ValueError if one is not a whole number of `bits`
    signed bits."""
    try:
        array = np.asarray(values)
    except OverflowError:
        raise ValueError(f"{name}: a value does not fit 64 signed bits") from None
    if array.ndim != 1:
        raise ValueError(f"{name}: one dimension is needed, not {array.ndim}")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: whole numbers of at most 64 signed bits are needed")
    top = 1 << (bits - 1)
    if int(array.max()) >= top or int(array.min()) < -top:
        raise ValueError(f"{name}: a value does not fit {bits} signed bits")
    return array.astype(np.int64, copy=False)


def view_entries(
    data: Buffer, layout: np.dtype[Any], *, position: int, count: int, path: str, what: str
) -> NDArray[Any]:
    """A read-only view of `count` entries, without a copy."""
    require(data, position=position, size=count * layout.itemsize, path=path, what=what)
    if count == 0:
        return np.empty(0, layout)
    view: NDArray[Any] = np.frombuffer(data, layout, count=count, offset=position)
    view.flags.writeable = False
    return view


def encode_entries(layout: np.dtype[np.void], **columns: tuple[ArrayLike, int]) -> bytes:
    """Entries packed from columns given as (values, bits), all of the same length."""
    checked = {name: column(name, values, bits=bits) for name, (values, bits) in columns.items()}
    counts = {len(values) for values in checked.values()}
    if len(counts) != 1:
        raise ValueError(f"columns of different lengths: {sorted(counts)}")
    entries = np.zeros(counts.pop(), layout)
    for name, values in checked.items():
        entries[name] = values
    return entries.tobytes()


try:  # a quarter of zlib's time for a kilobyte: docs/decisions/0012-crc-from-isa-l.md
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

crc32 = _crc32


PROPERTY_CRC_NAME: Final = "__CRC32#"
PROPERTY_CRC_BYTES: Final = 20

_START: Final = b"__CRC32#\x01"
_ENTRY: Final = re.compile(rb"__CRC32#\x01([0-9]{10})\x02", re.DOTALL)
_PIECE: Final = re.compile(rb"[^\x02]*\x02|[^\x02]+")


def body_crc(body: Buffer) -> int:
    """The CRC as a record stores it; 0 for an empty body."""
    return crc32(body) & INT32_MAX


def encode_property_crc(value: int) -> bytes:
    """The 20 bytes of the property."""
    if not 0 <= value <= INT32_MAX:
        raise ValueError(f"property CRC: {value} is not within 0 to {INT32_MAX}")
    return _START + str(value)[::-1].ljust(10, "0").encode() + b"\x02"


def without_property_crc(property_bytes: bytes) -> bytes:
    """The property bytes without a CRC property, which holds only for the record it came in."""
    pieces: list[bytes] = _PIECE.findall(property_bytes)
    return b"".join(piece for piece in pieces if not piece.startswith(_START))


def reserve_property_crc(property_bytes: bytes) -> bytes:
    """The property bytes with an empty CRC property at the end; an existing one is dropped."""
    kept = without_property_crc(property_bytes)
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
    """Whether the record ends in a right property CRC. `record` must be exactly one record."""
    tail = bytes(record[-PROPERTY_CRC_BYTES:])
    if _ENTRY.fullmatch(tail) is None:
        return False
    return encode_property_crc(property_crc_of(record)) == tail


def property_crc_ok(record: Buffer, has_crc: bool) -> bool:
    """Whether the property CRC is right; it may be missing unless `has_crc`."""
    return matches_property_crc(record) if has_crc else not gainsays_property_crc(record)


def gainsays_property_crc(record: Buffer) -> bool:
    """Whether the record ends in a wrong property CRC. A record without one may be sound: it may
    be older than the setting."""
    tail = bytes(record[-PROPERTY_CRC_BYTES:])
    return _ENTRY.fullmatch(tail) is not None and not matches_property_crc(record)
