"""What an index finds on the broker's disk when it is opened.

What lives here: `open_local_files`: taking over the files that are there, dropping those that are
uploaded already or of no use, and moving the watermarks back where a file is lost.
"""

from __future__ import annotations

import logging

from tieredstore.codec.tiered_index import HEADER_BYTES, compacted_file_bytes, decode_header
from tieredstore.driver.metadata import MetadataStore
from tieredstore.index.footer import TAIL_BYTES, has_footer
from tieredstore.index.local_folder import LocalFolder
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.index.uploaded_segment import UploadedSegment
from tieredstore.index.uploaded_table import UploadedTable
from tieredstore.index.watermarks import Watermarks
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendError, InvalidConfigError, SegmentError

log = logging.getLogger(__name__)


def open_local_files(
    config: StoreConfig,
    folder: LocalFolder,
    uploaded: UploadedTable,
    watermarks: Watermarks,
    metadata: MetadataStore,
) -> list[IndexStoreFile]:
    """The files to go on with, oldest first; the catalogue knows of all that changed.

    InvalidConfigError where the store has other sizes: then nothing was changed.
    """
    begins = folder.begins()
    _check_sizes(config, begins, uploaded, watermarks, metadata)
    is_uploaded = {each.begin_timestamp for each in uploaded.segments}
    opened: list[IndexStoreFile] = []
    try:
        for begin in begins:
            if begin in is_uploaded:
                metadata.apply(watermarks.forgotten(begin))
                folder.remove(begin)
                continue
            file = folder.open(begin, watermarks.item_count(begin))
            if file is None:
                _give_up(begin, folder, watermarks, metadata)
            else:
                opened.append(file)
        for begin in set(watermarks.begins()) - set(begins):
            log.warning("the index file %d is gone, it is made again", begin)
            _give_up(begin, folder, watermarks, metadata)
    except BaseException:
        for file in opened:
            file.close()
        raise
    folder.remove_stray_notes()
    metadata.apply(watermarks.unknown())
    return _without_empty(opened)


def _give_up(
    begin: int, folder: LocalFolder, watermarks: Watermarks, metadata: MetadataStore
) -> None:
    """The watermarks go back before the file does."""
    metadata.apply(watermarks.lost(begin))
    folder.remove(begin)


def _without_empty(files: list[IndexStoreFile]) -> list[IndexStoreFile]:
    """An empty file is of use only as the one to be filled next."""
    kept = [file for file in files[:-1] if file.item_count]
    for file in files[:-1]:
        if not file.item_count:
            file.delete()
    return [*kept, *files[-1:]]


def _check_sizes(
    config: StoreConfig,
    begins: list[int],
    uploaded: UploadedTable,
    watermarks: Watermarks,
    metadata: MetadataStore,
) -> None:
    """The sizes are those of the store, or become so. Somebody else's index is taken over."""
    slots, items = config.index_slot_count, config.index_item_count
    if watermarks.check_sizes(slot_count=slots, item_capacity=items):
        return
    for each in uploaded.segments[-1:]:
        _check_uploaded(each, slots)
    changes = [watermarks.sizes(slot_count=slots, item_capacity=items)]
    if begins or uploaded.segments:
        changes += watermarks.adopted()
    metadata.apply(changes)


def _check_uploaded(segment: UploadedSegment, slot_count: int) -> None:
    """Java's files do not say how many slots they have; but their length does."""
    size, handle = segment.record.size, segment.flat.segment
    try:
        tail = handle.read(max(0, size - TAIL_BYTES), min(size, TAIL_BYTES))
        header = decode_header(handle.read(0, HEADER_BYTES), path=handle.path)
    except (BackendError, SegmentError) as error:
        log.warning("the sizes of the index could not be checked: %s", error)
        return
    if has_footer(tail):
        return
    wanted = compacted_file_bytes(slot_count=slot_count, item_count=header.item_count)
    if size not in (wanted, wanted + 4):  # those of RocketMQ 5.1 are four bytes longer
        raise InvalidConfigError(
            f"index_slot_count: {slot_count}, but {handle.path} was made with another number; "
            "it must never change"
        )
