"""The published catalogue: a publisher's writes, tries and lists, and the store that reads it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.every_step import every_step
from tests.providers.object_kit import StruckClient
from tieredstore.driver.metadata import LINEAGE, Publisher, PutNote, StaleCatalogueError
from tieredstore.driver.object_client import ObjectClient, ObjectExistsError, Range
from tieredstore.driver.provider import (
    Generations,
    GenerationTakenError,
    ListedGeneration,
    generation_name,
    generation_of,
)
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata import published as published_format
from tieredstore.metadata import published as published_store
from tieredstore.metadata.journal import seal
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.metadata.published import KEPT, PublishedMetadataStore
from tieredstore.model.errors import BackendUnavailableError, MetadataError, StoreClosedError
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

NOW_MS = 1_700_000_000_000
BROKER = "broker-a"


class Process:
    """A process that holds the catalogue, with its own client."""

    def __init__(self, folder: Path, objects: MemoryObjects, faults: Faults | None = None) -> None:
        self.memory = MemoryObjectClient(objects)
        client: ObjectClient = StruckClient(self.memory, faults or Faults())
        self.generations = generations_of(client)
        self.store = JsonMetadataStore.open(folder / "catalogue.json", clock_ms=lambda: NOW_MS)
        publisher = self.store.publisher(self.generations, cluster="c", broker=BROKER)
        self.publisher: Publisher = publisher

    def grow(self, size: int = 100, topic: str = "topic") -> None:
        """Make a change that readers want to know of."""
        record = SegmentRecord(
            path=f"{BROKER}/{topic}/0", type=SegmentType.COMMIT_LOG, base_offset=0, size=size
        )
        self.store.add_topic(topic)
        self.store.put(record)

    def requests(self) -> dict[str, int]:
        """The requests since the last call."""
        found = dict(self.memory.requests)
        self.memory.requests.clear()
        return found

    def close(self) -> None:
        self.store.close()


class ClientGenerations(Generations):
    """Generations behind an object client whose requests can be counted and made to fail."""

    def __init__(self, calls: ObjectCalls) -> None:
        self._calls = calls

    def describe(self) -> str:
        return f".catalog/{BROKER}/"

    def listed(self) -> Sequence[ListedGeneration]:
        found = self._calls.listed(self.describe())
        return [
            ListedGeneration(number, each.size)
            for each in found
            if (number := generation_of(each.key.removeprefix(self.describe())))
        ]

    def read(self, listed: ListedGeneration) -> bytes:
        return self._calls.ranges([Range(self._key(listed.number), 0, listed.size)])[0]

    def create(self, number: int, data: bytes) -> None:
        try:
            self._calls.put(self._key(number), data)
        except ObjectExistsError as error:
            raise GenerationTakenError(self._key(number)) from error

    def delete(self, numbers: Sequence[int]) -> None:
        if numbers:
            self._calls.delete([self._key(number) for number in numbers])

    def _key(self, number: int) -> str:
        return self.describe() + generation_name(number)


def generations_of(client: ObjectClient, retries: int = 0) -> Generations:
    runtime = Runtime.inline(now_ms=NOW_MS)
    return ClientGenerations(ObjectCalls(client, runtime, RetryPolicy(retries_max=retries)))


def published(objects: MemoryObjects) -> PublishedMetadataStore | None:
    """The catalogue as a reader elsewhere finds it."""
    return PublishedMetadataStore.open(generations_of(MemoryObjectClient(objects)))


def published_size(objects: MemoryObjects, topic: str = "topic") -> int | None:
    store = published(objects)
    if store is None:
        return None
    row = store.segment(f"{BROKER}/{topic}/0", SegmentType.COMMIT_LOG, 0)
    return None if row is None else row.size


def copy_of(folder: Path, target: Path) -> Path:
    """Copy the catalogue's files as they are on the disk now."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.lock"))
    return target


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
    assert process.publisher.publish() is None  # the catalogue is empty
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
    assert other.publisher.publish() == 2  # it knows everything published, so it may go on
    first.grow(300)
    first.requests()
    for _ in range(3):
        with pytest.raises(StaleCatalogueError, match="another writer"):
            first.publisher.publish()
    assert first.requests() == {"list": 1, "get": 1}  # it learned at the first try
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
    """Both list before either creates."""
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
    other.publisher.adopt([])
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
    process.store.put_note("a", "b", 1)  # the catalogue itself goes on
    process.close()


