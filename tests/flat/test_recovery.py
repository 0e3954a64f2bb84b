"""A queue is opened whose catalogue lags, whose backend is short, or that has lost segments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.codec.encoders import encode_coda, rewrite_log_offset
from tests.flat.store_kit import KEY, LOG, PATH, QUEUE, Tier, append, content, unplaced
from tests.flat.tiers import numbered, run_of
from tieredstore.codec.queue_unit import encode_unit
from tieredstore.codec.record import BORN_HOST_IPV6, RECORD_BYTES_MIN
from tieredstore.driver.metadata import Put
from tieredstore.flat.append_file import FlatAppendFile, FlatSegment
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import read_run
from tieredstore.flat.recovery import UNCONFIRMED_NOTE, recover, take_back
from tieredstore.flat.times import offset_by_time
from tieredstore.model.errors import BackendRefusedError, OffsetOutOfRangeError, SegmentError
from tieredstore.model.values import Boundary, Host, Json, SegmentRecord, SegmentType
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record


def a_filled_tier(count: int = 6, **settings: int) -> Tier:
    tier = Tier(**settings)  # type: ignore[arg-type]
    append(tier.file(), numbered(0, count))
    return tier


def put_back(tier: Tier, type: SegmentType, index: int = -1, **fields: int | None) -> SegmentRecord:
    """Change a row in the catalogue itself; return the row as it was."""
    row = tier.rows(type)[index]
    tier.catalogue().put(replace(row, **fields))  # type: ignore[arg-type]
    return row


def last_bytes(tier: Tier, type: SegmentType) -> tuple[int, bytes]:
    return list(tier.held(type).items())[-1]


def placed(records: list[bytes], start: int) -> bytes:
    """The bytes of the records in a log from `start` on."""
    data = bytearray()
    for record in records:
        data += rewrite_log_offset(record, start + len(data))
    return bytes(data)


def harmed(units: bytes) -> bytes:
    """Units with the right log offsets but wrong lengths."""
    pieces = [units[at : at + 20] for at in range(0, len(units), 20)]
    return b"".join(each[:8] + b"\0\0\0\1" + each[12:] for each in pieces)


def expected(*numbers: int) -> dict[int, bytes]:
    return {n: unplaced(a_record(n, body_bytes=20)) for n in numbers}


def goes_on(tier: Tier, count: int) -> None:
    """Upload more; everything can be read, now and after another start."""
    file = tier.file()
    assert file.problem is None
    append(file, numbered(file.append_offset, count - file.append_offset))
    assert content(file) == expected(*range(count))
    assert content(tier.file()) == expected(*range(count))


def test_a_clean_queue_is_opened_with_one_question_a_file() -> None:
    tier = a_filled_tier()
    faults = Faults()
    tier.open(faults)
    assert faults.steps == 2


def test_a_queue_that_has_nothing_yet_too() -> None:
    tier = Tier()
    tier.file()
    faults = Faults()
    assert opened(tier, faults).problem is None
    assert faults.steps == 2


def test_a_catalogue_that_is_behind_is_brought_up_to_date() -> None:
    tier = a_filled_tier()
    rows = [
        put_back(tier, kind, size=0, begin_timestamp=None, end_timestamp=None)
        for kind in (LOG, QUEUE)
    ]
    file = tier.file()
    assert file.commit_offset == 6
    assert content(file) == expected(*range(6))
    assert [*tier.rows(LOG), *tier.rows(QUEUE)] == rows
    goes_on(tier, 9)


def test_times_of_messages_born_on_ipv6_are_true_after_a_recovery_too() -> None:
    tier = Tier()
    v6 = Host(bytes(range(16)), 1)
    append(tier.file(), [a_record(n, born_host=v6, sys_flag=BORN_HOST_IPV6) for n in range(3)])
    rows = [
        put_back(tier, kind, size=0, begin_timestamp=None, end_timestamp=None)
        for kind in (LOG, QUEUE)
    ]
    tier.file()
    assert [*tier.rows(LOG), *tier.rows(QUEUE)] == rows
    assert rows[0].end_timestamp == STORE_TIMESTAMP + 20


def test_log_bytes_that_no_unit_names_are_not_committed_and_not_sent_again() -> None:
    tier = a_filled_tier()
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[: 4 * 20])
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=0)
    log = tier.held(LOG)
    file = tier.file()
    assert file.commit_offset == 4
    assert file.log.append_offset == sum(map(len, numbered(0, 4)))
    goes_on(tier, 6)
    assert tier.held(LOG) == log


@pytest.mark.parametrize(
    "note",
    [
        {"from": 3},
        {"rows": []},
        {"from": "x", "rows": []},
        {"from": 3, "rows": [["NO_TYPE", 0, 0, None, None]]},
        {"from": 3, "rows": [["COMMIT_LOG", None, 0, None, None]]},
        {"from": 3, "rows": [["COMMIT_LOG", 0, 0]]},
        {"from": 3, "rows": 7},
        5,
    ],
)
def test_a_note_of_what_nobody_compared_that_makes_no_sense_is_passed_over(
    note: Json, caplog: pytest.LogCaptureFixture
) -> None:
    tier = a_filled_tier()
    tier.catalogue().put_note(UNCONFIRMED_NOTE, PATH, note)
    goes_on(tier, 8)
    assert tier.file().unconfirmed_from is None
    assert "a note that makes no sense" in caplog.text


def test_what_is_taken_back_is_as_the_catalogue_had_it() -> None:
    tier = a_filled_tier()
    rows = [
        put_back(tier, LOG, size=0, begin_timestamp=None, end_timestamp=None),
        put_back(tier, QUEUE, size=0, begin_timestamp=None, end_timestamp=None),
    ]
    file = tier.file()
    assert (file.unconfirmed_from, file.commit_offset) == (0, 6)
    assert [*tier.rows(LOG), *tier.rows(QUEUE)] == rows
    take_back(file, tier.catalogue())
    assert file.unconfirmed_from is None
    assert (file.commit_offset, file.log.commit_offset) == (0, 0)
    assert [row.size for row in (*tier.rows(LOG), *tier.rows(QUEUE))] == [0, 0]
    assert tier.catalogue().notes(UNCONFIRMED_NOTE) == {}
    append(file, numbered(0, 8))
    assert content(tier.file()) == expected(*range(8))


def a_queue_to_look_at() -> tuple[Tier, FlatFileStore, FlatMessageFile]:
    """Its catalogue names no message; the next look finds all."""
    tier = a_filled_tier()
    store = tier.open()
    file = store.create(*KEY)
    put_back(tier, LOG, size=0, begin_timestamp=None, end_timestamp=None)
    put_back(tier, QUEUE, size=0, begin_timestamp=None, end_timestamp=None)
    file.queue.load()
    return tier, store, file


def test_messages_count_for_no_moment_as_if_they_had_been_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The local store may ask at any time what it may delete."""
    _, store, file = a_queue_to_look_at()
    sure = []
    take_over = FlatAppendFile.take_over

    def asked(part: FlatAppendFile, segments: tuple[FlatSegment, ...]) -> None:
        take_over(part, segments)
        sure.append(file.sure_offset)

    monkeypatch.setattr(FlatAppendFile, "take_over", asked)
    store.look_again(file)
    assert sure == [0, 0]


