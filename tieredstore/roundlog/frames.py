"""The frame of every object of a log: a header with sizes and checksums, a readable head, columns
of numbers, then the bytes of messages.

    | part    | bytes |                                                                         |
    | ------- | ----- | ----------------------------------------------------------------------- |
    | header  | 64    | below                                                                   |
    | head    | any   | JSON: what the object says, and where its columns are; may be deflated  |
    | columns | any   | numbers, column after column; may be deflated                           |
    | payload | any   | bytes of segments, unchanged                                            |

All numbers are little-endian and unsigned.

    | offset | width | field of the header                                                 |
    | ------ | ----- | ------------------------------------------------------------------- |
    |      0 |     4 | magic `TSRL`                                                        |
    |      4 |     2 | version: 1                                                          |
    |      6 |     1 | kind: 1 entry, 2 state, 3 table                                     |
    |      7 |     1 | zero                                                                |
    |      8 |     4 | size of the head                                                    |
    |     12 |     4 | size of the head as stored: smaller if it is deflated               |
    |     16 |     4 | size of the columns                                                 |
    |     20 |     4 | size of the columns as stored                                       |
    |     24 |     8 | size of the payload                                                 |
    |     32 |     4 | CRC-32C of the payload                                              |
    |     36 |    20 | zeros                                                               |
    |     56 |     4 | CRC-32C of head and columns as stored                               |
    |     60 |     4 | CRC-32C of the header up to here                                    |

So a reader can check the beginning of an object without the payload, which has a checksum of its
own for readers of all of it.

A table comes after its payload, at the end of a data object. The object's last 16 bytes are the
size of the table, in 8 bytes, and the magic `TSRLTAIL`.

**A column** is narrowed before it is deflated, to 0, 1, 2, 4 or 8 bytes a value. Stored are either
the values minus the smallest one, or the differences of neighbouring values minus the smallest
difference, whichever is narrower. In the head, `base` is the number that was subtracted; `first` is
the first value, if differences are stored. All sums are modulo 2^64.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Annotated, Any, Final, Literal, TypeAlias

import google_crc32c
import msgspec
import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.segment import Buffer
from tieredstore.metadata.tables import describe
from tieredstore.model.errors import InvalidArgumentError, MetadataError
from tieredstore.model.values import Json

MAGIC: Final = b"TSRL"
VERSION: Final = 1
TAIL_MAGIC: Final = b"TSRLTAIL"
STORED_BYTES_MAX: Final = 256 << 20  # of head and columns
RAW_BYTES_MAX: Final = 1 << 30  # of both inflated; also of all values at 8 bytes each
_HEADER: Final = Struct("<4sHBxIIIIQI20xI")
_CRC: Final = Struct("<I")
_TAIL: Final = Struct("<Q8s")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
TAIL_BYTES: Final = _TAIL.size
_DEFLATE_LEVEL: Final = 1
_CRC_BLOCK_BYTES: Final = 256 << 10
_MODULUS: Final = 1 << 64
_WIDTHS: Final = (0, 1, 2, 4, 8)

Ints: TypeAlias = NDArray[np.integer[Any]]
_Unsigned: TypeAlias = NDArray[np.uint64]


class FrameKind(IntEnum):
    """The kind of an object, with its number in the header."""

    ENTRY = 1
    STATE = 2
    TABLE = 3


class NeedMore(Exception):
    """The frame cannot be read without this many of its bytes."""

    def __init__(self, bytes: int) -> None:
        super().__init__(bytes)
        self.bytes = bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """An object without its payload."""

    kind: FrameKind
    version: int
    head: dict[str, Json]
    columns: Mapping[str, Ints]
    payload_start: int  # in the object
    payload_bytes: int
    payload_crc: int


class _Column(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the values of a column are stored."""

    name: str
    type: Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    rows: Annotated[int, msgspec.Meta(ge=0)]
    width: Literal[0, 1, 2, 4, 8]
    base: int
    first: int | None = None

    @property
    def stored_values(self) -> int:
        return self.rows if self.first is None else self.rows - 1


class _Head(msgspec.Struct):
    head: dict[str, Any]
    columns: list[_Column]


describe(_Head)


def crc32c(data: Buffer, before: int = 0) -> int:
    """Extend the checksum `before` by these bytes, without a copy of all of them."""
    if isinstance(data, bytes):
        return int(google_crc32c.extend(before, data))
    view = memoryview(data).cast("B")
    for at in range(0, len(view), _CRC_BLOCK_BYTES):
        before = google_crc32c.extend(before, bytes(view[at : at + _CRC_BLOCK_BYTES]))
    return before


