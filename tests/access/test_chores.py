"""Background work beside uploads: sealing in an object store, and publishing the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.care_kit import Elsewhere, offsets
from tests.access.tiered_kit import Broker, numbers
from tests.providers.object_kit import StruckClient
from tieredstore.access import upkeep
from tieredstore.driver.metrics import QUEUE_PROBLEM, Metric
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.journal import seal
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    StoreClosedError,
)
from tieredstore.model.values import QueueKey, StorageLevel
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.samples import TOPIC


class ObjectBroker(Broker):
    """A broker whose tier is in an object store; `struck` holds the faults of its requests."""

    def __init__(self, folder: Path, objects: MemoryObjects, **settings: Any) -> None:
        super().__init__(
            folder,
            storage_level=StorageLevel.FORCE,
            commit_log_segment_bytes=1_000,
            consume_queue_segment_bytes=80,
            **settings,
        )
        self.objects = objects
        self.struck = Faults()
        self.client = StruckClient(MemoryObjectClient(objects), self.struck)
        inner = ObjectProvider(
            self.client, "cluster-a", self.runtime, retry=RetryPolicy(retries_max=0)
        )
        self.provider = FaultyProvider(inner, self.faults, self.runtime)
        self.store = self.wrap(self.local)

    def unsealed(self) -> list[tuple[str, int, int]]:
        """Segments that have bytes, but no object of their own under RocketMQ's key."""
        return [
            (each.path, each.type, each.base)
            for each in self.provider.list()
            if self.provider.open(each.path, each.type, each.base).path
            not in self.objects.held_keys()
        ]

    def commits(self, count: int, *, first: int = 0, topic: str = TOPIC) -> None:
        """Put messages and commit each alone."""
        for number in range(first, first + count):
            self.put(1, first=number, topic=topic)
            assert self.store.flush()

    def gauge_of(self, metric: Metric) -> list[float]:
        return [value for value, _ in self.metrics.gauges[metric]()]

    def chore(self) -> None:
        self.sealing.step()


def copy(objects: MemoryObjects, folder: Path) -> None:
    for key in objects.held_keys():
        if not key.startswith("."):
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(objects.held[key][0])


def test_a_bucket_is_copied_to_a_folder_after_a_flush_that_seals(tmp_path: Path) -> None:
    broker = ObjectBroker(tmp_path, MemoryObjects())
    with broker.store:
        broker.commits(10)
        broker.commits(3, topic="other topic|%")
        assert broker.store.flush(seal=True)
        assert broker.unsealed() == []
        assert broker.store.flush(seal=True)  # nothing is left to do
        listed = set(broker.provider.list())
        broker.commits(3, first=10)  # sealed queues go on
        expected = numbers(broker.store.get_message(TOPIC, 0, 0))
        assert expected == list(range(13))
        assert broker.store.flush(seal=True)
        listed = set(broker.provider.list())
    copy(broker.objects, tmp_path / "tier")
    copied = Broker(tmp_path, storage_level=StorageLevel.FORCE)
    posix = PosixProvider(tmp_path / "tier", "cluster-a", copied.runtime)
    assert set(posix.list()) == listed
    copied.provider = FaultyProvider(posix, copied.faults, copied.runtime)
    copied.local = broker.local
    copied.store = copied.wrap(broker.local)
    with copied.store as store:
        assert numbers(store.get_message(TOPIC, 0, 0)) == expected
        assert numbers(store.get_message("other topic|%", 0, 0)) == [0, 1, 2]
        assert [file.problem for file in copied.tier.files.files()] == [None, None]


def test_a_round_that_ends_meanwhile_does_not_hide_that_sealing_failed(tmp_path: Path) -> None:
    """It began before the segments rolled, so it has no failures."""
    broker = ObjectBroker(tmp_path, MemoryObjects())
    with broker.store:
        broker.commits(3)
        step = broker.sealing.step

        def step_beside_another() -> Any:
            outcome = step()
            broker.sealing.errors = {}
            return outcome

        broker.sealing.step = step_beside_another  # type: ignore[method-assign]
        broker.struck.always = Fault.BEFORE
        assert not broker.sealing.seal_all()
        broker.struck.forgive()
        assert broker.sealing.seal_all()


