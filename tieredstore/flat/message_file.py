"""One queue of the tier: `FlatMessageFile` with its commit log and its consume queue."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from struct import pack_into
from typing import Any, Final, Unpack

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.columns import ParsedRun, Records
from tieredstore.codec.message import CODA_BYTES
from tieredstore.codec.queue_unit import (
    UNIT_BYTES,
    QueueUnits,
    decode_units,
    encode_unit,
    encode_units,
)
from tieredstore.codec.record import LOG_OFFSET_POSITION, peek_queue_offset, peek_store_timestamp
from tieredstore.driver.metadata import DeleteSegment, MetadataStore, Put
from tieredstore.driver.provider import WritePair
from tieredstore.flat.append_file import Backing, FileUpload, FlatAppendFile, FlatSegment
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueKey, QueueRecord, SegmentRecord, SegmentType, TopicRecord

HOUR_MS: Final = 3_600_000
FIRST_BELIEVED_MS: Final = 1_262_304_000_000  # 2010-01-01
AHEAD_BELIEVED_MS: Final = 24 * HOUR_MS
_HEADER_BYTES: Final = 28  # up to and including the queue offset
_LOST: Final = (SegmentNotFoundError, SegmentCorruptError, OffsetOutOfRangeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """The uploads of both files for one commit, to be sent as a pair and then settled."""

    log: FileUpload | None
    queue: FileUpload | None

    @property
    def pair(self) -> WritePair:
        return WritePair(
            log=None if self.log is None else self.log.write,
            queue=None if self.queue is None else self.queue.write,
            rows=tuple(file.row for file in (self.log, self.queue) if file is not None),
        )


LOG_START_NOTE: Final = "log-start"


def log_start(path: str, metadata: MetadataStore) -> int:
    """Where the log of a queue begins: after that of a destroyed queue of the same name. The key
    index still has log offsets of the old queue, under the same topic number."""
    note = metadata.note(LOG_START_NOTE, path)
    return note if type(note) is int else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """How many messages of a run were appended, the offset of each in the tier's commit log, and
    their records as stored there, one after the other."""

    count: int
    log_offsets: NDArray[np.int64]
    records: memoryview


def is_believed(time: int | None, now_ms: int) -> bool:
    """Whether a store time can be true: RocketMQ's rows have some that cannot."""
    return time is not None and FIRST_BELIEVED_MS <= time <= now_ms + AHEAD_BELIEVED_MS


class FlatCommitLogFile(FlatAppendFile):
    """The records of one queue, from byte 0 on."""

    def __init__(self, path: str, config: StoreConfig, **backing: Unpack[Backing]) -> None:
        bytes_max = config.commit_log_segment_bytes
        super().__init__(path, SegmentType.COMMIT_LOG, segment_bytes_max=bytes_max, **backing)
        self._rolling_ms = config.commit_log_rolling_hours * HOUR_MS
        self._rolling_bytes = config.commit_log_rolling_min_bytes
        self._first: tuple[FlatSegment, int] | None = None  # the oldest segment's first message

    @property
    def is_empty(self) -> bool:
        """Whether the last segment is empty and no bytes wait for it."""
        return self.append_offset == self.segments[-1].base

    def is_due_to_roll(self) -> bool:
        """Whether the last segment is old and large enough for a next one.

        Its age is that of its first message, or its own if that message's time is not believed.
        """
        last = self.segments[-1] if self.segments else None
        if last is None or last.record.begin_timestamp is None:
            return False
        now = self._clock.now_ms()
        times = (last.record.begin_timestamp, last.record.create_timestamp)
        begin = next((time for time in times if is_believed(time, now)), now)
        return (
            now - begin > self._rolling_ms and self.append_offset - last.base >= self._rolling_bytes
        )

    @property
    def knows_first(self) -> bool:
        """Whether `first_queue_offset` needs no read."""
        first = self.oldest
        return first is None or (self._first is not None and self._first[0] is first)

    def first_queue_offset(
        self, believed: Callable[[int, int], int] = lambda said, _: said
    ) -> int | None:
        """The queue offset of the oldest message; None while nothing is committed.

        One small read, once for each oldest segment. `believed` gets what the record says, and
        where it lies, and returns what is known from then on.
        """
        oldest, known = self.oldest, self._first
        if oldest is None:
            return None
        if known is None or known[0] is not oldest:
            header = self.read(oldest.base, _HEADER_BYTES)
            said = peek_queue_offset(header, path=self.path)
            known = self._first = oldest, believed(said, oldest.base)
        return known[1]

    def assume_first(self, oldest: FlatSegment, queue_offset: int) -> None:
        """Set the queue offset of this segment's first message, which the caller knows although the
        record is lost."""
        self._first = oldest, queue_offset

    @property
    def oldest(self) -> FlatSegment | None:
        """The first segment with a message, not just a few torn bytes."""
        whole = (found for found in self.segments if found.record.size >= _HEADER_BYTES)
        return next(whole, None)


