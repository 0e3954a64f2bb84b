"""The process dies at every step of backend and catalogue: the next one finds a whole tier.

The scenario: queues roll by size and by age, a topic is deleted and created again, and messages
expire in the tier and in the local store, which deletes only what the tier has.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.access.tier_lives import Lives
from tests.crash_stores import Stores
from tests.every_step import every_step
from tests.providers.object_kit import FAILURES, StruckClient
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.values import QueueKey, SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.roundlog import upkeep
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash

CRASHES = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_HALF]
SIZED, AGED, GONE = QueueKey("Sized", 0), QueueKey("Aged", 3), QueueKey("Gone", 1)
MINUTE_MS = 60_000
SECTORS = (512, 4096)  # what a disk keeps or loses together
ROUNDS = 6  # enough for both queues to roll and to expire, as the first test checks
Step = Callable[[], object]


def steps_of(lives: Lives, *, rounds: int = ROUNDS) -> Iterator[Step]:
    """The steps of the scenario, in order; each may be repeated after a crash."""
    for turn in range(rounds):
        for _ in range(7):
            yield partial(lives.put, *SIZED, body_bytes=60)
        for key in (AGED, GONE, QueueKey("Gone", 0)):
            yield partial(lives.put, *key)
            yield partial(lives.put, *key)
        yield lives.upload
        yield lives.promises
        if turn == 2:
            yield partial(lives.delete_topic, "Gone")
        yield partial(lives.clock.advance, 40 * MINUTE_MS)
        yield lives.expire
        yield lambda: lives.local.trim(lives.local.end - 2_500)
    yield lives.check_whole


def live(lives: Lives, steps: list[Step], faults: Faults | None = None) -> bool:
    """One life: open, audit, and do the steps that are left; return whether it reached the end."""
    try:
        lives.open(faults)
        if faults is None:
            lives.check_reopened()
            lives.check_whole()
        while steps:
            steps[0]()
            steps.pop(0)
    except SimulatedCrash:
        return False
    return True


def crash(lives: Lives, *faults: Faults, steps: list[Step] | None = None) -> None:
    """One life for each of the faults, which ends it, and one more without faults."""
    steps = steps or list(steps_of(lives))
    for fault in faults:
        if live(lives, steps, fault):
            break
        lives.check()
    assert live(lives, steps)
    lives.check_whole()


def steps_of_a_quiet_life(folder: Path) -> int:
    faults = Faults()
    lives = Lives(folder)
    assert live(lives, list(steps_of(lives)), faults)
    return faults.steps


def test_the_scenario_rolls_expires_and_deletes(tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    assert live(lives, list(steps_of(lives)))
    for key in (SIZED, AGED):
        path = f"broker-a/{key.topic}/{key.queue_id}"
        for kind in SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE:
            rows = lives.metadata.segments(path, kind)
            assert len(rows) > 1, (key, kind)
            assert rows[0].base_offset > 0, (key, kind)
    assert max(lives.ledger.tiered[GONE]) + 1 == 2 * (ROUNDS - 3)  # it began at 0 again
    assert lives.local.trimmed_to > 0
    assert lives.local.min_offset(*SIZED) not in (None, 0)


PARTS, STEPS_MAX = 12, 330


def test_there_are_as_many_steps_as_are_tried(tmp_path: Path) -> None:
    assert 300 < steps_of_a_quiet_life(tmp_path) < STEPS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("fault", CRASHES)
@pytest.mark.parametrize("part", range(PARTS))
def test_after_a_crash_at_any_step_the_tier_is_whole(
    tmp_path: Path, fault: Fault, part: int
) -> None:
    every_step(
        lambda step: crash(Lives(tmp_path), Faults({step: fault})),
        steps=range(part, STEPS_MAX, PARTS),
    )


@pytest.mark.parametrize("first", [Fault.CRASH_AFTER, Fault.CRASH_HALF])
@pytest.mark.parametrize("second", [Fault.CRASH_BEFORE, Fault.CRASH_HALF])
def test_nor_does_a_second_crash_in_the_next_life_hurt(
    tmp_path: Path, first: Fault, second: Fault
) -> None:
    for step in range(0, STEPS_MAX, 37):
        for again in (0, 2, 5, 9, 23):
            crash(Lives(tmp_path), Faults({step: first}), Faults({again: second}))


@pytest.mark.torture
@pytest.mark.parametrize("first", CRASHES)
@pytest.mark.parametrize("second", CRASHES)
def test_nor_do_two_crashes_at_any_steps(tmp_path: Path, first: Fault, second: Fault) -> None:
    for step in range(0, STEPS_MAX, 3):
        for again in range(0, 60, 4):
            crash(Lives(tmp_path), Faults({step: first}), Faults({again: second}))


class Disks:
    """A tier in files, whose catalogue finds its files as a dead process left them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lives = Lives(folder, inner=self._provider, catalogues=self._next_catalogue)
        self._opened: list[JsonMetadataStore] = []
        self._number = 0

    def _provider(self, runtime: Runtime) -> PosixProvider:
        return PosixProvider(self.folder / "tier", "cluster", runtime)

    def _next_catalogue(self, faults: Faults) -> JsonMetadataStore:
        """Open a copy of the last catalogue's files, without the lock of the dead process."""
        mine = self.folder / f"life-{self._number}"
        before = self.folder / f"life-{self._number - 1}"
        if before.exists():
            shutil.copytree(before, mine, ignore=shutil.ignore_patterns("*.lock"))
        else:
            mine.mkdir()
        self._number += 1
        opened = JsonMetadataStore.open(
            mine / "catalogue.json",
            clock_ms=self.lives.clock.now_ms,
            journal_bytes_max=4_000,
        )
        self._opened.append(opened)
        return opened

    def move(self, folder: Path) -> None:
        """Go on in the folder that has what the disk kept after a power failure."""
        self.folder = folder
        self.lives.inner = self._provider(self.lives.runtime)

    def close(self) -> None:
        for each in self._opened:
            each.close()


