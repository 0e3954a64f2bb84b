"""The same as `test_tier_crashes` over an object store: the process dies at any of its requests.

Each life has a client and a provider of its own; whoever looks afterwards has too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.test_tier_crashes import CRASHES, Step, live, steps_of
from tests.access.tier_lives import Lives
from tests.providers.object_kit import FAILURES, StruckClient
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

STEPS_MIN, STEPS_MAX = 700, 1_600
SAMPLE = 53  # a prime: every kind of request is met


def new_lives(folder: Path, *, failing: Faults | None = None) -> Lives:
    """`failing` strikes requests alone, each of which is then tried again."""
    objects = MemoryObjects()

    def process(runtime: Runtime, faults: Faults) -> SegmentProvider:
        client = StruckClient(MemoryObjectClient(objects), failing or faults)
        retry = RetryPolicy(retries_max=3 if failing else 0)
        # Few parts, so that segments are full and sealed; a listing is never believed.
        return ObjectProvider(client, "c", runtime, parts_max=3, listing_ms=0, retry=retry)

    return Lives(folder, processes=process)


def steps_with_sealing(lives: Lives) -> list[Step]:
    """Before anything expires, what has rolled is sealed."""

    def seal() -> None:  # of whichever process runs by then
        lives.store._loaded().sealing.step()

    steps: list[Step] = []
    for step in steps_of(lives):
        if step == lives.expire:
            steps.append(seal)
        steps.append(step)
    return steps


def crash(lives: Lives, *faults: Faults) -> None:
    """A life for each, ended by it where it strikes, and one more without."""
    steps = steps_with_sealing(lives)
    for fault in faults:
        if live(lives, steps, fault):
            break
        lives.check()
    assert live(lives, steps)
    lives.check_whole()


def test_there_are_as_many_requests_as_are_tried(tmp_path: Path) -> None:
    lives, faults = new_lives(tmp_path), Faults()
    assert live(lives, steps_with_sealing(lives), faults)
    assert STEPS_MIN < faults.steps < STEPS_MAX


@pytest.mark.parametrize("fault", CRASHES)
def test_after_a_crash_at_a_request_the_tier_is_whole(tmp_path: Path, fault: Fault) -> None:
    for step in range(CRASHES.index(fault) * 7, STEPS_MAX, SAMPLE):
        crash(new_lives(tmp_path), Faults({step: fault}))


def test_nor_does_a_second_crash_in_the_next_life_hurt(tmp_path: Path) -> None:
    for step in range(0, STEPS_MAX, 5 * SAMPLE):
        for again in (1, 4, 9, 23):
            first, second = Faults({step: CRASHES[0]}), Faults({again: Fault.CRASH_AFTER})
            crash(new_lives(tmp_path), first, second)


@pytest.mark.parametrize("fault", FAILURES)
def test_a_request_that_fails_is_sent_again_and_nobody_notices(
    tmp_path: Path, fault: Fault
) -> None:
    every_fifth = Faults(dict.fromkeys(range(3, 8 * STEPS_MAX, 5), fault))
    lives = new_lives(tmp_path, failing=every_fifth)
    assert live(lives, steps_with_sealing(lives), Faults())
    lives.open()
    lives.check_whole()
    assert every_fifth.steps < 8 * STEPS_MAX


@pytest.mark.torture
@pytest.mark.parametrize("fault", CRASHES)
@pytest.mark.parametrize("part", range(8))
def test_nor_does_a_crash_at_any_request(tmp_path: Path, fault: Fault, part: int) -> None:
    for step in range(part, STEPS_MAX, 8):
        crash(new_lives(tmp_path), Faults({step: fault}))
