"""Messages for consumers that pop: read, given, done, tried again, and dead in the end.

The store has the messages, and the table of offsets the progress of each group, as for consumers
that pull. Which messages are out is only in memory: after a crash the broker gives again those that
were not done, and counts their attempts anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from examples.broker.commands import Code, RefusedError
from examples.broker.pop import RENEW_SECONDS, Flight, PopQueue, handle_of, read_handle
from examples.broker.storage import Storage, moved
from examples.broker.tables import DEAD, Topics
from tieredstore import (
    ConsumerOffsets,
    MessageFilter,
    QueueKey,
    TieredStoreError,
    decode_message,
)
from tieredstore.model.messages import SelectedMessage

log = logging.getLogger(__name__)

COUNT_MAX: Final = 32
LOOKS_MAX: Final = 64  # of one receive in one queue, to pass what is filtered out
PLACES_MAX: Final = 10_000
OUT_MAX: Final = 200_000
WAITING_MAX: Final = 10_000
WAIT_SECONDS_MAX: Final = 60.0
INVISIBLE_SECONDS_MAX: Final = 12 * 3_600.0
STUCK_SECONDS: Final = 1.0

DEAD_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

_Place = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a message is given to a group, and how long it waits before it is given again."""

    attempts_max: int = 17
    first_seconds: float = 1.0
    longest_seconds: float = 7_200.0

    def seconds(self, attempt: int) -> float:
        """How long to wait after this attempt failed: twice as long each time."""
        return min(self.first_seconds * 2.0 ** min(attempt - 1, 62), self.longest_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a consumer asks for: messages of the first of these queues that has some."""

    group: str
    topic: str
    queue_ids: Sequence[int]
    count: int = COUNT_MAX
    seconds: float = RENEW_SECONDS  # how long they are invisible
    wait_seconds: float = 0.0
    chosen: MessageFilter | None = None
    owner: str = ""  # the client that keeps them as long as it lives
    attempt_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message on its way to a consumer."""

    message: SelectedMessage
    handle: str
    attempt: int


@dataclass(slots=True)
class _Queue:
    """A queue of which a group has messages out, or is about to."""

    place: _Place
    pop: PopQueue
    committed: int
    counted: int = 0
    users: int = 0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Receives:
    """Gives each message to one consumer of a group at a time."""

    def __init__(
        self,
        storage: Storage,
        topics: Topics,
        offsets: ConsumerOffsets,
        *,
        retries: Retries,
        is_fifo: Callable[[str], bool] = lambda group: False,  # noqa: ARG005
        is_alive: Callable[[str], bool] = lambda owner: False,  # noqa: ARG005
    ) -> None:
        """`is_fifo`: whether a group gets the messages of a queue one batch after the other."""
        self._storage = storage
        self._topics = topics
        self._offsets = offsets
        self._retries = retries
        self._is_fifo = is_fifo
        self._is_alive = is_alive
        self._queues: dict[_Place, _Queue] = {}
        self._out = 0
        self._waiting = 0
        self._over = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    @property
    def waiting(self) -> int:
        """How many requests wait for a message."""
        return self._waiting

    @property
    def out(self) -> int:
        """How many messages are out."""
        return self._out

    def end(self) -> None:
        """End all waits."""
        self._over.set()

    async def receive(self, wanted: Wanted) -> list[Delivery]:
        """Messages, at once or when there are some; none if time is up. Raises RefusedError."""
        until = self._now() + min(wanted.wait_seconds, WAIT_SECONDS_MAX)
        while True:
            offsets: list[tuple[int, int]] = []  # ends of queues that have nothing more
            for queue_id in wanted.queue_ids:
                queue = await self._open((wanted.group, wanted.topic, queue_id))
                queue.users += 1
                try:
                    async with queue.reading:
                        found, ends_at = await self._take(queue, wanted)
                finally:
                    queue.users -= 1
                    self._settle(queue)
                if found:
                    return found
                if ends_at is not None:
                    offsets.append((queue_id, ends_at))
            seconds = until - self._now()
            if seconds <= 0 or self._over.is_set():
                return []
            await self._wait(wanted, offsets, seconds)

    def ack(self, group: str, topic: str, handle: str) -> bool:
        """The message is done; False for a handle that is no longer valid."""
        queue, flight = self._find(group, topic, handle)
        if queue is None or flight is None:
            return False
        was_full = queue.pop.room() <= 0
        queue.pop.done(flight)
        if was_full:
            queue.wake()
        self._settle(queue)
        return True

    def change(self, group: str, topic: str, handle: str, seconds: float) -> str | None:
        """Make a message invisible for `seconds` from now; returns its new handle.

        From a client that need not say how long it wants a message, this means that it failed.
        """
        queue, flight = self._find(group, topic, handle)
        if queue is None or flight is None:
            return None
        if flight.owner:
            seconds = max(seconds, self._retries.seconds(flight.attempt))
        queue.pop.change(flight, now=self._now(), seconds=seconds)
        queue.wake()
        return handle_of(queue.place[2], flight)

    async def bury(self, group: str, topic: str, handle: str) -> bool:
        """Store the message as a dead letter, and count it as done."""
        queue, flight = self._find(group, topic, handle)
        if queue is None or flight is None:
            return False
        queue.users += 1
        try:
            (message,) = await self._read(queue, [flight])
            if message is not None:
                await self._store_dead(group, message)
            queue.pop.done(flight)
        finally:
            queue.users -= 1
            queue.wake()
            self._settle(queue)
        return True

    def take_back(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        """These never reached their consumer."""
        for delivery in deliveries:
            queue, flight = self._find(group, topic, delivery.handle)
            if queue is not None and flight is not None:
                queue.pop.take_back(flight, now=self._now())
                queue.wake()

    # -----------------------------------------------------------------------------------------

    async def _open(self, place: _Place) -> _Queue:
        """A new group begins at the first existing message, so that none is silently skipped."""
        known = self._queues.get(place)
        if known is not None:
            return known
        if len(self._queues) >= PLACES_MAX or self._out >= OUT_MAX:
            raise RefusedError(
                Code.SYSTEM_BUSY,
                f"{self._out} messages of {len(self._queues)} queues are out already",
            )
        group, topic, queue_id = place
        begins_at = self._offsets.get(group, topic, queue_id)
        if begins_at is None:
            store = self._storage.store
            oldest = await self._storage.call(store.min_offset, topic, queue_id)
            begins_at = self._offsets.get(group, topic, queue_id)  # others may have begun meanwhile
            begins_at = oldest or 0 if begins_at is None else begins_at
        pop = PopQueue(begins_at, is_fifo=self._is_fifo(group))
        return self._queues.setdefault(place, _Queue(place, pop, begins_at))

    def _settle(self, queue: _Queue) -> None:
        """Record the progress of the group, and forget a queue of which nothing is out."""
        self._out += queue.pop.count - queue.counted
        queue.counted = queue.pop.count
        if not queue.counted and not queue.users and self._queues.get(queue.place) is queue:
            del self._queues[queue.place]
        committed = queue.pop.committed
        if committed != queue.committed:  # last, since it may raise
            self._offsets.commit(*queue.place, committed)
            queue.committed = committed

    def _find(self, group: str, topic: str, handle: str) -> tuple[_Queue | None, Flight | None]:
        found = read_handle(handle)
        if found is None:
            return None, None
        queue_id, offset, token = found
        queue = self._queues.get((group, topic, queue_id))
        return queue, None if queue is None else queue.pop.find(offset, token)

    async def _take(self, queue: _Queue, wanted: Wanted) -> tuple[list[Delivery], int | None]:
        """What the queue has for the consumer. If it has nothing, and only a new message would
        change that, also the offset of that message."""
        pop, (group, topic, queue_id) = queue.pop, queue.place
        flights = pop.give_again(
            wanted.count,
            now=self._now(),
            seconds=wanted.seconds,
            owner=wanted.owner,
            attempt_id=wanted.attempt_id,
            is_alive=self._is_alive,
        )
        if flights:
            found = await self._give_again(queue, flights)
            if found:
                return found, None
        room = min(wanted.count, pop.room())
        if room <= 0:
            return [], None
        looks = 0
        while True:
            offset, looks = pop.next_offset, looks + 1
            got = await self._storage.get(
                topic, queue_id, offset, count_max=room, message_filter=wanted.chosen, group=group
            )
            given = pop.give(
                [message.queue_offset for message in got.messages],
                got.next_offset,
                now=self._now(),
                seconds=wanted.seconds,
                owner=wanted.owner,
                attempt_id=wanted.attempt_id,
            )
            if given or pop.next_offset <= offset or looks == LOOKS_MAX:
                break  # otherwise these were filtered out or do not exist: continue after them
        # Waiting for an empty place within the queue would be in vain.
        is_stuck = got.next_offset == offset < got.max_offset
        deliveries = [
            Delivery(message=message, handle=handle_of(queue_id, flight), attempt=1)
            for message, flight in zip(got.messages, given, strict=True)
        ]
        return deliveries, None if is_stuck else pop.next_offset

    async def _give_again(self, queue: _Queue, flights: Sequence[Flight]) -> list[Delivery]:
        """Deliver these again; those that were tried too often are buried instead."""
        queue_id = queue.place[2]
        deliveries = []
        try:
            for message, flight in zip(await self._read(queue, flights), flights, strict=True):
                if message is None:  # it has expired
                    queue.pop.done(flight)
                elif flight.attempt > self._retries.attempts_max:
                    await self._bury(queue, flight, message)
                else:
                    handle = handle_of(queue_id, flight)
                    deliveries.append(
                        Delivery(message=message, handle=handle, attempt=flight.attempt)
                    )
        except BaseException:
            for flight in flights:
                queue.pop.take_back(flight, now=self._now())
            raise
        return deliveries

    async def _bury(self, queue: _Queue, flight: Flight, message: SelectedMessage) -> None:
        """A message that cannot be buried now is tried later, and does not delay others."""
        try:
            await self._store_dead(queue.place[0], message)
        except (RefusedError, TieredStoreError) as error:
            log.error("%s: offset %d cannot be buried: %s", queue.place, flight.offset, error)
            seconds = self._retries.seconds(flight.attempt)
            queue.pop.change(flight, now=self._now(), seconds=seconds)
        else:
            queue.pop.done(flight)

    async def _read(self, queue: _Queue, flights: Sequence[Flight]) -> list[SelectedMessage | None]:
        """The message of each flight; flights are in the order of offsets."""
        group, topic, queue_id = queue.place
        known: dict[int, SelectedMessage] = {}
        found: list[SelectedMessage | None] = []
        for at, flight in enumerate(flights):
            if flight.offset not in known:
                run = 1
                while at + run < len(flights) and flights[at + run].offset == flight.offset + run:
                    run += 1
                got = await self._storage.get(
                    topic, queue_id, flight.offset, count_max=run, message_filter=None, group=group
                )
                known = {message.queue_offset: message for message in got.messages}
                if not known and got.next_offset <= flight.offset:
                    raise RefusedError(
                        Code.SYSTEM_BUSY, f"{topic}: {flight.offset} cannot be read now"
                    )
            found.append(known.get(flight.offset))
        return found

    async def _store_dead(self, group: str, message: SelectedMessage) -> None:
        stored = decode_message(message.record)
        topic = self._topics.to_write(DEAD + group, wanted_queues=1)
        await self._topics.keep()
        properties = dict(stored.properties)
        properties[DEAD_TOPIC] = stored.topic
        properties[DEAD_ID] = stored.unique_key or stored.offset_id
        queue_id = message.queue_offset % topic.write_queue_count
        dead = moved(stored, topic.name, queue_id, properties)
        (result,) = await self._storage.put([dead])
        if not result.stored:
            raise RefusedError(Code.SERVICE_NOT_AVAILABLE, f"{topic.name}: {result.reason}")
        log.info("%s/%d: dead for %s", stored.topic, stored.queue_offset, group)

    async def _wait(
        self, wanted: Wanted, offsets: Sequence[tuple[int, int]], seconds: float
    ) -> None:
        """Wait until there may be something for the consumer, at most `seconds`."""
        if self._waiting >= WAITING_MAX:
            raise RefusedError(Code.SYSTEM_BUSY, f"{self._waiting} consumers wait already")
        events = [self._over]
        if len(offsets) < len(wanted.queue_ids):
            seconds = min(seconds, STUCK_SECONDS)
        for queue_id in wanted.queue_ids:
            queue = self._queues.get((wanted.group, wanted.topic, queue_id))
            if queue is not None:
                events.append(queue.changed)
                time = queue.pop.next_time()
                if time is not None:
                    seconds = min(seconds, time - self._now())
        if seconds <= 0:
            return
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(each.wait()) for each in events]
        waits += [
            asyncio.create_task(
                self._storage.arrival(QueueKey(wanted.topic, queue_id), offset, seconds)
            )
            for queue_id, offset in offsets
        ]
        self._waiting += 1
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
