"""Many segments of a log read in few requests, with right bytes, and damage at its place."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from tieredstore.driver.object_client import Range
from tieredstore.driver.provider import SegmentRead
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import (
    BackendUnavailableError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
)
from tieredstore.model.values import INT64_MAX, SegmentRecord, SegmentType
from tieredstore.roundlog import together, upkeep
from tieredstore.roundlog.draft import Draft, DraftWrite
from tieredstore.roundlog.entry import Sealed, SegmentKey
from tieredstore.roundlog.layout import ObjectLayout
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls, crc32c
from tieredstore.roundlog.together import read_together, reading_order
from tieredstore.testing.faults import FaultyClient, ObjectFault, ObjectFaults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
KEYS: list[SegmentKey] = [
    (f"b/t{number % 3}/{number}", kind, 0) for number in range(20) for kind in (LOG, QUEUE)
]


class Bucket:
    """A log with bytes of many segments, and a copy of these bytes."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.client = MemoryObjectClient(self.objects)
        self.log = self.opened()
        self.log.claim()
        self.bytes: dict[SegmentKey, bytes] = {}
        self.dice = random.Random(0)

    def opened(self, faults: ObjectFaults | None = None) -> BrokerLog:
        runtime = Runtime.inline()
        client = MemoryObjectClient(self.objects)
        self.client = client
        policy = RetryPolicy(retries_max=0)
        calls = ObjectCalls(
            client if faults is None else FaultyClient(client, faults, runtime.clock),
            runtime,
            policy,
        )
        return BrokerLog(calls, ObjectLayout("c"), "b", runtime)

    def round(self, keys: Iterable[SegmentKey] = KEYS, *, size: int = 500) -> None:
        writes = []
        for key in keys:
            known = self.bytes.get(key, b"")
            data = self.dice.randbytes(self.dice.randint(1, 2 * size))
            writes.append(DraftWrite(key, len(known), data))
            self.bytes[key] = known + data
        self.log.append([Draft(writes=[write]) for write in writes])

    def merge(self) -> None:
        """Merge while there are enough rounds."""
        chores = upkeep.Upkeep(self.log)
        while chores.step():
            pass

    def damage(self, name: str, at: int) -> None:
        key = self.log.key(name)
        data, facts = self.objects.held[key]
        changed = bytearray(data)
        changed[at] ^= 1
        self.objects.held[key] = bytes(changed), facts

    def gets(self, reads: Sequence[SegmentRead]) -> int:
        """Check the answers to reads; returns the number of GETs after the state's."""
        log = self.opened()
        log.state()
        before = self.client.requests["get"]
        for read, answer in zip(reads, read_together(lambda _: log, reads), strict=True):
            stop = read.position + read.length
            assert answer == self.bytes[read.path, read.type, read.base][read.position : stop]
        return self.client.requests["get"] - before


def whole(bucket: Bucket, keys: Iterable[SegmentKey] = KEYS) -> list[SegmentRead]:
    return [SegmentRead(*key, 0, len(bucket.bytes[key])) for key in keys]


@pytest.fixture
def bucket() -> Bucket:
    made = Bucket()
    for _ in range(10):
        made.round()
    return made


def test_all_segments_take_a_request_for_each_object(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bucket.gets(whole(bucket)) == 10
    monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 10)
    bucket.merge()
    assert bucket.gets(whole(bucket)) == 1
    bucket.round()
    assert bucket.gets(whole(bucket)) == 2


def test_any_ranges_of_any_segments_are_right(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 4)
    bucket.merge()
    assert len(bucket.log.state().chunks) == 2 + 2
    for _ in range(20):
        reads = []
        for key in bucket.dice.choices(KEYS, k=30):  # some of them twice
            start, stop = sorted(bucket.dice.choices(range(len(bucket.bytes[key]) + 1), k=2))
            reads.append(SegmentRead(*key, start, stop - start))
        bucket.gets(reads)


def test_what_lies_far_apart_is_not_read_through() -> None:
    bucket = Bucket()
    bucket.round(KEYS[:1])
    between = bytes(together.GAP_BYTES_MAX + 1)
    first, second = (DraftWrite(key, 0, b"abc") for key in KEYS[1:3])
    bucket.log.append([Draft(writes=[first, DraftWrite(KEYS[3], 0, between), second])])
    bucket.bytes |= {KEYS[1]: b"abc", KEYS[2]: b"abc", KEYS[3]: between}
    assert bucket.gets(whole(bucket, KEYS[1:3])) == 2
    assert bucket.gets(whole(bucket, KEYS[1:4])) == 1


def test_a_request_is_no_longer_than_it_may_be(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "RANGE_BYTES_MAX", 1_000)
    monkeypatch.setattr(together, "UNDER_WAY_BYTES", 3_000)
    asked: list[list[int]] = []
    inner = MemoryObjectClient.get_ranges

    def noted(client: MemoryObjectClient, ranges: Sequence[Range]) -> object:
        asked.append([each.length for each in ranges])
        return inner(client, ranges)

    monkeypatch.setattr(MemoryObjectClient, "get_ranges", noted)
    bucket.round([KEYS[0]], size=30_000)
    answers = read_together(lambda _: bucket.log, whole(bucket))
    assert answers == [bucket.bytes[key] for key in KEYS]
    assert max(map(max, asked)) == 1_000
    assert max(map(sum, asked)) <= 3_000


