"""Threads in front of an object store: sealing beside reading and deleting, and shared looks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.providers.object_kit import PATH, Bucket
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import BackendUnavailableError, SegmentNotFoundError
from tieredstore.model.values import SegmentType
from tieredstore.providers.broker_objects import SharedLooks

LOG = SegmentType.COMMIT_LOG
DATA = bytes(range(250))


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns between any two steps of theirs."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_reads_go_on_while_a_segment_is_sealed(switching: None) -> None:
    with Runtime.threads() as runtime:
        for _ in range(20):
            bucket = Bucket()
            process = bucket.process(runtime=runtime)
            segment = process.open(PATH, LOG, 0)
            for position in range(0, 250, 5):
                segment.write(position, DATA[position : position + 5])
            other = bucket.process(runtime=runtime).open(PATH, LOG, 0)
            other.size()
            reads = [
                runtime.fetch.submit(each.read, start, 100)
                for start in range(150)
                for each in (segment, other)
            ]
            segment.seal()
            for number, read in enumerate(reads):
                assert read.result() == DATA[number // 2 : number // 2 + 100]


def test_a_delete_puts_an_end_to_a_sealing() -> None:
    bucket = Bucket()
    begun, go_on = threading.Event(), threading.Event()
    with Runtime.threads() as runtime:
        process = bucket.process(runtime=runtime)
        segment = process.open(PATH, LOG, 0)
        for position in range(0, 250, 50):
            segment.write(position, DATA[position : position + 50])

        def before(operation: str, key: str) -> None:
            if operation == "put" and "sealing-" in key:
                begun.set()
                assert go_on.wait(240)

        process.client.before = before
        sealing = runtime.dispatch.submit(segment.seal)
        assert begun.wait(240)
        deleting = runtime.fetch.submit(process.open(PATH, LOG, 0).delete)
        while not process.provider._broker_of(PATH)().segment(segment.path).delete_wanted:
            assert not deleting.done()
        go_on.set()
        assert isinstance(sealing.exception(), SegmentNotFoundError)
        deleting.result()
    assert [key for key in bucket.objects.held_keys() if not key.startswith(".epochs/")] == []


def test_a_look_is_for_those_who_came_before_it_began() -> None:
    began: list[int] = []
    late: list[Future[None]] = []

    def look() -> None:
        began.append(len(late))
        if len(began) == 1:
            late.append(looks.join())
            looks.run()  # one at a time: this leaves it to who is looking

    looks = SharedLooks(look)
    first = looks.join()
    looks.run()
    assert first.done()
    assert late[0].done()
    assert began == [0, 1]


def test_a_look_that_fails_fails_for_all_who_wait_and_for_nobody_later() -> None:
    answers = [BackendUnavailableError("epoch", "head", "gone"), None]

    def look() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    looks = SharedLooks(look)
    waiting = [looks.join() for _ in range(3)]
    looks.run()
    assert all(isinstance(each.exception(), BackendUnavailableError) for each in waiting)
    looks.now()


def test_a_look_waits_for_half_of_those_who_are_expected() -> None:
    looked: list[int] = []
    looks = SharedLooks(lambda: looked.append(len(joined)))
    joined: list[Future[None]] = []
    looks.expect(8)
    for _ in range(7):
        joined.append(looks.join(expected=True))
        looks.run()
    assert looked == [4, 6, 7]
    looks.expect(-1)  # the last one failed
    looks.now()
    assert [each.done() for each in joined] == [True] * 7


@pytest.mark.parametrize("expected", [0, 3])
def test_a_look_alone_waits_for_nobody(expected: int) -> None:
    looks = SharedLooks(lambda: None)
    looks.expect(expected)
    looks.now()
