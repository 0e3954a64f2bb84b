"""Keeps the objects that this process sent last and that are still in use, so that merging and
sealing need not read them back."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from tieredstore.driver.object_client import Range
from tieredstore.driver.segment import Buffer
from tieredstore.roundlog.object_calls import ObjectCalls

RECENT_BYTES_MAX: Final = 64 << 20  # as many as one merge takes


class RecentObjects:
    """The last objects sent, up to `bytes_max` in all. Objects never change, so they stay valid."""

    def __init__(self, calls: ObjectCalls, *, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._calls = calls
        self._bytes_max = bytes_max
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._guard = threading.Lock()

    def add(self, key: str, data: Buffer) -> None:
        """Keep an object that is durable; the oldest ones make room."""
        if not isinstance(data, bytes) or len(data) > self._bytes_max:
            return
        with self._guard:
            self._bytes += len(data) - len(self._held.pop(key, b""))
            self._held[key] = data
            while self._bytes > self._bytes_max:
                _, gone = self._held.popitem(last=False)
                self._bytes -= len(gone)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def keep_only(self, is_used: Callable[[str], bool]) -> None:
        """Drop all objects that are no longer used."""
        with self._guard:
            for key in [each for each in self._held if not is_used(each)]:
                self._bytes -= len(self._held.pop(key))

    def ranges(self, wanted: Sequence[Range]) -> list[Buffer]:
        """Each range, in order: from memory, or else from the store."""
        with self._guard:
            held = [self._held.get(each.key) for each in wanted]
        is_here = [
            data is not None and each.start + each.length <= len(data)
            for each, data in zip(wanted, held, strict=True)
        ]
        read = iter(
            self._calls.ranges(
                [each for each, here in zip(wanted, is_here, strict=True) if not here]
            )
        )
        return [
            memoryview(data)[each.start : each.start + each.length]
            if here and data is not None
            else next(read)
            for each, data, here in zip(wanted, held, is_here, strict=True)
        ]
