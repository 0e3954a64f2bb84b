"""Store times of messages and segments, and a search by time in a queue that takes few reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.message import CODA_BYTES, is_blank
from tieredstore.codec.queue_unit import (
    UNIT_BYTES,
    QueueUnit,
    decode_unit,
    decode_units,
    view_units,
)
from tieredstore.codec.record import (
    BORN_HOST_IPV6,
    MESSAGE_MAGICS,
    SYS_FLAG_POSITION,
    peek_magic,
    peek_queue_offset,
    peek_store_timestamp,
)
from tieredstore.flat.append_file import FlatSegment
from tieredstore.flat.message_file import (
    FlatConsumeQueueFile,
    FlatMessageFile,
    UnitSpans,
    is_believed,
)
from tieredstore.flat.reading import DIRECT, ByteSource, damage_at, record_place
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentCorruptError, SegmentError
from tieredstore.model.values import INT64_MAX, Boundary, SegmentRecord, SegmentType

HEAD_BYTES: Final = 92  # a coda, and a record up to and including its store time (born on IPv6)
UNITS_AT_ONCE: Final = 4096
UNITS_READ_MAX: Final = 131_072  # 2.5 MiB: one modest read even if each request is slow
LOG_READ_MAX: Final = 1 << 20  # of the log: so little is read in one go and compared in memory
PROBE_BYTES: Final = 64 * 1024  # of the log, read by one probe of a longer range
_GUESSES: Final = 2  # probes where the time should be; after them the range is halved


def offset_by_time(
    file: FlatMessageFile, timestamp: int, boundary: Boundary, source: ByteSource = DIRECT
) -> int:
    """The queue offset for a store time.

    LOWER: the first message stored then or later; the queue's end if there is none. UPPER: the
    last message stored exactly then; if there is none, the same as LOWER. For an empty queue, the
    offset that its first message will have.
    """
    # The search compares 64-bit numbers; no message has a time outside these limits.
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


def catalogue_times(record: SegmentRecord, now_ms: int) -> tuple[int, int] | None:
    """When the first and the last message of a segment were stored, if the row can be believed.

    Both or none: if one time is nonsense, the other may be that of any message of the segment.
    """
    begin, end = record.begin_timestamp, record.end_timestamp
    if begin is None or end is None or begin > end:
        return None
    return (begin, end) if is_believed(begin, now_ms) and is_believed(end, now_ms) else None


def believed_times(
    file: FlatMessageFile, segment: FlatSegment, *, source: ByteSource = DIRECT
) -> tuple[int, int] | None:
    """When the first and the last message of a segment were stored; None if it holds none.

    Takes a few small reads if the catalogue cannot be believed. They are not repeated, except at
    the end of a segment that grows.
    """
    record = segment.record
    known = catalogue_times(record, file.clock.now_ms())
    if known is not None or not record.size:
        return known
    cached = segment.times_read
    if cached is not None and cached[0] == record.size:
        return cached[1:]
    held = units_of(file, record, source=source)
    if record.type is SegmentType.CONSUME_QUEUE:  # the records of its first units may have expired
        held = range(max(held.start, file.min_offset), held.stop)
    if not held:
        return None
    begin = cached[1] if cached is not None else store_time(file, held.start, source=source)
    end = store_time(file, held.stop - 1, source=source)
    segment.times_read = record.size, begin, end
    return begin, end


def earliest_time(file: FlatMessageFile, *, source: ByteSource = DIRECT) -> int | None:
    """When the oldest message was stored; None if there is none. Takes no read if the catalogue is
    believed.

    Segments of the log and of the units expire apart: the oldest message begins one of the two, and
    the other may begin with messages before it.
    """
    begins = [_begin(file, part.segments, source) for part in (file.log, file.queue)]
    return max((begin for begin in begins if begin is not None), default=None)


def _begin(
    file: FlatMessageFile, segments: Sequence[FlatSegment], source: ByteSource
) -> int | None:
    """When the first message of these segments was stored."""
    for segment in segments:
        times = believed_times(file, segment, source=source)
        if times is not None:
            return times[0]
    return None


def store_time(file: FlatMessageFile, offset: int, *, source: ByteSource = DIRECT) -> int:
    """When a message was stored. Takes two small reads."""
    unit = _unit(file.queue, offset, source)
    place = record_place(file, unit.log_offset)
    length = min(max(unit.message_bytes, 0), HEAD_BYTES)
    data = _read_named(file, offset, place, length, source)
    at = CODA_BYTES if is_blank(data) else 0
    if peek_magic(data, at, path=file.path) not in MESSAGE_MAGICS:
        raise no_message(file, place)
    return peek_store_timestamp(data, at, path=file.path)


def units_of(file: FlatMessageFile, record: SegmentRecord, *, source: ByteSource = DIRECT) -> range:
    """The queue offsets of the messages in a segment, of either type; empty if it holds none."""
    if record.type is SegmentType.CONSUME_QUEUE:
        return range(record.base_offset // UNIT_BYTES, record.end_offset // UNIT_BYTES)
    first = first_unit_from(file, record.base_offset, source=source)
    behind = first_unit_from(file, record.end_offset, source=source)
    # Use the last unit, not the offset before `behind`: there may be a gap between the two.
    spans = UnitSpans.of(file.queue, first, behind)
    return range(first, spans.last + 1) if spans.count else range(first, first)


def first_unit_from(file: FlatMessageFile, log_offset: int, *, source: ByteSource = DIRECT) -> int:
    """The first message whose record lies at or after `log_offset`, where a log segment begins or
    ends; the queue's end if there is none.

    A record that begins there says its own queue offset, so this mostly takes two reads.
    """
    spans = UnitSpans.of(file.queue, file.queue.min_unit, file.queue.commit_unit)
    if log_offset >= file.log.commit_offset or not spans.count:
        return file.queue.commit_unit
    place = log_offset - CODA_BYTES  # a unit that names the coda means the record after it
    try:
        guess = queue_offset_at(file, log_offset, source)
    except (SegmentError, OffsetOutOfRangeError):
        guess = None  # the units say it, though the record is lost
    if guess is not None and (index := spans.index(guess)) is not None:
        near = log_offsets_of(file.queue, spans, max(0, index - 1), index + 1, source)
        if near[-1] in (place, log_offset) and (index == 0 or near[0] < place):
            return guess
    low, high = 0, spans.count
    while high - low > UNITS_AT_ONCE:
        middle = (low + high) // 2
        if _unit(file.queue, spans.offset(middle), source).log_offset < place:
            low = middle + 1
        else:
            high = middle
    if low < high:
        low += int(np.searchsorted(log_offsets_of(file.queue, spans, low, high, source), place))
    return spans.offset(low) if low < spans.count else file.queue.commit_unit


def queue_offset_at(file: FlatMessageFile, log_offset: int, source: ByteSource) -> int | None:
    """The queue offset of the message whose record begins here in the log; None if none does."""
    found = file.log.segment_at(log_offset)
    if found is None or found.end - log_offset < HEAD_BYTES - 1:
        return None
    head = source.read(file.log, log_offset, HEAD_BYTES - 1)
    return peek_queue_offset(head) if peek_magic(head) in MESSAGE_MAGICS else None


def log_offsets_of(
    queue: FlatConsumeQueueFile, spans: UnitSpans, low: int, high: int, source: ByteSource
) -> NDArray[np.int64]:
    """The log offsets of these units' records. Takes one read for each span without a gap."""
    columns = [
        view_units(_units(queue, span.start, len(span), source))["log_offset"].astype(np.int64)
        for span in spans.part(low, high)
    ]
    return np.concatenate(columns)


