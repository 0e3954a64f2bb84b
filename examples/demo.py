"""`make demo`: messages go to a tier, its catalogue names them, and they are read back.

python examples/demo.py [--provider memory | posix] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tieredstore import (
    MetadataStore,
    QueueRecord,
    Runtime,
    SegmentProvider,
    SegmentRecord,
    SegmentType,
    StoreConfig,
)
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.names import queue_path
from tieredstore.codec.properties import encode_properties
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_unit, encode_unit
from tieredstore.driver import registry
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.values import Host

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
QUEUES = [("orders", 0), ("orders", 1), ("payments", 0), ("payments", 1)]
ROUNDS, BATCH = 10, 500
HOST = Host(bytes([127, 0, 0, 1]), 10911)


@dataclass
class Queue:
    """One queue of the tier: where its two files end, and when its messages came."""

    topic: str
    queue_id: int
    path: str
    offset: int = 0
    log_bytes: int = 0
    times: list[int] = field(default_factory=list)

    def batch(self, now: int) -> tuple[bytes, bytes]:
        """The next messages, as bytes for the commit log and for the consume queue."""
        records, units = [], []
        position = self.log_bytes
        for number in range(self.offset, self.offset + BATCH):
            record = encode_message(
                topic=self.topic,
                queue_id=self.queue_id,
                queue_offset=number,
                log_offset=position,
                born_timestamp=now,
                born_host=HOST,
                store_timestamp=now,
                store_host=HOST,
                body=f"{self.topic} {self.queue_id} {number}".encode() * 10,
                property_bytes=encode_properties({"KEYS": f"key-{number}"}),
            )
            units.append(encode_unit(log_offset=position, message_bytes=len(record), tags_code=0))
            records.append(record)
            position += len(record)
        return b"".join(records), b"".join(units)


def upload(provider: SegmentProvider, catalogue: MetadataStore, now: int) -> list[Queue]:
    """Rounds of batches: log bytes durable before queue units, then one change of the catalogue."""
    queues = [Queue(topic, n, queue_path("demo-broker", topic, n)) for topic, n in QUEUES]
    for queue in queues:
        catalogue.add_topic(queue.topic)
        catalogue.put(
            QueueRecord(broker_name="demo-broker", topic=queue.topic, queue_id=queue.queue_id)
        )
    for number in range(ROUNDS):
        pairs = []
        for queue in queues:
            records, units = queue.batch(now + number)
            log = provider.open(queue.path, LOG, 0)
            units_file = provider.open(queue.path, QUEUE, 0)
            pairs.append(
                WritePair(
                    SegmentWrite(log, queue.log_bytes, records),
                    SegmentWrite(units_file, queue.offset * UNIT_BYTES, units),
                )
            )
            queue.log_bytes += len(records)
            queue.offset += BATCH
            queue.times.append(now + number)
        for outcome in provider.write_many(pairs):
            outcome.result()
        catalogue.put(*rows(queues))
    return queues


def rows(queues: list[Queue]) -> Iterator[SegmentRecord]:
    for queue in queues:
        for kind, size in ((LOG, queue.log_bytes), (QUEUE, queue.offset * UNIT_BYTES)):
            yield SegmentRecord(
                path=queue.path,
                type=kind,
                base_offset=0,
                size=size,
                create_timestamp=queue.times[0],
                begin_timestamp=queue.times[0],
                end_timestamp=queue.times[-1],
            )


def read_back(provider: SegmentProvider, catalogue: MetadataStore, count: int) -> None:
    """Messages at random offsets: a queue unit says where, the record must say the same."""
    dice = random.Random(7)
    for _ in range(count):
        topic, queue_id = dice.choice(QUEUES)
        path = queue_path("demo-broker", topic, queue_id)
        units = catalogue.segment(path, QUEUE, 0)
        assert units is not None
        offset = dice.randrange(units.size // UNIT_BYTES)
        unit = decode_unit(provider.open(path, QUEUE, 0).read(offset * UNIT_BYTES, UNIT_BYTES))
        record = provider.open(path, LOG, 0).read(unit.log_offset, unit.message_bytes)
        message = decode_message(record)
        assert (message.topic, message.queue_id, message.queue_offset) == (topic, queue_id, offset)


def show(root: Path) -> None:
    for file in sorted(root.rglob("*")):
        if file.is_file():
            print(f"  {file.stat().st_size:>10,}  {file.relative_to(root)}")


def run(provider_name: str, directory: Path) -> None:
    config = StoreConfig(
        broker_name="demo-broker",
        provider=provider_name,
        path=str(directory / "tier"),
        store_path=str(directory / "store"),
    )
    kind = registry.resolve(registry.PROVIDERS, config.provider, SegmentProvider)
    with Runtime.threads() as runtime, kind.from_config(config, runtime) as provider:
        for finding in provider.probe():
            print(f"  {'ok  ' if finding.passed else 'FAIL'} {finding.check}")
        started = time.perf_counter()
        with JsonMetadataStore.open(config.catalogue_path) as catalogue:
            queues = upload(provider, catalogue, runtime.clock.now_ms())
        spent = time.perf_counter() - started
        total = sum(queue.offset for queue in queues)
        size = sum(queue.log_bytes for queue in queues)
        print(f"\nuploaded {total:,} messages, {size / 1e6:.1f} MB, in {spent:.2f} s")

        started = time.perf_counter()
        with JsonMetadataStore.open(config.catalogue_path, read_only=True) as catalogue:
            read_back(provider, catalogue, 2_000)
        spent = time.perf_counter() - started
        print(f"read 2,000 of them at random offsets in {spent:.2f} s: each is the right one")
        print(f"the backend lists {sum(1 for _ in provider.list())} segments")
    print("\nwhat lies on disk:")
    show(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", default="posix", choices=["memory", "posix"])
    parser.add_argument("--keep", type=Path, help="write here and leave it")
    arguments = parser.parse_args()
    print(f"a tier on the {arguments.provider} provider\n")
    if arguments.keep:
        run(arguments.provider, arguments.keep)
        return
    with tempfile.TemporaryDirectory(prefix="tieredstore-demo-") as directory:
        run(arguments.provider, Path(directory))


if __name__ == "__main__":
    main()
