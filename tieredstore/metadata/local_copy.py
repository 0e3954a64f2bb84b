"""RocketMQ's JSON file as a copy of a catalogue that lies elsewhere, with the bytes.

The copy has the same name and lock as a file that is itself the catalogue. `LocalCopy` writes it,
`ReadCopy` reads it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Final, Self

from tieredstore.driver.durable import FileLock, make_directories, write_atomically
from tieredstore.driver.metadata import (
    CatalogueCopy,
    CatalogueFacts,
    CatalogueUpkeep,
    Change,
    DeleteSegment,
    MetadataStore,
    Put,
)
from tieredstore.driver.one_process import LockOfOneProcess
from tieredstore.metadata.files import (
    CatalogueFiles,
    keep_backup,
    load,
    read_bytes,
    refuse_gone,
)
from tieredstore.metadata.memory_store import MemoryMetadataStore
from tieredstore.model.errors import (
    CatalogueLockedError,
    MetadataError,
    TieredStoreError,
    system_says,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentRecord, TopicRecord

log = log_of(__name__)

ASIDE: Final = ".stale"


class LocalCopy(CatalogueCopy):
    """Holds the lock of a catalogue's file, and writes a copy of a catalogue into that file.

    * A file has one writer among all processes, as with `JsonMetadataStore`.
    * It is for people and for readers that ask for the file; no writer ever reads it. So nothing
      depends on it: a failure is logged, and the next copy that is due tries again.
    * The previous file is kept as the backup. A file that was itself a catalogue is also kept
      aside, with its journal and notes: it may be the only one of another tier, and the next start
      overwrites the backup.
    """

    def __init__(self, files: CatalogueFiles, lock: FileLock, *, is_locked_first: bool) -> None:
        self._files = files
        self._is_locked_first = is_locked_first  # an existing file is RocketMQ's, which has no lock
        self._lock: FileLock | None = lock
        self._source: MetadataStore | None = None
        self._written: bytes | None = None
        self._guard = threading.Lock()  # held while the file is written

    @classmethod
    def locked(cls, path: str | os.PathLike[str]) -> LocalCopy:
        """Lock the file at `path`, which need not exist. It is not read.

        Raises CatalogueLockedError if another writer has it open, MetadataError if the system
        refuses.
        """
        files = CatalogueFiles.at(path)
        try:
            make_directories(files.snapshot.parent)
            is_locked_first = not files.lock.exists()
            lock = FileLock.acquire(files.lock)
        except OSError as error:
            reason = f"locking it failed: {system_says(error)}"
            raise MetadataError(str(files.snapshot), reason) from error
        if lock is None:
            raise CatalogueLockedError(str(files.snapshot))
        return cls(files, lock, is_locked_first=is_locked_first)

    def follow(self, source: MetadataStore) -> None:
        self._source = source

    @property
    def upkeep(self) -> CatalogueUpkeep:
        try:
            written_ms: int | None = os.stat(self._files.snapshot).st_mtime_ns // 1_000_000
        except OSError:
            written_ms = None
        return CatalogueUpkeep(snapshot_ms=written_ms)

    def step(self) -> None:
        with self._guard:
            if self._source is None or self._lock is None:
                return
            try:
                data = self._source.snapshot_bytes()
                if data != self._written:
                    self._replace(data)
                    self._written = data
            except (OSError, TieredStoreError) as error:
                name = self._files.snapshot
                log.warning("%s: the catalogue was not copied there: %s", name, error)

    def close(self) -> None:
        with self._guard:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _replace(self, data: bytes) -> None:
        files = self._files
        if self._written is None:
            keep_backup(files)
            beside = [path for path in (files.journal, files.notes) if path.exists()]
            held = read_bytes(files.snapshot)
            if held is not None and (beside or self._is_locked_first):
                write_atomically(files.aside(ASIDE), [held])
            for path in beside:
                os.rename(path, files.aside(path.name.removeprefix(files.snapshot.name) + ASIDE))
        write_atomically(files.snapshot, [data])


class ReadCopy(MemoryMetadataStore):
    """The catalogue as it was last copied here, read only."""

    def __init__(self, files: CatalogueFiles) -> None:
        super().__init__(place=str(files.snapshot), clock_ms=lambda: 0)
        self._files = files
        self._was_there = False
        self._refreshing = LockOfOneProcess(self._process)  # while the files are read

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The copy at `path`. Raises MetadataError if it makes no sense."""
        found = cls(CatalogueFiles.at(path))
        found.refresh()
        return found

    @property
    def facts(self) -> CatalogueFacts:
        return CatalogueFacts(source="file", place=self._name, copy=True)

    def refresh(self) -> None:
        files = self._files
        with self._refreshing:
            catalogue = load(files, lambda: read_bytes(files.journal))
            with self._tables_lock:
                self._require_open()
                refuse_gone(files, catalogue, was_there=self._was_there)
                self._was_there = not catalogue.is_nothing
                self._tables = catalogue.tables

    def apply(self, changes: Iterable[Change]) -> None:
        raise MetadataError(self._name, "it is a copy: nothing is written to it")

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        raise MetadataError(self._name, "it is a copy: nothing is written to it")

    def amend(self, *, gone: Sequence[SegmentRecord], come: Sequence[SegmentRecord]) -> None:
        deleted = [DeleteSegment(row.path, row.type, row.base_offset) for row in gone]
        super().apply([*deleted, *map(Put, come)])
