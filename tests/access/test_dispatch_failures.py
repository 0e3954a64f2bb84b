"""Uploads that fail: what is kept, what is tried again, and who is not held up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier, a_tier
from tieredstore.access.queue_upload import STOPPED_QUEUE
from tieredstore.driver.metadata import Change
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC

GOOD = QueueKey("Good", 0)


def a_faulty_tier(
    root: Path, faults: Faults, **settings: object
) -> tuple[ListMessageStore, Tier, RecordingIndex]:
    runtime = Runtime.inline()
    store, index = ListMessageStore.opened(runtime), RecordingIndex()
    provider = FaultyProvider(MemoryProvider(runtime), faults, runtime)
    tier = Tier(
        root,
        store,
        runtime=runtime,
        provider=provider,
        index=index,
        **settings,  # type: ignore[arg-type]
    )
    return store, tier, index


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.HALF])
@pytest.mark.parametrize("step", range(6))
def test_a_failed_commit_is_repaired_and_its_index_work_kept(
    tmp_path: Path, step: int, fault: Fault
) -> None:
    store, tier, index = a_faulty_tier(tmp_path, Faults({step: fault}))
    store.fill(20)
    tier.dispatch(force=True)
    store.fill(5)
    assert tier.dispatch(force=True) or tier.dispatch(force=True)
    assert tier.span() == (0, 25)
    assert index.offsets() == list(range(25))
    assert tier.is_sound
    assert tier.dispatcher.budget.used_bytes == 0
    tier.check()


def test_a_failing_backend_is_named_by_health_until_it_is_well(tmp_path: Path) -> None:
    faults = Faults()
    store, tier, index = a_faulty_tier(tmp_path, faults)
    store.fill(3)
    tier.dispatch(force=True)
    faults.always = Fault.BEFORE
    store.fill(3)
    assert not tier.dispatch(force=True)
    health = tier.dispatcher.health()
    assert "fails before it has an effect" in health.failing[KEY]
    assert health.buffered_bytes > 0
    assert health.uploads == 0
    faults.always = None
    assert tier.dispatch(force=True)
    assert tier.is_sound
    assert index.offsets() == list(range(6))


def test_a_broken_queue_beside_a_healthy_one_stops_only_itself(tmp_path: Path) -> None:
    store, tier, index = a_tier(tmp_path)
    store.fill(10)
    store.fill(10, key=GOOD)
    store.damaged.add((TOPIC, 0, 4))
    store.damaged.add((TOPIC, 0, 0))
    assert not tier.dispatch(force=True)
    assert tier.span(GOOD) == (0, 10)
    assert "damaged" in tier.dispatcher.health().failing[KEY]
    store.damaged.clear()
    assert tier.dispatch(force=True)
    assert index.offsets() == list(range(10))


@pytest.mark.parametrize("missing", [0, 4, 9])
def test_a_missing_unit_holds_up_what_lies_behind_it_and_nobody_else(
    tmp_path: Path, missing: int
) -> None:
    store, tier, index = a_tier(tmp_path, pending_count_max=4)  # one upload at a time
    store.fill(10)
    store.fill(10, key=GOOD)
    store.missing.add((TOPIC, 0, missing))
    for _ in range(3):
        assert not tier.dispatch(force=True)
        assert (tier.dispatcher.budget.used_bytes, tier.dispatcher.budget.uploads) == (0, 0)
    assert tier.file().commit_offset == missing
    assert index.offsets() == list(range(missing))
    assert tier.span(GOOD) == (0, 10)
    assert f"no message {missing}" in tier.dispatcher.health().failing[KEY]
    assert tier.dispatcher.needed_from() is None  # the local retention leads out of it
    store.missing.clear()
    assert tier.dispatch(force=True)
    assert tier.is_sound
    assert index.offsets() == list(range(10))
    tier.check()


def test_the_local_retention_leads_out_of_a_damaged_record(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, group_commit_count=4)
    store.fill(10)
    store.damaged.add((TOPIC, 0, 4))
    tier.dispatch(force=True)
    assert tier.file().commit_offset == 4
    assert tier.dispatcher.needed_from() is None
    store.kept_from = 6
    tier.dispatch(force=True)
    assert tier.file().commit_offset == 10
    assert tier.dispatcher.health().lost == {KEY: 2}


def test_failing_queues_give_their_memory_to_healthy_ones(tmp_path: Path) -> None:
    faults = Faults()
    store, tier, index = a_faulty_tier(tmp_path, faults, dispatch_buffer_bytes=8_000)
    broken = [QueueKey("Broken", number) for number in range(5)]
    for key in broken:
        store.fill(1, key=key)
    tier.dispatch(force=True)
    faults.always = Fault.BEFORE
    for key in broken:
        store.fill(7, key=key)
    assert not tier.dispatch(force=True)
    assert tier.dispatcher.budget.used_bytes > 0
    faults.always = None
    store.fill(20, key=GOOD)
    assert tier.dispatch(force=True)
    assert tier.span(GOOD) == (0, 20)
    assert index.offsets(GOOD) == list(range(20))
    for key in broken:
        assert index.offsets(key) == list(range(8))
    tier.check()


def test_an_index_that_fails_gets_everything_later_and_before_the_next_batch(
    tmp_path: Path,
) -> None:
    store, tier, index = a_tier(tmp_path)
    index.fails = True
    store.fill(10)
    assert not tier.dispatch(force=True)
    assert tier.span() == (0, 10)
    assert tier.dispatcher.health().not_indexed == {KEY: 10}
    assert tier.dispatcher.budget.used_bytes == 0  # an offset is all that is kept
    store.fill(10)
    assert not tier.dispatch(force=True)
    assert tier.span() == (0, 10)
    index.fails = False
    assert tier.dispatch(force=True)
    assert tier.span() == (0, 20)
    assert index.offsets() == list(range(20))
    assert tier.is_sound


def test_the_index_catches_up_over_a_gap(tmp_path: Path) -> None:
    store, tier, index = a_tier(tmp_path)
    store.fill(10)
    tier.dispatch(force=True)
    store.fill(10)
    store.kept_from = 15
    tier.dispatch(force=True)
    index.puts = index.puts[:3]
    tier = tier.reopened()
    assert tier.dispatch(force=True)
    assert index.offsets() == [*range(10), *range(15, 20)]


def test_a_commit_of_somebody_else_holds_the_queue_up_and_loses_nothing(tmp_path: Path) -> None:
    store, tier, index = a_tier(tmp_path)
    store.fill(1)
    tier.dispatch(force=True)
    file = tier.file()
    begin = file.begin_commit
    file.begin_commit = lambda: None  # type: ignore[method-assign]
    store.fill(99)
    assert not tier.dispatch(force=True)
    assert (file.commit_offset, file.append_offset) == (1, 100)
    assert index.offsets() == [0]
    file.begin_commit = begin  # type: ignore[method-assign]
    assert file.commit()
    assert tier.dispatch(force=True)
    assert index.offsets() == list(range(100))


def test_nothing_is_kept_of_a_queue_that_is_destroyed(tmp_path: Path) -> None:
    faults = Faults()
    store, tier, _ = a_faulty_tier(tmp_path, faults)
    store.fill(10)
    faults.always = Fault.BEFORE
    tier.dispatch(force=True)
    faults.always = None
    assert tier.dispatcher.budget.used_bytes > 0
    store.delete_topics([TOPIC])
    tier.files.delete_topics([TOPIC])
    assert tier.dispatch(force=True)
    assert tier.dispatcher.budget.used_bytes == 0
    assert tier.is_sound


def test_a_queue_made_again_begins_again(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(10)
    tier.dispatch(force=True)
    store.delete_topics([TOPIC])
    tier.files.delete_topics([TOPIC])
    store.fill(3)
    assert tier.dispatch(force=True)
    assert tier.span() == (0, 3)
    tier.check()


def test_the_note_of_a_stopped_queue_dies_with_it(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(10)
    tier.dispatch(force=True)
    store.cut_to(KEY, 5)
    tier.dispatch(force=True)
    assert tier.metadata.notes(STOPPED_QUEUE)
    store.delete_topics([TOPIC])
    tier.files.delete_topics([TOPIC])
    store.fill(3)
    assert tier.dispatch(force=True)
    assert not tier.metadata.notes(STOPPED_QUEUE)
    assert tier.span() == (0, 3)


def test_rows_that_could_not_be_written_come_again_before_the_index(tmp_path: Path) -> None:
    store, tier, index = a_tier(tmp_path)
    store.fill(5)
    tier.dispatch(force=True)
    apply = tier.metadata.apply

    def fail(changes: Iterable[Change]) -> None:
        raise MetadataError("catalogue", "the disk is full")

    tier.metadata.apply = fail  # type: ignore[method-assign]
    store.fill(5)
    assert not tier.dispatch(force=True)
    assert "the disk is full" in tier.dispatcher.health().failing[KEY]
    assert index.offsets() == list(range(5))
    tier.metadata.apply = apply  # type: ignore[method-assign]
    assert tier.dispatch(force=True)
    assert index.offsets() == list(range(10))
    (row,) = tier.metadata.segments(f"broker-a/{TOPIC}/0")[1:]
    assert row.size == 10 * 20
