"""Reading a run of messages of one queue: its units, then the one log range that they name.

What lives here: `read_run`, `read_messages`, and `ByteSource`, where bytes come from. Which rows of
a run are whole messages is told in `record_rows`. What a reader is told where there is nothing to
read, and caching, are for `access`.
"""

from __future__ import annotations

from typing import Final, Protocol

from tieredstore.codec.end_marks import CODA_BYTES, is_coda
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.record_fields import peek_message_bytes
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.record_rows import (
    RECORD_BYTES_MIN,
    FoundRows,
    NamedRows,
    empty_run,
    sound_bodies,
)
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.messages import MessageRun, SelectedMessage

_SIZE_BYTES: Final = 4
# What was committed is asked for, so these say that the backend has lost bytes.
_GONE: Final = (OffsetOutOfRangeError, SegmentNotFoundError)


class ByteSource(Protocol):
    """Where the bytes of a file come from: its segments, or a cache before them."""

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
    """Consecutive messages from this queue offset on; empty where there is none.

    * At most `count_max` messages, whose records have at most `bytes_max` bytes together; the
      first one is given however large it is. A gap in the queue ends the run, and so does a large
      hole in the log: who goes on at `end_offset` misses nothing.
    * Every row is the message with that queue offset, whole, or it is not in the run. A damaged
      row ends the run before it; as the first one it raises SegmentCorruptError. With
      `checks_bodies` a body with another checksum than its record names is damage too.
    """
    found = _read(file, offset, count_max, bytes_max, source)
    if found is None:
        return empty_run(offset)
    run = found.run()
    if not checks_bodies:
        return run
    sound = sound_bodies(run)
    if not sound[0]:
        raise damaged_body(file, offset, int(run.log_offsets[0]))
    return run if sound.all() else run.head(int(sound.argmin()))


def damaged_body(file: FlatMessageFile, offset: int, log_offset: int) -> SegmentCorruptError:
    """What is said of a message whose body is not the one that was put."""
    reason = f"the body of message {offset} has another checksum than it should"
    return _damage(file.log, log_offset, reason)


def read_messages(
    file: FlatMessageFile,
    offset: int,
    *,
    count_max: int,
    bytes_max: int,
    source: ByteSource = DIRECT,
) -> list[SelectedMessage]:
    """The same messages, each an object with bytes of its own."""
    found = _read(file, offset, count_max, bytes_max, source)
    return [] if found is None else found.messages()


def record_place(file: FlatMessageFile, log_offset: int) -> int:
    """Where to read what a unit names: right there, unless that was a coda that has expired with
    its segment. The record is the first thing of the next one."""
    minimum = file.log.min_offset
    return minimum if log_offset == minimum - CODA_BYTES else log_offset


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
                raise _damage(file.queue, offset * UNIT_BYTES, reason) from error
            rows //= 2  # what is there is served


def _read_named(
    file: FlatMessageFile, rows: NamedRows, bytes_max: int, source: ByteSource
) -> FoundRows:
    first = rows.first_offset
    rows.begin_at(record_place(file, rows.start))
    log_end = _contiguous_end(file.log, rows.start)
    count = rows.reach(log_end, bytes_max)
    if not count:
        reason = f"the unit of message {first} names no record of the log"
        raise _damage(file.queue, first * UNIT_BYTES, reason)
    while True:
        try:
            found = _read_records(file, rows, count, log_end, bytes_max, source)
        except _GONE as error:
            if count == 1:
                reason = f"the record of message {first} is not there"
                raise _damage(file.log, rows.start, reason) from error
            count //= 2
            continue
        if not len(found):
            raise _damage(file.log, rows.start, f"this is not message {first}")
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
        # A size beyond all limits is read only if the record claims it too.
        claimed = peek_message_bytes(source.read(file.log, start, _SIZE_BYTES))
        if claimed not in (end - start, CODA_BYTES):
            return FoundRows(rows, (), b"")
    data = source.read(file.log, start, end - start)
    found = rows.check(data, count)
    if len(found) == count - 1 and is_coda(data, rows.place(count - 1) - start):
        data += source.read(file.log, end, min(CODA_BYTES, log_end - end))
        found = rows.check(data, count)
    return found


def _contiguous_end(log: FlatAppendFile, start: int) -> int:
    """How far the log goes from here on without a gap."""
    end = start
    found = log.segment_at(start)
    while found is not None and found.base <= end < found.end:
        end = found.end
        found = log.segment_at(end)
    return end


def _damage(file: FlatAppendFile, offset: int, reason: str) -> SegmentCorruptError:
    found = file.segment_at(offset)
    if found is None:
        return SegmentCorruptError(f"{file.path}/{file.type.name}", reason, position=offset)
    return SegmentCorruptError(found.segment.path, reason, position=offset - found.base)
