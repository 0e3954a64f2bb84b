"""How a tiered store looks after its tier: health, flush, retention, guards and callbacks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.access.tiered_kit import STEP_MS, Broker, a_config, numbers
from tests.driver.test_runtime import refuse_threads
from tests.local.store_audit import a_config as a_local_config
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.message_store import MessageStore, RetentionGuard
from tieredstore.driver.metrics import DISPATCH_BEHIND, DISPATCH_LATENCY
from tieredstore.driver.runtime import InlineService, Runtime
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError, TieredStoreError
from tieredstore.model.messages import DispatchRequest
from tieredstore.model.values import QueueKey, StorageLevel
from tieredstore.providers.posix_shelf import PosixGenerations
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.faults.always = None
    broker.store.shutdown()


def test_a_tier_that_is_well_says_so_in_json(broker: Broker) -> None:
    broker.open()
    broker.fill(5)
    broker.put(2, first=5)
    health = broker.store.health()
    assert health.ok
    told = json.loads(json.dumps(health.as_json()))
    assert told["level"] == "NOT_IN_DISK"
    assert told["behind_count"] == 2
    (queue,) = told["queues"]
    assert (queue["topic"], queue["queue_id"], queue["commit_offset"]) == (TOPIC, 0, 5)
    assert set(told["cache"]) == {"held_bytes", "extent_count", "access_count", "hit_count"}


def test_gauges_show_how_far_the_tier_is_behind(broker: Broker) -> None:
    broker.open()
    broker.fill(5)
    broker.put(3, first=5)
    labels = {"topic": TOPIC, "queue_id": "0", "file_type": "consume_queue"}
    for metric, value in ((DISPATCH_BEHIND, 3), (DISPATCH_LATENCY, 3 * STEP_MS)):
        assert list(broker.metrics.gauges[metric]()) == [(value, labels)]


def test_health_names_the_queue_that_fails_and_why(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.open()
    broker.fill(2)
    broker.put(2, first=2)
    broker.cut()
    assert not broker.store.flush()
    health = broker.store.health()
    assert not health.ok
    assert [bool(queue.last_error) for queue in health.queues] == [True]
    assert "before it has an effect" in str(health.queues[0].last_error)
    named = "1 of 1 queues" if broker.provider.shares_rounds else f"{TOPIC}/0"
    assert f"{named}: upload failed: " in caplog.text
    broker.faults.always = None
    assert broker.store.flush()
    assert broker.store.health().ok


def test_the_log_names_a_queue_whose_end_cannot_be_read_after_a_start(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.open()
    broker.fill(2)
    broker.store.shutdown()
    broker.store = broker.wrap(broker.local)
    broker.open()
    broker.put(2, first=2)
    broker.cut()
    assert not broker.store.flush()
    named = "1 of 1 queues" if broker.provider.shares_rounds else f"{TOPIC}/0"
    assert f"{named}: " in caplog.text


def test_health_names_a_gap(broker: Broker) -> None:
    broker.open()
    broker.fill(3)
    broker.put(4, first=3)
    broker.local.kept_from = 5
    assert broker.store.flush()
    assert broker.store.health().lost_count == 2
    assert not broker.store.health().ok
    assert numbers(broker.store.get_message(TOPIC, 0, 5)) == [5, 6]


def test_health_names_a_queue_that_goes_on_where_the_tier_ends(broker: Broker) -> None:
    """The local store has lost all of its messages after their upload."""
    broker.open()
    broker.fill(5)
    broker.store.shutdown()
    broker.local = ListMessageStore(broker.runtime)
    broker.store = broker.wrap(broker.local)
    broker.open()
    broker.put(2)
    assert broker.store.flush()
    health = broker.store.health()
    assert health.ok
    assert [(one.topic, one.tier_end) for one in health.continued] == [(TOPIC, 5)]
    assert broker.store.committed_offset(TOPIC, 0) == 7


def test_expired_segments_go_by_the_reserve_hours_of_their_topic(tmp_path: Path) -> None:
    broker = Broker(tmp_path, reserve_hours=2, commit_log_segment_bytes=1000)
    broker.open()
    broker.fill(20)
    broker.put(20, topic="Kept")
    assert broker.store.flush()
    metadata = broker.tier.metadata
    assert metadata.topic("Kept") is not None
    metadata.delete_topic("Kept")
    metadata.add_topic("Kept", reserve_hours=5)
    broker.local.kept_from = 20
    broker.runtime.clock.sleep(3 * 3600)
    *_, expiring = broker.store._services  # the others seal, and publish the catalogue
    expiring.wake()
    assert broker.store.min_offset(TOPIC, 0) == 20
    assert broker.store.min_offset("Kept", 0) == 0
    assert broker.store.committed_offset(TOPIC, 0) == 20
    broker.runtime.clock.sleep(3 * 3600)
    expiring.wake()
    assert broker.store.min_offset("Kept", 0) == 20
    broker.store.shutdown()


def test_nothing_expires_where_that_is_switched_off(tmp_path: Path) -> None:
    broker = Broker(tmp_path, reserve_hours=2, expiry_enabled=False)
    broker.open()
    broker.fill(5, kept_from=5)
    broker.runtime.clock.sleep(1000 * 3600)
    for service in broker.store._services:
        service.wake()
    broker.retention.step()
    assert numbers(broker.store.get_message(TOPIC, 0, 0)) == [0, 1, 2, 3, 4]
    broker.store.shutdown()


def test_an_expiry_that_fails_is_named_and_comes_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path, reserve_hours=2)
    broker.open()
    broker.fill(5, kept_from=5)
    broker.runtime.clock.sleep(3 * 3600)
    retention = broker.retention
    broker.cut()
    retention.step()
    assert broker.store.min_offset(TOPIC, 0) == 5
    assert len(list(broker.provider.inner.list())) == 2
    broker.faults.always = None
    retention.step()
    assert list(broker.provider.inner.list()) == []
    broker.store.shutdown()


def test_a_disabled_tier_is_not_asked_but_still_filled(broker: Broker) -> None:
    broker.open()
    broker.store.level = StorageLevel.DISABLE
    broker.fill(5, kept_from=3)
    assert broker.store.committed_offset(TOPIC, 0) == 5
    assert broker.store.min_offset(TOPIC, 0) == 3
    assert not broker.store.contains(TOPIC, 0, 1)
    assert broker.store.query_message(TOPIC, "key-1").messages == []


def test_a_queue_that_is_being_uploaded_expires_in_a_later_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.upkeep.BUSY_SECONDS_MAX", 0.0)
    broker = Broker(tmp_path, reserve_hours=2)
    broker.open()
    broker.fill(5, kept_from=5)
    broker.runtime.clock.sleep(3 * 3600)
    with broker.dispatcher.alone_with(QueueKey(TOPIC, 0)):
        broker.retention.step()
        assert broker.store.min_offset(TOPIC, 0) == 0
    broker.retention.step()
    assert broker.store.min_offset(TOPIC, 0) == 5
    broker.store.shutdown()


def test_dispatchers_and_guards_are_handed_to_the_next_store(broker: Broker) -> None:
    guards: list[RetentionGuard] = []
    broker.local.add_retention_guard = guards.append  # type: ignore[method-assign, assignment]
    seen: list[DispatchRequest] = []
    broker.store.add_dispatcher(seen.extend)
    broker.store.add_retention_guard(lambda: 7)
    broker.open()
    broker.put(3)
    assert [request.queue_offset for request in seen] == [0, 1, 2]
    assert guards[0]() == 7
    # The store's own guard: the next store must keep what is not in the tier.
    assert guards[1]() == 0
    assert broker.store.flush()
    assert guards[1]() is None


def test_a_store_of_many_lives_gives_the_next_one_a_single_guard_and_callback(
    broker: Broker,
) -> None:
    guards: list[RetentionGuard] = []
    broker.local.add_retention_guard = guards.append  # type: ignore[method-assign, assignment]
    for life in range(3):
        broker.open()
        broker.put(1, first=life)
        assert guards[0]() is not None
        broker.store.shutdown(drain=False)
        assert guards[0]() is None  # a guard of an earlier life holds nothing back
    broker.open()
    assert broker.store.flush()
    assert [guard() for guard in guards] == [None]
    assert len(broker.local._dispatchers) == 1


# A flush over a store that confirms late: what it demands, and what it promises


class LateStore(ListMessageStore):
    """Confirms messages only at a flush; its disk may be broken."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.confirmed = 0
        self.is_broken = False
        self.failure: Exception = BackendRefusedError("the disk", "flush", "it is broken")

    def flush(self) -> None:
        if self.is_broken:
            raise self.failure
        self.confirmed = self.end


