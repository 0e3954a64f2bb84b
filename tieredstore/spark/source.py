"""`spark.read` and `spark.readStream` with `format("tieredstore")`: a tier as a DataFrame.

A stream keeps the offsets up to which it has read each queue as JSON in its checkpoint:

    {"<topic>": {"<queue id>": next queue offset, "topic_id": number of the topic in the catalogue}}

A catalogue never gives the number of a topic twice, so another number means another topic of the
same name. Checkpoints of older versions have no numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
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
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
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
from tieredstore.jobs.arrow import KEYS_TYPE, MAP_TYPE, TIME_TYPE
from tieredstore.jobs.packs import packed, read_packed
from tieredstore.jobs.scan import (
    SCAN_COLUMNS,
    ScanItem,
    plan_scan,
    refuse_unknown_topics,
    selected_queues,
)
from tieredstore.jobs.slices import (
    EVER,
    EVERYTHING,
    QueueRows,
    Selection,
    plan_slices,
    trimmed,
)
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError, SegmentNotFoundError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, QueueKey
from tieredstore.spark.engine import plain_failures
from tieredstore.spark.options import ReadOptions, Starting
from tieredstore.spark.tables import options_of_read, options_of_table, with_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceWriter

log = log_of(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
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
_TOPIC_ID: Final = "topic_id"


class TierDataSource(DataSource):
    """The messages of a tier; see `options` for what can be said of them."""

    @classmethod
    def name(cls) -> str:
        return "tieredstore"

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
        with plain_failures():
            return TierStreamReader(self._said(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tieredstore.spark.sink import tier_writer

        with plain_failures():
            return tier_writer(self.options, schema, overwrite)

    def _said(self, schema: StructType) -> ReadOptions:
        return with_schema(ReadOptions.parse(options_of_read(self.options, schema)), schema)


def spark_schema(columns: Iterable[str]) -> StructType:
    """Every column may be null: a message that cannot be read has a row where that is asked for."""
    return StructType([StructField(name, _SPARK_TYPES[SCAN_COLUMNS[name]]) for name in columns])


def with_schema(options: ReadOptions, schema: StructType) -> ReadOptions:
    """Only the columns of the schema are decoded; each must have the type that it has here."""
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
    return replace(options, scan=replace(options.scan, columns=columns))


class TierPartition(InputPartition):
    """Pieces of a scan that one task reads: fetched together, and given one after the other."""

    def __init__(self, items: Sequence[ScanItem]) -> None:
        super().__init__(None)
        self.items = items


class ScanReader:
    """What both readers do on the workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._arrow_schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, TierPartition):
            return  # Spark's own, where there is nothing to read
        options = self._options
        with plain_failures():
            for item, provider in read_packed(options.config, partition.items):
                for batch in options.scan.batches(options.config, item, provider=provider):
                    # They differ at most in which values may be null.
                    fits = batch.schema == self._arrow_schema
                    yield batch if fits else batch.cast(self._arrow_schema)


def partitions_of(options: ReadOptions, items: Iterable[ScanItem]) -> list[InputPartition]:
    """Of about `split_bytes` each: never one for each of many small queues."""
    provider = worker_provider(options.config)
    packs = packed(items, split_bytes=options.split_bytes, provider=provider)
    return [TierPartition(pack) for pack in packs]


def reach(config: StoreConfig, items: Sequence[ScanItem]) -> None:
    """Ask the backend once, on the driver: missing rights to read end in one line."""
    provider = worker_provider(config)
    provider.refresh()  # an earlier answer proves nothing
    for row in [row for item in items[:1] for row in item.rows[:1]]:
        with suppress(SegmentNotFoundError):  # damage is for the read to find
            provider.open(row.path, row.type, row.base_offset).size()


