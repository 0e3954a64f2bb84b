"""One history of a broker's whole tier; its seed decides every step.

A `Plan` lists actors and faults. The director opens the store, starts its clients, waits until the
process dies or all are done, decides what a power cut leaves, and opens the next life. At the end
faults stop, and everything acknowledged must be there: by offset, time and key, here and for a
reader elsewhere, and `audit` and `verify` must find nothing.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, Self

import pytest

from tests.roundlog.small import everything_small
from tests.roundlog.truth import Witness
from tests.roundlog.world import WatchedObjects
from tests.simulation.acts import (
    ACTS,
    BRIEF,
    LEVELS,
    OUTSIDE,
    QUEUES,
    Reading,
    cut_over,
    export_rest,
    find_out,
    verify_elsewhere,
    written_tier,
)
from tests.simulation.adoptions import ELSEWHERE, OLD, Adoption
from tests.simulation.awaited import await_things
from tests.simulation.histories import HISTORIES, KEPT_HOURS, Histories, ask_again
from tests.simulation.loads import LOADED, Loads
from tests.simulation.local_rot import INDEX_SLOTS, LocalRot
from tests.simulation.machines import Bucket, Disks, Machine, refuse_for_room
from tests.simulation.model import SENT, Model, Put
from tests.simulation.moves import (
    FADES,
    FORMER,
    MOVED,
    TRIES_MAX,
    WatchedBucket,
    at_place,
    carry,
    move,
    move_beside,
    seal,
)
from tests.simulation.neighbours import Neighbour
from tests.simulation.rewinds import Rewind
from tests.simulation.rot import Rot
from tests.simulation.scheduler import ActorPool, ActorRuntime, Process, Scheduler
from tests.simulation.streams import Checkpoint, follow, follow_rest
from tieredstore import aio
from tieredstore.access import log_mark
from tieredstore.access.audit import audit
from tieredstore.access.rebuild import (
    NewerCatalogueError,
    rebuild,
    rebuild_beside_published,
)
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.upkeep import expire_tier
from tieredstore.access.wiring import (
    NoCatalogueError,
    open_tier,
    published_catalogue,
)
from tieredstore.aio import AsyncTieredStore
from tieredstore.codec.message import decode_message
from tieredstore.driver import durable
from tieredstore.driver.metadata import StaleCatalogueError
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import NoIndex
from tieredstore.index.store import IndexStore
from tieredstore.jobs import load, worker
from tieredstore.jobs.job import JobState, LocalEngine
from tieredstore.jobs.load_records import LoadRefusedError
from tieredstore.jobs.reindex import reindex
from tieredstore.jobs.verify_findings import VerifyKind
from tieredstore.local import files as local_files
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore, LocalStore
from tieredstore.model.config import QUEUE_UNIT_BYTES, StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    FencedError,
    MetadataError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.findings import Finding
from tieredstore.model.messages import PutResult
from tieredstore.model.values import GetStatus, PutStatus, QueueKey, SegmentRecord, SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.roundlog.layout import ObjectLayout
from tieredstore.testing.disk import Crash, ForgetfulDisk

BROKER: Final = "broker-a"
CLUSTER: Final = "cluster-a"
RECOVER: Final = "recover"  # once the disk is lost, and another one continues with the tier
RESTORE: Final = "restore"  # once an older copy replaces the disk
REWIND: Final = "rewind"  # once an older copy replaces the tier
REPAIR: Final = "repair"  # between two lives: what `audit --repair` does
REINDEX: Final = "reindex"  # between two lives: all index files are made anew
AWAITER: Final = "awaiter"
SETTINGS: Final = "settings"  # each life may have others
EXPIRE: Final = "expire"  # between two lives: what `expire` does
LOAD: Final = "load"  # between two lives: messages are loaded
ADOPT: Final = "adopt"  # between two lives: the queues of another broker are added
MOVE: Final = "move"  # between two lives: the tier moves, once
CUTTER: Final = "cutter"  # the tier moves while the broker writes
SEALER: Final = "sealer"  # in the last life before a tool copies the tier
NEIGHBOUR: Final = "neighbour"
CARES: Final = (REPAIR, REINDEX, EXPIRE, LOAD, ADOPT)
START_MS: Final = 4_000_000_000_000  # after all times of real files, so these are always old
HOUR_MS: Final = 3_600_000
CLIENTS: Final = {**ACTS, AWAITER: await_things, HISTORIES: ask_again, SEALER: seal}
ONE_HISTORY: Final = frozenset({RECOVER, RESTORE})
"""Those that nobody has told yet what is true of two."""
ONE_TIER: Final = ONE_HISTORY | {
    "successor",
    CUTTER,
    "mover",
    "deleter",
    "reader",
    "scanner",
    "exporter",
    "verifier",
    "scrubber",
    "inspector",
    "neighbour",
    "stream",
    LOAD,
    ADOPT,
    MOVE,
    HISTORIES,
}
"""Those who would have to be told that the tier is older than it was."""
OUTSIDERS: Final[dict[str, Callable[[Outsider], None]]] = {
    **OUTSIDE,
    "stream": follow,
    CUTTER: move_beside,
    NEIGHBOUR: lambda outsider: outsider.neighbour.act(),
}
EXTRAS: Final = (
    AWAITER,
    "operator",
    "deleter",
    "restarter",
    "consumer",
    "reader",
    "reader",
    "scanner",
    "verifier",
    "scrubber",
    "inspector",
    "exporter",
    "stream",
    "mover",
    "successor",
    NEIGHBOUR,
    RECOVER,
    RESTORE,
    REWIND,
    REPAIR,
    REINDEX,
    EXPIRE,
    LOAD,
    ADOPT,
    MOVE,
    CUTTER,
    SETTINGS,
)
PARTNERS: Final = ("producer", "consumer", *sorted(set(EXTRAS)))
LIVES_MAX: Final = 5
CARE_KILL_ODDS: Final = 0.003
STORY_MAX: Final = int(os.environ.get("STORY_MAX", "400"))

REQUESTS: Final = "requests"
REFUSALS: Final = "refusals"
POWER: Final = "power"
KILLS: Final = "kills"
ROOM: Final = "room"
CLOCK: Final = "clock"
SHORT: Final = "short"
PAGED: Final = "paged"
FAULTS: Final = (REQUESTS, REFUSALS, POWER, KILLS, ROOM, CLOCK, SHORT, PAGED)
ROT: Final = "rot"  # bits of the tier flip; only on request
LOCAL_ROT: Final = "local-rot"  # bits of the broker's own disk flip; only on request


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The actors and faults of a history; a smaller plan may show the same defect."""

    seed: int
    tier: str = "bucket"
    clients: tuple[str, ...] = ("producer", "producer", "consumer")
    faults: tuple[str, ...] = FAULTS
    ops: int = 12  # of each client

    @classmethod
    def of(cls, seed: int, *, tier: str = "", is_crowd: bool = False) -> Self:
        """Nine of ten plans have a pair beside a producer: most defects need only two things at
        once, and such a history costs a fourth of a crowd's. The defects that pairs miss need long
        histories of a crowd (`is_crowd`)."""
        dice = Random(f"{seed} plan")
        is_pair = dice.random() < 0.9 and not is_crowd
        if is_pair:
            clients = ["producer", *(dice.choice(PARTNERS) for _ in range(2))]
        else:
            clients = ["producer", "producer", "consumer"]
            clients += [name for name in EXTRAS if dice.random() < 0.4]
        clients.append("weather")
        chosen = dice.choice(["bucket", "bucket", "posix"])
        tier = tier or chosen
        if tier == "posix":  # two brokers of one name on one directory are not promised
            clients = [each for each in clients if each != "successor"]
        if AWAITER in clients:  # asyncio allows one running loop in a thread
            clients = [each for each in clients if each not in {"successor", AWAITER}]
            clients.append(AWAITER)
        odds = 0.3 if is_pair else 0.5
        faults = tuple(each for each in FAULTS if dice.random() < odds)
        ops = dice.choice([2, 4, 8] if is_pair else [12, 20] if is_crowd else [3, 6, 12, 20])
        if dice.random() < 0.1:
            clients.append(HISTORIES)
        return cls(seed=seed, tier=tier, clients=tuple(clients), faults=faults, ops=ops)

    @property
    def is_rotting(self) -> bool:
        return bool({ROT, LOCAL_ROT} & {*self.faults})

    def takes(self, client: str) -> bool:
        if client == REWIND:
            return not self.is_rotting
        if REWIND in self.clients and client in ONE_TIER and self.takes(REWIND):
            return False
        if client == HISTORIES:
            return not self.is_rotting
        if HISTORIES in self.clients and client in ONE_HISTORY and self.takes(HISTORIES):
            return False
        if client in {LOAD, ADOPT}:  # damage may hide whether it was made
            return not self.is_rotting
        if client == RESTORE:  # otherwise the copy may have another history, and queues stop
            return (
                not self.is_rotting
                and not {POWER} & {*self.faults}
                and "deleter" not in self.clients
            )
        if client == NEIGHBOUR:  # in a directory it shares the disk, which must keep working
            return not self.is_rotting and not (
                self.tier == "posix" and {POWER, ROOM} & {*self.faults}
            )
        if client == CUTTER and (self.tier == "posix" or "successor" in self.clients):
            return False  # a directory fences nobody off, a bucket only once
        if client in {MOVE, CUTTER}:  # a mover copies only one tier
            return not self.is_rotting and "mover" not in self.clients
        return True


