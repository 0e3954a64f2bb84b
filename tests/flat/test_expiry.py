"""What expires and what stays readable, with crashes and failures in the middle of an expiry."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import encode_coda
from tests.every_step import every_step
from tests.flat.tiers import PATH, CountingSource, OneQueue, crafted, fill, laid_out, run_of
from tieredstore.access import upkeep
from tieredstore.access.upkeep import Expired, kept_from, would_expire
from tieredstore.codec.message import CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import Put
from tieredstore.flat import append_file
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import DIRECT, ByteSource, read_run
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError, SegmentCorruptError, SegmentNotFoundError
from tieredstore.model.values import SegmentType, TopicRecord
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE


def timed(first: int, times: list[int]) -> list[bytes]:
    return [a_record(first + n, store_timestamp=time) for n, time in enumerate(times)]


def a_tier(count: int = 30, *, log_bytes: int = 1000, queue_units: int = 4) -> OneQueue:
    """A queue of messages a millisecond apart, in many segments of both kinds."""
    tier = OneQueue(log_bytes=log_bytes, queue_units=queue_units)
    fill(tier.open(), timed(0, [STORE_TIMESTAMP + n for n in range(count)]))
    return tier


def live(file: FlatMessageFile) -> list[int]:
    """Read all messages; return their queue offsets."""
    found: list[int] = []
    at = file.min_offset
    while at < file.commit_offset:
        run = read_run(file, at, count_max=7, bytes_max=1 << 20)
        if not len(run):
            at = file.queue.first_unit_from(at + 1)
            continue
        for row in range(len(run)):
            assert int.from_bytes(run.record(row)[20:28]) == at + row
        found += range(at, run.end_offset)
        at = run.end_offset
    return found


def check_sound(tier: OneQueue) -> None:
    """No row lacks bytes, no bytes lack a row, and nothing waits for deletion."""
    rows = {(row.type, row.base_offset): row for row in tier.metadata.segments()}
    for key, row in rows.items():
        assert len(tier.provider.held.get(key, b"")) == row.size
    assert set(tier.provider.held) <= set(rows)
    assert not tier.metadata.notes(append_file.DELETION_NOTE)


HOUR_MS = 3_600_000


def expire(file: FlatMessageFile, before_ms: int, *, source: ByteSource = DIRECT) -> Expired:
    """Expire, and check that `would_expire` has predicted the result."""
    foretold = would_expire(file, before_ms)
    assert would_expire(file, before_ms) == foretold  # the prediction changes nothing
    done = upkeep.expire(file, before_ms, source=source)
    assert replace(done, undeleted=()) == foretold
    return done


def test_whole_segments_that_are_older_go_and_what_is_left_can_be_read() -> None:
    tier = a_tier()
    file = tier.open()
    before = [segment.record for segment in file.log.segments]
    result = expire(file, STORE_TIMESTAMP + 15)
    assert 0 < file.min_offset <= 15
    assert result.min_offset == file.min_offset
    assert live(file) == list(range(file.min_offset, 30))
    ends = [row.end_timestamp or 0 for row in before]
    gone = [row for row in before if tier.metadata.segment(PATH, LOG, row.base_offset) is None]
    assert [row.end_timestamp for row in gone] == [e for e in ends if e < STORE_TIMESTAMP + 15]
    assert result.segment_count > len(gone)  # segments of the queue are counted too
    assert result.undeleted == ()
    check_sound(tier)
    assert live(tier.open()) == live(file)


def test_nothing_goes_that_is_not_older_and_nothing_goes_twice() -> None:
    tier = a_tier()
    file = tier.open()
    source = CountingSource()
    same = expire(file, STORE_TIMESTAMP, source=source)
    assert same == Expired(segment_count=0, dropped_bytes=0, min_offset=0)
    assert source.reads == []
    steps = Faults()
    tier.fail(steps)
    assert expire(file, STORE_TIMESTAMP).segment_count == 0
    assert steps.steps == 0
    assert expire(file, STORE_TIMESTAMP + 20).segment_count > 0
    assert expire(file, STORE_TIMESTAMP + 20).segment_count == 0


def test_a_segment_goes_only_when_its_newest_message_is_older() -> None:
    """As in RocketMQ's FlatAppendFileTest.testCleanExpiredFile."""
    tier = OneQueue()
    file = tier.open()
    fill(file, timed(0, [STORE_TIMESTAMP + 1, STORE_TIMESTAMP + 2]))
    file.log.roll()
    fill(file, timed(2, [STORE_TIMESTAMP + 5]))
    for keeps in (1, 2):
        assert expire(file, STORE_TIMESTAMP + keeps).segment_count == 0
    assert expire(file, STORE_TIMESTAMP + 3).segment_count == 1
    assert file.min_offset == 2


