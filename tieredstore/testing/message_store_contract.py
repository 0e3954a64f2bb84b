"""The promises of `MessageStore` as a test suite.

    class TestMyStore(MessageStoreContract):
        def open_store(self) -> MessageStore:
            return MyStore(directory)

        def expire(self, store: MessageStore) -> None:
            store.delete_oldest()

What every store must hold is here; durability, time and keys come with the stores that have them.
`check_page` is the rule of a page, for further tests.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator

import pytest

from tieredstore.codec.message import decode_message
from tieredstore.codec.record import tags_code
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, MessageFilter, MessageStore
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.messages import DispatchRequest, GetResult
from tieredstore.model.values import GetStatus, PutStatus, QueueKey
from tieredstore.testing.samples import TOPIC, a_body, a_message

PAGED_COUNT = 60  # messages of which pages are read while the oldest go


def _all(_offset: int) -> bool:
    return True


def check_page(
    page: GetResult,
    offset: int,
    *,
    there: Collection[int],
    wanted: Callable[[int], bool] = _all,
) -> None:
    """A page's messages and its next offset pass by nothing that is there and not filtered.

    `there` are the queue offsets of the messages that some store had before the read and after it;
    `wanted` says which of them the filter takes.
    """
    found = [one.queue_offset for one in page.messages]
    behind = found[-1] + 1 if found else offset
    assert found == [number for number in range(offset, behind) if wanted(number)], page.status
    assert (page.status is GetStatus.FOUND) == bool(found)
    assert not found or page.next_offset >= behind
    passed = [one for one in there if behind <= one < page.next_offset and wanted(one)]
    assert not passed, (page.status, offset, page.next_offset, passed)


class TagFilter:
    """Takes the messages of one tag. Something else may happen at one of its questions."""

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
    """The same; it names its codes, so that a store need not ask for them."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tags_codes = (tags_code(tag),)


class MessageStoreContract:
    """Subclass it, give `open_store`, and run it with pytest."""

    @abstractmethod
    def open_store(self) -> MessageStore:
        """A new, empty store that is not yet loaded; what was put is dispatched when it returns."""
        raise NotImplementedError

    def expire(self, store: MessageStore) -> None:
        """Let some of the oldest messages go as they go of old age, if they do in this store. It
        is called between the reads of a page and in the middle of them."""

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

    def test_a_message_is_found_by_its_log_offset(self, store: MessageStore) -> None:
        put = store.put_message(a_message(0))
        selected = store.message_at(put.log_offset)
        assert selected is not None
        assert len(selected.record) == put.size
        assert store.message_at(put.log_offset + put.size) is None

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
            lambda: store.max_offset(TOPIC, 0),
        ):
            with pytest.raises(StoreClosedError):
                call()
