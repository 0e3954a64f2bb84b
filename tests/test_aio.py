"""The asyncio store never blocks the loop, and answers like the store itself."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from tests.access.tiered_kit import a_config, numbers
from tests.docs.pages import blocks, page
from tieredstore.access.store import TieredMessageStore
from tieredstore.aio import PUTS_A_TURN, AsyncTieredStore
from tieredstore.codec.broker_tables import TopicConfig
from tieredstore.driver.provider import ProviderWrapper, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidArgumentError,
    StoreClosedError,
)
from tieredstore.model.messages import Message, PutResult
from tieredstore.model.values import QueueKey, StorageLevel
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

WAIT = 240.0  # far more than any machine needs


class Gate(ProviderWrapper):
    """Holds reads while it is closed; records their threads."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(MemoryProvider(runtime), runtime)
        self.is_open = threading.Event()
        self.is_open.set()
        self.reached = threading.Event()
        self.arrivals = threading.Semaphore(0)
        self.threads: list[str] = []
        self.failure: Exception | None = None

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return GatedSegment(segment, self)

    def have_come(self, count: int) -> bool:
        """Wait for `count` more reads since the last call; return whether they came."""
        return all(self.arrivals.acquire(timeout=WAIT) for _ in range(count))


class GatedSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, gate: Gate) -> None:
        super().__init__(inner)
        self._gate = gate

    def read(self, position: int, length: int) -> bytes:
        self._gate.threads.append(threading.current_thread().name)
        self._gate.reached.set()
        self._gate.arrivals.release()
        assert self._gate.is_open.wait(WAIT)
        if self._gate.failure is not None:
            raise self._gate.failure
        return super().read(position, length)


class Tier:
    def __init__(self, folder: Path, runtime: Runtime | None = None, **settings: Any) -> None:
        self.runtime = runtime or Runtime.threads(dispatch_threads=1, fetch_threads=2)
        self.gate = Gate(self.runtime)
        self.local = ListMessageStore(self.runtime)
        self.store = TieredMessageStore(
            self.local,
            a_config(folder, **{"read_ahead_enabled": True, **settings}),
            runtime=self.runtime,
            provider=self.gate,
        )
        self.face = AsyncTieredStore(self.store)

    async def fill(self, count: int = 10, *, kept_from: int = 0) -> None:
        for number in range(count):
            await self.face.put_message(a_message(number))
        assert await self.face.flush(WAIT)
        self.local.kept_from = self.local.cached_from = kept_from
        self.gate.threads.clear()
        self.gate.arrivals = threading.Semaphore(0)
        self.gate.reached.clear()


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    tier = Tier(tmp_path)
    yield tier
    tier.gate.is_open.set()
    tier.store.shutdown(drain=False)
    tier.runtime.close()


def test_what_is_put_is_got_whoever_has_it(tier: Tier) -> None:
    async def scene() -> None:
        async with tier.face as face:
            await tier.fill(10, kept_from=6)
            assert numbers(await face.get_message(TOPIC, 0, 0)) == list(range(10))
            assert numbers(await face.get_message(TOPIC, 0, 7)) == [7, 8, 9]
            assert await face.min_offset(TOPIC, 0) == 0
            assert await face.max_offset(TOPIC, 0) == 10
            assert await face.committed_offset(TOPIC, 0) == 10
            assert await face.contains(TOPIC, 0, 3)
            assert set(await face.queues()) == {QueueKey(TOPIC, 0)}
            time = await face.store_time(TOPIC, 0, 0)
            assert time is not None
            assert await face.earliest_time(TOPIC, 0) == time
            assert await face.offset_by_time(TOPIC, 0, time - 1) == 0
            assert numbers(await face.query_message(TOPIC, "key-8")) == [8]
            run = await face.read_range(TOPIC, 0, 2, count_max=3, bytes_max=9_999)
            assert (run.first_offset, run.end_offset) == (2, 5)
            first = await face.message_at(0)
            assert first is not None
            assert (await face.health()).ok
            assert await face.clean_unused_topics([TOPIC]) == 0
            assert await face.delete_topics([TOPIC]) == 1
        with pytest.raises(StoreClosedError):
            await face.max_offset(TOPIC, 0)

    asyncio.run(scene())


