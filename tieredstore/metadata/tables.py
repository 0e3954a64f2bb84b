"""The tables of a catalogue, how changes act on them, and their form in RocketMQ's own JSON."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from tieredstore.codec.fastjson import Document, refuse_deep
from tieredstore.driver.metadata import (
    Change,
    DeleteNote,
    DeleteQueue,
    DeleteSegment,
    DeleteTopic,
    Put,
    PutNote,
)
from tieredstore.model.values import (
    INT32_MAX,
    INT64_MAX,
    Json,
    QueueRecord,
    SegmentRecord,
    SegmentType,
    TopicRecord,
)

SEGMENT_TABLES: Final[Mapping[SegmentType, str]] = {
    SegmentType.COMMIT_LOG: "commitLogFileSegmentTable",
    SegmentType.CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    SegmentType.INDEX: "indexFileSegmentTable",
}
QUEUE_TABLE: Final = "queueMetadataTable"
TOPIC_TABLE: Final = "topicMetadataTable"
SERIAL: Final = "topicSerialNumber"
_KNOWN: Final = frozenset({*SEGMENT_TABLES.values(), QUEUE_TABLE, TOPIC_TABLE, SERIAL})
INT64_DIGITS: Final = 19
_NOBODY: Final = "\0copied"
SNAPSHOT_BYTES_MAX: Final = 2**31 - 1
"""Java reads the file into one array, which cannot be larger."""
UNSET_TIME: Final = INT64_MAX
UNSET_RESERVE: Final = -1
Row: TypeAlias = dict[str, Json]
Record: TypeAlias = TopicRecord | QueueRecord | SegmentRecord
RowKey: TypeAlias = tuple[str] | tuple[str, int] | tuple[str, SegmentType, int]
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-INT32_MAX - 1, le=INT32_MAX)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
NumberOrUnset: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=INT64_MAX)]
QueueId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=msgspec.Struct)


class Tables:
    """All rows by their keys.

    Rows keep the order in which they were read or added, so that an unchanged file is written as it
    was read. Unknown fields stay with their row until it is deleted. `topic_serial` is never less
    than any topic id that was ever here. Notes are kept as JSON text: each read makes its own copy.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicRecord] = {}
        self.queues: dict[str, dict[int, QueueRecord]] = {}
        self.segments: dict[SegmentType, dict[str, dict[int, SegmentRecord]]] = {
            kind: {} for kind in SegmentType
        }
        self.notes: dict[str, dict[str, bytes]] = {}
        self.notes_changed = False
        self.topic_serial = -1
        self._unknown: dict[RowKey, Row] = {}
        self._unknown_members: Row = {}

    # -- documents ----------------------------------------------------------------------------

    @classmethod
    def from_document(cls, document: Mapping[str, Json]) -> Tables:
        """The tables from RocketMQ's JSON. Raises ValueError, naming the impossible row."""
        tables = cls()
        for kind, name in SEGMENT_TABLES.items():
            tables._read_segments(name, kind, _member(document, name))
        tables._read_queues(_member(document, QUEUE_TABLE))
        tables._read_topics(_member(document, TOPIC_TABLE))
        serial = document.get(SERIAL)
        if serial is not None:
            if not isinstance(serial, int) or not -1 <= serial <= INT64_MAX:
                raise ValueError(f"{SERIAL} is {serial!r:.40}")
            tables.topic_serial = max(serial, tables.topic_serial)
        tables._unknown_members = unknown_fields(document, _KNOWN)
        return tables

    def document(self) -> dict[str, Document]:
        """RocketMQ's JSON of these tables, which has no notes."""
        document: dict[str, Document] = {}
        for kind, name in SEGMENT_TABLES.items():
            document[name] = {
                path: {
                    base: self._with_unknown(segment_row(row), (path, kind, base))
                    for base, row in of_path.items()
                }
                for path, of_path in self.segments[kind].items()
            }
        document[QUEUE_TABLE] = {
            topic: {
                queue_id: self._with_unknown(queue_row(row), (topic, queue_id))
                for queue_id, row in of_topic.items()
            }
            for topic, of_topic in self.queues.items()
        }
        document[TOPIC_TABLE] = {
            topic: self._with_unknown(topic_row(row), (topic,))
            for topic, row in self.topics.items()
        }
        document[SERIAL] = self.topic_serial
        return document | self._unknown_members

    def _read_topics(self, table: Row) -> None:
        for topic, row in table.items():
            if row is not None:
                record = self._read_row(TOPIC_TABLE, (topic,), row, read_topic, TopicRow)
                self.topics[topic] = record
                self.topic_serial = max(self.topic_serial, record.topic_id)

    def _read_queues(self, table: Row) -> None:
        for topic, of_topic in table.items():
            self.queues[topic] = {
                queue_id: self._read_row(QUEUE_TABLE, (topic, queue_id), row, read_queue, QueueRow)
                for queue_id, row in _numbered(QUEUE_TABLE, topic, of_topic)
            }

    def _read_segments(self, name: str, type: SegmentType, table: Row) -> None:
        for path, of_path in table.items():
            self.segments[type][path] = {
                base: self._read_row(name, (path, type, base), row, read_segment, SegmentRow)
                for base, row in _numbered(name, path, of_path)
            }

    def _read_row(
        self,
        table: str,
        key: RowKey,
        row: Json,
        read: Callable[..., V],
        kind: type[msgspec.Struct],
    ) -> V:
        """The record of a row. Keeps the fields that we do not know beside it."""
        try:
            if not isinstance(row, dict):
                raise ValueError("it is no object")
            record = read(row, *key)
            self._keep_unknown(key, row, kind)
        except ValueError as error:
            place = " ".join(str(part) for part in key if not isinstance(part, SegmentType))
            raise ValueError(f"{table} {place}: {error}") from error
        return record

    def _keep_unknown(self, key: RowKey, row: Row, kind: type[msgspec.Struct]) -> None:
        found = unknown_fields(row, _FIELDS[kind])
        name = row.get("queue")
        if isinstance(name, dict) and kind is QueueRow:
            inner = unknown_fields(name, _FIELDS[QueueName])
            if inner:
                found["queue"] = inner
        if found:
            self._unknown[key] = found

    def _with_unknown(self, row: Row, key: RowKey) -> Row:
        unknown = self._unknown.get(key)
        if unknown is None:
            return row
        ours, theirs = row.get("queue"), unknown.get("queue")
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return row | unknown | {"queue": ours | theirs}
        return row | unknown

    def copied(self) -> Tables:
        """A copy that does not change with these tables. Rows never change, so it shares them."""
        copy = Tables()
        copy.topics = dict(self.topics)
        copy.queues = {topic: dict(found) for topic, found in self.queues.items()}
        copy.segments = {
            kind: {path: dict(found) for path, found in table.items()}
            for kind, table in self.segments.items()
        }
        copy.notes = {kind: dict(found) for kind, found in self.notes.items()}
        copy.topic_serial = self.topic_serial
        copy._unknown = dict(self._unknown)
        copy._unknown_members = self._unknown_members
        return copy

    def contents(self) -> list[Change]:
        """Changes that give empty tables the contents of these, except unknown fields."""
        # The serial number first, so that numbers of deleted topics are not given out again.
        changes: list[Change] = []
        if self.topic_serial >= 0:
            last = TopicRecord(topic=_NOBODY, topic_id=self.topic_serial)
            changes += [Put(last), DeleteTopic(_NOBODY)]
        changes += [Put(row) for row in self.topics.values()]
        changes += [Put(row) for found in self.queues.values() for row in found.values()]
        for of_type in self.segments.values():
            changes += [Put(row) for found in of_type.values() for row in found.values()]
        for kind, notes in self.notes.items():
            for key, text in notes.items():
                changes.append(PutNote(kind, key, msgspec.json.decode(text)))
        return changes

    # -- changes ------------------------------------------------------------------------------

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply checked changes: none of them can fail halfway."""
        for change in changes:
            match change:
                case Put(record):
                    self._put(record)
                case DeleteTopic(topic):
                    self.topics.pop(topic, None)
                    self._unknown.pop((topic,), None)
                case DeleteQueue(topic, queue_id):
                    _delete(self.queues, topic, queue_id)
                    self._unknown.pop((topic, queue_id), None)
                case DeleteSegment(path, type, base_offset):
                    _delete(self.segments[type], path, base_offset)
                    self._unknown.pop((path, type, base_offset), None)
                case PutNote(kind, key, value):
                    self.notes.setdefault(kind, {})[key] = msgspec.json.encode(value)
                    self.notes_changed = True
                case DeleteNote(kind, key):
                    _delete(self.notes, kind, key)
                    self.notes_changed = True

    def new_topic(self, topic: str, reserve_hours: int | None, now_ms: int) -> TopicRecord:
        """The row for a new topic, with the next number. Changes nothing."""
        return TopicRecord(
            topic=topic,
            topic_id=self.topic_serial + 1,
            reserve_hours=reserve_hours,
            update_timestamp=now_ms,
        )

    def _put(self, record: Record) -> None:
        match record:
            case SegmentRecord():
                of_path = self.segments[record.type].setdefault(record.path, {})
                of_path[record.base_offset] = record
            case QueueRecord():
                self.queues.setdefault(record.topic, {})[record.queue_id] = record
            case TopicRecord():
                self.topics[record.topic] = record
                self.topic_serial = max(self.topic_serial, record.topic_id)


class TopicRow(msgspec.Struct, rename="camel"):
    """A topic in RocketMQ's JSON. In this and other rows, null stands for the default."""

    topic: str
    topic_id: Number = 0
    status: Int32 = 0
    # A missing reserve time is unknown. Java's default, 0, would let everything expire at once.
    reserve_time: NumberOrUnset = UNSET_RESERVE
    update_timestamp: Int64 = 0


