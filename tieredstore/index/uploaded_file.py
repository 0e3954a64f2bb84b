"""Finding keys in an uploaded index file through reads of byte ranges.

What lives here: `UploadedFile` over files with our footer, without one, and of RocketMQ 5.1. Where
the bytes come from, and which files are asked, is decided above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice

import numpy as np

from tieredstore.codec.java import local_key_hash, local_slot, tiered_probes
from tieredstore.codec.tiered_index import (
    HEADER_BYTES,
    SLOT_BYTES,
    compacted_file_bytes,
    decode_compacted_slot,
    decode_header,
    is_legacy_compacted,
    slot_position,
)
from tieredstore.codec.tiered_index_columns import view_compacted_items
from tieredstore.index.fences import GROUP_BYTES, Group, find_group
from tieredstore.index.footer import TAIL_BYTES, Footer, decode_tail, has_footer
from tieredstore.index.key_filter import BLOCK_BYTES, block_of, may_hold
from tieredstore.index.key_hashes import key_hash
from tieredstore.index.rows import FoundItem, seconds_window
from tieredstore.model.errors import SegmentCorruptError

Read = Callable[[int, int], bytes]
"""Position and length to exactly so many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearFooter:
    """A footer whose bytes are at hand: `read` counts from its first byte."""

    footer: Footer
    read: Read

    @classmethod
    def open(cls, read: Read, footer_bytes: int, *, file_bytes: int, path: str) -> NearFooter:
        """A copy of the footer; `file_bytes` is the file with it, even if it has none itself."""
        size = min(footer_bytes, TAIL_BYTES)
        tail = read(footer_bytes - size, size)
        footer = decode_tail(tail, file_bytes=file_bytes, path=path)
        if footer.footer_bytes != footer_bytes:
            raise SegmentCorruptError(path, "the copy of a footer is cut off", position=0)
        return cls(footer=footer, read=read)


