"""Keeps a log small: merges rounds, seals segments, writes states, deletes dead objects.

Each of these reads, writes under a new name, then appends one entry. A process that dies in between
leaves an object that no entry names, and nothing else.

* **Merge.** A quiet queue has an extent in every round. Some rounds together become data objects
  whose bytes lie segment by segment; some of these are merged once more. An object that is half
  dead by then is rewritten without the dead half.
* **Seal.** The extents of a segment become the object that RocketMQ knows.
* **State.** All entries so far in one object: a reader begins there, and entries before it can go.
* **Release.** Objects without live bytes are deleted once lagging readers have had time to move on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.object_client import KEYS_PER_REQUEST, ObjectExistsError, Range
from tieredstore.driver.runtime import Pool
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendUnavailableError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
)
from tieredstore.model.printable import log_of
from tieredstore.roundlog.draft import Draft, TableRow, table_of
from tieredstore.roundlog.entry import NO_ROW, Extents, Sealed, SegmentKey
from tieredstore.roundlog.frames import crc32c
from tieredstore.roundlog.layout import log_name, number_of, state_name
from tieredstore.roundlog.log import SIDE_BY_SIDE, BrokerLog, side_by_side
from tieredstore.roundlog.object_calls import joined
from tieredstore.roundlog.state import Chunk

log = log_of(__name__)

MERGED_BYTES: Final = 64 << 20  # of a data object, and of what is in memory at a time
ROUNDS_MERGED: Final = 32  # or as many as have MERGED_BYTES
CHUNKS_MERGED: Final = 16  # of a level above
EXTENT_BYTES: Final = 4 << 20  # extents are joined up to every multiple of this in their segment
READ_BYTES: Final = 16 << 20  # of ranges asked for at a time
ONE_PUT_BYTES: Final = 32 << 20  # of a sealed segment: what is longer is a stream, in parts
SPAN_BYTES: Final = 8 << 20  # of one range, but for an extent that is longer
GAP_BYTES: Final = 128 << 10  # read along rather than asked around
STATE_EVERY: Final = 256  # entries
STATES_KEPT: Final = 3
GRACE_MS: Final = 15 * 60_000
DROPPED_MAX: Final = 4_096  # names that wait for an entry to say that they were deleted


@dataclass(frozen=True, slots=True)
class Weighed:
    """A chunk, and how much of it is of segments that are still open."""

    chunk: Chunk
    live: NDArray[np.bool_]
    live_bytes: int
    dead_bytes: int
    segment_count: int

    @property
    def level(self) -> int:
        """A large round is as good as merged."""
        return max(self.chunk.level, int(self.live_bytes >= MERGED_BYTES // 2))

    @property
    def is_scattered(self) -> bool:
        """Whether a segment has less in it than one read takes: merged again it takes fewer."""
        return self.live_bytes < self.segment_count * SPAN_BYTES


def weighed(chunks: Iterable[Chunk], open_numbers: NDArray[np.int64]) -> list[Weighed]:
    """All of them, the oldest first."""
    found = []
    for chunk in sorted(chunks, key=lambda each: each.sequence):
        live = np.isin(chunk.extents.number, open_numbers)
        live_bytes = int(chunk.extents.length[live].sum())
        dead_bytes = int(chunk.extents.length.sum()) - live_bytes
        count = len(np.unique(chunk.extents.number[live]))
        found.append(Weighed(chunk, live, live_bytes, dead_bytes, count))
    return found


def to_merge(chunks: Sequence[Weighed]) -> list[Weighed]:
    """Which of them are to be one from now on; none where it is not worth a request yet.

    Those in which nothing is live cost nothing: they go along with any others.
    """
    dead = [each for each in chunks if not each.live_bytes]
    live = [each for each in chunks if each.live_bytes]
    rounds = [each for each in live if each.level == 0]
    if len(rounds) >= ROUNDS_MERGED or sum(each.live_bytes for each in rounds) >= MERGED_BYTES:
        return dead + _first(rounds, ROUNDS_MERGED)
    scattered = [each for each in live if each.level and each.is_scattered]
    for level in sorted({each.level for each in scattered}):
        of_level = [each for each in scattered if each.level == level]
        if len(of_level) >= CHUNKS_MERGED:
            return dead + of_level[:CHUNKS_MERGED]
    wasted = [each for each in live if each.level and each.dead_bytes > each.live_bytes]
    dead_bytes = sum(each.dead_bytes for each in (*wasted, *dead))
    if dead_bytes >= MERGED_BYTES or len(wasted) + len(dead) >= ROUNDS_MERGED:
        return dead + _first(wasted, len(wasted))
    return []


def _first(chunks: Sequence[Weighed], count: int) -> list[Weighed]:
    """The oldest that go into one object, `count` at most."""
    ends = np.cumsum([each.live_bytes for each in chunks])
    fitting = int(np.searchsorted(ends, MERGED_BYTES, "right"))
    return list(chunks[: min(count, max(fitting, 2))])


# Bytes of many extents at once


@dataclass(frozen=True, slots=True)
class _Rows:
    """Extents by segment and position, and the objects they lie in: `object` counts from 0."""

    extents: Extents
    names: tuple[str, ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[Chunk, NDArray[np.bool_]]]) -> _Rows:
        """Of each chunk those that the mask has."""
        names: dict[str, int] = {}
        found = [Extents.none()]
        for chunk, mask in parts:
            extents = chunk.extents.taken(mask)
            numbers = np.array([names.setdefault(each, len(names)) for each in chunk.objects])
            found.append(replace(extents, object=numbers[extents.object]))
        return cls(_concatenated(found).in_order(), tuple(names))

    def cut(self, bytes_max: int) -> Iterator[_Rows]:
        """In pieces of at most `bytes_max`; a longer extent is a piece of its own."""
        ends = np.cumsum(self.extents.length)
        start = 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + bytes_max, "right")))
            yield self.between(start, stop)
            start = stop

    def between(self, start: int, stop: int) -> _Rows:
        return _Rows(self.extents.taken(np.arange(start, stop)), self.names)


def _concatenated(parts: Sequence[Extents]) -> Extents:
    columns = [part.columns() for part in parts]
    return Extents(*(np.concatenate([each[it.name] for each in columns]) for it in fields(Extents)))


def _read(broker: BrokerLog, rows: _Rows) -> bytearray:
    """The bytes of all rows, one behind the other, each compared with its checksum.

    Of every object few ranges are read, front to back. SegmentCorruptError for wrong bytes.
    """
    extents = rows.extents
    lengths, offsets = extents.length.tolist(), extents.offset.tolist()
    starts = (np.cumsum(extents.length) - extents.length).tolist()
    data = bytearray(sum(lengths))
    # Released before they are returned: who appends to them meets no view that lives on.
    with memoryview(data) as view:
        for spans in _together(_spans(rows)):
            keys = [broker.key(rows.names[span.object]) for span in spans]
            wanted = [
                Range(key, span.start, span.end - span.start)
                for key, span in zip(keys, spans, strict=True)
            ]
            for span, found in zip(spans, broker.recent.ranges(wanted), strict=True):
                block = memoryview(found)
                for row in span.rows:
                    at = offsets[row] - span.start
                    view[starts[row] : starts[row] + lengths[row]] = block[at : at + lengths[row]]
        for row, crc in enumerate(extents.crc.tolist()):
            if crc32c(view[starts[row] : starts[row] + lengths[row]]) != crc:
                key = broker.key(rows.names[int(extents.object[row])])
                raise SegmentCorruptError(key, "another checksum", position=offsets[row])
    return data


@dataclass(slots=True)
class _Span:
    """A range of an object, and the rows that lie in it."""

    object: int
    start: int
    end: int
    rows: list[int]


def _spans(rows: _Rows) -> Iterator[_Span]:
    extents = rows.extents
    order = np.lexsort((extents.offset, extents.object))
    span: _Span | None = None
    for row, number, start, length in zip(
        order.tolist(),
        extents.object[order].tolist(),
        extents.offset[order].tolist(),
        extents.length[order].tolist(),
        strict=True,
    ):
        end = start + length
        if (
            span is not None
            and span.object == number
            and start <= span.end + GAP_BYTES
            and end <= span.start + SPAN_BYTES
        ):
            span.end = max(span.end, end)
            span.rows.append(row)
            continue
        if span is not None:
            yield span
        span = _Span(number, start, end, [row])
    if span is not None:
        yield span


def _together(spans: Iterable[_Span]) -> Iterator[list[_Span]]:
    """As many as are asked for at a time."""
    some: list[_Span] = []
    total = 0
    for span in spans:
        length = span.end - span.start
        if some and total + length > READ_BYTES:
            yield some
            some, total = [], 0
        some.append(span)
        total += length
    if some:
        yield some


def _joined(extents: Extents, data: Buffer, object: int) -> Extents:
    """The extents of these bytes, which lie one behind the other in an object of their own."""
    starts = np.cumsum(extents.length) - extents.length
    ends = extents.position + extents.length
    blocks = (ends - 1) // EXTENT_BYTES
    is_next = (
        (extents.number[1:] == extents.number[:-1])
        & (extents.position[1:] == ends[:-1])
        & (blocks[1:] == blocks[:-1])
    )
    firsts = np.flatnonzero(np.concatenate([[True], ~is_next]))
    lengths, offsets = np.add.reduceat(extents.length, firsts), starts[firsts]
    with memoryview(data) as view:
        crcs = [
            crc32c(view[offset : offset + length])
            for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
        ]
    no_row = np.full(len(firsts), NO_ROW)
    return Extents(
        number=extents.number[firsts],
        position=extents.position[firsts],
        length=lengths,
        object=np.full(len(firsts), object),
        offset=offsets,
        crc=np.array(crcs, np.int64),
        begin=no_row,
        end=no_row,
    )


class Upkeep:
    """The chores of a writer's log, a bounded step at a time. Any thread may call; one at a time
    works.

    Raises: what BrokerLog raises. A merge that meets damaged bytes raises once, and skips those
    chunks from then on.
    """

    def __init__(self, broker: BrokerLog) -> None:
        self._log = broker
        self._turn = threading.Lock()
        self._merging: Iterator[None] | None = None
        self._looked_at = 0  # the sequence as of which there was nothing to merge
        self._set_aside: set[int] = set()  # chunks with damaged bytes
        self._states: list[int] | None = None  # those kept, ascending; None before they were listed
        self._dropped: set[str] = set()  # deleted, and no entry says so yet
        self._released_ms = 0

    def step(self) -> bool:
        """Do what is due next; whether something was done, so that there may be more."""
        with self._turn:
            if not self._log.is_writer or self._log.fence is not None:
                return False
            return self._merge() or self._save(STATE_EVERY) or self._release()

    def save(self, *, entries_min: int) -> bool:
        """Write the state if at least `entries_min` entries have come since the last one."""
        with self._turn:
            if not self._log.is_writer or self._log.fence is not None:
                return False
            return self._save(entries_min)

    # Merge

    def _merge(self) -> bool:
        """One object of a merge, or its entry."""
        if self._merging is None:
            chosen = self._chosen()
            if not chosen:
                return False
            self._merging = self._merged(chosen)
        try:
            next(self._merging)
        except StopIteration:
            self._merging = None
        except BaseException:
            self._merging = None
            raise
        return True

    def _chosen(self) -> list[Weighed]:
        self._log.settled()  # a merge of ours may have landed without a reply
        with self._log.guard:
            state = self._log.state()
            if state.sequence == self._looked_at:
                return []
            sequence = state.sequence
            numbers = [number for number, each in state.segments.items() if each.sealed is None]
            chunks = [
                each for each in state.chunks.values() if each.sequence not in self._set_aside
            ]
        chosen = to_merge(weighed(chunks, np.array(numbers, np.int64)))
        if not chosen:
            self._looked_at = sequence
        return chosen

    def _merged(self, chosen: Sequence[Weighed]) -> Iterator[None]:
        """Stops after each object, and after the entry."""
        names: list[str] = []
        parts = [Extents.none()]
        sequences = [each.chunk.sequence for each in chosen]
        try:
            for piece in _Rows.of((each.chunk, each.live) for each in chosen).cut(MERGED_BYTES):
                data = _read(self._log, piece)
                parts.append(_joined(piece.extents, data, len(names) + 1))
                names.append(self._put(data, parts[-1]))
                del data
                yield
        except (SegmentCorruptError, SegmentNotFoundError, OffsetOutOfRangeError):
            self._set_aside.update(sequences)
            raise
        self._append(
            Draft(merged=sequences, extents=_concatenated(parts), objects=names), alone=True
        )

    def _put(self, data: bytearray, extents: Extents) -> str:
        """A data object of these bytes, and the table that ends it."""
        columns = (extents.number, extents.position, extents.length, extents.offset, extents.crc)
        with self._log.guard:
            keys = {number: each.key for number, each in self._log.state().segments.items()}
        rows = [
            TableRow(keys[number], *rest)
            for number, *rest in zip(*(column.tolist() for column in columns), strict=True)
            if number in keys  # else it was deleted meanwhile
        ]
        data += table_of(rows, payload_bytes=len(data), payload_crc=crc32c(data))
        name = self._log.data_name()
        self._log.calls.put(self._log.key(name), data)
        return name

    def _append(self, draft: Draft, *, alone: bool = False) -> None:
        """The draft's entry, which says also what was deleted."""
        dropped = sorted(self._dropped)
        draft.dropped = dropped
        self._log.append([draft], alone=alone)
        if draft.error is not None:
            raise draft.error
        self._dropped.difference_update(dropped)

    # State

    def _save(self, entries_min: int) -> bool:
        broker = self._log
        sequence = broker.state().sequence
        if sequence < entries_min:
            return False
        states = self._known_states()
        if sequence - (states[-1] if states else 0) < entries_min:
            return False
        if broker.staged:
            self._append(Draft())
        with broker.guard:
            if broker.staged:  # they are in the tables, and in no entry
                return False
            state = broker.state()
            sequence, data = state.sequence, state.encoded()
        try:
            broker.calls.put(broker.key(state_name(sequence)), data)
        except ObjectExistsError:
            pass  # of the same entries, so it says the same
        states.append(sequence)
        old = states[:-STATES_KEPT]
        broker.calls.delete([broker.key(state_name(each)) for each in old])
        del states[: len(old)]
        return True

    def _known_states(self) -> list[int]:
        if self._states is None:
            broker = self._log
            names = (
                each.key.removeprefix(broker.prefix)
                for each in broker.calls.listed(broker.key("state/"))
            )
            self._states = sorted(found for name in names if (found := number_of(name)))
        return self._states

    # Release

    def _release(self) -> bool:
        """Delete what has been dead for long enough. The next entry says so."""
        broker = self._log
        now_ms = broker.clock.now_ms()
        is_time = now_ms >= self._released_ms + GRACE_MS
        states = self._states or []
        # An entry is needed until every state that is kept stands for it.
        needed = log_name(states[0] + 1 if len(states) >= STATES_KEPT else 1)
        with broker.guard:
            dead = broker.state().dead
            if len(dead) < KEYS_PER_REQUEST and not is_time:
                return False
            due = [
                name
                for name, since_ms in dead.items()
                if since_ms + GRACE_MS <= now_ms
                and name not in self._dropped
                and not (name.startswith("log/") and name >= needed)
            ]
        if not due or (len(due) < KEYS_PER_REQUEST and not is_time):
            return False
        if len(self._dropped) >= DROPPED_MAX:
            self._append(Draft())
        some = due[:KEYS_PER_REQUEST]
        broker.calls.delete([broker.key(name) for name in some])
        self._dropped.update(some)
        self._released_ms = now_ms
        return True


