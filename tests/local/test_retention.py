"""Which files go and when: by age, by room on the disk, never what is needed or unfinished."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.disk_with_room.sitecustomize import real_disk_usage
from tests.local.store_audit import crash, opened, parts_of
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local import store as local_store
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.consume_queues import DELETED_FILE
from tieredstore.local.dispatch import Dispatch
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.store import HOUR_MS, LocalMessageStore, Retention
from tieredstore.model.errors import BackendRefusedError, SegmentNotFoundError
from tieredstore.model.values import INT64_MAX, GetStatus, PutStatus
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.samples import TOPIC, a_message

FILE_BYTES = 8_192
NOW_MS = 1_700_000_000_000
LONG_AFTER_MS = 4_000_000_000_000  # by then every file is old


class Shop:
    """A store of some ten log files on a disk that is as full as we say."""

    def __init__(self, root: Path, **settings: object) -> None:
        small: dict[str, object] = {
            "store_path": str(root),
            "commit_log_file_bytes": FILE_BYTES,
            "queue_file_bytes": 400,
            "index_slot_count": 101,
            "index_item_count": 200,
            "dispatch_interval_ms": 0,
            "reserve_hours": 72,
        }
        self.root = root
        self.config = LocalConfig.from_mapping({**small, **settings})
        self.clock = ManualClock(NOW_MS)
        runtime = Runtime.inline(now_ms=NOW_MS)
        self.store = LocalMessageStore(self.config, runtime)
        self.store.load()
        self.store.start()
        self.used = 10
        self.used_per_file = 0
        parts = self.store._loaded()
        self.log = parts.log
        self.retention = Retention(
            self.config, self.clock, parts.log, parts.queues, parts.index, used_percent=self._look
        )
        parts.retention = self.retention  # puts ask it whether the disk is full
        self.store.put_messages([a_message(number, body_bytes=200) for number in range(250)])
        self.store.flush()
        self.files_before = len(self.log.queue.files)
        assert self.files_before > 8
        self.touch(self.files_before, hours_ago=0)

    def _look(self, _path: str) -> int:
        gone = (self.log.min_offset or 0) // FILE_BYTES
        return self.used - gone * self.used_per_file

    def touch(self, count: int, *, hours_ago: float) -> None:
        """Make the `count` oldest files look last written `hours_ago`."""
        moment = (self.clock.now_ms() - hours_ago * HOUR_MS) / 1_000
        for file in self.log.queue.files[:count]:
            os.utime(file.path, (moment, moment))

    @property
    def gone(self) -> int:
        assert self.log.min_offset is not None
        return self.log.min_offset // FILE_BYTES

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.root / folder).iterdir())


Opener = Callable[..., Shop]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Opener]:
    opened: list[Shop] = []

    def open_shop(**settings: object) -> Shop:
        opened.append(Shop(tmp_path / str(len(opened)), **settings))
        return opened[-1]

    yield open_shop
    for one in opened:
        one.store.shutdown()


def test_files_go_when_they_were_not_written_for_so_many_hours(shop: Opener) -> None:
    one = shop(reserve_hours=72)
    one.touch(3, hours_ago=71.9)
    assert one.retention.step() == 0
    one.clock.advance(0.2 * HOUR_MS)
    assert one.retention.step() == 3
    assert one.gone == 3
    assert f"{2 * FILE_BYTES:020}" not in one.names("commitlog")


def test_a_younger_file_keeps_older_ones_behind_it(shop: Opener) -> None:
    one = shop()
    one.touch(6, hours_ago=100)
    os.utime(one.log.queue.files[2].path, (NOW_MS / 1_000, NOW_MS / 1_000))
    assert one.retention.step() == 2
    assert one.retention.step() == 0


def test_files_that_an_operator_deleted_keep_no_others(shop: Opener) -> None:
    """Somebody who needs room at once deletes the oldest files by hand."""
    one = shop()
    one.touch(4, hours_ago=100)
    for file in one.log.queue.files[:2]:
        os.unlink(file.path)
    assert one.retention.step() == 4
    minimum = one.store.min_offset(TOPIC, 0)
    assert minimum is not None
    assert one.store.get_message(TOPIC, 0, minimum).messages[0].log_offset == 4 * FILE_BYTES


def test_the_last_file_never_goes(shop: Opener) -> None:
    one = shop(delete_count_max=1_000)
    one.touch(one.files_before, hours_ago=1_000)
    one.used = 100
    assert one.retention.step() == one.files_before - 1
    assert one.retention.step() == 0
    newest = (one.store.max_offset(TOPIC, 0) or 0) - 1
    assert one.store.get_message(TOPIC, 0, newest).status is GetStatus.FOUND


def test_no_more_files_go_in_one_look_than_the_setting_says(shop: Opener) -> None:
    one = shop(delete_count_max=2)
    one.touch(5, hours_ago=100)
    assert [one.retention.step() for _ in range(4)] == [2, 2, 1, 0]


def test_while_the_disk_is_too_full_young_files_go_but_no_more_than_it_takes(shop: Opener) -> None:
    one = shop(disk_clean_percent=75)
    one.used, one.used_per_file = 75, 2
    assert one.retention.step() == 0
    one.used = 80
    assert one.retention.step() == 3  # 80, 78, 76, 74
    assert not one.retention.disk_is_full


@pytest.mark.parametrize(
    ("needed", "gone"),
    [(0, 0), (FILE_BYTES - 1, 0), (FILE_BYTES, 1), (3 * FILE_BYTES + 1, 3), (INT64_MAX, 5)],
)
def test_only_files_wholly_below_what_a_guard_needs_go(
    shop: Opener, needed: int, gone: int
) -> None:
    one = shop()
    one.touch(5, hours_ago=100)
    one.store.add_retention_guard(lambda: needed)
    assert one.retention.step() == gone


def _same(needed: int | None) -> int | None:
    return needed


def test_of_several_guards_the_one_that_needs_most_counts(shop: Opener) -> None:
    one = shop()
    one.touch(5, hours_ago=100)
    for needed in (4 * FILE_BYTES, None, 2 * FILE_BYTES + 7, 3 * FILE_BYTES):
        one.retention.add_guard(partial(_same, needed))
    assert one.retention.step() == 2


def test_a_guard_that_fails_keeps_everything_and_is_asked_again(
    shop: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    one = shop()
    one.touch(5, hours_ago=100)
    answers: list[int] = []

    def guard() -> int:
        return answers[0]

    one.retention.add_guard(lambda: INT64_MAX)
    one.retention.add_guard(guard)
    with caplog.at_level(logging.ERROR):
        assert one.retention.step() == 0
    assert "guard failed" in caplog.text
    one.used = 95
    assert one.retention.step() == 0
    assert one.retention.disk_is_full
    answers.append(INT64_MAX)
    one.used = 10
    assert one.retention.step() == 5
    assert not one.retention.disk_is_full


def test_a_full_disk_refuses_puts_until_there_is_room(shop: Opener) -> None:
    one = shop(disk_full_percent=90)
    one.retention.add_guard(lambda: 0)
    end = one.store.max_log_offset()
    one.used = 90
    one.retention.step()
    assert one.store.put_message(a_message(250)).status is PutStatus.PUT_OK
    end = one.store.max_log_offset()
    one.used = 91
    assert one.retention.step() == 0
    result = one.store.put_message(a_message(251))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "90 percent" in result.reason
    assert one.store.max_log_offset() == end
    assert one.store.get_message(TOPIC, 0, 0).status is GetStatus.FOUND
    one.used = 60
    one.retention.step()
    assert one.store.put_message(a_message(251)).queue_offset == 251


def test_what_a_tier_needs_goes_only_if_the_settings_put_writing_first(shop: Opener) -> None:
    one = shop(delete_before_offload=True, delete_count_max=2)
    one.retention.add_guard(lambda: 0)
    one.used = 90  # above the limit for cleaning, not yet full
    assert one.retention.step() == 0
    one.used = 91
    one.used_per_file = 10
    assert one.retention.step() == 2
    assert one.gone == 2
    assert not one.retention.disk_is_full


def test_queues_and_index_follow_the_log(shop: Opener) -> None:
    one = shop()
    index_before, queue_before = one.names("index"), one.names(f"consumequeue/{TOPIC}/0")
    one.touch(6, hours_ago=100)
    assert one.retention.step() == 6
    minimum = one.store.min_offset(TOPIC, 0)
    assert minimum is not None
    first = one.store.get_message(TOPIC, 0, minimum).messages[0]
    assert first.log_offset == one.store.min_log_offset() == 6 * FILE_BYTES
    assert len(one.names(f"consumequeue/{TOPIC}/0")) < len(queue_before)
    assert one.names(f"consumequeue/{TOPIC}/0") == queue_before[minimum // 20 :]
    assert 0 < len(one.names("index")) < len(index_before)
    assert not one.store.contains(TOPIC, 0, minimum - 1)
    assert one.store.contains(TOPIC, 0, minimum)
    assert one.store.earliest_time() == one.store.earliest_time(TOPIC, 0)
    assert one.store.store_time(TOPIC, 0, minimum - 1) is None
    assert one.store.message_at(0) is None
    assert one.store.query_message(TOPIC, "key-0").messages == []
    assert len(one.store.query_message(TOPIC, f"key-{minimum}").messages) == 1


def test_reads_below_the_minimum_say_so_and_where_to_go_on(shop: Opener) -> None:
    one = shop()
    one.touch(4, hours_ago=100)
    one.retention.step()
    minimum = one.store.min_offset(TOPIC, 0)
    assert minimum
    for offset in (-1, 0, minimum - 1):
        got = one.store.get_message(TOPIC, 0, offset)
        assert (got.status, got.next_offset) == (GetStatus.OFFSET_TOO_SMALL, minimum)
        assert len(one.store.read_range(TOPIC, 0, offset, count_max=9, bytes_max=9_999)) == 0


def test_the_minimum_is_the_same_after_a_reopening(shop: Opener) -> None:
    one = shop()
    one.touch(4, hours_ago=100)
    one.retention.step()
    minimum, maximum = one.store.min_offset(TOPIC, 0), one.store.max_offset(TOPIC, 0)
    one.store.shutdown()
    again = LocalMessageStore(one.config, Runtime.inline())
    again.load()
    assert (again.min_offset(TOPIC, 0), again.max_offset(TOPIC, 0)) == (minimum, maximum)
    assert again.min_log_offset() == 4 * FILE_BYTES
    again.shutdown()


def test_queues_that_could_not_follow_do_so_in_the_next_look(
    shop: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = shop()
    one.touch(4, hours_ago=100)
    with monkeypatch.context() as patch:

        def refuse(_minimum: int) -> int:
            raise OSError("no")

        patch.setattr(one.store._loaded().queues, "delete_before", refuse)
        with pytest.raises(BackendRefusedError, match="no"):
            one.retention.step()
    assert one.store.min_offset(TOPIC, 0) == 0
    assert one.retention.step() == 0
    minimum = one.store.min_offset(TOPIC, 0)
    assert minimum is not None
    assert one.store.get_message(TOPIC, 0, minimum).messages[0].log_offset == 4 * FILE_BYTES


def test_a_queue_all_of_whose_messages_went_keeps_its_numbers(shop: Opener) -> None:
    one = shop()
    quiet = one.store.put_message(a_message(0, topic="Quiet"))
    messages = [a_message(number, body_bytes=200) for number in range(100)]
    one.store.put_messages(messages)
    one.store.flush()
    one.touch(len(one.log.queue.files), hours_ago=100)
    one.retention.step()
    one.retention.step()
    assert (one.store.min_log_offset() or 0) > quiet.log_offset
    assert (one.store.min_offset("Quiet", 0), one.store.max_offset("Quiet", 0)) == (1, 1)
    assert one.store.get_message("Quiet", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
    assert one.store.get_message("Quiet", 0, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert one.store.put_message(a_message(1, topic="Quiet")).queue_offset == 1


SHORT_FILE_BYTES = 4_096


def a_store(root: Path, **settings: object) -> LocalMessageStore:
    settings = {"commit_log_file_bytes": SHORT_FILE_BYTES, "dispatch_count_max": 10_000, **settings}
    store = opened(root, reserve_hours=0, delete_count_max=1_000, **settings)
    for number in range(0, 100, 20):
        store.put_messages([a_message(number + step, body_bytes=200) for step in range(20)])
    for file in parts_of(store).log.queue.files:
        os.utime(file.path, (1, 1))
    return store


def start_of_the_log(store: LocalMessageStore) -> int:
    assert parts_of(store).retention.step() >= 0
    return store.min_log_offset() or 0


def waits_from(store: LocalMessageStore) -> int | None:
    return parts_of(store).dispatch.undispatched_from


def test_the_queues_of_what_goes_are_on_disk_before_it_goes(tmp_path: Path) -> None:
    """After a power cut nothing else knows which numbers a quiet queue has given out."""
    here, after = tmp_path / "here", tmp_path / "after"
    here.mkdir()
    with ForgetfulDisk(here) as disk:
        store = opened(
            here,
            commit_log_file_bytes=SHORT_FILE_BYTES,
            reserve_hours=0,
            delete_count_max=1_000,
        )
        quiet = store.put_message(a_message(0, topic="Quiet"))
        store.put_messages([a_message(number, body_bytes=200) for number in range(60)])
        parts_of(store).flusher.flush()  # of the log alone
        for file in parts_of(store).log.queue.files:
            os.utime(file.path, (1, 1))
        assert start_of_the_log(store) > quiet.log_offset
        disk.synced(after)
    crash(store)
    store = opened(after, commit_log_file_bytes=SHORT_FILE_BYTES)
    assert store.put_message(a_message(1, topic="Quiet")).queue_offset == 1


def test_a_table_written_while_the_queues_follow_calls_none_of_them_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store(tmp_path)
    store.flush()
    parts = parts_of(store)
    follow = parts.queues.delete_before

    def flush_first(minimum: int) -> int:
        store.flush()
        return follow(minimum)

    monkeypatch.setattr(parts.queues, "delete_before", flush_first)
    assert start_of_the_log(store) > 0
    crash(store)
    report = opened(tmp_path, commit_log_file_bytes=SHORT_FILE_BYTES).recovery
    assert report is not None
    assert not report.rebuilt


def test_nor_does_one_written_before_they_follow_what_went_in_an_earlier_life(
    tmp_path: Path,
) -> None:
    store = a_store(tmp_path)
    store.flush()
    log = parts_of(store).log.queue
    log.delete_before(log.files[-1].start_offset)
    for _ in range(2):  # the second one finds that the queues have followed
        crash(store)
        store = opened(tmp_path, commit_log_file_bytes=SHORT_FILE_BYTES)
        assert store.recovery is not None
        assert not store.recovery.rebuilt
        assert start_of_the_log(store) > 0


def test_what_is_not_on_disk_stays(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    assert store.confirmed_offset() == 0
    assert start_of_the_log(store) == 0
    store.flush()
    assert start_of_the_log(store) > 0


@pytest.mark.parametrize("writing_first", [False, True])
def test_what_is_not_dispatched_stays_though_the_disk_is_full(
    tmp_path: Path, writing_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store(tmp_path, delete_before_offload=writing_first, dispatch_interval_ms=60_000)
    parts = parts_of(store)
    parts.log.flush()
    assert waits_from(store) == 0
    monkeypatch.setattr(parts.retention, "_used_percent", lambda _path: 101)
    assert start_of_the_log(store) == 0
    parts.dispatch.drain()
    assert waits_from(store) is None
    minimum = start_of_the_log(store)
    assert minimum > 0
    offset = store.min_offset(TOPIC, 0)
    assert offset
    got = store.get_message(TOPIC, 0, offset)
    assert (got.status, got.messages[0].log_offset) == (GetStatus.FOUND, minimum)


def test_what_is_on_disk_and_not_handed_to_the_dispatch_yet_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the queues nor the guard of a tier that needs it know of it yet."""
    store = a_store(tmp_path)
    parts, first = parts_of(store), store.max_log_offset()
    parts.dispatch.drain()
    monkeypatch.setattr(parts.retention, "_used_percent", lambda _path: 101)
    known = parts.queues.max_log_end
    parts.retention.add_guard(lambda: first if parts.queues.max_log_end > known else None)
    expiry = threading.Thread(target=parts.retention.step)
    hand_over = Dispatch.submit

    def expire_first(*arguments: Any) -> None:
        parts.log.flush()
        expiry.start()
        expiry.join(0.1)  # expiry waits for this put
        hand_over(*arguments)

    monkeypatch.setattr(Dispatch, "submit", expire_first)
    store.put_messages([a_message(number, body_bytes=200) for number in range(60)])
    expiry.join()
    assert 0 < (store.min_log_offset() or 0) <= first


