"""Waiting for messages without a thread: who waits for which queue, and what wakes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

from tieredstore import QueueKey
from tieredstore.model.messages import DispatchRequest

WAITING_MAX: Final = 100_000


class Arrivals:
    """Wakes those who wait for a queue when a message can be read there.

    `on_messages` is for the store's own thread: it notes how far queues go, and wakes the event
    loop once for all that came since.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._news: dict[QueueKey, int] = {}
        self._ends: dict[QueueKey, int] = {}
        self._waiting: dict[QueueKey, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._is_over = False

    @property
    def count(self) -> int:
        """How many wait."""
        return self._count

    def on_messages(self, requests: Sequence[DispatchRequest]) -> None:
        with self._guard:
            is_first = not self._news
            for request in requests:
                key = QueueKey(request.topic, request.queue_id)
                self._news[key] = request.queue_offset + 1
        if is_first and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, key: QueueKey, offset: int, seconds: float) -> bool:
        """Whether there is a message at the offset, or behind it, within so many seconds."""
        if self._ends.get(key, 0) > offset:
            return True
        if self._is_over or seconds <= 0 or self._count >= WAITING_MAX:
            return False
        woken: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(key, set()).add(woken)
        self._count += 1
        try:
            await asyncio.wait([woken], timeout=seconds)
        finally:
            self._count -= 1
            others = self._waiting.get(key)
            if others is not None:
                others.discard(woken)
                if not others:
                    del self._waiting[key]
        return self._ends.get(key, 0) > offset

    def end(self) -> None:
        """Nobody waits any longer."""
        self._is_over = True
        for waiting in list(self._waiting.values()):
            for woken in waiting:
                if not woken.done():
                    woken.set_result(None)

    def _wake(self) -> None:
        with self._guard:
            news, self._news = self._news, {}
        for key, end in news.items():
            self._ends[key] = end
            for woken in self._waiting.get(key, ()):
                if not woken.done():
                    woken.set_result(None)
