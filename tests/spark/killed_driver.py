"""A Spark driver that follows its input, one order per line, until it is killed.

Each answer is a file of its own that appears whole: `[true, result]` or `[false, error]`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

# The message of a number. `test_kills.message` says the same.
MESSAGE = (
    "if(id % 5 = 0, 'payments', 'orders') as topic",
    "cast(id % 3 as int) as queue_id",
    "cast(rpad(concat('body-', id, '-'), 200, '.') as binary) as body",
    "array(concat('k', id)) as keys",
    "concat('u', id) as unique_key",
)
PLACE = ("topic", "queue_id", "queue_offset", "body")
PAUSE = threading.Event()  # nobody sets it
SECONDS_MAX = 120.0  # for an executor to come up


class Orders:
    """Each method is the order of that name."""

    def __init__(self, spark: SparkSession, executors: int) -> None:
        self._spark = spark
        self._executors = executors
        self._query: StreamingQuery | None = None

    def executors(self) -> None:
        """Wait until all executors are there: Spark replaces those that were killed."""
        known = self._spark.sparkContext._jsc.sc()
        end = time.monotonic() + SECONDS_MAX
        while known.getExecutorMemoryStatus().size() <= self._executors:
            if time.monotonic() > end:
                raise TimeoutError("the executors do not come")
            PAUSE.wait(0.05)

    def load(self, tier: dict[str, str], load_id: str, first: int, end: int) -> None:
        rows = self._spark.range(first, end, 1, 4).selectExpr(*MESSAGE)
        sink = rows.write.format("tieredstore").options(**tier).mode("append")
        sink.option("load_id", load_id).option("block_bytes", "2k").save()

    def export(self, tier: dict[str, str], out: str) -> None:
        frame = self._spark.read.format("tieredstore").options(**tier, split_bytes="8k").load()
        frame.select(*PLACE).write.mode("overwrite").parquet(out)

    def follow(self, tier: dict[str, str], out: str, checkpoint: str) -> None:
        stream = self._spark.readStream.format("tieredstore").options(**tier, split_bytes="4k")
        rows = stream.option("maxOffsetsPerTrigger", "80").load().select(*PLACE)
        self._run(rows, "parquet", {"path": out, "checkpointLocation": checkpoint})

    def fill(self, tier: dict[str, str], lines: str, checkpoint: str) -> None:
        stream = self._spark.readStream.option("maxFilesPerTrigger", 4).text(lines)
        rows = stream.selectExpr("cast(value as bigint) as id").selectExpr(*MESSAGE)
        more = {"checkpointLocation": checkpoint, "block_bytes": "2k"}
        self._run(rows, "tieredstore", {**tier, **more})

    def _run(self, rows: DataFrame, name: str, options: dict[str, str]) -> None:
        """Start the stream unless it is running, and let it process all available data."""
        if self._query is None or not self._query.isActive:
            stream = rows.writeStream.format(name).options(**options)
            self._query = stream.trigger(processingTime="100 milliseconds").start()
        self._query.processAllAvailable()

    def rows(self, out: str) -> list[list[Any]]:
        """The Parquet rows as Spark reads them: a stream's folder has files that do not count."""
        found = self._spark.read.parquet(out).select(*PLACE).collect()
        return [[row[0], row[1], row[2], bytes(row[3]).decode()] for row in found]

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()


def main() -> None:
    place = Path(sys.argv[1])
    building = SparkSession.builder
    for name, value in json.loads(sys.argv[3]).items():
        building = building.config(name, value)
    spark = building.getOrCreate()
    orders = Orders(spark, int(sys.argv[2]))
    for line in sys.stdin:
        number, name, words = json.loads(line)
        try:
            answer = [True, getattr(orders, name)(**words)]
        except Exception as error:  # noqa: BLE001 - the caller judges the error
            answer = [False, f"{type(error).__name__}: {error}"]
        half = place / f"{number}.half"
        half.write_text(json.dumps(answer))
        half.rename(place / f"{number}.answer")
    os._exit(0)  # the caller is gone


if __name__ == "__main__":
    main()
