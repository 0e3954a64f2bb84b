"""Publishing a catalogue: how often, by whom, and what a crash at any step leaves."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.every_step import every_step
from tests.metadata.publish_kit import (
    NOW_MS,
    Process,
    copy_of,
    published,
    published_size,
)
from tieredstore.driver.metadata import LINEAGE, PutNote, StaleCatalogueError
from tieredstore.metadata import published as published_format
from tieredstore.metadata.published import KEPT
from tieredstore.model.errors import BackendUnavailableError, MetadataError
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.memory_objects import MemoryObjects

STEPS_MIN = 12


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "first").mkdir()
    return tmp_path / "first"


def test_a_reader_elsewhere_finds_all_of_it_but_our_own_notes(
    folder: Path, objects: MemoryObjects
) -> None:
    process = Process(folder, objects)
    process.grow()
    process.store.apply([PutNote("index", "footer", {"at": 7})])
    assert process.publisher.publish() == 1
    found = published(objects)
    assert found is not None
    assert found.topics() == process.store.topics()
    assert found.segments() == process.store.segments()
    assert found.notes("index") == {"footer": {"at": 7}}
    assert found.notes(LINEAGE) == {}
    facts = found.facts
    assert (facts.source, facts.copy, facts.generation, facts.epoch) == ("published", True, 1, 1)
    assert facts.written_ms == NOW_MS
    assert found.snapshot_bytes() == process.store.snapshot_bytes()
    process.close()


def test_what_is_published_costs_three_requests_and_nothing_more_while_idle(
    folder: Path, objects: MemoryObjects
) -> None:
    process = Process(folder, objects)
    assert process.publisher.publish() is None  # nothing is in it
    assert process.requests() == {}
    process.grow()
    assert process.publisher.publish() == 1
    assert process.requests() == {"list": 1, "put": 1}
    for _ in range(5):
        assert not process.publisher.has_changes
        assert process.publisher.publish() == 1
    assert process.requests() == {}
    for size in range(200, 210):  # many commits, one publication
        process.grow(size)
    assert process.publisher.has_changes
    assert process.publisher.publish() == 2
    assert process.requests() == {"list": 1, "put": 1}
    for size in range(300, 300 + KEPT):
        process.grow(size)
        process.publisher.publish()
    assert process.requests() == {"list": KEPT, "put": KEPT, "delete": KEPT - 1}
    assert len(objects.held_keys(".catalog/")) == KEPT
    process.close()


def test_a_process_that_changes_nothing_publishes_nothing(
    folder: Path, objects: MemoryObjects
) -> None:
    first = Process(folder, objects)
    first.grow()
    first.publisher.publish()
    first.close()
    again = Process(folder, objects)
    assert again.publisher.publish() == 1
    assert again.requests() == {}
    again.grow(200)
    assert again.publisher.publish() == 2
    assert again.requests() == {"list": 1, "get": 1, "put": 1}
    found = published(objects)
    assert found is not None
    assert found.facts.epoch == 2
    again.close()


def test_of_two_writers_that_race_one_wins_and_the_other_learns(
    folder: Path, objects: MemoryObjects
) -> None:
    first = Process(folder, objects)
    first.grow()
    first.publisher.publish()
    other = Process(copy_of(folder, folder.parent / "other"), objects)
    other.grow(500)
    assert other.publisher.publish() == 2  # it knows all that was published, and goes on
    first.grow(300)
    first.requests()
    for _ in range(3):
        with pytest.raises(StaleCatalogueError, match="another writer"):
            first.publisher.publish()
    assert first.requests() == {"list": 1, "get": 1}  # it has learned
    assert "another writer" in (first.publisher.problem or "")
    assert first.publisher.failure_count == 3
    other.grow(600)
    assert other.publisher.publish() == 3
    assert published_size(objects) == 600
    first.close()
    other.close()


def test_who_comes_second_to_a_generation_changes_nothing(
    folder: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have listed before either has created."""
    first = Process(folder, objects)
    other = Process(folder.parent / "other", objects)
    first.grow(100)
    other.grow(500)
    listed = other.generations.listed()
    assert first.publisher.publish() == 1
    monkeypatch.setattr(other.generations, "listed", lambda: listed)
    with pytest.raises(MetadataError, match="another writer has published"):
        other.publisher.publish()
    monkeypatch.undo()
    with pytest.raises(StaleCatalogueError):
        other.publisher.publish()
    assert published_size(objects) == 100
    first.grow(200)
    assert first.publisher.publish() == 2
    first.close()
    other.close()


