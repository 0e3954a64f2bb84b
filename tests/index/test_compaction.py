"""Compacted files are Java's byte for byte, and stream in order."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.codec.encoders import encode_compacted_item
from tests.codec.golden_files import CLUSTER, GOLDEN, files_under
from tests.index.index_kit import (
    BEGIN,
    BEGINS,
    UPLOADED,
    Row,
    columns_of,
    create,
    golden_rows,
    reopen,
)
from tieredstore.codec.tiered_index import (
    compacted_file_bytes,
    decode_compacted_slot,
    decode_item,
    decode_slot,
    item_position,
    slot_position,
)
from tieredstore.index import compaction
from tieredstore.index.compaction import Compaction
from tieredstore.index.local_file import IndexStoreFile

INDEX = f"{CLUSTER}/broker-gold-a/rmq_sys_INDEX/0/INDEX"


def compacted(file: IndexStoreFile) -> bytes:
    found = Compaction(file)
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
    if ours != java:  # Java reopened it first, or put more: the chains must be those of its file
        assert ours[28:] == java[28:]


def test_without_items_there_is_nothing(tmp_path: Path) -> None:
    assert compacted(create(tmp_path)) == b""


@pytest.mark.parametrize("slots", [1, 7, 200, 70_000, 140_001])
def test_items_of_every_slot_stand_newest_first(
    tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_DEALT_ITEMS", 300)
    monkeypatch.setattr(compaction, "_COPIED_ITEMS", 77)
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
    for slot in np.flatnonzero(np.frombuffer(written, ">i4", 2 * slots, 28)[::2]).tolist():
        place = decode_compacted_slot(data, slot_position(slot))
        assert place.position == position
        number = decode_slot(written, slot_position(slot))
        while number:
            item = decode_item(written, item_position(number, slot_count=slots))
            assert data[position : position + 28] == encode_compacted_item(item.compacted)
            position += 28
            number = item.previous
        assert position == place.position + place.items_bytes
    assert position == len(data)
