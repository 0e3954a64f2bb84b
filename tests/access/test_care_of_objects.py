"""Audit and rebuild of tiers that we wrote: in memory, and in an object store's double."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.access.tier_lives import Lives
from tests.flat.tiers import FaultyCatalogue
from tieredstore.access.audit import AuditReport, audit
from tieredstore.access.rebuild import rebuild
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.tables import Tables
from tieredstore.model.values import SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

CLUSTER = "DefaultCluster"
LOG = SegmentType.COMMIT_LOG
Inner = Callable[[Runtime], SegmentProvider]
Place = tuple[str, SegmentType, int]
TOPICS = ("TopicA", "TopicB")


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture(params=["memory", "objects"])
def inner(request: pytest.FixtureRequest, objects: MemoryObjects) -> Inner:
    return MemoryProvider if request.param == "memory" else in_objects(objects)


def in_objects(objects: MemoryObjects) -> Inner:
    return lambda runtime: ObjectProvider(MemoryObjectClient(objects), CLUSTER, runtime)


def filled(folder: Path, inner: Inner) -> Lives:
    """Two topics of many segments, the oldest of which have expired, the last ones still open."""
    lives = Lives(folder, inner=inner)
    lives.open()
    for turn in range(3):
        for _ in range(9):
            for topic in TOPICS:
                lives.put(topic, turn % 2)
        lives.upload()
        lives.clock.advance(3_600_000 if turn == 0 else 1_000)
    return lives


def looked_at(lives: Lives, *, repair: bool = False) -> AuditReport:
    return audit(lives.metadata, lives.inner, lives.config, lives.runtime, repair=repair)


def places(metadata: MetadataStore) -> dict[Place, tuple[int, int | None, int | None]]:
    """Segments with bytes: of those without, the bytes cannot tell."""
    return {
        (row.path, row.type, row.base_offset): (
            row.size,
            row.begin_timestamp,
            row.end_timestamp,
        )
        for row in metadata.segments()
        if row.size
    }


def test_a_tier_is_whole_at_any_time_of_its_life(tmp_path: Path, inner: Inner) -> None:
    lives = filled(tmp_path, inner)
    assert looked_at(lives).findings == ()
    lives.clock.advance(3 * 3_600_000)
    lives.put("TopicA")
    lives.upload()
    lives.expire()
    assert looked_at(lives).findings == ()
    lives.delete_topic("TopicB")
    assert looked_at(lives).findings == ()
    lives.open()
    assert looked_at(lives).findings == ()


def test_our_own_tier_is_rebuilt_from_its_bytes(tmp_path: Path, inner: Inner) -> None:
    lives = filled(tmp_path, inner)
    found = FaultyCatalogue(Tables(), Faults())
    report = rebuild(found, lives.inner, lives.config, lives.runtime)
    assert report.problems == ()
    assert places(found) == places(lives.metadata)
    assert set(report.topics) == set(TOPICS)
    assert {row.key for row in found.queues()} == {row.key for row in lives.metadata.queues()}
    assert audit(found, lives.inner, lives.config, lives.runtime).findings == ()


def test_what_uploads_and_stalled_writers_left_is_found_and_removed(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    lives = filled(tmp_path, in_objects(objects))
    key = next(key for key in objects.held_keys() if key.startswith(".parts/") and "-00000" in key)
    directory, _, name = key.rpartition("/")
    epoch = int(name.rpartition("-")[2])
    rows = places(lives.metadata)
    later = Lives(tmp_path / "later", inner=in_objects(objects))
    later.open()
    later.put("TopicC")
    later.upload()  # a new writer: what the old one sends from now on never counts
    late = f"{directory}/{99_999:020d}-{epoch:010d}"
    objects.put(late, b"late", {})
    upload = objects.begin_upload(directory.removeprefix(".parts/"))
    theirs = objects.begin_upload(f"{directory.split('/')[1]}/broker-b/Topic/0/INDEX/x")
    later.delete_topic("TopicC")
    tier = audit(lives.metadata, later.inner, lives.config, lives.runtime)
    assert sorted((each.kind, each.place.path) for each in tier.findings) == sorted(
        [("stray-part", late), ("abandoned-upload", upload.key)]
    )
    assert not tier.is_clean
    assert late in objects.held_keys()
    done = audit(lives.metadata, later.inner, lives.config, lives.runtime, repair=True)
    assert done.is_clean
    assert [each.repaired for each in done.findings] == [True, True]
    assert late not in objects.held_keys()
    assert list(objects.uploads) == [theirs.upload_id]
    assert places(lives.metadata) == rows


def test_a_lost_object_and_a_strange_one_are_named(tmp_path: Path, objects: MemoryObjects) -> None:
    lives = filled(tmp_path, in_objects(objects))
    row = next(row for row in lives.metadata.segments() if row.type is LOG and row.size)
    for key in objects.held_keys():
        sealed_key = key.removeprefix(".parts/").split(f"/{row.type.name}/")
        is_of_file = sealed_key[0].endswith(row.path) and len(sealed_key) == 2
        if is_of_file and f"{row.base_offset:020d}" == sealed_key[1].split("/")[0][-20:]:
            del objects.held[key]
    fresh = in_objects(objects)(lives.runtime)
    report = audit(lives.metadata, fresh, lives.config, lives.runtime)
    assert [(each.kind, each.place.base) for each in report.findings] == [
        ("missing", row.base_offset)
    ]
