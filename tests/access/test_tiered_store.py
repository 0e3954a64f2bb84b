"""A tiered store passes the shipped contract; its life, its topics, and odd arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import Broker, ListIndex, a_config, numbers
from tests.local.store_audit import expire_one_file
from tieredstore.access.store import TieredMessageStore
from tieredstore.aio import AsyncTieredStore
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidArgumentError,
    InvalidConfigError,
    MetadataError,
    StoreClosedError,
)
from tieredstore.model.messages import GetResult, QueryResult
from tieredstore.model.values import INT64_MAX, Boundary, GetStatus, QueueKey, StorageLevel
from tieredstore.testing.message_store_contract import ListMessageStore, MessageStoreContract
from tieredstore.testing.samples import TOPIC, a_message


class TestAroundAListStore(MessageStoreContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_store(self) -> MessageStore:
        runtime = Runtime.inline()
        return TieredMessageStore(ListMessageStore(runtime), a_config(self.path), runtime=runtime)


class TestAroundALocalStore(MessageStoreContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_store(self) -> MessageStore:
        runtime = Runtime.inline()
        self.local = LocalMessageStore(
            LocalConfig(
                store_path=str(self.path / "local"),
                commit_log_file_bytes=8_192,
                queue_file_bytes=20_000,
                index_slot_count=100,
                index_item_count=400,
                dispatch_interval_ms=0,
                flush_disk_type="SYNC_FLUSH",
                reserve_hours=0,
                delete_count_max=1,
            ),
            runtime,
        )
        config = a_config(self.path, provider="posix", path=str(self.path / "tier"))
        return TieredMessageStore(self.local, config, runtime=runtime)

    def expire(self, store: MessageStore) -> None:
        assert isinstance(store, TieredMessageStore)
        store.flush()
        expire_one_file(self.local)


class TestForcedAroundALocalStore(TestAroundALocalStore):
    def open_store(self) -> MessageStore:
        store = super().open_store()
        assert isinstance(store, TieredMessageStore)
        store.level = StorageLevel.FORCE
        return store

    def settle(self, store: MessageStore) -> None:
        assert isinstance(store, TieredMessageStore)
        store.flush()


class TestAroundATieredStore(MessageStoreContract):
    """A tiered store around a tiered store: a wrapper is a message store too."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_store(self) -> MessageStore:
        runtime = Runtime.inline()
        inner = TieredMessageStore(
            ListMessageStore(runtime), a_config(self.path / "inner"), runtime=runtime
        )
        return TieredMessageStore(inner, a_config(self.path / "outer"), runtime=runtime)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.faults.always = None
    broker.store.shutdown()


