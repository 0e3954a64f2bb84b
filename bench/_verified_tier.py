"""A tier with messages of 1 KB and two keys each, written through the real parts."""

from __future__ import annotations

import time
from pathlib import Path

from bench._messages import run_of
from tieredstore.access.wiring import Tier, open_tier
from tieredstore.codec.message import encode_message
from tieredstore.codec.record import encode_properties, tags_code
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.index.contract import CommittedRun
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import Host

TOPIC, QUEUES, BATCH = "Orders", 2, 4_096
HOST = Host(b"\x7f\x00\x00\x01", 10911)
BODY = bytes(range(256)) * 4


def written_tier(root: Path, *, megabytes: int) -> StoreConfig:
    config = StoreConfig(
        provider="posix",
        path=str(root / "tiered"),
        store_path=str(root / "store"),
        broker_name="broker-a",
        index_slot_count=200_000,
        index_item_count=800_000,
    )
    parts = open_tier(config, runtime=Runtime.threads())
    try:
        parts.load()
        parts.index.start()
        files = [parts.files.create(TOPIC, number) for number in range(QUEUES)]
        for file in files:
            file.start_at(0)
        now_ms, written, first = int(time.time() * 1000), 0, 0
        while written < megabytes * 1_000_000:
            written += sum(_batch(parts, file, first, now_ms) for file in files)
            first += BATCH
        parts.index.seal()
    finally:
        parts.close()
    return config


def _batch(parts: Tier, file: FlatMessageFile, first: int, now_ms: int) -> int:
    queue_id = file.key.queue_id
    records = [
        encode_message(
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            log_offset=0,
            born_timestamp=now_ms,
            born_host=HOST,
            store_timestamp=now_ms + offset,
            store_host=HOST,
            body=BODY,
            property_bytes=encode_properties(
                {"UNIQ_KEY": f"{queue_id:08d}{offset:024d}", "KEYS": f"o-{offset}", "TAGS": "TagA"}
            ),
        )
        for offset in range(first, first + BATCH)
    ]
    run = run_of(first, records, tags_code=tags_code("TagA"))
    appended = file.append(run)
    assert appended.count == BATCH
    assert file.commit()
    committed = CommittedRun(run=run, log_offsets=appended.log_offsets)
    parts.index.put(TOPIC, file.topic_id, queue_id, committed)
    return len(run.records)
