"""The commit log of a queue: records in their places, rolling by age, the oldest message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.flat.store_kit import LOG, Tier, append, unplaced
from tests.flat.tiers import numbered, run_of
from tieredstore.codec.record import peek_log_offset
from tieredstore.flat.message_file import HOUR_MS, placed_records
from tieredstore.model.messages import MessageRun
from tieredstore.testing.faults import Faults
from tieredstore.testing.samples import a_record


def test_a_started_queue_has_one_log_segment_at_byte_0() -> None:
    tier = Tier()
    file = tier.file(start=100)
    assert [each.base for each in file.log.segments] == [0]
    assert [row.base_offset for row in tier.rows(LOG)] == [0]


@pytest.mark.parametrize(
    ("age_ms", "size", "rolls"),
    [
        (24 * HOUR_MS + 1, 1000, True),
        (24 * HOUR_MS, 1000, False),
        (24 * HOUR_MS + 1, 999, False),
    ],
)
def test_a_log_segment_rolls_when_it_is_old_enough_and_large_enough(
    age_ms: int, size: int, rolls: bool
) -> None:
    tier = Tier(commit_log_rolling_min_bytes=1000)
    file = tier.file()
    empty = len(a_record(0, body_bytes=0))
    append(file, [a_record(0, body_bytes=size - empty)])
    tier.clock.advance(age_ms)
    assert file.roll_if_due() is rolls
    assert [each.base for each in file.log.segments] == ([0, size] if rolls else [0])


@pytest.mark.parametrize("stored", [0, -1, 1 << 62, 3_400_000_000_000])
def test_a_segment_that_begins_at_no_time_is_as_old_as_itself(stored: int) -> None:
    tier = Tier(commit_log_rolling_min_bytes=0)
    file = tier.file()
    append(file, [a_record(0, store_timestamp=stored), *numbered(1, 2)])
    file.log.segments[-1].record = replace(file.log.segments[-1].record, begin_timestamp=stored)
    assert not file.roll_if_due()
    tier.clock.advance(24 * HOUR_MS)
    assert not file.roll_if_due()
    tier.clock.advance(1)
    assert file.roll_if_due()


def test_a_segment_of_no_time_at_all_does_not_roll_by_age() -> None:
    tier = Tier(commit_log_rolling_min_bytes=0)
    file = tier.file()
    append(file, numbered(0, 2))
    file.log.segments[-1].record = replace(
        file.log.segments[-1].record, begin_timestamp=0, create_timestamp=0
    )
    assert not file.roll_if_due()


def test_nothing_rolls_while_something_waits_or_before_anything_came() -> None:
    tier = Tier(commit_log_rolling_min_bytes=0)
    file = tier.file()
    tier.clock.advance(48 * HOUR_MS)
    assert not file.roll_if_due()
    file.append(run_of(0, numbered(0, 1)))
    assert not file.roll_if_due()
    assert file.commit()
    assert file.roll_if_due()
    assert not file.roll_if_due()


def test_the_oldest_message_is_known_once_it_is_committed_and_follows_expiry() -> None:
    tier = Tier()
    file = tier.file(start=6)
    assert file.log.first_queue_offset() is None
    file.append(run_of(6, numbered(6, 14)))
    assert file.log.first_queue_offset() is None
    file.commit()
    assert file.log.first_queue_offset() == 6
    file.log.roll()
    append(file, numbered(20, 3))
    assert file.log.first_queue_offset() == 6
    file.log.drop(file.log.segments[:1])
    assert file.log.first_queue_offset() == 20
    assert file.log.first_queue_offset() == 20
    assert file.min_offset == 20


def test_the_oldest_message_is_read_once() -> None:
    tier = Tier()
    faults = Faults()
    file = tier.file(faults)
    append(file, numbered(0, 5))
    before = faults.steps
    for _ in range(10):
        file.log.first_queue_offset()
    assert faults.steps == before + 1


def test_bytes_too_few_to_be_a_message_are_not_the_oldest_one() -> None:
    tier = Tier()
    file = tier.file()
    file.log.append(b"torn")
    upload = file.log.prepare()
    assert upload is not None
    assert upload.write is not None
    upload.write.segment.write(0, upload.write.data)
    file.log.settle(upload)
    file.log.roll()
    append(file, numbered(0, 1))
    assert file.log.first_queue_offset() == 0


def a_scattered_run(records: list[bytes]) -> MessageRun:
    """Records as they lie in a log that others write to as well."""
    run = run_of(0, records)
    buffer, starts = b"", []
    for record in records:
        buffer += b"somebody else's"
        starts.append(len(buffer))
        buffer += record
    return MessageRun(
        first_offset=0,
        log_offsets=run.log_offsets,
        message_bytes=run.message_bytes,
        tags_codes=run.tags_codes,
        starts=np.array(starts, np.int64),
        records=buffer,
    )


@pytest.mark.parametrize("scattered", [False, True])
def test_records_lie_one_behind_the_other_and_know_where(scattered: bool) -> None:
    records = [a_record(n, body_bytes=n * 7, log_offset=99_000 + n) for n in range(10)]
    run = a_scattered_run(records) if scattered else run_of(0, records)
    data, offsets = placed_records(run, 8, 5000)
    at = 0
    for record, offset in zip(records[:8], offsets, strict=True):
        placed = bytes(data[at : at + len(record)])
        assert peek_log_offset(placed) == offset == 5000 + at
        assert unplaced(placed) == unplaced(record)
        at += len(record)
    assert at == len(data)


def test_the_callers_records_are_not_touched() -> None:
    record = a_record(3, log_offset=77)
    run = run_of(0, [record])
    placed_records(run, 1, 5000)
    assert bytes(run.record(0)) == record


@pytest.mark.parametrize("count", [1, 9, 10])
def test_records_that_are_handed_over_are_changed_where_they_are(count: int) -> None:
    """Only all of them: the rest of a run would have to go on without its head."""
    run = run_of(0, numbered(0, 10))
    own = replace(run, records=bytearray(run.records))
    wanted, offsets = placed_records(run, count, 5000)
    data, own_offsets = placed_records(own, count, 5000)
    assert data == wanted
    assert (own_offsets == offsets).all()
    assert (data is own.records) is (count == 10)
    assert count == 10 or own.records == run.records
