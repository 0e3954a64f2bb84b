"""Reads many segments of a log at once, by reading the objects that hold them front to back.

A round, or an object that rounds were merged into, has bytes of all queues. Reading queue after
queue would take a request for each queue in each object. So the places of all bytes are first
gathered and sorted by object and offset: neighbours then share a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.object_client import Range
from tieredstore.driver.provider import SegmentRead
from tieredstore.driver.segment import check_range
from tieredstore.model.errors import (
    SegmentCorruptError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.values import INT64_MAX, SegmentRecord
from tieredstore.roundlog.entry import NO_ROW, Extents, SegmentKey
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import RANGE_BYTES_MAX, crc32c
from tieredstore.roundlog.state import LogSegmentState, LogState

LogOf: TypeAlias = Callable[[str], BrokerLog]
Answer: TypeAlias = bytes | TieredStoreError

GAP_BYTES_MAX: Final = 64 << 10  # between neighbours: reading it is as fast as another request
UNDER_WAY_BYTES: Final = 32 << 20  # of ranges that were requested and not yet handed out
UNDER_WAY_MAX: Final = 64  # ranges that are requested at a time
_NO_CRC: Final = -1


def read_together(log_of: LogOf, reads: Sequence[SegmentRead]) -> list[Answer]:
    """Each range or its error, in order; `log_of` returns the log of a broker.

    Checks the checksum of every extent that is read whole. Holds the result in memory, and at most
    UNDER_WAY_BYTES more.
    """
    answers: list[Answer] = [b""] * len(reads)
    of_broker: dict[str, list[int]] = {}
    for number, read in enumerate(reads):
        of_broker.setdefault(_broker(read.path), []).append(number)
    for broker, numbers in of_broker.items():
        found = _of_log(log_of, broker, [reads[number] for number in numbers])
        for number, answer in zip(numbers, found, strict=True):
            answers[number] = answer
    return answers


def reading_order(log_of: LogOf, segments: Sequence[SegmentRecord]) -> list[int]:
    """Sort keys for the segments: their numbers in the log. Merged bytes lie in this order, those
    of rounds nearly so.

    Segments without a number, and those of logs that cannot be read, come last.
    """
    numbers: dict[str, dict[SegmentKey, int]] = {}
    for broker in {_broker(row.path) for row in segments}:
        try:
            log = log_of(broker)
            log.state(recent=True)
        except TieredStoreError:
            continue  # the reads themselves will raise it
        with log.guard:
            numbers[broker] = dict(log.state().numbers)
    return [numbers.get(_broker(row.path), {}).get(row.key, INT64_MAX) for row in segments]


def _broker(path: str) -> str:
    return path.partition("/")[0]


def _of_log(log_of: LogOf, broker: str, reads: Sequence[SegmentRead]) -> list[Answer]:
    try:
        log = log_of(broker)
        log.state(recent=True)
        with log.guard:
            pieces, errors = _pieces(log, reads)
    except TieredStoreError as error:
        return [error] * len(reads)
    buffers = [
        bytearray(0 if number in errors else read.length) for number, read in enumerate(reads)
    ]
    for ranges in _batches(_ranges(pieces)):
        wanted = [Range(log.key(each.object), each.start, each.end - each.start) for each in ranges]
        for each, data in zip(ranges, log.calls.client.get_ranges(wanted), strict=True):
            each.hand_out(data, buffers, errors)
    _check(log, pieces, reads, buffers, errors)
    answers: list[Answer] = []
    for number in range(len(reads)):
        answers.append(errors[number] if number in errors else bytes(buffers[number]))
        buffers[number] = bytearray()  # otherwise memory would hold all bytes twice
    return answers


class _Piece(NamedTuple):
    """Bytes of an object, and their place `at` in the result of a read.

    `crc` is _NO_CRC if they are only a part of the bytes that have a checksum, or if none is known.
    """

    object: str
    offset: int
    length: int
    crc: int
    read: int
    at: int


def _pieces(
    log: BrokerLog, reads: Sequence[SegmentRead]
) -> tuple[list[_Piece], dict[int, TieredStoreError]]:
    """The pieces of all reads, by object and offset, and the errors of reads that have none."""
    state = log.state()
    errors: dict[int, TieredStoreError] = {}
    numbers = [state.numbers.get((read.path, read.type, read.base), 0) for read in reads]
    extents, names = _extents(state, numbers)
    starts, ends = extents.position, extents.position + extents.length
    firsts, lasts = (np.searchsorted(extents.number, numbers, side) for side in ("left", "right"))
    rows: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for which, (read, first, last) in enumerate(zip(reads, firsts, lasts, strict=True)):
        low = int(first + np.searchsorted(ends[first:last], read.position, "right"))
        stop = read.position + read.length
        high = int(first + np.searchsorted(starts[first:last], stop, "left"))
        mine = np.arange(low, max(low, high))
        try:
            _check_there(log, state.segments.get(numbers[which]), read, starts[mine], ends[mine])
        except TieredStoreError as error:
            errors[which] = error
            mine = mine[:0]
        rows.append(mine)
    read_of = np.repeat(np.arange(-1, len(reads)), [len(mine) for mine in rows])
    row = np.concatenate(rows)
    wanted = np.array([(read.position, read.position + read.length) for read in reads], np.int64)
    start = np.maximum(starts[row], wanted[read_of, 0])
    end = np.minimum(ends[row], wanted[read_of, 1])
    is_whole = end - start == extents.length[row]
    offset = extents.offset[row] + start - starts[row]
    order = np.lexsort((offset, extents.object[row]))
    columns = (
        extents.object[row],
        offset,
        end - start,
        np.where(is_whole, extents.crc[row], _NO_CRC),
        read_of,
        start - wanted[read_of, 0],
    )
    found = zip(*(column[order].tolist() for column in columns), strict=True)
    return [_Piece(names[index], *others) for index, *others in found], errors


def _extents(state: LogState, numbers: Sequence[int]) -> tuple[Extents, list[str]]:
    """Where the bytes of these segments lie, by segment and position, and the names that the
    extents' `object` counts in. A sealed segment is one extent."""
    wanted = np.unique(np.array(numbers, np.int64))
    names: list[str] = []
    parts: list[Extents] = [Extents.none()]
    is_open = np.array([state.is_open(number) for number in wanted.tolist()], bool)
    for chunk in state.chunks.values():
        mine = np.isin(chunk.extents.number, wanted[is_open])
        if mine.any():
            held = chunk.extents.taken(mine)
            parts.append(replace(held, object=held.object + len(names)))
            names += chunk.objects
    sealed: list[tuple[int, int, int, int, int, int, int, int]] = []
    for number in wanted[~is_open].tolist():
        segment = state.segments.get(number)
        if segment is not None and segment.sealed is not None:
            crc = _NO_CRC if segment.sealed.crc is None else segment.sealed.crc
            sealed.append((number, 0, segment.sealed.size, len(names), 0, crc, NO_ROW, NO_ROW))
            names.append(segment.sealed.key)
    parts.append(Extents.of(sealed))
    columns = zip(*(part.columns().values() for part in parts), strict=True)
    return Extents(*(np.concatenate(column) for column in columns)).in_order(), names


