"""Recovers a queue when it is opened: finds how much of it is committed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any, Final

import numpy as np

from tieredstore.codec.message import CODA_BYTES, is_blank
from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnit, decode_unit, view_units
from tieredstore.codec.record import (
    MESSAGE_MAGICS,
    RECORD_BYTES_MIN,
    TAGS,
    decode_properties,
    peek_log_offset,
    peek_magic,
    peek_message_bytes,
    peek_property_bytes,
    peek_queue_offset,
    peek_store_timestamp,
    tags_code,
)
from tieredstore.driver.metadata import Change, DeleteNote, MetadataStore, Put, PutNote
from tieredstore.driver.runtime import Clock
from tieredstore.flat.append_file import FlatAppendFile, FlatSegment
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentCorruptError, SegmentError
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentRecord, SegmentType

log = log_of(__name__)

UNCONFIRMED_NOTE: Final = "unconfirmed"
_FIELDS: Final = 5  # of a row in a note
_HEADER_BYTES: Final = 76  # up to and including the store time of a message born on IPv6
_UNITS_LOOKED_AT: Final = 64
_BYTES_AT_ONCE: Final = 1 << 18
_UNITS_AT_ONCE: Final = 1 << 12
_LOW_BITS: Final = 0xFFFFFFFF


def recover(
    file: FlatMessageFile, metadata: MetadataStore, clock: Clock, *, read_only: bool = False
) -> None:
    """Take over the segments that the catalogue names, with their true lengths.

    * The backend is asked for the lengths of the last segments, and of those that end before the
      next one begins. If the catalogue has the same lengths, nothing is read. Other segments keep
      their rows; unless `read_only`, a listing must have them. Reading bytes that are gone fails.
    * A queue unit counts if the log has its record. If the unit itself is damaged, that is a
      problem, but the message keeps its place. The log counts up to the record of the last unit;
      bytes after it are compared with what is written there next.
    * Units of zeros beyond those that the catalogue names were never acknowledged: a power cut kept
      them from the disk. The queue ends before them, and they are removed.
    * Messages that the catalogue does not name are noted, because somebody has to compare them.
    * If there is less than was committed, the rest can still be read, `file.problem` says what is
      missing, and the catalogue keeps the row that shows it.

    No bytes may wait in the file. Raises what the backend and the catalogue raise; the file is then
    unchanged.
    """
    # Ask for the queue before the log: then the log has all records that the units name, even if
    # somebody else is writing.
    queue = _FileState.by_asking(file.queue)
    commit_log = _FileState.by_asking(file.log)
    problems = [*queue.losses(), *commit_log.losses()]
    if not read_only:
        problems += _gone_from(file)
    if any(segment.base % UNIT_BYTES for segment in queue.segments):
        problems.append("a consume queue segment begins within a unit")
    is_torn = False
    if not (queue.is_clean and commit_log.is_clean):
        is_torn = _leave_out_unwritten(queue, commit_log, read_only=read_only)
        problems += _settle(queue, commit_log)
    following = None
    if not problems and not read_only:
        following = _row_behind_unnamed_bytes(commit_log, now_ms=clock.now_ms())
        _remove_torn_units(queue, is_torn=is_torn)
        changed = [*queue.changed(), *commit_log.changed()]
        grown = [*queue.grown(), *commit_log.grown(but_last=following is not None)]
        if following is not None:
            changed.append(following)
        if changed:
            noted = _note_of_unconfirmed(file.path, grown, metadata)
            metadata.apply([*map(Put, changed), *noted])
    file.unconfirmed_from = _unconfirmed_from(file.path, metadata)  # before these messages count
    file.log.take_over(commit_log.counted())
    if following is not None:
        file.log.adopt(following)
    file.queue.take_over(queue.counted())
    file.problem = "; ".join(problems) or None
    if file.problem is not None and not read_only:
        log.error("%s: nothing more is uploaded: %s", file.path, file.problem)


def load_unread(file: FlatMessageFile, metadata: MetadataStore) -> None:
    """Take over what the catalogue names, without asking the backend."""
    file.unconfirmed_from = _unconfirmed_from(file.path, metadata)
    file.log.load()
    file.queue.load()


def confirm(file: FlatMessageFile, metadata: MetadataStore) -> None:
    """Make unnamed messages count, because they are those of the local store.

    This is durable, as the local store may delete them afterwards: then no comparison is possible.
    """
    metadata.apply(forget_unconfirmed(file.path, metadata))
    file.unconfirmed_from = None


def take_back(file: FlatMessageFile, metadata: MetadataStore) -> None:
    """Make unnamed messages not count: the queue ends where the catalogue had it end.

    No byte is changed. What is appended next is compared with the bytes there, so nothing of ours
    is sent twice. Only the thread that appends to this queue may call it; no bytes may wait.
    """
    note = _unconfirmed(file.path, metadata)
    changes = forget_unconfirmed(file.path, metadata)
    for name, base, size, begin, end in () if note is None else note[1]:
        row = metadata.segment(file.path, SegmentType[name], base)
        if row is not None:  # otherwise the segment was dropped meanwhile
            changes.append(Put(replace(row, size=size, begin_timestamp=begin, end_timestamp=end)))
    metadata.apply(changes)
    file.queue.load()  # before the log, so that every unit that can be read has its record
    file.log.load()
    file.unconfirmed_from = None


def forget_unconfirmed(path: str, metadata: MetadataStore) -> list[Change]:
    is_noted = metadata.note(UNCONFIRMED_NOTE, path) is not None
    return [DeleteNote(UNCONFIRMED_NOTE, path)] if is_noted else []


def borne_out(count: int, end_of: Callable[[int], int], log_end: int) -> int:
    """How many of the first `count` units of a segment have their records in the log.

    `end_of` returns the end of a unit's record, given the unit's number. Records lie in the order
    of their units, so the last unit usually decides; otherwise a binary search does.
    """
    if end_of(count - 1) <= log_end:
        return count
    return bisect_right(range(count), log_end, key=end_of)


@dataclass(slots=True)
class _FileState:
    """One file as the catalogue and the backend show it, and the resulting rows."""

    segments: tuple[FlatSegment, ...]  # as the catalogue has them
    backend_bytes: list[int]  # of each segment, without bytes that belong to the next one
    rows: list[SegmentRecord]  # with the sizes that count

    @classmethod
    def by_asking(cls, file: FlatAppendFile) -> _FileState:
        segments = file.catalogued()
        sizes = []
        for segment, following in zip_longest(segments, segments[1:]):
            if following is None:
                sizes.append(segment.backend_bytes())
            elif segment.end < following.base:
                sizes.append(min(segment.backend_bytes(), following.base - segment.base))
            else:
                sizes.append(following.base - segment.base)
        return cls(segments, sizes, [segment.record for segment in segments])

    @property
    def is_clean(self) -> bool:
        return self.backend_bytes == [segment.record.size for segment in self.segments]

    def losses(self) -> list[str]:
        ends = [segment.end for segment in self.segments]
        for index, following in enumerate(self.segments[1:]):
            ends[index] = min(ends[index], following.base)
        return [
            f"{known.segment.path}: {end - known.base - size} bytes that were committed are gone"
            for known, end, size in zip(self.segments, ends, self.backend_bytes, strict=True)
            if known.base + size < end
        ]

    @property
    def end(self) -> int:
        """The end of the last segment in the backend."""
        return self.segments[-1].base + self.backend_bytes[-1] if self.segments else 0

    @property
    def last_base(self) -> int:
        return self.segments[-1].base if self.segments else 0

    def first_unit(self, index: int) -> int:
        """The queue offset with which a segment begins."""
        return self.segments[index].base // UNIT_BYTES

    def named_before_next(self, index: int) -> int:
        """How much of a segment that is not the last one the catalogue names. What is lost of it
        must not count as a part of the gap behind it, which readers step over."""
        if index + 1 == len(self.segments):
            return 0
        row = self.segments[index].record
        return min(row.size, self.segments[index + 1].base - row.base_offset)

    def room(self, offset: int) -> int:
        """How many bytes the segment at this offset has from there on, in the backend."""
        index = bisect_right(self.segments, offset, key=_base) - 1
        if index < 0:
            return 0
        return max(0, self.segments[index].base + self.backend_bytes[index] - offset)

    def head(self, offset: int, length: int = _HEADER_BYTES) -> bytes:
        """These bytes, from one segment only: fewer at its end, none beyond it."""
        length = min(length, self.room(offset))
        if not length:
            return b""
        found = self.segments[bisect_right(self.segments, offset, key=_base) - 1]
        return found.segment.read(offset - found.base, length)

    def count(self, index: int, size: int) -> None:
        self.rows[index] = replace(self.rows[index], size=size)

    def counted(self) -> tuple[FlatSegment, ...]:
        pairs = zip(self.segments, self.rows, strict=True)
        return tuple(FlatSegment(segment.segment, row) for segment, row in pairs)

    def changed(self) -> list[SegmentRecord]:
        pairs = zip(self.segments, self.rows, strict=True)
        return [row for segment, row in pairs if row != segment.record]

    def grown(self, *, but_last: bool = False) -> list[SegmentRecord]:
        """The catalogue's rows whose sizes are less than what counts now."""
        pairs = list(zip(self.segments, self.rows, strict=True))
        kept = pairs[:-1] if but_last else pairs
        return [segment.record for segment, row in kept if row.size > segment.record.size]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """A whole record of the log, as its header describes it."""

    log_offset: int
    message_bytes: int
    queue_offset: int
    store_time: int

    @property
    def end(self) -> int:
        return self.log_offset + self.message_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How many units of a segment count, and where the part of the log that counts ends.

    `last` is the message of the last of these units, None if neither file can say which it is.
    `first` is the message of the segment's first unit, if the unit itself cannot name it.
    """

    count: int
    log_end: int = 0
    last: _Message | None = None
    first: _Message | None = None
    problem: str = ""


def _settle(queue: _FileState, commit_log: _FileState) -> list[str]:
    """Decide how much of both files counts; return what is wrong with them."""
    problems = []
    end: _End | None = None
    for index in reversed(range(len(queue.rows))):
        units = queue.backend_bytes[index] // UNIT_BYTES
        if units and (end is None or not end.count):
            end = _end_of_units(queue, index, units, commit_log)
            problems += [end.problem] if end.problem else []
            units = end.count
        queue.count(index, max(units * UNIT_BYTES, queue.named_before_next(index)))
    for index, size in enumerate(commit_log.backend_bytes):
        commit_log.count(index, size)
    named_end = 0 if end is None or not end.count else end.log_end
    if commit_log.rows:
        was, there = commit_log.segments[-1].record, commit_log.backend_bytes[-1]
        commit_log.count(-1, min(there, max(named_end - was.base_offset, was.size)))
    _forget_times(queue, commit_log, but_last=True)
    if end is not None and end.last is not None:
        try:
            _bring_times_up_to_date(queue, commit_log, end.first, end.last)
        except (SegmentError, OffsetOutOfRangeError) as error:
            problems.append(f"the time of its first message cannot be read: {error}")
            _forget_times(queue, commit_log)
    elif problems:
        _forget_times(queue, commit_log)
    return problems


def _leave_out_unwritten(queue: _FileState, commit_log: _FileState, *, read_only: bool) -> bool:
    """End the queue before units that a power cut kept from the disk; return whether there are any.

    They can only be in the last segment, after the units that the catalogue names. The catalogue of
    a reader or a rebuild (`read_only`) may be old: then zeros before other units are damage, as
    those units may have been committed.
    """
    if not queue.segments:
        return False
    known = queue.segments[-1].record.size // UNIT_BYTES
    count = there = queue.backend_bytes[-1] // UNIT_BYTES
    if read_only:
        while count > known and not _unit(queue, -1, count - 1).message_bytes:
            count -= 1
    else:
        count = next(_blank_units(queue, commit_log, known, there), there)
        if count > known and _lacks_its_tags(queue, count - 1, commit_log):
            count -= 1
    if count >= there:
        return False
    path = queue.segments[-1].segment.path
    log.warning("%s: a power cut took %d units that were never acknowledged", path, there - count)
    queue.backend_bytes[-1] = count * UNIT_BYTES
    return True


def _blank_units(queue: _FileState, commit_log: _FileState, first: int, end: int) -> Iterator[int]:
    """The numbers of units of the last segment that have log offset 0 or no length. Not those that
    name a record which really lies at 0, nor prefills, which Java writes."""
    segment = queue.segments[-1].segment
    for start in range(first, end, _UNITS_AT_ONCE):
        count = min(_UNITS_AT_ONCE, end - start)
        units = view_units(segment.read(start * UNIT_BYTES, count * UNIT_BYTES), path=segment.path)
        blank = (units["log_offset"] == 0) | (units["message_bytes"] == 0)
        for number in (start + np.flatnonzero(blank)).tolist():
            unit = _unit(queue, -1, number)
            is_named = _named_by(unit, queue.first_unit(-1) + number, commit_log) is not None
            if not (is_named or unit.is_prefill):
                yield number


def _lacks_its_tags(queue: _FileState, number: int, commit_log: _FileState) -> bool:
    """Whether a unit's tags code ends with zeros, unlike that of its message: a disk sector can end
    within a unit."""
    unit = _unit(queue, -1, number)
    if unit.tags_code & _LOW_BITS:
        return False
    named = _named_by(unit, queue.first_unit(-1) + number, commit_log)
    if named is None:
        return False  # damage, which is reported elsewhere
    record = commit_log.head(named.log_offset, named.message_bytes)
    tags = decode_properties(peek_property_bytes(record)).get(TAGS)
    return unit.tags_code != tags_code(tags)


def _end_of_units(queue: _FileState, index: int, units: int, commit_log: _FileState) -> _End:
    """The end of the last segment that has units.

    The log was durable before the units were written. So a unit that does not name its message is
    damaged: following the log's records one by one finds the message, which keeps its place. Only
    units whose records the log has lost do not count.
    """
    final = queue.first_unit(index) + units - 1
    last = _named_by(_unit(queue, index, units - 1), final, commit_log)
    if last is not None:
        return _End(count=units, log_end=last.end, last=last)

    def end_of(number: int) -> int:
        unit = _unit(queue, index, number)
        return unit.log_offset + unit.message_bytes

    within = borne_out(units, end_of, commit_log.end)
    beyond = "queue units name bytes that the log does not have"
    sound = _last_sound(queue, index, min(within, units - 1), commit_log)
    if sound is None and not within and units > 1:
        return _End(count=0, problem=f"{units} {beyond}")
    start = commit_log.last_base if sound is None else sound.end
    after = -1 if sound is None else sound.queue_offset
    numbers = range(max(0, after + 1), final + 1)
    at_first, found, is_cut = _follow_records(commit_log, start, queue.first_unit(index), numbers)
    reached = found or sound
    behind = queue.first_unit(index) if reached is None else reached.queue_offset + 1
    if found is not None and behind > final:
        first = queue.first_unit(index) if sound is None else sound.queue_offset + 1
        text = f"messages {first} to {final} are in the log, and their queue units are damaged"
        return _End(count=units, log_end=found.end, last=found, first=at_first, problem=text)
    if not is_cut:
        text = f"the last queue unit names no message: {behind} to {final} cannot be found"
        return _End(count=units, log_end=commit_log.end, problem=text)
    count = max(0, behind - queue.first_unit(index))
    log_end = 0 if reached is None else reached.end
    if count < within:
        unit = _unit(queue, index, count)
        follows = unit.log_offset in (log_end, log_end - CODA_BYTES)
        if follows and unit.message_bytes <= commit_log.room(unit.log_offset):
            last_there = queue.first_unit(index) + within - 1
            text = f"the records of messages {behind} to {last_there} are there, and damaged"
            return _End(count=within, log_end=end_of(within - 1), problem=text)
    return _End(count=count, log_end=log_end, last=reached, problem=f"{units - count} {beyond}")


def _last_sound(
    queue: _FileState, index: int, below: int, commit_log: _FileState
) -> _Message | None:
    """The last message before unit `below` that its unit names. Only the nearest units are read,
    those of earlier segments included."""
    looked_at = 0
    while index >= 0 and looked_at < _UNITS_LOOKED_AT:
        count = min(below, _UNITS_LOOKED_AT - looked_at)
        for number in reversed(range(below - count, below)):
            offset = queue.first_unit(index) + number
            found = _named_by(_unit(queue, index, number), offset, commit_log)
            if found is not None:
                return found
        looked_at += count
        index -= 1
        below = queue.backend_bytes[index] // UNIT_BYTES if index >= 0 else 0
    return None


def _unit(queue: _FileState, index: int, number: int) -> QueueUnit:
    segment = queue.segments[index].segment
    return decode_unit(segment.read(number * UNIT_BYTES, UNIT_BYTES), path=segment.path)


def _named_by(unit: QueueUnit, queue_offset: int, commit_log: _FileState) -> _Message | None:
    """The message that a unit names, if its record is there and agrees."""
    found = _message_at(unit.log_offset, commit_log, commit_log.head)
    is_it = found is not None and (found.message_bytes, found.queue_offset) == (
        unit.message_bytes,
        queue_offset,
    )
    return found if is_it else None


def _message_at(
    at: int, commit_log: _FileState, head_at: Callable[[int], bytes]
) -> _Message | None:
    """The record that begins here, or after an end mark here; None if there is none."""
    head = head_at(at)
    if is_blank(head):
        at += CODA_BYTES
        head = head_at(at)
    if len(head) < _HEADER_BYTES or peek_magic(head) not in MESSAGE_MAGICS:
        return None
    size = peek_message_bytes(head)
    is_its_place = peek_log_offset(head) in (at, at - CODA_BYTES)
    if size < RECORD_BYTES_MIN or size > commit_log.room(at) or not is_its_place:
        return None
    return _Message(
        log_offset=at,
        message_bytes=size,
        queue_offset=peek_queue_offset(head),
        store_time=peek_store_timestamp(head),
    )


def _follow_records(
    commit_log: _FileState, at: int, first: int, numbers: range
) -> tuple[_Message | None, _Message | None, bool]:
    """Follow the log's records from here on. Returns message `first`, the last message with one of
    these numbers, and whether the log ends after the records that were followed.

    A record may be there twice, if nobody named the first one: the later one counts.
    """
    piece, start = b"", at

    def head_at(at: int) -> bytes:
        nonlocal piece, start
        if not start <= at <= start + len(piece) - _HEADER_BYTES:
            piece, start = commit_log.head(at, _BYTES_AT_ONCE), at
        return piece[at - start : at - start + _HEADER_BYTES]

    at_first = last = None
    while (found := _message_at(at, commit_log, head_at)) is not None:
        at = found.end
        if found.queue_offset in numbers:
            last = found
        if found.queue_offset == first:
            at_first = found
    head = head_at(at)
    is_torn = (
        len(head) == _HEADER_BYTES
        and peek_magic(head) in MESSAGE_MAGICS
        and peek_log_offset(head) == at
    )
    return at_first, last, is_torn or commit_log.end - at < RECORD_BYTES_MIN


def _bring_times_up_to_date(
    queue: _FileState, commit_log: _FileState, first: _Message | None, last: _Message
) -> None:
    """Set the end times of the last segments from the last record, and the begin time of a new
    segment from its first record.

    If a queue segment begins with units of expired messages, its begin time is that of the log.
    """
    for found in (queue, commit_log):
        row, was = found.rows[-1], found.segments[-1].record
        if row.size == was.size or not row.size:
            continue
        oldest = row.begin_timestamp
        if oldest is None and found is queue and first is not None:
            oldest = first.store_time
        elif oldest is None:
            place = _unit(queue, -1, 0).log_offset if found is queue else row.base_offset
            place = max(place, commit_log.segments[0].base)
            message = _message_at(place, commit_log, commit_log.head)
            if message is None:
                raise SegmentCorruptError("", "no message starts here", position=place)
            oldest = message.store_time
        newest = max(last.store_time, row.end_timestamp or last.store_time)
        found.rows[-1] = replace(row, begin_timestamp=oldest, end_timestamp=newest)


def _forget_times(queue: _FileState, commit_log: _FileState, *, but_last: bool = False) -> None:
    """Remove the end times of segments that are longer than their rows: searches must not believe
    them if the segment is damaged, or is not the last one and its row comes from an older copy of
    the catalogue."""
    for found in (queue, commit_log):
        for index, segment in enumerate(found.segments[:-1] if but_last else found.segments):
            if found.rows[index].size > segment.record.size:
                found.rows[index] = replace(found.rows[index], end_timestamp=None)


def _row_behind_unnamed_bytes(commit_log: _FileState, *, now_ms: int) -> SegmentRecord | None:
    """The row of a next log segment, if the last one holds only bytes that no unit names.

    They were sent as its first batch, but their units never were. The next batch may differ, and
    cannot be written over them. So they stay, as part of the log, which continues after them.
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


