"""One history of a broker's whole tier, which a seed decides to the last step.

A `Plan` says what takes part. The director opens the store, lets its clients loose, waits until
the process dies or all are through, decides what a power cut leaves, and opens the next life. At
the end nothing goes wrong any more, and all that was acknowledged must be there: by offset, time
and key, here and for a reader elsewhere, with nothing for `audit` and `verify` to find.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, Self

import pytest

from tests.roundlog.small import everything_small
from tests.simulation.machines import Bucket, Disks, Machine, refuse_for_room
from tests.simulation.model import SENT, Model, Put
from tests.simulation.scheduler import ActorRuntime, Process, Scheduler
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.driver import durable
from tieredstore.driver.runtime import Runtime
from tieredstore.local import files as local_files
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore, LocalStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    MetadataError,
    SegmentCorruptError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.messages import Message
from tieredstore.model.values import Boundary, PutStatus, QueueKey, StorageLevel
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.disk import Crash
from tieredstore.testing.memory_objects import MemoryObjects
from tieredstore.testing.message_store_contract import NamedTagFilter, TagFilter

BROKER: Final = "broker-a"
CLUSTER: Final = "cluster-a"
START_MS: Final = 4_000_000_000_000  # behind all times of real files: these are always old
HOUR_MS: Final = 3_600_000
KEPT: Final = [QueueKey("Kept", 0), QueueKey("Kept", 1)]
BRIEF: Final = QueueKey("Brief", 0)
SHARED_KEYS: Final = ("red", "green")
TAGS: Final = ("a", "b")
LEVELS: Final = [StorageLevel.NOT_IN_DISK, StorageLevel.NOT_IN_MEM, StorageLevel.FORCE]
PAGES_MAX: Final = 1_000
LIVES_MAX: Final = 5
KEYS_ASKED: Final = 8

REQUESTS: Final = "requests"
POWER: Final = "power"
KILLS: Final = "kills"
ROOM: Final = "room"
CLOCK: Final = "clock"
FAULTS: Final = (REQUESTS, POWER, KILLS, ROOM, CLOCK)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What takes part in a history; a smaller one may show the same."""

    seed: int
    tier: str = "bucket"
    clients: tuple[str, ...] = ("producer", "producer", "consumer")
    faults: tuple[str, ...] = FAULTS
    ops: int = 12  # of each client

    @classmethod
    def of(cls, seed: int) -> Self:
        dice = Random(f"{seed} plan")
        clients = ["producer", "producer", "consumer"]
        clients += [name for name in EXTRAS if dice.random() < 0.4]
        faults = tuple(each for each in FAULTS if dice.random() < 0.5)
        return cls(
            seed=seed,
            clients=tuple(clients),
            faults=faults,
            ops=dice.choice([3, 6, 12, 20]),
        )


class Client:
    """Somebody who asks the broker for things, life after life."""

    def __init__(self, world: World, kind: str, number: int, ops: int) -> None:
        self.world, self.kind, self.name = world, kind, f"{kind}{number}"
        self.left = ops
        self.dice = Random(f"{world.plan.seed} {self.name}")
        self.offsets: dict[QueueKey, int] = {}

    def run(self, life: Life) -> None:
        while self.left and not life.is_ending:
            self.left -= 1
            self.world.attempt(lambda: ACTS[self.kind](self, life))


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
        self.is_open = self.is_ending = self.is_over = False

    def run(self, clients: list[Client]) -> None:
        """The process's main thread."""
        world, scheduler = self.world, self.world.scheduler
        while not self.is_open:
            try:
                self.store.load()
                self.store.start()
                self.is_open = True
            except world.expected as error:
                scheduler.note(f"load: {error!r}")
                self.runtime.clock.sleep(1)
        scheduler.note("open")
        world.sure_below = None
        world.settle(self)
        actors = [
            scheduler.spawn(each.name, self.process, lambda each=each: each.run(self))
            for each in clients
            if each.left
        ]
        scheduler.wait(lambda: self.is_ending or all(each.is_done for each in actors))
        self.is_ending = True
        self.shutdown()

    def shutdown(self) -> None:
        drain = self.world.dice.random() < 0.5
        self.world.scheduler.note(f"shutdown, drain={drain}")
        self.world.attempt(lambda: self.store.shutdown(drain=drain))
        self.is_over = True

    def flushed_offset(self) -> int | None:
        parts = self.local._parts
        return None if parts is None else parts.log.flushed_offset


