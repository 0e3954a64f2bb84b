"""One queue's rows, from its bytes alone.

What lives here: `found_queue`. How much counts is decided as at any opening, by `flat.recovery`,
and times are read from the records by `flat.segment_times`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tieredstore.access.care.found_rows import FoundRows
from tieredstore.codec.end_marks import CODA_BYTES, is_coda
from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import recover
from tieredstore.flat.segment_times import store_time, units_of
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendError, OffsetOutOfRangeError, SegmentError


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundQueue:
    """A queue that lies in the backend. `problem` says what its bytes do not bear out, and `note`
    what a sound queue may have."""

    record: QueueRecord
    rows: tuple[SegmentRecord, ...]
    file: FlatMessageFile
    problem: str | None
    note: str | None = None

    @property
    def topic(self) -> str:
        return self.record.topic


def found_queue(
    listed: Sequence[ListedSegment],
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
) -> FoundQueue:
    """All segments of one queue path, with their sizes and the true times of their messages.

    BackendError where the backend cannot be asked.
    """
    path = listed[0].path
    broker, topic, number = path.split("/", 2)
    record = QueueRecord(
        broker_name=broker,
        topic=topic,
        queue_id=int(number),
        update_timestamp=runtime.clock.now_ms(),
    )
    # Without sizes: recovery then asks for all of them, and looks how far the units bear them out.
    rows = [SegmentRecord(path=path, type=each.type, base_offset=each.base) for each in listed]
    file = FlatMessageFile(
        record,
        TopicRecord(topic=topic, topic_id=-1),
        config,
        path=path,
        provider=provider,
        metadata=FoundRows(rows),
        clock=runtime.clock,
    )
    problems: list[str] = []
    try:
        recover(file, FoundRows(rows), runtime.clock, read_only=True)
    except (SegmentError, OffsetOutOfRangeError) as error:
        problems.append(f"not recovered: {error}")
    if file.problem is not None:
        problems.append(file.problem)
    _count_coda(file)
    timed = tuple(_with_times(file, each, problems) for each in _segments(file))
    if not file.queue.segments and file.log.segments:
        problems.append("it has a log and no queue units")
    problem = "; ".join(dict.fromkeys(problems)) or None
    note = _expired_units(file)
    return FoundQueue(record=record, rows=timed, file=file, problem=problem, note=note)


def _segments(file: FlatMessageFile) -> tuple[FlatSegment, ...]:
    return (*file.log.segments, *file.queue.segments)


def _count_coda(file: FlatMessageFile) -> None:
    """The mark behind the last record of an old sealed segment is named by no unit."""
    last = file.log.segments[-1] if file.log.segments else None
    if last is None or last.backend_bytes() - last.record.size != CODA_BYTES:
        return
    if is_coda(last.segment.read(last.record.size, CODA_BYTES)):
        last.record = replace(last.record, size=last.record.size + CODA_BYTES)


def _with_times(file: FlatMessageFile, segment: FlatSegment, problems: list[str]) -> SegmentRecord:
    """The row, with the times of the oldest and the newest message of it that there are.

    The oldest queue segment may begin with units of messages that have expired with the log.
    """
    found, record = segment.record, segment.record
    begin, end = found.begin_timestamp, found.end_timestamp  # as the recovery read them
    try:
        held = units_of(file, record)
        first = max(held.start, file.min_offset)
        if first < held.stop:
            begin = store_time(file, first)
            end = store_time(file, held.stop - 1)
    except BackendError:
        raise
    except (SegmentError, OffsetOutOfRangeError) as error:
        if begin is None or end is None:
            problems.append(f"{segment.segment.path}: its times cannot be read: {error}")
    if begin is None or end is None:
        return replace(record, begin_timestamp=None, end_timestamp=None)
    # When the segment was made is written nowhere: not before its first message.
    return replace(
        record, create_timestamp=begin, begin_timestamp=begin, end_timestamp=max(begin, end)
    )


def _expired_units(file: FlatMessageFile) -> str | None:
    """A log's segments and the queue's end at other messages: both go only as a whole."""
    try:
        count = file.min_offset - file.queue.min_unit
    except BackendError:
        raise
    except (SegmentError, OffsetOutOfRangeError):
        return None  # a problem says why
    if count <= 0:
        return None
    return f"begins with {count} units of messages that have expired"
