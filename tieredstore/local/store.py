"""`LocalMessageStore`: RocketMQ's local store, embedded."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from tieredstore.codec.broker_tables import TOPICS
from tieredstore.codec.queue_unit import QueueUnit
from tieredstore.codec.record import (
    RECORD_BYTES_MIN,
    peek_queue_id,
    peek_queue_offset,
    peek_store_timestamp,
    peek_topic,
)
from tieredstore.codec.selected import SelectedRecord
from tieredstore.driver.arrivals import Arrival, ArrivalCallback, Arrivals
from tieredstore.driver.durable import FileLock
from tieredstore.driver.message_store import (
    BYTES_MAX,
    COUNT_MAX,
    Dispatcher,
    MessageFilter,
    ReadRequest,
    RetentionGuard,
)
from tieredstore.driver.one_process import OneProcess
from tieredstore.driver.runtime import Clock, Runtime, Service
from tieredstore.local.commit_log import (
    Appended,
    AppendedRun,
    CommitLog,
    Flusher,
    PromisedPuts,
    PutResults,
)
from tieredstore.local.config import DelayLevels, LocalConfig
from tieredstore.local.consume_queues import (
    BEGUN_FILE,
    DELETED_FILE,
    BegunQueues,
    ConsumeQueues,
    DeletedTopics,
    queue_directory,
)
from tieredstore.local.dispatch import Dispatch
from tieredstore.local.encoder import PutRefusedError, Record, RecordBatch, RecordEncoder
from tieredstore.local.files import (
    StoreFiles,
    check_sizes,
    property_crc_from,
    set_property_crc_from,
)
from tieredstore.local.index_service import IndexService, query_message
from tieredstore.local.lost_parts import LOST_FILE
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.queue_reader import QueueReader, holds
from tieredstore.local.record_scan import Damage
from tieredstore.local.recovery import (
    ENDS_FILE,
    CheckpointValues,
    QueueEnds,
    Recovery,
    RecoveryReport,
    StoreCheckpoint,
)
from tieredstore.local.redispatch import Redispatch
from tieredstore.local.unit_truth import UnitTruth
from tieredstore.model.config import KIB
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StoreClosedError,
    TieredStoreError,
    refused_by_system,
)
from tieredstore.model.message_columns import MessageColumns, unchanging
from tieredstore.model.messages import (
    GetResult,
    Message,
    MessageRun,
    PutResult,
    QueryResult,
    SelectedMessage,
)
from tieredstore.model.printable import log_of
from tieredstore.model.topics import LIGHT_QUEUE_PREFIX, is_system_topic
from tieredstore.model.values import (
    INT64_MAX,
    Boundary,
    PutStatus,
    QueueKey,
    require_callable,
    require_place,
    require_text,
    require_whole,
    texts_of,
)

log = log_of(__name__)

T = TypeVar("T")

HOUR_MS: Final = 3_600_000
AT_ONCE_BYTES_MAX: Final = 64 * KIB  # of bodies: checksums and copying take 30 microseconds
AT_ONCE_MESSAGES_MAX: Final = 32
_PUTS_WAIT: Final = PutStatus.SERVICE_NOT_AVAILABLE, "too many puts wait for the disk"


@dataclass(slots=True, kw_only=True)
class LocalStore:
    """Log, queues and index, and their services. `of` touches no file."""

    process: OneProcess  # the only process that may use the store
    config: LocalConfig
    files: StoreFiles
    log: CommitLog
    queues: ConsumeQueues
    index: IndexService | None
    dispatch: Dispatch
    truth: UnitTruth
    flusher: Flusher
    promised: PromisedPuts
    reader: QueueReader
    retention: Retention
    delays: DelayLevels
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
    begun: BegunQueues
    ends_moment: tuple[int, int] | None = None
    batch_topics: frozenset[str] = frozenset()
    owes_batch_units: bool = False  # a crash left units out of Java's batch queues: Java adds them
    flushing: threading.Lock = field(default_factory=threading.Lock)
    flush_failure: str = ""  # why the last flush failed; empty if it did not

    @classmethod
    def of(
        cls,
        config: LocalConfig,
        runtime: Runtime,
        *,
        open_index: Callable[[CommitLog], IndexService] | None = None,
        read_only: bool = False,
        put_guard: threading.Lock | None = None,
    ) -> LocalStore:
        """`put_guard` is held while a put is appended to the log and handed to the dispatch."""
        putting = put_guard or threading.Lock()
        files = StoreFiles(config.root)
        open_files = MappedFiles(read_only=read_only)
        log = CommitLog(config, runtime, open_files)
        queues = ConsumeQueues(
            files.consume_queues, file_bytes=config.queue_file_bytes, files=open_files
        )
        index = open_index(log) if open_index is not None else None
        if index is None and config.index_enabled:
            index = IndexService(config, clock=runtime.clock)
        flusher = Flusher(
            log.flush,
            lambda: log.flushed_offset,
            runtime,
            interval_ms=config.flush_interval_ms,
            path=str(files.commit_log),
        )
        dispatch = Dispatch(
            queues,
            index,
            limit=(lambda: log.flushed_offset) if config.sync_flush else (lambda: log.max_offset),
            count_max=config.dispatch_count_max,
            behind_max=config.dispatch_behind_max,
            interval_ms=config.dispatch_interval_ms,
        )
        promised = PromisedPuts(
            *(log, flusher, runtime),
            timeout_ms=config.sync_flush_timeout_ms,
            before_results=dispatch.keep_up,
        )

        def undispatched_from() -> int | None:
            with putting:  # a put may be on disk before it is handed to the dispatch
                return dispatch.undispatched_from

        delays = DelayLevels(config.message_delay_levels)
        deleted = DeletedTopics(files.config / DELETED_FILE)
        begun = BegunQueues(files.config / BEGUN_FILE, deleted)
        truth = UnitTruth(log, queues, delays, begun)
        queues.is_kept = truth.is_one_bit_away
        return cls(
            process=OneProcess(config.store_path),
            config=config,
            files=files,
            log=log,
            queues=queues,
            index=index,
            dispatch=dispatch,
            truth=truth,
            flusher=flusher,
            promised=promised,
            reader=QueueReader(config, log, queues, truth),
            retention=Retention(
                *(config, runtime.clock, log, queues, index),
                undispatched_from=undispatched_from,
                followed=deleted.forget_before,
            ),
            delays=delays,
            checkpoint=StoreCheckpoint(files.checkpoint, CheckpointValues(), written=None),
            deleted=deleted,
            begun=begun,
        )

    def load(self) -> RecoveryReport:
        """Check the sizes, open everything, recover, and see whether there is room for puts.

        The caller holds the lock.
        """
        ours = self.files.sizes.exists()
        check_sizes(self.files, self.config)
        self.files.make()
        abnormal = self.files.ended_abnormally
        self.checkpoint = StoreCheckpoint.open(self.files.checkpoint)
        self.deleted.load()
        self.begun.load()
        self.log.load()
        crc_from = property_crc_from(self.files)
        if crc_from is not None:
            self.log.property_crc_from = crc_from
        self.queues.load()
        self.batch_topics = _batch_topics(self.files)
        self.owes_batch_units = abnormal and bool(self.batch_topics)
        report = Recovery(
            commit_log=self.log,
            queues=self.queues,
            index=self.index,
            redispatch=Redispatch(
                *(self.log, self.queues, self.dispatch, self.delays, self.begun),
                batch_topics=self.batch_topics - self._plain_alone(),
            ),
            checkpoint=self.checkpoint,
            deleted=self.deleted,
            begun=self.begun,
            truth=self.truth,
            ends=QueueEnds.load(self.files.config / ENDS_FILE),
            ours=ours,
            abnormal=abnormal,
            begin_repair=self.files.create_abort,
        ).run()
        self.retention.follow()  # before the table says where the queues begin
        self.flush(final=True)
        if self.config.property_crc_enabled != (crc_from is not None):
            # Before the first put: a record put without a CRC must not count as damaged.
            begin = self.log.max_offset if self.config.property_crc_enabled else None
            set_property_crc_from(self.files, begin)
            self.log.property_crc_from = INT64_MAX if begin is None else begin
        if not abnormal and self.files.ended_abnormally:
            self.files.remove_abort()  # repaired
        self.retention.look()
        return report

    def flush(self, *, final: bool = False) -> None:
        """Sync everything, then record it: log, queues, index, checkpoint, in this order.

        The times are read before the parts are synced, so that the checkpoint never claims too
        much. The table of the queues' ends is taken before too: when `drain` returns, everything
        it names is dispatched. It is written at a `final` flush, and whenever the log has begun a
        file, or the queues have followed one that it lost. No puts run during a `final` flush:
        everything is dispatched first, so the table is complete.
        """
        try:
            with self.flushing:
                self._flush_noted(final=final)
        finally:
            self.dispatch.notifier.notify()

    def _flush_noted(self, *, final: bool) -> None:
        try:
            with refused_by_system(str(self.files.root), "flush"):
                self._flush(final=final)
        except Exception as error:
            self.flush_failure = str(error)
            raise
        self.flush_failure = ""

    def _flush(self, *, final: bool) -> None:
        if final:
            self.flusher.flush()
            self.dispatch.drain(notify=False)
        files = self.log.queue.files
        # Not where the log begins: the queues may be losing files for that at this moment.
        moment = self.retention.followed_to, files[-1].start_offset if files else 0
        ends = None
        if final or moment != self.ends_moment:
            with self.dispatch.turn:  # not when only some queues have their part of a batch
                if not self.dispatch.failure:
                    ends = QueueEnds.of(self.queues, log_min=moment[0])
        time, end = self.log.last_store_timestamp, self.log.whole_end()
        self.flusher.flush()
        self.checkpoint.advance(log_timestamp=time)
        self.checkpoint.confirm(end)
        self.dispatch.drain(notify=False)
        time = self.dispatch.last_store_timestamp
        self.queues.flush()
        if not self.owes_batch_units:
            self.checkpoint.advance(queue_timestamp=time)
        if self.index is not None:
            self.index.flush()
            self.checkpoint.advance(index_timestamp=self.index.sealed_timestamp)
        self.checkpoint.flush()
        if ends is not None:
            ends.save(self.files.config / ENDS_FILE)
            self.ends_moment = moment

    def delete_topics(self, topics: Iterable[str]) -> list[QueueKey]:
        """Delete all queues of these topics, for good, and return them. No puts may run
        meanwhile. If it fails, the queues that are left have no messages, only their numbers."""
        self.flusher.flush()  # with sync flush, records not on disk would be dispatched later
        self.dispatch.drain(notify=False)
        known = {key.topic for key in self.queues.queues()}
        topics = known & set(topics)
        if not topics:
            return []
        self.deleted.mark(topics, self.log.max_offset)
        try:
            self.begun.forget(topics)
            return self.queues.delete_topics(topics)
        except BaseException:
            self.queues.pass_deleted(self.deleted)
            raise

    def begin_queues(
        self, ends: Mapping[QueueKey, int], log_offset: int, store_timestamp: int
    ) -> None:
        """Set the next offsets of queues, and the next offset and time of the log.

        The order makes a crash harmless: first the log, then the file that says where the queues
        begin, and only then the deletion of their old contents. Below the log's next offset there
        must be room for as many messages as the new offsets say, or a recovery would reject them.
        """
        begun = dict(self.begun.items())
        firsts = {
            key: first
            for key, first in ends.items()
            if key not in begun or self._begin_of(key) != (first, first)
        }
        for key, first in firsts.items():
            queue_directory(self.files.consume_queues, *key)
            held = self.queues.max_offset(*key) or 0
            if first < held:
                what = f"begin {key.topic}/{key.queue_id}"
                raise OffsetOutOfRangeError(what, offset=first, minimum=held, maximum=INT64_MAX)
        needed = max([log_offset, *(first * RECORD_BYTES_MIN for first in firsts.values())])
        if not firsts and needed <= self.log.max_offset:
            return
        self.files.create_abort()
        self.log.skip_to(needed)
        self.begun.mark(firsts, self.log.max_offset, store_timestamp)
        time_min = self.begun.time_min(self.log.max_offset)
        self.log.time_min = max(time_min, self.log.time_min)  # no put has come since the opening
        for key, first in firsts.items():
            self.queues.begin(key, first)
        self.flush(final=True)
        if not self.owes_batch_units:
            self.files.remove_abort()

    def _plain_alone(self) -> set[str]:
        """Topics that have plain queues and none of Java's batch queues, whatever the table of
        topics says about them now: their records are in no other queue."""
        topics = {key.topic for key in self.queues.queues()}
        return {name for name in topics if not (self.files.batch_queues / name).exists()}

    def _begin_of(self, key: QueueKey) -> tuple[int | None, int | None]:
        return self.queues.min_offset(*key), self.queues.max_offset(*key)

    def counts(self, record: bytes, log_offset: int) -> bool:
        """Whether a record belongs to an existing queue and is not older than the queue's begin."""
        return log_offset >= self.begun.counts_from(peek_topic(record), peek_queue_id(record))

    def close(self) -> None:
        """Release all files, even if one fails to close; write nothing. Idempotent."""
        with ExitStack() as stack:
            stack.callback(self.log.close)
            stack.callback(self.queues.close)
            if self.index is not None:
                stack.callback(self.index.close)

    def destroy(self) -> None:
        """Delete all data; the files of sizes and lock stay for the next user of the directory."""
        self.log.load()
        self.queues.load()
        self.queues.destroy()
        if self.index is not None:
            self.index.destroy()
        self.log.destroy()
        for file in (DELETED_FILE, BEGUN_FILE, ENDS_FILE, LOST_FILE):
            (self.files.config / file).unlink(missing_ok=True)
        self.files.checkpoint.unlink(missing_ok=True)
        self.files.remove_abort()

    def unit(self, topic: str, queue_id: int, offset: int) -> QueueUnit | None:
        """The unit of a message according to the log; None if the message is absent or damaged."""
        queue = self.queues.queue(topic, queue_id)
        if not holds(queue, offset):
            return None
        try:
            found = queue.unit(offset)
            if found.is_prefill:
                return None
            return self.reader.read(QueueKey(topic, queue_id), queue, offset, found)[0]
        except (OffsetOutOfRangeError, SegmentCorruptError):  # deleted just now, or damaged
            return None

    def store_time_at(self, log_offset: int, size: int) -> int | None:
        """The store time of a record; None if the record is gone or damaged."""
        try:
            record = self.log.message_bytes(log_offset, size)
        except SegmentCorruptError:
            return None
        return None if record is None else peek_store_timestamp(record)


