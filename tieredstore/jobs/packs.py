"""Packs small work items into one partition, and reads together the bytes that are stored together.

A partition for each small queue costs more than its read. And if many queues share an object,
reading queue by queue makes a request for each queue in each object. So the bytes of a whole window
of slices are fetched first, and each slice is then read from memory. Bytes that could not be
fetched this way are read item by item: the reader of a slice finds and reports damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.driver.provider import (
    ProviderWrapper,
    SegmentProvider,
    SegmentRead,
    SegmentWrapper,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.jobs.slices import Slice
from tieredstore.jobs.worker import worker_provider, worker_runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, SegmentRecord, SegmentType

log = log_of(__name__)

PACKED_MAX: Final = 4_096  # pieces that one partition reads one after the other
PACKED_BYTES_MIN: Final = 16 * 1024  # a smaller piece takes as long as one of this size
WINDOW_BYTES: Final = 64 * 1024 * 1024  # of slices fetched together
HELD_BYTES_MAX: Final = 96 * 1024 * 1024
"""More may be fetched than was planned, because message sizes differ from the average."""
NEARLY_ALL: Final = 0.9
"""If a slice has this share of its queue, the whole log is fetched: reading a bit too much takes
less time than first reading the units to find its messages."""


class Piece(Protocol):
    """A work item: a slice, or something like it."""

    @property
    def approximate_bytes(self) -> int: ...

    @property
    def rows(self) -> tuple[SegmentRecord, ...]: ...


PieceT = TypeVar("PieceT", bound=Piece)


def packed(
    pieces: Iterable[PieceT], *, split_bytes: int, provider: SegmentProvider
) -> list[tuple[PieceT, ...]]:
    """Partitions of about `split_bytes` each. Large pieces come first, one to a partition; small
    ones are grouped with those next to them in the backend."""
    every = list(pieces)
    large = [piece for piece in every if 2 * piece.approximate_bytes >= split_bytes]
    small = [piece for piece in every if 2 * piece.approximate_bytes < split_bytes]
    packs: list[tuple[PieceT, ...]] = [(piece,) for piece in large]
    held: list[PieceT] = []
    held_bytes = 0
    for piece in _in_reading_order(small, provider):
        size = max(piece.approximate_bytes, PACKED_BYTES_MIN)
        if held and (held_bytes + size > split_bytes or len(held) >= PACKED_MAX):
            packs.append(tuple(held))
            held, held_bytes = [], 0
        held.append(piece)
        held_bytes += size
    return [*packs, tuple(held)] if held else packs


def _in_reading_order(pieces: Sequence[PieceT], provider: SegmentProvider) -> list[PieceT]:
    """Sorted by where the newest log segment of each lies: a small queue has only one. Otherwise
    the order stays."""
    newest = [
        max(piece.rows, key=lambda row: (row.type is SegmentType.COMMIT_LOG, row.base_offset))
        for piece in pieces
    ]
    numbers = provider.reading_order(newest)
    order = sorted(range(len(pieces)), key=numbers.__getitem__)
    return [pieces[place] for place in order]


def read_packed(
    config: StoreConfig, pieces: Sequence[PieceT]
) -> Iterator[tuple[PieceT, SegmentProvider]]:
    """Each piece, and the provider to read it through, which may have its bytes in memory.

    Only the bytes of one window are in memory at a time. Those of a slice are released when the
    next one is requested.
    """
    provider = worker_provider(config)
    for window in _windows(pieces) if provider.reads_together else [pieces]:
        fetched: list[SegmentProvider] = [provider] * len(window)
        if provider.reads_together and len(window) > 1:
            fetched = list(_fetched(provider, window))
        fetched.reverse()
        for piece in window:
            yield piece, fetched.pop()


def _windows(pieces: Sequence[PieceT]) -> Iterator[Sequence[PieceT]]:
    window: list[PieceT] = []
    total = 0
    for piece in pieces:
        size = piece.approximate_bytes
        if isinstance(piece, Slice):
            size += len(piece) * UNIT_BYTES
        if window and total + size > WINDOW_BYTES:
            yield window
            window, total = [], 0
        window.append(piece)
        total += size
    if window:
        yield window


def _fetched(provider: SegmentProvider, window: Sequence[PieceT]) -> list[SegmentProvider]:
    """A provider for each piece. That of a slice has the bytes that could be fetched.

    If a slice is nearly all of its queue, units and logs are requested at once. Otherwise logs are
    requested when the units have told where the messages lie.
    """
    provider.catch_up([row for piece in window for row in piece.rows])
    found: list[SegmentProvider] = []
    both: list[_Wanted] = []
    logs: list[tuple[Slice, _HeldProvider]] = []
    for piece in window:
        if not isinstance(piece, Slice):  # single messages may lie anywhere
            found.append(provider)
            continue
        held = _HeldProvider(provider, worker_runtime())
        found.append(held)
        units = piece.first_offset * UNIT_BYTES, piece.end_offset * UNIT_BYTES
        both.append((held, _reads(piece, SegmentType.CONSUME_QUEUE, *units)))
        log_rows = [row for row in piece.rows if row.type is SegmentType.COMMIT_LOG]
        if piece.approximate_bytes >= NEARLY_ALL * sum(row.size for row in log_rows):
            both.append((held, _reads(piece, SegmentType.COMMIT_LOG, 0, INT64_MAX)))
        else:
            logs.append((piece, held))
    left = HELD_BYTES_MAX - _fetch(provider, both)
    named: list[_Wanted] = []
    for slice_, held in logs:
        reads = _named(slice_, held)
        size = sum(read.length for read in reads)
        if size <= left:
            left -= size
            named.append((held, reads))
    _fetch(provider, named)
    return found


def _reads(slice: Slice, type: SegmentType, start: int, stop: int) -> list[SegmentRead]:
    """Reads of bytes `start` to `stop` of the queue's file, from the segments of this type."""
    return [
        SegmentRead(row.path, type, row.base_offset, low - row.base_offset, high - low)
        for row in slice.rows
        if row.type is type
        and (low := max(start, row.base_offset)) < (high := min(stop, row.end_offset))
    ]


