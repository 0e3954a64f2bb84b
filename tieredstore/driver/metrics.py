"""What is measured, under RocketMQ's names and labels, and where it goes.

What lives here: the metrics of RocketMQ's tiered store as data, the `Metrics` protocol with a
default that does nothing, and the wrapper that measures every request to a backend. Exporters for
Prometheus and OpenTelemetry live elsewhere and only read these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeAlias, TypeVar

from tieredstore.driver.provider import SegmentProvider, SegmentRead, WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.driver.wrapper import ProviderWrapper, SegmentWrapper

P = ParamSpec("P")
T = TypeVar("T")

Labels: TypeAlias = Mapping[str, str]

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


_MS = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
_KIB, _MIB = 1024, 1024 * 1024
_BYTES = (_KIB, 10 * _KIB, 100 * _KIB, _MIB, 10 * _MIB, 32 * _MIB, 50 * _MIB, 100 * _MIB)
_RPC = ("path", "file_type", "operation")
_QUEUE = ("topic", "queue_id", "file_type")
_STORE = "rocketmq_tiered_store_"
_COUNTER, _HISTOGRAM, _GAUGE = MetricKind.COUNTER, MetricKind.HISTOGRAM, MetricKind.GAUGE

API_LATENCY = Metric(
    _STORE + "api_latency", _HISTOGRAM, ("operation", "topic", "group"), "milliseconds", _MS
)
RPC_LATENCY = Metric(
    _STORE + "provider_rpc_latency", _HISTOGRAM, (*_RPC, "success"), "milliseconds", _MS
)
UPLOAD_BYTES = Metric(_STORE + "provider_upload_bytes", _HISTOGRAM, _RPC, "bytes", _BYTES)
DOWNLOAD_BYTES = Metric(_STORE + "provider_download_bytes", _HISTOGRAM, _RPC, "bytes", _BYTES)
DISPATCH_BEHIND = Metric(_STORE + "dispatch_behind", _GAUGE, _QUEUE)
# The unit is what RocketMQ declares and dashboards expect; the value is in milliseconds there too.
DISPATCH_LATENCY = Metric(_STORE + "dispatch_latency", _GAUGE, _QUEUE, "seconds")
MESSAGES_DISPATCHED = Metric(_STORE + "messages_dispatch_total", _COUNTER, _QUEUE)
MESSAGES_OUT = Metric(_STORE + "messages_out_total", _COUNTER, ("topic", "group"))
GET_MESSAGE_FALLBACK = Metric(
    _STORE + "get_message_fallback_total", _COUNTER, ("operation", "topic", "group")
)
READ_CACHE_COUNT = Metric(_STORE + "read_ahead_cache_count", _GAUGE)
READ_CACHE_BYTES = Metric(_STORE + "read_ahead_cache_bytes", _GAUGE, (), "bytes")
READ_CACHE_ACCESS = Metric(_STORE + "read_ahead_cache_access_total", _COUNTER)
READ_CACHE_HIT = Metric(_STORE + "read_ahead_cache_hit_total", _COUNTER)
STORAGE_SIZE = Metric("rocketmq_storage_size", _GAUGE, ("topic", "file_type"), "bytes")
STORAGE_RESERVE_TIME = Metric(
    "rocketmq_storage_message_reserve_time", _GAUGE, ("topic", "queue_id"), "milliseconds"
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

    def observe(self, metric: Metric, read: Callable[[], Iterable[tuple[float, Labels]]]) -> None:
        """Have a gauge read, with all its label sets, whenever it is exported."""


class NoMetrics:
    """Measures nothing: the default."""

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        pass

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        pass

    def observe(self, metric: Metric, read: Callable[[], Iterable[tuple[float, Labels]]]) -> None:
        pass


class MeasuredSegment(SegmentWrapper):
    """A segment whose reads and writes are measured under RocketMQ's names."""

    def __init__(self, inner: FileSegment, metrics: Metrics, runtime: Runtime) -> None:
        super().__init__(inner)
        self._metrics = metrics
        self._clock = runtime.clock
        self._labels = {"path": inner.queue_path, "file_type": inner.type.name.lower()}

    def read(self, position: int, length: int) -> bytes:
        data = self.measured("read", self.inner.read, position, length)
        self.record_download(len(data))
        return data

    def write(self, position: int, data: Buffer) -> None:
        self.measured("write", self.inner.write, position, data)
        self.record_upload(memoryview(data).nbytes)

    def record_download(self, size: int) -> None:
        self._metrics.record(DOWNLOAD_BYTES, size, {**self._labels, "operation": "read"})

    def record_upload(self, size: int) -> None:
        self._metrics.record(UPLOAD_BYTES, size, {**self._labels, "operation": "write"})

    def measured(
        self, operation: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        started = self._clock.monotonic()
        success = False
        try:
            outcome = call(*args, **kwargs)
            success = True
            return outcome
        finally:
            self.record_call(operation, started, success=success)

    def record_call(self, operation: str, started: float, *, success: bool) -> None:
        spent_ms = (self._clock.monotonic() - started) * 1000
        labels = {**self._labels, "operation": operation, "success": str(success).lower()}
        self._metrics.record(RPC_LATENCY, spent_ms, labels)


class MeasuredProvider(ProviderWrapper):
    """A provider whose segments are measured."""

    def __init__(self, inner: SegmentProvider, metrics: Metrics, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self._metrics = metrics

    def wrap(self, segment: FileSegment) -> MeasuredSegment:
        return MeasuredSegment(segment, self._metrics, self._runtime)

    def read_many(self, reads: Sequence[SegmentRead]) -> Sequence[bytes]:
        """Each by itself, or in the provider's own way: then each took as long as all."""
        if not self.retries_itself:
            return super().read_many(reads)
        started = self._runtime.clock.monotonic()
        results: Sequence[bytes] | None = None
        try:
            results = self.inner.read_many(reads)
        finally:
            for each in _measured(read.segment for read in reads):
                each.record_call("read", started, success=results is not None)
        for read, data in zip(reads, results, strict=True):
            for each in _measured([read.segment]):
                each.record_download(len(data))
        return results

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        """Each by itself, or in the provider's own way: then both of a pair took as long."""
        if not self.retries_itself:
            return super().write_many(pairs)
        started = self._runtime.clock.monotonic()
        futures = self.inner.write_many(pairs)
        for pair, future in zip(pairs, futures, strict=True):
            future.add_done_callback(partial(self._record_pair, pair, started))
        return futures

    def _record_pair(self, pair: WritePair, started: float, future: Future[None]) -> None:
        success = not future.cancelled() and future.exception() is None
        for write in (pair.log, pair.queue):
            if write is not None:
                for each in _measured([write.segment]):
                    each.record_call("write", started, success=success)
                    if success:
                        each.record_upload(memoryview(write.data).nbytes)

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        if not isinstance(segment, MeasuredSegment):
            return super().create(segment, blocks)
        size = segment.measured("write", super().create, segment, blocks)
        segment.record_upload(size)
        return size


def _measured(segments: Iterable[FileSegment]) -> Iterator[MeasuredSegment]:
    return (each for each in segments if isinstance(each, MeasuredSegment))
