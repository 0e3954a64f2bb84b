"""One index file on the broker's disk: mapped, filled, searched, examined and repaired.

Items are written once, in order; slots and header are rewritten all the time. So after a crash,
slots and header are not trusted but rebuilt from the items.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge
from mmap import ACCESS_READ, ACCESS_WRITE, MADV_DONTNEED, PAGESIZE, mmap
from pathlib import Path
from struct import Struct
from typing import Any, Final

import numpy as np
from google_crc32c import extend
from numpy.typing import NDArray

from tieredstore.codec.chains import ChainLayout, Links
from tieredstore.codec.java import INT32_MIN, tiered_probes
from tieredstore.codec.key_hashes import item_places, slots_of
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    END_MAGIC,
    HEADER_BYTES,
    ITEM_BYTES,
    SLOT_BYTES,
    TieredIndexHeader,
    decode_header,
    encode_header,
    file_bytes,
    item_position,
    item_timestamp,
    seconds_after_begin_many,
    view_items,
)
from tieredstore.driver.durable import fsync_directory, write_all
from tieredstore.index.keys import (
    SECOND_SLACK_MS,
    IndexColumns,
    KeyNotes,
    Match,
    SyncedFile,
    TimeDisorder,
    TimeRange,
    notes_path,
    seconds_window,
    times_of_seconds,
)
from tieredstore.model.errors import (
    InvalidConfigError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
    refused_by_system,
)
from tieredstore.model.values import INT32_MAX

LAYOUT: Final = ChainLayout(header_bytes=HEADER_BYTES, slot_bytes=SLOT_BYTES)
_BLOCK_ITEMS: Final = 1 << 19
_SECTOR_BYTES: Final = 512  # a disk writes all of a sector or nothing
# The last bytes of an item, `seconds` and `previous`: if both are lost, no other field shows it.
_PLAIN_END_BYTES: Final = 8
# The codec checks what it packs and unpacks, which would triple the cost of a lookup or a put.
_HEADER: Final = Struct(">iqqii")
_ITEM: Final = Struct(">iiiqiii")
ALLOCATED_BYTES: Final = 8 << 20
_SUMMED_ITEMS: Final = 1 << 17


class IndexStoreFile:
    """Up to `item_capacity - 1` keys, chained by slot; the bytes are those of Java's single puts.

    * One thread puts at a time; any thread may query meanwhile, and finds every key that was there
      when it began.
    * Items survive the end of the process at once, and a crash of the machine after `flush`.
    * No block is written through the map before it is allocated on the disk: if the disk is full,
      `put` raises an error and has changed nothing that counts.
    * `close` and `delete` never pull the map away from a query or a compaction under way.
    """

    def __init__(self, mapped: MappedIndex, notes: KeyNotes | None, sizes: FileSizes) -> None:
        self.path = mapped.path
        self.sizes = sizes
        self.begin_timestamp = sizes.begin_timestamp
        self.slot_count = sizes.slot_count
        self.notes = notes
        self.state = FileState()
        self._mapped = mapped
        self._disorder = TimeDisorder()
        self._sealed = mapped.read_only
        self._heads: NDArray[np.int32] | None = None  # used instead of the slots if given

    @classmethod
    def create(
        cls, folder: Path, begin_timestamp: int, *, slot_count: int, item_capacity: int
    ) -> IndexStoreFile:
        """Make a new sparse file and its notes. Both are durable when this returns; if it raises,
        the file does not exist. The notes come first: without them it would be taken for another
        program's, after a crash in between."""
        path = folder / str(begin_timestamp)
        sizes = FileSizes.of(path, slot_count, item_capacity)
        with refused_by_system(str(path), "create"):
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            notes = KeyNotes.create(notes_path(path), begin_timestamp=begin_timestamp)
            try:
                fsync_directory(folder)
                mapped = MappedIndex.create(sizes)
            except BaseException:
                notes.close()
                notes_path(path).unlink(missing_ok=True)
                raise
        return cls(mapped, notes, sizes)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        slot_count: int,
        item_capacity: int,
        item_count: int | None = None,
        read_only: bool = False,
    ) -> IndexStoreFile:
        """Open an existing file, examine and mend it: a put that was cut short is linked again.

        If `item_count` is given, only that many items are kept: those durable at the last `flush`.
        A `read_only` file is not examined; another process may be filling it.
        InvalidConfigError if it has the size of other settings, SegmentCorruptError if it cannot
        be mended: then it has to be made again.
        """
        sizes = FileSizes.of(path, slot_count, item_capacity)
        mapped = MappedIndex.open(sizes, read_only=read_only)
        begin, notes = sizes.begin_timestamp, None
        try:
            beside = notes_path(path)
            with refused_by_system(str(beside), "open"):
                notes = KeyNotes.open(beside, begin_timestamp=begin, read_only=read_only)
            file = cls(mapped, notes, sizes)
            if read_only:
                file.state = read_state(mapped.data, sizes)
            else:
                file._mend(item_count)
        except BaseException:
            mapped.close()
            if notes is not None:
                notes.close()
            raise
        return file

    def leave_out_torn(self, durable_count: int) -> bool:
        """Whether everything after the durable items is whole. If not, only the durable ones count
        here: this file is read only, and the broker mends it when it starts after a power cut."""
        data, sizes = self._mapped.data, self.sizes
        try:
            examine_tail(data, sizes, durable_count, self.item_count)
        except SegmentCorruptError:
            self._heads = examine(data, sizes, durable_count).heads
            self.state = replace(self.state, item_count=durable_count)
            return False
        return True

    def _mend(self, item_count: int | None) -> None:
        data = self._mapped.data
        held = read_state(data, self.sizes).item_count
        with refused_by_system(str(self.path), "open"):
            self._mapped.allocate(self.sizes.position(held + 1))
            self.state = mend(data, self.sizes, self.notes, item_count)
            if self.notes is None and not self.state.item_count:
                path, begin = notes_path(self.path), self.begin_timestamp
                self.notes = KeyNotes.create(path, begin_timestamp=begin)

    @property
    def item_count(self) -> int:
        return self.state.item_count

    @property
    def end_timestamp(self) -> int:
        return self.state.end_timestamp

    @property
    def times(self) -> TimeRange | None:
        """Between which times the messages were stored; None if there are none or it is unknown."""
        return self.state.times

    @property
    def has_failed(self) -> bool:
        """Whether a flush failed: then it is unknown what is on the disk."""
        return self._mapped.has_failed or (self.notes is not None and self.notes.has_failed)

    @property
    def room(self) -> int:
        """How many more keys fit."""
        return 0 if self._sealed else self.sizes.item_capacity - 1 - self.item_count

    def messages_that_fit(self, key_counts: NDArray[np.int64]) -> int:
        """How many of the first messages fit, given their numbers of keys: no message is split.

        A message with more keys than an empty file has room for never fits.
        """
        return int(np.searchsorted(np.cumsum(key_counts), self.room, side="right"))

    def put(self, columns: IndexColumns) -> None:
        """Put all of these keys, or none: SegmentSealedError if they do not fit."""
        count = len(columns)
        if count > self.room:
            raise SegmentSealedError(str(self.path))
        if not count:
            return
        if columns.message_bytes.min() <= 0:
            raise ValueError("message_bytes: a message has at least one byte")
        data = self._mapped.data
        first = self.item_count + 1
        start = self.sizes.position(first)
        times = columns.times(self.begin_timestamp)
        items, links = link_items(data, columns, self.sizes, first_item=first)
        with refused_by_system(str(self.path), "put"):
            self._mapped.allocate(start + len(items))
            if self.notes is not None:
                self.notes.put(columns.key_hashes, times, first_item=first)
        data[start : start + len(items)] = items
        held = self.state.times
        self.state = FileState(
            end_timestamp=max(self.state.end_timestamp, int(columns.store_timestamps.max())),
            used_slot_count=self.state.used_slot_count + links.fresh,
            item_count=self.state.item_count + count,
            times=times if held is None else held.joined(times),
        )
        write_state(data, self.state, self.sizes)
        LAYOUT.store_heads(data, links, slot_count=self.slot_count)

    def find(self, text: str, *, begin: int, end: int, count_max: int) -> list[Match]:
        """Items that may have this `topic#key`, newest first, about within begin to end."""
        found: list[Match] = []
        if count_max <= 0 or begin > end:
            return found
        for item in self.matches(text, begin=begin, end=end):
            found.append(item)
            if len(found) >= count_max:
                break
        return found

    def matches(self, text: str, *, begin: int, end: int) -> Iterator[Match]:
        """The same without a limit, one item at a time."""
        data = self._mapped.data
        window = seconds_window(begin, end, begin_timestamp=self.begin_timestamp)
        probes = tiered_probes(text, self.slot_count)
        walks = [self._walk(data, slot, key_hash, window) for key_hash, slot in probes]
        rows = walks[0] if len(walks) == 1 else merge(*walks, reverse=True)
        origin = self.begin_timestamp
        for _, (_, topic_id, queue_id, log_offset, message_bytes, seconds, _) in rows:
            time = item_timestamp(seconds, begin_timestamp=origin)
            yield Match(topic_id, queue_id, log_offset, message_bytes, time)

    def _walk(
        self, data: mmap, slot: int, key_hash: int, window: tuple[int, int]
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Numbers and fields of the items of a chain that match, newest first.

        A chain always leads to smaller numbers: one that does not is reported as damage, so no
        walk is endless.
        """
        if self._heads is not None:
            item = int(self._heads[slot])
        else:
            item = LAYOUT.head(data, slot)
            if self._mapped.read_only:  # another process may fill it: the slot was read first
                self.state = replace(read_state(data, self.sizes), times=self.times)
        first, last = window
        items = self.sizes.position(0)
        unpack = _ITEM.unpack_from
        above = min(self.item_count, INT32_MAX) + 1
        while item > 0:
            if item >= above:
                reason = f"item {item} of {self.item_count} follows item {above}"
                raise SegmentCorruptError(
                    str(self.path), reason, position=items + ITEM_BYTES * item
                )
            fields = unpack(data, items + ITEM_BYTES * item)
            if fields[0] == key_hash and first <= fields[5] <= last:
                yield item, fields
            above, item = item, fields[6]

    def header(self) -> TieredIndexHeader:
        return self.state.header(self.begin_timestamp)

    def items(self) -> NDArray[Any]:
        """All items from the oldest on, not copied: the map lives as long as the array."""
        data = self._mapped.data
        return view_items(memoryview(data), slot_count=self.slot_count, item_count=self.item_count)

    def disorder_seconds(self) -> int:
        """The most seconds by which an item is older than one put before it."""
        self._disorder = disorder = self._disorder.with_items(self.items())
        return disorder.max_seconds

    def unload_items(self) -> None:
        """Release the pages of the items from this process's memory: the system still has them."""
        self._mapped.unload(self.sizes.position(0))

    def unload(self) -> None:
        """The same, with the slots too: only for files that take no more keys, as puts would bring
        all slots back."""
        self._mapped.unload()

    def seal(self) -> None:
        """Take no more keys."""
        self._sealed = True

    def flush(self) -> int:
        """Make every put so far durable. Returns the count of items, for a later `open`.

        After one failure all later calls fail: the kernel drops the pages it could not write.
        """
        count = self.item_count
        with refused_by_system(str(self.path), "flush"):
            if self.notes is not None:
                self.notes.sync()
            self._mapped.sync()
        return count

    def close(self) -> None:
        """Release the files without a flush. Idempotent."""
        self._sealed = True
        self._mapped.close()
        if self.notes is not None:
            self.notes.close()

    def delete(self) -> None:
        """Close and remove the files, durably. Idempotent."""
        self.close()
        with refused_by_system(str(self.path), "delete"):
            remove_durably(self.path)


def remove_durably(path: Path) -> None:
    """Remove an index file durably, then its notes. If a power cut brought the file back without
    them, it would be taken for another program's, and all of it would be trusted."""
    path.unlink(missing_ok=True)
    fsync_directory(path.parent)
    notes_path(path).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsChecksum:
    """CRC32C of the first items and of the hashes next to them, which never change once put."""

    item_count: int = 0
    items: int = 0
    hashes: int = 0

    def with_more(self, file: IndexStoreFile, item_count: int) -> ItemsChecksum:
        """The checksums of the first `item_count` items of the file, continued from these.

        BackendRefusedError if the hashes cannot be read.
        """
        known, items, hashes = self.item_count, self.items, self.hashes
        rows = file.items()[:item_count]
        for start in range(known, item_count, _SUMMED_ITEMS):
            items = extend(items, rows[start : start + _SUMMED_ITEMS].view(np.uint8).tobytes())
        if file.notes is not None:
            with refused_by_system(str(file.notes.path), "read"):
                for block in file.notes.blocks(item_count, after=known):
                    hashes = extend(hashes, block.astype("<u8", copy=False).tobytes())
        return ItemsChecksum(item_count=item_count, items=items, hashes=hashes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """What never changes about a file; `begin_timestamp` comes from its name."""

    path: str
    begin_timestamp: int
    slot_count: int
    item_capacity: int

    @classmethod
    def of(cls, path: Path, slot_count: int, item_capacity: int) -> FileSizes:
        """The sizes, with the begin timestamp that the file is named by."""
        if not is_begin(path.name):
            raise SegmentCorruptError(str(path), "the name is no begin timestamp", position=0)
        return cls(
            path=str(path),
            begin_timestamp=int(path.name),
            slot_count=slot_count,
            item_capacity=item_capacity,
        )

    @property
    def file_bytes(self) -> int:
        return file_bytes(slot_count=self.slot_count, item_capacity=self.item_capacity)

    def position(self, item: int) -> int:
        """The position of an item; the first one has number 1."""
        return item_position(item, slot_count=self.slot_count)

    def check(self, held: int) -> None:
        """InvalidConfigError if the file has another length: that of other settings."""
        if held != self.file_bytes:
            raise InvalidConfigError(
                f"{self.path} has {held} bytes, but index_slot_count {self.slot_count} and "
                f"index_item_count {self.item_capacity} make {self.file_bytes}: they must never "
                "change"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """What every put changes. `times` is None without items, or if the times are unknown."""

    end_timestamp: int = 0
    used_slot_count: int = 0
    item_count: int = 0
    times: TimeRange | None = None

    def header(self, begin_timestamp: int) -> TieredIndexHeader:
        return TieredIndexHeader(
            begin_timestamp=begin_timestamp,
            end_timestamp=self.end_timestamp,
            used_slot_count=self.used_slot_count,
            item_count=self.item_count,
        )


def is_begin(name: str) -> bool:
    """Whether the name of a file is a begin timestamp, as that of an index file is."""
    return name.isascii() and name.isdigit() and str(int(name[:20])) == name


class MappedIndex(SyncedFile):
    """A file of fixed size, mapped as a whole; its blocks are allocated before they are used.

    After `close`, the map lives as long as the last view of it, so no reader is cut off.
    """

    def __init__(self, path: Path, descriptor: int, data: mmap, *, read_only: bool) -> None:
        super().__init__(path, descriptor)
        self.read_only = read_only
        self._data: mmap | None = data
        self._allocated = 0

    @classmethod
    def create(cls, sizes: FileSizes) -> MappedIndex:
        """Make a new sparse file with a header. It is durable when this returns; if this raises,
        it does not exist."""
        path = Path(sizes.path)
        header = encode_header(TieredIndexHeader(begin_timestamp=sizes.begin_timestamp))
        with refused_by_system(sizes.path, "create"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(descriptor, sizes.file_bytes)
                write_all(descriptor, header, 0)
                data = mmap(descriptor, sizes.file_bytes)
                created = cls(path, descriptor, data, read_only=False)
                created.allocate(sizes.position(1))
                os.fsync(descriptor)
                fsync_directory(path.parent)
            except BaseException:
                path.unlink(missing_ok=True)
                os.close(descriptor)
                raise
        return created

    @classmethod
    def open(cls, sizes: FileSizes, *, read_only: bool) -> MappedIndex:
        """Open an existing file. InvalidConfigError if it has the size of other settings."""
        path = Path(sizes.path)
        with refused_by_system(sizes.path, "open"):
            try:
                flags = os.O_RDONLY if read_only else os.O_RDWR
                descriptor = os.open(path, flags | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise SegmentNotFoundError(sizes.path) from error
        try:
            held = os.fstat(descriptor).st_size
            if held == 0:  # a crash came before the file got its size
                raise SegmentCorruptError(sizes.path, "the file is empty", position=0)
            sizes.check(held)
            data = mmap(descriptor, held, access=ACCESS_READ if read_only else ACCESS_WRITE)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, data, read_only=read_only)

    @property
    def data(self) -> mmap:
        data = self._data
        if data is None:
            raise StoreClosedError(f"{self.path}: the index file is closed")
        return data

    def allocate(self, end: int) -> None:
        """Allocate every byte below `end` on the disk, in steps; OSError if the disk is full.

        On a full disk, a write through the map into a hole would kill the process.
        """
        if end <= self._allocated:
            return
        stop = min(len(self.data), -(-end // ALLOCATED_BYTES) * ALLOCATED_BYTES)
        os.posix_fallocate(self._descriptor, self._allocated, stop - self._allocated)
        self._allocated = stop

    def unload(self, start: int = 0) -> None:
        """Release the pages from `start` on, as they count as this process's memory: what was
        written stays, and a reader brings back what it reads."""
        data = self._data
        first = -(-start // PAGESIZE) * PAGESIZE
        if data is not None and first < len(data):
            data.madvise(MADV_DONTNEED, first)

    def close(self) -> None:
        self._data = None
        super().close()


def read_state(data: mmap, sizes: FileSizes) -> FileState:
    """What the header says; SegmentCorruptError if it cannot be right."""
    header = decode_header(
        data[:HEADER_BYTES],
        slot_count=sizes.slot_count,
        item_capacity=sizes.item_capacity - 1,
        path=sizes.path,
    )
    if header.begin_timestamp != sizes.begin_timestamp:
        reason = f"the begin timestamp is {header.begin_timestamp}"
        raise SegmentCorruptError(sizes.path, reason, position=4)
    return FileState(
        end_timestamp=header.end_timestamp,
        used_slot_count=header.used_slot_count,
        item_count=header.item_count,
    )


def write_state(data: mmap, state: FileState, sizes: FileSizes) -> None:
    magic = END_MAGIC if state.item_count + 1 == sizes.item_capacity else BEGIN_MAGIC
    begin, end = sizes.begin_timestamp, state.end_timestamp
    # In one copy: `pack_into` writes byte by byte, and a kill could leave half a number.
    data[:HEADER_BYTES] = _HEADER.pack(magic, begin, end, state.used_slot_count, state.item_count)


def mend(data: mmap, sizes: FileSizes, notes: KeyNotes | None, item_count: int | None) -> FileState:
    """Make slots and header agree with the first items; with all items if no count is given.

    This includes the end timestamp, which Java forgets when it opens a file (10656). Nothing is
    written unless something is wrong. SegmentCorruptError if the file cannot be mended.
    """
    state = read_state(data, sizes)
    count = state.item_count if item_count is None else item_count
    if count > state.item_count:
        reason = f"{state.item_count} items, but {count} were durable"
        raise SegmentCorruptError(sizes.path, reason, position=24)
    found = examine(data, sizes, count)
    heads = LAYOUT.heads(data, sizes.slot_count)
    if not np.array_equal(np.maximum(heads, 0), found.heads):
        heads[:] = found.heads
    cut = count < state.item_count
    times = _times(found, notes, cut=cut, begin=sizes.begin_timestamp)
    end = state.end_timestamp
    if times is None:
        end = 0
    elif cut or end < found.least_end or (times.exact and end != max(0, times.last)):
        end = max(0, times.last)
    mended = FileState(
        end_timestamp=end, used_slot_count=found.used_slots, item_count=count, times=times
    )
    if mended != replace(state, times=times) or _has_wrong_magic(data, count, sizes):
        write_state(data, mended, sizes)
    return mended


def _times(found: Examined, notes: KeyNotes | None, *, cut: bool, begin: int) -> TimeRange | None:
    """The exact times if they were noted, else those of the items' seconds."""
    bounds = found.times
    if bounds is None:
        if notes is not None and notes.times is not None:
            notes.forget_times()
        return None
    noted = None if notes is None else notes.times
    if noted is not None and noted.outruns_seconds(begin):  # then the items cannot say
        return replace(noted.joined(bounds), exact=False)
    if cut:
        return bounds
    if noted is None or not found.least_end <= noted.last <= bounds.last:
        return bounds
    near = bounds.first <= noted.first <= bounds.first + 2 * SECOND_SLACK_MS
    return noted if near else bounds


def _has_wrong_magic(data: mmap, item_count: int, sizes: FileSizes) -> bool:
    is_begin = int.from_bytes(data[:4], signed=True) == BEGIN_MAGIC
    return is_begin == (item_count + 1 == sizes.item_capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The newest item of each slot, how many slots have one, and the times of the items."""

    heads: NDArray[np.int32]
    used_slots: int
    least_end: int  # no smaller end timestamp can be right
    times: TimeRange | None


def examine(data: mmap, sizes: FileSizes, item_count: int) -> Examined:
    """Examine the items. SegmentCorruptError unless they are whole and form one chain per slot."""
    slot_count = sizes.slot_count
    items = view_items(
        memoryview(data), slot_count=slot_count, item_count=item_count, path=sizes.path
    )
    hashes = items["key_hash"]
    heads = np.zeros(slot_count, np.int32)
    followed = np.zeros(item_count + 1, np.bool_)
    chained = 0
    seconds: list[int] = []
    for start in range(0, item_count, _BLOCK_ITEMS):
        block = items[start : start + _BLOCK_ITEMS]
        slots, previous = _links(block, start, sizes, hashes)
        before = previous[previous > 0]
        chained += len(before)
        followed[before] = True
        # If a slot occurs more than once, the last item stays.
        heads[slots] = np.arange(start + 1, start + 1 + len(block), dtype=np.int32)
        seconds += (int(block["seconds"].min()), int(block["seconds"].max()))
    used_slots = int(np.count_nonzero(heads))
    if np.count_nonzero(followed) != chained or item_count - chained != used_slots:
        reason = "items that are in no chain or in two"
        raise SegmentCorruptError(sizes.path, reason, position=sizes.position(1))
    if not seconds:
        return Examined(heads=heads, used_slots=0, least_end=0, times=None)
    begin, greatest = sizes.begin_timestamp, max(seconds)
    return Examined(
        heads=heads,
        used_slots=used_slots,
        least_end=begin + 1000 * greatest - (SECOND_SLACK_MS if greatest <= 0 else 0),
        times=times_of_seconds(min(seconds), greatest, begin_timestamp=begin),
    )


def examine_tail(data: mmap, sizes: FileSizes, first: int, item_count: int) -> None:
    """SegmentCorruptError if a power cut may have left an item after the first ones unfinished.

    An item that lost its link to an older one would hide the rest of its slot.
    """
    items = view_items(
        memoryview(data), slot_count=sizes.slot_count, item_count=item_count, path=sizes.path
    )
    for start in range(first, item_count, _BLOCK_ITEMS):
        block = items[start : start + _BLOCK_ITEMS]
        _, previous = _links(block, start, sizes, items["key_hash"])
        ends = sizes.position(start + 2) + ITEM_BYTES * np.arange(len(block))
        behind = ends % _SECTOR_BYTES  # how much of an item lies in another sector than its begin
        is_torn = (previous == 0) & (behind > 0) & (behind <= _PLAIN_END_BYTES)
        _refuse(is_torn, start, sizes, "may lack its end")
    last = int(LAYOUT.heads(data, sizes.slot_count).max())
    if last > item_count:
        reason = f"a slot leads to item {last} of {item_count}"
        raise SegmentCorruptError(sizes.path, reason, position=HEADER_BYTES)


def _links(
    block: NDArray[Any], start: int, sizes: FileSizes, hashes: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The slots of the items, and the numbers of the items that they follow; 0 for none."""
    slots = _slots(block, start, sizes)
    numbers = np.arange(start + 1, start + 1 + len(block), dtype=np.int32)
    previous = block["previous"].astype(np.int32)
    _refuse((previous < 0) | (previous >= numbers), start, sizes, "has no older one")
    held = previous > 0
    theirs = slots_of(hashes[previous[held] - 1].astype(np.int32), sizes.slot_count)
    strange = np.zeros(len(block), np.bool_)
    strange[held] = theirs != slots[held]
    _refuse(strange, start, sizes, "follows one of another slot")
    return slots, previous


def _slots(block: NDArray[Any], start: int, sizes: FileSizes) -> NDArray[np.int32]:
    slot_count = sizes.slot_count
    hashes = block["key_hash"].astype(np.int32)
    _refuse(block["message_bytes"] <= 0, start, sizes, "is of a message without bytes")
    negative = hashes < 0
    if negative.any():
        if (INT32_MIN % slot_count) == 0:  # then Java finds a slot for this hash
            negative &= hashes != INT32_MIN
        _refuse(negative, start, sizes, "has a negative hash")
    return slots_of(hashes, slot_count)


def _refuse(wrong: NDArray[np.bool_], start: int, sizes: FileSizes, reason: str) -> None:
    if wrong.any():
        item = start + 1 + int(np.argmax(wrong))
        reason = f"item {item} {reason}"
        raise SegmentCorruptError(sizes.path, reason, position=sizes.position(item))


def link_items(
    data: mmap, columns: IndexColumns, sizes: FileSizes, *, first_item: int
) -> tuple[memoryview, Links]:
    """Link the items to each other and to the file; the bytes are those of single puts."""
    hashes, slots = item_places(columns.key_hashes, sizes.slot_count)
    links = LAYOUT.link(data, slots, first_item=first_item, slot_count=sizes.slot_count)
    words = np.empty((len(columns), ITEM_BYTES // 4), ">i4")
    put_words(words, columns, hashes, sizes.begin_timestamp)
    words[:, 7] = links.previous
    return words.reshape(-1).view(np.uint8).data, links


def put_words(
    words: NDArray[np.int32], columns: IndexColumns, hashes: NDArray[np.int32], begin: int
) -> None:
    """Fill in the first seven words of the items: those that an uploaded file has too."""
    words[:, 0] = hashes
    words[:, 1] = _wrapped(columns.topic_ids)
    words[:, 2] = columns.queue_ids
    words[:, 3] = columns.log_offsets >> 32
    words[:, 4] = columns.log_offsets.astype(np.int32)
    words[:, 5] = columns.message_bytes
    words[:, 6] = _seconds(columns.store_timestamps, begin)


def _wrapped(topic_ids: NDArray[np.int64] | int) -> NDArray[np.int32] | int:
    """The lower 32 bits of the topics' numbers."""
    if isinstance(topic_ids, int):
        return ((topic_ids & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
    return topic_ids.astype(np.int32)


def _seconds(timestamps: NDArray[np.int64], begin: int) -> NDArray[np.int64] | NDArray[np.int32]:
    least = timestamps.min()
    if least >= begin and timestamps.max() - begin <= 1000 * INT32_MAX:
        after: NDArray[np.int64] = (timestamps - begin) // 1000
        return after
    return seconds_after_begin_many(timestamps, begin_timestamp=begin)
