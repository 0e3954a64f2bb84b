"""`make demo`: messages go into a local store, from there to a tier, and are read back from both.

python examples/demo.py [--provider memory | posix] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tieredstore import (
    Message,
    MetadataStore,
    QueueRecord,
    Runtime,
    SegmentProvider,
    SegmentRecord,
    SegmentType,
    StoreConfig,
)
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_unit, encode_units
from tieredstore.codec.record_fields import patch_log_offset, peek_store_timestamp
from tieredstore.driver import registry
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.values import QueueKey

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
BROKER = "demo-broker"
MESSAGES, BATCH, SAMPLE = 20_000, 500, 2_000


def messages() -> list[Message]:
    return [
        Message(
            topic=("orders", "payments")[number % 2],
            queue_id=number // 2 % 2,
            body=f"message {number} ".encode() * 20,
            properties={"TAGS": f"tag-{number % 3}", "KEYS": f"key-{number}"},
        )
        for number in range(MESSAGES)
    ]


def fill(store: LocalMessageStore, all_messages: list[Message]) -> None:
    for start in range(0, MESSAGES, BATCH):
        assert store.put_messages(all_messages[start : start + BATCH]).all_ok
    store.flush()


class Uploader:
    """Copies one queue after the other, a batch at a time: the log first, then what names it."""

    def __init__(self, store: LocalMessageStore, provider: SegmentProvider) -> None:
        self._store = store
        self._provider = provider

    def upload(self, key: QueueKey, catalogue: MetadataStore) -> int:
        path = queue_path(BROKER, *key)
        catalogue.add_topic(key.topic)
        catalogue.put(QueueRecord(broker_name=BROKER, topic=key.topic, queue_id=key.queue_id))
        log, units = self._provider.open(path, LOG, 0), self._provider.open(path, QUEUE, 0)
        offset = log_bytes = 0
        begin: int | None = None
        while True:
            run = self._store.read_range(*key, offset, count_max=BATCH, bytes_max=4 << 20)
            if not len(run):
                return offset
            # The bytes stay as they are, but for the place: each record says where it lies.
            records = bytearray(run.records)
            places = run.starts + log_bytes
            for start, place in zip(run.starts.tolist(), places.tolist(), strict=True):
                patch_log_offset(records, place, position=start)
            names = encode_units(
                log_offsets=places, message_bytes=run.message_bytes, tags_codes=run.tags_codes
            )
            pair = WritePair(
                SegmentWrite(log, log_bytes, records),
                SegmentWrite(units, offset * UNIT_BYTES, names),
            )
            for outcome in self._provider.write_many([pair]):
                outcome.result()
            offset, log_bytes = run.end_offset, log_bytes + len(records)
            begin = begin or peek_store_timestamp(run.record(0))
            end = peek_store_timestamp(run.record(len(run) - 1))
            catalogue.put(
                *(
                    SegmentRecord(
                        path=path,
                        type=kind,
                        base_offset=0,
                        size=size,
                        create_timestamp=begin,
                        begin_timestamp=begin,
                        end_timestamp=end,
                    )
                    for kind, size in ((LOG, log_bytes), (QUEUE, offset * UNIT_BYTES))
                )
            )


def read_back(provider: SegmentProvider, catalogue: MetadataStore, keys: list[QueueKey]) -> None:
    """Messages at random offsets: a queue unit says where, the record must say the same."""
    dice = random.Random(7)
    for _ in range(SAMPLE):
        key = dice.choice(keys)
        path = queue_path(BROKER, *key)
        segment = catalogue.segment(path, QUEUE, 0)
        assert segment is not None
        offset = dice.randrange(segment.size // UNIT_BYTES)
        unit = decode_unit(provider.open(path, QUEUE, 0).read(offset * UNIT_BYTES, UNIT_BYTES))
        record = provider.open(path, LOG, 0).read(unit.log_offset, unit.message_bytes)
        message = decode_message(record)
        assert (message.topic, message.queue_id, message.queue_offset) == (*key, offset)


def find_by_key(store: LocalMessageStore) -> None:
    for number in np.random.default_rng(7).integers(0, MESSAGES, SAMPLE).tolist():
        topic = ("orders", "payments")[number % 2]
        [found] = store.query_message(topic, f"key-{number}").messages
        assert decode_message(found.record).body.startswith(f"message {number} ".encode())


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    print(f"  {what:<58} {time.perf_counter() - started:6.2f} s")


def show(root: Path) -> None:
    for file in sorted(root.rglob("*")):
        if file.is_file():
            print(f"  {file.stat().st_size:>13,}  {file.relative_to(root)}")


def run(provider_name: str, directory: Path) -> None:
    local = LocalConfig(
        store_path=str(directory / "local"),
        commit_log_file_bytes=16 << 20,
        index_slot_count=100_000,
        index_item_count=400_000,
    )
    tier = StoreConfig(
        broker_name=BROKER,
        provider=provider_name,
        path=str(directory / "tier"),
        store_path=str(directory / "store"),
    )
    kind = registry.resolve(registry.PROVIDERS, tier.provider, SegmentProvider)
    with Runtime.threads() as runtime, kind.from_config(tier, runtime) as provider:
        store = LocalMessageStore(local, runtime)
        store.load()
        store.start()
        prepared = messages()
        with timed(f"{MESSAGES:,} messages put into the local store"):
            fill(store, prepared)
        with timed(f"{SAMPLE:,} of them found by key"):
            find_by_key(store)
        keys = list(store.queues())
        with JsonMetadataStore.open(tier.catalogue_path) as catalogue:
            with timed(f"{len(keys)} queues uploaded to the tier, each batch durable"):
                total = sum(Uploader(store, provider).upload(key, catalogue) for key in keys)
            assert total == MESSAGES
        store.shutdown()
        with (
            JsonMetadataStore.open(tier.catalogue_path, read_only=True) as catalogue,
            timed(f"{SAMPLE:,} read back from the tier, the local store closed"),
        ):
            read_back(provider, catalogue, keys)
    print("\nwhat lies on disk (sparse files show their full length):")
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
