"""Where everything that was staged goes: offsets, segments, and what they are made of.

What lives here: `plan_load`. Counts and sizes are known from the winners of all tasks; only what a
border between two segments parts is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnits, decode_units
from tieredstore.driver.scratch import Scratch
from tieredstore.jobs.loading.load_stage import StagedPart, StagedPortion
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey, SegmentType


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTarget:
    """A queue that is loaded into, and where its next message goes."""

    key: QueueKey
    path: str
    topic_id: int
    is_new: bool
    queue_offset: int
    log_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows `first` to before `end` of a portion. Its row 0 has these offsets in the tier."""

    portion: StagedPortion
    first: int
    end: int
    queue_offset: int
    log_offset: int


@dataclass(slots=True, kw_only=True)
class NewSegment:
    """One segment to be made of pieces, in order."""

    target: QueueTarget
    type: SegmentType
    base: int
    size: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def row(self, *, now_ms: int, times: tuple[int, int] | None = None) -> SegmentRecord:
        begin, end = (None, None) if times is None else times
        return SegmentRecord(
            path=self.target.path,
            type=self.type,
            base_offset=self.base,
            size=self.size,
            create_timestamp=now_ms,
            begin_timestamp=begin,
            end_timestamp=end,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """All segments that are to be made; `ends` are the queues' next offsets afterwards."""

    logs: Sequence[NewSegment]
    units: Sequence[NewSegment]
    targets: Sequence[QueueTarget]
    ends: Mapping[QueueKey, int]

    @property
    def message_count(self) -> int:
        return sum(self.ends[each.key] - each.queue_offset for each in self.targets)


def portions_by_queue(parts: Sequence[StagedPart]) -> dict[QueueKey, list[StagedPortion]]:
    """By partition number, and within a partition as they were staged."""
    found: dict[QueueKey, list[StagedPortion]] = {}
    for part in sorted(parts, key=lambda part: part.partition):
        for portion in part.portions:
            found.setdefault(portion.key, []).append(portion)
    return dict(sorted(found.items()))


def plan_load(
    parts: Sequence[StagedPart],
    config: StoreConfig,
    scratch: Scratch,
    target_of: Callable[[QueueKey], QueueTarget],
) -> LoadPlan:
    """New segments behind what each queue has: no segment that is there is touched."""
    logs: list[NewSegment] = []
    units: list[NewSegment] = []
    targets: list[QueueTarget] = []
    ends: dict[QueueKey, int] = {}
    for key, portions in portions_by_queue(parts).items():
        target = target_of(key)
        placed = list(_placed(target, portions))
        logs += _log_segments(target, placed, config.commit_log_segment_bytes, scratch)
        per_segment = max(1, config.consume_queue_segment_bytes // UNIT_BYTES)
        units += _unit_segments(target, placed, per_segment)
        targets.append(target)
        ends[key] = target.queue_offset + sum(each.count for each in portions)
    return LoadPlan(logs=logs, units=units, targets=targets, ends=ends)


def read_units(scratch: Scratch, portion: StagedPortion, first: int, end: int) -> QueueUnits:
    position = portion.position + first * UNIT_BYTES
    return decode_units(scratch.read(portion.name, position, (end - first) * UNIT_BYTES))


def _placed(target: QueueTarget, portions: Sequence[StagedPortion]) -> Iterator[Piece]:
    queue_offset, log_offset = target.queue_offset, target.log_offset
    for each in portions:
        yield Piece(
            portion=each, first=0, end=each.count, queue_offset=queue_offset, log_offset=log_offset
        )
        queue_offset += each.count
        log_offset += each.log_bytes


def _log_segments(
    target: QueueTarget, placed: Sequence[Piece], bytes_max: int, scratch: Scratch
) -> list[NewSegment]:
    """A segment takes a record that is longer than it may be only as its first one."""
    segments = [NewSegment(target=target, type=SegmentType.COMMIT_LOG, base=target.log_offset)]
    for piece in placed:
        last = segments[-1]
        if last.size + piece.portion.log_bytes <= bytes_max:
            last.pieces.append(piece)
            last.size += piece.portion.log_bytes
            continue
        sizes = read_units(scratch, piece.portion, 0, piece.end).message_bytes.astype(np.int64)
        ends = np.cumsum(sizes)
        first = taken = 0
        while first < piece.end:
            last = segments[-1]
            end = int(np.searchsorted(ends, taken + bytes_max - last.size, side="right"))
            if end <= first and last.size:
                segments.append(_next(last))
                continue
            end = max(end, first + 1)
            last.pieces.append(_part(piece, first, end))
            last.size += int(ends[end - 1]) - taken
            first, taken = end, int(ends[end - 1])
    return segments


def _unit_segments(
    target: QueueTarget, placed: Sequence[Piece], units_max: int
) -> list[NewSegment]:
    base = target.queue_offset * UNIT_BYTES
    segments = [NewSegment(target=target, type=SegmentType.CONSUME_QUEUE, base=base)]
    for piece in placed:
        first = 0
        while first < piece.end:
            last = segments[-1]
            room = units_max - last.size // UNIT_BYTES
            if not room:
                segments.append(_next(last))
                continue
            end = min(piece.end, first + room)
            last.pieces.append(_part(piece, first, end))
            last.size += (end - first) * UNIT_BYTES
            first = end
    return segments


def _next(last: NewSegment) -> NewSegment:
    return NewSegment(target=last.target, type=last.type, base=last.base + last.size)


def _part(piece: Piece, first: int, end: int) -> Piece:
    return Piece(
        portion=piece.portion,
        first=first,
        end=end,
        queue_offset=piece.queue_offset,
        log_offset=piece.log_offset,
    )
