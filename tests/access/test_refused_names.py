"""A queue that the tier can never hold stops alone: nobody waits for it, and health says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.dispatch_kit import Tier, a_tier
from tests.local.store_audit import opened
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.driver.provider import ProviderWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.local import encoder
from tieredstore.local.reader import LocalReader
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendRefusedError
from tieredstore.model.values import PutStatus, QueueKey, QueueRecord, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import a_message

ODD = QueueKey("a\\b", 0)
GOOD = QueueKey("Good", 0)


class NarrowProvider(ProviderWrapper):
    """One that holds no topic with a capital letter Q."""

    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
        if "Q" in path:
            raise BackendRefusedError(path, "open", "there is no Q here")
        return super().open(path, type, base)


@pytest.mark.parametrize("topic", ["a\\b", "tab\there", "Query"])
def test_others_go_on_and_expire_beside_it(tmp_path: Path, topic: str) -> None:
    odd = QueueKey(topic, 0)
    runtime = Runtime.inline()
    provider = NarrowProvider(MemoryProvider(runtime), runtime)
    store = ListMessageStore.opened(runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider)
    store.fill(3, key=odd)
    store.fill(20, key=GOOD)
    for _ in range(3):
        assert tier.dispatch(force=True)
        assert tier.dispatcher.health().refused == {odd}
        assert tier.span(GOOD) == (0, len(store._queues[GOOD]))
        assert tier.dispatcher.needed_from() is None
        health = tier.dispatcher.health()
        assert list(health.stopped) == [odd]
        assert "holds no" in health.stopped[odd] or "no tier holds" in health.stopped[odd]
        assert not health.failing
        store.fill(5, key=odd)
        store.fill(5, key=GOOD)
    assert tier.dispatcher.resume(odd) == tier.dispatcher.health().stopped[odd]
    assert tier.metadata.queue(*odd) is None
    assert tier.metadata.topic(topic) is None
    tier = tier.reopened()
    assert tier.dispatch(force=True)
    assert list(tier.dispatcher.health().stopped) == [odd]
    assert tier.dispatcher.needed_from() is None


def test_a_catalogue_that_names_it_already_keeps_nobody_from_it(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    tier.metadata.add_topic(ODD.topic)
    tier.metadata.put(
        QueueRecord(broker_name="broker-a", topic=ODD.topic, queue_id=0, update_timestamp=1)
    )
    rows = (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)
    for with_segments in (False, True):
        if with_segments:
            for kind in rows:
                tier.metadata.put(
                    SegmentRecord(
                        path=f"broker-a/{ODD.topic}/0",
                        type=kind,
                        base_offset=0,
                        create_timestamp=1,
                    )
                )
        tier = tier.reopened()
        store.fill(3, key=ODD)
        store.fill(3, key=GOOD)
        assert tier.dispatch(force=True)
        assert tier.dispatcher.needed_from() is None
        assert list(tier.dispatcher.health().stopped) == [ODD]
        reason = tier.dispatcher.resume(ODD)
        assert reason is not None
        assert "parts names" in reason


def test_a_local_store_that_holds_such_topics_is_read_and_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.topic_field.cache_clear()
    with monkeypatch.context() as patched:  # as Java takes them
        patched.setattr(encoder, "why_no_topic", lambda name: None)
        store = opened(tmp_path / "local")
        bodies = []
        for number in range(3):
            message = a_message(number, topic=ODD.topic)
            bodies.append(message.body)
            assert store.put_message(message).stored
        store.shutdown()
    encoder.topic_field.cache_clear()
    for is_crash in (False, True):
        if is_crash:
            (tmp_path / "local" / "abort").touch()
        with LocalReader.open(tmp_path / "local") as reader:
            assert len(reader.get_message(*ODD, 0).messages) == 3
        store = opened(tmp_path / "local")
        found = store.get_message(*ODD, 0).messages
        assert [decode_message(one.record).body for one in found] == bodies
        refused = store.put_message(a_message(9, topic=ODD.topic))
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "parts names" in refused.reason
        store.shutdown()
    config = StoreConfig(
        broker_name="b",
        provider="posix",
        path=str(tmp_path / "tier"),
        store_path=str(tmp_path / "local"),
        index_slot_count=64,
        index_item_count=400,
    )
    inner = opened(tmp_path / "local")
    with TieredMessageStore(inner, config, runtime=Runtime.inline()) as tiered:
        tiered.put_message(a_message(0, topic="Good"))
        assert tiered.flush()
        (odd,) = [queue for queue in tiered.health().queues if not queue.ok]
        assert (odd.topic, odd.queue_id) == ODD
        assert "parts names" in (odd.problem or "")
        assert tiered.committed_offset("Good", 0) == 1
        assert len(tiered.get_message(*ODD, 0).messages) == 3
    with TieredReader(config) as tier_reader:
        assert tier_reader.queues() == [GOOD]
