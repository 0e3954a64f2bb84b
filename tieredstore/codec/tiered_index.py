"""The bytes of the tier's key index files, as written and as uploaded.

Header of both forms:

    | offset | width | field                                                       |
    | ------ | ----- | ----------------------------------------------------------- |
    |      0 | i32   | magic: begin BCC50289, end BCC50285 (full or compacted)     |
    |      4 | i64   | begin timestamp                                             |
    |     12 | i64   | end timestamp: the largest store timestamp                  |
    |     20 | i32   | slots in use                                                |
    |     24 | i32   | number of items                                             |

As written, S slots at 28 + 8 * h and items 1 to N - 1 at 28 + 8 * S + 32 * i:

    | slot | 0 | i32 | number of the newest item, <= 0 = none | 4 | i32 | unused |
    | item | 0 | i32 | key hash                                             |
    |      | 4 | i32 | topic id                                             |
    |      | 8 | i32 | queue id                                             |
    |      | 12 | i64 | log offset in the queue's tiered commit log         |
    |      | 20 | i32 | size of the message's record                        |
    |      | 24 | i32 | seconds after begin, truncated toward zero          |
    |      | 28 | i32 | previous item of the slot, 0 = none                 |

Compacted, items in slot order, newest first, without the last field, from 28 + 8 * S on:

    | slot | 0 | i32 | position of its items in the file | 4 | i32 | their bytes, 0 = none |
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import (
    Buffer,
    pack_fields,
    require,
    require_multiple,
    view_entries,
)
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

BEGIN_MAGIC: Final = -1127939447
END_MAGIC: Final = -1127939451

HEADER_BYTES: Final = 28
SLOT_BYTES: Final = 8
ITEM_BYTES: Final = 32
COMPACTED_ITEM_BYTES: Final = 28

_HEADER: Final = Struct(">iqqii")
_SLOT: Final = Struct(">ii")


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredIndexHeader:
    """The first 28 bytes."""

    magic: int = BEGIN_MAGIC
    begin_timestamp: int
    end_timestamp: int = 0
    used_slot_count: int = 0
    item_count: int = 0


class CompactedItem(NamedTuple):
    """One key of one message in an uploaded file."""

    key_hash: int
    topic_id: int
    queue_id: int
    log_offset: int
    message_bytes: int
    seconds: int


class CompactedSlot(NamedTuple):
    """Where the items of a slot are; even an empty slot has a position."""

    position: int
    items_bytes: int


_HEADER_FIELDS: Final = tuple(TieredIndexHeader.__dataclass_fields__)


def file_bytes(*, slot_count: int, item_capacity: int) -> int:
    """The size of a file as written."""
    return HEADER_BYTES + SLOT_BYTES * slot_count + ITEM_BYTES * item_capacity


def compacted_file_bytes(*, slot_count: int, item_count: int) -> int:
    """The size of a file as uploaded; 0 without items, because then nothing is uploaded."""
    if item_count == 0:
        return 0
    return HEADER_BYTES + SLOT_BYTES * slot_count + COMPACTED_ITEM_BYTES * item_count


def slot_position(slot: int) -> int:
    return HEADER_BYTES + SLOT_BYTES * slot


def item_position(item: int, *, slot_count: int) -> int:
    return HEADER_BYTES + SLOT_BYTES * slot_count + ITEM_BYTES * item


def encode_header(header: TieredIndexHeader) -> bytes:
    if header.magic not in (BEGIN_MAGIC, END_MAGIC):
        raise ValueError(f"magic: {header.magic} is neither the begin nor the end magic")
    return pack_fields(_HEADER, _HEADER_FIELDS, *astuple(header))


def decode_header(
    data: Buffer,
    *,
    slot_count: int = INT32_MAX,
    item_capacity: int = INT32_MAX,
    path: str = "",
) -> TieredIndexHeader:
    """The header. Raises SegmentCorruptError for another magic, or counts beyond the capacities."""
    require(data, position=0, size=HEADER_BYTES, path=path, what="the index header")
    values = _HEADER.unpack_from(data)
    header = TieredIndexHeader(**dict(zip(_HEADER_FIELDS, values, strict=True)))
    if header.magic not in (BEGIN_MAGIC, END_MAGIC):
        raise SegmentCorruptError(path, f"no index magic: {header.magic}", position=0)
    if not 0 <= header.used_slot_count <= slot_count:
        reason = f"{header.used_slot_count} slots in use of {slot_count}"
        raise SegmentCorruptError(path, reason, position=20)
    if not 0 <= header.item_count <= item_capacity:
        reason = f"{header.item_count} items of {item_capacity}"
        raise SegmentCorruptError(path, reason, position=24)
    return header


def decode_compacted_slot(data: Buffer, position: int = 0, *, path: str = "") -> CompactedSlot:
    """The slot. Raises SegmentCorruptError if its length is not a whole number of items."""
    require(data, position=position, size=SLOT_BYTES, path=path, what="an index slot")
    slot = CompactedSlot._make(_SLOT.unpack_from(data, position))
    if slot.position < 0 or slot.items_bytes < 0 or slot.items_bytes % COMPACTED_ITEM_BYTES:
        reason = f"a slot with {slot.items_bytes} bytes of items at {slot.position}"
        raise SegmentCorruptError(path, reason, position=position)
    return slot


def seconds_after_begin_many(
    store_timestamps: NDArray[np.int64], *, begin_timestamp: int
) -> NDArray[np.int32]:
    """The times that items store: truncated toward zero, negative if older than the file.

    A difference that does not fit is cut to 32 bits, as by Java's cast. That happens when Java
    reads part of an IPv6 address as the store timestamp.
    """
    differences = store_timestamps - np.int64(begin_timestamp)
    seconds = differences // 1000  # rounds down; the remainder is never negative
    seconds += (differences < 0) & (differences % 1000 != 0)
    return seconds.astype(np.int32)


def item_timestamp(seconds: int, *, begin_timestamp: int) -> int:
    """The time of an item: up to 999 ms from the store timestamp, toward the file's begin."""
    return begin_timestamp + 1000 * seconds


