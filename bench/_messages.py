"""Messages for benchmarks: in batches as a producer sends them, and as runs of records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from tieredstore.model.messages import Message, MessageRun

BATCH_MESSAGES = 256
QUEUES = 4
BODY = bytes(range(256)) + bytes(44)


def batches(count: int, *, mixed: bool = False, unique: bool = False) -> list[list[Message]]:
    """Batches as a producer sends them, each for one queue; `mixed`: each message to another queue.

    Each message has two keys, and a third with `unique`.
    """
    return [
        [
            Message(
                topic="TopicTest",
                queue_id=(number if mixed else number // BATCH_MESSAGES) % QUEUES,
                body=BODY,
                properties=properties(number, unique=unique),
                born_timestamp=1_700_000_000_000 + number,
            )
            for number in range(start, start + BATCH_MESSAGES)
        ]
        for start in range(0, count * BATCH_MESSAGES, BATCH_MESSAGES)
    ]


def properties(number: int, *, unique: bool) -> dict[str, str]:
    found = {"KEYS": f"order-{number:08d} user-{number % 9_973:06d}", "TAGS": "TagA"}
    return {"UNIQ_KEY": f"7F00000100002A139F5516E3{number:08X}", **found} if unique else found


def run_of(first: int, records: Sequence[bytes], *, tags_code: int = 0) -> MessageRun:
    """Records of one queue, as a broker's store returns them."""
    sizes = np.array([len(record) for record in records], np.int32)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    return MessageRun(
        first_offset=first,
        log_offsets=starts,
        message_bytes=sizes,
        tags_codes=np.full(len(records), tags_code, np.int64),
        starts=starts,
        records=b"".join(records),
    )


def a_second(work: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)