class SlowDisk:
    """Holds the syncs of a log while it is closed."""

    def __init__(self, local: LocalMessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.reached = threading.Event()
        self.syncs = 0
        parts = local._parts
        assert parts is not None
        self._flush = parts.log.flush
        monkeypatch.setattr(parts.flusher, "_flush", self._slowly)

    def _slowly(self) -> int:
        self.syncs += 1
        self.reached.set()
        assert self.is_open.wait(WAIT)
        return self._flush()


def test_a_thousand_puts_wait_for_the_disk_and_reads_do_not_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
    config = LocalConfig(
        store_path=str(tmp_path / "local"), flush_disk_type="SYNC_FLUSH", flush_interval_ms=10**8
    )
    local = LocalMessageStore(config, runtime)
    store = TieredMessageStore(
        local, a_config(tmp_path), runtime=runtime, provider=MemoryProvider(runtime)
    )

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        # With one thread, any call that held it would hold all others.
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with AsyncTieredStore(store) as face:
            await face.put_message(a_message(0))
            disk = SlowDisk(local, monkeypatch)
            puts = [
                asyncio.create_task(face.put_message(a_message(number)))
                for number in range(1, 1001)
            ]
            batch = asyncio.create_task(face.put_messages([a_message(1001), a_message(1002)]))
            assert await asyncio.to_thread(disk.reached.wait, WAIT)
            assert numbers(await face.get_message(TOPIC, 0, 0)) == [0]  # the others are not synced
            assert await face.store_time(TOPIC, 0, 0) is not None
            assert not any(put.done() for put in puts)
            puts[7].cancel()
            disk.is_open.set()
            done = await asyncio.gather(*puts, return_exceptions=True)
            assert isinstance(done.pop(7), asyncio.CancelledError)
            offsets = [put.queue_offset for put in done if isinstance(put, PutResult)]
            assert offsets == [number for number in range(1, 1001) if number != 8]
            assert [put.queue_offset for put in await batch] == [1001, 1002]
            assert disk.syncs < 20
            await face.shutdown(drain=False)
            with pytest.raises(StoreClosedError):
                await face.put_message(a_message(0))

    asyncio.run(scene())
    runtime.close()


def test_cold_reads_wait_neither_for_puts_nor_for_the_threads_of_asyncio(tier: Tier) -> None:
    """The next store has no futures, so a put waits for the disk in its thread."""
    disk, others_may_go = threading.Event(), threading.Event()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        async with tier.face as face:
            await tier.fill(10, kept_from=10)
            put = tier.local.put_message

            def slow(message: Message) -> PutResult:
                assert disk.wait(WAIT)
                return put(message)

            tier.local.put_message = slow  # type: ignore[method-assign]
            puts = [asyncio.create_task(face.put_message(a_message(n))) for n in range(10, 200)]
            executor = ThreadPoolExecutor(1)
            loop.set_default_executor(executor)
            executor.submit(others_may_go.wait, WAIT)
            pages = await asyncio.gather(*(face.get_message(TOPIC, 0, n) for n in range(10)))
            assert [numbers(page)[0] for page in pages] == list(range(10))
            assert await face.store_time(TOPIC, 0, 3) is not None
            assert not any(one.done() for one in puts)
            disk.set()
            assert [one.queue_offset for one in await asyncio.gather(*puts)] == [*range(10, 200)]
            others_may_go.set()

    asyncio.run(scene())


def test_the_loop_goes_on_while_a_read_waits_for_the_backend(tier: Tier) -> None:
    async def scene() -> None:
        async with tier.face as face:
            await tier.fill(10, kept_from=10)
            tier.gate.is_open.clear()
            cold = asyncio.create_task(face.get_message(TOPIC, 0, 0))
            assert await asyncio.to_thread(tier.gate.reached.wait, WAIT)
            at_end = await face.get_message(TOPIC, 0, 10)  # other reads are answered meanwhile
            assert at_end.next_offset == 10
            assert not cold.done()
            tier.gate.is_open.set()
            assert numbers(await cold) == list(range(10))

    asyncio.run(scene())
    assert all(name.startswith("tieredstore-fetch") for name in tier.gate.threads)


def test_a_hot_read_takes_no_other_thread_and_no_turn_of_the_loop(tier: Tier) -> None:
    async def scene() -> None:
        async with tier.face as face:
            await tier.fill(10, kept_from=6)
            await face.get_message(TOPIC, 0, 0)  # fills the cache
            turns: list[int] = []
            for offset in (1, 7, 10, -1):  # cached, in the next store's memory, at the end, below
                asyncio.get_running_loop().call_soon(turns.append, offset)
                await face.get_message(TOPIC, 0, offset, count_max=2)
                assert turns == []
                await asyncio.wait_for(asyncio.to_thread(int), WAIT)
                turns.clear()

    asyncio.run(scene())


def test_the_loop_goes_on_while_the_fetch_pool_has_no_place(tmp_path: Path) -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1, pending_max=1)
    tier = Tier(tmp_path, runtime, read_ahead_enabled=False)

    async def scene() -> None:
        async with tier.face as face:
            await tier.fill(10, kept_from=10)
            tier.gate.is_open.clear()
            reads = [asyncio.create_task(face.get_message(TOPIC, 0, n)) for n in range(4)]
            # One read runs in the pool, and two found no place in it.
            assert await asyncio.to_thread(tier.gate.have_come, 3)
            at_end = await face.get_message(TOPIC, 0, 10)
            assert at_end.next_offset == 10
            assert not any(read.done() for read in reads)
            tier.gate.is_open.set()
            pages = await asyncio.gather(*reads)
            assert [numbers(page)[0] for page in pages] == [0, 1, 2, 3]

    loop_thread = threading.current_thread().name
    asyncio.run(scene())
    assert loop_thread not in tier.gate.threads
    runtime.close()


