"""Where one index file ends and the next begins, in runs that nobody has merged.

What lives here: `file_plans`. Each boundary is found by rank: the samples of all runs tell between
which times it lies, and only the entries between those are read. What the driver holds is the
samples, one number for a thousand entries, and some blocks of each run that is open at that time.

The order of all entries is by store time; of equal times by topic number, queue id and queue
offset; the keys of one message as they stand in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.scratch import Scratch
from tieredstore.jobs.reindexing.reindex_runs import SAMPLE_ENTRIES, KeyRun

_BACK_ENTRIES: Final = 64  # looked at first for the beginning of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """Entries `start` to before `end` of a run; none of them is older than `time_from`."""

    run_name: str
    topic_id: int
    queue_id: int
    start: int
    end: int
    time_from: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """What goes into one index file: parts of runs, by place."""

    number: int
    first_time: int
    count: int
    parts: tuple[RunPart, ...]


def file_plans(scratch: Scratch, runs: Sequence[KeyRun], *, items_max: int) -> Iterator[FilePlan]:
    """Files of at most `items_max` entries each, in order; `runs` are in order too, none empty.

    A message stays in one file, unless it has more keys than any file has room for.
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
        # How many entries are not newer than a sample: at least, and at most.
        self._times = times[order]
        self._least = np.cumsum(least[order])
        self._most = np.cumsum(most[order])

    def boundary(self, starts: NDArray[np.int64], rank: int) -> tuple[NDArray[np.int64], int]:
        """How much of each run lies before the entry of this rank, counted from 0, without what
        there is of its message; and the time of the first entry behind."""
        low, high = self._bracket(rank)
        before, between = self._read(low, high)
        ordered = np.sort(np.concatenate(between))
        left = rank - int(before.sum())
        time = int(ordered[left]) if left < len(ordered) else high
        ends = before + np.array([np.searchsorted(each, time) for each in between], np.int64)
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
        """Two times: all that is not newer than the first lies before the rank, and the entry of
        the rank is newer, but not newer than the second."""
        # Of equal times the last sample counts all of them.
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
        """Of each run how many entries are not newer than `low`, and the times of those that are,
        up to before `high`."""
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
        """How many entries of a run are not newer than this."""
        known = int(np.searchsorted(run.samples, time, side="right"))
        start, end = (known - 1) * SAMPLE_ENTRIES, min(run.count, known * SAMPLE_ENTRIES)
        times = run.read(self._scratch, start, end)["time"]
        return start + int(np.searchsorted(times, time, side="right"))

    def _whole(self, run: KeyRun, floor: int, at: int, *, is_alone: bool) -> int:
        """The same place, or where the message begins that it would part. A message that a whole
        file has no room for is parted: all there is of the file is `is_alone` in this run."""
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
    """What each sample adds to how many entries are not newer: for sure, and at most."""
    count = len(run.samples)
    least = np.full(count, SAMPLE_ENTRIES, np.int64)
    least[0] = 1
    most = np.full(count, SAMPLE_ENTRIES, np.int64)
    most[-1] = run.count - (count - 1) * SAMPLE_ENTRIES
    return least, most
