"""What a read of the tier costs, as ratios to plain reads of the same ranges and to promises.

A cold queue read from its beginning to its end, beside bare preads of the ranges that were asked
for; cached reads of one message and of a pull of 32; many readers of one cold block. Prints one
table. Exits with 1 where a promise is missed:

    python -m bench.fetch
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench._rows import Row, report
from bench._tiered_queue import BATCH, MESSAGES, TOPIC, Bench
from tieredstore.driver.message_store import ReadRequest
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import MIB

READERS = 64
TURNS = 7
CACHED_CALLS = 500

COLD_RATIO = 0.5
ONE_SECONDS, PULL_SECONDS = 50e-6, 115e-6
JAVA_FETCH, JAVA_PULL = 3_300e6, 278e6  # bytes a second: batches of 4 096; 32 through its cache


def cold_rows(bench: Bench) -> list[Row]:
    rows = []
    ways: list[tuple[str, Callable[[int], tuple[float, int]], int, float | None, float]] = [
        ("cold queue as columns, 4 096 a call", bench.cold_columns, BATCH, COLD_RATIO, JAVA_FETCH),
        ("cold queue passed on, 4 096 a call", bench.cold_records, BATCH, None, JAVA_FETCH),
        ("cold queue as messages, 4 096 a call", bench.cold_messages, BATCH, None, JAVA_FETCH),
        ("cold queue as messages, 32 a call", bench.cold_messages, 32, None, JAVA_PULL),
    ]
    for what, read, count_max, promised, java in ways:
        cold, bare, reads = [], [], 0
        for _ in range(TURNS):
            seconds, reads = read(count_max)
            cold.append(seconds)
            bare.append(bench.bare())
        ours, plain = statistics.median(cold), statistics.median(bare)
        rows.append(speed_row(f"{what}, beside bare preads", bench, plain, ours, promised))
        beaten = 1.0 if java == JAVA_PULL else None
        rows.append(speed_row(f"{what}, beside Java's", bench, bench.bytes / java, ours, beaten))
        allowed = -(-bench.bytes // (8 * MIB)) + 2
        rows.append(
            Row(
                what=f"{what}, requests",
                beside=f"<= {allowed}",
                ours=f"{reads}",
                ratio=allowed / reads,
                promised=1.0,
            )
        )
    return rows


def speed_row(what: str, bench: Bench, plain: float, ours: float, promised: float | None) -> Row:
    return Row(
        what=what,
        beside=f"{bench.bytes / plain / 1e6:,.0f} MB/s",
        ours=f"{bench.bytes / ours / 1e6:,.0f} MB/s",
        ratio=plain / ours,
        promised=promised,
    )


def cached_rows(bench: Bench) -> list[Row]:
    rows = []
    size, speed = bench.file.log.commit_offset // MESSAGES, 0.0
    with bench.fetcher() as fetcher:
        for count_max, promised in ((1, ONE_SECONDS), (32, PULL_SECONDS)):
            times = []
            for _ in range(2 * TURNS):
                started = time.perf_counter()
                for _ in range(CACHED_CALLS):
                    fetcher.get_message(ReadRequest(TOPIC, 0, 1_000, count_max=count_max))
                times.append((time.perf_counter() - started) / CACHED_CALLS)
            ours = statistics.median(times)
            rows.append(
                Row(
                    what=f"cached read of {count_max}",
                    beside=f"< {promised * 1e6:.0f} us",
                    ours=f"{ours * 1e6:.1f} us",
                    ratio=promised / ours,
                    promised=1.0,
                )
            )
            speed = count_max * size / ours
    rows.append(
        Row(
            what="cached pull of 32, beside Java's",
            beside=f"{JAVA_PULL / 1e6:,.0f} MB/s",
            ours=f"{speed / 1e6:,.0f} MB/s",
            ratio=speed / JAVA_PULL,
            promised=1.0,
        )
    )
    return rows


def shared_row(bench: Bench) -> Row:
    """Reads of log blocks when many readers want the same one at once."""
    with bench.fetcher() as fetcher, ThreadPoolExecutor(READERS) as pool:
        begun = threading.Barrier(READERS)

        def read() -> int:
            begun.wait(60)
            return len(fetcher.get_message(ReadRequest(TOPIC, 0, 30_000)).messages)

        found = [future.result() for future in [pool.submit(read) for _ in range(READERS)]]
        assert found == [32] * READERS
        kinds = [segment.type.name for segment, _, _ in bench.provider.reads]
    reads = kinds.count("COMMIT_LOG")
    return Row(
        what=f"{READERS} readers of one cold block, requests",
        beside="1",
        ours=f"{reads}",
        ratio=1 / reads,
        promised=1.0,
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        bench = Bench(Path(folder), runtime)
        rows = [*cold_rows(bench), *cached_rows(bench), shared_row(bench)]
        bench.store.close()
    return report("fetch", rows)


if __name__ == "__main__":
    sys.exit(main())
