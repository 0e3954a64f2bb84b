"""The files of a catalogue: one writer holds the lock and changes them, any reader follows it.

tieredStoreMetadata.json                 the snapshot: RocketMQ's own file
tieredStoreMetadata.json.bak             its backup, under RocketMQ's own name
tieredStoreMetadata.json.journal         what changed since; names the snapshot it follows
tieredStoreMetadata.json.journal.stale   a journal that RocketMQ's own writing overtook, or broken
tieredStoreMetadata.json.damaged         a snapshot that could not be read and was replaced
tieredStoreMetadata.json.notes           the notes, as of the snapshot or later
tieredStoreMetadata.json.next            the next snapshot, before it gets its name
tieredStoreMetadata.json.lock            held by the one writer
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from tieredstore.codec import fastjson
from tieredstore.driver.durable import (
    FileLock,
    fsync_directory,
    fsync_file,
    make_directories,
    write_atomically,
)
from tieredstore.driver.metadata import CatalogueUpkeep, Change
from tieredstore.metadata.journal import (
    JournalContents,
    JournalFile,
    NotWrittenError,
    SnapshotName,
    read_journal,
    seal,
    unseal,
)
from tieredstore.metadata.tables import SNAPSHOT_BYTES_MAX, Tables
from tieredstore.model.errors import CatalogueLockedError, MetadataError, system_says
from tieredstore.model.printable import log_of

log = log_of(__name__)

KEPT_ASIDE_MAX: Final = 100
JOURNAL_ASIDE: Final = ".journal.stale"
SNAPSHOT_ASIDE: Final = ".damaged"
JOURNAL_BYTES_MIN: Final = 4 * 1024 * 1024
"""A journal smaller than this is not compacted for its size, unless the caller asks."""
LOADS_MAX: Final = 8
"""How often a load starts again because a writer changed the files meanwhile."""
READ_BYTES: Final = 1024 * 1024
Stamp: TypeAlias = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class CatalogueFiles:
    """The names of one catalogue's files, all next to the snapshot."""

    snapshot: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> CatalogueFiles:
        # Resolve symbolic links, so that two names of one file share its journal and its lock.
        return cls(Path(os.path.realpath(path)))

    def _beside(self, suffix: str) -> Path:
        return self.snapshot.with_name(self.snapshot.name + suffix)

    @property
    def backup(self) -> Path:
        return self._beside(".bak")

    @property
    def journal(self) -> Path:
        return self._beside(".journal")

    @property
    def notes(self) -> Path:
        return self._beside(".notes")

    @property
    def next_snapshot(self) -> Path:
        return self._beside(".next")

    @property
    def lock(self) -> Path:
        return self._beside(".lock")

    def aside(self, suffix: str) -> Path:
        """A free name for a file to keep. Raises MetadataError if there are too many."""
        first = self._beside(suffix)
        numbered = (self._beside(f"{suffix}.{n}") for n in range(1, KEPT_ASIDE_MAX))
        for path in (first, *numbered):
            if not path.exists():
                return path
        raise MetadataError(str(first), f"there are {KEPT_ASIDE_MAX} of them: move them away")


class JournalState(Enum):
    """How the journal relates to the snapshot that was read."""

    ABSENT = "absent"
    LIVE = "live"
    """It continues this snapshot."""
    CONTAINED = "contained"
    """This snapshot has all of it: the writer stopped before it removed the journal."""
    STALE = "stale"
    """It belongs to an earlier snapshot: RocketMQ has written one since."""
    DAMAGED = "damaged"
    """Even its first line is torn. That line is written in one piece, so no crash does this."""


