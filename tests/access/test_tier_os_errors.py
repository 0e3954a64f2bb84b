"""Calls to the operating system fail once: the tier's store raises only errors of ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.every_step import every_step
from tests.failing_calls import refused_call
from tests.local.store_audit import a_config
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.store import HOUR_MS, LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.testing.samples import TOPIC, a_message

MESSAGES = 10
STRIDE = 3  # every third call fails in turn: all of them take minutes

Operation = Callable[[], object]


def settings(root: Path) -> StoreConfig:
    return StoreConfig(
        broker_name="broker-a",
        provider="posix",
        path=str(root / "tier"),
        store_path=str(root),
        index_slot_count=64,
        index_item_count=200,
    )


def unopened(root: Path) -> TieredMessageStore:
    runtime = Runtime.inline()
    local = LocalMessageStore(a_config(root), runtime)
    return TieredMessageStore(local, settings(root), runtime=runtime)


def filled(root: Path) -> TieredMessageStore:
    store = unopened(root)
    store.load()
    store.start()
    for number in range(MESSAGES):
        assert store.put_message(a_message(number)).stored
    assert store.flush()
    return store


def load(root: Path) -> tuple[TieredMessageStore, Operation]:
    filled(root).shutdown()
    store = unopened(root)
    return store, store.load


def seal(root: Path) -> tuple[TieredMessageStore, Operation]:
    store = filled(root)
    return store, lambda: store.flush(seal=True)


def expire(root: Path) -> tuple[TieredMessageStore, Operation]:
    store = filled(root)
    store.flush(seal=True)
    clock = store._loaded().tier.runtime.clock
    assert isinstance(clock, ManualClock)
    clock.advance(100 * HOUR_MS)
    return store, store._loaded().retention.step


def shutdown(root: Path) -> tuple[TieredMessageStore, Operation]:
    store = filled(root)
    return store, store.shutdown


def read(root: Path) -> tuple[TieredMessageStore, Operation]:
    store = filled(root)
    store.flush(seal=True)
    store.shutdown()

    def ask() -> None:
        with TieredReader.open(settings(root)) as reader:
            reader.get_message(TOPIC, 0, 0)
            reader.query_message(TOPIC, "key-3")

    return store, ask


@pytest.mark.slow
@pytest.mark.parametrize("operation", [load, seal, expire, shutdown, read])
def test_whatever_the_system_refuses_is_an_error_of_ours_and_loses_nothing(
    operation: Callable[[Path], tuple[TieredMessageStore, Operation]], tmp_path: Path
) -> None:
    def refuse(number: int) -> bool:
        root = tmp_path / f"{number}"
        store, call = operation(root)
        name = refused_call(call, number * STRIDE)
        store.shutdown()
        store = unopened(root)
        store.load()
        assert store.max_offset(TOPIC, 0) == MESSAGES
        store.shutdown()
        shutil.rmtree(root)
        return name is not None

    every_step(refuse)
