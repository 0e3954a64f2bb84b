"""A catalogue of your own: an SQLite file. Its test is the suite that ships.

StoreConfig(metadata="own_metadata_store:SqliteMetadataStore", metadata_path="catalogue.db")

`MemoryReads` answers reads from tables in memory, and `changes` turns a change into JSON and back:
what is left is to make a batch durable. Run one writer at a time; readers as many as you like.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec

from tieredstore import MetadataError, TopicRecord
from tieredstore.driver.metadata import Change
from tieredstore.driver.runtime import SystemClock
from tieredstore.metadata.journal import encode, from_json
from tieredstore.metadata.memory_store import MemoryReads
from tieredstore.metadata.tables import Tables

TABLE = "CREATE TABLE IF NOT EXISTS change (number INTEGER PRIMARY KEY, json BLOB)"
CLOCK = SystemClock()


class SqliteMetadataStore(MemoryReads):
    """A row for each change; opening replaces these rows by their result."""

    def __init__(self, path: str, read_only: bool, clock_ms: Callable[[], int]) -> None:
        super().__init__(Tables(), name=path)
        self._read_only, self._clock_ms = read_only, clock_ms
        self._guard = threading.RLock()  # for the file; reads of tables never wait for it
        where = Path(path).absolute().as_uri() + ("?mode=ro" if read_only else "")
        self._file = sqlite3.connect(where, uri=True, check_same_thread=False)

    @classmethod
    def open(
        cls,
        path: str,
        *,
        read_only: bool = False,
        clock_ms: Callable[[], int] = CLOCK.now_ms,
    ) -> Self:
        with translated(path):
            store = cls(path, read_only, clock_ms)
            if not read_only:
                store._file.execute(TABLE)
            store._read()
            if not read_only:
                store._write(store.contents(), instead=True)
        return store

    def apply(self, changes: Iterable[Change]) -> None:
        with self._guard, translated(self._name):
            self._check_writable()
            seen = self._write(changes)
            with self._tables_lock:
                self._tables.apply(seen)

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        with self._guard:
            self._check_writable()
            if (known := self.topic(topic)) is not None:
                return known
            number, now = self._tables.topic_serial + 1, self._clock_ms()
            record = TopicRecord(
                topic=topic, topic_id=number, reserve_hours=reserve_hours, update_timestamp=now
            )
            self.put(record)
            return record

    def refresh(self) -> None:
        with self._guard, translated(self._name):
            self._require_open()
            if self._read_only:
                self._read()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._file.close()

    def _read(self) -> None:
        rows = self._file.execute("SELECT json FROM change ORDER BY number").fetchall()
        tables = Tables()
        tables.apply(from_json(msgspec.json.decode(text)) for (text,) in rows)
        with self._tables_lock:
            self._tables = tables

    def _write(self, changes: Iterable[Change], *, instead: bool = False) -> list[Change]:
        """Write all changes or none, durably; returns them as a reader will see them."""
        seen = [encode(change) for change in changes]
        with self._file:  # one transaction
            if instead:
                self._file.execute("DELETE FROM change")
            rows = [(text,) for _, text in seen]
            self._file.executemany("INSERT INTO change (json) VALUES (?)", rows)
        return [change for change, _ in seen]

    def _check_writable(self) -> None:
        self._require_open()
        if self._read_only:
            raise MetadataError(self._name, "it was opened read only")


@contextmanager
def translated(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, msgspec.DecodeError, ValueError) as error:
        raise MetadataError(path, str(error)) from error
