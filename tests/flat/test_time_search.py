"""The offset of a time is that of a linear scan, and takes few reads."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import encode_coda
from tests.flat.tiers import CountingSource, OneQueue, fill, numbered
from tieredstore.codec.message import CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import Put
from tieredstore.flat import times as segment_times
from tieredstore.flat import times as time_search
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.times import offset_by_time
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT64_MAX, Boundary, Host, SegmentRecord, SegmentType
from tieredstore.testing.samples import BORN_HOST, STORE_TIMESTAMP, a_record

LOWER, UPPER = Boundary.LOWER, Boundary.UPPER
IPV6 = Host(bytes(range(16)), 10911)
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
    """A queue with a message for each time, put together without being appended."""
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


def test_a_unit_that_names_no_message_is_an_error_not_a_time() -> None:
    tier = of_times([STORE_TIMESTAMP + n for n in range(10)])
    tier.provider.held[SegmentType.COMMIT_LOG, 0][4:8] = bytes(4)
    with pytest.raises(SegmentCorruptError):
        offset_by_time(tier.open(), STORE_TIMESTAMP + 3, LOWER)


@st.composite
def queues(draw: st.DrawFn) -> tuple[FlatMessageFile, dict[int, int]]:
    """A queue with runs of equal times, gaps, codas, IPv6 records, and some nonsense in rows."""
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
    """Close the log's last segment as old versions did."""
    last = file.log.segments[-1]
    coda = encode_coda(time)
    tier.provider.held[SegmentType.COMMIT_LOG, last.base] += coda
    last.widen(None, None, size=last.record.size + len(coda))
    tier.metadata.put(last.record)
    file.log.load()
    file.log.roll()


def name_the_codas(tier: OneQueue, coda_ends: list[int]) -> None:
    """Let the units of the records behind codas name the codas, as old versions did."""
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


def test_it_begins_at_the_oldest_message_that_can_be_read() -> None:
    tier = OneQueue(log_bytes=1000)
    file = tier.open()
    fill(file, numbered(0, 30, body_bytes=120))
    file.log.drop(file.log.segments[:2])
    assert file.min_offset > 0
    assert offset_by_time(file, 0, LOWER) == offset_by_time(file, 0, UPPER) == file.min_offset
    assert file.queue.min_offset == 0 * UNIT_BYTES
