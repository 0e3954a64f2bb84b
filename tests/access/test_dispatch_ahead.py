"""The tier has messages that the local store has not: the queue stops."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.access.dispatch_kit import KEY, a_tier
from tieredstore.model.values import QueueKey
from tieredstore.testing.samples import TOPIC

GOOD = QueueKey("Good", 0)
LATER: Final = {"group_commit_enabled": False}


def test_the_queue_stops_and_nothing_is_overwritten(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, **LATER)
    store.fill(10)
    store.fill(2, key=GOOD)
    tier.dispatch()
    store.cut_to(KEY, 6)
    store.fill(2, key=GOOD)
    before = {each.path: each.size for each in tier.provider.list(f"broker-a/{TOPIC}")}
    tier.dispatch()
    assert "up to 10, the local store up to 6" in tier.dispatcher.health().stopped[KEY]
    assert tier.span() == (0, 10)
    assert tier.span(GOOD) == (0, 4)
    assert before == {each.path: each.size for each in tier.provider.list(f"broker-a/{TOPIC}")}


def test_it_stays_stopped_over_a_restart_when_the_local_queue_has_grown(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, **LATER)
    store.fill(10)
    tier.dispatch()
    store.cut_to(KEY, 6)
    tier.dispatch()
    tier = tier.reopened()
    store.fill(20)
    tier.dispatch()
    assert tier.span() == (0, 10)
    assert "the local store up to 6" in tier.dispatcher.health().stopped[KEY]
    assert not tier.flush()


def test_it_is_noticed_where_the_local_queue_grew_before_anyone_looked(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, **LATER)
    store.fill(10)
    tier.dispatch()
    store.cut_to(KEY, 6)
    tier.later(1_000)
    store.fill(20)
    tier = tier.reopened()
    tier.dispatch()
    assert tier.span() == (0, 10)
    assert "message 9 is another one" in tier.dispatcher.health().stopped[KEY]


def test_a_queue_that_agrees_goes_on_after_a_restart(tmp_path: Path) -> None:
    store, tier, index = a_tier(tmp_path, **LATER)
    store.fill(10)
    tier.dispatch()
    tier = tier.reopened()
    store.fill(10)
    tier.dispatch()
    assert tier.span() == (0, 20)
    assert index.offsets() == list(range(20))
    tier.check()


def test_where_the_local_message_is_gone_nothing_speaks_against_it(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path, **LATER)
    store.fill(10)
    tier.dispatch()
    tier = tier.reopened()
    store.fill(10)
    store.kept_from = 10
    tier.dispatch()
    assert tier.span() == (0, 20)
