"""One consume queue: the place of each of its messages in the commit log, recovery after a crash,
and the search for the message that was stored at a given time.

Queue offset k is the unit at byte 20 * k. This avoids known faults of Java:

* A message that would leave a hole is refused with PositionMismatchError. Java appends it at the
  current end, and from then on the queue disagrees with the messages' own queue offsets.
* A cut leaves zeros. Java leaves the old units, and they can become valid again.
* The minimum follows the log through all files. Java looks only in the first file; until that file
  is deleted, its minimum names messages that do not exist.
* Units that only fill a place are never messages, not even after a restart.

Recovery accepts a unit if its log offset is not negative and its size is positive, as in Java; in
addition its record must not begin before the end of the previous one. Without the second rule,
units that survived a cut would come back: they are valid, but belong to an older history.

A binary search may meet single damaged units. It also checks the neighbours of the place it found,
and continues if they disagree, so one wrong unit does not mislead it.

Search by time, for a queue of messages [minimum, maximum) whose times do not decrease:

    | boundary | the answer                            | none: | empty queue: |
    | -------- | ------------------------------------- | ----- | ------------ |
    | LOWER    | first message stored at or after then | maximum | minimum    |
    | UPPER    | last message stored at or before then | minimum | minimum    |

Java first chooses one file of the queue and searches only in it. For the sound queues in the
recorded answers of Java, both agree with the table; where they differ, ours follows the table:

* If a message cannot be read (its log file was deleted, its record is damaged), Java's answer is
  the start of the queue. Here the search uses the nearest readable messages.
* Java remembers the time of each file's first and last unit, also when they could not be read.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import starmap
from operator import add, gt
from struct import Struct, error
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.queue_unit import (
    EXTENSION_ADDRESS_MAX,
    PREFILL_BYTES,
    UNIT_BYTES,
    QueueUnit,
    QueueUnits,
    decode_unit,
    decode_units,
    encode_unit,
)
from tieredstore.driver.durable import read_all
from tieredstore.local.mapped_file import MappedFile, MappedFiles
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentCorruptError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT32_MAX, INT64_MAX, Boundary

log = log_of(__name__)
StoreTime = Callable[[int, int], int | None]
"""The store time of the record at (log_offset, message_bytes); None if it cannot be read."""
_FILES_SCANNED: Final = 3
_LOG_OFFSET_MAX: Final = INT64_MAX - INT32_MAX  # so that the end of any record fits 64 bits
_PACKED_TOGETHER: Final = 256  # units: the cached structs up to this length take 3 MB in all
_BLOCK_BYTES: Final = UNIT_BYTES << 14
_FIRST_BLOCK_BYTES: Final = UNIT_BYTES << 9


class QueueEnd(NamedTuple):
    """The queue offsets where a queue begins and ends, and where its newest message ends in the
    log."""

    first: int
    end: int
    last_log_end: int


class Doubt(NamedTuple):
    """The result of `distrust`: the queue offset of the first unreliable unit, how far units after
    the queue's end confirm it, and whether any bytes follow that end."""

    offset: int
    borne_out: QueueEnd | None
    is_followed: bool


