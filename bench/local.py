"""What the local store does in a second, as ratios to what was promised or to a plain way.

Puts in batches with dispatch, beside the same records appended only; writers that wait for the disk
together; the scan of a recovery; a key in a full index file; the memory of a large store. Prints
one table. Exits with 1 where a promise is missed:

    python -m bench.local
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench import _group_commit, _sparse_store
from bench._messages import BATCH_MESSAGES, a_second, batches
from bench._rows import Row, rate_row, report
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.java import index_key, local_key_hash
from tieredstore.codec.record import property_bytes_of
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.commit_log import CommitLog, Flusher
from tieredstore.local.config import LocalConfig
from tieredstore.local.encoder import RecordEncoder
from tieredstore.local.index_file import IndexFile, IndexSize, ItemColumns
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.message_columns import MessageColumns
from tieredstore.model.messages import Message
from tieredstore.model.values import INT32_MAX, INT64_MAX

TURNS = 7
BATCHES = 400
SCANNED_BATCHES = 2_000
INDEX_SLOTS, INDEX_ITEMS = 5_000_000, 20_000_000
INDEX_PART = 1_000_000
ASKED_KEYS = 2_000
MEMORY_BYTES = 50e6

PUTS_A_SECOND, JAVA_A_SECOND, SCANNED_A_SECOND = 250_000, 226_000, 1_000_000


def puts_a_second(messages: Iterable[Sequence[Message]]) -> float:
    """Batches into a store that flushes, dispatches and indexes as it does by default."""
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        store = LocalMessageStore(LocalConfig(store_path=folder), runtime)
        store.load()
        store.start()
        speed = put_all(store, messages)
        store.shutdown()
        return speed


def tiered_puts_a_second(messages: Sequence[Sequence[Message]]) -> float:
    """The same through a tier in a folder, to which what was put is uploaded meanwhile."""
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        store = TieredMessageStore(
            LocalMessageStore(LocalConfig(store_path=folder), runtime),
            StoreConfig(provider="posix", path=f"{folder}/tier", store_path=folder),
            runtime=runtime,
        )
        store.load()
        store.start()
        speed = put_all(store, messages)
        store.shutdown(drain=False)
        return speed


def put_all(store: MessageStore, messages: Iterable[Sequence[Message]]) -> float:
    """The first batch is not counted, and making the others is, where `messages` makes them."""
    others = iter(messages)
    assert all(result.stored for result in store.put_messages(next(others)))
    count = 0

    def work() -> None:
        nonlocal count
        for batch in others:
            count += len(store.put_messages(batch))

    spent = 1 / a_second(work, 1)
    return count / spent


def as_objects(sent: Sequence[Sequence[Message]]) -> Iterator[Sequence[Message]]:
    """What a broker makes of a producer's batch: an object of each message."""
    for batch in sent:
        yield [
            Message(
                topic="TopicTest",
                queue_id=message.queue_id,
                body=message.body,
                properties_text=message.properties_text,
                born_timestamp=message.born_timestamp,
            )
            for message in batch
        ]


def as_columns(sent: Sequence[Sequence[Message]]) -> Iterator[Sequence[Message]]:
    for batch in sent:
        yield MessageColumns(
            topics="TopicTest",
            queue_ids=[message.queue_id for message in batch],
            bodies=[message.body for message in batch],
            properties_texts=[message.properties_text or "" for message in batch],
            born_timestamps=[message.born_timestamp for message in batch],
        )


def appends_a_second(messages: list[list[Message]]) -> float:
    """The same with the log only, synced as often."""
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        config = LocalConfig(store_path=folder)
        commit_log = a_log(config, runtime)
        flusher = Flusher(
            commit_log.flush, lambda: 0, runtime, interval_ms=config.flush_interval_ms
        )
        flusher.start()
        append_all(commit_log, config, messages[:1])
        speed = a_second(
            lambda: append_all(commit_log, config, messages), len(messages) * BATCH_MESSAGES
        )
        flusher.stop()
        commit_log.close()
        return speed


def a_log(config: LocalConfig, runtime: Runtime) -> CommitLog:
    commit_log = CommitLog(config, runtime, MappedFiles())
    commit_log.load()
    commit_log.start()
    return commit_log


def append_all(commit_log: CommitLog, config: LocalConfig, messages: list[list[Message]]) -> None:
    encode = RecordEncoder(config).encode_all
    queue_offsets = list(range(BATCH_MESSAGES))
    for batch in messages:
        records, _ = encode(batch)
        assert records is not None
        commit_log.append(records, queue_offsets)


