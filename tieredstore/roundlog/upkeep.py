"""Keeps a log small: merges rounds, seals segments, writes states, deletes dead objects.

Merging and sealing read, write under a new name, then append one entry. A process that dies in
between leaves only an object that no entry names.

* **Merge.** A quiet queue has an extent in every round. Several rounds become data objects with
  their bytes in the order of segments, and several of those are merged again. An object with more
  dead bytes than live ones is rewritten without the dead ones.
* **Seal.** The extents of a segment become the object that RocketMQ knows.
* **State.** One object replaces all entries so far: readers begin there, and the entries can go.
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
    BackendError,
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

MERGED_BYTES: Final = 64 << 20  # of a data object, and in memory at a time
ROUNDS_MERGED: Final = 32  # or fewer that have MERGED_BYTES together
CHUNKS_MERGED: Final = 16  # of one level above 0
EXTENT_BYTES: Final = 4 << 20  # no joined extent crosses a multiple of this in its segment
READ_BYTES: Final = 16 << 20  # of ranges requested at a time
ONE_PUT_BYTES: Final = 32 << 20  # a sealed segment that is longer is written as a stream, in parts
SPAN_BYTES: Final = 8 << 20  # of one range, unless one extent is longer
GAP_BYTES: Final = 128 << 10  # a smaller gap is read too, rather than request two ranges
STATE_EVERY: Final = 256  # entries
STATES_KEPT: Final = 3
GRACE_MS: Final = 15 * 60_000
DROPPED_MAX: Final = 4_096  # deleted names that no entry contains yet


@dataclass(frozen=True, slots=True)
class Weighed:
    """A chunk, and how many of its bytes belong to segments that are still open."""

    chunk: Chunk
    live: NDArray[np.bool_]
    live_bytes: int
    dead_bytes: int
    segment_count: int

    @property
    def level(self) -> int:
        """The chunk's level; at least 1 for a large round, which is as good as merged."""
        return max(self.chunk.level, int(self.live_bytes >= MERGED_BYTES // 2))

    @property
    def is_scattered(self) -> bool:
        """Whether its segments have fewer bytes each than one read takes, on average. Another merge
        then saves reads."""
        return self.live_bytes < self.segment_count * SPAN_BYTES


def weighed(chunks: Iterable[Chunk], open_numbers: NDArray[np.int64]) -> list[Weighed]:
    """Weigh all chunks, the oldest first."""
    found = []
    for chunk in sorted(chunks, key=lambda each: each.sequence):
        live = np.isin(chunk.extents.number, open_numbers)
        live_bytes = int(chunk.extents.length[live].sum())
        dead_bytes = int(chunk.extents.length.sum()) - live_bytes
        count = len(np.unique(chunk.extents.number[live]))
        found.append(Weighed(chunk, live, live_bytes, dead_bytes, count))
    return found


def to_merge(chunks: Sequence[Weighed]) -> list[Weighed]:
    """Choose the chunks to merge into one; none if a merge is not yet worth its requests.

    Chunks without live bytes cost nothing, so they join any merge.
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
    """The oldest chunks that fit into one object: `count` at most, two at least."""
    ends = np.cumsum([each.live_bytes for each in chunks])
    fitting = int(np.searchsorted(ends, MERGED_BYTES, "right"))
    return list(chunks[: min(count, max(fitting, 2))])


# Bytes of many extents


@dataclass(frozen=True, slots=True)
class _Rows:
    """Extents by segment and position. Their `object` counts in `names`, from 0."""

    extents: Extents
    names: tuple[str, ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[Chunk, NDArray[np.bool_]]]) -> _Rows:
        """The extents that each chunk's mask selects."""
        names: dict[str, int] = {}
        found = [Extents.none()]
        for chunk, mask in parts:
            extents = chunk.extents.taken(mask)
            numbers = np.array([names.setdefault(each, len(names)) for each in chunk.objects])
            found.append(replace(extents, object=numbers[extents.object]))
        return cls(_concatenated(found).in_order(), tuple(names))

    def cut(self, bytes_max: int) -> Iterator[_Rows]:
        """Cut into pieces of at most `bytes_max`; a longer extent is a piece of its own."""
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
    """The bytes of all rows, concatenated and checked against their checksums.

    Each object is read front to back, in few ranges. SegmentCorruptError for wrong bytes.
    """
    extents = rows.extents
    lengths, offsets = extents.length.tolist(), extents.offset.tolist()
    starts = (np.cumsum(extents.length) - extents.length).tolist()
    data = bytearray(sum(lengths))
    # Released before `data` is returned: a caller cannot append to it while a view exists.
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
    """Groups of spans to request together."""
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
    """The extents after their bytes were concatenated in a new object; neighbours are joined."""
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
    """Maintains a writer's log, in bounded steps. Thread-safe; steps run one at a time.

    Raises: what BrokerLog raises. A merge that meets damaged bytes raises once; later merges skip
    its chunks. One that the backend fails or refuses is tried again after all else that is due.
    """

    def __init__(self, broker: BrokerLog) -> None:
        self._log = broker
        self._turn = threading.Lock()
        self._merging: Iterator[None] | None = None
        self._looked_at = 0  # the last sequence at which there was nothing to merge
        self._set_aside: set[int] = set()  # chunks of merges that met damaged bytes
        self._put_off: set[int] = set()  # chunks of merges that failed, until nothing else is due
        self._states: list[int] | None = None  # those kept, ascending; None before they were listed
        self._dropped: set[str] = set()  # deleted, but no entry says so yet
        # Their deletion failed: others come first, and then those that were tried longest ago.
        self._undeleted: dict[str, None] = {}
        self._released_at = float("-inf")
        self._says_at_once = True  # what it deletes, in its first round that deletes anything

    def step(self) -> bool:
        """Do what is due next. True if anything was done: then more may be due."""
        with self._turn:
            if not self._log.is_writer or self._log.fence is not None:
                return False
            if self._merge() or self._save(STATE_EVERY) or self._release():
                return True
            self._says_at_once = self._says_at_once and self._released_at == float("-inf")
            return False

    def save(self, *, entries_min: int) -> bool:
        """Write the state if at least `entries_min` entries have come since the last one."""
        with self._turn:
            if not self._log.is_writer or self._log.fence is not None:
                return False
            return self._save(entries_min)

    # Merge

    def _merge(self) -> bool:
        """Write one object of a merge, or its entry."""
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
            chunks = list(state.chunks.values())
        passed = self._set_aside | self._put_off
        chosen = to_merge(
            [
                each
                for each in weighed(chunks, np.array(numbers, np.int64))
                if each.chunk.sequence not in passed or not each.live_bytes  # nothing is read then
            ]
        )
        if not chosen and self._put_off:
            self._put_off.clear()  # the next step tries them again
        elif not chosen:
            self._looked_at = sequence
        return chosen

    def _merged(self, chosen: Sequence[Weighed]) -> Iterator[None]:
        """Yields after each object; ends after the entry."""
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
        except BackendError:
            self._put_off.update(sequences)  # one object that cannot be read holds up nothing else
            raise
        self._append(
            Draft(merged=sequences, extents=_concatenated(parts), objects=names), alone=True
        )

    def _put(self, data: bytearray, extents: Extents) -> str:
        """Write a data object of these bytes, with its table at the end; return its name."""
        columns = (extents.number, extents.position, extents.length, extents.offset, extents.crc)
        with self._log.guard:
            keys = {number: each.key for number, each in self._log.state().segments.items()}
        rows = [
            TableRow(keys[number], *rest)
            for number, *rest in zip(*(column.tolist() for column in columns), strict=True)
            if number in keys  # otherwise the segment was deleted meanwhile
        ]
        data += table_of(rows, payload_bytes=len(data), payload_crc=crc32c(data))
        name = self._log.data_name()
        self._log.calls.put(self._log.key(name), data)
        return name

    def _append(self, draft: Draft, *, alone: bool = False) -> None:
        """Append the draft, with the names that were deleted since the last entry."""
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
            if broker.staged:  # they are in the tables, but not in an entry
                return False
            state = broker.state()
            sequence, data = state.sequence, state.encoded()
        try:
            broker.calls.put(broker.key(state_name(sequence)), data)
        except ObjectExistsError:
            pass  # a state of the same entries, so it says the same
        states.append(sequence)
        old = states[:-STATES_KEPT]
        errors = broker.calls.undeleted([broker.key(state_name(each)) for each in old])
        states[: len(old)] = [each for each in old if broker.key(state_name(each)) in errors]
        for error in errors.values():
            raise error
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
        """Delete objects that have been dead long enough. The next entry says so."""
        broker = self._log
        now_ms = broker.clock.now_ms()
        since_s = broker.clock.monotonic() - self._released_at
        is_time = since_s * 1000 >= GRACE_MS
        states = self._states or []
        # An entry is needed until every kept state includes it. An older state that could not be
        # deleted needs none: nobody begins there.
        needed = log_name(states[-STATES_KEPT] + 1 if len(states) >= STATES_KEPT else 1)
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
        fresh_count = sum(name not in self._undeleted for name in due)
        if not due or (fresh_count < KEYS_PER_REQUEST and not is_time):
            return False
        if len(self._dropped) >= DROPPED_MAX:
            self._append(Draft())
        turns = {name: turn for turn, name in enumerate(self._undeleted)}
        some = sorted(due, key=lambda name: turns.get(name, -1))[:KEYS_PER_REQUEST]
        errors = broker.calls.undeleted([broker.key(name) for name in some])
        failed = [name for name in some if broker.key(name) in errors]
        self._dropped.update(name for name in some if broker.key(name) not in errors)
        if not failed and not turns.keys().isdisjoint(some):
            self._undeleted.clear()  # the bucket deletes again what it refused
        for name in some:
            self._undeleted.pop(name, None)
        self._undeleted |= dict.fromkeys(failed)
        self._released_at = broker.clock.monotonic()
        if self._says_at_once and self._dropped:
            self._append(Draft())  # else a job, which appends nothing later, never says so
        for error in errors.values():
            raise error
        return True


# Seal


@dataclass(frozen=True, slots=True)
class _Whole:
    """A segment that is to become one object."""

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

    Small segments are read together, so that many merged ones cost few reads, and written in
    parallel; a large one is streamed. Nobody should write to them meanwhile: a segment that grew
    is not sealed, and PositionMismatchError is raised once all others are.
    """
    sealed: list[Sealed] = []
    try:
        for together in _batches(_wholes(broker, keys)):
            sealed += _put_together(broker, together, pool)
    finally:
        if sealed:  # even if a later one failed
            _say(broker, sealed)


def _batches(wholes: Iterable[_Whole]) -> Iterator[list[_Whole]]:
    """Groups of segments to read together."""
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
    """The segments by number, without those that are empty, sealed or deleted."""
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
    """Put the segment at RocketMQ's key. If another object lies there, or a late delete may still
    land there, put it under a name of a data object, which no other object ever has."""
    crc = whole.crc
    if whole.is_key_free:
        try:
            put(broker.key(whole.key))
        except ObjectExistsError:
            if _holds(broker, whole.key, whole.size, crc):  # left by an interrupted sealing
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
    """Write a whole new segment from a stream of blocks; return its size. An empty stream makes no
    segment.

    The segment exists only once the entry is appended, whatever lies at its key. Errors of the
    stream pass through. PositionMismatchError if another has begun the segment meanwhile.
    """
    broker.claim()
    name = broker.layout.segment_key(*key)
    with broker.guard:
        is_resting = broker.state().rests(name, broker.clock.now_ms())
    if is_resting or broker.calls.head(name) is not None:  # left by an interrupted creation
        name = broker.data_name()
    size = crc = 0

    def counted() -> Iterator[Buffer]:
        nonlocal size, crc
        for block in blocks:
            size, crc = size + memoryview(block).nbytes, crc32c(block, crc)
            yield block

    try:
        broker.calls.put_stream(broker.key(name), counted(), metadata={})
    except ObjectExistsError as error:  # the stream is used up: the caller starts over
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
