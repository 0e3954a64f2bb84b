"""Runs of messages are read back as they were appended, up to the limits asked for, even if other
bytes are between the records or some records are damaged.
"""

from __future__ import annotations

import copy
import hashlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import encode_coda
from tests.flat.tiers import (
    CountingSource,
    OneQueue,
    crafted,
    digests,
    fill,
    laid_out,
    numbered,
    run_of,
    same_but_for_log_offset,
)
from tieredstore.access.reader import messages_of
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.flat import reading
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import (
    FEW_ROWS_MAX,
    HOLE_BYTES_MAX,
    FoundRows,
    read_messages,
    read_run,
)
from tieredstore.model.errors import SegmentCorruptError, StoreClosedError
from tieredstore.model.messages import MessageRun, SelectedMessage, joined_records
from tieredstore.model.values import SegmentType
from tieredstore.testing.samples import a_record

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
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


@pytest.mark.parametrize("count", [4, MANY])
def test_bytes_that_no_unit_names_are_stepped_over(count: int) -> None:
    records = numbered(0, count)
    pieces, places, at = [], [], 0
    for record in records:
        hole = b"\xff" * 30
        pieces.append(hole + record)
        places.append((at + 30, len(record)))
        at += 30 + len(record)
    run = read(crafted([b"".join(pieces)], places).open())
    assert digests(run) == [hashlib.sha256(record).hexdigest() for record in records]


@pytest.mark.parametrize("count", [4, MANY])
def test_a_large_hole_ends_the_run_before_it(count: int) -> None:
    records = numbered(0, count)
    data = records[0] + records[1] + bytes(HOLE_BYTES_MAX + 1) + b"".join(records[2:])
    places = laid_out([records[0], records[1]])
    behind = sum(len(record) for record in records[:2]) + HOLE_BYTES_MAX + 1
    places += [(behind + at, size) for at, size in laid_out(records[2:])]
    file = crafted([data], places).open()
    assert read(file).end_offset == 2
    assert read(file, 2).end_offset == count


@pytest.mark.parametrize("count", [4, MANY])
def test_an_inversion_ends_the_run_before_it(count: int) -> None:
    records = numbered(0, count)
    places = laid_out(records)
    swapped = [records[0], records[1], *reversed(records[2:])]
    where = dict(zip(swapped, laid_out(swapped), strict=True))
    places = [where[record] for record in records]
    file = crafted([b"".join(swapped)], places).open()
    found, at = [], 0
    while at < count:
        run = read(file, at)
        found += digests(run)
        at = run.end_offset
    assert read(file).end_offset == 3
    assert found == [hashlib.sha256(record).hexdigest() for record in records]


@pytest.mark.parametrize("count", [6, MANY])
@pytest.mark.parametrize("units_name_the_coda", [False, True])
def test_an_old_end_marker_is_stepped_over(count: int, units_name_the_coda: bool) -> None:
    records = numbered(0, count)
    cut = 3
    head, tail = b"".join(records[:cut]), b"".join(records[cut:])
    shift = 16
    places = laid_out(records)
    places = [*places[:cut], *((at + shift, size) for at, size in places[cut:])]
    if units_name_the_coda:
        at, size = places[cut]
        places[cut] = at - shift, size
    file = crafted([head + encode_coda(5), tail], places).open()
    expected = [hashlib.sha256(record).hexdigest() for record in records]
    assert digests(read(file)) == expected
    for first in range(cut + 1):  # the record after the coda is the last row, or the only one
        run = read(file, first, cut + 1 - first)
        assert digests(run) == expected[first : cut + 1]
        assert int(run.log_offsets[-1]) == len(head) + shift


