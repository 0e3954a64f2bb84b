"""`format("tieredstore")`: a tier as a DataFrame, and the entry to its stream and its sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

import tieredstore
from tieredstore.access.reader import TieredReader
from tieredstore.jobs.scan import (
    ScanItem,
    plan_scan,
    refuse_unknown_topics,
    selected_queues,
)
from tieredstore.jobs.slices import EVER, EVERYTHING, Selection
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError, SegmentNotFoundError, TieredStoreError
from tieredstore.model.values import INT64_MAX, QueueKey
from tieredstore.spark.engine import plain_failures, planning
from tieredstore.spark.options import NEWEST, OLDEST, ReadOptions, Starting
from tieredstore.spark.reading import (
    DataLossError,
    ScanReader,
    partitions_of,
    spark_schema,
    with_schema,
)
from tieredstore.spark.shipped import revived
from tieredstore.spark.stream import RefusedStream, TierStreamReader, refuse_unknown_queues
from tieredstore.spark.tables import options_of_read, options_of_table, with_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class TierDataSource(DataSource):
    """The messages of a tier; see `options` for its options."""

    @classmethod
    def name(cls) -> str:
        return "tieredstore"

    def __reduce__(self) -> tuple[Any, ...]:
        place = str(Path(tieredstore.__file__).parents[1])
        return revived, (place, dict(self.options), tieredstore.__version__)

    def schema(self) -> StructType:
        with plain_failures():
            table = options_of_table(self.options)
            options = ReadOptions.parse(self.options if table is None else table)
            schema = spark_schema(options.scan.columns)
            return schema if table is None else with_options(schema, table)

    def reader(self, schema: StructType) -> DataSourceReader:
        with plain_failures():
            options = self._said(schema)
            kind = PushingTierBatchReader if options.takes_filters else TierBatchReader
            return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            return TierStreamReader(self._said(schema), schema)
        except TieredStoreError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tieredstore.spark.sink import tier_writer

        with plain_failures():
            return tier_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from tieredstore.spark.sink import tier_stream_writer

        with plain_failures():
            return tier_stream_writer(self.options, schema, overwrite)

    def _said(self, schema: StructType) -> ReadOptions:
        return with_schema(ReadOptions.parse(options_of_read(self.options, schema)), schema)


def ranges_of(tier: TieredReader, options: ReadOptions) -> dict[QueueKey, tuple[int, int]]:
    """The range of queue offsets of each queue that `starting` or `ending` of a batch name.

    DataLossError for offsets that the tier lacks, unless such loss is to be ignored.
    """
    starting, ending = options.starting, options.ending
    if isinstance(starting, int) or starting is Starting.LATEST:
        raise InvalidConfigError(
            "starting: a batch begins at the earliest message, at offsets such as"
            ' {"topic": {"0": 23}}, or at the option start_time'
        )
    begins = starting if isinstance(starting, Mapping) else {}
    if not begins and not ending:
        return {}
    queues = selected_queues(tier, options.selection)
    refuse_unknown_queues("starting", begins, queues)
    refuse_unknown_queues("ending", ending, queues)
    found: dict[QueueKey, tuple[int, int]] = {}
    for rows in queues:
        begin, end = begins.get(rows.key, OLDEST), ending.get(rows.key, NEWEST)
        if begin == NEWEST:
            raise InvalidConfigError("starting: a batch that begins at the newest message is empty")
        for offset in {begin, end} - {OLDEST, NEWEST}:
            first = tier.min_offset(*rows.key) or rows.min_offset
            if not first <= offset <= rows.end_offset and options.scan.fails_on_loss:
                raise DataLossError(
                    f"{rows.key.topic}, queue {rows.key.queue_id}: message {offset} is asked for,"
                    f" but the tier has {first} to {rows.end_offset}; set fail_on_data_loss to"
                    " false to read what there is"
                )
        if begin != OLDEST or end != NEWEST:
            found[rows.key] = max(begin, 0), INT64_MAX if end == NEWEST else end
    return found


def reach(config: StoreConfig, items: Sequence[ScanItem]) -> None:
    """Ask the backend once on the driver, so that missing rights are an error of one line."""
    provider = worker_provider(config)
    provider.refresh()  # an earlier answer proves nothing
    for row in [row for item in items[:1] for row in item.rows[:1]]:
        with suppress(SegmentNotFoundError):  # damage is reported by the read
            provider.open(row.path, row.type, row.base_offset).size()


class TierBatchReader(ScanReader, DataSourceReader):
    """Plans on the driver, reads on the workers.

    It takes no filters, whatever Spark's settings say. Spark 4.2 and 4.3 keep one plan for each
    loaded frame, and use it for every later query: a plan narrowed by the filters of one query
    hides rows from all others. A plan narrowed only by the options is right for all of them.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._said = options  # without filters, which may drop named topics or name unknown ones

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with planning(), TieredReader.open(options.config) as tier:
            refuse_unknown_topics(tier, self._said.selection.topics)
            selection = replace(options.selection, ranges=ranges_of(tier, self._said))
            items = plan_scan(
                tier,
                selection,
                split_bytes=options.split_bytes,
                accepts_loss=options.scan.accepts_loss,
            )
            reach(options.config, items)
            return partitions_of(options, items)


