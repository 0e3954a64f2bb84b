"""The catalogue that RocketMQ 5.5.0 wrote, by another JSON library than 5.3.3's."""

from __future__ import annotations

import shutil
from pathlib import Path

from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.values import SegmentType

WRITTEN = Path(__file__).parent / "rocketmq-5.5.0.json"


def test_every_row_is_read_and_the_store_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "tieredStoreMetadata.json"
    shutil.copy(WRITTEN, path)
    for _ in range(2):  # as Java wrote it, and as we wrote it again
        with JsonMetadataStore.open(path) as store:
            assert [record.topic for record in store.topics()] == ["TopicTest", "主题-grün"]
            queues = [(one.topic, one.queue_id, one.min_offset) for one in store.queues()]
            assert queues == [("TopicTest", 0, 0), ("TopicTest", 1, 17)]
            log, units = store.segments()
            assert (log.path, log.type, log.size) == (
                "broker-a/TopicTest/0",
                SegmentType.COMMIT_LOG,
                1234,
            )
            assert (units.type, units.status, units.size) == (SegmentType.CONSUME_QUEUE, 1, 40)
            store.compact()
