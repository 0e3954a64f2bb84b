"""Wrong bytes, read while a queue is recovered, stop it for a while and not for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, Tier
from tieredstore.access.queue_upload import stop_queue
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.file_store import AGAIN_SECONDS, AGAIN_SECONDS_MAX, BELIEVED_TRIES
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore

SECOND_MS = 1000


class WrongBytes(ProviderWrapper):
    """A backend whose next reads, or sizes, of one type of segment are not true."""

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.wrong_reads = self.wrong_sizes = 0
        self.reads = 0
        self.type = SegmentType.CONSUME_QUEUE

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return WrongSegment(segment, self)


class WrongSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, owner: WrongBytes) -> None:
        super().__init__(inner)
        self._owner = owner

    def read(self, position: int, length: int) -> bytes:
        data = super().read(position, length)
        self._owner.reads += 1
        if self._owner.wrong_reads and self.type is self._owner.type:
            self._owner.wrong_reads -= 1
            return bytes(byte ^ 0x55 for byte in data)
        return data

    def size(self) -> int:
        if self._owner.wrong_sizes and self.type is self._owner.type:
            self._owner.wrong_sizes -= 1
            return super().size() // 2
        return super().size()


def a_behind_tier(root: Path) -> tuple[ListMessageStore, Tier, WrongBytes]:
    """The catalogue says less than the backend holds: recovery has to read."""
    runtime = Runtime.inline()
    store, provider = ListMessageStore.opened(runtime), WrongBytes(MemoryProvider(runtime), runtime)
    tier = Tier(root, store, runtime=runtime, provider=provider, group_commit_enabled=False)
    store.fill(5)
    assert tier.flush()
    rows = tier.metadata.segments(tier.file().path)
    store.fill(5)
    assert tier.flush()
    tier.metadata.put(*rows)  # a crash came before the catalogue
    store.fill(3)
    return store, tier, provider


KINDS = [
    ("wrong_reads", SegmentType.CONSUME_QUEUE),
    ("wrong_reads", SegmentType.COMMIT_LOG),
    ("wrong_sizes", SegmentType.CONSUME_QUEUE),
    ("wrong_sizes", SegmentType.COMMIT_LOG),
]


@pytest.mark.parametrize(("what", "type"), KINDS)
def test_one_wrong_answer_is_asked_again_at_once(
    tmp_path: Path, what: str, type: SegmentType
) -> None:
    _, tier, provider = a_behind_tier(tmp_path)
    provider.type = type
    setattr(provider, what, 1)
    tier = tier.reopened()
    assert getattr(provider, what) == 0
    assert tier.file().problem is None
    assert tier.flush()
    assert tier.span() == (0, 13)
    tier.check()


@pytest.mark.parametrize(("what", "type"), KINDS)
def test_wrong_answers_that_last_a_while_are_asked_again_later(
    tmp_path: Path, what: str, type: SegmentType
) -> None:
    _, tier, provider = a_behind_tier(tmp_path)
    provider.type = type
    setattr(provider, what, 1000)
    tier = tier.reopened()
    for _ in range(3):
        tier.later(AGAIN_SECONDS * SECOND_MS)
        assert not tier.flush()
        health = tier.dispatcher.health()
        assert KEY in {**health.stopped, **health.failing}
        assert tier.dispatcher.needed_from() is not None  # it may go on
        assert tier.dispatcher.resume(KEY) is not None  # and that is the truth
    setattr(provider, what, 0)
    tier.later(AGAIN_SECONDS_MAX * SECOND_MS)
    tier.dispatch(force=True)  # it is recovered meanwhile
    assert tier.flush()
    assert tier.is_sound
    assert tier.span() == (0, 13)
    tier.check()


def test_what_stays_damaged_is_read_ever_more_rarely_and_holds_nobody_up(tmp_path: Path) -> None:
    _, tier, provider = a_behind_tier(tmp_path)
    provider.wrong_reads = 1 << 30
    tier = tier.reopened()
    held = 0
    provider.reads = 0
    for _ in range(24 * 360):  # a day, a look each ten seconds
        tier.dispatch()
        held += tier.dispatcher.needed_from() is not None
        tier.later(10 * SECOND_MS)
    tries = BELIEVED_TRIES - 1
    assert held * 10 <= AGAIN_SECONDS * 2**tries + 10
    looks = 24 + 10  # one an hour, and those before
    assert looks < provider.reads < 12 * looks


def test_a_wrong_answer_after_a_failed_upload_does_not_stop_the_queue_for_good(
    tmp_path: Path,
) -> None:
    runtime = Runtime.inline()
    faults = Faults()
    wrong = WrongBytes(FaultyProvider(MemoryProvider(runtime), faults, runtime), runtime)
    store = ListMessageStore.opened(runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=wrong, group_commit_enabled=False)
    store.fill(5)
    assert tier.flush()
    faults.always = Fault.AFTER
    store.fill(5)
    assert not tier.flush()
    work = tier.dispatcher._walk.work_of(KEY)
    assert tier.dispatcher._walk._batches.drop(work, tier.file())
    faults.always = None
    wrong.wrong_reads = 1000
    tier.flush()
    assert tier.file().problem is not None
    wrong.wrong_reads = 0
    tier.later(AGAIN_SECONDS * SECOND_MS)
    tier.dispatch(force=True)
    assert tier.flush()
    assert tier.span() == (0, 10)
    tier.check()


def test_asked_to_resume_a_queue_that_goes_on_failing_says_so(tmp_path: Path) -> None:
    runtime = Runtime.inline()
    faults = Faults()
    store = ListMessageStore.opened(runtime)
    provider = FaultyProvider(MemoryProvider(runtime), faults, runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider)
    store.fill(5)
    assert tier.flush()
    assert tier.dispatcher.resume(KEY) is None
    faults.always = Fault.BEFORE
    store.fill(5)
    assert not tier.flush()
    reason = tier.dispatcher.resume(KEY)
    assert reason is not None
    assert tier.dispatcher.health().failing[KEY] in reason
    stop_queue(tier.file(), "somebody stopped it", tier.metadata)
    reason = tier.dispatcher.resume(KEY)
    assert reason is not None
    assert "wait for their upload" in reason
    faults.always = None
    tier = tier.reopened()
    faults.always = Fault.BEFORE
    with pytest.raises(BackendUnavailableError):
        tier.dispatcher.resume(KEY)
    faults.always = None
    assert tier.dispatcher.resume(KEY) is None
    assert tier.flush()
    assert tier.span() == (0, 10)
