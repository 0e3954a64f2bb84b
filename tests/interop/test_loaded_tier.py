"""A tier that was loaded in bulk, and reindexed, opened by RocketMQ's own classes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.interop.verifier import verify
from tests.jobs.load_kit import loaded, rows_of
from tests.jobs.test_reindex import run
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import peek_store_timestamp
from tieredstore.model.values import QueueKey

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OLD, NEW, WIDE = QueueKey("orders", 0), QueueKey("orders", 1), QueueKey("größe", 2)
LOADED = {OLD: range(150), NEW: range(200), WIDE: range(40)}


@pytest.mark.parametrize("is_reindexed", [False, True])
def test_java_reads_every_message_and_finds_it_by_key(is_reindexed: bool, tmp_path: Path) -> None:
    config = posix_config(tmp_path, index_slot_count=64, index_item_count=300)
    WrittenTier(config=config).add(*OLD, 90, seal=True)
    loaded(config, [[rows_of(key, numbers) for key, numbers in LOADED.items()]])
    if is_reindexed:
        run(config)
    with TieredReader.open(config) as reader:
        known = {
            (key.topic, key.queue_id, each.queue_offset): each
            for key in reader.queues()
            for each in reader.messages(*key)
        }
    assert len(known) == 90 + 150 + 200 + 40
    wanted: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for (topic, queue_id, _), each in known.items():
        message = decode_message(each.record)
        for text in {message.unique_key, *message.keys} - {None}:
            wanted.setdefault((topic, str(text)), set()).add((queue_id, each.log_offset))
    # The question of a broker whose local store begins after all that was loaded.
    newest = max(peek_store_timestamp(each.record) for each in known.values())
    window = {"begin": 0, "end": newest, "maxCount": 999}
    queries = [
        {"op": "indexQuery", "topic": topic, "key": key, **window}
        for topic, key in sorted(wanted)[::7]
    ]
    (tmp_path / "queries.json").write_text(json.dumps(queries), encoding="utf-8")
    rows = verify(
        "tier",
        *("--tier", config.path, "--tier-store", config.store_path),
        *("--broker", config.broker_name, "--cluster", config.cluster_name),
        *("--commitlog-max", str(config.commit_log_segment_bytes)),
        *("--cq-max", str(config.consume_queue_segment_bytes)),
        *("--index-slots", "64", "--index-items", "300"),
        *("--queries", str(tmp_path / "queries.json")),
        work=tmp_path,
    )
    assert [row for row in rows if row["kind"] == "problem"] == []
    said = {
        (row["topic"], row["queueId"], row["queueOffset"]): row
        for row in rows
        if row["kind"] == "message"
    }
    assert said.keys() == known.keys()
    for place, each in known.items():
        assert said[place]["physicalOffset"] == each.log_offset
        assert said[place]["sha256"] == hashlib.sha256(each.record).hexdigest()
    answers = [row for row in rows if row["kind"] == "answer"]
    assert len(answers) == len(queries) > 50
    for row in answers:
        query = row["query"]
        found = {(item["queueId"], item["offset"]) for item in row["result"]["items"]}
        assert found == wanted[query["topic"], query["key"]], row
