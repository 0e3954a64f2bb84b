"""Segments that tasks of a load write: whole and durable, but not in the tier before the commit.

A task writes the messages of each queue as segments that begin at the end of the queue, as the task
saw it. If the queue still ends there at the commit, the segments are adopted as they are. Otherwise
the run is rewritten from them at its true offsets; its keys stay as they were staged, and are
shifted when they are read.

Names are `load/<run>/<ms>.<attempt>-<number>`, so that an audit sees how old they are.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Protocol

import google_crc32c
import msgspec
import numpy as np
from numpy.typing import NDArray

from tieredstore.model.extras import brought_by

with brought_by("jobs"):
    import pyarrow as pa

from tieredstore.codec.columns import Records
from tieredstore.codec.names import queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units, encode_units
from tieredstore.codec.record import LOG_OFFSET_POSITION, QUEUE_OFFSET_POSITION
from tieredstore.driver.provider import LOADS, Scratch, SegmentProvider
from tieredstore.driver.segment import Buffer
from tieredstore.index.dealt_items import Spool
from tieredstore.index.keys import IndexColumns
from tieredstore.jobs.key_runs import KeyRun, RunWriter
from tieredstore.jobs.load_records import EncodedRun, LoadColumns, encode_batch
from tieredstore.jobs.worker import given_scratch, scratch_of, worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueKey, SegmentType

BLOCK_BYTES: Final = 16 << 20  # of records, of all queues together, that a task holds in memory
CHUNK_BYTES: Final = 8 << 20  # of records read at a time, or one larger record
CHUNK_ROWS: Final = 1 << 16
_PARTS: Final = ".parts"
_ROW: Final = np.dtype([("size", "<i4"), ("keys", "<i4"), ("tags", "<i8"), ("time", "<i8")])
_HASH_BYTES: Final = 8


def crc32c(block: Buffer, before: int) -> int:
    """Continue a CRC-32C. Google's function refuses a bytearray; the array is a view, no copy."""
    view = memoryview(block)
    return int(google_crc32c.extend(before, np.frombuffer(view, np.uint8))) if view else before