def test_sealed_segments_are_read_with_the_others(bucket: Bucket) -> None:
    for key in KEYS[:6]:
        data = bucket.bytes[key]
        number = bucket.log.state().numbers[key]
        name = f"x_c/{key[0]}/{key[1].name}/{key[2]:020d}"
        bucket.objects.put(name, data, None)
        sealed = Sealed(number, name, len(data), crc32c(data) if number % 2 else None)
        bucket.log.append([Draft(sealed=[sealed])])
    assert bucket.gets(whole(bucket)) == 10 + 6
    bucket.gets([SegmentRead(*KEYS[0], 7, 30), SegmentRead(*KEYS[9], 7, 30)])


def test_damage_is_that_of_the_reads_that_have_it(bucket: Bucket) -> None:
    number = bucket.log.state().numbers[KEYS[5]]
    place = bucket.log.state().places(number)[3]
    bucket.damage(place.object, place.offset)
    answers = read_together(lambda _: bucket.log, whole(bucket))
    for key, answer in zip(KEYS, answers, strict=True):
        if key != KEYS[5]:
            assert answer == bucket.bytes[key]
            continue
        assert isinstance(answer, SegmentCorruptError)
        assert answer.path == bucket.log.layout.segment_key(*KEYS[5])
        assert answer.position == place.position
    # A part has no known checksum.
    reads = [SegmentRead(*KEYS[5], place.position, place.length - 1)]
    (part,) = read_together(lambda _: bucket.log, reads)
    assert isinstance(part, bytes)


def test_what_is_not_there_is_an_error_of_its_own(bucket: Bucket) -> None:
    size = len(bucket.bytes[KEYS[0]])
    reads = [
        SegmentRead(*KEYS[0], 0, size + 1),
        SegmentRead("b/none/0", LOG, 0, 0, 1),
        SegmentRead(*KEYS[0], 0, size),
        SegmentRead(*KEYS[0], size, 0),
        SegmentRead(*KEYS[0], -1, 5),
    ]
    beyond, absent, good, nothing, negative = read_together(lambda _: bucket.log, reads)
    assert isinstance(beyond, OffsetOutOfRangeError)
    assert isinstance(absent, SegmentNotFoundError)
    assert (good, nothing) == (bucket.bytes[KEYS[0]], b"")
    assert isinstance(negative, OffsetOutOfRangeError)
    assert read_together(lambda _: bucket.log, []) == []


def test_bytes_that_no_entry_has_any_more_are_damage(bucket: Bucket) -> None:
    bucket.log.state().chunks.popitem()
    size = len(bucket.bytes[KEYS[0]])
    reads = [SegmentRead(*KEYS[0], 0, size), SegmentRead(*KEYS[0], 0, 1)]
    beyond, there = read_together(lambda _: bucket.log, reads)
    assert isinstance(beyond, SegmentCorruptError)
    assert there == bucket.bytes[KEYS[0]][:1]


def test_an_object_that_is_gone_takes_only_its_own_bytes(bucket: Bucket) -> None:
    bucket.round(KEYS[:4])
    newest = bucket.log.state().sequence
    del bucket.objects.held[bucket.log.key(f"log/{newest:020d}")]
    answers = read_together(lambda _: bucket.log, whole(bucket))
    assert all(isinstance(answer, SegmentNotFoundError) for answer in answers[:4])
    assert answers[4:] == [bucket.bytes[key] for key in KEYS[4:]]


def test_a_backend_that_cannot_be_reached_is_an_answer(bucket: Bucket) -> None:
    log = bucket.opened(ObjectFaults(1.0, ObjectFault.TIMED_OUT))
    answers = read_together(lambda _: log, whole(bucket))
    assert all(isinstance(answer, BackendUnavailableError) for answer in answers)
    rows = [SegmentRecord(path=KEYS[0][0], type=LOG, base_offset=0)]
    assert reading_order(lambda _: log, rows) == [INT64_MAX]


def test_the_order_is_that_in_which_segments_began(bucket: Bucket) -> None:
    rows = [SegmentRecord(path=path, type=kind, base_offset=base) for path, kind, base in KEYS]
    unknown = SegmentRecord(path="b/none/0", type=LOG, base_offset=0)
    assert reading_order(lambda _: bucket.log, [unknown, *rows]) == [INT64_MAX, *range(1, 41)]
    # Not the order of the names.
    assert rows != sorted(rows, key=lambda row: row.path)


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([4, 6, 1], [[4, 6], [1]]),
        ([4, 7], [[4], [7]]),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([11, 1], [[11], [1]]),
        ([], []),
    ],
)
def test_no_more_is_under_way_than_memory_and_pool_take(
    sizes: list[int], batches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "UNDER_WAY_BYTES", 10)
    monkeypatch.setattr(together, "UNDER_WAY_MAX", 3)
    ranges = [together._Range("object", 100, 100 + size, []) for size in sizes]
    found = [[each.end - each.start for each in some] for some in together._batches(ranges)]
    assert found == batches
