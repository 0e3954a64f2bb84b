"""Copies one segment, or the rest of it, and keeps the journal of what was copied.

The bodies of messages are checked during the copy, in blocks of any length. The journal is next to
the target's catalogue until the cut-over:

    line      <CRC-32C of the rest, 8 hexadecimal digits> <JSON>\n
    first     {"format": 1, "source": {...}, "target": {...}}
    others    [path, type, base, size, crc, created_ms]

The target has `size` bytes of the segment, with this CRC-32C; the source made it at `created_ms`.
A line with a size of 0 says that the copy begins: a run that is killed leaves bytes of which the
journal has nothing else, and the next run must know whose they are.

If several lines are about one segment, the last one counts. A torn line and all lines after it are
ignored. When `add` returns, the operating system has the line; it is on disk after at most
SYNC_LINES more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Any, Final, Self, TypeAlias

import google_crc32c
import numpy as np
from google_crc32c import extend
from numpy.typing import NDArray

from tieredstore.codec.checks import crc32
from tieredstore.codec.columns import Bodies, Words
from tieredstore.codec.message import CODA_BYTES, is_coda
from tieredstore.codec.record import (
    BODY_CRC_POSITION,
    FIXED_BYTES,
    INT32,
    IPV6_BYTES,
    LOG_OFFSET_POSITION,
    MAGIC_POSITION,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    MESSAGE_MAGICS,
    RECORD_BYTES_MIN,
    fixed_bytes,
    peek_log_offset,
    peek_queue_offset,
    peek_sys_flag,
)
from tieredstore.driver.durable import (
    FileLock,
    fsync_directory,
    make_directories,
    write_all,
    write_atomically,
)
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.segment import FileSegment
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    MetadataError,
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentNotFoundError,
    system_says,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT32_MAX, SegmentRecord, SegmentType

log = log_of(__name__)

BLOCK_BYTES: Final = 8 << 20  # in memory for each item under way; twice that while it is sent on
NEAR_BYTES: Final = 2 << 20
"""BLOCK_BYTES between files: where a read costs no request, blocks that fit the CPU cache are
faster."""
_ATTEMPTS_MAX: Final = 3  # if somebody else copies the same segment at the same time
SYNC_LINES: Final = 64
SUFFIX: Final = ".migration"
_FORMAT: Final = 1
_HEAD: Final = Struct(">iI")  # size, magic
_HEAD_BYTES: Final = FIXED_BYTES + 2 * IPV6_BYTES  # at most so much comes before a body
_MAGIC_START: Final = MESSAGE_MAGIC_V1.to_bytes(4, "big")[:3]  # the same in both
Key: TypeAlias = tuple[str, SegmentType, int]
Place: TypeAlias = dict[str, str]
Rows: TypeAlias = NDArray[np.int64]


class CopyState(Enum):
    """The outcome for a segment."""

    COPIED = "copied"
    COMPARED = "compared"
    """It was there already but not in the journal, so both were read."""
    GONE = "gone"
    """The source no longer has all of it: the catalogue says whether it expired or is lost."""


class Proof(Enum):
    """What proves that the target holds the bytes that were sent."""

    READ_BACK = "read back"
    STORE = "checksum checked by the store"


class OlderCopyError(SegmentCorruptError):
    """The target holds other bytes than the source, which was lost and recovered since: they may be
    of an older segment of that name."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The first `size` bytes of a segment, their CRC-32C, and when the segment was created. With
    another creation time, it is another segment of the same name."""

    size: int
    crc: int
    created_ms: int = 0  # unknown in older journals


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyItem:
    """One segment of the source, as long as `row` says, and where it goes.

    The target is known to have the part in `known`.
    """

    row: SegmentRecord
    target_path: str
    is_growing: bool
    known: Copied = Copied(0, 0)
    replaces: bool = False  # the target has an older segment that is gone from the source
    is_doubtful: bool = False  # what the target has may be of such a one: read the source again

    @property
    def key(self) -> Key:
        """The segment's name in the target."""
        return self.target_path, self.row.type, self.row.base_offset

    @property
    def missing_bytes(self) -> int:
        return self.row.size - self.known.size

    @property
    def passing_bytes(self) -> int:
        """How much of the source is read."""
        return self.row.size if self.is_doubtful else self.missing_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """What the target now has of one segment."""

    key: Key  # in the target
    held: Copied
    state: CopyState
    copied_bytes: int = 0
    compared_bytes: int = 0


