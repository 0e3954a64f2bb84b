"""Rows of benchmarks: a ratio is taken turn by turn, and says how far its turns went apart."""

from __future__ import annotations

import pytest

from bench._rows import NO_JAVA, java_row, turns_row


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