def test_level_and_topic_filter_are_the_stores_own(tier: Tier) -> None:
    tier.face.level = StorageLevel.FORCE
    assert tier.store.level is tier.face.level is StorageLevel.FORCE
    assert tier.face.topic_filter is tier.store.topic_filter


def test_consumer_offsets_and_topics_are_the_stores_own(tier: Tier) -> None:
    async def scene() -> None:
        async with tier.face as face:
            face.consumer_offsets.commit("group", TOPIC, 0, 3)
            face.topic_table.put(TopicConfig(name=TOPIC))
            assert await face.flush(WAIT)
            assert face.consumer_offsets is tier.store.consumer_offsets
            assert face.consumer_offsets.get("group", TOPIC, 0) == 3
            assert [topic.name for topic in face.topic_table.all()] == [TOPIC]
        with pytest.raises(StoreClosedError):
            _ = face.consumer_offsets

    asyncio.run(scene())


def test_a_cancelled_read_harms_nothing(tier: Tier) -> None:
    async def scene() -> None:
        async with tier.face as face:
            await tier.fill(10, kept_from=10)
            tier.gate.is_open.clear()
            reads = [asyncio.create_task(face.get_message(TOPIC, 0, n)) for n in range(8)]
            assert await asyncio.to_thread(tier.gate.reached.wait, WAIT)
            for read in reads:
                read.cancel()
            outcomes = await asyncio.gather(*reads, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in outcomes)
            tier.gate.is_open.set()
            assert numbers(await face.get_message(TOPIC, 0, 2)) == list(range(2, 10))

    asyncio.run(scene())


def test_errors_are_those_of_the_store(tier: Tier) -> None:
    async def scene() -> None:
        async with tier.face as face:
            await tier.fill(10, kept_from=5)
            tier.gate.failure = BackendUnavailableError("tier", "read", "planned")
            with pytest.raises(BackendUnavailableError):
                await face.get_message(TOPIC, 0, 2)
            tier.store.level = tier.store.level.FORCE
            assert numbers(await face.get_message(TOPIC, 0, 6)) == [6, 7, 8, 9]
            tier.gate.failure = None

    asyncio.run(scene())


async def _held_opening(tier: Tier) -> tuple[asyncio.Task[Any], threading.Event]:
    """Begin to open the store, which waits in `start` until the event is set."""
    reached, go_on = threading.Event(), threading.Event()
    start = tier.local.start

    def slow() -> None:
        reached.set()
        assert go_on.wait(WAIT)
        start()

    tier.local.start = slow  # type: ignore[method-assign]
    opening = asyncio.create_task(tier.face.__aenter__())
    assert await asyncio.to_thread(reached.wait, WAIT)
    return opening, go_on


def test_opening_that_fails_or_is_cancelled_leaves_nothing_open(tier: Tier) -> None:
    async def failing() -> None:
        def refuse() -> None:
            raise BackendUnavailableError("next", "start", "planned")

        tier.local.start = refuse  # type: ignore[method-assign]
        with pytest.raises(BackendUnavailableError):
            async with tier.face:
                pass
        with pytest.raises(StoreClosedError):
            tier.local.max_offset(TOPIC, 0)
        del tier.local.start

    async def cancelled() -> None:
        opening, go_on = await _held_opening(tier)
        opening.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        with pytest.raises(StoreClosedError):
            tier.local.max_offset(TOPIC, 0)

    asyncio.run(failing())
    asyncio.run(cancelled())


