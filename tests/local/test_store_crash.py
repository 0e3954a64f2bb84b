"""Kills and power cuts while a store takes puts: what was acknowledged is there once.

After a power cut, pages that were not synced may hold anything.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.crash_writer import QUEUES, TOPICS, a_put
from tests.local.store_audit import (
    Ack,
    check_acks,
    check_agreement,
    check_index,
    crash,
    opened,
    parts_of,
    put_acked,
)
from tieredstore.codec.message import decode_message
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError, SegmentCorruptError
from tieredstore.model.values import GetStatus
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.samples import TOPIC, a_message

ROOT = Path(__file__).parents[2]
CHECKED_AGAIN = 150


def acks_until_killed(root: Path, flush: str, prefix: str, dice: random.Random) -> list[Ack]:
    """Start the writer, read a random number of lines, kill it; return all that it acknowledged."""
    command = [sys.executable, "-m", "tests.local.crash_writer", str(root), flush, prefix]
    writer = subprocess.Popen(
        [*command, str(dice.randrange(1 << 30))], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert writer.stdout is not None
    lines: list[bytes] = []
    try:
        lines += [writer.stdout.readline() for _ in range(dice.randrange(300))]
    finally:
        writer.kill()
        writer.wait()
    lines += writer.stdout.read().splitlines(keepends=True)
    writer.stdout.close()
    fields = [line.decode().rstrip("\n").split("\t") for line in lines if line.endswith(b"\n")]
    return [
        Ack(topic, int(queue_id), int(offset), int(place), unique_key, key, message_id)
        for topic, queue_id, offset, place, unique_key, key, message_id in fields
    ]


def kill_and_reopen(root: Path, flush: str, kills: int, dice: random.Random) -> int:
    acks: list[Ack] = []
    for generation in range(kills):
        fresh = acks_until_killed(root, flush, f"{flush[0]}{generation}", dice)
        again = dice.sample(acks, min(len(acks), CHECKED_AGAIN))
        acks += fresh
        assert len({ack.log_offset for ack in acks}) == len(acks)
        store = opened(root, flush_disk_type=flush)
        check_acks(store, [*fresh, *again])
        if generation % 5 == 4:
            check_agreement(store)
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                before = store.max_offset(topic, queue_id) or 0
                put = store.put_message(a_message(generation, topic=topic, queue_id=queue_id))
                assert put.queue_offset == before
        store.shutdown()
        assert not (root / "abort").exists()
    return len(acks)


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_nothing_acknowledged_is_lost_or_there_twice_after_a_kill(
    tmp_path: Path, flush: str
) -> None:
    assert kill_and_reopen(tmp_path, flush, 5, random.Random(flush)) > 0


@pytest.mark.torture
@pytest.mark.parametrize("history", range(20))
def test_nor_after_two_hundred_kills(tmp_path: Path, history: int) -> None:
    dice = random.Random()
    flush = ("SYNC_FLUSH", "ASYNC_FLUSH")[history % 2]
    kill_and_reopen(tmp_path, flush, 10, dice)


def run(store: LocalMessageStore, prefix: str, dice: random.Random) -> list[Ack]:
    """Put and flush in any order; return every message, confirmed or not."""
    acks: list[Ack] = []
    for _ in range(dice.randrange(1, 25)):
        if dice.random() < 0.2:
            store.flush()
            continue
        if dice.random() < 0.1:
            parts_of(store).flusher.flush()
        start = len(acks)
        messages = [a_put(prefix, start + at, dice) for at in range(dice.choice((1, 3, 20)))]
        for message, result in zip(messages, store.put_messages(messages), strict=True):
            name = message.properties["UNIQ_KEY"]
            acks.append(Ack.of(message.topic, message.queue_id, name, f"k-{name[2:]}", result))
    return acks


def check_queues(store: LocalMessageStore) -> None:
    """Each unit names the record with its number, or reported damage, or a lost part of the log."""
    parts = parts_of(store)
    found: set[int] = set()
    for key in store.queues():
        for offset in range(store.min_offset(*key) or 0, store.max_offset(*key) or 0):
            try:
                page = store.get_message(*key, offset, count_max=1)
            except SegmentCorruptError:
                continue
            if page.status is GetStatus.MESSAGE_WAS_REMOVING:
                queue = parts.queues.queue(*key)
                assert queue is not None
                assert parts.log.lost.has(queue.unit(offset).log_offset)
                continue
            got = page.messages
            assert [one.queue_offset for one in got] == [offset]
            message = decode_message(got[0].record)
            assert (message.topic, message.queue_id, message.queue_offset) == (*key, offset)
            assert message.log_offset not in found
            assert got[0].tags_code == message.tags_code
            found.add(message.log_offset)
            keys = store.query_message(key.topic, message.unique_key or "").messages
            assert [one.log_offset for one in keys] == [message.log_offset]
    in_log = {int(at) for columns in parts.log.scan_from(0) for at in columns.log_offsets}
    assert found == in_log
    check_index(parts)


def histories(root: Path, seed: int) -> None:
    dice = random.Random(seed)
    flush = dice.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
    sure: list[Ack] = []
    for generation in range(4):
        here, after = root / f"{generation}", root / f"{generation + 1}"
        here.mkdir(exist_ok=True)
        with ForgetfulDisk(here) as disk:
            store = opened(here, flush_disk_type=flush)
            check_acks(store, sure)
            check_queues(store)
            acks = run(store, f"{generation}", dice)
            confirmed = store.confirmed_offset()
            disk.cut(after, dice)
        ended = [ack for ack in acks if ack.log_offset < confirmed]
        if flush == "SYNC_FLUSH":
            assert ended == acks
        sure += ended
        crash(store)
        shutil.rmtree(here)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_nothing_confirmed_is_lost_and_nothing_is_there_twice(tmp_path: Path, seed: int) -> None:
    histories(tmp_path, seed)


@pytest.mark.torture
@pytest.mark.parametrize("number", range(300))
def test_nor_in_other_histories(tmp_path: Path, number: int) -> None:
    histories(tmp_path, random.SystemRandom().randrange(1 << 30))


@pytest.mark.parametrize("ending", [LocalMessageStore.shutdown, crash])
@pytest.mark.parametrize("lives", [1, 2])
def test_what_a_failed_sync_left_in_memory_is_on_the_disk_after_a_later_sync(
    tmp_path: Path, ending: Callable[[LocalMessageStore], None], lives: int
) -> None:
    here, settings = tmp_path / "here", {"commit_log_file_bytes": 8_192}
    here.mkdir()
    with ForgetfulDisk(here, error=True) as disk:
        store = opened(here, **settings)
        acks = [put_acked(store, number, queue_id=number % 2) for number in range(5)]
        store.flush()
        for life in range(lives):
            numbers = range(100 * life + 100, 100 * life + 140)
            acks += [put_acked(store, number, queue_id=number % 2) for number in numbers]
            disk.stop_at = disk.steps + 1
            with pytest.raises(BackendRefusedError, match="fdatasync"):
                parts_of(store).flusher.flush()
            ending(store)
            store = opened(here, **settings)
        acks.append(put_acked(store, 1_000, queue_id=0))
        store.flush()
        disk.synced(tmp_path / "after")
        store.shutdown()
    store = opened(tmp_path / "after", **settings)
    assert not store.damages
    check_acks(store, acks)
    assert check_agreement(store) == len(acks)


@pytest.mark.parametrize("lost", [slice(12, 20), slice(11, 20), slice(18, 20)])
def test_a_unit_torn_between_two_pages_is_not_believed(tmp_path: Path, lost: slice) -> None:
    store = opened(tmp_path)
    for number in range(15):
        store.put_message(a_message(number, body_bytes=300))
    crash(store)
    path = tmp_path / "consumequeue" / "TopicTest" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    last = data[14 * 20 : 15 * 20]
    last[lost] = bytes(lost.stop - lost.start)
    data[14 * 20 : 15 * 20] = last
    path.write_bytes(data)
    store = opened(tmp_path)
    assert check_agreement(store) == 15
    store.shutdown()


def test_a_log_file_that_lost_its_length_keeps_no_store_from_opening(tmp_path: Path) -> None:
    store = opened(tmp_path, commit_log_file_bytes=4_096)
    for number in range(30):
        store.put_message(a_message(number, body_bytes=300))
    crash(store)
    files = sorted((tmp_path / "commitlog").iterdir())
    os.truncate(files[1], 0)
    store = opened(tmp_path, commit_log_file_bytes=4_096)
    assert store.damages
    assert store.get_message(TOPIC, 0, 0).messages
    put = store.put_message(a_message(30))
    assert put.queue_offset == 30
    store.shutdown()
