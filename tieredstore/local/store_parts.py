"""The parts of one local store, and what is done to all of them.

What lives here: building, loading, flushing and closing, in an order that a crash may stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.codec.properties import decode_properties
from tieredstore.codec.record_fields import (
    peek_property_bytes,
    peek_store_timestamp,
    peek_topic,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.local.checkpoint import StoreCheckpoint
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.delay_levels import DelayLevels
from tieredstore.local.dispatch import Dispatch
from tieredstore.local.flusher import Flusher
from tieredstore.local.index_service import IndexService
from tieredstore.local.mapping import MappedFiles
from tieredstore.local.queue_reader import QueueReader
from tieredstore.local.recovery import RecoveryReport, recover
from tieredstore.local.retention import Retention
from tieredstore.local.store_files import StoreFiles
from tieredstore.local.store_sizes import check_sizes
from tieredstore.model.errors import SegmentCorruptError


@dataclass(slots=True, kw_only=True)
class StoreParts:
    """Log, queues, index and those who serve them. `of` touches no file."""

    config: LocalConfig
    files: StoreFiles
    log: CommitLog
    queues: ConsumeQueues
    index: IndexService | None
    dispatch: Dispatch
    flusher: Flusher
    reader: QueueReader
    retention: Retention
    delays: DelayLevels
    checkpoint: StoreCheckpoint

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
        )
        return cls(
            config=config,
            files=files,
            log=log,
            queues=queues,
            index=index,
            dispatch=dispatch,
            flusher=flusher,
            reader=QueueReader(config, log, queues),
            retention=Retention(config, runtime.clock, log, queues, index),
            delays=DelayLevels(config.message_delay_levels),
            checkpoint=StoreCheckpoint.open(files.checkpoint),
        )

    def load(self) -> RecoveryReport:
        """Check the sizes, open everything, and make it agree. The lock is held."""
        check_sizes(self.files, self.config)
        self.files.make()
        abnormal = self.files.ended_abnormally
        self.checkpoint = StoreCheckpoint.open(self.files.checkpoint)
        self.log.load()
        self.queues.load()
        report = recover(
            self.log,
            self.queues,
            self.index,
            self.dispatch,
            self.checkpoint,
            self.delays,
            abnormal=abnormal,
        )
        if report.redispatched_count or abnormal:
            self.flush()
        return report

    def flush(self) -> None:
        """Put everything on disk, then say so: log, queues, index, checkpoint, in this order.

        The times are taken before the parts are synced, so that none is claimed too early.
        """
        time = self.log.last_store_timestamp
        self.flusher.flush()
        self.checkpoint.advance(log_timestamp=time)
        self.checkpoint.confirm(confirmed_offset=self.log.flushed_offset)
        self.dispatch.drain()
        time = self.dispatch.last_store_timestamp
        self.queues.flush()
        self.checkpoint.advance(queue_timestamp=time)
        if self.index is not None:
            self.index.flush()
            self.checkpoint.advance(index_timestamp=self.index.sealed_timestamp)
        self.checkpoint.flush()

    def close(self) -> None:
        """Release all files. Idempotent."""
        if self.index is not None:
            self.index.close()
        self.queues.close()
        self.log.close()

    def destroy(self) -> None:
        """Delete all data; sizes and lock stay, for whoever comes next."""
        self.log.load()
        self.queues.load()
        self.queues.destroy()
        if self.index is not None:
            self.index.load(abnormal=False)
            self.index.destroy()
        self.log.destroy()
        self.files.checkpoint.unlink(missing_ok=True)
        self.files.remove_abort()

    def store_time_at(self, log_offset: int, size: int) -> int | None:
        """The store time of a record; None where it is gone or damaged."""
        try:
            record = self.log.message_bytes(log_offset, size)
        except SegmentCorruptError:
            return None
        return None if record is None else peek_store_timestamp(record)

    def tags_code(self, record: bytes) -> int:
        """What a queue stores beside this record."""
        properties = decode_properties(peek_property_bytes(record))
        time = peek_store_timestamp(record)
        return self.delays.tags_code(peek_topic(record), properties, time)
