"""A tier in this process's memory, for tests and trials. It is gone when the process ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from fsspec.implementations.memory import MemoryFileSystem

from tieredstore.codec.names import parse_segment_name, segment_name
from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment, check_queue_path, check_range
from tieredstore.model.errors import (
    PositionMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
)
from tieredstore.model.values import SegmentType

if TYPE_CHECKING:
    from tieredstore.model.config import StoreConfig


class MemoryFileSegment(FileSegment):
    """A segment on fsspec's memory filesystem.

    The filesystem's files share one position between all handles, so every access takes the
    provider's lock.
    """

    def __init__(
        self,
        fs: MemoryFileSystem,
        guard: threading.Lock,
        path: str,
        type: SegmentType,
        base: int,
    ) -> None:
        super().__init__(path, type, base)
        self._fs = fs
        self._guard = guard
        # Without the slash, fsspec would take "::" in a name for a chain of file systems.
        self._path = f"/{path}/{type.name}/{segment_name(base)}"
        self._sealed = False
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        with self._guard:
            return self._existing_size()

    def read(self, position: int, length: int) -> bytes:
        with self._guard:
            check_range(self._path, position, length, self._existing_size())
            data: bytes = self._fs.cat_file(self._path, start=position, end=position + length)
            return data

    def write(self, position: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with self._guard:
            self._check_open()
            if self._sealed:
                raise SegmentSealedError(self._path)
            exists = self._fs.isfile(self._path)
            end = self._existing_size() if exists else 0
            if position != end:
                raise PositionMismatchError(self._path, expected=position, actual=end)
            if not view:
                return
            with self._fs.open(self._path, "ab" if exists else "wb") as file:
                file.write(view)

    def seal(self) -> None:
        self._check_open()
        self._sealed = True

    def delete(self) -> None:
        with self._guard:
            self._check_open()
            if self._fs.isfile(self._path):
                self._fs.rm_file(self._path)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._path} is closed")

    def _existing_size(self) -> int:
        self._check_open()
        try:
            return int(self._fs.size(self._path))
        except FileNotFoundError as error:
            raise SegmentNotFoundError(self._path) from error


class MemoryProvider(SegmentProvider):
    """Segments in memory, shared only by the handles of this provider.

    To "reopen" such a tier, pass the same provider on.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.ends_with_process = type(self) is MemoryProvider  # a subclass may keep its bytes
        self._fs = MemoryFileSystem(global_store=False, skip_instance_cache=True)
        self._guard = threading.Lock()

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        return cls(runtime)

    def open(self, path: str, type: SegmentType, base: int) -> MemoryFileSegment:
        check_queue_path(path, base)
        return MemoryFileSegment(self._fs, self._guard, path, type, base)

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        with self._guard:
            found: dict[str, dict[str, int]] = self._fs.find("", detail=True)
        wanted = prefix.rstrip("/") + "/" if prefix else ""
        for name, details in found.items():
            queue_path, type_name, file_name = name.lstrip("/").rsplit("/", 2)
            if f"{queue_path}/".startswith(wanted):
                yield ListedSegment(
                    queue_path,
                    SegmentType[type_name],
                    parse_segment_name(file_name),
                    details["size"],
                )