def put_rows() -> Iterator[Row]:
    """All kinds in turns, so that what slows the machine down slows each of them."""
    plain = batches(BATCHES)
    as_sent = [
        [replace(one, properties={}, properties_text=property_bytes_of(one)) for one in batch]
        for batch in plain
    ]
    kinds: dict[str, Callable[[], float]] = {
        "appended": lambda: appends_a_second(plain),
        "put": lambda: puts_a_second(plain),
        "tiered": lambda: tiered_puts_a_second(plain),
        "objects": lambda: puts_a_second(as_objects(as_sent)),
        "columns": lambda: puts_a_second(as_columns(as_sent)),
        "mixed": lambda: puts_a_second(batches(BATCHES, mixed=True)),
        "unique": lambda: puts_a_second(batches(BATCHES, unique=True)),
    }
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(TURNS):
        for name, measure in kinds.items():
            speeds[name].append(measure())
    found = {name: statistics.median(values) for name, values in speeds.items()}
    put, appended = found["put"], found["appended"]
    yield rate_row("put and dispatch, 2 keys (what is promised)", PUTS_A_SECOND, put)
    yield rate_row("put and dispatch, 2 keys (append only)", appended, put, 0.5)
    yield rate_row("put and dispatch, 2 keys (Java, 1 KB, 1 key)", JAVA_A_SECOND, put)
    tiered, objects = found["tiered"], found["objects"]
    yield rate_row(
        "through the tier, uploads beside it, 2 keys (without a tier)", put, tiered, None
    )
    yield rate_row("the same (Java, 1 KB, 1 key, without a tier)", JAVA_A_SECOND, tiered, None)
    yield rate_row("made as columns and put (made as objects and put)", objects, found["columns"])
    yield rate_row("put and dispatch, 4 queues mixed in a batch", appended, found["mixed"], None)
    yield rate_row("put and dispatch, UNIQ_KEY and 2 keys", appended, found["unique"], None)


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
    plain, alone, together, awaited, in_flight = (
        statistics.median(column) for column in zip(*turns, strict=True)
    )
    writers = _group_commit.WRITERS
    yield rate_row(f"synced puts, {writers} writers (one, a sync each)", alone, together, 2.0)
    yield rate_row(f"synced puts, {writers} writers (bare pwrite, sync)", plain, together, None)
    yield rate_row(
        f"asyncio, through the tier, {_group_commit.IN_FLIGHT:,} in flight (one)",
        awaited,
        in_flight,
        None,
    )


def scan_row() -> Row:
    with tempfile.TemporaryDirectory() as folder, Runtime.inline() as runtime:
        config = LocalConfig(store_path=folder)
        commit_log = a_log(config, runtime)
        sample = batches(100)
        for _ in range(SCANNED_BATCHES // len(sample)):
            append_all(commit_log, config, sample)
        count = SCANNED_BATCHES * BATCH_MESSAGES

        def work() -> None:
            assert sum(map(len, commit_log.scan_from(0))) == count

        speed = statistics.median(a_second(work, count) for _ in range(5))
        commit_log.close()
    return rate_row("scan with checksums (what is promised)", SCANNED_A_SECOND, speed)


def query_rows() -> Iterator[Row]:
    """Keys anywhere in a full file, each asked for once before, so that its pages are there."""
    dice = np.random.default_rng(3)
    spent: list[float] = []
    asked = [index_key("TopicTest", f"order-{number:08d}") for number in range(ASKED_KEYS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "20240101000000000"
        file = IndexFile.create(path, IndexSize(INDEX_SLOTS, INDEX_ITEMS))
        for start in range(0, INDEX_ITEMS, INDEX_PART):
            hashes = dice.integers(0, INT32_MAX, INDEX_PART, np.int32)
            if not start:
                hashes[:: INDEX_PART // ASKED_KEYS] = [local_key_hash(text) for text in asked]
            offsets = np.arange(start, start + INDEX_PART, dtype=np.int64) * 400
            times = np.full(INDEX_PART, 1_700_000_000_000 + start, np.int64)
            file.put(ItemColumns(key_hashes=hashes, log_offsets=offsets, store_timestamps=times))
        assert file.is_full
        for _ in range(2):  # the second time counts
            spent = [seconds_of_query(file, text) for text in asked]
        file.close()
    for name, share in (("median", 50), ("99 of 100", 99)):
        seconds = float(np.percentile(spent, share))
        yield Row(
            what=f"key in a full index file, {name} (what is promised)",
            beside="1 ms",
            ours=f"{seconds * 1e6:.1f} us",
            ratio=1e-3 / seconds,
            promised=1.0,
        )


def seconds_of_query(file: IndexFile, text: str) -> float:
    started = time.perf_counter()
    found = list(file.candidates(local_key_hash(text), begin=0, end=INT64_MAX))
    spent = time.perf_counter() - started
    assert found
    return spent


def memory_row() -> Row:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        _sparse_store.make(root, _sparse_store.LOG_FILES)
        figures = _sparse_store.open_in_child(root)
    grown = figures["after_opening"] - figures["after_imports"]
    return Row(
        what="memory to open 100 GB (what is promised)",
        beside=f"{MEMORY_BYTES / 1e6:.0f} MB",
        ours=f"{grown / 1e6:.1f} MB",
        ratio=MEMORY_BYTES / max(grown, 1),
        promised=1.0,
    )


def main() -> int:
    rows = [*put_rows(), *group_commit_rows(), scan_row(), *query_rows(), memory_row()]
    return report("local", rows)


if __name__ == "__main__":
    sys.exit(main())
