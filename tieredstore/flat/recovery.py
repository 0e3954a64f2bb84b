"""What is done when a queue is opened: how much of it is committed is found out.

What lives here: `recover`. The catalogue is written after the backend and so may be behind it: the
backend is asked, and what it holds counts as far as the queue's units bear it out. Which queues
there are is for `file_store` to say.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import zip_longest

from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnit, decode_unit
from tieredstore.codec.record_fields import (
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    peek_magic,
    peek_message_bytes,
    peek_store_timestamp,
)
from tieredstore.driver.metadata import MetadataStore, Put
from tieredstore.driver.runtime import Clock
from tieredstore.flat import unconfirmed
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.flat.full_segments import gone_from
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentCorruptError, SegmentError

_HEADER_BYTES = 76  # up to and with the store time of a message born on IPv6
_MAGICS = frozenset({MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2})

log = logging.getLogger(__name__)


def recover(
    file: FlatMessageFile, metadata: MetadataStore, clock: Clock, *, read_only: bool = False
) -> None:
    """Take over the segments that the catalogue names, as long as they truly are.

    * The last segments, and those that end before the next one begins, are as long as the backend
      says. Where the catalogue says the same of all, nothing is read. The others are looked for in
      a listing, unless it is read only; those keep their rows, and reading what is gone fails.
    * A queue unit counts if its record is in the log. The log counts up to the record of the last
      unit; bytes behind it are compared with what is written there next.
    * Messages that the catalogue did not name are noted: somebody has to compare them.
    * Where there is less than was committed, what is left can be read, `file.problem` says what is
      missing, and the catalogue keeps the row that shows it.

    Nothing may wait in the file. Raises what the backend and the catalogue raise; the file is then
    as it was before.
    """
    # The queue before the log: what its units name is there by the time the log is asked, even
    # where somebody else is writing.
    queue = _Found.by_asking(file.queue)
    commit_log = _Found.by_asking(file.log)
    problems = [*queue.losses(), *commit_log.losses()]
    if not read_only:
        problems += gone_from(file)
    if any(each.base % UNIT_BYTES for each in queue.segments):
        problems.append("a consume queue segment begins within a unit")
    if not (queue.is_clean and commit_log.is_clean):
        problems += _settle(queue, commit_log)
    following = None
    if not problems and not read_only:
        following = _row_behind_unnamed_bytes(commit_log, now_ms=clock.now_ms())
        _remove_torn_unit(queue)
        changed = [*queue.changed(), *commit_log.changed()]
        grown = [*queue.grown(), *commit_log.grown(but_last=following is not None)]
        if following is not None:
            changed.append(following)
        if changed:
            note = unconfirmed.note_of(file.path, grown, metadata)
            metadata.apply([*map(Put, changed), *note])
    file.log.take_over(commit_log.counted())
    if following is not None:
        file.log.adopt(following)
    file.queue.take_over(queue.counted())
    file.unconfirmed_from = unconfirmed.first_unconfirmed(file.path, metadata)
    file.problem = "; ".join(problems) or None
    if file.problem is not None and not read_only:
        log.error("%s: nothing more is uploaded: %s", file.path, file.problem)


@dataclass(slots=True)
class _Found:
    """What the catalogue and the backend say of one file, and the rows that follow from it."""

    segments: tuple[FlatSegment, ...]  # as the catalogue has them
    backend_bytes: list[int]  # of each; no byte that is the next segment's
    rows: list[SegmentRecord]  # what counts

    @classmethod
    def by_asking(cls, file: FlatAppendFile) -> _Found:
        segments = file.catalogued()
        sizes = []
        for each, following in zip_longest(segments, segments[1:]):
            if following is None:
                sizes.append(each.backend_bytes())
            elif each.end < following.base:
                sizes.append(min(each.backend_bytes(), following.base - each.base))
            else:
                sizes.append(following.base - each.base)
        return cls(segments, sizes, [each.record for each in segments])

    @property
    def is_clean(self) -> bool:
        return self.backend_bytes == [each.record.size for each in self.segments]

    def losses(self) -> list[str]:
        ends = [each.end for each in self.segments]
        for index, following in enumerate(self.segments[1:]):
            ends[index] = min(ends[index], following.base)
        return [
            f"{each.segment.path}: {end - each.base - size} bytes that were committed are gone"
            for each, end, size in zip(self.segments, ends, self.backend_bytes, strict=True)
            if each.base + size < end
        ]

    @property
    def end(self) -> int:
        """Of the last segment in the backend."""
        return self.segments[-1].base + self.backend_bytes[-1] if self.segments else 0

    def read(self, offset: int, length: int, *, whole_bytes: int = 0) -> bytes:
        """The beginning of what lies wholly in one segment, of all that the backend has."""
        index = bisect_right(self.segments, offset, key=_base) - 1
        end = offset + max(length, whole_bytes)
        if index < 0 or end > self.segments[index].base + self.backend_bytes[index]:
            raise SegmentCorruptError("", f"no segment has all up to {end}", position=offset)
        found = self.segments[index]
        return found.segment.read(offset - found.base, length)

    def count(self, index: int, size: int) -> None:
        self.rows[index] = replace(self.rows[index], size=size)

    def counted(self) -> tuple[FlatSegment, ...]:
        pairs = zip(self.segments, self.rows, strict=True)
        return tuple(FlatSegment(each.segment, row) for each, row in pairs)

    def changed(self) -> list[SegmentRecord]:
        pairs = zip(self.segments, self.rows, strict=True)
        return [row for each, row in pairs if row != each.record]

    def grown(self, *, but_last: bool = False) -> list[SegmentRecord]:
        """Rows of the catalogue that name less than what counts now."""
        pairs = list(zip(self.segments, self.rows, strict=True))
        kept = pairs[:-1] if but_last else pairs
        return [each.record for each, row in kept if row.size > each.record.size]


def _settle(queue: _Found, commit_log: _Found) -> list[str]:
    """Decide how much of both files counts; what is wrong with them."""
    problems = []
    last: QueueUnit | None = None
    for index in reversed(range(len(queue.rows))):
        units = queue.backend_bytes[index] // UNIT_BYTES
        if last is None and units:
            named = _units_within(queue, index, units, log_end=commit_log.end)
            if named < units:
                problems.append(f"{units - named} queue units name bytes that the log has not")
            units = named
            if units:
                last = _unit(queue, index, units - 1)
        queue.count(index, units * UNIT_BYTES)
    for index, size in enumerate(commit_log.backend_bytes):
        commit_log.count(index, size)
    if commit_log.rows:
        was, there = commit_log.segments[-1].record, commit_log.backend_bytes[-1]
        named_bytes = last.log_offset + last.message_bytes - was.base_offset if last else 0
        commit_log.count(-1, min(there, max(named_bytes, was.size)))
    if last is not None:
        try:
            _bring_times_up_to_date(queue, commit_log, last)
        except (SegmentError, OffsetOutOfRangeError) as error:
            problems.append(f"the last queue unit names no message: {error}")
    return problems


def _units_within(queue: _Found, index: int, units: int, *, log_end: int) -> int:
    """How many units of a segment name bytes below the end of the log.

    Their records lie in the order of the units; mostly the last one decides.
    """

    def end(number: int) -> int:
        unit = _unit(queue, index, number)
        return unit.log_offset + unit.message_bytes

    if end(units - 1) <= log_end:
        return units
    return bisect_right(range(units), log_end, key=end)


def _unit(queue: _Found, index: int, number: int) -> QueueUnit:
    segment = queue.segments[index].segment
    return decode_unit(segment.read(number * UNIT_BYTES, UNIT_BYTES), path=segment.path)


def _bring_times_up_to_date(queue: _Found, commit_log: _Found, last: QueueUnit) -> None:
    """The last segments end with the last record; a new one begins with its first."""
    newest = _store_time(commit_log, last.log_offset, last.message_bytes)
    for found in (queue, commit_log):
        row, was = found.rows[-1], found.segments[-1].record
        if row.size == was.size or not row.size:
            continue
        oldest = row.begin_timestamp
        if oldest is None and found is queue:
            first = _unit(queue, -1, 0)
            oldest = _store_time(commit_log, first.log_offset, first.message_bytes)
        elif oldest is None:
            oldest = _store_time(commit_log, row.base_offset)
        found.rows[-1] = replace(
            row, begin_timestamp=oldest, end_timestamp=max(newest, row.end_timestamp or newest)
        )


def _store_time(commit_log: _Found, log_offset: int, message_bytes: int = 0) -> int:
    """Of the record that begins here; its size must be this one where it is known."""
    length = min(_HEADER_BYTES, message_bytes or _HEADER_BYTES)
    header = commit_log.read(log_offset, length, whole_bytes=message_bytes)
    is_message = peek_magic(header) in _MAGICS
    if not is_message or message_bytes not in (0, peek_message_bytes(header)):
        raise SegmentCorruptError("", "no message starts here", position=log_offset)
    return peek_store_timestamp(header)


def _row_behind_unnamed_bytes(commit_log: _Found, *, now_ms: int) -> SegmentRecord | None:
    """The row of a next log segment, where the last one holds nothing but bytes nobody named.

    They were sent as its first batch, and their units never were. A next batch that differs could
    not go on in front of them, so they stay where they are, part of the log, and it goes on
    behind them.
    """
    if not commit_log.rows or commit_log.rows[-1].size or not commit_log.backend_bytes[-1]:
        return None
    commit_log.count(-1, commit_log.backend_bytes[-1])
    unnamed = commit_log.rows[-1]
    return SegmentRecord(
        path=unnamed.path,
        type=unnamed.type,
        base_offset=unnamed.end_offset,
        create_timestamp=now_ms,
    )


def _remove_torn_unit(queue: _Found) -> None:
    """Where a queue segment holds no whole unit, a piece of one is in the way of the first."""
    if queue.rows and not queue.rows[-1].size and 0 < queue.backend_bytes[-1] < UNIT_BYTES:
        queue.segments[-1].segment.delete()


def _base(segment: FlatSegment) -> int:
    return segment.base
