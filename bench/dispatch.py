"""How fast messages are uploaded to a tier on POSIX, compared with a bare loop of the same writes.

Append and commit of prepared runs, the whole dispatcher from a filled local store, and two thousand
queues at once: their memory, and a look at all of them. Prints one table. Exits with 1 if a promise
is missed:

    python -m bench.dispatch
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench._java import Java, java
from bench._messages import run_of
from bench._rows import Row, java_row, report, turns_row
from tieredstore.access.dispatcher import Dispatcher
from tieredstore.codec.queue_unit import encode_units
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import placed_records
from tieredstore.index.contract import NoIndex
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import MIB, StoreConfig
from tieredstore.model.messages import Message, MessageRun
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import a_record

TURNS: Final = 3
BATCH, BATCHES = 4_096, 12
BODY_BYTES: Final = 900  # 1 KB with what a record adds
QUEUES, TRICKLE, TRICKLE_BODY = 2_000, 16, 900
BUFFER_BYTES: Final = 16 * MIB
LOOK_PROMISED: Final = 0.02


class Tier:
    """A tier on POSIX with a dispatcher in front of it."""

    def __init__(self, root: Path, runtime: Runtime, local: LocalMessageStore, **settings: int):
        config = StoreConfig.from_mapping(
            {"broker_name": "broker-a", "store_path": str(root), **settings}
        )
        provider = PosixProvider(root / "tier", config.cluster_name, runtime)
        self.metadata = JsonMetadataStore.open(root / "catalogue.json")
        self.files = FlatFileStore(
            config, provider=provider, metadata=self.metadata, runtime=runtime
        )
        self.files.load()
        self.dispatcher = Dispatcher(
            local, self.files, provider, self.metadata, NoIndex(), config, runtime
        )
        local.add_dispatcher(self.dispatcher.on_messages)
        local.add_retention_guard(self.dispatcher.needed_from)

    def close(self) -> None:
        self.files.close()
        self.metadata.close()


def prepared_run() -> MessageRun:
    """The run that a local store reads for one batch."""
    records = [a_record(number, body_bytes=BODY_BYTES) for number in range(BATCH)]
    return run_of(0, records)


def bare_seconds(run: MessageRun, root: Path) -> float:
    """Write only the same bytes: two files, two syncs a batch."""
    data, log_offsets = placed_records(run, BATCH, 0)
    units = encode_units(
        log_offsets=log_offsets, message_bytes=run.message_bytes, tags_codes=run.tags_codes
    )
    flags = os.O_WRONLY | os.O_CREAT
    files: list[tuple[int, bytes | bytearray]] = [
        (os.open(root / "log", flags), data),
        (os.open(root / "queue", flags), units),
    ]
    started = 0.0
    for batch in range(BATCHES + 1):
        for descriptor, content in files:
            os.pwrite(descriptor, content, batch * len(content))
            os.fdatasync(descriptor)
        started = started or time.perf_counter()  # the first batch made the files
    spent = time.perf_counter() - started
    for descriptor, _ in files:
        os.close(descriptor)
    return spent


def flat_seconds(run: MessageRun, root: Path) -> float:
    """Each batch has its own bytes, as a local store returns them: reading is not counted."""
    with Runtime.inline() as runtime:
        config = StoreConfig(broker_name="broker-a", store_path=str(root))
        provider = PosixProvider(root / "tier", "c", runtime)
        with JsonMetadataStore.open(root / "catalogue.json") as metadata:
            files = FlatFileStore(config, provider=provider, metadata=metadata, runtime=runtime)
            files.load()
            file = files.create("TopicTest", 0)
            file.start_at(0)
            spent = 0.0
            for batch in range(BATCHES + 1):
                own = replace(run, first_offset=batch * BATCH, records=bytearray(run.records))
                started = time.perf_counter()
                appended = file.append(own)
                assert appended.count == BATCH
                assert file.commit()
                if batch:  # the first batch made the files
                    spent += time.perf_counter() - started
            files.close()
    return spent


def filled_store(root: Path, runtime: Runtime) -> LocalMessageStore:
    store = LocalMessageStore(LocalConfig(store_path=str(root), index_enabled=False), runtime)
    store.load()
    store.start()
    return store


def fill(store: LocalMessageStore, count: int, queue_id: int, body: bytes) -> None:
    for start in range(0, count, 256):
        messages = [
            Message(topic="TopicTest", queue_id=queue_id, body=body)
            for _ in range(min(256, count - start))
        ]
        store.put_messages(messages)


def dispatch_seconds(store: LocalMessageStore, root: Path, runtime: Runtime) -> float:
    tier = Tier(root, runtime, store)
    started = time.perf_counter()
    assert tier.dispatcher.dispatch_once(force=True)
    spent = time.perf_counter() - started
    assert tier.dispatcher.committed_offset("TopicTest", 0) == BATCH * BATCHES
    tier.close()
    return spent


def upload_rows(asked: Java) -> Iterator[Row]:
    """Alternate all ways, so that what slows the machine down slows each of them."""
    run, count = prepared_run(), BATCH * BATCHES
    rates: dict[str, list[float]] = {"bare": [], "flat": [], "dispatcher": []}
    java_rates = []
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        store = filled_store(Path(folder, "local"), runtime)
        fill(store, count, 0, bytes(BODY_BYTES))
        store.flush()
        records = Path(folder, "records")
        records.write_bytes(run.records)
        ways: dict[str, Callable[[Path], float]] = {
            "bare": lambda root: bare_seconds(run, root),
            "flat": lambda root: flat_seconds(run, root),
            "dispatcher": lambda root: dispatch_seconds(store, root, runtime),
        }
        for _ in range(TURNS):
            for name, measure in ways.items():
                root = Path(folder, name)
                root.mkdir()
                rates[name].append(count / measure(root))
                shutil.rmtree(root)
            other = asked.seconds(
                "append", folder=Path(folder, "java"), file=records, batches=BATCHES
            )
            java_rates += [] if other is None else [count / other]
        store.shutdown()
    bare, flat, whole = rates["bare"], rates["flat"], rates["dispatcher"]
    what, all_of_it = "append + commit of 4096 x 1 KB", "the whole dispatcher from a local store"
    yield turns_row(f"{what} (bare pwrite + fdatasync)", bare, flat, promised=0.35)
    yield java_row(what, java_rates or None, flat)
    yield turns_row(f"{all_of_it} (bare)", bare, whole)
    yield java_row(f"{all_of_it}; Java appends and commits only", java_rates or None, whole)


def trickle(store: LocalMessageStore) -> None:
    for queue_id in range(QUEUES):
        fill(store, TRICKLE, queue_id, bytes(TRICKLE_BODY))
    store.flush()


def queue_rows() -> Iterator[Row]:
    """Many queues with little in each: the memory of an upload, and the time of a look at all."""
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        root = Path(folder)
        store = filled_store(root / "local", runtime)
        tier = Tier(root, runtime, store, dispatch_buffer_bytes=BUFFER_BYTES)
        trickle(store)
        assert tier.dispatcher.dispatch_once(force=True)
        bare, looks = [], []
        for queue_id in range(QUEUES):
            fill(store, 1, queue_id, bytes(TRICKLE_BODY))
        for _ in range(TURNS):
            started = time.perf_counter()
            for queue_id in range(QUEUES):
                assert store.max_offset("TopicTest", queue_id)
            bare.append(time.perf_counter() - started)
            started = time.perf_counter()
            assert tier.dispatcher.dispatch_once()
            looks.append(time.perf_counter() - started)
        trickle(store)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        assert tier.dispatcher.dispatch_once(force=True)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        tier.close()
        store.shutdown()
    yield turns_row(
        f"memory of an upload of {QUEUES} queues (buffer + 25 %)",
        [BUFFER_BYTES * 1.25 / 1e6],
        [peak / 1e6],
        unit="MB",
        promised=1.0,
    )
    yield turns_row(
        f"a look at {QUEUES} queues of which none is due (asking each for its end)",
        bare,
        looks,
        unit="s",
        promised=LOOK_PROMISED,
    )


def main() -> int:
    with java() as asked:
        rows = [*upload_rows(asked), *queue_rows()]
    return report("dispatch", rows)


if __name__ == "__main__":
    sys.exit(main())
