"""Messages held against the units that name them, many at once.

What lives here: `Named`, rows that units name, and `check_records`, which compares each of them
with the bytes at its place. Which bytes are there, and what units do not name, is for
`verify_slice`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tieredstore.codec.end_marks import BLANK_MAGIC, CODA_BYTES
from tieredstore.codec.java import encode_utf8, string_hashes
from tieredstore.codec.record_fields import (
    LOG_OFFSET_POSITION,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
)
from tieredstore.flat.record_rows import HOLE_BYTES_MAX
from tieredstore.jobs.reading.arrow_spans import cut_spans
from tieredstore.jobs.reading.property_columns import PropertyColumns
from tieredstore.jobs.reading.record_fields import RecordFields
from tieredstore.jobs.verification.verify_bytes import SegmentBytes
from tieredstore.jobs.verification.verify_findings import VerifyKind
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueKey

BYTES_AT_ONCE: Final = 8 * 1024 * 1024
DELAYED: Final = "SCHEDULE_TOPIC_XXXX"
"""Its tags codes are delivery times."""

_CODA_HEAD: Final = np.uint64(CODA_BYTES << 32 | BLANK_MAGIC)
_PLACES_FROM: Final = -(2**63)
_PLACES_TO: Final = _PLACES_FROM + 2**40  # a terabyte of one queue's extended units

Rows: TypeAlias = NDArray[np.int64]
Tell: TypeAlias = Callable[[VerifyKind, NDArray[np.bool_], Callable[[int], str]], None]
"""Which rows have this kind of damage, and what to say of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Rows of units: queue offsets, and what each unit says of its message."""

    queue_offsets: Rows
    places: Rows
    sizes: Rows
    tags_codes: Rows

    def __len__(self) -> int:
        return len(self.places)

    @property
    def ends(self) -> Rows:
        return self.places + self.sizes

    def chosen(self, rows: NDArray[Any] | slice) -> Named:
        return Named(
            queue_offsets=self.queue_offsets[rows],
            places=self.places[rows],
            sizes=self.sizes[rows],
            tags_codes=self.tags_codes[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What became of rows: `whole` are messages of this queue; their fields; where each ends."""

    fields: RecordFields
    whole: NDArray[np.bool_]
    ends: Rows


def check_records(key: QueueKey, named: Named, data: bytes, start: int, tell: Tell) -> Checked:
    """Compare each row with its record; `data` are the log's bytes from `start` on.

    A row is told of once: what comes after the first thing that is wrong follows from it.
    """
    starts = _behind_codas(named.places - start, data)
    fields = RecordFields(
        MessageRun(
            first_offset=0,
            log_offsets=named.places,
            message_bytes=named.sizes.astype(np.int32),
            tags_codes=named.tags_codes,
            starts=starts,
            records=data,
        )
    )
    untold = np.ones(len(named), np.bool_)

    def check(kind: VerifyKind, good: NDArray[np.bool_], say: Callable[[int], str]) -> None:
        wrong = untold & ~good
        if wrong.any():
            tell(kind, wrong, say)
            untold[wrong] = False

    claimed = fields.int32(starts)
    check(
        VerifyKind.NO_MESSAGE,
        fields.sound & (claimed == named.sizes),
        lambda row: f"no whole message of {named.sizes[row]} bytes is at byte {named.places[row]}",
    )
    held = fields.int32(starts + QUEUE_ID_POSITION)
    check(
        VerifyKind.WRONG_QUEUE,
        (held == key.queue_id) & _of_topic(fields, encode_utf8(key.topic)),
        lambda row: f"its message names another topic, or queue {held[row]}",
    )
    whole = untold.copy()
    offsets = fields.int64(starts + QUEUE_OFFSET_POSITION)
    check(
        VerifyKind.WRONG_OFFSET,
        offsets == named.queue_offsets,
        lambda row: f"its unit names message {offsets[row]}",
    )
    places = fields.int64(starts + LOG_OFFSET_POSITION)
    check(
        VerifyKind.WRONG_LOG_OFFSET,
        (places == named.places) | (places == starts + start),
        lambda row: f"its record says that it lies at byte {places[row]}",
    )
    _check_bodies(fields, untold, check)
    if key.topic != DELAYED:
        _check_tags(fields, named, untold, check)
    return Checked(fields=fields, whole=whole, ends=starts + start + named.sizes)