# Seal


@dataclass(frozen=True, slots=True)
class _Whole:
    """A segment that is to be one object."""

    number: int
    key: str
    is_key_free: bool
    size: int
    rows: _Rows

    @property
    def crc(self) -> int:
        found = 0
        extents = self.rows.extents
        for crc, length in zip(extents.crc.tolist(), extents.length.tolist(), strict=True):
            found = joined(found, crc, length)
        return found


def seal(broker: BrokerLog, keys: Sequence[SegmentKey], pool: Pool) -> None:
    """Write these segments to RocketMQ's keys, and say so in the log. Idempotent.

    Small ones are read together and written side by side, so that many that were merged cost few
    reads; a large one is a stream. Nobody writes to them meanwhile: one that grew is not sealed,
    and raises PositionMismatchError when all others are.
    """
    sealed: list[Sealed] = []
    try:
        for together in _batches(_wholes(broker, keys)):
            sealed += _put_together(broker, together, pool)
    finally:
        if sealed:  # also where a later one failed
            _say(broker, sealed)


def _batches(wholes: Iterable[_Whole]) -> Iterator[list[_Whole]]:
    """As many as are read together."""
    some: list[_Whole] = []
    total = 0
    for whole in wholes:
        if some and total + whole.size > MERGED_BYTES:
            yield some
            some, total = [], 0
        some.append(whole)
        total += whole.size
    if some:
        yield some


