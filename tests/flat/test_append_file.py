"""A file of segments: appending, rolling, reading across borders, dropping the oldest; and deleting
unused segments in one thread at a time, and never those of a queue that was created again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from tests.flat.store_kit import KEY, LOG, PATH, Tier, append, content
from tests.flat.tiers import FaultyCatalogue, numbered
from tieredstore.driver.metadata import DeleteNote, DeleteSegment
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import InlinePool, ManualClock, Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat import append_file, file_store
from tieredstore.flat.append_file import (
    DELETION_NOTE,
    FlatAppendFile,
    FlatSegment,
    delete_pending,
)
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.model.errors import (
    BackendUnavailableError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.values import AppendStatus, SegmentRecord
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider


def a_file(
    tier: Tier, *, segment_bytes_max: int = 2000, provider: SegmentProvider | None = None
) -> FlatAppendFile:
    file = FlatAppendFile(
        PATH,
        LOG,
        provider=provider or tier.inner,
        metadata=tier.catalogue(),
        clock=tier.clock,
        segment_bytes_max=segment_bytes_max,
    )
    file.load()
    return file


def commit(file: FlatAppendFile, tier: Tier) -> None:
    upload = file.prepare()
    assert upload is not None
    if upload.write is not None:
        try:
            upload.write.segment.write(upload.write.position, upload.write.data)
        except BackendUnavailableError:
            file.doubt()
            raise
    tier.catalogue().put(file.settle(upload))


def put(file: FlatAppendFile, tier: Tier, data: bytes) -> None:
    if file.append(data) is AppendStatus.FILE_FULL:
        file.roll()
        assert file.append(data) is AppendStatus.SUCCESS
    commit(file, tier)


def test_a_file_without_segments_has_nowhere_to_write() -> None:
    file = a_file(Tier())
    assert not file.is_started
    assert (file.min_offset, file.commit_offset, file.append_offset) == (0, 0, 0)
    assert file.waiting_bytes == 0
    with pytest.raises(ValueError, match="has no first segment yet"):
        file.append(b"x")


def test_offsets_and_times_before_and_after_a_commit() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(500)
    assert file.append(b"a" * 1000, begin=20, end=30) is AppendStatus.SUCCESS
    assert (file.min_offset, file.commit_offset, file.append_offset) == (500, 500, 1500)
    assert file.segments[0].record.begin_timestamp is None
    commit(file, tier)
    assert (file.min_offset, file.commit_offset, file.append_offset) == (500, 1500, 1500)
    file.append(b"b" * 1000, begin=10, end=25)
    commit(file, tier)
    record = file.segments[0].record
    assert (record.begin_timestamp, record.end_timestamp) == (10, 30)
    assert file.append(b"c" * 1000) is AppendStatus.FILE_FULL
    file.roll()
    assert [each.base for each in file.segments] == [500, 2500]


def test_a_reopened_file_finds_its_segments() -> None:
    tier = Tier()
    rows = [
        SegmentRecord(path=PATH, type=LOG, base_offset=500, size=1000, create_timestamp=1),
        SegmentRecord(path=PATH, type=LOG, base_offset=1500, size=200, create_timestamp=2),
    ]
    tier.catalogue().put(*rows)
    file = a_file(tier)
    assert [each.record for each in file.segments] == rows
    assert (file.min_offset, file.commit_offset, file.append_offset) == (500, 1700, 1700)


def test_it_knows_where_it_ends_from_the_first_commit_on() -> None:
    tier = Tier()
    file = a_file(tier)
    assert not file.knows_its_end
    file.roll(0)
    assert not file.knows_its_end
    put(file, tier, b"x")
    assert file.knows_its_end


ROWS = [
    SegmentRecord(path=PATH, type=LOG, base_offset=0, size=100, create_timestamp=1),
    SegmentRecord(path=PATH, type=LOG, base_offset=100, size=50, create_timestamp=2),
]


@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [
        ([], [], True),
        ([], ROWS, True),
        (ROWS, ROWS, True),
        (ROWS, [ROWS[0], replace(ROWS[1], size=60)], True),
        (ROWS, ROWS[1:], True),
        (ROWS, ROWS[:1], False),
        (ROWS, [ROWS[0], replace(ROWS[1], size=40)], False),
        (ROWS, [ROWS[0], replace(ROWS[1], create_timestamp=3)], False),
        (ROWS, [replace(ROWS[0], size=90), ROWS[1]], False),
        (ROWS, [ROWS[0], replace(ROWS[1], base_offset=200, size=50)], True),
        (ROWS, [], False),
        (ROWS, [replace(ROWS[0], base_offset=60, size=200, create_timestamp=3)], False),
        (ROWS, [replace(ROWS[0], base_offset=150, create_timestamp=3)], True),
    ],
)
def test_what_was_read_stays_in_a_cache_as_long_as_the_same_bytes_are_committed(
    before: list[SegmentRecord], after: list[SegmentRecord], is_kept: bool
) -> None:
    tier = Tier()
    tier.catalogue().put(*before)
    file = a_file(tier)
    key = file.cache_key
    tier.catalogue().apply([DeleteSegment(*row.key) for row in before])
    tier.catalogue().put(*after)
    file.load()
    assert (file.cache_key == key) is is_kept


def test_no_reader_meets_the_key_of_new_bytes_before_the_segments_that_have_them() -> None:
    """It would cache the old bytes under the new key."""
    tier = Tier()
    tier.catalogue().put(*ROWS)
    file = a_file(tier)
    key, replace_segments = file.cache_key, file._replace
    met: list[Hashable] = []

    def read_first(segments: tuple[FlatSegment, ...]) -> None:
        met.append(file.cache_key)
        replace_segments(segments)

    tier.catalogue().apply([DeleteSegment(*ROWS[1].key)])
    file._replace = read_first  # type: ignore[method-assign]
    file.load()
    assert met == [key]
    assert file.cache_key != key


def test_reading_crosses_any_number_of_segments() -> None:
    tier = Tier()
    file = a_file(tier, segment_bytes_max=10)
    file.roll(0)
    expected = b"".join(b"%010d" % number for number in range(7))
    for number in range(7):
        put(file, tier, b"%010d" % number)
    assert len(file.segments) == 7
    assert file.read(0, 70) == expected
    assert file.read(5, 60) == expected[5:65]
    assert file.read(19, 2) == expected[19:21]
    assert file.read(20, 10) == expected[20:30]
    assert file.read(20, 0) == b""


def test_nothing_can_be_read_before_it_is_committed() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    file.append(b"x" * 100)
    with pytest.raises(OffsetOutOfRangeError):
        file.read(0, 100)
    commit(file, tier)
    assert file.read(0, 100) == b"x" * 100


@pytest.mark.parametrize(
    ("offset", "length"), [(499, 1), (499, 2), (0, 1), (600, 1), (599, 2), (500, -1), (500, 101)]
)
def test_a_range_that_is_not_wholly_there_is_an_error_that_says_what_is(
    offset: int, length: int
) -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(500)
    put(file, tier, b"x" * 100)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        file.read(offset, length)
    assert (caught.value.minimum, caught.value.maximum) == (500, 600)


def test_reading_in_a_gap_is_an_error() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    put(file, tier, b"x" * 100)
    file.roll(300)
    put(file, tier, b"y" * 100)
    assert file.read(0, 100) + file.read(300, 100) == b"x" * 100 + b"y" * 100
    for offset, length in ((100, 1), (99, 2), (299, 1), (0, 400)):
        with pytest.raises(OffsetOutOfRangeError):
            file.read(offset, length)


def test_a_segment_never_begins_within_what_is_committed() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    put(file, tier, b"x" * 100)
    with pytest.raises(ValueError, match="would hide what is committed"):
        file.roll(99)


def test_rolling_while_something_waits_is_refused() -> None:
    file = a_file(Tier())
    file.roll(0)
    file.append(b"x")
    with pytest.raises(ValueError, match="roll while 1 bytes wait"):
        file.roll()


def test_an_empty_segment_does_not_roll_in_its_own_place() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    only = file.segments
    file.roll()
    assert file.segments is only


def test_an_empty_segment_makes_way_for_one_further_on() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(100)
    file.roll(300)
    assert [row.base_offset for row in tier.rows(LOG)] == [300]
    put(file, tier, b"x")
    assert file.read(300, 1) == b"x"


def test_the_catalogue_names_a_segment_before_its_first_byte_is_there() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    assert [row.base_offset for row in tier.rows(LOG)] == [0]
    assert tier.held(LOG) == {}


def test_a_roll_brings_the_row_of_the_full_segment_up_to_date() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    file.append(b"x" * 100)
    upload = file.prepare()
    assert upload is not None
    assert upload.write is not None
    upload.write.segment.write(0, upload.write.data)
    file.settle(upload)  # without its row in the catalogue
    file.roll()
    assert [(row.base_offset, row.size) for row in tier.rows(LOG)] == [(0, 100), (100, 0)]


def test_dropped_segments_leave_the_catalogue_and_then_the_backend() -> None:
    tier = Tier()
    file = a_file(tier, segment_bytes_max=10)
    file.roll(0)
    for _ in range(3):
        put(file, tier, b"x" * 10)
    assert file.drop(file.segments[:2]) == []
    assert file.min_offset == 20
    assert [row.base_offset for row in tier.rows(LOG)] == [20]
    assert list(tier.held(LOG)) == [20]
    assert tier.catalogue().notes(DELETION_NOTE) == {}


def test_dropping_nothing_does_nothing() -> None:
    tier = Tier()
    faults = Faults()
    file = FlatAppendFile(
        PATH,
        LOG,
        provider=tier.inner,
        metadata=FaultyCatalogue(tier.tables, faults),
        clock=tier.clock,
        segment_bytes_max=10,
    )
    assert file.drop([]) == []
    assert faults.steps == 0


def test_a_dropped_segment_gives_its_handle_back() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    put(file, tier, b"x")
    dropped = file.segments[0].segment
    file.drop(file.segments)
    with pytest.raises(StoreClosedError):
        dropped.size()


def test_a_delete_that_fails_is_noted_and_finished_later() -> None:
    tier = Tier()
    provider = FaultyProvider(tier.inner, Faults({6: Fault.BEFORE}), tier.runtime)
    file = a_file(tier, segment_bytes_max=10, provider=provider)
    file.roll(0)
    for _ in range(3):
        put(file, tier, b"x" * 10)  # takes two steps: a size and a write
    doomed = file.segments[:2]
    # The second is not tried, as the backend could not be reached for the first.
    assert file.drop(doomed) == [each.segment.path for each in doomed]
    assert file.min_offset == 20
    assert list(tier.held(LOG)) == [0, 10, 20]
    assert set(tier.catalogue().notes(DELETION_NOTE)) == {
        f"{PATH}/COMMIT_LOG/{base}" for base in (0, 10)
    }
    assert delete_pending(provider, tier.catalogue()) == 0
    assert list(tier.held(LOG)) == [20]
    assert tier.catalogue().notes(DELETION_NOTE) == {}


def test_what_the_catalogue_names_again_is_not_deleted() -> None:
    tier = Tier()
    provider = FaultyProvider(tier.inner, Faults({2: Fault.BEFORE}), tier.runtime)
    file = a_file(tier, provider=provider)
    file.roll(0)
    put(file, tier, b"old")
    file.drop(file.segments)
    tier.catalogue().put(SegmentRecord(path=PATH, type=LOG, base_offset=0))
    assert delete_pending(tier.inner, tier.catalogue()) == 0
    assert tier.held(LOG) == {0: b"old"}
    assert tier.catalogue().notes(DELETION_NOTE) == {}


def test_the_file_goes_on_in_a_new_segment_in_front_of_somebody_elses_bytes() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    put(file, tier, b"mine")
    tier.damage(LOG, 0, b"mine|theirs")
    reopened = a_file(tier)
    reopened.append(b"next", begin=5, end=6)
    commit(reopened, tier)
    assert [each.base for each in reopened.segments] == [0, 4]
    assert reopened.read(0, 8) == b"minenext"
    assert tier.held(LOG) == {0: b"mine|theirs", 4: b"next"}
    assert reopened.segments[1].record.begin_timestamp == 5


def test_bytes_of_somebody_else_in_an_empty_segment_stop_the_file() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    tier.damage(LOG, 0, b"theirs")
    file.append(b"mine")
    with pytest.raises(SegmentCorruptError, match="there are bytes that nobody committed"):
        file.prepare()
    assert tier.held(LOG) == {0: b"theirs"}


def test_a_segment_that_cannot_be_sealed_is_full_all_the_same() -> None:
    tier = Tier()
    file = a_file(tier)
    file.roll(0)
    put(file, tier, b"x")
    file.segments[0].segment.close()
    file.roll()
    assert [each.base for each in file.segments] == [0, 1]


def test_offsets_are_found_by_segment() -> None:
    tier = Tier()
    file = a_file(tier, segment_bytes_max=10)
    file.roll(30)
    for _ in range(3):
        put(file, tier, b"x" * 10)
    found = [file.segment_at(offset) for offset in (29, 30, 39, 40, 59, 99)]
    bases = [None if each is None else each.base for each in found]
    assert bases == [None, 30, 30, 40, 50, 50]


SECONDS = 240.0  # far more than any machine needs


class Deletes(ProviderWrapper):
    """A backend that calls `before` before each delete."""

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.tried: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return DeletedSegment(segment, self)


class DeletedSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, owner: Deletes) -> None:
        super().__init__(inner)
        self._owner = owner

    def delete(self) -> None:
        self._owner.tried.append(self.path)
        self._owner.before()
        super().delete()


class LatePool(InlinePool):
    """Keeps its calls until the test runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append(lambda: call(*args, **kwargs))
        return Future()


