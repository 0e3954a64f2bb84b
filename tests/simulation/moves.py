"""The tier moves: an operator copies it to another place and cuts over, and the broker goes on
there. Whoever reads it elsewhere is told; who reads just then still sees the former place, where
nothing changes any more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.roundlog.truth import Witness
from tests.roundlog.world import WatchedObjects
from tieredstore.jobs.job import LocalEngine
from tieredstore.jobs.migrate import migrate
from tieredstore.model.config import StoreConfig

if TYPE_CHECKING:
    from tests.simulation.world import Outsider, World

FORMER: Final = ""
MOVED: Final = "moved"
TRIES_MAX: Final = 100


@dataclass
class WatchedBucket:
    """Its objects, and what a fold of the broker's log in it comes to."""

    objects: WatchedObjects
    witness: Witness

    @classmethod
    def of(cls, rounds: str, landed: Callable[[Witness, str, bytes], None]) -> WatchedBucket:
        witness = Witness(rounds)
        return cls(WatchedObjects(lambda key, data: landed(witness, key, data)), witness)


def at_place(config: StoreConfig, place: str) -> StoreConfig:
    """The same tier there; the broker's own disk stays what it is."""
    if place == FORMER:
        return config
    in_folder = config.provider == "posix"
    return replace(
        config,
        path=f"{config.path}-{place}" if in_folder else "",
        bucket="" if in_folder else place,
        metadata_path=str(Path(config.store_path) / "config" / f"{place}.json"),
    )


def move_beside(outsider: Outsider) -> None:
    """The same from another machine, with the broker at work: it is fenced off for good, goes on
    with its own disk until somebody stops it, and then with the copy."""
    world = outsider.world
    outsider.runtime.clock.sleep(outsider.dice.choice([1, 100, 3_000]))
    life = world.life
    if life is None or not life.is_at_work or not world.may_move or world.is_moving:
        return
    world.is_moving = True
    for _ in range(TRIES_MAX):
        with suppress(*world.is_away, *world.expected):
            move(world, outsider.config)
        if world.place == MOVED:
            break
        outsider.runtime.clock.sleep(10)
    else:
        raise AssertionError("the tier cannot be moved")
    outsider.runtime.clock.sleep(outsider.dice.choice([0, 1, 100]))
    world.is_moving = False
    life.is_ending = True


def move(world: World, config: StoreConfig) -> None:
    runtime = world.runtime_here()
    engine = LocalEngine(pool=runtime.dispatch, threads=2)
    target = at_place(config, MOVED)
    report = migrate(config, target, engine=engine, cut_over=True, clock=runtime.clock)
    world.scheduler.note(f"moved: {report.facts['cut_over']} {dict(report.counts)}")
    assert not report.findings, f"migrate: {report}"
    if report.facts["cut_over"] != "refused":  # as it is where the backend was away for long
        world.has_moved_to(MOVED)
