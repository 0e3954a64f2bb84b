"""The parts of one local store, and what is done to all of them.

What lives here: building, loading, flushing and closing, in an order that a crash may stop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

from tieredstore.codec.queue_unit import QueueUnit
from tieredstore.codec.record_fields import peek_store_timestamp
from tieredstore.driver.one_process import OneProcess
from tieredstore.driver.runtime import Runtime
from tieredstore.local.care.checkpoint import CheckpointValues, StoreCheckpoint
from tieredstore.local.care.queue_ends import ENDS_FILE, QueueEnds
from tieredstore.local.care.recovery import Recovery, RecoveryReport
from tieredstore.local.care.retention import Retention
from tieredstore.local.care.store_files import StoreFiles
from tieredstore.local.care.store_sizes import check_sizes
from tieredstore.local.config import LocalConfig
from tieredstore.local.delay_levels import DelayLevels
from tieredstore.local.dispatching.dispatch import Dispatch
from tieredstore.local.dispatching.redispatch import Redispatch
from tieredstore.local.dispatching.unit_truth import UnitTruth
from tieredstore.local.files.mapping import MappedFiles
from tieredstore.local.keys.index_service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.log.flusher import Flusher
from tieredstore.local.queues.consume_queues import ConsumeQueues
from tieredstore.local.queues.deleted_topics import DELETED_FILE, DeletedTopics
from tieredstore.local.queues.queue_reader import QueueReader
from tieredstore.model.errors import BackendRefusedError, OffsetOutOfRangeError, SegmentCorruptError
from tieredstore.model.values import QueueKey


@dataclass(slots=True, kw_only=True)
class StoreParts:
    """Log, queues, index and those who serve them. `of` touches no file."""

    process: OneProcess  # the only one that may use them
    config: LocalConfig
    files: StoreFiles
    log: CommitLog
    queues: ConsumeQueues
    index: IndexService | None
    dispatch: Dispatch
    truth: UnitTruth
    flusher: Flusher
    reader: QueueReader
    retention: Retention
    delays: DelayLevels
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
    ends_moment: tuple[int, int] | None = None
    flushing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, config: LocalConfig, runtime: Runtime) -> StoreParts:
        files = StoreFiles(config.root)
        open_files = MappedFiles()
        log = CommitLog(config, runtime, open_files)
        queues = ConsumeQueues(
            files.consume_queues, file_bytes=config.queue_file_bytes, files=open_files
        )
        index = IndexService(config, clock=runtime.clock) if config.index_enabled else None
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
        )
        delays = DelayLevels(config.message_delay_levels)
        truth = UnitTruth(log, queues, delays)
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
            reader=QueueReader(config, log, queues, truth),
            retention=Retention(
                *(config, runtime.clock, log, queues, index),
                undispatched_from=lambda: dispatch.undispatched_from,
            ),
            delays=delays,
            checkpoint=StoreCheckpoint(files.checkpoint, CheckpointValues(), written=None),
            deleted=DeletedTopics(files.config / DELETED_FILE),
        )

    def load(self) -> RecoveryReport:
        """Check the sizes, open everything, make it agree; see whether there is room for puts.

        The lock is held.
        """
        ours = self.files.sizes.exists()
        check_sizes(self.files, self.config)
        self.files.make()
        abnormal = self.files.ended_abnormally
        self.checkpoint = StoreCheckpoint.open(self.files.checkpoint)
        self.deleted.load()
        self.log.load()
        self.queues.load()
        report = Recovery(
            commit_log=self.log,
            queues=self.queues,
            index=self.index,
            redispatch=Redispatch(self.log, self.queues, self.dispatch, self.delays, self.deleted),
            checkpoint=self.checkpoint,
            deleted=self.deleted,
            truth=self.truth,
            ends=QueueEnds.load(self.files.config / ENDS_FILE),
            ours=ours,
            abnormal=abnormal,
            begin_repair=self.files.create_abort,
        ).run()
        self.flush(final=True)
        if not abnormal and self.files.ended_abnormally:
            self.files.remove_abort()  # repaired
        self.retention.look()
        return report

    def flush(self, *, final: bool = False) -> None:
        """Put everything on disk, then say so: log, queues, index, checkpoint, in this order.

        The times are taken before the parts are synced, so that none is claimed too early. So is
        the table of the queues' ends: what it names is dispatched whole when `drain` returns. It
        is written when something is `final`, and when the log has begun or lost a file. At a
        `final` flush nobody puts: then everything is dispatched first, and the table is complete.
        """
        try:
            with self.flushing:
                self._flush(final=final)
        except OSError as error:
            raise BackendRefusedError(str(self.files.root), "flush", str(error)) from error
        finally:
            self.dispatch.telling.tell()

    def _flush(self, *, final: bool) -> None:
        if final:
            self.flusher.flush()
            self.dispatch.drain(tell=False)
        files = self.log.queue.files
        moment = (files[0].start_offset, files[-1].start_offset) if files else (0, 0)
        ends = None
        if final or moment != self.ends_moment:
            ends = QueueEnds.of(self.queues, log_min=moment[0])
        time = self.log.last_store_timestamp
        self.flusher.flush()
        self.checkpoint.advance(log_timestamp=time)
        self.checkpoint.confirm(confirmed_offset=self.log.flushed_offset)
        self.dispatch.drain(tell=False)
        time = self.dispatch.last_store_timestamp
        self.queues.flush()
        self.checkpoint.advance(queue_timestamp=time)
        if self.index is not None:
            self.index.flush()
            self.checkpoint.advance(index_timestamp=self.index.sealed_timestamp)
        self.checkpoint.flush()
        if ends is not None:
            ends.save(self.files.config / ENDS_FILE)
            self.ends_moment = moment

    def delete_topics(self, topics: Iterable[str]) -> list[QueueKey]:
        """Delete all queues of these topics, for good; which those were. Nobody puts meanwhile."""
        self.flusher.flush()  # with sync flush what is not on disk would be dispatched later on
        self.dispatch.drain(tell=False)
        known = {key.topic for key in self.queues.queues()}
        topics = known & set(topics)
        if not topics:
            return []
        self.deleted.mark(topics, self.log.max_offset)
        return self.queues.delete_topics(topics)

    def close(self) -> None:
        """Release all files, also after one that fails; nothing is written. Idempotent."""
        with ExitStack() as stack:
            stack.callback(self.log.close)
            stack.callback(self.queues.close)
            if self.index is not None:
                stack.callback(self.index.close)

    def destroy(self) -> None:
        """Delete all data; sizes and lock stay, for whoever comes next."""
        self.log.load()
        self.queues.load()
        self.queues.destroy()
        if self.index is not None:
            self.index.destroy()
        self.log.destroy()
        for file in (DELETED_FILE, ENDS_FILE):
            (self.files.config / file).unlink(missing_ok=True)
        self.files.checkpoint.unlink(missing_ok=True)
        self.files.remove_abort()

    def unit(self, topic: str, queue_id: int, offset: int) -> QueueUnit | None:
        """The unit of a message as the log says it is; None where there is none, or only damage."""
        queue = self.queues.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        try:
            found = queue.unit(offset)
            if found.is_prefill:
                return None
            return self.reader.read(QueueKey(topic, queue_id), queue, offset, found)[0]
        except (OffsetOutOfRangeError, SegmentCorruptError):  # gone just now, or damaged
            return None

    def store_time_at(self, log_offset: int, size: int) -> int | None:
        """The store time of a record; None where it is gone or damaged."""
        try:
            record = self.log.message_bytes(log_offset, size)
        except SegmentCorruptError:
            return None
        return None if record is None else peek_store_timestamp(record)
