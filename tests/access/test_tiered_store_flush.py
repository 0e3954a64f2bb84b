"""A flush over a store that confirms late: what it asks for, and what it promises."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.access.tiered_kit import a_config
from tests.local.store_audit import a_config as a_local_config
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError
from tieredstore.providers.posix_shelf import PosixGenerations
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message


class LateStore(ListMessageStore):
    """Confirms nothing before it is asked to; its disk may be broken."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.confirmed = 0
        self.is_broken = False
        self.failure: Exception = BackendRefusedError("the disk", "flush", "it is broken")

    def flush(self) -> None:
        if self.is_broken:
            raise self.failure
        self.confirmed = self.end


@pytest.fixture(params=["inline", "threads"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with Runtime.inline() if request.param == "inline" else Runtime.threads() as runtime:
        yield runtime


def a_store(folder: Path, local: MessageStore, runtime: Runtime) -> TieredMessageStore:
    config = a_config(folder, provider="posix", path=str(folder / "tier"), index_enabled=False)
    return TieredMessageStore(local, config, runtime=runtime)


def put(store: MessageStore, count: int) -> None:
    for number in range(count):
        store.put_message(a_message(number))


def test_what_the_broker_s_own_store_has_just_taken_is_in_the_tier(
    tmp_path: Path, runtime: Runtime
) -> None:
    local = LocalMessageStore(a_local_config(tmp_path / "local"), runtime)
    with a_store(tmp_path, local, runtime) as store:
        put(store, 5)
        assert store.flush()
        assert store.committed_offset(TOPIC, 0) == 5


def test_what_was_put_last_is_in_the_tier_after_a_shutdown(
    tmp_path: Path, runtime: Runtime
) -> None:
    for count in (5, 10):
        local = LocalMessageStore(a_local_config(tmp_path / "local"), runtime)
        with a_store(tmp_path, local, runtime) as store:
            assert store.committed_offset(TOPIC, 0) == (count - 5 or None)
            put(store, 5)


def test_a_store_that_cannot_make_durable_what_it_took_makes_the_flush_fail(
    tmp_path: Path, runtime: Runtime
) -> None:
    local = LateStore(runtime)
    with a_store(tmp_path, local, runtime) as store:
        put(store, 3)
        assert store.flush()
        local.is_broken = True
        put(store, 3)
        assert not store.flush()
        assert store.committed_offset(TOPIC, 0) == 3
        local.is_broken = False
        assert store.flush()
        assert store.committed_offset(TOPIC, 0) == 6


def test_of_a_store_that_confirms_by_itself_only_what_is_confirmed_counts(
    tmp_path: Path, runtime: Runtime
) -> None:
    local = ListMessageStore(runtime)
    with a_store(tmp_path, local, runtime) as store:
        put(store, 3)
        local.confirmed = local.end
        put(store, 3)
        assert store.flush()
        assert store.committed_offset(TOPIC, 0) == 3
        local.confirmed = local.end
        assert store.flush()
        assert store.committed_offset(TOPIC, 0) == 6


def test_a_store_that_fails_in_its_own_way_keeps_no_part_of_the_tier_from_ending(
    tmp_path: Path, runtime: Runtime
) -> None:
    local = LateStore(runtime)
    local.failure = OSError(5, "the disk is broken")
    store = a_store(tmp_path, local, runtime)
    with store:
        put(store, 3)
        local.is_broken = True
        assert not store.flush()
        dispatcher = store._loaded().dispatcher
    local.confirmed = local.end
    assert not dispatcher.dispatch_once(force=True), "it uploads after the shutdown"


def test_a_catalogue_that_cannot_be_published_in_time_makes_no_flush_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = threading.Event()
    create = PosixGenerations.create

    def hung(generations: PosixGenerations, number: int, data: bytes) -> None:
        assert may_go.wait(240)
        create(generations, number, data)

    monkeypatch.setattr(PosixGenerations, "create", hung)
    with Runtime.threads() as runtime, a_store(tmp_path, LateStore(runtime), runtime) as store:
        put(store, 3)
        began = monotonic()
        try:
            assert not store.flush(0.5, seal=True)
            assert monotonic() - began < 60
        finally:
            may_go.set()
        assert store.flush(seal=True)
        assert store.health().catalogue.published_count > 0
