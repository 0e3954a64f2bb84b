"""Filling a tier through Spark, compared with Spark's own Parquet writer and the same rows.

A frame with a body, a key, a tag, a unique key and times, of eight queues, is in Spark's memory. It
is written by `df.write.format("tieredstore")` and by `df.write.parquet`, alternating; sorted by
queue, and with the queues mixed. Messages of 100 bytes and of 1 KB. Prints one table; exits with 1
if a promise is missed:

    python -m bench.spark_load
"""

from __future__ import annotations

import sys
import tempfile
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Final

from bench import _spark_tiers
from bench._timing import Comparison, compare, report
from bench.spark_scan import named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNTS: Final = {100: 1_000_000, 1000: 200_000}
QUEUES: Final = 8
SORTED, MIXED = "sorted by queue", "queues mixed"
PROMISED: Final = {(100, MIXED): 0.3}  # each record is placed separately
ELSE_PROMISED: Final = 0.5
_ROUND: Final = count()


def main() -> int:
    with tempfile.TemporaryDirectory() as name, _spark_tiers.spark(Path(name)) as spark:
        rows: list[Comparison] = []
        for body_bytes, messages in COUNTS.items():
            for order in (SORTED, MIXED):
                frame = cached(spark, messages, body_bytes, is_sorted=order == SORTED)
                what = f"{messages:,} messages of {body_bytes} B, {order}"
                promised = PROMISED.get((body_bytes, order), ELSE_PROMISED)
                rows.append(load(frame, Path(name), what, promised))
                frame.unpersist(blocking=True)
        return report("spark_load", rows)


def cached(spark: SparkSession, messages: int, body_bytes: int, *, is_sorted: bool) -> DataFrame:
    """The rows, in two partitions in memory. Bodies are digits of hashes: Parquet halves them."""
    from pyspark.sql import functions as f

    pieces = [
        f.sha2(f.concat_ws("-", "id", f.lit(piece)), 256) for piece in range(-(-body_bytes // 64))
    ]
    queue = f.floor(f.col("id") * QUEUES / messages) if is_sorted else f.col("id") % QUEUES
    frame = spark.range(0, messages, 1, 2).select(
        f.lit(_spark_tiers.TOPIC).alias("topic"),
        queue.cast("int").alias("queue_id"),
        f.substring(f.concat(*pieces), 1, body_bytes).cast("binary").alias("body"),
        f.array(f.format_string("order-%012d", "id")).alias("keys"),
        f.lit("TagA").alias("tags"),
        f.format_string("7F0000010A2F18B4AAC2%012X", "id").alias("unique_key"),
        f.timestamp_millis(f.lit(_spark_tiers.START_MS) + f.col("id")).alias("store_time"),
    )
    kept = frame.cache()
    assert kept.count() == messages
    return kept


def load(frame: DataFrame, folder: Path, what: str, promised: float) -> Comparison:
    parquet = folder / "parquet"

    def ours() -> None:
        tier = folder / f"tier-{next(_ROUND)}"
        options = named(_spark_tiers.config_of(tier))
        frame.write.format("tieredstore").mode("append").options(**options).save()
        rmtree(tier)

    def plain() -> None:
        frame.write.mode("overwrite").parquet(str(parquet))

    return compare(
        f"{what} (Spark to Parquet)",
        plain=plain,
        ours=ours,
        promised=promised,
        repeats=1,
        turns=3,
    )


if __name__ == "__main__":
    sys.exit(main())
