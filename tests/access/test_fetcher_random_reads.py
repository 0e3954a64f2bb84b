"""Reads of any kind, in any order, through a small cache, beside a list."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.access.fetch_kit import ByCode, ByNamedCode, Shelf, offsets
from tests.flat.store_kit import unplaced
from tieredstore.driver.message_store import ReadRequest
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import a_record

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
    """What a list answers: look at one message after the other."""
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
