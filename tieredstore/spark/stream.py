"""`spark.readStream.format("tieredstore")`: a tier followed as it grows.

What lives here: `TierStreamReader`. How limits are shared out is in `stream_offsets`; a batch of a
stream is planned and read as any other scan is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tieredstore.access.reader import TieredReader
from tieredstore.jobs.reading.scan_plan import packed, refuse_unknown_topics, selected_queues
from tieredstore.jobs.reading.slice_rows import trimmed
from tieredstore.jobs.reading.slices import QueueRows, plan_slices
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey
from tieredstore.spark.options import ReadOptions, Starting
from tieredstore.spark.plain_failures import plain_failures
from tieredstore.spark.source import ScanReader, TierPartition
from tieredstore.spark.stream_offsets import (
    Backlog,
    StreamOffsets,
    advanced,
    from_json,
    to_json,
)

log = log_of(__name__)


class DataLossError(TieredStoreError):
    """Messages that the stream has not read are not there any more."""


class TierStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows all queues that are selected; offsets are the whole state, and Spark keeps them.

    * A batch is the messages between two offsets: read again after a restart, it is the same.
    * Queues and topics that appear later are read from their beginning.
    * What expired before it was read is an error, or with `fail_on_data_loss` false passed over.
    * So is a topic that was deleted and made again: its offsets begin anew, and those of the
      checkpoint would pass over its messages. With `fail_on_data_loss` false it is read from its
      beginning.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._scan = ScanReader(options, schema)
        self._tier: TieredReader | None = None
        self._target: dict[QueueKey, int] | None = (
            None  # of AvailableNow: nothing behind it is read
        )

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
            return [
                TierPartition(pack)
                for pack in packed(
                    trimmed(self._options.config, slices), split_bytes=self._options.split_bytes
                )
            ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._scan.batches(partition)

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
        """The numbers of the topics that are wanted. None where the catalogue is made from the
        bytes each time it is opened: it numbers anew what the key index does not tell."""
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
        each = rows.log_bytes / rows.message_count if rows.message_count else 1.0
        return Backlog(start=start, end=max(start, end), bytes_each=each)

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
