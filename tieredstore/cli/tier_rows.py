"""The rows of what is in a tier: topics, queues, segments and what the backend holds.

What lives here: the fields and their order, which other tools rely on, and the same for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tieredstore.cli.choice import chosen, known_names
from tieredstore.cli.damage_report import TierDamage
from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import printable
from tieredstore.cli.tier import OpenedBackend, OpenedTier
from tieredstore.cli.times import shown_catalogue_time
from tieredstore.codec.names import INDEX_TOPIC, index_queue_path, queue_path, segment_name
from tieredstore.driver.provider import ListedSegment
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentError
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType

Row = dict[str, Any]

TOPIC_COLUMNS = ("topic", "id", "queues", "log bytes", "queue bytes", "reserve hours")
QUEUE_COLUMNS = ("topic", "queue", "min", "max", "log bytes", "queue bytes", "first", "last")
SEGMENT_COLUMNS = ("topic/queue", "type", "base offset", "size", "first", "last")
SEGMENT_WIDTHS = (30, 13, 14, 11, 25, 0)
LISTED_COLUMNS = ("broker/topic/queue", "type", "name", "size", "catalogue")
LISTED_WIDTHS = (36, 13, 28, 11, 0)


def keys_of(tier: OpenedTier, topic: str | None, queue_id: int | None = None) -> list[QueueKey]:
    """The queues that are meant; naming one that is not there is an error."""
    names = {record.topic for record in tier.reader.topics()}
    return chosen(tier.reader.queues(), topic, queue_id, topics=names, where="tier")


def topic_rows(tier: OpenedTier, damage: TierDamage) -> list[Row]:
    """By name. `reserve_hours` is the store's where the topic has none of its own: 0 is none."""
    rows: dict[str, Row] = {}
    for record in tier.reader.topics():
        own = record.reserve_hours if (record.reserve_hours or 0) > 0 else None
        rows[record.topic] = {
            "topic": record.topic,
            "topic_id": record.topic_id,
            "queue_count": 0,
            "log_bytes": 0,
            "queue_bytes": 0,
            "reserve_hours": tier.config.reserve_hours if own is None else own,
            "reserve_hours_is_default": own is None,
        }
    lost = {"topic_id": None, "queue_count": 0, "log_bytes": 0, "queue_bytes": 0}
    for row in queue_rows(tier, None, damage):
        topic = row["topic"]
        found = rows.setdefault(
            topic,  # a queue whose topic the catalogue has lost
            {
                "topic": topic,
                **lost,
                "reserve_hours": tier.config.reserve_hours,
                "reserve_hours_is_default": True,
            },
        )
        found["queue_count"] += 1
        found["log_bytes"] += row["log_bytes"]
        found["queue_bytes"] += row["queue_bytes"]
    return [rows[name] for name in sorted(rows)]


def topic_cells(row: Row) -> tuple[object, ...]:
    number = "-" if row["topic_id"] is None else row["topic_id"]
    hours = f"{row['reserve_hours']}{' (default)' if row['reserve_hours_is_default'] else ''}"
    return row["topic"], number, row["queue_count"], row["log_bytes"], row["queue_bytes"], hours


def queue_rows(tier: OpenedTier, topic: str | None, damage: TierDamage) -> list[Row]:
    """By topic and queue. A minimum that cannot be read is null."""
    keys = keys_of(tier, topic)
    records = _records_by_path(tier, topic)
    return [_queue_row(tier, key, records.get(_path(tier, key), []), damage) for key in keys]


def _queue_row(
    tier: OpenedTier, key: QueueKey, records: list[SegmentRecord], damage: TierDamage
) -> Row:
    logs = [row for row in records if row.type is SegmentType.COMMIT_LOG and row.size]
    units = [row for row in records if row.type is SegmentType.CONSUME_QUEUE]
    begins = [row.begin_timestamp for row in logs if row.begin_timestamp is not None]
    ends = [row.end_timestamp for row in logs if row.end_timestamp is not None]
    minimum, problem = _beginning(tier, key)
    damage.add_queue(tier, key, problem)
    return {
        "topic": key.topic,
        "queue_id": key.queue_id,
        "min_offset": minimum,
        "max_offset": tier.reader.max_offset(*key) or 0,
        "log_bytes": sum(row.size for row in logs),
        "queue_bytes": sum(row.size for row in units),
        "begin_timestamp": min(begins, default=None),
        "end_timestamp": max(ends, default=None),
        "problem": problem,
    }


def problem_of(tier: OpenedTier, key: QueueKey) -> str | None:
    """What a queue has lost, if it was found out when the tier was opened."""
    return _beginning(tier, key)[1]


