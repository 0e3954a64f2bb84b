"""The memory of a running store does not grow with what it has done: expired messages, deleted
topics, merged rounds and expired index files leave nothing behind.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.exporters.prometheus import PrometheusMetrics
from tieredstore.index.store import IndexStore
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.roundlog import upkeep as upkeep_module
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.samples import a_message

HOURS: Final = 24  # of one life: each hour one topic is created and one deleted
HOUR_MS: Final = 3_600_000
LONG_AFTER_MS: Final = 4_000_000_000_000  # so late that every local file is old
STAYS: Final = "Stays"
GROWTH_MIN: Final = HOURS // 3  # one entry or more for each topic of a third of that time
CONTAINERS: Final = (dict, set, list, tuple, deque)
MAY_GROW: Final = {
    "LogState.rested": "keys of deleted segments, for thirty days",
    "IndexWriter._begins": "the name of each index file, a number: one a day, or for 20 M keys",
    "PendingCounts._due": "taken out by the thread that uploads, and there is none here",
}


def held() -> Counter[str]:
    """The number of entries in the containers of all our objects, by attribute."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        if not str(kind.__module__).startswith("tieredstore"):
            continue
        slots = (name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
        for name in {*getattr(each, "__dict__", ()), *slots}:
            value = getattr(each, name, None)
            if isinstance(value, CONTAINERS):
                inner = value.values() if isinstance(value, dict) else value
                count = len(value) + sum(len(one) for one in inner if isinstance(one, CONTAINERS))
                found[f"{kind.__qualname__}.{name}"] += count
    return found


class Life:
    """A store in one thread, with a tier whose files are all small."""

    def __init__(self, root: Path, *, is_bucket: bool) -> None:
        self.runtime = Runtime.inline(now_ms=LONG_AFTER_MS)
        small: dict[str, Any] = {"index_slot_count": 101, "index_item_count": 200}
        config = StoreConfig(
            store_path=str(root / "store"),
            commit_log_segment_bytes=20_000,
            consume_queue_segment_bytes=20 * 40,
            reserve_hours=3,
            **small,
        )
        provider: SegmentProvider = PosixProvider(str(root), config.cluster_name, self.runtime)
        if is_bucket:
            client = MemoryObjectClient(MemoryObjects())
            retry = RetryPolicy(retries_max=0)
            provider = ObjectProvider(client, config.cluster_name, self.runtime, retry=retry)
        local_config = LocalConfig(
            store_path=str(root / "store"),
            commit_log_file_bytes=1 << 16,
            queue_file_bytes=20 * 40,
            reserve_hours=0,
            **small,
        )
        self.local = LocalMessageStore(local_config, self.runtime)
        self.store = TieredMessageStore(
            self.local,
            config,
            runtime=self.runtime,
            provider=provider,
            metrics=PrometheusMetrics(registry=CollectorRegistry()),
        )

    def hours(self, count: int) -> Iterator[int]:
        for number in range(count):
            self._hour(number)
            yield number

    def _hour(self, number: int) -> None:
        store, opened = self.store, self.store._loaded()
        for topic in (STAYS, f"Goes-{number}"):
            for queue_id in range(2):
                keys = {"KEYS": f"key-{number}"}
                message = a_message(0, topic=topic, queue_id=queue_id, properties=keys)
                store.put_messages([message] * 40)
        assert store.flush(seal=number % 2 == 0)
        assert store.get_message(STAYS, 0, 40 * number, group="readers").messages
        assert store.query_message(STAYS, f"key-{number}").messages
        if number >= 2:
            assert store.delete_topics([f"Goes-{number - 2}"]) == 1
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        clock.advance(HOUR_MS)
        self.local._loaded().retention.step()
        index = opened.tier.index
        assert isinstance(index, IndexStore)
        for step in (opened.retention.step, opened.sealing.step, opened.tending.step, index.step):
            step()
        opened.tier.publishing.step()
        opened.dispatcher.dispatch_once()
        assert opened.tier.fetcher.cache is not None
        opened.tier.fetcher.cache.sweep()


@pytest.mark.parametrize("is_bucket", [False, True], ids=["directory", "bucket"])
def test_a_store_keeps_nothing_of_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bucket: bool
) -> None:
    monkeypatch.setattr(upkeep_module, "ROUNDS_MERGED", 4)
    monkeypatch.setattr(upkeep_module, "STATE_EVERY", 8)
    life = Life(tmp_path, is_bucket=is_bucket)
    with life.store:
        third = HOURS // 3
        looks = [held() for hour in life.hours(HOURS) if hour % third == third - 1]
        first, second, last = looks
        assert (life.store.min_offset(STAYS, 0) or 0) > 40 * third
        grown = {
            name: (first[name], second[name], count)
            for name, count in last.items()
            if min(count - second[name], second[name] - first[name]) >= GROWTH_MIN
        }
        assert grown.keys() <= MAY_GROW.keys(), grown


def test_lives_of_a_store_leave_no_gauges_behind(tmp_path: Path) -> None:
    life = Life(tmp_path, is_bucket=False)
    looks = []
    for _ in range(4):
        with life.store:
            looks.append(held()["GaugeReads._reads"])
    assert looks[0] == looks[-1] > 0
