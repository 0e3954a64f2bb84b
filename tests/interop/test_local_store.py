"""Local stores that we write, and RocketMQ's own classes open, append to and rebuild."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.codec.golden_files import contents
from tests.interop.answers import check_answers, check_messages, check_queues
from tests.interop.local_stores import (
    QUEUES,
    START_MS,
    a_config,
    all_messages,
    index_of,
    java,
    opened,
    put_variety,
    questions,
    without_lock,
)
from tests.interop.verifier import VERSION
from tieredstore.codec.message import decode_message
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.runtime import Runtime
from tieredstore.local.store import HOUR_MS, LocalMessageStore
from tieredstore.model.messages import Message
from tieredstore.model.values import QueueKey

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def agree(root: Path, work: Path, *options: str, count: int, ask_min: int = 1_000) -> None:
    """Java opens the store, then we do: same messages, same answers, a clean end."""
    store = opened(root)
    known = all_messages(store)
    ask = questions(store, known)
    store.shutdown()
    rows = java(root, work, "--shutdown", *options, ask=ask)
    check_messages(rows, known)
    assert len(known) == count
    index, store = index_of(root), opened(root)
    check_queues(rows, store)
    counts = check_answers(rows, store, index)
    index.close()
    store.shutdown()
    assert sum(counts.values()) == len(ask) > ask_min
    [opening] = [row for row in rows if row["kind"] == "open"]
    [ending] = [row for row in rows if row["kind"] == "shutdown"]
    assert not opening["abortFilePresent"]
    assert not ending["abortFilePresent"]


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below, by its path; index files by their number, as their names are times."""
    found = contents(folder)
    if folder.name == "index":
        return {str(number): data for number, data in enumerate(found.values())}
    return found


def expire(store: LocalMessageStore, count: int) -> None:
    """Make the oldest `count` files of the log two hours too old, and run retention."""
    store.flush()  # what is not on disk yet is never deleted
    parts = store._loaded()
    old = (parts.log._clock.now_ms() - (parts.config.reserve_hours + 2) * HOUR_MS) / 1_000
    for file in parts.log.queue.files[:count]:
        os.utime(file.path, (old, old))
    assert parts.retention.step() == count


