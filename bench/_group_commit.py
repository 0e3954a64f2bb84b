"""Puts that wait for the disk together: from threads, and from asyncio through a tier.

The plain way writes records of the same size to a file that has its blocks already, and syncs each.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time

from bench._messages import BATCH_MESSAGES, a_second, batches
from tieredstore.access.store import TieredMessageStore
from tieredstore.aio import AsyncTieredStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import PutStatus

WRITERS = 16
SYNCED_PUTS = 1_600
IN_FLIGHT = 1_000
AWAITED_PUTS = 20_000
RECORD = bytes(450)


def syncs_a_second() -> float:
    """One `pwrite` and one `fdatasync` a record."""
    with tempfile.TemporaryFile() as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, LocalConfig().commit_log_file_bytes)
        os.fsync(descriptor)

        def work() -> None:
            for number in range(SYNCED_PUTS):
                os.pwrite(descriptor, RECORD, number * len(RECORD))
                os.fdatasync(descriptor)

        return a_second(work, SYNCED_PUTS)


def puts_a_second(writers: int) -> float:
    """Messages into a store with sync flush, each acknowledged when it is on disk."""
    messages = [
        message for batch in batches(SYNCED_PUTS // BATCH_MESSAGES + 1) for message in batch
    ]
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        config = LocalConfig(store_path=folder, flush_disk_type="SYNC_FLUSH")
        store = LocalMessageStore(config, runtime)
        store.load()
        store.start()
        store.put_message(messages[0])
        share = SYNCED_PUTS // writers

        def write(writer: int) -> None:
            for message in messages[writer * share : (writer + 1) * share]:
                assert store.put_message(message).stored

        def work() -> None:
            threads = [threading.Thread(target=write, args=(each,)) for each in range(writers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        speed = a_second(work, share * writers)
        store.shutdown()
        return speed


def awaited_puts_a_second(in_flight: int, count: int) -> float:
    """Awaited puts through a store with a tier, `in_flight` at a time, each on disk when done.

    The upload to a folder runs meanwhile.
    """
    sent = [message for batch in batches(-(-count // BATCH_MESSAGES)) for message in batch][:count]
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        local = LocalMessageStore(
            LocalConfig(store_path=folder, flush_disk_type="SYNC_FLUSH"), runtime
        )
        config = StoreConfig(provider="posix", path=f"{folder}/tier", store_path=folder)
        store = TieredMessageStore(local, config, runtime=runtime)

        async def work() -> float:
            async with AsyncTieredStore(store) as face:
                await face.put_message(sent[0])
                messages = iter(sent)

                async def producer() -> None:
                    for message in messages:
                        assert (await face.put_message(message)).status is PutStatus.PUT_OK

                started = time.perf_counter()
                await asyncio.gather(*(producer() for _ in range(in_flight)))
                return count / (time.perf_counter() - started)

        return asyncio.run(work())
