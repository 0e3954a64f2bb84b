"""`spark.readStream.format("tieredstore")`: follows a tier as it grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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
from tieredstore.driver.metadata import LOG
from tieredstore.jobs.scan import (
    queues_to_their_ends,
    refuse_unknown_topics,
    selected_queues,
    topic_ids,
)
from tieredstore.jobs.slices import QueueRows, plan_slices, trimmed
from tieredstore.model.errors import InvalidConfigError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey
from tieredstore.spark.engine import plain_failures, planning
from tieredstore.spark.offsets import StreamOffsets, from_json, to_json
from tieredstore.spark.options import NEWEST, OLDEST, ReadOptions, Starting
from tieredstore.spark.reading import DataLossError, ScanReader, partitions_of

log = log_of(__name__)

SHOWN_MAX: Final = 100
"""Queues that a progress report shows one by one; if there are more, those farthest behind."""


class TierStreamReader(ScanReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows all selected queues. The offsets are its whole state, and Spark keeps them.

    * A batch is the messages between two offsets: read again after a restart, it is the same.
    * Queues and topics that appear later are read from their beginning.
    * Messages that expired before they were read are an error, or are skipped with
      `fail_on_data_loss` false.
    * A topic that was deleted and created again is an error too: its offsets start over, and those
      of the checkpoint would skip its messages. With `fail_on_data_loss` false it is read from its
      beginning.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.limit is not None:
            raise InvalidConfigError("limit: a stream has the option max_messages_per_trigger")
        self._tier: TieredReader | None = None
        self._queues: list[QueueRows] = []  # as a trigger saw them last
        self._last: tuple[dict[str, Any], StreamOffsets] | None = None  # last given to Spark
        # Set by the trigger AvailableNow: nothing after these offsets is read.
        self._target: dict[QueueKey, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers have no catalogue.
        return {**self.__dict__, "_tier": None, "_queues": [], "_last": None, "_target": None}

    # Where to begin and how far to go

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with planning():
            starting = self._options.starting
            tier, queues = self._looked()
            named: Mapping[QueueKey, int] = {}
            if not isinstance(starting, (Starting, int)):
                named, starting = starting, Starting.EARLIEST
                refuse_unknown_queues("starting", named, queues)
            found: dict[QueueKey, int] = {}
            for rows in queues:
                at = named.get(rows.key, OLDEST)
                if starting is Starting.LATEST or at == NEWEST:
                    found[rows.key] = rows.end_offset
                elif at != OLDEST:
                    found[rows.key] = at
                elif starting is Starting.EARLIEST:
                    found[rows.key] = self._first(tier, rows)
                else:
                    offset = tier.offset_by_time(*rows.key, starting)
                    found[rows.key] = rows.end_offset if offset is None else offset
            return self._kept(StreamOffsets(offsets=found, topic_ids=self._topic_ids(tier)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        with planning():
            begun = self._known(start)
            tier, queues = self._looked(to_their_ends=True)
            numbers = self._topic_ids(tier)
            begun = self._without_remade(begun, begun.made_again(numbers))
            backlogs = {rows.key: self._backlog(tier, rows, begun) for rows in queues}
            count_max, bytes_max = self._limits(limit)
            ends = advanced(backlogs, count_max=count_max, bytes_max=bytes_max)
            return self._kept(
                StreamOffsets(
                    offsets={**begun.offsets, **ends}, topic_ids={**begun.topic_ids, **numbers}
                )
            )

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """What the tier has, and how far the batch that was planned last is behind it."""
        with planning():
            queues = self._queues or self._looked()[1]
            return progress(queues, None if self._last is None else self._last[1].offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with planning():
            _, queues = self._looked()
            self._target = {rows.key: rows.end_offset for rows in queues}

    # Reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with planning():
            tier, queues = self._looked()
            begun, ends = self._of_one_life(
                self._known(start), self._known(end), self._topic_ids(tier)
            )
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

    def _looked(self, *, to_their_ends: bool = False) -> tuple[TieredReader, list[QueueRows]]:
        """The tier as it is now, and its selected queues. At the first look, also of a query that
        goes on, the options may name nothing that is not there.

        A queue that has lost its end is an error if the look goes `to_their_ends`; where loss is
        accepted, the first look logs it instead.
        """
        selection, accepts_loss = self._options.selection, self._options.scan.accepts_loss
        is_first = self._tier is None
        if self._tier is None:
            self._tier = TieredReader.open(self._options.config)
            refuse_unknown_topics(self._tier, selection.topics)
        else:
            self._tier.refresh()
        if is_first if accepts_loss else to_their_ends:
            self._queues = self._to_their_ends(self._tier)
        else:
            self._queues = selected_queues(self._tier, selection)
        if is_first:
            refuse_unknown_queues("ending", self._options.ending, self._queues)
        return self._tier, self._queues

    def _to_their_ends(self, tier: TieredReader) -> list[QueueRows]:
        """The selected queues. SegmentCorruptError if one has lost the end of what the options
        select: the stream would wait there as if it had read all."""
        selection, ending = self._options.selection, self._options.ending

        def bounds_of(queues: Sequence[QueueRows]) -> dict[str, tuple[int, int]]:
            first, end = selection.offsets
            stops = {rows.path: ending.get(rows.key, NEWEST) for rows in queues}
            return {
                path: (first, end if stop == NEWEST else min(end, stop))
                for path, stop in stops.items()
            }

        return queues_to_their_ends(
            tier, selection, bounds_of, accepts_loss=self._options.scan.accepts_loss
        )[0]

    def _kept(self, offsets: StreamOffsets) -> dict[str, Any]:
        """The JSON that Spark keeps. Spark passes it back with the next call; remembering it saves
        decoding it again. It names no topic without queues, nor may what is remembered: nothing of
        such a topic was ever read."""
        read = {key.topic for key in offsets.offsets}
        numbers = {topic: at for topic, at in offsets.topic_ids.items() if topic in read}
        offsets = replace(offsets, topic_ids=numbers)
        if self._last is None or self._last[1] != offsets:
            self._last = to_json(offsets), offsets
        return self._last[0]

    def _known(self, document: dict[str, Any]) -> StreamOffsets:
        if self._last is not None and self._last[0] == document:
            return self._last[1]
        return from_json(document)

    def _topic_ids(self, tier: TieredReader) -> dict[str, int]:
        """The numbers of the selected topics."""
        wanted = replace(self._options.selection, queue_ids=None)
        return {
            topic: number
            for topic, number in topic_ids(tier).items()
            if wanted.wants(QueueKey(topic, 0))
        }

    def _first(self, tier: TieredReader, rows: QueueRows) -> int:
        return tier.min_offset(*rows.key) or rows.min_offset

    def _backlog(self, tier: TieredReader, rows: QueueRows, begun: StreamOffsets) -> Backlog:
        start = begun.offsets.get(rows.key)
        end = rows.end_offset
        if self._target is not None:
            end = min(end, self._target.get(rows.key, 0))
        stop = self._options.ending.get(rows.key, NEWEST)
        if stop != NEWEST:
            end = min(end, stop)
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
        """The queue offsets of one queue that are in this batch."""
        if (start or 0) == end:
            return end, end
        if rows is None and _is_deleted(tier, key.topic):
            return end, end  # messages that were not read are gone with the topic
        if not self._options.selection.wants(key):
            self._lose(
                f"{key.topic}, queue {key.queue_id}: the batch was planned with messages before"
                f" {end} of it, and the options leave it out now; read this batch with the former"
                " options",
                "to go on without them",
            )
            return end, end
        first = 0 if rows is None else self._first(tier, rows)
        stop = 0 if rows is None else rows.end_offset
        if start is None:
            start = min(first, end)
        if start < first or start > min(end, stop):
            start = self._restarted(key, start, first, stop)
        elif end > stop:
            self._lose(
                f"{key.topic}, queue {key.queue_id}: the batch goes up to message {end}, but the"
                f" tier ends at {stop}",
                "to go on without what it lacks",
            )
        return start, end

    def _of_one_life(
        self, begun: StreamOffsets, ends: StreamOffsets, numbers: dict[str, int]
    ) -> tuple[StreamOffsets, StreamOffsets]:
        """Both ends of a batch, adjusted for topics that were deleted and made again.

        If that was after the batch was planned, nothing of the topic's part of the batch is left,
        and the next batch begins with the new topic. If it was before, the batch has the new topic
        from its beginning.
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
        """Where to continue in a queue that lacks the next message of the stream."""
        if start is None:
            return first
        lost = (
            f"{key.topic}, queue {key.queue_id}: the stream continues at message {start}, but the"
            f" tier has {first} to {end}; what lies between has expired or was deleted"
        )
        self._lose(lost, "to go on without it")
        return first

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """The limits of messages and bytes: what Spark says, else what the options say."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        count_max, bytes_max = self._options.max_messages, self._options.max_bytes
        if isinstance(limit, ReadMaxRows):
            count_max = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            bytes_max = limit.max_bytes
        return count_max, bytes_max


def _is_deleted(tier: TieredReader, topic: str) -> bool:
    """Whether a topic of a planned batch was deleted. A published copy may not know the topic yet,
    so it does not count."""
    facts = tier.catalogue
    may_lag = facts.copy and facts.source != LOG
    return not may_lag and all(row.topic != topic for row in tier.topics())


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The unread messages of a queue, from `start` to before `end`, and their average size."""

    start: int
    end: int
    bytes_each: float

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)


