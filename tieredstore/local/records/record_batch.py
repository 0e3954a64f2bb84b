"""Records on their way into the log: their bytes, and columns of what queues and index need.

What lives here: `RecordBatch`. `record_encoder` and `batch_encoder` make one; the log, the dispatch
and the results of a put take it as it is. A put of one message is a batch of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.checksum import fill_property_crc
from tieredstore.codec.record_fields import (
    BORN_HOST_IPV6,
    LOG_OFFSET_POSITION,
    QUEUE_OFFSET_POSITION,
)

_OFFSETS: Final = Struct(">qq")  # queue offset and log offset lie side by side
_TIME: Final = Struct(">q")
_VECTOR_RECORDS_MIN: Final = 12


@dataclass(slots=True, init=False, eq=False)
class RecordBatch:
    """Records one behind the other, and a row for each in every column.

    The bytes lack two offsets, the store time and a CRC: `placed` writes them. All else never
    changes, so what one log has refused another can take. What is said of a record (keys, tags)
    is what a reader of its bytes would find.

    Whoever makes one sets every field: a constructor would take a sixth of a put of one message.
    """

    data: bytearray
    sizes: Sequence[int]
    topics: Sequence[str]
    queue_ids: Sequence[int]
    sys_flags: Sequence[int]
    in_queue: Sequence[bool]  # False if prepared or rolled back: no place in a queue
    tags_hashes: Sequence[int]
    unique_keys: Sequence[str | None]
    keys: Sequence[str | None]  # the texts of KEYS: single keys with spaces between them
    delays_ms: Mapping[int, int]  # by row, of delayed messages only
    is_of_one_queue: bool  # all have a place in the same queue, as a producer's batch has
    waits_for_disk: bool  # one of them does, so all of them do
    has_property_crc: bool

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def joined(cls, batches: Sequence[RecordBatch]) -> RecordBatch:
        """One batch of several, in this order."""
        if len(batches) == 1:
            return batches[0]
        flat = chain.from_iterable
        batch = cls()
        batch.data = bytearray().join([each.data for each in batches])
        batch.sizes = list(flat([each.sizes for each in batches]))
        batch.topics = list(flat([each.topics for each in batches]))
        batch.queue_ids = list(flat([each.queue_ids for each in batches]))
        batch.sys_flags = list(flat([each.sys_flags for each in batches]))
        batch.in_queue = list(flat([each.in_queue for each in batches]))
        batch.tags_hashes = list(flat([each.tags_hashes for each in batches]))
        batch.unique_keys = list(flat([each.unique_keys for each in batches]))
        batch.keys = list(flat([each.keys for each in batches]))
        firsts = accumulate(map(len, batches), initial=0)
        batch.delays_ms = {
            first + row: delay
            for first, each in zip(firsts, batches, strict=False)
            for row, delay in each.delays_ms.items()
        }
        batch.is_of_one_queue = all(batch.in_queue) and (
            len(set(batch.topics)) == len(set(batch.queue_ids)) == 1
        )
        batch.waits_for_disk = any(each.waits_for_disk for each in batches)
        batch.has_property_crc = any(each.has_property_crc for each in batches)
        return batch

    def tags_codes(self, store_timestamp: int) -> Sequence[int]:
        """What the queues store beside them: for delayed messages the delivery time."""
        if not self.delays_ms:
            return self.tags_hashes
        codes = list(self.tags_hashes)
        for row, delay in self.delays_ms.items():
            codes[row] = store_timestamp + delay
        return codes

    def placed(
        self, rows: range, queue_offsets: Sequence[int], log_offset: int, store_timestamp: int
    ) -> tuple[Buffer, list[int]]:
        """The bytes of these rows as the log holds them from this offset on, and where each is.

        The bytes are the batch's own: good until it is placed again.
        """
        sizes = self.sizes[rows.start : rows.stop]
        start = sum(self.sizes[: rows.start])
        log_offsets = list(accumulate(sizes[:-1], initial=log_offset))
        place = self._place_few if len(rows) < _VECTOR_RECORDS_MIN else self._place_many
        place(rows, queue_offsets, log_offsets, start - log_offset, store_timestamp)
        if len(rows) == len(self) and not self.has_property_crc:
            return self.data, log_offsets
        view = memoryview(self.data)[start : start + sum(sizes)]
        if self.has_property_crc:
            for size, at in zip(sizes, log_offsets, strict=True):
                fill_property_crc(view[at - log_offset : at - log_offset + size])
        return view, log_offsets

    def _place_few(
        self,
        rows: range,
        queue_offsets: Sequence[int],
        log_offsets: list[int],
        move: int,
        store_timestamp: int,
    ) -> None:
        for row, log_offset in zip(rows, log_offsets, strict=True):
            start = log_offset + move
            queue_offset = queue_offsets[row] if self.in_queue[row] else 0
            _OFFSETS.pack_into(self.data, start + QUEUE_OFFSET_POSITION, queue_offset, log_offset)
            time_position = _time_position(self.sys_flags[row])
            _TIME.pack_into(self.data, start + time_position, store_timestamp)

    def _place_many(
        self,
        rows: range,
        queue_offsets: Sequence[int],
        log_offsets: list[int],
        move: int,
        store_timestamp: int,
    ) -> None:
        chosen = slice(rows.start, rows.stop)
        offsets = queue_offsets[chosen]
        if not all(self.in_queue[chosen]):
            offsets = [
                offset if in_queue else 0
                for offset, in_queue in zip(offsets, self.in_queue[chosen], strict=True)
            ]
        flags = self.sys_flags[chosen]
        one_flag = flags.count(flags[0]) == len(flags)
        time_positions = [_time_position(flag) for flag in (flags[:1] if one_flag else flags)]
        at = np.array(log_offsets, np.int64)
        words = every_word(self.data, ">i8")
        starts = at + move
        words[starts + QUEUE_OFFSET_POSITION] = offsets
        words[starts + LOG_OFFSET_POSITION] = at
        words[starts + np.array(time_positions)] = store_timestamp


def _time_position(sys_flag: int) -> int:
    return 68 if sys_flag & BORN_HOST_IPV6 else 56


def every_word(data: bytearray, layout: str) -> NDArray[Any]:
    """A number for each byte, overlapping: numpy then writes words that are not aligned."""
    width = np.dtype(layout).itemsize
    return np.ndarray((len(data) - width + 1,), layout, data, strides=(1,))
