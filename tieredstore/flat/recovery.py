"""Recovery of one queue: finds how much of it is committed when it is opened."""

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
_HEADER_BYTES: Final = 76  # up to and with the store time of a message born on IPv6
_UNITS_LOOKED_AT: Final = 64
_BYTES_AT_ONCE: Final = 1 << 18
_UNITS_AT_ONCE: Final = 1 << 12
_LOW_BITS: Final = 0xFFFFFFFF


def recover(
    file: FlatMessageFile, metadata: MetadataStore, clock: Clock, *, read_only: bool = False
) -> None:
    """Take over the segments that the catalogue names, as long as they truly are.

    * The last segments, and those that end before the next one begins, are as long as the backend
      says. Where the catalogue says the same of all, nothing is read. The others are looked for in
      a listing, unless it is read only; those keep their rows, and reading what is gone fails.
    * A queue unit counts if the log has its record, also where the unit itself is damaged: that is
      a problem, and the message keeps its place. The log counts up to the record of the last unit;
      bytes behind it are compared with what is written there next.
    * Units that are zeros, where the catalogue names none, were never promised: a power cut kept
      them from the disk. The queue ends before them, and they are removed.
    * Messages that the catalogue did not name are noted: somebody has to compare them.
    * Where there is less than was committed, what is left can be read, `file.problem` says what is
      missing, and the catalogue keeps the row that shows it.

    Nothing may wait in the file. Raises what the backend and the catalogue raise; the file is then
    as it was before.
    """
    # The queue before the log: what its units name is there by the time the log is asked, even
    # where somebody else is writing.
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
    file.log.take_over(commit_log.counted())
    if following is not None:
        file.log.adopt(following)
    file.queue.take_over(queue.counted())
    note = _unconfirmed(file.path, metadata)
    file.unconfirmed_from = None if note is None else note[0]
    file.problem = "; ".join(problems) or None
    if file.problem is not None and not read_only:
        log.error("%s: nothing more is uploaded: %s", file.path, file.problem)


def confirm(file: FlatMessageFile, metadata: MetadataStore) -> None:
    """The unnamed messages are those of the local store: they count from now on.

    Durably: the local store may let them go after this, and nothing could be compared again.
    """
    metadata.apply(forget_unconfirmed(file.path, metadata))
    file.unconfirmed_from = None


def take_back(file: FlatMessageFile, metadata: MetadataStore) -> None:
    """Unnamed messages do not count: the queue ends where the catalogue had it end.

    No byte is touched. What is appended next is compared with what lies there, so nothing of ours
    is sent twice. The caller is the one that appends to this queue; nothing may wait.
    """
    note = _unconfirmed(file.path, metadata)
    changes = forget_unconfirmed(file.path, metadata)
    for name, base, size, begin, end in () if note is None else note[1]:
        row = metadata.segment(file.path, SegmentType[name], base)
        if row is not None:  # else it was dropped meanwhile
            changes.append(Put(replace(row, size=size, begin_timestamp=begin, end_timestamp=end)))
    metadata.apply(changes)
    file.queue.load()  # before the log: no unit that can be read is without its record
    file.log.load()
    file.unconfirmed_from = None


def forget_unconfirmed(path: str, metadata: MetadataStore) -> list[Change]:
    is_noted = metadata.note(UNCONFIRMED_NOTE, path) is not None
    return [DeleteNote(UNCONFIRMED_NOTE, path)] if is_noted else []


def borne_out(count: int, end_of: Callable[[int], int], log_end: int) -> int:
    """How many of the first `count` units of a segment the log bears out.

    `end_of` gives the end of a unit's record by the number of the unit. Records lie in the order
    of their units, so the last unit usually decides, and a binary search does otherwise.
    """
    if end_of(count - 1) <= log_end:
        return count
    return bisect_right(range(count), log_end, key=end_of)


