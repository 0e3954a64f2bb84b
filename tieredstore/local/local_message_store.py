"""`LocalMessageStore`: RocketMQ's local store, embedded.

What lives here: the life of a store and its puts. Reads are in `store_reads`, opening in
`care/recovery`, deleting in `care/retention`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from tieredstore.driver.file_lock import FileLock
from tieredstore.driver.message_store import (
    Dispatcher,
    RetentionGuard,
)
from tieredstore.driver.runtime import Runtime, Service
from tieredstore.local.care.recovery import RecoveryReport
from tieredstore.local.care.store_files import StoreFiles
from tieredstore.local.config import LocalConfig
from tieredstore.local.log.put_results import PutResults
from tieredstore.local.records.batch_encoder import BatchEncoder
from tieredstore.local.records.record_batch import RecordBatch
from tieredstore.local.records.record_scan import Damage
from tieredstore.local.store_parts import StoreParts
from tieredstore.local.store_reads import StoreReads
from tieredstore.model.errors import (
    BackendRefusedError,
    StoreClosedError,
    refused_by_system,
)
from tieredstore.model.messages import (
    Message,
    PutResult,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import PutStatus, require_text

log = log_of(__name__)

SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)


class LocalMessageStore(StoreReads):
    """A message store in one directory, which RocketMQ's own store can open when it is shut down.

    * What `put_message` acknowledged is in the log: with SYNC_FLUSH on disk, else at the latest
      after `flush_interval_ms`. Queues and index follow by themselves; a read sees every put that
      returned before it, unless queues or index cannot be written: then they follow when they can.
    * One process at a time, kept by the lock that Java honours too. A process that is forked off
      may do nothing with it, not even read: reads too dispatch what was put.
    * A clean `shutdown` removes the abort file. If anything could not be written it stays, and the
      next `load` recovers.
    """

    def __init__(self, config: LocalConfig, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._encoder = BatchEncoder(config)
        self._lock: FileLock | None = None
        self._next_offsets: dict[tuple[str, int], int] = {}  # by topic and number
        self._put_guard = threading.Lock()
        self._life_guard = threading.RLock()
        self._services: list[Service] = []
        self._started = False
        self._dispatchers: list[Dispatcher] = []
        self._guards: list[RetentionGuard] = []
        self.recovery: RecoveryReport | None = None

    @property
    def damages(self) -> tuple[Damage, ...]:
        """What was damaged when the store opened, and what reads have made again since then."""
        parts, report = self._parts, self.recovery
        noted = () if parts is None else tuple(parts.truth.noted)
        return (*(report.damages if report is not None else ()), *noted)

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Open and recover what is there. Raises InvalidConfigError for other sizes than the
        store was made with, BackendRefusedError while another process has it open."""
        self._refuse_a_fork()
        with self._life_guard, self._refusals("open"):
            if self._parts is not None:
                return
            parts = StoreParts.of(self._config, self._runtime)
            lock = parts.files.acquire_lock()
            if lock is None:
                raise BackendRefusedError(
                    self._config.store_path, "open", "another process has this store open"
                )
            try:
                self.recovery = parts.load()
                topics = _batch_topics(parts.files)
            except BaseException:
                self._let_go(parts, lock)
                raise
            self._lock = lock
            self._encoder = BatchEncoder(self._config, batch_topics=topics)
            self._next_offsets = dict(parts.queues.next_offsets().items())
            for dispatcher in self._dispatchers:
                parts.dispatch.telling.add_dispatcher(dispatcher)
            for guard in self._guards:
                parts.retention.add_guard(guard)
            self._parts = parts

    def start(self) -> None:
        """Take puts, and look after the files from now on."""
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

    def _start_services(self, parts: StoreParts) -> None:
        parts.log.start()
        parts.flusher.start()
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

    def _stop_services(self, parts: StoreParts) -> None:
        services, self._services = self._services, []
        for each in services:
            each.stop()
        parts.flusher.stop()

    def shutdown(self) -> None:
        """End the store. What cannot be written now, the next load makes good: nothing is raised
        for it, everything closes, and the lock is free."""
        self._refuse_a_fork()
        with self._life_guard:
            parts = self._parts
            if parts is None:
                return
            with self._put_guard:  # who puts now is told that the store is closed
                self._parts = None
            was_started, self._started = self._started, False
            lock, self._lock = self._lock, None
            try:
                self._stop_services(parts)
                if was_started:
                    self._end(parts)
            finally:
                self._let_go(parts, lock)

    def _end(self, parts: StoreParts) -> None:
        try:
            parts.flush(final=True)
            parts.dispatch.telling.finish()
            if parts.dispatch.behind_count == 0:
                parts.files.remove_abort()
        except Exception:
            log.exception("%s: not ended cleanly, the next load recovers", self._config.store_path)

    def _let_go(self, parts: StoreParts, lock: FileLock | None) -> None:
        try:
            parts.close()
        except Exception:
            log.exception("%s: not everything could be closed", self._config.store_path)
        finally:
            if lock is not None:
                _release(lock)

    def destroy(self) -> None:
        """Delete the store's data; it must not be loaded."""
        self._refuse_a_fork()
        with self._life_guard, self._refusals("destroy"):
            self.shutdown()
            parts = StoreParts.of(self._config, self._runtime)
            lock = parts.files.acquire_lock()
            if lock is None:
                raise BackendRefusedError(
                    self._config.store_path, "destroy", "another process has this store open"
                )
            with lock:
                parts.destroy()

    def flush(self) -> int:
        """Put everything on disk now; the log offset below which all is."""
        parts = self._running()
        with self._refusals("flush"):
            parts.flush()
        return parts.log.flushed_offset

    # -- puts ---------------------------------------------------------------------------------

    def put_message(self, message: Message) -> PutResult:
        return self.put_messages((message,))[0]

    def put_messages(self, messages: Sequence[Message]) -> PutResults:
        """Store messages in this order; each is stored or refused by itself.

        Cheaper by far than one at a time: they share one place in the log, one sync, one dispatch.
        """
        parts = self._running()
        messages = tuple(messages)  # the list is the caller's, who may go on with it
        if parts.retention.disk_is_full or parts.dispatch.failure:
            reason = self._why_not_now(parts)
            if reason:
                return self._all_refused(messages, PutStatus.SERVICE_NOT_AVAILABLE, reason)
        batch, refused = self._encoder.encode(messages)
        if batch is None:
            return PutResults(messages, refused, (), None, PutStatus.PUT_OK)
        with self._put_guard:
            if self._parts is not parts:
                raise StoreClosedError("the store is closed")
            queue_offsets, taken = self._offsets(batch)
            try:
                appended = parts.log.append(batch, queue_offsets)
            except OSError as error:
                path = str(parts.files.commit_log)
                raise BackendRefusedError(path, "append", str(error)) from error
            self._next_offsets.update(taken)
            parts.dispatch.submit(batch, queue_offsets, appended)
        status = PutStatus.PUT_OK
        if self._config.sync_flush and batch.waits_for_disk:
            timeout_ms = self._config.sync_flush_timeout_ms
            if not parts.flusher.wait_until_flushed(appended.end_offset, timeout_ms):
                status = PutStatus.FLUSH_DISK_TIMEOUT
        if parts.dispatch.is_due or not self._config.dispatch_interval_ms:
            parts.dispatch.try_drain()
            parts.dispatch.telling.keep_pace()
        return PutResults(messages, refused, queue_offsets, appended, status)

    def _why_not_now(self, parts: StoreParts) -> str:
        """What keeps the store from taking any put; empty if nothing does."""
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
        """The queue offsets of these records, and what comes next if they are stored."""
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

    def _all_refused(
        self, messages: tuple[Message, ...], status: PutStatus, reason: str
    ) -> PutResults:
        refusal = PutResult(status=status, reason=reason)
        return PutResults(messages, dict.fromkeys(range(len(messages)), refusal), (), None, status)

    # -- others -------------------------------------------------------------------------------

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.append(dispatcher)
        if self._parts is not None:
            self._parts.dispatch.telling.add_dispatcher(dispatcher)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        self._guards.append(guard)
        if self._parts is not None:
            self._parts.retention.add_guard(guard)

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Their queues go at once; their records go with the log's files."""
        parts = self._loaded()
        topics = list(topics)
        require_text("topic", *topics)
        try:
            with self._put_guard, self._refusals("delete topics"):
                gone = parts.delete_topics(topics)
                for key in gone:
                    self._next_offsets.pop(key, None)
        finally:
            parts.dispatch.telling.tell()
        return len({key.topic for key in gone})

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        retained = list(retained)
        require_text("topic", *retained)
        kept = set(retained) | SYSTEM_TOPICS
        topics = {key.topic for key in self.queues()}
        unused = {topic for topic in topics - kept if not topic.startswith(("rmq_sys_", "%LMQ%"))}
        return self.delete_topics(unused)

    def _refusals(self, operation: str) -> AbstractContextManager[None]:
        return refused_by_system(self._config.store_path, operation)

    def _running(self) -> StoreParts:
        parts = self._loaded()
        if not self._started:
            raise StoreClosedError("the store is not started")
        return parts


def _release(lock: FileLock) -> None:
    try:
        lock.release()
    except OSError:  # the lock is free: a descriptor is closed even where that fails
        log.exception("the lock file was not closed cleanly")


def _batch_topics(files: StoreFiles) -> frozenset[str]:
    """The topics whose queues are Java's batch queues: looked at once, not for each put."""
    try:
        return frozenset(os.listdir(files.batch_queues))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
