"""Metrics: RocketMQ's names, and what the wrapper measures."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tieredstore.driver.metrics import (
    DOWNLOAD_BYTES,
    ROCKETMQ_METRICS,
    RPC_LATENCY,
    UPLOAD_BYTES,
    Labels,
    MeasuredProvider,
    MeasuredSegment,
    Metric,
    MetricKind,
    NoMetrics,
)
from tieredstore.driver.provider import SegmentRead, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import SegmentNotFoundError
from tieredstore.model.values import SegmentType
from tieredstore.providers.memory import MemoryProvider


class Noted(NoMetrics):
    """Keeps whatever was recorded."""

    def __init__(self) -> None:
        self.records: list[tuple[str, float, dict[str, str]]] = []

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        assert set(labels) == set(metric.labels)
        self.records.append((metric.name, value, dict(labels)))


def test_names_kinds_and_labels_are_rocketmqs() -> None:
    expected = """
    rocketmq_tiered_store_api_latency histogram operation,topic,group
    rocketmq_tiered_store_provider_rpc_latency histogram path,file_type,operation,success
    rocketmq_tiered_store_provider_upload_bytes histogram path,file_type,operation
    rocketmq_tiered_store_provider_download_bytes histogram path,file_type,operation
    rocketmq_tiered_store_dispatch_behind gauge topic,queue_id,file_type
    rocketmq_tiered_store_dispatch_latency gauge topic,queue_id,file_type
    rocketmq_tiered_store_messages_dispatch_total counter topic,queue_id,file_type
    rocketmq_tiered_store_messages_out_total counter topic,group
    rocketmq_tiered_store_get_message_fallback_total counter operation,topic,group
    rocketmq_tiered_store_read_ahead_cache_count gauge
    rocketmq_tiered_store_read_ahead_cache_bytes gauge
    rocketmq_tiered_store_read_ahead_cache_access_total counter
    rocketmq_tiered_store_read_ahead_cache_hit_total counter
    rocketmq_storage_size gauge topic,file_type
    rocketmq_storage_message_reserve_time gauge topic,queue_id
    """
    declared = [
        f"{metric.name} {metric.kind.value} {','.join(metric.labels)}".strip()
        for metric in ROCKETMQ_METRICS
    ]
    assert declared == [line.strip() for line in expected.strip().splitlines()]


def test_histograms_have_buckets_and_others_have_none() -> None:
    for metric in ROCKETMQ_METRICS:
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert list(metric.buckets) == sorted(metric.buckets)
        assert re.fullmatch(r"[a-z_]+", metric.name)


def test_reads_and_writes_are_measured_failed_ones_too() -> None:
    runtime = Runtime.inline()
    noted = Noted()
    segment = MeasuredProvider(MemoryProvider(runtime), noted, runtime).open(
        "b/t/0", SegmentType.CONSUME_QUEUE, 0
    )
    with pytest.raises(SegmentNotFoundError):
        segment.read(0, 1)
    segment.write(0, memoryview(b"12345678").cast("I"))
    segment.read(0, 5)
    labels = {"path": "b/t/0", "file_type": "consume_queue"}
    read, write = {**labels, "operation": "read"}, {**labels, "operation": "write"}
    assert noted.records == [
        (RPC_LATENCY.name, 0, {**read, "success": "false"}),
        (RPC_LATENCY.name, 0, {**write, "success": "true"}),
        (UPLOAD_BYTES.name, 8, write),
        (RPC_LATENCY.name, 0, {**read, "success": "true"}),
        (DOWNLOAD_BYTES.name, 5, read),
    ]


def test_a_creation_is_measured_as_a_write() -> None:
    runtime = Runtime.inline()
    noted = Noted()
    provider = MeasuredProvider(MemoryProvider(runtime), noted, runtime)
    provider.create(provider.open("b/t/0", SegmentType.INDEX, 0), [b"123", b"45"])
    assert [(name, value) for name, value, _ in noted.records] == [
        (RPC_LATENCY.name, 0),
        (UPLOAD_BYTES.name, 5),
    ]


@pytest.mark.parametrize("reads_together", [True, False])
def test_each_of_the_reads_that_are_made_together_is_measured(reads_together: bool) -> None:
    runtime = Runtime.inline()
    noted = Noted()
    memory = MemoryProvider(runtime)
    memory.reads_together = reads_together
    memory.open("b/t/0", SegmentType.INDEX, 0).write(0, b"12345")
    provider = MeasuredProvider(memory, noted, runtime)
    reads = [SegmentRead("b/t/0", SegmentType.INDEX, 0, 0, length) for length in (5, 6)]
    answers = provider.read_together(reads)
    assert answers[0] == b"12345"
    read = {"path": "b/t/0", "file_type": "index", "operation": "read"}
    assert noted.records == [
        (RPC_LATENCY.name, 0, {**read, "success": "true"}),
        (DOWNLOAD_BYTES.name, 5, read),
        (RPC_LATENCY.name, 0, {**read, "success": "false"}),
    ]


def test_latency_is_in_milliseconds_of_the_runtimes_clock() -> None:
    runtime = Runtime.inline()

    class Slow(SegmentWrapper):
        def write(self, position: int, data: Buffer) -> None:
            runtime.clock.sleep(0.042)
            super().write(position, data)

    noted = Noted()
    inner = MemoryProvider(runtime).open("b/t/0", SegmentType.INDEX, 0)
    MeasuredSegment(Slow(inner), noted, runtime).write(0, b"x")
    assert noted.records[0][1] == pytest.approx(42)


def test_the_default_takes_everything_and_does_nothing() -> None:
    metrics = NoMetrics()

    def read() -> Iterable[tuple[float, Labels]]:
        raise AssertionError("nobody exports")

    metrics.add(ROCKETMQ_METRICS[6], 1, {})
    metrics.record(ROCKETMQ_METRICS[0], 1.0, {})
    metrics.observe(ROCKETMQ_METRICS[4], read)
