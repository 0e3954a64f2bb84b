"""From a selection to pieces of work: slices of queues, and single messages that an index named.

What lives here: `plan_scan`, `PickedMessages` and `ScanItem`. Only the catalogue is looked at, but
for three things: a time range takes a few small reads a queue, and so does a queue with very many
segments (`slice_rows`), and keys are asked of the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tieredstore.access.reader import TieredReader
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.record_fields import peek_queue_id, peek_queue_offset
from tieredstore.jobs.reading.selection import EVER, Selection
from tieredstore.jobs.reading.slice_rows import trimmed
from tieredstore.jobs.reading.slices import SPLIT_BYTES, QueueRows, Slice, plan_slices, queue_rows
from tieredstore.jobs.worker_parts import worker_runtime
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, QueueKey

log = log_of(__name__)

CLOCK_SLACK_MS: Final = 60_000  # so far a broker's clock may have been set back
INDEX_LAG_MS: Final = 3_600_000  # so late a broker may tier one queue's messages after another's
HITS_MAX: Final = 10_000  # of one key; a key that more messages have is found by reading
PICKED_MAX: Final = 256  # messages of one piece of work
PACKED_MAX: Final = 256  # pieces that are worked off one after the other
PACKED_BYTES_MIN: Final = 64 * 1024  # so much could have been read in the time a piece takes


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedMessages:
    """Single messages of one queue, by ascending queue offset; `rows` is what a reader needs."""

    key: QueueKey
    path: str
    offsets: tuple[int, ...]
    approximate_bytes: int
    rows: tuple[SegmentRecord, ...]


ScanItem: TypeAlias = Slice | PickedMessages


def selected_queues(reader: TieredReader, selection: Selection) -> list[QueueRows]:
    return queue_rows(reader.segments(), wanted=selection.wants)


def refuse_unknown_topics(reader: TieredReader, topics: frozenset[str] | None) -> None:
    """One line for a topic that the tier does not have, and what it has instead."""
    known = {key.topic for key in reader.queues()} | {row.topic for row in reader.topics()}
    missing = sorted((topics or frozenset()) - known)
    if missing:
        some = ", ".join(sorted(known)[:8]) or "none"
        raise InvalidConfigError(
            f"topics: the tier has no topic {missing[0]!r}; its {len(known)} topics: {some}"
            + (", …" if len(known) > 8 else "")
        )


def plan_scan(
    reader: TieredReader, selection: Selection, *, split_bytes: int = SPLIT_BYTES
) -> list[ScanItem]:
    """The work that reads at least what is selected. Which rows count is looked at by who reads."""
    queues = selected_queues(reader, selection)
    bounds = queue_bounds(reader, queues, selection)
    if selection.key_texts is None or not reader.config.index_enabled:
        return _sliced(reader, queues, bounds, split_bytes)
    unindexed: list[ScanItem] = []
    picked: list[ScanItem] = []
    by_topic: dict[str, list[QueueRows]] = {}
    for rows in queues:
        by_topic.setdefault(rows.key.topic, []).append(rows)
    for topic, its_queues in by_topic.items():
        # First how far the index goes, then what it has: it may come further meanwhile.
        lacking = {rows.path: _unindexed(reader, rows, bounds[rows.path]) for rows in its_queues}
        hits = _hits(reader, topic, selection)
        for rows in its_queues:
            whole = bounds[rows.path]
            ranges = [whole] if hits is None else lacking[rows.path]
            for part in ranges:
                unindexed += _sliced(reader, [rows], {rows.path: part}, split_bytes)
            found = (hits or {}).get(rows.key.queue_id, ())
            picked += _picked(rows, sorted(each for each in found if _is_in(each, whole, ranges)))
    return [*picked, *unindexed]


def _sliced(
    reader: TieredReader,
    queues: Sequence[QueueRows],
    bounds: Mapping[str, tuple[int, int]],
    split_bytes: int,
) -> list[ScanItem]:
    slices = plan_slices(queues, split_bytes=split_bytes, bounds=lambda rows: bounds[rows.path])
    return [*trimmed(reader.config, slices)]


def _is_in(offset: int, whole: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Whether an offset is within the first range and in none of the others."""
    return whole[0] <= offset < whole[1] and not any(first <= offset < end for first, end in others)