def test_building_a_store_touches_nothing(tmp_path: Path) -> None:
    Broker(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_load_start_and_shutdown_may_be_called_twice_and_begin_again(broker: Broker) -> None:
    for _ in range(2):
        broker.store.load()
        broker.store.load()
        broker.store.start()
        broker.store.start()
        broker.put(3)
        broker.store.shutdown()
        broker.store.shutdown()
    broker.store.load()
    assert broker.store.committed_offset(TOPIC, 0) == 6


def test_a_store_is_a_context_manager(broker: Broker) -> None:
    with broker.store as store:
        broker.put(2)
        assert store.max_offset(TOPIC, 0) == 2
    with pytest.raises(StoreClosedError):
        broker.store.max_offset(TOPIC, 0)


def test_start_wants_a_loaded_store_and_flush_a_started_one(broker: Broker) -> None:
    with pytest.raises(StoreClosedError):
        broker.store.start()
    broker.store.load()
    with pytest.raises(StoreClosedError):
        broker.store.flush()


@pytest.mark.parametrize("call", ["confirmed_offset", "queues", "flush"])
def test_a_flush_answers_false_where_the_next_store_fails(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    broker.open()
    broker.put(4)

    def fail() -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(broker.local, call, fail, raising=False)
        assert not broker.store.flush()
    assert broker.store.flush()


def test_shutdown_uploads_what_waits_unless_it_is_told_not_to(broker: Broker) -> None:
    broker.open()
    broker.put(4)
    broker.store.shutdown()
    broker.open()
    assert broker.store.committed_offset(TOPIC, 0) == 4
    broker.put(3, first=4)
    broker.store.shutdown(drain=False)
    broker.open()
    assert broker.store.committed_offset(TOPIC, 0) == 4
    assert broker.store.flush()
    assert broker.store.committed_offset(TOPIC, 0) == 7


def test_shutdown_ends_although_the_backend_is_gone(broker: Broker) -> None:
    broker.open()
    broker.put(4)
    broker.cut()
    broker.store.shutdown(timeout=1)
    broker.faults.always = None
    broker.open()
    assert broker.store.flush()
    assert broker.store.committed_offset(TOPIC, 0) == 4


def test_the_parts_end_in_order_and_the_next_store_last(tmp_path: Path) -> None:
    life: list[str] = []

    class Next(ListMessageStore):
        def shutdown(self) -> None:
            life.append("next store")
            super().shutdown()

    class Last(ListIndex):
        def shutdown(self) -> None:
            life.append("index")

    runtime = Runtime.inline()
    store = TieredMessageStore(Next(runtime), a_config(tmp_path), runtime=runtime, index=Last())
    store.load()
    store.start()
    store.put_message(a_message(0))
    opened = store._loaded()
    opened.tier._owned.callback(life.append, "parts")
    shutdown = opened.dispatcher.shutdown

    def ending(**how: object) -> bool:
        life.append("dispatcher")
        return shutdown(**how)  # type: ignore[arg-type]

    opened.dispatcher.shutdown = ending  # type: ignore[method-assign]
    store.shutdown()
    assert life == ["dispatcher", "parts", "index", "next store"]


def test_one_part_that_fails_to_end_keeps_no_other_from_it(broker: Broker) -> None:
    broker.open()
    broker.put(1)

    def refuse(**_: object) -> bool:
        raise BackendUnavailableError("x", "shutdown", "planned")

    broker.dispatcher.shutdown = refuse  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailableError):
        broker.store.shutdown()
    with pytest.raises(StoreClosedError):
        broker.local.max_offset(TOPIC, 0)
    broker.open()
    assert broker.store.flush()


# Loads that fail


def test_a_catalogue_that_is_in_use_leaves_nothing_open_and_can_be_tried_again(
    broker: Broker,
) -> None:
    path = broker.config.catalogue_path
    Path(path).parent.mkdir(parents=True)
    other = JsonMetadataStore.open(path)
    with pytest.raises(MetadataError):
        broker.store.load()
    with pytest.raises(StoreClosedError):
        broker.local.max_offset(TOPIC, 0)
    other.close()
    broker.open()
    broker.fill(2)


def test_an_index_that_does_not_load_leaves_no_lock_behind(broker: Broker) -> None:
    def refuse() -> None:
        raise BackendUnavailableError("index", "load", "planned")

    broker.index.load = refuse  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailableError):
        broker.store.load()
    JsonMetadataStore.open(broker.config.catalogue_path).close()
    del broker.index.load
    broker.open()