def test_the_oldest_append_that_waits_is_what_is_needed(tmp_path: Path) -> None:
    store = a_store(tmp_path, dispatch_interval_ms=60_000)
    parts = parts_of(store)
    parts.dispatch.drain()
    end = store.max_log_offset()
    put = store.put_messages([a_message(200), a_message(201)])
    assert parts.dispatch.undispatched_from == put[0].log_offset >= end


def test_files_that_went_while_others_were_synced_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MappedFileQueue(tmp_path, file_bytes=100, files=MappedFiles())
    files.append(b"x" * 450)
    snapshot = files.files_from(0)
    with monkeypatch.context() as patch:
        patch.setattr(files, "files_from", lambda _offset: snapshot)
        assert len(files.delete_before(200)) == 2
        assert files.flush() == 450
    files.close()


def test_a_file_that_went_by_itself_is_an_error_for_a_sync(tmp_path: Path) -> None:
    files = MappedFileQueue(tmp_path, file_bytes=100, files=MappedFiles(open_max=1))
    files.append(b"x" * 350)
    os.unlink(files.files[0].path)
    with pytest.raises((SegmentNotFoundError, BackendRefusedError)):
        files.flush()


def test_a_minimum_that_a_late_dispatch_left_wrong_is_right_after_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store(tmp_path)
    store.flush()
    minimum = start_of_the_log(store)
    parts = parts_of(store)
    parts.queues.put("Late", 0, 7, [minimum - 300, minimum], [150, 150], [0, 0])
    assert store.min_offset("Late", 0) == 7
    assert parts.retention.step() == 0
    assert store.min_offset("Late", 0) == 8
    looked: list[ConsumeQueue] = []
    monkeypatch.setattr(ConsumeQueue, "correct_min_offset", lambda self, _at: looked.append(self))
    parts.retention.step()
    assert looked == []  # nothing was put since
    monkeypatch.undo()


