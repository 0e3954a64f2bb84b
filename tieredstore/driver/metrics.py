"""What is measured, under RocketMQ's names and labels, and where it goes.

What lives here: the metrics of RocketMQ's tiered store as data, and the `Metrics` protocol with a
default that does nothing. Metrics of ours are in `our_metrics`; what measures requests is
`measured`. Exporters for Prometheus and OpenTelemetry live elsewhere and read the declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

Labels: TypeAlias = Mapping[str, str]
GaugeRead: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]

BASE_LABELS: Final[Labels] = {"storage_type": "tiered", "storage_medium": "blob"}


class MetricKind(Enum):
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument; histograms have the upper bounds of their buckets."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()
    meaning: str = ""


_MS = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
_KIB, _MIB = 1024, 1024 * 1024
_BYTES = (_KIB, 10 * _KIB, 100 * _KIB, _MIB, 10 * _MIB, 32 * _MIB, 50 * _MIB, 100 * _MIB)
_RPC = ("path", "file_type", "operation")
_QUEUE = ("topic", "queue_id", "file_type")
_STORE = "rocketmq_tiered_store_"
_COUNTER, _HISTOGRAM, _GAUGE = MetricKind.COUNTER, MetricKind.HISTOGRAM, MetricKind.GAUGE

API_LATENCY = Metric(
    _STORE + "api_latency",
    _HISTOGRAM,
    ("operation", "topic", "group"),
    "milliseconds",
    _MS,
    "How long the tier took to answer a question of the broker",
)
RPC_LATENCY = Metric(
    _STORE + "provider_rpc_latency",
    _HISTOGRAM,
    (*_RPC, "success"),
    "milliseconds",
    _MS,
    "How long one read or write of a segment took",
)
UPLOAD_BYTES = Metric(
    _STORE + "provider_upload_bytes",
    _HISTOGRAM,
    _RPC,
    "bytes",
    _BYTES,
    "How many bytes one write of a segment had",
)
DOWNLOAD_BYTES = Metric(
    _STORE + "provider_download_bytes",
    _HISTOGRAM,
    _RPC,
    "bytes",
    _BYTES,
    "How many bytes one read of a segment had",
)
DISPATCH_BEHIND = Metric(
    _STORE + "dispatch_behind",
    _GAUGE,
    _QUEUE,
    meaning="Messages of a queue that the tier has not taken yet",
)
# The unit is what RocketMQ declares and dashboards expect; the value is in milliseconds there too.
DISPATCH_LATENCY = Metric(
    _STORE + "dispatch_latency",
    _GAUGE,
    _QUEUE,
    "seconds",
    meaning="The age of the oldest of them; in milliseconds, whatever RocketMQ's unit says",
)
MESSAGES_DISPATCHED = Metric(
    _STORE + "messages_dispatch_total", _COUNTER, _QUEUE, meaning="Messages that were uploaded"
)
MESSAGES_OUT = Metric(
    _STORE + "messages_out_total",
    _COUNTER,
    ("topic", "group"),
    meaning="Messages that the tier gave to consumers",
)
GET_MESSAGE_FALLBACK = Metric(
    _STORE + "get_message_fallback_total",
    _COUNTER,
    ("operation", "topic", "group"),
    meaning="Questions that the broker's own store answered because the backend could not",
)
READ_CACHE_COUNT = Metric(
    _STORE + "read_ahead_cache_count", _GAUGE, meaning="Pieces of segments in the read cache"
)
READ_CACHE_BYTES = Metric(
    _STORE + "read_ahead_cache_bytes", _GAUGE, (), "bytes", meaning="Bytes in the read cache"
)
READ_CACHE_ACCESS = Metric(
    _STORE + "read_ahead_cache_access_total", _COUNTER, meaning="Reads that asked the read cache"
)
READ_CACHE_HIT = Metric(
    _STORE + "read_ahead_cache_hit_total", _COUNTER, meaning="Reads that it had everything for"
)
STORAGE_SIZE = Metric(
    "rocketmq_storage_size",
    _GAUGE,
    ("topic", "file_type"),
    "bytes",
    meaning="Bytes in the tier; `topic` is a queue's path, as in RocketMQ",
)
STORAGE_RESERVE_TIME = Metric(
    "rocketmq_storage_message_reserve_time",
    _GAUGE,
    ("topic", "queue_id"),
    "milliseconds",
    meaning="The age of the oldest message of a queue in the tier",
)

ROCKETMQ_METRICS: Final[tuple[Metric, ...]] = (
    API_LATENCY,
    RPC_LATENCY,
    UPLOAD_BYTES,
    DOWNLOAD_BYTES,
    DISPATCH_BEHIND,
    DISPATCH_LATENCY,
    MESSAGES_DISPATCHED,
    MESSAGES_OUT,
    GET_MESSAGE_FALLBACK,
    READ_CACHE_COUNT,
    READ_CACHE_BYTES,
    READ_CACHE_ACCESS,
    READ_CACHE_HIT,
    STORAGE_SIZE,
    STORAGE_RESERVE_TIME,
)


class Metrics(Protocol):
    """Takes measurements. Any thread may call it; it never raises and never blocks on I/O.

    Labels are those that the metric declares; the exporter adds BASE_LABELS and the broker's own.
    """

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        """Count up a counter."""

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        """Put one value into a histogram."""

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        """Have a gauge, or a counter that is kept elsewhere, read whenever it is exported: each
        label set once."""

    def forget(self, label: str, values: Collection[str]) -> None:
        """Show no longer what was counted under these values of a label: they are gone."""


class NoMetrics:
    """Measures nothing: the default."""

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        pass

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        pass

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        pass

    def forget(self, label: str, values: Collection[str]) -> None:
        pass


class MetricsOfOneLife:
    """Forwards to `inner`; what is observed through it is let go of by `end`.

    A store that is shut down shows no gauges, and what it was made of is not kept by them.
    """

    def __init__(self, inner: Metrics) -> None:
        self.add = inner.add
        self.record = inner.record
        self.forget = inner.forget
        self._inner = inner
        self._reads: list[GaugeRead | None] = []

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        place = len(self._reads)
        self._reads.append(read)

        def read_while_alive() -> Iterable[tuple[float, Labels]]:
            mine = self._reads[place]
            return () if mine is None else mine()

        self._inner.observe(metric, read_while_alive)

    def end(self) -> None:
        """Show nothing any more; idempotent."""
        self._reads[:] = [None] * len(self._reads)
