"""Keys of committed messages that the key index lacks: found, or the answer is incomplete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.access.test_key_lookup import KeyBroker
from tests.access.tiered_kit import a_config, numbers
from tests.local.store_audit import opened
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.index.local_file import MappedIndex
from tieredstore.index.store import IndexStore
from tieredstore.index.writer import IndexWriter
from tieredstore.model.messages import QueryResult
from tieredstore.model.values import INT64_MAX, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message

COUNT = 60
LEVELS = ["NOT_IN_DISK", "FORCE"]


def not_indexed(broker: KeyBroker) -> int:
    return sum(queue.not_indexed_count for queue in broker.store.health().queues)


def filled(folder: Path, **settings: Any) -> KeyBroker:
    """A broker with committed messages that only the tier has."""
    broker = KeyBroker(folder, **{"index_item_count": 5000, **settings})
    broker.put(0, COUNT)
    assert broker.store.flush()
    broker.forget_locally(COUNT)
    return broker


def killed(broker: KeyBroker) -> None:
    """Kill the broker; the next process has loaded, and has done nothing else yet."""
    index = broker.store._loaded().tier.index
    assert isinstance(index, IndexStore)
    index._writer.close()
    broker.store._started = True  # the old store counts as running: its process is gone
    broker.open()


def flip_a_bit(broker: KeyBroker, *, of_hashes: bool) -> None:
    folder = Path(broker.config.store_path)
    files = [
        path
        for path in (folder / "tiered_index_file").iterdir()
        if path.is_file() and (path.suffix == ".keys") == of_hashes
    ]
    (path,) = files
    data = bytearray(path.read_bytes())
    data[900] ^= 4  # of an item, or of the hash of one
    path.write_bytes(bytes(data))


def check_no_answer_hides_a_hit(broker: KeyBroker) -> int:
    """Check all answers by key; return how many of them are incomplete."""
    partial = 0
    for number in range(COUNT):
        for key in (f"key-{number}", f"UNIQ-{number:08d}"):
            result = broker.store.query_message(TOPIC, key)
            assert not result.complete or numbers(result) == [number]
            partial += not result.complete
    shared = broker.store.query_message(TOPIC, "shared", count_max=1000)
    assert not shared.complete or numbers(shared) == list(range(COUNT - 1, -1, -1))
    absent = broker.store.query_message(TOPIC, "absent")
    assert not absent.messages
    assert absent.complete == (not partial)
    return partial


@pytest.mark.parametrize("level", LEVELS)
def test_after_a_kill_keys_are_found_before_they_are_indexed_again(
    tmp_path: Path, level: str
) -> None:
    broker = filled(tmp_path, storage_level=level)
    killed(broker)
    assert not_indexed(broker) == COUNT
    assert check_no_answer_hides_a_hit(broker) == 0
    assert numbers(broker.store.query_message(TOPIC, "shared", count_max=3)) == [59, 58, 57]
    assert broker.store.flush()
    assert not_indexed(broker) == 0
    assert check_no_answer_hides_a_hit(broker) == 0
    broker.store.shutdown()


@pytest.mark.parametrize("level", LEVELS)
def test_where_more_waits_to_be_indexed_than_is_read_no_answer_is_called_complete(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = filled(tmp_path, storage_level=level)
    monkeypatch.setattr("tieredstore.access.wiring.SCAN_BYTES_MAX", 5000)
    killed(broker)
    assert not_indexed(broker) == COUNT
    assert check_no_answer_hides_a_hit(broker) == 2 * COUNT
    assert broker.store.query_message(TOPIC, "key-7").lags
    assert broker.store.flush()
    assert not_indexed(broker) == 0
    assert check_no_answer_hides_a_hit(broker) == 0
    broker.store.shutdown()


@pytest.mark.parametrize("of_hashes", [False, True])
@pytest.mark.parametrize("scan_bytes_max", [5000, 1 << 20])
def test_a_damaged_file_that_is_not_uploaded_hides_no_key(
    tmp_path: Path, of_hashes: bool, scan_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = filled(tmp_path)
    broker.store.shutdown()
    flip_a_bit(broker, of_hashes=of_hashes)
    monkeypatch.setattr("tieredstore.access.wiring.SCAN_BYTES_MAX", scan_bytes_max)
    broker.open()
    assert not_indexed(broker) == COUNT
    partial = check_no_answer_hides_a_hit(broker)
    assert partial == (2 * COUNT if scan_bytes_max == 5000 else 0)
    assert broker.store.flush()
    assert check_no_answer_hides_a_hit(broker) == 0
    broker.store.shutdown()


def test_what_the_index_refuses_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = filled(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError("planned")

    with monkeypatch.context() as patch:
        patch.setattr(IndexWriter, "put", refuse)
        broker.local.kept_from = broker.local.cached_from = 0
        broker.put(COUNT, 3)
        assert not broker.store.flush()
        broker.forget_locally(COUNT + 3)
        assert not_indexed(broker) == 3
        assert broker.found(f"key-{COUNT + 1}") == [COUNT + 1]
        assert broker.found("key-1") == [1]
    broker.store.shutdown(drain=False)


def test_what_a_file_has_that_the_disk_could_not_sync_counts_as_not_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of the file may be dropped at any time; a restart makes the file again."""
    broker = filled(tmp_path)
    index = broker.store._loaded().tier.index
    assert isinstance(index, IndexStore)
    with monkeypatch.context() as patch:

        def fail(mapped: MappedIndex) -> None:
            mapped._failure = OSError(5, "planned")
            raise mapped._failure

        patch.setattr(MappedIndex, "sync", fail)
        index._writer.sync()
    assert not_indexed(broker) == COUNT
    for file in index._writer.files:
        data = file._mapped.data
        data[28 : len(data)] = bytes(len(data) - 28)  # as if the pages were dropped
    assert check_no_answer_hides_a_hit(broker) == 0
    broker.store.shutdown()
    broker.open()
    assert broker.store.flush()
    assert not_indexed(broker) == 0
    assert check_no_answer_hides_a_hit(broker) == 0
    broker.store.shutdown()


