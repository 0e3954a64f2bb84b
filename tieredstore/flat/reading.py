"""Reads a run of messages of one queue: its units, then the one range of the log that they name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import add
from struct import Struct
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import body_crc
from tieredstore.codec.columns import Bodies, sound_count
from tieredstore.codec.message import BLANK_MAGIC, CODA_BYTES, is_coda
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units, unpack_units
from tieredstore.codec.record import (
    BODY_CRC_POSITION,
    INT32,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    MESSAGE_MAGICS,
    QUEUE_OFFSET_POSITION,
    RECORD_BYTES_MIN,
    fixed_bytes,
    peek_message_bytes,
    peek_sys_flag,
)
from tieredstore.codec.selected import selected_records
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.messages import LazyMessages, MessageRun, SelectedMessage

HOLE_BYTES_MAX: Final = 64 * 1024  # unreferenced bytes that one run reads, in all
FEW_ROWS_MAX: Final = 48
_HEAD: Final = Struct(">iI12xq")  # size, magic, queue offset
_CODA_HEAD: Final = np.uint64(CODA_BYTES << 32 | BLANK_MAGIC)
_NONE: Final = np.empty(0, np.int64)
_SIZE_BYTES: Final = 4
# Only committed bytes are requested, so these errors mean that the backend has lost some.
_GONE: Final = (OffsetOutOfRangeError, SegmentNotFoundError)


class ByteSource(Protocol):
    """Where the bytes of a file come from: its segments, or a cache of them."""

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        """Exactly `length` committed bytes, or an error."""


class _Direct:
    """No cache: every read goes to the backend."""

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        return file.read(offset, length)


DIRECT: Final[ByteSource] = _Direct()


def read_run(
    file: FlatMessageFile,
    offset: int,
    *,
    count_max: int,
    bytes_max: int,
    source: ByteSource = DIRECT,
    checks_bodies: bool = False,
) -> MessageRun:
    """Consecutive messages from this queue offset on; empty if there is none.

    * At most `count_max` messages, whose records have at most `bytes_max` bytes together; the
      first one is returned whatever its size. A gap in the queue ends the run, and so does a large
      hole in the log: a reader that continues at `end_offset` misses nothing.
    * Every row is the whole message with that queue offset. A damaged row ends the run before it;
      if it is the first one, SegmentCorruptError is raised. With `checks_bodies`, a body whose
      checksum is not that in its record is damage too.
    """
    found = _read(file, offset, count_max, bytes_max, source)
    if found is None:
        return empty_run(offset)
    if checks_bodies:
        _keep_sound(file, found)
    return found.run()


def read_messages(
    file: FlatMessageFile,
    offset: int,
    *,
    count_max: int,
    bytes_max: int,
    source: ByteSource = DIRECT,
    checks_bodies: bool = False,
) -> Sequence[SelectedMessage]:
    """The same messages. Each becomes an object, with its own bytes, on first access."""
    found = _read(file, offset, count_max, bytes_max, source)
    if found is None:
        return ()
    found.keep_bytes()
    if checks_bodies:
        _keep_sound(file, found)
    return LazyMessages(found)


def _keep_sound(file: FlatMessageFile, found: FoundRows) -> None:
    """Keep the rows before the first one with a damaged body. SegmentCorruptError if it is the
    first row."""
    count = found.sound_count()
    if not count:
        raise damaged_body(file, found.first_offset, found.place(0))
    found.keep_first(count)


def empty_run(offset: int) -> MessageRun:
    return MessageRun(
        first_offset=offset,
        log_offsets=_NONE,
        message_bytes=np.empty(0, np.int32),
        tags_codes=_NONE,
        starts=_NONE,
        records=b"",
    )


def record_place(file: FlatMessageFile, log_offset: int) -> int:
    """Where to read the record that a unit names: there, unless that was the place of a coda that
    has expired with its segment. Then the record is at the beginning of the next segment."""
    minimum = file.log.min_offset
    return minimum if log_offset == minimum - CODA_BYTES else log_offset


def has_sound_body(record: bytes) -> bool:
    """Whether the record's body lies within it and has the checksum that the record states."""
    begin = fixed_bytes(peek_sys_flag(record))
    if begin > len(record):
        return False
    size: int = INT32.unpack_from(record, begin - 4)[0]
    body = record[begin : begin + max(0, size)]
    crc: int = INT32.unpack_from(record, BODY_CRC_POSITION)[0]
    return len(body) == size and body_crc(body) == crc


