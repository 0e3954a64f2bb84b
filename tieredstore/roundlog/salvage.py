"""Rebuilds a lost log from the tables at the ends of its data objects.

Entries and states are lost, and with them the bytes in entries. Bytes that were merged, or were too
large for an entry, are still there: the table of each data object says which bytes of which
segments it has. These bytes are read, checked and appended once more. Objects that loads added are
named in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

import msgspec

from tieredstore.driver.metadata import Change, DeleteNote, PutNote
from tieredstore.driver.object_client import ListedKey, Range
from tieredstore.metadata.tables import describe
from tieredstore.model.errors import MetadataError, SegmentNotFoundError
from tieredstore.model.values import INT64_MAX, Json
from tieredstore.roundlog.adopted import Told, announcement, settle, told_of
from tieredstore.roundlog.draft import Draft, DraftWrite, segment_path
from tieredstore.roundlog.entry import SegmentKey, Whole, begun_of, no_change
from tieredstore.roundlog.frames import Frame, NeedMore, crc32c, decode_tail
from tieredstore.roundlog.layout import ADOPTED, number_of
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.state import LogState

LOST: Final = "lost-log"
"""A note: data objects of earlier epochs belong to a log that was lost."""
UNTOLD: Final = "untold-losses"
"""A note: what was lost with a log, until the rebuild that tells it has ended."""
UNTOLD_MAX: Final = 1_000
APPENDED_BYTES: Final = 32 << 20  # in memory at a time
TAIL_BYTES: Final = 64 << 10  # read of an object first: nearly always more than its table

_NAME: Final = re.compile(r"data/([0-9]{10})-.*?([0-9]+)")
_COLUMNS: Final = ("segment", "position", "length", "offset", "crc")


@dataclass(slots=True)
class Salvaged:
    """The number of segments and bytes found, and what is known to be lost."""

    segment_count: int = 0
    size: int = 0
    losses: list[str] = field(default_factory=list)


class _TableHead(msgspec.Struct):
    segments: list[tuple[str, int, Whole]]


describe(_TableHead)


class _Found(NamedTuple):
    """Bytes of a segment in a data object."""

    position: int
    end: int
    key: str
    offset: int
    crc: int


def may_be_lost(state: LogState) -> bool:
    """Whether objects that the log does not name may belong to a lost earlier log: this log never
    had a segment, or a rebuild of the lost one is not finished."""
    return state.next_number == 1 or LOST in state.tables.notes


def begun_by(log: BrokerLog, epoch: int) -> int:
    """The epoch that this log began in: that of its first entry; 1 if states have replaced that
    entry; the given one if no entry is left.

    Data objects of earlier epochs belong to a lost log. Later ones that no entry names belong to a
    writer of this log that was fenced, or ended, before its entry counted. If states have replaced
    the first entry, all of them do, because its writer had looked for a lost log.
    """
    for listed in log.calls.client.list(log.key("log/")):
        if number := number_of(listed.key.removeprefix(log.prefix)):
            if number > 1:
                return 1
            try:
                return log.entry(listed).epoch
            except (SegmentNotFoundError, MetadataError):
                continue  # released since, or damaged: an audit reports it
    return epoch


def begin(log: BrokerLog) -> None:
    """Note that a log was lost, if this one never had a segment and objects of another exist."""
    state = log.settled()
    with log.guard:
        is_new = state.next_number == 1 and LOST not in state.tables.notes
        epoch = state.epoch
    if not is_new:
        return
    epoch = begun_by(log, epoch)
    if _objects(log, epoch) or log.calls.listed(log.key(f"{ADOPTED}/")):
        log.append([Draft(changes=[PutNote(LOST, log.broker, epoch)])])


def adopted(log: BrokerLog) -> Told:
    """What loads had added to the lost log."""
    return Told() if _lost_below(log) is None else told_of(log.calls, log.prefix)


def finish(log: BrokerLog, told: Told) -> Salvaged:
    """Append what can be found of the lost log, and what loads need besides their segments. After a
    crash, call it again."""
    salvaged = Salvaged(losses=list(told.losses))
    below = _lost_below(log)
    if below is None:
        return salvaged
    found = _tables(log, _objects(log, below), salvaged)
    for key in sorted(found):
        _append(log, key, found[key], salvaged)
    what = f"{salvaged.size} bytes of {salvaged.segment_count} open segments were found"
    salvaged.losses.append(
        f"the log was lost: {what}; bytes in its entries that were not merged yet are gone"
    )
    lost: list[Json] = [*salvaged.losses[-UNTOLD_MAX:]]
    changes: list[Change] = [
        *told.notes,
        DeleteNote(LOST, log.broker),
        PutNote(UNTOLD, log.broker, lost),
    ]
    if told.keys:
        changes.append(announcement(log, told.notes, first=0))
    log.append([Draft(changes=changes)])
    settle(log)
    log.calls.delete(told.keys)  # `settle` has put one object that says all of this
    return salvaged


def untold(log: BrokerLog) -> list[str]:
    """What was lost with a log, and is not told yet: whoever made the log anew may have died."""
    state = log.settled()
    with log.guard:
        noted = state.tables.notes.get(UNTOLD, {}).get(log.broker)
    if noted is None:
        return []
    with no_change(log.prefix):
        return msgspec.json.decode(noted, type=list[str])


def forget_untold(log: BrokerLog) -> None:
    log.append([Draft(changes=[DeleteNote(UNTOLD, log.broker)])])


def _lost_below(log: BrokerLog) -> int | None:
    """Data objects of epochs below this one belong to a lost log; None if no log was lost."""
    state = log.settled()
    with log.guard:
        noted = state.tables.notes.get(LOST, {}).get(log.broker)
    if noted is None:
        return None
    with no_change(log.prefix):
        return msgspec.json.decode(noted, type=int)


def _objects(log: BrokerLog, below: int) -> list[ListedKey]:
    """Data objects of older epochs, the newest first."""
    found = []
    for listed in log.calls.client.list(log.key("data/")):
        name = _NAME.fullmatch(listed.key.removeprefix(log.prefix))
        if name is not None and int(name[1]) < below:
            found.append(((int(name[1]), int(name[2])), listed))
    return [listed for _, listed in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _tables(
    log: BrokerLog, objects: Sequence[ListedKey], salvaged: Salvaged
) -> dict[SegmentKey, list[_Found]]:
    """The rows of all tables, by segment, those of the newest object first."""
    found: dict[SegmentKey, list[_Found]] = {}
    for listed in objects:
        try:
            for key, row in _rows(listed, _table(log, listed)):
                found.setdefault(key, []).append(row)
        except SegmentNotFoundError:
            continue  # deleted since it was listed
        except MetadataError as error:
            salvaged.losses.append(f"a data object cannot be read: {error}")
    return found


def _table(log: BrokerLog, listed: ListedKey) -> Frame:
    wanted = min(TAIL_BYTES, listed.size)
    for _ in range(3):  # `decode_tail` asks for more at most twice
        tail = log.calls.ranges([Range(listed.key, listed.size - wanted, wanted)])[0]
        try:
            return decode_tail(tail, listed.size, name=listed.key)
        except NeedMore as more:
            wanted = min(more.bytes, listed.size)
    raise MetadataError(listed.key, "its table never ends")


def _rows(listed: ListedKey, table: Frame) -> Iterator[tuple[SegmentKey, _Found]]:
    with no_change(listed.key):
        head = msgspec.convert(table.head, _TableHead)
        if not table.columns.keys() >= set(_COLUMNS):
            raise ValueError("its table has other columns")
        keys = [begun_of((0, *each)).key for each in head.segments]
        columns = [table.columns[name].tolist() for name in _COLUMNS]
        rows = list(zip(*columns, strict=True))
    for number, position, length, offset, crc in rows:
        inside = offset >= 0 and length > 0 and offset + length <= table.payload_bytes
        if not inside or not 0 <= number < len(keys) or not 0 <= position <= INT64_MAX - length:
            raise MetadataError(listed.key, "its table says something impossible")
        yield keys[number], _Found(position, position + length, listed.key, offset, crc)


def _append(log: BrokerLog, key: SegmentKey, found: Sequence[_Found], salvaged: Salvaged) -> None:
    """Append the segment's contiguous bytes, beginning where the segment ends in the new log."""
    state = log.settled()
    with log.guard:
        segment = state.segment(key)
        at = 0 if segment is None else segment.size
        is_sealed = segment is not None and segment.sealed is not None
    if is_sealed:
        return
    before = at
    waiting: list[DraftWrite] = []
    sound, wanted = list(found), list(found)
    rows = _following(sound, at)
    # The last bytes that were taken, perhaps before a crash, and where they begin.
    goes_on = at > 0 and any(row.end > at for row in found)
    start, taken = _last_bytes(log, key) if goes_on else (at, b"")
    while (row := next(rows, None)) is not None:
        data = log.calls.ranges([Range(row.key, row.offset, row.end - row.position)])[0]
        is_damaged = crc32c(data) != row.crc
        is_other = not is_damaged and not _agree(start, taken, row.position, data)
        if is_damaged:
            salvaged.losses.append(f"{row.key} is damaged at byte {row.offset}")
        if is_other:
            wanted.remove(row)  # it is of an earlier topic of this name, or was never committed
        if is_damaged or is_other:
            sound.remove(row)
            rows = _following(sound, at)  # what was merged may lie in another object too
            continue
        start, taken = row.position, data
        waiting.append(DraftWrite(key, at, memoryview(data)[at - row.position :]))
        at = row.end
        if at - waiting[0].position >= APPENDED_BYTES:
            _send(log, waiting)
    _send(log, waiting)
    salvaged.segment_count += at > 0
    salvaged.size += at - before
    end = max((row.end for row in wanted), default=at)
    if at < end:
        lost = f"bytes {at} and on are gone, though some up to {end} are there"
        salvaged.losses.append(f"{segment_path(key)}: {lost}")