@dataclass(slots=True, kw_only=True)
class Catalogue:
    """What the files say: the snapshot's tables, with the changes of the journal if they count."""

    tables: Tables
    snapshot: SnapshotName | None
    used_backup: bool
    journal: JournalContents
    state: JournalState

    @property
    def is_nothing(self) -> bool:
        """Whether no file says anything, as before the first commit."""
        return self.snapshot is None and not self.journal.commits


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """What the last complete read of the files had to handle."""

    replayed_lines: int = 0
    """Batches that the journal added to the snapshot."""
    torn_bytes: int = 0
    """Left by an interrupted write. A writer has cut them off; a reader ignores them."""
    stale_journal: Path | None = None
    """A journal that was not replayed: RocketMQ wrote a newer snapshot, or no line is whole."""
    used_backup: bool = False
    """Whether the backup was used because the snapshot was missing or unreadable."""

    @classmethod
    def of(cls, files: CatalogueFiles, catalogue: Catalogue, stale: Path | None) -> OpenReport:
        """The report of a read; `stale` is where a writer has put a stale journal."""
        journal, state = catalogue.journal, catalogue.state
        overtaken = state is JournalState.STALE and journal.commits
        if (overtaken or state is JournalState.DAMAGED) and stale is None:
            stale = files.journal  # a reader leaves it in place
        return cls(
            replayed_lines=journal.commits if state is JournalState.LIVE else 0,
            torn_bytes=journal.torn_bytes,
            stale_journal=stale,
            used_backup=catalogue.used_backup,
        )

    def warn(self, files: CatalogueFiles) -> None:
        name = files.snapshot
        if self.used_backup:
            log.warning("%s: missing or unreadable, its backup is used", name)
        if self.torn_bytes:
            log.warning("%s: its journal ends in %d torn bytes", name, self.torn_bytes)
        if self.stale_journal is not None:
            log.warning(
                "%s: RocketMQ has written it since its journal, or that is damaged; kept aside: %s",
                name,
                self.stale_journal,
            )


