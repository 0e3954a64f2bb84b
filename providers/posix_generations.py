"""Where catalogues are published in a directory: one small file for each generation.

What lives here: names and the few calls. The files lie beside the clusters' directories, where
neither RocketMQ nor a listing of segments looks.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tieredstore.driver.durable import fsync_directory, make_directories, write_atomically
from tieredstore.driver.generations import (
    CATALOGUES,
    Generations,
    GenerationTakenError,
    ListedGeneration,
    generation_name,
    generation_of,
)
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentNotFoundError
from tieredstore.providers.posix_errors import backend_error

_UNFINISHED: Final = ".new"
_BEING_WRITTEN: Final = ".tmp"  # what `write_atomically` adds


class PosixGenerations(Generations):
    """Below `.catalog/` of the tier's root.

    A file is written under a name of its own and gets its real one by a hard link, which only one
    can make: it is there as a whole or not at all.
    """

    def __init__(self, root: Path, directory: str, broker: str) -> None:
        self._folder = root / CATALOGUES / directory / broker

    def describe(self) -> str:
        return str(self._folder)

    def listed(self) -> Sequence[ListedGeneration]:
        found = []
        for name in self._names():
            number = generation_of(name)
            if number is None:
                continue
            try:
                found.append(ListedGeneration(number, self._file(number).stat().st_size))
            except FileNotFoundError:
                continue  # gone since
            except OSError as error:
                raise backend_error(str(self._file(number)), "list", error) from error
        return sorted(found, key=lambda each: each.number)

    def read(self, listed: ListedGeneration) -> bytes:
        path = self._file(listed.number)
        with self._translated(path, "read"), path.open("rb") as file:
            data = file.read(listed.size)
        if len(data) < listed.size:
            raise OffsetOutOfRangeError(str(path), offset=listed.size, minimum=0, maximum=len(data))
        return data

    def create(self, number: int, data: bytes) -> None:
        path = self._file(number)
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")
        with self._translated(path, "create"):
            make_directories(self._folder)
            try:
                write_atomically(unfinished, [data])
                os.link(unfinished, path)
                fsync_directory(self._folder)
            except FileExistsError as error:
                raise GenerationTakenError(str(path)) from error
            finally:
                unfinished.unlink(missing_ok=True)

    def delete(self, numbers: Sequence[int]) -> None:
        """Also what others were writing under these numbers when they were stopped."""
        wanted = {generation_name(number) for number in numbers}
        with self._translated(self._folder, "delete"):
            for name in self._names():
                if _final(name) in wanted:
                    (self._folder / name).unlink(missing_ok=True)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise backend_error(str(self._folder), "list", error) from error

    def _file(self, number: int) -> Path:
        return self._folder / generation_name(number)

    @contextmanager
    def _translated(self, path: Path, operation: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise SegmentNotFoundError(str(path)) from error
        except OSError as error:
            raise backend_error(str(path), operation, error) from error


def _final(name: str) -> str:
    """The name that a file has, or was to get: it was being written, or was whole."""
    unfinished = name.removesuffix(_BEING_WRITTEN)
    if not unfinished.endswith(_UNFINISHED):
        return name
    return unfinished.removesuffix(_UNFINISHED).rpartition(".")[0]
