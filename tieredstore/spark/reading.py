"""Common parts of batches and streams: columns, partitions, and reading a partition on a worker."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tieredstore.jobs.arrow import KEYS_TYPE, MAP_TYPE, TIME_TYPE
from tieredstore.jobs.packs import packed, read_packed
from tieredstore.jobs.scan import SCAN_COLUMNS, ScanItem
from tieredstore.jobs.slices import is_gone
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.errors import InvalidConfigError, SegmentError, TieredStoreError
from tieredstore.spark.engine import plain_failures
from tieredstore.spark.options import ReadOptions
from tieredstore.spark.shipped import Shipped

LIMITED_RUN_MIN: Final = 64  # messages per read if there is a limit
_SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    TIME_TYPE: TimestampType(),
    KEYS_TYPE: ArrayType(StringType()),
    MAP_TYPE: MapType(StringType(), StringType()),
}


class DataLossError(TieredStoreError):
    """Messages that were to be read are lost."""


def spark_schema(columns: Iterable[str]) -> StructType:
    """Every column may be null: on request, a message that cannot be read has a row."""
    return StructType([StructField(name, _SPARK_TYPES[SCAN_COLUMNS[name]]) for name in columns])


def with_schema(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The options with the columns of this schema, the only ones decoded. Types must match."""
    for column in schema.fields:
        kind = SCAN_COLUMNS.get(column.name)
        if kind is None:
            raise InvalidConfigError(
                f"schema: there is no column {column.name!r}; there are {', '.join(SCAN_COLUMNS)}"
            )
        wanted = _SPARK_TYPES[kind].simpleString()
        if column.dataType.simpleString() != wanted:
            raise InvalidConfigError(
                f"schema: {column.name} is {wanted}, not {column.dataType.simpleString()}"
            )
    columns = tuple(column.name for column in schema.fields)
    if not columns or len(set(columns)) < len(columns):
        # Without columns, an Arrow batch has no rows.
        raise InvalidConfigError("schema: name at least one column, and none twice")
    return replace(options, scan=replace(options.scan, columns=columns))


class TierPartition(InputPartition):
    """Work items of a scan for one task: fetched together, and returned one after the other."""

    def __init__(self, items: Sequence[ScanItem]) -> None:
        super().__init__(None)
        self.items = items


class ScanReader(Shipped):
    """The part of both readers that runs on workers. They get it before any partition."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._arrow_schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, TierPartition):
            return  # Spark's own, if there is nothing to read
        _spare_the_collector()
        with plain_failures():
            for batch in self._batches(partition.items):
                # The schemas differ at most in which values may be null.
                fits = batch.schema == self._arrow_schema
                yield batch if fits else self._without_nulls(batch)

    def _without_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the schema that was asked for, which has NOT NULL columns."""
        for column, values in zip(self._arrow_schema, batch.columns, strict=True):
            if values.null_count and not column.nullable:
                raise InvalidConfigError(
                    f"schema: {column.name} is NOT NULL there, and a message has none"
                )
        return batch.cast(self._arrow_schema)

    def _batches(self, items: Sequence[ScanItem]) -> Iterator[pa.RecordBatch]:
        config, limit = self._options.config, self._options.limit
        if limit is None:
            for item, provider in read_packed(config, items):
                yield from self._of(item, provider=provider)
            return
        left = limit
        for item in items:  # one at a time: the first few may be enough
            for batch in self._of(item, run_count=max(limit, LIMITED_RUN_MIN)):
                yield batch.slice(0, left)
                left -= len(batch)
                if left <= 0:
                    return

    def _of(self, item: ScanItem, **how: Any) -> Iterator[pa.RecordBatch]:
        """The batches of a work item. DataLossError, not the damage that it looks like, if a part
        of it is gone since the plan."""
        config, scan = self._options.config, self._options.scan
        try:
            yield from scan.batches(config, item, **how)
        except SegmentError as error:
            is_loss = scan.fails_on_loss and is_gone(
                config, item.rows, from_copy=item.from_copy, in_part=True
            )
            if not is_loss:
                raise
            raise DataLossError(
                f"{error}; a part of this queue expired or was deleted after the read was planned:"
                " plan it again, or set fail_on_data_loss to false to read what there is"
            ) from error


@cache
def _spare_the_collector() -> None:
    """Exclude what this process has loaded from garbage collection. A Spark worker collects after
    each task, and modules live as long as the worker."""
    gc.freeze()


def partitions_of(options: ReadOptions, items: Iterable[ScanItem]) -> list[InputPartition]:
    """Partitions of about `split_bytes` each: many small queues share one."""
    if options.limit is not None:
        every = tuple(items)
        return [TierPartition(every)] if every else []
    provider = worker_provider(options.config)
    packs = packed(items, split_bytes=options.split_bytes, provider=provider)
    return [TierPartition(pack) for pack in packs]
