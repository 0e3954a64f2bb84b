"""The commit log: every message of the store, one after another, in files of one size.

A record never spans two files. A file takes a record only if 8 bytes remain after it; otherwise a
blank record fills the file, and the next file begins with the record.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import accumulate, pairwise, starmap
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import gainsays_property_crc
from tieredstore.codec.columns import RecordColumns, sound_columns, sound_count
from tieredstore.codec.message import BLANK_BYTES, encode_blank, is_blank
from tieredstore.codec.names import encode_offset_id, local_file_name
from tieredstore.codec.record import (
    RECORD_BYTES_MIN,
    TOPIC_LENGTHS,
    peek_log_offset,
    peek_magic,
    peek_message_bytes,
    peek_store_timestamp,
)
from tieredstore.driver.runtime import Deadline, Runtime, Service
from tieredstore.local.config import LocalConfig
from tieredstore.local.encoder import PutRefusedError, Record, RecordBatch
from tieredstore.local.files import StoreFiles
from tieredstore.local.lost_parts import LOST_FILE, LostParts
from tieredstore.local.mapped_file import MappedFile, MappedFiles
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.record_scan import (
    DAY_MS,
    HEAD_BYTES,
    Damage,
    RecordScan,
    RecordState,
    check_record,
)
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    SegmentCorruptError,
    SegmentNotFoundError,
)
from tieredstore.model.message_columns import MessageColumns
from tieredstore.model.messages import Message, PutResult
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, Host, PutStatus

log = log_of(__name__)

T = TypeVar("T")

FOLDER: Final = "commitlog"
PROMISED_MAX: Final = 10_000
SKIPPED_FILES_MAX: Final = 4_096  # each takes four kilobytes on disk
_ALLOCATE_INTERVAL_MS: Final = 1_000
_PROMISE_INTERVAL_MS: Final = 1_000  # each new promise wakes the thread


class LogScan:
    """Blocks of sound records; iterate it once, then ask how it ended.

    * `end` is the log offset where the log ends: after the last sound record or, if a blank record
      closes its file, at the start of the next file. `records_end` is where the last sound record
      ends, or where the scan started.
    * `damages` are the places that were skipped because sound records follow them. `doubted` are
      sound records whose store time cannot be right.
    * `torn` describes the bytes at `end`: None if there are none, or zeros.
    """

    def __init__(
        self,
        files: Sequence[MappedFile],
        *,
        start_offset: int,
        check_crc: bool = True,
        check_property_crc: bool = False,
        property_crc_from: int = 0,
        time_max: int = INT64_MAX,
        killed_from: int = INT64_MAX,
    ) -> None:
        self.end = self.records_end = start_offset
        self.damages: list[Damage] = []
        self.doubted: list[Damage] = []
        self.torn: Damage | None = None
        self.last_store_timestamp = 0
        self._files = files
        self._start_offset = start_offset
        self._check_crc = check_crc
        self._check_property_crc = check_property_crc
        self._property_crc_from = property_crc_from
        self._time_max = time_max
        self._killed_from = killed_from

    def __iter__(self) -> Iterator[RecordColumns]:
        open_end: Damage | None = None  # where a file broke off: the log's end, or damage
        for file in self._files:
            base = file.start_offset
            scan = RecordScan(
                file.view(0, file.wrote),
                base_offset=base,
                path=file.path,
                position=max(0, self._start_offset - base),
                check_crc=self._check_crc,
                check_property_crc=self._check_property_crc,
                property_crc_from=self._property_crc_from,
                last_store_timestamp=self.last_store_timestamp,
                time_max=self._time_max,
                killed_from=self._killed_from,
                data_end=file.data_end,
            )
            for columns in scan:
                first = int(columns.positions[0]) + base
                if int(columns.store_timestamps[0]) < self.last_store_timestamp and open_end:
                    break  # leftovers of an earlier crash, not the records after the damage
                if open_end is not None:
                    self.damages.append(open_end._replace(unused=False, resumed_at=first))
                    open_end = None
                self.end = self.records_end = base + scan.position
                self.last_store_timestamp = scan.last_store_timestamp
                yield columns
            if open_end is not None:
                continue
            self.damages += scan.damages
            self.doubted += scan.doubted
            if scan.blank:
                self.end = file.end_offset
            elif scan.rest is not None:
                open_end = scan.rest
            elif not file.full:
                return
        if open_end is not None and not open_end.unused:
            self.torn = open_end


class AppendedRun(NamedTuple):
    """Where an append put its records, in the order given; all have the same store time."""

    log_offsets: list[int]
    sizes: Sequence[int]
    store_timestamp: int

    @property
    def end_offset(self) -> int:
        """Once the log is flushed up to this offset, all the records are on disk."""
        return self.log_offsets[-1] + self.sizes[-1]


class CommitLog:
    """The log of one store.

    * An append succeeds or fails as a whole: the files it needs exist before its first byte is
      written, and readers see a record only when it is complete.
    * Store times never decrease, whatever the clock does.
    * After a failed sync no more puts are accepted: nobody knows what the disk lost.
    """

    def __init__(self, config: LocalConfig, runtime: Runtime, files: MappedFiles) -> None:
        self.queue = MappedFileQueue(
            Path(config.store_path) / FOLDER,
            file_bytes=config.commit_log_file_bytes,
            files=files,
            preallocate=True,
        )
        self.lost = LostParts(StoreFiles(config.root).config / LOST_FILE)
        self.last_store_timestamp = 0
        self.time_min = 0  # of new records; capped at a day ahead of the clock
        self.check_property_crc = config.property_crc_enabled
        self.property_crc_from = INT64_MAX  # from this log offset on each record carries a CRC
        self._clock = runtime.clock
        self._runtime = runtime
        self._append_guard = threading.Lock()
        self._allocator: Service | None = None
        self._failure: BackendError | None = None

    def load(self) -> None:
        """Find the files. The caller then scans, and truncates the log to the end of the scan."""
        self.queue.load()
        self.lost.load()

    def start(self) -> None:
        """From now on keep a spare file ready after the last one."""
        if self._allocator is None:
            self._allocator = self._runtime.service(
                "allocate-log", self.queue.reserve, interval_ms=_ALLOCATE_INTERVAL_MS
            )

    def close(self) -> None:
        """Release the files without a sync. Idempotent."""
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

    def whole_end(self) -> int:
        """The end of the log when no append is under way: none that fails is taken back from
        below it."""
        with self._append_guard:
            return self.queue.max_offset

    def file_start_of(self, offset: int) -> int:
        """Where the file of this offset begins, whether or not the file exists."""
        return offset - offset % self.queue.file_bytes

    def append(self, batch: RecordBatch, queue_offsets: Sequence[int]) -> AppendedRun:
        """Put the records after the last one, in one critical section.

        Raises PutRefusedError if a record fits no file; BackendRefusedError if a file cannot be
        made or written, or if a sync failed earlier. A failed append leaves nothing in the log. If
        its bytes cannot be removed, the log refuses all further appends.
        """
        sizes = batch.sizes
        if len(sizes) != len(queue_offsets):
            raise ValueError(f"{len(sizes)} records, but {len(queue_offsets)} queue offsets")
        if sizes and max(sizes) + BLANK_BYTES > self.queue.file_bytes:
            raise PutRefusedError(
                PutStatus.MESSAGE_ILLEGAL, f"a record of {max(sizes)} bytes fits no file"
            )
        with self._append_guard:
            store_timestamp = self._time_of_append()
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
                            file.append(data, HEAD_BYTES)
                            log_offsets += offsets
                except BaseException:
                    self._take_back(end)
                    raise
            self.last_store_timestamp = store_timestamp
        return AppendedRun(log_offsets, sizes, store_timestamp)

    def append_one(self, record: Record) -> None:
        """`append` for one record, which then knows its place.

        A record that does not fit the last file is appended as a batch of one.
        """
        with self._append_guard:
            files = self.queue.files
            if files and record.size <= _room_in(file := files[-1]):
                store_timestamp = self._time_of_append()
                end = file.start_offset + file.wrote
                try:
                    file.append(record.placed(end, store_timestamp), HEAD_BYTES)
                except BaseException:
                    self._take_back(end)
                    raise
                self.last_store_timestamp = store_timestamp
                return
        run = self.append(RecordBatch.joined([record]), [record.queue_offset])
        record.placed(run.log_offsets[0], run.store_timestamp)

    def run_from(self, offset: int) -> AppendedRun:
        """All records from this offset on, which one append put there. No later append may get an
        earlier time, even if that one was interrupted."""
        log_offsets: list[int] = []
        sizes: list[int] = []
        time = self.last_store_timestamp
        for columns in self.scan_from(offset, check_crc=False):
            log_offsets += columns.log_offsets.tolist()
            sizes += columns.sizes.tolist()
            time = int(columns.store_timestamps[-1])
        self.last_store_timestamp = max(time, self.last_store_timestamp)
        return AppendedRun(log_offsets, sizes, time)

    @property
    def failure(self) -> BackendError | None:
        """Why all appends are refused until the store is opened again."""
        return self._failure

    def refuse(self, error: BackendError) -> None:
        """Refuse all appends until the store is opened again."""
        self._failure = self._failure or error

    def has_room(self, size: int) -> bool:
        """Whether a record of this size fits the last file, so that no new one is needed."""
        files = self.queue.files
        return bool(files) and size <= _room_in(files[-1])

    def _time_of_append(self) -> int:
        """The store time for an append now. Raises BackendRefusedError after a failure."""
        if self._failure is not None:
            raise BackendRefusedError(
                self.queue.directory, "append", f"reopen the store: {self._failure}"
            ) from self._failure
        now = self._clock.now_ms()
        time_min = min(self.time_min, now + DAY_MS) if self.time_min > now else now
        return max(time_min, self.last_store_timestamp)

    def skip_to(self, offset: int) -> None:
        """Durably move the end of the log to the first start of a file at or after `offset`,
        unless the log already reaches `offset`.

        An empty log then begins there. Other logs are filled up with blank records, because a hole
        would count as damage. Raises BackendRefusedError, with nothing done, if the offset is too
        far away. After a crash the log may end before the offset.
        """
        queue = self.queue
        end = queue.max_offset
        if offset <= end:
            return
        boundary = self._boundary_from(offset)
        with self._append_guard:
            if not self.can_skip_to(offset):
                raise BackendRefusedError(
                    queue.directory,
                    "skip",
                    f"the log ends at {end}: {offset} is more than {SKIPPED_FILES_MAX} files away",
                )
            while queue.files and queue.max_offset < boundary:
                file = queue.files[-1] if not queue.files[-1].full else queue.roll(sparse=True)
                file.fill_up(encode_blank(file.size - file.wrote))
                queue.flush()  # before the next file: only the last may lack its length
            queue.roll(boundary)  # RocketMQ takes a log that ends in a blank as still open
            queue.sync_from(boundary)  # the new file is empty, but has a length and a name

    def can_skip_to(self, offset: int) -> bool:
        """Whether `offset` is near enough for `skip_to`."""
        queue, size = self.queue, self.queue.file_bytes
        boundary = self._boundary_from(offset)
        first = self.file_start_of(queue.max_offset) if queue.files else boundary
        return boundary - first <= SKIPPED_FILES_MAX * size and boundary <= INT64_MAX - size

    def _boundary_from(self, offset: int) -> int:
        """The first start of a file at or after `offset`."""
        return -(-offset // self.queue.file_bytes) * self.queue.file_bytes

    def _take_back(self, end: int) -> None:
        """Cut the log back to `end`, where it ended before an append that failed half way.

        Records left there would have the same queue offsets as the next messages, and rebuilt
        queues could take the wrong ones. The sync comes first because `truncate_dirty` counts all
        files before the last one as synced.
        """
        failure = BackendRefusedError(
            self.queue.directory, "append", f"the log may hold unwanted bytes from {end} on"
        )
        self._failure = self._failure or failure
        try:
            self.queue.flush()
            self.queue.truncate_dirty(end, keeps_one=True)
        except Exception:
            log.exception("%s: %s", self.queue.directory, failure)
            return
        if self._failure is failure:
            self._failure = None

    def _spans(self, file: MappedFile, sizes: Sequence[int]) -> list[range]:
        """Which records go into this file, and which into each file after it."""
        room = _room_in(file)
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

    def earliest_time(self) -> int | None:
        """The store time of the first sound record; None if there is none."""
        minimum = None
        while (offset := self.min_offset) is not None and offset != minimum:
            minimum = offset  # look again if its file was deleted meanwhile
            for file in self.queue.files:  # the oldest may be blank: see `skip_to`
                start = file.start_offset
                lost = self.lost.first_between(start, file.end_offset)
                try:
                    record = self.message_bytes(lost[1] if lost and lost[0] == start else start)
                except SegmentCorruptError:  # damaged: take the time of the first sound record
                    scan = self.scan_from(file.start_offset)
                    return next((int(rows.store_timestamps[0]) for rows in scan), None)
                if record is not None:
                    return peek_store_timestamp(record)
        return None

    def message_bytes(self, log_offset: int, size: int | None = None) -> bytes | None:
        """The record at this offset; None if no record starts there or it has been deleted.

        Raises SegmentCorruptError for a damaged record, for an offset in a file that is missing
        between others and, with `size` (as a queue has it), if no record of that size is there. An
        offset below the log gives None.
        """
        if size is not None and size < RECORD_BYTES_MIN:
            record = None
        elif size is None:
            head = self.queue.read(log_offset, 36)
            if head is None:
                self._check_present(log_offset)
                return None
            if peek_magic(head) not in TOPIC_LENGTHS or peek_log_offset(head) != log_offset:
                self._check_begin(log_offset, head)
                return None
            record = self.queue.read(log_offset, max(36, peek_message_bytes(head)))
        else:
            record = self.queue.read(log_offset, size)
        if record is None:
            self.look_again()
            if log_offset < (self.min_offset or 0):  # checked only now: it may just have expired
                return None
            raise self._corrupt(log_offset, "no record of this size is there")
        check = check_record(record, log_offset=log_offset)
        if check.state is not RecordState.MESSAGE or check.size != len(record):
            raise self._corrupt(log_offset, check.reason or "not the record that was looked for")
        if self.check_property_crc and gainsays_property_crc(record):
            raise self._corrupt(log_offset, "the record does not have the CRC of its last property")
        return record

    def look_again(self) -> None:
        """Find the files again if another process has deleted all the known ones."""
        if self.queue.read_only and not self.queue.files:
            self.queue.load()

    def _check_present(self, log_offset: int) -> None:
        self.look_again()
        is_inside = (self.min_offset or 0) <= log_offset < self.max_offset
        if is_inside and self.queue.find(log_offset) is None:
            raise self._corrupt(log_offset, "the file is missing")

    def _check_begin(self, log_offset: int, head: bytes) -> None:
        """Each file begins with a record or a blank one: if it has neither there, it is damaged.
        Not so if another process has made it before its first record, as RocketMQ does, or has not
        written the record's head yet: then no records follow."""
        is_begin = log_offset == self.file_start_of(log_offset)
        if not is_begin or is_blank(head) or self.lost.has(log_offset):
            return
        if self.queue.read_only and not any(head[:HEAD_BYTES]):
            following = self.scan_from(log_offset, killed_from=log_offset)
            if next(iter(following), None) is None:
                return
        raise self._corrupt(log_offset, "the file does not begin with a record")

    def scan_from(
        self,
        offset: int,
        *,
        check_crc: bool = True,
        doubt_times: bool = False,
        killed_from: int = INT64_MAX,
    ) -> LogScan:
        """Every record from this offset on; a record must start there.

        With `doubt_times` a store time far ahead of the clock is doubted and does not become the
        last store time. The log ends at a put that was killed half way, at or after `killed_from`.
        """
        return LogScan(
            self.queue.files_from(offset),
            start_offset=max(offset, self.min_offset or 0),
            check_crc=check_crc,
            check_property_crc=check_crc and self.check_property_crc,
            property_crc_from=self.property_crc_from,
            time_max=self._clock.now_ms() + DAY_MS if doubt_times else INT64_MAX,
            killed_from=killed_from,
        )

    def flush(self) -> int:
        """Sync everything appended so far; returns the new `flushed_offset`."""
        try:
            return self.queue.flush()
        except BackendError as error:
            self._failure = error
            raise

    def _corrupt(self, log_offset: int, reason: str) -> SegmentCorruptError:
        file = self.queue.find(log_offset)
        name = local_file_name(max(0, self.file_start_of(log_offset)))
        path = file.path if file else os.path.join(self.queue.directory, name)
        return SegmentCorruptError(path, reason, position=log_offset % self.queue.file_bytes)


