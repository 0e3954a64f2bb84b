"""A tier whose provider keeps the catalogue with the bytes, and admits one writer at a time."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.log_kit import BUCKETS, DOTTED, Bucket, LogProvider
from tests.access.tiered_kit import Broker, a_config, numbers
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.upkeep import SEALED_AT_ONCE, TENDED_AT_ONCE, TendChore
from tieredstore.access.wiring import (
    NoCatalogueError,
    Tier,
    catalogue_to_read,
    is_on_brokers_host,
    open_tier,
)
from tieredstore.driver.metadata import LOG
from tieredstore.driver.metrics import FENCED, MeasuredProvider, NoMetrics
from tieredstore.driver.provider import Fence
from tieredstore.driver.runtime import Runtime
from tieredstore.index.uploaded import UploadedIndex
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import CatalogueLockedError, FencedError, SegmentNotFoundError
from tieredstore.model.values import QueueKey, StorageLevel
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message


class LogBroker(Broker):
    """A broker over such a provider; others on the same bucket are other machines."""

    def __init__(self, folder: Path, bucket: Bucket, **settings: Any) -> None:
        super().__init__(folder, storage_level=StorageLevel.FORCE, **settings)
        self.bucket = bucket
        self.own = LogProvider(bucket, self.runtime)
        self.provider = self.own  # type: ignore[assignment]
        self.store = self.wrap(self.local)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def broker(tmp_path: Path, bucket: Bucket) -> Iterator[LogBroker]:
    made = LogBroker(tmp_path / "one", bucket)
    made.open()
    yield made
    made.store.shutdown()


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[StoreConfig]:
    """Settings that suffice to open a tier."""
    yield a_config(tmp_path, provider=DOTTED, bucket=str(tmp_path))
    BUCKETS.pop(str(tmp_path), None)


def tier_of(config: StoreConfig, provider: LogProvider, **given: Any) -> Tier:
    return open_tier(config, runtime=Runtime.inline(), provider=provider, **given)


def topics_in(path: str) -> list[str]:
    with JsonMetadataStore.open(path, read_only=True) as found:
        return [row.topic for row in found.topics()]


# Claims


def test_a_writer_claims_before_it_reads_and_a_reader_claims_nothing(
    tmp_path: Path, bucket: Bucket
) -> None:
    config = a_config(tmp_path)
    tier_of(config, LogProvider(bucket, Runtime.inline())).close()
    assert bucket.calls == ["claim", "open the catalogue"]
    assert bucket.claims == [config.broker_name]
    tier_of(config, LogProvider(bucket, Runtime.inline()), read_only=True).close()
    assert bucket.claims == [config.broker_name]


def test_a_writer_with_a_catalogue_of_its_own_claims_too(tmp_path: Path, bucket: Bucket) -> None:
    """Its rows are elsewhere, but its bytes are in the log."""
    config = a_config(tmp_path)
    with JsonMetadataStore.open(tmp_path / "given.json") as given:
        tier = tier_of(config, LogProvider(bucket, Runtime.inline()), metadata=given)
        assert tier.metadata is given
        assert tier.copy is None
        tier.close()
    assert bucket.calls == ["claim"]


def test_a_catalogue_of_another_kind_stays_beside_the_provider(
    tmp_path: Path, bucket: Bucket
) -> None:
    kind = "tieredstore.metadata.json_store:JsonMetadataStore"  # named like a third party's
    tier = tier_of(a_config(tmp_path, metadata=kind), LogProvider(bucket, Runtime.inline()))
    assert isinstance(tier.metadata, JsonMetadataStore)
    tier.close()
    assert bucket.calls == ["claim"]


def test_a_writer_that_shares_the_tier_claims_nothing(tmp_path: Path, bucket: Bucket) -> None:
    config = a_config(tmp_path, claim_epoch=False)
    tier_of(config, LogProvider(bucket, Runtime.inline(), joins=True)).close()
    assert bucket.claims == []


def test_each_life_of_a_store_from_settings_takes_over(settings: StoreConfig) -> None:
    store = TieredMessageStore(ListMessageStore(Runtime.inline()), settings)
    for life in (1, 2):
        store.load()
        store.shutdown()
        assert len(BUCKETS[settings.bucket].claims) == life


def test_a_given_provider_claims_once_and_is_refused_when_it_was_overtaken(
    tmp_path: Path, bucket: Bucket
) -> None:
    one = LogBroker(tmp_path / "one", bucket)
    for _ in range(2):
        one.open()
        one.store.shutdown()
    assert len(bucket.claims) == 1
    two = LogBroker(tmp_path / "two", bucket)
    two.open()
    with pytest.raises(FencedError):
        one.store.load()
    two.store.shutdown()


# The copy on the broker's machine


def test_the_end_leaves_a_copy_in_rocketmqs_file(broker: LogBroker) -> None:
    broker.fill(3)
    assert not Path(broker.config.catalogue_path).exists()
    broker.store.shutdown()
    assert topics_in(broker.config.catalogue_path) == [TOPIC]


def test_the_chore_copies_what_has_changed(broker: LogBroker) -> None:
    broker.fill(1)
    assert broker.tier.copy is not None
    broker.tier.copy.step()
    assert topics_in(broker.config.catalogue_path) == [TOPIC]
    assert broker.tier.catalogue_upkeep.snapshot_ms is not None


def chores_of(store: TieredMessageStore, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The intervals of the services that a store starts, by name."""
    found: dict[str, int] = {}
    service = Runtime.service

    def noted(self: Runtime, name: str, step: Any, *, interval_ms: int) -> Any:
        found[name] = interval_ms
        return service(self, name, step, interval_ms=interval_ms)

    with monkeypatch.context() as patch:
        patch.setattr(Runtime, "service", noted)
        store.start()
    return found


