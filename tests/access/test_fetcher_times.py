"""Times of the tier: of a message, of a queue, and which offset belongs to one."""

from __future__ import annotations

import pytest

from tests.access.fetch_kit import Shelf, a_hundred
from tieredstore.model.values import Boundary
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record

CACHES = pytest.mark.parametrize("cached", [True, False], ids=["cached", "direct"])


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
