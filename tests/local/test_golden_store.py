"""Java's stores, opened whole: every answer that Java gave, and where ours differs."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.codec.golden_files import GOLDEN, Subscription, expected
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.values import Boundary, GetStatus
from tieredstore.testing.samples import a_message

Row = dict[str, Any]
STORES = ["local-clean", "local-expired"]


def a_copy(name: str, target: Path) -> LocalMessageStore:
    shutil.copytree(GOLDEN / name, target)
    return a_copy_in_place(target)


def a_copy_in_place(folder: Path) -> LocalMessageStore:
    config = LocalConfig(
        store_path=str(folder),
        commit_log_file_bytes=32768,
        queue_file_bytes=400,
        index_slot_count=101,
        index_item_count=400,
        dispatch_interval_ms=0,
        reserve_hours=1_000_000,
    )
    store = LocalMessageStore(config, Runtime.inline(now_ms=1_795_171_700_000))
    store.load()
    return store


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(name: str, tmp_path: Path) -> Iterator[LocalMessageStore]:
    store = a_copy(name, tmp_path / name)
    yield store
    store.shutdown()


def rows_of(name: str, op: str) -> list[tuple[Row, Row]]:
    document = expected(f"{name}.expect-queries.json")
    rows = document if isinstance(document, list) else document["answers"]
    return [(row["query"], row["result"]) for row in rows if row["query"]["op"] == op]


def queue_of(query: Row) -> tuple[str, int]:
    return query["topic"], query["queueId"]


def test_every_read_by_offset_is_answered_as_java_does(store: LocalMessageStore, name: str) -> None:
    rows = rows_of(name, "getMessage")
    assert len(rows) > 80
    for query, result in rows:
        got = store.get_message(
            *queue_of(query),
            query["offset"],
            count_max=query["maxMsgNums"],
            bytes_max=query.get("maxTotalMsgSize", 128 * 1024 * 1024),
            message_filter=Subscription(query["tags"]) if "tags" in query else None,
        )
        assert (got.status.name, got.next_offset, got.min_offset, got.max_offset) == (
            result["status"],
            result["nextBeginOffset"],
            result["minOffset"],
            result["maxOffset"],
        ), query
        assert [one.queue_offset for one in got.messages] == result["queueOffsets"]
        assert [one.log_offset for one in got.messages] == result["physicalOffsets"]
        if got.messages:
            records = b"".join(one.record for one in got.messages)
            assert hashlib.sha256(records).hexdigest() == result["sha256"]


def test_every_search_by_time_is_answered_as_java_does(store: LocalMessageStore, name: str) -> None:
    for query, result in rows_of(name, "offsetByTime"):
        got = store.offset_by_time(
            *queue_of(query), query["timestamp"], Boundary[query["boundary"]]
        )
        # Java answers 0 for a queue that does not exist; we answer None.
        assert (got or 0) == result["offset"], query


def test_times_of_queues_are_javas(store: LocalMessageStore, name: str) -> None:
    for query, result in rows_of(name, "storeTimestamp"):
        got = store.store_time(*queue_of(query), query["offset"])
        assert (-1 if got is None else got) == result["timestamp"], query
    for query, result in rows_of(name, "earliestTime"):
        got = store.earliest_time(*queue_of(query))
        assert (-1 if got is None else got) == result["timestamp"], query


def test_what_is_in_the_store_is_in_a_queue_and_in_the_log(
    store: LocalMessageStore, name: str
) -> None:
    """Java reads a missing queue unit as offset 0, and says that it has the message."""
    places = {
        (*queue_of(q), q["offset"]): r["physicalOffset"]
        for q, r in rows_of(name, "commitLogOffset")
    }
    for query, result in rows_of(name, "inStore"):
        topic, queue_id = queue_of(query)
        minimum, maximum = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        there = minimum is not None and maximum is not None and minimum <= query["offset"] < maximum
        assert store.contains(topic, queue_id, query["offset"]) == (there and result["inStore"])
        if there and result["inStore"]:
            place = places[topic, queue_id, query["offset"]]
            selected = store.message_at(place)
            assert selected is not None
            assert selected.queue_offset == query["offset"]


def test_messages_are_found_by_log_offset(store: LocalMessageStore, name: str) -> None:
    for query, result in rows_of(name, "lookMessage"):
        selected = store.message_at(query["physicalOffset"])
        # Asked for offset 0 of an expired log, Java returns the first message that it still has.
        found = result["found"] and result["physicalOffset"] == query["physicalOffset"]
        assert (selected is not None) == found, query
        if selected is not None:
            message = decode_message(selected.record)
            assert message.offset_id == result["msgId"]
            assert (message.topic, message.queue_id) == queue_of(result)
            assert selected.queue_offset == result["queueOffset"]


def keyed(message: Row, key: str) -> bool:
    words = (message["keys"] or "").split(" ") if "keys" in message else []
    return bool(key) and (key == message.get("uniqKey") or key in words)


def test_every_query_by_key_equals_a_scan_of_all_messages(
    store: LocalMessageStore, name: str
) -> None:
    """Java's own answers contain hash collisions, and miss what rounding to seconds drops."""
    messages = [
        row
        for row in expected("local-clean.expect-messages.json")
        if row["physicalOffset"] >= (store.min_log_offset() or 0)
        and row["sysFlag"] & 0xC != 0xC  # rolled back messages are not indexed
    ]
    asked = {
        (query["topic"], query["key"], query["begin"], query["end"])
        for query, _ in rows_of(name, "queryOffset") + rows_of(name, "queryMessage")
    }
    assert len(asked) > 30
    found_count = 0
    for topic, key, begin, end in asked:
        wanted = [
            row["physicalOffset"]
            for row in reversed(messages)
            if row["topic"] == topic and keyed(row, key) and begin <= row["storeTimestamp"] <= end
        ]
        got = store.query_message(topic, key, count_max=64, begin=begin, end=end)
        assert [one.log_offset for one in got.messages] == wanted[:64], (topic, key, begin, end)
        assert got.complete
        found_count += len(wanted)
    assert found_count > 30