class Forked(Exception):
    """Another machine is the broker now: the answers of this one belong to a separate history."""


class Client:
    """An actor that calls the broker, life after life."""

    def __init__(self, world: World, kind: str, number: int, ops: int) -> None:
        self.world, self.kind, self.name = world, kind, f"{kind}{number}"
        self.left = ops
        self.dice = Random(f"{world.plan.seed} {self.name}")
        self.offsets: dict[QueueKey, int] = {}

    def heir(self) -> Client:
        """The same client for another broker: a client makes only one call at a time."""
        heir = Client(self.world, self.kind, 0, self.left)
        heir.name, heir.dice = f"{self.name}-again", Random(f"{self.name} {self.dice.random()}")
        return heir

    def run(self, life: Life) -> None:
        while self.left and not life.is_ending and not life.is_forked:
            self.left -= 1
            with suppress(Forked):
                self.world.attempt(life, lambda: CLIENTS[self.kind](self, life))


class Outsider:
    """An actor elsewhere, with its own process and machine."""

    neighbour: Neighbour

    def __init__(self, world: World, kind: str, number: int, ops: int) -> None:
        self.world, self.kind, self.name = world, kind, f"{kind}{number}"
        self.left = ops
        self.dice = Random(f"{world.plan.seed} {self.name}")
        is_beside = kind == NEIGHBOUR and world.is_posix
        self.machine = world.machine if is_beside else Machine(self.name, world.folder / self.name)
        self.process = Process(self.name, self.machine)
        self.runtime = world.runtime(self.process)
        self.config = world.tier_config(self.machine)
        self.checkpoint = Checkpoint(turns=dict(world.histories.turns))
        self.reading: Reading | None = None
        self.is_told = False  # that its export has messages which the tier gave up
        if kind == NEIGHBOUR:
            store_path = str(self.machine.folder / self.name)
            self.config = replace(
                self.config, broker_name=f"{BROKER}{number}", store_path=store_path
            )
            self.neighbour = Neighbour(self)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it sees nothing of the broker's disk, except a tier in a directory."""
        return self.config.store_path == self.world.tier_config(self.machine).store_path

    def run(self) -> None:
        while self.left and not self.world.is_sound:
            self.left -= 1
            try:
                OUTSIDERS[self.kind](self)
            except self.world.is_away as error:
                # Time jumps while others wait, a topic may be deleted during a scan, and possibly
                # nothing is published yet.
                self.world.scheduler.note(f"{error!r:.200}")
            except MetadataError as error:
                if not (self.world.has_lost_disk and "its files are gone" in str(error)):
                    raise
                self.world.scheduler.note(f"{error!r:.200}")


class Life:
    """One process of a broker, from load to its end."""

    def __init__(self, world: World, machine: Machine, number: int) -> None:
        self.world, self.machine = world, machine
        self.process = Process(f"life{number}", machine)
        self.runtime = world.runtime(self.process)
        self.local = LocalMessageStore(world.local_config(machine), self.runtime)
        self.store = TieredMessageStore(
            self.local, world.tier_config(machine), runtime=self.runtime
        )
        self.is_open = self.is_settled = self.is_ending = self.is_over = self.is_forked = False
        self.is_refused = False  # its damaged tier cannot be opened
        self.parts: LocalStore | None = None
        self.forced_count = 0  # how often a client switched to reading the tier alone

    def run(self, clients: list[Client]) -> None:
        """The process's main thread."""
        world, scheduler = self.world, self.world.scheduler
        while not self.is_open:
            try:
                self.store.load()
                world.histories.opened(self)
                self.store.start()
                self.is_open, self.parts = True, self.local._parts
            except world.expected as error:
                scheduler.note(f"load: {error!r}")
                self.runtime.clock.sleep(1)
                if world.rot.keeps_shut(error):
                    self.is_refused = self.is_over = True
                    return
        scheduler.note("open")
        world.sure_below = None
        world.settle(self)
        self.is_settled = True
        actors = [
            scheduler.spawn(each.name, self.process, partial(each.run, self))
            for each in clients
            if each.left
        ]
        scheduler.wait(lambda: self.is_ending or all(each.is_done for each in actors))
        if self.is_forked:
            return  # the process continues, unaware of it
        self.is_ending = True
        self.shutdown()

    @property
    def is_at_work(self) -> bool:
        return self.is_open and not self.is_over and not self.process.is_dead

    @cached_property
    def awaited(self) -> AsyncTieredStore:
        """Must first be used by an actor of this process, to which its threads then belong."""
        return AsyncTieredStore(self.store)

    def saw(self) -> None:
        """To be called after each call returned, before its answer is checked."""
        self.world.saw_time()
        if self.is_forked:
            raise Forked

    def shutdown(self) -> None:
        drain = self.world.dice.random() < 0.5
        self.world.scheduler.note(f"shutdown, drain={drain}")
        self.world.attempt(self, lambda: self.store.shutdown(drain=drain))
        if self.parts is not None and self.parts.log.flushed_offset < self.parts.log.max_offset:
            self.world.sure_below = self.parts.log.flushed_offset  # its disk has failed
        self.is_over = True

    def flushed_offset(self) -> int | None:
        """Works even for a store that is closing and has released its parts."""
        return None if self.parts is None else self.parts.log.flushed_offset


