"""Deletes that an older writer sent, and that land late: nothing that counts goes with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.every_step import every_step
from tests.providers.object_kit import FIRST, PATH, Bucket, Process
from tests.providers.two_writers import Two, a_sealed_object, content, stalls
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.model.errors import BackendUnavailableError, TieredStoreError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_layout import Mark, mark_key
from tieredstore.providers.writer_epoch import WriterStalledError
from tieredstore.testing.faults import Fault

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
INDEX_PATH = "broker-a/rmq_sys_INDEX/0"
DAY_MS = 24 * 3_600_000


class Held:
    """Every delete of a process is on its way until `land`."""

    def __init__(self, process: Process) -> None:
        self._client = process.client
        self._sent: list[list[str]] = []
        self._deletes: Callable[..., Mapping[str, TieredStoreError]] = process.client.delete_many
        process.client.delete_many = self._hold  # type: ignore[method-assign]

    def _hold(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        self._sent.append(list(keys))
        raise BackendUnavailableError(keys[0], "delete", "no answer")

    def land(self) -> None:
        assert self._sent
        for keys in self._sent:
            self._deletes(keys)


def anew(new: Process) -> None:
    segment = new.open(PATH, LOG, 0)
    segment.delete()
    segment.write(0, b"ABCDE")
    segment.write(5, b"FGHIJ")


def anew_and_sealed(new: Process) -> None:
    anew(new)
    new.open(PATH, LOG, 0).seal()


def nothing(new: Process) -> None:
    new.open("broker-a/Other/0", QUEUE, 0).write(0, b"x")


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [(nothing, None), (anew, b"ABCDEFGHIJ"), (anew_and_sealed, b"ABCDEFGHIJ")],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_late_delete_takes_nothing_of_what_counts(
    sealed: bool, meanwhile: Callable[[Process], None], expected: bytes | None
) -> None:
    two = Two()
    segment = two.old.open(PATH, LOG, 0)
    if sealed:
        segment.seal()
    held = Held(two.old)
    with pytest.raises(BackendUnavailableError):
        segment.delete()
    meanwhile(two.new)
    two.counts(expected)
    held.land()
    two.counts(expected)


def test_what_a_newer_writer_reads_does_not_vanish_under_it() -> None:
    two = Two()
    held = Held(two.old)
    with pytest.raises(BackendUnavailableError):
        two.old.open(PATH, LOG, 0).delete()
    anew_and_sealed(two.new)
    segment = two.new.open(PATH, LOG, 0)
    reader = two.bucket.process().open(PATH, LOG, 0)
    assert segment.read(0, 10) == reader.read(0, 10) == b"ABCDEFGHIJ"
    held.land()
    assert segment.path not in two.bucket.objects.held_keys()
    assert segment.read(0, 10) == reader.read(0, 10) == b"ABCDEFGHIJ"
    assert segment.wants_seal
    segment.seal()
    assert segment.path in two.bucket.objects.held_keys()


def test_a_delete_that_is_stalled_before_its_note_counts_is_not_sent() -> None:
    two = Two()
    for when in ("put", "head"):
        two = Two()
        segment = two.old.open(PATH, LOG, 0)
        key = mark_key(segment.path, Mark.DELETING, FIRST)

        def is_it(operation: str, got: str, wanted: str = when, mark: str = key) -> bool:
            return operation == wanted and (got == mark or wanted == "head")

        stalls(two.old, is_it, lambda: None)
        deletes = two.old.requests.get("delete", 0)
        new = two.new
        stalls(two.old, is_it, lambda new=new: new.open(PATH, QUEUE, 0).write(0, b"x"))  # type: ignore[misc]
        with pytest.raises(WriterStalledError):
            segment.delete()
        assert two.old.requests.get("delete", 0) == deletes
        # A note that was there before the listing counts, as a part would: nobody was told.
        two.counts(b"0123456789" if when == "put" else None)


def test_a_note_that_lands_late_dooms_nothing_for_any_later_writer() -> None:
    two = Two()
    segment = two.old.open(PATH, LOG, 0)
    stalls(
        two.old,
        lambda operation, key: operation == "put" and "deleting-" in key,
        lambda: two.new.open(PATH, LOG, 0).write(10, b"new"),
    )
    with pytest.raises(WriterStalledError):
        segment.delete()
    assert mark_key(segment.path, Mark.DELETING, FIRST) in two.bucket.objects.held_keys()
    two.counts(b"0123456789new")
    assert mark_key(segment.path, Mark.DELETING, FIRST) not in two.bucket.objects.held_keys()


def test_a_late_note_of_a_deletion_that_is_over_takes_nothing() -> None:
    """The older writer is stalled between its delete and the note that keeps late parts away."""
    bucket = Bucket()
    first, second, third = (bucket.process() for _ in range(3))
    first.open(PATH, LOG, 0).write(0, b"0123456789")
    second.open(PATH, QUEUE, 0).write(0, b"x")

    def meanwhile() -> None:
        third.open(PATH, LOG, 0).write(0, b"third")

    stalls(second, lambda operation, key: operation == "put" and "gone-" in key, meanwhile)
    second.open(PATH, LOG, 0).delete()
    for process in (third, bucket.process(), bucket.process()):
        assert content(process.open(PATH, LOG, 0)) == b"third"
        bucket.process().open(PATH, QUEUE, 5).delete()


def test_a_late_delete_of_a_late_object_takes_no_sealed_one() -> None:
    """A sealing clears the way of an older writer's object; that delete itself comes late."""
    bucket = Bucket()
    first, second, third = (bucket.process() for _ in range(3))
    segment = first.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    stalls(first, a_sealed_object, lambda: second.open(PATH, LOG, 0).write(10, b"new"))
    with pytest.raises(WriterStalledError):
        segment.seal()
    held = Held(second)
    with pytest.raises(BackendUnavailableError):
        second.open(PATH, LOG, 0).seal()
    third.open(PATH, LOG, 0).seal()
    assert content(third.open(PATH, LOG, 0)) == b"0123456789new"
    held.land()
    for process in (third, bucket.process(), bucket.process()):
        assert content(process.open(PATH, LOG, 0)) == b"0123456789new"
        assert process.sizes() == {(PATH, LOG, 0): 13}


