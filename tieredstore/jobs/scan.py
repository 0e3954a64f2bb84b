"""A scan of a tier: planned as slices and single messages, read as Arrow batches.

A scan has the columns of a message, and these:

    | column     | type   | what                                                                  |
    | ---------- | ------ | --------------------------------------------------------------------- |
    | key        | string | UNIQ_KEY or one of KEYS: a row for each; null if a message has none   |
    | body_plain | binary | the body as its producer made it, of at most PLAIN_BYTES_MAX bytes    |
    | damage     | string | null; or why a message cannot be read: then all but its place is null |

A body that cannot be decompressed is damage, but its message is still read: FAIL raises; otherwise
`body_plain` is null and `damage` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.model.extras import brought_by

with brought_by("jobs"):
    import pyarrow as pa

from tieredstore.access.reader import TieredReader
from tieredstore.codec.columns import RecordFields
from tieredstore.codec.message import CODA_BYTES, decode_message, is_coda
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.record import peek_message_bytes
from tieredstore.driver.provider import SegmentProvider
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import record_place
from tieredstore.flat.times import first_unit_from
from tieredstore.jobs.arrow import MESSAGE_COLUMNS, KeyPairs, MessageTable, key_pairs
from tieredstore.jobs.slices import (
    EVER,
    EVERYTHING,
    RUN_BYTES,
    RUN_COUNT,
    SPLIT_BYTES,
    Damage,
    OnDamage,
    QueueRows,
    Selection,
    Slice,
    SliceReader,
    is_gone,
    plan_slices,
    queue_rows,
    trimmed,
)
from tieredstore.jobs.worker import queue_file, worker_runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BodyNotPlainError,
    InvalidConfigError,
    SegmentCorruptError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.message_body import plain_body
from tieredstore.model.messages import MessageRun
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentRecord

log = log_of(__name__)

CLOCK_SLACK_MS: Final = 60_000  # how far a broker's clock may have been set back
INDEX_LAG_MS: Final = 3_600_000  # how much later than others a broker may tier a queue's messages
HITS_MAX: Final = 10_000  # of one key; if more messages have a key, the queues are read instead
PICKED_MAX: Final = 256  # messages of one work item
PICKED_AT_ONCE: Final = 8  # of them in memory
LOOKS_MAX: Final = 8  # at a queue that seems to have lost its end, while that changes
KEY: Final = "key"
BODY_PLAIN: Final = "body_plain"
DAMAGE: Final = "damage"
SCAN_COLUMNS: Final = {
    **MESSAGE_COLUMNS,
    KEY: pa.string(),
    BODY_PLAIN: pa.binary(),
    DAMAGE: pa.string(),
}
PLAIN_BATCH_BYTES: Final = 64 * 1024 * 1024
"""A batch ends after the message with which its plain bodies reach this size."""
_DAMAGED_AT_ONCE: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedMessages:
    """Places in one queue's log that may hold requested messages: where each record begins and how
    long it is, as an index has them, in order.

    Only messages with queue offsets in `offsets`, and in none of `others`, count. `rows` is all
    that a reader needs from the catalogue.
    """

    key: QueueKey
    path: str
    places: tuple[tuple[int, int], ...]
    offsets: tuple[int, int]
    others: tuple[tuple[int, int], ...]
    approximate_bytes: int
    rows: tuple[SegmentRecord, ...]
    from_copy: bool = False  # as in a slice

    def wants(self, offset: int) -> bool:
        return self.offsets[0] <= offset < self.offsets[1] and not any(
            first <= offset < end for first, end in self.others
        )


ScanItem: TypeAlias = Slice | PickedMessages


def selected_queues(reader: TieredReader, selection: Selection) -> list[QueueRows]:
    """The wanted queues as they are now. BackendUnavailableError if one could not be reached: an
    older catalogue's end of it would look as if messages had been lost."""
    for key in filter(selection.wants, reader.queues()):
        reader.max_offset(*key)
    from_copy = reader.catalogue.copy
    return queue_rows(reader.segments(), wanted=selection.wants, from_copy=from_copy)