@dataclass(slots=True)
class _FoundMessages:
    """The names of messages by offset. `lacks`: there may be one that nobody can read. `hides`: old
    ones are hidden as expired, although their writer may not get to drop them."""

    names: dict[int, str] = field(default_factory=dict)
    lacks: bool = False
    hides: bool = False


class World:
    """One history. `run` raises for the first violation."""

    current: ClassVar[World]

    def __init__(self, plan: Plan, folder: Path, *, salt: int = 0) -> None:
        plan = replace(plan, clients=tuple(each for each in plan.clients if plan.takes(each)))
        self.is_rotting = plan.is_rotting
        self.plan, self.folder = plan, folder
        self.dice = Random(f"{plan.seed} world")
        self.scheduler = Scheduler(f"{plan.seed} {salt}", now_ms=START_MS)
        self.disks = Disks(self.scheduler)
        self.place = FORMER  # where the tier is
        self.is_moving = False  # while the broker writes; nobody starts another one
        rounds = ObjectLayout(CLUSTER).rounds(BROKER)
        places = (FORMER, MOVED, ELSEWHERE)
        self.buckets = {place: WatchedBucket(rounds, self._landed) for place in places}
        self.kinds = {
            FORMER: plan.tier,
            MOVED: self._kind_to_move_to(),
            ELSEWHERE: self.dice.choice(["bucket", "posix"]),
        }
        self.is_sealed = False
        self.bucket = Bucket(self.scheduler, Random(f"{plan.seed} bucket"))
        self.reserve_hours = self.dice.choice([1, 48, 48])
        self.sync_flush = self.dice.random() < 0.5
        self._set_up()
        self.sizes: dict[str, Any] = {}  # settings that each life may change
        self.kill_odds = self.dice.choice([0.0003, 0.001, 0.003]) if KILLS in plan.faults else 0
        self.model = Model(kept_ms=self.reserve_hours * HOUR_MS)
        self.rot = LocalRot(self) if LOCAL_ROT in plan.faults else Rot(self)
        self.histories = Histories(self)
        self.rewind = Rewind(self)
        self.model.hit, self.model.may_be_lost = self.rot.hit, self.rot.may_be_lost
        if self.histories.is_on:
            self.model.may_be_lost = self.histories.may_go
        self.is_refused = False  # nobody can open the tier any more
        self.lives, self.lives_max = 0, 3 * LIVES_MAX if self.histories.is_on else LIVES_MAX
        self.life: Life | None = None
        self.queues = [*QUEUES]
        self.queues += LOADED if LOAD in plan.clients else []
        self.queues += OLD if ADOPT in plan.clients else []
        self.loads = Loads(self)
        self.adoption = Adoption(self)
        self.forgotten: set[QueueKey] = set()  # what a rebuilt copy of the tier lacks
        self.furthest = dict.fromkeys(self.queues, 0)  # the largest end of each queue in the bucket
        self.former: Life | None = None  # the life that another machine took over from
        self.graves: list[object] = []
        """What a dead process has left: no finalizer of it may run before the end."""
        self.names = 0
        self.sure_below: int | None = None
        """Of the local log, since it was last opened; None: all of it was on disk then."""
        self.is_sound = False  # faults have stopped
        self.has_lost_disk = False
        self.has_expired = False  # perhaps something, between two lives
        self.has_just_expired = False  # since it was last settled what had come of all puts
        self.carer: Process | None = None  # an operator's, while no broker runs
        self.care_kill_odds = CARE_KILL_ODDS

    @property
    def broker(self) -> str:
        return BROKER

    # Running it

    def run(self) -> None:
        World.current = self
        with self._installed():
            outside = Process("operator")
            director = self.scheduler.spawn("director", outside, self._direct)
            if self.kill_odds:
                self.scheduler.at_step = self._at_step
            self.disks.fails = refuse_for_room
            try:
                self.scheduler.run(director)
            finally:
                if self.scheduler.running is not None or self.scheduler.actors:
                    self.scheduler.end()

    @contextmanager
    def _installed(self) -> Iterator[None]:
        dice = Random(f"{self.plan.seed} names")
        tempfile.gettempdir()  # its first call needs a lock that is not the scheduler's
        of = LocalStore.of.__func__  # type: ignore[attr-defined]

        def with_our_lock(cls: type[LocalStore], *arguments: Any, **named: Any) -> LocalStore:
            import threading

            parts: LocalStore = of(cls, *arguments, **named)
            parts.flushing = threading.Lock()  # the default predates our locks
            return parts

        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            stack.enter_context(everything_small())
            stack.enter_context(self.scheduler.installed())
            import threading

            patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128)))
            patch.setattr(os, "getpid", lambda: 4242)
            patch.setattr(durable, "_held_guard", threading.Lock())
            patch.setattr(local_files, "_lock_guard", threading.Lock())
            patch.setattr(load, "_ONE_INDEX", threading.Lock())
            # A log that continues after a tier skips whole files: two of this size, not 500.
            patch.setattr(log_mark, "_STEP_MIN", 4_096)
            patch.setattr(LocalStore, "of", classmethod(with_our_lock))
            patch.setattr(Runtime, "threads", lambda **named: self.runtime_here())
            patch.setattr(worker, "_PARTS", PartsOfProcesses(self.scheduler))
            patch.setattr(aio, "ThreadPool", self._pool_here)
            stack.enter_context(self.disks.installed())
            stack.enter_context(hearing(self.failed, self.rot.heard))
            yield

    def _direct(self) -> None:
        plan = self.plan
        numbered = list(enumerate(plan.clients))
        clients = [Client(self, kind, n, plan.ops) for n, kind in numbered if kind in CLIENTS]
        machine = self.machine = Machine("here", self.folder / "here")
        outsiders = [Outsider(self, kind, n, plan.ops) for n, kind in numbered if kind in OUTSIDERS]
        self.outsiders = outsiders
        self._set_faults()
        actors = [self.scheduler.spawn(each.name, each.process, each.run) for each in outsiders]
        if ADOPT in plan.clients:
            self.adoption.begin()
        if LOAD in plan.clients and self.dice.random() < 0.5:
            self._take_care(machine, LOAD)  # into a tier that does not exist yet
        while any(each.left for each in clients) and self.lives < self.lives_max:
            self._live(machine, clients)
            self._look_after(machine)
            if self.is_refused:
                break
            if self.is_taken_over:
                machine = self._successor()
                clients = [each.heir() for each in clients]
        self.is_sound = self.bucket.is_sound = True
        machine.is_full, machine.used_percent, machine.lies = False, 50, 0
        self.scheduler.wait(lambda: all(each.is_done for each in actors))
        if self.is_taken_over:
            machine = self._successor()
        machine.is_full, machine.used_percent, machine.lies = False, 50, 0
        while self.bucket.late:
            self.bucket.land_one()
        self._end_neighbours(outsiders)
        if self.histories.is_on and self.dice.random() < 0.7:
            self._live(machine, [])  # finds out which queues have two histories
            self.histories.settle_all(machine)
        self._end_with(machine)
        if self.has_segments(machine):  # verify refuses a tier without any as the wrong one
            self._look_elsewhere(outsiders, machine)

    @property
    def is_taken_over(self) -> bool:
        """Whether another machine is the broker from now on."""
        return self.former is not None and self.former.machine is self.machine

    def _successor(self) -> Machine:
        self.machine = Machine("there", self.folder / "there")
        if self.histories.is_on:
            self.histories.move_away()
        else:
            self.model.fork()
        return self.machine

    def _look_after(self, machine: Machine) -> None:
        """What happens to the broker's disk and its tier between two lives."""
        if self.is_rotting:
            self.rot.flip_between_lives()
        for loss, lose in ((RECOVER, self._lose_disk), (RESTORE, self._restore)):
            if loss in self.plan.clients and not self.has_lost_disk and self.dice.random() < 0.5:
                lose(machine)
        self.histories.look_after(machine)
        if REWIND in self.plan.clients and self.dice.random() < 0.5:
            self.rewind.look_after(machine)
        for care in CARES:
            if care in self.plan.clients and self.dice.random() < 0.5:
                self._take_care(machine, care)
        if MOVE in self.plan.clients and self.may_move and self.dice.random() < 0.5:
            self._move(machine)

    def _end_neighbours(self, outsiders: list[Outsider]) -> None:
        for each in outsiders:
            if each.kind == NEIGHBOUR:
                self._do_elsewhere(lambda outsider: outsider.neighbour.end(), each)

    def _end_with(self, machine: Machine) -> None:
        """The last life of the broker."""
        if self.is_rotting:
            self.rot.flip()
        if self.is_refused:
            return
        self._live(machine, [Client(self, "auditor", 0, 1)])
        if self.former is not None and not self.former.process.is_dead and not self.is_refused:
            self._let_find_out(self.former)

    def _set_up(self) -> None:
        self.dispatch_ms = self.dice.choice([1, 10, 100])
        self.dispatch_count = self.dice.choice([1, 2, 256])
        self.level = self.dice.choice(LEVELS)
        self.cache_bytes = self.dice.choice([0, 2_000, 1 << 20])

    def _change_settings(self) -> None:
        choice = self.dice.choice
        self._set_up()
        self.sizes = {
            "commit_log_segment_bytes": choice([1_200, 1_500, 6_000]),
            "consume_queue_segment_bytes": choice([60, 100, 400]),
            "commit_log_rolling_hours": choice([1, 24]),
            "index_rolling_hours": choice([1, 24]),
            "index_enabled": choice([True, True, False]) or self.is_sound,
            "group_commit_count": choice([1, 4, 1_000]),
            "group_commit_timeout_ms": choice([100, 2_000, 30_000]),
            "crc_check_enabled": choice([True, False]),
            "expiry_interval_ms": choice([60_000, 600_000]),
        }

    def _set_faults(self) -> None:
        faults, bucket = self.plan.faults, self.bucket
        if KILLS in faults:
            bucket.ends, bucket.may_end = self._end, self._may_end
        if REQUESTS in faults:
            bucket.odds = self.dice.choice([0.01, 0.05, 0.2])
        bucket.pages_lists = PAGED in faults

    def _look_elsewhere(self, outsiders: list[Outsider], machine: Machine) -> None:
        """Check a tier that nobody changes any more from elsewhere."""
        here = [(verify_elsewhere, Outsider(self, "verify", 0, 1))]
        last = {"exporter": export_rest, "stream": follow_rest, "mover": cut_over}
        if not self.rot.harms_tier:
            here += [(last[each.kind], each) for each in outsiders if each.kind in last]
        for act, outsider in here:
            if self.is_posix:
                outsider.config = self.tier_config(machine)  # on the broker's host
            self._do_elsewhere(act, outsider)

    def _do_elsewhere(self, act: Callable[[Outsider], None], outsider: Outsider) -> None:
        actor = self.scheduler.spawn(outsider.kind, outsider.process, partial(act, outsider))
        self.scheduler.wait(lambda: actor.is_done)

    @property
    def elsewhere(self) -> Model:
        """What is true now for those who see only the tier."""
        return self.histories.elsewhere() if self.histories.is_on else self.model

    @property
    def objects(self) -> WatchedObjects:
        return self.buckets[self.place].objects

    @property
    def witness(self) -> Witness:
        return self.buckets[self.place].witness

    def _landed(self, witness: Witness, key: str, data: bytes) -> None:
        try:
            if told := witness.landed(key, data):
                self.scheduler.note(told)
                for queue in self.queues:
                    self.furthest[queue] = max(self.durable_end(queue), self.furthest[queue])
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self.scheduler.failure = self.scheduler.failure or error

    def is_committed(self, put: Put) -> bool:
        """Whether the tier has it, as far as anybody knows."""
        if put.offset is None or self.model.is_of_another_topic(put):
            return False
        return put.offset < max(self.durable_end(put.queue), self.model.committed.get(put.queue, 0))

    def uploaded(self, queue: QueueKey) -> set[int]:
        """What must be in the tier after all faults: everything, unless the upload of the queue
        cannot continue, or could not begin; then what is committed."""
        there = self.elsewhere.required(queue)
        if not (self.is_refused or self.rot.is_hit(queue)):
            return there
        known = self.model.queues.get(queue, {})
        return {at for at in there if self.is_committed(known[at])}

    def durable_end(self, queue: QueueKey) -> int:
        """Where a queue ends in a fold of the bucket; 0 if all of it has expired. Always 0 for a
        directory, where the catalogue is published later."""
        if self.is_posix:
            return 0
        path = f"{BROKER}/{queue.topic}/{queue.queue_id}"
        truth = self.witness.truth
        ends = [
            base + truth.segments[number].size
            for (its_path, kind, base), number in truth.live.items()
            if its_path == path and kind is SegmentType.CONSUME_QUEUE
        ]
        return max(ends, default=0) // QUEUE_UNIT_BYTES

    def next_row(self, queue: QueueKey) -> int:
        """Where the last segment of a queue begins in a fold of the bucket, with bytes or without:
        behind a gap it has none yet."""
        path = f"{BROKER}/{queue.topic}/{queue.queue_id}"
        rows = self.witness.truth.rows.values()
        bases = [
            row.base_offset
            for row in rows
            if isinstance(row, SegmentRecord)
            and (row.path, row.type) == (path, SegmentType.CONSUME_QUEUE)
        ]
        return max(bases, default=0) // QUEUE_UNIT_BYTES

    @property
    def is_out_of_room(self) -> bool:
        return ROOM in self.plan.faults

    @property
    def is_posix(self) -> bool:
        return self.kinds[self.place] == "posix"

    def has_segments(self, machine: Machine) -> bool:
        if not self.is_posix:
            kinds = {kind for _, kind, _ in self.witness.truth.live}
            return bool(kinds - {SegmentType.INDEX})
        folder = Path(self.tier_config(machine).path)
        return any(map(has_bytes, folder.glob(f"*/{BROKER}/**/*COMMIT_LOG*/*")))

    @property
    def weather(self) -> list[str]:
        kinds = {
            ROOM: ["no room", "nearly full", "input/output errors"],
            REQUESTS: ["503"],
            REFUSALS: ["403"],
            CLOCK: ["clock", "halt"],
            SHORT: ["short reads and writes"],
            ROT: ["rot"],
            LOCAL_ROT: ["rot"],
        }
        return [each for fault in self.plan.faults for each in kinds.get(fault, [])]

    def _live(self, machine: Machine, clients: list[Client]) -> None:
        self.lives += 1
        if SETTINGS in self.plan.clients:
            self._change_settings()
        life = self.life = Life(self, machine, self.lives)
        self.graves.append(life)
        self.scheduler.note(f"life {self.lives} begins")
        self.scheduler.spawn("main", life.process, lambda: life.run(clients))
        self.scheduler.wait(lambda: life.is_over or life.is_forked or life.process.is_dead)
        self.is_refused |= life.is_refused
        if life.is_forked and not life.process.is_dead:
            return
        if life.is_over:  # its remaining threads end with the process
            self.scheduler.kill(life.process, machine.free_locks)
            self.scheduler.wait(lambda: True)
        # Continue only when no actor of the process is left, and nobody moves the tier.
        self.scheduler.wait(
            lambda: (
                not self.is_moving
                and not any(each.process is life.process for each in self.scheduler.actors)
            )
        )

    def _lose_disk(self, machine: Machine) -> None:
        """Everything on the broker's own disk is lost, but not a tier in a directory beside it."""
        if not self._may_lose(machine):
            return
        self.scheduler.note("the disk is lost")
        shutil.rmtree(machine.folder / "store")
        self._go_on(machine, also_copies=self.is_posix)

    def _may_lose(self, machine: Machine) -> bool:
        return self.former is None and self.may_recover(machine)

    def may_recover(self, machine: Machine) -> bool:
        return self.has_segments(machine) and not self.adoption.is_half_done

    def _restore(self, machine: Machine) -> None:
        """The first time, copy the broker's disk; the second time, replace the disk by the copy."""
        store, copy = machine.folder / "store", self.folder / "copy"
        if not self._may_lose(machine):
            return
        if not copy.exists():
            shutil.copytree(store, copy)
            return
        self.scheduler.note("an older copy of the disk is restored")
        shutil.rmtree(store)
        copy.rename(store)
        if self.is_posix:  # `recover` would take that catalogue for the right one
            name = Path(self.tier_config(machine).catalogue_path).name
            for path in (store / "config").glob(f"{name}*"):
                path.unlink()
        self._go_on(machine, also_copies=True)

    def _go_on(self, machine: Machine, *, also_copies: bool) -> None:
        """Continue after the end of the tier with what the disk has now."""
        self.has_lost_disk = True
        self.loads.lose_notes(of_tier=self.is_posix)
        machine.disk = ForgetfulDisk(machine.folder)
        self.model.fork()
        if self.is_posix and not any((machine.folder / "tier").rglob(".catalog/**/*.json")):
            self.model.doubt_expired()  # no room to publish a copy of the catalogue, so far
        self.model.lose_tables(also_copies=also_copies)
        self.recover(machine)

    def recover(self, machine: Machine) -> None:
        """Run `recover` for a tier in a directory, whose catalogue is on the broker's disk."""
        if self.is_posix:
            process = Process("recover", machine)
            actor = self.scheduler.spawn("recover", process, lambda: self._recover(machine))
            self.scheduler.wait(lambda: actor.is_done)
            self.scheduler.kill(process, machine.free_locks)
            self.scheduler.wait(lambda: True)

    def _take_care(self, machine: Machine, care: str) -> None:
        """An operator at work while no broker runs."""
        if self.former is not None or not (care == LOAD or self.has_segments(machine)):
            return
        calls: dict[str, Callable[[StoreConfig], None]] = {
            REPAIR: self.repair,
            REINDEX: self.reindex,
            EXPIRE: self.expire,
            LOAD: self._load,
            ADOPT: self._adopt,
        }
        self.care_for(machine, care, calls[care])

    def care_for(
        self,
        machine: Machine,
        care: str,
        call: Callable[[StoreConfig], object],
        expected: tuple[type[Exception], ...] = (),
    ) -> Process:
        """Run an operator's command in a process that may be killed."""
        machine.is_full, machine.lies = False, 0
        expected = (NoCatalogueError, *expected, *self.expected)
        self.scheduler.note(f"{care} begins")

        def cared() -> None:
            try:
                call(self.tier_config(machine))
            except (*expected, *self.rot.errors) as error:
                self.scheduler.note(f"{care}: {error!r:.200}")

        carer = self.carer = Process(care, machine)
        actor = self.scheduler.spawn(care, carer, cared)
        self.scheduler.wait(lambda: actor.is_done or carer.is_dead)
        self.carer = None
        if carer.is_dead:
            self.scheduler.wait(
                lambda: not any(each.process is carer for each in self.scheduler.actors)
            )
            self.graves.append(actor)
        return carer

    @property
    def may_move(self) -> bool:
        """Whether the tier may move: a half-done adoption would block the cut-over."""
        if self.is_sound or self.adoption.is_half_done:
            return False
        return self.place == FORMER and self.has_segments(self.machine)

    def _kind_to_move_to(self) -> str:
        plan = self.plan
        if {"successor", CUTTER} & {*plan.clients}:  # two machines do not share a directory
            return plan.tier
        return self.dice.choice([plan.tier, "bucket", "posix"])

    def _move(self, machine: Machine) -> None:
        # A directory cannot hold what a bucket has beside RocketMQ's keys.
        is_out = self.kinds[FORMER] == "bucket" and self.kinds[MOVED] == "posix"
        is_possible = not is_out and self.former is None
        if is_possible and self.dice.random() < 0.3:
            self._move_by_hand(machine)
            return
        self._until_moved(machine, partial(move, self))

    def _until_moved(self, machine: Machine, call: Callable[[StoreConfig], bool]) -> None:
        """Repeat until it is over: a broker on the former tier would begin another history."""
        is_over: list[bool] = []
        for number in range(TRIES_MAX):
            if self.former is not None or not self.has_segments(machine):
                return
            self.care_kill_odds = CARE_KILL_ODDS / (number + 1)
            self.care_for(machine, MOVE, lambda config: is_over.append(call(config)))
            if any(is_over):
                return
            self.bucket.odds *= FADES
            self.scheduler.clock.sleep(10)
        raise AssertionError("the tier cannot be moved")

    def _move_by_hand(self, machine: Machine) -> None:
        """Seal, then copy with a tool: the copy would lack what is not sealed."""
        self.is_sealed = False
        self._live(machine, [Client(self, SEALER, 0, 1)])
        if self.is_sealed and self.former is None and self.may_move:
            carry(self, machine)
            machine.disk = ForgetfulDisk(machine.folder)
            self._until_moved(machine, self._rebuild_copy)

    def _rebuild_copy(self, config: StoreConfig) -> bool:
        if not self.kinds[FORMER] == self.kinds[MOVED] == "bucket":  # else the log came along
            with suppress(NewerCatalogueError):  # a killed try had finished
                self.rebuild(at_place(self, config, MOVED))
            self.loads.lose_notes(of_tier=True)
            for consumed in self.model.consumed.values():
                consumed.in_tier_from = 0
            # No byte of an expired queue says where it and its log ended.
            self.forgotten = {each for each in self.queues if not self.model.required(each)}
            for queue in self.forgotten:
                self.model.forget_end(queue)
            for each in self.outsiders:
                each.checkpoint.may_repeat = True
        self.has_moved_to(MOVED)
        return True

    def begins_again(self, finding: Finding) -> bool:
        """Whether this is a key of an expired message whose place in the log was used again: a
        rebuilt copy does not know how far the log of such a queue went. Or the bytes of a message
        whose unit a crash left out: the tier went back to that moment, and continued behind it."""
        queue = finding.place.topic, finding.place.queue_id
        if finding.kind is VerifyKind.UNNAMED:
            has_gone_back = self.rewind.is_done or (self.histories.is_on and self.has_lost_disk)
            return self.is_posix and has_gone_back
        return finding.kind is VerifyKind.KEY_UNFOUNDED and queue in self.forgotten

    def has_moved_to(self, place: str) -> None:
        self.place = place
        for each in self.outsiders:
            if each.kind != NEIGHBOUR:
                each.config, each.reading = self.tier_config(each.machine), None

    def repair(self, config: StoreConfig) -> None:
        runtime = self.runtime_here()
        with written_tier(config, runtime) as opened:
            if opened is None:
                return
            provider, catalogue, publisher = opened
            if publisher is not None:
                publisher.publish()
            published = partial(published_catalogue, config, provider)
            report = audit(catalogue, provider, config, runtime, repair=True, published=published)
        damage = [each for each in report.damage if not self.histories.excuses(each)]
        assert not damage or self.rot.harms_tier, f"audit --repair: {damage}"
        self.scheduler.note(f"repaired {sum(each.repaired for each in report.findings)}")

    def reindex(self, config: StoreConfig) -> None:
        if not config.index_enabled:
            return
        runtime, may_fail = self.runtime_here(), bool(self.expected)
        engine = LocalEngine(pool=runtime.dispatch, threads=2)
        try:
            report = reindex(config, engine, clock=runtime.clock)
        except MetadataError as error:  # copies of an adoption, and a catalogue without segments
            if not self.adoption.is_half_done:
                raise
            self.scheduler.note(f"reindex: {error!r:.200}")
            return
        self.scheduler.note(f"reindex: {report.state.value} {dict(report.counts)}")
        assert report.state is JobState.DONE or may_fail, f"reindex: {report}"
        if report.state is JobState.DONE:
            self.adoption.is_searched = self.adoption.is_done
        self.rot.passes_damaged |= report.counts.get("damaged", 0) > 0
        assert self.rot.harms_tier or not self.rot.passes_damaged, f"reindex: {report}"

    def expire(self, config: StoreConfig) -> None:
        runtime = self.runtime_here()
        runtime.clock.sleep(self.dice.choice([0, 0, HOUR_MS / 1_000]))
        with ExitStack() as stack:
            stack.callback(self.saw_time)
            opened = stack.enter_context(written_tier(config, runtime))
            if opened is None:
                return
            provider, catalogue, publisher = opened
            try:
                if publisher is not None:
                    publisher.check()
            except StaleCatalogueError as error:
                if not (self.has_lost_disk or self.histories.is_on or self.rewind.is_done):
                    raise
                self.scheduler.note(f"{error!r:.200}")
                return
            parts: dict[str, Any] = {"runtime": runtime, "provider": provider}
            parts["metadata"] = catalogue
            tier = stack.enter_context(closing(open_tier(config, index=NoIndex(), **parts)))
            tier.load()
            self.has_expired = self.has_just_expired = True
            now_ms = runtime.clock.now_ms()
            gone = [*expire_tier(tier.files, catalogue, config, now_ms=now_ms)]
            announces = tier.publishing.announces
            IndexStore(config, publish=announces, **parts).expire_unopened()
        self.scheduler.note(f"expired: {gone}")

    def _adopt(self, config: StoreConfig) -> None:
        self.adoption.take(config, self.runtime_here())

    def _load(self, config: StoreConfig) -> None:
        try:
            self.loads.take(config, self.runtime_here())
        except LoadRefusedError as error:  # the cause may be a backend that is away
            if not self.expected:
                raise
            self.scheduler.note(f"{error!r:.200}")

    def _recover(self, machine: Machine) -> None:
        """What the command does: make a catalogue from the published one and from the bytes."""
        config, runtime = self.tier_config(machine), self.runtime_here()
        machine.is_full, machine.lies = False, 0
        is_again = False
        while True:
            try:
                self.rebuild(config)
                return
            except self.expected as error:
                self.scheduler.note(f"recover: {error!r:.200}")
                if is_again and isinstance(error, NewerCatalogueError):
                    return  # an attempt that failed wrote everything
                is_again = True
                if self.rot.keeps_shut(error):
                    self.is_refused = True
                    return
                runtime.clock.sleep(1)

    def rebuild(self, config: StoreConfig) -> None:
        """What the command does."""
        runtime = self.runtime_here()
        with written_tier(config, runtime, creates=True) as opened:
            assert opened is not None
            provider, catalogue, publisher = opened
            if publisher is None:
                rebuild(catalogue, provider, config, runtime, takes_in=True).told()
                return
            rebuild_beside_published(
                *(catalogue, provider, config, runtime),
                publisher=publisher,
                published=partial(published_catalogue, config, provider),
            )

    def _let_find_out(self, life: Life) -> None:
        def poke() -> None:
            find_out(self, life)

        actor = self.scheduler.spawn("former", life.process, poke)
        self.scheduler.wait(lambda: actor.is_done)

    def _at_step(self, what: str) -> None:
        running = self.scheduler.running
        life = self.life
        carer = self.carer
        if carer is not None and running is not None and running.process is carer:
            if not self.is_sound and self.dice.random() < self.care_kill_odds:
                self._kill_carer(carer, what)
            return
        if self.is_sound or life is None or running is None or running.process is not life.process:
            return
        if life.is_forked:
            return
        if self.dice.random() < self.kill_odds:
            self.kill(life, what)

    def _may_end(self, process: Process) -> bool:
        """Not one that was taken over from: it must find that out."""
        return self.life is not None and self.life.process is process and not self.life.is_forked

    def _end(self, what: str) -> None:
        assert self.life is not None
        self.kill(self.life, what)

    def kill(self, life: Life, what: str) -> None:
        if life.is_open:
            self.sure_below = life.flushed_offset()
        is_cut = POWER in self.plan.faults and self.dice.random() < 0.5
        self._kill(life.process, what, is_cut=is_cut)

    def _kill_carer(self, carer: Process, what: str) -> None:
        is_cut = False
        if self.histories.is_on:
            self.sure_below = self.histories.flushed_offset()
            is_cut = POWER in self.plan.faults and self.dice.random() < 0.5
        self._kill(carer, what, is_cut=is_cut)

    def _kill(self, process: Process, what: str, *, is_cut: bool) -> None:
        self.scheduler.note(f"{'power cut' if is_cut else 'killed'} at {what}")

        def after() -> None:
            process.place.free_locks()
            if is_cut:
                process.place.lose_power(self.dice)
                self.model.lose_power(self.sure_below)

        self.scheduler.kill(process, after)

    # Configurations and runtimes

    def runtime(self, process: Process) -> ActorRuntime:
        dice = Random(f"{self.plan.seed} {process.name}")
        return ActorRuntime(self.scheduler, process, dice, self.failed)

    def runtime_here(self) -> ActorRuntime:
        return self.runtime(self._here())

    def _pool_here(self, name: str, **_: int) -> ActorPool:
        return ActorPool(self.scheduler, self._here(), name)

    def _here(self) -> Process:
        running = self.scheduler.running
        assert running is not None
        return running.process

    def local_config(self, machine: Machine) -> LocalConfig:
        return LocalConfig(
            store_path=str(machine.folder / "store"),
            commit_log_file_bytes=2_048,
            queue_file_bytes=200,
            index_slot_count=INDEX_SLOTS,
            index_item_count=40,
            reserve_hours=KEPT_HOURS if self.histories.keeps_local else 0,
            expiry_interval_ms=10_000,
            delete_count_max=2,
            dispatch_interval_ms=self.dispatch_ms,
            dispatch_count_max=self.dispatch_count,
            flush_disk_type="SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
            disk_full_percent=90,
            disk_clean_percent=75,
        )

    def tier_config(self, machine: Machine) -> StoreConfig:
        config = StoreConfig(
            broker_name=BROKER,
            cluster_name=CLUSTER,
            store_path=str(machine.folder / "store"),
            storage_level=self.level,
            commit_log_segment_bytes=1_500,
            consume_queue_segment_bytes=100,
            commit_log_rolling_hours=1,
            commit_log_rolling_min_bytes=0,
            index_slot_count=8,
            index_item_count=30,
            index_rolling_hours=1,
            reserve_hours=self.reserve_hours,
            expiry_interval_ms=600_000,
            dispatch_interval_ms=2_000,
            group_commit_count=4,
            group_commit_timeout_ms=2_000,
            read_ahead_enabled=self.cache_bytes > 0,
            read_cache_bytes=self.cache_bytes,
        )
        sizes = {**self.sizes, "crc_check_enabled": True} if self.is_rotting else self.sizes
        return at_place(self, replace(config, **sizes) if sizes else config, self.place)

    # What may go wrong

    @property
    def expected(self) -> tuple[type[Exception], ...]:
        if self.is_sound:
            return self.rot.errors
        found: list[type[Exception]] = []
        if REQUESTS in self.plan.faults:
            found.append(BackendUnavailableError)
        if REFUSALS in self.plan.faults:
            found.append(BackendRefusedError)
        if CLOCK in self.plan.faults or self.former is not None:
            found.append(BackendUnavailableError)  # a machine was halted longer than a wait lasts
        if ROOM in self.plan.faults:
            found += [BackendRefusedError, MetadataError, BackendUnavailableError]
        return (*found, *self.rot.errors)

    @property
    def is_away(self) -> tuple[type[Exception], ...]:
        away = [BackendUnavailableError, SegmentNotFoundError, NoCatalogueError]
        if REFUSALS in self.plan.faults:
            away.append(BackendRefusedError)
        return (*away, *self.rot.errors_elsewhere)

    def attempt(self, life: Life, call: Callable[[], object]) -> None:
        """Run an act of a client; faults of the plan are not errors of the store."""
        expected: tuple[type[Exception], ...] = (StoreClosedError, *self.expected)
        try:
            call()
        except FencedError as error:
            if self.former is None and CUTTER not in self.plan.clients:  # nobody has taken over
                raise
            self.scheduler.note(f"{error!r:.200}")
        except (*expected, *self.rot.errors) as error:  # perhaps a bit flipped meanwhile
            self.scheduler.note(f"{error!r:.200}")
        except BackendUnavailableError as error:
            if not life.is_forked:  # else its machine slept meanwhile, longer than a wait lasts
                raise
            self.scheduler.note(f"{error!r:.200}")

    def failed(self, error: BaseException) -> None:
        """A thread of the store raised this; it is a bug unless it is an expected type of error."""
        running = self.scheduler.running
        is_dying = running is not None and running.process.is_dead
        if not is_dying and not isinstance(error, (TieredStoreError, OSError, Crash)):
            self.scheduler.failure = self.scheduler.failure or error

    # Between lives

    def settle(self, life: Life) -> None:
        """Tell the model which messages are there: they were durable when the store opened."""
        model = self.model
        self._wait_for_ends(life)
        offsets = life.store.consumer_offsets
        for group, queue in list(model.consumed):
            end = life.store.max_offset(*queue)
            found = offsets.get(group, *queue)
            model.opened_at(group, queue, found, end, is_hit=self.rot.changes_offsets)
        if model.deletions.get(BRIEF.topic, 0) % 2:
            self._delete_again(life)
        life_puts = [each for each in model.puts.values() if each.state == SENT]
        unread = {*model.murky}
        expiring = set()
        for queue in self.queues:
            # The tier's end, if the local queue could not begin after it: puts are refused then.
            ends = life.local.max_offset(*queue), life.store.committed_offset(*queue)
            end = max(each or 0 for each in ends)
            first = model.first_unknown(queue)
            read = self._read_from(life, queue, first, end)
            if read.lacks:
                unread.add(queue)
            if read.hides:
                expiring.add(queue)
            self.scheduler.note(f"{queue.topic}/{queue.queue_id}: {first} to {end}, {read.names}")
            model.settle(queue, end, read.names)
        for put in life_puts:
            if put.state == SENT and put.queue not in unread:
                may_have_expired = self.has_just_expired or put.queue in expiring
                model.never_came(put, may_have_expired=may_have_expired)
        self.has_just_expired &= any(put.state == SENT for put in life_puts)
        self.loads.settle()

    def _read_from(self, life: Life, queue: QueueKey, first: int, end: int) -> _FoundMessages:
        found = _FoundMessages()
        at = first
        while at < end:
            try:
                with self.rot.reading(queue, at):
                    page = life.store.get_message(*queue, at, count_max=8)
            except self.expected as error:
                life.runtime.clock.sleep(1)
                if isinstance(error, self.rot.errors):
                    at, found.lacks = at + 1, True
                continue
            found.hides |= page.status is GetStatus.OFFSET_TOO_SMALL
            for one in page.messages:
                if self.rot.makes_no_sense(one):
                    found.lacks = True
                    continue
                body = decode_message(one.record).body.decode(errors="replace")
                found.names[one.queue_offset] = body.split("|")[0]
            if page.next_offset <= at:
                break
            at = page.next_offset
        return found

    def _wait_for_ends(self, life: Life) -> None:
        """Wait until every queue is opened: before that the tier may have more than it says."""
        for _ in range(TRIES_MAX):
            problems = [each.problem or "" for each in life.store.health().queues]
            if not any(problem.startswith("not recovered") for problem in problems):
                return
            life.runtime.clock.sleep(1)

    def _delete_again(self, life: Life) -> None:
        for _ in range(TRIES_MAX):
            try:
                life.store.delete_topics([BRIEF.topic])
            except self.expected:
                life.runtime.clock.sleep(1)
                continue
            self.model.end_deletion(BRIEF.topic)
            self.histories.end_deletion(BRIEF.topic)
            return
        # A disk that failed once is not trusted again: the next life deletes the topic.

    def acknowledged(self, puts: Sequence[Put], results: Sequence[PutResult]) -> None:
        for put, result in zip(puts, results, strict=True):
            if result.stored:
                self.model.acknowledge(put, result)
                put.is_on_disk = self.sync_flush and result.status is PutStatus.PUT_OK

    def set_clock(self, shift_ms: int) -> None:
        self.saw_time()  # what has expired by then stays expired
        for each in self.outsiders:
            if each.kind == NEIGHBOUR:
                each.neighbour.saw_time()
        self.scheduler.clock.shift_ms += shift_ms

    def saw_time(self) -> None:
        self.model.newest_ms = max(self.model.newest_ms, self.scheduler.clock.now_ms())


