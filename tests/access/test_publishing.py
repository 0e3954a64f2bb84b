"""When a broker publishes its catalogue, and that nothing else suffers where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.elsewhere_kit import Elsewhere, offsets
from tests.access.tiered_kit import Broker
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.journal import seal
from tieredstore.model.errors import (
    BackendUnavailableError,
)
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import FaultyProvider


@pytest.fixture(params=["posix", "objects"])
def there(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path, request.param)
    yield made
    made.broker.store.shutdown()


def test_it_is_published_at_a_sealing_flush_and_at_the_end_and_an_idle_store_asks_nothing(
    tmp_path: Path,
) -> None:
    there = Elsewhere(tmp_path, "objects")
    broker, requests = there.broker, there.client.requests
    broker.fill(3)
    assert there.objects.held_keys(".catalog/") == []
    assert broker.store.flush(seal=True)
    assert len(there.objects.held_keys(".catalog/")) == 1
    there.publish()  # what sealing has changed
    requests.clear()
    for _ in range(10):
        there.publish()
    assert dict(requests) == {}
    for number in range(3, 9):  # commits between two steps
        broker.put(1, first=number)
        assert broker.store.flush()
    before = len(there.objects.held_keys(".catalog/"))
    assert before <= 3
    there.publish()
    health = broker.store.health()
    published = health.catalogue.published_count
    assert health.catalogue.error is None
    there.publish()
    assert broker.store.health().catalogue.published_count == published
    broker.put(1, first=9)
    assert broker.store.flush()
    broker.store.shutdown()
    with there.reader() as reader:
        assert offsets(reader) == list(range(10))
        assert reader.catalogue.generation == published + 1


def test_a_backend_that_cannot_be_reached_is_named_in_health_and_nothing_else_fails(
    there: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = there.broker
    broker.fill(3)
    generations_type = type(there.opened(Runtime.inline()).generations("broker-a"))

    def down(*_: object) -> None:
        raise BackendUnavailableError(".catalog", "list", "it is down")

    with monkeypatch.context() as patch:
        patch.setattr(generations_type, "listed", down)
        there.publish()
        assert broker.store.flush(seal=True)
        health = broker.store.health()
        assert not health.ok
        assert "it is down" in (health.catalogue.error or "")
        assert health.as_json()["catalogue"]["failure_count"] == 2
        broker.put(1, first=3)
        assert broker.store.flush()
    there.publish()
    assert broker.store.health().ok
    with there.reader() as reader:
        assert offsets(reader) == [0, 1, 2, 3]


def test_publishing_can_be_switched_off(tmp_path: Path) -> None:
    broker = Broker(tmp_path, publish_interval_ms=0)
    broker.provider = FaultyProvider(
        PosixProvider(tmp_path / "tier", "cluster-a", broker.runtime),
        broker.faults,
        broker.runtime,
    )
    broker.store = broker.wrap(broker.local)
    broker.open()
    broker.fill(3)
    assert broker.store.flush(seal=True)
    broker.store.shutdown()
    assert not (tmp_path / "tier" / ".catalog").exists()


def test_a_broker_that_was_overtaken_publishes_no_more_and_says_so(there: Elsewhere) -> None:
    there.broker.fill(3)
    there.publish()
    generations = there.opened(Runtime.inline()).generations("broker-a")
    assert generations is not None
    newest = generations.listed()[-1]
    data = generations.read(newest)
    text = data[data.index(b'"format"') :].rstrip(b"\n")
    stolen = text.replace(b'"generation":1', b'"generation":2').replace(
        b'"writer":"', b'"writer":"x'
    )
    generations.create(2, seal(stolen))
    there.broker.put(1, first=3)
    assert there.broker.store.flush()
    for _ in range(3):
        there.publish()
    health = there.broker.store.health()
    assert health.catalogue.failure_count == 1
    assert "another writer" in (health.catalogue.error or "")
    assert [each.number for each in generations.listed()] == [1, 2]
    assert there.broker.store.flush()
