"""Calls to the operating system, of which the one with a chosen number fails."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from tieredstore.model.errors import TieredStoreError

CALLS = [
    "open",
    "pwrite",
    "write",
    "pread",
    "read",
    "fsync",
    "fdatasync",
    "ftruncate",
    "posix_fallocate",
    "replace",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "listdir",
    "scandir",
    "stat",
    "lstat",
    "fstat",
    "statvfs",
    "close",
]


class FailingCall:
    """Counts the calls, and lets the one with this number fail; `name` is the name of that call."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0
        self.name: str | None = None

    def strikes(self, name: str) -> bool:
        self._count += 1
        if self._count - 1 != self._number:
            return False
        self.name = name
        return True


def refusal(name: str) -> OSError:
    return OSError(errno.EIO, "Input/output error", name)


def refused_call(operation: Callable[[], object], number: int) -> str | None:
    """Run the operation and let its call with this number fail; return the name of the call, or
    None if there are fewer calls.

    The operation may raise only errors of ours.
    """
    with failing_call(number) as plan:
        try:
            operation()
        except TieredStoreError:
            assert plan.name is not None
    return plan.name


@contextmanager
def failing_call(number: int) -> Iterator[FailingCall]:
    plan = FailingCall(number)

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if plan.strikes(name):
                if name == "close":  # the descriptor is closed even if the call fails
                    real(*arguments, **named)
                raise refusal(name)
            return real(*arguments, **named)

        return call

    class WatchedMap(mmap.mmap):
        def __new__(cls, *arguments: Any, **named: Any) -> Self:
            if plan.strikes("mmap"):
                raise refusal("mmap")
            return super().__new__(cls, *arguments, **named)

        def flush(self, *arguments: Any) -> None:
            if plan.strikes("msync"):
                raise refusal("msync")
            super().flush(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, watched(name, getattr(os, name)))
        patch.setattr(fcntl, "lockf", watched("lockf", fcntl.lockf))
        patch.setattr(io, "open", watched("open", io.open))
        patch.setattr(builtins, "open", watched("open", builtins.open))
        patch.setattr(mmap, "mmap", WatchedMap)
        yield plan