def crash_on_disk(folder: Path, stop_at: int) -> bool:
    """The process dies at one of its steps on the disk, and the next one goes on."""
    folder.mkdir()
    disks = Disks(folder)
    lives = disks.lives
    steps = list(steps_of(lives))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):  # for speed: written pages outlive a process
            patch.setattr(os, name, lambda descriptor: None)
        with ForgetfulDisk(folder, stop_at=stop_at) as disk:
            live(lives, steps, Faults())
        assert live(lives, steps)
        disks.close()
    return disk.died


@pytest.mark.parametrize("stop_at", range(1, 730, 23))
def test_nor_does_a_crash_at_a_step_on_the_disk(tmp_path: Path, stop_at: int) -> None:
    assert crash_on_disk(tmp_path / "disk", stop_at)


@pytest.mark.torture
@pytest.mark.parametrize("part", range(20))
def test_nor_at_any_step_on_the_disk(tmp_path: Path, part: int) -> None:
    every_step(
        lambda step: crash_on_disk(tmp_path / str(step), 1 + part + 20 * step),
    )


def lose_power(folder: Path, stop_at: int, dice: Random | None) -> bool:
    """The power fails at one of the steps. Synced bytes stay, and other bytes if the dice say so.

    The local store loses nothing.
    """
    folder.mkdir()
    disks = Disks(folder)
    steps = list(steps_of(disks.lives))
    with ForgetfulDisk(folder, stop_at=stop_at) as disk:
        live(disks.lives, steps, Faults())
    if disk.died:
        left = folder.with_name(f"{folder.name}-left")
        disks.move(disk.synced(left) if dice is None else disk.cut(left, dice, pieces=SECTORS))
        assert live(disks.lives, steps)
    disks.close()
    for used in folder.parent.glob(f"{folder.name}*"):
        shutil.rmtree(used)
    return disk.died


