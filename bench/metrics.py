"""What metrics cost: puts and uploads, and reads, with exporters and without; and one scrape.

Processor time is measured: syncs of a disk would hide the cost. Ratios near 1 mean that measuring
is free. Exits with 1 if a promise is missed:

    python -m bench.metrics
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
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
READ_ROUNDS, TURNS = 125, 7
SCRAPED_QUEUES: Final = 1_000
KEPT_MIN: Final = 0.8
"""Of the speed without metrics. Two figures take an eighth of a hot read, a twentieth of a put."""
SCRAPE_PROMISED: Final = 0.3

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


def put_round(store: TieredMessageStore, queues: int) -> None:
    for queue_id in range(queues):
        store.put_message(Message(topic="TopicTest", queue_id=queue_id, body=BODY))


def flush(store: TieredMessageStore) -> None:
    assert store.flush()


def read_round(store: TieredMessageStore) -> None:
    for queue_id in range(QUEUES):
        assert store.get_message("TopicTest", queue_id, 0, group="g").messages


def one_turn(ways: Mapping[str, Callable[[], Metrics]]) -> Iterator[tuple[str, str, float]]:
    """What was done, with which metrics, and how long it took.

    The stores alternate in each round: a processor may lose a quarter of its speed for seconds.
    """
    with ExitStack() as opened:
        stores = {
            name: opened.enter_context(
                a_store(Path(opened.enter_context(tempfile.TemporaryDirectory())), make())
            )
            for name, make in ways.items()
        }

        def timed(call: Callable[[TieredMessageStore], None], rounds: int) -> dict[str, float]:
            spent = dict.fromkeys(stores, 0.0)
            for _ in range(rounds):
                for name, store in stores.items():
                    spent[name] += cpu_of(partial(call, store))
            return spent

        put = partial(put_round, queues=QUEUES)
        steps: tuple[tuple[str, Callable[[TieredMessageStore], None], int], ...] = (
            ("puts", put, IN_EACH),
            (f"first uploads of {QUEUES} queues", flush, 1),
            ("", put, IN_EACH),
            (f"next uploads of {QUEUES} queues", flush, 1),
            ("", read_round, 1),  # the first read of each queue goes to the backend
            ("hot reads of a batch", read_round, READ_ROUNDS),
        )
        for what, call, rounds in steps:
            for name, seconds in timed(call, rounds).items():
                if what:
                    yield what, name, seconds


def cost_rows() -> Iterator[Row]:
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    ways: dict[str, Callable[[], Metrics]] = {
        "none": NoMetrics,
        "Prometheus": lambda: PrometheusMetrics(registry=CollectorRegistry()),
        "OpenTelemetry": lambda: OpenTelemetryMetrics(provider.get_meter("bench")),
    }
    spent: dict[str, Seconds] = {}
    for _ in range(TURNS):
        for what, name, seconds in one_turn(ways):
            spent.setdefault(what, {}).setdefault(name, []).append(seconds)
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
        put_round(store, SCRAPED_QUEUES)
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
    """One gauge with `samples` children."""
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
