"""Two writers: late work of the older one counts for nobody, and it finds out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from tests.providers.object_kit import PATH, SECOND, Bucket, Process
from tests.providers.two_writers import (
    Two,
    a_look,
    a_sealed_object,
    an_entry,
    content,
    stalls,
)
from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import FencedError, PositionMismatchError, SegmentNotFoundError
from tieredstore.model.values import SegmentType
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.testing.memory_objects import MemoryObjects

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
BROKER = "broker-a"


def test_a_late_entry_does_not_count() -> None:
    two = Two()
    two.stalled(lambda new: new.open(PATH, LOG, 0).write(10, b"new"))
    two.counts(b"0123456789new")


def test_nor_where_nobody_went_on_with_the_segment() -> None:
    two = Two()
    two.stalled(lambda new: new.open("broker-a/TopicTest/1", LOG, 0).write(0, b"other"))
    two.counts(b"0123456789")


def test_nor_where_the_newer_one_has_only_claimed() -> None:
    two = Two()
    two.stalled(lambda new: new.provider.claim(BROKER))
    two.counts(b"0123456789")


def test_a_late_entry_does_not_bring_a_deleted_segment_back() -> None:
    two = Two()
    two.stalled(lambda new: new.open(PATH, LOG, 0).delete())
    two.counts(None)


def test_a_late_entry_does_not_count_in_a_segment_made_anew() -> None:
    two = Two()

    def anew(new: Process) -> None:
        segment = new.open(PATH, LOG, 0)
        segment.delete()
        segment.write(0, b"ABCDE")
        segment.write(5, b"FGHIJ")

    two.stalled(anew)
    two.counts(b"ABCDEFGHIJ")


def test_a_first_entry_that_comes_late_makes_no_segment() -> None:
    bucket = Bucket()
    old, new = bucket.process(), bucket.process()
    old.open(PATH, QUEUE, 0).write(0, b"x")
    stalls(old, an_entry, lambda: new.open(PATH, QUEUE, 0).write(1, b"y"))
    with pytest.raises(FencedError):
        old.open(PATH, LOG, 0).write(0, b"late")
    assert bucket.process().sizes() == {(PATH, QUEUE, 0): 2}
    new.open(PATH, LOG, 0).write(0, b"mine")
    assert content(bucket.process().open(PATH, LOG, 0)) == b"mine"


def landed_again(objects: MemoryObjects, requests: dict[str, bytes]) -> None:
    """Repeat every put: its key is taken, or it lands where nobody looks."""
    for key, data in requests.items():
        with suppress(ObjectExistsError):
            objects.put(key, data, {}, if_absent=True)


def test_the_double_of_an_old_request_changes_nothing_however_late() -> None:
    """The second copy lands days after the first was acknowledged and its object was deleted."""
    bucket, runtime = Bucket(), Runtime.inline()
    process = bucket.process(runtime=runtime)
    segment = process.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    segment.seal()
    process.provider.create(process.open(PATH, INDEX, 0), [b"index"])
    requests = {key: data for key, (data, _) in bucket.objects.held.items()}
    segment.delete()
    process.open(PATH, INDEX, 0).delete()
    assert isinstance(runtime.clock, ManualClock)
    for number in range(800):
        process.open(PATH, QUEUE, 0).write(number, b"q")
        runtime.clock.advance(60_000)
        while process.provider.tend(BROKER):
            pass
    assert set(requests) - set(bucket.objects.held_keys())  # some have been released
    landed_again(bucket.objects, requests)
    for each in (process, bucket.process(), bucket.process()):
        assert each.sizes() == {(PATH, QUEUE, 0): 800}
        assert content(each.open(PATH, LOG, 0)) is None
    anew = bucket.process()
    segment = anew.open(PATH, LOG, 0)
    segment.write(0, b"another")
    segment.seal()
    landed_again(bucket.objects, requests)
    for each in (anew, bucket.process()):
        assert content(each.open(PATH, LOG, 0)) == b"another"


def test_the_double_of_a_delete_spares_a_segment_of_the_same_name() -> None:
    bucket, runtime = Bucket(), Runtime.inline()
    process = bucket.process(runtime=runtime)
    segment = process.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    segment.seal()
    key = segment.path
    assert key in bucket.objects.held
    segment.delete()
    assert isinstance(runtime.clock, ManualClock)
    for _ in range(3):
        runtime.clock.advance(3_600_000)
        while process.provider.tend(BROKER):
            pass
    assert key not in bucket.objects.held  # a delete was sent
    runtime.clock.advance(29 * 86_400_000)
    segment = process.open(PATH, LOG, 0)
    assert segment.path == key
    segment.write(0, b"another")
    segment.seal()
    process.client.delete_many([key])  # the same delete lands again
    for each in (process, bucket.process()):
        assert content(each.open(PATH, LOG, 0)) == b"another"


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
    with pytest.raises(FencedError):
        two.old.open(PATH, LOG, 0).seal()
    assert segment.path in two.bucket.objects.held_keys()
    two.counts(None if deleted else b"0123456789new")


def test_a_late_index_file_does_not_count() -> None:
    two = Two()
    path = "broker-a/rmq_sys_INDEX/0"
    stalls(two.old, a_sealed_object, lambda: two.new.open(PATH, LOG, 0).write(10, b"new"))
    with pytest.raises(FencedError):
        two.old.provider.create(two.old.open(path, INDEX, 0), [b"late"])
    assert two.bucket.process().sizes() == {(PATH, LOG, 0): 13}
    third = two.bucket.process()
    segment = third.open(path, INDEX, 0)
    assert third.provider.create(segment, [b"whole"]) == 5
    assert content(two.bucket.process().open(path, INDEX, 0)) == b"whole"


@pytest.mark.parametrize("call", ["write", "seal", "delete", "create", "round"])
def test_an_older_writer_learns_of_it_at_its_next_call(call: str) -> None:
    two = Two()
    two.new.open(PATH, LOG, 0).write(10, b"new")

    def send() -> None:
        pair = WritePair(SegmentWrite(two.old.open(PATH, LOG, 0), 10, b"late"), None)
        (future,) = two.old.provider.write_many([pair])
        future.result()

    calls: dict[str, Callable[[], object]] = {
        "write": lambda: two.old.open(PATH, LOG, 0).write(10, b"late"),
        "seal": lambda: two.old.open(PATH, LOG, 0).seal(),
        "delete": lambda: two.old.open(PATH, LOG, 0).delete(),
        "create": lambda: two.old.provider.create(two.old.open(PATH, INDEX, 0), [b"late"]),
        "round": send,
    }
    assert two.old.provider.fence(BROKER) is None
    with pytest.raises(FencedError):
        calls[call]()
    fence = two.old.provider.fence(BROKER)
    assert fence is not None
    assert fence.epoch == SECOND
    calls["claim"] = lambda: two.old.provider.claim(BROKER)
    for again in calls.values():
        with pytest.raises(FencedError):
            again()
    two.counts(b"0123456789new")


def test_a_fenced_writer_asks_nobody_any_more() -> None:
    two = Two()
    two.new.provider.claim(BROKER)
    with pytest.raises(FencedError):
        two.old.open(PATH, LOG, 0).write(10, b"late")
    two.old.forget_requests()
    with pytest.raises(FencedError):
        two.old.open(PATH, LOG, 0).write(10, b"late")
    assert not two.old.provider.tend(BROKER)
    assert two.old.requests == {}


def test_a_fenced_writer_reads_nothing_of_the_winner() -> None:
    two = Two()
    segment = two.old.open(PATH, LOG, 0)
    two.new.open(PATH, LOG, 0).write(10, b"new")
    with pytest.raises(FencedError):
        segment.write(10, b"late")
    assert segment.read(0, 10) == b"0123456789"
    for wrong in (segment.size, lambda: segment.read(10, 3)):
        with pytest.raises((FencedError, LookupError, ValueError)):
            wrong()


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
        assert isinstance(future.exception(), FencedError)
    assert two.bucket.process().sizes() == {(PATH, LOG, 0): 13}


def test_what_landed_before_the_newer_one_read_counts_though_it_was_not_acknowledged() -> None:
    two = Two()
    stalls(two.old, a_look, lambda: two.new.open(PATH, LOG, 0).write(14, b"new"))
    with pytest.raises(FencedError):
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
    with pytest.raises(FencedError):
        second.open(PATH, LOG, 0).write(6, b"late")
    assert content(bucket.process().open(PATH, LOG, 0)) == b"secondfirst"


def is_like(when: tuple[str, str], operation: str, key: str) -> bool:
    is_of_log = key.startswith(".rounds/") and (key.endswith(when[1]) or f"{when[1]}0" in key)
    return operation == when[0] and is_of_log


@pytest.mark.parametrize("when", [("put", "/log/"), ("list", "/broker-a/")])
def test_a_writer_that_died_while_it_took_over_has_fenced_the_older_one(
    when: tuple[str, str],
) -> None:
    two = Two()
    is_claimed = False

    def die(operation: str, key: str) -> None:
        nonlocal is_claimed
        if is_claimed and is_like(when, operation, key):
            raise SimulatedCrash
        is_claimed = is_claimed or (operation == "put" and "/epoch/" in key)

    two.new.client.before = die
    with pytest.raises(SimulatedCrash):
        two.new.provider.claim(BROKER)
    with pytest.raises(FencedError):
        two.old.open(PATH, LOG, 0).write(10, b"late")
    two.new = two.bucket.process()
    found = content(two.new.open(PATH, LOG, 0))
    assert found in (b"0123456789", b"0123456789late")  # it landed before the new epoch began
    two.counts(found)


def test_who_only_reads_claims_nothing_and_changes_nothing() -> None:
    two = Two()
    before = two.bucket.objects.held_keys()
    reader = two.bucket.process()
    assert content(reader.open(PATH, LOG, 0)) == b"0123456789"
    assert reader.sizes() == {(PATH, LOG, 0): 10}
    assert list(reader.provider.leftovers(BROKER)) == []
    assert list(reader.provider.damage(BROKER)) == []
    assert two.bucket.objects.held_keys() == before
    assert {"put", "delete"}.isdisjoint(reader.requests)
    two.old.open(PATH, LOG, 0).write(10, b"more")  # the writer is not fenced
    assert reader.open(PATH, LOG, 0).read(10, 4) == b"more"


def test_a_reader_finds_what_was_sealed_or_deleted_meanwhile() -> None:
    bucket, runtime = Bucket(), Runtime.inline()
    writer = bucket.process(runtime=runtime)
    segment = writer.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    reader = bucket.process().open(PATH, LOG, 0)
    assert content(reader) == b"0123456789"
    segment.seal()
    assert reader.read(2, 3) == b"234"
    segment.delete()
    release(writer, runtime)
    with pytest.raises(SegmentNotFoundError):
        reader.read(2, 3)


def release(process: Process, runtime: Runtime) -> None:
    """Do background work, and let time pass, until dead objects are deleted."""
    assert isinstance(runtime.clock, ManualClock)
    other: FileSegment = process.open("broker-a/Other/0", LOG, 0)
    for number in range(800):
        other.write(number, b"o")
        if number % 8 == 0:
            runtime.clock.advance(3_600_000)
            while process.provider.tend(BROKER):
                pass


def test_a_tier_whose_objects_were_copied_without_metadata_counts() -> None:
    two = Two()
    two.old.open(PATH, LOG, 0).seal()
    for key in two.bucket.objects.held_keys():
        with two.bucket.objects.guard:
            data, _ = two.bucket.objects.held[key]
        two.bucket.objects.put(key, data, {})
    two.counts(b"0123456789")


@pytest.mark.parametrize("when", [("list", "/broker-a/"), ("put", "/epoch/"), ("put", "/log/")])
def test_a_writer_that_is_overtaken_while_it_takes_over_leaves_all_as_it_is(
    when: tuple[str, str],
) -> None:
    two = Two()
    third = two.bucket.process()

    def meanwhile() -> None:
        third.open(PATH, LOG, 0).delete()
        third.open(PATH, QUEUE, 0).write(0, b"third")
        third.open(PATH, QUEUE, 0).seal()

    stalls(
        two.new,
        lambda operation, key: is_like(when, operation, key),
        meanwhile,
    )
    is_first = when in [("list", "/broker-a/"), ("put", "/epoch/")]
    if is_first:  # it had not claimed yet, so it takes over from the third
        with pytest.raises(PositionMismatchError):
            two.new.open(PATH, LOG, 0).write(10, b"late")
    else:
        for _ in range(2):
            with pytest.raises(FencedError):
                two.new.open(PATH, LOG, 0).write(10, b"late")
        third.open(PATH, QUEUE, 5).write(0, b"on")
    expected = {(PATH, QUEUE, 0): 5}
    if not is_first:
        expected[PATH, QUEUE, 5] = 2
    for process in (two.bucket.process(), two.bucket.process()):
        assert process.sizes() == expected
        process.provider.claim(BROKER)


def test_processes_that_join_one_epoch_fill_a_tier_that_a_broker_goes_on_with() -> None:
    bucket, joined = Bucket(), Bucket(joins_epoch=True)
    joined.objects = bucket.objects
    bucket.process().open("broker-a/Other/0", LOG, 0).write(0, b"kept")
    first, second = joined.process(), joined.process()
    first.open(PATH, LOG, 5).write(0, b"open")
    for number, each in enumerate((first, second, first, second)):
        segment = each.open(f"broker-a/TopicTest/{number + 1}", LOG, 0)
        assert each.provider.create(segment, [b"whole"]) == 5
    first.open(PATH, LOG, 5).write(4, b"-more")
    second.open(PATH, QUEUE, 5).write(0, b"unit")
    broker = bucket.process()
    growing = broker.open(PATH, LOG, 5)
    broker.provider.claim(BROKER)
    assert content(growing) == b"open-more"
    growing.write(9, b"!")
    growing.seal()
    with pytest.raises(FencedError):
        second.open("broker-a/TopicTest/9", LOG, 0).write(0, b"late")
    assert bucket.process().sizes() == {
        ("broker-a/Other/0", LOG, 0): 4,
        (PATH, LOG, 5): 10,
        (PATH, QUEUE, 5): 4,
        **{(f"broker-a/TopicTest/{n}", LOG, 0): 5 for n in (1, 2, 3, 4)},
    }


def test_a_bucket_with_open_segments_of_an_older_layout_is_not_written_to() -> None:
    bucket = Bucket()
    segment = bucket.process().open(PATH, LOG, 0)
    bucket.objects.put(f".parts/{segment.path}/{0:020d}-{1:010d}", b"0123456789", {})
    before = bucket.objects.held_keys()
    with pytest.raises(Exception, match="older layout"):
        segment.write(0, b"x")
    assert bucket.objects.held_keys() == before


@pytest.mark.parametrize(
    ("epoch", "beside", "is_open"),
    [
        (3_000, (), False),
        (3_000, (f"{0:020d}-0000002000", "sealing-0000003000"), False),
        (3_000, (f"{0:020d}-0000003001",), True),  # begun again after the mark
        (2_000, (), True),  # a late mark of an overtaken writer
    ],
)
def test_a_mark_that_an_older_layout_left_behind_its_sealing_is_no_open_segment(
    epoch: int, beside: Sequence[str], is_open: bool
) -> None:
    """The mark stayed beside a sealed segment until the next claim, so the advice to seal and to
    `rebuild` did not help."""
    bucket = Bucket()
    sealed = bucket.process().open(PATH, LOG, 0)
    folder = f".parts/212d6b50_DefaultCluster/{PATH}/COMMIT_LOG/cfcd2084{0:020d}"
    for name in (*beside, f"sealed-{epoch:010d}"):
        bucket.objects.put(f"{folder}/{name}", b"", {})
    for name in ("0000002000", "0000003000", "0000003000.ends"):
        bucket.objects.put(f".epochs/212d6b50_DefaultCluster/{BROKER}/{name}", b"", {})
    if is_open:
        with pytest.raises(Exception, match="older layout"):
            sealed.write(0, b"x")
        return
    sealed.write(0, b"x")
    assert bucket.process().provider.damage(BROKER) == []