def placed_records(
    run: MessageRun, count: int, log_offset: int
) -> tuple[bytearray, NDArray[np.int64]]:
    """The first records of a run as stored in a tier from `log_offset` on, and the offset of each.

    Only the log offset within each record changes. Records in a bytearray that holds nothing else
    are changed in place; others are copied once.
    """
    if count == 1:  # common: thousands of queues in every round; columns would cost ten times this
        data = _own_bytes(run, int(run.starts[0]), int(run.message_bytes[0]))
        pack_into(">q", data, LOG_OFFSET_POSITION, log_offset)
        return data, np.array([log_offset], np.int64)
    sizes = run.message_bytes[:count].astype(np.int64)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    sources = run.starts[:count]
    if np.array_equal(sources - sources[0], starts):
        data = _own_bytes(run, int(sources[0]), int(ends[-1]))
    else:
        data = bytearray().join(run.record(row) for row in range(count))
    log_offsets = starts + log_offset
    words: NDArray[Any] = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    words[starts + LOG_OFFSET_POSITION] = log_offsets
    del words
    return data, log_offsets


def _own_bytes(run: MessageRun, start: int, length: int) -> bytearray:
    """These bytes of a run's records, in a bytearray that may be changed."""
    if isinstance(run.records, bytearray) and len(run.records) == length:
        return run.records
    return bytearray(memoryview(run.records)[start : start + length])


def _units_of(run: MessageRun, log_offsets: NDArray[np.int64]) -> bytes:
    """The queue units of the first messages of a run, which lie at these log offsets."""
    count = len(log_offsets)
    if count == 1:
        return encode_unit(
            log_offset=int(log_offsets[0]),
            message_bytes=int(run.message_bytes[0]),
            tags_code=int(run.tags_codes[0]),
        )
    return encode_units(
        log_offsets=log_offsets,
        message_bytes=run.message_bytes[:count],
        tags_codes=run.tags_codes[:count],
    )


def _times_of(run: MessageRun, count: int) -> tuple[int, int]:
    """The earliest and the latest store time of a run's first messages. Not those of the first and
    the last message, because the clock may have been set back in between."""
    if count == 1:
        time = peek_store_timestamp(run.record(0))
        return time, time
    if isinstance(run, ParsedRun):
        times = run.store_timestamps[:count]
    else:
        times = Records(run.records, run.starts[:count], run.message_bytes[:count]).store_times()
    return int(times.min()), int(times.max())


