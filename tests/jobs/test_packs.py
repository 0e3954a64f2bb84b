"""Small queues are read in few requests, and give the same as when each is read alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import written_tier
from tests.jobs.together_tiers import LOG, QUEUE, LogBucket, LogTier, TogetherPosix
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.driver.runtime import Runtime
from tieredstore.jobs import packs
from tieredstore.jobs.packs import PACKED_BYTES_MIN, PACKED_MAX, packed, read_packed
from tieredstore.jobs.scan import OnCorrupt, Scan, ScanItem, plan_scan
from tieredstore.jobs.slices import EVERYTHING, SPLIT_BYTES, Selection, plan_slices, queue_rows
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.roundlog import upkeep
from tieredstore.roundlog.object_calls import RANGE_BYTES_MAX
from tieredstore.testing.memory_objects import MemoryObjects

COLUMNS = ("topic", "queue_id", "queue_offset", "body", "damage")
REPORTED = Scan(columns=COLUMNS, on_corrupt=OnCorrupt.REPORT)


def rows_of(config: StoreConfig, items: Sequence[ScanItem], scan: Scan) -> list[dict[str, Any]]:
    """The rows that a task gives for a pack."""
    return [
        row
        for item, provider in read_packed(config, items)
        for batch in scan.batches(config, item, provider=provider)
        for row in batch.to_pylist()
    ]


def one_by_one(config: StoreConfig, items: Sequence[ScanItem], scan: Scan) -> list[dict[str, Any]]:
    return [
        row for item in items for batch in scan.batches(config, item) for row in batch.to_pylist()
    ]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


# Planning


@dataclass(frozen=True)
class Work:
    name: int
    approximate_bytes: int

    @property
    def rows(self) -> tuple[SegmentRecord, ...]:
        path = f"b/t/{self.name}"
        return tuple(
            SegmentRecord(path=path, type=kind, base_offset=0, size=1)
            for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)
        )


class Backwards(MemoryProvider):
    def reading_order(self, segments: Sequence[SegmentRecord]) -> Sequence[int]:
        assert all(row.type is SegmentType.COMMIT_LOG for row in segments)
        return [-int(row.path.rpartition("/")[2]) for row in segments]


def test_small_queues_share_partitions_in_the_order_in_which_they_lie() -> None:
    pieces = [Work(number, 1 << 20) for number in range(100)]
    provider = Backwards(Runtime.inline())
    found = packed(pieces, split_bytes=10 << 20, provider=provider)
    assert [piece.name for pack in found for piece in pack] == [*range(99, -1, -1)]
    assert [len(pack) for pack in found] == [10] * 10


def test_a_large_queue_parts_no_small_ones() -> None:
    pieces = [Work(number, 100 << 20 if number % 5 == 2 else 1 << 20) for number in range(20)]
    found = packed(pieces, split_bytes=64 << 20, provider=MemoryProvider(Runtime.inline()))
    assert [[piece.name for piece in pack] for pack in found[:4]] == [[2], [7], [12], [17]]
    assert [len(pack) for pack in found[4:]] == [16]


def test_a_partition_has_a_bounded_number_of_pieces() -> None:
    provider = MemoryProvider(Runtime.inline())
    found = packed([Work(0, 1)] * 10_000, split_bytes=1 << 40, provider=provider)
    assert [len(pack) for pack in found] == [PACKED_MAX, PACKED_MAX, 10_000 - 2 * PACKED_MAX]
    found = packed([Work(0, 1)] * 100, split_bytes=10 * PACKED_BYTES_MIN, provider=provider)
    assert [len(pack) for pack in found] == [10] * 10
    assert packed([], split_bytes=1, provider=provider) == []


# Reading


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[WrittenTier]:
    """Ten small queues with several segments each, behind a provider that reads them together."""
    made = WrittenTier(
        config=posix_config(tmp_path, provider="tests.jobs.together_tiers:TogetherPosix")
    )
    for queue_id in range(10):
        made.add("orders", queue_id, 150 + queue_id, body_bytes=100)
    forget()
    yield made
    TogetherPosix.fails = False


def forget() -> None:
    TogetherPosix.together.clear()
    TogetherPosix.single.clear()


def planned(config: StoreConfig, selection: Selection = EVERYTHING) -> list[ScanItem]:
    with TieredReader.open(config) as reader:
        items = plan_scan(reader, selection)
    forget()
    return items


def as_files(config: StoreConfig) -> StoreConfig:
    return replace(config, provider="posix")


def test_a_window_of_whole_queues_is_read_at_once(tier: WrittenTier) -> None:
    items = planned(tier.config)
    found = rows_of(tier.config, items, REPORTED)
    assert len(TogetherPosix.together) == 1
    assert not TogetherPosix.single
    assert found == one_by_one(as_files(tier.config), items, REPORTED)
    assert len(found) == sum(tier.ends.values())


def test_of_parts_of_queues_the_units_are_read_first(tier: WrittenTier) -> None:
    selection = Selection(offsets=(60, 90))
    items = planned(tier.config, selection)
    scan = replace(REPORTED, selection=selection)
    found = rows_of(tier.config, items, scan)
    assert len(TogetherPosix.together) == 2
    assert TogetherPosix.together[0] == 10 * 30 * 20
    assert not TogetherPosix.single
    assert found == one_by_one(as_files(tier.config), items, scan)
    assert len(found) == 10 * 30


def test_windows_bound_what_is_in_memory(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = planned(tier.config)
    size = items[0].approximate_bytes + 150 * 20
    monkeypatch.setattr(packs, "WINDOW_BYTES", 3 * size + size // 2)
    found = rows_of(tier.config, items, REPORTED)
    assert len(TogetherPosix.together) == 3  # and one queue alone
    assert max(TogetherPosix.together) <= 4 * size
    assert {Path(path).parts[-3] for path in TogetherPosix.single} == {"9"}
    assert found == one_by_one(as_files(tier.config), items, REPORTED)


def test_messages_that_are_larger_than_planned_with_are_read_piece_by_piece(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = Selection(offsets=(60, 90))
    items = planned(tier.config, selection)
    scan = replace(REPORTED, selection=selection)
    monkeypatch.setattr(packs, "HELD_BYTES_MAX", 20_000)
    found = rows_of(tier.config, items, scan)
    assert sum(TogetherPosix.together) <= 20_000
    assert TogetherPosix.single
    assert found == one_by_one(as_files(tier.config), items, scan)


@pytest.mark.parametrize("selection", [EVERYTHING, Selection(offsets=(20, 90))])
@pytest.mark.parametrize("kind", [LOG, QUEUE])
@pytest.mark.parametrize("what", ["bytes", "cut", "missing"])
def test_damage_is_told_as_when_the_queue_is_read_alone(
    tier: WrittenTier, what: str, kind: SegmentType, selection: Selection
) -> None:
    files = sorted(Path(tier.config.path).glob(f"**/orders/4/{kind.name}/*"))
    damaged = files[min(1, len(files) - 1)]
    data = damaged.read_bytes()
    if what == "missing":
        damaged.unlink()
    else:
        start, stop = len(data) // 4, len(data) // 2
        wrong = bytes(each ^ 0xFF for each in data[start:stop])
        damaged.write_bytes(data[:start] + (wrong + data[stop:] if what == "bytes" else b""))
    items = planned(tier.config, selection)
    scan = replace(REPORTED, selection=selection)
    found = rows_of(tier.config, items, scan)
    assert found == one_by_one(as_files(tier.config), items, scan)
    assert {row["queue_id"] for row in found if row["damage"]} == {4}
    with pytest.raises(SegmentCorruptError, match="orders/4"):
        rows_of(tier.config, items, replace(scan, on_corrupt=OnCorrupt.FAIL))


def test_what_cannot_be_fetched_together_is_read_piece_by_piece(tier: WrittenTier) -> None:
    items = planned(tier.config)
    TogetherPosix.fails = True
    found = rows_of(tier.config, items, REPORTED)
    assert found == one_by_one(as_files(tier.config), items, REPORTED)


def test_other_providers_are_read_as_ever(tier: WrittenTier) -> None:
    plain = as_files(tier.config)
    items = planned(plain)
    assert {id(provider) for _, provider in read_packed(plain, items)} == {
        id(worker_provider(plain))
    }


# In a log


@pytest.fixture
def log_tier(tmp_path: Path) -> LogTier:
    return LogTier(posix_config(tmp_path, provider="tests.jobs.together_tiers:LogBucket"))


def grown(
    tier: LogTier, queues: int, *, rounds: int, messages: int, body_bytes: int = 1_000
) -> None:
    """Write each queue in `messages` of the rounds; the names do not sort in the order in which
    the queues begin."""
    for number in range(rounds):
        taking = (name for name in range(queues) if (name + number) % rounds < messages)
        topics = [f"t{name * 7 % queues:04d}" for name in taking]
        tier.round(topics, body_bytes=body_bytes)


def partitions_of(tier: LogTier, *, split_bytes: int = SPLIT_BYTES) -> list[tuple[ScanItem, ...]]:
    provider = worker_provider(tier.config)
    provider.refresh()
    slices = plan_slices(queue_rows(tier.rows()), split_bytes=split_bytes)
    return packed(slices, split_bytes=split_bytes, provider=provider)


def gets() -> int:
    return sum(client.requests["get"] for client in LogBucket.clients)


def requests_for_all(tier: LogTier) -> int:
    """How many requests it takes to read each object once."""
    return sum(-(-size // RANGE_BYTES_MAX) for size in tier.live_objects().values())


@pytest.mark.parametrize(
    ("queues", "rounds", "messages"),
    [(50, 40, 25), pytest.param(1_000, 64, 50, marks=pytest.mark.slow)],
)
def test_a_scan_of_many_small_queues_reads_each_object_once(
    log_tier: LogTier, queues: int, rounds: int, messages: int
) -> None:
    grown(log_tier, queues, rounds=rounds, messages=messages)
    for is_merged in (False, True):
        if is_merged:
            log_tier.tend()
        assert len(log_tier.live_objects()) == (sum(divmod(rounds, 32)) if is_merged else rounds)
        (pack,) = partitions_of(log_tier)
        before = gets()
        rows = rows_of(log_tier.config, pack, REPORTED)
        assert gets() - before <= requests_for_all(log_tier) + 2
        assert len({(row["topic"], row["queue_offset"]) for row in rows}) == queues * messages
        for row in rows:
            assert row["damage"] is None
            assert row["body"].startswith(f"{row['topic']} {row['queue_offset']} ".encode())


def test_a_bucket_with_its_own_catalogue_is_planned_and_read(tmp_path: Path) -> None:
    config = posix_config(tmp_path, provider="tests.jobs.together_tiers:LogBucket")
    LogBucket.buckets[config.path] = MemoryObjects()
    tier = WrittenTier(config=config)
    for queue_id in range(5):
        tier.add("orders", queue_id, 40 + queue_id)
    with TieredReader.open(config) as reader:
        items = plan_scan(reader, EVERYTHING)
    (pack,) = packed(items, split_bytes=SPLIT_BYTES, provider=worker_provider(config))
    rows = rows_of(config, pack, REPORTED)
    assert in_order(rows) == in_order(one_by_one(config, items, REPORTED))
    assert [(row["queue_id"], row["queue_offset"]) for row in in_order(rows)] == [
        (key.queue_id, offset) for key, end in sorted(tier.ends.items()) for offset in range(end)
    ]


@pytest.mark.parametrize("part", ["whole", "end"])
def test_a_worker_that_knows_an_older_tier_reads_no_segment_of_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The new segments have the names of the old ones, whose bytes are there for a while."""
    config = posix_config(tmp_path, provider="tests.jobs.together_tiers:LogBucket")
    LogBucket.buckets[config.path] = MemoryObjects()
    tier = WrittenTier(config=config)

    def read() -> list[dict[str, Any]]:
        with TieredReader.open(config) as reader:
            offsets = (0, 10) if part == "whole" else (5, 10)
            items = plan_scan(reader, Selection(offsets=offsets))
        return rows_of(config, items, REPORTED)

    for body in (b"old", b"new"):
        for topic in ("orders", "others"):
            tier.add(topic, 0, 10, bodies=[b"%d %s" % (number, body) for number in range(10)])
        assert {row["body"].split()[1] for row in read()} == {body}
        if body == b"old":
            tier.delete("orders")
            tier.delete("others")
            monkeypatch.setattr(written_tier, "START_MS", written_tier.START_MS + 1)


