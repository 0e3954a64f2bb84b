"""Uploaded index files: one file read by ranges, the table of all of them, and an index that only
reads.

A look-up uses the sound parts of a file: first the copy of its footer on the broker's disk; if that
is damaged or missing, the footer in the file; without a footer, the slot table as RocketMQ writes
it. The rows of the catalogue say which files exist: a row is written before the bytes of its file
and completed after them, so that an interrupted upload is found and settled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer
from tieredstore.codec.java import local_key_hash, local_slot, tiered_probes
from tieredstore.codec.key_hashes import key_hash
from tieredstore.codec.names import index_queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnits, decode_units
from tieredstore.codec.tiered_index import (
    COMPACTED_ITEM_BYTES,
    HEADER_BYTES,
    SLOT_BYTES,
    compacted_file_bytes,
    decode_compacted_slot,
    decode_header,
    is_legacy_compacted,
    slot_position,
    view_compacted_items,
)
from tieredstore.driver.metadata import Change, MetadataStore, Put
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import CountedBlocks
from tieredstore.flat.append_file import FlatAppendFile, FlatSegment
from tieredstore.index.compaction import fences_of_table
from tieredstore.index.contract import NOTHING, CommittedRun, IndexAnswer, IndexFigures, IndexHit
from tieredstore.index.footer import (
    BLOCK_BYTES,
    GROUP_BYTES,
    TAIL_BYTES,
    DamagedItemsError,
    Footer,
    Group,
    NearFooter,
    Read,
    block_of,
    check_items,
    decode_tail,
    find_groups,
    footer_or_header,
    has_footer,
    may_hold,
)
from tieredstore.index.footer_cache import FooterCache, Origin
from tieredstore.index.keys import (
    DAY_MS,
    Match,
    TimeRange,
    foreign_times,
    seconds_window,
    undated,
    with_true_times,
)
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.search import ASKED_AGAIN_MAX, KeyQuery, LocalFiles, ask
from tieredstore.index.watermarks import QueueId, Watermarks, indexed_offset
from tieredstore.index.writer import LocalFolder
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT32_MAX, INT64_MAX, SegmentRecord, SegmentType

log = log_of(__name__)

COPY_BYTES: Final = 4 << 20
FENCES_PART: Final = 1024  # fences of a file without a footer take less than this part of its size
FENCES_BYTES_MIN: Final = 4200
FAILED_COPIES_MAX: Final = 30
ASKED_OFTEN: Final = 8  # lookups after which fences are made for a file without a footer
UNITS_AT_ONCE: Final = 1 << 16


class UploadedIndex:
    """A reader's index: searches the uploaded files, and those of `local_folder` if one is given.
    It changes nothing and keeps nothing on disk.

    The first lookup in a file takes three reads of at most 36 KiB together, later ones take two.
    Lookups read the files that the catalogue names: `MetadataStore.refresh` shows new ones. A file
    that cannot be read may have expired: then the catalogue is refreshed, and the files that it
    names now are read. Any thread may call anything.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        runtime: Runtime,
        local_folder: Path | None = None,
    ) -> None:
        self._config = config
        self._provider = provider
        self._metadata = metadata
        self._runtime = runtime
        self._uploaded = UploadedTable(
            config, provider=provider, metadata=metadata, runtime=runtime, cache=None
        )
        self._watermarks = Watermarks(metadata, config.broker_name)
        self._local_folder = local_folder
        self._local: LocalFiles | None = None
        self._missing: set[int] = set()  # local files that even the newest catalogue names
        self._refreshing = threading.Lock()
        self._is_open = False

    @property
    def problem(self) -> str | None:
        return None

    @property
    def figures(self) -> IndexFigures:
        return self._uploaded.figures(0, 0)

    def load(self) -> None:
        """Open the files that the catalogue names. Its slot count overrides the settings'."""
        marks, config = self._watermarks, self._config
        slots = marks.slot_count()
        if slots is not None:
            items = marks.item_capacity() or config.index_item_count
            config = replace(config, index_slot_count=slots, index_item_count=items)
            self._uploaded.slot_count = slots
        if self._local_folder is not None:
            self._local = LocalFiles(LocalFolder(config, self._local_folder), marks)
        self._uploaded.load()
        self._is_open = True

    def start(self) -> None:
        pass

    def shutdown(self) -> None:
        if self._is_open:
            self._is_open = False
            self._uploaded.close()

    def destroy(self) -> None:
        raise BackendRefusedError("the key index", "destroy", "it was opened for reading")

    def seal(self) -> None:
        pass

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        raise BackendRefusedError("the key index", "put", "it was opened for reading")

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        """The index finds every message of the queue below this, according to the catalogue.

        None if there are no notes: then the index is not ours.
        """
        queue = QueueId(topic_id, queue_id)
        is_noted = self._watermarks.slot_count() is not None
        if self._local is not None and not is_noted and self._local.has_files:
            return None
        if self._local is None or not is_noted:
            return indexed_offset(self._metadata, self._config.broker_name, topic, queue)
        self._see_what_was_uploaded(self._local)
        return self._local.indexed_offset(topic, queue)

    def _see_what_was_uploaded(self, local: LocalFiles) -> None:
        """Refresh the catalogue if a local file is gone: it has been uploaded by now."""
        missing = local.missing()
        if missing != self._missing:
            with suppress(TieredStoreError):  # then `indexed_offset` takes them for lost
                self._metadata.refresh()
            self._missing = local.missing()

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        """Places of messages that may have the key: at most `count_max`, the newest first."""
        self._check_open()
        query = KeyQuery(topic, topic_id, key, count_max, begin, end)
        if not query.can_have_answers:
            return NOTHING
        with ExitStack() as opened:
            local, is_whole = self._opened_local(opened)
            answer = self._ask_until_known(query, local)
            return IndexAnswer(
                hits=answer.hits,
                complete=answer.complete and is_whole,
                newest_timestamp=newest_timestamp(local, self._uploaded.segments),
            )

    def _opened_local(self, opened: ExitStack) -> tuple[Sequence[IndexStoreFile], bool]:
        """The local files, and whether all could be opened. Called before the uploaded files are
        listed: a file uploaded meanwhile is then searched twice, not missed."""
        if self._local is None:
            return (), True
        try:
            files = opened.enter_context(self._local.opened())
        except (TieredStoreError, OSError) as error:
            log.warning("a key index file on the broker's disk is not searched: %s", error)
            return (), False
        self._see_what_was_uploaded(self._local)
        return files, True

    def _ask_until_known(self, query: KeyQuery, local: Sequence[IndexStoreFile]) -> IndexAnswer:
        known: Sequence[UploadedSegment] | None = None
        answer = NOTHING
        for _ in range(ASKED_AGAIN_MAX):
            before, known = known, self._segments()
            if known == before:  # nothing has expired meanwhile, so a file is damaged
                break
            newest_first = [segment.ask for segment in reversed(known)]
            answer = ask(query, local, newest_first, self._runtime)
            if answer.complete:
                break
            with suppress(TieredStoreError):  # the answer already says that it is not complete
                self._metadata.refresh()
                self._provider.refresh()
        return answer

    def _segments(self) -> tuple[UploadedSegment, ...]:
        """The files that the catalogue names now."""
        with self._refreshing:
            self._uploaded.refresh()
            found = self._uploaded.segments
        self._check_open()  # after a shutdown there are no files to search
        return found

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the key index is not open")


