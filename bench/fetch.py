"""What a read of the tier costs, compared with plain reads of the same ranges and Java's classes.

A cold queue read from its beginning to its end, compared with bare preads of the requested ranges,
and with Java, which reads the same files; cached reads of one message and of a pull of 32, compared
with opening and reading a file; many readers of one cold block. Prints one table. Exits with 1 if a
promise is missed:

    python -m bench.fetch
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench._java import Java, java
from bench._rows import Row, java_row, report, turns_row
from bench._tiered_queue import BATCH, MESSAGES, TOPIC, Bench
from bench._timing import median_seconds
from tieredstore.driver.message_store import ReadRequest
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import MIB

READERS = 64
TURNS = 5
CACHED_CALLS = 500

COLD_PROMISED = 0.4
CACHED_PROMISED = 0.005


def cold_rows(bench: Bench, asked: Java) -> Iterator[Row]:
    columns = partial(bench.cold_columns, is_checked=True)
    records = partial(bench.cold_records, is_checked=True)
    ways: list[tuple[str, Callable[[int], tuple[float, int]], int, float | None]] = [
        ("cold queue as columns, 4 096 a call", bench.cold_columns, BATCH, COLD_PROMISED),
        ("cold queue as columns, bodies checked, 4 096 a call", columns, BATCH, None),
        ("cold queue passed on, 4 096 a call", bench.cold_records, BATCH, None),
        ("cold queue passed on, bodies checked, 4 096 a call", records, BATCH, None),
        ("cold queue as messages, 4 096 a call", bench.cold_messages, BATCH, None),
        ("cold queue as messages, 32 a call", bench.cold_messages, 32, None),
    ]
    java_read(bench, asked, BATCH)  # opens the tier, and compiles
    for what, read, count_max, promised in ways:
        cold, bare, java_spent, reads = [], [], [], 0
        for _ in range(TURNS):
            seconds, reads = read(count_max)
            cold.append(rate(bench, seconds))
            bare.append(rate(bench, bench.bare()))
            other = java_read(bench, asked, count_max)
            java_spent += [] if other is None else [rate(bench, other)]
        yield turns_row(f"{what}, beside bare preads", bare, cold, unit="MB/s", promised=promised)
        yield java_row(what, java_spent or None, cold, unit="MB/s")
        allowed = -(-bench.bytes // (8 * MIB)) + 2
        yield turns_row(f"{what}, requests (allowed)", [allowed], [reads], unit="", promised=1.0)


def java_read(bench: Bench, asked: Java, count_max: int) -> float | None:
    """Pulls of 32 use Java's cache, as they use ours."""
    return asked.seconds(
        "fetch",
        tier=bench.root,
        store=bench.root.parent,
        batch=count_max,
        count=MESSAGES,
        cached=int(count_max == 32),
    )


def rate(bench: Bench, seconds: float) -> float:
    return bench.bytes / seconds / 1e6


def cached_rows(bench: Bench) -> Iterator[Row]:
    """Cached reads, compared with opening and reading a file."""
    size = bench.file.log.commit_offset // MESSAGES
    path = next(path for path in bench.root.rglob("*") if path.stat().st_size > MESSAGES * size / 2)

    def pread(length: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY)
        data = os.pread(descriptor, length, 1_000 * size)
        os.close(descriptor)
        return data

    with bench.fetcher() as fetcher:
        for count_max in (1, 32):
            asked = ReadRequest(TOPIC, 0, 1_000, count_max=count_max)
            bare, ours = [], []
            for _ in range(TURNS):
                bare.append(
                    median_seconds(partial(pread, count_max * size), repeats=3, loops=CACHED_CALLS)
                )
                ours.append(
                    median_seconds(
                        partial(fetcher.get_message, asked), repeats=3, loops=CACHED_CALLS
                    )
                )
            yield turns_row(
                f"cached read of {count_max} (a file opened and read)",
                bare,
                ours,
                unit="s",
                promised=CACHED_PROMISED,
            )


def shared_row(bench: Bench) -> Row:
    """How many log blocks are read when many readers want the same one at once."""
    with bench.fetcher() as fetcher, ThreadPoolExecutor(READERS) as pool:
        begun = threading.Barrier(READERS)

        def read() -> int:
            begun.wait(60)
            return len(fetcher.get_message(ReadRequest(TOPIC, 0, 30_000)).messages)

        found = [future.result() for future in [pool.submit(read) for _ in range(READERS)]]
        assert found == [32] * READERS
        kinds = [segment.type.name for segment, _, _ in bench.provider.reads]
    reads = kinds.count("COMMIT_LOG")
    what = f"{READERS} readers of one cold block, requests (allowed)"
    return turns_row(what, [1], [reads], unit="", promised=1.0)


def main() -> int:
    with java() as asked, tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        bench = Bench(Path(folder), runtime)
        rows = [*cold_rows(bench, asked), *cached_rows(bench), shared_row(bench)]
        bench.store.close()
    return report("fetch", rows)


if __name__ == "__main__":
    sys.exit(main())
