"""A tier that changes while it is verified: data that expires or moves is no finding."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from tests.codec.golden_files import BROKER
from tests.jobs.job_kit import Harmed, flipped, kinds
from tests.jobs.written_tier import START_MS, WrittenTier, a_run, posix_config
from tieredstore.access.upkeep import expire_tier
from tieredstore.access.wiring import Tier
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.tiered_index import HEADER_BYTES, decode_header, item_position
from tieredstore.driver.object_client import KeysExpiredError
from tieredstore.driver.runtime import InlinePool
from tieredstore.flat.append_file import FlatAppendFile, FlatSegment
from tieredstore.index.writer import LocalFolder
from tieredstore.jobs import verify_keys
from tieredstore.jobs.job import (
    JobExit,
    JobReport,
    JobState,
    LocalEngine,
    RowStream,
    no_progress,
)
from tieredstore.jobs.verify import TierPicture, VerifyItem, VerifyJob
from tieredstore.jobs.verify_findings import Sums, VerifyRow
from tieredstore.jobs.verify_slice import SegmentBytes
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendError, BackendUnavailableError
from tieredstore.model.values import QueueKey, SegmentType

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True, params=["looked at", "too large"])
def suspects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the entries of an index are compared one by one where sums differ."""
    if request.param == "too large":
        monkeypatch.setattr(verify_keys, "LOOKED_AT_BYTES_MAX", 0)
    return str(request.param)


@pytest.fixture
def tier(tmp_path: Path) -> WrittenTier:
    """A tier with two uploaded index files and one on the broker's disk."""
    tier = WrittenTier(config=posix_config(tmp_path, index_item_count=331))
    tier.add("Orders", 0, 150, seal=True)
    tier.add("Orders", 0, 150, seal=True)
    tier.add("Orders", 1, 40)
    return tier


def verified_beside(
    config: StoreConfig,
    *,
    planned: Callable[[], None] = lambda: None,
    begun: Callable[[], None] = lambda: None,
    worked: Callable[[], None] = lambda: None,
) -> JobReport:
    """The report of a run with something happening after the plan, after the first slice, and
    after the last one."""
    job = VerifyJob(config=config, split_bytes=5_000)
    plan = job.plan()
    planned()

    def work(item: VerifyItem) -> Iterable[VerifyRow]:
        if item is plan.items[1]:
            begun()
        return job.work(item)

    engine = LocalEngine(pool=InlinePool(), threads=1)
    results = list(engine.results(work, plan, on_progress=no_progress))
    worked()
    return job.finish(plan, RowStream(iter(results), item_count=len(plan.items)))


def expire(tier: WrittenTier, *, seconds: int) -> None:
    """Expire what was stored in the first `seconds`."""
    config = replace(tier.config, reserve_hours=1)
    with tier.open() as parts:
        now_ms = START_MS + HOUR_MS + 1000 * seconds
        gone = list(expire_tier(parts.files, parts.metadata, config, now_ms=now_ms))
    assert any(queue.expired for queue in gone)


def expire_units(tier: WrittenTier, *, seconds: int) -> None:
    """The same by a broker that is not done yet or was killed: units go before records."""
    drop = FlatAppendFile.drop

    def of_units(
        part: FlatAppendFile, segments: Sequence[FlatSegment], *, keep_bytes: bool
    ) -> list[str]:
        is_queue = part.type is SegmentType.CONSUME_QUEUE
        return drop(part, segments, keep_bytes=keep_bytes) if is_queue else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlatAppendFile, "drop", of_units)
        expire(tier, seconds=seconds)


def nothing() -> None:
    pass


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seconds", [80, 140, 300])
def test_messages_that_expire_meanwhile_are_no_finding(
    tier: WrittenTier, seconds: int, late: bool
) -> None:
    def too_old() -> None:
        expire(tier, seconds=seconds)

    acts = (nothing, too_old) if late else (too_old, nothing)
    report = verified_beside(tier.config, planned=acts[0], worked=acts[1])
    assert not kinds(report), report.findings


@pytest.mark.parametrize("moment", ["planned", "begun", "worked"])
@pytest.mark.parametrize("seconds", [80, 140, 300])
def test_units_that_expire_meanwhile_before_their_records_are_no_finding(
    tier: WrittenTier, seconds: int, moment: str
) -> None:
    def too_old() -> None:
        expire_units(tier, seconds=seconds)

    report = verified_beside(tier.config, **{moment: too_old})
    assert kinds(report) <= {"keys-not-compared"}, report.findings


