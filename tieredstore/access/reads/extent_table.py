"""The extents of all files that share a cache, within a budget of bytes and of idle time.

What lives here: `ExtentTable`: who comes in, who has to go, and the count of the bytes. It knows no
lock, no file and no policy: `read_ahead.py` brings these.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from tieredstore.access.reads.extents import Extent, Extents


class ExtentTable:
    """Extents by file, the complete ones also by when they were last used.

    * `held_bytes`, what is complete and what is reserved for what is on its way, is never more
      than `bytes_max`.
    * Only complete extents are evicted, the least recently used first. An extent goes whole.
    * Not thread-safe: the cache's lock guards it.
    """

    def __init__(self, *, bytes_max: int, idle_ms: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.sweep_at = float("inf")  # nothing is idle before
        self._idle = idle_ms / 1000
        self._in_flight_bytes = 0
        self._files: dict[Hashable, Extents] = {}
        self._complete: OrderedDict[Extent, None] = OrderedDict()  # least recently used first

    @property
    def complete_count(self) -> int:
        return len(self._complete)

    def find(self, key: Hashable, offset: int) -> Extent | None:
        """The extent that holds this byte, complete or on its way."""
        extents = self._files.get(key)
        return extents.at(offset) if extents is not None else None

    def around(self, key: Hashable, offset: int) -> tuple[Extent | None, Extent | None]:
        """What ends right before a byte that is in no extent, and what comes next behind it."""
        extents = self._files.get(key)
        return extents.around(offset) if extents is not None else (None, None)

    def touch(self, extent: Extent, end: int, now: float) -> None:
        """Somebody reads it now, up to `end`."""
        extent.read_to = max(extent.read_to, min(end, extent.end))
        if extent.flight is None:
            extent.used_at = now
            self._complete.move_to_end(extent)

    # The life of an extent

    def add(self, extent: Extent) -> bool:
        """Take one that will be fetched; False if there is no room even when all else goes."""
        size = extent.end - extent.start
        if self._in_flight_bytes + size > self.bytes_max:
            return False
        while self.held_bytes + size > self.bytes_max:
            self._evict(next(iter(self._complete)))
        self.held_bytes += size
        self._in_flight_bytes += size
        extent.reserved_bytes = size
        extent.kept = True
        self._files.setdefault(extent.key, Extents()).add(extent)
        return True

    def shrink(self, extent: Extent, end: int) -> None:
        """Less will be fetched than was registered."""
        spared = extent.end - end if extent.reserved_bytes else 0
        self.held_bytes -= spared
        self._in_flight_bytes -= spared
        extent.reserved_bytes -= spared
        extent.end = extent.read_to = end

    def settle(self, extent: Extent, data: bytes, now: float) -> None:
        """It has come; it stays unless it was forgotten meanwhile."""
        extent.data = data  # before the flight ends: others look without the lock
        extent.flight = None
        self._in_flight_bytes -= extent.reserved_bytes
        if not extent.kept:
            self.held_bytes -= extent.reserved_bytes
            return
        extent.used_at = now
        self._complete[extent] = None
        self.sweep_at = min(self.sweep_at, now + self._idle)

    def fail(self, extent: Extent) -> None:
        """It will not come."""
        self._in_flight_bytes -= extent.reserved_bytes
        self.held_bytes -= extent.reserved_bytes
        if extent.kept:
            self._remove(extent)

    def drop_idle(self, now: float, count_max: int) -> None:
        self.sweep_at = now  # unless all that is idle goes
        for _ in range(count_max):
            oldest = next(iter(self._complete), None)
            if oldest is None or oldest.used_at + self._idle > now:
                self.sweep_at = oldest.used_at + self._idle if oldest else float("inf")
                return
            self._evict(oldest)

    def forget(self, key: Hashable, before: int | None) -> None:
        """Drop those of a file that begin before an offset, or all; on their way or not."""
        extents = self._files.get(key)
        for extent in extents.before(before) if extents is not None else ():
            if extent.flight is None:
                self._evict(extent)
            else:
                self._remove(extent)

    def clear(self) -> None:
        for key in list(self._files):
            self.forget(key, None)

    def _evict(self, extent: Extent) -> None:
        del self._complete[extent]
        self._remove(extent)
        self.held_bytes -= extent.reserved_bytes

    def _remove(self, extent: Extent) -> None:
        extent.kept = False
        extents = self._files[extent.key]
        extents.remove(extent)
        if not extents:
            del self._files[extent.key]