def test_the_chore_seals_what_has_rolled(tmp_path: Path) -> None:
    broker = ObjectBroker(tmp_path, MemoryObjects())
    with broker.store:
        broker.commits(10)
        assert len(broker.unsealed()) > 2
        broker.chore()
        assert len(broker.unsealed()) == 2
        assert numbers(broker.store.get_message(TOPIC, 0, 0)) == list(range(10))


def test_sealing_goes_on_after_a_restart(tmp_path: Path) -> None:
    objects = MemoryObjects()
    first = ObjectBroker(tmp_path, objects)
    with first.store:
        first.commits(10)
    second = ObjectBroker(tmp_path, objects)
    second.local = first.local
    second.store = second.wrap(first.local)
    with second.store:
        second.chore()
        assert len(second.unsealed()) == 2
        assert numbers(second.store.get_message(TOPIC, 0, 0)) == list(range(10))


def test_a_store_that_cannot_be_reached_is_asked_again_in_the_next_round(tmp_path: Path) -> None:
    broker = ObjectBroker(tmp_path, MemoryObjects())
    with broker.store as store:
        broker.commits(10)
        broker.struck.always = Fault.BEFORE
        broker.chore()
        assert len(broker.sealing.errors) > 0
        assert not store.flush(seal=True)
        [queue] = store.health().queues
        assert queue.last_error is not None
        assert "could not be sealed" in queue.last_error
        assert broker.gauge_of(QUEUE_PROBLEM) == [1]
        broker.struck.forgive()
        broker.chore()
        assert broker.sealing.errors == {}
        assert store.flush(seal=True)
        assert store.health().ok
        assert broker.unsealed() == []


def test_a_round_of_sealing_that_ends_early_does_not_forget_which_queues_behind_it_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ObjectBroker(tmp_path, MemoryObjects())
    monkeypatch.setattr(upkeep, "SEALED_AT_ONCE", 1)
    is_away = False

    def refuse(operation: str, key: str) -> None:
        if operation == "put" and "/denied/" in key:
            raise BackendRefusedError(key, "put", "access denied")
        if operation == "put" and is_away:
            raise BackendUnavailableError(key, "put", "away")

    with broker.store as store:
        broker.commits(10, topic="denied")
        broker.client.before = refuse
        broker.chore()
        broker.commits(10)
        is_away = True
        broker.chore()
        told = {each.topic: each.last_error or "" for each in store.health().queues}
        assert "away" in told[TOPIC]
        assert "access denied" in told["denied"]
        is_away = False
        broker.client.before = lambda *_: None
        broker.chore()
        assert store.health().ok


def test_a_flush_that_seals_leaves_a_queue_alone_that_is_busy(tmp_path: Path) -> None:
    broker = ObjectBroker(tmp_path, MemoryObjects())
    with broker.store as store:
        broker.commits(2)
        with broker.dispatcher.alone_with(QueueKey(TOPIC, 0), timeout=0) as alone:
            assert alone
            assert not broker.sealing.seal_all(0)
        assert store.flush(seal=True)


def test_a_topic_that_is_deleted_meanwhile_is_not_missing_in_a_flush_that_seals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ObjectBroker(tmp_path, MemoryObjects())
    with broker.store as store:
        broker.commits(2)
        broker.commits(2, topic="stopped")
        alone_with = broker.dispatcher.alone_with

        def deleting(key: QueueKey, **how: Any) -> Any:
            if key.topic == "stopped":
                assert store.delete_topics([key.topic])
            return alone_with(key, **how)

        file = broker.tier.files.get(QueueKey("stopped", 0))
        assert file is not None
        file.problem = "its last message is another one"
        monkeypatch.setattr(broker.dispatcher, "alone_with", deleting)
        assert broker.sealing.seal_all()
        assert broker.unsealed() == []


