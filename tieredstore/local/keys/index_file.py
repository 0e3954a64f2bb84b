"""One file of the local key index: mapped, filled and searched.

What lives here: `IndexFile`. Which file is filled or searched is `index_service`, cutting one back
after a crash is `index_cut`, how chains are linked is `index_chain`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from mmap import ACCESS_READ, ACCESS_WRITE, mmap
from pathlib import Path

from tieredstore.codec.java import local_slot
from tieredstore.codec.local_index import (
    HEADER_BYTES,
    LocalIndexHeader,
    decode_header,
    decode_slot,
    encode_header,
    encode_slot,
    file_bytes,
    item_position,
    item_timestamp,
)
from tieredstore.driver.durable import fsync_directory, write_all
from tieredstore.local.files.blocks import IndexBlocks
from tieredstore.local.keys.index_chain import (
    CLOCK_SLACK_MS,
    ItemColumns,
    link_items,
    read_item,
    read_slot,
    select_like_java,
    store_header,
    store_slots,
    walk_candidates,
)
from tieredstore.model.errors import SegmentCorruptError, SegmentNotFoundError, StoreClosedError

_NEXT_ITEM_POSITION = 36


class IndexFile:
    """Up to `item_capacity - 1` keys, chained by slot; the bytes are those of Java's single puts.

    One thread puts at a time; any thread may query meanwhile. The header in the file is kept up to
    date with every put, and a put writes items, then the header, then slots, so that a reader
    finds every key that was there when it began. The file is mapped when it is first used. A
    query that is under way keeps the mapping alive, so `close` and `delete` never pull it away.
    """

    def __init__(
        self,
        path: Path,
        header: LocalIndexHeader,
        *,
        slot_count: int,
        item_capacity: int,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.slot_count = slot_count
        self.item_capacity = item_capacity
        self._header = header
        self._blocks = IndexBlocks(slot_count=slot_count, item_capacity=item_capacity)
        self._read_only = read_only
        self._descriptor = -1
        self._data: mmap | None = None
        self._closed = False
        self._opening = threading.Lock()

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        slot_count: int,
        item_capacity: int,
        end_timestamp: int = 0,
        end_log_offset: int = 0,
    ) -> IndexFile:
        """A new sparse file that goes on where the one before ended; durable when this returns."""
        header = LocalIndexHeader(
            begin_timestamp=max(0, end_timestamp),
            end_timestamp=max(0, end_timestamp),
            begin_log_offset=max(0, end_log_offset),
            end_log_offset=max(0, end_log_offset),
        )
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o666)
        try:
            os.ftruncate(descriptor, file_bytes(slot_count=slot_count, item_capacity=item_capacity))
            write_all(descriptor, encode_header(header), 0)
            os.fsync(descriptor)
            fsync_directory(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return cls(path, header, slot_count=slot_count, item_capacity=item_capacity)

    @classmethod
    def open(
        cls, path: Path, *, slot_count: int, item_capacity: int, read_only: bool = False
    ) -> IndexFile:
        """A file that is there; SegmentCorruptError if its size or its header cannot be right.

        One that is `read_only` may be filled by another process meanwhile: queries see its puts.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SegmentNotFoundError(str(path)) from error
        try:
            size = os.fstat(descriptor).st_size
            head = os.pread(descriptor, HEADER_BYTES, 0)
        finally:
            os.close(descriptor)
        wanted = file_bytes(slot_count=slot_count, item_capacity=item_capacity)
        if size != wanted:
            reason = f"{size} bytes, but {slot_count} slots and {item_capacity} items are {wanted}"
            raise SegmentCorruptError(str(path), reason, position=min(size, wanted))
        header = _decoded(path, head, slot_count=slot_count, item_capacity=item_capacity)
        return cls(
            path, header, slot_count=slot_count, item_capacity=item_capacity, read_only=read_only
        )

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def header(self) -> LocalIndexHeader:
        return self._header

    @property
    def is_full(self) -> bool:
        return self._header.next_item >= self.item_capacity

    @property
    def is_closed(self) -> bool:
        return self._closed

    def put(self, columns: ItemColumns) -> int:
        """Put as many keys as there is room for, from the first on, and return how many."""
        header = self._header
        count = min(len(columns), self.item_capacity - header.next_item)
        if count <= 0:
            return 0
        if count < len(columns):
            columns = columns.part(0, count)
        data = self._mapped()
        linked = link_items(data, header, columns, slot_count=self.slot_count)
        start = item_position(header.next_item, slot_count=self.slot_count)
        end = start + len(linked.items)
        self._blocks.reserve(self._descriptor, start, end, str(self.path))
        data[start:end] = linked.items
        store_header(data, linked.header)
        self._header = linked.header
        store_slots(data, linked, slot_count=self.slot_count)
        return count

    def log_offset_at(self, item: int) -> int:
        """The log offset of an item that is there."""
        return read_item(self._mapped(), item, slot_count=self.slot_count)[1]

    def timestamp_at(self, item: int) -> int:
        """When the message of an item was stored, up to 999 ms too early; of the first exactly."""
        begin = self._header.begin_timestamp
        seconds = read_item(self._mapped(), item, slot_count=self.slot_count)[2]
        return begin if item == 1 else item_timestamp(seconds, begin_timestamp=begin)

    def count_at_end(self, log_offset: int) -> int:
        """How many of the last items carry this log offset."""
        item = self._header.item_count
        count = 0
        while item > 0 and self.log_offset_at(item) == log_offset:
            count += 1
            item -= 1
        return count

    def is_time_matched(self, begin: int, end: int) -> bool:
        """Java's rule: do the times of the header touch begin to end?"""
        first, last = self._header.begin_timestamp, self._header.end_timestamp
        inside = begin < first and end > last
        return inside or first <= begin <= last or first <= end <= last

    def query_like_java(self, key_hash: int, *, begin: int, end: int, count_max: int) -> list[int]:
        """What Java answers: log offsets, newest first.

        It misses messages up to 999 ms after `begin`, the first key of a rolled file, and whatever
        lies behind a time below `begin`. Nothing is found in a closed file.
        """
        try:
            data = self._mapped()
        except StoreClosedError:  # expired since the search began
            return []
        item = read_slot(data, local_slot(key_hash, self.slot_count))
        return select_like_java(
            data,
            self._header,
            item,
            key_hash=key_hash,
            begin=begin,
            end=end,
            room=count_max,
            slot_count=self.slot_count,
        )

    def may_hold(self, begin: int, end: int) -> bool:
        """False only when no message of this file was stored within begin to end."""
        first, last = self._header.begin_timestamp, self._header.end_timestamp
        return first <= 0 or (first - CLOCK_SLACK_MS <= end and begin <= last + CLOCK_SLACK_MS)

    def candidates(self, key_hash: int, *, begin: int, end: int) -> Iterator[int]:
        """Every log offset that may answer, newest first: none is missed, some are too many.

        Whoever asks reads the message and compares keys and time. Empty once the file is closed.
        """
        try:
            data = self._mapped()
        except StoreClosedError:  # expired since the search began
            return iter(())
        item = read_slot(data, local_slot(key_hash, self.slot_count))
        if self._read_only:
            self._header = _decoded(
                self.path,
                data[:HEADER_BYTES],
                slot_count=self.slot_count,
                item_capacity=self.item_capacity,
            )
        return walk_candidates(
            data,
            self._header,  # read after the slot: what the slot names is counted
            item,
            key_hash=key_hash,
            begin=begin,
            end=end,
            slot_count=self.slot_count,
            path=str(self.path),
        )

    def flush(self) -> None:
        """Make everything put so far durable; other threads go on meanwhile."""
        with self._opening:
            if self._data is None or self._closed:
                return
            descriptor = os.dup(self._descriptor)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of the mapping, which ends with the last query. Idempotent; does not flush."""
        with self._opening:
            self._closed = True
            self._data = None
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def delete(self) -> None:
        """Close and remove the file. Idempotent."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _mapped(self) -> mmap:
        data = self._data
        return data if data is not None else self._map()

    def _map(self) -> mmap:
        with self._opening:
            if self._closed:
                raise StoreClosedError(f"{self.path}: the index file is closed")
            if self._data is None:
                flags = os.O_RDONLY if self._read_only else os.O_RDWR
                access = ACCESS_READ if self._read_only else ACCESS_WRITE
                try:
                    self._descriptor = os.open(self.path, flags | os.O_CLOEXEC)
                except FileNotFoundError as error:
                    raise SegmentNotFoundError(str(self.path)) from error
                size = file_bytes(slot_count=self.slot_count, item_capacity=self.item_capacity)
                try:
                    self._data = mmap(self._descriptor, size, access=access)
                except BaseException:
                    os.close(self._descriptor)
                    self._descriptor = -1
                    raise
            return self._data


def _decoded(path: Path, head: bytes, *, slot_count: int, item_capacity: int) -> LocalIndexHeader:
    if decode_slot(head, _NEXT_ITEM_POSITION) <= 0:  # Java takes it for an empty file
        head = head[:_NEXT_ITEM_POSITION] + encode_slot(1)
    return decode_header(head, slot_count=slot_count, item_capacity=item_capacity, path=str(path))
