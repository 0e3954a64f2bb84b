"""The life of a tiered store: the shipped contract, and how it opens, ends and begins again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.tiered_kit import Broker, ListIndex, a_config, numbers
from tests.local.store_audit import expire_one_file
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
    StoreClosedError,
)
from tieredstore.model.values import StorageLevel
from tieredstore.testing.message_store_contract import ListMessageStore, MessageStoreContract
from tieredstore.testing.samples import TOPIC, a_message


class TestAroundAListStore(MessageStoreContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_store(self) -> MessageStore:
        runtime = Runtime.inline()
        return TieredMessageStore(ListMessageStore(runtime), a_config(self.path), runtime=runtime)


class TestAroundALocalStore(MessageStoreContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_store(self) -> MessageStore:
        runtime = Runtime.inline()
        self.local = LocalMessageStore(
            LocalConfig(
                store_path=str(self.path / "local"),
                commit_log_file_bytes=8_192,
                queue_file_bytes=20_000,
                index_slot_count=100,
                index_item_count=400,
                dispatch_interval_ms=0,
                flush_disk_type="SYNC_FLUSH",
                reserve_hours=0,
                delete_count_max=1,
            ),
            runtime,
        )
        config = a_config(self.path, provider="posix", path=str(self.path / "tier"))
        return TieredMessageStore(self.local, config, runtime=runtime)

    def expire(self, store: MessageStore) -> None:
        assert isinstance(store, TieredMessageStore)
        store.flush()
        expire_one_file(self.local)


class TestForcedAroundALocalStore(TestAroundALocalStore):
    def open_store(self) -> MessageStore:
        store = super().open_store()
        assert isinstance(store, TieredMessageStore)
        store.level = StorageLevel.FORCE
        return store


class TestAroundATieredStore(MessageStoreContract):
    """A tier below a tier: what wraps a store is one."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_store(self) -> MessageStore:
        runtime = Runtime.inline()
        inner = TieredMessageStore(
            ListMessageStore(runtime), a_config(self.path / "inner"), runtime=runtime
        )
        return TieredMessageStore(inner, a_config(self.path / "outer"), runtime=runtime)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.faults.always = None
    broker.store.shutdown()


def test_building_a_store_touches_nothing(tmp_path: Path) -> None:
    Broker(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_load_start_and_shutdown_may_be_called_twice_and_begin_again(broker: Broker) -> None:
    for _ in range(2):
        broker.store.load()
        broker.store.load()
        broker.store.start()
        broker.store.start()
        broker.put(3)
        broker.store.shutdown()
        broker.store.shutdown()
    broker.store.load()
    assert broker.store.committed_offset(TOPIC, 0) == 6


def test_a_store_is_a_context_manager(broker: Broker) -> None:
    with broker.store as store:
        broker.put(2)
        assert store.max_offset(TOPIC, 0) == 2
    with pytest.raises(StoreClosedError):
        broker.store.max_offset(TOPIC, 0)


def test_start_wants_a_loaded_store_and_flush_a_started_one(broker: Broker) -> None:
    with pytest.raises(StoreClosedError):
        broker.store.start()
    broker.store.load()
    with pytest.raises(StoreClosedError):
        broker.store.flush()


def test_shutdown_uploads_what_waits_unless_it_is_told_not_to(broker: Broker) -> None:
    broker.open()
    broker.put(4)
    broker.store.shutdown()
    broker.open()
    assert broker.store.committed_offset(TOPIC, 0) == 4
    broker.put(3, first=4)
    broker.store.shutdown(drain=False)
    broker.open()
    assert broker.store.committed_offset(TOPIC, 0) == 4
    assert broker.store.flush()
    assert broker.store.committed_offset(TOPIC, 0) == 7


def test_shutdown_ends_although_the_backend_is_gone(broker: Broker) -> None:
    broker.open()
    broker.put(4)
    broker.cut()
    broker.store.shutdown(timeout=1)
    broker.faults.always = None
    broker.open()
    assert broker.store.flush()
    assert broker.store.committed_offset(TOPIC, 0) == 4


def test_the_parts_end_in_order_and_the_next_store_last(tmp_path: Path) -> None:
    life: list[str] = []

    class Next(ListMessageStore):
        def shutdown(self) -> None:
            life.append("next store")
            super().shutdown()

    class Last(ListIndex):
        def shutdown(self) -> None:
            life.append("index")

    runtime = Runtime.inline()
    store = TieredMessageStore(Next(runtime), a_config(tmp_path), runtime=runtime, index=Last())
    store.load()
    store.start()
    store.put_message(a_message(0))
    opened = store._loaded()
    opened.tier._owned.callback(life.append, "parts")
    shutdown = opened.dispatcher.shutdown

    def ending(**how: object) -> bool:
        life.append("dispatcher")
        return shutdown(**how)  # type: ignore[arg-type]

    opened.dispatcher.shutdown = ending  # type: ignore[method-assign]
    store.shutdown()
    assert life == ["dispatcher", "parts", "index", "next store"]


def test_one_part_that_fails_to_end_keeps_no_other_from_it(broker: Broker) -> None:
    broker.open()
    broker.put(1)

    def refuse(**_: object) -> bool:
        raise BackendUnavailableError("x", "shutdown", "planned")

    broker.dispatcher.shutdown = refuse  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailableError):
        broker.store.shutdown()
    with pytest.raises(StoreClosedError):
        broker.local.max_offset(TOPIC, 0)
    broker.open()
    assert broker.store.flush()


# Loads that fail


def test_a_catalogue_that_is_in_use_leaves_nothing_open_and_can_be_tried_again(
    broker: Broker,
) -> None:
    path = broker.config.catalogue_path
    Path(path).parent.mkdir(parents=True)
    other = JsonMetadataStore.open(path)
    with pytest.raises(MetadataError):
        broker.store.load()
    with pytest.raises(StoreClosedError):
        broker.local.max_offset(TOPIC, 0)
    other.close()
    broker.open()
    broker.fill(2)


def test_an_index_that_does_not_load_leaves_no_lock_behind(broker: Broker) -> None:
    def refuse() -> None:
        raise BackendUnavailableError("index", "load", "planned")

    broker.index.load = refuse  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailableError):
        broker.store.load()
    JsonMetadataStore.open(broker.config.catalogue_path).close()
    del broker.index.load
    broker.open()


def test_a_next_store_that_does_not_load_leaves_nothing_of_the_tier(
    broker: Broker, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise InvalidConfigError("planned")

    broker.local.load = refuse  # type: ignore[method-assign]
    with pytest.raises(InvalidConfigError):
        broker.store.load()
    assert list(tmp_path.iterdir()) == []


def test_a_tier_that_cannot_be_reached_at_all_does_not_load(broker: Broker) -> None:
    broker.open()
    broker.fill(2)
    broker.store.shutdown()
    broker.cut()
    with pytest.raises(BackendUnavailableError):
        broker.store.load()
    broker.faults.always = None
    broker.open()
    assert broker.store.committed_offset(TOPIC, 0) == 2


# Destroying


def test_destroy_deletes_both_tiers_and_a_new_life_begins_empty(broker: Broker) -> None:
    broker.open()
    broker.fill(5)
    broker.store.destroy()
    assert list(broker.provider.list()) == []
    with pytest.raises(StoreClosedError):
        broker.store.max_offset(TOPIC, 0)
    assert broker.index.life[-3:] == ["shutdown", "destroy", "shutdown"]
    broker.open()
    assert list(broker.store.queues()) == []
    broker.fill(2)
    assert numbers(broker.store.get_message(TOPIC, 0, 0)) == [0, 1]
