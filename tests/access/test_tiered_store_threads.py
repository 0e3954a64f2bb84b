"""Readers, a writer, uploads and the loss of local messages, all at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.access.tiered_kit import a_config, numbers
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.values import GetStatus, StorageLevel
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

COUNT = 400
WAIT = 240.0  # for what has to come; nobody waits that long


def read_everything(store: TieredMessageStore, *, in_futures: bool) -> list[int]:
    ask = store.get_message_future if in_futures else None
    found: list[int] = []
    while len(found) < COUNT:
        at = len(found)
        result = ask(TOPIC, 0, at).result(WAIT) if ask else store.get_message(TOPIC, 0, at)
        if result.status is GetStatus.FOUND:
            found += numbers(result)
            assert result.next_offset == len(found)
        else:
            assert result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE)
    return found


@pytest.mark.parametrize("level", [StorageLevel.NOT_IN_DISK, StorageLevel.NOT_IN_MEM])
def test_every_reader_sees_every_message_once_and_in_order(
    tmp_path: Path, level: StorageLevel
) -> None:
    runtime = Runtime.threads(dispatch_threads=2, fetch_threads=2)
    local = ListMessageStore(runtime)
    config = a_config(tmp_path, storage_level=level, group_commit_count=20, read_ahead_enabled=True)
    store = TieredMessageStore(local, config, runtime=runtime)
    seen: list[list[int]] = []

    def read(in_futures: bool) -> None:
        seen.append(read_everything(store, in_futures=in_futures))

    with store:
        readers = [threading.Thread(target=read, args=(n % 2 == 0,), daemon=True) for n in range(3)]
        for reader in readers:
            reader.start()
        for number in range(COUNT):
            store.put_message(a_message(number))
            committed = store.committed_offset(TOPIC, 0) or 0
            local.kept_from = committed // 2
            local.cached_from = committed
        for reader in readers:
            reader.join(WAIT)
        assert store.flush(WAIT)
        assert store.health().ok
    assert seen == [list(range(COUNT))] * 3
    runtime.close()


def test_readers_of_a_store_that_is_shut_down_are_told_so_and_none_waits(tmp_path: Path) -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=2)
    local = ListMessageStore(runtime)
    store = TieredMessageStore(local, a_config(tmp_path, storage_level="FORCE"), runtime=runtime)
    outcomes: list[str] = []
    reading = threading.Barrier(4)

    def read() -> None:
        reading.wait(WAIT)
        try:
            while True:
                store.get_message_future(TOPIC, 0, 3).result(WAIT)
        except StoreClosedError:
            outcomes.append("closed")

    with store:
        for number in range(20):
            store.put_message(a_message(number))
        assert store.flush(WAIT)
        readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
        for reader in readers:
            reader.start()
        reading.wait(WAIT)
    for reader in readers:
        reader.join(WAIT)
    assert outcomes == ["closed"] * 3
    runtime.close()
