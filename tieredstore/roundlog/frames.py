"""The bytes around every object of a log: sizes and checksums, a readable head, columns of numbers,
and then the bytes of messages.

    | part    | bytes |                                                                         |
    | ------- | ----- | ----------------------------------------------------------------------- |
    | header  | 64    | below                                                                   |
    | head    | any   | JSON: what the object says, and where its columns are; perhaps deflated |
    | columns | any   | numbers, one column behind the other; perhaps deflated                  |
    | payload | any   | bytes of segments, as they are                                          |

All numbers are little-endian and without sign.

    | offset | width | field of the header                                                 |
    | ------ | ----- | ------------------------------------------------------------------- |
    |      0 |     4 | magic `TSRL`                                                        |
    |      4 |     2 | version: 1                                                          |
    |      6 |     1 | kind: 1 an entry, 2 a state, 3 a table                              |
    |      7 |     1 | zero                                                                |
    |      8 |     4 | bytes of the head                                                   |
    |     12 |     4 | bytes of the head as they are stored: fewer where it is deflated    |
    |     16 |     4 | bytes of the columns                                                |
    |     20 |     4 | bytes of the columns as they are stored                             |
    |     24 |     8 | bytes of the payload                                                |
    |     32 |     4 | CRC-32C of the payload                                              |
    |     36 |    20 | zeros                                                               |
    |     56 |     4 | CRC-32C of head and columns as they are stored                      |
    |     60 |     4 | CRC-32C of the header up to here                                    |

So a reader that gets the beginning of an object knows that all it uses of it is whole. The payload
has a checksum of its own, for who reads all of it.

A table has no payload behind it: it lies behind the bytes that it tells of, at the end of the same
object, and those are the payload that its header counts. 16 bytes end the object: the bytes of the
table in 8, and the magic `TSRLTAIL`.

**A column** is narrowed before it is deflated, to 0, 1, 2, 4 or 8 bytes a value: values are stored
less the smallest one, or else the steps from value to value less the smallest step, whichever is
narrower. The head says which: `base` is what was taken off; `first`, where there are steps, is the
value that they begin at. All sums are modulo 2^64.
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
RAW_BYTES_MAX: Final = 1 << 30  # of the same, inflated; and of all values at 8 bytes each
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
    """What an object of the log is; the numbers are those in its header."""

    ENTRY = 1
    STATE = 2
    TABLE = 3


class NeedMore(Exception):
    """The frame cannot be read before this many bytes of it are there."""

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
    """Where the values of a column are, and what was done to them."""

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
    """The checksum of these bytes behind others that have the checksum `before`; no copy of all."""
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
    """A whole object. InvalidArgumentError where head and columns are too large for any."""
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
    """The end of a data object, whose payload has this size and checksum."""
    table = b"".join(_front(FrameKind.TABLE, head, columns, payload_bytes, payload_crc))
    return table + _TAIL.pack(len(table), TAIL_MAGIC)


def decode(data: Buffer, *, kind: FrameKind, name: str, object_bytes: int | None = None) -> Frame:
    """The frame of an object from its beginning; of the payload any part may follow.

    `object_bytes` is how long the object is, where that is known. Raises NeedMore where the columns
    end behind `data`, and MetadataError for an object that is damaged, or newer than this version.
    """
    frame = _frame(data, kind, name, object_bytes)
    end = frame.payload_start + frame.payload_bytes
    if end < len(data) if object_bytes is None else end != object_bytes:
        raise _damaged(name, f"it should have {end} bytes, not {object_bytes or len(data)}")
    return frame


def decode_tail(tail: Buffer, object_bytes: int, *, name: str) -> Frame:
    """The table of a data object from its last bytes; the payload lies in front of it.

    Raises NeedMore with the bytes of the tail that are needed, and MetadataError as `decode` does.
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
    """Raises MetadataError unless this is all of the payload, as it was written."""
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
    """All but whether the payload is there; it begins where the columns end."""
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
    """Each column with its name. ValueError unless they are as long as what is stored, exactly."""
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
    """As it is where that is no longer."""
    found = zlib.compress(data, _DEFLATE_LEVEL)
    return found if len(found) < len(data) else data


def _inflated(stored: memoryview, length: int) -> bytes:
    """ValueError unless it inflates to `length` bytes; never makes more than that."""
    if len(stored) == length:
        return bytes(stored)
    stream = zlib.decompressobj()
    found = stream.decompress(stored, length)
    if len(found) != length or not stream.eof or stream.unused_data:
        raise ValueError(f"what is deflated has not {length} bytes")
    return found


def _damaged(name: str, reason: str) -> MetadataError:
    return MetadataError(name, f"damaged: {reason}")
