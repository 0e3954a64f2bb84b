"""The catalogue in a broker's log: an entry's rows become valid together with its bytes."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence

import msgspec

from tieredstore.driver.metadata import (
    CatalogueFacts,
    Change,
    DeleteNote,
    DeleteQueue,
    DeleteSegment,
    DeleteTopic,
    Put,
    PutNote,
)
from tieredstore.metadata import journal
from tieredstore.metadata.memory_store import MemoryReads
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import FencedError, MetadataError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.roundlog.draft import Draft
from tieredstore.roundlog.entry import Sealed, SegmentKey
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.state import LogState

log = log_of(__name__)


class LogCatalogue(MemoryReads):
    """One broker's catalogue, from its log.

    * The writer reads and changes the log's own tables. It has claimed the log before.
    * A reader has a copy, which does not change until `refresh`: it may name segments that have
      expired since, and lack new ones. A reader that notices this amends its copy.
    * Changes without effect are dropped. If none is left, no request is made.
    """

    def __init__(self, log: BrokerLog, *, read_only: bool) -> None:
        super().__init__(Tables(), name=log.key("log/"), lock=log.guard)
        self._log = log
        self._read_only = read_only
        self._refreshing = threading.Lock()  # one thread at a time asks the backend
        self._facts = self._facts_of(log.state())
        if read_only:
            self._copy(log.state())

    @property
    def facts(self) -> CatalogueFacts:
        if self._read_only:
            return self._facts
        with self._log.guard:
            return self._facts_of(self._log.state())

    def refresh(self) -> None:
        self._require_open()
        if not self._read_only:
            return
        with self._refreshing:
            state = self._log.follow()
            if self._facts_of(state) != self._facts:  # another log may be as long
                self._copy(state)

    def amend(self, *, gone: Sequence[SegmentRecord], come: Sequence[SegmentRecord]) -> None:
        if not self._read_only:
            super().amend(gone=gone, come=come)
        changes: list[Change] = [DeleteSegment(row.path, row.type, row.base_offset) for row in gone]
        changes += map(Put, come)
        with self._tables_lock:
            self._open_tables().apply(changes)

    def apply(self, changes: Iterable[Change]) -> None:
        kept = self._news(self._checked(changes))
        if kept or self._log.staged:
            self._log.append([Draft(changes=kept)])

    def apply_with(
        self, changes: Iterable[Change], taken: Sequence[tuple[SegmentKey, Sealed]]
    ) -> None:
        """Apply changes and make these objects segments: all of this, or nothing."""
        draft = Draft(changes=self._news(self._checked(changes)), taken=taken)
        self._log.append([draft])
        if draft.error is not None:
            raise draft.error

    def stage(self, changes: Iterable[Change]) -> None:
        checked = self._checked(changes)
        with self._tables_lock:
            self._stage(_news(checked, self._open_tables(), doubtful=self._log.doubtful))

    @property
    def has_staged(self) -> bool:
        return not self._read_only and bool(self._log.staged)

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        self._refuse_reader()
        with self._tables_lock:
            tables = self._open_tables()
            record = tables.topics.get(topic)
            if record is None:
                record = tables.new_topic(topic, reserve_hours, self._log.clock.now_ms())
            self.stage([Put(record)])
            return tables.topics[topic]

    def close(self) -> None:
        """Append what is staged. If that fails it is lost, but nothing depends on it."""
        if self._closed:
            return
        try:
            if not self._read_only and self._log.staged:
                self._log.append([Draft()])
        except FencedError:
            pass
        except TieredStoreError as error:
            log.warning(
                "%s: the last changes, on which nothing depends, are lost: %s", self._name, error
            )
        finally:
            self._closed = True

    def _open_tables(self) -> Tables:
        self._require_open()
        return self._tables if self._read_only else self._log.state().tables

    def _copy(self, state: LogState) -> None:
        with self._log.guard:
            self._tables, self._facts = state.tables.copied(), self._facts_of(state)

    def _facts_of(self, state: LogState) -> CatalogueFacts:
        return CatalogueFacts(
            source="log",
            place=self._name,
            copy=self._read_only,
            generation=state.sequence,
            epoch=state.epoch,
            written_ms=state.time_ms,
        )

    def _refuse_reader(self) -> None:
        self._require_open()
        if self._read_only:
            raise MetadataError(self._name, "it is read only: its writer appends to the log")

    def _checked(self, changes: Iterable[Change]) -> list[Change]:
        """The changes as a reader will see them. MetadataError for one that could not be read
        back."""
        self._refuse_reader()
        asked = list(changes)
        try:
            with self._tables_lock:
                tables = self._open_tables()
                known = [isinstance(each, Put) and _effect(each, tables)[1] for each in asked]
            return [
                change if is_known else journal.encode(change)[0]  # known rows were checked before
                for change, is_known in zip(asked, known, strict=True)
            ]
        except (TypeError, ValueError) as error:
            raise MetadataError(self._name, f"refused: {error}") from error

    def _news(self, changes: Sequence[Change]) -> list[Change]:
        if self._log.in_doubt:  # an entry that may have landed may undo these changes
            self._log.settled()
        with self._tables_lock:
            return _news(changes, self._open_tables())

    def _stage(self, changes: Sequence[Change]) -> None:
        self._open_tables().apply(changes)
        self._log.staged += changes


def _news(
    changes: Iterable[Change], tables: Tables, *, doubtful: Iterable[Change] = ()
) -> list[Change]:
    """The changes with an effect, and those that follow one on the same row, or a doubtful one."""
    found: list[Change] = []
    touched: set[Hashable] = {_effect(change, tables)[0] for change in doubtful}
    for change in changes:
        row, is_there_so = _effect(change, tables)
        if not is_there_so or row in touched:
            touched.add(row)
            found.append(change)
    return found


def _effect(change: Change, tables: Tables) -> tuple[Hashable, bool]:
    """The row that it changes, and whether the tables already agree with it."""
    match change:
        case Put(TopicRecord() as record):
            return ("topic", record.topic), tables.topics.get(record.topic) == record
        case Put(QueueRecord() as record):
            known = tables.queues.get(record.topic, {}).get(record.queue_id)
            return ("queue", record.topic, record.queue_id), known == record
        case Put(SegmentRecord() as record):
            row = tables.segments[record.type].get(record.path, {}).get(record.base_offset)
            return record.key, row == record
        case PutNote(kind, key, value):
            text = tables.notes.get(kind, {}).get(key)
            return ("note", kind, key), text == msgspec.json.encode(value)
        case DeleteTopic(topic):
            return ("topic", topic), topic not in tables.topics
        case DeleteQueue(topic, queue_id):
            return ("queue", topic, queue_id), queue_id not in tables.queues.get(topic, {})
        case DeleteSegment(path, type, base):
            return (path, type, base), base not in tables.segments[type].get(path, {})
        case DeleteNote(kind, key):
            return ("note", kind, key), key not in tables.notes.get(kind, {})
    raise ValueError("it is no change of the catalogue")
