"""Deleted topics: their records stay in the log for a while, and never come back from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.store_audit import check_agreement, crash, opened, parts_of
from tieredstore.codec.message import decode_message
from tieredstore.local.consume_queues import DELETED_FILE, ConsumeQueues, DeletedTopics
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import MetadataError
from tieredstore.model.messages import Message
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.testing.samples import a_body, a_message

OLD, OTHER = "Old", "Other"


def filled(root: Path, **settings: object) -> LocalMessageStore:
    store = opened(root, **settings)
    for number in range(40):
        store.put_message(a_message(number, topic=(OLD, OTHER)[number % 2]))
    return store


def put(store: LocalMessageStore, *numbers: int) -> None:
    for place, number in enumerate(numbers):
        assert store.put_message(a_message(number, topic=OLD)).queue_offset == place


def held(store: LocalMessageStore, topic: str = OLD) -> list[bytes]:
    got = store.get_message(topic, 0, 0, count_max=32)
    return [decode_message(one.record).body for one in got.messages]


@pytest.mark.parametrize("end", ["clean", "crash", "crash before a flush"])
def test_a_deleted_topic_stays_deleted(tmp_path: Path, end: str) -> None:
    store = filled(tmp_path)
    old = store.get_message(OLD, 0, 3, count_max=1).messages[0]
    if end == "crash":
        store.flush()
    assert store.delete_topics([OLD, "Unknown"]) == 1
    crash(store) if "crash" in end else store.shutdown()
    store = opened(tmp_path)
    assert list(store.queues()) == [QueueKey(OTHER, 0)]
    assert store.get_message(OLD, 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert not store.query_message(OLD, "key-6").messages
    assert store.query_message(OTHER, "key-7").messages
    assert store.message_at(old.log_offset) is None
    assert not (tmp_path / "consumequeue" / OLD).exists()
    assert check_agreement(store) == 20
    store.shutdown()


@pytest.mark.parametrize("end", ["clean", "crash", "twice"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_topic_made_anew_has_its_new_messages_and_no_others(
    tmp_path: Path, end: str, flushed: bool
) -> None:
    store = filled(tmp_path)
    store.delete_topics([OLD])
    put(store, 100, 101, 102)
    if flushed:
        store.flush()
    if end == "twice":
        store.delete_topics([OLD])
        put(store, 100, 101, 102)
    store.shutdown() if end == "clean" else crash(store)
    store = opened(tmp_path)
    assert held(store) == [a_body(100), a_body(101), a_body(102)]
    assert held(store, OTHER) == [a_body(number) for number in range(1, 40, 2)]
    [found] = store.query_message(OLD, "key-101").messages
    assert found.queue_offset == 1
    assert not store.query_message(OLD, "key-8").messages
    assert store.put_message(a_message(103, topic=OLD)).queue_offset == 3
    assert check_agreement(store) == 24
    store.shutdown()


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/Old", "consumequeue/Other"])
def test_lost_queues_are_made_again_without_what_was_deleted(tmp_path: Path, lost: str) -> None:
    store = filled(tmp_path)
    store.delete_topics([OLD])
    put(store, 100, 101)
    store.shutdown()
    (tmp_path / lost).rename(tmp_path / "elsewhere")
    store = opened(tmp_path)
    assert held(store) == [a_body(100), a_body(101)]
    assert check_agreement(store) == 22
    store.shutdown()


@pytest.mark.parametrize("moment", ["before the queues go", "after some files", "after all"])
def test_a_deletion_that_was_cut_short_is_done_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = filled(tmp_path)
    delete = ConsumeQueues.delete_topics

    def cut_short(queues: ConsumeQueues, topics: list[str]) -> list[QueueKey]:
        if moment == "after some files":
            min((tmp_path / "consumequeue" / OLD / "0").iterdir()).unlink()
        elif moment == "after all":
            delete(queues, topics)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "delete_topics", cut_short)
        with pytest.raises(KeyboardInterrupt):
            store.delete_topics([OLD])
    crash(store)
    store = opened(tmp_path)
    assert list(store.queues()) == [QueueKey(OTHER, 0)]
    put(store, 100, 101)
    crash(store)
    store = opened(tmp_path)
    assert held(store) == [a_body(100), a_body(101)]
    check_agreement(store)
    store.shutdown()


def test_what_waits_for_the_disk_is_deleted_with_its_topic(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    hasty = a_message(0, topic=OLD)
    message = Message(
        topic=OLD, queue_id=0, body=hasty.body, properties={**hasty.properties, "WAIT": "false"}
    )
    store.put_messages([message] * 3)
    store.delete_topics([OLD])
    put(store, 100, 101)
    assert held(store) == [a_body(100), a_body(101)]
    store.shutdown()


def test_records_that_a_power_cut_took_are_not_counted_as_deleted(tmp_path: Path) -> None:
    store = filled(tmp_path)
    end = parts_of(store).log.max_offset
    store.delete_topics([OLD])
    crash(store)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    half = end // 2
    path.write_bytes(data[:half] + bytes(len(data) - half))
    store = opened(tmp_path)
    assert parts_of(store).deleted.end_of(OLD) == parts_of(store).log.max_offset <= half
    put(store, 100, 101)
    crash(store)
    store = opened(tmp_path)
    assert held(store) == [a_body(100), a_body(101)]
    check_agreement(store)
    store.shutdown()


def test_a_deletion_is_forgotten_when_the_log_begins_behind_it(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.delete_topics([OLD])
    for number in range(200):
        store.put_message(a_message(number, topic=OTHER))
    assert parts_of(store).log.queue.delete_before(32_768)
    store.shutdown()
    store = opened(tmp_path)
    assert OLD not in parts_of(store).deleted
    deleted = DeletedTopics(tmp_path / "config" / DELETED_FILE)
    deleted.load()
    assert OLD not in deleted
    store.shutdown()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"version": 2, "topics": {}}', b'{"version":1,"topics":{"a":-1}}']
)
def test_a_damaged_word_on_deletions_is_reported(tmp_path: Path, data: bytes) -> None:
    filled(tmp_path).shutdown()
    (tmp_path / "config" / DELETED_FILE).write_bytes(data)
    with pytest.raises(MetadataError, match=DELETED_FILE):
        opened(tmp_path)
