"""A broker's store with a tier, for tests: one thread, a manual clock, and a disk to lose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tieredstore.access.dispatcher import Dispatcher
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.upkeep import Retention, SealChore
from tieredstore.access.wiring import Tier
from tieredstore.codec.message import decode_message
from tieredstore.driver.metrics import GaugeRead, Metric, NoMetrics
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.index.contract import CommittedRun, IndexAnswer, IndexHit, NoIndex
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import GetResult, QueryResult
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_body, a_message

STEP_MS = 1000  # between two messages


class ListIndex(NoIndex):
    """Finds keys in a list; can fail or be incomplete on demand."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, IndexHit]] = []
        self.complete = True
        self.failure: Exception | None = None
        self.life: list[str] = []

    def load(self) -> None:
        self.life.append("load")

    def shutdown(self) -> None:
        self.life.append("shutdown")

    def destroy(self) -> None:
        self.life.append("destroy")
        self.entries.clear()

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        for row, log_offset in enumerate(run.log_offsets.tolist()):
            record = bytes(run.run.record(row))
            message = decode_message(record)
            hit = IndexHit(topic_id, queue_id, log_offset, len(record), message.store_timestamp)
            keys = {message.unique_key or "", *message.keys} - {""}
            self.entries += [(topic, key, hit) for key in keys]

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        if self.failure is not None:
            raise self.failure
        hits = [
            hit
            for its_topic, its_key, hit in self.entries
            if (its_topic, its_key) == (topic, key) and begin <= hit.store_timestamp <= end
        ]
        hits.sort(key=lambda hit: -hit.store_timestamp)
        return IndexAnswer(hits=hits[:count_max], complete=self.complete)


class Counts(NoMetrics):
    """Sums the counters, records the labels of all measurements, and keeps the gauges."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}
        self.labels: list[tuple[str, dict[str, str]]] = []
        self.gauges: dict[Metric, GaugeRead] = {}

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        self.gauges[metric] = read

    def add(self, metric: Metric, amount: int, labels: Any) -> None:
        self.counted[metric.name] = self.counted.get(metric.name, 0) + amount
        self.labels.append((metric.name, dict(labels)))

    def record(self, metric: Metric, value: float, labels: Any) -> None:
        self.labels.append((metric.name, dict(labels)))

    def of(self, metric: Metric) -> int:
        return self.counted.get(metric.name, 0)


class Broker:
    """A tiered store around a store of lists, in one thread; a shutdown keeps the bytes."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.faults = Faults()
        self.provider = FaultyProvider(MemoryProvider(self.runtime), self.faults, self.runtime)
        self.index = ListIndex()
        self.metrics = Counts()
        self.local = ListMessageStore(self.runtime)
        self.config = a_config(folder, **settings)
        self.store = self.wrap(self.local)

    def wrap(self, local: ListMessageStore) -> TieredMessageStore:
        return TieredMessageStore(
            local,
            self.config,
            runtime=self.runtime,
            provider=self.provider,
            index=self.index,
            metrics=self.metrics,
        )

    def open(self) -> TieredMessageStore:
        self.store.load()
        self.store.start()
        return self.store

    @property
    def tier(self) -> Tier:
        return self.store._loaded().tier

    @property
    def dispatcher(self) -> Dispatcher:
        return self.store._loaded().dispatcher

    @property
    def retention(self) -> Retention:
        return self.store._loaded().retention

    @property
    def sealing(self) -> SealChore:
        return self.store._loaded().sealing

    def put(self, count: int, *, topic: str = TOPIC, queue_id: int = 0, first: int = 0) -> None:
        """Put messages a step of time apart, the first one now."""
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        for number in range(first, first + count):
            self.store.put_message(a_message(number, topic=topic, queue_id=queue_id))
            clock.advance(STEP_MS)

    def fill(self, count: int = 10, *, kept_from: int = 0, topic: str = TOPIC) -> None:
        """Put and upload messages; those below `kept_from` are then only in the tier."""
        self.put(count, topic=topic)
        assert self.store.flush()
        self.local.kept_from = self.local.cached_from = kept_from
        self.local.calls.clear()

    def cut(self) -> None:
        """Make the backend unreachable from now on."""
        self.faults.always = Fault.BEFORE


def a_config(folder: Path, **settings: Any) -> StoreConfig:
    given = {
        "broker_name": "broker-a",
        "cluster_name": "cluster-a",
        "store_path": str(folder / "store"),
        "read_ahead_enabled": False,
        **settings,
    }
    return StoreConfig(**given)


def numbers(result: GetResult | QueryResult) -> list[int]:
    """Check the bodies of an answer; return its queue offsets."""
    for one in result.messages:
        assert decode_message(one.record).body == a_body(one.queue_offset)
    return [one.queue_offset for one in result.messages]


def time_of(number: int) -> int:
    """The time at which `put` stored the message with this number."""
    return STORE_TIMESTAMP + number * STEP_MS
