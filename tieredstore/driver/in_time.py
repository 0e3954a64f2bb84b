"""Calls that may never end, and somebody who cannot wait for ever.

What lives here: `in_time`. How long is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from tieredstore.driver.runtime import Runtime

T = TypeVar("T")

ONCE_MS: Final = 24 * 3_600_000  # the interval of a service that is stopped after its first step


def in_time(runtime: Runtime, name: str, call: Callable[[], T], seconds: float | None) -> Future[T]:
    """Make a call in a thread of its own and wait so many seconds for it.

    What it returns or raises is in the future. One that is not done is still under way, and
    nothing will stop it. An inline runtime has no other thread: there the caller does it.
    """
    future: Future[T] = Future()

    def step() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - whoever asks the future gets it
            future.set_exception(error)

    service = runtime.service(name, step, interval_ms=ONCE_MS)
    service.wake()
    wait([future], seconds)
    service.stop(0)
    return future
