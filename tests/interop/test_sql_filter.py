"""Generated conditions, evaluated by RocketMQ's own filter and by ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codec.sql_expressions import questions
from tests.interop.verifier import sql_filter_says
from tieredstore.codec.sql_filter import SqlFilter
from tieredstore.model.errors import InvalidArgumentError

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize("seed", range(3))
def test_both_refuse_the_same_and_take_the_same(seed: int, tmp_path: Path) -> None:
    asked = list(questions(seed, 10_000))
    takes = 0
    for question, answer in zip(asked, sql_filter_says(asked, tmp_path), strict=True):
        try:
            chosen = SqlFilter(question["sql"])
        except InvalidArgumentError as error:
            assert not answer["valid"] or "ends before this" in str(error), question  # noqa: PT017
            continue
        assert answer["valid"], question
        assert answer["taken"] == [chosen.matches(one) for one in question["properties"]], question
        takes += sum(answer["taken"])
    assert takes > 1_000