def down() -> None:
    raise BackendUnavailableError("", "delete", "down")


def a_destroyed_queue() -> tuple[Tier, Deletes, FlatFileStore]:
    """A destroyed queue whose two segments could not be deleted."""
    runtime = Runtime.inline()
    provider = Deletes(MemoryProvider(runtime), runtime)
    tier = Tier(provider=provider)
    store = tier.open()
    file = store.create(*KEY)
    file.start_at(0)
    append(file, numbered(0, 5))
    provider.before = down
    store.destroy(KEY)
    assert len(tier.catalogue().notes(append_file.DELETION_NOTE)) == 2
    provider.tried.clear()
    provider.before = lambda: None
    return tier, provider, store


def go_on() -> bool:
    return False


def test_a_slow_delete_never_strikes_a_queue_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "WAIT_SECONDS", 0.0)
    _, provider, store = a_destroyed_queue()
    entered, released = threading.Event(), threading.Event()
    finisher = threading.Thread(target=store.delete_pending, kwargs={"is_stopped": go_on})

    def slow() -> None:
        if threading.current_thread() is finisher:
            entered.set()
            assert released.wait(SECONDS)

    provider.before = slow
    finisher.start()
    try:
        assert entered.wait(SECONDS)
        with pytest.raises(BackendUnavailableError):
            store.create(*KEY)
        assert store.get(KEY) is None
    finally:
        released.set()
        finisher.join(SECONDS)
    file = store.create(*KEY)
    file.start_at(0)
    append(file, numbered(0, 7))
    assert store.delete_pending(is_stopped=go_on) == 0
    assert len(content(file)) == 7
    assert len(provider.tried) == 2