def times_at(file: FlatMessageFile, places: NDArray[np.int64], data: bytes) -> NDArray[np.int64]:
    """The store times of records at these places, or after codas there, from the log's bytes.

    `data` begins with the first record and ends with HEAD_BYTES of the last, or with all of it.
    """
    starts = places - places[0]
    padded = data + bytes(HEAD_BYTES)  # so that the place of a time after IPv6 is within it
    halves: NDArray[Any] = np.ndarray((len(padded) - 3,), ">u4", padded, strides=(1,))
    words: NDArray[Any] = np.ndarray((len(padded) - 7,), ">i8", padded, strides=(1,))
    magics = halves[starts + 4]
    codas = ~np.isin(magics, list(MESSAGE_MAGICS))
    if codas.any():
        for row in np.flatnonzero(codas):
            if is_blank(data, int(starts[row])):
                starts[row] += CODA_BYTES
        bad = ~np.isin(halves[starts + 4], list(MESSAGE_MAGICS))
        if bad.any():
            raise no_message(file, int(places[int(bad.argmax())]))
    born_ipv6 = halves[starts + SYS_FLAG_POSITION] & BORN_HOST_IPV6 != 0
    times: NDArray[np.int64] = words[starts + np.where(born_ipv6, 68, 56)].astype(np.int64)
    return times


def no_message(file: FlatMessageFile, log_offset: int) -> SegmentCorruptError:
    return damage_at(file.log, log_offset, "no message begins here, but a queue unit says so")


@dataclass(slots=True)
class _Rows:
    """The units in the remaining range, and where their records lie."""

    offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    ends: NDArray[np.int64]
    in_order: bool


