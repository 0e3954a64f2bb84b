"""Schedules of a whole tier: each seed decides one, and none shows a violation."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from tests.simulation.__main__ import shrunk
from tests.simulation.model import STORED, Model, Put
from tests.simulation.scheduler import Process, Scheduler, Stuck
from tests.simulation.world import FAULTS, HOUR_MS, START_MS, Plan, run, smaller
from tieredstore.access import agreement
from tieredstore.local import commit_log
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.record_scan import RecordCheck, RecordState
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import Boundary, QueueKey

ROOT = Path(__file__).parents[2]
SCHEDULES = 300
ROTTEN = 100
ROTTEN_LOCALLY = 60


def simulated(seed: int, count: int, *options: str) -> str:
    """Run in a separate process, where sets of texts always have the same order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", f"{seed}", "--count", f"{count}", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    return done.stdout


@pytest.mark.slow
def test_whoever_goes_on_and_whatever_befalls_them_nothing_is_lost() -> None:
    assert f"{SCHEDULES} schedules" in simulated(0, SCHEDULES)


@pytest.mark.slow
def test_nor_is_anything_wrong_where_bits_of_the_tier_flip_and_nobody_says_so() -> None:
    assert f"{ROTTEN} schedules" in simulated(0, ROTTEN, "--rot", "tier")


@pytest.mark.slow
def test_nor_where_they_are_bits_of_the_brokers_own_disk() -> None:
    assert f"{ROTTEN_LOCALLY} schedules" in simulated(0, ROTTEN_LOCALLY, "--rot", "local")


@pytest.mark.torture
@pytest.mark.parametrize("share", range(20))
@pytest.mark.parametrize("options", [(), ("--rot", "tier"), ("--rot", "local")])
def test_nor_in_ten_thousand_other_schedules(share: int, options: tuple[str, ...]) -> None:
    simulated(random.SystemRandom().randrange(1 << 40), 500, *options)


def test_a_seed_makes_the_same_history_each_time(tmp_path: Path) -> None:
    plan = Plan(seed=3, clients=("producer", "producer", "consumer", "reader"), ops=3)
    stories = [run(plan, tmp_path / "world").scheduler.trace for _ in range(2)]
    assert stories[0] == stories[1]
    other = run(plan, tmp_path / "world", salt=1).scheduler.trace
    assert other != stories[0]


def test_a_history_leaves_hardly_an_open_file_behind(tmp_path: Path) -> None:
    """Otherwise a process could run only a few hundred. The lock of a process that died stays."""

    def open_files_after_one() -> int:
        run(Plan(seed=3, ops=3), tmp_path / "world")
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    first = open_files_after_one()  # late imports open some files once
    assert open_files_after_one() - first < 5


def test_a_store_that_forgets_a_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claims(queue: MappedFileQueue) -> int:
        queue._flushed = queue.max_offset
        return queue._flushed

    monkeypatch.setattr(MappedFileQueue, "flush", claims)
    clients = ("producer", "producer", "consumer", "restarter")
    plans = [Plan(seed=n, clients=clients, faults=("kills", "power"), ops=8) for n in range(40)]
    with pytest.raises((AssertionError, SegmentCorruptError), match="lost|damaged"):
        deque((run(plan, tmp_path / "w") for plan in plans), maxlen=0)


def test_a_store_that_serves_what_has_changed_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreConfig, "checks_pages", property(lambda _: False))
    clients = ("producer", "producer", "weather")
    plans = [Plan(seed=n, tier="posix", clients=clients, faults=("rot",)) for n in range(20)]
    with pytest.raises(AssertionError, match="served, but"):
        deque((run(plan, tmp_path / "w") for plan in plans), maxlen=0)


def test_a_store_that_uploads_what_has_changed_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(data: bytes, position: int = 0, **_: object) -> RecordCheck:
        return RecordCheck(int.from_bytes(data[position : position + 4]), RecordState.MESSAGE)

    monkeypatch.setattr(commit_log, "check_record", unchecked)
    clients = ("producer", "producer", "weather")
    plans = [Plan(seed=n, clients=clients, faults=("local-rot",)) for n in range(40)]
    with pytest.raises(AssertionError, match="served, but|was not hit, but"):
        deque((run(plan, tmp_path / "w") for plan in plans), maxlen=0)


def test_a_store_that_compares_nothing_with_its_tier_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "disagreement_at", lambda *_: None)
    clients = ("producer", "producer", "histories")
    plans = [Plan(seed=n, clients=clients, faults=(), ops=8) for n in range(40)]
    with pytest.raises(AssertionError, match="it differs at"):
        deque((run(plan, tmp_path / "w") for plan in plans), maxlen=0)


def test_a_search_by_time_ends_where_the_units_end() -> None:
    """With a full disk a queue may end before messages of the log."""
    queue, model = QueueKey("Kept", 0), Model(kept_ms=HOUR_MS)
    model.newest_ms = START_MS
    for offset in range(3):
        put = Put(f"m{offset}", queue, keys=(), tag="a", begun=0, state=STORED)
        put.offset, put.store_ms = offset, START_MS + offset
        model.queues.setdefault(queue, {})[offset] = put

    def check(found: int, end: int) -> None:
        asked = queue, START_MS + 1, Boundary.LOWER, found, {0, 1, 2}, 0
        model.check_time(*asked, end=end)

    check(found=1, end=3)
    check(found=0, end=0)
    for wrong in (0, 2):
        with pytest.raises(AssertionError):
            check(found=wrong, end=3)


def test_a_load_that_nobody_heard_of_may_have_expired() -> None:
    """A reader elsewhere with an older picture may still show it."""
    model = Model(kept_ms=HOUR_MS, newest_ms=START_MS + HOUR_MS)
    ages = {"gone": START_MS + 1, "doubtful": START_MS}
    for state, store_ms in ages.items():
        put = Put(state, QueueKey("Loaded", 0), keys=(), tag="a", begun=0, store_ms=store_ms)
        model.never_came(put)
        assert put.state == state


def test_who_waits_for_each_other_is_told() -> None:
    scheduler = Scheduler(0, now_ms=0)
    process = Process("both")
    with scheduler.installed():
        director = scheduler.spawn("director", process, lambda: scheduler.wait(lambda: False))
        with pytest.raises(Stuck, match="a deadlock: both director"):
            scheduler.run(director)


def test_a_plan_shrinks_to_what_it_takes() -> None:
    plan = Plan(seed=1, clients=("producer", "consumer", "reader"), faults=FAULTS, ops=20)

    def fails(less: Plan, salt: int) -> bool:
        return "reader" in less.clients and "power" in less.faults and less.ops >= 3 and salt == 2

    smallest, salt = shrunk(plan, 2, fails)
    assert (smallest.clients, smallest.faults, smallest.ops) == (("reader",), ("power",), 3)
    assert salt == 2
    assert not any(fails(less, salt) for less in smaller(smallest))
