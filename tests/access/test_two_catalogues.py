"""Two brokers of one name over one backend: neither takes the other's messages for its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier, a_tier
from tieredstore.access.upkeep import expire
from tieredstore.driver.metadata import Json
from tieredstore.driver.runtime import Runtime
from tieredstore.flat import recovery
from tieredstore.model.values import SegmentRecord
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore


def two_brokers(root: Path) -> tuple[Tier, Tier, ListMessageStore, ListMessageStore]:
    """Both have tiered three messages: the bytes are those of the first."""
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
    """Another life, whose catalogue never heard of what was uploaded since."""
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
    tier = tier.reopened()  # nobody has compared yet, and the catalogue names them now
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
        units[60:68] = (5).to_bytes(8, "big")  # message 3 lies somewhere within message 0
        segment.delete()
        segment.write(0, bytes(units))
    tier.dispatch(force=True)
    tier.dispatch(force=True)
    assert tier.span() == (0, 6)
    tier.check()
    assert [each.base for each in tier.file().queue.segments] == [0, 60]
