"""Store times: of one message, of many that lie together, and of a whole segment.

What lives here: reading times from records, which messages a segment holds, and when to believe
the catalogue. RocketMQ takes part of an IPv6 address for the store time of a message born on IPv6,
so its catalogues have times that never were.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.end_marks import CODA_BYTES, is_blank
from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnit, decode_unit, view_units
from tieredstore.codec.record_fields import (
    BORN_HOST_IPV6,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    SYS_FLAG_POSITION,
    peek_magic,
    peek_queue_offset,
    peek_store_timestamp,
)
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.believed_times import is_believed
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.queue_read import DIRECT, ByteSource, record_place
from tieredstore.flat.unit_spans import UnitSpans
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import SegmentType

HEAD_BYTES: Final = 92  # a coda, and a record up to and with the store time if born on IPv6
UNITS_AT_ONCE: Final = 4096

_MAGICS: Final = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)


def catalogue_times(record: SegmentRecord, now_ms: int) -> tuple[int, int] | None:
    """When the messages of a segment were stored, first and last, if the row can be believed.

    Both or none: where one is nonsense, the other may be that of any message in between.
    """
    begin, end = record.begin_timestamp, record.end_timestamp
    if begin is None or end is None or begin > end:
        return None
    return (begin, end) if is_believed(begin, now_ms) and is_believed(end, now_ms) else None


def believed_times(
    file: FlatMessageFile, segment: FlatSegment, *, source: ByteSource = DIRECT
) -> tuple[int, int] | None:
    """When the first and the last message of a segment were stored; None if it holds none.

    A few small reads where the catalogue cannot be believed. They are done once, but for the end
    of a segment that grows.
    """
    record = segment.record
    known = catalogue_times(record, file.clock.now_ms())
    if known is not None or not record.size:
        return known
    cached = segment.times_read
    if cached is not None and cached[0] == record.size:
        return cached[1:]
    held = units_of(file, record, source=source)
    if not held:
        return None
    begin = cached[1] if cached is not None else store_time(file, held.start, source=source)
    end = store_time(file, held.stop - 1, source=source)
    segment.times_read = record.size, begin, end
    return begin, end


def units_of(file: FlatMessageFile, record: SegmentRecord, *, source: ByteSource = DIRECT) -> range:
    """The queue offsets of the messages in a segment, of either type; empty if it holds none."""
    if record.type is SegmentType.CONSUME_QUEUE:
        return range(record.base_offset // UNIT_BYTES, record.end_offset // UNIT_BYTES)
    first = first_unit_from(file, record.base_offset, source=source)
    behind = first_unit_from(file, record.end_offset, source=source)
    # The last of them, not the offset before the next one: there may be a gap between the two.
    spans = UnitSpans.of(file.queue, first, behind)
    return range(first, spans.last + 1) if spans.count else range(first, first)


def first_unit_from(file: FlatMessageFile, log_offset: int, *, source: ByteSource = DIRECT) -> int:
    """The first message whose record lies at or behind the end of a log segment; the queue's end
    if there is none.

    The record right there, if one begins there, tells its own queue offset: two reads mostly.
    """
    spans = UnitSpans.of(file.queue, file.queue.min_unit, file.queue.commit_unit)
    if log_offset >= file.log.commit_offset or not spans.count:
        return file.queue.commit_unit
    place = log_offset - CODA_BYTES  # a unit that names the segment's coda means what is behind
    guess = queue_offset_at(file, log_offset, source)
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


def store_time(file: FlatMessageFile, offset: int, *, source: ByteSource = DIRECT) -> int:
    """When a message was stored: two small reads."""
    unit = _unit(file.queue, offset, source)
    place = record_place(file, unit.log_offset)
    data = source.read(file.log, place, min(max(unit.message_bytes, 0), HEAD_BYTES))
    at = CODA_BYTES if is_blank(data) else 0
    if peek_magic(data, at, path=file.path) not in _MAGICS:
        raise no_message(file, place)
    return peek_store_timestamp(data, at, path=file.path)


def earliest_time(file: FlatMessageFile, *, source: ByteSource = DIRECT) -> int | None:
    """When the oldest message was stored, or one before it in the same segment; None if there is
    none. No read where the catalogue is believed."""
    for segment in file.log.segments:
        times = believed_times(file, segment, source=source)
        if times is not None:
            return times[0]
    return None


def times_at(file: FlatMessageFile, places: NDArray[np.int64], data: bytes) -> NDArray[np.int64]:
    """The store times of records, or of codas and the records behind them, from the log's bytes.

    The bytes begin with the first record and end with HEAD_BYTES of the last, or all of it.
    """
    starts = places - places[0]
    padded = data + bytes(HEAD_BYTES)  # so that a look at an IPv6 place stays within
    halves: NDArray[Any] = np.ndarray((len(padded) - 3,), ">u4", padded, strides=(1,))
    words: NDArray[Any] = np.ndarray((len(padded) - 7,), ">i8", padded, strides=(1,))
    magics = halves[starts + 4]
    codas = ~np.isin(magics, _MAGICS)
    if codas.any():
        for row in np.flatnonzero(codas):
            if is_blank(data, int(starts[row])):
                starts[row] += CODA_BYTES
        bad = ~np.isin(halves[starts + 4], _MAGICS)
        if bad.any():
            raise no_message(file, int(places[int(bad.argmax())]))
    born_ipv6 = halves[starts + SYS_FLAG_POSITION] & BORN_HOST_IPV6 != 0
    times: NDArray[np.int64] = words[starts + np.where(born_ipv6, 68, 56)].astype(np.int64)
    return times


def no_message(file: FlatMessageFile, log_offset: int) -> SegmentCorruptError:
    found = file.log.segment_at(log_offset)
    reason = "no message begins here, but a queue unit says so"
    if found is None:
        return SegmentCorruptError(f"{file.path}/COMMIT_LOG", reason, position=log_offset)
    return SegmentCorruptError(found.segment.path, reason, position=log_offset - found.base)


def queue_offset_at(file: FlatMessageFile, log_offset: int, source: ByteSource) -> int | None:
    """The number of the message whose record begins at a byte of the log; None if none does."""
    found = file.log.segment_at(log_offset)
    if found is None or found.end - log_offset < HEAD_BYTES - 1:
        return None
    head = source.read(file.log, log_offset, HEAD_BYTES - 1)
    return peek_queue_offset(head) if peek_magic(head) in _MAGICS else None


def _unit(queue: FlatAppendFile, offset: int, source: ByteSource) -> QueueUnit:
    return decode_unit(source.read(queue, offset * UNIT_BYTES, UNIT_BYTES))


def log_offsets_of(
    queue: FlatAppendFile, spans: UnitSpans, low: int, high: int, source: ByteSource
) -> NDArray[np.int64]:
    """Where the records of these units lie; one read for each span without a gap."""
    columns = [
        view_units(source.read(queue, span.start * UNIT_BYTES, len(span) * UNIT_BYTES))[
            "log_offset"
        ].astype(np.int64)
        for span in spans.part(low, high)
    ]
    return np.concatenate(columns)