@pytest.mark.parametrize("is_taken_back", [False, True])
def test_whoever_asks_while_messages_come_or_go_is_told_of_none_that_nobody_compared(
    monkeypatch: pytest.MonkeyPatch, is_taken_back: bool
) -> None:
    tier, store, file = a_queue_to_look_at()
    if is_taken_back:
        store.look_again(file)
    real = vars(FlatMessageFile)["commit_offset"].fget

    def asked(_file: FlatMessageFile) -> int:
        monkeypatch.undo()
        before = int(real(file))
        if is_taken_back:
            take_back(file, tier.catalogue())
            return before
        store.look_again(file)
        return int(real(file))

    monkeypatch.setattr(FlatMessageFile, "commit_offset", property(asked))
    assert file.sure_offset == 0


def test_messages_that_the_queue_has_named_are_no_unconfirmed_ones() -> None:
    tier = a_filled_tier()
    put_back(tier, LOG, size=1)
    assert tier.file().unconfirmed_from is None
    assert tier.catalogue().notes(UNCONFIRMED_NOTE) == {}


def test_a_second_recovery_keeps_what_the_first_one_noted() -> None:
    tier = a_filled_tier()
    one = len(numbered(0, 1)[0])
    times = {"begin_timestamp": STORE_TIMESTAMP, "end_timestamp": STORE_TIMESTAMP}
    for count in (2, 4):
        put_back(tier, LOG, size=count * one, **times)
        put_back(tier, QUEUE, size=count * 20, **times)
        assert tier.file().unconfirmed_from == 2
    note = tier.catalogue().note(UNCONFIRMED_NOTE, PATH)
    assert isinstance(note, dict)
    rows = note["rows"]
    assert isinstance(rows, list)
    noted = [STORE_TIMESTAMP, STORE_TIMESTAMP]
    assert sorted(rows, key=str) == [
        ["COMMIT_LOG", 0, 2 * one, *noted],
        ["CONSUME_QUEUE", 0, 2 * 20, *noted],
    ]


