"""Byte ranges of one file that a cache holds or is fetching, in order and without overlap.

What lives here: `CachedFile`, what a cache needs of a file; `Extent`, one range; `Extents`, those
of one file. Those of all files and their bounds are in `extent_table.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol


class CachedFile(Protocol):
    """A file that only grows at its end and only shrinks at its beginning."""

    @property
    def cache_key(self) -> Hashable:
        """Names the file among all that share a cache; not used again for other bytes."""

    @property
    def min_offset(self) -> int:
        """The first byte that may be read."""

    @property
    def commit_offset(self) -> int:
        """Bytes from here on may not be read yet."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, or an error."""


@dataclass(slots=True, eq=False, kw_only=True)
class Extent:
    """One range of a file: on its way as long as `flight` is there, complete afterwards.

    `data` never changes once it is set, so whoever found an extent may read it without the lock,
    also after it was evicted.
    """

    key: Hashable  # of the file
    start: int
    end: int
    window: int  # bytes from which a read that goes on behind this one grows
    read_to: int  # the farthest that anybody has asked for: is there somebody to read on?
    kept: bool = False  # True while others can find it
    reserved_bytes: int = 0
    used_at: float = 0.0
    data: bytes = b""
    flight: Future[bytes] | None = field(default_factory=Future)


class Extents:
    """The extents of one file. Not thread-safe: the cache's lock guards it."""

    __slots__ = ("_items", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._items: list[Extent] = []

    def __len__(self) -> int:
        return len(self._items)

    def at(self, offset: int) -> Extent | None:
        """The extent that holds this byte."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        extent = self._items[index]
        return extent if offset < extent.end else None

    def around(self, offset: int) -> tuple[Extent | None, Extent | None]:
        """What ends right before a byte that is in no extent, and what comes next behind it."""
        index = bisect_right(self._starts, offset)
        before = self._items[index - 1] if index else None
        behind = self._items[index] if index < len(self._items) else None
        return (before if before is not None and before.end == offset else None), behind

    def before(self, offset: int | None) -> list[Extent]:
        """Those that begin before an offset; all without one. A copy."""
        return self._items[: None if offset is None else bisect_left(self._starts, offset)]

    def add(self, extent: Extent) -> None:
        index = bisect_right(self._starts, extent.start)
        self._starts.insert(index, extent.start)
        self._items.insert(index, extent)

    def remove(self, extent: Extent) -> None:
        index = bisect_left(self._starts, extent.start)
        del self._starts[index], self._items[index]