@pytest.fixture(params=["inline", "threads"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with Runtime.inline() if request.param == "inline" else Runtime.threads() as runtime:
        yield runtime


def a_store(folder: Path, local: MessageStore, runtime: Runtime) -> TieredMessageStore:
    config = a_config(folder, provider="posix", path=str(folder / "tier"), index_enabled=False)
    return TieredMessageStore(local, config, runtime=runtime)


def put(store: MessageStore, count: int) -> None:
    for number in range(count):
        store.put_message(a_message(number))


def test_what_the_broker_s_own_store_has_just_taken_is_in_the_tier(
    tmp_path: Path, runtime: Runtime
) -> None:
    local = LocalMessageStore(a_local_config(tmp_path / "local"), runtime)
    with a_store(tmp_path, local, runtime) as store:
        put(store, 5)
        assert store.flush()
        assert store.committed_offset(TOPIC, 0) == 5


def test_what_was_put_last_is_in_the_tier_after_a_shutdown(
    tmp_path: Path, runtime: Runtime
) -> None:
    for count in (5, 10):
        local = LocalMessageStore(a_local_config(tmp_path / "local"), runtime)
        with a_store(tmp_path, local, runtime) as store:
            assert store.committed_offset(TOPIC, 0) == (count - 5 or None)
            put(store, 5)


def test_a_store_that_cannot_make_durable_what_it_took_makes_the_flush_fail(
    tmp_path: Path, runtime: Runtime
) -> None:
    local = LateStore(runtime)
    with a_store(tmp_path, local, runtime) as store:
        put(store, 3)
        assert store.flush()
        local.is_broken = True
        put(store, 3)
        assert not store.flush()
        assert store.committed_offset(TOPIC, 0) == 3
        local.is_broken = False
        assert store.flush()
        assert store.committed_offset(TOPIC, 0) == 6


def test_of_a_store_that_confirms_by_itself_only_what_is_confirmed_counts(
    tmp_path: Path, runtime: Runtime
) -> None:
    local = ListMessageStore(runtime)
    with a_store(tmp_path, local, runtime) as store:
        put(store, 3)
        local.confirmed = local.end
        put(store, 3)
        assert store.flush()
        assert store.committed_offset(TOPIC, 0) == 3
        local.confirmed = local.end
        assert store.flush()
        assert store.committed_offset(TOPIC, 0) == 6


def test_a_store_that_fails_in_its_own_way_keeps_no_part_of_the_tier_from_ending(
    tmp_path: Path, runtime: Runtime
) -> None:
    local = LateStore(runtime)
    local.failure = OSError(5, "the disk is broken")
    store = a_store(tmp_path, local, runtime)
    with store:
        put(store, 3)
        local.is_broken = True
        assert not store.flush()
        dispatcher = store._loaded().dispatcher
    local.confirmed = local.end
    local.load()  # otherwise it could not be read
    assert not dispatcher.dispatch_once(force=True), "it uploads after the shutdown"


class SlowToDelete(LateStore):
    """Deletes no topic before it is told to."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.deletes, self.may_delete = threading.Event(), threading.Event()

    def delete_topics(self, topics: Iterable[str]) -> int:
        self.deletes.set()
        assert self.may_delete.wait(60)
        return super().delete_topics(topics)


def test_a_flush_beside_a_deletion_misses_no_message_of_the_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Runtime.threads() as runtime:
        local = SlowToDelete(runtime)
        with a_store(tmp_path, local, runtime) as store:
            put(store, 3)
            dispatcher = store._loaded().dispatcher
            dispatch = dispatcher.dispatch_once
            deleting = threading.Thread(target=store.delete_topics, args=([TOPIC],))

            def dispatch_and_delete(**options: Any) -> bool:
                is_done = dispatch(**options)
                deleting.start()
                assert local.deletes.wait(60)  # from here on only the local store has the topic
                threading.Timer(0.1, local.may_delete.set).start()
                return is_done

            with monkeypatch.context() as patched:
                patched.setattr(dispatcher, "dispatch_once", dispatch_and_delete)
                assert store.flush()
            deleting.join()


def test_a_flush_that_is_not_complete_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Runtime.threads() as runtime, a_store(tmp_path, LateStore(runtime), runtime) as store:
        put(store, 3)
        with store._loaded().dispatcher.alone_with(QueueKey(TOPIC, 0)):
            assert not store.flush(0.01)
            assert not store.flush(0.01)
        assert store.flush()
        store._loaded().tier.files.files()[0].problem = "it is broken"
        assert not store.flush()
    said = [line for line in caplog.messages if "flush" in line]
    assert len(said) >= 3
    assert said[-1] == f"a flush is not complete: queues are stopped: {TOPIC}/0"


def test_a_flush_without_time_leaves_the_next_one_its_place(tmp_path: Path) -> None:
    with Runtime.threads() as runtime, a_store(tmp_path, LateStore(runtime), runtime) as store:
        put(store, 3)
        for _ in range(20):  # some of them end before their thread begins
            store.flush(0)
        assert store.flush(60)


def test_a_catalogue_that_cannot_be_published_in_time_makes_no_flush_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = threading.Event()
    create = PosixGenerations.create

    def hung(generations: PosixGenerations, number: int, data: bytes) -> None:
        assert may_go.wait(240)
        create(generations, number, data)

    monkeypatch.setattr(PosixGenerations, "create", hung)
    with Runtime.threads() as runtime, a_store(tmp_path, LateStore(runtime), runtime) as store:
        put(store, 3)
        began = monotonic()
        try:
            assert not store.flush(0.5, seal=True)
            assert monotonic() - began < 60
        finally:
            may_go.set()
        assert store.flush(seal=True)
        assert store.health().catalogue.published_count > 0


def test_a_flush_that_seals_answers_false_where_readers_elsewhere_cannot_see_it(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BackendRefusedError("catalogue", "create", "no permission")

    with a_store(tmp_path, LateStore(runtime), runtime) as store:
        put(store, 3)
        with monkeypatch.context() as patch:
            patch.setattr(PosixGenerations, "create", refuse)
            assert not store.flush(seal=True)
            assert "no permission" in str(store.health().catalogue.error)
            assert store.flush(), "without sealing nothing is published, and all is committed"
        assert store.flush(seal=True)
        assert store.health().catalogue.error is None


@pytest.mark.parametrize("names", ["tieredstore-tier-flush", "tieredstore-fetch"])
def test_a_flush_without_threads_leaves_the_next_one_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    with Runtime.threads() as runtime, a_store(tmp_path, LateStore(runtime), runtime) as store:
        put(store, 3)
        with monkeypatch.context() as patch:
            refuse_threads(patch, names)
            with suppress(TieredStoreError):
                store.flush(1)
        assert store.flush(5)


def test_a_start_without_a_thread_can_be_made_again_and_an_end_without_one_ends_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    refused = -1  # the number of the service that gets no thread

    class Watched(InlineService):
        def __init__(self, name: str, step: Callable[[], object]) -> None:
            super().__init__(step)
            self.name = name
            running.append(name)

        def stop(self, timeout: float | None = None) -> bool:
            if self.name in running:
                running.remove(self.name)
            return super().stop(timeout)

    def service(_: Runtime, name: str, step: Callable[[], object], *, interval_ms: int) -> Watched:
        nonlocal refused
        refused -= 1
        if refused == 0:
            raise RuntimeError("can't start new thread")
        return Watched(name, step)

    monkeypatch.setattr(Runtime, "service", service)
    runtime = Runtime.inline()
    config = a_config(tmp_path, provider="posix", path=str(tmp_path / "tier"))
    store = TieredMessageStore(LateStore(runtime), config, runtime=runtime)
    with store:
        names = sorted(running)
    assert len(names) > 5
    assert running == []
    for number in range(1, len(names) + 1):
        store.load()
        refused = number
        with suppress(TieredStoreError):
            store.start()
        store.start()
        assert sorted(running) == names
        store.shutdown()
        assert running == []
    store.load()
    store.start()
    refused = 1  # of the end
    with pytest.raises(TieredStoreError, match="can't start new thread"):
        store.shutdown()
    assert running == []


def test_a_flush_that_is_interrupted_leaves_every_queue_to_the_next_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.open()
    broker.fill(3)
    broker.put(3, first=3)
    broker.store.put_message(a_message(6, queue_id=1))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broker.tier.files, "create", interrupt)
        with pytest.raises(KeyboardInterrupt):
            broker.store.flush()
    assert broker.store.flush()
    assert broker.store.health().uploads == 0
    assert [broker.store.committed_offset(TOPIC, queue) for queue in (0, 1)] == [6, 1]
