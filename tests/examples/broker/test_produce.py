"""What producers may make a broker hold, without a network."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from examples.broker.commands import Code, RefusedError, Request
from examples.broker.frames import Command
from examples.broker.produce import BATCHES_BYTES_MAX, Sends
from examples.broker.query import Queries
from examples.broker.schedule import Schedule
from examples.broker.storage import Storage
from examples.broker.tables import Topics
from tests.examples.broker.broker_kit import until
from tieredstore import Host, Message, PutResult, StoreConfig
from tieredstore.local import LocalConfig
from tieredstore.local.config import DelayLevels

HOST = Host(b"\x7f\x00\x00\x01", 1)
FIELDS = {"topic": "Packs", "queueId": "0", "batch": "true"}


def batch(*bodies: bytes) -> bytes:
    return b"".join(
        struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + b"\0\0"
        for body in bodies
    )


@pytest.mark.parametrize(
    ("sys_flag", "body"),
    [("1", zlib.compress(batch(*[bytes(3 << 20)] * 5))), ("0", batch(*[b"x"] * 4_096))],
)
def test_batches_that_wait_for_the_store_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sys_flag: str, body: bytes
) -> None:
    path = str(tmp_path)
    storage = Storage(LocalConfig(store_path=path), StoreConfig(store_path=path, provider="memory"))
    storage.open()
    held = 0

    async def run() -> None:
        nonlocal held
        go_on = asyncio.Event()

        async def put_late(messages: Sequence[Message]) -> Sequence[PutResult]:
            nonlocal held
            held += sum(len(each.body) + 1_024 for each in messages)
            await go_on.wait()
            return list(await put(messages[:1])) * len(messages)

        schedule = Schedule(DelayLevels("1s"), lambda: 0)
        sends = Sends(storage, schedule, Topics(storage), Queries(storage), HOST)
        put = storage.put
        monkeypatch.setattr(storage, "put", put_late)
        command = Command(code=10, fields={**FIELDS, "sysFlag": sys_flag}, body=body)
        request = Request(command, cast("Any", SimpleNamespace(host=HOST)))
        waiting = [asyncio.create_task(sends.send(request)) for _ in range(50)]
        await until(lambda: held > 0 and any(each.done() for each in waiting))
        go_on.set()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        refused = [each for each in ends if isinstance(each, RefusedError)]
        assert {each.code for each in refused} == {Code.SYSTEM_BUSY}
        assert 0 < len(refused) < 50
        assert held <= BATCHES_BYTES_MAX
        monkeypatch.undo()
        assert (await sends.send(request)).code is Code.SUCCESS

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        storage.close()
