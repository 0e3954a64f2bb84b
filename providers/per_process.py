"""Connections that are made where they are used: by the first call, once in each process.

What lives here: `PerProcess`. A connection that a fork has copied belongs to the parent: threads
and event loops behind it do not exist in the child, and it shares sockets.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tieredstore.model.errors import StoreClosedError

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Makes one `T` in each process that asks for it.

    What was inherited by a fork is kept and never touched: letting go of it would run finalizers
    that wait for threads which are not there. Each process has a lock of its own, since the
    parent's may have been held when the fork happened.
    """

    def __init__(self, make: Callable[[], T], release: Callable[[T], object], name: str) -> None:
        self._make = make
        self._release = release
        self._name = name
        self._made: dict[int, T] = {}
        self._guards: dict[int, threading.Lock] = {}
        self._closed = False

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._name} is closed")

    def get(self) -> T:
        self.check_open()
        pid = os.getpid()
        made = self._made.get(pid)
        return self._first(pid) if made is None else made

    def close(self) -> None:
        """Release what this process has made; idempotent."""
        self._closed = True
        pid = os.getpid()
        with self._guard(pid):
            made = self._made.pop(pid, None)
        if made is not None:
            self._release(made)

    def _first(self, pid: int) -> T:
        with self._guard(pid):
            self.check_open()
            if pid not in self._made:
                self._made[pid] = self._make()
            return self._made[pid]

    def _guard(self, pid: int) -> threading.Lock:
        return self._guards.setdefault(pid, threading.Lock())
