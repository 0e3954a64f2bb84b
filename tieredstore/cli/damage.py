"""Counting what could not be read, and telling a crash's torn end from damage.

What lives here: `DamageCount`.
"""

from __future__ import annotations

from tieredstore.local.reader import LocalReader
from tieredstore.model.errors import SegmentCorruptError


class DamageCount:
    """Damaged records by number only: there may be many.

    A crash may leave a queue ahead of the log. What it names behind the last sound record was never
    acknowledged as durable, and a recovery cuts it: that is not damage.
    """

    def __init__(self, reader: LocalReader) -> None:
        self._reader = reader
        self.count = 0
        self.torn_count = 0
        self.first: SegmentCorruptError | None = None

    def add(self, log_offset: int, error: SegmentCorruptError) -> None:
        if log_offset >= self._reader.log_facts().log_end:
            self.torn_count += 1
            return
        self.count += 1
        self.first = self.first or error
