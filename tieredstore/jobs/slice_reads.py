"""One slice of a queue read ahead: its messages as runs, and what of it is damaged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from tieredstore.codec.columns import RecordFields
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import damaged_body, read_run
from tieredstore.jobs.slices import Slice
from tieredstore.jobs.worker import queue_file, worker_runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError, SegmentNotFoundError, TieredStoreError
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueKey

RUN_BYTES: Final = 8 * 1024 * 1024  # log bytes of one read
RUN_COUNT: Final = 16_384
UNITS_AT_ONCE: Final = 131_072  # 2.5 MiB of a consume queue in one read


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Messages with queue offsets in [first_offset, end_offset) that cannot be read.

    `position` is a byte of the segment at `path`. `is_missing`: the whole segment is not there;
    it was deleted, or expired after the slice was planned.
    """

    key: QueueKey
    first_offset: int
    end_offset: int
    path: str
    position: int
    reason: str
    is_missing: bool = False

    def __str__(self) -> str:
        last = self.end_offset - 1
        which = f"message {last}" if last == self.first_offset else f"{self.first_offset} to {last}"
        return f"{self.key.topic}, queue {self.key.queue_id}, {which}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _NextRun:
    """The next run, None behind the last one, and what was damaged before it."""

    run: MessageRun | None
    damages: list[Damage]


OnDamage: TypeAlias = Callable[[Damage], None]


