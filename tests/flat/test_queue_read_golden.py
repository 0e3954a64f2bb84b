"""Reads of the tiers that the Java broker wrote, held against what it says is in them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.flat.golden_tiers import differences, expectation, golden_queues, messages_of
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import read_run
from tieredstore.flat.times import earliest_time, offset_by_time, store_time
from tieredstore.model.errors import OffsetOutOfRangeError
from tieredstore.model.values import Boundary, QueueKey

QUERIES = "tier-posix.expect-queue-queries.json"


def rows_of(name: str) -> list[dict[str, Any]]:
    if name == "legacy":
        rows: list[dict[str, Any]] = expectation("legacy.expect.json")["messages"]
    else:
        rows = expectation("tier-posix.expect-messages.json")
    return rows


def read_all(
    file: FlatMessageFile, *, count_max: int, bytes_max: int
) -> list[tuple[int, int, int, str]]:
    found = []
    at = file.min_offset
    while at < file.commit_offset:
        run = read_run(file, at, count_max=count_max, bytes_max=bytes_max)
        for row in range(len(run)):
            digest = hashlib.sha256(run.record(row)).hexdigest()
            found.append((at + row, int(run.log_offsets[row]), int(run.tags_codes[row]), digest))
        at = run.end_offset
    return found


@pytest.mark.parametrize("name", ["tier-posix", "legacy"])
@pytest.mark.parametrize(
    ("count_max", "bytes_max"), [(1, 1), (7, 1 << 20), (4096, 1 << 20), (4096, 3000)]
)
def test_every_message_that_java_tiered_is_read_as_it_lies_there(
    name: str, count_max: int, bytes_max: int
) -> None:
    expected = messages_of(rows_of(name))
    for key, file in golden_queues(name).items():
        assert read_all(file, count_max=count_max, bytes_max=bytes_max) == [
            (
                row["queueOffset"],
                row.get("tieredCommitLogOffset", row.get("physicalOffset")),
                row["tagsCode"],
                row["sha256"],
            )
            for row in expected[key]
        ]


@pytest.mark.parametrize("name", ["tier-posix", "legacy"])
def test_the_offset_of_every_time_is_that_of_a_linear_scan(name: str) -> None:
    expected = messages_of(rows_of(name))
    for key, file in golden_queues(name).items():
        times = [(row["queueOffset"], row["storeTimestamp"]) for row in expected[key]]
        for _, time in times:
            for wanted in (time - 1, time, time + 1):
                for boundary in Boundary:
                    scanned = scan(times, wanted, boundary, file.commit_offset)
                    assert offset_by_time(file, wanted, boundary) == scanned


def test_answers_about_queues_are_javas_but_for_the_listed_rows() -> None:
    files = golden_queues("tier-posix")
    messages = messages_of(rows_of("tier-posix"))
    listed = differences(QUERIES)
    for number, row in enumerate(expectation(QUERIES)):
        query = row["query"]
        if query["op"] not in ("offsetByTime", "storeTimestamp", "earliestTime"):
            continue
        key = QueueKey(query["topic"], query["queueId"])
        ours = answer(files.get(key), query)
        assert ours == by_linear_scan(files.get(key), messages.get(key, []), query)
        if number in listed:
            assert ours == listed[number]["ours"] != row["result"], row
        else:
            assert ours == row["result"], row


def answer(file: FlatMessageFile | None, query: dict[str, Any]) -> dict[str, int]:
    """Our answer in the form of Java's, which says -1 for what is not there."""
    if query["op"] == "offsetByTime":
        if file is None:
            return {"offset": -1}
        boundary = Boundary[query["boundary"]]
        return {"offset": offset_by_time(file, query["timestamp"], boundary)}
    if file is None:
        return {"timestamp": -1}
    if query["op"] == "earliestTime":
        time = earliest_time(file)
        return {"timestamp": -1 if time is None else time}
    try:
        return {"timestamp": store_time(file, query["offset"])}
    except OffsetOutOfRangeError:
        return {"timestamp": -1}


def by_linear_scan(
    file: FlatMessageFile | None, messages: list[dict[str, Any]], query: dict[str, Any]
) -> dict[str, int]:
    times = [(row["queueOffset"], row["storeTimestamp"]) for row in messages]
    if query["op"] == "offsetByTime":
        boundary = Boundary[query["boundary"]]
        end = -1 if file is None else file.commit_offset
        return {"offset": scan(times, query["timestamp"], boundary, end)}
    if query["op"] == "earliestTime":
        return {"timestamp": min((time for _, time in times), default=-1)}
    return {"timestamp": dict(times).get(query["offset"], -1)}


def scan(times: list[tuple[int, int]], wanted: int, boundary: Boundary, end: int) -> int:
    exact = [offset for offset, time in times if time == wanted]
    if boundary is Boundary.UPPER and exact:
        return exact[-1]
    return next((offset for offset, time in times if time >= wanted), end)