def _last_bytes(log: BrokerLog, key: SegmentKey) -> tuple[int, bytes]:
    """The last extent of a segment in the new log: its position, and its bytes."""
    state = log.settled()
    with log.guard:
        last = state.places(state.numbers[key])[-1]
    wanted = Range(log.key(last.object), last.offset, last.length)
    return last.position, log.calls.ranges([wanted])[0]


def _agree(first_at: int, first: bytes, second_at: int, second: bytes) -> bool:
    """Whether two parts of a segment have the same bytes where they overlap."""
    start = max(first_at, second_at)
    end = max(start, min(first_at + len(first), second_at + len(second)))
    return first[start - first_at : end - first_at] == second[start - second_at : end - second_at]


def _following(found: Sequence[_Found], at: int) -> Iterator[_Found]:
    """Rows that continue at `at`, then each where the last one ends. Of several rows, the first one
    in `found`, which is the newest: older objects may have what was deleted since, or bytes of a
    fenced writer, which nobody committed."""
    ordered = sorted(enumerate(found), key=lambda each: each[1].position)
    number = 0
    here: list[tuple[int, _Found]] = []
    while True:
        while number < len(ordered) and ordered[number][1].position <= at:
            heappush(here, ordered[number])
            number += 1
        while here and here[0][1].end <= at:
            heappop(here)
        if not here:
            return
        best = here[0][1]
        yield best
        at = best.end


def _send(log: BrokerLog, waiting: list[DraftWrite]) -> None:
    """Append these writes to one segment in one entry."""
    if not waiting:
        return
    draft = Draft(writes=tuple(waiting))
    log.append([draft])
    if draft.error is not None:
        raise draft.error
    waiting.clear()