def test_a_next_store_that_does_not_load_leaves_nothing_of_the_tier(
    broker: Broker, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise InvalidConfigError("planned")

    broker.local.load = refuse  # type: ignore[method-assign]
    with pytest.raises(InvalidConfigError):
        broker.store.load()
    assert list(tmp_path.iterdir()) == []


def test_a_tier_that_cannot_be_reached_at_all_does_not_load(broker: Broker) -> None:
    broker.open()
    broker.fill(2)
    broker.store.shutdown()
    broker.cut()
    with pytest.raises(BackendUnavailableError):
        broker.store.load()
    broker.faults.always = None
    broker.open()
    assert broker.store.committed_offset(TOPIC, 0) == 2


# Destroying


def test_destroy_deletes_both_tiers_and_a_new_life_begins_empty(broker: Broker) -> None:
    broker.open()
    broker.fill(5)
    broker.store.destroy()
    assert list(broker.provider.list()) == []
    with pytest.raises(StoreClosedError):
        broker.store.max_offset(TOPIC, 0)
    assert broker.index.life[-3:] == ["shutdown", "destroy", "shutdown"]
    broker.open()
    assert list(broker.store.queues()) == []
    broker.fill(2)
    assert numbers(broker.store.get_message(TOPIC, 0, 0)) == [0, 1]


# Deleted topics: gone from both stores, while other topics stay


def test_deleted_topics_go_from_both_stores(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    tiered.put(3, topic="Other")
    assert tiered.store.flush()
    assert tiered.store.delete_topics([TOPIC, "Nowhere"]) == 1
    assert tiered.store.max_offset(TOPIC, 0) is None
    assert set(tiered.store.queues()) == {QueueKey("Other", 0)}
    metadata = tiered.tier.metadata
    assert metadata.topic(TOPIC) is None
    assert not metadata.queues(TOPIC)
    assert {found.path for found in tiered.provider.list()} == {"broker-a/Other/0"}


def test_a_topic_that_only_the_tier_still_has_counts_as_deleted(tiered: Broker) -> None:
    tiered.local.delete_topics([TOPIC])
    assert tiered.store.delete_topics([TOPIC]) == 1
    assert tiered.store.delete_topics([TOPIC]) == 0


def test_a_topic_of_the_same_name_begins_anew(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    tiered.store.delete_topics([TOPIC])
    tiered.put(4)
    assert tiered.store.flush()
    tiered.local.kept_from = 4
    assert numbers(tiered.store.get_message(TOPIC, 0, 0)) == [0, 1, 2, 3]
    assert tiered.store.health().ok


def test_cleaning_keeps_what_is_retained_and_what_the_system_needs(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    for topic in ("Retained", "Unused"):
        tiered.put(2, topic=topic)
    assert tiered.store.flush()
    metadata = tiered.tier.metadata
    kept = {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel", "%LMQ%light"}
    for topic in kept:
        metadata.add_topic(topic)
    tiered.local.delete_topics([TOPIC])
    assert tiered.store.clean_unused_topics(["Retained"]) == 2
    assert {record.topic for record in metadata.topics()} == {"Retained", *kept}
    assert set(tiered.store.queues()) == {QueueKey("Retained", 0)}
    assert tiered.store.clean_unused_topics(["Retained"]) == 0


def test_a_topic_whose_upload_does_not_end_is_not_deleted_by_halves(
    tiered: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.store.FLUSH_SECONDS", 0.0)
    with tiered.dispatcher.alone_with(QueueKey(TOPIC, 0)):
        with pytest.raises(BackendUnavailableError):
            tiered.store.delete_topics([TOPIC])
        assert set(tiered.local.queues()) == {QueueKey(TOPIC, 0)}
    assert tiered.store.delete_topics([TOPIC]) == 1


def test_a_topic_whose_bytes_cannot_be_deleted_is_gone_and_they_follow(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    tiered.cut()
    assert tiered.store.delete_topics([TOPIC]) == 1
    assert not list(tiered.store.queues())
    assert len(list(tiered.provider.inner.list())) == 2
    tiered.faults.always = None
    tiered.retention.step()
    assert not list(tiered.provider.inner.list())


def test_a_topic_that_is_rejected_leaves_the_tier(tiered: Broker) -> None:
    tiered.local.kept_from = 0
    tiered.store.topic_filter.reject(TOPIC)
    assert numbers(tiered.store.get_message(TOPIC, 0, 0)) == list(range(10))
    assert tiered.store.flush()
    assert tiered.store.committed_offset(TOPIC, 0) is None
    assert not list(tiered.provider.list())


def test_a_topic_stays_rejected_over_loads_of_the_store(tiered: Broker) -> None:
    known = tiered.store.topic_filter
    known.reject(TOPIC)
    tiered.store.shutdown()
    tiered.open()
    assert tiered.store.topic_filter is known
    assert tiered.dispatcher.topic_filter is known
    assert tiered.store.flush()
    assert tiered.store.committed_offset(TOPIC, 0) is None


# Offsets out of range, unknown topics, odd counts and closed stores, through every interface


Face = Callable[..., Any]


def sync_face(store: TieredMessageStore, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(store, name)(*args, **kwargs)


def future_face(store: TieredMessageStore, name: str, *args: Any, **kwargs: Any) -> Any:
    if name == "get_message":
        return store.get_message_future(*args, **kwargs).result(240)
    return sync_face(store, name, *args, **kwargs)


def async_face(store: TieredMessageStore, name: str, *args: Any, **kwargs: Any) -> Any:
    async def ask() -> Any:
        return await getattr(AsyncTieredStore(store), name)(*args, **kwargs)

    return asyncio.run(ask())


FACES = pytest.mark.parametrize("face", [sync_face, future_face, async_face])


@pytest.fixture
def partly(tiered: Broker) -> Broker:
    """Twelve messages: 0 to 5 in the tier only, 6 to 9 in both, 10 and 11 not tiered yet."""
    tiered.put(2, first=10)
    return tiered


@FACES
@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-INT64_MAX, GetStatus.OFFSET_TOO_SMALL, 0),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 1),
        (5, GetStatus.FOUND, 6),
        (6, GetStatus.FOUND, 7),
        (9, GetStatus.FOUND, 10),
        (10, GetStatus.FOUND, 11),
        (12, GetStatus.OFFSET_OVERFLOW_ONE, 12),
        (13, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
        (INT64_MAX, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
    ],
)
def test_every_offset_has_a_status_and_where_to_go_on(
    partly: Broker, face: Face, offset: int, status: GetStatus, next_offset: int
) -> None:
    result: GetResult = face(partly.store, "get_message", TOPIC, 0, offset, count_max=1)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert numbers(result) == ([offset] if status is GetStatus.FOUND else [])


@FACES
@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (9, GetStatus.FOUND, 10),
        (10, GetStatus.FOUND, 11),
        (11, GetStatus.FOUND, 12),
        (12, GetStatus.OFFSET_OVERFLOW_ONE, 12),
        (13, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
    ],
)
def test_forced_the_ends_count_what_waits_for_its_upload(
    partly: Broker, face: Face, offset: int, status: GetStatus, next_offset: int
) -> None:
    partly.store.level = StorageLevel.FORCE
    result: GetResult = face(partly.store, "get_message", TOPIC, 0, offset, count_max=1)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert numbers(result) == ([offset] if status is GetStatus.FOUND else [])


@FACES
@pytest.mark.parametrize("level", StorageLevel)
@pytest.mark.parametrize(("topic", "queue_id"), [("Nowhere", 0), (TOPIC, 99), (TOPIC, -1), ("", 0)])
def test_what_is_not_there_is_absence(
    partly: Broker, face: Face, level: StorageLevel, topic: str, queue_id: int
) -> None:
    partly.store.level = level
    store = partly.store
    result: GetResult = face(store, "get_message", topic, queue_id, 0)
    assert result.status in (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE)
    assert list(result.messages) == []
    for name in ("min_offset", "max_offset", "committed_offset"):
        assert face(store, name, topic, queue_id) is None
    assert face(store, "earliest_time", topic, queue_id) is None
    for offset in (-1, 0, INT64_MAX):
        assert face(store, "store_time", topic, queue_id, offset) is None
        assert not face(store, "contains", topic, queue_id, offset)
        assert face(store, "offset_by_time", topic, queue_id, offset) is None


@FACES
@pytest.mark.parametrize("level", StorageLevel)
@pytest.mark.parametrize("count_max", [-5, 0])
@pytest.mark.parametrize("offset", [6, 9, 10, 11])
def test_a_page_of_no_messages_has_none_and_goes_nowhere(
    partly: Broker, face: Face, level: StorageLevel, count_max: int, offset: int
) -> None:
    partly.store.level = level
    result: GetResult = face(partly.store, "get_message", TOPIC, 0, offset, count_max=count_max)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, offset)
    assert not result.messages


@FACES
@pytest.mark.parametrize("count_max", [-5, 0])
def test_nor_has_one_of_messages_that_only_the_tier_has(
    partly: Broker, face: Face, count_max: int
) -> None:
    result: GetResult = face(partly.store, "get_message", TOPIC, 0, 2, count_max=count_max)
    assert (numbers(result), result.next_offset) == ([], 2)
    assert numbers(face(partly.store, "get_message", TOPIC, 0, 2, count_max=1)) == [2]


@FACES
@pytest.mark.parametrize("bytes_max", [-5, 0, 1])
def test_at_least_one_message_comes_however_few_bytes_are_allowed(
    partly: Broker, face: Face, bytes_max: int
) -> None:
    result: GetResult = face(partly.store, "get_message", TOPIC, 0, 2, bytes_max=bytes_max)
    assert numbers(result) == [2]


@FACES
def test_huge_counts_and_sizes_give_what_there_is(partly: Broker, face: Face) -> None:
    result: GetResult = face(
        partly.store, "get_message", TOPIC, 0, 1, count_max=INT64_MAX, bytes_max=INT64_MAX
    )
    assert numbers(result) == list(range(1, 10))


@FACES
@pytest.mark.parametrize("count_max", [-1, 0])
def test_a_query_for_no_messages_gives_none(partly: Broker, face: Face, count_max: int) -> None:
    result: QueryResult = face(partly.store, "query_message", TOPIC, "shared", count_max=count_max)
    assert list(result.messages) == []


@FACES
@pytest.mark.parametrize(
    ("topic", "key", "begin", "end"),
    [
        ("Nowhere", "shared", 0, INT64_MAX),
        (TOPIC, "", 0, INT64_MAX),
        (TOPIC, "no such key", 0, INT64_MAX),
        (TOPIC, "shared", 5, 4),
        (TOPIC, "shared", -10, -1),
        (TOPIC, "shared", INT64_MAX, INT64_MAX),
    ],
)
def test_a_query_that_fits_nothing_is_empty_and_complete(
    partly: Broker, face: Face, topic: str, key: str, begin: int, end: int
) -> None:
    result: QueryResult = face(partly.store, "query_message", topic, key, begin=begin, end=end)
    assert list(result.messages) == []
    assert result.complete


@FACES
@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize(("time", "wanted"), [(-INT64_MAX, 0), (0, 0), (INT64_MAX, 12)])
def test_times_outside_lead_to_the_ends(
    partly: Broker, face: Face, boundary: Boundary, time: int, wanted: int
) -> None:
    assert face(partly.store, "offset_by_time", TOPIC, 0, time, boundary) == wanted


@FACES
@pytest.mark.parametrize("when", ["before load", "after shutdown"])
def test_a_closed_store_says_so(tmp_path: Path, face: Face, when: str) -> None:
    partly = Broker(tmp_path)
    if when == "after shutdown":
        partly.open()
        partly.fill(2)
        partly.store.shutdown()
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("put_message", (a_message(0),)),
        ("get_message", (TOPIC, 0, 0)),
        ("min_offset", (TOPIC, 0)),
        ("max_offset", (TOPIC, 0)),
        ("committed_offset", (TOPIC, 0)),
        ("offset_by_time", (TOPIC, 0, 0)),
        ("store_time", (TOPIC, 0, 0)),
        ("earliest_time", ()),
        ("earliest_time", (TOPIC, 0)),
        ("query_message", (TOPIC, "key")),
        ("message_at", (0,)),
        ("contains", (TOPIC, 0, 0)),
        ("queues", ()),
        ("flush", ()),
        ("health", ()),
        ("delete_topics", ([TOPIC],)),
        ("clean_unused_topics", ([],)),
        ("start", ()),
    ]
    for name, args in calls:
        with pytest.raises(StoreClosedError):
            face(partly.store, name, *args)


def test_a_closed_store_answers_none_of_the_questions_about_the_log(tmp_path: Path) -> None:
    store = Broker(tmp_path).store
    for call in (
        store.confirmed_offset,
        store.min_log_offset,
        lambda: store.in_memory(TOPIC, 0, 0),
        lambda: store.read_range(TOPIC, 0, 0, count_max=1, bytes_max=1),
        lambda: store.get_message_future(TOPIC, 0, 0),
    ):
        with pytest.raises(StoreClosedError):
            call()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda store: store.get_message(TOPIC, 0, 0, message_filter="a"), "want a filter, .*'a'"),
        (lambda store: store.get_message(TOPIC, 0, 0, group=["g"]), "group: want text, .*'g'"),
        (lambda store: store.flush(float("nan")), "timeout: want seconds or None, not nan"),
        (lambda store: store.put_messages(a_message(0)), "want a sequence of Message"),
        (lambda store: store.put_messages_future(a_message(0)).result(), "want a sequence"),
        (lambda store: store.on_arrival(5), "want something to call, not 5"),
        (lambda store: store.add_dispatcher(5), "want something to call, not 5"),
        (lambda store: store.add_retention_guard(5), "want something to call, not 5"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(
    tmp_path: Path, call: Callable[[Any], object], reason: str
) -> None:
    runtime = Runtime.inline()
    local = LocalMessageStore(LocalConfig(store_path=str(tmp_path / "local")), runtime)
    with (
        TieredMessageStore(local, a_config(tmp_path), runtime=runtime) as store,
        pytest.raises(InvalidArgumentError, match=reason),
    ):
        call(store)
