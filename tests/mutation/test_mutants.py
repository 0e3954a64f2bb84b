"""The mutation tool makes the mutants that it describes, and its list names real ones."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutation.__main__ import PACKAGES, QUICK, Package, live_functions, survivors
from tests.mutation.mutants import ROOT, Mutant, mutants_of, sample

SOURCE = '''
LIMIT = 3

class Counter:
    step = 1

    def above(self, number: int = 4) -> bool:
        """A text."""
        return number > LIMIT

def count(numbers):
    total = 0
    for number in numbers:
        if not number:
            break
        total += number
    log.warning("counted %d", 1 + 2)
    return total

def look(text):
    try:
        check(text)
    except ValueError:
        raise KeyError(1) from None
    return len(text) == 2 or len(text) == 2
'''


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Mutant]:
    path = tmp_path / "small.py"
    path.write_text(SOURCE)
    return {each.key.removeprefix(f"{path} "): each for each in mutants_of(str(path))}


def test_each_change_of_a_body_is_a_mutant_and_nothing_else_is(found: dict[str, Mutant]) -> None:
    assert sorted(found) == sorted(
        [
            "Counter.above: return number > LIMIT -> return None",
            "Counter.above: number > LIMIT -> number >= LIMIT",
            "Counter.above: number > LIMIT -> number <= LIMIT",
            "count: 0 -> 1",
            "count: not number -> number",
            "count: break -> continue",
            "count: total += number -> total -= number",
            "count: return total -> return None",
            "look: drop check(text)",
            "look: drop raise KeyError(1) from None",
            "look: return len(text) == 2 or len(text) == 2 -> return None",
            "look: len(text) == 2 or len(text) == 2 -> len(text) == 2 and len(text) == 2",
            "look: len(text) == 2 -> len(text) != 2",
            "look: 2 -> 3",
            "look: len(text) == 2 -> len(text) != 2 (2)",
            "look: 2 -> 3 (2)",
        ]
    )


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("count: 0 -> 1", 6),
        ("count: not number -> number", 0),
        ("count: break -> continue", 9),
        ("count: total += number -> total -= number", -5),
        ("count: return total -> return None", None),
    ],
)
def test_a_mutant_does_what_it_says(found: dict[str, Mutant], key: str, answer: Any) -> None:
    class Log:
        def warning(self, *_: object) -> None: ...

    mutated = FunctionType(found[key].code(), {"log": Log()})
    assert mutated([2, 3, 0, 4]) == answer
    as_it_was = {each.key: ast.unparse(each.tree) for each in found.values()}
    assert set(as_it_was.values()) == {ast.unparse(ast.parse(SOURCE))}


def test_every_mutant_of_every_package_can_be_put_into_the_function_that_runs() -> None:
    for package in PACKAGES.values():
        chosen = sample(package.paths(), seed=5, count=12)
        live = live_functions({mutant.unit.path for mutant in chosen})
        for mutant in chosen:
            new: CodeType = mutant.code()
            assert {each.__code__.co_freevars for each in live[mutant.unit]} == {new.co_freevars}


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    paths = PACKAGES["queues"].paths()
    first, again, other = (
        [mutant.key for mutant in sample(paths, seed=seed, count=20)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_each_listed_survivor_is_a_mutant_that_exists_and_has_a_reason() -> None:
    rows = survivors()
    assert {word for word, _, _ in rows} <= {"equal", "left", "open"}
    assert all(reason.strip() for _, _, reason in rows)
    paths = {key.split(" ")[0] for _, key, _ in rows}
    there = {mutant.key for path in paths for mutant in mutants_of(path)}
    assert [key for _, key, _ in rows if key not in there] == []


def test_the_quick_tests_are_those_of_make_quick() -> None:
    makefile = (ROOT / "Makefile").read_text()
    marks = re.search(r"^quick:.*\n.* -m '(.+?)'", makefile, re.MULTILINE)
    assert marks is not None
    assert marks[1] == QUICK


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_a_package_names_files_and_folders_that_are_there(package: Package) -> None:
    assert package.paths()
    assert all((ROOT / folder).is_dir() for folder in (*package.tests, *package.others))
