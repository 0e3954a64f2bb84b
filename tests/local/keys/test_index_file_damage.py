"""An index file that is damaged: an error, never a crash or a walk without end.

Only the answer that imitates Java's takes damage for the end of a chain.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codec.test_local_index import PRINTED
from tests.local.keys.index_kit import NAME, PUTS, T0, candidates, columns_of, java, new_file
from tieredstore.codec import chains
from tieredstore.codec.java import local_key_hash
from tieredstore.codec.local_index import (
    ITEM_DTYPE,
    LocalIndexHeader,
    encode_header,
    encode_slot,
    item_position,
)
from tieredstore.local.index_file import IndexFile, IndexSize
from tieredstore.model.errors import SegmentCorruptError, SegmentNotFoundError

SIZE = IndexSize(10, 8)


@pytest.mark.parametrize("first", [-1, 0, 1, 3, 7, 8, 9, 2**31 - 1])
@pytest.mark.parametrize("link", [-(2**31), -1, 0, 1, 2, 3, 4, 7, 8, 2**31 - 1])
def test_a_damaged_link_ends_the_walk_inside_the_file(
    tmp_path: Path, first: int, link: int
) -> None:
    file = new_file(tmp_path)
    file.put(columns_of([("T#a", number, T0) for number in range(1, 8)]))
    file.close()
    data = bytearray(file.path.read_bytes())
    slot = local_key_hash("T#a") % 10
    data[40 + 4 * slot : 44 + 4 * slot] = encode_slot(first)
    for item in (3, 7):
        at = item_position(item, slot_count=10) + 16
        data[at : at + 4] = encode_slot(link)
    file.path.write_bytes(data)
    again = IndexFile.open(file.path, SIZE)
    assert len(java(again, "T#a")) <= 7
    # One item that leads to itself is what Java may leave behind after a crash.
    is_sound = 0 <= first <= 7 and (first < 3 or 0 <= link <= 3 or link == first)
    if is_sound:
        assert len(candidates(again, "T#a")) <= 7
    else:
        with pytest.raises(SegmentCorruptError):
            candidates(again, "T#a")
    assert set(java(again, "T#a")) <= set(range(1, 8))


def test_an_item_with_a_negative_time_is_damage(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.put(columns_of([("T#a", 1, T0), ("T#a", 2, T0), ("T#a", 3, T0)]))
    file.close()
    data = bytearray(file.path.read_bytes())
    at = item_position(2, slot_count=10) + ITEM_DTYPE.fields["seconds"][1]  # type: ignore[index]
    data[at : at + 4] = encode_slot(-1)
    file.path.write_bytes(data)
    again = IndexFile.open(file.path, SIZE)
    assert java(again, "T#a") == [3]
    with pytest.raises(SegmentCorruptError, match="item 2 says what cannot be true"):
        candidates(again, "T#a")


@pytest.mark.parametrize("size", [0, 1, 39, 40, 239, 241])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / NAME
    path.write_bytes(bytes(size))
    with pytest.raises(SegmentCorruptError) as caught:
        IndexFile.open(path, SIZE)
    assert caught.value.path == str(path)


def test_a_file_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(SegmentNotFoundError):
        IndexFile.open(tmp_path / NAME, SIZE)


@pytest.mark.parametrize(("used", "following"), [(-1, 3), (11, 3), (1, 9), (1, 2**31 - 1)])
def test_counts_that_cannot_be_right_are_refused(tmp_path: Path, used: int, following: int) -> None:
    path = tmp_path / NAME
    header = LocalIndexHeader(used_slot_count=used, next_item=following)
    path.write_bytes(encode_header(header) + bytes(200))
    with pytest.raises(SegmentCorruptError):
        IndexFile.open(path, SIZE)


@pytest.mark.parametrize("following", [0, -1, -(2**31)])
def test_a_next_item_below_one_is_read_as_one(tmp_path: Path, following: int) -> None:
    path = tmp_path / NAME
    path.write_bytes(encode_header(LocalIndexHeader(next_item=following)) + bytes(200))
    file = IndexFile.open(path, SIZE)
    assert file.put(columns_of(PUTS)) == 7
    assert path.read_bytes().hex() == PRINTED


@pytest.mark.parametrize("value", [-(2**31), -1, 0, 8, 50, 2**31 - 1])
@pytest.mark.parametrize("vector_items_min", [1, 1_000])
def test_a_slot_that_names_no_item_is_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: int, vector_items_min: int
) -> None:
    monkeypatch.setattr(chains, "VECTOR_ITEMS_MIN", vector_items_min)
    path = tmp_path / NAME
    path.write_bytes(encode_header(LocalIndexHeader()) + encode_slot(value) * 10 + bytes(160))
    file = IndexFile.open(path, SIZE)
    file.put(columns_of(PUTS))
    items = slice(item_position(1, slot_count=10), None)
    assert path.read_bytes()[items].hex() == PRINTED[2 * items.start :]
    assert path.read_bytes()[:40].hex() == PRINTED[:80]
