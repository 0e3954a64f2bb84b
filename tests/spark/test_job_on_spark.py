"""A job as tasks of Spark: the same results as on threads, and progress while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.jobs.counting_job import CountingJob
from tieredstore.driver.runtime import ManualClock
from tieredstore.jobs.job import Progress, run_job
from tieredstore.jobs.job_report import JobState
from tieredstore.spark.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOCK = ManualClock()


def test_tasks_do_every_item_and_tell_of_it(spark: SparkSession) -> None:
    told: list[Progress] = []
    job = CountingJob(count=7, refused=frozenset({3}))
    engine = SparkEngine(spark, wave_items=4)
    report = run_job(job, engine, clock=CLOCK, on_progress=told.append)
    assert report.counts == {"sum": sum(n * n for n in range(7)) - 9, "failed": 1, "left": 0}
    assert report.state is JobState.INCOMPLETE
    assert [each.text for each in report.failures] == ["square number 3: not this one"]
    assert told[-1].items_done == 7
    assert told[-1].bytes_done == 70
