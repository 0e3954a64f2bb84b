"""A scan of a tier: planned as slices and single messages, read as Arrow batches.

A scan gives the columns of a message, and these:

    | column     | type   | what                                                                  |
    | ---------- | ------ | --------------------------------------------------------------------- |
    | key        | string | a row for each key of a message, UNIQ_KEY or one of KEYS; null without |
    | body_plain | binary | the body as its producer made it, of at most PLAIN_BYTES_MAX bytes     |
    | damage     | string | null; or why a message cannot be read, and all but where it is is null |

A body that cannot be made plain is damage, and its message is read all the same: FAIL raises;
otherwise `body_plain` is null and `damage` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tieredstore.access.reader import TieredReader
from tieredstore.codec.columns import RecordFields
from tieredstore.codec.record import peek_queue_id, peek_queue_offset
from tieredstore.driver.provider import SegmentProvider
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.jobs.arrow import MESSAGE_COLUMNS, KeyPairs, MessageTable, key_pairs
from tieredstore.jobs.slices import (
    EVER,
    EVERYTHING,
    SPLIT_BYTES,
    Damage,
    OnDamage,
    QueueRows,
    Selection,
    Slice,
    SliceReader,
    plan_slices,
    queue_rows,
    trimmed,
    units_within,
)
from tieredstore.jobs.worker import queue_file, worker_runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BodyNotPlainError, InvalidConfigError, SegmentCorruptError
from tieredstore.model.message_body import plain_body
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentRecord

log = log_of(__name__)

CLOCK_SLACK_MS: Final = 60_000  # so far a broker's clock may have been set back
INDEX_LAG_MS: Final = 3_600_000  # so late a broker may tier one queue's messages after another's
HITS_MAX: Final = 10_000  # of one key; a key that more messages have is found by reading
PICKED_MAX: Final = 256  # messages of one piece of work
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
"""A batch ends behind the message with which its plain bodies reach this."""
_DAMAGED_AT_ONCE: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedMessages:
    """Single messages of one queue, by ascending queue offset; `rows` is what a reader needs."""

    key: QueueKey
    path: str
    offsets: tuple[int, ...]
    approximate_bytes: int
    rows: tuple[SegmentRecord, ...]


ScanItem: TypeAlias = Slice | PickedMessages


def selected_queues(reader: TieredReader, selection: Selection) -> list[QueueRows]:
    return queue_rows(reader.segments(), wanted=selection.wants)


def refuse_unknown_topics(reader: TieredReader, topics: frozenset[str] | None) -> None:
    """One line for a topic that the tier does not have, and what it has instead."""
    known = {key.topic for key in reader.queues()} | {row.topic for row in reader.topics()}
    missing = sorted((topics or frozenset()) - known)
    if missing:
        some = ", ".join(sorted(known)[:8]) or "none"
        raise InvalidConfigError(
            f"topics: the tier has no topic {missing[0]!r}; its {len(known)} topics: {some}"
            + (", …" if len(known) > 8 else "")
        )


def plan_scan(
    reader: TieredReader, selection: Selection, *, split_bytes: int = SPLIT_BYTES
) -> list[ScanItem]:
    """The work that reads at least what is selected. Readers choose the rows that count."""
    queues = selected_queues(reader, selection)
    bounds = queue_bounds(reader, queues, selection)
    if selection.key_texts is None or not reader.config.index_enabled:
        return _sliced(reader, queues, bounds, split_bytes)
    unindexed: list[ScanItem] = []
    picked: list[ScanItem] = []
    by_topic: dict[str, list[QueueRows]] = {}
    for rows in queues:
        by_topic.setdefault(rows.key.topic, []).append(rows)
    for topic, its_queues in by_topic.items():
        # First how far the index goes, then what it has: it may come further meanwhile.
        lacking = {rows.path: _unindexed(reader, rows, bounds[rows.path]) for rows in its_queues}
        hits = _hits(reader, topic, selection)
        for rows in its_queues:
            whole = bounds[rows.path]
            ranges = [whole] if hits is None else lacking[rows.path]
            for part in ranges:
                unindexed += _sliced(reader, [rows], {rows.path: part}, split_bytes)
            found = (hits or {}).get(rows.key.queue_id, ())
            offsets = sorted(offset for offset in found if _is_in(offset, whole, ranges))
            picked += _picked(rows, offsets)
    return [*picked, *unindexed]


def _sliced(
    reader: TieredReader,
    queues: Sequence[QueueRows],
    bounds: Mapping[str, tuple[int, int]],
    split_bytes: int,
) -> list[ScanItem]:
    slices = plan_slices(queues, split_bytes=split_bytes, bounds=lambda rows: bounds[rows.path])
    return [*trimmed(reader.config, slices)]


def _is_in(offset: int, whole: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Whether an offset is within the first range and in none of the others."""
    return whole[0] <= offset < whole[1] and not any(first <= offset < end for first, end in others)


