"""What an index finds on the broker's disk when it is opened.

What lives here: `open_local_files`: taking over the files that are there, dropping those that are
uploaded already or of no use, and moving the watermarks back where a file is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.tiered_index import HEADER_BYTES, compacted_file_bytes, decode_header
from tieredstore.driver.metadata import MetadataStore
from tieredstore.index.footer import TAIL_BYTES, decode_tail, has_footer
from tieredstore.index.local_folder import LocalFolder
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.index.uploaded_segment import UploadedSegment
from tieredstore.index.uploaded_table import UploadedTable
from tieredstore.index.watermarks import QueueId, QueueLag, Watermarks
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentError,
)
from tieredstore.model.printable import log_of

log = log_of(__name__)

TAKEN_OVER_BYTES_MAX: Final = 2 << 30  # of files that are read at an open


def open_local_files(
    config: StoreConfig,
    folder: LocalFolder,
    uploaded: UploadedTable,
    watermarks: Watermarks,
    metadata: MetadataStore,
    *,
    now_ms: int,
) -> list[IndexStoreFile]:
    """The files to go on with, oldest first; the catalogue knows of all that changed.

    InvalidConfigError where the store has other sizes: then nothing was changed.
    """
    _check_sizes(config, folder, uploaded, watermarks, metadata, now_ms)
    begins = folder.begins()
    begun = {each.begin_timestamp for each in uploaded.segments}
    opened: list[IndexStoreFile] = []
    try:
        for begin in begins:
            if begin in begun and _has_all(uploaded, begin, watermarks.item_count(begin)):
                metadata.apply(watermarks.forgotten(begin))
                folder.remove(begin)
                continue
            file = folder.open(begin, watermarks.durable(begin))
            if file is None:
                _give_up(begin, folder, watermarks, metadata)
            else:
                opened.append(file)
                # What is in the backend gets no more keys: one whose upload was begun neither.
                if file.item_count and (begin in begun or uploaded.has_leftovers):
                    file.seal()
        for begin in set(watermarks.begins()) - set(begins):
            # RocketMQ fills our files further, uploads them at its end, and deletes them here.
            if begin in begun and _has_all(uploaded, begin, watermarks.item_count(begin)):
                log.info("the index file %d was uploaded by somebody else", begin)
                metadata.apply(watermarks.forgotten(begin))
                continue
            log.warning("the index file %d is gone, it is made again", begin)
            _give_up(begin, folder, watermarks, metadata)
    except BaseException:
        for file in opened:
            file.close()
        raise
    folder.remove_stray_notes()
    metadata.apply(watermarks.unknown())
    _take_over_puts(uploaded, watermarks, metadata, now_ms)
    return _without_empty(opened)


def _take_over_puts(
    uploaded: UploadedTable, watermarks: Watermarks, metadata: MetadataStore, now_ms: int
) -> None:
    """Move the watermarks over what RocketMQ has committed and put since, as its uploaded files
    show message by message. All else is put again, also where the backend does not tell."""
    lags = watermarks.behind()
    since = min((lag.put_at for lag in lags), default=0)
    recent = [each for each in uploaded.segments if lags and _is_since(each, since)]
    if not recent or sum(each.record.size for each in recent) > TAKEN_OVER_BYTES_MAX:
        return
    try:
        files = [each for each in recent if _is_of_rocketmq(each)]
        places = _places(files, [lag.queue for lag in lags]) if files else {}
        ends = {
            lag.queue: _put_to(uploaded, lag, np.unique(np.concatenate(places[lag.queue])))
            for lag in lags
            if lag.queue in places
        }
    except (BackendError, SegmentError, OffsetOutOfRangeError) as error:
        log.warning("what RocketMQ has put into the index is put again: %s", error)
        return
    metadata.apply(watermarks.moved(ends, dict.fromkeys(ends, now_ms)))


def _is_since(segment: UploadedSegment, since: int) -> bool:
    return segment.record.create_timestamp >= since


def _is_of_rocketmq(segment: UploadedSegment) -> bool:
    file = segment.file()
    return file.footer is None and not file.is_legacy


def _places(
    files: Iterable[UploadedSegment], queues: Collection[QueueId]
) -> dict[QueueId, list[NDArray[np.int64]]]:
    """Where the messages of these queues lie that the files have keys of."""
    known = {(queue.topic_id << 32) + queue.queue_id: queue for queue in queues}
    found: dict[QueueId, list[NDArray[np.int64]]] = {}
    for file in files:
        for items in file.item_blocks():
            numbers = items["topic_id"].astype(np.int64) << 32
            numbers += items["queue_id"].astype(np.int64)
            for number in known.keys() & set(np.unique(numbers).tolist()):
                places = items["log_offset"][numbers == number].astype(np.int64)
                found.setdefault(known[number], []).append(np.unique(places))
    return found


def _put_to(uploaded: UploadedTable, lag: QueueLag, places: NDArray[np.int64]) -> int:
    """The first queue offset whose message is at none of these places."""
    at = lag.mark
    for units in uploaded.queue_units(lag.path, lag.mark, lag.end):
        missing = np.flatnonzero(~np.isin(units.log_offsets, places))
        if len(missing):
            return at + int(missing[0])
        at += len(units.log_offsets)
    return at


def _has_all(uploaded: UploadedTable, begin: int, item_count: int | None) -> bool:
    """Whether a local file is of no use any more; no where the backend does not tell."""
    if not item_count:  # its upload was noted to its end, or nothing in it was durable
        return True
    try:
        return uploaded.holds(begin, item_count)
    except (BackendError, SegmentError) as error:
        log.warning("the index file %d was uploaded and is kept: %s", begin, error)
        return False


def _give_up(
    begin: int, folder: LocalFolder, watermarks: Watermarks, metadata: MetadataStore
) -> None:
    """The watermarks go back before the file does."""
    metadata.apply(watermarks.lost(begin, is_ours=folder.is_ours(begin)))
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
    folder: LocalFolder,
    uploaded: UploadedTable,
    watermarks: Watermarks,
    metadata: MetadataStore,
    now_ms: int,
) -> None:
    """The sizes are those of the store, or become so. Somebody else's index is taken over.

    One of ours whose notes are lost is not: nobody knows what it has. Then all is put again.
    """
    slots, items = config.index_slot_count, config.index_item_count
    is_noted = watermarks.check_sizes(slot_count=slots, item_capacity=items)
    begins = folder.begins()
    for begin in begins:
        if not (is_noted and folder.is_ours(begin)):  # else another length is damage
            folder.check_size(begin)
    if is_noted:
        return
    has_foreign = bool(begins)
    has_ours = any(folder.is_ours(begin) for begin in begins)
    for each in uploaded.segments:
        is_ours = _check_uploaded(each, slots)
        has_ours |= is_ours is True
        has_foreign |= is_ours is False
    changes = [watermarks.sizes(slot_count=slots, item_capacity=items)]
    if has_foreign and not has_ours:
        changes += watermarks.adopted(now_ms=now_ms)
    metadata.apply(changes)


def _check_uploaded(segment: UploadedSegment, slot_count: int) -> bool | None:
    """Whether it is one of ours; None if it is damaged. Raises what the backend raises.

    Java's files do not say how many slots they have; but their length does.
    """
    size, handle = segment.record.size, segment.flat.segment
    try:
        tail = handle.read(max(0, size - TAIL_BYTES), min(size, TAIL_BYTES))
        if has_footer(tail):
            footer = decode_tail(tail, file_bytes=size, path=handle.path)
            _check(footer.slot_count == slot_count, slot_count, handle.path)
            return True
        header = decode_header(handle.read(0, HEADER_BYTES), path=handle.path)
    except SegmentError as error:
        log.warning("the sizes of an index file could not be checked: %s", error)
        return None
    wanted = compacted_file_bytes(slot_count=slot_count, item_count=header.item_count)
    # Those of RocketMQ 5.1 are four bytes longer.
    _check(size in (wanted, wanted + 4), slot_count, handle.path)
    return False


def _check(is_right: bool, slot_count: int, path: str) -> None:
    if not is_right:
        raise InvalidConfigError(
            f"index_slot_count: {slot_count}, but {path} was made with another number; "
            "it must never change"
        )
