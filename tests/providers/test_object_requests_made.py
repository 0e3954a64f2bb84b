"""Requests cost money: how many a commit, a read, an open and a seal take."""

from __future__ import annotations

import threading

import pytest

from tests.providers.object_kit import PATH, Bucket, Process
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.model.values import SegmentType

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
MIB = 1 << 20


def a_round(process: Process, count: int, position: int, data: bytes) -> list[WritePair]:
    return [
        WritePair(
            log=SegmentWrite(process.open(f"broker-a/T/{number}", LOG, 0), position, data),
            queue=SegmentWrite(process.open(f"broker-a/T/{number}", QUEUE, 0), position, data),
        )
        for number in range(count)
    ]


def send(process: Process, pairs: list[WritePair]) -> None:
    for future in process.provider.write_many(pairs):
        future.result()


def test_a_commit_is_one_put_and_one_look() -> None:
    process = Bucket().process()
    send(process, a_round(process, 1, 0, b"first"))
    process.forget_requests()
    send(process, a_round(process, 1, 5, b"more"))
    assert process.requests == {"put": 1, "head": 1}
    process.forget_requests()
    process.open(PATH, LOG, 0).write(0, b"")
    assert process.requests == {}


def test_a_round_of_a_thousand_queues_is_one_put_and_one_look() -> None:
    process = Bucket().process()
    send(process, a_round(process, 1_000, 0, b"first"))
    process.forget_requests()
    send(process, a_round(process, 1_000, 5, b"more"))
    assert process.requests == {"put": 1, "head": 1}


def test_a_round_of_many_bytes_is_as_many_objects_and_an_entry() -> None:
    process = Bucket().process()
    process.provider.claim("broker-a")
    process.forget_requests()
    send(process, a_round(process, 20, 0, bytes(MIB)))
    assert process.requests == {"put": 3, "head": 1}  # 40 MiB make two objects of at most 32 MiB


def test_rounds_that_wait_for_one_another_share_an_entry() -> None:
    bucket = Bucket()
    with Runtime.threads() as runtime:
        process = bucket.process(runtime=runtime)
        process.provider.claim("broker-a")
        process.forget_requests()
        arrived, go_on = threading.Event(), threading.Event()

        def before(operation: str, key: str) -> None:
            if operation == "put" and not arrived.is_set():
                arrived.set()
                assert go_on.wait(240)

        process.client.before = before
        segments = [process.open(f"broker-a/T/{number}", LOG, 0) for number in range(30)]
        first = runtime.dispatch.submit(segments[0].write, 0, b"data")
        assert arrived.wait(240)
        rest = [runtime.fetch.submit(each.write, 0, b"data") for each in segments[1:6]]
        log = process.provider._log_of("broker-a")
        while len(log._waiting) < 5:
            assert not first.done()
        go_on.set()
        for each in (first, *rest):
            each.result()
        assert process.requests == {"put": 2, "head": 2}


