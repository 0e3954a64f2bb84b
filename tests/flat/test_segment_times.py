"""Store times of messages and segments, and when the catalogue is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.flat.tiers import CountingSource, OneQueue, fill
from tieredstore.driver.metadata import Put
from tieredstore.flat.append_file import FlatSegment
from tieredstore.flat.message_file import (
    AHEAD_BELIEVED_MS,
    FIRST_BELIEVED_MS,
    FlatMessageFile,
    UnitSpans,
)
from tieredstore.flat.times import (
    believed_times,
    catalogue_times,
    earliest_time,
    first_unit_from,
    store_time,
    units_of,
)
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentCorruptError
from tieredstore.model.values import Host, SegmentRecord, SegmentType
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
            if not known:  # no record right there tells its number: the units are searched
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
    assert spans.part(0, spans.count) == [range(2, 10), range(15, 18)]  # one read each
    for low in range(spans.count + 1):
        for high in range(low, spans.count + 1):
            found = [offset for part in spans.part(low, high) for offset in part]
            assert found == present[low:high]
    assert UnitSpans.of(file.queue, 10, 15).count == 0
