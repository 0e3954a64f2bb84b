"""What the log of a bucket costs a processor: a round of 10 000 queues, and opening after many.

A round has a message of 1 KB and a unit of 20 bytes for each queue; their rows only grow. It is
composed, encoded and folded. Then another process opens a log that has such rounds after its state.
Prints one table. Exits with 1 if a promise is missed:

    python -m bench.rounds
"""

from __future__ import annotations

import dataclasses
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from bench._rows import report, turns_row
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
TURNS: Final = 3
SIZES: Final = {SegmentType.COMMIT_LOG: 1_000, SegmentType.CONSUME_QUEUE: 20}
ROUND_PROMISED, OPEN_PROMISED, MEMORY_PROMISED = 0.2, 0.1, 2.0


def a_round(number: int) -> Draft:
    """The n-th round of all queues."""
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
    """Write a state and the rounds after it as files; returns what each round took."""
    state, times = LogState(), []
    for number in range(ROUNDS + 1):
        data, seconds = folded(state, a_round(number))
        times.append(seconds)
        (folder / f"{number:03d}").write_bytes(data)
        if not number:
            (folder / "state").write_bytes(state.encoded())
    return times


class FolderClient(MemoryObjectClient):
    """Objects whose bytes stay in files: the process that opens them does not hold them all."""

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
    """Runs in its own process; prints its seconds and its bytes."""
    runtime = Runtime.inline()
    calls = ObjectCalls(FolderClient(folder), runtime, RetryPolicy())
    started = time.process_time()
    state = BrokerLog(calls, LAYOUT, "broker", runtime).follow()
    seconds = time.process_time() - started
    assert state.sequence == ROUNDS + 1
    assert len(state.segments) == 2 * QUEUES
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def bare_round(draft: Draft) -> float:
    """Only the same rows as text and the same bytes joined: the least that an entry needs."""
    started = time.process_time()
    json.dumps([dataclasses.asdict(row) for row in draft.rows])
    b"".join([write.data for write in draft.writes])
    return time.process_time() - started


def bare_open(folder: Path) -> float:
    """Only reads all the bytes and computes their checksum."""
    started = time.process_time()
    for path in sorted(folder.iterdir()):
        crc32(path.read_bytes())
    return time.process_time() - started


def opened(folder: Path) -> tuple[float, float]:
    """Processor seconds and bytes of a separate process."""
    command = [sys.executable, "-m", "bench.rounds", str(folder)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(found[0]), float(found[1])


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        times = written(folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        turns = [(bare_open(folder), *opened(folder)) for _ in range(TURNS)]
    bare, seconds, memory = zip(*turns, strict=True)
    behind = f"behind {ROUNDS} such rounds"
    least = [bare_round(a_round(number)) for number in range(1, TURNS + 1)]
    rows = [
        turns_row(
            f"a round of {QUEUES} queues, CPU (its rows as JSON, its bytes joined)",
            least,
            times[1 : TURNS + 1],
            unit="s",
            promised=ROUND_PROMISED,
        ),
        turns_row(
            f"opening {behind}, CPU (reading them, a CRC of each)",
            bare,
            seconds,
            unit="s",
            promised=OPEN_PROMISED,
        ),
        turns_row(
            f"opening {behind}, memory of the process (their bytes)",
            [size / 1e6] * TURNS,
            [each / 1e6 for each in memory],
            unit="MB",
            promised=MEMORY_PROMISED,
        ),
    ]
    return report("rounds", rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        open_log(Path(sys.argv[1]))
    else:
        sys.exit(main())
