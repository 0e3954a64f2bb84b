"""Which messages are wanted, and the slices of queues that hold them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from itertools import groupby, pairwise
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.columns import RecordFields
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.flat.reading import read_run
from tieredstore.jobs.worker import queue_file, worker_runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError, UnknownNameError
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentRecord, SegmentType

T = TypeVar("T")

SPLIT_BYTES: Final = 64 * 1024 * 1024
LOG_ROWS_MAX: Final = 64
"""A queue with no more log segments is left as it is; else a slice has about half as many."""
EVER: Final = (-INT64_MAX - 1, INT64_MAX)
_SHOWN: Final = 5


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
            rows=(*rows.log, *units_within(rows.queue, start, stop)),
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


def units_within(queue: Sequence[SegmentRecord], start: int, stop: int) -> list[SegmentRecord]:
    """The rows that have units of these queue offsets."""
    return [
        row
        for row in queue
        if row.base_offset < stop * UNIT_BYTES and start * UNIT_BYTES < row.end_offset
    ]


def trimmed(
    config: StoreConfig, slices: Iterable[Slice], *, log_rows_max: int = LOG_ROWS_MAX
) -> list[Slice]:
    """The same slices. Neighbours have the same log rows, those between the first message of the
    first one and the first message behind the last one."""
    found: list[Slice] = []
    for _, group in groupby(slices, key=lambda slice_: slice_.path):
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
    places = [future.result() for future in asked]
    for number, part in enumerate(parts):
        # Where one cannot be read, the next one that can is as good, and only less tight.
        low = max((place for place in places[: number + 1] if place is not None), default=0)
        high = min(
            (place for place in places[number + 1 :] if place is not None), default=INT64_MAX
        )
        for slice_ in part:
            rows = [
                row
                for row in slice_.rows
                if row.type is not SegmentType.COMMIT_LOG
                or (row.end_offset > low and row.base_offset < high)
            ]
            yield replace(slice_, rows=tuple(rows))


def _place(config: StoreConfig, slice: Slice) -> int | None:
    """Where the log has the first message; None where it has expired, or cannot be read."""
    file = queue_file(config, slice.key, slice.path, slice.rows)
    try:
        run = read_run(file, slice.first_offset, count_max=1, bytes_max=1)
    except TieredStoreError:
        return None
    return int(run.log_offsets[0]) if len(run) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All conditions hold at once; None means any.

    * Offsets and times are half open: from the first on, up to but without the second. Times are
      store times in milliseconds.
    * `keys`: UNIQ_KEY or one of KEYS is one of these. `unique_keys`: UNIQ_KEY is.
    """

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    queue_ids: frozenset[int] | None = None
    offsets: tuple[int, int] = (0, INT64_MAX)
    times: tuple[int, int] = EVER
    keys: frozenset[str] | None = None
    unique_keys: frozenset[str] | None = None

    def wants(self, key: QueueKey) -> bool:
        return (
            (self.topics is None or key.topic in self.topics)
            and (self.queue_ids is None or key.queue_id in self.queue_ids)
            and (self.topic_pattern is None or bool(re.fullmatch(self.topic_pattern, key.topic)))
        )

    @property
    def is_timed(self) -> bool:
        return self.times != EVER

    @property
    def key_texts(self) -> frozenset[str] | None:
        """What an index can be asked for: every message that is wanted has one of these keys."""
        return self.unique_keys if self.unique_keys is not None else self.keys

    def rows(self, fields: RecordFields) -> NDArray[np.int64]:
        """The sound rows of a run within offsets and times; keys are not looked at."""
        chosen = fields.sound
        first, end = self.offsets
        run = fields.run
        if run.first_offset < first or run.end_offset > end:
            chosen = chosen & (fields.queue_offsets >= first) & (fields.queue_offsets < end)
        if self.is_timed:
            times = fields.store_times()
            chosen = chosen & (times >= self.times[0]) & (times < self.times[1])
        return np.flatnonzero(chosen)

    def narrowed(self, other: Selection) -> Selection:
        """What both select. Of two sets of keys the first counts: a message has several keys."""
        return Selection(
            topics=_common(self.topics, other.topics),
            topic_pattern=self.topic_pattern,
            queue_ids=_common(self.queue_ids, other.queue_ids),
            offsets=_overlap(self.offsets, other.offsets),
            times=_overlap(self.times, other.times),
            keys=other.keys if self.keys is None else self.keys,
            unique_keys=_common(self.unique_keys, other.unique_keys),
        )


def _common(first: frozenset[T] | None, second: frozenset[T] | None) -> frozenset[T] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    return max(first[0], second[0]), min(first[1], second[1])


EVERYTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class TopicPatterns:
    """Any of these; all topics where there is none."""

    patterns: tuple[str, ...] = ()

    def match(self, topic: str) -> bool:
        return not self.patterns or any(fnmatchcase(topic, pattern) for pattern in self.patterns)

    @property
    def expression(self) -> str | None:
        """The same as one regular expression."""
        return "|".join(translate(pattern) for pattern in self.patterns) or None

    def refuse_unknown(self, topics: Iterable[str]) -> None:
        """UnknownNameError for a pattern that matches none of them."""
        known = sorted(set(topics))
        for pattern in self.patterns:
            if not any(fnmatchcase(topic, pattern) for topic in known):
                some = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
                raise UnknownNameError(f"no topic is called {pattern!r}; there are: {some}")