def advanced(
    backlogs: Mapping[QueueKey, Backlog], *, count_max: int | None, bytes_max: int | None
) -> dict[QueueKey, int]:
    """Up to where each queue is read next, with at most so many messages and about so many bytes.

    A limit is shared out in proportion to what waits in each queue, and a queue with few messages
    need not wait for those with many. If any message waits, at least one is read, however large. A
    queue that gets nothing comes first as its backlog grows.
    """
    counts = {key: backlog.count for key, backlog in backlogs.items()}
    if bytes_max is not None:
        counts = _within(backlogs, bytes_max)
    if count_max is not None:
        counts = _shared(counts, backlogs, max(1, count_max))
    return {key: backlogs[key].start + counts[key] for key in backlogs}


def _within(backlogs: Mapping[QueueKey, Backlog], bytes_max: int) -> dict[QueueKey, int]:
    """As many messages of each queue as bytes allow: one of each, the largest backlogs first, and
    then in proportion to what is left. A message that is larger than the limit is read only if its
    queue has the largest backlog, and beside what the limit allows of the others."""
    counts = {key: backlog.count for key, backlog in backlogs.items()}
    costs = {key: max(1.0, backlog.bytes_each) for key, backlog in backlogs.items()}
    if sum(counts[key] * costs[key] for key in counts) <= bytes_max:
        return counts
    waiting = [key for key in counts if counts[key]]
    waiting.sort(key=lambda key: (-counts[key] * costs[key], key))
    found = dict.fromkeys(counts, 0)
    if costs[waiting[0]] > bytes_max:
        found[waiting.pop(0)] = 1
    left = float(bytes_max)
    for key in waiting:
        if costs[key] <= left:
            found[key] = 1
            left -= costs[key]
    total = sum((counts[key] - found[key]) * costs[key] for key in waiting)
    share = min(1.0, left / total) if total > 0 else 0.0
    for key in waiting:
        if found[key]:
            found[key] += int((counts[key] - 1) * share)
    return found


