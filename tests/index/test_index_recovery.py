"""After a crash, a lost file or a failed sync, the index has every key, or it is put again."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.every_step import every_step
from tests.index.store_kit import BROKER, INDEX_PATH, SLOTS, Shop, open_below, put_again
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.watermarks import QueueId
from tieredstore.index.writer import LocalFolder
from tieredstore.model.errors import BackendRefusedError, MetadataError
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record

INDEX = SegmentType.INDEX


def test_what_was_not_synced_is_put_again_and_only_that(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.index._writer.sync()
    shop.put(["k3"])
    assert len(shop.found("k3")) == 1
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 2
    assert shop.found("k3") == []  # cut off, so that it will not be there twice
    assert put_again(shop) == 1
    for number in (1, 2, 3):
        assert shop.found(f"k{number}") == [(0, 1000 * (number - 1))]


def test_watermarks_move_by_age_and_not_with_every_put(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=4000)
    before = shop.faults.steps
    for number in range(100):
        shop.put([f"k{number}"])
        shop.clock.advance(100)
    assert shop.faults.steps - before == 100  # only the rows of the queue
    shop.clock.advance(30_000)
    shop.put(["k100"])
    assert shop.faults.steps - before == 102
    assert shop.index._watermarks.held(QueueId(shop.topic_id, 0)) == 101


def test_a_put_where_the_watermark_is_changes_nothing_in_the_catalogue(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.reopen()
    steps = shop.faults.steps
    shop.give(2, [a_record(2, properties={"KEYS": "k3"})])
    assert shop.faults.steps == steps


def test_an_ordinary_end_needs_nothing_to_be_put_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.reopen()
    assert put_again(shop) == 0
    assert shop.found("k1") == [(0, 0)]


@pytest.mark.parametrize(
    "harm", ["torn", "garbage", "gone", "empty", "cut off", "longer", "one bit", "a hash"]
)
def test_a_damaged_local_file_is_made_again(tmp_path: Path, harm: str) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.index.seal()  # the first file is safe
    shop.clock.advance(1000)
    shop.put(["k2", "k3"])
    shop.index.shutdown()
    path = shop.local_path()
    data = bytearray(path.read_bytes())
    if harm == "torn":
        data[28 + 8 * SLOTS + 32 :] = bytes(len(data) - 28 - 8 * SLOTS - 32)
    elif harm == "garbage":
        data[:28] = b"x" * 28
    elif harm == "one bit":
        data[28 + 8 * SLOTS + 32 + 19] ^= 4  # in a log offset
    elif harm == "a hash":  # in its upper half, which is not in the item
        notes = path.with_name(path.name + ".keys")
        hashes = bytearray(notes.read_bytes())
        hashes[-1] ^= 1
        notes.write_bytes(hashes)
    if harm == "gone":
        path.unlink()
    else:
        cut = {"empty": data[:0], "cut off": data[:-900], "longer": data + bytes(8)}
        path.write_bytes(cut.get(harm, data))
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    assert put_again(shop) == 2
    for number in (1, 2, 3):
        assert shop.found(f"k{number}") == [(0, 1000 * (number - 1))]


def test_a_queue_made_anew_below_its_old_end_is_indexed_from_its_begin(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"] * 5)
    shop.index._writer.sync()
    shop.crash()
    shop.commit(3)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    shop.commit(9)
    shop.ends[0] = 1
    shop.put(["new"])
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1


@pytest.mark.parametrize("late_sync", [False, True])
def test_a_queue_made_anew_beyond_its_old_end_is_indexed_from_its_begin(
    tmp_path: Path, late_sync: bool
) -> None:
    """Its first commit passed the old watermark, and a crash came before the index had it."""
    shop = Shop(tmp_path)
    shop.put(["k"] * 5)
    if not late_sync:
        shop.index._writer.sync()
    shop.clock.advance(1000)
    shop.catalogue.delete_segment(f"{BROKER}/{TOPIC}/0", SegmentType.CONSUME_QUEUE, 0)
    shop.commit(9)
    if late_sync:  # writes watermarks from before the queue was destroyed
        shop.index._writer.sync()
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    shop.ends[0] = 0
    shop.put(["new"] * 9)
    shop.index._writer.sync()
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 9


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_HALF])
def test_a_crash_at_any_step_of_an_upload_loses_nothing(tmp_path: Path, fault: Fault) -> None:
    def upload(step: int) -> Shop:
        shop = Shop(tmp_path / f"{step}", items=20)
        shop.put(["k"] * 30, unique=False)
        shop.index._writer.sync()
        shop.faults.strike(fault, after=step)
        with suppress(SimulatedCrash):
            shop.index.step()
        return shop

    def check(shop: Shop, step: int) -> bool:
        if not shop.faults.crashed:
            return False
        shop.crash()
        shop.open()
        put_again(shop)
        assert len(shop.found("k")) == 30
        shop.index.step()
        assert len(shop.found("k")) == 30
        assert len(shop.segments()) == 1
        assert len(shop.local_files()) == 1
        listed = [(each.base, each.size) for each in shop.provider.list(INDEX_PATH)]
        assert listed == [(row.base_offset, row.size) for row in shop.segments()]
        return True

    assert every_step(upload, check) == 4  # row, room for the file, bytes, row


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.HALF])
def test_an_upload_that_hears_nothing_of_any_step_is_done_again(
    tmp_path: Path, fault: Fault
) -> None:
    def upload(step: int) -> tuple[Shop, int]:
        shop = Shop(tmp_path / f"{step}", items=20)
        shop.put(["k"] * 30, unique=False)
        shop.index._writer.sync()
        before = shop.faults.steps
        shop.faults.strike(fault, after=step)
        shop.index.step()
        return shop, shop.faults.steps - before

    def check(left: tuple[Shop, int], step: int) -> bool:
        shop, count = left
        shop.faults.forgive()
        assert len(shop.found("k")) == 30
        shop.clock.advance(600_000)  # time for another try
        shop.index.step()
        assert shop.index.failure is None
        assert len(shop.found("k")) == 30
        assert len(shop.segments()) == 1
        assert len(shop.local_files()) == 1
        listed = [(each.base, each.size) for each in shop.provider.list(INDEX_PATH)]
        assert listed == [(row.base_offset, row.size) for row in shop.segments()]
        return count > step

    assert every_step(upload, check) == 4


@pytest.mark.parametrize("fuller", [False, True])
def test_an_upload_that_was_cut_short_loses_no_key_put_while_the_backend_was_down(
    tmp_path: Path, fuller: bool
) -> None:
    shop = Shop(tmp_path, items=1000)
    shop.put(["k0", "k1"])
    shop.index._writer.sync()
    shop.faults.strike(Fault.CRASH_BEFORE, after=3)  # the bytes are there, the row is not
    with pytest.raises(SimulatedCrash):
        shop.index.seal()
    shop.crash()
    down = Faults(dict.fromkeys(range(2), Fault.BEFORE))
    shop.open(down)
    down.forgive()
    if fuller:  # as with a version that did not seal the file
        (file,) = shop.index._writer.files
        file._sealed = False
        shop.index._writer._current = file
    put_again(shop)
    shop.put(["k2", "k3"])
    shop.index._writer.sync()
    assert len(shop.local_files()) == (1 if fuller else 2)
    shop.clock.advance(25 * 3_600_000)
    for _ in range(2):
        shop.index.step()
        for number in range(4):
            assert shop.found(f"k{number}") == [(0, 1000 * number)]
        shop.reopen()
    assert put_again(shop) == 0


def test_a_backend_that_does_not_answer_keeps_no_index_from_opening(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.catalogue.put(SegmentRecord(path=INDEX_PATH, type=INDEX, base_offset=0))
    shop.index.shutdown()
    shop.open(Faults({0: Fault.BEFORE}))
    assert shop.found("k") == [(0, 0)]
    shop.index.seal()
    assert len(shop.segments()) == 1


def test_a_local_file_that_is_uploaded_already_goes(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index._writer.sync()
    path = shop.local_path()
    data = path.read_bytes()
    shop.index.seal()
    shop.index.shutdown()
    path.write_bytes(data)
    shop.open()
    assert not shop.local_files()
    assert shop.found("k") == [(0, 0)]


def test_no_power_cut_brings_an_uploaded_local_file_back(tmp_path: Path) -> None:
    """Once its uploaded copy has expired, it would count as a foreign file and be uploaded."""
    here = tmp_path / "here"
    here.mkdir()
    with ForgetfulDisk(here) as disk:
        shop = Shop(here)
        shop.put(["k"])
        shop.index._writer.sync()
        (name,) = shop.local_files()
        shop.index.seal()
        after = disk.synced(tmp_path / "after")
    assert not (after / "tiered_index_file" / name).exists()


def test_a_local_file_is_not_the_first_one_whose_row_was_lowered_to_its_name(
    tmp_path: Path,
) -> None:
    """Otherwise it would count as uploaded and be removed: answers would lack its keys, but claim
    to be complete.
    """
    shop = Shop(tmp_path)
    shop.put(["a", "b", "c"], times=[STORE_TIMESTAMP] * 3)
    shop.index.seal()
    shop.put(["late"], times=[STORE_TIMESTAMP - 10])
    shop.index.seal()
    shop.put(["later"], times=[STORE_TIMESTAMP - 11])
    shop.index._writer.sync()
    assert shop.local_files() == [str(shop.segments()[0].begin_timestamp)]
    shop.reopen()
    shop.index.seal()
    assert shop.found("later") == [(0, 4000)]


def test_the_end_of_a_file_is_kept_over_a_restart(tmp_path: Path) -> None:
    """RocketMQ resets the end to the begin, so that the uploaded file expires too early (weakness
    5).
    """
    shop = Shop(tmp_path)
    shop.put(["k"], times=[STORE_TIMESTAMP + 9_999])
    shop.reopen()
    file: IndexStoreFile = shop.index._writer.files[0]
    assert file.end_timestamp == STORE_TIMESTAMP + 9_999
    shop.index.seal()
    assert shop.segments()[0].end_timestamp == STORE_TIMESTAMP + 9_999


def test_a_disk_without_room_loses_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 10, unique=False)

    def full(*_: object) -> None:
        raise BackendRefusedError("disk", "create", "there is no room")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "create", full)
        answer = shop.ask("k")
        assert not answer.complete
        assert not answer.hits
        shop.clock.advance(5000)
        with pytest.raises(BackendRefusedError):
            shop.put(["k"] * 30, unique=False)
    shop.ends[0] = 10  # the feed tries again with the same messages
    shop.put(["k"] * 30, unique=False)
    assert sorted(shop.found("k")) == [(0, 1000 * number) for number in range(40)]


def test_a_catalogue_that_fails_moves_no_watermark_and_is_tried_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.faults.strike(Fault.BEFORE)
    with pytest.raises(MetadataError):
        shop.index._writer.sync()
    shop.put(["k"])
    shop.index._writer.sync()
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 2
    assert len(shop.found("k")) == 2


HALF_MINUTE_MS = 30_000


def fail_next_sync(patch: pytest.MonkeyPatch, calls: int = 1) -> None:
    real, left = os.fdatasync, [calls]

    def fdatasync(descriptor: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(5, "the disk is broken")
        real(descriptor)

    patch.setattr(os, "fdatasync", fdatasync)


def problem(shop: Shop) -> str:
    return shop.index.problem or ""


@pytest.mark.parametrize("catalogue_fails", [False, True])
def test_one_failed_sync_stops_neither_puts_nor_uploads_and_loses_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalogue_fails: bool
) -> None:
    shop = Shop(tmp_path, items=1000)
    shop.put(["k0", "k1"])
    shop.index.seal()
    shop.clock.advance(1000)
    shop.put(["k2", "k3"])
    shop.index._writer.drain()
    shop.clock.advance(HALF_MINUTE_MS)
    fail_next_sync(monkeypatch)
    if catalogue_fails:
        shop.faults.strike(Fault.BEFORE, after=1)  # after the row of the queue
    shop.put(["k4"])  # does not raise
    for number in range(5, 10):
        shop.clock.advance(HALF_MINUTE_MS)
        shop.put([f"k{number}"])
    for number in range(10):
        assert shop.found(f"k{number}") == [(0, 1000 * number)]
    shop.index.step()
    assert "rebuilt after a restart" in problem(shop)
    shop.index.seal()
    shop.index.step()
    assert len(shop.segments()) == 2  # the abandoned file is not uploaded
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 2
    shop.reopen()
    assert not problem(shop)
    assert put_again(shop) == 8
    for number in range(10):
        assert shop.found(f"k{number}") == [(0, 1000 * number)]
    shop.reopen()
    assert put_again(shop) == 0


def test_a_full_file_that_cannot_be_synced_is_not_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of it afterwards may not be what was put."""
    shop = Shop(tmp_path)
    shop.put(["k0"])
    fail_next_sync(monkeypatch)
    shop.index.seal()
    assert not shop.segments()
    assert "rebuilt after a restart" in problem(shop)
    shop.reopen()
    assert put_again(shop) == 1
    assert shop.found("k0") == [(0, 0)]


