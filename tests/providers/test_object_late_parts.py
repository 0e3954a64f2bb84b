"""What an older writer, or a request that was sent twice, puts beside a segment that is sealed."""

from __future__ import annotations

import pytest

from tests.providers.object_kit import FIRST, PATH, Bucket, Process
from tests.providers.two_writers import Two, a_part, a_sealed_object, content, stalls
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import BackendUnavailableError, SegmentSealedError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_layout import part_key
from tieredstore.providers.writer_epoch import WriterStalledError
from tieredstore.testing.faults import Fault

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
EPOCH_OF_FIRST = {"tiered-epoch": str(FIRST)}


def everybody_reads(bucket: Bucket, expected: bytes, *processes: Process) -> None:
    for process in (*processes, bucket.process()):
        assert content(process.open(PATH, LOG, 0)) == expected
        assert process.sizes()[PATH, LOG, 0] == len(expected)
    bucket.process().open(PATH, QUEUE, 9).delete()  # one more takes over
    assert content(bucket.process().open(PATH, LOG, 0)) == expected


def test_a_late_first_part_does_not_hide_what_a_newer_writer_sealed() -> None:
    two = Two()
    two.old.open("broker-a/Other/0", QUEUE, 0).write(0, b"x")
    segment = two.new.open(PATH, LOG, 0)
    segment.write(10, b"new")
    segment.seal()
    # a request of the older writer that was sent twice: it is as long as what was there once
    two.bucket.objects.put(part_key(segment.path, 0, FIRST), b"0123456789", EPOCH_OF_FIRST)
    everybody_reads(two.bucket, b"0123456789new", two.new)


def test_a_late_part_of_the_writer_itself_does_not_hide_what_it_sealed() -> None:
    bucket = Bucket()
    process = bucket.process(retries=2)
    segment = process.open(PATH, LOG, 0)
    segment.write(0, b"")
    stalls(process, a_part, lambda: process.client.faults.strike(Fault.AFTER))
    segment.write(0, b"0123456789")
    segment.seal()
    bucket.objects.put(part_key(segment.path, 0, FIRST), b"0123456789", EPOCH_OF_FIRST)
    everybody_reads(bucket, b"0123456789", process)


def test_a_sealing_of_an_older_writer_that_is_tried_again_deletes_no_part() -> None:
    """Its object landed late: it is there, and counts for nobody but itself."""
    two = Two()
    segment = two.old.open(PATH, LOG, 0)

    def lost() -> None:
        two.new.open(PATH, LOG, 0).write(10, b"new")
        two.old.client.faults.strike(Fault.AFTER)

    stalls(two.old, a_sealed_object, lost)
    two.old.client.faults.strike(Fault.BEFORE, after=99)
    with pytest.raises((WriterStalledError, BackendUnavailableError)):
        segment.seal()
    again: FileSegment = two.old.open(PATH, LOG, 0)
    with pytest.raises(WriterStalledError):
        again.seal()
    two.counts(b"0123456789new")


def test_a_writer_that_does_not_know_yet_deletes_no_part_of_a_late_object_of_its_own() -> None:
    two = Two()
    segment = two.old.open(PATH, LOG, 0)
    stalls(two.old, a_sealed_object, lambda: two.old.client.faults.strike(Fault.BEFORE))
    with pytest.raises(BackendUnavailableError):
        segment.seal()
    two.new.open(PATH, LOG, 0).write(10, b"new")
    two.bucket.objects.put(segment.path, b"0123456789", EPOCH_OF_FIRST)  # only now
    with pytest.raises(WriterStalledError):
        segment.seal()
    two.counts(b"0123456789new")


def test_nothing_is_appended_once_a_sealed_object_may_be_on_its_way() -> None:
    bucket = Bucket()
    process = bucket.process()
    segment = process.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    stalls(process, a_sealed_object, lambda: process.client.faults.strike(Fault.BEFORE))
    with pytest.raises(BackendUnavailableError):
        segment.seal()
    with pytest.raises(SegmentSealedError):
        process.open(PATH, LOG, 0).write(10, b"more")
    bucket.objects.put(segment.path, b"0123456789", EPOCH_OF_FIRST)
    everybody_reads(bucket, b"0123456789", process)


def test_a_writer_that_was_overtaken_reads_what_the_newer_one_made() -> None:
    two = Two()
    old = two.old.open(PATH, LOG, 0)
    segment = two.new.open(PATH, LOG, 0)
    segment.write(10, b"new")
    segment.seal()
    assert old.read(2, 3) == b"234"
    assert old.size() in (10, 13)
    with pytest.raises(WriterStalledError):
        old.write(10, b"late")
