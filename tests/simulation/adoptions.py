"""The queues of a broker that has ended elsewhere: an operator adds them to the tier, once, as
history that only grows shorter. This may take several lives of the broker."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.simulation.acts import a_message, a_put
from tests.simulation.machines import Machine
from tests.simulation.model import GONE, SENT, STORED, Model
from tests.simulation.moves import TRIES_MAX, at_place
from tests.simulation.scheduler import Process
from tieredstore.access.store import TieredMessageStore
from tieredstore.jobs.job import JobState, LocalEngine
from tieredstore.jobs.migrate import migrate
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey

if TYPE_CHECKING:
    from tests.simulation.scheduler import ActorRuntime
    from tests.simulation.world import World

OLD: Final = [QueueKey("Old", 0), QueueKey("Old", 1)]
ELSEWHERE: Final = "retired"


class Adoption:
    """`is_searched`: an index made since then has the keys of these queues too."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.model = Model(kept_ms=world.model.kept_ms)
        self.source: StoreConfig | None = None
        self.has_begun = False
        self.places: dict[str, int] = {}  # offsets of its messages, by their names
        self.is_done = self.is_searched = False

    @property
    def is_half_done(self) -> bool:
        """If so, nothing may be rebuilt: a rebuild would make queues of a partial copy."""
        return self.has_begun and not self.is_done

    def is_there(self, queue: QueueKey) -> bool:
        """Whether the queue exists: an adopted one only when its adoption is done."""
        return self.is_done or queue not in OLD

    def finds_keys_of(self, topic: str) -> bool:
        return topic != OLD[0].topic or self.is_searched

    def take(self, config: StoreConfig, runtime: ActorRuntime) -> None:
        """Adopt the queues, or try again if an earlier try failed."""
        if self.is_done or self.source is None:
            return
        self.has_begun = True
        for put in self.model.puts.values():
            if put.state == GONE:
                put.state = SENT
            self.world.model.puts[put.name] = put
        engine = LocalEngine(pool=runtime.dispatch, threads=2)
        self.machine.free_locks()  # of an operator's process that died
        report = migrate(
            self.source, config, engine=engine, adopt=True, cut_over=True, clock=runtime.clock
        )
        self.world.scheduler.note(f"adopted: {report.facts['cut_over']} {dict(report.counts)}")
        assert not report.findings or self.world.expected, f"migrate --adopt: {report}"
        if report.state is JobState.DONE and report.facts["cut_over"] != "refused":
            self._is_there()

    def begin(self) -> None:
        """Let a broker live elsewhere, until everything it has is in its tier."""
        world = self.world
        machine = self.machine = Machine(ELSEWHERE, world.folder / ELSEWHERE)
        process = Process(ELSEWHERE, machine)
        actor = world.scheduler.spawn(ELSEWHERE, process, lambda: self._live(machine))
        world.scheduler.wait(lambda: actor.is_done)
        world.scheduler.kill(process, machine.free_locks)
        world.scheduler.wait(lambda: True)

    def _live(self, machine: Machine) -> None:
        world, dice = self.world, self.world.dice
        runtime = world.runtime_here()
        config = at_place(world, world.tier_config(machine), ELSEWHERE)
        path = str(machine.folder / "tier") if config.path else ""
        config = replace(config, broker_name="broker-old", path=path, metadata_path="")
        puts = [
            a_put(world, dice, dice.choice(OLD), self.model) for _ in range(dice.choice([1, 9]))
        ]
        for _ in range(TRIES_MAX):
            local = LocalMessageStore(world.local_config(machine), runtime)
            store = TieredMessageStore(local, config, runtime=runtime)
            with suppress(*world.expected):
                try:
                    store.load()
                    store.start()
                    for put in puts:
                        if put.offset is None:
                            result = store.put_message(a_message(put, dice.choice([0, 100, 900])))
                            self.model.acknowledge(put, result)
                    is_whole = store.flush(seal=True)
                finally:
                    store.shutdown(drain=True)
                if is_whole:
                    self.source = config
                    self._forget()
                    return
            runtime.clock.sleep(10)
        raise AssertionError("a broker cannot end")

    def _forget(self) -> None:
        """Note the messages' places and mark them as gone: the adopting tier lacks them so far."""
        for put in self.model.puts.values():
            assert put.offset is not None
            self.places[put.name] = put.offset
            put.state, put.offset, put.is_on_disk = GONE, None, True

    def _is_there(self) -> None:
        """Tell the model of the adopted messages; some may have expired by now."""
        self.is_done = True
        model = self.world.model
        for put in self.model.puts.values():
            put.state, put.offset = STORED, self.places[put.name]
            model.queues.setdefault(put.queue, {})[put.offset] = put
        for queue in self.model.queues:
            model.saw_committed(queue, model.end(queue), 0)
