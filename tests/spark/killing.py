"""Spark drivers and their processes, killed at random moments while they work.

A moment is either a time within the length of undisturbed work, or the n-th change of what the work
writes: commits are short, but most changes happen in them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyspark

from tests.spark.spark_kit import environment

DRIVER_KINDS: Final = ("all", "helper", "driver and JVM", "helper", "JVM", "helper", "driver")
EXECUTOR_KINDS: Final = ("executor", "worker", "executor", "daemon")
PAUSE: Final = threading.Event()  # nobody sets it
POLL_SECONDS: Final = 0.004
SECONDS_MAX: Final = 240.0  # for one order
AGAIN_MAX: Final = 12  # runs after a kill: an orphan may hold the tier for a while
AGAIN_SECONDS: Final = 0.5
UNFINISHED: Final = 0.25  # the share of kills whose work is killed again when it runs again
SPARK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.python.authenticate.socketTimeout": "10m",
}


class Process(NamedTuple):
    """One row of the process table."""

    pid: int
    parent: int
    line: str


def processes(session: int) -> dict[int, Process]:
    """All processes of this session, whoever their parent is by now."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(stat[3]) == session and stat[0] != "Z":
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = Process(int(folder.name), int(stat[1]), line)
    return found


def roles(session: int) -> dict[str, list[int]]:
    """The processes in a driver's session by role. Helpers are the Python processes that plan and
    commit for its JVM."""
    table = processes(session)
    found: dict[str, list[int]] = {"driver": [session]}
    for each in table.values():
        above = table.get(each.parent)
        below_java = above is not None and "org.apache.spark" in above.line
        if "CoarseGrainedExecutorBackend" in each.line:
            role = "executor"
        elif "SparkSubmit" in each.line:
            role = "JVM"
        elif "pyspark.daemon pyspark.worker" in each.line:
            role = "daemon" if below_java else "worker"
        elif "-m pyspark" in each.line:
            role = "helpers" if below_java else "helper"
        else:
            continue
        found.setdefault(role, []).append(each.pid)
    return found


class Driver:
    """A driver in a session of its own; `cluster` has the counts of executors and their cores."""

    def __init__(self, place: Path, number: int, *, cluster: tuple[int, int]) -> None:
        self.place = place / f"driver-{number}"
        self.place.mkdir(parents=True)
        self._log = self.place / "log"
        self._asked = 0
        home = str(Path(pyspark.__file__).parent)
        script = Path(__file__).with_name("killed_driver.py")
        executors, cores = cluster
        confs = SPARK | {
            "spark.master": f"local-cluster[{executors},{cores},512]",
            "spark.local.dir": str(self.place / "local"),
        }
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(self.place), str(executors), json.dumps(confs)],
                cwd=self.place,
                env=environment(SPARK_HOME=home),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def session(self) -> int:
        return self._process.pid

    def ask(self, name: str, **words: Any) -> int:
        self._asked += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([self._asked, name, words]).encode() + b"\n")
        self._process.stdin.flush()
        return self._asked

    def has_answered(self, number: int) -> bool:
        return (self.place / f"{number}.answer").exists()

    def answer(self, number: int) -> tuple[bool, Any]:
        end = time.monotonic() + SECONDS_MAX
        while not self.has_answered(number):
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, f"no answer\n{self.log()}"
            PAUSE.wait(POLL_SECONDS)
        well, answer = json.loads((self.place / f"{number}.answer").read_text())
        return well, answer

    def done(self, name: str, **words: Any) -> Any:
        well, answer = self.answer(self.ask(name, **words))
        assert well, f"{answer}\n{self.log()}"
        return answer

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def end(self) -> None:
        """Kill what is left of the session."""
        kill(processes(self.session))
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Work(ABC):
    """Work that is done again and again, each time with more data, while something is killed."""

    helper = ""  # part of the command line of the helper that matters most
    waits_for_orphans = False

    @abstractmethod
    def turn(self) -> tuple[str, dict[str, Any]]:
        """The next order; it may be given again until it is done."""

    def grow(self) -> None:  # noqa: B027 - not all work has more
        """Add data while the order is under way."""

    @abstractmethod
    def watched(self) -> object:
        """A value that stays equal only while nothing is written."""

    def check(self) -> None:  # noqa: B027 - with Parquet only a whole run can be checked
        """Check what must hold after each finished turn, whatever was killed."""

    @abstractmethod
    def check_all(self, driver: Driver) -> None:
        """Check that all that was given is there once, and nothing else."""


@dataclass(frozen=True, slots=True)
class Length:
    """The length of one undisturbed turn."""

    seconds: float
    changes: int


