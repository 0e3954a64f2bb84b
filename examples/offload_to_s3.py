"""Copies a local store to a bucket, and reads it there as another machine would.

    export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
    python examples/offload_to_s3.py BUCKET [--store STORE] [--endpoint http://127.0.0.1:9000]

STORE is a broker's store directory with files of RocketMQ's default sizes (`LocalConfig` takes
others). Without it a small one with a few messages is made, and deleted at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace

from tieredstore import (
    Message,
    Runtime,
    StoreConfig,
    TieredMessageStore,
    TieredReader,
    TieredStoreError,
)
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings


def offload(config: StoreConfig, files: LocalConfig, *, put: int = 0) -> bool:
    """Whether all of it is in the bucket."""
    with Runtime.threads() as runtime:
        local = LocalMessageStore(files, runtime)
        with TieredMessageStore(local, config, runtime=runtime) as store:
            for number in range(put):
                body = f"order {number}".encode()
                keys = {"KEYS": f"order-{number}"}
                store.put_message(Message(topic="orders", queue_id=0, body=body, properties=keys))
            # Sealed: each segment is one object, and the index is uploaded.
            is_whole = store.flush(None, seal=True)  # however long it takes
            queues = store.health().queues
            for queue in sorted(queues, key=lambda each: (each.topic, each.queue_id)):
                name = f"{queue.topic}/{queue.queue_id}"
                print(f"{name}: uploaded up to offset {queue.commit_offset}")
                if queue.behind_count or not queue.ok:
                    print(f"{name}: not all of it: {queue.problem or queue.last_error}")
            return is_whole


def read_elsewhere(config: StoreConfig) -> None:
    """The broker's disk is not needed: the catalogue is in the bucket too."""
    with (
        tempfile.TemporaryDirectory() as empty,
        TieredReader.open(replace(config, store_path=empty)) as reader,
    ):
        for topic, queue_id in reader.queues():
            count = sum(len(run) for _, run in reader.runs(topic, queue_id))
            print(f"{topic}/{queue_id}: {count} messages read from {config.bucket}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Copy a local store to a bucket.")
    parser.add_argument("bucket", help="made where it is not there")
    parser.add_argument("--store", help="directory of the local store")
    parser.add_argument("--endpoint", default="", help="of a store that is not AWS")
    parser.add_argument("--region", default="us-east-1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = StoreConfig(
            broker_name="offload-example",
            provider="s3",
            endpoint=options.endpoint,
            bucket=options.bucket,
            region=options.region,  # the keys come from the usual AWS chain
            store_path=options.store or folder,
        )
        try:
            create_bucket(ObjectStoreSettings.from_config(config))
            if options.store:
                is_whole = offload(config, LocalConfig(store_path=options.store))
            else:
                small = LocalConfig(store_path=folder, commit_log_file_bytes=1 << 20)
                is_whole = offload(config, small, put=1_000)
            if not is_whole:
                print("offload_to_s3: not all of it is in the bucket", file=sys.stderr)
                return 1
            read_elsewhere(config)
        except TieredStoreError as error:
            print(f"offload_to_s3: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