def disk_used_percent(path: str | os.PathLike[str]) -> int:
    """How full the disk is, counted like `df`: without the space reserved for root."""
    usage = shutil.disk_usage(path)
    return -(-usage.used * 100 // max(1, usage.used + usage.free))


def _written_ms(path: str) -> int:
    """When a file was last written; 0 if an operator has deleted it."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 0


class Retention:
    """Deletes old log files, oldest first, never the last.

    * A file is deleted when it was last written more than `reserve_hours` ago. While the disk is
      fuller than `disk_clean_percent`, younger files go too, but only as many as needed.
    * Data that is not yet on disk or not yet dispatched stays, whatever the settings say. The
      queues are synced before a file goes.
    * A guard returns the log offset from which a tier still needs the log: files that end above it
      stay, however old. A guard that fails might need all of the log, so nothing is deleted. Guards
      are ignored only if the disk is over `disk_full_percent` and `delete_before_offload` is set.
    * While the disk is over `disk_full_percent`, `disk_is_full` is True and puts are refused. The
      first `look`, when the store opens, already sets it.
    * Queues, index and all other data about old records follow the log, even after a failure or a
      crash.
    """

    def __init__(
        self,
        config: LocalConfig,
        clock: Clock,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        *,
        used_percent: Callable[[str], int] | None = None,
        undispatched_from: Callable[[], int | None] = lambda: None,
        followed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._undispatched_from = undispatched_from
        self._followed = followed
        self._used_percent = used_percent or disk_used_percent
        self._guards: list[RetentionGuard] = []
        self.followed_to = 0  # the start of the log when queues and index last followed it
        self.disk_is_full = False

    def add_guard(self, guard: RetentionGuard) -> None:
        self._guards.append(guard)

    def look(self) -> None:
        """Check whether there is room for puts; delete nothing, since guards may come later."""
        used = self._used_percent(self._config.store_path)
        self.disk_is_full = used > self._config.disk_full_percent
        if self.disk_is_full:
            log.warning("%s: the disk is full to %d %%", self._config.store_path, used)

    def step(self) -> int:
        """One check; returns how many log files were deleted."""
        with refused_by_system(self._config.store_path, "expire"):
            used = self._used_percent(self._config.store_path)
            try:
                count, used = self._delete(used)
            finally:
                self.disk_is_full = used > self._config.disk_full_percent
            self.follow()
            return count

    def _delete(self, used: int) -> tuple[int, int]:
        """Returns how many files were deleted, and how full the disk is now."""
        config = self._config
        needed = self._unfinished_from()
        if not (used > config.disk_full_percent and config.delete_before_offload):
            needed = min(needed, self._needed_from())
        candidates = [
            file
            for file in self._log.queue.files[:-1][: config.delete_count_max]
            if file.end_offset <= needed
        ]
        expired_before = self._clock.now_ms() - config.reserve_hours * HOUR_MS
        count = 0
        for file in candidates:
            if _written_ms(file.path) >= expired_before:
                if used <= config.disk_clean_percent:
                    break
                log.warning("%s goes before its time: the disk is full to %d %%", file.path, used)
            self._queues.flush()  # without the file nothing else knows the numbers given out there
            count += len(self._log.queue.delete_before(file.end_offset, count_max=1))
            if used > config.disk_clean_percent:
                used = self._used_percent(config.store_path)
        return count, used

    def follow(self) -> None:
        """Make queues and index begin where the log begins."""
        minimum = self._log.min_offset
        if minimum is None:
            return
        if minimum == self.followed_to:
            self._queues.correct_grown(minimum)
            return
        self._queues.delete_before(minimum)
        if self._index is not None:
            self._index.delete_expired(minimum)
        self._followed(minimum)
        self.followed_to = minimum
        log.info("%s: begins at %d now", self._log.queue.directory, minimum)

    def _unfinished_from(self) -> int:
        """The log offset from which on records are not yet on disk or not yet dispatched."""
        finished = self._log.flushed_offset
        waiting = self._undispatched_from()
        return finished if waiting is None else min(finished, waiting)

    def _needed_from(self) -> int:
        """The smallest log offset that a guard still needs; 0 if unknown."""
        needed = self._log.max_offset
        for guard in self._guards:
            try:
                offset = guard()
            except Exception:
                log.exception("a retention guard failed: nothing is deleted this time")
                return 0
            if offset is not None:
                needed = min(needed, offset)
        return needed


class StoreReads:
    """Reads of a store whose parts are loaded; each sees every put that returned before it.

    With SYNC_FLUSH a message is visible once it is on disk. A put with WAIT=false does not wait for
    that, so a read right after it may not see its messages yet. In a forked process every call
    raises OtherProcessError.
    """

    def __init__(self, config: LocalConfig) -> None:
        self._config = config
        self._parts: LocalStore | None = None

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = COUNT_MAX,
        bytes_max: int = BYTES_MAX,
        message_filter: MessageFilter | None = None,
        group: str = "",
    ) -> GetResult:
        request = ReadRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        return self._up_to_date().reader.get(request)

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        request = ReadRequest(topic, queue_id, offset, count_max, bytes_max)
        return self._up_to_date().reader.run(request)

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        require_place(topic, queue_id)
        return self._up_to_date().queues.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        require_place(topic, queue_id)
        return self._up_to_date().queues.max_offset(topic, queue_id)

    def confirmed_offset(self) -> int:
        return self._loaded().log.flushed_offset

    def min_log_offset(self) -> int | None:
        return self._loaded().log.min_offset

    def max_log_offset(self) -> int:
        return self._loaded().log.max_offset

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        require_place(topic, queue_id, timestamp)
        parts = self._up_to_date()
        while (queue := parts.queues.queue(topic, queue_id)) is not None:
            found = queue.offset_by_time(
                timestamp,
                boundary,
                store_time=parts.store_time_at,
                min_log_offset=parts.log.min_offset or 0,
                unit=lambda offset: parts.unit(topic, queue_id, offset),
            )
            if parts.queues.queue(topic, queue_id) is queue:
                return found
        return None  # the queue may have been deleted meanwhile

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        require_place(topic, queue_id, offset)
        parts = self._up_to_date()
        unit = parts.unit(topic, queue_id, int(offset))
        return None if unit is None else parts.store_time_at(unit.log_offset, unit.message_bytes)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        parts = self._up_to_date()
        if topic is None:
            return parts.log.earliest_time()
        require_place(topic, queue_id)
        minimum = None
        while (offset := parts.queues.min_offset(topic, queue_id)) != minimum:
            minimum = offset  # look again if the begin has moved meanwhile
            time = None if offset is None else self.store_time(topic, queue_id, offset)
            if time is not None:
                return time
        return None

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        require_place(topic, count_max, begin, end)
        require_text("key", key)
        parts = self._up_to_date(indexed=True)
        lacks_puts = bool(parts.dispatch.failure)  # before the search: it may catch up meanwhile
        if parts.index is None:  # nothing was searched: the log may hold matches
            return QueryResult(complete=count_max <= 0 or not key)
        result = query_message(
            parts.index,
            parts.log,
            topic,
            key,
            count_max=count_max,
            count_limit=self._config.query_count_max,
            begin=begin,
            end=end,
            tags_code=parts.truth.tags_code,
            is_named=parts.truth.is_named,
            log_offset_min=parts.deleted.end_of(topic),
            counts=parts.counts,
        )
        if (lacks_puts or parts.dispatch.failure) and result.complete:
            return replace(result, complete=False, lags=True)
        return result

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        require_whole(log_offset, 0 if size is None else size)
        log_offset = int(log_offset)
        parts = self._loaded()
        record = parts.log.message_bytes(log_offset)
        if record is None or (size is not None and size != len(record)):
            return None
        if not parts.counts(record, log_offset):
            return None
        if not parts.truth.is_named(record, log_offset) and not (
            self._up_to_date().truth.is_named(record, log_offset)  # a dispatch was under way
        ):
            raise SegmentCorruptError(
                str(parts.files.commit_log),
                f"the record says it is message {peek_queue_offset(record)} of a queue that has "
                "another one there",
                position=log_offset,
            )
        return SelectedRecord(
            queue_offset=peek_queue_offset(record),
            log_offset=log_offset,
            tags_code=parts.truth.tags_code(record),
            record=record,
        )

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        return self._log_offset(topic, queue_id, offset) is not None

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        # The first message is the oldest: if it is in memory, so are the `count - 1` after it.
        require_whole(count)
        log_offset = self._log_offset(topic, queue_id, offset)
        return log_offset is not None and self._loaded().reader.is_in_memory(log_offset)

    def _log_offset(self, topic: str, queue_id: int, offset: int) -> int | None:
        require_place(topic, queue_id, offset)
        offset = int(offset)
        parts = self._up_to_date()
        queue = parts.queues.queue(topic, queue_id)
        if not holds(queue, offset):
            return None
        try:
            log_offset = queue.unit(offset).log_offset
        except OffsetOutOfRangeError:  # deleted just now
            return None
        is_there = log_offset >= (parts.log.min_offset or 0) and not parts.log.lost.has(log_offset)
        return log_offset if is_there else None

    def queues(self) -> Iterable[QueueKey]:
        return self._up_to_date().queues.queues()

    def _up_to_date(self, *, indexed: bool = False) -> LocalStore:
        """Dispatch every put that has returned, to the index only if `indexed`; returns the parts.

        If the dispatch fails, on a full disk for instance, reads go on with what is dispatched. The
        service tries again and logs the failure; puts are refused while too many messages wait
        (`dispatch_behind_max`).
        """
        parts = self._loaded()
        try:
            parts.dispatch.drain(indexed=indexed)
        except (TieredStoreError, OSError) as error:
            log.debug("reads go on, but nothing new is dispatched: %s", error)
        return parts

    def _loaded(self) -> LocalStore:
        parts = self._parts
        if parts is None:
            raise StoreClosedError("the store is not loaded")
        parts.process.require()
        return parts

    def _refuse_a_fork(self) -> None:
        """Call before taking any lock: a thread of the parent may have held it at the fork."""
        if self._parts is not None:
            self._parts.process.require()


class LocalMessageStore(StoreReads):
    """A message store in one directory, which RocketMQ's own store can open after a shutdown.

    * An acknowledged message is in the log. With SYNC_FLUSH it is on disk; otherwise it is synced
      after `flush_interval_ms` at the latest. Queues and index follow on their own. A read sees
      every put that returned before it, unless queues or index cannot be written: then they catch
      up later.
    * Only one process at a time may open the store; a lock that Java honours too enforces this. A
      forked process may not use the store, not even to read: reads dispatch new messages.
    * A clean `shutdown` removes the abort file. If anything could not be written, the file stays,
      and the next `load` recovers.
    """

    def __init__(self, config: LocalConfig, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._sync_flush = config.sync_flush
        self._encoder = RecordEncoder(config)
        self._lock: FileLock | None = None
        self._next_offsets: dict[tuple[str, int], int] = {}  # by topic and number
        self._put_guard = threading.Lock()
        self._life_guard = threading.RLock()
        self._services: list[Service] = []
        self._started = False
        self._dispatchers: list[Dispatcher] = []
        self._arrivals = Arrivals()
        self._guards: list[RetentionGuard] = []
        self.recovery: RecoveryReport | None = None

    @property
    def damages(self) -> tuple[Damage, ...]:
        """The damage found when the store opened, the units that reads repaired since, and what
        keeps the store from being written now: puts are refused, what was put cannot be read yet,
        or is not synced. The last two end by themselves, unless a sync has failed."""
        parts, report = self._parts, self.recovery
        found = [] if report is None else [*report.damages]
        if parts is not None:
            found += parts.truth.noted
            path, reason, failure = str(parts.files.root), "", parts.log.failure
            if failure is not None:
                path = parts.log.queue.directory
                reason = f"all puts are refused until the store is opened again: {failure}"
            elif parts.dispatch.failure:
                reason = f"what was put cannot be read yet: {parts.dispatch.failure}"
            elif parts.flush_failure:
                reason = f"the store cannot be synced: {parts.flush_failure}"
            if reason:
                found.append(Damage(path, 0, parts.log.flushed_offset, reason))
        return tuple(found)

    @property
    def lost_ends(self) -> Mapping[QueueKey, int]:
        """Where queues once ended that the opening found shorter."""
        return self.recovery.lost_ends if self.recovery is not None else {}

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the store, and recover it if needed. Raises InvalidConfigError if the sizes differ
        from those it was made with, BackendRefusedError while another process has it open."""
        self._refuse_a_fork()
        with self._life_guard, self._refusals("open"):
            if self._parts is not None:
                return
            parts = LocalStore.of(self._config, self._runtime, put_guard=self._put_guard)
            lock = _locked(parts.files, "open")
            try:
                self.recovery = parts.load()
            except BaseException:
                self._let_go(parts, lock)
                raise
            self._lock = lock
            self._encoder = RecordEncoder(self._config, batch_topics=parts.batch_topics)
            self._next_offsets = dict(parts.queues.next_offsets().items())
            for dispatcher in self._dispatchers:
                parts.dispatch.notifier.add_dispatcher(dispatcher)
            for guard in self._guards:
                parts.retention.add_guard(guard)
            self._parts = parts

    def begin_queues(
        self, ends: Mapping[QueueKey, int], *, log_offset: int, store_timestamp: int = 0
    ) -> None:
        """See `MessageStore`. If the log is far behind, blank files of four kilobytes each fill the
        gap; raises BackendRefusedError if that would take more than some thousand files.
        Raises OffsetOutOfRangeError for an offset that the queue has already given out."""
        self._refuse_a_fork()
        for key, first in ends.items():
            require_place(*key, first)
        require_place("", 0, log_offset, store_timestamp)
        with self._life_guard, self._refusals("begin queues"):
            parts = self._loaded()
            if self._started:
                raise InvalidArgumentError("queues begin before the store is started")
            firsts = {QueueKey(*key): first for key, first in ends.items()}
            parts.begin_queues(firsts, log_offset, store_timestamp)
            self._next_offsets = dict(parts.queues.next_offsets().items())

    def begun_time(self, topic: str) -> int:
        """See `MessageStore`; also 0 once the log begins after that time."""
        return self._up_to_date().begun.time_of(topic)

    def start(self) -> None:
        """Start to accept puts and to maintain the files."""
        self._refuse_a_fork()
        with self._life_guard, self._refusals("start"):
            parts = self._loaded()
            if self._started:
                return
            parts.files.create_abort()
            try:
                self._start_services(parts)
            except BaseException:
                self._stop_services(parts)
                raise
            self._started = True

    def _start_services(self, parts: LocalStore) -> None:
        parts.log.start()
        parts.flusher.start()
        parts.promised.start()
        config, service = self._config, self._runtime.service
        self._services = []
        chores: list[tuple[str, Callable[[], object], int]] = [
            ("flush-queues", parts.flush, config.queue_flush_interval_ms),
            ("expire", parts.retention.step, config.expiry_interval_ms),
        ]
        if config.dispatch_interval_ms:
            chores.append(("dispatch", parts.dispatch.step, config.dispatch_interval_ms))
        for name, step, interval_ms in chores:
            self._services.append(service(name, step, interval_ms=interval_ms))

    def _stop_services(self, parts: LocalStore) -> None:
        services, self._services = self._services, []
        for running in services:
            running.stop()
        parts.promised.stop()
        parts.flusher.stop()

    def shutdown(self) -> None:
        """End the store. A failed write raises nothing, because the next load recovers; everything
        is closed and the lock released all the same."""
        self._refuse_a_fork()
        with self._life_guard:
            parts = self._parts
            if parts is None:
                return
            with self._put_guard:  # later puts are refused: the store is closed
                self._parts = None
            was_started, self._started = self._started, False
            lock, self._lock = self._lock, None
            try:
                self._stop_services(parts)
                if was_started:
                    self._end(parts)
            finally:
                self._let_go(parts, lock)

    def _end(self, parts: LocalStore) -> None:
        try:
            parts.flush(final=True)
            parts.dispatch.notifier.finish()
            if parts.dispatch.behind_count == 0 and not parts.owes_batch_units:
                parts.files.remove_abort()
        except Exception:
            log.exception("%s: not ended cleanly, the next load recovers", self._config.store_path)

    def _let_go(self, parts: LocalStore, lock: FileLock | None) -> None:
        try:
            parts.close()
        except Exception:
            log.exception("%s: not everything could be closed", self._config.store_path)
        finally:
            if lock is not None:
                _release(lock)

    def destroy(self) -> None:
        """Delete the store's data; a loaded store is shut down first."""
        self._refuse_a_fork()
        with self._life_guard, self._refusals("destroy"):
            self.shutdown()
            parts = LocalStore.of(self._config, self._runtime, put_guard=self._put_guard)
            with _locked(parts.files, "destroy"):
                parts.destroy()

    def flush(self) -> int:
        """Sync everything now; returns the log offset below which everything is on disk."""
        parts = self._running()
        with self._refusals("flush"):
            parts.flush()
        return parts.log.flushed_offset

    # -- puts ---------------------------------------------------------------------------------

    def put_message(self, message: Message) -> PutResult:
        """Store one message; the result says where, or by its status why not.

        Raises StoreClosedError unless the store is started, and BackendRefusedError if the
        system refuses to write.
        """
        parts = self._running()
        put = self._append_one(parts, message)
        if isinstance(put, PutResult):
            return put
        status = PutStatus.PUT_OK
        if self._sync_flush:
            status = self._when_on_disk(parts, self._wanted_offset(put))
        parts.dispatch.keep_up()
        return put.result(status)

    def put_at_once(self, message: Message) -> PutResult | None:
        """Store one message in microseconds; None, with nothing done, if the put would have to wait
        or create something first: a sync, another put, a new file, a dispatch, a large body.

        The put still writes to the page cache, where the system may slow down a process that writes
        faster than its disk.

        Raises what `put_message` raises.
        """
        parts = self._running()
        if _must_wait(parts):
            return None
        body: object = getattr(message, "body", None)
        if not isinstance(body, bytes) or len(body) > AT_ONCE_BYTES_MAX:
            return None
        record = self._encoded(message)
        if isinstance(record, PutResult):
            return record
        if self._waits_for_disk(record) or not self._put_guard.acquire(blocking=False):
            return None
        try:
            if self._parts is not parts or not parts.log.has_room(record.size):
                return None
            self._put_in_log(parts, record)
        finally:
            self._put_guard.release()
        return record.result(PutStatus.PUT_OK)

    def put_messages_at_once(self, messages: Sequence[Message]) -> PutResults | None:
        """Like `put_at_once`, for a few messages: puts none of them if they are more than
        AT_ONCE_MESSAGES_MAX, or their bodies more than AT_ONCE_BYTES_MAX.

        Raises what `put_messages` raises.
        """
        parts = self._running()
        messages = unchanging(messages)
        if _must_wait(parts) or not _are_few(messages):
            return None
        batch, refused = self._encoder.encode_all(messages)
        if batch is None:
            return Appended(messages, refused, (), None, waits_for_disk=False).results()
        if self._sync_flush and batch.waits_for_disk:
            return None
        if not self._put_guard.acquire(blocking=False):
            return None
        try:
            if self._parts is not parts or not parts.log.has_room(sum(batch.sizes)):
                return None
            queue_offsets, run = self._put_all_in_log(parts, batch)
        finally:
            self._put_guard.release()
        return Appended(messages, refused, queue_offsets, run, waits_for_disk=False).results()

    def put_messages(self, messages: Sequence[Message]) -> PutResults:
        """Store messages in this order; each is stored or refused on its own.

        Far cheaper than single puts: all share one append to the log, one sync and one dispatch.

        Raises InvalidArgumentError if `messages` is not a sequence, StoreClosedError unless the
        store is started, and BackendRefusedError if the system refuses to write.
        """
        parts = self._running()
        appended = self._append(parts, messages)
        status = self._when_on_disk(parts, appended.wanted_offset)
        if appended.run is not None:
            parts.dispatch.keep_up()
        return appended.results(status)

    def put_message_future(self, message: Message) -> Future[PutResult]:
        """Put one message into the log now; the future is done when the message is stored or
        refused.

        Raises StoreClosedError unless the store is started; the future holds every other error of
        `put_message`.
        """
        parts = self._running()
        future: Future[PutResult] = Future()

        def in_log(record: Record) -> None:
            self._promise(parts, future, self._wanted_offset(record), record.result)

        def put() -> None:
            refused = self._append_one(parts, message, in_log)
            if isinstance(refused, PutResult):
                future.set_result(refused)

        return self._promised(parts, future, put, lambda: _refusal(*_PUTS_WAIT))

    def put_messages_future(self, messages: Sequence[Message]) -> Future[Sequence[PutResult]]:
        """Put messages into the log now; the future is done when all are stored or refused.

        Raises StoreClosedError unless the store is started; the future holds every other error of
        `put_messages`.
        """
        parts = self._running()
        future: Future[Sequence[PutResult]] = Future()

        def in_log(appended: Appended) -> None:
            self._promise(parts, future, appended.wanted_offset, appended.results)

        return self._promised(
            *(parts, future),
            lambda: self._append(parts, messages, in_log),
            lambda: _all_refused(messages, *_PUTS_WAIT).results(),
        )

    def _promised(
        self,
        parts: LocalStore,
        future: Future[T],
        put: Callable[[], object],
        refused: Callable[[], T],
    ) -> Future[T]:
        """Run `put`; one thread then waits for the disk on behalf of all futures.

        A sync that hangs delays all of them, as it delays the put that runs it.
        """
        future.set_running_or_notify_cancel()  # a record in the log cannot be taken back
        if parts.promised.is_full:
            future.set_result(refused())
            return future
        try:
            put()
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        if not future.done():
            parts.promised.wake()
        return future

    def _promise(
        self,
        parts: LocalStore,
        future: Future[T],
        wanted_offset: int,
        answer: Callable[[PutStatus], T],
    ) -> None:
        """Answer a put when it is on disk, or at once if nothing has to be waited for."""
        if wanted_offset or parts.dispatch.must_keep_up:
            parts.promised.add(wanted_offset, answer, future)
        else:
            future.set_result(answer(PutStatus.PUT_OK))

    def _wanted_offset(self, record: Record) -> int:
        """The put succeeds once everything below this log offset is on disk; 0 if at once."""
        return record.end_offset if self._waits_for_disk(record) else 0

    def _waits_for_disk(self, record: Record) -> bool:
        return self._sync_flush and record.waits_for_disk

    def _when_on_disk(self, parts: LocalStore, wanted_offset: int) -> PutStatus:
        timeout_ms = self._config.sync_flush_timeout_ms
        if not wanted_offset or parts.flusher.wait_until_flushed(wanted_offset, timeout_ms):
            return PutStatus.PUT_OK
        return PutStatus.FLUSH_DISK_TIMEOUT

    def _append_one(
        self,
        parts: LocalStore,
        message: Message,
        then: Callable[[Record], None] = lambda _: None,
    ) -> Record | PutResult:
        """`_append` for one message: returns its record in the log, or the refusal."""
        if reason := self._why_not_now(parts):
            return _refusal(PutStatus.SERVICE_NOT_AVAILABLE, reason)
        record = self._encoded(message)
        if isinstance(record, PutResult):
            return record
        with self._put_guard:
            if self._parts is not parts:
                raise StoreClosedError("the store is closed")
            self._put_in_log(parts, record)
            then(record)
        return record

    def _encoded(self, message: Message) -> Record | PutResult:
        try:
            return self._encoder.encode(message)
        except PutRefusedError as refusal:
            return _refusal(refusal.status, refusal.reason)

    def _put_in_log(self, parts: LocalStore, record: Record) -> None:
        """The caller holds `_put_guard` and has checked that `parts` are still the store's."""
        queue = record.topic, record.queue_id
        record.queue_offset = self._next_offsets.get(queue, 0)
        end = parts.log.max_offset
        try:
            parts.log.append_one(record)
            self._next_offsets[queue] = record.queue_offset + record.in_queue  # True adds one
            parts.dispatch.submit_one(record)
        except BaseException as error:
            self._end_put(parts, end, RecordBatch.joined([record]), [record.queue_offset])
            if not isinstance(error, Exception):
                raise
            with _refused_append(parts):
                raise

    def _append(
        self,
        parts: LocalStore,
        messages: Sequence[Message],
        then: Callable[[Appended], None] = lambda _: None,
    ) -> Appended:
        """Append messages to the log; `then` is called before a shutdown can see them there."""
        messages = unchanging(messages)
        if reason := self._why_not_now(parts):
            none = _all_refused(messages, PutStatus.SERVICE_NOT_AVAILABLE, reason)
            then(none)
            return none
        batch, refused = self._encoder.encode_all(messages)
        if batch is None:
            none = Appended(messages, refused, (), None, waits_for_disk=False)
            then(none)
            return none
        waits_for_disk = self._sync_flush and batch.waits_for_disk
        with self._put_guard:
            if self._parts is not parts:
                raise StoreClosedError("the store is closed")
            queue_offsets, run = self._put_all_in_log(parts, batch)
            appended = Appended(messages, refused, queue_offsets, run, waits_for_disk)
            then(appended)
        return appended

    def _put_all_in_log(
        self, parts: LocalStore, batch: RecordBatch
    ) -> tuple[list[int], AppendedRun]:
        """The caller holds `_put_guard` and has checked that `parts` are still the store's."""
        queue_offsets, taken = self._offsets(batch)
        end = parts.log.max_offset
        try:
            with _refused_append(parts):
                run = parts.log.append(batch, queue_offsets)
            self._next_offsets.update(taken)
            parts.dispatch.submit(batch, queue_offsets, run)
        except BaseException:
            self._end_put(parts, end, batch, queue_offsets)
            raise
        return queue_offsets, run

    def _end_put(
        self, parts: LocalStore, end: int, batch: RecordBatch, queue_offsets: list[int]
    ) -> None:
        """After an interrupt: if the log, which ended at `end`, has these records, they keep their
        places. Queues that are rebuilt would take them for the next messages."""
        if parts.log.failure is not None or parts.log.max_offset <= end:
            return
        run = parts.log.run_from(end)
        if len(run.sizes) != len(batch):
            return
        places = zip(batch.topics, batch.queue_ids, queue_offsets, batch.in_queue, strict=True)
        for topic, queue_id, queue_offset, in_queue in places:
            self._next_offsets[topic, queue_id] = queue_offset + in_queue
        parts.dispatch.submit_again(batch, queue_offsets, run)

    def _why_not_now(self, parts: LocalStore) -> str:
        """Why the store accepts no puts at present; empty if it does."""
        if not (parts.retention.disk_is_full or parts.dispatch.failure):
            return ""
        config = self._config
        if parts.retention.disk_is_full and not config.delete_before_offload:
            return (
                f"the disk is more than {config.disk_full_percent} percent full "
                "(disk_full_percent, delete_before_offload)"
            )
        dispatch = parts.dispatch
        if dispatch.is_stuck and not dispatch.try_drain():
            return f"{dispatch.behind_count} messages wait for their queues: {dispatch.failure}"
        return ""

    def _offsets(self, batch: RecordBatch) -> tuple[list[int], dict[tuple[str, int], int]]:
        """The queue offsets of these records, and the next offsets of their queues after them."""
        known = self._next_offsets
        if batch.is_of_one_queue:
            key = batch.topics[0], batch.queue_ids[0]
            first = known.get(key, 0)
            end = first + len(batch)
            return list(range(first, end)), {key: end}
        taken: dict[tuple[str, int], int] = {}
        queue_offsets = []
        keys = zip(batch.topics, batch.queue_ids, strict=True)
        for key, count in zip(keys, batch.in_queue, strict=True):  # True adds one
            offset = taken[key] if key in taken else known.get(key, 0)
            queue_offsets.append(offset)
            taken[key] = offset + count
        return queue_offsets, taken

    # -- others -------------------------------------------------------------------------------

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Call `dispatcher` with every message that can be read, in log order, in batches.

        May be called before `load`; the dispatcher stays for every life of the store.

        Raises InvalidArgumentError if `dispatcher` is not callable.
        """
        require_callable("dispatcher", dispatcher)
        self._dispatchers.append(dispatcher)
        if self._parts is not None:
            self._parts.dispatch.notifier.add_dispatcher(dispatcher)

    def on_arrival(self, callback: ArrivalCallback) -> Arrival:
        """Call `callback` with new messages until the returned `Arrival` is cancelled.

        May be called before `load`; the callback stays for every life of the store.

        Raises InvalidArgumentError if `callback` is not callable.
        """
        with self._life_guard:
            if self._arrivals not in self._dispatchers:
                self.add_dispatcher(self._arrivals)
        return self._arrivals.add(callback)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        """Ask `guard` before deleting: log bytes at or above the offset it returns are kept.

        May be called before `load`; the guard stays for every life of the store.

        Raises InvalidArgumentError if `guard` is not callable.
        """
        require_callable("guard", guard)
        self._guards.append(guard)
        if self._parts is not None:
            self._parts.retention.add_guard(guard)

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete topics: their queues at once, their records when the log's files go.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, and BackendRefusedError if the system refuses to
        write.
        """
        parts = self._loaded()
        topics = texts_of("topics", topics)
        try:
            with self._put_guard, self._refusals("delete topics"):
                gone = parts.delete_topics(topics)
                for key in gone:
                    self._next_offsets.pop(key, None)
                # A topic made again may be of another kind; Java's batch queues are not deleted.
                batches = parts.files.batch_queues
                deleted = self._encoder.batch_topics.intersection(topics)
                self._encoder.batch_topics -= {
                    topic for topic in deleted if not (batches / topic).exists()
                }
        finally:
            parts.dispatch.notifier.notify()
        return len({key.topic for key in gone})

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        """Delete every topic except the retained ones, the system's and light queues; returns how
        many topics were deleted.

        Raises what `delete_topics` raises.
        """
        retained = texts_of("retained", retained)
        unused = {key.topic for key in self.queues()}.difference(retained)
        return self.delete_topics(
            topic
            for topic in unused
            if not is_system_topic(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX)
        )

    def _refusals(self, operation: str) -> AbstractContextManager[None]:
        return refused_by_system(self._config.store_path, operation)

    def _running(self) -> LocalStore:
        parts = self._loaded()
        if not self._started:
            raise StoreClosedError("the store is not started")
        return parts


def _must_wait(parts: LocalStore) -> bool:
    """Whether a put would be refused, or would first have to dispatch earlier puts."""
    return bool(
        parts.retention.disk_is_full or parts.dispatch.failure or parts.dispatch.must_keep_up
    )


def _are_few(messages: tuple[Message, ...] | MessageColumns) -> bool:
    """Whether a put of these messages takes no more than about a tenth of a millisecond."""
    if len(messages) > AT_ONCE_MESSAGES_MAX:
        return False
    bodies: Sequence[object]
    if isinstance(messages, MessageColumns):
        bodies = messages.bodies
    else:
        bodies = [getattr(message, "body", None) for message in messages]
    sizes = [len(body) for body in bodies if isinstance(body, bytes)]
    return len(sizes) == len(bodies) and sum(sizes) <= AT_ONCE_BYTES_MAX


def _refused_append(parts: LocalStore) -> refused_by_system:
    return refused_by_system(parts.log.queue.directory, "append")


def _refusal(status: PutStatus, reason: str) -> PutResult:
    return PutResult(status=status, reason=reason)


def _all_refused(messages: Sequence[Message], status: PutStatus, reason: str) -> Appended:
    messages = unchanging(messages)
    refused = dict.fromkeys(range(len(messages)), _refusal(status, reason))
    return Appended(messages, refused, (), None, waits_for_disk=False)


def _locked(files: StoreFiles, operation: str) -> FileLock:
    lock = files.acquire_lock()
    if lock is None:
        raise BackendRefusedError(str(files.root), operation, "another process has this store open")
    return lock


def _release(lock: FileLock) -> None:
    try:
        lock.release()
    except OSError:  # the lock is free: even a failed close closes the descriptor
        log.exception("the lock file was not closed cleanly")


def _batch_topics(files: StoreFiles) -> frozenset[str]:
    """The topics whose queues are Java's batch queues, or will be once they have a message. Read
    once per load, not for each put."""
    try:
        topics = set(os.listdir(files.batch_queues))
    except (FileNotFoundError, NotADirectoryError):
        topics = set()
    try:
        table = TOPICS.decode((files.config / TOPICS.file_name).read_bytes())
    except (OSError, ValueError):  # the table's owner reports the damage and uses the older table
        return frozenset(topics)
    rows = table.rows.items()
    topics |= {name for name, row in rows if row.attributes.get("queue.type") == "BatchCQ"}
    return frozenset(topics)