def test_a_queue_made_anew_waits_for_the_delete_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_store, "WAIT_SECONDS", SECONDS)
    tier, provider, store = a_destroyed_queue()
    entered = threading.Event()
    finisher = threading.Thread(target=store.delete_pending, kwargs={"is_stopped": go_on})
    creating = threading.Thread(target=store.create, args=KEY)

    def slow() -> None:
        if not entered.is_set():
            entered.set()
            creating.start()

    provider.before = slow
    finisher.start()
    assert entered.wait(SECONDS)
    finisher.join(SECONDS)
    creating.join(SECONDS)
    assert store.get(KEY) is not None
    assert len(provider.tried) == 2
    assert not tier.catalogue().notes(append_file.DELETION_NOTE)


def many_notes(count: int) -> tuple[Tier, Deletes, FlatFileStore]:
    tier, provider, store = a_destroyed_queue()
    for number in range(1, count - 1):
        tier.catalogue().put_note(
            append_file.DELETION_NOTE, f"broker-a/T/{number % 5}/COMMIT_LOG/{number}", 1
        )
    assert len(tier.catalogue().notes(append_file.DELETION_NOTE)) == count
    return tier, provider, store


def test_a_backend_that_cannot_be_reached_is_asked_once() -> None:
    _, provider, store = many_notes(40)
    provider.before = down
    assert store.delete_pending(is_stopped=go_on) == 40
    assert len(provider.tried) == 1