@pytest.mark.parametrize(
    ("is_cut", "apart"),
    [(False, 37), (True, 37), pytest.param(False, 1, marks=pytest.mark.torture)],
)
def test_nor_does_a_power_cut_at_any_step_on_the_disk(
    tmp_path: Path, is_cut: bool, apart: int
) -> None:
    (tmp_path / "quiet").mkdir()
    disks = Disks(tmp_path / "quiet")
    with ForgetfulDisk(disks.folder) as disk:
        assert live(disks.lives, list(steps_of(disks.lives)), Faults())
    disks.close()
    assert disk.steps > 700

    def cut_at(step: int) -> bool:
        dice = Random(step) if is_cut else None
        return lose_power(tmp_path / f"at-{step}", step + 1, dice)

    every_step(cut_at, steps=range(disk.steps)[(11 if is_cut else 0) % apart :: apart])


@pytest.mark.parametrize("kept", [0, 2])
def test_a_local_queue_that_lost_its_end_does_not_grow_again_to_the_same_length(
    tmp_path: Path, kept: int
) -> None:
    """Otherwise no message would seem to wait, and the local retention would delete messages that
    the tier does not have.
    """
    lives = Lives(tmp_path)
    lives.open()
    for _ in range(4):
        lives.put(*AGED)
    assert lives.store.flush()
    lives.local.lose_from(lives.local.kept(AGED)[kept].log_offset)
    lives.open()
    if not kept:
        lives.upload()  # a start looks at all queues
    for _ in range(4 - kept):
        lives.put(*AGED)
    assert lives.store.flush()
    (queue,) = lives.store.health().queues
    assert queue.problem is None
    assert queue.commit_offset == 8 - kept


@pytest.mark.parametrize("kept", [0, 2])
def test_also_where_the_tier_has_forgotten_its_old_messages(tmp_path: Path, kept: int) -> None:
    lives = Lives(tmp_path)
    lives.open()
    for _ in range(4):
        lives.put(*AGED)
    assert lives.store.flush()
    lives.clock.advance(200 * MINUTE_MS)
    lives.expire()
    lives.local.lose_from(lives.local.kept(AGED)[kept].log_offset)
    lives.open()
    lives.upload()
    for _ in range(4 - kept):
        lives.put(*AGED)
    assert lives.store.flush()
    assert lives.store.committed_offset(*AGED) == 8 - kept


@pytest.mark.parametrize("step", [0, 1])
def test_what_a_queue_lacks_is_kept_where_the_start_could_not_reach_it(
    tmp_path: Path, step: int
) -> None:
    lives = Lives(tmp_path)
    lives.open()
    for count in range(8):
        lives.put(*AGED)
        lives.put(*SIZED)
        if count == 3:
            assert lives.store.flush()
    lives.open(Faults({step: Fault.BEFORE}))
    assert [each.problem is None for each in lives.store.health().queues] == [False, True]
    lives.local.trim(lives.local.end)
    assert lives.local.min_offset(*AGED) == 4
    lives.check_whole()


# The same over an object store: the process dies at any of its requests.
# Each life has its own client and provider. Over HTTP the scenario is shorter, but still has the
# expiry and the deleted topic.


