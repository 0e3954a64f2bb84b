"""One queue: appending runs, committing the log before the queue, and reads by other threads."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.flat.store_kit import LOG, QUEUE, Tier, append, content, unplaced
from tests.flat.tiers import numbered, run_of
from tieredstore.codec.record import BORN_HOST_IPV6, peek_log_offset
from tieredstore.driver.provider import WritePair
from tieredstore.flat.message_file import (
    HOUR_MS,
    CommitAttempt,
    FlatConsumeQueueFile,
    FlatMessageFile,
    UnitSpans,
    placed_records,
)
from tieredstore.flat.times import store_time
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import Host, SegmentRecord
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import BORN_HOST, STORE_TIMESTAMP, a_record

SIZE = len(a_record(0))


def test_offsets_and_times_before_and_after_a_commit() -> None:
    tier = Tier()
    file = tier.file(start=100)
    records = numbered(100, 5)
    appended = file.append(run_of(100, records))
    assert appended.count == 5
    assert appended.log_offsets.tolist() == [0, *np.cumsum([len(r) for r in records])[:-1]]
    assert (file.min_offset, file.append_offset, file.commit_offset) == (100, 105, 100)
    assert file.log.first_queue_offset() is None
    assert content(file) == {}
    assert file.commit()
    assert (file.min_offset, file.append_offset, file.commit_offset) == (100, 105, 105)
    assert file.log.first_queue_offset() == 100
    for row in (*tier.rows(LOG), *tier.rows(QUEUE)):
        assert row.begin_timestamp == STORE_TIMESTAMP + 1000
        assert row.end_timestamp == STORE_TIMESTAMP + 1040
    assert content(file) == {100 + n: unplaced(record) for n, record in enumerate(records)}


def test_a_queue_is_known_by_its_path() -> None:
    store = Tier().open()
    one, other = store.create("TopicTest", 0), store.create("TopicTest", 1)
    assert (one.path, other.path) == ("broker-a/TopicTest/0", "broker-a/TopicTest/1")
    assert store.create("TopicTest", 0) is one


def test_starting_again_changes_nothing() -> None:
    file = Tier().file(start=100)
    file.start_at(7)
    assert file.append_offset == 100


def test_a_run_must_begin_where_the_queue_ends() -> None:
    file = Tier().file(start=100)
    for first in (99, 101):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            file.append(run_of(first, numbered(first, 1)))
        assert (caught.value.minimum, caught.value.maximum) == (100, 100)


def test_an_empty_run_takes_nothing() -> None:
    file = Tier().file()
    assert file.append(run_of(0, [])).count == 0
    assert file.commit()


def test_where_nothing_waits_no_commit_begins() -> None:
    file = Tier().file()
    assert file.begin_commit() is None
    file.append(run_of(0, numbered(0, 1)))
    assert file.begin_commit() is not None


def test_after_a_commit_the_next_one_asks_the_backend_nothing() -> None:
    file = Tier().file()
    assert not file.knows_its_end
    append(file, numbered(0, 1))
    assert file.knows_its_end


@pytest.mark.parametrize("sizes", [{"queue_units": 1}, {"log_bytes": 1}])
def test_a_new_segment_of_either_file_is_asked_for_its_end(sizes: dict[str, int]) -> None:
    file = Tier(**sizes).file()  # type: ignore[arg-type]
    append(file, numbered(0, 1))
    file.append(run_of(1, numbered(1, 1)))
    assert not file.knows_its_end


def test_while_a_commit_is_under_way_there_is_no_second_one() -> None:
    tier = Tier()
    file = tier.file()
    file.append(run_of(0, numbered(0, 3)))
    attempt = file.begin_commit()
    assert attempt is not None
    assert file.begin_commit() is None
    assert file.commit() is False
    assert file.discard() is False
    tier.inner.write_many([attempt.pair])[0].result()
    tier.catalogue().put(*file.end_commit(attempt))
    assert file.commit() is True
    assert file.commit_offset == 3


def test_what_comes_during_a_commit_waits_for_the_next() -> None:
    tier = Tier()
    file = tier.file()
    file.append(run_of(0, numbered(0, 3)))
    attempt = file.begin_commit()
    assert attempt is not None
    file.append(run_of(3, numbered(3, 2)))
    tier.inner.write_many([attempt.pair])[0].result()
    file.end_commit(attempt)
    assert (file.commit_offset, file.append_offset) == (3, 5)
    assert file.commit()
    assert file.commit_offset == 5
    assert len(content(file)) == 5


def test_the_log_is_durable_before_the_queue_names_it() -> None:
    # After the rows of the catalogue, a first commit asks both sizes, and writes log and queue.
    tier = Tier()
    tier.file()
    file = tier.open(faults := Faults()).create("TopicTest", 0)
    faults.strike(Fault.BEFORE, after=2)
    file.append(run_of(0, numbered(0, 3)))
    with pytest.raises(BackendUnavailableError):
        file.commit()
    assert tier.held(LOG) == tier.held(QUEUE) == {}
    assert (file.commit_offset, file.waiting_bytes > 0) == (0, True)
    faults.strike(Fault.BEFORE, after=3)
    with pytest.raises(BackendUnavailableError):
        file.commit()
    assert (len(tier.held(LOG)[0]), tier.held(QUEUE)) == (sum(map(len, numbered(0, 3))), {})
    assert file.commit_offset == 0
    assert file.commit()
    assert file.commit_offset == 3
    assert len(content(file)) == 3


def test_a_batch_never_spans_segments() -> None:
    tier = Tier(log_bytes=SIZE * 3 + 1, queue_units=5)
    file = tier.file()
    records = [a_record(n % 10, queue_offset=n) for n in range(12)]
    taken = []
    while file.append_offset < 12:
        rest = records[file.append_offset :]
        taken.append(file.append(run_of(file.append_offset, rest)).count)
        if not taken[-1]:
            assert file.waiting_bytes
            file.commit()
    file.commit()
    assert [count for count in taken if count] == [3, 2, 1, 3, 1, 2]
    assert [each.base for each in file.queue.segments] == [0, 100, 200]
    assert [each.base // SIZE for each in file.log.segments] == [0, 3, 6, 9]
    assert content(file) == {n: unplaced(record) for n, record in enumerate(records)}


def test_a_full_file_takes_nothing_until_what_waits_is_committed() -> None:
    file = Tier(queue_units=2).file()
    assert file.append(run_of(0, numbered(0, 5))).count == 2
    assert file.append(run_of(2, numbered(2, 3))).count == 0
    file.commit()
    assert file.append(run_of(2, numbered(2, 3))).count == 2


def test_a_message_larger_than_a_segment_has_one_of_its_own() -> None:
    file = Tier(log_bytes=600).file()
    records = [a_record(0), a_record(1, body_bytes=2000), a_record(2), a_record(3)]
    append(file, records)
    sizes = [each.record.size for each in file.log.segments]
    assert sizes == [len(records[0]), len(records[1]), len(records[2]) + len(records[3])]
    assert content(file) == {n: unplaced(record) for n, record in enumerate(records)}


def test_a_gap_is_left_where_messages_are_lost() -> None:
    tier = Tier()
    file = tier.file()
    append(file, numbered(0, 3))
    file.skip_to(3)  # nothing is missing
    file.skip_to(10)
    append(file, numbered(10, 2), at=10)
    expected = {n: unplaced(a_record(n, body_bytes=20)) for n in (0, 1, 2, 10, 11)}
    assert content(file) == expected
    assert content(tier.file()) == expected
    with pytest.raises(OffsetOutOfRangeError):
        file.units(2, 2)
    assert file.queue.first_unit_from(3) == 10
    assert file.queue.first_unit_from(12) == 12
    assert (file.queue.units_in_a_row(1), file.queue.units_in_a_row(10)) == (2, 2)


def test_store_times_are_true_wherever_the_message_was_born() -> None:
    tier = Tier()
    file = tier.file()
    v6 = Host(bytes(range(16)), 1)
    records = [a_record(0), a_record(1, born_host=v6, sys_flag=BORN_HOST_IPV6)]
    append(file, records)
    assert [store_time(file, 0), store_time(file, 1)] == [STORE_TIMESTAMP, STORE_TIMESTAMP + 10]
    for row in (*tier.rows(LOG), *tier.rows(QUEUE)):
        assert (row.begin_timestamp, row.end_timestamp) == (STORE_TIMESTAMP, STORE_TIMESTAMP + 10)


@pytest.mark.parametrize("host", [BORN_HOST, Host(bytes(16), 1)])
def test_rows_bound_the_times_of_all_messages_where_the_clock_was_set_back(host: Host) -> None:
    tier = Tier()
    file = tier.file()
    times = [STORE_TIMESTAMP + each for each in (0, -60_000, 90_000, 10)]
    records = [
        a_record(number, store_timestamp=time, born_host=host) for number, time in enumerate(times)
    ]
    append(file, records)
    for row in (*tier.rows(LOG), *tier.rows(QUEUE)):
        assert (row.begin_timestamp, row.end_timestamp) == (min(times), max(times))


def test_what_waits_can_be_given_back_and_appended_again() -> None:
    tier = Tier()
    tier.file()
    faults = Faults()
    file = tier.open(faults).create("TopicTest", 0)
    faults.strike(Fault.AFTER, after=3)  # the queue's write
    file.append(run_of(0, numbered(0, 3)))
    with pytest.raises(BackendUnavailableError):
        file.commit()
    assert file.discard()
    assert (file.waiting_bytes, file.append_offset) == (0, 0)
    assert not file.knows_its_end
    file.append(run_of(0, numbered(0, 4)))
    attempt = file.begin_commit()
    assert attempt is not None
    one = len(numbered(3, 1)[0])
    assert attempt.pair.log is not None
    assert len(attempt.pair.log.data) == one
    assert attempt.pair.queue is not None
    assert len(attempt.pair.queue.data) == 20
    tier.inner.write_many([attempt.pair])[0].result()
    file.end_commit(attempt)
    assert len(content(file)) == 4


def test_a_commit_that_landed_whole_sends_an_empty_pair() -> None:
    tier = Tier()
    file = tier.file()
    file.append(run_of(0, numbered(0, 3)))
    attempt = file.begin_commit()
    assert attempt is not None
    tier.inner.write_many([attempt.pair])[0].result()
    file.fail_commit()  # the reply is lost
    again = file.begin_commit()
    assert again is not None
    assert again.pair == WritePair(log=None, queue=None, rows=attempt.pair.rows)
    assert len(again.pair.rows) == 2
    file.end_commit(again)
    assert len(content(file)) == 3


def begun(file: FlatMessageFile) -> CommitAttempt:
    attempt = file.begin_commit()
    assert attempt is not None
    return attempt


def seconds_of(row: SegmentRecord) -> tuple[int | None, int | None]:
    """The seconds of a row's times, which are the queue offsets of `numbered`."""
    begin, end = row.begin_timestamp, row.end_timestamp
    assert begin is not None
    assert end is not None
    return (begin - STORE_TIMESTAMP) // 10, (end - STORE_TIMESTAMP) // 10


