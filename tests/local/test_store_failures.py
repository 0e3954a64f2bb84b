"""Queues or index that cannot be written: nothing is lost or there twice when they can again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local.store_audit import Ack, check_acks, check_agreement, opened, parts_of
from tieredstore.codec.message import decode_message
from tieredstore.local.index_file import IndexFile
from tieredstore.local.index_service import IndexService
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError
from tieredstore.model.values import PutStatus
from tieredstore.testing.samples import TOPIC, a_message


def full_disk(real: Callable[..., Any], where: str) -> Callable[..., Any]:
    """The call, on a disk that is full for these files only."""

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


def put(store: LocalMessageStore, acks: list[Ack]) -> bool:
    """One message, which is stored whether it can be dispatched or not: whether it could."""
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
        assert put(store, acks)
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        dispatched = [put(store, acks) for _ in range(30)]
        first = dispatched.index(False)
        assert not any(dispatched[first:])
        with pytest.raises(BackendRefusedError):
            store.flush()
    assert put(store, acks)
    check_acks(store, acks)
    assert check_agreement(store) == 61
    store.shutdown()
    assert not (tmp_path / "abort").exists()
    store = opened(tmp_path, index_item_count=40)
    check_acks(store, acks)
    store.shutdown()


@pytest.mark.parametrize("failure", FAILURES)
def test_an_end_without_dispatch_is_not_clean_and_the_next_load_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    store = opened(tmp_path, index_item_count=40)
    acks: list[Ack] = []
    for _ in range(30):
        put(store, acks)
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        for _ in range(30):
            put(store, acks)
        store.shutdown()
    assert (tmp_path / "abort").exists()
    store = opened(tmp_path, index_item_count=40)
    check_acks(store, acks)
    assert check_agreement(store) == 60
    assert put(store, acks)
    store.shutdown()
    assert not (tmp_path / "abort").exists()


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
    store.shutdown()
