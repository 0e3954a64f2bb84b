"""A job as tasks of Spark: the same results as on threads, progress while it runs, and its start
in an environment where nothing was prepared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.jobs.counting_job import CountingJob
from tests.jobs.written_tier import WrittenTier, posix_config
from tests.spark.bring_java import java_home
from tests.spark.conftest import ROOT
from tieredstore.driver.runtime import ManualClock
from tieredstore.jobs.job import JobState, Progress, run_job
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


def run_verify(tier: WrittenTier, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`tieredstore verify --engine spark` as cron would run it: nothing is set but this."""
    named = [
        word
        for option, value in (
            ("--provider", "posix"),
            ("--path", tier.config.path),
            ("--store-path", tier.config.store_path),
            ("--cluster", tier.config.cluster_name),
            ("--broker", tier.config.broker_name),
            ("--index-slots", tier.config.index_slot_count),
            ("--index-items", tier.config.index_item_count),
        )
        for word in (option, str(value))
    ]
    return subprocess.run(
        [sys.executable, "-m", "tieredstore", "verify", "--engine", "spark", *named],
        cwd="/",
        env={"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_job_from_an_environment_that_is_not_activated_runs_with_its_own_interpreter(
    tmp_path: Path,
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "tier"))
    tier.add("orders", 0, 20, seal=True)
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        program(tmp_path / "bin" / name, "echo the wrong one >&2; exit 1")
    ran = run_verify(
        tier,
        {
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "read 20 messages" in ran.stdout


def test_without_java_a_job_ends_with_one_line_and_no_trace(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "tier"))
    tier.add("orders", 0, 1)
    for environment, line in (
        ({"PATH": str(tmp_path)}, "there is none in the PATH; set JAVA_HOME"),
        (
            {"PATH": "/usr/bin:/bin", "JAVA_HOME": "/nowhere"},
            "JAVA_HOME is /nowhere, and there is none; set JAVA_HOME",
        ),
    ):
        ran = run_verify(tier, environment)
        assert ran.returncode == 2
        assert ran.stderr == f"tieredstore: Spark needs Java 17 or later: {line}\n"
    program(tmp_path / "bin" / "java", "exit 1")  # as one that is too old does
    ran = run_verify(tier, {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path)})
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == (
        "tieredstore: Spark did not start; it needs Java 17 or later, and"
        f" {tmp_path / 'bin' / 'java'} is what it found"
    )
    assert "Traceback" not in ran.stderr


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
