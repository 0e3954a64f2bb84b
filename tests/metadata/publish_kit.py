"""A catalogue in a folder and a bucket it is published to, process after process. No tests."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.providers.object_kit import StruckClient
from tieredstore.driver.metadata import Publisher
from tieredstore.driver.object_client import ObjectClient
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.shelf import Generations
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.metadata.published import PublishedMetadataStore
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

NOW_MS = 1_700_000_000_000
BROKER = "broker-a"


class Process:
    """One that holds the catalogue, with a client of its own."""

    def __init__(self, folder: Path, objects: MemoryObjects, faults: Faults | None = None) -> None:
        self.memory = MemoryObjectClient(objects)
        client: ObjectClient = StruckClient(self.memory, faults or Faults())
        self.generations = generations_of(client)
        self.store = JsonMetadataStore.open(folder / "catalogue.json", clock_ms=lambda: NOW_MS)
        publisher = self.store.publisher(self.generations, cluster="c", broker=BROKER)
        self.publisher: Publisher = publisher

    def grow(self, size: int = 100, topic: str = "topic") -> None:
        """A change that readers want to know of."""
        record = SegmentRecord(
            path=f"{BROKER}/{topic}/0", type=SegmentType.COMMIT_LOG, base_offset=0, size=size
        )
        self.store.add_topic(topic)
        self.store.put(record)

    def requests(self) -> dict[str, int]:
        """Since the last call."""
        found = dict(self.memory.requests)
        self.memory.requests.clear()
        return found

    def close(self) -> None:
        self.store.close()


def generations_of(client: ObjectClient, retries: int = 0) -> Generations:
    runtime = Runtime.inline(now_ms=NOW_MS)
    provider = ObjectProvider(client, "c", runtime, retry=RetryPolicy(retries_max=retries))
    return provider.generations(BROKER)


def published(objects: MemoryObjects) -> PublishedMetadataStore | None:
    """As a reader elsewhere finds it."""
    return PublishedMetadataStore.open(generations_of(MemoryObjectClient(objects)))


def published_size(objects: MemoryObjects, topic: str = "topic") -> int | None:
    store = published(objects)
    if store is None:
        return None
    row = store.segment(f"{BROKER}/{topic}/0", SegmentType.COMMIT_LOG, 0)
    return None if row is None else row.size


def copy_of(folder: Path, target: Path) -> Path:
    """The catalogue's files, as they are on the disk now."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.lock"))
    return target