def encode(
    kind: FrameKind,
    head: Mapping[str, Json],
    columns: Mapping[str, Ints],
    payload: Sequence[Buffer] = (),
) -> bytes:
    """A whole object. InvalidArgumentError if its head and columns are too large."""
    size = crc = 0
    for piece in payload:
        size += memoryview(piece).nbytes
        crc = crc32c(piece, crc)
    return b"".join((*_front(kind, head, columns, size, crc), *payload))


def encode_table(
    head: Mapping[str, Json],
    columns: Mapping[str, Ints],
    *,
    payload_bytes: int,
    payload_crc: int,
) -> bytes:
    """The end of a data object with a payload of this size and checksum."""
    table = b"".join(_front(FrameKind.TABLE, head, columns, payload_bytes, payload_crc))
    return table + _TAIL.pack(len(table), TAIL_MAGIC)


def decode(data: Buffer, *, kind: FrameKind, name: str, object_bytes: int | None = None) -> Frame:
    """The frame at the beginning of an object. `data` may contain any part of the payload, or none.

    `object_bytes` is the object's size, if known. Raises NeedMore if `data` ends before the columns
    do, and MetadataError if the object is damaged, or newer than this version.
    """
    frame = _frame(data, kind, name, object_bytes)
    end = frame.payload_start + frame.payload_bytes
    if end < len(data) if object_bytes is None else end != object_bytes:
        raise _damaged(name, f"it should have {end} bytes, not {object_bytes or len(data)}")
    return frame


def decode_tail(tail: Buffer, object_bytes: int, *, name: str) -> Frame:
    """The table in the last bytes of a data object. The payload is what comes before it.

    Raises NeedMore with the number of last bytes that it needs, and MetadataError as `decode` does.
    """
    if len(tail) < TAIL_BYTES <= object_bytes:
        raise NeedMore(TAIL_BYTES)
    length, magic = _TAIL.unpack(tail[-TAIL_BYTES:]) if len(tail) >= TAIL_BYTES else (0, b"")
    if magic != TAIL_MAGIC:
        raise _damaged(name, "it does not end in a table")
    needed = length + TAIL_BYTES
    if needed > object_bytes or length > HEADER_BYTES + STORED_BYTES_MAX:
        raise _damaged(name, f"a table of {length} bytes in an object of {object_bytes}")
    if needed > len(tail):
        raise NeedMore(needed)
    table = memoryview(tail)[len(tail) - needed : len(tail) - TAIL_BYTES]
    frame = _frame(table, FrameKind.TABLE, name, length)
    if frame.payload_start != length or frame.payload_bytes + needed != object_bytes:
        raise _damaged(name, "its table is of another object")
    return replace(frame, payload_start=0)


def check_payload(frame: Frame, payload: Buffer, *, name: str) -> None:
    """Raises MetadataError unless this is the whole payload as it was written."""
    if memoryview(payload).nbytes != frame.payload_bytes or crc32c(payload) != frame.payload_crc:
        raise _damaged(name, "its payload has another checksum")


def _front(
    kind: FrameKind,
    head: Mapping[str, Json],
    columns: Mapping[str, Ints],
    payload_bytes: int,
    payload_crc: int,
) -> tuple[bytes, bytes, bytes]:
    """Header, head and columns."""
    if 8 * sum(map(len, columns.values())) > RAW_BYTES_MAX:
        raise InvalidArgumentError(f"{sum(map(len, columns.values()))} values are too many")
    packed = [_narrowed(name, column) for name, column in columns.items()]
    text = msgspec.json.encode(_Head(dict(head), [column for column, _ in packed]))
    numbers = b"".join(values for _, values in packed)
    stored_text, stored_numbers = _deflated(text), _deflated(numbers)
    if (
        len(text) + len(numbers) > RAW_BYTES_MAX
        or len(stored_text) + len(stored_numbers) > STORED_BYTES_MAX
    ):
        reason = f"a head of {len(text)} bytes and columns of {len(numbers)} are too long"
        raise InvalidArgumentError(reason)
    header = _HEADER.pack(
        *(MAGIC, VERSION, kind, len(text), len(stored_text), len(numbers), len(stored_numbers)),
        *(payload_bytes, payload_crc, crc32c(stored_numbers, crc32c(stored_text))),
    )
    return header + _CRC.pack(crc32c(header)), stored_text, stored_numbers


