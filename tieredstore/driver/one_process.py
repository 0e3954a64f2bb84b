"""An open store belongs to the process that opened it: a fork copies the memory, but must not use
it."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Final

from tieredstore.model.errors import OtherProcessError

_LIVES: Final[list[object]] = [object()]  # of this process


def _begin_another_life() -> None:
    _LIVES[0] = object()


os.register_at_fork(after_in_child=_begin_another_life)


class OneProcess:
    """Remembers the process that makes it.

    Asking costs 40 ns: a hook runs in each forked child. Asking the system for the number of the
    process would cost a system call for each put. It takes no lock and makes no call that a
    child may not make.
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
        """Raises OtherProcessError in a process that was forked from the one that made it."""
        if self._life is not _LIVES[0]:
            raise OtherProcessError(self._name, opened_by=self._pid)

    def is_left_by(self, exception: object) -> bool:
        """Whether a forked child is on its way out of a `with` that its parent entered, by
        `sys.exit` say: there is nothing to end, and what it is leaving for goes on."""
        return exception is not None and not self.is_this


class LockOfOneProcess:
    """A lock that a forked child is refused: a thread of its parent may have held it then."""

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
