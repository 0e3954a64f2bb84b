"""A scrub reads a whole tier, slowly, again and again, and resumes where it stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from tests.access.tier_flips import BUCKETS, BucketInMemory
from tests.access.tiered_kit import a_config
from tests.exporters.shown import Prometheus, labels_of
from tests.jobs.job_kit import flipped, kinds
from tests.jobs.written_tier import START_MS, WrittenTier, posix_config
from tests.roundlog.small import everything_small
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.metrics import (
    SCRUB_AGE,
    SCRUB_BYTES,
    SCRUB_FINDINGS,
    SCRUB_PROGRESS,
    Metric,
)
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.jobs.job import Progress
from tieredstore.jobs.scrub import STATE_BYTES_MAX, Scrub
from tieredstore.jobs.verify import VerifyItem, VerifyJob
from tieredstore.jobs.verify_findings import Findings, VerifyRow
from tieredstore.jobs.verify_slice import SliceItem
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendUnavailableError, InvalidConfigError, MetadataError
from tieredstore.model.findings import Severity
from tieredstore.roundlog import upkeep
from tieredstore.testing.memory_objects import MemoryObjects
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, a_message

RATE, PAUSE = 10_000, 600


class SlowClock(ManualClock):
    """Notes the length of each sleep, and interrupts the `interrupted`-th one."""

    def __init__(self, *, interrupted: int = -1) -> None:
        super().__init__(START_MS)
        self.slept: list[float] = []
        self.interrupted = interrupted

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept.append(seconds)
        if len(self.slept) == self.interrupted:
            raise KeyboardInterrupt


@pytest.fixture
def tier(tmp_path: Path) -> WrittenTier:
    tier = WrittenTier(config=posix_config(tmp_path, index_item_count=300))
    tier.add("Orders", 0, 150, seal=True)
    tier.add("Orders", 1, 150)
    return tier


def job_of(config: StoreConfig, **settings: Any) -> VerifyJob:
    return VerifyJob(config=config, split_bytes=5_000, **settings)


def scrub_of(config: StoreConfig, clock: SlowClock | None = None, **settings: Any) -> Scrub:
    clock = clock or SlowClock()
    how = {"rate_bytes": RATE, "pause_seconds": PAUSE, **settings}
    return Scrub(job_of(config), clock=clock, **how)


def shown(metrics: Prometheus, metric: Metric, **labels: str) -> float:
    return metrics.samples()[metric.name, labels_of(**labels)]


def test_each_pass_reads_all_no_faster_than_it_may_and_then_it_rests(tier: WrittenTier) -> None:
    clock, told = SlowClock(), list[Progress]()
    reports = list(islice(scrub_of(tier.config, clock, on_progress=told.append).passes(), 2))
    size = job_of(tier.config).plan().bytes_total
    for report in reports:
        assert not kinds(report)
        assert report.counts["messages"] == 300
        assert report.counts["keys"] == report.counts["entries"]
        assert report.seconds == pytest.approx(size / RATE)
    assert clock.slept.count(PAUSE) == 1
    assert max(clock.slept[:3]) < 2 * 5_000 / RATE  # one part after another
    assert (told[-1].bytes_done, told[-1].items_done) == (size, told[-1].items_total)


def test_metrics_say_how_far_it_is_and_what_it_has_found(tier: WrittenTier) -> None:
    metrics, clock = Prometheus(), SlowClock()
    passes = scrub_of(tier.config, clock, metrics=metrics.metrics).passes()
    assert SCRUB_AGE.name not in {name for name, _ in metrics.samples()}
    damaged = max(Path(tier.config.path).rglob("COMMIT_LOG/*"))
    with flipped(damaged, 100):
        assert kinds(next(passes)) == {"body-crc"}
        assert shown(metrics, SCRUB_FINDINGS, severity="damage") == 1
    size = job_of(tier.config).plan().bytes_total
    assert (shown(metrics, SCRUB_BYTES), shown(metrics, SCRUB_PROGRESS)) == (size, 1)
    clock.advance(60_000)
    assert shown(metrics, SCRUB_AGE) == 60
    assert not kinds(next(passes))
    assert shown(metrics, SCRUB_BYTES) == 2 * size
    assert shown(metrics, SCRUB_FINDINGS, severity="damage") == 0


def test_damage_stays_shown_until_a_whole_pass_has_not_found_it(tier: WrittenTier) -> None:
    metrics, clock = Prometheus(), SlowClock()
    passes = scrub_of(tier.config, clock, metrics=metrics.metrics).passes()
    with flipped(max(Path(tier.config.path).rglob("COMMIT_LOG/*")), 100):
        next(passes)
    clock.interrupted = len(clock.slept) + 3
    with pytest.raises(KeyboardInterrupt):
        next(passes)
    assert shown(metrics, SCRUB_FINDINGS, severity="damage") == 1


@pytest.mark.parametrize("looks", [0, 1])
def test_damage_stays_shown_after_a_pass_in_which_the_backend_did_not_return_it(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Neither at the first look nor, if that was damaged, at the next one."""
    metrics, clock, work = Prometheus(), SlowClock(), VerifyJob.work
    passes = scrub_of(tier.config, clock, metrics=metrics.metrics).passes()
    seen = Counter[object]()

    def without_the_second_queue(job: VerifyJob, item: VerifyItem) -> Iterable[VerifyRow]:
        if isinstance(item, SliceItem) and item.slice.key.queue_id == 1:
            seen[item.slice.end_offset] += 1
            if seen[item.slice.end_offset] > looks:
                raise BackendUnavailableError("orders", "read", "no answer")
        return work(job, item)

    with flipped(max(Path(tier.config.path).rglob("Orders/1/COMMIT_LOG/*")), 100):
        assert kinds(next(passes)) == {"body-crc"}
        with monkeypatch.context() as patch:
            patch.setattr(VerifyJob, "work", without_the_second_queue)
            assert not kinds(next(passes))
    assert shown(metrics, SCRUB_FINDINGS, severity="damage") == 1
    assert shown(metrics, SCRUB_AGE) > PAUSE  # that of the first pass
    assert not kinds(next(passes))
    assert shown(metrics, SCRUB_FINDINGS, severity="damage") == 0
    assert shown(metrics, SCRUB_AGE) == 0


