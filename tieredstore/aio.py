"""The store for brokers that speak asyncio: the same answers, statuses and errors."""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import AbstractEventLoop, to_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from types import coroutine
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar
from weakref import WeakMethod

from tieredstore.access.health import TierHealth
from tieredstore.access.store import FLUSH_SECONDS, TieredMessageStore
from tieredstore.access.tables import ConsumerOffsets, TopicTable
from tieredstore.driver.arrivals import Arrival
from tieredstore.driver.dispatched import arrived
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, MessageFilter, ReadRequest
from tieredstore.driver.one_process import OneProcess
from tieredstore.driver.runtime import ThreadPool, done_future
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.message_columns import unchanging
from tieredstore.model.messages import (
    DispatchRequest,
    GetResult,
    Message,
    MessageRun,
    PutResult,
    QueryResult,
    SelectedMessage,
)
from tieredstore.model.topics import TopicFilter
from tieredstore.model.values import (
    INT64_MAX,
    Boundary,
    QueueKey,
    StorageLevel,
    require_place,
    require_seconds,
    texts_of,
)

P = ParamSpec("P")
T = TypeVar("T")

CALL_THREADS: Final = 16
PUTS_A_TURN: Final = 64  # about a millisecond of a loop

_YES: Final = done_future(lambda: True)