def packed(items: Iterable[ScanItem], *, split_bytes: int) -> list[tuple[ScanItem, ...]]:
    """Neighbours together, up to about `split_bytes`: a task for each small queue costs more than
    it reads."""
    packs: list[tuple[ScanItem, ...]] = []
    held: list[ScanItem] = []
    held_bytes = 0
    for item in items:
        size = item.approximate_bytes + PACKED_BYTES_MIN
        if held and (held_bytes + size > split_bytes or len(held) >= PACKED_MAX):
            packs.append(tuple(held))
            held, held_bytes = [], 0
        held.append(item)
        held_bytes += size
    return [*packs, tuple(held)] if held else packs


def queue_bounds(
    reader: TieredReader, queues: Sequence[QueueRows], selection: Selection
) -> dict[str, tuple[int, int]]:
    """Queue offsets, by queue path, that hold all that is selected by offset and time."""
    if not selection.is_timed:
        return {rows.path: selection.offsets for rows in queues}
    pool = worker_runtime().fetch
    asked = [pool.submit(_bounds_in_time, reader, rows, selection) for rows in queues]
    return {rows.path: found.result() for rows, found in zip(queues, asked, strict=True)}


def _bounds_in_time(reader: TieredReader, rows: QueueRows, selection: Selection) -> tuple[int, int]:
    (first, end), (begin, until) = selection.offsets, selection.times
    if begin != EVER[0]:
        found = reader.offset_by_time(*rows.key, max(begin - CLOCK_SLACK_MS, 0))
        first = max(first, found or 0)
    if until != EVER[1]:
        found = reader.offset_by_time(*rows.key, max(until + CLOCK_SLACK_MS, 0))
        end = end if found is None else min(end, found)
    return first, end


# Keys


def _hits(
    reader: TieredReader, topic: str, selection: Selection
) -> dict[int, dict[int, int]] | None:
    """Sizes of messages by queue id and queue offset; None where the index cannot tell them all."""
    begin, until = selection.times
    found: dict[int, dict[int, int]] = {}
    for key in sorted(selection.key_texts or ()):
        result = reader.query_message(
            topic, key, count_max=HITS_MAX, begin=max(begin, -INT64_MAX), end=until - 1
        )
        # What the index lags behind is read in any case: see `_unindexed`.
        if not (result.complete or result.lags) or len(result.messages) >= HITS_MAX:
            log.warning("%s: the index cannot tell all messages with key %r: read all", topic, key)
            return None
        for message in result.messages:
            queue = found.setdefault(peek_queue_id(message.record), {})
            queue[peek_queue_offset(message.record)] = len(message.record)
    return found


def _unindexed(
    reader: TieredReader, rows: QueueRows, whole: tuple[int, int]
) -> list[tuple[int, int]]:
    """What of the queue is not in the index: its files are uploaded late, and dropped by age."""
    times = reader.indexed_times()
    if times is None:
        return [whole]
    end = reader.indexed_offset(*rows.key)
    if end is None:
        end = reader.offset_by_time(*rows.key, max(times.end - INDEX_LAG_MS, 0)) or 0
    ranges = [(max(whole[0], end), whole[1])]
    if times.begin is not None:
        first = reader.offset_by_time(*rows.key, times.begin + INDEX_LAG_MS) or 0
        ranges.append((whole[0], min(whole[1], first, end)))
    return [each for each in ranges if each[0] < each[1]]


def _picked(rows: QueueRows, offsets: Sequence[int]) -> Iterator[PickedMessages]:
    for start in range(0, len(offsets), PICKED_MAX):
        part = tuple(offsets[start : start + PICKED_MAX])
        units = [
            row
            for row in rows.queue
            if row.base_offset <= part[-1] * UNIT_BYTES and part[0] * UNIT_BYTES < row.end_offset
        ]
        each = rows.log_bytes // max(1, rows.message_count)
        yield PickedMessages(
            key=rows.key,
            path=rows.path,
            offsets=part,
            approximate_bytes=len(part) * each,
            rows=(*rows.log, *units),
        )
