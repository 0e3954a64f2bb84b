"""The verbs that tell what is in a tier, on those that Java wrote; and the naming of a tier."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, Row
from tests.cli.tier_kit import LEGACY, TIER, asked, named, segment_file
from tests.codec.golden_files import BROKER, expected, files_under
from tieredstore.codec.names import INDEX_TOPIC

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
            "queue_count": sum(each["topic"] == row["topic"] for each in QUEUES["queues"]),
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
    assert shown.count("has 9753 bytes of it") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topics"], ["reserve hours", "GoldAa", "117397", "72 (default)"]),
        (["queues"], ["log bytes", "2026-11-20T10:45:32.778Z", "720619920815974403?"]),
        (["segments", "GoldBB", 1], ["GoldBB/1", "CONSUME_QUEUE", "15139"]),
        (["ls"], ["GoldBB/1", "INDEX", "cfcd208400000000000000000000"]),
    ],
)
def test_people_get_tables(command: Command, words: list[object], told: list[str]) -> None:
    ran = asked(command, TIER, *words).done()
    assert all(word in ran.out for word in told)


def test_a_settings_file_names_a_tier(command: Command, tmp_path: Path) -> None:
    toml, conf = tmp_path / "tier.toml", tmp_path / "broker.conf"
    catalogue = TIER / "store" / "config" / "tieredStoreMetadata.json"
    toml.write_text(
        f'[tieredstore]\nprovider = "posix"\npath = "{TIER}/tiered"\nbroker_name = "{BROKER}"\n'
        f'metadata_path = "{catalogue}"\ncluster_name = "GoldenCluster"\nreserve_hours = 5\n'
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
    words = named(TIER, metadata=None, store_path=TIER / "store")
    assert command.run("queues", *words).out == command.run("queues", *named(TIER)).out


def test_a_size_is_shown_in_bytes_so_that_it_can_be_compared_with_the_file(
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
    table = asked(command, root, "segments", "GoldAa").out.split()
    assert all(str(size) in table for size in held)


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
    said = asked(command, TIER, "topics").out
    lines = [line for line in said.splitlines() if "(default)" in line]
    assert len(lines) == len(wanted)
    for row, line in zip(wanted, lines, strict=True):
        assert line.split()[1:-2] == [
            str(row[name]) for name in ("topic_id", "queue_count", "log_bytes", "queue_bytes")
        ]
        assert line.startswith(row["topic"][:15])
        assert len(line) <= 80
