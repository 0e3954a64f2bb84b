"""A name that is used again while requests for what was there before may land at any time."""

from __future__ import annotations

import pytest

from tests.providers.late_requests import Net, once
from tests.providers.object_kit import CLUSTER, FIRST, PATH, Bucket, Process
from tests.providers.two_writers import a_sealed_object, content, stalls
from tieredstore.codec.names import cluster_directory
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_layout import Mark, mark_key, part_key
from tieredstore.providers.writer_epoch import LIVES, Boundary, Found
from tieredstore.testing.faults import Fault

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
MONTH_MS = 31 * 24 * 3_600_000


def a_life(bucket: Bucket, *, retries: int = 0) -> tuple[Process, ManualClock]:
    """A process that has claimed its epoch."""
    runtime = Runtime.inline()
    assert isinstance(runtime.clock, ManualClock)
    process = bucket.process(runtime=runtime, retries=retries)
    process.open(PATH, QUEUE, 5).delete()
    return process, runtime.clock


def segment_path(process: Process) -> str:
    return process.open(PATH, LOG, 0).path


def everybody_has(bucket: Bucket, expected: bytes, *processes: Process) -> None:
    """Who writes, who reads, a rebuild, an audit, the next writer, and its sealing."""
    for process in (*processes, bucket.process()):
        assert content(process.open(PATH, LOG, 0)) == expected
        assert process.sizes() == {(PATH, LOG, 0): len(expected)}
    third = bucket.process()
    for _ in range(2):  # who takes over, and after that
        third = bucket.process()
        third.open(PATH, QUEUE, 9).delete()
        assert content(third.open(PATH, LOG, 0)) == expected
    third.open(PATH, LOG, 0).seal()
    for process in (third, bucket.process()):
        assert content(process.open(PATH, LOG, 0)) == expected
        assert process.sizes() == {(PATH, LOG, 0): len(expected)}


@pytest.mark.parametrize("at", [0, 4, 8])  # where the new one has a part, or has none yet
@pytest.mark.parametrize("sealed", [False, True])
def test_a_part_of_a_deleted_segment_that_lands_a_month_later_never_counts(
    at: int, sealed: bool
) -> None:
    bucket = Bucket()
    process, clock = a_life(bucket)
    segment = process.open(PATH, LOG, 0)
    for position in range(0, at, 4):
        segment.write(position, b"olde")
    net = Net(process, lambda operation, key: key == part_key(segment.path, at, FIRST))
    with pytest.raises(BackendUnavailableError):
        segment.write(at, b"gone")
    net.release()
    segment.delete()
    assert bucket.process().sizes() == {}
    clock.advance(MONTH_MS)
    again = process.open(PATH, LOG, 0)
    again.write(0, b"anew")  # at once, and nobody waits
    if at:
        again.write(4, b"more")
    if sealed:
        again.seal()
    net.land()
    assert part_key(segment.path, at, FIRST) in bucket.objects.held_keys()
    expected = b"anewmore" if at else b"anew"
    everybody_has(bucket, expected, process)


def test_a_late_part_is_not_taken_for_the_next_write() -> None:
    bucket = Bucket()
    process, clock = a_life(bucket)
    segment = process.open(PATH, LOG, 0)
    net = Net(process, lambda operation, key: "/00000" in key)
    with pytest.raises(BackendUnavailableError):
        segment.write(0, b"from another topic")
    net.release()
    segment.delete()
    clock.advance(MONTH_MS)
    net.land()
    process.open(PATH, LOG, 0).write(0, b"anew")
    everybody_has(bucket, b"anew", process)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_delete_that_lands_a_month_later_takes_nothing_of_what_came_since(sealed: bool) -> None:
    bucket = Bucket()
    process, clock = a_life(bucket)
    segment = process.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    if sealed:
        segment.seal()
    net = Net(process, lambda operation, key: operation == "delete")
    with pytest.raises(BackendUnavailableError):
        segment.delete()
    net.release()
    segment.delete()
    clock.advance(MONTH_MS)
    again = process.open(PATH, LOG, 0)
    again.write(0, b"anew")
    if sealed:
        again.seal()
    net.land()
    everybody_has(bucket, b"anew", process)


@pytest.mark.parametrize("mark", ["deleting-", "sealing-", "sealed-", "gone-"])
def test_a_note_that_lands_a_month_later_dooms_nothing(mark: str) -> None:
    bucket = Bucket()
    bucket.process().open(PATH, LOG, 0).write(0, b"01234")  # so that a mark stays when it is sealed
    process, clock = a_life(bucket)
    segment = process.open(PATH, LOG, 0)
    segment.write(5, b"56789")
    net = Net(process, lambda operation, key: operation == "put" and mark in key)
    for call in (segment.seal, segment.delete):
        try:
            call()
        except BackendUnavailableError:
            net.release()
            call()
    clock.advance(MONTH_MS)
    again = process.open(PATH, LOG, 0)
    again.write(0, b"anew")
    net.land()
    everybody_has(bucket, b"anew", process)


