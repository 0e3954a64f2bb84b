"""Files, names and replacements that survive a power cut, and a lock that Java honours too.

POSIX record locks belong to the process: a second lock in the same process would succeed, and
closing *any* descriptor of the file releases them all. So this module keeps the paths that this
process has locked, and never opens a locked file again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tieredstore.driver.one_process import OneProcess
from tieredstore.model.printable import log_of

log = log_of(__name__)

# For new files at names that others can guess: a link there would lead to a file that is not ours.
NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC
DURABLE_DIRECTORIES_MAX: Final = 100_000
OPENS_MAX: Final = 8
_durable_directories: set[str] = set()


def fsync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable, whether created, renamed or removed."""
    _sync(path, os.O_DIRECTORY)


def fsync_file(path: str | os.PathLike[str]) -> None:
    """Make the bytes of a file durable, whichever program wrote them."""
    _sync(path, 0)


def _sync(path: str | os.PathLike[str], flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: str | os.PathLike[str]) -> None:
    """Create a directory and its missing parents; every name on the way is durable afterwards.

    This includes names that existed before: another thread, or a process that died, may have made
    them without syncing. Names that were synced once are remembered.
    """
    directory = Path(path).absolute()
    known = _durable_directories
    doubtful = []
    while directory != directory.parent and not (str(directory) in known and directory.is_dir()):
        doubtful.append(directory)
        directory = directory.parent
    for child in reversed(doubtful):
        made = not child.is_dir()
        child.mkdir(exist_ok=True)
        try:
            fsync_directory(child.parent)
        except PermissionError:
            if made:
                raise  # else somebody else made it before, and we may not read its parent
        if len(known) >= DURABLE_DIRECTORIES_MAX:
            known.clear()
        known.add(str(child))


def read_all(descriptor: int, length: int, position: int) -> bytes:
    """`pread` until every byte is read or the file ends: the system may return fewer than asked."""
    data = os.pread(descriptor, length, position)
    while len(data) < length and (
        more := os.pread(descriptor, length - len(data), position + len(data))
    ):
        data += more
    return data


def write_all(
    descriptor: int,
    data: bytes | bytearray | memoryview,
    position: int,
    *,
    check: Callable[[], object] = lambda: None,
) -> None:
    """`pwrite` until every byte is written: the system may take fewer than asked. What `check`
    raises before a step ends it."""
    view = memoryview(data).cast("B")
    while view:
        check()
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def write_blocks(descriptor: int, blocks: Iterable[bytes | bytearray | memoryview]) -> int:
    """Write the blocks one after another from the beginning of the file; returns their size."""
    position = 0
    for block in blocks:
        write_all(descriptor, block, position)
        position += memoryview(block).nbytes
    return position


def write_atomically(
    path: str | os.PathLike[str], blocks: Iterable[bytes | bytearray | memoryview]
) -> None:
    """Replace the file at `path`: after a crash it has the old content or the new, whole.

    Only one writer per path at a time: BlockingIOError, with nothing changed, if another process is
    writing. What a crashed writer left behind is overwritten. OSError if the name of the new file
    is a link.
    """
    replace_file(path, blocks)
    fsync_directory(Path(path).parent)


def replace_file(
    path: str | os.PathLike[str], blocks: Iterable[bytes | bytearray | memoryview]
) -> None:
    """The same, but a crash may take the new name: the caller makes it durable."""
    target = Path(path)
    temporary = target.with_name(target.name + ".tmp")
    descriptor = _opened_alone(temporary)
    try:
        os.ftruncate(descriptor, 0)
        write_blocks(descriptor, blocks)
        os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _opened_alone(path: Path) -> int:
    """Open the file, or create it, and lock it until it is closed."""
    for _ in range(OPENS_MAX):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | NO_LINK, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            log.debug("%s got its name just now", path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the last holder of the lock has renamed the file to its target
    raise BlockingIOError(errno.EAGAIN, "others are always quicker", str(path))


_held: set[str] = set()
_held_guard = threading.Lock()


def _forget_held() -> None:
    """A forked child holds none of its parent's locks."""
    global _held_guard
    _held_guard = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget_held)


class FileLock:
    """An exclusive lock on the first byte of a file, held until `release`.

    Any thread may release it; releasing twice is harmless. A crash releases it. A forked child
    does not hold it: `held` is False there, and `release` leaves the parent's lock alone.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._process = OneProcess(path)

    @classmethod
    def acquire(cls, path: str | os.PathLike[str]) -> FileLock | None:
        """The lock, or None if another holder has it, in this process or another.

        OSError if the lock file is a link: it would lead to a file that is not ours.
        """
        folder, name = os.path.split(os.path.abspath(path))
        real = os.path.join(os.path.realpath(folder), name)
        with _held_guard:
            if real in _held:
                return None
            descriptor = os.open(real, os.O_RDWR | os.O_CREAT | NO_LINK, 0o666)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except (BlockingIOError, PermissionError):  # held by another: systems differ
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            if not _is_at(real, descriptor):  # its last holder has removed the file
                os.close(descriptor)
                return None
            _held.add(real)
        return cls(real, descriptor)

    @property
    def held(self) -> bool:
        """Whether this process holds it now."""
        return self._descriptor is not None and self._process.is_this

    def release(self, *, remove: bool = False) -> None:
        """Release it; `remove` deletes the file too, for one that nobody needs any more."""
        with _held_guard:
            if self._descriptor is None:
                return
            if self._process.is_this:
                _held.discard(self._path)
                if remove:  # while nobody else can hold it
                    with suppress(OSError):
                        os.unlink(self._path)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
