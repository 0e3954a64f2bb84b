"""Checks one slice of a queue: its units, the messages that they name, and all other bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.columns import Properties, Records, hashed_keys, texts_are
from tieredstore.codec.java import encode_utf8
from tieredstore.codec.key_hashes import key_hash
from tieredstore.codec.message import BLANK_MAGIC, CODA_BYTES, is_coda
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.codec.record import (
    HOSTS_IPV6,
    INT32,
    KEYS,
    MESSAGE_MAGICS,
    RECORD_BYTES_MIN,
    peek_magic,
    peek_message_bytes,
    peek_queue_offset,
)
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.reading import HOLE_BYTES_MAX
from tieredstore.index.watermarks import QueueId
from tieredstore.jobs.slices import Slice
from tieredstore.jobs.verify_findings import (
    At,
    Columns,
    Findings,
    MessageKeys,
    SumTable,
    VerifyKind,
    VerifyRow,
    key_entry_hashes,
    marked_sums,
    read_groups,
    wanted_sums,
)
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentError,
    SegmentNotFoundError,
)
from tieredstore.model.topics import SCHEDULE_TOPIC
from tieredstore.model.values import INT32_MAX, QueueKey, SegmentRecord, SegmentType

BYTES_AT_ONCE: Final = 8 * 1024 * 1024
NEAR_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""BYTES_AT_ONCE for files: where a read costs no request, what fits the CPU cache is faster."""
UNITS_AT_ONCE: Final = 65_536
READS_MAX: Final = 10_000
"""Per slice. If its units lead all over the log, the rest of it is not looked at."""
_CODA_HEAD: Final = np.uint64(CODA_BYTES << 32 | BLANK_MAGIC)
_PLACES_FROM: Final = -(2**63)
_PLACES_TO: Final = _PLACES_FROM + 2**40  # a terabyte of one queue's extended units
_HEAD_BYTES: Final = 36
_LOOKED_AT_MAX: Final = 1_000  # records in one stretch of unnamed bytes

