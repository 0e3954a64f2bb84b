"""Compares our answers with the Java broker's over its own files: the tier, and both stores."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.access.fetch_kit import ByNamedCode
from tests.codec.golden_files import sha256
from tests.flat.golden_tiers import (
    GOLDEN,
    NOW_MS,
    differences,
    expectation,
    facts,
    page_of,
    place_of,
)
from tieredstore.access.fetcher import Fetcher
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import StoredMessage, decode_message
from tieredstore.codec.record import tags_code
from tieredstore.driver.message_store import ReadRequest
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.index.contract import NoIndex
from tieredstore.index.store import IndexStore
from tieredstore.index.uploaded import UploadedIndex
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import QueryResult
from tieredstore.model.values import Boundary, QueueKey, StorageLevel
from tieredstore.providers.posix import PosixProvider

SLOTS = 64
KEY_QUERIES = "tier-posix.expect-key-queries.json"
QUEUE_QUERIES = "tier-posix.expect-queue-queries.json"


@contextmanager
def opened(name: str, **settings: Any) -> Iterator[Fetcher]:
    """A fetcher on a golden tier, which is read in place and not changed."""
    runtime = Runtime.inline(now_ms=NOW_MS)
    config = StoreConfig(broker_name="broker-gold-a", cluster_name="GoldenCluster", **settings)
    catalogue = GOLDEN / name / "store" / "config" / "tieredStoreMetadata.json"
    with (
        PosixProvider(GOLDEN / name / "tiered", "GoldenCluster", runtime) as provider,
        JsonMetadataStore.open(catalogue, read_only=True) as metadata,
    ):
        store = FlatFileStore(
            config, provider=provider, metadata=metadata, runtime=runtime, read_only=True
        )
        store.load()
        yield Fetcher(store, NoIndex(), config, runtime, NoMetrics())
        store.close()


@contextmanager
def with_index(folder: Path, *, sealed: bool) -> Iterator[Fetcher]:
    """A fetcher on a copy of the golden tier, with the index that RocketMQ left there.

    If `sealed`, all of the index is uploaded and read from the backend.
    """
    home = folder / "tier-posix"
    shutil.copytree(GOLDEN / "tier-posix", home)
    runtime = Runtime.inline(now_ms=NOW_MS)
    config = StoreConfig(
        broker_name="broker-gold-a",
        cluster_name="GoldenCluster",
        store_path=str(home / "store"),
        index_slot_count=SLOTS,
        index_item_count=300,
    )
    with (
        PosixProvider(home / "tiered", "GoldenCluster", runtime) as provider,
        JsonMetadataStore.open(config.catalogue_path) as metadata,
    ):
        store = FlatFileStore(
            config, provider=provider, metadata=metadata, runtime=runtime, read_only=True
        )
        store.load()
        index = IndexStore(config, provider=provider, metadata=metadata, runtime=runtime)
        index.load()
        if sealed:
            index.seal()
            index.shutdown()
            reader = UploadedIndex(config, provider=provider, metadata=metadata, runtime=runtime)
            reader.load()
            yield Fetcher(store, reader, config, runtime, NoMetrics())
        else:
            yield Fetcher(store, index, config, runtime, NoMetrics())
            index.shutdown()
        store.close()


@cache
def rows_of(name: str) -> list[dict[str, Any]]:
    if name == "legacy":
        rows: list[dict[str, Any]] = expectation("legacy.expect.json")["messages"]
        return [{**row, "tieredCommitLogOffset": row["physicalOffset"]} for row in rows]
    found: list[dict[str, Any]] = expectation("tier-posix.expect-messages.json")
    return found


@pytest.mark.parametrize("name", ["tier-posix", "legacy"])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("count_max", [1, 32, 4096])
def test_every_message_is_as_java_says(name: str, cached: bool, count_max: int) -> None:
    with opened(name, read_ahead_enabled=cached, crc_check_enabled=True) as fetcher:
        found = []
        for topic, queue_id in sorted({(row["topic"], row["queueId"]) for row in rows_of(name)}):
            at = fetcher.min_offset(topic, queue_id)
            assert at is not None
            while at != fetcher.commit_offset(topic, queue_id):
                result = fetcher.get_message(ReadRequest(topic, queue_id, at, count_max=count_max))
                assert result.messages
                for one in result.messages:
                    place = topic, queue_id, one.queue_offset, one.log_offset, one.tags_code
                    time = fetcher.store_time(topic, queue_id, one.queue_offset)
                    found.append((*place, time, sha256(one.record)))
                at = result.next_offset
    names = ("topic", "queueId", "queueOffset", "tieredCommitLogOffset", "tagsCode")
    wanted = [
        (*(row[each] for each in names), row["storeTimestamp"], row["sha256"])
        for row in rows_of(name)
    ]
    assert found == sorted(wanted)


def page(fetcher: Fetcher, query: dict[str, Any]) -> dict[str, Any]:
    """Our answer in the form of Java's."""
    result = fetcher.get_message(
        ReadRequest(
            query["topic"],
            query["queueId"],
            query["offset"],
            count_max=query["maxMsgNums"],
            message_filter=(
                ByNamedCode(*(tags_code(tag) for tag in query["tags"])) if "tags" in query else None
            ),
        )
    )
    return page_of(result)


