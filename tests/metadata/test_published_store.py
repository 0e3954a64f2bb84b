"""What a reader makes of a published catalogue: whole, damaged, too large, replaced meanwhile."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.metadata.publish_kit import BROKER, Process, generations_of, published
from tieredstore.driver.shelf import ListedGeneration, generation_name
from tieredstore.metadata import published as published_store
from tieredstore.metadata.journal import seal
from tieredstore.metadata.published import PublishedMetadataStore
from tieredstore.model.errors import MetadataError, StoreClosedError
from tieredstore.model.values import SegmentType
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects


@pytest.fixture
def objects(tmp_path: Path) -> MemoryObjects:
    """With one generation."""
    made = MemoryObjects()
    process = Process(tmp_path, made)
    process.grow()
    process.publisher.publish()
    process.close()
    return made


def replaced(objects: MemoryObjects, data: bytes) -> None:
    (key,) = objects.held_keys(".catalog/")
    del objects.held[key]
    objects.put(key, data, {})


def data_of(objects: MemoryObjects) -> bytes:
    (key,) = objects.held_keys(".catalog/")
    return objects.held[key][0]


def test_every_damage_is_told_with_the_generation(objects: MemoryObjects) -> None:
    data = data_of(objects)
    step = max(1, len(data) // 40)
    damaged = [data[:at] for at in range(0, len(data), step)]
    damaged += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(9, len(data), 7)]
    damaged += [data + b"x", b"", b"\0" * 100, b"{}\n", b"[" * 100_000]
    for each in damaged:
        replaced(objects, each)
        with pytest.raises(MetadataError, match="generation 1: it is damaged"):
            published(objects)


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
    objects: MemoryObjects, body: bytes, told: str
) -> None:
    replaced(objects, seal(body))
    with pytest.raises(MetadataError, match=told):
        published(objects)


def test_one_that_is_too_large_is_not_even_read(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_store, "PUBLISHED_BYTES_MAX", 100)
    client = MemoryObjectClient(objects)
    with pytest.raises(MetadataError, match="more than 100: it is not read"):
        PublishedMetadataStore.open(generations_of(client))
    assert dict(client.requests) == {"list": 1}


def test_one_that_is_shorter_than_listed_is_told(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations = generations_of(MemoryObjectClient(objects))
    monkeypatch.setattr(generations, "listed", lambda: [ListedGeneration(1, 1 << 20)])
    with pytest.raises(MetadataError, match="shorter than its listing"):
        PublishedMetadataStore.open(generations)


def test_refresh_shows_the_newest_and_costs_one_listing_where_there_is_none(
    objects: MemoryObjects, tmp_path: Path
) -> None:
    client = MemoryObjectClient(objects)
    store = PublishedMetadataStore.open(generations_of(client))
    assert store is not None
    assert dict(client.requests) == {"list": 1, "get": 1}
    store.refresh()
    assert dict(client.requests) == {"list": 2, "get": 1}
    process = Process(tmp_path, objects)
    for size in range(200, 206):  # the one that was read is deleted meanwhile
        process.grow(size)
        process.publisher.publish()
    process.close()
    assert store.segments()[0].size == 100
    store.refresh()
    assert store.segments()[0].size == 205
    assert store.facts.generation == 7


def test_one_that_is_replaced_between_listing_and_reading_is_looked_for_again(
    objects: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations = generations_of(MemoryObjectClient(objects))
    listings = [[ListedGeneration(5, 10)], [ListedGeneration(6, 10)], generations.listed()]
    monkeypatch.setattr(generations, "listed", lambda: listings.pop(0))
    assert PublishedMetadataStore.open(generations) is not None
    monkeypatch.setattr(generations, "listed", lambda: [ListedGeneration(5, 10)])
    with pytest.raises(MetadataError, match="changed under the reader"):
        PublishedMetadataStore.open(generations)


def test_nothing_can_be_changed_but_what_has_happened_since_is_amended(
    objects: MemoryObjects,
) -> None:
    store = published(objects)
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


def test_its_contents_fill_an_empty_catalogue(objects: MemoryObjects, tmp_path: Path) -> None:
    first = Process(tmp_path, objects)
    first.store.add_topic("second")
    first.store.delete_topic("second")  # its number stays taken
    first.store.put_note("kind", "key", {"a": [1]})
    first.publisher.publish()
    found = published(objects)
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