def test_a_record_behind_an_end_marker_is_found_when_the_marker_is_gone() -> None:
    records = numbered(0, 6)
    head = b"".join(records[:3])
    places = laid_out(records)
    places = [*places[:3], *((at + 16, size) for at, size in places[3:])]
    places[3] = len(head), places[3][1]
    tier = crafted([head + encode_coda(5), b"".join(records[3:])], places)
    file = tier.open()
    file.log.drop(file.log.segments[:1])
    assert file.min_offset == 3
    assert digests(read(file, 3)) == [hashlib.sha256(record).hexdigest() for record in records[3:]]


@pytest.mark.parametrize("count", [6, MANY])
def test_a_body_that_is_another_one_ends_the_run_before_it_where_that_is_asked_for(
    count: int,
) -> None:
    tier = OneQueue()
    file = tier.open()
    records = numbered(0, count)
    fill(file, records)
    size = len(records[0])
    tier.provider.held[LOG, 0][2 * size + 89] ^= 1

    def checked(offset: int) -> MessageRun:
        return read_run(file, offset, count_max=count, bytes_max=1 << 20, checks_bodies=True)

    assert checked(0).end_offset == 2
    with pytest.raises(SegmentCorruptError, match="the body of message 2") as caught:
        checked(2)
    assert caught.value.position == 2 * size
    assert checked(3).end_offset == read(file, 2).end_offset == count


@pytest.mark.parametrize("count", [6, MANY])
def test_a_record_may_be_as_short_as_there_can_be(count: int) -> None:
    file = OneQueue().open()
    fill(file, [a_record(n, topic="", body_bytes=0, properties={}) for n in range(count)])
    assert read(file).end_offset == count


DAMAGES = {
    "size": lambda data, at: data.__setitem__(slice(at, at + 4), b"\0\0\0\x7f"),
    "magic": lambda data, at: data.__setitem__(slice(at + 4, at + 8), b"\0\0\0\0"),
    "another message": lambda data, at: data.__setitem__(slice(at + 20, at + 28), bytes(8)),
    "zeros": lambda data, at: data.__setitem__(slice(at, at + 91), bytes(91)),
}


@pytest.mark.parametrize("count", [6, MANY])
@pytest.mark.parametrize("damage", DAMAGES)
def test_rows_before_a_damaged_record_are_served_and_it_is_an_error(
    count: int, damage: str
) -> None:
    tier = OneQueue()
    file = tier.open()
    records = numbered(0, count)
    fill(file, records)
    at = len(records[0]) * 4
    DAMAGES[damage](tier.provider.held[LOG, 0], at)
    assert same_but_for_log_offset(read(file), records[:4])
    with pytest.raises(SegmentCorruptError) as caught:
        read(file, 4)
    assert caught.value.position == at
    assert caught.value.path == file.log.segments[0].segment.path
    with pytest.raises(SegmentCorruptError):
        read(file, 4, 1)  # alone, no other record contradicts it
    assert same_but_for_log_offset(read(file, 5), records[5:])


@pytest.mark.parametrize("count", [6, MANY])
def test_a_row_that_is_another_message_ends_the_run_though_its_own_lies_behind(count: int) -> None:
    records = numbered(0, count)
    shifted = [records[0], a_record(count + 7, body_bytes=20), *records[1:-1]]
    run = read(crafted([b"".join(shifted)], laid_out(shifted)).open())
    assert digests(run) == digests(run_of(0, records[:1]))


ODD_UNITS = [
    (-1, 150),
    (-(2**63), 150),
    (2**63 - 1, 150),
    (2**40, 150),
    (0, 0),
    (0, -7),
    (300, 90),
    (0, 2**31 - 1),
    (10, 150),
]


@pytest.mark.parametrize("count", [6, MANY])
@pytest.mark.parametrize("unit", ODD_UNITS)
def test_rows_before_a_unit_that_names_no_record_are_served_and_it_is_an_error(
    count: int, unit: tuple[int, int]
) -> None:
    records = numbered(0, count)
    places = laid_out(records)
    places[4] = unit
    file = crafted([b"".join(records)], places).open()
    assert digests(read(file)) == digests(run_of(0, records[:4]))
    with pytest.raises(SegmentCorruptError):
        read(file, 4)


