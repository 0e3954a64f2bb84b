"""Verifying and exporting as tasks of Spark: the same findings and the same messages as on threads,
also where a task fails at its first attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from tests.codec.golden_files import GOLDEN
from tests.jobs.job_kit import (
    Harmed,
    exported,
    flipped,
    golden_config,
    messages,
    tier_messages,
    verified,
)
from tests.s3.moto_server import moto_server
from tests.spark.bring_java import java_home
from tieredstore.driver.runtime import ManualClock
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.export_target import ExportTarget, TargetOptions
from tieredstore.jobs.job import JobExit, JobState, run_job
from tieredstore.model.config import StoreConfig
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.spark.engine import SparkEngine, verify_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

# In a session of its own: the one of all tests tries no task again.
STUMBLING = """
import sys
from dataclasses import dataclass
from pathlib import Path
from tests.jobs.job_kit import golden_config
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.job import run_job
from tieredstore.spark.engine import SparkEngine, spark_session

tier, target, marks = map(Path, sys.argv[1:4])

class Stumbling(ExportJob):
    def work(self, item):
        yield from super().work(item)
        attempt = marks / item.name
        if not attempt.exists():
            attempt.touch()
            raise RuntimeError("a task that fails at its first attempt, when all is written")

job = Stumbling(config=golden_config(tier), target=str(target), topics=("GoldBB",))
spark = spark_session("stumbling", master="local[2,4]")
spark.sparkContext.setLogLevel("OFF")
report = run_job(job, SparkEngine(spark), clock=SystemClock())
spark.stop()
print(report.state.value, report.counts["messages"])
"""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with moto_server() as (endpoint, _):
        yield endpoint


def test_findings_are_a_frame_and_those_of_threads(spark: SparkSession, tmp_path: Path) -> None:
    tier = Harmed.golden(tmp_path)
    unit = tier.file("GoldBB/0", "CONSUME_QUEUE", 400)
    with flipped(unit, 19), flipped(tier.files("INDEX")[1], 28 + 512 + 28 * 100 + 19, 0x02):
        frame, report = verify_on_spark(spark, tier.config)
        same = verified(tier.config)
    assert report.exit_code is JobExit.DAMAGE
    assert report.findings == same.findings
    assert report.counts == same.counts
    rows = frame.collect()
    assert len(rows) == len(report.findings) >= 3
    (wrong,) = [row for row in rows if row.kind == "tags-code"]
    assert (wrong.severity, wrong.topic, wrong.queue_id) == ("damage", "GoldBB", 0)
    assert (wrong.queue_offset, wrong.position) == (20, 10_081)
    assert "GoldBB/0/COMMIT_LOG/" in wrong.path


def test_an_export_into_a_bucket_is_read_back_by_spark_and_by_arrow(
    spark: SparkSession, tmp_path: Path, endpoint: str
) -> None:
    config = golden_config()
    options = TargetOptions(
        endpoint=endpoint, region="us-east-1", access_key="key", secret_key="secret"
    )
    bucket = StoreConfig(
        provider="s3",
        bucket="lake",
        endpoint=endpoint,
        region="us-east-1",
        access_key="key",
        secret_key="secret",
    )
    create_bucket(ObjectStoreSettings.from_config(bucket))
    job = ExportJob(
        config=config, target="s3://lake/messages", target_options=options, split_bytes=20_000
    )
    assert run_job(job, SparkEngine(spark), clock=ManualClock()).state is JobState.DONE
    assert not job.plan().items
    target = ExportTarget(job.target, options)
    found = ds.dataset(
        "lake/messages", filesystem=target._files, format="parquet", partitioning="hive"
    ).to_table()
    assert found.num_rows == sum(tier_messages(config).values()) == 533
    local = tmp_path / "parquet"
    exported(config, local)
    counted = spark.read.parquet(str(local)).groupBy("topic", "day").count().collect()
    assert {str(row.day) for row in counted} == {"2026-11-20"}
    assert {row.topic: row["count"] for row in counted}["%RETRY%gold_group"] == 72
    assert sum(row["count"] for row in counted) == 533


def test_tasks_that_fail_at_their_first_attempt_leave_every_message_once(tmp_path: Path) -> None:
    marks, target = tmp_path / "marks", tmp_path / "parquet"
    marks.mkdir()
    words = [sys.executable, "-c", STUMBLING, str(GOLDEN / "tier-posix"), str(target), str(marks)]
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ran = subprocess.run(
        words, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines()[-1] == "done 134"
    assert len(list(marks.iterdir())) == 2
    config = golden_config()
    wanted = {each for each in tier_messages(config) if each[0] == "GoldBB"}
    assert dict(messages(target)) == dict.fromkeys(wanted, 1)
