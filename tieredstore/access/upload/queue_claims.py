"""Who works on which queue: one at a time.

What lives here: `QueueClaims`, which replaces a lock held for each queue while bytes travel.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from tieredstore.model.values import QueueKey

SHORT_SECONDS: Final = 0.02


class QueueClaims:
    """The queues that somebody works on, and a way to wait until something has changed.

    A claim may be given back by another thread than the one that took it.
    """

    def __init__(self) -> None:
        self._busy: set[QueueKey] = set()
        self._changed = threading.Condition()
        self._changes = 0

    @property
    def changes(self) -> int:
        """How often a claim was given back."""
        return self._changes

    @property
    def busy_count(self) -> int:
        return len(self._busy)

    def take(self, key: QueueKey) -> bool:
        with self._changed:
            if key in self._busy:
                return False
            self._busy.add(key)
            return True

    def give(self, key: QueueKey) -> None:
        with self._changed:
            self._busy.discard(key)
            self._changes += 1
            self._changed.notify_all()

    def wait_for_change(self, since: int, timeout: float | None, *, many: int = 1) -> bool:
        """Wait until a claim is given back; False when the time is over.

        Where `many` are waited for it lets some more of them come, but not for long.
        """
        some = max(1, many // 8)
        with self._changed:
            short = SHORT_SECONDS if timeout is None else min(SHORT_SECONDS, timeout)
            if self._changed.wait_for(lambda: self._changes - since >= some, short):
                return True
            left = None if timeout is None else timeout - short
            return self._changed.wait_for(lambda: self._changes != since, left)

    def held_if_free(self, key: QueueKey) -> AbstractContextManager[bool]:
        """Work on this queue alone; False, and no claim, where somebody does already."""
        return self.held(key, timeout=0)

    @contextmanager
    def held(self, key: QueueKey, *, timeout: float | None = None) -> Iterator[bool]:
        """Work on this queue alone; False, and no claim, when that took too long."""
        with self._changed:
            free = self._changed.wait_for(lambda: key not in self._busy, timeout)
            if free:
                self._busy.add(key)
        try:
            yield free
        finally:
            if free:
                self.give(key)
