"""The 20-byte units of consume queues, one at a time and many at once.

Unit k of a queue is at byte 20 * k of its consume queue:

    | offset | width | field                                                         |
    | ------ | ----- | ------------------------------------------------------------- |
    |      0 | i64   | log offset: in the tier, of the queue's own commit log        |
    |      8 | i32   | size of the message's record                                  |
    |     12 | i64   | tags code, a delivery time, or an address in an extended queue |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tieredstore.codec.checks import (
    Buffer,
    encode_entries,
    pack_fields,
    require,
    require_multiple,
    view_entries,
)
from tieredstore.model.values import INT32_MAX

UNIT_BYTES: Final = 20

UNIT_DTYPE: Final = np.dtype(
    [("log_offset", ">i8"), ("message_bytes", ">i4"), ("tags_code", ">i8")]
)
_UNIT: Final = Struct(">qiq")
# This many units stay in a core's cache while their three columns are extracted.
_BLOCK_UNITS: Final = 1 << 14
_DOZENS_MAX: Final = 64
EXTENSION_ADDRESS_MAX: Final = -(2**31) - 1
UNKNOWN_TAGS: Final = -(2**62)
"""The code of a message that cannot be read: it may have any tags, so no filter by tags skips it.
Java takes it for an address in an extended queue, far beyond the end of any."""


class QueueUnit(NamedTuple):
    """Where one message is in a commit log, how long it is, and the code of its tags."""

    log_offset: int
    message_bytes: int
    tags_code: int

    @property
    def is_prefill(self) -> bool:
        """Whether the unit only fills the place of a message that the queue never had."""
        return self.log_offset == 0 and self.message_bytes == INT32_MAX


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueUnits:
    """Many units as three columns of the same length, in the byte order of this machine."""

    log_offsets: NDArray[np.int64]
    message_bytes: NDArray[np.int32]
    tags_codes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_offsets)


PREFILL: Final = QueueUnit(0, INT32_MAX, 0)
PREFILL_BYTES: Final = _UNIT.pack(*PREFILL)


def encode_unit(*, log_offset: int, message_bytes: int, tags_code: int) -> bytes:
    return pack_fields(_UNIT, QueueUnit._fields, log_offset, message_bytes, tags_code)


def decode_unit(data: Buffer, position: int = 0, *, path: str = "") -> QueueUnit:
    """The unit at `position`. Any 20 bytes are a unit: the caller must check its meaning."""
    require(data, position=position, size=UNIT_BYTES, path=path, what="a queue unit")
    return QueueUnit._make(_UNIT.unpack_from(data, position))


def encode_units(
    *, log_offsets: ArrayLike, message_bytes: ArrayLike, tags_codes: ArrayLike
) -> bytes:
    """Units from columns of the same length."""
    return encode_entries(
        UNIT_DTYPE,
        log_offset=(log_offsets, 64),
        message_bytes=(message_bytes, 32),
        tags_code=(tags_codes, 64),
    )


def view_units(data: Buffer, *, path: str = "") -> NDArray[Any]:
    """All units without a copy, as a read-only array of UNIT_DTYPE (big-endian columns)."""
    require_multiple(data, size=UNIT_BYTES, path=path, what="queue units")
    count = len(data) // UNIT_BYTES
    return view_entries(data, UNIT_DTYPE, position=0, count=count, path=path, what="queue units")


def decode_units(data: Buffer, *, path: str = "") -> QueueUnits:
    """All units as columns in native byte order, which are fast to compute with."""
    view = view_units(data, path=path)
    units = QueueUnits(
        log_offsets=np.empty(len(view), np.int64),
        message_bytes=np.empty(len(view), np.int32),
        tags_codes=np.empty(len(view), np.int64),
    )
    for start in range(0, len(view), _BLOCK_UNITS):
        block = slice(start, start + _BLOCK_UNITS)
        units.log_offsets[block] = view["log_offset"][block]
        units.message_bytes[block] = view["message_bytes"][block]
        units.tags_codes[block] = view["tags_code"][block]
    return units


def unpack_units(data: Buffer) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """All units as three tuples, which are faster than columns for some dozens of units."""
    count = len(data) // UNIT_BYTES
    if count > _DOZENS_MAX:
        log_offsets, message_bytes, tags_codes = zip(*_UNIT.iter_unpack(data), strict=True)
        return log_offsets, message_bytes, tags_codes
    fields = _dozens(count).unpack(data)
    return fields[0::3], fields[1::3], fields[2::3]


@cache
def _dozens(count: int) -> Struct:
    return Struct(">" + count * "qiq")


def is_extension_address(tags_code: int) -> bool:
    """Whether a tags code is an address in an extended queue: no 32-bit hash is that small."""
    return tags_code <= EXTENSION_ADDRESS_MAX and tags_code != UNKNOWN_TAGS
