"""The local store loses what the tier has: the queue stops, and nothing is overwritten."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier
from tests.local.store_audit import crash, opened
from tieredstore.driver.runtime import Runtime
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import TOPIC, a_message

SOUND = QueueKey("Sound", 0)


class Broker:
    """A local store and its tier on one disk, of which the local store's part can be set back."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.local = root / "local"
        self.local.mkdir()
        self.runtime = Runtime.inline()
        self.index = RecordingIndex()
        self.store = opened(self.local)
        self.tier = self.new_tier()

    def new_tier(self) -> Tier:
        return Tier(
            self.root,
            self.store,
            runtime=self.runtime,
            provider=PosixProvider(self.root / "tier", "DefaultCluster", self.runtime),
            index=self.index,
            group_commit_enabled=False,
        )

    def put(self, first: int, end: int, key: QueueKey = KEY) -> None:
        for number in range(first, end):
            self.store.put_message(a_message(number, topic=key.topic, queue_id=key.queue_id))

    def upload(self) -> None:
        self.store.flush()
        self.tier.dispatch()

    def keep_copy(self) -> None:
        """What will be on the disk when the power is back."""
        self.store.flush()
        shutil.copytree(self.local, self.root / "copy")

    def cut_power(self) -> None:
        crash(self.store)
        release(self.store)
        self.tier.close()
        shutil.rmtree(self.local)
        shutil.copytree(self.root / "copy", self.local)
        self.store = opened(self.local)
        self.tier = self.new_tier()

    def restart(self) -> None:
        self.tier.close()
        self.store.shutdown()
        self.store = opened(self.local)
        self.tier = self.new_tier()

    def tiered_bytes(self) -> dict[str, bytes]:
        found = (self.root / "tier").rglob("*")
        return {str(path): path.read_bytes() for path in found if path.is_file()}


def release(store: LocalMessageStore) -> None:
    if store._lock is not None:
        store._lock.release()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.tier.close()
    broker.store.shutdown()


def after_a_cut(broker: Broker) -> dict[str, bytes]:
    """20 messages were uploaded, of which the local store has 12; what the tier holds."""
    broker.put(0, 12)
    broker.put(0, 3, SOUND)
    broker.keep_copy()
    broker.put(12, 20)
    broker.upload()
    assert broker.tier.span() == (0, 20)
    before = broker.tiered_bytes()
    broker.cut_power()
    return before


def test_a_tier_ahead_of_the_local_store_stops_that_queue_only(broker: Broker) -> None:
    before = after_a_cut(broker)
    broker.put(3, 5, SOUND)
    broker.upload()
    assert broker.tier.span() == (0, 20)
    assert broker.tier.span(SOUND) == (0, 5)
    assert "up to 20, the local store up to 12" in broker.tier.dispatcher.health().stopped[KEY]
    after = broker.tiered_bytes()
    assert {path: after[path] for path in before if f"/{TOPIC}/" in path} == {
        path: before[path] for path in before if f"/{TOPIC}/" in path
    }


def test_it_stays_stopped_when_the_local_queue_has_grown_past_the_tier(broker: Broker) -> None:
    before = after_a_cut(broker)
    broker.upload()
    broker.put(100, 130)
    broker.upload()
    broker.restart()
    broker.put(130, 140)
    broker.upload()
    assert broker.tier.span() == (0, 20)
    assert "the local store up to 12" in broker.tier.dispatcher.health().stopped[KEY]
    assert broker.tiered_bytes() == before


def test_it_is_noticed_when_the_local_queue_grew_before_the_first_look(broker: Broker) -> None:
    before = after_a_cut(broker)
    broker.put(100, 130)
    broker.upload()
    assert broker.tier.span() == (0, 20)
    assert "message 19 is another one" in broker.tier.dispatcher.health().stopped[KEY]
    assert broker.tiered_bytes() == before


def test_what_a_power_cut_did_not_touch_goes_on(broker: Broker) -> None:
    broker.put(0, 20)
    broker.keep_copy()
    broker.upload()
    broker.cut_power()
    broker.put(20, 30)
    broker.upload()
    assert broker.tier.span() == (0, 30)
    assert sorted(set(broker.index.offsets())) == list(range(30))
    assert broker.tier.is_sound
    broker.tier.check()


def test_what_was_not_flushed_is_not_uploaded(broker: Broker) -> None:
    broker.put(0, 10)
    broker.store.flush()
    broker.put(10, 20)
    broker.tier.dispatch(force=True)
    assert broker.tier.span() == (0, 10)