@dataclass(slots=True)
class _FileState:
    """One file as the catalogue and the backend show it, and the resulting rows."""

    segments: tuple[FlatSegment, ...]  # as the catalogue has them
    backend_bytes: list[int]  # of each; no byte that is the next segment's
    rows: list[SegmentRecord]  # what counts

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
        """Of the last segment in the backend."""
        return self.segments[-1].base + self.backend_bytes[-1] if self.segments else 0

    @property
    def last_base(self) -> int:
        return self.segments[-1].base if self.segments else 0

    def first_unit(self, index: int) -> int:
        """The queue offset with which a segment begins."""
        return self.segments[index].base // UNIT_BYTES

    def room(self, offset: int) -> int:
        """How many bytes the segment with this one has from here on, in the backend."""
        index = bisect_right(self.segments, offset, key=_base) - 1
        if index < 0:
            return 0
        return max(0, self.segments[index].base + self.backend_bytes[index] - offset)

    def head(self, offset: int, length: int = _HEADER_BYTES) -> bytes:
        """What one segment has of these bytes: fewer at its end, none where it has none."""
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
        """Rows of the catalogue that name less than what counts now."""
        pairs = list(zip(self.segments, self.rows, strict=True))
        kept = pairs[:-1] if but_last else pairs
        return [segment.record for segment, row in kept if row.size > segment.record.size]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """A whole record of the log, as its head says."""

    log_offset: int
    message_bytes: int
    queue_offset: int
    store_time: int

    @property
    def end(self) -> int:
        return self.log_offset + self.message_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How many units of a segment count, and up to where the log does.

    `last` is the message of the last of them, None where neither file can say which it is, and
    `first` that of the first, where its unit cannot say.
    """

    count: int
    log_end: int = 0
    last: _Message | None = None
    first: _Message | None = None
    problem: str = ""


def _settle(queue: _FileState, commit_log: _FileState) -> list[str]:
    """Decide how much of both files counts; what is wrong with them."""
    problems = []
    end: _End | None = None
    for index in reversed(range(len(queue.rows))):
        units = queue.backend_bytes[index] // UNIT_BYTES
        if units and (end is None or not end.count):
            end = _end_of_units(queue, index, units, commit_log)
            problems += [end.problem] if end.problem else []
            units = end.count
        queue.count(index, units * UNIT_BYTES)
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
    """End the queue before units that a power cut kept from the disk; whether there are any.

    Only the last segment was being written to, behind what the catalogue names. Where the
    catalogue may be an old one, as that of a reader or of a rebuild, zeros before other units are
    damage: those behind them may have been committed.
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
    """Those of the last segment that begin with zeros, or have no length. A record at 0 is named
    by right, and a prefill is Java's."""
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
    """Whether a unit's tags code ends with zeros, and not by right: sectors end within units."""
    unit = _unit(queue, -1, number)
    if unit.tags_code & _LOW_BITS:
        return False
    named = _named_by(unit, queue.first_unit(-1) + number, commit_log)
    if named is None:
        return False  # a damage, which is told
    record = commit_log.head(named.log_offset, named.message_bytes)
    tags = decode_properties(peek_property_bytes(record)).get(TAGS)
    return unit.tags_code != tags_code(tags)


def _end_of_units(queue: _FileState, index: int, units: int, commit_log: _FileState) -> _End:
    """The end of the last segment that has units.

    The log was durable before the units were written. So a unit that does not name its message is
    damaged, and the records of the log, followed one by one, lead to the message: it keeps its
    place. Only units of records that the log has lost do not count.
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
    """The last message before unit `below` of a segment whose unit names it; only the nearest
    units are looked at, of the segments before too."""
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
    """The message of a unit, if its record is there and says the same."""
    found = _message_at(unit.log_offset, commit_log, commit_log.head)
    is_it = found is not None and (found.message_bytes, found.queue_offset) == (
        unit.message_bytes,
        queue_offset,
    )
    return found if is_it else None


def _message_at(
    at: int, commit_log: _FileState, head_at: Callable[[int], bytes]
) -> _Message | None:
    """The record that begins here, or behind the end mark that lies here; None where none does."""
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
    """Message `first` in the log from here on, the last one with one of these numbers, and whether
    the log ends there.

    A record may be there twice, where nobody named the first one: the later one counts.
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
    """The last segments end with the last record; a new one begins with its first.

    A queue segment may begin with units of messages that have expired: it begins with the log then.
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
    """A segment that is longer than its row has no end that a search may believe, where it is
    damaged, or not the last: then the row is of a copy from before the next one came."""
    for found in (queue, commit_log):
        for index, segment in enumerate(found.segments[:-1] if but_last else found.segments):
            if found.rows[index].size > segment.record.size:
                found.rows[index] = replace(found.rows[index], end_timestamp=None)


def _row_behind_unnamed_bytes(commit_log: _FileState, *, now_ms: int) -> SegmentRecord | None:
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


def _remove_torn_units(queue: _FileState, *, is_torn: bool) -> None:
    """What is no whole unit gives way to the next one: all that a power cut has left blank, and a
    piece of a unit where a segment holds nothing else."""
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
    """What full segments of a queue have lost; those that were seen before are passed over.

    One listing, and none where nothing is new. Only what a listing does not have is asked for by
    itself: it may be older than its writer.
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
    """Each with the next one. Those that end before the next begins are asked for anyway."""
    return [
        (segment, following)
        for segment, following in pairwise(segments)
        if segment.base >= seen_to and segment.end >= following.base
    ]


def _note_of_unconfirmed(
    path: str, rows: Sequence[SegmentRecord], metadata: MetadataStore
) -> list[Change]:
    """A change that remembers rows as the catalogue had them before more was found behind them.

    What an earlier note says stays true until somebody has compared.
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


def _unconfirmed(path: str, metadata: MetadataStore) -> tuple[int, list[list[Any]]] | None:
    """What a note says; None where there is none, or none that makes sense."""
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
