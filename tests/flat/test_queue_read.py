"""Runs of messages come back as they were appended, as far as was asked."""

from __future__ import annotations

import pytest

from tests.flat.crafted import LOG, QUEUE, same_but_for_log_offset
from tests.flat.tiers import CountingSource, OneQueue, fill, numbered, run_of
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import FEW_ROWS_MAX, read_run
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.messages import MessageRun
from tieredstore.testing.samples import a_record

MANY = FEW_ROWS_MAX * 2


def read(file: FlatMessageFile, offset: int = 0, count_max: int = 4096) -> MessageRun:
    return read_run(file, offset, count_max=count_max, bytes_max=1 << 20)


@pytest.mark.parametrize("count", [1, 3, FEW_ROWS_MAX, FEW_ROWS_MAX + 1, MANY])
def test_messages_come_back_as_they_were_appended(count: int) -> None:
    file = OneQueue().open()
    records = numbered(7, count + 5)
    fill(file, records, at=7)
    run = read(file, 8, count)
    assert run.first_offset == 8
    assert same_but_for_log_offset(run, records[1 : count + 1])
    assert run.tags_codes.tolist() == list(range(8, 8 + count))
    assert run.log_offsets.tolist() == [
        int.from_bytes(run.record(row)[28:36]) for row in range(count)
    ]


@pytest.mark.parametrize("offset", [-1, 0, 6, 12, 13, 2**62])
def test_outside_of_what_is_committed_there_is_an_empty_run(offset: int) -> None:
    file = OneQueue().open()
    fill(file, numbered(7, 5), at=7)
    file.append(run_of(12, numbered(12, 3)))
    run = read(file, offset)
    assert len(run) == 0
    assert run.first_offset == run.end_offset == offset
    assert len(run.log_offsets) == len(run.starts) == len(run.tags_codes) == 0


@pytest.mark.parametrize("count_max", [0, -1])
def test_who_asks_for_no_message_gets_none(count_max: int) -> None:
    file = OneQueue().open()
    fill(file, numbered(0, 5))
    assert len(read(file, 0, count_max)) == 0


def test_bytes_max_counts_the_bytes_of_records_and_gives_at_least_one() -> None:
    file = OneQueue().open()
    records = numbered(0, MANY)
    fill(file, records)
    size = len(records[0])
    for bytes_max, count in ((-5, 1), (0, 1), (1, 1), (size, 1), (size * 2, 2), (size * 3 - 1, 2)):
        assert len(read_run(file, 0, count_max=MANY, bytes_max=bytes_max)) == count
    some = sum(len(record) for record in records[:60])
    assert len(read_run(file, 0, count_max=MANY, bytes_max=some)) == 60
    assert len(read_run(file, 0, count_max=MANY, bytes_max=some - 1)) == 59


def test_a_message_larger_than_the_limit_is_read_alone() -> None:
    file = OneQueue().open()
    records = [a_record(0), a_record(1, body_bytes=5000), a_record(2)]
    fill(file, records)
    assert read_run(file, 0, count_max=9, bytes_max=1000).end_offset == 1
    run = read_run(file, 1, count_max=9, bytes_max=1000)
    assert same_but_for_log_offset(run, records[1:2])


def test_a_run_goes_on_over_any_number_of_segments() -> None:
    tier = OneQueue(log_bytes=1000, queue_units=3)
    file = tier.open()
    records = numbered(0, 40, body_bytes=120)
    fill(file, records)
    assert len(file.log.segments) > 5
    assert len(file.queue.segments) > 5
    assert same_but_for_log_offset(read(file), records)


def test_a_read_takes_two_reads_of_the_backend() -> None:
    file = OneQueue().open()
    fill(file, numbered(0, MANY))
    source = CountingSource()
    read_run(file, 0, count_max=MANY, bytes_max=1 << 20, source=source)
    assert [kind for kind, _, _ in source.reads] == [QUEUE, LOG]


def test_no_more_units_are_read_than_bytes_max_has_room_for() -> None:
    file = OneQueue().open()
    fill(file, numbered(0, MANY))
    source = CountingSource()
    read_run(file, 0, count_max=2**40, bytes_max=910, source=source)
    assert source.reads[0] == (QUEUE, 0, 11 * UNIT_BYTES)


def test_a_gap_in_the_queue_ends_the_run_and_is_no_message() -> None:
    file = OneQueue().open()
    fill(file, numbered(0, 4))
    file.skip_to(9)
    fill(file, numbered(9, 3))
    assert read(file, 0).end_offset == 4
    assert len(read(file, 4)) == len(read(file, 8)) == 0
    assert read(file, 9).end_offset == 12


def test_what_expires_while_it_is_read_is_an_empty_run() -> None:
    tier = OneQueue(log_bytes=1000)
    file = tier.open()
    fill(file, numbered(0, 30, body_bytes=120))

    class Late(CountingSource):
        def read(self, asked: FlatAppendFile, offset: int, length: int) -> bytes:
            if asked is file.log:
                file.log.drop(file.log.segments[:2])
            return super().read(asked, offset, length)

    assert len(read_run(file, 0, count_max=9, bytes_max=10**6, source=Late())) == 0


def test_a_closed_queue_says_so() -> None:
    file = OneQueue().open()
    fill(file, numbered(0, 3))
    file.close()
    with pytest.raises(StoreClosedError):
        read(file)
