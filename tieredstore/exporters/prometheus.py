"""Metrics for Prometheus, under RocketMQ's names and labels.

from prometheus_client import start_http_server
store = TieredMessageStore(local, config, metrics=PrometheusMetrics({"cluster": "c"}))
start_http_server(9464, addr="127.0.0.1")
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from tieredstore.model.extras import brought_by

with brought_by("prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

from tieredstore.driver.metrics import GaugeRead, Labels, Metric, MetricKind
from tieredstore.exporters.instruments import GaugeReads, Instruments, LabelSets


class PrometheusMetrics(Collector):
    """Counters and histograms as they are counted, gauges read at each scrape.

    * Make one per process and registry: several stores may share it.
    * `labels` are the broker's own, such as cluster, node_type and node_id; all metrics get them.
    * Series that differ only in labels of `without` are added up; `path`, say, makes pages long.
    """

    def __init__(
        self,
        labels: Mapping[str, str] | None = None,
        *,
        without: Collection[str] = (),
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._labels = LabelSets(labels or {}, without)
        self._registry = registry
        self._instruments = Instruments()
        self._gauges = GaugeReads(self._labels)
        registry.register(self)

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        self._labels.made(metric, labels, self._counter).inc(amount)

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        self._labels.made(metric, labels, self._histogram).observe(value)

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        self._gauges.add(metric, read)

    def forget(self, label: str, values: Collection[str]) -> None:
        for name, shown in self._labels.forget(label, values):
            with suppress(KeyError):  # nothing was counted for this set
                self._instruments.known(name).remove(*shown)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The gauges; `prometheus_client` calls this at each scrape."""
        for metric in self._gauges.metrics():
            names = self._labels.names(metric)
            family: CounterMetricFamily | GaugeMetricFamily
            if metric.kind is MetricKind.COUNTER:
                family = CounterMetricFamily(metric.name, metric.meaning, labels=names)
            else:
                family = GaugeMetricFamily(metric.name, metric.meaning, labels=names)
            for values, value in self._gauges.read(metric).items():
                family.add_metric(values, value)
            yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Returns nothing, as the gauges are not known yet."""
        return iter(())

    def _counter(self, metric: Metric, values: tuple[str, ...]) -> Any:
        return self._of(metric, Counter).labels(*values)

    def _histogram(self, metric: Metric, values: tuple[str, ...]) -> Any:
        return self._of(metric, Histogram, buckets=metric.buckets).labels(*values)

    def _of(self, metric: Metric, kind: Any, **settings: Any) -> Any:
        return self._instruments.of(
            metric,
            lambda: kind(
                metric.name,
                metric.meaning,
                labelnames=self._labels.names(metric),
                registry=self._registry,
                **settings,
            ),
        )
