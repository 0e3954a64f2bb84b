"""Segments in an object store that are long, large, damaged, or have odd names."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence

import pytest

from tests.providers.object_kit import CLUSTER, FIRST, PATH, SECOND, Bucket
from tieredstore.driver.object_client import ListedKey, ObjectClientWrapper, ObjectFacts, Range
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentSealedError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_layout import part_key
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Fault
from tieredstore.testing.memory_objects import MemoryObjectClient

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
MIB = 1 << 20


def test_a_segment_of_so_many_parts_asks_for_a_roll() -> None:
    bucket = Bucket(parts_max=3)
    process = bucket.process()
    segment = process.open(PATH, LOG, 0)
    for number in range(3):
        segment.write(number, b"x")
    with pytest.raises(SegmentSealedError):
        segment.write(3, b"x")
    wanted = [process.open(PATH, LOG, 3).wants_seal, segment.wants_seal]
    segment.seal()
    assert [*wanted, segment.wants_seal] == [False, True, False]
    assert bucket.process().open(PATH, LOG, 0).read(0, 3) == b"xxx"


def test_more_than_a_thousand_parts() -> None:
    bucket = Bucket(parts_max=5_000)
    segment = bucket.process().open(PATH, LOG, 0)
    for number in range(2_500):
        segment.write(number * 4, b"%04d" % number)
    process = bucket.process()
    again = process.open(PATH, LOG, 0)
    whole = b"".join(b"%04d" % number for number in range(2_500))
    assert again.size() == 10_000
    assert again.read(0, 10_000) == whole
    again.seal()
    assert bucket.process().open(PATH, LOG, 0).read(0, 10_000) == whole
    left = bucket.objects.held_keys(".parts/")
    assert [key.rpartition("/")[2] for key in left] == [f"sealed-{SECOND:010d}"]
    bucket.process().open(PATH, QUEUE, 0).delete()  # the next writer has no need of it
    assert bucket.objects.held_keys(".parts/") == []


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
    ["%RETRY%a|b", "主题", "a b", "sealing-0000000001", "gone-0000000002", ".parts", "a+b&c=d;e"],
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
    assert client.held_bytes_max <= 16 * MIB
    assert segment.size() == 40 * MIB


def test_sealing_holds_a_few_parts_at_a_time() -> None:
    client = MemoryObjectClient()
    provider = ObjectProvider(client, CLUSTER, Runtime.inline())
    segment = provider.open(PATH, LOG, 0)
    data = bytes(range(256)) * 4096 * 5
    for number in range(6):
        segment.write(number * len(data), data)
    segment.seal()
    assert client.held_bytes_max <= 16 * MIB
    assert segment.read(0, 6 * len(data)) == data * 6


def test_a_part_whose_bytes_changed_is_not_sealed() -> None:
    bucket = Bucket()
    segment = bucket.process().open(PATH, LOG, 0)
    segment.write(0, b"first")
    segment.write(5, b"second")
    key = next(key for key in bucket.objects.held_keys(".parts/") if "05-" in key)
    with bucket.objects.guard:
        _, facts = bucket.objects.held[key]
        bucket.objects.held[key] = b"secOnd", facts
    with pytest.raises(SegmentCorruptError, match="checksum"):
        segment.read(0, 11)
    again = bucket.process().open(PATH, LOG, 0)
    with pytest.raises(SegmentCorruptError, match="checksum"):
        again.seal()
    assert again.path not in bucket.objects.held_keys()


def test_a_store_that_is_away_is_asked_no_more_often_by_a_sealing() -> None:
    """Requests are tried again one by one; the sealing around them is not."""
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


def test_a_write_that_no_request_can_hold_is_refused_before_it_is_copied() -> None:
    process = Bucket().process()
    segment = process.open(PATH, LOG, 0)
    with (
        mmap.mmap(-1, (5 << 30) + 1) as untouched,
        memoryview(untouched) as view,
        pytest.raises(BackendRefusedError, match="5368709121 bytes"),
    ):
        segment.write(0, view)
    segment.write(0, b"small")
    assert segment.read(0, 5) == b"small"


class Vast(ObjectClientWrapper):
    """Objects of any size: their bytes are their positions, eight at a time."""

    def __init__(self, inner: MemoryObjectClient, sizes: dict[str, int]) -> None:
        super().__init__(inner)
        self.sizes = sizes

    def head(self, key: str) -> ObjectFacts:
        if key in self.sizes:
            return ObjectFacts(key=key, size=self.sizes[key], etag="e")
        return self.inner.head(key)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        vast = [ListedKey(key, size) for key, size in self.sizes.items() if key.startswith(prefix)]
        return iter([*self.inner.list(prefix, after=after), *vast])

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if key not in self.sizes:
            return self.inner.get_range(key, start, length)
        assert start % 8 == length % 8 == 0
        assert start + length <= self.sizes[key]
        return b"".join(n.to_bytes(8, "big") for n in range(start, start + length, 8))

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        return [self.get_range(each.key, each.start, each.length) for each in ranges]


@pytest.mark.parametrize("sealed", [False, True])
def test_bytes_beyond_5_gib_are_found(sealed: bool) -> None:
    limit = 5 << 30
    client = Vast(MemoryObjectClient(), {})
    segment = ObjectProvider(client, CLUSTER, Runtime.inline()).open(PATH, LOG, 0)
    if sealed:
        client.sizes[segment.path] = 2 * limit + 16
    else:
        client.sizes[part_key(segment.path, 0, FIRST)] = limit
        client.sizes[part_key(segment.path, limit, FIRST)] = limit
        client.sizes[part_key(segment.path, 2 * limit, FIRST)] = 16
        # without a boundary nothing is fenced: these count
    assert segment.size() == 2 * limit + 16
    for position in (limit - 8, limit, 2 * limit - 8, 2 * limit):
        wanted = position if sealed else position % limit
        assert int.from_bytes(segment.read(position, 16)[:8], "big") == wanted
