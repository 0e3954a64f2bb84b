"""A broker that speaks asyncio: tasks of one event loop, which is an actor like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVarTuple

from tests.simulation.acts import KEPT, a_message, a_put
from tests.simulation.model import Put
from tieredstore.aio import AsyncTieredStore
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.messages import Message, PutResult

if TYPE_CHECKING:
    from tests.simulation.scheduler import Scheduler
    from tests.simulation.world import Client, Life

Ts = TypeVarTuple("Ts")


class ActorLoop(asyncio.BaseEventLoop):
    """Waits as actors do, instead of asking the system for events."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._selector = self
        self._actor = scheduler.running
        self._is_woken = False

    def select(self, timeout: float | None) -> Sequence[Any]:
        if timeout == 0:
            self._scheduler.pause("loop")
        else:
            self._scheduler.wait(lambda: self._is_woken, timeout)
        self._is_woken = False
        return ()

    def time(self) -> float:
        return self._scheduler.clock.monotonic()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        # All actors share one thread, so asyncio takes every actor for the one that runs this loop,
        # and wakes nobody.
        self._is_woken |= self._scheduler.running is not self._actor
        return super().call_soon(callback, *args, context=context)

    def _write_to_self(self) -> None:
        self._is_woken = True

    def _process_events(self, events: Sequence[Any]) -> None:
        """No events come from the system."""


def await_things(client: Client, life: Life) -> None:
    """Several tasks at once: some put, some read, some wait; some are cancelled."""
    loop = ActorLoop(client.world.scheduler)
    try:
        loop.run_until_complete(_together(client, life))
    finally:
        loop.close()


async def _together(client: Client, life: Life) -> None:
    dice = client.dice
    store = life.awaited
    called: list[Put] = []  # in the order of the calls
    calls: list[Callable[[], Coroutine[Any, Any, None]]] = [
        partial(_put_some, client, life, store, called) for _ in range(dice.choice([1, 2, 4]))
    ]
    calls += [partial(_read, client, life, store), partial(_await_more, client, life, store)]
    dice.shuffle(calls)
    tasks = [asyncio.ensure_future(call()) for call in calls[: dice.choice([1, 3, 6])]]
    if dice.random() < 0.3:
        await asyncio.wait(tasks, timeout=dice.choice([0, 0.01, 1]))
        dice.choice(tasks).cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            raise ended
    for queue in KEPT:
        offsets = [put.offset for put in called if put.queue == queue and put.offset is not None]
        assert offsets == sorted(offsets), f"{queue}: not in the order of the calls: {called}"


async def _put_some(client: Client, life: Life, store: AsyncTieredStore, called: list[Put]) -> None:
    dice = client.dice
    queue = dice.choice(KEPT)
    for _ in range(dice.choice([1, 3])):
        puts = [a_put(client.world, dice, queue) for _ in range(dice.choice([1, 1, 3]))]
        messages = [a_message(put, dice.choice([0, 100, 900])) for put in puts]
        called += puts
        results = await _stored(store, messages)
        life.saw()
        client.world.acknowledged(puts, results)


async def _stored(store: AsyncTieredStore, messages: list[Message]) -> Sequence[PutResult]:
    if len(messages) == 1:
        return [await store.put_message(messages[0])]
    return await store.put_messages(messages)


async def _read(client: Client, life: Life, store: AsyncTieredStore) -> None:
    dice, model = client.dice, client.world.model
    for _ in range(dice.choice([1, 3])):
        queue = dice.choice(client.world.queues)
        offset = dice.randrange(model.end(queue) + 2)
        before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
        page = await store.get_message(*queue, offset, count_max=dice.choice([1, 3, 8]))
        life.saw()
        model.check_page(queue, page, offset, before, deletions, None)


async def _await_more(client: Client, life: Life, store: AsyncTieredStore) -> None:
    dice, model = client.dice, client.world.model
    queue = dice.choice(client.world.queues)
    offset, deletions = model.end(queue), model.deletions.get(queue.topic, 0)
    try:
        has_come = await store.arrival(*queue, offset, timeout=dice.choice([0.01, 1, 30]))
    except StoreClosedError:
        return  # it was closed meanwhile
    life.saw()
    if has_come and deletions % 2 == 0:
        end = await store.max_offset(*queue) or 0
        life.saw()
        is_same = model.deletions.get(queue.topic, 0) == deletions
        assert end > offset or not is_same, f"{queue}: told of {offset}, but it ends at {end}"