def test_what_was_stored_after_the_times_that_are_asked_for_is_not_read(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    killed(broker)
    reads = count_reads(broker)
    first = broker.store._loaded().tier.fetcher.store_time(TOPIC, 0, 0)
    assert first is not None
    reads.clear()
    result = broker.store.query_message(TOPIC, "key-1", end=first - 2000)
    assert (result.complete, result.messages, reads) == (True, [], [])
    assert broker.found("key-1", end=first + 1_000_000) == [1]
    assert reads
    broker.store.shutdown()


@pytest.mark.parametrize(("byte", "end"), [(0, INT64_MAX), (6, STORE_TIMESTAMP + 10_000)])
def test_a_damaged_unit_hides_no_key(tmp_path: Path, byte: int, end: int) -> None:
    """The unit names no byte of the log, or one in a segment after the times asked for."""
    broker = filled(tmp_path, commit_log_segment_bytes=1_000)
    killed(broker)
    lookup = broker.store._loaded().tier.fetcher._keys
    inner = lookup._source.read

    class Damaged:
        def read(self, file: Any, offset: int, length: int) -> bytes:
            data = bytearray(inner(file, offset, length))
            if file.type is SegmentType.CONSUME_QUEUE and not offset:
                data[byte] ^= 0x10
            return bytes(data)

    lookup._source = Damaged()
    assert not broker.store.query_message(TOPIC, "key-1", end=end).complete
    broker.store.shutdown()


def test_many_queues_that_wait_are_not_read_one_by_one(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path, index_item_count=5000)
    for queue_id in range(40):
        broker.store.put_message(a_message(queue_id, queue_id=queue_id))
    assert broker.store.flush()
    killed(broker)
    reads = count_reads(broker)
    found = broker.store._loaded().tier.fetcher.query_message(TOPIC, "key-7")
    assert (found.complete, found.lags, reads) == (False, True, [])
    assert broker.store.flush()
    found = broker.store._loaded().tier.fetcher.query_message(TOPIC, "key-7")
    assert (found.complete, len(found.messages)) == (True, 1)
    broker.store.shutdown()


def count_reads(broker: KeyBroker) -> list[tuple[str, int]]:
    """Record all reads of the key look-up from now on, past the cache."""
    reads: list[tuple[str, int]] = []
    lookup = broker.store._loaded().tier.fetcher._keys
    inner: Callable[..., bytes] = lookup._source.read

    class Counted:
        def read(self, file: Any, offset: int, length: int) -> bytes:
            reads.append((file.type.name, length))
            return inner(file, offset, length)

    lookup._source = Counted()
    return reads


def test_a_queue_that_was_never_put_into_the_index_hides_nothing(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path, index_enabled=False)
    broker.put(0, 20)
    assert broker.store.flush()
    broker.forget_locally(20)
    broker.store.shutdown()
    broker.config = replace(broker.config, index_enabled=True)
    broker.open()
    assert not_indexed(broker) == 20
    result: QueryResult = broker.store.query_message(TOPIC, "key-7")
    assert numbers(result) == [7]
    broker.store.shutdown()


def test_a_local_store_without_an_index_leaves_keys_to_the_tiers(tmp_path: Path) -> None:
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    local = opened(tmp_path / "store", runtime, index_enabled=False)
    store = TieredMessageStore(
        local, a_config(tmp_path), runtime=runtime, provider=MemoryProvider(runtime)
    )
    with store:
        for number in range(3):
            store.put_message(a_message(number, properties={"KEYS": "shared"}))
            runtime.clock.sleep(1)
        assert store.flush()
        result = store.query_message(TOPIC, "shared")
        assert [one.queue_offset for one in result.messages] == [2, 1, 0]
        assert not result.complete  # a new message is in no index before its upload
