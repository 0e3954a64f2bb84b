"""Messages that a power cut took from between others, before they were uploaded: the upload goes on
behind them, and every reader is sent on.
"""

from __future__ import annotations

from pathlib import Path

from tests.local.store_audit import cut, opened
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import GetStatus, StorageLevel
from tieredstore.testing.samples import TOPIC

SURE, COUNT = 10, 30


def test_the_upload_goes_on_behind_what_a_power_cut_took(tmp_path: Path) -> None:
    acks = cut(tmp_path / "local", SURE, COUNT, 10, 16, 18, 25, 28)
    runtime = Runtime.inline()
    config = StoreConfig(
        broker_name="broker-a",
        store_path=str(tmp_path / "local"),
        provider="posix",
        path=str(tmp_path / "tier"),
        storage_level=StorageLevel.FORCE,
    )
    local = opened(tmp_path / "local", runtime)
    store = TieredMessageStore(local, config, runtime=runtime)
    store.load()
    store.start()
    assert store.flush(seal=True)
    health = store.health()
    assert {(one.queue_id, one.lost_count) for one in health.queues} == {(0, 4), (1, 1)}
    assert len(health.local_damages) == 5
    assert not health.ok
    assert [store.committed_offset(TOPIC, queue_id) for queue_id in (0, 1)] == [15, 15]
    with TieredReader(config) as elsewhere:
        for face in (store, elsewhere):
            page = face.get_message(TOPIC, 0, 8)
            assert page.status is GetStatus.MESSAGE_WAS_REMOVING
            assert page.next_offset == 10
            assert face.get_message(TOPIC, 0, 10).messages
            answer = face.query_message(TOPIC, acks[16].key)
            assert (answer.messages, answer.complete) == ([], True)
    store.shutdown()
