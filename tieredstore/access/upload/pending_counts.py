"""What the broker's store has told of new messages: how much waits, and where a batch is full.

What lives here: `PendingCounts`. The counts are hints that decide when to look at a queue, never
what is uploaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from tieredstore.model.messages import DispatchRequest
from tieredstore.model.values import QueueKey


class _Count:
    __slots__ = ("bytes", "is_hot", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.is_hot = False


class PendingCounts:
    """Counts messages for each queue, and keeps the queues that are to be looked at soon.

    `note` runs where the broker dispatches its messages: it does no I/O and waits for nothing but
    other counting. Any thread may call anything.
    """

    def __init__(self, *, full_count: int, full_bytes: int, rejects: Callable[[str], bool]) -> None:
        self._full_count = full_count
        self._full_bytes = full_bytes
        self._rejects = rejects
        self._counts: dict[QueueKey, _Count | None] = {}  # None: of a rejected topic
        self._hot: dict[QueueKey, None] = {}  # in the order they became hot
        self._guard = threading.Lock()

    def note(self, requests: Sequence[DispatchRequest]) -> bool:
        """Count messages; whether a batch became full with them."""
        topic, queue_id = "", -1
        messages = size = 0
        found = False
        with self._guard:
            for request in requests:
                if request.queue_id != queue_id or request.topic != topic:
                    found |= messages > 0 and self._add(topic, queue_id, messages, size)
                    topic, queue_id = request.topic, request.queue_id
                    messages = size = 0
                messages += 1
                size += request.size
            found |= messages > 0 and self._add(topic, queue_id, messages, size)
        return found

    def _add(self, topic: str, queue_id: int, messages: int, size: int) -> bool:
        """Whether the queue became hot."""
        key = QueueKey(topic, queue_id)
        try:
            count = self._counts[key]
        except KeyError:
            count = self._counts[key] = None if self._rejects(topic) else _Count()
        if count is None:
            return False
        count.messages += messages
        count.bytes += size
        full = count.messages >= self._full_count or count.bytes >= self._full_bytes
        if count.is_hot or not full:
            return False
        count.is_hot = True
        self._hot[key] = None
        return True

    def is_full(self, key: QueueKey) -> bool:
        """Whether a batch was told of that has not been uploaded since."""
        count = self._counts.get(key)
        return count is not None and (
            count.messages >= self._full_count or count.bytes >= self._full_bytes
        )

    def took(self, key: QueueKey, count: int, size: int) -> None:
        """Messages are on their way: they wait no more."""
        with self._guard:
            found = self._counts.get(key)
            if found is not None:
                found.messages = max(0, found.messages - count)
                found.bytes = max(0, found.bytes - size)

    def put_back(self, key: QueueKey, count: int, size: int) -> None:
        """Messages that were on their way wait again."""
        with self._guard:
            found = self._counts.get(key)
            if found is not None:
                found.messages += count
                found.bytes += size

    def none_wait(self, key: QueueKey) -> None:
        """The queue was looked at, and nothing waits."""
        with self._guard:
            found = self._counts.get(key)
            if found is not None:
                found.messages = found.bytes = 0

    def heat(self, key: QueueKey) -> None:
        """Have this queue looked at soon."""
        with self._guard:
            self._hot[key] = None
            if (found := self._counts.get(key)) is not None:
                found.is_hot = True

    def take_hot(self) -> list[QueueKey]:
        """The queues to be looked at now; from here on they can become hot again."""
        with self._guard:
            taken = list(self._hot)
            self._hot.clear()
            for key in taken:
                if (found := self._counts.get(key)) is not None:
                    found.is_hot = False
        return taken

    @property
    def has_hot(self) -> bool:
        return bool(self._hot)

    def keep(self, keys: Collection[QueueKey]) -> None:
        """Forget all other queues."""
        with self._guard:
            for key in [each for each in self._counts if each not in keys]:
                del self._counts[key]
