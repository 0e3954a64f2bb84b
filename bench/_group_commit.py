"""Writers that wait for the disk together, and what one thread does without a store.

The plain way writes records of the same size to a file that has its blocks, and syncs each of them.
"""

from __future__ import annotations

import os
import tempfile
import threading

from bench._messages import BATCH_MESSAGES, a_second, batches
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore

WRITERS = 16
SYNCED_PUTS = 1_600
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
