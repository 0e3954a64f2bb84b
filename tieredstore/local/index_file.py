"""A file of the local key index: its name, and how it is filled, searched and cut back to what was
durable.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import starmap
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.chains import ChainLayout, Links
from tieredstore.codec.java import local_slot
from tieredstore.codec.local_index import (
    HEADER_BYTES,
    ITEM_BYTES,
    ITEM_DTYPE,
    SLOT_BYTES,
    LocalIndexHeader,
    decode_header,
    decode_slot,
    encode_header,
    encode_slot,
    file_bytes,
    item_position,
    item_timestamp,
    seconds_after_begin,
)
from tieredstore.driver.durable import fsync_directory, read_all, write_all
from tieredstore.local.mapped_file import Blocks, Mapping
from tieredstore.model.errors import SegmentCorruptError, SegmentNotFoundError, StoreClosedError
from tieredstore.model.values import INT32_MAX

LAYOUT: Final = ChainLayout(header_bytes=HEADER_BYTES, slot_bytes=SLOT_BYTES, names_next=True)

CLOCK_SLACK_MS: Final = 600_000
"""How far a store timestamp may lie below an earlier one: the clock of a broker may be set back."""

# The codec checks the values it packs and unpacks: that would triple the cost of a lookup or a put.
_ITEM: Final = Struct(">iqii")
_NEXT_ITEM_POSITION: Final = 36
_BLOCK_ITEMS: Final = 1 << 18
_BLOCK_BYTES: Final = 1 << 16
_DIGITS: Final = frozenset("0123456789")
NAME_DIGITS: Final = 17


class IndexSize(NamedTuple):
    """The sizes that shape every index file of a store; no file contains them."""

    slot_count: int
    item_capacity: int

    @property
    def file_bytes(self) -> int:
        return file_bytes(slot_count=self.slot_count, item_capacity=self.item_capacity)

    def position(self, item: int) -> int:
        return item_position(item, slot_count=self.slot_count)


@dataclass(slots=True, kw_only=True)  # a frozen one takes three times as long to make
class ItemColumns:
    """Keys to be put, in order: one entry per key."""

    key_hashes: NDArray[np.int32]
    log_offsets: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.key_hashes)

    def part(self, start: int, stop: int | None = None) -> ItemColumns:
        where = slice(start, stop)
        return ItemColumns(
            key_hashes=self.key_hashes[where],
            log_offsets=self.log_offsets[where],
            store_timestamps=self.store_timestamps[where],
        )


class IndexFile:
    """Up to `item_capacity - 1` keys, chained by slot; the bytes are those of Java's single puts.

    One thread puts at a time; any thread may query meanwhile. A put writes items, then the header,
    then slots, so that a reader finds every key that was there when it began. The file is mapped on
    first use. A running query keeps the mapping alive, so `close` and `delete` never pull it away.
    """

    def __init__(
        self,
        path: Path,
        header: LocalIndexHeader,
        *,
        size: IndexSize,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.size = size
        self._header = header
        self._slot_blocks = Blocks(size.position(0))  # all at once: slots come in any order
        self._item_blocks = Blocks(size.file_bytes, start=size.position(0))
        self._read_only = read_only
        self._mapping: Mapping | None = None
        self._closed = False
        self._opening = threading.Lock()

    @classmethod
    def create(
        cls, path: Path, size: IndexSize, *, end_timestamp: int = 0, end_log_offset: int = 0
    ) -> IndexFile:
        """A new sparse file that continues where the one before ended; durable on return."""
        header = LocalIndexHeader(
            begin_timestamp=max(0, end_timestamp),
            end_timestamp=max(0, end_timestamp),
            begin_log_offset=max(0, end_log_offset),
            end_log_offset=max(0, end_log_offset),
        )
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o666)
        try:
            os.ftruncate(descriptor, size.file_bytes)
            write_all(descriptor, encode_header(header), 0)
            os.fsync(descriptor)
            fsync_directory(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return cls(path, header, size=size)

    @classmethod
    def open(cls, path: Path, size: IndexSize, *, read_only: bool = False) -> IndexFile:
        """An existing file. Raises SegmentCorruptError if its size or its header cannot be right.

        Another process may fill a `read_only` file meanwhile: queries see its puts.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SegmentNotFoundError(str(path)) from error
        try:
            held = os.fstat(descriptor).st_size
            head = read_all(descriptor, HEADER_BYTES, 0)
        finally:
            os.close(descriptor)
        wanted = size.file_bytes
        if held != wanted:
            slots, items = size
            reason = f"{held} bytes, but {slots} slots and {items} items are {wanted}"
            raise SegmentCorruptError(str(path), reason, position=min(held, wanted))
        return cls(path, _decoded(path, head, size), size=size, read_only=read_only)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def header(self) -> LocalIndexHeader:
        return self._header

    @property
    def is_full(self) -> bool:
        return self._header.next_item >= self.size.item_capacity

    @property
    def is_closed(self) -> bool:
        return self._closed

    def put(self, columns: ItemColumns) -> int:
        """Put keys, from the first on, until the file is full; return how many were put."""
        header = self._header
        count = min(len(columns), self.size.item_capacity - header.next_item)
        if count <= 0:
            return 0
        if count < len(columns):
            columns = columns.part(0, count)
        mapping = self._mapping or self._open()
        data = mapping.map
        linked = link_items(data, header, columns, slot_count=self.size.slot_count)
        start = self.size.position(header.next_item)
        end = start + len(linked.items)
        self._slot_blocks.reserve(mapping.descriptor, 0, self.size.position(0), str(self.path))
        self._item_blocks.reserve(mapping.descriptor, start, end, str(self.path))
        data[start:end] = linked.items
        # In one copy: `pack_into` writes byte by byte, so a kill could leave half a number.
        data[:HEADER_BYTES] = encode_header(linked.header)
        self._header = linked.header
        try:
            LAYOUT.store_heads(data, linked.links, slot_count=self.size.slot_count)
        except BaseException:  # the keys count as known now: nobody puts them again
            LAYOUT.store_heads(data, linked.links, slot_count=self.size.slot_count)
            raise
        return count

    def log_offset_at(self, item: int) -> int:
        """The log offset of an existing item."""
        return self._item(self._mapped(), item)[1]

    def timestamp_at(self, item: int) -> int:
        """When an item's message was stored: up to 999 ms too early, exact for the first item."""
        begin = self._header.begin_timestamp
        seconds = self._item(self._mapped(), item)[2]
        return begin if item == 1 else item_timestamp(seconds, begin_timestamp=begin)

    def count_at_end(self, log_offset: int) -> int:
        """How many of the last items carry this log offset."""
        item = self._header.item_count
        count = 0
        while item > 0 and self.log_offset_at(item) == log_offset:
            count += 1
            item -= 1
        return count

    def may_hold(self, begin: int, end: int) -> bool:
        """False only if no message of this file was stored between `begin` and `end`."""
        first, last = self._header.begin_timestamp, self._header.end_timestamp
        return first <= 0 or (first - CLOCK_SLACK_MS <= end and begin <= last + CLOCK_SLACK_MS)

    def candidates(self, key_hash: int, *, begin: int, end: int) -> Iterator[int]:
        """Every log offset that may match, newest first. None is missed; some do not match.

        The caller reads the message and compares keys and time. Empty once the file is closed.

        An item stands for the second that starts at its time. An item of 0 seconds also stands for
        all times before the file's begin, which are stored as 0. The first item was stored exactly
        at the file's begin, whatever it says. The search ends at a time below `begin` by more than
        the slack.

        Nothing in the file carries a checksum. Raises SegmentCorruptError if the chain shows
        damage: a link that does not lead to an older item, an item of another slot, a negative
        time, a log offset outside the header's range. Older items in the chain cannot be found
        then.
        """
        try:
            data = self._mapped()
        except StoreClosedError:  # the file expired since the search began
            return iter(())
        slot = local_slot(key_hash, self.size.slot_count)
        item = LAYOUT.head(data, slot)
        if self._read_only:  # read the header after the slot, so that it counts the slot's item
            self._header = _decoded(self.path, data[:HEADER_BYTES], self.size)
        return self._walk(data, self._header, slot, item, key_hash, begin, end)

    def _walk(
        self,
        data: mmap,
        header: LocalIndexHeader,
        slot: int,
        item: int,
        key_hash: int,
        begin: int,
        end: int,
    ) -> Iterator[int]:
        file_begin = header.begin_timestamp
        first, last = header.begin_log_offset, header.end_log_offset
        if not 0 <= item < header.next_item:
            at = HEADER_BYTES + SLOT_BYTES * slot
            raise SegmentCorruptError(str(self.path), f"a slot names item {item}", position=at)
        base = self.size.position(0)
        while item:
            stored, log_offset, seconds, previous = _ITEM.unpack_from(
                data, base + ITEM_BYTES * item
            )
            if stored < 0 or local_slot(stored, self.size.slot_count) != slot:
                raise self._damage(item, "is not of the slot that leads to it")
            if seconds < 0 or not first <= log_offset <= last or not 0 <= previous <= item:
                raise self._damage(item, "says something impossible")
            earliest = latest = file_begin
            if item > 1:
                earliest = file_begin + 1000 * seconds
                latest = earliest + 999
                if seconds == 0:
                    earliest -= CLOCK_SLACK_MS
                elif seconds == INT32_MAX:
                    latest = max(latest, end)
            if file_begin <= 0:  # the file has no times
                earliest, latest = begin, end
            if stored == key_hash and latest >= begin and earliest <= end:
                yield log_offset
            if previous == item or latest + CLOCK_SLACK_MS < begin:
                return
            item = previous

    def _damage(self, item: int, reason: str) -> SegmentCorruptError:
        at = self.size.position(item)
        return SegmentCorruptError(str(self.path), f"item {item} {reason}", position=at)

    def _item(self, data: mmap, item: int) -> tuple[int, int, int, int]:
        """Key hash, log offset, seconds, previous item."""
        fields: tuple[int, int, int, int] = _ITEM.unpack_from(data, self.size.position(item))
        return fields

    def flush(self) -> None:
        """Make everything put so far durable; other threads go on meanwhile."""
        mapping = self._mapping  # keeps the descriptor open
        if mapping is not None:
            os.fdatasync(mapping.descriptor)

    def close(self) -> None:
        """Release the mapping, which lives as long as a query uses it. Idempotent; no flush."""
        with self._opening:
            self._closed = True
            self._mapping = None

    def delete(self) -> None:
        """Close and remove the file. Idempotent."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _mapped(self) -> mmap:
        return (self._mapping or self._open()).map

    def _open(self) -> Mapping:
        with self._opening:
            if self._closed:
                raise StoreClosedError(f"{self.path}: the index file is closed")
            if self._mapping is None:
                self._mapping = Mapping.open(
                    str(self.path), self.size.file_bytes, read_only=self._read_only
                )
            return self._mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCut:
    """How much of a file stays, and its new end in the header."""

    item_count: int
    end_timestamp: int


def items_below(file: IndexFile, log_offset: int) -> int:
    """How many items lie below a log offset; items are in the order of the log."""
    numbers = range(1, file.header.next_item)
    return bisect_left(numbers, log_offset, key=file.log_offset_at)


def cut_back(path: Path, cut: IndexCut, size: IndexSize) -> IndexFile:
    """Durably keep the first items, at least one, and drop the rest: restores the bytes of that
    moment.

    Items are written once, so items that were durable at that moment still are. Slots and header
    are rewritten all the time, so what a crash left of them is useless: they are rebuilt from the
    items. May be repeated after an interruption. Raises SegmentCorruptError, without changing the
    file, if the kept items cannot be right.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        held = os.fstat(descriptor).st_size
        shortest = size.position(cut.item_count + 1)  # left by an interrupted call
        most = size.item_capacity - 1
        if held not in (size.file_bytes, shortest) or not 0 < cut.item_count <= most:
            reason = f"{held} bytes of {size.file_bytes}, {cut.item_count} items of {most}"
            raise SegmentCorruptError(str(path), reason, position=0)
        begin_timestamp = int.from_bytes(read_all(descriptor, 8, 0), signed=True)
        slots, first, last = _read_items(descriptor, path, cut.item_count, size)
        os.ftruncate(descriptor, shortest)
        os.ftruncate(descriptor, size.file_bytes)
        _store_slots(descriptor, size.file_bytes, slots)
        header = LocalIndexHeader(
            begin_timestamp=begin_timestamp,
            end_timestamp=cut.end_timestamp,
            begin_log_offset=first,
            end_log_offset=last,
            used_slot_count=int(np.count_nonzero(slots)),
            next_item=cut.item_count + 1,
        )
        write_all(descriptor, encode_header(header), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return IndexFile(path, header, size=size)


def _read_items(
    descriptor: int, path: Path, item_count: int, size: IndexSize
) -> tuple[NDArray[np.int32], int, int]:
    """The slots that follow from the items, and the first and last log offset."""
    slots = np.zeros(size.slot_count, ">i4")
    first = last = -1
    for start in range(1, item_count + 1, _BLOCK_ITEMS):
        count = min(_BLOCK_ITEMS, item_count + 1 - start)
        position = size.position(start)
        items = np.frombuffer(read_all(descriptor, count * ITEM_BYTES, position), ITEM_DTYPE)
        log_offsets = items["log_offset"].astype(np.int64)
        numbers = np.arange(start, start + count)
        wrong = (items["key_hash"] < 0) | (items["seconds"] < 0) | (items["previous"] < 0)
        wrong |= items["previous"] >= numbers
        wrong |= np.diff(log_offsets, prepend=max(last, 0)) < 0
        if wrong.any():
            at = position + ITEM_BYTES * int(wrong.argmax())
            raise SegmentCorruptError(str(path), "an index item cannot be right", position=at)
        # if several items have the same slot, the last one stays, which is the newest
        slots[items["key_hash"].astype(np.int64) % size.slot_count] = numbers
        first = int(log_offsets[0]) if start == 1 else first
        last = int(log_offsets[-1])
    return slots, first, last


def _store_slots(descriptor: int, held: int, slots: NDArray[np.int32]) -> None:
    """Write only what differs, so that a sparse file stays sparse."""
    wanted = slots.tobytes()
    with mmap(descriptor, held, access=ACCESS_READ) as data:
        for start in range(0, len(wanted), _BLOCK_BYTES):
            block = wanted[start : start + _BLOCK_BYTES]
            at = HEADER_BYTES + start
            if data[at : at + len(block)] != block:
                write_all(descriptor, block, at)  # through the map, a full disk would kill us


def is_index_name(name: str) -> bool:
    """Whether this is the name of an index file. Java skips every other name, and so do we."""
    return bool(name) and _DIGITS.issuperset(name)


def index_names(directory: Path) -> list[str]:
    """The names of the index files in a directory, oldest first; none if it does not exist."""
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if is_index_name(path.name))


