"""The house style, as far as a test can check it; `make check` runs this module.

Each rule has two tests: the tree obeys it, and a text that breaks it is caught.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests import house_report
from tests import house_rules as rules
from tests.house_rules import ROOT

LIBRARY = ("tieredstore", "pyspark_tieredstore")
EVERYTHING = (*LIBRARY, "tests", "examples", "bench")
RUNTIME = ROOT / "tieredstore" / "driver" / "runtime.py"
FACE_THAT_PRINTS = ROOT / "tieredstore" / "cli"
TEXT_SUFFIXES = {".py", ".md", ".toml", ".cfg", ".ini", ".sh", ".yml", ".yaml", ".txt", ""}
# Written by others and kept byte for byte: no rule of ours applies.
NOT_OURS = {"golden", "__pycache__"}
SKIPPED_AT_THE_TOP = {"build", "dist"}
# They name files that do not exist yet or any more.
NOT_ABOUT_TODAY = {"roadmap.md", "CHANGELOG.md"}


def files(*folders: str, suffixes: Iterable[str] = (".py",)) -> Iterator[Path]:
    """Files under folders of the repository, each once, as os.walk does not follow our symlinks."""
    wanted = set(suffixes)
    for folder in folders:
        for here, below, names in os.walk(ROOT / folder):
            below[:] = sorted(name for name in below if name not in NOT_OURS)
            yield from (Path(here, name) for name in sorted(names) if Path(name).suffix in wanted)


def texts() -> Iterator[Path]:
    """Every text of the repository, also the files at its top."""
    for path in sorted(ROOT.iterdir()):
        hidden = path.name.startswith(".") and path.name not in {".ci", ".gitignore"}
        if hidden or path.name in SKIPPED_AT_THE_TOP:
            continue
        if path.is_dir():
            yield from files(path.name, suffixes=TEXT_SUFFIXES)
        elif path.suffix in TEXT_SUFFIXES:
            yield path


def documents() -> Iterator[Path]:
    yield from (path for path in texts() if path.suffix == ".md")


def offenders(paths: Iterable[Path], rule: rules.Rule) -> list[str]:
    found: list[str] = []
    for path in paths:
        try:
            offences = rule(path.read_text(encoding="utf-8"))
        except SyntaxError as error:
            offences = [f"{error.lineno}: this Python cannot read it: {error.msg}"]
        found.extend(f"{path.relative_to(ROOT)}: {offence}" for offence in offences)
    return found


def refuse(found: list[str], why: str) -> None:
    assert not found, f"{why}\n  " + "\n  ".join(found)


def test_the_walk_sees_each_module_once_and_sees_them_all() -> None:
    seen = list(files(*EVERYTHING))
    assert len(seen) == len({path.resolve() for path in seen})
    assert {RUNTIME, ROOT / "tieredstore" / "providers" / "__init__.py", Path(__file__)} <= set(
        seen
    )
    assert ROOT / "pyproject.toml" in set(texts())


def test_classes_are_named_for_what_they_are() -> None:
    refuse(offenders(files(*EVERYTHING), rules.banned_class_names), "name it for what it is")


def test_modules_are_named_for_what_they_hold() -> None:
    paths = [path.relative_to(ROOT) for path in files(*EVERYTHING)]
    found = [f"{path}: {name}" for path in paths for name in rules.banned_module_name(str(path))]
    refuse(found, "such a module ends up holding everything")


def test_every_module_says_its_idea() -> None:
    refuse(offenders(files(*EVERYTHING), rules.no_docstring), "say its idea in one sentence")


def test_only_the_runtime_knows_the_clock_and_starts_threads() -> None:
    paths = (path for path in files(*LIBRARY) if path != RUNTIME)
    refuse(offenders(paths, rules.time_and_threads), "take a Runtime as an argument")
    assert rules.time_and_threads(RUNTIME.read_text(encoding="utf-8"))


def test_only_faces_print() -> None:
    paths = (path for path in files(*LIBRARY) if FACE_THAT_PRINTS not in path.parents)
    refuse(offenders(paths, rules.prints), "return it, raise it or log it")


def test_tests_never_sleep() -> None:
    refuse(offenders(files("tests"), rules.sleeps), "move a ManualClock, or wait on an event")


def test_texts_hold_no_path_of_one_machine() -> None:
    refuse(offenders(texts(), rules.machine_paths), "it exists on one machine only")


def test_documents_name_files_that_exist() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {offence}"
        for path in documents()
        if path.name not in NOT_ABOUT_TODAY
        for offence in rules.missing_files(path.read_text(encoding="utf-8"), path.parent)
    ]
    refuse(found, "the file has gone or was never written")


def test_docstrings_name_files_that_exist() -> None:
    def missing(source: str) -> list[str]:
        return rules.missing_files(rules.docstrings(source))

    refuse(offenders(files(*EVERYTHING), missing), "the file has gone or was never written")


# Each rule must catch its examples: one that passes everything would be useless.
BROKEN: list[tuple[Callable[[str], list[str]], str]] = [
    (rules.banned_class_names, "class DispatcherImpl: ..."),
    (rules.banned_class_names, "class TopicManagerThing: ..."),
    (rules.banned_class_names, "def f():\n    class SegmentFactory: ..."),
    (rules.banned_class_names, "class AbstractSegment: ..."),
    (rules.banned_module_name, "tieredstore/codec/utils.py"),
    (rules.banned_module_name, "tieredstore/core/java.py"),
    (rules.banned_module_name, "tests/flat/io_helpers.py"),
    (rules.banned_module_name, "providers/_base.py"),
    (rules.no_docstring, "x = 1"),
    (rules.prints, "def f():\n    print(1)"),
    (rules.prints, "show = print"),
    (rules.time_and_threads, "import time\ntime.time()"),
    (rules.time_and_threads, "import time as t\ndef f(clock=t.monotonic): ..."),
    (rules.time_and_threads, "from time import sleep as pause"),
    (rules.time_and_threads, "from datetime import datetime\nnow = datetime.now"),
    (rules.time_and_threads, "import datetime\ndatetime.datetime.now()"),
    (rules.time_and_threads, "import threading\nthreading.Thread(target=f).start()"),
    (rules.time_and_threads, "from concurrent import futures\nfutures.ThreadPoolExecutor()"),
    (rules.time_and_threads, "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()"),
    (rules.sleeps, "import asyncio\nasync def f():\n    await asyncio.sleep(1)"),
    (rules.machine_paths, "see /" + "work/shared"),
    (rules.machine_paths, 'open("/' + 'root/x")'),
    (rules.missing_files, "see `docs/never-written.md`"),
    (rules.missing_files, "see providers/never_written.py, which"),
    (rules.missing_files, "`driver/never_written.py` says"),
    (rules.missing_files, "all of `tests/never/*.py`"),
]

# These must pass: a rule that is too strict gets switched off.
SOUND: list[tuple[Callable[[str], list[str]], str]] = [
    (rules.banned_class_names, "class Implicit: ...\nclass Manages: ...\nclass Abstraction: ..."),
    (rules.banned_module_name, "tieredstore/codec/base_offset.py"),
    (rules.no_docstring, '"""Segments."""'),
    (rules.prints, "self.print()"),
    (rules.time_and_threads, "import threading\nthreading.Lock()\nthreading.Condition()"),
    (rules.time_and_threads, "import time\ntime.strftime('%Y')"),
    (rules.time_and_threads, "clock.sleep(1)\nclock.monotonic()\ntime = 3\ntime.time()"),
    (rules.sleeps, "import time\ntime.monotonic()"),
    (rules.machine_paths, "tests/work/x and ~/root/y and a/work and roots/root-1"),
    (rules.missing_files, "`driver/runtime.py`, tests/test_house.py, `providers/`, docs/"),
    (rules.missing_files, "store/config/tieredStoreMetadata.json and a/b and https://x.org/a/b.md"),
    (rules.missing_files, "all of `tests/*.py`."),
]


@pytest.mark.parametrize(("rule", "text"), BROKEN)
def test_a_rule_catches_what_breaks_it(rule: rules.Rule, text: str) -> None:
    assert rule(text)


@pytest.mark.parametrize(("rule", "text"), SOUND)
def test_a_rule_lets_sound_text_pass(rule: rules.Rule, text: str) -> None:
    assert rule(text) == []


def test_every_rule_is_shown_to_catch_something() -> None:
    written = {
        rule
        for name, rule in inspect.getmembers(rules, inspect.isfunction)
        if rule.__module__ == rules.__name__ and not name.startswith("_")
    } - {rules.docstrings}
    assert {rule for rule, _ in BROKEN} == written
    assert {rule for rule, _ in SOUND} == written


SOURCE = '''"""A docstring
of two lines."""

import os  # counted

# not counted
def f():
    """Not counted either."""
    return """a text