@pytest.mark.parametrize("later", [5, 60])
def test_an_earlier_message_keeps_the_later_end_of_its_segment(later: int) -> None:
    tier = a_filled_tier()
    row = put_back(tier, LOG, size=1)
    put_back(tier, LOG, size=1, end_timestamp=STORE_TIMESTAMP + later)
    assert row.end_timestamp is not None
    tier.file()
    assert tier.rows(LOG)[-1].end_timestamp == max(row.end_timestamp, STORE_TIMESTAMP + later)


def test_a_torn_unit_does_not_count_and_the_queue_goes_on() -> None:
    tier = a_filled_tier()
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[: 4 * 20 + 7])
    put_back(tier, QUEUE, size=0)
    put_back(tier, LOG, size=0)
    assert tier.file().commit_offset == 4
    goes_on(tier, 6)
    assert tier.held(QUEUE)[0] == units


def test_a_torn_first_unit_is_not_in_the_way() -> None:
    tier = a_filled_tier()
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[:13])
    put_back(tier, QUEUE, size=0)
    put_back(tier, LOG, size=0)
    file = tier.file()
    assert (file.problem, file.commit_offset) == (None, 0)
    assert tier.held(QUEUE) == {}
    goes_on(tier, 6)


def test_a_first_batch_that_no_unit_names_stays_and_the_log_goes_on_behind_it() -> None:
    tier = a_filled_tier(2)
    length = len(tier.held(LOG)[0])
    with tier.inner.open(PATH, QUEUE, 0) as segment:
        segment.delete()
    put_back(tier, QUEUE, size=0)
    put_back(tier, LOG, size=0)
    file = tier.file()
    assert [(each.base, each.record.size) for each in file.log.segments] == [
        (0, length),
        (length, 0),
    ]
    assert file.commit_offset == 0
    goes_on(tier, 5)