async def _goes_on(task: asyncio.Task[Any]) -> None:
    """Let the task run until it waits for more than a turn of the loop."""
    for _ in range(10):
        await asyncio.wait([task], timeout=0)


def test_opening_that_is_cancelled_again_while_it_closes_leaves_nothing_open(tier: Tier) -> None:
    """If a task group ends and a timeout fires, one task may be cancelled by both."""

    async def scene() -> None:
        opening, go_on = await _held_opening(tier)
        for _ in range(3):
            opening.cancel()
            await _goes_on(opening)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        with pytest.raises(StoreClosedError):
            tier.local.max_offset(TOPIC, 0)

    asyncio.run(scene())


def test_a_shutdown_that_is_cancelled_before_it_begins_tells_nobody_that_the_store_is_closed(
    tier: Tier,
) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as others:
            loop.set_default_executor(others)
            async with tier.face as face:
                waiting = asyncio.create_task(face.arrival(TOPIC, 0, 0, timeout=WAIT))
                busy = threading.Event()
                others.submit(busy.wait, WAIT)
                closing = asyncio.create_task(face.shutdown())
                await _goes_on(closing)
                closing.cancel()
                outcomes = await asyncio.gather(closing, return_exceptions=True)
                busy.set()
                assert isinstance(outcomes[0], asyncio.CancelledError)
                await face.put_message(a_message(0))
                assert await waiting

    asyncio.run(scene())


def test_a_block_that_is_cancelled_while_it_ends_closes_the_store(tier: Tier) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as others:
            loop.set_default_executor(others)
            await tier.face.__aenter__()
            busy = threading.Event()
            others.submit(busy.wait, WAIT)
            closing = asyncio.create_task(tier.face.__aexit__(None, None, None))
            await _goes_on(closing)
            closing.cancel()
            outcomes = await asyncio.gather(closing, return_exceptions=True)
            busy.set()
            assert isinstance(outcomes[0], asyncio.CancelledError)
            # The shutdown has begun, and is before this call in the only thread.
            await asyncio.to_thread(lambda: None)
        with pytest.raises(StoreClosedError):
            tier.local.max_offset(TOPIC, 0)

    asyncio.run(scene())


def test_life_goes_step_by_step_too(tier: Tier) -> None:
    async def scene() -> None:
        face = tier.face
        await face.load()
        await face.start()
        await tier.fill(3)
        await face.shutdown(drain=True, timeout=WAIT)
        await face.shutdown()
        await face.destroy()
        assert not list(tier.gate.list())

    asyncio.run(scene())


def test_who_waits_for_a_message_hears_that_the_store_is_destroyed(tier: Tier) -> None:
    async def scene() -> None:
        await tier.face.load()
        await tier.face.start()
        waiting = asyncio.create_task(tier.face.arrival(TOPIC, 0, 0, timeout=WAIT))
        await _goes_on(waiting)
        await tier.face.destroy()
        with pytest.raises(StoreClosedError):
            await waiting

    asyncio.run(scene())


def test_a_put_that_no_thread_takes_is_not_stored_later(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_call: object) -> None:
        raise RuntimeError("can't start new thread")

    async def scene() -> None:
        async with tier.face as face:
            monkeypatch.setattr(tier.store, "put_at_once", lambda _message: None)
            with monkeypatch.context() as patch:
                patch.setattr(face._threads, "put", refuse)
                with pytest.raises(RuntimeError):
                    await face.put_message(a_message(0))
            assert (await face.put_message(a_message(1))).queue_offset == 0

    asyncio.run(scene())


def test_two_loops_may_share_a_store(tier: Tier) -> None:
    async def scene() -> list[int]:
        return numbers(await tier.face.get_message(TOPIC, 0, 0))

    async def opening() -> None:
        await tier.face.load()
        await tier.face.start()
        await tier.fill(5, kept_from=5)

    asyncio.run(opening())
    assert asyncio.run(scene()) == asyncio.run(scene()) == [0, 1, 2, 3, 4]