def test_pages_are_javas_but_for_the_listed_rows() -> None:
    listed = differences(QUEUE_QUERIES)
    for cached in (True, False):
        with opened("tier-posix", read_ahead_enabled=cached) as fetcher:
            for number, row in enumerate(expectation(QUEUE_QUERIES)):
                query, javas = row["query"], row["result"]
                if query["op"] != "getMessage" or query.get("cache", cached) is not cached:
                    continue
                ours = page(fetcher, query)
                if number in listed:
                    assert ours == listed[number]["ours"] != javas, row
                else:
                    assert {name: ours[name] for name in javas if name in ours} == {
                        name: javas[name] for name in javas if name in ours
                    }, (number, row)


@cache
def decoded() -> list[tuple[dict[str, Any], StoredMessage]]:
    """Every message of the tier with its expected row."""
    found = []
    with opened("tier-posix") as fetcher:
        for row in rows_of("tier-posix"):
            key = QueueKey(row["topic"], row["queueId"])
            (one,) = fetcher.get_message(
                ReadRequest(*key, row["queueOffset"], count_max=1)
            ).messages
            found.append((row, decode_message(one.record)))
    return found


def by_linear_scan(topic: str, key: str, begin: int, end: int) -> list[dict[str, Any]]:
    return [
        row
        for row, message in decoded()
        if row["topic"] == topic
        and key in (message.unique_key, *message.keys)
        and begin <= message.store_timestamp <= end
    ]


def check(result: QueryResult, scanned: list[dict[str, Any]], count_max: int) -> None:
    """The result has the newest messages of a scan, newest first; equal times in any order."""
    assert result.complete
    found = [decode_message(one.record) for one in result.messages]
    times = [message.store_timestamp for message in found]
    wanted = sorted((row["storeTimestamp"] for row in scanned), reverse=True)
    assert times == wanted[: max(0, count_max)]
    ours = [(message.queue_id, message.queue_offset) for message in found]
    assert len(set(ours)) == len(ours)
    assert set(ours) <= {(row["queueId"], row["queueOffset"]) for row in scanned}


@pytest.mark.parametrize("sealed", [False, True])
def test_keys_are_found_as_by_a_linear_scan_for_every_query_that_java_was_asked(
    tmp_path: Path, sealed: bool
) -> None:
    asked = {
        (query["topic"], query["key"], query["begin"], query["end"], count)
        for query in (row["query"] for row in expectation(KEY_QUERIES)["answers"])
        for count in (query.get("maxCount", query.get("maxNum")), 1, 3)
    }
    assert len(asked) > 500
    with with_index(tmp_path, sealed=sealed) as fetcher:
        for topic, key, begin, end, count_max in sorted(asked):
            result = fetcher.query_message(topic, key, count_max=count_max, begin=begin, end=end)
            check(result, by_linear_scan(topic, key, begin, end), count_max)


@pytest.mark.parametrize("sealed", [False, True])
def test_messages_by_key_are_javas_but_for_the_listed_rows(tmp_path: Path, sealed: bool) -> None:
    listed = differences(KEY_QUERIES)
    seen = 0
    with with_index(tmp_path, sealed=sealed) as fetcher:
        for number, row in enumerate(expectation(KEY_QUERIES)["answers"]):
            query, javas = row["query"], row["result"]
            if query["op"] != "queryMessage":
                continue
            seen += 1
            result = fetcher.query_message(
                query["topic"],
                query["key"],
                count_max=query["maxNum"],
                begin=query["begin"],
                end=query["end"],
            )
            ours = sorted(map(facts, result.messages), key=place_of)
            if number in listed:
                assert {"count": len(ours), "messages": ours} == listed[number]["ours"], row
                assert ours != sorted(javas["messages"], key=place_of), row
            else:
                assert ours == sorted(javas["messages"], key=place_of), (number, row)
    assert seen == 34


# The whole store over the files of the Java broker: the same answers, but for the listed rows


