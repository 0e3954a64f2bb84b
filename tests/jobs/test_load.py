"""A bulk load: staged by attempts, made part of the tier by one commit, and found by its keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.jobs.load_kit import (
    assert_found,
    bodies,
    joined,
    loaded,
    messages,
    names_of,
    open_tier_of,
    report_of,
    rows_of,
    staged,
)
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.jobs.load import abort_load, begin_load, commit_load
from tieredstore.jobs.load_records import LoadRefusedError
from tieredstore.jobs.worker import worker_scratch
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import CatalogueLockedError, InvalidConfigError
from tieredstore.model.values import QueueKey, SegmentType

A, B, C = QueueKey("orders", 0), QueueKey("orders", 3), QueueKey("größe", 1)


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    return posix_config(tmp_path, index_item_count=200)


def test_messages_of_many_partitions_are_in_their_queues_and_found_by_key(
    config: StoreConfig,
) -> None:
    loaded(
        config,
        [
            [rows_of(A, range(100)), joined(rows_of(B, range(50)), rows_of(A, range(100, 130)))],
            [joined(rows_of(C, range(70)), rows_of(A, range(130, 200)))],
        ],
    )
    assert bodies(config, A) == names_of(A, range(200))
    assert bodies(config, B) == names_of(B, range(50))
    assert bodies(config, C) == names_of(C, range(70))
    assert_found(config, {A: range(200), B: range(50), C: range(70)})
    assert report_of(config).findings == ()
    assert worker_scratch(config).listed() == []


def test_rows_of_queues_in_any_order_keep_their_order_within_each(config: StoreConfig) -> None:
    mixed = joined(*(rows_of(key, [n]) for n in range(40) for key in (B, C, A)))
    loaded(config, [[mixed]])
    for key in (A, B, C):
        assert bodies(config, key) == names_of(key, range(40))


def test_a_load_goes_on_behind_what_a_queue_has(config: StoreConfig) -> None:
    tier = WrittenTier(config=config)
    tier.add(*A, 90, seal=True)
    with TieredReader.open(config) as reader:
        before = {row.key: row for row in reader.segments()}
    loaded(config, [[rows_of(A, range(60))]])
    found = messages(config, A)
    assert [each.body.decode() for each in found[90:]] == names_of(A, range(60))
    with TieredReader.open(config) as reader:
        now = {row.key: row for row in reader.segments()}
        assert before.items() <= now.items()
        assert reader.query_message("orders", "U00000005").messages
        assert reader.query_message("orders", "u-orders-0-7").messages
        assert reader.indexed_offset(*A) == 150
    with open_tier_of(config) as broker:  # it goes on in its turn
        assert broker.files.get(A).append_offset == 150
        assert broker.index.indexed_offset("orders", 0, 0) == 150


def test_a_queue_that_is_not_indexed_yet_is_left_to_its_broker(config: StoreConfig) -> None:
    without = replace(config, index_enabled=False)
    WrittenTier(config=without).add(*A, 20)
    loaded(config, [[rows_of(A, range(10))]])
    with TieredReader.open(config) as reader:
        assert reader.query_message("orders", "u-orders-0-7").messages
        assert reader.indexed_offset(*A) in (None, 0)


def test_segments_are_no_longer_than_they_may_be_and_hold_the_times_of_their_messages(
    config: StoreConfig,
) -> None:
    batch = rows_of(A, range(500))
    times = pa.array([1_700_000_000_000 + 7 * n for n in range(500)], pa.int64())
    loaded(config, [[batch.append_column("store_time", times)]])
    with TieredReader.open(config) as reader:
        rows = reader.segments()
        assert reader.offset_by_time(*A, 1_700_000_000_000 + 7 * 321) == 321
    for kind, most in (
        (SegmentType.COMMIT_LOG, config.commit_log_segment_bytes),
        (SegmentType.CONSUME_QUEUE, config.consume_queue_segment_bytes),
    ):
        sizes = [row.size for row in rows if row.type is kind]
        assert len(sizes) > 3
        assert max(sizes) <= most
    units = [row for row in rows if row.type is SegmentType.CONSUME_QUEUE]
    assert [row.begin_timestamp for row in units] == [
        1_700_000_000_000 + 7 * 64 * n for n in range(len(units))
    ]
    assert units[0].end_timestamp == 1_700_000_000_000 + 7 * 63


def test_attempts_that_did_not_win_leave_nothing(config: StoreConfig) -> None:
    begin_load(config)
    staged(config, "run", 0, [rows_of(A, range(20))], attempt="lost")
    part = staged(config, "run", 0, [rows_of(A, range(20))], attempt="won")
    assert len(report_of(config).findings) >= 2  # named, as long as they are there
    commit_load(config, "run", [part])
    assert bodies(config, A) == names_of(A, range(20))
    assert report_of(config).findings == ()


def test_an_aborted_load_leaves_nothing(config: StoreConfig) -> None:
    begin_load(config)
    staged(config, "run", 0, [rows_of(A, range(20))])
    abort_load(config, "run")
    assert report_of(config).findings == ()


def test_a_repairing_audit_removes_what_was_staged(config: StoreConfig) -> None:
    from tieredstore.access.audit import audit

    begin_load(config)
    staged(config, "run", 0, [rows_of(A, range(20))])
    with open_tier_of(config) as parts:
        audit(parts.metadata, parts.provider, config, parts.runtime, repair=True)
    assert report_of(config).findings == ()


def test_a_load_is_refused_under_a_living_writer(config: StoreConfig) -> None:
    with open_tier_of(config), pytest.raises(CatalogueLockedError):
        begin_load(config)
    begin_load(config)
    part = staged(config, "run", 0, [rows_of(A, range(20))])
    with open_tier_of(config), pytest.raises(CatalogueLockedError):
        commit_load(config, "run", [part])
    with open_tier_of(config) as parts:
        assert parts.files.files() == []


def test_of_two_loads_at_a_time_the_one_that_began_first_is_refused(config: StoreConfig) -> None:
    begin_load(config)
    first = staged(config, "first", 0, [rows_of(A, range(20))])
    begin_load(config)
    second = staged(config, "second", 0, [rows_of(A, range(30))])
    with pytest.raises(LoadRefusedError, match="another load"):
        commit_load(config, "first", [first])
    commit_load(config, "second", [second])
    assert bodies(config, A) == names_of(A, range(30))


def test_a_load_with_an_id_is_made_once(config: StoreConfig) -> None:
    for run_id in ("one", "two"):
        loaded(config, [[rows_of(A, range(20))]], run_id=run_id, load_id="november")
    assert bodies(config, A) == names_of(A, range(20))
    assert report_of(config).findings == ()


def test_an_index_of_other_sizes_is_told_before_anything_is_staged(config: StoreConfig) -> None:
    WrittenTier(config=config).add(*A, 5)
    with pytest.raises(InvalidConfigError, match="index_slot_count"):
        begin_load(replace(config, index_slot_count=7))


def test_segments_that_the_catalogue_does_not_know_are_not_overlaid(config: StoreConfig) -> None:
    WrittenTier(config=config).add(*A, 20)
    elsewhere = replace(config, store_path=config.store_path + "-2", publish_interval_ms=0)
    begin_load(elsewhere)
    part = staged(elsewhere, "run", 0, [rows_of(A, range(20))])
    with pytest.raises(LoadRefusedError, match="rebuild"):
        commit_load(elsewhere, "run", [part])


def test_an_empty_load_changes_nothing(config: StoreConfig) -> None:
    WrittenTier(config=config).add(*B, 5)
    loaded(config, [[rows_of(A, [])]])
    with TieredReader.open(config) as reader:
        assert reader.queues() == [B]
