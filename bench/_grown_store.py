"""A broker's store that has grown in one way, and what it then costs to use it.

    python -m bench._grown_store build queues 2000 folder
    python -m bench._grown_store measure queues 2000 folder

The first command builds it in an empty folder; the second prints seconds by operation, and memory,
as JSON. They are two processes because memory that the first has freed would hide what an open
store takes.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from bench._timing import median_seconds, seconds_once
from bench.steady import held
from tieredstore.access.audit import audit
from tieredstore.access.reader import TieredReader
from tieredstore.access.rebuild import rebuild
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.wiring import open_tier
from tieredstore.driver.runtime import Runtime
from tieredstore.exporters.prometheus import PrometheusMetrics
from tieredstore.jobs.scan import plan_scan
from tieredstore.jobs.slices import EVERYTHING
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.config import MIB, StoreConfig
from tieredstore.model.messages import Message

TOPIC: Final = "Orders"
BATCH: Final = 256
SETTINGS: Final = StoreConfig(
    broker_name="broker-a",
    provider="posix",
    index_slot_count=2_000,
    index_item_count=50_000,
    group_commit_timeout_ms=600_000,  # no upload runs while puts are timed
    dispatch_interval_ms=600_000,
)
WAYS: Final = ("queues", "segments", "messages", "keys", "readers")
SINGLE_PUTS: Final = 200
TURNS: Final = 5


def config_of(way: str, folder: Path) -> StoreConfig:
    config = replace(SETTINGS, path=str(folder / "tier"), store_path=str(folder / "store"))
    if way == "segments":
        return replace(config, commit_log_segment_bytes=16 * 1024)
    return replace(config, index_item_count=2_000) if way == "keys" else config


def messages_of(way: str, size: int) -> Iterator[list[Message]]:
    """Batches, each for one queue. A size of 1 is a queue, a segment, or 100 messages."""
    if way == "queues":
        for number in range(size):
            yield [a_message(number, topic=f"{TOPIC}{number // 8}", queue_id=number % 8)]
        return
    count = {"segments": 15, "messages": 100, "keys": 100, "readers": 0}[way] * size
    for first in range(0, max(count, 1), BATCH):
        batch = range(first, min(first + BATCH, max(count, 1)))
        yield [a_message(number, keyed=way == "keys") for number in batch]


def a_message(
    number: int, *, topic: str = TOPIC, queue_id: int = 0, keyed: bool = False
) -> Message:
    keys = {"KEYS": f"order-{number}"} if keyed or number == 0 else {}
    return Message(topic=topic, queue_id=queue_id, body=bytes(1_000), properties=keys)


@contextmanager
def running(
    config: StoreConfig, metrics: PrometheusMetrics | None = None
) -> Iterator[TieredMessageStore]:
    with Runtime.threads() as runtime:
        small = LocalConfig(store_path=config.store_path, commit_log_file_bytes=64 * MIB)
        local = LocalMessageStore(small, runtime)
        with TieredMessageStore(local, config, runtime=runtime, metrics=metrics) as store:
            yield store


def build(way: str, size: int, folder: Path) -> None:
    with running(config_of(way, folder)) as store:
        for batch in messages_of(way, size):
            assert all(result.stored for result in store.put_messages(batch))
        assert store.flush(timeout=600, seal=True)


def measured(way: str, size: int, folder: Path) -> dict[str, float]:
    config = config_of(way, folder)
    if way == "readers":
        return measured_readers(config, size)
    build("messages", 1, folder / "first")  # imports what the first use of a store loads
    return measured_broker(config) | measured_elsewhere(config, folder)


def measured_broker(config: StoreConfig) -> dict[str, float]:
    gc.collect()
    before, _ = held()
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)
    started = time.perf_counter()
    with running(config, metrics) as store:
        found = {"open": time.perf_counter() - started}
        found["flush of nothing"] = median_seconds(store.flush, repeats=TURNS)
        found["query of a key"] = median_seconds(
            partial(query, store, topic_of(store)), repeats=TURNS
        )
        found["scrape of metrics"] = median_seconds(
            partial(generate_latest, registry), repeats=TURNS
        )
        found["memory"] = held()[0] - before
        message = a_message(1, topic=topic_of(store))
        found["one put"] = median_seconds(partial(store.put_message, message), repeats=SINGLE_PUTS)
        store.flush()
    return found


def topic_of(store: TieredMessageStore) -> str:
    return min(key.topic for key in store.queues())


def query(store: TieredMessageStore, topic: str) -> None:
    assert store.query_message(topic, "order-0").messages


def measured_elsewhere(config: StoreConfig, folder: Path) -> dict[str, float]:
    with ExitStack() as opened:
        runtime = opened.enter_context(Runtime.threads())
        started = time.perf_counter()
        reader = opened.enter_context(TieredReader.open(config))
        found = {"open for reading": time.perf_counter() - started}
        found["plan of a scan"] = median_seconds(
            partial(plan_scan, reader, EVERYTHING), repeats=TURNS
        )
        tier = open_tier(config, runtime=runtime, read_only=True)
        opened.callback(tier.close)
        parts = tier.metadata, tier.provider, config, runtime
        found["audit"] = median_seconds(partial(audit, *parts), repeats=TURNS)
        anew = opened.enter_context(JsonMetadataStore.open(folder / "rebuilt.json"))
        found["rebuild"] = seconds_once(partial(rebuild, anew, *parts[1:]))
    return found


def measured_readers(config: StoreConfig, size: int) -> dict[str, float]:
    def read(reader: TieredReader) -> None:
        reader.get_message(TOPIC, 0, 0, count_max=1)

    with ExitStack() as opened:
        read(opened.enter_context(TieredReader.open(config)))  # it imports what they need
        gc.collect()
        before, _ = held()
        started = time.perf_counter()
        readers = [opened.enter_context(TieredReader.open(config)) for _ in range(size)]
        found = {"open": time.perf_counter() - started, "memory": held()[0] - before}
        found["a read by each"] = seconds_once(lambda: list(map(read, readers)))
    return found


def main(step: str, way: str, size: str, folder: str) -> None:
    if step == "build":
        build(way, int(size), Path(folder))
    else:
        print(json.dumps(measured(way, int(size), Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
