"""A broker on an empty disk dies, or loses power, while it goes on with its tier.

This happens at any step on its disk and at any request. The next life goes on from what is left,
and so does another machine.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import pytest

from tests.access.lost_disks import ONE, OTHER, TWO, Machine
from tests.every_step import every_step
from tests.jobs.job_kit import verified
from tieredstore.access.audit import audit
from tieredstore.codec.message import decode_message
from tieredstore.driver import durable
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.findings import Severity
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.memory_objects import MemoryObjects
from tieredstore.testing.samples import STORE_TIMESTAMP

KEYS = ONE, TWO, OTHER
ALLOWED = {"orphan", "released", "state", "tail"}  # leftovers of a crash, which nobody reads
SIZES = {"index_slot_count": 101, "index_item_count": 400}
TRIES = 3  # of an opening or a flush, in which one request fails


class Recovery:
    """A tier whose broker lost its disk, with messages that were never uploaded. A test can begin
    from that state as often as it wants.
    """

    def __init__(self, root: Path, tier: str) -> None:
        self.machine = machine = Machine(root, tier)
        machine.open(**SIZES)
        machine.put(10)
        machine.flush()
        machine.put(3)
        machine.end(drain=False)
        if tier == "bucket":
            machine.lose_disk()
        else:  # keep the catalogue beside it: tests of `recover` cover its loss
            machine.lose_local()
        for key in KEYS:  # the numbers of uncommitted messages are free again
            for number in machine.acked[key].keys() - machine.committed[key].keys():
                del machine.acked[key][number]
        self._known = deepcopy((machine.acked, machine.committed))
        self._disk, self._tier = root / "disk-before", root / "tier-before"
        for place, copy in ((machine.disk, self._disk), (root / "tier", self._tier)):
            place.mkdir(exist_ok=True)
            shutil.copytree(place, copy)
        self._objects = machine.objects

    def begin(self, name: str) -> Path:
        """Restore the state in which the disk was lost, in a folder of this name."""
        machine = self.machine
        machine.root = machine.root.parent / name
        shutil.copytree(self._disk, machine.root / "disk")
        shutil.copytree(self._tier, machine.root / "tier")
        self._stand_on(machine.root)
        if self._objects is not None:
            machine.objects = MemoryObjects()
            machine.objects.held |= self._objects.held
        machine.acked, machine.committed = deepcopy(self._known)
        machine.unheard.clear()
        return machine.root

    def _stand_on(self, root: Path) -> None:
        machine = self.machine
        machine.root, machine.disk = root, root / "disk"
        machine.log_offsets.clear()
        durable._durable_directories.clear()  # as in a new process

    def live(self) -> None:
        """Go on with the tier, and upload new messages; try again after a failed request."""
        for _ in range(TRIES):
            with suppress(TieredStoreError):
                self.machine.open(**SIZES)
                break
        self.machine.put(2)
        uploaded = any(self.machine.store.flush() for _ in range(TRIES))
        if self.machine.faults is None or not self.machine.faults.crashed:
            assert uploaded
            self.machine.end()

    def check(self, root: Path) -> None:
        """Check what an interrupted life left: the broker goes on from it, with and without this
        disk.
        """
        machine = self.machine
        machine.faults = None
        self._stand_on(root)
        for is_disk_lost in (False, True):
            store = machine.open(**SIZES)
            assert not store.agreement.refused
            machine.note_committed()
            self.check_answers()
            machine.put(2)
            machine.flush()
            self.check_answers()
            assert store.health().ok
            machine.end()
            self.check_tier()
            if not is_disk_lost:
                (machine.lose_local if machine.objects is None else machine.lose_disk)()
                machine.log_offsets.clear()
        assert all(len(machine.committed[key]) >= 10 + 2 + 2 for key in KEYS)

    def check_answers(self) -> None:
        """Check answers by offset, by key and by time."""
        machine = self.machine
        machine.check()
        for key in KEYS:
            assert machine.store.offset_by_time(*key, STORE_TIMESTAMP) == 0
            for number, body in machine.committed[key].items():
                answer = machine.store.query_message(key.topic, f"key-{body.decode()}")
                found = [decode_message(one.record) for one in answer.messages]
                assert [(one.queue_offset, one.body) for one in found] == [(number, body)]

    def check_tier(self) -> None:
        machine = self.machine
        store = machine.tiered(**SIZES)
        store.load()
        tier = store._loaded().tier
        report = audit(tier.metadata, tier.provider, machine.config(**SIZES), tier.runtime)
        assert report.damage == ()
        assert {found.kind for found in report.left} <= ALLOWED
        store.shutdown(drain=False)
        if machine.objects is None:
            found = verified(machine.config(**SIZES)).findings
            assert {each.severity for each in found} <= {Severity.NOTE}


def killed(disk: ForgetfulDisk, left: Path) -> Path:
    return disk.written(left)


def synced(disk: ForgetfulDisk, left: Path) -> Path:
    return disk.synced(left)


def cut(disk: ForgetfulDisk, left: Path) -> Path:
    return disk.cut(left, random.Random(disk.steps), pieces=(512, 4096))


Happens = Callable[[ForgetfulDisk, Path], Path]
HAPPENINGS: list[Happens] = [killed, synced, cut]
every_part = pytest.mark.parametrize(
    "parts", [pytest.param(97, id="some"), pytest.param(1, id="all", marks=pytest.mark.torture)]
)


@pytest.mark.parametrize("tier", ["folder", "bucket"])
@pytest.mark.parametrize("happens", HAPPENINGS)
@every_part
def test_at_any_step_of_the_disk(tmp_path: Path, tier: str, happens: Happens, parts: int) -> None:
    recovery = Recovery(tmp_path / "first", tier)
    root = recovery.begin("quiet")
    with ForgetfulDisk(root) as quiet:
        recovery.live()
    assert quiet.steps > 100

    def cut_short(step: int) -> None:
        root = recovery.begin(f"at-{step}")
        with ForgetfulDisk(root, stop_at=step + 1) as disk:
            recovery.live()
        assert disk.died
        recovery.check(happens(disk, tmp_path / f"left-{step}"))
        for used in (root, recovery.machine.root):
            shutil.rmtree(used)

    every_step(cut_short, steps=range(quiet.steps)[HAPPENINGS.index(happens) * 31 % parts :: parts])


FAULTS = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.BEFORE, Fault.AFTER]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("apart", [11, pytest.param(1, marks=pytest.mark.torture)])
def test_at_any_request(tmp_path: Path, fault: Fault, apart: int) -> None:
    recovery = Recovery(tmp_path / "first", "bucket")
    recovery.begin("quiet")
    recovery.machine.faults = quiet = Faults()
    recovery.live()
    assert quiet.steps > 10

    def cut_short(step: int) -> bool:
        root = recovery.begin(f"at-{step}")
        recovery.machine.faults = faults = Faults({step: fault})
        with suppress(SimulatedCrash):
            recovery.live()
        dead, left = recovery.machine.store, tmp_path / f"left-{step}"
        shutil.copytree(root, left)
        recovery.check(left)
        faults.forgive()
        faults.crashed = False
        with suppress(TieredStoreError):  # close it now, not at some garbage collection
            dead.shutdown(drain=False)
        for used in (root, left):
            shutil.rmtree(used)
        return faults.steps > step

    every_step(cut_short, steps=range(quiet.steps)[FAULTS.index(fault) % apart :: apart])
