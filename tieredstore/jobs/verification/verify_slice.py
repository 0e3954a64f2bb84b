"""One slice of a queue, read whole: its units, the messages they name and what none of them names.

What lives here: `SliceItem` and `verify_slice`. What must hold between a unit and its message is in
`verify_records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.end_marks import CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.flat.record_rows import RECORD_BYTES_MIN
from tieredstore.jobs.reading.slices import Slice
from tieredstore.jobs.verification.verify_bytes import SegmentBytes
from tieredstore.jobs.verification.verify_findings import Findings, VerifyKind, VerifyRow
from tieredstore.jobs.verification.verify_message_keys import MessageKeys, keys_of_messages, of_ipv6
from tieredstore.jobs.verification.verify_records import (
    Checked,
    Named,
    Rows,
    Tell,
    check_records,
    groups_of,
)
from tieredstore.jobs.verification.verify_sums import SumTable, marks, wanted_sums
from tieredstore.jobs.verification.verify_telling import SliceFindings
from tieredstore.jobs.verification.verify_unnamed import UnnamedBytes
from tieredstore.jobs.worker_parts import worker_provider
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentError
from tieredstore.model.values import INT32_MAX, SegmentType

UNITS_AT_ONCE: Final = 65_536
READS_MAX: Final = 10_000
"""Of one slice whose units lead all over its log: then the rest of it is not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceItem:
    """A slice of a queue, and the bytes of the log up to where the next slice begins.

    `next_offset` is the queue offset of the first unit behind the slice, -1 if there is none;
    `more_rows` is the row that has it. `is_first`: nothing of the queue lies before. `sure_below`:
    the index must have the keys of all messages before this queue offset.
    """

    slice: Slice
    topic_id: int
    shift: int
    next_offset: int
    is_first: bool
    sure_below: int = 0
    more_rows: tuple[SegmentRecord, ...] = ()


def verify_slice(config: StoreConfig, item: SliceItem) -> VerifyRow:
    """Read all of it once. What cannot be read is a finding; raises BackendError all the same."""
    check = SliceCheck(config, item)
    try:
        for keys in check.run():
            check.count_keys(keys)
        return check.row()
    finally:
        check.close()


