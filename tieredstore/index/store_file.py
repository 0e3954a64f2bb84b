"""One file of the key index as it fills: mapped, on the broker's own disk.

What lives here: `IndexStoreFile`. How items are chained is in `item_chain`, how a file is checked
in `file_check`, what it becomes in `compaction`. Which file is filled or asked is decided above.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import tiered_probes
from tieredstore.codec.tiered_index import (
    ITEM_BYTES,
    TieredIndexHeader,
    encode_header,
    item_position,
    item_timestamp,
)
from tieredstore.driver.durable import fsync_directory
from tieredstore.index.file_check import items_of
from tieredstore.index.file_mending import FileSizes, FileState, mend, read_state, write_state
from tieredstore.index.item_chain import LinkedItems, link_items, read_head, store_slots, walk
from tieredstore.index.key_notes import KeyNotes, notes_path
from tieredstore.index.mapped_index import MappedIndex
from tieredstore.index.put_order import PutOrder
from tieredstore.index.rows import FoundItem, IndexColumns, TimeRange, seconds_window
from tieredstore.model.errors import BackendRefusedError, SegmentCorruptError, SegmentSealedError


class IndexStoreFile:
    """Up to `item_capacity - 1` keys, chained by slot; the bytes are those of Java's single puts.

    * One thread puts at a time; any thread may query meanwhile and finds every key that was there
      when it began.
    * What was put survives the process at once, and the machine after `flush`.
    * No block is written through the map before it has its place on the disk: a full disk is an
      error of `put`, which then has changed nothing that counts.
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
        self._order = PutOrder()
        self._sealed = mapped.read_only

    @classmethod
    def create(
        cls, folder: Path, begin_timestamp: int, *, slot_count: int, item_capacity: int
    ) -> IndexStoreFile:
        """A new sparse file; durable with both names when this returns, else not there."""
        path = folder / str(begin_timestamp)
        mapped = MappedIndex.create(
            path,
            encode_header(TieredIndexHeader(begin_timestamp=begin_timestamp)),
            slot_count=slot_count,
            item_capacity=item_capacity,
            allocated=item_position(1, slot_count=slot_count),
        )
        try:
            notes = KeyNotes.create(notes_path(path), begin_timestamp=begin_timestamp)
            fsync_directory(folder)
        except OSError as error:
            mapped.close()
            path.unlink(missing_ok=True)
            raise BackendRefusedError(str(path), "create", str(error)) from error
        return cls(mapped, notes, _sizes(path, slot_count, item_capacity))

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
        """A file that is there, examined and mended: a put that was cut short is linked again.

        Only the first `item_count` items are kept if that is given: what was durable at the last
        `flush`. One that is `read_only` is not examined; another process may fill it meanwhile.
        InvalidConfigError where it has the size of other settings, SegmentCorruptError where it
        cannot be mended: then it has to be made again.
        """
        sizes = _sizes(path, slot_count, item_capacity)
        mapped = MappedIndex.open(
            path, slot_count=slot_count, item_capacity=item_capacity, read_only=read_only
        )
        begin, notes = sizes.begin_timestamp, None
        try:
            notes = KeyNotes.open(notes_path(path), begin_timestamp=begin, read_only=read_only)
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

    def _mend(self, item_count: int | None) -> None:
        data = self._mapped.data
        held = read_state(data, self.sizes).item_count
        try:
            self._mapped.allocate(item_position(held + 1, slot_count=self.slot_count))
            self.state = mend(data, self.sizes, self.notes, item_count)
            if self.notes is None and not self.state.item_count:
                path, begin = notes_path(self.path), self.begin_timestamp
                self.notes = KeyNotes.create(path, begin_timestamp=begin)
        except OSError as error:
            raise BackendRefusedError(str(self.path), "open", str(error)) from error

    @property
    def item_count(self) -> int:
        return self.state.item_count

    @property
    def end_timestamp(self) -> int:
        return self.state.end_timestamp

    @property
    def times(self) -> TimeRange | None:
        """Between which times the messages were stored; None if there are none or nobody knows."""
        return self.state.times

    @property
    def is_sealed(self) -> bool:
        return self._sealed

    @property
    def has_failed(self) -> bool:
        """Whether a flush failed: nobody knows what of it is on the disk."""
        return self._mapped.has_failed or (self.notes is not None and self.notes.has_failed)

    @property
    def room(self) -> int:
        """How many keys fit."""
        return 0 if self._sealed else self.sizes.item_capacity - 1 - self.item_count

    def messages_that_fit(self, key_counts: NDArray[np.int64]) -> int:
        """How many messages with so many keys each fit, from the first on: none is ever parted.

        One that has more keys than an empty file has room never fits.
        """
        return int(np.searchsorted(np.cumsum(key_counts), self.room, side="right"))

    def put(self, columns: IndexColumns) -> None:
        """Put all of these keys; SegmentSealedError, and nothing is put, where they do not fit."""
        count = len(columns)
        if count > self.room:
            raise SegmentSealedError(str(self.path))
        if not count:
            return
        if columns.message_bytes.min() <= 0:
            raise ValueError("message_bytes: a message has at least one byte")
        data = self._mapped.data
        first = self.item_count + 1
        start = item_position(first, slot_count=self.slot_count)
        times = columns.times(self.begin_timestamp)
        linked = link_items(
            data,
            columns,
            first_item=first,
            begin_timestamp=self.begin_timestamp,
            slot_count=self.slot_count,
        )
        try:
            self._mapped.allocate(start + ITEM_BYTES * count)
            if self.notes is not None:
                self.notes.put(columns.key_hashes, times, first_item=first)
        except OSError as error:
            raise BackendRefusedError(str(self.path), "put", str(error)) from error
        self._store(data, linked, start, int(columns.store_timestamps.max()), times)

    def _store(
        self, data: mmap, linked: LinkedItems, start: int, last: int, times: TimeRange
    ) -> None:
        data[start : start + len(linked.items)] = linked.items
        held = self.state.times
        state = FileState(
            end_timestamp=max(self.state.end_timestamp, last),
            used_slot_count=self.state.used_slot_count + linked.used_slots,
            item_count=self.state.item_count + len(linked.items) // ITEM_BYTES,
            times=times if held is None else held.joined(times),
        )
        self.state = state
        write_state(data, state, self.sizes)
        store_slots(data, linked, slot_count=self.slot_count)

    def find(self, text: str, *, begin: int, end: int, count_max: int) -> list[FoundItem]:
        """Items that may be of this `topic#key`, newest first, about within begin to end."""
        found: list[FoundItem] = []
        if count_max <= 0 or begin > end:
            return found
        for item in self.matches(text, begin=begin, end=end):
            found.append(item)
            if len(found) >= count_max:
                break
        return found

    def matches(self, text: str, *, begin: int, end: int) -> Iterator[FoundItem]:
        """The same without a limit, as it is found."""
        data = self._mapped.data
        window = seconds_window(begin, end, begin_timestamp=self.begin_timestamp)
        probes = tiered_probes(text, self.slot_count)
        walks = [self._walk(data, slot, key_hash, window) for key_hash, slot in probes]
        rows = walks[0] if len(walks) == 1 else merge(*walks, reverse=True)
        origin = self.begin_timestamp
        for _, (_, topic_id, queue_id, log_offset, message_bytes, seconds, _) in rows:
            time = item_timestamp(seconds, begin_timestamp=origin)
            yield FoundItem(topic_id, queue_id, log_offset, message_bytes, time)

    def _walk(
        self, data: mmap, slot: int, key_hash: int, window: tuple[int, int]
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        head = read_head(data, slot)
        if self._mapped.read_only:  # another process may fill it: the slot was read first
            self.state = read_state(data, self.sizes)
        return walk(
            data,
            head,
            item_count=self.item_count,
            slot_count=self.slot_count,
            key_hash=key_hash,
            window=window,
            path=str(self.path),
        )

    def header(self) -> TieredIndexHeader:
        return self.state.header(self.begin_timestamp)

    def items(self) -> NDArray[Any]:
        """All items from the oldest on, in place: they stay as long as the array does."""
        data = self._mapped.data
        return items_of(data, slot_count=self.slot_count, item_count=self.item_count)

    def lateness(self) -> int:
        """No item is more seconds older than one that was put before it."""
        self._order = order = self._order.with_items(self.items())
        return order.lateness

    def seal(self) -> None:
        """Take no more keys."""
        self._sealed = True

    def flush(self) -> int:
        """Make every put so far durable; how many items that is, as `open` may be told later.

        One that failed fails for ever: the kernel drops the pages that it could not write.
        """
        count = self.item_count
        try:
            if self.notes is not None:
                self.notes.sync()
            self._mapped.sync()
        except OSError as error:
            raise BackendRefusedError(str(self.path), "flush", str(error)) from error
        return count

    def close(self) -> None:
        """Let go of the files; does not flush. Idempotent."""
        self._sealed = True
        self._mapped.close()
        if self.notes is not None:
            self.notes.close()

    def delete(self) -> None:
        """Close and remove the files. Idempotent."""
        self.close()
        self.path.unlink(missing_ok=True)
        notes_path(self.path).unlink(missing_ok=True)


def _sizes(path: Path, slot_count: int, item_capacity: int) -> FileSizes:
    """With the begin timestamp that the file is named by."""
    name = path.name
    if not (name.isascii() and name.isdigit()) or str(int(name[:20])) != name:
        raise SegmentCorruptError(str(path), "the name is no begin timestamp", position=0)
    return FileSizes(
        path=str(path),
        begin_timestamp=int(name),
        slot_count=slot_count,
        item_capacity=item_capacity,
    )
