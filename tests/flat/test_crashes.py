"""The process dies at every step of the backend and of the catalogue, and comes back.

Over an object store it dies at any of its requests. Each process has its own client and provider
there, also the one that checks afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash_stores import Clients, Stores
from tests.every_step import every_step
from tests.flat.store_kit import KEY, LOG, PATH, QUEUE, Tier, append, content, unplaced
from tests.flat.tiers import run_of
from tests.providers.object_kit import StruckClient
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.samples import a_record

CRASHES = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_HALF]
FAILURES = [Fault.BEFORE, Fault.AFTER, Fault.HALF]
RECORDS = [a_record(number, body_bytes=number * 13 % 90) for number in range(40)]
MODEL = {number: unplaced(record) for number, record in enumerate(RECORDS)}
FIRST = 5  # the first queue offset in the tier


def a_tier() -> Tier:
    return Tier(log_bytes=1500, queue_units=8, commit_log_rolling_min_bytes=1)


def upload(store: FlatFileStore, acknowledged: list[int], *, upto: int = len(RECORDS)) -> None:
    """Upload like a dispatcher: go on where the tier ends, in batches, and roll now and then."""
    file = store.create(*KEY)
    assert file.problem is None, file.problem
    file.start_at(FIRST)
    while file.append_offset < upto:
        first = file.append_offset
        batch = RECORDS[first : min(upto, first + 5)]
        file.append(run_of(first, batch))
        assert file.commit()
        acknowledged.append(file.commit_offset)
        if file.commit_offset % 3 == 0:
            file.log.roll()


def crash_and_return(tier: Tier, step: int, fault: Fault) -> bool:
    """One crash, then a whole upload by a new process; return False if the crash came too late."""
    acknowledged = [FIRST]
    faults = Faults({step: fault})
    with suppress(SimulatedCrash):
        upload(tier.open(faults), acknowledged)
    check_reopened(tier, acknowledged[-1])
    upload(tier.open(), acknowledged)
    check_whole(tier)
    return faults.crashed


def check_reopened(tier: Tier, acknowledged: int) -> None:
    """Check that a reader and then a writer find all acknowledged messages, and no wrong ones."""
    for read_only in (True, False):
        file = tier.open(read_only=read_only).get(KEY)
        if file is None or not file.is_started:
            assert acknowledged == FIRST
            continue
        assert file.problem is None, file.problem
        found = content(file)
        assert file.commit_offset >= acknowledged
        assert found == {n: MODEL[n] for n in range(FIRST, file.commit_offset)}
    check_catalogue(tier)


def check_catalogue(tier: Tier) -> None:
    """The catalogue never names bytes that are not there, and segments are adjacent."""
    for kind in (LOG, QUEUE):
        held = tier.held(kind)
        rows = tier.rows(kind)
        for row in rows:
            assert row.size <= len(held.get(row.base_offset, b""))
        for row, following in itertools.pairwise(rows):
            assert row.end_offset == following.base_offset
        assert set(held) <= {row.base_offset for row in rows}, "bytes that nobody names"


def check_whole(tier: Tier) -> None:
    file = tier.open(read_only=True).get(KEY)
    assert file is not None
    assert file.problem is None
    assert content(file) == {n: MODEL[n] for n in range(FIRST, len(RECORDS))}
    assert file.queue.commit_offset == 20 * len(RECORDS)
    check_catalogue(tier)


def steps_of_a_quiet_run(tiers: Callable[[], Tier]) -> range:
    faults = Faults()
    tier = tiers()
    upload(tier.open(faults), [])
    check_whole(tier)
    assert len(tier.rows(LOG)) > 4
    assert len(tier.rows(QUEUE)) > 4
    return range(faults.steps)


@pytest.mark.parametrize("fault", CRASHES)
def test_after_a_crash_at_any_step_nothing_acknowledged_is_lost(fault: Fault) -> None:
    every_step(lambda step: crash_and_return(a_tier(), step, fault))


def crash_twice(tier: Tier, steps: Sequence[int], fault: Fault) -> None:
    acknowledged = [FIRST]
    for at in steps:
        try:
            upload(tier.open(Faults({at: fault})), acknowledged)
        except SimulatedCrash:
            check_reopened(tier, acknowledged[-1])
    upload(tier.open(), acknowledged)
    check_whole(tier)


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.CRASH_HALF])
def test_nor_after_a_second_crash_while_recovering(fault: Fault) -> None:
    for step in steps_of_a_quiet_run(a_tier)[::3]:
        for second in range(8):
            crash_twice(a_tier(), [step, second], fault)


def crash_and_send_others(tier: Tier, step: int, fault: Fault) -> None:
    acknowledged = [FIRST]
    with suppress(SimulatedCrash):
        upload(tier.open(Faults({step: fault})), acknowledged)
    file = tier.file(start=FIRST)
    kept = content(file)
    begin = file.commit_offset + 2
    file.skip_to(begin)
    others = [a_record(n, body_bytes=500) for n in range(begin, begin + 4)]
    append(file, others)
    expected = {begin + n: unplaced(record) for n, record in enumerate(others)}
    for again in (file, tier.file()):
        assert again.problem is None
        assert content(again) == kept | expected, (step, fault)
    for row in (*tier.rows(LOG), *tier.rows(QUEUE)):
        assert row.size <= len(tier.held(row.type).get(row.base_offset, b""))


@pytest.mark.parametrize("fault", CRASHES)
def test_nor_where_the_next_batch_after_the_crash_is_another(fault: Fault) -> None:
    """The local store has lost the messages of the crashed upload: the tier goes on with others."""
    every_step(
        lambda step: crash_and_send_others(a_tier(), step, fault),
        steps=steps_of_a_quiet_run(a_tier),
    )


@pytest.mark.parametrize("fault", FAILURES)
def test_a_failure_at_any_step_is_repaired_by_the_same_process(fault: Fault) -> None:
    every_step(
        lambda step: fail_and_go_on(a_tier(), step, fault), steps=steps_of_a_quiet_run(a_tier)
    )


def fail_and_go_on(tier: Tier, step: int, fault: Fault) -> None:
    file = persistently(tier.open(Faults({step: fault})))
    assert content(file) == {n: MODEL[n] for n in range(FIRST, len(RECORDS))}
    check_whole(tier)


def persistently(store: FlatFileStore) -> FlatMessageFile:
    """Upload everything, trying once more after an error, as a dispatcher does."""
    with suppress(TieredStoreError):
        upload(store, [])
    file = store.create(*KEY)
    if file.waiting_bytes:
        assert file.commit()
    upload(store, [])
    return file


@pytest.fixture
def posix_tier(tmp_path: Path) -> Iterator[Tier]:
    runtime = Runtime.inline()
    with PosixProvider(tmp_path, "cluster", runtime) as provider:
        yield Tier(
            log_bytes=1500,
            queue_units=8,
            provider=provider,
            commit_log_rolling_min_bytes=1,
        )


@pytest.mark.parametrize("step", range(0, 60, 7))
def test_files_survive_it_as_well(posix_tier: Tier, step: int) -> None:
    assert crash_and_return(posix_tier, step, Fault.CRASH_HALF)


def steps_of_destroying(tiers: Callable[[], Tier]) -> range:
    tier = tiers()
    upload(tier.open(), [])
    faults = Faults()
    store = tier.open(faults)
    before = faults.steps
    store.destroy(KEY)
    return range(before, faults.steps)


def crash_in_destroying(tier: Tier, step: int, fault: Fault) -> None:
    upload(tier.open(), [])
    with pytest.raises(SimulatedCrash):
        tier.open(Faults({step: fault})).destroy(KEY)
    store = tier.open()
    if store.get(KEY) is not None:
        check_whole(tier)
    else:
        assert not tier.rows(LOG)
        assert not tier.rows(QUEUE)
        assert not list(tier.inner.list(PATH)), (step, fault)
        upload(store, [])
        check_whole(tier)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_destroyed_queue_is_wholly_there_or_not_at_all_after_a_crash(fault: Fault) -> None:
    every_step(
        lambda step: crash_in_destroying(a_tier(), step, fault), steps=steps_of_destroying(a_tier)
    )


Tiers = Callable[[], Tier]


def process(clients: Clients, runtime: Runtime, faults: Faults) -> ObjectProvider:
    """A provider that tries nothing again, and never relies on an earlier listing."""
    client = StruckClient(clients(), faults)
    return ObjectProvider(client, "c", runtime, listing_ms=0, retry=RetryPolicy(retries_max=0))


class ObjectTier(Tier):
    """Faults strike the requests of a process; `inner` is a process that only reads."""

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
    """A tier to count requests: they are as many as over HTTP, but take no time."""
    return ObjectTier(Stores("memory").new())


def from_the_middle(steps: Sequence[int]) -> Sequence[int]:
    """The steps from the middle on: if only one is tried, much has been written by then."""
    middle = len(steps) // 2
    return [*steps[middle:], *steps[:middle]]


@pytest.fixture
def tiers(stores: Stores) -> Tiers:
    return lambda: ObjectTier(stores.new())


@pytest.mark.parametrize("fault", CRASHES)
def test_after_a_crash_at_any_request_nothing_acknowledged_is_lost(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    steps = stores.sample(
        from_the_middle(steps_of_a_quiet_run(in_memory)), over_http=1, at_length=8
    )
    every_step(lambda step: crash_and_return(tiers(), step, fault), steps=steps)


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.CRASH_HALF])
def test_nor_after_a_second_crash_while_recovering_from_one_at_a_request(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    pairs = list(itertools.product(steps_of_a_quiet_run(in_memory)[::16], range(8)))
    for tried in stores.sample(from_the_middle(range(len(pairs))), over_http=1, at_length=4):
        crash_twice(tiers(), pairs[tried], fault)


@pytest.mark.parametrize("fault", CRASHES)
def test_nor_where_the_next_batch_after_the_crash_at_a_request_is_another(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    steps = stores.sample(
        from_the_middle(steps_of_a_quiet_run(in_memory)[::3]), over_http=1, at_length=4
    )
    every_step(lambda step: crash_and_send_others(tiers(), step, fault), steps=steps)


@pytest.mark.parametrize("fault", FAILURES)
def test_a_failure_at_any_request_is_repaired_by_the_same_process(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    steps = stores.sample(
        from_the_middle(steps_of_a_quiet_run(in_memory)[::3]), over_http=1, at_length=4
    )
    every_step(lambda step: fail_and_go_on(tiers(), step, fault), steps=steps)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_destroyed_queue_is_wholly_there_or_not_at_all_after_a_crash_at_any_request(
    stores: Stores, tiers: Tiers, fault: Fault
) -> None:
    steps = stores.sample(from_the_middle(steps_of_destroying(in_memory)), over_http=1, at_length=4)
    every_step(lambda step: crash_in_destroying(tiers(), step, fault), steps=steps)
