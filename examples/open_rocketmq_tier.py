"""Looks into the tier of a RocketMQ broker without changing a byte of it.

    python examples/open_rocketmq_tier.py broker.conf [TOPIC [KEY]]

The broker may be running. Of its settings these are read: storePathRootDir, tieredStoreFilePath,
brokerClusterName, brokerName, tieredBackendServiceProvider, tieredStoreIndexFileMaxHashSlotNum and
tieredStoreIndexFileMaxIndexNum.
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from itertools import islice

from tieredstore import StoreConfig, TieredReader, TieredStoreError
from tieredstore.codec.message import decode_message
from tieredstore.model.messages import SelectedMessage


def show_queues(reader: TieredReader) -> None:
    for topic, queue_id in reader.queues():
        summary = reader.summary(topic, queue_id)
        if summary is not None:
            offsets = f"{summary.min_offset} to {summary.max_offset}"
            print(f"{topic}/{queue_id}: offsets {offsets}, {summary.log_bytes:,} bytes")


def show(selected: SelectedMessage) -> None:
    message = decode_message(selected.record)
    when = datetime.fromtimestamp(message.store_timestamp / 1000).astimezone()
    place = f"{message.topic}/{message.queue_id}/{selected.queue_offset}"
    print(f"  {place}  {when:%Y-%m-%d %H:%M:%S}  {len(message.body)} bytes  keys {message.keys}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Look into the tier of a RocketMQ broker.")
    parser.add_argument("config", help="the broker's broker.conf")
    parser.add_argument("topic", nargs="?", help="show its first messages")
    parser.add_argument("key", nargs="?", help="show those that have this key")
    options = parser.parse_args()
    try:
        with TieredReader.open(StoreConfig.from_broker_conf(options.config)) as reader:
            if options.topic is None:
                show_queues(reader)
                return 0
            if options.key is None:
                found = list(islice(reader.messages(options.topic), 5))
            else:
                found = list(reader.query_message(options.topic, options.key).messages)
            for message in found:
                show(message)
            if not found:
                print("open_rocketmq_tier: no such message is in the tier", file=sys.stderr)
                return 1
    except TieredStoreError as error:
        print(f"open_rocketmq_tier: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