def test_a_file_that_fills_while_others_are_synced_is_not_uploaded_before_its_own_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path, items=10)
    flush, left = IndexStoreFile.flush, [True]

    def flush_slowly(file: IndexStoreFile) -> int:
        count = flush(file)
        if left[0]:
            left[0] = False
            shop.clock.advance(1000)
            shop.put([f"k{number}" for number in range(10, 30)])
            shop.index._writer.drain()
        return count

    monkeypatch.setattr(IndexStoreFile, "flush", flush_slowly)
    shop.put([f"k{number}" for number in range(10)])
    shop.index.seal()
    shop.clock.advance(HALF_MINUTE_MS)
    shop.index.step()
    shop.index.step()
    assert problem(shop) == ""
    shop.index.shutdown()
    assert not open_below(tmp_path)
    shop.open()
    assert put_again(shop) == 0
    for number in range(30):
        assert shop.found(f"k{number}") == [(0, 1000 * number)]


def test_a_failed_sync_takes_back_what_the_file_had_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync, the content of the file on disk is unknown."""
    shop = Shop(tmp_path)
    shop.put(["k0"])
    shop.index._writer.sync()
    shop.put(["k1"])
    fail_next_sync(monkeypatch)
    shop.index._writer.sync()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    shop.crash()
    shop.open()
    assert put_again(shop) == 2
    assert shop.found("k0") == [(0, 0)]


def test_a_failed_sync_of_one_file_keeps_what_begins_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    begins = []
    for queue_id in (0, 1):
        shop.put(["k"], queue_id=queue_id)
        shop.index._writer.roll()
        begins.append(shop.local_files()[-1])
        shop.clock.advance(1000)
    fail_next_sync(monkeypatch)
    shop.index._writer.sync()
    kept = [key for key in shop.catalogue.notes("index-start") if key.startswith(begins[1])]
    assert len(kept) == len(shop.catalogue.notes("index-start")) == 1


def test_a_catalogue_that_fails_does_not_make_a_put_fail(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k0"])
    shop.clock.advance(HALF_MINUTE_MS)
    shop.faults.strike(Fault.BEFORE, after=1)
    shop.put(["k1"])
    assert problem(shop)
    shop.index.step()
    assert not problem(shop)
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 2


def test_a_torn_file_that_was_never_synced_costs_only_what_it_held(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k0"])
    shop.index.seal()
    shop.clock.advance(1000)
    shop.put(["k1"])
    shop.index._writer.drain()
    shop.crash()
    path = shop.local_path()
    data = path.read_bytes()
    path.write_bytes(b"x" * 28 + data[28:])
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
