"""Uploads that fail or are late: what is kept, what is tried again, and which queues go on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier, a_tier
from tieredstore.access import queue_upload, upkeep
from tieredstore.access.queue_upload import DAMAGED_MS, STOPPED_QUEUE
from tieredstore.access.upkeep import Retention
from tieredstore.driver.metadata import Change
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import BackendUnavailableError, MetadataError
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
    assert tier.dispatcher.needed_from() is None  # the local retention may end the wait
    store.missing.clear()
    assert tier.dispatch(force=True)
    assert tier.is_sound
    assert index.offsets() == list(range(10))
    tier.check()


def a_tier_before_damage(
    root: Path, *damaged: int
) -> tuple[ListMessageStore, Tier, RecordingIndex]:
    """Ten messages, of which those at the damaged offsets cannot be read."""
    store, tier, index = a_tier(root, group_commit_count=4)
    store.fill(10)
    store.damaged |= {(TOPIC, 0, offset) for offset in damaged}
    assert not tier.dispatch(force=True)
    assert tier.file().commit_offset == damaged[0]
    return store, tier, index


def test_the_local_retention_leads_out_of_a_damaged_record_and_keeps_what_is_behind(
    tmp_path: Path,
) -> None:
    store, tier, _ = a_tier_before_damage(tmp_path, 4)
    behind = store.read_range(*KEY, 5, count_max=1, bytes_max=1)
    assert tier.dispatcher.needed_from() == behind.log_offsets[0]
    store.kept_from = 5
    tier.dispatch(force=True)
    assert tier.file().commit_offset == 10
    assert tier.dispatcher.health().lost == {KEY: 1}


def test_the_upload_goes_on_behind_damage_that_nobody_has_mended_for_a_day(tmp_path: Path) -> None:
    _, tier, index = a_tier_before_damage(tmp_path, 4, 5)
    tier.later(DAMAGED_MS - 1)
    assert not tier.dispatch(force=True)
    assert "damaged" in tier.dispatcher.health().failing[KEY]
    tier.later(1)
    assert tier.dispatch(force=True)
    assert tier.file().commit_offset == 10
    assert index.offsets() == [*range(4), *range(6, 10)]
    assert tier.dispatcher.health().lost == {KEY: 2}
    assert tier.dispatcher.needed_from() is None


def test_what_is_brought_back_within_a_day_is_uploaded(tmp_path: Path) -> None:
    store, tier, index = a_tier_before_damage(tmp_path, 4)
    tier.later(DAMAGED_MS - 1)
    assert not tier.dispatch(force=True)
    store.damaged.clear()
    assert tier.dispatch(force=True)
    assert index.offsets() == list(range(10))
    assert tier.is_sound


def test_nothing_is_needed_of_a_queue_that_is_damaged_to_its_end(tmp_path: Path) -> None:
    store, tier, _ = a_tier_before_damage(tmp_path, *range(4, 10))
    tier.later(DAMAGED_MS)
    assert not tier.dispatch(force=True)
    assert tier.file().commit_offset == 4
    assert tier.dispatcher.needed_from() is None
    store.fill(1)
    assert tier.dispatcher.needed_from() is not None


def test_what_a_queue_needs_that_recovers_just_now_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local store asks from a thread of its own."""
    store, tier, _ = a_tier(tmp_path)
    store.fill(1)
    assert tier.dispatch(force=True)
    store.fill(1)
    file = tier.file()
    file.problem = "it seems damaged"

    def recovers(_files: FlatFileStore, _key: QueueKey) -> bool:
        file.problem = None
        return False

    monkeypatch.setattr(FlatFileStore, "may_recover", recovers)
    assert tier.dispatcher.needed_from() is not None


def test_a_search_behind_much_damage_goes_on_at_the_next_look_and_all_is_kept_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_upload, "SEARCHED_MAX", 2)
    store, tier, _ = a_tier_before_damage(tmp_path, *range(4, 9))
    behind = store.read_range(*KEY, 9, count_max=1, bytes_max=1)
    needed = [tier.dispatcher.needed_from() for _ in range(4)]
    assert needed[0] == 0
    assert needed[-1] == behind.log_offsets[0]
    tier.later(DAMAGED_MS)
    while not tier.dispatch(force=True):
        pass
    assert tier.file().commit_offset == 10


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
    assert tier.dispatcher.budget.used_bytes == 0  # only an offset is kept
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


# Rows that the catalogue refuses first and gets later bring nothing back that was deleted meanwhile


HOURS_MS = 3_600_000


def a_retention(tier: Tier) -> Retention:
    return Retention(
        tier.files,
        tier.dispatcher,
        forget=lambda key: None,
        metadata=tier.metadata,
        config=tier.config,
        clock=tier.runtime.clock,
    )


def refused_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ListMessageStore, Tier]:
    """Old messages are uploaded, but the catalogue has refused the rows of the second batch."""
    store, tier, _ = a_tier(root, group_commit_enabled=False)
    store.fill(10)
    tier.dispatch(force=True)
    store.fill(10)
    tier.later(80 * HOURS_MS)

    def refuse(changes: Iterable[Change]) -> None:
        raise MetadataError("catalogue", "full")

    with monkeypatch.context() as patch:
        patch.setattr(tier.metadata, "apply", refuse)
        assert not tier.dispatch(force=True)
    return store, tier


def assert_rows_have_bytes(tier: Tier) -> None:
    held = {(each.path, each.type, each.base): each.size for each in tier.provider.list("")}
    for row in tier.metadata.segments():
        assert held.get((row.path, row.type, row.base_offset), 0) == row.size


