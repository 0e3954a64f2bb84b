"""What nobody uses any more: deleted by one thread at a time, and never under a queue made anew."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.flat.store_kit import KEY, LOG, PATH, Tier, append, content
from tests.flat.tiers import numbered
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import InlinePool, ManualClock, Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat import append_file
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.model.errors import BackendUnavailableError, SegmentNotFoundError
from tieredstore.providers.memory import MemoryProvider

SECONDS = 240.0  # for what has to come; nobody waits that long


class Deletes(ProviderWrapper):
    """A backend whose deletes do what a test tells."""

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
    """Does nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append(lambda: call(*args, **kwargs))
        return Future()


def down() -> None:
    raise BackendUnavailableError("", "delete", "down")


def a_destroyed_queue() -> tuple[Tier, Deletes, FlatFileStore]:
    """Its two segments could not be deleted."""
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
    monkeypatch.setattr(append_file, "WAIT_SECONDS", 0.0)
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
    monkeypatch.setattr(append_file, "WAIT_SECONDS", SECONDS)
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
    tier.catalogue().put_note(append_file.DELETION_NOTE, key, 1)
    with caplog.at_level(logging.WARNING):
        store = tier.open()
        assert store.delete_pending(is_stopped=go_on) == 0
    assert caplog.text.count("note of something to delete") == 1
    assert len(provider.tried) == 2
    assert list(tier.catalogue().notes(append_file.DELETION_NOTE)) == [key]
    assert store.create(*KEY).path == PATH
    assert not tier.held(LOG)
