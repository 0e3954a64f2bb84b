"""Loads between two lives of a broker: each is in the tier once and whole, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tests.simulation.acts import a_put
from tests.simulation.model import GONE, SENT, STORED, Put
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.jobs.job import LocalEngine
from tieredstore.jobs.load import StreamBatch, begin_load, commit_load
from tieredstore.jobs.load_records import LoadColumns, LoadDefaults
from tieredstore.jobs.load_segments import Stager
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey

if TYPE_CHECKING:
    from tests.simulation.scheduler import ActorRuntime
    from tests.simulation.world import World

LOADED: Final = [QueueKey("Loaded", 0), QueueKey("Loaded", 1)]
STREAM: Final = "stream"


@dataclass
class Load:
    """`parts`: the messages of each partition, in order."""

    number: int
    parts: list[list[Put]]
    batch: StreamBatch | None = None
    is_made: bool = False
    is_told: bool = False  # its driver has said so
    is_torn: bool = False  # interrupted, and then its only catalogue was lost
    runs: int = 0

    @property
    def puts(self) -> list[Put]:
        return [put for part in self.parts for put in part]


class Loads:
    """All loads of one history. At most one is doubtful: after a death it must be repeated."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.all: list[Load] = []
        self.doubtful: Load | None = None
        self.are_known = True  # if notes of loads may be lost, not before a life has opened
        self.are_noted = True  # otherwise a repeated load adds its messages again
        is_alone = "histories" in world.plan.clients  # there only the tier has what was loaded
        self._are_shared = not is_alone and Random(f"{world.plan.seed} shared").random() < 0.5
        self._are_over = False  # a broker's messages that are not uploaded follow what was loaded

    def queues_to_share(self) -> list[QueueKey]:
        """The queues that a producer may put to as well: then nothing more is loaded."""
        if self._are_shared and self.all and self.doubtful is None and self.are_known:
            self._are_over = True
        return LOADED if self._are_over else []

    def take(self, config: StoreConfig, runtime: ActorRuntime) -> None:
        """Make the next load, or repeat one that was begun before."""
        world, dice = self.world, self.world.dice
        if not self.are_known:
            return
        load = self.doubtful
        may_repeat = self.are_noted and not world.has_lost_disk
        known = [each for each in self.all if each.is_told or not self._are_over]
        if load is None and known and may_repeat and dice.random() < 0.3:
            load = dice.choice(known)  # as if its driver had not heard of its end
        if load is None:
            if self._are_over:
                return
            load = self._new(runtime)
        elif all(put.state == GONE for put in load.puts):
            for put in load.puts:  # with the time of now, so that it does not expire at once
                put.state, put.store_ms = SENT, runtime.clock.now_ms()
        self.doubtful = load
        is_made = load.is_made
        self._run(load, config, runtime)
        load.is_made = load.is_told = True
        self.doubtful = None
        world.scheduler.note(f"load {load.number} {'again' if is_made else 'is made'}")
        self._look(config)

    def _new(self, runtime: ActorRuntime) -> Load:
        world, dice = self.world, self.world.dice
        number = len(self.all)
        parts: list[list[Put]] = []
        for _ in range(dice.choice([1, 1, 2])):
            part = []
            for _ in range(dice.choice([1, 3, 12])):
                put = a_put(world, dice, dice.choice(LOADED))
                put.store_ms = runtime.clock.now_ms()
                part.append(put)
            parts.append(part)
        is_batch = dice.random() < 0.3
        batch = StreamBatch(stream_id=STREAM, number=number) if is_batch else None
        load = Load(number, parts, batch)
        self.all.append(load)
        return load

    def _run(self, load: Load, config: StoreConfig, runtime: ActorRuntime) -> None:
        clock = runtime.clock
        load.runs += 1
        run_id = f"run-{load.number}-{load.runs}"
        begin_load(config, clock=clock)
        store_ms = load.parts[0][0].store_ms
        staged = []
        for partition, puts in enumerate(load.parts):
            rows = rows_of(puts)
            stager = Stager(
                *(config, worker_provider(config)),
                LoadColumns(rows.schema, LoadDefaults(store_time_ms=store_ms)),
                run_id=run_id,
                partition=partition,
                attempt="0",
                now_ms=clock.now_ms(),
                block_bytes=self.world.dice.choice([300, 100_000]),
            )
            staged.append(stager.staged([rows.slice(0, 2), rows.slice(2)]))
        commit_load(
            *(config, run_id, staged),
            load_id=None if load.batch else f"load-{load.number}",
            batch=load.batch,
            engine=LocalEngine(pool=runtime.dispatch, threads=2),
            clock=clock,
        )

    def _look(self, config: StoreConfig) -> None:
        """Read from elsewhere what is in the tier now."""
        model = self.world.model
        with TieredReader.open(config) as reader:
            for queue in LOADED:
                for one in reader.messages(*queue):
                    model.saw(one, queue, deletions=0)
                    name = decode_message(one.record).body.decode().split("|")[0]
                    model.puts[name].state = STORED
        self.settle()
        for queue in [] if self._are_over else LOADED:
            model.saw_committed(queue, model.end(queue), 0)

    def lose_notes(self, *, of_tier: bool) -> None:
        """The disk is lost, for a directory with the catalogue; or a tool has copied the tier
        without its catalogue."""
        self.are_known = False
        self.are_noted = self.are_noted and not of_tier
        if of_tier and self.doubtful is not None and not self.doubtful.is_told:
            self.doubtful.is_torn = True
            for put in self.doubtful.puts:  # `recover` may find what was in place
                put.state = SENT if put.state == GONE else put.state
            self.doubtful = None

    def settle(self) -> None:
        """Everything in the tier was seen: each load must be there as a whole, or not at all."""
        model = self.world.model
        self.world.saw_time()
        border = model.newest_ms - model.kept_ms
        for load in self.all:
            if load.is_torn:
                continue
            young = [put for put in load.puts if put.store_ms > border]
            was_read = any(put.offset is not None for put in load.puts)  # it may have expired since
            if load.is_made or was_read or any(put.state == STORED for put in load.puts):
                lacks = [put for put in young if put.state != STORED]
                assert not lacks, f"of load {load.number} there is not {lacks}"
                load.is_made = True
                self._check_order(load)
                continue
            if young:
                for put in load.puts:
                    put.state = GONE
            elif self.doubtful is load:
                self.doubtful = None  # it may have been made, and expired
        if not self.are_known and self.doubtful is not None and self.doubtful.is_made:
            self.doubtful = None
        self.are_known = True

    @staticmethod
    def _check_order(load: Load) -> None:
        for queue in LOADED:
            offsets = [put.offset for put in load.puts if put.queue == queue]
            known = [offset for offset in offsets if offset is not None]
            assert known == sorted(known), f"load {load.number} of {queue}: {offsets}"


def rows_of(puts: list[Put]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "topic": [put.queue.topic for put in puts],
            "queue_id": pa.array([put.queue.queue_id for put in puts], pa.int32()),
            "body": [f"{put.name}|".encode() + b"x" * 100 for put in puts],
            "tags": [put.tag for put in puts],
            "unique_key": [put.keys[0] for put in puts],
            "keys": [[put.keys[1]] for put in puts],
        }
    )