class TierBatchReader(ScanReader, DataSourceReader):
    """Plans on the driver, reads on the workers.

    It takes no filters, whatever Spark's settings say. Spark 4.2 and 4.3 keep one plan for each
    frame that was loaded, and read every later query by it: a plan that filters have narrowed hides
    rows from all others. A plan that only the options have narrowed is right for all of them.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._topics = options.selection.topics  # a filter may name unknown ones, options may not

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with plain_failures(), TieredReader.open(options.config) as tier:
            refuse_unknown_topics(tier, self._topics)
            items = plan_scan(tier, options.selection, split_bytes=options.split_bytes)
            reach(options.config, items)
            return partitions_of(options, items)


class PushingTierBatchReader(TierBatchReader):
    """The same, and takes filters: less is planned, less is read, and single keys are looked up.

    Only for a frame that is used with one condition and in one place. The partitions and the
    function that reads them come from one plan, and a worker does not learn which query it reads
    for: nothing here can see that Spark reads a query by the plan of another.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        scan = self._options.scan
        selection = narrowed(scan.selection, filters)
        self._options = replace(self._options, scan=replace(scan, selection=selection))
        return filters  # Spark looks again: what is not known here is then right all the same


def narrowed(selection: Selection, filters: Iterable[Filter]) -> Selection:
    """What is selected and passes all filters, or a bit more."""
    for condition in filters:
        selection = selection.narrowed(_passed_by(condition))
    return selection


def _passed_by(condition: Filter) -> Selection:
    """What passes a condition, or more: everything, where it is not known here."""
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


class DataLossError(TieredStoreError):
    """Messages that the stream has not read are not there any more."""


