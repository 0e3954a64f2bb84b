"""Taking keys: runs that wait in memory, the file being filled, and those that are full.

What lives here: `Filling`. It knows nothing of the backend; what becomes of full files is in
`compact_upload`, and what was there at an open in `local_folder`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.runtime import Clock
from tieredstore.index.local_folder import LocalFolder
from tieredstore.index.rows import IndexColumns
from tieredstore.index.run_keys import RunKeys
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.model.errors import StoreClosedError

log = logging.getLogger(__name__)

WAITING_KEYS_MAX: Final = 16_384  # of 44 bytes each
WAITING_MS_MAX: Final = 1_000
SYNC_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    queue: QueueId
    first_offset: int
    keys: RunKeys


class Filling:
    """The local files, and the runs that are not in one yet.

    * A key is lost by no failure: what could not be put stays in memory, and the watermarks move
      only when the files that hold it are synced.
    * `files` are the full ones, oldest first, and the one being filled; it is replaced, never
      changed. Nothing is in it that is not to be asked.
    * Any thread may call anything. A file is synced without keeping anyone from putting.
    """

    def __init__(
        self, folder: LocalFolder, watermarks: Watermarks, metadata: MetadataStore, clock: Clock
    ) -> None:
        self.files: tuple[IndexStoreFile, ...] = ()
        self._folder = folder
        self._watermarks = watermarks
        self._metadata = metadata
        self._clock = clock
        self._guard = threading.RLock()  # of everything below
        self._syncing = threading.Lock()
        self._current: IndexStoreFile | None = None
        self._last_begin = 0
        self._waiting: list[_Waiting] = []
        self._waiting_keys = 0
        self._waiting_since = 0
        self._taken: dict[QueueId, int] = {}
        self._moved: dict[QueueId, int] = {}
        self._moved_since = 0
        self._unsynced: dict[int, IndexStoreFile] = {}
        self._starts: dict[tuple[int, QueueId], int] = {}
        self._known_starts: dict[tuple[int, QueueId], int] = {}
        self._closed = False

    def open(self, files: Sequence[IndexStoreFile], *, last_begin: int) -> None:
        """Go on with these; the last one is filled further if it can be."""
        with self._guard:
            self._known_starts = self._watermarks.starts()
            for file in files[:-1]:
                file.seal()
            last = files[-1] if files else None
            # One that was begun by somebody else would never get a filter.
            if last is not None and (last.notes is None or not last.room):
                last.seal()
            self._current = None if last is None or last.is_sealed else last
            self._last_begin = max([last_begin, *(file.begin_timestamp for file in files)])
            self.files = tuple(files)

    @property
    def full(self) -> list[IndexStoreFile]:
        """The files that take no more keys, oldest first."""
        return [file for file in self.files if file is not self._current]

    @property
    def is_due(self) -> bool:
        """Whether so much time has passed that the watermarks should move."""
        return bool(self._moved) and self._clock.now_ms() - self._moved_since >= SYNC_MS

    def taken(self, queue: QueueId) -> int | None:
        """Below this everything of the queue was put; None if nothing was since the open."""
        return self._taken.get(queue)

    def put(self, queue: QueueId, first_offset: int, end_offset: int, keys: RunKeys) -> None:
        """Take the keys of one queue's next messages. After an error nothing of them was taken."""
        with self._guard:
            if self._closed:
                raise StoreClosedError("the index is closed")
            if self._waiting_keys + len(keys.columns) > WAITING_KEYS_MAX or self._is_old():
                self.drain()
            now = self._clock.now_ms()
            if len(keys.columns):
                if not self._waiting:
                    self._waiting_since = now
                self._waiting.append(_Waiting(queue=queue, first_offset=first_offset, keys=keys))
                self._waiting_keys += len(keys.columns)
            if not self._moved:
                self._moved_since = now
            self._taken[queue] = self._moved[queue] = end_offset

    def drain(self) -> None:
        """Put what waits into files. Raises what a disk raises: then the rest goes on waiting."""
        with self._guard:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                columns = _joined([each.keys.columns for each in waiting])
                counts = np.concatenate([each.keys.key_counts for each in waiting])
                done = 0
                try:
                    while done < len(columns):
                        done += self._put_some(columns, counts, done, waiting)
                finally:
                    if done < len(columns):
                        self._waiting = _behind(waiting, done)
                    self._waiting_keys = sum(len(each.keys.columns) for each in self._waiting)

    def roll(self) -> None:
        """Begin a new file with the next key, if there is one in this."""
        with self._guard:
            self.drain()
            current = self._current
            if current is not None and current.item_count:
                current.seal()
                self._current = None

    def roll_if_older(self, before_ms: int) -> None:
        with self._guard:
            current = self._current
            if current is not None and current.begin_timestamp <= before_ms:
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
            if not moved:
                return
            try:
                for file in files.values():
                    file.flush()
                self._metadata.apply(
                    [*self._watermarks.filled(counts, starts), *self._watermarks.moved(moved)]
                )
            except BaseException:
                with self._guard:
                    self._moved = {**moved, **self._moved}
                    self._unsynced = {**files, **self._unsynced}
                    self._starts = {**self._starts, **starts}
                raise

    def remove(self, file: IndexStoreFile) -> None:
        """A full file that is uploaded: it is asked no more, and goes."""
        with self._guard:
            self.files = tuple(each for each in self.files if each is not file)
            begin = file.begin_timestamp
            starts = self._known_starts
            self._known_starts = {place: at for place, at in starts.items() if place[0] != begin}
        file.delete()

    def close(self) -> None:
        """Let go of the files; what waits is lost unless `sync` came before. Idempotent."""
        with self._guard:
            self._closed = True
            for file in self.files:
                file.close()

    def _is_old(self) -> bool:
        return bool(self._waiting) and self._clock.now_ms() - self._waiting_since >= WAITING_MS_MAX

    def _put_some(
        self,
        columns: IndexColumns,
        counts: NDArray[np.int64],
        done: int,
        waiting: Sequence[_Waiting],
    ) -> int:
        """How many of the keys from `done` on were put into the file being filled.

        A message stays in one file, unless it has more keys than any file has room for.
        """
        file = self._current or self._begin_file()
        ends = np.cumsum(counts)
        next_message = int(np.searchsorted(ends, done, side="right"))
        fit = int(np.searchsorted(ends, done + file.room, side="right")) - 1
        count = int(ends[fit]) - done if fit >= next_message else 0
        if not count and not file.item_count:
            count = min(file.room, len(columns) - done)
        if count:
            file.put(columns.part(done, done + count))
            self._note_starts(file.begin_timestamp, waiting, done, done + count)
            self._unsynced[file.begin_timestamp] = file
        if done + count < len(columns) or not file.room:
            file.seal()
            self._current = None
        return count

    def _note_starts(self, begin: int, waiting: Sequence[_Waiting], first: int, end: int) -> None:
        at = 0
        for each in waiting:
            after = at + len(each.keys.columns)
            place = begin, each.queue
            if at < end and after > first:
                known = self._known_starts.get(place)
                if known is None or each.first_offset < known:
                    self._starts[place] = self._known_starts[place] = each.first_offset
            at = after

    def _begin_file(self) -> IndexStoreFile:
        begin = max(self._clock.now_ms(), self._last_begin + 1)
        file = self._folder.create(begin)
        self._last_begin = begin
        self._current = file
        self.files = (*self.files, file)
        return file