def test_a_cold_read_of_a_sealed_segment_takes_a_get_for_each_8_mib() -> None:
    bucket = Bucket()
    writer = bucket.process().open(PATH, LOG, 0)
    data = bytes(range(256)) * 4096
    for number in range(40):
        writer.write(number * MIB, data)
    writer.seal()
    for mib in (1, 8, 9, 16, 33, 40):
        process = bucket.process()
        segment = process.open(PATH, LOG, 0)
        segment.size()
        process.forget_requests()
        assert segment.read(0, mib * MIB) == data * mib
        assert process.requests["get"] <= -(-mib // 8)


def test_a_cold_read_of_an_open_segment_takes_a_get_for_each_round() -> None:
    bucket = Bucket()
    writer = bucket.process().open(PATH, LOG, 0)
    for number in range(10):
        writer.write(number * 100, bytes([number]) * 100)
    process = bucket.process()
    segment = process.open(PATH, LOG, 0)
    assert segment.size() == 1000
    process.forget_requests()
    expected = bytes([2]) * 50 + bytes([3]) * 100 + bytes([4]) * 100 + bytes([5]) * 50
    assert segment.read(250, 300) == expected
    assert process.requests == {"get": 4}


def test_what_lies_side_by_side_in_one_object_is_one_get() -> None:
    bucket = Bucket()
    data = bytes(range(256)) * 4096 * 20
    bucket.process().open(PATH, LOG, 0).write(0, data)  # in three data objects
    process = bucket.process()
    segment = process.open(PATH, LOG, 0)
    segment.size()
    process.forget_requests()
    assert segment.read(0, len(data)) == data
    assert process.requests == {"get": 3}


def test_opening_a_store_of_a_thousand_queues_takes_a_few_requests() -> None:
    bucket = Bucket()
    writer = bucket.process()
    send(writer, a_round(writer, 1_000, 0, b"data"))
    process = bucket.process()
    for number in range(1_000):
        for kind in (LOG, QUEUE):
            assert process.open(f"broker-a/T/{number}", kind, 0).size() == 4
    assert process.requests == {"list": 2, "get": 2}  # lists of states and entries; two entries
    process.forget_requests()
    process.open("broker-a/T/0", LOG, 0).write(4, b"more")
    assert sum(process.requests.values()) <= 14  # after its claim it reads everything anew


def test_a_process_that_does_nothing_asks_for_nothing() -> None:
    bucket = Bucket()
    runtime = Runtime.inline()
    writer = bucket.process(runtime=runtime)
    segment = writer.open(PATH, LOG, 0)
    assert writer.requests == {}
    segment.write(0, b"data")
    writer.forget_requests()
    assert isinstance(runtime.clock, ManualClock)
    runtime.clock.advance(3_600_000)
    assert (segment.size(), segment.read(0, 4)) == (4, b"data")
    assert writer.requests == {"get": 1}


def test_a_reader_lists_again_when_it_asks_for_a_size_and_time_has_passed() -> None:
    bucket = Bucket()
    writer = bucket.process().open(PATH, LOG, 0)
    writer.write(0, b"data")
    runtime = Runtime.inline()
    reader = bucket.process(runtime=runtime)
    segment = reader.open(PATH, LOG, 0)
    assert segment.size() == 4
    writer.write(4, b"more")
    assert segment.size() == 4
    assert isinstance(runtime.clock, ManualClock)
    runtime.clock.advance(1_000)
    assert segment.size() == 8


@pytest.mark.parametrize("is_new", [False, True])
def test_sealing_reads_each_round_once_and_puts_one_object(is_new: bool) -> None:
    bucket = Bucket()
    process = bucket.process()
    segment = process.open(PATH, LOG, 0)
    for number in range(50):
        segment.write(number * 10, b"0123456789")
    if is_new:  # the old process still holds in memory what it sent
        process = bucket.process()
        process.provider.claim("broker-a")
        segment = process.open(PATH, LOG, 0)
    process.forget_requests()
    segment.seal()
    made = {"put": 2, "head": 1}  # puts of the object and an entry
    assert process.requests == (made | {"get": 50} if is_new else made)
    process.forget_requests()
    segment.seal()
    assert segment.read(0, 500) == b"0123456789" * 50
    assert process.requests == {"get": 1}


def test_a_reader_whose_catalogue_is_newer_lists_again() -> None:
    bucket = Bucket()
    writer = bucket.process()
    writer.open(PATH, LOG, 0).write(0, b"data")
    reader = bucket.process()
    assert reader.open(PATH, LOG, 0).size() == 4
    for number in range(10):
        writer.open(f"broker-a/T/{number}", LOG, 0).write(0, b"more")
    writer.open(PATH, LOG, 0).write(4, b"more")
    writer.provider.refresh()
    reader.provider.refresh()
    for process in (writer, reader):
        process.forget_requests()
        assert process.open(PATH, LOG, 0).size() == 8
        assert [process.open(f"broker-a/T/{n}", LOG, 0).size() for n in range(10)] == [4] * 10
    assert writer.requests == {}
    assert reader.requests == {"list": 1, "get": 11}  # what was added since
