"""A broker's store with its tier in a bucket, on moto, with each client: a message's whole way, and
what another machine sees of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import a_config
from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_settings
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import GetResult, QueryResult
from tieredstore.model.values import SegmentType, StorageLevel
from tieredstore.providers.object_provider import open_client
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message

COUNT = 60
HOUR_MS = 3_600_000
GONE = "主题 gone|%"


class Machine:
    """A broker whose tier has its own bucket; `open` acts as a new process."""

    def __init__(self, folder: Path, endpoint: str, client: str) -> None:
        self.folder = folder
        self.settings = new_settings(endpoint, client)
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self.runtime.clock, ManualClock)
        return self.runtime.clock

    def config(self, **other: Any) -> StoreConfig:
        settings = self.settings
        given = {
            "provider": "s3",
            "object_client": settings.client,
            "bucket": settings.bucket,
            "prefix": settings.prefix,
            "endpoint": settings.endpoint,
            "region": settings.region,
            "access_key": settings.access_key,
            "secret_key": settings.secret_key,
            "certify": "off",
            "storage_level": StorageLevel.FORCE,
            "commit_log_segment_bytes": 4_000,
            "consume_queue_segment_bytes": 400,
            "reserve_hours": 48,
            "index_slot_count": 100,
            "index_item_count": 400,
        }
        return a_config(self.folder, **{**given, **other})

    def open(self) -> TieredMessageStore:
        local = LocalConfig(
            store_path=str(self.folder / "local"),
            commit_log_file_bytes=1 << 20,
            queue_file_bytes=2_000,
            index_slot_count=100,
            index_item_count=400,
            dispatch_interval_ms=0,
            flush_disk_type="SYNC_FLUSH",
        )
        inner = LocalMessageStore(local, self.runtime)
        store = TieredMessageStore(inner, self.config(), runtime=self.runtime)
        store.load()
        store.start()
        return store

    def put(self, store: TieredMessageStore, numbers: Sequence[int], topic: str = TOPIC) -> None:
        for number in numbers:
            store.put_message(a_message(number, topic=topic))
            self.clock.advance(1_000)

    def copied_to(self, folder: Path) -> StoreConfig:
        """Copy the bucket to a folder, and give the settings for a tier in it."""
        with open_client(self.settings) as client:
            for each in client.list():
                path = folder / each.key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(client.get_range(each.key, 0, each.size))
        return dataclasses.replace(self.config(), provider="posix", path=str(folder))


@pytest.fixture(params=CLIENTS)
def machine(tmp_path: Path, moto: tuple[str, Door], request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, moto[0], request.param)


def offsets(result: GetResult | QueryResult) -> list[int]:
    return [one.queue_offset for one in result.messages]


def all_of(store: TieredMessageStore | TieredReader, topic: str = TOPIC) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = store.min_offset(topic, 0) or 0
    while messages := store.get_message(topic, 0, offset).messages:
        found.update({one.queue_offset: decode_message(one.record).body for one in messages})
        offset = messages[-1].queue_offset + 1
    return found


def test_the_whole_way_of_a_message(machine: Machine) -> None:
    store = machine.open()
    machine.put(store, range(COUNT // 2))
    assert store.flush()
    machine.put(store, range(COUNT // 2, COUNT))
    assert store.flush(seal=True)
    store.shutdown()

    store = machine.open()
    bodies = all_of(store)
    assert list(bodies) == list(range(COUNT))
    assert offsets(store.get_message(TOPIC, 0, 17, count_max=3)) == [17, 18, 19]
    times = [store.store_time(TOPIC, 0, offset) for offset in range(COUNT)]
    assert times == [STORE_TIMESTAMP + 1_000 * number for number in range(COUNT)]
    assert store.offset_by_time(TOPIC, 0, STORE_TIMESTAMP + 41_000) == 41
    assert offsets(store.query_message(TOPIC, "key-23")) == [23]
    machine.put(store, range(COUNT, COUNT + 5))
    assert store.flush()
    with TieredReader(machine.config(), runtime=Runtime.inline()) as reader:
        elsewhere = all_of(reader)
        assert list(elsewhere) == list(range(COUNT + 5))
        assert {n: elsewhere[n] for n in bodies} == bodies
        assert reader.offset_by_time(TOPIC, 0, STORE_TIMESTAMP + 41_000) == 41
    store.shutdown()


def test_what_is_too_old_and_a_topic_that_is_deleted_leave_the_bucket(machine: Machine) -> None:
    store = machine.open()
    machine.put(store, range(COUNT))
    machine.put(store, range(3), topic=GONE)
    assert store.flush(seal=True)
    machine.clock.advance(40 * HOUR_MS)
    machine.put(store, range(COUNT, COUNT + 5))
    assert store.flush()
    assert store.delete_topics([GONE]) == 1
    machine.clock.advance(20 * HOUR_MS)
    retention = store._loaded().retention
    for _ in range(3):
        retention.step()
    first = store._loaded().tier.files.files()[0].min_offset
    assert 0 < first <= COUNT
    assert all_of(store)[COUNT + 4]
    machine.clock.advance(HOUR_MS)  # dead objects are deleted some time later
    provider = store._loaded().tier.provider
    while provider.tend("broker-a"):
        pass
    with open_client(machine.settings) as client:
        keys = [each.key for each in client.list()]
    assert not [key for key in keys if "gone" in key]
    assert len([key for key in keys if f"/{TOPIC}/0/COMMIT_LOG/" in key]) < 5
    store.shutdown()


def test_a_bucket_copied_to_a_folder_is_the_same_tier(machine: Machine, tmp_path: Path) -> None:
    store = machine.open()
    machine.put(store, range(COUNT))
    machine.put(store, range(3), topic=GONE)
    assert store.flush(seal=True)
    bodies = {topic: all_of(store, topic) for topic in (TOPIC, GONE)}
    provider = store._loaded().tier.provider
    listed = {each for each in provider.list() if each.type is not SegmentType.INDEX}
    config = dataclasses.replace(machine.copied_to(tmp_path / "copied"), catalogue="rebuild")
    with TieredReader(config, runtime=Runtime.inline()) as reader:
        copied = reader._loaded().provider
        assert {each for each in copied.list() if each.type is not SegmentType.INDEX} == listed
        assert {topic: all_of(reader, topic) for topic in bodies} == bodies
    store.shutdown()
