"""A tiered store on a real disk: put, upload, lose the local files, read everything back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import a_config
from tests.codec.encoders import rewrite_log_offset
from tests.jobs.job_kit import copy_of_golden, files, moved, posix
from tests.jobs.load_kit import loaded, rows_of
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.wiring import NoCatalogueError, open_tier
from tieredstore.codec.message import decode_message
from tieredstore.driver.metadata import Change, MetadataStore
from tieredstore.driver.runtime import Runtime
from tieredstore.jobs.job import JobExit
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message

COUNT = 600


@dataclass
class Machine:
    """A broker's disk: each `open` gives a new local store and tier on it."""

    folder: Path

    def open(self, **settings: Any) -> tuple[TieredMessageStore, LocalMessageStore]:
        runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        local = LocalMessageStore(self.local_config(), runtime)
        store = TieredMessageStore(local, self.config(**settings), runtime=runtime)
        store.load()
        store.start()
        return store, local

    def config(self, **settings: Any) -> Any:
        tier = {"provider": "posix", "path": str(self.folder / "tier")}
        return a_config(
            self.folder,
            commit_log_segment_bytes=40_000,
            consume_queue_segment_bytes=4_000,
            **(tier | settings),
        )

    def local_config(self) -> LocalConfig:
        return LocalConfig(
            store_path=str(self.folder / "local"),
            commit_log_file_bytes=1 << 16,
            queue_file_bytes=2_000,
            index_slot_count=100,
            index_item_count=400,
            dispatch_interval_ms=0,
            flush_disk_type="SYNC_FLUSH",
            reserve_hours=24,
        )


def put_many(
    store: TieredMessageStore, count: int = COUNT, first: int = 0
) -> dict[QueueKey, list[str]]:
    """Put messages; return the hash of every record by queue, without its log offset."""
    hashes: dict[QueueKey, list[str]] = {}
    for number in range(first, first + count):
        message = a_message(number, queue_id=number % 3, body_bytes=50 + number % 400)
        put = store.put_message(message)
        selected = store.message_at(put.log_offset)
        assert selected is not None
        hashes.setdefault(QueueKey(TOPIC, message.queue_id), []).append(hash_of(selected))
    return hashes


def hash_of(message: SelectedMessage) -> str:
    return sha256(rewrite_log_offset(message.record, 0)).hexdigest()


def read_all(store: TieredMessageStore | TieredReader, key: QueueKey) -> list[str]:
    found: list[str] = []
    offset = store.min_offset(*key) or 0
    while True:
        result = store.get_message(*key, offset)
        if result.status is not GetStatus.FOUND:
            assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
            return found
        assert [one.queue_offset for one in result.messages] == list(
            range(offset, offset + len(result.messages))
        )
        found += map(hash_of, result.messages)
        offset = result.next_offset


def expire_local(local: LocalMessageStore) -> None:
    """Make the local log old, and run its retention until nothing is left to do."""
    for file in (Path(local._config.store_path) / "commitlog").iterdir():
        os.utime(file, (0, 0))
    for service in local._services:
        service.wake()
        service.wake()


def queues_of(hashes: Iterable[QueueKey]) -> Sequence[QueueKey]:
    return sorted(hashes)


@pytest.mark.parametrize("restart", [False, True])
def test_everything_is_read_back_after_the_local_store_lost_it(
    tmp_path: Path, restart: bool
) -> None:
    machine = Machine(tmp_path)
    store, local = machine.open()
    hashes = put_many(store)
    assert store.flush()
    expire_local(local)
    oldest = local.min_offset(TOPIC, 0)
    assert oldest is not None
    assert oldest > 50
    if restart:
        store.shutdown()
        store, local = machine.open()
    for key in queues_of(hashes):
        assert store.min_offset(*key) == 0
        assert read_all(store, key) == hashes[key]
    store.shutdown()