def _beginning(tier: OpenedTier, key: QueueKey) -> tuple[int | None, str | None]:
    """The smallest offset, None if it cannot be read, and what is wrong with the queue."""
    try:
        summary = tier.reader.summary(*key)
    except (SegmentError, OffsetOutOfRangeError) as error:
        return None, f"its first message cannot be read: {error}"
    return (None, None) if summary is None else (summary.min_offset, summary.problem)


def queue_cells(row: Row) -> tuple[object, ...]:
    minimum = "?" if row["min_offset"] is None else row["min_offset"]
    times = map(shown_catalogue_time, (row["begin_timestamp"], row["end_timestamp"]))
    sizes = row["log_bytes"], row["queue_bytes"]
    return row["topic"], row["queue_id"], minimum, row["max_offset"], *sizes, *times


def segment_rows(
    tier: OpenedTier, topic: str | None, queue_id: int | None, damage: TierDamage
) -> Iterator[Row]:
    """By queue, type and base; the key index's only if it is named."""
    if topic == INDEX_TOPIC:
        path = index_queue_path(tier.config.broker_name)
        (key,) = chosen([QueueKey(topic, 0)], topic, queue_id)
        for record in tier.metadata.segments(path, SegmentType.INDEX):
            yield _segment_row(key, record)
        return
    keys = keys_of(tier, topic, queue_id)
    records = _records_by_path(tier, topic, queue_id)
    for key in keys:
        for record in records.get(_path(tier, key), []):
            yield _segment_row(key, record)
        damage.add_queue(tier, key, problem_of(tier, key))


def _records_by_path(
    tier: OpenedTier, topic: str | None, queue_id: int | None = None
) -> dict[str, list[SegmentRecord]]:
    """All at once: asking queue by queue would sort all queues each time."""
    found: dict[str, list[SegmentRecord]] = {}
    for record in tier.reader.segments(topic, queue_id):
        found.setdefault(record.path, []).append(record)
    return found


def _path(tier: OpenedTier, key: QueueKey) -> str:
    return queue_path(tier.config.broker_name, *key)


def _segment_row(key: QueueKey, record: SegmentRecord) -> Row:
    return {
        "topic": key.topic,
        "queue_id": key.queue_id,
        "type": record.type.name,
        "base_offset": record.base_offset,
        "size": record.size,
        "begin_timestamp": record.begin_timestamp,
        "end_timestamp": record.end_timestamp,
        "path": record.path,
    }


def segment_cells(row: Row) -> tuple[str, ...]:
    place = f"{row['topic']}/{row['queue_id']}"
    times = map(shown_catalogue_time, (row["begin_timestamp"], row["end_timestamp"]))
    return place, row["type"], str(row["base_offset"]), str(row["size"]), *times


def listed_rows(backend: OpenedBackend, prefix: str) -> Iterator[Row]:
    """As the backend lists them; what comes together of one queue and type by base.

    `catalogued` is null where there is no catalogue to ask.
    """
    listed = backend.provider.list(prefix)
    count = 0
    for _, together in groupby(listed, key=lambda found: (found.path, found.type)):
        for found in sorted(together, key=lambda found: found.base):
            count += 1
            yield _listed_row(backend, found)
    if prefix.strip("/") and not count:
        paths = {found.path.partition("/")[0] for found in backend.provider.list()}
        raise CommandError(
            f"nothing lies at or below {printable(prefix)!r}; want BROKER, BROKER/TOPIC or "
            f"BROKER/TOPIC/QUEUE; there are the brokers: {known_names(sorted(paths))}",
            ExitCode.NOT_THERE,
        )


def _listed_row(backend: OpenedBackend, found: ListedSegment) -> Row:
    catalogued = size = None
    if backend.metadata is not None:
        record = backend.metadata.segment(found.path, found.type, found.base)
        catalogued = record is not None
        size = None if record is None else record.size
    with backend.provider.open(found.path, found.type, found.base) as segment:
        file = segment.path
    return {
        "path": found.path,
        "type": found.type.name,
        "base_offset": found.base,
        "size": found.size,
        "catalogued": catalogued,
        "catalogue_size": size,
        "file": file,
    }


def listed_cells(row: Row) -> tuple[str, ...]:
    if row["catalogued"] is None:
        known = "?"
    elif not row["catalogued"]:
        known = "not in the catalogue"
    elif row["catalogue_size"] != row["size"]:
        known = f"has {row['catalogue_size']} bytes of it"
    else:
        known = "yes"
    return row["path"], row["type"], segment_name(row["base_offset"]), str(row["size"]), known
