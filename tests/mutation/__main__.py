"""Mutants of a package, and which of them the quick tests kill: `python -m tests.mutation flat`.

Everything is imported and collected once. Each mutant is a fork of that process in which one
function has other code. The fork runs the tests that reach the changed line until one fails.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType

import coverage
import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import ROOT, Mutant, Unit, sample

QUICK = "not (slow or spark or s3 or fuzz or torture or interop or cluster)"
SURVIVORS = Path(__file__).with_name("survivors.txt")
KILLED_MIN = 0.85  # share of the mutants that are not equal
TESTS_SECONDS_MAX = 20.0  # for one mutant, in times without mutants; likely killers come first
MEMORY_BYTES_MAX = 8 << 30  # of address space, of which pyarrow takes much
PATIENCE_SECONDS = 5.0  # added to five times a test's time without mutants
MEMORY = "/dev/shm"
SURVIVED, KILLED, BROKEN = 0, 1, 2


@dataclass(frozen=True)
class Package:
    """Files to change, the folders of their own tests, and of other tests that use them."""

    files: Sequence[str]
    tests: Sequence[str]
    others: Sequence[str]

    def paths(self) -> list[str]:
        found = (path for pattern in self.files for path in ROOT.glob(f"tieredstore/{pattern}"))
        return sorted(str(path.relative_to(ROOT)) for path in found)


QUEUES = ("local/queue_*.py", "local/consume_queue*.py", "local/unit_truth.py")
PACKAGES = {
    "queues": Package(QUEUES, ("tests/local",), ("tests/access",)),
    "flat": Package(("flat/*.py",), ("tests/flat",), ("tests/access", "tests/jobs")),
    "index": Package(("index/*.py",), ("tests/index",), ("tests/access", "tests/jobs")),
    "roundlog": Package(
        ("roundlog/*.py",), ("tests/roundlog",), ("tests/access", "tests/jobs", "tests/providers")
    ),
}


@dataclass
class Reached:
    """Which tests reach which line, and how long each test takes."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests for a mutant: first those of the module's own file, then the quickest."""
        stem = f"test_{Path(mutant.unit.path).stem}"
        by_line = self.lines[mutant.unit.path]
        reached = {test for line in mutant.lines for test in by_line.get(str(line), [])}
        known = [test for test in reached if test in self.seconds]
        known.sort(key=lambda test: (stem not in test, self.seconds[test]))
        chosen: list[str] = []
        left = TESTS_SECONDS_MAX
        for test in known:
            left -= self.seconds[test]
            if left < 0:
                break
            chosen.append(test)
        return chosen


class Killing:
    """A pytest plugin that runs the tests on mutants: the package's own tests on every mutant, and
    the others on those that survive these."""

    def __init__(
        self, package: Package, mutants: Sequence[Mutant], equal: set[str], scratch: Path
    ) -> None:
        self._package = package
        self._mutants = mutants
        self._equal = equal
        self._scratch = scratch
        self.survivors: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("some tests could not be collected")
        live = live_functions({mutant.unit.path for mutant in self._mutants})
        gc.freeze()
        self.survivors = list(self._mutants)
        for folders in (self._package.tests, self._package.others):
            chosen = {
                item.nodeid: item for item in session.items if item.nodeid.startswith((*folders,))
            }
            left = [each for each in self.survivors if each.key not in self._equal]
            if left and chosen:
                killed = self._killed(left, chosen, live)
                self.survivors = [each for each in self.survivors if each.key not in killed]
        return True

    def _killed(
        self,
        mutants: Sequence[Mutant],
        items: dict[str, pytest.Item],
        live: dict[Unit, list[FunctionType]],
    ) -> set[str]:
        measured = self._scratch / "reached.json"
        since = time.monotonic()
        if self._in_fork(lambda: measure(items, self._package, measured)) != 0:
            raise RuntimeError("the tests could not be measured")
        reached = Reached(**json.loads(measured.read_text()))
        tell(f"{len(reached.seconds)} of {len(items)} tests, {time.monotonic() - since:.0f} s")
        killed = set()
        for number, mutant in enumerate(mutants, 1):
            chosen = {test: reached.seconds[test] for test in reached.tests(mutant)}

            def verdict(mutant: Mutant = mutant, chosen: dict[str, float] = chosen) -> int:
                code = mutant.code()
                for function in live[mutant.unit]:
                    function.__code__ = code
                return run([items[test] for test in chosen], chosen)

            since = time.monotonic()
            if chosen and self._in_fork(verdict) != SURVIVED:
                killed.add(mutant.key)
            word = "killed" if mutant.key in killed else "SURVIVED"
            took = f"{time.monotonic() - since:.1f} s, {len(chosen)} tests"
            tell(f"{number} {word} line {mutant.lines[-1]} {mutant.key} ({took})")
        return killed

    def _in_fork(self, work: Callable[[], int]) -> int:
        """Do the work in a fork, end its children, and return its status or the ending signal."""
        folder = self._scratch / "tests"
        folder.mkdir()
        child = os.fork()
        if child == 0:
            status = BROKEN
            try:
                os.setpgid(0, 0)
                silence = os.open(os.devnull, os.O_RDWR)
                for stream in (1, 2):
                    os.dup2(silence, stream)
                tempfile.tempdir = str(folder)
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
                status = work()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        code = os.waitstatus_to_exitcode(status)
        if code == BROKEN:
            raise RuntimeError("the tool itself failed, which kills no mutant")
        return code


