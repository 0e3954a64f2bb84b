"""What each exporter shows, as the same kind of samples; and a store with an eventful life."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.access.tiered_kit import a_config
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.metrics import BASE_LABELS, Metric, MetricKind, Metrics
from tieredstore.driver.runtime import Runtime
from tieredstore.exporters.otel import OpenTelemetryMetrics
from tieredstore.exporters.prometheus import PrometheusMetrics
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import StorageLevel
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message

BROKER = {"cluster": "c", "node_id": "broker-a"}
NEW_TOPIC = "NewTopic"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Prometheus:
    def __init__(self, without: Collection[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self.metrics: Metrics = PrometheusMetrics(BROKER, without=without, registry=self.registry)

    def samples(self) -> Samples:
        families = text_string_to_metric_families(generate_latest(self.registry).decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }

    def close(self) -> None:
        pass


class OpenTelemetry:
    """Shows samples as Prometheus does, so that the two can be compared."""

    def __init__(self, without: Collection[str] = ()) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        meter = self._provider.get_meter("test")
        self.metrics: Metrics = OpenTelemetryMetrics(meter, BROKER, without=without)

    def samples(self) -> Samples:
        data = self._reader.get_metrics_data()
        found: Samples = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        found |= _of(metric.name, point)
        return found

    def close(self) -> None:
        self._provider.shutdown()


Exporter = Prometheus | OpenTelemetry


def _of(name: str, point: Any) -> Samples:
    labels: Mapping[str, str] = dict(point.attributes)
    if not hasattr(point, "bucket_counts"):
        return {(name, tuple(sorted(labels.items()))): point.value}
    found = {
        (f"{name}_count", tuple(sorted(labels.items()))): float(point.count),
        (f"{name}_sum", tuple(sorted(labels.items()))): float(point.sum),
    }
    so_far = 0
    bounds = [*point.explicit_bounds, float("inf")]
    for bound, count in zip(bounds, point.bucket_counts, strict=True):
        so_far += count
        edge = "+Inf" if bound == float("inf") else str(float(bound))
        found[f"{name}_bucket", tuple(sorted({**labels, "le": edge}.items()))] = float(so_far)
    return found


def labels_of(**own: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**own, **BASE_LABELS, **BROKER}.items()))


def sample_names(metric: Metric) -> set[str]:
    """The sample names under which a metric is shown."""
    if metric.kind is MetricKind.HISTOGRAM:
        return {f"{metric.name}_{part}" for part in ("bucket", "count", "sum")}
    return {metric.name}


def shown_metrics(samples: Samples, metrics: Iterable[Metric]) -> set[str]:
    names = {name for name, _ in samples}
    return {metric.name for metric in metrics if sample_names(metric) <= names}


def wrong_labels(samples: Samples, metrics: Iterable[Metric]) -> list[str]:
    """Samples of undeclared metrics, or with other labels than declared."""
    declared = {name: metric for metric in metrics for name in sample_names(metric)}
    found = []
    for name, labels in samples:
        metric = declared.get(name)
        bucket = {"le"} if name.endswith("_bucket") else set()
        wanted = {*metric.labels, *BASE_LABELS, *BROKER, *bucket} if metric else None
        if {label for label, _ in labels} != wanted:
            found.append(f"{name} {labels}")
    return found


@contextmanager
def measured_store(folder: Path, metrics: Metrics) -> Iterator[TieredMessageStore]:
    """A store over a list of messages, with its tier in a folder; all reads go to the tier."""
    config = StoreConfig(
        provider="posix",
        path=str(folder / "tier"),
        store_path=str(folder),
        broker_name="broker-a",
        storage_level=StorageLevel.FORCE,
        index_enabled=False,
    )
    runtime = Runtime.inline()
    local = ListMessageStore(runtime)
    with TieredMessageStore(local, config, runtime=runtime, metrics=metrics) as store:
        yield store


class EventfulBroker:
    """Two lives of a broker: uploads, reads and an index file; then a gap and a stopped queue."""

    def __init__(self, folder: Path, metrics: Metrics, **settings: Any) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.metrics = metrics
        self.config: StoreConfig = a_config(
            folder,
            **{
                "provider": "posix",
                "path": str(folder / "tier"),
                "storage_level": StorageLevel.FORCE,
                "read_ahead_enabled": True,
                "index_slot_count": 100,
                "index_item_count": 400,
                **settings,
            },
        )
        self.local = ListMessageStore(self.runtime)
        self.store = self._opened()

    def _opened(self) -> TieredMessageStore:
        store = TieredMessageStore(
            self.local, self.config, runtime=self.runtime, metrics=self.metrics
        )
        store.load()
        store.start()
        return store

    def put(self, *numbers: int, topic: str = TOPIC) -> None:
        for number in numbers:
            self.store.put_message(a_message(number, topic=topic))
            self.runtime.clock.sleep(1)

    def live(self) -> None:
        """Live the first life, without trouble."""
        self.put(*range(5))
        assert self.store.flush(seal=True)
        assert len(self.store.get_message(TOPIC, 0, 0, group="g").messages) == 5

    def live_again(self) -> None:
        """The broker returns with a disk that has other messages under the same numbers, and loses
        messages before their upload."""
        self.store.shutdown()
        self.local = ListMessageStore(self.runtime)
        self.local.load()
        for number in 100, 101:
            self.local.put_message(a_message(number))
        self.store = self._opened()
        self.put(*range(3), topic=NEW_TOPIC)
        assert not self.store.flush()  # one queue is stopped
        self.put(*range(3, 7), topic=NEW_TOPIC)
        self.local.kept_from = 5
        assert not self.store.flush()