@pytest.fixture(autouse=True)
def tends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge rounds, merge chunks again, and write states so early that a short life has all."""
    monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 3)
    monkeypatch.setattr(upkeep, "CHUNKS_MERGED", 2)
    monkeypatch.setattr(upkeep, "STATE_EVERY", 8)


SAMPLE = 53  # a prime, so that the sample has every kind of request
REMOTE_ROUNDS = 4


def rounds_on(stores: Stores) -> int:
    return REMOTE_ROUNDS if stores.is_remote else ROUNDS


def requests_of_a_quiet_life(folder: Path, stores: Stores) -> int:
    """The number of requests; counted in memory, where they are as many but take no time."""
    lives, faults = new_lives(folder, Stores("memory")), Faults()
    assert live(lives, steps_with_sealing(lives, stores), faults)
    return faults.steps


def new_lives(folder: Path, stores: Stores, *, failing: Faults | None = None) -> Lives:
    """New lives; `failing` strikes only requests, and each of them is tried again."""
    clients = stores.new()

    def process(runtime: Runtime, faults: Faults) -> SegmentProvider:
        client = StruckClient(clients(), failing or faults)
        retry = RetryPolicy(retries_max=3 if failing else 0)
        return ObjectProvider(client, "c", runtime, listing_ms=0, retry=retry)

    return Lives(folder, processes=process)


def steps_with_sealing(lives: Lives, stores: Stores) -> list[Step]:
    """The steps of the scenario; before each expiry, rolled segments are sealed and the log is
    tended.
    """

    def seal() -> None:  # in the process that runs at that time
        lives.store._loaded().sealing.step()
        lives.store._loaded().tending.step()

    steps: list[Step] = []
    for step in steps_of(lives, rounds=rounds_on(stores)):
        if step == lives.expire:
            steps.append(seal)
        steps.append(step)
    return steps


def crash_at_requests(folder: Path, stores: Stores, *faults: Faults) -> None:
    lives = new_lives(folder, stores)
    crash(lives, *faults, steps=steps_with_sealing(lives, stores))


def test_each_client_has_as_many_requests_as_are_tried(tmp_path: Path, stores: Stores) -> None:
    lives, faults = new_lives(tmp_path / "here", stores), Faults()
    assert live(lives, steps_with_sealing(lives, stores), faults)
    assert faults.steps == requests_of_a_quiet_life(tmp_path / "in memory", stores) > 120


@pytest.mark.parametrize("fault", CRASHES)
def test_after_a_crash_at_a_request_the_tier_is_whole(
    tmp_path: Path, stores: Stores, fault: Fault
) -> None:
    requests = range(requests_of_a_quiet_life(tmp_path, stores))
    if not stores.is_remote:
        requests = requests[CRASHES.index(fault) * 7 :: SAMPLE]
    every_step(
        lambda step: crash_at_requests(tmp_path, stores, Faults({step: fault})),
        steps=stores.sample(
            requests, over_http=3, at_length=27, share=(CRASHES.index(fault), len(CRASHES))
        ),
    )


def test_nor_does_a_second_crash_at_a_request(tmp_path: Path, stores: Stores) -> None:
    requests = range(requests_of_a_quiet_life(tmp_path, stores))
    pairs = list(itertools.product(requests[:: 5 * SAMPLE], (1, 4, 9, 23)))
    for tried in stores.sample(range(1, len(pairs)), over_http=1, at_length=4):
        step, again = pairs[tried]
        first, second = Faults({step: CRASHES[0]}), Faults({again: Fault.CRASH_AFTER})
        crash_at_requests(tmp_path, stores, first, second)


def test_a_request_that_fails_is_sent_again_and_nobody_notices(
    tmp_path: Path, stores: Stores
) -> None:
    """Every fifth request fails, in each of the three ways in turn. In memory, the test runs once
    for each way that comes first, so that each of them fails in each way.
    """
    requests_max = 8 * requests_of_a_quiet_life(tmp_path / "quiet", stores)
    for first in range(1 if stores.is_remote else len(FAILURES)):
        ways = itertools.cycle([*FAILURES[first:], *FAILURES[:first]])
        failing = Faults(dict(zip(range(3, requests_max, 5), ways, strict=False)))
        lives = new_lives(tmp_path, stores, failing=failing)
        assert live(lives, steps_with_sealing(lives, stores), Faults())
        lives.open()
        lives.check_whole()
        assert failing.steps < requests_max


@pytest.mark.torture
@pytest.mark.parametrize("stores", ["memory"], indirect=True)  # an earlier test samples HTTP
@pytest.mark.parametrize("fault", CRASHES)
def test_nor_does_a_crash_at_any_request(tmp_path: Path, stores: Stores, fault: Fault) -> None:
    every_step(
        lambda step: crash_at_requests(tmp_path, stores, Faults({step: fault})),
        steps=range(requests_of_a_quiet_life(tmp_path, stores)),
    )