def copy_segment(
    item: CopyItem,
    source: SegmentProvider,
    target: SegmentProvider,
    *,
    proof: Proof,
    checks_bodies: bool = True,
) -> CopyRow:
    """Bring the target's segment to the length of the row, and prove what was sent.

    May run twice, even at the same time: bytes in the target are compared, never overwritten.
    Raises SegmentCorruptError if the target holds other bytes than the source (OlderCopyError if
    the item is doubtful) or, with `checks_bodies`, if the checksum of a message's body differs from
    that in its record, and SegmentSealedError if the source has grown since it was copied whole.
    """
    row = item.row
    is_near = not (source.reads_together or target.reads_together)
    block_bytes = NEAR_BYTES if is_near else BLOCK_BYTES
    source.catch_up([row])
    with (
        source.open(row.path, row.type, row.base_offset) as taken,
        target.open(item.target_path, row.type, row.base_offset) as given,
    ):
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                return _Copy(item, taken, given, target, proof, checks_bodies, block_bytes).run()
            except PositionMismatchError:
                if attempt == _ATTEMPTS_MAX:
                    raise
    raise AssertionError("not reached")


@dataclass(slots=True, eq=False)
class _Copy:
    """One attempt to copy one segment from `_taken` to `_given`."""

    _item: CopyItem
    _taken: FileSegment
    _given: FileSegment
    _provider: SegmentProvider
    _proof: Proof
    _checks_bodies: bool
    _block_bytes: int
    _crc: int = 0
    _crc_before: int = 0  # of the bytes that were there before this attempt
    _bodies: PassingBodies | None = None
    _bodies_before: PassingBodies | None = None
    _source_gone: bool = False

    def run(self) -> CopyRow:
        found = _size(self._given)
        if found < self._item.known.size:
            log.warning("%s: it has lost bytes that were copied earlier", self._given.path)
            self._item = replace(self._item, known=Copied(0, 0))
        try:
            if self._item.is_doubtful and not self._has_known():
                self._item = replace(self._item, known=Copied(0, 0))
            return self._brought(found)
        except (SegmentNotFoundError, OffsetOutOfRangeError):
            if not self._source_gone:
                raise
            return self._row(found, CopyState.GONE)

    def _has_known(self) -> bool:
        """Whether the source has the bytes that are known to be copied."""
        known = self._item.known
        self._bodies, self._crc = self._bodies_from(0), 0
        for position, length in _blocks(0, known.size, self._block_bytes):
            self._pass(self._read(position, length))  # if it is damaged, the copy is not older
        return self._crc == known.crc

    def _bodies_from(self, position: int) -> PassingBodies | None:
        row = self._item.row
        if not self._checks_bodies or row.type is not SegmentType.COMMIT_LOG:
            return None
        return PassingBodies(self._taken.path, row.base_offset, position, row.size)

    def _pass(self, block: bytes) -> None:
        if self._bodies is not None:
            self._bodies.take(block)
        self._crc = extend(self._crc, block)

    def _others(self, reason: str, position: int) -> SegmentCorruptError:
        kind = OlderCopyError if self._item.is_doubtful else SegmentCorruptError
        return kind(self._given.path, reason, position=position)

    def _brought(self, found: int) -> CopyRow:
        """Continue the copy after the `found` bytes that the target has."""
        known, wanted = self._item.known, self._item.row.size
        if found > wanted:
            reason = (
                f"the target has {found} bytes, and the source {wanted}: somebody else changed it"
            )
            raise self._others(reason, wanted)
        self._crc, self._bodies = known.crc, self._bodies_from(known.size)
        self._compare(known.size, found)
        self._crc_before = self._crc
        self._bodies_before = copy(self._bodies)
        if found < wanted:
            self._send(found, wanted)
        if self._proof is Proof.READ_BACK:
            self._read_back(found, wanted)
        state = CopyState.COPIED if found < wanted else CopyState.COMPARED
        return self._row(found, state)

    def _row(self, found: int, state: CopyState) -> CopyRow:
        item, row = self._item, self._item.row
        is_gone = state is CopyState.GONE
        return CopyRow(
            key=item.key,
            held=item.known if is_gone else Copied(row.size, self._crc, row.create_timestamp),
            state=state,
            copied_bytes=0 if is_gone else row.size - found,
            compared_bytes=found - item.known.size,
        )

    def _compare(self, start: int, end: int) -> None:
        """Compare bytes of the target that are not in the journal: an earlier run was killed, or a
        task ran twice."""
        for position, length in _blocks(start, end, self._block_bytes):
            ours = self._read(position, length)
            if self._given.read(position, length) != ours:
                raise self._others("the target holds other bytes than the source", position)
            self._pass(ours)

    def _send(self, start: int, end: int) -> None:
        if start or self._item.is_growing:
            position = start
            for block in self._sent(start, end, BLOCK_BYTES):  # large, as each is synced
                self._given.write(position, block)
                position += len(block)
            return
        size = self._created(end)
        if size != end:
            reason = f"{size} bytes were stored instead of {end}"
            raise BackendUnavailableError(self._given.path, "create", reason)

    def _created(self, end: int) -> int:
        """Create the segment whole or not at all. A stream cannot be sent twice, so retries are
        made here, each with a new stream."""
        for _ in range(_ATTEMPTS_MAX - 1):
            try:
                return self._provider.create(self._given, self._sent(0, end, self._block_bytes))
            except BackendUnavailableError as error:
                log.info("%s: once more: %s", self._given.path, error)
        return self._provider.create(self._given, self._sent(0, end, self._block_bytes))

    def _sent(self, start: int, end: int, block_bytes: int) -> Iterator[bytes]:
        self._crc = self._crc_before
        self._bodies = copy(self._bodies_before)
        for position, length in _blocks(start, end, block_bytes):
            block = self._read(position, length)
            self._pass(block)
            yield block

    def _read(self, position: int, length: int) -> bytes:
        try:
            return self._taken.read(position, length)
        except (SegmentNotFoundError, OffsetOutOfRangeError):  # a new one may have its name
            self._source_gone = True
            raise

    def _read_back(self, start: int, end: int) -> None:
        """Check that the target's bytes have the checksum of those read from the source."""
        crc = self._crc_before
        for position, length in _blocks(start, end, self._block_bytes):
            crc = extend(crc, self._given.read(position, length))
        if crc != self._crc:
            reason = "what was read back is not what was written"
            if not start:  # all of it is ours: delete it, and the next run starts over
                self._given.delete()
                reason += "; it was deleted again"
            raise SegmentCorruptError(self._given.path, reason, position=start)