def test_a_flush_that_seals_misses_a_queue_whose_deletion_fails_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ObjectBroker(tmp_path, MemoryObjects())
    with broker.store as store:
        broker.commits(2)
        alone_with = broker.dispatcher.alone_with

        def refuse(operation: str, key: str) -> None:
            if operation == "put":
                raise BackendRefusedError(key, "put", "access denied")

        def deleting(key: QueueKey, **how: Any) -> Any:
            monkeypatch.setattr(broker.dispatcher, "alone_with", alone_with)
            broker.client.before = refuse
            with pytest.raises(BackendRefusedError):
                store.delete_topics([key.topic])
            broker.client.before = lambda *_: None
            return alone_with(key, **how)

        monkeypatch.setattr(broker.dispatcher, "alone_with", deleting)
        is_sealed = broker.sealing.seal_all()
        assert len(broker.unsealed()) > 0
        assert not is_sealed


def test_a_flush_beside_an_end_does_not_say_that_it_has_sealed(tmp_path: Path) -> None:
    broker = ObjectBroker(tmp_path, MemoryObjects())
    with broker.store as store:
        broker.commits(2)
        broker.sealing.stop()  # as `shutdown` in another thread does at once
        assert not store.flush(seal=True)
        assert len(broker.unsealed()) > 0


def test_nothing_rolls_in_a_backend_that_seals_at_once(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with broker.store as store:
        broker.put(3)
        assert store.flush(seal=True)
        assert [each.base for each in broker.provider.list() if each.type == 0] == [0]
    with pytest.raises(StoreClosedError):
        store.flush(seal=True)


# When a broker publishes its catalogue, and that nothing else fails if it cannot


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Elsewhere]:
    """A tier in files. A bucket needs no publication: its log is the published catalogue."""
    made = Elsewhere(tmp_path, "posix")
    yield made
    made.broker.store.shutdown()


def test_it_is_published_at_a_sealing_flush_and_at_the_end_and_an_idle_store_asks_nothing(
    there: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = there.broker
    generations = there.opened(Runtime.inline()).generations("broker-a")
    assert generations is not None
    broker.fill(3)
    assert list(generations.listed()) == []
    assert broker.store.flush(seal=True)
    assert len(generations.listed()) == 1
    there.publish()  # the changes that sealing made
    asked: list[object] = []
    with monkeypatch.context() as patch:
        for name in ("listed", "read", "create", "delete"):
            patch.setattr(type(generations), name, lambda *_, **__: asked.append(1))
        for _ in range(10):
            there.publish()
    assert asked == []
    for number in range(3, 9):  # several commits between two steps
        broker.put(1, first=number)
        assert broker.store.flush()
    before = len(generations.listed())
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


def test_a_bucket_publishes_nothing_beside_its_log(tmp_path: Path) -> None:
    there = Elsewhere(tmp_path, "objects")
    there.broker.fill(3)
    assert there.broker.store.flush(seal=True)
    there.client.requests.clear()
    for _ in range(10):
        there.publish()
    assert dict(there.client.requests) == {}
    there.broker.store.shutdown()
    assert there.objects.held_keys(".catalog/") == []
    with there.reader() as reader:
        assert offsets(reader) == [0, 1, 2]


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
        assert not broker.store.flush(seal=True)
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


@pytest.mark.parametrize("was_published", [True, False])
def test_only_a_catalogue_that_somebody_may_have_read_keeps_a_deletion_waiting(
    there: Elsewhere, monkeypatch: pytest.MonkeyPatch, was_published: bool
) -> None:
    """The backend cannot publish, like a file system without hard links."""
    broker = there.broker
    broker.fill(3)
    if was_published:
        there.publish()

    def refused(*_: object) -> None:
        raise BackendRefusedError(".catalog", "create", "there are no hard links")

    generations_type = type(there.opened(Runtime.inline()).generations("broker-a"))
    with monkeypatch.context() as patch:
        patch.setattr(generations_type, "create", refused)
        assert broker.store.delete_topics([TOPIC]) == 1
        assert bool(list(broker.provider.list("broker-a"))) == was_published
    broker.retention.step()
    assert list(broker.provider.list("broker-a")) == []


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
