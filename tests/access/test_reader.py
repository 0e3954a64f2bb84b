"""A tier read with no broker beside it: the broker's own golden tier, and one that grows."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import a_config
from tests.codec.golden_files import BROKER, GOLDEN, expected
from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import AnotherTierError, NoCatalogueError
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError, SegmentCorruptError, StoreClosedError
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import TOPIC


def golden_config(root: Path) -> StoreConfig:
    return StoreConfig(
        broker_name=BROKER,
        cluster_name="GoldenCluster",
        provider="posix",
        path=str(root / "tiered"),
        metadata_path=str(root / "store" / "config" / "tieredStoreMetadata.json"),
        store_path=str(root / "store"),
        commit_log_segment_bytes=16_000,
        consume_queue_segment_bytes=400,
    )


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    copy = tmp_path / "tier"
    shutil.copytree(GOLDEN / "tier-posix", copy)
    return copy


@pytest.fixture
def reader(golden: Path) -> Iterator[TieredReader]:
    with TieredReader(golden_config(golden), runtime=Runtime.inline()) as reader:
        yield reader


def contents(root: Path) -> dict[str, tuple[bytes | None, int]]:
    """Every file and folder with its bytes and the time of its last change."""
    found: dict[str, tuple[bytes | None, int]] = {}
    for path in sorted(root.rglob("*")):
        data = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = data, os.stat(path).st_mtime_ns
    return found


# The broker's own tier


def test_every_message_of_the_golden_tier_comes_once_and_in_order(reader: TieredReader) -> None:
    wanted: dict[QueueKey, list[tuple[int, int, int, int]]] = {}
    for row in expected("tier-posix.expect-messages.json"):
        wanted.setdefault(QueueKey(row["topic"], row["queueId"]), []).append(
            (row["queueOffset"], row["tieredCommitLogOffset"], row["tagsCode"], row["size"])
        )
    assert reader.queues() == sorted(wanted)
    for key, rows in wanted.items():
        found = list(reader.messages(*key))
        assert [
            (one.queue_offset, one.log_offset, one.tags_code, len(one.record)) for one in found
        ] == rows


def test_all_messages_are_those_of_all_queues(reader: TieredReader) -> None:
    one_by_one = [one for key in reader.queues() for one in reader.messages(*key)]
    assert list(reader.messages()) == one_by_one
    assert len(one_by_one) == len(expected("tier-posix.expect-messages.json"))


def test_looking_at_a_tier_changes_not_one_byte_of_it(golden: Path) -> None:
    before = contents(golden)
    with TieredReader(golden_config(golden)) as reader:
        for key in reader.queues():
            reader.summary(*key)
            reader.store_time(*key, 3)
            reader.earliest_time(*key)
            reader.offset_by_time(*key, 1_795_171_540_000)
            reader.query_message(key.topic, "k")
            for offset in (-1, 0, 5, 1 << 40):
                reader.get_message(*key, offset)
        reader.segments()
        reader.topics()
        assert sum(1 for _ in reader.messages())
        reader.refresh()
    assert contents(golden) == before


def test_a_tier_that_may_not_be_written_can_be_read(golden: Path) -> None:
    """Without the lock file, without the right to make one."""
    for folder in [golden, *(path for path in golden.rglob("*") if path.is_dir())]:
        folder.chmod(0o555)
    try:
        with TieredReader(golden_config(golden)) as reader:
            assert sum(1 for _ in reader.messages()) > 100
    finally:
        for folder in [golden, *(path for path in golden.rglob("*") if path.is_dir())]:
            folder.chmod(0o755)


def test_segments_and_topics_are_those_of_the_catalogue(reader: TieredReader, golden: Path) -> None:
    path = golden_config(golden).catalogue_path
    with JsonMetadataStore.open(path, read_only=True) as catalogue:
        wanted = {
            (row.path, row.type, row.base_offset, row.size)
            for row in catalogue.segments()
            if "rmq_sys_INDEX" not in row.path
        }
        topics = {row.topic for row in catalogue.topics()}
    found = [(row.path, row.type, row.base_offset, row.size) for row in reader.segments()]
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert {row.topic for row in reader.topics()} == topics


def test_a_summary_says_where_a_queue_begins_and_ends(reader: TieredReader) -> None:
    rows = expected("tier-posix.expect-messages.json")
    for key in reader.queues():
        mine = [row for row in rows if (row["topic"], row["queueId"]) == key]
        summary = reader.summary(*key)
        assert summary is not None
        assert (summary.min_offset, summary.max_offset) == (
            mine[0]["queueOffset"],
            mine[-1]["queueOffset"] + 1,
        )
        assert summary.log_bytes >= sum(row["size"] for row in mine)
        assert summary.problem is None
    assert reader.summary("Nowhere", 0) is None


def test_reading_may_begin_in_the_middle(reader: TieredReader) -> None:
    key = reader.queues()[0]
    everything = list(reader.messages(*key))
    assert list(reader.messages(*key, start=everything[3].queue_offset)) == everything[3:]
    assert list(reader.messages(*key, start=-5)) == everything
    assert list(reader.messages(*key, start=1 << 40)) == []
    assert list(reader.messages("Nowhere")) == []
    assert list(reader.messages(key.topic, 99)) == []


def test_bytes_are_read_in_bounded_pieces(golden: Path) -> None:
    config = StoreConfig(
        **{
            name: getattr(golden_config(golden), name)
            for name in ("broker_name", "cluster_name", "provider", "path", "metadata_path")
        },
        read_ahead_bytes=3_000,
        read_ahead_count=7,
    )
    with TieredReader(config) as reader:
        runs = list(reader.runs())
        assert max(len(run) for _, run in runs) <= 7
        assert all(int(run.message_bytes.sum()) <= 3_000 or len(run) == 1 for _, run in runs)
        total = sum(len(run) for _, run in runs)
    assert total == len(expected("tier-posix.expect-messages.json"))


# Life


def test_a_reader_answers_only_while_it_is_open(golden: Path) -> None:
    reader = TieredReader(golden_config(golden))
    for call in (
        reader.queues,
        reader.topics,
        reader.segments,
        reader.refresh,
        reader.runs,
        reader.messages,
        lambda: reader.get_message(TOPIC, 0, 0),
        lambda: reader.query_message(TOPIC, "k"),
        lambda: reader.offset_by_time(TOPIC, 0, 0),
        lambda: reader.max_offset(TOPIC, 0),
    ):
        with pytest.raises(StoreClosedError):
            call()
    reader.load()
    reader.load()
    messages = iter(reader.messages())
    next(messages)
    reader.close()
    reader.close()
    with pytest.raises(StoreClosedError):
        reader.queues()
    with pytest.raises(StoreClosedError):
        list(messages)


def test_open_gives_an_open_reader(golden: Path) -> None:
    with TieredReader.open(golden_config(golden)) as reader:
        assert reader.queues()


def test_a_catalogue_that_is_damaged_leaves_nothing_open(golden: Path) -> None:
    config = golden_config(golden)
    for path in Path(config.catalogue_path).parent.iterdir():
        path.write_bytes(b"no json")
    reader = TieredReader(config)
    with pytest.raises(MetadataError):
        reader.load()
    with pytest.raises(StoreClosedError):
        reader.queues()


def test_a_tier_that_is_not_there_is_an_error_and_nothing_is_made(tmp_path: Path) -> None:
    config = a_config(tmp_path, provider="posix", path=str(tmp_path / "tier"))
    with pytest.raises(NoCatalogueError, match="rebuild"):
        TieredReader.open(config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"broker_name": "nobody"}, f"has no broker 'nobody'; it has {BROKER}"),
        (
            {"cluster_name": "Another"},
            "cluster_name: no cluster 'Another' (442c0184_Another) lies in {root}/tiered;"
            " there is GoldenCluster",
        ),
        ({"path": "{root}/nowhere"}, "path: there is no directory {root}/nowhere"),
        ({"path": "{root}/store"}, "lies in {root}/store; there is none"),
    ],
)
def test_a_tier_that_is_not_the_one_of_the_catalogue_is_an_error_that_names_what_is_there(
    golden: Path, settings: dict[str, str], line: str
) -> None:
    root = str(golden)
    named: Any = {name: text.replace("{root}", root) for name, text in settings.items()}
    line = line.replace("{root}", root)
    with pytest.raises(AnotherTierError) as refusal:
        TieredReader.open(dataclasses.replace(golden_config(golden), **named))
    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_broker_whose_bytes_are_all_gone_has_lost_them_and_is_no_other_tier(
    golden: Path,
) -> None:
    for segment in (golden / "tiered").rglob("*"):
        if segment.is_file():
            segment.unlink()
    with TieredReader(golden_config(golden), runtime=Runtime.inline()) as reader:
        problems = [
            found.problem
            for key in reader.queues()
            if (found := reader.summary(*key)) is not None and found.log_bytes
        ]
        assert problems
        assert all(problem is not None for problem in problems)


def test_damage_is_an_error_after_all_that_comes_before_it(golden: Path) -> None:
    config = golden_config(golden)
    with TieredReader(config) as reader:
        key = next(key for key in reader.queues() if len(list(reader.messages(*key))) > 10)
        whole = list(reader.messages(*key))
        broken = whole[5]
        segment = next(
            row
            for row in reader.segments(*key)
            if row.type == 0 and row.base_offset <= broken.log_offset < row.end_offset
        )
    provider = PosixProvider(config.path, config.cluster_name, Runtime.inline())
    file = next(
        path
        for path in (golden / "tiered").rglob("*")
        if path.is_file()
        and str(path).endswith(provider.open(segment.path, segment.type, segment.base_offset).path)
    )
    data = bytearray(file.read_bytes())
    at = broken.log_offset - segment.base_offset
    data[at + 4 : at + 8] = b"\xff\xff\xff\xff"
    file.write_bytes(data)
    found: list[bytes] = []
    with TieredReader(config) as reader:
        with pytest.raises(SegmentCorruptError):
            found += [one.record for one in reader.messages(*key)]
        for one in whole[:5]:
            assert reader.get_message(*key, one.queue_offset, count_max=1).messages == [one]


def test_hashes_are_the_brokers_but_for_the_log_offset(reader: TieredReader) -> None:
    rows = {
        (row["topic"], row["queueId"], row["queueOffset"]): row["sha256"]
        for row in expected("tier-posix.expect-messages.json")
    }
    equal = sum(
        rows[(*key, one.queue_offset)] == sha256(one.record).hexdigest()
        for key in reader.queues()
        for one in reader.messages(*key)
    )
    assert equal == len(rows)