def _size(segment: FileSegment) -> int:
    try:
        return segment.size()
    except SegmentNotFoundError:
        return 0


def _blocks(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    for position in range(start, end, size):
        yield position, min(size, end - position)


def place_of(config: StoreConfig) -> Place:
    """What distinguishes a tier from others; no secrets."""
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
    """What was copied so far; empty without a file. MetadataError for another migration's file."""
    path = journal_path(target)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise MetadataError(str(path), f"it cannot be read: {system_says(error)}") from error
    lines = _whole_lines(data)
    header = _header(source, target)
    if lines and lines[0] != header:
        reason = "it is of another migration: finish that one, or move the file away"
        raise MetadataError(str(path), reason)
    found: dict[Key, Copied] = {}
    for line in lines[1:]:
        try:
            name, kind, base, *copied = line
            found[name, SegmentType[kind], int(base)] = Copied(*map(int, copied))
        except (ValueError, TypeError, KeyError) as error:
            raise MetadataError(str(path), f"a line makes no sense: {line!r:.80}") from error
    return found


def remove_journal(path: Path) -> None:
    """Remove the journal of a finished migration. If that fails, the next run removes it."""
    try:
        path.unlink()
        fsync_directory(path.parent)  # else a power cut brings it back
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s: it could not be removed: %s", path, system_says(error))


def overtaken(target: StoreConfig) -> BackendRefusedError:
    """The error of a run whose plan is outdated: another migration has run since."""
    reason = "another migration ran there meanwhile: run this again"
    return BackendRefusedError(str(journal_path(target)), "migrate", reason)


def _unwritten(path: Path, error: OSError) -> MetadataError:
    return MetadataError(str(path), f"it cannot be written: {system_says(error)}")


class MigrationJournal:
    """The journal of a running migration. Only one process at a time can have it open."""

    def __init__(self, path: Path, descriptor: int, end: int, lock: FileLock) -> None:
        self._path = path
        self._descriptor = descriptor
        self._end = end
        self._lock = lock
        self._unsynced = 0

    @classmethod
    def open(
        cls, source: StoreConfig, target: StoreConfig, *, planned_with: Mapping[Key, Copied]
    ) -> Self:
        """Open the journal for adding lines, rewritten without obsolete ones.

        Raises BackendRefusedError if another migration to this target is running, or has changed
        the journal since this one was `planned_with` it.
        """
        path = journal_path(target)
        try:
            make_directories(path.parent)
            lock = FileLock.acquire(f"{path}.lock")
        except OSError as error:
            raise _unwritten(path, error) from error
        if lock is None:
            raise BackendRefusedError(str(path), "migrate", "another migration is running there")
        try:
            known = read_journal(source, target)
            if known != planned_with:
                raise overtaken(target)
            lines = [_line(_header(source, target))]
            lines += [_line(_fields(key, copied)) for key, copied in known.items()]
            write_atomically(path, lines)
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            lock.release()
            raise _unwritten(path, error) from error
        except BaseException:
            lock.release()
            raise
        return cls(path, descriptor, sum(map(len, lines)), lock)

    def add(self, key: Key, copied: Copied) -> None:
        """Append a line. Like `sync` and `close`, raises MetadataError if the disk refuses."""
        self._append(_line(_fields(key, copied)))
        self._unsynced += 1
        if self._unsynced >= SYNC_LINES:
            self.sync()

    def begin(self, items: Iterable[CopyItem]) -> None:
        """Append a line for each item of which the target has nothing yet, and sync."""
        lines = [
            _line(_fields(item.key, Copied(0, 0, item.row.create_timestamp)))
            for item in items
            if not item.known.size
        ]
        self._append(b"".join(lines))
        self.sync()

    def _append(self, lines: bytes) -> None:
        try:
            write_all(self._descriptor, lines, self._end)
        except OSError as error:
            raise _unwritten(self._path, error) from error
        self._end += len(lines)

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _unwritten(self._path, error) from error
        self._unsynced = 0

    def remove(self) -> None:
        remove_journal(self._path)

    def close(self) -> None:
        if self._descriptor >= 0:
            try:
                self.sync()
            finally:
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
    return [path, kind.name, base, copied.size, copied.crc, copied.created_ms]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenRecord:
    """A record that continues in the next block."""

    queue_offset: int
    place: int
    wanted: int  # checksum of its body
    crc: int  # so far
    body_left: int
    left: int


class PassingBodies:
    """Checks the bodies of a segment's records while its bytes pass by, from `position` to `size`.

    Between two blocks it holds at most one head, whatever length a record claims: a body that
    continues in the next block is added to the checksum as it comes. Bytes that are not a record
    are skipped: readers by queue detect them. A copy of this object continues from the same place.
    """

    def __init__(self, path: str, base: int, position: int, size: int) -> None:
        self._path = path
        self._base = base
        self._position = position  # of the first byte held, or else of the next one
        self._size = size
        self._held = b""
        self._open: _OpenRecord | None = None
        self._is_lost = False

    def take(self, block: bytes) -> None:
        """Check the next bytes. SegmentCorruptError for a body that does not match its record."""
        at = 0 if self._open is None else self._gone_on(block)
        data, self._held = self._held + block if self._held else block, b""
        while at < len(data):
            starts, sizes, at = self._walked(data, at)
            self._check_whole(data, starts, sizes)
            if at == len(data):
                break
            found = self._next_record(data, at)
            if found is None:
                kept = len(data) if self._open is not None else max(at, len(data) - _HEAD_BYTES)
                self._position += kept
                self._held = data[kept:]
                return
            at = found
        self._position += len(data)

    def _walked(self, data: bytes, at: int) -> tuple[Rows, Rows, int]:
        """The starts and sizes of consecutive whole records from `at` on, and where they end."""
        found: list[int] = []
        last, unpack = len(data) - _HEAD_BYTES, INT32.unpack_from
        while at <= last and not self._is_lost:
            (size,) = unpack(data, at)
            if size >= RECORD_BYTES_MIN:
                found.append(at)
                at += size
            elif is_coda(data, at):
                at += CODA_BYTES
            else:
                break
        # Check all at once whether these are records: one by one it takes longer than the walk.
        starts, words = np.array(found, np.int64), Words(data)
        sizes, magics = words.int32(starts), words.uint32(starts + MAGIC_POSITION)
        whole = (magics == MESSAGE_MAGIC_V1) | (magics == MESSAGE_MAGIC_V2)
        whole &= starts + sizes <= len(data)
        if whole.all():
            return starts, sizes, at
        count = int(whole.argmin())
        return starts[:count], sizes[:count], found[count]

    def _next_record(self, data: bytes, at: int) -> int | None:
        """Where to continue; None if that takes more bytes. `_open` may wait for them."""
        rest = len(data) - at
        if self._position + len(data) >= self._size and rest < _HEAD_BYTES:
            return self._last_ones(data, at)
        if rest < _HEAD_BYTES:
            return None
        if not self._is_lost and self._begin(data, at):
            return None
        self._is_lost = True
        for found in _candidates(data, at):
            if self._says_here(data, found):
                self._is_lost = False
                return found
        return None

    def _last_ones(self, data: bytes, at: int) -> int | None:
        """Check short records at the very end of the segment. An incomplete rest is skipped."""
        while not self._is_lost and at + RECORD_BYTES_MIN <= len(data):
            size, magic = _HEAD.unpack_from(data, at)
            if magic not in MESSAGE_MAGICS or not RECORD_BYTES_MIN <= size <= len(data) - at:
                break
            self._check_whole(data, np.array([at]), np.array([size]))
            at += size
        return None

    def _begin(self, data: bytes, at: int) -> bool:
        """If a head here starts a record that continues in the next block, open that record."""
        size, magic = _HEAD.unpack_from(data, at)
        place = self._position + at
        if magic not in MESSAGE_MAGICS or not len(data) - at < size <= self._size - place:
            return False
        body_at = at + fixed_bytes(peek_sys_flag(data, at))
        body_bytes: int = INT32.unpack_from(data, body_at - 4)[0]
        if not 0 <= body_bytes <= size - (body_at - at):
            return False
        body = data[body_at : body_at + body_bytes]
        self._open = _OpenRecord(
            queue_offset=peek_queue_offset(data, at),
            place=place,
            wanted=INT32.unpack_from(data, at + BODY_CRC_POSITION)[0],
            crc=crc32(body),
            body_left=body_bytes - len(body),
            left=size - (len(data) - at),
        )
        self._check_open(self._open)
        return True

    def _gone_on(self, block: bytes) -> int:
        """Add the block to the open record; returns how much of the block belongs to it."""
        known = self._open
        assert known is not None
        body = memoryview(block)[: known.body_left]
        taken = min(known.left, len(block))
        after = replace(
            known,
            crc=crc32(body, known.crc),
            body_left=known.body_left - len(body),
            left=known.left - taken,
        )
        if known.body_left:
            self._check_open(after)
        self._open = after if after.left else None
        return taken

    def _check_open(self, record: _OpenRecord) -> None:
        if not record.body_left and record.crc & INT32_MAX != record.wanted:
            raise self._damage(record.queue_offset, record.place)

    def _check_whole(self, data: bytes, starts: Rows, sizes: Rows) -> None:
        if not len(starts):
            return
        sound = Bodies(data, starts, sizes).sound_bodies()
        if not sound.all():
            first = int(starts[sound.argmin()])
            raise self._damage(peek_queue_offset(data, first), self._position + first)

    def _says_here(self, data: bytes, at: int) -> bool:
        """Whether the record names its place or, in old stores, that of an end marker before it."""
        here = self._base + self._position + at
        return peek_log_offset(data, at) in (here, here - CODA_BYTES)

    def _damage(self, queue_offset: int, place: int) -> SegmentCorruptError:
        reason = (
            f"the body of message {queue_offset} has another checksum than it should; with "
            "crc_check_enabled = false it is copied as it is"
        )
        return SegmentCorruptError(self._path, reason, position=place)


def _candidates(data: bytes, at: int) -> Iterator[int]:
    """Where records may begin after `at`, if as much of the head is there as `_says_here` reads."""
    found = data.find(_MAGIC_START, at + 1 + MAGIC_POSITION)
    while found >= 0 and found - MAGIC_POSITION + LOG_OFFSET_POSITION + 8 <= len(data):
        yield found - MAGIC_POSITION
        found = data.find(_MAGIC_START, found + 1)
