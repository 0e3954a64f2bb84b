"""A provider of your own: a tier in one SQLite file, for small segments.

Its test is the suite that ships. StoreConfig(provider="own_provider:SqliteProvider", path="t.db")
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from threading import RLock
from typing import Any, Self

import tieredstore as ts
from tieredstore.driver.provider import ListedSegment
from tieredstore.driver.segment import Buffer, check_queue_path, check_range

TABLE = "segment (data BLOB, path, type, base, PRIMARY KEY (path, type, base))"
MINE = "FROM segment WHERE path = ? AND type = ? AND base = ?"
GROWN = "ON CONFLICT DO UPDATE SET data = CAST(data || excluded.data AS BLOB)"


class SqliteProvider(ts.SegmentProvider):
    def __init__(self, runtime: ts.Runtime, path: str) -> None:
        super().__init__(runtime)
        self.path, self.guard = path, RLock()

    @classmethod
    def from_config(cls, config: ts.StoreConfig, runtime: ts.Runtime) -> Self:
        return cls(runtime, config.path)

    def open(self, path: str, type: ts.SegmentType, base: int) -> "SqliteSegment":
        check_queue_path(path, base)
        return SqliteSegment(self, path, type, base)

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        below = prefix.rstrip("/") + "/" if prefix else ""
        for path, kind, *rest in self.ask("SELECT path, type, base, length(data) FROM segment"):
            if f"{path}/".startswith(below):
                yield ListedSegment(path, ts.SegmentType(kind), *rest)

    def ask(self, sql: str, *values: object) -> Any:
        """All rows of one statement, which is durable on return; SQLite's errors become ours."""
        try:
            with self.guard, closing(sqlite3.connect(self.path, isolation_level=None)) as file:
                file.execute(f"CREATE TABLE IF NOT EXISTS {TABLE}")
                return file.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise ts.BackendUnavailableError(self.path, "ask", str(error)) from error


class SqliteSegment(ts.FileSegment):
    def __init__(self, provider: SqliteProvider, path: str, type: ts.SegmentType, base: int):
        super().__init__(path, type, base)
        self.provider, self.is_sealed, self.is_closed = provider, False, False

    @property
    def path(self) -> str:
        return f"{self.queue_path}/{self.type.name}/{self.base}"

    def ask(self, sql: str, *values: object) -> Any:
        if self.is_closed:
            raise ts.StoreClosedError(f"{self.path} is closed")
        return self.provider.ask(sql, *values, self.queue_path, int(self.type), self.base)

    def size(self) -> int:
        for (size,) in self.ask(f"SELECT length(data) {MINE}"):
            return int(size)
        raise ts.SegmentNotFoundError(self.path)

    def read(self, position: int, length: int) -> bytes:
        check_range(self.path, position, length, self.size())
        for (data,) in self.ask(f"SELECT substr(data, ?, ?) {MINE}", position + 1, length):
            return bytes(data)
        raise ts.SegmentNotFoundError(self.path)

    def write(self, position: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with self.provider.guard:
            end = sum(size for (size,) in self.ask(f"SELECT length(data) {MINE}"))
            if self.is_sealed:
                raise ts.SegmentSealedError(self.path)
            if position != end:
                raise ts.PositionMismatchError(self.path, expected=position, actual=end)
            if view:
                self.ask(f"INSERT INTO segment VALUES (?, ?, ?, ?) {GROWN}", view)

    def seal(self) -> None:
        self.ask(f"SELECT 1 {MINE}")  # a handle that is closed refuses
        self.is_sealed = True

    def delete(self) -> None:
        self.ask(f"DELETE {MINE}")

    def close(self) -> None:
        self.is_closed = True
