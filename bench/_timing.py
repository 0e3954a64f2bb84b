"""What every benchmark shares: medians, a table of ratios, results as JSON.

What lives here: `median_seconds`, `compare` and `report`. On shared machines only ratios mean
much, so a promise is a ratio: `report` says which are missed.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


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

    @property
    def is_kept(self) -> bool:
        return self.promised is None or self.ratio >= self.promised


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


def table(comparisons: Sequence[Comparison]) -> str:
    """One line for each comparison."""
    width = max(len(row.what) for row in comparisons)
    lines = [f"{'':{width}}  {'plain':>10}  {'ours':>10}  {'ratio':>7}  promised"]
    for row in comparisons:
        promised = "" if row.promised is None else f">= {row.promised:g}"
        verdict = "" if row.is_kept else "  MISSED"
        lines.append(
            f"{row.what:{width}}  {_shown(row.plain_seconds):>10}  {_shown(row.ours_seconds):>10}"
            f"  {row.ratio:6.1f}x  {promised}{verdict}"
        )
    return "\n".join(line.rstrip() for line in lines)


def report(name: str, comparisons: Sequence[Comparison]) -> int:
    """Print the table, keep the figures under the name, return the exit code."""
    print(f"{name}, Python {platform.python_version()}")
    print(table(comparisons))
    rows = [{**asdict(row), "ratio": row.ratio, "kept": row.is_kept} for row in comparisons]
    save(name, {"python": platform.python_version(), "rows": rows})
    return 0 if all(row.is_kept for row in comparisons) else 1


def save(name: str, figures: object) -> Path:
    """Write the figures as JSON beside the benchmarks, where git does not look."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return path


def _shown(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
