"""What a store measures arrives in Prometheus and OpenTelemetry, under RocketMQ's names and labels.

Both get the same measurements and must show the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.testing.list_store import ListMessageStore
from tieredstore import StorageLevel, StoreConfig, TieredMessageStore
from tieredstore.driver.metrics import (
    API_LATENCY,
    BASE_LABELS,
    DISPATCH_BEHIND,
    MESSAGES_OUT,
    READ_CACHE_BYTES,
    RPC_LATENCY,
    UPLOAD_BYTES,
    Labels,
    Metrics,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.exporters import label_sets
from tieredstore.exporters.otel import OpenTelemetryMetrics
from tieredstore.exporters.prometheus import PrometheusMetrics
from tieredstore.model.errors import StoreClosedError
from tieredstore.testing.messages import TOPIC, a_message

BROKER = {"cluster": "c", "node_id": "broker-a"}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Prometheus:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.metrics: Metrics = PrometheusMetrics(BROKER, registry=self._registry)

    def samples(self) -> Samples:
        families = text_string_to_metric_families(generate_latest(self._registry).decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }


class OpenTelemetry:
    """Shown as Prometheus shows it, so that both can be compared."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        self.metrics: Metrics = OpenTelemetryMetrics(self.provider.get_meter("test"), BROKER)

    def samples(self) -> Samples:
        data = self._reader.get_metrics_data()
        found: Samples = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        found |= _of(metric.name, point)
        return found


def _of(name: str, point: Any) -> Samples:
    labels: Mapping[str, str] = dict(point.attributes)
    if not hasattr(point, "bucket_counts"):
        return {(name, tuple(sorted(labels.items()))): point.value}
    found = {(f"{name}_count", tuple(sorted(labels.items()))): float(point.count)}
    so_far = 0
    bounds = [*point.explicit_bounds, float("inf")]
    for bound, count in zip(bounds, point.bucket_counts, strict=True):
        so_far += count
        edge = "+Inf" if bound == float("inf") else str(float(bound))
        found[f"{name}_bucket", tuple(sorted({**labels, "le": edge}.items()))] = float(so_far)
    return found


@pytest.fixture(params=[Prometheus, OpenTelemetry])
def exporter(request: pytest.FixtureRequest) -> Iterator[Prometheus | OpenTelemetry]:
    made = request.param()
    yield made
    if isinstance(made, OpenTelemetry):
        made.provider.shutdown()


def labels_of(**own: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**own, **BASE_LABELS, **BROKER}.items()))


def test_a_store_is_seen_under_the_names_of_rocketmq(
    exporter: Prometheus | OpenTelemetry, tmp_path: Path
) -> None:
    config = StoreConfig(
        provider="posix",
        path=str(tmp_path / "tier"),
        store_path=str(tmp_path),
        broker_name="broker-a",
        storage_level=StorageLevel.FORCE,
        index_enabled=False,
    )
    runtime = Runtime.inline()
    local = ListMessageStore(runtime)
    with TieredMessageStore(local, config, runtime=runtime, metrics=exporter.metrics) as store:
        for _ in range(5):
            store.put_message(a_message())
        behind = (
            DISPATCH_BEHIND.name,
            labels_of(topic=TOPIC, queue_id="0", file_type="consume_queue"),
        )
        assert store.flush()
        assert store.get_message(TOPIC, 0, 0, group="g").messages
        found = exporter.samples()
    assert found[behind] == 0
    assert found[MESSAGES_OUT.name, labels_of(topic=TOPIC, group="g")] == 5
    names = {name for name, _ in found}
    for metric in (API_LATENCY, RPC_LATENCY, UPLOAD_BYTES):
        assert {metric.name + "_bucket", metric.name + "_count"} <= names
        counted = {labels for name, labels in found if name == metric.name + "_count"}
        assert {name for labels in counted for name, _ in labels} == {
            *metric.labels,
            *BASE_LABELS,
            *BROKER,
        }
    assert READ_CACHE_BYTES.name in names
    edges = [dict(labels)["le"] for name, labels in found if name == f"{UPLOAD_BYTES.name}_bucket"]
    assert {float(edge) for edge in edges} == {*map(float, UPLOAD_BYTES.buckets), float("inf")}


def test_a_gauge_that_cannot_be_read_is_left_out(exporter: Prometheus | OpenTelemetry) -> None:
    def closed() -> list[tuple[float, Labels]]:
        raise StoreClosedError("closed")

    exporter.metrics.observe(READ_CACHE_BYTES, closed)
    exporter.metrics.observe(READ_CACHE_BYTES, lambda: [(7, {})])
    assert exporter.samples() == {(READ_CACHE_BYTES.name, labels_of()): 7}


def test_the_number_of_label_sets_is_bounded(
    exporter: Prometheus | OpenTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_sets, "LABEL_SETS_MAX", 3)
    for number in range(10):
        exporter.metrics.add(MESSAGES_OUT, 1, {"topic": f"t{number}", "group": ""})
    found = exporter.samples()
    assert len(found) == 4
    rest = labels_of(topic=label_sets.OTHER, group=label_sets.OTHER)
    assert found[MESSAGES_OUT.name, rest] == 7
