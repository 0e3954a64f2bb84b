"""A process is killed while it puts, compacts or uploads: all committed keys are found again.

A child puts messages into a real directory tier and is killed at a given event; then a new process
looks for them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.every_step import every_step
from tests.flat.tiers import run_of
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.index.contract import CommittedRun
from tieredstore.index.store import IndexStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import INT64_MAX, SegmentRecord, SegmentType
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record

BATCH, BATCHES = 50, 60
QUEUE = f"b/{TOPIC}/0"


class ToldProvider(PosixProvider):
    """Writes an event to a pipe before each block of an upload and after the whole upload."""

    told = -1

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        def telling() -> Iterable[Buffer]:
            for block in blocks:
                self.tell(b"c")
                yield block

        size = super().create(segment, telling())
        self.tell(b"u")
        return size

    def tell(self, what: bytes) -> None:
        if self.told >= 0:
            os.write(self.told, what)


class Process:
    """The parts that one process opens on the folder."""

    def __init__(self, folder: Path, told: int = -1) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.config = StoreConfig(
            broker_name="b",
            cluster_name="c",
            store_path=str(folder / "store"),
            index_slot_count=101,
            index_item_count=400,
        )
        self.provider = ToldProvider(folder / "tier", "c", self.runtime)
        self.provider.told = told
        self.catalogue = JsonMetadataStore.open(self.config.catalogue_path)
        self.topic_id = self.catalogue.add_topic(TOPIC).topic_id
        self.index = IndexStore(
            self.config, provider=self.provider, metadata=self.catalogue, runtime=self.runtime
        )
        self.index.load()

    def put(self, first: int, count: int) -> None:
        kind = SegmentType.CONSUME_QUEUE
        row = SegmentRecord(path=QUEUE, type=kind, base_offset=0, size=20 * (first + count))
        self.catalogue.put(row)
        records = [
            a_record(number, properties={"KEYS": f"k{number} g{number % 7}"})
            for number in range(first, first + count)
        ]
        offsets = np.arange(first, first + count, dtype=np.int64) * 1000
        run = CommittedRun(run=run_of(first, records), log_offsets=offsets)
        self.index.put(TOPIC, self.topic_id, 0, run)

    @property
    def committed(self) -> int:
        rows = self.catalogue.segments(QUEUE, SegmentType.CONSUME_QUEUE)
        return rows[0].size // 20 if rows else 0

    def catch_up(self) -> None:
        start = self.index.indexed_offset(TOPIC, self.topic_id, 0)
        assert start is not None
        if start < self.committed:
            self.put(start, self.committed - start)

    def found(self, key: str) -> list[int]:
        answer = self.index.query(
            TOPIC, self.topic_id, key, count_max=10_000, begin=0, end=INT64_MAX
        )
        assert answer.complete
        return [hit.log_offset // 1000 for hit in answer.hits]

    def close(self) -> None:
        self.index.shutdown()
        self.catalogue.close()


def work_until_killed(folder: Path, told: int) -> None:
    """Runs in a child; never returns."""
    process = Process(folder, told)
    process.catch_up()
    for _ in range(BATCHES):
        process.put(process.committed, BATCH)
        os.write(told, b"p")
        process.runtime.clock.sleep(7)
        process.index.step()
        os.write(told, b"s")
    os._exit(0)


def killed(folder: Path, event: bytes, after: int) -> None:
    """Let a child work, and kill it after it has reported this event `after` times."""
    listener, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work_until_killed(folder, told)
        finally:
            os._exit(1)
    os.close(told)
    seen = 0
    while seen < after:
        said = os.read(listener, 1)
        if not said:
            break
        seen += said == event
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(listener)


def check(folder: Path, event: bytes, turns: Sequence[int]) -> None:
    for after in turns:
        killed(folder, event, after)
        process = Process(folder)
        process.catch_up()
        end = process.committed
        assert end
        for number in random.Random(after).sample(range(end), min(end, 60)):
            assert process.found(f"k{number}") == [number], (event, after)
        for group in range(7):
            found = process.found(f"g{group}")
            assert sorted(found) == list(range(group, end, 7)), (event, after)
        process.index.step()
        index = f"{process.config.broker_name}/rmq_sys_INDEX/0"
        listed = {(each.base, each.size) for each in process.provider.list(index)}
        rows = process.catalogue.segments(index, SegmentType.INDEX)
        assert listed == {(row.base_offset, row.size) for row in rows}
        process.close()


EVENTS = {"put": b"p", "compaction": b"c", "upload": b"u"}


@pytest.mark.parametrize("what", EVENTS)
def test_a_killed_process_leaves_every_key_to_be_found(tmp_path: Path, what: str) -> None:
    check(tmp_path, EVENTS[what], (2, 5, 9))


@pytest.mark.torture
@pytest.mark.parametrize("what", EVENTS)
def test_a_process_killed_a_hundred_times_loses_no_key(tmp_path: Path, what: str) -> None:
    for turn in range(10):
        folder = tmp_path / str(turn)
        folder.mkdir()
        check(folder, EVENTS[what], [1 + (turn * 10 + step) % 13 for step in range(10)])


@pytest.mark.parametrize("apart", [7, pytest.param(1, marks=pytest.mark.torture)])
def test_where_the_power_fails_at_any_step_every_key_is_found(tmp_path: Path, apart: int) -> None:
    """The power fails while keys are put, compacted and uploaded to a directory."""

    def live(folder: Path, stop_at: int) -> ForgetfulDisk:
        folder.mkdir()
        with ForgetfulDisk(folder, stop_at=stop_at) as disk:
            process = Process(folder)
            for _ in range(6):
                process.put(process.committed, BATCH)
                process.runtime.clock.sleep(7)
                process.index.step()
            process.close()
        return disk

    def check(disk: ForgetfulDisk, step: int) -> None:
        assert disk.died
        for has_power in (True, False):
            left = tmp_path / f"left-{step}-{has_power}"
            process = Process(disk.written(left) if has_power else disk.synced(left))
            process.catch_up()
            process.put(process.committed, BATCH)
            for _ in range(2):
                process.index.step()
                end = process.committed
                for group in range(7):
                    assert sorted(process.found(f"g{group}")) == list(range(group, end, 7))
            rows = process.catalogue.segments("b/rmq_sys_INDEX/0", SegmentType.INDEX)
            listed = {(each.base, each.size) for each in process.provider.list("b/rmq_sys_INDEX/0")}
            assert listed == {(row.base_offset, row.size) for row in rows}
            process.close()
            shutil.rmtree(left)
        shutil.rmtree(disk.folder)

    quiet = live(tmp_path / "quiet", 0)
    assert list((tmp_path / "quiet/tier").rglob("*INDEX/*/*/*"))
    steps = range(quiet.steps)[::apart]
    every_step(lambda step: live(tmp_path / f"at-{step}", step + 1), check, steps=steps)