def topic_ids(reader: TieredReader) -> dict[str, int]:
    """The number of each topic. A catalogue never gives a number twice.

    Empty if the catalogue is made from the bytes each time it is opened: topics that the key index
    does not know then get new numbers each time.
    """
    if reader.catalogue.source == "rebuild":
        return {}
    return {row.topic: row.topic_id for row in reader.topics()}


def refuse_unknown_topics(reader: TieredReader, topics: frozenset[str] | None) -> None:
    """Raise InvalidConfigError for a topic that the tier lacks, and name some that it has."""
    known = {key.topic for key in reader.queues()} | {row.topic for row in reader.topics()}
    missing = sorted((topics or frozenset()) - known)
    if missing:
        some = ", ".join(sorted(known)[:8]) or "none"
        raise InvalidConfigError(
            f"topics: the tier has no topic {missing[0]!r}; its {len(known)} topics: {some}"
            + (", …" if len(known) > 8 else "")
        )


def plan_scan(
    reader: TieredReader,
    selection: Selection,
    *,
    split_bytes: int = SPLIT_BYTES,
    accepts_loss: bool = False,
) -> list[ScanItem]:
    """Work items that cover at least what is selected. Readers then choose the matching rows.

    A selection that reaches beyond what a queue has left of its end raises SegmentCorruptError,
    unless it `accepts_loss`: no work item covers what is lost there.
    """
    queues, bounds = queues_to_their_ends(
        reader,
        selection,
        lambda queues: queue_bounds(reader, queues, selection),
        accepts_loss=accepts_loss,
    )
    if selection.key_texts is None or not reader.config.index_enabled:
        return _sliced(reader, queues, bounds, split_bytes)
    unindexed: list[ScanItem] = []
    picked: list[ScanItem] = []
    by_topic: dict[str, list[QueueRows]] = {}
    for rows in queues:
        by_topic.setdefault(rows.key.topic, []).append(rows)
    for topic, its_queues in by_topic.items():
        while True:
            begin = _index_begin(reader)
            # Ask how far the index goes before what it has: it may advance in between.
            lacking = {row.path: _unindexed(reader, row, bounds[row.path]) for row in its_queues}
            hits = _hits(reader, topic, selection)
            if _index_begin(reader) == begin:
                break  # else it lost its oldest file meanwhile
        for rows in its_queues:
            whole = bounds[rows.path]
            ranges = [whole] if hits is None else lacking[rows.path]
            for part in ranges:
                unindexed += _sliced(reader, [rows], {rows.path: part}, split_bytes)
            picked += _picked(rows, (hits or {}).get(rows.key.queue_id, {}), whole, ranges)
    return [*picked, *unindexed]


def queues_to_their_ends(
    reader: TieredReader,
    selection: Selection,
    bounds_of: Callable[[Sequence[QueueRows]], dict[str, tuple[int, int]]],
    *,
    accepts_loss: bool,
) -> tuple[list[QueueRows], dict[str, tuple[int, int]]]:
    """The wanted queues, and the range of each by its path. SegmentCorruptError if a range reaches
    beyond what a queue has left of its end, unless that is accepted.

    A writer at work may make a queue look as if it had lost its end. What a refresh does not change
    is lost.
    """
    looks, told = 0, dict[str, str]()
    while True:
        looks += 1
        queues = selected_queues(reader, selection)
        bounds = bounds_of(queues)
        lost = {
            rows.path: problem
            for rows in queues
            if (problem := reader.problem(*rows.key)) is not None
            and bounds[rows.path][1] > rows.end_offset
        }
        if accepts_loss:
            for path, problem in lost.items():
                log.warning("the end of %s is left out: %s", path, problem)
            return queues, bounds
        for rows in queues:
            if rows.path in lost and lost[rows.path] == told.get(rows.path):
                at = rows.end_offset * UNIT_BYTES
                raise SegmentCorruptError(rows.path, lost[rows.path], position=at)
        if not lost or looks >= LOOKS_MAX:
            return queues, bounds
        told = lost
        reader.refresh()