def test_a_pair_says_what_the_rows_will_be_and_settling_makes_them_so() -> None:
    tier = Tier()
    file = tier.file()
    before = [file.log.segments[-1].record, file.queue.segments[-1].record]
    file.append(run_of(0, numbered(0, 3)))
    first = begun(file)
    assert [file.log.segments[-1].record, file.queue.segments[-1].record] == before
    file.append(run_of(3, numbered(3, 2)))  # for the next commit: not in the times of this one
    tier.inner.write_many([first.pair])[0].result()
    assert file.end_commit(first) == list(first.pair.rows)
    assert [row.size for row in first.pair.rows] == [file.log.segments[0].segment.size(), 60]
    assert [seconds_of(row) for row in first.pair.rows] == [(0, 2), (0, 2)]
    second = begun(file)
    tier.inner.write_many([second.pair])[0].result()
    assert file.end_commit(second) == list(second.pair.rows)
    assert [row.size for row in second.pair.rows] == [file.log.segments[0].segment.size(), 100]
    assert [seconds_of(row) for row in second.pair.rows] == [(0, 4), (0, 4)]
    assert file.current_rows(second.pair.rows) == list(second.pair.rows)


def test_a_pair_brings_the_rows_of_bytes_that_had_landed() -> None:
    faults, size = Faults(), len(numbered(0, 1)[0])
    tier = Tier()
    file = tier.file(faults)
    append(file, numbered(0, 2))
    file.append(run_of(2, numbered(2, 2)))
    faults.strike(Fault.AFTER, after=0)  # the log lands, but the reply is lost
    with pytest.raises(BackendUnavailableError):
        file.commit()
    faults.forgive()
    file.append(run_of(4, numbered(4, 1)))
    again = begun(file)
    assert again.pair.log is not None
    assert again.pair.log.position == 4 * size
    assert [row.size for row in again.pair.rows] == [5 * size, 100]
    assert [seconds_of(row) for row in again.pair.rows] == [(0, 4), (0, 4)]
    file.fail_commit()
    assert file.log.segments[-1].record.size == 2 * size
    tier.inner.write_many([WritePair(log=again.pair.log, queue=None)])[0].result()
    last = begun(file)
    assert last.pair.log is None
    assert last.pair.queue is not None
    assert last.pair.rows == again.pair.rows
    tier.inner.write_many([last.pair])[0].result()
    assert file.end_commit(last) == list(last.pair.rows)
    assert len(content(file)) == 5


