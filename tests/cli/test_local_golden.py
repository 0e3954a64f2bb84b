"""The verbs of `tieredstore local` on the stores that Java wrote: its messages, its answers."""

from __future__ import annotations

import pytest

from tests.cli.cli_kit import SIZES, Command, Row, java_row, messages, queries
from tests.codec.golden_files import GOLDEN, expected
from tieredstore.local.reader import LocalReader
from tieredstore.model.values import Boundary

MIN_LOG_OFFSETS = {"local-clean": 0, "local-expired": 229376}


@pytest.fixture(params=sorted(MIN_LOG_OFFSETS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def in_queues(name: str) -> list[Row]:
    return [java_row(row) for row in messages(MIN_LOG_OFFSETS[name]) if row["inConsumeQueue"]]


def without_properties(rows: list[Row]) -> list[Row]:
    return [{field: row[field] for field in row if field != "properties"} for row in rows]


def test_cat_prints_what_the_queues_name_in_the_order_of_the_log(
    command: Command, name: str
) -> None:
    ran = command.golden("cat", GOLDEN / name, "--json").done()
    wanted = in_queues(name)
    assert len(wanted) > 200
    assert without_properties(ran.rows) == wanted


@pytest.mark.parametrize(
    ("topic", "queue", "begin", "count"),
    [
        ("GoldAa", None, 0, None),
        ("GoldAa", 1, 0, None),
        ("GoldBB", 0, 20, 7),
        (None, 1, 15, None),
        (None, None, 0, 3),
        ("GoldAa", 2, 38, None),
        ("GoldAa", 2, 39, None),
        (None, None, 0, 0),
    ],
)
def test_cat_prints_the_messages_that_are_asked_for(
    command: Command, topic: str | None, queue: int | None, begin: int, count: int | None
) -> None:
    options: list[object] = ["--from", begin]
    options += [] if topic is None else ["--topic", topic]
    options += [] if queue is None else ["--queue", queue]
    options += [] if count is None else ["--count", count]
    wanted = [
        row
        for row in in_queues("local-clean")
        if topic in (None, row["topic"])
        and queue in (None, row["queue_id"])
        and row["queue_offset"] >= begin
    ]
    ran = command.golden("cat", GOLDEN / "local-clean", "--json", *options)
    assert ran.code == 0
    assert without_properties(ran.rows) == wanted[:count]


def carries(row: Row, key: str) -> bool:
    return bool(key) and (key == row["unique_key"] or key in (row["keys"] or "").split(" "))


def test_query_finds_what_a_scan_of_all_messages_finds(command: Command, name: str) -> None:
    rows = [java_row(row) for row in messages(MIN_LOG_OFFSETS[name]) if row["sysFlag"] & 0xC != 0xC]
    asked = {
        (query["topic"], query["key"], query["begin"], query["end"])
        for query, _ in queries(name, "queryOffset", "queryMessage")
    }
    found_count = 0
    # Some sixty, evenly: tests/local/test_golden_store.py asks the store itself all of them.
    for topic, key, begin, end in sorted(asked)[:: max(1, len(asked) // 60)]:
        wanted = [
            row
            for row in reversed(rows)
            if row["topic"] == topic
            and carries(row, key)
            and begin <= row["store_timestamp"] <= end
        ]
        times = ("--begin", begin, "--end", end, "--json", "--max", 64)
        ran = command.golden("query", GOLDEN / name, *times, "--", topic, key)
        assert ran.code == (0 if wanted or "no topic" not in ran.err else 3), ran
        assert without_properties(ran.rows) == wanted[:64], (topic, key, begin, end)
        assert ("--max" in ran.err) == (len(wanted) > 64)
        found_count += len(wanted)
    assert found_count > 30


def test_query_says_when_there_is_more(command: Command) -> None:
    ran = command.golden("query", GOLDEN / "local-clean", "GoldAa", "order-0", "--max", "1")
    assert (ran.code, len(ran.out.splitlines())) == (0, 2)
    assert ran.err.count("\n") == 1
    assert "more than 1" in ran.err


def test_offset_answers_as_java_does(command: Command, name: str) -> None:
    rows = queries(name, "offsetByTime")
    assert len(rows) > 50
    with LocalReader.open(GOLDEN / name, **SIZES) as reader:
        for query, result in rows:
            place = (query["topic"], query["queueId"], query["timestamp"])
            found = reader.offset_by_time(*place, Boundary[query["boundary"]])
            assert (found or 0) == result["offset"], query
    for query, result in rows[::11]:  # each opens the store anew
        asked = (GOLDEN / name, query["topic"], query["queueId"], query["timestamp"])
        upper = ["--upper"] if query["boundary"] == "UPPER" else []
        ran = command.golden("offset", *asked, *upper, "--json")
        if ran.code == 3:  # Java answers 0 for a queue that is not there
            assert result["offset"] == 0
            continue
        (row,) = ran.rows
        assert row == {
            "topic": query["topic"],
            "queue_id": query["queueId"],
            "timestamp": query["timestamp"],
            "boundary": query["boundary"].lower(),
            "queue_offset": result["offset"],
        }


def test_info_tells_what_java_told(command: Command, name: str) -> None:
    (facts,) = command.golden("info", GOLDEN / name, "--json").rows
    state = expected(f"{name}.expect-state.json")
    store, checkpoint = state["store"], state["store"]["checkpoint"]
    assert facts["min_log_offset"] == store["minPhyOffset"]
    assert facts["max_log_offset"] == facts["confirmed_offset"] == store["maxPhyOffset"]
    assert facts["earliest_timestamp"] == store["earliestMessageTime"]
    assert facts["recovery"]["log_bytes_behind_queues"] == store["dispatchBehindBytes"]
    assert facts["checkpoint"]["log_timestamp"] == checkpoint["physicMsgTimestamp"]
    assert facts["checkpoint"]["queue_timestamp"] == checkpoint["logicsMsgTimestamp"]
    assert facts["checkpoint"]["index_timestamp"] == checkpoint["indexMsgTimestamp"]
    for ours, java in zip(facts["index_files"], state["indexFiles"], strict=True):
        assert [ours["file"], ours["size"], ours["full"]] == [
            *(java["file"], java["size"], java["full"])
        ]
        assert [ours["begin_timestamp"], ours["end_timestamp"]] == [
            *(java["beginTimestamp"], java["endTimestamp"])
        ]
        assert [ours["begin_log_offset"], ours["end_log_offset"]] == [
            *(java["beginPhyOffset"], java["endPhyOffset"])
        ]
        assert [ours["used_slot_count"], ours["next_item"]] == [
            *(java["usedSlots"], java["indexCount"])
        ]
    queues = {(row["topic"], row["queue_id"]): row for row in facts["queues"]}
    assert len(queues) == len(state["queues"])
    for java in state["queues"]:
        ours = queues[java["topic"], java["queueId"]]
        assert ours["min_offset"] == java["minOffset"]
        assert ours["max_offset"] == java["maxOffset"]
        assert ours["max_log_offset"] == java["maxPhysicOffset"]
        assert ours["file_count"] * 400 == java["totalSize"]
        assert ours["earliest_timestamp"] == java["earliestMessageTime"]
    log_files = [row for row in state["files"] if row["file"].startswith("commitlog/")]
    assert facts["commit_log"]["file_count"] == len(log_files)
    assert facts["recovery"]["torn_tail"] is None
    assert not facts["recovery"]["abort_file"]


def test_info_for_people_is_tables(command: Command) -> None:
    ran = command.golden("info", GOLDEN / "local-crash" / "torn").done()
    for word in ("queues", "index files", "checkpoint", "torn tail", "at 87575"):
        assert word in ran.out
