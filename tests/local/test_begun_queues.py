"""Queues that begin at a given offset, and a log that goes on at a higher one.

Whatever stops the store, no queue offset is given twice and no earlier message comes back.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.every_step import every_step
from tests.local.store_audit import a_config, check_agreement, crash, opened, parts_of
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import RECORD_BYTES_MIN
from tieredstore.driver.runtime import Runtime
from tieredstore.local import consume_queues
from tieredstore.local.commit_log import SKIPPED_FILES_MAX
from tieredstore.local.consume_queues import BEGUN_FILE
from tieredstore.local.reader import LocalReader
from tieredstore.local.record_scan import DAY_MS
from tieredstore.local.side_file import write_document
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidArgumentError,
    MetadataError,
    OffsetOutOfRangeError,
)
from tieredstore.model.values import QueueKey
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.samples import TOPIC, a_body, a_message

KEY = QueueKey(TOPIC, 0)
OTHER = QueueKey("Other", 2)
FILE = 32_768
FAR = 5 * FILE + 7  # a log offset far beyond what these stores hold
NUMBER = 45  # in the middle of the third file of a queue: a file has 20 units


def loaded(root: Path) -> LocalMessageStore:
    store = LocalMessageStore(a_config(root), Runtime.inline())
    store.load()
    return store


def begin(store: LocalMessageStore) -> None:
    store.begin_queues({KEY: NUMBER, OTHER: 40}, log_offset=FAR)


def put(store: LocalMessageStore, key: QueueKey = KEY) -> int:
    """Put a message whose body depends on its queue offset; return that offset."""
    wanted = store.max_offset(*key) or 0
    result = store.put_message(a_message(wanted, topic=key.topic, queue_id=key.queue_id))
    assert (result.stored, result.queue_offset) == (True, wanted)
    return wanted


def numbers(store: LocalMessageStore, key: QueueKey = KEY) -> list[int]:
    """The queue offsets that can be read; each message must have its own body."""
    found: list[int] = []
    at = store.min_offset(*key) or 0
    while page := store.get_message(*key, at).messages:
        for one in page:
            message = decode_message(one.record)
            assert message.body == a_body(one.queue_offset)
            assert message.queue_id == key.queue_id
            found.append(one.queue_offset)
        at = found[-1] + 1
    return found


def a_store_behind(root: Path) -> None:
    """A store with five messages in one queue and ten in another."""
    store = opened(root)
    for _ in range(5):
        put(store)
    for _ in range(10):
        put(store, OTHER)
    store.shutdown()


def test_a_queue_of_a_topic_that_was_just_deleted_begins_where_it_is_told(tmp_path: Path) -> None:
    """The log ends at the same offset for the deletion and the beginning; the later one counts."""
    store = opened(tmp_path)
    for _ in range(20):
        put(store)
    store.delete_topics([TOPIC])
    store.shutdown()
    store = loaded(tmp_path)
    store.begin_queues({KEY: 7}, log_offset=0)
    crash(store)
    store = opened(tmp_path)
    assert (store.min_offset(*KEY), store.max_offset(*KEY)) == (7, 7)
    assert put(store) == 7


def test_an_empty_log_begins_at_a_whole_file(tmp_path: Path) -> None:
    store = loaded(tmp_path)
    begin(store)
    assert [file.start_offset for file in parts_of(store).log.queue.files] == [6 * FILE]
    assert store.confirmed_offset() == store.min_log_offset() == 6 * FILE
    assert store.earliest_time() is None
    store.start()
    assert store.put_message(a_message(NUMBER)).log_offset == 6 * FILE
    store.shutdown()
    [path] = (tmp_path / "consumequeue" / TOPIC / "0").iterdir()
    assert int(path.name) == 40 * 20
    assert path.read_bytes()[: 5 * 20] == bytes.fromhex("00000000000000007fffffff" + "00" * 8) * 5


def test_a_log_that_is_behind_is_filled_with_blanks_that_take_no_room(tmp_path: Path) -> None:
    a_store_behind(tmp_path)
    store = loaded(tmp_path)
    earliest = store.earliest_time()
    begin(store)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert [int(file.name) for file in files] == [FILE * number for number in range(7)]
    assert all(file.stat().st_blocks * 512 <= 4_096 for file in files[1:6])
    assert store.confirmed_offset() == 6 * FILE
    assert store.earliest_time() == earliest
    store.start()
    put(store)
    store.shutdown()
    store = opened(tmp_path)
    assert store.recovery is not None
    assert not store.recovery.damages
    assert check_agreement_of_begun(store) == 1
    assert (numbers(store), numbers(store, OTHER)) == ([NUMBER], [])


def check_agreement_of_begun(store: LocalMessageStore) -> int:
    """Like `check_agreement`, but only for the records that count."""
    parts = parts_of(store)
    count = 0
    for columns in parts.log.scan_from(parts.log.min_offset or 0):
        for row, topic in enumerate(columns.topics()):
            message = decode_message(columns.record(row))
            at = int(columns.log_offsets[row])
            if at < parts.begun.counts_from(topic, message.queue_id):
                continue
            queue = parts.queues.queue(topic, message.queue_id)
            assert queue is not None
            assert queue.unit(message.queue_offset).log_offset == at
            count += 1
    return count


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("clean", [True, False])
def test_numbers_hold_over_restarts_without_and_with_a_put(
    tmp_path: Path, behind: bool, clean: bool
) -> None:
    def end(store: LocalMessageStore) -> None:
        store.shutdown() if clean else crash(store)

    if behind:
        a_store_behind(tmp_path)
    store = loaded(tmp_path)
    begin(store)
    store.start()
    end(store)
    for life in range(3):
        store = opened(tmp_path)
        assert (store.min_offset(*KEY), store.max_offset(*KEY)) == (NUMBER, NUMBER + life)
        assert (store.min_offset(*OTHER), store.max_offset(*OTHER)) == (40, 40)
        assert numbers(store) == [*range(NUMBER, NUMBER + life)]
        assert parts_of(store).log.max_offset >= 6 * FILE
        put(store)
        end(store)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("table", [True, False])
def test_queues_that_are_lost_are_made_again_from_where_they_began(
    tmp_path: Path, behind: bool, clean: bool, table: bool
) -> None:
    if behind:
        a_store_behind(tmp_path)
    store = loaded(tmp_path)
    begin(store)
    store.start()
    put(store)
    put(store)
    store.shutdown() if clean else crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    if not table:
        (tmp_path / "config" / "tieredstore-queues.json").unlink()
    store = opened(tmp_path)
    assert numbers(store) == [NUMBER, NUMBER + 1]
    assert (store.min_offset(*OTHER), store.max_offset(*OTHER)) == (40, 40)
    assert check_agreement_of_begun(store) == 2
    assert put(store, OTHER) == 40


def test_the_log_alone_says_where_a_queue_begins(tmp_path: Path) -> None:
    """Where the disk was empty, the records alone suffice: they lie far enough into the log."""
    store = loaded(tmp_path)
    begin(store)
    store.start()
    put(store)
    put(store)
    store.shutdown()
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "config" / BEGUN_FILE).unlink()
    (tmp_path / "config" / "tieredstore-queues.json").unlink()
    store = opened(tmp_path)
    assert store.recovery is not None
    assert not store.recovery.damages
    assert numbers(store) == [NUMBER, NUMBER + 1]


def test_where_an_empty_log_begins_outlives_a_power_cut(tmp_path: Path) -> None:
    """Otherwise the queue offsets of its first messages would be too large to be believed."""
    here, after = tmp_path / "here", tmp_path / "after"
    here.mkdir()
    with ForgetfulDisk(here) as disk:
        store = loaded(here)
        begin(store)
        disk.synced(after)
    crash(store)
    store = loaded(after)
    assert parts_of(store).log.max_offset >= 6 * FILE
    begin(store)
    store.start()
    assert put(store) == NUMBER
    crash(store)
    assert numbers(opened(after)) == [NUMBER]


def test_the_log_has_room_for_all_numbers_before_its_next_message(tmp_path: Path) -> None:
    store = loaded(tmp_path)
    store.begin_queues({KEY: 10_000}, log_offset=0)
    assert store.confirmed_offset() >= 10_000 * RECORD_BYTES_MIN


@pytest.mark.parametrize(("ahead_ms", "wanted_ms"), [(5_000, 5_000), (2 * DAY_MS, DAY_MS)])
def test_nothing_is_stored_before_the_time_that_was_said(
    tmp_path: Path, ahead_ms: int, wanted_ms: int
) -> None:
    store = loaded(tmp_path)
    now = Runtime.inline().clock.now_ms()
    store.begin_queues({KEY: 9}, log_offset=0, store_timestamp=now + ahead_ms)
    store.shutdown()
    for number in range(3):
        store = opened(tmp_path)
        if number:  # the first life puts no message
            assert store.put_message(a_message(0)).store_timestamp == now + wanted_ms
        assert not store.damages
        store.shutdown()
    with pytest.raises(InvalidArgumentError):
        loaded(tmp_path).begin_queues({KEY: 9}, log_offset=0, store_timestamp=True)


def test_the_time_that_was_said_counts_though_the_log_moves_on_without_messages(
    tmp_path: Path,
) -> None:
    now = Runtime.inline().clock.now_ms()
    store = loaded(tmp_path)
    store.begin_queues({KEY: 9}, log_offset=0, store_timestamp=now + 5_000)
    store.begin_queues({}, log_offset=FAR)
    for _ in range(2):  # the first life puts no message
        store.shutdown()
        store = loaded(tmp_path)
        store.begin_queues({}, log_offset=store.max_log_offset() + 1)
    store.start()
    assert store.put_message(a_message(0)).store_timestamp == now + 5_000
    store.shutdown()


def test_the_time_that_was_said_counts_though_a_power_cut_leaves_another_queue_its_number(
    tmp_path: Path,
) -> None:
    now = Runtime.inline().clock.now_ms()
    store = loaded(tmp_path)
    store.begin_queues({KEY: 9}, log_offset=0, store_timestamp=now + 5_000)
    store.start()
    while store.max_log_offset() < FAR or len(queue_files(tmp_path, OTHER)) < FAR // FILE:
        put(store, OTHER)
    crash(store)
    log_files = sorted((tmp_path / "commitlog").iterdir())
    *first, last = queue_files(tmp_path, OTHER)
    for path in (*log_files[1:], *first):
        path.unlink()
    for path in (log_files[0], last):
        path.write_bytes(bytes(path.stat().st_size))
    store = opened(tmp_path)
    assert store.put_message(a_message(0)).store_timestamp == now + 5_000


def queue_files(root: Path, key: QueueKey) -> list[Path]:
    return sorted((root / "consumequeue" / key.topic / str(key.queue_id)).glob("*"))


def test_each_topic_has_the_time_that_was_said_of_its_own_queues(tmp_path: Path) -> None:
    now = Runtime.inline().clock.now_ms()
    for key, ahead_ms in ((KEY, 1_000), (OTHER, 2_000)):
        store = loaded(tmp_path)
        store.begin_queues({key: 9}, log_offset=0, store_timestamp=now + ahead_ms)
        store.shutdown()
    store = opened(tmp_path)
    times = [store.begun_time(topic) for topic in (KEY.topic, OTHER.topic, "None")]
    assert times == [now + 1_000, now + 2_000, 0]
    store.shutdown()


def test_what_cannot_be_begun_changes_nothing(tmp_path: Path) -> None:
    a_store_behind(tmp_path)
    store = loaded(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OffsetOutOfRangeError):
        store.begin_queues({QueueKey("New", 0): 7, KEY: 4}, log_offset=FAR)
    with pytest.raises(BackendRefusedError, match="no topic"):
        store.begin_queues({QueueKey("../x", 0): 7}, log_offset=FAR)
    with pytest.raises(InvalidArgumentError):
        store.begin_queues({KEY: True}, log_offset=FAR)
    with pytest.raises(BackendRefusedError, match="files away"):
        store.begin_queues({KEY: NUMBER}, log_offset=(SKIPPED_FILES_MAX + 9) * FILE)
    (tmp_path / "abort").unlink(missing_ok=True)  # it only makes the next load look closer
    assert sorted(tmp_path.rglob("*")) == before
    store.start()
    with pytest.raises(InvalidArgumentError, match="before"):
        begin(store)
    assert put(store) == 5
    store.shutdown()


def test_a_deleted_topic_is_begun_no_more(tmp_path: Path) -> None:
    store = loaded(tmp_path)
    begin(store)
    store.start()
    assert store.delete_topics([TOPIC]) == 1
    store.shutdown()
    store = opened(tmp_path)
    assert list(store.queues()) == [OTHER]
    assert put(store) == 0
    store.shutdown()
    store = loaded(tmp_path)
    store.begin_queues({KEY: 9}, log_offset=0)
    store.shutdown()
    assert opened(tmp_path).max_offset(*KEY) == 9


def test_a_deletion_that_cannot_forget_the_begin_leaves_no_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = loaded(tmp_path)
    begin(store)
    store.start()
    for _ in range(3):
        put(store)

    def refuse(path: Path, document: Mapping[str, Any]) -> None:
        if path.name == BEGUN_FILE:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_document(path, document)

    with monkeypatch.context() as patch:
        patch.setattr(consume_queues, "write_document", refuse)
        with pytest.raises(BackendRefusedError, match="No space"):
            store.delete_topics([TOPIC])
    assert store.min_offset(*KEY) == store.max_offset(*KEY) == NUMBER + 3
    assert put(store) == NUMBER + 3
    crash(store)
    store = opened(tmp_path)
    assert numbers(store) == [NUMBER + 3]
    assert not store.query_message(TOPIC, f"key-{NUMBER}").messages
    assert store.delete_topics([TOPIC]) == 1
    assert put(store) == 0


def test_a_damaged_file_of_begun_queues_keeps_the_store_from_opening(tmp_path: Path) -> None:
    store = loaded(tmp_path)
    begin(store)
    store.shutdown()
    path = tmp_path / "config" / BEGUN_FILE
    path.write_bytes(path.read_bytes().replace(b"45", b"44"))
    with pytest.raises(MetadataError, match=BEGUN_FILE):
        loaded(tmp_path)


def test_an_entry_goes_with_the_records_it_speaks_of(tmp_path: Path) -> None:
    a_store_behind(tmp_path)
    store = loaded(tmp_path)
    begin(store)
    store.start()
    put(store)
    log = parts_of(store).log
    log.queue.delete_before(6 * FILE)
    store.shutdown()
    store = opened(tmp_path)
    assert [key for key, _ in parts_of(store).begun.items()] == [OTHER]  # it has no message yet
    assert numbers(store) == [NUMBER]


def test_a_reader_sees_what_was_put_since(tmp_path: Path) -> None:
    a_store_behind(tmp_path)
    store = loaded(tmp_path)
    begin(store)
    store.start()
    put(store)
    store.flush()
    with LocalReader.open(tmp_path) as reader:
        assert (reader.min_offset(*KEY), reader.max_offset(*KEY)) == (NUMBER, NUMBER + 1)
        assert reader.query_message(TOPIC, "key-3").messages == []
        assert reader.query_message(TOPIC, f"key-{NUMBER}").messages
        assert reader.query_message(TOPIC, "key-3").complete


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("seed", [None, *range(5)])
def test_a_store_that_dies_while_queues_begin_can_begin_them_again(
    tmp_path: Path, behind: bool, seed: int | None
) -> None:
    """The process dies at each step, or with a `seed` the power fails: the queue is as before or as
    intended, and going on brings nothing back."""
    dice = random.Random(seed)

    def life(step: int) -> tuple[bool, Path]:
        here, after = tmp_path / f"{step}", tmp_path / f"{step}-after"
        here.mkdir()
        if behind:
            a_store_behind(here)
        else:
            opened(here).shutdown()
        with ForgetfulDisk(here, stop_at=step + 1) as disk:
            store = loaded(here)
            begin(store)
            store.start()
            put(store)
            put(store)
            store.shutdown()
        if seed is None:
            disk.written(after)
        else:
            disk.cut(after, dice)
        return disk.died, after

    def check(left: tuple[bool, Path], step: int) -> bool:
        died, after = left
        store = loaded(after)
        old = store.max_offset(*KEY)
        if old is None or old < NUMBER:
            assert old == (5 if behind else None)
            assert numbers(store) == [*range(old or 0)]
            begin(store)
        store.start()
        held = numbers(store)
        assert held == [*range(NUMBER, NUMBER + len(held))]
        put(store)
        assert check_agreement_of_begun(store) >= len(held) + 1
        store.shutdown()
        shutil.rmtree(after / "consumequeue")
        store = opened(after)
        assert numbers(store) == [*held, NUMBER + len(held)]
        store.shutdown()
        shutil.rmtree(after)
        shutil.rmtree(tmp_path / f"{step}")
        return died

    assert every_step(life, check) > 20


def test_java_still_repairs_its_batch_queues_after_queues_have_begun(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store)
    crash(store)
    (tmp_path / "batchconsumequeue" / "Batches" / "0").mkdir(parents=True)
    store = loaded(tmp_path)
    begin(store)
    store.shutdown()
    assert (tmp_path / "abort").exists()


def test_check_agreement_holds_where_nothing_was_there_before(tmp_path: Path) -> None:
    store = loaded(tmp_path)
    begin(store)
    store.start()
    for _ in range(30):
        put(store)
        put(store, OTHER)
    assert check_agreement(store) == 60
    crash(store)
    assert check_agreement(opened(tmp_path)) == 60