def run(items: Sequence[pytest.Item], seconds: dict[str, float]) -> int:
    """Run tests until one fails; one that takes far too long ends the process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for item, following in zip(items, [*items[1:], None], strict=True):
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS + 5 * seconds[item.nodeid])
        try:
            reports = runtestprotocol(item, log=False, nextitem=following)
        except BaseException:  # noqa: BLE001 - pytest itself may fail at what a mutant raises
            return KILLED
        if any(report.failed for report in reports):
            return KILLED
    return SURVIVED


def measure(items: dict[str, pytest.Item], package: Package, answer: Path) -> int:
    """Run all tests once without mutants; those that fail or are skipped are not used."""
    reached = Reached()
    watch = coverage.Coverage(
        data_file=None, config_file=False, include=[str(ROOT / path) for path in package.paths()]
    )
    watch.start()
    every = list(items.values())
    for item, following in zip(every, [*every[1:], None], strict=True):
        watch.switch_context(item.nodeid)
        since = time.monotonic()
        reports = runtestprotocol(item, log=False, nextitem=following)
        if all(report.passed for report in reports):
            reached.seconds[item.nodeid] = time.monotonic() - since
    watch.stop()
    data = watch.get_data()
    for path in package.paths():
        lines = data.contexts_by_lineno(str(ROOT / path))
        reached.lines[path] = {str(line): sorted(tests) for line, tests in lines.items()}
    answer.write_text(json.dumps(reached.__dict__))
    return 0


def live_functions(paths: set[str]) -> dict[Unit, list[FunctionType]]:
    """Every function of these files, whether a module, a class or a decorator holds it."""
    for path in paths:
        importlib.import_module(
            path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        )
    names = {str(ROOT / path): path for path in paths}
    found: dict[Unit, list[FunctionType]] = {}
    gc.unfreeze()  # a simulation before this one may have hidden all that was there
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in names:
            code = each.__code__
            unit = Unit(names[code.co_filename], code.co_qualname, code.co_firstlineno)
            found.setdefault(unit, []).append(each)
    return found


def known_survivors() -> dict[str, str]:
    """The word of each listed survivor: `equal`, `left` or `open`."""
    return {key: word for word, key, _ in survivors()}


def survivors() -> list[tuple[str, str, str]]:
    """The word, key and reason of each listed survivor; a key may contain a bar."""
    lines = [line for line in SURVIVORS.read_text().splitlines() if line[:1] != "#"]
    rows = [(*line.partition(" | ")[::2],) for line in lines]
    return [(word, *rest.rpartition(" | ")[::2]) for word, rest in rows]


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", default="", help="of these, those whose key contains it")
    given = parser.parse_args(arguments)
    package = PACKAGES[given.package]
    mutants = [
        each for each in sample(package.paths(), given.seed, given.count) if given.only in each.key
    ]
    known = known_survivors()
    equal = {key for key, word in known.items() if word == "equal"}
    with tempfile.TemporaryDirectory(
        prefix="mutants-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
    ) as scratch:
        killing = Killing(package, mutants, equal, Path(scratch))
        options = ["-q", "-s", "-n", "0", "-m", QUICK, "-p", "no:cacheprovider"]
        options += [f"--basetemp={scratch}/pytest"]  # each process makes it anew
        pytest.main([*options, *package.tests, *package.others], plugins=[killing])
    words = Counter(known.get(mutant.key, "new") for mutant in killing.survivors)
    for mutant in killing.survivors:
        tell(f"{known.get(mutant.key, 'new')} | {mutant.key} | line {mutant.lines[-1]}")
    killed_count = len(mutants) - len(killing.survivors)
    share = killed_count / max(len(mutants) - words["equal"], 1)
    tell(
        f"{given.package}: {len(mutants)} mutants, {killed_count} killed,"
        f" {words['equal']} equal, {words['left']} left, {words['open']} open,"
        f" {words['new']} not listed;"
        f" {share:.1%} of those that are not equal are killed"
    )
    return int(share < KILLED_MIN or words["new"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
