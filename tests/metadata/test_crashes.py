"""A crash at every step of opening, committing, compacting and closing.

The process stops at its n-th call that writes, for every n. The store is then opened from two
pictures of the disk: one has all that was written, the other only what was synced.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.every_step import every_step
from tieredstore.driver.metadata import Change, DeleteSegment, Put, PutNote
from tieredstore.metadata import JsonMetadataStore
from tieredstore.metadata.journal import commit_line
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import SegmentType, TopicRecord
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.metadata_contract import PATH, log_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata"
NAME = "tieredStoreMetadata.json"

BATCHES: list[list[Change]] = [
    [Put(log_segment(1, 1)), Put(log_segment(101)), PutNote("k", "n", 1)],
    [Put(log_segment(1, 2)), PutNote("k", "m", 2)],
    [Put(log_segment(3)), Put(log_segment(103)), PutNote("k", "n", 3)],
    [Put(TopicRecord(topic="new", topic_id=50)), DeleteSegment(PATH, SegmentType.COMMIT_LOG, 1)],
    [PutNote("k", "n", "last"), Put(log_segment(5))],
]


State: TypeAlias = tuple[bytes, object]


def state(store: JsonMetadataStore) -> State:
    return store.snapshot_bytes(), store.notes("k")


class History:
    """What was requested and acknowledged: any sound reopening shows one of `allowed`."""

    def __init__(self, states: list[State]) -> None:
        self.states = states
        self.acknowledged = 0
        self.asked = 0

    @property
    def allowed(self) -> list[State]:
        return self.states[self.acknowledged : self.asked + 1]

    def run(self, folder: Path, compact_at: int, journal_bytes_max: int | None) -> None:
        with JsonMetadataStore.open(folder / NAME, journal_bytes_max=journal_bytes_max) as store:
            for number, batch in enumerate(BATCHES, start=1):
                self.asked = number
                store.apply(batch)
                self.acknowledged = number
                if number == compact_at:
                    store.compact()


# -- what the process finds when it starts ----------------------------------------------------


def nothing(folder: Path) -> None:
    del folder


def java_files(folder: Path) -> None:
    (folder / NAME).write_bytes((GOLDEN / "tier-index.json").read_bytes())
    (folder / f"{NAME}.bak").write_bytes((GOLDEN / "tier-index.json.bak").read_bytes())


def only_a_backup(folder: Path) -> None:
    java_files(folder)
    (folder / NAME).write_bytes(b"{")


def a_journal(folder: Path) -> None:
    """A journal with a torn tail, as a killed writer leaves it."""
    java_files(folder)
    with JsonMetadataStore.open(folder / NAME) as store:
        store.put(log_segment(70))
        store.put_note("k", "old", 1)
        ForgetfulDisk(folder).written(folder.with_name("killed"))
    shutil.rmtree(folder)
    folder.with_name("killed").rename(folder)
    with (folder / f"{NAME}.journal").open("ab") as journal:
        journal.write(b'{"crc":"12')


def an_overtaken_journal(folder: Path) -> None:
    a_journal(folder)
    (folder / NAME).write_bytes((GOLDEN / "tier-posix.json").read_bytes())


STARTS: list[Callable[[Path], None]] = [
    nothing,
    java_files,
    only_a_backup,
    a_journal,
    an_overtaken_journal,
]
every_start = pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(start, id=start.__name__, marks=[] if start is a_journal else pytest.mark.slow)
        for start in STARTS
    ],
)
by_hand_or_by_size = pytest.mark.parametrize(
    ("compact_at", "journal_bytes_max"), [(3, None), (0, 600)]
)


def prepared(prepare: Callable[[Path], None], tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    folder.mkdir()
    prepare(folder)
    return folder


def expected_states(start: Path, scratch: Path) -> list[State]:
    shutil.copytree(start, scratch)
    with JsonMetadataStore.open(scratch / NAME) as store:
        states = [state(store)]
        for batch in BATCHES:
            store.apply(batch)
            states.append(state(store))
    return states


def reopened(folder: Path) -> State:
    """What a reader sees; check that a writer sees the same and can go on."""
    with JsonMetadataStore.open(folder / NAME, read_only=True) as reader:
        seen = state(reader)
    with JsonMetadataStore.open(folder / NAME) as store:
        assert state(store) == seen
        store.put_note("other", "key", 1)
    with JsonMetadataStore.open(folder / NAME) as store:
        assert state(store) == seen
    return seen


@every_start
@by_hand_or_by_size
def test_a_crash_at_any_step_leaves_all_that_was_acknowledged(
    prepare: Callable[[Path], None], tmp_path: Path, compact_at: int, journal_bytes_max: int | None
) -> None:
    start = prepared(prepare, tmp_path)
    states = expected_states(start, tmp_path / "expected")

    def live(stop_at: int) -> tuple[ForgetfulDisk, History]:
        folder = shutil.copytree(start, tmp_path / f"at-{stop_at}")
        history = History(states)
        with ForgetfulDisk(folder, stop_at=stop_at + 1) as disk:
            history.run(folder, compact_at, journal_bytes_max)
        return disk, history

    def check(life: tuple[ForgetfulDisk, History], stop_at: int) -> bool:
        disk, history = life
        assert reopened(disk.written(tmp_path / f"written-{stop_at}")) in history.allowed
        assert reopened(disk.synced(tmp_path / f"synced-{stop_at}")) in history.allowed
        if prepare is not an_overtaken_journal:  # our own crash must not pass for RocketMQ's work
            assert not list(tmp_path.glob("*/*.stale"))
        assert disk.died or history.acknowledged == len(BATCHES)
        return disk.died

    assert every_step(live, check) > 25


@every_start
@by_hand_or_by_size
def test_an_error_at_any_step_loses_nothing_that_was_acknowledged(
    prepare: Callable[[Path], None], tmp_path: Path, compact_at: int, journal_bytes_max: int | None
) -> None:
    start = prepared(prepare, tmp_path)
    states = expected_states(start, tmp_path / "expected")
    refused: list[int] = []

    def live(stop_at: int) -> tuple[ForgetfulDisk, History]:
        folder = shutil.copytree(start, tmp_path / f"at-{stop_at}")
        history = History(states)
        with ForgetfulDisk(folder, stop_at=stop_at + 1, error=True) as disk:
            try:
                history.run(folder, compact_at, journal_bytes_max)
            except MetadataError:
                refused.append(stop_at)
        return disk, history

    def check(life: tuple[ForgetfulDisk, History], stop_at: int) -> bool:
        disk, history = life
        assert reopened(disk.folder) in history.allowed, stop_at
        return bool(disk.failed)

    every_step(live, check)
    assert len(refused) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("apart", "apart_again"), [(5, 3), pytest.param(1, 1, marks=pytest.mark.torture)]
)
def test_a_crash_while_recovering_from_a_crash_is_no_different(
    tmp_path: Path, apart: int, apart_again: int
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    java_files(start)
    states = expected_states(start, tmp_path / "expected")
    for first in range(1, 80, apart):
        for second in range(1, 20, apart_again):
            folder, history = tmp_path / f"at-{first}-{second}", History(states)
            shutil.copytree(start, folder)
            with ForgetfulDisk(folder, stop_at=first) as disk:
                history.run(folder, 3, None)
            again = disk.synced(tmp_path / f"again-{first}-{second}")
            with ForgetfulDisk(again, stop_at=second) as disk:
                JsonMetadataStore.open(again / NAME).close()
            last = disk.synced(tmp_path / f"last-{first}-{second}")
            assert reopened(last) in history.allowed, (first, second)
            for used in (folder, again, last):
                shutil.rmtree(used)


def test_missing_folders_are_made_durable(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with ForgetfulDisk(tmp_path / "root") as disk:
        JsonMetadataStore.open(tmp_path / "root" / "store" / NAME).close()
    assert (disk.synced(tmp_path / "synced") / "store").is_dir()


def test_what_a_reopened_store_shows_is_durable(tmp_path: Path) -> None:
    """A writer may have been killed between writing a line and syncing it."""
    start = prepared(a_journal, tmp_path)
    journal = start / f"{NAME}.journal"
    journal.write_bytes(journal.read_bytes().removesuffix(b'{"crc":"12'))
    disk = ForgetfulDisk(start)
    with journal.open("ab") as file:
        file.write(commit_line(3, [b'{"put":"note","kind":"k","key":"unsynced","value":1}']))
    with disk:
        store = JsonMetadataStore.open(start / NAME)
    seen = state(store)
    picture = disk.synced(tmp_path / "picture")
    store.close()
    assert seen[1] == {"old": 1, "unsynced": 1}
    assert reopened(picture) == seen


@pytest.mark.parametrize("prepare", [java_files, only_a_backup])
def test_what_is_committed_outlives_a_power_cut_though_nobody_synced_the_file_before(
    tmp_path: Path, prepare: Callable[[Path], None]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with ForgetfulDisk(here) as disk:
        prepare(here)
        store = JsonMetadataStore.open(here / NAME)
        store.apply(BATCHES[0])
        committed = state(store)
        left = disk.synced(tmp_path / "left")
        store.close()
    with JsonMetadataStore.open(left / NAME) as found:
        assert state(found) == committed


def test_a_backup_that_is_not_needed_need_not_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may have written it."""
    java_files(tmp_path)
    backup, opened = tmp_path / f"{NAME}.bak", os.open

    def refusing(path: str | Path, *arguments: int, **named: int) -> int:
        if Path(path) == backup:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refusing)
    with JsonMetadataStore.open(tmp_path / NAME) as store:
        store.apply(BATCHES[0])