def test_a_store_that_opens_on_a_full_disk_refuses_puts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"commit_log_file_bytes": FILE_BYTES, "disk_full_percent": 90}
    store = opened(tmp_path, Runtime.inline(now_ms=NOW_MS), **settings)
    store.put_messages([a_message(number, body_bytes=200) for number in range(100)])
    store.shutdown()
    for path in (tmp_path / "commitlog").iterdir():
        os.utime(path, (0, 0))  # long expired, but no guard has said yet what a tier needs
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    used = [91]
    monkeypatch.setattr(local_store, "disk_used_percent", lambda _path: used[0])
    with caplog.at_level(logging.WARNING):
        store = opened(tmp_path, Runtime.inline(now_ms=NOW_MS), **settings)
    assert "full to 91 %" in caplog.text
    assert store.put_message(a_message(100)).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.get_message(TOPIC, 0, 0).status is GetStatus.FOUND
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == names
    store.shutdown()
    used[0] = 90
    store = opened(tmp_path, Runtime.inline(now_ms=NOW_MS), **settings)
    assert store.put_message(a_message(100)).queue_offset == 100


def test_a_disk_is_as_full_as_df_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", real_disk_usage)
    disk = os.statvfs(tmp_path)
    used = disk.f_blocks - disk.f_bfree
    percent = used * 100 / (used + disk.f_bavail)
    assert abs(local_store.disk_used_percent(tmp_path) - percent) < 5  # others write there too


def test_deleted_topics_are_remembered_as_long_as_the_log_has_records_of_them(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path, Runtime.inline(now_ms=LONG_AFTER_MS), commit_log_file_bytes=FILE_BYTES)
    parts = parts_of(store)
    noted = tmp_path / "config" / DELETED_FILE
    for number in range(30):
        topic = f"short-lived-{number}"
        store.put_messages([a_message(0, topic=topic, body_bytes=200)] * 40)
        assert store.delete_topics([topic]) == 1
        store.flush()
        assert parts.retention.step() > 0
        assert len(json.loads(noted.read_bytes())["topics"]) <= 2
        assert parts.deleted.end_of(topic) > (parts.log.min_offset or 0)
    store.shutdown()
    assert opened(tmp_path, commit_log_file_bytes=FILE_BYTES).queues() == []
