"""Writes keys to the disk: they are pending in memory, then put into one index file after another.

The files that are not uploaded yet, and the files next to them:

    <store_path>/tiered_index_file/<begin ms>        an index file; RocketMQ opens such names
                                   <begin ms>.keys   the hashes beside it
                                   footers/          copies of footers of uploaded files
                                   compacting/       RocketMQ's; removed
                                   0000, 1111, 2222  RocketMQ 5.1's; renamed
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.tiered_index import is_legacy_written
from tieredstore.driver.durable import fsync_directory, fsync_file, make_directories
from tieredstore.driver.metadata import Change, MetadataStore
from tieredstore.driver.runtime import Clock
from tieredstore.index.keys import IndexColumns, RunKeys, notes_path
from tieredstore.index.local_file import (
    FileSizes,
    IndexStoreFile,
    ItemsChecksum,
    is_begin,
    remove_durably,
)
from tieredstore.index.watermarks import Durable, QueueId, Watermarks
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    SegmentCorruptError,
    StoreClosedError,
    TieredStoreError,
    refused_by_system,
)
from tieredstore.model.printable import log_of

log = log_of(__name__)

FOLDER: Final = "tiered_index_file"
COMPACTING: Final = "compacting"
OLD_NAMES: Final = ("0000", "1111", "2222")
_BEGIN_POSITION: Final = 4
PENDING_KEYS_MAX: Final = 16_384  # of 44 bytes each
PENDING_SECONDS_MAX: Final = 1
SYNC_SECONDS: Final = 30
EARLIER_MS_MAX: Final = 3_600_000  # how long before its first message a file may begin


class IndexWriter:
    """Puts keys into the local files; keys that are in no file yet are pending.

    * No failure loses a key: keys that could not be put stay in memory, and the watermarks move
      only when the files with these keys are synced.
    * A file that the disk could not sync is given up: queries read it as long as it is open, but
      the watermarks go back, and its messages are put again after a restart.
    * No file begins after a message in it was stored: RocketMQ searches only files that begin
      before the end of the window. An older message begins another file.
    * `files` are the full ones, oldest first, and the one being filled. The tuple is replaced,
      never changed, and holds only files that queries may read.
    * Any thread may call anything. A sync does not keep other threads from putting.
    """

    def __init__(
        self, folder: LocalFolder, watermarks: Watermarks, metadata: MetadataStore, clock: Clock
    ) -> None:
        self.files: tuple[IndexStoreFile, ...] = ()
        self._folder = folder
        self._watermarks = watermarks
        self._metadata = metadata
        self._clock = clock
        self._guard = threading.RLock()  # guards everything below
        self._syncing = threading.Lock()
        self._current: IndexStoreFile | None = None
        self._begins: set[int] = set()  # the names of all files, also of uploaded ones
        self._begun = 0
        self._newest = 0  # store time in the file being filled
        self._late_ms = 0  # how much older a message was than one put into that file before it
        self._pending: list[PendingKeys] = []
        self._pending_keys = 0
        self._pending_since = 0.0
        self._taken: dict[QueueId, int] = {}
        self._moved: dict[QueueId, int] = {}
        self._put_at: dict[QueueId, int] = {}
        self._moved_since = 0.0
        self._unsynced: dict[int, IndexStoreFile] = {}
        self._checksums: dict[int, ItemsChecksum] = {}  # by begin; used by the thread that syncs
        self._starts: dict[tuple[int, QueueId], int] = {}
        self._known_starts: dict[tuple[int, QueueId], int] = {}
        self._given_up: dict[int, IndexStoreFile] = {}
        self._gaps: dict[QueueId, int] = {}  # the first offset that a given-up file may hold
        self.problem: str | None = None
        self._closed = False

    def open(self, files: Sequence[IndexStoreFile], *, begins: Iterable[int]) -> None:
        """Go on with these files; the one last put into is filled further if it can be.

        `begins` are those of files that are no longer here.
        """
        with self._guard:
            self._known_starts = self._watermarks.starts()
            self._checksums = dict(self._folder.checksums)
            # A file that another program began would never get a filter.
            open_ones = [file for file in files if file.notes is not None and file.room]
            last = max(open_ones, key=self._folder.last_put, default=None)
            self._current = last
            self._begins = {*begins, *(file.begin_timestamp for file in files)}
            self._begun = 0 if last is None else last.begin_timestamp
            self._newest = self._late_ms = 0
            self.files = tuple(files)

    @property
    def full(self) -> list[IndexStoreFile]:
        """The files that take no more keys, oldest first."""
        kept = [file for file in self.files if file is not self._current]
        return [file for file in kept if file.begin_timestamp not in self._given_up]

    @property
    def file_counts(self) -> tuple[int, int]:
        """How many files are being filled, and how many wait to be uploaded."""
        files, current = self.files, self._current
        unsealed = sum(file is current for file in files)
        return unsealed, len(files) - unsealed

    @property
    def is_due(self) -> bool:
        """Whether so much time has passed since a put that the watermarks should move."""
        return bool(self._moved) and self._clock.monotonic() - self._moved_since >= SYNC_SECONDS

    def taken(self, queue: QueueId) -> int | None:
        """All of the queue below this was put; None if nothing of it was put since the open.

        Keys in a file that was given up do not count: the file may go at any time.
        """
        return self._gaps.get(queue, self._taken.get(queue))

    def queues(self) -> set[QueueId]:
        """The queues of which anything was put since the open."""
        with self._guard:
            return set(self._taken)

    def forget(self, queues: Collection[QueueId]) -> None:
        """Forget queues that are gone. If one comes back, nothing of it has been put since the
        open."""
        with self._guard:
            for table in (self._taken, self._moved, self._put_at, self._gaps):
                for queue in queues:
                    table.pop(queue, None)

    def put(self, queue: QueueId, first_offset: int, end_offset: int, keys: RunKeys) -> None:
        """Take the keys of one queue's next messages. If this raises, it has taken none of them."""
        with self._guard:
            if self._closed:
                raise StoreClosedError("the index is closed")
            if self._pending_keys + len(keys.columns) > PENDING_KEYS_MAX or self._is_old():
                self.drain()
            now = self._clock.monotonic()
            if len(keys.columns):
                if not self._pending:
                    self._pending_since = now
                self._pending.append(PendingKeys(queue=queue, first_offset=first_offset, keys=keys))
                self._pending_keys += len(keys.columns)
            if not self._moved:
                self._moved_since = now
            self._taken[queue] = self._moved[queue] = end_offset
            self._put_at[queue] = self._clock.now_ms()
            if first_offset <= self._gaps.get(queue, -1):  # the whole gap is put again
                del self._gaps[queue]

    def drain(self) -> None:
        """Put pending keys into files. Raises what the disk raises; the rest stays pending."""
        with self._guard:
            while self._pending:
                pending, self._pending = self._pending, []
                columns = IndexColumns.joined([run.keys.columns for run in pending])
                counts = np.concatenate([run.keys.key_counts for run in pending])
                done = 0
                try:
                    while done < len(columns):
                        done += self._put_some(columns, counts, done, pending)
                finally:
                    if done < len(columns):
                        self._pending = still_pending(pending, done)
                    self._pending_keys = sum(len(run.keys.columns) for run in self._pending)

    def has_drained(self) -> bool:
        """Put the pending keys into files; False if some of them are still pending."""
        try:
            self.drain()
        except (TieredStoreError, OSError) as error:
            log.warning("keys wait in memory and are not found: %s", error)
            return False
        return True

    def roll(self) -> None:
        """Begin a new file with the next key, unless the current one is empty."""
        with self._guard:
            self.drain()
            current = self._current
            if current is not None and current.item_count:
                self._current = None

    def roll_if_older(self, before_ms: int) -> None:
        with self._guard:
            current = self._current
            self._begun = min(self._begun, self._clock.now_ms())  # the clock may have gone back
            if current is not None and self._begun <= before_ms:
                self.roll()

    def sync(self) -> None:
        """Make everything that was put durable, then say so in the catalogue."""
        with self._syncing:
            with self._guard:
                self.drain()
                moved, self._moved = self._moved, {}
                files, self._unsynced = self._unsynced, {}
                starts, self._starts = self._starts, {}
                counts = {begin: file.item_count for begin, file in files.items()}
                durable: dict[int, Durable] = {}
                put_at = dict(self._put_at)
            if not moved:
                return
            lost: list[Change] = []
            try:
                for begin, file in list(files.items()):
                    if self._flushed(file):
                        durable[begin] = self._durable(file, counts[begin])
                    else:
                        lost += self._watermarks.lost(begin)
                        starts = {place: at for place, at in starts.items() if place[0] != begin}
                sure = {queue: end for queue, end in moved.items() if queue not in self._gaps}
                filled = self._watermarks.filled(durable, starts)
                # A crash may lose these changes: then the keys are put again. So they may wait
                # for the next write.
                self._metadata.stage([*filled, *self._watermarks.moved(sure, put_at), *lost])
            except BaseException:
                with self._guard:
                    self._moved = {**moved, **self._moved}
                    self._unsynced = {**files, **self._unsynced}
                    self._starts = {**self._starts, **starts}
                raise

    def _durable(self, file: IndexStoreFile, item_count: int) -> Durable:
        begin = file.begin_timestamp
        known = self._checksums.get(begin, ItemsChecksum())
        self._checksums[begin] = checksum = known.with_more(file, item_count)
        return Durable(item_count, checksum.items, checksum.hashes)

    def _flushed(self, file: IndexStoreFile) -> bool:
        """Flush the file; returns whether it is durable. If it can never be, it is given up."""
        try:
            file.flush()
            return True
        except BackendRefusedError as error:
            if not file.has_failed:
                raise
            log.error("an index file is rebuilt after a restart: %s", error)
            self.problem = f"rebuilt after a restart: {error}"
        begin = file.begin_timestamp
        with self._guard:
            self._given_up[begin] = file
            if self._current is file:
                self._current = None
            for (held, queue), at in self._known_starts.items():
                if held == begin:
                    self._gaps[queue] = min(at, self._gaps.get(queue, at))
        return False

    def remove(self, file: IndexStoreFile) -> None:
        """Delete a full file that was uploaded; queries no longer read it."""
        with self._guard:
            self.files = tuple(held for held in self.files if held is not file)
            begin = file.begin_timestamp
            starts = self._known_starts
            self._known_starts = {place: at for place, at in starts.items() if place[0] != begin}
            self._checksums.pop(begin, None)
        file.delete()

    def close(self) -> None:
        """Close the files; pending keys are lost unless `sync` came before. Idempotent."""
        with self._guard:
            self._closed = True
            for file in self.files:
                file.close()

    def _is_old(self) -> bool:
        waited = self._clock.monotonic() - self._pending_since
        return bool(self._pending) and waited >= PENDING_SECONDS_MAX

    def _put_some(
        self,
        columns: IndexColumns,
        counts: NDArray[np.int64],
        done: int,
        pending: Sequence[PendingKeys],
    ) -> int:
        """Put keys from `done` on into the file being filled; return how many.

        A message is not split between files, unless it has more keys than any file has room for.
        """
        file = self._file_for(columns.store_timestamps[done:])
        ends = np.cumsum(counts)
        next_message = int(np.searchsorted(ends, done, side="right"))
        fit = int(np.searchsorted(ends, done + file.room, side="right")) - 1
        count = int(ends[fit]) - done if fit >= next_message else 0
        if not count and not file.item_count:
            count = min(file.room, len(columns) - done)
        if count:
            file.put(columns.part(done, done + count))
            self._note_starts(file.begin_timestamp, pending, done, done + count)
            self._unsynced[file.begin_timestamp] = file
        if done + count < len(columns) or not file.room:
            self._current = None
        return count

    def _note_starts(
        self, begin: int, pending: Sequence[PendingKeys], first: int, end: int
    ) -> None:
        at = 0
        for run in pending:
            after = at + len(run.keys.columns)
            place = begin, run.queue
            if at < end and after > first:
                known = self._known_starts.get(place)
                if known is None or run.first_offset < known:
                    self._starts[place] = self._known_starts[place] = run.first_offset
            at = after

    def _file_for(self, times: NDArray[np.int64]) -> IndexStoreFile:
        """The file to put messages of these store times into; begun if there is none."""
        oldest = int(times.min())
        self._late_ms = max(self._late_ms, self._newest - oldest if self._newest else 0)
        file = self._current
        if file is None or oldest < file.begin_timestamp:
            begin = self._free_begin(min(oldest, self._clock.now_ms()))
            if file is None:
                file = self._begin_file(begin or next(filter(self._is_free, itertools.count(1))))
            elif begin is not None:
                file = self._begin_file(begin)
        self._newest = max(self._newest, int(times.max()))
        return file

    def _free_begin(self, latest: int) -> int | None:
        """A begin that no other file has, and not after `latest`; None if there is none.

        If messages came out of order, more will: the file begins that much earlier.
        """
        late_ms = min(self._late_ms, EARLIER_MS_MAX)
        # By whole seconds: then an item's time is as exact as in a file that begins at `latest`.
        earlier = range(latest - -(-late_ms // 1000) * 1000, 0, -1000)
        free = filter(self._is_free, itertools.chain(earlier, range(latest, 0, -1)))
        return next(free, None)

    def _is_free(self, begin: int) -> bool:
        return begin not in self._begins

    def _begin_file(self, begin: int) -> IndexStoreFile:
        file = self._folder.create(begin)
        self._begins.add(begin)
        self._begun = self._clock.now_ms()
        self._newest = self._late_ms = 0
        self._current = file
        self.files = (*self.files, file)
        return file


class LocalFolder:
    """Opens, makes and removes the local index files by their names. It knows of no uploads."""

    def __init__(self, config: StoreConfig, path: Path | None = None) -> None:
        self.path = Path(config.store_path) / FOLDER if path is None else path
        self.slot_count = config.index_slot_count
        self.item_capacity = config.index_item_count
        self.checksums: dict[int, ItemsChecksum] = {}  # of the files as they were opened

    def prepare(self) -> None:
        """Make the directory, and clean up what Java and older versions left in it."""
        with refused_by_system(str(self.path), "open"):
            make_directories(self.path)
            compacting = self.path / COMPACTING
            if compacting.is_dir():
                shutil.rmtree(compacting)
            for name in OLD_NAMES:
                self._rename(self.path / name)

    def begins(self) -> list[int]:
        """The begin timestamps of all index files, in order."""
        with refused_by_system(str(self.path), "list"):
            try:
                entries = list(self.path.iterdir())
            except FileNotFoundError:
                return []
        return sorted(
            int(path.name)
            for path in entries
            if is_begin(path.name) and path.is_file() and not path.is_symlink()
        )

    def open(self, begin: int, durable: Durable | None) -> IndexStoreFile | None:
        """The file, mended; None if it is damaged or has the wrong length.

        In a file of ours only the items known to be durable are kept: the rest is put again. In
        another program's file all are kept, as nothing is known about them.
        """
        path = self.path / str(begin)
        if path.is_file() and self._is_of_old_version(path):
            log.warning("%s: an index file of RocketMQ 5.1; it is rebuilt", path)
            return None
        durable = self.counted(begin, durable)
        try:
            file = IndexStoreFile.open(
                path,
                slot_count=self.slot_count,
                item_capacity=self.item_capacity,
                item_count=None if durable is None else durable.item_count,
            )
            self._check_items(file, durable)
            return file
        except (SegmentCorruptError, InvalidConfigError) as error:
            log.warning("an index file is damaged and is rebuilt: %s", error)
            return None

    def open_to_read(self, begin: int) -> IndexStoreFile:
        """The file as it is; another process may be filling it."""
        return IndexStoreFile.open(
            self.path / str(begin),
            slot_count=self.slot_count,
            item_capacity=self.item_capacity,
            read_only=True,
        )

    def _check_items(self, file: IndexStoreFile, durable: Durable | None) -> None:
        """SegmentCorruptError if they are not what was made durable; then the file is closed."""
        if durable is None or durable.items is None:
            return
        try:
            found = ItemsChecksum().with_more(file, durable.item_count)
            has_hashes = file.notes is not None and durable.hashes is not None
            if found.items != durable.items or (has_hashes and found.hashes != durable.hashes):
                reason = "items with another checksum"
                raise SegmentCorruptError(str(file.path), reason, position=0)
        except BaseException:
            file.close()
            raise
        self.checksums[file.begin_timestamp] = found

    def check_size(self, begin: int) -> None:
        """InvalidConfigError for a file with the size of other settings."""
        path = self.path / str(begin)
        with refused_by_system(str(path), "open"):
            held = path.stat().st_size
        if held and not self._is_of_old_version(path):
            FileSizes.of(path, self.slot_count, self.item_capacity).check(held)

    def counted(self, begin: int, durable: Durable | None) -> Durable | None:
        """The items that count in a file, given its note in the catalogue. None: all of them, in
        another program's file."""
        return Durable(0) if durable is None and self.is_ours(begin) else durable

    def is_ours(self, begin: int) -> bool:
        """Whether we began the file. If so, nothing in it counts until the catalogue notes it."""
        return notes_path(self.path / str(begin)).exists()

    def sync(self) -> None:
        """Make all files and their names durable: another program may not have done so."""
        with refused_by_system(str(self.path), "sync"):
            for begin in self.begins():
                fsync_file(self.path / str(begin))
            fsync_directory(self.path)

    def last_put(self, file: IndexStoreFile) -> tuple[int, int]:
        """A sort key for when keys were last put into a file of ours: greater is later."""
        try:
            written = notes_path(file.path).stat().st_mtime_ns
        except OSError:
            written = 0
        return written, file.begin_timestamp

    def create(self, begin: int) -> IndexStoreFile:
        with refused_by_system(str(self.path), "create"):
            make_directories(self.path)  # somebody may have deleted it since the start
        return IndexStoreFile.create(
            self.path, begin, slot_count=self.slot_count, item_capacity=self.item_capacity
        )

    def remove(self, begin: int) -> None:
        """Remove the file and what lies beside it. Idempotent."""
        path = self.path / str(begin)
        with refused_by_system(str(path), "delete"):
            remove_durably(path)

    def remove_stray_notes(self) -> None:
        """Remove notes of hashes whose index file is durably gone: see `remove_durably`."""
        stray = [path for path in self.path.glob("*.keys") if not path.with_suffix("").exists()]
        if stray:
            fsync_directory(self.path)
        for path in stray:
            path.unlink(missing_ok=True)

    def _rename(self, path: Path) -> None:
        """Give a file of 5.1 the name that later versions use: its begin timestamp."""
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(_BEGIN_POSITION)
            begin = int.from_bytes(file.read(8), signed=True)
        target = self.path / str(begin)
        if begin <= 0 or target.exists():
            path.unlink()
        else:
            path.rename(target)
        fsync_directory(self.path)

    def _is_of_old_version(self, path: Path) -> bool:
        return is_legacy_written(
            file_bytes=path.stat().st_size,
            slot_count=self.slot_count,
            item_capacity=self.item_capacity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingKeys:
    """Keys of one run of a queue that are in no file yet."""

    queue: QueueId
    first_offset: int
    keys: RunKeys

    def behind(self, done: int) -> PendingKeys:
        """Without the first `done` keys, which are in a file by now."""
        if done <= 0:
            return self
        counts = self.keys.key_counts
        ends = np.cumsum(counts)
        first = int(np.searchsorted(ends, done, side="right"))
        rest = counts[first:].copy()
        rest[0] = ends[first] - done
        return replace(self, keys=RunKeys(columns=self.keys.columns.part(done), key_counts=rest))


def still_pending(runs: Sequence[PendingKeys], done: int) -> list[PendingKeys]:
    """The runs without their first `done` keys."""
    left = []
    for run in runs:
        count = len(run.keys.columns)
        if done < count:
            left.append(run.behind(done))
        done = max(0, done - count)
    return left
