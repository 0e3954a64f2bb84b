"""The object store provider passes the shipped contracts on the double, bare and wrapped."""

from __future__ import annotations

from typing import NoReturn

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tieredstore.driver.metrics import MeasuredProvider, NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.roundlog.state import LogSegmentState
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.provider_contract import SegmentProviderContract
from tieredstore.testing.segment_contract import FileSegmentContract, SegmentMachine

LOG = SegmentType.COMMIT_LOG
CLUSTER = "DefaultCluster"


class TestObjectFileSegment(FileSegmentContract):
    seals_for_good = True

    @pytest.fixture(autouse=True)
    def _provider(self) -> None:
        self.provider = ObjectProvider(MemoryObjectClient(), CLUSTER, Runtime.inline())

    def open_segment(self, path: str) -> FileSegment:
        return self.provider.open(path, LOG, 0)


def test_any_history_with_restarts_equals_that_of_a_byte_string() -> None:
    """Each new handle belongs to a new process, which takes over as the writer."""
    objects = MemoryObjects()

    class Machine(SegmentMachine):
        seals_for_good = True

        def open_segment(self, path: str) -> FileSegment:
            provider = ObjectProvider(
                MemoryObjectClient(objects), CLUSTER, Runtime.inline(), listing_ms=0
            )
            return provider.open(path, LOG, 0)

    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=50, stateful_step_count=30, deadline=None),
    )


class TestObjectProvider(SegmentProviderContract):
    pairs_are_whole = True

    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        return ObjectProvider(MemoryObjectClient(), CLUSTER, runtime)


class TestMeasuredObjectProvider(SegmentProviderContract):
    pairs_are_whole = True

    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        provider = ObjectProvider(MemoryObjectClient(), CLUSTER, runtime)
        return MeasuredProvider(provider, NoMetrics(), runtime)


def test_a_listing_of_one_queue_looks_at_no_other() -> None:
    """A broker that opens ten thousand queues lists each of them."""

    class Refusing(dict[int, LogSegmentState]):
        def values(self) -> NoReturn:
            raise AssertionError("all segments of the tier")

    provider = ObjectProvider(MemoryObjectClient(), CLUSTER, Runtime.inline())
    for queue in range(3):
        for base in (0, 4):
            with provider.open(f"broker/topic/{queue}", LOG, base) as segment:
                segment.write(0, b"four")
    (log,) = provider._logs.values()
    log.state().segments = Refusing(log.state().segments)
    assert [found.base for found in provider.list("broker/topic/1")] == [0, 4]
    assert not list(provider.list("broker/topic/9"))
