"""A key index that we uploaded, footer and all, opened and asked by RocketMQ's own classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.flat.tiers import run_of
from tests.interop.test_tier import (
    BROKER,
    CLUSTER,
    LOG_BYTES_MAX,
    QUEUE_BYTES_MAX,
    TierWriter,
    Written,
)
from tests.interop.verifier import verify
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import peek_store_timestamp
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import CommittedRun
from tieredstore.index.store import IndexStore
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import SegmentType
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import BORN_HOST, STORE_HOST, STORE_TIMESTAMP

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SLOTS, ITEMS = 64, 300
DAY_MS = 86_400_000
QUEUES = [("TopicTest", 0, 120), ("TopicTest", 3, 45), ("主题", 1, 20)]


def put(index: IndexStore, catalogue: JsonMetadataStore, messages: Sequence[Written]) -> None:
    topic = catalogue.topic(messages[0].topic)
    assert topic is not None
    run = CommittedRun(
        run=run_of(messages[0].queue_offset, [one.record for one in messages]),
        log_offsets=np.array([one.log_offset for one in messages], np.int64),
    )
    index.put(topic.topic, topic.topic_id, messages[0].queue_id, run)


@pytest.fixture
def written(tmp_path: Path) -> list[Written]:
    """A tier whose index was made in bulk, a day after its messages were stored: even the last file
    is uploaded, as it begins before others."""
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP + DAY_MS)
    config = StoreConfig(
        broker_name=BROKER,
        cluster_name=CLUSTER,
        store_path=str(tmp_path / "store"),
        index_slot_count=SLOTS,
        index_item_count=ITEMS,
        expiry_enabled=False,
    )
    with JsonMetadataStore.open(config.catalogue_path) as catalogue:
        tier = TierWriter(tmp_path / "tier", catalogue)
        provider = PosixProvider(tmp_path / "tier", CLUSTER, runtime)
        index = IndexStore(config, provider=provider, metadata=catalogue, runtime=runtime)
        index.load()
        written = []
        for at, (topic, queue_id, count) in enumerate(QUEUES):
            found = tier.queue(
                topic, queue_id, first=0, count=count, born=BORN_HOST, store=STORE_HOST
            )
            put(index, catalogue, found)
            written += found
            if at < len(QUEUES) - 1:
                index.seal()
            runtime.clock.sleep(60)
        index.shutdown()
        rows = catalogue.segments(f"{BROKER}/rmq_sys_INDEX/0", SegmentType.INDEX)
        assert len(rows) == 3  # the first queue's keys did not fit one file
    return written


def test_java_finds_the_keys_of_an_index_that_we_uploaded(
    written: list[Written], tmp_path: Path
) -> None:
    # A broker asks its tier up to the earliest time of its local store, which is later than all
    # messages that only the tier has.
    window = {"begin": 0, "end": max(peek_store_timestamp(one.record) for one in written)}
    wanted: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for one in written:
        message = decode_message(one.record)
        for key in {message.unique_key or "", *message.keys}:
            place = one.queue_id, one.log_offset
            wanted.setdefault((one.topic, key), set()).add(place)
    queries: list[dict[str, Any]] = []
    for (topic, key), _ in sorted(wanted.items())[::3]:
        queries.append({"op": "indexQuery", "topic": topic, "key": key, "maxCount": 999, **window})
        queries.append({"op": "queryMessage", "topic": topic, "key": key, "maxNum": 999, **window})
    asked = {"op": "indexQuery", "topic": "TopicTest", "maxCount": 999, **window}
    queries += [{**asked, "key": "absent"}, {**asked, "key": "shared"}]
    (tmp_path / "queries.json").write_text(json.dumps(queries), encoding="utf-8")
    rows = verify(
        "tier",
        *("--tier", str(tmp_path / "tier"), "--tier-store", str(tmp_path / "store")),
        *("--broker", BROKER, "--cluster", CLUSTER),
        *("--commitlog-max", str(LOG_BYTES_MAX), "--cq-max", str(QUEUE_BYTES_MAX)),
        *("--index-slots", str(SLOTS), "--index-items", str(ITEMS)),
        *("--queries", str(tmp_path / "queries.json")),
        work=tmp_path,
    )
    assert [row for row in rows if row["kind"] == "problem"] == []
    answers = [row for row in rows if row["kind"] == "answer"]
    assert len(answers) == len(queries) > 50
    for row in answers:
        query, result = row["query"], row["result"]
        held = wanted.get((query["topic"], query["key"]), set())
        if query["op"] == "indexQuery":
            found = {(item["queueId"], item["offset"]) for item in result["items"]}
            assert found == held, row
        else:
            found = {(one["queueId"], one["physicalOffset"]) for one in result["messages"]}
            assert found == held, row
