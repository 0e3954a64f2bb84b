"""Checks one index file, or a range of its slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.access.wiring import open_tier
from tieredstore.codec.java import INT32_MIN
from tieredstore.codec.key_hashes import slots_of
from tieredstore.codec.tiered_index import (
    COMPACTED_ITEM_BYTES,
    COMPACTED_SLOT_DTYPE,
    HEADER_BYTES,
    ITEM_BYTES,
    SLOT_BYTES,
    TieredIndexHeader,
    compacted_file_bytes,
    decode_header,
    is_legacy_compacted,
    item_position,
    slot_position,
    view_compacted_items,
    view_items,
)
from tieredstore.driver.segment import FileSegment
from tieredstore.index.footer import (
    BLOCK_BYTES,
    CHECKED,
    TAIL_BYTES,
    DamagedItemsError,
    Footer,
    Group,
    all_groups,
    check_block,
    check_items,
    decode_tail,
    encode_fences,
    groups_of,
    has_footer,
)
from tieredstore.index.local_file import LAYOUT, FileSizes, examine
from tieredstore.index.watermarks import Watermarks
from tieredstore.index.writer import LocalFolder
from tieredstore.jobs.verify_findings import (
    Findings,
    SumTable,
    VerifyKind,
    VerifyRow,
    held_sums,
    read_groups,
)
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentError
from tieredstore.model.values import SegmentRecord

_SLOTS_AT_ONCE: Final = 1 << 17
_BLOCKS_AT_ONCE: Final = 1_024
PART_BYTES: Final = 64 * 1024 * 1024
_ITEMS_AT_ONCE: Final = 1 << 18
_NEAR_ITEMS_AT_ONCE: Final = 1 << 16
"""_ITEMS_AT_ONCE for files: where a read costs no request, what fits the CPU cache is faster."""
OnItems: TypeAlias = Callable[[NDArray[Any], NDArray[np.int64], str, int, int], None]
"""Gets items, the store times that they give for their messages, the path of their file, the
position of the first item, and the distance from one item to the next in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexItem:
    """Part `part` of `parts` of one file's slots. The first part also has header and footer."""

    row: SegmentRecord
    slot_count: int
    shift: int
    part: int = 0
    parts: int = 1
    is_first: bool = field(default=False, compare=False)  # of the index; another may have expired


