"""A broker over a backend that others can open too, and the settings of those who do. No tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tests.access.tiered_kit import Broker
from tieredstore.access.reader import TieredReader
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import Faults, FaultyProvider
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

HOUR_S = 3_600
SIZES = {"commit_log_segment_bytes": 1_000, "consume_queue_segment_bytes": 80, "reserve_hours": 2}


class Elsewhere:
    """A broker over a backend that others can open too, and the settings of those who do."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind
        self.objects = MemoryObjects()
        self.client = MemoryObjectClient(self.objects)
        self.broker = self._broker()
        self.broker.open()

    def _broker(self) -> Broker:
        broker = Broker(self._folder / "broker", **SIZES)
        broker.faults = Faults()
        broker.provider = FaultyProvider(
            self.opened(broker.runtime, self.client), broker.faults, broker.runtime
        )
        broker.store = broker.wrap(broker.local)
        return broker

    def opened(self, runtime: Runtime, client: MemoryObjectClient | None = None) -> SegmentProvider:
        if self._kind == "posix":
            return PosixProvider(self._folder / "tier", "cluster-a", runtime)
        client = client or MemoryObjectClient(self.objects)
        return ObjectProvider(client, "cluster-a", runtime)

    def publish(self) -> None:
        self.broker.tier.publishing.step()

    def config(self, **settings: Any) -> StoreConfig:
        nowhere = str(self._folder / "nowhere")
        return dataclasses.replace(self.broker.config, store_path=nowhere, **settings)

    def reader(self, **settings: Any) -> TieredReader:
        runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        return TieredReader(self.config(**settings), runtime=runtime, provider=self.opened(runtime))

    def expire(self, first: int) -> None:
        """All that is old, while more comes."""
        self.broker.runtime.clock.sleep(3 * HOUR_S)
        self.broker.put(3, first=first)
        assert self.broker.store.flush()
        self.broker.retention.step()


def offsets(reader: TieredReader, topic: str = TOPIC) -> list[int]:
    return [one.queue_offset for one in reader.messages(topic, 0)]
