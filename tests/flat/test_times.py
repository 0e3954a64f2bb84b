"""Store times of messages and segments, which times of rows are believed, and searches by time."""

from __future__ import annotations

import bisect
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import encode_coda
from tests.flat.tiers import CountingSource, OneQueue, crafted, fill, laid_out, numbered
from tieredstore.codec.message import CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.record import RECORD_BYTES_MIN
from tieredstore.driver.metadata import Put
from tieredstore.flat import times as segment_times
from tieredstore.flat import times as time_search
from tieredstore.flat.append_file import FlatSegment
from tieredstore.flat.message_file import (
    AHEAD_BELIEVED_MS,
    FIRST_BELIEVED_MS,
    FlatMessageFile,
    UnitSpans,
)
from tieredstore.flat.reading import DIRECT
from tieredstore.flat.times import (
    believed_times,
    catalogue_times,
    earliest_time,
    first_unit_from,
    offset_by_time,
    queue_offset_at,
    store_time,
    units_of,
)
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentCorruptError
from tieredstore.model.values import INT64_MAX, Boundary, Host, SegmentRecord, SegmentType
from tieredstore.testing.samples import BORN_HOST, STORE_TIMESTAMP, a_record

NOW = STORE_TIMESTAMP
IPV6 = Host(bytes(range(16)), 10911)


def a_tier(times: list[tuple[int | None, int | None]]) -> tuple[OneQueue, FlatMessageFile]:
    """Thirty messages a millisecond apart in several log segments, whose rows have these times."""
    tier = OneQueue(log_bytes=2000)
    file = tier.open()
    fill(file, [a_record(n, store_timestamp=NOW + n, born_host=IPV6) for n in range(30)])
    for row, (begin, end) in zip(tier.metadata.segments(), times, strict=False):
        tier.metadata.apply([Put(replace(row, begin_timestamp=begin, end_timestamp=end))])
    return tier, tier.open()


@pytest.mark.parametrize(
    ("begin", "end", "believed"),
    [
        (NOW, NOW, True),
        (FIRST_BELIEVED_MS, NOW + AHEAD_BELIEVED_MS, True),
        (FIRST_BELIEVED_MS - 1, NOW, False),
        (NOW, NOW + AHEAD_BELIEVED_MS + 1, False),
        (None, NOW, False),
        (NOW, None, False),
        (None, None, False),
        (NOW + 1, NOW, False),
        (5, 720_619_920_815_974_155, False),
    ],
)
def test_times_of_a_row_are_believed_from_2010_to_tomorrow(
    begin: int | None, end: int | None, believed: bool
) -> None:
    row = SegmentRecord(
        path="b/t/0",
        type=SegmentType.COMMIT_LOG,
        base_offset=0,
        begin_timestamp=begin,
        end_timestamp=end,
    )
    assert catalogue_times(row, NOW) == ((begin, end) if believed else None)


def test_believed_times_cost_no_read() -> None:
    _, file = a_tier([])
    source = CountingSource()
    for segment in (*file.log.segments, *file.queue.segments):
        assert believed_times(file, segment, source=source) is not None
    assert source.reads == []


@pytest.mark.parametrize("nonsense", [(None, None), (5, 720_619_920_815_974_155), (5, NOW)])
def test_times_that_are_not_believed_are_read_from_the_records(
    nonsense: tuple[int | None, int | None],
) -> None:
    _, file = a_tier([nonsense] * 30)
    for segment in (*file.log.segments, *file.queue.segments):
        held = units_of(file, segment.record)
        assert believed_times(file, segment) == (NOW + held.start, NOW + held.stop - 1)
    covered = [n for segment in file.log.segments for n in units_of(file, segment.record)]
    assert covered == list(range(30))


def test_times_are_read_once_with_few_reads() -> None:
    _, file = a_tier([(None, None)] * 30)
    for segment in file.log.segments:
        source = CountingSource()
        believed_times(file, segment, source=source)
        assert len(source.reads) <= 8
        again = CountingSource()
        believed_times(file, segment, source=again)
        assert again.reads == []


