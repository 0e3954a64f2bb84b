"""`tieredstore.spark.load`, and Spark writes that run at the same time."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tieredstore.spark
from tests.jobs.load_kit import bodies, report_of
from tests.jobs.written_tier import posix_config
from tests.s3.conftest import moto, s3_environment
from tests.spark.spark_kit import options_of
from tieredstore.access.reader import TieredReader
from tieredstore.jobs import load as load_module
from tieredstore.jobs.load_segments import StagedSource
from tieredstore.jobs.worker import worker_scratch
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix_shelf import PosixScratch
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["moto", "s3_environment"]  # fixtures
A, B = QueueKey("orders", 0), QueueKey("orders", 1)
PARTITIONS = 3


@pytest.fixture(params=["posix", pytest.param("s3", marks=pytest.mark.s3)])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    """An empty tier in a directory, or in a bucket."""
    if request.param == "posix":
        return posix_config(tmp_path, index_item_count=300)
    endpoint, _ = request.getfixturevalue("moto")
    named: dict[str, Any] = {
        "bucket": f"tier-{uuid.uuid4().hex}",
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key": "testing",
        "secret_key": "testing",
    }
    create_bucket(ObjectStoreSettings(**named))
    return posix_config(tmp_path, provider="s3", path="", index_item_count=300, **named)


def orders(spark: SparkSession, first: int, end: int) -> DataFrame:
    """A frame in which each queue has rows in all partitions."""
    return spark.range(first, end, 1, PARTITIONS).selectExpr(
        "'orders' as topic",
        "cast(id % 2 as int) as queue_id",
        "cast(concat('body-', id) as binary) as body",
        "concat('u', id) as unique_key",
    )


def names(numbers: range) -> list[str]:
    return [f"body-{number}" for number in numbers]


def assert_found(config: StoreConfig, numbers: range) -> None:
    with TieredReader.open(config) as reader:
        for number in numbers:
            assert len(reader.query_message("orders", f"u{number}").messages) == 1


def test_a_load_has_the_workers_write_once_more_what_lies_in_several_partitions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = posix_config(tmp_path, index_item_count=300)
    rewritten_here: list[object] = []
    read_here: list[str] = []
    inner = PosixScratch.read

    def reading(scratch: PosixScratch, name: str, position: int, length: int) -> bytes:
        read_here.append(name)
        return inner(scratch, name, position, length)

    # Tasks run in other processes: only what the driver does is seen here.
    monkeypatch.setattr(PosixScratch, "read", reading)
    monkeypatch.setattr(StagedSource, "rows", rewritten_here.append)  # whatever reads it fails
    monkeypatch.setattr(load_module, "merged", lambda *given: rewritten_here.append(given))
    frame, options = orders(spark, 0, 240), {**options_of(config), "load_id": "one"}
    with ThreadPoolExecutor(1) as thread:  # where no session is active
        report = thread.submit(tieredstore.spark.load, frame, **options).result()
    again = tieredstore.spark.load(frame, **options)
    assert (report.message_count, again.message_count) == (240, 0)
    assert not rewritten_here
    assert read_here
    assert all("-keys" in name or name.endswith(".parts") for name in read_here)
    monkeypatch.undo()
    for key in (A, B):
        assert bodies(config, key) == names(range(key.queue_id, 240, 2))
    assert_found(config, range(0, 240, 7))
    assert worker_scratch(config).listed() == []
    assert report_of(config).findings == ()


def test_a_load_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    config = posix_config(tmp_path)
    frame = orders(spark, 0, 30).selectExpr(
        "topic", "queue_id", "if(body = cast('body-29' as binary), 1 / 0, 1) as flag"
    )
    with pytest.raises(Exception, match="flag"):
        tieredstore.spark.load(frame, **options_of(config))
    slow = orders(spark, 0, 30).selectExpr(
        "topic", "queue_id", "if(body = cast('body-29' as binary), raise_error('no'), 'x') as tags"
    )
    with pytest.raises(Exception, match="no"):
        tieredstore.spark.load(slow, **options_of(config))
    assert worker_scratch(config).listed() == []
    assert report_of(config).findings == ()


def test_two_writes_at_a_time_add_their_messages_once_each(
    spark: SparkSession, config: StoreConfig
) -> None:
    begin = threading.Barrier(2, timeout=60)

    def write(first: int) -> None:
        spark.createDataFrame([(1,)], "n int")  # Spark looks for sources in the thread's session
        begin.wait()
        frame = orders(spark, first, first + 60)
        frame.write.format("tieredstore").options(**options_of(config)).mode("append").save()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(write, first) for first in (0, 60)]:
            done.result()
    for key in (A, B):
        found = bodies(config, key)
        halves = [names(range(first + key.queue_id, first + 60, 2)) for first in (0, 60)]
        assert found in (halves[0] + halves[1], halves[1] + halves[0])
    assert_found(config, range(0, 120, 7))
    assert report_of(config).findings == ()
    assert worker_scratch(config).listed() == []
