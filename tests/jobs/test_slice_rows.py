"""Slices of a queue with many segments carry few rows, and read the same."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.jobs.scan import OnCorrupt, Scan
from tieredstore.jobs.slices import Slice, plan_slices, queue_rows, trimmed
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import SegmentType


@pytest.fixture
def long_queue(tmp_path: Path) -> StoreConfig:
    tier = WrittenTier(config=posix_config(tmp_path, commit_log_segment_bytes=1_000))
    tier.add("t", 0, 400)
    return tier.config


def planned(config: StoreConfig) -> list[Slice]:
    with TieredReader(config) as reader:
        return plan_slices(queue_rows(reader.segments()), split_bytes=1_500)


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
