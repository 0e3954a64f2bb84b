"""The keys of a run of messages, as columns to be put.

What lives here: `keys_of_run`. Where the fields of a record lie is told in `codec.record_fields`;
all records of a run are looked at together. What their property texts say is in `property_keys`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.record_fields import (
    BORN_HOST_IPV6,
    JAVA_STORE_TIMESTAMP_POSITION,
    MAGIC_POSITION,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_HOST_IPV6,
    SYS_FLAG_POSITION,
)
from tieredstore.index.hits import CommittedRun
from tieredstore.index.property_keys import keys_of_texts
from tieredstore.index.rows import IndexColumns
from tieredstore.model.printable import log_of

log = log_of(__name__)

_FIXED_BYTES: Final = 88
_IPV6_BYTES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """The keys of some messages, and how many each of them has; those without any do not count."""

    columns: IndexColumns
    key_counts: NDArray[np.int64]


def keys_of_run(topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> RunKeys:
    """Each key once for each message, in the order of the messages.

    A record that is none is passed over: nothing could find it.
    """
    spans = _spans(run)
    keys = keys_of_texts(_texts(run.run.records, spans), prefix=f"{topic}#")
    log_offsets = np.asarray(run.log_offsets, np.int64)
    sizes = run.run.message_bytes.astype(np.int64)
    return RunKeys(
        columns=IndexColumns(
            key_hashes=keys.hashes,
            topic_ids=topic_id,
            queue_ids=queue_id,
            log_offsets=np.repeat(log_offsets, keys.counts),
            message_bytes=np.repeat(sizes, keys.counts),
            store_timestamps=np.repeat(spans.store_timestamps, keys.counts),
        ),
        key_counts=keys.counts[keys.counts > 0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    properties: tuple[list[int], list[int]]
    store_timestamps: NDArray[np.int64]


def _texts(records: bytes | bytearray | memoryview, spans: _Spans) -> list[bytes | bytearray]:
    """Copies: thousands of views would each be looked at by the garbage collector."""
    places = zip(*spans.properties, strict=True)
    if isinstance(records, memoryview):
        return [records[start:end].tobytes() for start, end in places]
    return [records[start:end] for start, end in places]


def _spans(run: CommittedRun) -> _Spans:
    """Where the property text of each record begins and ends, and when it was stored."""
    data = run.run.records
    starts = run.run.starts.astype(np.int64)
    ends = starts + run.run.message_bytes
    sound = (starts >= 0) & (ends <= len(data)) & (ends - starts > _FIXED_BYTES)
    at = np.where(sound, starts, 0)
    flags = _words(data, at + SYS_FLAG_POSITION, ">i4")
    born = np.where(flags & BORN_HOST_IPV6, _IPV6_BYTES, 0)
    fixed = _FIXED_BYTES + born + np.where(flags & STORE_HOST_IPV6, _IPV6_BYTES, 0)
    body_bytes = _words(data, at + fixed - 4, ">i4")
    magic = _words(data, at + MAGIC_POSITION, ">u4")
    topic_at = at + fixed + body_bytes
    is_wide = magic == MESSAGE_MAGIC_V2
    sound &= (is_wide | (magic == MESSAGE_MAGIC_V1)) & (body_bytes >= 0) & (topic_at + 4 <= ends)
    wide, narrow = _words(data, topic_at, ">i2"), _words(data, topic_at, ">i1")
    topic_end = topic_at + np.where(is_wide, 2 + wide, 1 + narrow)
    sound &= (topic_end > topic_at) & (topic_end + 2 <= ends)
    first = topic_end + 2
    last = first + _words(data, topic_end, ">i2")
    sound &= (last >= first) & (last <= ends)
    if not sound.all():
        log.error("%d messages without a sound record are not indexed", int((~sound).sum()))
    first, last = np.where(sound, first, 0), np.where(sound, last, 0)
    times = _words(data, at + JAVA_STORE_TIMESTAMP_POSITION + born, ">i8")
    return _Spans(properties=(first.tolist(), last.tolist()), store_timestamps=times)


def _words(data: Any, positions: NDArray[np.int64], kind: str) -> NDArray[np.int64]:
    """Big-endian numbers at any positions; any number where one does not lie within the data."""
    width = np.dtype(kind).itemsize
    count = len(data) - width + 1
    if count <= 0:
        return np.zeros(len(positions), np.int64)
    words: NDArray[Any] = np.ndarray((count,), kind, data, strides=(1,))
    return words[np.clip(positions, 0, count - 1)].astype(np.int64)