def test_a_pair_of_bytes_without_times_leaves_the_row_without_them() -> None:
    tier = Tier()
    file = tier.file()
    file.log.append(b"torn")
    attempt = begun(file)
    (row,) = attempt.pair.rows
    assert (row.size, row.begin_timestamp, row.end_timestamp) == (4, None, None)
    tier.inner.write_many([attempt.pair])[0].result()
    assert file.end_commit(attempt) == [row]


def test_a_queue_with_a_problem_takes_nothing_and_can_be_read() -> None:
    file = Tier().file()
    append(file, numbered(0, 3))
    file.problem = "the tier is ahead"
    with pytest.raises(BackendRefusedError, match="the tier is ahead"):
        file.append(run_of(3, numbered(3, 1)))
    with pytest.raises(BackendRefusedError):
        file.skip_to(10)
    assert len(content(file)) == 3


def test_a_closed_queue_takes_nothing() -> None:
    file = Tier().file()
    file.close()
    file.close()
    with pytest.raises(StoreClosedError):
        file.append(run_of(0, numbered(0, 1)))


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


def test_the_oldest_message_is_read_once() -> None:
    tier = Tier()
    faults = Faults()
    file = tier.file(faults)
    append(file, numbered(0, 5))
    before = faults.steps
    for _ in range(10):
        file.log.first_queue_offset()
    assert faults.steps == before + 1