class UploadedTable:
    """The uploaded files of one broker, oldest first.

    `segments` is replaced, never changed: any thread may read it. Everything else is called by one
    thread at a time.
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
        self.slot_count = config.index_slot_count  # of files without a footer of ours
        self.path = index_queue_path(config.broker_name)
        self._watermarks = Watermarks(metadata, config.broker_name)
        self._runtime = runtime
        self._file = self._unopened()

    def load(self) -> None:
        """Load the rows that the catalogue has; the backend is not asked."""
        self._file.load()
        self.renew()

    def rows(self) -> list[SegmentRecord]:
        return list(self._metadata.segments(self.path, SegmentType.INDEX))

    def refresh(self) -> None:
        """Load again if a writer has changed the catalogue."""
        if [flat.record for flat in self._file.segments] != self.rows():
            self.load()

    def figures(self, unsealed_count: int, sealed_count: int) -> IndexFigures:
        """Counts of these files, and of files that are not uploaded yet, as given."""
        return IndexFigures(
            unsealed_count=unsealed_count,
            sealed_count=sealed_count,
            uploaded_count=len(self.segments),
            damaged_count=sum(segment.is_damaged for segment in self.segments),
            footer_cache_bytes=0 if self._cache is None else self._cache.kept_bytes,
        )

    @property
    def has_leftovers(self) -> bool:
        """Whether any row belongs to an unfinished upload."""
        return any(_is_unfinished(flat.record) for flat in self._file.segments)

    def queue_units(self, path: str, first: int, end: int) -> Iterator[QueueUnits]:
        """Committed units of a queue, in order, from `first` to `end` or to the first gap."""
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
        """Whether a file in the backend has at least that many keys of a local one; may ask the
        backend.

        A file with fewer was uploaded before the local one was filled further: both are needed.
        """
        same = [segment for segment in self.segments if segment.begin_timestamp == begin]
        return any(
            # The first row may say an earlier begin than its file: see `first_row_below`.
            segment.file().begin_timestamp == begin and segment.item_count() >= item_count
            for segment in same
        )

    def settle(self) -> None:
        """Finish or drop what a crash or a failed upload left behind.

        A complete file counts. Of an incomplete one, row and bytes are dropped: what it was made
        from is still on the broker's disk. Raises what the backend raises.
        """
        for flat in [held for held in self._file.segments if _is_unfinished(held.record)]:
            found = self._whole(flat)
            if found is None:
                self._file.drop([flat])
            else:
                begin, end, size = found
                log.warning("%s was uploaded, but not noted", flat.segment.path)
                self._note(flat, begin, end, size=size)
        self.renew()

    def upload(
        self,
        blocks: Iterable[Buffer],
        *also: Change,
        begin: int,
        end: int,
        from_offset: int,
    ) -> UploadedSegment:
        """Upload a new file from a stream of blocks, at `from_offset` or after the last one.

        Its row is in the catalogue before its bytes are in the backend. Once they are, the row is
        completed, together with the changes `also`. No earlier upload may be unfinished.
        """
        record = self._file.record_of_new(max(from_offset, self._file.commit_offset))
        self._metadata.put(record)
        self._file.adopt(record)
        flat = self._file.segments[-1]
        flat.segment.delete()  # what a segment of this name left behind
        sent = CountedBlocks(blocks)
        size = self._provider.create(flat.segment, sent)
        if size != sent.bytes:
            reason = f"{size} bytes were uploaded, not {sent.bytes}"
            raise SegmentCorruptError(flat.segment.path, reason, position=0)
        self._note(flat, begin, end, *also, size=size)
        return UploadedSegment(flat, self._cache, slot_count=self.slot_count)

    def _note(self, flat: FlatSegment, begin: int, end: int, *also: Change, size: int) -> None:
        """Note in the catalogue that a file is complete: its row, and the first row if need be."""
        unfinished = flat.record
        flat.widen(begin, end, size=size)
        first = self._file.segments[0]
        lowered = first_row_below([held.record for held in self._file.segments])
        changes = [Put(flat.record), *([] if lowered is None else [Put(lowered)]), *also]
        try:
            self._metadata.apply(changes)
        except BaseException:
            flat.record = unfinished
            raise
        if lowered is not None:
            first.record = lowered

    def drop_before(self, before_ms: int, *, keep_bytes: bool = False) -> int:
        """Drop the oldest files, as long as all their messages were stored before a time; return
        how many. With `keep_bytes` they are only marked for deletion."""
        old: list[UploadedSegment] = []
        dropped_ms = self._watermarks.dropped_before() or 0
        for segment in self.segments:
            newest = self._newest(segment, before_ms)
            if newest >= before_ms:
                break
            old.append(segment)
            # A clock that runs ahead must not have later messages taken for dropped.
            dropped_ms = max(dropped_ms, min(before_ms, newest + DAY_MS))
        if old:
            dropped = Watermarks.dropped(dropped_ms)
            self._drop([segment.flat for segment in old], dropped, keep_bytes=keep_bytes)
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

    def _drop(self, flats: Iterable[FlatSegment], *also: Change, keep_bytes: bool = False) -> None:
        dropped = list(flats)
        kept = [flat for flat in self._file.segments if flat not in dropped]
        lowered = first_row_below([flat.record for flat in kept])
        if lowered is not None:
            kept[0].record = lowered
            also = (*also, Put(lowered))
        self.segments = tuple(held for held in self.segments if held.flat not in dropped)
        try:
            end = Watermarks.end_at(self._file.commit_offset)
            self._file.drop(dropped, end, *also, keep_bytes=keep_bytes)
        finally:
            self.renew()
        if self._cache is not None:
            for flat in dropped:
                self._cache.forget(Origin.of(flat.record))

    def _newest(self, segment: UploadedSegment, before_ms: int) -> int:
        """When its newest message was stored, or any time from `before_ms` on if that is not before
        it: judged by its row if the file is gone, damaged or not ours.

        RocketMQ may have taken part of an address for the end timestamp. But no message is newer
        than a day after the upload.
        """
        record = segment.record
        last = record.create_timestamp + DAY_MS if record.create_timestamp else INT64_MAX
        if record.end_timestamp is not None and before_ms <= record.end_timestamp <= last:
            return record.end_timestamp  # without reading the file
        try:
            footer = segment.file().footer
        except (SegmentError, OffsetOutOfRangeError) as error:
            log.warning("an index file that is to expire cannot be read: %s", error)
            footer = None
        if footer is not None and footer.filter_blocks:
            return footer.times.last
        return min(segment.latest, last)

    def renew(self) -> None:
        """Show the files that the catalogue calls complete; a known file keeps its object."""
        held = {segment.origin: segment for segment in self.segments}
        table = []
        for flat in self._file.segments:
            if not _is_unfinished(flat.record):
                known = held.get(Origin.of(flat.record))
                table.append(
                    known or UploadedSegment(flat, self._cache, slot_count=self.slot_count)
                )
        self.segments = tuple(table)

    def _whole(self, flat: FlatSegment) -> tuple[int, int, int] | None:
        """Begin, end and size of a file; None unless all of it is in the backend."""
        size = flat.backend_bytes()
        if size <= HEADER_BYTES:
            return None
        try:
            found = footer_or_header(flat.segment.read, size, path=flat.segment.path)
        except SegmentCorruptError as error:
            log.warning("%s", error)
            return None
        if not isinstance(found, Footer):
            items, slots = found.item_count, self.slot_count
            if items < 1 or size != compacted_file_bytes(slot_count=slots, item_count=items):
                return None
        return found.begin_timestamp, found.end_timestamp, size


def newest_timestamp(local: Sequence[IndexStoreFile], uploaded: Sequence[UploadedSegment]) -> int:
    """The newest store time in these files, according to headers and rows; 0 if there is none."""
    ends = [segment.record.end_timestamp or 0 for segment in uploaded]
    ends += [file.end_timestamp for file in local if file.item_count]
    return max(ends, default=0)


def first_row_below(rows: Sequence[SegmentRecord]) -> SegmentRecord | None:
    """The first row with a lower begin, if a later file begins before it; else None.

    RocketMQ takes files that begin before the first one for expired, and forgets them. The true
    begin is in the file itself.
    """
    begins = [row.begin_timestamp for row in rows if row.begin_timestamp is not None]
    if not rows or rows[0].begin_timestamp is None or min(begins) >= rows[0].begin_timestamp:
        return None
    return replace(rows[0], begin_timestamp=max(0, min(begins) - 1))


class UploadedSegment:
    """One row of the table and its file, which never changes; any thread may ask.

    A damaged copy of the footer is forgotten, and a damaged footer is ignored: the bytes before it
    are a file as RocketMQ writes it.
    """

    def __init__(self, segment: FlatSegment, cache: FooterCache | None, *, slot_count: int) -> None:
        self.flat = segment
        self.record: SegmentRecord = segment.record
        self.origin = Origin.of(segment.record)
        self.is_damaged = False  # as far as look-ups have seen; damage to a copy does not count
        self._cache = cache
        self._slot_count = slot_count
        self._file: UploadedFile | None = None
        self._is_near = False
        self._trusts_footer = True
        self._asked = self._failed_copies = 0

    @property
    def begin_timestamp(self) -> int:
        return self.record.begin_timestamp or 0

    @property
    def latest(self) -> int:
        """No message in it was stored later, according to its row. RocketMQ's end timestamp is too
        early if the file was open across a restart, so the time of the upload counts too."""
        record = self.record
        if record.end_timestamp is None:  # the catalogue reads the largest time as none
            return INT64_MAX
        return max(record.end_timestamp, record.create_timestamp)

    @property
    def wants_copy(self) -> bool:
        """Whether a copy of its footer is worth making."""
        file = self._file
        if self._is_near or self._cache is None or file is None or file.is_legacy:
            return False
        if not self._trusts_footer:
            return False  # a copy is believed only if it adds up with the size of the file
        footer = file.footer
        size = FENCES_BYTES_MIN + self.record.size // FENCES_PART
        if not self._cache.has_room(size if footer is None else footer.footer_bytes):
            return False  # it would displace newer copies
        if footer is not None and not self._failed_copies:
            return True
        return self._asked >= ASKED_OFTEN << self._failed_copies

    def item_count(self) -> int:
        """How many keys it has; may take a read or two."""
        footer = self.file().footer
        if footer is not None:
            return footer.item_count
        return decode_header(self._read(0, HEADER_BYTES), path=self._path).item_count

    def item_blocks(self) -> Iterator[NDArray[Any]]:
        """All items, block by block, of a file without a footer of ours."""
        first = slot_position(self._slot_count)
        end = first + COMPACTED_ITEM_BYTES * self.item_count()
        step = COPY_BYTES // COMPACTED_ITEM_BYTES * COMPACTED_ITEM_BYTES
        for start in range(first, end, step):
            data = self._read(start, min(step, end - start))
            yield view_compacted_items(data, path=self._path)

    def may_overlap(self, begin: int, end: int) -> bool:
        """Whether it may have messages stored within [begin, end]; the first call may read."""
        if begin > self.latest + DAY_MS:
            return False
        return self.times().overlaps(begin, end)

    def times(self) -> TimeRange:
        """Between which times its messages were stored; exact if we filled the file."""
        footer = self.file().footer
        if footer is not None and footer.filter_blocks:
            return footer.times
        return foreign_times(begin=self.file().begin_timestamp, end=self.latest)

    def file(self) -> UploadedFile:
        """Opened on first use: from the copy of its footer, or with a read or two."""
        file = self._file
        if file is None:
            near = None if self._cache is None else self._cache.near(self.origin)
            # The first row may say an earlier begin than its file: see `first_row_below`.
            if near is not None and near.footer.begin_timestamp >= self.begin_timestamp:
                file = UploadedFile.with_footer(self._read, near.footer, near=near, path=self._path)
                self._is_near, self._failed_copies = True, 0
            else:
                file = self._opened()
            self._file = file
        return file

    def ask(self, query: KeyQuery) -> list[IndexHit]:
        while True:
            file = self._file
            try:
                if not self.may_overlap(query.begin, query.end):
                    return []
                file = self.file()
                hits = query.newest(self._items(file, query), partial(_disorder_seconds, file))
                # Its row was made when the upload began: nothing was put into it later.
                put_before = self.record.create_timestamp or INT64_MAX
                return [hit._replace(put_before=put_before) for hit in hits]
            except DamagedItemsError:
                self.is_damaged = True
                raise  # without its footer, the same damaged items would be trusted
            except (SegmentCorruptError, SegmentNotFoundError, OSError) as error:
                if not isinstance(error, SegmentError) and not self._is_near_failure(error):
                    raise
                self.is_damaged |= isinstance(error, SegmentCorruptError) and not self._is_near
                is_gone = isinstance(error, SegmentNotFoundError) and error.path == self._path
                if is_gone or not self._trusts_less(file):
                    raise
                # A copy may have been evicted from the cache; everything else is damage.
                level = logging.INFO if isinstance(error, FileNotFoundError) else logging.WARNING
                log.log(level, "%s is asked without its footer: %s", self._path, error)

    def make_copy(self) -> None:
        """Put the footer into the cache, if that has room. The object in the backend stays as it
        is."""
        file, cache = self.file(), self._cache
        if self._is_near or cache is None or file.is_legacy:
            return
        # Until a copy is read: the next one may come to nothing too, so wait longer.
        self._failed_copies = min(self._failed_copies + 2, FAILED_COPIES_MAX)
        try:
            if cache.keep(self.origin, self._footer_bytes(file)):
                self._file = None  # opened again, from the copy
        except (BackendError, SegmentError) as error:
            log.warning("%s is asked without a copy of its footer: %s", self._path, error)

    def _items(self, file: UploadedFile, query: KeyQuery) -> Iterator[Match]:
        self._asked += 1
        text = query.text
        if not file.may_hold(text):
            return iter(())
        footer, times = file.footer, self.times()
        if footer is not None and footer.filter_blocks:
            if not times.outruns_seconds(file.begin_timestamp):
                return file.matches(text, begin=query.begin, end=query.end)
            is_dated = False
        else:  # a file of 5.1 has 32 bits for milliseconds: they last for 24 days
            is_dated = not file.is_legacy or self.latest - file.begin_timestamp <= INT32_MAX
        items = file.matches(text, begin=-INT64_MAX, end=INT64_MAX)
        if not is_dated:
            return undated(items, last=times.last)
        return with_true_times(items, times, begin=query.begin, end=query.end)

    def _footer_bytes(self, file: UploadedFile) -> Iterator[Buffer]:
        footer = file.footer
        if footer is None:
            header = decode_header(self._read(0, HEADER_BYTES), path=self._path)
            yield fences_of_table(
                self._read, header, self.times(), slot_count=self._slot_count, path=self._path
            )
            return
        for start in range(footer.position, self.record.size, COPY_BYTES):
            yield self._read(start, min(COPY_BYTES, self.record.size - start))

    def _opened(self) -> UploadedFile:
        return UploadedFile.open(
            self._read,
            self.record.size,
            slot_count=self._slot_count,
            path=self._path,
            trust_footer=self._trusts_footer,
        )

    def _is_near_failure(self, error: OSError) -> bool:
        """Whether the broker's own disk failed: it has only a copy."""
        return self._is_near and not isinstance(error, TieredStoreError)

    def _trusts_less(self, failed: UploadedFile | None) -> bool:
        """Give up the part that may be damaged, for another try; False if none is left."""
        if self._file is not failed:
            return True  # another thread has already done so
        if self._is_near:
            if self._cache is not None:
                self._cache.forget(self.origin)
            self._is_near = False
        elif self._trusts_footer and (self._file is None or self._file.footer is not None):
            self._trusts_footer = False
        else:
            return False
        self._file = None
        return True

    def _read(self, position: int, length: int) -> bytes:
        return self.flat.segment.read(position, length)

    @property
    def _path(self) -> str:
        return self.flat.segment.path


