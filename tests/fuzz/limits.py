"""Limits on time and memory while a decoder reads damaged bytes.

A hang or a large allocation becomes an exception.
"""

from __future__ import annotations

import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS_MAX = 1.0
HEADROOM_BYTES = 512 << 20


class TooSlow(BaseException):
    """One input took too long. It is no Exception, so that no decoder can swallow it."""


@contextmanager
def time_limits() -> Iterator[Callable[[], None]]:
    """Yield a function that restarts the timer for the next input.

    The timer counts only CPU time of this process, so a busy machine does no harm.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"one input took more than {SECONDS_MAX} s")

    def restart() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_MAX)

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        yield restart
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def limited_address_space() -> Iterator[None]:
    """Raise MemoryError if the process grows by more than the headroom."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def peak_bytes(action: Callable[[], object]) -> int:
    """The most memory that the call held at once, including numpy's."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
