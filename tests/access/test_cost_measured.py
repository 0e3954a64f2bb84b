"""What `cost` estimates against requests that were counted, for few queues and for many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.access import care_kit
from tests.access.care_kit import Elsewhere
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.survey import MONTH_SECONDS, Load, monthly_cost
from tieredstore.driver.object_requests import PriceTable
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import a_message

LOOK_MS = 20_000
LOOKS = 60
ROUNDS = 8
BODY_BYTES = 100


def put_into_each(store: TieredMessageStore, queues: int, number: int) -> None:
    for queue in range(queues):
        message = a_message(
            number, topic=f"T{queue // 8}", queue_id=queue % 8, body_bytes=BODY_BYTES
        )
        assert store.put_message(message).stored


def estimated(config: StoreConfig, load: Load, seconds: float) -> Counter[str]:
    """Requests by operation in this time, but for what grows with a segment's age."""
    found: Counter[str] = Counter()
    for line in monthly_cost(load, config).lines:
        if line.operation != "store" and not any(
            word in line.what for word in ("seal", "index", "expired")
        ):
            found[line.operation] += round(line.amount * seconds / MONTH_SECONDS)
    return found


def dollars(requests: Mapping[str, int]) -> float:
    prices = PriceTable.parse(StoreConfig().request_prices)
    return sum(count * prices.of(name) / 1000 for name, count in requests.items())


@pytest.mark.parametrize("queues", [1, 8, 64])
def test_puts_and_lists_of_a_steady_load_are_as_many_as_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    """A message every ten seconds in each queue, a look at all queues every twenty."""
    monkeypatch.setattr(care_kit, "SIZES", {})
    there = Elsewhere(tmp_path, "objects")
    store, clock = there.broker.store, there.broker.runtime.clock
    assert isinstance(clock, ManualClock)
    for look in range(LOOKS + 6):
        if look == 6:
            there.client.requests.clear()
        for half in range(2):
            put_into_each(store, queues, 2 * look + half)
            clock.advance(LOOK_MS // 2)
        store._loaded().dispatcher.dispatch_once()
        if look % 3 == 0:
            there.publish()
    load = Load(queue_count=queues, messages_per_second=queues / 10, message_bytes=300)
    wanted = estimated(there.broker.config, load, LOOKS * LOOK_MS / 1000)
    counted = there.client.requests
    for name in ("put", "list"):
        assert counted[name] == pytest.approx(wanted[name], rel=0.05), (counted, wanted)
    assert counted["delete"] == pytest.approx(wanted["delete"], abs=2)
    store.shutdown()


@pytest.mark.parametrize("queues", [1, 8, 64])
def test_a_bill_is_estimated_within_five_percent(tmp_path: Path, queues: int) -> None:
    """A round and a published catalogue a minute. With threads, as a broker has them: the writes
    of a round share their looks."""
    config = StoreConfig(broker_name="b", store_path=str(tmp_path), index_enabled=False)
    client = MemoryObjectClient(MemoryObjects())
    with Runtime.threads() as runtime:
        store = TieredMessageStore(
            ListMessageStore(runtime),
            config,
            runtime=runtime,
            provider=ObjectProvider(client, "c", runtime),
        )
        with store:
            for number in range(ROUNDS + 1):
                put_into_each(store, queues, number)
                assert store.flush()
                store._loaded().tier.publishing.step()
                if number == 0:
                    client.requests.clear()
            counted = Counter(client.requests)
    load = Load(queue_count=queues, messages_per_second=queues / 60, message_bytes=300)
    wanted = estimated(config, load, ROUNDS * 60)
    assert counted["put"] == pytest.approx(wanted["put"], rel=0.05), (counted, wanted)
    assert counted["head"] <= wanted["head"] + 2, (counted, wanted)
    assert dollars(counted) == pytest.approx(dollars(wanted), rel=0.05), (counted, wanted)