def _named(slice: Slice, held: _HeldProvider) -> list[SegmentRead]:
    """Reads of the log from the first message that the slice's units name to the last."""
    data = b"".join(data for _, data in held.ranges(SegmentType.CONSUME_QUEUE))
    if len(data) != len(slice) * UNIT_BYTES:
        return []  # not all units could be fetched
    units = decode_units(data)
    end = int(units.log_offsets[-1]) + int(units.message_bytes[-1])
    return _reads(slice, SegmentType.COMMIT_LOG, int(units.log_offsets[0]), end)


def _fetch(provider: SegmentProvider, wanted: Sequence[_Wanted]) -> int:
    """Fetch ranges for their holders; returns how many bytes were fetched."""
    flat = [(held, read) for held, reads in wanted for read in reads]
    try:
        answers = provider.read_together([read for _, read in flat]) if flat else []
    except TieredStoreError as error:
        log.warning("read piece by piece: %s", error)
        return 0
    total = 0
    for (held, read), answer in zip(flat, answers, strict=True):
        if isinstance(answer, bytes):
            held.hold(read, answer)
            total += len(answer)
    return total


class _HeldProvider(ProviderWrapper):
    """Reads its segments from memory if all requested bytes are there."""

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self._held: dict[tuple[str, SegmentType, int], tuple[int, bytes]] = {}

    def hold(self, read: SegmentRead, data: bytes) -> None:
        self._held[read.path, read.type, read.base] = read.position, data

    def ranges(self, type: SegmentType) -> list[tuple[int, bytes]]:
        """What is held of segments of one type, sorted by base offset: positions and bytes."""
        return [self._held[key] for key in sorted(key for key in self._held if key[1] is type)]

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        key = segment.queue_path, segment.type, segment.base
        held = self._held.get(key)
        return SegmentWrapper(segment) if held is None else _HeldSegment(segment, *held)


class _HeldSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, position: int, data: bytes) -> None:
        super().__init__(inner)
        self._position = position
        self._data = data

    def read(self, position: int, length: int) -> bytes:
        at = position - self._position
        if length >= 0 and 0 <= at <= len(self._data) - length:
            return self._data[at : at + length]
        return super().read(position, length)


_Wanted: TypeAlias = tuple[_HeldProvider, Sequence[SegmentRead]]
