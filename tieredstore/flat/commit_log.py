"""The commit log of one tiered queue: its messages, record behind record.

What lives here: `FlatCommitLogFile`: placing records, rolling by age, and the queue offset of the
oldest message. A record is stored as the broker's log has it, but for the log offset in it: that is
the offset in this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.record_fields import LOG_OFFSET_POSITION, peek_queue_offset
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Clock
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.believed_times import is_believed
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import SegmentType

HOUR_MS = 3_600_000
_HEADER_BYTES = 28  # up to and with the queue offset


class FlatCommitLogFile(FlatAppendFile):
    """The records of one queue, from byte 0 on."""

    def __init__(
        self,
        path: str,
        config: StoreConfig,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        clock: Clock,
    ) -> None:
        super().__init__(
            path,
            SegmentType.COMMIT_LOG,
            provider=provider,
            metadata=metadata,
            clock=clock,
            segment_bytes_max=config.commit_log_segment_bytes,
        )
        self._rolling_ms = config.commit_log_rolling_hours * HOUR_MS
        self._rolling_bytes = config.commit_log_rolling_min_bytes
        self._first: tuple[FlatSegment, int] | None = None  # the oldest segment's first message

    @property
    def is_empty(self) -> bool:
        """Whether the last segment has nothing, and nothing waits for it."""
        return self.append_offset == self.segments[-1].base

    def is_due_to_roll(self) -> bool:
        """Whether the last segment is old and large enough for a next one.

        It is as old as its first message, or as itself where that message's time cannot be.
        """
        last = self.segments[-1] if self.segments else None
        if last is None or last.record.begin_timestamp is None:
            return False
        now = self._clock.now_ms()
        times = (last.record.begin_timestamp, last.record.create_timestamp)
        begin = next((time for time in times if is_believed(time, now)), now)
        return (
            now - begin > self._rolling_ms and self.append_offset - last.base >= self._rolling_bytes
        )

    @property
    def knows_first(self) -> bool:
        """Whether `first_queue_offset` takes no read."""
        first = self._oldest()
        return first is None or (self._first is not None and self._first[0] is first)

    def first_queue_offset(self) -> int | None:
        """The queue offset of the oldest message; None while nothing is committed.

        One small read, once for each oldest segment.
        """
        oldest, known = self._oldest(), self._first
        if oldest is None:
            return None
        if known is None or known[0] is not oldest:
            header = self.read(oldest.base, _HEADER_BYTES)
            known = self._first = oldest, peek_queue_offset(header, path=self.path)
        return known[1]

    def assume_first(self, queue_offset: int) -> None:
        """The record that would tell is lost: somebody else has found out."""
        if (oldest := self._oldest()) is not None:
            self._first = oldest, queue_offset

    def _oldest(self) -> FlatSegment | None:
        """The first segment with a message: a few torn bytes are none."""
        return next((each for each in self.segments if each.record.size >= _HEADER_BYTES), None)


def placed_records(
    run: MessageRun, count: int, log_offset: int
) -> tuple[bytearray, NDArray[np.int64]]:
    """The first records of a run as they lie in a tier from `log_offset` on, and where each does.

    A record carries its own log offset, everything else stays as it is. Records in a bytearray
    that holds nothing else are changed where they are; others are copied once.
    """
    sizes = run.message_bytes[:count].astype(np.int64)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    sources = run.starts[:count]
    if np.array_equal(sources - sources[0], starts):
        first, length = int(sources[0]), int(ends[-1])
        if isinstance(run.records, bytearray) and len(run.records) == length:
            data = run.records
        else:
            data = bytearray(memoryview(run.records)[first : first + length])
    else:
        data = bytearray().join(run.record(row) for row in range(count))
    log_offsets = starts + log_offset
    words: NDArray[Any] = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    words[starts + LOG_OFFSET_POSITION] = log_offsets
    del words
    return data, log_offsets
