"""A file of any length, made of segments one behind the other.

What lives here: `FlatAppendFile`: the list of segments, appending, committing, rolling, reading
across borders and dropping the oldest. What the bytes mean is for `commit_log` and `consume_queue`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence

from tieredstore.driver.metadata import Change, MetadataStore, Put
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Clock
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.flat.doomed import bury, doom, forgive
from tieredstore.flat.flat_segment import FlatSegment, goes_on
from tieredstore.flat.segment_writer import NOBODYS, SegmentWriter, Upload
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentSealedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import AppendStatus, SegmentType

log = log_of(__name__)


class FlatAppendFile:
    """The segments of one type of one queue.

    * Offsets count bytes of the file from 0; a segment knows the offset of its first byte. Offsets
      are never reused. There may be a gap before a segment: reading in it is an error.
    * A segment is in the catalogue before its first byte is in the backend, and leaves the
      catalogue before its bytes are deleted.
    * Only the last segment is written. A reader sees committed bytes only.
    * Any thread may read at any time; the rest comes from one thread at a time.
    """

    def __init__(
        self,
        path: str,
        type: SegmentType,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        clock: Clock,
        segment_bytes_max: int,
    ) -> None:
        self.path = path
        self.type = type
        self.provider = provider
        self._metadata = metadata
        self._clock = clock
        self._segment_bytes_max = segment_bytes_max
        self._segments: tuple[FlatSegment, ...] = ()  # replaced, never changed: readers hold it
        self._writer: SegmentWriter | None = None
        self._times: tuple[int | None, int | None] = (None, None)  # of what waits
        self.cache_key: Hashable = (path, type, object())  # a queue made anew has other bytes

    # What there is

    @property
    def segments(self) -> tuple[FlatSegment, ...]:
        return self._segments

    @property
    def is_started(self) -> bool:
        return bool(self._segments)

    @property
    def min_offset(self) -> int:
        segments = self._segments
        return segments[0].base if segments else 0

    @property
    def commit_offset(self) -> int:
        segments = self._segments
        return segments[-1].end if segments else 0

    @property
    def append_offset(self) -> int:
        return self._last.base + self._writing.append_bytes if self._segments else 0

    @property
    def waiting_bytes(self) -> int:
        return self._writer.waiting_bytes if self._writer is not None else 0

    @property
    def knows_its_end(self) -> bool:
        """Whether the backend's end of the last segment is known, so that nobody has to ask."""
        return self._writer is not None and self._writer.knows_its_end

    @property
    def is_in_doubt(self) -> bool:
        return self._writer is not None and self._writer.is_in_doubt

    def room(self) -> int:
        """How many bytes the last segment still takes; an empty one takes anything once."""
        return self._writing.room()

    # Making segments

    def load(self) -> None:
        """Take over what the catalogue names; the backend is not asked."""
        self.take_over(self.catalogued())

    def catalogued(self) -> tuple[FlatSegment, ...]:
        """What the catalogue names, not taken over yet. The backend is not asked."""
        handles = {each.base: each.segment for each in self._segments}
        return tuple(
            FlatSegment(handles.get(record.base_offset) or self._handle(record), record)
            for record in self._metadata.segments(self.path, self.type)
        )

    def take_over(self, segments: tuple[FlatSegment, ...]) -> None:
        """These are the segments from now on. What waits is dropped."""
        if not goes_on(self._segments, segments):
            self.cache_key = (self.path, self.type, object())
        self._replace(segments)
        self._times = (None, None)
        if segments:
            self._write_behind(segments[-1])

    def record_of_new(self, base: int) -> SegmentRecord:
        """The row of a segment that begins at `base`; put it into the catalogue, then `adopt`."""
        if self._segments and base < self._segments[-1].end:
            raise ValueError(f"{self.path}: a segment at {base} would hide what is committed")
        return SegmentRecord(
            path=self.path,
            type=self.type,
            base_offset=base,
            create_timestamp=self._clock.now_ms(),
        )

    def adopt(self, record: SegmentRecord) -> None:
        """Write behind the segment of this row from now on: the catalogue has it."""
        self._replace((*self._segments, FlatSegment(self._handle(record), record)))
        self._write_behind(self._segments[-1])

    def roll(self, offset: int | None = None) -> None:
        """Begin the next segment, at `offset` or right behind the last; nothing may wait."""
        if self.waiting_bytes:
            raise ValueError(f"{self.path}: roll while {self.waiting_bytes} bytes wait")
        base = self.commit_offset if offset is None else offset
        last = self._segments[-1] if self._segments else None
        if last is not None and not last.record.size:
            if base != last.base:  # nothing was written to it
                self.drop([last], following=self.record_of_new(base))
            return
        self._go_on_at(base)
        if last is not None:
            self._seal(last)

    # Writing

    def append(
        self, data: Buffer, *, begin: int | None = None, end: int | None = None
    ) -> AppendStatus:
        """Take bytes stored within [begin, end] for the last segment; FILE_FULL asks for a roll."""
        status = self._writing.append(data)
        if status is AppendStatus.SUCCESS:
            times = [time for time in (*self._times, begin, end) if time is not None]
            self._times = (min(times, default=None), max(times, default=None))
        return status

    def prepare(self) -> Upload | None:
        """What to send to make everything that waits durable.

        Where somebody else's bytes lie behind the committed ones, or the segment is sealed, the
        file goes on in a new one that begins right there: nothing is overwritten, nothing moves.
        """
        try:
            return self._writing.prepare()
        except (PositionMismatchError, SegmentSealedError) as refusal:
            last, full = self._last, self._writing
            if not last.record.size:
                raise SegmentCorruptError(refusal.path, NOBODYS, position=0) from refusal
            log.warning("rolled: %s", refusal)
            self._go_on_at(last.end)
            full.move_to(self._writing)
            return self._writing.prepare()

    def settle(self, upload: Upload) -> SegmentRecord:
        """The upload is durable; the row that says so, for the catalogue."""
        self._writing.settle(upload)
        last, (begin, end) = self._last, self._times
        if not self._writing.waiting_bytes:
            self._times = (None, None)
        last.widen(begin, end, size=upload.end)
        return last.record

    def doubt(self, error: BaseException | None = None) -> None:
        """What became of the upload is not known."""
        self._writing.doubt(error)

    def discard(self) -> None:
        """Forget what waits; the same bytes will be appended again."""
        self._times = (None, None)
        if self._writer is not None:
            self._writer.discard()

    # Reading

    def segment_at(self, offset: int) -> FlatSegment | None:
        """The segment that holds this offset, or would if it were longer."""
        segments = self._segments
        index = bisect_right(segments, offset, key=lambda each: each.base) - 1
        return segments[index] if index >= 0 else None

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` committed bytes, from as many segments as it takes."""
        pieces: list[bytes] = []
        at, end = offset, offset + length
        while True:
            found = self.segment_at(at)
            if length < 0 or found is None or at >= found.end:
                raise OffsetOutOfRangeError(
                    f"{length} bytes of {self.path}/{self.type.name}",
                    offset=offset,
                    minimum=self.min_offset,
                    maximum=self.commit_offset,
                )
            count = min(end, found.end) - at
            pieces.append(found.segment.read(at - found.base, count) if count else b"")
            at += count
            if at == end:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # The end of things

    def drop(
        self,
        doomed: Sequence[FlatSegment],
        *also: Change,
        following: SegmentRecord | None = None,
    ) -> list[str]:
        """Forget segments, then delete their bytes; the paths whose bytes could not be deleted.

        Those stay noted in the catalogue: `doomed.finish` tries them again, after a crash too.
        `following` is the row of a segment to write behind from now on.
        """
        if not doomed and not also:
            return []
        new = [] if following is None else [following]
        self._metadata.apply([*also, *map(Put, new), *doom(each.record for each in doomed)])
        kept = [each for each in self._segments if each not in doomed]
        self._replace((*kept, *(FlatSegment(self._handle(record), record) for record in new)))
        if new:
            self._write_behind(self._segments[-1])
        gone = bury(doomed)
        self._metadata.apply(forgive(gone))
        return [each.segment.path for each in doomed if each.record not in gone]

    def close(self) -> None:
        """Release handles; what waits is dropped. Idempotent."""
        for each in self._segments:
            each.segment.close()

    @property
    def _last(self) -> FlatSegment:
        return self._segments[-1]

    @property
    def _writing(self) -> SegmentWriter:
        if self._writer is None:
            raise ValueError(f"{self.path}/{self.type.name} has no first segment yet")
        return self._writer

    def _go_on_at(self, base: int) -> None:
        """A next segment, known together with how long the last one became."""
        record = self.record_of_new(base)
        self._metadata.put(*(each.record for each in self._segments[-1:]), record)
        self.adopt(record)

    def _handle(self, record: SegmentRecord) -> FileSegment:
        return self.provider.open(self.path, self.type, record.base_offset)

    def _write_behind(self, last: FlatSegment) -> None:
        self._writer = SegmentWriter(
            last.segment, committed_bytes=last.record.size, bytes_max=self._segment_bytes_max
        )

    def _replace(self, segments: tuple[FlatSegment, ...]) -> None:
        self._segments = segments
        if not segments:
            self._writer = None

    def _seal(self, full: FlatSegment) -> None:
        try:
            if not full.segment.wants_seal:  # else `flat.sealing` does, in the background
                full.segment.seal()
        except TieredStoreError as error:  # it is full all the same: nothing depends on the seal
            log.warning("%s could not be sealed: %s", full.segment.path, error)
