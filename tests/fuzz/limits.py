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
    """One input took too long. No Exception, so that no decoder can swallow it."""


@contextmanager
def time_limits() -> Iterator[Callable[[], None]]:
    """Yields what starts the time of the next input anew.

    The timer counts the time this process computes: on a busy machine waiting is no fault.
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
    """Whoever allocates more than the headroom at once gets a MemoryError."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def peak_bytes(action: Callable[[], object]) -> int:
    """How much memory the call held at once, numpy's included."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
