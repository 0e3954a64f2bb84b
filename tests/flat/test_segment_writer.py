"""The segment writer: what waits, what is sent, and how a failed attempt is repaired."""

from __future__ import annotations

import itertools

import pytest

from tieredstore.driver.provider import SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.segment_writer import SegmentWriter, Upload
from tieredstore.model.errors import (
    BackendUnavailableError,
    PositionMismatchError,
    SegmentCorruptError,
)
from tieredstore.model.values import AppendStatus, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider

PATH = "broker-a/TopicTest/0"


def a_segment(faults: Faults | None = None) -> FileSegment:
    runtime = Runtime.inline()
    provider = FaultyProvider(MemoryProvider(runtime), faults or Faults(), runtime)
    return provider.open(PATH, SegmentType.COMMIT_LOG, 0)


def a_writer(
    segment: FileSegment | None = None, *, committed_bytes: int = 0, bytes_max: int = 1000
) -> SegmentWriter:
    return SegmentWriter(
        segment or a_segment(), committed_bytes=committed_bytes, bytes_max=bytes_max
    )


def send(writer: SegmentWriter) -> Upload | None:
    """One whole commit, with the write of a provider."""
    upload = writer.prepare()
    if upload is not None:
        try:
            if upload.write is not None:
                write = upload.write
                write.segment.write(write.position, write.data)
        except BackendUnavailableError:
            writer.doubt()
            raise
        writer.settle(upload)
    return upload


def test_an_empty_append_succeeds_and_leaves_nothing_to_commit() -> None:
    writer = a_writer()
    assert writer.append(b"") is AppendStatus.SUCCESS
    assert writer.prepare() is None


def test_what_waits_goes_out_together_and_in_order() -> None:
    segment = a_segment()
    writer = a_writer(segment)
    for piece in (b"one", b"two", b"three"):
        assert writer.append(piece) is AppendStatus.SUCCESS
    assert writer.append_bytes == 11
    upload = send(writer)
    assert upload is not None
    assert upload.write is not None
    assert segment.read(0, 11) == b"onetwothree"
    assert (writer.committed_bytes, writer.waiting_bytes) == (11, 0)


def test_a_full_segment_says_so_and_an_exact_fit_is_none() -> None:
    writer = a_writer(bytes_max=10)
    assert writer.append(b"x" * 10) is AppendStatus.SUCCESS
    assert writer.append(b"x") is AppendStatus.FILE_FULL


def test_an_empty_segment_takes_one_message_of_any_size() -> None:
    writer = a_writer(bytes_max=10)
    assert writer.append(b"x" * 25) is AppendStatus.SUCCESS
    assert writer.room() == 0
    assert writer.append(b"x") is AppendStatus.FILE_FULL


def test_a_segment_that_its_backend_calls_full_takes_no_byte_more() -> None:
    class Full(SegmentWrapper):
        is_full = True

    segment = a_segment()
    segment.write(0, b"x")
    writer = a_writer(Full(segment), committed_bytes=1)
    assert writer.room() == 0
    assert writer.append(b"y") is AppendStatus.FILE_FULL


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.HALF])
def test_a_failed_attempt_is_repaired_by_sending_only_what_is_missing(fault: Fault) -> None:
    # Steps: the size, the write that fails, the size again, then those of the repair.
    segment = a_segment(Faults({1: fault}))
    writer = a_writer(segment)
    writer.append(b"0123456789")
    with pytest.raises(BackendUnavailableError):
        send(writer)
    assert (writer.committed_bytes, writer.waiting_bytes) == (0, 10)
    writer.append(b"next batch")
    upload = send(writer)
    landed = {Fault.BEFORE: 0, Fault.AFTER: 10, Fault.HALF: 5}[fault]
    assert upload is not None
    assert upload.write is not None
    assert upload.write.position == landed
    assert segment.read(0, segment.size()) == b"0123456789next batch"
    assert writer.committed_bytes == 20


def test_failure_after_failure_keeps_the_place_of_every_byte() -> None:
    kinds = itertools.cycle([Fault.HALF, Fault.BEFORE, Fault.AFTER, None])
    faults = {step: fault for step in range(40) if (fault := next(kinds)) is not None}
    segment = a_segment(Faults(faults))
    writer = a_writer(segment)
    expected = b""
    for number in range(100):
        piece = b"piece-%03d|" % number
        if number < 20:
            writer.append(piece)
            expected += piece
        try:
            if send(writer) is None and number > 20:
                break
        except BackendUnavailableError:
            continue
    assert segment.read(0, segment.size()) == expected


def test_a_size_that_cannot_be_asked_commits_nothing_and_loses_nothing() -> None:
    writer = a_writer(a_segment(Faults({0: Fault.BEFORE})))
    writer.append(b"0123456789")
    with pytest.raises(BackendUnavailableError):
        writer.prepare()
    assert (writer.committed_bytes, writer.waiting_bytes) == (0, 10)
    assert send(writer) is not None


def test_the_end_is_asked_once_as_long_as_all_goes_well() -> None:
    faults = Faults()
    writer = a_writer(a_segment(faults))
    for _ in range(5):
        writer.append(b"x")
        send(writer)
    assert faults.steps == 1 + 5  # one size, five writes
    assert writer.knows_its_end


def test_bytes_of_somebody_else_are_left_alone() -> None:
    segment = a_segment()
    segment.write(0, b"mine|theirs")
    writer = a_writer(segment, committed_bytes=5)
    writer.append(b"other!")
    with pytest.raises(PositionMismatchError) as caught:
        writer.prepare()
    assert (caught.value.expected, caught.value.actual) == (5, 11)
    assert segment.read(0, 11) == b"mine|theirs"
    assert writer.waiting_bytes == 6


def test_longer_bytes_of_somebody_else_that_begin_alike_are_found_out_later() -> None:
    segment = a_segment()
    segment.write(0, b"same-theirs")
    writer = a_writer(segment)
    writer.append(b"same")
    assert send(writer) == Upload(end=4, write=None)
    writer.append(b"-mine")
    with pytest.raises(PositionMismatchError):
        writer.prepare()


def test_committed_bytes_that_are_gone_stop_the_writer() -> None:
    segment = a_segment()
    segment.write(0, b"short")
    writer = a_writer(segment, committed_bytes=9)
    writer.append(b"more")
    with pytest.raises(SegmentCorruptError, match="4 bytes that were committed are gone"):
        writer.prepare()
