"""Sorted runs of key entries for an index: staged, assigned to index files, and merged.

A run is staged as one object:

    | part    | bytes   | little-endian                                                  |
    | ------- | ------- | -------------------------------------------------------------- |
    | entries | 28 each | store time i64, hash u64, log offset i64, size of message i32  |
    | samples | 8 each  | store time of entries 0, 1024, 2048 and so on                  |
    | trailer | 56      | magic, six numbers of 64 bits: see `_TRAILER`                  |

All entries are ordered by store time, and those with equal times by topic number, queue id and
queue offset; the keys of one message keep their order. Thanks to the samples, it is known where one
index file ends and the next begins before any run is merged. So a merge needs bounded memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field, replace
from math import isqrt
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.durable import read_all
from tieredstore.driver.provider import Scratch, StagedObject
from tieredstore.driver.runtime import Runtime
from tieredstore.index.keys import IndexColumns
from tieredstore.model.errors import SegmentCorruptError

ENTRY_DTYPE: Final = np.dtype(
    [("time", "<i8"), ("key_hash", "<u8"), ("log_offset", "<i8"), ("message_bytes", "<i4")]
)
ENTRY_BYTES: Final = ENTRY_DTYPE.itemsize
_PLACED_DTYPE: Final = np.dtype([*ENTRY_DTYPE.descr, ("place", "<i4")])
SAMPLE_ENTRIES: Final = 1_024
RUN_ENTRIES_MAX: Final = 1 << 20  # in a writer's memory
MAGIC: Final = b"TSKRUN01"
_TRAILER: Final = Struct("<8s6q")  # entries, topic id, queue id, first offset, number, damaged
_LAST: Final = 1 << 40  # added to the number of an origin's last run
_BACK_ENTRIES: Final = 64  # how far to look back at first for the beginning of a message
MERGE_ENTRIES: Final = 1 << 18  # in memory over all open runs; twice that with blocks under way
_OPEN_MAX: Final = 256  # runs merged at a time
_BLOCK_MIN: Final = 1_024
_BLOCK_MAX: Final = 1 << 17
_GIVEN_ENTRIES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyRun:
    """One staged run. Entries with equal times are ordered by the `place` of their runs.

    `log_shift` is how far its messages have moved in their log since it was staged.
    """

    name: str
    topic_id: int
    queue_id: int
    first_offset: int
    number: int
    is_last: bool
    count: int
    damaged_count: int = 0
    log_shift: int = 0
    samples: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def place(self) -> tuple[int, int, int, int]:
        return self.topic_id, self.queue_id, self.first_offset, self.number

    def read(self, scratch: Scratch, start: int, end: int) -> NDArray[Any]:
        """The entries from number `start` to before `end`."""
        data = scratch.read(self.name, start * ENTRY_BYTES, (end - start) * ENTRY_BYTES)
        return np.frombuffer(data, ENTRY_DTYPE)


@dataclass(slots=True, eq=False)
class RunWriter:
    """Makes the runs of one origin, a slice or a segment. A new run begins when memory is full."""

    scratch: Scratch
    stem: str
    _: KW_ONLY
    topic_id: int
    queue_id: int
    first_offset: int
    entries_max: int = RUN_ENTRIES_MAX
    damaged_count: int = 0
    runs: list[KeyRun] = field(default_factory=list)
    _waiting: list[NDArray[Any]] = field(default_factory=list)
    _waiting_count: int = 0

    def add(self, columns: IndexColumns) -> None:
        """Add keys of the queue's next messages. The keys of one call stay in one run, so those of
        one message must come in one call."""
        if not len(columns):
            return
        if self._waiting_count + len(columns) > self.entries_max and self._waiting_count:
            self._flush(is_last=False)
        entries = np.empty(len(columns), ENTRY_DTYPE)
        entries["time"] = columns.store_timestamps
        entries["key_hash"] = columns.key_hashes
        entries["log_offset"] = columns.log_offsets
        entries["message_bytes"] = columns.message_bytes
        self._waiting.append(entries)
        self._waiting_count += len(entries)

    def finish(self) -> list[KeyRun]:
        """All runs. The last one, which may be empty, marks the end."""
        self._flush(is_last=True)
        return self.runs

    def _flush(self, *, is_last: bool) -> None:
        entries = _joined(self._waiting) if self._waiting else np.empty(0, ENTRY_DTYPE)
        self._waiting, self._waiting_count = [], 0
        times = entries["time"].astype(np.int64)
        if (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            entries, times = _taken(entries, order), times.take(order)
        run = KeyRun(
            name=f"{self.stem}.{len(self.runs)}",
            topic_id=self.topic_id,
            queue_id=self.queue_id,
            first_offset=self.first_offset,
            number=len(self.runs),
            is_last=is_last,
            count=len(entries),
            damaged_count=self.damaged_count,
            samples=times[::SAMPLE_ENTRIES].copy(),
        )
        self.scratch.put(run.name, [entries.tobytes(), run.samples.tobytes(), _trailer(run)])
        self.runs.append(run)


def _trailer(run: KeyRun) -> bytes:
    number = run.number + (_LAST if run.is_last else 0)
    return _TRAILER.pack(
        *(MAGIC, run.count, run.topic_id, run.queue_id, run.first_offset, number),
        run.damaged_count,
    )


def staged_runs(scratch: Scratch, folder: str) -> dict[str, list[KeyRun]]:
    """The runs of all finished origins, by stem."""
    return {
        stem: runs
        for stem, runs in _runs_by_stem(scratch, folder).items()
        if runs[-1].is_last and [run.number for run in runs] == list(range(len(runs)))
    }


def drop_damaged(scratch: Scratch, folder: str, *, made_of_runs: str) -> None:
    """Remove the runs of origins that could not be read in whole: by now they may be sound. What
    was made of runs, in its own folder, goes first: its names would be those of other bytes."""
    found = _runs_by_stem(scratch, folder).values()
    damaged = [run.name for runs in found if any(run.damaged_count for run in runs) for run in runs]
    if damaged:
        scratch.delete([made.name for made in scratch.listed(made_of_runs)])
        scratch.delete(damaged)


def _runs_by_stem(scratch: Scratch, folder: str) -> dict[str, list[KeyRun]]:
    found: dict[str, list[KeyRun]] = {}
    for staged in scratch.listed(folder):
        stem, _, number = staged.name.rpartition(".")
        if number.isdigit():
            found.setdefault(stem, []).append(_read_run(scratch, staged))
    for runs in found.values():
        runs.sort(key=lambda run: run.number)
    return found


def _read_run(scratch: Scratch, staged: StagedObject) -> KeyRun:
    at = staged.size - _TRAILER.size
    if at < 0:
        raise SegmentCorruptError(staged.name, "this is no run of keys", position=0)
    data = scratch.read(staged.name, at, _TRAILER.size)
    magic, count, topic_id, queue_id, first, number, damaged = _TRAILER.unpack(data)
    samples = -(-count // SAMPLE_ENTRIES)
    if magic != MAGIC or count < 0 or count * ENTRY_BYTES + samples * 8 != at:
        raise SegmentCorruptError(staged.name, "this is no run of keys", position=at)
    times = scratch.read(staged.name, count * ENTRY_BYTES, samples * 8) if samples else b""
    return KeyRun(
        name=staged.name,
        topic_id=topic_id,
        queue_id=queue_id,
        first_offset=first,
        number=number % _LAST,
        is_last=number >= _LAST,
        count=count,
        damaged_count=damaged,
        samples=np.frombuffer(times, "<i8").astype(np.int64),
    )


def in_order(runs: Sequence[KeyRun]) -> list[KeyRun]:
    """The runs that have entries, sorted by place."""
    return sorted((run for run in runs if run.count), key=lambda run: run.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """Entries [start, end) of a run; none of them is older than `time_from`."""

    run_name: str
    topic_id: int
    queue_id: int
    start: int
    end: int
    time_from: int
    log_shift: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """What goes into one index file: parts of runs, sorted by place."""

    number: int
    first_time: int
    count: int
    parts: tuple[RunPart, ...]


def file_plans(scratch: Scratch, runs: Sequence[KeyRun], *, items_max: int) -> Iterator[FilePlan]:
    """Files of at most `items_max` entries each, in order; `runs` are in order, and none is empty.

    The keys of a message stay in one file, unless they are too many for any file.
    """
    if not runs:
        return
    ranks = _Ranks(scratch, runs)
    total = sum(run.count for run in runs)
    starts = np.zeros(len(runs), np.int64)
    first_time = min(int(run.samples[0]) for run in runs)
    number = 0
    while (done := int(starts.sum())) < total:
        ends, next_time = np.array([run.count for run in runs], np.int64), 0
        if total - done > items_max:
            ends, next_time = ranks.boundary(starts, done + items_max)
        yield FilePlan(
            number=number,
            first_time=first_time,
            count=int((ends - starts).sum()),
            parts=_parts(runs, starts, ends),
        )
        starts, first_time, number = ends, next_time, number + 1


def _parts(
    runs: Sequence[KeyRun], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[RunPart, ...]:
    return tuple(
        RunPart(
            run_name=run.name,
            topic_id=run.topic_id,
            queue_id=run.queue_id,
            start=start,
            end=end,
            time_from=int(run.samples[start // SAMPLE_ENTRIES]),
            log_shift=run.log_shift,
        )
        for run, start, end in zip(runs, starts.tolist(), ends.tolist(), strict=True)
        if start < end
    )


class _Ranks:
    """Finds entries by their rank among those of all runs."""

    def __init__(self, scratch: Scratch, runs: Sequence[KeyRun]) -> None:
        self._scratch = scratch
        self._runs = runs
        times = np.concatenate([run.samples for run in runs])
        least = np.concatenate([_steps(run)[0] for run in runs])
        most = np.concatenate([_steps(run)[1] for run in runs])
        order = np.argsort(times, kind="stable")
        # How many entries are not newer than a sample: the least and the most possible.
        self._times = times[order]
        self._least = np.cumsum(least[order])
        self._most = np.cumsum(most[order])

    def boundary(self, starts: NDArray[np.int64], rank: int) -> tuple[NDArray[np.int64], int]:
        """How many entries of each run lie before the entry of this rank, counted from 0, and the
        time of the first entry after them. The boundary moves back to the beginning of a message
        that it would split."""
        low, high = self._bracket(rank)
        before, between = self._read(low, high)
        ordered = np.sort(np.concatenate(between))
        left = rank - int(before.sum())
        time = int(ordered[left]) if left < len(ordered) else high
        ends = before + np.array([np.searchsorted(times, time) for times in between], np.int64)
        left = rank - int(ends.sum())
        for place, run in enumerate(self._runs):
            if not left:
                break
            if int(run.samples[0]) > time:
                continue
            same = self._not_newer(run, time) - int(ends[place])
            taken = min(left, same)
            left -= taken
            ends[place] += taken
            if taken < same:
                at = int(ends[place])
                is_alone = int((ends - starts).sum()) == at - int(starts[place])
                ends[place] = self._whole(run, int(starts[place]), at, is_alone=is_alone)
        return ends, time

    def _bracket(self, rank: int) -> tuple[int, int]:
        """Two times: all entries up to the first lie before the rank, and the entry of this rank is
        newer than the first, but not newer than the second."""
        # Of samples with equal times, only the last counts all of their entries.
        lasts = np.append(self._times[1:] != self._times[:-1], True)
        times, least, most = self._times[lasts], self._least[lasts], self._most[lasts]
        below = int(np.searchsorted(most, rank, side="right")) - 1
        above = int(np.searchsorted(least, rank, side="right"))
        low = int(times[below]) if below >= 0 else int(times[0]) - 1
        return low, int(times[above]) if above < len(times) else self._newest()

    def _newest(self) -> int:
        return max(
            int(run.read(self._scratch, run.count - 1, run.count)["time"][0]) for run in self._runs
        )

    def _read(self, low: int, high: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """For each run, how many entries are not newer than `low`, and the times of the entries
        between `low` and `high`, both excluded."""
        before = np.zeros(len(self._runs), np.int64)
        between: list[NDArray[np.int64]] = []
        for place, run in enumerate(self._runs):
            first = int(np.searchsorted(run.samples, low, side="right")) - 1
            last = int(np.searchsorted(run.samples, high, side="left"))
            start, end = max(0, first * SAMPLE_ENTRIES), min(run.count, last * SAMPLE_ENTRIES)
            times = np.empty(0, np.int64)
            if start < end:
                times = run.read(self._scratch, start, end)["time"].astype(np.int64)
            at = int(np.searchsorted(times, low, side="right"))
            before[place] = start + at
            between.append(times[at : int(np.searchsorted(times, high))])
        return before, between

    def _not_newer(self, run: KeyRun, time: int) -> int:
        """How many entries of a run are not newer than this time."""
        known = int(np.searchsorted(run.samples, time, side="right"))
        start, end = (known - 1) * SAMPLE_ENTRIES, min(run.count, known * SAMPLE_ENTRIES)
        times = run.read(self._scratch, start, end)["time"]
        return start + int(np.searchsorted(times, time, side="right"))

    def _whole(self, run: KeyRun, floor: int, at: int, *, is_alone: bool) -> int:
        """`at`, or the beginning of a message that a cut there would split. `is_alone`: the file
        has entries of this run only. If they are all of one message, no file has room for it, and
        it is split."""
        count = _BACK_ENTRIES
        while True:
            start = max(floor, at - count)
            offsets = run.read(self._scratch, start, at + 1)["log_offset"]
            others = np.flatnonzero(offsets[:-1] != offsets[-1])
            if len(others):
                return start + int(others[-1]) + 1
            if start == floor:
                return at if is_alone else floor
            count *= 4


def _steps(run: KeyRun) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many entries that are not newer each sample adds: at least, and at most."""
    count = len(run.samples)
    least = np.full(count, SAMPLE_ENTRIES, np.int64)
    least[0] = 1
    most = np.full(count, SAMPLE_ENTRIES, np.int64)
    most[-1] = run.count - (count - 1) * SAMPLE_ENTRIES
    return least, most