def _sliced(
    reader: TieredReader,
    queues: Sequence[QueueRows],
    bounds: Mapping[str, tuple[int, int]],
    split_bytes: int,
) -> list[ScanItem]:
    slices = plan_slices(queues, split_bytes=split_bytes, bounds=lambda rows: bounds[rows.path])
    return [*trimmed(reader.config, slices)]


def queue_bounds(
    reader: TieredReader, queues: Sequence[QueueRows], selection: Selection
) -> dict[str, tuple[int, int]]:
    """By queue path, the range of queue offsets that holds all that offset and time select."""
    if not selection.is_timed:
        return {rows.path: selection.offsets_of(rows.key) for rows in queues}
    pool = worker_runtime().fetch
    asked = [pool.submit(_bounds_in_time, reader, rows, selection) for rows in queues]
    return {rows.path: found.result() for rows, found in zip(queues, asked, strict=True)}


def _bounds_in_time(reader: TieredReader, rows: QueueRows, selection: Selection) -> tuple[int, int]:
    (first, end), (begin, until) = selection.offsets_of(rows.key), selection.times
    if begin != EVER[0]:
        found = reader.offset_by_time(*rows.key, max(begin - CLOCK_SLACK_MS, EVER[0]))
        first = max(first, found or 0)
    if until != EVER[1]:
        found = reader.offset_by_time(*rows.key, min(until + CLOCK_SLACK_MS, EVER[1]))
        end = end if found is None else min(end, found)
    return first, end


# Keys


def _hits(
    reader: TieredReader, topic: str, selection: Selection
) -> dict[int, dict[int, int]] | None:
    """Sizes of records by queue id and log offset; None if the index does not know all of them.

    No message is read here: thousands of messages may have a key, and each may be large.
    """
    begin, until = selection.times
    found: dict[int, dict[int, int]] = {}
    for key in sorted(selection.key_texts or ()):
        answer = reader.key_hits(
            topic, key, count_max=HITS_MAX, begin=max(begin, -INT64_MAX), end=until - 1
        )
        if not answer.complete:
            log.warning("%s: the index cannot tell all messages with key %r: read all", topic, key)
            return None
        for hit in answer.hits:
            found.setdefault(hit.queue_id, {})[hit.log_offset] = hit.message_bytes
    return found


def _index_begin(reader: TieredReader) -> tuple[int | None] | None:
    """From which store time on the index has messages; None if that is not known."""
    times = reader.indexed_times()
    return None if times is None else (times.begin,)


def _unindexed(
    reader: TieredReader, rows: QueueRows, whole: tuple[int, int]
) -> list[tuple[int, int]]:
    """The parts of a queue not in the index: its files are uploaded late, and dropped by age."""
    times = reader.indexed_times()
    if times is None:
        return [whole]
    end = reader.indexed_offset(*rows.key)
    if end is None:
        end = reader.offset_by_time(*rows.key, max(times.end - INDEX_LAG_MS, 0)) or 0
    ranges = [(max(whole[0], end), whole[1])]
    if times.begin is not None:
        first = reader.offset_by_time(*rows.key, times.begin + INDEX_LAG_MS) or 0
        ranges.append((whole[0], min(whole[1], first, end)))
    return [part for part in ranges if part[0] < part[1]]


