"""The one writer of a catalogue's files: the lock, the journal, and compaction.

What lives here: the order of durable steps. What does not: tables and threads; the caller makes
one call at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tieredstore.driver.durable import fsync_directory, make_directories, write_atomically
from tieredstore.driver.file_lock import FileLock
from tieredstore.driver.published import CatalogueUpkeep
from tieredstore.metadata import rocketmq_json
from tieredstore.metadata.catalogue_files import (
    JOURNAL_ASIDE,
    SNAPSHOT_ASIDE,
    Catalogue,
    CatalogueFiles,
    JournalState,
    encode_notes,
    load,
    read_bytes,
)
from tieredstore.metadata.journal import SnapshotName
from tieredstore.metadata.journal_file import JournalFile
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import CatalogueLockedError, MetadataError
from tieredstore.model.printable import log_of

JOURNAL_BYTES_MIN: Final = 4 * 1024 * 1024
"""Below this a journal is never compacted by its size, unless the caller says so."""

log = log_of(__name__)


class CatalogueWriter:
    """Holds the lock from open to close and makes changes durable.

    * The snapshot and the journal that follows it are together the catalogue at every moment.
    * Once a durable step has failed, nothing is known for sure: `commit` and `compact` raise
      until the catalogue is opened again.
    """

    def __init__(
        self,
        files: CatalogueFiles,
        lock: FileLock,
        journal: JournalFile,
        catalogue: Catalogue,
        journal_bytes_max: int | None,
    ) -> None:
        self._files = files
        self._lock = lock
        self._journal = journal
        self._snapshot = catalogue.snapshot
        self._snapshot_is_sound = catalogue.snapshot is not None and not catalogue.used_backup
        self._journal_bytes_max = journal_bytes_max
        self._next_try_bytes = 0
        self._failure: BaseException | None = None

    @classmethod
    def open(
        cls, files: CatalogueFiles, *, journal_bytes_max: int | None
    ) -> tuple[CatalogueWriter, Catalogue, Path | None]:
        """The writer, what it found, and where it put a stale journal."""
        make_directories(files.snapshot.parent)
        lock = FileLock.acquire(files.lock)
        if lock is None:
            raise CatalogueLockedError(str(files.snapshot))
        try:
            catalogue = load(files, lambda: read_bytes(files.journal))
            stale = _set_aside(files, catalogue)
            if catalogue.state is JournalState.LIVE and catalogue.journal.commits:
                journal = JournalFile.resume(files.journal, catalogue.journal)
            else:
                journal = JournalFile(files.journal)
                if stale is None and files.journal.exists():
                    journal.remove()
        except BaseException:
            lock.release()
            raise
        return cls(files, lock, journal, catalogue, journal_bytes_max), catalogue, stale

    @property
    def upkeep(self) -> CatalogueUpkeep:
        """From the file itself: RocketMQ may have written it."""
        try:
            snapshot_ms: int | None = os.stat(self._files.snapshot).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            snapshot_ms = None
        return CatalogueUpkeep(journal_bytes=self._journal.bytes_count, snapshot_ms=snapshot_ms)

    @property
    def outgrown(self) -> bool:
        """Is the journal so long that a new snapshot is due? Its cost is then O(1) a commit."""
        length = 0 if self._snapshot is None else self._snapshot.length
        limit = self._journal_bytes_max or max(JOURNAL_BYTES_MIN, length)
        return self._journal.bytes_count > max(limit, self._next_try_bytes)

    def commit(self, encoded_changes: Sequence[bytes]) -> None:
        """Make one batch durable. Raises MetadataError; the batch may then be there or not."""
        self._require_sound()
        try:
            self._journal.commit(encoded_changes, self._snapshot)
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Take no more writes: what is in memory and what is in the files may differ."""
        self._failure = self._failure or error

    def compact(self, tables: Tables) -> None:
        """Write the tables as the new snapshot and drop the journal.

        The steps, each durable before the next: notes; the snapshot under a name of its own; a
        line in the journal that names it; its real name; the journal goes. Up to the line the
        old snapshot and the journal count and a failure leaves them as they were.
        """
        self._require_sound()
        data = rocketmq_json.encode(tables.document())
        name = SnapshotName.of(data)
        if self._snapshot_is_sound and name == self._snapshot and not self._journal.exists:
            return
        try:
            if len(data) > rocketmq_json.SNAPSHOT_BYTES_MAX:
                raise MetadataError(str(self._files.snapshot), "it is too large for one file")
            if tables.notes_changed:
                write_atomically(self._files.notes, [encode_notes(tables.notes)])
            write_atomically(self._files.next_snapshot, [data])
        except (OSError, MetadataError):
            self._next_try_bytes = 2 * self._journal.bytes_count
            raise
        try:
            self._journal.name_next(name)
            self._replace_snapshot()
            self._journal.remove()
        except BaseException as error:
            self.fail(error)
            raise
        self._snapshot, self._snapshot_is_sound = name, True
        self._next_try_bytes = 0
        tables.notes_changed = False

    def close(self, tables: Tables) -> None:
        """Compact, if anything changed, and release the lock whatever happens."""
        try:
            if self._journal.exists and self._failure is None:
                self.compact(tables)
        except (OSError, MetadataError) as error:
            # Nothing is lost: the journal holds it, and the next open reads it.
            log.warning("%s: not compacted on close: %s", self._files.snapshot, error)
        finally:
            self._journal.close()
            self._lock.release()

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise MetadataError(
                str(self._files.snapshot),
                f"an earlier write failed, open it again: {self._failure!r}",
            ) from self._failure

    def _replace_snapshot(self) -> None:
        files = self._files
        if self._snapshot_is_sound:
            _keep_backup(files)
        elif files.snapshot.exists():  # the backup is the only sound one: it stays
            os.rename(files.snapshot, files.aside(SNAPSHOT_ASIDE))
        # The name is made durable when the journal is removed: before it goes.
        os.replace(files.next_snapshot, files.snapshot)


def _keep_backup(files: CatalogueFiles) -> None:
    """Copy the snapshot. A second name for the same file would not do: RocketMQ writes in place."""
    data = read_bytes(files.snapshot)
    if data is not None:
        write_atomically(files.backup, [data])


def _set_aside(files: CatalogueFiles, catalogue: Catalogue) -> Path | None:
    """Rename a journal that no longer counts, unless it says nothing."""
    said_something = catalogue.state is JournalState.STALE and catalogue.journal.commits
    if not said_something and catalogue.state is not JournalState.DAMAGED:
        return None
    stale = files.aside(JOURNAL_ASIDE)
    with contextlib.suppress(FileNotFoundError):
        os.rename(files.journal, stale)
    fsync_directory(stale.parent)
    return stale
