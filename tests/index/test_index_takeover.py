"""What RocketMQ, or an older version of it, left behind: taken over, cleared away or made again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.index.store_kit import INDEX_PATH, ITEMS, SLOTS, Shop, put_again
from tieredstore.codec.tiered_index import TieredIndexHeader, encode_header, file_bytes
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import SegmentType
from tieredstore.testing.faults import Faults
from tieredstore.testing.messages import STORE_TIMESTAMP, TOPIC

INDEX = SegmentType.INDEX


def test_java_leftovers_are_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "tiered_index_file"
    (folder / "compacting").mkdir(parents=True)
    (folder / "compacting" / "123").write_bytes(b"half")
    size = file_bytes(slot_count=SLOTS, item_capacity=ITEMS)
    header = encode_header(TieredIndexHeader(begin_timestamp=STORE_TIMESTAMP - 77))
    (folder / "0000").write_bytes(header.ljust(size, b"\0"))
    (folder / "1111").write_bytes(bytes(size))
    (folder / "2222").write_bytes(bytes(44 + 8 * SLOTS + 32 * ITEMS))
    shop = Shop(tmp_path)
    assert shop.local_files() == [str(STORE_TIMESTAMP - 77)]
    assert not (folder / "compacting").exists()
    shop.put(["k"])
    assert shop.found("k") == [(0, 0)]


def test_a_local_file_of_rocketmq_5_1_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "tiered_index_file"
    folder.mkdir()
    size = 44 + 8 * SLOTS + 32 * ITEMS
    (folder / "1690000000000").write_bytes(bytes(size))
    shop = Shop(tmp_path)
    assert not shop.local_files()


def test_a_row_without_bytes_goes_and_its_base_is_used(tmp_path: Path) -> None:
    """RocketMQ leaves one where it crashed in an upload, and one for each file without items."""
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    end = shop.segments()[0].size
    unset = SegmentRecord(path=INDEX_PATH, type=INDEX, base_offset=end)
    empty = dataclasses.replace(unset, begin_timestamp=STORE_TIMESTAMP, end_timestamp=0)
    for row in (unset, empty):
        shop.catalogue.put(row)
        shop.reopen()
        assert len(shop.segments()) == 1
    shop.catalogue.put(empty)
    shop.index.shutdown()
    shop.open(Faults(always=None))
    shop.put(["k"])
    shop.index.seal()
    assert [row.base_offset for row in shop.segments()] == [0, end]
    assert len(shop.found("k")) == 2


def test_a_file_that_somebody_else_began_is_searched_whole_and_not_filled(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.index.shutdown()
    (name,) = shop.local_files()
    path = tmp_path / "tiered_index_file" / name
    path.with_name(name + ".keys").unlink()  # as RocketMQ makes them
    shop.open()
    shop.put(["k2"])
    assert shop.found("k1") == [(0, 0)]
    assert shop.found("k2") == [(0, 1000)]
    assert len(shop.local_files()) == 2
    shop.index.step()
    assert len(shop.segments()) == 1
    assert shop.found("k1") == [(0, 0)]


def test_an_older_index_of_somebody_else_is_taken_over_and_not_made_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.index.shutdown()
    (name,) = shop.local_files()
    path = tmp_path / "tiered_index_file" / name
    path.with_name(name + ".keys").unlink()
    for kind in ("index", "index-queue", "index-file", "index-start"):  # the catalogue is Java's
        for key in shop.catalogue.notes(kind):
            shop.catalogue.delete_note(kind, key)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    assert shop.found("k1") == [(0, 0)]


def test_a_damaged_file_of_somebody_else_makes_everything_be_put_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.reopen()
    path = tmp_path / "tiered_index_file" / str(STORE_TIMESTAMP + 500)
    path.write_bytes(b"x" * file_bytes(slot_count=SLOTS, item_capacity=ITEMS))
    shop.reopen()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert not path.exists()
    assert put_again(shop) == 1
    assert shop.found("k1") == [(0, 0)]  # found twice, shown once


def test_other_slots_than_those_of_an_uploaded_file_of_java_are_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"] * 3)
    shop.index.seal()
    (row,) = shop.segments()
    segment = shop.provider.open(row.path, row.type, 0)
    head = segment.read(0, 28 + 8 * SLOTS + 28 * 6)
    segment.delete()
    segment.write(0, head)
    shop.catalogue.put(dataclasses.replace(row, size=len(head)))
    shop.catalogue.delete_note("index", "sizes")
    shop.index.shutdown()
    with pytest.raises(InvalidConfigError, match="another number"):
        shop.open(config=dataclasses.replace(shop.config, index_slot_count=SLOTS + 1))
    shop.open()
    assert len(shop.found("k")) == 3