class UploadedFile:
    """One file, which never changes; any thread may ask.

    A lookup reads one range of at most 16 KiB where the footer is near, two ranges where only its
    tail is known, and two where there is none. A slot with more items is read in pages, newest
    first, until the caller has enough.
    """

    def __init__(
        self,
        read: Read,
        items_end: int,
        *,
        path: str,
        slot_count: int,
        begin_timestamp: int,
        is_legacy: bool = False,
        footer: Footer | None = None,
        near: NearFooter | None = None,
    ) -> None:
        self.path = path
        self.slot_count = slot_count
        self.begin_timestamp = begin_timestamp
        self.is_legacy = is_legacy
        self.footer = footer
        self._read_bytes = read
        self._near = near
        self._items_start = slot_position(slot_count)
        self._items_end = items_end

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
        """Look at the end of the file, and at its header where it has no footer of ours.

        `slot_count` is what files without a footer were made with. A footer that is damaged can be
        passed over: what lies before it is a file as Java writes it.
        """
        if not size:  # Java uploads nothing where there is no item
            return cls(read, 0, path=path, slot_count=slot_count, begin_timestamp=0)
        tail_bytes = min(size, TAIL_BYTES)
        tail = _exactly(read, size - tail_bytes, tail_bytes, path)
        if trust_footer and has_footer(tail):
            footer = decode_tail(tail, file_bytes=size, path=path)
            return cls._with(read, path, footer, None)
        head = tail if size <= TAIL_BYTES else _exactly(read, 0, HEADER_BYTES, path)
        header = decode_header(head, path=path)
        is_legacy = is_legacy_compacted(header, file_bytes=size, slot_count=slot_count)
        wanted = compacted_file_bytes(slot_count=slot_count, item_count=header.item_count)
        has_more = has_footer(tail) and size > wanted  # the footer is passed over
        if size != (wanted + 4 if is_legacy else wanted) and not has_more:
            raise SegmentCorruptError(
                path,
                f"{size} bytes, but {slot_count} slots and {header.item_count} items take {wanted}",
                position=HEADER_BYTES,
            )
        return cls(
            read,
            wanted,
            path=path,
            slot_count=slot_count,
            begin_timestamp=header.begin_timestamp,
            is_legacy=is_legacy,
        )

    @classmethod
    def with_footer(cls, read: Read, near: NearFooter, *, path: str = "") -> UploadedFile:
        """Without a read: the footer is near."""
        return cls._with(read, path, near.footer, near)

    @classmethod
    def _with(cls, read: Read, path: str, footer: Footer, near: NearFooter | None) -> UploadedFile:
        return cls(
            read,
            footer.position,
            path=path,
            slot_count=footer.slot_count,
            begin_timestamp=footer.begin_timestamp,
            footer=footer,
            near=near,
        )

    def may_hold(self, text: str) -> bool:
        """False only if no message has this `topic#key`: known without a read, or not at all."""
        near = self._near
        if near is None or not near.footer.filter_blocks:
            return True
        value = key_hash(text)
        position = BLOCK_BYTES * block_of(value, near.footer.filter_blocks)
        block = near.read(position, BLOCK_BYTES)
        return may_hold(block, value, path=self.path, position=near.footer.position + position)

    def find(self, text: str, *, begin: int, end: int, count_max: int) -> list[FoundItem]:
        """Items that may be of this `topic#key`, newest first, about within begin to end."""
        if count_max <= 0 or begin > end or not self.may_hold(text):
            return []
        return list(islice(self.matches(text, begin=begin, end=end), count_max))

    def matches(self, text: str, *, begin: int, end: int) -> Iterator[FoundItem]:
        """The same without a limit and without the filter; pages are read as they are needed.

        Where two hashes are probed, the items of both are merged by time.
        """
        if self._items_end <= self._items_start:
            return
        rows = [self._of_hash(*probe, begin, end) for probe in self._probes(text)]
        if len(rows) == 1:
            yield from rows[0]
        else:
            yield from merge(*rows, key=lambda item: -item.store_timestamp)

    def _of_hash(self, hash_: int, slot: int, begin: int, end: int) -> Iterator[FoundItem]:
        group = self._group(slot)
        for start in range(group.start, group.end, GROUP_BYTES):
            size = min(GROUP_BYTES, group.end - start)
            yield from self._items(start, size, hash_, begin, end)

    def _probes(self, text: str) -> tuple[tuple[int, int], ...]:
        if self.is_legacy:
            hash_ = local_key_hash(text)  # 5.1 took 0 for the hash that has no absolute value
            return ((hash_, local_slot(hash_, self.slot_count)),)
        probes = tiered_probes(text, self.slot_count)
        all_ours = self.footer is not None and self.footer.filter_blocks > 0
        return probes[:1] if all_ours else probes

    def _group(self, slot: int) -> Group:
        footer = self.footer
        if footer is not None:
            at = footer.fence_block_position(slot)
            if self._near is not None:
                block = self._near.read(at, BLOCK_BYTES)
            else:
                block = _exactly(self._read_bytes, footer.position + at, BLOCK_BYTES, self.path)
            return find_group(
                block,
                slot,
                first=self._items_start,
                end=self._items_end,
                path=self.path,
                position=footer.position + at,
            )
        at = slot_position(slot)
        data = _exactly(self._read_bytes, at, SLOT_BYTES, self.path)
        place = decode_compacted_slot(data, path=self.path)
        end = place.position + place.items_bytes
        if place.items_bytes and not self._items_start <= place.position < end <= self._items_end:
            reason = f"a slot with items from {place.position} to {end}"
            raise SegmentCorruptError(self.path, reason, position=at)
        return Group(place.position, end)

    def _items(
        self, start: int, size: int, hash_: int, begin: int, end: int
    ) -> Iterator[FoundItem]:
        data = _exactly(self._read_bytes, start, size, self.path)
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
                yield FoundItem(topic_id, queue_id, log_offset, message_bytes, time)


def _exactly(read: Read, position: int, length: int, path: str) -> bytes:
    data = read(position, length)
    if len(data) != length:
        reason = f"{len(data)} bytes were read of {length}"
        raise SegmentCorruptError(path, reason, position=position)
    return data
