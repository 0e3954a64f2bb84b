"""A steady load on a store with a tier: how long single puts and pulls take, and what it holds.

One thread puts messages at a steady rate and another pulls, while segments fill and are sealed, and
index files are compacted and uploaded. `MINUTES` in the environment says how long; the default is
short. Waits are compared with those of the store alone under the same load, memory and descriptors
with those after the first tenth. Prints one table, exits with 1 if a promise is missed:

    MINUTES=5 python -m bench.steady
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from bench._rows import Row, report, turns_row
from bench._s3_server import ministack
from bench._stores import ALONE, POSIX, Place, a_store, s3
from bench.puts import Kind, sent
from tieredstore.driver.message_store import MessageStore
from tieredstore.local.config import LocalConfig
from tieredstore.model.config import MIB
from tieredstore.model.messages import Message

MINUTES: Final = float(os.environ.get("MINUTES") or 0.2)
PUTS_A_SECOND: Final = 1_000  # the same for all places, far less than any of them can take
PULLS_A_SECOND: Final = 100
PULLED: Final = 32
QUEUES: Final = 4
SAMPLES: Final = 50
KIND: Final = Kind(body=1_000, batch=1, count=4_096)
SHARES: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
GROWTH_PROMISED: Final = 0.5

# Small files, so that many are sealed, compacted and uploaded in a short time.
SMALL: Final = {
    "commit_log_segment_bytes": 16 * MIB,
    "consume_queue_segment_bytes": 20 * 4_096,
    "index_slot_count": 2_000,
    "index_item_count": 8_000,
    "group_commit_timeout_ms": 1_000,
    "dispatch_interval_ms": 1_000,
    "read_cache_bytes": 64 * MIB,
}


@dataclass(slots=True)
class Seen:
    """Seconds of each call, and samples of what the process held."""

    puts: list[float] = field(default_factory=list)
    pulls: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    descriptors: list[float] = field(default_factory=list)


def at_pace(work: Callable[[int], object], a_second: int, seconds: float) -> list[float]:
    """How long after its due time each call ended: a late call delays those after it."""
    count = int(a_second * seconds)
    spent = []
    begun = time.perf_counter()
    for number in range(count):
        due = begun + number / a_second
        ahead = due - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        work(number)
        spent.append(time.perf_counter() - due)
    return spent


def held() -> tuple[float, float]:
    """Anonymous memory in MB, and open descriptors."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    anonymous = next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon"))
    return anonymous, float(len(os.listdir("/proc/self/fd")))


def loaded(place: Place, messages: list[Message], seconds: float) -> Seen:
    seen = Seen()
    with a_store(place) as store:
        for message in messages:  # something to pull from the start
            assert store.put_message(message).stored
        pulled = [0] * QUEUES
        ended = threading.Event()

        def put(number: int) -> None:
            assert store.put_message(messages[number % len(messages)]).stored

        def pull(number: int) -> None:
            queue_id = number % QUEUES
            pulled[queue_id] = next_of(store, queue_id, pulled[queue_id])

        def put_all() -> None:
            seen.puts += at_pace(put, PUTS_A_SECOND, seconds)

        def pull_all() -> None:
            seen.pulls += at_pace(pull, PULLS_A_SECOND, seconds)

        def watch() -> None:
            while not ended.wait(seconds / SAMPLES):
                memory, descriptors = held()
                seen.memory.append(memory)
                seen.descriptors.append(descriptors)

        threads = [threading.Thread(target=work) for work in (put_all, pull_all, watch)]
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join()
        ended.set()
        threads[2].join()
    return seen


def next_of(store: MessageStore, queue_id: int, offset: int) -> int:
    """Where the next pull begins; after the end, at the beginning again."""
    found = store.get_message("TopicTest", queue_id, offset, count_max=PULLED)
    return found.next_offset if found.messages else 0


def rows_of(seconds: float, places: list[Place]) -> Iterator[Row]:
    messages = [batch[0] for batch in sent(KIND)]
    local = LocalConfig(commit_log_file_bytes=64 * MIB)
    gc.collect()
    alone = loaded(replace(ALONE, local=local), messages, seconds)
    for place in places:
        assert place.tier is not None
        gc.collect()
        ours = loaded(
            replace(place, local=local, tier=replace(place.tier, **SMALL)),  # type: ignore[arg-type]
            messages,
            seconds,
        )
        what = f"{place.name}, {PUTS_A_SECOND:,} puts and {PULLS_A_SECOND} pulls a second"
        for call, beside, spent in (
            ("put", alone.puts, ours.puts),
            ("pull of 32", alone.pulls, ours.pulls),
        ):
            for name, share in SHARES.items():
                plain = [float(np.percentile(part, share)) for part in thirds(beside)]
                found = [float(np.percentile(part, share)) for part in thirds(spent)]
                yield turns_row(f"{call} {name}, {what} (store alone)", plain, found, unit="s")
        for name, values, unit in (
            ("anonymous memory", ours.memory, "MB"),
            ("descriptors", ours.descriptors, ""),
        ):
            early = values[: max(1, len(values) // 10)]
            yield turns_row(
                f"{name} after {seconds / 60:.3g} minutes, {place.name} (after a tenth of them)",
                [max(early)],
                [values[-1]],
                unit=unit,  # type: ignore[arg-type]
                promised=GROWTH_PROMISED,
            )


def thirds(values: list[float]) -> Iterator[list[float]]:
    """Three parts, one after the other: their differences are the noise of a figure."""
    step = len(values) // 3
    for start in range(0, 3 * step, step):
        yield values[start : start + step]


def main() -> int:
    with ministack() as endpoint:
        places = [POSIX, *([s3(endpoint)] if endpoint else [])]
        return report("steady", [*rows_of(MINUTES * 60, places)])


if __name__ == "__main__":
    sys.exit(main())
