"""Which generation is a catalogue's own: tries whose outcome nobody knew, and old copies of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metadata.publish_kit import Process, copy_of, generations_of, published_size
from tieredstore.driver.metadata import StaleCatalogueError
from tieredstore.model.errors import BackendUnavailableError, MetadataError
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "first").mkdir()
    return tmp_path / "first"


def test_who_lost_a_race_still_has_lost_it_after_a_restart(
    folder: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had noted the number that it wanted, which is the winner's."""
    first = Process(folder, objects)
    first.grow(100)
    first.publisher.publish()
    old = copy_of(folder, folder.parent / "old")
    other = Process(old, objects)
    other.grow(7)
    listed = other.generations.listed()
    first.grow(200)
    assert first.publisher.publish() == 2
    monkeypatch.setattr(other.generations, "listed", lambda: listed)
    with pytest.raises(MetadataError, match="another writer has published"):
        other.publisher.publish()
    other.close()
    again = Process(old, objects)
    with pytest.raises(StaleCatalogueError):
        again.publisher.publish()
    again.close()
    assert published_size(objects) == 200
    first.close()


def test_a_copy_from_between_two_tries_does_not_undo_the_second(
    folder: Path, objects: MemoryObjects
) -> None:
    faults = Faults()
    first = Process(folder, objects, faults)
    first.grow(100)
    first.publisher.publish()
    first.grow(200)
    faults.strike(Fault.BEFORE, after=1)  # listed, noted, not created
    with pytest.raises(BackendUnavailableError):
        first.publisher.publish()
    old = copy_of(folder, folder.parent / "old")
    first.grow(300)
    assert first.publisher.publish() == 2
    first.close()
    other = Process(old, objects)
    other.grow(7)
    with pytest.raises(StaleCatalogueError):
        other.publisher.publish()
    other.close()
    assert published_size(objects) == 300


def test_of_several_tries_of_several_processes_whichever_landed_is_known(
    folder: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them was told, and the first landed when the last had given up."""
    sent: list[bytes] = []

    def send(number: int, data: bytes) -> None:
        assert number == 1
        sent.append(data)
        raise BackendUnavailableError("1", "put", "no reply")

    for size in (100, 200, 300):
        process = Process(folder, objects)
        monkeypatch.setattr(process.generations, "create", send)
        process.grow(size)
        with pytest.raises(BackendUnavailableError):
            process.publisher.publish()
        process.close()
    assert len(sent) == 3
    generations_of(MemoryObjectClient(objects)).create(1, sent[0])
    again = Process(folder, objects)
    assert again.publisher.publish() == 2
    assert published_size(objects) == 300
    again.close()
