"""The result of a benchmark: rows of figures, each with the one that it is compared with.

A promise is a ratio to what was measured in the same run, never a number from another machine.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

RESULTS = Path(__file__).parent / "results"
NO_JAVA: Final = "Java: not run"

Unit = Literal["/s", "MB/s", "s", "MB", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure as text, and how many times better it is than the one that it is compared with.

    That is a limit measured in the same run, a peer, or Java. `ratio` is None if there is none;
    `spread` is the largest deviation of a turn from the ratio.
    """

    what: str
    beside: str
    ours: str
    ratio: float | None
    promised: float | None = None
    spread: float | None = None

    @property
    def is_kept(self) -> bool:
        return self.promised is None or self.ratio is None or self.ratio >= self.promised

    @property
    def ratio_text(self) -> str:
        if self.ratio is None:
            return ""
        return f"{self.ratio:.2f}" + ("" if self.spread is None else f" ± {self.spread:.2f}")


def turns_row(
    what: str,
    beside: Sequence[float] | None,
    ours: Sequence[float],
    *,
    unit: Unit = "/s",
    promised: float | None = None,
    absent: str = "",
) -> Row:
    """Figures of turns, the n-th of both sides from the same moment: the ratio is turn by turn.

    Rates are better when they are greater, seconds and bytes when they are smaller. `absent` says
    why there is nothing to compare with.
    """
    if beside is None:
        return Row(what=what, beside=absent, ours=shown(ours, unit), ratio=None)
    is_rate = unit.endswith("/s")
    pairs = zip(beside, ours, strict=True)
    ratios = [our / other if is_rate else other / our for other, our in pairs]
    ratio = statistics.median(ratios)
    return Row(
        what=what,
        beside=shown(beside, unit),
        ours=shown(ours, unit),
        ratio=ratio,
        promised=promised,
        spread=farthest(ratios) if len(ratios) > 1 else None,
    )


def java_row(
    what: str,
    java: Sequence[float] | None,
    ours: Sequence[float],
    *,
    unit: Unit = "/s",
    promised: float | None = None,
) -> Row:
    what = f"{what} (Java)"
    return turns_row(what, java, ours, unit=unit, promised=promised, absent=NO_JAVA)


def farthest(values: Sequence[float]) -> float:
    """The largest distance of a value from the median."""
    middle = statistics.median(values)
    return max(abs(value - middle) for value in values)


def shown(values: Sequence[float], unit: Unit) -> str:
    """The median, and in percent the deviation of the farthest turn."""
    middle = statistics.median(values)
    noise = f" ± {farthest(values) / middle:.0%}" if len(values) > 1 and middle else ""
    return f"{_with_unit(middle, unit)}{noise}"


def _with_unit(value: float, unit: Unit) -> str:
    if unit == "s":
        for name, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
            if value * factor >= 1:
                return f"{value * factor:.1f} {name}"
        return f"{value * 1e9:.0f} ns"
    return f"{value:,.0f}{' ' if unit.startswith('M') else ''}{unit}"


def table(rows: Sequence[Row]) -> str:
    """A table with one line for each row."""
    width = max(len(row.what) for row in rows)
    lines = [f"{'':{width}}  {'beside':>18}  {'ours':>18}  {'ratio':>13}  promised"]
    for row in rows:
        promised = "" if row.promised is None else f">= {row.promised:.2g}"
        verdict = "" if row.is_kept else "  MISSED"
        lines.append(
            f"{row.what:{width}}  {row.beside:>18}  {row.ours:>18}  {row.ratio_text:>13}  "
            f"{promised}{verdict}".rstrip()
        )
    return "\n".join(lines)


def report(name: str, rows: Sequence[Row]) -> int:
    """Print the table, keep the figures under the name, return the exit code."""
    print(f"{name}, Python {platform.python_version()}")
    print(table(rows))
    RESULTS.mkdir(exist_ok=True)
    figures = {"python": platform.python_version(), "rows": [asdict(row) for row in rows]}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.is_kept for row in rows) else 1


def saved(name: str) -> list[Row]:
    """The rows that `report` kept under a name."""
    figures = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return [Row(**row) for row in figures["rows"]]
