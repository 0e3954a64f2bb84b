"""The state that results from folding a log's entries one by one. Pure, so that every order of
entries can be tested.

The state is the tier as the bucket has it: segments, where their bytes lie, and the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.segment import Buffer
from tieredstore.metadata import journal
from tieredstore.metadata.tables import Tables, describe
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import SegmentRecord
from tieredstore.roundlog.entry import (
    NO_ROW,
    UNKNOWN_TIME,
    Begun,
    Entry,
    Extents,
    Sealed,
    SegmentKey,
    Whole,
    begun_of,
    check_names,
    extents_of,
    no_change,
    sealed_of,
)
from tieredstore.roundlog.frames import FrameKind, decode, encode
from tieredstore.roundlog.layout import log_name

BESIDE: Final = ("data/", "load/")
"""Prefixes of objects whose names are used once: a writer's own, and those of a load."""
NAME_RESTS_MS: Final = 30 * 24 * 3_600_000
"""A request may arrive again this long after it was sent, so a deleted key is not reused before."""


class LogSegmentState:
    """One segment: its size, the times of its row, and its object once it is sealed."""

    __slots__ = ("base", "begin", "end", "number", "path", "sealed", "size", "type")

    def __init__(self, begun: Begun) -> None:
        self.number, self.path, self.type, self.base = (
            begun.number,
            begun.path,
            begun.type,
            begun.base,
        )
        self.size = 0
        self.begin = self.end = NO_ROW
        self.sealed: Sealed | None = None

    @property
    def key(self) -> SegmentKey:
        return self.path, self.type, self.base


