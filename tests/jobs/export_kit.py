"""Reading an export as anybody would, and a tier beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tests.jobs.verify_kit import run_inline
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.job import JobReport
from tieredstore.model.config import StoreConfig

Message = tuple[str, int, int, bytes]
"""Topic, queue id, queue offset and body."""


def exported(config: StoreConfig, target: Path | str, **others: Any) -> JobReport:
    """In one thread, a few ranges for each queue."""
    facts = {"config": config, "target": str(target), "split_bytes": 20_000, **others}
    return run_inline(ExportJob(**facts))


def table(target: Path | str) -> pa.Table:
    """What a reader sees that only lists the folders."""
    found: pa.Table = ds.dataset(target, format="parquet", partitioning="hive").to_table()
    return found


def messages(target: Path | str) -> Counter[Message]:
    rows = table(target).select(["topic", "queue_id", "queue_offset", "body"])
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def tier_messages(config: StoreConfig) -> Counter[Message]:
    found: Counter[Message] = Counter()
    with TieredReader(config) as reader:
        for key, run in reader.runs():
            for row in range(len(run)):
                body = decode_message(run.record(row)).body
                found[key.topic, key.queue_id, run.first_offset + row, body] += 1
    return found
