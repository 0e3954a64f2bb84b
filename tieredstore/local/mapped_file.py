"""One file of fixed size, read and written through a memory map.

A file has its full size from the first moment on, since RocketMQ refuses any other: it is created
empty, stretched by one ftruncate (so a crash leaves nothing or all of it) and, for a commit log,
given its blocks, so that a full disk is an error here and not a signal in the middle of a write.
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
DESCRIPTORS_SHARE: Final = 4  # a file takes two, and the process has other uses for the rest
_ZEROS: Final = bytes(1 << 20)
WRITE_BYTES_MIN: Final = 16 * 1024  # from here on one call costs less than faults on new pages


class Blocks:
    """How far a region has blocks that is filled from its start to its limit.

    * It grows in proportion to its size: thousands of queues with a few messages take a page each,
      and a long file allocates seldom.
    * Bytes before the first requested position were written before, so they have blocks.
    * A file system that cannot allocate in advance is assumed to have room.
    """

    __slots__ = ("_limit", "_start", "end")

    def __init__(self, limit: int, *, start: int = 0) -> None:
        self._start = start
        self._limit = limit
        self.end = start

    def reserve(self, descriptor: int, position: int, end: int, path: str) -> None:
        """Have blocks for these bytes. BackendRefusedError without room: nothing may be written."""
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
        """The region was cut: ask again."""
        self.end = self._start


def _allocate(descriptor: int, start: int, end: int) -> int:
    try:
        os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    return end


def open_files_max() -> int:
    """How many files may be open: by what the process is allowed; 256 where that is 1 024."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return OPEN_MAX_MOST
    return max(OPEN_MAX_LEAST, min(OPEN_MAX_MOST, allowed // DESCRIPTORS_SHARE))


class Mapping:
    """One opening of a file; map and descriptor go with the last reference to it.

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
            if held != size:  # bytes that a map shows beyond the end of a file kill the process
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
        _close(self.descriptor)  # kept by the default: modules may be gone when Python ends


class MappedFiles:
    """The files that are open now: at most `open_max`, however many files there are.

    A file is opened on first use. When one too many is open, one is closed that was not used since
    the last check (the second chance of a clock), files without unsynced bytes first. It is
    reopened on the next use. Each open file takes two descriptors.
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
        """The mapping of a file that had none, or the one another thread has made just now."""
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
    """The parts that are not holes: where nothing was written, nothing needs to be looked at."""
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
    """A run of `size` bytes at `start_offset` of a log or queue, in the file of that name.

    * `wrote` is where the next append goes: bytes below it can be read, by any thread at any time.
      `flushed` is how far they are known to be on disk. Neither is stored anywhere.
    * Appends, `write_at` and `truncate_to` come from one thread at a time.
    * A sync that failed once fails for ever: the kernel drops the pages that it could not write and
      would report success the next time.
    * Holding a view never stops `close` or `destroy`: the bytes go when the view goes.
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
                    os.posix_fallocate(descriptor, 0, size)
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
        """Copy the bytes to `wrote` and show them to readers; the position they went to.

        So many bytes of the head come last, in one machine word at most: a process that is killed
        meanwhile leaves zeros there, wherever the copy began. A write goes from front to back.
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
        """Append the bytes and count what is left of the file as written: it is full then."""
        self.append(data)
        self.wrote = self.size

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite; what ends beyond `wrote` moves it. `flush` covers it wherever it is."""
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
        """Bytes without a copy, read-only, as far as `end` (the end of the file if not given).

        It keeps the file mapped while it lives: for scans, not for answers.
        """
        mapping = self.mapping or self._open()
        self.touched = True
        return memoryview(mapping.map)[position : self.size if end is None else end].toreadonly()

    def flush(self) -> int:
        """Put what was appended or overwritten before this call on disk; the new `flushed`.

        The sync runs without the interpreter's lock: others go on.
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
            if self._gone:  # with its directory, while this was under way
                raise SegmentNotFoundError(self.path) from error
            self._failure = error
            raise BackendRefusedError(self.path, "fdatasync", system_says(error)) from error
        self.flushed = end
        return end

    def truncate_to(self, position: int) -> None:
        """Forget what is behind `position`: zeros take its place, on disk when this returns.

        RocketMQ leaves the old bytes. After another crash they could then follow a shorter new
        tail and pass for records; zeros cannot.
        """
        if not 0 <= position <= self.size:
            self._refuse("truncate", position, 0, self.size)
        mapping = self.mapping or self._open()
        for start, end in data_extents(mapping.descriptor, position, self.size):
            for at in range(start, end, len(_ZEROS)):
                length = min(len(_ZEROS), end - at)
                zeros = memoryview(_ZEROS)[:length]
                if read_all(mapping.descriptor, length, at) != zeros:
                    write_all(mapping.descriptor, zeros, at)
        self.wrote = position
        self._blocks.forget()
        self.mark_unflushed()
        self.flush()

    def mark_unflushed(self) -> None:
        """The next `flush` syncs all of it: after a crash the page cache may be all that has it."""
        self.flushed = 0
        self._rewritten = True
        self._name_pending = True

    def data_end(self, position: int = 0) -> int:
        """Where the last bytes that were ever written end, as far as the file system can tell."""
        mapping = self.mapping or self._open()
        extents = data_extents(mapping.descriptor, position, self.size)
        return max((end for _, end in extents), default=position)

    def close(self) -> None:
        """Release the map; nothing is synced. Idempotent."""
        self._closed = True
        self._files.forget(self)

    def destroy(self) -> None:
        """Remove the file. The directory is for the caller to sync. Idempotent."""
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
