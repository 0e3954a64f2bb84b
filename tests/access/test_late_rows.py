"""Rows that the catalogue refused and gets later: what went meanwhile does not come back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, Tier, a_tier
from tieredstore.access.upkeep import Retention
from tieredstore.driver.metadata import Change
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import QueueKey
from tieredstore.testing.message_store_contract import ListMessageStore

HOURS_MS = 3_600_000


def a_retention(tier: Tier) -> Retention:
    return Retention(
        tier.files,
        tier.dispatcher,
        forget=lambda key: None,
        metadata=tier.metadata,
        config=tier.config,
        clock=tier.runtime.clock,
    )


def refused_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ListMessageStore, Tier]:
    """Old messages that were uploaded; the catalogue took no row of the second batch."""
    store, tier, _ = a_tier(root, group_commit_enabled=False)
    store.fill(10)
    tier.dispatch(force=True)
    store.fill(10)
    tier.later(80 * HOURS_MS)

    def refuse(changes: Iterable[Change]) -> None:
        raise MetadataError("catalogue", "full")

    with monkeypatch.context() as patch:
        patch.setattr(tier.metadata, "apply", refuse)
        assert not tier.dispatch(force=True)
    return store, tier


def assert_rows_have_bytes(tier: Tier) -> None:
    held = {(each.path, each.type, each.base): each.size for each in tier.provider.list("")}
    for row in tier.metadata.segments():
        assert held.get((row.path, row.type, row.base_offset), 0) == row.size


def test_a_late_row_brings_no_dropped_segment_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tier = refused_rows(tmp_path, monkeypatch)
    a_retention(tier).step()
    assert tier.span() == (20, 20)
    assert tier.dispatch(force=True)
    assert_rows_have_bytes(tier)
    store.fill(3)
    assert tier.dispatch(force=True)
    assert_rows_have_bytes(tier)
    tier = tier.reopened()
    assert (tier.span(), tier.file().problem) == ((20, 23), None)
    tier.check()


def test_a_late_row_says_how_long_the_segment_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tier = refused_rows(tmp_path, monkeypatch)
    assert tier.dispatch(force=True)
    assert_rows_have_bytes(tier)
    assert QueueKey(*KEY) in [file.key for file in tier.files.files()]
    tier = tier.reopened()
    assert tier.span() == (0, 20)
    tier.check()
