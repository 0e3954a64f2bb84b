"""`tieredstore local` on stores that Java wrote, that crashed or that are in use; its errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_kit import (
    SIZE_OPTIONS,
    SIZES,
    Command,
    Row,
    java_row,
    messages,
    picture,
    queries,
)
from tests.codec.golden_files import GOLDEN, expected
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.local.reader import LocalReader, StoreNotFoundError
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import Boundary, GetStatus
from tieredstore.testing.samples import a_message

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
    options: list[object] = ["--from-offset", begin]
    options += [] if topic is None else [topic]
    options += [] if queue is None else ["--queue", queue]
    options += [] if count is None else ["--max", count]
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
    # About twenty, evenly spread: tests/local/test_golden_store.py asks the store all of them.
    for topic, key, begin, end in sorted(asked)[:: max(1, len(asked) // 20)]:
        wanted = [
            row
            for row in reversed(rows)
            if row["topic"] == topic
            and carries(row, key)
            and begin <= row["store_timestamp"] <= end
        ]
        times = ("--from", begin, "--until", end, "--json", "--max", 64)
        ran = command.golden("query", GOLDEN / name, *times, "--", topic, key)
        assert ran.code == (0 if wanted or "no topic" not in ran.err else 3), ran
        assert without_properties(ran.rows) == wanted[:64], (topic, key, begin, end)
        assert ("--max" in ran.err) == (len(wanted) > 64)
        found_count += len(wanted)
    assert found_count > 10


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
    for query, result in rows[::11]:  # each query opens the store anew
        asked = (GOLDEN / name, query["topic"], query["queueId"], query["timestamp"])
        upper = ["--upper"] if query["boundary"] == "UPPER" else []
        ran = command.golden("offset", *asked, *upper, "--json")
        if ran.code == 3:  # Java answers 0 for a missing queue
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


def test_info_of_a_store_without_messages(command: Command, tmp_path: Path) -> None:
    store = LocalMessageStore(LocalConfig(store_path=str(tmp_path), **SIZES), Runtime.inline())
    store.load()
    store.shutdown()
    ran = command.run("local", "info", tmp_path).done()
    assert [line.split() for line in ran.out.splitlines()[2:4]] == [
        ["log", "offsets", "none"],
        ["earliest", "message", "-"],
    ]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LocalMessageStore]:
    config = LocalConfig(
        store_path=str(tmp_path / "live"),
        dispatch_interval_ms=0,
        **SIZES,
    )
    store = LocalMessageStore(config, Runtime.inline(now_ms=1_795_171_700_000))
    store.load()
    store.start()
    yield store
    store.shutdown()


def put(store: LocalMessageStore, count: int) -> None:
    for number in range(count):
        message = a_message(number, topic="Live", queue_id=0)
        assert store.put_message(message).stored


def offsets(reader: LocalReader) -> list[int]:
    run = reader.read_range("Live", 0, 0, count_max=10_000, bytes_max=1 << 30)
    return list(range(run.first_offset, run.end_offset))


def test_a_store_is_read_while_a_writer_has_it_open(
    writer: LocalMessageStore, command: Command, tmp_path: Path
) -> None:
    put(writer, 200)
    live = tmp_path / "live"
    before = picture(live)
    ran = command.run("local", "cat", live, "--json").done()  # the store has recorded its sizes
    assert [row["queue_offset"] for row in ran.rows] == list(range(200))
    assert picture(live) == before
    put(writer, 300)
    with LocalReader.open(live) as reader:
        assert offsets(reader) == list(range(500))
        assert reader.max_log_offset() == writer.max_log_offset()
        assert reader.get_message("Live", 0, 500).status is GetStatus.OFFSET_OVERFLOW_ONE


def test_an_open_reader_finds_keys_that_are_put_later(
    writer: LocalMessageStore, tmp_path: Path
) -> None:
    put(writer, 3)
    with LocalReader.open(tmp_path / "live") as reader:
        first = reader.message_at(0)
        assert first is not None
        key = writer_key(first.record)
        assert [one.log_offset for one in reader.query_message("Live", key).messages] == [0]
        put(writer, 3)  # the same keys again
        found = [one.log_offset for one in reader.query_message("Live", key).messages]
        assert len(found) == 2
        assert found[1] == 0


def writer_key(record: bytes) -> str:
    message = decode_message(record)
    return message.unique_key or message.keys[0]


def test_a_deleted_topic_is_found_no_more(writer: LocalMessageStore, tmp_path: Path) -> None:
    put(writer, 3)
    with LocalReader.open(tmp_path / "live") as reader:
        first = reader.message_at(0)
        assert first is not None
    assert writer.delete_topics(["Live"]) == 1
    with LocalReader.open(tmp_path / "live") as reader:
        assert list(reader.queues()) == []
        assert reader.query_message("Live", writer_key(first.record)).messages == []
        assert reader.message_at(0) is None


def test_sizes_that_were_written_down_win_over_defaults_and_not_over_words(
    writer: LocalMessageStore, command: Command, tmp_path: Path
) -> None:
    live = tmp_path / "live"
    with LocalReader.open(live) as reader:
        assert reader.config.commit_log_file_bytes == SIZES["commit_log_file_bytes"]
    command.run("local", "info", live, "--index-slots", "7").refused(2, "made with 101, not 7")


def test_sizes_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """tests/local/test_files.py covers every kind of damage."""
    store = tmp_path / "store"
    shutil.copytree(CLEAN, store)
    (store / "config").mkdir()
    (store / "config" / "tieredstore-sizes.json").write_text("{")
    with pytest.raises(InvalidConfigError):
        LocalReader.open(store)


def test_what_is_no_store_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        LocalReader.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_after_a_clean_end_all_of_the_log_is_confirmed() -> None:
    with LocalReader.open(CLEAN, **SIZES) as reader:
        assert reader.confirmed_offset() == reader.max_log_offset() == 373380
    with LocalReader.open(GOLDEN / "local-crash" / "torn", **SIZES) as reader:
        assert reader.confirmed_offset() == 0
        assert reader.max_log_offset() == 87575


CONF = (
    "brokerName=broker-gold-a\nmappedFileSizeCommitLog=32768\nmappedFileSizeConsumeQueue=400\n"
    "maxHashSlotNum=101\nmaxIndexNum=400\n"
)
TOML = (
    '[tieredstore]\nbroker_name = "broker-gold-a"\n[local]\ncommit_log_file_bytes = 32768\n'
    "queue_file_bytes = 400\nindex_slot_count = 101\nindex_item_count = 400\n"
)


@pytest.mark.parametrize(("name", "text"), [("broker.conf", CONF), ("tier.toml", TOML)])
def test_the_sizes_of_a_file_of_settings_are_enough(
    command: Command, tmp_path: Path, name: str, text: str
) -> None:
    conf = tmp_path / name
    conf.write_text(text)
    for words in (
        ("cat", CLEAN, "--json"),
        ("query", CLEAN, "GoldAa", "order-0", "--json"),
        ("offset", CLEAN, "GoldAa", "0", "1795171540000"),
        ("info", CLEAN, "--json"),
    ):
        verb, *rest = words
        ran = command.run("local", verb, "--config", conf, *rest).done()
        assert ran.out == command.golden(*words).out
    wrong = command.run("local", "info", CLEAN, "--config", conf, "--queue-file-bytes", 800)
    assert wrong.code == 2  # an option overrides the file
    assert "--config broker.conf, or --commit-log-file-bytes" in wrong.err


def test_a_report_beside_a_local_store_takes_its_sizes_from_the_settings(
    command: Command, tmp_path: Path
) -> None:
    tier, out, conf = GOLDEN / "tier-posix", tmp_path / "tier.html", tmp_path / "broker.conf"
    settings = (
        CONF + "brokerClusterName=GoldenCluster\n"
        "tieredBackendServiceProvider=org.apache.rocketmq.tieredstore.provider.PosixFileSegment\n"
        f"tieredStoreFilePath={tier}/tiered\nstorePathRootDir={tier}/store\n"
    )
    words = ("report", "--out", out, "--local", CLEAN, "--config", conf)
    conf.write_text(settings)
    assert command.run(*words).code == 0
    conf.write_text(settings.replace("mappedFileSize", "#mappedFileSize"))
    ran = command.run(*words)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "--config broker.conf" in ran.err


TORN = GOLDEN / "local-crash" / "torn"


def survivors(variant: str) -> list[list[object]]:
    java = expected("local-crash.expect-recovery.json")["variants"][variant]
    return [row for row in java["messages"] if not row[5] & 4]  # a prepared message is in no queue


def test_cat_shows_every_message_but_the_torn_one(command: Command) -> None:
    ran = command.golden("cat", TORN, "--json")
    assert ran.code == 0
    assert ran.err.count("\n") == 1
    assert "torn" in ran.err
    assert [
        [row["log_offset"], row["size"], row["topic"], row["queue_id"], row["queue_offset"]]
        for row in ran.rows
    ] == [row[:5] for row in survivors("torn")]


def test_queues_that_are_behind_name_fewer(command: Command) -> None:
    rows = command.golden("cat", GOLDEN / "local-crash/torn-and-queues-behind", "--json").rows
    facts = expected("local-crash.expect-recovery.json")["howTheDamageWasMade"]
    assert len(rows) == sum(row["unitsKept"] for row in facts["consumeQueueUnits"])


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_info_tells_what_a_recovery_would_find(command: Command, variant: str) -> None:
    (facts,) = command.golden("info", GOLDEN / "local-crash" / variant, "--json").rows
    document = expected("local-crash.expect-recovery.json")
    recovered = document["variants"][variant]["recovered"]
    assert facts["max_log_offset"] == recovered["maxPhyOffset"]
    assert facts["min_log_offset"] == recovered["minPhyOffset"]
    assert facts["earliest_timestamp"] == recovered["earliestMessageTime"]
    recovery = facts["recovery"]
    assert recovery["abort_file"]
    assert (
        recovery["torn_tail"]["log_offset"] == document["howTheDamageWasMade"]["lastRecordOffset"]
    )
    assert recovery["units_behind_log_end"] == (1 if variant == "torn" else 0)


@pytest.mark.parametrize("missing", [False, True])
def test_query_finds_the_keys_that_survived_also_without_an_index(
    command: Command, tmp_path: Path, *, missing: bool
) -> None:
    store = tmp_path / "store"
    shutil.copytree(TORN, store)
    if missing:
        shutil.rmtree(store / "index")
    java = expected("local-crash.expect-recovery.json")["variants"]["torn"]
    found_count = 0
    for row in java["withMessageIndexSafe"]["answers"]:
        if row["query"]["op"] != "queryOffset":
            continue
        query = row["query"]
        ran = command.golden("query", store, "--json", "--", query["topic"], query["key"])
        offsets = [message["log_offset"] for message in ran.rows]
        # Java's answer also includes messages whose key only has the same hash.
        assert set(offsets) <= set(row["result"]["phyOffsets"])
        assert offsets == sorted(offsets, reverse=True)
        found_count += len(offsets)
    assert found_count > 20


def damaged_copy(target: Path, log_offset: int) -> Path:
    shutil.copytree(CLEAN, target)
    path = target / "commitlog" / f"{log_offset - log_offset % 32768:020d}"
    data = bytearray(path.read_bytes())
    data[log_offset % 32768 + 100] ^= 1
    path.write_bytes(data)
    return target


def test_a_damaged_record_is_told_of_and_hides_no_other(command: Command, tmp_path: Path) -> None:
    store = damaged_copy(tmp_path / "store", 493)
    ran = command.golden("cat", store, "--json")
    assert ran.code == 4
    assert ran.err.count("\n") == 1
    assert "1 damaged" in ran.err
    assert "at byte 493" in ran.err
    assert len(ran.rows) == 611
    assert 493 not in {row["log_offset"] for row in ran.rows}
    key = "0A002900126728F00AA8000003E80001"
    command.golden("query", store, "GoldAa", key).refused(4)


CLEAN = GOLDEN / "local-clean"


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (3, ["cat", "no-such-directory"], "no such directory"),
        (3, ["info", GOLDEN / "metadata"], "no local store"),
        (3, ["cat", CLEAN, "Nobody"], "no topic 'Nobody'"),
        (3, ["cat", CLEAN, "GoldAa", "--queue", "9"], "no queue 9"),
        (3, ["query", CLEAN, "Nobody", "key"], "no topic"),
        (3, ["offset", CLEAN, "GoldAa", "9", "0"], "no queue 9"),
        (2, ["offset", CLEAN, "GoldAa", "0", "yesterday"], "ISO 8601"),
        (2, ["offset", CLEAN, "GoldAa", "zero", "0"], "QUEUE"),
        (2, ["query", CLEAN, "GoldAa", "k", "--from", "soon"], "ISO 8601"),
        (2, ["cat", CLEAN, "--from-offset", "-1"], "--from-offset"),
        (2, ["cat", CLEAN, "--nonsense"], "--nonsense"),
        (2, ["cat", CLEAN, "--commit-log-file-bytes", "16384"], "commit_log_file_bytes"),
        (2, ["cat", CLEAN, "--queue-file-bytes", "800"], "--queue-file-bytes"),
        (2, ["cat", CLEAN, "--index-slots", "100"], "index_slot_count"),
        (2, ["frobnicate"], "frobnicate"),
        (2, ["cat"], "DIR"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    command: Command, code: int, words: list[object], told: str
) -> None:
    verb, *rest = words
    sizes = () if verb == "frobnicate" else SIZE_OPTIONS
    ran = command.run("local", verb, *sizes, *rest, *([] if len(words) < 2 else ["--json"]))
    ran.refused(code, told)


def test_sizes_that_are_not_given_are_the_defaults(command: Command) -> None:
    ran = command.run("local", "info", CLEAN)
    ran.refused(2, "32768 bytes, not 1073741824", "--commit-log-file-bytes")


def test_a_directory_that_may_not_be_read_is_refused(command: Command, tmp_path: Path) -> None:
    shutil.copytree(CLEAN, tmp_path / "store")
    (tmp_path / "store" / "config").write_bytes(b"a file where a directory should be")
    command.golden("info", tmp_path / "store").refused(5)