def _shared(
    counts: Mapping[QueueKey, int], backlogs: Mapping[QueueKey, Backlog], limit: int
) -> dict[QueueKey, int]:
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    shares = {key: count * limit // total for key, count in counts.items()}
    left = limit - sum(shares.values())
    # First queues that got nothing, and among them those with the largest backlogs.
    hungry = sorted(counts, key=lambda key: (shares[key] > 0, -backlogs[key].count, key))
    for key in hungry:
        if not left:
            break
        if shares[key] < counts[key]:
            shares[key] += 1
            left -= 1
    return shares


def refuse_unknown_queues(
    option: str, named: Mapping[QueueKey, int], queues: Iterable[QueueRows]
) -> None:
    """InvalidConfigError if an option names a queue that is not read."""
    missing = sorted(named.keys() - {rows.key for rows in queues}) if named else []
    if missing:
        raise InvalidConfigError(
            f"{option}: queue {missing[0].queue_id} of {missing[0].topic!r} is not among those that"
            " are read"
        )


def progress(queues: Iterable[QueueRows], reached: Mapping[QueueKey, int] | None) -> dict[str, Any]:
    """How far a stream is behind: in all, and in the queues that are farthest behind.

    `oldest` and `newest` are the offsets of the first message and of the next one to come; `lag` is
    how many messages a queue has after what the batch reads.
    """
    found: list[tuple[int, QueueRows]] = []
    for rows in queues:
        begun = rows.min_offset if reached is None else reached.get(rows.key, rows.min_offset)
        found.append((max(0, rows.end_offset - max(begun, rows.min_offset)), rows))
    found.sort(key=lambda each: (-each[0], each[1].key))
    shown: dict[str, dict[str, dict[str, int]]] = {}
    for lag, rows in sorted(found[:SHOWN_MAX], key=lambda each: each[1].key):
        shown.setdefault(rows.key.topic, {})[str(rows.key.queue_id)] = {
            "oldest": rows.min_offset,
            "newest": rows.end_offset,
            "lag": lag,
        }
    return {
        "queues": len(found),
        "lag": sum(lag for lag, _ in found),
        "lag_max": found[0][0] if found else 0,
        "topics": shown,
    }


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error of a refused stream as soon as Spark asks for anything.

    Spark 4.3 loses an error that is raised before it has a reader.
    """

    def __init__(self, error: TieredStoreError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with plain_failures():
            raise self._error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.initialOffset()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        return self.initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self.initialOffset()
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self.initialOffset()
        return iter(())
