"""Pulls that wait, seen from inside the broker; clients are real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from examples.broker.broker import Broker, BrokerConfig
from tests.examples.broker.broker_kit import until
from tests.examples.broker.test_server import Client, run
from tieredstore import StoreConfig
from tieredstore.local import LocalConfig

WAIT_MS = 20_000


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Broker]:
    path = str(folder / "store")
    tier = StoreConfig(store_path=path, provider="memory")
    broker = Broker(BrokerConfig(port=0), LocalConfig(store_path=path), tier)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


def begin_pull(client: Client, opaque: int) -> None:
    client.ask(
        opaque,
        11,
        consumerGroup="g",
        topic="TBW102",
        queueId="0",
        queueOffset="0",
        sysFlag="6",
        suspendTimeoutMillis=str(WAIT_MS),
        subscription="*",
    )


def test_pulls_of_a_client_that_is_gone_wait_no_longer(tmp_path: Path) -> None:
    """They would hold memory and places for a minute, and read messages for nobody."""

    async def body() -> None:
        async with opened(tmp_path) as broker:
            pulls, now = broker.pulls, asyncio.get_running_loop().time
            assert pulls is not None
            gone, stays = await Client.to(broker.port), await Client.to(broker.port)
            for opaque in range(50):
                begin_pull(gone, opaque)
            begin_pull(stays, 50)
            await until(lambda: pulls.waiting == 51)
            began = now()
            gone.writer.transport.abort()
            await until(lambda: pulls.waiting == 1)
            assert now() - began < WAIT_MS / 2_000
            pulls.end()
            assert (await stays.answer()).opaque == 50
            stays.writer.close()

    run(body())