@pytest.fixture
def one_generation(tmp_path: Path) -> MemoryObjects:
    """Objects that hold one generation."""
    made = MemoryObjects()
    process = Process(tmp_path, made)
    process.grow()
    process.publisher.publish()
    process.close()
    return made


def replaced(one_generation: MemoryObjects, data: bytes) -> None:
    (key,) = one_generation.held_keys(".catalog/")
    del one_generation.held[key]
    one_generation.put(key, data, {})


def data_of(one_generation: MemoryObjects) -> bytes:
    (key,) = one_generation.held_keys(".catalog/")
    return one_generation.held[key][0]


def test_every_damage_is_told_with_the_generation(one_generation: MemoryObjects) -> None:
    data = data_of(one_generation)
    step = max(1, len(data) // 40)
    damaged = [data[:at] for at in range(0, len(data), step)]
    damaged += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(9, len(data), 7)]
    damaged += [data + b"x", b"", b"\0" * 100, b"{}\n", b"[" * 100_000]
    for each in damaged:
        replaced(one_generation, each)
        with pytest.raises(MetadataError, match="generation 1: it is damaged"):
            published(one_generation)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'"format":2}', "format 2 is newer"),
        (b'"format":1}', "no published catalogue"),
        (b'"format":"1"}', "no published catalogue"),
        (b"[[[", "no published catalogue"),
        (
            b'"format":1,"generation":2,"epoch":1,"writer":"","lineage":"","written_ms":0,'
            b'"cluster":"","broker":"","catalogue":{},"notes":{}}',
            "it says that it is generation 2",
        ),
        (
            b'"format":1,"generation":1,"epoch":1,"writer":"","lineage":"","written_ms":0,'
            b'"cluster":"","broker":"","catalogue":{"topicMetadataTable":7},"notes":{}}',
            "no catalogue: topicMetadataTable is no object",
        ),
    ],
)
def test_what_is_whole_and_no_catalogue_is_told(
    one_generation: MemoryObjects, body: bytes, told: str
) -> None:
    replaced(one_generation, seal(body))
    with pytest.raises(MetadataError, match=told):
        published(one_generation)


def test_one_that_is_too_large_is_not_even_read(
    one_generation: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_store, "PUBLISHED_BYTES_MAX", 100)
    client = MemoryObjectClient(one_generation)
    with pytest.raises(MetadataError, match="more than 100: it is not read"):
        PublishedMetadataStore.open(generations_of(client))
    assert dict(client.requests) == {"list": 1}


