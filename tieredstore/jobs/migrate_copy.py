"""The copy of one segment, or of the rest of it, and the journal of what was copied.

The journal lies beside the target's catalogue until the cut-over:

    line      <CRC-32C of the rest, 8 hexadecimal digits> <JSON>\n
    first     {"format": 1, "source": {...}, "target": {...}}
    others    [path, type, base, size, crc]     the target has so many bytes, with this CRC-32C

Of lines about one segment the last counts. A torn line and all lines behind it are ignored. A line
is in the hands of the system when `add` returns, and on the disk after at most SYNC_LINES more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import google_crc32c
from google_crc32c import extend

from tieredstore.driver.durable import FileLock, make_directories, write_all, write_atomically
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.segment import FileSegment
from tieredstore.jobs.passing_bodies import PassingBodies
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    MetadataError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentNotFoundError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentRecord, SegmentType

log = log_of(__name__)

BLOCK_BYTES: Final = 8 << 20  # in memory for each item under way, twice where it is sent on
_ATTEMPTS_MAX: Final = 3  # where somebody else copies the same segment at the same time
SYNC_LINES: Final = 64
SUFFIX: Final = ".migration"
_FORMAT: Final = 1
Key: TypeAlias = tuple[str, SegmentType, int]
Place: TypeAlias = dict[str, str]


class CopyState(Enum):
    """What became of a segment."""

    COPIED = "copied"
    COMPARED = "compared"
    """It was there already and not in the journal, so both were read."""
    GONE = "gone"
    """The source no longer has it: the catalogue says whether it expired or is lost."""


class Proof(Enum):
    """What proves that the target holds the bytes that were sent."""

    READ_BACK = "read back"
    STORE = "checksum checked by the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyItem:
    """One segment of the source, as long as `row` says, and where it goes.

    Of its first `known_bytes` it is known that the target has them, with the checksum `known_crc`.
    """

    row: SegmentRecord
    target_path: str
    is_growing: bool
    known_bytes: int = 0
    known_crc: int = 0

    @property
    def missing_bytes(self) -> int:
        return self.row.size - self.known_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """The target has the first `size` bytes of this segment, with the CRC-32C `crc`."""

    path: str  # in the target
    type: SegmentType
    base: int
    size: int
    crc: int
    state: CopyState
    copied_bytes: int = 0
    compared_bytes: int = 0

    @property
    def key(self) -> tuple[str, SegmentType, int]:
        return self.path, self.type, self.base


def copy_segment(
    item: CopyItem,
    source: SegmentProvider,
    target: SegmentProvider,
    *,
    proof: Proof,
    checks_bodies: bool = True,
) -> CopyRow:
    """Bring the target's segment to the length of the row, and prove what was sent.

    May run twice, also at the same time: what lies in the target is compared, never written over.
    Raises SegmentCorruptError where the target holds other bytes than the source, and with
    `checks_bodies` where the body of a message has another checksum than its record names.
    """
    row = item.row
    with (
        source.open(row.path, row.type, row.base_offset) as taken,
        target.open(item.target_path, row.type, row.base_offset) as given,
    ):
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                bodies = None
                if checks_bodies and row.type is SegmentType.COMMIT_LOG:
                    bodies = PassingBodies(taken.path, row.base_offset, item.known_bytes, row.size)
                return _Copy(item, taken, given, target, proof, bodies).run()
            except PositionMismatchError:
                if attempt == _ATTEMPTS_MAX:
                    raise
    raise AssertionError("not reached")


@dataclass(slots=True, eq=False)
class _Copy:
    """One attempt at one segment, from `_taken` to `_given`."""

    _item: CopyItem
    _taken: FileSegment
    _given: FileSegment
    _provider: SegmentProvider
    _proof: Proof
    _bodies: PassingBodies | None
    _crc: int = 0
    _crc_before: int = 0  # of what was there before this attempt
    _bodies_before: PassingBodies | None = None
    _source_gone: bool = False

    def run(self) -> CopyRow:
        self._crc = self._item.known_crc
        wanted = self._item.row.size
        found = _size(self._given)
        if found < self._item.known_bytes or found > wanted:
            reason = (
                f"the target has {found} bytes, of which {self._item.known_bytes} were copied "
                f"earlier, and the source {wanted}: somebody else changed it"
            )
            raise SegmentCorruptError(self._given.path, reason, position=min(found, wanted))
        try:
            self._compare(self._item.known_bytes, found)
            self._crc_before = self._crc
            self._bodies_before = copy(self._bodies)
            if found < wanted:
                self._send(found, wanted)
        except SegmentNotFoundError:
            if not self._source_gone:
                raise
            return self._row(found, CopyState.GONE)
        if self._proof is Proof.READ_BACK:
            self._read_back(found, wanted)
        state = CopyState.COPIED if found < wanted else CopyState.COMPARED
        return self._row(found, state)

    def _row(self, found: int, state: CopyState) -> CopyRow:
        row = self._item.row
        is_gone = state is CopyState.GONE
        return CopyRow(
            path=self._item.target_path,
            type=row.type,
            base=row.base_offset,
            size=self._item.known_bytes if is_gone else row.size,
            crc=self._item.known_crc if is_gone else self._crc,
            state=state,
            copied_bytes=0 if is_gone else row.size - found,
            compared_bytes=found - self._item.known_bytes,
        )

    def _compare(self, start: int, end: int) -> None:
        """What lies there and was not noted: an earlier run was killed, or a task ran twice."""
        for position, length in _blocks(start, end):
            ours = self._read(position, length)
            if self._given.read(position, length) != ours:
                reason = "the target holds other bytes than the source"
                raise SegmentCorruptError(self._given.path, reason, position=position)
            if self._bodies is not None:
                self._bodies.take(ours)
            self._crc = extend(self._crc, ours)

    def _send(self, start: int, end: int) -> None:
        if start or self._item.is_growing:
            position = start
            for block in self._sent(start, end):
                self._given.write(position, block)
                position += len(block)
            return
        size = self._created(end)
        if size != end:
            reason = f"{size} bytes were stored instead of {end}"
            raise BackendUnavailableError(self._given.path, "create", reason)

    def _created(self, end: int) -> int:
        """Whole or not at all. A stream cannot be sent twice, so this is where it starts over."""
        for _ in range(_ATTEMPTS_MAX - 1):
            try:
                return self._provider.create(self._given, self._sent(0, end))
            except BackendUnavailableError as error:
                log.info("%s: once more: %s", self._given.path, error)
        return self._provider.create(self._given, self._sent(0, end))

    def _sent(self, start: int, end: int) -> Iterator[bytes]:
        self._crc = self._crc_before
        self._bodies = copy(self._bodies_before)
        for position, length in _blocks(start, end):
            block = self._read(position, length)
            self._crc = extend(self._crc, block)
            if self._bodies is not None:
                self._bodies.take(block)
            yield block

    def _read(self, position: int, length: int) -> bytes:
        try:
            return self._taken.read(position, length)
        except SegmentNotFoundError:
            self._source_gone = True
            raise

    def _read_back(self, start: int, end: int) -> None:
        """The checksum of what the target holds must be that of what was read."""
        crc = self._crc_before
        for position, length in _blocks(start, end):
            crc = extend(crc, self._given.read(position, length))
        if crc != self._crc:
            reason = "what was read back is not what was written"
            if not start:  # ours from its first byte: the next run begins anew
                self._given.delete()
                reason += "; it was deleted again"
            raise SegmentCorruptError(self._given.path, reason, position=start)


def _size(segment: FileSegment) -> int:
    try:
        return segment.size()
    except SegmentNotFoundError:
        return 0


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    for position in range(start, end, BLOCK_BYTES):
        yield position, min(BLOCK_BYTES, end - position)


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