def test_it_is_known_whether_the_oldest_message_takes_a_read() -> None:
    tier = Tier(log_bytes=SIZE)
    file = tier.file()
    known = [file.log.knows_first]
    append(file, numbered(0, 3, body_bytes=100))
    known.append(file.log.knows_first)
    file.log.first_queue_offset()
    known.append(file.log.knows_first)
    file.log.drop(file.log.segments[:1])
    known.append(file.log.knows_first)
    assert known == [True, False, True, False]


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
    """Records between other bytes, as in a log that all queues share."""
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
    """Only if all of them are taken: otherwise the rest of the run is still needed."""
    run = run_of(0, numbered(0, 10))
    own = replace(run, records=bytearray(run.records))
    wanted, offsets = placed_records(run, count, 5000)
    data, own_offsets = placed_records(own, count, 5000)
    assert data == wanted
    assert (own_offsets == offsets).all()
    assert (data is own.records) is (count == 10)
    assert count == 10 or own.records == run.records


def test_a_segment_holds_whole_units_whatever_its_limit() -> None:
    tier = Tier()
    queue = FlatConsumeQueueFile(
        "broker-a/TopicTest/0",
        StoreConfig(consume_queue_segment_bytes=399),
        provider=tier.inner,
        metadata=tier.catalogue(),
        clock=tier.clock,
    )
    queue.roll(20 * 7)
    assert queue.room() == 380
    assert (queue.min_unit, queue.commit_unit, queue.append_unit) == (7, 7, 7)