class QueueName(msgspec.Struct, rename="camel"):
    topic: str
    queue_id: QueueId
    broker_name: str = ""


class QueueRow(msgspec.Struct, rename="camel"):
    queue: dict[str, Any] = {}  # a QueueName, with nulls of its own
    min_offset: NumberOrUnset = 0
    max_offset: NumberOrUnset = 0
    update_timestamp: Int64 = 0


class SegmentRow(msgspec.Struct, rename="camel", kw_only=True):
    path: str
    type: SegmentType = SegmentType.COMMIT_LOG
    base_offset: Number
    status: Int32 = 0
    size: NumberOrUnset = 0
    create_timestamp: Int64 = 0
    begin_timestamp: Int64 = UNSET_TIME
    end_timestamp: Int64 = UNSET_TIME
    seal_timestamp: Int64 = 0


def describe(*types: type[msgspec.Struct]) -> None:
    """Make msgspec describe types while their module is imported, by one thread.

    Otherwise it does so at the first use of a type, and two threads at once crash the process.
    """
    for kind in types:
        msgspec.json.Decoder(kind)


describe(TopicRow, QueueName, QueueRow, SegmentRow)
_FIELDS: Final[Mapping[type[msgspec.Struct], frozenset[str]]] = {
    kind: frozenset(kind.__struct_encode_fields__)
    for kind in (TopicRow, QueueName, QueueRow, SegmentRow)
}


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
    """The record of a row. `topic` is the row's key, and the name if the row has none."""
    found = _converted(row, TopicRow, {"topic": topic})
    return TopicRecord(
        topic=found.topic,
        topic_id=found.topic_id,
        reserve_hours=None if found.reserve_time == UNSET_RESERVE else found.reserve_time,
        status=found.status,
        update_timestamp=found.update_timestamp,
    )


