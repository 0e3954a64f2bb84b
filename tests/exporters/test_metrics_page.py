"""docs/metrics.md says of every metric what the code says."""

from __future__ import annotations

from tests.exporters.metrics_page import PAGE, TABLES, with_tables
from tieredstore.driver.metrics import BASE_LABELS


def test_the_tables_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text), "run: python -m tests.exporters.metrics_page"


def test_a_page_that_says_something_else_is_made_true() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for metrics in TABLES.values():
        wrong = text.replace(f"`{metrics[0].name}`", "`another`")
        assert wrong != text
        assert with_tables(wrong) == text


def test_the_base_labels_are_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, value in BASE_LABELS.items():
        assert f'`{name}="{value}"`' in text
