"""Expiry of one queue: segments whose messages are all older than a given time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tieredstore.codec.message import CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.flat.append_file import FlatAppendFile, FlatSegment
from tieredstore.flat.message_file import HOUR_MS, FlatMessageFile, UnitSpans
from tieredstore.flat.reading import DIRECT, ByteSource
from tieredstore.flat.times import (
    UNITS_AT_ONCE,
    believed_times,
    first_unit_from,
    log_offsets_of,
    queue_offset_at,
)
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import TopicRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What went; `undeleted` are paths whose bytes are still there and noted to be deleted."""

    segment_count: int
    dropped_bytes: int
    min_offset: int
    undeleted: tuple[str, ...] = ()


def kept_from(config: StoreConfig, topic: TopicRecord, now_ms: int) -> int | None:
    """The time from which on messages of a topic are kept; None: all of them, always."""
    if not config.expiry_enabled:
        return None
    hours = topic.reserve_hours
    if hours is None or hours <= 0:
        hours = config.reserve_hours
    return now_ms - hours * HOUR_MS


def expire(file: FlatMessageFile, before_ms: int, *, source: ByteSource = DIRECT) -> Expired:
    """Drop the oldest segments, those all of whose messages were stored before a time.

    * The log's segments decide. The units of what they hold go first, then they do, so no message
      that can be found is ever without its record.
    * The catalogue forgets a segment before its bytes go, and notes what has to be deleted: what a
      crash or an error leaves behind is deleted later. Nothing is tried twice here.
    * The last segment goes only as a whole, when nothing waits, and an empty one takes its place:
      the queue keeps its offsets for ever.

    For the one who appends to this queue, while no commit of it is under way. Raises what the
    backend raises where times have to be read, and what the catalogue raises.
    """
    going = _going(file, before_ms, source)
    if not going.log:
        return going.foretold
    for each, segments in ((file.log, going.log), (file.queue, going.queue)):
        if segments and segments[-1] is each.segments[-1]:
            each.roll()
    undeleted = [*_drop(file.queue, going.queue), *_drop(file.log, going.log)]
    return replace(going.foretold, min_offset=file.min_offset, undeleted=tuple(undeleted))


def would_expire(file: FlatMessageFile, before_ms: int, *, source: ByteSource = DIRECT) -> Expired:
    """What `expire` would say now; nothing is changed."""
    return _going(file, before_ms, source).foretold


@dataclass(frozen=True, slots=True, kw_only=True)
class _Going:
    """The segments that go: those of the log decide, those of the queue follow them."""

    log: Sequence[FlatSegment]
    queue: Sequence[FlatSegment]
    foretold: Expired


def _going(file: FlatMessageFile, before_ms: int, source: ByteSource) -> _Going:
    may_roll = _may_roll(file)
    old = _expired(file, before_ms, may_roll, source)
    while old and _is_needed(file, old[-1].end, source):
        old.pop()
    if not old:
        nothing = Expired(segment_count=0, dropped_bytes=0, min_offset=file.min_offset)
        return _Going(log=(), queue=(), foretold=nothing)
    minimum = first_unit_from(file, old[-1].end, source=source)
    names = [each for each in file.queue.segments if each.end <= minimum * UNIT_BYTES]
    if names and names[-1] is file.queue.segments[-1] and not (may_roll and names[-1].record.size):
        names.pop()
    foretold = Expired(
        segment_count=len(names) + len(old),
        dropped_bytes=sum(each.record.size for each in [*names, *old]),
        min_offset=max(minimum, file.queue.min_unit),
    )
    return _Going(log=old, queue=names, foretold=foretold)


def _may_roll(file: FlatMessageFile) -> bool:
    """What may have to be taken back must be the end of the queue until then."""
    is_sure = file.problem is None and file.unconfirmed_from is None
    return is_sure and not file.waiting_bytes


def _expired(
    file: FlatMessageFile, before_ms: int, may_roll: bool, source: ByteSource
) -> list[FlatSegment]:
    """The log segments at the head that hold nothing that is young enough."""
    old: list[FlatSegment] = []
    for each in file.log.segments:
        # Nothing is committed behind it: the queue must begin anew too, or its units would dangle.
        if each.end == file.log.commit_offset and not (may_roll and each.record.size):
            break
        times = believed_times(file, each, source=source)
        # No message is in it: what there is of it is as old as the segment.
        if (each.record.create_timestamp if times is None else times[1]) >= before_ms:
            break
        old.append(each)
    return old


def _is_needed(file: FlatMessageFile, border: int, source: ByteSource) -> bool:
    """Whether the bytes before the end of a log segment are needed by what lies behind it.

    Only a log that somebody else wrote can be so: units that do not go up, or a copy of a record
    that no unit names. The queue's minimum is the number of the record at the border, so there
    must be one, and no unit from there on may name what would be gone.
    """
    if border == file.log.commit_offset:
        return False
    head = queue_offset_at(file, border, source)
    if head is None:
        return True
    first = min(head, first_unit_from(file, border, source=source))
    spans = UnitSpans.of(file.queue, first, file.queue.commit_unit)
    count = min(spans.count, UNITS_AT_ONCE)
    if not count:
        return False
    places = log_offsets_of(file.queue, spans, 0, count, source)
    return bool((places < border - CODA_BYTES).any())


def _drop(file: FlatAppendFile, segments: Sequence[FlatSegment]) -> list[str]:
    return file.drop(segments) if segments else []
