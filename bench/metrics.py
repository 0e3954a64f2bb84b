"""What metrics cost: puts and uploads, and reads, with exporters beside none; and one scrape.

Processor time: syncs of a disk would hide what is looked for. Ratios near 1 mean that measuring is
free. Exits with 1 where a promise is missed:

    python -m bench.metrics
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from bench._rows import Row, report, turns_row
from tieredstore import Message, Runtime, StorageLevel, StoreConfig, TieredMessageStore
from tieredstore.driver.metrics import Metrics, NoMetrics
from tieredstore.exporters.otel import OpenTelemetryMetrics
from tieredstore.exporters.prometheus import PrometheusMetrics
from tieredstore.local import LocalConfig, LocalMessageStore

QUEUES, IN_EACH, BODY = 40, 128, bytes(900)
READS, TURNS = 5_000, 7
SCRAPED_QUEUES: Final = 1_000
KEPT_MIN: Final = 0.9
SCRAPE_PROMISED: Final = 0.3
"""Of the speed without metrics: ten percent are what a shared machine errs by."""

PROMISED: Final = ("puts", "hot reads of a batch")
"""Of Prometheus: the SDK of OpenTelemetry takes fifteen microseconds for each figure. The first
time that labels are seen costs more than all others."""

Seconds = dict[str, list[float]]


@contextmanager
def a_store(folder: Path, metrics: Metrics) -> Iterator[TieredMessageStore]:
    runtime = Runtime.inline()
    local = LocalMessageStore(
        LocalConfig(store_path=str(folder), index_enabled=False, dispatch_interval_ms=0), runtime
    )
    config = StoreConfig(
        provider="posix",
        path=str(folder / "tier"),
        store_path=str(folder),
        broker_name="broker-a",
        storage_level=StorageLevel.FORCE,
        index_enabled=False,
    )
    with TieredMessageStore(local, config, runtime=runtime, metrics=metrics) as store:
        yield store


def put_all(store: TieredMessageStore, queues: int, in_each: int) -> None:
    for _ in range(in_each):
        for queue_id in range(queues):
            store.put_message(Message(topic="TopicTest", queue_id=queue_id, body=BODY))


def measure(name: str, metrics: Metrics, folder: Path, spent: dict[str, Seconds]) -> None:
    with a_store(folder, metrics) as store:
        started = time.process_time()
        put_all(store, QUEUES, IN_EACH)
        put = time.process_time()
        assert store.flush()
        first = time.process_time()
        put_all(store, QUEUES, IN_EACH)
        again = time.process_time()
        assert store.flush()
        flushed = time.process_time()
        for queue_id in range(QUEUES):  # the first read of each goes to the backend
            assert store.get_message("TopicTest", queue_id, 0, group="g").messages
        warm = time.process_time()
        for number in range(READS):
            assert store.get_message("TopicTest", number % QUEUES, 0, group="g").messages
        read = time.process_time()
    for what, seconds in (
        ("puts", put - started),
        (f"first uploads of {QUEUES} queues", first - put),
        (f"next uploads of {QUEUES} queues", flushed - again),
        ("hot reads of a batch", read - warm),
    ):
        spent.setdefault(what, {}).setdefault(name, []).append(seconds)


def cost_rows() -> Iterator[Row]:
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    ways: dict[str, Callable[[], Metrics]] = {
        "none": NoMetrics,
        "Prometheus": lambda: PrometheusMetrics(registry=CollectorRegistry()),
        "OpenTelemetry": lambda: OpenTelemetryMetrics(provider.get_meter("bench")),
    }
    spent: dict[str, Seconds] = {}
    for _ in range(TURNS):
        for name, make in ways.items():
            folder = Path(tempfile.mkdtemp())
            measure(name, make(), folder, spent)
            shutil.rmtree(folder)
    provider.shutdown()
    for what, times in spent.items():
        for name in ("Prometheus", "OpenTelemetry"):
            yield turns_row(
                f"{what}, {name} (without)",
                times["none"],
                times[name],
                unit="s",
                promised=KEPT_MIN if what in PROMISED and name == "Prometheus" else None,
            )


def scrape_row(*without: str) -> Row:
    registry = CollectorRegistry()
    with (
        tempfile.TemporaryDirectory() as folder,
        a_store(Path(folder), PrometheusMetrics(registry=registry, without=without)) as store,
    ):
        put_all(store, SCRAPED_QUEUES, 1)
        assert store.flush()
        bare, ours, size = [], [], 0
        samples = len(generate_latest(registry).splitlines())
        plain = plain_registry(samples)
        for _ in range(TURNS):
            bare.append(cpu_of(lambda: generate_latest(plain)))
            ours.append(cpu_of(lambda: generate_latest(registry)))
        size = len(generate_latest(registry))
    return turns_row(
        f"one scrape of {SCRAPED_QUEUES} queues, {size / 1e6:.1f} MB"
        + "".join(f", without {name}" for name in without)
        + " (as many plain samples)",
        bare,
        ours,
        unit="s",
        promised=SCRAPE_PROMISED if without else None,
    )


def plain_registry(samples: int) -> CollectorRegistry:
    """One gauge with as many children as there are lines."""
    registry = CollectorRegistry()
    gauge = Gauge("plain", "samples", ["topic", "queue_id"], registry=registry)
    for number in range(samples):
        gauge.labels("TopicTest", str(number)).set(number)
    return registry


def cpu_of(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


if __name__ == "__main__":
    sys.exit(report("metrics", [*cost_rows(), scrape_row(), scrape_row("path")]))
