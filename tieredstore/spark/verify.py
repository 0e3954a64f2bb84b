"""The findings of a verification as a DataFrame.

What lives here: `verify_on_spark` and `findings_frame`. What is found, and how, is in
`jobs.verify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.job import run_job
from tieredstore.jobs.job_report import JobReport
from tieredstore.jobs.verify import VerifyJob
from tieredstore.model.config import StoreConfig
from tieredstore.spark.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_SCHEMA: Final = (
    "severity string, kind string, topic string, queue_id int, path string, position bigint, "
    "queue_offset bigint, text string"
)


def verify_on_spark(
    spark: SparkSession, config: StoreConfig, *, topics: tuple[str, ...] = ()
) -> tuple[DataFrame, JobReport]:
    """Read the tier with the workers of this session: the findings, and the whole report."""
    job = VerifyJob(config=config, topics=topics)
    report = run_job(job, SparkEngine(spark), clock=SystemClock())
    return findings_frame(spark, report), report


def findings_frame(spark: SparkSession, report: JobReport) -> DataFrame:
    """One row for each finding that the report has room for."""
    rows = [found.row() for found in report.findings]
    names = ("severity", "kind", "topic", "queue_id", "where", "position", "queue_offset", "detail")
    return spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows], FINDINGS_SCHEMA
    )
