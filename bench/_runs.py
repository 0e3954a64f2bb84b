"""Several runs of the same benchmarks: whether their ratios agree within the spread of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from bench._rows import RESULTS, Row

KEPT: Final = RESULTS / "runs.json"

Runs = Mapping[str, Sequence[Sequence[float]]]
"""Of each row, by benchmark and name: the ratio of each run, and its spread."""


def agree(runs: Sequence[Sequence[float]]) -> bool:
    """Whether some ratio is within the spread of each run."""
    lowest = max(ratio - spread for ratio, spread in runs)
    return lowest <= min(ratio + spread for ratio, spread in runs)


def gathered(runs: Sequence[Mapping[str, Sequence[Row]]]) -> dict[str, list[list[float]]]:
    """The ratios of each row that every run has."""
    found: dict[str, list[list[float]]] = {}
    for figures in runs:
        for name, rows in figures.items():
            for row in rows:
                if row.ratio is not None:
                    ratios = found.setdefault(f"{name}: {row.what}", [])
                    ratios.append([row.ratio, row.spread or 0.0])
    return {what: ratios for what, ratios in found.items() if len(ratios) == len(runs)}


def keep(runs: Runs) -> None:
    KEPT.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


def kept() -> dict[str, list[list[float]]]:
    """What `keep` was last given; empty if it was never called."""
    if not KEPT.exists():
        return {}
    found: dict[str, list[list[float]]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def section(runs: Runs) -> list[str]:
    """What a page says about them: how many agree, and the rows that do not."""
    if not runs:
        return []
    others = {what: ratios for what, ratios in runs.items() if not agree(ratios)}
    count = len(next(iter(runs.values())))
    lines = [
        f"### {count} runs in a row",
        "",
        f"Of {len(runs)} ratios {len(runs) - len(others)} agree in all runs within their spread.",
    ]
    if others:
        lines += ["The others:", "", "| what | ratio of each run |", "| --- | --- |"]
    for what, ratios in others.items():
        each = ", ".join(f"{ratio:.2f} ± {spread:.2f}" for ratio, spread in ratios)
        lines.append(f"| {what} | {each} |")
    return lines
