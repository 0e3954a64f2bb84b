"""Callers' drafts, and the entry that combines them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from tieredstore.driver.metadata import Change, DeleteSegment, Put
from tieredstore.driver.segment import Buffer
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import (
    PositionMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentRecord
from tieredstore.roundlog.entry import (
    NO_ROW,
    UNKNOWN_TIME,
    Begun,
    Entry,
    Extents,
    Sealed,
    SegmentKey,
)
from tieredstore.roundlog.frames import crc32c, encode_table
from tieredstore.roundlog.state import LogState

PIECE_BYTES_MAX: Final = 8 << 20  # of one extent: as much as one ranged read
DATA_BYTES_MAX: Final = 32 << 20  # of a data object of a round


class DraftWrite(NamedTuple):
    """Bytes to append to a segment, which they may begin."""

    key: SegmentKey
    position: int
    data: Buffer


@dataclass(slots=True, kw_only=True)
class Draft:
    """One caller's part of an entry: the entry contains all of it, or nothing.

    `extents`, which lie in `objects`, replace those of the entries `merged`. `sealed` identifies
    segments by number: one that was deleted meanwhile is skipped.
    """

    writes: Sequence[DraftWrite] = ()
    rows: Sequence[SegmentRecord] = ()
    changes: Sequence[Change] = ()
    sealed: Sequence[Sealed] = ()
    taken: Sequence[tuple[SegmentKey, Sealed]] = ()
    deleted: Sequence[SegmentKey] = ()
    merged: Sequence[int] = ()
    extents: Extents = field(default_factory=Extents.none)
    objects: Sequence[str] = ()
    dropped: Sequence[str] = ()
    error: TieredStoreError | None = None  # why no entry contains it

    @property
    def payload_bytes(self) -> int:
        return sum(len(write.data) for write in self.writes)


class Piece(NamedTuple):
    """Part of a write, and where it lies: in the entry itself if `object` is 0."""

    length: int
    object: int
    offset: int
    crc: int


class TableRow(NamedTuple):
    """Bytes of a segment that lie in a data object."""

    key: SegmentKey
    position: int
    length: int
    offset: int
    crc: int


@dataclass(slots=True)
class DataObject:
    """Bytes of segments, one after the other, and the table that identifies them if the log is
    lost."""

    parts: list[Buffer] = field(default_factory=list)
    rows: list[TableRow] = field(default_factory=list)

    def encoded(self) -> bytes:
        crc = 0
        for part in self.parts:
            crc = crc32c(part, crc)
        size = sum(len(part) for part in self.parts)
        return b"".join((*self.parts, table_of(self.rows, payload_bytes=size, payload_crc=crc)))


def table_of(rows: Sequence[TableRow], *, payload_bytes: int, payload_crc: int) -> bytes:
    """The table at the end of a data object, after `payload_bytes` bytes."""
    segments: dict[SegmentKey, int] = {}
    columns = {
        "segment": [segments.setdefault(row.key, len(segments)) for row in rows],
        "position": [row.position for row in rows],
        "length": [row.length for row in rows],
        "offset": [row.offset for row in rows],
        "crc": [row.crc for row in rows],
    }
    return encode_table(
        {"segments": [[path, kind.value, base] for path, kind, base in segments]},
        {name: np.array(column, np.int64) for name, column in columns.items()},
        payload_bytes=payload_bytes,
        payload_crc=payload_crc,
    )


@dataclass(slots=True)
class Placed:
    """How the bytes of drafts are divided among objects, and each write's pieces."""

    inline: list[Buffer]
    objects: list[DataObject]  # objects 1 and up
    pieces: list[list[list[Piece]]]  # by draft, then by write


def place(drafts: Sequence[Draft], *, inline_bytes_max: int) -> Placed:
    """Put all bytes into the entry if they are few, otherwise into objects of their own."""
    placed = Placed([], [], [])
    is_inline = sum(draft.payload_bytes for draft in drafts) <= inline_bytes_max
    target, room = DataObject(placed.inline), inline_bytes_max if is_inline else 0
    filled = 0
    for draft in drafts:
        of_draft: list[list[Piece]] = []
        for write in draft.writes:
            pieces: list[Piece] = []
            position = write.position
            for part in _parts(write.data):
                length = len(part)
                if length > room - filled:
                    target, filled, room = DataObject(), 0, DATA_BYTES_MAX
                    placed.objects.append(target)
                crc = crc32c(part)
                target.parts.append(part)
                if not is_inline:
                    target.rows.append(TableRow(write.key, position, length, filled, crc))
                pieces.append(Piece(length, len(placed.objects), filled, crc))
                filled += length
                position += length
            of_draft.append(pieces)
        placed.pieces.append(of_draft)
    return placed


