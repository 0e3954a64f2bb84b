"""From the messages of a dispatch to the bytes of new queue units.

What lives here: the checks and the packing, twice: a loop for the few messages that one queue has
in a usual batch, and numpy for the many of a rebuild. Both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import add, gt
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.bounds import column
from tieredstore.codec.queue_unit import encode_unit, encode_units

Column: TypeAlias = Sequence[int] | NDArray[np.int64] | NDArray[np.int32]

_FEW: Final = 4
_MANY: Final = 48


class NewUnits(NamedTuple):
    """The first `skipped` messages were known; `data` are the units of the others."""

    skipped: int
    data: bytes
    last_log_end: int


def encode_new_units(
    log_offsets: Column, message_bytes: Column, tags_codes: Column, last_log_end: int
) -> NewUnits:
    """The units of the messages whose record ends behind `last_log_end`.

    Raises ValueError unless the columns are of one length, each message has a size, and each
    begins where the one before ends or later: then nothing may be written.
    """
    count = len(log_offsets)
    if not count == len(message_bytes) == len(tags_codes):
        raise ValueError(
            f"columns of different lengths: {count}, {len(message_bytes)}, {len(tags_codes)}"
        )
    if count >= _FEW and isinstance(log_offsets, list):
        new = _encode_new(log_offsets, message_bytes, tags_codes, last_log_end)
        if new is not None:
            return new
    encode = _encode_many if count >= _MANY else _encode_few
    return encode(log_offsets, message_bytes, tags_codes, last_log_end)


def _encode_new(
    log_offsets: list[int], message_bytes: Column, tags_codes: Column, last_log_end: int
) -> NewUnits | None:
    """The usual case by one pack: all are new and in order. None where not, or not of numbers."""
    count = len(log_offsets)
    ends = list(map(add, log_offsets, message_bytes))
    first = max(0, last_log_end)
    if log_offsets[0] < first or min(message_bytes) <= 0 or any(map(gt, ends, log_offsets[1:])):
        return None
    values: list[int] = [0] * (3 * count)
    values[::3] = log_offsets
    values[1::3] = message_bytes
    values[2::3] = tags_codes
    try:
        return NewUnits(0, _units(count).pack(*values), ends[-1])
    except error:
        return None


@lru_cache(maxsize=1024)
def _units(count: int) -> Struct:
    return Struct(">" + "qiq" * count)


def _encode_few(
    log_offsets: Column, message_bytes: Column, tags_codes: Column, last_log_end: int
) -> NewUnits:
    skipped, end = 0, 0
    units: list[bytes] = []
    for log_offset, size, tags_code in zip(log_offsets, message_bytes, tags_codes, strict=True):
        if log_offset < end or size <= 0:
            raise _disorder(int(log_offset), int(size), end)
        end = int(log_offset) + int(size)
        if end <= last_log_end:
            skipped += 1
        else:
            units.append(
                encode_unit(log_offset=log_offset, message_bytes=size, tags_code=tags_code)
            )
    return NewUnits(skipped, b"".join(units), end)


def _encode_many(
    log_offsets: Column, message_bytes: Column, tags_codes: Column, last_log_end: int
) -> NewUnits:
    offsets = column("log_offset", log_offsets)
    sizes = column("message_bytes", message_bytes, bits=32)
    ends = offsets + sizes
    wrong = sizes <= 0
    wrong[0] |= offsets[0] < 0
    wrong[1:] |= offsets[1:] < ends[:-1]
    if wrong.any():
        at = int(wrong.argmax())
        end = int(ends[at - 1]) if at else 0
        raise _disorder(int(offsets[at]), int(sizes[at]), end)
    skipped = int(ends.searchsorted(last_log_end, "right"))
    data = encode_units(
        log_offsets=offsets[skipped:],
        message_bytes=sizes[skipped:],
        tags_codes=column("tags_code", tags_codes)[skipped:],
    )
    return NewUnits(skipped, data, int(ends[-1]))


def _disorder(log_offset: int, size: int, end: int) -> ValueError:
    if size <= 0:
        return ValueError(f"message_bytes: {size} is no size of a record")
    return ValueError(f"log_offset: {log_offset} is below {end}, where the record before ends")
