"""Requests are counted as a store bills them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

import pytest

from tieredstore.driver.metrics import (
    OBJECT_BILL,
    OBJECT_BYTES,
    OBJECT_REQUESTS,
    Labels,
    Metric,
    NoMetrics,
)
from tieredstore.driver.object_client import Range
from tieredstore.driver.object_requests import CountedClient, PriceTable
from tieredstore.model.errors import InvalidConfigError, SegmentNotFoundError
from tieredstore.providers.fsspec import FsspecClient


class SeenMetrics(NoMetrics):
    def __init__(self) -> None:
        self.added: dict[tuple[str, str, str], int] = {}
        self.read: Callable[[], Iterable[tuple[float, Labels]]] = list

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        key = (metric.name, labels["operation"], labels.get("success", ""))
        self.added[key] = self.added.get(key, 0) + amount

    def observe(self, metric: Metric, read: Callable[[], Iterable[tuple[float, Labels]]]) -> None:
        assert metric is OBJECT_BILL
        self.read = read


def counted(metrics: NoMetrics | None = None, prices: PriceTable | None = None) -> CountedClient:
    inner = FsspecClient(f"memory://{uuid.uuid4().hex}")
    return CountedClient(inner, metrics=metrics, prices=prices)


def test_pages_and_batches_count_as_often_as_a_store_is_asked() -> None:
    client = counted()
    keys = [f"k-{number:05}" for number in range(2_001)]
    for key in keys:
        client.put(key, b"x")
    assert len(list(client.list())) == 2_001
    next(iter(client.list()))
    list(client.list("absent"))
    client.delete_many(keys)
    assert client.counts.snapshot() == {
        "put": 2_001,
        "list": 3 + 1 + 1,
        "get": 0,
        "head": 0,
        "delete": 3,
    }


def test_failures_and_bytes_are_counted_and_exported() -> None:
    metrics = SeenMetrics()
    client = counted(metrics)
    client.put("k", bytes(100))
    client.get_ranges([Range("k", 0, 10), Range("absent", 0, 1), Range("k", 0, 0)])
    with pytest.raises(SegmentNotFoundError):
        client.head("absent")
    assert metrics.added == {
        (OBJECT_REQUESTS.name, "put", "true"): 1,
        (OBJECT_BYTES.name, "put", ""): 100,
        (OBJECT_REQUESTS.name, "get", "true"): 1,
        (OBJECT_REQUESTS.name, "get", "false"): 1,
        (OBJECT_BYTES.name, "get", ""): 10,
        (OBJECT_REQUESTS.name, "head", "false"): 1,
    }
    assert client.counts.failures == {"get": 1, "head": 1}


def test_the_bill_is_that_of_the_price_table() -> None:
    metrics = SeenMetrics()
    client = counted(metrics, PriceTable.parse(["put=0.01", " get = 1 "]))
    for number in range(10):
        client.put(f"k-{number}", b"x")
    client.get_range("k-1", 0, 1)
    list(client.list())
    assert client.bill() == pytest.approx((10 * 0.01 + 1 + 0.005) / 1000)
    bills = {labels["operation"]: dollars for dollars, labels in metrics.read()}
    assert sum(bills.values()) == client.bill()
    assert bills["put"] == client.counts.snapshot()["put"] * client.prices.put / 1000


def test_list_prices_are_the_default() -> None:
    assert PriceTable.parse([]) == PriceTable(put=0.005, list=0.005, get=0.0004)


@pytest.mark.parametrize("entry", ["put", "copy=1", "put=much", "put=-1", "put=nan", "put=inf"])
def test_a_wrong_price_is_refused(entry: str) -> None:
    with pytest.raises(InvalidConfigError, match="request_prices"):
        PriceTable.parse([entry])
