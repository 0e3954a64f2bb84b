"""Sends and pulls of the example broker, compared with the same puts and reads without a broker.

The broker runs in one process, its clients in another, over sockets of this machine; the library is
awaited in a single process. Messages have 300 bytes and three keys; the store flushes, and uploads
to a folder, as it does by default. A pull takes 32 messages:

    hot     from the broker's own log
    cold    from the tier, each for the first time; the files are in the system's memory
    cached  from the tier, once more

Only the ratios say something about the broker. Prints one table:

    python -m bench.broker
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench._messages import BODY, properties
from bench._remoting_load import PULLED, QUEUES, TOPIC
from bench._rows import Row, report, turns_row
from examples.broker.commands import Ask
from examples.broker.story import Client
from tieredstore.access.store import TieredMessageStore
from tieredstore.aio import AsyncTieredStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import Message
from tieredstore.model.values import GetStatus

# Connections, requests in flight of each, messages.
SENDS: Final = ((1, 1, 4_096), (1, 256, 16_384), (64, 1, 16_384), (64, 16, 16_384))
STORED: Final = 512 * QUEUES
PULLS: Final = (1, 64)
WAIT_SECONDS: Final = 120.0
TURNS: Final = 3

# Small files that are deleted as soon as the tier has them.
COLD: Final = {"commit_log_file_bytes": 1 << 20, "reserve_hours": 0, "expiry_interval_ms": 50}


@dataclass(frozen=True, slots=True)
class Place:
    """A store and its tier in a folder."""

    folder: Path
    is_cold: bool = False

    @property
    def store(self) -> str:
        return str(self.folder / "store")

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        local = {"store_path": self.store, **(COLD if self.is_cold else {})}
        tier = {
            "store_path": self.store,
            "broker_name": "bench",
            "provider": "posix",
            "path": str(self.folder / "tier"),
        }
        return {"broker": {"port": 0}, "local": local, "tieredstore": tier}


@contextmanager
def a_broker(place: Place) -> Iterator[int]:
    """Run a broker; yields its port."""
    place.folder.mkdir(exist_ok=True)
    config = place.folder / "broker.toml"
    lines = []
    for table, settings in place.settings.items():
        lines += [f"[{table}]", *(f"{name} = {json.dumps(settings[name])}" for name in settings)]
    config.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "examples.broker", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def make_topic(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        Client(connection).ask(
            Ask.UPDATE_AND_CREATE_TOPIC,
            topic=TOPIC,
            readQueueNums=QUEUES,
            writeQueueNums=QUEUES,
        )


def load_seconds(port: int, kind: str, connections: int, window: int, count: int) -> float:
    words = [str(word) for word in (port, kind, connections, window, count)]
    done = subprocess.run(
        [sys.executable, "-m", "bench._remoting_load", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def pulls_a_second(port: int, connections: int) -> float:
    return STORED / PULLED / load_seconds(port, "pull", connections, 1, STORED)


def until_files_are_gone(place: Place) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while len(list(Path(place.store, "commitlog").iterdir())) > 2:
        if time.monotonic() > until:
            raise TimeoutError("the local files stay")
        time.sleep(0.05)


# -- the library, without sockets ---------------------------------------------------------------


@asynccontextmanager
async def a_store(place: Place) -> AsyncIterator[AsyncTieredStore]:
    settings = place.settings
    with Runtime.threads() as runtime:
        local = LocalMessageStore(LocalConfig.from_mapping(settings["local"]), runtime)
        config = StoreConfig.from_mapping(settings["tieredstore"])
        store = TieredMessageStore(local, config, runtime=runtime)
        async with AsyncTieredStore(store) as face:
            yield face


async def puts(face: AsyncTieredStore, in_flight: int, count: int) -> float:
    messages = iter(
        [
            Message(
                topic=TOPIC,
                queue_id=number % QUEUES,
                body=BODY,
                properties=properties(number, unique=True),
            )
            for number in range(count)
        ]
    )

    async def producer() -> None:
        for message in messages:
            assert (await face.put_message(message)).stored

    started = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(in_flight)))
    return count / (time.perf_counter() - started)


async def reads(face: AsyncTieredStore, readers: int) -> float:
    """Reads a second, each of as many messages as a pull takes."""

    async def reader(first: int) -> None:
        for queue_id in range(first, QUEUES, readers):
            for offset in range(0, STORED // QUEUES, PULLED):
                found = await face.get_message(TOPIC, queue_id, offset, count_max=PULLED)
                assert found.status is GetStatus.FOUND

    started = time.perf_counter()
    await asyncio.gather(*(reader(first) for first in range(readers)))
    return STORED / PULLED / (time.perf_counter() - started)


# -- rows ---------------------------------------------------------------------------------------


def send_rows(folder: Path) -> Iterator[Row]:
    for number, (connections, window, count) in enumerate(SENDS):
        beside, ours = [], []
        for turn in range(TURNS):
            with a_broker(Place(folder / f"sends-{number}-{turn}")) as port:
                make_topic(port)
                ours.append(count / load_seconds(port, "send", connections, window, count))
            place = Place(folder / f"puts-{number}-{turn}")
            beside.append(asyncio.run(library_puts(place, connections * window, count)))
        what = f"sends, {named(connections)}, {window} under way each (awaited puts)"
        yield turns_row(what, beside, ours)


async def library_puts(place: Place, in_flight: int, count: int) -> float:
    async with a_store(place) as face:
        return await puts(face, in_flight, count)


def pull_rows(folder: Path) -> Iterator[Row]:
    for is_cold in (False, True):
        place = Place(folder / ("cold" if is_cold else "hot"), is_cold)
        with a_broker(place) as port:
            make_topic(port)
            load_seconds(port, "send", 64, 16, STORED)
            if is_cold:
                until_files_are_gone(place)
        for connections in PULLS:
            yield from rows_of_pulls(place, connections)


def rows_of_pulls(place: Place, connections: int) -> Iterator[Row]:
    """Each state once a turn from the broker, once from the library; a new process has no cache."""
    states = ("cold", "cached") if place.is_cold else ("hot",)
    ours, beside = [], []
    for _ in range(TURNS):
        with a_broker(place) as port:
            ours.append([pulls_a_second(port, connections) for _ in states])
        beside.append(asyncio.run(library_reads(place, connections, len(states))))
    columns = zip(states, zip(*beside, strict=True), zip(*ours, strict=True), strict=True)
    for state, awaited, found in columns:
        yield turns_row(f"{state} pulls, {named(connections)} (awaited reads)", awaited, found)


async def library_reads(place: Place, readers: int, times: int) -> list[float]:
    async with a_store(place) as face:
        return [await reads(face, readers) for _ in range(times)]


def named(connections: int) -> str:
    return "1 connection" if connections == 1 else f"{connections} connections"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as name:
        folder = Path(name)
        return report("broker", [*send_rows(folder), *pull_rows(folder)])


if __name__ == "__main__":
    sys.exit(main())
