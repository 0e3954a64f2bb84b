"""`spark.read.format("tieredstore")`: a tier as a DataFrame.

What lives here: `TierDataSource`, the batch reader and its partitions. The options are told in
`options`, the columns in `jobs.message_table` and `jobs.scan`; following a tier that grows is in
`stream`, writing one in `sink`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
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

from tieredstore.access.reader import TieredReader
from tieredstore.jobs.reading.message_table import TIME_TYPE
from tieredstore.jobs.reading.property_columns import KEYS_TYPE, MAP_TYPE
from tieredstore.jobs.reading.scan import SCAN_COLUMNS
from tieredstore.jobs.reading.scan_plan import ScanItem, packed, plan_scan, refuse_unknown_topics
from tieredstore.jobs.worker_parts import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError, SegmentNotFoundError
from tieredstore.spark.options import ReadOptions
from tieredstore.spark.plain_failures import plain_failures
from tieredstore.spark.pushed_filters import narrowed

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceWriter

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


class TierDataSource(DataSource):
    """The messages of a tier; see `options` for what can be said of them."""

    @classmethod
    def name(cls) -> str:
        return "tieredstore"

    def schema(self) -> StructType:
        with plain_failures():
            return spark_schema(ReadOptions.parse(self.options).scan.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        with plain_failures():
            options = with_schema(ReadOptions.parse(self.options), schema)
            kind = PushingTierBatchReader if options.takes_filters else TierBatchReader
            return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from tieredstore.spark.stream import TierStreamReader

        with plain_failures():
            return TierStreamReader(with_schema(ReadOptions.parse(self.options), schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tieredstore.spark.sink import tier_writer

        with plain_failures():
            return tier_writer(self.options, schema, overwrite)


def spark_schema(columns: Iterable[str]) -> StructType:
    """Every column may be null: a message that cannot be read has a row where that is asked for."""
    return StructType([StructField(name, _SPARK_TYPES[SCAN_COLUMNS[name]]) for name in columns])


def with_schema(options: ReadOptions, schema: StructType) -> ReadOptions:
    """Only the columns of the schema are decoded; each must have the type that it has here."""
    for field in schema.fields:
        kind = SCAN_COLUMNS.get(field.name)
        if kind is None:
            raise InvalidConfigError(
                f"schema: there is no column {field.name!r}; there are {', '.join(SCAN_COLUMNS)}"
            )
        wanted = _SPARK_TYPES[kind].simpleString()
        if field.dataType.simpleString() != wanted:
            raise InvalidConfigError(
                f"schema: {field.name} is {wanted}, not {field.dataType.simpleString()}"
            )
    columns = tuple(field.name for field in schema.fields)
    return replace(options, scan=replace(options.scan, columns=columns))


class TierPartition(InputPartition):
    """Pieces of a scan that one task reads, one after the other."""

    def __init__(self, items: Sequence[ScanItem]) -> None:
        super().__init__(None)
        self.items = items


class ScanReader:
    """What both readers do on the workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.arrow_schema = to_arrow_schema(schema, timezone="UTC")

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TierPartition):
            return  # Spark's own, where there is nothing to read
        options = self.options
        with plain_failures():
            for item in partition.items:
                for batch in options.scan.batches(options.config, item):
                    # They differ at most in which values may be null.
                    fits = batch.schema == self.arrow_schema
                    yield batch if fits else batch.cast(self.arrow_schema)


def reach(config: StoreConfig, items: Sequence[ScanItem]) -> None:
    """Ask the backend once, on the driver: who may not read there is told so in one line."""
    provider = worker_provider(config)
    provider.refresh()  # what this process was told earlier proves nothing
    for row in [row for item in items[:1] for row in item.rows[:1]]:
        with suppress(SegmentNotFoundError):  # damage is for those who read it
            provider.open(row.path, row.type, row.base_offset).size()


class TierBatchReader(DataSourceReader):
    """Plans on the driver, reads on the workers.

    It takes no filters, whatever Spark's settings say. Spark 4.2 and 4.3 keep one plan for each
    frame that was loaded, and read every later query by it: a plan that filters have narrowed hides
    rows from all others. A plan that only the options have narrowed is right for all of them.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._scan = ScanReader(options, schema)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with plain_failures(), TieredReader.open(options.config) as tier:
            refuse_unknown_topics(tier, self._named_topics())
            items = plan_scan(tier, options.selection, split_bytes=options.split_bytes)
            reach(options.config, items)
        return [TierPartition(pack) for pack in packed(items, split_bytes=options.split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._scan.batches(partition)

    def _named_topics(self) -> frozenset[str] | None:
        return self._options.selection.topics


class PushingTierBatchReader(TierBatchReader):
    """The same, and takes filters: less is planned, less is read, and single keys are looked up.

    Only for a frame that is used with one condition and in one place. The partitions and the
    function that reads them come from one plan, and a worker does not learn which query it reads
    for: nothing here can see that Spark reads a query by the plan of another.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._schema = schema
        self._topics = options.selection.topics

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        scan = self._options.scan
        selection = narrowed(scan.selection, filters)
        self._options = replace(self._options, scan=replace(scan, selection=selection))
        self._scan = ScanReader(self._options, self._schema)
        return filters  # Spark looks again: what is not known here is then right all the same

    def _named_topics(self) -> frozenset[str] | None:
        return self._topics  # that a filter names an unknown one is no mistake