def test_keys_that_are_not_uploaded_are_no_damage_behind_units_that_expire_meanwhile(
    tmp_path: Path,
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 64, seal=True)  # one segment of the queue
    tier.add("Orders", 0, 100)
    elsewhere = replace(
        tier.config,
        metadata_path=tier.config.catalogue_path,
        store_path=str(tmp_path / "elsewhere"),
    )
    report = verified_beside(elsewhere, begun=lambda: expire_units(tier, seconds=90))
    assert kinds(report) <= {"keys-not-uploaded", "keys-not-compared"}, report.findings


def test_what_an_index_file_says_wrongly_is_found_behind_units_that_expire_meanwhile(
    tier: WrittenTier,
) -> None:
    tier.add("Orders", 0, 10)

    def expired_and_damaged() -> None:
        expire_units(tier, seconds=140)
        local = LocalFolder(tier.config)
        path = local.path / str(local.begins()[-1])
        data = bytearray(path.read_bytes())
        header = decode_header(bytes(data[:HEADER_BYTES]))
        last = item_position(header.item_count, slot_count=tier.config.index_slot_count)
        data[last + 19] ^= 2  # the size of its message
        path.write_bytes(data)

    report = verified_beside(tier.config, begun=expired_and_damaged)
    assert "key-unfounded" in kinds(report)


@pytest.mark.parametrize("kind", [BackendUnavailableError, KeysExpiredError])
def test_what_cannot_be_looked_at_again_is_not_called_damaged(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch, kind: type[BackendError]
) -> None:
    def away(*_: object, **__: object) -> NoReturn:
        raise kind("tier", "list", "it is away")

    def too_old() -> None:
        expire(tier, seconds=140)
        monkeypatch.setattr(TierPicture, "take", away)

    report = verified_beside(tier.config, planned=too_old)
    assert report.state is JobState.INCOMPLETE
    assert report.exit_code is JobExit.REFUSED
    assert {failure.error for failure in report.failures} == {kind.__name__}
    assert not report.findings


def test_damage_of_what_is_still_there_is_found_beside_what_expires(tier: WrittenTier) -> None:
    def expired_and_damaged() -> None:
        expire(tier, seconds=140)
        newest = max(Path(tier.config.path).rglob("Orders/0/COMMIT_LOG/*"), key=_offset)
        data = bytearray(newest.read_bytes())
        data[120] ^= 1
        newest.write_bytes(data)

    report = verified_beside(tier.config, planned=expired_and_damaged)
    assert kinds(report) == {"body-crc"}