def units_digest(store: LocalMessageStore, folder: Path, row: Row) -> str:
    digest = hashlib.sha256()
    files = sorted((folder / "consumequeue" / row["topic"] / str(row["queueId"])).iterdir())
    first = int(files[0].name)
    data = b"".join(file.read_bytes() for file in files)
    digest.update(data[row["minOffset"] * 20 - first : row["maxOffset"] * 20 - first])
    return digest.hexdigest()


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_a_store_that_crashed_recovers_to_what_java_recovers_to(
    variant: str, tmp_path: Path
) -> None:
    folder = tmp_path / variant
    store = a_copy(f"local-crash/{variant}", folder)
    java = expected("local-crash.expect-recovery.json")["variants"][variant]
    recovered = java["recovered"]
    assert store.recovery is not None
    assert store.recovery.abnormal
    assert store.max_log_offset() == recovered["maxPhyOffset"]
    assert store.min_log_offset() == recovered["minPhyOffset"]
    assert store.confirmed_offset() == recovered["flushedWhere"]
    for row in java["queues"]:
        assert store.min_offset(*queue_of(row)) == row["minOffset"]
        assert store.max_offset(*queue_of(row)) == row["maxOffset"]
        assert units_digest(store, folder, row) == row["unitsSha256"]
    store.start()
    for row in java["nextPutsAfterRecovery"]:
        put = store.put_message(a_message(0, topic="GoldAa", queue_id=1))
        assert put.queue_offset == row["queueOffset"]
        if row is java["nextPutsAfterRecovery"][0]:
            assert put.log_offset == row["physicalOffset"]
    store.shutdown()


@pytest.mark.parametrize("missing", [["index"], ["consumequeue"], ["consumequeue", "index"]])
def test_queues_and_index_are_built_anew_with_javas_bytes(
    missing: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(GOLDEN / "local-clean", folder)
    for part in missing:
        shutil.rmtree(folder / part)
    store = a_copy_in_place(folder)
    for row in expected("local-clean.expect-state.json")["queues"]:
        assert store.max_offset(*queue_of(row)) == row["maxOffset"]
        assert units_digest(store, folder, row) == row["unitsSha256"]
    store.shutdown()
    if "index" in missing:
        java = [file.read_bytes() for file in sorted((GOLDEN / "local-clean/index").iterdir())]
        ours = [file.read_bytes() for file in sorted((folder / "index").iterdir())]
        assert ours == java


def test_reading_a_clean_store_finds_it_whole(store: LocalMessageStore) -> None:
    assert store.recovery is not None
    assert not store.recovery.abnormal
    assert store.recovery.torn is None
    assert store.recovery.damages == ()
    statuses = {
        store.get_message(*key, store.min_offset(*key) or 0).status for key in store.queues()
    }
    assert statuses <= {
        GetStatus.FOUND,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_OVERFLOW_ONE,
    }
