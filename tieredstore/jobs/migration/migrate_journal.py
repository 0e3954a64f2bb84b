"""What a migration has copied so far, kept beside the target's catalogue until the cut-over.

What lives here: `MigrationJournal`, the file `<catalogue>.migration`. It only saves work: what it
does not say is found out by reading both sides.

    line      <CRC-32C of the rest, 8 hexadecimal digits> <JSON>\\n
    first     {"format": 1, "source": {...}, "target": {...}}
    others    [path, type, base, size, crc]     the target has so many bytes, with this CRC-32C

Later lines count. A line that is torn, and all behind it, never was. A line is in the hands of the
system when `add` returns, and on the disk after at most SYNC_LINES more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import google_crc32c

from tieredstore.driver.durable import make_directories, write_all, write_atomically
from tieredstore.driver.file_lock import FileLock
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendRefusedError, MetadataError
from tieredstore.model.values import SegmentType

SYNC_LINES: Final = 64
SUFFIX: Final = ".migration"
_FORMAT: Final = 1

Key: TypeAlias = tuple[str, SegmentType, int]
Place: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class Copied:
    """The first `size` bytes of a segment, and their CRC-32C."""

    size: int
    crc: int


def place_of(config: StoreConfig) -> Place:
    """What tells one tier from another; no secrets."""
    path = os.path.realpath(config.path) if config.path else ""
    return {
        "provider": config.provider,
        "path": path,
        "endpoint": config.endpoint.rstrip("/"),
        "bucket": config.bucket,
        "prefix": config.prefix.strip("/"),
        "url": config.url.rstrip("/"),
        "cluster": config.cluster_name,
        "broker": config.broker_name,
    }


def journal_path(target: StoreConfig) -> Path:
    path = Path(os.path.realpath(target.catalogue_path))
    return path.with_name(path.name + SUFFIX)


def read_journal(source: StoreConfig, target: StoreConfig) -> dict[Key, Copied]:
    """What was copied so far; nothing where there is no file. MetadataError for another's file."""
    path = journal_path(target)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise MetadataError(str(path), f"it cannot be read: {error}") from error
    lines = _whole_lines(data)
    header = _header(source, target)
    if lines and lines[0] != header:
        reason = "it is of another migration: finish that one, or move the file away"
        raise MetadataError(str(path), reason)
    found: dict[Key, Copied] = {}
    for line in lines[1:]:
        try:
            name, kind, base, size, crc = line
            found[name, SegmentType[kind], int(base)] = Copied(int(size), int(crc))
        except (ValueError, TypeError, KeyError) as error:
            raise MetadataError(str(path), f"a line makes no sense: {line!r:.80}") from error
    return found


class MigrationJournal:
    """The journal of a migration that runs: one at a time, in any process."""

    def __init__(self, path: Path, descriptor: int, end: int, lock: FileLock) -> None:
        self._path = path
        self._descriptor = descriptor
        self._end = end
        self._lock = lock
        self._unsynced = 0

    @classmethod
    def open(cls, source: StoreConfig, target: StoreConfig) -> Self:
        """Ready to be added to; written anew, without what later lines made obsolete.

        Raises BackendRefusedError where another migration to this target is running.
        """
        path = journal_path(target)
        try:
            make_directories(path.parent)
            lock = FileLock.acquire(f"{path}.lock")
        except OSError as error:
            raise MetadataError(str(path), f"it cannot be written: {error}") from error
        if lock is None:
            raise BackendRefusedError(str(path), "migrate", "another migration is running there")
        try:
            known = read_journal(source, target)
            lines = [_line(_header(source, target))]
            lines += [_line(_fields(key, copied)) for key, copied in known.items()]
            write_atomically(path, lines)
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            lock.release()
            raise MetadataError(str(path), f"it cannot be written: {error}") from error
        except BaseException:
            lock.release()
            raise
        return cls(path, descriptor, sum(map(len, lines)), lock)

    def add(self, key: Key, copied: Copied) -> None:
        line = _line(_fields(key, copied))
        write_all(self._descriptor, line, self._end)
        self._end += len(line)
        self._unsynced += 1
        if self._unsynced >= SYNC_LINES:
            self.sync()

    def sync(self) -> None:
        os.fdatasync(self._descriptor)
        self._unsynced = 0

    def remove(self) -> None:
        """The migration is over."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._descriptor >= 0:
            self.sync()
            os.close(self._descriptor)
            self._descriptor = -1
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _header(source: StoreConfig, target: StoreConfig) -> dict[str, Any]:
    return {"format": _FORMAT, "source": place_of(source), "target": place_of(target)}


def _fields(key: Key, copied: Copied) -> list[str | int]:
    path, kind, base = key
    return [path, kind.name, base, copied.size, copied.crc]


def _line(value: Mapping[str, Any] | list[str | int]) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %s\n" % (google_crc32c.value(body), body)


def _whole_lines(data: bytes) -> list[Any]:
    found = []
    for line in data.splitlines(keepends=True):
        checksum, _, body = line[:-1].partition(b" ")
        if line[-1:] != b"\n" or checksum != b"%08x" % google_crc32c.value(body):
            break
        found.append(json.loads(body))  # its checksum says that we wrote it
    return found
