"""Catalogue tables behind a lock, and `MemoryMetadataStore`, which has only these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec

from tieredstore.codec import fastjson
from tieredstore.driver.metadata import (
    CatalogueFacts,
    Change,
    DeleteSegment,
    MetadataStore,
    Put,
)
from tieredstore.driver.one_process import LockOfOneProcess, OneProcess
from tieredstore.metadata import journal
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import MetadataError, StoreClosedError
from tieredstore.model.values import Json, QueueRecord, SegmentRecord, SegmentType, TopicRecord


class MemoryReads(MetadataStore):
    """Answers every read from `_tables`, as of one moment.

    `_tables_lock` is held only briefly, by reads to copy, and by subclasses to apply a whole batch
    or to replace the tables; never during I/O. A forked process that uses the store of its parent
    gets OtherProcessError.
    """

    def __init__(
        self, tables: Tables, *, name: str, lock: AbstractContextManager[bool] | None = None
    ) -> None:
        self._tables = tables
        self._process = OneProcess(name)
        self._tables_lock = LockOfOneProcess(self._process, lock)
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
        return fastjson.encode(tables.document())

    def contents(self) -> Sequence[Change]:
        with self._tables_lock:
            tables = self._open_tables().copied()
        return tables.contents()

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
    value: Json = msgspec.json.decode(text)  # the caller's own copy
    return value


class MemoryMetadataStore(MemoryReads):
    """A catalogue in memory, empty at first. Thread-safe."""

    def __init__(self, *, place: str, clock_ms: Callable[[], int]) -> None:
        super().__init__(Tables(), name=place)
        self._clock_ms = clock_ms

    @property
    def facts(self) -> CatalogueFacts:
        return CatalogueFacts(source="rebuild", place=self._name, copy=True)

    def apply(self, changes: Iterable[Change]) -> None:
        try:
            seen = [journal.encode(change)[0] for change in changes]
        except ValueError as error:
            raise MetadataError(self._name, f"refused: {error}") from error
        with self._tables_lock:
            self._open_tables().apply(seen)

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        with self._tables_lock:
            tables = self._open_tables()
            if topic not in tables.topics:
                record = tables.new_topic(topic, reserve_hours, self._clock_ms())
                tables.apply([Put(record)])
            return tables.topics[topic]

    def amend(self, *, gone: Sequence[SegmentRecord], come: Sequence[SegmentRecord]) -> None:
        deleted = [DeleteSegment(row.path, row.type, row.base_offset) for row in gone]
        self.apply([*deleted, *map(Put, come)])

    def refresh(self) -> None:
        """Does nothing, as nobody else changes the catalogue."""
        self._require_open()

    def close(self) -> None:
        self._closed = True
