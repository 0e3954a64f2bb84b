"""A plugin that changes nothing passes every call to the next store as it came."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock, create_autospec

import pytest

from tests.local.store_audit import opened
from tieredstore.access.health import DAMAGES_SHOWN_MAX, LocalDamage
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.wiring import load_plugins
from tieredstore.driver.message_store import AbstractPluginMessageStore, MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import Message, PutResult
from tieredstore.model.values import QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC

METHODS = sorted(name for name in vars(MessageStore) if not name.startswith("_"))


def arguments_of(name: str) -> tuple[list[object], dict[str, object]]:
    """A distinct object for each parameter, so that a swap shows."""
    parameters = list(inspect.signature(getattr(MessageStore, name)).parameters.values())[1:]
    by_place = [object() for each in parameters if each.kind is not each.KEYWORD_ONLY]
    named = {each.name: object() for each in parameters if each.kind is each.KEYWORD_ONLY}
    return by_place, named


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_protocol_is_passed_on(name: str) -> None:
    base: Any = create_autospec(MessageStore, instance=True)
    plugin = AbstractPluginMessageStore(base, StoreConfig())
    by_place, named = arguments_of(name)
    answer = object()
    called: Mock = getattr(base, name)
    called.return_value = answer
    found = getattr(plugin, name)(*by_place, **named)
    called.assert_called_once_with(*by_place, **named)
    if inspect.signature(getattr(MessageStore, name)).return_annotation != "None":
        assert found is answer


@pytest.mark.parametrize("name", METHODS)
def test_its_methods_take_what_those_of_the_protocol_take(name: str) -> None:
    ours = inspect.signature(getattr(AbstractPluginMessageStore, name))
    assert ours == inspect.signature(getattr(MessageStore, name))


class Loud(AbstractPluginMessageStore):
    """A user's own plugin."""

    def put_message(self, message: Message) -> PutResult:
        return super().put_message(
            Message(topic=message.topic, queue_id=message.queue_id, body=message.body.upper())
        )


def test_a_plugin_overrides_one_method_and_the_tier_below_it_has_the_rest(tmp_path: Path) -> None:
    name = f"{__name__}.Loud"
    config = StoreConfig(plugins=(name,), store_path=str(tmp_path / "tier"))
    plugin = load_plugins(opened(tmp_path / "local"), config)
    assert isinstance(plugin, Loud)
    runtime = Runtime.inline()
    store = TieredMessageStore(plugin, config, runtime=runtime, provider=MemoryProvider(runtime))
    store.load()
    store.start()
    quiet = Message(topic=TOPIC, queue_id=0, body=b"quiet")
    store.put_message(quiet)
    store.put_messages([quiet, quiet])
    assert store.put_at_once(quiet) is None  # it would bypass the plugin's override
    assert store.put_messages_at_once([quiet]) is None
    assert store.put_message_future(quiet).result(0).stored
    assert store.put_messages_future([quiet]).result(0)[0].stored
    assert store.flush()  # it has the plugin, and so the local store, confirm
    found = store.get_message(TOPIC, 0, 0).messages
    assert [b"QUIET" in one.record for one in found] == [True] * 5
    store.shutdown()


def test_a_store_without_a_flush_is_not_asked_for_one() -> None:
    class Without:
        pass

    base: Any = Without()
    assert AbstractPluginMessageStore(base, StoreConfig()).flush() is None


class Silent(AbstractPluginMessageStore):
    """A plugin that overrides no put."""


def test_damage_and_lost_ends_of_the_store_are_known_through_a_plugin(tmp_path: Path) -> None:
    class Damaged(ListMessageStore):
        damages = (LocalDamage(path="log", position=7, reason="a bad sum", mended=False),)
        lost_ends: ClassVar = {QueueKey(TOPIC, 0): 9}

    runtime = Runtime.inline()
    config = StoreConfig(store_path=str(tmp_path))
    plugin = Silent(Damaged(runtime), config)
    store = TieredMessageStore(plugin, config, runtime=runtime, provider=MemoryProvider(runtime))
    store.load()
    assert store.health().local_damages == Damaged.damages
    store.shutdown()
    assert plugin.lost_ends == Damaged.lost_ends
    plain = Silent(ListMessageStore(runtime), config)
    assert (plain.damages, plain.lost_ends) == ((), {})


def test_many_mended_places_hide_no_damage(tmp_path: Path) -> None:
    lost = LocalDamage(path="log", position=7, reason="all puts are refused", mended=False)
    mended = LocalDamage(path="queue", position=0, reason="a flipped bit", mended=True)

    class Damaged(ListMessageStore):
        damages = (*[mended] * DAMAGES_SHOWN_MAX, lost)

    runtime = Runtime.inline()
    config = StoreConfig(store_path=str(tmp_path))
    provider = MemoryProvider(runtime)
    store = TieredMessageStore(Damaged(runtime), config, runtime=runtime, provider=provider)
    store.load()
    health = store.health()
    assert not health.ok
    assert health.local_damages[0] == lost
    assert len(health.local_damages) == DAMAGES_SHOWN_MAX
    store.shutdown()


class Forwarding:
    """A user's wrapper, which forwards whatever it does not define."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_put_at_once_goes_through_plugins_and_never_past_a_wrapper(tmp_path: Path) -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
    local = opened(tmp_path / "local", runtime, dispatch_interval_ms=10**6)
    local.put_message(Message(topic=TOPIC, queue_id=0, body=b"makes the file"))
    message = Message(topic=TOPIC, queue_id=0, body=b"at once")
    put = Silent(local, StoreConfig()).put_at_once(message)
    assert put is not None
    assert put.queue_offset == 1
    puts = Silent(local, StoreConfig()).put_messages_at_once([message])
    assert puts is not None
    assert puts[0].queue_offset == 2
    wrapped: Any = Forwarding(local)
    assert Silent(wrapped, StoreConfig()).put_at_once(message) is None
    assert Silent(wrapped, StoreConfig()).put_messages_at_once([message]) is None
    local.shutdown()
    runtime.close()