class ConsumeQueue:
    """The units of one queue, [min_offset, max_offset) of which are messages that can be read.

    * Any thread may put, cut or correct the minimum; one does so at a time. Reads take no lock:
      units below `max_offset` do not change.
    * Puts are idempotent: known messages are skipped, so a dispatch that failed or was interrupted
      is simply repeated.
    * Opening writes nothing. Leftovers of a crash after the end are removed before the first put.
    """

    def __init__(self, files: MappedFileQueue, found: Found) -> None:
        self.is_kept: Callable[[int, QueueUnit], bool] = lambda _offset, _unit: False
        """Whether the log still has the message of a unit whose place is below the log."""
        self._files = files
        self._min = found.first_message
        self._max = found.end
        self._last_log_end = found.last_log_end
        self._tidy = not files.files
        self._is_cut = False
        self._guard = threading.RLock()
        for file in files.files_from(self._max * UNIT_BYTES):
            file.wrote = max(0, self._max * UNIT_BYTES - file.start_offset)

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], *, file_bytes: int, files: MappedFiles
    ) -> ConsumeQueue:
        """Open a queue and find its end; a missing directory is an empty queue."""
        queue_files = MappedFileQueue(directory, file_bytes=file_bytes, files=files)
        queue_files.load()
        return cls(queue_files, scan(queue_files.files))

    @property
    def directory(self) -> str:
        return self._files.directory

    @property
    def min_offset(self) -> int:
        return self._min

    @property
    def max_offset(self) -> int:
        return self._max

    @property
    def last_log_end(self) -> int:
        """Where the newest message ends in the log; 0 without messages."""
        return self._last_log_end

    @property
    def first_kept(self) -> int:
        """The queue offset where the first file starts: it moves only when files are deleted."""
        return (self._files.min_offset or 0) // UNIT_BYTES

    @property
    def has_gap(self) -> bool:
        """Whether a file was missing between others when the queue was opened."""
        return bool(self._files.gaps)

    def end(self) -> QueueEnd:
        with self._guard:
            return QueueEnd(self.first_kept, self._max, self._last_log_end)

    @property
    def file_count(self) -> int:
        return len(self._files.files)

    def put(
        self,
        queue_offset: int,
        log_offsets: Sequence[int],
        message_bytes: Sequence[int],
        tags_codes: Sequence[int],
    ) -> int:
        """Append consecutive messages, the first at this queue offset; returns how many were new.

        Messages whose record ends at or below `last_log_end`, or whose offset is below
        `max_offset`, are here already and are skipped. A queue without messages begins at the
        offset of its first one; fill units take the places before it in its file.

        Raises PositionMismatchError, with nothing written, if messages are missing in between;
        its positions are in units. The missing messages must be put first.
        """
        if queue_offset < 0:
            raise ValueError(f"queue_offset: {queue_offset} is negative")
        with self._guard:
            new = encode_new_units(log_offsets, message_bytes, tags_codes, self._last_log_end)
            start = queue_offset + new.skipped
            data = new.data
            if not data:
                return 0
            if self._last_log_end and start > self._max:
                raise PositionMismatchError(self._files.directory, expected=start, actual=self._max)
            if self._last_log_end and start < self._max:
                log.warning("%s: %d is taken, passed over", self._files.directory, start)
                data = data[(self._max - start) * UNIT_BYTES :]
                start = self._max
                if not data:
                    return 0
            self._append(start, data)
            self._last_log_end = new.last_log_end
            return len(data) // UNIT_BYTES

    def _append(self, start: int, data: bytes) -> None:
        if not self._tidy:
            self._files.truncate_dirty(self._max * UNIT_BYTES)
        self._tidy = self._is_cut = False  # until everything is written
        at, end = self._max * UNIT_BYTES, start * UNIT_BYTES
        if start != self._max or not self._files.files:  # no message yet: the queue begins at start
            same_file = self._files.find(at) is self._files.find(end) is not None
            if start < self._max or not same_file:
                self._files.destroy()
                at = end - end % self._files.file_bytes
            # Before the bytes, so that a reader never takes a fill unit as a message.
            self._max = min(self._max, start)
            self._min = start
            data = PREFILL_BYTES * ((end - at) // UNIT_BYTES) + data
        self._files.append(data, start_offset=at)
        self._max = (at + len(data)) // UNIT_BYTES
        self._tidy = True

    def unit(self, offset: int) -> QueueUnit:
        """The unit of one message. Raises OffsetOutOfRangeError if the queue does not have it."""
        self._check(offset, self._max - 1)
        data = self._files.read(offset * UNIT_BYTES, UNIT_BYTES)
        return decode_unit(self._found(offset, data))

    def units(self, offset: int, count: int) -> QueueUnits:
        """Up to `count` units from `offset` on, across files; none at `max_offset`."""
        return decode_units(self.unit_bytes(offset, count))

    def unit_bytes(self, offset: int, count: int) -> bytes:
        """The bytes of `units`, as stored."""
        if count < 0:
            raise ValueError(f"count: {count} is negative")
        maximum = self._max
        self._check(offset, maximum)
        position, end = offset * UNIT_BYTES, min(maximum, offset + count) * UNIT_BYTES
        pieces: list[bytes] = []
        while position < end:
            file = self._files.find(position)
            length = end - position if file is None else min(end, file.end_offset) - position
            data = self._found(position // UNIT_BYTES, self._files.read(position, length))
            pieces.append(data)
            position += length
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def offset_by_time(
        self,
        timestamp: int,
        boundary: Boundary,
        *,
        store_time: StoreTime,
        min_log_offset: int = 0,
        unit: Callable[[int], QueueUnit | None] | None = None,
    ) -> int:
        """The queue offset to start from for a time, by the table of this module.

        `unit` gives the correct unit of an offset, None if it is damaged; without it the units
        are taken as stored.
        """
        return offset_by_time(
            timestamp,
            boundary,
            minimum=self._min,
            maximum=self._max,
            unit=unit or self._peek,
            store_time=store_time,
            min_log_offset=min_log_offset,
        )

    def correct_min_offset(self, min_log_offset: int) -> int:
        """Skip the messages whose record has gone from the log; returns the new minimum."""
        with self._guard:
            self._min = self.first_from(min_log_offset)
            return self._min

    def first_from(self, min_log_offset: int) -> int:
        """The first message whose record is still in the log, or `max_offset`."""
        minimum, maximum = self._min, self._max
        if self._last_log_end <= min_log_offset and self._last_log_end:
            return maximum
        if self._is_from(minimum, min_log_offset) and self._is_from(
            min(minimum + 1, maximum - 1), min_log_offset
        ):
            return minimum  # the usual case
        first = first_where(minimum, maximum, lambda offset: self._is_from(offset, min_log_offset))
        while first > minimum and self._is_damaged(first - 1, min_log_offset):
            first -= 1
        return first

    def _is_damaged(self, offset: int, min_log_offset: int) -> bool:
        """Whether this unit wrongly says that its record has gone."""
        unit = self._peek_any(offset)
        if unit is None or unit.is_prefill:
            return False
        return unit.log_offset >= min_log_offset or self.is_kept(offset, unit)

    def delete_before(self, min_log_offset: int) -> int:
        """Delete files, never the last, whose messages have all gone from the log; returns how many
        files."""
        self.correct_min_offset(min_log_offset)
        with self._guard:
            return len(self._files.delete_before(self._min * UNIT_BYTES))

    def truncate(self, log_offset: int) -> int:
        """Drop the messages whose record starts at or after `log_offset`; returns how many.

        Fill units stay: they keep the numbers of the messages to come.
        """
        with self._guard:
            if self._last_log_end <= log_offset:
                return 0  # read nothing: opening a store calls this for every queue
            end = first_where(
                self._min, self._max, lambda offset: self._is_from(offset, log_offset)
            )
            dropped = self._max - end
            if dropped:
                self._end_at(end)
                self._files.truncate_dirty(end * UNIT_BYTES)
                self._is_cut, self._tidy = False, True
            return dropped

    def cut(self, end: int) -> None:
        """Drop the messages from this number on, whatever their units say."""
        with self._guard:
            if self._files.files and self._max > end:
                self._end_at(end)
                self._files.truncate_dirty(end * UNIT_BYTES)
                self._is_cut, self._tidy = False, True

    def begin_at(self, first: int) -> None:
        """Durably drop all contents; the next message gets the number `first`.

        No file is made before that message comes: until then only memory holds the number.
        """
        with self._guard:
            self._files.destroy()
            self._min = self._max = first
            self._last_log_end = 0
            self._tidy = True

    def distrust(self, agrees: Callable[[int, QueueUnit], bool], log_min: int) -> Doubt | None:
        """End the queue after the last unit that agrees with the log; None if it already does.

        Units carry no checksum: one flipped bit can end a queue in its middle, or make it end too
        far on. Units after the end that agree with the log show that the queue went on. Nothing is
        written: the units made again from the log overwrite the bytes there.
        """
        with self._guard:
            if not self._files.files:
                return None
            end = kept = self._max
            while kept > self.first_kept:
                unit = self._peek_any(kept - 1)
                if unit is not None and (
                    unit.is_prefill or _has_gone(unit, log_min) or agrees(kept - 1, unit)
                ):
                    break
                kept -= 1
            borne_out, is_followed = self._behind(end, agrees)
            if kept == end and borne_out is None and not is_followed:
                return None
            self._end_at(kept)
            return Doubt(kept, borne_out, is_followed)

    def _behind(
        self, end: int, agrees: Callable[[int, QueueUnit], bool]
    ) -> tuple[QueueEnd | None, bool]:
        """How far the units after `end` show that the queue went on; whether any bytes follow."""
        is_followed = False
        for file in reversed(self._files.files_from(end * UNIT_BYTES)):
            first = max(end, file.start_offset // UNIT_BYTES)
            position = first * UNIT_BYTES - file.start_offset
            stop = max(position, file.data_end(position))
            data = file.view(position, stop - (stop - position) % UNIT_BYTES)
            units = decode_units(data)
            used = np.flatnonzero((units.log_offsets != 0) | (units.message_bytes != 0))
            is_followed = is_followed or len(used) > 0
            for row in reversed(used.tolist()):
                unit = decode_unit(data, row * UNIT_BYTES)
                if agrees(first + row, unit):
                    log_end = unit.log_offset + unit.message_bytes
                    return QueueEnd(self.first_kept, first + row + 1, log_end), True
        return None, is_followed

    def tidy(self) -> None:
        """Durably remove the units that a recovery did not believe, if any. New records will lie
        where they point: after the next crash the units would claim those. Likewise the files that
        a crash left empty, except an only one that does not start at 0: its name holds the number
        of the next message."""
        with self._guard:
            if not self._max and self._files.files:
                self._files.destroy()
                self._is_cut, self._tidy = False, True
            behind = self._files.files[1:][-1:]
            if self._is_cut or any(one.start_offset >= self._max * UNIT_BYTES for one in behind):
                self._files.truncate_dirty(self._max * UNIT_BYTES)
                self._is_cut, self._tidy = False, True

    def _end_at(self, end: int) -> None:
        self._is_cut = True
        self._max = end
        self._min = min(self._min, end)
        last = self._peek_any(end - 1)
        self._last_log_end = (
            0 if last is None or last.is_prefill else last.log_offset + last.message_bytes
        )
        self._tidy = False

    def mend(self, offset: int, unit: QueueUnit) -> None:
        """Durably replace a damaged unit; a store opened for reading writes nothing."""
        with self._guard:
            file = self._files.find(offset * UNIT_BYTES)
            if self._files.read_only or file is None or not self._min <= offset < self._max:
                return
            file.write_at(offset * UNIT_BYTES - file.start_offset, _encoded(*unit))
            file.flush()

    def place_of(self, offset: int) -> tuple[str, int]:
        """The file of a unit and the position in it."""
        file = self._files.find(offset * UNIT_BYTES)
        if file is None:
            return self._files.directory, offset * UNIT_BYTES
        return file.path, offset * UNIT_BYTES - file.start_offset

    def flush(self) -> None:
        """Make everything put so far durable, by fdatasync."""
        self._files.flush()

    def close(self) -> None:
        """Release the files without a sync. Idempotent."""
        self._files.close()

    def destroy(self) -> None:
        """Delete the queue and its directory, newest files first: a crash leaves the beginning of
        the queue, so that a repair shows what is missing."""
        with self._guard:
            self._min = self._max = self._last_log_end = 0
            self._files.destroy()

    def delete(self) -> None:
        """`destroy`, oldest files first: if it fails, what is left ends where the queue did, so
        that its next message fits."""
        with self._guard:
            end, self._min, self._max, self._last_log_end = self._max, 0, 0, 0
            self._files.delete_before(end * UNIT_BYTES)
            self._files.destroy()

    def _check(self, offset: int, maximum: int) -> None:
        if not self._min <= offset <= maximum:
            raise OffsetOutOfRangeError(
                self._files.directory, offset=offset, minimum=self._min, maximum=maximum
            )

    def _found(self, offset: int, data: bytes | None) -> bytes:
        if data is None:  # the file may just have been deleted, perhaps by another process
            kept = self._files.min_offset
            with self._guard:
                self._min = max(self._min, self._max if kept is None else kept // UNIT_BYTES)
            self._check(offset, self._max - 1)
            raise SegmentCorruptError(
                self._files.directory, "no file holds the unit", position=offset * UNIT_BYTES
            )
        return data

    def _peek(self, offset: int) -> QueueUnit | None:
        return self._peek_any(offset) if self._min <= offset < self._max else None

    def _peek_any(self, offset: int) -> QueueUnit | None:
        data = self._files.read(offset * UNIT_BYTES, UNIT_BYTES) if offset >= 0 else None
        return None if data is None else decode_unit(data)

    def _is_from(self, offset: int, log_offset: int) -> bool:
        unit = self._peek_any(offset)
        return unit is not None and unit.log_offset >= log_offset


def _has_gone(unit: QueueUnit, log_min: int) -> bool:
    """Whether the whole record lay below the start of the log: no record spans two files."""
    return 0 <= unit.log_offset < unit.log_offset + unit.message_bytes <= log_min


class Found(NamedTuple):
    """What a scan found, in queue offsets; `last_log_end` is 0 without messages."""

    first_message: int
    end: int
    last_log_end: int


def scan(files: Sequence[MappedFile]) -> Found:
    """Find the end of a queue from its last files only.

    The files are read, not mapped: opening a store scans every queue, and most of them are not
    used again for a long time.
    """
    if not files:
        return Found(0, 0, 0)
    number = max(0, len(files) - _FILES_SCANNED)
    while number > 0 and not _begins_well(files[number]):
        number -= 1
    end, last = _end_of_units(files[number:])
    first_file = files[0]
    first = first_where(
        first_file.start_offset // UNIT_BYTES,
        min(end, first_file.end_offset) // UNIT_BYTES,
        lambda unit: not _unit_in(first_file, unit).is_prefill,
    )
    known = last is not None and not last.is_prefill
    return Found(first, end // UNIT_BYTES, _log_end(last) if last and known else 0)


def first_where(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number in [low, high) from which on `holds` is true, or `high`.

    One wrong answer of `holds` changes the result by two at most, and only right beside the place:
    if two numbers on one side of the result contradict it, the search goes on there.
    """
    first, end = low, high
    while True:
        found = _halved(first, end, holds)
        if found - 2 >= first and holds(found - 2) and (found - 3 < first or holds(found - 3)):
            end = found - 2
        elif found + 2 < end and not holds(found + 1) and not holds(found + 2):
            first = found + 1
        else:
            return found


def offset_by_time(
    timestamp: int,
    boundary: Boundary,
    *,
    minimum: int,
    maximum: int,
    unit: Callable[[int], QueueUnit | None],
    store_time: StoreTime,
    min_log_offset: int = 0,
) -> int:
    """The queue offset to start from for `timestamp`.

    Messages below `min_log_offset` count as too old without being read: the log may expire files
    before the queue's minimum follows.
    """

    def time_of(offset: int) -> int | None:
        """None if there is no time to compare; an expired message is older than everything."""
        at = unit(offset)
        if at is None or at.is_prefill or at.message_bytes <= 0:
            return None
        return -1 if at.log_offset < min_log_offset else store_time(at.log_offset, at.message_bytes)

    lower = boundary is Boundary.LOWER
    first_after, last_before = max(minimum, maximum), minimum
    low, high = minimum, maximum
    while low < high:
        middle = (low + high) // 2
        # Damage is rare and short, so stepping over it one by one seldom costs anything.
        probe, time = middle, time_of(middle)
        while time is None and probe + 1 < high:
            probe += 1
            time = time_of(probe)
        if time is None:
            high = middle
        elif time > timestamp or (lower and time == timestamp):
            first_after, high = probe, middle
        else:
            low = probe + 1
            last_before = max(minimum, probe)
    return first_after if lower else last_before


def matching_tags(units: QueueUnits, codes: Collection[int]) -> NDArray[np.bool_]:
    """Which units may hold a message with one of these 32-bit tag hashes.

    As in Java the low 32 bits are compared. A unit whose tags code is an address in an extended
    queue matches everything, because its tags are not known here. So does the unit of a damaged
    message.
    """
    tags_codes = units.tags_codes
    low = tags_codes.astype(np.int32)  # keeps the low 32 bits, with their sign
    wanted = np.array(sorted({_int32(code) for code in codes}), np.int32)
    mask: NDArray[np.bool_] = tags_codes <= EXTENSION_ADDRESS_MAX
    if len(wanted) > 8:
        return mask | np.isin(low, wanted)
    for code in wanted:
        mask |= low == code
    return mask


class NewUnits(NamedTuple):
    """The first `skipped` messages were known; `data` holds the units of the others."""

    skipped: int
    data: bytes
    last_log_end: int


def encode_new_units(
    log_offsets: Sequence[int],
    message_bytes: Sequence[int],
    tags_codes: Sequence[int],
    last_log_end: int,
) -> NewUnits:
    """The units of the messages whose record ends after `last_log_end`.

    Raises ValueError unless the columns have the same length, each message has a positive size,
    and each begins at or after the end of the one before.
    """
    count = len(log_offsets)
    if not count == len(message_bytes) == len(tags_codes):
        raise ValueError(
            f"columns of different lengths: {count}, {len(message_bytes)}, {len(tags_codes)}"
        )
    ends = list(map(add, log_offsets, message_bytes))
    if count and (min(message_bytes) <= 0 or any(map(gt, [0, *ends], log_offsets))):
        raise _disorder(log_offsets, message_bytes)
    skipped = bisect_right(ends, last_log_end)
    values: list[int] = [0] * (3 * (count - skipped))
    values[::3] = log_offsets[skipped:]
    values[1::3] = message_bytes[skipped:]
    values[2::3] = tags_codes[skipped:]
    try:
        data = _packed(values)
    except error:
        units = zip(log_offsets, message_bytes, tags_codes, strict=True)
        data = b"".join(starmap(_encoded, units))  # raises an error that names the bad value
    return NewUnits(skipped, data, ends[-1] if ends else 0)


def _packed(values: list[int]) -> bytes:
    step = 3 * _PACKED_TOGETHER
    if len(values) <= step:
        return _units(len(values) // 3).pack(*values)
    parts = (values[at : at + step] for at in range(0, len(values), step))
    return b"".join([_units(len(part) // 3).pack(*part) for part in parts])


@cache
def _units(count: int) -> Struct:
    return Struct(">" + "qiq" * count)


def _encoded(log_offset: int, message_bytes: int, tags_code: int) -> bytes:
    return encode_unit(log_offset=log_offset, message_bytes=message_bytes, tags_code=tags_code)


def _disorder(log_offsets: Sequence[int], message_bytes: Sequence[int]) -> ValueError:
    end = 0
    for log_offset, size in zip(log_offsets, message_bytes, strict=True):
        if not 0 < size <= INT32_MAX:
            return ValueError(f"message_bytes: {size} is no size of a record")
        if log_offset < end:
            break
        end = log_offset + size
    return ValueError(f"log_offset: {log_offset} is below {end}, where the record before ends")


def _halved(low: int, high: int, holds: Callable[[int], bool]) -> int:
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _int32(code: int) -> int:
    return (code & 0xFFFFFFFF) - ((code & 0x80000000) << 1)


def _log_end(unit: QueueUnit) -> int:
    return unit.log_offset + unit.message_bytes


def _begins_well(file: MappedFile) -> bool:
    unit = _unit_in(file, file.start_offset // UNIT_BYTES)
    return 0 <= unit.log_offset <= _LOG_OFFSET_MAX and unit.message_bytes > 0


def _unit_in(file: MappedFile, unit: int) -> QueueUnit:
    position = unit * UNIT_BYTES - file.start_offset
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return decode_unit(read_all(descriptor, UNIT_BYTES, position), path=file.path)
    finally:
        os.close(descriptor)


def _end_of_units(files: Sequence[MappedFile]) -> tuple[int, QueueUnit | None]:
    """The byte at which the valid units end, and the last of them."""
    last: QueueUnit | None = None
    for before, file in zip((None, *files), files, strict=False):
        if before is not None and before.end_offset != file.start_offset:
            return before.end_offset, last
        position, last = _end_within(file, last)
        if position < file.size:
            return file.start_offset + position, last
    return files[-1].end_offset, last


def _end_within(file: MappedFile, last: QueueUnit | None) -> tuple[int, QueueUnit | None]:
    position, block_bytes = 0, _FIRST_BLOCK_BYTES  # most queues are short
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while position < file.size:
            length = min(block_bytes, file.size - position)
            data = read_all(descriptor, length, position)
            units = decode_units(data[: len(data) - len(data) % UNIT_BYTES])
            previous_end = 0 if last is None or last.is_prefill else _log_end(last)
            valid = _valid_prefix(units, previous_end)
            position += valid * UNIT_BYTES
            if valid:
                last = decode_unit(data, (valid - 1) * UNIT_BYTES)
            if valid * UNIT_BYTES < length:
                break
            block_bytes = _BLOCK_BYTES
    finally:
        os.close(descriptor)
    return position, last


def _valid_prefix(units: QueueUnits, previous_end: int) -> int:
    """How many of the units are valid, up to the first that is not."""
    if len(units) == 0:
        return 0
    log_offsets, sizes = units.log_offsets, units.message_bytes
    ends = np.empty_like(log_offsets)
    ends[0] = previous_end
    ends[1:] = log_offsets[:-1] + sizes[:-1]
    # A fill unit has log offset 0, as the first message may have too.
    ends[1:][(sizes[:-1] == INT32_MAX) & (log_offsets[:-1] == 0)] = 0
    invalid = (log_offsets < ends) | (log_offsets < 0) | (sizes <= 0)
    invalid |= log_offsets > _LOG_OFFSET_MAX
    first = int(invalid.argmax())
    return first if invalid[first] else len(log_offsets)
