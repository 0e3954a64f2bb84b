"""What a store repairs when it opens, and the checkpoint that says where to begin.

After a crash the log ends at its last whole record. After a clean end nothing can be torn: an
unreadable record is damage, and keeps its place and its queue offset.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import GOLDEN, contents, expected
from tests.local.store_audit import (
    EXPIRING,
    Ack,
    a_config,
    check_acks,
    check_agreement,
    crash,
    expire_one_file,
    filled,
    flip_bits,
    opened,
    overwrite,
    parts_of,
    put_acked,
)
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.local import index_service, recovery, side_file
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queue import QueueEnd
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.files import StoreFiles
from tieredstore.local.index_service import IndexService
from tieredstore.local.record_scan import DAY_MS
from tieredstore.local.recovery import CheckpointValues, StoreCheckpoint, decode_checkpoint
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    InvalidConfigError,
    SegmentCorruptError,
)
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.testing.samples import TOPIC, a_message

QUEUE_UNITS = 20  # of a file of a small store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_a_checkpoint_of_java_is_read_and_written_byte_for_byte(folder: str, path: Path) -> None:
    golden = GOLDEN / folder / "checkpoint"
    want = expected(f"{folder}.expect-state.json")["store"]["checkpoint"]
    values = StoreCheckpoint.open(golden).values
    assert values.log_timestamp == want["physicMsgTimestamp"]
    assert values.queue_timestamp == want["logicsMsgTimestamp"]
    assert values.index_timestamp == want["indexMsgTimestamp"]
    # Java answered after a recovery, which sets this value in memory.
    assert values.confirmed_offset in (0, want["confirmPhyOffset"])

    written = StoreCheckpoint.open(path)
    written.advance(
        log_timestamp=values.log_timestamp,
        queue_timestamp=values.queue_timestamp,
        index_timestamp=values.index_timestamp,
    )
    written.confirm(values.confirmed_offset)
    assert written.flush()
    assert path.read_bytes() == golden.read_bytes()


def test_the_five_fields_are_five_consecutive_numbers_of_64_bits(path: Path) -> None:
    path.write_bytes(pack(">5q", 0, 0, 0, 4, 0).ljust(4096, b"\x00"))
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.advance(log_timestamp=1, queue_timestamp=2, index_timestamp=3)
    checkpoint.confirm(5)
    checkpoint.flush()
    assert path.read_bytes() == pack(">5q", 1, 2, 3, 4, 5).ljust(4096, b"\x00")


def test_the_minimum_is_three_seconds_below_the_older_of_log_and_queues() -> None:
    assert CheckpointValues(log_timestamp=9000, queue_timestamp=9500).min_timestamp == 6000
    assert CheckpointValues(log_timestamp=9000, queue_timestamp=8000).min_timestamp == 5000
    assert CheckpointValues(log_timestamp=9000, queue_timestamp=2999).min_timestamp == 0
    assert CheckpointValues().min_timestamp == 0


def test_values_survive_a_reopening(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.advance(log_timestamp=1_700_000_000_000, queue_timestamp=1_700_000_000_005)
    checkpoint.flush()
    again = StoreCheckpoint.open(path)
    assert again.values == checkpoint.values
    assert again.values.min_timestamp == checkpoint.values.min_timestamp == 1_700_000_000_000 - 3000


def test_opening_writes_nothing_and_only_changes_are_written(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    assert not path.exists()
    assert checkpoint.flush()
    assert not checkpoint.flush()
    assert not StoreCheckpoint.open(path).flush()
    checkpoint.advance(log_timestamp=7)
    assert checkpoint.flush()
    assert StoreCheckpoint.open(path).values.log_timestamp == 7


def test_times_move_back_only_when_the_store_is_cut(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.advance(log_timestamp=50, queue_timestamp=40, index_timestamp=30)
    checkpoint.advance(log_timestamp=20, queue_timestamp=45)
    assert checkpoint.values == CheckpointValues(
        log_timestamp=50, queue_timestamp=45, index_timestamp=30
    )
    checkpoint.rewind(44)
    assert checkpoint.values == CheckpointValues(
        log_timestamp=44, queue_timestamp=44, index_timestamp=30
    )
    checkpoint.rewind(-1)
    assert checkpoint.values == CheckpointValues()


def test_the_confirmed_offset_moves_both_ways(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.confirm(9)
    checkpoint.confirm(3)
    assert checkpoint.values == CheckpointValues(confirmed_offset=3)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 20, 39, 40, 4095, 4096, 5000])
def test_a_short_file_knows_less_and_is_whole_after_the_next_flush(path: Path, length: int) -> None:
    whole = pack(">5q", 1, 2, 3, 4, 5).ljust(5000, b"\x00")
    path.write_bytes(whole[:length])
    checkpoint = StoreCheckpoint.open(path)
    known = decode_checkpoint(whole)
    for read, true in zip(
        (checkpoint.values.log_timestamp, checkpoint.values.confirmed_offset),
        (known.log_timestamp, known.confirmed_offset),
        strict=True,
    ):
        assert read in (0, true)
    checkpoint.advance(log_timestamp=9)
    assert checkpoint.flush()
    assert path.stat().st_size == max(4096, length)
    assert StoreCheckpoint.open(path).values.log_timestamp == 9


@given(st.binary(max_size=64))
def test_whatever_the_bytes_are_no_value_is_negative(data: bytes) -> None:
    values = decode_checkpoint(data)
    assert min(values.log_timestamp, values.queue_timestamp, values.index_timestamp) >= 0
    assert min(values.master_flushed_offset, values.confirmed_offset) >= 0
    assert values.min_timestamp >= 0


def test_the_rest_of_the_file_is_left_as_it_was(path: Path) -> None:
    path.write_bytes(pack(">6q", 1, 2, 3, 4, 5, 0) + b"x" * 4048)
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.advance(log_timestamp=9)
    checkpoint.flush()
    assert path.read_bytes()[40:] == bytes(8) + b"x" * 4048


def test_an_offset_that_a_later_version_wrote_is_not_vouched_for(path: Path) -> None:
    """RocketMQ 5.5 takes queues for whole up to it, even if we have cut the log since."""
    path.write_bytes(pack(">6q", 1, 2, 3, 4, 5, 1 << 40) + bytes(4048))
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.flush()
    assert path.read_bytes() == pack(">6q", 1, 2, 3, 4, 5, 0) + bytes(4048)


def test_a_file_that_somebody_removed_is_written_anew(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.flush()
    path.unlink()
    checkpoint.advance(log_timestamp=9)
    assert checkpoint.flush()
    assert StoreCheckpoint.open(path).values.log_timestamp == 9


def test_a_flush_that_failed_is_made_up_for_by_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.flush()
    checkpoint.advance(log_timestamp=9)

    def refuse(descriptor: int) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="no space"):
            checkpoint.flush()
    assert checkpoint.flush()


def no_room(*_: object, **__: object) -> Any:
    raise OSError(28, "No space left on device")


def digests(root: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(root)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in root.rglob("*")
        if path.is_file()
    }


FAILURES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "index state": lambda patch: patch.setattr(index_service, "write_atomically", no_room),
    "table of queues": lambda patch: patch.setattr(side_file, "write_atomically", no_room),
    "abort file": lambda patch: patch.setattr(StoreFiles, "remove_abort", no_room),
    "index flush": lambda patch: patch.setattr(IndexService, "flush", no_room),
    "index close": lambda patch: patch.setattr(IndexService, "close", no_room),
    "queues close": lambda patch: patch.setattr(ConsumeQueues, "close", no_room),
    "log close": lambda patch: patch.setattr(CommitLog, "close", no_room),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_store_that_cannot_end_well_still_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(30)])
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        store.shutdown()
        store.shutdown()
    store = opened(tmp_path)
    assert check_agreement(store) == 30
    assert store.put_message(a_message(30)).stored
    store.shutdown()
    assert not (tmp_path / "abort").exists()


def test_an_end_without_a_directory_for_its_tables_frees_the_lock(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(30)])
    shutil.rmtree(tmp_path / "config")
    (tmp_path / "config").write_text("in the way")
    store.shutdown()
    (tmp_path / "config").unlink()
    store = opened(tmp_path)
    assert store.max_offset(TOPIC, 0) == 30


@pytest.mark.parametrize("module", [index_service, side_file, recovery])
def test_what_cannot_be_flushed_is_an_error_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number, body_bytes=900) for number in range(60)])
    with monkeypatch.context() as patch:
        for name in ("write_atomically", "make_directories"):
            if hasattr(module, name):
                patch.setattr(module, name, no_room)
        if module is recovery:
            patch.setattr(recovery.StoreCheckpoint, "flush", no_room)
        with pytest.raises(BackendError, match="No space left"):
            store.flush()
    store.flush()


def test_a_start_that_cannot_write_is_an_error_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalMessageStore(a_config(tmp_path), Runtime.inline())
    store.load()
    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.local.files.write_all", no_room)
        with pytest.raises(BackendRefusedError, match="No space left"):
            store.start()
    store.start()
    store.shutdown()


def test_a_store_that_is_refused_is_as_it_was_before(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(30)])
    store.shutdown()
    before = digests(tmp_path)
    with pytest.raises(InvalidConfigError, match="index_slot_count"):
        opened(tmp_path, index_slot_count=77)
    assert digests(tmp_path) == before
    store = opened(tmp_path)
    assert len(store.query_message(TOPIC, "key-7").messages) == 1


def test_a_store_of_java_that_is_refused_is_as_it_was_before(tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(GOLDEN / "local-clean", root)
    before = digests(root)
    with pytest.raises(InvalidConfigError, match="commit_log_file_bytes"):
        LocalMessageStore(LocalConfig(store_path=str(root)), Runtime.inline()).load()
    assert digests(root) == before


def test_an_index_that_is_closed_has_written_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(30)])
    index = parts_of(store).index
    assert index is not None
    before = digests(tmp_path)
    index.close()
    assert digests(tmp_path) == before
    parts_of(store).index = None


# Only the checksum of the whole record can tell garbage from its properties.
SETTINGS = {
    "commit_log_file_bytes": 2048,
    "index_item_count": 20,
    "property_crc_enabled": True,
}
PROPERTIES_AT = 88 + 9 + 2 + 2  # behind the head, a body of nine bytes and a topic of one


def two_queues(root: Path) -> tuple[list[Ack], list[int]]:
    """Messages in two queues, the last three in the last file; also returns their sizes."""
    store = opened(root, **SETTINGS)
    acks, sizes = [], []
    for number in range(25):
        names = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}"}
        message = a_message(number, topic="T", queue_id=number % 2, body_bytes=9, properties=names)
        put = store.put_message(message)
        acks.append(Ack.of("T", number % 2, f"u{number}", f"k{number}", put))
        sizes.append(put.size)
        if number == 15:
            store.flush()
            shutil.copytree(root / "config", root / "as-flushed" / "config")
            shutil.copy(root / "checkpoint", root / "as-flushed" / "checkpoint")
    store.shutdown()
    return acks, sizes


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["zeros", "garbage"])
def test_cut_anywhere_in_the_last_three_records(tmp_path: Path, tail: str) -> None:
    cut_everywhere(tmp_path, tail, abort_at=0, step=3)


@pytest.mark.torture
@pytest.mark.parametrize("abort_at", [0, 1])
@pytest.mark.parametrize("tail", ["zeros", "garbage"])
def test_cut_at_any_byte_of_them(tmp_path: Path, tail: str, abort_at: int) -> None:
    cut_everywhere(tmp_path, tail, abort_at=abort_at, step=1)


def cut_everywhere(tmp_path: Path, tail: str, *, abort_at: int, step: int) -> None:
    """Cut at every `step`-th byte: after a crash if `cut % 2 == abort_at`, else a clean end."""
    whole, root = tmp_path / "whole", tmp_path / "store"
    acks, sizes = two_queues(whole)
    dice = random.Random(1)
    path = max((whole / "commitlog").iterdir())
    base, data = int(path.name), path.read_bytes()
    assert base <= acks[-3].log_offset
    for cut in range(acks[-3].log_offset, acks[-1].log_offset + sizes[-1], step):
        shutil.copytree(whole, root)
        rest = len(data) - (cut - base)
        torn = bytes(rest) if tail == "zeros" else dice.randbytes(rest)
        (root / "commitlog" / path.name).write_bytes(data[: cut - base] + torn)
        crashed = cut % 2 == abort_at
        if crashed:
            (root / "abort").touch()
            shutil.copytree(root / "as-flushed", root, dirs_exist_ok=True)
        pairs = zip(acks, sizes, strict=True)
        kept = [ack for ack, size in pairs if ack.log_offset + size <= cut]
        store = opened(root, **SETTINGS)
        check_acks(store, kept[-4:])
        if crashed:
            check_cut_off(root, store, acks, len(kept), audited=cut % 16 == abort_at)
        else:
            check_places_kept(store, acks, sizes, cut)
        shutil.rmtree(root)


def check_cut_off(
    root: Path, store: LocalMessageStore, acks: list[Ack], kept: int, *, audited: bool
) -> None:
    for lost in acks[kept:]:
        got = store.get_message(lost.topic, lost.queue_id, lost.queue_offset)
        assert got.status is GetStatus.OFFSET_OVERFLOW_ONE or not got.messages
        assert not store.query_message(lost.topic, lost.unique_key).messages
    put = store.put_message(a_message(99, topic="T", queue_id=acks[kept].queue_id))
    assert put.queue_offset == acks[kept].queue_offset
    assert put.log_offset == acks[kept].log_offset
    if audited:
        assert check_agreement(store) == kept + 1
        crash(store)
        store = opened(root, **SETTINGS)
        assert check_agreement(store) == kept + 1
    store.shutdown()


def check_places_kept(
    store: LocalMessageStore, acks: list[Ack], sizes: list[int], cut: int
) -> None:
    lost = [ack for ack, size in zip(acks, sizes, strict=True) if ack.log_offset + size > cut]
    assert store.recovery is not None
    assert lost[0].log_offset in {damage.log_offset for damage in store.recovery.damages}
    for ack in lost:
        if cut - ack.log_offset >= PROPERTIES_AT:  # a read does not know that it had another CRC
            continue
        with pytest.raises(SegmentCorruptError):
            store.get_message(ack.topic, ack.queue_id, ack.queue_offset)
        assert not store.query_message(ack.topic, ack.unique_key).messages
    for queue_id in (0, 1):
        put = store.put_message(a_message(99, topic="T", queue_id=queue_id))
        assert put.queue_offset == 1 + max(
            ack.queue_offset for ack in acks if ack.queue_id == queue_id
        )
        assert put.log_offset >= acks[-1].log_offset + sizes[-1]
        [found] = store.get_message("T", queue_id, put.queue_offset).messages
        assert found.log_offset == put.log_offset
    store.shutdown()


@pytest.mark.parametrize("lost", [[], ["consumequeue", "index", "checkpoint"]])
@pytest.mark.parametrize("lives", [[True], [True, False, True], [False, True]])
def test_what_was_put_before_property_crcs_were_switched_on_is_sound(
    tmp_path: Path, lost: list[str], lives: list[bool]
) -> None:
    """Each life ends in a kill."""
    acks: list[Ack] = []
    for life, enabled in enumerate([False, *lives, lives[-1]]):
        root = tmp_path / str(life)
        if life:
            shutil.copytree(tmp_path / str(life - 1), root)
            for name in lost:
                gone(name)(root)
        store = opened(root, commit_log_file_bytes=2048, property_crc_enabled=enabled)
        assert store.damages == ()
        check_acks(store, acks)
        numbers = range(30 * life, 30 * life + 30)
        acks += [put_acked(store, number, queue_id=number % 2) for number in numbers]
        store.get_message(TOPIC, 0, 0)  # now all messages are in their queues


@pytest.mark.parametrize("others", [0, 40])
@pytest.mark.parametrize("as_text", [False, True])
def test_what_was_put_with_the_property_crc_of_another_record_is_sound_when_they_are_switched_on(
    tmp_path: Path, as_text: bool, others: int
) -> None:
    source = opened(tmp_path / "source", property_crc_enabled=True)
    source.put_message(a_message(0))
    [found] = source.get_message(TOPIC, 0, 0).messages
    read = decode_message(found.record)
    sent = a_message(0, properties=read.properties)
    if as_text:
        sent = replace(sent, properties={}, properties_text=read.property_bytes)
    store = opened(tmp_path / "store")
    store.put_messages([a_message(number) for number in range(1, 3)])
    assert store.put_messages([sent, *[a_message(number) for number in range(others)]]).all_ok
    store.shutdown()
    store = opened(tmp_path / "store", property_crc_enabled=True)
    assert store.damages == ()
    [found] = store.get_message(TOPIC, 0, 2, count_max=1).messages
    assert found.properties == a_message(0).properties


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("pause_days", [0, 2])
@pytest.mark.parametrize("slow_days", [0, 10])
def test_no_message_is_lost_because_the_clock_is_set_back_after_a_crash(
    tmp_path: Path, before: int, pause_days: int, slow_days: int
) -> None:
    now, settings = 1_700_000_000_000, {"flush_disk_type": "SYNC_FLUSH"}
    runtime = Runtime.inline(now_ms=now)
    store = opened(tmp_path, runtime, **settings)
    acks = [put_acked(store, number, queue_id=0) for number in range(before)]
    runtime.clock.sleep(pause_days * DAY_MS / 1000)
    acks.append(put_acked(store, before, queue_id=0))
    crash(store)
    store = opened(tmp_path, Runtime.inline(now_ms=now - slow_days * DAY_MS), **settings)
    check_acks(store, acks)
    put = store.put_message(a_message(99))
    assert put.queue_offset == before + 1
    if before and (slow_days or not pause_days):  # all of the log is ahead of the clock, or none
        last = store.store_time(TOPIC, 0, before)
        assert last is not None
        assert put.store_timestamp >= last
        assert store.damages == ()


@pytest.mark.parametrize("lost", [slice(0, 8), slice(5, 7)])
def test_a_torn_unit_that_names_an_expired_record_stands_for_no_message(
    tmp_path: Path, lost: slice
) -> None:
    store = opened(tmp_path, **EXPIRING)
    for number in range(90):
        store.put_message(a_message(number))
    store.flush()
    assert expire_one_file(store) == 1
    store.flush()
    acks = [put_acked(store, number, topic="New", queue_id=0) for number in range(QUEUE_UNITS + 1)]
    crash(store)
    first, second = sorted((tmp_path / "consumequeue" / "New" / "0").iterdir())
    os.truncate(first, 0)  # the power failed: only a part of the second file was written
    overwrite(second, lost.start, bytes(lost.stop - lost.start))
    store = opened(tmp_path, **EXPIRING)
    check_acks(store, acks)
    assert check_agreement(store)


def three_topics(root: Path, count: int = 240) -> list[Ack]:
    """Three topics with two queues each; one topic has messages only where the log begins."""
    store = opened(root)
    acks: list[Ack] = []
    for number in range(count):
        topic = "Early" if number < 60 else ("Orders", "Bills")[number % 2]
        acks.append(put_acked(store, number, topic=topic, queue_id=number // 2 % 2))
        if number % 50 == 0:
            store.flush()
    store.shutdown()
    return acks


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ack]]:
    root = tmp_path_factory.mktemp("whole")
    return root, three_topics(root)


def nth(folder: str, place: int) -> Callable[[Path], None]:
    def remove(root: Path) -> None:
        sorted((root / folder).iterdir())[place].unlink()

    return remove


def gone(name: str) -> Callable[[Path], None]:
    def remove(root: Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def becomes(name: str, data: bytes) -> Callable[[Path], None]:
    def overwrite(root: Path) -> None:
        (root / name).write_bytes(data)

    return overwrite


LOSSES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda root: None,
    "all queues": gone("consumequeue"),
    "a topic": gone("consumequeue/Orders"),
    "a topic of long ago": gone("consumequeue/Early"),
    "a queue": gone("consumequeue/Bills/1"),
    "the first file of a queue": nth("consumequeue/Orders/0", 0),
    "a middle file of a queue": nth("consumequeue/Orders/0", 1),
    "the last file of a queue": nth("consumequeue/Orders/0", -1),
    "the last file of a queue of long ago": nth("consumequeue/Early/1", -1),
    "the index": gone("index"),
    "the first index file": nth("index", 0),
    "a middle index file": nth("index", 1),
    "the last index file": nth("index", -1),
    "the word on the index": gone("config/tieredstore-index.json"),
    "the checkpoint": gone("checkpoint"),
    "half of the checkpoint": becomes("checkpoint", b"\0" * 20),
    "a sound checkpoint": becomes("checkpoint", b"\xff" * 4096),
    "the sizes": gone("config/tieredstore-sizes.json"),
    "the table of the queues": gone("config/tieredstore-queues.json"),
    "a sound table": becomes("config/tieredstore-queues.json", b'{"version": 1, "queues": 3}'),
    "all that is ours alone": gone("config"),
}


def all_of(*losses: str) -> Callable[[Path], None]:
    def remove(root: Path) -> None:
        for loss in losses:
            LOSSES[loss](root)

    return remove


LOSSES |= {
    "a topic and the table": all_of("a topic of long ago", "the table of the queues"),
    "queues and index": all_of("all queues", "the index"),
    "a queue, an index file, the checkpoint": all_of(
        "a queue", "a middle index file", "the checkpoint"
    ),
}


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_missing_is_made_again(
    whole: tuple[Path, list[Ack]], tmp_path: Path, loss: str, abort: bool
) -> None:
    source, acks = whole
    root = tmp_path / "store"
    shutil.copytree(source, root)
    if abort:
        (root / "abort").write_bytes(b"1")
    LOSSES[loss](root)
    store = opened(root)
    check_acks(store, acks)
    assert check_agreement(store) == len(acks)
    assert contents(root / "consumequeue") == contents(source / "consumequeue")
    put = store.put_message(a_message(1000, topic="Orders", queue_id=0))
    assert put.queue_offset == 1 + max(
        ack.queue_offset for ack in acks if (ack.topic, ack.queue_id) == ("Orders", 0)
    )
    store.shutdown()
    store = opened(root)
    assert store.recovery is not None
    assert store.recovery.redispatched_count <= 1
    assert not store.recovery.abnormal


def test_a_queue_whose_repair_was_cut_short_is_repaired_by_the_next_opening(
    whole: tuple[Path, list[Ack]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, acks = whole
    root = tmp_path / "store"
    shutil.copytree(source, root)
    shutil.rmtree(root / "consumequeue" / "Early")
    store = LocalMessageStore(a_config(root), Runtime.inline())
    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.local.dispatch.Dispatch.put", _lights_out)
        with pytest.raises(KeyboardInterrupt):
            store.load()
    assert (root / "abort").exists()
    store = opened(root)
    check_acks(store, acks)
    assert check_agreement(store) == len(acks)
    crash(store)
    store = opened(root)
    check_acks(store, acks)
    store.shutdown()


def test_a_queue_that_was_half_removed_for_its_repair_is_repaired_by_the_next_opening(
    whole: tuple[Path, list[Ack]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, acks = whole
    root = tmp_path / "store"
    shutil.copytree(source, root)
    nth("consumequeue/Orders/0", 1)(root)
    (root / "config" / "tieredstore-queues.json").unlink()
    store = LocalMessageStore(a_config(root), Runtime.inline())
    removed: list[Path] = []
    real_unlink = os.unlink

    def unlink(path: str) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(Path(path))
        real_unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            store.load()
    assert removed[0].parent == root / "consumequeue" / "Orders" / "0"
    store = opened(root)
    check_acks(store, acks)
    assert check_agreement(store) == len(acks)


def _lights_out(*_: object) -> None:
    raise KeyboardInterrupt


COUNT, BAD = 40, 17
SPOTS = {"length": 2, "magic": 5, "crc": 9, "queue offset": 20, "place": 30, "body": 120}


def flip(root: Path, log_offset: int, spot: int) -> Path:
    path = root / "commitlog" / f"{0:020d}"
    flip_bits(path, log_offset + spot, 0x10)
    return path


def check_around(store: LocalMessageStore, acks: list[Ack], bad: int, path: Path) -> None:
    check_acks(store, [ack for number, ack in enumerate(acks) if number != bad])
    ack = acks[bad]
    with pytest.raises(SegmentCorruptError) as caught:
        store.get_message(ack.topic, ack.queue_id, ack.queue_offset)
    assert (caught.value.path, caught.value.position) == (str(path), ack.log_offset)
    assert not store.query_message(ack.topic, ack.unique_key).messages
    before = store.get_message(ack.topic, ack.queue_id, 0, count_max=32)
    assert before.next_offset == ack.queue_offset == len(before.messages)


@pytest.mark.parametrize("lost", ["nothing", "consumequeue", "index", "both"])
@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("spot", [spot for spot in SPOTS if spot != "queue offset"])
def test_damage_in_the_middle_hides_one_message_only(
    tmp_path: Path, spot: str, abort: bool, lost: str
) -> None:
    acks = filled(tmp_path, COUNT)
    path = flip(tmp_path, acks[BAD].log_offset, SPOTS[spot])
    if abort:
        (tmp_path / "abort").touch()
    for folder in {"nothing": (), "both": ("consumequeue", "index")}.get(lost, (lost,)):
        shutil.rmtree(tmp_path / folder)
    store = opened(tmp_path)
    assert store.recovery is not None
    assert [damage.log_offset for damage in store.recovery.damages] == [acks[BAD].log_offset]
    assert store.recovery.damages[0].path == str(path)
    check_around(store, acks, BAD, path)
    assert store.put_message(a_message(99, queue_id=0)).queue_offset == COUNT // 2
    store.shutdown()
    store = opened(tmp_path)
    assert store.recovery is not None
    assert store.recovery.damages
    check_around(store, acks, BAD, path)


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
def test_the_number_of_a_damaged_last_message_is_not_given_again(
    tmp_path: Path, abort: bool
) -> None:
    acks = filled(tmp_path, COUNT)
    path = flip(tmp_path, acks[-2].log_offset, SPOTS["body"])  # the last one of queue 0
    if abort:
        (tmp_path / "abort").touch()
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(tmp_path)
    check_around(store, acks, COUNT - 2, path)
    assert store.put_message(a_message(99, queue_id=0)).queue_offset == COUNT // 2


def test_several_damaged_records_in_a_row_keep_their_numbers(tmp_path: Path) -> None:
    acks = filled(tmp_path, COUNT)
    for bad in (10, 11, 12, 13, 20):
        flip(tmp_path, acks[bad].log_offset, SPOTS["length"])
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "abort").touch()
    for _ in range(2):
        store = opened(tmp_path)
        check_acks(store, [ack for at, ack in enumerate(acks) if at not in (10, 11, 12, 13, 20)])
        for bad in (10, 11, 12, 13, 20):
            with pytest.raises(SegmentCorruptError):
                store.get_message(TOPIC, acks[bad].queue_id, acks[bad].queue_offset)
        store.shutdown()


def test_a_system_that_does_less_than_it_is_asked_for_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread, pwrite = os.pread, os.pwrite

    def read_less(descriptor: int, length: int, position: int) -> bytes:
        return pread(descriptor, max(1, length // 3), position)

    def write_less(descriptor: int, data: bytes, position: int) -> int:
        return pwrite(descriptor, bytes(data)[: max(1, len(data) // 3)], position)

    monkeypatch.setattr(os, "pread", read_less)
    monkeypatch.setattr(os, "pwrite", write_less)
    acks = filled(tmp_path, 150)
    for _ in range(2):
        (tmp_path / "abort").touch()
        store = opened(tmp_path)
        assert store.recovery is not None
        assert store.recovery.damages == ()
        check_acks(store, acks)
        store.shutdown()


def test_units_of_what_a_power_cut_took_claim_nothing_of_what_is_put_there_next(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    put_acked(store, 0, queue_id=0)
    lost = [put_acked(store, number, queue_id=1) for number in range(1, 3)]
    assert store.max_offset(TOPIC, 1) == 2
    crash(store)
    overwrite(tmp_path / "commitlog" / f"{0:020d}", lost[0].log_offset, bytes(1_000))
    store = opened(tmp_path)
    assert not store.max_offset(TOPIC, 1)
    for number in range(3, 6):  # same lengths: none crosses the place where the last one ended
        put_acked(store, number, queue_id=0)
    crash(store)
    store = opened(tmp_path)
    assert not store.max_offset(TOPIC, 1)
    assert put_acked(store, 99, queue_id=1).queue_offset == 0


def a_queue_without_its_log(root: Path) -> None:
    """A power cut may take the log and a queue's first file, and leave the name of its next one."""
    store = opened(root)
    for number in range(QUEUE_UNITS + 1):
        put_acked(store, number, queue_id=0)
    assert store.max_offset(TOPIC, 0) == QUEUE_UNITS + 1
    crash(store)
    (root / "config" / "tieredstore-queues.json").unlink(missing_ok=True)
    shutil.rmtree(root / "commitlog")
    first, second = sorted((root / "consumequeue" / TOPIC / "0").iterdir())
    first.unlink()
    overwrite(second, 0, bytes(second.stat().st_size))


