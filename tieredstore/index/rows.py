"""Columns of index items, and the time ranges they cover."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import INT32_MIN
from tieredstore.model.values import INT32_MAX

SECOND_SLACK_MS: Final = 999
"""An item keeps whole seconds, cut toward the begin of its file."""
_REACH_MS: Final = 1000 * INT32_MAX
DAY_MS: Final = 86_400_000
LATE_MS: Final = 31 * DAY_MS
"""No message is older when it is indexed: brokers upload messages within days."""
_BLOCK_ITEMS: Final = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumns:
    """Keys to be put, oldest first: one entry a key; a plain number stands for all of them.

    `key_hashes` are those of `key_hashes.key_hashes` over the `topic#key` texts.
    """

    key_hashes: NDArray[np.uint64]
    topic_ids: NDArray[np.int64] | int
    queue_ids: NDArray[np.int64] | int
    log_offsets: NDArray[np.int64]
    message_bytes: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.key_hashes)

    def times(self, begin_timestamp: int) -> TimeRange:
        """Of all rows; not exact where one is too far from the file's begin for an item to say."""
        stamps = self.store_timestamps
        first, last = int(stamps.min()), int(stamps.max())
        times = TimeRange(first=first, last=last)
        return replace(times, exact=False) if times.outruns_seconds(begin_timestamp) else times

    @classmethod
    def joined(cls, parts: Sequence[IndexColumns]) -> IndexColumns:
        """The keys of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            **{
                name: np.concatenate([_column(getattr(part, name), len(part)) for part in parts])
                for name in cls.__dataclass_fields__
            }
        )

    def part(self, start: int, stop: int | None = None) -> IndexColumns:
        where = slice(start, stop)
        topics, queues = self.topic_ids, self.queue_ids
        return IndexColumns(
            key_hashes=self.key_hashes[where],
            topic_ids=topics if isinstance(topics, int) else topics[where],
            queue_ids=queues if isinstance(queues, int) else queues[where],
            log_offsets=self.log_offsets[where],
            message_bytes=self.message_bytes[where],
            store_timestamps=self.store_timestamps[where],
        )


class Match(NamedTuple):
    """An item with the hash of the key: the place of its message, the time cut to seconds."""

    topic_id: int
    queue_id: int
    log_offset: int
    message_bytes: int
    store_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """The smallest and the largest store timestamp; `exact` unless they come from whole seconds."""

    first: int
    last: int
    exact: bool = True

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether some may lie within begin to end."""
        slack = 0 if self.exact else SECOND_SLACK_MS
        return self.first - slack <= end and begin <= self.last + slack

    def outruns_seconds(self, begin_timestamp: int) -> bool:
        """Whether some are too far from the begin of a file for the 32 bits that an item has.

        Then any item may stand for another time than its message's.
        """
        return max(begin_timestamp - self.first, self.last - begin_timestamp) >= _REACH_MS

    def joined(self, other: TimeRange) -> TimeRange:
        return TimeRange(
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            exact=self.exact and other.exact,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDisorder:
    """None of the first `item_count` items is more than `max_seconds` older than one put before."""

    item_count: int = 0
    newest: int = INT32_MIN
    max_seconds: int = 0

    def with_items(self, items: NDArray[Any]) -> TimeDisorder:
        """The same of all these items, of which the first are known."""
        newest, max_seconds = self.newest, self.max_seconds
        for start in range(self.item_count, len(items), _BLOCK_ITEMS):
            seconds = items["seconds"][start : start + _BLOCK_ITEMS].astype(np.int64)
            before = np.maximum.accumulate(np.maximum(seconds, newest))
            max_seconds = max(max_seconds, int((before - seconds).max()))
            newest = int(before[-1])
        return TimeDisorder(item_count=len(items), newest=newest, max_seconds=max_seconds)


def seconds_window(begin: int, end: int, *, begin_timestamp: int) -> tuple[int, int]:
    """The least and the greatest seconds of an item whose message may lie within begin to end.

    No message is missed, and those up to 999 ms outside come along: the caller reads the message
    and compares its time.
    """
    first = -((SECOND_SLACK_MS - (begin - begin_timestamp)) // 1000)
    last = (end - begin_timestamp + SECOND_SLACK_MS) // 1000
    return max(first, -INT32_MAX - 1), min(last, INT32_MAX)


def times_of_seconds(least: int, greatest: int, *, begin_timestamp: int) -> TimeRange:
    """The times of messages whose items have seconds from `least` to `greatest`."""
    first = begin_timestamp + 1000 * least - (SECOND_SLACK_MS if least <= 0 else 0)
    last = begin_timestamp + 1000 * greatest + (SECOND_SLACK_MS if greatest >= 0 else 0)
    return TimeRange(first=first, last=last, exact=False)


def foreign_times(*, begin: int, end: int) -> TimeRange:
    """The times that messages of a file may have, by the begin and the end in its header."""
    return TimeRange(first=begin - LATE_MS, last=max(begin, end) + DAY_MS, exact=False)


def undated(items: Iterable[Match], *, last: int) -> Iterator[Match]:
    """Items whose times are not believed: all count as the newest of their file."""
    return (item._replace(store_timestamp=last) for item in items)


def with_true_times(
    items: Iterable[Match], times: TimeRange, *, begin: int, end: int
) -> Iterator[Match]:
    """Items within begin to end; an item with an impossible time counts as the newest."""
    for item in items:
        if not times.first <= item.store_timestamp <= times.last:
            yield item._replace(store_timestamp=times.last)
        elif begin - 999 <= item.store_timestamp <= end + 999:
            yield item


def _column(values: NDArray[Any] | int, count: int) -> NDArray[Any]:
    return np.full(count, values, np.int64) if isinstance(values, int) else values
