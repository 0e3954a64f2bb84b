"""The table of queues: loading, creating, destroying; broken queues do not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flat.store_kit import KEY, LOG, PATH, QUEUE, Tier, append, content
from tests.flat.tiers import FaultyCatalogue, numbered
from tieredstore.driver.metadata import LINEAGE, Change, DeleteTopic, Put
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import InlinePool, ManualClock, Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.append_file import DELETION_NOTE, UNTOLD_SECONDS_MAX
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.recovery import UNCONFIRMED_NOTE
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    MetadataError,
    SegmentCorruptError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.values import QueueKey, QueueRecord, SegmentRecord, SegmentType, TopicRecord
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import TOPIC


def test_an_empty_catalogue_has_no_queues() -> None:
    store = Tier().open()
    assert store.files() == []
    assert store.get(KEY) is None


def test_queues_survive_a_new_start_and_destroyed_ones_do_not() -> None:
    tier = Tier()
    store = tier.open()
    for queue_id in range(4):
        file = store.create("TopicTest", queue_id)
        file.start_at(0)
        append(file, numbered(0, 2))
    store = tier.open()
    assert {file.key.queue_id for file in store.files()} == {0, 1, 2, 3}
    for queue_id in (1, 3):
        store.destroy(QueueKey("TopicTest", queue_id))
    assert {file.key.queue_id for file in store.files()} == {0, 2}
    assert {file.key.queue_id for file in tier.open().files()} == {0, 2}
    for queue_id in (0, 2):
        store.destroy(QueueKey("TopicTest", queue_id))
    assert tier.open().files() == []
    assert list(tier.inner.list()) == []
    assert tier.catalogue().topic("TopicTest") is not None  # so its number is never reused


def test_destroying_a_queue_that_is_not_there_does_nothing() -> None:
    Tier().open().destroy(KEY)


def test_the_catalogue_has_the_queue_before_anything_is_written() -> None:
    tier = Tier()
    tier.open().create("TopicTest", 3)
    (row,) = tier.catalogue().queues()
    assert (row.broker_name, row.topic, row.queue_id) == ("broker-a", "TopicTest", 3)
    assert (row.min_offset, row.max_offset) == (-1, -1)
    topic = tier.catalogue().topic("TopicTest")
    assert topic is not None
    assert tier.open().create("TopicTest", 3).topic_id == topic.topic_id


def test_topics_are_deleted_with_their_queues() -> None:
    tier = Tier()
    store = tier.open()
    for topic in ("one", "two", "three"):
        for queue_id in (0, 1):
            file = store.create(topic, queue_id)
            file.start_at(0)
            append(file, numbered(0, 1))
    tier.catalogue().put(TopicRecord(topic="without queues", topic_id=99))
    gone = ["one", "three", "without queues", "never heard of"]
    assert store.delete_topics(gone) == 3
    assert {file.key.topic for file in store.files()} == {"two"}
    assert [row.topic for row in tier.catalogue().topics()] == ["two"]
    assert {each.path for each in tier.inner.list()} == {"broker-a/two/0", "broker-a/two/1"}


class SeenAtOnce(FaultyCatalogue):
    """A catalogue whose changes somebody else looks at before its caller goes on."""

    look: Callable[[], object] = staticmethod(lambda: None)

    def apply(self, changes: Iterable[Change]) -> None:
        super().apply(changes)
        self.look()

    def stage(self, changes: Iterable[Change]) -> None:
        super().stage(changes)
        self.look()


@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "deleted"])
def test_what_readers_still_find_is_not_deleted_beside_them(is_expired: bool) -> None:
    tier = Tier(log_bytes=1, queue_units=1)
    catalogue = SeenAtOnce(tier.tables, Faults())
    store = FlatFileStore(
        tier.config, provider=tier.inner, metadata=catalogue, runtime=tier.runtime
    )
    store.load()
    file = store.create(*KEY)
    file.start_at(0)
    append(file, numbered(0, 3))

    def delete_and_read() -> None:
        store.delete_pending(is_stopped=lambda: False)
        if store.get(KEY) is not None:
            content(file)

    catalogue.look = delete_and_read
    if is_expired:
        file.queue.drop(file.queue.segments[:1])
        file.log.drop(file.log.segments[:1])
        assert list(content(file)) == [1, 2]
    else:
        store.delete_topics([TOPIC])
    assert not catalogue.notes(DELETION_NOTE)


class LandsLater(FaultyCatalogue):
    """A catalogue whose first deletion fails, but takes effect before the next change."""

    late: tuple[Change, ...] = ()

    def apply(self, changes: Iterable[Change]) -> None:
        changes, late = tuple(changes), self.late
        self.late = ()
        if late:
            super().apply(late)
        elif any(isinstance(each, DeleteTopic) for each in changes):
            self.late = changes
            raise BackendUnavailableError("the log", "append", "nobody knows")
        super().apply(changes)


@pytest.mark.parametrize("is_asked_again", [True, False])
def test_a_queue_whose_deletion_failed_and_lands_later_takes_nothing(is_asked_again: bool) -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    store = FlatFileStore(
        tier.config,
        provider=tier.backend(Faults()),
        metadata=LandsLater(tier.tables, Faults()),
        runtime=tier.runtime,
    )
    store.load()
    (before,) = store.files()
    with pytest.raises(BackendUnavailableError, match="nobody knows"):
        store.delete_topics([TOPIC])
    with pytest.raises(StoreClosedError):
        append(before, numbered(3, 1))
    file = store.get(KEY)
    assert file is not None
    assert list(content(file)) == [0, 1, 2]  # readable until the deletion is known
    with pytest.raises(BackendRefusedError, match="nobody knows"):
        append(file, numbered(3, 1))
    if is_asked_again:
        assert store.delete_topics([TOPIC]) == 1
    else:
        assert store.retry_recovery() == 0
    assert store.files() == []
    assert not tier.rows(LOG)
    assert file.problem is not None  # the queue is not recovered, but gone
    file.problem = None
    with pytest.raises(StoreClosedError):
        append(file, numbered(3, 1))
    file = store.create(*KEY)
    file.start_at(0)
    append(file, numbered(0, 1))
    assert list(content(file)) == [0]


def test_what_a_queue_notes_after_a_deletion_that_lands_later_goes_with_it() -> None:
    tier = Tier()
    catalogue = LandsLater(tier.tables, Faults())
    store = FlatFileStore(
        tier.config, provider=tier.backend(Faults()), metadata=catalogue, runtime=tier.runtime
    )
    store.load()
    file = store.create(*KEY)
    with pytest.raises(BackendUnavailableError, match="nobody knows"):
        store.delete_topics([TOPIC])
    catalogue.stage([Put(file.log.record_of_new(0)), Put(file.queue.record_of_new(0))])
    assert store.retry_recovery() == 0
    assert store.files() == []
    assert not tier.rows(LOG)
    assert not tier.rows(QUEUE)


class MeetsWhoBegins(FaultyCatalogue):
    """A new queue notes its first segments while its topic is being deleted."""

    begin: Callable[[], None] = staticmethod(lambda: None)

    def apply(self, changes: Iterable[Change]) -> None:
        changes = tuple(changes)
        if any(isinstance(each, DeleteTopic) for each in changes):
            self.begin()
        super().apply(changes)


def test_a_queue_that_begins_while_its_topic_is_deleted_leaves_no_rows() -> None:
    tier = Tier()
    catalogue = MeetsWhoBegins(tier.tables, Faults())
    store = FlatFileStore(
        tier.config, provider=tier.backend(Faults()), metadata=catalogue, runtime=tier.runtime
    )
    store.load()
    file = store.create(*KEY)
    catalogue.begin = lambda: file.start_at(0)
    assert store.delete_topics([TOPIC]) == 1
    assert not tier.rows(LOG)
    assert not tier.rows(QUEUE)


def test_a_queue_that_was_destroyed_does_not_begin() -> None:
    tier = Tier()
    store = tier.open()
    file = store.create(*KEY)
    checked = file._check_writable
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        checked()
        if checks == 1:
            store.destroy(KEY)

    file._check_writable = check  # type: ignore[method-assign]
    with pytest.raises(StoreClosedError):
        file.start_at(0)
    assert not tier.rows(LOG)
    assert not tier.rows(QUEUE)


def test_a_queue_made_again_after_it_was_destroyed_begins_afresh() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    store = tier.open()
    store.destroy(KEY)
    file = store.create(*KEY)
    file.start_at(50)
    append(file, numbered(50, 1))
    assert list(content(file)) == [50]
    assert list(content(tier.file())) == [50]


def test_the_log_of_a_queue_made_again_goes_on_behind_the_one_that_was_given_up() -> None:
    """The key index still has its log offsets. A topic that is created again has another number
    there, and begins at 0.
    """
    tier = Tier()
    ends = [0]
    for _ in range(3):
        file = tier.open().create(*KEY)
        file.start_at(0)
        assert file.log.min_offset == ends[-1]
        append(file, numbered(0, 3))
        assert list(content(tier.file())) == [0, 1, 2]
        ends.append(file.log.commit_offset)
        tier.open().destroy(KEY)
    assert len({*ends}) == 4
    tier.open().delete_topics([TOPIC])
    file = tier.open().create(*KEY)
    file.start_at(0)
    assert file.log.min_offset == 0


def test_bytes_that_cannot_be_deleted_are_deleted_before_the_queue_is_made_again() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    faults = Faults()
    store = tier.open(faults)
    faults.always = Fault.BEFORE
    with pytest.raises(MetadataError):
        store.destroy(KEY)  # the catalogue fails too
    assert store.get(KEY) is not None
    faults.always = None
    for after in (1, 2):
        faults.strike(Fault.BEFORE, after=after)
    store.destroy(KEY)
    assert len(list(tier.inner.list())) == 2
    assert len(tier.catalogue().notes(DELETION_NOTE)) == 2
    faults.strike(Fault.BEFORE)
    with pytest.raises((BackendUnavailableError, MetadataError)):
        store.create(*KEY)
    file = store.create(*KEY)
    assert tier.catalogue().notes(DELETION_NOTE) == {}
    file.start_at(0)
    append(file, numbered(0, 1))
    assert list(content(file)) == [0]


def test_what_was_doomed_is_deleted_when_the_tier_is_opened() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    faults = Faults()
    store = tier.open(faults)
    for after in (1, 2):
        faults.strike(Fault.BEFORE, after=after)
    store.destroy(KEY)
    tier.open(read_only=True)
    assert len(list(tier.inner.list())) == 2
    tier.open()
    assert list(tier.inner.list()) == []
    assert tier.catalogue().notes(DELETION_NOTE) == {}


def test_readers_elsewhere_are_told_before_the_bytes_of_a_queue_go() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    told: list[tuple[int, int]] = []

    def publish() -> bool:
        told.append((len(tier.catalogue().queues()), len(list(tier.inner.list()))))
        return True

    tier.publish = publish
    store = tier.open()
    assert told == []  # nothing waits for deletion
    store.destroy(KEY)
    assert told == [(0, 2)]
    assert list(tier.inner.list()) == []
    assert store.delete_pending(is_stopped=lambda: False) == 0
    assert len(told) == 1


def test_what_is_marked_after_they_were_told_waits_for_the_next_time() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    told: list[int] = []

    def publish() -> bool:
        told.append(len(list(tier.inner.list())))
        if len(told) == 1:  # another queue's messages expire after the publication
            other.queue.drop(other.queue.segments, keep_bytes=True)
            other.log.drop(other.log.segments, keep_bytes=True)
        return True

    tier.publish = publish
    store = tier.open()
    other = store.create("Other", 0)
    other.start_at(0)
    append(other, numbered(0, 3))
    told.clear()
    store.destroy(KEY)
    assert told == [4]
    assert {found.path for found in tier.inner.list()} == {other.path}
    assert store.delete_pending(is_stopped=lambda: False) == 0
    assert told == [4, 2]
    assert list(tier.inner.list()) == []


def test_bytes_that_nobody_could_be_told_of_stay_for_a_while_and_not_for_ever() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    tier.publish = lambda: False
    store = tier.open()
    store.destroy(KEY)
    tier.clock.advance(UNTOLD_SECONDS_MAX * 1000 - 1)
    assert store.delete_pending(is_stopped=lambda: False) == 2
    with pytest.raises(BackendUnavailableError, match="an older queue is still there"):
        store.create(*KEY)
    assert len(list(tier.inner.list())) == 2
    tier.clock.advance(1)
    assert store.delete_pending(is_stopped=lambda: False) == 0
    assert list(tier.inner.list()) == []
    store.create(*KEY)


def test_a_name_comes_again_only_when_nobody_elsewhere_takes_it_for_doomed() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    marked: list[int] = []
    can_publish = True

    def publish() -> bool:
        marked.append(len(tier.catalogue().notes(DELETION_NOTE)))
        return can_publish

    tier.publish = publish
    store = tier.open()
    store.create("other", 0)
    assert marked == []
    tier.catalogue().put_note(LINEAGE, "broker-a", {"generation": 1})  # an earlier life's
    store = tier.open()
    store.create("other", 1)
    store.create("other", 2)
    assert marked == [0]
    store.destroy(KEY)
    assert list(tier.inner.list()) == []
    can_publish = False
    store.create("other", 3)
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match="an older queue is still published"):
            store.create(*KEY)
    can_publish = True
    store.create(*KEY)
    assert marked == [0, 2, 0, 0, 0]


def test_new_queues_wait_together_where_nothing_can_be_published() -> None:
    """Each waited for ten minutes of its own, one after the other."""
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    tier.catalogue().put_note(LINEAGE, "broker-a", {"generation": 1})  # an earlier life's
    tier.publish = lambda: False
    store = tier.open()
    with pytest.raises(BackendUnavailableError, match="an older queue is still published"):
        store.create("other", 0)
    tier.clock.advance(UNTOLD_SECONDS_MAX * 1000)
    for number in range(3):
        store.create("other", number)
    store.destroy(KEY)
    with pytest.raises(BackendUnavailableError, match="an older queue is still there"):
        store.create(*KEY)


def test_what_a_crash_left_to_be_deleted_is_told_to_readers_first() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 3))
    tier.publish = lambda: False
    tier.open().destroy(KEY)
    there: list[int] = []

    def publish() -> bool:
        there.append(len(list(tier.inner.list())))
        return True

    tier.publish = publish
    tier.open()
    assert there == [2]
    assert list(tier.inner.list()) == []


def test_loading_fails_where_the_catalogue_takes_nothing() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 2))
    row = tier.rows(QUEUE)[0]
    tier.catalogue().put(SegmentRecord(path=PATH, type=QUEUE, base_offset=0))
    assert row.size
    for step in range(50):  # reads come before the write to the catalogue
        try:
            tier.open(Faults({step: Fault.BEFORE}))
        except BackendUnavailableError:
            continue
        except MetadataError:
            break
        pytest.fail(f"it was loaded, though step {step} failed")
    assert step


def test_a_reader_sees_what_a_writer_has_done_since() -> None:
    tier = Tier(queue_units=4)
    file = tier.file()
    append(file, numbered(0, 2))
    reader = tier.open(read_only=True)
    seen = reader.get(KEY)
    assert seen is not None
    assert list(content(seen)) == [0, 1]
    append(file, numbered(2, 5))
    assert list(content(seen)) == [0, 1]
    reader.refresh()
    assert reader.get(KEY) is seen
    assert list(content(seen)) == list(range(7))
    tier.open().create("other", 0)
    tier.open().destroy(KEY)
    reader.refresh()
    assert [each.key.topic for each in reader.files()] == ["other"]


def test_a_reader_shows_a_topic_anew_that_was_deleted_and_made_again() -> None:
    tier = Tier(queue_units=4)
    append(tier.file(), numbered(0, 5))
    reader = tier.open(read_only=True)
    seen = reader.get(KEY)
    assert seen is not None
    first = seen.topic_id
    writer = tier.open()
    assert writer.delete_topics([KEY.topic]) == 1
    again = writer.create(*KEY)
    again.start_at(0)
    append(again, numbered(0, 3))
    reader.refresh()
    assert reader.get(KEY) is seen
    assert seen.topic_id == again.topic_id != first
    assert list(content(seen)) == [0, 1, 2]


def test_a_closed_store_says_so() -> None:
    tier = Tier()
    store = tier.open()
    store.close()
    store.close()
    for call in (store.load, store.refresh, lambda: store.create(*KEY)):
        with pytest.raises(StoreClosedError):
            call()


def test_the_queues_of_a_closed_store_take_nothing() -> None:
    tier = Tier()
    store = tier.open()
    file = store.create(*KEY)
    store.close()
    with pytest.raises(StoreClosedError):
        file.start_at(0)


def test_a_topic_that_the_provider_cannot_hold_is_refused_before_the_catalogue_names_it() -> None:
    class Refuses(ProviderWrapper):
        def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
            raise BackendRefusedError(path, "open", "a forbidden letter")

    tier = Tier()
    store = loaded_by(tier, Refuses(tier.inner, tier.runtime), tier.runtime)
    assert "this provider holds no topic of this name" in str(store.why_refused(KEY))
    with pytest.raises(BackendRefusedError, match="a forbidden letter"):
        store.create(*KEY)
    assert tier.catalogue().topic(TOPIC) is None


@pytest.mark.parametrize("index_enabled", [True, False])
def test_what_the_key_index_has_dropped_is_left_to_it(index_enabled: bool) -> None:
    tier = Tier(index_enabled=index_enabled)
    note = "broker-a/rmq_sys_INDEX/0/INDEX/0"
    tier.catalogue().put_note(DELETION_NOTE, note, 1)
    assert tier.open().delete_pending(is_stopped=lambda: False) == 0
    assert list(tier.catalogue().notes(DELETION_NOTE)) == [note] * index_enabled


@pytest.mark.parametrize("read_only", [True, False])
def test_a_topic_that_the_catalogue_has_lost_gets_a_number_from_a_writer(read_only: bool) -> None:
    tier = Tier()
    tier.catalogue().put(QueueRecord(broker_name="broker-a", topic=TOPIC, queue_id=0))
    (file,) = tier.open(read_only=read_only).files()
    topic = tier.catalogue().topic(TOPIC)
    assert (topic is None) is read_only
    assert file.topic_id == (-1 if topic is None else topic.topic_id)


def of_fifty_queues() -> Tier:
    tier = Tier()
    store = tier.open()
    for queue_id in range(50):
        file = store.create("TopicTest", queue_id)
        file.start_at(0)
        append(file, numbered(0, 1))
    return tier


def loaded_by(tier: Tier, provider: SegmentProvider, runtime: Runtime) -> FlatFileStore:
    store = FlatFileStore(
        tier.config, provider=provider, metadata=tier.catalogue(), runtime=runtime
    )
    store.load()
    return store


def test_many_queues_are_recovered_in_a_bounded_number_of_threads() -> None:
    tier = of_fifty_queues()
    used: set[int] = set()

    class Watched(ProviderWrapper):
        def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
            used.add(threading.get_ident())
            return super().open(path, type, base)

    with Runtime.threads(fetch_threads=4, dispatch_threads=1) as runtime:
        loaded = loaded_by(tier, Watched(tier.inner, runtime), runtime)
        assert len(loaded.files()) == 50
        assert all(file.commit_offset == 1 for file in loaded.files())
        assert 1 <= len(used) <= 4 + 1  # the caller measures how long a look takes


@pytest.mark.parametrize(("look_ms", "in_threads"), [(0.1, 0), (3, 34)], ids=["near", "far"])
def test_queues_are_recovered_by_threads_only_where_a_look_takes_time(
    look_ms: float, in_threads: int
) -> None:
    tier = of_fifty_queues()
    handed_over = 0

    class Distant(ProviderWrapper):
        def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
            clock.advance(look_ms)
            return super().open(path, type, base)

    class Counted(InlinePool):
        def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
            nonlocal handed_over
            handed_over += 1
            return super().submit(*arguments, **named)

    clock = ManualClock()
    runtime = Runtime(clock=clock, dispatch=InlinePool(), fetch=Counted())
    loaded = loaded_by(tier, Distant(tier.inner, runtime), runtime)
    assert all(file.commit_offset == 1 for file in loaded.files())
    assert (len(loaded.files()), handed_over) == (
        50,
        50 if tier.inner.reads_together else in_threads,
    )


def test_a_commit_writes_two_rows_however_many_segments_there_are(tmp_path: Path) -> None:
    """RocketMQ writes its whole catalogue for each segment of each commit."""
    runtime = Runtime.inline()
    with JsonMetadataStore.open(tmp_path / "tieredStoreMetadata.json") as metadata:
        rows = [
            SegmentRecord(path="broker-a/other/0", type=LOG, base_offset=base)
            for base in range(0, 2_000_000, 1000)
        ]
        metadata.put(*rows)
        metadata.compact()
        store = FlatFileStore(
            StoreConfig(broker_name="broker-a"),
            provider=MemoryProvider(runtime),
            metadata=metadata,
            runtime=runtime,
        )
        file = store.create(*KEY)
        file.start_at(0)
        before = sum(each.stat().st_size for each in tmp_path.iterdir())
        for number in range(10):
            append(file, numbered(number, 1))
        grown = sum(each.stat().st_size for each in tmp_path.iterdir()) - before
        assert 0 < grown < 10 * 1000


class BrokenQueues(ProviderWrapper):
    """A backend that cannot be reached for some queues."""

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.broken: set[str] = set()

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return BrokenSegment(segment, self)


class BrokenSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, owner: BrokenQueues) -> None:
        super().__init__(inner)
        self._owner = owner

    def size(self) -> int:
        if self.queue_path in self._owner.broken:
            raise BackendUnavailableError(self.path, "size", "broken")
        return super().size()


def three_queues() -> tuple[Tier, BrokenQueues]:
    runtime = Runtime.inline()
    provider = BrokenQueues(MemoryProvider(runtime), runtime)
    tier = Tier(provider=provider)
    for queue_id in range(3):
        file = tier.open().create("TopicTest", queue_id)
        file.start_at(0)
        append(file, numbered(0, 2))
    return tier, provider


def test_one_broken_queue_stops_none_of_the_others() -> None:
    tier, provider = three_queues()
    provider.broken = {PATH}
    store = tier.open()
    problems = {file.key.queue_id: file.problem for file in store.files()}
    assert problems[0] is not None
    assert problems[0].startswith("not recovered: ")
    assert (problems[1], problems[2]) == (None, None)
    broken = store.get(KEY)
    assert broken is not None
    assert len(content(broken)) == 2
    assert [store.is_out_of_reach(QueueKey(TOPIC, number)) for number in (0, 1)] == [True, False]
    assert store.retry_recovery() == 1
    provider.broken = set()
    assert store.retry_recovery() == 0
    assert store.get(KEY) is broken
    assert broken.problem is None
    assert not store.is_out_of_reach(KEY)
    append(broken, numbered(2, 1))
    assert len(content(broken)) == 3


def test_a_queue_out_of_reach_is_sure_of_no_message_that_nobody_compared() -> None:
    tier, provider = three_queues()
    tier.catalogue().put_note(UNCONFIRMED_NOTE, PATH, {"from": 1, "rows": []})
    provider.broken = {PATH}
    file = tier.open().get(KEY)
    assert file is not None
    assert (file.unconfirmed_from, file.sure_offset, file.commit_offset) == (1, 1, 2)


def test_a_queue_whose_deletion_is_in_doubt_is_sure_of_no_message_that_nobody_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier, _ = three_queues()
    tier.catalogue().put_note(UNCONFIRMED_NOTE, PATH, {"from": 1, "rows": []})
    store = tier.open()

    def fails(_catalogue: FaultyCatalogue, _changes: Iterable[Change]) -> None:
        raise BackendUnavailableError("the log", "append", "down")

    monkeypatch.setattr(FaultyCatalogue, "apply", fails)
    with pytest.raises(BackendUnavailableError):
        store.destroy(KEY)
    file = store.get(KEY)
    assert file is not None
    assert (file.unconfirmed_from, file.sure_offset, file.commit_offset) == (1, 1, 2)


def test_a_damaged_queue_is_not_out_of_reach() -> None:
    tier, _ = three_queues()
    tier.damage(QUEUE, 0, b"short")
    store = tier.open()
    assert store.may_recover(KEY)
    assert not store.is_out_of_reach(KEY)


def test_whoever_cannot_wait_has_a_queue_looked_at_now() -> None:
    tier, provider = three_queues()
    provider.broken = {PATH}
    store = tier.open()
    file = store.get(KEY)
    assert file is not None
    with pytest.raises(BackendUnavailableError):
        store.look_again(file)
    provider.broken = set()
    store.look_again(file)
    assert file.problem is None
    assert not store.may_recover(KEY)


@pytest.mark.parametrize("last", ["short", "unreachable", "sound"])
def test_a_queue_that_seems_damaged_when_looked_at_may_still_recover(last: str) -> None:
    """Or else the local store may delete what it has not uploaded."""
    tier, _ = three_queues()
    kept: list[bool] = []
    looks = 0

    class Flapping(SegmentWrapper):
        """An empty folder at first, as where a disk is not mounted."""

        def size(self) -> int:
            nonlocal looks
            if not is_cut_off or self.queue_path != PATH:
                return super().size()
            looks += 1
            file = store.get(KEY)
            assert file is not None
            kept.append(file.problem is None or store.may_recover(KEY))
            if looks > 2 and last == "unreachable":
                raise BackendUnavailableError(self.path, "size", "cut off")
            return super().size() if looks > 2 and last == "sound" else 0

    class Flaps(ProviderWrapper):
        def wrap(self, segment: FileSegment) -> SegmentWrapper:
            return Flapping(segment)

    is_cut_off = False
    store = loaded_by(tier, Flaps(tier.inner, tier.runtime), tier.runtime)
    file = store.get(KEY)
    assert file is not None
    is_cut_off = True
    with pytest.raises(BackendUnavailableError) if last == "unreachable" else nullcontext():
        store.look_again(file)
    assert all(kept)
    assert (file.problem is None) is (last == "sound")
    assert store.may_recover(KEY) is (last != "sound")
    is_cut_off = False
    tier.clock.advance(10_000)
    assert store.retry_recovery() == 0
    assert file.problem is None
    assert len(content(file)) == 2


def test_what_seems_damaged_is_looked_at_ever_more_rarely() -> None:
    tier, _ = three_queues()
    tier.damage(QUEUE, 0, b"short")
    faults = Faults()
    store = tier.open(faults)
    waited = []
    for _ in range(4):
        before, seconds = faults.steps, 0
        while faults.steps == before:
            tier.clock.advance(1000)
            seconds += 1
            assert store.retry_recovery() == 1
        waited.append(seconds)
    assert waited == [10, 20, 40, 80]
    assert store.may_recover(KEY)
    tier.clock.advance(160_000)
    assert store.retry_recovery() == 1
    assert not store.may_recover(KEY)  # the sixth look counts as the truth


def test_whoever_looks_again_and_again_does_not_make_damage_the_truth() -> None:
    """As an operator who resumes a queue until its disk is there."""
    tier, _ = three_queues()
    whole = tier.held(QUEUE)[0]
    tier.damage(QUEUE, 0, b"short")
    store = tier.open()
    file = store.get(KEY)
    assert file is not None
    for _ in range(10):
        store.look_again(file)
    assert store.may_recover(KEY)
    tier.damage(QUEUE, 0, whole)
    tier.clock.advance(10_000)  # it is due as if nobody had looked
    assert store.retry_recovery() == 0


def test_looks_that_reach_nothing_do_not_make_damage_the_truth() -> None:
    tier, provider = three_queues()
    whole = tier.held(QUEUE)[0]
    provider.broken = {PATH}
    store = tier.open()
    for _ in range(10):
        assert store.retry_recovery() == 1
    tier.damage(QUEUE, 0, b"short")
    provider.broken = set()
    assert store.retry_recovery() == 1
    assert store.may_recover(KEY)
    assert not store.is_out_of_reach(KEY)
    tier.damage(QUEUE, 0, whole)
    tier.clock.advance(10_000)
    assert store.retry_recovery() == 0


def test_a_catalogue_that_fails_does_not_make_damage_the_truth() -> None:
    tier, provider = three_queues()
    provider.broken = {PATH}
    catalogue = FaultyCatalogue(tier.tables, faults := Faults())
    store = FlatFileStore(tier.config, provider=provider, metadata=catalogue, runtime=tier.runtime)
    store.load()
    provider.broken = set()
    file = store.get(KEY)
    assert file is not None
    (row,) = tier.rows(LOG)
    tier.tables.apply([Put(replace(row, size=1))])  # so there is something to save
    for _ in range(10):
        faults.strike(Fault.BEFORE)
        with pytest.raises(MetadataError):
            store.look_again(file)
    assert file.problem is not None
    assert store.may_recover(KEY)
    tier.clock.advance(10_000)
    assert store.retry_recovery() == 0


def test_a_queue_may_recover_also_while_the_outcome_of_a_look_is_noted() -> None:
    """The local store asks from a thread of its own."""
    tier, _ = three_queues()
    tier.damage(QUEUE, 0, b"short")
    answers: list[bool] = []
    asking: list[threading.Thread] = []

    class Asks(ManualClock):
        def monotonic(self) -> float:
            if store is not None and store.get(KEY) is not None:
                asking.append(threading.Thread(target=ask))
                asking[-1].start()
                asking[-1].join(0.2)
            return super().monotonic()

    def ask() -> None:
        assert store is not None
        answers.append(store.may_recover(KEY))

    store: FlatFileStore | None = None
    runtime = Runtime(clock=Asks(), dispatch=InlinePool(), fetch=InlinePool())
    store = FlatFileStore(
        tier.config, provider=tier.inner, metadata=tier.catalogue(), runtime=runtime
    )
    store.load()
    file = store.get(KEY)
    assert file is not None
    store.look_again(file)
    for thread in asking:
        thread.join(60)
    assert answers
    assert all(answers)


@pytest.mark.parametrize("wrong", [1, 2])
def test_damage_that_only_one_read_saw_is_none(wrong: int) -> None:
    tier, _ = three_queues()
    left = wrong

    class Misread(SegmentWrapper):
        def size(self) -> int:
            nonlocal left
            if self.queue_path == PATH and left:
                left -= 1
                raise SegmentCorruptError(self.path, "misread", position=0)
            return super().size()

    class Misreads(ProviderWrapper):
        def wrap(self, segment: FileSegment) -> SegmentWrapper:
            return Misread(segment)

    store = loaded_by(tier, Misreads(tier.inner, tier.runtime), tier.runtime)
    file = store.get(KEY)
    assert file is not None
    assert ("misread" in str(file.problem)) is (wrong == 2)
    assert len(content(file)) == 2


def test_a_queue_that_is_short_at_the_first_look_only_has_no_problem() -> None:
    tier, _ = three_queues()
    looks = 0

    class Short(SegmentWrapper):
        def size(self) -> int:
            nonlocal looks
            looks += self.queue_path == PATH
            return 0 if self.queue_path == PATH and looks <= 2 else super().size()

    class Shorts(ProviderWrapper):
        def wrap(self, segment: FileSegment) -> SegmentWrapper:
            return Short(segment)

    store = loaded_by(tier, Shorts(tier.inner, tier.runtime), tier.runtime)
    assert [file.problem for file in store.files()] == [None] * 3


def test_a_catalogue_that_fails_at_a_late_recovery_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier, provider = three_queues()
    provider.broken = {PATH}
    store = tier.open()
    error: TieredStoreError = MetadataError("catalogue", "down")

    def fails(_catalogue: FaultyCatalogue, _changes: Iterable[Change]) -> None:
        raise error

    monkeypatch.setattr(FaultyCatalogue, "apply", fails)
    with pytest.raises(MetadataError, match="down"):
        store.retry_recovery()
    error = BackendUnavailableError("the log", "append", "down")  # a catalogue in the backend
    assert store.retry_recovery() == 1


def test_a_destroyed_queue_does_not_come_back_with_a_late_recovery() -> None:
    tier, provider = three_queues()
    provider.broken = {PATH}
    store = tier.open()
    recovered = store.files()
    store.destroy(KEY)
    assert store.retry_recovery() == 0
    assert len(recovered) == 3
    assert {file.key.queue_id for file in store.files()} == {1, 2}


def test_a_reader_that_cannot_reach_a_queue_shows_what_it_saw_last() -> None:
    tier, provider = three_queues()
    reader = tier.open(read_only=True)
    append(tier.open().create(*KEY), numbered(2, 2))
    provider.broken = {PATH}
    reader.refresh()
    seen = reader.get(KEY)
    assert seen is not None
    assert [file.problem is None for file in reader.files()] == [False, True, True]
    assert len(content(seen)) == 2
    provider.broken = set()
    reader.refresh()
    assert [file.problem is None for file in reader.files()] == [True, True, True]
    assert len(content(seen)) == 4
    assert reader.retry_recovery() == 0


def test_a_renamed_broker_is_told_that_it_looks_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    tier, _ = three_queues()
    tier.config = replace(tier.config, broker_name="broker-b")
    assert [file.is_started for file in tier.open().files()] == [False] * 3
    assert "the catalogue has queues of {'broker-a'}; looked for below broker-b" in caplog.text


def test_a_row_that_can_name_no_segment_breaks_its_own_queue_only() -> None:
    tier, _ = three_queues()
    tier.catalogue().put(SegmentRecord(path=PATH, type=LOG, base_offset=-5))
    store = tier.open()
    broken = store.get(KEY)
    assert broken is not None
    assert broken.problem is not None
    assert sum(file.problem is None for file in store.files()) == 2


def test_loading_fails_where_the_backend_is_down_altogether() -> None:
    tier, provider = three_queues()
    provider.broken = {f"broker-a/TopicTest/{queue_id}" for queue_id in range(3)}
    with pytest.raises(BackendUnavailableError):
        tier.open()
