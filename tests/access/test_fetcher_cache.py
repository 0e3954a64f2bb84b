"""What reads of the tier cost, and what they answer while the backend fails or messages expire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.access.cached_file_kit import WAIT_S
from tests.access.fetch_kit import ByCode, ByNamedCode, Shelf, numbered, offsets
from tests.flat.store_kit import unplaced
from tests.s3.s3_clients import CLIENTS
from tieredstore.access.fetcher import Fetcher
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
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.model.config import MIB
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.messages import GetResult
from tieredstore.model.values import GetStatus, SegmentType
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import TOPIC, a_record

READERS = 64


class Gauges(NoMetrics):
    """Keeps the gauges, to read them on demand."""

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
    record = a_record(0, body_bytes=8_000)
    count = 64 * MIB // len(record)
    batch = [bytearray(record) for _ in range(4096)]
    at = 0
    while at < count:
        for number, copy in enumerate(batch, at):
            copy[20:28] = number.to_bytes(8, "big")
        shelf.put([bytes(copy) for copy in batch[: count - at]])
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


# Reads while the backend fails, and while what is read expires or is destroyed


def test_errors_of_a_future_are_in_it() -> None:
    faults = Faults()
    shelf = Shelf(faults=faults)
    shelf.put(numbered(0, 10))
    faults.always = Fault.BEFORE
    with pytest.raises(BackendUnavailableError):
        shelf.fetcher.get_message_future(ReadRequest(TOPIC, 0, 0)).result()


def questions(shelf: Shelf) -> list[Callable[[], Any]]:
    """Reads of every kind, cold and hot; each returns a value to compare."""
    fetcher = shelf.fetcher
    return [
        lambda: offsets(shelf.get(3, 8)),
        lambda: offsets(shelf.get(3, 8, message_filter=ByCode(0))),
        lambda: [unplaced(one.record) for one in shelf.get(20, 40).messages],
        lambda: fetcher.store_time(TOPIC, 0, 50),
        lambda: fetcher.earliest_time(TOPIC, 0),
        lambda: fetcher.min_offset(TOPIC, 0),
        lambda: [one.queue_offset for one in fetcher.query_message(TOPIC, "key-7").messages],
        lambda: offsets(fetcher.get_message_future(ReadRequest(TOPIC, 0, 55)).result()),
    ]


def a_faulty_shelf(faults: Faults, cached: bool) -> Shelf:
    shelf = Shelf(faults=faults, read_ahead_enabled=cached, log_bytes=4000, queue_units=16)
    shelf.put(numbered(0, 60), tags=[n % 2 for n in range(60)])
    return shelf


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_read_that_fails_is_an_error_or_right_and_the_next_one_works(
    cached: bool, fault: Fault
) -> None:
    sound = Faults()
    shelf = a_faulty_shelf(sound, cached)
    begin = sound.steps
    right = [ask() for ask in questions(shelf)]
    end = sound.steps
    assert end - begin >= 8
    for step in range(begin, end):
        shelf = a_faulty_shelf(Faults({step: fault}), cached)
        failures = 0
        for ask, wanted in zip(questions(shelf), right, strict=True):
            for _ in range(2):
                try:
                    answer = ask()
                    failures += answer != wanted
                    assert answer in (wanted, [])  # a key query leaves out what it cannot read
                except BackendUnavailableError:
                    failures += 1
        assert failures <= 1


def test_a_failed_read_is_never_taken_for_an_absent_message() -> None:
    faults = Faults()
    shelf = Shelf(faults=faults)
    shelf.put(numbered(0, 10), tags=[1] * 10)
    faults.always = Fault.BEFORE
    for message_filter in (None, ByCode(1), ByCode(2)):
        with pytest.raises(BackendUnavailableError):
            shelf.get(0, message_filter=message_filter)
    faults.always = None
    assert len(shelf.get(0).messages) == 10


def test_what_expires_during_a_read_is_answered_as_gone() -> None:
    shelf = Shelf(read_ahead_enabled=False, log_bytes=2000, queue_units=8)
    file = shelf.put(numbered(0, 40))

    def expire() -> None:
        shelf.provider.before_read = lambda: None
        for part in (file.queue, file.log):
            doomed = [each for each in part.segments if each.end <= first_kept(file, part)]
            part.drop(doomed)

    shelf.provider.before_read = expire
    result = shelf.get(0)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_offset == result.min_offset > 8


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda it: it.contains(TOPIC, 0, 20), False),
        (lambda it: len(it.read_range(TOPIC, 0, 20, count_max=5, bytes_max=MIB)), 0),
        (lambda it: it.min_offset(TOPIC, 0), None),
        (lambda it: it.store_time(TOPIC, 0, 20), None),
        (lambda it: it.earliest_time(TOPIC, 0), None),
        (lambda it: it.offset_by_time(TOPIC, 0, 7), None),
    ],
)
def test_a_queue_that_is_destroyed_during_a_question_is_answered_as_absent(
    ask: Callable[[Fetcher], Any], answer: object
) -> None:
    shelf = Shelf(log_bytes=2000, queue_units=8)
    file = shelf.put(numbered(0, 40))
    for part in (file.queue, file.log):  # then the beginning must be read from the backend
        part.drop([each for each in part.segments if each.end <= first_kept(file, part)])

    def destroy() -> None:
        shelf.provider.before_read = lambda: None
        shelf.store.destroy(file.key)

    shelf.provider.before_read = destroy
    assert ask(shelf.fetcher) == answer


def first_kept(file: Any, part: FlatAppendFile) -> int:
    """The first position to keep: after 16 units, or the log position of the next unit."""
    if part is file.queue:
        return 16 * 20
    return int(file.units(16, 1).log_offsets[0])


def test_readers_and_one_who_destroys_queues_never_see_anything_but_answers(backend: str) -> None:
    # Readers that never wait leave little of the GIL to the threads of an HTTP client.
    times = 5 if backend in CLIENTS else 40
    with Runtime.threads() as runtime:
        shelf = Shelf(runtime=runtime)
        wanted = numbered(0, 50)
        shelf.put(wanted)
        stop = threading.Event()

        def read() -> set[GetStatus]:
            seen = set()
            while not stop.is_set():
                result = shelf.get(0, 50)
                seen.add(result.status)
                for message in result.messages:
                    assert unplaced(message.record) == unplaced(wanted[message.queue_offset])
            return seen

        with ThreadPoolExecutor(4) as pool:
            readers: list[Future[set[GetStatus]]] = [pool.submit(read) for _ in range(4)]
            try:
                for _ in range(times):
                    shelf.store.destroy(shelf.queue().key)
                    shelf.put(wanted)
            finally:
                stop.set()
            seen = set().union(*(reader.result(WAIT_S) for reader in readers))
        assert seen <= {
            GetStatus.FOUND,
            GetStatus.NO_MATCHED_LOGIC_QUEUE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
            GetStatus.OFFSET_OVERFLOW_ONE,
        }
        shelf.fetcher.close()


# Reads of any kind, in any order, through a small cache, compared with a list


FIRST, COUNT = 5, 90
GAP = range(40, 47)


@dataclass(frozen=True)
class Question:
    offset: int
    count_max: int
    bytes_max: int
    codes: frozenset[int] | None
    part: bytes
    is_named: bool

    @property
    def message_filter(self) -> ByCode | None:
        if self.codes is None:
            return None
        return (ByNamedCode if self.is_named else ByCode)(*self.codes, part=self.part)


def record(number: int) -> bytes:
    return a_record(number, body_bytes=number * 37 % 400)


QUESTIONS = st.builds(
    Question,
    offset=st.integers(FIRST, FIRST + COUNT - 1),
    count_max=st.integers(-1, 60),
    bytes_max=st.integers(0, 12_000),
    codes=st.none() | st.frozensets(st.integers(0, 4), max_size=3),
    part=st.sampled_from([b"", b"body-1", b"no such thing"]),
    is_named=st.booleans(),
)


def expected(asked: Question, scan_count: int) -> tuple[GetStatus, list[int], int]:
    """The answer of a plain list, found by looking at one message after the other."""
    if asked.count_max <= 0:
        return GetStatus.NO_MATCHED_MESSAGE, [], asked.offset
    if asked.offset in GAP:
        return GetStatus.MESSAGE_WAS_REMOVING, [], GAP.stop
    end = GAP.start if asked.offset < GAP.start else FIRST + COUNT
    end = min(end, asked.offset + scan_count)
    taken: list[int] = []
    size = 0
    for at in range(asked.offset, end):
        if asked.codes is not None and (at % 5 not in asked.codes or asked.part not in record(at)):
            continue
        if taken and size + len(record(at)) > asked.bytes_max:
            return GetStatus.FOUND, taken, at
        taken.append(at)
        size += len(record(at))
        if len(taken) >= asked.count_max:
            return GetStatus.FOUND, taken, at + 1
    return (GetStatus.FOUND if taken else GetStatus.NO_MATCHED_MESSAGE), taken, end


@given(
    questions=st.lists(QUESTIONS, min_size=1, max_size=25),
    cache_bytes=st.sampled_from([0, 700, 5_000, 1 << 20]),
    cached=st.booleans(),
    scan_count=st.sampled_from([1, 7, 50, 4096]),
    log_bytes=st.sampled_from([900, 7_000, 1 << 20]),
)
def test_reads_of_any_kind_are_those_of_a_list(
    questions: list[Question], cache_bytes: int, cached: bool, scan_count: int, log_bytes: int
) -> None:
    shelf = Shelf(
        read_ahead_enabled=cached,
        read_cache_bytes=cache_bytes,
        read_ahead_count=scan_count,
        log_bytes=log_bytes,
        queue_units=16,
    )
    for span in (range(FIRST, GAP.start), range(GAP.stop, FIRST + COUNT)):
        file = shelf.queue(start=FIRST)
        file.skip_to(span.start)
        shelf.put([record(n) for n in span], tags=[n % 5 for n in span], at=FIRST)
    for asked in questions:
        future = shelf.fetcher.get_message_future(
            ReadRequest(
                "TopicTest",
                0,
                asked.offset,
                count_max=asked.count_max,
                bytes_max=asked.bytes_max,
                message_filter=asked.message_filter,
            )
        )
        result = future.result()
        status, taken, next_offset = expected(asked, scan_count)
        assert (result.status, offsets(result), result.next_offset) == (status, taken, next_offset)
        for message in result.messages:
            assert unplaced(message.record) == unplaced(record(message.queue_offset))
