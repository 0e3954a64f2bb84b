"""What RocketMQ, or an older version of it, left behind: taken over, cleared away or made again."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.index.store_kit import ALL, BROKER, INDEX_PATH, ITEMS, SLOTS, Shop, put_again
from tieredstore.codec.key_hashes import key_hashes
from tieredstore.codec.queue_unit import encode_unit
from tieredstore.codec.tiered_index import TieredIndexHeader, encode_header, file_bytes
from tieredstore.index.compaction import Compaction
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.rows import IndexColumns
from tieredstore.model.errors import BackendUnavailableError, InvalidConfigError
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

INDEX = SegmentType.INDEX


def forget_notes(shop: Shop) -> None:
    for kind in ("index", "index-queue", "index-file", "index-start"):
        for key in shop.catalogue.notes(kind):
            shop.catalogue.delete_note(kind, key)


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
    shop.put(["k1", "k2"])
    shop.index.shutdown()
    (folder / "1690000000000").write_bytes(bytes(size))
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert put_again(shop) == 2
    assert shop.found("k2") == [(0, 1000)]


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
    shop.leave_to_rocketmq()
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
    shop.leave_to_rocketmq()
    forget_notes(shop)  # the catalogue is Java's
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    assert shop.found("k1") == [(0, 0)]


def test_a_queue_made_anew_after_an_index_was_taken_over_is_indexed_from_its_begin(
    tmp_path: Path,
) -> None:
    """Its first commit passed the end that was taken over, and a crash came before the index."""
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.leave_to_rocketmq()
    forget_notes(shop)
    shop.clock.advance(1000)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    shop.clock.advance(1000)
    shop.catalogue.delete_segment(f"{BROKER}/{TOPIC}/0", SegmentType.CONSUME_QUEUE, 0)
    shop.commit(9)
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0


def upload_as_java(shop: Shop, *, items: int) -> None:
    """What RocketMQ does at its end with the one local file, of which it knows so many items."""
    path = shop.local_path()
    file = IndexStoreFile.open(
        path, slot_count=SLOTS, item_capacity=ITEMS, item_count=items, read_only=False
    )
    data = b"".join(map(bytes, Compaction(file).blocks()))
    shop.provider.open(INDEX_PATH, INDEX, 0).write(0, data)
    row = SegmentRecord(
        path=INDEX_PATH,
        type=INDEX,
        base_offset=0,
        size=len(data),
        create_timestamp=shop.clock.now_ms(),
        begin_timestamp=int(path.name),
        end_timestamp=file.end_timestamp,
    )
    shop.catalogue.put(row)
    file.close()
    path.unlink()


def test_a_file_of_ours_that_rocketmq_uploaded_is_not_put_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.index.shutdown()
    upload_as_java(shop, items=4)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 2
    assert not shop.catalogue.notes("index-file")
    assert not shop.catalogue.notes("index-start")
    assert shop.found("k2") == [(0, 1000)]
    shop.put(["k3"])
    shop.reopen()
    for number in (1, 2, 3):
        assert shop.found(f"k{number}") == [(0, 1000 * number - 1000)]
    assert sum(file.item_count for file in shop.index._writer.files) == 2  # of k3 alone


@pytest.mark.parametrize("lost", [None, 3])
def test_what_rocketmq_put_after_us_is_not_put_again(tmp_path: Path, lost: int | None) -> None:
    """But from the first message on that its files lack."""
    shop = Shop(tmp_path)
    shop.put(["k0", "k1"], unique=False)
    shop.index.shutdown()
    shop.clock.advance(1000)
    file = IndexStoreFile.open(shop.local_path(), slot_count=SLOTS, item_capacity=ITEMS)
    numbers = [number for number in range(2, 6) if number != lost]
    places = np.array([1000 * number for number in numbers], np.int64)
    file.put(
        IndexColumns(
            key_hashes=key_hashes([f"{TOPIC}#k{number}" for number in numbers]),
            topic_ids=shop.topic_id,
            queue_ids=0,
            log_offsets=places,
            message_bytes=np.full(len(numbers), 100, np.int64),
            store_timestamps=np.full(len(numbers), shop.clock.now_ms(), np.int64),
        )
    )
    file.close()
    upload_as_java(shop, items=2 + len(numbers))
    shop.commit(6)
    units = [
        encode_unit(log_offset=1000 * number, message_bytes=100, tags_code=0) for number in range(6)
    ]
    shop.provider.open(f"{BROKER}/{TOPIC}/0", SegmentType.CONSUME_QUEUE, 0).write(
        0, b"".join(units)
    )
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == (lost or 6)
    shop.reopen()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == (lost or 6)
    assert shop.found("k2") == [(0, 2000)]


def test_a_file_of_ours_of_which_rocketmq_uploaded_less_is_put_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.index.shutdown()
    upload_as_java(shop, items=2)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert put_again(shop) == 2
    assert shop.found("k2") == [(0, 1000)]


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
    shop.drop_footer(6)
    shop.catalogue.delete_note("index", "sizes")
    shop.index.shutdown()
    with pytest.raises(InvalidConfigError, match="another number"):
        shop.open(config=dataclasses.replace(shop.config, index_slot_count=SLOTS + 1))
    shop.open()
    assert len(shop.found("k")) == 3


@pytest.mark.parametrize("uploaded", [False, True])
@pytest.mark.parametrize("local", ["kept", "lost"])
def test_where_the_notes_of_our_own_index_are_lost_all_is_put_again(
    tmp_path: Path, uploaded: bool, local: str
) -> None:
    shop = Shop(tmp_path)
    if uploaded:
        shop.put(["k0"])
        shop.index.seal()
        shop.clock.advance(1000)
        shop.put(["k1", "k2"])
    else:
        shop.put(["k0", "k1", "k2"])
    shop.index.shutdown()
    if local == "lost":
        shutil.rmtree(tmp_path / "tiered_index_file")
    forget_notes(shop)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert put_again(shop) == 3
    for number in range(3):
        assert shop.found(f"k{number}") == [(0, 1000 * number)]


@pytest.mark.parametrize("file", ["local", "footer", "java"])
def test_an_open_with_wrong_sizes_leaves_no_trace(tmp_path: Path, file: str) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    if file != "local":
        shop.index.seal()
    shop.index.shutdown()
    if file == "java":
        shop.drop_footer(2)
    forget_notes(shop)
    wrong = dataclasses.replace(shop.config, index_slot_count=SLOTS + 1)
    with pytest.raises(InvalidConfigError):
        shop.open(config=wrong)
    assert not shop.catalogue.notes("index")
    shop.open()
    put_again(shop)
    assert shop.found("k") == [(0, 0)]


def test_an_index_of_java_is_not_taken_over_unseen(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    shop.index.shutdown()
    shop.drop_footer(2)
    forget_notes(shop)
    with pytest.raises(BackendUnavailableError):
        shop.open(Faults({0: Fault.BEFORE}))
    assert not shop.catalogue.notes("index")
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    assert shop.found("k") == [(0, 0)]


@pytest.mark.parametrize("slots", [SLOTS - 7, SLOTS + 1, SLOTS + 7])
def test_a_reader_with_other_slots_never_says_that_there_is_nothing(
    tmp_path: Path, slots: int
) -> None:
    """28 bytes an item are 3.5 slots: a length alone does not tell one from the other."""
    shop = Shop(tmp_path)
    shop.put(["k"] * 10)
    shop.index.seal()
    shop.drop_footer(20)
    shop.catalogue.delete_note("index", "sizes")
    shop.config = dataclasses.replace(shop.config, index_slot_count=slots)
    reader = shop.reader()
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert not answer.complete
    assert not answer.hits


def test_a_file_that_somebody_else_made_with_other_sizes_is_refused_and_kept(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.shutdown()
    path = tmp_path / "tiered_index_file" / str(STORE_TIMESTAMP + 500)
    path.write_bytes(bytes(file_bytes(slot_count=SLOTS + 1, item_capacity=ITEMS)))
    with pytest.raises(InvalidConfigError, match="must never change"):
        shop.open()
    assert path.exists()
    path.unlink()
    shop.open()
    assert shop.found("k") == [(0, 0)]
