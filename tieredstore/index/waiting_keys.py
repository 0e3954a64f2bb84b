"""Runs of keys that wait in memory for a place in an index file.

What lives here: `Waiting`, many of them as one, and what is left when some keys were put. When they
are put is for `filling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tieredstore.index.rows import IndexColumns
from tieredstore.index.run_keys import RunKeys
from tieredstore.index.watermarks import QueueId


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    queue: QueueId
    first_offset: int
    keys: RunKeys


def joined(parts: Sequence[IndexColumns]) -> IndexColumns:
    if len(parts) == 1:
        return parts[0]
    return IndexColumns(
        key_hashes=np.concatenate([each.key_hashes for each in parts]),
        topic_ids=np.concatenate([_column(each.topic_ids, len(each)) for each in parts]),
        queue_ids=np.concatenate([_column(each.queue_ids, len(each)) for each in parts]),
        log_offsets=np.concatenate([each.log_offsets for each in parts]),
        message_bytes=np.concatenate([each.message_bytes for each in parts]),
        store_timestamps=np.concatenate([each.store_timestamps for each in parts]),
    )


def _column(values: NDArray[np.int64] | int, count: int) -> NDArray[np.int64]:
    return np.full(count, values, np.int64) if isinstance(values, int) else values


def left_behind(waiting: Sequence[Waiting], done: int) -> list[Waiting]:
    """What is left of the runs behind so many keys."""
    left = []
    for each in waiting:
        count = len(each.keys.columns)
        if done < count:
            left.append(each if done <= 0 else _cut(each, done))
        done = max(0, done - count)
    return left


def _cut(waiting: Waiting, done: int) -> Waiting:
    counts = waiting.keys.key_counts
    ends = np.cumsum(counts)
    first = int(np.searchsorted(ends, done, side="right"))
    rest = counts[first:].copy()
    rest[0] = ends[first] - done
    keys = RunKeys(columns=waiting.keys.columns.part(done), key_counts=rest)
    return Waiting(queue=waiting.queue, first_offset=waiting.first_offset, keys=keys)
