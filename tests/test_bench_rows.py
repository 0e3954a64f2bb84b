"""Rows of benchmarks: a ratio is computed turn by turn, and shown with the spread of its turns."""

from __future__ import annotations

import pytest

from bench._rows import NO_JAVA, Row, java_row, turns_row
from bench._runs import agree, gathered, section


def test_rates_are_better_when_they_are_greater_and_times_when_they_are_smaller() -> None:
    assert turns_row("what", [100.0], [50.0]).ratio == 0.5
    assert turns_row("what", [100.0], [50.0], unit="s").ratio == 2.0


def test_what_slows_both_sides_of_a_turn_down_leaves_its_ratio() -> None:
    row = turns_row("what", [100.0, 10.0, 80.0], [50.0, 5.0, 40.0], promised=0.5)
    assert (row.ratio, row.spread, row.is_kept) == (0.5, 0.0, True)
    assert row.ours == "40/s ± 88%"


def test_the_spread_is_that_of_the_farthest_turn() -> None:
    row = turns_row("what", [100.0] * 3, [50.0, 60.0, 90.0], promised=0.7)
    assert row.spread == pytest.approx(0.3)
    assert not row.is_kept


def test_without_java_a_row_says_so_and_promises_nothing() -> None:
    row = java_row("what", None, [50.0], promised=1.0)
    assert (row.beside, row.ratio, row.is_kept) == (NO_JAVA, None, True)


def test_turns_that_were_not_taken_in_pairs_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        turns_row("what", [1.0, 2.0], [1.0])


def test_runs_agree_where_one_ratio_is_within_the_spread_of_each() -> None:
    assert agree([(0.5, 0.1), (0.6, 0.05), (0.52, 0.04)])
    assert not agree([(0.5, 0.1), (0.7, 0.05)])


def test_a_page_names_the_rows_whose_runs_do_not_agree() -> None:
    def a_run(*ratios: float | None) -> dict[str, list[Row]]:
        rows = zip("abc", ratios, strict=True)
        return {"puts": [Row(what=w, beside="", ours="", ratio=r, spread=0.01) for w, r in rows]}

    runs = gathered([a_run(0.5, 0.5, None), a_run(0.51, 0.6, None), a_run(0.5, 0.5, 1.0)])
    assert list(runs) == ["puts: a", "puts: b"]
    said = "\n".join(section(runs))
    assert "Of 2 ratios 1 agree in all runs" in said
    assert "| puts: b | 0.50 ± 0.01, 0.60 ± 0.01, 0.50 ± 0.01 |" in said
    assert "puts: a" not in said


def test_a_page_says_nothing_of_runs_that_were_not_made() -> None:
    assert section({}) == []
