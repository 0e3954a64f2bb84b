"""Taking keys: runs that wait in memory, the file being filled, and those that are full.

What lives here: `Filling`. It knows nothing of the backend; what becomes of full files is in
`compact_upload`, and what was there at an open in `local_folder`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.metadata import Change, MetadataStore
from tieredstore.driver.runtime import Clock
from tieredstore.index.items_checksum import ItemsChecksum
from tieredstore.index.local_folder import LocalFolder
from tieredstore.index.rows import IndexColumns
from tieredstore.index.run_keys import RunKeys
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.index.waiting_keys import Waiting, joined, left_behind
from tieredstore.index.watermarks import Durable, QueueId, Watermarks
from tieredstore.model.errors import BackendRefusedError, StoreClosedError, TieredStoreError
from tieredstore.model.printable import log_of

log = log_of(__name__)

WAITING_KEYS_MAX: Final = 16_384  # of 44 bytes each
WAITING_MS_MAX: Final = 1_000
SYNC_MS: Final = 30_000
EARLIER_MS_MAX: Final = 3_600_000  # that a file begins before the first of its messages


class Filling:
    """The local files, and the runs that are not in one yet.

    * A key is lost by no failure: what could not be put stays in memory, and the watermarks move
      only when the files that hold it are synced.
    * A file that a disk could not sync is given up: it is asked as long as it is open, the
      watermarks go back, and its messages are put again after a restart.
    * A file never begins later than any of its messages was stored: RocketMQ asks only files that
      begin before the end of its question. A message that is older begins another file.
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
        self._begins: set[int] = set()  # of all files there are: their names
        self._begun = 0
        self._newest = 0  # store time in the file being filled
        self._late_ms = 0  # so much older a message was than one put into that file before it
        self._waiting: list[Waiting] = []
        self._waiting_keys = 0
        self._waiting_since = 0
        self._taken: dict[QueueId, int] = {}
        self._moved: dict[QueueId, int] = {}
        self._put_at: dict[QueueId, int] = {}
        self._moved_since = 0
        self._unsynced: dict[int, IndexStoreFile] = {}
        self._checksums: dict[int, ItemsChecksum] = {}  # by begin; of who syncs
        self._starts: dict[tuple[int, QueueId], int] = {}
        self._known_starts: dict[tuple[int, QueueId], int] = {}
        self._given_up: dict[int, IndexStoreFile] = {}
        self._gaps: dict[QueueId, int] = {}  # from here on a given up file held messages
        self.problem: str | None = None
        self._closed = False

    def open(self, files: Sequence[IndexStoreFile], *, begins: Iterable[int]) -> None:
        """Go on with these; the one that was put into last is filled further if it can be.

        `begins` are those of files that are not here any more.
        """
        with self._guard:
            self._known_starts = self._watermarks.starts()
            self._checksums = dict(self._folder.checksums)
            # One that was begun by somebody else would never get a filter.
            open_ones = [file for file in files if file.notes is not None and file.room]
            last = max(open_ones, key=self._folder.last_put, default=None)
            for file in files:
                if file is not last:
                    file.seal()
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
        """How many files are being filled, and how many wait for their upload."""
        files, current = self.files, self._current
        unsealed = sum(file is current for file in files)
        return unsealed, len(files) - unsealed

    @property
    def is_due(self) -> bool:
        """Whether so much time has passed that the watermarks should move."""
        return bool(self._moved) and self._clock.now_ms() - self._moved_since >= SYNC_MS

    def taken(self, queue: QueueId) -> int | None:
        """Below this everything of the queue was put; None if nothing was since the open.

        Not what a given up file has: nobody knows how long it can be asked.
        """
        return self._gaps.get(queue, self._taken.get(queue))

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
                self._waiting.append(Waiting(queue=queue, first_offset=first_offset, keys=keys))
                self._waiting_keys += len(keys.columns)
            if not self._moved:
                self._moved_since = now
            self._taken[queue] = self._moved[queue] = end_offset
            self._put_at[queue] = now
            if first_offset <= self._gaps.get(queue, -1):  # all of it is put again
                del self._gaps[queue]

    def drain(self) -> None:
        """Put what waits into files. Raises what a disk raises: then the rest goes on waiting."""
        with self._guard:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                columns = joined([each.keys.columns for each in waiting])
                counts = np.concatenate([each.keys.key_counts for each in waiting])
                done = 0
                try:
                    while done < len(columns):
                        done += self._put_some(columns, counts, done, waiting)
                finally:
                    if done < len(columns):
                        self._waiting = left_behind(waiting, done)
                    self._waiting_keys = sum(len(each.keys.columns) for each in self._waiting)

    def has_drained(self) -> bool:
        """Put what waits into files; False where some of it still waits."""
        try:
            self.drain()
        except (TieredStoreError, OSError) as error:
            log.warning("keys wait in memory and are not found: %s", error)
            return False
        return True

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
            self._begun = min(self._begun, self._clock.now_ms())  # it may have been set back
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
                self._metadata.apply([*filled, *self._watermarks.moved(sure, put_at), *lost])
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
        """False if it never will be: then it is given up."""
        try:
            file.flush()
            return True
        except BackendRefusedError as error:
            if not file.has_failed:
                raise
            log.error("an index file is made again after a restart: %s", error)
            self.problem = f"made again after a restart: {error}"
        begin = file.begin_timestamp
        with self._guard:
            file.seal()
            self._given_up[begin] = file
            if self._current is file:
                self._current = None
            for (held, queue), at in self._known_starts.items():
                if held == begin:
                    self._gaps[queue] = min(at, self._gaps.get(queue, at))
        return False

    def remove(self, file: IndexStoreFile) -> None:
        """A full file that is uploaded: it is asked no more, and goes."""
        with self._guard:
            self.files = tuple(each for each in self.files if each is not file)
            begin = file.begin_timestamp
            starts = self._known_starts
            self._known_starts = {place: at for place, at in starts.items() if place[0] != begin}
            self._checksums.pop(begin, None)
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
        waiting: Sequence[Waiting],
    ) -> int:
        """How many of the keys from `done` on were put into the file being filled.

        A message stays in one file, unless it has more keys than any file has room for.
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
            self._note_starts(file.begin_timestamp, waiting, done, done + count)
            self._unsynced[file.begin_timestamp] = file
        if done + count < len(columns) or not file.room:
            file.seal()
            self._current = None
        return count

    def _note_starts(self, begin: int, waiting: Sequence[Waiting], first: int, end: int) -> None:
        at = 0
        for each in waiting:
            after = at + len(each.keys.columns)
            place = begin, each.queue
            if at < end and after > first:
                known = self._known_starts.get(place)
                if known is None or each.first_offset < known:
                    self._starts[place] = self._known_starts[place] = each.first_offset
            at = after

    def _file_for(self, times: NDArray[np.int64]) -> IndexStoreFile:
        """The one to put messages of these store times into; begun where there is none."""
        oldest = int(times.min())
        self._late_ms = max(self._late_ms, self._newest - oldest if self._newest else 0)
        file = self._current
        if file is None or oldest < file.begin_timestamp:
            begin = self._free_begin(min(oldest, self._clock.now_ms()))
            if file is None:
                file = self._begin_file(begin or next(filter(self._is_free, itertools.count(1))))
            elif begin is not None:
                file.seal()
                file = self._begin_file(begin)
        self._newest = max(self._newest, int(times.max()))
        return file

    def _free_begin(self, latest: int) -> int | None:
        """A begin that is no other file's, and not after `latest`; None where there is none.

        Where messages came out of order, others will: so much earlier it is.
        """
        late_ms = min(self._late_ms, EARLIER_MS_MAX)
        # In whole seconds: then an item's time is as exact as in a file that begins at `latest`.
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
