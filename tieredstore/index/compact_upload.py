"""A full local file on its way to the backend: compacted, streamed, noted, removed.

What lives here: `CompactUpload`, step by step, so that a crash after any of them leaves the local
file or the uploaded one in use. The bytes are made in `compaction` and `footer_build`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tieredstore.codec.bounds import Buffer
from tieredstore.driver.metadata import MetadataStore
from tieredstore.index.compaction import Compaction
from tieredstore.index.filling import Filling
from tieredstore.index.footer_build import footer_blocks
from tieredstore.index.footer_cache import FooterCache, FooterCopy
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.index.uploaded_table import UploadedTable
from tieredstore.index.watermarks import Watermarks
from tieredstore.model.errors import SegmentCorruptError, StoreClosedError
from tieredstore.model.printable import log_of

log = log_of(__name__)


class CompactUpload:
    """Uploads one file at a time, from one thread at a time."""

    def __init__(
        self,
        filling: Filling,
        uploaded: UploadedTable,
        watermarks: Watermarks,
        metadata: MetadataStore,
        cache: FooterCache,
        *,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._filling = filling
        self._uploaded = uploaded
        self._watermarks = watermarks
        self._metadata = metadata
        self._cache = cache
        self._is_stopped = is_stopped

    def upload(self, file: IndexStoreFile) -> None:
        """The full file is in the backend, and gone from the disk; what was begun is finished.

        Raises what the backend, the disk and the catalogue raise: then it is still a local file,
        or found to be in the backend the next time.
        """
        if self._uploaded.has_leftovers:
            self._uploaded.settle()
        begin = file.begin_timestamp
        forgotten = self._watermarks.forgotten(begin)
        if not file.item_count or self._uploaded.holds(begin, file.item_count):
            self._metadata.apply(forgotten)
        else:
            self._stream(file)
        self._filling.remove(file)

    def _stream(self, file: IndexStoreFile) -> None:
        compaction = Compaction(file.header(), file.items(), slot_count=file.slot_count)
        begin = file.begin_timestamp
        with self._cache.keeping() as copy:
            segment = self._uploaded.upload(
                self._until_stopped(_blocks(compaction, file, copy)),
                *self._watermarks.forgotten(begin),
                begin=begin,
                end=file.end_timestamp,
                from_offset=self._watermarks.end(),
            )
            copy.keep(segment.origin)
        self._uploaded.show()

    def _until_stopped(self, blocks: Iterator[Buffer]) -> Iterator[Buffer]:
        """Who shuts the store down does not wait for hundreds of MiB: they are sent again."""
        for block in blocks:
            if self._is_stopped():
                raise StoreClosedError("the index is being closed")
            yield block


def _blocks(compaction: Compaction, file: IndexStoreFile, copy: FooterCopy) -> Iterator[Buffer]:
    """The whole file; its footer goes into the cache too."""
    yield from compaction.blocks()
    times = file.times
    if times is None:
        raise SegmentCorruptError(str(file.path), "items without times", position=0)
    for block in footer_blocks(compaction, file.items(), times, file.notes):
        copy.write(block)
        yield block