def test_partitions_of_a_merged_log_are_neighbours_in_it(log_tier: LogTier) -> None:
    grown(log_tier, 50, rounds=32, messages=32)
    log_tier.tend()
    objects = log_tier.live_objects()
    split = sum(objects.values()) // 5
    found = partitions_of(log_tier, split_bytes=split)
    assert 5 <= len(found) <= 6
    for pack in found:
        before = gets()
        rows_of(log_tier.config, pack, REPORTED)
        assert gets() - before == 1


def test_what_a_stream_reads_next_takes_two_requests_an_object(log_tier: LogTier) -> None:
    grown(log_tier, 50, rounds=8, messages=8)
    queues = queue_rows(log_tier.rows())
    slices = plan_slices(queues, bounds=lambda _: (4, 8))
    provider = worker_provider(log_tier.config)
    (pack,) = packed(slices, split_bytes=SPLIT_BYTES, provider=provider)
    before = gets()
    rows = rows_of(log_tier.config, pack, REPORTED)
    assert gets() - before == 2 * 4
    assert len(rows) == 50 * 4


@pytest.mark.parametrize("kind", [LOG, QUEUE])
@pytest.mark.parametrize("merged", [False, True])
def test_damage_in_a_log_is_that_of_one_queue(
    log_tier: LogTier, kind: SegmentType, merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(log_tier, 30, rounds=8, messages=8)
    if merged:
        monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 8)
        log_tier.tend()
    log_tier.damage("broker-a/t0007/0", kind, 5 * 20 + 9 if kind is QUEUE else 3_000)
    (pack,) = partitions_of(log_tier)
    found = rows_of(log_tier.config, pack, REPORTED)
    assert in_order(found) == in_order(one_by_one(log_tier.config, pack, REPORTED))
    assert len(found) == 30 * 8
    assert {row["topic"] for row in found if row["damage"]} == {"t0007"}
