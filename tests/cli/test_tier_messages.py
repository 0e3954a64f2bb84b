"""The verbs cat and offset of a tier, on those that Java wrote: its messages, a scan's answers."""

from __future__ import annotations

import base64
import hashlib

import pytest

from tests.cli.cli_kit import SIZE_OPTIONS, Command, Row, java_row, messages
from tests.cli.tier_kit import (
    LEGACY,
    TIER,
    as_java_told,
    asked,
    in_store_order,
    java_messages,
    named,
)
from tests.cli.verb_kit import CLEAN
from tests.codec.golden_files import expected
from tieredstore.cli import read

FIELDS = [
    *("topic", "queue_id", "queue_offset", "log_offset", "size", "store_timestamp"),
    *("born_timestamp", "tags_code", "tags", "keys", "unique_key", "properties", "sha256"),
    "body_sha256",
]
TOPICS = sorted({row["topic"] for row in java_messages()})


@pytest.mark.parametrize("topic", TOPICS)
def test_cat_prints_every_message_in_the_order_of_store_times(command: Command, topic: str) -> None:
    ran = asked(command, TIER, "cat", topic, "--json").done()
    assert as_java_told(ran.rows) == in_store_order(java_messages(topic))
    local = {(row["topic"], row["queue_id"], row["queue_offset"]): row for row in in_queues()}
    for row in ran.rows:
        its_local = local[row["topic"], row["queue_id"], row["queue_offset"]]
        for field in ("born_timestamp", "tags", "keys", "unique_key", "body_sha256"):
            assert row[field] == its_local[field]


def in_queues() -> list[Row]:
    return [java_row(row) for row in messages() if row["inConsumeQueue"]]


def test_all_topics_together_are_all_messages(command: Command) -> None:
    counts = [len(asked(command, TIER, "cat", topic, "--json").rows) for topic in TOPICS]
    assert sum(counts) == len(java_messages()) == 533


def test_cat_reads_a_tier_of_older_versions(command: Command) -> None:
    wanted = expected("legacy.expect.json")["messages"]
    ran = asked(command, LEGACY, "cat", "GoldAa", "--json").done()
    names = {"queue_offset": "queueOffset", "log_offset": "physicalOffset", "size": "size"}
    names |= {"tags_code": "tagsCode", "store_timestamp": "storeTimestamp", "sha256": "sha256"}
    assert [{ours: row[ours] for ours in names} for row in ran.rows] == [
        {ours: row[java] for ours, java in names.items()} for row in wanted
    ]


@pytest.mark.parametrize(
    ("queue", "begin", "count"),
    [
        (None, "0", 0),
        (None, "0", 7),
        (0, "0", None),
        (1, "20", None),
        (2, "38", None),
        (2, "39", None),
        (2, "1000", 4),
        (None, "30", 11),
        (None, "1795171560000", None),
        (1, "1795171560000", 3),
        (None, "2026-11-20T10:46:00Z", 5),
        (2, "2026-11-20T10:46:00Z", None),
        (None, "2100-01-01", None),
    ],
)
def test_cat_prints_what_is_asked_for(
    command: Command, queue: int | None, begin: str, count: int | None
) -> None:
    options: list[object] = ["--from", begin]
    options += [] if queue is None else ["--queue", queue]
    options += [] if count is None else ["--count", count]
    ran = asked(command, TIER, "cat", "GoldAa", *options, "--json")
    time = {"2026-11-20T10:46:00Z": 1795171560000, "2100-01-01": 2**62}.get(begin, 0)
    time = time or (int(begin) if len(begin) == 13 else 0)
    offset = 0 if time else int(begin)
    wanted = [
        row
        for row in in_store_order(java_messages("GoldAa", queue))
        if row["queue_offset"] >= offset and row["store_timestamp"] >= time
    ]
    assert (ran.code, ran.err) == (0, "")
    assert as_java_told(ran.rows) == wanted[:count]


def test_cat_goes_from_page_to_page(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_PAGE_COUNT_MAX", 3)
    rows = asked(command, TIER, "cat", "GoldAa", "--json").rows
    assert as_java_told(rows) == in_store_order(java_messages("GoldAa"))


def by_scan(rows: list[Row], time: int, *, upper: bool) -> int:
    """What a look at every message says."""
    exact = [row["queue_offset"] for row in rows if row["store_timestamp"] == time]
    later = [row["queue_offset"] for row in rows if row["store_timestamp"] >= time]
    if upper and exact:
        return int(exact[-1])
    return int(later[0]) if later else int(rows[-1]["queue_offset"]) + 1


@pytest.mark.parametrize("queue", [("GoldAa", 0), ("GoldAa", 2), ("GoldBB", 1)])
def test_offset_is_what_a_scan_finds(command: Command, queue: tuple[str, int]) -> None:
    rows = java_messages(*queue)
    times = [row["store_timestamp"] for row in rows[:: len(rows) // 6]]
    for time in [0, *times, times[2] + 1, times[3] - 1, rows[-1]["store_timestamp"] + 1]:
        for upper in (False, True):
            ran = asked(
                command, TIER, "offset", *queue, time, *(["--upper"] if upper else []), "--json"
            )
            assert (ran.code, ran.err) == (0, "")
            assert ran.rows == [
                {
                    "topic": queue[0],
                    "queue_id": queue[1],
                    "timestamp": time,
                    "boundary": "upper" if upper else "lower",
                    "queue_offset": by_scan(rows, time, upper=upper),
                }
            ]


# The words behind the verb, of a tier and of a local store.
CAT: dict[str, tuple[object, ...]] = {
    "tier": ("cat", "GoldAa", *named(TIER)),
    "local": ("local", "cat", CLEAN, "--topic", "GoldAa", *SIZE_OPTIONS),
}
OFFSET: dict[str, tuple[object, ...]] = {
    "tier": ("offset", *named(TIER), "GoldAa", 0),
    "local": ("local", "offset", *SIZE_OPTIONS, CLEAN, "GoldAa", 0),
}


@pytest.mark.parametrize("place", CAT)
def test_a_message_has_exactly_the_promised_fields(command: Command, place: str) -> None:
    rows = command.run(*CAT[place], "--json").rows
    assert all(list(row) == FIELDS for row in rows)
    assert all(row["properties"].get("TAGS") == row["tags"] for row in rows)
    for row in command.run(*CAT[place], "--json", "--body").rows:
        assert list(row) == [*FIELDS, "body"]
        body = base64.b64decode(row["body"], validate=True)
        assert hashlib.sha256(body).hexdigest() == row["body_sha256"]


@pytest.mark.parametrize("place", CAT)
def test_cat_for_people_is_a_line_a_message(command: Command, place: str) -> None:
    ran = command.run(*CAT[place], "--count", "3", "--body")
    head, *lines = ran.out.splitlines()
    assert head.split() == ["log", "offset", "topic/queue/offset", "size", "stored", "tags", "keys"]
    assert lines[0].split()[:4] == ["0", "GoldAa/0/0", "493", "2026-11-20T10:45:32.778Z"]
    assert len(lines) == 6


@pytest.mark.parametrize("place", OFFSET)
def test_offset_takes_iso_times_and_prints_a_number(command: Command, place: str) -> None:
    for time in ("1795171540000", "2026-11-20T10:45:40Z", "2026-11-20T11:45:40+01:00"):
        assert command.run(*OFFSET[place], time).out == "8\n"