def _remove_torn_units(queue: _FileState, *, is_torn: bool) -> None:
    """Make room for the next unit: remove units that a power cut has left blank, and a part of a
    unit if its segment holds nothing else."""
    if not queue.rows:
        return
    row, segment = queue.rows[-1], queue.segments[-1].segment
    if not row.size and (is_torn or 0 < queue.backend_bytes[-1] < UNIT_BYTES):
        segment.delete()
    elif is_torn:
        segment.cut(row.size)


def _base(segment: FlatSegment) -> int:
    return segment.base


def _gone_from(file: FlatMessageFile) -> list[str]:
    """What full segments of a queue have lost. Segments that were found in place before are
    skipped.

    Takes one listing, none if there are no new segments. A listing may lag behind the writer, so
    segments that are missing or short there are asked for one by one.
    """
    new = [
        (part, _unseen(part.catalogued(), file.seen_to.get(part.type, 0)))
        for part in (file.queue, file.log)
    ]
    if not any(segments for _, segments in new):
        return []
    listed = file.log.provider.list(file.path)
    sizes = {(segment.type, segment.base): segment.size for segment in listed}
    lost = []
    for part, segments in new:
        for segment, following in segments:
            wanted = min(segment.end, following.base) - segment.base
            there = sizes.get((part.type, segment.base), 0)
            if there < wanted:
                there = segment.backend_bytes()
            if there < wanted:
                gone = f"{wanted - there} bytes that were committed are gone"
                lost.append(f"{segment.segment.path}: {gone}")
        if segments and not lost:
            file.seen_to[part.type] = segments[-1][1].base
    return lost


