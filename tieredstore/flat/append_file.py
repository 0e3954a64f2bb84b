"""A file of any length, made of segments laid end to end.

A segment leaves the catalogue before its bytes are deleted. One change of the catalogue forgets it
and marks it for deletion, so that a crash or an unreachable backend leaves no bytes without a note.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypedDict, Unpack

from tieredstore.driver.metadata import (
    ANNOUNCED,
    Change,
    DeleteNote,
    DeleteSegment,
    MetadataStore,
    Put,
    PutNote,
)
from tieredstore.driver.provider import SegmentProvider, SegmentWrite
from tieredstore.driver.runtime import Clock
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.flat.segment_writer import NOBODYS, SegmentWriter, Upload
from tieredstore.model.errors import (
    BackendUnavailableError,
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import AppendStatus, Json, SegmentRecord, SegmentType

log = log_of(__name__)

DELETION_NOTE: Final = "doomed"  # the kind of note as it stands in catalogues
MARKS: Final = (DELETION_NOTE, ANNOUNCED)
WAIT_SECONDS: Final = 5.0  # for another thread that deletes bytes of the same queue


@dataclass(slots=True, eq=False)
class FlatSegment:
    """One segment of a file and its row of the catalogue, kept up to date in memory.

    `record.size` is the committed size: readers see no byte beyond it.
    """

    segment: FileSegment
    record: SegmentRecord
    # If the catalogue's times are not believed: the records' times, and the size they were read at.
    times_read: tuple[int, int, int] | None = None

    @property
    def base(self) -> int:
        return self.record.base_offset

    @property
    def end(self) -> int:
        return self.record.end_offset

    def backend_bytes(self) -> int:
        """Its size in the backend; 0 if it is not there."""
        try:
            return self.segment.size()
        except SegmentNotFoundError:
            return 0

    def widen(self, begin: int | None, end: int | None, *, size: int) -> None:
        """Set the committed size after a commit of messages stored within [begin, end]."""
        self.record = self.widened(begin, end, size=size)

    def widened(self, begin: int | None, end: int | None, *, size: int) -> SegmentRecord:
        """The row after such a commit."""
        begins = [time for time in (self.record.begin_timestamp, begin) if time is not None]
        ends = [time for time in (self.record.end_timestamp, end) if time is not None]
        return replace(
            self.record,
            size=size,
            begin_timestamp=min(begins, default=None),
            end_timestamp=max(ends, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUpload:
    """The write that makes all waiting bytes of a file durable, and the row that its last segment
    then has."""

    upload: Upload
    row: SegmentRecord

    @property
    def write(self) -> SegmentWrite | None:
        return self.upload.write


class Backing(TypedDict):
    """The parts that every file of a tier uses."""

    provider: SegmentProvider
    metadata: MetadataStore
    clock: Clock


class FlatAppendFile:
    """The segments of one type of one queue.

    * Offsets count bytes of the file from 0; a segment knows the offset of its first byte. Offsets
      are never reused. There may be a gap before a segment: reading in it is an error.
    * A segment is in the catalogue before its first byte is in the backend, and leaves the
      catalogue before its bytes are deleted.
    * Only the last segment is written to. A reader sees only committed bytes.
    * Any thread may read at any time; only one thread at a time may do anything else.
    """

    def __init__(
        self,
        path: str,
        type: SegmentType,
        *,
        segment_bytes_max: int,
        **backing: Unpack[Backing],
    ) -> None:
        self.path = path
        self.type = type
        self.provider = backing["provider"]
        self._metadata = backing["metadata"]
        self._clock = backing["clock"]
        self._segment_bytes_max = segment_bytes_max
        self._segments: tuple[FlatSegment, ...] = ()  # replaced, never changed: readers hold it
        self._writer: SegmentWriter | None = None
        self._times: tuple[int | None, int | None] = (None, None)  # of the waiting bytes
        self.cache_key: Hashable = (path, type, object())  # a queue made anew has other bytes

    # State

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
        """Whether the last segment's end in the backend is known without asking."""
        return self._writer is not None and self._writer.knows_its_end

    @property
    def is_in_doubt(self) -> bool:
        return self._writer is not None and self._writer.is_in_doubt

    def room(self) -> int:
        """How many bytes the last segment still takes. An empty one takes one append of any
        size."""
        return self._writing.room()

    # Making segments

    def load(self) -> None:
        """Take over the segments that the catalogue names. The backend is not asked."""
        self.take_over(self.catalogued())

    def catalogued(self) -> tuple[FlatSegment, ...]:
        """The segments that the catalogue names, without taking them over. The backend is not
        asked."""
        handles = {known.base: known.segment for known in self._segments}
        return tuple(
            FlatSegment(handles.get(record.base_offset) or self._handle(record), record)
            for record in self._metadata.segments(self.path, self.type)
        )

    def take_over(self, segments: tuple[FlatSegment, ...]) -> None:
        """Replace the segments by these. Waiting bytes are dropped."""
        goes_on = _goes_on(self._segments, segments)
        self._replace(segments)
        if not goes_on:  # only now: a reader in between would cache the old bytes under the new key
            self.cache_key = (self.path, self.type, object())
        self._times = (None, None)
        if segments:
            self._write_behind(segments[-1])

    def record_of_new(self, base: int) -> SegmentRecord:
        """The row of a new segment at `base`. Put it into the catalogue, then `adopt` it.

        BackendUnavailableError if an older segment of that name is still to be deleted.
        """
        if self._segments and base < self._segments[-1].end:
            raise ValueError(f"{self.path}: a segment at {base} would hide what is committed")
        if is_marked(self._metadata, (self.path, self.type, base)):
            raise BackendUnavailableError(self.path, "create", "an older segment is still there")
        return SegmentRecord(
            path=self.path,
            type=self.type,
            base_offset=base,
            create_timestamp=self._clock.now_ms(),
        )

    def adopt(self, record: SegmentRecord) -> None:
        """Make the segment of this row, which is in the catalogue, the last one."""
        self._replace((*self._segments, FlatSegment(self._handle(record), record)))
        self._write_behind(self._segments[-1])

    def roll(self, offset: int | None = None) -> None:
        """Begin the next segment, at `offset` or where the last one ends. Nothing may wait."""
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
        """Take bytes of messages stored within [begin, end]. FILE_FULL: the caller has to roll."""
        status = self._writing.append(data)
        if status is AppendStatus.SUCCESS:
            times = [time for time in (*self._times, begin, end) if time is not None]
            self._times = (min(times, default=None), max(times, default=None))
        return status

    def prepare(self) -> FileUpload | None:
        """The upload that makes all waiting bytes durable; None if none wait.

        If somebody else's bytes follow the committed ones, or the segment is sealed, the file
        continues in a new segment at the committed end. Nothing is overwritten or moved.
        """
        try:
            upload = self._writing.prepare()
        except (PositionMismatchError, SegmentSealedError) as refusal:
            last, full = self._last, self._writing
            if not last.record.size:
                raise SegmentCorruptError(refusal.path, NOBODYS, position=0) from refusal
            log.warning("rolled: %s", refusal)
            self._go_on_at(last.end)
            full.move_to(self._writing)
            upload = self._writing.prepare()
        if upload is None:
            return None
        return FileUpload(upload=upload, row=self._last.widened(*self._times, size=upload.end))

    def settle(self, sent: FileUpload) -> SegmentRecord:
        """Note that the upload is durable; return the row that says so, for the catalogue."""
        self._writing.settle(sent.upload)
        if not self._writing.waiting_bytes:
            self._times = (None, None)
        self._last.record = sent.row
        return sent.row

    def doubt(self, error: BaseException | None = None) -> None:
        """Note that the upload's outcome is unknown: the next one first asks the backend."""
        self._writing.doubt(error)

    def discard(self) -> None:
        """Forget the waiting bytes. The same bytes must be appended again."""
        self._times = (None, None)
        if self._writer is not None:
            self._writer.discard()

    # Reading

    def segment_at(self, offset: int) -> FlatSegment | None:
        """The segment that holds this offset, or would hold it if it were longer."""
        segments = self._segments
        index = bisect_right(segments, offset, key=lambda segment: segment.base) - 1
        return segments[index] if index >= 0 else None

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` committed bytes, from as many segments as needed."""
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

    # Dropping and closing

    def drop(
        self,
        dropped: Sequence[FlatSegment],
        *also: Change,
        following: SegmentRecord | None = None,
        keep_bytes: bool = False,
    ) -> list[str]:
        """Forget segments, then delete their bytes. Returns the paths whose bytes are still there.

        Those stay marked in the catalogue: `PendingDeletions` tries them again, even after a crash.
        `following` is the row of a new last segment. With `keep_bytes` nothing is deleted yet:
        readers elsewhere have to be told first.
        """
        if not dropped and not also:
            return []
        new = [] if following is None else [following]
        marks = mark_for_deletion(segment.record for segment in dropped)
        # If the catalogue lies with the bytes, one entry both forgets and deletes them.
        self._metadata.stage([*also, *map(Put, new), *marks])
        kept = [segment for segment in self._segments if segment not in dropped]
        self._replace((*kept, *(FlatSegment(self._handle(record), record) for record in new)))
        if new:
            self._write_behind(self._segments[-1])
        gone = [] if keep_bytes else _delete_bytes(dropped)
        for segment in dropped:
            segment.segment.close()
        self._metadata.stage(unmark(gone))  # may be lost: then there is nothing left to delete
        return [segment.segment.path for segment in dropped if segment.record not in gone]

    def close(self) -> None:
        """Release handles; waiting bytes are dropped. Idempotent."""
        for segment in self._segments:
            segment.segment.close()

    @property
    def _last(self) -> FlatSegment:
        return self._segments[-1]

    @property
    def _writing(self) -> SegmentWriter:
        if self._writer is None:
            raise ValueError(f"{self.path}/{self.type.name} has no first segment yet")
        return self._writer

    def _go_on_at(self, base: int) -> None:
        """Begin a segment at `base`, and stage its row together with the last one's final size."""
        record = self.record_of_new(base)
        rows = *(last.record for last in self._segments[-1:]), record
        self._metadata.stage(map(Put, rows))  # no byte lies there before the row does
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
            if not full.segment.wants_seal:  # otherwise the sealing chore does it in the background
                full.segment.seal()
        except TieredStoreError as error:  # nothing depends on the seal
            log.warning("%s could not be sealed: %s", full.segment.path, error)


UNTOLD_SECONDS_MAX: Final = 600  # how long deletions wait for an announcement that fails

Publish: TypeAlias = Callable[[], bool | None]
SegmentKey: TypeAlias = tuple[str, SegmentType, int]


class Announcement:
    """Publishes the catalogue for readers elsewhere before bytes that it has forgotten are deleted.
    A reader that still has the old catalogue would take these bytes for lost.

    The wait is limited, because on a full disk these bytes may take the space that publishing
    needs. But if a newer catalogue is published than this one, whose disk was put back perhaps,
    nothing is deleted: the names may be those of other segments by now. Then `publish` returns
    None. Without `publish`, all readers read the catalogue itself.
    """

    def __init__(self, publish: Publish | None, clock: Clock) -> None:
        self._publish = publish
        self._clock = clock
        self._untold_since: float | None = None
        self.is_stale = False  # found when it was last made

    @property
    def is_needed(self) -> bool:
        return self._publish is not None

    def make(self) -> bool:
        """Publish the catalogue, if needed; return whether readers can see it now."""
        told = self._publish is None or self._publish()
        self.is_stale = told is None
        if told:
            self._untold_since = None
        return bool(told)

    def is_overdue(self) -> bool:
        """Call it after `make` has failed: whether deletions have waited long enough. If so, the
        next ones wait anew."""
        if self.is_stale:
            return False
        now = self._clock.monotonic()
        if self._untold_since is None:
            self._untold_since = now
        if now - self._untold_since < UNTOLD_SECONDS_MAX:
            return False
        self._untold_since = None
        return True


class PendingDeletions:
    """Deletes the segments that are marked in the catalogue, queue by queue. All writers of a tier
    share one instance; the path `left_out` belongs to another part, which deletes there itself.
    A segment that readers still find, as `is_shown` says, is left for the next time: the catalogue
    has forgotten it only just now.

    Only one thread at a time works on a queue path, from reading its notes to removing them.
    Afterwards no delete is under way at that path, and its offsets may be used again.
    """

    def __init__(
        self,
        provider: SegmentProvider,
        metadata: MetadataStore,
        *,
        left_out: str = "",
        is_shown: Callable[[SegmentKey], bool] = lambda _: False,
    ) -> None:
        self._provider = provider
        self._metadata = metadata
        self._left_out = left_out
        self._is_shown = is_shown
        self._busy: set[str] = set()
        self._changed = threading.Condition()
        self._unreadable: set[str] = set()

    def paths(self) -> set[str]:
        """The paths of queues that have marked segments."""
        return {path for path, _, _ in self._marked()}

    def marked(self) -> frozenset[SegmentKey]:
        """The segments that are marked at present."""
        return frozenset(self._marked())

    def count(self, path: str | None = None) -> int:
        """How many segments are marked, of one queue or of all. The backend is not asked."""
        return sum(1 for marked, _, _ in self._marked() if path in (None, marked))

    def delete(
        self,
        *,
        only: Collection[SegmentKey] | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> int:
        """Delete the marked segments, or `only` these of them; return how many are still marked.

        Each is tried once; if the backend cannot be reached, the rest are not tried. A path that
        another thread works on is left to that thread.
        """
        by_path: dict[str, list[SegmentKey]] = {}
        for key in self._marked():
            if only is None or key in only:
                by_path.setdefault(key[0], []).append(key)
        for path, keys in by_path.items():
            if is_stopped():
                break
            with self._alone_at(path, seconds=0) as alone:
                if alone and not self._delete_at(keys, is_stopped):
                    break
        return self.count()

    def delete_path(
        self, path: str, *, seconds: float, only: Collection[SegmentKey] | None = None
    ) -> int:
        """The same for one queue. Waits up to `seconds` for another thread that works there; if
        that is not enough, at least one segment counts as still marked."""
        with self._alone_at(path, seconds=seconds) as alone:
            if alone:
                keys = [key for key in self._marked() if key[0] == path]
                if only is not None:
                    keys = [key for key in keys if key in only]
                self._delete_at(keys, lambda: False)
            left = self.count(path)
            return left if alone else max(1, left)

    def _delete_at(self, keys: Sequence[SegmentKey], is_stopped: Callable[[], bool]) -> bool:
        """Delete these segments of one path; return whether the backend could be reached."""
        done: list[Change] = []
        is_reached = True
        for path, kind, base in keys:
            # Look again: the segment may be deleted by now, and a new one have its key.
            if not is_marked(self._metadata, (path, kind, base)):
                continue
            if is_stopped():
                break
            try:
                if self._metadata.segment(path, kind, base) is None:
                    if self._is_shown((path, kind, base)):
                        continue
                    with self._provider.open(path, kind, base) as segment:
                        segment.delete()
                note = deletion_key(path, kind, base)
                kinds = [kind for kind in MARKS if self._metadata.note(kind, note) is not None]
                done += [DeleteNote(kind, note) for kind in kinds]
            except TieredStoreError as error:
                log.warning("%s is no longer used but not deleted: %s", path, error)
                if isinstance(error, (BackendUnavailableError, StoreClosedError)):
                    is_reached = False
                    break
        if done:
            self._metadata.stage(done)
        return is_reached

    def _marked(self) -> Iterator[SegmentKey]:
        yield from self._places(DELETION_NOTE)
        # What was only announced is not published. Who lists it meanwhile must not find units whose
        # log is gone, nor later ones behind a gap.
        announced = self._places(ANNOUNCED)
        yield from sorted(announced, key=lambda at: (at[1] is SegmentType.COMMIT_LOG, -at[2]))

    def _places(self, kind: str) -> Iterator[SegmentKey]:
        for key in self._metadata.notes(kind):
            try:
                path, type_name, base = key.rsplit("/", 2)
                place = path, SegmentType[type_name], int(base)
                if key != deletion_key(*place):
                    raise ValueError(key)
            except (KeyError, ValueError):
                if key not in self._unreadable:
                    self._unreadable.add(key)
                    log.warning("the catalogue has an unreadable note of a deletion: %r", key)
                continue
            if path != self._left_out:
                yield place

    @contextmanager
    def _alone_at(self, path: str, *, seconds: float) -> Iterator[bool]:
        with self._changed:
            is_free = self._changed.wait_for(lambda: path not in self._busy, seconds)
            if is_free:
                self._busy.add(path)
        try:
            yield is_free
        finally:
            if is_free:
                with self._changed:
                    self._busy.discard(path)
                    self._changed.notify_all()


def mark_for_deletion(rows: Iterable[SegmentRecord]) -> list[Change]:
    """Changes that forget segments and, at the same time, mark their bytes for deletion."""
    changes: list[Change] = []
    for row in rows:
        changes.append(DeleteSegment(*row.key))
        changes.append(PutNote(DELETION_NOTE, deletion_key(*row.key), row.create_timestamp))
    return changes


def unmark(rows: Iterable[SegmentRecord]) -> list[Change]:
    """Changes that remove the marks of segments whose bytes are gone."""
    return [DeleteNote(DELETION_NOTE, deletion_key(*row.key)) for row in rows]


def announce(rows: Iterable[SegmentRecord]) -> list[Change]:
    """Changes that mark the bytes of segments which do not exist yet; `installed` takes them back.
    If neither happens, they are deleted like all marked ones."""
    return [PutNote(ANNOUNCED, deletion_key(*row.key), row.create_timestamp) for row in rows]


def installed(rows: Iterable[SegmentRecord]) -> list[Change]:
    """Changes that make announced segments part of the catalogue."""
    return [*map(Put, rows), *(DeleteNote(ANNOUNCED, deletion_key(*row.key)) for row in rows)]


def marks(metadata: MetadataStore) -> dict[str, Json]:
    """The marks of all segments whose bytes are to be deleted, by their keys."""
    return {key: value for kind in MARKS for key, value in metadata.notes(kind).items()}


def is_marked(metadata: MetadataStore, segment: SegmentKey) -> bool:
    """Whether the bytes of this segment are to be deleted."""
    return has_mark(metadata, deletion_key(*segment))


def has_mark(metadata: MetadataStore, key: str) -> bool:
    """Whether there is a mark with this key. It may be unreadable."""
    return any(metadata.note(kind, key) is not None for kind in MARKS)


def delete_pending(
    provider: SegmentProvider, metadata: MetadataStore, path: str | None = None
) -> int:
    """Delete the marked segments of one path or of all; return how many are still marked."""
    pending = PendingDeletions(provider, metadata)
    return pending.delete() if path is None else pending.delete_path(path, seconds=WAIT_SECONDS)


def _delete_bytes(segments: Iterable[FlatSegment]) -> list[SegmentRecord]:
    """Delete the bytes of segments that the catalogue has forgotten; return the rows of those
    deleted.

    If the backend cannot be reached, the others are left for later.
    """
    gone = []
    is_reached = True
    for dropped in segments:
        try:
            if is_reached:
                dropped.segment.delete()
                gone.append(dropped.record)
        except TieredStoreError as error:
            log.warning("%s is no longer used but not deleted: %s", dropped.segment.path, error)
            is_reached = not isinstance(error, BackendUnavailableError)
    return gone


def _goes_on(known: Sequence[FlatSegment], segments: Sequence[FlatSegment]) -> bool:
    """Whether everything that was committed is still there unchanged, except what has expired."""
    if not known or not segments:
        return not known  # a queue without segments is, or will become, another one
    rows = {segment.base: segment.record for segment in segments}
    return known[-1].end <= segments[-1].end and all(
        before.record.create_timestamp == rows[before.base].create_timestamp
        and before.record.size <= rows[before.base].size
        if before.base in rows
        else not any(each.base < before.end and before.base < each.end for each in segments)
        for before in known
    )


def deletion_key(path: str, type: SegmentType, base: int) -> str:
    """The key of a segment's DELETION_NOTE."""
    return f"{path}/{type.name}/{base}"
