"""The units that a queue has, counted through, where its gaps leave some out.

What lives here: `UnitSpans`. A search by halves needs places that are next to each other; queue
offsets are not where messages were lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate

from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnits
from tieredstore.flat.append_file import FlatAppendFile


class UnitSpans:
    """The committed units within a range of queue offsets, numbered from 0 without gaps."""

    __slots__ = ("_firsts", "_spans", "count")

    def __init__(self, spans: list[range]) -> None:
        self._spans = spans
        self._firsts = [0, *accumulate(len(span) for span in spans)]
        self.count = self._firsts[-1]

    @classmethod
    def of(cls, queue: FlatAppendFile, low: int, high: int) -> UnitSpans:
        """The units of a queue in [low, high)."""
        spans: list[range] = []
        for segment in queue.segments:
            start = max(low, segment.base // UNIT_BYTES)
            stop = min(high, segment.end // UNIT_BYTES)
            if start >= stop:
                continue
            if spans and spans[-1].stop == start:
                spans[-1] = range(spans[-1].start, stop)
            else:
                spans.append(range(start, stop))
        return cls(spans)

    @property
    def last(self) -> int:
        """The newest queue offset; there must be one."""
        return self._spans[-1].stop - 1

    def offset(self, index: int) -> int:
        """The queue offset of unit number `index`."""
        span = bisect_right(self._firsts, index) - 1
        return self._spans[span][index - self._firsts[span]]

    def index(self, offset: int) -> int | None:
        """The number of the unit with this queue offset; None if it is not there."""
        for first, span in zip(self._firsts, self._spans, strict=False):
            if offset in span:
                return first + offset - span.start
        return None

    def first_at(self, log_offset: int, units: Callable[[int, int], QueueUnits]) -> int | None:
        """The queue offset of the first unit whose record lies at this place of the log or behind
        it; `units` reads some."""

        def place(index: int) -> int:
            return int(units(self.offset(index), 1).log_offsets[0])

        found = bisect_left(range(self.count), log_offset, key=place)
        return self.offset(found) if found < self.count else None

    def part(self, low: int, high: int) -> list[range]:
        """Numbers [low, high) as ranges of queue offsets."""
        parts = []
        for first, span in zip(self._firsts, self._spans, strict=False):
            part = span[max(0, low - first) : max(0, high - first)]
            if part:
                parts.append(part)
        return parts