def test_arrival_is_true_as_soon_as_there_is_a_message_at_the_offset_or_behind_it(
    tier: Tier,
) -> None:
    async def scene() -> None:
        async with tier.face as face:
            assert not await face.arrival(TOPIC, 0, 0, timeout=0)
            await tier.fill(3)
            assert await face.arrival(TOPIC, 0, 0, timeout=0)
            assert await face.arrival(TOPIC, 0, 2, timeout=0)
            assert not await face.arrival(TOPIC, 0, 3, timeout=0)
            third = asyncio.create_task(face.arrival(TOPIC, 0, 3, timeout=WAIT))
            fourth = asyncio.create_task(face.arrival(TOPIC, 0, 4, timeout=WAIT))
            await waiting(face, 2)
            await face.put_message(a_message(0, topic="Other"))
            await face.put_message(a_message(0, queue_id=1))
            assert not third.done()
            await face.put_message(a_message(3))
            assert await third
            assert not fourth.done()
            await face.put_messages([a_message(4)])
            assert await fourth
            await waiting(face, 0)

    asyncio.run(scene())


async def waiting(face: AsyncTieredStore, count: int) -> None:
    """Wait until `count` callers wait for messages, and all of them have looked."""
    for _ in range(10_000):
        if sum(map(len, face._waiting._queues.values())) == count:
            break
        await asyncio.to_thread(int)
    else:
        raise AssertionError("they do not come")
    for _ in range(3):
        await asyncio.to_thread(int)


@pytest.mark.parametrize("timeout", ["soon", float("nan")])
def test_a_timeout_that_is_no_number_is_named(tier: Tier, timeout: Any) -> None:
    async def scene() -> None:
        async with tier.face as face:
            with pytest.raises(InvalidArgumentError, match="timeout: want seconds"):
                await face.arrival(TOPIC, 0, 0, timeout=timeout)

    asyncio.run(scene())