def _behind_codas(starts: Rows, data: bytes) -> Rows:
    """Old stores may name the end marker before the record."""
    if len(data) < 8:
        return starts
    words: NDArray[Any] = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
    codas = words[np.clip(starts, 0, len(words) - 1)] == _CODA_HEAD
    return np.where(codas, starts + CODA_BYTES, starts) if codas.any() else starts


def _of_topic(fields: RecordFields, topic: bytes) -> NDArray[np.bool_]:
    ends = fields.property_starts - 2
    starts = ends - len(topic)
    heads = fields.body_starts + fields.body_bytes
    same: NDArray[np.bool_] = (starts - heads == 1) | (starts - heads == 2)
    data = fields.records
    count = len(data) - len(topic) + 1
    if not topic or count <= 0:
        return same
    windows: NDArray[Any] = np.ndarray((count,), f"V{len(topic)}", data, strides=(1,))
    found = windows[np.clip(starts, 0, count - 1)].view(np.uint8).reshape(-1, len(topic))
    same &= (found == np.frombuffer(topic, np.uint8)).all(axis=1)
    return same


def _check_bodies(fields: RecordFields, untold: NDArray[np.bool_], check: Any) -> None:
    rows = np.flatnonzero(untold)
    good = np.ones(len(untold), np.bool_)
    good[rows] = fields.body_crc_ok(rows)
    check(VerifyKind.BODY_CRC, good, lambda _: "its body has another CRC than its record says")


def _check_tags(fields: RecordFields, named: Named, untold: NDArray[np.bool_], check: Any) -> None:
    rows = np.flatnonzero(untold)
    texts = cut_spans(
        fields.records, fields.property_starts[rows], fields.property_bytes[rows], pa.binary()
    )
    tags = PropertyColumns(texts).tags().dictionary_encode()
    codes = np.append(string_hashes(tags.dictionary.to_pylist()).astype(np.int64), 0)
    numbers = tags.indices.fill_null(len(codes) - 1).to_numpy(zero_copy_only=False)
    wanted = np.zeros(len(untold), np.int64)
    wanted[rows] = codes[numbers]
    good = codes_agree(named.tags_codes, wanted)
    check(
        VerifyKind.TAGS_CODE,
        good,
        lambda row: f"its unit has tags code {named.tags_codes[row]}, its tags {wanted[row]}",
    )


def codes_agree(held: Rows, wanted: Rows) -> NDArray[np.bool_]:
    """Whether each unit has the code of its message's tags, or may say where an extended unit has.

    RocketMQ counts those places up from the smallest number. One whose place would be the very code
    of its tags has that code with another first bit; place 0 is believed beside other places only.
    """
    places = held < _PLACES_TO
    first_bit = held == (wanted ^ _PLACES_FROM)
    is_among_places = np.count_nonzero(places) > 1
    believed = places & (~first_bit | ((held == _PLACES_FROM) & is_among_places))
    agree: NDArray[np.bool_] = (held == wanted) | believed
    return agree


def groups_of(named: Named, log: SegmentBytes) -> Iterator[range]:
    """Rows that one read takes: near each other, in order, of BYTES_AT_ONCE or a single one."""
    count = len(named)
    if not count:
        return
    gaps = named.places[1:] - named.ends[:-1]
    torn = (gaps < 0) | (gaps > HOLE_BYTES_MAX)
    between = np.flatnonzero((gaps > 0) & ~torn)
    torn[between] = ~log.holds(named.ends[between], named.places[between + 1])
    apart = np.flatnonzero(torn) + 1
    for start, stop in zip([0, *apart.tolist()], [*apart.tolist(), count], strict=True):
        ends = named.ends[start:stop]
        at = start
        while at < stop:
            limit = named.places[at] + BYTES_AT_ONCE
            end = max(at + 1, start + int(np.searchsorted(ends, limit, side="right")))
            yield range(at, end)
            at = end
