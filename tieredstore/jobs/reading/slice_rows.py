"""Slices of a long queue with only the log segments that they read.

What lives here: `trimmed`. A slice carries the rows of all log segments of its queue, since nothing
in the catalogue says which of them has a message; of a queue with a thousand segments that is too
much to hand to thousands of workers. A few messages are read to tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from tieredstore.flat.queue_read import read_run
from tieredstore.jobs.reading.slices import Slice
from tieredstore.jobs.worker_parts import queue_file, worker_runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import INT64_MAX, SegmentType

LOG_ROWS_MAX: Final = 64
"""A queue with no more log segments is left as it is; else a slice has about half as many."""


def trimmed(
    config: StoreConfig, slices: Iterable[Slice], *, log_rows_max: int = LOG_ROWS_MAX
) -> list[Slice]:
    """The same slices. Neighbours have the same log rows, those between the first message of the
    first one and the first message behind the last one."""
    found: list[Slice] = []
    for _, group in groupby(slices, key=lambda each: each.path):
        held = list(group)
        logs = sum(row.type is SegmentType.COMMIT_LOG for row in held[0].rows)
        if logs <= log_rows_max or len(held) == 1:
            found += held
        else:
            step = -(-len(held) * log_rows_max // (2 * logs))
            found += _trimmed(config, [held[at : at + step] for at in range(0, len(held), step)])
    return found


def _trimmed(config: StoreConfig, parts: Sequence[Sequence[Slice]]) -> Iterator[Slice]:
    pool = worker_runtime().fetch
    asked = [pool.submit(_place, config, part[0]) for part in parts]
    places = [each.result() for each in asked]
    for number, part in enumerate(parts):
        # Where one cannot be read, the next one that can is as good, and only less tight.
        low = max((each for each in places[: number + 1] if each is not None), default=0)
        high = min((each for each in places[number + 1 :] if each is not None), default=INT64_MAX)
        for each in part:
            rows = [
                row
                for row in each.rows
                if row.type is not SegmentType.COMMIT_LOG
                or (row.end_offset > low and row.base_offset < high)
            ]
            yield replace(each, rows=tuple(rows))


def _place(config: StoreConfig, slice: Slice) -> int | None:
    """Where the log has the first message; None where it has expired, or cannot be read."""
    file = queue_file(config, slice.key, slice.path, slice.rows)
    try:
        run = read_run(file, slice.first_offset, count_max=1, bytes_max=1)
    except TieredStoreError:
        return None
    return int(run.log_offsets[0]) if len(run) else None
