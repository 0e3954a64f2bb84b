"""Reads while files, queues and messages go: an absence or the next message, never an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.store_audit import opened, parts_of
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.mapped_file import MappedFile
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import OffsetOutOfRangeError
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import TOPIC, a_message

Read = Callable[[LocalMessageStore], object]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalMessageStore]:
    store = opened(tmp_path, commit_log_file_bytes=4_096, reserve_hours=0, delete_count_max=4)
    for number in range(0, 100, 20):
        store.put_messages([a_message(number + step, body_bytes=200) for step in range(20)])
    store.flush()
    yield store
    store.shutdown()


def expire(store: LocalMessageStore) -> None:
    for file in parts_of(store).log.queue.files[:4]:
        os.utime(file.path, (1, 1))
    assert parts_of(store).retention.step() == 4


def delete_topic(store: LocalMessageStore) -> None:
    assert store.delete_topics([TOPIC]) == 1


def just_before(
    patch: pytest.MonkeyPatch, owner: type, name: str, then: Callable[[], None]
) -> None:
    """The first call of this method comes just after something else has happened."""
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
        (expire, GetStatus.OFFSET_TOO_SMALL),
        (delete_topic, GetStatus.NO_MESSAGE_IN_QUEUE),
    ],
    ids=["expired", "deleted"],
)
@pytest.mark.parametrize("moment", ["units", "_found"])
def test_a_message_that_goes_while_it_is_read_is_absent(
    store: LocalMessageStore,
    monkeypatch: pytest.MonkeyPatch,
    goes: Callable[[LocalMessageStore], None],
    status: GetStatus,
    moment: str,
) -> None:
    just_before(monkeypatch, ConsumeQueue, moment, lambda: goes(store))
    got = store.get_message(TOPIC, 0, 0)
    if moment == "units":
        assert got.status is status
        assert got.next_offset == (store.min_offset(TOPIC, 0) or 0)
    else:  # its unit had been read before
        assert got.status in (status, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.FOUND)


READS: dict[str, Read] = {
    "range": lambda store: len(store.read_range(TOPIC, 0, 0, count_max=5, bytes_max=5_000)),
    "store time": lambda store: store.store_time(TOPIC, 0, 0),
    "contains": lambda store: store.contains(TOPIC, 0, 0),
    "in memory": lambda store: store.in_memory(TOPIC, 0, 0),
}


@pytest.mark.parametrize("goes", [expire, delete_topic], ids=["expired", "deleted"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_other_read_of_it_finds_nothing(
    store: LocalMessageStore,
    monkeypatch: pytest.MonkeyPatch,
    read: Read,
    goes: Callable[[LocalMessageStore], None],
) -> None:
    for method in ("units", "unit"):
        with monkeypatch.context() as patch:
            just_before(patch, ConsumeQueue, method, lambda: goes(store))
            found = read(store)
        if store.min_offset(TOPIC, 0) != 0:  # that was the method that it uses
            assert not found
            return
    raise AssertionError("nothing went")


def test_the_earliest_time_is_looked_for_again_when_its_message_goes(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, MappedFile, "read", lambda: expire(store))
    assert store.earliest_time() is not None
    monkeypatch.undo()


def test_the_earliest_time_of_a_queue_is_looked_for_again_when_its_message_goes(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, ConsumeQueue, "unit", lambda: expire(store))
    assert store.earliest_time(TOPIC, 0) is not None


def test_a_search_by_time_in_a_queue_that_is_deleted_finds_nothing(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    just_before(monkeypatch, ConsumeQueue, "unit", lambda: delete_topic(store))
    assert store.offset_by_time(TOPIC, 0, 1) is None


def test_an_error_that_no_race_explains_is_raised(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_queue: ConsumeQueue, offset: int, _count: int) -> None:
        raise OffsetOutOfRangeError("a fault", offset=offset, minimum=0, maximum=0)

    monkeypatch.setattr(ConsumeQueue, "units", fail)
    with pytest.raises(OffsetOutOfRangeError):
        store.get_message(TOPIC, 0, 0)


def test_a_record_whose_file_goes_between_its_head_and_its_body_is_gone(
    store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = parts_of(store).log
    real, calls = log.queue.read, [0]

    def read(offset: int, length: int) -> bytes | None:
        calls[0] += 1
        if calls[0] == 2:
            expire(store)
        return real(offset, length)

    monkeypatch.setattr(log.queue, "read", read)
    assert store.message_at(0) is None
    assert calls[0] == 2
