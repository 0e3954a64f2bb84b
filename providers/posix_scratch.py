"""What is on its way into a tier in a directory: one file for each staged object.

What lives here: names and the few calls. The files lie beside the clusters' directories, where
neither RocketMQ nor a listing of segments looks.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tieredstore.driver.durable import make_directories, write_atomically
from tieredstore.driver.scratch import STAGED, Scratch, StagedObject, check_name
from tieredstore.driver.segment import Buffer, check_range
from tieredstore.model.errors import SegmentNotFoundError
from tieredstore.providers.posix_errors import backend_error

_UNFINISHED: Final = ".new"


class PosixScratch(Scratch):
    """Below `.staged/` of the tier's root. A file gets its name when it is whole."""

    def __init__(self, root: Path, directory: str, broker: str) -> None:
        self._top = root / STAGED
        self._folder = self._top / directory / broker

    def describe(self) -> str:
        return str(self._folder)

    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        path = self._file(name)
        # Two processes may put the same bytes: each has a file of its own until the last moment.
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")
        with self._translated(path, "stage"):
            make_directories(path.parent)
            try:
                write_atomically(unfinished, blocks)
                size = unfinished.stat().st_size
                os.replace(unfinished, path)
            finally:
                unfinished.unlink(missing_ok=True)
        return size

    def read(self, name: str, position: int, length: int) -> bytes:
        path = self._file(name)
        with self._translated(path, "read"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                check_range(str(path), position, length, os.fstat(descriptor).st_size)
                pieces: list[bytes] = []
                while length:
                    piece = os.pread(descriptor, length, position)
                    if not piece:
                        raise OSError(f"{path} became shorter")
                    pieces.append(piece)
                    position, length = position + len(piece), length - len(piece)
            finally:
                os.close(descriptor)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        found = []
        with self._translated(self._folder, "list"):
            for directory, _, names in os.walk(self._folder / folder):
                for name in names:
                    path = Path(directory, name)
                    with suppress(FileNotFoundError):  # gone since
                        size = path.stat().st_size
                        found.append(StagedObject(path.relative_to(self._folder).as_posix(), size))
        return found

    def delete(self, names: Sequence[str]) -> None:
        """Folders that become empty go too."""
        paths = [self._file(name) for name in names]
        with self._translated(self._folder, "delete"):
            for path in paths:
                path.unlink(missing_ok=True)
            for folder in {path.parent for path in paths}:
                self._remove_empty(folder)

    def _remove_empty(self, folder: Path) -> None:
        while folder.is_relative_to(self._top):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return  # there is something in it
            folder = folder.parent

    def _file(self, name: str) -> Path:
        return self._folder / check_name(name)

    @contextmanager
    def _translated(self, path: Path, operation: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if isinstance(error, SegmentNotFoundError):
                raise
            raise SegmentNotFoundError(str(path)) from error
        except OSError as error:
            raise backend_error(str(path), operation, error) from error
