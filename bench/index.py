"""The tier's key index, compared with plain numpy, and with Java's classes on the same file.

Batches of keys hashed and put into a file; runs of whole messages put into an index, so that their
properties are parsed too; a full file of 20 million items compacted, its footer separately, and the
memory for it; keys found in the full file before it is uploaded. Prints one table. Exits with 1 if
a promise is missed:

    python -m bench.index
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import _index_memory, _index_store
from bench._index_store import RUN_MESSAGES
from bench._java import Java, java
from bench._rows import Row, java_row, report, turns_row
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
JAVA_KEYS = 500_000
INDEX_FOLDER = "tiered_index_file"  # where Java looks for it
ASKED_KEYS = 5_000
TURNS = 5

STORE_PROMISED, COMPACTION_PROMISED, MEMORY_PROMISED = 3.0, 0.5, 2.5
KEY_PROMISED = 0.2


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


def put_rows(file: IndexStoreFile, asked: Java) -> Iterator[Row]:
    """Fill the file; in its last part batches are timed, hashing included."""
    dice = np.random.default_rng(7)
    count = MEASURED_BATCHES * BATCH_KEYS
    keys = [f"order-{number:012d}" for number in range(count)]
    while file.room > count:
        some = dice.integers(0, 1 << 64, min(1 << 18, file.room - count), np.uint64)
        file.put(columns(some, file.item_count))
    rest = [
        columns(np.empty(BATCH_KEYS, np.uint64), start) for start in range(0, count, BATCH_KEYS)
    ]
    ours, hashing, java_rates = [], [], []
    share = len(rest) // TURNS
    for turn in range(TURNS):
        spent = bare = 0.0
        for number in range(turn * share, (turn + 1) * share):
            part = keys[number * BATCH_KEYS : (number + 1) * BATCH_KEYS]
            started = time.perf_counter()
            hashes = key_hashes(part, prefix=PREFIX)
            bare += time.perf_counter() - started
            file.put(replace(rest[number], key_hashes=hashes))
            spent += time.perf_counter() - started
        ours.append(share * BATCH_KEYS / spent)
        hashing.append(share * BATCH_KEYS / bare)
        with tempfile.TemporaryDirectory() as folder:
            seconds = asked.seconds(
                "index-put", store=folder, slots=SLOTS, items=ITEMS, count=JAVA_KEYS
            )
        java_rates += [] if seconds is None else [JAVA_KEYS / seconds]
    assert file.room == 0
    what = f"keys hashed and put, batches of {BATCH_KEYS}"
    yield turns_row(f"{what} (hashed only)", hashing, ours, promised=0.15)
    yield java_row(f"{what}; Java one by one", java_rates or None, ours, promised=1.0)


def store_rows(folder: Path) -> Iterator[Row]:
    """Everything that an index does with committed messages, and then their sync."""
    figures = _index_store.measured(folder)
    yield turns_row(
        f"messages of two keys put, runs of {RUN_MESSAGES}, keys (decoded one by one, not put)",
        figures.plain_keys_a_second,
        figures.keys_a_second,
        promised=STORE_PROMISED,
    )
    yield turns_row(
        "making them durable at once (putting them)",
        [figures.put_seconds],
        [figures.sync_seconds],
        unit="s",
    )


def written(blocks: Iterable[Buffer], path: Path) -> float:
    """Seconds to make the blocks and write them to a file."""
    started = time.perf_counter()
    with path.open("wb", buffering=0) as out:
        for block in blocks:
            out.write(block)
    return time.perf_counter() - started


def bare_copy(items: NDArray[Any]) -> Iterator[Buffer]:
    """The least possible work: a stable radix sort by slot, and the items copied in that order."""
    slots = (items["key_hash"].astype(np.int32) % np.int32(SLOTS))[::-1]
    low = np.argsort(slots.astype(np.uint16), kind="stable")
    order = low[np.argsort((slots >> 16).astype(np.uint16)[low], kind="stable")]
    order = len(slots) - 1 - order
    rows = items.view(np.uint32).reshape(-1, 8)
    for start in range(0, len(order), 1 << 20):
        whole = np.take(rows, order[start : start + (1 << 20)], axis=0)
        yield np.ascontiguousarray(whole[:, :7]).data


def compaction_rows(file: IndexStoreFile, folder: Path, asked: Java) -> Iterator[Row]:
    plain, ours, footers, java_spent = [], [], [], []
    compacted = 0
    for _ in range(TURNS):
        plain.append(written(bare_copy(file.items()), folder / "out"))
        started = time.perf_counter()
        with closing(Compaction.of_file(file)) as compaction:
            dealt = time.perf_counter() - started
            ours.append(dealt + written(compaction.blocks(), folder / "out"))
            compacted = (folder / "out").stat().st_size
            assert compacted == compaction.end
            footers.append(written(compaction.footer(), folder / "footer"))
        seconds = asked.seconds("index-compact", **java_file(folder))
        java_spent += [] if seconds is None else [seconds]
    what = f"compaction of {file.item_count:,} items"
    yield turns_row(
        f"{what} (numpy's order and copy)", plain, ours, unit="s", promised=COMPACTION_PROMISED
    )
    yield java_row(f"{what}; Java's stays in memory", java_spent or None, ours, unit="s")
    yield turns_row("its footer, filter and fences (the compaction)", ours, footers, unit="s")
    figures = _index_memory.in_child(file.path, slot_count=SLOTS, item_capacity=ITEMS)
    for name in ("compaction", "footer"):
        yield turns_row(
            f"anonymous memory of a process, {name} (the compacted file)",
            [compacted / 1e6],
            [figures[name] / 1e6],
            unit="MB",
            promised=MEMORY_PROMISED,
        )


def java_file(folder: Path) -> dict[str, object]:
    """The arguments with which Java opens the same file."""
    return {"store": folder, "slots": SLOTS, "items": ITEMS, "begin": BEGIN}


def query_rows(file: IndexStoreFile, folder: Path, asked: Java) -> Iterator[Row]:
    """Keys of the last batches, in the full file and in one that has nothing else.

    Each was asked for once before, so that its pages are in memory.
    """
    step = MEASURED_BATCHES * BATCH_KEYS // ASKED_KEYS
    texts = [f"{PREFIX}order-{number * step:012d}" for number in range(ASKED_KEYS)]
    few = IndexStoreFile.create(folder, BEGIN, slot_count=SLOTS, item_capacity=ITEMS)
    few.put(columns(key_hashes([text.removeprefix(PREFIX) for text in texts], prefix=PREFIX), 0))
    full, small, java_spent = [], [], []
    for turn in range(TURNS + 1):
        found = seconds_a_key(few, texts), seconds_a_key(file, texts)
        seconds = asked.seconds(
            "index-query", **java_file(file.path.parent.parent), count=ASKED_KEYS, step=step
        )
        if turn:  # the first turn loads the pages
            small.append(found[0])
            full.append(found[1])
            java_spent += [] if seconds is None else [seconds / ASKED_KEYS]
    few.close()
    what = "key in a full unsealed file"
    yield turns_row(
        f"{what} (in one of {ASKED_KEYS:,})", small, full, unit="s", promised=KEY_PROMISED
    )
    yield java_row(what, java_spent or None, full, unit="s")


def seconds_a_key(file: IndexStoreFile, texts: Sequence[str]) -> float:
    started = time.perf_counter()
    for text in texts:
        assert file.find(text, begin=0, end=INT64_MAX, count_max=32)
    return (time.perf_counter() - started) / len(texts)


def main() -> int:
    with java() as asked, tempfile.TemporaryDirectory() as name:
        root, small = Path(name), Path(name, "small")
        folder = root / INDEX_FOLDER
        for each in (folder, small):
            each.mkdir()
        file = IndexStoreFile.create(folder, BEGIN, slot_count=SLOTS, item_capacity=ITEMS)
        rows = [
            *put_rows(file, asked),
            *query_rows(file, small, asked),
            *compaction_rows(file, root, asked),
        ]
        file.close()
        rows += store_rows(root / "store")
    return report("index", rows)


if __name__ == "__main__":
    sys.exit(main())