def is_legacy_compacted(header: TieredIndexHeader, *, file_bytes: int, slot_count: int) -> bool:
    """Whether RocketMQ 5.1 made this uploaded file.

    The files of 5.1 have 4 bytes more than whole items, which settles it. If the length fits
    neither form, the header decides: in 5.1 its slot field is the capacity.
    """
    rest = (file_bytes - HEADER_BYTES - SLOT_BYTES * slot_count) % COMPACTED_ITEM_BYTES
    return rest == 4 or (rest != 0 and header.used_slot_count == slot_count)


def is_legacy_written(*, file_bytes: int, slot_count: int, item_capacity: int) -> bool:
    """Whether RocketMQ 5.1 wrote this file, not uploaded yet: its files are 16 bytes longer."""
    return file_bytes == 44 + SLOT_BYTES * slot_count + ITEM_BYTES * item_capacity


COMPACTED_SLOT_DTYPE: Final = np.dtype([("position", ">i4"), ("items_bytes", ">i4")])
_COLUMNS: Final = [
    *(("key_hash", ">i4"), ("topic_id", ">i4"), ("queue_id", ">i4"), ("log_offset", ">i8")),
    *(("message_bytes", ">i4"), ("seconds", ">i4"), ("previous", ">i4")),
]
ITEM_DTYPE: Final = np.dtype(_COLUMNS)
COMPACTED_ITEM_DTYPE: Final = np.dtype(_COLUMNS[:-1])


def view_items(data: Buffer, *, slot_count: int, item_count: int, path: str = "") -> NDArray[Any]:
    """Items 1 to `item_count` of a file as written."""
    position = item_position(1, slot_count=slot_count)
    return view_entries(
        data, ITEM_DTYPE, position=position, count=item_count, path=path, what="index items"
    )


def view_compacted_items(data: Buffer, *, path: str = "") -> NDArray[Any]:
    """Uploaded items, such as those of one slot; `data` must hold nothing else."""
    require_multiple(data, size=COMPACTED_ITEM_BYTES, path=path, what="index items")
    count = len(data) // COMPACTED_ITEM_BYTES
    layout = COMPACTED_ITEM_DTYPE
    return view_entries(data, layout, position=0, count=count, path=path, what="index items")