def test_the_first_message_is_known_before_and_after_the_first_segment_has_expired() -> None:
    """As in RocketMQ's FlatCommitLogFileTest.getMinOffsetFromFileAsyncTest."""
    tier = OneQueue()
    file = tier.open()
    file.start_at(6)
    file.append(run_of(6, timed(6, [STORE_TIMESTAMP + n for n in range(14)])))
    assert file.log.first_queue_offset() is None
    file.commit()
    assert file.log.first_queue_offset() == 6
    file.log.roll()
    fill(file, timed(20, [STORE_TIMESTAMP + 50]))
    expire(file, STORE_TIMESTAMP + 40)
    assert file.log.first_queue_offset() == file.log.first_queue_offset() == 20
    assert file.min_offset == 20


@pytest.mark.parametrize(("before", "first", "unit"), [(13, 12, 12), (19, 18, 16)])
def test_a_flipped_bit_in_the_oldest_record_passes_no_message(
    before: int, first: int, unit: int
) -> None:
    """No checksum covers the queue offset of a record."""
    tier = a_tier()
    file = tier.open()
    expire(file, STORE_TIMESTAMP + before)
    assert (file.min_offset, file.queue.min_unit) == (first, unit)
    held = tier.provider.held[LOG, file.log.min_offset]
    for bit in range(64):
        held[20 + bit // 8] ^= 1 << bit % 8
        again = tier.open()
        assert again.min_offset <= first
        with pytest.raises(SegmentCorruptError):
            read_run(again, again.min_offset, count_max=7, bytes_max=1 << 20)
        assert len(read_run(again, first + 1, count_max=7, bytes_max=1 << 20)) == 7
        held[20 + bit // 8] ^= 1 << bit % 8


def test_the_first_message_is_known_though_two_segments_expire_while_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = a_tier(queue_units=100)
    file = tier.open()
    named = file._first_named

    def gone(*_: object) -> bytes:
        monkeypatch.undo()
        upkeep.expire(file, STORE_TIMESTAMP + 8)
        monkeypatch.setattr(file, "_first_named", named_late)
        raise SegmentNotFoundError("the oldest segment")

    def named_late(place: int) -> int:
        monkeypatch.undo()
        first = named(place)
        upkeep.expire(file, STORE_TIMESTAMP + 16)
        return first

    monkeypatch.setattr(file.log, "read", gone)
    file._first_in_log()
    assert file.min_offset == tier.open().min_offset > 8
    assert live(file) == list(range(file.min_offset, 30))


def test_the_last_segment_goes_as_a_whole_and_the_queue_keeps_its_offsets() -> None:
    tier = a_tier()
    file = tier.open()
    end = file.log.commit_offset
    expire(file, STORE_TIMESTAMP + 1000)
    for opened in (file, tier.open()):
        assert opened.min_offset == opened.commit_offset == opened.append_offset == 30
        assert opened.log.min_offset == opened.log.append_offset == end
        assert [segment.record.size for segment in opened.log.segments] == [0]
        assert [segment.record.size for segment in opened.queue.segments] == [0]
    assert tier.provider.held == {}
    check_sound(tier)
    fill(file, timed(30, [STORE_TIMESTAMP + 2000]))
    assert live(tier.open()) == [30]


def test_empty_segments_at_the_end_stay() -> None:
    tier = a_tier()
    file = tier.open()
    expire(file, STORE_TIMESTAMP + 1000)
    rows = tier.metadata.segments()
    for later in (2000, 10**12):
        assert expire(file, STORE_TIMESTAMP + later).segment_count == 0
    assert tier.metadata.segments() == rows

    fresh = OneQueue()
    started = fresh.open()
    started.start_at(100)
    assert expire(started, STORE_TIMESTAMP * 2).segment_count == 0
    assert started.append_offset == 100
    assert expire(OneQueue().open(), STORE_TIMESTAMP).segment_count == 0


@pytest.mark.parametrize("rolled", [False, True])
def test_while_messages_wait_the_last_ones_that_are_committed_stay(rolled: bool) -> None:
    tier = a_tier()
    file = tier.open()
    if rolled:
        file.log.roll()
    file.append(run_of(30, timed(30, [STORE_TIMESTAMP + 30])))
    expire(file, STORE_TIMESTAMP + 1000)
    assert 0 < file.min_offset < 30
    assert live(file) == list(range(file.min_offset, 30))
    file.commit()
    assert live(file) == list(range(file.min_offset, 31))
    expire(file, STORE_TIMESTAMP + 1000)
    assert file.min_offset == 31
    check_sound(tier)


def test_a_queue_with_a_problem_loses_no_last_segment() -> None:
    tier = a_tier()
    file = tier.open()
    file.problem = "for a test"
    expire(file, STORE_TIMESTAMP + 1000)
    assert live(file) == list(range(file.min_offset, 30)) != []


@pytest.mark.parametrize("nonsense", [(None, None), (5, 720_619_920_815_974_155), (5, 6)])
def test_times_that_never_were_are_not_believed(nonsense: tuple[int | None, int | None]) -> None:
    tier = a_tier()
    for row in tier.metadata.segments():
        begin, end = nonsense
        tier.metadata.apply([Put(replace(row, begin_timestamp=begin, end_timestamp=end))])
    doubtful, sound = tier.open(), a_tier().open()
    for before in range(0, 40, 3):
        expire(doubtful, STORE_TIMESTAMP + before)
        expire(sound, STORE_TIMESTAMP + before)
        assert doubtful.min_offset == sound.min_offset
    check_sound(tier)


def test_a_message_behind_an_end_marker_stays_when_the_marker_goes() -> None:
    tier = OneQueue()
    file = tier.open()
    fill(file, timed(0, [STORE_TIMESTAMP, STORE_TIMESTAMP + 1]))
    last = file.log.segments[-1]
    tier.provider.held[LOG, 0] += encode_coda(STORE_TIMESTAMP + 1)
    last.widen(None, None, size=last.record.size + CODA_BYTES)
    tier.metadata.put(last.record)
    file.log.load()
    file.log.roll()
    fill(file, timed(2, [STORE_TIMESTAMP + 50, STORE_TIMESTAMP + 60]))
    place = file.log.segments[-1].base - CODA_BYTES
    tier.provider.held[QUEUE, 0][2 * UNIT_BYTES : 2 * UNIT_BYTES + 8] = place.to_bytes(8)
    assert live(file) == [0, 1, 2, 3]
    expire(file, STORE_TIMESTAMP + 20)
    assert live(file) == live(tier.open()) == [2, 3]


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 9)),
            st.tuples(st.just("gap"), st.integers(1, 3)),
            st.tuples(st.just("roll"), st.just(0)),
            st.tuples(st.just("expire"), st.integers(-2, 30)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=20,
    ),
    log_bytes=st.sampled_from([300, 1000, 5000]),
    queue_units=st.sampled_from([1, 4, 100]),
)
def test_beside_a_list_only_what_is_older_goes_and_the_rest_can_be_read(
    steps: list[tuple[str, int]], log_bytes: int, queue_units: int
) -> None:
    tier = OneQueue(log_bytes=log_bytes, queue_units=queue_units)
    file = tier.open()
    file.start_at(3)
    model: dict[int, int] = {}  # queue offset: store time
    time = STORE_TIMESTAMP
    for verb, number in steps:
        if verb == "append":
            first = file.append_offset
            times = [time + n // 3 for n in range(number)]
            time = times[-1] + 1
            fill(file, timed(first, times))
            model |= {first + n: each for n, each in enumerate(times)}
        elif verb == "gap":
            file.skip_to(file.append_offset + number)
        elif verb == "roll":
            file.log.roll()
        elif verb == "reopen":
            file = tier.open()
        else:
            end, before = file.append_offset, time - number
            expire(file, before)
            gone = {offset: each for offset, each in model.items() if offset < file.min_offset}
            assert all(each < before for each in gone.values())
            model = {offset: each for offset, each in model.items() if offset not in gone}
            assert file.append_offset == end
            if number < 0:
                assert not model
            check_sound(tier)
        assert live(file) == sorted(model)


def test_a_log_segment_stays_while_a_later_message_is_in_it() -> None:
    """The log offsets of the units do not ascend: only a foreign queue can be like that."""
    records = timed(0, [STORE_TIMESTAMP + n for n in range(9)])
    pieces = [b"".join(records[n] for n in row) for row in ([0, 1, 4], [2, 3, 5], [6, 7, 8])]
    where = dict(zip([0, 1, 4, 2, 3, 5, 6, 7, 8], laid_out([records[0]] * 9), strict=True))
    tier = crafted(pieces, [where[n] for n in range(9)])
    file = tier.open()
    expire(file, STORE_TIMESTAMP + 5)
    assert live(file) == list(range(9))
    expire(file, STORE_TIMESTAMP + 6)
    assert live(file) == [6, 7, 8]
    check_sound(tier)


def test_a_log_segment_stays_while_the_next_begins_with_a_copy_that_no_unit_names() -> None:
    records = timed(0, [STORE_TIMESTAMP + n for n in range(6)])
    size = len(records[0])
    pieces = [b"".join(records[:3]), b"".join([records[2], *records[3:]])]
    places = [
        *laid_out(records[:3]),
        *((place + size * 4, size) for place, _ in laid_out(records[:3])),
    ]
    file = crafted(pieces, places).open()
    expire(file, STORE_TIMESTAMP + 4)
    assert live(file) == list(range(6))


def test_messages_are_kept_as_long_as_their_topic_or_the_store_says() -> None:
    config = StoreConfig(reserve_hours=10)
    now = STORE_TIMESTAMP
    for hours, kept in ((None, 10), (-1, 10), (0, 10), (2, 2)):
        topic = TopicRecord(topic="t", topic_id=0, reserve_hours=hours)
        assert kept_from(config, topic, now) == now - kept * HOUR_MS
        assert kept_from(StoreConfig(expiry_enabled=False), topic, now) is None


def test_a_delete_that_fails_is_noted_and_not_tried_again_at_once() -> None:
    tier = a_tier()
    file = tier.open()
    deletes = Faults()
    tier.provider.faults = deletes
    deletes.always = Fault.BEFORE
    result = upkeep.expire(file, STORE_TIMESTAMP + 15)
    assert len(result.undeleted) == result.segment_count > 2
    assert deletes.steps == 2  # only the first of each file, as the backend cannot be reached
    assert live(file) == list(range(file.min_offset, 30))
    assert len(tier.metadata.notes(append_file.DELETION_NOTE)) == result.segment_count
    assert upkeep.expire(file, STORE_TIMESTAMP + 15).segment_count == 0
    assert deletes.steps == 2
    assert append_file.delete_pending(tier.provider, tier.metadata) == result.segment_count
    deletes.always = None
    assert append_file.delete_pending(tier.provider, tier.metadata) == 0
    check_sound(tier)


def expired(before: int, step: int, fault: Fault) -> tuple[OneQueue, FlatMessageFile, Faults]:
    """A tier after an expiry that the fault strikes; it has no faults afterwards."""
    tier, faults = a_tier(), Faults({step: fault})
    file = tier.open()
    tier.fail(faults)
    with suppress(SimulatedCrash, MetadataError):  # MetadataError: the catalogue refused
        upkeep.expire(file, STORE_TIMESTAMP + before)
    tier.fail(Faults())
    return tier, file, faults


@pytest.mark.parametrize("before", [15, 1000])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_crash_at_any_step_leaves_nothing_dangling_and_what_is_doomed_goes(
    before: int, fault: Fault
) -> None:
    counted = a_tier()
    upkeep.expire(counted.open(), STORE_TIMESTAMP + before)
    expected = live(counted.open())

    def check(left: tuple[OneQueue, FlatMessageFile, Faults], step: int) -> bool:
        tier, _, faults = left
        for row in tier.metadata.segments():
            assert len(tier.provider.held.get((row.type, row.base_offset), b"")) == row.size
        opened = tier.open()
        assert live(opened) == list(range(opened.min_offset, 30))
        assert opened.append_offset == 30
        assert append_file.delete_pending(tier.provider, tier.metadata) == 0
        check_sound(tier)
        upkeep.expire(opened, STORE_TIMESTAMP + before)
        assert live(opened) == expected
        check_sound(tier)
        fill(opened, timed(30, [STORE_TIMESTAMP + 2000]))
        assert live(tier.open()) == [*expected, 30]
        return faults.crashed

    assert every_step(lambda step: expired(before, step, fault), check) > 10


@pytest.mark.parametrize("before", [15, 1000])
def test_a_failure_at_any_step_leaves_a_queue_that_goes_on(before: int) -> None:
    counted = a_tier()
    upkeep.expire(counted.open(), STORE_TIMESTAMP + before)
    expected = live(counted.open())

    def check(left: tuple[OneQueue, FlatMessageFile, Faults], step: int) -> bool:
        tier, file, faults = left
        assert live(file) == list(range(file.min_offset, 30))
        upkeep.expire(file, STORE_TIMESTAMP + before)
        assert append_file.delete_pending(tier.provider, tier.metadata) == 0
        assert live(file) == live(tier.open()) == expected
        check_sound(tier)
        fill(file, timed(30, [STORE_TIMESTAMP + 2000]))
        assert live(tier.open()) == [*expected, 30]
        return faults.steps > step

    every_step(lambda step: expired(before, step, Fault.BEFORE), check)
