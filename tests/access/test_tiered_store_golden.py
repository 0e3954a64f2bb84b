"""The whole store over what the Java broker left behind: its answers, but for the listed rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.flat.golden_tiers import (
    GOLDEN,
    NOW_MS,
    differences,
    expectation,
    facts,
    page_of,
    place_of,
)
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import QueryResult
from tieredstore.model.values import Boundary, StorageLevel

QUERIES: Final = "tier-posix.expect-tiered-message-store.json"
# Java's own bookkeeping beside an answer: we have no such fields.
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
    """Ours, in the form of Java's."""
    store.level = StorageLevel[query["level"]]
    what, topic = query["op"], query["topic"]
    if what == "storeQueryMessage":
        window = {"begin": query["begin"], "end": query["end"]}
        return found(store.query_message(topic, query["key"], count_max=query["maxNum"], **window))
    queue = topic, query["queueId"]
    if what == "storeGetMessage":
        return page(store, query)
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


def page(store: TieredMessageStore, query: dict[str, Any]) -> dict[str, Any]:
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