of two lines"""
'''


def test_the_report_counts_lines_that_hold_code() -> None:
    assert house_report.code_lines(SOURCE) == 4


def test_the_report_names_small_modules_that_only_one_other_imports() -> None:
    def module(name: str, lines: int, *imports: str) -> house_report.Module:
        path = ROOT / "tieredstore" / f"{name}.py"
        found = frozenset(f"tieredstore.{other}" for other in imports)
        return house_report.Module(path=path, code_lines=lines, functions=(), imports=found)

    library = [
        module("store", 500, "small", "large", "shared", "driver.registry"),
        module("reader", 300, "shared", "reader"),
        module("small", 119),
        module("large", 120),
        module("shared", 10),
        module("driver/registry", 10),  # an import contract names its importers
    ]
    found = [(alone.name, by) for alone, by in house_report.single_importers(library)]
    assert found == [("tieredstore.small", "tieredstore.store")]


def test_the_report_reads_the_whole_library(monkeypatch: pytest.MonkeyPatch) -> None:
    real = house_report.modules
    # Skip the tests, of which the report only counts lines: reading them takes seconds.
    monkeypatch.setattr(
        house_report, "modules", lambda folder: [] if folder == "tests" else real(folder)
    )
    lines = list(house_report.report())
    assert any(line.split()[:1] == ["tieredstore/providers"] for line in lines)
    assert any(line.endswith("tieredstore.local.store") for line in lines)
