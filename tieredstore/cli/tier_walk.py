"""The messages of many queues of a tier in the order in which they were stored, in bounded memory.

What lives here: `walk_tier`, and stepping over what is damaged. How a message is shown is in
`messages`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentError,
    SegmentNotFoundError,
)
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import QueueKey

_BYTES_HELD_MAX: Final = 64 * 1024 * 1024  # of all queues together, but for huge single messages
_PAGE_BYTES_MIN: Final = 64 * 1024
_PAGE_COUNT_MAX: Final = 4096

OnDamage = Callable[[QueueKey, int, SegmentError], None]
"""Gets the queue, how many messages could not be read, and why the first of them could not."""


class StoredMessage(NamedTuple):
    """A message, the queue that names it, and when it was stored."""

    store_timestamp: int
    key: QueueKey
    message: SelectedMessage


class Start(NamedTuple):
    """Where to begin in each queue: at an offset, or at a store time if that is given."""

    offset: int = 0
    timestamp: int | None = None


def walk_tier(
    reader: TieredReader,
    keys: Sequence[QueueKey],
    *,
    start: Start,
    count_max: int | None = None,
    checks_bodies: bool = True,
    on_damage: OnDamage,
) -> Iterator[StoredMessage]:
    """All whole messages of these queues from `start` on, by store time, then queue and offset.

    With `checks_bodies` each is held against its checksum. Where a clock was set back a queue keeps
    its own order. No more than `count_max` messages are asked for at a time.
    """
    if count_max == 0:
        return iter(())
    page_count = min(_PAGE_COUNT_MAX, count_max or _PAGE_COUNT_MAX)
    page_bytes = max(_PAGE_BYTES_MIN, _BYTES_HELD_MAX // max(1, len(keys)))
    walks = [
        _QueueWalk(reader, key, page_count, page_bytes, on_damage, checks_bodies=checks_bodies)
        for key in keys
    ]
    queues = [walk.run(start) for walk in walks]
    return heapq.merge(*queues, key=_when)


def _when(stored: StoredMessage) -> tuple[int, QueueKey]:
    return stored.store_timestamp, stored.key


class _QueueWalk:
    """One queue, page by page."""

    def __init__(
        self,
        reader: TieredReader,
        key: QueueKey,
        page_count: int,
        page_bytes: int,
        on_damage: OnDamage,
        *,
        checks_bodies: bool,
    ) -> None:
        self._checks_bodies = checks_bodies
        self._reader = reader
        self._key = key
        self._page_count = page_count
        self._page_bytes = page_bytes
        self._on_damage = on_damage
        self._end = 0

    def run(self, start: Start) -> Iterator[StoredMessage]:
        offset, earliest = self._begin(start)
        self._end = self._reader.max_offset(*self._key) or 0
        while offset < self._end:
            try:
                page = self._reader.get_message(
                    *self._key, offset, count_max=self._page_count, bytes_max=self._page_bytes
                )
            except SegmentError as error:
                offset = self._behind_damage(offset, error)
                continue
            for message in page.messages:
                if message.queue_offset < self._end:
                    yield from self._whole(message, earliest)
            if page.next_offset <= offset:
                return  # the queue was destroyed
            offset = page.next_offset

    def _begin(self, start: Start) -> tuple[int, int]:
        """The offset to begin at, and the store time below which nothing is wanted."""
        if start.timestamp is None:
            return start.offset, -1
        try:
            found = self._reader.offset_by_time(*self._key, start.timestamp)
        except (SegmentError, OffsetOutOfRangeError):
            return 0, start.timestamp  # the search met damage: all is looked at instead
        return found or 0, -1

    def _whole(self, message: SelectedMessage, earliest: int) -> Iterator[StoredMessage]:
        place = f"{self._key.topic}/{self._key.queue_id}/{message.queue_offset}"
        try:
            decoded = decode_message(message.record, path=place, check_crc=self._checks_bodies)
        except SegmentCorruptError as error:
            self._on_damage(self._key, 1, error)
            return
        if decoded.store_timestamp >= earliest:
            yield StoredMessage(decoded.store_timestamp, self._key, message)

    def _behind_damage(self, offset: int, error: SegmentError) -> int:
        """Where to go on behind a message that cannot be read."""
        if _is_gone(error):
            self._reader.refresh()  # it may have expired while we were reading
            minimum = self._minimum()
            if minimum > offset:
                return minimum
            behind = self._behind_hole(offset, error)
        else:
            behind = offset + 1
        self._on_damage(self._key, behind - offset, error)
        return behind

    def _minimum(self) -> int:
        """The oldest offset; the queue's end where it was destroyed, 0 where that is damaged."""
        try:
            minimum = self._reader.min_offset(*self._key)
        except SegmentError:
            return 0
        return self._end if minimum is None else minimum

    def _behind_hole(self, offset: int, error: SegmentError) -> int:
        """The first message that is not in the missing part of the same segment.

        That part is in one piece, and messages lie in the order of their offsets: a search will
        do, where asking for each of a million messages would not.
        """
        step, low, high = 1, offset, offset + 1
        while high < self._end and self._is_in_hole(high, error):
            low, step = high, step * 2
            high += step
        high = min(high, self._end)
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_in_hole(middle, error):
                low = middle
            else:
                high = middle
        return high

    def _is_in_hole(self, offset: int, error: SegmentError) -> bool:
        try:
            self._reader.get_message(*self._key, offset, count_max=1)
        except SegmentError as found:
            return _is_gone(found) and found.path == error.path
        return False


def _is_gone(error: SegmentError) -> bool:
    """Whether bytes are missing, not merely wrong."""
    gone = SegmentNotFoundError, OffsetOutOfRangeError
    return isinstance(error, gone) or isinstance(error.__cause__, gone)
