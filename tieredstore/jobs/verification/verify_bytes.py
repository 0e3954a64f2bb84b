"""The bytes of one file of a queue as the backend really has them, whatever the catalogue says.

What lives here: `SegmentBytes`: which bytes are there, reading them across segments, and naming the
segment and position of an offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.segment import FileSegment
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import SegmentCorruptError, SegmentNotFoundError


class Place(NamedTuple):
    """A byte of a segment, by the segment's path in the backend."""

    path: str
    position: int


class SegmentBytes:
    """Segments one behind the other, by base; `start` and `end` are what the catalogue says.

    How long a segment really is, the backend is asked once, when its bytes are needed first.
    """

    def __init__(self, provider: SegmentProvider, rows: Sequence[SegmentRecord]) -> None:
        self.rows = sorted((row for row in rows if row.size), key=lambda row: row.base_offset)
        self._bases = [row.base_offset for row in self.rows]
        self._provider = provider
        self._handles: dict[int, FileSegment] = {}
        self._sizes: dict[int, int] = {}

    @property
    def start(self) -> int:
        return self._bases[0] if self.rows else 0

    @property
    def end(self) -> int:
        return self.rows[-1].end_offset if self.rows else 0

    def there(self, start: int, stop: int) -> list[range]:
        """The parts of this range that the backend has, in order."""
        parts: list[range] = []
        for number in self._numbers(start, stop):
            base = self._bases[number]
            part = range(max(start, base), min(stop, base + self._size(number)))
            if not part:
                continue
            if parts and parts[-1].stop == part.start:
                parts[-1] = range(parts[-1].start, part.stop)
            else:
                parts.append(part)
        return parts

    def holds(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of many ranges, whether the backend has all of each."""
        found = np.zeros(len(starts), np.bool_)
        if len(starts):
            for part in self.there(int(starts.min()), int(stops.max())):
                found |= (starts >= part.start) & (stops <= part.stop)
        return found

    def read(self, start: int, stop: int) -> bytes:
        """Bytes that are there; raises what the backend raises."""
        pieces = []
        while start < stop:
            number = bisect_right(self._bases, start) - 1
            base = self._bases[number]
            end = min(stop, base + self._size(number))
            if end <= start:
                path, position = self.place(start)
                raise SegmentCorruptError(path, "the byte is not there", position=position)
            pieces.append(self._handle(number).read(start - base, end - start))
            start = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def place(self, offset: int) -> Place:
        """The segment that has this byte, or the one before it."""
        number = max(0, bisect_right(self._bases, offset) - 1)
        return Place(self._handle(number).path, offset - self._bases[number])

    def close(self) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()

    def _numbers(self, start: int, stop: int) -> Iterator[int]:
        for number in range(max(0, bisect_right(self._bases, start) - 1), len(self.rows)):
            if self._bases[number] >= stop:
                return
            yield number

    def _size(self, number: int) -> int:
        """At most up to where the next one begins: whose bytes overlapping ones are is settled."""
        size = self._sizes.get(number)
        if size is None:
            row = self.rows[number]
            try:
                size = min(row.size, self._handle(number).size())
            except SegmentNotFoundError:
                size = 0
            if number + 1 < len(self.rows):
                size = min(size, self._bases[number + 1] - row.base_offset)
            self._sizes[number] = size
        return size

    def _handle(self, number: int) -> FileSegment:
        handle = self._handles.get(number)
        if handle is None:
            row = self.rows[number]
            handle = self._provider.open(row.path, row.type, row.base_offset)
            self._handles[number] = handle
        return handle
