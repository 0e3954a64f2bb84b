"""A lock on a file that other processes, Java's among them, honour too.

POSIX record locks belong to the process: a second lock in the same process would succeed, and
closing *any* descriptor of the file releases them all. So the paths that this process holds are
kept here, and a locked file is never opened a second time.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from typing import Self

from tieredstore.driver.durable import NO_LINK
from tieredstore.driver.one_process import OneProcess

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
    does not hold it: `held` is False there, and releasing it leaves the parent's lock alone.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._process = OneProcess(path)

    @classmethod
    def acquire(cls, path: str | os.PathLike[str]) -> FileLock | None:
        """The lock, or None where another holder has it, in this process or in another.

        A lock file that is a link is refused: what it leads to is not ours to make.
        """
        folder, name = os.path.split(os.path.abspath(path))
        real = os.path.join(os.path.realpath(folder), name)
        with _held_guard:
            if real in _held:
                return None
            descriptor = os.open(real, os.O_RDWR | os.O_CREAT | NO_LINK, 0o666)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except PermissionError:  # what some systems say for "held by another"
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            if not _is_at(real, descriptor):  # who held it has removed the file
                os.close(descriptor)
                return None
            _held.add(real)
        return cls(real, descriptor)

    @property
    def held(self) -> bool:
        """Whether this process holds it, now."""
        return self._descriptor is not None and self._process.is_this

    def release(self, *, remove: bool = False) -> None:
        """Let it go; `remove` takes the file away too, if nobody needs it any more."""
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
