"""Reading a tier through Spark, as ratios to what Spark itself can accept in the same run.

Messages of 100 bytes and of 1 KB: a scan into nothing, bodies checked, compared with a bare Arrow
source, which reads the same files and yields prepared batches of the same columns. One key of ten
million messages, by option: the bytes that were read from the tier. Prints one table; exits with 1
if a promise is missed:

    python -m bench.spark_scan
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from bench import _spark_tiers
from bench._timing import Comparison, compare, report
from tieredstore.access.reader import TieredReader
from tieredstore.codec.columns import RecordFields
from tieredstore.jobs.arrow import MESSAGE_COLUMNS, MessageTable
from tieredstore.jobs.scan import plan_scan
from tieredstore.jobs.slices import EVERYTHING, Slice, SliceReader
from tieredstore.model.config import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOUR: Final = ("topic", "queue_offset", "store_time", "body")
COUNTS: Final = {100: 2_000_000, 1000: 600_000}
BATCH_ROWS: Final = 10_000
KEYED_MESSAGES: Final = 10_000_000
KEY_BYTES_MAX: Final = 100_000
PROMISED: Final = {"four columns": 0.7, "all columns": 0.5}


def main() -> int:
    with tempfile.TemporaryDirectory() as name, _spark_tiers.spark(Path(name)) as spark:
        from bench._spark_sources import PreparedSource

        spark.dataSource.register(PreparedSource)
        folder = Path(name)
        rows: list[Comparison] = []
        for body_bytes, count in COUNTS.items():
            config = _spark_tiers.written(folder / str(body_bytes), count, body_bytes=body_bytes)
            rows += scans(spark, folder, config, body_bytes, count)
        code = report("spark_scan", rows)
        return max(code, key_lookup(spark, folder / "keyed"))


def scans(
    spark: SparkSession, folder: Path, config: StoreConfig, body_bytes: int, count: int
) -> list[Comparison]:
    found: list[Comparison] = []
    for what, columns in (("four columns", FOUR), ("all columns", tuple(MESSAGE_COLUMNS))):
        file = prepared(folder, config, columns)
        ours = spark.read.format("tieredstore").options(**named(config), columns=",".join(columns))
        schema = ours.load().schema
        bare = spark.read.format("prepared").schema(schema)
        bare.options(file=str(file), rows=str(count), folder=config.path)
        found.append(
            compare(
                f"{count:,} messages of {body_bytes} B, {what} (bare Arrow)",
                plain=lambda bare=bare: drain(bare.load()),  # type: ignore[misc]
                ours=lambda ours=ours: drain(ours.load()),  # type: ignore[misc]
                promised=PROMISED[what],
                repeats=1,
                turns=3,
            )
        )
    return found


def drain(frame: object) -> None:
    frame.write.format("noop").mode("overwrite").save()  # type: ignore[attr-defined]


def named(config: StoreConfig) -> dict[str, str]:
    return {
        "path": config.path,
        "store_path": config.store_path,
        "cluster": config.cluster_name,
        "broker": config.broker_name,
    }


def prepared(folder: Path, config: StoreConfig, columns: tuple[str, ...]) -> Path:
    """One batch of the tier's own messages in a file."""
    with TieredReader.open(config) as tier:
        item = plan_scan(tier, EVERYTHING)[0]
    assert isinstance(item, Slice)
    fields = next(SliceReader(config, item, run_count=BATCH_ROWS).fields())
    assert isinstance(fields, RecordFields)
    batch = MessageTable(columns).batch(item.key, fields, np.arange(len(fields)))
    file = folder / "prepared.arrow"
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(batch)
    return file


def key_lookup(spark: SparkSession, folder: Path) -> int:
    """Measure how many bytes one key takes; returns the exit code."""
    from bench._spark_sources import READS

    config = _spark_tiers.written(folder, KEYED_MESSAGES, body_bytes=20, has_index=True)
    options = {**named(config), "provider": "bench._spark_sources:CountedPosix"}
    key = _spark_tiers.key_of(KEYED_MESSAGES * 2 // 3)
    reader = spark.read.format("tieredstore").options(**options)
    frame = reader.options(columns="key,topic,queue_offset,body", key=key).load()
    started = time.perf_counter()
    found = frame.collect()
    spent = time.perf_counter() - started
    assert [row.queue_offset for row in found] == [KEYED_MESSAGES * 2 // 3]
    reads = [line.split() for line in (folder / READS).read_text().splitlines()]
    total = sum(int(read[-1]) for read in reads)
    verdict = "" if total < KEY_BYTES_MAX else "  MISSED"
    print(
        f"one key of {KEYED_MESSAGES:,} messages, by option: {len(reads)} reads of {total:,}"
        f" bytes together, {spent:.1f} s; promised < {KEY_BYTES_MAX:,}{verdict}"
    )
    return 0 if total < KEY_BYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
