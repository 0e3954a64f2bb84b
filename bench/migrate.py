"""Moving a tier, as ratios to a bare copy of the same objects in the same run.

From a directory to a directory: compared with reading and writing each file, with a sync of it and
of its name. From a directory into a bucket: compared with one upload of each file with the same
client, against a fast server on this machine; without that server it says so. Both sides use as
many threads. What is copied is verified: read back, or by a checksum that the store checks. Prints
one table. Exits with 1 if a promise is missed:

    python -m bench.migrate
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench._s3_server import ministack
from bench._timing import Comparison, compare, report
from tieredstore.codec.names import queue_path
from tieredstore.driver.metadata import Change, Put
from tieredstore.driver.object_client import ObjectClient
from tieredstore.driver.runtime import Runtime
from tieredstore.jobs.job import LocalEngine
from tieredstore.jobs.migrate import migrate
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueRecord, SegmentRecord, SegmentType, TopicRecord
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.posix import PosixProvider
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.testing.samples import a_record

MIB: Final = 1 << 20
BLOCK_BYTES: Final = 8 * MIB
QUEUES, LOG_SEGMENTS, LOG_BYTES, UNIT_BYTES = 3, 3, 24 * MIB, 20 * 4_096
THREADS: Final = 2
PROMISED: Final = 0.5


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="bench-migrate-") as scratch:
        place = Path(scratch)
        source = made(place / "source")
        rows = [to_a_directory(source, place)]
        with ministack() as endpoint:
            if endpoint is None:
                print("migrate: into a bucket: skipped: no ministack here: pip install ministack,")
                print("or name a Python that has it in TIEREDSTORE_BENCH_SERVER")
            else:
                rows += into_a_bucket(source, place, endpoint)
    return report("migrate", rows)


def made(place: Path) -> StoreConfig:
    """A tier of messages of 1 KB, with files of the sizes in its catalogue."""
    config = StoreConfig(
        provider="posix",
        path=str(place / "tiered"),
        store_path=str(place / "store"),
        broker_name="broker-a",
        index_enabled=False,
    )
    Path(config.catalogue_path).parent.mkdir(parents=True)
    record = a_record(body_bytes=1_024)
    block = record * (LOG_BYTES // len(record))
    with Runtime.threads() as runtime, JsonMetadataStore.open(config.catalogue_path) as metadata:
        provider = PosixProvider.from_config(config, runtime)
        changes: list[Change] = [Put(TopicRecord(topic="orders", topic_id=0))]
        for queue_id in range(QUEUES):
            path = queue_path("broker-a", "orders", queue_id)
            queue = QueueRecord(broker_name="broker-a", topic="orders", queue_id=queue_id)
            changes.append(Put(queue))
            bases = [(SegmentType.COMMIT_LOG, n * len(block)) for n in range(LOG_SEGMENTS)]
            for kind, base in (*bases, (SegmentType.CONSUME_QUEUE, 0)):
                data = block if kind is SegmentType.COMMIT_LOG else block[:UNIT_BYTES]
                with provider.open(path, kind, base) as segment:
                    provider.create(segment, [data])
                row = SegmentRecord(path=path, type=kind, base_offset=base, size=len(data))
                changes.append(Put(row))
        metadata.apply(changes)
    return config


def to_a_directory(source: StoreConfig, place: Path) -> Comparison:
    def plain() -> None:
        shutil.rmtree(place / "plain", ignore_errors=True)
        in_threads(
            source, lambda file: copied(file, place / "plain" / file.relative_to(source.path))
        )

    def ours() -> None:
        shutil.rmtree(place / "ours", ignore_errors=True)
        moved(source, replace(source, path=str(place / "ours/t"), store_path=str(place / "ours/s")))

    return compare(
        "to a directory, read back", plain=plain, ours=ours, promised=PROMISED, repeats=1
    )


def into_a_bucket(source: StoreConfig, place: Path, endpoint: str) -> Iterator[Comparison]:
    for what, checksum in (("store checks", "crc32"), ("read back", "")):
        target = replace(
            source,
            provider="s3",
            path="",
            bucket=f"bench-{uuid.uuid4().hex}",
            endpoint=endpoint,
            region="us-east-1",
            access_key="bench",
            secret_key="bench-secret",
            certify="off",
            checksum=checksum,
        )
        settings = ObjectStoreSettings.from_config(target)
        create_bucket(settings)

        def plain(settings: ObjectStoreSettings = settings) -> None:
            client = open_client(settings)
            in_threads(
                source,
                lambda file: client.put_stream(str(file.relative_to(source.path)), blocks(file)),
            )
            emptied(client)

        def ours(target: StoreConfig = target, settings: ObjectStoreSettings = settings) -> None:
            moved(source, replace(target, store_path=str(place / uuid.uuid4().hex)))
            emptied(open_client(settings))

        promised = PROMISED if checksum else None
        yield compare(
            f"into a bucket, {what}", plain=plain, ours=ours, promised=promised, repeats=1
        )


def moved(source: StoreConfig, target: StoreConfig) -> None:
    with LocalEngine(threads=THREADS) as engine:
        done = migrate(source, target, engine=engine)
    assert done.counts["copied"] == QUEUES * (LOG_SEGMENTS + 1), done


def emptied(client: ObjectClient) -> None:
    """Empty and close the bucket, so that the server does not run out of memory."""
    client.delete_many([listed.key for listed in client.list()])
    client.close()


def in_threads(source: StoreConfig, copy: Callable[[Path], object]) -> None:
    found = [path for path in Path(source.path).rglob("*") if path.is_file()]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(copy, found))


def blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as opened:
        while block := opened.read(BLOCK_BYTES):
            yield block


def copied(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb", buffering=0) as opened:
        for block in blocks(file):
            opened.write(block)
        os.fsync(opened.fileno())
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


if __name__ == "__main__":
    sys.exit(main())
