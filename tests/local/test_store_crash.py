"""Killed while it puts at full speed: what was acknowledged is there once, and more can come."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.crash_writer import QUEUES, TOPICS
from tests.local.store_audit import Ack, check_acks, check_agreement, opened
from tieredstore.testing.samples import a_message

ROOT = Path(__file__).parents[2]
CHECKED_AGAIN = 150


def acks_until_killed(root: Path, flush: str, prefix: str, dice: random.Random) -> list[Ack]:
    """Start the writer, read a random number of lines, kill it; everything it acknowledged."""
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
        if generation % 5 == 4 or generation == kills - 1:
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
    assert kill_and_reopen(tmp_path, flush, 10, random.Random(flush)) > 0


@pytest.mark.torture
@pytest.mark.parametrize("history", range(20))
def test_nor_after_two_hundred_kills(tmp_path: Path, history: int) -> None:
    dice = random.Random()
    flush = ("SYNC_FLUSH", "ASYNC_FLUSH")[history % 2]
    kill_and_reopen(tmp_path, flush, 10, dice)
