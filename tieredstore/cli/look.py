"""The verbs that look at a tier: what is in it, its messages, and where one of them is.

The fields of a row and their order are a promise: other tools rely on them. Messages of a tier and
of a local store are found and printed by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.options import (
    AnyTopic,
    Body,
    CountMax,
    FoundMax,
    From,
    FromOffset,
    Json,
    Key,
    OneQueue,
    Plain,
    Queue,
    Shown,
    TableShown,
    TierOptions,
    Time,
    Topic,
    Until,
    Upper,
    argument,
    chosen,
    known_names,
    verb,
)
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    Row,
    note,
    printable,
    write_line,
    write_row,
)
from tieredstore.cli.table import Column, Kind, write_rows
from tieredstore.model.amounts import counted
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.survey import Whereabouts
    from tieredstore.cli.tier import OpenedBackend, OpenedTier, TierDamage
    from tieredstore.driver.provider import ListedSegment

app = typer.Typer(rich_markup_mode=None)

_TIER: Final = "--provider posix --path /data/tier --store-path /data/store"


def _hours(row: Row) -> str:
    return f"{row['reserve_hours']:,}{' (default)' if row['reserve_hours_is_default'] else ''}"


def _name_of(row: Row) -> str:
    from tieredstore.codec.names import segment_name

    return segment_name(row["base_offset"])


def _known(row: Row) -> str:
    if row["catalogued"] is None:
        return "?"
    if not row["catalogued"]:
        return "not in the catalogue"
    if row["catalogue_size"] != row["size"]:
        return f"has {counted(row['catalogue_size'], 'byte')} of it"
    return "yes"


_TOPIC_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("id", "topic_id", Kind.NUMBER),
    Column("queues", "queue_count", Kind.NUMBER),
    Column("log size", "log_bytes", Kind.SIZE),
    Column("queue size", "queue_bytes", Kind.SIZE),
    Column("reserve hours", _hours, Kind.NAME),
)
_QUEUE_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("queue", "queue_id", Kind.NUMBER),
    Column("min", lambda row: "?" if row["min_offset"] is None else row["min_offset"], Kind.NUMBER),
    Column("max", "max_offset", Kind.NUMBER),
    Column("log size", "log_bytes", Kind.SIZE),
    Column("first", "begin_timestamp", Kind.CATALOGUE_TIME),
    Column("last", "end_timestamp", Kind.CATALOGUE_TIME),
)
_GROUP_COLUMNS: Final = (
    Column("group", "group"),
    Column("topic", "topic"),
    Column("queue", "queue_id", Kind.NUMBER),
    Column("next", "offset", Kind.NUMBER),
    Column("end", "max_offset", Kind.NUMBER),
    Column("behind", "behind_count", Kind.NUMBER),
)
_SEGMENT_COLUMNS: Final = (
    Column("topic/queue", lambda row: f"{row['topic']}/{row['queue_id']}"),
    Column("type", "type", Kind.NAME),
    Column("base offset", "base_offset", Kind.NUMBER),
    Column("size", "size", Kind.SIZE),
    Column("first", "begin_timestamp", Kind.CATALOGUE_TIME),
    Column("last", "end_timestamp", Kind.CATALOGUE_TIME),
)
_LISTED_COLUMNS: Final = (
    Column("broker/topic/queue", "path"),
    Column("type", "type", Kind.NAME),
    Column("name", _name_of, Kind.NAME),
    Column("size", "size", Kind.SIZE),
    Column("catalogue", _known, Kind.NAME),
)
_FOUND_MAX: Final = 32


@verb(app, f"topics {_TIER} --broker broker-a")
def topics(tier: TierOptions, shown: TableShown) -> None:
    """The topics of a tier: their sizes, queues, and how long they are kept."""
    from tieredstore.cli.tier import TierDamage, opened_tier

    damage = TierDamage()
    with opened_tier(tier) as opened:
        rows = _topic_rows(opened, damage)
    write_rows(rows, _TOPIC_COLUMNS, shown)
    damage.raise_error()


@verb(app, "queues Orders --config broker.conf --json")
def queues(topic: AnyTopic = None, *, tier: TierOptions, shown: TableShown) -> None:
    """The queues of a tier: first offset, the offset after the last, sizes and times.

    Times are the catalogue's; an impossible one has a question mark.
    """
    from tieredstore.cli.tier import TierDamage, opened_tier

    damage = TierDamage()
    with opened_tier(tier) as opened:
        rows = queue_rows(opened, topic, damage)
    write_queues(rows, shown)
    damage.raise_error()


@verb(app, "groups Orders --config broker.conf")
def groups(topic: AnyTopic = None, *, tier: TierOptions, shown: TableShown) -> None:
    """The consumer groups of a broker, and how far behind the end of the tier each is.

    This is the broker's last copy to the tier, at most a few minutes old. A group may be ahead of
    the tier, since messages are uploaded later; the end of a queue that is not in the tier is
    unknown.
    """
    from tieredstore.cli.tier import opened_tier

    with opened_tier(tier) as opened:
        rows = _group_rows(opened, topic)
    write_rows(rows, _GROUP_COLUMNS, shown)
    if not rows and not (shown.json or shown.csv):
        write_line("no group has committed an offset, as far as the tier's copy says")


@verb(app, "segments Orders 0 --config broker.conf --json")
def segments(
    topic: AnyTopic = None,
    queue: Annotated[int | None, argument("[QUEUE]", "Of this queue only.", min=0)] = None,
    *,
    tier: TierOptions,
    shown: TableShown,
) -> None:
    """The segments of all queues in the catalogue, each with its actual length.

    Those of the key index are shown for the topic rmq_sys_INDEX.
    """
    from tieredstore.cli.tier import TierDamage, opened_tier

    damage = TierDamage()
    with opened_tier(tier) as opened:
        write_rows(_segment_rows(opened, topic, queue, damage), _SEGMENT_COLUMNS, shown)
    damage.raise_error()


@verb(app, "ls broker-a/Orders --config broker.conf")
def ls(
    below: Annotated[
        str, argument("[PREFIX]", "Only segments at or below BROKER/TOPIC/QUEUE.")
    ] = "",
    *,
    tier: TierOptions,
    shown: TableShown,
) -> None:
    """Every segment in the backend, of all brokers, whether the catalogue has it or not.

    A missing or damaged catalogue is reported at the end.
    """
    from tieredstore.cli.tier import opened_backend

    with opened_backend(tier) as backend:
        write_rows(_listed_rows(backend, below), _LISTED_COLUMNS, shown)
        if backend.failure is not None:
            raise backend.failure


@verb(app, "cat Orders --from 2026-11-20T10:45Z --config broker.conf")
def cat(
    topic: Topic,
    queue: OneQueue = None,
    begin: From = None,
    from_offset: FromOffset = None,
    count_max: CountMax = None,
    body: Body = False,
    plain: Plain = False,
    *,
    tier: TierOptions,
    shown: TableShown,
) -> None:
    """Print the messages of a topic in the order in which they were stored, over all its queues.

    Within a queue that is the order of its offsets. Damaged messages are left out and reported at
    the end.
    """
    from tieredstore.cli.read import TIMES_FROM, MessagePrinter, TierPlace, print_messages
    from tieredstore.cli.tier import opened_tier

    if begin is not None and from_offset is not None:
        raise CommandError("choose one: --from TIME or --from-offset OFFSET", ExitCode.USAGE)
    if begin is not None and 0 < begin < TIMES_FROM:  # the previous release took both for --from
        note("--from with an offset is now --from-offset")
        begin, from_offset = None, begin
    printer = MessagePrinter(shown, body=body, plain=plain)
    with opened_tier(tier) as opened:
        place = TierPlace(opened, since=begin)
        print_messages(place, printer, topic, queue, begin=from_offset or 0, count=count_max)


@verb(app, "offset Orders 0 2026-11-20T10:45Z --config broker.conf")
def offset(
    topic: Topic,
    queue: Queue,
    time: Time,
    upper: Upper = False,
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """The queue offset of the first message stored at or after TIME; the queue's end if none.

    With --upper it is the last of those stored exactly at TIME.
    """
    from tieredstore.cli.read import TierPlace, print_offset
    from tieredstore.cli.tier import opened_tier

    with opened_tier(tier) as opened:
        print_offset(TierPlace(opened), topic, queue, time, upper=upper, json=json)


@verb(app, "query Orders order-17 --max 5 --config broker.conf")
def query(
    topic: Topic,
    key: Key,
    begin: From = None,
    end: Until = None,
    count_max: FoundMax = _FOUND_MAX,
    body: Body = False,
    *,
    tier: TierOptions,
    shown: TableShown,
) -> None:
    """Find messages by key, newest first. The messages decide, not the hashes of the index.

    On the broker's host this searches the whole key index; elsewhere only the uploaded part. A
    broker uploads its index once a day, or when a file is full. A note says if the index ends
    before a queue does.
    """
    from tieredstore.cli.read import MessagePrinter, TierPlace, print_found
    from tieredstore.cli.tier import opened_tier

    printer = MessagePrinter(shown, body=body)
    with opened_tier(tier) as opened:
        print_found(
            TierPlace(opened), printer, topic, key, count_max=count_max, begin=begin, end=end
        )


@verb(app, "why Orders 0 4711 --config broker.conf")
def why(
    topic: Topic,
    queue: Queue,
    offset: Annotated[int, argument("OFFSET", "Queue offset.", min=0)],
    *,
    tier: TierOptions,
    shown: Shown,
) -> None:
    """Show the segments of a message, how long it stays and which keys find it; or why it is
    missing.

    Exit code 4: the message is damaged.
    """
    from tieredstore.access.survey import Place, whereabouts
    from tieredstore.cli.tier import opened_tier
    from tieredstore.driver.runtime import SystemClock

    with opened_tier(tier, asks_local_index=False) as opened:
        keys = opened.keys(topic, queue)
        if not keys:  # a topic with no queue yet
            raise CommandError(
                f"nothing of {printable(topic)}/{queue} was tiered yet", ExitCode.NOT_THERE
            )
        found = whereabouts(opened.reader, keys[0], offset, now_ms=SystemClock().now_ms())
    write_row(_whereabouts_row(found), *_whereabouts_lines(found, shown), json=shown.json)
    if found.place is Place.DAMAGED:
        raise CommandError(found.problem or "the message is damaged", ExitCode.DAMAGE)


def _topic_rows(tier: OpenedTier, damage: TierDamage) -> list[Row]:
    """By name. `reserve_hours` is the store's if the topic has none of its own; 0 means none."""
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
            topic,  # new here if the catalogue has lost the topic's row
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


