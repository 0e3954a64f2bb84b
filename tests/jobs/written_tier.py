"""A tier written through the real parts, for tests that read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.flat.tiers import run_of
from tieredstore.access.wiring import Tier, open_tier
from tieredstore.codec.message import encode_message
from tieredstore.codec.record import encode_properties, tags_code
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import CommittedRun
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import Host, QueueKey

START_MS = 1_700_000_000_000
SECOND_MS = 1000


def posix_config(root: Path, **settings: Any) -> StoreConfig:
    return StoreConfig(
        **{
            "provider": "posix",
            "path": str(root / "tiered"),
            "store_path": str(root / "store"),
            "broker_name": "broker-a",
            "cluster_name": "c",
            "index_slot_count": 512,
            "index_item_count": 4096,
            "consume_queue_segment_bytes": 20 * 64,
            "commit_log_segment_bytes": 16_384,
            **settings,
        }
    )


def properties_of(number: int) -> dict[str, str]:
    """A unique key, a key of its own, and one that ten messages share; every seventh has none."""
    if number % 7 == 6:
        return {"TAGS": "none"}
    return {
        "UNIQ_KEY": f"U{number:08d}",
        "KEYS": f"order-{number} shared-{number // 10}",
        "TAGS": f"tag{number % 3}",
        "größe": "ä" * (number % 4 + 1),
    }


@dataclass(slots=True, kw_only=True)
class WrittenTier:
    """A tier and how many messages of each queue were written; message n was stored n seconds
    after the start."""

    config: StoreConfig
    start_ms: int = START_MS
    ends: dict[QueueKey, int] = field(default_factory=dict)

    def add(
        self,
        topic: str,
        queue_id: int,
        count: int,
        *,
        body_bytes: int = 50,
        seal: bool = False,
        bodies: Sequence[bytes] = (),
        sys_flag: int = 0,
    ) -> None:
        """Write `count` more messages to a queue, and to the index; `seal` uploads the index."""
        key = QueueKey(topic, queue_id)
        with self.open() as parts:
            parts.index.start()
            for start in range(0, count, 32):
                first, chunk = self.ends.get(key, 0), min(32, count - start)
                part = bodies[start : start + chunk]
                run = a_run(
                    key,
                    first,
                    chunk,
                    body_bytes=body_bytes,
                    bodies=part,
                    sys_flag=sys_flag,
                    start_ms=self.start_ms,
                )
                self.write(parts, key, run)
            if seal:
                parts.index.seal()

    @contextmanager
    def open(self) -> Iterator[Tier]:
        """The parts of the tier, as a running broker has them."""
        parts = open_tier(self.config, runtime=Runtime.inline(now_ms=START_MS))
        with closing(parts):
            parts.load()
            yield parts

    def delete(self, topic: str) -> None:
        """Delete a topic with all its queues; what is added to it later begins at offset 0."""
        with self.open() as parts:
            assert parts.files.delete_topics([topic]) == 1
        self.ends = {key: end for key, end in self.ends.items() if key.topic != topic}

    def write(self, parts: Tier, key: QueueKey, run: MessageRun) -> None:
        """Write and index a run that follows what the queue has, in an open tier."""
        file = parts.files.create(*key)
        file.start_at(run.first_offset)
        while len(run):
            appended = file.append(run)
            assert file.commit()
            if appended.count:
                taken = run_part(run, 0, appended.count)
                committed = CommittedRun(run=taken, log_offsets=appended.log_offsets)
                parts.index.put(key.topic, file.topic_id, key.queue_id, committed)
            run = run_part(run, appended.count, len(run))
        self.ends[key] = run.first_offset


def a_run(
    key: QueueKey,
    first: int,
    count: int,
    *,
    body_bytes: int = 50,
    bodies: Sequence[bytes] = (),
    sys_flag: int = 0,
    start_ms: int = START_MS,
) -> MessageRun:
    records = [
        encode_message(
            topic=key.topic,
            queue_id=key.queue_id,
            queue_offset=number,
            log_offset=0,
            born_timestamp=start_ms + number * SECOND_MS - 5,
            born_host=Host(b"\x0a\x00\x00" + bytes([number % 5]), 4000 + number % 3),
            store_timestamp=start_ms + number * SECOND_MS,
            store_host=Host(b"\x0a\x00\x00\x09", 10911),
            body=bodies[number - first] if bodies else body_of(number, body_bytes),
            property_bytes=encode_properties(properties_of(number)),
            flag=number,
            sys_flag=sys_flag,
        )
        for number in range(first, first + count)
    ]
    numbers = range(first, first + count)
    return run_of(first, records, [tags_code(properties_of(number)["TAGS"]) for number in numbers])


def run_part(run: MessageRun, start: int, end: int) -> MessageRun:
    return replace(
        run,
        first_offset=run.first_offset + start,
        log_offsets=run.log_offsets[start:end],
        message_bytes=run.message_bytes[start:end],
        tags_codes=run.tags_codes[start:end],
        starts=run.starts[start:end],
    )


def body_of(number: int, size: int) -> bytes:
    return f"{number:08d}".encode().ljust(size, b".")[:size]
