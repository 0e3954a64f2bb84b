"""What an audit says of the catalogue that is published for readers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.access.elsewhere_kit import Elsewhere
from tieredstore.access.audit import audit
from tieredstore.access.wiring import published_catalogue
from tieredstore.driver.metadata import MetadataStore
from tieredstore.metadata.memory_store import MemoryMetadataStore
from tieredstore.model.findings import Finding
from tieredstore.model.values import SegmentRecord, SegmentType, TopicRecord
from tieredstore.testing.samples import TOPIC

LOG = SegmentType.COMMIT_LOG
PATH = f"broker-a/{TOPIC}/0"


@pytest.fixture(params=["posix", "objects"])
def there(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path, request.param)
    made.broker.fill(12)
    yield made
    made.broker.store.shutdown()


def found(there: Elsewhere, copy: MetadataStore | None = None) -> list[tuple[str, str]]:
    """Kind and detail of what is said of the published one; `copy` in the place of the real one."""
    parts = there.broker.tier
    config, provider = there.broker.config, parts.provider

    def published() -> MetadataStore | None:
        return copy or published_catalogue(config, provider)

    report = audit(parts.metadata, provider, config, there.broker.runtime, published=published)
    told: list[Finding] = [each for each in report.findings if "published" in each.kind]
    return [(f"{each.severity.value} {each.kind}", each.detail) for each in told]


def test_a_tier_that_was_never_published_has_nothing_to_tell(there: Elsewhere) -> None:
    assert found(there) == []


def test_a_published_catalogue_that_is_up_to_date_has_nothing_to_tell(there: Elsewhere) -> None:
    there.publish()
    assert found(there) == []


def test_one_that_lags_is_a_note_also_behind_expiry_and_a_deletion(there: Elsewhere) -> None:
    there.broker.fill(4, topic="Gone")
    there.publish()
    there.broker.tier.publishing._is_stale = True  # publishes no more
    there.expire(12)
    there.broker.store.delete_topics(["Gone"])
    there.broker.fill(3, topic="New")
    ((kind, detail),) = found(there)
    assert kind == "note published-behind"
    assert "generation 1 is older than the catalogue" in detail


def test_one_that_is_gone_or_damaged_is_damage(there: Elsewhere) -> None:
    there.publish()
    parts = there.broker.tier
    generations = parts.provider.generations("broker-a")
    assert generations is not None
    generations.create(2, b"nothing")
    ((kind, detail),) = found(there)
    assert kind == "damage published-damaged"
    assert "readers elsewhere cannot start from it" in detail
    generations.delete([1, 2])
    ((kind, _),) = found(there)
    assert kind == "damage published-missing"


def longer(rows: list[SegmentRecord]) -> list[SegmentRecord]:
    return [*rows[:-1], replace(rows[-1], size=rows[-1].size + 1)]


def without_one(rows: list[SegmentRecord]) -> list[SegmentRecord]:
    return [rows[0], *rows[2:]]


def with_another(rows: list[SegmentRecord]) -> list[SegmentRecord]:
    return [*rows, replace(rows[-1], base_offset=rows[-1].base_offset + 5_000)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (longer, "the catalogue's segment to"),
        (without_one, "lacks the segment at"),
        (with_another, "and the catalogue none"),
    ],
)
def test_what_age_does_not_explain_is_damage(
    there: Elsewhere,
    change: Callable[[list[SegmentRecord]], list[SegmentRecord]],
    told: str,
) -> None:
    metadata = there.broker.tier.metadata
    copy = MemoryMetadataStore(place="elsewhere", clock_ms=there.broker.runtime.clock.now_ms)
    rows = list(metadata.segments(PATH, LOG))
    assert len(rows) > 2
    copy.put(*metadata.topics(), *metadata.queues(), *change(rows))
    ((kind, detail), *_) = [each for each in found(there, copy) if "damage" in each[0]]
    assert kind == "damage published-differs"
    assert told in detail


def test_another_number_of_a_topic_is_damage(there: Elsewhere) -> None:
    copy = MemoryMetadataStore(place="elsewhere", clock_ms=there.broker.runtime.clock.now_ms)
    copy.put(TopicRecord(topic=TOPIC, topic_id=9))
    kinds = [kind for kind, _ in found(there, copy)]
    assert "damage published-differs" in kinds
