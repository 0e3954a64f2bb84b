"""One queue of the tier: a commit log and a consume queue that belong together.

What lives here: `FlatMessageFile`: appending runs of messages, committing both files in order,
and reading runs back. What is done when it is opened is in `recovery`; searching by time in
`time_search`; which queues there are in `file_store`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnits, decode_units, encode_units
from tieredstore.codec.record_fields import peek_store_timestamp
from tieredstore.driver.metadata import MetadataStore, Put
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Clock
from tieredstore.flat.commit_attempt import Appended, CommitAttempt
from tieredstore.flat.commit_log import FlatCommitLogFile, placed_records
from tieredstore.flat.consume_queue import FlatConsumeQueueFile
from tieredstore.flat.unit_spans import UnitSpans
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueKey, SegmentType

_TIME_BYTES = 76  # up to and with the store time of a message born on IPv6


class FlatMessageFile:
    """A queue in the tier.

    * The log is durable before the queue names its bytes.
    * Messages are appended in queue order, each once: a run starts at `append_offset`.
    * One commit at a time: from `begin_commit` to `end_commit` or `fail_commit`.
    * A queue with a `problem` takes nothing more; what it has can be read.
    * Appending and committing come from one thread at a time; any thread may read at any time.
    """

    def __init__(
        self,
        record: QueueRecord,
        topic: TopicRecord,
        config: StoreConfig,
        *,
        path: str,
        provider: SegmentProvider,
        metadata: MetadataStore,
        clock: Clock,
    ) -> None:
        self.key: QueueKey = record.key
        self.topic_id = topic.topic_id
        self.path = path
        self.clock = clock
        self.problem: str | None = None  # why nothing more is uploaded, for who looks after it
        self.unconfirmed_from: int | None = None  # found there, and maybe another broker's
        parts = {"provider": provider, "metadata": metadata, "clock": clock}
        self.log = FlatCommitLogFile(path, config, **parts)  # type: ignore[arg-type]
        self.queue = FlatConsumeQueueFile(path, config, **parts)  # type: ignore[arg-type]
        self.seen_to: dict[SegmentType, int] = {}  # full segments below this were found in place
        self._metadata = metadata
        self._provider = provider
        self._committing = threading.Lock()
        self._closed = False

    # Where it begins and ends, in queue offsets

    @property
    def is_started(self) -> bool:
        """Whether its first queue offset is known."""
        return self.queue.is_started

    @property
    def min_offset(self) -> int:
        """The oldest message whose unit and record are both there. May take one small read."""
        return max(self.queue.min_unit, self._first_in_log() if self.log.min_offset else 0)

    @property
    def commit_offset(self) -> int:
        """One more than the newest message that can be read."""
        return self.queue.commit_unit

    @property
    def sure_offset(self) -> int:
        """The same, but for messages that somebody has still to compare with the local ones."""
        first, end = self.unconfirmed_from, self.commit_offset
        return end if first is None else min(first, end)

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
        """The first message will have this queue offset; nothing if that is settled already."""
        if self.queue.is_started:
            return
        self._check_writable()
        records = [self.queue.record_of_new(queue_offset * UNIT_BYTES)]
        if not self.log.is_started:
            records.append(self.log.record_of_new(0))
        self._metadata.put(*records)
        self.queue.adopt(records[0])
        if not self.log.is_started:
            self.log.adopt(records[1])

    def skip_to(self, queue_offset: int) -> None:
        """Leave a gap: the messages up to here are lost. Nothing may wait or be in doubt."""
        self._check_writable()
        if self.is_in_doubt:
            raise ValueError(f"{self.path}: skip while it is not known what has landed")
        if queue_offset > self.append_offset:
            self.queue.roll(queue_offset * UNIT_BYTES)

    def append(self, run: MessageRun) -> Appended:
        """Take messages from the head of a run: as many as fit into the segments being written.

        Where none fits, files that are full roll, unless a commit must come first: then none is
        taken. The caller keeps its run, unless its records are a bytearray: those are taken over.
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
        units = encode_units(
            log_offsets=log_offsets,
            message_bytes=run.message_bytes[:count],
            tags_codes=run.tags_codes[:count],
        )
        times = [peek_store_timestamp(run.record(row)) for row in {0, count - 1}]
        self.log.append(data, begin=min(times), end=max(times))
        self.queue.append(units, begin=min(times), end=max(times))
        return Appended(count=count, log_offsets=log_offsets, records=memoryview(data))

    def roll_if_due(self) -> bool:
        """Begin a new log segment where the last one is old enough, and nothing is in doubt."""
        if self.waiting_bytes or self.is_in_doubt or not self.log.is_due_to_roll():
            return False
        self.log.roll()
        return True

    def begin_commit(self) -> CommitAttempt | None:
        """What has to be sent; None if nothing waits or a commit is under way.

        Raises what the backend raises when it is asked what became of an earlier attempt.
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
        """The pair is durable, and visible from now on; the rows for the catalogue."""
        try:
            changed = []
            if attempt.log is not None:
                changed.append(self.log.settle(attempt.log))
            if attempt.queue is not None:
                changed.append(self.queue.settle(attempt.queue))
            return changed
        finally:
            self._committing.release()

    def current_rows(self, rows: Iterable[SegmentRecord]) -> list[SegmentRecord]:
        """What the catalogue should say now of the segments of these rows; none that is gone."""
        now = {each.record.key: each.record for each in (*self.log.segments, *self.queue.segments)}
        return [now[key] for key in dict.fromkeys(row.key for row in rows) if key in now]

    def fail_commit(self, error: BaseException | None = None) -> None:
        """What became of the pair is not known. Everything stays, and the next attempt repairs."""
        self.log.doubt(error)
        self.queue.doubt(error)
        self._committing.release()

    def discard(self) -> bool:
        """Give back the memory of what waits; the same messages must be appended again, as they
        were. False while a commit is under way."""
        if not self._committing.acquire(blocking=False):
            return False
        try:
            self.log.discard()
            self.queue.discard()
        finally:
            self._committing.release()
        return True

    def commit(self) -> bool:
        """Make everything that waits durable, here and now; False if another commit is under way.

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
        """Committed units; all of them or an error."""
        data = self.queue.read(offset * UNIT_BYTES, count * UNIT_BYTES)
        return decode_units(data, path=self.path)

    def store_time(self, offset: int) -> int:
        """When the message was stored: two small reads."""
        unit = self.units(offset, 1)
        header = self.log.read(
            int(unit.log_offsets[0]), min(int(unit.message_bytes[0]), _TIME_BYTES)
        )
        return peek_store_timestamp(header, path=self.path)

    def close(self) -> None:
        """Release handles; what waits is dropped. Idempotent."""
        self._closed = True
        self.log.close()
        self.queue.close()

    def _check_writable(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.path} is closed")
        if self.problem is not None:
            raise BackendRefusedError(self.path, "append", self.problem)

    def _first_in_log(self) -> int:
        """The oldest message of the log, also where its record is lost: then the queue tells.

        So a lost segment is damage to those who read there, and nobody else.
        """
        try:
            return self.log.first_queue_offset() or 0
        except (SegmentNotFoundError, SegmentCorruptError, OffsetOutOfRangeError):
            spans = UnitSpans.of(self.queue, self.queue.min_unit, self.queue.commit_unit)
            found = spans.first_at(self.log.min_offset, self.units)
            first = self.commit_offset if found is None else found
            self.log.assume_first(first)
            return first

    def _fitting(self, run: MessageRun) -> int:
        """How many messages fit; one that fits no segment goes into an empty one alone."""
        rows = min(len(run), self.queue.room() // UNIT_BYTES)
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
