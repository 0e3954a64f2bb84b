"""What a read by queue offset or time answers: statuses, messages and next offsets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.access.fetch_kit import ByCode, ByNamedCode, Shelf, a_hundred, numbered, offsets
from tests.access.tiered_kit import ListIndex
from tests.flat.store_kit import KEY, Tier, append, unplaced
from tieredstore.access.fetcher import Fetcher
from tieredstore.codec.message import decode_message
from tieredstore.driver.message_store import ReadRequest
from tieredstore.driver.metrics import NoMetrics
from tieredstore.model.errors import SegmentCorruptError, StoreClosedError
from tieredstore.model.values import Boundary, GetStatus, QueueKey, SegmentType
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record

CACHES = pytest.mark.parametrize("cached", [True, False], ids=["cached", "direct"])


@CACHES
@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 100),
        (0, GetStatus.OFFSET_TOO_SMALL, 100),
        (100, GetStatus.FOUND, 132),
        (180, GetStatus.FOUND, 200),
        (200, GetStatus.OFFSET_OVERFLOW_ONE, 200),
        (300, GetStatus.OFFSET_OVERFLOW_BADLY, 200),
    ],
)
def test_the_status_tells_where_an_offset_is_and_where_to_go_on(
    cached: bool, offset: int, status: GetStatus, next_offset: int
) -> None:
    result = a_hundred(cached).get(offset)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (100, 200)
    found = range(offset, next_offset) if status is GetStatus.FOUND else []
    assert offsets(result) == list(found)


def test_a_read_at_a_segment_that_begins_within_a_unit_ends() -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 5))
    row = replace(tier.rows(SegmentType.CONSUME_QUEUE)[0], base_offset=107, size=20)
    tier.catalogue().put(row)
    with tier.inner.open(row.path, row.type, row.base_offset) as segment:
        segment.write(0, bytes(20))
    fetcher = Fetcher(tier.open(), ListIndex(), tier.config, tier.runtime, NoMetrics())
    result = fetcher.get_message(ReadRequest(*KEY, 5))
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 6)


@CACHES
def test_a_queue_that_is_not_there_has_a_status_of_its_own(cached: bool) -> None:
    shelf = a_hundred(cached)
    for topic, queue_id in ((TOPIC, 1), ("other", 0), (TOPIC, -1)):
        result = shelf.fetcher.get_message(ReadRequest(topic, queue_id, 7))
        assert result.status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        assert (result.next_offset, result.min_offset, result.max_offset) == (7, 0, 0)


def test_a_queue_without_messages_says_so() -> None:
    shelf = Shelf()
    shelf.store.create(TOPIC, 0)
    result = shelf.get(3)
    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 3)
    shelf.queue(start=100)
    assert shelf.get(100).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert shelf.get(99).status is GetStatus.OFFSET_TOO_SMALL


@CACHES
def test_messages_are_what_was_put_with_their_own_offsets_and_codes(cached: bool) -> None:
    records = numbered(100, 100)
    shelf = Shelf(read_ahead_enabled=cached)
    file = shelf.put(records, at=100, tags=[7 * n for n in range(100)])
    result = shelf.get(130, 60)
    for message in result.messages:
        row = message.queue_offset - 100
        assert unplaced(message.record) == unplaced(records[row])
        assert type(message.record) is bytes
        assert message.tags_code == 7 * row
        assert file.log.read(message.log_offset, len(message.record)) == message.record


@CACHES
def test_one_read_is_bounded_by_the_settings(cached: bool) -> None:
    size = len(a_record(100, body_bytes=40))
    eight = a_hundred(cached, read_ahead_bytes=8 * size + 10)
    assert eight.get(100).next_offset == 108
    assert a_hundred(cached, read_ahead_count=8).get(100).next_offset == 108


@CACHES
@pytest.mark.parametrize("count_max", [0, -1])
def test_a_page_of_no_messages_has_none_and_goes_nowhere(cached: bool, count_max: int) -> None:
    shelf = a_hundred(cached)
    for message_filter in (None, ByCode(0)):
        result = shelf.get(150, count_max, message_filter=message_filter)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 150)
        assert offsets(result) == []


@CACHES
def test_there_is_always_one_message_where_there_is_one(cached: bool) -> None:
    shelf = a_hundred(cached)
    assert offsets(shelf.get(150, 1)) == [150]
    for message_filter in (None, ByCode(0)):
        for bytes_max in (0, -5, 1):
            result = shelf.get(150, bytes_max=bytes_max, message_filter=message_filter)
            assert (offsets(result), result.next_offset) == ([150], 151)


def test_a_message_that_is_larger_than_all_limits_is_given_alone() -> None:
    shelf = Shelf(read_ahead_bytes=1000)
    shelf.put([a_record(0), a_record(1, body_bytes=50_000), a_record(2)], tags=[1, 1, 1])
    for message_filter in (None, ByNamedCode(1)):
        assert offsets(shelf.get(0, bytes_max=300, message_filter=message_filter)) == [0]
        assert offsets(shelf.get(1, bytes_max=300, message_filter=message_filter)) == [1]


def test_bytes_are_capped_before_the_message_that_does_not_fit() -> None:
    shelf = a_hundred()
    size = len(a_record(100, body_bytes=40))
    for message_filter in (None, ByCode(0), ByNamedCode(0)):
        result = shelf.get(100, bytes_max=5 * size, message_filter=message_filter)
        assert (offsets(result), result.next_offset) == ([100, 101, 102, 103, 104], 105)


def test_a_hundred_messages_in_batches_of_four_take_twenty_five_calls() -> None:
    shelf, at, calls = a_hundred(), 100, 0
    while (result := shelf.get(at, 4)).status is GetStatus.FOUND:
        at, calls = result.next_offset, calls + 1
    assert (at, calls) == (200, 25)


@CACHES
@pytest.mark.parametrize("kind", [ByCode, ByNamedCode])
def test_a_page_of_filtered_messages_ends_behind_the_last_one_taken(
    cached: bool, kind: type[ByCode]
) -> None:
    shelf = a_hundred(cached, tags=[0, 1] * 50)
    first = shelf.get(100, message_filter=kind(1, 2))
    assert (len(first.messages), first.next_offset) == (32, 164)
    second = shelf.get(164, message_filter=kind(1, 2))
    assert (len(second.messages), second.next_offset) == (18, 200)
    assert shelf.get(200, message_filter=kind(1, 2)).next_offset == 200
    assert shelf.get(100, message_filter=kind(0)).next_offset == 163
    every = a_hundred(cached, tags=list(range(100)))
    result = every.get(100, 2, message_filter=kind(10, 20))
    assert (offsets(result), result.next_offset) == ([110, 120], 121)


@CACHES
def test_both_the_code_and_the_record_must_match(cached: bool) -> None:
    shelf = a_hundred(cached, tags=[0, 1] * 50)
    by_both = ByCode(1, part=b"body-155|")
    assert offsets(shelf.get(100, message_filter=by_both)) == [155]
    assert by_both.shown == 50
    assert offsets(shelf.get(100, message_filter=ByCode(0, part=b"body-155|"))) == []


def test_codes_are_compared_as_java_does() -> None:
    tags = [5, 5 + (7 << 32), -5, -(2**31) - 1, 2**31]
    shelf = Shelf()
    shelf.put(numbered(0, 5), tags=tags)
    for kind in (ByCode, ByNamedCode):
        assert offsets(shelf.get(0, message_filter=kind(5))) == [0, 1, 3]
        assert offsets(shelf.get(0, message_filter=kind(-5))) == [2, 3]
        assert offsets(shelf.get(0, message_filter=kind(-(2**31)))) == [3, 4]
        assert offsets(shelf.get(0, message_filter=kind())) == [3]


@CACHES
def test_a_filter_that_takes_nothing_moves_on_by_so_many_units(cached: bool) -> None:
    shelf = a_hundred(cached, read_ahead_count=30)
    at, seen = 100, []
    while (result := shelf.get(at, message_filter=ByCode(9))).next_offset < 200:
        assert result.status is GetStatus.NO_MATCHED_MESSAGE
        seen.append(result.next_offset)
        at = result.next_offset
    assert seen == [130, 160, 190]
    assert all(kind is SegmentType.CONSUME_QUEUE for kind, _, _ in shelf.provider.reads)


@CACHES
def test_a_gap_is_named_and_stepped_over(cached: bool) -> None:
    shelf = Shelf(read_ahead_enabled=cached)
    file = shelf.put(numbered(0, 10))
    file.skip_to(50)
    shelf.put(numbered(50, 10))
    for message_filter in (None, ByCode(*range(99))):
        result = shelf.get(5, message_filter=message_filter)
        assert (offsets(result), result.next_offset) == ([5, 6, 7, 8, 9], 10)
        for offset in (10, 49):
            lost = shelf.get(offset, message_filter=message_filter)
            assert (lost.status, lost.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 50)
    assert [shelf.fetcher.contains(TOPIC, 0, n) for n in (-1, 9, 10, 49, 50, 59, 60)] == [
        *(False, True, False, False, True, True, False)
    ]
    assert shelf.fetcher.store_time(TOPIC, 0, 20) is None


@CACHES
@pytest.mark.parametrize("message_filter", [None, ByCode(0)])
def test_damage_is_an_error_and_hides_nothing_before_it(
    cached: bool, message_filter: ByCode | None
) -> None:
    shelf = a_hundred(cached)
    file = shelf.queue()
    place = int(file.units(150, 1).log_offsets[0])
    log = bytearray(file.log.read(0, file.log.commit_offset))
    log[place + 20 : place + 28] = bytes(8)  # another queue offset
    shelf.tier.damage(SegmentType.COMMIT_LOG, 0, bytes(log))
    result = shelf.get(140, message_filter=message_filter)
    assert (offsets(result), result.next_offset) == (list(range(140, 150)), 150)
    with pytest.raises(SegmentCorruptError):
        shelf.get(150, message_filter=message_filter)
    assert offsets(shelf.get(151, 1, message_filter=message_filter)) == [151]


@pytest.mark.parametrize("size", [10, 100])  # a small batch is checked one by one
@pytest.mark.parametrize("message_filter", [None, ByCode(0)])
def test_bodies_are_checked_where_that_is_wanted(message_filter: ByCode | None, size: int) -> None:
    for checked in (True, False):
        shelf = Shelf(crc_check_enabled=checked)
        file = shelf.put(numbered(0, size), tags=[0] * size)
        place = int(file.units(5, 1).log_offsets[0])
        log = bytearray(file.log.read(0, file.log.commit_offset))
        log[place + 90] ^= 1
        shelf.tier.damage(SegmentType.COMMIT_LOG, 0, bytes(log))
        count = len(shelf.get(0, size, message_filter=message_filter).messages)
        assert count == (5 if checked else size)
        if checked:
            with pytest.raises(SegmentCorruptError, match="checksum") as raised:
                shelf.get(5, size, message_filter=message_filter)
            assert raised.value.position == place


@pytest.mark.parametrize("checked", [None, True, False])
def test_bodies_of_columns_are_checked_but_where_that_is_not_wanted(checked: bool | None) -> None:
    shelf = Shelf(crc_check_enabled=checked)
    file = shelf.put(numbered(0, 10))
    place = int(file.units(5, 1).log_offsets[0])
    log = bytearray(file.log.read(0, file.log.commit_offset))
    log[place + 90] ^= 1
    shelf.tier.damage(SegmentType.COMMIT_LOG, 0, bytes(log))

    def ends(offset: int) -> int:
        limits = {"count_max": 20, "bytes_max": 1 << 20}
        return shelf.fetcher.read_range(TOPIC, 0, offset, **limits).end_offset

    assert ends(0) == (10 if checked is False else 5)
    if checked is not False:
        with pytest.raises(SegmentCorruptError, match="checksum") as raised:
            ends(5)
        assert raised.value.position == place
    assert ends(6) == 10


def test_a_queue_that_is_made_again_is_not_answered_from_the_old_one() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 5))
    assert len(shelf.get(0).messages) == 5
    shelf.store.destroy(QueueKey(TOPIC, 0))
    assert shelf.get(0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    shelf.put([a_record(7, queue_offset=n, body_bytes=40) for n in range(5)])
    bodies = {decode_message(one.record).body for one in shelf.get(0).messages}
    assert bodies == {decode_message(a_record(7, body_bytes=40)).body}


@pytest.mark.parametrize(("looks_between", "start"), [(True, 0), (False, 4)])
def test_a_reader_is_not_answered_from_a_queue_that_was_made_again_elsewhere(
    looks_between: bool, start: int
) -> None:
    tier = Tier()
    append(tier.file(), numbered(0, 10))
    seen = tier.open(read_only=True)
    fetcher = Fetcher(seen, ListIndex(), tier.config, tier.runtime, NoMetrics())
    assert len(fetcher.get_message(ReadRequest(TOPIC, 0, 0)).messages) == 10
    writer = tier.open()
    writer.destroy(KEY)
    again = writer.create(*KEY)
    if looks_between:
        seen.refresh()
        assert not fetcher.get_message(ReadRequest(TOPIC, 0, 0)).messages
    again.start_at(start)
    wanted = [a_record(7, queue_offset=n, body_bytes=60) for n in range(start, 12)]
    append(again, wanted)
    seen.refresh()
    found = fetcher.get_message(ReadRequest(TOPIC, 0, start)).messages
    assert [unplaced(one.record) for one in found] == [unplaced(one) for one in wanted]


def test_a_key_that_is_not_indexed_is_found_though_the_clock_was_set_back() -> None:
    class Behind(ListIndex):
        def put(self, *run: object) -> None:
            """Index nothing."""

        def indexed_offset(self, *queue: object) -> int:
            return 0

    shelf = Shelf(index=Behind())
    times = [STORE_TIMESTAMP, STORE_TIMESTAMP - 60_000, STORE_TIMESTAMP]
    shelf.put([a_record(number, store_timestamp=time) for number, time in enumerate(times)])
    answer = shelf.fetcher.query_message(TOPIC, "shared", end=STORE_TIMESTAMP - 30_000)
    assert answer.complete
    assert [one.queue_offset for one in answer.messages] == [1]


def test_a_closed_fetcher_says_so_every_time() -> None:
    shelf = a_hundred()
    shelf.fetcher.start()
    shelf.fetcher.close()
    shelf.fetcher.close()
    fetcher = shelf.fetcher
    for call in (
        lambda: fetcher.get_message(ReadRequest(TOPIC, 0, 100)),
        lambda: fetcher.get_message_future(ReadRequest(TOPIC, 0, 100)),
        lambda: fetcher.query_message(TOPIC, "key"),
        lambda: fetcher.store_time(TOPIC, 0, 100),
        lambda: fetcher.commit_offset(TOPIC, 0),
        lambda: fetcher.contains(TOPIC, 0, 100),
    ):
        with pytest.raises(StoreClosedError):
            call()


@CACHES
def test_many_messages_may_be_read_as_columns(cached: bool) -> None:
    shelf = a_hundred(cached)
    run = shelf.fetcher.read_range(TOPIC, 0, 150, count_max=20, bytes_max=1 << 20)
    assert (run.first_offset, run.end_offset) == (150, 170)
    page = shelf.get(150, 20)
    assert [bytes(run.record(row)) for row in range(20)] == [one.record for one in page.messages]
    for queue_id, offset in ((0, 200), (0, 99), (1, 0)):
        assert not len(
            shelf.fetcher.read_range(TOPIC, queue_id, offset, count_max=9, bytes_max=999)
        )


def test_memory_of_what_expired_can_be_given_back() -> None:
    shelf = Shelf(log_bytes=2000, queue_units=8)
    file = shelf.put(numbered(0, 40))
    shelf.get(0, 40)
    file.queue.drop(file.queue.segments[:2])
    shelf.fetcher.forget(file.key)
    shelf.fetcher.forget(QueueKey("other", 0))
    shelf.provider.reads.clear()
    assert offsets(shelf.get(16, 24)) == list(range(16, 40))


@CACHES
@pytest.mark.parametrize("offset", [-1, 0, 99, 200, 201, 10**12])
@pytest.mark.parametrize("message_filter", [ByCode(0), ByNamedCode(0), ByCode()])
def test_a_filter_changes_nothing_where_there_are_no_messages(
    cached: bool, offset: int, message_filter: ByCode
) -> None:
    """As in RocketMQ's GetMessageResultExtTest: a filter leaves other results than FOUND alone."""
    shelf = a_hundred(cached)
    plain = shelf.get(offset)
    assert plain.status is not GetStatus.FOUND
    assert shelf.get(offset, message_filter=message_filter) == plain