@pytest.mark.parametrize("unit", ODD_UNITS)
@pytest.mark.parametrize("count", [1, 6])
def test_a_unit_that_names_no_record_is_the_same_error_among_few_rows_and_many(
    monkeypatch: pytest.MonkeyPatch, unit: tuple[int, int], count: int
) -> None:
    records = numbered(0, count)
    places = [unit, *laid_out(records)[1:]]
    file = crafted([b"".join(records)], places).open()
    said = []
    for few_rows_max in (FEW_ROWS_MAX, 0):
        monkeypatch.setattr(reading, "FEW_ROWS_MAX", few_rows_max)
        with pytest.raises(SegmentCorruptError) as caught:
            read(file)
        said.append(str(caught.value))
    assert said[0] == said[1]
    wanted = "this is not message 0" if unit == (10, 150) else "names no record of the log"
    assert said[0].endswith(wanted)


@pytest.mark.parametrize("count", [3, MANY])
@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_message_has_bytes_of_its_own_whatever_a_backend_hands_out(
    count: int, kind: type[bytearray | memoryview]
) -> None:
    class Other(CountingSource):
        def read(self, file: FlatAppendFile, offset: int, length: int) -> Any:
            return kind(super().read(file, offset, length))

    records = numbered(0, count)
    file = crafted([b"".join(records)], laid_out(records)).open()
    found = read_messages(file, 0, count_max=count, bytes_max=1 << 20, source=Other())
    assert [each.record for each in found] == records
    assert {type(each.record) for each in found} == {bytes}


@pytest.mark.parametrize("count", [5, 500])
def test_a_message_is_made_when_it_is_looked_at(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OneQueue().open()
    file.start_at(0)
    fill(file, numbered(0, count))
    made: list[int] = []
    make = FoundRows.messages

    def counted(found: FoundRows) -> list[SelectedMessage]:
        made.append(len(found))
        return make(found)

    monkeypatch.setattr(FoundRows, "messages", counted)
    messages = read_messages(file, 0, count_max=count, bytes_max=1 << 20)
    assert (len(messages), bool(messages)) == (count, True)
    records = joined_records(messages)
    assert not made
    assert messages[-1].queue_offset == count - 1
    assert [one.queue_offset for one in messages[:2]] == [0, 1]
    assert made == [count]
    assert joined_records(messages) == records == b"".join(one.record for one in messages)
    assert messages == list(messages) == copy.copy(messages)
    assert messages != messages[1:]
    assert messages[0] is messages[0]


def test_a_monstrous_size_is_not_read_before_the_record_claims_it_too() -> None:
    record = a_record(0)
    file = crafted([record + bytes(100_000)], [(0, 90_000)]).open()
    source = CountingSource()
    with pytest.raises(SegmentCorruptError):
        read_run(file, 0, count_max=1, bytes_max=1000, source=source)
    assert max(length for _, _, length in source.reads) < 100


@pytest.mark.parametrize("lost", ["log", "queue"])
@pytest.mark.parametrize("whole", [False, True])
def test_what_a_backend_has_lost_is_an_error_and_what_is_left_is_served(
    lost: str, whole: bool
) -> None:
    tier = OneQueue()
    file = tier.open()
    records = numbered(0, 8)
    fill(file, records)
    file.log.roll()
    file.queue.roll()
    fill(file, numbered(8, 8))
    segment = (file.log if lost == "log" else file.queue).segments[1]
    kind = LOG if lost == "log" else QUEUE
    if whole:
        del tier.provider.held[kind, segment.base]
    else:
        del tier.provider.held[kind, segment.base][5:]
    found = 0
    while found < 8:
        run = read(file, found)
        assert same_but_for_log_offset(run, records[found : run.end_offset])
        found = run.end_offset
    with pytest.raises(SegmentCorruptError):
        read(file, 8)
    assert read(file, 7, 2).end_offset == 8


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    holes=st.lists(st.sampled_from([0, 0, 0, 5, 16, 70_000]), min_size=30, max_size=30),
    codas=st.sets(st.integers(0, 29)),
    flips=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 60)), max_size=2),
    bytes_max=st.integers(0, 5000),
)
def test_few_rows_and_many_are_handled_alike(
    sizes: list[int],
    holes: list[int],
    codas: set[int],
    flips: list[tuple[int, int]],
    bytes_max: int,
) -> None:
    data, places = bytearray(), []
    for number, size in enumerate(sizes):
        record = a_record(number, body_bytes=size)
        data += b"\xee" * holes[number]
        places.append((len(data), len(record)))
        if number in codas:
            data += encode_coda(9)
        data += record
    for number, byte in flips:
        if number < len(sizes):
            data[places[number][0] + byte] ^= 0x40
    file = crafted([bytes(data)], places).open()

    def outcome(few_rows_max: int) -> list[object]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "FEW_ROWS_MAX", few_rows_max)
            try:
                run = read_run(file, 0, count_max=len(sizes), bytes_max=bytes_max)
            except SegmentCorruptError as error:
                with pytest.raises(SegmentCorruptError, match=f"^{re.escape(str(error))}$"):
                    read_messages(file, 0, count_max=len(sizes), bytes_max=bytes_max)
                return [str(error)]
            messages = read_messages(file, 0, count_max=len(sizes), bytes_max=bytes_max)
            assert joined_records(messages) == b"".join(map(run.record, range(len(run))))
            assert messages == list(messages_of(run))
            columns = run.log_offsets, run.message_bytes, run.tags_codes, run.starts
            assert [each.dtype for each in columns] == [np.int64, np.int32, np.int64, np.int64]
            return [*(each.tolist() for each in columns), digests(run)]

    assert outcome(10**6) == outcome(0)


