"""`df.write` and `df.writeStream` with `format("tieredstore")`: one load for a frame, or for each
batch of a stream, into a tier that no broker writes meanwhile.

    | option                          | what                                                     |
    | ------------------------------- | -------------------------------------------------------- |
    | config, tier, provider, …       | the tier, as for a read: see `options`                   |
    | topic                           | for all messages, or for those whose column is null      |
    | queue_id                        | likewise                                                 |
    | load_id                         | a named load is made once: run again, it adds nothing    |
    | index                           | false: the next broker that starts builds the index      |
    | block_bytes                     | bytes of records that a task holds in memory: 16m        |
    | wait_seconds                    | for another writer of the same directory to end: 60      |

Rows load fastest if those of a queue are in one partition, next to each other:
`df.repartition("topic", "queue_id").sortWithinPartitions("topic", "queue_id")`. A search by time
assumes that the messages of a queue are in the order of their store times: sort them so. Messages
older than the retention of their topic are deleted at the broker's next expiry. A tier in a
directory needs that directory on all machines of the cluster.

Each batch of a stream is loaded once: the change of the catalogue that adds its messages notes the
query and the number of the batch, and Spark uses both again when it repeats a batch after a crash.
A query keeps its identity as long as it keeps its checkpoint.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.load import (
    WAIT_SECONDS,
    LoadReport,
    StreamBatch,
    abort_load,
    begin_load,
    commit_load,
)
from tieredstore.jobs.load_records import (
    LoadColumns,
    LoadDefaults,
    LoadRefusedError,
)
from tieredstore.jobs.load_segments import (
    BLOCK_BYTES,
    StagedPart,
    Stager,
    note_parts,
    noted_parts,
)
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.spark.engine import plain_failures
from tieredstore.spark.options import (
    parse_number,
    parse_size,
    parse_truth,
    plain_name,
    split_options,
    store_config,
)
from tieredstore.spark.shipped import Shipped
from tieredstore.spark.tables import check_write_names_tier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RUN: Final = "run_of_load"  # a write with this option only stages: `load` commits
_WRITE_NAMES: Final = ("topic", "queue_id", "load_id", "index", "block_bytes", "wait_seconds")
_CHECKPOINT: Final = "checkpointlocation"  # Spark's own option
_QUERY_ID: Final = "sql.streaming.queryId"  # properties of Spark's tasks
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """All options of a write, checked. Nothing has been opened yet."""

    config: StoreConfig
    topic: str | None = None
    queue_id: int | None = None
    load_id: str | None = None
    index: bool = True
    block_bytes: int = BLOCK_BYTES
    wait_seconds: int = WAIT_SECONDS
    run_id: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        store, texts = split_options(options, known=(*_WRITE_NAMES, _RUN))
        queue_id, load_id = texts.get("queue_id"), texts.get("load_id")
        if load_id is not None and not load_id.strip():  # else all unnamed loads would be one
            raise InvalidConfigError("load_id: it is empty; name the load, or leave it out")
        return cls(
            config=store_config(store),
            topic=texts.get("topic"),
            queue_id=None if queue_id is None else parse_number("queue_id", queue_id),
            load_id=load_id,
            index=parse_truth("index", texts.get("index", "true")),
            block_bytes=parse_size("block_bytes", texts.get("block_bytes", str(BLOCK_BYTES))),
            wait_seconds=parse_number("wait_seconds", texts.get("wait_seconds", str(WAIT_SECONDS))),
            run_id=texts.get(_RUN),
        )


def tier_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TierWriter:
    """The writer of one load, after a check that the tier can be written at all."""
    if overwrite:
        raise InvalidConfigError(
            "mode overwrite: messages of a tier are never replaced; use mode('append')"
        )
    check_write_names_tier(options)
    said = WriteOptions.parse(options)
    columns = _columns(said, schema)
    begin_load(said.config, wait_seconds=said.wait_seconds)
    return TierWriter(said, columns, run_id=said.run_id or uuid.uuid4().hex)


def tier_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> TierStreamWriter:
    """The writer of all batches of a stream, after a check of its options."""
    if overwrite:
        raise InvalidConfigError(
            "output mode complete: messages of a tier are never replaced; use outputMode('append')"
        )
    said = WriteOptions.parse(
        {name: text for name, text in options.items() if plain_name(name) != _CHECKPOINT}
    )
    if said.load_id is not None or said.run_id is not None:
        raise InvalidConfigError("load_id: a stream is known by its checkpoint; leave it out")
    _columns(said, schema)
    return TierStreamWriter(said, schema)


def _columns(said: WriteOptions, schema: StructType) -> LoadColumns:
    defaults = LoadDefaults(
        topic=said.topic, queue_id=said.queue_id, store_time_ms=SystemClock().now_ms()
    )
    return LoadColumns(pa.schema(map(_arrow_field, schema)), defaults)


def _arrow_field(column: StructField) -> pa.Field:
    try:
        return to_arrow_schema(StructType([column]), timezone="UTC").field(0)
    except (TypeError, ValueError) as error:
        kind = column.dataType.simpleString()
        raise LoadRefusedError(
            f"column {column.name}: it is {kind}, not a type that a message has; cast it"
        ) from error


class StagedMessage(WriterCommitMessage):
    """What one task has staged, and, for a stream, its query."""

    def __init__(self, part: StagedPart, query_id: str = "") -> None:
        self.part = part
        self.query_id = query_id


def staged(
    said: WriteOptions, columns: LoadColumns, run_id: str, batches: Iterator[pa.RecordBatch]
) -> StagedPart:
    """Stage the rows of this attempt of a task in the tier's scratch."""
    context = _task()
    stager = Stager(
        said.config,
        worker_provider(said.config),
        columns,
        run_id=run_id,
        partition=context.partitionId(),
        # Also distinguish a task that is retried because its executor was lost.
        attempt=f"{context.taskAttemptId()}-{uuid.uuid4().hex[:8]}",
        now_ms=SystemClock().now_ms(),
        index=said.index and said.config.index_enabled,
        block_bytes=said.block_bytes,
    )
    return stager.staged(batches)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise LoadRefusedError("a load is staged by tasks of Spark")
    return context


