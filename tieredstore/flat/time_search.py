"""Finding the message of a time in a queue, with few reads.

What lives here: `offset_by_time`. Messages of a queue are stored one after the other, so their
times do not decrease; where they do (a clock was set back) the answer is one of the places that
fit. Reading times is in `segment_times`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.end_marks import CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.queue_read import DIRECT, ByteSource, record_place
from tieredstore.flat.segment_times import (
    HEAD_BYTES,
    catalogue_times,
    first_unit_from,
    store_time,
    times_at,
)
from tieredstore.flat.unit_spans import UnitSpans
from tieredstore.model.values import INT64_MAX, Boundary

UNITS_READ_MAX: Final = 131_072  # 2.5 MiB: one modest read even where each request takes long
LOG_READ_MAX: Final = 1 << 20  # so little of the log is read in one go, and compared in memory
PROBE_BYTES: Final = 64 * 1024  # how much of the log one look in between reads at most
_GUESSES: Final = 2  # looks at where the time should be; after them the range is halved


def offset_by_time(
    file: FlatMessageFile, timestamp: int, boundary: Boundary, source: ByteSource = DIRECT
) -> int:
    """The queue offset that belongs to a store time.

    LOWER: the first message stored then or later; the queue's end if there is none. UPPER: the
    last message stored exactly then; if there is none, what LOWER gives. An empty queue gives the
    offset of its first message to come.
    """
    # No message has such a time; the search compares 64-bit numbers.
    wanted = min(max(timestamp, -INT64_MAX), INT64_MAX - 1)
    if boundary is Boundary.LOWER:
        return _Search(file, wanted, source).first_not_before()
    search = _Search(file, wanted + 1, source)
    later = search.first_not_before()
    spans = UnitSpans.of(file.queue, search.minimum, later)
    if not spans.count:
        return later
    before = search.known.get(spans.last)
    if before is None:
        before = store_time(file, spans.last, source=source)
    return spans.last if before == wanted else later


@dataclass(slots=True)
class _Rows:
    """The units that are left in a range, and where their records lie."""

    offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    ends: NDArray[np.int64]
    in_order: bool


@dataclass(slots=True)
class _Search:
    """One search for the first message that was stored at `wanted` or later.

    All before `low` are earlier, the one at `high` is not, or it is the queue's end.
    """

    file: FlatMessageFile
    wanted: int
    source: ByteSource
    minimum: int = 0
    low: int = 0
    high: int = 0
    log_low: int = 0
    log_high: int = 0
    known: dict[int, int] = field(default_factory=dict)  # times seen next to the answer
    times: tuple[int, int] | None = None  # when the first and the last in the range were stored

    def first_not_before(self) -> int:
        file = self.file
        self.minimum = self.low = file.min_offset
        self.high = max(self.low, file.commit_offset)
        self.log_low, self.log_high = file.log.min_offset, file.log.commit_offset
        self._narrow_by_catalogue()
        spans = UnitSpans.of(file.queue, self.low, self.high)
        if spans.count > UNITS_READ_MAX:
            self._narrow_by_log_segments()
            spans = self._narrow_by_halves(UnitSpans.of(file.queue, self.low, self.high))
        if spans.count:
            self._narrow_by_looks(self._rows(spans))
        return self.high

    def _narrow_by_catalogue(self) -> None:
        """Leave out the segments whose times tell that the answer is not in them: no read."""
        now = self.file.clock.now_ms()
        for segment in self.file.queue.segments:
            record = segment.record
            times = catalogue_times(record, now)
            if times is None:
                continue
            if times[1] < self.wanted:
                self.low = max(self.low, record.end_offset // UNIT_BYTES)
            elif times[0] >= self.wanted:
                self.high = min(self.high, max(self.minimum, record.base_offset // UNIT_BYTES))
        for segment in self.file.log.segments:
            record = segment.record
            times = catalogue_times(record, now)
            if times is None:
                continue
            if times[1] < self.wanted:
                self.log_low = max(self.log_low, record.end_offset)
            elif times[0] >= self.wanted:
                self.log_high = min(self.log_high, record.base_offset)
            elif self.times is None:
                self.times = times

    def _narrow_by_log_segments(self) -> None:
        """What the log's segments tell, in queue offsets: worth its reads in a long queue only."""
        if self.log_low > self.file.log.min_offset:
            found = first_unit_from(self.file, self.log_low, source=self.source)
            self.low = min(max(self.low, found), self.high)
        if self.log_high < self.file.log.commit_offset:
            found = first_unit_from(self.file, self.log_high, source=self.source)
            self.high = max(min(self.high, found), self.low)

    def _narrow_by_halves(self, spans: UnitSpans) -> UnitSpans:
        """Halve the range until its units can be read in one go: two reads a step."""
        low, high = 0, spans.count
        while high - low > UNITS_READ_MAX:
            middle = (low + high) // 2
            time = store_time(self.file, spans.offset(middle), source=self.source)
            if time < self.wanted:
                low = middle + 1
            else:
                high = middle
                self.high = spans.offset(middle)
        if low < high:
            self.low = spans.offset(low)
        return UnitSpans.of(self.file.queue, self.low, self.high)

    def _rows(self, spans: UnitSpans) -> _Rows:
        parts = spans.part(0, spans.count)
        data = b"".join(
            self.source.read(self.file.queue, part.start * UNIT_BYTES, len(part) * UNIT_BYTES)
            for part in parts
        )
        units = decode_units(data, path=self.file.path)
        places = units.log_offsets
        places[0] = record_place(self.file, int(places[0]))
        ends = places + units.message_bytes
        return _Rows(
            offsets=np.concatenate([np.arange(part.start, part.stop) for part in parts]),
            places=places,
            ends=ends,
            in_order=bool((places[1:] >= ends[:-1]).all()),
        )

    def _narrow_by_looks(self, rows: _Rows) -> None:
        """Look at times in the range, many that lie together at once, until none is left."""
        low, high = 0, len(rows.offsets)
        if rows.in_order:
            # A unit may name the coda at the end of a segment and mean the next one's record.
            low = int(np.searchsorted(rows.places, self.log_low - CODA_BYTES))
            high = max(low, int(np.searchsorted(rows.places, self.log_high)))
            if high < len(rows.offsets):
                self.high = int(rows.offsets[high])
        looks = 0
        while low < high:
            first, last = self._window(rows, low, high, guess=looks < _GUESSES)
            times = self._times(rows, first, last)
            later = times >= self.wanted
            found = first + int(later.argmax()) if later.any() else last
            if found > first:
                low = found
                self.known[int(rows.offsets[found - 1])] = int(times[found - 1 - first])
            if found < last:
                high = found
                self.high = int(rows.offsets[found])
            looks += 1

    def _window(self, rows: _Rows, low: int, high: int, *, guess: bool) -> tuple[int, int]:
        """The rows to look at: all that are left if their records are few bytes."""
        if not rows.in_order:
            return (low + high) // 2, (low + high) // 2 + 1
        start, end = int(rows.places[low]), int(rows.ends[high - 1])
        if end - start <= LOG_READ_MAX:
            return low, high
        target = (start + end) // 2
        if guess and self.times is not None and self.times[0] < self.times[1]:
            share = (self.wanted - self.times[0]) / (self.times[1] - self.times[0])
            target = start + int(share * (end - start))
        target = min(max(target, start), end)
        first = int(np.searchsorted(rows.places, target - PROBE_BYTES // 2))
        first = min(max(first, low), high - 1)
        last = int(np.searchsorted(rows.ends, rows.places[first] + PROBE_BYTES, "right"))
        return first, min(max(last, first + 1), high)

    def _times(self, rows: _Rows, first: int, last: int) -> NDArray[np.int64]:
        places = rows.places[first:last]
        head = min(int(rows.ends[last - 1] - rows.places[last - 1]), HEAD_BYTES)
        length = int(places[-1] - places[0]) + head
        return times_at(self.file, places, self.source.read(self.file.log, int(places[0]), length))
