"""A tiny broker on asyncio: its messages are in a local store with a tier behind it.

    python examples/asyncio_broker.py [--port 9876] [--store DIRECTORY]

It speaks lines of JSON; `nc 127.0.0.1 9876` is a client:

    {"put": "orders", "queue": 0, "key": "order-1", "body": "hello"}
    {"pull": "orders", "queue": 0, "offset": 0, "wait": 15}
    {"find": "orders", "key": "order-1"}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence
from typing import Any

from tieredstore import Message, Runtime, StoreConfig, TieredMessageStore, TieredStoreError
from tieredstore.aio import AsyncTieredStore
from tieredstore.codec.message import decode_message
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.model.messages import SelectedMessage

LINE_BYTES_MAX = 4 << 20


class Broker:
    """Answers the requests of a connection one by one, and many connections at once."""

    def __init__(self, store: AsyncTieredStore) -> None:
        self._store = store
        self._serving: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            async for line in reader:
                writer.write(json.dumps(await self._told(line)).encode() + b"\n")
                await writer.drain()
        except ValueError:
            writer.write(b'{"error": "a line that is too long"}\n')
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or the broker ends
        finally:
            self._serving.discard(task)
            writer.close()

    async def end(self) -> None:
        """End all connections: a client may be silent, or wait for a message."""
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)

    async def _told(self, line: bytes) -> dict[str, Any]:
        try:
            return await self._answer(json.loads(line))
        except (TieredStoreError, KeyError, RecursionError, TypeError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        match asked:
            case {"put": topic, "queue": queue_id, "body": str(body)}:
                properties = {"KEYS": asked["key"]} if "key" in asked else {}
                message = Message(
                    topic=topic, queue_id=queue_id, body=body.encode(), properties=properties
                )
                result = await self._store.put_message(message)
                return {"status": result.status.name, "offset": result.queue_offset}
            case {"pull": topic, "queue": queue_id, "offset": offset}:
                # If the answer is in memory this does not leave the loop's own thread.
                page = await self._store.get_message(topic, queue_id, offset)
                at_end = not page.messages and page.next_offset == offset
                seconds = asked.get("wait", 0)
                if at_end and await self._store.arrival(topic, queue_id, offset, timeout=seconds):
                    page = await self._store.get_message(topic, queue_id, offset)
                told = {"status": page.status.name, "next": page.next_offset}
                return {**told, "bodies": bodies(page.messages)}
            case {"find": topic, "key": key}:
                found = await self._store.query_message(topic, key)
                return {"complete": found.complete, "bodies": bodies(found.messages)}
        return {"error": "want put, pull or find"}


def bodies(messages: Sequence[SelectedMessage]) -> list[str]:
    return [decode_message(each.record).body.decode() for each in messages]


async def main() -> None:
    parser = argparse.ArgumentParser(description="A tiny broker on asyncio.")
    parser.add_argument("--port", type=int, default=9876)
    parser.add_argument(
        "--store", default="asyncio-broker-store", help="folder of its store and its tier"
    )
    options = parser.parse_args()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    config = StoreConfig(
        broker_name="asyncio-broker",
        provider="posix",
        path=f"{options.store}/tier",
        store_path=options.store,
    )
    with Runtime.threads() as runtime:
        # Otherwise each file of its log reserves a GiB, as RocketMQ's do.
        small = LocalConfig(store_path=options.store, commit_log_file_bytes=16 << 20)
        local = LocalMessageStore(small, runtime)
        store = TieredMessageStore(local, config, runtime=runtime)
        async with AsyncTieredStore(store) as opened:
            broker = Broker(opened)
            server = await asyncio.start_server(
                broker.serve, "127.0.0.1", options.port, limit=LINE_BYTES_MAX
            )
            host, port = server.sockets[0].getsockname()
            print(
                f"listening on {host}:{port}; Ctrl-C uploads what is left, and ends it",
                flush=True,
            )
            await stopping.wait()
            server.close()
            await broker.end()
    print("ended")


if __name__ == "__main__":
    asyncio.run(main())
