"""To a reader beside a writing process, deleted data is absent and never damage."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.store_audit import flip_bits, opened, parts_of
from tieredstore.local import reader as reader_module
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.index_file import index_names
from tieredstore.local.reader import IndexReader, LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import PutResult
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.testing.samples import TOPIC, a_message

LOG_FILE = 4_096


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LocalMessageStore]:
    store = opened(
        tmp_path, commit_log_file_bytes=LOG_FILE, reserve_hours=0, delete_count_max=1_000
    )
    for number in range(0, 100, 20):
        store.put_messages([a_message(number + step, body_bytes=200) for step in range(20)])
    store.flush()
    yield store
    store.shutdown()


@pytest.fixture
def reader(writer: LocalMessageStore, tmp_path: Path) -> Iterator[LocalReader]:
    with LocalReader.open(tmp_path) as reader:
        yield reader


def expire(store: LocalMessageStore) -> None:
    for file in parts_of(store).log.queue.files:
        os.utime(file.path, (1, 1))
    assert parts_of(store).retention.step() > 4


def unmap(reader: LocalReader) -> None:
    """As if the reader had since opened so many files that it had to unmap these."""
    queue = reader.queue(TOPIC, 0)
    assert queue is not None
    for file in queue._files.files:
        queue._files._open_files.forget(file)


def test_what_the_writer_expired_is_absent_for_the_reader(
    writer: LocalMessageStore, reader: LocalReader
) -> None:
    expire(writer)
    # The unit is still mapped, the record is not.
    assert reader.get_message(TOPIC, 0, 0).status is GetStatus.MESSAGE_WAS_REMOVING
    unmap(reader)
    got = reader.get_message(TOPIC, 0, 0)
    assert got.status is GetStatus.OFFSET_TOO_SMALL
    assert got.next_offset == reader.min_offset(TOPIC, 0)
    assert len(reader.read_range(TOPIC, 0, 0, count_max=9, bytes_max=9_999)) == 0
    assert reader.store_time(TOPIC, 0, 0) is None
    assert not reader.contains(TOPIC, 0, 0)
    assert reader.message_at(0) is None
    assert reader.earliest_time() == writer.earliest_time()


def test_what_is_left_is_found(writer: LocalMessageStore, reader: LocalReader) -> None:
    expire(writer)
    newest = (writer.max_offset(TOPIC, 0) or 0) - 1
    assert reader.get_message(TOPIC, 0, newest).status is GetStatus.FOUND
    assert reader.query_message(TOPIC, f"key-{newest}").complete
    assert reader.query_message(TOPIC, f"key-{newest}").messages
    gone = reader.query_message(TOPIC, "key-0")
    assert not gone.messages
    assert gone.complete


def test_the_facts_of_the_log_leave_out_what_expired(
    writer: LocalMessageStore, reader: LocalReader
) -> None:
    for _ in range(5):
        writer.put_messages([a_message(number, body_bytes=200) for number in range(20)])
    writer.flush()
    before = reader.log.queue.files[-1].end_offset
    expire(writer)
    assert (writer.min_log_offset() or 0) > before  # beyond all that the reader knew
    assert reader.max_log_offset() == writer.max_log_offset()
    assert reader.log_facts().damages == ()


def test_messages_are_absent_when_all_files_that_the_reader_knew_have_gone(
    writer: LocalMessageStore, reader: LocalReader
) -> None:
    for _ in range(5):
        writer.put_messages([a_message(number, body_bytes=200) for number in range(20)])
    writer.flush()
    expire(writer)
    assert reader.earliest_time() == writer.earliest_time()
    got = reader.get_message(TOPIC, 0, 99)
    assert got.status in (GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_TOO_SMALL)


def test_a_log_that_no_index_covers_is_searched_in_what_is_left(tmp_path: Path) -> None:
    root = tmp_path / "unindexed"
    store = opened(
        root,
        commit_log_file_bytes=LOG_FILE,
        reserve_hours=0,
        delete_count_max=99,
        index_enabled=False,
    )
    for number in range(0, 100, 20):
        store.put_messages([a_message(number + step, body_bytes=200) for step in range(20)])
    store.flush()
    with LocalReader.open(root) as reader:
        expire(store)
        newest = (store.max_offset(TOPIC, 0) or 0) - 1
        assert len(reader.query_message(TOPIC, f"key-{newest}").messages) == 1
        assert not reader.query_message(TOPIC, "key-0").messages
    store.shutdown()


@pytest.mark.parametrize("is_missing", [False, True])
def test_an_answer_from_a_log_that_no_index_covers_lacks_what_is_damaged_there(
    tmp_path: Path, is_missing: bool
) -> None:
    """Nobody knows the keys of these messages."""
    store = opened(tmp_path, commit_log_file_bytes=LOG_FILE, index_enabled=False)
    puts = [store.put_message(a_message(number, body_bytes=200)) for number in range(40)]
    store.shutdown()
    with LocalReader.open(tmp_path) as reader:
        assert reader.query_message(TOPIC, "key-0").complete
    second = tmp_path / "commitlog" / f"{LOG_FILE:020d}"
    if is_missing:
        second.unlink()
    else:
        flip_bits(second, 4, 0x10)  # the magic of a record
    with LocalReader.open(tmp_path) as reader:
        hidden = next(put for put in puts if put.log_offset == LOG_FILE)
        found = reader.query_message(TOPIC, f"key-{hidden.queue_offset}")
        assert (found.messages, found.complete) == ([], False)
        assert len(reader.query_message(TOPIC, "key-39").messages) == 1


def test_what_the_writer_puts_while_the_reader_opens_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(tmp_path)
    topics = "A", "B"
    for topic in topics:
        writer.put_message(a_message(0, topic=topic))
    first: list[PutResult] = []
    real = ConsumeQueues._open

    def then_put(queues: ConsumeQueues, key: QueueKey) -> ConsumeQueue:
        queue = real(queues, key)
        if not first:
            first.append(writer.put_message(a_message(1, topic=key.topic)))
            for topic in topics:
                writer.put_message(a_message(2, topic=topic))
        return queue

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "_open", then_put)
        reader = LocalReader.open(tmp_path)
    assert reader.message_at(first[0].log_offset) is not None
    found = [reader.query_message(topic, "key-1") for topic in topics]
    assert sum(len(answer.messages) for answer in found) == 1
    assert all(answer.complete for answer in found)
    reader.close()
    writer.shutdown()


def test_a_topic_that_the_writer_deleted_is_absent(
    writer: LocalMessageStore, reader: LocalReader
) -> None:
    writer.delete_topics([TOPIC])
    unmap(reader)
    got = reader.get_message(TOPIC, 0, 0)
    assert not got.messages
    assert got.status is GetStatus.OFFSET_TOO_SMALL
    assert got.next_offset == got.max_offset


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_topic_that_the_writer_deleted_and_made_again_is_no_damage(
    writer: LocalMessageStore, reader: LocalReader, count: int, is_known: bool
) -> None:
    if is_known:
        old = reader.get_message(TOPIC, 0, 0).messages[0].log_offset
        assert len(reader.query_message(TOPIC, "key-3").messages) == 1
    else:
        old = writer.get_message(TOPIC, 0, 0).messages[0].log_offset
    writer.delete_topics([TOPIC])
    new = [writer.put_message(a_message(1_000 + number)) for number in range(count)]
    writer.flush()
    unmap(reader)
    assert reader.message_at(old) is None
    for offset in (0, 5, 30, 99):
        got = reader.get_message(TOPIC, 0, offset)
        assert got.status is GetStatus.OFFSET_TOO_SMALL
        assert got.next_offset == got.max_offset == 100
        assert not reader.contains(TOPIC, 0, offset)
        run = reader.read_range(TOPIC, 0, offset, count_max=9, bytes_max=9_999)
        assert len(run) == 0
    for key in ("key-3", "key-50"):
        answer = reader.query_message(TOPIC, key)
        assert (answer.messages, answer.complete) == ([], True)
    answer = reader.query_message(TOPIC, "key-1000")
    assert [one.log_offset for one in answer.messages] == [new[0].log_offset]
    assert answer.complete


def test_a_deletion_that_one_thread_has_just_seen_is_no_damage_to_another(
    writer: LocalMessageStore, reader: LocalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_deleted = ConsumeQueues.pass_deleted
    sees, others = threading.Event(), threading.Event()

    def pass_slowly(*args: Any) -> None:
        sees.set()
        others.wait(0.5)
        pass_deleted(*args)

    unmap(reader)
    writer.delete_topics([TOPIC])
    writer.put_message(a_message(1_000))
    writer.flush()
    monkeypatch.setattr(ConsumeQueues, "pass_deleted", pass_slowly)
    first = threading.Thread(target=reader.min_offset, args=(TOPIC, 0))
    first.start()
    try:
        assert sees.wait(10)
        assert reader.get_message(TOPIC, 0, 5).status is GetStatus.OFFSET_TOO_SMALL
    finally:
        others.set()
        first.join()


def test_a_file_that_is_missing_between_others_is_still_damage(
    writer: LocalMessageStore, reader: LocalReader
) -> None:
    (writer._config.root / "commitlog" / f"{LOG_FILE:020d}").unlink()
    queue = reader.queue(TOPIC, 0)
    assert queue is not None
    first = next(offset for offset in range(100) if queue.unit(offset).log_offset >= LOG_FILE)
    with pytest.raises(SegmentCorruptError, match=f"{LOG_FILE:020d}"):
        reader.get_message(TOPIC, 0, first)


def test_loading_a_reader_again_opens_nothing_twice(reader: LocalReader) -> None:
    log, index = reader.log, reader.index
    reader.load()
    assert reader.log is log
    assert reader.index is index


def test_a_slow_listing_of_the_index_hides_no_file_from_another_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, index_item_count=16)
    store.put_message(a_message(0))
    store.flush()
    listed, others = threading.Event(), threading.Event()
    unindexed = IndexReader._unindexed

    def list_slowly(directory: Path) -> list[str]:
        names = index_names(directory)
        if not listed.is_set():
            listed.set()
            others.wait(1)
        return names

    def search_after_the_slow_one(index: IndexReader, *args: Any) -> Any:
        if threading.current_thread() is not slow:
            others.set()
            slow.join(10)
        return unindexed(index, *args)

    with LocalReader.open(tmp_path) as reader:
        monkeypatch.setattr(reader_module, "index_names", list_slowly)
        monkeypatch.setattr(IndexReader, "_unindexed", search_after_the_slow_one)
        slow = threading.Thread(target=lambda: reader.query_message(TOPIC, "key-0"))
        slow.start()
        assert listed.wait(10)
        for number in range(1, 8):  # they begin a second file of the index
            store.put_message(a_message(number))
        store.flush()
        for key in ("key-6", "key-0"):
            answer = reader.query_message(TOPIC, key)
            assert len(answer.messages) == 1
            assert answer.complete


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_file_that_was_made_before_its_first_record_is_no_damage(
    writer: LocalMessageStore, tmp_path: Path, is_begun: bool
) -> None:
    """As RocketMQ makes files. This writer puts the head of a record there last."""
    log = parts_of(writer).log
    begin = log.queue.files[-1].end_offset
    record = writer.message_at(0)
    assert record is not None
    rest = bytes(8) + record.record[8:] if is_begun else b""
    (tmp_path / "commitlog" / f"{begin:020d}").write_bytes(rest.ljust(LOG_FILE, b"\0"))
    with LocalReader.open(tmp_path) as reader:
        assert reader.message_at(begin) is None


@pytest.mark.parametrize("count", [100, LOG_FILE])
def test_zeros_before_other_records_are_damage(
    writer: LocalMessageStore, tmp_path: Path, count: int
) -> None:
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(bytes(count))
    with LocalReader.open(tmp_path) as reader:
        for store in (writer, reader):
            with pytest.raises(SegmentCorruptError):
                store.message_at(0)