def test_the_end_of_a_segment_that_grows_is_read_again() -> None:
    tier = OneQueue()
    file = tier.open()

    def doubted() -> FlatSegment:
        segment = file.log.segments[-1]
        segment.record = replace(segment.record, begin_timestamp=5, end_timestamp=6)
        return segment

    fill(file, [a_record(0, store_timestamp=NOW)])
    assert believed_times(file, doubted()) == (NOW, NOW)
    fill(file, [a_record(1, store_timestamp=NOW + 9)])
    assert believed_times(file, doubted()) == (NOW, NOW + 9)


def test_an_empty_segment_has_no_times() -> None:
    file = OneQueue().open()
    file.start_at(3)
    assert believed_times(file, file.log.segments[0]) is None
    assert believed_times(file, file.queue.segments[0]) is None
    assert earliest_time(file) is None


def test_the_earliest_time_is_that_of_the_first_segment_with_messages() -> None:
    tier, file = a_tier([(None, None)])
    assert earliest_time(file) == NOW
    file.log.drop(file.log.segments[:1])
    assert earliest_time(file) == NOW + file.min_offset
    assert tier.open().min_offset == file.min_offset > 0


def test_the_earliest_time_is_not_that_of_a_message_whose_unit_has_expired() -> None:
    """The segments of the units are shorter than those of the log."""
    tier = OneQueue(queue_units=2)
    file = tier.open()
    fill(file, [a_record(n, store_timestamp=NOW + n) for n in range(5)])
    assert len(file.log.segments) == 1
    file.queue.drop(file.queue.segments[:1])
    assert file.min_offset == 2
    assert earliest_time(file) == NOW + 2


def test_a_segment_with_bytes_that_no_unit_names_has_no_times() -> None:
    tier = OneQueue()
    file = tier.open()
    fill(file, [a_record(n) for n in range(3)])
    file.log.roll()
    file.log.append(b"x" * 200)
    upload = file.log.prepare()
    assert upload is not None
    assert upload.write is not None
    upload.write.segment.write(upload.write.position, upload.write.data)
    file.log.settle(upload)
    assert believed_times(file, file.log.segments[1]) is None
    assert units_of(file, file.log.segments[1].record) == range(3, 3)


def test_the_first_unit_behind_a_border_is_found_over_gaps_and_long_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tieredstore.flat.times.UNITS_AT_ONCE", 2)
    tier = OneQueue(log_bytes=1000, queue_units=5)
    file = tier.open()
    fill(file, [a_record(n) for n in range(20)])
    file.skip_to(33)
    fill(file, [a_record(n) for n in range(33, 50)])
    present = [n for n in range(50) if n < 20 or n >= 33]
    places = {n: int(file.units(n, 1).log_offsets[0]) for n in present}
    for known in (True, False):
        for segment in file.log.segments:
            if not known:  # the record there does not tell its number: units are searched
                tier.provider.held[SegmentType.COMMIT_LOG, segment.base][4:8] = bytes(4)
            expected = min(n for n in present if places[n] >= segment.base)
            assert first_unit_from(file, segment.base) == expected
    assert first_unit_from(file, file.log.commit_offset) == 50


@pytest.mark.parametrize("host", [BORN_HOST, IPV6])
def test_a_store_time_takes_two_small_reads(host: Host) -> None:
    file = OneQueue().open()
    fill(file, [a_record(n, store_timestamp=NOW + n, born_host=host) for n in range(3)])
    source = CountingSource()
    assert store_time(file, 1, source=source) == NOW + 1
    assert len(source.reads) == 2
    assert sum(length for _, _, length in source.reads) < 120


def test_a_store_time_that_is_not_there_is_an_error() -> None:
    tier = OneQueue()
    file = tier.open()
    fill(file, [a_record(n) for n in range(3)])
    for offset in (-1, 3):
        with pytest.raises(OffsetOutOfRangeError):
            store_time(file, offset)
    tier.provider.held[SegmentType.COMMIT_LOG, 0][4] ^= 1
    with pytest.raises(SegmentCorruptError):
        store_time(file, 0)


