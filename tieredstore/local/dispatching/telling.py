"""Telling others what was dispatched: in log order, each batch once, under no lock of the store's.

What lives here: `Telling`. What is told, and when it is ready to be told, is `dispatch`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tieredstore.driver.message_store import Dispatcher
from tieredstore.model.messages import DispatchRequest
from tieredstore.model.printable import log_of

log = log_of(__name__)

UNTOLD_MAX: Final = 64
WAIT_SECONDS: Final = 1.0
END_WAIT_SECONDS: Final = 30.0

Batch = Callable[[], Sequence[DispatchRequest]]


class Telling:
    """Batches on their way to the dispatchers of others.

    * One thread at a time tells. Who comes meanwhile leaves its batch to that thread and goes on.
      So a dispatcher may put, read and delete in the store that calls it, and wait for threads
      that do: what it puts is told after what it is being told now.
    * A dispatcher that fails is logged and stops nothing.
    * Dispatchers that are slower than puts slow these down: see `keep_pace`.
    """

    def __init__(self) -> None:
        self._dispatchers: list[Dispatcher] = []
        self._untold: deque[Batch] = deque()
        self._turn = threading.Lock()
        self._teller = 0  # the thread that has the turn

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.append(dispatcher)

    def add(self, batch: Batch) -> None:
        """A batch, in log order: the caller holds the lock that orders them, and tells later."""
        if self._dispatchers:
            self._untold.append(batch)

    def tell(self) -> None:
        """Tell all that waits, unless somebody is at it: then it is told there."""
        # Looked at again after each turn: what came at its very end was left to it in vain.
        while self._untold and self._turn.acquire(blocking=False):
            self._tell_all()

    def keep_pace(self) -> None:
        """Wait while too much is untold: for a while only, the dispatchers may need this thread."""
        if len(self._untold) > UNTOLD_MAX:
            self._wait(WAIT_SECONDS)

    def finish(self) -> bool:
        """Wait until all is told; whether it is. Within a dispatcher it cannot be."""
        self._wait(END_WAIT_SECONDS)
        return not self._untold and not self._teller

    def _wait(self, seconds: float) -> None:
        if self._teller != threading.get_ident() and self._turn.acquire(timeout=seconds):
            self._tell_all()

    def _tell_all(self) -> None:
        """The caller took the turn; it is given back."""
        self._teller = threading.get_ident()
        try:
            while self._untold:
                self._hand_on(self._untold.popleft()())
        finally:
            self._teller = 0
            self._turn.release()

    def _hand_on(self, requests: Sequence[DispatchRequest]) -> None:
        for dispatcher in self._dispatchers:
            try:
                dispatcher(requests)
            except Exception:
                log.exception("a dispatcher failed; the others go on")