def test_one_that_is_shorter_than_listed_is_told(
    one_generation: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations = generations_of(MemoryObjectClient(one_generation))
    monkeypatch.setattr(generations, "listed", lambda: [ListedGeneration(1, 1 << 20)])
    with pytest.raises(MetadataError, match="shorter than its listing"):
        PublishedMetadataStore.open(generations)


def test_refresh_shows_the_newest_and_costs_one_listing_where_there_is_none(
    one_generation: MemoryObjects, tmp_path: Path
) -> None:
    client = MemoryObjectClient(one_generation)
    store = PublishedMetadataStore.open(generations_of(client))
    assert store is not None
    assert dict(client.requests) == {"list": 1, "get": 1}
    store.refresh()
    assert dict(client.requests) == {"list": 2, "get": 1}
    process = Process(tmp_path, one_generation)
    for size in range(200, 206):  # the generation that was read is deleted meanwhile
        process.grow(size)
        process.publisher.publish()
    process.close()
    assert store.segments()[0].size == 100
    store.refresh()
    assert store.segments()[0].size == 205
    assert store.facts.generation == 7


def check_goes_on_at_four(
    folder: Path, objects: MemoryObjects, reader: PublishedMetadataStore, size: int
) -> None:
    """Delete all that was published: what comes next is newer, to a reader that is open too."""
    for key in objects.held_keys(".catalog/"):
        del objects.held[key]
    again = Process(folder, objects)
    again.grow(size)
    assert again.publisher.publish() == 4
    again.close()
    reader.refresh()
    row = reader.segment(f"{BROKER}/topic/0", SegmentType.COMMIT_LOG, 0)
    assert row is not None
    assert row.size == size


def test_a_reader_finds_the_newest_though_all_were_deleted_meanwhile(
    folder: Path, objects: MemoryObjects
) -> None:
    first = Process(folder, objects)
    for size in (100, 200, 300):
        first.grow(size)
        first.publisher.publish()
    first.close()
    reader = published(objects)
    assert reader is not None
    check_goes_on_at_four(folder, objects, reader, 400)


def test_a_reader_finds_the_newest_though_the_writer_died_and_all_were_deleted(
    folder: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Process(folder, objects)
    for size in (100, 200, 300):
        first.grow(size)
        first.publisher.publish()
    reader = published(objects)
    assert reader is not None
    first.grow(400)

    def refuse(*_: object) -> None:
        raise BackendUnavailableError("4", "put", "no reply")

    with monkeypatch.context() as failing:
        failing.setattr(first.generations, "create", refuse)
        with pytest.raises(BackendUnavailableError):
            first.publisher.publish()
    first.close()
    check_goes_on_at_four(folder, objects, reader, 500)


def test_one_that_is_replaced_between_listing_and_reading_is_looked_for_again(
    one_generation: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations = generations_of(MemoryObjectClient(one_generation))
    listings = [[ListedGeneration(5, 10)], [ListedGeneration(6, 10)], generations.listed()]
    monkeypatch.setattr(generations, "listed", lambda: listings.pop(0))
    assert PublishedMetadataStore.open(generations) is not None
    monkeypatch.setattr(generations, "listed", lambda: [ListedGeneration(5, 10)])
    with pytest.raises(MetadataError, match="changed under the reader"):
        PublishedMetadataStore.open(generations)


def test_nothing_can_be_changed_but_what_has_happened_since_is_amended(
    one_generation: MemoryObjects,
) -> None:
    store = published(one_generation)
    assert store is not None
    for change in (lambda: store.delete_topic("topic"), lambda: store.add_topic("new")):
        with pytest.raises(MetadataError, match="read only"):
            change()
    (gone,) = store.segments()
    younger = dataclasses.replace(gone, base_offset=100, size=0)
    store.amend(gone=[gone], come=[younger])
    assert store.segments() == (younger,)
    store.refresh()
    assert store.segments() == (younger,)
    store.close()
    with pytest.raises(StoreClosedError):
        store.topics()


def test_a_catalogue_that_is_no_copy_is_not_amended(tmp_path: Path) -> None:
    process = Process(tmp_path / "new", MemoryObjects())
    process.grow()
    with pytest.raises(MetadataError, match="no copy"):
        process.store.amend(gone=process.store.segments(), come=[])
    process.close()


def test_its_contents_fill_an_empty_catalogue(
    one_generation: MemoryObjects, tmp_path: Path
) -> None:
    first = Process(tmp_path, one_generation)
    first.store.add_topic("second")
    first.store.delete_topic("second")  # its number stays in use
    first.store.put_note("kind", "key", {"a": [1]})
    first.publisher.publish()
    found = published(one_generation)
    assert found is not None
    other = Process(tmp_path / "other", MemoryObjects())
    other.store.apply(found.contents())
    assert other.store.topics() == first.store.topics()
    assert other.store.segment(f"{BROKER}/topic/0", SegmentType.COMMIT_LOG, 0) is not None
    assert other.store.notes("kind") == {"key": {"a": [1]}}
    assert other.store.add_topic("third").topic_id == 2
    assert generation_name(1).endswith("1.json")
    first.close()
    other.close()


def test_who_lost_a_race_still_has_lost_it_after_a_restart(
    folder: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has noted the number that it wanted, which is the winner's."""
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
    faults.strike(Fault.BEFORE, after=1)  # listed and noted, but not created
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
    """None of them heard of it, and the first try landed after the last one gave up."""
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
