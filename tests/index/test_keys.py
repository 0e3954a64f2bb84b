"""Times of keys: which files may have hits for a window, and which of their items are hits."""

from __future__ import annotations

import pytest

from tests.index.index_kit import BEGIN
from tieredstore.index.keys import (
    Match,
    TimeRange,
    seconds_window,
    times_of_seconds,
    with_true_times,
)


@pytest.mark.parametrize(
    ("begin", "end", "exact", "about_seconds"),
    [
        (0, 4_000, False, False),
        (0, 4_001, False, True),  # a second that has begun counts as a whole
        (0, 5_000, True, True),
        (9_000, 9_999, True, True),
        (9_001, 9_999, False, True),
        (10_000, 10_999, False, False),
    ],
)
def test_a_range_of_whole_seconds_reaches_into_those_beside_it(
    begin: int, end: int, exact: bool, about_seconds: bool
) -> None:
    assert TimeRange(first=5_000, last=9_000).overlaps(begin, end) is exact
    seconds = TimeRange(first=5_000, last=9_000, exact=False)
    assert seconds.overlaps(begin, end) is about_seconds


def test_an_item_is_within_a_window_if_its_second_may_be() -> None:
    times = TimeRange(first=1_000, last=90_000)
    items = [Match(1, 2, 0, 9, at) for at in (999, 4_000, 4_001, 9_999, 10_000, 90_001)]
    found = list(with_true_times(items, times, begin=5_000, end=9_000))
    assert [item.store_timestamp for item in found] == [90_000, 4_001, 9_999, 90_000]


def seconds_of(stored_ms: int) -> int:
    """The seconds in an item for a message that was stored so long after the begin of its file."""
    return int(stored_ms / 1000)  # truncated toward the begin


@pytest.mark.parametrize(
    "at", [-3_000_999, -3_000_000, -1_000, -999, -1, 0, 1, 999, 1_000, 3_000_000, 3_000_999]
)
def test_a_window_of_one_millisecond_has_the_second_of_its_message(at: int) -> None:
    least, greatest = seconds_window(BEGIN + at, BEGIN + at, begin_timestamp=BEGIN)
    assert least <= seconds_of(at) <= greatest <= least + 1


@pytest.mark.parametrize(("least", "greatest"), [(-3, -2), (-1, -1), (-1, 0), (0, 0), (1, 3)])
def test_items_of_some_seconds_stand_for_all_messages_that_are_cut_to_them(
    least: int, greatest: int
) -> None:
    cut = [at for at in range(-9_999, 9_999) if least <= seconds_of(at) <= greatest]
    times = times_of_seconds(least, greatest, begin_timestamp=BEGIN)
    assert times == TimeRange(first=BEGIN + cut[0], last=BEGIN + cut[-1], exact=False)