def test_the_next_segment_begins_at_the_next_unit() -> None:
    file = Tier(queue_units=3).file(start=5)
    append(file, numbered(5, 7))
    assert [each.base for each in file.queue.segments] == [100, 160, 220]
    assert (file.queue.min_unit, file.queue.commit_unit) == (5, 12)


def test_an_offset_in_a_gap_leads_to_the_end_of_the_gap() -> None:
    file = Tier().file(start=5)
    assert file.queue.first_unit_from(0) == 5
    append(file, numbered(5, 3))
    file.skip_to(20)
    assert [file.queue.first_unit_from(n) for n in (4, 5, 7, 8, 19, 20)] == [5, 5, 7, 20, 20, 20]
    append(file, numbered(20, 1))
    assert [file.queue.first_unit_from(n) for n in (8, 20, 21, 99)] == [20, 20, 21, 21]
    assert [file.queue.units_in_a_row(n) for n in (4, 5, 7, 8, 20, 21)] == [0, 3, 1, 0, 1, 0]


@pytest.mark.parametrize("base", [107, 113])
@pytest.mark.parametrize("size", [7, 20, 33, 40])
def test_no_offset_leads_to_a_unit_that_is_not_whole(base: int, size: int) -> None:
    """A catalogue may name segments that begin or end within a unit."""
    tier = Tier()
    append(tier.file(), numbered(0, 5))
    row = replace(tier.rows(QUEUE)[0], base_offset=base, size=size)
    tier.catalogue().put(row, replace(row, base_offset=200, size=20))
    for each in (base, 200):
        with tier.inner.open(row.path, row.type, each) as segment:
            segment.write(0, bytes(size if each == base else 20))
    queue = tier.file().queue
    for unit in range(12):
        found = queue.first_unit_from(unit)
        assert queue.units_in_a_row(found) or found == queue.commit_unit
        assert not any(queue.units_in_a_row(passed) for passed in range(unit, found))


def test_an_offset_in_a_segment_without_units_leads_to_the_next_unit() -> None:
    tier = Tier()
    file = tier.file(start=20)
    append(file, numbered(20, 1))
    empty = replace(file.queue.segments[0].record, base_offset=100, size=0)
    tier.catalogue().put(empty)
    queue = tier.file().queue
    assert [each.base for each in queue.segments] == [100, 400]
    assert [queue.first_unit_from(n) for n in (4, 5, 19, 20)] == [20, 20, 20, 20]


def test_an_offset_in_a_gap_leads_back_to_the_unit_before_it() -> None:
    file = Tier().file(start=5)
    assert file.queue.last_unit_to(9) is None
    append(file, numbered(5, 3))
    file.skip_to(20)
    assert [file.queue.last_unit_to(n) for n in (4, 5, 7, 8, 19, 20)] == [None, 5, 7, 7, 7, 7]
    append(file, numbered(20, 1))
    assert [file.queue.last_unit_to(n) for n in (8, 19, 20, 99)] == [7, 7, 20, 20]


def test_the_first_unit_of_a_place_is_found_and_none_behind_the_last_record() -> None:
    file = Tier().file(start=5)
    append(file, [a_record(n) for n in range(5, 8)])
    spans = UnitSpans.of(file.queue, 5, 8)
    found = [spans.first_at(at, file.units) for at in (0, 1, SIZE, 2 * SIZE, 2 * SIZE + 1)]
    assert found == [5, 6, 6, 7, None]


RECORDS = [a_record(number, body_bytes=number * 7 % 60) for number in range(600)]
MODEL = [unplaced(record) for record in RECORDS]


def read_until(file: FlatMessageFile, done: threading.Event, wrong: list[object]) -> None:
    """Read committed messages over and over; note whatever is wrong."""
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