def test_a_queue_that_outlived_its_log_keeps_its_number_and_what_is_put_next(
    tmp_path: Path,
) -> None:
    a_queue_without_its_log(tmp_path)
    store = opened(tmp_path)
    acks = [put_acked(store, number, queue_id=0) for number in range(50, 60)]
    assert [ack.queue_offset for ack in acks] == list(range(QUEUE_UNITS, QUEUE_UNITS + 10))
    for _ in range(2):
        crash(store)
        store = opened(tmp_path)
        assert store.recovery is not None
        assert store.recovery.damages == ()
        check_acks(store, acks)


def test_a_number_that_no_log_reaches_keeps_no_room_from_other_queues(tmp_path: Path) -> None:
    a_queue_without_its_log(tmp_path)
    queues = tmp_path / "consumequeue" / TOPIC
    [file] = (queues / "0").iterdir()
    size = file.stat().st_size
    (queues / "1").mkdir()
    (queues / "1" / f"{(1 << 62) // size * size:020}").write_bytes(bytes(size))
    store = opened(tmp_path)
    ack = put_acked(store, 50, queue_id=0)
    crash(store)
    store = opened(tmp_path)
    assert store.recovery is not None
    assert store.recovery.damages == ()
    check_acks(store, [ack])


def test_a_log_that_cannot_go_on_where_a_number_has_room_takes_no_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    a_queue_without_its_log(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        store = opened(tmp_path)
    with pytest.raises(BackendRefusedError, match="no room"):
        store.put_message(a_message(50, queue_id=0))
    assert "no room" in store.damages[-1].reason
    store.shutdown()
    store = opened(tmp_path)
    ack = put_acked(store, 50, queue_id=0)
    crash(store)
    check_acks(opened(tmp_path), [ack])


def damaged(root: Path) -> None:
    store = opened(root)
    for number in range(100):
        store.put_message(a_message(number))
    store.shutdown()
    os.truncate(min((root / "index").iterdir()), 1_000)


def test_after_a_clean_end_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(tmp_path)
    warned: list[Path] = []
    monkeypatch.setattr(StoreFiles, "create_abort", lambda files: warned.append(files.root))
    store = LocalMessageStore(a_config(tmp_path), Runtime.inline())
    store.load()
    assert warned == [tmp_path]  # after a crash meanwhile half an index must not look whole
    for number in (0, 50, 99):
        assert len(store.query_message(TOPIC, f"key-{number}").messages) == 1
    store.shutdown()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_index_that_was_being_made_when_the_power_failed_is_not_taken_for_whole(
    tmp_path: Path, is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log whose keys it lacks: it was switched on later, or its files were deleted."""
    filled(tmp_path, 80, index_enabled=is_deleted)
    shutil.rmtree(tmp_path / "index")
    store = LocalMessageStore(a_config(tmp_path), Runtime.inline())
    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.local.consume_queues.ConsumeQueues.tidy", _lights_out)
        with pytest.raises(KeyboardInterrupt):
            store.load()
    made = max((tmp_path / "index").iterdir())
    overwrite(made, 40, bytes(4 * 101))  # the slots, which were not synced
    store = opened(tmp_path)
    for number in range(80):
        assert len(store.query_message(TOPIC, f"key-{number}").messages) == 1


def test_no_table_says_that_a_queue_ended_where_a_dispatch_had_not_come_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After RocketMQ has recovered the store, the rest of that dispatch is no damage."""
    store = opened(tmp_path)
    parts = parts_of(store)
    half_way, is_taken = threading.Event(), threading.Event()
    real_put, real_ends = ConsumeQueues.put, ConsumeQueues.ends

    def put(queues: ConsumeQueues, topic: str, *rest: Any) -> int:
        if topic == "Second":
            half_way.set()
            is_taken.wait(0.1)  # the table waits for this dispatch
        return real_put(queues, topic, *rest)

    def ends(queues: ConsumeQueues) -> dict[QueueKey, QueueEnd]:
        found = real_ends(queues)
        is_taken.set()
        return found

    topics = "First", "Second", "First"
    messages = [a_message(number, topic=topic) for number, topic in enumerate(topics)]
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "put", put)
        patch.setattr(ConsumeQueues, "ends", ends)
        putting = threading.Thread(target=store.put_messages, args=(messages,))
        putting.start()
        assert half_way.wait(60)
        parts.ends_moment = None  # as if the log had begun a file
        store.flush()
        putting.join()
    crash(store)
    (tmp_path / "abort").unlink()
    shutil.rmtree(tmp_path / "index")
    store = opened(tmp_path)
    assert store.damages == ()
    assert len(store.query_message("Second", "key-1").messages) == 1


def test_a_sound_index_is_no_reason_for_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.put_message(a_message(0))
    store.shutdown()
    warned: list[Path] = []
    monkeypatch.setattr(StoreFiles, "create_abort", lambda files: warned.append(files.root))
    store = LocalMessageStore(a_config(tmp_path), Runtime.inline())
    store.load()
    assert warned == []
    store.shutdown()


def test_a_store_with_it_can_be_destroyed(tmp_path: Path) -> None:
    damaged(tmp_path)
    LocalMessageStore(a_config(tmp_path), Runtime.inline()).destroy()
    assert list((tmp_path / "index").iterdir()) == []
    store = opened(tmp_path)
    assert store.max_offset(TOPIC, 0) is None
    store.shutdown()


@pytest.mark.parametrize("bit", range(0, 64, 5))
def test_keys_put_later_are_found_after_a_flip_in_the_end_of_its_header(
    tmp_path: Path, bit: int
) -> None:
    store = opened(tmp_path)
    for number in range(100):
        store.put_message(a_message(number))
    store.shutdown()
    newest = max((tmp_path / "index").iterdir())
    flip_bits(newest, 31 - bit // 8, 1 << bit % 8)  # in the last log offset, which follows 24 bytes
    store = opened(tmp_path)
    store.put_message(a_message(100))
    for number in (0, 50, 99, 100):
        assert len(store.query_message(TOPIC, f"key-{number}").messages) == 1
