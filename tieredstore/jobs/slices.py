"""Which messages a job wants, the slices of queues that hold them, and a reader of one slice."""

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
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentError,
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
"""Up to this many log segments, slices keep all log rows; else each has about half as many."""
RUN_BYTES: Final = 8 * 1024 * 1024  # log bytes of one read
NEAR_RUN_BYTES: Final = 2 * 1024 * 1024
"""RUN_BYTES for files: where a read costs no request, runs that fit the CPU cache are faster."""
RUN_COUNT: Final = 16_384
UNITS_AT_ONCE: Final = 131_072  # 2.5 MiB of a consume queue in one read
EVER: Final = (-INT64_MAX - 1, INT64_MAX)
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRows:
    """One queue of a tier: its catalogue rows, sorted by base offset, without empty ones."""

    key: QueueKey
    path: str
    log: tuple[SegmentRecord, ...]
    queue: tuple[SegmentRecord, ...]
    goes_on_at: int = 0
    """The offset of the next message, for a queue whose messages have all expired."""
    from_copy: bool = False  # the rows are from a copy of the catalogue

    @property
    def min_offset(self) -> int:
        """The oldest unit. Its record may have expired; a reader then skips it."""
        return self.queue[0].base_offset // UNIT_BYTES if self.queue else self.goes_on_at

    @property
    def end_offset(self) -> int:
        return self.queue[-1].end_offset // UNIT_BYTES if self.queue else self.goes_on_at

    @property
    def message_count(self) -> int:
        """The number of units; gaps between segments do not count."""
        return sum(row.size for row in self.queue) // UNIT_BYTES

    @property
    def log_bytes(self) -> int:
        return sum(row.size for row in self.log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The messages of one queue with queue offsets in [first_offset, end_offset).

    `rows` is all that a reader needs from the catalogue; `approximate_bytes` is what it will read.
    `from_copy`: the rows are from a published copy of the catalogue. If a newer copy lacks such
    rows, they are gone; rows from elsewhere may only not have reached the copy yet.
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
    """The queues of these rows, sorted by topic and queue id.

    The rows are such as `TieredReader.segments()` returns.
    """
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

    `bounds` returns the first and the end of the queue offsets wanted from a queue. The sizes of
    single messages are not known here: each slice has about as many messages as make `split_bytes`
    at the queue's average size.
    """
    if split_bytes < 1:
        raise ValueError(f"split_bytes: {split_bytes} is less than 1")
    slices: list[Slice] = []
    for rows in queues:
        if not rows.message_count:
            continue
        first, end = bounds(rows)
        for part in spans_within(rows.queue, first, end):
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


def spans_within(queue: Sequence[SegmentRecord], start: int, stop: int) -> list[range]:
    """The ranges of queue offsets in [start, stop) that have units; the gaps lie between them."""
    spans = (range(max(span.start, start), min(span.stop, stop)) for span in _unit_spans(queue))
    return [span for span in spans if span]


def _unit_spans(queue: Sequence[SegmentRecord]) -> list[range]:
    spans: list[range] = []
    for row in queue:
        start, stop = row.base_offset // UNIT_BYTES, row.end_offset // UNIT_BYTES
        if spans and spans[-1].stop == start:
            spans[-1] = range(spans[-1].start, stop)
        else:
            spans.append(range(start, stop))
    return spans


def units_within(queue: Sequence[SegmentRecord], start: int, stop: int) -> list[SegmentRecord]:
    """The rows that hold units in [start, stop)."""
    return [
        row
        for row in queue
        if row.base_offset < stop * UNIT_BYTES and start * UNIT_BYTES < row.end_offset
    ]


def trimmed(
    config: StoreConfig, slices: Iterable[Slice], *, log_rows_max: int = LOG_ROWS_MAX
) -> list[Slice]:
    """The same slices; those of a queue with many log rows keep only the ones that they need.

    Neighbouring slices share a set of log rows: from the first message of the first slice to the
    first message after the last slice.
    """
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
        # If a place is unknown, the nearest known one also bounds the rows, only less tightly.
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
    """The log offset of the first message; None if it has expired or cannot be read."""
    try:
        file = queue_file(config, slice.key, slice.path, slice.rows)
        run = read_run(file, slice.first_offset, count_max=1, bytes_max=1)
    except TieredStoreError:
        return None
    return int(run.log_offsets[0]) if len(run) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions on messages. All must hold; None means any.

    * Offsets and times are half-open: the first is included, the second is not. Times are store
      times in milliseconds.
    * `ranges`: offsets for single queues; they apply in addition to `offsets`.
    * `keys`: UNIQ_KEY or one of KEYS is among them. `unique_keys`: UNIQ_KEY is among them.
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
        """The queue offsets wanted from one queue."""
        return _overlap(self.offsets, self.ranges[key]) if key in self.ranges else self.offsets

    @property
    def is_timed(self) -> bool:
        return self.times != EVER

    @property
    def key_texts(self) -> frozenset[str] | None:
        """The keys to look up in an index: every wanted message has one of them."""
        return self.unique_keys if self.unique_keys is not None else self.keys

    def rows(self, fields: RecordFields) -> NDArray[np.int64]:
        """The sound rows of a run that match offsets and times. Keys are not checked."""
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
        """What both select.

        A message may match two different sets of `keys` by different keys, so the sets cannot be
        intersected: only the first one is applied.
        """
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
    """Matches topics by any of these patterns; without patterns, all topics."""

    patterns: tuple[str, ...] = ()

    def match(self, topic: str) -> bool:
        return not self.patterns or any(fnmatchcase(topic, pattern) for pattern in self.patterns)

    @property
    def expression(self) -> str | None:
        """The patterns as one regular expression."""
        return "|".join(translate(pattern) for pattern in self.patterns) or None

    def refuse_unknown(self, topics: Iterable[str]) -> None:
        """Raise UnknownNameError for a pattern that matches none of the topics."""
        known = sorted(set(topics))
        for pattern in self.patterns:
            if not any(fnmatchcase(topic, pattern) for topic in known):
                some = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
                raise UnknownNameError(f"no topic is called {pattern!r}; there are: {some}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Messages with queue offsets in [first_offset, end_offset) that cannot be read.

    `position` is a byte offset in the segment at `path`. `is_missing`: the whole segment is missing
    or another one has its name, because it was deleted or expired after the slice was planned.
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
    """The next run (None after the last one) and the damage found before it."""

    run: MessageRun | None
    damages: list[Damage]


OnDamage: TypeAlias = Callable[[Damage], None]


class SliceReader:
    """The messages of one slice, in order.

    * Damage raises SegmentCorruptError, which names file and position, unless `on_damage` is given:
      then damaged messages are left out, and all sound ones are returned.
    * A body whose checksum differs from that in its record is damage, unless `checks_bodies` or the
      settings turn the check off.
    * Two runs are in memory at a time, each of at most RUN_BYTES or a single message.
    * Messages whose records expired before the slice was planned are not damage.
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
        self._pending: Damage | None = None  # may extend to the next message
        self._gone: bool | None = None  # whether the queue was gone when this was asked last

    def fields(self) -> Iterator[RecordFields]:
        """Consecutive runs, without what is damaged, with the places of their records' fields.
        Some rows may not be `sound`."""
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
            if self._is_of_another_queue(fields):
                self._report_gone(found.run)
                continue
            bodies = fields.leave_out_damaged_bodies() if self._checks_bodies else ()
            if not fields.is_sound:
                self._report_unsound(fields, frozenset(bodies))
                self._flush()
            yield fields

    # Reading

    def _ask(self, offset: int) -> Future[_NextRun]:
        if offset >= self._slice.end_offset:  # nothing to read: no need for a thread
            end: Future[_NextRun] = Future()
            end.set_result(_NextRun(None, []))
            return end
        return self._runtime.fetch.submit(self._next_run, offset)

    def _next_run(self, offset: int) -> _NextRun:
        """The next run from this offset on. Runs in another thread, one call at a time."""
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
                # Do not decode, on each read, units for more messages than RUN_BYTES has room for.
                self._count_max = min(2 * len(run), self._run_count)
                return _NextRun(run, damages)
            offset = max(offset + 1, self._file.min_offset)  # all below has expired
        return _NextRun(None, damages)

    # Damage

    def _passed_over(self, error: SegmentCorruptError, offset: int) -> Damage:
        """The damage at this message. Reading continues after it; without `on_damage` it raises."""
        if self._on_damage is None:
            raise error
        missing = isinstance(error.__cause__, SegmentNotFoundError) or self._is_gone
        self._count_max = 1  # scattered damage must not have the same bytes read again and again
        return Damage(
            key=self._slice.key,
            first_offset=offset,
            end_offset=self._end_of_lost_segment(error, offset) if missing else offset + 1,
            path=error.path,
            position=error.position,
            reason=str(error),
            is_missing=missing,
        )

    def _is_of_another_queue(self, fields: RecordFields) -> bool:
        """Whether the topic was deleted after the plan, and these are messages of a new one. They
        were stored after all that were planned; a catalogue is read only where this is so."""
        newest = self._newest_planned
        if newest is None or int(fields.store_times().max()) <= newest:
            return False
        if not self._gone:  # it may have been deleted since some damage was found
            self._gone = self._asked_if_gone()
        return self._gone

    @cached_property
    def _newest_planned(self) -> int | None:
        """The newest store time in the planned rows; None if a row lacks it."""
        ends = [row.end_timestamp for row in self._slice.rows if row.type is SegmentType.COMMIT_LOG]
        known = [end for end in ends if end]
        return max(known) if known and len(known) == len(ends) else None

    @property
    def _is_gone(self) -> bool:
        """Asked once, so that much damage does not have a large catalogue read again and again."""
        if self._gone is None:
            self._gone = self._asked_if_gone()
        return self._gone

    def _asked_if_gone(self) -> bool:
        part = self._slice
        return is_gone(self._config, part.rows, from_copy=part.from_copy)

    def _end_of_lost_segment(self, error: SegmentCorruptError, offset: int) -> int:
        """The first message after the log or unit segment that is missing."""
        for segment in self._file.queue.segments:
            if segment.segment.path == error.path:
                return min(segment.record.end_offset // UNIT_BYTES, self._slice.end_offset)
        for segment in self._file.log.segments:
            if segment.segment.path == error.path:
                return self._first_unit_from(segment.end, offset + 1)
        return offset + 1

    def _first_unit_from(self, log_offset: int, offset: int) -> int:
        """The first unit that names a place from `log_offset` on, or that cannot be read: that is
        damage of its own."""
        end, count = self._slice.end_offset, UNITS_AT_ONCE
        while offset < end:
            count = min(count, end - offset)
            try:
                places = self._file.units(offset, count).log_offsets
            except (SegmentError, OffsetOutOfRangeError):
                if count == 1:
                    return offset
                count //= 2
                continue
            behind = np.flatnonzero(places >= log_offset)
            if len(behind):
                return offset + int(behind[0])
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

    def _report_gone(self, run: MessageRun) -> None:
        path, position = self._file.path, int(run.log_offsets[0])
        reason = "the topic was deleted and made again after the read was planned"
        if self._on_damage is None:
            raise SegmentCorruptError(path, reason, position=position)
        self._report(
            Damage(
                key=self._slice.key,
                first_offset=run.first_offset,
                end_offset=run.end_offset,
                path=path,
                position=position,
                reason=reason,
                is_missing=True,
            )
        )
        self._flush()

    def _damage_at(self, log_offset: int, offset: int) -> SegmentCorruptError:
        reason = f"the lengths within message {offset} do not add up"
        found = self._file.log.segment_at(log_offset)
        if found is None:
            return SegmentCorruptError(self._file.path, reason, position=log_offset)
        return SegmentCorruptError(found.segment.path, reason, position=log_offset - found.base)

    def _report(self, damage: Damage) -> None:
        """Report damage. Adjacent damage is merged, so that a lost stretch is reported once."""
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
    """Whether the queue of these planned rows is gone, or another queue has its name: its topic was
    deleted. `in_part`: also true if only some of the rows have expired.

    This is answered by the newest catalogue that can be read here: a bucket's log, the broker's
    file, or the published one, which stops naming a queue before its bytes are deleted. An older
    catalogue may name segments that have been made anew since.
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
    # Rows of segments that were added after a copy was published have no creation time.
    made = [now for row, now in zip(rows, known, strict=True) if row.create_timestamp]
    lacks = None in made if in_part else not any(known)
    return (lacks and not may_lag) or any(
        now is not None and now.create_timestamp != row.create_timestamp != 0
        for row, now in zip(rows, known, strict=True)
    )


class _UnitsAhead:
    """Reads units far ahead: a run needs only a few, and each read is a request."""

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
            return self._queue.read(offset, length)  # damage further on must not fail this read
