"""The queues of a broker that is gone, taken into another tier as history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.growing_tier import broker_on, everything, tier_at
from tests.jobs.migrate_kit import files, moved
from tests.jobs.verify_kit import kinds, verified
from tieredstore.access.audit import audit
from tieredstore.access.queue_upload import STOPPED_QUEUE
from tieredstore.driver.runtime import Runtime
from tieredstore.jobs.job import JobExit
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError
from tieredstore.model.findings import Severity
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixProvider


def test_another_brokers_queues_are_adopted_as_history(tmp_path: Path) -> None:
    gone, target = tier_at(tmp_path / "gone", broker="broker-b"), tier_at(tmp_path / "tier")
    with broker_on(gone) as broker:
        broker.put(20, topic="Orders")
        broker.put(30, topic="Orders", queue_id=1)
    with broker_on(target) as broker:
        broker.put(10, topic="Other")
    for _ in range(2):  # once more changes nothing
        report = moved(gone, target, adopt=True, cut_over=True)
        assert report.exit_code is JobExit.DONE
    found = everything(target)
    assert {key: len(each) for key, each in found.items()} == {
        QueueKey("Orders", 0): 20,
        QueueKey("Orders", 1): 30,
        QueueKey("Other", 0): 10,
    }
    assert found[QueueKey("Orders", 1)] == everything(gone)[QueueKey("Orders", 1)]
    with JsonMetadataStore.open(target.catalogue_path, read_only=True) as metadata:
        note: Any = metadata.note(STOPPED_QUEUE, "broker-a/Orders/0")
        assert "history of broker broker-b" in note["reason"]
        numbers = [record.topic_id for record in metadata.topics()]
        assert len(set(numbers)) == len(numbers) == 2


def test_adopted_history_is_a_note_to_those_who_look_for_damage(tmp_path: Path) -> None:
    gone, target = tier_at(tmp_path / "gone", broker="broker-b"), tier_at(tmp_path / "tier")
    with broker_on(gone) as broker:
        broker.put(20, topic="Orders")
    with broker_on(target) as broker:
        broker.put(10, topic="Other")
    moved(gone, target, adopt=True, cut_over=True)
    report = verified(target)
    assert kinds(report) == {"adopted-history", "tags-code"}  # codes of these units are numbers
    (found,) = [each for each in report.findings if each.kind == "adopted-history"]
    assert (found.severity, found.where) == (Severity.NOTE, "broker-a/Orders/0")
    assert "history of broker broker-b" in found.detail
    with JsonMetadataStore.open(target.catalogue_path) as metadata:
        runtime = Runtime.inline()
        provider = PosixProvider.from_config(target, runtime)
        looked = audit(metadata, provider, target, runtime)
        assert [each.kind for each in looked.findings] == ["adopted-history"]
        assert looked.is_clean
        metadata.put_note(STOPPED_QUEUE, "broker-a/Orders/0", {"reason": "another one"})
    assert "stopped-queue" in kinds(verified(target))


def test_without_a_cut_over_it_says_what_is_missing(tmp_path: Path) -> None:
    gone, target = tier_at(tmp_path / "gone", broker="broker-b"), tier_at(tmp_path / "tier")
    with broker_on(gone) as broker:
        broker.put(20, topic="Orders")
    with broker_on(target) as broker:
        broker.put(10, topic="Other")
    lines = moved(gone, target, adopt=True, cut_over=False).lines
    assert any("nothing is adopted yet" in line and "--cut-over" in line for line in lines)
    lines = moved(gone, target, adopt=True, cut_over=True).lines
    assert not any("nothing is adopted yet" in line for line in lines)


def test_queues_that_both_hold_are_all_named_and_nothing_is_adopted(tmp_path: Path) -> None:
    gone, target = tier_at(tmp_path / "gone", broker="broker-b"), tier_at(tmp_path / "tier")
    for config in (gone, target):
        with broker_on(config) as broker:
            broker.put(2, topic="Orders")
            broker.put(2, topic="Orders", queue_id=3)
    with broker_on(gone) as broker:
        broker.put(2, topic="Alone")
    before = files(target)
    with pytest.raises(InvalidConfigError, match="both tiers have: Orders/0, Orders/3; nothing"):
        moved(gone, target, adopt=True, cut_over=True)
    assert files(target) == before


def test_nothing_is_adopted_into_a_tier_with_a_live_broker(tmp_path: Path) -> None:
    gone, target = tier_at(tmp_path / "gone", broker="broker-b"), tier_at(tmp_path / "tier")
    with broker_on(gone) as broker:
        broker.put(2, topic="Orders")
    with broker_on(target) as broker:
        broker.put(1)
        with pytest.raises(BackendRefusedError, match="stop it first"):
            moved(gone, target, adopt=True, cut_over=True)