class AsyncTieredStore:
    """A TieredMessageStore whose calls can be awaited.

    * The event loop is never blocked: a call that may wait runs in one of CALL_THREADS threads of
      this object. They are not the store's: calls in a pool must not wait for each other. Nor are
      they asyncio's, which other code may occupy; only load, start, shutdown and destroy run there.
      A read that is hot is answered at once, in the loop's own thread. So are a put and a small
      batch that the store can make at once (`MessageStore.put_at_once`); other tasks of the loop
      run after each PUTS_A_TURN messages.
    * All other puts share one thread of their own, however many wait for the disk. All puts are
      stored in the order of the calls. If the wrapped store has no futures of its own, each put
      waits for the one before it; no read waits for puts.
    * A cancelled call leaves the store as it is; what it has begun continues, and its outcome is
      dropped. An `async with` that is cancelled while it opens closes what it opened.
    * The store may be used from threads and from several loops at the same time.
    * Each call raises what the same call of TieredMessageStore raises.
    """

    def __init__(self, store: TieredMessageStore) -> None:
        self.store = store
        self._threads = _Threads()
        self._handover = _Handover(self._threads)
        self._waiting = _Waiting(store)
        self._puts = 0  # messages put in loops

    @property
    def topic_filter(self) -> TopicFilter:
        """The topics that stay out of the tier; the store's own filter, without waiting."""
        return self.store.topic_filter

    @property
    def consumer_offsets(self) -> ConsumerOffsets:
        """The offset of each consumer group; no call of it waits."""
        return self.store.consumer_offsets

    @property
    def topic_table(self) -> TopicTable:
        """The broker's topics and their settings; no call of it waits."""
        return self.store.topic_table

    @property
    def level(self) -> StorageLevel:
        """When a read is served by the tier; may be set at any time."""
        return self.store.level

    @level.setter
    def level(self, level: StorageLevel) -> None:
        self.store.level = level

    # -- life ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Open the store."""
        await to_thread(self.store.load)

    async def start(self) -> None:
        """Begin to accept puts and to serve reads."""
        await to_thread(self.store.start)

    async def shutdown(self, *, drain: bool = True, timeout: float | None = FLUSH_SECONDS) -> None:  # noqa: ASYNC109 - it bounds the upload, not the call
        """End everything; idempotent."""
        await to_thread(self._end, partial(self.store.shutdown, drain=drain, timeout=timeout))

    def _end(self, end: Callable[[], None]) -> None:
        """End the store. Runs in the thread that ends it, so a call that is cancelled before has no
        effect.
        """
        try:
            end()
        finally:
            self._waiting.end()  # later waiters are refused when they ask the store

    async def destroy(self) -> None:
        """Delete the data."""
        await to_thread(self._end, self.store.destroy)

    async def __aenter__(self) -> Self:
        opening = asyncio.ensure_future(to_thread(self.store.__enter__))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            while not opening.done():  # even if cancelled again: nothing else would close it
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                await asyncio.shield(self.shutdown(drain=False))
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        # Shielded, because nothing else would close the store if this were cancelled.
        await asyncio.shield(to_thread(self._end, partial(self.store.__exit__, *exception)))

    # -- messages -----------------------------------------------------------------------------

    async def put_message(self, message: Message) -> PutResult:
        """Store one message, and say where, or by the status why not."""
        if self._handover.is_idle:  # else it would overtake earlier puts
            result = self.store.put_at_once(message)
            if result is not None:
                if self._is_turn(1):
                    await _turn()
                return result
        return await self._handover.put(partial(self.store.put_message_future, message))

    async def put_messages(self, messages: Sequence[Message]) -> Sequence[PutResult]:
        """Store messages in this order; each is stored or refused by itself."""
        messages = unchanging(messages)
        if self._handover.is_idle:
            results = self.store.put_messages_at_once(messages)
            if results is not None:
                if self._is_turn(len(messages)):
                    await _turn()
                return results
        return await self._handover.put(partial(self.store.put_messages_future, messages))

    def _is_turn(self, count: int) -> bool:
        """Count messages put in a loop; return whether other tasks of the loop should run now."""
        before, self._puts = self._puts, self._puts + count
        return self._puts // PUTS_A_TURN > before // PUTS_A_TURN

    async def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = COUNT_MAX,
        bytes_max: int = BYTES_MAX,
        message_filter: MessageFilter | None = None,
        group: str = "",
    ) -> GetResult:
        """Messages from `offset` on, in order; continue at `next_offset`.

        At most `count_max` messages and about `bytes_max` bytes; where there is a message,
        at least one, however large. An unknown queue, or an offset without a message, is a
        status.
        """
        request = ReadRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        hot = self.store.read_hot(request)
        if hot is not None:
            return hot
        # A thread submits it: while the fetch pool is full, the submitting thread does the work.
        return await asyncio.wrap_future(await self._threads.call(self.store.read_future, request))

    async def arrival(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        timeout: float,  # noqa: ASYNC109 - its end is an answer
    ) -> bool:
        """True as soon as the queue has a message at or after the offset.

        False after `timeout` seconds. A waiting call holds no thread, and messages of other queues
        do not wake it. Raises StoreClosedError when the store is closed through this face
        meanwhile.
        """
        require_place(topic, queue_id, offset)
        require_seconds("timeout", timeout)
        with self._waiting.at(QueueKey(topic, queue_id), offset) as answer:
            # Register first, then ask: so a message that comes in between is not missed.
            end = await self._threads.call(self.store.max_offset, topic, queue_id)
            if end is not None and end > offset:
                return True
            try:
                return await asyncio.wait_for(answer.awaited, timeout)
            except TimeoutError:
                return False

    async def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        """Consecutive messages as columns; empty where there is none, else at least one."""
        return await self._threads.call(
            self.store.read_range,
            topic,
            queue_id,
            offset,
            count_max=count_max,
            bytes_max=bytes_max,
        )

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        """Messages of a topic that have the key, stored within [begin, end], newest first.

        `complete` is False where a hit may be missing.
        """
        return await self._threads.call(
            self.store.query_message, topic, key, count_max=count_max, begin=begin, end=end
        )

    async def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        """The message whose record starts at this log offset; None where none does."""
        return await self._threads.call(self.store.message_at, log_offset, size)

    # -- where queues begin and end -----------------------------------------------------------

    async def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The oldest queue offset that can be read; None for a queue that is not there."""
        return await self._threads.call(self.store.min_offset, topic, queue_id)

    async def max_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset; None for a queue that is not there."""
        return await self._threads.call(self.store.max_offset, topic, queue_id)

    async def committed_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset in the tier; None for a queue that is not in it."""
        return await self._threads.call(self.store.committed_offset, topic, queue_id)

    async def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether there is a message at this queue offset."""
        return await self._threads.call(self.store.contains, topic, queue_id, offset)

    async def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        """The queue offset to start from for a store time; None for a queue that is not there."""
        return await self._threads.call(
            self.store.offset_by_time, topic, queue_id, timestamp, boundary
        )

    async def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at this offset was stored, in ms; None where there is none."""
        return await self._threads.call(self.store.store_time, topic, queue_id, offset)

    async def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        """Store time of a queue's oldest message, in ms; None where there is none.

        Without a topic that of the whole store.
        """
        return await self._threads.call(self.store.earliest_time, topic, queue_id)

    async def queues(self) -> Iterable[QueueKey]:
        """Every queue that has or had messages."""
        return await self._threads.call(self.store.queues)

    # -- looking after it ---------------------------------------------------------------------

    async def flush(
        self,
        timeout: float | None = FLUSH_SECONDS,  # noqa: ASYNC109 - it bounds the upload, not the call
        *,
        seal: bool = False,
    ) -> bool:
        """Upload everything now; return whether everything put before is in the tier."""
        return await self._threads.call(self.store.flush, timeout, seal=seal)

    async def health(self) -> TierHealth:
        """How the tier is doing."""
        return await self._threads.call(self.store.health)

    async def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete topics; return how many of them existed."""
        return await self._threads.call(self.store.delete_topics, texts_of("topics", topics))

    async def clean_unused_topics(self, retained: Iterable[str]) -> int:
        """Delete every topic but the retained and the system's; return how many."""
        return await self._threads.call(
            self.store.clean_unused_topics, texts_of("retained", retained)
        )


@coroutine
def _turn() -> Iterator[None]:
    """Let other ready tasks of the loop run first."""
    yield


