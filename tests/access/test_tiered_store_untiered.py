"""Reads that the tier has nothing to say about: the next store's answers stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.tiered_kit import Broker, time_of
from tieredstore.model.values import Boundary, GetStatus
from tieredstore.testing.samples import TOPIC


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    broker.open()
    yield broker
    broker.faults.always = None
    broker.store.shutdown()


@pytest.mark.parametrize("offset", [-5, -1])
def test_a_tier_that_has_nothing_of_a_queue_yet_is_not_asked_for_it(
    broker: Broker, offset: int
) -> None:
    broker.tier.files.create(TOPIC, 0).start_at(0)
    broker.put(20)
    own = broker.local.get_message(TOPIC, 0, offset)
    assert own.status is GetStatus.OFFSET_TOO_SMALL
    assert broker.store.get_message(TOPIC, 0, offset) == own
    assert broker.store.get_message_future(TOPIC, 0, offset).result() == own


def test_a_tier_that_begins_late_and_has_nothing_yet_leaves_reads_to_the_next_store(
    broker: Broker,
) -> None:
    broker.put(20)
    broker.local.kept_from = broker.local.cached_from = 5
    broker.tier.files.create(TOPIC, 0).start_at(8)
    result = broker.store.get_message(TOPIC, 0, 2)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 5)


def test_a_store_that_has_all_of_a_queue_needs_no_tier_for_its_first_time(broker: Broker) -> None:
    broker.fill(10)
    broker.cut()
    assert broker.store.offset_by_time(TOPIC, 0, time_of(0)) == 0
    assert broker.store.offset_by_time(TOPIC, 0, time_of(0), Boundary.UPPER) == 0