@dataclass(slots=True)
class Killing:
    """One work, killed at many moments."""

    work: Work
    place: Path
    dice: random.Random
    kinds: Sequence[str]
    counts: Counter[str] = field(default_factory=Counter)
    _number: int = 0
    _drivers: list[Driver] = field(default_factory=list)

    def run(self, count: int) -> None:
        begun = time.monotonic()
        try:
            driver, spare, starting = self._warmed(self._started()), None, None
            self._watch(driver, lambda *_: False)
            lengths = [self._watch(driver, lambda *_: False) for _ in range(2)]
            length = Length(
                min(each.seconds for each in lengths), max(each.changes for each in lengths)
            )
            order: tuple[str, dict[str, Any]] | None = None
            for number in range(count):
                if self.kinds is DRIVER_KINDS and spare is None:
                    spare, starting = starting or self._started(), self._started()
                    self._warmed(spare)
                kind = self.kinds[number % len(self.kinds)]
                order = order or self.work.turn()
                asked = self._reach(driver, order, self._moment(length))
                under_way = not driver.has_answered(asked)
                victims = self._kill(driver, kind)
                if kind in DRIVER_KINDS and kind != "helper":
                    assert spare is not None
                    if self.work.waits_for_orphans:
                        driver.end()
                    driver, spare = spare, None
                    asked = 0
                note = f"{kind} {'under way' if under_way else 'answered'}"
                self.counts[note] += 1
                print(f"  {number}: {note}, {victims}", flush=True)
                if self.dice.random() >= UNFINISHED or self.kinds is EXECUTOR_KINDS:
                    self._finish(driver, order, asked)
                    self.work.check()
                    order = None
                elif asked:
                    driver.answer(asked)  # whatever the answer is
                driver.done("executors")
            if order is not None:
                self._finish(driver, order, 0)
            self._finish(driver, self.work.turn(), 0)
            driver.done("stop")
            self.work.check_all(driver)
        finally:
            for each in self._drivers:
                each.end()
        seconds = time.monotonic() - begun
        print(f"{type(self.work).__name__}: {count} kills in {seconds:.0f} s:", dict(self.counts))

    def _started(self) -> Driver:
        """Start a driver: the next one comes up while this one works."""
        self._number += 1
        cluster = (1, 2) if self.kinds is DRIVER_KINDS else (2, 1)  # one executor starts sooner
        driver = Driver(self.place, self._number, cluster=cluster)
        self._drivers.append(driver)
        return driver

    def _warmed(self, driver: Driver) -> Driver:
        """Let the driver do everything once, elsewhere: the first time takes seconds."""
        warm = driver.place / "warm"
        tier = {
            "provider": "posix",
            "path": str(warm / "tier"),
            "store_path": str(warm / "store"),
            "broker_name": "warm",
        }
        driver.done("executors")
        driver.done("load", tier=tier, load_id="warm", first=0, end=40)
        return driver

    def _moment(self, length: Length) -> Callable[[float, int], bool]:
        if self.dice.random() < 0.5:
            at = self.dice.uniform(0, length.seconds)
            return lambda seconds, _: seconds >= at
        nth = self.dice.randint(1, max(1, length.changes))
        return lambda _, changes: changes >= nth

    def _watch(self, driver: Driver, stop: Callable[[float, int], bool]) -> Length:
        order = self.work.turn()
        begun = time.monotonic()
        seen: list[int] = [0]

        def counted(seconds: float, changes: int) -> bool:
            seen[0] = changes
            return stop(seconds, changes)

        asked = self._reach(driver, order, counted)
        well, answer = driver.answer(asked)
        assert well, f"{answer}\n{driver.log()}"
        return Length(time.monotonic() - begun, seen[0])

    def _reach(
        self,
        driver: Driver,
        order: tuple[str, dict[str, Any]],
        is_reached: Callable[[float, int], bool],
    ) -> int:
        """Give the order, and return at the moment or when the order is done."""
        begun, changes, grown = time.monotonic(), 0, 0
        last = self.work.watched()
        asked = driver.ask(order[0], **order[1])
        while not driver.has_answered(asked):
            seconds = time.monotonic() - begun
            assert seconds < SECONDS_MAX, driver.log()
            now = self.work.watched()
            changes, last = changes + (now != last), now
            if is_reached(seconds, changes):
                break
            if seconds > 0.2 * (grown + 1) and grown < 3:
                self.work.grow()
                grown += 1
            PAUSE.wait(POLL_SECONDS)
        return asked

    def _kill(self, driver: Driver, kind: str) -> str:
        found = roles(driver.session)
        if kind == "all":
            named = ["driver", "JVM", "helpers", "helper"]
            victims = [pid for role in named for pid in found.get(role, [])]
        elif kind == "driver and JVM":
            victims = found["driver"] + found.get("JVM", [])
        elif kind == "helper":
            table = processes(driver.session)
            helpers = found.get("helper", [])
            best = [pid for pid in helpers if pid in table and self.work.helper in table[pid].line]
            victims = [self.dice.choice(best or helpers or found["helpers"])]
        else:
            victims = [self.dice.choice(found.get(kind) or found["executor"])]
        kill(victims)
        return f"{len(victims)} of {len(processes(driver.session)) + len(victims)} processes"

    def _finish(self, driver: Driver, order: tuple[str, dict[str, Any]], asked: int) -> None:
        """Repeat the order until it is done. If an executor died, Spark itself must finish it."""
        errors = []
        for _ in range(AGAIN_MAX):
            asked = asked or driver.ask(order[0], **order[1])
            well, answer = driver.answer(asked)
            if well:
                return
            errors.append(str(answer)[-1500:])
            self.counts["run again after an error"] += 1
            assert self.kinds is DRIVER_KINDS, f"{errors[-1]}\n{driver.log()}"
            PAUSE.wait(AGAIN_SECONDS)
            asked = 0
        raise AssertionError("it does not come to its end:\n" + "\n".join(errors))


def files_in(*places: Path) -> frozenset[tuple[str, int]]:
    """Names and sizes of all files below."""
    return frozenset(_walked(places))


def _walked(places: Iterable[Path | str]) -> Iterator[tuple[str, int]]:
    for place in places:
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _walked([entry.path])
                else:
                    with suppress(OSError):
                        yield entry.path, entry.stat().st_size