@pytest.mark.parametrize("kind", [LOG, QUEUE])
def test_a_backend_that_has_less_than_was_committed_stops_uploads(kind: SegmentType) -> None:
    tier = a_filled_tier()
    base, data = last_bytes(tier, kind)
    tier.damage(kind, base, data[: len(data) // 2])
    rows = tier.rows(LOG), tier.rows(QUEUE)
    for _ in range(2):  # the next start finds it again
        file = tier.file()
        assert file.problem is not None
        assert "bytes that were committed are gone" in file.problem
        assert file.commit_offset == 3
        assert content(file) == expected(0, 1, 2)
        with pytest.raises(BackendRefusedError, match="are gone"):
            file.append(run_of(3, numbered(3, 1)))
        assert (tier.rows(LOG), tier.rows(QUEUE)) == rows
        assert last_bytes(tier, kind)[1] == data[: len(data) // 2]


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_is_lost_before_a_gap_is_no_part_of_the_gap(is_cut: bool) -> None:
    """A reader steps over a gap; what was committed and is gone is damage."""
    tier = a_filled_tier(6)
    file = tier.file()
    file.skip_to(9)
    append(file, numbered(9, 3))
    units = tier.held(QUEUE)[0]
    if is_cut:
        tier.damage(QUEUE, 0, units[: 20 * 2])
    else:
        with tier.inner.open(PATH, QUEUE, 0) as segment:
            segment.delete()
    again = tier.file()
    assert again.problem is not None
    assert "bytes that were committed are gone" in again.problem
    assert read_run(again, 9, count_max=10, bytes_max=1 << 20).end_offset == 12
    for offset in range(2, 6):
        assert again.queue.first_unit_from(offset) == offset
        with pytest.raises(SegmentError):
            read_run(again, offset, count_max=10, bytes_max=1 << 20)


@pytest.mark.parametrize("kind", [LOG, QUEUE])
def test_a_last_segment_that_is_gone_stops_uploads_and_the_rest_is_read(kind: SegmentType) -> None:
    tier = a_filled_tier(6, queue_units=4, log_bytes=len(numbered(0, 1)[0]) * 4)
    base, _ = last_bytes(tier, kind)
    with tier.inner.open(PATH, kind, base) as segment:
        segment.delete()
    file = tier.file()
    assert file.problem is not None
    assert content(file) == expected(0, 1, 2, 3)


def test_units_that_name_bytes_the_log_never_had_stop_uploads() -> None:
    tier = a_filled_tier()
    base, data = last_bytes(tier, LOG)
    tier.damage(LOG, base, data[:-1])
    put_back(tier, LOG, size=0)
    put_back(tier, QUEUE, size=0)
    file = tier.file()
    assert file.problem == "1 queue units name bytes that the log does not have"
    assert content(file) == expected(0, 1, 2, 3, 4)


def test_a_last_unit_that_names_no_message_stops_uploads() -> None:
    tier = a_filled_tier()
    base, data = last_bytes(tier, LOG)
    tier.damage(LOG, base, bytes(len(data)))
    put_back(tier, LOG, size=0)
    file = tier.file()
    assert file.problem is not None
    assert "names no message" in file.problem


def test_a_last_unit_that_names_a_hole_in_the_log_stops_uploads() -> None:
    tier = a_filled_tier()
    base, data = last_bytes(tier, LOG)
    put_back(tier, QUEUE, size=0)
    tier.damage(LOG, base, data[:-50])
    put_back(tier, LOG, size=len(data) - 50)
    further = len(data) + 100
    tier.catalogue().put(SegmentRecord(path=PATH, type=LOG, base_offset=further))
    file = tier.file()
    problem = file.problem
    assert problem is not None
    assert "1 queue units name bytes that the log does not have" in problem
    assert content(file) == expected(*range(5))


@pytest.mark.parametrize("at", [0, 3, 20, 27, 31], ids=str)
@pytest.mark.parametrize("bit", [0, 6])
def test_a_last_record_whose_head_is_damaged_is_not_taken_for_one_that_was_lost(
    at: int, bit: int
) -> None:
    """Its unit names bytes that the log has, so the queue ends after it; its times do not count."""
    tier = a_filled_tier()
    base, data = last_bytes(tier, LOG)
    place = len(data) - len(numbered(5, 6)[0])
    harmed = bytearray(data)
    harmed[place + at] ^= 1 << bit
    tier.damage(LOG, base, bytes(harmed))
    noted = STORE_TIMESTAMP + 20
    put_back(tier, LOG, size=sum(map(len, numbered(0, 3))), end_timestamp=noted)
    put_back(tier, QUEUE, size=3 * 20, end_timestamp=noted)
    file = tier.file()
    assert file.commit_offset == 6
    assert file.problem is not None
    for number in range(5):
        time = STORE_TIMESTAMP + 10 * number
        assert offset_by_time(file, time, Boundary.LOWER) == number
        assert len(read_run(file, number, count_max=1, bytes_max=1)) == 1


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_message_whose_unit_is_damaged_keeps_its_place(count: int) -> None:
    tier = a_filled_tier()
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[: -20 * count] + harmed(units[-20 * count :]))
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=0)
    length = len(tier.held(LOG)[0])
    file = tier.file()
    assert (file.commit_offset, file.log.commit_offset) == (6, length)
    assert file.problem is not None
    assert f"messages {6 - count} to 5 are in the log" in file.problem


def test_the_only_message_keeps_its_place_though_its_unit_names_nothing() -> None:
    tier = a_filled_tier(1)
    base, unit = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, (1 << 40).to_bytes(8) + unit[8:])
    put_back(tier, QUEUE, size=0)
    file = tier.file()
    assert file.commit_offset == 1
    assert "messages 0 to 0 are in the log" in str(file.problem)


