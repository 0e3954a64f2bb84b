"""A power cut removes or damages messages between others before they are uploaded: the upload goes
on after them, and every reader is sent past them.
"""

from __future__ import annotations

from pathlib import Path

from tests.local.store_audit import EXPIRING, cut, expire_one_file, opened
from tieredstore.access.queue_upload import DAMAGED_MS
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import GetStatus, StorageLevel
from tieredstore.testing.samples import TOPIC, a_message

SURE, COUNT = 10, 30


def a_tier_config(root: Path) -> StoreConfig:
    return StoreConfig(
        broker_name="broker-a",
        store_path=str(root / "local"),
        provider="posix",
        path=str(root / "tier"),
        storage_level=StorageLevel.FORCE,
    )


def test_the_upload_goes_on_behind_what_a_power_cut_took(tmp_path: Path) -> None:
    acks = cut(tmp_path / "local", SURE, COUNT, 10, 16, 18, 25, 28)
    runtime = Runtime.inline()
    config = a_tier_config(tmp_path)
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


def test_what_lies_behind_a_damaged_message_outlives_the_local_retention(tmp_path: Path) -> None:
    runtime = Runtime.inline()
    local = opened(tmp_path / "local", runtime, **EXPIRING)
    store = TieredMessageStore(local, a_tier_config(tmp_path), runtime=runtime)
    store.load()
    store.start()
    puts = [store.put_message(a_message(number, body_bytes=1_000)) for number in range(20)]
    path = tmp_path / "local" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[puts[2].log_offset + 100] ^= 8
    path.write_bytes(data)
    assert not store.flush()
    assert expire_one_file(local) == 0  # messages 3 and 4 are also in the file
    runtime.clock.advance(DAMAGED_MS)  # type: ignore[attr-defined]
    assert store.flush(seal=True)
    answer = store.query_message(TOPIC, "shared")
    assert (len(answer.messages), answer.complete) == (19, False)
    assert expire_one_file(local) == 1
    assert store.query_message(TOPIC, "shared").complete
    assert store.health().queues[0].lost_count == 1
    with TieredReader(store.config) as elsewhere:
        for face in (store, elsewhere):
            assert face.get_message(TOPIC, 0, 2).next_offset == 3
            for offset in range(3, 20):
                assert face.get_message(TOPIC, 0, offset).messages[0].queue_offset == offset
    store.shutdown()