class FlatConsumeQueueFile(FlatAppendFile):
    """The units of one queue; unit number k is at byte 20 * k. A gap before a segment stands for
    messages that the broker's store lost before they were tiered."""

    def __init__(self, path: str, config: StoreConfig, **backing: Unpack[Backing]) -> None:
        bytes_max = config.consume_queue_segment_bytes // UNIT_BYTES * UNIT_BYTES  # whole units
        super().__init__(path, SegmentType.CONSUME_QUEUE, segment_bytes_max=bytes_max, **backing)

    @property
    def min_unit(self) -> int:
        return self.min_offset // UNIT_BYTES

    @property
    def commit_unit(self) -> int:
        return self.commit_offset // UNIT_BYTES

    @property
    def append_unit(self) -> int:
        return self.append_offset // UNIT_BYTES

    def first_unit_from(self, unit: int) -> int:
        """The first whole unit at or after this one, which may lie in a gap; the end if there is
        none."""
        end = self.commit_unit  # first: nothing that is committed meanwhile may be passed
        if self.units_in_a_row(unit):
            return unit
        # A segment may begin within a unit, if something is wrong.
        later = (-(-found.base // UNIT_BYTES) for found in self.segments)
        whole = (first for first in later if first > unit and self.units_in_a_row(first))
        return next(whole, end)

    def last_unit_to(self, unit: int) -> int | None:
        """The last existing unit at or before this one, which may lie in a gap."""
        for found in reversed(self.segments):
            if found.record.size and found.base <= unit * UNIT_BYTES:
                return min(unit, found.end // UNIT_BYTES - 1)
        return None

    def units_in_a_row(self, unit: int) -> int:
        """How many committed units there are from this one on, up to the next gap."""
        at = end = unit * UNIT_BYTES
        for segment in self.segments:
            if segment.base <= end < segment.end:
                end = segment.end
        return (end - at) // UNIT_BYTES


class UnitSpans:
    """The committed units within a range of queue offsets, numbered from 0 without gaps."""

    __slots__ = ("_firsts", "_spans", "count")

    def __init__(self, spans: list[range]) -> None:
        self._spans = spans
        self._firsts = [0, *accumulate(len(span) for span in spans)]
        self.count = self._firsts[-1]

    @classmethod
    def of(cls, queue: FlatAppendFile, low: int, high: int) -> UnitSpans:
        """The units of a queue in [low, high)."""
        spans: list[range] = []
        for segment in queue.segments:
            start = max(low, segment.base // UNIT_BYTES)
            stop = min(high, segment.end // UNIT_BYTES)
            if start >= stop:
                continue
            if spans and spans[-1].stop == start:
                spans[-1] = range(spans[-1].start, stop)
            else:
                spans.append(range(start, stop))
        return cls(spans)

    @property
    def last(self) -> int:
        """The newest queue offset. There must be at least one unit."""
        return self._spans[-1].stop - 1

    def offset(self, index: int) -> int:
        """The queue offset of unit number `index`."""
        span = bisect_right(self._firsts, index) - 1
        return self._spans[span][index - self._firsts[span]]

    def index(self, offset: int) -> int | None:
        """The number of the unit with this queue offset; None if it is not there."""
        for first, span in zip(self._firsts, self._spans, strict=False):
            if offset in span:
                return first + offset - span.start
        return None

    def first_at(self, log_offset: int, units: Callable[[int, int], QueueUnits]) -> int | None:
        """The queue offset of the first unit whose record lies at or after this log offset. `units`
        reads units."""

        def place(index: int) -> int:
            return int(units(self.offset(index), 1).log_offsets[0])

        found = bisect_left(range(self.count), log_offset, key=place)
        return self.offset(found) if found < self.count else None

    def part(self, low: int, high: int) -> list[range]:
        """Numbers [low, high) as ranges of queue offsets."""
        parts = []
        for first, span in zip(self._firsts, self._spans, strict=False):
            part = span[max(0, low - first) : max(0, high - first)]
            if part:
                parts.append(part)
        return parts


class FlatMessageFile:
    """A queue in the tier.

    * The log is durable before the queue names its bytes.
    * Messages are appended in queue order, each once: a run starts at `append_offset`.
    * One commit at a time: from `begin_commit` to `end_commit` or `fail_commit`.
    * A queue with a `problem` accepts nothing more; what it has can be read.
    * Only one thread at a time appends or commits; any thread may read at any time.
    """

    def __init__(
        self,
        record: QueueRecord,
        topic: TopicRecord,
        config: StoreConfig,
        *,
        path: str,
        **backing: Unpack[Backing],
    ) -> None:
        self.key: QueueKey = record.key
        self.topic_id = topic.topic_id
        self.path = path
        self.clock = backing["clock"]
        self.problem: str | None = None  # why nothing more is uploaded, for the operator
        self.unconfirmed_from: int | None = None  # messages from here on may be another broker's
        self.log = FlatCommitLogFile(path, config, **backing)
        self.queue = FlatConsumeQueueFile(path, config, **backing)
        self.seen_to: dict[SegmentType, int] = {}  # full segments below this were found in place
        self._metadata = backing["metadata"]
        self._provider = backing["provider"]
        self._committing = threading.Lock()
        self._closed = False

    # Beginning and end, in queue offsets

    @property
    def is_started(self) -> bool:
        """Whether its first queue offset is known."""
        return self.queue.is_started

    @property
    def min_offset(self) -> int:
        """The oldest message that has both its unit and its record. May take a few small reads."""
        return max(self.queue.min_unit, self._first_in_log() if self.log.min_offset else 0)

    @property
    def commit_offset(self) -> int:
        """One more than the newest message that can be read."""
        return self.queue.commit_unit

    @property
    def named_offset(self) -> int:
        """One more than the newest message that the catalogue names. It is beyond `commit_offset`
        while a message is being committed, and if the backend has lost the end of the queue."""
        rows = self._metadata.segments(self.path, SegmentType.CONSUME_QUEUE)
        return max((row.end_offset // UNIT_BYTES for row in rows), default=0)

    @property
    def sure_offset(self) -> int:
        """The same, without messages that are still to be compared with the local ones."""
        # Looked at twice: they may come or be taken back meanwhile.
        ends = self.unconfirmed_from, self.commit_offset, self.unconfirmed_from
        return min(end for end in ends if end is not None)

    @property
    def append_offset(self) -> int:
        """The queue offset that the next message must have."""
        return self.queue.append_unit

    @property
    def waiting_bytes(self) -> int:
        return self.log.waiting_bytes + self.queue.waiting_bytes

    @property
    def knows_its_end(self) -> bool:
        """Whether `begin_commit` can do without asking the backend."""
        return self.log.knows_its_end and self.queue.knows_its_end

    @property
    def is_in_doubt(self) -> bool:
        """Whether a failed upload may have landed: no segment may begin before that is settled."""
        return self.log.is_in_doubt or self.queue.is_in_doubt

    # Writing

    def start_at(self, queue_offset: int) -> None:
        """Set the queue offset of the first message. No effect if it is known already."""
        if self.queue.is_started:
            return
        self._check_writable()
        records = [self.queue.record_of_new(queue_offset * UNIT_BYTES)]
        if not self.log.is_started:
            records.append(self.log.record_of_new(log_start(self.path, self._metadata)))
        self._metadata.stage(map(Put, records))  # a queue without bytes may begin anywhere again
        if self._closed:  # destroyed meanwhile, and nobody else knows of these rows
            self._metadata.stage([DeleteSegment(*record.key) for record in records])
            self._check_writable()
        self.queue.adopt(records[0])
        if not self.log.is_started:
            self.log.adopt(records[1])

    def skip_to(self, queue_offset: int) -> None:
        """Leave a gap up to this offset: the messages before it are lost. Nothing may wait or be in
        doubt."""
        self._check_writable()
        if self.is_in_doubt:
            raise ValueError(f"{self.path}: skip while it is not known what has landed")
        if queue_offset > self.append_offset:
            self.queue.roll(queue_offset * UNIT_BYTES)

    def append(self, run: MessageRun) -> Appended:
        """Take messages from the head of a run: as many as fit into the segments being written.

        If none fits, full files roll; if a commit must come first, no message is taken. The run
        stays the caller's, but records in a bytearray are taken over.
        """
        self._check_writable()
        if run.first_offset != self.append_offset:
            raise OffsetOutOfRangeError(
                f"{self.path}: append",
                offset=run.first_offset,
                minimum=self.append_offset,
                maximum=self.append_offset,
            )
        count = self._fitting(run)
        if not count and len(run) and not (self.waiting_bytes or self.is_in_doubt):
            self._roll_what_is_full(run)
            count = self._fitting(run)
        if not count:
            return Appended(count=0, log_offsets=np.empty(0, np.int64), records=memoryview(b""))
        data, log_offsets = placed_records(run, count, self.log.append_offset)
        units = _units_of(run, log_offsets)
        begin, end = _times_of(run, count)
        self.log.append(data, begin=begin, end=end)
        self.queue.append(units, begin=begin, end=end)
        return Appended(count=count, log_offsets=log_offsets, records=memoryview(data))

    def roll_if_due(self) -> bool:
        """Begin a new log segment if the last one is due and nothing waits or is in doubt."""
        if self.waiting_bytes or self.is_in_doubt or not self.log.is_due_to_roll():
            return False
        self.log.roll()
        return True

    def begin_commit(self) -> CommitAttempt | None:
        """What to send; None if nothing waits or a commit is under way.

        Raises what the backend raises when it is asked about the outcome of an earlier attempt.
        """
        if not self._committing.acquire(blocking=False):
            return None
        try:
            attempt = CommitAttempt(log=self.log.prepare(), queue=self.queue.prepare())
        except BaseException:
            self._committing.release()
            raise
        if attempt.log is None and attempt.queue is None:
            self._committing.release()
            return None
        return attempt

    def end_commit(self, attempt: CommitAttempt) -> list[SegmentRecord]:
        """Make the durable pair visible; return its rows for the catalogue."""
        try:
            uploads = (self.log, attempt.log), (self.queue, attempt.queue)
            return [file.settle(upload) for file, upload in uploads if upload is not None]
        finally:
            self._committing.release()

    def current_rows(self, rows: Iterable[SegmentRecord]) -> list[SegmentRecord]:
        """The present rows of these rows' segments, without segments that are gone."""
        segments = (*self.log.segments, *self.queue.segments)
        now = {segment.record.key: segment.record for segment in segments}
        return [now[key] for key in dict.fromkeys(row.key for row in rows) if key in now]

    def fail_commit(self, error: BaseException | None = None) -> None:
        """Note that the pair's outcome is unknown. Nothing is dropped; the next attempt repairs."""
        self.log.doubt(error)
        self.queue.doubt(error)
        self._committing.release()

    def discard(self) -> bool:
        """Free the memory of waiting messages. The same messages must be appended again, unchanged.
        False while a commit is under way."""
        if not self._committing.acquire(blocking=False):
            return False
        try:
            self.log.discard()
            self.queue.discard()
        finally:
            self._committing.release()
        return True

    def commit(self) -> bool:
        """Make everything that waits durable now; False if another commit is under way.

        Raises what the backend raises.
        """
        attempt = self.begin_commit()
        if attempt is None:
            return not self.waiting_bytes
        try:
            self._provider.write_many([attempt.pair])[0].result()
        except BaseException as error:
            self.fail_commit(error)
            raise
        self._metadata.apply([Put(record) for record in self.end_commit(attempt)])
        return True

    # Reading

    def units(self, offset: int, count: int) -> QueueUnits:
        """Exactly these committed units, or an error."""
        data = self.queue.read(offset * UNIT_BYTES, count * UNIT_BYTES)
        return decode_units(data, path=self.path)

    def close(self) -> None:
        """Release handles; waiting messages are dropped. Idempotent."""
        self._closed = True
        self.log.close()
        self.queue.close()

    def _check_writable(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.path} is closed")
        if self.problem is not None:
            raise BackendRefusedError(self.path, "append", self.problem)

    def _first_in_log(self) -> int:
        """The oldest message of the log. If its record is lost or wrong, the units say which it is,
        so that a lost segment affects only readers of that segment.
        """
        try:
            return self.log.first_queue_offset(self._agreed) or 0
        except _LOST:
            oldest = self.log.oldest  # first: it may expire while the units are asked
            place = self.log.min_offset if oldest is None else oldest.base
            try:
                first = self._first_named(place)
            except _LOST:
                return 0  # whoever reads what is lost is told
            if oldest is not None:
                self.log.assume_first(oldest, first)
            return first

    def _agreed(self, said: int, place: int) -> int:
        """What the oldest record says, or the message whose unit names its place. No checksum
        covers either, and readers pass all messages before it: so in doubt it is the earlier one.
        """
        unit, coda = max(said, self.queue.min_unit), place - CODA_BYTES
        if self._spans.index(unit) is not None:
            try:
                named = int(self.units(unit, 1).log_offsets[0])
                if named in (place, coda) or (unit != said and named >= coda):
                    return said
                first = self._first_named(place)
                is_its = named < coda and int(self.units(first, 1).log_offsets[0]) in (place, coda)
            except _LOST:
                return said  # whoever reads this message is told
            return first if is_its else min(said, first)
        return min(said, self._first_named(place))

    def _first_named(self, place: int) -> int:
        """The first message whose record lies there or behind, as the units say."""
        found = self._spans.first_at(place - CODA_BYTES, self.units)
        return self.commit_offset if found is None else found

    @property
    def _spans(self) -> UnitSpans:
        return UnitSpans.of(self.queue, self.queue.min_unit, self.queue.commit_unit)

    def _fitting(self, run: MessageRun) -> int:
        """How many messages fit. One that is too large for any segment goes into an empty one
        alone."""
        rows = min(len(run), self.queue.room() // UNIT_BYTES)
        if rows == 1:
            fits = int(run.message_bytes[0]) <= self.log.room() or self.log.is_empty
            return int(fits)
        ends = np.cumsum(run.message_bytes[:rows], dtype=np.int64)
        count = int(np.searchsorted(ends, self.log.room(), "right"))
        if not count and rows and self.log.is_empty:
            return 1
        return count

    def _roll_what_is_full(self, run: MessageRun) -> None:
        if self.queue.room() < UNIT_BYTES:
            self.queue.roll()
        if self.log.room() < int(run.message_bytes[0]) and not self.log.is_empty:
            self.log.roll()
