"""The local store as a whole: the shipped contract, failing writes and calls, reads beside deletes.

Whatever fails, every acknowledged message is there once when the store opens again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.codec.golden_files import contents
from tests.every_step import every_step
from tests.failing_calls import refused_call
from tests.local.store_audit import (
    EXPIRING,
    Ack,
    a_config,
    check_acks,
    check_agreement,
    crash,
    expire_one_file,
    flip_bits,
    opened,
    parts_of,
)
from tieredstore.codec.broker_tables import TOPICS, TableContents, TopicConfig
from tieredstore.codec.chains import ChainLayout
from tieredstore.codec.message import decode_message
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import InlinePool, ManualClock, Runtime
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.dispatch import Dispatch
from tieredstore.local.index_file import IndexFile
from tieredstore.local.index_service import IndexService
from tieredstore.local.mapped_file import MappedFile
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import AT_ONCE_MESSAGES_MAX, LocalMessageStore
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.message_columns import MessageColumns
from tieredstore.model.messages import Message, PutResult
from tieredstore.model.topics import SCHEDULE_TOPIC
from tieredstore.model.values import GetStatus, Host, PutStatus
from tieredstore.testing.message_store_contract import BeginQueuesContract, MessageStoreContract
from tieredstore.testing.samples import TOPIC, a_body, a_message


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalMessageStore:
    return opened(root)


class TestLocalMessageStore(MessageStoreContract, BeginQueuesContract):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def open_store(self) -> MessageStore:
        return LocalMessageStore(a_config(self.root, **EXPIRING), Runtime.inline())

    def expire(self, store: MessageStore) -> None:
        assert isinstance(store, LocalMessageStore)
        expire_one_file(store)


class TestLocalMessageStoreWhoseQueuesLagBehind(TestLocalMessageStore):
    """The contract after a log file is deleted and before the queues notice."""

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


def test_a_log_that_refuses_all_puts_is_shown_until_the_store_is_opened_again(
    root: Path, store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_message(a_message(0))

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(BackendRefusedError):
            store.flush()
    with pytest.raises(BackendRefusedError, match="reopen the store"):
        store.put_message(a_message(1))
    (damage,) = store.damages
    assert "all puts are refused until the store is opened again" in damage.reason
    assert not damage.mended
    store.shutdown()
    assert not opened(root).damages


def test_a_queue_that_cannot_be_written_is_shown(
    root: Path, store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_message(a_message(0))
    store.shutdown()
    store = opened(root)
    sync = os.fdatasync

    def fail(descriptor: int) -> None:
        if "consumequeue" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        assert store.put_message(a_message(1)).stored
        assert store.max_offset(TOPIC, 0) == 1
    assert store.max_offset(TOPIC, 0) == 1  # nobody knows what the disk has of the queue
    (damage,) = store.damages
    assert "what was put cannot be read yet" in damage.reason
    assert not damage.mended
    store.shutdown()
    store = opened(root)
    assert not store.damages
    assert bodies(store, 2) == [a_body(0), a_body(1)]


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_a_part_that_cannot_be_synced_is_shown(
    root: Path, store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    store.put_message(a_message(0))
    assert store.max_offset(TOPIC, 0) == 1
    sync = os.fdatasync

    def fail(descriptor: int) -> None:
        if f"/{part}/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(BackendRefusedError):
            store.flush()
    (damage,) = store.damages
    assert "the store cannot be synced" in damage.reason
    assert not damage.mended
    assert store.put_message(a_message(1)).stored
    assert bodies(store, 2) == [a_body(0), a_body(1)]
    store.shutdown()
    store = opened(root)
    assert not store.damages
    assert bodies(store, 2) == [a_body(0), a_body(1)]


@pytest.mark.parametrize("later_fails", [False, True])
def test_of_two_flushes_at_once_the_later_one_says_whether_the_store_is_synced(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch, later_fails: bool
) -> None:
    store.put_message(a_message(0))
    failing = iter([not later_fails, later_fails])
    flush = ConsumeQueues.flush

    def sometimes(queues: ConsumeQueues) -> int:
        if next(failing):
            raise OSError(errno.EIO, "Input/output error")
        return flush(queues)

    class Turn:
        """Lets a second flush pass as soon as the first one gives back the lock."""

        def __init__(self) -> None:
            self.is_first = True

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            if self.is_first:
                self.is_first = False
                with suppress(BackendRefusedError):
                    parts_of(store).flush()

    monkeypatch.setattr(ConsumeQueues, "flush", sometimes)
    monkeypatch.setattr(parts_of(store), "flushing", Turn())
    with suppress(BackendRefusedError):
        store.flush()
    assert bool(store.damages) == later_fails
    monkeypatch.undo()


def test_a_failure_that_has_ended_is_shown_no_longer(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "put", refused_call)
        store.put_message(a_message(0))
        assert store.damages
    assert store.max_offset(TOPIC, 0) == 1
    assert not store.damages


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
    opened(root)  # the refusals left the lock free


def test_one_store_at_a_time(root: Path) -> None:
    store = opened(root)
    with pytest.raises(BackendRefusedError, match="another process"):
        opened(root)
    store.shutdown()
    opened(root)


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
    refuses_batches(root, count)


@pytest.mark.parametrize("count", [1, 20])
def test_so_is_one_that_has_no_message_yet(root: Path, count: int) -> None:
    batches = TopicConfig(name="Batches", attributes={"queue.type": "BatchCQ"})
    rows = {"Batches": batches, TOPIC: TopicConfig(name=TOPIC)}
    (root / "config").mkdir(parents=True)
    (root / "config/topics.json").write_bytes(TOPICS.encode(TableContents(rows=rows)))
    refuses_batches(root, count)


def test_messages_of_a_topic_that_was_made_one_of_batch_queues_later_outlive_a_kill(
    root: Path, tmp_path: Path
) -> None:
    store = opened(root)
    sent = [Message(topic="Batches", queue_id=0, body=b"%d" % number) for number in range(3)]
    assert all(result.stored for result in store.put_messages(sent))
    batches = TopicConfig(name="Batches", attributes={"queue.type": "BatchCQ"})
    (root / "config/topics.json").write_bytes(
        TOPICS.encode(TableContents(rows={"Batches": batches}))
    )
    killed = tmp_path / "killed"
    shutil.copytree(root, killed)  # its queues as if no unit had reached the disk
    for path in (killed / "consumequeue/Batches/0").iterdir():
        os.truncate(path, 0)
        os.truncate(path, (root / "consumequeue/Batches/0" / path.name).stat().st_size)
    again = opened(killed)
    page = again.get_message("Batches", 0, 0)
    assert [message.body for message in page.messages] == [b"0", b"1", b"2"]
    assert again.put_message(sent[0]).status is PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize("has_queues", [False, True])
def test_a_topic_of_batch_queues_that_was_deleted_may_be_made_again(
    root: Path, has_queues: bool
) -> None:
    batches = TopicConfig(name="Batches", attributes={"queue.type": "BatchCQ"})
    (root / "config").mkdir(parents=True)
    (root / "config/topics.json").write_bytes(
        TOPICS.encode(TableContents(rows={"Batches": batches}))
    )
    if has_queues:  # Java's own, which we leave alone
        (root / "batchconsumequeue/Batches/0").mkdir(parents=True)
    store = opened(root)
    message = Message(topic="Batches", queue_id=0, body=b"x")
    assert not store.put_message(message).stored
    assert store.delete_topics(iter(["Batches"])) == 0
    assert store.put_message(message).stored is not has_queues


@pytest.mark.parametrize("text", [b"", b"{", b'{"topicConfigTable":{"/":{}}}', b"[" * 100_000])
def test_a_table_of_topics_that_cannot_be_read_keeps_no_store_from_opening(
    root: Path, text: bytes
) -> None:
    (root / "config").mkdir(parents=True)
    (root / "config/topics.json").write_bytes(text)
    store = opened(root)
    assert store.put_message(a_message()).stored
    store.shutdown()


def refuses_batches(root: Path, count: int) -> None:
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


def full_disk(real: Callable[..., Any], where: str) -> Callable[..., Any]:
    """The same call, on a disk that is full only for files with `where` in their path."""

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        place = str(getattr(self, "directory", where))
        if where in place:
            raise BackendRefusedError(place, "create", str(OSError(errno.ENOSPC, "full")))
        return real(self, *arguments, **named)

    return call


def refused(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


FAILURES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no room for a queue file": lambda patch: patch.setattr(
        MappedFileQueue, "_create", full_disk(MappedFileQueue._create, "consumequeue")
    ),
    "queue unwritable": lambda patch: patch.setattr(
        MappedFileQueue, "append", full_disk(MappedFileQueue.append, "consumequeue")
    ),
    "index file not made": lambda patch: patch.setattr(IndexFile, "create", refused),
    "index unwritable": lambda patch: patch.setattr(IndexFile, "put", refused),
    "index refuses": lambda patch: patch.setattr(IndexService, "put", refused),
}


def put_one(store: LocalMessageStore, acks: list[Ack]) -> bool:
    """Put one message, which is stored in any case; return whether it could be dispatched."""
    number = len(acks)
    end = store.max_log_offset()
    key = f"key-{number}"
    result = store.put_message(a_message(number, queue_id=number % 2))
    assert result.status is PutStatus.PUT_OK
    assert result.log_offset in (end, 32_768)
    found = store.message_at(end) or store.message_at(32_768)
    assert found is not None  # readable from the log, whatever its queue says
    message = decode_message(found.record)
    where = message.queue_offset, message.log_offset, f"UNIQ-{number:08d}", key, message.offset_id
    acks.append(Ack(TOPIC, number % 2, *where))
    return parts_of(store).dispatch.behind_count == 0


@pytest.mark.parametrize("failure", FAILURES)
def test_what_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    store = opened(tmp_path, index_item_count=40)
    acks: list[Ack] = []
    for _ in range(30):
        assert put_one(store, acks)
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        dispatched = [put_one(store, acks) for _ in range(30)]
        first = dispatched.index(False)
        assert not any(dispatched[first:])
        with pytest.raises(BackendRefusedError):
            store.flush()
    assert put_one(store, acks)
    check_acks(store, acks)
    assert check_agreement(store) == 61
    store.shutdown()
    assert not (tmp_path / "abort").exists()
    store = opened(tmp_path, index_item_count=40)
    check_acks(store, acks)


@pytest.mark.parametrize("failure", FAILURES)
def test_an_end_without_dispatch_is_not_clean_and_the_next_load_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    store = opened(tmp_path, index_item_count=40)
    acks: list[Ack] = []
    for _ in range(30):
        put_one(store, acks)
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        for _ in range(30):
            put_one(store, acks)
        store.shutdown()
    assert (tmp_path / "abort").exists()
    store = opened(tmp_path, index_item_count=40)
    check_acks(store, acks)
    assert check_agreement(store) == 60
    assert put_one(store, acks)
    store.shutdown()
    assert not (tmp_path / "abort").exists()


MOMENTS: dict[str, tuple[type, str, str, bool]] = {
    "one is in the log": (CommitLog, "append_one", "put_message", True),
    "some are in the log": (CommitLog, "append", "put_messages", True),
    "one is numbered": (Dispatch, "submit_one", "put_message", False),
    "some are numbered": (Dispatch, "submit", "put_messages", False),
    "one is handed on": (Dispatch, "submit_one", "put_message", True),
    "some are handed on": (Dispatch, "submit", "put_messages", True),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("count", [1, 300])
def test_a_put_that_is_interrupted_behind_its_append_takes_no_later_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, count: int
) -> None:
    owner, step, put, is_done = MOMENTS[moment]
    real = getattr(owner, step)
    store = opened(tmp_path)
    store.put_message(a_message(0))

    def interrupt(*arguments: Any) -> None:
        if is_done:
            real(*arguments)
        raise KeyboardInterrupt

    messages = [a_message(number) for number in range(1, 1 + count)]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            getattr(store, put)(messages if put == "put_messages" else messages[0])
    held = 2 if put == "put_message" else 1 + count
    assert store.put_message(a_message(held)).queue_offset == held
    wanted = [a_body(number) for number in range(held + 1)]
    assert bodies(store, held + 1) == wanted
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(tmp_path)
    assert bodies(store, held + 1) == wanted
    assert len(store.query_message(TOPIC, f"key-{held}").messages) == 1
    store.shutdown()


@pytest.mark.parametrize("is_done", [False, True])
def test_keys_are_found_although_their_put_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    store = opened(tmp_path)
    store.put_message(a_message(0))
    real = ChainLayout.store_heads
    calls: list[object] = []

    def interrupt(*arguments: Any, **named: Any) -> None:
        calls.append(arguments)
        if is_done or len(calls) > 1:
            real(*arguments, **named)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(ChainLayout, "store_heads", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.put_message(a_message(1))
    result = store.query_message(TOPIC, "key-1")
    assert (len(result.messages), result.complete) == (1, True)
    store.shutdown()
    store = opened(tmp_path)
    for number in (0, 1):
        assert len(store.query_message(TOPIC, f"key-{number}").messages) == 1
    store.shutdown()


def test_reads_go_on_while_dispatch_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    store.put_message(a_message(0))
    with monkeypatch.context() as patch:
        FAILURES["queue unwritable"](patch)
        assert store.put_message(a_message(1)).stored
        [first] = store.get_message(TOPIC, 0, 0).messages
        assert decode_message(first.record).queue_offset == 0
        assert store.max_offset(TOPIC, 0) == 1
        assert len(store.query_message(TOPIC, "key-0").messages) == 1
    assert store.max_offset(TOPIC, 0) == 2


MESSAGES = 30
SIZES = {"commit_log_file_bytes": 4_096}

Operation = Callable[[], object]


def filled(root: Path) -> LocalMessageStore:
    store = opened(root, **SIZES)
    for number in range(MESSAGES):
        assert store.put_message(a_message(number, queue_id=number % 2, body_bytes=100)).stored
    store.flush()
    return store


def unopened(root: Path) -> LocalMessageStore:
    return LocalMessageStore(a_config(root, **SIZES), Runtime.inline())


def load(root: Path) -> tuple[LocalMessageStore, Operation]:
    filled(root).shutdown()
    store = unopened(root)
    return store, store.load


def load_after_a_crash(root: Path) -> tuple[LocalMessageStore, Operation]:
    filled(root).shutdown()
    (root / "abort").write_text("1")
    store = unopened(root)
    return store, store.load


def load_and_build_anew(root: Path) -> tuple[LocalMessageStore, Operation]:
    filled(root).shutdown()
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    store = unopened(root)
    return store, store.load


def start(root: Path) -> tuple[LocalMessageStore, Operation]:
    filled(root).shutdown()
    store = unopened(root)
    store.load()
    return store, store.start


def flush(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    store.put_message(a_message(MESSAGES))
    return store, store.flush


def put(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)

    def puts() -> None:
        for number in range(MESSAGES, 2 * MESSAGES):
            store.put_message(a_message(number, queue_id=number % 2, body_bytes=100))

    return store, puts


def expire(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    os.utime(parts_of(store).log.queue.files[0].path, (1, 1))
    return store, parts_of(store).retention.step


def delete(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    store.put_message(a_message(0, topic="Other"))
    return store, lambda: store.delete_topics(["Other"])


def shutdown(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    return store, store.shutdown


def read_beside(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    store.shutdown()
    return store, lambda: LocalReader.open(root).close()


OPERATIONS = (
    *(load, load_after_a_crash, load_and_build_anew, start, flush, put, expire, delete),
    *(shutdown, read_beside),
)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=[each.__name__ for each in OPERATIONS])
def test_whatever_the_system_refuses_is_an_error_of_ours_and_loses_nothing(
    operation: Callable[[Path], tuple[LocalMessageStore, Operation]], tmp_path: Path
) -> None:
    struck: set[str | None] = set()

    def refuse(number: int) -> bool:
        root = tmp_path / f"{number}"
        store, call = operation(root)
        name = refused_call(call, number)
        store.shutdown()
        store = opened(root, **SIZES)
        kept = sum(store.max_offset(TOPIC, queue_id) or 0 for queue_id in (0, 1))
        assert kept >= MESSAGES
        store.shutdown()
        shutil.rmtree(root)
        struck.add(name)
        return name is not None

    every_step(refuse)
    assert len(struck - {None}) >= 2


def test_a_thread_that_cannot_be_started_is_an_error_of_ours_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unopened(tmp_path)
    store.load()
    with monkeypatch.context() as patch:

        def refuse(*_: object, **__: object) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(Runtime, "service", refuse)
        with pytest.raises(TieredStoreError, match="can't start new thread"):
            store.start()
    store.start()
    assert store.put_message(a_message(0)).stored


Read = Callable[[LocalMessageStore], object]


@pytest.fixture
def racing_store(tmp_path: Path) -> LocalMessageStore:
    racing_store = opened(
        tmp_path, commit_log_file_bytes=4_096, reserve_hours=0, delete_count_max=4
    )
    for number in range(0, 100, 20):
        racing_store.put_messages([a_message(number + step, body_bytes=200) for step in range(20)])
    racing_store.flush()
    return racing_store


def expire_four_files(racing_store: LocalMessageStore) -> None:
    for file in parts_of(racing_store).log.queue.files[:4]:
        os.utime(file.path, (1, 1))
    assert parts_of(racing_store).retention.step() == 4


def delete_topic(racing_store: LocalMessageStore) -> None:
    assert racing_store.delete_topics([TOPIC]) == 1


def just_before(
    patch: pytest.MonkeyPatch, owner: type, name: str, then: Callable[[], None]
) -> None:
    """Run `then` just before the first call of this method."""
    real = getattr(owner, name)
    left = [then]

    def call(self: object, *arguments: Any, **named: Any) -> Any:
        if left:
            left.pop()()
        return real(self, *arguments, **named)

    patch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("goes", "status"),
    [
        (expire_four_files, GetStatus.OFFSET_TOO_SMALL),
        (delete_topic, GetStatus.NO_MESSAGE_IN_QUEUE),
    ],
    ids=["expired", "deleted"],
)
@pytest.mark.parametrize("moment", ["unit_bytes", "_found"])
def test_a_message_that_goes_while_it_is_read_is_absent(
    racing_store: LocalMessageStore,
    monkeypatch: pytest.MonkeyPatch,
    goes: Callable[[LocalMessageStore], None],
    status: GetStatus,
    moment: str,
) -> None:
    just_before(monkeypatch, ConsumeQueue, moment, lambda: goes(racing_store))
    got = racing_store.get_message(TOPIC, 0, 0)
    if moment == "unit_bytes":
        assert got.status is status
        assert got.next_offset == (racing_store.min_offset(TOPIC, 0) or 0)
    else:  # its unit had already been read
        assert got.status in (status, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.FOUND)


READS: dict[str, Read] = {
    "range": lambda racing_store: len(
        racing_store.read_range(TOPIC, 0, 0, count_max=5, bytes_max=5_000)
    ),
    "store time": lambda racing_store: racing_store.store_time(TOPIC, 0, 0),
    "contains": lambda racing_store: racing_store.contains(TOPIC, 0, 0),
    "in memory": lambda racing_store: racing_store.in_memory(TOPIC, 0, 0),
}


@pytest.mark.parametrize("goes", [expire_four_files, delete_topic], ids=["expired", "deleted"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_other_read_of_it_finds_nothing(
    racing_store: LocalMessageStore,
    monkeypatch: pytest.MonkeyPatch,
    read: Read,
    goes: Callable[[LocalMessageStore], None],
) -> None:
    for method in ("units", "unit"):
        with monkeypatch.context() as patch:
            just_before(patch, ConsumeQueue, method, lambda: goes(racing_store))
            found = read(racing_store)
        if racing_store.min_offset(TOPIC, 0) != 0:  # the read uses this method
            assert not found
            return
    raise AssertionError("nothing went")


def test_the_earliest_time_is_looked_for_again_when_its_message_goes(
    racing_store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, MappedFile, "read", lambda: expire_four_files(racing_store))
    assert racing_store.earliest_time() is not None
    monkeypatch.undo()


def test_the_earliest_time_of_a_queue_is_looked_for_again_when_its_message_goes(
    racing_store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, ConsumeQueue, "unit", lambda: expire_four_files(racing_store))
    assert racing_store.earliest_time(TOPIC, 0) is not None


def test_a_search_by_time_in_a_queue_that_is_deleted_finds_nothing(
    racing_store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, ConsumeQueue, "unit", lambda: delete_topic(racing_store))
    assert racing_store.offset_by_time(TOPIC, 0, 1) is None


def test_an_error_that_no_race_explains_is_raised(
    racing_store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_queue: ConsumeQueue, offset: int, _count: int) -> None:
        raise OffsetOutOfRangeError("a fault", offset=offset, minimum=0, maximum=0)

    monkeypatch.setattr(ConsumeQueue, "unit_bytes", fail)
    with pytest.raises(OffsetOutOfRangeError):
        racing_store.get_message(TOPIC, 0, 0)


def test_a_record_whose_file_goes_between_its_head_and_its_body_is_gone(
    racing_store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = parts_of(racing_store).log
    real, calls = log.queue.read, [0]

    def read(offset: int, length: int) -> bytes | None:
        calls[0] += offset == 0
        if calls[0] == 2 and offset == 0:
            expire_four_files(racing_store)
        return real(offset, length)

    monkeypatch.setattr(log.queue, "read", read)
    assert racing_store.message_at(0) is None
    assert calls[0] == 2


@pytest.mark.parametrize("at", [4, 28, 100], ids=["magic", "place", "rest"])
def test_a_damaged_first_message_leaves_the_earliest_time_to_the_next(
    tmp_path: Path, at: int
) -> None:
    clock = ManualClock()
    runtime = Runtime(clock=clock, dispatch=InlinePool(), fetch=InlinePool())
    store = opened(tmp_path, runtime)
    times: list[int] = []
    for number in range(3):
        times.append(store.put_message(a_message(number)).store_timestamp)
        clock.advance(1_000)
    flip_bits(tmp_path / "commitlog" / f"{0:020d}", at, 1)
    assert store.earliest_time() == times[1]
    with pytest.raises(SegmentCorruptError):
        store.message_at(0)
    store.shutdown()


def test_an_answer_by_key_lags_while_what_was_put_cannot_be_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "put", refuse)
        assert store.put_message(a_message(0)).stored
        result = store.query_message(TOPIC, "key-0")
        assert (len(result.messages), result.complete, result.lags) == (0, False, True)
    result = store.query_message(TOPIC, "key-0")
    assert (len(result.messages), result.complete, result.lags) == (1, True, False)
    store.shutdown()


def test_an_answer_by_key_lags_if_the_index_catches_up_only_after_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    put, candidates = IndexService.put, IndexService.candidates

    def then_catch_up(
        index: IndexService, topic: str, key: str, *, begin: int, end: int
    ) -> Iterator[int]:
        found = list(candidates(index, topic, key, begin=begin, end=end))
        monkeypatch.setattr(IndexService, "put", put)
        parts_of(store).dispatch.drain()
        return iter(found)

    monkeypatch.setattr(IndexService, "put", refused)
    assert store.put_message(a_message(0)).stored
    with monkeypatch.context() as patch:
        patch.setattr(IndexService, "candidates", then_catch_up)
        result = store.query_message(TOPIC, "key-0")
    assert (len(result.messages), result.complete, result.lags) == (0, False, True)
    assert len(store.query_message(TOPIC, "key-0").messages) == 1
    store.shutdown()


def test_without_a_key_index_no_answer_by_key_is_complete(tmp_path: Path) -> None:
    store = opened(tmp_path, index_enabled=False)
    assert store.put_message(a_message(0)).stored
    result = store.query_message(TOPIC, "key-0")
    assert (len(result.messages), result.complete, result.lags) == (0, False, False)
    assert store.query_message(TOPIC, "key-0", count_max=0).complete
    assert store.query_message(TOPIC, "").complete
    store.shutdown()


PUT: list[Callable[[LocalMessageStore, Message], PutResult]] = [
    lambda store, message: store.put_message(message),
    lambda store, message: store.put_messages([message])[0],
    lambda store, message: store.put_message_future(message).result(),
    lambda store, message: store.put_at_once(message) or store.put_message(message),
    lambda store, message: (store.put_messages_at_once([message]) or store.put_messages([message]))[
        0
    ],
]


@pytest.mark.parametrize("crc", [False, True])
def test_a_message_is_put_alone_as_in_a_batch_and_by_a_future(tmp_path: Path, crc: bool) -> None:
    sent = [
        a_message(0),
        a_message(1, properties={"KEYS": "é a", "UNIQ_KEY": "u", "TAGS": "TagA"}),
        a_message(2, topic="no/topic"),
        a_message(3, topic=SCHEDULE_TOPIC, properties={"DELAY": "3", "TAGS": "TagA"}),
        replace(a_message(4), sys_flag=4),
        replace(a_message(5), sys_flag=12),
        a_message(6, queue_id=2, body_bytes=5_000),  # begins another file
        replace(a_message(7), properties={}, properties_text="KEYS\x01k\x02WAIT\x01false\x02"),
        replace(a_message(8), born_host=Host(bytes(16), 7), store_host=Host(bytes(16), 8)),
        a_message(9),
    ]
    results, files = [], []
    for number, put in enumerate(PUT):
        root = tmp_path / str(number)
        store = opened(root, commit_log_file_bytes=8_192, property_crc_enabled=crc)
        results.append([put(store, message) for message in sent])
        store.shutdown()
        files.append(
            {
                path: contents(root / path)
                for path in ("commitlog", "consumequeue", "index")
                if (root / path).exists()
            }
        )
    assert all(result == results[0] for result in results)
    assert [put.stored for put in results[0]].count(False) == 1
    assert all(file == files[0] for file in files)


def test_a_message_is_put_at_once_where_nothing_has_to_be_waited_for(root: Path) -> None:
    with Runtime.threads(dispatch_threads=1, fetch_threads=1) as runtime:
        store = opened(root, runtime, dispatch_interval_ms=10**6)
        assert store.put_at_once(a_message(0)) is None  # the first file has to be made
        store.put_message(a_message(0))
        put = store.put_at_once(a_message(1))
        assert put is not None
        assert (put.status, put.queue_offset) == (PutStatus.PUT_OK, 1)
        refused = store.put_at_once(a_message(2, topic="no/topic"))
        assert refused is not None
        assert not refused.stored
        assert store.max_offset(TOPIC, 0) == 2
        puts = store.put_messages_at_once(
            [a_message(2), a_message(3, topic="no/topic"), a_message(4)]
        )
        assert puts is not None
        assert [put.queue_offset for put in puts] == [2, -1, 3]
        assert store.put_messages_at_once([a_message(5, topic="no/topic")]) is not None
        assert not store.put_messages_at_once([])
        assert store.max_offset(TOPIC, 0) == 4
        store.shutdown()
        with pytest.raises(StoreClosedError):
            store.put_messages_at_once([a_message(5)])
        with pytest.raises(StoreClosedError):
            store.put_at_once(a_message(3))


def not_at_once(store: LocalMessageStore, message: Message) -> None:
    """The put returns None and does nothing: the next put gets the place that it would have had."""
    before = store.max_log_offset()
    assert store.put_at_once(message) is None
    assert store.put_messages_at_once([message]) is None
    assert store.max_log_offset() == before
    assert store.put_message(a_message(9)).queue_offset == 1


def test_what_a_put_would_wait_for_is_left_to_another_thread(root: Path) -> None:
    with Runtime.threads(dispatch_threads=1, fetch_threads=1) as runtime:
        usual = {"dispatch_interval_ms": 10**6}
        for name, message, settings in (
            ("sync", a_message(1), {**usual, "flush_disk_type": "SYNC_FLUSH"}),
            ("large", a_message(1, body_bytes=(64 << 10) + 1), usual),
            ("roll", a_message(1, body_bytes=3_000), {**usual, "commit_log_file_bytes": 4_096}),
            ("dispatch", a_message(1), {**usual, "dispatch_count_max": 1}),
            ("none else dispatches", a_message(1), {"dispatch_interval_ms": 0}),
        ):
            store = opened(root / name, runtime, **{"commit_log_file_bytes": 1 << 20, **settings})
            store.put_message(a_message(0, body_bytes=1_000))
            if name == "dispatch":
                store.put_at_once(a_message(1))  # this fills a batch
                assert store.put_at_once(a_message(2)) is None
                assert store.put_messages_at_once([a_message(2)]) is None
            else:
                not_at_once(store, message)
            store.shutdown()


def test_only_a_few_messages_are_put_at_once(root: Path) -> None:
    with Runtime.threads(dispatch_threads=1, fetch_threads=1) as runtime:
        store = opened(root, runtime, commit_log_file_bytes=1 << 20, dispatch_interval_ms=10**6)
        store.put_message(a_message(0))
        few = [a_message(number) for number in range(AT_ONCE_MESSAGES_MAX)]
        assert store.put_messages_at_once([*few, a_message(0)]) is None
        large = [a_message(0, body_bytes=33 << 10)] * 2
        assert store.put_messages_at_once(large) is None
        columns = MessageColumns(topics=TOPIC, queue_ids=0, bodies=[one.body for one in large])
        assert store.put_messages_at_once(columns) is None
        puts = store.put_messages_at_once(few)
        assert puts is not None
        assert [put.queue_offset for put in puts] == list(range(1, AT_ONCE_MESSAGES_MAX + 1))
        store.shutdown()


def test_a_put_at_once_waits_for_no_other_put_and_no_full_disk(root: Path) -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
    store = opened(root, runtime, dispatch_interval_ms=10**6)
    store.put_message(a_message(0))
    with store._put_guard:
        assert store.put_at_once(a_message(1)) is None
        assert store.put_messages_at_once([a_message(1)]) is None
    parts = parts_of(store)
    parts.retention.disk_is_full = True
    assert store.put_at_once(a_message(1)) is None
    assert store.put_messages_at_once([a_message(1)]) is None
    parts.retention.disk_is_full = False
    assert store.put_message(a_message(1)).queue_offset == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MappedFile, "append", refuse_append)
        with pytest.raises(BackendRefusedError, match="append"):
            store.put_at_once(a_message(2))
        with pytest.raises(BackendRefusedError, match="append"):
            store.put_messages_at_once([a_message(2)])
    put = store.put_at_once(a_message(2))
    assert put is not None
    assert put.queue_offset == 2


def refuse_append(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")