@pytest.mark.parametrize("interval", [60_000, 0])
def test_copies_while_it_runs_are_made_as_often_as_the_settings_say(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    broker = LogBroker(tmp_path, bucket, publish_interval_ms=interval)
    broker.store.load()
    chores = chores_of(broker.store, monkeypatch)
    assert chores.get("tier-catalogue-copy") == (interval or None)
    assert chores["tier-log"] == broker.config.dispatch_interval_ms
    assert "tier-catalogue" not in chores  # nothing is published
    broker.fill(1)
    broker.store.shutdown()
    assert topics_in(broker.config.catalogue_path) == [TOPIC]


def test_other_providers_have_no_such_chores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path)
    broker.store.load()
    assert not {"tier-log", "tier-catalogue-copy"} & chores_of(broker.store, monkeypatch).keys()
    broker.store.shutdown()


def test_the_copy_is_never_read_by_a_writer(broker: LogBroker) -> None:
    broker.fill(3)
    broker.store.shutdown()
    Path(broker.config.catalogue_path).write_bytes(b"{no json")
    broker.open()
    assert numbers(broker.store.get_message(TOPIC, 0, 0)) == [0, 1, 2]


def test_a_second_broker_of_this_machine_is_refused_before_it_takes_over(
    tmp_path: Path, bucket: Bucket, broker: LogBroker
) -> None:
    second = LogBroker(tmp_path / "one", bucket)
    assert second.config.catalogue_path == broker.config.catalogue_path
    with pytest.raises(CatalogueLockedError):
        second.store.load()
    assert len(bucket.claims) == 1
    broker.fill(1)  # the first broker is still the writer
    broker.store.shutdown()
    second.open()
    second.store.shutdown()