def _put_together(broker: BrokerLog, wholes: list[_Whole], pool: Pool) -> list[Sealed]:
    large = [whole for whole in wholes if whole.size > ONE_PUT_BYTES]
    small = [whole for whole in wholes if whole.size <= ONE_PUT_BYTES]
    found = [_streamed(broker, whole) for whole in large]
    return found + (_put_small(broker, small, pool) if small else [])


def _wholes(broker: BrokerLog, keys: Sequence[SegmentKey]) -> list[_Whole]:
    """By number; those that are sealed, or have gone, are passed over."""
    now_ms = broker.clock.now_ms()
    with broker.guard:
        state = broker.state()
        segments = [
            (each.number, each.key, each.size)
            for key in dict.fromkeys(keys)
            if (each := state.segment(key)) is not None and each.sealed is None and each.size
        ]
        chunks = list(state.chunks.values())
        free = {
            key
            for each in segments
            if not state.rests(key := broker.layout.segment_key(*each[1]), now_ms)
        }
    segments.sort()
    numbers = np.array([number for number, _, _ in segments], np.int64)
    rows = _Rows.of((chunk, np.isin(chunk.extents.number, numbers)) for chunk in chunks)
    lows = np.searchsorted(rows.extents.number, numbers).tolist()
    highs = np.searchsorted(rows.extents.number, numbers, "right").tolist()
    found = []
    for (number, place, size), low, high in zip(segments, lows, highs, strict=True):
        of_segment = rows.between(low, high)
        key = broker.layout.segment_key(*place)
        extents = of_segment.extents
        ends = np.cumsum(extents.length)
        if not len(ends) or ends[-1] != size or (extents.position != ends - extents.length).any():
            raise MetadataError(key, "the log does not say where all of its bytes are")
        found.append(_Whole(number, key, key in free, size, of_segment))
    return found