def test_a_message_that_comes_between_the_look_and_the_wait_is_not_missed(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = tier.store.max_offset

    def slow_look(topic: str, queue_id: int) -> int | None:
        found = look(topic, queue_id)
        tier.store.put_message(a_message(0))
        return found

    async def scene() -> None:
        async with tier.face as face:
            monkeypatch.setattr(tier.store, "max_offset", slow_look)
            assert await face.arrival(TOPIC, 0, 0, timeout=WAIT)

    asyncio.run(scene())


def test_thousands_wait_without_threads_and_leave_when_cancelled_or_closed(tier: Tier) -> None:
    async def scene() -> None:
        async with tier.face as face:
            many = [
                asyncio.create_task(face.arrival(TOPIC, number, 0, timeout=WAIT))
                for number in range(2_000)
            ]
            await waiting(face, 2_000)
            assert threading.active_count() < 100
            await face.put_messages([a_message(0, queue_id=number) for number in range(1_000)])
            assert await asyncio.gather(*many[:1_000]) == [True] * 1_000
            assert not any(one.done() for one in many[1_000:])
            for one in many[1_000:1_500]:
                one.cancel()
            await waiting(face, 500)
        for one in many[1_500:]:
            with pytest.raises(StoreClosedError):
                await one
        assert face._waiting._queues == {}

    asyncio.run(scene())


def test_a_face_that_has_gone_leaves_nothing_with_its_store(tier: Tier) -> None:
    async def story() -> list[ref[object]]:
        faces = []
        for _ in range(3):
            face = AsyncTieredStore(tier.store)
            assert not await face.arrival(TOPIC, 0, 0, timeout=0)
            faces.append(ref[object](face._waiting))
        return faces

    with tier.store:
        faces = asyncio.run(story())
        gc.collect()
        assert [face() for face in faces] == [None] * 3
        tier.store.put_message(a_message())
        assert tier.store._listener.arrivals._all == ()


def test_the_long_polling_of_the_page_does_what_it_says(tier: Tier) -> None:
    [example] = [one.text for one in blocks(page("local-store.md")) if "def pull" in one.text]
    names: dict[str, Any] = {}
    exec(example, names)

    async def scene() -> None:
        async with tier.face as face:
            polling = asyncio.create_task(names["pull"](face, TOPIC, 0, 0, WAIT))
            await waiting(face, 1)
            await face.put_message(a_message(0))
            assert numbers(await polling) == [0]
            assert numbers(await names["pull"](face, TOPIC, 0, 0, WAIT)) == [0]
            nothing = await names["pull"](face, TOPIC, 0, 1, 0)
            assert (numbers(nothing), nothing.next_offset) == ([], 1)
            below = await names["pull"](face, TOPIC, 0, -1, WAIT)
            assert (numbers(below), below.next_offset) == ([], 0)

    asyncio.run(scene())


class Local:
    """A tiered store around a local store whose puts wait for nothing."""

    def __init__(self, folder: Path) -> None:
        self.runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
        config = LocalConfig(store_path=str(folder / "local"), commit_log_file_bytes=1 << 24)
        self.store = TieredMessageStore(
            LocalMessageStore(config, self.runtime),
            a_config(folder),
            runtime=self.runtime,
            provider=MemoryProvider(self.runtime),
        )


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    yield local
    local.store.shutdown(drain=False)
    local.runtime.close()


def test_a_put_that_need_not_wait_takes_no_other_thread_and_no_turn_of_the_loop(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with AsyncTieredStore(local.store) as face:
            await face.put_message(a_message(0))  # makes the first file
            monkeypatch.setattr(local.store, "put_message_future", None)  # must not be called
            monkeypatch.setattr(local.store, "put_messages_future", None)
            turns: list[int] = []
            asyncio.get_running_loop().call_soon(turns.append, 0)
            for number in range(1, 20):
                assert (await face.put_message(a_message(number))).queue_offset == number
            puts = await face.put_messages([a_message(number) for number in (20, 21)])
            assert [put.queue_offset for put in puts] == [20, 21]
            assert turns == []
            refused = await face.put_message(a_message(0, topic="no/topic"))
            assert not refused.stored

    asyncio.run(scene())


def test_the_loop_has_a_turn_among_many_puts(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with AsyncTieredStore(local.store) as face:
            put = await face.put_message(a_message(0))
            monkeypatch.setattr(local.store, "put_at_once", lambda _: put)  # hands no put over
            loop = asyncio.get_running_loop()
            turns = 0

            def count() -> None:
                nonlocal turns
                turns += 1
                loop.call_soon(count)

            loop.call_soon(count)
            for number in range(4 * PUTS_A_TURN):
                await face.put_message(a_message(number))
            assert turns == 4
            monkeypatch.setattr(local.store, "put_messages_at_once", lambda _: [put] * 3)
            for _ in range(PUTS_A_TURN):
                await face.put_messages([a_message(0)] * 3)
            assert turns == 4 + 3

    asyncio.run(scene())


def test_a_put_at_once_passes_none_that_was_called_before(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = threading.Event()
    hand_over = local.store.put_message_future

    def slowly(message: Message) -> Future[PutResult]:
        assert may_go.wait(WAIT)
        return hand_over(message)

    async def scene() -> None:
        async with AsyncTieredStore(local.store) as face:
            await face.put_message(a_message(0))
            monkeypatch.setattr(local.store, "put_message_future", slowly)
            large = asyncio.create_task(face.put_message(a_message(1, body_bytes=1 << 17)))
            small = asyncio.create_task(face.put_message(a_message(2)))
            few = asyncio.create_task(face.put_messages([a_message(3)]))
            both_have_begun = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(both_have_begun.set_result, None)
            await both_have_begun
            assert not small.done()
            assert not few.done()
            may_go.set()
            assert (await large).queue_offset == 1
            assert (await small).queue_offset == 2
            assert (await few)[0].queue_offset == 3

    asyncio.run(scene())


def test_whatever_ends_a_put_the_next_one_is_taken(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Halted(BaseException):
        """Like SystemExit, not an Exception."""

    def halts(_: Message) -> Future[PutResult]:
        raise Halted

    async def scene() -> None:
        async with AsyncTieredStore(local.store) as face:
            monkeypatch.setattr(local.store, "put_at_once", lambda _: None)  # hands all puts over
            with monkeypatch.context() as patch:
                patch.setattr(local.store, "put_message_future", halts)
                with pytest.raises(Halted):
                    await face.put_message(a_message(0))
            put = face.put_message(a_message(0))
            assert (await asyncio.wait_for(put, WAIT)).queue_offset == 0

    asyncio.run(scene())


def test_a_put_ends_though_its_store_cancels_what_it_promised_not_to(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a store does that gives puts to an executor and shuts it down with `cancel_futures`."""

    def cancels(_: Message) -> Future[PutResult]:
        future: Future[PutResult] = Future()
        future.cancel()
        return future

    async def scene() -> None:
        async with AsyncTieredStore(local.store) as face:
            monkeypatch.setattr(local.store, "put_at_once", lambda _: None)  # hands all puts over
            monkeypatch.setattr(local.store, "put_message_future", cancels)
            with pytest.raises(CancelledError):
                await asyncio.wait_for(face.put_message(a_message(0)), 10)

    asyncio.run(scene())
