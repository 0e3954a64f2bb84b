"""Sealed objects that no entry names are read, found and taken in."""

from __future__ import annotations

import pytest

from tests.providers.object_kit import PATH, Bucket
from tieredstore.driver.provider import ListedSegment
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.model.values import SegmentType
from tieredstore.roundlog import taking

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
BROKER = "broker-a"


def sealed(bucket: Bucket, path: str, data: bytes, base: int = 0) -> str:
    """Put a sealed object as a copy of a Java tier does; returns its key."""
    key = bucket.process().open(path, LOG, base).path
    bucket.objects.put(key, data, {})
    return key


def test_a_reader_of_a_bucket_without_a_log_finds_what_is_sealed() -> None:
    bucket = Bucket(listing_ms=0)
    reader = bucket.process()
    assert reader.sizes() == {}
    sealed(bucket, PATH, b"0123456789")
    sealed(bucket, "broker-b/T/0", b"other")
    assert reader.sizes() == {(PATH, LOG, 0): 10, ("broker-b/T/0", LOG, 0): 5}
    assert reader.open(PATH, LOG, 0).read(3, 4) == b"3456"
    assert reader.provider.catalogue(BROKER, read_only=True) is None
    assert {"put", "delete"}.isdisjoint(reader.requests)
    writer = bucket.process()
    assert writer.provider.take_in(BROKER).segment_count == 1
    writer.open(PATH, QUEUE, 0).write(0, b"x")
    assert reader.sizes() == {
        (PATH, LOG, 0): 10,
        (PATH, QUEUE, 0): 1,
        ("broker-b/T/0", LOG, 0): 5,
    }


def test_a_writer_takes_in_what_its_log_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "TAKEN_TOGETHER", 4)
    bucket = Bucket()
    writer = bucket.process()
    for name in ("open", "sealed"):
        writer.open(f"broker-a/{name}/0", LOG, 0).write(0, b"ours")
    writer.open("broker-a/sealed/0", LOG, 0).seal()
    for base in range(0, 100, 10):
        sealed(bucket, PATH, b"0123456789", base)
    sealed(bucket, "broker-a/open/0", b"of a sealing that was cut off")
    bucket.objects.put(f"{writer.open(PATH, LOG, 0).path}.bak", b"no segment", {})
    found = writer.provider.untaken(BROKER)
    assert set(found) == {ListedSegment(PATH, LOG, base, 10) for base in range(0, 100, 10)}
    assert set(bucket.process().provider.untaken(BROKER)) == set(found)
    writer.forget_requests()
    assert writer.provider.take_in(BROKER).segment_count == 10
    assert writer.requests["put"] == 3
    for process in (writer, bucket.process()):
        assert process.provider.untaken(BROKER) == []
        assert process.open(PATH, LOG, 90).read(0, 10) == b"0123456789"
        assert len(process.sizes()) == 12
        assert list(process.provider.damage(BROKER)) == []
    assert writer.provider.take_in(BROKER).segment_count == 0


def test_what_was_deleted_is_not_taken_in_again() -> None:
    bucket, runtime = Bucket(), Runtime.inline()
    writer = bucket.process(runtime=runtime)
    segment = writer.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    segment.seal()
    segment.delete()
    assert segment.path in bucket.objects.held  # for readers that lag
    assert writer.provider.untaken(BROKER) == []
    data, _ = bucket.objects.held[segment.path]
    assert isinstance(runtime.clock, ManualClock)
    for _ in range(3):
        runtime.clock.advance(3_600_000)
        while writer.provider.tend(BROKER):
            pass
    assert segment.path not in bucket.objects.held
    bucket.objects.put(segment.path, data, {}, if_absent=True)  # a late repeat of its put
    assert writer.provider.untaken(BROKER) == []
    assert writer.provider.take_in(BROKER).segment_count == 0
    assert bucket.process().sizes() == {}
