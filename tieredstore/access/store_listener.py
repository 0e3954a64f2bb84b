"""What a message store calls of the tier above it: of each life of the tier, in one way.

What lives here: `StoreListener`. What is answered is up to the dispatcher of the life.
"""

from __future__ import annotations

from collections.abc import Sequence

from tieredstore.access.upload.dispatcher import Dispatcher
from tieredstore.driver.message_store import MessageStore
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.messages import DispatchRequest


class StoreListener:
    """The one callback and the one retention guard of a store's tier.

    A store has no way to take either back, so it is given them once and not by every dispatcher.
    """

    def __init__(self) -> None:
        self._dispatcher: Dispatcher | None = None
        self._is_registered = False

    def follow(self, store: MessageStore, dispatcher: Dispatcher) -> None:
        """From now on this one is told of messages and asked what is needed of the store."""
        self._dispatcher = dispatcher
        if not self._is_registered:
            self._is_registered = True
            store.add_dispatcher(self._on_messages)
            store.add_retention_guard(self._needed_from)

    def leave(self) -> None:
        """Nobody is, until `follow`: for a store that is shut down and deletes nothing."""
        self._dispatcher = None

    def _on_messages(self, requests: Sequence[DispatchRequest]) -> None:
        if (dispatcher := self._dispatcher) is not None:
            dispatcher.on_messages(requests)

    def _needed_from(self) -> int | None:
        dispatcher = self._dispatcher
        try:
            return None if dispatcher is None else dispatcher.needed_from()
        except StoreClosedError:  # while it ends: all is kept
            return 0
