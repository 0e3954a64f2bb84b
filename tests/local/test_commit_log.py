"""The commit log: appends, files, reads, crashes, failing disks, threads that wait for a sync."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack_into
from typing import Any

import pytest

from tests.codec.golden_files import GOLDEN, expected, sha256
from tests.every_step import every_step
from tests.local.store_audit import flip_bits, opened, parts_of
from tieredstore.codec.checks import matches_property_crc
from tieredstore.codec.message import decode_message
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.commit_log import CommitLog, Flusher
from tieredstore.local.config import LocalConfig
from tieredstore.local.encoder import PutRefusedError, Record, RecordBatch, RecordEncoder
from tieredstore.local.mapped_file import MappedFile, MappedFiles
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError, SegmentCorruptError
from tieredstore.model.messages import PutResult
from tieredstore.model.values import INT64_MAX, GetStatus, PutStatus
from tieredstore.testing.samples import TOPIC, a_message

FILE_BYTES = 4096
NOW = 1_700_000_000_000


def a_config(folder: Path, **more: int | bool) -> LocalConfig:
    sizes: dict[str, Any] = {"commit_log_file_bytes": FILE_BYTES} | more
    return LocalConfig(store_path=str(folder), **sizes)


def a_log(folder: Path, runtime: Runtime | None = None, **more: int | bool) -> CommitLog:
    log = CommitLog(a_config(folder, **more), runtime or Runtime.inline(now_ms=NOW), MappedFiles())
    log.load()
    return log


def some_records(count: int, **more: int | bool) -> list[Record]:
    encoder = RecordEncoder(a_config(Path("unused"), **more))
    return [encoder.encode(a_message(number)) for number in range(count)]


def a_batch(count: int, **more: int | bool) -> RecordBatch:
    return RecordBatch.joined(some_records(count, **more))


def a_record_of(size: int) -> Record:
    record = RecordEncoder(LocalConfig()).encode(
        a_message(topic="t", body_bytes=size - 92, properties={})
    )
    assert record.size == size
    return record


def appended(log: CommitLog, record: Record, queue_offset: int) -> int:
    """Append the record; return where the log put it."""
    record.queue_offset = queue_offset
    log.append_one(record)
    return record.log_offset


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    log = a_log(tmp_path)
    yield log
    log.close()


def test_an_empty_log_has_nothing(log: CommitLog) -> None:
    assert (log.min_offset, log.max_offset, log.flushed_offset) == (None, 0, 0)
    assert log.message_bytes(0) is None
    assert log.queue.read(0, 1) is None
    assert log.flush() == 0
    scan = log.scan_from(0)
    assert list(scan) == []
    assert (scan.end, scan.torn) == (0, None)
    assert log.append(a_batch(0), []).log_offsets == []


def test_an_append_of_one_record_that_fails_leaves_nothing(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(log, a_record_of(1_000), 0)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "append", fail)
        with pytest.raises(OSError, match="Input/output error"):
            appended(log, a_record_of(500), 1)
    assert log.max_offset == 1_000
    assert log.flushed_offset == 1_000  # it was synced, then cut
    assert appended(log, a_record_of(500), 1) == 1_000


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_records_get_their_offsets_and_times_and_are_read_back(
    tmp_path: Path, count: int, crc: bool
) -> None:
    log = a_log(tmp_path, property_crc_enabled=crc)
    records = a_batch(count, property_crc_enabled=crc)
    run = log.append(records, list(range(7, 7 + count)))
    assert run.store_timestamp == NOW
    assert run.sizes == records.sizes
    for number, (offset, size) in enumerate(zip(run.log_offsets, run.sizes, strict=True)):
        raw = log.message_bytes(offset, size)
        assert raw == log.message_bytes(offset)
        assert raw is not None
        stored = decode_message(raw)
        assert (stored.queue_offset, stored.log_offset) == (7 + number, offset)
        assert stored.store_timestamp == NOW
        assert stored.body == a_message(number).body
        assert matches_property_crc(raw) is crc
    assert run.end_offset == log.max_offset
    scan = log.scan_from(0)
    assert [int(at) for columns in scan for at in columns.log_offsets] == run.log_offsets
    assert scan.end == log.max_offset
    log.close()


def test_one_by_one_and_in_a_batch_give_the_same_bytes(tmp_path: Path) -> None:
    records = some_records(150)
    one, many = a_log(tmp_path / "one"), a_log(tmp_path / "many")
    many.append(RecordBatch.joined(records), range(150))
    ends = [appended(one, record, number) + record.size for number, record in enumerate(records)]
    assert ends[-1] == one.max_offset
    assert one.max_offset == many.max_offset
    one.close()
    many.close()
    held = [
        {path.name: path.read_bytes() for path in (tmp_path / name / "commitlog").iterdir()}
        for name in ("one", "many")
    ]
    assert held[0] == held[1]
    assert len(held[0]) > 3


def test_prepared_and_rolled_back_messages_have_no_queue_offset(log: CommitLog) -> None:
    encoder = RecordEncoder(LocalConfig())
    for count in (1, 20):
        flags = [(0, 4, 8, 12)[number % 4] for number in range(count + 3)]
        message = a_message()
        records = [
            encoder.encode(
                type(message)(topic="T", queue_id=0, body=b"x", sys_flag=flag, born_timestamp=1)
            )
            for flag in flags
        ]
        run = log.append(RecordBatch.joined(records), [5] * len(records))
        for flag, offset in zip(flags, run.log_offsets, strict=True):
            raw = log.message_bytes(offset)
            assert raw is not None
            assert decode_message(raw).queue_offset == (0 if flag in (4, 12) else 5)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("left", "rolls"), [(101, False), (100, True)])
def test_a_record_and_eight_bytes_must_fit(
    log: CommitLog, left: int, rolls: bool, batch: bool
) -> None:
    filler = a_record_of(FILE_BYTES - left)
    record = a_record_of(93)
    if batch:
        offset = log.append(RecordBatch.joined([filler, record]), [0, 1]).log_offsets[1]
    else:
        appended(log, filler, 0)
        offset = appended(log, record, 1)
    assert offset == (FILE_BYTES if rolls else FILE_BYTES - left)
    blank = log.queue.read(FILE_BYTES - left, 100)
    if rolls:
        assert blank == bytes.fromhex("00000064cbd43194") + bytes(92)
        assert log.message_bytes(FILE_BYTES - 100) is None
    next_offset = appended(log, record, 2)
    assert next_offset == FILE_BYTES + (93 if rolls else 0)


def test_a_record_that_fits_no_file_is_refused_before_anything_is_written(log: CommitLog) -> None:
    appended(log, a_record_of(FILE_BYTES - 8), 0)
    too_large = a_record_of(FILE_BYTES - 7)
    for put in (
        lambda: log.append(RecordBatch.joined([a_record_of(100), too_large]), [1, 2]),
        lambda: appended(log, too_large, 1),
    ):
        with pytest.raises(PutRefusedError) as caught:
            put()
        assert caught.value.status is PutStatus.MESSAGE_ILLEGAL
        assert log.max_offset == FILE_BYTES - 8


def test_an_append_is_whole_or_nothing_when_a_file_cannot_be_made(
    log: CommitLog, tmp_path: Path
) -> None:
    appended(log, a_record_of(1000), 0)
    blocker = tmp_path / "commitlog" / f"{2 * FILE_BYTES:020d}"
    blocker.mkdir()
    batch = RecordBatch.joined([a_record_of(1500)] * 6)
    with pytest.raises(BackendRefusedError):
        log.append(batch, range(6))
    assert log.max_offset == 1000
    blocker.rmdir()
    assert log.append(batch, range(6)).log_offsets[0] == 1000


def test_store_times_never_go_back(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    runtime = Runtime.inline(now_ms=NOW)
    runtime.clock = clock
    log = a_log(tmp_path, runtime)
    (record,) = some_records(1)
    log.last_store_timestamp = NOW + 50  # as recovery would set it
    log.append_one(record)
    assert record.store_timestamp == NOW + 50
    assert log.append(a_batch(2), [1, 2]).store_timestamp == NOW + 50
    clock.advance(70)
    log.append_one(record)
    assert record.store_timestamp == NOW + 70
    log.close()


def test_a_file_is_made_ahead_while_the_log_runs_and_goes_when_it_closes(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    log.start()
    log.start()
    log.append(a_batch(30), range(30))
    names = sorted(int(path.name) for path in (tmp_path / "commitlog").iterdir())
    assert names[-1] == log.file_start_of(log.max_offset) + FILE_BYTES
    log.close()
    log.close()
    assert len(list((tmp_path / "commitlog").iterdir())) == len(names) - 1


def test_every_message_of_a_golden_store_is_read_by_its_offset(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "local-clean", tmp_path, dirs_exist_ok=True)
    log = a_log(tmp_path, commit_log_file_bytes=32768)
    for row in expected("local-clean.expect-messages.json"):
        raw = log.message_bytes(row["physicalOffset"], row["size"])
        assert raw is not None
        assert sha256(raw) == row["sha256"]
        assert log.message_bytes(row["physicalOffset"]) == raw
        assert log.message_bytes(row["physicalOffset"] + 1) is None
    log.close()


def test_old_files_go_and_offset_zero_is_not_found_then(log: CommitLog) -> None:
    run = log.append(a_batch(60), range(60))
    log.flush()
    log.queue.delete_before(2 * FILE_BYTES)
    assert log.min_offset == 2 * FILE_BYTES
    assert log.message_bytes(0) is None
    assert log.message_bytes(0, run.sizes[0]) is None
    assert log.message_bytes(run.log_offsets[-1]) is not None
    scan = log.scan_from(0)
    offsets = [int(at) for columns in scan for at in columns.log_offsets]
    assert offsets == [at for at in run.log_offsets if at >= 2 * FILE_BYTES]


def test_destroy_leaves_nothing(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    log.append(a_batch(40), range(40))
    log.destroy()
    assert not (tmp_path / "commitlog").exists()


LOG_FILE, QUEUE_FILE = 8_192, 400


def filled(root: Path) -> list[PutResult]:
    store = opened(root, commit_log_file_bytes=LOG_FILE)
    puts = [store.put_message(a_message(number, body_bytes=200)) for number in range(100)]
    store.shutdown()
    return puts


def reopened(root: Path) -> LocalMessageStore:
    return opened(root, commit_log_file_bytes=LOG_FILE)


def unit_becomes(root: Path, offset: int, log_offset: int, size: int) -> None:
    start = offset * UNIT_BYTES // QUEUE_FILE * QUEUE_FILE
    path = root / "consumequeue" / TOPIC / "0" / f"{start:020d}"
    data = bytearray(path.read_bytes())
    pack_into(">qi", data, offset * UNIT_BYTES - start, log_offset, size)
    path.write_bytes(data)


WRONG_UNITS = {f"size {size}": (None, size) for size in (-1, 0, 1, 90, -(2**31))} | {
    "behind the log": (1 << 40, 200),
    "below zero": (-(1 << 40), 200),
}


@pytest.mark.parametrize(("log_offset", "size"), WRONG_UNITS.values(), ids=WRONG_UNITS)
def test_a_unit_that_names_no_record_is_made_again_when_it_is_read(
    tmp_path: Path, log_offset: int | None, size: int
) -> None:
    puts = filled(tmp_path)
    unit_becomes(tmp_path, 3, puts[3].log_offset if log_offset is None else log_offset, size)
    store = reopened(tmp_path)
    assert not store.damages  # opening looks at the last files of a queue only
    (got,) = store.get_message(TOPIC, 0, 3, count_max=1).messages
    assert (got.queue_offset, got.log_offset) == (3, puts[3].log_offset)
    assert store.store_time(TOPIC, 0, 3) == puts[3].store_timestamp
    (damage,) = store.damages
    assert damage.mended
    store.shutdown()
    store = reopened(tmp_path)
    store.get_message(TOPIC, 0, 3)
    assert not store.damages


@pytest.fixture
def holed(tmp_path: Path) -> tuple[Path, PutResult]:
    """A store without its second log file, and the first message that was in it."""
    puts = filled(tmp_path)
    (tmp_path / "commitlog" / f"{LOG_FILE:020d}").unlink()
    return tmp_path, next(put for put in puts if put.log_offset >= LOG_FILE)


def test_a_log_file_that_is_missing_is_reported(holed: tuple[Path, PutResult]) -> None:
    root, _ = holed
    store = reopened(root)
    assert store.recovery is not None
    (damage,) = store.recovery.damages
    assert (damage.log_offset, damage.resumed_at) == (LOG_FILE, 2 * LOG_FILE)
    assert damage.path == str(root / "commitlog" / f"{LOG_FILE:020d}")
    store.shutdown()
    with LocalReader.open(root) as reader:
        assert damage in reader.log_facts().damages


def test_messages_of_a_missing_log_file_are_damage_and_no_expired_ones(
    holed: tuple[Path, PutResult],
) -> None:
    root, put = holed
    store = reopened(root)
    for read in (
        lambda: store.get_message(TOPIC, 0, put.queue_offset),
        lambda: store.read_range(TOPIC, 0, put.queue_offset, count_max=3, bytes_max=9_999),
        lambda: store.message_at(put.log_offset),
        lambda: store.message_at(put.log_offset, put.size),
    ):
        with pytest.raises(SegmentCorruptError, match=f"{LOG_FILE:020d}"):
            read()
    before = store.get_message(TOPIC, 0, 0, count_max=100)
    assert before.status is GetStatus.FOUND


def test_a_query_that_misses_a_message_of_a_missing_log_file_says_so(
    holed: tuple[Path, PutResult],
) -> None:
    root, put = holed
    store = reopened(root)
    got = store.query_message(TOPIC, f"key-{put.queue_offset}")
    assert not got.messages
    assert not got.complete
    assert store.query_message(TOPIC, "key-0").complete


def test_a_query_that_misses_an_overwritten_message_says_so(tmp_path: Path) -> None:
    puts = filled(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[puts[3].log_offset + 4] ^= 0x10  # its magic
    path.write_bytes(data)
    store = reopened(tmp_path)
    assert not store.query_message(TOPIC, "key-3").complete


def test_a_query_is_complete_without_what_has_expired(tmp_path: Path) -> None:
    filled(tmp_path)
    store = reopened(tmp_path)
    parts_of(store).log.queue.delete_before(LOG_FILE)
    got = store.query_message(TOPIC, "key-0")
    assert not got.messages
    assert got.complete


def test_a_place_that_is_asked_for_with_no_size_of_a_record_is_empty(tmp_path: Path) -> None:
    filled(tmp_path)
    store = reopened(tmp_path)
    for log_offset, size in ((0, -5), (0, 0), (-1, None), (10**30, None), (1 << 63, 10)):
        assert store.message_at(log_offset, size) is None


def test_a_torn_golden_store_goes_on_where_java_went_on(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "local-crash" / "torn", tmp_path, dirs_exist_ok=True)
    log = a_log(tmp_path, commit_log_file_bytes=32768)
    recover(log)
    assert (log.max_offset, log.flushed_offset) == (87575, 87575)
    last = tmp_path / "commitlog" / f"{65536:020d}"
    assert last.read_bytes()[87575 - 65536 :] == bytes(98304 - 87575)
    assert max(path.name for path in last.parent.iterdir()) == last.name
    assert log.append(a_batch(1), [0]).log_offsets == [87575]
    log.close()


def recover(log: CommitLog) -> list[int]:
    """Recover a log as the store does after a crash; return the offsets of what survived."""
    scan = log.scan_from(0)
    offsets = [int(at) for columns in scan for at in columns.log_offsets]
    log.queue.truncate_dirty(scan.end)
    log.queue.sync_from(0)
    log.last_store_timestamp = scan.last_store_timestamp
    return offsets


def test_a_log_cut_at_any_byte_of_its_last_three_records_recovers(tmp_path: Path) -> None:
    log = a_log(tmp_path / "whole")
    run = log.append(a_batch(12), range(12))
    log.close()
    whole = (tmp_path / "whole" / "commitlog" / f"{0:020d}").read_bytes()
    assert run.end_offset < FILE_BYTES
    folder = tmp_path / "cut" / "commitlog"
    folder.mkdir(parents=True)
    path = folder / f"{0:020d}"
    (late,) = some_records(1)

    def cut_at(cut: int) -> None:
        path.write_bytes(whole[:cut] + bytes(FILE_BYTES - cut))
        log = a_log(tmp_path / "cut")
        ends = [at + size for at, size in zip(run.log_offsets, run.sizes, strict=True)]
        kept = [at for at, end in zip(run.log_offsets, ends, strict=True) if end <= cut]
        assert recover(log) == kept
        assert appended(log, late, 99) == ends[len(kept) - 1]
        log.close()

    every_step(cut_at, steps=range(run.log_offsets[-3], run.end_offset + 1))


def test_bytes_behind_a_torn_tail_never_come_back(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    run = log.append(a_batch(8), range(8))
    log.close()
    path = tmp_path / "commitlog" / f"{0:020d}"
    log = a_log(tmp_path)
    log.queue.truncate_dirty(run.log_offsets[2])
    assert path.read_bytes()[run.log_offsets[2] :] == bytes(FILE_BYTES - run.log_offsets[2])
    log.close()


def test_damage_in_the_middle_is_reported_and_not_served(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    run = log.append(a_batch(30), range(30))
    bad = run.log_offsets[5]
    log.close()
    path = tmp_path / "commitlog" / f"{0:020d}"
    flip_bits(path, bad + 100, 1)
    log = a_log(tmp_path)
    scan = log.scan_from(0)
    found = [int(at) for columns in scan for at in columns.log_offsets]
    assert found == [at for at in run.log_offsets if at != bad]
    assert [damage.log_offset for damage in scan.damages] == [bad]
    for size in (None, run.sizes[5]):
        with pytest.raises(SegmentCorruptError) as caught:
            log.message_bytes(bad, size)
        assert (caught.value.path, caught.value.position) == (str(path), bad)
    assert log.message_bytes(run.log_offsets[4], run.sizes[4])
    assert log.message_bytes(run.log_offsets[6], run.sizes[6])
    with pytest.raises(SegmentCorruptError):
        log.message_bytes(run.log_offsets[6], run.sizes[6] - 1)
    log.close()


def test_after_a_failed_sync_the_log_takes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(tmp_path)
    records = a_batch(2)
    log.append(records, [0, 1])

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(BackendRefusedError):
            log.flush()
    with pytest.raises(BackendRefusedError, match="reopen the store"):
        log.append(records, [2, 3])
    with pytest.raises(BackendRefusedError, match="reopen the store"):
        log.append_one(*some_records(1))
    with pytest.raises(BackendRefusedError):
        log.flush()
    assert log.flushed_offset == 0


def test_an_append_that_fails_while_all_before_it_expires_loses_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(tmp_path)
    appended(log, a_record_of(3_000), 0)

    def expire_and_fail(*arguments: Any) -> Any:
        assert log.queue.delete_before(log.max_offset)
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(RecordBatch, "placed", expire_and_fail)
        with pytest.raises(OSError, match="no space left"):
            appended(log, a_record_of(2_000), 1)
    assert (log.min_offset, log.max_offset) == (FILE_BYTES, FILE_BYTES)
    assert appended(log, a_record_of(2_000), 1) == FILE_BYTES
    log.flush()
    log.close()
    again = a_log(tmp_path)
    assert again.min_offset == FILE_BYTES
    assert [columns.log_offsets.tolist() for columns in again.scan_from(0)] == [[FILE_BYTES]]
    again.close()


def test_appends_readers_and_syncs_run_side_by_side(tmp_path: Path) -> None:
    runtime = Runtime.threads()
    log = CommitLog(a_config(tmp_path), runtime, MappedFiles(open_max=2))
    log.load()
    log.start()
    records = a_batch(40)
    done = threading.Event()
    wrong: list[object] = []
    seen = [0]

    def read() -> None:
        while not done.is_set():
            scan = log.scan_from(0)
            rows = sum(len(columns) for columns in scan)
            if scan.damages or scan.torn or rows < seen[-1]:
                wrong.append((scan.damages, scan.torn, rows))
            seen.append(rows)

    def write() -> None:
        for _ in range(25):
            run = log.append(records, range(40))
            log.flush()
            if log.flushed_offset < run.end_offset:
                wrong.append(run.end_offset)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write) for _ in range(2)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    log.close()
    runtime.close()
    assert wrong == []
    log = a_log(tmp_path)
    assert len(recover(log)) == 2 * 25 * 40
    log.close()


class Disk:
    """A log of numbers: an append raises `wrote`, a sync moves `flushed` up to it."""

    def __init__(self) -> None:
        self.wrote = 0
        self.flushed = 0
        self.syncs = 0
        self.during: Callable[[], None] = lambda: None
        self.guard = threading.Lock()

    def append(self) -> int:
        with self.guard:
            self.wrote += 1
            return self.wrote

    def flush(self) -> int:
        end = self.wrote
        self.syncs += 1
        self.during()
        self.flushed = end
        return end


def a_flusher(disk: Disk, runtime: Runtime | None = None) -> Flusher:
    return Flusher(
        disk.flush, lambda: disk.flushed, runtime or Runtime.inline(), interval_ms=500, path="log"
    )


def test_a_lone_waiter_syncs_in_its_own_thread() -> None:
    disk = Disk()
    threads: list[threading.Thread] = []
    disk.during = lambda: threads.append(threading.current_thread())
    assert a_flusher(disk).wait_until_flushed(disk.append(), 1000)
    assert threads == [threading.current_thread()]


def test_what_is_on_disk_already_needs_no_sync() -> None:
    disk = Disk()
    disk.flushed = 5
    assert a_flusher(disk).wait_until_flushed(5, 0)
    assert disk.syncs == 0


@pytest.mark.parametrize("timeout_ms", [600_000, INT64_MAX])
def test_all_who_came_during_one_sync_share_the_next(timeout_ms: int) -> None:
    disk = Disk()
    flusher = a_flusher(disk, Runtime.threads())
    waiting = threading.Barrier(16)
    first = threading.Event()
    gate = threading.Event()

    def hold() -> None:
        first.set()
        assert gate.wait(240)

    disk.during = hold
    told: list[bool] = []

    def put_first() -> None:
        told.append(flusher.wait_until_flushed(disk.append(), timeout_ms))

    def put() -> None:
        offset = disk.append()
        waiting.wait(240)
        told.append(flusher.wait_until_flushed(offset, timeout_ms) and disk.flushed >= offset)

    threads = [threading.Thread(target=put_first)]
    threads[0].start()
    assert first.wait(240)
    threads += [threading.Thread(target=put) for _ in range(15)]
    for thread in threads[1:]:
        thread.start()
    waiting.wait(240)  # all have appended, too late for the sync that is under way
    gate.set()
    for thread in threads:
        thread.join()
    assert told == [True] * 16
    assert disk.syncs == 2


def test_a_wait_ends_when_the_time_is_up_while_another_syncs() -> None:
    disk = Disk()
    flusher = a_flusher(disk)
    started, gate = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert gate.wait(240)

    disk.during = hold
    other = threading.Thread(target=flusher.wait_until_flushed, args=(disk.append(), 1000))
    other.start()
    assert started.wait(240)
    assert not flusher.wait_until_flushed(disk.append(), 0)
    gate.set()
    other.join()
    disk.during = lambda: None
    assert flusher.wait_until_flushed(2, 0)


def test_after_a_failed_sync_nobody_is_told_that_anything_is_on_disk() -> None:
    disk = Disk()
    flusher = a_flusher(disk)

    def fail() -> None:
        raise BackendRefusedError("log", "fdatasync", "no space left")

    disk.during = fail
    with pytest.raises(BackendRefusedError, match="no space left"):
        flusher.wait_until_flushed(disk.append(), 1000)
    disk.during = lambda: None
    with pytest.raises(BackendRefusedError, match="failed before"):
        flusher.wait_until_flushed(disk.append(), 1000)
    with pytest.raises(BackendRefusedError, match="failed before"):
        flusher.flush()
    assert (disk.syncs, disk.flushed) == (1, 0)


def test_those_who_wait_for_a_sync_that_fails_fail_too() -> None:
    disk = Disk()
    flusher = a_flusher(disk)
    started, gate = threading.Event(), threading.Event()

    def fail() -> None:
        started.set()
        assert gate.wait(240)
        raise BackendRefusedError("log", "fdatasync", "no space left")

    disk.during = fail
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            flusher.wait_until_flushed(disk.append(), 600_000)
        except BackendRefusedError as error:
            failed.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    threads[0].start()
    assert started.wait(240)
    for thread in threads[1:]:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert len(failed) == 4
    assert disk.syncs == 1


def test_the_service_syncs_when_woken_and_is_quiet_after_a_failure() -> None:
    disk = Disk()
    flusher = a_flusher(disk)
    flusher.wake()
    flusher.start()
    flusher.start()
    disk.append()
    flusher.wake()
    assert disk.flushed == 1

    def fail() -> None:
        raise BackendRefusedError("log", "fdatasync", "no space left")

    disk.during = fail
    with pytest.raises(BackendRefusedError):
        flusher.wake()
    flusher.wake()
    assert disk.syncs == 2
    flusher.stop()
    flusher.stop()
    flusher.wake()
    assert disk.syncs == 2


def test_a_sync_that_was_interrupted_is_made_by_the_next_in_its_group() -> None:
    disk = Disk()
    flusher = a_flusher(disk)
    disk.append()
    group = flusher._coming

    def interrupt() -> None:
        disk.during = lambda: None
        raise KeyboardInterrupt

    class Lock:
        """Another thread of the group gets the lock first."""

        def __enter__(self) -> None:
            group.lock = own
            disk.during = interrupt
            with pytest.raises(KeyboardInterrupt):
                flusher.flush()
            own.acquire()

        def __exit__(self, *_: object) -> None:
            own.release()

    own, group.lock = group.lock, Lock()  # type: ignore[assignment]
    assert flusher.flush() == disk.flushed == 1


def test_the_service_of_a_threaded_runtime_syncs_without_being_asked() -> None:
    disk = Disk()
    synced = threading.Event()
    disk.during = synced.set
    runtime = Runtime.threads()
    flusher = Flusher(disk.flush, lambda: disk.flushed, runtime, interval_ms=1)
    flusher.start()
    assert synced.wait(240)
    flusher.stop()
    runtime.close()
