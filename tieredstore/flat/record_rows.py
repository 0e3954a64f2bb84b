"""Which rows of a queue are whole messages: what its units name, held against the log's bytes.

What lives here: `NamedRows`, and `FoundRows`, those of them that are there. No file is read here. A
few rows are kept as tuples and many as columns, since each way is the quicker one there; both give
the same answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import repeat
from operator import add
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checksum import bodies_match
from tieredstore.codec.end_marks import BLANK_MAGIC, CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.codec.record_fields import (
    BODY_CRC_POSITION,
    BORN_HOST_IPV6,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    QUEUE_OFFSET_POSITION,
    STORE_HOST_IPV6,
    SYS_FLAG_POSITION,
)
from tieredstore.codec.words import WordsWithin
from tieredstore.model.messages import MessageRun, SelectedMessage

RECORD_BYTES_MIN: Final = 91  # no body, no topic, no properties
HOLE_BYTES_MAX: Final = 64 * 1024  # unreferenced bytes that one run reads through, all together
FEW_ROWS_MAX: Final = 48

_HEAD: Final = Struct(">iI12xq")  # size, magic, queue offset
_MAGICS: Final = frozenset({MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2})
_CODA_HEAD: Final = np.uint64(CODA_BYTES << 32 | BLANK_MAGIC)
_NONE: Final = np.empty(0, np.int64)
_SETTERS: Final[Mapping[str, Any]] = vars(SelectedMessage)
_SET_QUEUE_OFFSET: Final = _SETTERS["queue_offset"].__set__
_SET_LOG_OFFSET: Final = _SETTERS["log_offset"].__set__
_SET_TAGS_CODE: Final = _SETTERS["tags_code"].__set__
_SET_RECORD: Final = _SETTERS["record"].__set__


class NamedRows:
    """The records that consecutive units name, in the log from `start` on.

    A unit that names the place of a coda, the end marker of old segments, means the record behind
    it: that is known only when the bytes are there.
    """

    __slots__ = ("_few", "_log_offsets", "_message_bytes", "_start", "_tags_codes", "first_offset")

    def __init__(self, units: bytes, first_offset: int) -> None:
        self.first_offset = first_offset
        self._few = len(units) <= FEW_ROWS_MAX * UNIT_BYTES
        self._log_offsets: Any
        self._message_bytes: Any
        self._tags_codes: Any
        if self._few:
            fields = _few_units(len(units) // UNIT_BYTES).unpack(units)
            self._log_offsets, self._message_bytes = fields[0::3], fields[1::3]
            self._tags_codes = fields[2::3]
        else:
            many = decode_units(units)
            self._log_offsets = many.log_offsets
            self._message_bytes = many.message_bytes
            self._tags_codes = many.tags_codes
        self._start = int(self._log_offsets[0])

    @property
    def start(self) -> int:
        """Where the log has the first of them."""
        return self._start

    def begin_at(self, log_offset: int) -> None:
        """The first record lies here, whatever its unit says."""
        if log_offset != self._start:
            self._start = log_offset
            if self._few:
                self._log_offsets = (log_offset, *self._log_offsets[1:])
            else:
                self._log_offsets[0] = log_offset

    def place(self, row: int) -> int:
        """Where the log has the record of a row, or the coda before it."""
        return int(self._log_offsets[row])

    def end(self, count: int) -> int:
        """Where the record of the last of these rows ends."""
        return int(self._log_offsets[count - 1]) + int(self._message_bytes[count - 1])

    def reach(self, log_end: int, bytes_max: int) -> int:
        """How many rows can be read in one go: in order, close together, below `log_end`.

        None where the first one names no record; else at least one, however large it is.
        """
        if not self._few:
            return self._reach_of_many(log_end, bytes_max)
        ends = list(map(add, self._log_offsets, self._message_bytes))
        if (
            ends[:-1] == [*self._log_offsets[1:]]  # as a batch leaves them: no hole between any two
            and min(self._message_bytes) >= RECORD_BYTES_MIN
            and ends[-1] <= min(log_end, self._start + bytes_max)
        ):
            return len(ends)
        rows = total = 0
        end = start = self._start
        for place, size in zip(self._log_offsets, self._message_bytes, strict=True):
            total += size
            hole_bytes = place + size - start - total
            if size < RECORD_BYTES_MIN or place < end or place + size > log_end:
                break
            if rows and (total > bytes_max or hole_bytes > HOLE_BYTES_MAX):
                break
            end = place + size
            rows += 1
        return rows

    def check(self, data: bytes, count: int) -> FoundRows:
        """The first rows in the log's bytes from `start` on, up to the first of them that is not
        the message it must be."""
        check = self._check_few if self._few else self._check_many
        return FoundRows(self, check(data, count), data)

    def columns(self, count: int) -> tuple[Any, Any]:
        """Sizes and tags codes of the first rows, as tuples or as columns."""
        return self._message_bytes[:count], self._tags_codes[:count]

    def _check_few(self, data: bytes, count: int) -> Sequence[int]:
        start, sizes = self._start, self._message_bytes[:count]
        starts = [place - start for place in self._log_offsets[:count]]
        if starts[-1] + sizes[-1] <= len(data):
            # One look at all heads: hardly ever is there one that is not as it should be.
            heads = list(map(_HEAD.unpack_from, repeat(data), starts))
            magic, first = heads[0][1], self.first_offset
            wanted = zip(sizes, repeat(magic), range(first, first + count), strict=False)
            if magic in _MAGICS and heads == list(wanted):
                return starts
        return self._check_singly(data, starts, sizes)

    def _check_singly(
        self, data: bytes, places: Sequence[int], sizes: Sequence[int]
    ) -> Sequence[int]:
        starts: list[int] = []
        queue_offset = self.first_offset
        for place, size in zip(places, sizes, strict=True):
            at = place
            if at + size > len(data):
                break
            head = _HEAD.unpack_from(data, at)
            if head[0] == CODA_BYTES and head[1] == BLANK_MAGIC:
                at += CODA_BYTES
                if at + size > len(data):
                    break
                head = _HEAD.unpack_from(data, at)
            if head[0] != size or head[1] not in _MAGICS or head[2] != queue_offset:
                break
            starts.append(at)
            queue_offset += 1
        return starts

    def _reach_of_many(self, log_end: int, bytes_max: int) -> int:
        places, sizes = self._log_offsets, self._message_bytes.astype(np.int64)
        totals = np.cumsum(sizes)
        holes = (places - self._start) - (totals - sizes)
        # Places are compared with the end less the size: nothing wraps around, whatever they are,
        # but for an end far below 0. That is the place itself where the log does not have it.
        good = (sizes >= RECORD_BYTES_MIN) & (places >= 0) & (places <= log_end - sizes)
        near = (totals <= bytes_max) & (holes <= HOLE_BYTES_MAX)
        near[0] = True
        good &= near
        good[1:] &= places[1:] >= (places + sizes)[:-1]
        return len(good) if good.all() else int(good.argmin())

    def _check_many(self, data: bytes, count: int) -> NDArray[np.int64]:
        starts = self._log_offsets[:count] - self._start
        sizes = self._message_bytes[:count].astype(np.int64)
        words: NDArray[Any] = np.ndarray((max(0, len(data) - 7),), ">u8", data, strides=(1,))
        heads = words[starts]
        behind_coda = heads == _CODA_HEAD
        if behind_coda.any():
            behind_coda &= starts + CODA_BYTES + sizes <= len(data)
            starts = np.where(behind_coda, starts + CODA_BYTES, starts)
            heads = words[starts]
        wanted = sizes.astype(np.uint64) << np.uint64(32)
        good = heads == (wanted | np.uint64(MESSAGE_MAGIC_V2))
        good |= heads == (wanted | np.uint64(MESSAGE_MAGIC_V1))
        offsets = np.arange(self.first_offset, self.first_offset + count, dtype=np.uint64)
        good &= words[starts + QUEUE_OFFSET_POSITION] == offsets
        checked: NDArray[np.int64] = starts if good.all() else starts[: int(good.argmin())]
        return checked


class FoundRows:
    """The first of the named rows, each the message it must be, and the bytes that hold them."""

    __slots__ = ("_data", "_rows", "_starts")

    def __init__(
        self, rows: NamedRows, starts: Sequence[int] | NDArray[np.int64], data: bytes
    ) -> None:
        self._rows = rows
        self._starts = starts
        self._data = data

    def __len__(self) -> int:
        return len(self._starts)

    def run(self) -> MessageRun:
        sizes, tags_codes = self._rows.columns(len(self))
        starts = np.array(self._starts, np.int64)
        return MessageRun(
            first_offset=self._rows.first_offset,
            log_offsets=starts + self._rows.start,
            message_bytes=np.array(sizes, np.int32),
            tags_codes=np.array(tags_codes, np.int64),
            starts=starts,
            records=self._data,
        )

    def messages(self) -> list[SelectedMessage]:
        """The loops run in C, field by field: a call of the constructor for each message takes
        longer than everything else in a read of many."""
        count, first, start = len(self), self._rows.first_offset, self._rows.start
        starts = _listed(self._starts)
        sizes, tags_codes = map(_listed, self._rows.columns(count))
        data = bytes(self._data)  # no copy where it is bytes; a view would keep the whole page
        messages: list[SelectedMessage] = list(map(object.__new__, repeat(SelectedMessage, count)))
        fields = (
            (_SET_QUEUE_OFFSET, range(first, first + count)),
            (_SET_LOG_OFFSET, [at + start for at in starts]),
            (_SET_TAGS_CODE, tags_codes),
            (_SET_RECORD, [data[at : at + size] for at, size in zip(starts, sizes, strict=True)]),
        )
        for set_field, values in fields:
            deque(map(set_field, messages, values), maxlen=0)
        return messages


def sound_bodies(run: MessageRun) -> NDArray[np.bool_]:
    """Of each row whether its body lies within its record and has the checksum that this names."""
    words = WordsWithin(run.records)
    starts = run.starts.astype(np.int64, copy=False)
    flags = words.int32(starts + SYS_FLAG_POSITION)
    ipv6 = ((flags & BORN_HOST_IPV6) != 0).astype(np.int64) + ((flags & STORE_HOST_IPV6) != 0)
    bodies = starts + 88 + 12 * ipv6
    sizes = words.int32(bodies - 4)
    inside = (sizes >= 0) & (bodies + sizes <= starts + run.message_bytes)
    sizes, crcs = np.where(inside, sizes, 0), words.int32(starts + BODY_CRC_POSITION)
    sound: NDArray[np.bool_] = inside & bodies_match(run.records, bodies, sizes, crcs)
    return sound


def empty_run(offset: int) -> MessageRun:
    return MessageRun(
        first_offset=offset,
        log_offsets=_NONE,
        message_bytes=np.empty(0, np.int32),
        tags_codes=_NONE,
        starts=_NONE,
        records=b"",
    )


@cache
def _few_units(count: int) -> Struct:
    """That of so many units: there are at most FEW_ROWS_MAX of them."""
    return Struct(">" + count * "qiq")


def _listed(column: Any) -> Sequence[int]:
    listed: Sequence[int] = column.tolist() if isinstance(column, np.ndarray) else column
    return listed
