"""What there is to see of a whole tier: its topics, queues, segments, index and cost, as values.

What lives here: `TierPicture` and `picture_of`. How it is drawn is for a face to say.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from tieredstore.access.cost import Load, MonthlyCost, load_of, monthly_cost
from tieredstore.access.reader import TieredReader
from tieredstore.access.upload.topic_filter import TopicFilter
from tieredstore.codec.names import index_queue_path, queue_path
from tieredstore.driver.metadata import MetadataStore
from tieredstore.flat.believed_times import is_believed
from tieredstore.flat.segment_times import catalogue_times
from tieredstore.index.index_reach import indexed_offset
from tieredstore.index.watermarks import QueueId
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentError
from tieredstore.model.values import QueueKey, SegmentType


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSegment:
    """One segment; None for a time that nobody knows.

    Of a commit log the times are those of its messages. Of an index file they are when it was
    begun and when its last message was stored; the first may be later where it was filled late.
    """

    base_offset: int
    size: int
    begin_timestamp: int | None
    end_timestamp: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePicture:
    """How far a queue is, in queue offsets; all ends are exclusive, None where nobody knows."""

    key: QueueKey
    min_offset: int | None
    max_offset: int
    indexed_offset: int | None
    local_offset: int | None
    queue_bytes: int
    segments: tuple[DrawnSegment, ...]
    problem: str | None = None

    @property
    def log_bytes(self) -> int:
        return sum(each.size for each in self.segments)

    @property
    def begin_timestamp(self) -> int | None:
        times = [each.begin_timestamp for each in self.segments if each.begin_timestamp is not None]
        return min(times, default=None)

    @property
    def end_timestamp(self) -> int | None:
        times = [each.end_timestamp for each in self.segments if each.end_timestamp is not None]
        return max(times, default=None)


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
    """Messages of queues that the tier has nothing of, though their topic belongs there."""

    @property
    def topics(self) -> dict[str, list[QueuePicture]]:
        found: dict[str, list[QueuePicture]] = {}
        for queue in self.queues:
            found.setdefault(queue.key.topic, []).append(queue)
        return found

    @property
    def total_bytes(self) -> int:
        index = sum(each.size for each in self.index_files)
        return index + sum(queue.log_bytes + queue.queue_bytes for queue in self.queues)


def picture_of(
    reader: TieredReader,
    metadata: MetadataStore,
    *,
    now_ms: int,
    local_offsets: Mapping[QueueKey, int] | None = None,
) -> TierPicture:
    """Everything from the catalogue, but for a small read of each queue's first message.

    `local_offsets` are the ends of the queues in a local store, where one was looked at.
    """
    config = reader.config
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
        rows = by_path.get(queue_path(config.broker_name, *key), [])
        local = None if local_offsets is None else local_offsets.get(key)
        queues.append(_queue(reader, key, rows, indexed, local, now_ms))
    index_rows = metadata.segments(index_queue_path(config.broker_name), SegmentType.INDEX)
    load = load_of(reader, now_ms)
    return TierPicture(
        broker_name=config.broker_name,
        cluster_name=config.cluster_name,
        place=_place(config),
        taken_at=now_ms,
        queues=tuple(queues),
        index_files=tuple(_drawn_index(row, now_ms) for row in index_rows if row.size),
        only_local=_only_local(config, {queue.key for queue in queues}, local_offsets or {}),
        reserve_hours={
            topic: row.reserve_hours or config.reserve_hours for topic, row in topics.items()
        },
        load=load,
        cost=monthly_cost(load, config),
    )


def _place(config: StoreConfig) -> str:
    where = config.path or config.url or "/".join(filter(None, (config.bucket, config.prefix)))
    return ", ".join(filter(None, (config.provider, where, config.endpoint)))


def _only_local(
    config: StoreConfig, known: Container[QueueKey], local_offsets: Mapping[QueueKey, int]
) -> dict[QueueKey, int]:
    topics = TopicFilter(config)
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
    return QueuePicture(
        key=key,
        min_offset=minimum,
        max_offset=reader.max_offset(*key) or 0,
        indexed_offset=indexed_offset,
        local_offset=local_offset,
        queue_bytes=sum(row.size for row in rows if row.type is SegmentType.CONSUME_QUEUE),
        segments=tuple(
            _drawn(row, now_ms) for row in rows if row.type is SegmentType.COMMIT_LOG and row.size
        ),
        problem=problem,
    )


def _drawn(row: SegmentRecord, now_ms: int) -> DrawnSegment:
    begin, end = catalogue_times(row, now_ms) or (None, None)
    return DrawnSegment(
        base_offset=row.base_offset, size=row.size, begin_timestamp=begin, end_timestamp=end
    )


def _drawn_index(row: SegmentRecord, now_ms: int) -> DrawnSegment:
    begin, end = row.begin_timestamp, row.end_timestamp
    return DrawnSegment(
        base_offset=row.base_offset,
        size=row.size,
        begin_timestamp=begin if is_believed(begin, now_ms) else None,
        end_timestamp=end if is_believed(end, now_ms) else None,
    )
