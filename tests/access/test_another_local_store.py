"""A broker with an empty disk over a tier that has its queues: what is said, and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, Tier
from tieredstore.access.rebuild import rebuild
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore


class Backend:
    """What outlives the brokers."""

    def __init__(self, root: Path) -> None:
        self.runtime = Runtime.inline()
        self.provider = MemoryProvider(self.runtime)
        self._root = root

    def folder(self, name: str) -> Path:
        return self._root / name

    def life(self, name: str, store: ListMessageStore) -> Tier:
        self.folder(name).mkdir(exist_ok=True)
        return Tier(
            self.folder(name),
            store,
            runtime=self.runtime,
            provider=self.provider,
            group_commit_enabled=False,
        )

    def held(self) -> dict[str, int]:
        return {f"{each.path}/{each.type}": each.size for each in self.provider.list()}


@pytest.mark.parametrize("lives", [1, 3])  # before anybody looked
@pytest.mark.parametrize("own", [3, 9])  # fewer messages than the tier has, and more
def test_its_queue_says_what_to_do_and_a_rebuild_lets_it_be_compared(
    tmp_path: Path, lives: int, own: int
) -> None:
    backend = Backend(tmp_path)
    before = ListMessageStore.opened(backend.runtime)
    first = backend.life("before", before)
    before.fill(5)
    assert first.dispatch(force=True)
    first.close()

    other = ListMessageStore.opened(backend.runtime)
    other.fill(own, body_bytes=77)
    held = backend.held()
    for _ in range(lives):
        tier = backend.life("other", other)
        assert not tier.dispatch(force=True)
        failure = tier.dispatcher.health().failing[KEY]
        assert "bytes that nobody committed" in failure
        assert "`tieredstore rebuild`" in failure
        assert "\n" not in failure
        tier.close()

    with JsonMetadataStore.open(backend.folder("other") / "catalogue.json") as metadata:
        report = rebuild(metadata, backend.provider, first.config, backend.runtime)
    assert not report.problems
    tier = backend.life("other", other)
    tier.dispatch(force=True)
    health = tier.dispatcher.health()
    assert not health.failing
    assert KEY in health.stopped
    assert tier.span() == (0, 5)  # the tier's history stands, and can be read
    assert backend.held() == held
    other.kept_from = 5  # the local store has expired what the tier has under these numbers
    if own > 5:
        assert tier.dispatcher.resume(KEY) is None
        assert tier.dispatch(force=True)
        assert tier.span() == (0, own)
    tier.close()
