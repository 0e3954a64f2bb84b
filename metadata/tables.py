"""The catalogue in memory: tables of topics, queues and segments, notes, and how changes act.

What lives here: rows and their order. What does not: files, locks and threads; whoever holds
Tables sees to it that nobody reads while a change is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias, TypeVar

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
from tieredstore.metadata.rocketmq_json import Document
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.values import INT64_MAX, SegmentType

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
RowKey: TypeAlias = tuple[str] | tuple[str, int] | tuple[str, SegmentType, int]


class Tables:
    """All rows by their keys.

    Rows keep the order in which they were read or came, so that an unchanged file is written as
    it was read. Fields that are not ours stay with their row until it is deleted. `topic_serial`
    is never below a topic id that was ever here. Notes are kept as JSON text: each read makes its
    own copy.
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
        self._unknown: dict[RowKey, rows.Row] = {}
        self._unknown_members: rows.Row = {}

    # -- documents ----------------------------------------------------------------------------

    @classmethod
    def from_document(cls, document: Mapping[str, Json]) -> Tables:
        """The tables of RocketMQ's JSON. Raises ValueError naming the row that cannot be."""
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
        tables._unknown_members = rows.unknown_fields(document, _KNOWN)
        return tables

    def document(self) -> dict[str, Document]:
        """What RocketMQ's JSON says for these tables; notes are not in it."""
        document: dict[str, Document] = {}
        for kind, name in SEGMENT_TABLES.items():
            document[name] = {
                path: {
                    base: self._with_unknown(rows.segment_row(row), (path, kind, base))
                    for base, row in of_path.items()
                }
                for path, of_path in self.segments[kind].items()
            }
        document[QUEUE_TABLE] = {
            topic: {
                queue_id: self._with_unknown(rows.queue_row(row), (topic, queue_id))
                for queue_id, row in of_topic.items()
            }
            for topic, of_topic in self.queues.items()
        }
        document[TOPIC_TABLE] = {
            topic: self._with_unknown(rows.topic_row(row), (topic,))
            for topic, row in self.topics.items()
        }
        document[SERIAL] = self.topic_serial
        return document | self._unknown_members

    def _read_topics(self, table: rows.Row) -> None:
        for topic, row in table.items():
            if row is None:
                continue
            try:
                members = _row(row)
                record = self.topics[topic] = rows.read_topic(members, topic)
                self._keep_unknown((topic,), members, rows.TOPIC_FIELDS)
            except ValueError as error:
                raise ValueError(f"{TOPIC_TABLE} {topic}: {error}") from error
            self.topic_serial = max(self.topic_serial, record.topic_id)

    def _read_queues(self, table: rows.Row) -> None:
        for topic, of_topic in table.items():
            found = self.queues[topic] = {}
            for queue_id, row in _numbered(QUEUE_TABLE, topic, of_topic):
                try:
                    members = _row(row)
                    found[queue_id] = rows.read_queue(members, topic, queue_id)
                    self._keep_unknown((topic, queue_id), members, rows.QUEUE_FIELDS)
                except ValueError as error:
                    raise ValueError(f"{QUEUE_TABLE} {topic} {queue_id}: {error}") from error

    def _read_segments(self, name: str, type: SegmentType, table: rows.Row) -> None:
        for path, of_path in table.items():
            found = self.segments[type][path] = {}
            for base, row in _numbered(name, path, of_path):
                try:
                    members = _row(row)
                    found[base] = rows.read_segment(members, path, type, base)
                    self._keep_unknown((path, type, base), members, rows.SEGMENT_FIELDS)
                except ValueError as error:
                    raise ValueError(f"{name} {path} {base}: {error}") from error

    def _keep_unknown(self, key: RowKey, row: rows.Row, known: frozenset[str]) -> None:
        found = rows.unknown_fields(row, known)
        name = row.get("queue")
        if isinstance(name, dict) and "queue" in known:
            inner = rows.unknown_fields(name, rows.QUEUE_NAME_FIELDS)
            if inner:
                found["queue"] = inner
        if found:
            self._unknown[key] = found

    def _with_unknown(self, row: rows.Row, key: RowKey) -> rows.Row:
        unknown = self._unknown.get(key)
        if unknown is None:
            return row
        ours, theirs = row.get("queue"), unknown.get("queue")
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return row | unknown | {"queue": ours | theirs}
        return row | unknown

    def copied(self) -> Tables:
        """Tables that stay as these are now. The rows are shared: they never change."""
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

    # -- changes ------------------------------------------------------------------------------

    def apply(self, changes: Iterable[Change]) -> None:
        """Act on changes that were checked: none of them can fail halfway."""
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

    def _put(self, record: rows.Record) -> None:
        match record:
            case SegmentRecord():
                of_path = self.segments[record.type].setdefault(record.path, {})
                of_path[record.base_offset] = record
            case QueueRecord():
                self.queues.setdefault(record.topic, {})[record.queue_id] = record
            case TopicRecord():
                self.topics[record.topic] = record
                self.topic_serial = max(self.topic_serial, record.topic_id)


K = TypeVar("K")
V = TypeVar("V")


def _delete(table: dict[str, dict[K, V]], outer: str, inner: K) -> None:
    found = table.get(outer)
    if found is not None and found.pop(inner, None) is not None and not found:
        del table[outer]


def _member(document: Mapping[str, Json], name: str) -> rows.Row:
    table = document.get(name)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ValueError(f"{name} is no object")
    return table


def _numbered(name: str, outer: str, table: Json) -> Iterator[tuple[int, Json]]:
    """The rows under integer keys; null stands for none, of a table and of a row."""
    if table is None:
        return
    if not isinstance(table, dict):
        raise ValueError(f"{name} {outer}: it is no object")
    for text, row in table.items():
        if not (text.isascii() and text.isdigit() and len(text) <= INT64_DIGITS):
            raise ValueError(f"{name} {outer}: {text[:40]!r} is no key")
        if row is not None:
            yield int(text), row


def _row(row: Json) -> rows.Row:
    if not isinstance(row, dict):
        raise ValueError("it is no object")
    return row
