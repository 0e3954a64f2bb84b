"""Slots and items of the tier's key index, many at once.

What lives here: numpy layouts of the tables in `tiered_index`, views without a copy, and encoding
from columns. Views are read only and big-endian: take a column with `astype` to compute with it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tieredstore.codec.bounds import Buffer, encode_entries, require_multiple, view_entries
from tieredstore.codec.tiered_index import COMPACTED_ITEM_BYTES, HEADER_BYTES, item_position

SLOT_DTYPE: Final = np.dtype([("item", ">i4"), ("unused", ">i4")])
COMPACTED_SLOT_DTYPE: Final = np.dtype([("position", ">i4"), ("items_bytes", ">i4")])
_COLUMNS: Final = [
    *(("key_hash", ">i4"), ("topic_id", ">i4"), ("queue_id", ">i4"), ("log_offset", ">i8")),
    *(("message_bytes", ">i4"), ("seconds", ">i4"), ("previous", ">i4")),
]
ITEM_DTYPE: Final = np.dtype(_COLUMNS)
COMPACTED_ITEM_DTYPE: Final = np.dtype(_COLUMNS[:-1])


def view_slots(data: Buffer, *, slot_count: int, path: str = "") -> NDArray[Any]:
    """All slots of a file as it is written."""
    return view_entries(
        data, SLOT_DTYPE, position=HEADER_BYTES, count=slot_count, path=path, what="index slots"
    )


def view_compacted_slots(data: Buffer, *, slot_count: int, path: str = "") -> NDArray[Any]:
    """All slots of an uploaded file; what they say is not checked."""
    layout, what = COMPACTED_SLOT_DTYPE, "index slots"
    return view_entries(data, layout, position=HEADER_BYTES, count=slot_count, path=path, what=what)


def view_items(data: Buffer, *, slot_count: int, item_count: int, path: str = "") -> NDArray[Any]:
    """Items 1 to `item_count` of a file as it is written."""
    position = item_position(1, slot_count=slot_count)
    return view_entries(
        data, ITEM_DTYPE, position=position, count=item_count, path=path, what="index items"
    )


def view_compacted_items(data: Buffer, *, path: str = "") -> NDArray[Any]:
    """Uploaded items, for example those of one slot: `data` holds nothing else."""
    require_multiple(data, size=COMPACTED_ITEM_BYTES, path=path, what="index items")
    count = len(data) // COMPACTED_ITEM_BYTES
    layout = COMPACTED_ITEM_DTYPE
    return view_entries(data, layout, position=0, count=count, path=path, what="index items")


def encode_items(
    *,
    key_hashes: ArrayLike,
    topic_ids: ArrayLike,
    queue_ids: ArrayLike,
    log_offsets: ArrayLike,
    message_bytes: ArrayLike,
    seconds: ArrayLike,
    previous: ArrayLike | None = None,
) -> bytes:
    """Items from columns of one length: as written, or compacted if `previous` is left out."""
    columns: dict[str, tuple[ArrayLike, int]] = {
        "key_hash": (key_hashes, 32),
        "topic_id": (topic_ids, 32),
        "queue_id": (queue_ids, 32),
        "log_offset": (log_offsets, 64),
        "message_bytes": (message_bytes, 32),
        "seconds": (seconds, 32),
    }
    if previous is None:
        return encode_entries(COMPACTED_ITEM_DTYPE, **columns)
    return encode_entries(ITEM_DTYPE, **columns, previous=(previous, 32))
