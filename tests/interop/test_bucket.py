"""A tier in a bucket, copied to a folder with nothing else, opened by RocketMQ's own classes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from tests.interop.verifier import verify
from tests.s3.conftest import moto, s3_environment
from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS
from tests.s3.test_tier_on_s3 import GONE, Machine
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import INT64_MAX
from tieredstore.testing.samples import TOPIC

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.s3]

__all__ = ["moto", "s3_environment"]

COUNT = 150


@pytest.mark.parametrize("client", CLIENTS)
def test_java_reads_every_message_of_a_copied_bucket_and_finds_it_by_key(
    client: str, tmp_path: Path, moto: tuple[str, Door]
) -> None:
    machine = Machine(tmp_path, moto[0], client)
    store = machine.open()
    machine.put(store, range(COUNT // 2))
    assert store.flush()  # an entry of the log; sealing turns it into one object
    machine.put(store, range(COUNT // 2, COUNT))
    machine.put(store, range(7), topic=GONE)
    assert store.flush(seal=True)
    store.shutdown()

    folder = tmp_path / "copied"
    nowhere = dataclasses.replace(
        machine.copied_to(folder), store_path=str(tmp_path / "java"), catalogue="rebuild"
    )
    with TieredReader(nowhere, runtime=Runtime.inline()) as reader:
        known = {
            (key.topic, key.queue_id, each.queue_offset): each
            for key in reader.queues()
            for each in reader.messages(*key)
        }
        catalogue = Path(nowhere.catalogue_path)
        catalogue.parent.mkdir(parents=True)
        catalogue.write_bytes(Path(machine.config().catalogue_path).read_bytes())
    assert len(known) == COUNT + 7
    wanted: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for (topic, queue_id, _), each in known.items():
        message = decode_message(each.record)
        for text in {message.unique_key, *message.keys} - {None}:
            wanted.setdefault((topic, str(text)), set()).add((queue_id, each.log_offset))
    window = {"begin": 0, "end": INT64_MAX, "maxCount": 999}
    queries = [
        {"op": "indexQuery", "topic": topic, "key": key, **window} for topic, key in sorted(wanted)
    ]
    (tmp_path / "queries.json").write_text(json.dumps(queries), encoding="utf-8")
    rows = verify(
        "tier",
        *("--tier", str(folder), "--tier-store", nowhere.store_path),
        *("--broker", nowhere.broker_name, "--cluster", nowhere.cluster_name),
        *("--commitlog-max", str(nowhere.commit_log_segment_bytes)),
        *("--cq-max", str(nowhere.consume_queue_segment_bytes)),
        *("--index-slots", str(nowhere.index_slot_count)),
        *("--index-items", str(nowhere.index_item_count)),
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
    assert len(answers) == len(queries) > COUNT
    for row in answers:
        query = row["query"]
        found = {(item["queueId"], item["offset"]) for item in row["result"]["items"]}
        assert found == wanted[query["topic"], query["key"]], row
    assert {topic for topic, _, _ in said} == {TOPIC, GONE}