def _put_small(broker: BrokerLog, wholes: Sequence[_Whole], pool: Pool) -> list[Sealed]:
    parts = [whole.rows.extents for whole in wholes]
    data = memoryview(_read(broker, _Rows(_concatenated(parts), wholes[0].rows.names)))
    starts = np.cumsum([0, *(whole.size for whole in wholes)]).tolist()
    found: dict[int, Sealed] = {}

    def put(item: tuple[int, _Whole]) -> None:
        start, whole = item
        part = data[start : start + whole.size]
        found[whole.number] = _placed(broker, whole, lambda key: broker.calls.put(key, bytes(part)))

    helpers = min(SIDE_BY_SIDE, len(wholes)) - 1
    side_by_side(pool, zip(starts, wholes, strict=False), put, helpers=helpers)
    return [found[whole.number] for whole in wholes]


def _streamed(broker: BrokerLog, whole: _Whole) -> Sealed:
    def put(key: str) -> None:
        blocks = (_read(broker, piece) for piece in whole.rows.cut(READ_BYTES))
        broker.calls.put_stream(key, blocks, metadata={})

    return _placed(broker, whole, put)


def _placed(broker: BrokerLog, whole: _Whole, put: Callable[[str], object]) -> Sealed:
    """Put it at RocketMQ's key; where that is another's, or a delete may still land on it, under a
    name that nobody else ever has."""
    crc = whole.crc
    if whole.is_key_free:
        try:
            put(broker.key(whole.key))
        except ObjectExistsError:
            if _holds(broker, whole.key, whole.size, crc):  # of a sealing that was cut off
                return Sealed(whole.number, whole.key, whole.size, crc)
            log.warning("%s is another's: its segment is sealed beside the log", whole.key)
        else:
            return Sealed(whole.number, whole.key, whole.size, crc)
    name = broker.data_name()
    put(broker.key(name))
    return Sealed(whole.number, name, whole.size, crc)


