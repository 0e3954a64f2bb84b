"""One queue: appending runs, committing log then queue, and what can be read when."""

from __future__ import annotations

import numpy as np
import pytest

from tests.flat.store_kit import LOG, QUEUE, Tier, append, content, unplaced
from tests.flat.tiers import numbered, run_of
from tieredstore.codec.record import BORN_HOST_IPV6
from tieredstore.driver.provider import WritePair
from tieredstore.flat.times import store_time
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    OffsetOutOfRangeError,
    StoreClosedError,
)
from tieredstore.model.values import Host
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record

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
    # Steps of a first commit: the catalogue's rows before, then both sizes, the log, the queue.
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
    file.fail_commit()  # the answer was lost
    again = file.begin_commit()
    assert again is not None
    assert again.pair == WritePair(log=None, queue=None)
    file.end_commit(again)
    assert len(content(file)) == 3


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
