"""A reindex as tasks of Spark: the files that threads make, and a task that fails is done again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.jobs.dying import LOADED, config_in, load
from tests.jobs.load_kit import assert_found, report_of
from tests.jobs.test_reindex import index_files, run
from tests.jobs.written_tier import WrittenTier
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.job import JobState
from tieredstore.jobs.reindex import reindex
from tieredstore.model.config import StoreConfig
from tieredstore.spark.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tier_in(folder: Path) -> StoreConfig:
    config = config_in(folder)
    WrittenTier(config=config).add("other", 7, 40)
    load(config)
    return config


def test_tasks_make_the_files_that_threads_make(spark: SparkSession, tmp_path: Path) -> None:
    ours, other = tier_in(tmp_path / "spark"), tier_in(tmp_path / "threads")
    report = reindex(ours, SparkEngine(spark, wave_items=2), clock=SystemClock())
    assert (report.state, report.failures) == (JobState.DONE, ())
    assert run(other).counts == report.counts
    assert_found(ours, LOADED)
    assert report_of(ours).findings == ()
    assert index_files(ours) == index_files(other)
