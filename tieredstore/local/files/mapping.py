"""Files mapped into memory: one opening of one, how many are open, where they hold data.

What lives here: `Mapping`, `MappedFiles` and `data_extents`. What a file means is in `mapped_file`.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tieredstore.model.errors import BackendRefusedError, SegmentError, SegmentNotFoundError

if TYPE_CHECKING:
    from tieredstore.local.files.mapped_file import MappedFile

OPEN_MAX_LEAST: Final = 64
OPEN_MAX_MOST: Final = 8192
DESCRIPTORS_SHARE: Final = 4  # a file takes two, and the process has other uses for the rest


def open_files_max() -> int:
    """How many files may be open: by what the process is allowed; 256 where that is 1 024."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return OPEN_MAX_MOST
    return max(OPEN_MAX_LEAST, min(OPEN_MAX_MOST, allowed // DESCRIPTORS_SHARE))


class Mapping:
    """One opening of a file; map and descriptor go with the last reference to it.

    So whoever is in the middle of a read or a sync keeps it alive, and closing never has to wait.
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
            raise BackendRefusedError(path, "open", str(error)) from error
        try:
            held = os.fstat(descriptor).st_size
            if held != size:  # bytes that a map shows beyond the end of a file kill the process
                raise SegmentError(path, f"the file has {held} bytes now, not {size}")
            return cls(descriptor, mmap.mmap(descriptor, size, access=access))
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, SegmentError):
                raise
            raise BackendRefusedError(path, "map", str(error)) from error
        except BaseException:
            os.close(descriptor)
            raise

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        _close(self.descriptor)  # kept by the default: modules may be gone when Python ends


class MappedFiles:
    """The files that are open now: at most `open_max`, whatever number there is.

    A file is opened when it is first touched. When one too many is open, one goes that was not
    touched since the last look (the second chance of a clock), one without unsynced bytes first.
    It opens again when it is touched again. Each open file takes two descriptors.
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