@pytest.mark.parametrize(
    ("flush", "batch"), [("ASYNC_FLUSH", 1), ("ASYNC_FLUSH", 150), ("SYNC_FLUSH", 7)]
)
def test_java_reads_answers_and_ends_a_store_as_we_do(
    flush: str, batch: int, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    store = opened(root, flush_disk_type=flush)
    put_variety(store, 400, batch=batch)
    store.shutdown()
    for folder, least in (("commitlog", 10), ("consumequeue/TopicTest/0", 2), ("index", 3)):
        assert len(list((root / folder).iterdir())) >= least
    agree(root, tmp_path, count=400)


def test_java_checks_the_property_crc_of_every_record(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root, property_crc_enabled=True)
    put_variety(store, 200)
    put_variety(store, 100, batch=50, first=200)
    assert all(b"__CRC32#" in one.selected.record for one in all_messages(store).values())
    store.shutdown()
    agree(root, tmp_path, "--prop-crc", count=300)


@pytest.mark.parametrize("killed", [False, True])
def test_java_goes_on_where_we_stopped_and_we_where_java_stopped(
    killed: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put_variety(store, 200)
    before = all_messages(store)
    store.shutdown()
    append = ("--append", "150", "--append-topic", "TopicTest", "--append-queue", "1")
    ending = () if killed else ("--shutdown",)
    rows = java(root, tmp_path, "--in-place", *ending, *append)
    assert [row for row in rows if row["kind"] == "problem"] == []
    added = [row for row in rows if row["kind"] == "append"]
    assert {row["status"] for row in added} == {"PUT_OK"}

    store = opened(root)
    assert store.recovery is not None
    assert store.recovery.abnormal is killed
    assert store.recovery.torn is None
    known = all_messages(store)
    assert {place: known[place] for place in before} == before
    for number, row in enumerate(added):
        got = store.get_message("TopicTest", 1, row["queueOffset"], count_max=1).messages[0]
        assert got.log_offset == row["physicalOffset"]
        assert decode_message(got.record).body == b"appended by java %d" % number
        [found] = store.query_message("TopicTest", f"appended{number}").messages
        assert found == got
    following = store.max_offset("TopicTest", 1)
    assert following == added[-1]["queueOffset"] + 1
    put_variety(store, 200, first=200)
    store.shutdown()
    agree(root, tmp_path, count=550)


def test_java_reads_a_store_whose_oldest_files_have_gone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root, reserve_hours=1)
    put_variety(store, 400)
    expire(store, 6)
    assert (store.min_log_offset() or 0) >= 6 * 16_384
    count = len(all_messages(store))
    assert count < 300
    store.shutdown()
    agree(root, tmp_path, count=count)


@pytest.mark.parametrize("torn_bytes", [0, 300, 700])
def test_java_recovers_a_store_that_was_copied_while_it_was_open(
    torn_bytes: int, tmp_path: Path
) -> None:
    store = opened(tmp_path / "open")
    put_variety(store, 250)
    store.flush()
    put_variety(store, 50, first=250)
    root = tmp_path / "store"
    shutil.copytree(tmp_path / "open", root, ignore=without_lock)
    known = all_messages(store)
    end = store.max_log_offset()
    store.shutdown()
    if torn_bytes:
        tear(root, end, torn_bytes)
        del known[max(known)]
    rows = java(root, tmp_path, "--index-safe", "--shutdown", "--append", "3")
    assert rows[0]["abortFilePresent"]
    added = {row["physicalOffset"] for row in rows if row["kind"] == "append"}
    assert len(added) == 3
    ours = [row for row in rows if row.get("physicalOffset") not in added]
    check_messages(ours, known)
    store = opened(root)
    assert store.recovery is not None
    assert store.recovery.abnormal
    assert all_messages(store) == known
    put_variety(store, 100, first=300)
    store.shutdown()
    agree(root, tmp_path, count=len(known) + 100)


def tear(root: Path, end: int, count: int) -> None:
    """Zero the last `count` bytes of the log: those of the last body, or of its head too."""
    file = root / "commitlog" / f"{end - end % 16_384:020}"
    with file.open("r+b") as data:
        data.seek(end % 16_384 - count)
        data.write(bytes(count))


def test_java_finds_no_message_in_a_queue_that_lost_its_only_one(tmp_path: Path) -> None:
    store = opened(tmp_path / "open")
    put_variety(store, 20)
    store.put_message(Message(topic="New", queue_id=0, body=bytes(300)))
    root = tmp_path / "store"
    shutil.copytree(tmp_path / "open", root, ignore=without_lock)
    end = store.max_log_offset()
    store.shutdown()
    tear(root, end, 300)
    opened(root).shutdown()
    agree(root, tmp_path, count=20, ask_min=20)


@pytest.mark.parametrize("is_lost", [True, False])
def test_java_finds_no_message_behind_a_queue_that_ends_with_its_file(
    is_lost: bool, tmp_path: Path
) -> None:
    """It takes the first unit of an empty file for one, or does not load the store at all."""
    units = a_config(tmp_path).queue_file_bytes // UNIT_BYTES
    message = Message(topic="T", queue_id=0, body=bytes(300))
    store = opened(tmp_path / "open")
    store.put_messages([message] * units)
    store.shutdown()
    store = opened(tmp_path / "open")
    if is_lost:
        store.put_message(message)
    root = tmp_path / "store"
    shutil.copytree(tmp_path / "open", root, ignore=without_lock)
    end = store.max_log_offset()
    store.shutdown()
    if is_lost:
        tear(root, end, 300)
    else:
        (root / "consumequeue/T/0" / f"{units * UNIT_BYTES:020}").write_bytes(bytes(400))
    opened(root).shutdown()
    agree(root, tmp_path, count=units, ask_min=100)


@pytest.mark.parametrize("expired", [0, 5])
def test_java_builds_the_queues_and_the_index_anew_with_our_bytes(
    expired: int, tmp_path: Path
) -> None:
    root, theirs, ours = tmp_path / "store", tmp_path / "theirs", tmp_path / "ours"
    store = opened(root, reserve_hours=1)
    put_variety(store, 400)
    if expired:
        expire(store, expired)
    store.shutdown()
    for copy in (theirs, ours):
        shutil.copytree(root, copy)
        shutil.rmtree(copy / "consumequeue")
        shutil.rmtree(copy / "index")
    rows = java(theirs, tmp_path, "--in-place", "--shutdown")
    assert [row for row in rows if row["kind"] == "problem"] == []
    opened(ours).shutdown()
    for folder in ("consumequeue", "index"):
        java_made, we_made = files_of(theirs / folder), files_of(ours / folder)
        assert java_made.keys() == we_made.keys()
        assert java_made == we_made
        if not expired:
            assert we_made == files_of(root / folder)


def test_queues_that_later_versions_build_from_the_last_files_are_whole_when_we_open_them(
    tmp_path: Path,
) -> None:
    """From 5.4 on, Java reads only the last 10 files of the log, `commitLogRecoverMaxNum`."""
    root, theirs = tmp_path / "store", tmp_path / "theirs"
    store = opened(root)
    put_variety(store, 1_200)
    ends = {key: (store.min_offset(*key), store.max_offset(*key)) for key in store.queues()}
    store.shutdown()
    assert len(list((root / "commitlog").iterdir())) > 30
    shutil.copytree(root, theirs)
    shutil.rmtree(theirs / "consumequeue")
    shutil.rmtree(theirs / "index")
    rows = java(theirs, tmp_path, "--in-place", "--shutdown")
    assert [row for row in rows if row["kind"] == "problem"] == []
    said = {(row["topic"], row["queueId"]): row for row in rows if row["kind"] == "queue"}
    for key, (first, end) in ends.items():
        assert said[key]["maxOffset"] == end
        assert (said[key]["minOffset"] == first) == (VERSION == "5.3.3")
    store = opened(theirs)
    assert {key: (store.min_offset(*key), store.max_offset(*key)) for key in ends} == ends
    assert len(all_messages(store)) == 1_200
    store.shutdown()


def test_java_does_not_open_a_store_that_we_have_open(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put_variety(store, 20)
    with pytest.raises(AssertionError, match="Lock failed"):
        java(root, tmp_path, "--in-place", "--shutdown")
    put_variety(store, 20, first=20)
    store.shutdown()
    agree(root, tmp_path, count=40)


def test_java_knows_that_nothing_ended_our_store(tmp_path: Path) -> None:
    store = opened(tmp_path / "open")
    put_variety(store, 20)
    shutil.copytree(tmp_path / "open", tmp_path / "store", ignore=without_lock)
    store.shutdown()
    assert java(tmp_path / "store", tmp_path)[0]["abortFilePresent"]
    assert not java(tmp_path / "open", tmp_path)[0]["abortFilePresent"]


def test_every_kind_of_queue_was_used(tmp_path: Path) -> None:
    """Otherwise the tests above would prove less than they seem to."""
    store = opened(tmp_path / "store", now_ms=START_MS)
    put_variety(store, 200)
    assert set(store.queues()) == set(map(QueueKey._make, QUEUES))
    flags = {decode_message(one.selected.record).sys_flag for one in all_messages(store).values()}
    assert {flag & 0x30 for flag in flags} == {0, 0x10, 0x20, 0x30}
    assert {flag & 0xC for flag in flags} == {0, 4, 8, 12}
    assert {flag & 0x701 for flag in flags} >= {0, 1, 0x101, 0x201, 0x301}
    store.shutdown()


@pytest.mark.parametrize("behind", [False, True])
def test_java_reads_queues_that_begin_where_they_were_told(behind: bool, tmp_path: Path) -> None:
    root = tmp_path / "store"
    if behind:
        store = opened(root)
        put_variety(store, 100)
        store.shutdown()
    store = LocalMessageStore(a_config(root), Runtime.inline(now_ms=START_MS + 3_600_000))
    store.load()
    firsts = {key: 200 + number for number, key in enumerate(QUEUES)}
    log_offset = 20 * 16_384
    store.begin_queues(firsts, log_offset=log_offset)
    store.start()
    put_variety(store, 400, first=100)
    assert {key: store.min_offset(*key) for key in firsts} == firsts
    ends = {key: store.max_offset(*key) for key in firsts}
    store.shutdown()
    rows = java(root, tmp_path, "--in-place", "--shutdown")
    assert [row for row in rows if row["kind"] == "problem"] == []
    said = {(row["topic"], row["queueId"]): row for row in rows if row["kind"] == "queue"}
    assert {key: said[key]["maxOffset"] for key in firsts} == ends
    for key, first in firsts.items():  # Java takes fills for messages if its log begins at 0
        found = said[key]["minOffset"]
        assert found == first or (behind and found < first)
    store = opened(root)
    assert {key: store.max_offset(*key) for key in firsts} == ends
    for key, first in firsts.items():
        [found] = store.get_message(*key, first, count_max=1).messages
        assert found.log_offset >= log_offset
    store.shutdown()
