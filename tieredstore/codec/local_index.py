"""The bytes of the local store's key index files.

    | region | offset             | content                                          |
    | ------ | ------------------ | ------------------------------------------------ |
    | header |  0                 | i64 begin timestamp                              |
    |        |  8                 | i64 end timestamp                                |
    |        | 16                 | i64 begin log offset                             |
    |        | 24                 | i64 end log offset                               |
    |        | 32                 | i32 slots in use                                 |
    |        | 36                 | i32 number of the next item, from 1 on           |
    | slot h | 40 + 4 * h         | i32 number of the newest item, 0 = none          |
    | item i | 40 + 4 * S + 20 * i | i32 key hash, i64 log offset, i32 seconds, i32 previous item |

Item 0 is never used, so a file with capacity N holds N - 1 items.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from tieredstore.codec.checks import Buffer, pack_fields, require
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ITEM_BYTES: Final = 20

ITEM_DTYPE: Final = np.dtype(
    [("key_hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_HEADER: Final = Struct(">qqqqii")
_SLOT: Final = Struct(">i")
_ITEM: Final = Struct(">iqii")


class LocalIndexHeader(NamedTuple):
    """The first 40 bytes. `next_item` is 1 in an empty file."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_log_offset: int = 0
    end_log_offset: int = 0
    used_slot_count: int = 0
    next_item: int = 1

    @property
    def item_count(self) -> int:
        return self.next_item - 1


class LocalIndexItem(NamedTuple):
    """One key of one message; `previous` is the next older item of its slot, 0 = none."""

    key_hash: int
    log_offset: int
    seconds: int
    previous: int


def file_bytes(*, slot_count: int, item_capacity: int) -> int:
    return HEADER_BYTES + SLOT_BYTES * slot_count + ITEM_BYTES * item_capacity


def item_position(item: int, *, slot_count: int) -> int:
    return HEADER_BYTES + SLOT_BYTES * slot_count + ITEM_BYTES * item


def encode_header(header: LocalIndexHeader) -> bytes:
    return pack_fields(_HEADER, LocalIndexHeader._fields, *header)


def decode_header(
    data: Buffer,
    *,
    slot_count: int = INT32_MAX,
    item_capacity: int = INT32_MAX,
    path: str = "",
) -> LocalIndexHeader:
    """The header. Raises SegmentCorruptError for counts beyond the capacities. A next item of 0
    becomes 1."""
    require(data, position=0, size=HEADER_BYTES, path=path, what="the index header")
    header = LocalIndexHeader._make(_HEADER.unpack_from(data))
    if not 0 <= header.used_slot_count <= slot_count:
        reason = f"{header.used_slot_count} slots in use of {slot_count}"
        raise SegmentCorruptError(path, reason, position=32)
    if not 0 <= header.next_item <= item_capacity:
        reason = f"next item {header.next_item} of {item_capacity}"
        raise SegmentCorruptError(path, reason, position=36)
    return header if header.next_item else header._replace(next_item=1)


def encode_slot(item: int) -> bytes:
    return pack_fields(_SLOT, ("item",), item)


def decode_slot(data: Buffer, position: int = 0, *, path: str = "") -> int:
    """The number of the newest item. Java reads any number not within 1 to the next item as 0."""
    require(data, position=position, size=SLOT_BYTES, path=path, what="an index slot")
    return int(_SLOT.unpack_from(data, position)[0])


def decode_item(data: Buffer, position: int = 0, *, path: str = "") -> LocalIndexItem:
    require(data, position=position, size=ITEM_BYTES, path=path, what="an index item")
    return LocalIndexItem._make(_ITEM.unpack_from(data, position))


def seconds_after_begin(store_timestamp: int, *, begin_timestamp: int) -> int:
    """The time an item stores: whole seconds, never negative, 0 while the file has no begin.

    The first item of a file is measured from the begin that the previous file left, but is read
    against its own file's begin: readers may treat it as 0.
    """
    if begin_timestamp <= 0 or store_timestamp <= begin_timestamp:
        return 0
    return min((store_timestamp - begin_timestamp) // 1000, INT32_MAX)


def item_timestamp(seconds: int, *, begin_timestamp: int) -> int:
    """The time of an item: up to 999 ms before the message was stored."""
    return begin_timestamp + 1000 * seconds
