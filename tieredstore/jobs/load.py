"""A bulk load from its begin to its commit: what the driver does around the tasks that stage.

New segments go behind those that each queue has, and one change of the catalogue names all of them.
What a crash leaves behind, and who removes it:

    | crash                 | what is there                     | removed by                       |
    | --------------------- | --------------------------------- | -------------------------------- |
    | while tasks stage     | staged objects                    | the next load; a repairing audit |
    | while segments are    | segments that the catalogue does  | whoever opens the tier to write; |
    | made                  | not name and marks for deletion   | and the staged objects as above  |
    | behind the one change | staged objects; all messages once | as above                         |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.names import queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnits, decode_units, encode_units
from tieredstore.codec.record import LOG_OFFSET_POSITION, QUEUE_OFFSET_POSITION
from tieredstore.driver.metadata import Change, Put, PutNote
from tieredstore.driver.provider import Scratch
from tieredstore.driver.segment import Buffer
from tieredstore.flat import append_file
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import recover
from tieredstore.index.contract import CommittedRun
from tieredstore.index.keys import keys_of_run
from tieredstore.index.uploaded import first_row_below
from tieredstore.index.watermarks import QueueId
from tieredstore.jobs.job import LocalEngine, Plan, no_progress
from tieredstore.jobs.key_runs import KeyRun, RunWriter, file_plans, in_order, merged
from tieredstore.jobs.load_records import (
    FOLDER,
    TIME_BYTES,
    LoadRefusedError,
    StagedPart,
    StagedPortion,
    run_folder,
)
from tieredstore.jobs.reindex import (
    begin_timestamps,
    begins_in_use,
    compacted_blocks,
    index_changes,
    index_row,
    made_file,
    next_base,
)
from tieredstore.jobs.worker import OwnedTier, owned_tier
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendUnavailableError, MetadataError
from tieredstore.model.messages import MessageRun
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey, QueueRecord, SegmentRecord, SegmentType

log = log_of(__name__)
CHUNK_BYTES: Final = 8 << 20  # of records in memory, for each segment under way; or one record
CHUNK_UNITS: Final = 1 << 17
LOADED: Final = "load"  # notes of loads that have an id: when, and how many messages
STREAMED: Final = "stream"  # notes of streams: their last batch, and when
THREADS: Final = 4  # segments that are made at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What was loaded."""

    message_count: int = 0
    log_bytes: int = 0
    queue_count: int = 0
    key_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBatch:
    """One of the batches of a stream, which come in order: of each stream the last is noted."""

    stream_id: str
    number: int

    def note(self, now_ms: int) -> PutNote:
        return PutNote(STREAMED, self.stream_id, [self.number, now_ms])

    def is_made(self, tier: OwnedTier) -> bool:
        """Whether this batch, or a later one, is in the tier. MetadataError for another's note."""
        noted = tier.metadata.note(STREAMED, self.stream_id)
        if noted is None:
            return False
        last = noted[0] if isinstance(noted, list) and noted else None
        if type(last) is not int:
            place = tier.metadata.facts.place
            raise MetadataError(place, f"the note of stream {self.stream_id} is damaged")
        return self.number <= last


def begin_load(config: StoreConfig) -> None:
    """Refused where somebody writes the tier: MetadataError.

    What an earlier load left behind is removed. One that is still under way loses what it has
    staged, and is refused when it commits.
    """
    with owned_tier(config, threads=1) as tier:
        if config.index_enabled:
            tier.check_index_sizes()
        append_file.delete_pending(tier.provider, tier.metadata)
        tier.remove_staged(FOLDER)


def abort_load(config: StoreConfig, run_id: str) -> None:
    """Remove what was staged; the tier is as it was."""
    with owned_tier(config, threads=1) as tier:
        tier.remove_staged(run_folder(run_id))