def write_queues(rows: list[Row], shown: TableShown) -> None:
    write_rows(rows, _QUEUE_COLUMNS, shown)


def queue_rows(tier: OpenedTier, topic: str | None, damage: TierDamage) -> list[Row]:
    """By topic and queue. `min_offset` is null if it cannot be read."""
    keys = tier.keys(topic)
    records = _records_by_path(tier, topic)
    return [_queue_row(tier, key, records.get(_path(tier, key), []), damage) for key in keys]


def _queue_row(
    tier: OpenedTier, key: QueueKey, records: list[SegmentRecord], damage: TierDamage
) -> Row:
    logs = [row for row in records if row.type is SegmentType.COMMIT_LOG and row.size]
    units = [row for row in records if row.type is SegmentType.CONSUME_QUEUE]
    begins = [row.begin_timestamp for row in logs if row.begin_timestamp is not None]
    ends = [row.end_timestamp for row in logs if row.end_timestamp is not None]
    minimum, problem = tier.beginning(key)
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


def _group_rows(tier: OpenedTier, topic: str | None) -> list[Row]:
    """By group, topic and queue."""
    rows = [
        _group_row(tier, group, key, offset)
        for group, offsets in sorted(tier.reader.consumer_offsets().items())
        for key, offset in sorted(offsets.items())
        if topic in (None, key.topic)
    ]
    if not rows:
        tier.keys(topic)  # raises if there is no such topic
    return rows