def damaged_body(file: FlatMessageFile, offset: int, log_offset: int) -> SegmentCorruptError:
    """The error for a message whose body has changed since it was put."""
    reason = f"the body of message {offset} has another checksum than it should"
    return damage_at(file.log, log_offset, reason)


def damage_at(file: FlatAppendFile, offset: int, reason: str) -> SegmentCorruptError:
    """The error that names the segment with this byte and the place in it."""
    found = file.segment_at(offset)
    if found is None:
        return SegmentCorruptError(f"{file.path}/{file.type.name}", reason, position=offset)
    return SegmentCorruptError(found.segment.path, reason, position=offset - found.base)


def _read(
    file: FlatMessageFile, offset: int, count_max: int, bytes_max: int, source: ByteSource
) -> FoundRows | None:
    rows = min(
        count_max, file.queue.units_in_a_row(offset), max(0, bytes_max) // RECORD_BYTES_MIN + 1
    )
    if rows <= 0 or offset < file.min_offset:
        return None
    try:
        units = _read_units(file, offset, rows, source)
        return _read_named(file, NamedRows(units, offset), bytes_max, source)
    except (SegmentCorruptError, StoreClosedError):
        if offset < file.min_offset:  # it expired while it was being read
            return None
        raise


def _read_units(file: FlatMessageFile, offset: int, rows: int, source: ByteSource) -> bytes:
    while True:
        try:
            return source.read(file.queue, offset * UNIT_BYTES, rows * UNIT_BYTES)
        except _GONE as error:
            if rows == 1:
                reason = f"the unit of message {offset} is not there"
                raise damage_at(file.queue, offset * UNIT_BYTES, reason) from error
            rows //= 2  # return what is there
        except SegmentCorruptError as error:
            sound = (_sound_end(file.queue, error, offset * UNIT_BYTES) // UNIT_BYTES) - offset
            if not 0 < sound < rows:
                raise
            rows = sound


def _read_named(
    file: FlatMessageFile, rows: NamedRows, bytes_max: int, source: ByteSource
) -> FoundRows:
    first = rows.first_offset
    rows.begin_at(record_place(file, rows.start))
    log_end = _contiguous_end(file.log, rows.start)
    count = rows.reach(log_end, bytes_max)
    if not count:
        reason = f"the unit of message {first} names no record of the log"
        raise damage_at(file.queue, first * UNIT_BYTES, reason)
    while True:
        try:
            found = _read_records(file, rows, count, log_end, bytes_max, source)
        except _GONE as error:
            if count == 1:
                reason = f"the record of message {first} is not there"
                raise damage_at(file.log, rows.start, reason) from error
            count //= 2
            continue
        except SegmentCorruptError as error:
            sound = rows.reach(_sound_end(file.log, error, rows.start), bytes_max)
            if not 0 < sound < count:
                raise
            count = sound
            continue
        if not len(found):
            raise damage_at(file.log, rows.start, f"this is not message {first}")
        return found


def _read_records(
    file: FlatMessageFile,
    rows: NamedRows,
    count: int,
    log_end: int,
    bytes_max: int,
    source: ByteSource,
) -> FoundRows:
    start, end = rows.start, rows.end(count)
    if end - start > bytes_max and count == 1:
        # A record larger than the limit is read only if its own header has the same size.
        claimed = peek_message_bytes(source.read(file.log, start, _SIZE_BYTES))
        if claimed not in (end - start, CODA_BYTES):
            return FoundRows(rows, (), b"")
    data = source.read(file.log, start, end - start)
    found = rows.check(data, count)
    if len(found) == count - 1 and is_coda(data, rows.place(count - 1) - start):
        data += source.read(file.log, end, min(CODA_BYTES, log_end - end))
        found = rows.check(data, count)
    return found


def _sound_end(file: FlatAppendFile, error: SegmentCorruptError, start: int) -> int:
    """Where the damaged bytes begin; `start` if that is not known."""
    for each in file.segments:
        if each.segment.path == error.path:
            return each.base + error.position
    return start


def _contiguous_end(log: FlatAppendFile, start: int) -> int:
    """Where the log's bytes from `start` on end, or have a gap."""
    end = start
    found = log.segment_at(start)
    while found is not None and found.base <= end < found.end:
        end = found.end
        found = log.segment_at(end)
    return end


class NamedRows:
    """The records that consecutive units name, in the log from `start` on.

    A unit that names the place of a coda, the end marker of old segments, means the record after
    it. Only the log's bytes show whether there is one.
    """

    __slots__ = ("_few", "_log_offsets", "_message_bytes", "_start", "_tags_codes", "first_offset")

    def __init__(self, units: bytes, first_offset: int) -> None:
        self.first_offset = first_offset
        self._few = len(units) <= FEW_ROWS_MAX * UNIT_BYTES
        self._log_offsets: Any
        self._message_bytes: Any
        self._tags_codes: Any
        if self._few:
            self._log_offsets, self._message_bytes, self._tags_codes = unpack_units(units)
        else:
            many = decode_units(units)
            self._log_offsets = many.log_offsets
            self._message_bytes = many.message_bytes
            self._tags_codes = many.tags_codes
        self._start = int(self._log_offsets[0])

    @property
    def start(self) -> int:
        """The log offset of the first record."""
        return self._start

    def begin_at(self, log_offset: int) -> None:
        """Set the log offset of the first record, whatever its unit says."""
        if log_offset != self._start:
            self._start = log_offset
            if self._few:
                self._log_offsets = (log_offset, *self._log_offsets[1:])
            else:
                self._log_offsets[0] = log_offset

    def place(self, row: int) -> int:
        """The log offset of a row's record, or of the coda before it."""
        return int(self._log_offsets[row])

    def end(self, count: int) -> int:
        """Where the record of the last of these rows ends."""
        return int(self._log_offsets[count - 1]) + int(self._message_bytes[count - 1])

    def reach(self, log_end: int, bytes_max: int) -> int:
        """How many rows can be read in one go: in order, close together, below `log_end`.

        0 if the first unit names no record; otherwise at least 1, whatever the record's size.
        """
        if not self._few:
            return self._reach_of_many(log_end, bytes_max)
        ends = list(map(add, self._log_offsets, self._message_bytes))
        if (
            ends[:-1] == [*self._log_offsets[1:]]  # no holes, as a batch leaves them
            and min(self._message_bytes) >= RECORD_BYTES_MIN
            and ends[-1] <= min(log_end, self._start + bytes_max)
        ):
            return len(ends)
        rows = total = 0
        end = start = self._start
        for place, size in zip(self._log_offsets, self._message_bytes, strict=True):
            total += size
            hole_bytes = place + size - start - total
            if size < RECORD_BYTES_MIN or place < end or place + size > log_end:
                break
            if rows and (total > bytes_max or hole_bytes > HOLE_BYTES_MAX):
                break
            end = place + size
            rows += 1
        return rows

    def check(self, data: bytes, count: int) -> FoundRows:
        """The rows before the first one that is not the message it must be. `data` has the log's
        bytes from `start` on."""
        check = self._check_few if self._few else self._check_many
        return FoundRows(self, check(data, count), data)

    def columns(self, count: int) -> tuple[Any, Any]:
        """Sizes and tags codes of the first rows, as tuples or arrays."""
        return self._message_bytes[:count], self._tags_codes[:count]

    def _check_few(self, data: bytes, count: int) -> Sequence[int]:
        start, sizes = self._start, self._message_bytes[:count]
        starts = [place - start for place in self._log_offsets[:count]]
        if starts[-1] + sizes[-1] <= len(data):
            # Compare all heads at once: hardly ever is one wrong.
            heads = list(map(_HEAD.unpack_from, repeat(data), starts))
            magic, first = heads[0][1], self.first_offset
            wanted = zip(sizes, repeat(magic), range(first, first + count), strict=False)
            if magic in MESSAGE_MAGICS and heads == list(wanted):
                return starts
        return self._check_singly(data, starts, sizes)

    def _check_singly(
        self, data: bytes, places: Sequence[int], sizes: Sequence[int]
    ) -> Sequence[int]:
        starts: list[int] = []
        queue_offset = self.first_offset
        for place, size in zip(places, sizes, strict=True):
            at = place
            if at + size > len(data):
                break
            head = _HEAD.unpack_from(data, at)
            if head[0] == CODA_BYTES and head[1] == BLANK_MAGIC:
                at += CODA_BYTES
                if at + size > len(data):
                    break
                head = _HEAD.unpack_from(data, at)
            if head[0] != size or head[1] not in MESSAGE_MAGICS or head[2] != queue_offset:
                break
            starts.append(at)
            queue_offset += 1
        return starts

    def _reach_of_many(self, log_end: int, bytes_max: int) -> int:
        places, sizes = self._log_offsets, self._message_bytes.astype(np.int64)
        totals = np.cumsum(sizes)
        holes = (places - self._start) - (totals - sizes)
        # Places are compared with the end minus the size, because place + size could overflow. Only
        # an end far below 0 could: `log_end` is the first place itself if the log does not have it.
        good = (sizes >= RECORD_BYTES_MIN) & (places >= 0) & (places <= log_end - sizes)
        near = (totals <= bytes_max) & (holes <= HOLE_BYTES_MAX)
        near[0] = True
        good &= near
        good[1:] &= places[1:] >= (places + sizes)[:-1]
        return len(good) if good.all() else int(good.argmin())

    def _check_many(self, data: bytes, count: int) -> NDArray[np.int64]:
        starts = self._log_offsets[:count] - self._start
        sizes = self._message_bytes[:count].astype(np.int64)
        words: NDArray[Any] = np.ndarray((max(0, len(data) - 7),), ">u8", data, strides=(1,))
        heads = words[starts]
        behind_coda = heads == _CODA_HEAD
        if behind_coda.any():
            behind_coda &= starts + CODA_BYTES + sizes <= len(data)
            starts = np.where(behind_coda, starts + CODA_BYTES, starts)
            heads = words[starts]
        wanted = sizes.astype(np.uint64) << np.uint64(32)
        good = heads == (wanted | np.uint64(MESSAGE_MAGIC_V2))
        good |= heads == (wanted | np.uint64(MESSAGE_MAGIC_V1))
        offsets = np.arange(self.first_offset, self.first_offset + count, dtype=np.uint64)
        good &= words[starts + QUEUE_OFFSET_POSITION] == offsets
        checked: NDArray[np.int64] = starts if good.all() else starts[: int(good.argmin())]
        return checked


class FoundRows:
    """Checked messages: the first of the named rows, and the bytes that hold them."""

    __slots__ = ("_data", "_rows", "_starts")

    def __init__(
        self, rows: NamedRows, starts: Sequence[int] | NDArray[np.int64], data: bytes
    ) -> None:
        self._rows = rows
        self._starts = starts
        self._data = data

    def __len__(self) -> int:
        return len(self._starts)

    def run(self) -> MessageRun:
        sizes, tags_codes = self._rows.columns(len(self))
        starts = np.array(self._starts, np.int64)
        return MessageRun(
            first_offset=self._rows.first_offset,
            log_offsets=starts + self._rows.start,
            message_bytes=np.array(sizes, np.int32),
            tags_codes=np.array(tags_codes, np.int64),
            starts=starts,
            records=self._data,
        )

    @property
    def first_offset(self) -> int:
        return self._rows.first_offset

    def place(self, row: int) -> int:
        """The log offset of this row's record."""
        return int(self._starts[row]) + self._rows.start

    def sound_count(self) -> int:
        """How many rows come before the first one with a damaged body."""
        sizes = self._rows.columns(len(self))[0]
        if len(self) > FEW_ROWS_MAX:
            starts = np.asarray(self._starts, np.int64)
            return sound_count(Bodies(self._data, starts, sizes).sound_bodies())
        places = zip(_listed(self._starts), _listed(sizes), strict=True)
        sound = (has_sound_body(self._data[at : at + size]) for at, size in places)
        return next((row for row, is_sound in enumerate(sound) if not is_sound), len(self))

    def keep_first(self, count: int) -> None:
        self._starts = self._starts[:count]

    def keep_bytes(self) -> None:
        """Copy the data unless it is bytes already, in case it was read into a shared buffer."""
        self._data = bytes(self._data)

    def records(self) -> bytes:
        """The records, one after the other; joined only if there is anything between them."""
        starts = _listed(self._starts)
        sizes = _listed(self._rows.columns(len(self))[0])
        first, end = starts[0], starts[-1] + sizes[-1]
        if end - first == sum(sizes):
            return self._data[first:end]
        return b"".join(
            [self._data[at : at + size] for at, size in zip(starts, sizes, strict=True)]
        )

    def messages(self) -> list[SelectedMessage]:
        count, first, start = len(self), self._rows.first_offset, self._rows.start
        starts = _listed(self._starts)
        sizes, tags_codes = map(_listed, self._rows.columns(count))
        data = self._data
        return selected_records(
            queue_offsets=range(first, first + count),
            log_offsets=[at + start for at in starts],
            tags_codes=tags_codes,
            records=[data[at : at + size] for at, size in zip(starts, sizes, strict=True)],
        )


def _listed(column: Any) -> Sequence[int]:
    listed: Sequence[int] = column.tolist() if isinstance(column, np.ndarray) else column
    return listed
