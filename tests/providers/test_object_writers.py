"""Two writers: what the older one does late counts for nobody, and it learns of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.providers.object_kit import FIRST, PATH, Bucket, Process
from tests.providers.two_writers import Two, a_part, a_sealed_object, content, stalls
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.model.errors import (
    PositionMismatchError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_layout import part_key
from tieredstore.providers.writer_epoch import WriterStalledError
from tieredstore.testing.faults import SimulatedCrash

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX


def test_a_late_part_does_not_count() -> None:
    two = Two()
    two.stalled(lambda new: new.open(PATH, LOG, 0).write(10, b"new"))
    two.counts(b"0123456789new")


def test_a_late_part_behind_the_end_does_not_count_where_nobody_went_on() -> None:
    two = Two()
    two.stalled(lambda new: new.open("broker-a/TopicTest/1", LOG, 0).write(0, b"other"))
    two.counts(b"0123456789")


def test_a_late_part_of_a_deleted_segment_does_not_bring_it_back() -> None:
    two = Two()
    two.stalled(lambda new: new.open(PATH, LOG, 0).delete())
    two.counts(None)


def test_a_late_part_does_not_count_in_a_segment_made_anew() -> None:
    two = Two()

    def anew(new: Process) -> None:
        segment = new.open(PATH, LOG, 0)
        segment.delete()
        segment.write(0, b"ABCDE")
        segment.write(5, b"FGHIJ")

    two.stalled(anew)
    two.counts(b"ABCDEFGHIJ")


def test_a_first_part_that_comes_late_makes_no_segment() -> None:
    bucket = Bucket()
    old, new = bucket.process(), bucket.process()
    old.open(PATH, QUEUE, 0).write(0, b"x")
    stalls(old, a_part, lambda: new.open(PATH, QUEUE, 0).write(1, b"y"))
    with pytest.raises(WriterStalledError):
        old.open(PATH, LOG, 0).write(0, b"late")
    assert bucket.process().sizes() == {(PATH, QUEUE, 0): 2}
    new.open(PATH, LOG, 0).write(0, b"mine")
    assert content(bucket.process().open(PATH, LOG, 0)) == b"mine"


def test_the_double_of_an_old_request_does_not_bring_a_deleted_segment_back() -> None:
    """A request that was sent twice lands a second time, long after it was acknowledged."""
    two = Two()
    segment = two.new.open(PATH, LOG, 0)
    segment.delete()
    two.bucket.objects.put(part_key(segment.path, 0, FIRST), b"0123456789", {})
    two.counts(None)
    third = two.bucket.process()
    third.open(PATH, LOG, 0).write(0, b"anew")
    two.bucket.objects.put(part_key(segment.path, 0, FIRST), b"0123456789", {})
    assert content(two.bucket.process().open(PATH, LOG, 0)) == b"anew"


@pytest.mark.parametrize("deleted", [False, True])
def test_a_late_sealed_object_does_not_count(deleted: bool) -> None:
    two = Two()
    segment = two.new.open(PATH, LOG, 0)

    def meanwhile() -> None:
        if deleted:
            segment.delete()
        else:
            segment.write(10, b"new")

    stalls(two.old, a_sealed_object, meanwhile)
    with pytest.raises(WriterStalledError):
        two.old.open(PATH, LOG, 0).seal()
    assert segment.path in two.bucket.objects.held_keys()
    two.counts(None if deleted else b"0123456789new")


def test_a_late_sealed_object_does_not_count_however_many_writers_came_since() -> None:
    two = Two()

    def meanwhile() -> None:
        two.new.open(PATH, LOG, 0).delete()
        for _ in range(3):
            two.bucket.process().open(PATH, QUEUE, 0).delete()

    stalls(two.old, a_sealed_object, meanwhile)
    with pytest.raises(WriterStalledError):
        two.old.open(PATH, LOG, 0).seal()
    for process in (two.bucket.process(), two.bucket.process()):
        assert process.sizes() == {}
        assert content(process.open(PATH, LOG, 0)) is None
        process.open(PATH, QUEUE, 0).delete()


def test_a_late_index_file_does_not_count() -> None:
    two = Two()
    path = "broker-a/rmq_sys_INDEX/0"
    stalls(two.old, a_sealed_object, lambda: two.new.open(PATH, LOG, 0).write(10, b"new"))
    with pytest.raises(WriterStalledError):
        two.old.provider.create(two.old.open(path, INDEX, 0), [b"late"])
    assert two.bucket.process().sizes() == {(PATH, LOG, 0): 13}
    third = two.bucket.process()
    segment = third.open(path, INDEX, 0)
    assert third.provider.create(segment, [b"whole"]) == 5
    assert content(two.bucket.process().open(path, INDEX, 0)) == b"whole"


def test_whoever_is_stalled_before_it_marks_a_segment_seals_nothing() -> None:
    two = Two()
    stalls(
        two.old,
        lambda operation, key: "sealing" in key,
        lambda: two.new.open(PATH, LOG, 0).write(10, b"new"),
    )
    with pytest.raises(WriterStalledError):
        two.old.open(PATH, LOG, 0).seal()
    assert two.new.open(PATH, LOG, 0).path not in two.bucket.objects.held_keys()
    two.counts(b"0123456789new")


@pytest.mark.parametrize("call", ["write", "seal", "delete", "create"])
def test_an_older_writer_learns_of_it_at_its_next_call(call: str) -> None:
    two = Two()
    two.new.open(PATH, LOG, 0).write(10, b"new")
    segment = two.old.open(PATH, LOG, 0)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: segment.write(10, b"late"),
        "seal": segment.seal,
        "delete": segment.delete,
        "create": lambda: two.old.provider.create(two.old.open(PATH, INDEX, 0), [b"late"]),
    }
    for _ in range(2):
        with pytest.raises(WriterStalledError):
            calls[call]()
    two.counts(b"0123456789new")


def test_a_round_of_an_older_writer_fails_as_a_whole() -> None:
    two = Two()
    two.new.open(PATH, LOG, 0).write(10, b"new")
    pairs = [
        WritePair(
            log=SegmentWrite(two.old.open(f"broker-a/T/{number}", LOG, 0), 0, b"late"),
            queue=SegmentWrite(two.old.open(f"broker-a/T/{number}", QUEUE, 0), 0, b"late"),
        )
        for number in range(5)
    ]
    for future in two.old.provider.write_many(pairs):
        assert isinstance(future.exception(), WriterStalledError)
    assert two.bucket.process().sizes() == {(PATH, LOG, 0): 13}
    # no unit was put: its log never counted
    assert not [key for key in two.bucket.objects.held_keys() if f"/T/0/{QUEUE.name}/" in key]


def test_what_landed_before_the_listing_counts_though_it_was_not_acknowledged() -> None:
    two = Two()
    stalls(
        two.old,
        lambda operation, key: operation == "head" and ".epochs/" in key,
        lambda: two.new.open(PATH, LOG, 0).write(14, b"new"),
    )
    with pytest.raises(WriterStalledError):
        two.old.open(PATH, LOG, 0).write(10, b"tail")
    two.counts(b"0123456789tailnew")


def test_of_many_who_begin_at_once_each_has_an_epoch_of_its_own() -> None:
    bucket = Bucket()
    first, second = bucket.process(), bucket.process()
    stalls(
        first,
        lambda operation, key: operation == "put",
        lambda: second.open(PATH, LOG, 0).write(0, b"second"),
    )
    with pytest.raises(PositionMismatchError) as caught:
        first.open(PATH, LOG, 0).write(0, b"first")
    assert caught.value.actual == 6
    first.open(PATH, LOG, 0).write(6, b"first")
    with pytest.raises(WriterStalledError):
        second.open(PATH, LOG, 0).write(6, b"late")
    assert content(bucket.process().open(PATH, LOG, 0)) == b"secondfirst"


def test_a_writer_that_died_while_it_took_over_only_used_up_a_number() -> None:
    for operation in ("put", "list", "get"):
        two = Two()

        def die(got: str, key: str, wanted: str = operation) -> None:
            if (got == wanted and not key.startswith(".epochs/")) or key.endswith(".ends"):
                raise SimulatedCrash

        two.new.client.before = die
        with pytest.raises(SimulatedCrash):
            two.new.open(PATH, LOG, 0).write(10, b"new")
        with pytest.raises(WriterStalledError):
            two.old.open(PATH, LOG, 0).write(10, b"late")
        two.new = two.bucket.process()
        two.counts(b"0123456789late")  # it landed before anybody drew a boundary


def test_who_only_reads_claims_nothing_and_changes_nothing() -> None:
    two = Two()
    before = two.bucket.objects.held_keys()
    reader = two.bucket.process()
    assert content(reader.open(PATH, LOG, 0)) == b"0123456789"
    assert reader.sizes() == {(PATH, LOG, 0): 10}
    assert two.bucket.objects.held_keys() == before
    assert {"put", "delete"}.isdisjoint(reader.requests)
    two.old.open(PATH, LOG, 0).write(10, b"more")  # and the writer is still the writer
    assert reader.open(PATH, LOG, 0).read(10, 4) == b"more"


def test_a_reader_finds_what_was_sealed_or_deleted_meanwhile() -> None:
    two = Two()
    reader = two.bucket.process().open(PATH, LOG, 0)
    assert content(reader) == b"0123456789"
    two.old.open(PATH, LOG, 0).seal()
    assert reader.read(2, 3) == b"234"
    two.old.open(PATH, LOG, 0).delete()
    with pytest.raises(TieredStoreError):
        reader.read(2, 3)


def test_a_sealed_object_without_metadata_counts() -> None:
    """A bucket that was copied with a tool that drops it."""
    two = Two()
    segment = two.old.open(PATH, LOG, 0)
    segment.seal()
    for key in two.bucket.objects.held_keys():
        with two.bucket.objects.guard:
            data, _ = two.bucket.objects.held[key]
        two.bucket.objects.put(key, data, {})
    two.counts(b"0123456789")


def test_a_writer_that_is_overtaken_while_it_takes_over_leaves_all_as_it_is() -> None:
    def the_boundary(operation: str, key: str) -> bool:
        return operation == "put" and key.endswith(".ends")

    def the_listing(operation: str, key: str) -> bool:
        return operation == "list" and key.startswith(".parts/")

    for when in (the_listing, the_boundary):
        two = Two()
        third = two.bucket.process()

        def meanwhile(process: Process = third) -> None:
            process.open(PATH, LOG, 0).delete()
            process.open(PATH, QUEUE, 0).write(0, b"third")
            process.open(PATH, QUEUE, 0).seal()

        stalls(two.new, when, meanwhile)
        for _ in range(2):
            with pytest.raises(WriterStalledError):
                two.new.open(PATH, LOG, 0).write(10, b"late")
        key = part_key(two.old.open(PATH, LOG, 0).path, 0, 1)
        two.bucket.objects.put(key, b"0123456789", {})  # sent twice, and landed late
        third.open(PATH, QUEUE, 5).write(0, b"on")
        for process in (two.bucket.process(), two.bucket.process()):
            assert process.sizes() == {(PATH, QUEUE, 0): 5, (PATH, QUEUE, 5): 2}
            process.open(PATH, QUEUE, 9).delete()
