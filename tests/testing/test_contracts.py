"""The shipped suites pass for correct classes and fail for wrong ones."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given

from tieredstore.codec.message import decode_message
from tieredstore.driver.message_store import (
    COUNT_MAX,
    AbstractPluginMessageStore,
    Dispatcher,
    MessageStore,
)
from tieredstore.driver.object_client import (
    UPLOAD_PART_BYTES,
    ListedKey,
    ObjectClient,
    ObjectFacts,
    once,
)
from tieredstore.driver.provider import SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.messages import Message, MessageRun, QueryResult, SelectedMessage
from tieredstore.model.values import Boundary, QueueKey, SegmentType
from tieredstore.providers.fsspec import FsspecClient
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing import samples
from tieredstore.testing.faults import Fault, Faults, FaultyProvider, SimulatedCrash
from tieredstore.testing.message_store_contract import (
    BeginQueuesContract,
    ListMessageStore,
    MessageStoreContract,
)
from tieredstore.testing.object_client_contract import ObjectClientContract
from tieredstore.testing.samples import a_body, a_record
from tieredstore.testing.segment_contract import FileSegmentContract

LOG = SegmentType.COMMIT_LOG


class TestListMessageStore(MessageStoreContract, BeginQueuesContract):
    def open_store(self) -> MessageStore:
        return ListMessageStore(Runtime.inline())

    def expire(self, store: MessageStore) -> None:
        assert isinstance(store, ListMessageStore)
        store.kept_from += 3


class TestPluginThatChangesNothing(MessageStoreContract, BeginQueuesContract):
    def open_store(self) -> MessageStore:
        base = ListMessageStore(Runtime.inline())
        inner = AbstractPluginMessageStore(base, StoreConfig())
        return AbstractPluginMessageStore(inner, StoreConfig())


class ShortReads(SegmentWrapper):
    def read(self, position: int, length: int) -> bytes:
        return super().read(position, min(length, self.size() - position))


class ZeroFill(SegmentWrapper):
    def read(self, position: int, length: int) -> bytes:
        try:
            return super().read(position, length)
        except OffsetOutOfRangeError:
            return bytes(max(0, length))


class WritesAnywhere(SegmentWrapper):
    def write(self, position: int, data: Buffer) -> None:
        try:
            end = self.size()
        except SegmentNotFoundError:
            end = 0
        super().write(end, data)


class SizeOfZero(SegmentWrapper):
    def size(self) -> int:
        try:
            return super().size()
        except SegmentNotFoundError:
            return 0


class ForgetsToDelete(SegmentWrapper):
    def delete(self) -> None:
        pass


class NeverSeals(SegmentWrapper):
    def seal(self) -> None:
        pass


class NeverCloses(SegmentWrapper):
    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "wrong",
    [
        ShortReads,
        ZeroFill,
        WritesAnywhere,
        SizeOfZero,
        ForgetsToDelete,
        NeverSeals,
        NeverCloses,
    ],
)
def test_the_segment_contract_catches_a_wrong_segment(wrong: type[SegmentWrapper]) -> None:
    provider = MemoryProvider(Runtime.inline())

    class Wrong(FileSegmentContract):
        def open_segment(self, path: str) -> FileSegment:
            return wrong(provider.open(path, LOG, 0))

    caught = []
    for name in dir(Wrong):
        test: Callable[..., None] = getattr(Wrong(), name)
        if not name.startswith("test_") or "segment" not in test.__annotations__:
            continue
        if len(test.__annotations__) > 2:  # it needs parameters
            continue
        provider = MemoryProvider(Runtime.inline())
        try:
            test(Wrong().open_segment("b/t/0"))
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - any failure will do
            caught.append(name)
    assert caught


class RemembersFacts(FsspecClient):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.known: dict[str, ObjectFacts] = {}

    def head(self, key: str) -> ObjectFacts:
        if key not in self.known:
            self.known[key] = super().head(key)
        return self.known[key]


class RemembersSizes(FsspecClient):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.known: dict[str, int] = {}

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        for found in super().list(prefix, after=after):
            yield ListedKey(found.key, self.known.setdefault(found.key, found.size))


class StopsAtTheFirstAbsent(FsspecClient):
    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        there = {found.key for found in self.list()}
        return super().delete_many(list(takewhile(there.__contains__, keys)))


class DeletesWhatBrokeOff(FsspecClient):
    def put_stream(self, key: str, blocks: Iterable[Buffer], **asked: Any) -> ObjectFacts | None:
        try:
            return super().put_stream(key, blocks, **asked)
        except RuntimeError:
            self.delete_many([key])
            raise


class TriesNothingAgain(FsspecClient):
    def put_stream(self, key: str, blocks: Iterable[Buffer], **asked: Any) -> ObjectFacts | None:
        return super().put_stream(key, blocks, **{**asked, "attempt": once})


class LongStreamsAreBare(FsspecClient):
    def put_stream(self, key: str, blocks: Iterable[Buffer], **asked: Any) -> ObjectFacts | None:
        whole = b"".join(blocks)
        if len(whole) > UPLOAD_PART_BYTES:
            asked["metadata"] = None
        return super().put_stream(key, [whole], **asked)


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (RemembersFacts, "test_a_deleted_object_is_nowhere"),
        (RemembersSizes, "test_of_a_replaced_object_nothing_is_left"),
        (StopsAtTheFirstAbsent, "test_a_deleted_object_is_nowhere"),
        (DeletesWhatBrokeOff, "test_a_stream_that_breaks_off_leaves_nothing"),
        (TriesNothingAgain, "test_each_request_of_a_stream_may_be_tried_again"),
        (LongStreamsAreBare, "test_of_a_replaced_object_nothing_is_left"),
    ],
)
def test_the_client_contract_catches_a_wrong_client(wrong: type[FsspecClient], test: str) -> None:
    class Client(ObjectClientContract):
        def open_client(self) -> ObjectClient:
            return wrong(f"memory://{uuid.uuid4().hex}")

    asked = [20] if "stream" in test else []
    with pytest.raises((AssertionError, TieredStoreError, pytest.fail.Exception)):
        getattr(Client(), test)(Client().open_client(), *asked)


class AnyOffset(ListMessageStore):
    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        inside = max(0, min(offset, (self.max_offset(topic, queue_id) or 0) - 1))
        return super().read_range(topic, queue_id, inside, count_max=count_max, bytes_max=bytes_max)


class NoTags(ListMessageStore):
    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        run = super().read_range(topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max)
        return replace(run, tags_codes=run.tags_codes * 0)


class AnySize(ListMessageStore):
    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        return super().message_at(log_offset)


class BeginsAtItsEnd(ListMessageStore):
    def min_log_offset(self) -> int | None:
        return self.end


class OneTooLate(ListMessageStore):
    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        found = super().offset_by_time(topic, queue_id, timestamp, boundary)
        return None if found is None else found + 1


class InSeconds(ListMessageStore):
    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        time = super().store_time(topic, queue_id, offset)
        return None if time is None else time // 1000


class NoBeginning(ListMessageStore):
    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        return None


class OldestFirst(ListMessageStore):
    def query_message(self, topic: str, key: str, **limits: int) -> QueryResult:
        found = super().query_message(topic, key, **limits)
        return replace(found, messages=found.messages[::-1])


class AnyTime(ListMessageStore):
    def query_message(self, topic: str, key: str, **limits: int) -> QueryResult:
        return super().query_message(topic, key, count_max=limits.get("count_max", COUNT_MAX))


class RetainsNothing(ListMessageStore):
    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        return self.delete_topics({key.topic for key in self.queues()})


class NeverClosed(ListMessageStore):
    def queues(self) -> Iterable[QueueKey]:
        return list(self._queues)


class TellsNoKeys(ListMessageStore):
    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        super().add_dispatcher(
            lambda requests: dispatcher([replace(one, keys=()) for one in requests])
        )


@pytest.mark.parametrize(
    "wrong",
    [
        *(AnyOffset, NoTags, AnySize, BeginsAtItsEnd, OneTooLate, InSeconds, NoBeginning),
        *(OldestFirst, AnyTime, RetainsNothing, NeverClosed, TellsNoKeys),
    ],
)
def test_the_message_store_contract_catches_a_wrong_store(wrong: type[ListMessageStore]) -> None:
    class Wrong(MessageStoreContract):
        def open_store(self) -> MessageStore:
            return wrong(Runtime.inline())

    caught = []
    for name in dir(Wrong):
        test: Callable[..., None] = getattr(Wrong(), name)
        wanted = [one for one in getattr(test, "__annotations__", {}) if one != "return"]
        if not name.startswith("test_") or wanted not in ([], ["store"]):  # others need parameters
            continue
        store = wrong(Runtime.inline())
        store.load()
        try:
            test(*[store for _ in wanted])
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - any failure will do
            caught.append(name)
    assert caught


class TestFaults:
    def open(self, faults: Faults) -> tuple[FileSegment, FileSegment]:
        """A faulty handle and a sound one on the same bytes."""
        runtime = Runtime.inline()
        memory = MemoryProvider(runtime)
        faulty = FaultyProvider(memory, faults, runtime)
        return faulty.open("b/t/0", LOG, 0), memory.open("b/t/0", LOG, 0)

    @pytest.mark.parametrize(
        ("fault", "landed"), [(Fault.BEFORE, 0), (Fault.HALF, 3), (Fault.AFTER, 6)]
    )
    def test_a_fault_strikes_at_its_step_only(self, fault: Fault, landed: int) -> None:
        faulty, sound = self.open(Faults({1: fault}))
        faulty.write(0, b"first")
        with pytest.raises(BackendUnavailableError):
            faulty.write(5, b"second")
        assert sound.size() == 5 + landed
        if landed:
            with pytest.raises(PositionMismatchError):
                faulty.write(5, b"second")
        faulty.write(5 + landed, b"second"[landed:])
        assert sound.read(0, 11) == b"firstsecond"

    @pytest.mark.parametrize(
        ("fault", "landed"),
        [(Fault.CRASH_BEFORE, 0), (Fault.CRASH_HALF, 3), (Fault.CRASH_AFTER, 6)],
    )
    def test_nothing_works_after_a_crash(self, fault: Fault, landed: int) -> None:
        faults = Faults({1: fault})
        faulty, sound = self.open(faults)
        faulty.write(0, b"first")
        with pytest.raises(SimulatedCrash):
            faulty.write(5, b"second")
        assert sound.size() == 5 + landed
        for call in (faulty.size, lambda: faulty.read(0, 1), faulty.delete):
            with pytest.raises(SimulatedCrash):
                call()
        assert faults.crashed
        assert faults.steps == 2

    @pytest.mark.parametrize(
        ("fault", "landed"), [(Fault.BEFORE, False), (Fault.HALF, False), (Fault.AFTER, True)]
    )
    def test_a_fault_strikes_a_creation_too(self, fault: Fault, landed: bool) -> None:
        runtime = Runtime.inline()
        memory = MemoryProvider(runtime)
        faulty = FaultyProvider(memory, Faults({0: fault}), runtime)
        segment = faulty.open("b/rmq_sys_INDEX/0", SegmentType.INDEX, 0)
        with pytest.raises(BackendUnavailableError):
            faulty.create(segment, [b"whole"])
        assert faulty.faults.steps == 1
        assert len(list(memory.list())) == landed

    def test_a_backend_that_always_fails(self) -> None:
        faulty, sound = self.open(Faults(always=Fault.AFTER))
        for call in (faulty.delete, lambda: faulty.write(0, b"x")):
            with pytest.raises(BackendUnavailableError):
                call()
        assert sound.size() == 1


def test_a_record_tells_which_message_it_is() -> None:
    message = decode_message(a_record(7, body_bytes=300))
    assert message.queue_offset == 7
    assert message.body == a_body(7, 300)
    assert message.body != a_body(8, 300)
    assert message.keys == ("key-7", "shared")


@given(message=samples.messages())
def test_any_message_of_the_strategies_can_be_stored(message: Message) -> None:
    store = ListMessageStore(Runtime.inline())
    store.load()
    store.put_message(message)
    got = decode_message(store.get_message(message.topic, message.queue_id, 0).messages[0].record)
    assert (got.topic, got.body, dict(got.properties)) == (
        message.topic,
        message.body,
        dict(message.properties),
    )
    assert (got.born_host, got.store_host) == (message.born_host, message.store_host)