def test_a_first_message_whose_time_cannot_be_read_is_a_problem() -> None:
    tier = a_filled_tier()
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=20, begin_timestamp=None, end_timestamp=None)
    base, data = last_bytes(tier, LOG)
    tier.damage(LOG, base, data[:4] + bytes(4) + data[8:])
    file = tier.file()
    assert file.commit_offset == 6
    assert "the time of its first message cannot be read" in str(file.problem)
    assert [each.record.end_timestamp for each in file.queue.segments] == [None]


def test_a_queue_whose_units_are_all_damaged_begins_with_its_first_message() -> None:
    tier = a_filled_tier()
    base, units = last_bytes(tier, QUEUE)
    pieces = [units[at + 8 : at + 20] for at in range(0, len(units), 20)]
    tier.damage(QUEUE, base, b"".join((1 << 40).to_bytes(8) + piece for piece in pieces[1:]))
    tier.damage(QUEUE, base, harmed((1 << 40).to_bytes(8) + pieces[0]) + harmed(units[20:]))
    times = [tier.rows(QUEUE)[0].begin_timestamp, tier.rows(QUEUE)[0].end_timestamp]
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=0, begin_timestamp=None, end_timestamp=None)
    file = tier.file()
    assert "messages 0 to 5 are in the log" in str(file.problem)
    for segment in (*file.queue.segments, *file.log.segments):
        assert [segment.record.begin_timestamp, segment.record.end_timestamp] == times


def test_damaged_units_count_up_to_the_last_record_that_the_log_has() -> None:
    tier = a_filled_tier()
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[:-40] + harmed(units[-40:]))
    base, data = last_bytes(tier, LOG)
    tier.damage(LOG, base, data[: -len(numbered(5, 1)[0])])
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=0)
    file = tier.file()
    assert file.commit_offset == 5
    assert file.problem == "1 queue units name bytes that the log does not have"


def test_of_units_whose_log_has_nothing_none_counts() -> None:
    tier = a_filled_tier()
    with tier.inner.open(PATH, LOG, 0) as segment:
        segment.delete()
    put_back(tier, LOG, size=0)
    put_back(tier, QUEUE, size=20)
    file = tier.file()
    assert file.commit_offset == 0
    assert file.problem == "6 queue units name bytes that the log does not have"


def test_a_damaged_unit_may_name_what_has_expired() -> None:
    tier = a_rolled_tier()
    file = tier.file()
    file.log.drop(file.log.segments[:1])
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[:-20] + (5).to_bytes(8) + units[-12:])
    put_back(tier, QUEUE, size=20)
    file = tier.file()
    assert file.commit_offset == COUNT
    assert f"messages {COUNT - 1} to {COUNT - 1} are in the log" in str(file.problem)


def test_a_damaged_unit_does_not_count_for_bytes_that_no_unit_names() -> None:
    tier = a_filled_tier()
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[: 3 * 20] + harmed(units[3 * 20 : 4 * 20]))
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=0)
    file = tier.file()
    assert (file.commit_offset, file.log.commit_offset) == (4, sum(map(len, numbered(0, 4))))