QUERIES: Final = "tier-posix.expect-tiered-message-store.json"
# Java's bookkeeping beside an answer; it gives none with an empty answer or one from the tier.
NOT_OURS: Final = {"fromTieredStore", "indexLastUpdateTimestamp", "indexLastUpdatePhyOffset"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredMessageStore]:
    """A copy of the golden tier with a copy of the local store that has lost its oldest files."""
    root = tmp_path_factory.mktemp("golden")
    for name in ("local-expired", "tier-posix"):
        shutil.copytree(GOLDEN / name, root / name)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    runtime = Runtime.inline(now_ms=NOW_MS)
    local = LocalConfig(
        store_path=str(root / "local-expired"),
        commit_log_file_bytes=32768,
        queue_file_bytes=400,
        index_slot_count=101,
        index_item_count=400,
        dispatch_interval_ms=0,
    )
    store = TieredMessageStore(
        LocalMessageStore(local, runtime), config_of(root / "tier-posix"), runtime=runtime
    )
    store.load()
    yield store
    store.shutdown(drain=False)


def config_of(home: Path) -> StoreConfig:
    return StoreConfig(
        broker_name="broker-gold-a",
        cluster_name="GoldenCluster",
        store_path=str(home / "store"),
        provider="posix",
        path=str(home / "tiered"),
        index_slot_count=64,
        index_item_count=300,
        commit_log_segment_bytes=16000,
        consume_queue_segment_bytes=400,
    )


def answer(store: TieredMessageStore, query: dict[str, Any]) -> dict[str, Any]:
    """Our answer in the form of Java's."""
    store.level = StorageLevel[query["level"]]
    what, topic = query["op"], query["topic"]
    if what == "storeQueryMessage":
        window = {"begin": query["begin"], "end": query["end"]}
        return found(store.query_message(topic, query["key"], count_max=query["maxNum"], **window))
    queue = topic, query["queueId"]
    if what == "storeGetMessage":
        return page_of_both(store, query)
    if what == "storeOffsetByTime":
        boundary = Boundary[query["boundary"]]
        return {"offset": known(store.offset_by_time(*queue, query["timestamp"], boundary))}
    if what == "storeStoreTimestamp":
        return {"timestamp": known(store.store_time(*queue, query["offset"]))}
    if what == "storeEarliestTime":
        return {"timestamp": known(store.earliest_time(*queue))}
    ask = {"storeMinOffset": store.min_offset, "storeMaxOffset": store.max_offset}[what]
    return {"offset": known(ask(*queue))}


def known(value: int | None) -> int:
    return -1 if value is None else value


def page_of_both(store: TieredMessageStore, query: dict[str, Any]) -> dict[str, Any]:
    result = store.get_message(
        query["topic"], query["queueId"], query["offset"], count_max=query["maxMsgNums"]
    )
    return page_of(result)


def found(result: QueryResult) -> dict[str, Any]:
    assert result.complete
    return {
        "count": len(result.messages),
        "messages": sorted(map(facts, result.messages), key=place_of),
    }


def javas(row: dict[str, Any]) -> dict[str, Any]:
    """Java's answer; the order in which it finds messages by key is not defined."""
    result = {name: value for name, value in row["result"].items() if name not in NOT_OURS}
    if "messages" in result:
        result["messages"] = sorted(result["messages"], key=place_of)
    return result


def test_a_query_says_how_far_both_indexes_are(store: TieredMessageStore) -> None:
    said: Counter[str] = Counter()
    for row in expectation(QUERIES):
        query, java = row["query"], row["result"]
        if query["op"] != "storeQueryMessage":
            continue
        store.level = StorageLevel[query["level"]]
        result = store.query_message(
            query["topic"],
            query["key"],
            count_max=query["maxNum"],
            begin=query["begin"],
            end=query["end"],
        )
        near = result.indexed_log_offset, result.indexed_timestamp
        assert near in ((-1, 0), (373091, 1795171582281))
        if java["indexLastUpdatePhyOffset"]:
            said["near"] += 1
            assert near == (java["indexLastUpdatePhyOffset"], java["indexLastUpdateTimestamp"])
        if result.tier_indexed_timestamp:
            said["tier"] += 1
            assert result.tier_indexed_timestamp == 1795171582281
    assert said["near"] >= 8
    assert said["tier"] > 10


def test_every_answer_is_javas_but_for_the_listed_rows(store: TieredMessageStore) -> None:
    listed = differences(QUERIES)
    rows = expectation(QUERIES)
    for number, row in enumerate(rows):
        ours = answer(store, row["query"])
        if number in listed:
            assert ours == listed[number]["ours"] != javas(row), (number, row)
        else:
            assert ours == javas(row), (number, row)
    assert len(rows) == 405
    assert len(listed) == 24
