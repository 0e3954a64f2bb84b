"""Compacted files equal Java's byte for byte and are streamed in order; footers have checksums."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.codec.encoders import encode_compacted_item
from tests.codec.golden_files import CLUSTER, GOLDEN, files_under
from tests.index.index_kit import (
    BEGIN,
    BEGINS,
    UPLOADED,
    Bytes,
    Row,
    columns_of,
    create,
    golden_rows,
    reopen,
    uploaded,
    warm,
)
from tieredstore.codec.key_hashes import key_hashes
from tieredstore.codec.tiered_index import (
    CompactedItem,
    compacted_file_bytes,
    decode_compacted_slot,
    slot_position,
    view_items,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.index import compaction, dealt_items
from tieredstore.index.compaction import Compaction
from tieredstore.index.footer import (
    CHECKED,
    GROUP_BYTES,
    UNCHECKED,
    Footer,
    NearFooter,
    block_of,
    build_filter,
    decode_tail,
    encode_fences,
    encode_tail,
    filter_block_count,
    groups_of,
    has_footer,
    may_hold,
)
from tieredstore.index.keys import IndexColumns, TimeRange
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.uploaded import UploadedFile
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX, SegmentType
from tieredstore.providers.memory import MemoryProvider

INDEX = f"{CLUSTER}/broker-gold-a/rmq_sys_INDEX/0/INDEX"


def compacted(file: IndexStoreFile) -> bytes:
    with closing(Compaction.of_file(file)) as found:
        data = b"".join(bytes(block) for block in found.blocks())
        assert len(data) == (found.end if found.item_count else 0)
        return data


@pytest.mark.parametrize(("number", "base"), [(0, 0), (1, 37176)])
def test_javas_local_file_becomes_javas_uploaded_file(
    tmp_path: Path, number: int, base: int
) -> None:
    name = str(BEGINS[number])
    shutil.copy(GOLDEN / "tier-index/local-before-upload" / name, tmp_path / name)
    assert compacted(reopen(tmp_path / name)) == UPLOADED[base]


@pytest.mark.parametrize(("number", "base"), [(0, 0), (1, 37176), (2, 72980), (3, 82884)])
def test_javas_puts_become_javas_uploaded_file(tmp_path: Path, number: int, base: int) -> None:
    file = create(tmp_path, BEGINS[number])
    file.put(columns_of(golden_rows(number)))
    assert compacted(file) == UPLOADED[base]


def test_the_file_that_java_uploads_at_shutdown(tmp_path: Path) -> None:
    [written] = (GOLDEN / "tier-posix/store/tiered_index_file").iterdir()
    shutil.copy(written, tmp_path / written.name)
    [segment] = files_under(f"tier-posix-after-shutdown/tiered/{INDEX}")
    ours, java = compacted(reopen(tmp_path / written.name, 64, 300)), segment.read_bytes()
    if ours != java:  # Java reopened the file first, or put more: only the chains must be equal
        assert ours[28:] == java[28:]


@pytest.mark.parametrize("slots", [7, 140_001])
def test_keys_that_never_were_in_a_file_become_the_same_bytes(
    tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealt_items, "_DEALT_ITEMS", 300)
    dice = np.random.default_rng(slots)
    rows = [
        Row(
            f"T#{dice.integers(0, 900)}", 1, 2, number, 9, BEGIN + int(dice.integers(-5000, 90_000))
        )
        for number in range(3000)
    ]
    file = create(tmp_path, slots=slots, items=5000)
    for start in range(0, 3000, 700):
        file.put(columns_of(rows[start : start + 700]))
    keys = (columns_of(rows[start : start + 400]) for start in range(0, 3000, 400))
    with closing(Compaction.of_keys(keys, BEGIN, slot_count=slots)) as made:
        assert b"".join(map(bytes, made.whole())) == uploaded(file)


def test_a_file_that_becomes_shorter_while_it_is_sorted_is_an_error(tmp_path: Path) -> None:
    spool = dealt_items.Spool(tmp_path)
    spool.append(memoryview(b"x" * 100))
    os.ftruncate(spool._file.fileno(), 60)
    assert spool.read(0, 60) == b"x" * 60
    with pytest.raises(SegmentCorruptError, match="became shorter"):
        spool.read(50, 20)
    spool.close()


def test_keys_that_cannot_be_read_to_the_end_leave_no_file_open() -> None:
    def broken() -> Iterator[IndexColumns]:
        yield columns_of([Row("T#a", 1, 2, 3, 9, BEGIN)])
        raise OSError("gone")

    gc.collect()  # close files that other tests have left open
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="gone"):
        Compaction.of_keys(broken(), BEGIN, slot_count=7)
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_items_there_is_nothing(tmp_path: Path) -> None:
    assert compacted(create(tmp_path)) == b""


@pytest.mark.parametrize("slots", [1, 7, 200, 70_000, 140_001])
def test_items_of_every_slot_stand_newest_first(
    tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_READ_ITEMS", 700)
    monkeypatch.setattr(dealt_items, "_DEALT_ITEMS", 300)
    monkeypatch.setattr(dealt_items, "_SORTED_ITEMS", 77)
    monkeypatch.setattr(compaction, "_SLOTS_A_BLOCK", 1000)
    random = np.random.default_rng(slots)
    rows = [
        Row(f"T#{random.integers(0, 300)}", 1, 2, number, 9, BEGIN + number)
        for number in range(2000)
    ]
    file = create(tmp_path, slots=slots, items=5000)
    file.put(columns_of(rows))
    written, data = file.path.read_bytes(), compacted(file)
    assert len(data) == compacted_file_bytes(slot_count=slots, item_count=2000)
    position = slot_position(slots)
    items = view_items(written, slot_count=slots, item_count=2000).tolist()
    newest = np.frombuffer(written, ">i4", 2 * slots, 28)[::2]
    for slot in np.flatnonzero(newest).tolist():
        place = decode_compacted_slot(data, slot_position(slot))
        assert place.position == position
        number = int(newest[slot])
        while number:
            *item, number = items[number - 1]
            item_bytes = encode_compacted_item(CompactedItem._make(item))
            assert data[position : position + 28] == item_bytes
            position += 28
        assert position == place.position + place.items_bytes
    assert position == len(data)


def a_footer(
    starts: np.ndarray[tuple[int], np.dtype[np.int32]], version: int
) -> tuple[Footer, list[bytes]]:
    groups = groups_of(starts, version=version)
    footer = Footer(
        slot_count=len(starts) - 1,
        item_count=(int(starts[-1]) - int(starts[0])) // 28,
        used_slot_count=1,
        group_count=len(groups.slots),
        filter_blocks=0,
        begin_timestamp=5,
        end_timestamp=9,
        times=TimeRange(first=5, last=9),
        first_slots=groups.first_slots,
        version=version,
    )
    sums = None if version == UNCHECKED else groups.positions[:-1].astype(np.uint32)
    return footer, encode_fences(groups, sums)


@pytest.mark.parametrize("version", [UNCHECKED, CHECKED])
@pytest.mark.parametrize("kind", ["small", "large", "sparse", "one", "huge", "pages"])
def test_every_slot_lies_in_a_group_of_16_kib_or_alone(kind: str, version: int) -> None:
    dice = np.random.default_rng(3)
    counts = {
        "small": dice.integers(0, 9, 400_000),
        "large": dice.integers(0, 1200, 3000),
        "sparse": (dice.integers(0, 99, 200_000) == 5) * dice.integers(0, 900, 200_000),
        "one": np.array([1]),
        "huge": np.array([0, 30_000_000, 0, 0, 1]),
        # One slot ends with a block of fences; the next begins in a block and fills two more.
        "pages": np.array([585 * 340, 585, 585 * 800 + 1, 585 * 340 - 1, 3, 0]),
    }[kind]
    first = 28 + 8 * len(counts)
    ends = first + 28 * np.cumsum(counts)
    starts = np.concatenate(([first], ends)).astype(np.int32)
    footer, blocks = a_footer(starts, version)
    assert len(blocks) == footer.fence_blocks
    total = int(starts[-1]) + footer.footer_bytes
    whole = b"".join(blocks) + encode_tail(footer)
    reads = Bytes(whole)
    file = UploadedFile.with_footer(
        reads.read, footer, near=NearFooter(footer=footer, read=reads.read)
    )
    alone = set()
    for slot in range(0, len(counts), max(1, len(counts) // 5000)):
        reads.reads.clear()
        groups = list(file._groups(slot))
        assert [group.end for group in groups[:-1]] == [group.start for group in groups[1:]]
        assert groups[0].start <= starts[slot] <= starts[slot + 1] <= groups[-1].end
        if groups[-1].end - groups[0].start > GROUP_BYTES:
            assert (starts[slot], starts[slot + 1]) == (groups[0].start, groups[-1].end)
            alone.add(slot)
        if version == CHECKED:
            assert all(group.checksum == group.start for group in groups)
            assert all(group.end - group.start <= GROUP_BYTES for group in groups)
        assert len(reads.reads) <= 2 + len(groups) // 340
    assert bool(alone) == (kind in {"large", "sparse", "huge", "pages"})
    assert len(whole) % 28 == 0
    assert decode_tail(whole[-16 * 1024 :], file_bytes=total) == footer


def test_the_filter_lets_few_strangers_and_every_key_through() -> None:
    keys = key_hashes([f"order-{number}" for number in range(50_000)], prefix="T#")
    count = filter_block_count(len(keys))
    blocks = np.concatenate(list(build_filter(lambda: [keys], count))).reshape(count, -1)

    def holds(value: int) -> bool:
        block = blocks[block_of(value, count)].tobytes()
        return may_hold(block, value, path="", position=0)

    assert all(map(holds, keys.tolist()[::7]))
    others = key_hashes([f"order-{number}" for number in range(50_000, 70_000)], prefix="T#")
    assert sum(map(holds, others.tolist())) <= 0.005 * 20_000


def test_hashes_are_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = create(tmp_path)
    file.put(columns_of(golden_rows(0)))
    whole = uploaded(file)
    monkeypatch.setattr(compaction, "_READ_HASH_BYTES", 80)
    assert uploaded(file) == whole


def test_a_filter_made_in_passes_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = key_hashes([f"order-{number}" for number in range(30_000)])
    count = filter_block_count(len(keys))
    whole = np.concatenate(list(build_filter(lambda: [keys], count)))
    monkeypatch.setattr("tieredstore.index.footer._BLOCKS_A_PASS", 3)
    passes = list(build_filter(lambda: [keys[:7000], keys[7000:]], count))
    assert len(passes) > 3
    assert np.array_equal(np.concatenate(passes), whole)


def test_a_block_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    file = create(tmp_path, BEGINS[0])
    file.put(columns_of(golden_rows(0)))
    data = bytearray(uploaded(file))
    footer = decode_tail(data, file_bytes=len(data))
    data[footer.position + 77] ^= 1
    opened, _ = warm(bytes(data))
    with pytest.raises(SegmentCorruptError, match="another checksum"):
        opened.find("T#any", begin=0, end=INT32_MAX, count_max=1)


def test_every_byte_of_the_tail_counts(tmp_path: Path) -> None:
    file = create(tmp_path, BEGINS[0])
    file.put(columns_of(golden_rows(0)))
    data = uploaded(file)
    footer = decode_tail(data, file_bytes=len(data))
    tail = len(data) - footer.position - 4096 * (footer.filter_blocks + footer.fence_blocks)
    for back in range(1, tail + 1):
        changed = bytearray(data)
        changed[-back] ^= 16
        with pytest.raises(SegmentCorruptError):
            decode_tail(bytes(changed), file_bytes=len(data))
    with pytest.raises(SegmentCorruptError):
        decode_tail(data, file_bytes=len(data) + 28)
    assert not has_footer(UPLOADED[0])


def test_a_file_streams_into_a_provider(tmp_path: Path) -> None:
    file = create(tmp_path, BEGINS[0])
    file.put(columns_of(golden_rows(0)))
    with (
        Runtime.inline() as runtime,
        MemoryProvider(runtime) as provider,
        closing(Compaction.of_file(file)) as compaction,
    ):
        segment = provider.open("broker/rmq_sys_INDEX/0", SegmentType.INDEX, 0)
        size = provider.create(segment, compaction.whole())
        assert segment.read(0, len(UPLOADED[0])) == UPLOADED[0]
        assert segment.read(0, size) == uploaded(file)
