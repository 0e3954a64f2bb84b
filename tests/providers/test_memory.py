"""The memory provider passes the shipped contracts, bare and wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tieredstore.driver.metrics import MeasuredProvider, NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.retry import RetryingProvider, RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import PositionMismatchError, SegmentNotFoundError
from tieredstore.model.values import SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Faults, FaultyProvider
from tieredstore.testing.provider_contract import SegmentProviderContract
from tieredstore.testing.segment_contract import FileSegmentContract

LOG = SegmentType.COMMIT_LOG


class TestMemoryFileSegment(FileSegmentContract):
    @pytest.fixture(autouse=True)
    def _provider(self) -> None:
        self.provider = MemoryProvider(Runtime.inline())

    def open_segment(self, path: str) -> FileSegment:
        return self.provider.open(path, LOG, 0)


class TestMemoryProvider(SegmentProviderContract):
    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        return MemoryProvider(runtime)


def _faulty(inner: SegmentProvider, runtime: Runtime) -> SegmentProvider:
    return FaultyProvider(inner, Faults(), runtime)


def _measured(inner: SegmentProvider, runtime: Runtime) -> SegmentProvider:
    return MeasuredProvider(inner, NoMetrics(), runtime)


def _retrying(inner: SegmentProvider, runtime: Runtime) -> SegmentProvider:
    return RetryingProvider(inner, RetryPolicy(), runtime)


WRAPPINGS: dict[str, list[Callable[[SegmentProvider, Runtime], SegmentProvider]]] = {
    "faulty": [_faulty],
    "measured": [_measured],
    "retrying": [_retrying],
    "all": [_faulty, _measured, _retrying],
}


def _wrapped(name: str, runtime: Runtime) -> SegmentProvider:
    provider: SegmentProvider = MemoryProvider(runtime)
    for wrap in WRAPPINGS[name]:
        provider = wrap(provider, runtime)
    return provider


@pytest.mark.parametrize("wrapping", WRAPPINGS)
class TestWrappedSegment(FileSegmentContract):
    @pytest.fixture(autouse=True)
    def _provider(self, wrapping: str) -> None:
        self.provider = _wrapped(wrapping, Runtime.inline())

    def open_segment(self, path: str) -> FileSegment:
        return self.provider.open(path, LOG, 0)


@pytest.mark.parametrize("wrapping", WRAPPINGS)
class TestWrappedProvider(SegmentProviderContract):
    @pytest.fixture(autouse=True)
    def _wrapping(self, wrapping: str) -> None:
        self.wrapping = wrapping

    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        return _wrapped(self.wrapping, runtime)


def test_two_providers_share_nothing() -> None:
    runtime = Runtime.inline()
    first = MemoryProvider.from_config(StoreConfig(), runtime)
    second = MemoryProvider.from_config(StoreConfig(), runtime)
    first.open("b/t/0", LOG, 0).write(0, b"mine")
    with pytest.raises(SegmentNotFoundError):
        second.open("b/t/0", LOG, 0).size()
    assert list(second.list()) == []


@pytest.mark.parametrize("beginning", [[b"whole"], [b""], []])
def test_a_create_that_is_overtaken_leaves_what_another_task_has_made(
    beginning: list[bytes],
) -> None:
    """A copy may run twice at once, and its source may go before the slower one has read it."""
    provider = MemoryProvider(Runtime.inline())
    segment = provider.open("b/t/0", LOG, 0)

    def overtaken() -> Iterator[bytes]:
        provider.create(provider.open("b/t/0", LOG, 0), [b"whole"])
        yield from beginning
        raise SegmentNotFoundError("source")

    with pytest.raises((PositionMismatchError, SegmentNotFoundError)):
        provider.create(segment, overtaken())
    assert segment.read(0, 5) == b"whole"
