"""A reader beside a store that goes on writing."""

from __future__ import annotations

from pathlib import Path

from tests.access.tiered_kit import Broker, numbers
from tieredstore.access.reader import TieredReader
from tieredstore.model.values import QueueKey
from tieredstore.testing.messages import TOPIC


def test_refresh_shows_what_a_running_writer_has_done(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(3)
    with TieredReader(broker.config, runtime=broker.runtime, provider=broker.provider) as reader:
        assert reader.max_offset(TOPIC, 0) == 3
        broker.put(4, first=3)
        broker.put(2, topic="Other")
        assert broker.store.flush()
        assert reader.max_offset(TOPIC, 0) == 3
        reader.refresh()
        assert numbers(reader.get_message(TOPIC, 0, 0)) == list(range(7))
        assert reader.queues() == [QueueKey("Other", 0), QueueKey(TOPIC, 0)]
        broker.store.delete_topics(["Other"])
        reader.refresh()
        assert reader.queues() == [QueueKey(TOPIC, 0)]
    assert broker.store.flush()
    broker.store.shutdown()


def test_a_gap_is_stepped_over(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(3)
    broker.put(5, first=3)
    broker.local.kept_from = 6
    assert broker.store.flush()
    with TieredReader(broker.config, runtime=broker.runtime, provider=broker.provider) as reader:
        assert [one.queue_offset for one in reader.messages(TOPIC, 0)] == [0, 1, 2, 6, 7]
        assert [one.queue_offset for one in reader.messages(TOPIC, 0, start=4)] == [6, 7]
    broker.store.shutdown()


def test_messages_that_expire_while_they_are_read_are_stepped_over(tmp_path: Path) -> None:
    broker = Broker(tmp_path, commit_log_segment_bytes=1000, read_ahead_count=2, reserve_hours=2)
    broker.open()
    broker.fill(12, kept_from=12)
    with TieredReader(broker.config, runtime=broker.runtime, provider=broker.provider) as reader:
        messages = iter(reader.messages(TOPIC, 0))
        found = [next(messages).queue_offset for _ in range(2)]
        broker.runtime.clock.sleep(3 * 3600)
        broker.put(3, first=12)
        assert broker.store.flush()
        broker.store._loaded().retention.step()
        assert (broker.store.min_offset(TOPIC, 0) or 0) > 2
        reader.refresh()
        found += [one.queue_offset for one in messages]
    assert found == sorted(set(found))
    broker.store.shutdown()
