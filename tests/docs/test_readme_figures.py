"""The figures at the front are those of the page of benchmarks, which a script writes."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT, page, table

_ROW = re.compile(r"^\|(.+)\| `make bench BENCH=(\w+)` \|$", re.MULTILINE)
_NUMBER = re.compile(r"\d[\d ,]*(?:\.\d+)?")


class Figure(NamedTuple):
    what: str
    ours: str
    java: str
    ratio: str
    bench: str


FRONT = [
    Figure._make([*(cell.strip().strip("*") for cell in cells.split("|")), name])
    for cells, name in _ROW.findall((ROOT / "README.md").read_text(encoding="utf-8"))
]


def number(cell: str) -> float:
    """The number in a cell; M is a million. A cell without one has nothing to be held against."""
    found = _NUMBER.search(cell)
    if found is None:
        return 0.0
    value = float(found[0].replace(" ", "").replace(",", ""))
    return value * 1e6 if " M " in cell else value


def measured(bench: str) -> list[tuple[float, float]]:
    """Ours and the ratio of each row of a benchmark."""
    rows = table(page("benchmarks.md"), f"`make bench BENCH={bench}`")
    return [(number(row[2]), number(row[3])) for row in rows]


def test_there_are_figures() -> None:
    assert len(FRONT) > 5


@pytest.mark.parametrize("figure", FRONT, ids=[each.what for each in FRONT])
def test_a_figure_of_the_front_page_was_measured(figure: Figure) -> None:
    rows = measured(figure.bench)
    if " to " in figure.ratio:
        low, high = map(float, figure.ratio.rstrip("× ").split(" to "))
        assert any(low <= ratio <= high for _, ratio in rows)
        return
    ours, ratio = number(figure.ours), number(figure.ratio)
    assert any(
        abs(row[0] - ours) <= 0.01 * ours and (not ratio or abs(row[1] - ratio) <= 0.02 * ratio)
        for row in rows
    ), (figure, rows)
