"""What Java may have put into a store's directory: read or left alone, never damaged."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path

import pytest

from tests.local.store_audit import takes_what_java_writes
from tests.local.test_upstream_behaviour import opened
from tieredstore.codec.message import decode_message
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentError
from tieredstore.model.messages import Message
from tieredstore.model.values import GetStatus, PutStatus
from tieredstore.testing.samples import TOPIC, a_message

UNIT = struct.Struct(">qiq")
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
    """Opened, used, ended, perhaps as by a crash, and opened again."""
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
    for topic_file in ("notes", f"backup/{0:020}"):  # these go with their topic
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
    opened(root).shutdown()


# -- light message queues -------------------------------------------------------------------------

LMQ = {"INNER_MULTI_DISPATCH": "%LMQ%x,%LMQ%y", "INNER_MULTI_QUEUE_OFFSET": "{0},{0}"}


def a_store_with_light_queues(root: Path) -> LocalMessageStore:
    """As Java leaves it: a unit for each message in its own queue and in two light ones."""
    store = takes_what_java_writes(opened(root))
    units = b""
    for number in range(12):
        properties = {name: text.format(number) for name, text in LMQ.items()}
        put = store.put_message(a_message(number, properties=properties))
        units += UNIT.pack(put.log_offset, put.size, 0)
    store.shutdown()
    for topic in ("%LMQ%x", "%LMQ%y"):
        folder = root / "consumequeue" / topic / "0"
        folder.mkdir(parents=True)
        (folder / f"{0:020}").write_bytes(units.ljust(400, b"\0"))
    return opened(root)


def test_light_queues_that_java_wrote_are_read(tmp_path: Path) -> None:
    store = a_store_with_light_queues(tmp_path / "store")
    for topic in ("%LMQ%x", "%LMQ%y"):
        assert (store.min_offset(topic, 0), store.max_offset(topic, 0)) == (0, 12)
        got = store.get_message(topic, 0, 3, count_max=5)
        assert [one.queue_offset for one in got.messages] == [3, 4, 5, 6, 7]
        message = decode_message(got.messages[0].record)
        assert message.topic == TOPIC
        assert message.properties["INNER_MULTI_QUEUE_OFFSET"] == "3,3"
    store.shutdown()


def test_light_queues_outlive_a_crash_and_what_is_put_after_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = a_store_with_light_queues(root)
    store.put_messages([a_message(number) for number in range(100)])
    store.shutdown()
    file = root / "consumequeue" / "%LMQ%x" / "0" / f"{0:020}"
    before = file.read_bytes()
    (root / "abort").write_text("1")
    store = opened(root)
    assert store.max_offset("%LMQ%x", 0) == 12
    assert store.clean_unused_topics([]) == 1
    assert store.max_offset("%LMQ%x", 0) == 12
    store.shutdown()
    assert file.read_bytes() == before


# -- batches and delays ---------------------------------------------------------------------------


def test_inner_batches_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for message in (
        Message(topic=TOPIC, queue_id=0, body=b"x", sys_flag=0x80),
        Message(topic=TOPIC, queue_id=0, body=b"x", properties={"INNER_NUM": "3"}),
    ):
        assert store.put_message(message).status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_log_offset() == 0
    store.shutdown()


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
    shutil.rmtree(root / "config")  # Java knows nothing of our words on queues
    store = opened(root)
    assert store.recovery is not None
    assert store.recovery.torn is None
    assert store.max_offset("Batches", 0) in (None, 0)
    assert store.max_offset(TOPIC, 0) == 1
    found = store.message_at(put.log_offset)
    assert found is not None
    assert store.query_message("Batches", "batch-key").messages[0].record == found.record
    store.shutdown()


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