def _joined(parts: Sequence[IndexColumns]) -> IndexColumns:
    if len(parts) == 1:
        return parts[0]
    return IndexColumns(
        key_hashes=np.concatenate([each.key_hashes for each in parts]),
        topic_ids=np.concatenate([_column(each.topic_ids, len(each)) for each in parts]),
        queue_ids=np.concatenate([_column(each.queue_ids, len(each)) for each in parts]),
        log_offsets=np.concatenate([each.log_offsets for each in parts]),
        message_bytes=np.concatenate([each.message_bytes for each in parts]),
        store_timestamps=np.concatenate([each.store_timestamps for each in parts]),
    )


def _column(values: NDArray[np.int64] | int, count: int) -> NDArray[np.int64]:
    return np.full(count, values, np.int64) if isinstance(values, int) else values


def _behind(waiting: Sequence[_Waiting], done: int) -> list[_Waiting]:
    """What is left of the runs behind so many keys."""
    left = []
    for each in waiting:
        count = len(each.keys.columns)
        if done < count:
            left.append(each if done <= 0 else _cut(each, done))
        done = max(0, done - count)
    return left


def _cut(waiting: _Waiting, done: int) -> _Waiting:
    counts = waiting.keys.key_counts
    ends = np.cumsum(counts)
    first = int(np.searchsorted(ends, done, side="right"))
    rest = counts[first:].copy()
    rest[0] = ends[first] - done
    keys = RunKeys(columns=waiting.keys.columns.part(done), key_counts=rest)
    return _Waiting(queue=waiting.queue, first_offset=waiting.first_offset, keys=keys)
