"""The commit log after crashes, with damage, with a failing disk, and with many threads."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.codec.golden_files import GOLDEN
from tests.every_step import every_step
from tests.local.log.test_commit_log import FILE_BYTES, a_batch, a_config, a_log, some_records
from tieredstore.driver.runtime import Runtime
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.model.errors import BackendRefusedError, SegmentCorruptError


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
    """What the store does with a log after a crash; the offsets of what survived."""
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
        assert log.append(late, [99]).log_offsets == [ends[len(kept) - 1]]
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
    data = bytearray(path.read_bytes())
    data[bad + 100] ^= 1
    path.write_bytes(data)
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
    with pytest.raises(BackendRefusedError):
        log.flush()
    assert log.flushed_offset == 0


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
