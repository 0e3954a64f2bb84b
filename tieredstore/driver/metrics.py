"""Metrics: the table of instruments, and a provider that measures every request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeAlias, TypeVar

from tieredstore.driver.provider import (
    ProviderWrapper,
    SegmentProvider,
    SegmentRead,
    SegmentWrapper,
    WritePair,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.errors import TieredStoreError

Labels: TypeAlias = Mapping[str, str]
GaugeRead: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]

P = ParamSpec("P")
T = TypeVar("T")

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


class Metrics(Protocol):
    """Takes measurements. Any thread may call it; it never raises and never blocks on I/O.

    The labels are those that the metric declares; the exporter adds BASE_LABELS and the broker's
    own.
    """

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        """Add to a counter."""

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        """Record one value in a histogram."""

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        """Call `read` whenever a gauge, or a counter kept elsewhere, is exported; it returns each
        label set once."""

    def forget(self, label: str, values: Collection[str]) -> None:
        """Stop showing what was counted under these values of a label: they are gone."""


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


class MetricsOfLives:
    """Forwards to `inner`; `end` releases the readers that were given to `observe`.

    So a store that is shut down shows no gauges, and they keep no part of it alive. As `inner`
    never releases a reader, the gauges of the next life take the places of the previous ones.
    """

    def __init__(self, inner: Metrics) -> None:
        self.add = inner.add
        self.record = inner.record
        self.forget = inner.forget
        self._inner = inner
        self._reads: dict[Metric, list[GaugeRead | None]] = {}

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        reads = self._reads.setdefault(metric, [])
        if None in reads:
            reads[reads.index(None)] = read
            return
        place = len(reads)
        reads.append(read)

        def read_while_alive() -> Iterable[tuple[float, Labels]]:
            mine = reads[place]
            return () if mine is None else mine()

        self._inner.observe(metric, read_while_alive)

    def end(self) -> None:
        """Stop showing gauges; idempotent."""
        for reads in self._reads.values():
            reads[:] = [None] * len(reads)


_MS = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
_KIB, _MIB = 1024, 1024 * 1024
_BYTES = (_KIB, 10 * _KIB, 100 * _KIB, _MIB, 10 * _MIB, 32 * _MIB, 50 * _MIB, 100 * _MIB)
_RPC = ("path", "file_type", "operation")
_QUEUE = ("topic", "queue_id", "file_type")
_OF_QUEUE = ("topic", "queue_id")
_STORE = "rocketmq_tiered_store_"
_OURS = "tieredstore_"
_COUNTER, _HISTOGRAM, _GAUGE = MetricKind.COUNTER, MetricKind.HISTOGRAM, MetricKind.GAUGE


def _defined() -> tuple[Metric, ...]:
    """The metrics of this module so far, in the order of their definitions."""
    return tuple(value for value in globals().values() if isinstance(value, Metric))


# RocketMQ's

API_LATENCY = Metric(
    _STORE + "api_latency",
    _HISTOGRAM,
    ("operation", "topic", "group"),
    "milliseconds",
    _MS,
    "How long the tier took to answer a request of the broker",
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
    "Bytes of one write of a segment",
)
DOWNLOAD_BYTES = Metric(
    _STORE + "provider_download_bytes",
    _HISTOGRAM,
    _RPC,
    "bytes",
    _BYTES,
    "Bytes of one read of a segment",
)
DISPATCH_BEHIND = Metric(
    _STORE + "dispatch_behind",
    _GAUGE,
    _QUEUE,
    meaning="Messages of a queue that are not in the tier yet",
)
# RocketMQ declares this unit and dashboards expect it, although its value is in milliseconds too.
DISPATCH_LATENCY = Metric(
    _STORE + "dispatch_latency",
    _GAUGE,
    _QUEUE,
    "seconds",
    meaning="Age of the oldest of them; in milliseconds, although RocketMQ declares seconds",
)
MESSAGES_DISPATCHED = Metric(
    _STORE + "messages_dispatch_total", _COUNTER, _QUEUE, meaning="Messages that were uploaded"
)
MESSAGES_OUT = Metric(
    _STORE + "messages_out_total",
    _COUNTER,
    ("topic", "group"),
    meaning="Messages that the tier delivered to consumers",
)
GET_MESSAGE_FALLBACK = Metric(
    _STORE + "get_message_fallback_total",
    _COUNTER,
    ("operation", "topic", "group"),
    meaning="Requests that the broker's own store answered because the backend could not",
)
READ_CACHE_COUNT = Metric(
    _STORE + "read_ahead_cache_count", _GAUGE, meaning="Pieces of segments in the read cache"
)
READ_CACHE_BYTES = Metric(
    _STORE + "read_ahead_cache_bytes", _GAUGE, (), "bytes", meaning="Bytes in the read cache"
)
READ_CACHE_ACCESS = Metric(
    _STORE + "read_ahead_cache_access_total",
    _COUNTER,
    meaning="Reads that looked in the read cache",
)
READ_CACHE_HIT = Metric(
    _STORE + "read_ahead_cache_hit_total",
    _COUNTER,
    meaning="Reads that the read cache served completely",
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
    meaning="Age of the oldest message of a queue in the tier",
)

ROCKETMQ_METRICS: Final = _defined()

# Requests

OBJECT_REQUESTS = Metric(
    _OURS + "object_requests_total",
    _COUNTER,
    ("operation", "success"),
    meaning="Requests to an object store; each attempt counts",
)
OBJECT_BYTES = Metric(
    _OURS + "object_bytes_total",
    _COUNTER,
    ("operation",),
    "bytes",
    meaning="Bytes that these requests transferred",
)
OBJECT_BILL = Metric(
    _OURS + "object_requests_estimated_cost_total",
    _COUNTER,
    ("operation",),
    "dollars",
    meaning="Cost of these requests by the price table of the settings",
)
RETRIES = Metric(
    _OURS + "retries_total",
    _COUNTER,
    ("operation",),
    meaning="Calls of a backend that were retried after a failure",
)

# Uploads

QUEUES = Metric(
    _OURS + "queues",
    _GAUGE,
    ("state",),
    meaning="Queues that are `ok`; `failing`: they are retried; `stopped`: they need an operator",
)
QUEUE_PROBLEM = Metric(
    _OURS + "queue_problem",
    _GAUGE,
    (*_OF_QUEUE, "state"),
    meaning="1 for each queue that is `failing` or `stopped`; others are not shown",
)
LOST_MESSAGES = Metric(
    _OURS + "lost_messages",
    _GAUGE,
    _OF_QUEUE,
    meaning="Messages that the broker lost before they were uploaded; only queues with such gaps",
)
BUFFERED_BYTES = Metric(
    _OURS + "upload_buffered_bytes",
    _GAUGE,
    (),
    "bytes",
    meaning="Bytes in memory that wait for their upload",
)
UPLOADS = Metric(_OURS + "uploads_under_way", _GAUGE, meaning="Uploads in flight")
HELD_LOG_BYTES = Metric(
    _OURS + "local_log_held_bytes",
    _GAUGE,
    (),
    "bytes",
    meaning="Bytes of the broker's own log from the oldest message that the tier still needs",
)

QUEUE_HELD_LOG_BYTES = Metric(
    _OURS + "queue_held_log_bytes",
    _GAUGE,
    _OF_QUEUE,
    "bytes",
    meaning="The same, from the oldest message of this queue; only queues with messages that wait",
)

# The key index

INDEX_FILES = Metric(
    _OURS + "index_files",
    _GAUGE,
    ("state",),
    meaning="Index files: `unsealed` is being filled, `sealed` waits for its upload, `uploaded`",
)
INDEX_BEHIND = Metric(
    _OURS + "index_behind",
    _GAUGE,
    meaning="Messages in the tier that are not in the key index yet",
)
INDEX_PROBLEM = Metric(
    _OURS + "index_problem",
    _GAUGE,
    meaning="1 while index files cannot be uploaded or expired; the log says why",
)
INDEX_DAMAGED = Metric(
    _OURS + "index_damaged_files",
    _GAUGE,
    meaning="Uploaded index files in which look-ups have found damage since the store was opened",
)
KEYS_INCOMPLETE = Metric(
    _OURS + "incomplete_key_answers_total",
    _COUNTER,
    ("topic",),
    meaning="Answers by key that may lack a message, because an index file or a message could not "
    "be read; answers of a lagging index do not count",
)
FOOTER_CACHE_BYTES = Metric(
    _OURS + "index_footer_cache_bytes",
    _GAUGE,
    (),
    "bytes",
    meaning="Copies of index footers on the broker's disk",
)

# The catalogue

JOURNAL_BYTES = Metric(
    _OURS + "catalogue_journal_bytes",
    _GAUGE,
    (),
    "bytes",
    meaning="Changes of the catalogue that are not in RocketMQ's JSON file yet",
)
SNAPSHOT_AGE = Metric(
    _OURS + "catalogue_snapshot_age",
    _GAUGE,
    (),
    "seconds",
    meaning="Time since that file last changed; absent if there is no file",
)
PUBLISHED = Metric(
    _OURS + "catalogue_publishes_total",
    _COUNTER,
    ("success",),
    meaning="Attempts to publish the catalogue for readers elsewhere",
)
PUBLISH_PROBLEM = Metric(
    _OURS + "catalogue_problem",
    _GAUGE,
    meaning="1 while the newest changes cannot be published; the log says why",
)

FENCED = Metric(
    _OURS + "fenced",
    _GAUGE,
    meaning="1 once another writer has taken over this tier: this store no longer uploads",
)

# A scrub

SCRUB_BYTES = Metric(
    _OURS + "scrub_bytes_total",
    _COUNTER,
    (),
    "bytes",
    meaning="Bytes of the tier that `verify --continuous` has checked",
)
SCRUB_PROGRESS = Metric(
    _OURS + "scrub_progress",
    _GAUGE,
    (),
    "ratio",
    meaning="Share of the tier that the current pass has read, from 0 to 1",
)
SCRUB_FINDINGS = Metric(
    _OURS + "scrub_findings",
    _GAUGE,
    ("severity",),
    meaning="Findings of the current pass, or of the one before if that found more: `damage`, "
    "`leftover`, `note`",
)
SCRUB_AGE = Metric(
    _OURS + "scrub_pass_age",
    _GAUGE,
    (),
    "seconds",
    meaning="Time since the last complete pass ended; absent before the first",
)

OUR_METRICS: Final = tuple(found for found in _defined() if found not in ROCKETMQ_METRICS)


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

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        """One by one, or in the provider's own way: then both writes of a pair count the same
        time."""
        if not (self.retries_itself or self.shares_rounds):
            return super().write_many(pairs)
        started = self._runtime.clock.monotonic()
        futures = self.inner.write_many(pairs)
        for pair, future in zip(pairs, futures, strict=True):
            future.add_done_callback(partial(self._record_pair, pair, started))
        return futures

    def seal_many(self, segments: Sequence[FileSegment]) -> Sequence[TieredStoreError | None]:
        """One by one, or in the provider's own way."""
        if not self.shares_rounds:
            return super().seal_many(segments)
        return self.inner.seal_many(segments)

    def read_together(self, reads: Sequence[SegmentRead]) -> Sequence[bytes | TieredStoreError]:
        """One by one, or in the provider's own way: then each read counts the time of all."""
        if not self.reads_together:
            return super().read_together(reads)
        started = self._runtime.clock.monotonic()
        answers = self.inner.read_together(reads)
        for read, answer in zip(reads, answers, strict=True):
            with self.wrap(self.inner.open(read.path, read.type, read.base)) as segment:
                segment.record_call("read", started, success=isinstance(answer, bytes))
                if isinstance(answer, bytes):
                    segment.record_download(len(answer))
        return answers

    def _record_pair(self, pair: WritePair, started: float, future: Future[None]) -> None:
        success = not future.cancelled() and future.exception() is None
        for write in (pair.log, pair.queue):
            if write is not None and isinstance(write.segment, MeasuredSegment):
                write.segment.record_call("write", started, success=success)
                if success:
                    write.segment.record_upload(memoryview(write.data).nbytes)

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        if not isinstance(segment, MeasuredSegment):
            return super().create(segment, blocks)
        size = segment.measured("write", super().create, segment, blocks)
        segment.record_upload(size)
        return size
