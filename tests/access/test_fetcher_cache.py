"""What reads by queue offset cost the backend, alone and many at once, and when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.access.cached_file_kit import WAIT_S
from tests.access.fetch_kit import ByCode, Shelf, numbered, offsets
from tieredstore.driver.message_store import ReadRequest
from tieredstore.driver.metrics import (
    READ_CACHE_ACCESS,
    READ_CACHE_BYTES,
    READ_CACHE_COUNT,
    READ_CACHE_HIT,
    Labels,
    Metric,
    NoMetrics,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import MIB
from tieredstore.model.messages import GetResult
from tieredstore.model.values import GetStatus, SegmentType
from tieredstore.testing.samples import TOPIC, a_record

READERS = 64


class Gauges(NoMetrics):
    """Reads what is observed."""

    def __init__(self) -> None:
        self._reads: dict[str, Callable[[], Iterable[tuple[float, Labels]]]] = {}

    def observe(self, metric: Metric, read: Callable[[], Iterable[tuple[float, Labels]]]) -> None:
        self._reads[metric.name] = read

    def __getitem__(self, metric: Metric) -> float:
        ((value, labels),) = self._reads[metric.name]()
        assert labels == {}
        return value


def test_many_readers_of_one_cold_block_cost_one_read_of_each_file() -> None:
    gauges = Gauges()
    with Runtime.threads(fetch_threads=READERS) as runtime:
        shelf = Shelf(runtime=runtime, metrics=gauges)
        shelf.put(numbered(0, 100))
        begun, waiting = threading.Barrier(READERS), threading.Event()

        def all_wait() -> None:
            wanted = READERS * (len(shelf.provider.reads) + 1)
            for _ in range(100_000):
                if gauges[READ_CACHE_ACCESS] >= wanted:
                    return
                waiting.wait(0.001)

        shelf.provider.before_read = all_wait

        def read() -> GetResult:
            begun.wait(WAIT_S)
            return shelf.get(10, 32)

        with ThreadPoolExecutor(READERS) as pool:
            results = [future.result(WAIT_S) for future in [pool.submit(read) for _ in range(64)]]
        assert all(offsets(result) == list(range(10, 42)) for result in results)
        assert [kind for kind, _, _ in shelf.provider.reads] == [
            SegmentType.CONSUME_QUEUE,
            SegmentType.COMMIT_LOG,
        ]
        assert gauges[READ_CACHE_ACCESS] == 2 * READERS
        assert gauges[READ_CACHE_HIT] == 2 * READERS - 2
        shelf.fetcher.close()


@pytest.mark.parametrize("count_max", [32, 4096])
def test_a_cold_queue_is_read_in_few_large_requests(count_max: int) -> None:
    shelf = Shelf()
    record = a_record(0, body_bytes=860)
    count = 64 * MIB // len(record)
    batch = [bytearray(record) for _ in range(4096)]
    at = 0
    while at < count:
        for number, each in enumerate(batch, at):
            each[20:28] = number.to_bytes(8, "big")
        shelf.put([bytes(each) for each in batch[: count - at]])
        at += 4096
    file, at = shelf.queue(), 0
    while (result := shelf.get(at, count_max, bytes_max=1 << 30)).status is GetStatus.FOUND:
        at = result.next_offset
    assert at == count
    total = file.log.commit_offset + file.queue.commit_offset
    assert len(shelf.provider.reads) <= -(-total // (8 * MIB)) + 2
    assert sum(length for _, _, length in shelf.provider.reads) == total


def test_a_read_again_asks_the_backend_for_nothing_even_where_all_was_filtered_out() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 500), tags=[n % 5 for n in range(500)])
    for message_filter in (None, ByCode(3), ByCode(9), ByCode(3, part=b"no such thing")):
        shelf.get(0, message_filter=message_filter)
        shelf.provider.reads.clear()
        shelf.get(0, message_filter=message_filter)
        assert shelf.provider.reads == []


def test_records_are_read_only_near_the_messages_that_a_filter_takes() -> None:
    shelf = Shelf(read_ahead_enabled=False)
    shelf.put(
        numbered(0, 200, body_bytes=2000),
        tags=[n // 100 * 0 + int(n in (5, 190)) for n in range(200)],
    )
    assert offsets(shelf.get(0, message_filter=ByCode(1))) == [5, 190]
    read = sum(length for kind, _, length in shelf.provider.reads if kind is SegmentType.COMMIT_LOG)
    assert read < 2 * 2300


def test_an_answer_that_is_hot_is_there_at_once_and_a_cold_one_comes() -> None:
    with Runtime.threads() as runtime:
        shelf = Shelf(runtime=runtime)
        shelf.put(numbered(0, 100))
        gate = threading.Event()
        shelf.provider.before_read = lambda: gate.wait(WAIT_S)
        cold = shelf.fetcher.get_message_future(ReadRequest(TOPIC, 0, 5))
        assert not cold.done()
        gate.set()
        assert offsets(cold.result(WAIT_S)) == list(range(5, 37))
        for offset, status in ((5, GetStatus.FOUND), (100, GetStatus.OFFSET_OVERFLOW_ONE)):
            hot = shelf.fetcher.get_message_future(ReadRequest(TOPIC, 0, offset))
            assert hot.done()
            assert hot.result().status is status
        assert shelf.fetcher.get_message_future(ReadRequest("none", 0, 0)).done()
        shelf.fetcher.close()


def test_an_answer_across_cached_ranges_is_hot_too() -> None:
    with Runtime.threads() as runtime:
        shelf = Shelf(runtime=runtime)
        shelf.put(numbered(0, 400, body_bytes=860))
        for offset in range(0, 400, 32):
            shelf.get(offset, 32)
        shelf.provider.reads.clear()
        whole = shelf.fetcher.get_message_future(
            ReadRequest(TOPIC, 0, 0, count_max=400, bytes_max=1 << 30)
        )
        assert whole.done()
        assert len(whole.result().messages) == 400
        assert shelf.provider.reads == []
        shelf.fetcher.close()


def test_the_cache_is_measured_and_swept() -> None:
    gauges = Gauges()
    shelf = Shelf(metrics=gauges, read_ahead_ms=15_000)
    shelf.put(numbered(0, 100))
    shelf.get(0)
    assert gauges[READ_CACHE_COUNT] == 2
    file = shelf.queue()
    assert gauges[READ_CACHE_BYTES] == file.log.commit_offset + file.queue.commit_offset
    assert (gauges[READ_CACHE_ACCESS], gauges[READ_CACHE_HIT]) == (2, 0)
    shelf.get(0)
    assert (gauges[READ_CACHE_ACCESS], gauges[READ_CACHE_HIT]) == (4, 2)
    swept: list[Callable[[], object]] = []
    shelf.runtime.service = lambda name, step, *, interval_ms: swept.append(step)  # type: ignore[method-assign,assignment,return-value]
    shelf.fetcher.start()
    (sweep,) = swept
    shelf.tier.clock.advance(15_000)
    sweep()
    assert (gauges[READ_CACHE_COUNT], gauges[READ_CACHE_BYTES]) == (0, 0)


def test_memory_is_within_its_bound_whatever_is_read() -> None:
    gauges = Gauges()
    shelf = Shelf(metrics=gauges, read_cache_bytes=100_000)
    shelf.put(numbered(0, 1000, body_bytes=900))
    for offset in [*range(0, 1000, 32), *range(999, 0, -77)]:
        assert offsets(shelf.get(offset, 32))[0] == offset
        assert gauges[READ_CACHE_BYTES] <= 100_000


def test_messages_that_are_kept_keep_no_block_in_memory() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 1000, body_bytes=900))
    for message in shelf.get(0, 1000, bytes_max=1 << 30).messages:
        assert len(message.record) < 1200
        assert type(message.record) is bytes