def _parts(data: Buffer) -> Sequence[Buffer]:
    if len(data) <= PIECE_BYTES_MAX:
        return (data,) if len(data) else ()
    view = memoryview(data).toreadonly()
    starts = range(0, len(view), PIECE_BYTES_MAX)
    return [view[start : start + PIECE_BYTES_MAX] for start in starts]


@dataclass(slots=True)
class _Composing:
    """An entry under construction: what it adds to the state so far."""

    state: LogState
    tables: Tables
    path_of: Callable[[SegmentKey], str]
    begun: list[Begun] = field(default_factory=list)
    numbers: dict[SegmentKey, int | None] = field(default_factory=dict)  # None: deleted
    ends: dict[int, int] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)
    sealed: list[Sealed] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)
    rows_now: dict[SegmentKey, SegmentRecord | None] = field(default_factory=dict)
    extents: list[tuple[int, int, int, int, int, int, int, int]] = field(default_factory=list)

    def number_of(self, key: SegmentKey) -> int | None:
        return self.numbers[key] if key in self.numbers else self.state.numbers.get(key)

    def end_of(self, number: int | None) -> int:
        if number is None:
            return 0
        if number in self.ends:
            return self.ends[number]
        segment = self.state.segments.get(number)
        return 0 if segment is None else segment.size

    def is_sealed(self, number: int | None) -> bool:
        if number is None:
            return False
        segment = self.state.segments.get(number)
        return (segment is not None and segment.sealed is not None) or number in self.closed

    def begin(self, key: SegmentKey) -> int:
        number = self.state.next_number + len(self.begun)
        self.begun.append(Begun(number, *key))
        self.numbers[key] = number
        return number

    def seal(self, sealed: Sealed) -> None:
        self.sealed.append(sealed)
        self.closed.add(sealed.number)

    def row(self, key: SegmentKey) -> SegmentRecord | None:
        if key in self.rows_now:
            return self.rows_now[key]
        path, kind, base = key
        of_path = self.tables.segments[kind].get(path)
        return None if of_path is None else of_path.get(base)

    def change(self, change: Change) -> None:
        self.changes.append(change)
        match change:
            case Put(SegmentRecord() as row):
                self.rows_now[row.key] = row
            case DeleteSegment(path, kind, base):
                self.rows_now[path, kind, base] = None


def segment_path(key: SegmentKey) -> str:
    path, kind, base = key
    return f"{path}/{kind.name}/{base}"


def compose(
    state: LogState,
    drafts: Sequence[Draft],
    placed: Placed,
    objects: Sequence[str],
    staged: Sequence[Change],
    *,
    epoch: int,
    nonce: str,
    time_ms: int,
    path_of: Callable[[SegmentKey], str] = segment_path,
) -> Entry:
    """The entry that follows this state. A draft that cannot be in it gets an `error`.

    The caller ensures that no other draft adds extents to an entry with a merge.
    """
    to_be = _Composing(state, state.tables, path_of)
    to_be.changes += staged
    extents = Extents.none()
    merged: list[int] = []
    dropped: list[str] = []
    names = list(objects)
    for draft, pieces in zip(drafts, placed.pieces, strict=True):
        numbers: list[int | None] = []
        draft.error = _refusal(to_be, draft, numbers)
        if draft.error is not None:
            continue
        _add(to_be, draft, pieces, numbers)
        if draft.merged:
            extents, merged, names = draft.extents, list(draft.merged), list(draft.objects)
        dropped += draft.dropped
    return Entry(
        sequence=state.sequence + 1,
        epoch=epoch,
        nonce=nonce,
        time_ms=time_ms,
        begins_epoch=state.epoch < epoch,
        begun=tuple(to_be.begun),
        sealed=tuple(to_be.sealed),
        deleted=tuple(to_be.deleted),
        changes=tuple(to_be.changes),
        merged=tuple(merged),
        dropped=tuple(dropped),
        objects=tuple(names),
        extents=Extents.of(to_be.extents) if to_be.extents else extents,
        payload_bytes=sum(map(len, placed.inline)),
    )


