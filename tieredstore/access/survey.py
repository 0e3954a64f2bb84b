"""Describes a whole tier: its picture, what made it, and where one message is."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Final

from tieredstore.access.cost import Load, MonthlyCost, monthly_cost
from tieredstore.access.queue_upload import STOPPED_QUEUE, is_history
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import StoredMessage, decode_message
from tieredstore.codec.names import index_queue_path, queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.object_requests import PriceTable
from tieredstore.driver.provider import Appended
from tieredstore.flat.message_file import HOUR_MS, is_believed
from tieredstore.flat.times import catalogue_times
from tieredstore.index.watermarks import QueueId, indexed_offset
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentError
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.topics import TopicFilter
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType

EXPIRY_SLACK_MS: Final = 2 * HOUR_MS  # a segment that is overdue by more counts as a trouble


def load_of(reader: TieredReader, now_ms: int) -> Load:
    """The load that produced a tier, by its catalogue: averages over the time it covers.

    Its stored bytes do not include index files. Reads are unknown here.
    """
    rows = reader.segments()
    logs = [row for row in rows if row.type is SegmentType.COMMIT_LOG and row.size]
    message_count = sum(row.size for row in rows if row.type is SegmentType.CONSUME_QUEUE)
    message_count //= UNIT_BYTES
    log_bytes = sum(row.size for row in logs)
    seconds = _seconds_covered(logs, now_ms)
    return Load(
        queue_count=len({row.path for row in logs}),
        messages_per_second=message_count / seconds,
        message_bytes=log_bytes / message_count if message_count else 0.0,
        stored_bytes=float(sum(row.size for row in rows)),
        seconds_covered=None if math.isinf(seconds) else seconds,
    )


def _seconds_covered(logs: list[SegmentRecord], now_ms: int) -> float:
    times = [known for row in logs if (known := catalogue_times(row, now_ms)) is not None]
    if not times:
        return math.inf  # the rate is unknown: only the bytes count
    milliseconds = max(end for _, end in times) - min(begin for begin, _ in times)
    return max(milliseconds / 1000, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSegment:
    """One segment; an unknown time is None.

    For a commit log the times are those of its messages. For an index file they are its begin and
    the store time of its last message; the begin may be later if the file was filled late.
    """

    base_offset: int
    size: int
    begin_timestamp: int | None
    end_timestamp: int | None


class Trouble(Enum):
    """What an operator must look at, the worst first."""

    DAMAGED = "damaged"
    """Bytes that were committed cannot be read."""
    STOPPED = "stopped"
    """The upload of the queue has stopped until an operator decides."""
    GAP = "gap"
    """The broker lost messages before they were uploaded."""
    OVERDUE = "overdue"
    """The queue still has a segment that should have expired."""
    BEHIND = "behind"
    """More than a full batch waits for upload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePicture:
    """How far a queue reaches, in queue offsets; all ends are exclusive, None if unknown."""

    key: QueueKey
    min_offset: int | None
    max_offset: int
    indexed_offset: int | None
    local_offset: int | None
    queue_bytes: int
    segments: tuple[DrawnSegment, ...]
    problem: str | None = None
    stopped: str | None = None
    """Why the upload of the queue has stopped."""
    lost_count: int = 0

    @property
    def waiting_count(self) -> int:
        return max(0, (self.local_offset or 0) - self.max_offset)

    @property
    def log_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def begin_timestamp(self) -> int | None:
        begins = [segment.begin_timestamp for segment in self.segments]
        return min((time for time in begins if time is not None), default=None)

    @property
    def end_timestamp(self) -> int | None:
        ends = [segment.end_timestamp for segment in self.segments]
        return max((time for time in ends if time is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPicture:
    """A tier at one moment, by its catalogue."""

    broker_name: str
    cluster_name: str
    place: str
    taken_at: int
    queues: tuple[QueuePicture, ...]
    index_files: tuple[DrawnSegment, ...]
    reserve_hours: Mapping[str, int]
    load: Load
    cost: MonthlyCost
    only_local: Mapping[QueueKey, int] = field(default_factory=dict)
    """Message counts of queues that the tier should have, as their topic belongs there, but that
    exist only in the local store."""
    batch_count: int = StoreConfig().group_commit_count
    is_expiring: bool = True
    appended: tuple[Appended, ...] = ()
    """What the log of a bucket has appended lately; empty if there is no such log."""
    entry_dollars: float = 0.0

    def troubles(self, queue: QueuePicture) -> dict[Trouble, str]:
        """What is wrong with a queue, the worst first, each in words."""
        found = {}
        if queue.problem is not None:
            found[Trouble.DAMAGED] = queue.problem
        if queue.stopped is not None:
            found[Trouble.STOPPED] = queue.stopped
        if queue.lost_count:
            found[Trouble.GAP] = f"{queue.lost_count:,} messages are missing in its gaps"
        hours = self.reserve_hours.get(queue.key.topic)
        ends = [each.end_timestamp for each in queue.segments[:-1]]  # the last one may grow
        oldest = next((end for end in ends if end is not None), None)
        if self.is_expiring and hours and oldest is not None:
            over = self.taken_at - oldest - hours * HOUR_MS
            if over > EXPIRY_SLACK_MS:
                found[Trouble.OVERDUE] = (
                    f"its first segment should be gone since {over / HOUR_MS:,.0f} h: the topic is "
                    f"kept {hours:,} h"
                )
        if queue.waiting_count > self.batch_count:
            found[Trouble.BEHIND] = f"{queue.waiting_count:,} messages wait for upload"
        return found

    @property
    def topics(self) -> dict[str, list[QueuePicture]]:
        found: dict[str, list[QueuePicture]] = {}
        for queue in self.queues:
            found.setdefault(queue.key.topic, []).append(queue)
        return found

    @property
    def total_bytes(self) -> int:
        index = sum(file.size for file in self.index_files)
        return index + sum(queue.log_bytes + queue.queue_bytes for queue in self.queues)


def picture_of(
    reader: TieredReader,
    metadata: MetadataStore,
    *,
    now_ms: int,
    local_offsets: Mapping[QueueKey, int] | None = None,
    appended: Sequence[Appended] = (),
) -> TierPicture:
    """The picture of a tier, from its catalogue and a small read of each queue's first message.

    `local_offsets` are the ends of the queues in a local store, if one was read; `appended` is what
    the provider says about its log.
    """
    config = reader.config
    stops = metadata.notes(STOPPED_QUEUE)
    prices = PriceTable.parse(config.request_prices)
    by_path: dict[str, list[SegmentRecord]] = {}
    for row in reader.segments():
        by_path.setdefault(row.path, []).append(row)
    topics = {row.topic: row for row in reader.topics()}
    queues = []
    for key in reader.queues():
        topic = topics.get(key.topic)
        indexed = None
        if topic is not None:
            queue = QueueId(topic.topic_id, key.queue_id)
            indexed = indexed_offset(metadata, config.broker_name, key.topic, queue)
        path = queue_path(config.broker_name, *key)
        local = None if local_offsets is None else local_offsets.get(key)
        drawn = _queue(reader, key, by_path.get(path, []), indexed, local, now_ms)
        if path in stops and not is_history(path, metadata):
            note = stops[path]
            reason = str(note.get("reason", "")) if isinstance(note, dict) else ""
            drawn = replace(drawn, stopped=reason or "no reason was noted")
        queues.append(drawn)
    index_rows = metadata.segments(index_queue_path(config.broker_name), SegmentType.INDEX)
    load = load_of(reader, now_ms)
    return TierPicture(
        broker_name=config.broker_name,
        cluster_name=config.cluster_name,
        place=_place(config),
        taken_at=now_ms,
        queues=tuple(queues),
        index_files=tuple(
            _drawn(
                row, _believed(row.begin_timestamp, now_ms), _believed(row.end_timestamp, now_ms)
            )
            for row in index_rows
            if row.size
        ),
        only_local=_only_local(config, {queue.key for queue in queues}, local_offsets or {}),
        reserve_hours={
            topic: row.reserve_hours or config.reserve_hours for topic, row in topics.items()
        },
        load=load,
        cost=monthly_cost(load, config),
        batch_count=config.group_commit_count,
        is_expiring=config.expiry_enabled,
        appended=tuple(appended),
        entry_dollars=(prices.of("put") + prices.of("head")) / 1000,
    )


def _place(config: StoreConfig) -> str:
    where = config.path or config.url or "/".join(filter(None, (config.bucket, config.prefix)))
    return ", ".join(filter(None, (config.provider, where, config.endpoint)))


def _only_local(
    config: StoreConfig, known: Container[QueueKey], local_offsets: Mapping[QueueKey, int]
) -> dict[QueueKey, int]:
    topics = TopicFilter(config.cluster_name, config.broker_name)
    return {
        key: end
        for key, end in sorted(local_offsets.items())
        if end and key not in known and not topics.rejects(key.topic)
    }


def _queue(
    reader: TieredReader,
    key: QueueKey,
    rows: list[SegmentRecord],
    indexed_offset: int | None,
    local_offset: int | None,
    now_ms: int,
) -> QueuePicture:
    problem = minimum = None
    try:
        summary = reader.summary(*key)
    except (SegmentError, OffsetOutOfRangeError) as error:
        problem = str(error)
    else:
        if summary is not None:
            minimum, problem = summary.min_offset, summary.problem
    units = [row for row in rows if row.type is SegmentType.CONSUME_QUEUE and row.size]
    return QueuePicture(
        key=key,
        min_offset=minimum,
        max_offset=reader.max_offset(*key) or 0,
        indexed_offset=indexed_offset,
        local_offset=local_offset,
        queue_bytes=sum(row.size for row in units),
        lost_count=sum(
            max(0, after.base_offset - before.end_offset) for before, after in pairwise(units)
        )
        // UNIT_BYTES,
        segments=tuple(
            _drawn(row, *(catalogue_times(row, now_ms) or (None, None)))
            for row in rows
            if row.type is SegmentType.COMMIT_LOG and row.size
        ),
        problem=problem,
    )


def _drawn(row: SegmentRecord, begin: int | None, end: int | None) -> DrawnSegment:
    return DrawnSegment(
        base_offset=row.base_offset, size=row.size, begin_timestamp=begin, end_timestamp=end
    )


def _believed(time: int | None, now_ms: int) -> int | None:
    return time if is_believed(time, now_ms) else None


KEYS_ASKED_MAX: Final = 16  # of one message; each costs a look-up
HITS_MAX: Final = 1_024  # stored in one millisecond: with more, a key is left out of the answer


class Place(Enum):
    """What can be said of a queue offset."""

    IN_TIER = "in the tier"
    BELOW = "below the tier"
    """The segment has expired, or the upload of the queue began after this offset."""
    ABOVE = "not in the tier yet"
    GAP = "in a gap"
    """The queue goes on after this offset, but no message was stored at it or it has expired."""
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Everything known about one offset of a queue. Fields that do not apply are None."""

    key: QueueKey
    queue_offset: int
    place: Place
    min_offset: int
    max_offset: int
    earliest_timestamp: int | None = None
    reserve_hours: int | None = None
    """How long messages of the topic are kept; None: nothing expires."""
    message: StoredMessage | None = None
    log_offset: int | None = None
    queue_segment: SegmentRecord | None = None
    log_segment: SegmentRecord | None = None
    expires_from: int | None = None
    """The earliest time at which the segment may expire; moves on while the segment grows."""
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
        summary = reader.summary(*key)
        if summary is not None and queue_offset < summary.named_offset and summary.problem:
            return at(Place.DAMAGED, summary.problem)  # the queue ends too early
        return at(Place.ABOVE)
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
    """When the message may expire: a segment is dropped as a whole, once its newest message is old
    enough.
    """
    if hours is None:
        return None
    times = None if log is None else catalogue_times(log, now_ms)
    newest = message.store_timestamp if times is None else times[1]
    return max(newest, message.store_timestamp) + hours * HOUR_MS


def _look_up(
    reader: TieredReader, selected: SelectedMessage, message: StoredMessage
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The message's keys: those by which the key index finds it, and those by which it does not."""
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
            hit.log_offset == selected.log_offset and hit.record == selected.record
            for hit in answer.messages  # of all queues, each of which has its own log
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
