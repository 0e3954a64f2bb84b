"""One range of a queue made into Parquet files, one for each day.

What lives here: `ExportItem`, `write_range`, and the names of folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tieredstore.driver.metadata import Json
from tieredstore.jobs.exporting.export_ledger import put_done, range_name
from tieredstore.jobs.exporting.export_target import ExportTarget
from tieredstore.jobs.reading.scan import DAMAGE, Scan
from tieredstore.jobs.reading.slices import Slice
from tieredstore.model.config import StoreConfig

NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Hive writes null: a store time that is no day, or a message that cannot be read."""
ROW_GROUP_ROWS: Final = 131_072
DAMAGED_SHOWN: Final = 20  # of one range
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC).date()
_DAY_US: Final = 86_400_000_000
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportItem:
    """A range of a queue that has one name for ever, and what of it there still is."""

    source: str
    first_offset: int
    end_offset: int
    slices: tuple[Slice, ...]

    @property
    def name(self) -> str:
        return range_name(self.source, self.first_offset, self.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """What became of a range; `damaged` is told as far as DAMAGED_SHOWN."""

    messages: int
    files: int
    written_bytes: int
    damaged_count: int = 0
    damaged: tuple[tuple[str, int, int, str], ...] = ()


def write_range(
    config: StoreConfig, item: ExportItem, scan: Scan, columns: Sequence[str], target: ExportTarget
) -> ExportRow:
    """All files of the range, then its mark. Done twice, the second time replaces the first.

    It is held in memory: a range is as large as a piece of work.
    """
    days: dict[int | None, list[pa.RecordBatch]] = {}
    damaged: list[tuple[str, int, int, str]] = []
    damaged_count = 0
    for part in item.slices:
        for batch in scan.batches(config, part):
            if DAMAGE in batch.schema.names:
                told = batch.filter(pc.is_valid(batch.column(DAMAGE)))
                damaged_count += len(told)
                damaged += _told(told, DAMAGED_SHOWN - len(damaged))
                if DAMAGE not in columns:
                    batch = batch.filter(pc.is_null(batch.column(DAMAGE)))  # noqa: PLW2901
            for day, rows in _by_day(batch):
                days.setdefault(day, []).append(rows.select(list(columns)))
    files: list[Json] = []
    messages = written = 0
    for day, batches in sorted(days.items(), key=lambda each: (each[0] is None, each[0] or 0)):
        path = f"{folder(_topic_of(item.source), day)}/{item.name}.parquet"
        data = _parquet(batches)
        target.put(path, data)
        rows = sum(map(len, batches))
        files.append({"path": path, "rows": rows, "bytes": data.size})
        messages += rows
        written += data.size
    facts: dict[str, Json] = {
        "source": item.source,
        "first": item.first_offset,
        "end": item.end_offset,
        "rows": messages,
        "damaged": damaged_count,
        "files": files,
    }
    put_done(target, item.name, facts)
    return ExportRow(
        messages=messages,
        files=len(files),
        written_bytes=written,
        damaged_count=damaged_count,
        damaged=tuple(damaged),
    )


def folder(topic: str, day: int | None) -> str:
    """`topic=…/day=…`; days are counted from 1970."""
    name = NO_DAY if day is None else f"{_EPOCH + timedelta(days=day)}"
    return f"topic={escaped(topic)}/day={name}"


def escaped(text: str) -> str:
    """As Hive and Spark do: what a path cannot have, or would mean something else in it."""
    return "".join(f"%{ord(each):02X}" if each in _ESCAPED or each < " " else each for each in text)


def _topic_of(source: str) -> str:
    return source.split("/")[2]


def _by_day(batch: pa.RecordBatch) -> list[tuple[int | None, pa.RecordBatch]]:
    times = batch.column("store_time")
    known = times.is_valid().to_numpy(zero_copy_only=False)
    days = times.cast(pa.int64()).fill_null(0).to_numpy() // _DAY_US
    if known.all() and len(days) and days.min() == days.max():
        return [(int(days[0]), batch)]
    parts: list[tuple[int | None, pa.RecordBatch]] = [
        (int(day), batch.filter(pa.array(known & (days == day)))) for day in np.unique(days[known])
    ]
    if not known.all():
        parts.append((None, batch.filter(pa.array(~known))))
    return parts


def _parquet(batches: list[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_batches(batches)
    pq.write_table(table, sink, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    return sink.getvalue()


def _told(batch: pa.RecordBatch, count: int) -> list[tuple[str, int, int, str]]:
    rows = batch.slice(0, max(0, count))
    names = ("topic", "queue_id", "queue_offset", DAMAGE)
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
