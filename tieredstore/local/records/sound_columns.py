"""Are these records: many, one behind the other, looked at as columns.

What lives here: `sound_columns`, which says of each what `record_check` says of one, quicker.
"""

from __future__ import annotations

from itertools import pairwise, starmap

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checksum import matches_property_crc
from tieredstore.codec.crc32 import crc32
from tieredstore.codec.record_fields import (
    BORN_HOST_IPV6,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_HOST_IPV6,
)
from tieredstore.codec.words import Words
from tieredstore.local.records.record_columns import RecordColumns
from tieredstore.model.values import INT32_MAX


def sound_columns(
    data: memoryview,
    bounds: NDArray[np.int64],
    log_offsets: NDArray[np.int64],
    *,
    base_offset: int = 0,
    path: str = "",
    check_crc: bool = True,
    check_property_crc: bool = False,
) -> RecordColumns:
    """The records between these bounds, up to the first that is not sound.

    Each must say that it lies at its log offset. Their sizes are not held against the bounds, which
    are at least MESSAGE_BYTES_MIN apart.
    """
    words = Words(data)
    starts, ends = bounds[:-1], bounds[1:]
    magics = words.int32(starts + 4)
    second = magics == MESSAGE_MAGIC_V2 - (1 << 32)
    sys_flags = words.int32(starts + 36)
    born_ipv6 = (sys_flags & BORN_HOST_IPV6) != 0
    fixed = 88 + 12 * born_ipv6 + 12 * ((sys_flags & STORE_HOST_IPV6) != 0)
    ok = second | (magics == MESSAGE_MAGIC_V1 - (1 << 32))
    ok &= words.int64(starts + 28) == log_offsets
    ok &= starts + fixed + 4 + second - 1 <= ends
    count = sound_count(ok)
    bodies = starts[:count] + fixed[:count]
    body_bytes = words.int32(bodies - 4)
    second = second[:count]
    topic_at = bodies + body_bytes + 1 + second
    count = sound_count((body_bytes >= 0) & (topic_at + 2 <= ends[:count]))
    topic_at, second = topic_at[:count], second[:count]
    topic_bytes = np.where(second, words.int16(topic_at - 2), words.int8(topic_at - 1))
    topic_ends = topic_at + topic_bytes
    count = sound_count((topic_bytes >= 0) & (topic_ends + 2 <= ends[:count]))
    topic_ends = topic_ends[:count]
    property_bytes = words.int16(topic_ends)
    ok = (property_bytes >= 0) & (topic_ends + 2 + property_bytes == ends[:count])
    text_ends = np.where(property_bytes > 0, ends[:count], topic_ends)
    ok &= (words.int8(text_ends - 1) != 0) | (property_bytes + topic_bytes[:count] == 0)
    count = sound_count(ok)
    if check_crc:
        body_ends = bodies[:count] + body_bytes[:count]
        count = _crcs_hold(data, bodies[:count], body_ends, words.int32(starts[:count] + 8))
    if check_property_crc:
        count = _property_crcs_hold(data, bounds[: count + 1])
    starts = starts[:count]
    return RecordColumns(
        data=data,
        base_offset=base_offset,
        path=path,
        positions=starts,
        sizes=(ends - bounds[:-1])[:count],
        queue_ids=words.int32(starts + 12),
        queue_offsets=words.int64(starts + 20),
        sys_flags=sys_flags[:count],
        store_timestamps=words.int64(starts + 56 + 12 * born_ipv6[:count]),
        topic_starts=topic_at[:count],
        topic_bytes=topic_bytes[:count],
        property_starts=topic_ends[:count] + 2,
        property_bytes=property_bytes[:count],
    )


def sound_count(ok: NDArray[np.bool_]) -> int:
    """How many there are before the first that is not."""
    return len(ok) if ok.all() else int(ok.argmin())


def _crcs_hold(
    data: memoryview, starts: NDArray[np.int64], ends: NDArray[np.int64], crcs: NDArray[np.int64]
) -> int:
    bodies = map(data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    found = np.fromiter(map(crc32, bodies), np.uint32, len(starts))
    return sound_count((found & INT32_MAX) == crcs)


def _property_crcs_hold(data: memoryview, bounds: NDArray[np.int64]) -> int:
    records = map(data.__getitem__, starmap(slice, pairwise(bounds.tolist())))
    return sound_count(np.fromiter(map(matches_property_crc, records), np.bool_))
