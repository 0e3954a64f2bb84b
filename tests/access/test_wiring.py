"""Parts are made from names; a broker loads a chain of message stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.tiered_kit import a_config
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.wiring import load_plugins, open_tier
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metrics import MeasuredProvider, NoMetrics
from tieredstore.driver.registry import MESSAGE_STORES, names
from tieredstore.driver.retry import RetryingProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.index.store import IndexStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError, MetadataError, StoreClosedError
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.message_store_contract import ListMessageStore

JAVA_NAME = "org.apache.rocketmq.tieredstore.TieredMessageStore"


class Outer(ListMessageStore):
    """A plugin as in a broker: it is made from the store that it wraps and the settings."""

    def __init__(self, next_store: MessageStore, config: StoreConfig) -> None:
        super().__init__(Runtime.inline())
        self.next_store = next_store
        self.config = config


class Inner(Outer):
    pass


class Timed(Outer):
    def __init__(
        self, next_store: MessageStore, config: StoreConfig, *, runtime: Runtime | None = None
    ) -> None:
        super().__init__(next_store, config)
        self.runtime = runtime


class Refusing(Outer):
    def __init__(self, next_store: MessageStore, config: StoreConfig) -> None:
        raise RuntimeError("no")


def dotted(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


# Parts


def test_the_parts_of_the_settings_are_measured_and_tried_again(tmp_path: Path) -> None:
    config = a_config(tmp_path, provider="posix", path=str(tmp_path / "tier"))
    parts = open_tier(config)
    assert isinstance(parts.provider, RetryingProvider)
    assert isinstance(parts.provider.inner, MeasuredProvider)
    assert isinstance(parts.provider.inner.inner, PosixProvider)
    assert isinstance(parts.metadata, JsonMetadataStore)
    assert isinstance(parts.index, IndexStore)
    assert isinstance(parts.metrics, NoMetrics)
    parts.close()
    parts.close()
    with pytest.raises(StoreClosedError):
        parts.metadata.topics()
    with pytest.raises(StoreClosedError):
        parts.runtime.fetch.submit(int)


def test_what_is_given_is_used_as_it_is_and_stays_open(tmp_path: Path) -> None:
    runtime = Runtime.inline()
    provider = PosixProvider(tmp_path / "tier", "cluster-a", runtime)
    metadata = JsonMetadataStore.open(tmp_path / "catalogue.json")
    parts = open_tier(a_config(tmp_path), runtime=runtime, provider=provider, metadata=metadata)
    assert parts.runtime is runtime
    assert parts.provider is provider
    assert parts.metadata is metadata
    parts.load()
    parts.close()
    assert not metadata.topics()
    assert runtime.fetch.submit(int).result() == 0
    metadata.close()


def test_a_catalogue_that_cannot_be_opened_leaves_no_thread_behind(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    Path(config.catalogue_path).parent.mkdir(parents=True)
    with JsonMetadataStore.open(config.catalogue_path), pytest.raises(MetadataError):
        open_tier(config)
    open_tier(config).close()


@pytest.mark.parametrize("setting", ["provider", "metadata"])
def test_a_part_that_nobody_knows_is_named(tmp_path: Path, setting: str) -> None:
    config = a_config(tmp_path, **{setting: "jsom" if setting == "metadata" else "posx"})
    with pytest.raises(InvalidConfigError, match="did you mean"):
        open_tier(config)


def test_parts_that_cannot_be_built_leave_the_catalogue_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise InvalidConfigError("planned")

    config = a_config(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.access.wiring.Fetcher", refuse)
        with pytest.raises(InvalidConfigError):
            open_tier(config)
    open_tier(config).close()


# The chain


def test_no_plugins_leave_the_broker_its_own_store(tmp_path: Path) -> None:
    base = ListMessageStore(Runtime.inline())
    assert load_plugins(base, a_config(tmp_path)) is base


@pytest.mark.parametrize(
    "name",
    [
        "tiered",
        JAVA_NAME,
        "tieredstore.access.store:TieredMessageStore",
        "tieredstore.access.store.TieredMessageStore",
        "tieredstore.TieredMessageStore",
    ],
)
def test_the_tiered_store_has_these_names(tmp_path: Path, name: str) -> None:
    base = ListMessageStore(Runtime.inline())
    config = a_config(tmp_path, plugins=(name,))
    store = load_plugins(base, config)
    assert isinstance(store, TieredMessageStore)
    assert store.config is config
    store.load()
    assert base.max_offset("Nowhere", 0) is None  # the base was loaded with the chain
    store.shutdown()
    with pytest.raises(StoreClosedError):
        base.max_offset("Nowhere", 0)


def test_a_brokers_properties_file_names_the_plugins_as_java_does(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"messageStorePlugIn={JAVA_NAME}, {dotted(Inner)}\nbrokerName=b\n")
    config = StoreConfig.from_broker_conf(conf)
    store = load_plugins(ListMessageStore(Runtime.inline()), config)
    assert isinstance(store, TieredMessageStore)


def test_the_first_plugin_is_the_outermost(tmp_path: Path) -> None:
    base = ListMessageStore(Runtime.inline())
    config = a_config(tmp_path, plugins=f"{dotted(Outer)}, {dotted(Inner)}")
    outer = load_plugins(base, config)
    assert type(outer) is Outer
    assert type(outer.next_store) is Inner
    assert outer.next_store.next_store is base


def test_runtime_and_metrics_go_to_the_plugins_that_name_them(tmp_path: Path) -> None:
    runtime, metrics = Runtime.inline(), NoMetrics()
    base = ListMessageStore(runtime)
    config = a_config(tmp_path, plugins=f"{dotted(Outer)}, {dotted(Timed)}, tiered")
    outer = load_plugins(base, config, runtime=runtime, metrics=metrics)
    assert isinstance(outer, Outer)
    timed = outer.next_store
    assert isinstance(timed, Timed)
    assert timed.runtime is runtime
    tiered = timed.next_store
    assert isinstance(tiered, TieredMessageStore)
    assert tiered.metrics is metrics
    tiered.load()
    assert tiered._loaded().tier.runtime is runtime
    tiered.shutdown()
    assert runtime.fetch.submit(int).result() == 0
    again = load_plugins(base, config).next_store  # type: ignore[attr-defined]
    assert again.runtime is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tierd", "did you mean 'tiered'"),
        ("no.such.module:Store", "cannot be imported"),
        ("tieredstore.access.store:Nothing", "cannot be imported"),
        ("tieredstore.model.config:StoreConfig", "is no MessageStore"),
        ("org.apache.rocketmq.store.SomethingElse", "has nothing for the Java class"),
        (dotted(Refusing), "cannot be built from a store and settings: no"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named(tmp_path: Path, name: str, message: str) -> None:
    config = a_config(tmp_path, plugins=("tiered", name))
    with pytest.raises(InvalidConfigError, match=message) as caught:
        load_plugins(ListMessageStore(Runtime.inline()), config)
    assert "plugins: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_group_of_entry_points_has_the_tiered_store() -> None:
    assert names(MESSAGE_STORES) == ["tiered"]
