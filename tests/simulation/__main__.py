"""Histories by their seeds: `python -m tests.simulation SEED [--count N | --hours H]`.

A history that shows something is run again with less and less in it, and its replay is printed.
Hours are split into blocks, each in its own process, one for each core at a time: a world whose
processes died leaves open files behind.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.simulation.world import FAULTS, LOCAL_ROT, ROT, Plan, run, smaller

SALTS: tuple[int, ...] = tuple(range(8))  # other schedules of a smaller plan
SHRINKING_MAX = 200  # histories
BLOCK = 1_000  # seeds of one process
ROTS = {"tier": ROT, "local": LOCAL_ROT}


def plans(given: argparse.Namespace) -> Iterator[Plan]:
    for seed in range(given.seed, given.seed + given.count):
        plan = Plan.of(seed, tier=given.tier, is_crowd=given.crowds)
        if given.clients is not None:
            plan = replace(plan, clients=tuple(given.clients.split(",")))
        if given.faults is not None:
            plan = replace(plan, faults=tuple(filter(None, given.faults.split(","))))
        if given.rot:
            plan = replace(plan, faults=(*plan.faults, ROTS[given.rot]))
        yield replace(plan, ops=given.ops or plan.ops)


def replay(plan: Plan, salt: int) -> str:
    return (
        f"python -m tests.simulation {plan.seed} --tier {plan.tier} --ops {plan.ops}"
        f" --clients {','.join(plan.clients)} --faults '{','.join(plan.faults)}' --salt {salt}"
    )


def failure_of(plan: Plan, folder: Path, salt: int) -> BaseException | None:
    try:
        run(plan, folder, salt=salt)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the finding
        return error
    return None


def shrunk(
    plan: Plan, salt: int, fails: Callable[[Plan, int], bool], budget: int = SHRINKING_MAX
) -> tuple[Plan, int]:
    """Remove one thing at a time; returns the smallest plan that still fails, and its schedule."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for less in smaller(plan):
            for other in (salt, *SALTS):
                if budget <= 0:
                    return plan, salt
                budget -= 1
                if fails(less, other):
                    plan, salt, is_smaller = less, other, True
                    break
            if is_smaller:
                break
    return plan, salt


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--hours", type=float, help="as many seeds as it takes, on all cores")
    parser.add_argument("--tier", default="")
    parser.add_argument("--clients")
    parser.add_argument("--faults", help=f"some of {','.join([*FAULTS, *ROTS.values()])}")
    parser.add_argument("--rot", choices=ROTS, help="beside those faults, where bits flip")
    parser.add_argument("--ops", type=int)
    parser.add_argument("--crowds", action="store_true", help="long histories of many alone")
    parser.add_argument("--salt", type=int, default=0)
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args(arguments)
    if given.hours:
        if arguments[0] != str(given.seed):
            parser.error("--hours: name the seed first")
        return _run_hours(given.seed, given.hours, arguments[1:])
    memory = Path("/dev/shm")
    place = tempfile.mkdtemp(prefix="simulation-", dir=memory if memory.is_dir() else None)
    try:
        return _run_all(given, Path(place) / "world")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run_hours(first: int, hours: float, options: Sequence[str]) -> int:
    """Run blocks of seeds until the time is over, or one shows something."""
    end = time.monotonic() + hours * 3_600
    seeds = itertools.count(first, BLOCK)
    failed = threading.Event()

    def work() -> None:
        while time.monotonic() < end and not failed.is_set():
            words = [str(next(seeds)), *options, "--hours", "0", "--count", str(BLOCK)]
            done = subprocess.run([sys.executable, "-m", "tests.simulation", *words], check=False)
            if done.returncode:
                failed.set()

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for _ in range(os.cpu_count() or 1):
            pool.submit(work)
    return int(failed.is_set())


def _run_all(given: argparse.Namespace, folder: Path) -> int:
    gc.disable()  # each world collects what the previous one left
    worked = time.process_time()
    count = 0
    for plan in plans(given):
        error = failure_of(plan, folder, given.salt)
        count += 1
        if error is not None:
            _tell_failure(plan, given.salt, error, folder, shrink=given.shrink)
            return 1
    seconds = time.process_time() - worked
    tell(f"{count} schedules from seed {given.seed} on: nothing, {count / seconds:.1f} a second")
    return 0


def _tell_failure(
    plan: Plan, salt: int, error: BaseException, folder: Path, *, shrink: bool
) -> None:
    tell(f"seed {plan.seed} shows something: {error!r:.500}\nreplay: {replay(plan, salt)}")
    if shrink:
        same = type(error)

        def fails(less: Plan, other: int) -> bool:
            return type(failure_of(less, folder, other)) is same

        plan, salt = shrunk(plan, salt, fails)
        error = failure_of(plan, folder, salt) or error
        tell(f"the same with less: {replay(plan, salt)}")
    tell("".join(traceback.format_exception(error)))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # otherwise sets of texts have a random order
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
