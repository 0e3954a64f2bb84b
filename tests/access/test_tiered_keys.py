"""Keys of a broker's store with a tier: found while they are local, uploaded, and elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.access.tiered_kit import a_config, numbers
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.names import INDEX_TOPIC, index_queue_path
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.messages import Message
from tieredstore.model.values import QueueRecord
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message


class KeyBroker:
    """A tiered store with the index that the settings name; its disk and backend stay."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.provider = MemoryProvider(self.runtime)
        self.local = ListMessageStore(self.runtime)
        sizes = {"index_slot_count": 100, "index_item_count": 50}
        self.config = a_config(folder, **{**sizes, **settings})
        self.catalogue = self._opened()
        self.store = self.open()

    def _opened(self) -> MetadataStore:
        path = self.config.catalogue_path
        return JsonMetadataStore.open(path, clock_ms=self.runtime.clock.now_ms)

    def open(self) -> TieredMessageStore:
        self.store = TieredMessageStore(
            self.local,
            self.config,
            runtime=self.runtime,
            provider=self.provider,
            metadata=self.catalogue,
        )
        self.store.load()
        self.store.start()
        return self.store

    def put(self, first: int, count: int) -> None:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        for number in range(first, first + count):
            message: Message = a_message(number)
            self.store.put_message(message)
            clock.advance(1000)

    def forget_locally(self, kept_from: int) -> None:
        self.local.kept_from = self.local.cached_from = kept_from

    def found(self, key: str, **how: Any) -> list[int]:
        result = self.store.query_message(TOPIC, key, **how)
        assert result.complete
        return numbers(result)


def test_keys_are_found_when_only_the_tier_has_the_messages(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path)
    broker.put(0, 100)
    assert broker.store.flush()
    broker.forget_locally(100)
    for number in range(0, 100, 9):
        assert broker.found(f"key-{number}") == [number]
        assert broker.found(f"UNIQ-{number:08d}") == [number]
    assert broker.found("shared", count_max=1000) == list(range(99, -1, -1))
    assert broker.found("shared", count_max=3) == [99, 98, 97]
    broker.store.shutdown()


def test_keys_are_found_after_a_restart_and_after_an_unclean_end(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path)
    broker.put(0, 60)
    assert broker.store.flush()
    broker.forget_locally(60)
    broker.store.shutdown()
    broker.open()
    assert broker.found("shared", count_max=1000) == list(range(59, -1, -1))
    broker.local.kept_from = broker.local.cached_from = 0
    broker.put(60, 5)
    assert broker.store.flush()
    # The process is gone: no shutdown, nothing synced.
    broker.open()
    assert broker.store.flush()
    broker.forget_locally(65)
    assert broker.found("shared", count_max=1000) == list(range(64, -1, -1))
    for number in (0, 30, 60, 64):
        assert broker.found(f"key-{number}") == [number]
    broker.store.shutdown()


def test_a_flush_that_seals_shows_the_keys_to_a_reader_elsewhere(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path, index_item_count=5000)
    broker.put(0, 30)
    assert broker.store.flush()
    reader = TieredReader(
        broker.config, runtime=broker.runtime, provider=broker.provider, metadata=broker.catalogue
    )
    with reader:
        assert not reader.query_message(TOPIC, "key-7").messages
        assert broker.store.flush(seal=True)
        assert numbers(reader.query_message(TOPIC, "key-7")) == [7]
        found = reader.query_message(TOPIC, "shared", count_max=100)
        assert numbers(found) == list(range(29, -1, -1))
    broker.store.shutdown()


def test_an_index_that_was_off_is_made_when_it_is_turned_on(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path, index_enabled=False)
    broker.put(0, 20)
    assert broker.store.flush()
    broker.forget_locally(20)
    assert not broker.store.query_message(TOPIC, "key-7").messages
    broker.store.shutdown()
    broker.config = a_config(tmp_path, index_slot_count=100, index_item_count=50)
    broker.open()
    assert broker.store.flush()
    assert broker.found("key-7") == [7]
    broker.store.shutdown()


def test_a_destroyed_store_leaves_no_index(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path)
    broker.put(0, 60)
    assert broker.store.flush(seal=True)
    broker.store.destroy()
    assert not list(broker.provider.list())
    assert not [path for path in (tmp_path / "store").rglob("*") if path.name.isdigit()]


def test_the_parts_of_the_settings_work_together(tmp_path: Path) -> None:
    settings = {"provider": "posix", "path": str(tmp_path / "tier"), "index_slot_count": 100}
    config = a_config(tmp_path, index_item_count=70, **settings)
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    local = ListMessageStore(runtime)
    with TieredMessageStore(local, config) as store:  # real threads, real time
        for number in range(100):
            store.put_message(a_message(number))
        assert store.flush(seal=True)
        local.kept_from = local.cached_from = 100
        for number in range(0, 100, 7):
            assert numbers(store.query_message(TOPIC, f"key-{number}")) == [number]
        assert len(store.query_message(TOPIC, "shared", count_max=200).messages) == 100
        assert store.health().index_error is None
    with TieredReader.open(config) as reader:
        assert numbers(reader.query_message(TOPIC, "key-99")) == [99]
        assert len(reader.query_message(TOPIC, "shared", count_max=200).messages) == 100


def test_without_an_index_an_answer_by_key_is_not_called_complete(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path, index_enabled=False)
    broker.put(0, 20)
    assert broker.store.query_message("Nobody", "key-7").complete  # the tier has none of it
    assert broker.store.flush()
    result = broker.store.query_message(TOPIC, "key-7")
    assert (numbers(result), result.complete) == ([7], False)
    broker.forget_locally(20)
    result = broker.store.query_message(TOPIC, "key-7")
    assert (numbers(result), result.complete) == ([], False)
    broker.store.shutdown()


def test_a_row_that_takes_the_key_index_for_a_queue_does_it_no_harm(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path)
    broker.put(0, 60)
    assert broker.store.flush(seal=True)
    broker.forget_locally(60)
    index = set(broker.provider.list(index_queue_path("broker-a")))
    assert index
    broker.store.shutdown()
    broker.catalogue.add_topic(INDEX_TOPIC)
    broker.catalogue.put(QueueRecord(broker_name="broker-a", topic=INDEX_TOPIC, queue_id=0))
    broker.open()
    assert broker.store.flush()
    assert broker.store.delete_topics([INDEX_TOPIC]) <= 1
    assert INDEX_TOPIC not in {key.topic for key in broker.store.queues()}
    assert set(broker.provider.list(index_queue_path("broker-a"))) == index
    assert broker.found("key-7") == [7]
    broker.store.shutdown()
