"""Puts that are refused before anything is written, or that fail and leave nothing behind."""

from __future__ import annotations

import array
import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local.store_audit import a_config, check_agreement, opened, parts_of
from tieredstore.codec.message import decode_message
from tieredstore.driver.durable import write_all
from tieredstore.driver.runtime import Runtime
from tieredstore.local import mapped_file
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.encoder import RecordEncoder
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.recovery import StoreCheckpoint
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError
from tieredstore.model.messages import Message
from tieredstore.model.values import PutStatus
from tieredstore.testing.samples import TOPIC, a_message

LIGHT = {
    "both": {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "3"},
    "queues": {"INNER_MULTI_DISPATCH": "%LMQ%a"},
    "offsets": {"INNER_MULTI_QUEUE_OFFSET": "3"},
}


@pytest.mark.parametrize("properties", LIGHT.values(), ids=LIGHT)
@pytest.mark.parametrize("others", [0, 40])
def test_a_message_that_says_its_own_place_in_light_queues_is_refused(
    tmp_path: Path, properties: dict[str, str], others: int
) -> None:
    store = opened(tmp_path)
    sent = [a_message(number) for number in range(others)]
    sent.insert(others // 2, a_message(99, properties={"UNIQ_KEY": "U", **properties}))
    results = store.put_messages(sent)
    refusal = results[others // 2]
    assert refusal.status is PutStatus.MESSAGE_ILLEGAL
    assert refusal.reason.startswith("property INNER_MULTI_")
    assert sum(result.stored for result in results) == others


def test_no_producer_takes_the_place_of_a_message_in_a_queue_that_is_made_anew(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(20)])
    for number in range(3):
        store.put_message(a_message(number, topic="%LMQ%a"))
    store.put_message(a_message(50, properties={"UNIQ_KEY": "U", **LIGHT["both"]}))
    store.put_message(a_message(3, topic="%LMQ%a"))
    before = [one.log_offset for one in store.get_message("%LMQ%a", 0, 0).messages]
    assert len(before) == 4
    store.shutdown()
    (tmp_path / "abort").write_text("1")
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(tmp_path)
    assert [one.log_offset for one in store.get_message("%LMQ%a", 0, 0).messages] == before


BODIES: dict[str, Callable[[], Any]] = {
    "a view of words": lambda: memoryview(array.array("H", b"abcdefgh")),
    "an array of words": lambda: array.array("I", b"abcdefgh"),
    "a view of rows": lambda: memoryview(b"abcdefgh").cast("B", (2, 4)),
    "every other byte": lambda: memoryview(b"a.b.c.d.e.f.g.h.")[::2],
    "bytes to change": lambda: bytearray(b"abcdefgh"),
    "a view": lambda: memoryview(b"abcdefgh"),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("count", [1, 20])
def test_a_body_is_the_bytes_of_whatever_holds_them(
    tmp_path: Path, body: Callable[[], Any], count: int
) -> None:
    store = opened(tmp_path)
    sent = [dataclasses.replace(a_message(number), body=body()) for number in range(count)]
    assert store.put_messages(sent).all_ok
    found = store.get_message(TOPIC, 0, 0, count_max=count).messages
    assert [decode_message(one.record).body for one in found] == [b"abcdefgh"] * count


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("body", ["text", 7, None])
def test_a_body_that_holds_no_bytes_is_refused(count: int, body: Any) -> None:
    sent = [dataclasses.replace(a_message(0), body=body)] * count
    batch, refused = RecordEncoder(LocalConfig()).encode_all(sent)
    assert batch is None
    assert {result.status for result in refused.values()} == {PutStatus.MESSAGE_ILLEGAL}


@pytest.mark.parametrize(
    "levels", ["9999999999999999h", "1s 36501d", "9" * 5_000 + "s", "1x", "²s"]
)
def test_delays_that_no_message_could_have_are_refused_as_a_setting(levels: str) -> None:
    with pytest.raises(InvalidConfigError, match="message_delay_levels"):
        LocalConfig(message_delay_levels=levels)


def test_delays_of_a_hundred_years_and_none_at_all_are_settings() -> None:
    LocalConfig(message_delay_levels="36500d 876000h")
    LocalConfig(message_delay_levels="")


def test_results_stay_what_they_were_whatever_becomes_of_the_list(tmp_path: Path) -> None:
    store = opened(tmp_path)
    sent = [a_message(number) for number in range(20)]
    results = store.put_messages(sent)
    before = list(results)
    sent.clear()
    assert list(results) == before
    assert len(results) == 20


# -- appends that fail ----------------------------------------------------------------------------


def failing_write(patch: pytest.MonkeyPatch, number: int) -> None:
    """Let the `number`-th write fail half way, as a disk does."""
    real = write_all
    calls = 0

    def write(descriptor: int, data: Any, position: int) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            real(descriptor, memoryview(data).cast("B")[: len(data) // 2], position)
            raise OSError(5, "Input/output error")
        real(descriptor, data, position)

    patch.setattr(mapped_file, "write_all", write)


def large(number: int) -> Message:
    return a_message(number, body_bytes=900)


def made_anew(root: Path) -> LocalMessageStore:
    (root / "abort").write_text("1")
    shutil.rmtree(root / "consumequeue")
    return opened(root)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_append_that_fails_in_any_of_its_files_leaves_nothing_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = opened(tmp_path)
    kept = [store.put_message(a_message(0))]
    end = store.max_log_offset()
    with monkeypatch.context() as patch:
        failing_write(patch, number)
        with pytest.raises(BackendRefusedError):
            store.put_messages([large(each) for each in range(1, 80)])
    assert store.max_log_offset() == end
    assert store.message_at(end) is None
    assert parts_of(store).log.flushed_offset <= end
    kept += [store.put_message(a_message(each)) for each in range(100, 103)]
    assert [result.queue_offset for result in kept] == [0, 1, 2, 3]
    assert kept[1].log_offset == end
    store.shutdown()
    log_files = sorted((tmp_path / "commitlog").iterdir())
    assert not any(log_files[0].read_bytes()[kept[-1].log_offset + kept[-1].size :])
    store = made_anew(tmp_path)
    found = store.get_message(TOPIC, 0, 0).messages
    assert [one.log_offset for one in found] == [result.log_offset for result in kept]
    assert check_agreement(store) == 4


def test_a_file_made_in_advance_while_an_append_is_taken_back_fits_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.put_message(a_message(0))
    queue = parts_of(store).log.queue
    truncate = MappedFileQueue.truncate_dirty

    def reserve_and_truncate(queue: MappedFileQueue, offset: int, *, keeps_one: bool) -> None:
        queue.reserve(2)  # like the thread that keeps files ready
        truncate(queue, offset, keeps_one=keeps_one)
        queue.reserve()

    with monkeypatch.context() as patch:
        failing_write(patch, 2)
        patch.setattr(MappedFileQueue, "truncate_dirty", reserve_and_truncate)
        with pytest.raises(BackendRefusedError):
            store.put_messages([large(each) for each in range(1, 80)])
    assert store.put_messages([large(each) for each in range(1, 80)]).all_ok
    assert [file.start_offset for file in queue.files] == [0, 32_768, 65_536]
    assert check_agreement(store) == 80


def test_nothing_vouches_for_an_append_that_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    end = store.put_message(a_message(0)).log_offset
    parts = parts_of(store)
    truncate = MappedFileQueue.truncate_dirty
    flushes: list[threading.Thread] = []

    def flush_and_truncate(queue: MappedFileQueue, offset: int, *, keeps_one: bool) -> None:
        flushes.append(threading.Thread(target=store.flush))
        flushes[0].start()
        flushes[0].join(1)  # it ends now, or waits for the append
        truncate(queue, offset, keeps_one=keeps_one)

    with monkeypatch.context() as patch:
        failing_write(patch, 2)
        patch.setattr(MappedFileQueue, "truncate_dirty", flush_and_truncate)
        with pytest.raises(BackendRefusedError):
            store.put_messages([large(each) for each in range(1, 80)])
    flushes[0].join(30)
    vouched = StoreCheckpoint.open(parts.files.checkpoint).values.confirmed_offset
    assert end < vouched == store.max_log_offset()


def test_an_append_that_cannot_be_taken_back_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.put_message(a_message(0))

    def refuse(*_: object, **__: object) -> None:
        raise BackendRefusedError("commitlog", "fdatasync", "Input/output error")

    with monkeypatch.context() as patch:
        failing_write(patch, 2)
        patch.setattr(MappedFileQueue, "truncate_dirty", refuse)
        with pytest.raises(BackendRefusedError, match="Input/output"):
            store.put_messages([large(each) for each in range(1, 60)])
    with pytest.raises(BackendRefusedError, match="reopen the store"):
        store.put_message(a_message(1))
    store.shutdown()
    store = opened(tmp_path)
    assert store.put_message(a_message(2)).stored
    assert check_agreement(store) >= 2


# -- stores that take no puts ---------------------------------------------------------------------


def full(*_: object) -> None:
    raise BackendRefusedError("consumequeue", "create", "No space left on device")


def test_puts_are_refused_while_too_many_messages_wait_for_queues_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, dispatch_behind_max=10)
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "put", full)
        for number in range(10):
            assert store.put_message(a_message(number)).status is PutStatus.PUT_OK
        end = store.max_log_offset()
        for number in range(3):
            result = store.put_message(a_message(number))
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "No space left" in result.reason
        assert store.max_log_offset() == end
        assert parts_of(store).dispatch.behind_count == 10
    assert store.put_message(a_message(10)).status is PutStatus.PUT_OK
    assert store.max_offset(TOPIC, 0) == 11
    assert check_agreement(store) == 11


def test_a_put_is_stored_when_its_dispatch_fails_and_that_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalMessageStore(
        a_config(tmp_path, dispatch_interval_ms=60_000, dispatch_count_max=2), Runtime.inline()
    )
    store.load()
    store.start()
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "put", full)
        for number in range(9):
            assert store.put_message(a_message(number)).status is PutStatus.PUT_OK
    assert caplog.text.count("cannot be dispatched") == 1
    store.put_message(a_message(9))
    assert store.max_offset(TOPIC, 0) == 10
    store.shutdown()


@pytest.mark.parametrize("deleting", [False, True])
def test_a_disk_that_is_too_full_refuses_puts_unless_files_go_before_offload(
    tmp_path: Path, deleting: bool
) -> None:
    store = opened(tmp_path, delete_before_offload=deleting)
    store.add_retention_guard(lambda: 0)
    parts = parts_of(store)
    for number in range(100):
        assert store.put_message(large(number)).stored
    parts.retention._used_percent = lambda _: 101
    files = len(parts.log.queue.files)
    store.flush()
    parts.retention.step()
    assert (len(parts.log.queue.files) < files) is deleting
    result = store.put_message(a_message(0))
    if deleting:
        assert result.status is PutStatus.PUT_OK
    else:
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "disk" in result.reason
        assert "delete_before_offload" in result.reason
