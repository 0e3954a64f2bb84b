"""Topics that go: from both stores, and what is left of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.tiered_kit import Broker, numbers
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import QueueKey
from tieredstore.testing.samples import TOPIC


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Ten messages in the tier; the next store has lost the first six."""
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(10, kept_from=6)
    yield broker
    broker.faults.always = None
    broker.store.shutdown()


def test_deleted_topics_go_from_both_stores(broker: Broker) -> None:
    broker.local.kept_from = 0
    broker.put(3, topic="Other")
    assert broker.store.flush()
    assert broker.store.delete_topics([TOPIC, "Nowhere"]) == 1
    assert broker.store.max_offset(TOPIC, 0) is None
    assert set(broker.store.queues()) == {QueueKey("Other", 0)}
    metadata = broker.tier.metadata
    assert metadata.topic(TOPIC) is None
    assert not metadata.queues(TOPIC)
    assert {found.path for found in broker.provider.list()} == {"broker-a/Other/0"}


def test_a_topic_that_only_the_tier_still_has_counts_as_deleted(broker: Broker) -> None:
    broker.local.delete_topics([TOPIC])
    assert broker.store.delete_topics([TOPIC]) == 1
    assert broker.store.delete_topics([TOPIC]) == 0


def test_a_topic_of_the_same_name_begins_anew(broker: Broker) -> None:
    broker.local.kept_from = 0
    broker.store.delete_topics([TOPIC])
    broker.put(4)
    assert broker.store.flush()
    broker.local.kept_from = 4
    assert numbers(broker.store.get_message(TOPIC, 0, 0)) == [0, 1, 2, 3]
    assert broker.store.health().ok


def test_cleaning_keeps_what_is_retained_and_what_the_system_needs(broker: Broker) -> None:
    broker.local.kept_from = 0
    for topic in ("Retained", "Unused"):
        broker.put(2, topic=topic)
    assert broker.store.flush()
    metadata = broker.tier.metadata
    kept = {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel", "%LMQ%light"}
    for topic in kept:
        metadata.add_topic(topic)
    broker.local.delete_topics([TOPIC])
    assert broker.store.clean_unused_topics(["Retained"]) == 2
    assert {record.topic for record in metadata.topics()} == {"Retained", *kept}
    assert set(broker.store.queues()) == {QueueKey("Retained", 0)}
    assert broker.store.clean_unused_topics(["Retained"]) == 0


def test_a_topic_whose_upload_does_not_end_is_not_deleted_by_halves(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.store.FLUSH_SECONDS", 0.0)
    with broker.dispatcher.alone_with(QueueKey(TOPIC, 0)):
        with pytest.raises(BackendUnavailableError):
            broker.store.delete_topics([TOPIC])
        assert set(broker.local.queues()) == {QueueKey(TOPIC, 0)}
    assert broker.store.delete_topics([TOPIC]) == 1


def test_a_topic_whose_bytes_cannot_be_deleted_is_gone_and_they_follow(broker: Broker) -> None:
    broker.local.kept_from = 0
    broker.cut()
    assert broker.store.delete_topics([TOPIC]) == 1
    assert not list(broker.store.queues())
    assert len(list(broker.provider.inner.list())) == 2
    broker.faults.always = None
    broker.retention.step()
    assert not list(broker.provider.inner.list())


def test_a_topic_that_is_rejected_leaves_the_tier(broker: Broker) -> None:
    broker.local.kept_from = 0
    broker.store.topic_filter.reject(TOPIC)
    assert numbers(broker.store.get_message(TOPIC, 0, 0)) == list(range(10))
    assert broker.store.flush()
    assert broker.store.committed_offset(TOPIC, 0) is None
    assert not list(broker.provider.list())


def test_a_topic_stays_rejected_over_loads_of_the_store(broker: Broker) -> None:
    known = broker.store.topic_filter
    known.reject(TOPIC)
    broker.store.shutdown()
    broker.open()
    assert broker.store.topic_filter is known
    assert broker.dispatcher.topic_filter is known
    assert broker.store.flush()
    assert broker.store.committed_offset(TOPIC, 0) is None