def read_queue(
    row: Mapping[str, Json], topic: str | None = None, queue_id: int | None = None
) -> QueueRecord:
    found = _converted(row, QueueRow, {})
    name = _converted(found.queue, QueueName, {"topic": topic, "queueId": queue_id})
    return QueueRecord(
        broker_name=name.broker_name,
        topic=name.topic,
        queue_id=name.queue_id,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        update_timestamp=found.update_timestamp,
    )


def read_segment(
    row: Mapping[str, Json],
    path: str | None = None,
    type: SegmentType | None = None,
    base_offset: int | None = None,
) -> SegmentRecord:
    """The record of a row. Its table decides its type, whatever the row says."""
    if type is not None:
        row = {**row, "type": int(type)}
    found = _converted(row, SegmentRow, {"path": path, "baseOffset": base_offset})
    if type is None and found.size < 0:
        raise ValueError(f"size {found.size} is less than 0")
    # RocketMQ's table can say -1 after a failed look-up: the size is unknown, which is 0 here.
    size = max(0, found.size)
    if found.base_offset + size > INT64_MAX:
        raise ValueError(f"baseOffset {found.base_offset} and size {size} end beyond {INT64_MAX}")
    return SegmentRecord(
        path=found.path,
        type=found.type,
        base_offset=found.base_offset,
        size=size,
        create_timestamp=found.create_timestamp,
        begin_timestamp=None if found.begin_timestamp == UNSET_TIME else found.begin_timestamp,
        end_timestamp=None if found.end_timestamp == UNSET_TIME else found.end_timestamp,
        status=found.status,
        seal_timestamp=found.seal_timestamp,
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
    """The fields that we do not know, but keep."""
    if row.keys() <= known:
        return {}
    found = {name: value for name, value in row.items() if name not in known}
    refuse_deep(found)
    return found


def _converted(row: Mapping[str, Json], kind: type[R], keys: Mapping[str, Json]) -> R:
    """The row in its own type. The `keys` that it has in the tables replace missing fields, and
    must equal existing ones. Raises ValueError, naming the field."""
    try:
        found = msgspec.convert(row, kind)
    except msgspec.ValidationError:  # most rows have all fields and no nulls
        named = {name: key for name, key in keys.items() if key is not None}
        row = named | {name: value for name, value in row.items() if value is not None}
        try:
            found = msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at `$.")
            if not place:
                raise
            field = place.rstrip("`")
            raise ValueError(f"{field} {_short(row.get(field))}: {reason}") from error
    for name, key in keys.items():
        if key is not None and row[name] != key:
            raise ValueError(f"{name} {_short(row[name])} stands under the key {_short(key)}")
    return found


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _delete(table: dict[str, dict[K, V]], outer: str, inner: K) -> None:
    found = table.get(outer)
    if found is not None and found.pop(inner, None) is not None and not found:
        del table[outer]


def _member(document: Mapping[str, Json], name: str) -> Row:
    table = document.get(name)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ValueError(f"{name} is no object")
    return table


def _numbered(name: str, outer: str, table: Json) -> Iterator[tuple[int, Json]]:
    """The rows under integer keys. Null stands for an empty table or an absent row."""
    if table is None:
        return
    if not isinstance(table, dict):
        raise ValueError(f"{name} {outer}: it is no object")
    for text, row in table.items():
        if not (text.isascii() and text.isdigit() and len(text) <= INT64_DIGITS):
            raise ValueError(f"{name} {outer}: {text[:40]!r} is no key")
        if row is not None:
            yield int(text), row