class TierWriter(Shipped, DataSourceArrowWriter):
    """Stages on the workers, commits on the driver. A losing attempt leaves only what the commit or
    the next load removes."""

    def __init__(self, options: WriteOptions, columns: LoadColumns, *, run_id: str) -> None:
        self._said = options
        self._columns = columns
        self._run_id = run_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with plain_failures():
            return StagedMessage(staged(self._said, self._columns, self._run_id, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = [message.part for message in messages if isinstance(message, StagedMessage)]
        with plain_failures():
            if self._said.run_id is not None:
                note_parts(self._said.config, self._run_id, parts, SystemClock().now_ms())
                return
            commit_load(
                self._said.config,
                self._run_id,
                parts,
                index=self._said.index,
                load_id=self._said.load_id,
                wait_seconds=self._said.wait_seconds,
            )

    def abort(self, messages: list[Any]) -> None:
        with plain_failures():
            abort_load(self._said.config, self._run_id)


class TierStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """The same for each batch of a stream. Spark tells only tasks the query, so their messages
    bring it to the driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._said = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with plain_failures():
            query_id, number = map(_task().getLocalProperty, (_QUERY_ID, _BATCH_ID))
            if not query_id or not number:
                raise LoadRefusedError("Spark does not name this batch, or its query")
            batch = StreamBatch(stream_id=query_id, number=int(number))
            columns = _columns(self._said, self._schema)  # for each batch, as it takes the time
            return StagedMessage(staged(self._said, columns, batch.run_id, iterator), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        found = [message for message in messages if isinstance(message, StagedMessage)]
        if not found:
            return
        batch = StreamBatch(stream_id=found[0].query_id, number=batchId)
        with plain_failures():
            commit_load(
                self._said.config,
                batch.run_id,
                [message.part for message in found],
                index=self._said.index,
                batch=batch,
                wait_seconds=self._said.wait_seconds,
            )

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """What was staged stays until this batch is made: the tier may be another's."""


def load(
    frame: DataFrame, config: str | os.PathLike[str] | None = None, **options: object
) -> LoadReport:
    """The same as `frame.write.format("tieredstore")` with these options, but workers also do any
    rewriting: no message passes through the driver, whatever the frame's partitions are."""
    from tieredstore.spark.engine import SparkEngine

    texts = {name: str(value) for name, value in options.items()}
    if config is not None:
        texts["config"] = os.path.abspath(config)
    said = WriteOptions.parse(texts)
    run_id = uuid.uuid4().hex
    with plain_failures():
        # This makes the session active in this thread, where a write looks for the format.
        frame.sparkSession.createDataFrame([], "nothing int")
        writer = frame.write.format("tieredstore").options(**texts).option(_RUN, run_id)
        writer.mode("append").save()
        return commit_load(
            said.config,
            run_id,
            noted_parts(said.config, run_id),
            index=said.index,
            load_id=said.load_id,
            engine=SparkEngine(frame.sparkSession),
            wait_seconds=said.wait_seconds,
        )