def test_a_tier_that_cannot_be_opened_gives_the_lock_back(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FencedError("b", "claim", epoch=7)

    config = a_config(tmp_path)
    provider = LogProvider(bucket, Runtime.inline())
    with monkeypatch.context() as patch:
        patch.setattr(provider, "claim", refuse)
        with pytest.raises(FencedError):
            tier_of(config, provider)
    tier_of(config, provider).close()


# Readers


def test_an_empty_machine_opens_from_the_log(
    tmp_path: Path, bucket: Bucket, broker: LogBroker
) -> None:
    broker.fill(5)
    broker.store.shutdown()
    other = LogBroker(tmp_path / "two", bucket)
    other.open()
    assert numbers(other.store.get_message(TOPIC, 0, 0)) == [0, 1, 2, 3, 4]
    other.store.shutdown()


@pytest.mark.parametrize("choice", ["auto", "published"])
def test_a_reader_prefers_the_log_to_the_copy(broker: LogBroker, choice: str) -> None:
    broker.fill(2)
    Path(broker.config.catalogue_path).write_bytes(b"{no json")
    config = dataclasses.replace(broker.config, catalogue=choice)
    with TieredReader(config, runtime=broker.runtime, provider=broker.provider) as reader:
        assert reader.catalogue.source == LOG
        assert reader.queues() == [QueueKey(TOPIC, 0)]


def test_a_reader_may_ask_for_the_copy_or_for_the_bytes(broker: LogBroker) -> None:
    broker.fill(2)
    assert broker.tier.copy is not None
    broker.tier.copy.step()
    for choice, source in (("file", "file"), ("rebuild", "rebuild")):
        config = dataclasses.replace(broker.config, catalogue=choice)
        with catalogue_to_read(config, broker.runtime, broker.provider) as found:
            assert found.facts.source == source
            assert found.facts.copy
            assert found.queue(TOPIC, 0) is not None


def test_a_reader_on_the_brokers_machine_asks_its_local_index_too(
    tmp_path: Path, bucket: Bucket, broker: LogBroker
) -> None:
    broker.fill(2)
    assert broker.tier.copy is not None
    broker.tier.copy.step()
    for folder, is_brokers_host in ((tmp_path / "one", True), (tmp_path / "elsewhere", False)):
        provider = LogProvider(bucket, broker.runtime)
        tier = tier_of(a_config(folder), provider, read_only=True)
        assert is_on_brokers_host(a_config(folder), tier.metadata) is is_brokers_host
        local = tier.index._local_folder if isinstance(tier.index, UploadedIndex) else None
        assert (local is not None) is is_brokers_host
        tier.close()


def test_a_bucket_without_a_log_says_what_takes_its_segments_in(
    tmp_path: Path, bucket: Bucket
) -> None:
    config = a_config(tmp_path)
    Path(config.catalogue_path).parent.mkdir(parents=True)
    Path(config.catalogue_path).write_bytes(b"{}")  # of an earlier tier
    with pytest.raises(NoCatalogueError, match="taken in by `rebuild`") as caught:
        tier_of(config, LogProvider(bucket, Runtime.inline()), read_only=True)
    assert caught.value.is_log_missing
    assert not caught.value.is_damage


# Fenced


def test_a_fenced_store_says_so_and_goes_on_with_its_own_log(
    tmp_path: Path, bucket: Bucket, broker: LogBroker
) -> None:
    broker.fill(3)
    broker.local.kept_from = broker.local.cached_from = 0
    other = LogBroker(tmp_path / "two", bucket)
    other.open()
    assert broker.store.health().fence is None  # it cannot know yet
    broker.put(2, first=3)
    assert not broker.store.flush()
    health = broker.store.health()
    assert health.fence == Fence(2, broker.runtime.clock.now_ms())
    assert not health.ok
    assert health.as_json()["fence"] == {"epoch": 2, "since_ms": health.fence.since_ms}
    assert list(broker.metrics.gauges[FENCED]()) == [(1.0, {})]
    committed = broker.store.committed_offset(TOPIC, 0)
    broker.put(2, first=5)
    assert not broker.store.flush()
    assert broker.store.committed_offset(TOPIC, 0) == committed == 3
    assert broker.local.max_offset(TOPIC, 0) == 7
    other.store.shutdown()


def test_a_store_that_nobody_has_overtaken_is_not_fenced(broker: LogBroker) -> None:
    broker.fill(1)
    health = broker.store.health()
    assert health.fence is None
    assert health.ok
    assert health.as_json()["fence"] is None
    assert list(broker.metrics.gauges[FENCED]()) == [(0.0, {})]


def test_a_fenced_store_ends(tmp_path: Path, bucket: Bucket) -> None:
    one, two = (LogBroker(tmp_path / name, bucket) for name in ("one", "two"))
    one.open()
    one.fill(1)
    two.open()
    one.put(1, first=1)
    one.store.shutdown()
    two.fill(1)
    two.store.shutdown()


def test_what_is_destroyed_is_gone_from_the_log_and_the_copy(broker: LogBroker) -> None:
    broker.fill(2)
    broker.store.destroy()
    assert list(broker.own.list()) == []
    assert topics_in(broker.config.catalogue_path) == []
    broker.open()
    assert broker.store.committed_offset(TOPIC, 0) is None


# Chores


def test_the_provider_is_tended_until_nothing_is_left(broker: LogBroker) -> None:
    broker.own.left_to_tend = 5
    broker.store._loaded().tending.step()
    assert broker.own.tended == 5


def test_one_round_of_tending_is_bounded(broker: LogBroker) -> None:
    broker.own.left_to_tend = 10 * TENDED_AT_ONCE
    broker.store._loaded().tending.step()
    assert broker.own.tended == TENDED_AT_ONCE


def test_a_round_of_tending_does_not_try_what_is_gone_a_thousand_times(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def gone(name: str) -> bool:
        tried.append(name)
        raise SegmentNotFoundError("the bucket")

    monkeypatch.setattr(broker.own, "tend", gone)
    broker.store._loaded().tending.step()
    assert len(tried) == 2


def test_nothing_is_tended_while_the_store_ends(broker: LogBroker) -> None:
    tending = broker.store._loaded().tending
    tending.stop()
    tending.step()
    assert broker.own.tended == 0


def test_a_fenced_provider_is_tended_no_more(
    bucket: Bucket, broker: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    LogProvider(bucket, broker.runtime).claim(broker.config.broker_name)
    tending = broker.store._loaded().tending
    with caplog.at_level(logging.WARNING):
        tending.step()
        tending.step()
    assert caplog.text.count("fenced by epoch 2") == 1


def test_only_a_provider_that_can_be_tended_is(bucket: Bucket) -> None:
    runtime = Runtime.inline()
    for provider, is_needed in (
        (LogProvider(bucket, runtime), True),
        (MeasuredProvider(LogProvider(bucket, runtime), NoMetrics(), runtime), True),
        (MemoryProvider(runtime), False),
        (MeasuredProvider(MemoryProvider(runtime), NoMetrics(), runtime), False),
    ):
        assert TendChore(provider, "broker").is_needed is is_needed


def test_many_queues_are_sealed_together_and_not_too_many(tmp_path: Path, bucket: Bucket) -> None:
    queues = 3 * SEALED_AT_ONCE
    with Runtime.threads() as runtime:
        local = ListMessageStore(runtime)
        provider = LogProvider(bucket, runtime)
        store = TieredMessageStore(
            local, a_config(tmp_path, index_enabled=False), runtime=runtime, provider=provider
        )
        with store:
            for number in range(queues):
                store.put_message(a_message(number, queue_id=number))
            assert store.flush(seal=True)
            assert len(bucket.sealed) == 2 * queues
            assert provider.sealed_at_once == [2 * SEALED_AT_ONCE] * 3
            assert store.flush(seal=True)
