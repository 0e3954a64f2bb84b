"""What is not on disk or not dispatched yet stays, however old it is and however full the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.local.store_audit import opened, parts_of
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError, SegmentNotFoundError
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import TOPIC, a_message

FILE_BYTES = 4_096


def a_store(root: Path, **settings: object) -> LocalMessageStore:
    settings = {"commit_log_file_bytes": FILE_BYTES, "dispatch_count_max": 10_000, **settings}
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


def test_what_is_not_on_disk_stays(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    assert store.confirmed_offset() == 0
    assert start_of_the_log(store) == 0
    store.flush()
    assert start_of_the_log(store) > 0
    store.shutdown()


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
    store.shutdown()


def test_the_oldest_append_that_waits_is_what_is_needed(tmp_path: Path) -> None:
    store = a_store(tmp_path, dispatch_interval_ms=60_000)
    parts = parts_of(store)
    parts.dispatch.drain()
    end = store.max_log_offset()
    put = store.put_messages([a_message(200), a_message(201)])
    assert parts.dispatch.undispatched_from == put[0].log_offset >= end
    store.shutdown()


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
    store.shutdown()