def test_a_topic_that_is_deleted_meanwhile_is_no_damage(tier: WrittenTier) -> None:
    tier.add("Bills", 0, 20)
    report = verified_beside(tier.config, planned=lambda: tier.delete("Orders"))
    assert kinds(report) <= {"key-stale"}, report.findings


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_is_deleted_while_a_slice_of_it_is_read_is_no_damage(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    """Also if the slice has its units by then, and asks for the first one of the next slice."""
    tier.add("Bills", 0, 20)
    read = SegmentBytes.read

    def as_it_goes(bytes_: SegmentBytes, start: int, stop: int) -> bytes:
        row = bytes_.rows[0]
        if row.type is SegmentType.COMMIT_LOG and "Orders" in row.path:
            monkeypatch.setattr(SegmentBytes, "read", read)
            tier.delete("Orders")
            tier.add("Orders", 0, int(anew))
        return read(bytes_, start, stop)

    monkeypatch.setattr(SegmentBytes, "read", as_it_goes)
    report = verified_beside(tier.config)
    assert (report.failures, report.exit_code) == ((), JobExit.DONE)
    assert kinds(report) <= {"key-stale"}, report.findings


def seal(tier: WrittenTier) -> None:
    with tier.open() as parts:
        parts.index.seal()


@pytest.mark.parametrize("late", [False, True])
def test_an_index_file_that_is_uploaded_meanwhile_has_its_keys(
    tier: WrittenTier, late: bool
) -> None:
    acts = (nothing, lambda: seal(tier)) if late else (lambda: seal(tier), nothing)
    report = verified_beside(tier.config, planned=acts[0], worked=acts[1])
    assert not kinds(report), report.findings
    assert report.counts["keys"] == report.counts["entries"]


def test_an_index_file_that_expires_meanwhile_is_a_note(tier: WrittenTier) -> None:
    def dropped() -> None:
        with tier.open() as parts:
            parts.index.expire(START_MS + 160_000)  # type: ignore[attr-defined]

    report = verified_beside(tier.config, planned=dropped)
    assert kinds(report) == {"keys-expired"}, report.findings


def test_keys_are_not_compared_where_all_index_files_went_meanwhile(tier: WrittenTier) -> None:
    def dropped() -> None:
        with tier.open() as parts:
            parts.index.seal()
            parts.index.expire(START_MS + 10_000_000)  # type: ignore[attr-defined]

    report = verified_beside(tier.config, planned=dropped)
    assert kinds(report) == {"keys-not-compared"}, report.findings


@pytest.mark.parametrize("what", ["index", "messages", "units", "local"])
def test_what_goes_while_the_keys_are_compared_is_no_damage(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    compare = verify_keys.KeyComparison.compare
    left = iter([what])

    def as_it_goes(comparison: verify_keys.KeyComparison, sums: Sums) -> dict[str, int]:
        if any(left):
            # Now every sum is suspect, and so each is read once more.
            sums = sums.chosen(np.arange(len(sums)))
            sums["print"] += np.uint64(1)
            if what == "messages":
                expire(tier, seconds=140)
            elif what == "units":
                expire_units(tier, seconds=140)
            elif what == "local":
                seal(tier)
            else:
                with tier.open() as parts:
                    parts.index.expire(START_MS + 160_000)  # type: ignore[attr-defined]
        return compare(comparison, sums)

    monkeypatch.setattr(verify_keys.KeyComparison, "compare", as_it_goes)
    report = verified_beside(tier.config, planned=nothing)
    assert kinds(report) <= {"keys-expired"}, report.findings


def test_bytes_that_go_while_suspects_are_read_again_are_no_damage(
    tier: WrittenTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalogue forgets a segment before its bytes go, and one read may want bytes of it and of
    the next one."""
    compare, read = verify_keys.KeyComparison.compare, SegmentBytes.read
    there, later = Path(tier.config.path), tmp_path / "later"

    def forgotten() -> None:
        shutil.copytree(there, earlier := tmp_path / "earlier")
        expire(tier, seconds=140)
        shutil.move(there, later)
        shutil.move(earlier, there)

    def as_suspects(comparison: verify_keys.KeyComparison, sums: Sums) -> dict[str, int]:
        sums = sums.chosen(sums["held"] > 0)
        sums["held"] -= 1  # as if an index file had been dropped
        sums["print"] += np.uint64(1)
        monkeypatch.setattr(SegmentBytes, "read", as_bytes_go)
        return compare(comparison, sums)

    def as_bytes_go(bytes_: SegmentBytes, start: int, stop: int) -> bytes:
        if bytes_.rows[0].type is SegmentType.COMMIT_LOG and later.exists():
            shutil.rmtree(there)
            shutil.move(later, there)
        return read(bytes_, start, stop)

    monkeypatch.setattr(verify_keys, "LOOKED_AT_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(verify_keys.KeyComparison, "compare", as_suspects)
    report = verified_beside(tier.config, worked=forgotten)
    assert not later.exists()
    assert kinds(report) <= {"keys-expired"}, report.findings


def test_damage_of_an_index_file_is_still_damage(tier: WrittenTier) -> None:
    path = min(Path(tier.config.path).rglob("INDEX/*"), key=_offset)
    with flipped(path, 28 + 8 * 512 + 3):
        report = verified_beside(tier.config, planned=lambda: seal(tier))
    assert "index-items" in kinds(report)


ORDERS = QueueKey("Orders", 0)


def write(tier: WrittenTier, parts: Tier, count: int) -> None:
    tier.write(parts, ORDERS, a_run(ORDERS, tier.ends.get(ORDERS, 0), count))


def give_up_index_file(parts: Tier) -> None:
    """Let the disk fail once, while the index file that is being filled is synced."""
    sync, failures = os.fdatasync, iter([OSError(5, "the disk is broken")])

    def fails(descriptor: int) -> None:
        for failure in failures:
            raise failure
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        parts.index._writer.sync()  # type: ignore[attr-defined]
    assert "rebuilt after a restart" in (parts.index.problem or "")


@pytest.mark.parametrize("before", [0, 60])
def test_keys_of_an_index_file_that_was_given_up_are_no_damage(tmp_path: Path, before: int) -> None:
    """Earlier and later messages have their keys in uploaded files, as uploads go on."""
    tier = WrittenTier(config=posix_config(tmp_path / "given up"))
    with tier.open() as parts:
        if before:
            write(tier, parts, before)
            parts.index.seal()
        write(tier, parts, 60)
        give_up_index_file(parts)
        write(tier, parts, 60)
        parts.index.seal()
        assert parts.publishing.step()
        report = verified_beside(elsewhere(tier), planned=nothing)
        assert kinds(report) == {"keys-not-uploaded"}, report.findings


@pytest.mark.parametrize("late", [False, True])
def test_an_index_file_that_is_given_up_meanwhile_is_no_damage(
    tier: WrittenTier, late: bool
) -> None:
    """Even on the broker's host, where its keys are found until the tier is opened again."""
    tier.add("Orders", 0, 20)

    def given_up() -> None:
        with tier.open() as parts:
            write(tier, parts, 20)
            give_up_index_file(parts)
        with tier.open():
            pass

    acts = (nothing, given_up) if late else (given_up, nothing)
    report = verified_beside(tier.config, planned=acts[0], worked=acts[1])
    assert kinds(report) == {"keys-not-uploaded"}, report.findings


def test_an_index_file_of_an_older_copy_of_the_disk_is_no_damage(tmp_path: Path) -> None:
    """A broker that starts on the copy puts the missing keys again."""
    tier = WrittenTier(config=posix_config(tmp_path / "older"))
    folder = LocalFolder(tier.config).path
    with tier.open() as parts:
        write(tier, parts, 20)
    shutil.copytree(folder, tmp_path / "copy")
    with tier.open() as parts:
        write(tier, parts, 20)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    report = verified_beside(tier.config, planned=nothing)
    assert kinds(report) == {"keys-not-uploaded"}, report.findings


def test_keys_that_the_notes_have_and_no_index_file_are_missing(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "lost"))
    with tier.open() as parts:
        write(tier, parts, 60)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts.index, "put", lambda *_: None)
            write(tier, parts, 60)
        write(tier, parts, 60)
        parts.index.seal()
        write(tier, parts, 60)
        give_up_index_file(parts)
        assert parts.publishing.step()
        report = verified_beside(elsewhere(tier), planned=nothing)
    assert kinds(report) == {"key-missing", "keys-not-uploaded"}, report.findings


@pytest.mark.parametrize("grows", [True, False])
def test_keys_of_messages_whose_units_come_meanwhile_are_no_damage(
    tmp_path: Path, suspects: str, grows: bool
) -> None:
    """RocketMQ's catalogue has the records of messages before it has their units."""
    tier = Harmed.golden(tmp_path)
    with JsonMetadataStore.open(tier.config.catalogue_path) as metadata:
        row = metadata.segments(f"{BROKER}/GoldBB/0", SegmentType.CONSUME_QUEUE)[-1]
        metadata.put(replace(row, size=row.size - UNIT_BYTES))
    units = tier.file("GoldBB/0", "CONSUME_QUEUE", row.base_offset)
    whole = units.read_bytes()
    units.write_bytes(whole[:-UNIT_BYTES])

    def written() -> None:
        units.write_bytes(whole)
        with JsonMetadataStore.open(tier.config.catalogue_path) as metadata:
            metadata.put(row)

    report = verified_beside(tier.config, worked=written if grows else nothing)
    left = "keys-not-compared" if suspects == "too large" else "key-unfounded"
    wanted = set() if grows and suspects == "looked at" else {left}
    assert kinds(report) == {"log-ahead", *wanted}, report.findings


def test_segments_that_are_not_published_yet_are_looked_for(tmp_path: Path) -> None:
    """Otherwise the known log would end with what a dead process has left there."""
    tier = WrittenTier(config=posix_config(tmp_path / "rolled", commit_log_segment_bytes=4_000))
    with tier.open() as parts:
        write(tier, parts, 3)
        assert parts.publishing.step()
        write(tier, parts, 40)
        rows = TierPicture.take(elsewhere(tier)).queues[0]
        assert rows.end_offset == 43
        assert len(rows.log) > 1


def elsewhere(tier: WrittenTier) -> StoreConfig:
    """A machine that cannot see the broker's disk."""
    folder = f"{tier.config.store_path} elsewhere"
    return replace(tier.config, store_path=folder, catalogue="published")


def _offset(path: Path) -> int:
    return int(path.name[8:])
