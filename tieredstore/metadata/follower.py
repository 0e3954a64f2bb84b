"""A catalogue read while another process writes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeAlias

from tieredstore.driver.metadata import Change
from tieredstore.metadata.files import Catalogue, CatalogueFiles, JournalState, load
from tieredstore.metadata.journal import JournalContents, read_journal
from tieredstore.model.errors import MetadataError

LOADS_MAX: Final = 8
"""How often a load starts over because a writer changed the files under it."""

READ_BYTES: Final = 1024 * 1024

Stamp: TypeAlias = tuple[int, ...] | None


class Follower:
    """One reader's place in the files: takes no lock, writes nothing, sees whole batches only.

    It keeps the journal open, so that no later file can be taken for the one it was reading.
    Calls come from one thread at a time.
    """

    def __init__(self, files: CatalogueFiles) -> None:
        self._files = files
        self._descriptor: int | None = None
        self._stamps: tuple[Stamp, ...] = ()
        self._journal_stamp: Stamp = None
        self._journal = JournalContents()
        self._live = False

    def load(self) -> Catalogue:
        """Everything anew. Raises MetadataError where the files are damaged, or never at rest."""
        self._stamps = ()  # if this fails, the next poll asks for another load
        for attempt in range(1, LOADS_MAX + 1):
            before = self._stamps_now()
            self._open_journal()
            self._journal_stamp = self._open_stamp()
            try:
                catalogue = load(self._files, self._read_from_start)
            except MetadataError:
                # A writer at work can make sound files look damaged; nobody at work cannot.
                if attempt == LOADS_MAX or self._is_at_rest(before):
                    raise
                continue
            if before == self._stamps_now() and self._journal_is_current():
                self._stamps = before
                self._journal = catalogue.journal
                self._live = catalogue.state is JournalState.LIVE
                return catalogue
        raise MetadataError(
            str(self._files.snapshot), f"it changed under the reader {LOADS_MAX} times"
        )

    def poll(self) -> Sequence[Change] | None:
        """What the journal has gained, or None: then something else changed, and `load` is due."""
        if self._stamps != self._stamps_now() or not self._journal_is_current():
            return None
        if not self._live:
            return [] if self._journal_stamp == self._open_stamp() else None
        assert self._descriptor is not None
        position = self._journal.whole_bytes
        if os.fstat(self._descriptor).st_size < position:
            return None  # a writer cut what had looked whole
        try:
            data = _read_all(self._descriptor, position)
            self._journal = read_journal(data, self._files.journal, after=self._journal)
        except MetadataError:
            return None
        return self._journal.changes

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
            raise MetadataError(str(self._files.journal), f"it cannot be read: {error}") from error

    def _read_from_start(self) -> bytes | None:
        return None if self._descriptor is None else _read_all(self._descriptor, 0)

    def _stamps_now(self) -> tuple[Stamp, ...]:
        files = self._files
        return tuple(_stamp(path) for path in (files.snapshot, files.backup, files.notes))

    def _open_stamp(self) -> Stamp:
        return None if self._descriptor is None else _facts(os.fstat(self._descriptor))

    def _journal_is_current(self) -> bool:
        """Is the journal that we read still the one that has the name?"""
        named, read = _stamp(self._files.journal), self._open_stamp()
        return named == read if named is None or read is None else named[:2] == read[:2]

    def _is_at_rest(self, before: tuple[Stamp, ...]) -> bool:
        return before == self._stamps_now() and self._journal_stamp == _stamp(self._files.journal)


def _stamp(path: str | os.PathLike[str]) -> Stamp:
    try:
        return _facts(os.stat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetadataError(os.fspath(path), f"it cannot be read: {error}") from error


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
        raise MetadataError("", f"the journal cannot be read: {error}") from error
    return b"".join(blocks)
