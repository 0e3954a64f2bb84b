"""Decides which queues may upload, and how much; counts what waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tieredstore.driver.dispatched import arrived
from tieredstore.model.messages import DispatchRequest
from tieredstore.model.values import QueueKey


class _Count:
    __slots__ = ("bytes", "is_due", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.is_due = False


class PendingCounts:
    """Counts messages for each queue, and keeps the queues that must be checked soon.

    `note` runs in the broker's dispatch of messages: it does no I/O and waits only for other
    counting. Any thread may call anything.
    """

    def __init__(self, *, full_count: int, full_bytes: int, rejects: Callable[[str], bool]) -> None:
        self._full_count = full_count
        self._full_bytes = full_bytes
        self._rejects = rejects
        self._counts: dict[QueueKey, _Count | None] = {}  # None: of a rejected topic
        self._due: dict[QueueKey, None] = {}  # in the order they became due
        self._guard = threading.Lock()

    def note(self, requests: Sequence[DispatchRequest]) -> bool:
        """Count messages; return whether a batch became full."""
        found = False
        with self._guard:
            for one in arrived(requests):
                found |= self._add(one.topic, one.queue_id, one.message_count, one.record_bytes)
        return found

    def _add(self, topic: str, queue_id: int, messages: int, size: int) -> bool:
        """Count messages of one queue; return whether it became due."""
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
        if count.is_due or not full:
            return False
        count.is_due = True
        self._due[key] = None
        return True

    def is_full(self, key: QueueKey) -> bool:
        """Whether the messages counted and not yet taken make a full batch."""
        count = self._counts.get(key)
        return count is not None and (
            count.messages >= self._full_count or count.bytes >= self._full_bytes
        )

    def took(self, key: QueueKey, count: int, size: int) -> None:
        """Uncount messages that were taken for an upload."""
        with self._guard:
            found = self._counts.get(key)
            if found is not None:
                found.messages = max(0, found.messages - count)
                found.bytes = max(0, found.bytes - size)

    def put_back(self, key: QueueKey, count: int, size: int) -> None:
        """Count messages again whose upload was given up."""
        with self._guard:
            found = self._counts.get(key)
            if found is not None:
                found.messages += count
                found.bytes += size

    def none_wait(self, key: QueueKey) -> None:
        """Note that no message of the queue waits."""
        with self._guard:
            found = self._counts.get(key)
            if found is not None:
                found.messages = found.bytes = 0

    def mark_due(self, key: QueueKey) -> None:
        """Have this queue checked soon."""
        with self._guard:
            self._due[key] = None
            if (found := self._counts.get(key)) is not None:
                found.is_due = True

    def take_due(self) -> list[QueueKey]:
        """The queues to check now; from here on they can become due again."""
        with self._guard:
            taken = list(self._due)
            self._due.clear()
            for key in taken:
                if (found := self._counts.get(key)) is not None:
                    found.is_due = False
        return taken

    def waiting(self) -> list[QueueKey]:
        """The queues with counted messages that were not yet taken."""
        with self._guard:
            return [key for key, count in self._counts.items() if count and count.messages]

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def keep(self, keys: Collection[QueueKey]) -> None:
        """Forget all other queues."""
        with self._guard:
            for key in [counted for counted in self._counts if counted not in keys]:
                del self._counts[key]


SHORT_SECONDS: Final = 0.02
ROUND: Final = QueueKey("", -1)


class QueueClaims:
    """The queues that are being worked on, and a way to wait until a claim is given back.

    Any thread may give a claim back. If queues share rounds, `ROUND` is claimed like a queue: from
    the choice of the messages to send until all of them are settled.
    """

    def __init__(self) -> None:
        self._busy: set[QueueKey] = set()
        self._still: set[str] = set()  # topics whose queues cannot be claimed
        self._changed = threading.Condition()
        self._changes = 0

    @property
    def changes(self) -> int:
        """How many claims were given back so far."""
        return self._changes

    @property
    def busy_count(self) -> int:
        return len(self._busy) + len(self._still)

    def take(self, key: QueueKey) -> bool:
        with self._changed:
            if not self._is_free(key):
                return False
            self._busy.add(key)
            return True

    def give(self, *keys: QueueKey) -> None:
        with self._changed:
            self._busy.difference_update(keys)
            self._changes += len(keys)
            self._changed.notify_all()

    def wait_for_change(self, since: int, timeout: float | None, *, many: int = 1) -> bool:
        """Wait until a claim is given back; False if none is in time.

        If the caller waits for `many` claims, this waits a short time for more than one of them.
        """
        some = max(1, many // 8)
        with self._changed:
            short = SHORT_SECONDS if timeout is None else min(SHORT_SECONDS, timeout)
            if self._changed.wait_for(lambda: self._changes - since >= some, short):
                return True
            left = None if timeout is None else timeout - short
            return self._changed.wait_for(lambda: self._changes != since, left)

    @contextmanager
    def held(self, key: QueueKey, *, timeout: float | None = None) -> Iterator[bool]:
        """Hold the claim of this queue; yields False, without a claim, after the timeout."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._is_free(key), timeout)
            if free:
                self._busy.add(key)
        try:
            yield free
        finally:
            if free:
                self.give(key)

    @contextmanager
    def held_topics(
        self, topics: Collection[str], *, timeout: float | None = None
    ) -> Iterator[bool]:
        """The same for all queues of these topics, including queues that appear meanwhile."""
        wanted = set(topics)
        with self._changed:
            is_first = self._changed.wait_for(lambda: not wanted & self._still, timeout)
            if is_first:
                self._still |= wanted
        try:
            with self._changed:
                is_alone = is_first and self._changed.wait_for(
                    lambda: not any(key.topic in wanted for key in self._busy), timeout
                )
            yield is_alone
        finally:
            if is_first:
                with self._changed:
                    self._still -= wanted
                    self._changes += 1
                    self._changed.notify_all()

    def _is_free(self, key: QueueKey) -> bool:
        return key not in self._busy and key.topic not in self._still


class UploadBudget:
    """Limits the bytes in memory and the uploads under way.

    No call waits: a refused caller tries again after something is given back. A batch larger than
    the whole budget is allowed alone. Any thread may call anything.
    """

    def __init__(self, *, bytes_max: int, uploads_max: int) -> None:
        self.bytes_max = bytes_max
        self.uploads_max = uploads_max
        self._bytes = 0
        self._uploads = 0
        self._guard = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._bytes

    @property
    def uploads(self) -> int:
        return self._uploads

    def take(self, count: int, *, instead_of: int = 0) -> bool:
        """Take bytes in place of `instead_of` taken before; False, with no change, if refused."""
        with self._guard:
            others = self._bytes - instead_of
            if others and others + count > self.bytes_max:
                return False
            self._bytes = others + count
            return True

    def give(self, count: int) -> None:
        with self._guard:
            self._bytes -= count

    def start_upload(self) -> bool:
        with self._guard:
            if self._uploads >= self.uploads_max:
                return False
            self._uploads += 1
            return True

    def end_upload(self, count: int = 1) -> None:
        with self._guard:
            self._uploads -= count