def test_late_deletes_of_a_sealing_that_was_done_take_nothing() -> None:
    two = Two()
    held = Held(two.old)
    with pytest.raises(BackendUnavailableError):
        two.old.open(PATH, LOG, 0).seal()
    anew(two.new)
    held.land()
    two.counts(b"ABCDEFGHIJ")


def test_a_late_delete_takes_no_index_file() -> None:
    two = Two()
    index = two.old.open(INDEX_PATH, INDEX, 0)
    two.old.provider.create(index, [b"older"])
    held = Held(two.old)
    with pytest.raises(BackendUnavailableError):
        index.delete()
    again = two.new.open(INDEX_PATH, INDEX, 0)
    assert two.new.provider.create(again, [b"new", b"er"]) == 5
    assert again.path in two.bucket.objects.held_keys()
    held.land()
    for process in (two.new, two.bucket.process()):
        assert content(process.open(INDEX_PATH, INDEX, 0)) == b"newer"
    assert two.bucket.process().sizes()[INDEX_PATH, INDEX, 0] == 5


def test_the_second_copy_goes_when_no_delete_can_be_under_way_any_more() -> None:
    two = Two()
    held = Held(two.old)
    with pytest.raises(BackendUnavailableError):
        two.old.open(PATH, LOG, 0).delete()
    anew_and_sealed(two.new)
    parts = f".parts/{two.new.open(PATH, LOG, 0).path}/0"
    assert two.bucket.objects.held_keys(parts)
    assert not two.new.open(PATH, LOG, 0).wants_seal
    for days, kept in ((20, True), (11, False)):
        runtime = Runtime.inline()
        clock = runtime.clock
        assert isinstance(clock, ManualClock)
        clock.advance((days if kept else 31) * DAY_MS)
        process = two.bucket.process(runtime=runtime)
        process.open("broker-a/Other/0", QUEUE, 0).write(0, b"x")
        process.open("broker-a/Other/0", QUEUE, 0).delete()
        segment = process.open(PATH, LOG, 0)
        if segment.wants_seal:
            segment.seal()
        assert bool(two.bucket.objects.held_keys(parts)) is kept
        assert content(segment) == b"ABCDEFGHIJ"
    del held


def test_what_is_deleted_leaves_nothing_behind() -> None:
    bucket = Bucket()
    process = bucket.process()
    for sealed in (False, True):
        segment = process.open(PATH, LOG, 0)
        segment.write(0, b"0123456789")
        if sealed:
            segment.seal()
        process.forget_requests()
        segment.delete()
        assert process.requests == {"put": 1, "head": 1, "delete": 2}
        assert [key for key in bucket.objects.held_keys() if not key.startswith(".epochs/")] == []


def test_a_deletion_that_failed_half_way_is_ended_before_the_name_is_used_again() -> None:
    def delete(step: int) -> bool:
        bucket = Bucket()
        process = bucket.process()
        segment = process.open(PATH, LOG, 0)
        segment.write(0, b"0123456789")
        faults = process.client.faults
        before = faults.steps
        faults.strike(Fault.AFTER, after=step)
        with suppress(BackendUnavailableError):
            segment.delete()
        came_to_the_step = faults.steps > before + step
        again: Any = process.open(PATH, LOG, 0)
        try:
            again.write(0, b"anew")
        except TieredStoreError:
            again.delete()
            again.write(0, b"anew")
        bucket.process().open(PATH, QUEUE, 0).write(0, b"x")
        assert content(bucket.process().open(PATH, LOG, 0)) == b"anew"
        return came_to_the_step

    assert every_step(delete) >= 3


def test_a_round_ends_a_deletion_that_was_begun_without_waiting_for_itself() -> None:
    """The queue's write begins when the look of the log's is told of, in one thread."""
    process = Bucket().process()
    log, queue = process.open(PATH, LOG, 0), process.open(PATH, QUEUE, 0)
    queue.write(0, b"before")
    stalls(
        process,
        lambda operation, key: operation == "put" and "deleting-" in key,
        lambda: process.client.faults.strike(Fault.BEFORE, after=1),
    )
    with pytest.raises(BackendUnavailableError):
        queue.delete()
    pair = WritePair(log=SegmentWrite(log, 0, b"log"), queue=SegmentWrite(queue, 0, b"anew"))
    process.provider.write_many([pair])[0].result(timeout=240)
    assert content(queue) == b"anew"
