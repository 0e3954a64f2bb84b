"""The reading half of a metadata store whose tables are in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tieredstore.driver.metadata import (
    Change,
    DeleteTopic,
    Json,
    MetadataStore,
    Put,
    PutNote,
)
from tieredstore.driver.one_process import LockOfOneProcess, OneProcess
from tieredstore.metadata import rocketmq_json
from tieredstore.metadata.tables import Tables
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.values import SegmentType

_NOBODY: Final = "\0copied"


class MemoryReads(MetadataStore):
    """Answers every read from `_tables`, each as of one moment.

    `_tables_lock` is held for moments only, by reads to copy and by the writing half to apply a
    whole batch or to put other tables in place; never while bytes travel. A process that is forked
    off from the one that opened the store is refused: OtherProcessError.
    """

    def __init__(self, tables: Tables, *, name: str) -> None:
        self._tables = tables
        self._process = OneProcess(name)
        self._tables_lock = LockOfOneProcess(self._process)
        self._name = name
        self._closed = False

    def topic(self, topic: str) -> TopicRecord | None:
        with self._tables_lock:
            return self._open_tables().topics.get(topic)

    def topics(self) -> Sequence[TopicRecord]:
        with self._tables_lock:
            return tuple(self._open_tables().topics.values())

    def queue(self, topic: str, queue_id: int) -> QueueRecord | None:
        with self._tables_lock:
            return self._open_tables().queues.get(topic, {}).get(queue_id)

    def queues(self, topic: str | None = None) -> Sequence[QueueRecord]:
        with self._tables_lock:
            table = self._open_tables().queues
            chosen = table.values() if topic is None else [table.get(topic, {})]
            found = [list(of_topic.values()) for of_topic in chosen]
        return tuple(
            row for of_topic in found for row in sorted(of_topic, key=lambda row: row.queue_id)
        )

    def segment(self, path: str, type: SegmentType, base_offset: int) -> SegmentRecord | None:
        with self._tables_lock:
            return self._open_tables().segments[type].get(path, {}).get(base_offset)

    def segments(
        self, path: str | None = None, type: SegmentType | None = None
    ) -> Sequence[SegmentRecord]:
        types = SegmentType if type is None else (type,)
        with self._tables_lock:
            tables = [self._open_tables().segments[kind] for kind in types]
            found = [
                list(of_path.values())
                for table in tables
                for of_path in (table.values() if path is None else [table.get(path, {})])
            ]
        return tuple(
            row for of_path in found for row in sorted(of_path, key=lambda row: row.base_offset)
        )

    def note(self, kind: str, key: str) -> Json:
        with self._tables_lock:
            text = self._open_tables().notes.get(kind, {}).get(key)
        return None if text is None else _note(text)

    def notes(self, kind: str) -> Mapping[str, Json]:
        with self._tables_lock:
            found = dict(self._open_tables().notes.get(kind, {}))
        return {key: _note(text) for key, text in found.items()}

    def snapshot_bytes(self) -> bytes:
        with self._tables_lock:
            tables = self._open_tables().copied()
        return rocketmq_json.encode(tables.document())

    def contents(self) -> Sequence[Change]:
        with self._tables_lock:
            tables = self._open_tables().copied()
        # The number first, so that no topic that is deleted by now gives its own away again.
        last = TopicRecord(topic=_NOBODY, topic_id=max(0, tables.topic_serial))
        changes: list[Change] = [Put(last), DeleteTopic(_NOBODY)] if tables.topic_serial > 0 else []
        changes += [Put(row) for row in tables.topics.values()]
        changes += [Put(row) for found in tables.queues.values() for row in found.values()]
        for of_type in tables.segments.values():
            changes += [Put(row) for found in of_type.values() for row in found.values()]
        for kind, notes in tables.notes.items():
            changes += [PutNote(kind, key, _note(text)) for key, text in notes.items()]
        return changes

    def __exit__(self, kind: object = None, *exception: object) -> None:
        if not self._process.is_left_by(kind):
            self.close()

    def _open_tables(self) -> Tables:
        self._require_open()
        return self._tables

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._name} is closed")
        self._process.require()


def _note(text: bytes) -> Json:
    value: Json = msgspec.json.decode(text)  # a copy of the caller's own
    return value
