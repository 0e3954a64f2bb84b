"""Compares the estimates of `cost` with the counted requests of a run on a manual clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import Broker
from tieredstore.access.cost import MONTH_SECONDS, Load, monthly_cost
from tieredstore.access.upkeep import SEALING_MS
from tieredstore.driver.object_requests import PriceTable
from tieredstore.driver.runtime import ManualClock
from tieredstore.model.config import StoreConfig
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.memory_objects import MemoryObjectClient
from tieredstore.testing.samples import a_message

LOOK_MS = StoreConfig().dispatch_interval_ms
HOUR_LOOKS = 3_600_000 // LOOK_MS
BODY_BYTES = 100


class Steady(Broker):
    """A broker whose queues get one message a minute each, in turn. It looks at its queues as often
    as the settings say, and does all due background work at each look.

    Queues begin one after the other within `begin_looks`, so that they roll at different times.
    """

    def __init__(self, folder: Path, queues: int, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.queues = queues
        self.client = MemoryObjectClient()
        self.own = ObjectProvider(self.client, self.config.cluster_name, self.runtime)
        self.provider = self.own  # type: ignore[assignment]
        self.store = self.wrap(self.local)
        self.put_count = 0

    def run(self, looks: int, *, begin_looks: int = 0) -> None:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        a_look = self.queues * LOOK_MS // 60_000
        for look in range(looks):
            for _ in range(a_look):
                clock.advance(LOOK_MS // a_look)
                number = self.put_count
                self.put_count += 1
                queue = number % self.queues
                if look * self.queues < queue * begin_looks:
                    continue
                message = a_message(
                    number, topic=f"T{queue // 8}", queue_id=queue % 8, body_bytes=BODY_BYTES
                )
                assert self.store.put_message(message).stored
            self.dispatcher.dispatch_once()
            if look * LOOK_MS % SEALING_MS < LOOK_MS:
                self.sealing.step()
            while self.own.tend(self.config.broker_name):
                pass


def estimated(config: StoreConfig, load: Load, seconds: float) -> Counter[str]:
    """Requests by operation in this time."""
    found: Counter[str] = Counter()
    for line in monthly_cost(load, config).lines:
        if line.operation != "store":
            found[line.operation] += line.amount * seconds / MONTH_SECONDS  # type: ignore[assignment]
    return found


def dollars(requests: Mapping[str, float]) -> float:
    prices = PriceTable.parse(StoreConfig().request_prices)
    return sum(count * prices.of(name) / 1000 for name, count in requests.items())


ROLLED = {
    "commit_log_rolling_hours": 2,
    "commit_log_rolling_min_bytes": 0,
    "expiry_enabled": False,  # its reads depend on the positions of the units
}


@pytest.mark.parametrize(("queues", "settings"), [(3, {}), (30, {}), (12, ROLLED)])
def test_a_bill_is_estimated_within_two_percent(
    tmp_path: Path, queues: int, settings: dict[str, Any]
) -> None:
    hours = 8
    broker = Steady(tmp_path, queues, **settings)
    broker.open()
    broker.run(4 * HOUR_LOOKS, begin_looks=2 * HOUR_LOOKS)
    broker.client.requests.clear()
    before = broker.put_count
    broker.run(hours * HOUR_LOOKS)
    counted = Counter(broker.client.requests)
    seconds = hours * 3600
    load = Load(
        queue_count=queues,
        messages_per_second=(broker.put_count - before) / seconds,
        message_bytes=300,
        keys_per_message=0,
    )
    wanted = estimated(broker.config, load, seconds)
    assert counted["put"] == pytest.approx(wanted["put"], rel=0.02), (counted, wanted)
    assert counted["head"] == pytest.approx(wanted["head"], rel=0.02), (counted, wanted)
    assert dollars(counted) == pytest.approx(dollars(wanted), rel=0.02), (counted, wanted)
    assert counted["list"] <= 1
    broker.store.shutdown()