@dataclass(frozen=True, slots=True)
class Chunk:
    """The extents that one entry brought, in order, and the objects that they lie in. Offsets count
    from the beginning of an object.

    `level` is 0 for a round; for a merge, one more than the highest level that it merged.
    """

    sequence: int
    level: int
    objects: tuple[str, ...]  # relative names; the first is the entry's own
    extents: Extents

    def used(self) -> list[str]:
        """The objects in which at least one extent lies."""
        return [self.objects[each] for each in np.unique(self.extents.object).tolist()]


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a segment, and where they lie in an object."""

    position: int
    length: int
    object: str
    offset: int
    crc: int


@dataclass(frozen=True, slots=True)
class _Growth:
    """What extents add to segments. A row has a segment's number, the positions that it grows from
    and to, and of its last extent that has times the end, `begin` and `end`. `torn` is a segment
    whose extents leave a gap or overlap."""

    rows: list[tuple[int, int, int, int, int, int]]
    torn: int | None = None

    @classmethod
    def none(cls) -> _Growth:
        return cls([])

    @classmethod
    def of(cls, extents: Extents) -> _Growth:
        if not len(extents):
            return cls.none()
        ordered = extents.in_order()
        number, ends = ordered.number, ordered.position + ordered.length
        is_same = number[1:] == number[:-1]
        torn = np.flatnonzero(is_same & (ordered.position[1:] != ends[:-1]))
        firsts = np.flatnonzero(np.concatenate([[True], ~is_same]))
        lasts = np.concatenate([firsts[1:], [len(ordered)]]) - 1
        told = np.where(ordered.begin != NO_ROW, np.arange(len(ordered)), -1)
        told = np.maximum.accumulate(told)[lasts]
        is_told = told >= firsts
        columns = (
            number[firsts],
            ordered.position[firsts],
            ends[lasts],
            ends[told],
            np.where(is_told, ordered.begin[told], NO_ROW),
            np.where(is_told, ordered.end[told], NO_ROW),
        )
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        return cls(rows, int(number[torn[0]]) if len(torn) else None)


class LogState:
    """The fold of all entries up to `sequence`.

    * An entry of an epoch that is over changes nothing, but uses up its sequence.
    * `dead` maps each object that is no longer used to the time when it died. An object stays there
      until an entry says that it was deleted.
    * Not thread-safe: the caller locks.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.epoch = 0
        self.time_ms = 0
        self.next_number = 1
        self.segments: dict[int, LogSegmentState] = {}
        self.numbers: dict[SegmentKey, int] = {}
        self._of_path: dict[str, dict[int, LogSegmentState]] = {}
        self.chunks: dict[int, Chunk] = {}
        self.dead: dict[str, int] = {}
        # Keys of sealed objects that died or were deleted, and when, until they have rested.
        self.rested: dict[str, int] = {}
        self._tables = Tables()
        self._grown: set[int] = set()  # segments whose rows are not up to date
        self._uses: dict[str, int] = {}  # how many chunks and sealed segments use an object

    # Contents

    @property
    def tables(self) -> Tables:
        """The catalogue's rows as of this state."""
        self._settle_rows()
        return self._tables

    def segment(self, key: SegmentKey) -> LogSegmentState | None:
        number = self.numbers.get(key)
        return None if number is None else self.segments[number]

    def of_path(self, path: str) -> Iterable[LogSegmentState]:
        """The segments of one queue."""
        return self._of_path.get(path, {}).values()

    def places(self, number: int) -> list[Place]:
        """Where the bytes of an open segment lie, by position, without overlaps."""
        found: list[Place] = []
        for chunk in self.chunks.values():
            rows = chunk.extents.of_segment(number)
            if len(rows):
                found += [
                    Place(position, length, chunk.objects[index], offset, crc)
                    for position, length, index, offset, crc in zip(
                        rows.position.tolist(),
                        rows.length.tolist(),
                        rows.object.tolist(),
                        rows.offset.tolist(),
                        rows.crc.tolist(),
                        strict=True,
                    )
                ]
        found.sort(key=lambda place: place.position)
        return found

    def is_open(self, number: int) -> bool:
        """Whether the segment exists and is not sealed, so that it is read from its extents."""
        segment = self.segments.get(number)
        return segment is not None and segment.sealed is None

    def live_rows(self, chunk: Chunk) -> NDArray[Any]:
        """A mask of the chunk's extents whose segments are still open."""
        numbers = np.unique(chunk.extents.number)
        alive = np.array([self.is_open(number) for number in numbers.tolist()], bool)
        return alive[np.searchsorted(numbers, chunk.extents.number)]

    # Folding

    def fold(self, entry: Entry) -> bool:
        """Apply the next entry; return whether it counts. If it cannot follow this state, raise
        MetadataError and change nothing."""
        if entry.sequence != self.sequence + 1:
            raise MetadataError(
                log_name(entry.sequence), f"it says {entry.sequence} and follows {self.sequence}"
            )
        if entry.epoch < self.epoch or (entry.epoch > self.epoch and not entry.begins_epoch):
            self.sequence = entry.sequence
            self._bury(entry)
            return False
        growth = _Growth.of(entry.extents) if not entry.merged else _Growth.none()
        self._check(entry, growth)
        self.sequence, self.epoch = entry.sequence, entry.epoch
        self.time_ms = entry.time_ms
        if entry.changes:
            self._settle_rows()
            self._tables.apply(entry.changes)
        for begun in entry.begun:
            self._begin(begun)
        self._grow(growth)
        if all(sequence in self.chunks for sequence in entry.merged):
            self._chunk(entry)
        for number in entry.deleted:
            self._delete(number)
        for sealed in entry.sealed:
            self._seal(sealed)
        for name in entry.dropped:
            self._drop(name)
        self._bury(entry)
        return True

    def take_in(self, key: SegmentKey, object_key: str, size: int) -> None:
        """Add a sealed object that no entry names, for a reader of a bucket without a log."""
        number = self.next_number
        self._begin(Begun(number, *key))
        self._seal(Sealed(number, object_key, size, None))

    def names(self) -> set[str]:
        """All objects from which bytes are read."""
        return set(self._uses)

    def is_used(self, name: str) -> bool:
        """Whether an open or a sealed segment has bytes in this object."""
        return name in self._uses

    def _check(self, entry: Entry, growth: _Growth) -> None:
        """Raise MetadataError unless new segments have the next numbers, bytes are added at the
        ends of open segments, and a sealed object has all bytes of its segment."""

        def damaged(reason: str) -> MetadataError:
            return MetadataError(log_name(entry.sequence), reason)

        for number, begun in enumerate(entry.begun, self.next_number):
            if begun.number != number:
                raise damaged(f"it begins segment {begun.number}, and {number} is the next")
        if growth.torn is not None:
            raise damaged(f"segment {growth.torn} does not grow at its end")
        begun_below = self.next_number + len(entry.begun)
        ends: dict[int, int] = {}
        for number, start, end, *_ in growth.rows:
            segment = self.segments.get(number)
            if segment is None:
                if not self.next_number <= number < begun_below:
                    raise damaged(f"it has bytes of segment {number}: there is none")
                known = 0
            elif segment.sealed is not None:
                raise damaged(f"it has bytes of segment {number}, which is sealed")
            else:
                known = segment.size
            if start != known:
                raise damaged(f"segment {number} grows at {start}, and ends at {known}")
            ends[number] = end
        for sealed in entry.sealed:
            segment = self.segments.get(sealed.number)
            size = ends.get(sealed.number, 0 if segment is None else segment.size)
            if size and size != sealed.size:
                raise damaged(f"it seals {sealed.size} of the {size} bytes of {sealed.number}")

    def _begin(self, begun: Begun) -> None:
        if (known := self.numbers.get(begun.key)) is not None:
            self._delete(known)
        self.next_number = begun.number + 1
        self._add(LogSegmentState(begun))

    def _add(self, segment: LogSegmentState) -> None:
        self.segments[segment.number] = segment
        self.numbers[segment.key] = segment.number
        self._of_path.setdefault(segment.path, {})[segment.number] = segment

    def _grow(self, growth: _Growth) -> None:
        segments, grown = self.segments, self._grown
        for number, _, end, told_end, begin_ms, end_ms in growth.rows:
            segment = segments.get(number)
            if segment is None:
                continue  # the same entry begins it anew, under another number
            if begin_ms != NO_ROW:
                segment.size, segment.begin, segment.end = told_end, begin_ms, end_ms
                grown.add(number)
            if (begin_ms == NO_ROW or told_end != end) and number in grown:
                grown.discard(number)  # its row does not include the bytes that follow
                self._settle_row(segment)
            segment.size = end

    def _chunk(self, entry: Entry) -> None:
        """Add the entry's extents, and remove those that it merges."""
        merged = [self.chunks.pop(sequence) for sequence in entry.merged]
        if len(entry.extents):
            extents = entry.extents
            inline = np.where(extents.object == 0, entry.payload_start, 0)
            extents = replace(extents, offset=extents.offset + inline).in_order().without_times()
            level = max((chunk.level + 1 for chunk in merged), default=0)
            names = (log_name(entry.sequence), *entry.objects)
            self._take(Chunk(entry.sequence, level, names, extents))
        for chunk in merged:  # last, so that objects of the new extents stay alive
            for name in chunk.used():
                self._leave(name)

    def _take(self, chunk: Chunk) -> None:
        self.chunks[chunk.sequence] = chunk
        for name in chunk.used():
            self._use(name)

    def _seal(self, sealed: Sealed) -> None:
        segment = self.segments.get(sealed.number)
        if segment is None or segment.sealed is not None:
            self._die(sealed.key)  # the segment was deleted or sealed meanwhile
            return
        segment.sealed = sealed
        self._use(sealed.key)
        if not segment.size:  # taken in as an object: it never had extents
            segment.size = sealed.size

    def _delete(self, number: int) -> None:
        segment = self.segments.pop(number, None)
        if segment is None:
            return
        of_path = self._of_path[segment.path]
        del of_path[number]
        if not of_path:
            del self._of_path[segment.path]
        if number in self._grown:
            self._grown.discard(number)
            self._settle_row(segment)
        if self.numbers.get(segment.key) == number:
            del self.numbers[segment.key]
        if segment.sealed is not None:
            self._leave(segment.sealed.key)

    # Used and dead objects

    def _use(self, name: str) -> None:
        self._uses[name] = self._uses.get(name, 0) + 1
        self.dead.pop(name, None)

    def _leave(self, name: str) -> None:
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]
            self._die(name)

    def _bury(self, entry: Entry) -> None:
        """Mark as dead those of the entry's objects that are not used: all of them if the entry
        does not count."""
        beside = (each.key for each in entry.sealed if each.key.startswith(BESIDE))
        for name in (log_name(entry.sequence), *entry.objects, *beside):
            self._die(name)

    def _die(self, name: str) -> None:
        if name not in self._uses and name not in self.dead:
            self.dead[name] = self.time_ms
            self._rest(name)

    def _drop(self, name: str) -> None:
        if self.dead.pop(name, None) is not None:
            self._rest(name)  # its delete was sent only now

    def _rest(self, name: str) -> None:
        """Let a key that a segment may have again rest from now on. The oldest come first."""
        if name.startswith(("log/", *BESIDE)):
            return
        self.rested.pop(name, None)
        self.rested[name] = self.time_ms
        while (first := next(iter(self.rested))) and self._has_rested(first):
            del self.rested[first]

    def _has_rested(self, name: str) -> bool:
        return self.rested[name] + NAME_RESTS_MS < self.time_ms

    def rests(self, key: str, now_ms: int) -> bool:
        """Whether a late delete may still land on this key."""
        since_ms = self.rested.get(key)
        return key in self.dead or (since_ms is not None and now_ms < since_ms + NAME_RESTS_MS)

    def _settle_rows(self) -> None:
        for number in self._grown:
            self._settle_row(self.segments[number])
        self._grown.clear()

    def _settle_row(self, segment: LogSegmentState) -> None:
        table = self._tables.segments[segment.type].get(segment.path)
        row = None if table is None else table.get(segment.base)
        if table is not None and row is not None:
            table[segment.base] = SegmentRecord(
                path=row.path,
                type=row.type,
                base_offset=row.base_offset,
                size=segment.size,
                create_timestamp=row.create_timestamp,
                begin_timestamp=None if segment.begin == UNKNOWN_TIME else segment.begin,
                end_timestamp=None if segment.end == UNKNOWN_TIME else segment.end,
                status=row.status,
                seal_timestamp=row.seal_timestamp,
            )

    # Bytes

    def encoded(self) -> bytes:
        """The bytes of a state object, which replaces all entries up to this sequence."""
        order = [self.segments[number] for number in sorted(self.segments)]
        sealed = [segment.sealed for segment in order if segment.sealed is not None]
        head = _StateHead(
            sequence=self.sequence,
            epoch=self.epoch,
            time=self.time_ms,
            next_number=self.next_number,
            segments=[(each.number, each.path, each.type.value, each.base) for each in order],
            sealed=[(each.number, each.key, each.size, each.crc) for each in sealed],
            chunks=[
                (each.sequence, each.level, len(each.extents), list(each.objects[1:]))
                for each in self.chunks.values()
            ],
            dead=dict(self.dead),
            rested={key: at for key, at in self.rested.items() if not self._has_rested(key)},
            changes=[journal.to_json(change) for change in self.tables.contents()],  # type: ignore[misc]
        )
        columns = {
            "size": _column(each.size for each in order),
            "begin": _column(each.begin for each in order),
            "end": _column(each.end for each in order),
        }
        chunks = [chunk.extents.columns() for chunk in self.chunks.values()]
        for name in Extents.none().columns():
            columns[f"extent_{name}"] = np.concatenate(
                [np.empty(0, np.int64), *(chunk[name] for chunk in chunks)]
            )
        return encode(FrameKind.STATE, msgspec.to_builtins(head), columns, ())

    @classmethod
    def decoded(cls, data: Buffer, name: str) -> LogState:
        """The state in a complete object. Raises MetadataError."""
        frame = decode(data, kind=FrameKind.STATE, name=name, object_bytes=len(data))
        state = cls()
        with no_change(name):
            head = msgspec.convert(frame.head, _StateHead)
            state.sequence, state.epoch = head.sequence, head.epoch
            state.time_ms, state.next_number = head.time, head.next_number
            for row in head.segments:
                state._take_segment(LogSegmentState(begun_of(row)))
            for column in ("size", "begin", "end"):
                _set(column, state.segments.values(), frame.columns.get(column))
            for each in head.sealed:
                state._take_sealed(sealed_of(each))
            extents = extents_of(
                frame, max((len(each[3]) for each in head.chunks), default=0), prefix="extent_"
            )
            state._take_chunks(head.chunks, extents)
            state.dead, state.rested = dict(head.dead), dict(head.rested)
            state._tables.apply(journal.from_json(row) for row in head.changes)
        return state

    def _take_segment(self, segment: LogSegmentState) -> None:
        number = segment.number
        if number in self.segments or segment.key in self.numbers or number >= self.next_number:
            raise ValueError(f"segment {number} has the number or the name of another")
        self._add(segment)

    def _take_sealed(self, sealed: Sealed) -> None:
        segment = self.segments.get(sealed.number)
        if segment is None or segment.sealed is not None or segment.size != sealed.size:
            raise ValueError(f"segment {sealed.number} cannot be sealed")
        segment.sealed = sealed
        self._use(sealed.key)

    def _take_chunks(
        self, rows: Sequence[tuple[int, int, int, list[str]]], extents: Extents
    ) -> None:
        if sum(count for _, _, count, _ in rows) != len(extents):
            raise ValueError("its extents are not those of its chunks")
        at = before = 0
        for sequence, level, count, objects in rows:
            if not before < sequence <= self.sequence:
                raise ValueError(f"the extents of entry {sequence} are not in its order")
            before = sequence
            of_chunk = extents.taken(np.arange(at, at + count)).without_times()
            at += count
            if count and not of_chunk.is_in_order():
                raise ValueError("its extents are not in order")
            if count and int(of_chunk.object.max()) > len(objects):
                raise ValueError("an extent lies in an object that is not named")
            check_names(objects)
            self._take(Chunk(sequence, level, (log_name(sequence), *objects), of_chunk))


class _StateHead(msgspec.Struct, rename="camel", kw_only=True):
    """The JSON of a state. Rows of segments and sealed objects are as in entries; a chunk's row has
    its sequence, level, number of extents, and objects other than the entry itself."""

    sequence: Whole
    epoch: Whole
    time: Whole
    next_number: Whole
    segments: list[tuple[Whole, str, int, Whole]]
    sealed: list[tuple[Whole, str, Whole, Whole | None]]
    chunks: list[tuple[Whole, Whole, Whole, list[str]]]
    dead: dict[str, Whole]
    rested: dict[str, Whole]
    changes: list[dict[str, Any]]


describe(_StateHead)


def _column(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, np.int64)


def _set(name: str, segments: Iterable[LogSegmentState], column: NDArray[Any] | None) -> None:
    values: Iterator[int] = iter([] if column is None else column.tolist())
    for segment, value in zip(segments, values, strict=True):
        setattr(segment, name, value)
