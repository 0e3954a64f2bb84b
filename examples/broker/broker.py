"""The whole broker: its stores, its tables, and which handler gets which request."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.broker.commands import Ask
from examples.broker.consume import Pulls
from examples.broker.delays import Delays
from examples.broker.groups import Groups
from examples.broker.produce import Sends
from examples.broker.query import Queries
from examples.broker.receive import Retries
from examples.broker.routes import Routes
from examples.broker.schedule import Schedule
from examples.broker.server import Connection, Handler, Limits, Server
from examples.broker.storage import Storage
from examples.broker.tables import Topics
from tieredstore import ConsumerOffsets, Host, InvalidConfigError, StoreConfig
from tieredstore.driver.metrics import Metrics
from tieredstore.local import LocalConfig
from tieredstore.local.config import DelayLevels

if TYPE_CHECKING:
    from examples.broker.grpc_front import GrpcFront

log = logging.getLogger(__name__)

END_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Where the broker is and what it allows; the stores have their own settings."""

    host: str = "127.0.0.1"  # where it listens
    port: int = 9876  # for clients of the name server and of the broker
    address: str = ""  # the IPv4 address that clients are told; empty: `host`
    creates_topics: bool = True
    default_queues: int = 8
    grpc_port: int = -1  # for clients of gRPC; -1: none
    attempts_max: int = 17  # of gRPC consumers at a message; then it is a dead letter
    retry_seconds: float = 1.0  # before the second attempt; doubled before each later one
    fifo_groups: str = ""  # that consume in order over gRPC; comma-separated
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        try:
            told = ipaddress.IPv4Address(self.told_host)
        except ValueError as error:
            raise InvalidConfigError(
                f"address: {self.told_host!r:.60} is no IPv4 address"
            ) from error
        if told.is_unspecified:
            raise InvalidConfigError(f"address: no client can reach {told}; name one it can")
        if not 0 <= self.port <= 65_535:
            raise InvalidConfigError(f"port: {self.port} is none")
        if not -1 <= self.grpc_port <= 65_535:
            raise InvalidConfigError(f"grpc_port: {self.grpc_port} is none")
        if self.attempts_max < 1 or not 0 <= self.retry_seconds <= 3_600:
            raise InvalidConfigError(
                f"attempts_max, retry_seconds: {self.attempts_max}, {self.retry_seconds} are none"
            )
        if not 1 <= self.default_queues <= 1_024:
            raise InvalidConfigError(f"default_queues: {self.default_queues} is not 1 to 1024")

    @property
    def told_host(self) -> str:
        return self.address or self.host