def test_messages_go_on_after_a_restart_and_all_are_there_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    store, _ = machine.open()
    hashes = put_many(store)
    store.shutdown()
    store, local = machine.open()
    for key, more in put_many(store, first=COUNT).items():
        hashes[key] += more
    assert store.flush()
    expire_local(local)
    for key in queues_of(hashes):
        assert read_all(store, key) == hashes[key]
    assert store.health().ok
    store.shutdown()


@pytest.mark.parametrize("provider", ["memory", "posix"])
def test_after_a_tier_in_memory_the_next_one_gets_what_the_local_store_has(
    tmp_path: Path, provider: str
) -> None:
    machine = Machine(tmp_path)
    store, _ = machine.open(provider="memory")
    hashes = put_many(store)
    assert store.flush(seal=True)
    store.shutdown()
    store, _ = machine.open(provider=provider)
    assert store.flush()
    assert store.health().ok
    for key in queues_of(hashes):
        assert store.committed_offset(*key) == len(hashes[key])
    found = store.query_message(TOPIC, f"key-{COUNT - 1}")
    assert [one.queue_offset for one in found.messages] == [(COUNT - 1) // 3]
    assert found.complete
    store.shutdown()


def test_a_tier_in_memory_that_is_passed_on_goes_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    config = machine.config(provider="memory")
    runtime = Runtime.inline()
    provider = MemoryProvider(runtime)
    with closing(open_tier(config, runtime=runtime, provider=provider)) as tier:
        tier.metadata.add_topic(TOPIC)
    with closing(open_tier(config, runtime=runtime, provider=provider)) as tier:
        assert tier.metadata.topic(TOPIC) is not None


def test_a_tier_that_seems_to_be_in_memory_by_mistake_is_not_forgotten(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    store, _ = machine.open()
    hashes = put_many(store)
    assert store.flush(seal=True)
    store.shutdown()
    store, _ = machine.open(provider="memory")
    assert not store.health().ok
    store.shutdown()
    store, _ = machine.open()
    assert store.health().ok
    assert all(store.committed_offset(*key) == len(hashes[key]) for key in queues_of(hashes))
    store.shutdown()


def test_a_catalogue_of_memory_does_not_begin_a_second_tier(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    store, _ = machine.open()
    put_many(store)
    assert store.flush(seal=True)
    store.shutdown()
    for path in Path(machine.config().catalogue_path).parent.glob("tieredStoreMetadata*"):
        path.unlink()
    store, _ = machine.open(provider="memory")
    store.shutdown()
    for _ in range(2):
        with pytest.raises(
            NoCatalogueError,
            match=r"in memory \(move it away, .*\), but broker",
        ):
            machine.open()


class NotesApart(JsonMetadataStore):
    """Has the `contents` that the contract gives every catalogue: without notes."""

    def contents(self) -> Sequence[Change]:
        return MetadataStore.contents(self)


def test_a_tier_in_memory_is_forgotten_once_in_any_kind_of_catalogue(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    kind = f"{__name__}.NotesApart"
    store, _ = machine.open(provider="memory", metadata=kind)
    put_many(store)
    assert store.flush(seal=True)
    store.shutdown()
    for _ in range(2):
        store, _ = machine.open(metadata=kind)
        assert store.flush()
        store.shutdown()


def begin_in_memory(config: StoreConfig) -> None:
    """Leave what a broker without messages leaves that once ran with the default provider."""
    with closing(open_tier(replace(config, provider="memory"), runtime=Runtime.inline())):
        pass


def test_a_tier_moved_to_where_one_in_memory_was_starts(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "old"), posix(tmp_path / "new")
    begin_in_memory(target)
    report = moved(source, target, cut_over=True)
    assert report.exit_code is JobExit.DONE
    for _ in range(2):
        with closing(open_tier(target, runtime=Runtime.inline())) as tier:
            assert len(tier.metadata.segments()) == len(files(source))


def test_a_load_to_where_a_tier_in_memory_was_is_kept(tmp_path: Path) -> None:
    config = posix(tmp_path)
    begin_in_memory(config)
    key = QueueKey("T", 0)
    loaded(config, [[rows_of(key, range(3))]])
    for _ in range(2):
        with closing(open_tier(config, runtime=Runtime.inline())) as tier:
            assert tier.metadata.segments()


def test_local_retention_waits_for_the_upload(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    store, local = machine.open()
    hashes = put_many(store)
    expire_local(local)
    assert local.min_offset(TOPIC, 0) == 0
    assert store.flush()
    expire_local(local)
    assert (local.min_offset(TOPIC, 0) or 0) > 0
    for key in queues_of(hashes):
        assert read_all(store, key) == hashes[key]
    store.shutdown()


def test_a_disabled_tier_reads_only_what_is_local(tmp_path: Path) -> None:
    store, local = Machine(tmp_path).open(storage_level="DISABLE")
    put_many(store)
    assert store.flush()
    expire_local(local)
    assert store.min_offset(TOPIC, 0) == local.min_offset(TOPIC, 0)
    assert store.get_message(TOPIC, 0, 0).status is not GetStatus.FOUND
    store.shutdown()


def test_a_tier_is_read_without_its_broker(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    store, _ = machine.open()
    hashes = put_many(store)
    store.shutdown()
    with TieredReader(machine.config(), runtime=Runtime.inline()) as reader:
        assert reader.queues() == queues_of(hashes)
        for key in reader.queues():
            assert read_all(reader, key) == hashes[key]
            assert [hash_of(one) for one in reader.messages(*key)] == hashes[key]


def test_with_threads_it_is_the_same(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    runtime = Runtime.threads(dispatch_threads=2, fetch_threads=2)
    local = LocalMessageStore(machine.local_config(), runtime)
    store = TieredMessageStore(local, machine.config(storage_level="FORCE"), runtime=runtime)
    with store:
        hashes = put_many(store)
        assert store.flush(timeout=240)
        for key in queues_of(hashes):
            assert read_all(store, key) == hashes[key]
            found = store.get_message_future(*key, 5, count_max=3).result(240)
            assert [hash_of(one) for one in found.messages] == hashes[key][5:8]
            assert decode_message(found.messages[0].record).topic == TOPIC
    runtime.close()


@pytest.mark.parametrize("uploaded", [True, False])
def test_a_flipped_queue_unit_of_the_local_store_hides_nothing_and_health_names_it(
    tmp_path: Path, uploaded: bool
) -> None:
    machine = Machine(tmp_path)
    store, _ = machine.open()
    for number in range(50):
        store.put_message(a_message(number))
    if uploaded:
        assert store.flush()
    store.shutdown(drain=uploaded)
    path = tmp_path / "local" / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[5 * 20 + 4] ^= 8
    path.write_bytes(data)
    store, local = machine.open()
    assert local.max_offset(TOPIC, 0) == 50
    assert store.put_message(a_message(50)).queue_offset == 50
    assert store.flush()
    health = store.health()
    assert health.ok  # nothing is missing: the unit was rebuilt
    (damage,) = health.local_damages
    assert (damage.path, damage.position, damage.mended) == (str(path), 100, True)
    assert health.as_json()["local_damages"][0]["path"] == str(path)
    for offset in (5, 20, 50):
        (got,) = store.get_message(TOPIC, 0, offset, count_max=1).messages
        assert decode_message(got.record).queue_offset == offset
    store.shutdown()


def test_a_damaged_record_of_the_local_store_is_a_reason_to_look(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    store, _ = machine.open()
    puts = [store.put_message(a_message(number)) for number in range(5)]
    store.shutdown(drain=False)
    path = tmp_path / "local" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[puts[-1].log_offset + 100] ^= 8
    path.write_bytes(data)
    store, _ = machine.open()
    health = store.health()
    assert not health.ok
    assert [damage.mended for damage in health.local_damages] == [False]
    assert store.put_message(a_message(5)).queue_offset == 5
    store.shutdown(drain=False)
