"""The tiers that the Java broker wrote are opened, read, and written again byte for byte."""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.codec.golden_files import (
    BROKER,
    CLUSTER,
    GOLDEN,
    expected,
    files_under,
    local_records,
    sha256,
)
from tests.flat.golden_tiers import differences, expectation, golden_queues, messages_of
from tests.flat.store_kit import append
from tests.flat.tiers import run_of
from tieredstore.codec.record import peek_store_timestamp
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import read_run
from tieredstore.flat.times import earliest_time, offset_by_time, store_time
from tieredstore.metadata import JsonMetadataStore
from tieredstore.metadata.json_store import FILE_NAME
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import OffsetOutOfRangeError
from tieredstore.model.values import Boundary, QueueKey, SegmentRecord, SegmentType
from tieredstore.providers.posix import PosixProvider

BORN_ON_IPV6 = f"{BROKER}/GoldAa/2"  # Java takes its times from within the address


@contextmanager
def opened(folder: Path, *, read_only: bool = False) -> Iterator[FlatFileStore]:
    """The tier in a folder with the layout of the golden data."""
    runtime = Runtime.inline(now_ms=1795171600000)
    config = StoreConfig(
        broker_name=BROKER,
        cluster_name="GoldenCluster",
        commit_log_segment_bytes=16_000,
        consume_queue_segment_bytes=400,
    )
    with (
        PosixProvider(folder / "tiered", "GoldenCluster", runtime) as provider,
        JsonMetadataStore.open(
            folder / "store" / "config" / FILE_NAME, read_only=read_only
        ) as metadata,
    ):
        store = FlatFileStore(
            config, provider=provider, metadata=metadata, runtime=runtime, read_only=read_only
        )
        store.load()
        yield store
        store.close()


@pytest.fixture(params=["tier-posix", "legacy"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    shutil.copytree(GOLDEN / request.param, tmp_path / "tier")
    return request.param, tmp_path / "tier"


def facts(name: str) -> Any:
    return expected(
        "tier-posix.expect-queues.json" if name == "tier-posix" else f"{name}.expect.json"
    )


@pytest.mark.parametrize("read_only", [True, False])
def test_queues_are_as_java_says(tier: tuple[str, Path], read_only: bool) -> None:
    name, folder = tier
    with opened(folder, read_only=read_only) as store:
        assert len(store.files()) == len(facts(name)["queues"])
        for fact in facts(name)["queues"]:
            file = store.get(QueueKey(fact["topic"], fact["queueId"]))
            assert file is not None
            assert file.problem is None
            assert file.topic_id == fact["topicId"]
            assert file.min_offset == fact["minOffset"]
            assert file.append_offset == fact["maxOffset"]
            assert file.commit_offset == fact["commitOffset"]
            assert file.log.min_offset == fact["commitLogMinOffset"]
            assert file.log.commit_offset == fact["commitLogCommitOffset"]
            assert file.log.first_queue_offset() == fact["firstMessageOffset"]


def test_segments_are_as_java_says(tier: tuple[str, Path]) -> None:
    name, folder = tier
    wanted = [row for row in facts(name)["segments"] if row["type"] != "INDEX"]
    with opened(folder) as store:
        for row in wanted:
            topic, queue_id = row["path"].split("/")[1:]
            file = store.get(QueueKey(topic, int(queue_id)))
            assert file is not None
            part = file.log if row["type"] == "COMMIT_LOG" else file.queue
            found = part.segment_at(row["baseOffset"])
            assert found is not None
            assert found.record == SegmentRecord(
                path=row["path"],
                type=SegmentType[row["type"]],
                base_offset=row["baseOffset"],
                size=row["size"],
                create_timestamp=row["createTimestamp"],
                begin_timestamp=row["beginTimestamp"],
                end_timestamp=row["endTimestamp"],
            )
            assert found.segment.size() == row["fileSize"]
            assert sha256(part.read(found.base, row["size"])) == row["sha256"]
        segments = sum(len(f.log.segments) + len(f.queue.segments) for f in store.files())
        assert segments == len(wanted)


def test_opening_a_clean_tier_of_java_changes_nothing(tier: tuple[str, Path]) -> None:
    name, folder = tier
    with opened(folder):
        pass
    for path in files_under(name):
        assert (folder / path.relative_to(GOLDEN / name)).read_bytes() == path.read_bytes()


def test_end_marks_of_old_brokers_are_between_the_records(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "legacy", tmp_path / "tier")
    with opened(tmp_path / "tier") as store:
        (file,) = store.files()
        units = file.units(0, file.commit_offset)
        ends = units.log_offsets + units.message_bytes
        gaps = [
            int(end)
            for end, start in zip(ends, units.log_offsets[1:], strict=False)
            if end != start
        ]
        assert gaps == expected("legacy.expect.json")["codaOffsets"]
        record = file.log.read(0, 295)
        append(file, [record])
        assert file.log.read(file.log.commit_offset - 295, 295)[36:] == record[36:]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_the_same_messages_make_the_same_bytes_names_and_rows(tmp_path: Path, batch: int) -> None:
    physical = [row["physicalOffset"] for row in expected("local-clean.expect-messages.json")]
    record_at = dict(zip(physical, local_records(), strict=True))
    queues: dict[QueueKey, list[dict[str, Any]]] = defaultdict(list)
    for row in rows_of("tier-posix"):
        queues[QueueKey(row["topic"], row["queueId"])].append(row)
    with opened(tmp_path) as store:
        for key, rows in queues.items():
            file = store.create(*key)
            file.start_at(rows[0]["queueOffset"])
            rest = rows
            while rest:
                part = rest[:batch]
                run = run_of(
                    part[0]["queueOffset"],
                    [record_at[row["localPhysicalOffset"]] for row in part],
                    [row["tagsCode"] for row in part],
                )
                rest = rest[file.append(run).count :]
                file.commit()
        check_rows(store)
    with opened(tmp_path, read_only=True) as store:
        check_rows(store)
    written = {
        path.relative_to(tmp_path) for path in (tmp_path / "tiered").rglob("*") if path.is_file()
    }
    javas = {
        path.relative_to(GOLDEN / "tier-posix")
        for path in files_under("tier-posix/tiered")
        if "rmq_sys_INDEX" not in path.parts
    }
    assert written == javas
    for name in javas:
        assert (tmp_path / name).read_bytes() == (GOLDEN / "tier-posix" / name).read_bytes(), name
    assert (tmp_path / "tiered" / CLUSTER).is_dir()


def check_rows(store: FlatFileStore) -> None:
    """The catalogue's rows are Java's, except creation times and times that Java misread."""
    wanted = {
        (row["path"], row["type"], row["baseOffset"]): row
        for row in facts("tier-posix")["segments"]
        if row["type"] != "INDEX"
    }
    for file in store.files():
        for part in (file.log, file.queue):
            for each in part.segments:
                row = wanted.pop((file.path, part.type.name, each.base))
                assert each.record.size == row["size"]
                times = each.record.begin_timestamp, each.record.end_timestamp
                if file.path != BORN_ON_IPV6:
                    assert times == (row["beginTimestamp"], row["endTimestamp"])
        if file.path == BORN_ON_IPV6:
            first = file.log.segments[0]
            record = file.log.read(0, 513)
            assert first.record.begin_timestamp == peek_store_timestamp(record) == 1795171532796
            assert file.queue.segments[0].record.begin_timestamp == 1795171532796
    assert wanted == {}


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
        for offset, time in times:
            assert store_time(file, offset) == time
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
    """Our answer in the form of Java's, which has -1 for None."""
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