def _picked(
    rows: QueueRows,
    places: Mapping[int, int],
    whole: tuple[int, int],
    others: Sequence[tuple[int, int]],
) -> Iterator[PickedMessages]:
    ordered = sorted(places.items())
    for start in range(0, len(ordered), PICKED_MAX):
        part = tuple(ordered[start : start + PICKED_MAX])
        yield PickedMessages(
            key=rows.key,
            path=rows.path,
            places=part,
            offsets=whole,
            others=tuple(others),
            approximate_bytes=sum(size for _, size in part),
            rows=(*rows.log, *rows.queue),
            from_copy=rows.from_copy,
        )


class OnCorrupt(Enum):
    """What to do with messages that cannot be read."""

    FAIL = "fail"
    SKIP = "skip"
    REPORT = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What to read from each work item, and how. It is pickled for workers.

    * FAIL raises SegmentCorruptError, which names the file and the position. SKIP leaves damaged
      messages out. REPORT logs them, and returns a row for each if `damage` is a column.
    * A body whose checksum differs from that in its record is damage, whatever the columns. With
      `crc_check_enabled` False it is not, and only the column `body_crc_ok` shows it.
    * `fails_on_loss` False: a missing segment counts as expired, and is skipped with a line in the
      log, whatever `on_corrupt` says.
    """

    columns: tuple[str, ...] = tuple(MESSAGE_COLUMNS)
    selection: Selection = EVERYTHING
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    fails_on_loss: bool = True

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in SCAN_COLUMNS:
                raise InvalidConfigError(
                    f"columns: there is no column {name!r}; there are {', '.join(SCAN_COLUMNS)}"
                )

    @property
    def accepts_loss(self) -> bool:
        """Whether it goes on where bytes are missing."""
        return self.on_corrupt is not OnCorrupt.FAIL or not self.fails_on_loss

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, SCAN_COLUMNS[name]) for name in self.columns])

    def batches(
        self,
        config: StoreConfig,
        item: ScanItem,
        *,
        provider: SegmentProvider | None = None,
        run_count: int = RUN_COUNT,
    ) -> Iterator[pa.RecordBatch]:
        """The selected messages of this work item, in queue order.

        Reads through this process's provider, or through a given one that has fetched the bytes. At
        most `run_count` messages are read at once.
        """
        taken: list[Damage] = []
        made = _Batches(self, item.key)
        file = queue_file(config, item.key, item.path, item.rows, provider=provider)
        for reader in _readers(config, item, file, self._taker(taken), run_count):
            for fields in reader.fields():
                yield from made.damaged(taken)
                yield from made.of(fields)
            yield from made.damaged(taken)

    def _taker(self, taken: list[Damage]) -> OnDamage | None:
        if not self.accepts_loss:
            return None

        def take(damage: Damage) -> None:
            if damage.is_missing and not self.fails_on_loss:
                log.warning("taken for expired: %s", damage)
                return
            if self.on_corrupt is OnCorrupt.FAIL:
                raise SegmentCorruptError(damage.path, damage.reason, position=damage.position)
            log.warning("left out: %s", damage)
            taken.append(damage)

        return take


class _Batches:
    """Turns runs of one queue, and its damage, into batches."""

    def __init__(self, scan: Scan, key: QueueKey) -> None:
        self._scan = scan
        self._key = key
        self._table = MessageTable([name for name in scan.columns if name in MESSAGE_COLUMNS])
        self._reports = scan.on_corrupt is OnCorrupt.REPORT and DAMAGE in scan.columns

    def of(self, fields: RecordFields) -> Iterator[pa.RecordBatch]:
        selection = self._scan.selection
        rows = selection.rows(fields)
        keys: KeyPairs | None = None
        by_key = KEY in self._scan.columns
        if len(rows) and (by_key or selection.key_texts is not None):
            pairs = key_pairs(fields, rows, selection)
            rows = np.unique(pairs.rows)
            if by_key:
                keys = pairs
        if not len(rows):
            return
        if BODY_PLAIN not in self._scan.columns:
            yield self._part(fields, rows, {}, keys)
            return
        copies = None if keys is None else np.bincount(keys.rows, minlength=len(fields))
        for part, plain in self._plain(fields, rows, copies):
            yield self._part(fields, part, plain, None if keys is None else keys.of(part))

    def _part(
        self,
        fields: RecordFields,
        rows: NDArray[np.int64],
        more: dict[str, pa.Array],
        keys: KeyPairs | None,
    ) -> pa.RecordBatch:
        """These rows, with the columns in `more`. If `keys` are given, one row for each key."""
        batch = self._table.batch(self._key, fields, rows)
        if self._table.columns == self._scan.columns:
            return batch
        columns = {**dict(zip(self._table.columns, batch.columns, strict=True)), **more}
        count = len(rows)
        if keys is not None:
            again = pa.array(np.searchsorted(rows, keys.rows))
            columns = {name: column.take(again) for name, column in columns.items()}
            columns[KEY] = keys.keys
            count = len(keys.rows)
        return self._batch(columns, count)

    def _plain(
        self, fields: RecordFields, rows: NDArray[np.int64], copies: NDArray[np.int64] | None
    ) -> Iterator[tuple[NDArray[np.int64], dict[str, pa.Array]]]:
        """The rows in parts of limited size, with the columns `body_plain` and `damage`."""
        bodies: list[bytes | None] = []
        reasons: list[str | None] = []
        first = held = 0
        for place, row in enumerate(rows.tolist()):
            body, reason = self._plain_of(fields, row)
            bodies.append(body)
            reasons.append(reason)
            held += len(body or b"") * (1 if copies is None else int(copies[row]))
            if held >= PLAIN_BATCH_BYTES or place + 1 == len(rows):
                yield (
                    rows[first : place + 1],
                    {
                        BODY_PLAIN: pa.array(bodies, pa.binary()),
                        DAMAGE: pa.array(reasons, pa.string()),
                    },
                )
                bodies, reasons, first, held = [], [], place + 1, 0

    def _plain_of(self, fields: RecordFields, row: int) -> tuple[bytes | None, str | None]:
        start, size = int(fields.body_starts[row]), int(fields.body_bytes[row])
        stored = bytes(memoryview(fields.data)[start : start + size])
        try:
            return plain_body(stored, int(fields.sys_flags[row])), None
        except BodyNotPlainError as error:
            offset = int(fields.queue_offsets[row])
            place = f"{self._key.topic}, queue {self._key.queue_id}, message {offset}"
            if self._scan.on_corrupt is OnCorrupt.FAIL:
                raise BodyNotPlainError(f"{place}: {error}") from error
            log.warning("%s: %s", place, error)
            return None, str(error)

    def damaged(self, taken: list[Damage]) -> Iterator[pa.RecordBatch]:
        """A row for each damaged message, if the scan reports damage. Clears the list."""
        reported = [damage for damage in taken if self._reports]
        taken.clear()
        first, end = self._scan.selection.offsets
        for damage in reported:
            start, stop = max(damage.first_offset, first), min(damage.end_offset, end)
            for at in range(start, stop, _DAMAGED_AT_ONCE):
                offsets = np.arange(at, min(stop, at + _DAMAGED_AT_ONCE))
                count = len(offsets)
                known = {
                    "topic": pa.repeat(pa.scalar(self._key.topic), count),
                    "queue_id": pa.repeat(pa.scalar(self._key.queue_id, pa.int32()), count),
                    "queue_offset": pa.array(offsets),
                    DAMAGE: pa.repeat(pa.scalar(damage.reason), count),
                }
                yield self._batch(known, count)

    def _batch(self, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
        schema = self._scan.schema
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _readers(
    config: StoreConfig,
    item: ScanItem,
    file: FlatMessageFile,
    on_damage: OnDamage | None,
    run_count: int,
) -> Iterator[SliceReader | _PickedReader]:
    if isinstance(item, Slice):
        count = min(run_count, RUN_COUNT)
        yield SliceReader(config, item, on_damage=on_damage, file=file, run_count=count)
    else:
        yield _PickedReader(config, item, on_damage=on_damage, file=file)


class _PickedReader:
    """The messages at places that an index names, each in a run of its own.

    An index may name records that no longer exist. If there is no message at a place, the queue
    decides: if a unit names the place, this is damage, and reported as for a slice; otherwise the
    place is ignored.
    """

    def __init__(
        self,
        config: StoreConfig,
        item: PickedMessages,
        *,
        on_damage: OnDamage | None,
        file: FlatMessageFile,
    ) -> None:
        self._config = config
        self._item = item
        self._on_damage = on_damage
        self._file = file
        self._seen: set[int] = set()  # an index may also name a message by an end mark before it

    def fields(self) -> Iterator[RecordFields]:
        pool = worker_runtime().fetch
        places = self._item.places
        for start in range(0, len(places), PICKED_AT_ONCE):
            part = places[start : start + PICKED_AT_ONCE]
            asked = [pool.submit(self._run_at, place, size) for place, size in part]
            for (place, _), future in zip(part, asked, strict=True):
                run = future.result()
                fields = None if run is None else RecordFields(run)
                if fields is not None and self._config.checks_bulk_reads:
                    fields.leave_out_damaged_bodies()
                if fields is None or not fields.is_sound:
                    yield from self._by_queue(place)
                elif self._is_new(fields.run.first_offset):
                    yield fields

    def _is_new(self, offset: int) -> bool:
        if offset in self._seen or not self._item.wants(offset):
            return False
        self._seen.add(offset)
        return True

    def _run_at(self, place: int, size: int) -> MessageRun | None:
        """The message at this place; None if there is no whole message of this queue."""
        log_file = self._file.log
        place = record_place(self._file, place)
        try:
            if size > RUN_BYTES and peek_message_bytes(log_file.read(place, 4)) != size:
                return None  # the length in an index may be wrong
            record = log_file.read(place, size)
            if is_coda(record):
                place += CODA_BYTES
                record = log_file.read(place, size)
            if peek_message_bytes(record) != size:
                return None
            message = decode_message(record, path=self._file.path, check_crc=False)
        except (TieredStoreError, ValueError):
            return None
        if (message.topic, message.queue_id) != self._item.key:
            return None
        return MessageRun(
            first_offset=message.queue_offset,
            log_offsets=np.array([place]),
            message_bytes=np.array([size], np.int32),
            tags_codes=np.array([message.tags_code]),
            starts=np.array([0]),
            records=record,
        )

    def _by_queue(self, place: int) -> Iterator[RecordFields]:
        """What the queue has at this place: the message, its damage, or nothing."""
        try:
            offset = first_unit_from(self._file, place)
            if offset >= self._file.commit_offset or not self._item.wants(offset):
                return
            if int(self._file.units(offset, 1).log_offsets[0]) != place:
                return
        except (SegmentCorruptError, SegmentNotFoundError) as error:
            if self._on_damage is None:
                raise
            nobody = self._item.offsets[0]  # it is unknown which message this was
            self._on_damage(
                Damage(
                    key=self._item.key,
                    first_offset=nobody,
                    end_offset=nobody,
                    path=error.path,
                    position=error.position if isinstance(error, SegmentCorruptError) else 0,
                    reason=str(error),
                    is_missing=isinstance(error, SegmentNotFoundError)
                    or isinstance(error.__cause__, SegmentNotFoundError)
                    or is_gone(self._config, self._item.rows, from_copy=self._item.from_copy),
                )
            )
            return
        part = Slice(
            key=self._item.key,
            path=self._item.path,
            first_offset=offset,
            end_offset=offset + 1,
            approximate_bytes=0,
            rows=self._item.rows,
            from_copy=self._item.from_copy,
        )
        reader = SliceReader(self._config, part, on_damage=self._on_damage, file=self._file)
        for fields in reader.fields():
            if self._is_new(offset):
                yield fields
