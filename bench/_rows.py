"""What a benchmark comes to: rows of figures beside what they are held against."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure as text, and how many times better it is than what stands beside it.

    Beside it stands a promise, a physical limit measured in the same run, or Java's figure.
    """

    what: str
    beside: str
    ours: str
    ratio: float
    promised: float | None = None

    @property
    def is_kept(self) -> bool:
        return self.promised is None or self.ratio >= self.promised


def rate_row(what: str, beside: float, ours: float, promised: float | None = 1.0) -> Row:
    return Row(
        what=what,
        beside=f"{beside:,.0f}/s",
        ours=f"{ours:,.0f}/s",
        ratio=ours / beside,
        promised=promised,
    )


def table(rows: Sequence[Row]) -> str:
    """One line for each row."""
    width = max(len(row.what) for row in rows)
    lines = [f"{'':{width}}  {'beside':>12}  {'ours':>12}  {'ratio':>8}  promised"]
    for row in rows:
        promised = "" if row.promised is None else f">= {row.promised:.2g}"
        verdict = "" if row.is_kept else "  MISSED"
        lines.append(
            f"{row.what:{width}}  {row.beside:>12}  {row.ours:>12}  {row.ratio:7.2f}x  "
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
    """What `report` kept under a name."""
    figures = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return [Row(**row) for row in figures["rows"]]
