"""How benchmarks take times: medians, and two ways compared in turns.

On shared machines only ratios mean much, so a promise is a ratio: `report` says which are missed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import _rows
from bench._rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How long the plain way and ours take; `promised` is the least ratio, if one was promised."""

    what: str
    plain_seconds: float
    ours_seconds: float
    promised: float | None = None

    @property
    def ratio(self) -> float:
        return self.plain_seconds / self.ours_seconds


def seconds_of(action: Callable[[], object], *, repeats: int = 15, loops: int = 1) -> list[float]:
    """The time of one call, `repeats` times: means of `loops` calls each, after one to warm up."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(loops):
            action()
        times.append((time.perf_counter() - start) / loops)
    return times


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
    """Both ways in turns, a few times each: what slows the machine down slows both."""
    plain_times: list[float] = []
    ours_times: list[float] = []
    for _ in range(turns):
        plain_times += seconds_of(plain, repeats=repeats, loops=loops)
        ours_times += seconds_of(ours, repeats=repeats, loops=loops)
    return Comparison(
        what=what,
        plain_seconds=statistics.median(plain_times),
        ours_seconds=statistics.median(ours_times),
        promised=promised,
    )


def report(name: str, comparisons: Sequence[Comparison]) -> int:
    """Print the table, keep the figures under the name, return the exit code."""
    return _rows.report(name, [row_of(each) for each in comparisons])


def row_of(comparison: Comparison) -> Row:
    return Row(
        what=comparison.what,
        beside=_shown(comparison.plain_seconds),
        ours=_shown(comparison.ours_seconds),
        ratio=comparison.ratio,
        promised=comparison.promised,
    )


def _shown(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
