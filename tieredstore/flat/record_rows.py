"""Which rows of a queue are whole messages: what its units name, held against the log's bytes.

What lives here: `NamedRows`. No file is read here. A few rows are handled one by one and many as
columns, since each way is the quicker one there; both give the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.end_marks import BLANK_MAGIC, CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.codec.record_fields import (
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    QUEUE_OFFSET_POSITION,
)
from tieredstore.model.messages import MessageRun

RECORD_BYTES_MIN: Final = 91  # no body, no topic, no properties
HOLE_BYTES_MAX: Final = 64 * 1024  # unreferenced bytes that one run reads through, all together
FEW_ROWS_MAX: Final = 48

_UNIT: Final = Struct(">qiq")
_HEAD: Final = Struct(">iI12xq")  # size, magic, queue offset
_MAGICS: Final = frozenset({MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2})
_CODA_HEAD: Final = np.uint64(CODA_BYTES << 32 | BLANK_MAGIC)
_NONE: Final = np.empty(0, np.int64)


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
            columns = zip(*_UNIT.iter_unpack(units), strict=True)
            self._log_offsets, self._message_bytes, self._tags_codes = columns
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

    def check(self, data: bytes, count: int) -> Sequence[int] | NDArray[np.int64]:
        """Where the first rows begin in the log's bytes from `start` on, up to the first of them
        that is not the message it must be."""
        if not self._few:
            return self._check_many(data, count)
        starts: list[int] = []
        queue_offset = self.first_offset
        for place, size in zip(self._log_offsets[:count], self._message_bytes, strict=False):
            at = place - self._start
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

    def run(self, starts: Sequence[int] | NDArray[np.int64], data: bytes) -> MessageRun:
        """The run of the rows that begin there."""
        count = len(starts)
        places = np.array(starts, np.int64)
        return MessageRun(
            first_offset=self.first_offset,
            log_offsets=places + self._start,
            message_bytes=np.array(self._message_bytes[:count], np.int32),
            tags_codes=np.array(self._tags_codes[:count], np.int64),
            starts=places,
            records=data,
        )

    def _reach_of_many(self, log_end: int, bytes_max: int) -> int:
        places, sizes = self._log_offsets, self._message_bytes.astype(np.int64)
        totals = np.cumsum(sizes)
        holes = (places - self._start) - (totals - sizes)
        # Places are compared with the end less the size: nothing wraps around, whatever they are.
        good = (sizes >= RECORD_BYTES_MIN) & (places <= log_end - sizes)
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


def empty_run(offset: int) -> MessageRun:
    return MessageRun(
        first_offset=offset,
        log_offsets=_NONE,
        message_bytes=np.empty(0, np.int32),
        tags_codes=_NONE,
        starts=_NONE,
        records=b"",
    )
