"""A store with a tier behind it, in one folder: put, offload, and find it again in the tier.

python examples/quickstart.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile

from tieredstore import Message, Runtime, StorageLevel, StoreConfig, TieredMessageStore
from tieredstore.local import LocalConfig, LocalMessageStore


def main(folder: str) -> None:
    runtime = Runtime.threads()
    # A broker with its own message store wraps that one: see the protocol MessageStore.
    # Small files: those of RocketMQ's sizes reserve 1.1 GB.
    small = LocalConfig(store_path=f"{folder}/local", commit_log_file_bytes=1 << 20)
    local = LocalMessageStore(small, runtime)
    config = StoreConfig(
        broker_name="quickstart",
        provider="posix",
        path=f"{folder}/tier",
        store_path=f"{folder}/local",
        storage_level=StorageLevel.FORCE,  # read from the tier even what the local store has
    )
    with runtime, TieredMessageStore(local, config, runtime=runtime) as store:
        for number in range(10):
            message = Message(
                topic="orders",
                queue_id=0,
                body=f"order {number}".encode(),
                properties={"TAGS": "new", "KEYS": f"order-{number}"},
            )
            result = store.put_message(message)
            assert result.stored, result.reason
        store.flush()  # now, instead of when a batch is due
        print(store.committed_offset("orders", 0), "messages are in the tier")

        page = store.get_message("orders", 0, 7)
        print("from offset 7 on:", [each.body for each in page.messages])
        found = store.query_message("orders", "order-3")
        print("by key:", [each.body for each in found.messages])
        time = store.store_time("orders", 0, 5)
        assert time is not None
        print("stored at the time of offset 5: from offset", end=" ")
        print(store.offset_by_time("orders", 0, time))


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(directory)
