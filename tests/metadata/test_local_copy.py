"""RocketMQ's JSON file as a copy of a catalogue that is kept elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tieredstore.metadata import JsonMetadataStore, local_copy
from tieredstore.metadata.files import Catalogue, load
from tieredstore.metadata.local_copy import LocalCopy, ReadCopy
from tieredstore.metadata.memory_store import MemoryMetadataStore
from tieredstore.model.errors import CatalogueLockedError, MetadataError
from tieredstore.testing.metadata_contract import log_segment


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "tieredStoreMetadata.json"


@pytest.fixture
def source() -> MemoryMetadataStore:
    made = MemoryMetadataStore(place="a bucket", clock_ms=lambda: 1)
    made.add_topic("Orders")
    return made


@pytest.fixture
def copy(path: Path, source: MemoryMetadataStore) -> Iterator[LocalCopy]:
    made = LocalCopy.locked(path)
    made.follow(source)
    yield made
    made.close()


def topics(path: Path) -> list[str]:
    with JsonMetadataStore.open(path, read_only=True) as found:
        return [row.topic for row in found.topics()]


def beside(path: Path) -> set[str]:
    """The suffixes of the files beside it, without the lock, which stays."""
    return {found.name.removeprefix(path.name) for found in path.parent.iterdir()} - {".lock"}


def test_a_step_writes_the_file_as_rocketmq_does(
    path: Path, source: MemoryMetadataStore, copy: LocalCopy
) -> None:
    assert copy.upkeep.snapshot_ms is None
    copy.step()
    assert path.read_bytes() == source.snapshot_bytes()
    assert copy.upkeep.snapshot_ms is not None


def test_a_step_without_a_change_writes_nothing(
    path: Path, source: MemoryMetadataStore, copy: LocalCopy
) -> None:
    copy.step()
    path.unlink()
    copy.step()
    assert not path.exists()
    source.put(log_segment(0))
    copy.step()
    assert path.exists()


def test_the_end_gives_the_lock_back_and_nothing_is_written_any_more(
    path: Path, source: MemoryMetadataStore, copy: LocalCopy
) -> None:
    copy.step()
    copy.close()
    copy.close()
    LocalCopy.locked(path).close()
    source.add_topic("Late")
    copy.step()
    assert topics(path) == ["Orders"]


def test_one_that_follows_nothing_writes_nothing(path: Path) -> None:
    copy = LocalCopy.locked(path)
    copy.step()
    copy.close()
    assert beside(path) == set()


@pytest.mark.parametrize("kind", [LocalCopy.locked, JsonMetadataStore.open])
def test_no_other_writer_opens_the_file_meanwhile(
    path: Path, copy: LocalCopy, kind: object
) -> None:
    assert callable(kind)
    with pytest.raises(CatalogueLockedError):
        kind(path)


def test_it_is_refused_where_a_writer_has_the_file_open(path: Path) -> None:
    with JsonMetadataStore.open(path), pytest.raises(CatalogueLockedError):
        LocalCopy.locked(path)


def test_what_another_tier_left_there_is_kept_aside(
    path: Path, source: MemoryMetadataStore, copy: LocalCopy
) -> None:
    copy.close()
    with JsonMetadataStore.open(path) as older:
        older.add_topic("Older")
        older.put_note("kind", "key", 1)
        older.compact()
        older.put(log_segment(0))
        journal = path.with_name(path.name + ".journal").read_bytes()
    path.with_name(path.name + ".journal").write_bytes(journal)
    older_bytes = path.read_bytes()
    with_notes = path.with_name(path.name + ".notes").read_bytes()

    mine = LocalCopy.locked(path)
    mine.follow(source)
    mine.step()
    source.add_topic("Newer")
    mine.step()
    mine.close()
    assert topics(path) == ["Orders", "Newer"]
    assert path.with_name(path.name + ".bak").read_bytes() == older_bytes
    next_life(path, source)
    assert path.with_name(path.name + ".stale").read_bytes() == older_bytes
    assert path.with_name(path.name + ".journal.stale").read_bytes() == journal
    assert path.with_name(path.name + ".notes.stale").read_bytes() == with_notes
    assert beside(path) == {"", ".bak", ".stale", ".journal.stale", ".notes.stale"}


def test_so_is_what_rocketmq_left_there(path: Path, source: MemoryMetadataStore) -> None:
    """RocketMQ keeps no lock and no notes and publishes nothing: it has only this file."""
    path.parent.mkdir()
    path.write_bytes(b'{"of": "a tier of Java"}')
    next_life(path, source)
    next_life(path, source)
    assert path.with_name(path.name + ".stale").read_bytes() == b'{"of": "a tier of Java"}'
    assert beside(path) == {"", ".bak", ".stale"}


def next_life(path: Path, source: MemoryMetadataStore) -> None:
    mine = LocalCopy.locked(path)
    mine.follow(source)
    mine.step()
    mine.close()


def test_a_file_that_is_damaged_is_replaced_unread(
    path: Path, source: MemoryMetadataStore, copy: LocalCopy
) -> None:
    path.write_bytes(b"{no json")
    copy.step()
    assert topics(path) == ["Orders"]


def test_a_copy_that_cannot_be_written_is_a_warning_and_tried_again(
    path: Path, copy: LocalCopy, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        copy.step()
    assert "was not copied" in caplog.text
    path.rmdir()
    copy.step()
    assert topics(path) == ["Orders"]


def test_a_catalogue_that_cannot_be_read_is_a_warning(
    source: MemoryMetadataStore, copy: LocalCopy, caplog: pytest.LogCaptureFixture
) -> None:
    source.close()
    with caplog.at_level(logging.WARNING):
        copy.step()
    assert "is closed" in caplog.text


def test_a_folder_that_cannot_be_made_is_an_error_of_the_catalogue(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MetadataError, match="locking it failed"):
        LocalCopy.locked(tmp_path / "file" / "catalogue.json")


# What a reader sees in the copy


def test_what_was_copied_is_read_as_a_copy(
    path: Path, source: MemoryMetadataStore, copy: LocalCopy
) -> None:
    source.put(log_segment(0))
    copy.step()
    with ReadCopy.open(path) as found:
        assert found.facts.copy
        assert found.facts.source == "file"
        assert found.contents() == source.contents()
        source.add_topic("Late")
        copy.step()
        assert len(found.topics()) == 1
        found.refresh()
        assert len(found.topics()) == 2


def test_a_slow_refresh_does_not_hide_what_a_later_one_has_shown(
    path: Path,
    source: MemoryMetadataStore,
    copy: LocalCopy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy.step()
    has_read, may_go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Catalogue:
        monkeypatch.undo()
        found = load(*arguments)
        has_read.set()
        assert may_go_on.wait(60)
        return found

    with ReadCopy.open(path) as found:
        monkeypatch.setattr(local_copy, "load", slow)
        first = threading.Thread(target=found.refresh)
        first.start()
        assert has_read.wait(60)
        source.add_topic("Late")
        copy.step()
        second = threading.Thread(target=found.refresh)
        second.start()
        second.join(0.1)  # it may wait for the first
        may_go_on.set()
        first.join()
        second.join()
        assert [row.topic for row in found.topics()] == ["Orders", "Late"]


def test_a_reader_changes_nothing_but_what_it_sees(
    path: Path, source: MemoryMetadataStore, copy: LocalCopy
) -> None:
    first, second = log_segment(0), log_segment(1)
    source.put(first)
    copy.step()
    before = path.read_bytes()
    with ReadCopy.open(path) as found:
        with pytest.raises(MetadataError, match="it is a copy"):
            found.put(second)
        with pytest.raises(MetadataError, match="it is a copy"):
            found.add_topic("New")
        found.amend(gone=[first], come=[second])
        assert list(found.segments()) == [second]
    assert path.read_bytes() == before


def test_a_copy_that_makes_no_sense_is_an_error(path: Path, copy: LocalCopy) -> None:
    path.write_bytes(b"{no json")
    with pytest.raises(MetadataError):
        ReadCopy.open(path)
