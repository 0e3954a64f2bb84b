"""The promises of `MessageStore` as a test suite.

    class TestMyStore(MessageStoreContract):
        def open_store(self) -> MessageStore:
            return MyStore(directory)

        def expire(self, store: MessageStore) -> None:
            store.delete_oldest()

It tests every promise except two that cannot be observed from outside: that no crash loses
confirmed messages, and that retention guards are asked before anything is deleted. `check_page`
checks a page, for further tests. `ListMessageStore` is an in-memory store for tests of code around
a store: a test sets which messages it has lost and how it fails.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Self

import numpy as np
import pytest

from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import (
    TRANSACTION_PREPARED,
    peek_store_timestamp,
    property_bytes_of,
    split_keys,
    tags_code,
)
from tieredstore.codec.selected import SelectedRecord
from tieredstore.driver.message_store import (
    BYTES_MAX,
    COUNT_MAX,
    Dispatcher,
    MessageFilter,
    MessageStore,
    RetentionGuard,
    batches_at_once,
    puts_at_once,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StoreClosedError,
)
from tieredstore.model.message_body import COMPRESSED
from tieredstore.model.message_columns import MessageColumns
from tieredstore.model.messages import (
    DispatchRequest,
    GetResult,
    Message,
    MessageRun,
    PutResult,
    QueryResult,
    SelectedMessage,
)
from tieredstore.model.values import INT64_MAX, Boundary, GetStatus, PutStatus, QueueKey
from tieredstore.testing.samples import TOPIC, a_body, a_message

PAGED_COUNT = 60  # messages that are read in pages while the oldest expire
WAIT_SECONDS = 240.0  # for results that must come; no sound store takes that long
_QUEUE = QueueKey(TOPIC, 0)


def _all(_offset: int) -> bool:
    return True


def check_page(
    page: GetResult,
    offset: int,
    *,
    there: Collection[int],
    wanted: Callable[[int], bool] = _all,
) -> None:
    """Assert that a page's messages and next offset skip no existing message but filtered ones.

    `there` are the queue offsets of the messages that some store had both before and after the
    read; `wanted` says which of them the filter takes.
    """
    found = [one.queue_offset for one in page.messages]
    behind = found[-1] + 1 if found else offset
    assert found == [number for number in range(offset, behind) if wanted(number)], page.status
    assert (page.status is GetStatus.FOUND) == bool(found)
    assert not found or page.next_offset >= behind
    passed = [one for one in there if behind <= one < page.next_offset and wanted(one)]
    assert not passed, (page.status, offset, page.next_offset, passed)


class TagFilter:
    """Takes the messages of one tag. A test may let something happen at one of its calls."""

    def __init__(self, tag: str) -> None:
        self._code = tags_code(tag)
        self.asked = 0
        self.meanwhile: dict[int, Callable[[], None]] = {}

    def matches_tags_code(self, tags_code: int) -> bool:
        self._question()
        return tags_code == self._code

    def matches_record(self, record: bytes) -> bool:
        self._question()
        return True

    def _question(self) -> None:
        self.asked += 1
        self.meanwhile.pop(self.asked, lambda: None)()


class NamedTagFilter(TagFilter):
    """The same, with its codes in `tags_codes`, so that a store need not call it."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tags_codes = (tags_code(tag),)