def begun_late(**limits: int) -> tuple[OneQueue, int]:
    """A queue whose first log segments have expired, and the number of its oldest message."""
    tier = OneQueue(log_bytes=400, **limits)
    file = tier.open()
    file.start_at(0)
    fill(file, numbered(0, 12))
    file.log.drop(file.log.segments[:2])
    return tier, file.min_offset


@pytest.mark.parametrize("bit", [1, 4, 8, 1 << 12, 1 << 62, 1 << 63])
def test_a_wrong_number_in_the_oldest_record_hides_no_message(bit: int) -> None:
    tier, first = begun_late()
    assert 0 < first < 8
    record = tier.provider.held[LOG, tier.open().log.min_offset]
    number = int.from_bytes(record[20:28], "big")
    record[20:28] = (number ^ bit).to_bytes(8, "big")
    again = tier.open()
    assert again.min_offset == first
    with pytest.raises(SegmentCorruptError, match=f"this is not message {first}"):
        read(again, first)
    assert read(again, first + 1).end_offset == 12


@pytest.mark.parametrize("bit", [1, 1 << 4, 1 << 9, 1 << 40, 1 << 63])
def test_a_wrong_place_in_the_oldest_message_s_unit_hides_no_message(bit: int) -> None:
    """With a flipped bit it seems to have expired."""
    tier, first = begun_late()
    unit = tier.provider.held[QUEUE, 0]
    at = first * UNIT_BYTES
    place = int.from_bytes(unit[at : at + 8], "big")
    unit[at : at + 8] = (place ^ bit).to_bytes(8, "big")
    again = tier.open()
    assert again.min_offset == first
    with pytest.raises(SegmentCorruptError):
        read(again, first)
    assert read(again, first + 1).end_offset == 12


