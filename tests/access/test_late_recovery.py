"""A queue that could not be reached at first is recovered by one who works on it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, Tier
from tieredstore.access import upkeep
from tieredstore.access.upkeep import Retention
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore

LOST = QueueKey(KEY.topic, 1)
HOUR_MS = 3_600_000


class AskedFirst(ProviderWrapper):
    """A backend that tells before the size of a segment of one queue is asked for."""

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
    """Of two queues one was out of reach when the tier was opened; most of it is old."""
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