def test_a_sealed_object_that_lands_a_month_later_does_not_hide_what_came_since() -> None:
    for is_sealed_again in (False, True):
        bucket = Bucket()
        process, clock = a_life(bucket)
        segment = process.open(PATH, LOG, 0)
        segment.write(0, b"0123456789")
        net = Net(process, a_sealed_object)
        with pytest.raises(BackendUnavailableError):
            segment.seal()
        net.release()
        segment.delete()
        clock.advance(MONTH_MS)
        again = process.open(PATH, LOG, 0)
        again.write(0, b"anew")
        net.land()
        if is_sealed_again:
            again.seal()
        everybody_has(bucket, b"anew", process)


def test_a_first_part_that_lands_a_month_later_does_not_hide_what_was_sealed() -> None:
    bucket = Bucket()
    process, clock = a_life(bucket, retries=2)
    segment = process.open(PATH, LOG, 0)
    first = part_key(segment.path, 0, FIRST)
    net = Net(process, once(lambda operation, key: operation == "put" and key == first))
    segment.write(0, b"01234")
    segment.write(5, b"56789")
    clock.advance(MONTH_MS)
    segment.seal()
    net.land()
    assert first in bucket.objects.held_keys()
    everybody_has(bucket, b"0123456789", process)


def test_a_delete_that_lands_after_later_claims_takes_nothing_either() -> None:
    for is_sealed_before, claims in ((False, 1), (True, 1), (False, 2), (True, 2)):
        bucket = Bucket()
        process, _ = a_life(bucket)
        segment = process.open(PATH, LOG, 0)
        segment.write(0, b"0123456789")
        segment.seal()
        net = Net(process, lambda operation, key: operation == "delete")
        with pytest.raises(BackendUnavailableError):
            segment.delete()
        net.release()
        segment.delete()
        process.open(PATH, LOG, 0).write(0, b"anew")
        if is_sealed_before:
            process.open(PATH, LOG, 0).seal()
        later = bucket.process()
        for _ in range(claims):
            later = bucket.process()
            later.open(PATH, QUEUE, 7).delete()
        later.open(PATH, LOG, 0).seal()
        assert content(later.open(PATH, LOG, 0)) == b"anew"
        net.land()
        everybody_has(bucket, b"anew", later)


def test_a_late_delete_of_a_note_does_not_hide_a_later_deletion() -> None:
    bucket = Bucket()
    process, _ = a_life(bucket, retries=2)
    segment = process.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    ending = Net(process, once(lambda operation, key: operation == "delete" and "deleting" in key))
    segment.delete()
    segment.write(0, b"ABCDEFGHIJ")
    segment.seal()
    deleting = Net(process, lambda operation, key: operation == "delete")
    with pytest.raises(BackendUnavailableError):
        segment.delete()
    ending.land()
    later = bucket.process()
    later.open(PATH, QUEUE, 7).delete()
    before = content(later.open(PATH, LOG, 0))
    deleting.land()
    assert content(later.open(PATH, LOG, 0)) == content(bucket.process().open(PATH, LOG, 0))
    assert content(later.open(PATH, LOG, 0)) == before


def test_what_is_known_of_a_later_life_is_not_forgotten_for_an_older_mark() -> None:
    known = Boundary().next(2 * LIVES, Found(gone={"key": LIVES + 1}), now_ms=1)
    again = known.next(3 * LIVES, Found(gone={"key": LIVES}), now_ms=2)
    assert again.gone["key"].epoch == LIVES + 1


def deleted_in_doubt(process: Process) -> None:
    """The reply was lost, and it is tried again."""
    stalls(
        process,
        lambda operation, key: operation == "delete",
        lambda: process.client.faults.strike(Fault.AFTER),
    )
    process.open(PATH, LOG, 0).delete()


def test_a_name_has_many_lives_in_one_claim() -> None:
    bucket = Bucket()
    process, _ = a_life(bucket, retries=2)
    for life in range(5):
        deleted_in_doubt(process)
        process.open(PATH, LOG, 0).write(0, b"%04d" % life)
        everybody = bucket.process()
        assert content(everybody.open(PATH, LOG, 0)) == b"%04d" % life
    assert bucket.objects.held_keys(".parts/") == [
        part_key(segment_path(process), 0, FIRST + 5),
        mark_key(segment_path(process), Mark.GONE, FIRST + 5),
    ]
    everybody_has(bucket, b"0004", process)


def test_the_last_life_of_a_name_says_what_to_do() -> None:
    bucket = Bucket(joins_epoch=True)
    bucket.objects.put(mark_key(segment_path(bucket.process()), Mark.GONE, 2 * LIVES - 1), b"", {})
    bucket.objects.put(f".epochs/{cluster_directory(CLUSTER)}/broker-a/{FIRST:010d}", b"", {})
    process = bucket.process(retries=2)
    process.open(PATH, LOG, 0).write(0, b"last")
    assert content(process.open(PATH, LOG, 0)) == b"last"
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match="restart the broker"):
            deleted_in_doubt(process)


def test_nothing_is_kept_in_memory_of_segments_that_were_deleted() -> None:
    process = Bucket().process()
    kept = process.open(PATH, QUEUE, 0)
    kept.write(0, b"kept")
    for base in range(0, 5_000, 10):
        segment = process.open(PATH, LOG, base)
        segment.write(0, b"0123456789")
        if base % 20:
            segment.seal()
        segment.delete()
        segment.close()
    table = process.provider._broker_of(PATH)()
    assert [*(table._segments or ())] == [kept.path]
    assert content(kept) == b"kept"
