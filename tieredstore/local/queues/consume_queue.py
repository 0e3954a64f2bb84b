"""One consume queue: where each of its messages is in the commit log.

What lives here: `ConsumeQueue`. How its units look is in the codec, how its end is found after a
restart in queue_scan, the search by time in queue_search.

Queue offset k is the unit at byte 20 * k. Where Java is known to go wrong, this does not:

* A message that would leave a hole is refused with PositionMismatchError. Java appends it at the
  current end, and from then on the queue disagrees with the messages' own queue offsets.
* What a cut leaves behind is zeros. Java leaves the old units, and they can come back to life.
* The minimum follows the log through all files. Java looks in the first one only, and until that
  has been deleted its minimum names messages that are not there.
* Units that only fill a place are never messages, also after a restart.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tieredstore.codec.queue_unit import (
    PREFILL_BYTES,
    UNIT_BYTES,
    QueueUnit,
    QueueUnits,
    decode_unit,
    decode_units,
    encode_unit,
)
from tieredstore.local.files.mapped_file_queue import MappedFileQueue
from tieredstore.local.files.mapping import MappedFiles
from tieredstore.local.queues.queue_append import Column, encode_new_units
from tieredstore.local.queues.queue_scan import Found, first_where, scan
from tieredstore.local.queues.queue_search import StoreTime, offset_by_time
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentCorruptError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import Boundary

log = log_of(__name__)


class QueueEnd(NamedTuple):
    """The queue offsets where it begins and ends, and where its newest message ends in the log."""

    first: int
    end: int
    last_log_end: int


class Doubt(NamedTuple):
    """What `distrust` found: the queue offset of the first unit that cannot be believed, how far
    units behind it bear the queue out, and whether any bytes stand there at all."""

    offset: int
    borne_out: QueueEnd | None
    is_followed: bool


class ConsumeQueue:
    """The units of one queue, [min_offset, max_offset) of which are messages that can be read.

    * Puts, cuts and corrections of the minimum come from any thread, one at a time. Reads take no
      lock: what is below `max_offset` does not change.
    * Puts are idempotent: what the queue has already is passed over, so a dispatch that failed or
      was interrupted is simply repeated.
    * Opening writes nothing. What a crash left behind the end is removed before the first put.
    """

    def __init__(self, files: MappedFileQueue, found: Found) -> None:
        self._files = files
        self._min = found.first_message
        self._max = found.end
        self._last_log_end = found.last_log_end
        self._tidy = not files.files
        self._guard = threading.RLock()
        for file in files.files_from(self._max * UNIT_BYTES):
            file.wrote = max(0, self._max * UNIT_BYTES - file.start_offset)

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], *, file_bytes: int, files: MappedFiles
    ) -> ConsumeQueue:
        """Find the end of what is there; an unknown directory is an empty queue."""
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
        """The queue offset where the first file starts: it moves only when files go."""
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
        self, queue_offset: int, log_offsets: Column, message_bytes: Column, tags_codes: Column
    ) -> int:
        """Append consecutive messages, the first of which has this queue offset; how many were new.

        Messages whose record ends at or below `last_log_end` are here already, and so are those
        below `max_offset`: both are passed over. A queue without any message begins where its
        first one says, with units before it that fill its file.

        Raises PositionMismatchError where messages are missing in between, in units, with nothing
        written: what lies between must be put first.
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
        self._tidy = False  # until all of it has been written
        at, end = self._max * UNIT_BYTES, start * UNIT_BYTES
        if start != self._max:  # no message is there: the queue begins anew
            same_file = self._files.find(at) is self._files.find(end) is not None
            if start < self._max or not same_file:
                self._files.destroy()
                at = end - end % self._files.file_bytes
            # Before the bytes: a reader never sees that a fill is a message.
            self._max = min(self._max, start)
            self._min = start
            data = PREFILL_BYTES * ((end - at) // UNIT_BYTES) + data
        self._files.append(data, start_offset=at)
        self._max = (at + len(data)) // UNIT_BYTES
        self._tidy = True

    def unit(self, offset: int) -> QueueUnit:
        """The unit of one message; OffsetOutOfRangeError where there is none."""
        self._check(offset, self._max - 1)
        data = self._files.read(offset * UNIT_BYTES, UNIT_BYTES)
        return decode_unit(self._found(offset, data))

    def units(self, offset: int, count: int) -> QueueUnits:
        """Up to `count` units from `offset` on, across files; none at `max_offset`."""
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
        return decode_units(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def offset_by_time(
        self,
        timestamp: int,
        boundary: Boundary,
        *,
        store_time: StoreTime,
        min_log_offset: int = 0,
        unit: Callable[[int], QueueUnit | None] | None = None,
    ) -> int:
        """The queue offset to start from for a time: see queue_search for what is meant.

        Units are taken as they are, unless `unit` says what each must be, or None of a damaged one.
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
        """Leave out the messages whose record has gone from the log; the new minimum."""
        with self._guard:
            self._min = self.first_from(min_log_offset)
            return self._min

    def first_from(self, min_log_offset: int) -> int:
        """The first message whose record has not gone from the log, or `max_offset`."""
        minimum, maximum = self._min, self._max
        if self._last_log_end <= min_log_offset and self._last_log_end:
            return maximum
        if self._is_from(minimum, min_log_offset) and self._is_from(
            min(minimum + 1, maximum - 1), min_log_offset
        ):
            return minimum  # the usual case
        return first_where(minimum, maximum, lambda offset: self._is_from(offset, min_log_offset))

    def delete_before(self, min_log_offset: int) -> int:
        """Delete files all of whose messages have gone from the log, never the last; how many."""
        self.correct_min_offset(min_log_offset)
        with self._guard:
            return len(self._files.delete_before(self._min * UNIT_BYTES))

    def truncate(self, log_offset: int) -> int:
        """Drop the messages whose record starts at or behind `log_offset`; how many.

        Units that fill a place stay: they keep the numbers of the messages to come.
        """
        with self._guard:
            if self._last_log_end <= log_offset:
                return 0  # nothing is looked at: opening a store comes here for every queue
            end = first_where(
                self._min, self._max, lambda offset: self._is_from(offset, log_offset)
            )
            dropped = self._max - end
            if dropped:
                self._end_at(end)
                self._files.truncate_dirty(end * UNIT_BYTES)
                self._tidy = True
            return dropped

    def distrust(self, agrees: Callable[[int, QueueUnit], bool], log_min: int) -> Doubt | None:
        """Let the queue end behind the last unit that agrees with the log; None if it does so.

        Units carry no checksum: one flipped bit ends a queue in its middle, or makes it end where
        it does not. Units behind that end which agree tell that it went on. Nothing is written:
        what is made again from the log overwrites what stands there.
        """
        with self._guard:
            end = kept = self._max
            while kept > self.first_kept:
                unit = self._peek_any(kept - 1)
                if unit is not None and (
                    unit.is_prefill or unit.log_offset < log_min or agrees(kept - 1, unit)
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
        """How far the units behind `end` show that the queue goes on; whether anything is there."""
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

    def _end_at(self, end: int) -> None:
        self._max = end
        self._min = min(self._min, end)
        last = self._peek_any(end - 1)
        self._last_log_end = (
            0 if last is None or last.is_prefill else last.log_offset + last.message_bytes
        )
        self._tidy = False

    def mend(self, offset: int, unit: QueueUnit) -> None:
        """Replace a damaged unit, durably; where the store is only read, nothing is written."""
        with self._guard:
            file = self._files.find(offset * UNIT_BYTES)
            if self._files.read_only or file is None or not self._min <= offset < self._max:
                return
            data = encode_unit(
                log_offset=unit.log_offset,
                message_bytes=unit.message_bytes,
                tags_code=unit.tags_code,
            )
            file.write_at(offset * UNIT_BYTES - file.start_offset, data)
            file.flush()

    def place_of(self, offset: int) -> tuple[str, int]:
        """The file of a unit and the position in it."""
        file = self._files.find(offset * UNIT_BYTES)
        if file is None:
            return self._files.directory, offset * UNIT_BYTES
        return file.path, offset * UNIT_BYTES - file.start_offset

    def flush(self) -> None:
        """Make durable what was put before, by fdatasync."""
        self._files.flush()

    def close(self) -> None:
        """Release the files; nothing is synced. Idempotent."""
        self._files.close()

    def destroy(self) -> None:
        """Delete the queue and its directory, oldest files first: a crash leaves a valid queue."""
        with self._guard:
            self._min = self._max = self._last_log_end = 0
            self._files.destroy()

    def _check(self, offset: int, maximum: int) -> None:
        if not self._min <= offset <= maximum:
            raise OffsetOutOfRangeError(
                self._files.directory, offset=offset, minimum=self._min, maximum=maximum
            )

    def _found(self, offset: int, data: bytes | None) -> bytes:
        if data is None:  # it may have been deleted just now, perhaps by another process
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