def _check_there(
    log: BrokerLog,
    segment: LogSegmentState | None,
    read: SegmentRead,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    """Refuse a range outside the segment, or one that extents do not cover."""
    name = log.layout.segment_key(read.path, read.type, read.base)
    if segment is None:
        raise SegmentNotFoundError(name)
    check_range(name, read.position, read.length, segment.size)
    if not read.length:
        return
    if (
        not len(starts)
        or starts[0] > read.position
        or ends[-1] < read.position + read.length
        or (starts[1:] != ends[:-1]).any()
    ):
        raise SegmentCorruptError(name, "some of its bytes lie nowhere", position=read.position)


@dataclass(slots=True)
class _Range:
    """One request for neighbouring pieces of an object."""

    object: str
    start: int
    end: int
    pieces: list[_Piece]

    def takes(self, piece: _Piece) -> bool:
        """Whether a piece is near enough to be read with this request."""
        end = max(self.end, piece.offset + piece.length)
        return (
            piece.object == self.object
            and self.start <= piece.offset <= self.end + GAP_BYTES_MAX
            and end - self.start <= RANGE_BYTES_MAX
        )

    def hand_out(
        self, data: Answer, buffers: Sequence[bytearray], errors: dict[int, TieredStoreError]
    ) -> None:
        for piece in self.pieces:
            if isinstance(data, TieredStoreError):
                errors.setdefault(piece.read, data)
            else:
                at = piece.offset - self.start
                buffers[piece.read][piece.at : piece.at + piece.length] = memoryview(data)[
                    at : at + piece.length
                ]


def _ranges(pieces: Iterable[_Piece]) -> Iterator[_Range]:
    """As few requests as possible, none of them too long."""
    held: _Range | None = None
    for whole in pieces:
        for piece in (whole,) if whole.length <= RANGE_BYTES_MAX else _cut(whole):
            if held is not None and held.takes(piece):
                held.end = max(held.end, piece.offset + piece.length)
                held.pieces.append(piece)
                continue
            if held is not None:
                yield held
            held = _Range(piece.object, piece.offset, piece.offset + piece.length, [piece])
    if held is not None:
        yield held


def _cut(piece: _Piece) -> Iterator[_Piece]:
    """Cut a piece that is too long for one request."""
    for at in range(0, piece.length, RANGE_BYTES_MAX):
        length = min(RANGE_BYTES_MAX, piece.length - at)
        yield piece._replace(offset=piece.offset + at, length=length, at=piece.at + at)


def _batches(ranges: Iterable[_Range]) -> Iterator[list[_Range]]:
    """Groups of ranges to request together."""
    held: list[_Range] = []
    total = 0
    for each in ranges:
        size = each.end - each.start
        if held and (total + size > UNDER_WAY_BYTES or len(held) == UNDER_WAY_MAX):
            yield held
            held, total = [], 0
        held.append(each)
        total += size
    if held:
        yield held


def _check(
    log: BrokerLog,
    pieces: Sequence[_Piece],
    reads: Sequence[SegmentRead],
    buffers: Sequence[bytearray],
    errors: dict[int, TieredStoreError],
) -> None:
    """Check the pieces that were read whole against their checksums."""
    for piece in pieces:
        if piece.crc == _NO_CRC or piece.read in errors:
            continue
        data = memoryview(buffers[piece.read])[piece.at : piece.at + piece.length]
        if crc32c(data) != piece.crc:
            read = reads[piece.read]
            name = log.layout.segment_key(read.path, read.type, read.base)
            reason = f"{piece.object} has other bytes of it than were put there"
            position = read.position + piece.at
            errors[piece.read] = SegmentCorruptError(name, reason, position=position)
