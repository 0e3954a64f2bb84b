"""Where the fields of the records of a run lie, all records looked at together.

What lives here: `RecordFields`. What the fields are made into is in `message_table`; where they
lie in one record is told in `codec.record_fields`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checksum import bodies_match
from tieredstore.codec.record_fields import (
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_POSITION,
    HOSTS_IPV6,
    MAGIC_POSITION,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_HOST_IPV6,
    SYS_FLAG_POSITION,
)
from tieredstore.codec.words import WordsWithin
from tieredstore.model.messages import MessageRun

FIXED_BYTES: Final = 88
IPV6_BYTES: Final = 12  # so much longer is an address of IPv6
BORN_HOST_POSITION: Final = 48

_V1: Final = MESSAGE_MAGIC_V1 - (1 << 32)
_V2: Final = MESSAGE_MAGIC_V2 - (1 << 32)


class RecordFields(WordsWithin):
    """The records of a run, and where in its bytes their parts of any length are.

    * `sound` says of each row whether its lengths add up to the record, and nothing in a row that
      is not sound counts. Nothing is read beyond a record, whatever it says.
    * Checksums are not looked at, but by `body_crc_ok` and `leave_out_damaged_bodies`.
    """

    def __init__(self, run: MessageRun) -> None:
        super().__init__(run.records)
        self.run = run
        self.records = run.records
        self.starts: NDArray[np.int64] = run.starts.astype(np.int64, copy=False)
        self.ends = self.starts + run.message_bytes
        self.queue_offsets: NDArray[np.int64] = np.arange(run.first_offset, run.end_offset)
        self._find()

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def is_sound(self) -> bool:
        return bool(self.sound.all())

    def _find(self) -> None:
        inside = (self.starts >= 0) & (self.ends <= len(self.records))
        inside &= self.ends - self.starts > FIXED_BYTES
        if not inside.all():
            self.starts = np.where(inside, self.starts, 0)
            self.ends = np.where(inside, self.ends, 0)
        starts, ends = self.starts, self.ends
        self.sys_flags = self.int32(starts + SYS_FLAG_POSITION)
        self.born_ipv6: NDArray[np.int64] | None = None  # extra bytes of each; None: of none
        fixed: Any = FIXED_BYTES
        self._store_extra: Any = 0
        if (self.sys_flags & HOSTS_IPV6).any():
            self.born_ipv6 = np.where(self.sys_flags & BORN_HOST_IPV6, IPV6_BYTES, 0)
            self._store_extra = np.where(self.sys_flags & STORE_HOST_IPV6, IPV6_BYTES, 0)
            fixed = FIXED_BYTES + self.born_ipv6 + self._store_extra
        magics = self.int32(starts + MAGIC_POSITION)
        wide = magics == _V2
        self.sound: NDArray[np.bool_] = inside & (wide | (magics == _V1))
        self.body_starts = starts + fixed
        self.body_bytes = self.int32(self.body_starts - 4)
        topic_at = self.body_starts + self.body_bytes
        self.sound &= (self.body_bytes >= 0) & (topic_at + 1 <= ends)
        topic_bytes = self.int8(topic_at)
        if wide.any():
            topic_bytes = np.where(wide, self.int16(topic_at), topic_bytes)
        topic_ends = topic_at + 1 + wide + topic_bytes
        self.sound &= (topic_bytes >= 0) & (topic_ends + 2 <= ends)
        self.property_bytes = self.int16(topic_ends)
        self.property_starts = topic_ends + 2
        self.sound &= (self.property_bytes >= 0) & (
            self.property_starts + self.property_bytes == ends
        )

    # Columns of numbers

    def sizes(self) -> NDArray[np.int64]:
        return self.ends - self.starts

    def store_times(self) -> NDArray[np.int64]:
        born = 0 if self.born_ipv6 is None else self.born_ipv6
        return self.int64(self.starts + (BORN_HOST_POSITION + 8) + born)

    def born_times(self) -> NDArray[np.int64]:
        return self.int64(self.starts + BORN_TIMESTAMP_POSITION)

    def body_crcs(self) -> NDArray[np.int64]:
        return self.int32(self.starts + 8)

    def flags(self) -> NDArray[np.int64]:
        return self.int32(self.starts + 16)

    def born_hosts(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where the address begins, and whether it is one of IPv6."""
        return self.starts + BORN_HOST_POSITION, (self.sys_flags & BORN_HOST_IPV6) != 0

    def store_hosts(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        born = 0 if self.born_ipv6 is None else self.born_ipv6
        at = self.starts + (BORN_HOST_POSITION + 16) + born
        return at, (self.sys_flags & STORE_HOST_IPV6) != 0

    def body_crc_ok(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the bodies have the checksum that their records say. One call for each."""
        starts, sizes = self.body_starts[rows], self.body_bytes[rows]
        return bodies_match(self.records, starts, sizes, self.body_crcs()[rows])

    def leave_out_damaged_bodies(self) -> NDArray[np.int64]:
        """The rows that were sound but for their bodies; they are so no more."""
        rows = np.flatnonzero(self.sound)
        damaged: NDArray[np.int64] = rows[~self.body_crc_ok(rows)]
        self.sound[damaged] = False
        return damaged