class TierStreamReader(ScanReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows all queues that are selected; offsets are the whole state, and Spark keeps them.

    * A batch is the messages between two offsets: read again after a restart, it is the same.
    * Queues and topics that appear later are read from their beginning.
    * What expired before it was read is an error, or with `fail_on_data_loss` false passed over.
    * So is a topic that was deleted and made again: its offsets begin anew, and those of the
      checkpoint would pass over its messages. With `fail_on_data_loss` false it is read from its
      beginning.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._tier: TieredReader | None = None
        # Of the trigger AvailableNow: nothing behind these offsets is read.
        self._target: dict[QueueKey, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tier": None}  # workers have no catalogue

    # Where to begin and how far to go

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        with plain_failures():
            starting = self._options.starting
            tier, queues = self._looked()
            found: dict[QueueKey, int] = {}
            for rows in queues:
                if starting is Starting.EARLIEST:
                    found[rows.key] = self._first(tier, rows)
                elif starting is Starting.LATEST:
                    found[rows.key] = rows.end_offset
                else:
                    offset = tier.offset_by_time(*rows.key, int(starting))
                    found[rows.key] = rows.end_offset if offset is None else offset
            return to_json(StreamOffsets(offsets=found, topic_ids=self._topic_ids(tier)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, dict[str, int]]:
        with plain_failures():
            begun = from_json(start)
            tier, queues = self._looked()
            numbers = self._topic_ids(tier)
            begun = self._without_remade(begun, begun.made_again(numbers))
            backlogs = {rows.key: self._backlog(tier, rows, begun) for rows in queues}
            count_max, bytes_max = self._limits(limit)
            ends = advanced(backlogs, count_max=count_max, bytes_max=bytes_max)
            return to_json(
                StreamOffsets(
                    offsets={**begun.offsets, **ends}, topic_ids={**begun.topic_ids, **numbers}
                )
            )

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        with plain_failures():
            tier, queues = self._looked()
            ends = {rows.key: rows.end_offset for rows in queues}
            return to_json(StreamOffsets(offsets=ends, topic_ids=self._topic_ids(tier)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with plain_failures():
            _, queues = self._looked()
            self._target = {rows.key: rows.end_offset for rows in queues}

    # Reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with plain_failures():
            tier, queues = self._looked()
            begun, ends = self._of_one_life(from_json(start), from_json(end), self._topic_ids(tier))
            known = {rows.key: rows for rows in queues}
            bounds = {
                key: self._bounds(tier, known.get(key), key, begun.offsets.get(key), stop)
                for key, stop in ends.offsets.items()
            }
            low, high = self._options.selection.offsets
            slices = plan_slices(
                [known[key] for key in sorted(bounds) if key in known],
                split_bytes=self._options.split_bytes,
                bounds=lambda rows: (max(bounds[rows.key][0], low), min(bounds[rows.key][1], high)),
            )
            return partitions_of(self._options, trimmed(self._options.config, slices))

    def stop(self) -> None:
        tier, self._tier = self._tier, None
        if tier is not None:
            tier.close()

    # Parts

    def _looked(self) -> tuple[TieredReader, list[QueueRows]]:
        """The tier as it is now, and its queues that are wanted."""
        selection = self._options.selection
        if self._tier is None:
            self._tier = TieredReader.open(self._options.config)
            refuse_unknown_topics(self._tier, selection.topics)
        else:
            self._tier.refresh()
        return self._tier, selected_queues(self._tier, selection)

    def _topic_ids(self, tier: TieredReader) -> dict[str, int]:
        """The numbers of the topics that are wanted.

        None at all where the catalogue is made from the bytes each time it is opened: it then gives
        new numbers to topics that the key index does not know.
        """
        if tier.catalogue.source == "rebuild":
            return {}
        wanted = replace(self._options.selection, queue_ids=None)
        return {
            row.topic: row.topic_id for row in tier.topics() if wanted.wants(QueueKey(row.topic, 0))
        }

    def _first(self, tier: TieredReader, rows: QueueRows) -> int:
        return tier.min_offset(*rows.key) or rows.min_offset

    def _backlog(self, tier: TieredReader, rows: QueueRows, begun: StreamOffsets) -> Backlog:
        start = begun.offsets.get(rows.key)
        end = rows.end_offset
        if self._target is not None:
            end = min(end, self._target.get(rows.key, 0))
        if start is None or start > rows.end_offset or start < rows.min_offset:
            start = self._restarted(rows.key, start, self._first(tier, rows), rows.end_offset)
        bytes_each = rows.log_bytes / rows.message_count if rows.message_count else 1.0
        return Backlog(start=start, end=max(start, end), bytes_each=bytes_each)

    def _bounds(
        self,
        tier: TieredReader,
        rows: QueueRows | None,
        key: QueueKey,
        start: int | None,
        end: int,
    ) -> tuple[int, int]:
        """The queue offsets of one queue that this batch has."""
        if start == end:
            return end, end
        first = 0 if rows is None else self._first(tier, rows)
        stop = 0 if rows is None else rows.end_offset
        if start is None:
            start = min(first, end)
        if start < first or start > end or end > stop:
            start = self._restarted(key, start, first, stop)
        return start, end

    def _of_one_life(
        self, begun: StreamOffsets, ends: StreamOffsets, numbers: dict[str, int]
    ) -> tuple[StreamOffsets, StreamOffsets]:
        """Both ends of a batch without what is of topics that were made again meanwhile.

        One that was made again after the batch was planned has nothing of the batch any more; the
        next batch begins it. One that was made again before is in the batch from its beginning.
        """
        late = {
            topic: both
            for topic, both in ends.made_again(numbers).items()
            if any(
                begun.offsets.get(key) != end
                for key, end in ends.offsets.items()
                if key.topic == topic
            )
        }
        ends = self._without_remade(ends, late)
        return self._without_remade(begun, begun.made_again(ends.topic_ids)), ends

    def _without_remade(
        self, offsets: StreamOffsets, remade: Mapping[str, tuple[int, int]]
    ) -> StreamOffsets:
        for topic, (then, now) in remade.items():
            self._lose(
                f"{topic}: the topic was deleted and made again: it was number {then} and is"
                f" number {now}; what the stream had not read of the first one is gone",
                "to read the new one from its beginning",
            )
        return offsets.without(remade)

    def _lose(self, lost: str, instead: str) -> None:
        if self._options.scan.fails_on_loss:
            raise DataLossError(f"{lost}; set fail_on_data_loss to false {instead}")
        log.warning("%s", lost)

    def _restarted(self, key: QueueKey, start: int | None, first: int, end: int) -> int:
        """Where to go on in a queue that has not what comes next."""
        if start is None:
            return first
        lost = (
            f"{key.topic}, queue {key.queue_id}: the stream goes on at message {start}, but the"
            f" tier has {first} to {end}; what lies between has expired or was deleted"
        )
        self._lose(lost, "to go on without it")
        return first

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Messages and bytes: what Spark says, and of the options what it does not."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        count_max, bytes_max = self._options.max_messages, self._options.max_bytes
        if isinstance(limit, ReadMaxRows):
            count_max = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            bytes_max = limit.max_bytes
        return count_max, bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The queue offset that comes next in each queue, and the number of each topic if known."""

    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    topic_ids: Mapping[str, int] = field(default_factory=dict)

    def made_again(self, now: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Topics that have another number now: the one they had and the one they have."""
        return {
            topic: (number, now[topic])
            for topic, number in sorted(self.topic_ids.items())
            if topic in now and now[topic] != number
        }

    def without(self, topics: Collection[str]) -> StreamOffsets:
        return StreamOffsets(
            offsets={key: at for key, at in self.offsets.items() if key.topic not in topics},
            topic_ids={name: at for name, at in self.topic_ids.items() if name not in topics},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a queue has that was not read: from `start` on up to `end`, of messages of this size."""

    start: int
    end: int
    bytes_each: float

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)


def to_json(offsets: StreamOffsets) -> dict[str, dict[str, int]]:
    made: dict[str, dict[str, int]] = {}
    for key, offset in sorted(offsets.offsets.items()):
        made.setdefault(key.topic, {})[str(key.queue_id)] = offset
    for topic, queues in made.items():
        if topic in offsets.topic_ids:
            queues[_TOPIC_ID] = offsets.topic_ids[topic]
    return made


def from_json(document: object) -> StreamOffsets:
    """Raises InvalidConfigError for what is no offset of ours: another source's checkpoint."""
    offsets: dict[QueueKey, int] = {}
    topic_ids: dict[str, int] = {}
    if not isinstance(document, dict):
        raise _no_offset(document)
    for topic, queues in document.items():
        if not isinstance(queues, dict):
            raise _no_offset(document)
        for name, number in queues.items():
            if type(number) is not int:
                raise _no_offset(document)
            if name == _TOPIC_ID:
                topic_ids[topic] = number
            elif name.isascii() and name.isdigit():
                offsets[QueueKey(topic, int(name))] = number
            else:
                raise _no_offset(document)
    return StreamOffsets(offsets=offsets, topic_ids=topic_ids)


def _no_offset(document: object) -> InvalidConfigError:
    return InvalidConfigError(
        f"checkpoint: {str(document)[:60]!r} is no offset of a tieredstore stream"
    )


def advanced(
    backlogs: Mapping[QueueKey, Backlog], *, count_max: int | None, bytes_max: int | None
) -> dict[QueueKey, int]:
    """Where each queue is read up to next, with at most so many messages and about so many bytes.

    A limit is shared out by what waits in each queue. At least one message is read where one
    waits, however large it is, and a queue that gets nothing comes first as its backlog grows.
    """
    counts = {key: backlog.count for key, backlog in backlogs.items()}
    if bytes_max is not None:
        costs = {key: max(1.0, backlog.bytes_each) for key, backlog in backlogs.items()}
        total = sum(counts[key] * costs[key] for key in counts)
        if total > bytes_max:
            within = {key: int(counts[key] * bytes_max / total) for key in counts}
            if not any(within.values()):
                within[max(counts, key=lambda key: counts[key])] = 1
            counts = within
    if count_max is not None:
        counts = _shared(counts, max(1, count_max))
    return {key: backlogs[key].start + counts[key] for key in backlogs}


def _shared(counts: Mapping[QueueKey, int], limit: int) -> dict[QueueKey, int]:
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    shares = {key: count * limit // total for key, count in counts.items()}
    left = limit - sum(shares.values())
    # First those that got nothing, and of these the ones where most waits.
    hungry = sorted(counts, key=lambda key: (shares[key] > 0, -counts[key], key))
    for key in hungry:
        if not left:
            break
        if shares[key] < counts[key]:
            shares[key] += 1
            left -= 1
    return shares
