"""For tests: the tiers that the Java broker wrote, and its answers about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.codec.golden_files import sha256
from tieredstore.codec.record import peek_queue_id
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import GetResult, SelectedMessage
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixProvider

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
NOW_MS = 1_795_171_600_000  # a little after the last message


def golden_queues(name: str) -> dict[QueueKey, FlatMessageFile]:
    """The queues of a golden tier, which is read in place and not changed."""
    runtime = Runtime.inline(now_ms=NOW_MS)
    provider = PosixProvider(GOLDEN / name / "tiered", "GoldenCluster", runtime)
    catalogue = GOLDEN / name / "store" / "config" / "tieredStoreMetadata.json"
    metadata = JsonMetadataStore.open(catalogue, read_only=True)
    files = {}
    for queue in metadata.queues():
        topic = metadata.topic(queue.topic)
        assert topic is not None
        file = FlatMessageFile(
            queue,
            topic,
            StoreConfig(),
            path=f"broker-gold-a/{queue.topic}/{queue.queue_id}",
            provider=provider,
            metadata=metadata,
            clock=runtime.clock,
        )
        file.log.load()
        file.queue.load()
        files[queue.key] = file
    return files


def expectation(name: str) -> Any:
    return json.loads((GOLDEN / name).read_bytes())


def differences(file: str) -> dict[int, dict[str, Any]]:
    """The rows of an expectation file that we answer differently, by row number."""
    return {row["row"]: row for row in expectation("differences.json") if row["file"] == file}


def messages_of(rows: list[dict[str, Any]]) -> dict[QueueKey, list[dict[str, Any]]]:
    queues: dict[QueueKey, list[dict[str, Any]]] = {}
    for row in rows:
        queues.setdefault(QueueKey(row["topic"], row["queueId"]), []).append(row)
    return queues


def page_of(result: GetResult) -> dict[str, Any]:
    """Our answer in the form of Java's."""
    records = [one.record for one in result.messages]
    answer = {
        "status": result.status.name,
        "nextBeginOffset": result.next_offset,
        "minOffset": result.min_offset,
        "maxOffset": result.max_offset,
        "count": len(records),
        "totalSize": sum(map(len, records)),
        "queueOffsets": [one.queue_offset for one in result.messages],
        "physicalOffsets": [one.log_offset for one in result.messages],
    }
    return {**answer, "sha256": sha256(b"".join(records))} if records else answer


def facts(message: SelectedMessage) -> dict[str, Any]:
    """A message found by key, in the form of Java's answers."""
    return {
        "queueId": peek_queue_id(message.record),
        "queueOffset": message.queue_offset,
        "physicalOffset": message.log_offset,
        "size": len(message.record),
        "sha256": sha256(message.record),
    }


def place_of(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["queueId"], row["queueOffset"], row["physicalOffset"]
