"""Threads that read while another appends, commits, rolls and drops."""

from __future__ import annotations

import threading

from tests.flat.store_kit import Tier, unplaced
from tests.flat.tiers import run_of
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentNotFoundError, StoreClosedError
from tieredstore.testing.samples import a_record

RECORDS = [a_record(number, body_bytes=number * 7 % 60) for number in range(600)]
MODEL = [unplaced(record) for record in RECORDS]


def read_until(file: FlatMessageFile, done: threading.Event, wrong: list[object]) -> None:
    """Read what is committed, over and over; note whatever is not the message it should be."""
    seen = 0
    at = 0
    try:
        while not done.is_set() or seen < len(RECORDS):
            commit = file.commit_offset
            if commit < seen:
                wrong.append(f"the commit went back from {seen} to {commit}")
            seen = commit
            if not commit:
                continue
            at = (at * 31 + 7) % commit
            unit = file.units(at, 1)
            start, size = int(unit.log_offsets[0]), int(unit.message_bytes[0])
            if unplaced(file.log.read(start, size)) != MODEL[at]:
                wrong.append(f"message {at} is another")
            last = file.queue.read(20 * (commit - 1), 20)
            if last == bytes(20):
                wrong.append("zeros")
    except Exception as error:  # noqa: BLE001 - a reader must see no error at all
        wrong.append(error)


def test_readers_see_committed_messages_only_and_each_byte_of_them() -> None:
    tier = Tier(log_bytes=4000, queue_units=32)
    file = tier.file()
    done, wrong = threading.Event(), list[object]()
    readers = [threading.Thread(target=read_until, args=(file, done, wrong)) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        while file.append_offset < len(RECORDS):
            first = file.append_offset
            file.append(run_of(first, RECORDS[first : first + 9]))
            if first % 2:
                file.append(run_of(file.append_offset, RECORDS[file.append_offset :][:2]))
            assert file.commit()
    finally:
        done.set()
        for reader in readers:
            reader.join(240)
    assert wrong == []
    assert not any(reader.is_alive() for reader in readers)


def test_a_reader_of_what_is_dropped_gets_the_message_or_an_error() -> None:
    tier = Tier(log_bytes=4000, queue_units=32)
    file = tier.file()
    while file.append_offset < len(RECORDS):
        file.append(run_of(file.append_offset, RECORDS[file.append_offset :][:9]))
        assert file.commit()
    done, wrong = threading.Event(), list[object]()

    def read() -> None:
        at = 0
        while not done.is_set():
            at = (at + 17) % len(RECORDS)
            try:
                unit = file.units(at, 1)
                record = file.log.read(int(unit.log_offsets[0]), int(unit.message_bytes[0]))
            except (OffsetOutOfRangeError, SegmentNotFoundError, StoreClosedError):
                continue
            except Exception as error:  # noqa: BLE001 - anything else is wrong
                wrong.append(error)
                return
            if unplaced(record) != MODEL[at]:
                wrong.append(at)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        while len(file.queue.segments) > 1:
            file.queue.drop(file.queue.segments[:1])
            file.log.drop(file.log.segments[:1])
    finally:
        done.set()
        for reader in readers:
            reader.join(240)
    assert wrong == []
