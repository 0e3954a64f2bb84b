"""Parts of sorted runs merged into one order, in bounded memory.

What lives here: `merged`. What the order is, is told in `reindex_cuts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.runtime import Runtime
from tieredstore.driver.scratch import Scratch
from tieredstore.index.rows import IndexColumns
from tieredstore.jobs.reindexing.reindex_cuts import RunPart
from tieredstore.jobs.reindexing.reindex_runs import ENTRY_BYTES, ENTRY_DTYPE

MERGE_ENTRIES: Final = 1 << 21  # in memory, over all runs that are open; twice with what is fetched
_BLOCK_MIN: Final = 1_024
_BLOCK_MAX: Final = 1 << 17
_GIVEN_ENTRIES: Final = 1 << 16


def merged(
    scratch: Scratch,
    parts: Sequence[RunPart],
    runtime: Runtime,
    *,
    entries_max: int = MERGE_ENTRIES,
) -> Iterator[IndexColumns]:
    """All entries in order; a run is opened when its turn comes. `parts` are by place."""
    waiting: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
    count = 0
    for piece in _rounds(scratch, parts, runtime, entries_max):
        waiting.append(piece)
        count += len(piece[1])
        if count >= _GIVEN_ENTRIES:
            yield _columns(waiting, parts)
            waiting, count = [], 0
    if waiting:
        yield _columns(waiting, parts)


class _Open:
    """A part that is being read: a block in hand, the next one under way."""

    def __init__(
        self, place: int, scratch: Scratch, part: RunPart, runtime: Runtime, block: int
    ) -> None:
        self.place = place
        self._scratch = scratch
        self._part = part
        self._runtime = runtime
        self._block = block
        self._at = part.start
        self._next: Future[bytes] | None = self._ask()
        self.entries: NDArray[Any] = np.empty(0, ENTRY_DTYPE)
        self.fill()

    @property
    def has_more(self) -> bool:
        return self._next is not None

    @property
    def bound(self) -> tuple[int, int]:
        """All of this part up to here is in hand."""
        return int(self.entries["time"][-1]), self.place

    def fill(self) -> None:
        if self._next is not None:
            self.entries = np.frombuffer(self._next.result(), ENTRY_DTYPE)
            self._next = self._ask()

    def take(self, bound: tuple[int, int] | None) -> NDArray[Any]:
        """What is in hand and comes not behind the bound."""
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
        return self._runtime.fetch.submit(
            self._scratch.read,
            self._part.run_name,
            start * ENTRY_BYTES,
            (end - start) * ENTRY_BYTES,
        )


def _rounds(
    scratch: Scratch, parts: Sequence[RunPart], runtime: Runtime, entries_max: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Pieces in order: which part each entry is of, and the entries."""
    closed = sorted(range(len(parts)), key=lambda place: parts[place].time_from, reverse=True)
    block = max(_BLOCK_MIN, min(_BLOCK_MAX, entries_max // (1 + _overlapping(parts))))
    opened: list[_Open] = []
    while closed or opened:
        bound = min((each.bound for each in opened if each.has_more), default=None)
        if closed:
            # What is older than all of the next part need not wait for it.
            begin = parts[closed[-1]].time_from, -1
            if bound is None or begin < bound:
                if not any(int(each.entries["time"][0]) < begin[0] for each in opened):
                    place = closed.pop()
                    opened.append(_Open(place, scratch, parts[place], runtime, block))
                    continue
                bound = begin
        opened.sort(key=lambda each: each.place)
        taken = [(each.place, each.take(bound)) for each in opened]
        entries = np.concatenate([each for _, each in taken])
        places = np.repeat([place for place, _ in taken], [len(each) for _, each in taken])
        order = np.argsort(entries["time"], kind="stable")
        yield places[order], entries[order]
        for each in opened:
            if not len(each.entries):
                each.fill()
        opened = [each for each in opened if len(each.entries)]


def _overlapping(parts: Sequence[RunPart]) -> int:
    """About how many parts are open at a time: those of one queue follow each other, mostly."""
    return len({(part.topic_id, part.queue_id) for part in parts})


def _columns(
    pieces: Sequence[tuple[NDArray[np.int64], NDArray[Any]]], parts: Sequence[RunPart]
) -> IndexColumns:
    places = np.concatenate([place for place, _ in pieces])
    entries = np.concatenate([each for _, each in pieces])
    return IndexColumns(
        key_hashes=entries["key_hash"].astype(np.uint64),
        topic_ids=np.array([part.topic_id for part in parts], np.int64)[places],
        queue_ids=np.array([part.queue_id for part in parts], np.int64)[places],
        log_offsets=entries["log_offset"].astype(np.int64),
        message_bytes=entries["message_bytes"].astype(np.int64),
        store_timestamps=entries["time"].astype(np.int64),
    )
