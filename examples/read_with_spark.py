"""Read a tier with Spark: what it holds, messages of a time range, and messages with one key.

    python examples/read_with_spark.py --config tier.toml
    python examples/read_with_spark.py --path /tier --metadata catalogue.json --broker broker-a
    spark-submit --py-files tieredstore.zip examples/read_with_spark.py --bucket my-tier

Every option of the source may be given this way; `--topic`, `--key` and `--since` are this
script's own. Nothing is written anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tieredstore.spark.source import TierDataSource

SHOWN = "topic,queue_id,queue_offset,store_time,tags,body"


def main(arguments: Sequence[str]) -> int:
    words = pairs(arguments)
    if not words:
        print(__doc__, file=sys.stderr)
        return 2
    spark = SparkSession.builder.appName("read a tier").getOrCreate()
    spark.dataSource.register(TierDataSource)  # not needed if the package is installed
    show(spark, words)
    spark.stop()
    return 0


def show(spark: SparkSession, words: dict[str, str]) -> None:
    topic, key, since = words.pop("topic", None), words.pop("key", None), words.pop("since", None)
    if topic is not None:
        words["topics"] = topic
    show_queues(load(spark, words, columns="topic,queue_id,store_time,size"))
    # Options, not conditions: what an option rules out is not read at all.
    if since is not None:
        show_messages(load(spark, words, columns=SHOWN, start_time=since))
    if key is not None:
        show_messages(load(spark, words, columns=SHOWN, key=key))


def pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Pairs of `--name value`, as options of the source; none if one lacks its value."""
    if len(arguments) % 2:
        return {}
    names = [name.removeprefix("--").replace("-", "_") for name in arguments[::2]]
    return dict(zip(names, arguments[1::2], strict=True))


def load(spark: SparkSession, words: dict[str, str], **others: str) -> DataFrame:
    """Load only the columns that are used: each one left out saves time."""
    return spark.read.format("tieredstore").options(**words, **others).load()


def show_queues(frame: DataFrame) -> None:
    frame.groupBy("topic", "queue_id").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.min("store_time").alias("oldest"),
        F.max("store_time").alias("newest"),
    ).orderBy("topic", "queue_id").show(100, truncate=False)


def show_messages(frame: DataFrame) -> None:
    frame.withColumn("body", F.col("body").cast("string")).show(20, truncate=40)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