class CatalogueWriter:
    """Holds the lock from open to close and makes changes durable.

    * At every moment, the snapshot and the journal that follows it are together the catalogue.
    * Once a durable step has failed, the files' contents are uncertain: `commit` and `compact`
      raise until the catalogue is opened again. A line that was not written changes nothing.
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
            _make_durable(files, catalogue)
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
        """Reads the snapshot's time from the file, as RocketMQ may have written it."""
        try:
            snapshot_ms: int | None = os.stat(self._files.snapshot).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            snapshot_ms = None
        return CatalogueUpkeep(journal_bytes=self._journal.bytes_count, snapshot_ms=snapshot_ms)

    @property
    def outgrown(self) -> bool:
        """Whether the journal is so long that a new snapshot costs only O(1) per commit."""
        length = 0 if self._snapshot is None else self._snapshot.length
        limit = self._journal_bytes_max or max(JOURNAL_BYTES_MIN, length)
        return self._journal.bytes_count > max(limit, self._next_try_bytes)

    def commit(self, encoded_changes: Sequence[bytes]) -> None:
        """Make one batch durable. After an error, the batch may or may not be there; after
        `NotWrittenError` it is not."""
        self._require_sound()
        try:
            self._journal.commit(encoded_changes, self._snapshot)
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Refuse further writes, as memory and files may differ. After `NotWrittenError` they do
        not: the next write may succeed."""
        if not isinstance(error, NotWrittenError):
            self._failure = self._failure or error

    def compact(self, tables: Tables) -> None:
        """Write the tables as the new snapshot and drop the journal.

        The steps, each durable before the next: write the notes; write the snapshot under a name of
        its own; append a journal line that names it; rename it; remove the journal; write the
        backup. Until that line is written, the old snapshot and the journal count, and a failure
        leaves them unchanged. The backup is a copy of the new snapshot, not the previous one: if a
        bit of the snapshot flips, no changes are missing from the backup. A backup that cannot be
        written is only logged.
        """
        self._require_sound()
        data = fastjson.encode(tables.document())
        name = SnapshotName.of(data)
        if self._snapshot_is_sound and name == self._snapshot and not self._journal.exists:
            return
        try:
            if len(data) > SNAPSHOT_BYTES_MAX:
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
            self._next_try_bytes = 2 * self._journal.bytes_count
            self.fail(error)
            raise
        self._snapshot, self._snapshot_is_sound = name, True
        self._next_try_bytes = 0
        tables.notes_changed = False
        try:
            keep_backup(self._files)
        except (OSError, MetadataError) as error:
            # Nothing is lost: the snapshot is durable. The next compaction tries again.
            log.warning("%s: no backup of it was made: %s", self._files.snapshot, error)

    def close(self, tables: Tables) -> None:
        """Compact if anything changed, and release the lock in any case."""
        try:
            if self._journal.exists and self._failure is None:
                self.compact(tables)
        except (OSError, MetadataError) as error:
            # Nothing is lost: the next open reads the journal.
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
        if not self._snapshot_is_sound and files.snapshot.exists():
            os.rename(files.snapshot, files.aside(SNAPSHOT_ASIDE))
        # `remove` of the journal makes this name durable before it deletes the journal.
        os.replace(files.next_snapshot, files.snapshot)


class Follower:
    """One reader's position in the files. It takes no lock, writes nothing, and sees only whole
    batches.

    It keeps the journal open, so that no later file can be taken for the one it was reading. Only
    one thread at a time may call it.
    """

    def __init__(self, files: CatalogueFiles) -> None:
        self._files = files
        self._descriptor: int | None = None
        self._stamps: tuple[Stamp, ...] = ()
        self._journal_stamp: Stamp = None
        self._journal = JournalContents()
        self._live = False
        self._was_there = False

    def load(self) -> Catalogue:
        """Read everything anew. Raises MetadataError if the files are damaged, gone or keep
        changing."""
        self.forget()  # if this fails, the next poll asks for another load
        for attempt in range(1, LOADS_MAX + 1):
            before = self._stamps_now()
            self._open_journal()
            self._journal_stamp = self._open_stamp()
            try:
                catalogue = load(self._files, self._read_from_start)
            except MetadataError:
                # Sound files may look damaged while a writer is at work; at rest they cannot.
                if attempt == LOADS_MAX or self._is_at_rest(before):
                    raise
                continue
            if before == self._stamps_now() and self._journal_is_current():
                refuse_gone(self._files, catalogue, was_there=self._was_there)
                self._was_there = not catalogue.is_nothing
                self._stamps = before
                self._journal = catalogue.journal
                self._live = catalogue.state is JournalState.LIVE
                return catalogue
        raise MetadataError(
            str(self._files.snapshot), f"it changed under the reader {LOADS_MAX} times"
        )

    def poll(self) -> Sequence[Change] | None:
        """The changes that the journal has gained. None if anything else changed: then `load`."""
        if self._stamps != self._stamps_now() or not self._journal_is_current():
            return None
        if not self._live:
            return [] if self._journal_stamp == self._open_stamp() else None
        assert self._descriptor is not None
        position = self._journal.whole_bytes
        if os.fstat(self._descriptor).st_size < position:
            return None  # a writer cut off what had looked whole
        try:
            data = _read_all(self._descriptor, position)
            last = self._journal.last_seal
            if os.pread(self._descriptor, len(last), self._journal.last_at) != last:
                return None  # and has written other lines there since
            self._journal = read_journal(data, self._files.journal, after=self._journal)
        except MetadataError:
            return None
        return self._journal.changes

    def forget(self) -> None:
        """Let the next poll ask for a load, whatever was read before."""
        self._stamps = ()

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open_journal(self) -> None:
        self.close()
        try:
            self._descriptor = os.open(self._files.journal, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise MetadataError(
                str(self._files.journal), f"it cannot be read: {system_says(error)}"
            ) from error

    def _read_from_start(self) -> bytes | None:
        return None if self._descriptor is None else _read_all(self._descriptor, 0)

    def _stamps_now(self) -> tuple[Stamp, ...]:
        files = self._files
        return tuple(_stamp(path) for path in (files.snapshot, files.backup, files.notes))

    def _open_stamp(self) -> Stamp:
        return None if self._descriptor is None else _facts(os.fstat(self._descriptor))

    def _journal_is_current(self) -> bool:
        """Whether the journal that we have open still has the journal's name."""
        named, read = _stamp(self._files.journal), self._open_stamp()
        return named == read if named is None or read is None else named[:2] == read[:2]

    def _is_at_rest(self, before: tuple[Stamp, ...]) -> bool:
        return before == self._stamps_now() and self._journal_stamp == _stamp(self._files.journal)


def load(files: CatalogueFiles, read_journal_bytes: Callable[[], bytes | None]) -> Catalogue:
    """Read everything. Raises MetadataError if the result is no sound catalogue.

    The notes are read before the journal: newer lines applied to older notes give the right result,
    older lines applied to newer notes would not.
    """
    tables, snapshot, used_backup = _read_snapshot(files)
    tables.notes = read_notes(files.notes)
    data = read_journal_bytes()
    journal = JournalContents() if data is None else read_journal(data, files.journal)
    state = _state_of(files, journal, snapshot, used_backup=used_backup)
    if state is JournalState.LIVE:
        tables.apply(journal.changes)
    return Catalogue(
        tables=tables, snapshot=snapshot, used_backup=used_backup, journal=journal, state=state
    )


def refuse_gone(files: CatalogueFiles, catalogue: Catalogue, *, was_there: bool) -> None:
    """Raise MetadataError if a catalogue that was read before has no files any more: it must not be
    taken for an empty one."""
    if was_there and catalogue.is_nothing:
        raise MetadataError(str(files.snapshot), "it was there, and its files are gone")


