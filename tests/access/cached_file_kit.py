"""Shared by the tests of the read cache: a file that counts, fails and waits, and an audit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tieredstore.access.read_cache import ReadAhead, ReadCache
from tieredstore.driver.runtime import Clock, ManualClock
from tieredstore.model.config import MIB

WAIT_S = 240  # far more than any machine needs: a test that waits longer has failed
NOTHING_AHEAD = ReadAhead(floor_bytes=0, growth=1, cap_bytes=0)


def content(start: int, end: int) -> bytes:
    """Content that tells its position: every four bytes are a counter, so any shift shows."""
    first, last = start // 4, (end + 3) // 4
    whole = b"".join(n.to_bytes(4, "big") for n in range(first, last))
    return whole[start - 4 * first : end - 4 * first]


@dataclass(slots=True, kw_only=True)
class FakeFile:
    """A file of counted content that records its reads."""

    commit_offset: int
    min_offset: int = 0
    cache_key: Hashable = ("broker/topic/0", "commit log")
    reads: list[tuple[int, int]] = field(default_factory=list)  # offset, length
    before_read: Callable[[int, int], None] | None = None
    data: bytes | None = None  # instead of counted content: cheap for long files

    def read(self, offset: int, length: int) -> bytes:
        assert self.min_offset <= offset < offset + length <= self.commit_offset
        self.reads.append((offset, length))
        if self.before_read is not None:
            self.before_read(offset, length)
        if self.data is not None:
            return self.data[offset : offset + length]
        return content(offset, offset + length)


def a_cache(
    *, bytes_max: int = 64 * MIB, idle_ms: int = 15_000, clock: Clock | None = None
) -> ReadCache:
    return ReadCache(bytes_max=bytes_max, idle_ms=idle_ms, clock=clock or ManualClock())


def asked(cache: ReadCache, count: int) -> None:
    """Return once `count` reads are planned; by then, a reader with nothing to fetch waits."""
    tick = threading.Event()
    for _ in range(WAIT_S * 1000):
        if cache.access_count >= count:
            return
        tick.wait(0.001)
    raise AssertionError(f"{cache.access_count} of {count} reads came")


def extents(cache: ReadCache) -> list[tuple[Hashable, int, int]]:
    """All extents that can be found. Also checks the table; no read may be under way."""
    table = cache._table
    found = []
    for key, of_file in table._files.items():
        items = of_file.before(None)
        assert items, "a file without extents is forgotten"
        assert of_file._starts == [extent.start for extent in items]
        ends = [0, *(extent.end for extent in items)]
        for end_before, extent in zip(ends, items, strict=False):
            assert end_before <= extent.start < extent.end, "extents overlap"
            assert len(extent.data) == extent.end - extent.start == extent.reserved_bytes
            assert extent.flight is None
            assert extent.kept
            found.append((key, extent.start, extent.end))
    assert len(found) == cache.extent_count
    assert sum(end - start for _, start, end in found) == cache.held_bytes
    assert table._in_flight_bytes == 0
    used = [extent.used_at for extent in table._complete]
    assert used == sorted(used)
    return found
