"""Messages that consumers hold, tested without a store, a network or a clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from examples.broker.pop import (
    OUT_MAX,
    RENEW_SECONDS,
    RENEW_SECONDS_MAX,
    SPAN_MAX,
    Flight,
    PopQueue,
    handle_of,
    read_handle,
)


def given(queue: PopQueue, count: int, *, now: float = 0, seconds: float = 10) -> list[Flight]:
    first = queue.next_offset
    return queue.give(range(first, first + count), first + count, now=now, seconds=seconds)


def again(queue: PopQueue, now: float, count: int = 100, seconds: float = 10) -> Sequence[int]:
    return [flight.offset for flight in queue.give_again(count, now=now, seconds=seconds)]


def test_a_group_goes_on_at_its_first_message_that_is_not_done() -> None:
    queue = PopQueue(5)
    five, six, seven = given(queue, 3)
    assert (queue.committed, queue.next_offset) == (5, 8)
    queue.done(six)
    assert queue.committed == 5
    queue.done(five)
    assert queue.committed == 7
    queue.done(seven)
    assert (queue.committed, queue.count) == (8, 0)


def test_what_a_filter_left_out_is_done() -> None:
    queue = PopQueue(0)
    (two,) = queue.give([2], 9, now=0, seconds=10)
    assert queue.committed == 2
    queue.done(two)
    assert queue.committed == 9
    queue.give([], 12, now=0, seconds=10)
    assert queue.committed == 12


@pytest.mark.parametrize("offsets", [[4], [7], [6, 5], [5, 5]])
def test_a_message_goes_out_once_and_in_order(offsets: list[int]) -> None:
    queue = PopQueue(5)
    with pytest.raises(ValueError, match="is not from"):
        queue.give(offsets, 7, now=0, seconds=10)


def test_a_queue_that_ends_earlier_is_followed_when_nothing_is_out() -> None:
    queue = PopQueue(9)
    queue.give([], 3, now=0, seconds=10)
    assert queue.committed == 3
    (three,) = given(queue, 1)
    queue.give([], 0, now=0, seconds=10)
    assert (queue.committed, queue.next_offset) == (3, 4)
    queue.done(three)
    assert queue.committed == 4


def test_a_message_comes_again_when_its_time_is_over_and_counts() -> None:
    queue = PopQueue(0)
    first, second = given(queue, 2, seconds=10)
    queue.change(second, now=0, seconds=30)
    assert queue.next_time() == 10
    assert again(queue, 9.9) == []
    assert again(queue, 10) == [0]
    assert (first.attempt, queue.next_time()) == (2, 20)
    assert again(queue, 30) == [0, 1]
    assert (first.attempt, second.attempt) == (3, 2)


def test_only_the_last_handle_of_a_message_is_one() -> None:
    queue, other = PopQueue(0), PopQueue(0)
    (flight,) = given(queue, 1)
    (foreign,) = given(other, 1)
    token = flight.token
    assert queue.find(0, token) is flight
    assert queue.find(0, foreign.token) is None
    assert queue.find(1, token) is None
    again(queue, 10)
    assert queue.find(0, token) is None
    token = flight.token
    queue.change(flight, now=11, seconds=1)
    assert queue.find(0, token) is None
    token = flight.token
    queue.done(flight)
    assert queue.find(0, token) is None


def test_handles_are_read_as_they_were_written() -> None:
    (flight,) = given(PopQueue(2**62), 1)
    assert read_handle(handle_of(7, flight)) == (7, 2**62, flight.token)
    good, token = handle_of(7, flight), "a" * 32
    no_handles = ["", "1.2", f"1.2.{'g' * 32}", f"-1.2.{token}", f"٣.2.{token}", "1" * 10_000]
    for text in (*no_handles, good + "0", good + "\n", " " + good):
        assert read_handle(text) is None, text


def test_an_owner_keeps_a_message_while_it_lives_and_not_for_ever() -> None:
    queue = PopQueue(0)
    queue.give([0], 1, now=0, seconds=RENEW_SECONDS, owner="client")
    alive = {"client"}

    def out(now: float) -> list[Flight]:
        return queue.give_again(1, now=now, seconds=10, is_alive=alive.__contains__)

    now = 0.0
    while now < RENEW_SECONDS_MAX:
        assert out(now) == [], now
        now += RENEW_SECONDS
    assert len(out(now)) == 1
    queue.give([1], 2, now=now, seconds=RENEW_SECONDS, owner="client")
    alive.clear()
    assert [flight.offset for flight in out(now + RENEW_SECONDS)] == [0]
    assert [flight.offset for flight in out(now + RENEW_SECONDS)] == [1]


def test_who_asks_for_another_time_is_an_owner_no_more() -> None:
    queue = PopQueue(0)
    (flight,) = queue.give([0], 1, now=0, seconds=20, owner="client")
    queue.change(flight, now=0, seconds=0)
    assert queue.give_again(1, now=0, seconds=10, is_alive=lambda _: True) == [flight]


def test_a_message_that_never_arrived_is_seen_at_once_and_does_not_count() -> None:
    queue = PopQueue(0)
    (flight,) = given(queue, 1)
    queue.take_back(flight, now=1)
    assert again(queue, 1) == [0]
    assert flight.attempt == 1
    queue.done(flight)
    queue.take_back(flight, now=1)
    assert queue.count == 0


def test_a_queue_in_order_waits_for_all_that_is_out() -> None:
    queue = PopQueue(0, is_fifo=True)
    first, second = given(queue, 2)
    assert queue.room() == 0
    queue.change(first, now=0, seconds=3)
    assert queue.next_time() == 10
    assert again(queue, 3) == []
    assert again(queue, 10) == [0, 1]
    queue.done(first)
    queue.done(second)
    assert queue.room() == OUT_MAX
    given(queue, 1)
    assert queue.room() == 0


def test_a_queue_in_order_answers_the_same_attempt_with_the_same_messages() -> None:
    queue = PopQueue(0, is_fifo=True)
    queue.give([0, 1], 2, now=0, seconds=10, attempt_id="a")
    assert queue.give_again(9, now=1, seconds=10, attempt_id="b") == []
    assert queue.give_again(9, now=1, seconds=10) == []
    same = queue.give_again(9, now=1, seconds=10, attempt_id="a")
    assert [(flight.offset, flight.attempt, flight.until) for flight in same] == [
        (0, 1, 11),
        (1, 1, 11),
    ]


def test_what_a_group_holds_is_bounded() -> None:
    queue = PopQueue(0)
    flights = given(queue, OUT_MAX)
    assert queue.room() == 0
    for flight in flights[1:]:
        queue.done(flight)
    assert queue.room() == OUT_MAX - 1
    while queue.next_offset < SPAN_MAX:
        for flight in given(queue, 1_024):
            queue.done(flight)
    assert (queue.room(), queue.count) == (0, 1)
    queue.done(flights[0])
    assert queue.room() == OUT_MAX


def test_a_client_that_always_asks_for_another_time_holds_no_more() -> None:
    queue = PopQueue(0)
    flights = given(queue, 10)
    for number in range(10_000):
        queue.change(flights[number % 10], now=number, seconds=60)
    assert len(queue._times) < 200
    assert again(queue, 20_000) == list(range(10))


class Consumers(RuleBasedStateMachine):
    """Several consumers, against a list: each message is out, done or not given yet."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = PopQueue(0)
        self.now = 0.0
        self.state: list[str] = []
        self.times: dict[int, int] = {}
        self.handles: dict[int, str] = {}
        self.old: list[tuple[int, str]] = []

    def _went(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            if flight.offset in self.handles:
                self.old.append((flight.offset, self.handles[flight.offset]))
            self.handles[flight.offset] = flight.token
            self.times[flight.offset] = self.times.get(flight.offset, 0) + 1
            assert flight.attempt == self.times[flight.offset]

    @rule(taken=st.lists(st.booleans(), max_size=5), seconds=st.integers(1, 5))
    def read(self, taken: list[bool], seconds: int) -> None:
        first = len(self.state)
        offsets = [first + at for at, is_taken in enumerate(taken) if is_taken]
        self.state += ["out" if is_taken else "done" for is_taken in taken]
        flights = self.queue.give(
            offsets, first + len(taken), now=self.now, seconds=seconds, owner=""
        )
        assert [flight.offset for flight in flights] == offsets
        self._went(flights)

    @rule(seconds=st.integers(1, 5), count=st.integers(1, 4))
    def time_passes(self, seconds: int, count: int) -> None:
        self.now += seconds
        over = [
            offset
            for offset in range(len(self.state))
            if self.state[offset] == "out" and self._until(offset) <= self.now
        ]
        flights = self.queue.give_again(count, now=self.now, seconds=2)
        given = [flight.offset for flight in flights]
        assert len(given) == min(count, len(over))
        assert set(given) <= set(over)
        assert given == sorted(given)
        self._went(flights)

    def _until(self, offset: int) -> float:
        flight = self.queue.find(offset, self.handles[offset])
        assert flight is not None
        return flight.until

    @precondition(lambda self: "out" in self.state)
    @rule(data=st.data(), is_done=st.booleans(), seconds=st.integers(0, 9))
    def answer(self, data: st.DataObject, is_done: bool, seconds: int) -> None:
        outs = [offset for offset, state in enumerate(self.state) if state == "out"]
        offset = data.draw(st.sampled_from(outs))
        flight = self.queue.find(offset, self.handles[offset])
        assert flight is not None
        if is_done:
            self.queue.done(flight)
            self.state[offset] = "done"
        else:
            self.old.append((offset, flight.token))
            self.queue.change(flight, now=self.now, seconds=seconds)
            self.handles[offset] = flight.token

    @invariant()
    def nothing_is_lost(self) -> None:
        first = self.state.index("out") if "out" in self.state else len(self.state)
        assert self.queue.committed == first
        assert self.queue.count == self.state.count("out")
        assert all(self.queue.find(offset, token) is None for offset, token in self.old)
        if self.queue.count:
            assert self.queue.next_time() == min(
                self._until(offset) for offset, state in enumerate(self.state) if state == "out"
            )


Consumers.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestConsumers = Consumers.TestCase
