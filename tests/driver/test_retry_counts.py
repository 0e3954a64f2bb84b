"""Retries are counted by operation, and only where something is tried again."""

from __future__ import annotations

import pytest

from tieredstore.driver.metrics import RETRIES, Labels, Metric, NoMetrics
from tieredstore.driver.object_client import ObjectFacts
from tieredstore.driver.object_requests import RetryingClient
from tieredstore.driver.retry import Retry, RetryingProvider, RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import BackendRefusedError, BackendUnavailableError
from tieredstore.model.values import SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.memory_objects import MemoryObjectClient


class Counted(NoMetrics):
    def __init__(self) -> None:
        self.operations: list[str] = []

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        assert (metric, amount) == (RETRIES, 1)
        self.operations.append(labels["operation"])


@pytest.mark.parametrize(
    ("failures", "counted"),
    [(0, []), (1, ["get"]), (3, ["get"] * 3), (9, ["get"] * 4)],  # the policy ends it
)
def test_each_further_call_is_counted_once(failures: int, counted: list[str]) -> None:
    metrics, left = Counted(), [failures]
    retry = Retry(RetryPolicy(retries_max=4), Runtime.inline())
    retry.report_to(metrics)

    def call() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise BackendUnavailableError("p", "get", "busy")

    try:
        retry(call)
    except BackendUnavailableError:
        assert failures > 4
    assert metrics.operations == counted


def test_what_is_not_tried_again_is_not_counted() -> None:
    metrics = Counted()
    retry = Retry(RetryPolicy(), Runtime.inline())
    retry.report_to(metrics)

    def refused() -> None:
        raise BackendRefusedError("p", "get", "no")

    with pytest.raises(BackendRefusedError):
        retry(refused)
    assert metrics.operations == []


def test_segments_of_a_provider_and_requests_of_a_client_are_counted() -> None:
    runtime, metrics = Runtime.inline(), Counted()
    faults = Faults()
    inner = FaultyProvider(MemoryProvider(runtime), faults, runtime)
    provider = RetryingProvider(inner, RetryPolicy(retries_max=1), runtime)
    provider.report_to(metrics)
    segment = provider.open("b/t/0", SegmentType.COMMIT_LOG, 0)
    segment.write(0, b"x")
    assert metrics.operations == []
    faults.always = Fault.BEFORE
    with pytest.raises(BackendUnavailableError):
        segment.read(0, 1)
    assert metrics.operations == ["read"]

    client = RetryingClient(_Busy(), RetryPolicy(retries_max=2), runtime)
    client.report_to(metrics)
    with pytest.raises(BackendUnavailableError):
        client.head("key")
    assert metrics.operations == ["read", "head", "head"]


class _Busy(MemoryObjectClient):
    def head(self, key: str) -> ObjectFacts:
        raise BackendUnavailableError(key, "head", "busy")
