"""A tier that changes while it is verified: what expires or moves meanwhile is no finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests.jobs.job_kit import flipped, kinds
from tests.jobs.written_tier import START_MS, WrittenTier, posix_config
from tieredstore.access.upkeep import expire_tier
from tieredstore.driver.runtime import InlinePool
from tieredstore.jobs import verify_keys
from tieredstore.jobs.job import (
    JobExit,
    JobReport,
    JobState,
    LocalEngine,
    RowStream,
    no_progress,
)
from tieredstore.jobs.verify import TierPicture, VerifyJob
from tieredstore.jobs.verify_findings import Sums
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendUnavailableError

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True, params=["looked at", "too large"])
def suspects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the entries of an index are compared one by one where sums differ."""
    if request.param == "too large":
        monkeypatch.setattr(verify_keys, "LOOKED_AT_BYTES_MAX", 0)


@pytest.fixture
def tier(tmp_path: Path) -> WrittenTier:
    """Two index files are uploaded, one is on the broker's disk."""
    tier = WrittenTier(config=posix_config(tmp_path, index_item_count=331))
    tier.add("Orders", 0, 150, seal=True)
    tier.add("Orders", 0, 150, seal=True)
    tier.add("Orders", 1, 40)
    return tier


def verified_beside(
    config: StoreConfig, *, planned: Callable[[], None], worked: Callable[[], None] = lambda: None
) -> JobReport:
    """The report, where something happens when it was planned, and when all was read."""
    job = VerifyJob(config=config, split_bytes=5_000)
    plan = job.plan()
    planned()
    engine = LocalEngine(pool=InlinePool(), threads=1)
    results = list(engine.results(job.work, plan, on_progress=no_progress))
    worked()
    return job.finish(plan, RowStream(iter(results), item_count=len(plan.items)))


def expire(tier: WrittenTier, *, seconds: int) -> None:
    """What was stored in the first seconds is too old now."""
    config = replace(tier.config, reserve_hours=1)
    with tier.open() as parts:
        now_ms = START_MS + HOUR_MS + 1000 * seconds
        gone = list(expire_tier(parts.files, parts.metadata, config, now_ms=now_ms))
    assert any(queue.expired for queue in gone)


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


def test_what_cannot_be_looked_at_again_is_not_called_damaged(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> NoReturn:
        raise BackendUnavailableError("tier", "list", "it is away")

    def too_old() -> None:
        expire(tier, seconds=140)
        monkeypatch.setattr(TierPicture, "take", away)

    report = verified_beside(tier.config, planned=too_old)
    assert report.state is JobState.INCOMPLETE
    assert report.exit_code is JobExit.REFUSED
    assert {failure.error for failure in report.failures} == {"BackendUnavailableError"}
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


@pytest.mark.parametrize("what", ["index", "messages", "local"])
def test_what_goes_while_the_keys_are_compared_is_no_damage(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    compare = verify_keys.KeyComparison.compare
    left = iter([what])

    def as_it_goes(comparison: verify_keys.KeyComparison, sums: Sums) -> dict[str, int]:
        if any(left):
            # Each of them has a suspect now, and so is read once more.
            sums = sums.copy()
            sums["print"] += 1
            if what == "messages":
                expire(tier, seconds=140)
            elif what == "local":
                seal(tier)
            else:
                with tier.open() as parts:
                    parts.index.expire(START_MS + 160_000)  # type: ignore[attr-defined]
        return compare(comparison, sums)

    monkeypatch.setattr(verify_keys.KeyComparison, "compare", as_it_goes)
    report = verified_beside(tier.config, planned=nothing)
    assert kinds(report) <= {"keys-expired"}, report.findings


def test_damage_of_an_index_file_is_still_damage(tier: WrittenTier) -> None:
    path = min(Path(tier.config.path).rglob("INDEX/*"), key=_offset)
    with flipped(path, 28 + 8 * 512 + 3):
        report = verified_beside(tier.config, planned=lambda: seal(tier))
    assert "index-items" in kinds(report)


def _offset(path: Path) -> int:
    return int(path.name[8:])