def merged(
    scratch: Scratch,
    parts: Sequence[RunPart],
    runtime: Runtime,
    *,
    entries_max: int = MERGE_ENTRIES,
) -> Iterator[IndexColumns]:
    """All entries in order. `parts` are sorted by place; a run is opened when its turn comes.

    If more queues have parts than can be open at a time, groups of parts are first merged into a
    local temporary file, which takes 32 bytes an entry.
    """
    waiting: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
    count = 0
    for places, entries in _all_rounds(scratch, parts, runtime, entries_max):
        for start in range(0, len(entries), _GIVEN_ENTRIES):
            piece = slice(start, start + _GIVEN_ENTRIES)
            waiting.append((places[piece], entries[piece]))
            count += len(waiting[-1][1])
            if count >= _GIVEN_ENTRIES:
                yield _columns(waiting, parts)
                waiting, count = [], 0
    if waiting:
        yield _columns(waiting, parts)


def _all_rounds(
    scratch: Scratch, parts: Sequence[RunPart], runtime: Runtime, entries_max: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Pieces in order: the number of the part that each entry is from, and the entries."""
    if _overlapping(parts) <= _OPEN_MAX:
        some = [_Source(place, scratch.read, part) for place, part in enumerate(parts)]
        yield from _rounds(some, runtime, entries_max // (1 + _overlapping(parts)))
        return
    step = max(_OPEN_MAX, isqrt(len(parts)))
    with tempfile.TemporaryFile() as file:

        def read(_: str, position: int, length: int) -> bytes:
            return read_all(file.fileno(), length, position)

        merged_ones, end = [], 0
        for first in range(0, len(parts), step):
            group = parts[first : first + step]
            some = [_Source(first + at, scratch.read, part) for at, part in enumerate(group)]
            start = end
            for places, entries in _rounds(some, runtime, entries_max // (1 + len(group))):
                placed = np.empty(len(entries), _PLACED_DTYPE)
                placed[list(ENTRY_DTYPE.names or ())] = entries
                placed["place"] = places
                file.write(placed.data)
                end += len(placed)
            time_from = min(part.time_from for part in group)
            whole = replace(group[0], start=start, end=end, time_from=time_from)
            file.flush()
            merged_ones.append(_Source(first, read, whole, _PLACED_DTYPE))
        yield from _rounds(merged_ones, runtime, entries_max // (1 + len(merged_ones)))


@dataclass(frozen=True, slots=True)
class _Source:
    """A part of a run, or several parts merged into one. The entries of merged parts have a `place`
    of their own, and the source has that of the first part."""

    place: int
    read: Callable[[str, int, int], bytes]
    part: RunPart
    dtype: np.dtype[Any] = ENTRY_DTYPE


class _Open:
    """A part being read: one block in hand, and the next one under way."""

    def __init__(self, source: _Source, runtime: Runtime, block: int) -> None:
        self.place = source.place
        self._source = source
        self._part = source.part
        self._runtime = runtime
        self._block = block
        self._at = source.part.start
        self._next: Future[bytes] | None = self._ask()
        self.entries: NDArray[Any] = np.empty(0, source.dtype)
        self.fill()

    @property
    def has_more(self) -> bool:
        return self._next is not None

    @property
    def bound(self) -> tuple[int, int]:
        """The time and place up to which this part is in hand."""
        return int(self.entries["time"][-1]), int(self.places_of(self.entries[-1:])[0])

    def places_of(self, entries: NDArray[Any]) -> NDArray[np.int64]:
        if "place" in (entries.dtype.names or ()):
            return entries["place"].astype(np.int64)
        return np.full(len(entries), self.place)

    def fill(self) -> None:
        if self._next is not None:
            self.entries = np.frombuffer(self._next.result(), self._source.dtype)
            self._next = self._ask()

    def take(self, bound: tuple[int, int] | None) -> NDArray[Any]:
        """Take the entries in hand that do not come after the bound."""
        entries = self.entries
        if bound is not None:
            time, place = bound
            side: Any = "right" if self.place <= place else "left"
            entries = entries[: int(np.searchsorted(entries["time"], time, side=side))]
        self.entries = self.entries[len(entries) :]
        return entries

    def _ask(self) -> Future[bytes] | None:
        start, end = self._at, min(self._at + self._block, self._part.end)
        if start >= end:
            return None
        self._at = end
        width = self._source.dtype.itemsize
        return self._runtime.fetch.submit(
            self._source.read, self._part.run_name, start * width, (end - start) * width
        )


def _rounds(
    sources: Sequence[_Source], runtime: Runtime, block: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Pieces in order: the number of the part that each entry is from, and the entries."""
    closed = sorted(sources, key=lambda source: source.part.time_from, reverse=True)
    block = max(_BLOCK_MIN, min(_BLOCK_MAX, block))
    opened: list[_Open] = []
    while closed or opened:
        bound = min((part.bound for part in opened if part.has_more), default=None)
        if closed:
            # Entries older than the whole next part need not wait for it.
            begin = closed[-1].part.time_from, -1
            if bound is None or begin < bound:
                if not any(int(part.entries["time"][0]) < begin[0] for part in opened):
                    opened.append(_Open(closed.pop(), runtime, block))
                    continue
                bound = begin
        opened.sort(key=lambda part: part.place)
        taken = [(part, part.take(bound)) for part in opened]
        entries = _joined([some for _, some in taken])
        places = np.concatenate([part.places_of(some) for part, some in taken])
        order = np.argsort(entries["time"], kind="stable")
        yield places.take(order), _taken(entries, order)
        for part in opened:
            if not len(part.entries):
                part.fill()
        opened = [part for part in opened if len(part.entries)]


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate entries, as bytes: numpy joins structures field by field, which is slow."""
    dtype = parts[0].dtype
    return np.concatenate([part.view(f"V{dtype.itemsize}") for part in parts]).view(dtype)


def _taken(entries: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """The entries in this order, moved as bytes like in `_joined`."""
    return entries.view(f"V{entries.dtype.itemsize}").take(order).view(entries.dtype)


def _overlapping(parts: Sequence[RunPart]) -> int:
    """About how many parts are open at a time: the parts of one queue mostly do not overlap."""
    return len({(part.topic_id, part.queue_id) for part in parts})


def _columns(
    pieces: Sequence[tuple[NDArray[np.int64], NDArray[Any]]], parts: Sequence[RunPart]
) -> IndexColumns:
    places = np.concatenate([place for place, _ in pieces])
    entries = _joined([part for _, part in pieces])
    shifts = np.array([part.log_shift for part in parts], np.int64)
    return IndexColumns(
        key_hashes=entries["key_hash"].astype(np.uint64),
        topic_ids=np.array([part.topic_id for part in parts], np.int64)[places],
        queue_ids=np.array([part.queue_id for part in parts], np.int64)[places],
        log_offsets=entries["log_offset"] + shifts[places],
        message_bytes=entries["message_bytes"].astype(np.int64),
        store_timestamps=entries["time"].astype(np.int64),
    )
