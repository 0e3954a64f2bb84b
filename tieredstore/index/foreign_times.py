"""When messages of an index file were stored that somebody else filled.

What lives here: what is believed of such a file. RocketMQ forgets a file's end when it opens it,
takes part of an IPv6 address for a store time, and keeps no smallest time at all. So a time that
cannot be is taken for unknown: the message itself will tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tieredstore.index.rows import FoundItem, TimeRange

DAY_MS: Final = 86_400_000
LATE_MS: Final = 31 * DAY_MS
"""So old may a message be when it is indexed: brokers upload what is days old at most."""


def foreign_times(*, begin: int, end: int) -> TimeRange:
    """Between which times the messages of a file lie that was begun and ended then."""
    return TimeRange(first=begin - LATE_MS, last=max(begin, end) + DAY_MS, exact=False)


def undated(items: Iterable[FoundItem], *, last: int) -> Iterator[FoundItem]:
    """Items none of whose times is believed: all count as the newest of their file."""
    return (item._replace(store_timestamp=last) for item in items)


def with_true_times(
    items: Iterable[FoundItem], times: TimeRange, *, begin: int, end: int
) -> Iterator[FoundItem]:
    """Items that may be asked for; one whose time cannot be counts as the newest."""
    for item in items:
        if not times.first <= item.store_timestamp <= times.last:
            yield item._replace(store_timestamp=times.last)
        elif begin - 999 <= item.store_timestamp <= end + 999:
            yield item
