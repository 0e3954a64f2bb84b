"""Spark starts, its workers import `tieredstore` from the checkout, and batches come back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import tieredstore.codec.java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
TOPICS = ["orders", "payments", "orders", "größe"]


class Slice(InputPartition):
    """The topics that one worker hashes."""

    def __init__(self, topics: list[str]) -> None:
        super().__init__(None)
        self.topics = topics


class HashReader(DataSourceReader):
    """Hashes topics on the workers, and says which process and which file did it."""

    def partitions(self) -> list[InputPartition]:
        return [Slice(TOPICS[:2]), Slice(TOPICS[2:])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from tieredstore.codec import java

        assert isinstance(partition, Slice)
        rows = len(partition.topics)
        yield pa.RecordBatch.from_pydict(
            {
                "topic": partition.topics,
                "hash": pa.array([java.string_hash(t) for t in partition.topics], pa.int32()),
                "process": [os.getpid()] * rows,
                "file": [java.__file__] * rows,
            }
        )


class HashSource(DataSource):
    """A data source as small as one can be."""

    @classmethod
    def name(cls) -> str:
        return "smoke"

    def schema(self) -> str:
        return "topic string, hash int, process long, file string"

    def reader(self, schema: object) -> DataSourceReader:
        return HashReader()


def test_workers_run_the_checkout_and_agree_with_the_driver(spark: SparkSession) -> None:
    spark.dataSource.register(HashSource)
    rows = spark.read.format("smoke").load().collect()
    assert {row.topic: row.hash for row in rows} == {
        topic: tieredstore.codec.java.string_hash(topic) for topic in TOPICS
    }
    assert all(row.process != os.getpid() for row in rows)
    assert {Path(row.file).parents[2] for row in rows} == {ROOT}


def test_spark_listens_on_this_machine_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