def commit_load(
    config: StoreConfig,
    run_id: str,
    parts: Sequence[StagedPart],
    *,
    index: bool = True,
    load_id: str | None = None,
    batch: StreamBatch | None = None,
) -> LoadReport:
    """Make the messages of these parts, one of each partition, part of the tier: all or none.

    Offsets within a queue follow the order within a partition, and then the partitions' numbers.
    A load with an id is made once: the catalogue remembers it, and a second one with that id adds
    nothing, whether or not its caller ever learned of the first. Likewise a batch of a stream.
    Raises LoadRefusedError, MetadataError, BackendError; then nothing was loaded, but for a
    MetadataError in the last step, after which only the catalogue itself says.
    """
    with owned_tier(config, threads=THREADS) as tier:
        report = LoadReport()
        if load_id is not None and tier.metadata.note(LOADED, load_id) is not None:
            log.warning("load %s has come to its end before: nothing is added", load_id)
        elif batch is not None and batch.is_made(tier):
            log.warning("%s has come to its end before: nothing is added", batch)
        elif any(part.portions for part in parts):
            index = index and config.index_enabled
            commit = _Commit(tier, run_id, index=index, load_id=load_id, batch=batch)
            report = commit.done(parts)
        tier.settle(run_folder(run_id))
    log.info("%d messages of %d queues were loaded", report.message_count, report.queue_count)
    return report


class _Commit:
    """One commit, step by step."""

    def __init__(
        self,
        tier: OwnedTier,
        run_id: str,
        *,
        index: bool,
        load_id: str | None,
        batch: StreamBatch | None,
    ) -> None:
        self._tier = tier
        self._config = tier.config
        self._folder = run_folder(run_id)
        self._index = index
        self._load_id = load_id
        self._batch = batch

    def done(self, parts: Sequence[StagedPart]) -> LoadReport:
        tier = self._tier
        self._check_staged(parts)
        if append_file.delete_pending(tier.provider, tier.metadata):
            reason = "what was deleted before is still there"
            raise BackendUnavailableError(self._config.broker_name, "load", reason)
        plan = plan_load(parts, self._config, tier.scratch, self._target)
        paths = [target.path for target in plan.targets]
        with tier.installing([*paths, tier.index_path]):
            now = tier.runtime.clock.now_ms()
            tier.announce([segment.row(now_ms=now) for segment in (*plan.logs, *plan.units)])
            # The logs first: at no time do units name bytes that are not there.
            logs = self._written(plan.logs, keys_folder=self._folder if self._index else None)
            units = self._written(plan.units)
            runs = [run for segment in logs for run in segment.runs]
            keys = make_index(tier, plan, runs) if self._index else []
            rows = [segment.row for segment in (*logs, *units)]
            tier.metadata.apply([*self._changes(plan, rows), *keys])
        return LoadReport(
            message_count=plan.message_count,
            log_bytes=sum(segment.size for segment in plan.logs),
            queue_count=len(plan.targets),
            key_count=sum(run.count for run in runs),
        )

    def _check_staged(self, parts: Sequence[StagedPart]) -> None:
        wanted = {portion.name for part in parts for portion in part.portions}
        missing = wanted - {staged.name for staged in self._tier.scratch.listed(self._folder)}
        if missing:
            raise LoadRefusedError(
                f"{len(missing)} staged objects of this load are gone: another load into "
                f"{self._config.broker_name} has begun since; run this one again"
            )

    def _target(self, key: QueueKey) -> QueueTarget:
        """Where the queue ends, after asking the backend; one with a problem takes nothing."""
        tier, config = self._tier, self._config
        path = queue_path(config.broker_name, *key)
        record = tier.metadata.queue(*key)
        topic = tier.metadata.add_topic(key.topic)
        rows = tier.metadata.segments(path)
        if not rows:
            if any(True for _ in tier.provider.list(path)):
                raise LoadRefusedError(
                    f"{path}: there are segments that the catalogue does not know: rebuild it first"
                )
            return QueueTarget(key=key, path=path, topic_id=topic.topic_id, is_new=True)
        file = FlatMessageFile(
            record or _new_record(config, key, 0),
            topic,
            config,
            path=path,
            provider=tier.provider,
            metadata=tier.metadata,
            clock=tier.runtime.clock,
        )
        recover(file, tier.metadata, tier.runtime.clock)
        try:
            if file.problem is not None:
                raise LoadRefusedError(f"{path} takes nothing more: {file.problem}")
            if file.unconfirmed_from is not None:
                raise LoadRefusedError(
                    f"{path}: from message {file.unconfirmed_from} on its broker has to compare "
                    "what is there with its own; start it once"
                )
            return QueueTarget(
                key=key,
                path=path,
                topic_id=topic.topic_id,
                queue_offset=file.commit_offset,
                log_offset=file.log.commit_offset,
            )
        finally:
            file.close()

    def _written(
        self, segments: Sequence[NewSegment], *, keys_folder: str | None = None
    ) -> list[WrittenSegment]:
        """All of them, or the first error."""
        work = partial(write_segment, self._tier, keys_folder)
        written: list[WrittenSegment] = []
        with ExitStack() as opened:
            engine = opened.enter_context(LocalEngine(threads=THREADS))
            results = engine.results(work, Plan(items=segments), on_progress=no_progress)
            for result in opened.enter_context(closing(results)):
                if result.failure is not None:
                    raise LoadRefusedError(f"nothing was loaded: {result.failure.text}")
                written += result.rows
        return written

    def _changes(self, plan: LoadPlan, rows: Sequence[SegmentRecord]) -> list[Change]:
        now = self._tier.runtime.clock.now_ms()
        new = [
            Put(_new_record(self._config, target.key, now))
            for target in plan.targets
            if self._tier.metadata.queue(*target.key) is None
        ]
        changes = [*new, *map(Put, rows), *append_file.unmark(rows)]
        if self._load_id is not None:
            changes.append(PutNote(LOADED, self._load_id, [now, plan.message_count]))
        if self._batch is not None:
            changes.append(self._batch.note(now))
        return changes


