"""One file of fixed size, read and written through a memory map.

A file gets its full size at once, because RocketMQ refuses any other: it is created empty, extended
by one ftruncate (so a crash leaves it empty or of full size) and, for a commit log, its blocks are
allocated, so that a full disk is an error here and not a signal in the middle of a write.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from tieredstore.codec.checks import Buffer
from tieredstore.codec.names import local_file_name
from tieredstore.driver.durable import fsync_directory, read_all, write_all
from tieredstore.model.errors import (
    BackendRefusedError,
    OffsetOutOfRangeError,
    SegmentError,
    SegmentNotFoundError,
    StoreClosedError,
    system_says,
)

_PAGE_BYTES: Final = 4_096
_STEP_BYTES_MAX: Final = 1 << 20
_CANNOT: Final = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
OPEN_MAX_LEAST: Final = 64
OPEN_MAX_MOST: Final = 8192
DESCRIPTORS_SHARE: Final = 4  # a file takes two; the process needs the rest for other things
_ZEROS: Final = bytes(1 << 20)
WRITE_BYTES_MIN: Final = 16 * 1024  # from here on a write call costs less than page faults


class Blocks:
    """How far a region that is filled from start to limit has disk blocks.

    * Allocations grow with the filled size: thousands of queues with a few messages take a page
      each, and a long file allocates seldom.
    * Bytes before the first requested position were written earlier, so they have blocks.
    * A file system that cannot allocate in advance is assumed to have room.
    """

    __slots__ = ("_limit", "_start", "end")

    def __init__(self, limit: int, *, start: int = 0) -> None:
        self._start = start
        self._limit = limit
        self.end = start

    def reserve(self, descriptor: int, position: int, end: int, path: str) -> None:
        """Allocate blocks for these bytes. Raises BackendRefusedError without room: then nothing
        may be written."""
        if end <= self.end:
            return
        first = max(position, self.end)
        more = end + min(end - self._start, _STEP_BYTES_MAX)
        wanted = max(end, min(-(-more // _PAGE_BYTES) * _PAGE_BYTES, self._limit))
        try:
            self.end = _allocate(descriptor, first, wanted)
        except OSError:
            try:
                self.end = _allocate(descriptor, first, end)
            except OSError as error:
                raise BackendRefusedError(
                    path, "make room for an append", system_says(error)
                ) from error

    def forget(self) -> None:
        """Allocate again from the start: the region was cut."""
        self.end = self._start


def _allocate(descriptor: int, start: int, end: int) -> int:
    try:
        os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    return end


def open_files_max() -> int:
    """How many files may be open, by the limit of the process; 256 if that is 1 024."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return OPEN_MAX_MOST
    return max(OPEN_MAX_LEAST, min(OPEN_MAX_MOST, allowed // DESCRIPTORS_SHARE))


class Mapping:
    """One opening of a file; map and descriptor are closed with the last reference to it.

    So a thread in the middle of a read or a sync keeps it alive, and closing never has to wait.
    """

    __slots__ = ("descriptor", "map")

    def __init__(self, descriptor: int, map: mmap.mmap) -> None:
        self.descriptor = descriptor
        self.map = map

    @classmethod
    def open(cls, path: str, size: int, *, read_only: bool) -> Mapping:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SegmentNotFoundError(path) from error
        except OSError as error:
            raise BackendRefusedError(path, "open", system_says(error)) from error
        try:
            held = os.fstat(descriptor).st_size
            if held != size:  # access to a map beyond the end of its file kills the process
                raise SegmentError(path, f"the file has {held} bytes now, not {size}")
            return cls(descriptor, mmap.mmap(descriptor, size, access=access))
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, SegmentError):
                raise
            raise BackendRefusedError(path, "map", system_says(error)) from error
        except BaseException:
            os.close(descriptor)
            raise

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        _close(self.descriptor)  # a default argument, since `os` may be gone when Python ends


class MappedFiles:
    """The files that are open now: at most `open_max`, however many files exist.

    A file is opened on first use. When one too many is open, a file that was not used since the
    last check is closed (a clock with second chance), files without unsynced bytes first. It is
    reopened on its next use. Each open file takes two descriptors.
    """

    def __init__(self, *, open_max: int | None = None, read_only: bool = False) -> None:
        self.open_max = open_files_max() if open_max is None else open_max
        self.read_only = read_only
        self._open: deque[MappedFile] = deque()
        self._guard = threading.Lock()

    @property
    def open_count(self) -> int:
        return len(self._open)

    def open(self, file: MappedFile) -> Mapping:
        """Map a file that has no mapping, unless another thread has just done so."""
        with self._guard:
            if file.mapping is not None:
                return file.mapping
            file.check_open()
            mapping = Mapping.open(file.path, file.size, read_only=self.read_only)
            file.mapping = mapping
            self._open.append(file)
            while len(self._open) > self.open_max:
                self._drop_one(file)
            return mapping

    def forget(self, file: MappedFile) -> None:
        with self._guard:
            if file.mapping is not None:
                file.mapping = None
                self._open.remove(file)

    def _drop_one(self, newest: MappedFile) -> None:
        count = len(self._open)
        for turn in range(3 * count):
            file = self._open.popleft()
            spared = file is newest or file.touched or (file.dirty and turn < 2 * count)
            if not spared:
                file.mapping = None
                return
            file.touched = False
            self._open.append(file)
        self._open.popleft().mapping = None  # open_max is 0


def data_extents(descriptor: int, position: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are not holes: a hole was never written and need not be read."""
    while position < end:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            stop = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole up to the end
                return
            start, stop = position, end  # a file system that cannot tell
        if start >= end:
            return
        yield start, min(stop, end)
        position = stop


class MappedFile:
    """A run of `size` bytes at `start_offset` of a log or queue, in the file named after it.

    * `wrote` is where the next append goes: any thread may read the bytes below it at any time.
      `flushed` is how far they are known to be on disk. Neither is stored anywhere.
    * One thread at a time may call `append`, `write_at` and `truncate_to`.
    * After a failed sync all later syncs fail: the kernel drops the pages that it could not write
      and would report success the next time.
    * A view does not keep `close` or `destroy` from working: its bytes are freed with the view.
    """

    __slots__ = (
        *("_blocks", "_closed", "_failure", "_files", "_gone", "_name_pending", "_rewritten"),
        *("directory", "flushed", "mapping", "size", "start_offset", "touched", "wrote"),
    )

    def __init__(
        self, directory: str, *, start_offset: int, size: int, files: MappedFiles, wrote: int = 0
    ) -> None:
        self.directory = directory
        self.start_offset = start_offset
        self.size = size
        self.wrote = wrote
        self.flushed = wrote
        self.mapping: Mapping | None = None
        self.touched = False
        self._files = files
        self._blocks = Blocks(size)
        self._failure: OSError | None = None
        self._rewritten = False
        self._name_pending = False
        self._closed = False
        self._gone = False

    @classmethod
    def create(
        cls,
        directory: str,
        *,
        start_offset: int,
        size: int,
        files: MappedFiles,
        preallocate: bool = False,
    ) -> MappedFile:
        """A new file of zeros. The first `flush` makes its name durable too."""
        file = cls(directory, start_offset=start_offset, size=size, files=files)
        path = file.path
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(descriptor, size)
                if preallocate:
                    _allocate(descriptor, 0, size)
            except BaseException:
                os.unlink(path)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise BackendRefusedError(path, "create", system_says(error)) from error
        file._name_pending = True
        return file

    @property
    def path(self) -> str:
        return os.path.join(self.directory, local_file_name(self.start_offset))

    @property
    def end_offset(self) -> int:
        return self.start_offset + self.size

    @property
    def full(self) -> bool:
        return self.wrote == self.size

    @property
    def dirty(self) -> bool:
        return self._rewritten or self.wrote > self.flushed

    def append(self, data: Buffer, head_bytes: int = 0) -> int:
        """Copy the bytes to `wrote` and show them to readers; returns their position.

        The first `head_bytes`, one machine word at most, are copied last: a process that is killed
        meanwhile leaves zeros there, whatever else was copied. A write call, used for larger data,
        goes from front to back.
        """
        position = self.wrote
        end = position + len(data)
        if end > self.size:
            self._refuse("append", end, position, self.size)
        mapping = self.mapping or self._open()
        if len(data) < WRITE_BYTES_MIN:
            if end > self._blocks.end:
                self._blocks.reserve(mapping.descriptor, position, end, self.path)
            if head_bytes:
                body = position + head_bytes
                mapping.map[body:end] = data[head_bytes:]
                mapping.map[position:body] = data[:head_bytes]
            else:
                mapping.map[position:end] = data
        else:
            try:
                write_all(mapping.descriptor, data, position)
            except OSError as error:
                raise BackendRefusedError(self.path, "append", system_says(error)) from error
        self.touched = True
        self.wrote = end
        return position

    def fill_up(self, data: Buffer) -> None:
        """Append the bytes and count the rest of the file as written, so that it is full."""
        self.append(data)
        self.wrote = self.size

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite bytes; moves `wrote` if they end beyond it. `flush` covers them anywhere."""
        end = position + len(data)
        if position < 0 or end > self.size:
            self._refuse("write", position, 0, self.size - len(data))
        (self.mapping or self._open()).map[position:end] = data
        self.touched = True
        self._rewritten = True
        if end > self.wrote:
            self.wrote = end

    def read(self, position: int, length: int) -> bytes:
        """A copy of exactly these bytes, all below `wrote`."""
        end = position + length
        if position < 0 or length < 0 or end > self.wrote:
            self._refuse("read", position, 0, self.wrote - length)
        data: bytes = (self.mapping or self._open()).map[position:end]
        self.touched = True
        return data

    def view(self, position: int = 0, end: int | None = None) -> memoryview:
        """Bytes without a copy, read-only, up to `end` (default: the end of the file).

        A view keeps the file mapped while it lives: use it for scans, not for answers.
        """
        mapping = self.mapping or self._open()
        self.touched = True
        return memoryview(mapping.map)[position : self.size if end is None else end].toreadonly()

    def flush(self) -> int:
        """Sync everything appended or overwritten before this call; returns the new `flushed`.

        The sync runs without the interpreter's lock: other threads go on.
        """
        if self._failure is not None:
            raise BackendRefusedError(self.path, "fdatasync", f"failed before: {self._failure}")
        end = self.wrote
        if end <= self.flushed and not self._rewritten:
            return self.flushed
        mapping = self.mapping or self._open()
        self._rewritten = False
        try:
            os.fdatasync(mapping.descriptor)
            if self._name_pending:
                fsync_directory(self.directory)
                self._name_pending = False
        except OSError as error:
            if self._gone:  # deleted with its directory during the sync
                raise SegmentNotFoundError(self.path) from error
            self._failure = error
            raise BackendRefusedError(self.path, "fdatasync", system_says(error)) from error
        self.flushed = end
        return end

    def truncate_to(self, position: int) -> None:
        """Durably replace everything from `position` on with zeros.

        RocketMQ leaves the old bytes. After another crash they could follow a shorter new tail and
        pass for records; zeros cannot.
        """
        if not 0 <= position <= self.size:
            self._refuse("truncate", position, 0, self.size)
        mapping = self.mapping or self._open()
        for at, data in self._data_from(mapping, position):
            write_all(mapping.descriptor, memoryview(_ZEROS)[: len(data)], at)
        self.wrote = position
        self._blocks.forget()
        self.mark_unflushed()
        self.flush()

    def write_again(self, position: int) -> None:
        """Write what is there from `position` on once more, so that the next `flush` writes it.

        After a failed sync, also one of an earlier process, the system takes the bytes for written.
        Reads find them, and later syncs succeed, but a power cut loses them.
        """
        mapping = self.mapping or self._open()
        for at, data in self._data_from(mapping, position):
            write_all(mapping.descriptor, data, at)

    def _data_from(self, mapping: Mapping, position: int) -> Iterator[tuple[int, bytes]]:
        """All bytes from `position` on, in pieces; without most of the zeros."""
        for start, end in data_extents(mapping.descriptor, position, self.size):
            for at in range(start, end, len(_ZEROS)):
                length = min(len(_ZEROS), end - at)
                data = read_all(mapping.descriptor, length, at)
                if data != memoryview(_ZEROS)[:length]:
                    yield at, data

    def mark_unflushed(self) -> None:
        """Let the next `flush` sync all of it: after a crash only the page cache may have it."""
        self.flushed = 0
        self._rewritten = True
        self._name_pending = True

    def data_end(self, position: int = 0) -> int:
        """Where the last bytes ever written end, as far as the file system can tell."""
        mapping = self.mapping or self._open()
        extents = data_extents(mapping.descriptor, position, self.size)
        return max((end for _, end in extents), default=position)

    def close(self) -> None:
        """Release the map without a sync. Idempotent."""
        self._closed = True
        self._files.forget(self)

    def destroy(self) -> None:
        """Delete the file. The caller must sync the directory. Idempotent."""
        self._gone = True
        self.close()
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return

    def check_open(self) -> None:
        if self._gone:
            raise SegmentNotFoundError(self.path)
        if self._closed:
            raise StoreClosedError(f"{self.path}: the file is closed")

    def _open(self) -> Mapping:
        return self._files.open(self)

    def _refuse(self, what: str, offset: int, minimum: int, maximum: int) -> None:
        raise OffsetOutOfRangeError(
            f"{what} {self.path}", offset=offset, minimum=minimum, maximum=maximum
        )
