"""From staged bytes to segments of the tier: both offsets of each record are written into it.

What lives here: `WriteSegments`, a job of its own whose items are segments and that runs on the
threads of whoever holds the catalogue's lock: only one process writes a broker's segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.queue_unit import QueueUnits, encode_units
from tieredstore.codec.record_fields import LOG_OFFSET_POSITION, QUEUE_OFFSET_POSITION
from tieredstore.driver.segment import Buffer
from tieredstore.index.hits import CommittedRun
from tieredstore.index.run_keys import keys_of_run
from tieredstore.jobs.job import Plan, RowStream
from tieredstore.jobs.job_report import JobReport
from tieredstore.jobs.loading.load_plan import NewSegment, Piece, read_units
from tieredstore.jobs.loading.load_stage import TIME_BYTES
from tieredstore.jobs.loading.load_tier import OwnedTier
from tieredstore.jobs.reindexing.reindex_runs import KeyRun, RunWriter
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import SegmentType

CHUNK_BYTES: Final = 8 << 20  # of records in memory, for each segment under way; or one record
CHUNK_UNITS: Final = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSegment:
    """A segment that was made, as the catalogue is to know it, and the keys in it."""

    row: SegmentRecord
    runs: tuple[KeyRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSegments:
    """Makes the segments of a plan. Where `keys_folder` is given, the keys of logs are staged."""

    tier: OwnedTier
    segments: list[NewSegment]
    keys_folder: str | None = None

    @property
    def name(self) -> str:
        return "load"

    def plan(self) -> Plan[NewSegment]:
        return Plan(items=self.segments, item_bytes=[each.size for each in self.segments])

    def work(self, item: NewSegment) -> Iterable[WrittenSegment]:
        made = _Making(self.tier, item, self._keys_of(item))
        target = item.target
        with self.tier.provider.open(target.path, item.type, item.base) as segment:
            size = self.tier.provider.create(segment, made.blocks())
            if size != item.size:
                reason = f"{size} bytes were made instead of {item.size}"
                raise SegmentCorruptError(segment.path, reason, position=0)
        now = self.tier.runtime.clock.now_ms()
        runs = () if made.keys is None else tuple(made.keys.finish())
        yield WrittenSegment(row=item.row(now_ms=now, times=made.times), runs=runs)

    def finish(self, plan: Plan[NewSegment], rows: RowStream[WrittenSegment]) -> JobReport:
        raise NotImplementedError("whoever plans a load takes the rows")

    def _keys_of(self, item: NewSegment) -> RunWriter | None:
        if self.keys_folder is None or item.type is not SegmentType.COMMIT_LOG:
            return None
        target, first = item.target, item.pieces[0]
        return RunWriter(
            self.tier.scratch,
            f"{self.keys_folder}/keys-{target.topic_id}-{target.key.queue_id}-{item.base}",
            topic_id=target.topic_id,
            queue_id=target.key.queue_id,
            first_offset=first.queue_offset + first.first,
        )


class _Making:
    """The bytes of one segment, a chunk at a time."""

    def __init__(self, tier: OwnedTier, segment: NewSegment, keys: RunWriter | None) -> None:
        self.keys = keys
        self._scratch = tier.scratch
        self._segment = segment
        self._least: int | None = None
        self._greatest: int | None = None

    @property
    def times(self) -> tuple[int, int]:
        """The least and the greatest store time; when all blocks were given."""
        return self._least or 0, self._greatest or 0

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
        least, greatest = int(times.min()), int(times.max())
        self._least = least if self._least is None else min(self._least, least)
        self._greatest = greatest if self._greatest is None else max(self._greatest, greatest)

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
            if self.keys is not None:
                self._take_keys(run, self.keys)
            yield data
            done = stop

    def _take_keys(self, run: MessageRun, keys: RunWriter) -> None:
        target = self._segment.target
        committed = CommittedRun(run=run, log_offsets=run.log_offsets)
        found = keys_of_run(target.key.topic, target.topic_id, target.key.queue_id, committed)
        keys.add(found.columns)


def put_offsets(run: MessageRun) -> None:
    """Queue offset and log offset of each record, as the run has them."""
    words: NDArray[Any] = np.ndarray((len(run.records) - 7,), ">i8", run.records, strides=(1,))
    words[run.starts + QUEUE_OFFSET_POSITION] = np.arange(run.first_offset, run.end_offset)
    words[run.starts + LOG_OFFSET_POSITION] = run.log_offsets
