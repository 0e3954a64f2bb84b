"""Processes of this machine that work on the items of a job: each has an interpreter of its own.

Work on a tier that lies near is bound by the interpreter, and threads share one. A process takes a
third of a second to start, and items travel by pickle; so it pays where there are hundreds of
megabytes to do.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from typing import Final, ParamSpec, TypeVar

from tieredstore.driver.runtime import Pool

P = ParamSpec("P")
T = TypeVar("T")

PROCESSES_MAX: Final = 64


class ProcessPool(Pool):
    """Starts processes as calls come, and ends them with `close`, or when this process dies.

    The program's main module is imported by each: it needs the usual `if __name__ == "__main__"`.
    """

    def __init__(self, *, processes: int) -> None:
        self._executor = ProcessPoolExecutor(
            min(processes, PROCESSES_MAX),
            mp_context=get_context("spawn"),  # clients and locks do not survive a fork
            initializer=_begin,
        )

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._executor.submit(call, *args, **kwargs)

    def close(self, timeout: float | None = None) -> bool:
        self._executor.shutdown(wait=True, cancel_futures=True)
        return True


def _begin() -> None:
    """Of a process: Ctrl-C is its parent's to answer, and it ends when that dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
