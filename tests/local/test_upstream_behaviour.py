"""What RocketMQ's own store tests expect, and files that Java may have left in the directory.

The counterparts of its tests of the index, queues, mapped files, checkpoint and retention are with
our tests of those modules.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path

import pytest

from tests.codec.encoders import decode_offset_id
from tests.local import store_audit
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentError
from tieredstore.model.messages import Message
from tieredstore.model.values import Boundary, GetStatus, Host, PutStatus
from tieredstore.testing.samples import TOPIC, a_body, a_message

START_MS = 1_700_000_000_000
IPV6 = Host(bytes(range(16)), 10911)


def opened(root: Path, **settings: object) -> LocalMessageStore:
    return store_audit.opened(
        root, Runtime.inline(now_ms=START_MS), **{"commit_log_file_bytes": 16_384, **settings}
    )


def clock_of(store: LocalMessageStore) -> ManualClock:
    clock = store._runtime.clock
    assert isinstance(clock, ManualClock)
    return clock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalMessageStore:
    return opened(root)


# -- AppendCallbackTest, BatchPutMessageTest ------------------------------------------------------


@pytest.mark.parametrize("host", [Host(b"\x0a\x00\x00\x05", 10911), IPV6])
def test_the_messages_of_a_batch_are_records_of_their_own_with_ids_of_their_own(
    store: LocalMessageStore, host: Host
) -> None:
    messages = [
        Message(topic=TOPIC, queue_id=1, body=a_body(n), born_host=host, store_host=host, flag=n)
        for n in range(40)
    ]
    results = store.put_messages(messages)
    assert [one.queue_offset for one in results] == list(range(40))
    assert len({one.message_id for one in results}) == 40
    assert {len(one.message_id) for one in results} == {56 if host.is_ipv6 else 32}
    for number, result in enumerate(results):
        found = store.get_message(TOPIC, 1, number, count_max=1).messages[0]
        message = decode_message(found.record)
        assert (message.body, message.flag) == (a_body(number), number)
        assert (message.born_host, message.store_host) == (host, host)
        assert message.store_timestamp == START_MS
        assert message.offset_id == result.message_id
        assert decode_offset_id(result.message_id) == (host, result.log_offset)


# -- AppendPropCRCTest ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_with_a_property_crc_a_changed_property_is_noticed_when_the_store_recovers(
    root: Path, batch: bool
) -> None:
    settings = {"property_crc_enabled": True}
    store = opened(root, **settings)
    messages = [a_message(number) for number in range(20)]
    results = (
        store.put_messages(messages) if batch else [store.put_message(one) for one in messages]
    )
    at, size = results[7].log_offset, results[7].size
    file = store._loaded().log.queue.find(at)
    assert file is not None
    file.write_at(at + size - 40, b"Z")
    store.shutdown()
    (root / "abort").write_text("1")
    again = opened(root, **settings)
    assert again.recovery is not None
    assert [damage.log_offset for damage in again.recovery.damages] == [at]


# -- ReputMessageServiceTest, FlushDiskWatcherTest ------------------------------------------------


def unwaiting(number: int) -> Message:
    return a_message(number, properties={"WAIT": "false"})


def test_with_sync_flush_what_is_not_on_disk_is_not_seen(root: Path) -> None:
    store = opened(root, flush_disk_type="SYNC_FLUSH")
    results = store.put_messages([unwaiting(number) for number in range(10)])
    assert results.all_ok
    assert store.confirmed_offset() == 0
    assert store.max_offset(TOPIC, 0) in (None, 0)
    assert store.get_message(TOPIC, 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    store.flush()
    assert store.max_offset(TOPIC, 0) == 10
    assert len(store.get_message(TOPIC, 0, 0).messages) == 10


def test_with_async_flush_what_is_not_on_disk_is_seen(store: LocalMessageStore) -> None:
    store.put_messages([unwaiting(number) for number in range(10)])
    assert store.confirmed_offset() == 0
    assert len(store.get_message(TOPIC, 0, 0).messages) == 10


def test_a_message_that_was_synced_too_late_is_stored_and_the_status_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(root, flush_disk_type="SYNC_FLUSH")
    with monkeypatch.context() as patch:
        patch.setattr(store._loaded().flusher, "wait_until_flushed", lambda *_: False)
        result = store.put_message(a_message(0))
    assert (result.status, result.queue_offset) == (PutStatus.FLUSH_DISK_TIMEOUT, 0)
    assert result.stored
    assert store.put_message(a_message(1)).status is PutStatus.PUT_OK
    assert len(store.get_message(TOPIC, 0, 0).messages) == 2


# -- DefaultMessageStoreTest ----------------------------------------------------------------------


def test_a_message_is_found_at_the_offset_of_its_record_and_nowhere_else(
    store: LocalMessageStore,
) -> None:
    results = store.put_messages([a_message(number) for number in range(200)])
    for result in (results[0], results[100], results[199]):
        found = store.message_at(result.log_offset)
        assert found is not None
        assert found.queue_offset == result.queue_offset
        assert store.message_at(result.log_offset, result.size) == found
        assert store.message_at(result.log_offset + 1) is None
        for size in (1, 91, result.size - 1, result.size + 1, 1 << 40):
            assert store.message_at(result.log_offset, size) is None
        assert store.message_at(result.log_offset + 1, result.size) is None
    assert store.message_at(-1) is None
    assert store.message_at(store.max_log_offset()) is None
    assert store.message_at(10**15) is None


def test_the_search_by_time_is_exact_between_and_outside(store: LocalMessageStore) -> None:
    for number in range(10):
        store.put_message(a_message(number))
        clock_of(store).advance(20)
    for number in range(10):
        moment = START_MS + 20 * number
        assert store.offset_by_time(TOPIC, 0, moment) == number
        assert store.offset_by_time(TOPIC, 0, moment - 2) == number
        assert store.offset_by_time(TOPIC, 0, moment, Boundary.UPPER) == number
        assert store.offset_by_time(TOPIC, 0, moment + 2, Boundary.UPPER) == number
        assert store.store_time(TOPIC, 0, number) == moment
    assert store.offset_by_time(TOPIC, 0, START_MS - 20_000) == 0
    assert store.offset_by_time(TOPIC, 0, START_MS + 20_000) == 10
    assert store.offset_by_time("Nobody", 0, START_MS) is None


def test_a_message_that_is_not_there_has_no_store_time(store: LocalMessageStore) -> None:
    store.put_message(a_message(0))
    assert store.store_time(TOPIC, 0, 0) == START_MS
    for topic, queue_id, offset in ((TOPIC, 0, -1), (TOPIC, 0, 1), (TOPIC, 1, 0), ("No", 0, 0)):
        assert store.store_time(topic, queue_id, offset) is None
        assert not store.contains(topic, queue_id, offset)
    assert store.earliest_time(TOPIC, 0) == store.earliest_time() == START_MS
    assert store.earliest_time("No", 0) is None


def test_the_earliest_time_is_told_whatever_the_addresses_are(store: LocalMessageStore) -> None:
    """Java throws here: it reads the time at its position after IPv4 addresses."""
    store.put_message(Message(topic=TOPIC, queue_id=0, body=b"x", born_host=IPV6, store_host=IPV6))
    assert store.earliest_time() == START_MS


def test_an_empty_store_has_no_time_and_no_offset(store: LocalMessageStore) -> None:
    assert store.earliest_time() is None
    assert store.min_log_offset() is None
    assert store.max_log_offset() == 0
    assert store.min_offset(TOPIC, 0) is None


def test_the_largest_message_of_all_is_stored_and_read(tmp_path: Path) -> None:
    store = opened(tmp_path, commit_log_file_bytes=8_388_608)
    body = bytes(4_194_304)
    properties = {"p": "v" * (32_767 - 3)}
    message = Message(topic="T" * 127, queue_id=0, body=body, properties=properties)
    assert store.put_message(message).status is PutStatus.PUT_OK
    more = Message(topic="T", queue_id=0, body=body + b"x")
    assert store.put_message(more).status is PutStatus.MESSAGE_ILLEGAL
    found = store.get_message("T" * 127, 0, 0).messages[0]
    assert decode_message(found.record).body == body


def test_a_body_limit_is_a_setting_that_may_change(root: Path) -> None:
    message = Message(topic=TOPIC, queue_id=0, body=bytes(1_000))
    store = opened(root, message_bytes_max=999)
    assert store.put_message(message).status is PutStatus.MESSAGE_ILLEGAL
    store.shutdown()
    store = opened(root, message_bytes_max=1_000)
    assert store.put_message(message).status is PutStatus.PUT_OK


def test_deleted_topics_are_gone_and_others_and_the_systems_stay(store: LocalMessageStore) -> None:
    for topic in ("A", "B", "C", "SELF_TEST_TOPIC", "rmq_sys_x", "%LMQ%x"):
        store.put_message(a_message(0, topic=topic))
    assert store.delete_topics(["A", "unknown"]) == 1
    assert store.get_message("A", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.clean_unused_topics(["B"]) == 1
    topics = {key.topic for key in store.queues()}
    assert topics == {"B", "SELF_TEST_TOPIC", "rmq_sys_x", "%LMQ%x"}
    assert store.put_message(a_message(1, topic="A")).queue_offset == 0


FOREIGN = {
    "consumequeue_ext/TopicTest/0/00000000000000000000": b"\x00\x1c" + bytes(range(100)),
    "batchconsumequeue/Batches/0/00000000000000000000": bytes(range(46)) * 10,
    "consumequeue/readme.txt": b"a file among topics",
    "consumequeue/TopicTest/notes": b"a file among queues",
    "consumequeue/TopicTest/backup/00000000000000000000": b"no number",
    "commitlog/old/00000000000000000000": b"a folder in the log",
    "index/backup/20200101000000000": b"a folder in the index",
    "index/notes.txt": b"a file in the index",
    "config/topics.json": b'{"topicConfigTable":{}}',
    "config/consumerOffset.json": b'{"offsetTable":{"T@g":{0:12}}}',
    "config/consumerOffset.json.bak": b"{}",
    "abort.bak": b"1",
    "timerwheel": bytes(64),
    "timerlog/00000000000000000000": bytes(128),
    "compaction/position-checkpoint": b"x",
    "epochFileCheckpoint": b"1-0",
}


def digests(root: Path) -> dict[str, str]:
    return {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in FOREIGN}


def a_life(root: Path, *, crash: bool) -> None:
    """Open, use and end the store, perhaps as by a crash, and open it again."""
    store = opened(root)
    store.put_messages([a_message(number) for number in range(300)])
    store.delete_topics(["TopicTest2"])
    store.flush()
    store.shutdown()
    if crash:
        (root / "abort").write_text("1")
    store = opened(root)
    assert store.max_offset(TOPIC, 0) is not None
    store._loaded().retention.step()
    store.shutdown()


@pytest.mark.parametrize("crash", [False, True])
def test_what_is_not_ours_is_the_same_after_any_life(tmp_path: Path, crash: bool) -> None:
    root = tmp_path / "store"
    opened(root).shutdown()
    for name, data in FOREIGN.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    before = digests(root)
    a_life(root, crash=crash)
    assert digests(root) == before
    assert not (root / "batchconsumequeue" / TOPIC).exists()
    store = opened(root)
    assert {key.topic for key in store.queues()} == {TOPIC}
    store.destroy()
    for topic_file in ("notes", f"backup/{0:020}"):  # deleted with their topic
        name = f"consumequeue/{TOPIC}/{topic_file}"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(FOREIGN[name])
    assert digests(root) == before


def test_a_foreign_file_in_the_log_stops_the_opening_and_is_named(tmp_path: Path) -> None:
    """Java cannot load such a log either."""
    root = tmp_path / "store"
    opened(root).shutdown()
    stray = root / "commitlog" / "core.dump"
    stray.write_bytes(b"x" * 16_384)
    with pytest.raises(SegmentError, match="core.dump"):
        opened(root)
    assert stray.read_bytes() == b"x" * 16_384
    stray.unlink()
    opened(root)


# -- batches and delays ---------------------------------------------------------------------------


def test_an_inner_batch_that_java_wrote_has_no_unit_and_is_found_by_place_and_key(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put = store.put_message(a_message(0, topic="Batches", properties={"KEYS": "batch-key"}))
    store.put_message(a_message(1))
    store.shutdown()
    log = root / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    flag_at = put.log_offset + 36
    struct.pack_into(">i", data, flag_at, struct.unpack_from(">i", data, flag_at)[0] | 0x80)
    log.write_bytes(data)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "config")  # Java does not write our files about queues
    store = opened(root)
    assert store.recovery is not None
    assert store.recovery.torn is None
    assert store.max_offset("Batches", 0) in (None, 0)
    assert store.max_offset(TOPIC, 0) == 1
    found = store.message_at(put.log_offset)
    assert found is not None
    assert store.query_message("Batches", "batch-key").messages[0].record == found.record


def test_delayed_messages_are_read_and_their_units_made_anew_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    store = opened(root)
    topic = "SCHEDULE_TOPIC_XXXX"
    for level in ("1", "3", "18", "99", "0", "-4"):
        message = a_message(0, topic=topic, properties={"DELAY": level, "TAGS": "Tag"})
        assert store.put_message(message).status is PutStatus.PUT_OK
    got = store.get_message(topic, 0, 0)
    assert got.status is GetStatus.FOUND
    time = store.store_time(topic, 0, 0)
    assert time is not None
    codes = [one.tags_code - time for one in got.messages]
    assert codes[:4] == [1_000, 10_000, 7_200_000, 7_200_000]
    assert codes[4] == codes[5] < 0  # the hash of the tag
    store.shutdown()
    file = root / "consumequeue" / topic / "0" / f"{0:020}"
    before = file.read_bytes()
    shutil.rmtree(root / "consumequeue")
    opened(root).shutdown()
    assert file.read_bytes() == before
