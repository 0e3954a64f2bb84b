"""The verbs that look at a tier: what they show of one that Java wrote, without changing it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, Row, picture
from tests.cli.tier_kit import (
    CATALOGUE,
    LEGACY,
    TIER,
    VERBS,
    asked,
    copied,
    java_messages,
    named,
    segment_file,
    verb_of,
)
from tests.codec.golden_files import BROKER, GOLDEN, expected, files_under
from tieredstore.cli.output import ExitCode
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.values import QueueRecord

QUEUES = expected("tier-posix.expect-queues.json")
EXPECTED = {"tier-posix": QUEUES, "legacy": expected("legacy.expect.json")}
ROOTS = {"tier-posix": TIER, "legacy": LEGACY}


@pytest.fixture(params=sorted(ROOTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_topics_are_those_of_java(command: Command) -> None:
    ran = asked(command, TIER, "topics", "--json").done()
    segments = QUEUES["segments"]

    def size(topic: str, kind: str) -> int:
        return sum(
            row["size"]
            for row in segments
            if row["path"].split("/")[1] == topic and row["type"] == kind
        )

    assert ran.rows == [
        {
            "topic": row["topic"],
            "topic_id": row["topicId"],
            "queue_count": sum(queue["topic"] == row["topic"] for queue in QUEUES["queues"]),
            "log_bytes": size(row["topic"], "COMMIT_LOG"),
            "queue_bytes": size(row["topic"], "CONSUME_QUEUE"),
            "reserve_hours": 72,
            "reserve_hours_is_default": row["reserveTime"] == -1,
        }
        for row in sorted(QUEUES["topics"], key=lambda row: str(row["topic"]))
    ]


def test_queues_are_those_of_java(command: Command, name: str) -> None:
    ran = asked(command, ROOTS[name], "queues", "--json").done()
    wanted = sorted(EXPECTED[name]["queues"], key=lambda row: (row["topic"], row["queueId"]))
    assert [
        (row["topic"], row["queue_id"], row["min_offset"], row["max_offset"]) for row in ran.rows
    ] == [(row["topic"], row["queueId"], row["minOffset"], row["commitOffset"]) for row in wanted]
    assert [
        (row["log_bytes"], row["begin_timestamp"], row["end_timestamp"]) for row in ran.rows
    ] == [
        (row["commitLogCommitOffset"], row["minStoreTimestamp"], row["maxStoreTimestamp"])
        for row in wanted
    ]
    assert all(row["problem"] is None for row in ran.rows)


def test_queues_of_one_topic(command: Command) -> None:
    rows = asked(command, TIER, "queues", "GoldBB", "--json").rows
    assert [(row["topic"], row["queue_id"]) for row in rows] == [("GoldBB", 0), ("GoldBB", 1)]


def test_groups_are_told_with_how_far_behind_they_are(command: Command, tmp_path: Path) -> None:
    root = copied(tmp_path / "tier")
    kind = "consumerOffset.json"
    with JsonMetadataStore.open(root / CATALOGUE) as metadata:
        metadata.put_note(kind, "GoldAa@readers", {"0": 7, "1": 1_000})
        metadata.put_note(kind, "Untiered@readers", {"0": 3})
        metadata.put_note(kind, "GoldBB@others", {"0": 0})
    rows = asked(command, root, "groups", "--json").rows
    ends = {
        (row["topic"], row["queue_id"]): row["max_offset"]
        for row in asked(command, root, "queues", "--json").rows
    }
    assert [tuple(row.values()) for row in rows] == [
        ("others", "GoldBB", 0, 0, ends["GoldBB", 0], ends["GoldBB", 0]),
        ("readers", "GoldAa", 0, 7, ends["GoldAa", 0], ends["GoldAa", 0] - 7),
        ("readers", "GoldAa", 1, 1_000, ends["GoldAa", 1], 0),
        ("readers", "Untiered", 0, 3, None, None),
    ]
    assert asked(command, root, "groups", "GoldBB", "--json").rows == rows[:1]
    assert asked(command, root, "groups", "Untiered", "--json").rows == rows[3:]
    assert "no group has" in asked(command, root, "groups", "%RETRY%gold_group").done().out
    with JsonMetadataStore.open(root / CATALOGUE) as metadata:
        metadata.put_note(kind, "GoldBB@others", {"x": 0})
    assert "its copy of consumerOffset.json" in asked(command, root, "groups").err


def java_segments(name: str, topic: str | None = None, queue: int | None = None) -> list[Row]:
    found = []
    for row in EXPECTED[name]["segments"]:
        _, its_topic, its_queue = row["path"].split("/")
        if topic in (None, its_topic) and queue in (None, int(its_queue)):
            found.append(
                {
                    "topic": its_topic,
                    "queue_id": int(its_queue),
                    "type": row["type"],
                    "base_offset": row["baseOffset"],
                    "size": row["size"],
                    "begin_timestamp": row["beginTimestamp"],
                    "end_timestamp": row["endTimestamp"],
                    "path": row["path"],
                }
            )
    return sorted(
        found, key=lambda row: (row["topic"], row["queue_id"], row["type"], row["base_offset"])
    )


def test_segments_are_those_of_java(command: Command, name: str) -> None:
    ran = asked(command, ROOTS[name], "segments", "--json").done()
    assert ran.rows == java_segments(name)
    assert list(ran.rows[0]) == [
        *("topic", "queue_id", "type", "base_offset", "size"),
        *("begin_timestamp", "end_timestamp", "path"),
    ]


def test_segments_of_a_topic_and_of_a_queue(command: Command) -> None:
    for words in (["GoldAa"], ["GoldAa", 2]):
        rows = asked(command, TIER, "segments", *words, "--json").rows
        assert rows == java_segments("tier-posix", *words)


def test_the_segments_of_the_key_index_have_their_own_topic(command: Command) -> None:
    rows = asked(command, TIER, "segments", INDEX_TOPIC, "--json").rows
    files = [path for path in files_under("tier-posix/tiered") if INDEX_TOPIC in str(path)]
    assert sorted(row["size"] for row in rows) == sorted(path.stat().st_size for path in files)
    assert {(row["type"], row["path"]) for row in rows} == {("INDEX", f"{BROKER}/{INDEX_TOPIC}/0")}


def test_ls_lists_every_file(command: Command, name: str) -> None:
    ran = asked(command, ROOTS[name], "ls", "--json").done()
    files = [path for path in files_under(f"{name}/tiered") if path.is_file()]
    assert sorted(row["file"] for row in ran.rows) == sorted(map(str, files))
    for row in ran.rows:
        assert row["size"] == row["catalogue_size"] == Path(row["file"]).stat().st_size
        assert row["catalogued"]


def test_ls_below_a_prefix(command: Command) -> None:
    rows = asked(command, TIER, "ls", f"{BROKER}/GoldBB/1", "--json").rows
    wanted = java_segments("tier-posix", "GoldBB", 1)
    assert [(row["type"], row["base_offset"]) for row in rows] == [
        (row["type"], row["base_offset"]) for row in wanted
    ]
    assert asked(command, TIER, "ls", f"{BROKER}/GoldBB/1/", "--json").rows == rows


def test_ls_marks_what_the_catalogue_does_not_know(command: Command, root: Path) -> None:
    unknown = segment_file(root, "GoldAa/0", "COMMIT_LOG", 777_777)
    unknown.write_bytes(b"left behind")
    other = root / "tiered" / unknown.parents[4].name / "broker-b" / "Else" / "0" / "COMMIT_LOG"
    other.mkdir(parents=True)
    (other / unknown.name).write_bytes(b"of another broker")
    grown = segment_file(root, "GoldAa/0", "COMMIT_LOG", 41_521)
    grown.write_bytes(grown.read_bytes() + b"more")
    rows = asked(command, root, "ls", "--json").rows
    assert sorted(row["file"] for row in rows if not row["catalogued"]) == sorted(
        map(str, (unknown, other / unknown.name))
    )
    odd = [row for row in rows if row["catalogued"] and row["size"] != row["catalogue_size"]]
    assert [row["file"] for row in odd] == [str(grown)]
    shown = asked(command, root, "ls").out
    assert shown.count("not in the catalogue") == 2
    assert shown.count("has 9,753 bytes of it") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topics"], ["reserve hours", "GoldAa", "114.6 KiB", "72 (default)"]),
        (["queues"], ["log size", "2026-11-20T10:45:32Z", "720619920815974403?"]),
        (["segments", "GoldBB", 1], ["GoldBB/1", "CONSUME_QUEUE", "15,139"]),
        (["ls"], ["GoldBB/1", "INDEX", "cfcd208400000000000000000000"]),
    ],
)
def test_people_get_tables(command: Command, words: list[object], told: list[str]) -> None:
    ran = asked(command, TIER, *words).done()
    assert all(word in ran.out for word in told)


def test_a_settings_file_names_a_tier(command: Command, tmp_path: Path) -> None:
    toml, conf = tmp_path / "tier.toml", tmp_path / "broker.conf"
    toml.write_text(
        f'[tieredstore]\nprovider = "posix"\npath = "{TIER}/tiered"\nbroker_name = "{BROKER}"\n'
        f'metadata_path = "{TIER / CATALOGUE}"\ncluster_name = "GoldenCluster"\nreserve_hours = 5\n'
    )
    conf.write_text(
        "tieredBackendServiceProvider="
        "org.apache.rocketmq.tieredstore.provider.PosixFileSegment\n"
        f"tieredStoreFilePath={TIER}/tiered\nbrokerName={BROKER}\nlistenPort=10911\n"
        f"storePathRootDir={TIER}/store\nbrokerClusterName=GoldenCluster\n"
        "tieredStoreFileReservedTime=5\n"
    )
    by_options = command.run("queues", *named(TIER), "--json")
    for file in (toml, conf):
        ran = command.run("queues", "--config", file, "--json")
        assert (ran.code, ran.err, ran.out) == (0, "", by_options.out)
        hours = {
            row["reserve_hours"] for row in command.run("topics", "--config", file, "--json").rows
        }
        assert hours == {5}
    conf.write_text(conf.read_text().replace("GoldenCluster", "Wrong"))
    ran = command.run("queues", "--config", conf, "--cluster", "GoldenCluster", "--json")
    assert ran.out == by_options.out


def test_a_store_path_stands_for_the_catalogue_in_it(command: Command) -> None:
    words = named(TIER, catalogue_file=None, store_path=TIER / "store")
    assert command.run("queues", *words).out == command.run("queues", *named(TIER)).out


def test_bytes_shows_sizes_so_that_each_can_be_compared_with_the_file(
    command: Command, root: Path
) -> None:
    held = sorted(
        path.stat().st_size
        for path in root.rglob("GoldAa/*/*/*")
        if path.is_file() and path.parent.name in ("COMMIT_LOG", "CONSUME_QUEUE")
    )
    assert held[-1] > 10_000
    rows = asked(command, root, "segments", "GoldAa", "--json").rows
    assert sorted(row["size"] for row in rows) == held
    table = asked(command, root, "segments", "GoldAa", "--bytes").out.split()
    assert all(f"{size:,}" in table for size in held)


def test_a_pipe_gets_all_of_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    for verb in ("topics", "queues"):
        said = asked(command, TIER, verb).out
        assert "0123456789  " in said  # the end of the long name
        assert "…" not in said
        assert "\x1b" not in said


@pytest.mark.parametrize("columns", ["80", "40"])
def test_on_a_narrow_terminal_a_long_name_is_cut_and_nothing_else(
    command: Command, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    wanted = asked(command, TIER, "topics", "--json").rows
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = asked(command, TIER, "topics", "--bytes").out
    lines = [line for line in said.splitlines() if "(default)" in line]
    assert len(lines) == len(wanted)
    for row, line in zip(wanted, lines, strict=True):
        assert line.split()[1:-2] == [
            f"{row[name]:,}" for name in ("topic_id", "queue_count", "log_bytes", "queue_bytes")
        ]
        assert line.startswith(row["topic"][:5])
        assert row["topic"][-5:] in line
        assert len(line) <= 80


NO_LS = [words for words in VERBS if words[0] != "ls"]


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (3, ["cat", "Nobody"], "no topic 'Nobody' is in this tier; there are: %RETRY%gold_group"),
        (3, ["cat", "GoldAa", "--queue", 9], "no queue 9 is there; there are: 0, 1, 2"),
        (3, ["offset", "GoldAa", 9, 0], "no queue 9"),
        (3, ["offset", "Nobody", 0, 0], "no topic"),
        (3, ["queues", "Nobody"], "no topic"),
        (3, ["segments", "Nobody"], "no topic"),
        (3, ["segments", "GoldAa", 3], "no queue 3"),
        (3, ["ls", "broker-x"], f"there are the brokers: {BROKER}"),
        (2, ["cat", "GoldAa", "--from", "yesterday"], "ISO 8601"),
        (2, ["cat", "GoldAa", "--from", "-1"], "--from"),
        (2, ["cat", "GoldAa", "--max", "x"], "--max"),
        (2, ["query", "GoldAa", "order-0", "--max", 0], "--max"),
        (2, ["cat"], "TOPIC"),
        (2, ["offset", "GoldAa", 0, "soon"], "ISO 8601"),
        (2, ["topics", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_words_are_one_line_and_a_code(
    command: Command, code: int, words: list[object], told: str
) -> None:
    asked(command, TIER, *words, "--json").refused(code, told)


@pytest.mark.parametrize("words", VERBS, ids=verb_of)
@pytest.mark.parametrize(
    ("code", "others", "told"),
    [
        (2, {"provider": None}, "--config FILE, or --provider"),
        (2, {"provider": "memory"}, "a tier in memory"),
        (2, {"provider": "posixx"}, "did you mean 'posix'"),
        (2, {"path": None}, "--path ROOT"),
        (3, {"path": "no-such-directory"}, "no such directory: no-such-directory"),
        (3, {"path": LEGACY / "store"}, "no cluster lies here"),
        (3, {"cluster": "Other"}, "no cluster 'Other' is in this tier; there are: GoldenCluster"),
        (3, {"config": "nowhere.toml"}, "no such file: nowhere.toml"),
    ],
)
def test_a_tier_that_is_not_there_is_told_with_what_to_do(
    command: Command, words: list[object], code: int, others: dict[str, object], told: str
) -> None:
    command.run(*words, *named(TIER, **others), "--json").refused(code, told)


@pytest.mark.parametrize("words", NO_LS, ids=verb_of)
def test_the_wrong_broker_is_told_the_right_one(command: Command, words: list[object]) -> None:
    for others in ({"broker": "broker-x"}, {"broker": None}):
        ran = command.run(*words, *named(TIER, **others), "--json")
        ran.refused(3, f"there are: {BROKER}; name one with --broker")


@pytest.mark.parametrize("words", VERBS, ids=verb_of)
def test_a_catalogue_that_the_system_does_not_give_is_refused(
    command: Command, tmp_path: Path, words: list[object]
) -> None:
    ran = command.run(*words, *named(TIER, catalogue_file=tmp_path), "--json")
    assert (ran.code, ran.err.count("\n")) == (5, 1), ran
    assert "Is a directory" in ran.err


def test_other_brokers_of_the_catalogue_are_noted(command: Command, root: Path) -> None:
    with JsonMetadataStore.open(root / CATALOGUE) as catalogue:
        catalogue.put(QueueRecord(broker_name="broker-b", topic="GoldAa", queue_id=7))
    ran = asked(command, root, "cat", "GoldAa", "--queue", 1, "--json")
    assert (ran.code, ran.err.count("\n")) == (0, 1)
    assert "note: the catalogue has other brokers too: broker-b" in ran.err


def test_a_topic_and_a_queue_without_messages_are_there(command: Command, root: Path) -> None:
    with JsonMetadataStore.open(root / CATALOGUE) as catalogue:
        catalogue.add_topic("NoQueue", reserve_hours=7)
        catalogue.add_topic("Empty")
        catalogue.put(QueueRecord(broker_name=BROKER, topic="Empty", queue_id=0))
    hours = {
        row["topic"]: row["reserve_hours"] for row in asked(command, root, "topics", "--json").rows
    }
    assert (hours["NoQueue"], hours["Empty"]) == (7, 72)
    for words in (["cat", "NoQueue"], ["queues", "NoQueue"], ["cat", "Empty"]):
        assert asked(command, root, *words, "--json").done().out == ""
    (row,) = asked(command, root, "queues", "Empty", "--json").rows
    assert (row["min_offset"], row["max_offset"], row["begin_timestamp"]) == (0, 0, None)
    asked(command, root, "offset", "Empty", 0, 0).refused(3)


def test_a_catalogue_whose_backup_serves_is_noted(command: Command, root: Path) -> None:
    wanted = asked(command, root, "queues", "--json")
    (root / CATALOGUE).write_bytes(b"{")
    shutil.copy(TIER / CATALOGUE, root / f"{CATALOGUE}.bak")
    ran = asked(command, root, "queues", "--json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (0, wanted.out, 1), ran
    assert "note: " in ran.err
    assert "its backup is used" in ran.err


def test_a_settings_file_that_names_no_tier_is_told(command: Command, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    for text, told in (
        ("brokerName=a\n", "a tier in memory"),
        ("brokerNam=a\n", "did you mean brokerName"),
        ("tieredBackendServiceProvider=posix\n", "--path ROOT"),
    ):
        conf.write_text(text)
        command.run("topics", "--config", conf).refused(2, told, str(conf))


def test_why_names_the_bytes_of_every_message(command: Command) -> None:
    for told in java_messages()[::17]:
        place = told["topic"], told["queue_id"], told["queue_offset"]
        ran = asked(command, TIER, "why", *place, "--json").done()
        (row,) = ran.rows
        assert row["place"] == "IN_TIER"
        assert row["log_offset"] == told["log_offset"]
        assert row["store_timestamp"] == told["store_timestamp"]
        log, queue = row["log_segment"], row["queue_segment"]
        assert log["base_offset"] <= told["log_offset"] < log["base_offset"] + log["size"]
        units = range(queue["base_offset"], queue["base_offset"] + queue["size"])
        assert told["queue_offset"] * 20 in units
        hours = row["reserve_hours"]
        assert row["expires_from"] >= told["store_timestamp"] + hours * 3_600_000


def test_why_says_by_which_keys_the_index_finds_a_message(command: Command) -> None:
    found_by = not_found_by = 0
    for told in java_messages()[::21]:
        place = told["topic"], told["queue_id"], told["queue_offset"]
        (row,) = asked(command, TIER, "why", *place, "--json").rows
        found_by += len(row["found_by"])
        not_found_by += len(row["not_found_by"])
        for key in row["found_by"]:
            hits = asked(command, TIER, "query", told["topic"], key, "--max", 500, "--json").rows
            assert row["log_offset"] in {hit["log_offset"] for hit in hits}
    assert found_by > 15
    assert not_found_by > 0  # Java's last index file was not uploaded


def test_why_tells_an_expired_message_from_one_that_is_still_to_come(command: Command) -> None:
    shown = 0
    for told in asked(command, TIER, "queues", "--json").rows:
        place = told["topic"], told["queue_id"]
        behind = asked(command, TIER, "why", *place, told["max_offset"])
        assert behind.code == 0
        assert "is not in the tier yet" in behind.out
        if told["min_offset"]:
            gone = asked(command, TIER, "why", *place, told["min_offset"] - 1)
            assert "is below the tier" in gone.out
            assert "expired" in gone.out
            shown += 1
    assert shown


def test_why_is_read_by_people_too(command: Command) -> None:
    told = java_messages()[0]
    ran = asked(command, TIER, "why", told["topic"], told["queue_id"], told["queue_offset"])
    assert "is in the tier" in ran.out
    assert "record: " in ran.out
    assert "unit: " in ran.out
    assert "it may go from " in ran.out


def test_a_queue_that_is_not_there_is_named(command: Command) -> None:
    asked(command, TIER, "why", "GoldAa", 77, 0).refused(ExitCode.NOT_THERE, "no queue 77")
    assert asked(command, TIER, "why", "NoTopic", 0, 0).code == ExitCode.NOT_THERE


def test_a_damaged_message_is_damage(command: Command, root: Path) -> None:
    told = next(row for row in java_messages() if row["log_offset"] == 0)
    place = told["topic"], told["queue_id"], told["queue_offset"]
    file = segment_file(root, f"{told['topic']}/{told['queue_id']}", "COMMIT_LOG", 0)
    with file.open("r+b") as log:
        log.seek(4)
        log.write(b"\0\0\0\0")  # the magic
    ran = asked(command, root, "why", *place, "--json")
    assert ran.code == ExitCode.DAMAGE
    assert ran.rows[0]["place"] == "DAMAGED"
    assert ran.err.count("\n") == 1


def test_a_body_that_changed_is_damage_where_all_bodies_are_checked(
    command: Command, root: Path
) -> None:
    told = next(row for row in java_messages() if row["log_offset"] == 0)
    place = told["topic"], told["queue_id"], told["queue_offset"]
    (row,) = asked(command, root, "why", *place, "--json").rows
    file = segment_file(root, f"{told['topic']}/{told['queue_id']}", "COMMIT_LOG", 0)
    with file.open("r+b") as log:
        log.seek(8)
        log.write(b"\0\0\0\0")  # the checksum of its body
    settings = root / "checked.toml"
    settings.write_text("crc_check_enabled = true\n")
    found = ("query", told["topic"], row["found_by"][0])
    assert asked(command, root, *found).code == 0
    ran = asked(command, root, *found, "--config", settings, "--json")
    assert (ran.code, ran.rows) == (ExitCode.DAMAGE, [])
    ran = asked(command, root, "why", *place, "--config", settings, "--json")
    assert (ran.code, ran.rows[0]["place"]) == (ExitCode.DAMAGE, "DAMAGED")
    ran = asked(command, root, "cat", told["topic"], "--config", settings, "--json")
    assert ran.code == ExitCode.DAMAGE
    assert len(ran.rows) == len(java_messages(told["topic"])) - 1
    assert "not shown: 1 damaged message" in ran.err


def test_a_message_whose_log_is_gone_is_damaged_and_not_still_to_come(
    command: Command, root: Path
) -> None:
    told = asked(command, TIER, "queues", "GoldAa", "--json").rows[0]
    for file in segment_file(root, "GoldAa/0", "COMMIT_LOG", 0).parent.iterdir():
        file.unlink()
    ran = asked(command, root, "why", "GoldAa", 0, told["max_offset"] - 1)
    assert ran.code == ExitCode.DAMAGE
    assert "is damaged" in ran.out
    assert "is not there" in ran.err


def test_a_message_still_to_come_is_not_damaged_because_the_last_one_is(
    command: Command, root: Path
) -> None:
    told = asked(command, TIER, "queues", "GoldAa", "--json").rows[0]
    file = segment_file(root, "GoldAa/0", "COMMIT_LOG", 41521)
    file.write_bytes(file.read_bytes()[:-10])
    ran = asked(command, root, "why", "GoldAa", 0, told["max_offset"] - 1)
    assert ran.code == ExitCode.DAMAGE
    assert "is damaged" in ran.out
    ran = asked(command, root, "why", "GoldAa", 0, told["max_offset"])
    assert ran.code == 0
    assert "is not in the tier yet" in ran.out


def test_why_looks_past_other_messages_of_the_same_key_and_time(
    command: Command, tmp_path: Path
) -> None:
    put = ("put", "Many", "--store-path", tmp_path, "--body", "x", "--key", "same")
    assert command.run(*put, "--repeat", 100).code == 0
    assert command.run("offload", "--store-path", tmp_path, "--seal").code == 0
    tier = ("--provider", "posix", "--path", tmp_path / "tier", "--store-path", tmp_path)
    for offset in (0, 50, 99):
        (row,) = command.run("why", "Many", 0, offset, *tier, "--json").rows
        assert (row["found_by"], row["not_found_by"]) == (["same"], [])


TIERS = ["tier-posix", "legacy"]
STORES = ["local-clean", "local-expired", "local-crash/torn", "local-crash/torn-and-queues-behind"]
EITHER = pytest.mark.parametrize("name", ["tier-posix", "local-clean"])


@pytest.fixture
def place(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(GOLDEN / name, tmp_path / "place"))


def ask_everything(command: Command, place: Path) -> None:
    if (place / "commitlog").is_dir():
        for words in (
            ("cat", place, "--json"),
            ("cat", place),
            ("query", place, "GoldAa", "order-0", "--json"),
            ("offset", place, "GoldAa", "0", "1795171540000"),
            ("info", place, "--json"),
            ("info", place),
        ):
            assert command.golden(*words).code == 0
        return
    for verb in VERBS:
        of_tier = ["offset", "GoldAa", 1, 0] if verb[0] == "offset" else verb
        for json in ([], ["--json"]):
            assert asked(command, place, *of_tier, *json).code == 0


@pytest.mark.parametrize("name", [*TIERS, *STORES])
def test_looking_changes_not_one_byte(command: Command, tmp_path: Path, place: Path) -> None:
    before = picture(tmp_path)
    ask_everything(command, place)
    assert picture(tmp_path) == before


@EITHER
def test_a_place_that_cannot_be_written_is_read(command: Command, place: Path) -> None:
    paths = [place, *place.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        before = picture(place)
        ask_everything(command, place)
        assert picture(place) == before
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


@EITHER
def test_every_file_is_opened_for_reading_only(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File modes do not stop a user who may write everything, so the test watches the opens."""
    opened: list[int] = []
    real = os.open

    def seen(path: str, flags: int, *rest: int, **more: int) -> int:
        if str(path).startswith(str(place)):
            opened.append(flags)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", seen)
    ask_everything(command, place)
    assert len(opened) > 50
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) for flags in opened)
