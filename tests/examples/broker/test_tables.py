"""Which topics and queues a broker has, beside what its store has."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.broker import tables
from examples.broker.commands import RefusedError
from examples.broker.storage import Storage
from examples.broker.tables import Topics, topic_of
from tieredstore import QueueKey, StoreConfig
from tieredstore.local import LocalConfig


@pytest.mark.parametrize(("known", "count"), [(None, 4), (2, 4), (8, 8)])
def test_all_queues_of_the_store_can_be_read(tmp_path: Path, known: int | None, count: int) -> None:
    path = str(tmp_path)
    storage = Storage(LocalConfig(store_path=path), StoreConfig(store_path=path, provider="memory"))
    storage.open()
    try:
        topics = Topics(storage)
        if known is not None:
            topics.set(topic_of("Orders", known))
        topics.found([QueueKey("Orders", 0), QueueKey("Orders", 3)])
        found = topics.get("Orders")
        assert found is not None
        assert (found.read_queue_count, found.write_queue_count) == (count, known or count)
    finally:
        storage.close()


def test_a_store_that_lost_its_table_opens_with_more_topics_than_clients_may_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "TOPICS_MAX", 3)
    path = str(tmp_path)
    storage = Storage(LocalConfig(store_path=path), StoreConfig(store_path=path, provider="memory"))
    storage.open()
    try:
        topics = Topics(storage)
        topics.found([QueueKey(f"topic-{number}", 0) for number in range(5)])
        assert len(topics.all()) == 6  # with the one that is the template of others
        with pytest.raises(RefusedError, match="there are 3 topics already"):
            topics.set(topic_of("another", 1))
    finally:
        storage.close()