class World:
    """One history. `run` raises for the first thing that must not be."""

    current: ClassVar[World]

    def __init__(self, plan: Plan, folder: Path, *, salt: int = 0) -> None:
        self.plan, self.folder = plan, folder
        self.dice = Random(f"{plan.seed} world")
        self.scheduler = Scheduler(f"{plan.seed} {salt}", now_ms=START_MS)
        self.disks = Disks(self.scheduler)
        self.bucket = Bucket(self.scheduler, Random(f"{plan.seed} bucket"), MemoryObjects())
        self.reserve_hours = self.dice.choice([1, 48, 48])
        self.sync_flush = self.dice.random() < 0.5
        self.level = self.dice.choice(LEVELS)
        self.cache_bytes = self.dice.choice([0, 2_000, 1 << 20])
        self.kill_odds = self.dice.choice([0.0003, 0.001, 0.003]) if KILLS in plan.faults else 0
        self.model = Model(kept_ms=self.reserve_hours * HOUR_MS)
        self.lives = 0
        self.life: Life | None = None
        self.names = 0
        self.sure_below: int | None = None
        """Of the local log, since it was last opened; None: all of it was on disk then."""
        self.is_sound = False  # nothing goes wrong any more

    # Running it

    def run(self) -> None:
        World.current = self
        with self._installed():
            outside = Process("operator")
            director = self.scheduler.spawn("director", outside, self._direct)
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
        of = LocalStore.of.__func__  # type: ignore[attr-defined]

        def with_our_lock(cls: type[LocalStore], *arguments: Any, **named: Any) -> LocalStore:
            import threading

            parts: LocalStore = of(cls, *arguments, **named)
            parts.flushing = threading.Lock()  # its default is from before we were installed
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
            patch.setattr(LocalStore, "of", classmethod(with_our_lock))
            patch.setattr(Runtime, "threads", lambda **named: self._runtime_here())
            stack.enter_context(self.disks.installed())
            stack.enter_context(hearing(self.failed))
            yield

    def _direct(self) -> None:
        plan = self.plan
        clients = [Client(self, kind, number, plan.ops) for number, kind in enumerate(plan.clients)]
        machine = Machine("here", self.folder / "here")
        if KILLS in plan.faults:
            self.bucket.ends = self._end
        if REQUESTS in plan.faults:
            self.bucket.odds = self.dice.choice([0.01, 0.05, 0.2])
        while any(each.left for each in clients) and self.lives < LIVES_MAX:
            self._live(machine, clients)
        self.is_sound = self.bucket.is_sound = True
        machine.is_full, machine.used_percent = False, 50
        while self.bucket.late:
            self.bucket.land_one()
        self._live(machine, [Client(self, "auditor", 0, 1)])

    def _live(self, machine: Machine, clients: list[Client]) -> None:
        self.lives += 1
        life = self.life = Life(self, machine, self.lives)
        self.scheduler.note(f"life {self.lives} begins")
        self.scheduler.spawn("main", life.process, lambda: life.run(clients))
        self.scheduler.wait(lambda: life.is_over or life.process.is_dead)
        if life.is_over:  # whatever threads it has left end with the process
            self.scheduler.kill(life.process, machine.free_locks)
            self.scheduler.wait(lambda: True)
        # Again behind the burial: nothing of it goes on.
        self.scheduler.wait(
            lambda: not any(each.process is life.process for each in self.scheduler.actors)
        )

    def _at_step(self, what: str) -> None:
        running = self.scheduler.running
        life = self.life
        if self.is_sound or life is None or running is None or running.process is not life.process:
            return
        if self.kill_odds and self.dice.random() < self.kill_odds:
            self.kill(life, what)

    def _end(self, what: str) -> None:
        assert self.life is not None
        self.kill(self.life, what)

    def kill(self, life: Life, what: str) -> None:
        if life.is_open:
            self.sure_below = life.flushed_offset()
        is_cut = POWER in self.plan.faults and self.dice.random() < 0.5
        self.scheduler.note(f"{'power cut' if is_cut else 'killed'} at {what}")

        def after() -> None:
            life.machine.free_locks()
            if is_cut:
                life.machine.lose_power(self.dice)
                self.model.lose_power(self.sure_below)

        self.scheduler.kill(life.process, after)

    # What parts are made of

    def runtime(self, process: Process) -> ActorRuntime:
        dice = Random(f"{self.plan.seed} {process.name}")
        return ActorRuntime(self.scheduler, process, dice, self.failed)

    def _runtime_here(self) -> ActorRuntime:
        running = self.scheduler.running
        assert running is not None
        return self.runtime(running.process)

    def local_config(self, machine: Machine) -> LocalConfig:
        return LocalConfig(
            store_path=str(machine.folder / "store"),
            commit_log_file_bytes=2_048,
            queue_file_bytes=200,
            index_slot_count=8,
            index_item_count=40,
            reserve_hours=0,
            expiry_interval_ms=10_000,
            delete_count_max=2,
            dispatch_interval_ms=1,
            flush_disk_type="SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
            disk_full_percent=90,
            disk_clean_percent=75,
        )

    def tier_config(self, machine: Machine) -> StoreConfig:
        return StoreConfig(
            broker_name=BROKER,
            cluster_name=CLUSTER,
            provider="tests.simulation.world.SimProvider",
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

    # What may go wrong

    @property
    def expected(self) -> tuple[type[BaseException], ...]:
        if self.is_sound:
            return ()
        found: list[type[BaseException]] = []
        if REQUESTS in self.plan.faults:
            found.append(BackendUnavailableError)
        if ROOM in self.plan.faults:
            found += [BackendRefusedError, MetadataError, BackendUnavailableError]
        return tuple(found)

    def attempt(self, call: Callable[[], object]) -> None:
        """What a client does; a fault is no error of the store."""
        try:
            call()
        except (StoreClosedError, *self.expected) as error:
            self.scheduler.note(f"{error!r:.200}")

    def failed(self, error: BaseException) -> None:
        """A thread of the store has seen this; it is a bug unless it is an error of ours."""
        running = self.scheduler.running
        is_dying = running is not None and running.process.is_dead
        if not is_dying and not isinstance(error, (TieredStoreError, OSError, Crash)):
            self.scheduler.failure = self.scheduler.failure or error

    # Between lives

    def settle(self, life: Life) -> None:
        """What is there now was durable when the store had opened."""
        model = self.model
        if model.deletions.get(BRIEF.topic, 0) % 2:
            self._delete_again(life)
        life_puts = [each for each in model.puts.values() if each.state == SENT]
        for queue in [*KEPT, BRIEF]:
            end = life.local.max_offset(*queue) or 0
            first = model.first_unknown(queue)
            seen: dict[int, str] = {}
            at = first
            while at < end:
                try:
                    page = life.store.get_message(*queue, at, count_max=8)
                except SegmentCorruptError:
                    model.found_hole(queue, at)
                    at += 1
                    continue
                except self.expected:
                    life.runtime.clock.sleep(1)
                    continue
                for one in page.messages:
                    body = decode_message(one.record).body.decode(errors="replace")
                    seen[one.queue_offset] = body.split("|")[0]
                if page.next_offset <= at:
                    break
                at = page.next_offset
            self.scheduler.note(f"{queue.topic}/{queue.queue_id}: {first} to {end}, {seen}")
            model.settle(queue, end, seen)
        for put in life_puts:
            if put.state == SENT:
                put.state = "gone"

    def _delete_again(self, life: Life) -> None:
        while True:
            try:
                life.store.delete_topics([BRIEF.topic])
            except self.expected:
                life.runtime.clock.sleep(1)
                continue
            self.model.end_deletion(BRIEF.topic)
            return

    def saw_time(self) -> None:
        self.model.newest_ms = max(self.model.newest_ms, self.scheduler.clock.now_ms())


class SimProvider(ObjectProvider):
    """The bucket of the world that is running."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        return cls(World.current.bucket.client(), config.cluster_name, runtime)


@contextmanager
def hearing(failed: Callable[[BaseException], None]) -> Iterator[None]:
    """What the code under test logs as an exception, and goes on."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
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


# What clients do


def produce(client: Client, life: Life) -> None:
    world, dice, model = client.world, client.dice, client.world.model
    draw = dice.random()
    if draw < 0.15:
        life.runtime.clock.sleep(dice.choice([0.01, 1, 3, 30, 700]))
        return
    if draw < 0.2:
        world.saw_time()
    queue = dice.choice([*KEPT, KEPT[0], BRIEF])
    count = dice.choice([1, 1, 1, 3])
    puts = []
    for _ in range(count):
        world.names += 1
        name = f"m{world.names}"
        put = Put(
            name=name,
            queue=queue,
            keys=(f"u{world.names}", dice.choice(SHARED_KEYS)),
            tag=dice.choice(TAGS),
            begun=model.deletions.get(queue.topic, 0),
        )
        model.send(put)
        puts.append(put)
    messages = [a_message(put, dice.choice([0, 100, 100, 900])) for put in puts]
    results = life.store.put_messages(messages)
    for put, result in zip(puts, results, strict=True):
        if result.stored:
            model.acknowledge(put, result)
            put.is_on_disk = world.sync_flush and result.status is PutStatus.PUT_OK


def a_message(put: Put, filling: int) -> Message:
    return Message(
        topic=put.queue.topic,
        queue_id=put.queue.queue_id,
        body=f"{put.name}|".encode() + b"x" * filling,
        properties={"TAGS": put.tag, "UNIQ_KEY": put.keys[0], "KEYS": put.keys[1]},
    )


def consume(client: Client, life: Life) -> None:
    draw = client.dice.random()
    if draw < 0.15:
        life.runtime.clock.sleep(client.dice.choice([0.01, 1, 5, 60]))
    elif draw < 0.7:
        read_page(client, life)
    elif draw < 0.85:
        ask_key(client, life)
    elif draw < 0.95:
        ask_time(client, life)
    else:
        ask_ends(client, life)


def read_page(client: Client, life: Life) -> None:
    world, dice, model = client.world, client.dice, client.world.model
    queue = dice.choice([*KEPT, BRIEF])
    if dice.random() < 0.1:
        life.store.level = dice.choice(LEVELS)
    if dice.random() < 0.5:
        offset = client.offsets.get(queue, 0)
    else:
        offset = dice.randrange(model.end(queue) + 2)
    tag = dice.choice([None, None, *TAGS])
    chosen = None if tag is None else dice.choice([TagFilter, NamedTagFilter])(tag)
    before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
    try:
        page = life.store.get_message(
            *queue, offset, count_max=dice.choice([1, 3, 8]), message_filter=chosen
        )
    except SegmentCorruptError:
        assert (queue, offset) in model.holes
        client.offsets[queue] = offset + 1
        return
    world.saw_time()
    names = [f"{one.queue_offset}" for one in page.messages]
    world.scheduler.note(
        f"{queue.topic}/{queue.queue_id} from {offset}: {page.status.value} "
        f"{','.join(names)} next {page.next_offset}"
    )
    model.check_page(queue, page, offset, before, deletions, tag)
    client.offsets[queue] = page.next_offset


def ask_key(client: Client, life: Life) -> None:
    world, dice, model = client.world, client.dice, client.world.model
    if not model.puts:
        return
    put = dice.choice(list(model.puts.values()))
    key, topic = dice.choice(put.keys), put.queue.topic
    before, deletions = model.having(topic, key), model.deletions.get(topic, 0)
    answer = life.store.query_message(topic, key, count_max=64)
    world.saw_time()
    world.scheduler.note(f"key {key}: {len(answer.messages)} complete={answer.complete}")
    model.check_answer(topic, key, answer, before, deletions)


def ask_time(client: Client, life: Life) -> None:
    world, dice, model = client.world, client.dice, client.world.model
    queue = dice.choice([*KEPT, BRIEF])
    times = [put.store_ms for put in model.queues.get(queue, {}).values()]
    if not times:
        return
    asked = dice.choice(times) + dice.choice([-1, 0, 1])
    before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
    is_exact = life.store.level is not StorageLevel.FORCE  # then the tier alone is asked
    found = life.store.offset_by_time(*queue, asked, Boundary.LOWER)
    world.saw_time()
    model.check_time(queue, asked, Boundary.LOWER, found, before, deletions, is_exact=is_exact)


def ask_ends(client: Client, life: Life) -> None:
    world, dice, model = client.world, client.dice, client.world.model
    queue = dice.choice([*KEPT, BRIEF])
    before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
    committed = life.store.committed_offset(*queue)
    model.saw_committed(queue, committed, deletions)
    first, end = life.store.min_offset(*queue), life.store.max_offset(*queue)
    world.saw_time()
    there = model.required(queue) & before
    if there and model.deletions.get(queue.topic, 0) == deletions:
        assert first is not None and first <= min(there), f"{queue} begins at {first}: {min(there)}"
        assert end is not None and end > max(there), f"{queue} ends at {end}: {max(there)}"


def look_after(client: Client, life: Life) -> None:
    """An operator, who flushes and seals."""
    draw = client.dice.random()
    if draw < 0.4:
        life.runtime.clock.sleep(client.dice.choice([1, 100, 2_000, 5_000]))
    elif draw < 0.6:
        life.store.flush(seal=client.dice.random() < 0.5)
    elif draw < 0.7:
        life.store.health()
    else:
        life.runtime.clock.sleep(client.dice.choice([1, 10]))


def delete(client: Client, life: Life) -> None:
    model = client.world.model
    if client.dice.random() < 0.8:
        life.runtime.clock.sleep(client.dice.choice([0.1, 1, 30]))
        return
    client.world.scheduler.note("a topic is deleted")
    model.begin_deletion(BRIEF.topic)
    life.store.delete_topics([BRIEF.topic])
    model.end_deletion(BRIEF.topic)
    client.world.scheduler.note("the topic was deleted")


def restart(client: Client, life: Life) -> None:
    life.runtime.clock.sleep(client.dice.choice([0.1, 5, 100]))
    if client.dice.random() < 0.2:
        life.is_ending = True


def audit_all(client: Client, life: Life) -> None:
    """Nothing goes wrong any more: all is uploaded, found, and sound."""
    world, model, store = client.world, client.world.model, life.store
    torn = {queue for queue, _ in model.holes}  # what they lack keeps them from being uploaded
    for _ in range(3):
        if store.flush(seal=True) or torn:
            break
    else:
        raise AssertionError(f"not all can be uploaded: {store.health()}")
    for queue in [*KEPT, BRIEF]:
        for level in LEVELS:
            store.level = level
            walk(world, store.get_message, queue, model.end(queue))
        committed = store.committed_offset(*queue) or 0
        model.saw_committed(queue, committed, model.deletions.get(queue.topic, 0))
        if model.required(queue) and queue not in torn:
            assert committed >= model.end(queue), f"{queue}: {committed} of {model.end(queue)}"
    puts = list(model.puts.values())
    for put in client.dice.sample(puts, min(KEYS_ASKED, len(puts))):
        before = model.having(put.queue.topic, put.keys[0])
        answer = store.query_message(put.queue.topic, put.keys[0])
        assert answer.complete or torn, f"{put.keys[0]}: not complete though all is sound"
        deletions = model.deletions.get(put.queue.topic, 0)
        model.check_answer(put.queue.topic, put.keys[0], answer, before, deletions)


def walk(world: World, get: Callable[..., Any], queue: QueueKey, end: int) -> None:
    """From the first to the last: whoever goes where it is sent reads every message."""
    model, offset = world.model, 0
    for _ in range(PAGES_MAX):
        if offset >= end:
            return
        before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
        try:
            page = get(*queue, offset, count_max=8)
        except SegmentCorruptError:
            assert (queue, offset) in model.holes
            offset += 1
            continue
        world.saw_time()
        model.check_page(queue, page, offset, before, deletions, None)
        assert page.next_offset > offset, f"{queue}: {page.status} sends from {offset} nowhere"
        offset = page.next_offset
    raise AssertionError(f"{queue}: no end")


ACTS: Final[dict[str, Callable[[Client, Life], None]]] = {
    "producer": produce,
    "consumer": consume,
    "operator": look_after,
    "deleter": delete,
    "restarter": restart,
    "auditor": audit_all,
}
EXTRAS: Final = ("operator", "deleter", "restarter", "consumer")


def run(plan: Plan, folder: Path, *, salt: int = 0) -> World:
    """Raises what must not be; the world has its story then, in `__notes__`."""
    shutil.rmtree(folder, ignore_errors=True)
    world = World(plan, folder, salt=salt)
    was_enabled = gc.isenabled()
    gc.disable()  # a finalizer at another moment would be another history
    try:
        world.run()
    except BaseException as error:
        error.add_note("\n".join(world.scheduler.trace[-400:]))
        raise
    finally:
        if was_enabled:
            gc.enable()
        shutil.rmtree(folder, ignore_errors=True)
    return world


def smaller(plan: Plan) -> Iterator[Plan]:
    """The same with one thing less."""
    for fault in plan.faults:
        yield replace(plan, faults=tuple(each for each in plan.faults if each != fault))
    for place in range(len(plan.clients)):
        yield replace(plan, clients=plan.clients[:place] + plan.clients[place + 1 :])
    for ops in (plan.ops // 2, plan.ops - 1):
        if 0 < ops < plan.ops:
            yield replace(plan, ops=ops)