class PartsOfProcesses:
    """The parts that each simulated process made for its jobs; real ones have a `_PARTS` each."""

    def __init__(self, scheduler: Scheduler) -> None:
        vars(self).update(scheduler=scheduler, of={})

    def _mine(self) -> Any:
        running = vars(self)["scheduler"].running
        return vars(self)["of"].setdefault(running.process, worker._Parts())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._mine(), name, value)


class SimProvider(ObjectProvider):
    """A provider over the buckets of the running world."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        world = World.current
        client = world.bucket.client(world.buckets[config.bucket].objects)
        return cls(client, config.cluster_name, runtime, joins_epoch=not config.claim_epoch)


def has_bytes(path: Path) -> bool:
    """An empty file is not a segment yet: a process was killed before its first write."""
    with suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


@contextmanager
def hearing(
    failed: Callable[[BaseException], None], heard: Callable[[logging.LogRecord], None]
) -> Iterator[None]:
    """Pass exceptions that the code under test only logs to `failed`, and warnings to `heard`."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard(record)
            if record.exc_info and record.exc_info[1] is not None:
                failed(record.exc_info[1])

    logger, handler = logging.getLogger("tieredstore"), Handler(logging.WARNING)
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, level = before
        logger.setLevel(level)


def collect() -> None:
    """Collect garbage; errors of generators that are closed without a process are ignored."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.collect()
    sys.unraisablehook = hook


def close_files_below(folder: Path) -> None:
    """Close files that an earlier world left: nothing closes the descriptors of a process that
    died, and a thousand worlds would need more than a process may have."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/"):
                os.close(int(name))


def run(plan: Plan, folder: Path, *, salt: int = 0) -> World:
    """Raises the first violation, with the story of the world in `__notes__`."""
    was_enabled = gc.isenabled()
    collect()  # the earlier world
    close_files_below(folder)
    shutil.rmtree(folder, ignore_errors=True)
    gc.freeze()  # existing objects stay, and need not be examined again
    gc.disable()  # a finalizer at another moment would be another history
    world = World(plan, folder, salt=salt)
    try:
        world.run()
    except BaseException as error:
        error.add_note("\n".join(world.scheduler.trace[-STORY_MAX:]))
        raise
    finally:
        world.graves.clear()
        del World.current
        if was_enabled:
            collect()
            gc.enable()
        shutil.rmtree(folder, ignore_errors=True)
    return world


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with one thing less."""
    for fault in plan.faults:
        yield replace(plan, faults=tuple(each for each in plan.faults if each != fault))
    for place in range(len(plan.clients)):
        yield replace(plan, clients=plan.clients[:place] + plan.clients[place + 1 :])
    for ops in (plan.ops // 2, plan.ops - 1):
        if 0 < ops < plan.ops:
            yield replace(plan, ops=ops)
