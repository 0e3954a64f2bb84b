"""The files of a catalogue, what each is for, and reading them together.

tieredStoreMetadata.json                 the snapshot: RocketMQ's own file
tieredStoreMetadata.json.bak             the snapshot before it, RocketMQ's too
tieredStoreMetadata.json.journal         what changed since; names the snapshot it follows
tieredStoreMetadata.json.journal.stale   a journal that RocketMQ's own writing overtook, or broken
tieredStoreMetadata.json.damaged         a snapshot that could not be read, replaced since
tieredStoreMetadata.json.notes           the notes, as of the snapshot or later
tieredStoreMetadata.json.next            the next snapshot, until it gets its name
tieredStoreMetadata.json.lock            held by the one writer
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.metadata import rocketmq_json
from tieredstore.metadata.journal import (
    JournalContents,
    SnapshotName,
    read_journal,
    seal,
    unseal,
)
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import MetadataError

KEPT_ASIDE_MAX: Final = 100
JOURNAL_ASIDE: Final = ".journal.stale"
SNAPSHOT_ASIDE: Final = ".damaged"


@dataclass(frozen=True, slots=True)
class CatalogueFiles:
    """The names of one catalogue's files, all beside the snapshot."""

    snapshot: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> CatalogueFiles:
        # Through symbolic links, so that two names of one file share its journal and its lock.
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
        """A free name for a file to be kept. Raises MetadataError where there are too many."""
        first = self._beside(suffix)
        numbered = (self._beside(f"{suffix}.{n}") for n in range(1, KEPT_ASIDE_MAX))
        for path in (first, *numbered):
            if not path.exists():
                return path
        raise MetadataError(str(first), f"there are {KEPT_ASIDE_MAX} of them: move them away")


class JournalState(Enum):
    """How the journal stands to the snapshot that was read."""

    ABSENT = "absent"
    LIVE = "live"
    """It follows this snapshot."""
    CONTAINED = "contained"
    """All of it is in this snapshot: the writer was stopped before it removed the journal."""
    STALE = "stale"
    """It belongs to another snapshot: RocketMQ has written since."""
    DAMAGED = "damaged"
    """Not even its first line is whole. It was written in one piece, so a crash cannot do that."""


@dataclass(slots=True, kw_only=True)
class Catalogue:
    """All that the files say: the snapshot's tables, and the journal's changes if they count."""

    tables: Tables
    snapshot: SnapshotName | None
    used_backup: bool
    journal: JournalContents
    state: JournalState


def load(files: CatalogueFiles, read_journal_bytes: Callable[[], bytes | None]) -> Catalogue:
    """Read everything. Raises MetadataError where that gives no sound catalogue.

    The notes are read before the journal: newer lines over older notes give what they must,
    older lines over newer notes would not.
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
    """The tables, the name of the bytes they came from, and whether the backup had to serve."""
    complaints = []
    for path in (files.snapshot, files.backup):
        data = read_bytes(path, bytes_max=rocketmq_json.SNAPSHOT_BYTES_MAX)
        if data is None:
            continue
        try:
            document = rocketmq_json.decode(data)
        except ValueError as error:
            complaints.append(f"{path.name}: {error}")
            continue
        try:
            tables = Tables.from_document(document)
        except ValueError as error:
            # The text is whole, so it is newer than the backup: going back would lose rows.
            raise MetadataError(str(path), str(error)) from error
        return tables, SnapshotName.of(data), path == files.backup
    if complaints:
        raise MetadataError(str(files.snapshot), "; ".join(complaints))
    return Tables(), None, False


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
    # bytes(): a Raw keeps the whole file alive.
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
    """The bytes of a file, or None where there is none. Raises MetadataError."""
    try:
        if bytes_max is not None and path.stat().st_size > bytes_max:
            raise MetadataError(str(path), f"it has more than {bytes_max} bytes")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetadataError(str(path), f"it cannot be read: {error}") from error
