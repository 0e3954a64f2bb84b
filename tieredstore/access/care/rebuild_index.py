"""What the uploaded index files say: their own rows, and which topic ids there are.

What lives here: reading them once, in bounded memory. Which topic an id stands for is found out in
`rebuild_topics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.tiered_index import (
    COMPACTED_ITEM_BYTES,
    HEADER_BYTES,
    SLOT_BYTES,
    CompactedItem,
    decode_header,
    slot_position,
)
from tieredstore.codec.tiered_index_columns import view_compacted_items
from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.driver.segment import FileSegment
from tieredstore.index.footer import TAIL_BYTES, decode_tail, has_footer
from tieredstore.index.uploaded_table import first_row_below
from tieredstore.index.watermarks import QueueId
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import InvalidConfigError, OffsetOutOfRangeError, SegmentError
from tieredstore.model.values import INT32_MAX, SegmentType

SAMPLES_MAX: Final = 8
_ITEMS_AT_ONCE: Final = 1 << 17
_MANY_KEYS: Final = (-INT32_MAX - 1, 0)  # hashes that stand for more than one


@dataclass(slots=True, kw_only=True)
class FoundIndex:
    """All uploaded index files of a broker."""

    rows: list[SegmentRecord] = field(default_factory=list)
    topic_ids: set[int] = field(default_factory=set)
    samples: dict[QueueId, list[CompactedItem]] = field(default_factory=dict)
    newest: dict[QueueId, int] = field(default_factory=dict)  # the last log offset of each queue
    problems: list[str] = field(default_factory=list)

    def take(self, items: NDArray[Any]) -> None:
        ids = items["topic_id"].astype(np.int64)
        queues = (ids << 32) + items["queue_id"].astype(np.int64)
        self.topic_ids.update(np.unique(ids).tolist())
        for number in np.unique(queues).tolist():
            of_queue = items[queues == number]
            queue = QueueId(number >> 32, number & 0xFFFFFFFF)
            offsets = of_queue["log_offset"].astype(np.int64)
            self.newest[queue] = max(self.newest.get(queue, -1), int(offsets.max()))
            good = of_queue[~np.isin(of_queue["key_hash"], _MANY_KEYS)]
            # The newest ones: their messages have not expired.
            order = np.argsort(good["log_offset"])[-SAMPLES_MAX:]
            more = [CompactedItem._make(good[at].item()) for at in order.tolist()]
            held = sorted([*self.samples.get(queue, []), *more], key=lambda item: item.log_offset)
            self.samples[queue] = held[-SAMPLES_MAX:]


def found_index(
    listed: Iterable[ListedSegment], provider: SegmentProvider, *, slot_count: int
) -> FoundIndex:
    """Read every file once. One that is damaged is a problem, and has no row.

    InvalidConfigError where files were made with another number of slots.
    """
    index = FoundIndex()
    for each in sorted(listed, key=lambda found: found.base):
        with provider.open(each.path, each.type, each.base) as segment:
            try:
                row, start, end = _opened(segment, each, slot_count)
                for items in _items(segment, start, end):
                    index.take(items)
            except (SegmentError, OffsetOutOfRangeError) as error:
                index.problems.append(f"an index file cannot be read: {error}")
                continue
        index.rows.append(row)
    first = first_row_below(index.rows)
    if first is not None:
        index.rows[0] = first
    return index


def slot_count_of(segment: FileSegment) -> int:
    """With how many slots an uploaded index file was made; raises where it cannot be read."""
    return _layout(segment)[0]


def _layout(segment: FileSegment) -> tuple[int, int, int, int, int]:
    """Slots, begin and end time, and where its items begin and end."""
    size = segment.size()
    tail_bytes = min(size, TAIL_BYTES)
    tail = segment.read(size - tail_bytes, tail_bytes)
    if has_footer(tail):
        footer = decode_tail(tail, file_bytes=size, path=segment.path)
        begin, end = footer.begin_timestamp, footer.end_timestamp
        return footer.slot_count, begin, end, footer.items_position, footer.position
    header = decode_header(segment.read(0, min(size, HEADER_BYTES)), path=segment.path)
    items = COMPACTED_ITEM_BYTES * header.item_count
    # 5.1 left 4 bytes more behind the items.
    slots, rest = divmod(size - HEADER_BYTES - items, SLOT_BYTES)
    return slots, header.begin_timestamp, header.end_timestamp, slot_position(slots), size - rest


def _opened(
    segment: FileSegment, each: ListedSegment, slot_count: int
) -> tuple[SegmentRecord, int, int]:
    """The row, and where its items begin and end."""
    slots, begin, end, start, behind = _layout(segment)
    if slots != slot_count:
        raise InvalidConfigError(
            f"index_slot_count: {slot_count}, but {segment.path} was made with {slots}"
        )
    row = SegmentRecord(
        path=each.path,
        type=SegmentType.INDEX,
        base_offset=each.base,
        size=segment.size(),
        create_timestamp=end,
        begin_timestamp=begin,
        end_timestamp=end,
    )
    return row, start, behind


def _items(segment: FileSegment, start: int, end: int) -> Iterator[NDArray[Any]]:
    step = _ITEMS_AT_ONCE * COMPACTED_ITEM_BYTES
    for at in range(start, end, step):
        count = (min(step, end - at)) // COMPACTED_ITEM_BYTES
        if count:
            data = segment.read(at, count * COMPACTED_ITEM_BYTES)
            yield view_compacted_items(data, path=segment.path)
