"""Threads that use one object store: some write and seal while others read and delete."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from tests.providers.object_kit import PATH, Bucket
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import SegmentNotFoundError, StoreClosedError
from tieredstore.model.values import SegmentType
from tieredstore.roundlog import upkeep

LOG = SegmentType.COMMIT_LOG
DATA = bytes(range(250))


@pytest.fixture
def switching() -> Iterator[None]:
    """Let threads switch between any two of their steps."""
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
            if operation == "put" and key == segment.path:
                begun.set()
                assert go_on.wait(240)

        process.client.before = before
        sealing = runtime.dispatch.submit(segment.seal)
        assert begun.wait(240)
        process.open(PATH, LOG, 0).delete()  # waits for nobody
        go_on.set()
        sealing.result()
    assert bucket.process().sizes() == {}
    with pytest.raises(SegmentNotFoundError):
        segment.size()


def test_threads_that_write_beside_background_work_lose_nothing(
    switching: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 3)
    monkeypatch.setattr(upkeep, "STATE_EVERY", 5)
    bucket = Bucket()
    with Runtime.threads(fetch_threads=8) as runtime:
        process = bucket.process(runtime=runtime)

        def write(number: int) -> None:
            segment = process.open(f"broker-a/T/{number}", LOG, 0)
            for position in range(0, 250, 10):
                segment.write(position, DATA[position : position + 10])
                assert segment.read(0, position + 10) == DATA[: position + 10]
            segment.seal()

        writers = [runtime.fetch.submit(write, number) for number in range(6)]
        while not all(each.done() for each in writers):
            process.provider.tend("broker-a")
        for each in writers:
            each.result()
    reader = bucket.process()
    for number in range(6):
        assert reader.open(f"broker-a/T/{number}", LOG, 0).read(0, 250) == DATA
    assert list(reader.provider.damage("broker-a")) == []


def test_a_round_that_is_cancelled_before_it_begins_is_answered() -> None:
    """A runtime cancels what has not begun when its time to close is over."""
    process = Bucket().process(runtime=(runtime := Runtime.threads(dispatch_threads=1)))
    begun, go_on = threading.Event(), threading.Event()
    segment = process.open(PATH, LOG, 0)

    def busy() -> None:
        begun.set()
        assert go_on.wait(240)

    runtime.dispatch.submit(busy)
    assert begun.wait(240)
    pair = WritePair(SegmentWrite(segment, 0, DATA), None)
    (future,) = process.provider.write_many([pair])
    assert not runtime.close(0)
    go_on.set()
    assert isinstance(future.exception(5), StoreClosedError)
