"""The local store as a whole: the shipped contract, reopening, statuses, batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.codec.golden_files import contents
from tests.local.store_audit import EXPIRING, expire_one_file
from tieredstore.codec.message import decode_message
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError, StoreClosedError
from tieredstore.model.messages import Message
from tieredstore.model.values import GetStatus, PutStatus
from tieredstore.testing.message_store_contract import MessageStoreContract
from tieredstore.testing.samples import TOPIC, a_body, a_message


def a_config(root: Path, **settings: object) -> LocalConfig:
    small: dict[str, object] = {
        "store_path": str(root),
        "commit_log_file_bytes": 32_768,
        "queue_file_bytes": 400,
        "index_slot_count": 101,
        "index_item_count": 400,
        "dispatch_interval_ms": 0,
    }
    return LocalConfig.from_mapping({**small, **settings})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(root: Path, **settings: object) -> LocalMessageStore:
    store = LocalMessageStore(a_config(root, **settings), Runtime.inline())
    store.load()
    store.start()
    return store


@pytest.fixture
def store(root: Path) -> Iterator[LocalMessageStore]:
    store = opened(root)
    yield store
    store.shutdown()


class TestLocalMessageStore(MessageStoreContract):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def open_store(self) -> MessageStore:
        return LocalMessageStore(a_config(self.root, **EXPIRING), Runtime.inline())

    def expire(self, store: MessageStore) -> None:
        assert isinstance(store, LocalMessageStore)
        expire_one_file(store)


class TestLocalMessageStoreWhoseQueuesLagBehind(TestLocalMessageStore):
    """Between the deletion of a log file and the look that queues take at it."""

    def expire(self, store: MessageStore) -> None:
        assert isinstance(store, LocalMessageStore)
        log = store._loaded().log
        log.queue.delete_before(log.queue.files[0].end_offset)


def bodies(
    store: LocalMessageStore, count: int, topic: str = TOPIC, queue_id: int = 0
) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        got = store.get_message(topic, queue_id, len(found), count_max=32)
        assert got.status is GetStatus.FOUND
        found += [decode_message(one.record).body for one in got.messages]
    return found


def test_what_was_put_is_there_after_a_clean_end(root: Path) -> None:
    store = opened(root)
    for number in range(300):
        assert store.put_message(a_message(number)).queue_offset == number
    store.shutdown()
    assert not (root / "abort").exists()
    store = opened(root)
    assert store.recovery is not None
    assert not store.recovery.abnormal
    assert bodies(store, 300) == [a_body(number) for number in range(300)]
    assert store.put_message(a_message(300)).queue_offset == 300
    store.shutdown()


def test_a_batch_is_the_same_as_its_messages_one_by_one(tmp_path: Path) -> None:
    messages = [a_message(number, queue_id=number % 3) for number in range(500)]
    one, many = opened(tmp_path / "one"), opened(tmp_path / "many")
    single = [one.put_message(message) for message in messages]
    batch = list(many.put_messages(messages))
    assert [put.queue_offset for put in batch] == [put.queue_offset for put in single]
    assert [put.log_offset for put in batch] == [put.log_offset for put in single]
    one.shutdown()
    many.shutdown()
    for folder in ("commitlog", "consumequeue", "index"):
        first, second = (contents(tmp_path / name / folder) for name in ("one", "many"))
        assert first.keys() == second.keys()
        assert first == second


def test_a_message_that_cannot_be_stored_is_refused_and_the_others_are_stored(
    store: LocalMessageStore,
) -> None:
    messages = [
        a_message(0),
        Message(topic=TOPIC, queue_id=0, body=b"x" * 40_000),
        Message(topic="a/b", queue_id=0, body=b"x"),
        Message(topic=TOPIC, queue_id=0, body=b"x", properties={"p": "v" * 40_000}),
        a_message(1),
    ]
    results = store.put_messages(messages)
    assert [result.status for result in results] == [
        PutStatus.PUT_OK,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        PutStatus.PUT_OK,
    ]
    assert [result.queue_offset for result in results] == [0, -1, -1, -1, 1]
    assert not results.all_ok
    assert bodies(store, 2) == [a_body(0), a_body(1)]


def test_messages_are_found_by_key_newest_first_and_each_once(store: LocalMessageStore) -> None:
    for number in range(100):
        store.put_message(a_message(number))
    [one] = store.query_message(TOPIC, "key-42").messages
    assert decode_message(one.record).body == a_body(42)
    [same] = store.query_message(TOPIC, "UNIQ-00000042").messages
    assert same == one
    shared = store.query_message(TOPIC, "shared", count_max=1000)
    assert [found.queue_offset for found in shared.messages] == list(range(99, 35, -1))
    assert shared.is_cut
    assert not shared.complete
    for absent in ("", "key-", "key-100", "none"):
        assert not store.query_message(TOPIC, absent).messages


def test_other_sizes_than_the_store_was_made_with_are_refused(root: Path) -> None:
    opened(root).shutdown()
    for name, value in (("queue_file_bytes", 800), ("index_slot_count", 7)):
        store = LocalMessageStore(a_config(root, **{name: value}), Runtime.inline())
        with pytest.raises(InvalidConfigError, match=name):
            store.load()
    opened(root).shutdown()  # the refusals left the lock free


def test_one_store_at_a_time(root: Path) -> None:
    store = opened(root)
    with pytest.raises(BackendRefusedError, match="another process"):
        opened(root)
    store.shutdown()
    opened(root).shutdown()


def test_puts_wait_for_start(root: Path) -> None:
    store = LocalMessageStore(a_config(root), Runtime.inline())
    store.load()
    with pytest.raises(StoreClosedError):
        store.put_message(a_message(0))
    store.shutdown()
    assert not (root / "abort").exists()


def test_a_destroyed_store_starts_anew(root: Path) -> None:
    store = opened(root)
    store.put_messages([a_message(number) for number in range(200)])
    store.destroy()
    store = opened(root)
    assert list(store.queues()) == []
    assert store.put_message(a_message(0)).log_offset == 0
    store.shutdown()


@pytest.mark.parametrize("sync", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_threads_put_and_read_at_once(root: Path, sync: str) -> None:
    config = a_config(
        root, flush_disk_type=sync, dispatch_interval_ms=1, sync_flush_timeout_ms=600_000
    )
    with Runtime.threads() as runtime:
        store = LocalMessageStore(config, runtime)
        store.load()
        store.start()

        def put(queue_id: int) -> None:
            for number in range(100):
                result = store.put_message(a_message(number, queue_id=queue_id))
                assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, number)
                assert store.max_offset(TOPIC, queue_id) == number + 1

        putters = [runtime.fetch.submit(put, queue_id) for queue_id in range(4)]
        for putter in putters:
            putter.result(240)
        for queue_id in range(4):
            assert bodies(store, 100, queue_id=queue_id) == [a_body(n) for n in range(100)]
        store.shutdown()
    assert not (root / "abort").exists()


@pytest.mark.parametrize("count", [1, 20])
def test_a_topic_with_batch_queues_is_refused_before_anything_is_written(
    root: Path, count: int
) -> None:
    (root / "batchconsumequeue" / "Batches" / "0").mkdir(parents=True)
    store = opened(root)
    sent = [Message(topic="Batches", queue_id=0, body=b"x") for _ in range(count)]
    results = store.put_messages([*sent, a_message()])
    assert [result.status for result in results] == [
        *[PutStatus.MESSAGE_ILLEGAL] * count,
        PutStatus.PUT_OK,
    ]
    assert "batch queues" in results[0].reason
    assert store.put_message(sent[0]).status is PutStatus.MESSAGE_ILLEGAL
    store.shutdown()
    assert not (root / "consumequeue" / "Batches").exists()
