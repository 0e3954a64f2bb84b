"""Long, large, damaged and oddly named segments in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.providers.object_kit import CLUSTER, PATH, Bucket
from tieredstore.driver.object_client import UPLOAD_PART_BYTES
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import (
    BackendUnavailableError,
    SegmentCorruptError,
    SegmentNotFoundError,
)
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Fault
from tieredstore.testing.memory_objects import MemoryObjectClient

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
MIB = 1 << 20


def test_more_than_a_thousand_writes() -> None:
    bucket = Bucket()
    segment = bucket.process().open(PATH, LOG, 0)
    for number in range(2_500):
        segment.write(number * 4, b"%04d" % number)
    again = bucket.process().open(PATH, LOG, 0)
    whole = b"".join(b"%04d" % number for number in range(2_500))
    assert again.size() == 10_000
    assert again.read(0, 10_000) == whole
    again.seal()
    assert bucket.process().open(PATH, LOG, 0).read(0, 10_000) == whole


def test_a_segment_wants_to_be_sealed_while_it_is_open_and_has_bytes() -> None:
    bucket = Bucket()
    segment = bucket.process().open(PATH, LOG, 0)
    wanted = [segment.wants_seal]
    segment.write(0, b"x")
    wanted.append(segment.wants_seal)
    segment.seal()
    assert [*wanted, segment.wants_seal, segment.is_full] == [False, True, False, True]


def test_segments_whose_bases_begin_alike_are_apart() -> None:
    bucket = Bucket()
    bases = [0, 1, 10, 100, 104857600, 1048576000]
    process = bucket.process()
    for base in bases:
        process.open(PATH, LOG, base).write(0, b"%d" % base)
    process.open(PATH, LOG, 100).seal()
    process.open(PATH, LOG, 104857600).delete()
    process.open(PATH, LOG, 1).delete()
    after = bucket.process()
    for base in bases:
        segment = after.open(PATH, LOG, base)
        if base in (1, 104857600):
            with pytest.raises(SegmentNotFoundError):
                segment.size()
        else:
            assert segment.read(0, segment.size()) == b"%d" % base
            segment.seal()
    assert {base for _, _, base in bucket.process().sizes()} == {0, 10, 100, 1048576000}


@pytest.mark.parametrize(
    "topic",
    ["%RETRY%a|b", "主题", "a b", ".rounds", "a+b&c=d;e"],
)
def test_any_topic_has_keys(topic: str) -> None:
    bucket = Bucket()
    path = f"broker-a/{topic}/0"
    writer = bucket.process().open(path, LOG, 0)
    writer.write(0, b"one")
    writer.write(3, b"two")
    process = bucket.process()
    assert process.sizes() == {(path, LOG, 0): 6}
    process.open(path, LOG, 0).write(6, b"three")
    process.open(path, LOG, 0).seal()
    assert bucket.process().sizes() == {(path, LOG, 0): 11}
    key = process.open(path, LOG, 0).path
    assert key.endswith(f"_{CLUSTER}/{path}/COMMIT_LOG/cfcd208400000000000000000000")
    process.open(path, LOG, 0).delete()
    assert bucket.process().sizes() == {}


def test_a_large_index_file_is_never_in_memory_as_a_whole() -> None:
    client = MemoryObjectClient()
    provider = ObjectProvider(client, CLUSTER, Runtime.inline())
    taken = 0

    def blocks() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(40):
            taken += MIB
            yield b"x" * MIB

    segment = provider.open("broker-a/rmq_sys_INDEX/0", INDEX, 0)
    assert provider.create(segment, blocks()) == 40 * MIB
    assert client.held_bytes_max <= UPLOAD_PART_BYTES + 2 * MIB
    assert segment.size() == 40 * MIB


def test_sealing_holds_a_few_blocks_at_a_time() -> None:
    client = MemoryObjectClient()
    provider = ObjectProvider(client, CLUSTER, Runtime.inline())
    segment = provider.open(PATH, LOG, 0)
    data = bytes(range(256)) * 4096 * 5
    for number in range(6):
        segment.write(number * len(data), data)
    segment.seal()
    assert client.held_bytes_max <= 32 * MIB
    assert segment.read(0, 6 * len(data)) == data * 6


@pytest.mark.parametrize("size", [11, 9 << 20])
def test_bytes_that_changed_are_not_read_and_not_sealed(size: int) -> None:
    bucket = Bucket()
    process = bucket.process()
    segment = process.open(PATH, LOG, 0)
    segment.write(0, b"first")
    segment.write(5, bytes(size - 11) + b"marked")
    with bucket.objects.guard:
        for key, (data, facts) in bucket.objects.held.items():
            bucket.objects.held[key] = data.replace(b"marked", b"harmed"), facts
    for again in (segment, bucket.process().open(PATH, LOG, 0)):
        with pytest.raises(SegmentCorruptError, match="checksum"):
            again.read(0, size)
    with pytest.raises(SegmentCorruptError, match="checksum"):  # the writer has them in memory
        bucket.process().open(PATH, LOG, 0).seal()
    assert segment.path not in bucket.objects.held_keys()


@pytest.mark.parametrize("bytes_left", [5, 9, None])
def test_a_sealed_object_that_is_not_what_the_log_says_is_damage(bytes_left: int | None) -> None:
    bucket = Bucket()
    segment = bucket.process().open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    segment.seal()
    with bucket.objects.guard:
        data, facts = bucket.objects.held.pop(segment.path)
        if bytes_left is not None:
            facts = replace(facts, size=bytes_left)
            bucket.objects.held[segment.path] = data[:bytes_left], facts
    process = bucket.process()
    with pytest.raises(SegmentCorruptError):
        process.open(PATH, LOG, 0).read(0, 10)
    (found,) = process.provider.damage("broker-a")
    assert found.kind == ("missing" if bytes_left is None else "size")
    assert found.where == segment.path


def test_a_store_that_is_away_is_asked_no_more_often_by_a_sealing() -> None:
    """Each request is retried; the sealing as a whole is not."""
    process = Bucket().process(retries=3)
    segment = process.open(PATH, LOG, 0)
    segment.write(0, b"data")
    faults = process.client.faults
    before = faults.steps
    process.client.before = lambda operation, key: (
        faults.strike(Fault.BEFORE) if key == segment.path and operation == "put" else None
    )
    with pytest.raises(BackendUnavailableError):
        segment.seal()
    assert faults.steps - before < 16
    process.client.before = lambda operation, key: None
    segment.seal()
    assert segment.read(0, 4) == b"data"