def test_a_file_that_was_begun_anew_or_restored_does_not_undo_what_is_published(
    folder: Path, objects: MemoryObjects
) -> None:
    first = Process(folder, objects)
    first.grow(100)
    first.publisher.publish()
    old = copy_of(folder, folder.parent / "old")
    first.grow(200)
    first.publisher.publish()
    first.close()
    for other in (Process(old, objects), Process(folder.parent / "new", objects)):
        other.grow(7)
        with pytest.raises(StaleCatalogueError, match="rebuild"):
            other.publisher.publish()
        with pytest.raises(StaleCatalogueError):
            other.publisher.check()
        other.close()
    assert published_size(objects) == 200


def test_what_was_adopted_may_be_replaced(folder: Path, objects: MemoryObjects) -> None:
    first = Process(folder, objects)
    first.grow(100)
    first.publisher.publish()
    first.close()
    other = Process(folder.parent / "new", objects)
    other.publisher.adopt()
    other.grow(200)
    other.publisher.check()
    assert other.publisher.publish() == 2
    other.close()
    stale = Process(folder, objects)
    stale.grow(300)
    with pytest.raises(StaleCatalogueError):
        stale.publisher.publish()
    stale.close()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_request_that_fails_is_a_problem_until_the_next_time(
    folder: Path, objects: MemoryObjects, fault: Fault
) -> None:
    for step in range(3):
        faults = Faults()
        process = Process(folder, objects, faults)
        process.grow(1_000 + step)
        process.publisher.publish()
        process.grow(2_000 + step)
        faults.strike(fault, after=step)
        try:
            process.publisher.publish()
        except BackendUnavailableError:
            assert process.publisher.problem is not None
            assert process.publisher.failure_count == 1
            process.publisher.publish()
        assert process.publisher.problem is None
        assert published_size(objects) == 2_000 + step
        process.grow(3_000 + step)
        process.publisher.publish()
        assert published_size(objects) == 3_000 + step
        process.close()


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_after_a_crash_at_any_request_a_whole_one_is_there_and_the_next_process_goes_on(
    tmp_path: Path, fault: Fault
) -> None:
    def live(step: int) -> tuple[Process, MemoryObjects, Faults]:
        objects, faults = MemoryObjects(), Faults({step: fault})
        process = Process(tmp_path / f"life-{step}", objects, faults)
        with suppress(SimulatedCrash):
            for size in range(100, 106):
                process.grow(size)
                process.publisher.publish()
        return process, objects, faults

    def check(left: tuple[Process, MemoryObjects, Faults], step: int) -> bool:
        process, objects, faults = left
        newest = process.store.segments()[0].size
        seen = published_size(objects)
        assert seen in (None, newest - 1, newest)
        folder = copy_of(tmp_path / f"life-{step}", tmp_path / f"after-{step}")
        after = Process(folder, objects)
        after.publisher.publish()
        assert published_size(objects) == newest
        after.grow(500)
        after.publisher.publish()
        assert published_size(objects) == 500
        after.close()
        process.close()
        return faults.crashed

    assert every_step(live, check) >= STEPS_MIN


def test_a_damaged_one_of_our_own_is_replaced_and_a_strangers_is_not(
    folder: Path, objects: MemoryObjects
) -> None:
    process = Process(folder, objects)
    process.grow(100)
    process.publisher.publish()
    process.close()
    (key,) = objects.held_keys(".catalog/")
    data, facts = objects.held[key]
    objects.held[key] = data[:-9] + b"?" + data[-8:], facts
    stranger = Process(folder.parent / "new", objects)
    stranger.grow(7)
    with pytest.raises(MetadataError, match="damaged"):
        stranger.publisher.publish()
    stranger.close()
    again = Process(folder, objects)
    again.grow(200)
    assert again.publisher.publish() == 2
    assert published_size(objects) == 200
    again.close()


def test_one_that_no_reader_would_take_is_not_published(
    folder: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_format, "PUBLISHED_BYTES_MAX", 100)
    process = Process(folder, objects)
    process.grow()
    with pytest.raises(MetadataError, match="more than 100"):
        process.publisher.publish()
    assert objects.held_keys(".catalog/") == []
    process.store.put_note("a", "b", 1)  # and the catalogue itself goes on
    process.close()