def _frame(data: Buffer, kind: FrameKind, name: str, object_bytes: int | None) -> Frame:
    """Decode and check everything but the payload, which begins where the columns end."""
    view = memoryview(data).cast("B")

    def require(length: int) -> None:
        if object_bytes is not None and length > object_bytes:
            raise _damaged(name, f"it is cut off at byte {object_bytes}")
        if length > len(view):
            raise NeedMore(length)

    require(HEADER_BYTES)
    magic, version, found, *sizes, payload_bytes, payload_crc, crc = _HEADER.unpack_from(view)
    text_bytes, stored_text_bytes, numbers_bytes, stored_numbers_bytes = sizes
    if magic != MAGIC:
        raise _damaged(name, "it does not begin as an object of the log does")
    if version > VERSION:
        reason = f"it has version {version} and this program reads up to {VERSION}: use a newer one"
        raise MetadataError(name, reason)
    if (
        version != VERSION
        or _CRC.unpack_from(view, _HEADER.size)[0] != crc32c(view[: _HEADER.size])
        or not stored_text_bytes <= text_bytes
        or not stored_numbers_bytes <= numbers_bytes
        or text_bytes + numbers_bytes > RAW_BYTES_MAX
        or stored_text_bytes + stored_numbers_bytes > STORED_BYTES_MAX
    ):
        raise _damaged(name, "its header makes no sense")
    if found != kind:
        raise _damaged(name, f"it is of kind {found}, not {kind.value}")
    columns_at = HEADER_BYTES + stored_text_bytes
    end = columns_at + stored_numbers_bytes
    require(end)
    if crc32c(view[HEADER_BYTES:end]) != crc:
        raise _damaged(name, "its head and columns have another checksum")
    try:
        text = _inflated(view[HEADER_BYTES:columns_at], text_bytes)
        head = msgspec.json.decode(text, type=_Head)
        columns = dict(_widened(head.columns, _inflated(view[columns_at:end], numbers_bytes)))
    except (ValueError, RecursionError, zlib.error) as error:
        raise _damaged(name, str(error)) from error
    return Frame(
        kind=kind,
        version=version,
        head=head.head,
        columns=columns,
        payload_start=end,
        payload_bytes=payload_bytes,
        payload_crc=payload_crc,
    )


def _narrowed(name: str, column: Ints) -> tuple[_Column, bytes]:
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise InvalidArgumentError(f"column {name}: want whole numbers in a row")
    signed = column.dtype.kind == "i"
    values: _Unsigned = column.astype(np.int64 if signed else np.uint64).view(np.uint64)
    told = _Column(name=name, type=column.dtype.name, rows=len(column), width=0, base=0)  # type: ignore[arg-type]
    if not len(column):
        return told, b""
    told.base = int(column.min())
    told.width = _width(int(column.max()) - told.base)
    if told.width and len(column) > 1:
        steps: _Unsigned = values[1:] - values[:-1]
        least, most = int(steps.view(np.int64).min()), int(steps.view(np.int64).max())
        if _width(most - least) < told.width:
            told.first, told.base, told.width = int(column[0]), least, _width(most - least)
            values = steps
    if not told.width:
        return told, b""
    return told, (values - np.uint64(told.base % _MODULUS)).astype(f"<u{told.width}").tobytes()


def _width(span: int) -> Literal[0, 1, 2, 4, 8]:
    return next(width for width in _WIDTHS if span < 1 << 8 * width)


def _widened(told: Sequence[_Column], numbers: bytes) -> Iterator[tuple[str, Ints]]:
    """Each column with its name. ValueError unless they take exactly the bytes stored."""
    values = sum(column.rows for column in told)
    stored = sum(column.width * column.stored_values for column in told)
    if 8 * values > RAW_BYTES_MAX or stored != len(numbers):
        raise ValueError(f"{len(numbers)} bytes for {values} values in {len(told)} columns")
    at = 0
    for column in told:
        count = column.stored_values
        if count < 0:
            raise ValueError(f"column {column.name} has a first value and no rows")
        found: _Unsigned = np.empty(column.rows, np.uint64)
        rest = found[column.rows - count :]
        rest[:] = np.frombuffer(numbers, f"<u{column.width}", count, at) if column.width else 0
        rest += np.uint64(column.base % _MODULUS)
        if column.first is not None:
            found[0] = column.first % _MODULUS
            np.cumsum(found, out=found)
        at += column.width * count
        values_found = found.astype(column.type, copy=False)
        values_found.flags.writeable = False
        yield column.name, values_found


def _deflated(data: bytes) -> bytes:
    """Deflated, or unchanged if that is not longer."""
    found = zlib.compress(data, _DEFLATE_LEVEL)
    return found if len(found) < len(data) else data


def _inflated(stored: memoryview, length: int) -> bytes:
    """ValueError unless it inflates to `length` bytes; never produces more than that."""
    if len(stored) == length:
        return bytes(stored)
    stream = zlib.decompressobj()
    found = stream.decompress(stored, length)
    if len(found) != length or not stream.eof or stream.unused_data:
        raise ValueError(f"what is deflated has not {length} bytes")
    return found


def _damaged(name: str, reason: str) -> MetadataError:
    return MetadataError(name, f"damaged: {reason}")