def run_folder(run_id: str) -> str:
    """Where all attempts of one load stage what they make."""
    return f"{LOADS}/{run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSegment:
    """A segment as an object. `crc` is its CRC-32C; `begin` and `end` are times of its messages."""

    name: str
    type: SegmentType
    base: int
    size: int
    crc: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRun:
    """Messages of one queue as segments that begin at these offsets, and their keys."""

    key: QueueKey
    queue_offset: int
    log_offset: int
    count: int
    log_bytes: int
    segments: tuple[StagedSegment, ...]
    keys: tuple[KeyRun, ...] = ()

    def names(self) -> Iterator[str]:
        yield from (segment.name for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """All that one attempt at a partition has staged."""

    partition: int
    runs: tuple[StagedRun, ...]

    @property
    def message_count(self) -> int:
        return sum(run.count for run in self.runs)


def note_parts(config: StoreConfig, run_id: str, parts: Sequence[StagedPart], now_ms: int) -> None:
    """Stage the list of what was staged, for a commit by another process."""
    scratch = scratch_of(config, worker_provider(config))
    data = msgspec.json.encode(parts, enc_hook=np.ndarray.tolist)
    scratch.put(f"{run_folder(run_id)}/{now_ms:013d}{_PARTS}", [data])


def noted_parts(config: StoreConfig, run_id: str) -> list[StagedPart]:
    """What `note_parts` staged. MetadataError if it is missing or damaged."""
    scratch = scratch_of(config, worker_provider(config))
    found = [each for each in scratch.listed(run_folder(run_id)) if each.name.endswith(_PARTS)]
    if len(found) != 1:
        raise MetadataError(run_folder(run_id), "the staged segments of its tasks are not noted")
    data = scratch.read(found[0].name, 0, found[0].size)
    try:
        return msgspec.json.decode(data, type=list[StagedPart], dec_hook=_array)
    except (ValueError, TypeError, OverflowError) as error:
        raise MetadataError(found[0].name, f"it says something impossible: {error}") from error


def _array(_: object, numbers: list[int]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rows:
    """Consecutive messages, how many keys each has, and the hashes of the keys. Whoever gets them
    may change the records."""

    sizes: NDArray[np.int64]
    tags: NDArray[np.int64]
    times: NDArray[np.int64]
    key_counts: NDArray[np.int64]
    key_hashes: NDArray[np.uint64]
    records: bytearray

    def parted(self, row: int) -> tuple[Rows, Rows]:
        """The rows before this one, and the rest."""
        at, key = int(self.sizes[:row].sum()), int(self.key_counts[:row].sum())
        return self._part(slice(row), slice(key), slice(at)), self._part(
            slice(row, None), slice(key, None), slice(at, None)
        )

    def _part(self, rows: slice, keys: slice, records: slice) -> Rows:
        return Rows(
            sizes=self.sizes[rows],
            tags=self.tags[rows],
            times=self.times[rows],
            key_counts=self.key_counts[rows],
            key_hashes=self.key_hashes[keys],
            records=self.records[records],
        )


class Source(Protocol):
    """Messages of one queue, read front to back."""

    def rows(self) -> Iterator[Rows]: ...

    def units(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Only the sizes and tags codes."""


class QueueEnds:
    """The current ends of queues, as the backend shows them: a guess, which the commit checks."""

    def __init__(self, provider: SegmentProvider, broker: str) -> None:
        self._provider, self._broker = provider, broker
        self._known: dict[str, list[int]] | None = None
        self._moved: dict[QueueKey, tuple[int, int]] = {}
        provider.refresh()
        if provider.shares_rounds:  # one listing shows all queues
            self._known = self._listed(broker)

    def of(self, key: QueueKey) -> tuple[int, int]:
        """The next queue offset, and the next log offset."""
        path = queue_path(self._broker, *key)
        if key in self._moved:
            return self._moved[key]
        known = self._listed(path) if self._known is None else self._known
        units, log_offset = known.get(path, [0, 0])
        return units // UNIT_BYTES, log_offset

    def move(self, run: StagedRun) -> None:
        """Note that the queue now ends after this run."""
        self._moved[run.key] = run.queue_offset + run.count, run.log_offset + run.log_bytes

    def _listed(self, below: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        places = {SegmentType.CONSUME_QUEUE: 0, SegmentType.COMMIT_LOG: 1}
        for each in self._provider.list(below):
            if each.type in places:
                ends = found.setdefault(each.path, [0, 0])
                place = places[each.type]
                ends[place] = max(ends[place], each.base + each.size)
        return found


@dataclass(slots=True, kw_only=True)
class RunMaker:
    """Stages runs of queues as segments."""

    config: StoreConfig
    segments: Scratch
    scratch: Scratch
    stem: str
    with_keys: bool = True
    _numbers: Iterator[int] = field(default_factory=count)

    def made(
        self, key: QueueKey, sources: Sequence[Source], *, queue_offset: int, log_offset: int
    ) -> StagedRun:
        work = _Run(self, key, sources, queue_offset, log_offset)
        logs = work.logs()
        return StagedRun(
            key=key,
            queue_offset=queue_offset,
            log_offset=log_offset,
            count=work.count,
            log_bytes=work.log_bytes,
            segments=(*logs, *work.unit_segments()),
            keys=work.keys(),
        )

    def name(self) -> str:
        return f"{self.stem}-{next(self._numbers)}"


class _Run:
    """Writes the run of one queue into segments."""

    def __init__(
        self,
        maker: RunMaker,
        key: QueueKey,
        sources: Sequence[Source],
        queue_offset: int,
        log_offset: int,
    ) -> None:
        self._maker, self._key, self._sources = maker, key, sources
        self._queue_offset, self._log_offset = queue_offset, log_offset
        self.count = self.log_bytes = 0
        self._unit_rows = max(1, maker.config.consume_queue_segment_bytes // UNIT_BYTES)
        self._unit_times: dict[int, tuple[int, int]] = {}
        self._waiting: Rows | None = None
        self._writer: RunWriter | None = None
        if maker.with_keys:
            self._writer = RunWriter(
                maker.scratch,
                f"{maker.name()}-keys",
                topic_id=0,
                queue_id=key.queue_id,
                first_offset=queue_offset,
            )

    def keys(self) -> tuple[KeyRun, ...]:
        return () if self._writer is None else tuple(self._writer.finish())

    def logs(self) -> list[StagedSegment]:
        stream = (rows for source in self._sources for rows in source.rows())
        found: list[StagedSegment] = []
        bytes_max = self._maker.config.commit_log_segment_bytes
        while (first := self._next(stream)) is not None:
            base = self._log_offset + self.log_bytes
            times: list[int] = []
            blocks = self._log_blocks(first, stream, bytes_max, times)
            found.append(self._put(SegmentType.COMMIT_LOG, base, blocks, times))
        return found

    def _next(self, stream: Iterator[Rows]) -> Rows | None:
        rows, self._waiting = self._waiting, None
        return next(stream, None) if rows is None else rows

    def _log_blocks(
        self, first: Rows, stream: Iterator[Rows], bytes_max: int, times: list[int]
    ) -> Iterator[Buffer]:
        """The blocks of one segment. Rows that do not fit wait for the next segment; a row that is
        larger than a segment gets its own."""
        rows: Rows | None = first
        filled = 0
        while rows is not None:
            ends = np.cumsum(rows.sizes)
            taken = int(np.searchsorted(ends, bytes_max - filled, side="right"))
            if not taken and not filled:
                taken = 1
            if taken < len(ends):
                rows, self._waiting = rows.parted(taken)
            if taken:
                filled += len(rows.records)
                yield self._patched(rows, times)
            if self._waiting is not None:
                return
            rows = next(stream, None)

    def _patched(self, rows: Rows, times: list[int]) -> Buffer:
        starts = np.cumsum(rows.sizes) - rows.sizes
        first = self._queue_offset + self.count
        run = MessageRun(
            first_offset=first,
            log_offsets=starts + self._log_offset + self.log_bytes,
            message_bytes=rows.sizes.astype(np.int32),
            tags_codes=rows.tags,
            starts=starts,
            records=rows.records,
        )
        put_offsets(run)
        times[:] = _widened(times, rows.times)
        numbers = (self.count + np.arange(len(rows.sizes))) // self._unit_rows
        for number in range(int(numbers[0]), int(numbers[-1]) + 1):
            known = self._unit_times.get(number, ())
            low, high = _widened(known, rows.times[numbers == number])
            self._unit_times[number] = low, high
        if self._writer is not None:
            owners = np.repeat(np.arange(len(rows.sizes)), rows.key_counts)
            columns = IndexColumns(
                key_hashes=rows.key_hashes,
                topic_ids=0,
                queue_ids=self._key.queue_id,
                log_offsets=run.log_offsets[owners],
                message_bytes=rows.sizes[owners],
                store_timestamps=rows.times[owners],
            )
            self._writer.add(columns)
        self.count += len(rows.sizes)
        self.log_bytes += len(rows.records)
        return rows.records

    def unit_segments(self) -> list[StagedSegment]:
        units = self._encoded_units()
        waiting = bytearray()
        found = []
        for number, times in sorted(self._unit_times.items()):
            base = self._queue_offset + number * self._unit_rows
            left = min(self._unit_rows, self.count - number * self._unit_rows) * UNIT_BYTES

            def blocks(left: int = left) -> Iterator[Buffer]:
                while left:
                    if not waiting:
                        waiting.extend(next(units))
                    piece = bytes(waiting[:left])
                    del waiting[: len(piece)]
                    left -= len(piece)
                    yield piece

            kind = SegmentType.CONSUME_QUEUE
            found.append(self._put(kind, base * UNIT_BYTES, blocks(), times))
        return found

    def _encoded_units(self) -> Iterator[Buffer]:
        log_offset = self._log_offset
        for source in self._sources:
            for sizes, tags in source.units():
                ends = np.cumsum(sizes)
                yield encode_units(
                    log_offsets=log_offset + ends - sizes, message_bytes=sizes, tags_codes=tags
                )
                log_offset += int(ends[-1]) if len(ends) else 0

    def _put(
        self, kind: SegmentType, base: int, blocks: Iterator[Buffer], times: Sequence[int]
    ) -> StagedSegment:
        crc = 0

        def summed() -> Iterator[Buffer]:
            nonlocal crc
            for block in blocks:
                crc = crc32c(block, crc)
                yield block

        name = self._maker.name()
        size = self._maker.segments.put(name, summed())
        return StagedSegment(
            name=name, type=kind, base=base, size=size, crc=crc, begin=times[0], end=times[1]
        )


def _widened(known: Sequence[int], times: NDArray[np.int64]) -> list[int]:
    return [min([*known, int(times.min())]), max([*known, int(times.max())])]


def put_offsets(run: MessageRun) -> None:
    """Write the run's queue offset and log offset of each message into its record."""
    words: NDArray[Any] = np.ndarray((len(run.records) - 7,), ">i8", run.records, strides=(1,))
    words[run.starts + QUEUE_OFFSET_POSITION] = np.arange(run.first_offset, run.end_offset)
    words[run.starts + LOG_OFFSET_POSITION] = run.log_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSource:
    """A staged run to be rewritten at other offsets. Its staged keys are not rewritten."""

    scratch: Scratch
    run: StagedRun

    def rows(self) -> Iterator[Rows]:
        logs = [each for each in self.run.segments if each.type is SegmentType.COMMIT_LOG]
        bases = [each.base for each in logs]
        at = self.run.log_offset
        for sizes, tags in self.units():
            done = 0
            while done < len(sizes):
                log = logs[int(np.searchsorted(bases, at, side="right")) - 1]
                ends = np.cumsum(sizes[done:])
                most = min(CHUNK_BYTES, log.base + log.size - at)
                taken = max(1, int(np.searchsorted(ends, most, side="right")))
                size = int(ends[taken - 1])
                records = bytearray(self.scratch.read(log.name, at - log.base, size))
                chosen = sizes[done : done + taken]
                found = Records(records, np.cumsum(chosen) - chosen, chosen.astype(np.int32))
                times = np.asarray(found.store_times(), np.int64)
                yield Rows(
                    sizes=chosen,
                    tags=tags[done : done + taken],
                    times=times,
                    key_counts=np.zeros(taken, np.int64),
                    key_hashes=np.empty(0, np.uint64),
                    records=records,
                )
                done, at = done + taken, at + size

    def units(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        step = CHUNK_ROWS * UNIT_BYTES
        for each in self.run.segments:
            if each.type is not SegmentType.CONSUME_QUEUE:
                continue
            for start in range(0, each.size, step):
                data = self.scratch.read(each.name, start, min(step, each.size - start))
                units = decode_units(data)
                yield units.message_bytes.astype(np.int64), np.asarray(units.tags_codes, np.int64)


@dataclass(frozen=True, slots=True)
class _Spilled:
    """Rows of one queue in the spool file of a task: first the numbers of all rows, then the hashes
    of their keys, then their records."""

    spool: Spool
    position: int
    count: int
    key_count: int

    def rows(self) -> Iterator[Rows]:
        columns = self._columns()
        hashes = self._hashes()
        start = self.position + columns.nbytes + hashes.nbytes
        sizes = columns["size"].astype(np.int64)
        ends, key_ends = np.cumsum(sizes), np.cumsum(columns["keys"], dtype=np.int64)
        done = at = key = 0
        while done < self.count:
            end = max(done + 1, int(np.searchsorted(ends, at + CHUNK_BYTES, side="right")))
            records = bytearray(int(ends[end - 1]) - at)
            self.spool.read_into(records, start + at)
            chosen = columns[done:end]
            key_end = int(key_ends[end - 1])
            yield Rows(
                sizes=sizes[done:end],
                tags=chosen["tags"].astype(np.int64),
                times=chosen["time"].astype(np.int64),
                key_counts=chosen["keys"].astype(np.int64),
                key_hashes=hashes[key:key_end],
                records=records,
            )
            done, at, key = end, int(ends[end - 1]), key_end

    def units(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        columns = self._columns()
        yield columns["size"].astype(np.int64), columns["tags"].astype(np.int64)

    def _columns(self) -> NDArray[Any]:
        data = bytearray(self.count * _ROW.itemsize)
        self.spool.read_into(data, self.position)
        return np.frombuffer(data, _ROW)

    def _hashes(self) -> NDArray[np.uint64]:
        data = bytearray(self.key_count * _HASH_BYTES)
        self.spool.read_into(data, self.position + self.count * _ROW.itemsize)
        return np.frombuffer(data, np.uint64)


@dataclass(slots=True, eq=False)
class Stager:
    """Stages the batches of one attempt. The rows of one queue, the leading one, go straight into
    its segments. Rows of other queues wait in memory, up to one block, and then in an unnamed local
    file, which is below SPARK_LOCAL_DIRS if that is set.

    If a whole block passes without a row of the leading queue, the queue of the newest rows becomes
    the leading one. So rows that are sorted by queue are written once.
    """

    config: StoreConfig
    provider: SegmentProvider
    columns: LoadColumns
    _: KW_ONLY
    run_id: str
    partition: int
    attempt: str
    now_ms: int
    index: bool = True
    block_bytes: int = BLOCK_BYTES
    _waiting: dict[QueueKey, list[EncodedRun]] = field(default_factory=dict)
    _waiting_bytes: int = 0
    _spilled: dict[QueueKey, list[_Spilled]] = field(default_factory=dict)
    _spool: Spool | None = None
    _coming: Iterator[EncodedRun] = field(default_factory=lambda: iter(()))
    _next: QueueKey | None = None  # the queue that leads next

    def staged(self, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        try:
            return StagedPart(partition=self.partition, runs=tuple(self._runs(batches)))
        finally:
            if self._spool is not None:
                self._spool.close()

    def _runs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[StagedRun]:
        encoded = (encode_batch(batch, self.columns, with_keys=self.index) for batch in batches)
        self._coming = chain.from_iterable(encoded)
        first = next(self._coming, None)
        if first is None:
            return
        self._hold(first)
        self._next = first.key
        maker = run_maker(
            self.config,
            self.provider,
            f"{run_folder(self.run_id)}/{self.now_ms:013d}.{self.partition}-{self.attempt}",
            with_keys=self.index,
        )
        ends = QueueEnds(self.provider, self.config.broker_name)
        while (key := self._next) is not None:
            queue_offset, log_offset = ends.of(key)
            self._next = None
            source = _Leading(self, key)
            run = maker.made(key, [source], queue_offset=queue_offset, log_offset=log_offset)
            ends.move(run)
            yield run
            if self._next is None:  # no more rows will come
                self._next = min({*self._waiting, *self._spilled}, default=None)

    def held(self, key: QueueKey) -> tuple[list[_Spilled], list[EncodedRun]]:
        """Hand everything held of this queue over to the caller."""
        runs = self._waiting.pop(key, [])
        self._waiting_bytes -= sum(run.held_bytes for run in runs)
        return self._spilled.pop(key, []), runs

    def _hold(self, run: EncodedRun) -> None:
        self._waiting.setdefault(run.key, []).append(run)
        self._waiting_bytes += run.held_bytes

    def coming_of(self, key: QueueKey) -> Iterator[EncodedRun]:
        """The leading queue's runs as they come. Runs of other queues in between are held."""
        others = 0
        for run in self._coming:
            if run.key == key:
                others = 0
                yield run
                continue
            self._hold(run)
            others += run.held_bytes
            if others >= self.block_bytes:
                self._next = run.key
                return
            if self._waiting_bytes >= self.block_bytes:
                for waiting, runs in self._waiting.items():
                    self._spilled.setdefault(waiting, []).append(self.spilled(runs))
                self._waiting, self._waiting_bytes = {}, 0

    def spilled(self, runs: Sequence[EncodedRun], *, with_records: bool = True) -> _Spilled:
        """Append these runs of one queue to the spool file."""
        if self._spool is None:
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
            self._spool = Spool(Path(folder) if folder else None)
        columns = np.empty(sum(map(len, runs)), _ROW)
        columns["size"] = np.concatenate([run.message_bytes for run in runs])
        columns["tags"] = np.concatenate([run.tags_codes for run in runs])
        columns["time"] = np.concatenate([run.store_times for run in runs])
        columns["keys"] = np.concatenate([run.key_counts for run in runs])
        hashes = np.concatenate([run.key_hashes for run in runs])
        spool, position = self._spool, self._spool.size
        spool.append(columns.view(np.uint8).data)
        if with_records:
            spool.append(hashes.view(np.uint8).data)
            for run in runs:
                spool.append(run.records)
        return _Spilled(spool, position, len(columns), len(hashes))


class _Leading:
    """The rows of the leading queue: those held so far, then those still to come."""

    def __init__(self, stager: Stager, key: QueueKey) -> None:
        self._stager, self._key = stager, key
        self._read: list[_Spilled] = []

    def rows(self) -> Iterator[Rows]:
        stager = self._stager
        spilled, waiting = stager.held(self._key)
        for each in spilled:
            self._read.append(each)
            yield from each.rows()
        for run in chain(waiting, stager.coming_of(self._key)):
            self._read.append(stager.spilled([run], with_records=False))
            yield Rows(
                sizes=run.message_bytes,
                tags=run.tags_codes,
                times=run.store_times,
                key_counts=run.key_counts,
                key_hashes=run.key_hashes,
                records=bytearray(run.records),
            )

    def units(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        for each in self._read:
            yield from each.units()


def run_maker(
    config: StoreConfig, provider: SegmentProvider, stem: str, *, with_keys: bool
) -> RunMaker:
    return RunMaker(
        config=config,
        segments=staged_segments_of(config, provider),
        scratch=scratch_of(config, provider),
        stem=stem,
        with_keys=with_keys,
    )


def staged_segments_of(config: StoreConfig, provider: SegmentProvider) -> Scratch:
    return given_scratch(config, provider.staged_segments(config.broker_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteItem:
    """Consecutive runs of one queue, and the offsets at which the first is to begin."""

    key: QueueKey
    queue_offset: int
    log_offset: int
    runs: tuple[StagedRun, ...]

    @property
    def approximate_bytes(self) -> int:
        return sum(run.log_bytes for run in self.runs)

    def keys(self) -> tuple[KeyRun, ...]:
        """The staged keys, shifted along with their messages."""
        found = []
        queue_offset, log_offset = self.queue_offset, self.log_offset
        for run in self.runs:
            for keys in run.keys:
                shift = log_offset - run.log_offset
                found.append(replace(keys, first_offset=queue_offset, log_shift=shift))
            queue_offset, log_offset = queue_offset + run.count, log_offset + run.log_bytes
        return tuple(found)


def rewrite(config: StoreConfig, folder: str, now_ms: int, item: RewriteItem) -> StagedRun:
    """Stage the messages of these runs as segments at other offsets, without their keys."""
    provider = worker_provider(config)
    stem = f"{folder}/{now_ms:013d}.again-{uuid.uuid4().hex[:12]}"
    maker = run_maker(config, provider, stem, with_keys=False)
    sources = [StagedSource(scratch=maker.segments, run=run) for run in item.runs]
    return maker.made(item.key, sources, queue_offset=item.queue_offset, log_offset=item.log_offset)