def index_parts(
    row: SegmentRecord, *, slot_count: int, shift: int, is_first: bool
) -> list[IndexItem]:
    count = max(1, min(row.size // PART_BYTES, slot_count))
    item = IndexItem(row=row, slot_count=slot_count, shift=shift, parts=count, is_first=is_first)
    return [replace(item, part=part) for part in range(count)]


def verify_index(config: StoreConfig, item: IndexItem) -> VerifyRow:
    """Read the part once. What cannot be read is a finding; a BackendError is still raised."""
    findings, sums = Findings(), SumTable()
    counts = {"entries": 0, "bytes": 0}

    def take(items: NDArray[Any], times: NDArray[np.int64], *_: object) -> None:
        counts["entries"] += len(items)
        counts["bytes"] += items.nbytes
        sums.add(held_sums(items, times, shift=item.shift))

    read_index(config, item, findings, take)
    return VerifyRow(findings=findings, counts=counts, sums=sums.table())


def read_index(config: StoreConfig, item: IndexItem, findings: Findings, take: OnItems) -> None:
    """Give `take` all items of the part."""
    row, provider = item.row, worker_provider(config)
    provider.catch_up([row])  # else a file that was added since would seem to be missing
    with provider.open(row.path, row.type, row.base_offset) as segment:
        try:
            at_once = _ITEMS_AT_ONCE if provider.reads_together else _NEAR_ITEMS_AT_ONCE
            IndexFileCheck(segment, item, findings, items_at_once=at_once).run(take)
        except (SegmentError, OffsetOutOfRangeError) as error:
            findings.add(VerifyKind.INDEX_FILE, (segment.path, _position(error)), str(error))


def verify_local_index(
    config: StoreConfig, uploaded: Collection[int], findings: Findings, take: OnItems
) -> dict[int, int]:
    """Give `take` all items of local files that have not been uploaded (by begin). Returns how many
    items each file has.

    Nothing is changed. A broker may be filling a file and append to it meanwhile.
    """
    folder = LocalFolder(config)
    counts: dict[int, int] = {}
    for begin in folder.begins():
        if begin in uploaded:
            continue
        path = folder.path / str(begin)
        try:
            with path.open("rb") as file:
                # It is closed with the last array over it; an error may hold one.
                data = mmap(file.fileno(), 0, access=ACCESS_READ) if path.stat().st_size else None
            if data is not None:
                counts[begin] = _of_file(data, path, config, findings, take)
        except FileNotFoundError:
            continue  # it was uploaded meanwhile
        except SegmentError as error:
            findings.add(VerifyKind.INDEX_FILE, (str(path), _position(error)), str(error))
    return counts


class IndexFileCheck:
    """The check of one file; what is wrong goes to `findings`.

    Raises SegmentError if the damage is so bad that its items cannot be recognised.
    """

    def __init__(
        self, segment: FileSegment, item: IndexItem, findings: Findings, *, items_at_once: int
    ) -> None:
        self._segment = segment
        self._item = item
        self._findings = findings
        self._items_at_once = items_at_once
        self._footer: Footer | None = None
        self._unit_ms = 1000
        self._is_legacy = False

    def run(self, take: OnItems) -> None:
        header = self._header()
        first = self._item.part == 0
        if first:
            self._check_header(header)
        slots = self._slot_count
        start = slots * self._item.part // self._item.parts
        stop = slots * (self._item.part + 1) // self._item.parts
        begin, used = None, 0
        for at in range(start, stop, _SLOTS_AT_ONCE):
            count = min(_SLOTS_AT_ONCE, stop - at)
            table = np.frombuffer(
                self._read(slot_position(at), SLOT_BYTES * count), COMPACTED_SLOT_DTYPE
            )
            positions, sizes = self._sound_table(table, at, begin)
            used += int(np.count_nonzero(sizes))
            begin = int(positions[-1] + sizes[-1])
            self._items(at, positions, sizes, header, take)
        is_last = self._item.part == self._item.parts - 1 and not self._is_legacy
        if is_last and begin != self._items_end(header):
            text = f"its slots end at {begin}, its {header.item_count} items do not"
            self._add(VerifyKind.INDEX_SLOT, text, slot_position(slots - 1))
        whole = self._item.parts == 1 and not self._is_legacy
        if whole and used != header.used_slot_count:
            text = f"{used} slots are in use, its header says {header.used_slot_count}"
            self._add(VerifyKind.INDEX_FILE, text, 20)
        if first and self._footer is not None:
            # If slots are wrong, the fences cannot match them.
            with_fences = not self._findings.totals[VerifyKind.INDEX_SLOT]
            for text, at in wrong_in_footer(self._segment, self._footer, header, with_fences):
                self._add(VerifyKind.INDEX_FOOTER, text, at)
        if self._footer is not None and self._footer.version == CHECKED:
            self._check_sums(self._footer)

    @property
    def _slot_count(self) -> int:
        return self._item.slot_count if self._footer is None else self._footer.slot_count

    def _items_end(self, header: TieredIndexHeader) -> int:
        return compacted_file_bytes(slot_count=self._slot_count, item_count=header.item_count)

    # Header and footer

    def _header(self) -> TieredIndexHeader:
        """Read the header, and the end of the file: it shows which version made the file."""
        size = self._item.row.size
        header = decode_header(self._read(0, HEADER_BYTES), path=self._segment.path)
        tail_bytes = min(size, TAIL_BYTES)
        tail = self._read(size - tail_bytes, tail_bytes)
        if has_footer(tail):
            try:
                self._footer = decode_tail(tail, file_bytes=size, path=self._segment.path)
            except SegmentError as error:
                if self._item.part == 0:
                    self._add(VerifyKind.INDEX_FOOTER, str(error), _position(error))
            return header
        slots = self._item.slot_count
        self._is_legacy = is_legacy_compacted(header, file_bytes=size, slot_count=slots)
        self._unit_ms = 1 if self._is_legacy else 1000
        return header

    def _check_header(self, header: TieredIndexHeader) -> None:
        row, footer = self._item.row, self._footer
        if self._is_legacy:
            text = "RocketMQ 5.1 made it: its entries are compared, not where its slots lie"
            self._add(VerifyKind.OLD_INDEX, text, HEADER_BYTES)
        wanted = self._items_end(header) + (0 if footer is None else footer.footer_bytes)
        wanted += 4 if self._is_legacy else 0
        if row.size != wanted and (footer is not None or not self._ends_in_footer()):
            text = f"{row.size} bytes, but {header.item_count} items take {wanted}"
            self._add(VerifyKind.INDEX_FILE, text, 24)
        # The first row may have an earlier begin than its file, so that it stays the first.
        begin = header.begin_timestamp if row.begin_timestamp is None else row.begin_timestamp
        may_be_earlier = footer is not None or self._item.is_first
        is_earlier = may_be_earlier and begin < header.begin_timestamp
        if begin != header.begin_timestamp and not is_earlier:
            text = f"it begins at {header.begin_timestamp}, its row at {row.begin_timestamp}"
            self._add(VerifyKind.INDEX_FILE, text, 4)
        # RocketMQ loses the end of a file that was open over a restart: then both are the begin.
        if row.end_timestamp not in (None, header.end_timestamp):
            text = f"it ends at {header.end_timestamp}, its row at {row.end_timestamp}"
            self._add(VerifyKind.INDEX_FILE, text, 12)

    def _ends_in_footer(self) -> bool:
        size = min(self._item.row.size, TAIL_BYTES)
        return has_footer(self._read(self._item.row.size - size, size))

    # Slots and items

    def _sound_table(
        self, table: NDArray[Any], first: int, begin: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions and sizes; slots that do not follow each other are findings.

        A slot whose items cannot be where it says counts as empty; its keys are then missing.
        """
        positions = table["position"].astype(np.int64)
        sizes = table["items_bytes"].astype(np.int64)
        low = slot_position(self._slot_count)
        if self._is_legacy:  # its empty slots have no position
            sizes = np.where(positions > 0, sizes, 0)
        absurd = (sizes < 0) | (sizes % COMPACTED_ITEM_BYTES != 0)
        absurd |= (sizes > 0) & ((positions < low) | (positions + sizes > self._end_of_items))
        wrong = absurd.copy()
        if not self._is_legacy:
            if begin is None:
                begin = low if first == 0 else int(positions[0])
            wrong |= positions != np.append(begin, (positions + sizes)[:-1])
        for row in self._findings.rows(VerifyKind.INDEX_SLOT, wrong):
            at = slot_position(first + row)
            text = f"slot {first + row} has {sizes[row]} bytes of items at {positions[row]}"
            self._findings.describe(VerifyKind.INDEX_SLOT, (self._segment.path, at), text)
        return positions, np.where(absurd, 0, sizes)

    @property
    def _end_of_items(self) -> int:
        size = self._item.row.size
        return size if self._footer is None else self._footer.position

    def _items(
        self,
        first: int,
        positions: NDArray[np.int64],
        sizes: NDArray[np.int64],
        header: TieredIndexHeader,
        take: OnItems,
    ) -> None:
        held = np.flatnonzero(sizes)
        starts, counts = positions[held], sizes[held] // COMPACTED_ITEM_BYTES
        ends = starts + sizes[held]
        limit = self._items_at_once * COMPACTED_ITEM_BYTES
        for part in read_groups(starts, ends, starts[1:] != ends[:-1], limit):
            start = int(starts[part.start])
            data = self._read(start, int(ends[part.stop - 1]) - start)
            items = view_compacted_items(data, path=self._segment.path)
            self._check_items(items, np.repeat(held[part] + first, counts[part]), start, header)
            seconds = items["seconds"].astype(np.int64)
            times = header.begin_timestamp + self._unit_ms * seconds
            take(items, times, self._segment.path, start, COMPACTED_ITEM_BYTES)

    def _check_items(
        self, items: NDArray[Any], slots: NDArray[np.int64], start: int, header: TieredIndexHeader
    ) -> None:
        hashes = items["key_hash"].astype(np.int32)
        wanted = slots_of(hashes, self._slot_count)
        wrong = wanted != slots
        negative = hashes < 0
        if INT32_MIN % self._slot_count == 0:  # then this hash has a slot
            negative &= hashes != INT32_MIN
        wrong |= negative
        if self._is_legacy:
            wrong[:] = False
        for row in self._findings.rows(VerifyKind.INDEX_SLOT, wrong):
            at = start + COMPACTED_ITEM_BYTES * row
            text = f"an entry with hash {hashes[row]} is in slot {slots[row]}, not in {wanted[row]}"
            self._findings.describe(VerifyKind.INDEX_SLOT, (self._segment.path, at), text)

    def _check_sums(self, footer: Footer) -> None:
        """Read the items again, in groups like a look-up: slots may be divided in other places."""
        blocks = footer.fence_blocks
        start = blocks * self._item.part // self._item.parts
        stop = blocks * (self._item.part + 1) // self._item.parts
        for number in range(start, stop):
            at = footer.position + footer.fence_block_position(number)
            block = self._read(at, BLOCK_BYTES)
            with suppress(SegmentError):  # the first part reports the block
                self._check_groups(all_groups(block, footer, path=self._segment.path, position=at))

    def _check_groups(self, groups: list[Group]) -> None:
        start, end = groups[0].start, groups[-1].end
        items = memoryview(self._read(start, end - start) if end > start else b"")
        path = self._segment.path
        for group in groups:
            held = items[group.start - start : group.end - start]
            try:
                check_items(held, group, path=path)
            except DamagedItemsError as error:
                self._add(VerifyKind.INDEX_ITEMS, str(error), group.start)

    def _read(self, position: int, length: int) -> bytes:
        return self._segment.read(position, length)

    def _add(self, kind: VerifyKind, text: str, position: int | None) -> None:
        self._findings.add(kind, (self._segment.path, position), text)


def wrong_in_footer(
    segment: FileSegment, footer: Footer, header: TieredIndexHeader, with_fences: bool
) -> Iterator[tuple[str, int]]:
    """What is wrong with the footer, and at which byte of the file."""
    said = footer.item_count, footer.used_slot_count, footer.begin_timestamp, footer.end_timestamp
    if said != (
        *(header.item_count, header.used_slot_count),
        *(header.begin_timestamp, header.end_timestamp),
    ):
        yield "footer and header differ", footer.position
    fences: list[bytes] = []
    sums: list[int] = []
    for at, block in _blocks(segment, footer):
        try:
            check_block(block, path=segment.path, position=at)
            if at >= footer.position + BLOCK_BYTES * footer.filter_blocks:
                fences.append(block)
                found = all_groups(block, footer, path=segment.path, position=at)
                sums += [group.checksum or 0 for group in found]
        except SegmentError as error:
            yield str(error), at
    if not with_fences:
        return
    groups = groups_of(_starts(segment, footer), version=footer.version)
    held = np.array(sums, np.uint32)
    if len(held) != len(groups.slots) or encode_fences(groups, held) != fences:
        at = footer.position + BLOCK_BYTES * footer.filter_blocks
        yield "its fences lead elsewhere than its slots", at
    if list(footer.first_slots) != groups.first_slots:
        yield "its fences are not found where they are", footer.position


def _blocks(segment: FileSegment, footer: Footer) -> Iterator[tuple[int, bytes]]:
    count = footer.filter_blocks + footer.fence_blocks
    for first in range(0, count, _BLOCKS_AT_ONCE):
        some = min(_BLOCKS_AT_ONCE, count - first)
        start = footer.position + BLOCK_BYTES * first
        data = segment.read(start, BLOCK_BYTES * some)
        for number in range(some):
            at = BLOCK_BYTES * number
            yield start + at, data[at : at + BLOCK_BYTES]


def _starts(segment: FileSegment, footer: Footer) -> NDArray[np.int32]:
    """Where the items of each slot begin, and where those of the last slot end."""
    slots = footer.slot_count
    starts = np.empty(slots + 1, np.int32)
    for at in range(0, slots, _SLOTS_AT_ONCE):
        count = min(_SLOTS_AT_ONCE, slots - at)
        data = segment.read(slot_position(at), SLOT_BYTES * count)
        starts[at : at + count] = np.frombuffer(data, COMPACTED_SLOT_DTYPE)["position"]
    starts[slots] = compacted_file_bytes(slot_count=slots, item_count=footer.item_count)
    return starts


def _of_file(data: mmap, path: Path, config: StoreConfig, findings: Findings, take: OnItems) -> int:
    slots = config.index_slot_count
    until = item_position(1, slot_count=slots) + ITEM_BYTES
    is_empty = not np.any(np.frombuffer(data, np.uint8)[HEADER_BYTES:until])
    head = data[:HEADER_BYTES]
    try:
        header = decode_header(
            head,
            slot_count=slots,
            item_capacity=config.index_item_count,
            path=str(path),
        )
    except SegmentError:
        if is_empty:
            return 0  # it is just being made
        raise
    if is_empty and not header.item_count:
        return 0
    begin = header.begin_timestamp
    if begin != int(path.name):
        findings.add(VerifyKind.INDEX_FILE, (str(path), 4), f"it begins at {begin}")
        begin = int(path.name)
    sizes = FileSizes.of(path, slots, config.index_item_count)
    items_held = header.item_count
    found = _wrong_links(data, sizes, items_held)
    if found.has_damage and (durable := _durable_count(config, begin, items_held)) is not None:
        # What a power cut left after the durable items is repaired when the broker starts.
        items_held, found = durable, _wrong_links(data, sizes, durable, is_cut=True)
    findings.take(found)
    if found.totals[VerifyKind.INDEX_FILE]:
        return 0
    items = view_items(memoryview(data), slot_count=slots, item_count=items_held)
    for at in range(0, items_held, _NEAR_ITEMS_AT_ONCE):
        block = items[at : at + _NEAR_ITEMS_AT_ONCE].copy()
        times = begin + 1000 * block["seconds"].astype(np.int64)
        take(block, times, str(path), item_position(at + 1, slot_count=slots), ITEM_BYTES)
    return items_held


def _wrong_links(
    data: mmap, sizes: FileSizes, item_count: int, *, is_cut: bool = False
) -> Findings:
    """What is wrong with the chains of the first items. `is_cut`: slots may lead to later ones."""
    findings, head = Findings(), data[:HEADER_BYTES]
    try:
        examined = examine(data, sizes, item_count)
    except SegmentError as error:
        findings.add(VerifyKind.INDEX_FILE, (sizes.path, _position(error)), str(error))
        return findings
    heads = np.maximum(LAYOUT.heads(data, sizes.slot_count), 0)
    wrong = heads != examined.heads
    if is_cut:
        wrong &= heads <= item_count
    # A changed header means that a broker is just putting: it changes the slots afterwards.
    if wrong.any() and data[:HEADER_BYTES] == head:
        at = int(np.flatnonzero(wrong)[0])
        text = f"slot {at} leads to item {heads[at]}, not to {examined.heads[at]}"
        findings.add(VerifyKind.INDEX_SLOT, (sizes.path, slot_position(at)), text)
    return findings


def _durable_count(config: StoreConfig, begin: int, items_held: int) -> int | None:
    """How many items the catalogue calls durable by now; None if the file is not ours."""
    plain = replace(config, index_enabled=False, read_ahead_enabled=False)
    with closing(open_tier(plain, read_only=True)) as parts:
        noted = Watermarks(parts.metadata, config.broker_name).durable(begin)
    durable = LocalFolder(config).counted(begin, noted)
    return None if durable is None else min(durable.item_count, items_held)


def _position(error: Exception) -> int | None:
    return getattr(error, "position", None)
