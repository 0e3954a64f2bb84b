"""The commit log: appending, rolling, reading, damage, crash and failing disks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.codec.golden_files import GOLDEN, expected, sha256
from tieredstore.codec.checks import matches_property_crc
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.encoder import PutRefusedError, RecordBatch, RecordEncoder
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.model.errors import BackendRefusedError
from tieredstore.model.values import PutStatus
from tieredstore.testing.samples import a_message

FILE_BYTES = 4096
NOW = 1_700_000_000_000


def a_config(folder: Path, **more: int | bool) -> LocalConfig:
    sizes: dict[str, Any] = {"commit_log_file_bytes": FILE_BYTES} | more
    return LocalConfig(store_path=str(folder), **sizes)


def a_log(folder: Path, runtime: Runtime | None = None, **more: int | bool) -> CommitLog:
    log = CommitLog(a_config(folder, **more), runtime or Runtime.inline(now_ms=NOW), MappedFiles())
    log.load()
    return log


def some_records(count: int, **more: int | bool) -> list[RecordBatch]:
    encoder = RecordEncoder(a_config(Path("unused"), **more))
    return [encoder.encode(a_message(number)) for number in range(count)]


def a_batch(count: int, **more: int | bool) -> RecordBatch:
    return RecordBatch.joined(some_records(count, **more))


def a_record_of(size: int) -> RecordBatch:
    record = RecordEncoder(LocalConfig()).encode(
        a_message(topic="t", body_bytes=size - 92, properties={})
    )
    assert list(record.sizes) == [size]
    return record


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
    for number, record in enumerate(records):
        one.append(record, [number])
    many.append(RecordBatch.joined(records), range(150))
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
        log.append(filler, [0])
        offset = log.append(record, [1]).log_offsets[0]
    assert offset == (FILE_BYTES if rolls else FILE_BYTES - left)
    blank = log.queue.read(FILE_BYTES - left, 100)
    if rolls:
        assert blank == bytes.fromhex("00000064cbd43194") + bytes(92)
        assert log.message_bytes(FILE_BYTES - 100) is None
    next_offset = log.append(record, [2]).log_offsets[0]
    assert next_offset == FILE_BYTES + (93 if rolls else 0)


def test_a_record_that_fits_no_file_is_refused_before_anything_is_written(log: CommitLog) -> None:
    log.append(a_record_of(FILE_BYTES - 8), [0])
    too_large = RecordBatch.joined([a_record_of(100), a_record_of(FILE_BYTES - 7)])
    with pytest.raises(PutRefusedError) as caught:
        log.append(too_large, [1, 2])
    assert caught.value.status is PutStatus.MESSAGE_ILLEGAL
    assert log.max_offset == FILE_BYTES - 8


def test_an_append_is_whole_or_nothing_when_a_file_cannot_be_made(
    log: CommitLog, tmp_path: Path
) -> None:
    log.append(a_record_of(1000), [0])
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
    log.last_store_timestamp = NOW + 50  # as recovery found it
    assert log.append(record, [0]).store_timestamp == NOW + 50
    clock.advance(70)
    assert log.append(record, [1]).store_timestamp == NOW + 70
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
