"""A segment whose bytes lie where a broker's log says: in entries and data objects while it grows,
in one object once it is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tieredstore.driver.object_client import Range
from tieredstore.driver.segment import Buffer, FileSegment, check_range
from tieredstore.model.errors import (
    BackendError,
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentType
from tieredstore.roundlog import upkeep
from tieredstore.roundlog.draft import Draft, DraftWrite
from tieredstore.roundlog.entry import SegmentKey
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import crc32c
from tieredstore.roundlog.state import LogSegmentState, LogState, Place


@dataclass(slots=True)
class _Piece:
    """One range of one object, and the whole extents in it: start, length and checksum of each."""

    key: str
    start: int
    length: int = 0
    checks: list[tuple[int, int, int]] = field(default_factory=list)


@contextmanager
def lost_to_another(log: BrokerLog) -> Iterator[None]:
    """If an object is missing because a newer writer has deleted it, raise FencedError."""
    try:
        yield
    except SegmentNotFoundError:
        log.check_writer()
        raise


class LogSegment(FileSegment):
    """A segment of a broker's log.

    * A write is an entry of its own; a round writes many segments with one entry.
    * `seal` copies all bytes into one object: it is slow, and meant for the background. A sealed
      segment is sealed for every process.
    * A process that is not the writer reads from the state as it last read it, and reads the log
      again if a segment or bytes are missing there. The writer knows the newest state.
    """

    def __init__(
        self, log_of: Callable[[], BrokerLog], path: str, type: SegmentType, base: int
    ) -> None:
        super().__init__(path, type, base)
        self._log_of = log_of
        self._is_sealed = False
        self._is_closed = False

    @property
    def key(self) -> SegmentKey:
        """Its key in the log."""
        return self.queue_path, self.type, self.base

    @property
    def path(self) -> str:
        return self._log_of().layout.segment_key(*self.key)

    @property
    def is_full(self) -> bool:
        """Whether it is sealed, by this process or another."""
        segment = self._known()
        return segment is not None and segment.sealed is not None

    @property
    def wants_seal(self) -> bool:
        segment = self._known()
        return segment is not None and segment.sealed is None and segment.size > 0

    def _known(self) -> LogSegmentState | None:
        """Its state as last read, without a request."""
        if self._is_closed:
            return None
        log = self._log_of()
        with log.guard:
            return None if log.known is None else log.known.segment(self.key)

    def size(self) -> int:
        log = self._open_log()
        state = log.settled()
        with log.guard:
            return self._existing(state).size

    # Reading

    def read(self, position: int, length: int) -> bytes:
        log = self._open_log()
        try:
            pieces = self._pieces(log, log.state(), position, length)
        except (SegmentNotFoundError, OffsetOutOfRangeError):
            if log.is_writer:
                raise
            pieces = self._pieces(log, log.follow(), position, length)
        try:
            return self._joined(log, pieces, position)
        except SegmentNotFoundError:  # merged, sealed or deleted since
            log.check_writer()  # if not by us, then by a newer writer
            pieces = self._pieces(log, log.follow(), position, length)
        return self._joined(log, pieces, position, is_newest=True)

    def _pieces(
        self, log: BrokerLog, state: LogState, position: int, length: int
    ) -> Sequence[_Piece]:
        """The ranges of objects that hold these bytes."""
        with log.guard:
            segment = self._existing(state)
            check_range(self.path, position, length, segment.size)
            if not length:
                return ()
            sealed = segment.sealed
            places = state.places(segment.number) if sealed is None else ()
        if sealed is None:
            return self._in_extents(log, places, position, position + length)
        piece = _Piece(log.key(sealed.key), position, length)
        if length == sealed.size and sealed.crc is not None:
            piece.checks.append((0, length, sealed.crc))
        return [piece]

    def _in_extents(
        self, log: BrokerLog, places: Sequence[Place], position: int, end: int
    ) -> Sequence[_Piece]:
        """The ranges of an open segment; neighbours in an object are one range."""
        pieces: list[_Piece] = []
        at = position
        for place in places:
            begin, stop = max(at, place.position), min(end, place.position + place.length)
            if begin >= stop:
                continue
            if begin != at:
                break
            key, start = log.key(place.object), place.offset + begin - place.position
            piece = pieces[-1] if pieces else None
            if piece is None or (piece.key, piece.start + piece.length) != (key, start):
                piece = _Piece(key, start)
                pieces.append(piece)
            if stop - begin == place.length:
                piece.checks.append((piece.length, place.length, place.crc))
            piece.length += stop - begin
            at = stop
        if at != end:
            raise SegmentCorruptError(self.path, "no entry says where it lies", position=at)
        return pieces

    def _joined(
        self, log: BrokerLog, pieces: Sequence[_Piece], position: int, *, is_newest: bool = False
    ) -> bytes:
        """Read the pieces and join them; whole extents are checked against their checksums. An
        error names the first position in the segment that is in doubt. SegmentNotFoundError if an
        object is gone, unless the pieces are the newest: then it is lost."""
        answers = log.calls.answers([Range(each.key, each.start, each.length) for each in pieces])
        found: list[bytes] = []
        for piece, data in zip(pieces, answers, strict=True):
            if isinstance(data, TieredStoreError):
                raise self._failure(data, position, is_newest=is_newest)
            view = memoryview(data)
            for start, length, crc in piece.checks:
                if crc32c(data if length == len(data) else view[start : start + length]) != crc:
                    place = f"{length} bytes at {piece.start + start} of {piece.key}"
                    raise SegmentCorruptError(
                        self.path, f"{place} have another checksum", position=position + start
                    )
            found.append(data)
            position += piece.length
        return found[0] if len(found) == 1 else b"".join(found)

    def _failure(
        self, error: TieredStoreError, position: int, *, is_newest: bool
    ) -> TieredStoreError:
        """What it means for the segment that an object cannot be read."""
        if isinstance(error, OffsetOutOfRangeError):
            reason = f"an object is cut short: {error}"
        elif isinstance(error, SegmentNotFoundError) and is_newest:
            reason = f"an object is gone: {error.path}"
        else:
            return error
        failure = SegmentCorruptError(self.path, reason, position=position)
        failure.__cause__ = error
        return failure

    # Writing

    def draft(self, position: int, data: Buffer) -> DraftWrite:
        """A write of these bytes, which are not copied, for an entry."""
        self._open_log()
        if self._is_sealed:
            raise SegmentSealedError(self.path)
        return DraftWrite(self.key, position, memoryview(data).cast("B"))

    def write(self, position: int, data: Buffer) -> None:
        draft = Draft(writes=[self.draft(position, data)])
        log = self._open_log()
        if not draft.payload_bytes:
            self._check_end(log, position)
            return
        log.append([draft])
        if draft.error is not None:
            raise draft.error

    def _check_end(self, log: BrokerLog, position: int) -> None:
        log.claim()
        state = log.settled()
        with log.guard:
            segment = state.segment(self.key)
            end = 0 if segment is None else segment.size
            is_sealed = segment is not None and segment.sealed is not None
        if is_sealed:
            raise SegmentSealedError(self.path)
        if position != end:
            raise PositionMismatchError(self.path, expected=position, actual=end)

    def seal(self) -> None:
        (error,) = seal_together(self._open_log(), [self])
        if error is not None:
            raise error

    def delete(self) -> None:
        log = self._open_log()
        log.claim()
        state = log.settled()
        with log.guard:
            is_there = state.segment(self.key) is not None
        if is_there:
            log.append([Draft(deleted=[self.key])])

    def write_no_more(self) -> None:
        self._open_log()
        self._is_sealed = True

    def close(self) -> None:
        self._is_closed = True

    def _existing(self, state: LogState) -> LogSegmentState:
        segment = state.segment(self.key)
        if segment is None or not segment.size:
            raise SegmentNotFoundError(self.path)
        return segment

    def _open_log(self) -> BrokerLog:
        if self._is_closed:
            raise StoreClosedError(f"{self.path} is closed")
        return self._log_of()


def seal_together(log: BrokerLog, segments: Sequence[LogSegment]) -> list[TieredStoreError | None]:
    """Seal segments of one log with few reads and few entries. Returns each one's error or None."""
    failure: TieredStoreError | None = None
    try:
        for segment in segments:
            segment.write_no_more()
        if _unsealed(log, segments):
            log.claim()
            with lost_to_another(log):
                upkeep.seal(log, [segment.key for segment in segments], log.pool)
    except TieredStoreError as error:
        failure = error
    if failure is None:
        return [None] * len(segments)
    unsealed = _unsealed(log, segments)
    if len(segments) > 1 and not isinstance(failure, BackendError):  # one of them is damaged
        return [
            seal_together(log, [segment])[0] if segment.key in unsealed else None
            for segment in segments
        ]
    return [failure if segment.key in unsealed else None for segment in segments]


def _unsealed(log: BrokerLog, segments: Sequence[LogSegment]) -> set[SegmentKey]:
    state = log.state()
    with log.guard:
        found = [state.segment(segment.key) for segment in segments]
    return {each.key for each in found if each is not None and each.sealed is None}
