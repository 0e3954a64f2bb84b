"""Callbacks for new messages that come and go, behind one dispatcher of a store.

A dispatcher stays for the life of its store, and what it raises is the store's to handle.
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
        """No call begins from now on; one that is under way ends. Any thread, any time, again."""
        self._arrivals.remove(self)


class Arrivals:
    """The dispatcher: it passes each batch on to all callbacks that are registered just then.

    One that raises is logged, and stops nobody.
    """

    def __init__(self) -> None:
        self._all: tuple[Arrival, ...] = ()
        self._guard = threading.Lock()

    def add(self, callback: ArrivalCallback) -> Arrival:
        """Raises InvalidArgumentError for what cannot be called."""
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
            if arrival not in self._all:  # cancelled by one before it
                continue
            try:
                arrival.callback(requests)
            except Exception:
                log.exception("a callback for new messages failed; the others go on")
