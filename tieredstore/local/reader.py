"""`LocalReader`: reads a local store without changing it, even while a broker has it open."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

from tieredstore.codec.columns import RecordColumns
from tieredstore.codec.java import encode_utf8
from tieredstore.codec.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from tieredstore.driver.runtime import Clock, Runtime
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.files import StoreFiles, check_sizes, stored_sizes
from tieredstore.local.index_file import IndexFile, index_names
from tieredstore.local.index_service import IndexService
from tieredstore.local.record_scan import Damage, RecordState, check_record
from tieredstore.local.recovery import (
    ENDS_FILE,
    QueueEnds,
    RecoveryReport,
    StoreCheckpoint,
    log_claims,
    missing_files,
    settled_end,
    vouched_end,
)
from tieredstore.local.store import LocalStore, StoreReads
from tieredstore.model.errors import (
    SegmentCorruptError,
    SegmentError,
    SegmentNotFoundError,
    TieredStoreError,
    refused_by_system,
)
from tieredstore.model.messages import QueryResult
from tieredstore.model.values import INT32_MAX, INT64_MAX

_OPEN_TRIES: Final = 5


class StoreNotFoundError(SegmentNotFoundError):
    """The directory holds no local store, or does not exist."""

    def __init__(self, path: str, reason: str) -> None:
        TieredStoreError.__init__(self, reason)
        self.path = path


class LocalReader(StoreReads):
    """A store as its files show it: the messages that the queues name and the log holds soundly.

    * Nothing is locked, created, cut, synced or written. A writer, even Java's, may be at work.
    * Queues are seen as they were when the store was opened; open it again to see more. What a
      writer deletes meanwhile is absent, also if it makes the topic again.
    * After a crash a queue may name a message that is incomplete in the log. Reading it raises
      SegmentCorruptError, and its log offset is at or after `log_facts().log_end`.
    * A writer that opens the store after a crash may cut index files back: do not query meanwhile.
    """

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        self._runtime = Runtime.inline()
        self._facts: RecoveryReport | None = None
        self._looking = threading.Lock()  # at what was deleted: no read goes on with half of it

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        commit_log_file_bytes: int | None = None,
        queue_file_bytes: int | None = None,
        index_slot_count: int | None = None,
        index_item_count: int | None = None,
    ) -> Self:
        """Open the store in a directory. Sizes not given are taken from the store's sizes file,
        otherwise RocketMQ's defaults. Raises InvalidConfigError if they do not fit the files,
        StoreNotFoundError if there is no store."""
        files = StoreFiles(Path(directory))
        given = {
            "commit_log_file_bytes": commit_log_file_bytes,
            "queue_file_bytes": queue_file_bytes,
            "index_slot_count": index_slot_count,
            "index_item_count": index_item_count,
        }
        with refused_by_system(str(directory), "open"):
            _refuse_other_directories(files)
            sizes: dict[str, Any] = dict(stored_sizes(files))
        sizes.update((name, value) for name, value in given.items() if value is not None)
        # Only the caller limits a query: this is not a broker that needs protection.
        config = LocalConfig(store_path=str(directory), query_count_max=INT32_MAX)
        reader = cls(replace(config, **sizes))
        reader.load()
        return reader

    @property
    def config(self) -> LocalConfig:
        return self._config

    @property
    def files(self) -> StoreFiles:
        return StoreFiles(self._config.root)

    def load(self) -> None:
        """Find the files, once. Tries again if a writer creates or deletes some meanwhile."""
        self._refuse_a_fork()
        if self._parts is not None:
            return
        with refused_by_system(self._config.store_path, "open"):
            for attempt in range(1, _OPEN_TRIES + 1):
                try:
                    self._parts = self._opened()
                    return
                except (FileNotFoundError, SegmentError):
                    if attempt == _OPEN_TRIES:
                        raise

    def _opened(self) -> LocalStore:
        check_sizes(self.files, self._config, write=False)
        # The parts that only write are built, but never used.
        parts = LocalStore.of(
            self._config,
            self._runtime,
            open_index=lambda log: IndexReader(self._config, log, clock=self._runtime.clock),
            read_only=True,
        )
        parts.queues.load()
        parts.log.load()  # after the queues, so that it has the files of all that they name
        parts.queues.correct_min_offsets(parts.log.min_offset or 0)
        _index_of(parts).open()
        parts.deleted.load()  # the log still has their records, which no longer count
        parts.queues.pass_deleted(parts.deleted)
        parts.begun.load()
        return parts

    def _loaded(self) -> LocalStore:
        parts = super()._loaded()
        with refused_by_system(self._config.store_path, "read"), self._looking:
            if parts.deleted.load_again():
                parts.queues.pass_deleted(parts.deleted)
        return parts

    def close(self) -> None:
        """Release all files. Idempotent."""
        self._refuse_a_fork()
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        if self._parts is None or not self._parts.process.is_left_by(kind):
            self.close()

    def max_log_offset(self) -> int:
        """Where the sound records end."""
        return self.log_facts().log_end

    def confirmed_offset(self) -> int:
        """After a clean end the end of the log, otherwise what the checkpoint vouches for."""
        facts = self.log_facts()
        if not facts.abnormal:
            return facts.log_end
        return min(facts.log_end, self.checkpoint.values.confirmed_offset)

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        """As in any store; the answer is incomplete if an index file is damaged."""
        found = super().query_message(topic, key, count_max=count_max, begin=begin, end=end)
        return replace(found, complete=found.complete and not self.index.damages)

    @property
    def checkpoint(self) -> StoreCheckpoint:
        return StoreCheckpoint.open(self.files.checkpoint)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._loaded().queues.queue(topic, queue_id)

    @property
    def index(self) -> IndexReader:
        return _index_of(self._loaded())

    @property
    def log(self) -> CommitLog:
        return self._loaded().log

    def log_facts(self) -> RecoveryReport:
        """Check the end of the log as a recovery would, once; this may read a whole file.

        Nothing before `checked_from` is checked.
        """
        while self._facts is None:
            try:
                self._facts = self._read_facts()
            except SegmentNotFoundError:
                if not self.log.queue.forget_gone():
                    raise
                self.log.look_again()
        return self._facts

    def _read_facts(self) -> RecoveryReport:
        start = self._check_start()
        abnormal = self.files.ended_abnormally
        table = QueueEnds.load(self.files.config / ENDS_FILE)
        checkpoint, ours = self.checkpoint, self.files.sizes.exists()
        vouched = vouched_end(checkpoint, table, abnormal=abnormal, ours=ours)
        scan = self.log.scan_from(start, killed_from=vouched)
        for _ in scan:
            pass
        queues = self._loaded().queues
        claims = log_claims(queues, table, checkpoint, abnormal=abnormal)
        end = settled_end(self.log, scan, claims)
        return RecoveryReport(
            abnormal=abnormal,
            checked_from=start,
            log_end=end.log_end,
            redispatched_count=0,
            damages=tuple(
                damage
                for damage in (*missing_files(self.log), *scan.damages, *end.damages)
                if not self.log.lost.has(damage.log_offset)
            ),
            torn=end.torn,
        )

    def _check_start(self) -> int:
        """The start of the last file that begins with a sound record, before the end of the
        queues."""
        parts = self._loaded()
        files = parts.log.queue.files
        for file in reversed(files):
            if file.start_offset < max(1, parts.queues.max_log_end):
                check = check_record(file.view(), log_offset=file.start_offset)
                if check.state is RecordState.MESSAGE:
                    return file.start_offset
        return files[0].start_offset if files else 0


def _refuse_other_directories(files: StoreFiles) -> None:
    root = str(files.root)
    if not files.root.is_dir():
        raise StoreNotFoundError(root, f"no such directory: {root}")
    if not files.commit_log.is_dir() and not files.consume_queues.is_dir():
        raise StoreNotFoundError(root, f"{root}: no local store: it has no commitlog directory")


def _index_of(parts: LocalStore) -> IndexReader:
    assert isinstance(parts.index, IndexReader)
    return parts.index


class IndexReader(IndexService):
    """Finds messages by key in the index files as they are, and after their end in the log.

    * Nothing on disk changes; closing only releases the files.
    * A file that cannot be an index is skipped and listed in `damages`.
    * The index may be behind the log: after a crash, while a writer runs, or because it was
      switched off. Messages after its end are searched in the log itself.
    """

    def __init__(self, config: LocalConfig, commit_log: CommitLog, *, clock: Clock) -> None:
        super().__init__(config, clock=clock)
        self._log = commit_log
        self._listing = threading.Lock()
        self.damages: list[SegmentCorruptError] = []

    def open(self) -> None:
        """Add new files, and release deleted ones."""
        with self._listing:  # an older listing must not replace a newer one
            self._open()

    def _open(self) -> None:
        known = {file.name: file for file in self._files}
        files: list[IndexFile] = []
        damages: list[SegmentCorruptError] = []
        for name in index_names(self._directory.path):
            try:
                files.append(
                    known.pop(name) if name in known else self._directory.open(name, read_only=True)
                )
            except SegmentNotFoundError:
                continue  # expired just now
            except SegmentCorruptError as error:
                damages.append(error)
        for gone in known.values():
            gone.close()
        self._files = tuple(files)
        self.damages = damages

    @property
    def files(self) -> tuple[IndexFile, ...]:
        return self._files

    def candidates(self, topic: str, key: str, *, begin: int, end: int) -> Iterator[int]:
        """As in `IndexService`; messages that are not indexed yet come first. Raises
        SegmentCorruptError after all others if any of these are damaged: nobody knows their keys.
        """
        self._check_open()
        self.open()
        indexed_to = self._newest_end()
        found, damage = self._unindexed(key, indexed_to)
        return chain(
            reversed(found),
            self._indexed(topic, key, begin=begin, end=end, below=indexed_to),
            _raised(damage),
        )

    def _newest_end(self) -> int:
        """The log offset of the newest indexed message, whose keys may be incomplete."""
        ends = (file.header.end_log_offset for file in self._files if file.header.item_count)
        return max(ends, default=0)

    def _indexed(self, topic: str, key: str, *, begin: int, end: int, below: int) -> Iterator[int]:
        try:
            for log_offset in super().candidates(topic, key, begin=begin, end=end):
                if log_offset < below:
                    yield log_offset
        except SegmentNotFoundError:  # the oldest are deleted first, so the rest is gone as well
            return

    def _unindexed(self, key: str, start: int) -> tuple[list[int], Damage | None]:
        """The log offsets from `start` on of messages that may have the key, oldest first; and the
        first damage there.

        Whole blocks are searched for the bytes of the key first: most do not contain them.
        """
        if not key:
            return [], None
        wanted = re.compile(re.escape(encode_utf8(key)))
        while True:
            found: list[int] = []
            try:
                scan = self._log.scan_from(start, check_crc=False)
                for columns in scan:
                    found += _rows_with(columns, wanted)
                missing = (one for one in missing_files(self._log) if (one.resumed_at or 0) > start)
                damages = (one for one in (*scan.damages, *missing) if not self._is_lost(one))
                return found, next(damages, None)
            except SegmentNotFoundError:
                if not self._log.queue.forget_gone():
                    raise
                self._log.look_again()

    def _is_lost(self, damage: Damage) -> bool:
        return self._log.lost.has(damage.log_offset)

    def close(self) -> None:
        self._closed = True
        for file in self._files:
            file.close()


def _raised(damage: Damage | None) -> Iterator[int]:
    """Raises the damage when the iteration comes to it."""
    if damage is not None:
        raise damage.error()
    yield from ()


def _rows_with(columns: RecordColumns, wanted: re.Pattern[bytes]) -> list[int]:
    first = int(columns.positions[0])
    last = int(columns.positions[-1] + columns.sizes[-1])
    if wanted.search(columns.data[first:last]) is None:
        return []
    indexed = (columns.sys_flags & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
    log_offsets = columns.log_offsets
    return [
        int(log_offsets[row])
        for row in range(len(columns))
        if indexed[row] and wanted.search(columns.raw_properties(row))
    ]
