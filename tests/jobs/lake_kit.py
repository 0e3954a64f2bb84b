"""Parquet files as an export stages them, and commits of them, for tables of any format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.jobs.arrow import MESSAGE_COLUMNS
from tieredstore.jobs.export_ledger import (
    ExportTable,
    Ledger,
    Settings,
    StagedFile,
    StagedRange,
    commit_staged,
    range_name,
)
from tieredstore.jobs.export_target import ExportTarget
from tieredstore.model.errors import BackendUnavailableError

DAY: Final = 20_000  # 2024-10-04
DAY_US: Final = 86_400_000_000
KEY: Final = "Cluster/broker-a/orders/0"  # the source of `orders`
SETTINGS: Final[Settings] = {"columns": list(MESSAGE_COLUMNS), "times": None}
SCHEMA: Final = pa.schema([pa.field(name, kind) for name, kind in MESSAGE_COLUMNS.items()])


def rows(topic: str, queue_id: int, first: int, end: int, day: int | None = DAY) -> pa.Table:
    """Messages that fill each column: lists and maps, empty ones too, and nulls."""
    held = [
        {
            "topic": topic,
            "queue_id": queue_id,
            "queue_offset": offset,
            "log_offset": offset * 100,
            "store_time": None if day is None else day * DAY_US + offset * 1000,
            "born_time": None if offset % 3 == 0 else DAY * DAY_US,
            "born_host": "10.0.0.1:4711",
            "store_host": "[2001:db8::1]:4711",
            "flag": 0,
            "sys_flag": 1,
            "tags": None if offset % 2 else "blå",
            "keys": [f"k{n}" for n in range(offset % 3)],
            "unique_key": f"u{offset}",
            "properties": [(f"name{n}", f"value{offset}") for n in range(offset % 2)],
            "body": b"\x00\xff" * (offset % 5),
            "body_crc_ok": True,
            "size": 100,
        }
        for offset in range(first, end)
    ]
    return pa.Table.from_pylist(held, SCHEMA)


def staged(
    target: ExportTarget,
    topic: str,
    first: int,
    end: int,
    *,
    queue_id: int = 0,
    days: Sequence[int | None] = (DAY,),
    without: Sequence[str] = (),
    mark: str = "a",
) -> StagedRange:
    """A range with a file per day, all of it in each; `without` lists the columns in the path."""
    source = f"Cluster/broker-a/{topic}/{queue_id}"
    files = []
    for day in days:
        sink = pa.BufferOutputStream()
        pq.write_table(rows(topic, queue_id, first, end, day).drop_columns(list(without)), sink)
        data = sink.getvalue()
        path = f"data/{range_name(source, first, end)}-{day}-{mark}.parquet"
        target.put(path, data)
        start = None if day is None else day * DAY_US
        files.append(
            StagedFile(
                path=path,
                day=day,
                rows=end - first,
                size=data.size,
                offsets=(first, end - 1),
                times=None if start is None else (start + first * 1000, start + (end - 1) * 1000),
            )
        )
    return StagedRange(source=source, first=first, end=end, files=tuple(files))


TableT = TypeVar("TableT", bound=ExportTable)


def made(table: TableT) -> TableT:
    """Make the table, twice: as by two who both saw that it did not exist."""
    assert not table.exists()
    assert table.read() == Ledger()
    table.make()
    table.make()
    assert table.exists()
    return table


def committed(
    table: ExportTable, *ranges: StagedRange, run: str
) -> tuple[list[StagedRange], Ledger]:
    return commit_staged(table, SETTINGS, ranges, run)


def failing_in(folder: str) -> Callable[[ExportTarget, str], list[str]]:
    """A listing that fails in this folder."""
    inner = ExportTarget.names

    def names(target: ExportTarget, path: str) -> list[str]:
        if path == folder:
            raise BackendUnavailableError(path, "list", "503 slow down")
        return inner(target, path)

    return names


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Begin all the works together; return what each returns or raises."""
    barrier = Barrier(len(works))

    def begin(work: Callable[[], Any]) -> Any:
        barrier.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(begin, work) for work in works]
    return [future.exception() or future.result() for future in futures]


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    found = table.select(list(SCHEMA.names)).to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))
