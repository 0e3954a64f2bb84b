"""Queues whose two sides must be compared before anything is added to the tier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier, a_tier
from tests.access.tiered_kit import Broker
from tieredstore.access.queue_upload import STOPPED_QUEUE, ask_to_resume, stop_queue
from tieredstore.access.upkeep import expire
from tieredstore.driver.runtime import Runtime
from tieredstore.flat import recovery
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import Json, QueueKey, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import a_message


def two_brokers(root: Path) -> tuple[Tier, Tier, ListMessageStore, ListMessageStore]:
    """Both have uploaded three messages to one backend; the bytes there are those of the first."""
    runtime = Runtime.inline()
    backend = MemoryProvider(runtime)
    stores = ListMessageStore.opened(runtime), ListMessageStore.opened(runtime)
    tiers = []
    for name, store in zip(("a", "b"), stores, strict=True):
        (root / name).mkdir()
        tiers.append(
            Tier(
                root / name,
                store,
                runtime=runtime,
                provider=backend,
                index=RecordingIndex(),
                group_commit_enabled=False,
            )
        )
        store.fill(3)
    assert all(tier.dispatch(force=True) for tier in tiers)
    return tiers[0], tiers[1], *stores


def lagging(tier: Tier, rows: list[SegmentRecord]) -> Tier:
    """Another life with these older rows in its catalogue: it lacks the later uploads."""
    tier.metadata.put(*rows)
    return tier.reopened()


@pytest.mark.parametrize("own", [0, 2, 4, 9])
def test_messages_of_another_broker_do_not_count_after_a_restart(tmp_path: Path, own: int) -> None:
    first, second, ours, theirs = two_brokers(tmp_path)
    ours.fill(4, body_bytes=50)
    assert first.dispatch(force=True)
    theirs.fill(own, body_bytes=77)
    second = second.reopened()
    second.dispatch(force=True)
    second.dispatch(force=True)
    assert second.span() == (0, 3 + own)
    assert second.file().problem is None
    assert not second.metadata.notes(recovery.UNCONFIRMED_NOTE)
    second.check()
    index = second.index
    assert isinstance(index, RecordingIndex)
    assert sorted(set(index.offsets())) == list(range(3 + own))
    first.dispatch(force=True)
    assert first.span() == (0, 7)
    first.check()
    second = second.reopened()
    theirs.fill(2)
    second.dispatch(force=True)
    second.dispatch(force=True)
    assert second.span() == (0, 5 + own)
    second.check()


def a_lagging_tier(root: Path) -> tuple[ListMessageStore, Tier]:
    """Six messages are uploaded; the catalogue names three."""
    store, tier, _ = a_tier(root, group_commit_enabled=False)
    store.fill(3)
    assert tier.dispatch(force=True)
    rows = list(tier.metadata.segments())
    store.fill(3)
    assert tier.dispatch(force=True)
    return store, lagging(tier, rows)


def _emptied(row: SegmentRecord) -> SegmentRecord:
    return replace(row, size=0, begin_timestamp=None, end_timestamp=None)


def test_our_own_messages_count_once_they_were_compared(tmp_path: Path) -> None:
    _, tier = a_lagging_tier(tmp_path)
    assert tier.file().unconfirmed_from == tier.file().sure_offset == 3
    tier = tier.reopened()  # the messages are not compared yet, but the catalogue names them now
    assert tier.file().unconfirmed_from == 3
    assert tier.dispatch(force=True)
    assert tier.file().unconfirmed_from is None
    assert not tier.metadata.notes(recovery.UNCONFIRMED_NOTE)
    assert tier.span() == (0, 6)
    tier.check()
    assert tier.reopened().file().unconfirmed_from is None


def test_what_the_local_store_no_longer_has_counts(tmp_path: Path) -> None:
    store, tier = a_lagging_tier(tmp_path)
    store.kept_from = 5
    assert tier.dispatch(force=True)
    assert tier.span() == (0, 6)
    assert tier.file().unconfirmed_from is None
    store.kept_from = 0
    tier.check()


@pytest.mark.parametrize("named", [0, 3])
def test_what_is_not_compared_yet_is_kept_in_the_local_store(tmp_path: Path, named: int) -> None:
    store, tier = a_lagging_tier(tmp_path)
    if not named:
        tier = lagging(tier, [_emptied(row) for row in tier.metadata.segments()])
    tier.dispatcher.start()
    local = store.read_range(*KEY, named, count_max=1, bytes_max=1)
    assert tier.dispatcher.needed_from() == int(local.log_offsets[0])
    tier.dispatch(force=True)
    assert tier.dispatcher.needed_from() is None


def test_what_the_local_store_has_not_yet_counts_when_it_comes_and_is_not_sent_again(
    tmp_path: Path,
) -> None:
    store, tier = a_lagging_tier(tmp_path)
    kept = store._queues[KEY][4:]
    store.cut_to(KEY, 4)
    before = {each.path: each.size for each in tier.provider.list("")}
    tier.dispatch(force=True)
    tier.dispatch(force=True)
    assert tier.span() == (0, 4)
    store._queues[KEY] += kept
    assert tier.dispatch(force=True)
    assert tier.span() == (0, 6)
    assert before == {each.path: each.size for each in tier.provider.list("")}
    tier.check()


def test_a_catalogue_that_fails_leaves_the_question_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tier = a_lagging_tier(tmp_path)
    store.cut_to(KEY, 4)

    def refuse(changes: object) -> None:
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(tier.metadata, "apply", refuse)
        tier.dispatch(force=True)
    assert tier.file().unconfirmed_from == 3
    tier.dispatch(force=True)
    tier.dispatch(force=True)
    assert tier.span() == (0, 4)
    tier.check()


def test_a_local_store_that_lost_more_than_that_takes_nothing_back(tmp_path: Path) -> None:
    store, tier = a_lagging_tier(tmp_path)
    store.cut_to(KEY, 2)
    tier.dispatch(force=True)
    assert tier.span() == (0, 6)
    assert "up to 6, the local store up to 2" in tier.dispatcher.health().stopped[KEY]
    assert tier.file().unconfirmed_from == 3


def test_nothing_rolls_behind_messages_that_may_be_taken_back(tmp_path: Path) -> None:
    store, tier = a_lagging_tier(tmp_path)
    expire(tier.file(), tier.runtime.clock.now_ms() + 1)
    assert tier.span() == (0, 6)
    store.cut_to(KEY, 4)
    tier.dispatch(force=True)
    assert tier.span() == (0, 4)
    tier.check()


@pytest.mark.parametrize(
    "note", [1, [], {"from": 3}, {"from": "x", "rows": []}, {"from": 3, "rows": [["NOPE", 0]]}]
)
def test_a_note_that_makes_no_sense_is_passed_over(tmp_path: Path, note: Json) -> None:
    store, tier = a_lagging_tier(tmp_path)
    tier.metadata.put_note(recovery.UNCONFIRMED_NOTE, tier.file().path, note)
    tier = tier.reopened()
    store.fill(1)
    assert tier.dispatch(force=True)
    assert tier.span() == (0, 7)
    tier.check()


def test_a_queue_that_was_destroyed_leaves_no_question(tmp_path: Path) -> None:
    _, tier = a_lagging_tier(tmp_path)
    tier.files.destroy(KEY)
    assert not tier.metadata.notes(recovery.UNCONFIRMED_NOTE)
    assert tier.dispatch(force=True)
    assert tier.span() == (0, 6)
    tier.check()


def test_a_damaged_unit_behind_the_catalogued_ones_is_not_ours(tmp_path: Path) -> None:
    _, tier = a_lagging_tier(tmp_path)
    row = next(row for row in tier.metadata.segments() if row.type.name == "CONSUME_QUEUE")
    with tier.provider.open(row.path, row.type, row.base_offset) as segment:
        units = bytearray(segment.read(0, row.size))
        units[60:68] = (5).to_bytes(8, "big")  # message 3 begins within message 0
        segment.delete()
        segment.write(0, bytes(units))
    tier.dispatch(force=True)
    tier.dispatch(force=True)
    assert tier.span() == (0, 6)
    tier.check()
    assert [each.base for each in tier.file().queue.segments] == [0, 60]


# A stopped queue goes on when an operator asks, and only if both stores agree


PATH = f"broker-a/{KEY.topic}/{KEY.queue_id}"


def put(store: ListMessageStore, first: int, end: int) -> None:
    for number in range(first, end):
        store.put_message(a_message(number, topic=KEY.topic, queue_id=KEY.queue_id))


def a_stopped_tier(root: Path) -> tuple[ListMessageStore, Tier, int]:
    """20 messages are in the tier, the local store has lost 8 of them. The last value is the end of
    its log.
    """
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
    put(store, 12, 25)  # the lost messages are restored
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


def test_it_is_compared_again_if_the_backend_failed_then(tmp_path: Path) -> None:
    store, tier, _ = a_stopped_tier(tmp_path)
    assert ask_to_resume(PATH, tier.metadata)
    put(store, 12, 25)
    tier = tier.reopened()
    read_range = store.read_range

    def fails_once(*place: Any, **limits: Any) -> NoReturn:
        store.read_range = read_range  # type: ignore[method-assign]
        raise BackendUnavailableError("log", "read", "not now")

    store.read_range = fails_once  # type: ignore[method-assign]
    assert not tier.flush()
    assert tier.flush()
    assert tier.is_sound
    assert note(tier) is None


def test_one_that_the_tier_can_no_longer_hold_is_asked_for_once(tmp_path: Path) -> None:
    store, tier, _ = a_stopped_tier(tmp_path)
    assert ask_to_resume(PATH, tier.metadata)
    put(store, 12, 25)
    tier = tier.reopened()
    asked: list[QueueKey] = []

    def refused(key: QueueKey) -> str:
        asked.append(key)
        assert len(asked) < 9
        return "no tier holds it"

    tier.files.why_refused = refused  # type: ignore[method-assign]
    tier.dispatch(force=True)
    assert asked == [KEY]


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