def queue_bounds(
    reader: TieredReader, queues: Sequence[QueueRows], selection: Selection
) -> dict[str, tuple[int, int]]:
    """Queue offsets, by queue path, that hold all that is selected by offset and time."""
    if not selection.is_timed:
        return {rows.path: selection.offsets_of(rows.key) for rows in queues}
    pool = worker_runtime().fetch
    asked = [pool.submit(_bounds_in_time, reader, rows, selection) for rows in queues]
    return {rows.path: found.result() for rows, found in zip(queues, asked, strict=True)}


def _bounds_in_time(reader: TieredReader, rows: QueueRows, selection: Selection) -> tuple[int, int]:
    (first, end), (begin, until) = selection.offsets_of(rows.key), selection.times
    if begin != EVER[0]:
        found = reader.offset_by_time(*rows.key, max(begin - CLOCK_SLACK_MS, 0))
        first = max(first, found or 0)
    if until != EVER[1]:
        found = reader.offset_by_time(*rows.key, max(until + CLOCK_SLACK_MS, 0))
        end = end if found is None else min(end, found)
    return first, end


# Keys


def _hits(
    reader: TieredReader, topic: str, selection: Selection
) -> dict[int, dict[int, int]] | None:
    """Sizes of messages by queue id and queue offset; None where the index does not know all."""
    begin, until = selection.times
    found: dict[int, dict[int, int]] = {}
    for key in sorted(selection.key_texts or ()):
        result = reader.query_message(
            topic, key, count_max=HITS_MAX, begin=max(begin, -INT64_MAX), end=until - 1
        )
        # What the index lags behind is read in any case: see `_unindexed`.
        if not (result.complete or result.lags) or len(result.messages) >= HITS_MAX:
            log.warning("%s: the index cannot tell all messages with key %r: read all", topic, key)
            return None
        for message in result.messages:
            queue = found.setdefault(peek_queue_id(message.record), {})
            queue[peek_queue_offset(message.record)] = len(message.record)
    return found


def _unindexed(
    reader: TieredReader, rows: QueueRows, whole: tuple[int, int]
) -> list[tuple[int, int]]:
    """What of the queue is not in the index: its files are uploaded late, and dropped by age."""
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


def _picked(rows: QueueRows, offsets: Sequence[int]) -> Iterator[PickedMessages]:
    for start in range(0, len(offsets), PICKED_MAX):
        part = tuple(offsets[start : start + PICKED_MAX])
        units = units_within(rows.queue, part[0], part[-1] + 1)
        message_bytes = rows.log_bytes // max(1, rows.message_count)
        yield PickedMessages(
            key=rows.key,
            path=rows.path,
            offsets=part,
            approximate_bytes=len(part) * message_bytes,
            rows=(*rows.log, *units),
        )


class OnCorrupt(Enum):
    """What becomes of messages that cannot be read."""

    FAIL = "fail"
    SKIP = "skip"
    REPORT = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What is read of each piece of work, and how. It pickles: workers are handed it whole.

    * FAIL raises SegmentCorruptError, which names the file and the position. SKIP leaves damaged
      messages out. REPORT logs them, and gives a row for each where `damage` is a column.
    * A body that has another checksum than its record names is damage, whatever columns are asked
      for; with `crc_check_enabled` False it is not, and only the column `body_crc_ok` tells.
    * `fails_on_loss` False: a segment that is not there at all counts as expired, and is passed
      over with a line in the log, whatever `on_corrupt` says.
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
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, SCAN_COLUMNS[name]) for name in self.columns])

    def batches(
        self, config: StoreConfig, item: ScanItem, *, provider: SegmentProvider | None = None
    ) -> Iterator[pa.RecordBatch]:
        """What is selected of this piece of work, in order of the queue; through the provider of
        this process, or one that has fetched it."""
        taken: list[Damage] = []
        made = _Batches(self, item.key)
        file = queue_file(config, item.key, item.path, item.rows, provider=provider)
        for reader in _readers(config, item, file, self._taker(taken)):
            for fields in reader.fields():
                yield from made.damaged(taken)
                yield from made.of(fields)
            yield from made.damaged(taken)

    def _taker(self, taken: list[Damage]) -> OnDamage | None:
        if self.on_corrupt is OnCorrupt.FAIL and self.fails_on_loss:
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
    """Runs of one queue, and what is damaged in it, made into batches."""

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
        """These rows, with columns that were made already; once for each key where it is asked."""
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
        """The rows in parts that are not too large, with what `body_plain` and `damage` say."""
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
        """A row for each damaged message, where that is asked for; takes them off the list."""
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
    config: StoreConfig, item: ScanItem, file: FlatMessageFile, on_damage: OnDamage | None
) -> Iterator[SliceReader]:
    if isinstance(item, Slice):
        yield SliceReader(config, item, on_damage=on_damage, file=file)
        return
    for first, end in _neighbours(item.offsets):
        part = Slice(
            key=item.key,
            path=item.path,
            first_offset=first,
            end_offset=end,
            approximate_bytes=0,
            rows=item.rows,
        )
        yield SliceReader(config, part, on_damage=on_damage, file=file)


def _neighbours(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of the offsets that follow each other."""
    start = 0
    for place in range(1, len(offsets) + 1):
        if place == len(offsets) or offsets[place] != offsets[place - 1] + 1:
            yield offsets[start], offsets[place - 1] + 1
            start = place
