"""A bulk load: rows become records, attempts stage them, and one commit adds them to the tier."""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.every_step import every_step
from tests.flat.tiers import run_of
from tests.jobs import faulty_tiers
from tests.jobs.dying import LOADED, NEW, OLD, config_in, dying, load
from tests.jobs.job_kit import files
from tests.jobs.load_kit import (
    LOADED_MS,
    assert_found,
    bodies,
    joined,
    keys_read,
    loaded,
    lose_the_log,
    messages,
    names_of,
    open_tier_of,
    rebuilt,
    recovered,
    report_of,
    rows_of,
    staged,
)
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.audit import audit
from tieredstore.access.reader import TieredReader
from tieredstore.access.upkeep import TendChore, expire
from tieredstore.codec.java import string_hash
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import TRANSACTION_COMMIT, decode_properties, encode_properties
from tieredstore.driver.metadata import DeleteSegment, PutNote
from tieredstore.driver.object_client import ObjectFacts
from tieredstore.driver.provider import LOAD_MS_MAX, LOAD_RUN
from tieredstore.driver.runtime import ManualClock, SystemClock
from tieredstore.flat.append_file import PendingDeletions, delete_pending
from tieredstore.index.contract import CommittedRun
from tieredstore.index.keys import keys_of_run
from tieredstore.jobs import load_records
from tieredstore.jobs.job import LocalEngine
from tieredstore.jobs.load import (
    RUN_NOTES_MAX,
    LoadReport,
    StreamBatch,
    abort_load,
    begin_load,
    commit_load,
)
from tieredstore.jobs.load_records import (
    EncodedRun,
    LoadColumns,
    LoadDefaults,
    LoadRefusedError,
    encode_batch,
)
from tieredstore.jobs.load_segments import StagedPart, Stager
from tieredstore.jobs.reindex import reindex
from tieredstore.jobs.worker import OwnedTier, owned_tier, worker_scratch
from tieredstore.metadata.journal import JournalFile
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.metadata.published import CataloguePublisher
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    CatalogueLockedError,
    FencedError,
    InvalidConfigError,
    MetadataError,
    SegmentCorruptError,
    TieredStoreError,
)
from tieredstore.model.messages import LOOPBACK
from tieredstore.model.values import Host, QueueKey, SegmentType
from tieredstore.providers.fsspec import FsspecClient
from tieredstore.providers.object_provider import ObjectProvider, ObjectScratch
from tieredstore.providers.posix import PosixFileSegment, PosixProvider
from tieredstore.roundlog import upkeep
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash

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


def test_an_interrupt_right_behind_any_change_of_the_catalogue_loses_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C: the change is on the disk, and not in memory."""
    commit, left = JournalFile.commit, 0

    def interrupted(journal: JournalFile, *given: Any) -> None:
        nonlocal left
        commit(journal, *given)
        left -= 1
        if not left:
            raise KeyboardInterrupt

    monkeypatch.setattr(JournalFile, "commit", interrupted)
    for step in range(1, 100):
        config = posix_config(tmp_path / str(step), index_item_count=200)
        begin_load(config)
        part = staged(config, "run", 0, [rows_of(A, range(30))])
        left = step
        with suppress(KeyboardInterrupt):
            commit_load(config, "run", [part], load_id="once")
        is_whole, left = left > 0, 0
        loaded(config, [[rows_of(A, range(30))]], run_id="again", load_id="once")
        assert bodies(config, A) == names_of(A, range(30)), step
        assert report_of(config).findings == (), step
        if is_whole:
            break
    assert 3 < step < 99


def test_rows_of_queues_in_any_order_keep_their_order_within_each(config: StoreConfig) -> None:
    mixed = joined(*(rows_of(key, [n]) for n in range(40) for key in (B, C, A)))
    loaded(config, [[mixed]])
    for key in (A, B, C):
        assert bodies(config, key) == names_of(key, range(40))


def test_rows_sorted_by_queue_go_straight_into_segments_that_are_adopted(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spilled: list[EncodedRun] = []
    inner = Stager.spilled

    def spilling(stager: Stager, runs: Sequence[EncodedRun], *, with_records: bool = True) -> Any:
        spilled.extend(runs if with_records else [])
        return inner(stager, runs, with_records=with_records)

    monkeypatch.setattr(Stager, "spilled", spilling)
    pieces = [
        (A, range(60)),
        (B, range(60)),
        (A, range(60, 100)),
        (C, range(5)),
        (B, range(60, 90)),
    ]
    batches = [
        rows_of(key, numbers[at : at + 7]) for key, numbers in pieces for at in range(0, 60, 7)
    ]
    loaded(config, [[batch for batch in batches if len(batch)]])
    assert not [run for run in spilled if run.key != C]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    for key, count in ((A, 100), (B, 90), (C, 5)):
        assert bodies(config, key) == names_of(key, range(count))
    assert_found(config, {A: range(100), B: range(90), C: range(5)}, samples=5)


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
    with open_tier_of(config) as broker:  # the broker goes on from there
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
    assert report_of(config).findings == ()  # a load may be under way
    assert len(worker_scratch(config).listed()) >= 4
    commit_load(config, "run", [part])
    assert bodies(config, A) == names_of(A, range(20))
    assert worker_scratch(config).listed() == []
    assert report_of(config).findings == ()


def test_an_aborted_load_leaves_nothing(config: StoreConfig) -> None:
    begin_load(config)
    staged(config, "run", 0, [rows_of(A, range(20))])
    abort_load(config, "run")
    assert worker_scratch(config).listed() == []


@pytest.mark.parametrize(("age_ms", "is_dead"), [(LOAD_MS_MAX - 1, False), (LOAD_MS_MAX, True)])
def test_a_repairing_audit_removes_what_was_staged_a_day_ago(
    config: StoreConfig, age_ms: int, is_dead: bool
) -> None:
    staged(config, "run", 0, [rows_of(A, range(20))], now_ms=LOADED_MS - age_ms)
    assert bool(report_of(config).findings) is is_dead
    with open_tier_of(config) as parts:
        audit(parts.metadata, parts.provider, config, parts.runtime, repair=True)
    assert (worker_scratch(config).listed() == []) is is_dead


def test_a_load_is_refused_under_a_living_writer(config: StoreConfig) -> None:
    with open_tier_of(config), pytest.raises(CatalogueLockedError):
        begin_load(config, wait_seconds=0)
    begin_load(config)
    part = staged(config, "run", 0, [rows_of(A, range(20))])
    with open_tier_of(config), pytest.raises(CatalogueLockedError):
        commit_load(config, "run", [part], wait_seconds=0)
    with open_tier_of(config) as parts:
        assert parts.files.files() == []


def test_of_two_loads_at_a_time_each_adds_its_messages_once(config: StoreConfig) -> None:
    begin_load(config)
    first = staged(config, "first", 0, [rows_of(A, range(20))])
    begin_load(config)
    second = staged(config, "second", 0, [joined(rows_of(A, range(20, 50)), rows_of(B, range(9)))])
    for _ in range(2):  # a commit with an unknown outcome is tried again
        commit_load(config, "second", [second])
    assert worker_scratch(config).listed("load/first")
    commit_load(config, "first", [first])
    assert bodies(config, A) == names_of(A, [*range(20, 50), *range(20)])
    assert_found(config, {A: range(50), B: range(9)})
    assert report_of(config).findings == ()
    assert worker_scratch(config).listed() == []


def test_a_load_with_an_id_is_made_once(config: StoreConfig) -> None:
    for run_id in ("one", "two"):
        loaded(config, [[rows_of(A, range(20))]], run_id=run_id, load_id="november")
    assert bodies(config, A) == names_of(A, range(20))
    assert report_of(config).findings == ()


def test_a_queue_that_has_expired_goes_on_behind_a_load_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the queue's empty segments say where it goes on: no offset is given twice."""
    config = posix_config(tmp_path)
    loaded(config, [[rows_of(A, range(20))]])
    with open_tier_of(config) as parts:
        assert expire(parts.files.get(A), LOADED_MS * 2).segment_count
    with monkeypatch.context() as patch:
        patch.setattr(PosixProvider, "adopt", dying_adoption)
        with pytest.raises(MetadataError, match="died"):
            loaded(config, [[rows_of(A, range(20, 30))]], run_id="dies")
    with open_tier_of(config) as parts:
        delete_pending(parts.provider, parts.metadata)
        assert parts.files.get(A).commit_offset == 20
    loaded(config, [[rows_of(A, range(20, 30))]], run_id="again")
    with TieredReader(config) as reader:
        found = [
            (each.queue_offset, decode_message(each.record).body) for each in reader.messages(*A)
        ]
    assert [offset for offset, _ in found] == list(range(21, 31))
    assert [body.decode() for _, body in found] == names_of(A, range(20, 30))
    assert report_of(config).findings == ()
    assert_found(config, {A: range(20, 30)})


