"""Messages by key: what an index suggests is held against the messages, and nothing is hidden."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.access.cached_file_kit import WAIT_S
from tests.access.fetch_kit import Shelf, numbered
from tests.access.tiered_kit import ListIndex
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import IndexAnswer, IndexHit
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.messages import QueryResult
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentType
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record


class Blurred(ListIndex):
    """An index that has whole seconds, takes all keys for one another, and says things twice."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        self.asked.append(count_max)
        hits = [
            hit._replace(store_timestamp=hit.store_timestamp // 1000 * 1000)
            for _, _, hit in self.entries
            if begin <= hit.store_timestamp // 1000 * 1000 <= end
        ]
        hits.sort(key=lambda hit: -hit.store_timestamp)
        return IndexAnswer(hits=hits[:count_max], complete=self.complete)


def found(result: QueryResult) -> list[int]:
    return [message.queue_offset for message in result.messages]


def ask(shelf: Shelf, key: str, count_max: int = 32, **window: Any) -> QueryResult:
    return shelf.fetcher.query_message(TOPIC, key, count_max=count_max, **window)


@pytest.mark.parametrize("count_max", [32, 100])
def test_so_many_messages_of_a_key_are_given_as_were_asked_for(count_max: int) -> None:
    shelf = Shelf()
    shelf.put([a_record(n, properties={"UNIQ_KEY": "uk"}) for n in range(100, 220)], at=100)
    result = ask(shelf, "uk", count_max)
    assert found(result) == list(range(219, 219 - count_max, -1))
    assert result.complete


def test_both_kinds_of_keys_are_compared_in_the_message() -> None:
    shelf = Shelf(index=Blurred())
    shelf.put(numbered(0, 50))
    assert found(ask(shelf, "key-7")) == [7]
    assert found(ask(shelf, "UNIQ-00000007")) == [7]
    assert found(ask(shelf, "shared", 3)) == [49, 48, 47]
    assert found(ask(shelf, "key-")) == found(ask(shelf, "")) == found(ask(shelf, "Tag1")) == []


def test_the_time_window_is_that_of_the_messages_not_of_the_index() -> None:
    shelf = Shelf(index=Blurred())
    shelf.put(numbered(0, 300))
    time = STORE_TIMESTAMP + 10 * 150
    assert found(ask(shelf, "shared", begin=time, end=time)) == [150]
    assert found(ask(shelf, "shared", begin=time - 10, end=time + 19)) == [151, 150, 149]
    assert found(ask(shelf, "shared", begin=time + 1, end=time + 9)) == []
    assert found(ask(shelf, "shared", begin=time, end=time - 1)) == []


@pytest.mark.parametrize(("count_max", "count"), [(0, 0), (-1, 0), (1, 1), (INT64_MAX, 200)])
def test_a_count_of_zero_gives_nothing_and_a_huge_one_everything(
    count_max: int, count: int
) -> None:
    shelf = Shelf(index=Blurred())
    shelf.put(numbered(0, 200))
    assert len(ask(shelf, "shared", count_max).messages) == count


def test_a_key_that_others_are_taken_for_is_found_behind_all_of_them() -> None:
    shelf = Shelf(index=Blurred())
    shelf.put(numbered(0, 1500))
    assert found(ask(shelf, "key-0", 1)) == [0]
    assert isinstance(shelf.index, Blurred)
    assert len(shelf.index.asked) > 1


def test_the_newest_come_first_whatever_order_the_index_has() -> None:
    shelf = Shelf(index=Blurred())
    for queue_id in (0, 1):
        times = [STORE_TIMESTAMP + 20 * n + 10 * queue_id for n in range(100)]
        shelf.put(
            [a_record(n, queue_id=queue_id, store_timestamp=time) for n, time in enumerate(times)],
            queue_id=queue_id,
        )
    result = ask(shelf, "shared", 5)
    assert found(result) == [99, 99, 98, 98, 97]


def test_no_more_hits_are_read_than_it_takes() -> None:
    shelf = Shelf()
    shelf.put([a_record(n, store_timestamp=STORE_TIMESTAMP + 1000 * n) for n in range(1000)])
    assert len(ask(shelf, "shared", 10).messages) == 10
    assert len(shelf.provider.reads) <= 100
    assert {kind for kind, _, _ in shelf.provider.reads} == {SegmentType.COMMIT_LOG}


def test_a_message_that_the_index_names_twice_is_shown_once() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 3))
    assert isinstance(shelf.index, ListIndex)
    shelf.index.entries *= 3
    assert found(ask(shelf, "shared")) == [2, 1, 0]


