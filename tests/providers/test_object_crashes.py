"""A process dies or fails at any request: the next one goes on with all that was acknowledged."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.crash_stores import Stores
from tests.every_step import every_step
from tests.providers.object_kit import CRASHES, FAILURES, PATH, Bucket, Process
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import (
    BackendUnavailableError,
    PositionMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from tieredstore.model.values import SegmentType
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
INDEX_PATH = "broker-a/rmq_sys_INDEX/0"
DATA = bytes(range(200))
STEPS_MIN, STEPS_MAX = 30, 60
Key = tuple[str, SegmentType, int]


class Life:
    """What a writer does, what the store acknowledged, and what the writer asked for last."""

    def __init__(self) -> None:
        self.acknowledged: dict[Key, int] = {}
        self.deleted: set[Key] = set()
        self.doing: Key | None = None
        self.doing_delete = False

    def live(self, process: Process) -> None:
        self.write(process, (PATH, LOG, 0), 0, 50)
        self.write(process, (PATH, LOG, 0), 50, 120)
        self.write(process, (PATH, LOG, 0), 120, 200)
        self.write(process, (PATH, LOG, 200), 0, 30)
        self._on(process, (PATH, LOG, 0)).seal()
        self.write(process, (PATH, LOG, 200), 30, 60)
        self.create(process, (INDEX_PATH, INDEX, 0))
        self.delete(process, (PATH, LOG, 0))
        self._on(process, (PATH, LOG, 200)).seal()
        self.delete(process, (PATH, LOG, 200))
        self.write(process, (PATH, QUEUE, 0), 0, 20)

    def write(self, process: Process, key: Key, start: int, end: int) -> None:
        self._on(process, key).write(start, DATA[start:end])
        self.acknowledged[key] = end

    def create(self, process: Process, key: Key) -> None:
        process.provider.create(self._on(process, key), iter([DATA[:99], DATA[99:]]))
        self.acknowledged[key] = len(DATA)

    def delete(self, process: Process, key: Key) -> None:
        self.doing_delete = True
        self._on(process, key).delete()
        self.doing_delete = False
        del self.acknowledged[key]
        self.deleted.add(key)

    def _on(self, process: Process, key: Key) -> FileSegment:
        self.doing = key
        return process.open(*key)

    def check(self, process: Process) -> None:
        """Check what a new process finds."""
        for key, size in self.acknowledged.items():
            if self.doing_delete and key == self.doing:
                continue
            segment = process.open(*key)
            assert segment.size() >= size
            assert segment.read(0, segment.size()) == DATA[: segment.size()]
        for key in self.deleted:
            with pytest.raises(SegmentNotFoundError):
                process.open(*key).size()
        sizes = process.sizes()
        assert not self.deleted & sizes.keys()

    def go_on(self, process: Process) -> None:
        """Let the next process repeat or continue what the last one was doing."""
        key = self.doing
        assert key is not None
        segment = process.open(*key)
        if self.doing_delete:
            segment.delete()
            self.acknowledged.pop(key, None)
            self.deleted.add(key)
        elif key[1] is INDEX:
            with suppress(PositionMismatchError):  # the segment was complete
                process.provider.create(segment, iter([DATA]))
            assert segment.size() == len(DATA)
        else:
            try:
                end = _end(segment)
                if end < len(DATA):
                    segment.write(end, DATA[end : end + 1])
                    self.acknowledged[key] = end + 1
            except SegmentSealedError:
                assert segment.size() >= self.acknowledged[key]
            segment.seal()
            segment.seal()
            assert not segment.wants_seal
        self.doing, self.doing_delete = None, False


def _end(segment: FileSegment) -> int:
    try:
        return segment.size()
    except SegmentNotFoundError:
        return 0


def quiet_steps() -> range:
    """The requests of a life without faults: as many in memory as with any client."""
    faults, life = Faults(), Life()
    bucket = Bucket()
    life.live(bucket.process(faults))
    life.check(bucket.process())
    assert life.acknowledged.keys() == {(INDEX_PATH, INDEX, 0), (PATH, QUEUE, 0)}
    assert STEPS_MIN < faults.steps < STEPS_MAX
    return range(faults.steps)


@pytest.mark.parametrize("fault", CRASHES)
def test_nothing_acknowledged_is_lost_wherever_a_process_dies(stores: Stores, fault: Fault) -> None:
    def live(step: int) -> tuple[Bucket, Life]:
        bucket, life = Bucket(stores.new()), Life()
        with pytest.raises(SimulatedCrash):
            life.live(bucket.process(Faults({step: fault})))
        return bucket, life

    def check(left: tuple[Bucket, Life], step: int) -> None:
        bucket, life = left
        life.check(bucket.process())
        after = bucket.process()
        life.check(after)
        life.go_on(after)
        life.check(after)
        life.check(bucket.process())

    every_step(live, check, steps=stores.sample(quiet_steps(), over_http=4, at_length=14))


@pytest.mark.parametrize("fault", FAILURES)
def test_one_failure_of_any_request_is_tried_again(stores: Stores, fault: Fault) -> None:
    def live(step: int) -> None:
        bucket, life = Bucket(stores.new()), Life()
        life.live(bucket.process(Faults({step: fault}), retries=3))
        life.check(bucket.process())
        assert life.acknowledged.keys() == {(INDEX_PATH, INDEX, 0), (PATH, QUEUE, 0)}

    every_step(live, steps=stores.sample(quiet_steps(), over_http=4, at_length=14))


@pytest.mark.parametrize("fault", FAILURES)
def test_a_writer_whose_requests_fail_finds_out_where_it_is_and_goes_on(
    stores: Stores, fault: Fault
) -> None:
    """Nothing below retries: the writer sees each failure and acts as the tier does."""
    requests = range(write_to_the_end(Bucket(), Faults()))
    assert len(requests) > 5
    every_step(
        lambda step: write_to_the_end(Bucket(stores.new()), Faults({step: fault})) > step,
        steps=stores.sample(requests, over_http=4, at_length=14),
    )


def write_to_the_end(bucket: Bucket, faults: Faults) -> int:
    """Write three times 60 bytes, whatever fails; return how many requests this took."""
    process = bucket.process(faults)
    done = 0
    for number in range(3):
        end = 60 * (number + 1)
        while done < end:
            segment = process.open(PATH, LOG, 0)
            try:
                segment.write(done, DATA[done:end])
                done = end
            except BackendUnavailableError:
                done = max(done, _end(segment))
            assert _end(segment) >= done
    assert bucket.process().open(PATH, LOG, 0).read(0, 180) == DATA[:180]
    return faults.steps
