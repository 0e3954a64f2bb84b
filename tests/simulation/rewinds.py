"""Once, the tier is replaced by the tier of some lives ago: a bucket whose versions were rolled
back, or a directory with its catalogue from a backup. What the broker's own disk still has is
uploaded again; other messages since then are lost, and their numbers are not given out again."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.model import DOUBTFUL, STORED
from tieredstore.model.values import QueueKey
from tieredstore.testing.disk import ForgetfulDisk

if TYPE_CHECKING:
    from tests.simulation.machines import Machine
    from tests.simulation.world import World


class Rewind:
    def __init__(self, world: World) -> None:
        self.world = world
        self.is_kept = self.is_done = False
        self._committed: dict[QueueKey, int] = {}
        self._furthest: dict[QueueKey, int] = {}
        self._bucket: tuple[dict[str, Any], Any] = {}, None
        self._folder = world.folder / "backup"

    def look_after(self, machine: Machine) -> None:
        """Called between two lives of the broker."""
        world = self.world
        if self.is_done or not world.has_segments(machine):
            return
        if not self.is_kept:
            self._keep(machine)
        else:
            self._go_back(machine)

    def _keep(self, machine: Machine) -> None:
        world = self.world
        world.scheduler.note("the tier is kept")
        self.is_kept = True
        self._committed, self._furthest = dict(world.model.committed), dict(world.furthest)
        if not world.is_posix:
            bucket = world.buckets[world.place]
            self._bucket = dict(bucket.objects.held), deepcopy(bucket.witness)
            return
        shutil.copytree(world.tier_config(machine).path, self._folder / "tier")
        for path in self._catalogue(machine):
            shutil.copy(path, self._folder)

    def _go_back(self, machine: Machine) -> None:
        world, model = self.world, self.world.model
        world.scheduler.note("the tier is what was kept")
        self.is_done = True
        world.bucket.late.clear()
        if world.is_posix:
            place = Path(world.tier_config(machine).path)
            for path in self._catalogue(machine):
                path.unlink()
            shutil.rmtree(place)
            (self._folder / "tier").rename(place)
            for path in self._folder.iterdir():
                shutil.copy(path, machine.folder / "store" / "config")
            machine.disk = ForgetfulDisk(machine.folder)
        else:
            bucket = world.buckets[world.place]
            bucket.objects.held, bucket.witness = self._bucket
        model.committed, world.furthest = self._committed, self._furthest
        for each in model.consumed.values():
            each.in_tier_from = 0  # the copies in the tier are older too
            if world.is_out_of_room:  # what a load took from there may not be on disk yet
                each.on_disk_from = 0
        for put in model.puts.values():
            if put.state == STORED and (put.offset or 0) >= model.committed.get(put.queue, 0):
                put.state = DOUBTFUL

    def _catalogue(self, machine: Machine) -> list[Path]:
        path = Path(self.world.tier_config(machine).catalogue_path)
        return [each for each in path.parent.glob(f"{path.name}*") if each.suffix != ".lock"]
