"""A segment in an object store, parts while it grows and one object when sealed; rounds of
commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from tieredstore.driver.object_client import ObjectExistsError, Range
from tieredstore.driver.provider import SegmentWrapper, WritePair
from tieredstore.driver.runtime import Pool
from tieredstore.driver.segment import Buffer, FileSegment, check_range
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
)
from tieredstore.model.values import SegmentType
from tieredstore.providers.broker_objects import (
    BrokerParts,
    Part,
    SegmentParts,
    SharedLooks,
    ranges_of,
)
from tieredstore.providers.object_calls import EPOCH, crc32c
from tieredstore.providers.object_layout import part_key
from tieredstore.providers.sealing import carefully, delete, end_deletion, seal

PUT_BYTES_MAX: Final = 5 << 30  # of one request, which is what a write is


class ObjectFileSegment(FileSegment):
    """A segment made of objects.

    * A write is one create-only put; it is acknowledged by a look at the writer's epoch that began
      after it, which many writes share.
    * It takes `parts_max` writes, and then says that it is sealed: roll to the next.
    * `seal` reads all back and writes one object: it takes its time, and is for the background.
      A sealed segment is sealed for every process.
    """

    def __init__(
        self,
        broker: Callable[[], BrokerParts],
        key: str,
        path: str,
        type: SegmentType,
        base: int,
        *,
        parts_max: int,
    ) -> None:
        super().__init__(path, type, base)
        self._broker = broker
        self._key = key
        self._parts_max = parts_max
        self._sealed = False
        self._closed = False

    @property
    def path(self) -> str:
        return self._key

    @property
    def looks(self) -> SharedLooks:
        return self._broker().looks

    @property
    def is_full(self) -> bool:
        if self._closed:
            return False
        known = self._broker().known(self._key)
        return known is not None and (
            known.sealed is not None or len(known.parts) >= self._parts_max
        )

    @property
    def wants_seal(self) -> bool:
        if self._closed:
            return False
        broker = self._broker()
        known = broker.known(self._key)
        if known is None or known.deleting is not None:
            return False
        if known.sealed is not None and broker.keeps_parts(known):
            return False
        return bool(known.parts or known.marks)

    def size(self) -> int:
        broker = self._open_broker()
        segment = broker.segment(self._key, recent=True)
        if segment.doubtful_at is not None:
            with segment.guard:
                self._settle(broker, segment)
        broker.resolve(segment)
        return self._existing_bytes(segment)

    # Reading

    def read(self, position: int, length: int) -> bytes:
        ranges = self._ranges(position, length)
        broker = self._open_broker()
        try:
            return self._joined(broker.requests.ranges([each for _, each in ranges]), ranges)
        except SegmentNotFoundError:  # sealed meanwhile, by us or another process
            segment = broker.reloaded(self._key)
            check_range(self._key, position, length, self._existing_bytes(segment))
            ranges = self._ranges_in(segment, position, length)
        try:
            return self._joined(broker.requests.ranges([each for _, each in ranges]), ranges)
        except SegmentNotFoundError as error:
            if segment.deleting is not None:  # by us: it has gone, though we were not told
                raise SegmentNotFoundError(self._key) from error
            raise SegmentCorruptError(
                self._key, f"an object is gone: {error.path}", position=position
            ) from error

    def _ranges(self, position: int, length: int) -> list[tuple[Part | None, Range]]:
        """Which bytes of which objects these are. May ask the store what there is."""
        broker = self._open_broker()
        segment = broker.segment(self._key)
        broker.resolve(segment)
        if not broker.is_writer and position + length > _total(segment):
            segment = broker.reloaded(self._key)
        check_range(self._key, position, length, self._existing_bytes(segment))
        return self._ranges_in(segment, position, length)

    def _joined(
        self, pieces: Sequence[bytes], ranges: Sequence[tuple[Part | None, Range]]
    ) -> bytes:
        """One run of bytes; a whole part is compared with its checksum where that is known."""
        for piece, (part, wanted) in zip(pieces, ranges, strict=True):
            if len(piece) != wanted.length:
                reason = f"{len(piece)} bytes came instead of {wanted.length}"
                raise BackendUnavailableError(wanted.key, "read", reason)
            if part is not None and part.checksum is not None and len(piece) == part.size:
                check_part(part, crc32c(piece))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _ranges_in(
        self, segment: SegmentParts, position: int, length: int
    ) -> list[tuple[Part | None, Range]]:
        parts = segment.parts  # first: a sealing says that it is done, and then takes them away
        if segment.sealed is not None:
            return [(None, Range(self._key, position, length))]
        return [*ranges_of(parts, position, length)]

    # Writing

    def write(self, position: int, data: Buffer) -> None:
        broker = self._open_broker()
        view = memoryview(data).cast("B")
        broker.claimed()
        segment = broker.segment(self._key)
        with segment.guard:
            part = self.put(position, view)
            if part is not None:
                try:
                    broker.looks.now()
                except BaseException:
                    segment.doubtful_at = part.position
                    raise
                self.acknowledge(part)

    def put(self, position: int, view: memoryview) -> Part | None:
        """The first half of a write: it lands, but does not count yet. None for no bytes."""
        broker = self._open_broker()
        broker.claimed()
        segment = broker.segment(self._key)
        end_deletion(broker, segment)
        epoch = broker.epoch_of(segment)
        self._settle(broker, segment)
        broker.resolve(segment)
        if self._sealed or segment.seal_begun or segment.sealed is not None:
            raise SegmentSealedError(self._key)
        self._check_position(segment, position)
        if not view:
            return None
        if view.nbytes > PUT_BYTES_MAX:
            raise BackendRefusedError(
                self._key, "write", f"{view.nbytes} bytes are more than one request may hold"
            )
        if len(segment.parts) >= self._parts_max:
            raise SegmentSealedError(self._key)
        data = bytes(view)
        part = Part(part_key(self._key, position, epoch), position, len(data), epoch, crc32c(data))
        try:
            carefully(
                segment,
                lambda: broker.requests.put(part.key, data, metadata={EPOCH: str(epoch)}),
            )
        except ObjectExistsError:  # an earlier write landed after all
            segment.doubtful_at = position
            self._settle(broker, segment)
            self._check_position(segment, position)
            raise
        except BaseException:
            segment.doubtful_at = position
            raise
        return part

    def acknowledge(self, part: Part) -> None:
        """The second half, behind a look: the part counts."""
        segment = self._open_broker().segment(self._key)
        if part.position == segment.end:
            segment.take((*segment.parts, part))

    def doubt(self, part: Part) -> None:
        """It landed, but whether it counts is not known."""
        self._open_broker().segment(self._key).doubtful_at = part.position

    def seal(self) -> None:
        broker = self._open_broker()
        self._sealed = True
        segment = broker.segment(self._key)
        broker.resolve(segment)
        if not segment.keys() and segment.doubtful_at is None:
            return  # nothing there, or nothing left to do
        broker.claimed()
        segment = broker.segment(self._key)
        with segment.guard:
            if segment.deleting is not None:
                raise SegmentNotFoundError(self._key)
            self._settle(broker, segment)
            broker.resolve(segment)
            if segment.parts or segment.sealed is not None:
                seal(broker, segment)

    def delete(self) -> None:
        broker = self._open_broker()
        broker.claimed()
        segment = broker.segment(self._key)
        segment.delete_wanted = True  # a sealing that is under way gives up
        with segment.guard:
            try:
                delete(broker, segment)
                broker.forget(segment)
            finally:
                segment.delete_wanted = False

    def close(self) -> None:
        self._closed = True

    def _settle(self, broker: BrokerParts, segment: SegmentParts) -> None:
        """Find out what became of a put of which nothing was heard."""
        position = segment.doubtful_at
        if position is None:
            return
        epoch = broker.epoch_of(segment)
        key = part_key(self._key, position, epoch)
        facts = broker.requests.head(key)
        if facts is not None:
            broker.look()
            self.acknowledge(Part(key, position, facts.size, epoch))
        segment.doubtful_at = None

    def _check_position(self, segment: SegmentParts, position: int) -> None:
        if position != segment.end:
            raise PositionMismatchError(self._key, expected=position, actual=segment.end)

    def _existing_bytes(self, segment: SegmentParts) -> int:
        size = _total(segment)
        if not size:
            raise SegmentNotFoundError(self._key)
        return size

    def _open_broker(self) -> BrokerParts:
        if self._closed:
            raise StoreClosedError(f"{self._key} is closed")
        return self._broker()


def bare(segment: FileSegment) -> ObjectFileSegment:
    """The segment within its wrappers."""
    while isinstance(segment, SegmentWrapper):
        segment = segment.inner
    if not isinstance(segment, ObjectFileSegment):
        raise TypeError(f"{segment!r} is no segment of an object store")
    return segment


def check_part(part: Part, checksum: int) -> None:
    if part.checksum is not None and checksum != part.checksum:
        raise SegmentCorruptError(part.key, "its checksum is another", position=part.position)


def _total(segment: SegmentParts) -> int:
    end = segment.end  # first: a sealing says that it is done, and then takes the parts away
    return segment.sealed.size if segment.sealed is not None else end


class ObjectRound:
    """Writes pairs; one future a pair, each done as its own pair is."""

    def __init__(self, pool: Pool, pairs: Sequence[WritePair]) -> None:
        self._pool = pool
        self._works = [_Work(pair) for pair in pairs]

    def send(self) -> list[Future[None]]:
        """Begin. Nothing is waited for, but in a pool that runs calls at once."""
        for work in self._works:
            work.expect()
        for work in self._works:
            self._submit(work)
        return [work.done for work in self._works]

    def _submit(self, work: _Work) -> None:
        """The next write of this pair, or its end."""
        if not work.left:
            work.done.set_result(None)
            return
        try:
            self._pool.submit(self._put, work)
        except BaseException as error:  # noqa: BLE001 - the pair's own future tells
            work.fail(error)

    def _put(self, work: _Work) -> None:
        segment, write = work.left[0]
        try:
            part = segment.put(write.position, memoryview(write.data).cast("B"))
        except BaseException as error:  # noqa: BLE001
            work.fail(error)
            return
        if part is None:
            work.expected_no_more()
            self._next(work)
            return
        future = work.join()
        future.add_done_callback(partial(self._looked, work, segment, part))
        segment.looks.run()

    def _looked(
        self, work: _Work, segment: ObjectFileSegment, part: Part, future: Future[None]
    ) -> None:
        try:
            future.result()
            segment.acknowledge(part)
        except BaseException as error:  # noqa: BLE001
            segment.doubt(part)
            work.fail(error)
            return
        self._next(work)

    def _next(self, work: _Work) -> None:
        del work.left[0]
        work.expect()
        self._submit(work)


class _Work:
    """What is left to do for one pair."""

    def __init__(self, pair: WritePair) -> None:
        writes = [write for write in (pair.log, pair.queue) if write is not None]
        self.left = [(bare(write.segment), write) for write in writes]
        self.done: Future[None] = Future()
        self._expecting = False

    def expect(self) -> None:
        """The next write will join a look."""
        if self.left:
            self._expecting = True
            self.left[0][0].looks.expect(1)

    def join(self) -> Future[None]:
        self._expecting = False
        return self.left[0][0].looks.join(expected=True)

    def expected_no_more(self) -> None:
        if self._expecting:
            self._expecting = False
            looks = self.left[0][0].looks
            looks.expect(-1)
            looks.run()

    def fail(self, error: BaseException) -> None:
        self.expected_no_more()
        self.done.set_exception(error)