Rows: TypeAlias = NDArray[np.int64]
Tell: TypeAlias = Callable[[VerifyKind, NDArray[np.bool_], Callable[[int], str]], None]
"""Gets the rows that have this kind of damage, and a function that describes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceItem:
    """A slice of a queue, and the bytes of the log up to where the next slice begins.

    `next_offset` is the queue offset of the first unit after the slice, -1 if there is none;
    `more_rows` has the row with that unit. `is_first`: nothing of the queue lies before the slice.
    `sure_below`: the index must have the keys of all messages before this queue offset; None if no
    such offset was noted.
    """

    slice: Slice
    topic_id: int
    shift: int
    next_offset: int = -1
    is_first: bool = False
    sure_below: int | None = None
    more_rows: tuple[SegmentRecord, ...] = ()

    @property
    def queue(self) -> QueueId:
        return QueueId(self.topic_id, self.slice.key.queue_id)


def verify_slice(config: StoreConfig, item: SliceItem) -> VerifyRow:
    """Read the slice once. What cannot be read is a finding; a BackendError is still raised."""
    check = SliceCheck(config, item)
    try:
        for keys in check.run():
            check.count_keys(keys)
        return check.row()
    finally:
        check.close()


class SliceCheck:
    """The check of one slice. `run` reads it, and yields the keys of its sound messages."""

    def __init__(self, config: StoreConfig, item: SliceItem) -> None:
        provider = worker_provider(config)
        rows = {row.key: row for row in (*item.slice.rows, *item.more_rows)}.values()
        provider.catch_up([*rows])
        logs = [row for row in rows if row.type is SegmentType.COMMIT_LOG]
        units = [row for row in rows if row.type is SegmentType.CONSUME_QUEUE]
        self._log = SegmentBytes(provider, logs)
        self._units = SegmentBytes(provider, units)
        self._bytes_at_once = BYTES_AT_ONCE if provider.reads_together else NEAR_BYTES_AT_ONCE
        self._item = item
        self._key = item.slice.key
        self._findings = Findings(self._key)
        units_here = range(item.slice.first_offset, item.slice.end_offset)
        self._unnamed = UnnamedBytes(self._log, self._findings, units_here)
        self._sums = SumTable()
        self._counts: Counter[str] = Counter()
        self._reads = 0
        self._log_start: int | None = None
        self._is_in_log = False  # some unit so far names bytes of the log: none after it expired

    def close(self) -> None:
        self._log.close()
        self._units.close()

    def row(self) -> VerifyRow:
        return VerifyRow(
            findings=self._findings,
            counts=dict(self._counts),
            sums=self._sums.table(),
            queue=self._item.queue,
            log_start=self._log_start,
        )

    def count_keys(self, keys: MessageKeys) -> None:
        self._counts["keys"] += int(np.count_nonzero(~keys.is_empty))
        parts = [(False, keys)]
        if keys.is_empty.any():
            parts = [(some, keys.chosen(keys.is_empty == some)) for some in (False, True)]
        for are_empty, mine in parts:
            if len(mine):
                sums = wanted_sums(self._item.queue, mine, self._item.shift, are_empty=are_empty)
                self._sums.add(sums)
        self._mark(keys.log_offsets[keys.ipv6], "ipv6")

    def run(self) -> Iterator[MessageKeys]:
        first, end = self._item.slice.first_offset, self._item.slice.end_offset
        if self._item.is_first:
            self._unnamed.begin_at(self._log.start, first)
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
        text = f"the units of messages {start} to {end - 1} are not there"
        self._add_units(VerifyKind.LOST_BYTES, text, start, end - start)

    def _units_at(self, first: int, count: int) -> Iterator[MessageKeys]:
        position = first * UNIT_BYTES
        try:
            data = self._units.read(position, position + count * UNIT_BYTES)
        except SegmentError as error:
            self._unnamed.lose_track()
            text = f"{count} units from {first} on cannot be read: {error}"
            self._add_units(VerifyKind.UNREADABLE, text, first, count)
            return
        self._counts["units"] += count
        self._counts["bytes"] += len(data)
        named = self._plausible(named_by(first, data))
        if len(named):
            first = int(named.places.min())
            self._log_start = first if self._log_start is None else min(self._log_start, first)
        yield from self._named(named)

    def _plausible(self, named: Named) -> Named:
        """The rows whose records can be read. The others are reported, or have expired."""
        start, end = self._log.start, self._log.end
        # A unit may name a coda that has expired with its segment.
        on_coda = named.places == start - CODA_BYTES
        if on_coda.any():
            named = replace(named, places=np.where(on_coda, start, named.places))
        filled = (named.places == 0) & (named.sizes == INT32_MAX)
        self._describe_units(VerifyKind.FILLED_IN, named, filled, "there was no message for it")
        # Compare places with end minus size: adding place and size could overflow.
        sound = ~filled & (named.sizes >= RECORD_BYTES_MIN)
        gone = sound & _before_log(named, start)
        gone &= np.logical_and.accumulate(gone | filled)  # the oldest ones only
        if self._is_in_log:
            gone[:] = False
        inside = sound & (named.places >= start) & (named.places <= end - named.sizes)
        beyond = ~(filled | gone | inside)
        why = f"the log has bytes {start} to {end} only"
        self._describe_units(VerifyKind.UNIT_BEYOND, named, beyond, why)
        self._counts["expired"] += int(np.count_nonzero(gone))
        if gone.any():
            self._unnamed.begin_at(start, int(named.queue_offsets[gone][-1]) + 1)
        self._is_in_log |= bool(inside.any())
        if beyond.any() or filled.any():
            self._unnamed.lose_track()
            self._mark(_beside(named, beyond), "damaged")
        named = named.chosen(inside)
        held = self._log.holds(named.places, named.ends)
        if not held.all():
            self._unnamed.lose_track()
            lost = named.chosen(~held)
            first, last = lost.queue_offsets[[0, -1]].tolist()
            text = f"the records of {len(lost)} messages from {first} to {last} are not there"
            self._add_records(VerifyKind.LOST_BYTES, text, lost)
            named = named.chosen(held)
        return named

    def _describe_units(
        self, kind: VerifyKind, named: Named, wrong: NDArray[np.bool_], why: str
    ) -> None:
        """Report units that name impossible bytes."""
        for row in self._findings.rows(kind, wrong):
            offset = int(named.queue_offsets[row])
            named_bytes = f"{named.sizes[row]} bytes at {named.places[row]}"
            text = f"the unit of message {offset} names {named_bytes}: {why}"
            at = self._units.place(offset * UNIT_BYTES)
            self._findings.describe(kind, at, text, queue_offset=offset)

    def _add_units(self, kind: VerifyKind, text: str, first: int, count: int) -> None:
        at = self._units.place(first * UNIT_BYTES)
        self._findings.add(kind, at, text, queue_offset=first, count=count)

    # Records

    def _named(self, named: Named) -> Iterator[MessageKeys]:
        for group in groups_of(named, self._log, self._bytes_at_once):
            self._reads += 1
            if self._reads > READS_MAX:
                left = named.chosen(slice(group.start, None))
                first, count = int(left.queue_offsets[0]), len(left)
                text = f"units from {first} on lead all over the log: {count} were not looked at"
                self._add_units(VerifyKind.UNREADABLE, text, first, count)
                self._mark(left.places, "damaged")
                return
            rows = named.chosen(group)
            start, end = int(rows.places[0]), int(rows.ends[-1])
            more = self._log.there(end, end + CODA_BYTES)
            read_end = more[0].stop if more and more[0].start == end else end
            try:
                if end - start > self._bytes_at_once and not self._is_as_long(start, end):
                    self._unnamed.lose_track()
                    text = f"no message of {end - start} bytes is at byte {start}"
                    self._add_records(VerifyKind.NO_MESSAGE, text, rows)
                    continue
                data = self._log.read(start, read_end)
            except SegmentError as error:
                self._unnamed.lose_track()
                first = int(rows.queue_offsets[0])
                text = f"{len(rows)} messages from {first} on cannot be read: {error}"
                self._add_records(VerifyKind.UNREADABLE, text, rows)
                continue
            self._counts["messages"] += len(rows)
            self._counts["bytes"] += len(data)
            yield from self._records(rows, data, start)
            del data  # free the memory before the next read

    def _is_as_long(self, start: int, end: int) -> bool:
        """Whether the head at `start` says so too, or is that of a marker before the record: a
        damaged size must not have a gigabyte read."""
        claimed = peek_message_bytes(self._log.read(start, start + INT32.size))
        return claimed in (end - start, CODA_BYTES)

    def _records(self, rows: Named, data: bytes, start: int) -> Iterator[MessageKeys]:
        wrong = np.zeros(len(rows), np.bool_)

        def tell(kind: VerifyKind, which: NDArray[np.bool_], say: Callable[[int], str]) -> None:
            wrong[which] = True
            for row in self._findings.rows(kind, which):
                offset = int(rows.queue_offsets[row])
                at = self._log.place(int(rows.places[row]))
                text = f"message {offset}: {say(row)}"
                self._findings.describe(kind, at, text, queue_offset=offset)

        checked = check_records(self._key, rows, data, start, tell)
        self._check_times(checked, rows, ~wrong, tell)
        self._mark(rows.places[~checked.whole], "damaged")
        self._mark(_beside(rows, ~checked.whole), "damaged")
        self._unnamed.follow(rows, checked, wrong)
        if self._item.topic_id >= 0:
            yield keys_of_messages(self._key.topic, rows, checked)

    def _add_records(self, kind: VerifyKind, text: str, rows: Named) -> None:
        """Add one finding for all of these rows. Their records count as damaged."""
        at, first = self._log.place(int(rows.places[0])), int(rows.queue_offsets[0])
        self._findings.add(kind, at, text, queue_offset=first, count=len(rows))
        self._mark(rows.places, "damaged")

    def _check_times(
        self, checked: Checked, rows: Named, untold: NDArray[np.bool_], tell: Tell
    ) -> None:
        """Compare store times with the segment's times in the catalogue, if those are valid."""
        times = checked.fields.store_times()
        wanted = untold & ~of_ipv6(checked.fields)
        wrong = np.zeros(len(rows), np.bool_)
        for row in self._log.rows_within(int(rows.places[0]), int(rows.ends[-1])):
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
        """Look at the bytes up to the next slice, or to the end of the log."""
        offset = self._item.next_offset
        if offset < 0:
            self._unnamed.end_at(self._log.end, after=-1)
            return
        position = offset * UNIT_BYTES
        if not self._units.holds(np.array([position]), np.array([position + UNIT_BYTES]))[0]:
            return
        try:
            data = self._units.read(position, position + UNIT_BYTES)
        except SegmentError:  # the next slice reports it
            return
        unit = named_by(offset, data)
        gone = _before_log(unit, self._log.start) & (unit.sizes >= RECORD_BYTES_MIN)
        if self._is_in_log and gone[0]:  # the next slice cannot tell it from an expired one
            why = "older messages have not expired"
            self._describe_units(VerifyKind.UNIT_BEYOND, unit, gone, why)
            self._mark(self._unnamed.ends, "damaged")
        elif unit.sizes[0] != INT32_MAX:
            self._unnamed.end_at(int(unit.places[0]), after=offset)

    def _mark(self, places: Rows, name: str) -> None:
        if len(places):
            self._sums.add(marked_sums(self._item.queue, places >> self._item.shift, name))


