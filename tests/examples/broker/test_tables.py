"""Which topics and queues a broker has, beside what its store has."""

from __future__ import annotations

from pathlib import Path

import pytest

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
