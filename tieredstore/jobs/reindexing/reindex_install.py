"""Index files that were made elsewhere become files of the tier.

What lives here: `NewIndexFile`, the rows they get, and the change of the catalogue that lets them
be seen. Which entries are in them is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.names import index_queue_path
from tieredstore.driver.metadata import Change, Put
from tieredstore.flat import doomed
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.jobs.loading.load_tier import OwnedTier
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import SegmentType

BLOCK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIndexFile:
    """A compacted file that is to be uploaded; `blocks` gives all its bytes in order."""

    begin: int
    end: int
    size: int
    blocks: Callable[[], Iterator[Buffer]]


def next_base(tier: OwnedTier) -> int:
    """Where the next file begins: behind all that the index ever had, so no name is used twice."""
    path = index_queue_path(tier.config.broker_name)
    present = tier.metadata.segments(path, SegmentType.INDEX)
    return max([Watermarks(tier.metadata, tier.config.broker_name).end(), *_ends(present)])


def index_rows(tier: OwnedTier, files: Sequence[NewIndexFile]) -> list[SegmentRecord]:
    """Their rows, one behind the other."""
    base = next_base(tier)
    rows = []
    for each in files:
        rows.append(
            SegmentRecord(
                path=index_queue_path(tier.config.broker_name),
                type=SegmentType.INDEX,
                base_offset=base,
                size=each.size,
                create_timestamp=tier.runtime.clock.now_ms(),
                begin_timestamp=each.begin,
                end_timestamp=each.end,
            )
        )
        base += each.size
    return rows


def upload(tier: OwnedTier, row: SegmentRecord, file: NewIndexFile) -> None:
    """The bytes of an announced row."""
    with tier.provider.open(row.path, row.type, row.base_offset) as segment:
        size = tier.provider.create(segment, file.blocks())
        if size != row.size:
            raise SegmentCorruptError(
                segment.path, f"{size} bytes were made instead of {row.size}", position=0
            )


def index_changes(
    tier: OwnedTier, rows: Sequence[SegmentRecord], ends: Mapping[QueueId, int]
) -> list[Change]:
    """What the catalogue is to say together: the files are there, and hold queues up to here."""
    config, now = tier.config, tier.runtime.clock.now_ms()
    watermarks = Watermarks(tier.metadata, config.broker_name)
    end = max([next_base(tier), *_ends(rows)])
    return [
        *doomed.forgive(rows),
        *map(Put, rows),
        watermarks.sizes(slot_count=config.index_slot_count, item_capacity=config.index_item_count),
        watermarks.end_at(end),
        *watermarks.moved(ends, dict.fromkeys(ends, now)),
    ]


def begins_in_use(tier: OwnedTier) -> set[int]:
    """Of files that the catalogue knows: a local one of the same begin would be taken for them."""
    path = index_queue_path(tier.config.broker_name)
    watermarks = Watermarks(tier.metadata, tier.config.broker_name)
    rows = tier.metadata.segments(path, SegmentType.INDEX)
    return {row.begin_timestamp or 0 for row in rows} | set(watermarks.begins())


def begin_timestamps(first_times: Sequence[int], used: set[int]) -> list[int]:
    """When each file begins: with its first message, but before the file behind it, and at a
    millisecond of its own. RocketMQ asks only files that begin before the end of its question.

    The first milliseconds of all times may be too few: only there a file begins after a message.
    """
    begins: list[int] = []
    taken = set(used)
    for time in reversed(first_times):
        latest = min(time, begins[-1] - 1) if begins else time
        free = chain(range(latest, 0, -1), count(1))
        begins.append(next(begin for begin in free if begin not in taken))
        taken.add(begins[-1])
    return sorted(begins)


def _ends(rows: Sequence[SegmentRecord]) -> list[int]:
    return [row.end_offset for row in rows]
