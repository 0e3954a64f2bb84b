"""Callbacks for new messages, which can be added and cancelled, behind one dispatcher of a store.

A dispatcher itself cannot be removed from its store, and the store handles what it raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tieredstore.model.messages import DispatchRequest
from tieredstore.model.printable import log_of
from tieredstore.model.values import require_callable

log = log_of(__name__)

ArrivalCallback: TypeAlias = Callable[[Sequence[DispatchRequest]], None]


class Arrival:
    """One registered callback."""

    def __init__(self, arrivals: Arrivals, callback: ArrivalCallback) -> None:
        self._arrivals = arrivals
        self.callback = callback

    def cancel(self) -> None:
        """Begin no more calls; one under way goes on to its end. Idempotent; any thread may call
        it at any time."""
        self._arrivals.remove(self)


class Arrivals:
    """The dispatcher: it passes each batch to all callbacks that are registered at the time.

    If one raises, that is logged, and the others go on.
    """

    def __init__(self) -> None:
        self._all: tuple[Arrival, ...] = ()
        self._guard = threading.Lock()

    def add(self, callback: ArrivalCallback) -> Arrival:
        """Add a callback. Raises InvalidArgumentError for anything that cannot be called."""
        require_callable("callback", callback)
        added = Arrival(self, callback)
        with self._guard:
            self._all = (*self._all, added)
        return added

    def remove(self, arrival: Arrival) -> None:
        with self._guard:
            self._all = tuple(one for one in self._all if one is not arrival)

    def __call__(self, requests: Sequence[DispatchRequest]) -> None:
        for arrival in self._all:
            if arrival not in self._all:  # cancelled by an earlier callback
                continue
            try:
                arrival.callback(requests)
            except Exception:
                log.exception("a callback for new messages failed; the others go on")