@dataclass(slots=True)
class _Search:
    """One search for the first message that was stored at `wanted` or later.

    All messages before `low` are earlier. The one at `high` is not, or `high` is the queue's end.
    """

    file: FlatMessageFile
    wanted: int
    source: ByteSource
    minimum: int = 0
    low: int = 0
    high: int = 0
    log_low: int = 0
    log_high: int = 0
    known: dict[int, int] = field(default_factory=dict)  # times of messages before the answer
    times: tuple[int, int] | None = None  # of the first and the last message in the range

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
        """Exclude the segments whose times in the catalogue rule out the answer. Takes no read."""
        first, behind, _ = self._around(self.file.queue.segments)
        self.low = max(self.low, first // UNIT_BYTES)
        self.high = min(self.high, max(self.minimum, behind // UNIT_BYTES))
        first, behind, self.times = self._around(self.file.log.segments)
        self.log_low, self.log_high = max(self.log_low, first), min(self.log_high, behind)

    def _around(self, segments: Sequence[FlatSegment]) -> tuple[int, int, tuple[int, int] | None]:
        """Between which bytes the answer lies, and the times of the segment that has it.

        No segment behind that one counts: if one is earlier, the clock was set back.
        """
        now = self.file.clock.now_ms()
        first, within = 0, None
        for segment in segments:
            record = segment.record
            times = catalogue_times(record, now)
            if times is None:
                continue
            if within is not None or times[0] >= self.wanted:
                return first, record.base_offset, within
            if times[1] < self.wanted:
                first = record.end_offset
            else:
                within = times
        return first, INT64_MAX, within

    def _narrow_by_log_segments(self) -> None:
        """Exclude log segments too, by queue offsets. Takes reads, which pay in a long queue."""
        if self.log_low > self.file.log.min_offset:
            found = first_unit_from(self.file, self.log_low, source=self.source)
            self.low = min(max(self.low, found), self.high)
        if self.log_high < self.file.log.commit_offset:
            found = first_unit_from(self.file, self.log_high, source=self.source)
            self.high = max(min(self.high, found), self.low)

    def _narrow_by_halves(self, spans: UnitSpans) -> UnitSpans:
        """Halve the range until its units can be read in one go. Takes two reads a step."""
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
            _units(self.file.queue, part.start, len(part), self.source) for part in parts
        )
        units = decode_units(data, path=self.file.path)
        places = units.log_offsets
        places[0] = record_place(self.file, int(places[0]))
        ends = places + units.message_bytes
        return _Rows(
            offsets=np.concatenate([np.arange(part.start, part.stop) for part in parts]),
            places=places,
            ends=ends,
            # An end before its place is damage: a negative size, or a number beyond 64 bits.
            in_order=bool((places[1:] >= ends[:-1]).all() and (places <= ends).all()),
        )

    def _narrow_by_looks(self, rows: _Rows) -> None:
        """Read times in the range, those of a window of records at once, until none is left."""
        low, high = 0, len(rows.offsets)
        if rows.in_order:
            # A unit that means the first record of a segment may name the coda before it.
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
        """The rows to read next: all of them if their records are few bytes."""
        if not rows.in_order:
            return (low + high) // 2, (low + high) // 2 + 1
        start, end = int(rows.places[low]), int(rows.ends[high - 1])
        if end - start <= LOG_READ_MAX:
            return low, high
        target = (start + end) // 2
        if guess and self.times is not None:  # `wanted` lies between them
            share = (self.wanted - self.times[0]) / (self.times[1] - self.times[0])
            target = start + int(share * (end - start))
        target = min(max(target, start), end)
        first = int(np.searchsorted(rows.places, target - PROBE_BYTES // 2))
        first = min(max(first, low), high - 1)
        last = int(np.searchsorted(rows.ends, rows.places[first] + PROBE_BYTES, "right"))
        return first, min(max(last, first + 1), high)

    def _times(self, rows: _Rows, first: int, last: int) -> NDArray[np.int64]:
        places = rows.places[first:last]
        head = min(int(rows.ends[last - 1]) - int(rows.places[last - 1]), HEAD_BYTES)
        length = int(places[-1] - places[0]) + head
        offset, place = int(rows.offsets[first]), int(places[0])
        data = _read_named(self.file, offset, place, length, self.source)
        return times_at(self.file, places, data)


def _read_named(
    file: FlatMessageFile, offset: int, place: int, length: int, source: ByteSource
) -> bytes:
    """Bytes of the log from `place` on, where a message's unit says that its record is."""
    try:
        return source.read(file.log, place, length)
    except OffsetOutOfRangeError as error:
        reason = f"the unit of message {offset} names no record of the log"
        raise damage_at(file.queue, offset * UNIT_BYTES, reason) from error


def _unit(queue: FlatConsumeQueueFile, offset: int, source: ByteSource) -> QueueUnit:
    return decode_unit(_units(queue, offset, 1, source))


def _units(queue: FlatConsumeQueueFile, offset: int, count: int, source: ByteSource) -> bytes:
    """The units from here on. It is damage if the queue has them but the backend lacks some."""
    try:
        return source.read(queue, offset * UNIT_BYTES, count * UNIT_BYTES)
    except OffsetOutOfRangeError as error:
        if not queue.min_unit <= offset <= queue.commit_unit - count:
            raise
        reason = f"of the units of {count} messages from {offset} on some are not there"
        raise damage_at(queue, offset * UNIT_BYTES, reason) from error