def test_units_are_counted_through_where_a_gap_leaves_some_out() -> None:
    file = OneQueue(queue_units=4).open()
    fill(file, [a_record(n) for n in range(10)])
    file.skip_to(15)
    fill(file, [a_record(n) for n in range(15, 20)])
    spans = UnitSpans.of(file.queue, 2, 18)
    present = [*range(2, 10), *range(15, 18)]
    assert [spans.offset(index) for index in range(spans.count)] == present
    assert [spans.index(offset) for offset in present] == list(range(len(present)))
    assert spans.index(1) is spans.index(10) is spans.index(18) is None
    assert spans.last == 17
    assert spans.part(0, spans.count) == [range(2, 10), range(15, 18)]  # takes one read each
    for low in range(spans.count + 1):
        for high in range(low, spans.count + 1):
            found = [offset for part in spans.part(low, high) for offset in part]
            assert found == present[low:high]
    assert UnitSpans.of(file.queue, 10, 15).count == 0


LOWER, UPPER = Boundary.LOWER, Boundary.UPPER
READS_MAX = 12


def scan(times: dict[int, int], wanted: int, boundary: Boundary, end: int) -> int:
    exact = [offset for offset, time in times.items() if time == wanted]
    if boundary is UPPER and exact:
        return max(exact)
    return min((offset for offset, time in times.items() if time >= wanted), default=end)


@pytest.mark.parametrize("catalogue", ["true", "unset"])
@pytest.mark.parametrize(
    ("timestamp", "lower", "upper"),
    [
        (0, 50, 50),
        (999, 50, 50),
        (1000, 50, 50),
        (1001, 51, 51),
        (1100, 51, 53),
        (1101, 54, 54),
        (1200, 54, 54),
        (1201, 55, 55),
        (INT64_MAX, 55, 55),
        (2**70, 55, 55),
        (-(2**70), 50, 50),
    ],
)
def test_the_table_of_rocketmqs_own_test_holds(
    catalogue: str, timestamp: int, lower: int, upper: int
) -> None:
    tier = OneQueue(log_bytes=600)
    file = tier.open()
    shift = STORE_TIMESTAMP - 1000
    times = [1000, 1100, 1100, 1100, 1200]
    fill(
        file,
        [a_record(50 + n, store_timestamp=shift + time) for n, time in enumerate(times)],
        at=50,
    )
    if catalogue == "unset":
        forget_times(tier)
        file = tier.open()
    wanted = timestamp + shift if 0 < timestamp < 2000 else timestamp
    assert offset_by_time(file, wanted, LOWER) == lower
    assert offset_by_time(file, wanted, UPPER) == upper


def test_an_empty_queue_gives_the_offset_of_its_first_message_to_come() -> None:
    file = OneQueue().open()
    file.start_at(7)
    for boundary in Boundary:
        assert offset_by_time(file, STORE_TIMESTAMP, boundary) == 7


def forget_times(tier: OneQueue) -> None:
    for row in tier.metadata.segments():
        tier.metadata.apply([Put(replaced(row, None, None))])


def replaced(row: SegmentRecord, begin: int | None, end: int | None) -> SegmentRecord:
    return SegmentRecord(
        path=row.path,
        type=row.type,
        base_offset=row.base_offset,
        size=row.size,
        begin_timestamp=begin,
        end_timestamp=end,
    )


def of_times(times: list[int], *, log_bytes: int = 1 << 30, body_bytes: int = 900) -> OneQueue:
    """A queue with one message for each time."""
    tier = OneQueue(log_bytes=log_bytes)
    file = tier.open()
    fill(
        file,
        [a_record(n, store_timestamp=t, body_bytes=body_bytes) for n, t in enumerate(times)],
    )
    return tier


