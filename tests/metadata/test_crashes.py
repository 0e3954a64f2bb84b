"""A crash at every step of opening, committing, compacting and closing.

The process stops at its n-th call that writes, for every n. The store is then opened from two
pictures of the disk: all that was written is there, and only what was synced is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.metadata.crash_disk import Crash, Disk
from tieredstore.driver.metadata import Change, DeleteSegment, Put, PutNote
from tieredstore.metadata import JsonMetadataStore
from tieredstore.metadata.journal import commit_line
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import SegmentType, TopicRecord
from tieredstore.testing.metadata_contract import PATH, log_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata"
NAME = "tieredStoreMetadata.json"
STEPS_MAX = 500

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
    """What was asked for and what was acknowledged: any sound reopening shows one of `allowed`."""

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
    """A journal with a torn tail, as a writer leaves it that was killed."""
    java_files(folder)
    with JsonMetadataStore.open(folder / NAME) as store:
        store.put(log_segment(70))
        store.put_note("k", "old", 1)
        copy = Disk(folder, stop_at=0)
        copy.written(folder.with_name("killed"))
        copy.close()
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
    """What a reader sees, which must be what a writer sees and can go on with."""
    with JsonMetadataStore.open(folder / NAME, read_only=True) as reader:
        seen = state(reader)
    with JsonMetadataStore.open(folder / NAME) as store:
        assert state(store) == seen
        store.put_note("other", "key", 1)
    with JsonMetadataStore.open(folder / NAME) as store:
        assert state(store) == seen
    return seen


def stopped(disk: Disk, run: Callable[[], None]) -> bool:
    """Run on that disk: did it crash?"""
    with pytest.MonkeyPatch.context() as patch:
        disk.patch(patch)
        try:
            run()
        except Crash:
            return True
    return False


@every_start
@by_hand_or_by_size
def test_a_crash_at_any_step_leaves_all_that_was_acknowledged(
    prepare: Callable[[Path], None], tmp_path: Path, compact_at: int, journal_bytes_max: int | None
) -> None:
    start = prepared(prepare, tmp_path)
    states = expected_states(start, tmp_path / "expected")
    for stop_at in range(1, STEPS_MAX):
        folder = tmp_path / f"at-{stop_at}"
        shutil.copytree(start, folder)
        disk, history = Disk(folder, stop_at=stop_at), History(states)
        crashed = stopped(disk, lambda: history.run(folder, compact_at, journal_bytes_max))  # noqa: B023
        written = reopened(disk.written(tmp_path / f"written-{stop_at}"))
        synced = reopened(disk.synced(tmp_path / f"synced-{stop_at}"))
        disk.close()
        assert written in history.allowed, stop_at
        assert synced in history.allowed, stop_at
        if prepare is not an_overtaken_journal:  # our own crash is not taken for RocketMQ's work
            assert not list(tmp_path.glob("*/*.stale"))
        if not crashed:
            assert history.acknowledged == len(BATCHES)
            assert stop_at > 25
            return
    pytest.fail("the history never came to its end")


@every_start
@by_hand_or_by_size
def test_an_error_at_any_step_loses_nothing_that_was_acknowledged(
    prepare: Callable[[Path], None], tmp_path: Path, compact_at: int, journal_bytes_max: int | None
) -> None:
    start = prepared(prepare, tmp_path)
    states = expected_states(start, tmp_path / "expected")
    refused = 0
    for stop_at in range(1, STEPS_MAX):
        folder = tmp_path / f"at-{stop_at}"
        shutil.copytree(start, folder)
        disk, history = Disk(folder, stop_at=stop_at, error=True), History(states)
        with pytest.MonkeyPatch.context() as patch:
            disk.patch(patch)
            try:
                history.run(folder, compact_at, journal_bytes_max)
            except MetadataError:
                refused += 1
        disk.close()
        assert reopened(folder) in history.allowed, stop_at
        if disk.steps < stop_at:
            assert refused > 5
            return
    pytest.fail("the history never came to its end")


@pytest.mark.slow
def test_a_crash_while_recovering_from_a_crash_is_no_different(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    java_files(start)
    states = expected_states(start, tmp_path / "expected")
    for first in range(1, 80, 3):
        for second in range(1, 20, 2):
            folder = tmp_path / f"at-{first}-{second}"
            shutil.copytree(start, folder)
            disk, history = Disk(folder, stop_at=first), History(states)
            stopped(disk, lambda: history.run(folder, 3, None))  # noqa: B023
            again = disk.synced(tmp_path / f"again-{first}-{second}")
            disk.close()
            disk = Disk(again, stop_at=second)
            stopped(disk, lambda: JsonMetadataStore.open(again / NAME).close())  # noqa: B023
            last = disk.synced(tmp_path / f"last-{first}-{second}")
            disk.close()
            assert reopened(last) in history.allowed, (first, second)
            for used in (folder, again, last):
                shutil.rmtree(used)


def test_missing_folders_are_made_durable(tmp_path: Path) -> None:
    disk = Disk(tmp_path, stop_at=0)
    with pytest.MonkeyPatch.context() as patch:
        disk.patch(patch)
        JsonMetadataStore.open(tmp_path / "store" / NAME).close()
    assert "store" in disk._names
    disk.close()


def test_what_a_reopened_store_shows_is_durable(tmp_path: Path) -> None:
    """A writer may have been killed between writing a line and syncing it."""
    start = prepared(a_journal, tmp_path)
    journal = start / f"{NAME}.journal"
    journal.write_bytes(journal.read_bytes().removesuffix(b'{"crc":"12'))
    disk = Disk(start, stop_at=0)
    with journal.open("ab") as file:
        file.write(commit_line(3, [b'{"put":"note","kind":"k","key":"unsynced","value":1}']))
    with pytest.MonkeyPatch.context() as patch:
        disk.patch(patch)
        store = JsonMetadataStore.open(start / NAME)
    seen = state(store)
    picture = disk.synced(tmp_path / "picture")
    store.close()
    disk.close()
    assert seen[1] == {"old": 1, "unsynced": 1}
    assert reopened(picture) == seen
