"""The object store provider under each of its names, built from a store's settings."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable

from tieredstore.access.wiring import provider_of
from tieredstore.driver.metrics import (
    OBJECT_BILL,
    OBJECT_REQUESTS,
    Labels,
    MeasuredProvider,
    Metric,
    NoMetrics,
)
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import FsspecProvider, S3Provider

LOG = SegmentType.COMMIT_LOG


def test_any_filesystem_of_fsspec_holds_a_tier() -> None:
    config = StoreConfig(provider="fsspec", url=f"memory://{uuid.uuid4().hex}/tier")
    with Runtime.threads() as runtime:
        provider = provider_of(config, runtime, NoMetrics())
        assert isinstance(provider, MeasuredProvider)  # no wrapper that retries
        assert isinstance(provider.inner, FsspecProvider)
        segment = provider.open("b/t/0", LOG, 0)
        pair = WritePair(log=SegmentWrite(segment, 0, b"data"), queue=None)
        for future in provider.write_many([pair]):
            future.result()
        segment.seal()
        again = provider_of(config, runtime, NoMetrics())
        assert again.open("b/t/0", LOG, 0).read(0, 4) == b"data"
        assert [each.size for each in again.list()] == [4]


def test_requests_and_their_bill_show_in_the_metrics_of_the_store() -> None:
    metrics = Seen()
    config = StoreConfig(
        provider="fsspec",
        url=f"memory://{uuid.uuid4().hex}/tier",
        certify="off",
        request_prices=("put=1000", "head=0", "list=0"),
    )
    with Runtime.inline() as runtime:
        provider = provider_of(config, runtime, metrics)
        assert metrics.bill() == 0
        provider.open("b/t/0", LOG, 0).write(0, b"data")
    assert metrics.counted["put"] == 3
    assert metrics.counted["head"] > 0
    assert metrics.bill() == 3


class Seen(NoMetrics):
    """Counts requests, and knows how to read the bill."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self._gauges: dict[str, Callable[[], Iterable[tuple[float, Labels]]]] = {}

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        if metric is OBJECT_REQUESTS:
            self.counted[labels["operation"]] += amount

    def observe(self, metric: Metric, read: Callable[[], Iterable[tuple[float, Labels]]]) -> None:
        self._gauges[metric.name] = read

    def bill(self) -> float:
        return sum(dollars for dollars, _ in self._gauges[OBJECT_BILL.name]())


def test_s3_is_built_without_a_request() -> None:
    config = StoreConfig(provider="s3", bucket="tier", endpoint="http://127.0.0.1:9")
    with Runtime.inline() as runtime:
        provider = provider_of(config, runtime, NoMetrics())
        assert isinstance(provider, MeasuredProvider)
        assert isinstance(provider.inner, S3Provider)
        provider.close()
