"""Files next to a tier in a directory: published catalogues and staged files."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tieredstore.driver.durable import (
    NO_LINK,
    fsync_directory,
    make_directories,
    read_all,
    write_atomically,
    write_blocks,
)
from tieredstore.driver.provider import (
    CATALOGUES,
    STAGED,
    Generations,
    GenerationTakenError,
    ListedGeneration,
    Scratch,
    StagedObject,
    check_staged_name,
    generation_name,
    generation_of,
)
from tieredstore.driver.segment import Buffer, check_range
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
)

_TRANSIENT: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)


def backend_error(path: str, operation: str, error: OSError) -> BackendError:
    """Our error for one of the system's. Its number decides whether another try may help."""
    kind = BackendUnavailableError if error.errno in _TRANSIENT else BackendRefusedError
    return kind(path, operation, error.strerror or str(error))


@contextmanager
def translated(path: str | os.PathLike[str], operation: str) -> Iterator[None]:
    """Raise errors of the operating system as ours."""
    try:
        yield
    except SegmentNotFoundError:
        raise
    except FileNotFoundError as error:
        raise SegmentNotFoundError(os.fspath(path)) from error
    except OSError as error:
        raise backend_error(os.fspath(path), operation, error) from error


LISTS_MAX: Final = 8  # of a folder whose files others keep replacing
MAKES_MAX: Final = 8  # of a folder that others keep removing
_UNFINISHED: Final = ".new"
_BEING_WRITTEN: Final = ".tmp"  # what `write_atomically` adds


class PosixGenerations(Generations):
    """Published catalogues below `.catalog/` of the tier's root.

    A file is written under a temporary name and gets its real one by a hard link, which only one
    writer can create. So a file is there as a whole or not at all.
    """

    def __init__(self, root: Path, directory: str, broker: str) -> None:
        self._folder = root / CATALOGUES / directory / broker

    def describe(self) -> str:
        return str(self._folder)

    def listed(self) -> Sequence[ListedGeneration]:
        """The names are read again if the newest one is gone: its writer has published newer ones
        since, and deleted all that had been there."""
        for _ in range(LISTS_MAX):
            numbers = sorted(filter(None, map(generation_of, self._names())))
            found = [each for each in map(self._listed, numbers) if each is not None]
            if not numbers or (found and found[-1].number == numbers[-1]):
                return found
        raise BackendUnavailableError(self.describe(), "list", "its files kept going")

    def _listed(self, number: int) -> ListedGeneration | None:
        """None if it is gone."""
        path = self._file(number)
        try:
            return ListedGeneration(number, path.stat().st_size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise backend_error(str(path), "list", error) from error

    def read(self, listed: ListedGeneration) -> bytes:
        path = self._file(listed.number)
        with translated(path, "read"), path.open("rb") as file:
            data = file.read(listed.size)
        if len(data) < listed.size:
            raise OffsetOutOfRangeError(str(path), offset=listed.size, minimum=0, maximum=len(data))
        return data

    def create(self, number: int, data: bytes) -> None:
        path = self._file(number)
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")
        with translated(path, "create"):
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
        """Also deletes unfinished files that others left under these numbers."""
        wanted = {generation_name(number) for number in numbers}
        with translated(self._folder, "delete"):
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


def _final(name: str) -> str:
    """The final name of a file, finished or not."""
    unfinished = name.removesuffix(_BEING_WRITTEN)
    if not unfinished.endswith(_UNFINISHED):
        return name
    return unfinished.removesuffix(_UNFINISHED).rpartition(".")[0]


def _refuse_unread(error: OSError) -> None:
    """Raise what `os.walk` would pass over, except for a folder that is gone."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _created(path: Path) -> int:
    """Create a file and its folders. Whoever deletes the last file of a folder removes the folder
    too, perhaps just after it was made here."""
    for left in reversed(range(MAKES_MAX)):
        try:
            make_directories(path.parent)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666)
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError


class PosixScratch(Scratch):
    """Staged files below `.staged/` of the tier's root. A file gets its name once complete."""

    def __init__(self, root: Path, directory: str, broker: str) -> None:
        self._top = root / STAGED
        self._folder = self._top / directory / broker

    def describe(self) -> str:
        return str(self._folder)

    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        path = self.file(name)
        # Two processes may put the same bytes: until it is renamed, each has a file of its own.
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")
        with translated(path, "stage"):
            descriptor = _created(unfinished)
            try:
                size = write_blocks(descriptor, blocks)
                os.fsync(descriptor)
                os.replace(unfinished, path)
            finally:
                os.close(descriptor)
                unfinished.unlink(missing_ok=True)
            fsync_directory(path.parent)
        return size

    def read(self, name: str, position: int, length: int) -> bytes:
        path = self.file(name)
        with translated(path, "read"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                check_range(str(path), position, length, os.fstat(descriptor).st_size)
                data = read_all(descriptor, length, position)
                if len(data) < length:
                    raise OSError(f"{path} became shorter")
                return data
            finally:
                os.close(descriptor)

    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        found = []
        with translated(self._folder, "list"):
            for directory, _, names in os.walk(self._folder / folder, onerror=_refuse_unread):
                for name in names:
                    path = Path(directory, name)
                    with suppress(FileNotFoundError):  # gone since
                        size = path.stat().st_size
                        found.append(StagedObject(path.relative_to(self._folder).as_posix(), size))
        return found

    def delete(self, names: Sequence[str]) -> None:
        """Also removes folders that become empty."""
        paths = [self.file(name) for name in names]
        with translated(self._folder, "delete"):
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
                return  # it is not empty
            folder = folder.parent

    def file(self, name: str) -> Path:
        return self._folder / check_staged_name(name)
