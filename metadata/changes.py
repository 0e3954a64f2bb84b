"""Changes of the catalogue as JSON: what a line of the journal holds, and what it may hold.

{"put":"topic" | "queue" | "segment","row":{RocketMQ's fields}}
{"put":"note","kind":…,"key":…,"value":…}
{"delete":"topic","topic":…}
{"delete":"queue","topic":…,"queueId":…}
{"delete":"segment","path":…,"type":…,"baseOffset":…}
{"delete":"note","kind":…,"key":…}
"""

from __future__ import annotations

import operator

import msgspec

from tieredstore.driver.metadata import (
    Change,
    DeleteNote,
    DeleteQueue,
    DeleteSegment,
    DeleteTopic,
    Json,
    Put,
    PutNote,
)
from tieredstore.metadata import rows
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.values import SegmentType


def encode(change: Change) -> tuple[Change, bytes]:
    """The change as whoever reads the journal will see it, and its JSON.

    The first shares nothing that the caller could still alter. Raises ValueError, naming the
    row, for what could not be read back.
    """
    try:
        if isinstance(change, PutNote):
            rows.refuse_deep(change.value)
        data = msgspec.json.encode(to_json(change))
        seen = from_json(msgspec.json.decode(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{_name(change)}: {error}") from error
    if isinstance(change, PutNote) and seen != change:
        # NaN became null, a tuple a list, an integer key a string.
        raise ValueError(f"{_name(change)}: the value is no JSON")
    return seen, data


def to_json(change: Change) -> Json:
    match change:
        case Put(TopicRecord() as record):
            return {"put": "topic", "row": rows.topic_row(record)}
        case Put(QueueRecord() as record):
            return {"put": "queue", "row": rows.queue_row(record)}
        case Put(SegmentRecord() as record):
            return {"put": "segment", "row": rows.segment_row(record)}
        case PutNote(kind, key, value):
            return {"put": "note", "kind": kind, "key": key, "value": value}
        case DeleteTopic(topic):
            return {"delete": "topic", "topic": topic}
        case DeleteQueue(topic, queue_id):
            number = operator.index(queue_id)
            return {"delete": "queue", "topic": topic, "queueId": number}
        case DeleteSegment(path, type, base_offset):
            base = operator.index(base_offset)
            return {"delete": "segment", "path": path, "type": int(type), "baseOffset": base}
        case DeleteNote(kind, key):
            return {"delete": "note", "kind": kind, "key": key}
    raise ValueError("it is no change of the catalogue")


def from_json(value: Json) -> Change:
    """The change in a line. Raises ValueError for one that this version does not know."""
    match value:
        case {"put": "topic", "row": dict(row)}:
            return Put(rows.read_topic(row))
        case {"put": "queue", "row": dict(row)}:
            return Put(rows.read_queue(row))
        case {"put": "segment", "row": dict(row)}:
            return Put(rows.read_segment(row))
        case {"put": "note", "kind": str(kind), "key": str(key), "value": note}:
            return PutNote(kind, key, note)
        case {"delete": "topic", "topic": str(topic)}:
            return DeleteTopic(topic)
        case {"delete": "queue", "topic": str(topic), "queueId": int(queue_id)}:
            return DeleteQueue(topic, queue_id)
        case {"delete": "segment", "path": str(path), "type": int(type), "baseOffset": int(base)}:
            return DeleteSegment(path, SegmentType(type), base)
        case {"delete": "note", "kind": str(kind), "key": str(key)}:
            return DeleteNote(kind, key)
    raise ValueError(f"unknown change {str(value)[:60]}")


def _name(change: Change) -> str:
    if isinstance(change, Put) and isinstance(
        change.record, TopicRecord | QueueRecord | SegmentRecord
    ):
        return rows.row_name(change.record)
    if isinstance(change, PutNote):
        return f"note {change.kind} {change.key}"
    return f"{change!r:.60}"
