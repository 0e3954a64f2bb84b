"""`make demo`: messages go into a local store with a tier behind it; then the local store is gone.

python examples/demo.py [--provider memory | posix] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tieredstore import (
    GetStatus,
    Message,
    Runtime,
    StorageLevel,
    StoreConfig,
    TieredMessageStore,
    TieredReader,
)
from tieredstore.codec.message import decode_message
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.model.values import QueueKey

TOPICS = ("orders", "payments")
MESSAGES, BATCH, SAMPLE = 20_000, 500, 2_000


def messages() -> list[Message]:
    return [
        Message(
            topic=TOPICS[number % 2],
            queue_id=number // 2 % 2,
            body=body_of(number),
            properties={"TAGS": f"tag-{number % 3}", "KEYS": f"key-{number}"},
        )
        for number in range(MESSAGES)
    ]


def body_of(number: int) -> bytes:
    return f"message {number} ".encode() * 20


def fill(store: LocalMessageStore) -> None:
    prepared = messages()
    for start in range(0, MESSAGES, BATCH):
        assert store.put_messages(prepared[start : start + BATCH]).all_ok
    store.flush()


def read_at_random(store: TieredMessageStore | TieredReader, queues: list[QueueKey]) -> None:
    dice = random.Random(7)
    for _ in range(SAMPLE):
        topic, queue_id = dice.choice(queues)
        offset = dice.randrange(MESSAGES // len(queues))
        found = store.get_message(topic, queue_id, offset, count_max=1)
        assert found.status is GetStatus.FOUND
        message = decode_message(found.messages[0].record)
        assert (message.topic, message.queue_id) == (topic, queue_id)
        assert message.queue_offset == offset


def find_by_key(store: TieredMessageStore | TieredReader) -> None:
    dice = random.Random(8)
    for _ in range(SAMPLE):
        number = dice.randrange(MESSAGES)
        found = store.query_message(TOPICS[number % 2], f"key-{number}")
        assert found.complete
        assert [decode_message(each.record).body for each in found.messages] == [body_of(number)]


def find_by_time(reader: TieredReader, queues: list[QueueKey]) -> None:
    for topic, queue_id in queues:
        middle = reader.store_time(topic, queue_id, MESSAGES // len(queues) // 2)
        assert middle is not None
        offset = reader.offset_by_time(topic, queue_id, middle)
        assert offset is not None
        assert reader.store_time(topic, queue_id, offset) == middle


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    print(f"  {what:<64} {time.perf_counter() - started:6.2f} s")


def show(root: Path) -> None:
    print("\nwhat is left on disk, the local store's files deleted:")
    for file in sorted(root.rglob("*")):
        if file.is_file():
            print(f"  {file.stat().st_size:>13,}  {file.relative_to(root)}")


def run(provider: str, directory: Path) -> None:
    local = LocalConfig(
        store_path=str(directory / "local"),
        commit_log_file_bytes=16 << 20,
        index_slot_count=100_000,
        index_item_count=400_000,
    )
    config = StoreConfig(
        broker_name="demo-broker",
        provider=provider,
        path=str(directory / "tier"),
        store_path=str(directory / "store"),
        storage_level=StorageLevel.FORCE,  # read from the tier also what the local store has
        index_slot_count=100_000,
        index_item_count=400_000,
    )
    with Runtime.threads() as runtime:
        next_store = LocalMessageStore(local, runtime)
        with TieredMessageStore(next_store, config, runtime=runtime) as store:
            with timed(f"{MESSAGES:,} messages put into the local store"):
                fill(next_store)
            with timed("all of them uploaded, indexed, sealed"):
                assert store.flush(seal=True)
            queues = list(store.queues())
            with timed(f"{SAMPLE:,} read from the tier at random offsets"):
                read_at_random(store, queues)
            with timed(f"{SAMPLE:,} found in the tier by key"):
                find_by_key(store)
            assert store.health().ok
    shutil.rmtree(local.store_path)
    if provider == "memory":
        return  # the tier ends with this process
    with TieredReader.open(config) as reader:
        with timed(f"{SAMPLE:,} read with no broker beside the tier"):
            read_at_random(reader, queues)
        with timed(f"{SAMPLE:,} found by key, {len(queues)} by time"):
            find_by_key(reader)
            find_by_time(reader, queues)
    show(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", default="posix", choices=["memory", "posix"])
    parser.add_argument("--keep", type=Path, help="write here and leave it")
    arguments = parser.parse_args()
    print(f"a local store, and a tier on the {arguments.provider} provider behind it\n")
    if arguments.keep:
        run(arguments.provider, arguments.keep)
        return
    with tempfile.TemporaryDirectory(prefix="tieredstore-demo-") as directory:
        run(arguments.provider, Path(directory))


if __name__ == "__main__":
    main()