def _unseen(
    segments: tuple[FlatSegment, ...], seen_to: int
) -> list[tuple[FlatSegment, FlatSegment]]:
    """New segments, each with the next one. Not those that end before the next one begins: their
    lengths are asked for anyway."""
    return [
        (segment, following)
        for segment, following in pairwise(segments)
        if segment.base >= seen_to and segment.end >= following.base
    ]


def _note_of_unconfirmed(
    path: str, rows: Sequence[SegmentRecord], metadata: MetadataStore
) -> list[Change]:
    """The change that notes rows as the catalogue had them before more bytes were found.

    An earlier note remains valid until somebody has compared the messages.
    """
    ends = [row.end_offset for row in rows if row.type is SegmentType.CONSUME_QUEUE]
    if not ends:
        return []
    first = min(ends) // UNIT_BYTES
    before = {(row.type.name, row.base_offset): _fields(row) for row in rows}
    earlier = _unconfirmed(path, metadata)
    if earlier is not None:
        first = min(first, earlier[0])
        before.update(((fields[0], fields[1]), fields) for fields in earlier[1])
    return [PutNote(UNCONFIRMED_NOTE, path, {"from": first, "rows": list(before.values())})]


def _unconfirmed_from(path: str, metadata: MetadataStore) -> int | None:
    note = _unconfirmed(path, metadata)
    return None if note is None else note[0]


def _unconfirmed(path: str, metadata: MetadataStore) -> tuple[int, list[list[Any]]] | None:
    """The contents of the note; None if there is none, or it makes no sense."""
    note: Any = metadata.note(UNCONFIRMED_NOTE, path)
    if note is None:
        return None
    try:
        rows = [[SegmentType[name].name, *map(_whole, rest)] for name, *rest in note["rows"]]
        if all(len(row) == _FIELDS and None not in row[:3] for row in rows):
            return int(note["from"]), rows
    except (KeyError, TypeError, ValueError):
        pass
    log.warning("%s: the catalogue has a note that makes no sense: %r", path, note)
    return None


def _whole(field: Any) -> int | None:
    return None if field is None else int(field)


def _fields(row: SegmentRecord) -> list[Any]:
    return [row.type.name, row.base_offset, row.size, row.begin_timestamp, row.end_timestamp]
