"""Keys in sorted runs: cut into files and merged as a plain sort of all of them would have it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tieredstore.driver.provider import Scratch
from tieredstore.driver.runtime import Runtime
from tieredstore.index.rows import IndexColumns
from tieredstore.jobs import key_runs
from tieredstore.jobs.key_runs import KeyRun, RunWriter, file_plans, in_order, merged, staged_runs
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.providers.posix import PosixProvider

RUNTIME = Runtime.inline()
Entry = tuple[int, int, int, int, int, int]
"""Time, topic id, queue id, log offset, place within the message, hash."""


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return PosixProvider(tmp_path, "c", RUNTIME).scratch("b")


def small_steps(dice: random.Random, patch: pytest.MonkeyPatch) -> None:
    """Samples, blocks and looks back so short that few entries make many of them."""
    patch.setattr(key_runs, "SAMPLE_ENTRIES", 4)
    patch.setattr(key_runs, "_BACK_ENTRIES", dice.choice([1, 2, 64]))
    block = dice.choice([1, 3, 7])
    patch.setattr(key_runs, "_BLOCK_MIN", block)
    patch.setattr(key_runs, "_BLOCK_MAX", block)
    patch.setattr(key_runs, "_GIVEN_ENTRIES", 5)


def put_runs(scratch: Scratch, dice: random.Random) -> list[Entry]:
    """Runs of a few queues, times of which many are equal; all entries in order."""
    entries: list[Entry] = []
    span = dice.choice([1, 3, 50])
    for queue_id in range(dice.randint(1, 4)):
        offset = 0
        for part in range(dice.randint(1, 3)):
            writer = RunWriter(
                scratch,
                f"x/q{queue_id}-{part}",
                topic_id=queue_id % 2,
                queue_id=queue_id,
                first_offset=part,
                entries_max=dice.choice([5, 1000]),
            )
            for _ in range(dice.randint(0, 30)):
                time, count = dice.randint(0, span), dice.choice([0, 1, 1, 2, 5, 14])
                hashes = [dice.getrandbits(63) for _ in range(count)]
                writer.add(columns_of(hashes, queue_id, offset, time))
                for place, each in enumerate(hashes):
                    entries.append((time, queue_id % 2, queue_id, offset, place, each))
                offset += 100
            writer.finish()
    return sorted(entries, key=lambda entry: entry[:5])


def columns_of(hashes: list[int], queue_id: int, offset: int, time: int) -> IndexColumns:
    count = len(hashes)
    return IndexColumns(
        key_hashes=np.array(hashes, np.uint64),
        topic_ids=queue_id % 2,
        queue_ids=queue_id,
        log_offsets=np.full(count, offset, np.int64),
        message_bytes=np.full(count, 100, np.int64),
        store_timestamps=np.full(count, time, np.int64),
    )


def files_of(entries: list[Entry], items_max: int) -> list[list[Entry]]:
    """A message stays in one file, unless no file has room for it."""
    ends = [
        at + 1
        for at in range(len(entries))
        if at + 1 == len(entries) or entries[at][:4] != entries[at + 1][:4]
    ]
    files, start = [], 0
    while start < len(entries):
        fit = [end for end in ends if start < end <= start + items_max]
        end = fit[-1] if fit else min(start + items_max, len(entries))
        files.append(entries[start:end])
        start = end
    return files


def found_runs(scratch: Scratch) -> list[KeyRun]:
    return in_order([run for runs in staged_runs(scratch, "x").values() for run in runs])


def given(scratch: Scratch, plan: key_runs.FilePlan) -> Iterator[tuple[int, ...]]:
    for each in merged(scratch, plan.parts, RUNTIME, entries_max=8):
        topics, queues = each.topic_ids, each.queue_ids
        assert not isinstance(topics, int)
        assert not isinstance(queues, int)
        columns = (each.store_timestamps, topics, queues, each.log_offsets, each.key_hashes)
        yield from zip(*(column.tolist() for column in columns), strict=True)


def check(scratch: Scratch, seed: int, patch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    small_steps(dice, patch)
    entries = put_runs(scratch, dice)
    items_max = dice.choice([1, 4, 10, 37])
    plans = list(file_plans(scratch, found_runs(scratch), items_max=items_max))
    files = files_of(entries, items_max)
    assert [plan.count for plan in plans] == [len(file) for file in files]
    for plan, file in zip(plans, files, strict=True):
        assert plan.first_time == file[0][0]
        wanted = [(*entry[:4], entry[5]) for entry in file]
        assert list(given(scratch, plan)) == wanted
    scratch.delete([each.name for each in scratch.listed()])


def test_files_are_cut_and_merged_as_a_plain_sort_would(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(8):
        check(scratch, seed, monkeypatch)


@pytest.mark.torture
def test_many_more(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3_000):
        check(scratch, random.randrange(2**32), monkeypatch)


def test_runs_of_an_origin_that_was_not_finished_do_not_count(scratch: Scratch) -> None:
    for stem, is_finished in (("x/whole", True), ("x/cut", False)):
        writer = RunWriter(scratch, stem, topic_id=0, queue_id=0, first_offset=0, entries_max=2)
        for offset in range(5):
            writer.add(columns_of([1, 2], 0, offset, 0))
        if is_finished:
            writer.finish()
    assert list(staged_runs(scratch, "x")) == ["x/whole"]


def test_what_is_no_run_is_told(scratch: Scratch) -> None:
    scratch.put("x/y.0", [b"?" * 100])
    with pytest.raises(SegmentCorruptError, match=r"x/y\.0: .* this is no run of keys"):
        staged_runs(scratch, "x")
