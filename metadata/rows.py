"""Rows: records as the objects of RocketMQ's JSON, and back with every value checked.

What lives here: field names and ranges. What does not: tables (`tables`) and text
(`rocketmq_json`). All complaints are ValueError; who knows the file makes them MetadataError.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Final, TypeAlias

from tieredstore.driver.metadata import Json
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.values import INT32_MAX, INT64_MAX, SegmentType

Row: TypeAlias = dict[str, Json]
Record: TypeAlias = TopicRecord | QueueRecord | SegmentRecord

UNSET_TIME: Final = INT64_MAX
UNSET_RESERVE: Final = -1
NESTING_MAX: Final = 100
"""How deep a note may nest, and a field that we do not know but carry along."""

TOPIC_FIELDS: Final = frozenset({"topicId", "topic", "status", "reserveTime", "updateTimestamp"})
QUEUE_FIELDS: Final = frozenset({"queue", "minOffset", "maxOffset", "updateTimestamp"})
QUEUE_NAME_FIELDS: Final = frozenset({"brokerName", "queueId", "topic"})
SEGMENT_FIELDS: Final = frozenset(
    {
        "path",
        "type",
        "baseOffset",
        "status",
        "size",
        "createTimestamp",
        "beginTimestamp",
        "endTimestamp",
        "sealTimestamp",
    }
)


def topic_row(record: TopicRecord) -> Row:
    reserve = UNSET_RESERVE if record.reserve_hours is None else record.reserve_hours
    return {
        "topicId": operator.index(record.topic_id),
        "topic": record.topic,
        "status": operator.index(record.status),
        "reserveTime": operator.index(reserve),
        "updateTimestamp": operator.index(record.update_timestamp),
    }


def queue_row(record: QueueRecord) -> Row:
    return {
        "queue": {
            "brokerName": record.broker_name,
            "queueId": operator.index(record.queue_id),
            "topic": record.topic,
        },
        "minOffset": operator.index(record.min_offset),
        "maxOffset": operator.index(record.max_offset),
        "updateTimestamp": operator.index(record.update_timestamp),
    }


def segment_row(record: SegmentRecord) -> Row:
    begin, end = record.begin_timestamp, record.end_timestamp
    return {
        "path": record.path,
        "type": int(record.type),
        "baseOffset": operator.index(record.base_offset),
        "status": operator.index(record.status),
        "size": operator.index(record.size),
        "createTimestamp": operator.index(record.create_timestamp),
        "beginTimestamp": UNSET_TIME if begin is None else operator.index(begin),
        "endTimestamp": UNSET_TIME if end is None else operator.index(end),
        "sealTimestamp": operator.index(record.seal_timestamp),
    }


def read_topic(row: Mapping[str, Json], topic: str | None = None) -> TopicRecord:
    """The record of a row; `topic` is the key it stands under, and the name if it has none."""
    # A reserve time that is missing is not known: Java's 0 would let everything expire at once.
    has_reserve = row.get("reserveTime") is not None
    reserve = _integer(row, "reserveTime", -1) if has_reserve else UNSET_RESERVE
    return TopicRecord(
        topic=_text(row, "topic", topic),
        topic_id=_integer(row, "topicId", 0),
        reserve_hours=None if reserve == UNSET_RESERVE else reserve,
        status=_integer(row, "status", -INT32_MAX - 1, INT32_MAX),
        update_timestamp=_integer(row, "updateTimestamp", -INT64_MAX - 1),
    )


def read_queue(
    row: Mapping[str, Json], topic: str | None = None, queue_id: int | None = None
) -> QueueRecord:
    name = row.get("queue")
    if name is None:
        name = {}
    if not isinstance(name, dict):
        raise ValueError(f"queue must be an object, not {_short(name)}")
    return QueueRecord(
        broker_name=_text(name, "brokerName", "", same=False),
        topic=_text(name, "topic", topic),
        queue_id=_keyed(name, "queueId", queue_id, INT32_MAX),
        min_offset=_integer(row, "minOffset", -1),
        max_offset=_integer(row, "maxOffset", -1),
        update_timestamp=_integer(row, "updateTimestamp", -INT64_MAX - 1),
    )


def read_segment(
    row: Mapping[str, Json],
    path: str | None = None,
    type: SegmentType | None = None,
    base_offset: int | None = None,
) -> SegmentRecord:
    """The record of a row; the table it stands in decides its type, whatever the row says."""
    # RocketMQ's table can say -1, after a look-up that failed: as good as not known, which is 0.
    size = max(0, _integer(row, "size", 0 if type is None else -1))
    base_offset = _keyed(row, "baseOffset", base_offset, INT64_MAX)
    if base_offset + size > INT64_MAX:
        raise ValueError(f"baseOffset {base_offset} and size {size} end beyond {INT64_MAX}")
    return SegmentRecord(
        path=_text(row, "path", path),
        type=SegmentType(_integer(row, "type", 0, 2)) if type is None else type,
        base_offset=base_offset,
        size=size,
        create_timestamp=_integer(row, "createTimestamp", -INT64_MAX - 1),
        begin_timestamp=_time(row, "beginTimestamp"),
        end_timestamp=_time(row, "endTimestamp"),
        status=_integer(row, "status", -INT32_MAX - 1, INT32_MAX),
        seal_timestamp=_integer(row, "sealTimestamp", -INT64_MAX - 1),
    )


def row_name(record: Record) -> str:
    match record:
        case SegmentRecord():
            return f"segment {record.path} {record.type!r} {record.base_offset}"
        case QueueRecord():
            return f"queue {record.topic} {record.queue_id}"
        case TopicRecord():
            return f"topic {record.topic}"


def unknown_fields(row: Mapping[str, Json], known: frozenset[str]) -> Row:
    """The fields that are not ours, to be carried along."""
    found = {name: value for name, value in row.items() if name not in known}
    refuse_deep(found)
    return found


def refuse_deep(value: Json) -> None:
    level = [value]
    for _ in range(NESTING_MAX):
        below: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise ValueError(f"it nests deeper than {NESTING_MAX}")


def _integer(row: Mapping[str, Json], field: str, minimum: int, maximum: int = INT64_MAX) -> int:
    value = row.get(field)
    if value is None:
        return 0
    if type(value) is not int:  # a bool is an int, but not here
        raise ValueError(f"{field} must be an integer, not {_short(value)}")
    if not minimum <= value <= maximum:
        raise ValueError(f"{field} {value} is not within {minimum} to {maximum}")
    return value


def _time(row: Mapping[str, Json], field: str) -> int | None:
    # A time that is missing is not known, as one that is unset.
    if row.get(field) is None:
        return None
    value = _integer(row, field, -INT64_MAX - 1)
    return None if value == UNSET_TIME else value


def _keyed(row: Mapping[str, Json], field: str, key: int | None, maximum: int) -> int:
    """An integer that stands in the row and is its key in the table too."""
    if row.get(field) is None:
        if key is None:
            raise ValueError(f"{field} is missing")
        row = {field: key}
    value = _integer(row, field, 0, maximum)
    if key is not None and value != key:
        raise ValueError(f"{field} {value} stands under the key {key}")
    return value


def _text(row: Mapping[str, Json], field: str, key: str | None, *, same: bool = True) -> str:
    value = row.get(field)
    if value is None:
        value = key
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a string, not {_short(value)}")
    if same and key is not None and value != key:
        raise ValueError(f"{field} {_short(value)} stands under the key {_short(key)}")
    if not value.isascii():
        value.encode()  # half a surrogate pair has no bytes
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
