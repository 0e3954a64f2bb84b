"""A rebuild beside what was published: it starts from it, or refuses to undo it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.elsewhere_kit import Elsewhere, offsets
from tieredstore.access.audit import audit
from tieredstore.access.reader import TieredReader
from tieredstore.access.rebuild import NewerCatalogueError, RebuildReport, rebuild_beside_published
from tieredstore.access.wiring import published_catalogue, publisher_of
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC


@pytest.fixture(params=["posix", "objects"])
def there(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path, request.param)
    yield made
    made.broker.store.shutdown()


class Rebuilding:
    """One that holds a catalogue's file, over the same backend."""

    def __init__(self, there: Elsewhere, path: Path) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.provider = there.opened(self.runtime)
        self.config = dataclasses.replace(there.broker.config, metadata_path=str(path))
        self.metadata = JsonMetadataStore.open(path)
        publisher = publisher_of(self.config, self.provider, self.metadata)
        assert publisher is not None
        self.publisher = publisher

    def rebuild(self) -> RebuildReport:
        return rebuild_beside_published(
            self.metadata,
            self.provider,
            self.config,
            self.runtime,
            publisher=self.publisher,
            published=lambda: published_catalogue(self.config, self.provider),
        )

    def close(self) -> None:
        self.metadata.close()


def test_an_empty_catalogue_starts_from_what_is_published(there: Elsewhere, tmp_path: Path) -> None:
    broker = there.broker
    broker.fill(12)
    broker.put(3, topic="Gone")
    assert broker.store.flush()
    metadata = broker.tier.metadata
    topic = metadata.topic(TOPIC)
    assert topic is not None
    metadata.put(dataclasses.replace(topic, reserve_hours=7, topic_id=41))
    there.publish()
    broker.tier.publishing._is_stale = True  # what it does now is published no more
    broker.store.delete_topics(["Gone"])
    broker.put(9, first=12)
    assert broker.store.flush()
    broker.store.shutdown()
    lost = Rebuilding(there, tmp_path / "new.json")
    report = lost.rebuild()
    assert report.problems == ()
    found = lost.metadata.topic(TOPIC)
    assert found is not None
    assert (found.topic_id, found.reserve_hours) == (41, 7)
    findings = audit(lost.metadata, lost.provider, lost.config, lost.runtime).findings
    assert [each.kind for each in findings if each.severity.value == "damage"] == []
    lost.publisher.check()
    assert lost.publisher.publish() == 2
    lost.close()
    with TieredReader(lost.config, runtime=lost.runtime, provider=lost.provider) as reader:
        assert offsets(reader) == list(range(21))
    with there.reader() as reader:
        assert reader.catalogue.generation == 2
        assert offsets(reader) == list(range(21))


def test_an_older_file_is_not_written_over_what_is_published(
    there: Elsewhere, tmp_path: Path
) -> None:
    old = Rebuilding(there, tmp_path / "old.json")
    old.metadata.add_topic("anything")
    there.broker.fill(12)
    there.publish()
    before = old.metadata.snapshot_bytes()
    with pytest.raises(NewerCatalogueError, match="move the file away"):
        old.rebuild()
    assert old.metadata.snapshot_bytes() == before
    old.close()


def test_with_a_damaged_one_the_bytes_alone_are_asked(there: Elsewhere, tmp_path: Path) -> None:
    there.broker.fill(12)
    there.publish()
    generations = there.opened(Runtime.inline()).generations("broker-a")
    assert generations is not None
    generations.create(2, b"nothing")
    lost = Rebuilding(there, tmp_path / "new.json")
    report = lost.rebuild()
    assert len(report.problems) == 1
    assert "generation 2: it is damaged" in report.problems[0]
    assert report.queue_count == 1
    assert lost.publisher.publish() == 3
    lost.close()
    with there.reader() as reader:
        assert reader.catalogue.generation == 3


def test_with_nothing_published_it_is_the_rebuild_of_old(there: Elsewhere, tmp_path: Path) -> None:
    there.broker.fill(12)
    lost = Rebuilding(there, tmp_path / "new.json")
    report = lost.rebuild()
    assert (report.queue_count, report.problems) == (1, ())
    assert lost.publisher.publish() == 1
    lost.close()


def test_bytes_that_are_missing_since_are_a_problem(there: Elsewhere, tmp_path: Path) -> None:
    there.broker.fill(12)
    there.publish()
    there.broker.tier.files.files()[0].log.segments[-1].segment.delete()
    lost = Rebuilding(there, tmp_path / "new.json")
    report = lost.rebuild()
    assert any("the backend only to" in each for each in report.problems)
    lost.close()
