"""What a scan of the log found, as a run to be dispatched, and which of it cannot be true.

What lives here: `run_of_scan` and the doubts about its rows. No CRC covers queue number, queue
offset and topic of a record: one bit of them makes it another queue's message. What is done with
such a row is for `redispatch` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tieredstore.codec.message import MESSAGE_BYTES_MIN
from tieredstore.codec.properties import KEYS, UNIQUE_KEY
from tieredstore.codec.record_fields import INNER_BATCH, TRANSACTION_MASK, TRANSACTION_PREPARED
from tieredstore.local.delay_levels import DelayLevels
from tieredstore.local.dispatching.dispatch import DispatchRun
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.topic_directories import is_topic
from tieredstore.local.records.record_columns import RecordColumns

_Key = tuple[str, int]


class _Place(NamedTuple):
    """A claim to a place in one queue; `row` is -1 for one of the run that follows."""

    queue_offset: int
    row: int


def run_of_scan(columns: RecordColumns, delays: DelayLevels) -> DispatchRun:
    """The same for records that a scan of the log found."""
    run = DispatchRun(
        topics=columns.topics(),
        queue_ids=columns.queue_ids.tolist(),
        queue_offsets=columns.queue_offsets.tolist(),
        log_offsets=columns.log_offsets.tolist(),
        sizes=columns.sizes.tolist(),
        store_timestamps=columns.store_timestamps.tolist(),
        sys_flags=columns.sys_flags.tolist(),
    )
    for row, flag in enumerate(run.sys_flags):
        properties = columns.properties(row)
        code = delays.tags_code(run.topics[row], properties, run.store_timestamps[row])
        run.tags_codes.append(code)
        run.unique_keys.append(properties.get(UNIQUE_KEY))
        run.keys.append(properties.get(KEYS))
        # Both transaction states without a unit, prepared and rolled back, have this bit.
        run.in_queue.append(
            not flag & TRANSACTION_MASK & TRANSACTION_PREPARED and not flag & INNER_BATCH
        )
    return run


def impossible_rows(run: DispatchRun) -> Iterator[tuple[int, str]]:
    """The rows that say of themselves what cannot be, and why."""
    wrong_topics = {topic for topic in set(run.topics) if not is_topic(topic)}
    columns = zip(run.queue_ids, run.queue_offsets, run.log_offsets, run.topics, strict=True)
    for row, (queue_id, queue_offset, log_offset, topic) in enumerate(columns):
        if not run.in_queue[row]:
            continue
        if queue_id < 0:
            yield row, f"{queue_id} is no queue number"
        elif not 0 <= queue_offset * MESSAGE_BYTES_MIN <= log_offset:
            yield row, f"{queue_offset} is no queue offset: the log has no room for so many before"
        elif topic in wrong_topics:
            yield row, f"{topic!r:.80} is no topic"


def misplaced_rows(
    run: DispatchRun,
    following: DispatchRun | None,
    queue_of: Callable[[str, int], ConsumeQueue | None],
) -> list[tuple[int, str]]:
    """The rows whose queue offset is gainsaid by those before and behind them in their queue.

    Where two claim one place it is the one whose neighbours fit that has it. Without a neighbour
    on each side nothing is said of a row: a hole may be what a damaged record has left.
    """
    ends: dict[_Key, tuple[int | None, int]] = {}
    doubtful = _doubtful_queues(run, queue_of, ends)
    if not doubtful:
        return []
    claims: dict[_Key, list[_Place]] = {key: [] for key in doubtful}
    for some in (run, following):
        if some is None:
            continue
        for row, key in enumerate(zip(some.topics, some.queue_ids, strict=True)):
            if key not in claims or not some.in_queue[row]:
                continue
            if some.log_offsets[row] + some.sizes[row] > ends[key][1]:
                claims[key].append(_Place(some.queue_offsets[row], row if some is run else -1))
    return [
        (place.row, f"queue offset {place.queue_offset} does not fit between its neighbours")
        for key, places in claims.items()
        for place in _misplaced(places, ends[key][0])
        if place.row >= 0
    ]


def _doubtful_queues(
    run: DispatchRun,
    queue_of: Callable[[str, int], ConsumeQueue | None],
    ends: dict[_Key, tuple[int | None, int]],
) -> set[_Key]:
    """The queues whose rows do not follow each other; usually none. `ends` is filled: the last
    queue offset of each, if it has messages, and where its last message ends in the log."""
    expected: dict[_Key, int] = {}
    doubtful: set[_Key] = set()
    for row, key in enumerate(zip(run.topics, run.queue_ids, strict=True)):
        if not run.in_queue[row]:
            continue
        queue_offset = run.queue_offsets[row]
        if key not in ends:
            queue = queue_of(*key)
            known = queue is not None and queue.last_log_end > 0
            ends[key] = (queue.max_offset - 1, queue.last_log_end) if known and queue else (None, 0)
        last, last_log_end = ends[key]
        if run.log_offsets[row] + run.sizes[row] <= last_log_end:
            continue  # the queue has it
        if queue_offset != expected.get(key, queue_offset if last is None else last + 1):
            doubtful.add(key)
        expected[key] = queue_offset + 1
    return doubtful


def _misplaced(places: list[_Place], last: int | None) -> Iterator[_Place]:
    """Of the claims to one queue, in the order of the log, those that cannot be true."""
    for number, place in enumerate(places):
        behind = [other.queue_offset for other in places[number + 1 : number + 3]]
        here = place.queue_offset
        if last is None:  # the first: two that agree with each other know better
            if len(behind) == 2 and behind[1] == behind[0] + 1 and behind[0] <= here:
                yield place
                continue
        elif here != last + 1 and behind:
            if behind[0] == last + 2:  # it must have been the one between
                last += 1
                yield place
                continue
            if behind[0] == last + 1 < here:  # it is of another queue
                yield place
                continue
        last = here if last is None else max(last, here)