class SliceReader:
    """The messages of one slice, in order.

    * Damage raises SegmentCorruptError, which names file and position, unless `on_damage` takes
      it: then what is damaged is left out, and everything sound around it is given.
    * A body with another checksum than its record names is damage, unless `checks_bodies` or the
      settings say that it is not looked at.
    * Two runs are in memory at a time, of RUN_BYTES or a single message each.
    * Messages whose records expired before the slice was planned are no damage.
    """

    def __init__(
        self,
        config: StoreConfig,
        slice: Slice,
        *,
        on_damage: OnDamage | None = None,
        file: FlatMessageFile | None = None,
        run_count: int = RUN_COUNT,
        checks_bodies: bool = True,
    ) -> None:
        self._checks_bodies = checks_bodies and config.checks_bulk_reads
        self._slice = slice
        self._on_damage = on_damage
        self._file = file or queue_file(config, slice.key, slice.path, slice.rows)
        self._runtime = worker_runtime()
        self._source = _UnitsAhead(self._file.queue, slice)
        self._run_count = run_count
        self._count_max = run_count
        self._pending: Damage | None = None  # may go on in the next message

    def runs(self) -> Iterator[MessageRun]:
        """Runs that follow each other, but for what is damaged."""
        for fields in self.fields():
            yield fields.run

    def fields(self) -> Iterator[RecordFields]:
        """Runs with the places of their records' fields; rows may not be `sound`."""
        step = self._ask(self._slice.first_offset)
        while True:
            found = step.result()
            for damage in found.damages:
                self._report(damage)
            self._flush()
            if found.run is None:
                return
            step = self._ask(found.run.end_offset)
            fields = RecordFields(found.run)
            bodies = fields.leave_out_damaged_bodies() if self._checks_bodies else ()
            if not fields.is_sound:
                self._report_unsound(fields, frozenset(bodies))
                self._flush()
            yield fields

    # Reading

    def _ask(self, offset: int) -> Future[_NextRun]:
        return self._runtime.fetch.submit(self._next_run, offset)

    def _next_run(self, offset: int) -> _NextRun:
        """The next run from here on; in another thread, and one at a time."""
        end = self._slice.end_offset
        damages: list[Damage] = []
        while offset < end:
            try:
                run = read_run(
                    self._file,
                    offset,
                    count_max=min(self._count_max, end - offset),
                    bytes_max=RUN_BYTES,
                    source=self._source,
                )
            except SegmentCorruptError as error:
                damages.append(self._passed_over(error, offset))
                offset = damages[-1].end_offset
                continue
            self._count_max = min(2 * self._count_max, self._run_count)
            if len(run):
                return _NextRun(run, damages)
            offset = max(offset + 1, self._file.min_offset)  # below it all has expired
        return _NextRun(None, damages)

    # Damage

    def _passed_over(self, error: SegmentCorruptError, offset: int) -> Damage:
        """The damage at this message; reading goes on behind it."""
        if self._on_damage is None:
            raise error
        missing = isinstance(error.__cause__, SegmentNotFoundError)
        self._count_max = 1  # what is damaged here and there is not read again and again
        return Damage(
            key=self._slice.key,
            first_offset=offset,
            end_offset=self._end_of_lost_segment(error, offset) if missing else offset + 1,
            path=error.path,
            position=error.position,
            reason=str(error),
            is_missing=missing,
        )

    def _end_of_lost_segment(self, error: SegmentCorruptError, offset: int) -> int:
        """The first message behind a log segment, or unit segment, that is not there at all."""
        for segment in self._file.queue.segments:
            if segment.segment.path == error.path:
                return min(segment.record.end_offset // UNIT_BYTES, self._slice.end_offset)
        for segment in self._file.log.segments:
            if segment.segment.path == error.path:
                return self._first_unit_from(segment.end, offset)
        return offset + 1

    def _first_unit_from(self, log_offset: int, offset: int) -> int:
        end = self._slice.end_offset
        while offset < end:
            count = min(UNITS_AT_ONCE, end - offset)
            places = self._file.units(offset, count).log_offsets
            behind = np.flatnonzero(places >= log_offset)
            if len(behind):
                return offset + max(1, int(behind[0]))
            offset += count
        return end

    def _report_unsound(self, fields: RecordFields, bodies: Collection[int]) -> None:
        for row in np.flatnonzero(~fields.sound).tolist():
            offset, place = fields.run.first_offset + row, int(fields.run.log_offsets[row])
            if row in bodies:
                error = damaged_body(self._file, offset, place)
            else:
                error = self._damage_at(place, offset)
            if self._on_damage is None:
                raise error
            self._report(
                Damage(
                    key=self._slice.key,
                    first_offset=offset,
                    end_offset=offset + 1,
                    path=error.path,
                    position=error.position,
                    reason=str(error),
                )
            )

    def _damage_at(self, log_offset: int, offset: int) -> SegmentCorruptError:
        reason = f"the lengths within message {offset} do not add up"
        found = self._file.log.segment_at(log_offset)
        if found is None:
            return SegmentCorruptError(self._file.path, reason, position=log_offset)
        return SegmentCorruptError(found.segment.path, reason, position=log_offset - found.base)

    def _report(self, damage: Damage) -> None:
        """Report damage. Neighbours become one, so that a lost stretch is reported once."""
        known = self._pending
        if known is not None and (known.end_offset, known.path) == (
            damage.first_offset,
            damage.path,
        ):
            self._pending = replace(known, end_offset=damage.end_offset)
            return
        self._flush()
        self._pending = damage

    def _flush(self) -> None:
        damage, self._pending = self._pending, None
        if damage is not None and self._on_damage is not None:
            self._on_damage(damage)


class _UnitsAhead:
    """Units are read many at once: a run has few of them, and each read is a request."""

    def __init__(self, queue: FlatAppendFile, slice: Slice) -> None:
        self._queue = queue
        self._end = slice.end_offset * UNIT_BYTES
        self._start = 0
        self._held = b""

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        if file is not self._queue:
            return file.read(offset, length)
        at = offset - self._start
        if not (self._held and at >= 0 and at + length <= len(self._held)):
            self._held, self._start, at = self._more(offset, length), offset, 0
        return self._held[at : at + length]

    def _more(self, offset: int, length: int) -> bytes:
        size = max(length, min(UNITS_AT_ONCE * UNIT_BYTES, self._end - offset))
        try:
            return self._queue.read(offset, size)
        except TieredStoreError:
            return self._queue.read(offset, length)  # what is there is served
