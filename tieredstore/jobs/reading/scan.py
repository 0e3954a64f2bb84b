"""Reading one piece of a scan: Arrow batches of the columns asked for, of what is selected.

What lives here: `Scan`, with the columns that are there only when asked for:

    | column     | type   | what                                                                  |
    | ---------- | ------ | --------------------------------------------------------------------- |
    | key        | string | a row for each key of a message, UNIQ_KEY or one of KEYS; null without |
    | body_plain | binary | the body as its producer made it, of at most PLAIN_BYTES_MAX bytes     |
    | damage     | string | null; or why a message cannot be read, and all but where it is is null |

A body that cannot be made plain is damage of a message that is read all the same: FAIL raises, else
it is null in `body_plain`, and `damage` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tieredstore.jobs.reading.key_pairs import KeyPairs, key_pairs
from tieredstore.jobs.reading.message_table import MESSAGE_COLUMNS, MessageTable
from tieredstore.jobs.reading.record_fields import RecordFields
from tieredstore.jobs.reading.scan_plan import ScanItem
from tieredstore.jobs.reading.selection import EVERYTHING, Selection
from tieredstore.jobs.reading.slice_reads import Damage, OnDamage, SliceReader
from tieredstore.jobs.reading.slices import Slice
from tieredstore.jobs.worker_parts import queue_file
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BodyNotPlainError, InvalidConfigError, SegmentCorruptError
from tieredstore.model.message_body import plain_body
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

log = log_of(__name__)

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

    def batches(self, config: StoreConfig, item: ScanItem) -> Iterator[pa.RecordBatch]:
        """What is selected of this piece of work, in order of the queue."""
        taken: list[Damage] = []
        made = _Batches(self, item.key)
        for reader in _readers(config, item, self._taker(taken)):
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
        stored = bytes(memoryview(fields.records)[start : start + size])
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
    config: StoreConfig, item: ScanItem, on_damage: OnDamage | None
) -> Iterator[SliceReader]:
    if isinstance(item, Slice):
        yield SliceReader(config, item, on_damage=on_damage)
        return
    file = queue_file(config, item.key, item.path, item.rows)
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