@dataclass(slots=True, kw_only=True, eq=False)
class UploadedFile:
    """One file, which never changes; any thread may ask.

    A look-up reads one range of at most 16 KiB if the footer is cached, two ranges if only its tail
    is known, and two if there is none. A slot with more items is read in pages, newest first, until
    the caller has enough.
    """

    path: str
    slot_count: int
    begin_timestamp: int
    items_end: int
    is_legacy: bool = False
    footer: Footer | None = None
    near: NearFooter | None = None
    read: Read

    @property
    def items_start(self) -> int:
        return slot_position(self.slot_count)

    @classmethod
    def open(
        cls,
        read: Read,
        size: int,
        *,
        slot_count: int,
        path: str = "",
        trust_footer: bool = True,
    ) -> UploadedFile:
        """Read the end of the file, and its header if it has no footer of ours.

        `slot_count` is that of files without a footer. A damaged footer can be ignored: what lies
        before it is a file as Java writes it.
        """
        if not size:  # without items, Java's file is empty
            return cls(read=read, items_end=0, path=path, slot_count=slot_count, begin_timestamp=0)
        tail_bytes = min(size, TAIL_BYTES)
        tail = _exactly(read, size - tail_bytes, tail_bytes, path)
        if trust_footer and has_footer(tail):
            return cls.with_footer(read, decode_tail(tail, file_bytes=size, path=path), path=path)
        head = tail if size <= TAIL_BYTES else _exactly(read, 0, HEADER_BYTES, path)
        header = decode_header(head, path=path)
        is_legacy = is_legacy_compacted(header, file_bytes=size, slot_count=slot_count)
        wanted = compacted_file_bytes(slot_count=slot_count, item_count=header.item_count)
        has_more = has_footer(tail) and size > wanted  # the footer is ignored
        if size != (wanted + 4 if is_legacy else wanted) and not has_more:
            raise SegmentCorruptError(
                path,
                f"{size} bytes, but {slot_count} slots and {header.item_count} items take {wanted}",
                position=HEADER_BYTES,
            )
        return cls(
            read=read,
            items_end=wanted,
            path=path,
            slot_count=slot_count,
            begin_timestamp=header.begin_timestamp,
            is_legacy=is_legacy,
        )

    @classmethod
    def with_footer(
        cls, read: Read, footer: Footer, *, near: NearFooter | None = None, path: str = ""
    ) -> UploadedFile:
        """Opened without a read; `near` is a copy of the footer on the broker's disk."""
        return cls(
            read=read,
            items_end=footer.position,
            path=path,
            slot_count=footer.slot_count,
            begin_timestamp=footer.begin_timestamp,
            footer=footer,
            near=near,
        )

    def may_hold(self, text: str) -> bool:
        """False only if no message has this `topic#key`; the backend is not read for it."""
        near = self.near
        if near is None or not near.footer.filter_blocks:
            return True
        value = key_hash(text)
        position = BLOCK_BYTES * block_of(value, near.footer.filter_blocks)
        block = near.read(position, BLOCK_BYTES)
        return may_hold(block, value, path=self.path, position=near.footer.position + position)

    def find(self, text: str, *, begin: int, end: int, count_max: int) -> list[Match]:
        """Items that may have this `topic#key`, newest first, about within begin to end."""
        if count_max <= 0 or begin > end or not self.may_hold(text):
            return []
        return list(islice(self.matches(text, begin=begin, end=end), count_max))

    def matches(self, text: str, *, begin: int, end: int) -> Iterator[Match]:
        """The same without a limit and without the filter; pages are read as they are needed.

        If two hashes are probed, the items of both are merged by time.
        """
        if self.items_end <= self.items_start:
            return
        rows = [self._of_hash(*probe, begin, end) for probe in self._probes(text)]
        if len(rows) == 1:
            yield from rows[0]
        else:
            yield from merge(*rows, key=lambda item: -item.store_timestamp)

    def _of_hash(self, hash_: int, slot: int, begin: int, end: int) -> Iterator[Match]:
        for group in self._groups(slot):
            for start in range(group.start, group.end, GROUP_BYTES):
                page = group._replace(start=start, end=min(start + GROUP_BYTES, group.end))
                yield from self._items(page, hash_, begin, end)

    def _probes(self, text: str) -> tuple[tuple[int, int], ...]:
        if self.is_legacy:
            hash_ = local_key_hash(text)  # 5.1 uses 0 for the hash that has no absolute value
            return ((hash_, local_slot(hash_, self.slot_count)),)
        probes = tiered_probes(text, self.slot_count)
        all_ours = self.footer is not None and self.footer.filter_blocks > 0
        return probes[:1] if all_ours else probes

    def _groups(self, slot: int) -> Iterator[Group]:
        """The groups with the items of a slot; more than one if they take more than one read."""
        footer = self.footer
        if footer is None:
            yield self._group_of_table(slot)
            return
        first = number = footer.fence_block(slot)
        while True:
            found = self._groups_in_block(footer, number, slot)
            if not found and number == first:
                position = footer.position + footer.fence_block_position(number)
                reason = f"slot {slot} lies before its block"
                raise SegmentCorruptError(self.path, reason, position=position)
            yield from found
            is_full = bool(found) and found[-1].end - found[-1].start == GROUP_BYTES
            if not is_full or not footer.may_go_on(number, slot):
                return
            number += 1

    def _groups_in_block(self, footer: Footer, number: int, slot: int) -> list[Group]:
        at = footer.fence_block_position(number)
        if self.near is not None:
            block = self.near.read(at, BLOCK_BYTES)
        else:
            block = _exactly(self.read, footer.position + at, BLOCK_BYTES, self.path)
        return find_groups(block, slot, footer, path=self.path, position=footer.position + at)

    def _group_of_table(self, slot: int) -> Group:
        at = slot_position(slot)
        data = _exactly(self.read, at, SLOT_BYTES, self.path)
        place = decode_compacted_slot(data, path=self.path)
        end = place.position + place.items_bytes
        is_within = self.items_start <= place.position < end <= self.items_end
        is_whole = (place.position - self.items_start) % COMPACTED_ITEM_BYTES == 0
        if place.items_bytes and not (is_within and is_whole):
            reason = f"a slot with items from {place.position} to {end}"
            raise SegmentCorruptError(self.path, reason, position=at)
        return Group(place.position, end)

    def _items(self, group: Group, hash_: int, begin: int, end: int) -> Iterator[Match]:
        data = _exactly(self.read, group.start, group.end - group.start, self.path)
        check_items(data, group, path=self.path)
        items = view_compacted_items(data, path=self.path)
        origin = self.begin_timestamp
        if self.is_legacy:
            unit, first, last = 1, begin - origin, end - origin
        else:
            first, last = seconds_window(begin, end, begin_timestamp=origin)
            unit = 1000
        for at in np.flatnonzero(items["key_hash"] == hash_).tolist():
            _, topic_id, queue_id, log_offset, message_bytes, time = items[at].item()
            if first <= time <= last:
                time = origin + unit * time
                yield Match(topic_id, queue_id, log_offset, message_bytes, time)


def _exactly(read: Read, position: int, length: int, path: str) -> bytes:
    data = read(position, length)
    if len(data) != length:
        reason = f"{len(data)} bytes were read of {length}"
        raise SegmentCorruptError(path, reason, position=position)
    return data


def _disorder_seconds(file: UploadedFile) -> int | None:
    """None, for unknown, if another program filled the file or its times are not trusted."""
    footer = file.footer
    if footer is None or not footer.filter_blocks:
        return None
    return None if footer.times.outruns_seconds(file.begin_timestamp) else footer.disorder_seconds


def _is_unfinished(record: SegmentRecord) -> bool:
    return not record.size or record.begin_timestamp is None
