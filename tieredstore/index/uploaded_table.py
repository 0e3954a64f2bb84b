"""The index files in the backend: which there are, adding one, dropping the oldest.

What lives here: `UploadedTable` over the INDEX segments of the catalogue, and what is done with
rows that a crash or RocketMQ left without bytes. Asking one file is in `uploaded_segment`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.names import index_queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnits, decode_units
from tieredstore.codec.tiered_index import HEADER_BYTES, compacted_file_bytes, decode_header
from tieredstore.driver.metadata import Change, MetadataStore, Put
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.index.footer import TAIL_BYTES, decode_tail, has_footer
from tieredstore.index.footer_cache import FooterCache, Origin
from tieredstore.index.foreign_times import DAY_MS
from tieredstore.index.hits import IndexFigures
from tieredstore.index.uploaded_segment import UploadedSegment
from tieredstore.index.watermarks import Watermarks
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError, SegmentError
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT32_MAX, INT64_MAX, SegmentType

log = log_of(__name__)

UNITS_AT_ONCE: Final = 1 << 16


class UploadedTable:
    """The uploaded files of one broker, oldest first.

    `segments` is replaced, never changed: any thread may look. The rest comes from one thread at a
    time.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        runtime: Runtime,
        cache: FooterCache | None,
    ) -> None:
        self.segments: tuple[UploadedSegment, ...] = ()
        self._provider = provider
        self._metadata = metadata
        self._cache = cache
        self._slot_count = config.index_slot_count
        self.path = index_queue_path(config.broker_name)
        self._runtime = runtime
        self._file = self._unopened()

    def load(self) -> None:
        """What the catalogue names; the backend is not asked."""
        self._file.load()
        self._renew()

    def rows(self) -> list[SegmentRecord]:
        return list(self._metadata.segments(self.path, SegmentType.INDEX))

    def refresh(self) -> None:
        """Look whether a writer has changed the catalogue; for who only reads."""
        if [each.record for each in self._file.segments] != self.rows():
            self.load()

    def figures(self, unsealed_count: int, sealed_count: int) -> IndexFigures:
        """With those of the files that are not uploaded yet."""
        return IndexFigures(
            unsealed_count=unsealed_count,
            sealed_count=sealed_count,
            uploaded_count=len(self.segments),
            footer_cache_bytes=0 if self._cache is None else self._cache.kept_bytes,
        )

    @property
    def has_leftovers(self) -> bool:
        """Whether there are rows whose segment was not finished."""
        return any(_is_unfinished(each.record) for each in self._file.segments)

    def queue_units(self, path: str, first: int, end: int) -> Iterator[QueueUnits]:
        """Committed units of a queue, in order, from `first` to `end` or to where a gap is."""
        for row in self._metadata.segments(path, SegmentType.CONSUME_QUEUE):
            start, stop = max(first * UNIT_BYTES, row.base_offset), row.end_offset
            if start != first * UNIT_BYTES or stop <= start:
                continue
            with self._provider.open(path, SegmentType.CONSUME_QUEUE, row.base_offset) as segment:
                while first < min(end, stop // UNIT_BYTES):
                    count = min(UNITS_AT_ONCE, end - first, stop // UNIT_BYTES - first)
                    place = first * UNIT_BYTES - row.base_offset
                    yield decode_units(segment.read(place, count * UNIT_BYTES), path=path)
                    first += count

    def holds(self, begin: int, item_count: int) -> bool:
        """Whether a file in the backend has so many keys of a local one; may ask the backend.

        One with fewer was uploaded before the local one was filled further: then both are needed.
        """
        same = [each for each in self.segments if each.begin_timestamp == begin]
        return any(each.item_count() >= item_count for each in same)

    def settle(self) -> None:
        """Finish or drop what a crash or a failed upload left behind.

        A file that is there as a whole counts; of another, row and bytes go: what it was made from
        is still on the broker's disk. Raises what the backend raises.
        """
        for each in [one for one in self._file.segments if _is_unfinished(one.record)]:
            found = self._whole(each)
            if found is None:
                self._file.drop([each])
            else:
                begin, end, size = found
                log.warning("%s was uploaded, but not noted", each.segment.path)
                each.widen(begin, end, size=size)
                self._metadata.put(each.record)
        self._renew()

    def upload(
        self,
        blocks: Iterable[Buffer],
        *also: Change,
        begin: int,
        end: int,
        from_offset: int,
    ) -> UploadedSegment:
        """A new file from a stream of blocks, at `from_offset` or behind the last one.

        Its row is in the catalogue before its bytes are in the backend, and says so when they are,
        together with the changes `also`. Nothing may be unfinished.
        """
        record = self._file.record_of_new(max(from_offset, self._file.commit_offset))
        self._metadata.put(record)
        self._file.adopt(record)
        flat = self._file.segments[-1]
        flat.segment.delete()  # what a segment of this name left behind
        sent = _Counted(blocks)
        size = self._provider.create(flat.segment, sent)
        if size != sent.count:
            reason = f"{size} bytes were uploaded, not {sent.count}"
            raise SegmentCorruptError(flat.segment.path, reason, position=0)
        unfinished = flat.record
        flat.widen(begin, end, size=size)
        first = self._file.segments[0]
        lowered = first_row_below([each.record for each in self._file.segments])
        changes = [Put(flat.record), *([] if lowered is None else [Put(lowered)]), *also]
        try:
            self._metadata.apply(changes)
        except BaseException:
            flat.record = unfinished
            raise
        if lowered is not None:
            first.record = lowered
        return UploadedSegment(flat, self._cache, slot_count=self._slot_count)

    def show(self) -> None:
        """Let what was uploaded be seen."""
        self._renew()

    def drop_before(self, before_ms: int) -> int:
        """Drop the oldest files, those all of whose messages were stored before a time."""
        old: list[UploadedSegment] = []
        for each in self.segments:
            if not self._is_older(each, before_ms):
                break
            old.append(each)
        if old:
            self._drop([each.flat for each in old], Watermarks.dropped(max(0, before_ms)))
        return len(old)

    def drop_all(self) -> None:
        self._file.load()
        self._drop(self._file.segments)

    def close(self) -> None:
        """Release handles; it may be loaded again."""
        self.segments = ()
        self._file.close()
        self._file = self._unopened()

    def _unopened(self) -> FlatAppendFile:
        return FlatAppendFile(
            self.path,
            SegmentType.INDEX,
            provider=self._provider,
            metadata=self._metadata,
            clock=self._runtime.clock,
            segment_bytes_max=INT32_MAX,
        )

    def _drop(self, flats: Iterable[FlatSegment], *also: Change) -> None:
        dropped = list(flats)
        kept = [each for each in self._file.segments if each not in dropped]
        lowered = first_row_below([each.record for each in kept])
        if lowered is not None:
            kept[0].record = lowered
            also = (*also, Put(lowered))
        self.segments = tuple(each for each in self.segments if each.flat not in dropped)
        try:
            self._file.drop(dropped, Watermarks.end_at(self._file.commit_offset), *also)
        finally:
            self._renew()
        if self._cache is not None:
            for each in dropped:
                self._cache.forget(Origin.of(each.record))

    def _is_older(self, segment: UploadedSegment, before_ms: int) -> bool:
        """Whether its newest message is: by its row if the file is gone, damaged or not ours.

        RocketMQ may have taken a part of an address for the end: no message is newer than the day
        after the file was uploaded.
        """
        record = segment.record
        last = record.create_timestamp + DAY_MS if record.create_timestamp else INT64_MAX
        if record.end_timestamp is not None and before_ms <= record.end_timestamp <= last:
            return False  # without a look into the file
        try:
            footer = segment.file().footer
        except SegmentError as error:
            log.warning("an index file that is to expire cannot be read: %s", error)
            footer = None
        if footer is not None and footer.filter_blocks:
            return footer.times.last < before_ms
        return min(segment.latest, last) < before_ms

    def _renew(self) -> None:
        held = {each.origin: each for each in self.segments}
        table = []
        for flat in self._file.segments:
            if not _is_unfinished(flat.record):
                known = held.get(Origin.of(flat.record))
                table.append(
                    known or UploadedSegment(flat, self._cache, slot_count=self._slot_count)
                )
        self.segments = tuple(table)

    def _whole(self, flat: FlatSegment) -> tuple[int, int, int] | None:
        """Begin, end and size of a file that is in the backend as a whole."""
        size = flat.backend_bytes()
        if size <= HEADER_BYTES:
            return None
        path = flat.segment.path
        try:
            tail_bytes = min(size, TAIL_BYTES)
            tail = flat.segment.read(size - tail_bytes, tail_bytes)
            if has_footer(tail):
                footer = decode_tail(tail, file_bytes=size, path=path)
                return footer.begin_timestamp, footer.end_timestamp, size
            header = decode_header(flat.segment.read(0, HEADER_BYTES), path=path)
        except SegmentCorruptError as error:
            log.warning("%s", error)
            return None
        items, slots = header.item_count, self._slot_count
        if items < 1 or size != compacted_file_bytes(slot_count=slots, item_count=items):
            return None
        return header.begin_timestamp, header.end_timestamp, size


def first_row_below(rows: Sequence[SegmentRecord]) -> SegmentRecord | None:
    """What the first row is to say, where a later one begins before it; else None.

    RocketMQ forgets files that begin before the first one: it takes them for expired. The file
    itself says when it begins.
    """
    begins = [row.begin_timestamp for row in rows if row.begin_timestamp is not None]
    if not rows or rows[0].begin_timestamp is None or min(begins) >= rows[0].begin_timestamp:
        return None
    return replace(rows[0], begin_timestamp=max(0, min(begins) - 1))


class _Counted:
    """A stream of blocks whose bytes are counted."""

    def __init__(self, blocks: Iterable[Buffer]) -> None:
        self.count = 0
        self._blocks = blocks

    def __iter__(self) -> Iterator[Buffer]:
        for block in self._blocks:
            self.count += memoryview(block).nbytes
            yield block


def _is_unfinished(record: SegmentRecord) -> bool:
    return not record.size or record.begin_timestamp is None
