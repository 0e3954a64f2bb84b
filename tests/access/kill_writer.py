"""A broker that does everything at once until it is killed, and reports what it did: see
test_kills.

No tests. Each line reports what has already happened.

    P <topic> <queue> <offset> <key>   a put returned
    D / E                              the topic BRIEF is being deleted / has been deleted
    BAD <why>                          a page was wrong, or something raised

The tier is a directory, or the bucket that the file `bucket` beside the store names. The file
`moves` says how often it has moved.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import StorageLevel
from tieredstore.testing.message_store_contract import NamedTagFilter, TagFilter, check_page
from tieredstore.testing.samples import a_message

KEPT, BRIEF = "Kept", "Brief"
QUEUES = 2
READERS = 2


def local_config(root: Path) -> LocalConfig:
    """Log files of a few messages, which expire at once."""
    return LocalConfig(
        store_path=str(root / "store"),
        commit_log_file_bytes=8_192,
        queue_file_bytes=400,
        index_slot_count=101,
        index_item_count=150,
        reserve_hours=0,
        expiry_interval_ms=3,
        delete_count_max=2,
        dispatch_interval_ms=1,
        flush_interval_ms=5,
        queue_flush_interval_ms=20,
        disk_full_percent=100,
        disk_clean_percent=100,
    )


def place_of(root: Path) -> dict[str, str]:
    """The settings for a directory, or for the bucket that a file beside it names. Where the tier
    has moved, a file says how often."""
    with suppress(FileNotFoundError):
        return directory_after(root, int((root / "moves").read_text(encoding="utf-8")))
    try:
        endpoint, bucket = (root / "bucket").read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return directory_after(root, 0)
    return {"provider": "s3", "endpoint": endpoint, "bucket": bucket, "certify": "off"}


def directory_after(root: Path, moves: int) -> dict[str, str]:
    """The settings for the directory of a tier that has moved so often."""
    if not moves:
        return {"provider": "posix", "path": str(root / "tier")}
    catalogue = str(root / f"catalogue-{moves}.json")
    return {"provider": "posix", "path": str(root / f"tier-{moves}"), "metadata_path": catalogue}


def tier_config(root: Path, **settings: Any) -> StoreConfig:
    given = {
        "broker_name": "broker-a",
        **place_of(root),
        "store_path": str(root / "store"),
        "commit_log_segment_bytes": 16_000,
        "consume_queue_segment_bytes": 800,
        "group_commit_count": 8,
        "group_commit_timeout_ms": 50,
        "index_slot_count": 64,
        "index_item_count": 300,
        **settings,
    }
    return StoreConfig(**given)


def stores(
    root: Path, runtime: Runtime, **settings: Any
) -> tuple[LocalMessageStore, TieredMessageStore]:
    local = LocalMessageStore(local_config(root), runtime)
    return local, TieredMessageStore(local, tier_config(root, **settings), runtime=runtime)


def tell(*words: object) -> None:
    """Write one line as a whole: a pipe takes so few bytes all or not at all."""
    os.write(1, ("\t".join(map(str, words)) + "\n").encode()[:2_000])


def tag_of(queue_offset: int) -> str:
    """The tag of the message with this offset in its queue of KEPT."""
    return "b" if queue_offset % 3 else "a"


class Life:
    """What the threads of one process share."""

    def __init__(self, local: LocalMessageStore, store: TieredMessageStore, prefix: str) -> None:
        self.local = local
        self.store = store
        self.prefix = prefix
        self.ends = [store.max_offset(KEPT, number) or 0 for number in range(QUEUES)]
        self.brief = 0  # begun plus ended deletions of BRIEF: odd while one is under way

    def put(self, dice: random.Random) -> None:
        number = 0
        while True:
            number += 1
            topic = KEPT if dice.random() < 0.8 else BRIEF
            queue_id = dice.randrange(QUEUES)
            key = f"{self.prefix}-{number}"
            put = self.store.put_message(
                a_message(
                    number,
                    topic=topic,
                    queue_id=queue_id,
                    body_bytes=dice.randrange(20, 400),
                    properties={"TAGS": tag_of(self.ends[queue_id]), "UNIQ_KEY": key},
                )
            )
            assert put.stored, put
            if topic == KEPT:
                assert put.queue_offset == self.ends[queue_id], (put, self.ends)
                self.ends[queue_id] += 1
            tell("P", topic, queue_id, put.queue_offset, key)
            if dice.random() < 0.01:
                tell("D")
                self.brief += 1
                self.store.delete_topics([BRIEF])
                self.brief += 1
                tell("E")

    def flush(self, dice: random.Random) -> None:
        while True:
            self.store.flush(timeout=30, seal=dice.random() < 0.3)

    def read(self, dice: random.Random) -> None:
        while True:
            self.store.level = dice.choice([*StorageLevel][1:])
            if dice.random() < 0.2:
                self.read_brief(dice)
            else:
                self.read_kept(dice)

    def read_kept(self, dice: random.Random) -> None:
        queue_id = dice.randrange(QUEUES)
        end = self.ends[queue_id]
        offset = dice.choice([dice.randrange(end + 1), self._border(queue_id)])
        wanted = dice.choice(["a", "b", None])
        chosen = None if wanted is None else dice.choice([TagFilter, NamedTagFilter])(wanted)
        page = self.store.get_message(
            KEPT, queue_id, offset, count_max=dice.choice([1, 8, 32]), message_filter=chosen
        )
        check_page(
            page,
            offset,
            there=range(offset, end),
            wanted=lambda at: wanted in (None, tag_of(at)),
        )

    def _border(self, queue_id: int) -> int:
        """Where the local store begins now, and where messages expire next."""
        return self.local.min_offset(KEPT, queue_id) or 0

    def read_brief(self, dice: random.Random) -> None:
        queue_id, before = dice.randrange(QUEUES), self.brief
        end = self.store.max_offset(BRIEF, queue_id) or 0
        offset = dice.randrange(end + 1)
        page = self.store.get_message(BRIEF, queue_id, offset)
        is_same = before == self.brief and not before % 2
        check_page(page, offset, there=range(offset, end) if is_same else ())


def guarded(call: Callable[[random.Random], None], seed: int) -> threading.Thread:
    def run() -> None:
        try:
            call(random.Random(seed))
        except Exception:  # noqa: BLE001 - it is reported to the parent process
            tell("BAD", repr(traceback.format_exc()))

    return threading.Thread(target=run, daemon=True)


def main(root: str, prefix: str, seed: int) -> None:
    sys.setswitchinterval(1e-5)
    dice = random.Random(seed)
    cached = dice.random() < 0.7
    local, store = stores(Path(root), Runtime.threads(), read_ahead_enabled=cached)
    store.load()
    store.start()
    life = Life(local, store, prefix)
    calls = [life.put, life.flush, *[life.read] * READERS]
    threads = [guarded(call, dice.randrange(1 << 30)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
