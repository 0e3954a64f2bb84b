"""A directory of mapped files that together form one long run of bytes.

<directory>/<start offset in 20 digits>     all have `file_bytes`; each begins where the last ends
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from tieredstore.codec.checks import Buffer
from tieredstore.codec.names import parse_local_file_name
from tieredstore.driver.durable import fsync_directory, make_directories
from tieredstore.local.mapped_file import MappedFile, MappedFiles
from tieredstore.model.errors import SegmentError, SegmentNotFoundError
from tieredstore.model.printable import log_of

log = log_of(__name__)


def files_in(directory: str) -> Iterator[tuple[str, int, int]]:
    """Path, start offset and size of every file; folders are skipped."""
    if not os.path.isdir(directory):
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                continue
            try:
                start = parse_local_file_name(entry.name)
            except ValueError:
                raise SegmentError(
                    entry.path, "the name is no offset in 20 digits: move the file elsewhere"
                ) from None
            yield entry.path, start, entry.stat().st_size


_start_of = attrgetter("start_offset")


class Gap(NamedTuple):
    """Offsets that no file holds, between existing files."""

    start: int
    end: int


class MappedFileQueue:
    """Files of one size, one after another, found by offset.

    * No file is opened before it is read or written: an idle queue costs only a list.
    * The list of files is replaced, never changed, so readers need no lock. One thread at a time
      may call `append`, `roll` and `truncate_dirty`; any thread may call the rest.
    * A missing offset is None, even offset 0 (RocketMQ returns its first file there).
    * A gap is reported in `gaps` and logged: reads around it are right, and refusing the whole
      directory would hide more than the one missing file.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        file_bytes: int,
        files: MappedFiles,
        preallocate: bool = False,
    ) -> None:
        self.directory = os.fspath(directory)
        self.file_bytes = file_bytes
        self.gaps: list[Gap] = []
        self._open_files = files
        self._preallocate = preallocate
        self._files: tuple[MappedFile, ...] = ()
        self._spares: list[MappedFile] = []  # made in advance: they follow the last file
        self._flushed = 0
        self._grow_guard = threading.Lock()
        self._flush_guard = threading.Lock()

    @property
    def files(self) -> tuple[MappedFile, ...]:
        return self._files

    @property
    def read_only(self) -> bool:
        return self._open_files.read_only

    @property
    def min_offset(self) -> int | None:
        files = self._files
        return files[0].start_offset if files else None

    @property
    def max_offset(self) -> int:
        """The end of what was appended; 0 without files."""
        files = self._files
        return files[-1].start_offset + files[-1].wrote if files else 0

    @property
    def flushed_offset(self) -> int:
        """Everything below this offset is on disk."""
        return max(self._flushed, self.min_offset or 0)

    def load(self) -> None:
        """Find the files. All count as full and synced until recovery determines the end."""
        starts: list[int] = []
        for path, start, size in sorted(files_in(self.directory)):
            if size not in (0, self.file_bytes):
                raise SegmentError(
                    path, f"the file has {size} bytes, the setting says {self.file_bytes}"
                )
            if size:
                starts.append(start)
            elif not self.read_only:
                # The file was created, but its length never synced. Others may follow it: a power
                # cut keeps any of the files that were not synced.
                self._file(start).destroy()
        files = tuple(map(self._file, starts))
        self.gaps = []
        for before, after in pairwise(files):
            if after.start_offset < before.end_offset:
                raise SegmentError(after.path, "the file starts before the last one ends")
            if after.start_offset > before.end_offset:
                self.gaps.append(Gap(before.end_offset, after.start_offset))
                log.error("%s: no file holds the bytes from %d on", after.path, before.end_offset)
        self._files = files
        self._flushed = self.max_offset

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds, or will hold, the byte at this offset."""
        files = self._files
        if not files:
            return None
        index = (offset - files[0].start_offset) // self.file_bytes
        if not 0 <= index < len(files) or files[index].start_offset > offset:
            index = bisect_right(files, offset, key=_start_of) - 1  # there may be a gap before it
        if index < 0 or offset >= files[index].end_offset:
            return None
        return files[index]

    def files_from(self, offset: int) -> tuple[MappedFile, ...]:
        """The file that holds the offset, and those after it."""
        files = self._files
        index = bisect_right(files, offset, key=_start_of) - 1
        if index >= 0 and files[index].end_offset <= offset:
            index += 1
        return files[max(0, index) :]

    def read(self, offset: int, length: int) -> bytes | None:
        """Exactly these bytes, from a single file; None if not all of them are there."""
        file = self.find(offset)
        if file is None or offset - file.start_offset + length > file.wrote:
            return None
        try:
            return file.read(offset - file.start_offset, length)
        except SegmentNotFoundError:  # deleted just now
            self.forget_gone()
            return None

    def forget_gone(self) -> bool:
        """Forget the oldest files if another process has deleted them; returns whether it has.

        A store that may write deletes its files itself, so there a missing file is damage.
        """
        files = self._files
        count = 0
        while count < len(files) and not os.path.exists(files[count].path):
            count += 1
        if not count or not self.read_only:
            return False
        self._files = files[count:]
        return True

    def file_for_append(self, start_offset: int = 0) -> MappedFile:
        """The last file, or the next one if it is full; the first one holds `start_offset`."""
        files = self._files
        if files and not files[-1].full:
            return files[-1]
        return self.roll(start_offset)

    def roll(self, start_offset: int = 0, *, sparse: bool = False) -> MappedFile:
        """Begin the next file; a sparse one takes no room until it is written."""
        with self._grow_guard:
            files = self._files
            if files:
                start = files[-1].end_offset
            else:
                start = start_offset - start_offset % self.file_bytes
                self._flushed = start
            file = self._spares.pop(0) if self._spares else self._create(start, sparse=sparse)
            self._files = (*files, file)
            return file

    def reserve(self, count: int = 1) -> None:
        """Create the next `count` files now; `roll` then uses them and cannot fail."""
        with self._grow_guard:
            if not self._files:
                return
            while len(self._spares) < count:
                last = self._spares[-1] if self._spares else self._files[-1]
                self._spares.append(self._create(last.end_offset))

    def append(self, data: Buffer, start_offset: int = 0) -> int:
        """Append bytes, to as many files as needed; returns the offset of the first byte."""
        view = memoryview(data)
        file = self.file_for_append(start_offset)
        offset = file.start_offset + file.wrote
        while True:
            room = file.size - file.wrote
            file.append(view[:room])
            view = view[room:]
            if not view:
                return offset
            file = self.roll()

    def flush(self) -> int:
        """Sync everything appended so far; returns the new `flushed_offset`."""
        with self._flush_guard:
            for file in self.files_from(self._flushed):
                try:
                    file.flush()
                except SegmentNotFoundError:
                    if file in self._files:
                        raise
                    continue  # deleted meanwhile, so not needed
                self._flushed = file.start_offset + file.flushed
                if file.flushed < file.size:
                    break
            return self.flushed_offset

    def sync_from(self, offset: int) -> None:
        """Sync the files from this offset on, even if they count as synced."""
        with self._flush_guard:
            for file in self.files_from(offset):
                file.mark_unflushed()
                file.flush()

    def write_again(self, offset: int) -> None:
        """Write everything from this offset on once more: see `MappedFile.write_again`."""
        for file in self.files_from(offset):
            file.write_again(max(0, offset - file.start_offset))

    def truncate_dirty(self, offset: int, *, keeps_one: bool = False) -> None:
        """End everything at this offset: zeros follow it, and files that start there or after it
        are deleted, unless one that starts there is the first.

        Java takes the first unit of an empty file at the end of a queue for a message, or does not
        load the store at all.

        With `keeps_one` the first of these stays, emptied, if the file of the offset was deleted
        meanwhile: without any file, the place of the next byte would be unknown.
        """
        with self._flush_guard:
            with self._grow_guard:  # other threads may reserve files and delete old ones meanwhile
                kept = tuple(file for file in self._files if file.start_offset < offset)
                kept = kept or tuple(one for one in self._files if one.start_offset == offset)
                if keeps_one and not kept:
                    kept = self._files[:1]
                gone = (*self._files[len(kept) :], *self._spares)
                self._files, self._spares = kept, []
                self._destroy(gone[::-1])
            if kept and offset < kept[-1].end_offset:
                kept[-1].truncate_to(max(0, offset - kept[-1].start_offset))
            self._flushed = self.max_offset

    def delete_before(self, offset: int, *, count_max: int | None = None) -> list[MappedFile]:
        """Delete the oldest files that end at or below this offset, never the last one.

        A file that cannot be deleted stays, with those after it: the next try begins with it. If it
        were only forgotten, it would be back after a restart, with a gap after it.
        """
        count = 0
        with self._grow_guard:  # the appending thread may be adding the next file
            files = self._files
            last = len(files) - 1 if count_max is None else min(len(files) - 1, count_max)
            while count < last and files[count].end_offset <= offset:
                count += 1
            self._files = files[count:]
        try:
            self._destroy(files[:count])
        except OSError:
            with self._grow_guard:
                starts = [file.start_offset for file in files[:count] if os.path.exists(file.path)]
                self._files = (*map(self._file, starts), *self._files)
            raise
        return list(files[:count])

    def close(self) -> None:
        """Release every map without a sync; delete files made in advance. Idempotent."""
        self._drop_spares()
        for file in self._files:
            file.close()

    def destroy(self) -> None:
        """Delete every file, and the directory if nothing else is in it."""
        self._drop_spares()
        files, self._files = self._files, ()
        self._destroy(files[::-1])
        self._flushed = 0
        if os.path.isdir(self.directory) and not os.listdir(self.directory):
            os.rmdir(self.directory)
            fsync_directory(os.path.dirname(self.directory))

    def _file(self, start: int) -> MappedFile:
        return MappedFile(
            self.directory,
            start_offset=start,
            size=self.file_bytes,
            files=self._open_files,
            wrote=self.file_bytes,
        )

    def _create(self, start: int, *, sparse: bool = False) -> MappedFile:
        make_directories(self.directory)
        return MappedFile.create(
            self.directory,
            start_offset=start,
            size=self.file_bytes,
            files=self._open_files,
            preallocate=self._preallocate and not sparse,
        )

    def _drop_spares(self) -> None:
        with self._grow_guard:
            spares, self._spares = tuple(self._spares), []
        self._destroy(spares[::-1])

    def _destroy(self, files: tuple[MappedFile, ...]) -> None:
        """Delete files in this order. A crash must leave no gap, and of a run that is cut or
        removed the beginning."""
        for file in files:
            file.destroy()
        if files:
            fsync_directory(self.directory)
