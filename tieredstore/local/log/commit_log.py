"""The commit log: every message of the store, one behind the other, in files of one size.

What lives here: appending, reading, trimming and deleting by log offset. Queue offsets are given by
the caller; when bytes reach the disk is the `Flusher`'s business; recovery walks `scan_from`.

A record is never parted. A file holds one if 8 bytes are left behind it; else those that are left
begin with a blank record, and the next file begins with the record.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from tieredstore.codec.checksum import gainsays_property_crc
from tieredstore.codec.end_marks import BLANK_BYTES, encode_blank
from tieredstore.codec.message import MESSAGE_BYTES_MIN
from tieredstore.codec.names import local_file_name
from tieredstore.codec.record_fields import (
    TOPIC_LENGTHS,
    peek_log_offset,
    peek_magic,
    peek_message_bytes,
)
from tieredstore.driver.runtime import Runtime, Service
from tieredstore.local.config import LocalConfig
from tieredstore.local.files.mapped_file import MappedFile
from tieredstore.local.files.mapped_file_queue import MappedFileQueue
from tieredstore.local.files.mapping import MappedFiles
from tieredstore.local.log.log_scan import LogScan
from tieredstore.local.records.record_batch import RecordBatch
from tieredstore.local.records.record_check import RecordState, check_record
from tieredstore.local.records.record_encoder import PutRefusedError
from tieredstore.local.records.record_scan import DAY_MS
from tieredstore.model.errors import BackendError, BackendRefusedError, SegmentCorruptError
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, PutStatus

log = log_of(__name__)

FOLDER: Final = "commitlog"
_ALLOCATE_INTERVAL_MS: Final = 1_000


class AppendedRun(NamedTuple):
    """Where an append put its records, in the order they were given; all have one store time."""

    log_offsets: list[int]
    sizes: Sequence[int]
    store_timestamp: int

    @property
    def end_offset(self) -> int:
        """Wait for this offset to know that all of them are on disk."""
        return self.log_offsets[-1] + self.sizes[-1]


class CommitLog:
    """The log of one store.

    * An append is whole: the files it needs exist before its first byte is written, and readers
      see each record only when it is complete.
    * Store times never go back, whatever the clock does.
    * After a sync has failed nothing more is taken: what the disk lost cannot be known.
    """

    def __init__(self, config: LocalConfig, runtime: Runtime, files: MappedFiles) -> None:
        self.queue = MappedFileQueue(
            Path(config.store_path) / FOLDER,
            file_bytes=config.commit_log_file_bytes,
            files=files,
            preallocate=True,
        )
        self.last_store_timestamp = 0
        self.check_property_crc = config.property_crc_enabled
        self._clock = runtime.clock
        self._runtime = runtime
        self._append_guard = threading.Lock()
        self._allocator: Service | None = None
        self._failure: BackendError | None = None

    def load(self) -> None:
        """Find the files. Then scan, and `truncate` to where the scan ended."""
        self.queue.load()

    def start(self) -> None:
        """Keep a file ready behind the last one from now on."""
        if self._allocator is None:
            self._allocator = self._runtime.service(
                "allocate-log", self.queue.reserve, interval_ms=_ALLOCATE_INTERVAL_MS
            )

    def close(self) -> None:
        """Release the files; nothing is synced. Idempotent."""
        if self._allocator is not None:
            self._allocator.stop()
            self._allocator = None
        with self._append_guard:
            self.queue.close()

    def destroy(self) -> None:
        """Delete every file."""
        self.close()
        self.queue.destroy()

    @property
    def min_offset(self) -> int | None:
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        return self.queue.max_offset

    @property
    def flushed_offset(self) -> int:
        return self.queue.flushed_offset

    def file_start_of(self, offset: int) -> int:
        """Where the file that holds this offset begins, whether it is there or not."""
        return offset - offset % self.queue.file_bytes

    def append(self, batch: RecordBatch, queue_offsets: Sequence[int]) -> AppendedRun:
        """Put the records behind the last one, in one critical section.

        Raises PutRefusedError where one cannot fit any file, BackendRefusedError where a file
        cannot be made or written, or a sync failed before. Nothing of it stays in the log; where
        that cannot be brought about, nothing more is taken.
        """
        sizes = batch.sizes
        if len(sizes) != len(queue_offsets):
            raise ValueError(f"{len(sizes)} records, but {len(queue_offsets)} queue offsets")
        if sizes and max(sizes) + BLANK_BYTES > self.queue.file_bytes:
            raise PutRefusedError(
                PutStatus.MESSAGE_ILLEGAL, f"a record of {max(sizes)} bytes fits no file"
            )
        with self._append_guard:
            self._refuse_after_failure()
            store_timestamp = max(self._clock.now_ms(), self.last_store_timestamp)
            log_offsets: list[int] = []
            if sizes:
                file = self.queue.file_for_append()
                spans = self._spans(file, sizes)
                if len(spans) > 1:
                    self.queue.reserve(len(spans) - 1)
                end = file.start_offset + file.wrote
                try:
                    for number, rows in enumerate(spans):
                        if number:
                            file = self._roll(file)
                        if rows:
                            at = file.start_offset + file.wrote
                            data, offsets = batch.placed(rows, queue_offsets, at, store_timestamp)
                            file.append(data)
                            log_offsets += offsets
                except BaseException:
                    self._take_back(end)
                    raise
            self.last_store_timestamp = store_timestamp
        return AppendedRun(log_offsets, sizes, store_timestamp)

    def _take_back(self, end: int) -> None:
        """Let the log end where it ended before an append that failed half way.

        What is not taken back would meet the messages that come next: both would have the same
        queue offsets, and queues that are made anew could believe the wrong ones. The sync comes
        first: `truncate_dirty` counts all files before the last one as synced.
        """
        failure = BackendRefusedError(
            self.queue.directory, "append", f"the log may hold more than was put, from {end} on"
        )
        self._failure = self._failure or failure
        try:
            self.queue.flush()
            self.queue.truncate_dirty(end)
        except Exception:
            log.exception("%s: %s", self.queue.directory, failure)
            return
        if self._failure is failure:
            self._failure = None

    def _spans(self, file: MappedFile, sizes: Sequence[int]) -> list[range]:
        """Which records go to this file, and which to each that follows."""
        room = file.size - file.wrote - BLANK_BYTES
        if len(sizes) == 1 and sizes[0] <= room:
            return [range(1)]
        ends = list(accumulate(sizes))
        spans = []
        first = before = 0
        while first < len(sizes):
            last = bisect_right(ends, before + room)
            spans.append(range(first, last))
            before = ends[last - 1] if last else 0
            first = last
            room = file.size - BLANK_BYTES
        return spans

    def _roll(self, file: MappedFile) -> MappedFile:
        """Close the file with a blank record and begin the next."""
        rest = file.size - file.wrote
        if rest:
            file.fill_up(encode_blank(rest))
        following = self.queue.roll()
        if self._allocator is not None:
            self._allocator.wake()
        return following

    def read(self, log_offset: int, length: int) -> bytes | None:
        """These bytes, which lie in one file; None where not all of them are there."""
        return self.queue.read(log_offset, length)

    def message_bytes(self, log_offset: int, size: int | None = None) -> bytes | None:
        """The record at this offset; None where none starts there or it is deleted.

        With `size`, as a queue has it, there must be one: anything else, and a record that is
        damaged, is a SegmentCorruptError. So is any offset of a file that is missing between
        others. None is what begins below the log.
        """
        if size is not None and size < MESSAGE_BYTES_MIN:
            record = None
        elif size is None:
            head = self.queue.read(log_offset, 36)
            if head is None:
                self._check_present(log_offset)
                return None
            if peek_magic(head) not in TOPIC_LENGTHS or peek_log_offset(head) != log_offset:
                return None
            record = self.queue.read(log_offset, max(36, peek_message_bytes(head)))
        else:
            record = self.queue.read(log_offset, size)
        if record is None:
            self.look_again()
            if log_offset < (self.min_offset or 0):  # looked at now: it may have gone just so
                return None
            raise self._corrupt(log_offset, "no record of this size is there")
        check = check_record(record, log_offset=log_offset)
        if check.state is not RecordState.MESSAGE or check.size != len(record):
            raise self._corrupt(log_offset, check.reason or "not the record that was looked for")
        if self.check_property_crc and gainsays_property_crc(record):
            raise self._corrupt(log_offset, "the record does not have the CRC of its last property")
        return record

    def look_again(self) -> None:
        """Find the files anew if another process has deleted all that were there."""
        if self.queue.read_only and not self.queue.files:
            self.queue.load()

    def _check_present(self, log_offset: int) -> None:
        self.look_again()
        is_inside = (self.min_offset or 0) <= log_offset < self.max_offset
        if is_inside and self.queue.find(log_offset) is None:
            raise self._corrupt(log_offset, "the file is missing")

    def scan_from(
        self, offset: int, *, check_crc: bool = True, doubt_times: bool = False
    ) -> LogScan:
        """Every record from this offset, where one starts, on.

        With `doubt_times` a store time far ahead of the clock is damage and not the last one.
        """
        return LogScan(
            self.queue.files_from(offset),
            start_offset=max(offset, self.min_offset or 0),
            check_crc=check_crc,
            check_property_crc=check_crc and self.check_property_crc,
            time_max=self._clock.now_ms() + DAY_MS if doubt_times else INT64_MAX,
        )

    def flush(self) -> int:
        """Put on disk what was appended before; the new `flushed_offset`."""
        try:
            return self.queue.flush()
        except BackendError as error:
            self._failure = error
            raise

    def sync_from(self, offset: int) -> None:
        """Sync what a killed process may have left in the page cache only: after recovery."""
        self.queue.sync_from(offset)

    def truncate(self, offset: int) -> None:
        """Let the log end here; what is behind becomes zeros or goes. Synced when this returns."""
        self.queue.truncate_dirty(offset)

    def delete_before(self, offset: int, *, count_max: int | None = None) -> list[MappedFile]:
        """Delete the oldest files that end at or below this offset, never the last one."""
        return self.queue.delete_before(offset, count_max=count_max)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise BackendRefusedError(
                self.queue.directory, "append", f"reopen the store: {self._failure}"
            ) from self._failure

    def _corrupt(self, log_offset: int, reason: str) -> SegmentCorruptError:
        file = self.queue.find(log_offset)
        name = local_file_name(max(0, self.file_start_of(log_offset)))
        path = file.path if file else os.path.join(self.queue.directory, name)
        return SegmentCorruptError(path, reason, position=log_offset % self.queue.file_bytes)