def test_a_damaged_unit_is_of_the_later_of_two_records_of_its_number() -> None:
    tier = a_filled_tier(3)
    log_base, log = last_bytes(tier, LOG)
    tier.damage(LOG, log_base, log + placed(numbered(3, 2), len(log)))  # no unit names these
    put_back(tier, LOG, size=len(log) + len(numbered(3, 1)[0]) * 2)
    file = tier.file()
    file.log.roll()
    append(file, numbered(3, 2))
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[: 3 * 20] + harmed(units[3 * 20 : 5 * 20]))
    end = file.log.commit_offset
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=0)
    again = tier.file()
    assert (again.commit_offset, again.log.commit_offset) == (5, end)


def test_a_row_that_is_behind_in_the_middle_is_asked_for() -> None:
    tier = a_filled_tier(6, queue_units=2, log_bytes=len(numbered(0, 1)[0]) * 2)
    rows = [put_back(tier, kind, 1, size=0) for kind in (LOG, QUEUE)]
    file = tier.file()
    assert content(file) == expected(*range(6))
    assert [tier.rows(LOG)[1].size, tier.rows(QUEUE)[1].size] == [row.size for row in rows]


def test_bytes_that_lie_over_the_next_segment_do_not_count() -> None:
    tier = a_filled_tier(6, queue_units=2, log_bytes=len(numbered(0, 1)[0]) * 2)
    row = put_back(tier, LOG, 1, size=0)
    tier.damage(LOG, row.base_offset, tier.held(LOG)[row.base_offset] + bytes(1000))
    file = tier.file()
    assert content(file) == expected(*range(6))
    assert tier.rows(LOG)[1].size == row.size


def test_a_row_that_claims_the_next_segments_bytes_is_cut() -> None:
    tier = a_filled_tier(6, queue_units=2, log_bytes=len(numbered(0, 1)[0]) * 2)
    row = put_back(tier, LOG, 1, size=10_000)
    file = tier.file()
    assert content(file) == expected(*range(6))
    assert tier.rows(LOG)[1].size == row.size


def test_a_queue_segment_that_begins_within_a_unit_stops_uploads() -> None:
    tier = a_filled_tier()
    tier.catalogue().put(SegmentRecord(path=PATH, type=QUEUE, base_offset=127))
    file = tier.open().get(KEY)
    assert file is not None
    assert file.problem == "a consume queue segment begins within a unit"


def test_an_end_mark_counts_and_the_next_segment_begins_behind_it() -> None:
    tier = a_filled_tier(3)
    base, data = last_bytes(tier, LOG)
    marked = data + encode_coda(STORE_TIMESTAMP)
    tier.damage(LOG, base, marked)
    put_back(tier, LOG, size=len(marked))
    tier.catalogue().put(SegmentRecord(path=PATH, type=LOG, base_offset=len(marked)))
    goes_on(tier, 6)
    assert [each.base for each in tier.file().log.segments] == [0, len(marked)]


def test_a_last_unit_that_names_an_end_mark_names_the_record_behind_it() -> None:
    """Old versions of RocketMQ wrote the end mark's offset into units and records."""
    tier = a_filled_tier(3)
    base, data = last_bytes(tier, LOG)
    coda = encode_coda(STORE_TIMESTAMP)
    tier.damage(LOG, base, data + coda)
    put_back(tier, LOG, size=len(data) + len(coda))
    record = rewrite_log_offset(numbered(3, 1)[0], len(data))
    row = SegmentRecord(path=PATH, type=LOG, base_offset=len(data) + len(coda))
    tier.catalogue().put(row)
    tier.damage(LOG, row.base_offset, record)
    base, units = last_bytes(tier, QUEUE)
    unit = encode_unit(log_offset=len(data), message_bytes=len(record), tags_code=1)
    tier.damage(QUEUE, base, units + unit)
    file = tier.file()
    assert (file.problem, file.commit_offset) == (None, 4)
    assert file.log.commit_offset == row.base_offset + len(record)