class MessageStoreContract:
    """Subclass it, define `open_store`, and run it with pytest."""

    @abstractmethod
    def open_store(self) -> MessageStore:
        """A new, empty store that is not loaded yet. A put must have dispatched its message when it
        returns."""
        raise NotImplementedError

    def expire(self, store: MessageStore) -> None:
        """Let some of the oldest messages expire as they do by age, if they do in this store. It is
        called between reads of pages, and in the middle of one."""

    def settle(self, store: MessageStore) -> None:
        """Wait until what was put is found by time and by key, if the store needs time for that."""

    @pytest.fixture
    def store(self) -> Iterator[MessageStore]:
        store = self.open_store()
        store.load()
        store.start()
        yield store
        store.shutdown()

    def test_it_has_every_method_of_the_protocol(self) -> None:
        assert isinstance(self.open_store(), MessageStore)

    def test_what_was_put_is_got_in_order(self, store: MessageStore) -> None:
        for number in range(5):
            put = store.put_message(a_message(number))
            assert (put.status, put.queue_offset) == (PutStatus.PUT_OK, number)
            assert put.stored
        got = store.get_message(TOPIC, 0, 1, count_max=3)
        assert (got.status, got.next_offset) == (GetStatus.FOUND, 4)
        assert (got.min_offset, got.max_offset) == (0, 5)
        for number, selected in enumerate(got.messages, start=1):
            message = decode_message(selected.record)
            assert selected.queue_offset == message.queue_offset == number
            assert selected.log_offset == message.log_offset
            assert selected.tags_code == message.tags_code
            assert message.body == a_body(number)

    def test_a_record_has_all_that_its_message_had(self, store: MessageStore) -> None:
        """A compressed body without its flag, say, is another body for a consumer."""
        given = replace(
            a_message(1),
            flag=7,
            sys_flag=COMPRESSED,
            reconsume_times=3,
            prepared_transaction_offset=11,
        )
        assert store.put_message(given).stored
        (selected,) = store.get_message(TOPIC, 0, 0).messages
        stored = decode_message(selected.record)
        for name in (
            *("topic", "queue_id", "body", "properties", "flag", "sys_flag", "reconsume_times"),
            *("born_timestamp", "born_host", "store_host", "prepared_transaction_offset"),
        ):
            assert getattr(stored, name) == getattr(given, name), name

    @pytest.mark.parametrize(
        ("offset", "status", "next_offset"),
        [
            (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
            (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
            (1 << 40, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
            (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        ],
    )
    def test_an_offset_outside_has_a_status_and_where_to_go_on(
        self, store: MessageStore, offset: int, status: GetStatus, next_offset: int
    ) -> None:
        for number in range(3):
            store.put_message(a_message(number))
        got = store.get_message(TOPIC, 0, offset)
        assert (got.status, got.next_offset, list(got.messages)) == (status, next_offset, [])

    def test_an_unknown_queue_is_absence(self, store: MessageStore) -> None:
        got = store.get_message("Nowhere", 7, 0)
        assert got.status in (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE)
        assert store.min_offset("Nowhere", 7) is None
        assert store.max_offset("Nowhere", 7) is None
        assert not store.contains("Nowhere", 7, 0)
        assert len(store.read_range("Nowhere", 7, 0, count_max=10, bytes_max=1000)) == 0
        assert store.offset_by_time("Nowhere", 7, 0) is None
        assert store.store_time("Nowhere", 7, 0) is None
        assert store.earliest_time("Nowhere", 7) is None
        assert not store.query_message("Nowhere", "key-0").messages

    def test_at_least_one_message_comes_however_large_it_is(self, store: MessageStore) -> None:
        store.put_message(a_message(0, body_bytes=5000))
        store.put_message(a_message(1, body_bytes=10))
        got = store.get_message(TOPIC, 0, 0, bytes_max=100)
        assert [selected.queue_offset for selected in got.messages] == [0]
        run = store.read_range(TOPIC, 0, 0, count_max=10, bytes_max=100)
        assert (run.first_offset, run.end_offset) == (0, 1)

    @pytest.mark.parametrize("count_max", [0, -1])
    def test_a_page_of_no_messages_has_none_and_goes_nowhere(
        self, store: MessageStore, count_max: int
    ) -> None:
        for number in range(3):
            store.put_message(a_message(number))
        got = store.get_message(TOPIC, 0, 1, count_max=count_max)
        assert (got.next_offset, list(got.messages)) == (1, [])

    @pytest.mark.parametrize("bytes_max", [1, 1_500, BYTES_MAX])
    @pytest.mark.parametrize("count_max", [1, 5, COUNT_MAX])
    def test_pages_pass_no_message_by_while_the_oldest_expire_between_them(
        self, store: MessageStore, count_max: int, bytes_max: int
    ) -> None:
        self._page_through(store, lambda: None, _all, count_max=count_max, bytes_max=bytes_max)

    @pytest.mark.parametrize("kind", [TagFilter, NamedTagFilter])
    @pytest.mark.parametrize("question", [1, 2, 3, 7, 20])
    def test_a_page_passes_no_message_by_that_expires_while_it_is_read(
        self, store: MessageStore, kind: type[TagFilter], question: int
    ) -> None:
        def a_filter() -> TagFilter:
            chosen = kind("Tag1")
            chosen.meanwhile[question] = lambda: self.expire(store)
            return chosen

        self._page_through(store, a_filter, lambda number: number % 3 == 1, count_max=7)

    def _page_through(
        self,
        store: MessageStore,
        a_filter: Callable[[], MessageFilter | None],
        wanted: Callable[[int], bool],
        *,
        count_max: int,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        for number in range(PAGED_COUNT):
            store.put_message(a_message(number, body_bytes=400))
        offset = 0
        for _ in range(2 * PAGED_COUNT):
            before = self._there(store)
            page = store.get_message(
                TOPIC,
                0,
                offset,
                count_max=count_max,
                bytes_max=bytes_max,
                message_filter=a_filter(),
            )
            check_page(page, offset, there=before & self._there(store), wanted=wanted)
            offset = page.next_offset
            if offset == PAGED_COUNT:
                return
            self.expire(store)
        raise AssertionError(f"it comes no further than {offset}")

    @staticmethod
    def _there(store: MessageStore) -> set[int]:
        return {number for number in range(PAGED_COUNT) if store.contains(TOPIC, 0, number)}

    def test_a_run_holds_the_records_of_consecutive_messages(self, store: MessageStore) -> None:
        puts = [store.put_message(a_message(number)) for number in range(6)]
        run = store.read_range(TOPIC, 0, 2, count_max=3, bytes_max=100_000)
        assert (len(run), run.first_offset, run.end_offset) == (3, 2, 5)
        for row, put in enumerate(puts[2:5]):
            assert decode_message(run.record(row)).body == a_body(2 + row)
            assert (run.log_offsets[row], run.message_bytes[row]) == (put.log_offset, put.size)
            assert run.tags_codes[row] == tags_code(f"Tag{(2 + row) % 3}")
        assert store.read_range(TOPIC, 0, 4, count_max=9, bytes_max=100_000).end_offset == 6
        for outside in (-1, 6, 7):
            assert not len(store.read_range(TOPIC, 0, outside, count_max=3, bytes_max=100_000))

    def test_a_message_is_found_by_its_log_offset(self, store: MessageStore) -> None:
        put = store.put_message(a_message(0))
        selected = store.message_at(put.log_offset)
        assert selected is not None
        assert len(selected.record) == put.size
        assert store.message_at(put.log_offset + put.size) is None
        same = store.message_at(put.log_offset, put.size)
        assert same is not None
        assert same.record == selected.record
        assert store.message_at(put.log_offset, put.size + 1) is None

    def test_ends_are_those_of_what_was_put(self, store: MessageStore) -> None:
        assert store.min_log_offset() is None
        put = store.put_message(a_message(0))
        store.put_message(a_message(1))
        begins_at = store.min_log_offset()
        assert begins_at is not None
        assert begins_at <= put.log_offset
        assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (0, 2)
        assert [store.contains(TOPIC, 0, number) for number in (-1, 0, 1, 2)] == [
            *(False, True, True, False),
        ]

    def test_times_are_those_of_the_puts(self, store: MessageStore) -> None:
        times = [store.put_message(a_message(number)).store_timestamp for number in range(4)]
        other = store.put_message(a_message(0, topic="B")).store_timestamp
        self.settle(store)
        found = [store.store_time(TOPIC, 0, number) for number in range(-1, 5)]
        assert found == [None, *times, None]
        assert store.earliest_time(TOPIC, 0) == store.earliest_time() == times[0]
        assert store.earliest_time("B", 0) == other
        for time in (0, *times, times[-1] + 1):
            first = sum(one < time for one in times)
            assert store.offset_by_time(TOPIC, 0, time) == first
            if time in times:
                last = first + times.count(time) - 1
                assert store.offset_by_time(TOPIC, 0, time, Boundary.UPPER) == last

    def test_messages_are_found_by_their_keys_the_newest_first(self, store: MessageStore) -> None:
        puts = [store.put_message(a_message(number)) for number in range(5)]
        store.put_message(a_message(0, topic="B"))
        self.settle(store)

        def found(key: str, **limits: int) -> list[int]:
            answer = store.query_message(TOPIC, key, **limits)
            assert {decode_message(one.record).topic for one in answer.messages} <= {TOPIC}
            return [one.queue_offset for one in answer.messages]

        assert found("key-3") == found("UNIQ-00000003") == [3]
        assert found("shared") == [4, 3, 2, 1, 0]
        assert found("shared", count_max=2) == [4, 3]
        assert found("share") == found("shared", count_max=0) == []
        times = [put.store_timestamp for put in puts]
        assert found("shared", begin=times[0], end=times[-1]) == [4, 3, 2, 1, 0]
        assert found("shared", begin=times[-1] + 1) == found("shared", end=times[0] - 1) == []

    def test_dispatchers_see_every_message_once_and_in_order(self, store: MessageStore) -> None:
        seen: list[DispatchRequest] = []
        store.add_dispatcher(seen.extend)
        puts = [store.put_message(a_message(n, queue_id=n % 2)) for n in range(6)]
        assert [request.log_offset for request in seen] == [put.log_offset for put in puts]
        assert [(request.queue_id, request.queue_offset) for request in seen] == [
            (0, 0),
            (1, 0),
            (0, 1),
            (1, 1),
            (0, 2),
            (1, 2),
        ]
        for number, (request, put) in enumerate(zip(seen, puts, strict=True)):
            assert (request.size, request.store_timestamp) == (put.size, put.store_timestamp)
            assert request.tags_code == tags_code(f"Tag{number % 3}")
            assert request.unique_key == f"UNIQ-{number:08d}"
            assert list(request.keys) == [f"key-{number}", "shared"]

    def test_arrivals_are_called_out_once_when_they_can_be_read(self, store: MessageStore) -> None:
        seen: list[DispatchRequest] = []
        readable: list[bool] = []

        def hear(requests: Sequence[DispatchRequest]) -> None:
            seen.extend(requests)
            readable.extend(store.contains(one.topic, one.queue_id, 0) for one in requests)

        arrival = store.on_arrival(hear)
        puts = [store.put_message(a_message(n, queue_id=n % 2)) for n in range(4)]
        assert [
            (one.topic, one.queue_id, one.queue_offset, one.store_timestamp) for one in seen
        ] == [(TOPIC, n % 2, put.queue_offset, put.store_timestamp) for n, put in enumerate(puts)]
        for one in seen:
            page = store.get_message(TOPIC, one.queue_id, one.queue_offset, count_max=1)
            assert one.tags_code == page.messages[0].tags_code
        assert readable == [True] * 4
        arrival.cancel()
        arrival.cancel()
        store.put_message(a_message(4))
        assert len(seen) == 4

    def test_a_callback_that_raises_or_cancels_stops_no_other(self, store: MessageStore) -> None:
        seen: list[int] = []

        def fail(_: Sequence[DispatchRequest]) -> None:
            raise ValueError("planned")

        def once(requests: Sequence[DispatchRequest]) -> None:
            seen.extend(-1 for _ in requests)
            leaving.cancel()

        store.on_arrival(fail)
        leaving = store.on_arrival(once)
        store.on_arrival(lambda requests: seen.extend(one.queue_offset for one in requests))
        assert [store.put_message(a_message(number)).stored for number in range(3)] == [True] * 3
        assert seen == [-1, 0, 1, 2]

    def test_a_batch_is_stored_in_its_order_and_behind_what_was_put(
        self, store: MessageStore
    ) -> None:
        first = store.put_message(a_message(0))
        results = store.put_messages([a_message(n, queue_id=n % 2) for n in range(1, 6)])
        assert [(put.stored, put.queue_offset) for put in results] == [
            (True, 0),
            (True, 1),
            (True, 1),
            (True, 2),
            (True, 2),
        ]
        ends = [put.log_offset + put.size for put in [first, *results]]
        assert [put.log_offset for put in results] == ends[:-1]
        assert list(store.put_messages([])) == []

    def test_each_message_of_a_batch_is_stored_or_refused_by_itself(
        self, store: MessageStore
    ) -> None:
        too_long = replace(a_message(1), queue_id=3, properties={"key": "v" * 40_000})
        results = store.put_messages([a_message(0), too_long, a_message(2)])
        assert [(put.stored, put.queue_offset) for put in results if put.stored] == [
            (True, 0),
            (True, 1),
        ]
        assert not results[1].stored
        assert QueueKey(TOPIC, 3) not in store.queues()

    def test_properties_that_came_as_text_are_stored_as_they_came(
        self, store: MessageStore
    ) -> None:
        text = "b\x011\x02empty\x01\x02b\x012\x02TAGS\x01Tag1\x02KEYS\x01k"
        sent: list[str | bytes] = [text, text.encode(), ""]
        store.put_messages(
            [replace(a_message(0), properties={}, properties_text=one) for one in sent]
        )
        found = store.get_message(TOPIC, 0, 0).messages
        stored = [decode_message(one.record).property_bytes for one in found]
        assert stored == [text.encode(), text.encode(), b""]
        assert [one.tags_code for one in found] == [tags_code("Tag1")] * 2 + [0]

    def test_columns_are_stored_as_the_messages_that_they_are(self, store: MessageStore) -> None:
        columns = MessageColumns(
            topics=TOPIC,
            queue_ids=[number % 2 for number in range(40)],
            bodies=[a_body(number) for number in range(40)],
            properties_texts=[f"KEYS\x01key-{number}\x02" for number in range(40)],
        )
        first = store.put_messages(columns)
        second = store.put_messages_future(columns).result(WAIT_SECONDS)
        for results, start in ((first, 0), (second, 20)):
            assert [put.queue_offset for put in results] == [start + n // 2 for n in range(40)]
            assert all(put.stored for put in results)
        for number in (0, 7, 39):
            place = TOPIC, number % 2, 20 + number // 2
            [selected] = store.get_message(*place, count_max=1).messages
            message = decode_message(selected.record)
            assert (message.body, message.keys) == (a_body(number), (f"key-{number}",))

    def test_futures_are_done_when_their_messages_are_stored(self, store: MessageStore) -> None:
        futures = [store.put_message_future(a_message(number)) for number in range(40)]
        batch = store.put_messages_future([a_message(number) for number in range(40, 45)])
        last = store.put_message(a_message(45))
        puts = [*(one.result(WAIT_SECONDS) for one in futures), *batch.result(WAIT_SECONDS), last]
        assert [(put.status, put.queue_offset) for put in puts] == [
            (PutStatus.PUT_OK, number) for number in range(46)
        ]
        assert not futures[0].cancel()
        for number in (0, 39, 40, 44):
            [selected] = store.get_message(TOPIC, 0, number, count_max=1).messages
            assert decode_message(selected.record).body == a_body(number)

    def test_a_put_at_once_is_a_put_or_nothing(self, store: MessageStore) -> None:
        """For stores that have `put_at_once`."""
        at_once = puts_at_once(store)
        if at_once is None:
            return
        for number in range(40):
            put = at_once(a_message(number)) or store.put_message(a_message(number))
            assert (put.status, put.queue_offset) == (PutStatus.PUT_OK, number)
        assert store.max_offset(TOPIC, 0) == 40

    def test_a_batch_at_once_is_all_of_it_or_nothing(self, store: MessageStore) -> None:
        """For stores that have `put_messages_at_once`."""
        at_once = batches_at_once(store)
        if at_once is None:
            return
        for first in range(0, 40, 4):
            batch = [a_message(number) for number in range(first, first + 4)]
            puts = at_once(batch) or store.put_messages(batch)
            assert [(put.status, put.queue_offset) for put in puts] == [
                (PutStatus.PUT_OK, number) for number in range(first, first + 4)
            ]
        assert store.max_offset(TOPIC, 0) == 40

    def test_everything_put_is_below_the_confirmed_offset(self, store: MessageStore) -> None:
        put = store.put_message(a_message(0))
        assert store.confirmed_offset() >= put.log_offset + put.size

    def test_queues_come_with_messages_and_go_with_their_topic(self, store: MessageStore) -> None:
        store.put_message(a_message(0, topic="A"))
        store.put_message(a_message(0, topic="B", queue_id=3))
        assert set(store.queues()) == {QueueKey("A", 0), QueueKey("B", 3)}
        assert store.delete_topics(["A", "Nowhere"]) == 1
        assert set(store.queues()) == {QueueKey("B", 3)}
        assert store.max_offset("A", 0) is None

    def test_topics_that_are_retained_stay(self, store: MessageStore) -> None:
        for topic in ("A", "B", "C"):
            store.put_message(a_message(0, topic=topic))
        assert store.clean_unused_topics(["B", "Nowhere"]) == 2
        assert set(store.queues()) == {QueueKey("B", 0)}
        assert store.contains("B", 0, 0)
        assert not store.contains("A", 0, 0)

    def test_load_start_and_shutdown_are_idempotent(self, store: MessageStore) -> None:
        store.load()
        store.start()
        store.put_message(a_message(0))
        store.shutdown()
        store.shutdown()

    def test_nothing_works_before_load_and_after_shutdown(self) -> None:
        store = self.open_store()
        with pytest.raises(StoreClosedError):
            store.get_message(TOPIC, 0, 0)
        store.load()
        store.start()
        store.shutdown()
        for call in (
            lambda: store.get_message(TOPIC, 0, 0),
            lambda: store.put_message(a_message(0)),
            lambda: store.put_messages([a_message(0)]),
            lambda: store.put_message_future(a_message(0)).result(WAIT_SECONDS),
            lambda: store.put_messages_future([a_message(0)]).result(WAIT_SECONDS),
            lambda: store.min_offset(TOPIC, 0),
            lambda: store.max_offset(TOPIC, 0),
            lambda: store.contains(TOPIC, 0, 0),
            lambda: store.read_range(TOPIC, 0, 0, count_max=1, bytes_max=1),
            lambda: store.offset_by_time(TOPIC, 0, 0),
            lambda: store.store_time(TOPIC, 0, 0),
            lambda: store.query_message(TOPIC, "key-0"),
            lambda: store.message_at(0),
            store.confirmed_offset,
            store.min_log_offset,
            store.earliest_time,
            store.queues,
            lambda: store.delete_topics([TOPIC]),
        ):
            with pytest.raises(StoreClosedError):
                call()


class BeginQueuesContract:
    """Further promises of a store that has `begin_queues`."""

    @abstractmethod
    def open_store(self) -> MessageStore:
        """As in `MessageStoreContract`, but what was put must outlive a shutdown."""
        raise NotImplementedError

    def test_a_queue_begins_where_it_is_told(self) -> None:
        store = self.open_store()
        store.load()
        begin = begin_of(store)
        other = QueueKey("B", 3)
        for _ in range(2):
            begin({_QUEUE: 15, other: 1}, log_offset=50_000, store_timestamp=0)
            assert set(store.queues()) == {_QUEUE, other}
            assert (store.min_offset(*_QUEUE), store.max_offset(*_QUEUE)) == (15, 15)
        store.start()
        puts = [store.put_message(a_message(number)) for number in (15, 16)]
        assert [put.queue_offset for put in puts] == [15, 16]
        assert puts[0].log_offset >= 50_000
        assert store.put_message(a_message(0, topic="B", queue_id=3)).queue_offset == 1
        assert store.put_message(a_message(0, topic="C")).queue_offset == 0
        page = store.get_message(TOPIC, 0, 3)
        assert not page.messages
        assert page.next_offset == 15
        page = store.get_message(TOPIC, 0, 15)
        assert [decode_message(one.record).body for one in page.messages] == [
            a_body(15),
            a_body(16),
        ]
        assert store.offset_by_time(*_QUEUE, 0) == 15
        store.shutdown()

    def test_a_queue_that_begins_anew_has_nothing_of_before(self) -> None:
        store = self.open_store()
        store.load()
        begin = begin_of(store)
        store.start()
        old = [store.put_message(a_message(number)) for number in range(5)]
        kept = store.put_message(a_message(0, topic="B"))
        store.shutdown()
        store.load()
        with pytest.raises(OffsetOutOfRangeError):
            begin({_QUEUE: 4}, log_offset=0)
        begin({_QUEUE: 10}, log_offset=0)
        assert (store.min_offset(*_QUEUE), store.max_offset(*_QUEUE)) == (10, 10)
        store.start()
        put = store.put_message(a_message(10))
        assert (put.stored, put.queue_offset) == (True, 10)
        assert put.log_offset > max(one.log_offset for one in [*old, kept])
        for number in range(10):
            assert not store.contains(*_QUEUE, number)
            assert not store.get_message(*_QUEUE, number).messages
            assert not len(store.read_range(*_QUEUE, number, count_max=1, bytes_max=1))
        assert store.query_message(TOPIC, f"key-{4}").messages == []
        assert store.message_at(old[4].log_offset) is None
        assert len(store.query_message("B", f"key-{0}").messages) == 1
        assert store.put_message(a_message(1, topic="B")).queue_offset == 1
        store.shutdown()


def begin_of(store: MessageStore) -> Callable[..., None]:
    """A store's `begin_queues`, which is not part of the protocol."""
    begin: Callable[..., None] = getattr(store, "begin_queues")  # noqa: B009 - it may have none
    return begin


_BEFORE: Final = SelectedRecord(queue_offset=-1, log_offset=-1, tags_code=0, record=b"")


class ListMessageStore(MessageStore):
    """A message store in memory: one list for the log, one for each queue.

    A test sets what has happened to the messages:

    | set or call | effect |
    | --- | --- |
    | `kept_from` | the messages below this queue offset have expired, in every queue |
    | `trim`, `lose_below` | the log has expired below an offset; `trim` asks the guards first |
    | `lose_from` | the end of the log is lost, as in a power cut |
    | `cut_to` | the end of one queue is lost, but not of the log |
    | `cached_from` | `in_memory` is true from this queue offset on |
    | `confirmed` | the confirmed offset; None: the end of the log |
    | `damaged` | these messages (topic, queue, offset) cannot be read |
    | `missing` | a range that is read ends before these messages |

    `calls` names the reads in the order of the calls.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._log: list[SelectedMessage] = []
        self._queues: dict[QueueKey, list[SelectedMessage]] = {}
        self._dispatchers: list[Dispatcher] = []
        self._guards: list[RetentionGuard] = []
        self._begins: dict[QueueKey, int] = {}
        self._time_min = 0
        self._end = 0
        self._open = False
        self.kept_from = 0
        self.trimmed_to = 0
        self.cached_from = 0
        self.confirmed: int | None = None
        self.damaged: set[tuple[str, int, int]] = set()
        self.missing: set[tuple[str, int, int]] = set()
        self.calls: list[str] = []

    @classmethod
    def opened(cls, runtime: Runtime) -> Self:
        store = cls(runtime)
        store.load()
        return store

    # Losses

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self._end

    def kept(self, key: QueueKey) -> list[SelectedMessage]:
        return self._queues.get(key, [])[self._first(key) :]

    def trim(self, log_offset: int) -> int:
        """Expire the log as far as the guards allow; returns where it begins now."""
        needed = [guard() for guard in self._guards]
        self.lose_below(min([log_offset, *(one for one in needed if one is not None)]))
        return self.trimmed_to

    def lose_below(self, log_offset: int) -> None:
        self.trimmed_to = max(self.trimmed_to, min(log_offset, self._end))

    def lose_from(self, log_offset: int) -> None:
        log_offset = max(log_offset, self.trimmed_to)
        self._log = [one for one in self._log if one.log_offset < log_offset]
        for key, queue in self._queues.items():
            self._queues[key] = [one for one in queue if one.log_offset < log_offset]
        self._end = min(self._end, log_offset)
        if self.confirmed is not None:
            self.confirmed = min(self.confirmed, self._end)

    def cut_to(self, key: QueueKey, count: int) -> None:
        del self._queues[key][count:]

    def restart(self) -> None:
        """Become the store of a new process: closed, without dispatchers and guards."""
        self._dispatchers.clear()
        self._guards.clear()
        self.shutdown()

    # Life

    def load(self) -> None:
        self._open = True

    def begin_queues(
        self, ends: Mapping[QueueKey, int], *, log_offset: int, store_timestamp: int = 0
    ) -> None:
        self._check_open()
        self._time_min = store_timestamp
        for key, first in ends.items():
            held = len(self._queues.get(key, []))
            if first < held:
                what = f"begin {key.topic}/{key.queue_id}"
                raise OffsetOutOfRangeError(what, offset=first, minimum=held, maximum=INT64_MAX)
        for key, first in ends.items():
            gone = {one.log_offset for one in self._queues.get(key, [])}
            self._log = [one for one in self._log if one.log_offset not in gone]
            self._queues[key] = [_BEFORE] * first
            self._begins[key] = first
        self._end = max(self._end, log_offset)

    def start(self) -> None:
        self._check_open()

    def shutdown(self) -> None:
        self._open = False

    def destroy(self) -> None:
        self._queues.clear()
        self._log.clear()
        self._begins.clear()

    # Puts

    def put_message(self, message: Message) -> PutResult:
        self._check_open()
        key = QueueKey(message.topic, message.queue_id)
        queue = self._queues.get(key, [])
        now = max(self._clock.now_ms(), self._time_min)
        try:
            if message.sys_flag & TRANSACTION_PREPARED:
                raise ValueError("a prepared message has no place in a queue")
            record = encode_message(
                topic=message.topic,
                queue_id=message.queue_id,
                queue_offset=len(queue),
                log_offset=self._end,
                born_timestamp=message.born_timestamp,
                born_host=message.born_host,
                store_timestamp=now,
                store_host=message.store_host,
                body=message.body,
                property_bytes=property_bytes_of(message),
                flag=message.flag,
                sys_flag=message.sys_flag,
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
            )
        except (TypeError, ValueError) as error:
            return PutResult(status=PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        self._queues[key] = queue
        selected = SelectedRecord(
            queue_offset=len(queue),
            log_offset=self._end,
            tags_code=tags_code(message.properties.get("TAGS")),
            record=record,
        )
        queue.append(selected)
        self._log.append(selected)
        self._end += len(record)
        self._dispatch(message, selected, now)
        return PutResult(
            status=PutStatus.PUT_OK,
            queue_offset=selected.queue_offset,
            log_offset=selected.log_offset,
            size=len(record),
            store_timestamp=now,
        )

    def fill(self, count: int, *, key: QueueKey = _QUEUE, body_bytes: int = 100) -> None:
        """Put sample messages at the end of the queue; each contains its queue offset."""
        start = len(self._queues.get(key, []))
        for number in range(start, start + count):
            self.put_message(
                a_message(number, topic=key.topic, queue_id=key.queue_id, body_bytes=body_bytes)
            )

    def _dispatch(self, message: Message, selected: SelectedMessage, now: int) -> None:
        request = DispatchRequest(
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=selected.queue_offset,
            log_offset=selected.log_offset,
            size=len(selected.record),
            tags_code=selected.tags_code,
            store_timestamp=now,
            unique_key=message.properties.get("UNIQ_KEY"),
            keys=split_keys(message.properties.get("KEYS")),
        )
        for dispatcher in self._dispatchers:
            dispatcher([request])

    # Reads

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = COUNT_MAX,
        bytes_max: int = BYTES_MAX,
        message_filter: MessageFilter | None = None,
        group: str = "",
    ) -> GetResult:
        self.calls.append("get_message")
        queue = self._queue(topic, queue_id)
        first, end = self._first(QueueKey(topic, queue_id)), len(queue)
        found: list[SelectedMessage] = []
        next_offset = offset
        if not queue:
            status, next_offset = GetStatus.NO_MESSAGE_IN_QUEUE, 0
        elif offset < first:
            status, next_offset = GetStatus.OFFSET_TOO_SMALL, first
        elif offset == end:
            status = GetStatus.OFFSET_OVERFLOW_ONE
        elif offset > end:
            status, next_offset = GetStatus.OFFSET_OVERFLOW_BADLY, end
        else:
            found = self._window(queue, offset, count_max, bytes_max)
            status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
            next_offset = offset + len(found)
        if message_filter is not None:
            found = [
                one
                for one in found
                if message_filter.matches_tags_code(one.tags_code)
                and message_filter.matches_record(one.record)
            ]
            if status is GetStatus.FOUND and not found:
                status = GetStatus.NO_MATCHED_MESSAGE
        return GetResult(
            status=status, next_offset=next_offset, min_offset=first, max_offset=end, messages=found
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        return self._first(QueueKey(topic, queue_id)) if self._queue(topic, queue_id) else None

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        return len(self._queue(topic, queue_id)) or None

    def confirmed_offset(self) -> int:
        self._check_open()
        return self._end if self.confirmed is None else self.confirmed

    def min_log_offset(self) -> int | None:
        self._check_open()
        kept = self._kept_log()
        return kept[0].log_offset if kept else None

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        self.calls.append(f"offset_by_time {boundary.value}")
        queue = self._queue(topic, queue_id)
        if not queue:
            return None
        first = self._first(QueueKey(topic, queue_id))  # what lies before it may have no record
        times = [peek_store_timestamp(one.record) for one in queue[first:]]
        found = first + sum(time < timestamp for time in times)
        if boundary is Boundary.UPPER:
            found += max(0, times.count(timestamp) - 1)
        return found

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        self.calls.append("store_time")
        if not self.contains(topic, queue_id, offset):
            return None
        return peek_store_timestamp(self._queue(topic, queue_id)[offset].record)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        self._check_open()
        kept = self._kept_log() if topic is None else self.kept(QueueKey(topic, queue_id))
        return peek_store_timestamp(kept[0].record) if kept else None

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        self.calls.append("query_message")
        self._check_open()
        found = []
        for one in reversed(self._kept_log()):
            message = decode_message(one.record)
            has_key = message.unique_key == key or key in message.keys
            if message.topic == topic and has_key and begin <= message.store_timestamp <= end:
                found.append(one)
        return QueryResult(messages=found[: max(0, count_max)])

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        self._check_open()
        found = next((one for one in self._log if one.log_offset == log_offset), None)
        return None if found is None or size not in (None, len(found.record)) else found

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        queue = self._queue(topic, queue_id)
        return self._first(QueueKey(topic, queue_id)) <= offset < len(queue)

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        return offset >= self.cached_from and self.contains(topic, queue_id, offset)

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        self.calls.append("read_range")
        if (topic, queue_id, offset) in self.damaged:
            raise SegmentCorruptError("log", f"message {offset} is damaged", position=0)
        gaps = [at for *key, at in self.missing if (*key,) == (topic, queue_id) and at >= offset]
        count_max = min([count_max, *(at - offset for at in gaps)])
        if not self.contains(topic, queue_id, offset):
            count_max = 0
        found = self._window(self._queue(topic, queue_id), offset, count_max, bytes_max)
        lengths = np.array([len(one.record) for one in found], dtype=np.int32)
        return MessageRun(
            first_offset=offset,
            log_offsets=np.array([one.log_offset for one in found], dtype=np.int64),
            message_bytes=lengths,
            tags_codes=np.array([one.tags_code for one in found], dtype=np.int64),
            starts=np.cumsum(lengths, dtype=np.int64) - lengths,
            records=b"".join(one.record for one in found),
        )

    # What a broker registers and deletes

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.append(dispatcher)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        self._guards.append(guard)

    def queues(self) -> Iterable[QueueKey]:
        self._check_open()
        return list(self._queues)

    def delete_topics(self, topics: Iterable[str]) -> int:
        wanted = set(topics)
        deleted = {key: self._queues.pop(key) for key in self.queues() if key.topic in wanted}
        for key in deleted:
            self._begins.pop(key, None)
        gone = {one.log_offset for queue in deleted.values() for one in queue}
        self._log = [one for one in self._log if one.log_offset not in gone]
        return len({key.topic for key in deleted})

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        kept = set(retained)
        return self.delete_topics({key.topic for key in self._queues} - kept)

    def _queue(self, topic: str, queue_id: int) -> list[SelectedMessage]:
        self._check_open()
        return self._queues.get(QueueKey(topic, queue_id), [])

    def _first(self, key: QueueKey) -> int:
        """The queue offset of the first kept message."""
        queue = self._queues.get(key, [])
        at = bisect_left(queue, self.trimmed_to, key=lambda one: one.log_offset)
        return max(at, min(self.kept_from, len(queue)), self._begins.get(key, 0))

    def _kept_log(self) -> list[SelectedMessage]:
        at = bisect_left(self._log, self.trimmed_to, key=lambda one: one.log_offset)
        return [one for one in self._log[at:] if one.queue_offset >= self.kept_from]

    def _window(
        self, queue: list[SelectedMessage], offset: int, count_max: int, bytes_max: int
    ) -> list[SelectedMessage]:
        found: list[SelectedMessage] = []
        size = 0
        for one in queue[offset:][: max(0, count_max)]:
            size += len(one.record)
            if found and size > bytes_max:
                break
            found.append(one)
        return found

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosedError("the store is not open")