def test_damage_of_keys_stays_shown_after_a_pass_that_compared_none(
    tier: WrittenTier, state: Path
) -> None:
    """That pass was interrupted, and another process went on with it."""

    def pass_of(*, interrupted: int = -1) -> float:
        metrics, clock = Prometheus(), SlowClock(interrupted=interrupted)
        with suppress(KeyboardInterrupt):
            next(scrub_of(tier.config, clock, state=state, metrics=metrics.metrics).passes())
        return shown(metrics, SCRUB_FINDINGS, severity="damage")

    log = min(Path(tier.config.path).rglob("Orders/0/COMMIT_LOG/*cfcd2084*"))
    with flipped(log, log.read_bytes().index(b"order-21 "), 0x01):
        damages = pass_of()
        assert damages
        assert pass_of(interrupted=3) == damages
        assert pass_of() == damages
    assert pass_of() == 0


def test_what_it_finds_is_told_at_once(tier: WrittenTier) -> None:
    told: list[str] = []

    def tell(findings: Findings) -> None:
        told.extend(str(finding.kind) for finding in findings.found)

    clock = SlowClock(interrupted=3)
    with (
        flipped(min(Path(tier.config.path).rglob("Orders/0/COMMIT_LOG/*cfcd2084*")), 100),
        pytest.raises(KeyboardInterrupt),
    ):
        next(scrub_of(tier.config, clock, told=tell).passes())
    assert told == ["body-crc"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "scrub.json"


def test_a_restart_goes_on_where_it_was(tier: WrittenTier, state: Path) -> None:
    size, read = job_of(tier.config).plan().bytes_total, 0.0
    damaged = min(Path(tier.config.path).rglob("Orders/0/COMMIT_LOG/*cfcd2084*"))
    interrupts = 0
    while True:
        metrics = Prometheus()
        clock = SlowClock(interrupted=3)
        scrub = scrub_of(tier.config, clock, state=state, metrics=metrics.metrics)
        with flipped(damaged, 100):
            try:
                next(scrub.passes())
            except KeyboardInterrupt:
                interrupts += 1
                read += shown(metrics, SCRUB_BYTES)
                assert shown(metrics, SCRUB_FINDINGS, severity="damage") == 1
                continue
        read += shown(metrics, SCRUB_BYTES)
        break
    assert interrupts > 3
    assert read == size
    assert json.loads(state.read_text())["after"] is None  # the next pass begins anew
    with flipped(damaged, 100):
        assert kinds(next(scrub_of(tier.config, state=state).passes())) == {"body-crc"}


def test_a_pass_that_left_out_a_part_is_not_whole_after_a_restart(
    tier: WrittenTier, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend does not answer for the first part, then the scrub is cut short."""
    work, asked = VerifyJob.work, count()

    def without_the_first(job: VerifyJob, item: VerifyItem) -> Iterable[VerifyRow]:
        if next(asked) == 0:
            raise BackendUnavailableError("orders", "read", "no answer")
        return work(job, item)

    monkeypatch.setattr(VerifyJob, "work", without_the_first)
    with pytest.raises(KeyboardInterrupt):
        next(scrub_of(tier.config, SlowClock(interrupted=3), state=state).passes())
    metrics = Prometheus()
    passes = scrub_of(tier.config, state=state, metrics=metrics.metrics).passes()
    next(passes)
    assert SCRUB_AGE.name not in {name for name, _ in metrics.samples()}
    next(passes)
    assert shown(metrics, SCRUB_AGE) == 0


def test_a_pass_that_was_begun_before_compares_no_keys(tier: WrittenTier, state: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        next(scrub_of(tier.config, SlowClock(interrupted=3), state=state).passes())
    passes = scrub_of(tier.config, state=state).passes()
    assert not kinds(next(passes))
    assert next(passes).counts["keys"] == 774


def test_a_tier_that_is_away_ends_the_first_pass_only(tier: WrittenTier) -> None:
    places = [Path(tier.config.path), Path(tier.config.store_path)]
    clock = SlowClock()
    passes = scrub_of(tier.config, clock).passes()
    next(passes)

    def move(suffix: str) -> None:
        for place in places:
            place.with_name(f"{place.name}{suffix}").rename(
                place if suffix else place.with_name(f"{place.name}-away")
            )

    def sleep_until_it_is_back(seconds: float) -> None:
        SlowClock.sleep(clock, seconds)
        if seconds == PAUSE and clock.slept.count(PAUSE) == 3:
            move("-away")

    move("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "sleep", sleep_until_it_is_back)
        assert not kinds(next(passes))
    assert clock.slept.count(PAUSE) == 3
    move("")
    with pytest.raises(MetadataError):
        next(scrub_of(tier.config).passes())


def test_a_broker_that_uploads_merges_and_expires_in_a_bucket_gives_it_nothing_to_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment after a round, its bytes lie elsewhere and its object is deleted."""
    monkeypatch.setattr(upkeep, "GRACE_MS", 5_000)
    monkeypatch.setitem(BUCKETS, "scrubbed", MemoryObjects())
    config = a_config(
        tmp_path,
        provider=f"{BucketInMemory.__module__}:{BucketInMemory.__name__}",
        bucket="scrubbed",
        commit_log_segment_bytes=1_200,
        consume_queue_segment_bytes=80,
        index_slot_count=20,
        index_item_count=60,
        reserve_hours=1,
    )
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    store = TieredMessageStore(ListMessageStore(runtime), config, runtime=runtime)
    tier = store._loaded
    numbers = count()

    def work_on(progress: Progress | None = None) -> None:
        if progress is not None and progress.items_done % 4:
            return
        for number in islice(numbers, 6):
            runtime.clock.sleep(60)
            store.put_message(a_message(number, queue_id=number % 2))
        assert store.flush(seal=next(numbers) % 4 == 0)
        while tier().tier.provider.tend(config.broker_name):
            pass
        tier().retention.step()

    found: list[str] = []
    with everything_small():
        store.load()
        store.start()
        for _ in range(12):
            work_on()
        job = VerifyJob(config=config, split_bytes=500)
        scrub = Scrub(
            job,
            clock=SlowClock(),
            rate_bytes=1_000_000,
            told=lambda findings: found.extend(str(one) for one in findings.found if one.is_damage),
            on_progress=work_on,
        )
        reports = list(islice(scrub.passes(), 3))
        store.shutdown()
    assert found == []
    assert all(report.counts["messages"] for report in reports)
    assert reports[-1].byte_counts["read"] < 1_000_000


def test_a_segment_that_is_gone_is_damage_while_the_catalogue_names_it(tier: WrittenTier) -> None:
    passes = scrub_of(tier.config).passes()
    next(passes)
    max(Path(tier.config.path).rglob("Orders/0/COMMIT_LOG/*")).unlink()
    report = next(passes)
    assert any(finding.severity is Severity.DAMAGE for finding in report.findings)


def whole_state(tier: WrittenTier, state: Path) -> dict[str, Any]:
    next(scrub_of(tier.config, state=state).passes())
    found: dict[str, Any] = json.loads(state.read_text())
    return found


CHANGED: list[dict[str, Any]] = [
    {"format": 2},
    {"after": [1]},
    {"after": ["x", "Orders", 0, 1]},
    {"found": []},
    {"found": {"damage": "many"}},
    {"ended_ms": "today"},
    {"ended_ms": float("inf")},
    {"tier": "posix:/elsewhere c b"},
    {"more": "x" * STATE_BYTES_MAX},
]


@pytest.mark.parametrize("changed", CHANGED, ids="".join)
def test_another_file_is_no_state(tier: WrittenTier, state: Path, changed: dict[str, Any]) -> None:
    state.write_text(json.dumps(whole_state(tier, state) | changed))
    with pytest.raises(InvalidConfigError, match=r"scrub\.json: "):
        scrub_of(tier.config, state=state)


def test_the_state_of_a_tier_at_another_address_is_refused(tmp_path: Path, state: Path) -> None:
    one, other = (
        posix_config(tmp_path, provider="fsspec", path="", url=f"memory://{tmp_path.name}-{name}")
        for name in ("one", "other")
    )
    scrub_of(one, state=state)
    scrub_of(one, state=state)
    with pytest.raises(InvalidConfigError, match="state of another tier, .*-one"):
        scrub_of(other, state=state)


def test_the_state_of_a_bucket_of_the_same_name_at_another_endpoint_is_refused(
    tmp_path: Path, state: Path
) -> None:
    one, other = (
        posix_config(
            tmp_path, provider="s3", path="", bucket="tier", endpoint=f"http://{name}:9000"
        )
        for name in ("one", "other")
    )
    scrub_of(one, state=state)
    earlier = json.loads(state.read_text())
    with pytest.raises(InvalidConfigError, match="state of another tier, .*http://one:9000"):
        scrub_of(other, state=state)
    scrub_of(one, state=state)
    del earlier["endpoint"]  # as earlier versions wrote it
    state.write_text(json.dumps(earlier))
    scrub_of(one, state=state)
    assert json.loads(state.read_text())["endpoint"] == "http://one:9000"


def test_a_state_that_cannot_be_read_or_a_rate_of_nothing_is_refused(
    tier: WrittenTier, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        scrub_of(tier.config, state=tmp_path)
    with pytest.raises(InvalidConfigError, match="rate_bytes"):
        scrub_of(tier.config, rate_bytes=0)
