"""Sorted runs of key entries, staged on their way into an index: writing and finding them again.

What lives here: `KeyRun`, `RunWriter` and `staged_runs`. A run has keys of one queue, by store time
and then in the order of the messages. How runs become files is in `reindex_cuts`, `reindex_merge`
and `reindex_files`.

    | part    | bytes   | little-endian                                                  |
    | ------- | ------- | -------------------------------------------------------------- |
    | entries | 28 each | store time i64, hash u64, log offset i64, size of message i32  |
    | samples | 8 each  | store time of entries 0, 1024, 2048 and so on                  |
    | trailer | 56      | magic, six numbers of 64 bits: see `_TRAILER`                  |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.scratch import Scratch, StagedObject
from tieredstore.index.rows import IndexColumns
from tieredstore.model.errors import SegmentCorruptError

ENTRY_DTYPE: Final = np.dtype(
    [("time", "<i8"), ("key_hash", "<u8"), ("log_offset", "<i8"), ("message_bytes", "<i4")]
)
ENTRY_BYTES: Final = ENTRY_DTYPE.itemsize
SAMPLE_ENTRIES: Final = 1_024
RUN_ENTRIES_MAX: Final = 1 << 20  # in memory of whoever makes runs
MAGIC: Final = b"TSKRUN01"
_TRAILER: Final = Struct("<8s6q")  # entries, topic id, queue id, first offset, number, damaged
_LAST: Final = 1 << 40  # added to the number of the last run of its origin


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyRun:
    """One staged run. Runs are ordered by `place`: of equal times the lesser place comes first."""

    name: str
    topic_id: int
    queue_id: int
    first_offset: int
    number: int
    is_last: bool
    count: int
    damaged_count: int = 0
    samples: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def place(self) -> tuple[int, int, int, int]:
        return self.topic_id, self.queue_id, self.first_offset, self.number

    def read(self, scratch: Scratch, start: int, end: int) -> NDArray[Any]:
        """The entries from number `start` to before `end`."""
        data = scratch.read(self.name, start * ENTRY_BYTES, (end - start) * ENTRY_BYTES)
        return np.frombuffer(data, ENTRY_DTYPE)


class RunWriter:
    """Makes the runs of one origin, a slice or a segment: as many as memory asks for."""

    def __init__(
        self,
        scratch: Scratch,
        stem: str,
        *,
        topic_id: int,
        queue_id: int,
        first_offset: int,
        entries_max: int = RUN_ENTRIES_MAX,
    ) -> None:
        self.runs: list[KeyRun] = []
        self.damaged_count = 0
        self._scratch = scratch
        self._stem = stem
        self._topic_id = topic_id
        self._queue_id = queue_id
        self._first_offset = first_offset
        self._entries_max = entries_max
        self._waiting: list[NDArray[Any]] = []
        self._waiting_count = 0

    def add(self, columns: IndexColumns) -> None:
        """Keys of the queue's next messages; those of one message stay in one run."""
        if not len(columns):
            return
        if self._waiting_count + len(columns) > self._entries_max and self._waiting_count:
            self._flush(is_last=False)
        entries = np.empty(len(columns), ENTRY_DTYPE)
        entries["time"] = columns.store_timestamps
        entries["key_hash"] = columns.key_hashes
        entries["log_offset"] = columns.log_offsets
        entries["message_bytes"] = columns.message_bytes
        self._waiting.append(entries)
        self._waiting_count += len(entries)

    def finish(self) -> list[KeyRun]:
        """All runs; the last one, maybe without entries, says that there are no more."""
        self._flush(is_last=True)
        return self.runs

    def _flush(self, *, is_last: bool) -> None:
        entries = np.concatenate(self._waiting) if self._waiting else np.empty(0, ENTRY_DTYPE)
        self._waiting, self._waiting_count = [], 0
        times = entries["time"].astype(np.int64)
        if (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            entries, times = entries[order], times[order]
        run = KeyRun(
            name=f"{self._stem}.{len(self.runs)}",
            topic_id=self._topic_id,
            queue_id=self._queue_id,
            first_offset=self._first_offset,
            number=len(self.runs),
            is_last=is_last,
            count=len(entries),
            damaged_count=self.damaged_count,
            samples=times[::SAMPLE_ENTRIES].copy(),
        )
        self._scratch.put(run.name, [entries.tobytes(), run.samples.tobytes(), _trailer(run)])
        self.runs.append(run)


def _trailer(run: KeyRun) -> bytes:
    number = run.number + (_LAST if run.is_last else 0)
    return _TRAILER.pack(
        *(MAGIC, run.count, run.topic_id, run.queue_id, run.first_offset, number),
        run.damaged_count,
    )


def staged_runs(scratch: Scratch, folder: str) -> dict[str, list[KeyRun]]:
    """By stem, the runs of all origins that were finished."""
    by_stem: dict[str, list[StagedObject]] = {}
    for each in scratch.listed(folder):
        stem, _, number = each.name.rpartition(".")
        if number.isdigit():
            by_stem.setdefault(stem, []).append(each)
    found = {}
    for stem, objects in by_stem.items():
        runs = sorted((_read_run(scratch, each) for each in objects), key=lambda run: run.number)
        whole = runs[-1].is_last and [run.number for run in runs] == list(range(len(runs)))
        if whole:
            found[stem] = runs
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
    """Those that have entries, by place."""
    return sorted((run for run in runs if run.count), key=lambda run: run.place)
