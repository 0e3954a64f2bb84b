"""Metrics for OpenTelemetry, under RocketMQ's names, units and labels.

from opentelemetry import metrics
store = TieredMessageStore(
    local, config, metrics=OpenTelemetryMetrics(metrics.get_meter("tieredstore"))
)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from tieredstore.model.extras import brought_by

with brought_by("otel"):
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

from tieredstore.driver.metrics import GaugeRead, Labels, Metric, MetricKind
from tieredstore.exporters.instruments import GaugeReads, Instruments, LabelSets


class OpenTelemetryMetrics:
    """Counters, histograms with RocketMQ's buckets, and gauges read at each export.

    `labels` are the broker's own, such as cluster, node_type and node_id; all metrics get them.
    Series that differ only in labels of `without`, such as `path`, are added up.
    """

    def __init__(
        self,
        meter: Meter,
        labels: Mapping[str, str] | None = None,
        *,
        without: Collection[str] = (),
    ) -> None:
        self._meter = meter
        self._labels = LabelSets(labels or {}, without)
        self._instruments = Instruments()
        self._gauges = GaugeReads(self._labels)

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        counter = self._of(metric, self._meter.create_counter)
        counter.add(amount, self._attributes(metric, labels))

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        histogram = self._of(
            metric,
            self._meter.create_histogram,
            explicit_bucket_boundaries_advisory=metric.buckets,
        )
        histogram.record(value, self._attributes(metric, labels))

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        if not self._gauges.add(metric, read):
            return
        is_counter = metric.kind is MetricKind.COUNTER
        meter = self._meter
        create = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        create(
            metric.name,
            callbacks=[partial(self._observed, metric)],
            unit=metric.unit,
            description=metric.meaning,
        )

    def forget(self, label: str, values: Collection[str]) -> None:
        """Make room for new sets; the SDK shows what it has counted until the process ends."""
        self._labels.forget(label, values)

    def _observed(self, metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
        names = self._labels.names(metric)
        return [
            Observation(value, dict(zip(names, values, strict=True)))
            for values, value in self._gauges.read(metric).items()
        ]

    def _attributes(self, metric: Metric, labels: Labels) -> Mapping[str, str]:
        found: Mapping[str, str] = self._labels.made(metric, labels, self._named)
        return found

    def _named(self, metric: Metric, values: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self._labels.names(metric), values, strict=True))

    def _of(self, metric: Metric, create: Callable[..., Any], **settings: Any) -> Any:
        return self._instruments.of(
            metric,
            lambda: create(metric.name, unit=metric.unit, description=metric.meaning, **settings),
        )
