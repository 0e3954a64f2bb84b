"""The stores behind the broker, called without ever holding up its event loop.

* Puts that wait are put together, in the order they came, by one thread: thousands wait for the
  disk as one.
* Reads that are hot are answered in the loop's own thread; others go to the store's fetch pool.
* What is neither goes to a few threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from tieredstore import (
    GetResult,
    Message,
    MessageFilter,
    MessageStore,
    PutResult,
    Runtime,
    StoreConfig,
    TieredMessageStore,
    load_plugins,
)
from tieredstore.aio import AsyncTieredStore
from tieredstore.driver.metrics import Metrics
from tieredstore.local import LocalConfig, LocalMessageStore

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = 4
TOGETHER_MAX: Final = 1_024  # messages of one put
PLUGINS: Final = ("tiered",)

_Waiting = tuple[Sequence[Message], "asyncio.Future[Sequence[PutResult]]"]


class Storage:
    """A local store with the chain of plugins around it, the tier among them."""

    def __init__(
        self, local_config: LocalConfig, config: StoreConfig, metrics: Metrics | None = None
    ) -> None:
        self._runtime = Runtime.threads()
        self._local = LocalMessageStore(local_config, self._runtime)
        self.store: MessageStore
        if config.plugins in ((), PLUGINS):
            self.store = TieredMessageStore(
                self._local, config, runtime=self._runtime, metrics=metrics
            )
        else:  # each of these makes its own runtime, and none is given our metrics
            self.store = load_plugins(self._local, config)
        self._threads = ThreadPoolExecutor(THREADS, "broker-call")
        self._putting = ThreadPoolExecutor(1, "broker-put")
        self._waiting: deque[_Waiting] = deque()
        self._put_task: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        self.store.load()
        try:
            self.store.start()
        except BaseException:
            self.store.shutdown()
            raise

    def close(self) -> None:
        """What waits is uploaded first."""
        self._threads.shutdown()
        self._putting.shutdown()
        self.store.shutdown()
        self._runtime.close()

    # -- calls --------------------------------------------------------------------------------

    async def put(self, messages: Sequence[Message]) -> Sequence[PutResult]:
        """Beside each other in the log, behind all that was put before."""
        done: asyncio.Future[Sequence[PutResult]] = asyncio.get_running_loop().create_future()
        self._waiting.append((messages, done))
        if self._put_task is None:
            self._put_task = asyncio.create_task(self._put_waiting())
        # Shielded: a message may be stored whose sender has gone.
        return await asyncio.shield(done)

    async def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        message_filter: MessageFilter | None,
        group: str,
    ) -> GetResult:
        """Messages from the offset on; see `MessageStore.get_message`."""
        store = self.store
        if isinstance(store, TieredMessageStore):
            return await AsyncTieredStore(store).get_message(
                topic,
                queue_id,
                offset,
                count_max=count_max,
                message_filter=message_filter,
                group=group,
            )
        return await self.call(
            lambda: store.get_message(
                topic,
                queue_id,
                offset,
                count_max=count_max,
                message_filter=message_filter,
                group=group,
            )
        )

    async def call(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """A call of the store that may wait, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **named))

    # -----------------------------------------------------------------------------------------

    async def _put_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                together: list[_Waiting] = []
                messages: list[Message] = []
                while self._waiting and len(messages) < TOGETHER_MAX:
                    together.append(self._waiting.popleft())
                    messages += together[-1][0]
                try:
                    results = await loop.run_in_executor(self._putting, self._put_all, messages)
                except Exception as error:  # noqa: BLE001 - each sender is told
                    for _, done in together:
                        done.set_exception(error)
                    continue
                at = 0
                for part, done in together:
                    done.set_result(results[at : at + len(part)])
                    at += len(part)
        finally:
            self._put_task = None

    def _put_all(self, messages: Sequence[Message]) -> Sequence[PutResult]:
        """Through the chain only where something in it is not the tier: that passes puts on."""
        if isinstance(self.store, TieredMessageStore):
            return self._local.put_messages(messages)
        return [self.store.put_message(message) for message in messages]