def _beside(named: Named, wrong: NDArray[np.bool_]) -> Rows:
    """Where the sound neighbours of wrong rows lie: the messages of the wrong rows are near."""
    beside = np.zeros(len(wrong), np.bool_)
    beside[1:] |= wrong[:-1]
    beside[:-1] |= wrong[1:]
    return named.places[beside & ~wrong]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Columns):
    """Rows of units: queue offsets, and what each unit says of its message."""

    queue_offsets: Rows
    places: Rows
    sizes: Rows
    tags_codes: Rows

    @property
    def ends(self) -> Rows:
        return self.places + self.sizes


def named_by(first: int, data: bytes) -> Named:
    """The rows of these units, of which `first` is the queue offset of the first."""
    units = decode_units(data)
    return Named(
        queue_offsets=np.arange(first, first + len(units.log_offsets)),
        places=units.log_offsets,
        sizes=units.message_bytes.astype(np.int64),
        tags_codes=units.tags_codes,
    )


def _before_log(named: Named, start: int) -> NDArray[np.bool_]:
    """Whose records lie before the log, which begins at `start`."""
    before: NDArray[np.bool_] = (named.places >= 0) & (named.places <= start - named.sizes)
    return before


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result for rows: `whole` marks messages of this queue, and `properties` are theirs;
    `fields` and `ends` are those of all rows."""

    fields: Records
    whole: NDArray[np.bool_]
    properties: Properties
    ends: Rows


def check_records(key: QueueKey, named: Named, data: bytes, start: int, tell: Tell) -> Checked:
    """Compare each row with its record; `data` is the log's bytes from `start` on.

    Only the first problem of a row is reported: others follow from it.
    """
    starts = named.places - start
    fields = Records(data, starts, named.sizes)
    if not fields.is_sound:
        starts = _behind_codas(starts, data)
        fields = Records(data, starts, named.sizes)
    untold = np.ones(len(named), np.bool_)

    def check(kind: VerifyKind, good: NDArray[np.bool_], say: Callable[[int], str]) -> None:
        wrong = untold & ~good
        if wrong.any():
            tell(kind, wrong, say)
            untold[wrong] = False

    check(
        VerifyKind.NO_MESSAGE,
        fields.sound,
        lambda row: f"no whole message of {named.sizes[row]} bytes is at byte {named.places[row]}",
    )
    held = fields.queue_ids()
    topic = texts_are(data, fields.topic_starts, fields.topic_bytes, encode_utf8(key.topic))
    check(
        VerifyKind.WRONG_QUEUE,
        (held == key.queue_id) & topic,
        lambda row: f"its message names another topic, or queue {held[row]}",
    )
    whole = untold.copy()
    offsets = fields.own_queue_offsets()
    check(
        VerifyKind.WRONG_OFFSET,
        offsets == named.queue_offsets,
        lambda row: f"its unit names message {offsets[row]}",
    )
    places = fields.own_log_offsets()
    check(
        VerifyKind.WRONG_LOG_OFFSET,
        (places == named.places) | (places == starts + start),
        lambda row: f"its record says that it lies at byte {places[row]}",
    )
    _check_bodies(fields, untold, check)
    rows = np.flatnonzero(whole)
    properties = fields.properties(rows)
    if key.topic != SCHEDULE_TOPIC:
        codes = np.zeros(len(named), np.int64)
        codes[rows] = properties.tags_codes()
        check(
            VerifyKind.TAGS_CODE,
            codes_agree(named.tags_codes, codes),
            lambda row: f"its unit has tags code {named.tags_codes[row]}, its tags {codes[row]}",
        )
    ends = starts + start + named.sizes
    return Checked(fields=fields, whole=whole, properties=properties, ends=ends)


def _behind_codas(starts: Rows, data: bytes) -> Rows:
    """The starts, moved past end markers: old stores may name the marker before a record."""
    if len(data) < 8:
        return starts
    words: NDArray[Any] = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
    codas = words[np.clip(starts, 0, len(words) - 1)] == _CODA_HEAD
    return np.where(codas, starts + CODA_BYTES, starts) if codas.any() else starts


def _check_bodies(fields: Records, untold: NDArray[np.bool_], check: Any) -> None:
    rows = np.flatnonzero(untold)
    good = np.ones(len(untold), np.bool_)
    good[rows] = fields.body_crc_ok(rows)
    check(VerifyKind.BODY_CRC, good, lambda _: "its body has another CRC than its record says")


def codes_agree(held: Rows, wanted: Rows) -> NDArray[np.bool_]:
    """Whether each unit has its message's tags code, or may name an extended unit that has it.

    RocketMQ counts the places of extended units up from the smallest number. A place that differs
    from the tags code only in the first bit counts as a damaged code, unless it is place 0 and
    other units name places too.
    """
    places = held < _PLACES_TO
    first_bit = held == (wanted ^ _PLACES_FROM)
    is_among_places = np.count_nonzero(places) > 1
    believed = places & (~first_bit | ((held == _PLACES_FROM) & is_among_places))
    agree: NDArray[np.bool_] = (held == wanted) | believed
    return agree


def groups_of(named: Named, log: SegmentBytes, limit: int) -> Iterator[slice]:
    """Groups of rows that one read takes: in order, near each other, and of at most `limit` bytes
    or a single row."""
    gaps = named.places[1:] - named.ends[:-1]
    torn = (gaps < 0) | (gaps > HOLE_BYTES_MAX)
    between = np.flatnonzero((gaps > 0) & ~torn)
    torn[between] = ~log.holds(named.ends[between], named.places[between + 1])
    return read_groups(named.places, named.ends, torn, limit)


def keys_of_messages(topic: str, named: Named, checked: Checked) -> MessageKeys:
    """The keys of the rows whose records are whole."""
    rows, fields, properties = np.flatnonzero(checked.whole), checked.fields, checked.properties
    prefix = key_hash(f"{topic}#")
    keys = hashed_keys(properties, np.full(len(rows), prefix, np.uint64), np.uint32)
    empties = rows[_with_empty_key(properties, keys.gaps)]
    owners = np.concatenate((np.repeat(rows, keys.counts), empties))
    empty_hash = key_entry_hashes(np.array([prefix], np.uint64))
    count = len(owners) - len(empties)
    return MessageKeys(
        log_offsets=named.places[owners],
        sizes=named.sizes[owners],
        hashes=np.concatenate((key_entry_hashes(keys.hashes), np.repeat(empty_hash, len(empties)))),
        times=fields.store_times()[owners],
        queue_offsets=named.queue_offsets[owners],
        ipv6=of_ipv6(fields)[owners],
        is_empty=np.arange(len(owners)) >= count,
    )


def _with_empty_key(properties: Properties, gaps: Rows) -> Rows:
    """The rows whose KEYS, as Java splits them, have an empty key that is not at the end."""
    if not len(gaps):
        return gaps
    rows, starts, ends = properties.values(KEYS)
    at = np.searchsorted(rows, gaps)
    texts = (text.rstrip(" ") for text in properties.texts(starts[at], ends[at]))
    return gaps[[text.startswith(" ") or "  " in text for text in texts]]


def of_ipv6(fields: Records) -> NDArray[np.bool_]:
    """Messages with an IPv6 address: RocketMQ takes part of it for the store time."""
    found: NDArray[np.bool_] = (fields.sys_flags & HOSTS_IPV6) != 0
    return found


class UnnamedBytes:
    """Finds bytes that no unit names. Knows where the last named record ends, and its queue offset.

    Next to a damaged unit or record nothing is reported: the unnamed bytes there belong to it.
    `units` are the queue offsets of the units that are looked at.
    """

    def __init__(self, log: SegmentBytes, findings: Findings, units: range) -> None:
        self._log = log
        self._findings = findings
        self._units = units
        self._end: int | None = None
        self._offset = -1
        self._first = units.start

    def begin_at(self, log_offset: int, first: int) -> None:
        """The queue's log begins here; the first unit that names a place in it comes next. All
        messages before `first` have expired."""
        self._end, self._offset, self._first = log_offset, -1, first

    @property
    def ends(self) -> Rows:
        """Where the last named record ends, if that is known."""
        return np.array([] if self._end is None else [self._end], np.int64)

    def lose_track(self) -> None:
        self._end = None

    def follow(self, named: Named, checked: Checked, wrong: NDArray[np.bool_]) -> None:
        """Look at the gaps before and between the next records that units name, in order."""
        if not len(named):
            return
        follows = self._offset < 0 or self._offset + 1 == named.queue_offsets[0]
        if self._end is not None and follows and not wrong[0] and named.places[0] > self._end:
            self._between(self._end, int(named.places[0]), int(named.queue_offsets[0]))
        gaps = named.places[1:] > checked.ends[:-1]
        gaps &= ~(wrong[1:] | wrong[:-1])
        # If offsets do not follow each other, the messages between have been reported.
        gaps &= named.queue_offsets[1:] - named.queue_offsets[:-1] == 1
        for row in np.flatnonzero(gaps).tolist():
            self._offset = int(named.queue_offsets[row])
            after = int(named.queue_offsets[row + 1])
            self._between(int(checked.ends[row]), int(named.places[row + 1]), after)
        if wrong[-1]:
            self._end = None
        else:
            self._end, self._offset = int(checked.ends[-1]), int(named.queue_offsets[-1])

    def end_at(self, log_offset: int, *, after: int) -> None:
        """Look at the rest up to here: the next slice's first record, or the end of the log."""
        if self._end is not None and self._end < log_offset:
            self._between(self._end, log_offset, after)

    def _between(self, start: int, stop: int, after: int) -> None:
        """Look at bytes start to stop; `after`: the offset of the next unit, -1 after the last."""
        looked_at = 0
        for part in self._log.there(start, stop):
            at = part.start
            while at < part.stop and looked_at < _LOOKED_AT_MAX:
                looked_at += 1
                at = self._look(at, part.stop, after)

    def _look(self, at: int, stop: int, after: int) -> int:
        """Report what is here, and return where to continue."""
        try:
            head = self._log.read(at, min(at + _HEAD_BYTES, stop))
        except SegmentError as error:
            self._tell(VerifyKind.UNREADABLE, at, str(error))
            return stop
        if is_coda(head):
            return at + CODA_BYTES
        is_short = len(head) < _HEAD_BYTES
        # A writer that dies during a write leaves part of a message at the end of a segment. The
        # message then goes into the next segment: it has a unit, or nothing after it was committed.
        following = self._first if self._offset < 0 else self._offset + 1
        may_be_left = stop in self._log.ends and not following < after
        unnamed = f"{stop - at} bytes that no unit names"
        if not is_short and may_be_left and not peek_message_bytes(head):
            # A power cut leaves unsynced sectors like this.
            self._tell(VerifyKind.SECOND_COPY, at, f"{unnamed}, never written")
            return stop
        if not is_short and peek_magic(head) not in MESSAGE_MAGICS:
            self._tell(VerifyKind.UNNAMED, at, f"{unnamed}, no message")
            return stop
        size = stop - at + 1 if is_short else peek_message_bytes(head)
        if not RECORD_BYTES_MIN <= size <= stop - at:
            is_left = may_be_left and size > stop - at
            kind = VerifyKind.SECOND_COPY if is_left else VerifyKind.UNNAMED
            self._tell(kind, at, f"{unnamed}, cut off")
            return stop
        self._tell_record(at, peek_queue_offset(head), after)
        return at + size

    def _tell_record(self, at: int, offset: int, after: int) -> None:
        if self._offset < 0 and offset < self._units.start:
            return  # older than these units: its own has expired
        if self._offset < 0 and offset in self._units and not 0 <= after <= offset:
            text = f"message {offset} is in the log, and its unit names a place before the log"
            self._tell(VerifyKind.UNNAMED, at, text, offset)
        elif after < 0 and offset > self._offset:
            text = f"message {offset} is in the log and its unit not yet in the queue"
            self._tell(VerifyKind.LOG_AHEAD, at, text, offset)
        elif self._offset < offset < after:
            text = f"message {offset} is in the log, and the queue has no unit for it"
            self._tell(VerifyKind.UNNAMED, at, text, offset)
        else:
            text = f"message {offset} lies here too, where no unit names it"
            self._tell(VerifyKind.SECOND_COPY, at, text, offset)

    def _tell(self, kind: VerifyKind, at: int, text: str, offset: int | None = None) -> None:
        self._findings.add(kind, self._log.place(at), text, queue_offset=offset)