@CACHES
def test_codes_and_contents_have_to_match_both(cached: bool) -> None:
    """As in the same test: filters by code, by code and content, and one that matches nothing."""
    shelf = a_hundred(cached, tags=[number % 2 for number in range(100)])
    everything = shelf.get(100, 100)
    code = everything.messages[55].tags_code
    by_code = [one.queue_offset for one in everything.messages if one.tags_code == code]
    assert len(by_code) == 50
    assert offsets(shelf.get(100, 100, message_filter=ByCode(code))) == by_code
    chosen = ByCode(code, part=b"body-155|")
    assert offsets(shelf.get(100, 100, message_filter=chosen)) == [155]
    nothing = shelf.get(100, 100, message_filter=ByCode(1 - code, part=b"body-155|"))
    assert nothing.status is GetStatus.NO_MATCHED_MESSAGE
    assert nothing.messages == ()


# Times in the tier: of a message, of a queue, and the offset for a time


@CACHES
def test_times_and_offsets_of_a_queue_whose_messages_have_one_time(cached: bool) -> None:
    shelf = Shelf(read_ahead_enabled=cached)
    records = [a_record(n, store_timestamp=STORE_TIMESTAMP + 11) for n in range(100, 200)]
    shelf.put(records, at=100)
    fetcher, time = shelf.fetcher, STORE_TIMESTAMP + 11
    assert fetcher.earliest_time(TOPIC, 0) == time
    assert [fetcher.store_time(TOPIC, 0, n) for n in (99, 100, 120, 200)] == [
        None,
        time,
        time,
        None,
    ]
    assert fetcher.offset_by_time(TOPIC, 0, time - 1, Boundary.LOWER) == 100
    assert fetcher.offset_by_time(TOPIC, 0, time, Boundary.LOWER) == 100
    assert fetcher.offset_by_time(TOPIC, 0, time, Boundary.UPPER) == 199
    assert fetcher.offset_by_time(TOPIC, 0, time + 1, Boundary.LOWER) == 200
    assert (fetcher.min_offset(TOPIC, 0), fetcher.commit_offset(TOPIC, 0)) == (100, 200)


def test_what_is_not_there_has_no_times_and_no_offsets() -> None:
    shelf = Shelf()
    shelf.store.create(TOPIC, 1)  # a queue that has not begun
    for queue_id in (0, 1):
        fetcher = shelf.fetcher
        assert fetcher.earliest_time(TOPIC, queue_id) is None
        assert fetcher.store_time(TOPIC, queue_id, 0) is None
        assert fetcher.offset_by_time(TOPIC, queue_id, 0, Boundary.LOWER) is None
        assert fetcher.min_offset(TOPIC, queue_id) is None
        assert fetcher.commit_offset(TOPIC, queue_id) is None
        assert not fetcher.contains(TOPIC, queue_id, 0)


def test_the_time_of_a_message_takes_two_small_reads_or_none() -> None:
    shelf = a_hundred()
    shelf.fetcher.store_time(TOPIC, 0, 150)
    assert [length for _, _, length in shelf.provider.reads] == [20, 92]
    shelf.get(150)
    shelf.provider.reads.clear()
    shelf.fetcher.store_time(TOPIC, 0, 150)
    assert shelf.provider.reads == []