def _room_in(file: MappedFile) -> int:
    """How many bytes of records a file can still take, with room left for a closing blank."""
    return file.size - file.wrote - BLANK_BYTES


def read_records(
    files: MappedFileQueue,
    log_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    check_property_crc: bool = False,
) -> tuple[RecordColumns, bytearray]:
    """The records up to the first that is missing or damaged: their columns, and their bytes.

    The bytes are copied once; neighbours in the log are copied together.
    """
    count = sound_count((sizes >= RECORD_BYTES_MIN) & (log_offsets <= INT64_MAX - sizes))
    log_offsets, sizes = log_offsets[:count], sizes[:count]
    ends = log_offsets + sizes
    pieces: list[memoryview] = []
    row = 0
    while row < count:
        file = files.find(int(log_offsets[row]))
        if file is None:
            break
        start, stop = file.start_offset, file.start_offset + file.wrote
        inside = sound_count((log_offsets[row:] >= start) & (ends[row:] <= stop))
        if not inside:
            break
        try:
            whole = file.view(0, stop - start)
        except SegmentNotFoundError:  # deleted just now
            break
        rows = slice(row, row + inside)
        pieces += _pieces(whole, log_offsets[rows] - start, ends[rows] - start)
        row += inside
    records = bytearray().join(pieces)
    columns = _sound_rows(records, log_offsets[:row], sizes[:row], check_property_crc)
    return columns, records


