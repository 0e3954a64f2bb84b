"""Tiers to audit, to rebuild and to read elsewhere: a copy of one that Java wrote, and our own."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from tests.access.tiered_kit import Broker
from tests.codec.golden_files import BROKER, CLUSTER, GOLDEN
from tieredstore.access.audit import AuditReport, audit
from tieredstore.access.reader import TieredReader
from tieredstore.access.rebuild import RebuildReport, rebuild
from tieredstore.codec.names import segment_name
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import Faults, FaultyProvider
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

NOW_MS = 1_795_171_600_000  # a little after the last message


class GoldenTier:
    """A copy of the golden tier: its folder, catalogue and provider."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tier"
        shutil.copytree(GOLDEN / "tier-posix", self.root)
        self.runtime = Runtime.inline(now_ms=NOW_MS)
        self.config = StoreConfig(
            broker_name=BROKER, index_slot_count=64, index_item_count=300, provider="posix"
        )
        self.provider = PosixProvider(self.root / "tiered", "GoldenCluster", self.runtime)
        self.catalogue = self.root / "store" / "config" / "tieredStoreMetadata.json"
        self.metadata: MetadataStore = JsonMetadataStore.open(self.catalogue)

    def audit(self, *, repair: bool = False) -> AuditReport:
        return audit(self.metadata, self.provider, self.config, self.runtime, repair=repair)

    def rebuild(self) -> RebuildReport:
        return rebuild(self.metadata, self.provider, self.config, self.runtime)

    def lose_the_catalogue(self) -> None:
        self.metadata.close()
        shutil.rmtree(self.catalogue.parent)
        self.metadata = JsonMetadataStore.open(self.catalogue)

    def file(self, queue: str, kind: SegmentType, base: int) -> Path:
        name = segment_name(base)
        return self.root / "tiered" / CLUSTER / BROKER / queue / kind.name / name

    def row(self, queue: str, kind: SegmentType, base: int) -> SegmentRecord:
        found = self.metadata.segment(f"{BROKER}/{queue}", kind, base)
        assert found is not None
        return found

    def found(self, *, repair: bool = False) -> list[tuple[str, str]]:
        """The findings of an audit: kind, and place below the broker."""
        report = self.audit(repair=repair)
        return [(each.kind, each.where.removeprefix(f"{BROKER}/")) for each in report.left]


HOUR_S = 3_600
SIZES = {"commit_log_segment_bytes": 1_000, "consume_queue_segment_bytes": 80, "reserve_hours": 2}


class Elsewhere:
    """A broker over a backend that others can open too, and the settings with which they do."""

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

    def silence(self) -> None:
        """Publish nothing from now on, and take everything for published."""
        vars(self.broker.tier.publishing)["step"] = lambda: True

    def config(self, **settings: Any) -> StoreConfig:
        nowhere = str(self._folder / "nowhere")
        return dataclasses.replace(self.broker.config, store_path=nowhere, **settings)

    def reader(self, **settings: Any) -> TieredReader:
        runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        return TieredReader(self.config(**settings), runtime=runtime, provider=self.opened(runtime))

    def expire(self, first: int) -> None:
        """Expire all old messages, and put new ones."""
        self.broker.runtime.clock.sleep(3 * HOUR_S)
        self.broker.put(3, first=first)
        assert self.broker.store.flush()
        self.broker.retention.step()


def offsets(reader: TieredReader, topic: str = TOPIC) -> list[int]:
    return [one.queue_offset for one in reader.messages(topic, 0)]
