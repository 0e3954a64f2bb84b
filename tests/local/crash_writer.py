"""A process that puts until it is killed, and tells what was acknowledged: see test_store_crash.

No tests. Each line that it writes is a message whose put has returned.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.local.store_audit import Ack, a_config
from tieredstore.driver.runtime import Runtime
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import Message
from tieredstore.testing.samples import a_message

TOPICS = ("Orders", "Bills")
QUEUES = 3


def a_put(prefix: str, number: int, dice: random.Random) -> Message:
    key = f"{prefix}-{number}"
    properties = {"TAGS": "a", "KEYS": f"k-{key} shared", "UNIQ_KEY": f"U-{key}"}
    return a_message(
        number,
        topic=dice.choice(TOPICS),
        queue_id=dice.randrange(QUEUES),
        body_bytes=dice.randrange(20, 400),
        properties=properties,
    )


def main(root: str, flush: str, prefix: str, seed: int) -> None:
    dice = random.Random(seed)
    sync = flush == "SYNC_FLUSH"
    config = a_config(
        Path(root),
        flush_disk_type=flush,
        dispatch_interval_ms=dice.choice((0, 1)),
        queue_flush_interval_ms=20,
        flush_interval_ms=10,
    )
    store = LocalMessageStore(config, Runtime.threads())
    store.load()
    store.start()
    number = 0
    waiting: list[str] = []
    while True:
        count = dice.choice((1, 1, 5, 40))
        messages = [a_put(prefix, number + at, dice) for at in range(count)]
        number += count
        for message, result in zip(messages, store.put_messages(messages), strict=True):
            unique_key = message.properties["UNIQ_KEY"]
            key = f"k-{unique_key[2:]}"
            ack = Ack.of(message.topic, message.queue_id, unique_key, key, result)
            waiting.append("\t".join(map(str, ack)))
        if not sync:
            if dice.random() < 0.8:
                continue
            store.flush()
        sys.stdout.write("\n".join(waiting) + "\n")
        sys.stdout.flush()
        waiting = []


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
