"""The stores behind the broker, called without ever blocking its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar, cast

from tieredstore import (
    GetResult,
    InvalidConfigError,
    Message,
    MessageFilter,
    PutResult,
    QueueKey,
    Runtime,
    StoreConfig,
    TieredMessageStore,
    load_plugins,
)
from tieredstore.aio import AsyncTieredStore
from tieredstore.codec.message import StoredMessage
from tieredstore.driver.metrics import Metrics
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.local.encoder import NEVER_SENT, PutRefusedError, RecordEncoder

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = 4
TOGETHER_MAX: Final = 1_024  # messages of one put
PLUGINS: Final = ("tiered",)


class Storage:
    """A local store with the chain of plugins around it, the tier among them.

    Puts, reads and arrivals use the store's asyncio interface. Other calls that may wait run in a
    few threads.
    """

    def __init__(
        self, local_config: LocalConfig, config: StoreConfig, metrics: Metrics | None = None
    ) -> None:
        self._runtime = Runtime.threads()
        local = LocalMessageStore(local_config, self._runtime)
        config = config if config.plugins else replace(config, plugins=PLUGINS)
        self.store = load_plugins(local, config, runtime=self._runtime, metrics=metrics)
        self.tier = _tier_of(self.store)
        # Puts and arrivals need only the store's protocol, so the cast is safe.
        self._face = AsyncTieredStore(cast("TieredMessageStore", self.store))
        self._threads = ThreadPoolExecutor(THREADS, "broker-call")
        self._encoder = RecordEncoder(local_config)
        self._together: list[Message] = []
        self._putting: asyncio.Task[Sequence[PutResult]] | None = None

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        self.store.load()
        try:
            self.store.start()
        except BaseException:
            self.store.shutdown()
            raise

    def close(self) -> None:
        """Upload what waits, then close."""
        self._threads.shutdown()
        self.store.shutdown()
        self._runtime.close()

    # -- calls --------------------------------------------------------------------------------

    async def put(self, messages: Sequence[Message]) -> Sequence[PutResult]:
        """Store messages next to each other in the log, after everything that was put before.

        Messages of one turn of the loop are one put for the store, at half the price. An error
        fails all of them, but nothing that is made from a client's bytes causes one.
        """
        if self._putting is None or len(self._together) >= TOGETHER_MAX:
            self._together = []
            self._putting = asyncio.create_task(self._put_together(self._together))
        first = len(self._together)
        self._together += messages
        # Shielded: a message may be stored although its sender is gone.
        results = await asyncio.shield(self._putting)
        return results[first : first + len(messages)]

    def refused(self, message: Message) -> str | None:
        """Why the local store would refuse this message; None if it would accept it."""
        try:
            self._encoder.encode(message)
        except PutRefusedError as refusal:
            return refusal.reason
        return None

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
        if isinstance(self.store, TieredMessageStore):
            return await self._face.get_message(
                topic,
                queue_id,
                offset,
                count_max=count_max,
                message_filter=message_filter,
                group=group,
            )
        return await self.call(
            lambda: self.store.get_message(
                topic,
                queue_id,
                offset,
                count_max=count_max,
                message_filter=message_filter,
                group=group,
            )
        )

    async def arrival(self, key: QueueKey, offset: int, seconds: float) -> bool:
        """Whether the queue gets a message at or after the offset within `seconds`."""
        return await self._face.arrival(*key, offset, timeout=seconds)

    async def call(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a call of the store that may wait in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **named))

    # -----------------------------------------------------------------------------------------

    async def _put_together(self, messages: list[Message]) -> Sequence[PutResult]:
        if messages is self._together:
            self._putting = None  # later messages are another put
        return await self._face.put_messages(messages)


def moved(
    stored: StoredMessage, topic: str, queue_id: int, properties: Mapping[str, str]
) -> Message:
    """A stored message as it is put into another queue.

    Light queues and inner batches are RocketMQ's to write: a message that names them was stored by
    it, and here the copy would be refused because of them.
    """
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=stored.body,
        properties={name: text for name, text in properties.items() if name not in NEVER_SENT},
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_timestamp=stored.born_timestamp,
        born_host=stored.born_host,
        store_host=stored.store_host,
        reconsume_times=stored.reconsume_times,
    )


def _tier_of(store: object) -> TieredMessageStore:
    """The store of the chain that has the tier, consumer offsets and topics."""
    while not isinstance(store, TieredMessageStore):
        if store is None:
            raise InvalidConfigError("plugins: the broker needs the tiered one among them")
        store = getattr(store, "next_store", None)
    return store
