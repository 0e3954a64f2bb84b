"""How benchmarks measure time: medians, and two ways that are alternated.

On shared machines only ratios mean much, so a promise is a ratio; `report` says which are missed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import _rows
from bench._rows import Row, turns_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How long the plain way and ours took, turn by turn; `promised` is the minimal ratio."""

    what: str
    plain_times: Sequence[float]
    ours_times: Sequence[float]
    promised: float | None = None

    @property
    def ours_seconds(self) -> float:
        return statistics.median(self.ours_times)


def seconds_of(action: Callable[[], object], *, repeats: int = 15, loops: int = 1) -> list[float]:
    """The time of one call, `repeats` times: means of `loops` calls, after one call to warm up."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(loops):
            action()
        times.append((time.perf_counter() - start) / loops)
    return times


def seconds_once(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median_seconds(action: Callable[[], object], *, repeats: int = 15, loops: int = 1) -> float:
    return statistics.median(seconds_of(action, repeats=repeats, loops=loops))


def compare(
    what: str,
    *,
    plain: Callable[[], object],
    ours: Callable[[], object],
    promised: float | None = None,
    repeats: int = 5,
    loops: int = 1,
    turns: int = 3,
) -> Comparison:
    """Alternate both ways, a few times each: what slows the machine down slows both."""
    plain_times: list[float] = []
    ours_times: list[float] = []
    for _ in range(turns):
        plain_times.append(median_seconds(plain, repeats=repeats, loops=loops))
        ours_times.append(median_seconds(ours, repeats=repeats, loops=loops))
    return Comparison(what=what, plain_times=plain_times, ours_times=ours_times, promised=promised)


def report(name: str, comparisons: Sequence[Comparison]) -> int:
    """Print the table, keep the figures under the name, return the exit code."""
    return _rows.report(name, [row_of(each) for each in comparisons])


def row_of(comparison: Comparison) -> Row:
    return turns_row(
        comparison.what,
        comparison.plain_times,
        comparison.ours_times,
        unit="s",
        promised=comparison.promised,
    )
