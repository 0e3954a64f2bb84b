"""An index file as it is uploaded: items in slot order, newest first, and then the footer.

It is made from a full file of the broker, or from keys that were never in one. It is streamed, so
it is never in memory as a whole; until it is closed, its contents are kept in unnamed files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer
from tieredstore.codec.key_hashes import Hashes, item_places
from tieredstore.codec.tiered_index import (
    COMPACTED_ITEM_BYTES,
    COMPACTED_SLOT_DTYPE,
    END_MAGIC,
    HEADER_BYTES,
    ITEM_BYTES,
    SLOT_BYTES,
    TieredIndexHeader,
    compacted_file_bytes,
    encode_header,
    slot_position,
)
from tieredstore.index.dealt_items import DealtItems, Spool
from tieredstore.index.footer import (
    UNCHECKED,
    Footer,
    Groups,
    GroupSums,
    build_filter,
    encode_fences,
    encode_tail,
    filter_block_count,
    groups_of,
)
from tieredstore.index.keys import IndexColumns, TimeDisorder, TimeRange
from tieredstore.index.local_file import IndexStoreFile, put_words
from tieredstore.model.errors import SegmentCorruptError

_READ_ITEMS: Final = 1 << 18
_READ_HASH_BYTES: Final = 1 << 22
_SLOTS_A_BLOCK: Final = 1 << 18
_WORDS: Final = COMPACTED_ITEM_BYTES // 4
_TABLE_SLOTS: Final = 1 << 17


class Compaction:
    """The upload of some keys; `blocks` and then `footer` may be called more than once.

    The bytes are Java's: each slot, even an empty one, has the position where its items are or
    would be. Without items the file is empty. It takes 36 bytes per item in `folder` (default: the
    one for temporary files), and in memory 16 bytes per slot and some hundred MB.
    """

    def __init__(
        self, begin_timestamp: int, *, slot_count: int, folder: Path | None = None
    ) -> None:
        self.begin_timestamp = begin_timestamp
        self.end_timestamp = 0
        self.slot_count = slot_count
        self._items = DealtItems(slot_count, folder)
        self._hashes: Spool | None = Spool(folder)  # None if any hash is unknown
        self._times: TimeRange | None = None
        self._disorder = TimeDisorder()
        self._starts: NDArray[np.int32] | None = None
        self._sums: GroupSums | None = None

    @classmethod
    def of_keys(
        cls, keys: Iterable[IndexColumns], begin_timestamp: int, *, slot_count: int
    ) -> Self:
        """The upload of a file that these keys would have been put into, oldest first."""
        made = cls(begin_timestamp, slot_count=slot_count)
        try:
            for columns in keys:
                made._put(columns)
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def of_file(cls, file: IndexStoreFile) -> Self:
        """The upload of a file that takes no more keys. It has a filter only if the notes beside
        the file have all its keys."""
        made = cls(file.begin_timestamp, slot_count=file.slot_count, folder=file.path.parent)
        try:
            made._put_file(file)
        except BaseException:
            made.close()
            raise
        return made

    @property
    def item_count(self) -> int:
        return self._items.item_count

    @property
    def items_position(self) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slot_count

    @property
    def end(self) -> int:
        """Where the last item ends, and the footer begins."""
        return self.items_position + COMPACTED_ITEM_BYTES * self.item_count

    def starts(self) -> NDArray[np.int32]:
        """Where the items of each slot start; and one more entry, where those of the last end."""
        if self._starts is None:
            self._starts = starts = np.zeros(self.slot_count + 1, np.int32)
            np.cumsum(self._items.counts, out=starts[1:], dtype=np.int32)
            starts *= np.int32(COMPACTED_ITEM_BYTES)
            starts += np.int32(self.items_position)
        return self._starts

    def whole(self) -> Iterator[Buffer]:
        """The file and its footer."""
        yield from self.blocks()
        yield from self.footer()

    def blocks(self) -> Iterator[Buffer]:
        """The file without its footer, in order, in blocks of at most some MiB."""
        if not self.item_count:
            return
        yield encode_header(self._header())
        starts = self.starts()
        for first in range(0, self.slot_count, _SLOTS_A_BLOCK):
            ends = starts[first : first + _SLOTS_A_BLOCK + 1]
            table = np.empty(len(ends) - 1, COMPACTED_SLOT_DTYPE)
            table["position"] = ends[:-1]
            table["items_bytes"] = np.diff(ends)
            yield table.view(np.uint8).data
        self._sums = sums = GroupSums(groups_of(starts))
        for items in self._items.blocks():
            block = items.reshape(-1).view(np.uint8).data
            sums.add(block)
            yield block

    def footer(self) -> Iterator[Buffer]:
        """The footer in order; call it after `blocks`."""
        if not self.item_count:
            return
        if self._sums is None or not self._sums.is_whole:
            raise ValueError("a footer has checksums of the blocks before it")
        assert self._times is not None  # as there are items
        count = 0
        if self._hashes is not None:
            count = filter_block_count(self.item_count)
            for blocks in build_filter(self._hash_blocks, count):
                yield blocks.reshape(-1).data
        yield from _fence_blocks(
            self._sums.groups,
            self._header(),
            self._times,
            slot_count=self.slot_count,
            filter_blocks=count,
            disorder_seconds=self._disorder.max_seconds,
            sums=self._sums.sums,
        )

    def close(self) -> None:
        """Free the disk space. Idempotent."""
        self._items.close()
        if self._hashes is not None:
            self._hashes.close()

    def _header(self) -> TieredIndexHeader:
        return TieredIndexHeader(
            magic=END_MAGIC,
            begin_timestamp=self.begin_timestamp,
            end_timestamp=self.end_timestamp,
            used_slot_count=int(np.count_nonzero(self._items.counts)),
            item_count=self.item_count,
        )

    def _put(self, columns: IndexColumns) -> None:
        times = columns.times(self.begin_timestamp)
        hashes, _ = item_places(columns.key_hashes, self.slot_count)
        self._times = times if self._times is None else self._times.joined(times)
        self.end_timestamp = max(self.end_timestamp, int(columns.store_timestamps.max()))
        words = np.empty((len(columns), _WORDS), ">i4")
        put_words(words, columns, hashes, self.begin_timestamp)
        self._add(words, columns.key_hashes)

    def _put_file(self, file: IndexStoreFile) -> None:
        items = file.items()
        if len(items) and file.times is None:
            raise SegmentCorruptError(str(file.path), "items without times", position=0)
        self._times, self.end_timestamp = file.times, file.end_timestamp
        for start in range(0, len(items), _READ_ITEMS):
            rows = items[start : start + _READ_ITEMS]
            words = rows.view(">i4").reshape(-1, ITEM_BYTES // 4)[:, :_WORDS]
            self._add(words, self._noted(file, rows, start))
            file.unload_items()

    def _add(self, words: NDArray[np.int32], hashes: Hashes | None) -> None:
        """Add items, in words as in the uploaded file; the last word of a row is its seconds."""
        self._disorder = self._disorder.with_seconds(words[:, -1])
        self._items.add(words.view(np.uint32))
        if self._hashes is None:
            return
        if hashes is None:
            self._hashes.close()
            self._hashes = None
        else:
            self._hashes.append(np.ascontiguousarray(hashes).view(np.uint8).data)

    def _hash_blocks(self) -> Iterator[Hashes]:
        assert self._hashes is not None
        for at in range(0, self._hashes.size, _READ_HASH_BYTES):
            size = min(_READ_HASH_BYTES, self._hashes.size - at)
            yield np.frombuffer(self._hashes.read(at, size), np.uint64)

    def _noted(
        self, file: IndexStoreFile, rows: NDArray[Any], start: int
    ) -> NDArray[np.uint64] | None:
        """The hashes that the notes have for these items; None unless they match the items."""
        if file.notes is None or self._hashes is None:
            return None
        found = [*file.notes.blocks(start + len(rows), after=start)]
        hashes = np.concatenate(found) if found else np.empty(0, np.uint64)
        if len(hashes) < len(rows) or not hashes.all():
            return None
        wanted, _ = item_places(hashes, self.slot_count)
        return hashes if np.array_equal(wanted, rows["key_hash"]) else None


def fences_of_table(
    read: Callable[[int, int], bytes],
    header: TieredIndexHeader,
    times: TimeRange,
    *,
    slot_count: int,
    path: str,
) -> bytes:
    """Make a footer without a filter, to be cached locally, for a file that has no footer.

    Reads the slot table once; SegmentCorruptError if it is not what compaction writes.
    """
    starts = np.empty(slot_count + 1, np.int64)
    end = slot_position(slot_count)
    for first in range(0, slot_count, _TABLE_SLOTS):
        count = min(_TABLE_SLOTS, slot_count - first)
        data = read(slot_position(first), SLOT_BYTES * count)
        table = np.frombuffer(data, COMPACTED_SLOT_DTYPE, count)
        sizes = table["items_bytes"].astype(np.int64)
        wanted = end + np.cumsum(sizes) - sizes
        if (sizes < 0).any() or not np.array_equal(wanted, table["position"]):
            at = slot_position(first)
            raise SegmentCorruptError(path, "a slot table with gaps", position=at)
        starts[first : first + count] = wanted
        end = int(wanted[-1] + sizes[-1])
    starts[slot_count] = end
    if end != compacted_file_bytes(slot_count=slot_count, item_count=header.item_count):
        raise SegmentCorruptError(path, "slots and items do not add up", position=24)
    groups = groups_of(starts.astype(np.int32), version=UNCHECKED)
    blocks = _fence_blocks(groups, header, times, slot_count=slot_count, filter_blocks=0)
    return b"".join(bytes(block) for block in blocks)


def _fence_blocks(
    groups: Groups,
    header: TieredIndexHeader,
    times: TimeRange,
    *,
    slot_count: int,
    filter_blocks: int,
    disorder_seconds: int | None = None,
    sums: NDArray[np.uint32] | None = None,
) -> Iterator[Buffer]:
    yield b"".join(encode_fences(groups, sums))
    yield encode_tail(
        Footer(
            slot_count=slot_count,
            item_count=header.item_count,
            used_slot_count=header.used_slot_count,
            group_count=len(groups.slots),
            filter_blocks=filter_blocks,
            begin_timestamp=header.begin_timestamp,
            end_timestamp=header.end_timestamp,
            times=times,
            first_slots=groups.first_slots,
            disorder_seconds=disorder_seconds,
            version=groups.version,
        )
    )
