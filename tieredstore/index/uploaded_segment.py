"""One index file in the backend: its segment, what is known of it, and asking it.

What lives here: `UploadedSegment`. How a key is found in the bytes is in `uploaded_file`, the
copies of footers in `footer_cache`; which segments there are in `uploaded_table`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from numpy.typing import NDArray

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.tiered_index import (
    COMPACTED_ITEM_BYTES,
    HEADER_BYTES,
    decode_header,
    slot_position,
)
from tieredstore.codec.tiered_index_columns import view_compacted_items
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.index.footer_build import fences_of_table
from tieredstore.index.footer_cache import FooterCache, Origin
from tieredstore.index.foreign_times import DAY_MS, foreign_times, undated, with_true_times
from tieredstore.index.hits import IndexHit
from tieredstore.index.key_search import Asked
from tieredstore.index.rows import FoundItem, TimeRange
from tieredstore.index.uploaded_file import UploadedFile
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import (
    BackendError,
    SegmentCorruptError,
    SegmentError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT32_MAX, INT64_MAX

log = log_of(__name__)

COPY_BYTES: Final = 4 << 20
FENCES_PART: Final = 1024  # the fences of a file without a footer are smaller than that part of it
FENCES_BYTES_MIN: Final = 4200
FAILED_COPIES_MAX: Final = 30
ASKED_OFTEN: Final = 8  # so many lookups, and a file without a footer gets fences of its own


class UploadedSegment:
    """A file that never changes; any thread may ask.

    The footer's copy is used where there is one. A copy that turns out to be damaged is forgotten,
    and a footer that is damaged passed over: what lies before it is a file as RocketMQ writes it.
    """

    def __init__(self, segment: FlatSegment, cache: FooterCache | None, *, slot_count: int) -> None:
        self.flat = segment
        self.record: SegmentRecord = segment.record
        self.origin = Origin.of(segment.record)
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
        """No message in it was stored later, as far as its row tells; RocketMQ's end is too early
        where the file was open over a restart."""
        record = self.record
        if record.end_timestamp is None:  # the last time there is stands for none in the catalogue
            return INT64_MAX
        return max(record.end_timestamp, record.create_timestamp)

    @property
    def wants_copy(self) -> bool:
        """Whether a copy of its footer is worth making."""
        file = self._file
        if self._is_near or self._cache is None or file is None or file.is_legacy:
            return False
        footer = file.footer
        size = FENCES_BYTES_MIN + self.record.size // FENCES_PART
        if not self._cache.has_room(size if footer is None else footer.footer_bytes):
            return False  # those that were made later stay
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
        """All items of a file without a footer of ours, block by block."""
        first = slot_position(self._slot_count)
        end = first + COMPACTED_ITEM_BYTES * self.item_count()
        step = COPY_BYTES // COMPACTED_ITEM_BYTES * COMPACTED_ITEM_BYTES
        for start in range(first, end, step):
            data = self._read(start, min(step, end - start))
            yield view_compacted_items(data, path=self._path)

    def may_overlap(self, begin: int, end: int) -> bool:
        """Whether it may have messages stored within [begin, end]; may take one read, once."""
        if begin > self.latest + DAY_MS:
            return False
        return _overlaps(self.times(), begin, end)

    def times(self) -> TimeRange:
        """Exact where we filled the file."""
        footer = self.file().footer
        if footer is not None and footer.filter_blocks:
            return footer.times
        return foreign_times(begin=self.file().begin_timestamp, end=self.latest)

    def file(self) -> UploadedFile:
        """Opened when it is needed: from the copy of its footer, or with a read or two."""
        file = self._file
        if file is None:
            near = None if self._cache is None else self._cache.near(self.origin)
            # The first row may say that it begins earlier: see `first_row_below`.
            if near is not None and near.footer.begin_timestamp >= self.begin_timestamp:
                file = UploadedFile.with_footer(self._read, near, path=self._path)
                self._is_near = True
            else:
                file = self._opened()
            self._file = file
        return file

    def ask(self, asked: Asked) -> list[IndexHit]:
        while True:
            file = self._file
            try:
                if not self.may_overlap(asked.begin, asked.end):
                    return []
                file = self.file()
                hits = asked.newest(self._items(file, asked), partial(_lateness, file))
                # Its row was made when it was uploaded: nothing was put into it later.
                put_before = self.record.create_timestamp or INT64_MAX
                return [hit._replace(put_before=put_before) for hit in hits]
            except (SegmentCorruptError, SegmentNotFoundError, OSError) as error:
                if not isinstance(error, SegmentError) and not self._is_near_failure(error):
                    raise
                is_gone = isinstance(error, SegmentNotFoundError) and error.path == self._path
                if is_gone or not self._trusts_less(file):
                    raise
                # A copy may have made room for others; all else is damage.
                level = logging.INFO if isinstance(error, FileNotFoundError) else logging.WARNING
                log.log(level, "%s is asked without its footer: %s", self._path, error)

    def make_copy(self) -> bool:
        """Put the footer into the cache; whether it is there now. The object is not changed."""
        file, cache = self.file(), self._cache
        if self._is_near or cache is None or file.is_legacy:
            return False
        try:
            is_kept = cache.keep(self.origin, self._footer_bytes(file))
        except (BackendError, SegmentError) as error:  # it may be the same the next time
            self._failed_copies = min(self._failed_copies + 2, FAILED_COPIES_MAX)
            log.warning("%s is asked without a copy of its footer: %s", self._path, error)
            return False
        if not is_kept:
            return False
        self._file = None  # opened anew, from the copy
        return True

    def _items(self, file: UploadedFile, asked: Asked) -> Iterator[FoundItem]:
        self._asked += 1
        text = asked.text
        if not file.may_hold(text):
            return iter(())
        footer, times = file.footer, self.times()
        if footer is not None and footer.filter_blocks:
            if not times.outruns_seconds(file.begin_timestamp):
                return file.matches(text, begin=asked.begin, end=asked.end)
            is_dated = False
        else:  # one of 5.1 has 32 bits for milliseconds: they last for 24 days
            is_dated = not file.is_legacy or self.latest - file.begin_timestamp <= INT32_MAX
        items = file.matches(text, begin=-INT64_MAX, end=INT64_MAX)
        if not is_dated:
            return undated(items, last=times.last)
        return with_true_times(items, times, begin=asked.begin, end=asked.end)

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
        """Whether it is the broker's own disk that failed, which has only a copy."""
        return self._is_near and not isinstance(error, TieredStoreError)

    def _trusts_less(self, failed: UploadedFile | None) -> bool:
        """Try again without what may be damaged; False if there is nothing left to do without."""
        if self._file is not failed:
            return True  # another thread has seen to it
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


def _lateness(file: UploadedFile) -> int | None:
    """Nothing is known of a file that somebody else filled, or whose times are not believed."""
    footer = file.footer
    if footer is None or not footer.filter_blocks:
        return None
    return None if footer.times.outruns_seconds(file.begin_timestamp) else footer.lateness


def _overlaps(times: TimeRange, begin: int, end: int) -> bool:
    slack = 0 if times.exact else 999
    return times.first - slack <= end and begin <= times.last + slack