class SegmentBytes:
    """Segments in a row, sorted by base; `start` and `end` are what the catalogue says.

    The backend is asked once how long a segment really is, when its bytes are first needed.
    """

    def __init__(self, provider: SegmentProvider, rows: Sequence[SegmentRecord]) -> None:
        self.rows = sorted((row for row in rows if row.size), key=lambda row: row.base_offset)
        self._bases = [row.base_offset for row in self.rows]
        self._provider = provider
        self._handles: dict[int, FileSegment] = {}
        self._sizes: dict[int, int] = {}

    @property
    def start(self) -> int:
        return self._bases[0] if self.rows else 0

    @property
    def end(self) -> int:
        return self.rows[-1].end_offset if self.rows else 0

    @property
    def ends(self) -> list[int]:
        """Where each segment ends."""
        return [row.end_offset for row in self.rows]

    def rows_within(self, start: int, stop: int) -> list[SegmentRecord]:
        """The rows that have any of these bytes."""
        return [self.rows[number] for number in self._numbers(start, stop)]

    def there(self, start: int, stop: int) -> list[range]:
        """The parts of this range that the backend has, in order."""
        parts: list[range] = []
        for number in self._numbers(start, stop):
            base = self._bases[number]
            part = range(max(start, base), min(stop, base + self._size(number)))
            if not part:
                continue
            if parts and parts[-1].stop == part.start:
                parts[-1] = range(parts[-1].start, part.stop)
            else:
                parts.append(part)
        return parts

    def holds(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each of many ranges, whether the backend has all of it."""
        found = np.zeros(len(starts), np.bool_)
        if len(starts):
            for part in self.there(int(starts.min()), int(stops.max())):
                found |= (starts >= part.start) & (stops <= part.stop)
        return found

    def read(self, start: int, stop: int) -> bytes:
        """Read bytes that are there. SegmentError if they are not there any more. Errors of the
        backend are raised."""
        pieces = []
        while start < stop:
            number = bisect_right(self._bases, start) - 1
            base = self._bases[number]
            end = min(stop, base + self._size(number))
            segment = self._handle(number)
            if end <= start:
                reason = "the byte is not there"
                raise SegmentCorruptError(segment.path, reason, position=start - base)
            try:
                pieces.append(segment.read(start - base, end - start))
            except OffsetOutOfRangeError as error:  # a shorter one has its name
                raise SegmentCorruptError(
                    segment.path, str(error), position=start - base
                ) from error
            start = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def place(self, offset: int) -> At:
        """The segment that has this byte, or the one before it."""
        number = max(0, bisect_right(self._bases, offset) - 1)
        return self._handle(number).path, offset - self._bases[number]

    def close(self) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()

    def _numbers(self, start: int, stop: int) -> Iterator[int]:
        for number in range(max(0, bisect_right(self._bases, start) - 1), len(self.rows)):
            if self._bases[number] >= stop:
                return
            yield number

    def _size(self, number: int) -> int:
        """Counted at most up to where the next segment begins: overlapping bytes are that one's."""
        size = self._sizes.get(number)
        if size is None:
            row = self.rows[number]
            try:
                size = min(row.size, self._handle(number).size())
            except SegmentNotFoundError:
                size = 0
            if number + 1 < len(self.rows):
                size = min(size, self._bases[number + 1] - row.base_offset)
            self._sizes[number] = size
        return size

    def _handle(self, number: int) -> FileSegment:
        handle = self._handles.get(number)
        if handle is None:
            row = self.rows[number]
            handle = self._provider.open(row.path, row.type, row.base_offset)
            self._handles[number] = handle
        return handle
