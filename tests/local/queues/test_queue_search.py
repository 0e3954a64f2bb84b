"""Search by time: Java's recorded answers, and a linear definition beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import expected, files_under
from tieredstore.codec.queue_unit import PREFILL, QueueUnit, QueueUnits, decode_units
from tieredstore.local.consume_queue import offset_by_time
from tieredstore.model.values import Boundary

LOWER, UPPER = Boundary.LOWER, Boundary.UPPER
UNIT_BYTES = 20


def linear(
    times: Sequence[int | None], timestamp: int, boundary: Boundary, *, minimum: int = 0
) -> int:
    """What a search means: times[k] is of queue offset minimum + k, None cannot be read."""
    readable = [(minimum + k, time) for k, time in enumerate(times) if time is not None]
    if boundary is LOWER:
        return next((at for at, time in readable if time >= timestamp), minimum + len(times))
    return max((at for at, time in readable if time <= timestamp), default=minimum)


def search(
    times: Sequence[int | None], timestamp: int, boundary: Boundary, *, minimum: int = 0
) -> tuple[int, int]:
    """The answer and the number of messages read for it."""
    probes: list[int] = []

    def store_time(log_offset: int, message_bytes: int) -> int | None:
        probes.append(log_offset)
        assert message_bytes == 100
        return times[log_offset // 100 - minimum]

    answer = offset_by_time(
        timestamp,
        boundary,
        minimum=minimum,
        maximum=minimum + len(times),
        unit=lambda offset: QueueUnit(offset * 100, 100, 0),
        store_time=store_time,
    )
    return answer, len(probes)


def golden_units(folder: str, topic: str, queue_id: int) -> tuple[int, QueueUnits]:
    """The first queue offset in the files, and all units from there on."""
    files = files_under(f"{folder}/consumequeue/{topic}/{queue_id}")
    return int(files[0].name) // UNIT_BYTES, decode_units(b"".join(f.read_bytes() for f in files))


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_every_recorded_answer_of_java_is_ours(folder: str) -> None:
    state: dict[str, Any] = expected(f"{folder}.expect-state.json")
    states = {(queue["topic"], queue["queueId"]): queue for queue in state["queues"]}
    times = {
        row["physicalOffset"]: row["storeTimestamp"]
        for row in expected("local-clean.expect-messages.json")
    }
    queues = {key: golden_units(folder, *key) for key in states}
    asked = 0
    for row in expected(f"{folder}.expect-queries.json"):
        query = row["query"]
        key = (query.get("topic"), query.get("queueId"))
        if query["op"] != "offsetByTime" or key not in states:
            continue
        first, units = queues[key]

        def unit(offset: int, first: int = first, units: QueueUnits = units) -> QueueUnit:
            place = offset - first
            return QueueUnit(int(units.log_offsets[place]), int(units.message_bytes[place]), 0)

        answer = offset_by_time(
            query["timestamp"],
            Boundary[query["boundary"]],
            minimum=states[key]["minOffset"],
            maximum=states[key]["maxOffset"],
            unit=unit,
            store_time=lambda log_offset, message_bytes: times[log_offset],
            min_log_offset=state["store"]["minPhyOffset"],
        )
        assert answer == row["result"]["offset"], row
        asked += 1
    assert asked > 150


def test_the_answers_measured_on_a_queue_of_forty_five_messages() -> None:
    times = [1000 + 10 * number for number in range(45)]
    times[18:] = [time + 1000 for time in times[18:]]
    assert search(times, 1, LOWER)[0] == search(times, 1, UPPER)[0] == 0
    assert (search(times, 1500, LOWER)[0], search(times, 1500, UPPER)[0]) == (18, 17)
    assert (search(times, 9999, LOWER)[0], search(times, 9999, UPPER)[0]) == (45, 44)


@given(
    times=st.lists(st.integers(0, 30), max_size=40).map(sorted),
    timestamp=st.integers(-1, 31),
    boundary=st.sampled_from(Boundary),
    minimum=st.integers(0, 5),
)
def test_a_search_answers_as_the_linear_definition(
    times: list[int], timestamp: int, boundary: Boundary, minimum: int
) -> None:
    answer, _ = search(times, timestamp, boundary, minimum=minimum)
    assert answer == linear(times, timestamp, boundary, minimum=minimum)


@given(
    rows=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=30),
    timestamp=st.integers(-1, 21),
    boundary=st.sampled_from(Boundary),
)
def test_messages_that_cannot_be_read_are_as_if_they_were_not_there(
    rows: list[tuple[int, bool]], timestamp: int, boundary: Boundary
) -> None:
    ordered = sorted(time for time, _ in rows)
    times = [time if good else None for time, (_, good) in zip(ordered, rows, strict=True)]
    answer, _ = search(times, timestamp, boundary)
    assert answer == linear(times, timestamp, boundary)


@pytest.mark.parametrize("boundary", Boundary)
def test_a_search_reads_few_messages(boundary: Boundary) -> None:
    _, probes = search(range(300_000), 123_456, boundary)
    assert probes <= 19


@pytest.mark.parametrize("boundary", Boundary)
def test_an_empty_queue_answers_its_minimum(boundary: Boundary) -> None:
    assert search([], 5, boundary, minimum=7) == (7, 0)


def test_a_queue_of_which_nothing_can_be_read_answers_its_ends() -> None:
    assert search([None] * 9, 5, LOWER)[0] == 9
    assert search([None] * 9, 5, UPPER)[0] == 0


def test_units_of_expired_log_files_are_too_old_and_are_not_read() -> None:
    read: list[int] = []

    def store_time(log_offset: int, message_bytes: int) -> int:
        read.append(log_offset)
        return log_offset

    def answer(timestamp: int, boundary: Boundary) -> int:
        return offset_by_time(
            timestamp,
            boundary,
            minimum=0,
            maximum=100,
            unit=lambda offset: QueueUnit(offset * 10, 10, 0),
            store_time=store_time,
            min_log_offset=600,
        )

    assert answer(5, LOWER) == 60
    assert answer(650, LOWER) == answer(650, UPPER) == 65
    assert min(read) >= 600


def test_units_that_hold_no_message_are_walked_over() -> None:
    units = [PREFILL, PREFILL, QueueUnit(0, 0, 0), QueueUnit(70, 10, 0), QueueUnit(80, 10, 0)]

    def answer(timestamp: int) -> int:
        return offset_by_time(
            timestamp,
            LOWER,
            minimum=0,
            maximum=6,
            unit=lambda offset: units[offset] if offset < len(units) else None,
            store_time=lambda log_offset, message_bytes: log_offset,
        )

    assert [answer(time) for time in (0, 70, 71, 80, 81)] == [3, 3, 4, 4, 6]