class SliceCheck:
    """A slice being read; `run` gives the keys of its sound messages as it goes."""

    def __init__(self, config: StoreConfig, item: SliceItem) -> None:
        provider = worker_provider(config)
        rows = {row.key: row for row in (*item.slice.rows, *item.more_rows)}.values()
        logs = [row for row in rows if row.type is SegmentType.COMMIT_LOG]
        units = [row for row in rows if row.type is SegmentType.CONSUME_QUEUE]
        self._log = SegmentBytes(provider, logs)
        self._units = SegmentBytes(provider, units)
        self._item = item
        self._key = item.slice.key
        self._findings = Findings()
        self._tell = SliceFindings(self._findings, self._key, self._log, self._units)
        self._unnamed = UnnamedBytes(self._log, self._key, self._findings)
        self._sums = SumTable()
        self._counts: Counter[str] = Counter()
        self._reads = 0

    def close(self) -> None:
        self._log.close()
        self._units.close()

    def row(self) -> VerifyRow:
        return VerifyRow(
            findings=self._findings.found(),
            totals=dict(self._findings.totals),
            left_out=self._findings.left_out,
            counts=dict(self._counts),
            sums=self._sums.table(),
        )

    def count_keys(self, keys: MessageKeys) -> None:
        self._counts["keys"] += int(np.count_nonzero(~keys.is_empty))
        for are_empty in (False, True):
            mine = keys.chosen(keys.is_empty == are_empty)
            if not len(mine):
                continue
            self._sums.add(
                wanted_sums(
                    topic_id=self._item.topic_id,
                    queue_id=self._key.queue_id,
                    shift=self._item.shift,
                    log_offsets=mine.log_offsets,
                    sizes=mine.sizes,
                    hashes=mine.hashes,
                    times=mine.times,
                    queue_offsets=mine.queue_offsets,
                    are_empty=are_empty,
                )
            )
        self._mark(keys.log_offsets[keys.ipv6], "ipv6")

    def run(self) -> Iterator[MessageKeys]:
        first, end = self._item.slice.first_offset, self._item.slice.end_offset
        if self._item.is_first:
            self._unnamed.begin_at(self._log.start)
        at = first
        for part in self._units.there(first * UNIT_BYTES, end * UNIT_BYTES):
            start, stop = -(-part.start // UNIT_BYTES), part.stop // UNIT_BYTES
            if at < start:
                self._lose_units(at, start)
            while start < stop:
                count = min(UNITS_AT_ONCE, stop - start)
                yield from self._units_at(start, count)
                start += count
            at = max(at, stop)
        if at < end:
            self._lose_units(at, end)
        self._end_of_slice()

    # Units

    def _lose_units(self, start: int, end: int) -> None:
        self._unnamed.lose_track()
        self._tell.lost_units(start, end)

    def _units_at(self, first: int, count: int) -> Iterator[MessageKeys]:
        position = first * UNIT_BYTES
        try:
            data = self._units.read(position, position + count * UNIT_BYTES)
        except SegmentError as error:
            self._unnamed.lose_track()
            self._tell.unreadable_units(error, first, count)
            return
        units = decode_units(data)
        self._counts["units"] += count
        self._counts["bytes"] += len(data)
        named = Named(
            queue_offsets=np.arange(first, first + count),
            places=units.log_offsets,
            sizes=units.message_bytes.astype(np.int64),
            tags_codes=units.tags_codes,
        )
        yield from self._named(self._plausible(named))

    def _plausible(self, named: Named) -> Named:
        """The rows whose record may be read; the others are told of, or have expired."""
        start, end = self._log.start, self._log.end
        # A unit may name a coda that has expired with its segment.
        on_coda = named.places == start - CODA_BYTES
        if on_coda.any():
            named = replace(named, places=np.where(on_coda, start, named.places))
        filled = (named.places == 0) & (named.sizes == INT32_MAX)
        self._tell.units(VerifyKind.FILLED_IN, named, filled, "there was no message for it")
        # Places are compared with the end less the size: nothing wraps around.
        sound = ~filled & (named.sizes >= RECORD_BYTES_MIN)
        gone = sound & (named.places >= 0) & (named.places <= start - named.sizes)
        gone &= np.logical_and.accumulate(gone | filled)  # the oldest ones only
        inside = sound & (named.places >= start) & (named.places <= end - named.sizes)
        beyond = ~(filled | gone | inside)
        why = f"the log has bytes {start} to {end} only"
        self._tell.units(VerifyKind.UNIT_BEYOND, named, beyond, why)
        self._counts["expired"] += int(np.count_nonzero(gone))
        if beyond.any() or filled.any():
            self._unnamed.lose_track()
            self._mark(_beside(named, beyond), "damaged")
        named = named.chosen(inside)
        held = self._log.holds(named.places, named.ends)
        if not held.all():
            self._unnamed.lose_track()
            self._tell.lost_records(named.chosen(~held))
            self._mark(named.places[~held], "damaged")
            named = named.chosen(held)
        return named

    # Records

    def _named(self, named: Named) -> Iterator[MessageKeys]:
        for group in groups_of(named, self._log):
            self._reads += 1
            if self._reads > READS_MAX:
                left = named.chosen(slice(group.start, None))
                self._tell.not_looked_at(left)
                self._mark(left.places, "damaged")
                return
            rows = named.chosen(slice(group.start, group.stop))
            start, end = int(rows.places[0]), int(rows.ends[-1])
            more = self._log.there(end, end + CODA_BYTES)
            read_end = more[0].stop if more and more[0].start == end else end
            try:
                data = self._log.read(start, read_end)
            except SegmentError as error:
                self._unnamed.lose_track()
                self._tell.unreadable_records(error, rows)
                self._mark(rows.places, "damaged")
                continue
            self._counts["messages"] += len(rows)
            self._counts["bytes"] += len(data)
            yield from self._records(rows, data, start)

    def _records(self, rows: Named, data: bytes, start: int) -> Iterator[MessageKeys]:
        wrong = np.zeros(len(rows), np.bool_)

        def tell(kind: VerifyKind, which: NDArray[np.bool_], say: Callable[[int], str]) -> None:
            wrong[which] = True
            self._tell.records(kind, rows, which, say)

        checked = check_records(self._key, rows, data, start, tell)
        self._check_times(checked, rows, ~wrong, tell)
        self._mark(rows.places[~checked.whole], "damaged")
        self._mark(_beside(rows, ~checked.whole), "damaged")
        self._unnamed.follow(rows, checked, wrong)
        if self._item.topic_id >= 0:
            whole = np.flatnonzero(checked.whole)
            yield keys_of_messages(self._key.topic, rows, checked.fields, whole)

    def _check_times(
        self, checked: Checked, rows: Named, untold: NDArray[np.bool_], tell: Tell
    ) -> None:
        """Between the times that the catalogue has for the segment, where it has true ones."""
        times = checked.fields.store_times()
        wanted = untold & ~of_ipv6(checked.fields)
        wrong = np.zeros(len(rows), np.bool_)
        for row in self._log.rows:
            begin, end = row.begin_timestamp, row.end_timestamp
            if begin is None or end is None or begin > end:
                continue
            mine = (rows.places >= row.base_offset) & (rows.places < row.end_offset)
            wrong |= mine & wanted & ((times < begin) | (times > end))
        if wrong.any():
            tell(
                VerifyKind.STORE_TIME,
                wrong,
                lambda row: f"it was stored at {times[row]}, which is no time of its segment",
            )

    # What follows

    def _end_of_slice(self) -> None:
        """The bytes up to the next slice, or to the end of the log."""
        offset = self._item.next_offset
        if offset < 0:
            self._unnamed.end_at(self._log.end, after=-1)
            return
        position = offset * UNIT_BYTES
        if not self._units.holds(np.array([position]), np.array([position + UNIT_BYTES]))[0]:
            return
        unit = decode_units(self._units.read(position, position + UNIT_BYTES))
        if unit.message_bytes[0] != INT32_MAX:
            self._unnamed.end_at(int(unit.log_offsets[0]), after=offset)

    def _mark(self, places: Rows, name: str) -> None:
        if len(places):
            self._sums.add(
                marks(
                    topic_id=self._item.topic_id,
                    queue_id=self._key.queue_id,
                    stretches=places >> self._item.shift,
                    name=name,
                )
            )


def _beside(named: Named, wrong: NDArray[np.bool_]) -> Rows:
    """Where the neighbours of these rows lie: their own messages are thereabouts."""
    beside = np.zeros(len(wrong), np.bool_)
    beside[1:] |= wrong[:-1]
    beside[:-1] |= wrong[1:]
    return named.places[beside & ~wrong]
