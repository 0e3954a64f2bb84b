"""How much one read by queue offset may answer.

What lives here: RocketMQ's limits of a batch, for one unit and for many at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tieredstore.codec.queue_unit import QueueUnits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Counts and bytes of one read; a quarter of them where a message may have to come from disk.

    Messages at or above `memory_from` in the log are taken to be in the page cache.
    """

    count_max: int
    bytes_max: int
    memory_count_max: int
    memory_bytes_max: int
    memory_from: int

    def is_full(self, count: int, size: int, more: int, log_offset: int) -> bool:
        """Whether `count` messages of `size` bytes leave no room for one of `more` bytes."""
        if count >= self.count_max or size + more > self.bytes_max:
            return True
        if log_offset >= self.memory_from:
            return count >= self.memory_count_max or size + more > self.memory_bytes_max
        return count >= self.memory_count_max // 4 or size + more > self.memory_bytes_max // 4

    def first_full(
        self, units: QueueUnits, start: int, stop: int, *, count: int, size: int
    ) -> int | None:
        """The first of the rows [start, stop) for which `is_full`; None for none.

        A batch without any message has room for each.
        """
        if start >= stop or not count:
            return None
        if stop - start == 1:
            more, log_offset = int(units.message_bytes[start]), int(units.log_offsets[start])
            return start if self.is_full(count, size, more, log_offset) else None
        if count >= self.count_max or count >= self.memory_count_max:
            return start
        on_disk = units.log_offsets[start:stop] < self.memory_from
        limits = np.where(on_disk, self.memory_bytes_max // 4, self.memory_bytes_max)
        limits = np.minimum(limits, self.bytes_max) - size
        full = units.message_bytes[start:stop] > limits
        if count >= self.memory_count_max // 4:
            full |= on_disk
        first = int(full.argmax())
        return start + first if full[first] else None
