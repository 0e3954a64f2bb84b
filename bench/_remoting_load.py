"""Clients that send or pull as fast as they are answered, in their own process.

    python -m bench._remoting_load PORT send|pull CONNECTIONS WINDOW COUNT

A connection has WINDOW requests in flight. COUNT is the number of messages: all that are sent, or
all that the queues have; a pull takes 32, and each connection pulls its share of the queues. The
bytes of requests are made first. It prints how many seconds the answers took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct
from typing import cast

from bench._messages import BODY, properties
from examples.broker.commands import Ask
from examples.broker.frames import Command, encode

TOPIC = "TopicTest"
QUEUES = 64
PULLED = 32
_LENGTHS = Struct(">II")


def send_frame(number: int, queue_id: int) -> bytes:
    found = {**properties(number, unique=True), "WAIT": "true"}
    text = "".join(f"{name}\x01{value}\x02" for name, value in found.items())
    fields = {
        "a": "producers",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": text,
        "j": "0",
        "m": "false",
    }
    return encode(Command(code=Ask.SEND_MESSAGE_V2, opaque=number, fields=fields, body=BODY))


def pull_frame(number: int, queue_id: int, offset: int) -> bytes:
    fields = {
        "consumerGroup": "consumers",
        "topic": TOPIC,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(PULLED),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
    }
    return encode(Command(code=Ask.PULL_MESSAGE, opaque=number, fields=fields))


def requests(kind: str, connections: int, count: int) -> list[deque[bytes]]:
    """The requests of each connection."""
    if kind == "send":
        return [
            deque(send_frame(number, number % QUEUES) for number in range(at, count, connections))
            for at in range(connections)
        ]
    each = count // QUEUES
    return [
        deque(
            pull_frame(offset, queue_id, offset)
            for queue_id in range(at, QUEUES, connections)
            for offset in range(0, each, PULLED)
        )
        for at in range(connections)
    ]


class Client(asyncio.Protocol):
    """One connection; it is done when all its requests have good answers."""

    def __init__(self, waiting: deque[bytes], window: int, done: Callable[[], None]) -> None:
        self._waiting = waiting
        self._window = window
        self._done = done
        self._left = len(waiting)
        self._held = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def begin(self) -> None:
        self._ask(self._window)

    def data_received(self, data: bytes) -> None:
        held = self._held
        held += data
        at = answered = 0
        while len(held) - at >= _LENGTHS.size:
            size, word = _LENGTHS.unpack_from(held, at)
            if len(held) - at < 4 + size:
                break
            header = held[at + 8 : at + 8 + (word & 0xFFFFFF)]
            if b'"code":0,' not in header:
                sys.exit(f"refused: {header.decode()}")
            at += 4 + size
            answered += 1
        del held[:at]
        self._left -= answered
        if not self._left:
            self._done()
        self._ask(answered)

    def _ask(self, count: int) -> None:
        some: Iterable[bytes] = (
            self._waiting.popleft() for _ in range(min(count, len(self._waiting)))
        )
        self._transport.write(b"".join(some))


async def work(port: int, kind: str, connections: int, window: int, count: int) -> float:
    loop = asyncio.get_running_loop()
    left = connections
    all_done = loop.create_future()

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            all_done.set_result(None)

    clients = []
    for waiting in requests(kind, connections, count):
        _, client = await loop.create_connection(
            lambda waiting=waiting: Client(waiting, window, done),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        clients.append(client)
    started = time.perf_counter()
    for client in clients:
        client.begin()
    await all_done
    return time.perf_counter() - started


def main() -> None:
    kind = sys.argv[2]
    port, connections, window, count = (int(sys.argv[at]) for at in (1, 3, 4, 5))
    print(asyncio.run(work(port, kind, connections, window, count)))


if __name__ == "__main__":
    main()