def _group_row(tier: OpenedTier, group: str, key: QueueKey, offset: int) -> Row:
    end = tier.reader.max_offset(*key)
    return {
        "group": group,
        "topic": key.topic,
        "queue_id": key.queue_id,
        "offset": offset,
        "max_offset": end,
        "behind_count": None if end is None else max(0, end - offset),
    }


def _segment_rows(
    tier: OpenedTier, topic: str | None, queue_id: int | None, damage: TierDamage
) -> Iterator[Row]:
    """By queue, type and base; those of the key index only if its topic is named."""
    from tieredstore.codec.names import INDEX_TOPIC, index_queue_path

    if topic == INDEX_TOPIC:
        path = index_queue_path(tier.config.broker_name)
        (key,) = chosen([QueueKey(topic, 0)], topic, queue_id)
        for record in tier.metadata.segments(path, SegmentType.INDEX):
            yield _segment_row(key, record)
        return
    keys = tier.keys(topic, queue_id)
    records = _records_by_path(tier, topic, queue_id)
    for key in keys:
        for record in records.get(_path(tier, key), []):
            yield _segment_row(key, record)
        damage.add_queue(tier, key, tier.beginning(key)[1])


def _records_by_path(
    tier: OpenedTier, topic: str | None, queue_id: int | None = None
) -> dict[str, list[SegmentRecord]]:
    """All at once, as asking queue by queue would sort all queues each time."""
    found: dict[str, list[SegmentRecord]] = {}
    for record in tier.reader.segments(topic, queue_id):
        found.setdefault(record.path, []).append(record)
    return found


