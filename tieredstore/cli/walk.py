"""The messages of many queues in the order of the log, in bounded memory.

What lives here: `walk`. How one is shown is in `messages`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tieredstore.local.reader import LocalReader
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import INT32_MAX, QueueKey

_UNITS_HELD_MAX: Final = 1 << 17  # of all queues together
_UNITS_READ_MIN: Final = 16

OnDamage = Callable[[int, SegmentCorruptError], None]


class QueuedMessage(NamedTuple):
    """A message and the queue that names it."""

    key: QueueKey
    message: SelectedMessage


def walk(
    reader: LocalReader, keys: list[QueueKey], *, begin: int, on_damage: OnDamage
) -> Iterator[QueuedMessage]:
    """What these queues name from the queue offset `begin` on.

    Messages that have expired are passed over. So is what is damaged; `on_damage` gets its log
    offset and the error.
    """
    step = max(_UNITS_READ_MIN, _UNITS_HELD_MAX // max(1, len(keys)))
    log = reader.log
    rows = heapq.merge(*(_units(reader, key, begin, step) for key in keys))
    for log_offset, key, queue_offset, size, code in rows:
        try:
            record = log.message_bytes(log_offset, size)
        except SegmentCorruptError as error:
            on_damage(log_offset, error)
            continue
        if record is None:
            continue
        message = SelectedMessage(
            queue_offset=queue_offset, log_offset=log_offset, tags_code=code, record=record
        )
        yield QueuedMessage(key, message)


def _units(
    reader: LocalReader, key: QueueKey, begin: int, step: int
) -> Iterator[tuple[int, QueueKey, int, int, int]]:
    queue = reader.queue(*key)
    if queue is None:
        return
    offset, end = max(begin, queue.min_offset), queue.max_offset
    while offset < end:
        units = queue.units(offset, min(step, end - offset))
        rows = zip(
            units.log_offsets.tolist(),
            units.message_bytes.tolist(),
            units.tags_codes.tolist(),
            strict=True,
        )
        for number, (log_offset, size, code) in enumerate(rows, start=offset):
            if size != INT32_MAX:  # else it only fills a place
                yield log_offset, key, number, size, code
        offset += len(units)
