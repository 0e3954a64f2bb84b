"""What the local store does besides plain puts, as ratios to a plain way or to Java's classes.

Writers that wait for the disk together; the scan of a recovery; a key in a full index file; the
memory of a large store. Prints one table. Exits with 1 if a promise is missed:

    python -m bench.local
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from bench import _group_commit, _sparse_store
from bench._java import Java, java
from bench._local_puts import a_log, append_all
from bench._messages import BATCH_MESSAGES, BODY, a_second, batches
from bench._rows import Row, java_row, report, turns_row
from tieredstore.codec.java import index_key, local_key_hash
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.index_file import IndexFile, IndexSize, ItemColumns
from tieredstore.model.values import INT32_MAX, INT64_MAX

TURNS = 3
SCANNED_BATCHES = 2_000
INDEX_SLOTS, INDEX_ITEMS = 5_000_000, 20_000_000
INDEX_PART = 1_000_000
ASKED_KEYS = 2_000
CRC_PROMISED, KEY_PROMISED, MEMORY_PROMISED = 0.3, 0.3, 2.0


def group_commit_rows() -> Iterator[Row]:
    turns = [
        (
            _group_commit.syncs_a_second(),
            _group_commit.puts_a_second(1),
            _group_commit.puts_a_second(_group_commit.WRITERS),
            _group_commit.awaited_puts_a_second(1, _group_commit.SYNCED_PUTS),
            _group_commit.awaited_puts_a_second(
                _group_commit.IN_FLIGHT, _group_commit.AWAITED_PUTS
            ),
        )
        for _ in range(TURNS)
    ]
    plain, alone, together, awaited, in_flight = zip(*turns, strict=True)
    writers = _group_commit.WRITERS
    yield turns_row(
        f"synced puts, {writers} writers (one, a sync each)", alone, together, promised=1.5
    )
    yield turns_row(f"synced puts, {writers} writers (bare pwrite, sync)", plain, together)
    yield turns_row(
        f"asyncio, through the tier, {_group_commit.IN_FLIGHT:,} in flight (one)",
        awaited,
        in_flight,
    )


def scan_row() -> Row:
    """A recovery's scan, compared with only the checksums of the same bodies."""
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as folder, Runtime.inline() as runtime:
        config = LocalConfig(store_path=folder)
        commit_log = a_log(config, runtime)
        sample = batches(100)
        for _ in range(SCANNED_BATCHES // len(sample)):
            append_all(commit_log, config, sample)
        count = SCANNED_BATCHES * BATCH_MESSAGES

        def scan() -> None:
            assert sum(map(len, commit_log.scan_from(0))) == count

        def check() -> None:
            for _ in range(count):
                crc32(BODY)

        for _ in range(TURNS):
            bare.append(a_second(check, count))
            ours.append(a_second(scan, count))
        commit_log.close()
    return turns_row(
        "scan with checksums (zlib.crc32 of each body)", bare, ours, promised=CRC_PROMISED
    )


def query_rows(asked: Java) -> Iterator[Row]:
    """Keys anywhere in a full file, each asked for once before, so that its pages are in memory.

    They are compared with the same keys in a file that has nothing else.
    """
    texts = [index_key("TopicTest", f"order-{number:08d}") for number in range(ASKED_KEYS)]
    full, small, java_spent = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder, "20240101000000000"), Path(folder, "20240101000000001")
        file = filled(path, texts, INDEX_ITEMS)
        few = filled(other, texts, ASKED_KEYS + 1)
        assert file.is_full
        for turn in range(TURNS + 1):
            found = seconds_a_query(file, texts), seconds_a_query(few, texts)
            seconds = asked.seconds(
                "local-query",
                file=path,
                slots=INDEX_SLOTS,
                items=INDEX_ITEMS,
                count=ASKED_KEYS,
            )
            if turn:  # the first turn loads the pages
                full.append(found[0])
                small.append(found[1])
                java_spent += [] if seconds is None else [seconds / ASKED_KEYS]
        file.close()
        few.close()
    what = f"key in a full index file of {INDEX_ITEMS:,}"
    yield turns_row(
        f"{what} (in one of {ASKED_KEYS:,})", small, full, unit="s", promised=KEY_PROMISED
    )
    yield java_row(what, java_spent or None, full, unit="s")


def filled(path: Path, texts: Sequence[str], count: int) -> IndexFile:
    """A file with these keys spread over its first part, and others until it has `count`."""
    dice = np.random.default_rng(3)
    file = IndexFile.create(path, IndexSize(INDEX_SLOTS, INDEX_ITEMS))
    wanted = [local_key_hash(text) for text in texts]
    for start in range(0, count, INDEX_PART):
        size = min(INDEX_PART, count - start)
        hashes = dice.integers(0, INT32_MAX, size, np.int32)
        if not start:
            step = size // len(wanted)
            hashes[: step * len(wanted) : step] = wanted
        offsets = np.arange(start, start + size, dtype=np.int64) * 400
        times = np.full(size, 1_700_000_000_000 + start, np.int64)
        file.put(ItemColumns(key_hashes=hashes, log_offsets=offsets, store_timestamps=times))
    return file


def seconds_a_query(file: IndexFile, texts: Sequence[str]) -> float:
    started = time.perf_counter()
    for text in texts:
        assert list(file.candidates(local_key_hash(text), begin=0, end=INT64_MAX))
    return (time.perf_counter() - started) / len(texts)


def memory_row() -> Row:
    """The memory for opening, compared with that of the process after its imports."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        _sparse_store.make(root, _sparse_store.LOG_FILES)
        figures = [_sparse_store.open_in_child(root) for _ in range(3)]
    return turns_row(
        "memory to open 100 GB (to import the library)",
        [each["after_imports"] / 1e6 for each in figures],
        [max(each["after_opening"] - each["after_imports"], 1 << 16) / 1e6 for each in figures],
        unit="MB",
        promised=MEMORY_PROMISED,
    )


def main() -> int:
    with java() as asked:
        rows = [*group_commit_rows(), scan_row(), *query_rows(asked), memory_row()]
    return report("local", rows)


if __name__ == "__main__":
    sys.exit(main())
