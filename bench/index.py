"""The tier's key index beside plain numpy, what was promised, and the Java broker's figures.

Batches of keys hashed and put into a file; runs of whole messages put into an index, so that their
properties are taken apart too; a full file of 20 million items compacted, with its footer apart and
the memory it takes; keys found in the full file before it is uploaded. Prints one table. Exits with
1 where a promise is missed:

    python -m bench.index
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import _index_memory, _index_store
from bench._index_store import RUN_MESSAGES
from bench._rows import Row, report
from tieredstore.codec.checks import Buffer
from tieredstore.codec.key_hashes import key_hashes
from tieredstore.index.compaction import Compaction
from tieredstore.index.keys import IndexColumns
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.model.values import INT64_MAX

SLOTS, ITEMS = 5_000_000, 20_000_000
BEGIN = 1_700_000_000_000
PREFIX = "TopicTest#"
BATCH_KEYS = 8_192
MEASURED_BATCHES = 120
ASKED_KEYS = 5_000
TURNS = 5

KEYS_A_SECOND, JAVA_KEYS_A_SECOND = 3_000_000, 2_200_000
STORE_KEYS_A_SECOND = 1_000_000
QUERY_SECONDS, MEMORY_BYTES, JAVA_COMPACTION_SECONDS = 30e-6, 200e6, 4.8


def columns(hashes: NDArray[np.uint64], start: int) -> IndexColumns:
    numbers = np.arange(start, start + len(hashes), dtype=np.int64)
    return IndexColumns(
        key_hashes=hashes,
        topic_ids=1,
        queue_ids=3,
        log_offsets=numbers * 400,
        message_bytes=np.full(len(hashes), 400, np.int64),
        store_timestamps=BEGIN + numbers // 20,
    )


def put_rows(file: IndexStoreFile) -> Iterator[Row]:
    """Fill the file; in its last part batches are timed, hashing included."""
    dice = np.random.default_rng(7)
    count = MEASURED_BATCHES * BATCH_KEYS
    keys = [f"order-{number:012d}" for number in range(count)]
    while file.room > count:
        some = dice.integers(0, 1 << 64, min(1 << 18, file.room - count), np.uint64)
        file.put(columns(some, file.item_count))
    spent, bare = [], []
    rest = [
        columns(np.empty(BATCH_KEYS, np.uint64), start) for start in range(0, count, BATCH_KEYS)
    ]
    for number, held in enumerate(rest):
        part = keys[number * BATCH_KEYS : (number + 1) * BATCH_KEYS]
        started = time.perf_counter()
        hashes = key_hashes(part, prefix=PREFIX)
        hashed = time.perf_counter()
        file.put(
            IndexColumns(
                key_hashes=hashes,
                topic_ids=held.topic_ids,
                queue_ids=held.queue_ids,
                log_offsets=held.log_offsets,
                message_bytes=held.message_bytes,
                store_timestamps=held.store_timestamps,
            )
        )
        spent.append(time.perf_counter() - started)
        bare.append(hashed - started)
    assert file.room == 0
    speed = BATCH_KEYS / statistics.median(spent)
    for beside, plain, promised in (
        ("what is promised", KEYS_A_SECOND, 1.0),
        ("Java, one by one", JAVA_KEYS_A_SECOND, 1.0),
    ):
        yield Row(
            what=f"keys hashed and put, batches of {BATCH_KEYS} ({beside})",
            beside=f"{plain:,}/s",
            ours=f"{speed:,.0f}/s",
            ratio=speed / plain,
            promised=promised,
        )
    yield Row(
        what="the same, the share of hashing",
        beside="",
        ours=f"{statistics.median(bare) / statistics.median(spent):.0%}",
        ratio=1.0,
    )


def store_rows(folder: Path) -> Iterator[Row]:
    """All that an index does with messages that were committed, and then the sync of them."""
    figures = _index_store.measured(folder)
    speed = figures.keys_a_second
    for beside, plain, promised in (
        ("the aim", STORE_KEYS_A_SECOND, None),
        ("decoded one by one, not put", figures.plain_keys_a_second, 4.0),
    ):
        yield Row(
            what=f"messages of two keys put, runs of {RUN_MESSAGES}, keys ({beside})",
            beside=f"{plain:,.0f}/s",
            ours=f"{speed:,.0f}/s",
            ratio=speed / plain,
            promised=promised,
        )
    yield Row(
        what="making them durable at once (putting them)",
        beside=f"{figures.put_seconds:.2f} s",
        ours=f"{figures.sync_seconds:.2f} s",
        ratio=figures.put_seconds / figures.sync_seconds,
    )


def written(blocks: Iterable[Buffer], path: Path) -> float:
    """Seconds to make the blocks and write them to a file."""
    started = time.perf_counter()
    with path.open("wb", buffering=0) as out:
        for block in blocks:
            out.write(block)
    return time.perf_counter() - started


def bare_copy(items: NDArray[Any]) -> Iterator[Buffer]:
    """The least that can be done: a stable radix order by slot, and the items copied in it."""
    slots = (items["key_hash"].astype(np.int32) % np.int32(SLOTS))[::-1]
    low = np.argsort(slots.astype(np.uint16), kind="stable")
    order = low[np.argsort((slots >> 16).astype(np.uint16)[low], kind="stable")]
    order = len(slots) - 1 - order
    rows = items.view(np.uint32).reshape(-1, 8)
    for start in range(0, len(order), 1 << 20):
        whole = np.take(rows, order[start : start + (1 << 20)], axis=0)
        yield np.ascontiguousarray(whole[:, :7]).data


def compaction_rows(file: IndexStoreFile, folder: Path) -> Iterator[Row]:
    plain, ours, footers = [], [], []
    for _ in range(TURNS):
        plain.append(written(bare_copy(file.items()), folder / "out"))
        started = time.perf_counter()
        with closing(Compaction.of_file(file)) as compaction:
            dealt = time.perf_counter() - started
            ours.append(dealt + written(compaction.blocks(), folder / "out"))
            assert (folder / "out").stat().st_size == compaction.end
            footers.append(written(compaction.footer(), folder / "footer"))
    bare, mine = statistics.median(plain), statistics.median(ours)
    for beside, seconds, promised in (
        ("numpy's order and copy", bare, 1 / 1.5),
        ("Java, held in memory", JAVA_COMPACTION_SECONDS, 1.0),
    ):
        yield Row(
            what=f"compaction of {file.item_count:,} items ({beside})",
            beside=f"{seconds:.2f} s",
            ours=f"{mine:.2f} s",
            ratio=seconds / mine,
            promised=promised,
        )
    yield Row(
        what="its footer, filter and fences (the compaction)",
        beside=f"{mine:.2f} s",
        ours=f"{statistics.median(footers):.2f} s",
        ratio=mine / statistics.median(footers),
    )
    figures = _index_memory.in_child(file.path, slot_count=SLOTS, item_capacity=ITEMS)
    for name in ("compaction", "footer"):
        yield Row(
            what=f"anonymous memory of a process, {name} (what is promised)",
            beside=f"{MEMORY_BYTES / 1e6:.0f} MB",
            ours=f"{figures[name] / 1e6:.0f} MB",
            ratio=MEMORY_BYTES / figures[name],
            promised=1.0,
        )


def query_rows(file: IndexStoreFile) -> Iterator[Row]:
    """Keys of the last batches, each asked for once before, so that its pages are there."""
    step = MEASURED_BATCHES * BATCH_KEYS // ASKED_KEYS
    asked = [f"{PREFIX}order-{number * step:012d}" for number in range(ASKED_KEYS)]
    spent: list[float] = []
    for _ in range(2):  # the second time counts
        spent = []
        for text in asked:
            started = time.perf_counter()
            found = file.find(text, begin=0, end=INT64_MAX, count_max=32)
            spent.append(time.perf_counter() - started)
            assert found
    for name, share, promised in (("median", 50, 1.0), ("99 of 100", 99, None)):
        seconds = float(np.percentile(spent, share))
        yield Row(
            what=f"key in a full unsealed file, {name} (what is promised)",
            beside=f"{QUERY_SECONDS * 1e6:.0f} us",
            ours=f"{seconds * 1e6:.1f} us",
            ratio=QUERY_SECONDS / seconds,
            promised=promised,
        )


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = IndexStoreFile.create(folder, BEGIN, slot_count=SLOTS, item_capacity=ITEMS)
        rows = [*put_rows(file), *query_rows(file), *compaction_rows(file, folder)]
        file.close()
        rows += store_rows(folder / "store")
    return report("index", rows)


if __name__ == "__main__":
    sys.exit(main())
