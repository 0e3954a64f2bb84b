"""A tier in a directory whose broker is at work, as a migration may meet it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.flat.store_kit import append, content
from tieredstore.access.reader import TieredReader
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record

SIZES: dict[str, Any] = {
    "commit_log_segment_bytes": 8_000,
    "consume_queue_segment_bytes": 20 * 16,
    "index_enabled": False,
}


class Broker:
    """Writes to its tier, and holds the lock of the catalogue as long as it lives."""

    def __init__(self, config: StoreConfig, provider: SegmentProvider | None = None) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.metadata = JsonMetadataStore.open(
            config.catalogue_path, clock_ms=self.runtime.clock.now_ms
        )
        self.files = FlatFileStore(
            config,
            provider=provider or PosixProvider.from_config(config, self.runtime),
            metadata=self.metadata,
            runtime=self.runtime,
        )
        self.files.load()

    def put(self, count: int, *, topic: str = TOPIC, queue_id: int = 0) -> FlatMessageFile:
        """Add `count` messages to one queue."""
        file = self.files.create(topic, queue_id)
        if not file.is_started:
            file.start_at(0)
        first = file.append_offset
        numbers = range(first, first + count)
        append(file, [a_record(n, topic=topic, queue_id=queue_id) for n in numbers])
        return file

    def close(self) -> None:
        self.files.close()
        self.metadata.close()


@contextmanager
def broker_on(config: StoreConfig) -> Iterator[Broker]:
    broker = Broker(config)
    try:
        yield broker
    finally:
        broker.close()


def tier_at(place: Path, *, broker: str = "broker-a") -> StoreConfig:
    Path(place, "store/config").mkdir(parents=True, exist_ok=True)
    return StoreConfig(
        provider="posix",
        path=str(place / "tiered"),
        store_path=str(place / "store"),
        broker_name=broker,
        **SIZES,
    )


def everything(config: StoreConfig) -> dict[QueueKey, dict[int, bytes]]:
    with TieredReader(config) as reader:
        return {file.key: content(file) for file in reader._files(None)}
