"""`df.write.format("tieredstore")`: a bulk load into a tier that no broker writes meanwhile.

    | option                          | what                                                     |
    | ------------------------------- | -------------------------------------------------------- |
    | config, provider, bucket and so | the tier, as for a read: see `options`                   |
    | topic                           | for all messages, or for those whose column is null      |
    | queue_id                        | likewise                                                 |
    | load_id                         | a load with a name is made once: run again, it adds none |
    | index                           | false: the broker that is started next finds out itself  |
    | block_bytes                     | records in memory of one task: 16m                       |

Rows of one queue near each other load fastest: `df.repartition("topic", "queue_id")`. A search by
time takes the messages of a queue to be in the order of their store times: sort them so. Messages
older than the retention of their topic are deleted when a broker next expires. A tier in a
directory needs that directory on all machines of the cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.load import abort_load, begin_load, commit_load
from tieredstore.jobs.load_records import (
    BLOCK_BYTES,
    LoadColumns,
    LoadDefaults,
    LoadRefusedError,
    StagedPart,
    Stager,
)
from tieredstore.jobs.worker import worker_scratch
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.spark.engine import plain_failures
from tieredstore.spark.options import (
    parse_number,
    parse_size,
    parse_truth,
    split_options,
    store_config,
)

if TYPE_CHECKING:
    import pyarrow as pa

_WRITE_NAMES: Final = ("topic", "queue_id", "load_id", "index", "block_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """All that is said of a write, checked; nothing was opened yet."""

    config: StoreConfig
    topic: str | None = None
    queue_id: int | None = None
    load_id: str | None = None
    index: bool = True
    block_bytes: int = BLOCK_BYTES

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        store, texts = split_options(options, known=_WRITE_NAMES)
        queue_id = texts.get("queue_id")
        return cls(
            config=store_config(store),
            topic=texts.get("topic"),
            queue_id=None if queue_id is None else parse_number("queue_id", queue_id),
            load_id=texts.get("load_id"),
            index=parse_truth("index", texts.get("index", "true")),
            block_bytes=parse_size("block_bytes", texts.get("block_bytes", str(BLOCK_BYTES))),
        )


def tier_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TierWriter:
    """The writer of one load, after a look whether the tier can be written at all."""
    if overwrite:
        raise InvalidConfigError(
            "mode overwrite: messages of a tier are never replaced; use mode('append')"
        )
    said = WriteOptions.parse(options)
    defaults = LoadDefaults(
        topic=said.topic, queue_id=said.queue_id, store_time_ms=SystemClock().now_ms()
    )
    columns = LoadColumns(to_arrow_schema(schema, timezone="UTC"), defaults)
    begin_load(said.config)
    return TierWriter(said, columns, run_id=uuid.uuid4().hex)


class StagedMessage(WriterCommitMessage):
    """What one task has staged."""

    def __init__(self, part: StagedPart) -> None:
        self.part = part


class TierWriter(DataSourceArrowWriter):
    """Stages on the workers, commits on the driver. An attempt that does not win leaves only what
    the commit, or the next load, removes."""

    def __init__(self, options: WriteOptions, columns: LoadColumns, *, run_id: str) -> None:
        self._said = options
        self._columns = columns
        self._run_id = run_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        if context is None:
            raise LoadRefusedError("a load is staged by tasks of Spark")
        config = self._said.config
        with plain_failures():
            stager = Stager(
                worker_scratch(config),
                self._columns,
                run_id=self._run_id,
                partition=context.partitionId(),
                # A task that is tried again after its executor was lost is another attempt too.
                attempt=f"{context.taskAttemptId()}-{uuid.uuid4().hex[:8]}",
                block_bytes=self._said.block_bytes,
            )
            for batch in iterator:
                stager.add(batch)
            return StagedMessage(stager.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = [message.part for message in messages if isinstance(message, StagedMessage)]
        with plain_failures():
            commit_load(
                self._said.config,
                self._run_id,
                parts,
                index=self._said.index,
                load_id=self._said.load_id,
            )

    def abort(self, messages: list[Any]) -> None:
        with plain_failures():
            abort_load(self._said.config, self._run_id)
