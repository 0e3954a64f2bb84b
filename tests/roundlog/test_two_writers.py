"""Several writers and readers of one log, whose requests may be late, lost, doubled or the last."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.roundlog.small import everything_small
from tests.roundlog.world import World
from tieredstore.roundlog import log as log_module
from tieredstore.roundlog import upkeep
from tieredstore.roundlog.entry import Entry
from tieredstore.roundlog.log import BrokerLog

SCHEDULES = int(os.environ.get("ROUNDLOG_SCHEDULES", "120"))
FIRST = int(os.environ.get("ROUNDLOG_FIRST", "0"))


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    log_module.log.disabled = upkeep.log.disabled = True
    with everything_small():
        yield
    log_module.log.disabled = upkeep.log.disabled = False


def run(count: int, log: type[BrokerLog] = BrokerLog) -> None:
    """Run schedules; raises AssertionError with the first one that shows a violation."""
    for seed in range(FIRST, FIRST + count):
        world = World(seed, log=log)
        try:
            world.run()
        except Exception as error:
            story = "\n".join(world.trace)
            raise AssertionError(f"seed {seed}: {error}\n{story}") from error


def test_whatever_happens_to_requests_nothing_acknowledged_is_lost() -> None:
    run(SCHEDULES)


@pytest.mark.torture
def test_nor_in_a_hundred_thousand_schedules() -> None:
    run(100_000)


# The same schedules find each of these faults.


class NoLook(BrokerLog):
    """Acknowledges as soon as its entry is written."""

    def _look(self) -> None:
        pass


class BeginsFirst(BrokerLog):
    """Claims its epoch only after it has begun it."""

    def _claimed_after(self, epoch: int) -> int:
        return epoch + 1

    def _begin(self) -> None:
        super()._begin()
        assert self._epoch is not None
        self._put_claim(self._epoch)


class MeetsAnybody(BrokerLog):
    """Continues after entries of a later epoch as after those of an earlier one."""

    def _refuse_overtaken(self, epoch: int) -> None:
        pass

    def _meet(self, found: Entry) -> None:
        self._fold(found, 0)


@pytest.mark.parametrize("log", [NoLook, BeginsFirst, MeetsAnybody])
def test_a_protocol_with_a_step_less_is_seen_to_lose(log: type[BrokerLog]) -> None:
    with pytest.raises(AssertionError, match="seed"):
        run(SCHEDULES, log)
