"""A queue that was stopped goes on when somebody asks, and only where nothing speaks against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, Tier, a_tier
from tests.access.tiered_kit import Broker
from tieredstore.access.queue_upload import STOPPED_QUEUE, ask_to_resume, stop_queue
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import QueueKey, SegmentType
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import a_message

PATH = f"broker-a/{KEY.topic}/{KEY.queue_id}"


def put(store: ListMessageStore, first: int, end: int) -> None:
    for number in range(first, end):
        store.put_message(a_message(number, topic=KEY.topic, queue_id=KEY.queue_id))


def a_stopped_tier(root: Path) -> tuple[ListMessageStore, Tier, int]:
    """20 messages are in the tier, the local store has 12 of them; where its log ended."""
    runtime = Runtime.inline()
    store = ListMessageStore(runtime)
    store.load()
    store.start()
    tier = Tier(root, store, runtime=runtime)
    put(store, 0, 12)
    kept = store.end
    put(store, 12, 20)
    assert tier.flush()
    tier.close()
    store.lose_from(kept)
    store.restart()
    store.load()
    store.start()
    tier = tier.reopened()
    assert not tier.flush()
    assert "up to 20, the local store up to 12" in tier.dispatcher.health().stopped[KEY]
    return store, tier, kept


def note(tier: Tier) -> object:
    return tier.metadata.note(STOPPED_QUEUE, PATH)


def test_it_stays_stopped_while_the_tier_is_ahead(tmp_path: Path) -> None:
    _, tier, _ = a_stopped_tier(tmp_path)
    reason = tier.dispatcher.resume(KEY)
    assert reason is not None
    assert "up to 20, the local store up to 12" in reason
    assert tier.dispatcher.health().stopped[KEY] == reason
    assert note(tier) == {"reason": reason}


def test_it_goes_on_when_the_local_store_has_its_messages_again(tmp_path: Path) -> None:
    store, tier, _ = a_stopped_tier(tmp_path)
    put(store, 12, 25)  # a copy was brought back
    assert not tier.flush()
    assert tier.dispatcher.resume(KEY) is None
    assert note(tier) is None
    assert tier.flush()
    assert (tier.span(), tier.is_sound) == ((0, 25), True)
    tier.check()
    tier = tier.reopened()
    assert tier.flush()
    assert tier.is_sound


def test_it_stays_stopped_where_other_messages_have_the_numbers(tmp_path: Path) -> None:
    store, tier, _ = a_stopped_tier(tmp_path)
    put(store, 100, 130)
    reason = tier.dispatcher.resume(KEY)
    assert reason == "message 19 is another one in the local store than in the tier"
    assert not tier.flush()
    assert tier.span() == (0, 20)
    assert not tier.reopened().flush()


def test_it_goes_on_behind_a_gap_when_there_is_nothing_left_to_compare(tmp_path: Path) -> None:
    store, tier, _ = a_stopped_tier(tmp_path)
    put(store, 100, 130)
    end = store.end
    put(store, 200, 205)
    store.lose_below(end)
    assert tier.dispatcher.resume(KEY) is None
    assert tier.flush()
    assert tier.span() == (0, 47)
    assert tier.dispatcher.health().lost == {KEY: 22}


@pytest.mark.parametrize("is_restored", [True, False])
def test_it_is_compared_at_the_next_start_where_somebody_asked_without_a_broker(
    tmp_path: Path, is_restored: bool
) -> None:
    store, tier, _ = a_stopped_tier(tmp_path)
    assert ask_to_resume(PATH, tier.metadata)
    put(store, 12 if is_restored else 100, 25 if is_restored else 130)
    tier = tier.reopened()
    assert tier.flush() is is_restored
    assert tier.is_sound is is_restored
    assert tier.span() == (0, 25 if is_restored else 20)
    assert (note(tier) is None) is is_restored
    if not is_restored:
        assert note(tier) == {"reason": tier.dispatcher.health().stopped[KEY]}


def test_nobody_can_ask_for_one_that_was_not_stopped(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    store.fill(3)
    assert tier.flush()
    assert not ask_to_resume(PATH, tier.metadata)
    assert note(tier) is None
    assert tier.dispatcher.resume(KEY) is None
    assert tier.dispatcher.resume(QueueKey("Nobody", 9)) == "the tier has no such queue"


def test_one_whose_lost_bytes_came_back_goes_on(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(4)
    path = f"broker-a/{broker.tier.files.files()[0].key.topic}/0"
    with broker.provider.open(path, SegmentType.COMMIT_LOG, 0) as segment:
        data = segment.read(0, segment.size())
        segment.delete()
        broker.store.shutdown()
        broker.open()
        (queue,) = broker.store.health().queues
        assert "bytes that were committed are gone" in str(queue.problem)
        reason = broker.store.resume_queue(queue.topic, queue.queue_id)
        assert reason == queue.problem
        segment.write(0, data)
    assert broker.store.resume_queue(queue.topic, queue.queue_id) is None
    assert broker.store.health().ok
    broker.put(3, first=4)
    assert broker.store.flush()
    assert broker.store.committed_offset(queue.topic, queue.queue_id) == 7


def test_nothing_is_kept_of_why_a_queue_was_stopped_when_its_topic_is_deleted(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path)
    store = broker.open()
    broker.fill(4)
    parts = store._loaded().tier
    (file,) = parts.files.files()
    stop_queue(file, "somebody said so", parts.metadata)
    assert store.delete_topics([file.key.topic]) == 1
    assert not parts.metadata.notes(STOPPED_QUEUE)
    broker.put(3)
    assert store.flush()
    assert store.committed_offset(*file.key) == 3
