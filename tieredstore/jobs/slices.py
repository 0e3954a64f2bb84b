"""The requested messages, the slices of queues that hold them, and one slice read ahead."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase, translate
from functools import cached_property
from itertools import groupby, pairwise
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.columns import RecordFields
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import PUBLISHED
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import damaged_body, read_run
from tieredstore.jobs.worker import (
    newest_catalogue,
    queue_file,
    worker_provider,
    worker_runtime,
)
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    MetadataError,
    SegmentCorruptError,
    SegmentNotFoundError,
    TieredStoreError,
    UnknownNameError,
)
from tieredstore.model.messages import MessageRun
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentRecord, SegmentType

log = log_of(__name__)

T = TypeVar("T")

SPLIT_BYTES: Final = 64 * 1024 * 1024
LOG_ROWS_MAX: Final = 64
"""A queue with no more log segments is left as it is; else a slice has about half as many."""
RUN_BYTES: Final = 8 * 1024 * 1024  # log bytes of one read
NEAR_RUN_BYTES: Final = 2 * 1024 * 1024
"""The same of files: where a read costs no request, what the processor's cache holds is quicker."""
RUN_COUNT: Final = 16_384
UNITS_AT_ONCE: Final = 131_072  # 2.5 MiB of a consume queue in one read
EVER: Final = (-INT64_MAX - 1, INT64_MAX)
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRows:
    """One queue of a tier: its rows, by base offset, without empty ones."""

    key: QueueKey
    path: str
    log: tuple[SegmentRecord, ...]
    queue: tuple[SegmentRecord, ...]
    goes_on_at: int = 0
    """Of a queue all of whose messages have expired: the offset of the next one."""
    from_copy: bool = False  # by a copy of the catalogue

    @property
    def min_offset(self) -> int:
        """The oldest unit. Its record may have expired: a reader passes over it."""
        return self.queue[0].base_offset // UNIT_BYTES if self.queue else self.goes_on_at

    @property
    def end_offset(self) -> int:
        return self.queue[-1].end_offset // UNIT_BYTES if self.queue else self.goes_on_at

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
    `from_copy`: the rows are those of a copy, so if a newer copy lacks them, they are gone; of
    other rows it may not know yet.
    """

    key: QueueKey
    path: str
    first_offset: int
    end_offset: int
    approximate_bytes: int
    rows: tuple[SegmentRecord, ...]
    from_copy: bool = False

    def __len__(self) -> int:
        return self.end_offset - self.first_offset


def queue_rows(
    rows: Iterable[SegmentRecord],
    *,
    wanted: Callable[[QueueKey], bool] = lambda _key: True,
    from_copy: bool = False,
) -> list[QueueRows]:
    """The queues of these rows, such as `TieredReader.segments()` gives, by topic and queue id."""
    found: dict[str, tuple[QueueKey, list[SegmentRecord], list[SegmentRecord]]] = {}
    ends: dict[str, int] = {}
    for row in rows:
        held = found.get(row.path)
        if held is None:
            held = found[row.path] = _queue_of(row.path), [], []
        if row.type is SegmentType.CONSUME_QUEUE:
            ends[row.path] = max(ends.get(row.path, 0), row.end_offset // UNIT_BYTES)
        if row.size and row.type is not SegmentType.INDEX:
            (held[1] if row.type is SegmentType.COMMIT_LOG else held[2]).append(row)
    queues = [
        QueueRows(
            key=key,
            path=path,
            log=tuple(sorted(log, key=lambda row: row.base_offset)),
            queue=tuple(sorted(queue, key=lambda row: row.base_offset)),
            goes_on_at=ends.get(path, 0),
            from_copy=from_copy,
        )
        for path, (key, log, queue) in found.items()
        if key.topic != INDEX_TOPIC and wanted(key)
    ]
    return sorted(queues, key=lambda rows: (rows.key, rows.path))


def _queue_of(path: str) -> QueueKey:
    try:
        _, topic, queue_id = path.split("/")
        return QueueKey(topic, int(queue_id))
    except ValueError:
        raise MetadataError(path, "the catalogue has segments of it, and it is no queue") from None


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
            from_copy=rows.from_copy,
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
    try:
        file = queue_file(config, slice.key, slice.path, slice.rows)
        run = read_run(file, slice.first_offset, count_max=1, bytes_max=1)
    except TieredStoreError:
        return None
    return int(run.log_offsets[0]) if len(run) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All conditions hold at once; None means any.

    * Offsets and times are half-open: the first is included, the second is not. Times are store
      times in milliseconds.
    * `ranges`: the same for offsets of single queues; they apply in addition to `offsets`.
    * `keys`: UNIQ_KEY or one of KEYS is one of these. `unique_keys`: UNIQ_KEY is.
    """

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    queue_ids: frozenset[int] | None = None
    offsets: tuple[int, int] = (0, INT64_MAX)
    ranges: Mapping[QueueKey, tuple[int, int]] = field(default_factory=dict)
    times: tuple[int, int] = EVER
    keys: frozenset[str] | None = None
    unique_keys: frozenset[str] | None = None

    def wants(self, key: QueueKey) -> bool:
        return (
            (self.topics is None or key.topic in self.topics)
            and (self.queue_ids is None or key.queue_id in self.queue_ids)
            and (self.topic_pattern is None or bool(re.fullmatch(self.topic_pattern, key.topic)))
        )

    def offsets_of(self, key: QueueKey) -> tuple[int, int]:
        """The queue offsets that are wanted of one queue."""
        return _overlap(self.offsets, self.ranges[key]) if key in self.ranges else self.offsets

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
            ranges=self.ranges,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Messages with queue offsets in [first_offset, end_offset) that cannot be read.

    `position` is a byte of the segment at `path`. `is_missing`: the whole segment is missing, or
    replaced by another one of that name: it was deleted, or expired after the slice was planned.
    """

    key: QueueKey
    first_offset: int
    end_offset: int
    path: str
    position: int
    reason: str
    is_missing: bool = False

    def __str__(self) -> str:
        last = self.end_offset - 1
        which = f"message {last}" if last == self.first_offset else f"{self.first_offset} to {last}"
        return f"{self.key.topic}, queue {self.key.queue_id}, {which}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _NextRun:
    """The next run, None after the last one, and the damage before it."""

    run: MessageRun | None
    damages: list[Damage]


OnDamage: TypeAlias = Callable[[Damage], None]


class SliceReader:
    """The messages of one slice, in order.

    * Damage raises SegmentCorruptError, which names file and position, unless `on_damage` is given:
      then damaged messages are left out, and all sound ones are returned.
    * A body with another checksum than in its record is damage, unless `checks_bodies` or the
      settings turn the check off.
    * Two runs are in memory at a time, of at most RUN_BYTES or a single message each.
    * Messages whose records expired before the slice was planned are no damage.
    """

    def __init__(
        self,
        config: StoreConfig,
        slice: Slice,
        *,
        on_damage: OnDamage | None = None,
        file: FlatMessageFile | None = None,
        run_count: int = RUN_COUNT,
        checks_bodies: bool = True,
    ) -> None:
        self._checks_bodies = checks_bodies and config.checks_bulk_reads
        self._config = config
        self._slice = slice
        self._on_damage = on_damage
        self._file = file or queue_file(config, slice.key, slice.path, slice.rows)
        self._runtime = worker_runtime()
        self._source = _UnitsAhead(self._file.queue, slice)
        self._provider = worker_provider(config)
        self._run_bytes = RUN_BYTES if self._provider.reads_together else NEAR_RUN_BYTES
        self._run_count = run_count
        self._count_max = run_count
        self._pending: Damage | None = None  # may go on in the next message

    def fields(self) -> Iterator[RecordFields]:
        """Runs that follow each other, but for what is damaged, with the places of their records'
        fields. Rows may not be `sound`."""
        step = self._ask(self._slice.first_offset)
        while True:
            found = step.result()
            for damage in found.damages:
                self._report(damage)
            self._flush()
            if found.run is None:
                return
            step = self._ask(found.run.end_offset)
            fields = RecordFields(found.run)
            bodies = fields.leave_out_damaged_bodies() if self._checks_bodies else ()
            if not fields.is_sound:
                self._report_unsound(fields, frozenset(bodies))
                self._flush()
            yield fields

    # Reading

    def _ask(self, offset: int) -> Future[_NextRun]:
        if offset >= self._slice.end_offset:  # nothing to read: no thread is asked
            end: Future[_NextRun] = Future()
            end.set_result(_NextRun(None, []))
            return end
        return self._runtime.fetch.submit(self._next_run, offset)

    def _next_run(self, offset: int) -> _NextRun:
        """The next run from here on; in another thread, and one at a time."""
        end = self._slice.end_offset
        damages: list[Damage] = []
        while offset < end:
            try:
                run = read_run(
                    self._file,
                    offset,
                    count_max=min(self._count_max, end - offset),
                    bytes_max=self._run_bytes,
                    source=self._source,
                )
            except SegmentCorruptError as error:
                damages.append(self._passed_over(error, offset))
                offset = damages[-1].end_offset
                continue
            if len(run):
                # Units that the bytes of one read have no room for are not decoded each time.
                self._count_max = min(2 * len(run), self._run_count)
                return _NextRun(run, damages)
            offset = max(offset + 1, self._file.min_offset)  # below it all has expired
        return _NextRun(None, damages)

    # Damage

    def _passed_over(self, error: SegmentCorruptError, offset: int) -> Damage:
        """The damage at this message; reading goes on behind it."""
        if self._on_damage is None:
            raise error
        missing = isinstance(error.__cause__, SegmentNotFoundError) or self._is_gone
        self._count_max = 1  # what is damaged here and there is not read again and again
        return Damage(
            key=self._slice.key,
            first_offset=offset,
            end_offset=self._end_of_lost_segment(error, offset) if missing else offset + 1,
            path=error.path,
            position=error.position,
            reason=str(error),
            is_missing=missing,
        )

    @cached_property
    def _is_gone(self) -> bool:
        """Once: what is damaged all over is not compared with a large catalogue again and again."""
        part = self._slice
        return is_gone(self._config, part.rows, from_copy=part.from_copy)

    def _end_of_lost_segment(self, error: SegmentCorruptError, offset: int) -> int:
        """The first message behind a log segment, or unit segment, that is not there at all."""
        for segment in self._file.queue.segments:
            if segment.segment.path == error.path:
                return min(segment.record.end_offset // UNIT_BYTES, self._slice.end_offset)
        for segment in self._file.log.segments:
            if segment.segment.path == error.path:
                return self._first_unit_from(segment.end, offset)
        return offset + 1

    def _first_unit_from(self, log_offset: int, offset: int) -> int:
        end = self._slice.end_offset
        while offset < end:
            count = min(UNITS_AT_ONCE, end - offset)
            places = self._file.units(offset, count).log_offsets
            behind = np.flatnonzero(places >= log_offset)
            if len(behind):
                return offset + max(1, int(behind[0]))
            offset += count
        return end

    def _report_unsound(self, fields: RecordFields, bodies: Collection[int]) -> None:
        for row in np.flatnonzero(~fields.sound).tolist():
            offset, place = fields.run.first_offset + row, int(fields.run.log_offsets[row])
            if row in bodies:
                error = damaged_body(self._file, offset, place)
            else:
                error = self._damage_at(place, offset)
            if self._on_damage is None:
                raise error
            self._report(
                Damage(
                    key=self._slice.key,
                    first_offset=offset,
                    end_offset=offset + 1,
                    path=error.path,
                    position=error.position,
                    reason=str(error),
                    is_missing=self._is_gone,
                )
            )

    def _damage_at(self, log_offset: int, offset: int) -> SegmentCorruptError:
        reason = f"the lengths within message {offset} do not add up"
        found = self._file.log.segment_at(log_offset)
        if found is None:
            return SegmentCorruptError(self._file.path, reason, position=log_offset)
        return SegmentCorruptError(found.segment.path, reason, position=log_offset - found.base)

    def _report(self, damage: Damage) -> None:
        """Report damage. Neighbours become one, so that a lost stretch is reported once."""
        known = self._pending
        if known is not None and (known.end_offset, known.path) == (
            damage.first_offset,
            damage.path,
        ):
            self._pending = replace(known, end_offset=damage.end_offset)
            return
        self._flush()
        self._pending = damage

    def _flush(self) -> None:
        damage, self._pending = self._pending, None
        if damage is not None and self._on_damage is not None:
            self._on_damage(damage)


def is_gone(
    config: StoreConfig,
    rows: Sequence[SegmentRecord],
    *,
    from_copy: bool,
    in_part: bool = False,
) -> bool:
    """Whether a queue of which these rows were planned is no longer there, or another one of its
    name is: its topic was deleted. `in_part`: or whether some of these rows have expired.

    The newest catalogue says so that can be had here: a bucket's log, the broker's file, or what is
    published, which no longer names a queue when its bytes go. An older picture may lead to
    segments that have been made anew.
    """
    try:
        catalogue = newest_catalogue(config)
    except MetadataError as error:
        log.warning("the damaged data may be gone: %s", error)
        return False
    if catalogue is None:
        return False
    with closing(catalogue):
        catalogue.refresh()
        known = [catalogue.segment(*row.key) for row in rows]
        may_lag = catalogue.facts.source == PUBLISHED and not from_copy
    # Rows of segments that came behind a copy do not say when they were made.
    made = [now for row, now in zip(rows, known, strict=True) if row.create_timestamp]
    lacks = None in made if in_part else not any(known)
    return (lacks and not may_lag) or any(
        now is not None and now.create_timestamp != row.create_timestamp != 0
        for row, now in zip(rows, known, strict=True)
    )


class _UnitsAhead:
    """Units are read many at once: a run has few of them, and each read is a request."""

    def __init__(self, queue: FlatAppendFile, slice: Slice) -> None:
        self._queue = queue
        self._end = slice.end_offset * UNIT_BYTES
        self._start = 0
        self._held = b""

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        if file is not self._queue:
            return file.read(offset, length)
        at = offset - self._start
        if not (self._held and at >= 0 and at + length <= len(self._held)):
            self._held, self._start, at = self._more(offset, length), offset, 0
        return self._held[at : at + length]

    def _more(self, offset: int, length: int) -> bytes:
        size = max(length, min(UNITS_AT_ONCE * UNIT_BYTES, self._end - offset))
        try:
            return self._queue.read(offset, size)
        except TieredStoreError:
            return self._queue.read(offset, length)  # what is there is served
