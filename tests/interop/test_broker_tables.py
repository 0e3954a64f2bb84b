"""Consumer offsets and topics, written by us and read by Java, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.test_tables import memory
from tests.access.tiered_kit import a_config
from tests.interop.verifier import broker_tables
from tieredstore.access.tables import BrokerTables
from tieredstore.codec.broker_tables import TopicConfig
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import QueueKey

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def opened(folder: Path) -> BrokerTables:
    tables = BrokerTables(a_config(folder), memory(), Runtime.inline())
    tables.load()
    return tables


def test_each_reads_what_the_other_wrote(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    tables = opened(tmp_path)
    offsets = {QueueKey("TopicTest", number): 10 * number for number in range(20)}
    tables.consumer_offsets.reset("group-a", offsets)
    tables.consumer_offsets.commit("über|gruppe", "%RETRY%group-a", 0, 7)
    tables.topic_table.put(
        TopicConfig(
            name="TopicTest",
            read_queue_count=20,
            write_queue_count=8,
            is_ordered=True,
            attributes={"message.type": "DELAY"},
            others={"later": {"x": [1, None]}},
        )
    )
    tables.close()

    said = broker_tables(config, tmp_path, change=True)
    assert said["loaded"] is True
    assert said["offsets"] == {
        "TopicTest@group-a": {str(number): 10 * number for number in range(20)},
        "%RETRY%group-a@über|gruppe": {"0": 7},
    }
    assert said["versions"] == [1, 1]
    described = said["topics"]["TopicTest"]
    for part in ("readQueueNums=20", "writeQueueNums=8", "perm=RW-", "order=true", "=DELAY"):
        assert part in described

    again = opened(tmp_path)
    assert again.consumer_offsets.get("group-a", "TopicTest", 19) == 1190
    assert again.consumer_offsets.get("über|gruppe", "%RETRY%group-a", 0) == 1007
    assert again.consumer_offsets.version.counter == 2
    assert again.topic_table.get("FromJava") == TopicConfig(
        name="FromJava", read_queue_count=2, write_queue_count=3
    )
    known = again.topic_table.get("TopicTest")
    assert known is not None
    assert (known.read_queue_count, known.attributes) == (20, {"message.type": "DELAY"})


def test_java_falls_back_to_the_one_before_as_we_do(tmp_path: Path) -> None:
    tables = opened(tmp_path)
    for offset in (1, 2):
        tables.consumer_offsets.commit("group-a", "TopicTest", 0, offset)
        tables.topic_table.put(TopicConfig(name=f"Topic-{offset}"))
        tables.step()
    (tmp_path / "store" / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"T')
    said = broker_tables(tmp_path / "store" / "config", tmp_path)
    assert said["offsets"] == {"TopicTest@group-a": {"0": 1}}
    assert sorted(said["topics"]) == ["Topic-1", "Topic-2"]
