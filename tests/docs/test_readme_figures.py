"""The figures of the front page are rows of docs/benchmarks.md, and stand nowhere else on it."""

from __future__ import annotations

import re

import pytest

from bench._front import BEGIN, END, between_marks, front_of
from tests.docs.pages import ROOT, page

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_figures_of_the_front_page_are_made_from_the_page_of_benchmarks() -> None:
    assert between_marks(README, front_of(page("benchmarks.md"))) == README


def test_no_other_figure_of_speed_stands_on_the_front_page() -> None:
    before, _, rest = README.partition(BEGIN)
    prose = before + rest.partition(END)[2]
    assert re.findall(r"[\d,.]+ ?(?:MB/s|GB/s|/s|µs|us|ms)\b", prose) == []


def test_a_row_that_nobody_measured_is_an_error() -> None:
    with pytest.raises(KeyError):
        front_of(page("benchmarks.md").replace("cached read of 1 ", "cached read of 2 "))


def test_a_page_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="marks"):
        between_marks(README.replace(END, ""), "")
