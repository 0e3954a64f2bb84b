"""A local index file: what fits, what is found, what survives a crash or a kill, what is refused;
and Java's files, made again from its puts.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from tests.codec.golden_files import GOLDEN
from tests.every_step import every_step
from tests.index.index_kit import (
    BEGIN,
    BEGINS,
    ITEMS,
    SLOTS,
    Row,
    check_javas_answers,
    cold,
    columns_of,
    create,
    golden_rows,
    place,
    reopen,
    scan,
    uploaded,
)
from tests.index.store_kit import open_below
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    END_MAGIC,
    decode_header,
    item_position,
    slot_position,
)
from tieredstore.index.footer import decode_tail
from tieredstore.index.keys import IndexColumns, KeyNotes, notes_path
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.uploaded import _exactly, newest_timestamp
from tieredstore.index.writer import LocalFolder
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
)
from tieredstore.model.values import INT64_MAX
from tieredstore.testing.disk import ForgetfulDisk

FOREVER = {"begin": -INT64_MAX, "end": INT64_MAX}


def rows_of(count: int, *, keys: int = 50, slots: int = 0) -> list[Row]:
    return [
        Row(f"T#k{number % keys}", 1, 2, number * 100, 9, BEGIN + 10 * number)
        for number in range(count)
    ]


def test_keys_of_a_message_are_never_parted(tmp_path: Path) -> None:
    file = create(tmp_path, items=11)  # has room for ten
    assert file.messages_that_fit(np.array([3, 0, 4, 3, 1])) == 4
    assert file.messages_that_fit(np.array([3, 4, 4, 0])) == 2
    assert file.messages_that_fit(np.array([11])) == 0
    assert file.messages_that_fit(np.array([], np.int64)) == 0
    file.put(columns_of(rows_of(7)))
    assert file.messages_that_fit(np.array([3, 1])) == 1
    assert file.messages_that_fit(np.array([4, 1])) == 0


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    file = create(tmp_path, items=11)
    file.put(columns_of(rows_of(8)))
    before = file.path.read_bytes()
    with pytest.raises(SegmentSealedError):
        file.put(columns_of(rows_of(3)))
    assert file.path.read_bytes() == before
    file.seal()
    with pytest.raises(SegmentSealedError):
        file.put(columns_of(rows_of(1)))


def test_one_number_stands_for_a_column(tmp_path: Path) -> None:
    rows = rows_of(40)
    columns = columns_of(rows)
    one, other = create(tmp_path, BEGIN), create(tmp_path, BEGIN + 1)
    shared = IndexColumns(
        key_hashes=columns.key_hashes,
        topic_ids=1,
        queue_ids=2,
        log_offsets=columns.log_offsets,
        message_bytes=columns.message_bytes,
        store_timestamps=columns.store_timestamps + 1,
    )
    one.put(columns)
    other.put(shared)
    assert one.path.read_bytes()[20:] == other.path.read_bytes()[20:]
    assert len(shared.part(3, 5)) == 2


@pytest.mark.parametrize("log_offset", [2**31, 2**32 - 1, 2**32, 5 * 2**32 + 7, 2**62 + 3])
def test_a_message_far_behind_in_a_log_is_found_at_its_place(
    tmp_path: Path, log_offset: int
) -> None:
    file = create(tmp_path)
    file.put(columns_of([Row("T#a", 1, 2, log_offset, 9, BEGIN)]))
    opened, _ = cold(uploaded(file), SLOTS)
    for asked in (file, opened):
        (found,) = asked.find("T#a", begin=BEGIN, end=BEGIN, count_max=9)
        assert place(found) == (1, 2, log_offset)


def test_a_disk_that_fails_where_notes_begin_is_an_error_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "the disk is broken")

    path = tmp_path / "notes"
    path.write_bytes(b"")
    monkeypatch.setattr("tieredstore.index.keys.write_all", broken)
    monkeypatch.setattr("tieredstore.index.keys.read_all", broken)
    for make in (KeyNotes.create, KeyNotes.open):
        with pytest.raises(OSError, match="the disk is broken"):
            make(path, begin_timestamp=BEGIN)
        assert not open_below(tmp_path)


def test_notes_that_the_system_does_not_open_are_an_error_of_ours(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.close()
    notes_path(file.path).unlink()
    notes_path(file.path).mkdir()
    with pytest.raises(BackendRefusedError, match="Is a directory"):
        reopen(file.path)
    assert not open_below(tmp_path)


def test_an_empty_file_of_somebody_else_is_ours_from_then_on(tmp_path: Path) -> None:
    """Nothing could be put into it without notes of its keys."""
    file = create(tmp_path)
    file.close()
    notes_path(file.path).unlink()
    again = reopen(file.path)
    assert again.notes is not None
    again.put(columns_of([Row("T#a", 1, 2, 3, 9, BEGIN)]))
    again.close()
    assert len(reopen(file.path).find("T#a", begin=BEGIN, end=BEGIN, count_max=9)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_file_that_a_crash_left_is_never_taken_for_another_programs(
    tmp_path: Path, seed: int
) -> None:
    def make(step: int) -> ForgetfulDisk:
        folder = tmp_path / f"at-{step}"
        folder.mkdir()
        with ForgetfulDisk(folder, stop_at=step + 1) as disk:
            create(folder).delete()
        return disk

    def check(disk: ForgetfulDisk, step: int) -> bool:
        dice = random.Random(f"{seed} {step}")
        cuts = (disk.cut(tmp_path / f"{step}-{number}", dice) for number in range(20))
        for left in (disk.written(tmp_path / f"{step}"), *cuts):
            index = LocalFolder(StoreConfig(), left)
            assert all(map(index.is_ours, index.begins()))
        return disk.died

    assert every_step(make, check) > 5


def test_nor_is_one_of_which_a_kill_left_only_the_notes(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    file = create(here)
    file.close()
    with ForgetfulDisk(here) as disk:
        file.path.unlink()  # its name is not synced yet
        LocalFolder(StoreConfig(), here).remove_stray_notes()
    assert not list(here.iterdir())
    dice = random.Random(1)
    for number in range(20):
        index = LocalFolder(StoreConfig(), disk.cut(tmp_path / f"cut-{number}", dice))
        assert all(map(index.is_ours, index.begins()))


def test_a_file_that_exists_keeps_its_notes(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of([Row("T#a", 1, 2, 3, 9, BEGIN)]))
    file.close()
    with pytest.raises(BackendRefusedError, match="File exists"):
        create(tmp_path)
    assert len(reopen(file.path).find("T#a", begin=BEGIN, end=BEGIN, count_max=9)) == 1


def test_nothing_is_cut_at_512(tmp_path: Path) -> None:
    file = create(tmp_path)
    rows = [row._replace(text="T#hot") for row in rows_of(1200)]
    file.put(columns_of(rows))
    found = file.find("T#hot", **FOREVER, count_max=5000)
    assert [place(item) for item in found] == scan(rows, "T#hot", **FOREVER)
    assert file.find("T#hot", **FOREVER, count_max=7) == found[:7]
    assert file.find("T#hot", **FOREVER, count_max=0) == []
    assert file.find("T#hot", begin=2, end=1, count_max=5) == []


def test_a_put_that_was_cut_short_is_linked_again(tmp_path: Path) -> None:
    file = create(tmp_path)
    rows = rows_of(200)
    file.put(columns_of(rows[:100]))
    slots = file.path.read_bytes()[28 : slot_position(97)]
    file.put(columns_of(rows[100:]))
    whole = file.path.read_bytes()
    file.close()
    file.path.write_bytes(whole[:28] + slots + whole[slot_position(97) :])
    mended = reopen(file.path)
    assert file.path.read_bytes() == whole
    assert len(mended.find("T#k7", **FOREVER, count_max=9)) == 4


def test_items_that_were_not_flushed_can_be_left_out(tmp_path: Path) -> None:
    file = create(tmp_path)
    rows = rows_of(200)
    file.put(columns_of(rows[:120]))
    kept = file.flush()
    file.put(columns_of(rows[120:]))
    file.close()
    data = bytearray(file.path.read_bytes())
    at = item_position(kept + 3, slot_count=97)
    data[at : at + 1000] = bytes(1000)  # like pages that were not synced before a power cut
    file.path.write_bytes(data)
    with pytest.raises(SegmentCorruptError):
        reopen(file.path)
    cut = reopen(file.path, item_count=kept)
    assert cut.item_count == kept
    cut.put(columns_of(rows[120:]))
    for text in ("T#k0", "T#k49"):
        found = [place(item) for item in cut.find(text, **FOREVER, count_max=99)]
        assert found == scan(rows, text, **FOREVER)
    assert cut.times is not None
    assert cut.times.first <= rows[0].store_timestamp
    assert cut.times.last >= rows[-1].store_timestamp
    data_up = uploaded(cut)
    assert decode_tail(data_up, file_bytes=len(data_up)).filter_blocks == 1


ITEM_5 = item_position(5, slot_count=97)
DAMAGE = {
    "another magic": (0, b"abcd"),
    "another begin": (4, bytes(8)),
    "more slots than there are": (20, (98).to_bytes(4)),
    "more items than there is room": (24, (1300).to_bytes(4)),
    "items that were never written": (24, (400).to_bytes(4)),
    "a loop": (ITEM_5 + 28, (5).to_bytes(4)),
    "an item that leads to a newer one": (ITEM_5 + 28, (150).to_bytes(4)),
    "a negative link": (ITEM_5 + 28, (-1).to_bytes(4, signed=True)),
    "a hash of another slot": (ITEM_5, (12345).to_bytes(4)),
    "a negative hash": (ITEM_5, (-9).to_bytes(4, signed=True)),
    "an item of zeros": (ITEM_5, bytes(32)),
    "a chain that ends too early": (item_position(190, slot_count=97) + 28, bytes(4)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_seen_when_a_file_is_opened(tmp_path: Path, what: str) -> None:
    file = create(tmp_path)
    file.put(columns_of(rows_of(200)))
    file.close()
    data = bytearray(file.path.read_bytes())
    at, wrong = DAMAGE[what]
    data[at : at + len(wrong)] = wrong
    file.path.write_bytes(data)
    with pytest.raises(SegmentCorruptError):
        reopen(file.path)


def test_slots_are_made_from_the_items(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of(rows_of(200)))
    file.close()
    whole = file.path.read_bytes()
    damaged = bytearray(whole)
    damaged[28 : slot_position(97)] = os.urandom(8 * 97)
    damaged[32 : slot_position(97) : 8] = bytes(97)
    for third in range(33, 36):
        damaged[third : slot_position(97) : 8] = bytes(97)
    file.path.write_bytes(damaged)
    reopen(file.path)
    assert file.path.read_bytes() == whole


def test_a_reader_is_not_led_in_a_circle(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of([row._replace(text="T#hot") for row in rows_of(50)]))
    data = bytearray(file.path.read_bytes())
    at = item_position(20, slot_count=97)
    data[at + 28 : at + 32] = (40).to_bytes(4)
    file.path.write_bytes(data)
    reader = reopen(file.path, read_only=True)
    with pytest.raises(SegmentCorruptError, match="item 40 of 50 follows item 20"):
        reader.find("T#hot", **FOREVER, count_max=99)


def test_a_reader_is_not_led_behind_the_last_item(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of([row._replace(text="T#hot") for row in rows_of(50)]))
    data = bytearray(file.path.read_bytes())
    slots = range(28, slot_position(97), 8)
    heads = [at for at in slots if data[at : at + 4] == (50).to_bytes(4)]
    heads += [at + 4 for at in slots if data[at + 4 : at + 8] == (50).to_bytes(4)]
    (head,) = heads
    data[head : head + 4] = (51).to_bytes(4)
    file.path.write_bytes(data)
    reader = reopen(file.path, read_only=True)
    with pytest.raises(SegmentCorruptError, match="item 51 of 50"):
        reader.find("T#hot", **FOREVER, count_max=99)


@pytest.mark.parametrize("count", [0, 1, 50])
def test_opening_puts_the_header_right_on_the_disk(tmp_path: Path, count: int) -> None:
    file = create(tmp_path)
    file.put(columns_of(rows_of(count)))
    file.close()
    whole = file.path.read_bytes()
    used = decode_header(whole).used_slot_count
    assert (used > 0) == (count > 0)
    for at, wrong in ((0, END_MAGIC.to_bytes(4, signed=True)), (20, (used + 1).to_bytes(4))):
        damaged = bytearray(whole)
        damaged[at : at + 4] = wrong
        file.path.write_bytes(damaged)
        reopen(file.path).close()
        assert file.path.read_bytes() == whole


def test_opening_puts_the_magic_of_a_full_file_right(tmp_path: Path) -> None:
    file = create(tmp_path, items=6)
    file.put(columns_of(rows_of(5)))
    file.close()
    whole = file.path.read_bytes()
    file.path.write_bytes(BEGIN_MAGIC.to_bytes(4, signed=True) + whole[4:])
    reopen(file.path, items=6).close()
    assert file.path.read_bytes() == whole


def test_a_file_of_which_nothing_counts_forgets_when_its_items_were_stored(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of(rows_of(5)))
    file.close()
    again = reopen(file.path, item_count=0)
    assert again.times is None
    assert again.notes is not None
    assert again.notes.times is None


def test_an_end_before_the_seconds_of_the_newest_item_is_put_right(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of([rows_of(1)[0]._replace(store_timestamp=BEGIN + 1500)]))
    file.close()
    notes_path(file.path).unlink()
    data = file.path.read_bytes()
    file.path.write_bytes(data[:12] + (BEGIN + 1).to_bytes(8) + data[20:])
    assert BEGIN + 1500 <= reopen(file.path).end_timestamp <= BEGIN + 1999


def test_a_file_without_its_notes_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **how: object) -> NoReturn:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(KeyNotes, "create", fails)
    with pytest.raises(BackendRefusedError):
        create(tmp_path)
    assert not (tmp_path / str(BEGIN)).exists()


def test_the_newest_message_is_that_of_a_file_which_has_one(tmp_path: Path) -> None:
    assert newest_timestamp([], []) == 0
    file = create(tmp_path)
    assert newest_timestamp([file], []) == 0
    file.put(columns_of(rows_of(5)))
    assert newest_timestamp([file], []) == BEGIN + 40


def test_a_read_that_is_too_short_is_damage() -> None:
    assert _exactly(lambda at, length: b"x" * length, 7, 5, "index") == b"xxxxx"
    with pytest.raises(SegmentCorruptError, match="4 bytes were read of 5"):
        _exactly(lambda at, length: b"x" * 4, 7, 5, "index")


def test_a_message_has_bytes(tmp_path: Path) -> None:
    file = create(tmp_path)
    with pytest.raises(ValueError, match="at least one byte"):
        file.put(columns_of([rows_of(1)[0]._replace(message_bytes=0)]))
    assert file.item_count == 0


def test_a_reader_sees_what_another_process_puts(tmp_path: Path) -> None:
    file = create(tmp_path)
    reader = reopen(file.path, read_only=True)
    assert reader.find("T#k1", **FOREVER, count_max=9) == []
    rows = rows_of(60)
    file.put(columns_of(rows))
    assert len(reader.find("T#k1", **FOREVER, count_max=9)) == 2
    assert reader.room == 0
    assert reader.times is None
    with pytest.raises(SegmentSealedError):
        reader.put(columns_of(rows))


@pytest.mark.parametrize("length", [0, 1, 27, 28, 1000])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    file = create(tmp_path)
    file.close()
    os.truncate(file.path, length)
    with pytest.raises((SegmentCorruptError, ValueError)):
        reopen(file.path)
    assert not open_below(tmp_path)
    with pytest.raises(SegmentNotFoundError):
        reopen(tmp_path / "17")
    (tmp_path / "017").write_bytes(b"")
    with pytest.raises(SegmentCorruptError, match="no begin timestamp"):
        reopen(tmp_path / "017")


def test_a_full_disk_is_an_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*where: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = create(tmp_path, items=1_000_000)
    file.put(columns_of(rows_of(100)))
    many = rows_of(300_000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(BackendRefusedError):
            file.put(columns_of(many))
        with pytest.raises(BackendRefusedError):
            create(tmp_path, BEGIN + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(BEGIN), f"{BEGIN}.keys"]
    assert file.item_count == 100
    file.put(columns_of(many))
    assert file.item_count == 300_100
    assert file.path.stat().st_size == file.sizes.file_bytes


def test_a_flush_that_failed_fails_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    file = create(tmp_path)
    file.put(columns_of(rows_of(5)))
    assert file.flush() == 5
    assert not file.has_failed
    assert file.notes is not None
    monkeypatch.setattr(file.notes, "sync", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(BackendRefusedError):
            file.flush()
    with pytest.raises(BackendRefusedError):
        file.flush()
    assert file.has_failed


def test_a_file_without_notes_has_not_failed(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of(rows_of(5)))
    file.close()
    notes_path(file.path).unlink()
    again = reopen(file.path)
    assert again.notes is None
    assert not again.has_failed


def test_closing_leaves_readers_their_map(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of(rows_of(60)))
    items, walk = file.items(), file.matches("T#k3", **FOREVER)
    next(walk)
    file.delete()
    file.close()
    assert len(items) == 60
    assert int(items["log_offset"][59]) == 5900
    assert len(list(walk)) == 1
    with pytest.raises(StoreClosedError):
        file.find("T#k3", **FOREVER, count_max=1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_the_same_begin_is_left_alone(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.put(columns_of(rows_of(60)))
    with pytest.raises(BackendRefusedError):
        create(tmp_path)
    file.close()
    assert reopen(file.path).item_count == 60
    assert (tmp_path / f"{BEGIN}.keys").stat().st_size == 32 + 8 * 60


@pytest.mark.parametrize("damage", ["gone", "short", "wrong", "zeros", "header"])
def test_without_all_keys_there_is_no_filter(tmp_path: Path, damage: str) -> None:
    file = create(tmp_path)
    file.put(columns_of(golden_rows(1)))
    file.close()
    notes = tmp_path / f"{BEGIN}.keys"
    data = bytearray(notes.read_bytes())
    if damage == "wrong":
        data[32 + 8 * 700] ^= 1
    elif damage == "zeros":
        data[-8:] = bytes(8)
    elif damage == "header":
        data[9] ^= 1
    notes.write_bytes(data[:-8] if damage == "short" else data)
    if damage == "gone":
        notes.unlink()
    opened: IndexStoreFile = reopen(file.path)
    found = uploaded(opened)
    assert decode_tail(found[-16 * 1024 :], file_bytes=len(found)).filter_blocks == 0


BEFORE_UPLOAD = GOLDEN / "tier-index/local-before-upload"
WRITTEN = {
    0: BEFORE_UPLOAD / str(BEGINS[0]),
    1: BEFORE_UPLOAD / str(BEGINS[1]),
    4: GOLDEN / "tier-index/store/tiered_index_file" / str(BEGINS[4]),
}


@pytest.mark.parametrize("number", WRITTEN)
@pytest.mark.parametrize("step", [1, 3, 15, 16, 100, 5000])
def test_batches_of_any_size_give_javas_file(tmp_path: Path, number: int, step: int) -> None:
    file = create(tmp_path, BEGINS[number])
    rows = golden_rows(number)
    for start in range(0, len(rows), step):
        file.put(columns_of(rows[start : start + step]))
    file.flush()
    assert file.path.read_bytes() == WRITTEN[number].read_bytes()
    assert file.times.first == min(row.store_timestamp for row in rows)
    assert file.times.last == max(row.store_timestamp for row in rows)


@pytest.mark.parametrize("number", WRITTEN)
def test_opening_javas_file_changes_nothing(tmp_path: Path, number: int) -> None:
    path = tmp_path / str(BEGINS[number])
    shutil.copy(WRITTEN[number], path)
    with_header = decode_header(path.read_bytes())
    file = reopen(path)
    assert file.item_count == with_header.item_count
    assert file.notes is None
    file.close()
    assert path.read_bytes() == WRITTEN[number].read_bytes()


def test_an_end_that_java_forgot_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / str(BEGINS[0])
    data = bytearray(WRITTEN[0].read_bytes())
    true_end = decode_header(data).end_timestamp
    data[12:20] = data[4:12]  # as Java does when it opens the file (10656)
    path.write_bytes(data)
    with_slack = reopen(path).end_timestamp
    assert true_end <= with_slack <= true_end + 999


@pytest.mark.parametrize("number", WRITTEN)
def test_a_file_goes_on_where_it_was_closed(tmp_path: Path, number: int) -> None:
    rows = golden_rows(number)
    file = create(tmp_path, BEGINS[number])
    file.put(columns_of(rows[:100]))
    file.close()
    file = reopen(file.path)
    assert file.times is not None
    assert file.times.exact
    file.put(columns_of(rows[100:]))
    assert file.path.read_bytes() == WRITTEN[number].read_bytes()
    assert file.times.exact


@pytest.mark.parametrize(("slots", "items"), [(SLOTS + 1, ITEMS), (SLOTS, ITEMS + 1), (64, 300)])
def test_other_sizes_are_refused_in_words(tmp_path: Path, slots: int, items: int) -> None:
    file = create(tmp_path)
    file.close()
    with pytest.raises(InvalidConfigError, match="must never change"):
        reopen(file.path, slots, items)


def test_the_magic_turns_with_the_last_item(tmp_path: Path) -> None:
    file = create(tmp_path, items=4)
    rows = golden_rows(0)[:3]
    file.put(columns_of(rows[:2]))
    assert decode_header(file.path.read_bytes()).magic == BEGIN_MAGIC
    file.put(columns_of(rows[2:]))
    assert decode_header(file.path.read_bytes()).magic != BEGIN_MAGIC
    assert file.room == 0


def test_javas_answers_are_found_in_its_unsealed_file(tmp_path: Path) -> None:
    path = tmp_path / str(BEGINS[4])
    shutil.copy(WRITTEN[4], path)
    assert check_javas_answers(reopen(path), BEGINS[4]) > 3


KILLED_ITEMS = 200_000
BATCH = 700


def rows_from(start: int) -> list[Row]:
    return [
        Row(f"T#k{number % 997}", 1, 2, number, 9, BEGIN + number)
        for number in range(start, start + BATCH)
    ]


def put_until_killed(folder: Path, told: int) -> None:
    """Runs in a child; never returns."""
    file = create(folder, slots=499, items=KILLED_ITEMS)
    while file.room > BATCH:
        file.put(columns_of(rows_from(file.item_count)))
        os.write(told, b".")
    os._exit(0)


def killed(folder: Path, after: int) -> None:
    listener, told = os.pipe()
    child = os.fork()
    if child == 0:
        put_until_killed(folder, told)
    os.close(told)
    for _ in range(after):
        os.read(listener, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(listener)


def check(folder: Path, after: int) -> None:
    killed(folder, after)
    file = reopen(folder / str(BEGIN), slots=499, items=KILLED_ITEMS)
    assert file.item_count >= BATCH * after
    rows = [row for start in range(0, file.item_count, BATCH) for row in rows_from(start)]
    rows = rows[: file.item_count]
    for text in [f"T#k{number}" for number in range(0, 997, 50)]:
        when = {"begin": 0, "end": INT64_MAX}
        found = [place(item) for item in file.find(text, **when, count_max=9999)]
        assert found == scan(rows, text, **when)
    file.delete()


@pytest.mark.parametrize("after", [1, 5, 20])
def test_a_killed_put_loses_no_counted_key(tmp_path: Path, after: int) -> None:
    check(tmp_path, after)


@pytest.mark.torture
def test_a_hundred_killed_puts_lose_no_counted_key(tmp_path: Path) -> None:
    for turn in range(100):
        check(tmp_path, 1 + turn % 40)
