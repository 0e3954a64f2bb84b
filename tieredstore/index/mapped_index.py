"""The file under an index file: its descriptor, its map, and the blocks it has on the disk.

What lives here: `MappedIndex`. What the bytes mean is for `store_file`.
"""

from __future__ import annotations

import os
import threading
from mmap import ACCESS_READ, ACCESS_WRITE, mmap
from pathlib import Path
from typing import Final

from tieredstore.codec.tiered_index import file_bytes
from tieredstore.driver.durable import fsync_directory, write_all
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
)

ALLOCATED_BYTES: Final = 8 << 20


class MappedIndex:
    """A file of one fixed size, mapped as a whole, whose blocks are allocated before they are used.

    Closing drops the map with the last view of it: whoever reads is never cut off.
    """

    def __init__(self, path: Path, descriptor: int, data: mmap, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._descriptor = descriptor
        self._data: mmap | None = data
        self._allocated = 0
        self._failure: OSError | None = None
        self._closing = threading.Lock()

    @classmethod
    def create(
        cls, path: Path, head: bytes, *, slot_count: int, item_capacity: int, allocated: int
    ) -> MappedIndex:
        """A new sparse file that begins with `head`; durable when this returns, else not there."""
        size = file_bytes(slot_count=slot_count, item_capacity=item_capacity)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise BackendRefusedError(str(path), "create", str(error)) from error
        try:
            os.ftruncate(descriptor, size)
            write_all(descriptor, head, 0)
            created = cls(path, descriptor, mmap(descriptor, size), read_only=False)
            created.allocate(allocated)
            os.fsync(descriptor)
            fsync_directory(path.parent)
        except BaseException as error:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            if isinstance(error, OSError):
                raise BackendRefusedError(str(path), "create", str(error)) from error
            raise
        return created

    @classmethod
    def open(
        cls, path: Path, *, slot_count: int, item_capacity: int, read_only: bool
    ) -> MappedIndex:
        """A file that is there. InvalidConfigError if it has the size of other settings."""
        try:
            flags = os.O_RDONLY if read_only else os.O_RDWR
            descriptor = os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SegmentNotFoundError(str(path)) from error
        except OSError as error:
            raise BackendRefusedError(str(path), "open", str(error)) from error
        try:
            size = file_bytes(slot_count=slot_count, item_capacity=item_capacity)
            held = os.fstat(descriptor).st_size
            if held == 0:  # a crash came before it had its size
                raise SegmentCorruptError(str(path), "the file is empty", position=0)
            if held != size:
                raise InvalidConfigError(
                    f"{path} has {held} bytes, but index_slot_count {slot_count} and "
                    f"index_item_count {item_capacity} make {size}: they must never change"
                )
            data = mmap(descriptor, size, access=ACCESS_READ if read_only else ACCESS_WRITE)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, data, read_only=read_only)

    @property
    def data(self) -> mmap:
        data = self._data
        if data is None:
            raise StoreClosedError(f"{self.path}: the index file is closed")
        return data

    @property
    def is_closed(self) -> bool:
        return self._data is None

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def allocate(self, end: int) -> None:
        """Give every byte below `end` its place on the disk, in steps; OSError if there is none.

        A write through the map into a hole kills the process when the disk is full.
        """
        if end <= self._allocated:
            return
        stop = min(len(self.data), -(-end // ALLOCATED_BYTES) * ALLOCATED_BYTES)
        os.posix_fallocate(self._descriptor, self._allocated, stop - self._allocated)
        self._allocated = stop

    def sync(self) -> None:
        """Make everything written so far durable; other threads go on meanwhile."""
        with self._closing:
            if self._failure is not None:
                raise OSError(*self._failure.args) from self._failure
            if self._data is None:
                raise StoreClosedError(f"{self.path}: the index file is closed")
            descriptor = os.dup(self._descriptor)
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            self._failure = error
            raise
        finally:
            os.close(descriptor)

    def close(self) -> None:
        with self._closing:
            if self._data is not None:
                self._data = None
                os.close(self._descriptor)
