"""Where one message of a tier is, or why it is not there.

What lives here: `whereabouts`, which asks a reader, and its answer. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import StoredMessage, decode_message
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.flat.commit_log import HOUR_MS
from tieredstore.flat.segment_times import catalogue_times
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import SegmentError
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import QueueKey, SegmentType

KEYS_ASKED_MAX: Final = 16  # of one message; each costs a look-up
HITS_MAX: Final = 1_024  # stored in one millisecond: where there are more, nothing is said


class Place(Enum):
    """What can be said of a queue offset."""

    IN_TIER = "in the tier"
    BELOW = "below the tier"
    """Its segment has expired, or the upload of the queue began behind it."""
    ABOVE = "not in the tier yet"
    GAP = "in a gap"
    """The queue goes on behind it, and nothing was stored at this offset or it has expired."""
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What is known of one offset of a queue. What does not apply to its place is None."""

    key: QueueKey
    queue_offset: int
    place: Place
    min_offset: int
    max_offset: int
    earliest_timestamp: int | None = None
    reserve_hours: int | None = None
    """How long the topic is kept; None: nothing expires."""
    message: StoredMessage | None = None
    log_offset: int | None = None
    queue_segment: SegmentRecord | None = None
    log_segment: SegmentRecord | None = None
    expires_from: int | None = None
    """The earliest time at which its segment may go; later while the segment grows."""
    is_growing: bool = False
    found_by: tuple[str, ...] = ()
    not_found_by: tuple[str, ...] = ()
    problem: str | None = None


def whereabouts(
    reader: TieredReader, key: QueueKey, queue_offset: int, *, now_ms: int
) -> Whereabouts:
    """Everything that explains whether a read of this offset finds a message.

    For a queue that the reader has. Costs a read of the message and one look-up for each of its
    keys.
    """
    minimum, maximum = reader.min_offset(*key) or 0, reader.max_offset(*key) or 0
    hours = _reserve_hours(reader, key.topic)

    def at(place: Place, problem: str | None = None) -> Whereabouts:
        return Whereabouts(
            key=key,
            queue_offset=queue_offset,
            place=place,
            min_offset=minimum,
            max_offset=maximum,
            earliest_timestamp=reader.earliest_time(*key),
            reserve_hours=hours,
            problem=problem,
        )

    if queue_offset >= maximum:
        problem = _problem(reader, key)  # a queue that lost its end ends too early
        return at(Place.ABOVE if problem is None else Place.DAMAGED, problem)
    if queue_offset < minimum:
        return at(Place.BELOW)
    try:
        found = reader.get_message(*key, queue_offset, count_max=1).messages
        if not found or found[0].queue_offset != queue_offset:
            return at(Place.GAP)
        message = decode_message(found[0].record, path=f"{key.topic}/{key.queue_id}")
    except SegmentError as error:
        return at(Place.DAMAGED, str(error))
    return _in_tier(reader, found[0], message, at(Place.IN_TIER), now_ms)


def _problem(reader: TieredReader, key: QueueKey) -> str | None:
    summary = reader.summary(*key)
    return None if summary is None else summary.problem


def _in_tier(
    reader: TieredReader,
    selected: SelectedMessage,
    message: StoredMessage,
    known: Whereabouts,
    now_ms: int,
) -> Whereabouts:
    rows = reader.segments(*known.key)
    logs = [row for row in rows if row.type is SegmentType.COMMIT_LOG]
    units = [row for row in rows if row.type is SegmentType.CONSUME_QUEUE]
    log = _holding(logs, selected.log_offset)
    found_by, not_found_by = _look_up(reader, selected, message)
    return replace(
        known,
        message=message,
        log_offset=selected.log_offset,
        log_segment=log,
        queue_segment=_holding(units, known.queue_offset * UNIT_BYTES),
        expires_from=_expires_from(log, message, known.reserve_hours, now_ms),
        is_growing=log is not None and log.base_offset == max(row.base_offset for row in logs),
        found_by=found_by,
        not_found_by=not_found_by,
    )


def _holding(rows: Iterable[SegmentRecord], offset: int) -> SegmentRecord | None:
    return next((row for row in rows if row.base_offset <= offset < row.end_offset), None)


def _expires_from(
    log: SegmentRecord | None, message: StoredMessage, hours: int | None, now_ms: int
) -> int | None:
    """A segment goes as a whole, when its newest message is old enough."""
    if hours is None:
        return None
    times = None if log is None else catalogue_times(log, now_ms)
    newest = message.store_timestamp if times is None else times[1]
    return max(newest, message.store_timestamp) + hours * HOUR_MS


def _look_up(
    reader: TieredReader, selected: SelectedMessage, message: StoredMessage
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Its keys, by whether the key index leads to this message."""
    words = dict.fromkeys([message.unique_key or "", *message.keys])
    keys = [word for word in words if word][:KEYS_ASKED_MAX]
    found: dict[str, bool] = {}
    for word in keys:
        answer = reader.query_message(
            message.topic,
            word,
            count_max=HITS_MAX,
            begin=message.store_timestamp,
            end=message.store_timestamp,
        )
        is_found = any(
            each.log_offset == selected.log_offset and each.record == selected.record
            for each in answer.messages  # of all queues: each has a log of its own
        )
        if is_found or len(answer.messages) < HITS_MAX:
            found[word] = is_found
    return (
        tuple(word for word in found if found[word]),
        tuple(word for word in found if not found[word]),
    )


def _reserve_hours(reader: TieredReader, topic: str) -> int | None:
    if not reader.config.expiry_enabled:
        return None
    own = next((row.reserve_hours for row in reader.topics() if row.topic == topic), None)
    return own if own is not None and own > 0 else reader.config.reserve_hours
