"""Pulls that wait and consumers that live, seen from inside; clients are real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from examples.broker.broker import Broker, BrokerConfig
from examples.broker.frames import FRAME_BYTES_MAX
from examples.broker.groups import CLIENT_CHARACTERS_MAX, CONSUMERS_MAX
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


async def beat(client: Client, group: str, name: str, expression: str = "*") -> int:
    subscription = {"topic": "T", "subString": expression}
    data = {"groupName": group, "subscriptionDataSet": [subscription]}
    client.ask(1, 34, json.dumps({"clientID": name, "consumerDataSet": [data]}).encode())
    return await code(client)


async def leave(client: Client, group: str, name: str) -> int:
    client.ask(1, 35, consumerGroup=group, clientID=name)
    return await code(client)


async def code(client: Client) -> int:
    """The code of the next answer."""
    while True:
        found = await client.answer()
        if found.flag & 1:
            return found.code


def test_consumers_of_all_groups_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection may have any number of them, in each group."""
    monkeypatch.setattr("examples.broker.groups.CONSUMERS_MAX", 4)

    async def body() -> None:
        async with opened(tmp_path) as broker:
            client, other = await Client.to(broker.port), await Client.to(broker.port)
            names = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("b", "3"), ("c", "1")]
            assert [await beat(client, *each) for each in names] == [0, 0, 0, 0, 1, 1]
            assert await beat(client, "a", "1") == 0
            assert await leave(client, "a", "1") == 0
            assert [await beat(client, *each) for each in (("c", "1"), ("a", "1"))] == [0, 1]
            client.writer.transport.abort()
            assert broker.server is not None
            await until(lambda: len(broker.server.connections) == 1)  # type: ignore[union-attr]
            assert [await beat(other, *each) for each in names] == [0, 0, 0, 0, 1, 1]
            other.writer.close()

    run(body())


def test_the_consumers_of_a_group_fit_in_one_answer() -> None:
    assert CONSUMERS_MAX * (CLIENT_CHARACTERS_MAX + len('"",')) < FRAME_BYTES_MAX


def test_what_all_groups_want_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.broker.groups.WANTED_CHARACTERS_MAX", 1_000)

    async def body() -> None:
        async with opened(tmp_path) as broker:
            client = await Client.to(broker.port)
            assert await beat(client, "a", "1", "x" * 600) == 0
            assert await beat(client, "b", "1", "x" * 600) == 1
            assert await beat(client, "a", "1", "y" * 600) == 0
            assert await beat(client, "a", "1", "x") == 0
            assert await beat(client, "b", "1", "x" * 600) == 0
            assert await leave(client, "b", "1") == 0
            assert await beat(client, "c", "1", "x" * 600) == 0
            client.writer.close()

    run(body())
