"""Crashes and failures in the middle of an expiry."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.every_step import every_step
from tests.flat.expiring import a_tier, check_sound, live, timed
from tests.flat.tiers import OneQueue, fill
from tieredstore.access.upkeep import expire
from tieredstore.flat import append_file
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import MetadataError
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.samples import STORE_TIMESTAMP


def test_a_delete_that_fails_is_noted_and_not_tried_again_at_once() -> None:
    tier = a_tier()
    file = tier.open()
    deletes = Faults()
    tier.provider.faults = deletes
    deletes.always = Fault.BEFORE
    result = expire(file, STORE_TIMESTAMP + 15)
    assert len(result.undeleted) == result.segment_count > 2
    assert deletes.steps == 2  # the first of either file: the backend cannot be reached
    assert live(file) == list(range(file.min_offset, 30))
    assert len(tier.metadata.notes(append_file.DELETION_NOTE)) == result.segment_count
    assert expire(file, STORE_TIMESTAMP + 15).segment_count == 0
    assert deletes.steps == 2
    assert append_file.delete_pending(tier.provider, tier.metadata) == result.segment_count
    deletes.always = None
    assert append_file.delete_pending(tier.provider, tier.metadata) == 0
    check_sound(tier)


def expired(before: int, step: int, fault: Fault) -> tuple[OneQueue, FlatMessageFile, Faults]:
    """An expiry that the fault strikes; the tier has no other faults afterwards."""
    tier, faults = a_tier(), Faults({step: fault})
    file = tier.open()
    tier.fail(faults)
    with suppress(SimulatedCrash, MetadataError):  # or the catalogue refused
        expire(file, STORE_TIMESTAMP + before)
    tier.fail(Faults())
    return tier, file, faults


@pytest.mark.parametrize("before", [15, 1000])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_crash_at_any_step_leaves_nothing_dangling_and_what_is_doomed_goes(
    before: int, fault: Fault
) -> None:
    counted = a_tier()
    expire(counted.open(), STORE_TIMESTAMP + before)
    expected = live(counted.open())

    def check(left: tuple[OneQueue, FlatMessageFile, Faults], step: int) -> bool:
        tier, _, faults = left
        for row in tier.metadata.segments():
            assert len(tier.provider.held.get((row.type, row.base_offset), b"")) == row.size
        opened = tier.open()
        assert live(opened) == list(range(opened.min_offset, 30))
        assert opened.append_offset == 30
        assert append_file.delete_pending(tier.provider, tier.metadata) == 0
        check_sound(tier)
        expire(opened, STORE_TIMESTAMP + before)
        assert live(opened) == expected
        check_sound(tier)
        fill(opened, timed(30, [STORE_TIMESTAMP + 2000]))
        assert live(tier.open()) == [*expected, 30]
        return faults.crashed

    assert every_step(lambda step: expired(before, step, fault), check) > 10


@pytest.mark.parametrize("before", [15, 1000])
def test_a_failure_at_any_step_leaves_a_queue_that_goes_on(before: int) -> None:
    counted = a_tier()
    expire(counted.open(), STORE_TIMESTAMP + before)
    expected = live(counted.open())

    def check(left: tuple[OneQueue, FlatMessageFile, Faults], step: int) -> bool:
        tier, file, faults = left
        assert live(file) == list(range(file.min_offset, 30))
        expire(file, STORE_TIMESTAMP + before)
        assert append_file.delete_pending(tier.provider, tier.metadata) == 0
        assert live(file) == live(tier.open()) == expected
        check_sound(tier)
        fill(file, timed(30, [STORE_TIMESTAMP + 2000]))
        assert live(tier.open()) == [*expected, 30]
        return faults.steps > step

    every_step(lambda step: expired(before, step, Fault.BEFORE), check)
