"""Appending to the journal: each line durable when the call returns.

What lives here: the writer's open file. The format is in `journal`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from tieredstore.driver.durable import fsync_directory, write_all, write_atomically
from tieredstore.metadata.journal import (
    JournalContents,
    SnapshotName,
    commit_line,
    compact_line,
    header_line,
)


class JournalFile:
    """The journal of the one writer; the file appears with its first line.

    After an error nothing may be appended: whether the line is durable is not known. Calls come
    from one thread at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._lines = 0
        self.bytes_count = 0

    @classmethod
    def resume(cls, path: Path, contents: JournalContents) -> JournalFile:
        """Go on behind the whole lines; a torn tail is cut. What was read is durable after it."""
        journal = cls(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if contents.torn_bytes:
                os.ftruncate(descriptor, contents.whole_bytes)
            # Lines of a writer that was killed may be in memory only. They will be shown now.
            os.fsync(descriptor)
            fsync_directory(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        journal._descriptor = descriptor
        journal._lines = contents.lines
        journal.bytes_count = contents.whole_bytes
        return journal

    @property
    def exists(self) -> bool:
        return self._descriptor is not None

    def commit(self, encoded_changes: Sequence[bytes], snapshot: SnapshotName | None) -> None:
        """Append one batch; a journal that begins with it follows `snapshot`."""
        if self._descriptor is None:
            self._create(header_line(snapshot), commit_line(1, encoded_changes))
        else:
            self._append(commit_line(self._lines, encoded_changes))

    def name_next(self, snapshot: SnapshotName) -> None:
        """Say that `snapshot`, once it has its name, holds all that this journal says."""
        if self._descriptor is not None:
            self._append(compact_line(self._lines, snapshot))

    def remove(self) -> None:
        self.close()
        self._lines = self.bytes_count = 0
        # The snapshot that replaces it must have its name for good before it goes.
        fsync_directory(self._path.parent)
        self._path.unlink(missing_ok=True)
        fsync_directory(self._path.parent)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _create(self, *lines: bytes) -> None:
        write_atomically(self._path, lines)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._lines = len(lines)
        self.bytes_count = sum(map(len, lines))

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            write_all(self._descriptor, line, self.bytes_count)
            os.fdatasync(self._descriptor)
        except BaseException:
            # After a failed sync the line may be in memory and look durable to the next reader.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.bytes_count)
            raise
        self._lines += 1
        self.bytes_count += len(line)
