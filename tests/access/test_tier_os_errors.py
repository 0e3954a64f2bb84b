"""Calls to the operating system fail once: what leaves the tier's store is an error of ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.failing_calls import failing_call
from tests.local.store_audit import a_config
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.retention import HOUR_MS
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError
from tieredstore.testing.samples import TOPIC, a_message

MESSAGES = 10
CALLS_MAX = 1_000
STRIDE = 3  # every third call is tried: all of them take minutes

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
    tried = 0
    for number in range(0, CALLS_MAX, STRIDE):
        root = tmp_path / f"{number}"
        store, call = operation(root)
        with failing_call(number) as plan:
            refused = False
            try:
                call()
            except TieredStoreError:
                refused = True
        assert plan.name is not None or not refused
        store.shutdown()
        store = unopened(root)
        store.load()
        assert store.max_offset(TOPIC, 0) == MESSAGES
        store.shutdown()
        shutil.rmtree(root)
        if plan.name is None:
            break
        tried += 1
    assert 0 < tried < CALLS_MAX // STRIDE - 1