class Broker:
    """Serves clients from `open` to `close`."""

    def __init__(
        self,
        config: BrokerConfig,
        local: LocalConfig,
        tier: StoreConfig,
        *,
        metrics: Metrics | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._config = config
        self._tier = tier
        self._folder = Path(local.store_path) / "config"
        self._clock_ms = clock_ms
        self._storage = Storage(local, tier, metrics)
        self._schedule = Schedule(DelayLevels(local.message_delay_levels), clock_ms)
        self._delays = Delays(self._storage, self._schedule, self._folder, clock_ms)
        self._storage.store.add_retention_guard(self._delays.needed_from)
        self._delivering: asyncio.Task[None] | None = None
        self.port = config.port
        self.server: Server | None = None
        self.pulls: Pulls | None = None
        self.grpc: GrpcFront | None = None
        self.grpc_port = -1

    async def open(self) -> None:
        """Load the stores and listen. Raises what they raise, and then leaves nothing open."""
        storage = self._storage
        await asyncio.to_thread(storage.open)
        try:
            await self._listen()
        except BaseException:
            if self.grpc is not None:
                await self.grpc.stop(0)
            await asyncio.to_thread(storage.close)
            raise

    async def close(self) -> None:
        """Answer the requests in flight, upload what waits, and end."""
        if self.pulls is not None:
            self.pulls.end()
        if self.grpc is not None:
            await self.grpc.stop(END_SECONDS)
        if self.server is not None:
            await self.server.stop(END_SECONDS)
        self._delays.end()
        if self._delivering is not None:
            await asyncio.wait([self._delivering], timeout=END_SECONDS)
            self._delivering.cancel()
            await asyncio.gather(self._delivering, return_exceptions=True)
        await asyncio.to_thread(self._storage.close)

    # -----------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        config, storage = self._config, self._storage
        loop = asyncio.get_running_loop()
        topics = Topics(
            storage, creates=config.creates_topics, default_queues=config.default_queues
        )
        topics.found(await storage.call(storage.store.queues))
        offsets = storage.tier.consumer_offsets
        self._delays.load()
        if config.grpc_port >= 0:
            self.grpc = self._grpc_front(topics, offsets)
            self.grpc_port = await self.grpc.start(config.host, config.grpc_port)
        groups = Groups(topics, loop.time)
        handlers: dict[int, Handler] = {}
        pulls = self.pulls = Pulls(storage, topics, offsets, groups)

        def left(connection: Connection) -> None:
            groups.left(connection)
            pulls.left(connection)

        server = self.server = Server(handlers, config.limits, on_leave=left, on_look=groups.look)
        self.port = await server.bind(config.host, config.port)
        address = f"{config.told_host}:{self.port}"
        host = Host(ipaddress.IPv4Address(config.told_host).packed, self.port)
        queries = Queries(storage)
        sends = Sends(storage, self._schedule, topics, queries, host)
        routes = Routes(
            topics,
            address=address,
            broker=self._tier.broker_name,
            cluster=self._tier.cluster_name,
        )
        handlers.update(_handlers(sends, pulls, queries, groups, routes))
        await server.start()
        self._delivering = asyncio.create_task(self._delays.run(), name="delays")

    def _grpc_front(self, topics: Topics, offsets: ConsumerOffsets) -> GrpcFront:
        from examples.broker.grpc_front import GrpcFront

        config = self._config
        return GrpcFront(
            self._storage,
            self._schedule,
            topics,
            offsets,
            broker=self._tier.broker_name,
            host=config.told_host,
            retries=Retries(attempts_max=config.attempts_max, first_seconds=config.retry_seconds),
            fifo_groups=frozenset(config.fifo_groups.replace(",", " ").split()),
        )


def _handlers(
    sends: Sends, pulls: Pulls, queries: Queries, groups: Groups, routes: Routes
) -> Mapping[int, Handler]:
    return {
        Ask.SEND_MESSAGE: sends.send,
        Ask.SEND_MESSAGE_V2: sends.send_short,
        Ask.SEND_BATCH_MESSAGE: sends.send_short,
        Ask.CONSUMER_SEND_BACK: sends.send_back,
        Ask.PULL_MESSAGE: pulls.pull,
        Ask.LITE_PULL_MESSAGE: pulls.pull,
        Ask.QUERY_CONSUMER_OFFSET: pulls.consumer_offset,
        Ask.UPDATE_CONSUMER_OFFSET: pulls.commit,
        Ask.CHECK_CLIENT_CONFIG: pulls.check_filter,
        Ask.GET_MIN_OFFSET: queries.min_offset,
        Ask.GET_MAX_OFFSET: queries.max_offset,
        Ask.SEARCH_OFFSET_BY_TIMESTAMP: queries.offset_by_time,
        Ask.GET_EARLIEST_STORE_TIME: queries.earliest_time,
        Ask.QUERY_MESSAGE: queries.by_key,
        Ask.VIEW_MESSAGE_BY_ID: queries.by_id,
        Ask.HEART_BEAT: groups.heartbeat,
        Ask.UNREGISTER_CLIENT: groups.unregister,
        Ask.GET_CONSUMERS_OF_GROUP: groups.consumers,
        Ask.LOCK_BATCH_MQ: groups.lock,
        Ask.UNLOCK_BATCH_MQ: groups.unlock,
        Ask.GET_ROUTE_OF_TOPIC: routes.route,
        Ask.GET_CLUSTER_INFO: routes.cluster,
        Ask.GET_ALL_TOPICS: routes.topics,
        Ask.UPDATE_AND_CREATE_TOPIC: routes.create,
    }
