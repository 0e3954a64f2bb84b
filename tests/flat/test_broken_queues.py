"""Queues that cannot be reached among others that can: the others go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.flat.store_kit import KEY, LOG, PATH, Tier, append, content
from tests.flat.tiers import numbered
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import SegmentRecord
from tieredstore.providers.memory import MemoryProvider


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
    assert store.retry_recovery() == 1
    provider.broken = set()
    assert store.retry_recovery() == 0
    assert store.get(KEY) is broken
    assert broken.problem is None
    append(broken, numbered(2, 1))
    assert len(content(broken)) == 3


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
