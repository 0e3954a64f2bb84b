"""Requests are money: how many a commit, a read, an open and a seal take."""

from __future__ import annotations

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


def test_a_commit_is_one_put_for_each_file_and_a_shared_look() -> None:
    process = Bucket().process()
    send(process, a_round(process, 1, 0, b"first"))
    process.forget_requests()
    send(process, a_round(process, 1, 5, b"more"))
    assert process.requests == {"put": 2, "head": 2}
    process.forget_requests()
    process.open(PATH, LOG, 0).write(0, b"")
    assert process.requests == {"head": 1}  # whether it is sealed, for a segment never seen


def test_the_looks_of_a_round_are_shared() -> None:
    process = Bucket().process()
    send(process, a_round(process, 200, 0, b"first"))
    process.forget_requests()
    send(process, a_round(process, 200, 5, b"more"))
    requests = process.requests
    assert requests["put"] == 400
    assert requests["head"] <= 20
    assert requests.keys() == {"put", "head"}


def test_the_looks_of_a_round_are_shared_between_threads() -> None:
    bucket = Bucket()
    with Runtime.threads() as runtime:
        process = bucket.process(runtime=runtime)
        send(process, a_round(process, 100, 0, b"first"))
        process.forget_requests()
        send(process, a_round(process, 100, 5, b"more"))
        assert process.requests["put"] == 200
        assert process.requests["head"] <= 60
    assert set(bucket.process().sizes().values()) == {9}


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


def test_a_cold_read_of_an_open_segment_takes_a_get_for_each_part() -> None:
    bucket = Bucket()
    writer = bucket.process().open(PATH, LOG, 0)
    for number in range(10):
        writer.write(number * 100, bytes([number]) * 100)
    process = bucket.process()
    segment = process.open(PATH, LOG, 0)
    assert segment.size() == 1000
    process.forget_requests()
    assert (
        segment.read(250, 300)
        == bytes([2]) * 50
        + bytes([3, 4]) * 0
        + bytes([3]) * 100
        + bytes([4]) * 100
        + bytes([5]) * 50
    )
    assert process.requests == {"get": 4}


def test_opening_a_store_of_a_thousand_queues_takes_a_few_listings() -> None:
    bucket = Bucket()
    writer = bucket.process()
    send(writer, a_round(writer, 1_000, 0, b"data"))
    process = bucket.process()
    for number in range(1_000):
        for kind in (LOG, QUEUE):
            assert process.open(f"broker-a/T/{number}", kind, 0).size() == 4
    # 2 000 parts are two pages and one to see that there are no more; one for the epochs.
    assert process.requests["list"] <= 4
    assert sum(process.requests.values()) <= 6
    process.forget_requests()
    process.open("broker-a/T/0", LOG, 0).write(4, b"more")
    assert process.requests["list"] <= 5  # the claim lists again
    assert sum(process.requests.values()) <= 14


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


def test_sealing_reads_each_part_once_and_puts_one_object() -> None:
    process = Bucket().process()
    segment = process.open(PATH, LOG, 0)
    for number in range(50):
        segment.write(number * 10, b"0123456789")
    process.forget_requests()
    segment.seal()
    # a mark and the object; a look before and one after; the parts, and then the mark
    assert process.requests == {"put": 2, "head": 2, "get": 50, "delete": 2}
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
    assert reader.requests["list"] == 2  # the parts, the epochs
