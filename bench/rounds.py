"""What the log of a bucket costs a processor: a round of 10 000 queues, and opening behind many.

A round has a message of 1 KB and a unit of 20 bytes for each queue; their rows only grow. It is
composed, encoded and folded. Then another process opens a log that has such rounds behind its
state. Prints one table. Exits with 1 where a promise is missed:

    python -m bench.rounds
"""

from __future__ import annotations

import gc
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench._rows import Row, report
from tieredstore.driver.object_client import ListedKey
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.roundlog.draft import Draft, DraftWrite, compose, place
from tieredstore.roundlog.layout import ObjectLayout, log_name, state_name
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.state import LogState
from tieredstore.testing.memory_objects import MemoryObjectClient

LAYOUT: Final = ObjectLayout("cluster")
QUEUES: Final = 10_000
ROUNDS: Final = 41
SIZES: Final = {SegmentType.COMMIT_LOG: 1_000, SegmentType.CONSUME_QUEUE: 20}
ROUND_SECONDS, OPEN_SECONDS, OPEN_BYTES = 0.1, 3.0, 200e6


def a_round(number: int) -> Draft:
    """The n-th of all queues."""
    writes, rows = [], []
    for queue in range(QUEUES):
        path = f"broker/topic-{queue}/0"
        for kind, size in SIZES.items():
            writes.append(DraftWrite((path, kind, 0), number * size, bytes([queue % 256]) * size))
            row = SegmentRecord(
                path=path,
                type=kind,
                base_offset=0,
                size=(number + 1) * size,
                create_timestamp=5,
                begin_timestamp=1_000 + queue,
                end_timestamp=60_000 * number + queue,
            )
            rows.append(row)
    return Draft(writes=writes, rows=rows)


def folded(state: LogState, draft: Draft) -> tuple[bytes, float]:
    """The entry of a round and the seconds of the processor that it took."""
    gc.collect()
    gc.disable()
    started = time.process_time()
    placed = place([draft], inline_bytes_max=1 << 30)
    entry = compose(state, [draft], placed, [], [], epoch=1, nonce="nonce", time_ms=state.sequence)
    data = entry.encoded(placed.inline)
    state.fold(entry.placed_at(len(data)))
    seconds = time.process_time() - started
    gc.enable()
    return data, seconds


def written(folder: Path) -> list[float]:
    """A state and rounds behind it as files, and what each round took."""
    state, times = LogState(), []
    for number in range(ROUNDS + 1):
        data, seconds = folded(state, a_round(number))
        times.append(seconds)
        (folder / f"{number:03d}").write_bytes(data)
        if not number:
            (folder / "state").write_bytes(state.encoded())
    return times


class FolderClient(MemoryObjectClient):
    """Objects whose bytes stay in files: the process that opens them has no copy of all."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        rounds = LAYOUT.rounds("broker")
        self._files = {rounds + state_name(1): folder / "state"}
        for number in range(1, ROUNDS + 1):
            self._files[rounds + log_name(number + 1)] = folder / f"{number:03d}"

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        for key, path in sorted(self._files.items()):
            if key.startswith(prefix) and key > after:
                yield ListedKey(key, path.stat().st_size)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._files[key].open("rb") as file:
            file.seek(start)
            return file.read(length)


def open_log(folder: Path) -> None:
    """In a process of its own: prints its seconds and its bytes."""
    runtime = Runtime.inline()
    calls = ObjectCalls(FolderClient(folder), runtime, RetryPolicy())
    started = time.process_time()
    state = BrokerLog(calls, LAYOUT, "broker", runtime).follow()
    seconds = time.process_time() - started
    assert state.sequence == ROUNDS + 1
    assert len(state.segments) == 2 * QUEUES
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        times = written(Path(name))
        command = [sys.executable, "-m", "bench.rounds", name]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    seconds, size = float(found[0]), float(found[1])
    median = statistics.median(times[1:])
    behind = f"behind {ROUNDS} such rounds"
    rows = [
        Row(
            what=f"a round of {QUEUES} queues, CPU",
            beside=f"{ROUND_SECONDS:.2f} s",
            ours=f"{median:.3f} s",
            ratio=ROUND_SECONDS / median,
            promised=1.0,
        ),
        Row(
            what=f"opening {behind}, CPU",
            beside=f"{OPEN_SECONDS:.1f} s",
            ours=f"{seconds:.2f} s",
            ratio=OPEN_SECONDS / seconds,
            promised=1.0,
        ),
        Row(
            what=f"opening {behind}, memory of the process",
            beside=f"{OPEN_BYTES / 1e6:.0f} MB",
            ours=f"{size / 1e6:.0f} MB",
            ratio=OPEN_BYTES / size,
            promised=1.0,
        ),
    ]
    return report("rounds", rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        open_log(Path(sys.argv[1]))
    else:
        sys.exit(main())
