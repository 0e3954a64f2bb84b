"""The process dies at each step of an upload: the next one goes on, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.dispatch_kit import RecordingIndex, Tier
from tests.every_step import every_step
from tests.s3.s3_clients import CLIENTS
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider, SimulatedCrash
from tieredstore.testing.message_store_contract import ListMessageStore

KEYS = [QueueKey("A", 0), QueueKey("B", 0), QueueKey("B", 1)]
SETTINGS: dict[str, object] = {
    "commit_log_segment_bytes": 3_000,
    "consume_queue_segment_bytes": 240,
    "group_commit_count": 5,
}


def upload(store: ListMessageStore, tier: Tier) -> None:
    """Grow three queues and upload them in a few rounds, past the ends of segments."""
    for turn in range(6):
        for number, key in enumerate(KEYS):
            missing = (turn + 1) * (3 + number) - (store.max_offset(*key) or 0)
            store.fill(max(0, missing), key=key)
        tier.dispatch(force=True)


def lives(root: Path, faults: Faults) -> None:
    """A first life that the faults may end, and a second one without faults."""
    root.mkdir(exist_ok=True)
    runtime = Runtime.inline()
    store, index = ListMessageStore.opened(runtime), RecordingIndex()
    backend = MemoryProvider(runtime)
    faulty = FaultyProvider(backend, faults, runtime)
    tier = Tier(root, store, runtime=runtime, provider=faulty, index=index, **SETTINGS)  # type: ignore[arg-type]
    try:
        upload(store, tier)
    except SimulatedCrash:
        pass
    tier = tier.reopened(provider=backend)
    upload(store, tier)
    assert tier.dispatch(force=True)
    assert tier.is_sound
    for key in KEYS:
        end = store.max_offset(*key)
        assert end is not None
        assert tier.span(key) == (0, end)
        assert index.offsets(key)[:1] == [0]
        assert set(index.offsets(key)) == set(range(end))
        assert_indexed_where_it_lies(tier, index, key)
    tier.check(*KEYS)
    tier.close()


def assert_indexed_where_it_lies(tier: Tier, index: RecordingIndex, key: QueueKey) -> None:
    units = [tier.file(key).units(at, 1) for at in range(tier.span(key)[1])]
    places = [int(unit.log_offsets[0]) for unit in units]
    assert {(at, place) for found, at, place in index.puts if found == key} == set(
        enumerate(places)
    )


def steps(root: Path) -> int:
    faults = Faults()
    lives(root, faults)
    return faults.steps


def test_without_a_crash_there_are_as_many_steps_as_are_tried(tmp_path: Path) -> None:
    assert 45 < steps(tmp_path) < 72


def part_of(part: int, steps: int, backend: str) -> range:
    """The steps of this part; over HTTP, where a step takes a second, only one of them."""
    return range(part * steps, part * steps + steps)[:: steps if backend in CLIENTS else 1]


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_HALF])
@pytest.mark.parametrize("part", range(8))
def test_after_a_crash_at_any_step_the_tier_is_whole(
    tmp_path: Path, backend: str, fault: Fault, part: int
) -> None:
    every_step(
        lambda step: lives(tmp_path / str(step), Faults({step: fault})),
        steps=part_of(part, 9, backend),
    )


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.HALF])
@pytest.mark.parametrize("part", range(4))
def test_after_a_failure_at_any_step_too(
    tmp_path: Path, backend: str, fault: Fault, part: int
) -> None:
    every_step(
        lambda step: lives(tmp_path / str(step), Faults({step: fault})),
        steps=part_of(part, 18, backend),
    )
