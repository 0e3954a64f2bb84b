"""A queue that messages come to all the time is uploaded in full batches, not in crumbs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, Tier
from tieredstore.access.dispatcher import Pass
from tieredstore.driver.provider import WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore

COUNT = 10


class SlowProvider(MemoryProvider):
    """A message comes while an upload is under way; counts the uploads."""

    def __init__(self, runtime: Runtime, store: ListMessageStore) -> None:
        super().__init__(runtime)
        self.store = store
        self.commits = 0

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        self.commits += len(pairs)
        self.store.fill(1)
        return super().write_many(pairs)


@pytest.mark.parametrize(
    "full", [{"group_commit_count": COUNT}, {"group_commit_bytes": 2_000}], ids=str
)
def test_a_busy_queue_behind_a_slow_backend_waits_for_each_full_batch(
    tmp_path: Path, full: dict[str, object]
) -> None:
    runtime = Runtime.inline()
    store = ListMessageStore.opened(runtime)
    provider = SlowProvider(runtime, store)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider, **full)  # type: ignore[arg-type]
    tier.dispatcher.start()
    for _ in range(10 * COUNT):
        store.fill(1)
        tier.dispatch()
    assert 5 <= provider.commits <= 20  # and not one for each message
    tier.dispatch(force=True)
    tier.check()


def test_a_batch_that_was_dropped_from_memory_waits_again(tmp_path: Path) -> None:
    runtime, faults = Runtime.inline(), Faults()
    store = ListMessageStore.opened(runtime)
    provider = FaultyProvider(MemoryProvider(runtime), faults, runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider, group_commit_count=COUNT)
    tier.dispatcher.start()
    store.fill(1)
    tier.dispatch(force=True)
    faults.always = Fault.BEFORE
    store.fill(COUNT)
    tier.dispatch()
    parts = tier.dispatcher
    assert not parts._pending.is_full(KEY)
    faults.always = None
    assert parts._walk._relieve(Pass())
    assert parts._pending.is_full(KEY)
    assert tier.dispatch()
    assert tier.span() == (0, COUNT + 1)