COUNT = 100_000
SHAPES = {
    "steady": [STORE_TIMESTAMP + 10 * n for n in range(COUNT)],
    "all at once, late": [STORE_TIMESTAMP] * 1000
    + [STORE_TIMESTAMP + 10**8 + n for n in range(COUNT - 1000)],
    "all at once, early": [STORE_TIMESTAMP + n // 100 for n in range(COUNT - 1000)]
    + [STORE_TIMESTAMP + 7 * 10**7 + n for n in range(1000)],
    "a long run of one time": [STORE_TIMESTAMP + max(0, n - 90_000) for n in range(COUNT)],
    "exponential": [STORE_TIMESTAMP + int(1.00018**n) for n in range(COUNT)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_queue_of_a_hundred_thousand_messages_takes_few_reads(shape: str) -> None:
    times = SHAPES[shape]
    tier = of_times(times)
    tier.clock.advance(10**9)
    forgotten = tier.open()
    worst = 0
    for catalogue in ("true", "unset"):
        if catalogue == "unset":
            forget_times(tier)
            forgotten = tier.open()
        for number in (0, 1, 333, 999, 1000, 1001, 49_999, 77_777, 90_001, 98_999, 99_000, 99_999):
            for boundary, search in ((LOWER, bisect.bisect_left), (UPPER, bisect.bisect_right)):
                source = CountingSource()
                found = offset_by_time(forgotten, times[number], boundary, source)
                assert found == search(times, times[number]) - (boundary is UPPER)
                worst = max(worst, len(source.reads))
    assert worst <= READS_MAX


def test_a_steady_queue_takes_a_handful_of_small_reads() -> None:
    tier = of_times(SHAPES["steady"])
    tier.clock.advance(10**9)
    file = tier.open()
    for number in (3, 12_345, 50_000, 99_990):
        source = CountingSource()
        offset_by_time(file, STORE_TIMESTAMP + 10 * number + 1, LOWER, source)
        assert len(source.reads) <= 3
        assert sum(length for _, _, length in source.reads) < 4 << 20


def test_times_outside_of_the_queue_cost_no_read() -> None:
    tier = of_times([STORE_TIMESTAMP + n for n in range(100)])
    file = tier.open()
    source = CountingSource()
    assert offset_by_time(file, STORE_TIMESTAMP - 1, LOWER, source) == 0
    assert offset_by_time(file, STORE_TIMESTAMP + 100, LOWER, source) == 100
    assert source.reads == []


def test_only_the_segments_that_can_hold_the_time_are_read() -> None:
    file = of_times([STORE_TIMESTAMP + n for n in range(100)], log_bytes=11_000).open()
    assert len(file.log.segments) >= 10
    source = CountingSource()
    assert offset_by_time(file, STORE_TIMESTAMP + 42, LOWER, source) == 42
    assert [kind for kind, _, _ in source.reads] == [
        SegmentType.CONSUME_QUEUE,
        SegmentType.COMMIT_LOG,
    ]
    held = file.log.segment_at(source.reads[1][1])
    assert held is not None
    assert source.reads[1][1] + source.reads[1][2] <= held.end


def test_large_messages_are_not_read_for_their_times() -> None:
    tier = of_times([STORE_TIMESTAMP + n for n in range(40)], body_bytes=300_000)
    forget_times(tier)
    source = CountingSource()
    assert offset_by_time(tier.open(), STORE_TIMESTAMP + 21, LOWER, source) == 21
    assert sum(length for _, _, length in source.reads) < 2 << 20


def test_a_unit_that_names_no_byte_of_the_log_is_damage() -> None:
    tier = of_times([STORE_TIMESTAMP + n for n in range(10)])
    tier.provider.held[SegmentType.CONSUME_QUEUE, 0][3] ^= 1
    file = tier.open()
    with pytest.raises(SegmentCorruptError, match="the unit of message 0"):
        store_time(file, 0)
    with pytest.raises(SegmentCorruptError, match="the unit of message 0"):
        offset_by_time(file, STORE_TIMESTAMP + 1, LOWER)
    assert store_time(file, 1) == STORE_TIMESTAMP + 1


@pytest.mark.parametrize("number", range(9))
def test_a_unit_whose_end_lies_beyond_64_bits_is_damage(number: int) -> None:
    tier = OneQueue()
    fill(tier.open(), numbered(0, 9))
    units = tier.provider.held[SegmentType.CONSUME_QUEUE, 0]
    units[number * UNIT_BYTES : number * UNIT_BYTES + 8] = INT64_MAX.to_bytes(8)
    rows = [replace(row, begin_timestamp=None) for row in tier.metadata.segments()]
    tier.metadata.apply([Put(row) for row in rows])
    file = tier.open()
    for wanted in range(NOW, NOW + 100, 10):
        try:
            assert offset_by_time(file, wanted, LOWER) == (wanted - NOW) // 10
        except SegmentCorruptError:
            continue


def test_units_that_the_backend_has_lost_are_damage() -> None:
    tier = OneQueue(queue_units=10)
    file = tier.open()
    fill(file, [a_record(n, store_timestamp=STORE_TIMESTAMP + n) for n in range(30)])
    file = tier.open()
    del tier.provider.held[SegmentType.CONSUME_QUEUE, 10 * UNIT_BYTES][5 * UNIT_BYTES :]
    with pytest.raises(SegmentCorruptError, match="are not there"):
        store_time(file, 17)
    with pytest.raises(SegmentCorruptError, match="are not there"):
        offset_by_time(file, STORE_TIMESTAMP + 17, LOWER)
    with pytest.raises(OffsetOutOfRangeError):
        store_time(file, 30)


def test_a_unit_that_names_no_message_is_an_error_not_a_time() -> None:
    tier = of_times([STORE_TIMESTAMP + n for n in range(10)])
    tier.provider.held[SegmentType.COMMIT_LOG, 0][4:8] = bytes(4)
    with pytest.raises(SegmentCorruptError):
        offset_by_time(tier.open(), STORE_TIMESTAMP + 3, LOWER)


@st.composite
def queues(draw: st.DrawFn) -> tuple[FlatMessageFile, dict[int, int]]:
    """A queue with runs of equal times, gaps, codas, IPv6 records and some wrong times in rows."""
    tier = OneQueue(log_bytes=draw(st.sampled_from([400, 900, 3000, 1 << 20])), queue_units=7)
    file = tier.open()
    file.start_at(draw(st.integers(0, 60)))
    time = STORE_TIMESTAMP
    times: dict[int, int] = {}
    coda_ends: list[int] = []
    for _ in range(draw(st.integers(0, 6))):
        file.skip_to(file.append_offset + draw(st.sampled_from([0, 0, 3])))
        records = []
        for number in range(file.append_offset, file.append_offset + draw(st.integers(1, 12))):
            time += draw(st.sampled_from([0, 0, 1, 5]))
            times[number] = time
            host = draw(st.sampled_from([BORN_HOST, IPV6]))
            records.append(
                a_record(number, store_timestamp=time, born_host=host, body_bytes=number % 50)
            )
        fill(file, records)
        if draw(st.booleans()):
            mark_the_end(tier, file, time)
            coda_ends.append(file.log.append_offset)
    if draw(st.booleans()):
        name_the_codas(tier, coda_ends)
    for row in tier.metadata.segments():
        if draw(st.booleans()):
            begin, end = draw(
                st.sampled_from([(None, None), (5, 7 * 10**17), (5, STORE_TIMESTAMP)])
            )
            tier.metadata.apply([Put(replaced(row, begin, end))])
    return tier.open(), times


def mark_the_end(tier: OneQueue, file: FlatMessageFile, time: int) -> None:
    """Close the log's last segment with a coda, as old versions of RocketMQ did."""
    last = file.log.segments[-1]
    coda = encode_coda(time)
    tier.provider.held[SegmentType.COMMIT_LOG, last.base] += coda
    last.widen(None, None, size=last.record.size + len(coda))
    tier.metadata.put(last.record)
    file.log.load()
    file.log.roll()


def name_the_codas(tier: OneQueue, coda_ends: list[int]) -> None:
    """Let the units of the records after codas name the codas, as old versions of RocketMQ did."""
    for (kind, _), data in tier.provider.held.items():
        if kind is SegmentType.CONSUME_QUEUE:
            for at in range(0, len(data), UNIT_BYTES):
                place = int.from_bytes(data[at : at + 8])
                if place in coda_ends:
                    data[at : at + 8] = (place - CODA_BYTES).to_bytes(8)


@given(queue=queues(), looks=st.sampled_from([(131_072, 1 << 20, 4096), (5, 400, 300), (2, 0, 2)]))
def test_it_equals_a_linear_scan(
    queue: tuple[FlatMessageFile, dict[int, int]], looks: tuple[int, int, int]
) -> None:
    file, times = queue
    units, log, units_at_once = looks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_search, "UNITS_READ_MAX", units)
        patch.setattr(time_search, "LOG_READ_MAX", log)
        patch.setattr(time_search, "PROBE_BYTES", log // 2)
        patch.setattr(segment_times, "UNITS_AT_ONCE", units_at_once)
        wanted = sorted({t + d for t in times.values() for d in (-1, 0, 1)} | {0, STORE_TIMESTAMP})
        for time in wanted:
            for boundary in Boundary:
                expected = scan(times, time, boundary, file.commit_offset)
                assert offset_by_time(file, time, boundary) == expected


@pytest.mark.parametrize("parts", ["log", "queue", "both"])
def test_no_message_is_passed_because_the_clock_was_set_back_behind_it(parts: str) -> None:
    tier = OneQueue(
        log_bytes=1 << 20 if parts == "queue" else 1200,
        queue_units=1000 if parts == "log" else 4,
    )
    file = tier.open()
    times = [NOW + 1000 * n for n in range(20)]
    times[12:] = [time - 8000 for time in times[12:]]  # the clock was ahead, and is set back
    fill(file, [a_record(n, store_timestamp=time) for n, time in enumerate(times)])
    assert len(file.log.segments) > 4 or len(file.queue.segments) > 4
    for time in (*times, NOW + 11_500):
        first = next((n for n, stored in enumerate(times) if stored >= time), len(times))
        assert offset_by_time(file, time, LOWER) == first


def test_a_log_that_is_not_in_the_order_of_its_queue_is_searched_message_by_message() -> None:
    """Only a foreign queue can be like that."""
    records = [a_record(n, store_timestamp=NOW + n) for n in range(9)]
    order = [0, 1, 4, 2, 3, 5, 8, 6, 7]
    places = laid_out([records[n] for n in order])
    where = dict(zip(order, places, strict=True))
    file = crafted([b"".join(records[n] for n in order)], [where[n] for n in range(9)]).open()
    for boundary in Boundary:
        assert [offset_by_time(file, NOW + n, boundary) for n in range(9)] == list(range(9))


def test_a_segment_of_a_queue_has_the_units_that_lie_in_it() -> None:
    file = OneQueue(queue_units=4).open()
    fill(file, [a_record(n) for n in range(10)])
    held = [units_of(file, segment.record) for segment in file.queue.segments]
    assert held == [range(4), range(4, 8), range(8, 10)]


def test_a_record_tells_its_number_if_all_of_it_is_there() -> None:
    """The last record is as short as possible."""
    tier = OneQueue()
    file = tier.open()
    fill(file, [a_record(3), a_record(4, topic="", body_bytes=0, properties={})], at=3)
    last = file.log.commit_offset - RECORD_BYTES_MIN
    assert [queue_offset_at(file, at, DIRECT) for at in (0, last)] == [3, 4]
    for at in (-1, 1, last + 1, file.log.commit_offset - 1):
        assert queue_offset_at(file, at, DIRECT) is None


def test_it_begins_at_the_oldest_message_that_can_be_read() -> None:
    tier = OneQueue(log_bytes=1000)
    file = tier.open()
    fill(file, numbered(0, 30, body_bytes=120))
    file.log.drop(file.log.segments[:2])
    assert file.min_offset > 0
    assert offset_by_time(file, 0, LOWER) == offset_by_time(file, 0, UPPER) == file.min_offset
    assert file.queue.min_offset == 0 * UNIT_BYTES
