"""The same as `test_tier_crashes` over an object store: the process dies at any of its requests.

Each life has a client and a provider of its own; whoever looks afterwards has too. Over HTTP the
scenario is shorter: what expires and the topic that is deleted are still in it.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.access.test_tier_crashes import CRASHES, ROUNDS, Step, live, steps_of
from tests.access.tier_lives import Lives
from tests.crash_stores import Stores
from tests.every_step import every_step
from tests.providers.object_kit import FAILURES, StruckClient
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Fault, Faults

SAMPLE = 53  # a prime: every kind of request is met
REMOTE_ROUNDS = 4


def rounds_on(stores: Stores) -> int:
    return REMOTE_ROUNDS if stores.is_remote else ROUNDS


def requests_of_a_quiet_life(folder: Path, stores: Stores) -> int:
    """Counted in memory: a client makes as many, and there it takes no time."""
    lives, faults = new_lives(folder, Stores("memory")), Faults()
    assert live(lives, steps_with_sealing(lives, stores), faults)
    return faults.steps


def new_lives(folder: Path, stores: Stores, *, failing: Faults | None = None) -> Lives:
    """`failing` strikes requests alone, each of which is then tried again."""
    clients = stores.new()

    def process(runtime: Runtime, faults: Faults) -> SegmentProvider:
        client = StruckClient(clients(), failing or faults)
        retry = RetryPolicy(retries_max=3 if failing else 0)
        # Few parts, so that segments are full and sealed; a listing is never believed.
        return ObjectProvider(client, "c", runtime, parts_max=3, listing_ms=0, retry=retry)

    return Lives(folder, processes=process)


def steps_with_sealing(lives: Lives, stores: Stores) -> list[Step]:
    """Before anything expires, what has rolled is sealed."""

    def seal() -> None:  # of whichever process runs by then
        lives.store._loaded().sealing.step()

    steps: list[Step] = []
    for step in steps_of(lives, rounds=rounds_on(stores)):
        if step == lives.expire:
            steps.append(seal)
        steps.append(step)
    return steps


def crash(folder: Path, stores: Stores, *faults: Faults) -> None:
    """A life for each, ended by it where it strikes, and one more without."""
    lives = new_lives(folder, stores)
    steps = steps_with_sealing(lives, stores)
    for fault in faults:
        if live(lives, steps, fault):
            break
        lives.check()
    assert live(lives, steps)
    lives.check_whole()


def test_each_client_has_as_many_requests_as_are_tried(tmp_path: Path, stores: Stores) -> None:
    lives, faults = new_lives(tmp_path / "here", stores), Faults()
    assert live(lives, steps_with_sealing(lives, stores), faults)
    assert faults.steps == requests_of_a_quiet_life(tmp_path / "in memory", stores) > 300


@pytest.mark.parametrize("fault", CRASHES)
def test_after_a_crash_at_a_request_the_tier_is_whole(
    tmp_path: Path, stores: Stores, fault: Fault
) -> None:
    requests = range(requests_of_a_quiet_life(tmp_path, stores))
    if not stores.is_remote:
        requests = requests[CRASHES.index(fault) * 7 :: SAMPLE]
    every_step(
        lambda step: crash(tmp_path, stores, Faults({step: fault})),
        steps=stores.sample(
            requests, over_http=3, at_length=27, share=(CRASHES.index(fault), len(CRASHES))
        ),
    )


def test_nor_does_a_second_crash_in_the_next_life_hurt(tmp_path: Path, stores: Stores) -> None:
    requests = range(requests_of_a_quiet_life(tmp_path, stores))
    pairs = list(itertools.product(requests[:: 5 * SAMPLE], (1, 4, 9, 23)))
    for tried in stores.sample(range(1, len(pairs)), over_http=1, at_length=4):
        step, again = pairs[tried]
        first, second = Faults({step: CRASHES[0]}), Faults({again: Fault.CRASH_AFTER})
        crash(tmp_path, stores, first, second)


def test_a_request_that_fails_is_sent_again_and_nobody_notices(
    tmp_path: Path, stores: Stores
) -> None:
    """Every fifth request fails, in each of the three ways in turn; in memory each of them in
    each way."""
    requests_max = 8 * requests_of_a_quiet_life(tmp_path / "quiet", stores)
    for first in range(1 if stores.is_remote else len(FAILURES)):
        ways = itertools.cycle([*FAILURES[first:], *FAILURES[:first]])
        failing = Faults(dict(zip(range(3, requests_max, 5), ways, strict=False)))
        lives = new_lives(tmp_path, stores, failing=failing)
        assert live(lives, steps_with_sealing(lives, stores), Faults())
        lives.open()
        lives.check_whole()
        assert failing.steps < requests_max


@pytest.mark.torture
@pytest.mark.parametrize("stores", ["memory"], indirect=True)  # the first test does it over HTTP
@pytest.mark.parametrize("fault", CRASHES)
def test_nor_does_a_crash_at_any_request(tmp_path: Path, stores: Stores, fault: Fault) -> None:
    every_step(
        lambda step: crash(tmp_path, stores, Faults({step: fault})),
        steps=range(requests_of_a_quiet_life(tmp_path, stores)),
    )