def test_the_shortest_record_there_can_be_is_one() -> None:
    tier = Tier()
    append(tier.file(), [a_record(n, topic="", body_bytes=0, properties={}) for n in range(2)])
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=0)
    file = tier.file()
    assert (file.problem, file.commit_offset) == (None, 2)
    assert file.log.commit_offset == 2 * RECORD_BYTES_MIN


def test_an_end_mark_nobody_counted_is_left_where_it_is() -> None:
    tier = a_filled_tier(3)
    base, data = last_bytes(tier, LOG)
    tier.damage(LOG, base, data + encode_coda(STORE_TIMESTAMP))
    goes_on(tier, 6)
    assert tier.held(LOG)[0] == data + encode_coda(STORE_TIMESTAMP)
    assert [each.base for each in tier.file().log.segments] == [0, len(data)]


def test_copies_that_java_left_in_the_log_stay_part_of_it() -> None:
    """RocketMQ counts all bytes of the backend, and may write a batch twice."""
    tier = a_filled_tier(3)
    base, data = last_bytes(tier, LOG)
    tier.damage(LOG, base, data + data)
    put_back(tier, LOG, size=2 * len(data))
    goes_on(tier, 6)
    assert tier.held(LOG)[0][: 2 * len(data)] == data + data


def test_a_reader_changes_nothing() -> None:
    tier = a_filled_tier()
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, units[:-3])
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=0)
    before = tier.rows(LOG), tier.rows(QUEUE), tier.held(LOG), tier.held(QUEUE)
    file = tier.open(read_only=True).get(KEY)
    assert file is not None
    assert content(file) == expected(*range(5))
    assert (tier.rows(LOG), tier.rows(QUEUE), tier.held(LOG), tier.held(QUEUE)) == before


def test_an_older_copy_says_nothing_of_the_end_of_a_segment_that_others_follow() -> None:
    tier = a_rolled_tier()
    row = put_back(tier, LOG, 0, size=1, end_timestamp=STORE_TIMESTAMP)
    assert row.end_timestamp == STORE_TIMESTAMP + 10
    file = opened(tier, read_only=True)
    assert file.log.segments[0].record == replace(row, end_timestamp=None)
    assert offset_by_time(file, STORE_TIMESTAMP + 10, Boundary.LOWER) == 1


