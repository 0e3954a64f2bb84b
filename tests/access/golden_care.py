"""A copy of the tier that Java wrote, open for writing, and ways to look at it and to harm it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.codec.golden_files import BROKER, CLUSTER, GOLDEN
from tieredstore.access.audit import AuditReport, audit
from tieredstore.access.rebuild import RebuildReport, rebuild
from tieredstore.codec.names import segment_name
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.providers.posix import PosixProvider

NOW_MS = 1_795_171_600_000  # a little after the last message


class GoldenTier:
    """The folder, the catalogue and the provider."""

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
        """What an audit names: kind and place below the broker."""
        report = self.audit(repair=repair)
        return [(each.kind, each.where.removeprefix(f"{BROKER}/")) for each in report.left]