class PushingTierBatchReader(TierBatchReader):
    """A reader that takes filters: less is planned, less is read, and single keys are looked up.

    Only for a frame that is used with one condition and in one place. The partitions and the
    function that reads them come from one plan, and a worker does not learn for which query it
    reads: so nothing here can detect that Spark uses the plan of another query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        scan = self._options.scan
        selection = narrowed(scan.selection, filters)
        self._options = replace(self._options, scan=replace(scan, selection=selection))
        return filters  # Spark applies all of them again, so those unknown here count too


def narrowed(selection: Selection, filters: Iterable[Filter]) -> Selection:
    """What is selected and passes all filters, or slightly more."""
    for condition in filters:
        selection = selection.narrowed(_passed_by(condition))
    return selection


def _passed_by(condition: Filter) -> Selection:
    """What passes a condition, or more: everything for a condition that is not known here."""
    column: Sequence[str] = getattr(condition, "attribute", ())
    if len(column) != 1:
        return EVERYTHING
    if isinstance(condition, (EqualTo, EqualNullSafe, In)):
        values = condition.value if isinstance(condition, In) else (condition.value,)
        return _one_of(column[0], [value for value in values if value is not None])
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        return _within(column[0], condition)
    return EVERYTHING


def _one_of(column: str, values: list[Any]) -> Selection:
    if column in ("topic", "key", "unique_key"):
        texts = frozenset(value for value in values if isinstance(value, str))
        if len(texts) < len(set(values)) or not texts:
            return EVERYTHING
        if column == "topic":
            return Selection(topics=texts)
        return Selection(keys=texts) if column == "key" else Selection(unique_keys=texts)
    if not values:
        return EVERYTHING
    if column == "store_time":
        times = [_micros(value) for value in values]
        if any(time is None for time in times):
            return EVERYTHING
        known = [time for time in times if time is not None]
        return Selection(times=(min(known) // 1000, max(known) // 1000 + 1))
    if not all(type(value) is int for value in values):
        return EVERYTHING
    if column == "queue_id":
        return Selection(queue_ids=frozenset(values))
    if column == "queue_offset":
        return Selection(offsets=(min(values), max(values) + 1))
    return EVERYTHING


def _within(column: str, condition: Any) -> Selection:
    is_lower = isinstance(condition, (GreaterThan, GreaterThanOrEqual))
    excludes = isinstance(condition, (GreaterThan, LessThanOrEqual))  # as a half open bound
    if column == "queue_offset" and type(condition.value) is int:
        bound = condition.value + excludes
        return Selection(offsets=(bound, INT64_MAX) if is_lower else (0, bound))
    if column == "store_time":
        micros = _micros(condition.value)
        if micros is None:
            return EVERYTHING
        # Store times are whole milliseconds.
        bound = micros // 1000 + 1 if excludes else -(-micros // 1000)
        return Selection(times=(bound, EVER[1]) if is_lower else (EVER[0], bound))
    return EVERYTHING


def _micros(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo is not None else value.astimezone(UTC)
    return (moment - _EPOCH) // _MICROSECOND
