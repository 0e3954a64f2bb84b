"""Search by time in one consume queue.

What lives here: the binary search, as a function of what it is given. A queue unit carries no
time, so each probe reads a message; how, and whether it is still there, is for the caller.

What is meant, for a queue of messages [minimum, maximum) whose times do not decrease:

    | boundary | the answer                            | none: | empty queue: |
    | -------- | ------------------------------------- | ----- | ------------ |
    | LOWER    | first message stored at or after then | maximum | minimum    |
    | UPPER    | last message stored at or before then | minimum | minimum    |

Java chooses one file of the queue first and searches only in it. For the sound queues it was asked
about the answers are these; where they part, ours is the one that the table says:

* A message that cannot be read (its log file has gone, its record is damaged) makes Java's answer
  the start of the queue. Here the search looks to the readable messages beside it.
* Java remembers the time of each file's first and last unit, also when they could not be read.
"""

from __future__ import annotations

from collections.abc import Callable

from tieredstore.codec.queue_unit import QueueUnit
from tieredstore.model.values import Boundary

StoreTime = Callable[[int, int], int | None]
"""The store time of the record at (log_offset, message_bytes); None if it cannot be read."""


def offset_by_time(
    timestamp: int,
    boundary: Boundary,
    *,
    minimum: int,
    maximum: int,
    unit: Callable[[int], QueueUnit | None],
    store_time: StoreTime,
    min_log_offset: int = 0,
) -> int:
    """The queue offset to start from for `timestamp`.

    Units below `min_log_offset` count as too old without being read: the log may expire files
    faster than the queue's minimum follows.
    """

    def time_of(offset: int) -> int | None:
        """None where there is nothing to compare; what has expired is older than everything."""
        at = unit(offset)
        if at is None or at.is_prefill or at.message_bytes <= 0:
            return None
        return -1 if at.log_offset < min_log_offset else store_time(at.log_offset, at.message_bytes)

    lower = boundary is Boundary.LOWER
    first_after, last_before = max(minimum, maximum), minimum
    low, high = minimum, maximum
    while low < high:
        middle = (low + high) // 2
        # Damage is rare and short: walking over it costs more probes only where there is some.
        probe, time = middle, time_of(middle)
        while time is None and probe + 1 < high:
            probe += 1
            time = time_of(probe)
        if time is None:
            high = middle
        elif time > timestamp or (lower and time == timestamp):
            first_after, high = probe, middle
        else:
            low = probe + 1
            last_before = max(minimum, probe)
    return first_after if lower else last_before