def test_an_unknown_topic_or_queue_has_no_messages() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 3))
    assert shelf.fetcher.query_message("other", "shared") == QueryResult()
    assert isinstance(shelf.index, ListIndex)
    file = shelf.queue()
    hits = [
        IndexHit(file.topic_id, 9, 0, 200, STORE_TIMESTAMP),  # no such queue
        IndexHit(file.topic_id + 1, 0, 0, 200, STORE_TIMESTAMP),  # another topic's
        IndexHit(file.topic_id, 0, 1 << 40, 200, STORE_TIMESTAMP),  # expired or not there yet
    ]
    shelf.index.entries = [(TOPIC, "shared", hit) for hit in hits]
    result = ask(shelf, "shared")
    assert (found(result), result.complete) == ([], True)


def test_a_read_that_fails_hides_no_other_message_and_is_told() -> None:
    faults = Faults()
    shelf = Shelf(faults=faults)
    shelf.put(numbered(0, 10))
    for step in range(faults.steps, faults.steps + 10):
        faults._at[step] = Fault.BEFORE if step % 2 else Fault.AFTER
    failed = ask(shelf, "shared")
    assert not failed.complete
    assert found(failed) == []
    faults._at[faults.steps + 3] = Fault.BEFORE
    partly = ask(shelf, "shared")
    assert not partly.complete
    assert len(partly.messages) == 9
    assert found(ask(shelf, "shared")) == list(range(9, -1, -1))
    assert ask(shelf, "shared").complete


def test_a_damaged_message_is_left_out_and_told() -> None:
    shelf = Shelf()
    file = shelf.put(numbered(0, 10))
    log = bytearray(file.log.read(0, file.log.commit_offset))
    place = int(file.units(4, 1).log_offsets[0])
    log[place + 4 : place + 8] = b"oops"
    shelf.tier.damage(SegmentType.COMMIT_LOG, 0, bytes(log))
    result = ask(shelf, "shared")
    assert found(result) == [9, 8, 7, 6, 5, 3, 2, 1, 0]
    assert not result.complete


def test_an_index_that_is_incomplete_or_fails_is_not_hidden() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 3))
    assert isinstance(shelf.index, ListIndex)
    shelf.index.complete = False
    assert not ask(shelf, "shared").complete
    shelf.index.failure = BackendUnavailableError("index", "read", "gone")
    with pytest.raises(BackendUnavailableError):
        ask(shelf, "shared")


def test_a_destroyed_queue_is_no_missing_answer() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 3))
    shelf.put([a_record(n, queue_id=1) for n in range(3)], queue_id=1)
    shelf.store.destroy(QueueKey(TOPIC, 0))
    result = ask(shelf, "shared")
    assert len(result.messages) == 3
    assert result.complete


def test_hits_are_read_side_by_side_even_from_within_the_pool() -> None:
    with Runtime.threads(fetch_threads=2) as runtime:
        shelf = Shelf(runtime=runtime)
        shelf.put(numbered(0, 40))
        queries = [runtime.fetch.submit(ask, shelf, "shared", 40) for _ in range(20)]
        for query in queries:
            assert found(query.result(WAIT_S)) == list(range(39, -1, -1))
        both = threading.Barrier(2)
        shelf.provider.before_read = lambda: both.wait(WAIT_S)
        assert len(ask(shelf, "shared", 2).messages) == 2
        shelf.fetcher.close()


@given(
    times=st.lists(st.integers(0, 5000), min_size=1, max_size=60),
    count_max=st.integers(1, 30),
    window=st.tuples(st.integers(0, 5000), st.integers(0, 5000)),
    number=st.integers(0, 4),
)
def test_answers_are_those_of_a_linear_scan(
    times: list[int], count_max: int, window: tuple[int, int], number: int
) -> None:
    times.sort()
    shelf = Shelf(index=Blurred())
    shelf.put(
        [
            a_record(n, store_timestamp=STORE_TIMESTAMP + time, properties={"KEYS": f"k{n % 5} x"})
            for n, time in enumerate(times)
        ]
    )
    begin, end = (STORE_TIMESTAMP + edge for edge in window)
    result = ask(shelf, f"k{number}", count_max, begin=begin, end=end)
    scanned = [
        n
        for n, time in enumerate(times)
        if n % 5 == number and begin <= STORE_TIMESTAMP + time <= end
    ]
    assert found(result) == scanned[::-1][:count_max]
    assert result.complete