def _new_record(config: StoreConfig, key: QueueKey, now_ms: int) -> QueueRecord:
    return QueueRecord(
        broker_name=config.broker_name,
        topic=key.topic,
        queue_id=key.queue_id,
        update_timestamp=now_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTarget:
    """A queue that is loaded into, and where its next message goes."""

    key: QueueKey
    path: str
    topic_id: int
    is_new: bool = False
    queue_offset: int = 0
    log_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows `first` to before `end` of a portion. Its row 0 has these offsets in the tier."""

    portion: StagedPortion
    first: int
    end: int
    queue_offset: int
    log_offset: int


@dataclass(slots=True, kw_only=True)
class NewSegment:
    """One segment to be made of pieces, in order."""

    target: QueueTarget
    type: SegmentType
    base: int
    size: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def row(self, *, now_ms: int, times: tuple[int, int] | None = None) -> SegmentRecord:
        begin, end = (None, None) if times is None else times
        return SegmentRecord(
            path=self.target.path,
            type=self.type,
            base_offset=self.base,
            size=self.size,
            create_timestamp=now_ms,
            begin_timestamp=begin,
            end_timestamp=end,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """All segments that are to be made; `ends` are the queues' next offsets afterwards."""

    logs: Sequence[NewSegment]
    units: Sequence[NewSegment]
    targets: Sequence[QueueTarget]
    ends: Mapping[QueueKey, int]

    @property
    def message_count(self) -> int:
        return sum(self.ends[target.key] - target.queue_offset for target in self.targets)


def portions_by_queue(parts: Sequence[StagedPart]) -> dict[QueueKey, list[StagedPortion]]:
    """By partition number, and within a partition as they were staged."""
    found: dict[QueueKey, list[StagedPortion]] = {}
    for part in sorted(parts, key=lambda part: part.partition):
        for portion in part.portions:
            found.setdefault(portion.key, []).append(portion)
    return dict(sorted(found.items()))


def plan_load(
    parts: Sequence[StagedPart],
    config: StoreConfig,
    scratch: Scratch,
    target_of: Callable[[QueueKey], QueueTarget],
) -> LoadPlan:
    """New segments behind what each queue has: no segment that is there is touched."""
    logs: list[NewSegment] = []
    units: list[NewSegment] = []
    targets: list[QueueTarget] = []
    ends: dict[QueueKey, int] = {}
    for key, portions in portions_by_queue(parts).items():
        target = target_of(key)
        placed = list(_placed(target, portions))
        logs += _segments(
            NewSegment(target=target, type=SegmentType.COMMIT_LOG, base=target.log_offset),
            placed,
            config.commit_log_segment_bytes,
            lambda portion: portion.log_bytes,
            partial(_record_ends, scratch),
        )
        base = target.queue_offset * UNIT_BYTES
        units += _segments(
            NewSegment(target=target, type=SegmentType.CONSUME_QUEUE, base=base),
            placed,
            config.consume_queue_segment_bytes // UNIT_BYTES * UNIT_BYTES,
            lambda portion: portion.count * UNIT_BYTES,
            lambda portion: np.arange(1, portion.count + 1) * UNIT_BYTES,
        )
        targets.append(target)
        ends[key] = target.queue_offset + sum(portion.count for portion in portions)
    return LoadPlan(logs=logs, units=units, targets=targets, ends=ends)


def read_units(scratch: Scratch, portion: StagedPortion, first: int, end: int) -> QueueUnits:
    position = portion.position + first * UNIT_BYTES
    return decode_units(scratch.read(portion.name, position, (end - first) * UNIT_BYTES))


def _record_ends(scratch: Scratch, portion: StagedPortion) -> NDArray[np.int64]:
    sizes = read_units(scratch, portion, 0, portion.count).message_bytes
    return np.cumsum(sizes, dtype=np.int64)


def _placed(target: QueueTarget, portions: Sequence[StagedPortion]) -> Iterator[Piece]:
    queue_offset, log_offset = target.queue_offset, target.log_offset
    for portion in portions:
        yield Piece(
            portion=portion,
            first=0,
            end=portion.count,
            queue_offset=queue_offset,
            log_offset=log_offset,
        )
        queue_offset += portion.count
        log_offset += portion.log_bytes


def _segments(
    first: NewSegment,
    placed: Sequence[Piece],
    bytes_max: int,
    size_of: Callable[[StagedPortion], int],
    ends_of: Callable[[StagedPortion], NDArray[np.int64]],
) -> list[NewSegment]:
    """The pieces in segments of at most so many bytes; a longer row stands first in its own.

    `size_of` is how long a portion is, `ends_of` where each of its rows ends.
    """
    segments = [first]
    for piece in placed:
        last = segments[-1]
        if last.size + size_of(piece.portion) <= bytes_max:
            last.pieces.append(piece)
            last.size += size_of(piece.portion)
            continue
        ends = ends_of(piece.portion)
        start = taken = 0
        while start < piece.end:
            last = segments[-1]
            end = int(np.searchsorted(ends, taken + bytes_max - last.size, side="right"))
            if end <= start and last.size:
                base = last.base + last.size
                segments.append(NewSegment(target=last.target, type=last.type, base=base))
                continue
            end = max(end, start + 1)
            last.pieces.append(replace(piece, first=start, end=end))
            last.size += int(ends[end - 1]) - taken
            start, taken = end, int(ends[end - 1])
    return segments


def make_index(tier: OwnedTier, plan: LoadPlan, runs: Sequence[KeyRun]) -> list[Change]:
    """Upload files with these keys, one after the other; what the catalogue is to say of them.

    A queue that was not indexed up to where the load begins is still taken to be indexed only up
    to there: a broker that is started then puts all that follows, and messages that it finds twice
    are shown once.
    """
    items_max = tier.config.index_item_count - 1
    files = list(file_plans(tier.scratch, in_order(runs), items_max=items_max))
    begins = begin_timestamps([file.first_time for file in files], begins_in_use(tier))
    rows: list[SegmentRecord] = []
    base = next_base(tier)
    for file, begin in zip(files, begins, strict=True):
        columns = merged(tier.scratch, file.parts, tier.runtime)
        with made_file(tier.config, columns, begin_timestamp=begin) as made:
            row = index_row(tier, base, begin=begin, end=made.end_timestamp)
            tier.announce([row])
            size = tier.create(row, compacted_blocks(made))
        rows.append(replace(row, size=size))
        base += size
    adopted, ends = _ends(tier, plan)
    present = tier.index_rows
    first = first_row_below([*present, *rows]) if present else None
    lowered = [] if first is None else [Put(first)]
    return [*adopted, *index_changes(tier, rows, ends), *lowered]


def _ends(tier: OwnedTier, plan: LoadPlan) -> tuple[list[Change], Mapping[QueueId, int]]:
    """Up to where the index will have queues; and, of an index that somebody else made, that it
    has what the catalogue knows."""
    marks = tier.watermarks
    is_foreign = not tier.check_index_sizes() and bool(tier.index_rows)
    ends = {}
    for target in plan.targets:
        queue = QueueId(target.topic_id, target.key.queue_id)
        held = marks.of_queue(target.key.topic, queue)
        if target.is_new or is_foreign or held >= target.queue_offset:
            ends[queue] = plan.ends[target.key]
    now = tier.runtime.clock.now_ms()
    return marks.adopted(now_ms=now) if is_foreign else [], ends


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSegment:
    """A segment that was made, as the catalogue is to know it, and the keys in it."""

    row: SegmentRecord
    runs: tuple[KeyRun, ...] = ()


def write_segment(
    tier: OwnedTier, keys_folder: str | None, item: NewSegment
) -> Iterator[WrittenSegment]:
    """Make one segment of a plan. Where a folder for keys is given, the keys of a log are staged
    there."""
    keys: RunWriter | None = None
    target = item.target
    if keys_folder is not None and item.type is SegmentType.COMMIT_LOG:
        first = item.pieces[0]
        keys = RunWriter(
            tier.scratch,
            f"{keys_folder}/keys-{target.topic_id}-{target.key.queue_id}-{item.base}",
            topic_id=target.topic_id,
            queue_id=target.key.queue_id,
            first_offset=first.queue_offset + first.first,
        )
    made = _Making(tier, item, keys)
    now = tier.runtime.clock.now_ms()
    tier.create(item.row(now_ms=now), made.blocks())
    runs = () if keys is None else tuple(keys.finish())
    now = tier.runtime.clock.now_ms()
    yield WrittenSegment(row=item.row(now_ms=now, times=made.times), runs=runs)


class _Making:
    """The bytes of one segment, a chunk at a time."""

    def __init__(self, tier: OwnedTier, segment: NewSegment, keys: RunWriter | None) -> None:
        self._keys = keys
        self._scratch = tier.scratch
        self._segment = segment
        self._times: list[int] = []

    @property
    def times(self) -> tuple[int, int]:
        """The least and the greatest store time; when all blocks were given."""
        return min(self._times, default=0), max(self._times, default=0)

    def blocks(self) -> Iterator[Buffer]:
        is_log = self._segment.type is SegmentType.COMMIT_LOG
        for piece in self._segment.pieces:
            for first in range(piece.first, piece.end, CHUNK_UNITS):
                end = min(first + CHUNK_UNITS, piece.end)
                units = read_units(self._scratch, piece.portion, first, end)
                self._note_times(piece, first, end)
                if is_log:
                    yield from self._records(piece, first, units)
                else:
                    yield encode_units(
                        log_offsets=units.log_offsets + piece.log_offset,
                        message_bytes=units.message_bytes,
                        tags_codes=units.tags_codes,
                    )

    def _note_times(self, piece: Piece, first: int, end: int) -> None:
        portion = piece.portion
        position = portion.times_position + first * TIME_BYTES
        data = self._scratch.read(portion.name, position, (end - first) * TIME_BYTES)
        times = np.frombuffer(data, ">i8")
        self._times = [min([*self._times, int(times.min())]), max([*self._times, int(times.max())])]

    def _records(self, piece: Piece, first: int, units: QueueUnits) -> Iterator[Buffer]:
        sizes = units.message_bytes.astype(np.int64)
        ends = units.log_offsets + sizes
        done = 0
        while done < len(sizes):
            start = int(units.log_offsets[done])
            count = int(np.searchsorted(ends[done:], start + CHUNK_BYTES, side="right"))
            stop = done + max(1, count)
            position = piece.portion.records_position + start
            data = bytearray(
                self._scratch.read(piece.portion.name, position, int(ends[stop - 1]) - start)
            )
            run = MessageRun(
                first_offset=piece.queue_offset + first + done,
                log_offsets=units.log_offsets[done:stop] + piece.log_offset,
                message_bytes=units.message_bytes[done:stop],
                tags_codes=units.tags_codes[done:stop],
                starts=units.log_offsets[done:stop] - start,
                records=data,
            )
            put_offsets(run)
            if self._keys is not None:
                target = self._segment.target
                committed = CommittedRun(run=run, log_offsets=run.log_offsets)
                queue = target.key.topic, target.topic_id, target.key.queue_id
                self._keys.add(keys_of_run(*queue, committed).columns)
            yield data
            done = stop


def put_offsets(run: MessageRun) -> None:
    """Queue offset and log offset of each record, as the run has them."""
    words: NDArray[Any] = np.ndarray((len(run.records) - 7,), ">i8", run.records, strides=(1,))
    words[run.starts + QUEUE_OFFSET_POSITION] = np.arange(run.first_offset, run.end_offset)
    words[run.starts + LOG_OFFSET_POSITION] = run.log_offsets