def _refusal(to_be: _Composing, draft: Draft, numbers: list[int | None]) -> TieredStoreError | None:
    """Why this draft cannot be in the entry. Adds to `numbers` the number of each write's segment;
    None if the segment does not exist yet."""
    deleted = set(draft.deleted)
    found: dict[SegmentKey, tuple[int | None, int]] = {}
    for key, position, data in draft.writes:
        if key in found:
            number, end = found[key]
        else:
            number = None if key in deleted else to_be.number_of(key)
            if to_be.is_sealed(number):
                return SegmentSealedError(to_be.path_of(key))
            end = to_be.end_of(number)
        if position != end:
            return PositionMismatchError(to_be.path_of(key), expected=position, actual=end)
        found[key] = number, end + len(data)
        numbers.append(number)
    for key, _ in draft.taken:
        number = to_be.number_of(key)
        if number is not None and key not in deleted:
            end = to_be.end_of(number)
            return PositionMismatchError(to_be.path_of(key), expected=0, actual=end)
    for sealed in draft.sealed:
        end = to_be.end_of(sealed.number)
        if end and end != sealed.size:  # the segment has grown since it was read
            return PositionMismatchError(sealed.key, expected=sealed.size, actual=end)
    for sequence in draft.merged:
        if sequence not in to_be.state.chunks:
            return SegmentNotFoundError(f"the extents of entry {sequence}")
    return None


def _add(
    to_be: _Composing,
    draft: Draft,
    pieces_of: Sequence[Sequence[Piece]],
    numbers: Sequence[int | None],
) -> None:
    rows = {row.key: row for row in draft.rows}
    for key in draft.deleted:
        number = to_be.number_of(key)
        if number is not None:
            to_be.deleted.append(number)
            to_be.numbers[key] = None
    for change in draft.changes:
        to_be.change(change)
    _add_writes(to_be, zip(draft.writes, pieces_of, numbers, strict=True), rows)
    for key, sealed in draft.taken:
        to_be.seal(replace(sealed, number=to_be.begin(key)))
    for sealed in draft.sealed:
        to_be.seal(sealed)
    for key, row in rows.items():
        if to_be.row(key) != row:
            to_be.change(Put(row))


def _add_writes(
    to_be: _Composing,
    writes: Iterable[tuple[DraftWrite, Sequence[Piece], int | None]],
    rows: dict[SegmentKey, SegmentRecord],
) -> None:
    """Add the writes' extents. Removes from `rows` those that the extents' columns say in full."""
    extents, ends = to_be.extents, to_be.ends
    for (key, position, data), pieces, known in writes:
        if not pieces:
            continue
        number = known
        if number is None:
            begun = to_be.numbers.get(key)  # by a write before this one
            number = to_be.begin(key) if begun is None else begun
        at, end = position, position + len(data)
        ends[number] = end
        row = rows.get(key)
        begin_ms = end_ms = NO_ROW
        if row is not None and row.size == end:
            begin_ms, end_ms = _times(row)
            if begin_ms != NO_ROW and _only_grows(to_be.row(key), row):
                del rows[key]
        for length, index, offset, crc in pieces:
            extents.append((number, at, length, index, offset, crc, begin_ms, end_ms))
            at += length


def _times(row: SegmentRecord) -> tuple[int, int]:
    """The row's times as the columns have them; NO_ROW if they cannot express them."""
    begin = UNKNOWN_TIME if row.begin_timestamp is None else row.begin_timestamp
    end = UNKNOWN_TIME if row.end_timestamp is None else row.end_timestamp
    return (begin, end) if begin >= UNKNOWN_TIME <= end else (NO_ROW, NO_ROW)


def _only_grows(known: SegmentRecord | None, row: SegmentRecord) -> bool:
    """Whether size and times are all that changed, which the columns say."""
    return (
        known is not None
        and row.create_timestamp == known.create_timestamp
        and row.status == known.status
        and row.seal_timestamp == known.seal_timestamp
    )
