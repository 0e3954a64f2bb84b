"""The files of a store that are neither log nor queue nor index, and the names of them all.

What lives here: `StoreFiles`, the abort file and the process lock. The sizes that a store was made
with are in store_sizes.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.driver.durable import (
    NO_LINK,
    fsync_directory,
    make_directories,
    write_all,
)
from tieredstore.driver.file_lock import FileLock
from tieredstore.model.errors import BackendRefusedError

LOCK_CONTENT: Final = b"lock"

_lock_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """Where everything of one store is. Asking for a name touches no file."""

    root: Path

    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

    @property
    def consume_queues(self) -> Path:
        return self.root / "consumequeue"

    @property
    def batch_queues(self) -> Path:
        """Java's batch queues: left alone."""
        return self.root / "batchconsumequeue"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def sizes(self) -> Path:
        return self.config / "tieredstore-sizes.json"

    def make(self) -> None:
        """Create the directories that every store has, durably."""
        for directory in (self.commit_log, self.consume_queues, self.index, self.config):
            make_directories(directory)

    @property
    def ended_abnormally(self) -> bool:
        """Whether whoever used the store last did not come to shut it down."""
        return self.abort.exists()

    def create_abort(self) -> None:
        """Durable on return: only then may something be written that a crash could tear."""
        try:
            self._write_abort()
        except OSError as error:
            raise BackendRefusedError(str(self.abort), "create", str(error)) from error

    def _write_abort(self) -> None:
        descriptor = os.open(self.abort, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, 0o666)
        try:
            write_all(descriptor, str(os.getpid()).encode("ascii"), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fsync_directory(self.root)

    def remove_abort(self) -> None:
        """The store is whole and everything in it durable. Removing it twice is harmless."""
        self.abort.unlink(missing_ok=True)
        fsync_directory(self.root)

    def acquire_lock(self) -> FileLock | None:
        """The lock of the store, or None while another process or this one has the store open.

        Closing any descriptor of a locked file releases the lock: the content that Java writes
        into it is written before the lock is taken for good, and never while it is held.
        """
        make_directories(self.root)
        with _lock_guard:
            lock = FileLock.acquire(self.lock)
            try:
                if lock is None or self.lock.stat().st_size > 0:
                    return lock
            except BaseException:
                if lock is not None:
                    lock.release()
                raise
            lock.release()
            descriptor = os.open(self.lock, os.O_WRONLY | NO_LINK)
            try:
                write_all(descriptor, LOCK_CONTENT, 0)
            finally:
                os.close(descriptor)
            return FileLock.acquire(self.lock)