def test_a_late_row_brings_no_dropped_segment_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tier = refused_rows(tmp_path, monkeypatch)
    a_retention(tier).step()
    assert tier.span() == (20, 20)
    assert tier.dispatch(force=True)
    assert_rows_have_bytes(tier)
    store.fill(3)
    assert tier.dispatch(force=True)
    assert_rows_have_bytes(tier)
    tier = tier.reopened()
    assert (tier.span(), tier.file().problem) == ((20, 23), None)
    tier.check()


def test_a_late_row_says_how_long_the_segment_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tier = refused_rows(tmp_path, monkeypatch)
    assert tier.dispatch(force=True)
    assert_rows_have_bytes(tier)
    assert QueueKey(*KEY) in [file.key for file in tier.files.files()]
    tier = tier.reopened()
    assert tier.span() == (0, 20)
    tier.check()


# A queue that could not be reached at first is recovered by one thread that claims it


LOST = QueueKey(KEY.topic, 1)
HOUR_MS = 3_600_000


class AskedFirst(ProviderWrapper):
    """A backend that calls `before_size` before it answers the size of a segment of one queue."""

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.before_size: Callable[[], None] = lambda: None

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return AskedSegment(segment, self)


class AskedSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, owner: AskedFirst) -> None:
        super().__init__(inner)
        self._owner = owner

    def size(self) -> int:
        if self.queue_path.endswith("/1"):
            self._owner.before_size()
        return super().size()


def down() -> None:
    raise BackendUnavailableError("", "size", "down")


def half_open_tier(root: Path) -> tuple[Tier, AskedFirst]:
    """One of two queues could not be reached when the tier was opened; most of it is old."""
    runtime = Runtime.inline()
    store, provider = ListMessageStore.opened(runtime), AskedFirst(MemoryProvider(runtime), runtime)
    tier = Tier(
        root,
        store,
        runtime=runtime,
        provider=provider,
        group_commit_enabled=False,
        commit_log_segment_bytes=1000,
        consume_queue_segment_bytes=80,
    )
    store.fill(3)
    store.fill(20, key=LOST)
    assert tier.dispatch(force=True)
    tier.later(100 * HOUR_MS)
    store.fill(6, key=LOST)
    assert tier.dispatch(force=True)
    provider.before_size = down
    tier = tier.reopened()
    assert tier.files.is_out_of_reach(LOST)
    return tier, provider


def assert_as_catalogued(tier: Tier, file: FlatMessageFile) -> None:
    rows = {row.key for row in tier.metadata.segments(file.path)}
    assert {each.record.key for each in (*file.log.segments, *file.queue.segments)} == rows


def test_a_queue_is_recovered_while_nobody_expires_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "BUSY_SECONDS_MAX", 0.0)
    tier, provider = half_open_tier(tmp_path)
    expiry = Retention(
        tier.files,
        tier.dispatcher,
        forget=lambda key: None,
        metadata=tier.metadata,
        config=tier.config,
        clock=tier.runtime.clock,
    )
    provider.before_size = expiry.step
    assert tier.dispatch()
    file = tier.file(LOST)
    assert file.problem is None
    assert_as_catalogued(tier, file)
    provider.before_size = lambda: None
    expiry.step()
    assert not expiry.errors
    assert file.min_offset > 0
    assert_as_catalogued(tier, file)
    tier.check()


def test_a_queue_that_somebody_works_on_is_recovered_the_next_time(tmp_path: Path) -> None:
    tier, provider = half_open_tier(tmp_path)
    provider.before_size = lambda: None
    with tier.dispatcher.alone_with(LOST) as alone:
        assert alone
        tier.dispatch()
        assert tier.files.is_out_of_reach(LOST)
    assert tier.dispatch()
    assert not tier.files.is_out_of_reach(LOST)
    assert tier.file(LOST).problem is None
    tier.check()


# Producers, the service, flushes and a backend that fails at times, all at once


FAULTS = (Fault.BEFORE, Fault.AFTER, Fault.HALF)
KEYS = [QueueKey("T", number) for number in range(12)]


@pytest.mark.parametrize("seed", range(3))
def test_in_the_end_every_message_is_in_the_tier_and_indexed(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    faults = Faults({step: dice.choice(FAULTS) for step in range(4_000) if dice.random() < 0.05})
    with Runtime.threads(dispatch_threads=3, fetch_threads=2) as runtime:
        store, index = ListMessageStore.opened(runtime), RecordingIndex()
        tier = Tier(
            tmp_path,
            store,
            runtime=runtime,
            provider=FaultyProvider(MemoryProvider(runtime), faults, runtime),
            index=index,
            group_commit_count=7,
            commit_log_segment_bytes=8_000,
            dispatch_buffer_bytes=20_000,
            dispatch_interval_ms=10,
        )
        tier.dispatcher.start()

        def produce(part: list[QueueKey]) -> None:
            for _ in range(10):
                for key in part:
                    store.fill(5, key=key)
                index.fails = not index.fails
                tier.flush(timeout=0.05)

        threads = [threading.Thread(target=produce, args=(KEYS[at::3],)) for at in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        index.fails = False
        faults.always = None
        faults._at.clear()
        assert tier.flush(timeout=240) or tier.flush(timeout=240)
        assert tier.dispatcher.shutdown(timeout=240)
        assert tier.dispatcher.budget.used_bytes == tier.dispatcher.budget.uploads == 0
        for key in KEYS:
            assert tier.span(key) == (0, 50)
            assert sorted(set(index.offsets(key))) == list(range(50))
        tier.check(*KEYS)
        tier.close()
