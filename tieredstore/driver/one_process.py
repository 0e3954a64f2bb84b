"""An open store belongs to the process that opened it: a fork copies the memory, but must not use
it."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Final

from tieredstore.model.errors import OtherProcessError

_LIVES: Final[list[object]] = [object()]  # identifies this process


def _begin_another_life() -> None:
    _LIVES[0] = object()


os.register_at_fork(after_in_child=_begin_another_life)


class OneProcess:
    """Remembers the process that makes it.

    A check costs 40 ns, as a hook in each forked child replaces a marker: asking the system for the
    process id would cost each put a system call. A check takes no lock, and makes no call that is
    unsafe in a child.
    """

    __slots__ = ("_life", "_name", "_pid")

    def __init__(self, name: str) -> None:
        self._life = _LIVES[0]
        self._name = name
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        return self._life is _LIVES[0]

    def require(self) -> None:
        """Raise OtherProcessError in a process that was forked from the one that made this."""
        if self._life is not _LIVES[0]:
            raise OtherProcessError(self._name, opened_by=self._pid)

    def is_left_by(self, exception: object) -> bool:
        """Whether an exception, such as that of `sys.exit`, takes a forked child out of a `with`
        that its parent entered. Then there is nothing to end, and the exception passes on."""
        return exception is not None and not self.is_this


class LockOfOneProcess:
    """A lock that refuses a forked child: a thread of the parent may have held it at the fork."""

    __slots__ = ("_lock", "_process")

    def __init__(
        self, process: OneProcess, lock: AbstractContextManager[bool] | None = None
    ) -> None:
        self._process = process
        self._lock = lock or threading.Lock()

    def __enter__(self) -> None:
        self._process.require()
        self._lock.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._lock.__exit__(None, None, None)
