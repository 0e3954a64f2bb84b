"""Producers, the service, flushes and a backend that fails now and then, all at once."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.access.dispatch_kit import RecordingIndex, Tier
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore

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
