"""The side files of a store: their names, its lock, and the sizes it was made with."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.codec import local_index
from tieredstore.driver.durable import (
    NO_LINK,
    FileLock,
    fsync_directory,
    make_directories,
    write_all,
    write_atomically,
)
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queues import queue_number
from tieredstore.local.index_file import IndexSize, is_index_name
from tieredstore.local.mapped_file_queue import files_in
from tieredstore.local.side_file import parsed
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    SegmentCorruptError,
    system_says,
)

LOCK_CONTENT: Final = b"lock"

_lock_guard = threading.Lock()
SIZE_SETTINGS: Final = (
    "commit_log_file_bytes",
    "queue_file_bytes",
    "index_slot_count",
    "index_item_count",
)
_PROPERTY_CRC_FROM: Final = "property_crc_from"
_ROCKSDB_FILE: Final = "CURRENT"  # every RocksDB has it
_INDEX_NAMES: Final = "index_slot_count, index_item_count"


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The paths of all files of a store. Asking for a path touches no file."""

    root: Path

    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

    @property
    def consume_queues(self) -> Path:
        return self.root / "consumequeue"

    @property
    def batch_queues(self) -> Path:
        """Java's batch queues, which are never touched."""
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
        """Durably create the directories that every store has."""
        for directory in (self.commit_log, self.consume_queues, self.index, self.config):
            make_directories(directory)

    @property
    def ended_abnormally(self) -> bool:
        """Whether the last user of the store did not shut it down."""
        return self.abort.exists()

    def create_abort(self) -> None:
        """Create the file, durably: only then may anything be written that a crash could tear."""
        try:
            self._write_abort()
        except OSError as error:
            raise BackendRefusedError(str(self.abort), "create", system_says(error)) from error

    def _write_abort(self) -> None:
        descriptor = os.open(self.abort, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, 0o666)
        try:
            write_all(descriptor, str(os.getpid()).encode("ascii"), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fsync_directory(self.root)

    def remove_abort(self) -> None:
        """Call when the store is complete and everything in it is durable. Idempotent."""
        self.abort.unlink(missing_ok=True)
        fsync_directory(self.root)

    def acquire_lock(self) -> FileLock | None:
        """The lock of the store; None while this or another process has the store open.

        Closing any descriptor of a locked file releases the lock. So the content that Java writes
        into the file is written before the lock is finally taken, never while it is held.
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


def check_sizes(files: StoreFiles, config: LocalConfig, *, write: bool = True) -> None:
    """Raise InvalidConfigError unless the settings are the ones the store was made with, and its
    queues are files.

    With `write`, a store without a sizes file gets one, durably.
    """
    _refuse_rocksdb(files)
    wanted = {name: int(getattr(config, name)) for name in SIZE_SETTINGS}
    stored = stored_sizes(files)
    if not stored:
        _check_files(files, wanted)
        if write:
            _write_sizes(files, wanted)
        return
    for name in SIZE_SETTINGS:
        if stored[name] != wanted[name]:
            raise InvalidConfigError(
                f"{name}: the store was made with {stored[name]}, not {wanted[name]} ({files.root})"
            )


def _refuse_rocksdb(files: StoreFiles) -> None:
    """Refuse queues that are in RocksDB alone: the store would seem to have none, and a queue whose
    messages have all expired would begin at 0 again. Java may also write both kinds."""
    if not (files.consume_queues / _ROCKSDB_FILE).is_file():
        return
    for topic in _directories_in(files.consume_queues):
        if any(queue_number(queue.name) is not None for queue in _directories_in(topic)):
            return
    raise InvalidConfigError(
        f"storeType: the queues are in RocksDB, which is not read here ({files.consume_queues})"
    )


def property_crc_from(files: StoreFiles) -> int | None:
    """The log offset from which on each record must carry a property CRC; None if not needed."""
    try:
        found = parsed(files.sizes.read_bytes()).get(_PROPERTY_CRC_FROM)
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return found if type(found) is int else None


def set_property_crc_from(files: StoreFiles, log_offset: int | None) -> None:
    """Durably save the log offset, before any record is put that contradicts the old one."""
    document: dict[str, int] = stored_sizes(files)
    if log_offset is not None:
        document[_PROPERTY_CRC_FROM] = log_offset
    _write_sizes(files, document)


def _write_sizes(files: StoreFiles, document: dict[str, int]) -> None:
    make_directories(files.config)
    write_atomically(files.sizes, [json.dumps(document, indent=2).encode("ascii") + b"\n"])


def stored_sizes(files: StoreFiles) -> dict[str, int]:
    """The sizes in the store's sizes file; empty if there is none."""
    path = files.sizes
    try:
        stored = parsed(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidConfigError(f"{path}: damaged, the store's sizes are unknown") from error
    if not isinstance(stored, dict):
        raise InvalidConfigError(f"{path}: damaged, the store's sizes are unknown")
    for name in SIZE_SETTINGS:
        if type(stored.get(name)) is not int:  # not isinstance: true is not a size
            raise InvalidConfigError(f"{path}: damaged, {name} is missing or no whole number")
    return {name: stored[name] for name in SIZE_SETTINGS}


def _check_files(files: StoreFiles, wanted: dict[str, int]) -> None:
    """Check that every file has the configured length, or is empty: created, not yet used.

    Raises SegmentError for a file in the log or a queue that is none of theirs.
    """
    for path, _, length in sorted(files_in(str(files.commit_log))):
        _check_length("commit_log_file_bytes", wanted["commit_log_file_bytes"], path, length)
    for topic in _directories_in(files.consume_queues):
        for queue in _directories_in(topic):
            if queue_number(queue.name) is None:
                continue  # not a queue
            for path, _, length in sorted(files_in(str(queue))):
                _check_length("queue_file_bytes", wanted["queue_file_bytes"], path, length)
    indexes = [path for path in _files_in(files.index) if is_index_name(path.name)]
    # A crash may have torn the newest index file; that does not mean wrong settings.
    sound = indexes[:-1] if files.ended_abnormally else indexes
    size = IndexSize(wanted["index_slot_count"], wanted["index_item_count"])
    for index in indexes:
        _check_length(_INDEX_NAMES, size.file_bytes, str(index), index.stat().st_size)
        if index in sound:
            _check_first_item(index, size)


def _check_length(names: str, wanted_bytes: int, path: str, length: int) -> None:
    if length not in (0, wanted_bytes):
        raise InvalidConfigError(f"{names}: {path} has {length} bytes, not {wanted_bytes}")


def _check_first_item(path: Path, size: IndexSize) -> None:
    """Check where the first item is: different slot and item counts can give the same length."""
    with path.open("rb") as file:
        header_bytes = file.read(local_index.HEADER_BYTES)
        file.seek(size.position(1))
        item_bytes = file.read(local_index.ITEM_BYTES)
    if not header_bytes:
        return
    slot_count, item_count = size
    misfit = f"{_INDEX_NAMES}: {slot_count} and {item_count} do not fit {path}"
    try:
        # Before 4.7.1 the count of used slots counted items.
        header = local_index.decode_header(
            header_bytes, slot_count=item_count, item_capacity=item_count, path=str(path)
        )
        fits = header.item_count == 0 or _is_first(local_index.decode_item(item_bytes), header)
    except SegmentCorruptError as error:
        raise InvalidConfigError(f"{misfit}: {error}") from error
    if not fits:
        raise InvalidConfigError(f"{misfit}: the first item is not where it must be")


def _is_first(item: local_index.LocalIndexItem, header: local_index.LocalIndexHeader) -> bool:
    return item.previous == 0 and item.log_offset == header.begin_log_offset


def _directories_in(directory: Path) -> Iterator[Path]:
    return (path for path in _entries(directory) if path.is_dir())


def _files_in(directory: Path) -> Iterator[Path]:
    return (path for path in _entries(directory) if path.is_file())


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []
