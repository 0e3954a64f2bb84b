"""`writeStream.format("tieredstore")`: every row once, whenever a driver or a task ends."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.jobs.load_kit import bodies, open_tier_of, report_of, rows_of, staged
from tests.jobs.written_tier import WrittenTier, posix_config
from tests.s3.conftest import moto, s3_environment
from tests.spark.spark_kit import options_of, submitted
from tieredstore.driver.provider import STREAMED
from tieredstore.jobs.load import StreamBatch, commit_load
from tieredstore.jobs.worker import owned_tier, worker_scratch
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import QueueKey
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["moto", "s3_environment"]  # fixtures
A = QueueKey("orders", 0)


class Filling:
    """A stream of text files into a tier, one AvailableNow run after the other."""

    def __init__(self, spark: SparkSession, config: StoreConfig, place: Path) -> None:
        self._spark, self._config = spark, config
        self._lines, self._checkpoint = place / "lines", place / "checkpoint"
        self._lines.mkdir()

    def add(self, name: str, *lines: str) -> None:
        (self._lines / name).write_text("\n".join(lines))

    def run(self, **options: str) -> None:
        lines = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._lines))
        rows = lines.selectExpr("'orders' as topic", "0 as queue_id", "value as body")
        stream = rows.writeStream.format("tieredstore").options(**options_of(self._config))
        stream = stream.options(**options).option("checkpointLocation", str(self._checkpoint))
        query = stream.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_commit(self) -> None:
        """Leave what a driver leaves that died after the tier's commit and before Spark's own."""
        commits = self._checkpoint / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_batches_become_messages_once_each_also_where_one_is_made_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = posix_config(tmp_path)
    filling = Filling(spark, config, tmp_path)
    filling.add("1", "a", "b")
    filling.run()
    assert bodies(config, A) == ["a", "b"]
    filling.forget_commit()
    filling.add("2", "c")
    filling.run()
    assert bodies(config, A) == ["a", "b", "c"]
    assert not worker_scratch(config).listed("load")
    with open_tier_of(config):
        filling.add("3", "d")
        with pytest.raises(StreamingQueryException, match="another process has it open"):
            filling.run(wait_seconds="0")
    assert bodies(config, A) == ["a", "b", "c"]
    assert worker_scratch(config).listed("load")
    filling.run()
    assert not worker_scratch(config).listed("load")
    assert bodies(config, A) == ["a", "b", "c", "d"]
    assert report_of(config).findings == ()
    filling.add("4", "e")
    with pytest.raises(
        StreamingQueryException, match="load_id: a stream is known by its checkpoint"
    ):
        filling.run(load_id="x")


@pytest.fixture(params=["posix", pytest.param("s3", marks=pytest.mark.s3)])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    """An empty tier in a directory, or in a bucket."""
    if request.param == "posix":
        return posix_config(tmp_path)
    endpoint, _ = request.getfixturevalue("moto")
    named: dict[str, Any] = {
        "bucket": f"tier-{uuid.uuid4().hex}",
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key": "testing",
        "secret_key": "testing",
    }
    create_bucket(ObjectStoreSettings(**named))
    return posix_config(tmp_path, provider="s3", path="", **named)


def test_a_batch_is_noted_with_its_messages_and_of_each_stream_only_the_last(
    config: StoreConfig,
) -> None:
    def load(stream_id: str, number: int, first: int) -> None:
        batch = StreamBatch(stream_id=stream_id, number=number)
        part = staged(config, batch.run_id, 0, [rows_of(A, range(first, first + 2))])
        commit_load(config, batch.run_id, [part], batch=batch)

    load("one", 0, 0)
    load("two", 0, 2)
    load("one", 1, 4)
    load("one", 1, 4)
    load("one", 0, 0)
    assert len(bodies(config, A)) == 6
    assert not worker_scratch(config).listed("load")
    with owned_tier(config, threads=1) as tier:
        assert sorted(tier.metadata.notes(STREAMED)) == ["one", "two"]
        tier.metadata.put_note(STREAMED, "one", "?")
    with pytest.raises(MetadataError, match="the note of stream one is damaged"):
        load("one", 2, 6)


# A stream of one tier into another, by spark-submit.
STREAMING = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
# Spark finds a source by itself only where it is installed.
from pyspark_tieredstore import DefaultSource
spark.dataSource.register(DefaultSource)
place, given, taken = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])

stream = spark.readStream.format("tieredstore").options(**given)
rows = stream.option("maxOffsetsPerTrigger", "40").option("split_bytes", "2k").load()
stream = rows.writeStream.format("tieredstore").options(**taken).trigger(availableNow=True)
query = stream.option("checkpointLocation", place + "/checkpoint").start()
query.awaitTermination()
progress = [json.loads(each.json) for each in query.recentProgress]

def where(_):
    import tieredstore
    yield tieredstore.__file__

files = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect()
print(json.dumps([[each["numInputRows"] for each in progress], files]))
"""


@pytest.mark.cluster
def test_a_stream_from_tier_to_tier_runs_from_a_zip_alone(tmp_path: Path) -> None:
    given = WrittenTier(config=posix_config(tmp_path / "given"))
    given.add("orders", 0, 100)
    taken = posix_config(tmp_path / "taken")
    words = [tmp_path, json.dumps(options_of(given.config)), json.dumps(options_of(taken))]
    ran = submitted(STREAMING, words, tmp_path)
    counts, files = json.loads(ran.stdout.splitlines()[-1])
    assert counts == [40, 40, 20]
    assert all(".zip" in file for file in files), files
    assert sorted(bodies(taken, A)) == sorted(bodies(given.config, A))
    assert report_of(taken).findings == ()
