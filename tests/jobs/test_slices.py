"""Slices cover each message with a unit once, carry few rows, and read the same."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs import written_tier
from tests.jobs.together_tiers import LogBucket
from tests.jobs.written_tier import SECOND_MS, WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.access.upkeep import PublishChore, roll_unsealed, seal_full
from tieredstore.codec.names import segment_name
from tieredstore.driver.provider import ListedGeneration
from tieredstore.jobs import worker
from tieredstore.jobs.scan import OnCorrupt, Scan
from tieredstore.jobs.slices import (
    Damage,
    QueueRows,
    Slice,
    SliceReader,
    plan_slices,
    queue_rows,
    trimmed,
)
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType
from tieredstore.providers.posix import PosixFileSegment
from tieredstore.providers.posix_shelf import PosixGenerations
from tieredstore.testing.memory_objects import MemoryObjects

PATH = "broker-a/t/3"


def log_row(base: int, size: int, path: str = PATH) -> SegmentRecord:
    return SegmentRecord(path=path, type=SegmentType.COMMIT_LOG, base_offset=base, size=size)


def unit_row(first: int, count: int, path: str = PATH) -> SegmentRecord:
    return SegmentRecord(
        path=path, type=SegmentType.CONSUME_QUEUE, base_offset=20 * first, size=20 * count
    )


def one_queue(*rows: SegmentRecord) -> QueueRows:
    (queue,) = queue_rows(rows)
    return queue


@given(
    segments=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 400)), min_size=1, max_size=6),
    message_bytes=st.integers(91, 5000),
    split_bytes=st.integers(1, 100_000),
)
def test_every_unit_is_in_one_slice_and_no_gap_is_in_any(
    segments: list[tuple[int, int]], message_bytes: int, split_bytes: int
) -> None:
    rows: list[SegmentRecord] = []
    wanted: list[int] = []
    at = 0
    for gap, count in segments:
        at += gap
        rows.append(unit_row(at, count))
        wanted += range(at, at + count)
        at += count
    total = len(wanted) * message_bytes
    queue = one_queue(*reversed(rows), log_row(0, total))
    slices = plan_slices([queue], split_bytes=split_bytes)
    found = [offset for each in slices for offset in range(each.first_offset, each.end_offset)]
    assert found == wanted
    most = max(1.5 * split_bytes + message_bytes, message_bytes)
    assert all(each.approximate_bytes <= most for each in slices)
    for each in slices:
        held = [row for row in each.rows if row.type is SegmentType.CONSUME_QUEUE]
        assert held[0].base_offset <= each.first_offset * 20
        assert held[-1].end_offset >= each.end_offset * 20
        assert log_row(0, total) in each.rows


def test_bounds_cut_off_what_is_not_wanted() -> None:
    queue = one_queue(unit_row(10, 90), log_row(0, 9000))
    slices = plan_slices([queue], split_bytes=2000, bounds=lambda _: (50, 60))
    assert (slices[0].first_offset, slices[-1].end_offset) == (50, 60)
    assert plan_slices([queue], bounds=lambda _: (5, 8)) == []
    assert plan_slices([queue], bounds=lambda _: (100, 8000)) == []


def test_queues_are_found_by_their_paths_and_the_index_is_none() -> None:
    index = SegmentRecord(
        path="broker-a/rmq_sys_INDEX/0", type=SegmentType.INDEX, base_offset=0, size=10
    )
    rows = [unit_row(0, 3), log_row(0, 300), index, unit_row(0, 0, "broker-a/b/1")]
    queues = queue_rows(rows)
    assert [queue.key for queue in queues] == [QueueKey("b", 1), QueueKey("t", 3)]
    assert queues[0].message_count == 0
    assert plan_slices(queues[:1]) == []
    assert [queue.key for queue in queue_rows(rows, wanted=lambda key: key.topic == "t")] == [
        QueueKey("t", 3)
    ]


@pytest.mark.parametrize("path", ["broker-a/t", "broker-a/t/3/1", "broker-a/t/three"])
def test_segments_of_what_is_no_queue_are_told(path: str) -> None:
    with pytest.raises(MetadataError, match=f"{path}: the catalogue has segments of it"):
        queue_rows([log_row(0, 300, path)])


def test_a_slice_pickles_and_a_split_of_nothing_is_refused() -> None:
    (only,) = plan_slices([one_queue(unit_row(0, 3), log_row(0, 300))])
    assert pickle.loads(pickle.dumps(only)) == only  # noqa: S301 - our own bytes
    with pytest.raises(ValueError, match="split_bytes: 0"):
        plan_slices([], split_bytes=0)


def test_units_without_a_log_are_planned_so_that_their_reader_says_what_is_missing() -> None:
    (only,) = plan_slices([one_queue(unit_row(0, 3))])
    assert (only.first_offset, only.end_offset, only.approximate_bytes) == (0, 3, 0)


@pytest.fixture
def long_queue(tmp_path: Path) -> StoreConfig:
    tier = WrittenTier(config=posix_config(tmp_path, commit_log_segment_bytes=1_000))
    tier.add("t", 0, 400)
    return tier.config


def planned(config: StoreConfig, split_bytes: int = 1_500) -> list[Slice]:
    with TieredReader(config) as reader:
        rows = queue_rows(reader.segments(), from_copy=reader.catalogue.copy)
        return plan_slices(rows, split_bytes=split_bytes)


def logs(each: Slice) -> int:
    return sum(row.type is SegmentType.COMMIT_LOG for row in each.rows)


def offsets(config: StoreConfig, slices: list[Slice]) -> list[list[int]]:
    scan = Scan(columns=("queue_offset",), on_corrupt=OnCorrupt.SKIP)
    return [
        [
            offset
            for batch in scan.batches(config, each)
            for offset in batch["queue_offset"].to_pylist()
        ]
        for each in slices
    ]


def test_a_slice_has_the_rows_that_it_reads_and_few_more(long_queue: StoreConfig) -> None:
    slices = planned(long_queue)
    fewer = trimmed(long_queue, slices, log_rows_max=8)
    assert min(map(logs, slices)) > 80
    assert max(map(logs, fewer)) <= 8
    assert offsets(long_queue, fewer) == offsets(long_queue, slices)
    assert list(chain(*offsets(long_queue, fewer))) == list(range(400))


def test_a_queue_with_few_segments_is_left_alone(long_queue: StoreConfig) -> None:
    slices = planned(long_queue)
    assert trimmed(long_queue, slices, log_rows_max=1_000) == slices


def test_damage_at_a_border_costs_no_other_message(long_queue: StoreConfig) -> None:
    slices = planned(long_queue)
    segments = sorted(Path(long_queue.path).rglob("COMMIT_LOG/*"))
    for path in segments[::3]:
        path.write_bytes(b"\0" * path.stat().st_size)
    for path in segments[1::9]:
        path.unlink()
    fewer = trimmed(long_queue, slices, log_rows_max=8)
    left = offsets(long_queue, fewer)
    assert left == offsets(long_queue, slices)
    assert 100 < len(list(chain(*left))) < 300


def bucket_at(root: Path) -> StoreConfig:
    config = posix_config(root, provider="tests.jobs.together_tiers:LogBucket")
    LogBucket.buckets[config.path] = MemoryObjects()
    return config


def elsewhere(config: StoreConfig) -> StoreConfig:
    """A machine without the broker's files: a directory's catalogue is the published one."""
    return replace(config, store_path=f"{config.store_path}-elsewhere")


@pytest.mark.parametrize("make", [bucket_at, posix_config])
@pytest.mark.parametrize(("count", "body_bytes"), [(5, 50), (300, 400), (300, 1), (300, 50)])
@pytest.mark.parametrize("is_published", [True, False])
def test_what_was_planned_of_a_deleted_topic_is_gone_and_not_damaged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], StoreConfig],
    count: int,
    body_bytes: int,
    is_published: bool,
) -> None:
    """A topic of that name was recreated: it has other segments with the same names, and perhaps a
    message at the place of each former one."""
    config = make(tmp_path)
    tier = WrittenTier(config=config)
    tier.add("t", 0, 200)
    slices = planned(elsewhere(config))
    tier.delete("t")
    monkeypatch.setattr(written_tier, "START_MS", written_tier.START_MS + 5_000)
    if not is_published:
        monkeypatch.setattr(PublishChore, "step", lambda _: True)
    tier.start_ms += 200 * SECOND_MS  # as of 200 messages: those of the new topic came later
    tier.add("t", 0, count, body_bytes=body_bytes)
    worker._PARTS.providers.clear()
    found: list[Damage] = []
    for each in slices:
        for _ in SliceReader(elsewhere(config), each, on_damage=found.append).fields():
            pytest.fail("messages of the new topic")
    assert {at for each in found for at in range(each.first_offset, each.end_offset)} == {
        *range(200)
    }
    assert all(each.is_missing for each in found)


def test_an_older_copy_does_not_call_gone_what_a_bucket_lost_with_its_log(tmp_path: Path) -> None:
    config = bucket_at(tmp_path)
    tier = WrittenTier(config=config)
    tier.add("u", 0, 3)
    copy = Path(config.catalogue_path).parent
    shutil.copytree(copy, tmp_path / "older")
    tier.add("t", 0, 200)
    with tier.open() as parts:
        files = parts.files.files()
        assert all(map(roll_unsealed, files))
        assert not seal_full(files, parts.provider)
    slices = [each for each in planned(config) if each.key.topic == "t"]
    shutil.rmtree(copy)
    shutil.copytree(tmp_path / "older", copy)
    objects = LogBucket.buckets[config.path]
    for key in objects.held_keys():
        if any(part in key for part in ("/log/", "/state/", "/epoch/")):
            del objects.held[key]
        elif "/t/0/" in key:
            objects.put(key, bytes(len(objects.held[key][0])), None)
    worker._PARTS.providers.clear()
    found = damages_in(config, slices)
    assert found
    assert not any(each.is_missing for each in found)


def test_a_topic_that_is_made_again_after_damage_was_found_is_not_read_for_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = posix_config(tmp_path)
    tier = WrittenTier(config=config)
    tier.add("t", 0, 200)
    with TieredReader(config) as reader:
        (whole,) = plan_slices(queue_rows(reader.segments()))
    (first,) = Path(config.path).rglob(f"t/0/COMMIT_LOG/{segment_name(0)}")
    data = bytearray(first.read_bytes())
    data[data.index(b"00000000....")] ^= 1  # in the body of the first message
    first.write_bytes(data)
    found: list[Damage] = []
    times: list[int] = []
    for fields in SliceReader(config, whole, on_damage=found.append, run_count=8).fields():
        if not times:
            assert [each.is_missing for each in found] == [False]
            tier.delete("t")
            monkeypatch.setattr(written_tier, "START_MS", written_tier.START_MS + 5_000)
            tier.start_ms += 200 * SECOND_MS
            tier.add("t", 0, 200)
        times += fields.store_times().tolist()
    assert max(times) < tier.start_ms
    assert any(each.is_missing for each in found)


def test_what_was_planned_in_the_middle_of_a_deletion_is_gone_and_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = posix_config(tmp_path)
    tier = WrittenTier(config=config)
    tier.add("t", 0, 100)
    tier.add("u", 0, 3)
    with TieredReader(elsewhere(config)) as reader:
        before = reader.catalogue.generation
    listed, delete, steps = PosixGenerations.listed, PosixFileSegment.delete, []

    def late(generations: PosixGenerations) -> list[ListedGeneration]:
        """The listing from just before the deletion."""
        return [each for each in listed(generations) if each.number == before]

    def watched(segment: PosixFileSegment) -> None:
        delete(segment)
        with monkeypatch.context() as patched:
            patched.setattr(PosixGenerations, "listed", late)
            slices = planned(elsewhere(config))
        found = damages_in(elsewhere(config), slices)
        assert all(each.is_missing for each in found)
        steps.append(len(found))

    monkeypatch.setattr(PosixFileSegment, "delete", watched)
    tier.delete("t")
    assert any(steps)


def damages_in(config: StoreConfig, slices: list[Slice]) -> list[Damage]:
    """The damages that readers of these slices find; check that the rest is sound."""
    found: list[Damage] = []
    for each in slices:
        for fields in SliceReader(config, each, on_damage=found.append).fields():
            assert fields.is_sound
    return found


def damage_of_a_record(root: Path, config: StoreConfig, slices: list[Slice]) -> list[Damage]:
    """Zero the head of the first record; return the damages that readers of these slices find."""
    first = min(root.rglob("t/0/COMMIT_LOG/*"))
    first.write_bytes(bytes(8) + first.read_bytes()[8:])
    return damages_in(config, slices)


def test_units_that_are_lost_behind_a_lost_log_segment_are_damage_of_their_own(
    tmp_path: Path,
) -> None:
    config = posix_config(tmp_path)
    WrittenTier(config=config).add("t", 0, 200)
    slices = planned(config, split_bytes=1 << 20)
    for kind, base in (("COMMIT_LOG", 0), ("CONSUME_QUEUE", 64 * 20)):
        (path,) = tmp_path.rglob(f"t/0/{kind}/{segment_name(base)}")
        path.unlink()
    found = damages_in(config, slices)
    lost = [at for each in found for at in range(each.first_offset, each.end_offset)]
    assert lost == list(range(128))
    assert all(each.is_missing for each in found)


@pytest.mark.parametrize("catalogue", ["file", "published", "rebuild"])
def test_damage_of_a_directory_is_damage_by_whatever_catalogue(
    tmp_path: Path, catalogue: str
) -> None:
    config = posix_config(tmp_path, catalogue=catalogue)
    WrittenTier(config=config).add("t", 0, 200)
    config = config if catalogue == "file" else elsewhere(config)
    (found,) = damage_of_a_record(tmp_path, config, planned(config))
    assert not found.is_missing


def test_damage_of_a_topic_that_is_not_published_yet_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = posix_config(tmp_path)
    tier = WrittenTier(config=config)
    tier.add("u", 0, 3)
    monkeypatch.setattr(PublishChore, "step", lambda _: True)
    tier.add("t", 0, 200)
    (found,) = damage_of_a_record(tmp_path, elsewhere(config), planned(config))
    assert not found.is_missing


def test_a_worker_that_remembers_a_deleted_topic_reads_the_one_that_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = posix_config(tmp_path, provider="tests.jobs.together_tiers:LogBucket")
    LogBucket.buckets[config.path] = MemoryObjects()
    tier = WrittenTier(config=config)
    tier.add("t", 0, 20)
    assert offsets(config, planned(config))  # now the worker has cached this tier
    tier.delete("t")
    monkeypatch.setattr(written_tier, "START_MS", written_tier.START_MS + 5_000)
    tier.add("t", 0, 10, body_bytes=400)
    scan = Scan(columns=("body",))
    batches = chain(*(scan.batches(config, each) for each in planned(config)))
    bodies = chain(*(batch["body"].to_pylist() for batch in batches))
    assert [len(body) for body in bodies] == [400] * 10