def _holds(broker: BrokerLog, key: str, size: int, crc: int) -> bool:
    """Whether the object has exactly these bytes."""
    facts = broker.calls.head(key)
    if facts is None or facts.size != size:
        return False
    found = 0
    for start in range(0, size, READ_BYTES):
        wanted = Range(key, start, min(READ_BYTES, size - start))
        found = crc32c(broker.calls.ranges([wanted])[0], found)
    return found == crc


def seal_stream(broker: BrokerLog, key: SegmentKey, blocks: Iterable[Buffer]) -> int:
    """A whole new segment from a stream of blocks; its size. None from an empty stream.

    Until the entry says so there is no such segment, whatever lies at its key. What the stream
    raises comes through. PositionMismatchError where another has begun the segment meanwhile.
    """
    broker.claim()
    name = broker.layout.segment_key(*key)
    with broker.guard:
        is_resting = broker.state().rests(name, broker.clock.now_ms())
    if is_resting or broker.calls.head(name) is not None:  # of a creation that was cut off
        name = broker.data_name()
    size = crc = 0

    def counted() -> Iterator[Buffer]:
        nonlocal size, crc
        for block in blocks:
            size, crc = size + memoryview(block).nbytes, crc32c(block, crc)
            yield block

    try:
        broker.calls.put_stream(broker.key(name), counted(), metadata={})
    except ObjectExistsError as error:  # the stream is spent: the caller starts over
        reason = "another object came to its key meanwhile"
        raise BackendUnavailableError(broker.key(name), "create", reason) from error
    if not size:
        return 0
    draft = Draft(taken=[(key, Sealed(0, name, size, crc))])
    broker.append([draft])
    if draft.error is not None:
        raise draft.error
    return size


def _say(broker: BrokerLog, sealed: Sequence[Sealed]) -> None:
    drafts = [Draft(sealed=[each]) for each in sealed]
    broker.append(drafts)
    for draft in drafts:
        if draft.error is not None:
            raise draft.error