def _pieces(
    whole: memoryview, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> map[memoryview]:
    """The parts of a file between these places, as few as possible."""
    parted = starts[1:] != ends[:-1]
    firsts = starts[np.append(True, parted)].tolist()
    lasts = ends[np.append(parted, True)].tolist()
    return map(whole.__getitem__, map(slice, firsts, lasts))


def _sound_rows(
    records: bytearray,
    log_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    check_property_crc: bool,
) -> RecordColumns:
    bounds = np.append(0, np.cumsum(sizes))
    data = memoryview(records)
    count = len(sizes)
    if check_property_crc:
        spans = starmap(slice, pairwise(bounds.tolist()))
        wrong = map(gainsays_property_crc, map(data.__getitem__, spans))
        count = next((row for row, is_wrong in enumerate(wrong) if is_wrong), count)
    return sound_columns(data, bounds[: count + 1], log_offsets[:count])


class PutResults(Sequence[PutResult]):
    """One result for each message, in the order given.

    `refused` holds the results of messages that were not stored, by their place; `appended` has
    the others in order. The messages are not a list, which the caller could change.
    """

    def __init__(
        self,
        messages: tuple[Message, ...] | MessageColumns,
        refused: Mapping[int, PutResult],
        queue_offsets: Sequence[int],
        appended: AppendedRun | None,
        status: PutStatus,
    ) -> None:
        self._messages = messages
        self._refused = refused
        self._queue_offsets = queue_offsets
        self._appended = appended
        self._status = status
        self._rows: dict[int, int] | None = None  # place to row, once needed

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def all_ok(self) -> bool:
        return not self._refused and self._status is PutStatus.PUT_OK

    @overload
    def __getitem__(self, place: int) -> PutResult: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[PutResult]: ...

    def __getitem__(self, place: int | slice) -> PutResult | Sequence[PutResult]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(place)
        refused = self._refused.get(place)
        return self._stored(place) if refused is None else refused

    def _stored(self, place: int) -> PutResult:
        appended = self._appended
        assert appended is not None
        row = self._row(place) if self._refused else place
        log_offset = appended.log_offsets[row]
        return PutResult(
            status=self._status,
            queue_offset=self._queue_offsets[row],
            log_offset=log_offset,
            size=appended.sizes[row],
            store_timestamp=appended.store_timestamp,
            message_id=encode_offset_id(self._store_host(place), log_offset=log_offset),
        )

    def _store_host(self, place: int) -> Host:
        messages = self._messages
        if isinstance(messages, tuple):
            return messages[place].store_host
        return messages.store_hosts[place]

    def _row(self, place: int) -> int:
        if self._rows is None:
            stored = [at for at in range(len(self)) if at not in self._refused]
            self._rows = {at: row for row, at in enumerate(stored)}
        return self._rows[place]


class Appended(NamedTuple):
    """The outcome of one put: its messages are in the log or refused; no sync was waited for."""

    messages: tuple[Message, ...] | MessageColumns
    refused: Mapping[int, PutResult]
    queue_offsets: Sequence[int]
    run: AppendedRun | None
    waits_for_disk: bool

    @property
    def wanted_offset(self) -> int:
        """The put succeeds once everything below this log offset is on disk; 0 if at once."""
        return self.run.end_offset if self.run is not None and self.waits_for_disk else 0

    def results(self, status: PutStatus = PutStatus.PUT_OK) -> PutResults:
        return PutResults(self.messages, self.refused, self.queue_offsets, self.run, status)


class _Group:
    """Threads that share one sync: the first to get the lock runs it for the others."""

    __slots__ = ("ended", "is_synced", "lock")

    def __init__(self, *, must_wait: bool) -> None:
        self.ended = False
        self.is_synced = False  # False after the end if the sync was interrupted
        self.lock = threading.Lock()
        if must_wait:
            self.lock.acquire()


class Flusher:
    """Syncs a log for all waiting threads.

    * The first thread that waits runs the sync; threads that come meanwhile form the next group,
      and one of them syncs for the whole group. So a lone waiter never waits for another thread;
      sixteen waiters share one sync, and each is woken once.
    * An offset counts as on disk only after a sync that covers it has returned.
    * After a failed sync every wait fails, for good.
    """

    def __init__(
        self,
        flush: Callable[[], int],
        flushed_offset: Callable[[], int],
        runtime: Runtime,
        *,
        interval_ms: int,
        path: str = "",
    ) -> None:
        self._flush = flush
        self._flushed_offset = flushed_offset
        self._runtime = runtime
        self._interval_ms = interval_ms
        self._path = path
        self._coming = _Group(must_wait=False)  # the threads that the next sync serves
        self._failure: BackendError | None = None
        self._service: Service | None = None

    def start(self) -> None:
        """From now on sync after each interval, and when woken."""
        if self._service is None:
            self._service = self._runtime.service(
                "flush", self._periodic, interval_ms=self._interval_ms
            )

    def stop(self) -> None:
        """End the service without a sync. Idempotent."""
        if self._service is not None:
            self._service.stop()
            self._service = None

    def wake(self) -> None:
        """Ask for a sync soon; does not wait for it."""
        if self._service is not None:
            self._service.wake()

    def flush(self) -> int:
        """Sync everything appended before this call; returns the new flushed offset."""
        is_synced = False
        while not is_synced:
            group = self._coming
            with group.lock:
                if not group.ended:
                    self._lead(group)
            self._refuse_after_failure()
            is_synced = group.is_synced
        return self._flushed_offset()

    def wait_until_flushed(self, offset: int, timeout_ms: int) -> bool:
        """Wait, at most for the timeout; returns whether everything below `offset` is on disk.

        Raises BackendRefusedError after a failed sync: nobody knows what the disk holds.
        """
        deadline: Deadline | None = None
        while self._flushed_offset() < offset:
            group = self._coming
            if not group.lock.acquire(blocking=False):
                if deadline is None:
                    deadline = Deadline(self._runtime.clock, timeout_ms / 1000)
                rest = deadline.left()
                if not rest or not group.lock.acquire(timeout=rest):
                    return self._flushed_offset() >= offset
            try:
                if not group.ended:
                    self._lead(group)
            finally:
                group.lock.release()
            if self._flushed_offset() < offset:
                self._refuse_after_failure()
        return True

    def _lead(self, group: _Group) -> None:
        """Sync for the group, whose lock the caller holds; its members have appended by now."""
        following = self._coming = _Group(must_wait=True)
        try:
            self._refuse_after_failure()
            self._flush()
            group.is_synced = True
        except BackendError as error:
            self._failure = self._failure or error
            raise
        finally:
            group.ended = True
            following.lock.release()  # before the group's lock: the next sync starts at once

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise BackendRefusedError(
                self._path, "flush", f"a sync failed before: {self._failure}"
            ) from self._failure

    def _periodic(self) -> None:
        if self._failure is None:  # a failure was logged once, and every put is refused since
            self.flush()


class PromisedPuts:
    """Puts that wait for the disk without a thread for each: one thread waits for all of them.

    The thread takes all waiting puts, waits for one sync, and sets their results; later puts form
    the next group. It calls `before_results` first, as a plain put does before it returns.
    """

    def __init__(
        self,
        log: CommitLog,
        flusher: Flusher,
        runtime: Runtime,
        *,
        timeout_ms: int,
        before_results: Callable[[], None],
    ) -> None:
        self._log = log
        self._flusher = flusher
        self._runtime = runtime
        self._timeout_ms = timeout_ms
        self._before_results = before_results
        self._coming: deque[tuple[int, Callable[[PutStatus], Any], Future[Any]]] = deque()
        self._service: Service | None = None

    @property
    def is_full(self) -> bool:
        return len(self._coming) >= PROMISED_MAX

    def start(self) -> None:
        if self._service is None:
            self._service = self._runtime.service(
                "promised-puts", self._step, interval_ms=_PROMISE_INTERVAL_MS
            )

    def stop(self) -> None:
        """End the service, and answer the puts that are left. Idempotent."""
        if self._service is not None:
            self._service.stop()
            self._service = None
        self._step()

    def add(self, wanted_offset: int, answer: Callable[[PutStatus], T], future: Future[T]) -> None:
        """Answer the future once everything below the offset is on disk; call `wake` afterwards."""
        self._coming.append((wanted_offset, answer, future))

    def wake(self) -> None:
        if self._service is not None:
            self._service.wake()

    def _step(self) -> None:
        promises = [self._coming.popleft() for _ in range(len(self._coming))]
        if not promises:
            return
        wanted = max(offset for offset, _, _ in promises)
        failure: Exception | None = None
        try:
            self._flusher.wait_until_flushed(wanted, self._timeout_ms)
        except Exception as error:  # noqa: BLE001 - the futures raise it
            failure = error
        self._before_results()
        flushed = self._log.flushed_offset
        for offset, answer, future in promises:
            if offset <= flushed:
                future.set_result(answer(PutStatus.PUT_OK))
            elif failure is None:
                future.set_result(answer(PutStatus.FLUSH_DISK_TIMEOUT))
            else:
                future.set_exception(failure)
