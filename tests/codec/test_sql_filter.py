"""Conditions in SQL92, against the verdicts of RocketMQ's own filter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import expected
from tests.local.store_audit import opened
from tieredstore.codec.message import decode_message
from tieredstore.codec.sql_filter import (
    DEPTH_MAX,
    EXPRESSION_CHARACTERS_MAX,
    SqlFilter,
    filter_of,
)
from tieredstore.codec.tags_filter import TagsFilter
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.testing.samples import TOPIC, a_message

ROWS: list[dict[str, Any]] = expected("sql-filter.json")
ENDS_BEFORE = "the condition ends before this"  # Java ignores what follows it

WORDS = [
    *["a", "b", "'x'", "5", "5.5", "NULL", "TRUE", "NOT", "AND", "OR", "IN", "IS", "BETWEEN"],
    *["CONTAINS", "(", ")", ",", "=", "<>", "<", ">=", "-", "+", "--", "/*", "*/", "\n", "'", "!"],
]


def test_messages_are_taken_as_java_takes_them() -> None:
    answers = [0, 0]
    for row in ROWS:
        if not row["valid"]:
            with pytest.raises(InvalidArgumentError, match="sql: "):
                SqlFilter(row["sql"])
            continue
        try:
            chosen = SqlFilter(row["sql"])
        except InvalidArgumentError as error:
            assert ENDS_BEFORE in str(error), row  # noqa: PT017 - only that may be refused
            continue
        for properties, taken in zip(row["properties"], row["taken"], strict=True):
            assert chosen.matches(properties) is taken, (row["sql"], properties)
            answers[taken] += 1
    assert min(answers) > 200


@pytest.mark.parametrize(
    ("condition", "properties", "taken"),
    [
        ("price BETWEEN 5 AND 10 AND color = 'red'", {"price": "7", "color": "red"}, True),
        ("price BETWEEN 5 AND 10 AND color = 'red'", {"price": "11", "color": "red"}, False),
        ("price NOT BETWEEN 5 AND 10", {"price": "11"}, True),
        ("color IN ('red', 'it''s')", {"color": "it's"}, True),
        ("color NOT IN ('red')", {}, False),
        ("color IS NULL OR color NOT IN ('red')", {}, True),
        (
            "color CONTAINS 'e' and color STARTSWITH 'r' AND color endswith 'd'",
            {"color": "red"},
            True,
        ),
        ("NOT (a = 'x')", {"a": "y"}, True),
        ("NOT (a = 'x')", {}, False),
        ("a > 5 OR b = TRUE", {"b": "true"}, True),
        ("b = TRUE OR a > 5", {"a": "red", "b": "true"}, True),
        ("a > 5 OR b = TRUE", {"a": "red", "b": "true"}, False),
        ("a > 0.0", {"a": "1"}, True),
    ],
)
def test_conditions_of_the_documentation(
    condition: str, properties: dict[str, str], taken: bool
) -> None:
    assert SqlFilter(condition).matches(properties) is taken


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("", "a property, a text or a number is missing, at character 1 of ''"),
        ("a != 'x'", "unknown sign.* at character 3 "),
        ("a = 1 b = 2", "ends before this, at character 7 "),
        ("a = 'x", "without an end, at character 5 "),
        ("a > 'x'", "> is for numbers and properties"),
        ("a BETWEEN 2 AND 1", "nothing is between"),
        ("a = NULL", "want IS NULL"),
        ("1 IN ('1')", "IN is for a property"),
        ("a IN (1)", "a text in single quotes is missing"),
        ("5", "neither true nor false"),
        ("a = 9223372036854775808", "more than 64 bits"),
        (f"a = {'9' * 5_000}", "more than 64 bits, at character 5 of"),
        ("a = 1e400", "too large"),
        ("TRUE = 1", "a truth is compared"),
        ("(a = 1", r"\) is missing"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(condition: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        SqlFilter(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 8_000,
        "-" * 16_000,
        "NOT " * 4_000 + "a",
        "a" + " = 1" * 4_000,
        "a" + " IS NULL" * 1_500,
        "a = 1" + " " * EXPRESSION_CHARACTERS_MAX,
    ],
)
def test_depth_and_length_are_bounded(condition: str) -> None:
    started = time.perf_counter()
    with pytest.raises(InvalidArgumentError, match="more than"):
        SqlFilter(condition)
    assert time.perf_counter() - started < 2


def test_a_long_row_of_alternatives_is_not_deep() -> None:
    chosen = SqlFilter(" OR ".join(f"a = {number}" for number in range(1_200)))
    assert chosen.matches({"a": "1199"})
    assert not chosen.matches({"a": "1200"})
    nested = "(" * (DEPTH_MAX - 1) + "a = 1" + ")" * (DEPTH_MAX - 1)
    assert SqlFilter(nested).matches({"a": "1"})


@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join) | st.text(max_size=40))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        chosen = SqlFilter(text)
    except InvalidArgumentError:
        return
    assert isinstance(chosen.matches({"a": "5", "b": "x"}), bool)


def test_a_store_gives_what_the_condition_takes(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(10):
        store.put_message(a_message(number, properties={"n": str(number), "TAGS": "A"}))
    page = store.get_message(TOPIC, 0, 0, message_filter=SqlFilter("n >= 3 AND n <> 5"))
    found = [decode_message(one.record).properties["n"] for one in page.messages]
    assert found == ["3", "4", "6", "7", "8", "9"]
    assert page.next_offset == 10


def test_a_subscription_names_its_kind() -> None:
    assert filter_of("*") is None
    assert filter_of("", "TAG") is None
    by_tags = filter_of("A || B", "")
    assert isinstance(by_tags, TagsFilter)
    assert by_tags.tags == {"A", "B"}
    assert isinstance(filter_of("a = 1", "SQL92"), SqlFilter)
    with pytest.raises(InvalidArgumentError, match="want TAG or SQL92"):
        filter_of("a = 1", "sql")
    with pytest.raises(InvalidArgumentError, match="sql: "):
        filter_of("*", "SQL92")