def _path(tier: OpenedTier, key: QueueKey) -> str:
    from tieredstore.codec.names import queue_path

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


def _listed_rows(backend: OpenedBackend, prefix: str) -> Iterator[Row]:
    """In the order of the backend, but neighbours of one queue and type are sorted by base.

    `catalogued` is null if there is no catalogue.
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


def _whereabouts_row(found: Whereabouts) -> Row:
    message = found.message
    return {
        "topic": found.key.topic,
        "queue_id": found.key.queue_id,
        "queue_offset": found.queue_offset,
        "place": found.place.name,
        "min_offset": found.min_offset,
        "max_offset": found.max_offset,
        "earliest_timestamp": found.earliest_timestamp,
        "reserve_hours": found.reserve_hours,
        "store_timestamp": None if message is None else message.store_timestamp,
        "log_offset": found.log_offset,
        "log_segment": _where(found.log_segment),
        "queue_segment": _where(found.queue_segment),
        "expires_from": found.expires_from,
        "is_growing": found.is_growing,
        "found_by": list(found.found_by),
        "not_found_by": list(found.not_found_by),
        "problem": found.problem,
    }


def _where(record: SegmentRecord | None) -> Row | None:
    if record is None:
        return None
    return {"path": record.path, "base_offset": record.base_offset, "size": record.size}


def _whereabouts_lines(found: Whereabouts, shown: Shown) -> list[str]:
    from tieredstore.access.survey import Place

    topic, queue_id = found.key
    lines = [f"{topic}/{queue_id}/{found.queue_offset} is {found.place.value}"]
    if found.min_offset < found.max_offset:
        lines.append(f"the tier has {found.min_offset} to {found.max_offset - 1} of this queue")
    else:
        lines.append("the tier has no message of this queue")
    kept = "for ever" if found.reserve_hours is None else counted(found.reserve_hours, "hour")
    if found.place is Place.IN_TIER:
        return lines + _about_message(found, kept, shown)
    if found.place is Place.ABOVE:
        lines.append(
            "it was not put yet, or only the broker's local store has it: a batch is uploaded when "
            "it is full or old enough, and never before the local store has it on disk"
        )
    elif found.place is Place.BELOW:
        lines.append(f"it has expired, or the upload began behind it; the topic is kept {kept}")
        if found.earliest_timestamp is not None:
            lines.append(f"the oldest message there is from {shown.time(found.earliest_timestamp)}")
    elif found.place is Place.GAP:
        lines.append("nothing was stored at this offset, or it went with its segment; read on")
    return lines


def _about_message(found: Whereabouts, kept: str, shown: Shown) -> list[str]:
    from tieredstore.codec.queue_unit import UNIT_BYTES

    lines: list[str] = []
    if found.message is not None:
        lines.append(f"stored at {shown.time(found.message.store_timestamp)}")
    for what, record, offset in (
        ("record", found.log_segment, found.log_offset),
        ("unit", found.queue_segment, found.queue_offset * UNIT_BYTES),
    ):
        if record is not None and offset is not None:
            lines.append(
                f"{what}: {record.path}, {record.type.name} {record.base_offset}, "
                f"byte {offset - record.base_offset}"
            )
    if found.expires_from is None:
        lines.append("it is kept for ever: expiry is off")
    else:
        grows = "; its segment still grows, so rather later" if found.is_growing else ""
        lines.append(
            f"the topic is kept {kept}: it may go from {shown.time(found.expires_from)} on{grows}"
        )
    if found.found_by:
        lines.append(f"the index finds it by {', '.join(found.found_by)}")
    if found.not_found_by:
        lines.append(
            f"the uploaded index does not find it by {', '.join(found.not_found_by)}: a broker "
            "uploads its index once a day, or when a file is full; without a broker `offload "
            "--seal` does; where neither helps, see reindex"
        )
    return lines