def test_what_follows_a_load_that_died_is_kept_though_the_disk_is_lost_before_it_is_published(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published must not name, as to be deleted, what has these names since."""
    loaded(config, [[rows_of(A, range(20))]])
    died_after_adopting(config, [[rows_of(A, range(20, 30)), rows_of(B, range(5))]], monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(OwnedTier, "settle", lambda tier, folder: None)
        loaded(config, [[rows_of(A, range(20, 40)), rows_of(B, range(9))]], run_id="again")
    assert not recovered(config).problems
    with open_tier_of(config) as parts:
        delete_pending(parts.provider, parts.metadata)
    assert bodies(config, A) == names_of(A, range(40))
    assert bodies(config, B) == names_of(B, range(9))
    assert_found(config, {A: range(40), B: range(9)})


def test_what_a_broker_adds_behind_a_load_that_died_is_kept_though_the_disk_is_lost(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(config, [[rows_of(A, range(20))]])
    died_after_adopting(config, [[rows_of(A, range(20, 30))]], monkeypatch)
    with owned_tier(config, threads=1) as tier:
        tier.delete_pending()
    with monkeypatch.context() as patch:
        patch.setattr(CataloguePublisher, "publish", lambda publisher: None)
        with open_tier_of(config) as parts:
            file = parts.files.get(A)
            file.log.roll()
            file.queue.roll()
        WrittenTier(config=config, start_ms=LOADED_MS, ends={A: 20}).add(*A, 5)
    assert not recovered(config).problems
    with open_tier_of(config) as parts:
        delete_pending(parts.provider, parts.metadata)
        assert parts.files.get(A).commit_offset == 25


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("is_broker_next", [True, False])
def test_nothing_of_a_load_that_died_counts_where_a_broker_has_begun_segments(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch, is_new: bool, is_broker_next: bool
) -> None:
    """A broker that died before it wrote to them left their rows."""
    end = 0 if is_new else 20
    loaded(config, [[rows_of(B, range(5)), rows_of(A, range(end))]])
    with open_tier_of(config) as parts:
        file = parts.files.create(*A)
        if is_new:
            file.start_at(0)
        else:
            file.log.roll()
            file.queue.roll()
    died_after_adopting(config, [[rows_of(A, range(end, 30))]], monkeypatch)
    if is_broker_next:
        with open_tier_of(config) as parts:
            delete_pending(parts.provider, parts.metadata)
        assert bodies(config, A) == names_of(A, range(end))
    loaded(config, [[rows_of(A, range(end, 40))]], run_id="again")
    assert bodies(config, A) == names_of(A, range(40))
    assert not report_of(config).damage
    assert_found(config, {A: range(40), B: range(5)})


@pytest.mark.parametrize("is_log_new", [True, False])
def test_nothing_of_a_load_that_died_counts_where_a_broker_has_left_a_gap(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch, is_log_new: bool
) -> None:
    """Only the row behind the gap, still empty, says where the queue goes on."""
    loaded(config, [[rows_of(A, range(20))]])
    with open_tier_of(config) as parts:
        file = parts.files.create(*A)
        file.skip_to(25)
        if is_log_new:
            file.log.roll()
    died_after_adopting(config, [[rows_of(A, range(20, 30))]], monkeypatch)
    with open_tier_of(config) as parts:
        delete_pending(parts.provider, parts.metadata)
        file = parts.files.get(A)
        assert (file.commit_offset, file.problem) == (25, None)
    loaded(config, [[rows_of(A, range(20, 30))]], run_id="again")
    with TieredReader(config) as reader:
        offsets = [each.queue_offset for each in reader.messages(*A)]
    assert offsets == [*range(20), *range(26, 36)]
    assert not report_of(config).damage
    assert_found(config, {A: range(30)})


def test_loads_go_into_a_directory_where_nothing_can_be_published(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without hard links."""

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    loaded(config, [[rows_of(A, range(20))]])
    died_after_adopting(config, [[rows_of(A, range(20, 30))]], monkeypatch)
    loaded(config, [[rows_of(A, range(20, 40))]], run_id="again")
    assert bodies(config, A) == names_of(A, range(40))
    assert_found(config, {A: range(40)})


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_load_needs_no_new_publication_unless_the_last_one_marks_its_names(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    loaded(config, [[rows_of(A, range(20))]])
    if is_marked:
        with open_tier_of(config) as parts, monkeypatch.context() as patch:
            patch.setattr(PosixFileSegment, "delete", is_away)
            parts.files.delete_topics([A.topic])
        with monkeypatch.context() as patch, open_tier_of(config) as parts:
            patch.setattr(CataloguePublisher, "publish", lambda publisher: None)
            delete_pending(parts.provider, parts.metadata)

    monkeypatch.setattr(CataloguePublisher, "_create", too_large)
    if is_marked:
        with pytest.raises(MetadataError, match="too large"):
            loaded(config, [[rows_of(A, range(5))]], run_id="more")
    else:
        loaded(config, [[rows_of(A, range(20, 30)), rows_of(C, range(5))]], run_id="more")
        assert bodies(config, A) == names_of(A, range(30))
        assert bodies(config, C) == names_of(C, range(5))


def test_what_a_load_that_died_left_goes_without_a_word_to_readers_who_never_knew_it(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no load was possible any more where the catalogue cannot be published again."""
    loaded(config, [[rows_of(A, range(20))]])

    monkeypatch.setattr(CataloguePublisher, "_create", too_large)
    loaded(config, [[rows_of(A, range(20, 30))]], run_id="more")
    died_after_adopting(config, [[rows_of(A, range(30, 35))]], monkeypatch)
    loaded(config, [[rows_of(A, range(30, 40))]], run_id="again")
    assert bodies(config, A) == names_of(A, range(40))
    assert_found(config, {A: range(40)})


@pytest.mark.parametrize("is_name_needed", [True, False])
def test_only_names_that_a_load_needs_wait_for_a_publication_that_fails(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch, is_name_needed: bool
) -> None:
    """Readers elsewhere still read what is to be deleted."""
    loaded(config, [[rows_of(A, range(20)), rows_of(C, range(5))]])

    with monkeypatch.context() as patch:
        patch.setattr(CataloguePublisher, "_create", too_large)
        reindex(config, LocalEngine(threads=1), clock=SystemClock())
        if is_name_needed:
            with open_tier_of(config) as parts:
                parts.files.delete_topics([A.topic])
            with pytest.raises(LoadRefusedError, match="deleted queue"):
                loaded(config, [[rows_of(A, range(5))]], run_id="refused")
        loaded(config, [[rows_of(C, range(5, 9))]], run_id="more")
        with TieredReader.open(replace(config, store_path="elsewhere")) as elsewhere:
            assert elsewhere.query_message(C.topic, "all").complete
    loaded(config, [[rows_of(A, range(20, 30))]], run_id="again")
    with open_tier_of(config) as parts:
        assert PendingDeletions(parts.provider, parts.metadata).count() == 0
    assert bodies(config, A) == names_of(A, range(20 * is_name_needed, 30))
    assert_found(config, {A: range(20 * is_name_needed, 30), C: range(9)})


def test_a_broker_waits_until_what_a_load_left_at_its_place_is_deleted(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(config, [[rows_of(A, range(20))]])
    died_after_adopting(config, [[rows_of(A, range(20, 30))]], monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(PosixFileSegment, "delete", is_away)
        with open_tier_of(config) as parts:
            file = parts.files.get(A)
            with pytest.raises(BackendUnavailableError, match="an older segment"):
                file.log.roll()
    with open_tier_of(config) as parts:
        delete_pending(parts.provider, parts.metadata)
        parts.files.get(A).log.roll()


def test_what_a_dead_load_left_is_deleted_from_its_end_and_units_before_their_log(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that goes by the bytes would call units damaged that name nothing."""
    died_after_adopting(config, [[rows_of(A, range(200))]], monkeypatch)
    gone: list[tuple[SegmentType, int]] = []
    delete = PosixFileSegment.delete

    def deleting(segment: PosixFileSegment) -> None:
        if segment.type is not SegmentType.INDEX:
            gone.append((segment.type, segment.base))
        delete(segment)

    monkeypatch.setattr(PosixFileSegment, "delete", deleting)
    with open_tier_of(config) as parts:
        delete_pending(parts.provider, parts.metadata)
    units = [base for kind, base in gone if kind is SegmentType.CONSUME_QUEUE]
    logs = [base for kind, base in gone if kind is SegmentType.COMMIT_LOG]
    assert len(units) > 1 < len(logs)
    assert [base for _, base in gone] == [*sorted(units, reverse=True), *sorted(logs, reverse=True)]


def too_large(*_: object) -> int:
    raise MetadataError("the catalogue", "not published: it is too large")


def is_away(segment: PosixFileSegment) -> None:
    raise BackendUnavailableError(segment.path, "delete", "it is away")


def died_after_adopting(
    config: StoreConfig, partitions: list[list[pa.RecordBatch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load whose segments are in their places, and in no catalogue."""
    adopt = PosixProvider.adopt

    def dies(self: PosixProvider, *what: Any) -> bool:
        adopt(self, *what)
        return dying_adoption(self, *what)

    with monkeypatch.context() as patch:
        patch.setattr(PosixProvider, "adopt", dies)
        with pytest.raises(MetadataError, match="died"):
            loaded(config, partitions, run_id="dies")


def test_the_log_of_a_queue_that_was_given_up_goes_on_behind_the_old_one(
    config: StoreConfig,
) -> None:
    """The index still has places of the old log."""
    loaded(config, [[rows_of(A, range(20))]])
    with open_tier_of(config) as parts:
        end = parts.files.get(A).log.commit_offset
        parts.files.destroy(A)
    loaded(config, [[rows_of(A, range(20, 30))]], run_id="anew")
    with open_tier_of(config) as parts:
        assert parts.files.get(A).log.segments[0].base == end
    assert bodies(config, A) == names_of(A, range(20, 30))


def dying_adoption(self: PosixProvider, broker: str, adoptions: Any, changes: Any) -> bool:
    del self, broker, adoptions, changes
    raise MetadataError("catalogue", "died")


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


def test_segments_that_an_older_catalogue_does_not_know_stay(config: StoreConfig) -> None:
    WrittenTier(config=config).add(*A, 200)
    with JsonMetadataStore.open(config.catalogue_path) as metadata:
        (*_, last) = metadata.segments(f"{config.broker_name}/orders/0", SegmentType.COMMIT_LOG)
        (*_, units) = metadata.segments(last.path, SegmentType.CONSUME_QUEUE)
        metadata.apply([DeleteSegment(*last.key), DeleteSegment(*units.key)])
    before = files(config)
    with pytest.raises(MetadataError, match="rebuild"):
        loaded(config, [[rows_of(A, range(20))]])
    assert files(config) == before


def test_an_empty_load_changes_nothing(config: StoreConfig) -> None:
    WrittenTier(config=config).add(*B, 5)
    loaded(config, [[rows_of(A, [])]])
    with TieredReader.open(config) as reader:
        assert reader.queues() == [B]


MAP = pa.map_(pa.string(), pa.string())
NOW = 1_700_000_000_000
HOSTS = {
    None: LOOPBACK,
    "10.0.0.1:4711": Host(bytes([10, 0, 0, 1]), 4711),
    "[2001:db8::1]:80": Host(bytes.fromhex("20010db8000000000000000000000001"), 80),
}
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02 \x00"), max_size=6)
NAMES = TEXTS.filter(bool)
ROWS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["orders", "größe", "t" * 130]),
        "queue_id": st.integers(0, 2),
        "body": st.none() | st.binary(max_size=20),
        "tags": st.none() | NAMES,
        "keys": st.none() | st.lists(NAMES, min_size=1, max_size=3),
        "unique_key": st.none() | NAMES,
        "properties": st.none()
        | st.dictionaries(NAMES | st.sampled_from(["TAGS", "KEYS", "__CRC32#"]), TEXTS, max_size=3),
        "store_time": st.none() | st.integers(0, 2**41),
        "born_time": st.none() | st.integers(0, 2**41),
        "born_host": st.sampled_from(list(HOSTS)),
        "store_host": st.sampled_from(list(HOSTS)),
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "sys_flag": st.sampled_from([None, 0, 1, TRANSACTION_COMMIT]),
    }
)
TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "unique_key": pa.string(),
    "properties": MAP,
    "store_time": pa.int64(),
    "born_time": pa.timestamp("ms", "UTC"),
    "born_host": pa.string(),
    "store_host": pa.string(),
    "flag": pa.int32(),
    "sys_flag": pa.int64(),
}

Row = dict[str, Any]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    def column(name: str) -> list[Any]:
        values = [row[name] for row in rows]
        if name == "properties":
            return [None if each is None else list(each.items()) for each in values]
        return values

    return pa.record_batch(
        {name: pa.array(column(name), kind) for name, kind in TYPES.items() if name in rows[0]}
    )


def runs_of(batch: pa.RecordBatch, **defaults: Any) -> list[EncodedRun]:
    columns = LoadColumns(batch.schema, LoadDefaults(**{"store_time_ms": NOW, **defaults}))
    return list(encode_batch(batch, columns))


def expected(row: Row) -> tuple[bytes, dict[str, str]]:
    properties = {
        name: value for name, value in (row["properties"] or {}).items() if name != "__CRC32#"
    }
    keys = None if row["keys"] is None else " ".join(row["keys"])
    own = {"TAGS": row["tags"], "KEYS": keys, "UNIQ_KEY": row["unique_key"]}
    properties |= {name: value for name, value in own.items() if value is not None}
    stored = NOW if row["store_time"] is None else row["store_time"]
    record = encode_message(
        topic=row["topic"],
        queue_id=row["queue_id"],
        queue_offset=0,
        log_offset=0,
        born_timestamp=stored if row["born_time"] is None else row["born_time"],
        born_host=HOSTS[row["born_host"]],
        store_timestamp=stored,
        store_host=HOSTS[row["store_host"]],
        body=row["body"] or b"",
        property_bytes=encode_properties(properties),
        flag=row["flag"] or 0,
        sys_flag=row["sys_flag"] or 0,
    )
    return record, properties


@given(rows=st.lists(ROWS, min_size=1, max_size=12))
def test_records_are_those_of_the_codec(rows: list[Row]) -> None:
    runs = runs_of(batch_of(rows))
    wanted: dict[QueueKey, list[Row]] = {}
    for row in rows:
        wanted.setdefault(QueueKey(row["topic"], row["queue_id"]), []).append(row)
    assert {run.key for run in runs} == wanted.keys()
    assert len(runs) == len(wanted)
    for run in runs:
        position = 0
        for place, row in enumerate(wanted[run.key]):
            record, properties = expected(row)
            size = int(run.message_bytes[place])
            assert bytes(run.records[position : position + size]) == record
            tags = decode_properties(encode_properties(properties)).get("TAGS")
            assert run.tags_codes[place] == (string_hash(tags) if tags else 0)
            assert run.store_times[place] == decode_message(record).store_timestamp
            position += size
        assert position == len(run.records)


ODD_TEXTS = st.text(st.sampled_from("ab \x01é主"), max_size=6)
KEY_NAMES = st.sampled_from(["KEYS", "UNIQ_KEY", "TAGS", "KEYSX", "é"])
KEY_ROWS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["orders", "größe"]),
        "queue_id": st.integers(0, 1),
        "keys": st.none() | ODD_TEXTS,
        "unique_key": st.none() | ODD_TEXTS,
        "properties": st.none() | st.dictionaries(KEY_NAMES, ODD_TEXTS, max_size=3),
    }
)


@given(rows=st.lists(KEY_ROWS, min_size=1, max_size=12))
def test_keys_are_those_that_an_index_finds_in_the_records(rows: list[Row]) -> None:
    kinds = {**dict.fromkeys(rows[0], pa.string()), "queue_id": pa.int32(), "properties": MAP}
    batch = pa.Table.from_pylist(rows, pa.schema(kinds)).to_batches()[0]
    for run in runs_of(batch):
        ends = np.cumsum(run.message_bytes)
        records = [
            bytes(run.records[end - size : end])
            for end, size in zip(ends, run.message_bytes, strict=True)
        ]
        committed = CommittedRun(run=run_of(0, records), log_offsets=np.arange(len(run)))
        found = keys_of_run(run.key.topic, 1, run.key.queue_id, committed)
        assert run.key_hashes.tolist() == found.columns.key_hashes.tolist()
        owners = np.repeat(np.arange(len(run)), run.key_counts)
        assert owners.tolist() == found.columns.log_offsets.tolist()


def test_keys_of_a_batch_are_the_same_in_one_piece_and_in_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = joined(rows_of(A, range(40)), rows_of(B, range(3)))
    (whole, other) = runs_of(batch)
    for size in (1, 50, 100):
        monkeypatch.setattr(load_records, "_KEYS_BYTES", size)
        (found, last) = runs_of(batch)
        assert found.key_counts.tolist() == whole.key_counts.tolist() == [3] * 40
        assert found.key_hashes.tolist() == whole.key_hashes.tolist()
        assert last.key_hashes.tolist() == other.key_hashes.tolist()


def test_missing_columns_have_defaults() -> None:
    (run,) = runs_of(pa.record_batch({"body": ["text"]}), topic="orders", queue_id=2)
    message = decode_message(run.records)
    assert run.key == ("orders", 2)
    assert (message.body, message.born_timestamp, message.store_timestamp) == (b"text", NOW, NOW)
    assert message.property_bytes == b""


def test_what_a_read_gives_beside_them_is_passed_over() -> None:
    batch = pa.record_batch({"body": ["text"], "queue_offset": [7], "size": [1]})
    (run,) = runs_of(batch, topic="orders", queue_id=2)
    assert len(run) == 1


def test_messages_that_were_read_without_keys_are_loaded_without_an_entry_for_them() -> None:
    """A message keeps its properties in a move; keys that were taken away are gone."""
    maps: list[dict[str, str] | None] = [None, {}, {"a": "b"}, {"KEYS": "k"}, {"KEYS": "k"}]
    keys: list[list[str] | None] = [[], [], [], [], None]
    batch = pa.record_batch(
        {
            "topic": ["orders"] * len(maps),
            "queue_id": pa.array([0] * len(maps), pa.int32()),
            "keys": pa.array(keys, pa.list_(pa.string())),
            "properties": pa.array(
                [None if each is None else [*each.items()] for each in maps], MAP
            ),
        }
    )
    (run,) = runs_of(batch)
    ends = np.cumsum(run.message_bytes)
    found = [
        decode_message(run.records[end - size : end]).property_bytes
        for end, size in zip(ends, run.message_bytes, strict=True)
    ]
    wanted: list[dict[str, str]] = [{}, {}, {"a": "b"}, {"KEYS": ""}, {"KEYS": "k"}]
    assert found == [encode_properties(each) for each in wanted]


def test_columns_of_a_slice_of_a_batch_are_those_of_its_rows() -> None:
    rows: list[Row] = [
        {
            **dict.fromkeys(TYPES),
            "topic": "orders",
            "queue_id": 0,
            "body": b"%d" % n,
            "keys": [f"k{n}"],
            "properties": {"n": str(n)},
        }
        for n in range(6)
    ]
    (run,) = runs_of(batch_of(rows).slice(3, 2))
    messages = [
        decode_message(run.records),
        decode_message(run.records, int(run.message_bytes[0])),
    ]
    assert [each.body for each in messages] == [b"3", b"4"]
    assert [dict(each.properties) for each in messages] == [
        {"n": "3", "KEYS": "k3"},
        {"n": "4", "KEYS": "k4"},
    ]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"tags": pa.array([5])}, "column tags: it is int64, not a string"),
        ({"tag": pa.array(["x"])}, "column tag: a message has no such field; did you mean tags?"),
        (
            {"born_host": pa.array(["nowhere"])},
            "column born_host: 'nowhere' is no address and port",
        ),
        ({"keys": pa.array([["a b"]])}, "column keys: a key is null, or holds a blank"),
        ({"tags": pa.array(["a\x02b"])}, r"column tags: 'a\\x02b' holds 0x02"),
        ({"topic": pa.array(["a/b"])}, "column topic: 'a/b' is none"),
        ({"topic": pa.array(["rmq_sys_INDEX"])}, "is where the key index lies"),
        ({"topic": pa.array([None], pa.string())}, "column topic: a message has none"),
        ({"queue_id": pa.array([-1])}, "column queue_id: -1 is not within 0 to"),
        ({"sys_flag": pa.array([4])}, "a prepared message is in no queue"),
        ({"store_time": pa.array([-1])}, "column store_time: -1 is not within 0 to 2534"),
        ({"store_time": pa.array([NOW * 1_000])}, "to 253402300799999, in milliseconds"),
        ({"properties": pa.array([[("a", "x" * 40_000)]], MAP)}, "bytes, more than 32767"),
        ({"properties": pa.array([[("", "x")]], MAP)}, "a name is empty"),
    ],
)
def test_what_can_be_no_message_is_refused_in_one_line(
    column: dict[str, pa.Array], says: str
) -> None:
    given = {"topic": pa.array(["orders"]), "queue_id": pa.array([0]), "body": pa.array([b"x"])}
    with pytest.raises(LoadRefusedError, match=says) as refusal:
        runs_of(pa.record_batch({**given, **column}))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["queue_id", "body_crc_ok"])
def test_a_column_that_is_there_twice_is_refused(name: str) -> None:
    """A join can leave such a column. If the mark of damage came twice, neither would be read."""
    given = {"topic": pa.array(["orders"]), "queue_id": pa.array([0])}
    mark = pa.array([False]) if name == "body_crc_ok" else pa.array([0])
    names = [*(each for each in given if each != name), name, name]
    batch = pa.record_batch([given.get(each, mark) for each in names], names=names)
    with pytest.raises(LoadRefusedError, match=f"column {name}: it is there twice"):
        runs_of(batch)


def test_a_load_without_a_topic_is_refused() -> None:
    with pytest.raises(LoadRefusedError, match="there is no column topic: add it, or give it"):
        runs_of(pa.record_batch({"body": ["x"]}), queue_id=1)


PRESENT = 20  # messages of the old queue before the load


def tier_in(folder: Path) -> Path:
    WrittenTier(config=config_in(folder)).add(*OLD, PRESENT, seal=True)
    return folder


def loaded_counts(config: StoreConfig) -> tuple[int, int]:
    with TieredReader.open(config) as reader:
        counts = [reader.max_offset(*key) or 0 for key in (OLD, NEW)]
    return counts[0] - PRESENT, counts[1]


def check_a_death_at(place: Path, choose: Callable[[int], Iterable[int]]) -> None:
    """`choose` gets the number of steps and says before which of them the driver dies."""
    outcomes = set()
    with dying("load") as process:
        for step in choose(process.count(tier_in(place / "whole"))):
            folder = tier_in(place / str(step))
            assert process.run(step, folder) is None
            config = config_in(folder)
            counts = loaded_counts(config)
            assert counts in ((0, 0), (90, 60))
            outcomes.add(counts)
            load(config, "again")
            assert bodies(config, OLD)[PRESENT:] == names_of(OLD, range(90))
            assert bodies(config, NEW) == names_of(NEW, range(60))
            assert_found(config, LOADED, samples=10)
            assert report_of(config).findings == ()
    assert len(outcomes) == 2


def test_a_killed_driver_loads_all_or_nothing(tmp_path: Path) -> None:
    check_a_death_at(tmp_path, lambda count: [count // 2, *range(count - 5, count, 2)])


@pytest.mark.slow
def test_at_any_step(tmp_path: Path) -> None:
    check_a_death_at(tmp_path, range)


@pytest.fixture
def bucket(tmp_path: Path) -> StoreConfig:
    url = f"memory://load-{tmp_path.name}-{id(tmp_path)}"
    return posix_config(tmp_path, provider="fsspec", path="", url=url, index_item_count=200)


def test_an_index_of_other_sizes_is_told_before_a_load_into_a_bucket(bucket: StoreConfig) -> None:
    begin_load(bucket)
    loaded(bucket, [[rows_of(A, range(5))]])
    other = replace(bucket, index_slot_count=7)
    with pytest.raises(InvalidConfigError, match="index_slot_count"):
        begin_load(other)
    part = staged(other, "two", 0, [rows_of(A, range(5, 9))])
    with pytest.raises(InvalidConfigError, match="index_slot_count"):
        commit_load(other, "two", [part])
    abort_load(bucket, "two")
    assert bodies(bucket, A) == names_of(A, range(5))


class Dying:
    """Kills its caller before or after the n-th request, by a crash that nobody catches."""

    def __init__(self, step: int, *, is_late: bool) -> None:
        self.left, self.is_late, self.died = step, is_late, False

    def of(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def request(*args: Any, **kwargs: Any) -> Any:
            if self.died:
                raise SimulatedCrash
            self.left -= 1
            if self.left < 0 and self.is_late:
                with suppress(TieredStoreError):
                    call(*args, **kwargs)
            if self.left < 0:
                self.died = True
                raise SimulatedCrash
            return call(*args, **kwargs)

        return request


@pytest.mark.parametrize("is_late", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_driver_that_dies_at_any_request_loads_all_or_nothing_into_a_bucket(
    tmp_path: Path, is_late: bool
) -> None:
    counts: set[int] = set()

    def script(step: int) -> tuple[StoreConfig, bool]:
        url = f"memory://dying-{tmp_path.name}-{is_late}-{step}"
        config = posix_config(
            tmp_path / str(step), provider="fsspec", path="", url=url, index_item_count=200
        )
        loaded(config, [[rows_of(A, range(10))]], run_id="before")
        # The second part of A has to be written again.
        parts = [
            staged(config, "run", 0, [joined(rows_of(A, range(10, 40)), rows_of(B, range(20)))]),
            staged(config, "run", 1, [rows_of(A, range(40, 60))]),
        ]
        dying = Dying(step, is_late=is_late)
        with pytest.MonkeyPatch.context() as patch, suppress(SimulatedCrash):
            for name in ("put", "put_stream", "delete_many"):
                patch.setattr(FsspecClient, name, dying.of(getattr(FsspecClient, name)))
            commit_load(config, "run", parts)
        found = len(bodies(config, A)), len(open_queue(config, B))
        assert found in ((10, 0), (60, 20))
        counts.add(found[0])
        # A driver on another machine, which knows what the tasks reported, goes on.
        elsewhere = replace(config, store_path=config.store_path + "-2")
        commit_load(elsewhere, "run", parts)
        assert bodies(elsewhere, A) == names_of(A, range(60))
        assert bodies(elsewhere, B) == names_of(B, range(20))
        assert_found(elsewhere, {A: range(60), B: range(20)}, samples=5)
        assert report_of(elsewhere).findings == ()
        lose_the_log(config)
        rebuilt(config)
        assert bodies(config, A) == names_of(A, range(60))
        assert bodies(config, B) == names_of(B, range(20))
        return config, dying.died

    assert every_step(script, lambda life, _: life[1]) > 8
    assert counts == {10, 60}


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_load_into_a_bucket_fails_only_if_nothing_was_loaded(
    tmp_path: Path, fault: Fault
) -> None:
    """Whoever reads that it failed makes it again, under another id."""
    bucket = tmp_path.name
    config = faulty_tiers.in_struck_bucket(posix_config(tmp_path), bucket)
    loaded(config, [[rows_of(A, range(10))]], run_id="before")
    part = staged(config, "run", 0, [rows_of(A, range(10, 20))])
    held = dict(faulty_tiers.BUCKETS[bucket].held)

    def struck(step: int) -> int:
        faults, count = Faults({step: fault}), 10
        with faulty_tiers.struck(bucket, held, faults):
            count += commit_load(config, "run", [part]).message_count
        assert bodies(config, A) == names_of(A, range(count))
        commit_load(config, "run", [part])
        assert bodies(config, A) == names_of(A, range(20))
        return faults.steps

    every_step(struck, steps=range(struck(-1)))
    del faulty_tiers.BUCKETS[bucket]


def open_queue(config: StoreConfig, key: QueueKey) -> list[str]:
    with TieredReader.open(config) as reader:
        return bodies(config, key) if key in reader.queues() else []


FRAMES = st.lists(
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(1, 12)), max_size=4),
    min_size=1,
    max_size=3,
)


@settings(max_examples=6, deadline=None)
@given(frames=st.tuples(FRAMES, FRAMES), order=st.permutations([0, 1]), data=st.data())
def test_loads_of_any_partitions_staged_and_committed_in_any_order_add_each_message_once(
    frames: tuple[Any, Any],
    order: list[int],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("loads")
    config = posix_config(place, index_item_count=60)
    if data.draw(st.booleans(), label="in a bucket"):
        config = replace(
            config, provider="fsspec", path="", url=f"memory://{place.name}-{id(order)}"
        )
    numbers: Counter[QueueKey] = Counter()
    work: list[tuple[int, int, list[pa.RecordBatch]]] = []
    wanted: list[dict[QueueKey, list[int]]] = [{}, {}]
    for load_number, frame in enumerate(frames):
        for partition, pieces in enumerate(frame):
            batches = []
            for key, count in pieces:
                new = range(numbers[key], numbers[key] + count)
                numbers[key] += count
                wanted[load_number].setdefault(key, []).extend(new)
                batches.append(rows_of(key, new))
            if batches:
                work.append((load_number, partition, batches))
    done: list[dict[int, StagedPart]] = [{}, {}]
    block_bytes = data.draw(st.sampled_from([500, 2_000, 100_000]), label="block")
    for load_number, partition, batches in data.draw(st.permutations(work), label="tasks"):
        for attempt in range(data.draw(st.integers(1, 2), label="attempts")):
            done[load_number][partition] = staged(
                config,
                f"run-{load_number}",
                partition,
                batches,
                attempt=str(attempt),
                block_bytes=block_bytes,
            )
    for number in (*order, *order):  # each commit is tried again
        commit_load(config, f"run-{number}", [*done[number].values()])
    if not numbers:
        return  # no tier exists yet
    for key in numbers:
        expected = [n for number in order for n in wanted[number].get(key, ())]
        assert bodies(config, key) == names_of(key, expected)
    assert_found(config, {key: range(count) for key, count in numbers.items()}, samples=3)
    assert report_of(config).findings == ()


def test_a_commit_in_a_bucket_adopts_what_tasks_wrote_and_reads_none_of_it(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = staged(bucket, "one", 0, [joined(rows_of(A, range(90)), rows_of(B, range(40)))])
    names = {name for run in part.runs for name in run.names()}
    read: set[str] = set()
    inner = ObjectScratch.read

    def reading(scratch: ObjectScratch, name: str, position: int, length: int) -> bytes:
        read.add(name)
        return inner(scratch, name, position, length)

    monkeypatch.setattr(ObjectScratch, "read", reading)
    commit_load(bucket, "one", [part])
    assert read
    assert not read & names
    monkeypatch.undo()
    assert bodies(bucket, A) == names_of(A, range(90))
    assert_found(bucket, {A: range(90), B: range(40)})
    assert report_of(bucket).findings == ()


def test_many_loads_into_a_bucket_that_no_broker_serves_read_no_long_log(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "STATE_EVERY", 8)
    read = keys_read(monkeypatch)
    for number in range(12):
        loaded(bucket, [[rows_of(A, range(number, number + 1))]], run_id=f"run-{number}")
    read.clear()
    loaded(bucket, [[rows_of(A, range(12, 13))]])
    entries = {key for key in read if "/log/" in key}
    assert read
    assert len(entries) <= 8 + 4
    assert bodies(bucket, A) == names_of(A, range(13))


def test_a_bucket_with_bytes_that_cannot_be_merged_has_no_long_log_either(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "STATE_EVERY", 8)
    monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 2)
    written = WrittenTier(config=bucket, start_ms=LOADED_MS)
    for _ in range(3):
        written.add(*B, 2)
    merged: list[object] = []

    def damaged(*what: object) -> bytearray:
        merged.append(what)
        raise SegmentCorruptError("a round", "another checksum", position=0)

    monkeypatch.setattr(upkeep, "_read", damaged)
    for number in range(12):
        loaded(bucket, [[rows_of(A, range(number, number + 1))]], run_id=f"run-{number}")
    assert merged
    root = bucket.url.removeprefix("memory:/")
    assert [key for key in MemoryFileSystem.store if key.startswith(root) and "/state/" in key]


def test_a_load_does_not_delete_again_what_earlier_loads_have_deleted(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "STATE_EVERY", 8)
    monkeypatch.setattr(upkeep, "GRACE_MS", 0)
    deleted: list[str] = []
    inner = FsspecClient.delete_many

    def deleting(client: FsspecClient, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        deleted.extend(key for key in keys if "/log/" in key)
        return inner(client, keys)

    monkeypatch.setattr(FsspecClient, "delete_many", deleting)
    for number in range(24):
        loaded(bucket, [[rows_of(A, range(number, number + 1))]], run_id=f"run-{number}")
    assert deleted
    assert len(deleted) == len(set(deleted))


def test_two_loads_into_a_bucket_are_there_once_each(bucket: StoreConfig) -> None:
    first = staged(bucket, "first", 0, [rows_of(A, range(20))])
    twin = staged(bucket, "first", 0, [rows_of(A, range(20))], attempt="twin")
    second = staged(bucket, "second", 0, [rows_of(A, range(20, 50))])
    commit_load(bucket, "second", [second])
    commit_load(bucket, "second", [second])
    commit_load(bucket, "first", [twin])
    assert first.message_count == twin.message_count
    assert bodies(bucket, A) == names_of(A, [*range(20, 50), *range(20)])
    assert_found(bucket, {A: range(50)})
    assert report_of(bucket).findings == ()


def test_of_a_bucket_that_lost_its_log_a_rebuild_finds_what_was_committed_and_no_more(
    bucket: StoreConfig,
) -> None:
    loaded(bucket, [[rows_of(A, range(30))]], run_id="first", load_id="the-first")
    abandoned = staged(bucket, "abandoned", 0, [joined(rows_of(A, range(5)), rows_of(C, [1]))])
    more = [[joined(rows_of(A, range(30, 50)), rows_of(B, range(20)))]]
    loaded(bucket, more, run_id="second", batch=StreamBatch(stream_id="s", number=7))
    for _ in range(2):  # a second rebuild finds the same
        lose_the_log(bucket)
        with TieredReader.open(replace(bucket, catalogue="rebuild")) as reader:
            assert reader.max_offset(*A) == 50
        rebuilt(bucket)
        assert bodies(bucket, A) == names_of(A, range(50))
        assert bodies(bucket, B) == names_of(B, range(20))
        assert open_queue(bucket, C) == []
        assert_found(bucket, {A: range(50), B: range(20)})
        assert report_of(bucket).findings == ()
    loaded(bucket, [[rows_of(A, range(30))]], run_id="again", load_id="the-first")
    commit_load(bucket, "batch", [abandoned], batch=StreamBatch(stream_id="s", number=7))
    assert bodies(bucket, A) == names_of(A, range(50))
    loaded(bucket, [[rows_of(A, range(50, 60))]], run_id="third")
    lose_the_log(bucket)
    rebuilt(bucket)
    assert bodies(bucket, A) == names_of(A, range(60))


def test_a_load_that_was_not_told_beside_the_log_is_told_by_the_next_one(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = FsspecClient.put

    def refusing(client: FsspecClient, key: str, *given: Any, **how: Any) -> ObjectFacts:
        if "/adopted/" in key:
            raise BackendRefusedError(key, "put", "not now")
        return inner(client, key, *given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(FsspecClient, "put", refusing)
        loaded(bucket, [[rows_of(A, range(30))]], run_id="first")
    assert bodies(bucket, A) == names_of(A, range(30))
    loaded(bucket, [[rows_of(B, range(20))]], run_id="second")
    lose_the_log(bucket)
    rebuilt(bucket)
    assert bodies(bucket, A) == names_of(A, range(30))
    assert bodies(bucket, B) == names_of(B, range(20))


def test_a_commit_that_another_load_fences_begins_again(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = staged(bucket, "first", 0, [rows_of(A, range(20))])
    second = staged(bucket, "second", 0, [rows_of(A, range(20, 50))])
    inner = ObjectProvider.adopt
    others = [second]

    def adopting(provider: ObjectProvider, *given: Any) -> bool:
        if others:
            # From another machine: on this one a lock would make it wait.
            elsewhere = replace(bucket, store_path=bucket.store_path + "-2")
            commit_load(elsewhere, "second", [others.pop()])
        return inner(provider, *given)

    monkeypatch.setattr(ObjectProvider, "adopt", adopting)
    commit_load(bucket, "first", [first])
    assert bodies(bucket, A) == names_of(A, [*range(20, 50), *range(20)])
    assert_found(bucket, {A: range(50)})
    assert report_of(bucket).findings == ()


def test_a_load_succeeds_though_others_come_while_the_upkeep_of_the_bucket_is_due(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its merges may take minutes, and each load that comes meanwhile fences this one."""
    inner = TendChore.step
    elsewhere = replace(bucket, store_path=bucket.store_path + "-2")

    def overtaken(chore: TendChore) -> None:
        with open_tier_of(elsewhere):
            inner(chore)

    monkeypatch.setattr(TendChore, "step", overtaken)
    loaded(bucket, [[rows_of(A, range(20))]], clock=ManualClock())
    assert bodies(bucket, A) == names_of(A, range(20))
    assert report_of(bucket).findings == ()


def test_a_commit_that_was_made_is_known_again_though_the_clock_was_set_back(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply is lost, and another load comes before it asks what has become of it."""
    with open_tier_of(bucket) as parts:
        later = SystemClock().now_ms() + 3_600_000
        notes = [PutNote(LOAD_RUN, f"run-{number}", later) for number in range(RUN_NOTES_MAX)]
        parts.metadata.apply(notes)
    first = staged(bucket, "first", 0, [rows_of(A, range(20))])
    second = staged(bucket, "second", 0, [rows_of(A, range(20, 50))])
    inner = ObjectProvider.adopt
    others = [second]

    def adopting(provider: ObjectProvider, *given: Any) -> bool:
        adopted = inner(provider, *given)
        if others:
            elsewhere = replace(bucket, store_path=bucket.store_path + "-2")
            commit_load(elsewhere, "second", [others.pop()])
            raise FencedError(bucket.url, "adopt", epoch=9)
        return adopted

    monkeypatch.setattr(ObjectProvider, "adopt", adopting)
    commit_load(bucket, "first", [first])
    assert bodies(bucket, A) == names_of(A, range(50))
    with open_tier_of(bucket) as parts:
        assert len(parts.metadata.notes(LOAD_RUN)) <= RUN_NOTES_MAX + 1


def test_a_commit_that_is_fenced_after_its_entry_has_landed_reports_its_messages(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = staged(bucket, "first", 0, [joined(rows_of(A, range(20)), rows_of(B, range(5)))])
    second = staged(bucket, "second", 0, [rows_of(A, range(20, 50))])
    adopt, put = ObjectProvider.adopt, FsspecClient.put
    others = [second]

    def putting(client: FsspecClient, key: str, *given: Any, **how: Any) -> ObjectFacts:
        facts = put(client, key, *given, **how)
        if "/log/" in key and others:
            elsewhere = replace(bucket, store_path=bucket.store_path + "-2")
            commit_load(elsewhere, "second", [others.pop()])
        return facts

    def adopting(provider: ObjectProvider, *given: Any) -> bool:
        monkeypatch.setattr(FsspecClient, "put", putting)
        return adopt(provider, *given)

    monkeypatch.setattr(ObjectProvider, "adopt", adopting)
    report = commit_load(bucket, "first", [first])
    assert bodies(bucket, A) == names_of(A, range(50))
    assert (report.message_count, report.queue_count, report.key_count) == (25, 2, 75)
    assert report.log_bytes == sum(run.log_bytes for run in first.runs)
    assert commit_load(bucket, "first", [first]) == LoadReport()  # it adds nothing


def test_what_a_late_entry_may_name_stays_however_often_its_load_is_aborted(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = staged(bucket, "run", 0, [rows_of(A, range(20))])
    adopt, put = ObjectProvider.adopt, FsspecClient.put
    late: list[tuple[str, bytes]] = []

    def putting(client: FsspecClient, key: str, data: bytes, **how: Any) -> ObjectFacts:
        if "/log/" not in key:
            return put(client, key, data, **how)
        late.append((f"{bucket.url}/{key}", bytes(data)))
        raise BackendUnavailableError(key, "put", "it does not answer")

    def adopting(provider: ObjectProvider, *given: Any) -> bool:
        monkeypatch.setattr(FsspecClient, "put", putting)
        return adopt(provider, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectProvider, "adopt", adopting)
        with pytest.raises(BackendUnavailableError):
            commit_load(bucket, "run", [part])
    monkeypatch.setattr(FsspecClient, "put", put)
    for _ in range(2):
        abort_load(bucket, "run")
    MemoryFileSystem().pipe_file(*late[0])
    assert bodies(bucket, A) == names_of(A, range(20))


def test_a_late_end_of_a_batch_leaves_what_the_next_driver_has_added_since(
    bucket: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of a stream dies, and its process that commits is still about to clean up."""
    first, second = (StreamBatch(stream_id="stream", number=number) for number in range(2))
    inner = OwnedTier.settle
    others = [second]

    def settling(tier: OwnedTier, folder: str) -> None:
        if others:
            elsewhere = replace(bucket, store_path=bucket.store_path + "-2")
            batch = others.pop()
            rows = [[rows_of(A, range(20, 50))]]
            loaded(elsewhere, rows, run_id=batch.run_id, batch=batch)
        inner(tier, folder)

    monkeypatch.setattr(OwnedTier, "settle", settling)
    loaded(bucket, [[rows_of(A, range(20))]], run_id=first.run_id, batch=first)
    assert bodies(bucket, A) == names_of(A, range(50))
    assert_found(bucket, {A: range(50)})
    assert report_of(bucket).findings == ()