@pytest.mark.parametrize("step", range(4))
def test_a_recovery_that_fails_leaves_what_the_catalogue_knows(step: int) -> None:
    tier = a_filled_tier()
    for kind in (LOG, QUEUE):
        put_back(tier, kind, size=len(last_bytes(tier, kind)[1]) // 2)
    tier.catalogue().apply([Put(replace(tier.catalogue().queues()[0], queue_id=1))])
    store = tier.open(Faults({step: Fault.BEFORE}))
    file = store.get(KEY)
    assert file is not None
    if file.problem is not None:
        assert file.problem.startswith("not recovered: ")
        assert file.commit_offset == 3
        assert store.retry_recovery() == 0
    assert (file.problem, file.commit_offset) == (None, 6)
    append(file, numbered(6, 1))
    assert content(file) == expected(*range(7))


COUNT = 8
KINDS = pytest.mark.parametrize("kind", [LOG, QUEUE])


def a_rolled_tier() -> Tier:
    """A queue with four segments of two messages in each file."""
    tier = Tier(queue_units=2, log_bytes=len(numbered(0, 1)[0]) * 2)
    append(tier.file(), numbered(0, COUNT))
    assert len(tier.rows(LOG)) == len(tier.rows(QUEUE)) == 4
    return tier


def opened(tier: Tier, faults: Faults | None = None, *, read_only: bool = False) -> FlatMessageFile:
    file = tier.open(faults, read_only=read_only).get(KEY)
    assert file is not None
    return file


def lose(tier: Tier, kind: SegmentType, index: int, *, keep: int = 0) -> None:
    """Leave only the first `keep` bytes of a segment in the backend, or nothing."""
    row = tier.rows(kind)[index]
    with tier.inner.open(row.path, kind, row.base_offset) as segment:
        data = segment.read(0, keep)
        segment.delete()
        if keep:
            segment.write(0, data)


def readable(file: FlatMessageFile) -> set[int]:
    found = set()
    for offset in range(COUNT):
        try:
            unit = file.units(offset, 1)
            record = file.log.read(int(unit.log_offsets[0]), int(unit.message_bytes[0]))
        except (SegmentError, OffsetOutOfRangeError):
            continue
        assert unplaced(record) == unplaced(a_record(offset, body_bytes=20))
        found.add(offset)
    return found


@KINDS
@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_that_is_gone_is_named_and_the_queue_takes_nothing_more(
    kind: SegmentType, index: int
) -> None:
    tier = a_rolled_tier()
    rows = [*tier.rows(LOG), *tier.rows(QUEUE)]
    lose(tier, kind, index)
    file = opened(tier)
    assert file.problem is not None
    size = tier.rows(kind)[index].size
    assert file.problem.endswith(f": {size} bytes that were committed are gone")
    assert kind.name in file.problem
    assert readable(file) == set(range(COUNT)) - {2 * index, 2 * index + 1}
    with pytest.raises(BackendRefusedError):
        file.append(run_of(COUNT, numbered(COUNT, 1)))
    assert [*tier.rows(LOG), *tier.rows(QUEUE)] == rows


@KINDS
def test_one_that_is_short_too(kind: SegmentType) -> None:
    tier = a_rolled_tier()
    size = tier.rows(kind)[1].size
    lose(tier, kind, 1, keep=size // 2)
    file = opened(tier)
    assert file.problem is not None
    assert f"{size - size // 2} bytes that were committed are gone" in file.problem
    assert readable(file) == set(range(COUNT)) - {3}


def test_a_whole_queue_goes_on_and_is_looked_at_once() -> None:
    tier = a_rolled_tier()
    faults = Faults()
    file = opened(tier, faults)
    assert (file.problem, faults.steps) == (None, 3)  # asks for two ends and a listing
    recover(file, tier.catalogue(), tier.clock)
    assert faults.steps == 5
    append(file, numbered(COUNT, 4))
    before = faults.steps
    for steps in (3, 5):  # the first one also lists, as there are new segments
        recover(file, tier.catalogue(), tier.clock)
        assert faults.steps == before + steps
    assert len(content(opened(tier))) == COUNT + 4


def test_one_that_came_back_lets_the_queue_go_on() -> None:
    tier = a_rolled_tier()
    row = tier.rows(LOG)[1]
    data = tier.held(LOG)[row.base_offset]
    lose(tier, LOG, 1)
    file = opened(tier)
    assert "are gone" in str(file.problem)
    tier.damage(LOG, row.base_offset, data)
    recover(file, tier.catalogue(), tier.clock)
    assert file.problem is None
    append(file, numbered(COUNT, 2))
    assert len(content(opened(tier))) == COUNT + 2


def test_a_backend_that_cannot_list_leaves_the_queue_for_later() -> None:
    tier = a_rolled_tier()
    tier.catalogue().apply([Put(replace(tier.catalogue().queues()[0], queue_id=1))])
    store = tier.open(Faults({2: Fault.BEFORE}))
    file = store.get(KEY)
    assert file is not None
    assert str(file.problem).startswith("not recovered: ")
    assert store.retry_recovery() == 0
    assert file.problem is None


@pytest.mark.parametrize("read_only", [False, True])
def test_only_a_writer_says_that_nothing_more_is_uploaded(
    read_only: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tier = a_filled_tier()
    tier.damage(LOG, 0, b"short")
    assert opened(tier, read_only=read_only).problem is not None
    assert ("nothing more is uploaded" in caplog.text) is not read_only


def test_a_reader_does_not_list() -> None:
    tier = a_rolled_tier()
    lose(tier, LOG, 1)
    faults = Faults()
    file = opened(tier, faults, read_only=True)
    assert (file.problem, faults.steps) == (None, 2)
    assert readable(file) == {0, 1, 4, 5, 6, 7}