def next_index_name(now_ms: int, *, newest: str) -> str:
    """The name for this moment or, if `newest` is not less, the next name after it.

    If two names were equal, Java would open the same file again; and it fills the file with the
    greatest name. It names its own after the local time: one of a greater time, such as UTC in
    America, would stay the greatest for hours.
    """
    moment = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone()
    name = f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}".zfill(NAME_DIGITS)
    if name > newest:
        return name
    number = int(newest.ljust(NAME_DIGITS, "0")) + 1
    name = str(number).zfill(len(newest))
    if name <= newest:
        raise ValueError(f"no name of an index file follows {newest}")
    return name


class LinkedItems(NamedTuple):
    """What a batch changes in a file; items are written first, then the header, then the slots."""

    items: memoryview | bytes
    links: Links
    header: LocalIndexHeader


def link_items(
    data: mmap, header: LocalIndexHeader, columns: ItemColumns, *, slot_count: int
) -> LinkedItems:
    """Chain the items to each other and to those of the file; gives the bytes of single puts."""
    slots = columns.key_hashes % np.int32(slot_count)
    links = LAYOUT.link(data, slots, first_item=header.next_item, slot_count=slot_count)
    log_offsets, timestamps = columns.log_offsets, columns.store_timestamps
    is_first = header.next_item <= 1
    linked = LocalIndexHeader(
        begin_timestamp=int(timestamps[0]) if is_first else header.begin_timestamp,
        end_timestamp=int(timestamps[-1]),
        begin_log_offset=int(log_offsets[0]) if is_first else header.begin_log_offset,
        end_log_offset=int(log_offsets[-1]),
        used_slot_count=header.used_slot_count + links.fresh,
        next_item=header.next_item + len(columns),
    )
    seconds_of = _seconds_of_few if isinstance(links.previous, list) else _seconds_of_many
    seconds = seconds_of(timestamps, linked.begin_timestamp)
    if is_first:  # the first item of a rolled file counts from the end of the previous file
        first = linked.begin_timestamp
        seconds[0] = seconds_after_begin(first, begin_timestamp=header.begin_timestamp)
    if isinstance(links.previous, list):
        key_hashes = columns.key_hashes.tolist()
        rows = zip(key_hashes, log_offsets.tolist(), seconds, links.previous, strict=True)
        return LinkedItems(b"".join(starmap(_ITEM.pack, rows)), links, linked)
    items = np.empty(len(columns), ITEM_DTYPE)
    items["key_hash"] = columns.key_hashes
    items["log_offset"] = log_offsets
    items["seconds"] = seconds
    items["previous"] = links.previous
    return LinkedItems(items.view(np.uint8).data, links, linked)


def _seconds_of_few(timestamps: NDArray[np.int64], begin: int) -> list[int]:
    return [seconds_after_begin(time, begin_timestamp=begin) for time in timestamps.tolist()]


def _seconds_of_many(timestamps: NDArray[np.int64], begin: int) -> NDArray[np.int64]:
    if begin <= 0:
        return np.zeros(len(timestamps), np.int64)
    after = np.maximum(timestamps, begin) - begin
    seconds: NDArray[np.int64] = np.minimum(after // 1000, INT32_MAX)
    return seconds


def _decoded(path: Path, head: bytes, size: IndexSize) -> LocalIndexHeader:
    if decode_slot(head, _NEXT_ITEM_POSITION) <= 0:  # an empty file to Java
        head = head[:_NEXT_ITEM_POSITION] + encode_slot(1)
    slot_count, item_capacity = size
    return decode_header(head, slot_count=slot_count, item_capacity=item_capacity, path=str(path))
