"""Ranges of queue offsets that make one piece of work each, planned from catalogue rows alone.

What lives here: `QueueRows`, `Slice`, `queue_rows` and `plan_slices`. No byte of a segment is read
and nothing is listed. Reading a slice is in `slice_reads`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentType

SPLIT_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRows:
    """One queue of a tier: its rows, by base offset, without those that hold nothing."""

    key: QueueKey
    path: str
    log: tuple[SegmentRecord, ...]
    queue: tuple[SegmentRecord, ...]

    @property
    def min_offset(self) -> int:
        """The oldest unit. Its record may have expired: a reader passes over it."""
        return self.queue[0].base_offset // UNIT_BYTES if self.queue else 0

    @property
    def end_offset(self) -> int:
        return self.queue[-1].end_offset // UNIT_BYTES if self.queue else 0

    @property
    def message_count(self) -> int:
        """Without the gaps between segments."""
        return sum(row.size for row in self.queue) // UNIT_BYTES

    @property
    def log_bytes(self) -> int:
        return sum(row.size for row in self.log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The messages of one queue with queue offsets in [first_offset, end_offset).

    `rows` is all that a reader needs of the catalogue; `approximate_bytes` is what it will read.
    """

    key: QueueKey
    path: str
    first_offset: int
    end_offset: int
    approximate_bytes: int
    rows: tuple[SegmentRecord, ...]

    def __len__(self) -> int:
        return self.end_offset - self.first_offset


def queue_rows(
    rows: Iterable[SegmentRecord], *, wanted: Callable[[QueueKey], bool] = lambda _key: True
) -> list[QueueRows]:
    """The queues of these rows, such as `TieredReader.segments()` gives, by topic and queue id."""
    found: dict[str, tuple[QueueKey, list[SegmentRecord], list[SegmentRecord]]] = {}
    for row in rows:
        held = found.get(row.path)
        if held is None:
            _, topic, queue_id = row.path.split("/")
            held = found[row.path] = QueueKey(topic, int(queue_id)), [], []
        if row.size and row.type is not SegmentType.INDEX:
            (held[1] if row.type is SegmentType.COMMIT_LOG else held[2]).append(row)
    queues = [
        QueueRows(
            key=key,
            path=path,
            log=tuple(sorted(log, key=lambda row: row.base_offset)),
            queue=tuple(sorted(queue, key=lambda row: row.base_offset)),
        )
        for path, (key, log, queue) in found.items()
        if key.topic != INDEX_TOPIC and wanted(key)
    ]
    return sorted(queues, key=lambda rows: (rows.key, rows.path))


def plan_slices(
    queues: Iterable[QueueRows],
    *,
    split_bytes: int = SPLIT_BYTES,
    bounds: Callable[[QueueRows], tuple[int, int]] = lambda _rows: (0, INT64_MAX),
) -> list[Slice]:
    """Slices of about `split_bytes` log bytes each, at least one message; queue after queue.

    `bounds` gives the queue offsets that are wanted of a queue, first and end. How large single
    messages are is not known here: a slice has as many as make `split_bytes` of average ones.
    """
    if split_bytes < 1:
        raise ValueError(f"split_bytes: {split_bytes} is less than 1")
    slices: list[Slice] = []
    for rows in queues:
        if not rows.message_count:
            continue
        first, end = bounds(rows)
        for span in _unit_spans(rows.queue):
            part = range(max(span.start, first), min(span.stop, end))
            if part:
                slices += _slices_of(rows, part, split_bytes)
    return slices


def _slices_of(rows: QueueRows, part: range, split_bytes: int) -> list[Slice]:
    bytes_each = rows.log_bytes / rows.message_count
    count = max(1, round(len(part) * bytes_each / split_bytes))
    count = min(count, len(part))
    cuts = [part.start + len(part) * number // count for number in range(count + 1)]
    return [
        Slice(
            key=rows.key,
            path=rows.path,
            first_offset=start,
            end_offset=stop,
            approximate_bytes=int((stop - start) * bytes_each),
            rows=(*rows.log, *_units_within(rows.queue, start, stop)),
        )
        for start, stop in pairwise(cuts)
    ]


def _unit_spans(queue: Sequence[SegmentRecord]) -> list[range]:
    """The queue offsets that have units, without the gaps."""
    spans: list[range] = []
    for row in queue:
        start, stop = row.base_offset // UNIT_BYTES, row.end_offset // UNIT_BYTES
        if spans and spans[-1].stop == start:
            spans[-1] = range(spans[-1].start, stop)
        else:
            spans.append(range(start, stop))
    return spans


def _units_within(queue: Sequence[SegmentRecord], start: int, stop: int) -> list[SegmentRecord]:
    return [
        row
        for row in queue
        if row.base_offset < stop * UNIT_BYTES and start * UNIT_BYTES < row.end_offset
    ]
