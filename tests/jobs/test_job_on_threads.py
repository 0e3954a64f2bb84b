"""A job on threads: each item is done once, failures are separate, and it stops when asked."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.jobs.counting_job import CountingJob
from tieredstore.driver.runtime import InlinePool, ManualClock
from tieredstore.jobs.job import (
    Job,
    JobExit,
    JobReport,
    JobState,
    LocalEngine,
    Plan,
    Progress,
    RowStream,
    run_job,
)

CLOCK = ManualClock()


def ran(job: Job[Any, Any], *, threads: int = 2, **how: Any) -> JobReport:
    with LocalEngine(threads=threads) as engine:
        return run_job(job, engine, clock=CLOCK, **how)


def test_every_item_is_done_and_progress_reaches_the_total() -> None:
    told: list[Progress] = []
    report = ran(CountingJob(count=50), threads=3, on_progress=told.append)
    assert report.counts == {"sum": sum(n * n for n in range(50)), "failed": 0, "left": 0}
    assert report.state is JobState.DONE
    assert report.exit_code is JobExit.DONE
    assert [each.items_done for each in told] == list(range(51))
    assert told[-1].bytes_done == told[-1].bytes_total == 500


def test_a_failing_item_loses_no_other_and_is_named() -> None:
    job = CountingJob(count=10, refused=frozenset({3}))
    report = ran(job)
    assert report.counts["sum"] == sum(n * n for n in range(10)) - 9
    assert report.state is JobState.INCOMPLETE
    assert report.exit_code is JobExit.REFUSED
    assert [each.text for each in report.failures] == ["square number 3: not this one"]


def test_damage_counts_more_than_what_was_refused() -> None:
    job = CountingJob(count=10, refused=frozenset({3}), damaged=frozenset({5}))
    assert ran(job).exit_code is JobExit.DAMAGE


def test_of_many_failures_the_first_are_kept_and_all_are_counted() -> None:
    job = CountingJob(count=300, refused=frozenset(range(1, 300)))
    report = ran(job, threads=1)
    assert report.counts["failed"] == 299
    assert len(report.failures) == 100


def test_a_job_of_which_everything_fails_gives_up() -> None:
    job = CountingJob(count=300, refused=frozenset(range(300)))
    report = ran(job, threads=1)
    assert report.counts == {"sum": 0, "failed": 50, "left": 250}
    assert report.state is JobState.INCOMPLETE


def test_a_bug_in_an_item_ends_the_job() -> None:
    with pytest.raises(ZeroDivisionError):
        ran(CountingJob(count=10, stumbles=frozenset({3})))


def test_a_dry_run_works_on_nothing() -> None:
    job = CountingJob(count=10, stumbles=frozenset(range(10)))
    report = ran(job, dry_run=True)
    assert report.state is JobState.PLANNED
    assert report.counts == {"items": 10, "numbers": 10}
    assert report.lines == ("10 numbers",)


def test_a_job_that_is_stopped_says_what_is_left() -> None:
    engine = LocalEngine(pool=InlinePool(), threads=1)

    def stop_after_four(progress: Progress) -> None:
        if progress.items_done == 4:
            engine.stop()

    report = run_job(CountingJob(count=10), engine, clock=CLOCK, on_progress=stop_after_four)
    assert report.counts == {"sum": 0 + 1 + 4 + 9, "failed": 0, "left": 6}
    assert report.state is JobState.INTERRUPTED
    assert report.exit_code is JobExit.INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedJob:
    """Counts how many of its items are under way at the same time."""

    name: ClassVar[str] = "crowded"
    count: int
    guard: threading.Lock = field(default_factory=threading.Lock)
    crowd: list[int] = field(default_factory=lambda: [0, 0])

    def plan(self) -> Plan[int]:
        return Plan(items=range(self.count))

    def work(self, item: int) -> Iterable[int]:
        with self.guard:
            self.crowd[0] += 1
            self.crowd[1] = max(self.crowd)
        yield item
        with self.guard:
            self.crowd[0] -= 1

    def finish(self, plan: Plan[int], rows: RowStream[int]) -> JobReport:
        for row in rows:
            if row == 20:
                raise RuntimeError("the driver gives up")
        return JobReport(job=self.name, state=rows.state)


def test_no_more_items_are_under_way_than_there_are_threads() -> None:
    job = CrowdedJob(count=20)
    ran(job, threads=3)
    assert 1 <= job.crowd[1] <= 3


def test_a_driver_that_gives_up_leaves_nothing_under_way() -> None:
    job = CrowdedJob(count=1_000)
    with LocalEngine(threads=3) as engine:
        with pytest.raises(RuntimeError, match="gives up"):
            run_job(job, engine, clock=CLOCK)
        assert job.crowd[0] == 0


def test_the_report_is_a_file_and_pickles(tmp_path: Path) -> None:
    report = ran(CountingJob(count=3))
    report.write(tmp_path / "report.json")
    assert '"state": "done"' in (tmp_path / "report.json").read_text()
    assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301 - our own
