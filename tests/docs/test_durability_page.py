"""docs/durability.md names, for each thing that it promises, a test that shows it."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, page, section, table

TEXT = page("durability.md")
_TEST = re.compile(r"tests/[\w/]+/test_\w+\.py")


def test_each_of_the_nine_invariants_names_a_test() -> None:
    text = section(TEXT, "The nine invariants")
    told = re.findall(r"^\*\*([0-9])\. .*?(?=^\*\*|\Z)", text, re.MULTILINE | re.DOTALL)
    assert told == [str(number) for number in range(1, 10)]
    for paragraph in re.split(r"^\*\*[0-9]\. ", text, flags=re.MULTILINE)[1:]:
        assert re.search(rf"`{_TEST.pattern}`", paragraph), paragraph


def test_each_crash_names_tests_that_there_are() -> None:
    rows = table(TEXT, "The power fails after …")
    assert len(rows) >= 16
    for row in rows:
        shown = _TEST.findall(row[-1])
        assert shown, row
        assert [path for path in shown if not (ROOT / path).is_file()] == []