def test_a_segment_that_is_refused_keeps_no_other_from_going() -> None:
    _, provider, store = many_notes(40)

    def refuse() -> None:
        if len(provider.tried) == 1:
            raise SegmentNotFoundError("odd")

    provider.before = refuse
    assert store.delete_pending(is_stopped=go_on) == 1
    assert len(provider.tried) == 40


def test_deleting_ends_soon_when_it_is_told_to() -> None:
    tier, provider, store = many_notes(40)
    assert store.delete_pending(is_stopped=lambda: len(provider.tried) == 3) == 37
    assert len(provider.tried) == 3
    assert len(tier.catalogue().notes(append_file.DELETION_NOTE)) == 37


def test_loading_does_not_wait_for_what_has_to_be_deleted() -> None:
    tier, provider, _ = a_destroyed_queue()
    pool = LatePool()
    tier.runtime = Runtime(clock=ManualClock(), dispatch=pool, fetch=InlinePool())
    store = tier.open()
    assert not provider.tried
    for call in pool.calls:
        call()
    assert len(provider.tried) == 2
    assert not tier.catalogue().notes(append_file.DELETION_NOTE)
    store.close()


def test_a_store_that_is_closed_deletes_nothing_more() -> None:
    tier, provider, _ = a_destroyed_queue()
    pool = LatePool()
    tier.runtime = Runtime(clock=ManualClock(), dispatch=pool, fetch=InlinePool())
    tier.open().close()
    for call in pool.calls:
        call()
    assert not provider.tried


@pytest.mark.parametrize(
    "key", ["broker-a/T/0/NOPE/0", "a/b/COMMIT_LOG/x", "COMMIT_LOG/0", "", "a/b/COMMIT_LOG/007"]
)
def test_a_note_that_makes_no_sense_is_passed_over(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    tier, provider, _ = a_destroyed_queue()
    others = tier.catalogue().notes(DELETION_NOTE)
    tier.catalogue().apply([DeleteNote(DELETION_NOTE, each) for each in others])
    for each in (key, *others):  # the bad note comes first
        tier.catalogue().put_note(DELETION_NOTE, each, 1)
    with caplog.at_level(logging.WARNING):
        store = tier.open()
        assert store.delete_pending(is_stopped=go_on) == 0
    assert caplog.text.count("unreadable note of a deletion") == 1
    assert len(provider.tried) == 2
    assert list(tier.catalogue().notes(append_file.DELETION_NOTE)) == [key]
    assert store.create(*KEY).path == PATH
    assert not tier.held(LOG)