@pytest.mark.parametrize("count", [1, 3, 30])
@pytest.mark.parametrize("place", [0, 1])
def test_damaged_units_of_the_oldest_messages_hide_none(place: int, count: int) -> None:
    """They look like units of messages that have expired."""
    tier, first = begun_late()
    units = tier.provider.held[QUEUE, 0]
    for number in range(first, min(first + count, 12)):
        units[number * UNIT_BYTES : number * UNIT_BYTES + 8] = place.to_bytes(8)
    again = tier.open()
    assert again.min_offset == first
    with pytest.raises(SegmentCorruptError):
        read(again, first)


def test_the_oldest_record_is_believed_where_its_unit_cannot_be_read() -> None:
    tier, first = begun_late(queue_units=4)
    del tier.provider.held[QUEUE, first // 4 * 4 * UNIT_BYTES]
    assert tier.open().min_offset == first


def test_a_lost_oldest_segment_is_damage_only_to_those_who_read_in_it() -> None:
    tier = OneQueue(log_bytes=400)
    file = tier.open()
    file.start_at(0)
    fill(file, numbered(0, 12))
    assert len(file.log.segments) > 3
    dropped, lost = file.log.segments[:2]
    file.log.drop([dropped])
    first = file.min_offset
    del tier.provider.held[lost.record.type, lost.base]
    again = tier.open()
    assert again.min_offset == first > 0
    tier.provider.reads.clear()
    assert again.min_offset == first
    assert tier.provider.reads == []  # it is read only once
    with pytest.raises(SegmentCorruptError):
        read(again, first)
    behind = read(file, first + 3)
    assert behind.first_offset == first + 3
    assert behind.end_offset == 12


def test_units_that_are_lost_beside_the_oldest_record_are_damage_only_to_those_who_read_them() -> (
    None
):
    tier, _ = begun_late(queue_units=4)
    del tier.provider.held[LOG, tier.open().log.min_offset]
    del tier.provider.held[QUEUE, 4 * UNIT_BYTES]
    again = tier.open()
    assert again.min_offset == 0  # which message it is cannot be told: none is passed over
    with pytest.raises(SegmentCorruptError):
        read(again, 4)
    assert read(again, 8).end_offset == 12


class Torn(CountingSource):
    """A read that includes this byte of a file raises SegmentCorruptError."""

    def __init__(self, file: FlatAppendFile, position: int, *, path: str = "") -> None:
        super().__init__()
        self.file = file
        self.end = position + 1
        self.error = SegmentCorruptError(
            path or file.segments[0].segment.path, "torn", position=position
        )

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        data = super().read(file, offset, length)
        if file is self.file and offset < self.end <= offset + length:
            raise self.error
        return data


@pytest.mark.parametrize("count", [6, MANY])
@pytest.mark.parametrize("torn", [LOG, QUEUE])
def test_rows_before_bytes_that_a_backend_calls_torn_are_served(
    count: int, torn: SegmentType
) -> None:
    file = OneQueue().open()
    records = numbered(0, count)
    fill(file, records)
    at = 4 * (len(records[0]) if torn is LOG else UNIT_BYTES)
    source = Torn(file.log if torn is LOG else file.queue, at)
    run = read_run(file, 0, count_max=count, bytes_max=1 << 20, source=source)
    assert same_but_for_log_offset(run, records[:4])
    source.reads.clear()
    with pytest.raises(SegmentCorruptError) as caught:
        read_run(file, 4, count_max=count, bytes_max=1 << 20, source=source)
    assert caught.value is source.error
    assert [kind for kind, _, _ in source.reads] == ([QUEUE, LOG] if torn is LOG else [QUEUE])


@pytest.mark.parametrize("torn", [LOG, QUEUE])
def test_damage_that_a_backend_tells_of_another_file_is_told_as_it_is(torn: SegmentType) -> None:
    file = OneQueue().open()
    fill(file, numbered(0, 6))
    source = Torn(file.log if torn is LOG else file.queue, 40, path="another file")
    with pytest.raises(SegmentCorruptError) as caught:
        read_run(file, 0, count_max=6, bytes_max=1 << 20, source=source)
    assert caught.value is source.error
