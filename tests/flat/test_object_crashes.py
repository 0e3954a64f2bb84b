"""The same as `test_crashes` over an object store: the process dies at any of its requests.

Each process has a client and a provider of its own; whoever looks afterwards has too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.crash_stores import Clients, Stores
from tests.every_step import every_step
from tests.flat.store_kit import Tier
from tests.flat.test_crashes import (
    CRASHES,
    FAILURES,
    crash_and_return,
    crash_and_send_others,
    crash_in_destroying,
    crash_twice,
    fail_and_go_on,
    steps_of_a_quiet_run,
    steps_of_destroying,
)
from tests.providers.object_kit import StruckClient
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Fault, Faults

Tiers = Callable[[], Tier]


def process(clients: Clients, runtime: Runtime, faults: Faults) -> ObjectProvider:
    """Nothing is tried again, and a listing is never believed."""
    client = StruckClient(clients(), faults)
    return ObjectProvider(client, "c", runtime, listing_ms=0, retry=RetryPolicy(retries_max=0))


class ObjectTier(Tier):
    """Faults strike the requests of a process; `inner` is a process that only looks."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(log_bytes=1500, queue_units=8, commit_log_rolling_min_bytes=1)
        self._clients = clients

    def open(self, faults: Faults | None = None, *, read_only: bool = False) -> FlatFileStore:
        self.inner = process(self._clients, self.runtime, Faults())
        return super().open(faults, read_only=read_only)

    def backend(self, faults: Faults) -> ObjectProvider:
        return process(self._clients, self.runtime, faults)

    def held(self, type: SegmentType, path: str = "") -> dict[int, bytes]:
        self.inner = process(self._clients, self.runtime, Faults())
        return super().held(type, path) if path else super().held(type)


def in_memory() -> ObjectTier:
    """Where requests are counted: a client makes as many, and there they take no time."""
    return ObjectTier(Stores("memory").new())


@pytest.fixture
def tiers(stores: Stores) -> Tiers:
    return lambda: ObjectTier(stores.new())


@pytest.mark.parametrize("fault", CRASHES)
def test_after_a_crash_at_any_request_nothing_acknowledged_is_lost(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    steps = stores.sample(steps_of_a_quiet_run(in_memory), over_http=3, at_length=8)
    every_step(lambda step: crash_and_return(tiers(), step, fault), steps=steps)


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.CRASH_HALF])
def test_nor_after_a_second_crash_while_recovering(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    pairs = list(itertools.product(steps_of_a_quiet_run(in_memory)[::16], range(8)))
    for tried in stores.sample(range(len(pairs)), over_http=2, at_length=4):
        crash_twice(tiers(), pairs[tried], fault)


@pytest.mark.parametrize("fault", CRASHES)
def test_nor_where_the_next_batch_after_the_crash_is_another(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    steps = stores.sample(steps_of_a_quiet_run(in_memory)[::3], over_http=2, at_length=4)
    every_step(lambda step: crash_and_send_others(tiers(), step, fault), steps=steps)


@pytest.mark.parametrize("fault", FAILURES)
def test_a_failure_at_any_request_is_repaired_by_the_same_process(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    steps = stores.sample(steps_of_a_quiet_run(in_memory)[::3], over_http=2, at_length=4)
    every_step(lambda step: fail_and_go_on(tiers(), step, fault), steps=steps)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_destroyed_queue_is_wholly_there_or_not_at_all_after_a_crash(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    steps = stores.sample(steps_of_destroying(in_memory), over_http=2, at_length=4)
    every_step(lambda step: crash_in_destroying(tiers(), step, fault), steps=steps)