def read_notes(path: Path) -> dict[str, dict[str, bytes]]:
    data = read_bytes(path)
    if data is None:
        return {}
    body = unseal(data)
    try:
        if body is None:
            raise ValueError("the file is damaged")
        line = msgspec.json.decode(b"{" + body, type=dict[str, dict[str, dict[str, msgspec.Raw]]])
        notes = line["notes"]
    except (KeyError, ValueError, RecursionError) as error:
        raise MetadataError(str(path), str(error)) from error
    # bytes(), because a Raw keeps the whole file in memory.
    return {
        kind: {key: bytes(raw) for key, raw in of_kind.items()} for kind, of_kind in notes.items()
    }


def encode_notes(notes: dict[str, dict[str, bytes]]) -> bytes:
    raw = {
        kind: {key: msgspec.Raw(text) for key, text in of_kind.items()}
        for kind, of_kind in notes.items()
    }
    return seal(b'"notes":' + msgspec.json.encode(raw) + b"}")


def read_bytes(path: Path, *, bytes_max: int | None = None) -> bytes | None:
    """The bytes of a file, or None if there is none. Raises MetadataError."""
    try:
        if bytes_max is not None and path.stat().st_size > bytes_max:
            raise MetadataError(str(path), f"it has more than {bytes_max} bytes")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetadataError(str(path), f"it cannot be read: {system_says(error)}") from error


def _state_of(
    files: CatalogueFiles,
    journal: JournalContents,
    snapshot: SnapshotName | None,
    *,
    used_backup: bool,
) -> JournalState:
    if not journal.has_header:
        return JournalState.DAMAGED if journal.torn_bytes else JournalState.ABSENT
    if journal.snapshot == snapshot:
        return JournalState.LIVE
    if snapshot is None:
        raise MetadataError(str(files.journal), "the snapshot that this journal follows is gone")
    if journal.next_snapshot == snapshot:
        return JournalState.CONTAINED
    if used_backup and journal.commits:
        raise MetadataError(
            str(files.snapshot),
            "it is missing or unreadable, and its journal does not follow the backup: restore it, "
            "or move the journal away to go on with the backup",
        )
    return JournalState.STALE


def _read_snapshot(files: CatalogueFiles) -> tuple[Tables, SnapshotName | None, bool]:
    """The tables, the name of the bytes they came from, and whether the backup was used."""
    complaints = []
    for path in (files.snapshot, files.backup):
        data = read_bytes(path, bytes_max=SNAPSHOT_BYTES_MAX)
        if data is None:
            continue
        try:
            document = fastjson.decode(data)
        except ValueError as error:
            complaints.append(f"{path.name}: {error}")
            continue
        try:
            tables = Tables.from_document(document)
        except ValueError as error:
            # The text is complete, so it is newer than the backup, which would lack rows.
            raise MetadataError(str(path), str(error)) from error
        return tables, SnapshotName.of(data), path == files.backup
    if complaints:
        raise MetadataError(str(files.snapshot), "; ".join(complaints))
    return Tables(), None, False


def keep_backup(files: CatalogueFiles) -> None:
    """Copy the snapshot. A hard link would not do, because RocketMQ writes in place."""
    data = read_bytes(files.snapshot)
    if data is not None:
        write_atomically(files.backup, [data])


def _make_durable(files: CatalogueFiles, catalogue: Catalogue) -> None:
    """Sync what the journal will follow: neither RocketMQ nor whoever copied it here has done so.
    The journal makes the names durable. A backup that was not used may be unreadable."""
    followed = [files.snapshot, files.notes]
    if catalogue.used_backup:
        followed.append(files.backup)
    for path in followed:
        with contextlib.suppress(FileNotFoundError):
            fsync_file(path)


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


def _stamp(path: str | os.PathLike[str]) -> Stamp:
    try:
        return _facts(os.stat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetadataError(os.fspath(path), f"it cannot be read: {system_says(error)}") from error


def _facts(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _read_all(descriptor: int, position: int) -> bytes:
    """Everything from `position` on. Raises MetadataError."""
    blocks = []
    try:
        while block := os.pread(descriptor, READ_BYTES, position):
            blocks.append(block)
            position += len(block)
    except OSError as error:
        raise MetadataError("", f"the journal cannot be read: {system_says(error)}") from error
    return b"".join(blocks)
