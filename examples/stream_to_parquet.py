"""Follow a tier with Spark and keep its messages as Parquet, by topic and day.

    python examples/stream_to_parquet.py --out /lake/messages --config tier.toml
    PYTHONPATH=tieredstore.zip spark-submit --py-files tieredstore.zip \\
        examples/stream_to_parquet.py --out s3a://lake/messages --bucket my-tier

Reads everything that is there and ends; the next run continues where it stopped, and every message
is in the result once. With `--every SECONDS` it keeps running and looks again. Every option of the
source may be given too. PYTHONPATH is for the process on the driver that plans a stream: Spark 4.3
does not give it what `--py-files` names. If the package is installed neither is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tieredstore.spark.source import TierDataSource


def main(arguments: Sequence[str]) -> int:
    words = pairs(arguments)
    if "out" not in words or not words.keys() - {"out", "every"}:
        print(__doc__, file=sys.stderr)
        return 2
    spark = SparkSession.builder.appName("stream a tier to Parquet").getOrCreate()
    spark.dataSource.register(TierDataSource)  # not needed if the package is installed
    follow(spark, words)
    spark.stop()
    return 0


def follow(spark: SparkSession, words: dict[str, str]) -> None:
    out, every = words.pop("out"), words.pop("every", None)
    messages = spark.readStream.format("tieredstore").options(**words).load()
    writer = (
        messages.withColumn("day", F.to_date("store_time"))
        .writeStream.format("parquet")
        .partitionBy("topic", "day")
        .option("checkpointLocation", f"{out.rstrip('/')}-checkpoint")
    )
    if every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{every} seconds")
    writer.start(out).awaitTermination()


def pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Pairs of `--name value`, as options of the source; none if one lacks its value."""
    if len(arguments) % 2:
        return {}
    names = [name.removeprefix("--").replace("-", "_") for name in arguments[::2]]
    return dict(zip(names, arguments[1::2], strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