class _Threads:
    """The threads of one AsyncTieredStore; they start with the first call, and end with the object.

    Any number of calls may wait for a thread, each in its own task.
    """

    def __init__(self) -> None:
        self._calls = ThreadPool("aio", threads=CALL_THREADS, pending_max=sys.maxsize)
        self._puts = ThreadPool("aio-put", threads=1, pending_max=sys.maxsize)

    async def call(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call the function in a thread, with the caller's context."""
        context = copy_context()
        return await asyncio.wrap_future(
            self._calls.submit(context.run, partial(function, *args, **named))
        )

    def put(self, function: Callable[[], None]) -> None:
        self._puts.submit(function)


class _Handover:
    """Hands puts from the loops to the store: one thread at a time takes all that have come.

    A thread for each put would cost more than the put.
    """

    def __init__(self, threads: _Threads) -> None:
        self._threads = threads
        self._begin()

    def _begin(self) -> None:
        self._process = OneProcess("puts of asyncio")
        self._coming: deque[tuple[Callable[[], Future[Any]], _Answer[Any]]] = deque()
        self._turn = threading.Lock()

    @property
    def is_idle(self) -> bool:
        """Whether the store has taken all puts so far."""
        return not self._coming

    async def put(self, call: Callable[[], Future[T]]) -> T:
        if not self._process.is_this:  # a thread of the parent may have held the turn at the fork
            self._begin()
        answer: _Answer[T] = _Answer(asyncio.get_running_loop())
        self._coming.append((call, answer))
        if self._turn.acquire(blocking=False):
            try:
                self._threads.put(self._hand_over)
            except BaseException as error:  # noqa: BLE001 - raised where the callers wait
                self._hand_over(error)
        return await answer.awaited

    def _hand_over(self, refusal: BaseException | None = None) -> None:
        """Hand over all puts that have come, or refuse them. The caller took the turn; this gives
        it back."""
        has_turn = True
        while has_turn:
            while self._coming:
                call, answer = self._coming[0]
                try:
                    if refusal is not None:
                        raise refusal
                    future = call()
                except BaseException as error:  # noqa: BLE001 - raised where the caller waits
                    future = Future()
                    future.set_exception(error)
                self._coming.popleft()  # before the answer: its caller may put again at once
                future.add_done_callback(answer.give)
            self._turn.release()
            # A put that came just before the release found the turn taken and started no thread.
            has_turn = bool(self._coming) and self._turn.acquire(blocking=False)


class _Waiting:
    """The waiters for messages, by queue. A queue without waiters costs one look-up in a dict."""

    def __init__(self, store: TieredMessageStore) -> None:
        self._store = store
        self._arrival: Arrival | None = None
        self._queues: dict[tuple[str, int], dict[_Answer[bool], int]] = {}
        self._guard = threading.Lock()

    @contextmanager
    def at(self, key: QueueKey, offset: int) -> Iterator[_Answer[bool]]:
        """An answer that is given when a message at or after this offset comes."""
        answer: _Answer[bool] = _Answer(asyncio.get_running_loop())
        with self._guard:
            if self._arrival is None:
                self._arrival = self._listening()
            self._queues.setdefault(key, {})[answer] = offset
        try:
            yield answer
        finally:
            with self._guard:
                waiting = self._queues.get(key, {})
                waiting.pop(answer, None)
                if not waiting:
                    self._queues.pop(key, None)
            if not answer.awaited.cancel() and not answer.awaited.cancelled():
                answer.awaited.exception()  # so asyncio does not report it as never retrieved

    def end(self) -> None:
        """End all waits with StoreClosedError."""
        with self._guard:
            answers = [answer for waiting in self._queues.values() for answer in waiting]
        closed: Future[bool] = Future()
        closed.set_exception(StoreClosedError("the store is closed"))
        for answer in answers:
            answer.give(closed)

    def _listening(self) -> Arrival:
        """Register with the store by a weak reference: the store may outlive this object, and must
        not keep it alive.
        """
        found = WeakMethod(self._on_messages)

        def tell(requests: Sequence[DispatchRequest]) -> None:
            on_messages = found()
            if on_messages is None:
                arrival.cancel()
            else:
                on_messages(requests)

        arrival = self._store.on_arrival(tell)
        return arrival

    def _on_messages(self, requests: Sequence[DispatchRequest]) -> None:
        if not self._queues:
            return
        come = {(one.topic, one.queue_id): one.end_offset for one in arrived(requests)}
        with self._guard:
            answers = [
                answer
                for key, end in come.items()
                for answer, offset in self._queues.get(key, {}).items()
                if offset < end
            ]
        for answer in answers:
            answer.give(_YES)


class _Answer(Generic[T]):
    """A result that a task of some loop awaits, and that any thread may give."""

    __slots__ = ("_loop", "awaited")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.awaited: asyncio.Future[T] = loop.create_future()

    def give(self, done: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            self._loop.call_soon_threadsafe(self._settle, done)

    def _settle(self, done: Future[T]) -> None:
        if self.awaited.done():  # cancelled
            return
        try:
            result = done.result()
        except BaseException as error:  # noqa: BLE001 - also CancelledError; raised where the task waits
            self.awaited.set_exception(error)
        else:
            self.awaited.set_result(result)
