"""The tier moves, perhaps from a bucket to a directory or back: an operator copies it and cuts
over, or copies what a stopped broker has sealed with a tool that knows nothing of tiers. The broker
continues there. Readers elsewhere are told; one that is reading just then still sees the former
place, where nothing changes any more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.roundlog.truth import Witness
from tests.roundlog.world import WatchedObjects
from tieredstore.jobs.job import LocalEngine
from tieredstore.jobs.migrate import migrate
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError

if TYPE_CHECKING:
    from tests.simulation.machines import Machine
    from tests.simulation.world import Client, Life, Outsider, World

FORMER: Final = ""
MOVED: Final = "moved"
BUCKET: Final = "tests.simulation.world.SimProvider"
TRIES_MAX: Final = 300
FADES: Final = 0.98
"""What is left of the odds of a fault after each try: an operator who needs many of them waits for
better weather. Each try adds to the log that the next one reads, and a wait of a retry may take ten
minutes here: with one fault in five requests a cut-over would never end."""


class WatchedBucket:
    """The objects of a bucket, and the witness of the broker's log in it."""

    def __init__(self, rounds: str, landed: Callable[[Witness, str, bytes], None]) -> None:
        self.witness = Witness(rounds)
        self.objects = WatchedObjects(lambda key, data: landed(self.witness, key, data))


def at_place(world: World, config: StoreConfig, place: str) -> StoreConfig:
    """The same tier at another place; the broker's own disk stays the same."""
    in_folder = world.kinds[place] == "posix"
    catalogue = Path(config.store_path) / "config" / f"{place}.json"
    return replace(
        config,
        provider="posix" if in_folder else BUCKET,
        path=str(world.machine.folder / f"tier{place}") if in_folder else "",
        bucket="" if in_folder else place,
        metadata_path="" if place == FORMER else str(catalogue),
    )


def move_beside(outsider: Outsider) -> None:
    """Move the tier from another machine while the broker works: it is fenced off for good,
    continues on its own disk until somebody stops it, and then with the copy."""
    world = outsider.world
    outsider.runtime.clock.sleep(outsider.dice.choice([1, 100, 3_000]))
    life = world.life
    is_beside = life is not None and life.is_at_work and not life.process.is_dead
    if life is None or not is_beside or not world.may_move or world.is_moving:
        return
    world.is_moving = True
    for _ in range(TRIES_MAX):
        with suppress(*world.is_away, *world.expected):
            if move(world, outsider.config):
                break
        world.bucket.odds *= FADES
        outsider.runtime.clock.sleep(10)
    else:
        raise AssertionError("the tier cannot be moved")
    if world.place == MOVED:
        outsider.runtime.clock.sleep(outsider.dice.choice([0, 1, 100]))
        life.is_ending = True
    world.is_moving = False


@contextmanager
def nothing_there() -> Iterator[None]:
    """The whole tier may have just expired, and a recovered catalogue is empty at first."""
    try:
        yield
    except MetadataError as error:
        if not names_nothing(error):
            raise


def names_nothing(error: MetadataError) -> bool:
    return bool(re.search("it names no (segment|queue)", str(error)))


def move(world: World, config: StoreConfig) -> bool:
    """Returns whether it is over: all is moved, or nothing is there, because it has expired, was
    deleted, or comes from a load that died."""
    runtime = world.runtime_here()
    engine = LocalEngine(pool=runtime.dispatch, threads=2)
    target = at_place(world, config, MOVED)
    try:
        report = migrate(config, target, engine=engine, cut_over=True, clock=runtime.clock)
    except MetadataError as error:
        if not names_nothing(error):
            raise
        return True
    world.scheduler.note(f"moved: {report.facts['cut_over']} {dict(report.counts)}")
    assert not report.findings, f"migrate: {report}"
    if report.facts["cut_over"] == "refused":  # the backend was away for long
        return False
    world.has_moved_to(MOVED)
    return True


def seal(client: Client, life: Life) -> None:
    """Prepare a tier for a copy by a tool that knows nothing of tiers."""
    client.world.is_sealed = life.store.flush(seal=True)


def carry(world: World, machine: Machine) -> None:
    """Copy everything from one place to the other, unchanged, including the log of a bucket."""
    source, target = (at_place(world, world.tier_config(machine), each) for each in (FORMER, MOVED))
    held, others = world.buckets[FORMER], world.buckets[MOVED]
    world.scheduler.note("the tier is copied by hand")
    if world.kinds[FORMER] == world.kinds[MOVED] == "posix":
        shutil.copytree(source.path, target.path)
    elif world.kinds[FORMER] == "posix":
        for name, data in files_of(Path(source.path)):
            others.objects.put(name, data, None)
    else:
        others.objects.held = dict(held.objects.held)
        others.witness = deepcopy(held.witness)


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()
