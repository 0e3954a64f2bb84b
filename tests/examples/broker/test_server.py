"""What hostile and vanished clients cost the server, over real sockets in the test's own loop."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

import pytest

from examples.broker import server as server_module
from examples.broker.commands import Answer, Ask, Code, Request
from examples.broker.frames import Command
from examples.broker.server import Connection, Handler, Limits, Server
from tests.examples.broker.broker_kit import until
from tests.examples.broker.remoting import Reply, json_frame, read_frame

SECONDS = 30.0


@asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler], on_look: Callable[[], None] = lambda: None, **limits: float
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(
        handlers,
        Limits(**limits),  # type: ignore[arg-type]
        on_leave=lambda connection: None,
        on_look=on_look,
    )
    port = await server.bind("127.0.0.1", 0)
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(0)


class Client:
    """One connection that speaks in frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def ask(self, opaque: int, code: int = 1, body: bytes = b"", **fields: str) -> None:
        self.writer.write(json_frame(code, opaque, 0, fields, body))

    async def answer(self) -> Reply:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return read_frame(await self._reader.readexactly(size))


def run(body: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body, SECONDS)

    asyncio.run(bounded())


def test_a_client_that_does_not_read_is_told_nothing_more() -> None:
    """A heartbeat tells all clients of a group, so a small request could cost megabytes."""

    async def body() -> None:
        async with serving({}, unsent_bytes=1_000) as (server, port):
            client = await Client.to(port)
            await until(lambda: bool(server.connections))
            (connection,) = server.connections

            def told() -> bool:
                connection.tell(Ask.CONSUMER_IDS_CHANGED, consumerGroup="g" * 100)
                return connection.is_stalled

            await until(told)
            held = held_bytes(connection)
            assert all(told() for _ in range(1_000))
            assert held_bytes(connection) == held
            client.writer.close()

    run(body())


def held_bytes(connection: Connection) -> int:
    transport = connection._transport
    assert transport is not None
    return transport.get_write_buffer_size() + connection._unsent_bytes


def test_frames_that_are_never_finished_are_bounded_together() -> None:
    """Each of them may be long, and there may be a thousand of them."""

    async def body() -> None:
        handlers = {1: lambda request: Answer()}
        async with serving(handlers, pending_bytes=1 << 20) as (server, port):
            small, *others = [await Client.to(port) for _ in range(12)]
            whole = json_frame(1, 7, 0, {}, b"small")
            small.writer.write(whole[:-1])
            for other in others:
                other.writer.write(struct.pack(">i", 400_000) + bytes(200_000))
            await until(lambda: len(server.connections) == 6)
            assert sum(each.held_bytes for each in server.connections) <= 1 << 20
            small.writer.write(whole[-1:])
            assert (await small.answer()).opaque == 7
            for client in others:
                client.writer.transport.abort()
            await until(lambda: len(server.connections) == 1)
            assert server._held_bytes == 0
            for client in (small, *others):
                client.writer.close()

    run(body())


def test_fields_of_unanswered_requests_count_as_their_bodies_do() -> None:
    async def body() -> None:
        over = asyncio.Event()

        async def waits(request: Request) -> Answer:
            await over.wait()
            return Answer()

        async with serving({1: waits}, pending_bytes=1 << 20) as (_, port):
            client = await Client.to(port)
            for opaque in range(10):
                client.ask(opaque, pad="x" * 200_000)
            first = await client.answer()
            assert (first.opaque, first.code) == (5, Code.SYSTEM_BUSY)
            over.set()
            client.writer.close()

    run(body())


def test_nothing_is_read_for_a_client_that_is_gone() -> None:
    """Two thousand pulls may wait for it to read."""

    async def body() -> None:
        reads, waits = [], []

        async def pull(request: Request) -> Answer:
            waits.append(1)
            async with request.connection.room():
                reads.append(1)
            return Answer()

        async with serving({1: pull}) as (server, port):
            client = await Client.to(port)
            await until(lambda: bool(server.connections))
            (connection,) = server.connections
            connection.pause_writing()
            asked = server.answer(Request(Command(code=1), connection))
            waiting = asyncio.ensure_future(cast("Awaitable[Answer]", asked))
            await until(lambda: bool(waits))
            connection.abort()
            await waiting
            assert not reads
            client.writer.close()

    run(body())


def test_an_error_in_a_look_ends_no_later_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LOOK_SECONDS", 0)
    looks = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise RuntimeError("once")

    async def body() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with serving({}, look):
            await until(lambda: len(looks) > 3)
        assert len(told) == 1

    run(body())
