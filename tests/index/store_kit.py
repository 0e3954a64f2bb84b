"""A key index on a tier for tests: one process after another, a manual clock, counted reads.

`Shop` has bytes and a catalogue that outlive the indexes opened on them, and a linear scan over
all that was put.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.access.fetch_kit import CountedProvider
from tests.flat.tiers import FaultyCatalogue, run_of
from tieredstore.codec.java import string_hash
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.index.contract import CommittedRun, IndexAnswer, IndexHit
from tieredstore.index.store import IndexStore
from tieredstore.index.uploaded import UploadedIndex
from tieredstore.metadata.tables import Tables
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import INT64_MAX, QueueRecord, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Faults, FaultyProvider
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record

BROKER = "broker-a"
INDEX_PATH = f"{BROKER}/rmq_sys_INDEX/0"
SLOTS, ITEMS = 61, 40
ALL = {"count_max": 10_000, "begin": 0, "end": INT64_MAX}


def open_below(folder: Path) -> list[str]:
    """The open files of this process below a folder; empty if the system does not tell."""
    held = Path("/proc/self/fd")
    names = []
    for link in held.iterdir() if held.is_dir() else ():
        with suppress(FileNotFoundError):  # another thread has closed it
            names.append(os.readlink(link))
    return [name for name in names if name.startswith(str(folder))]


class Shop:
    """A tier's backend and catalogue; each `open` acts as a new process."""

    def __init__(
        self, folder: Path, *, slots: int = SLOTS, items: int = ITEMS, **more: Any
    ) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.tables = Tables()
        self.provider = CountedProvider(MemoryProvider(self.runtime), self.runtime)
        self.folder = folder
        self.config = StoreConfig(
            broker_name=BROKER,
            store_path=str(folder),
            index_slot_count=slots,
            index_item_count=items,
            **more,
        )
        self.faults = Faults()
        self.rows: list[tuple[str, IndexHit]] = []
        self.ends: dict[int, int] = {}
        self.index = self.open()

    @property
    def clock(self) -> ManualClock:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        return clock

    def open(self, faults: Faults | None = None, **how: Any) -> IndexStore:
        self.faults = faults or Faults()
        catalogue = FaultyCatalogue(self.tables, self.faults)
        if catalogue.topic(TOPIC) is None:
            catalogue.add_topic(TOPIC)
        self.catalogue: MetadataStore = catalogue
        self.topic_id = catalogue.add_topic(TOPIC).topic_id
        backend: SegmentProvider = FaultyProvider(self.provider, self.faults, self.runtime)
        self.index = IndexStore(
            how.pop("config", self.config),
            provider=backend,
            metadata=catalogue,
            runtime=how.pop("runtime", self.runtime),
            publish=how.pop("publish", None),
        )
        self.index.load()
        return self.index

    def reader(self) -> UploadedIndex:
        reader = UploadedIndex(
            self.config, provider=self.provider, metadata=self.catalogue, runtime=self.runtime
        )
        reader.load()
        return reader

    def reopen(self, faults: Faults | None = None) -> IndexStore:
        self.index.shutdown()
        return self.open(faults)

    def crash(self) -> None:
        """Kill the process: nothing is synced, and nothing is shut down."""
        self.index._writer.close()

    def commit(self, offset: int, queue_id: int = 0) -> None:
        """Write rows for a queue that ends at `offset` into the catalogue."""
        path = f"{BROKER}/{TOPIC}/{queue_id}"
        kind = SegmentType.CONSUME_QUEUE
        held = self.catalogue.segment(path, kind, 0)
        self.catalogue.put(
            QueueRecord(broker_name=BROKER, topic=TOPIC, queue_id=queue_id),
            SegmentRecord(
                path=path,
                type=kind,
                base_offset=0,
                size=20 * offset,
                create_timestamp=self.clock.now_ms() if held is None else held.create_timestamp,
            ),
        )

    def put(
        self,
        keys: Sequence[str],
        *,
        queue_id: int = 0,
        times: Sequence[int] | None = None,
        unique: bool = True,
    ) -> None:
        """Put one message for each entry, which is its KEYS; UNIQ_KEY tells queue and offset."""
        first = self.ends.get(queue_id, 0)
        records, hits = [], []
        for number, text in enumerate(keys, first):
            time = self.clock.now_ms() if times is None else times[number - first]
            properties = {"KEYS": text} if text else {}
            if unique:
                properties["UNIQ_KEY"] = f"u{queue_id}-{number}"
            record = a_record(
                number,
                queue_id=queue_id,
                properties=properties,
                store_timestamp=time,
            )
            records.append(record)
            hit = IndexHit(self.topic_id, queue_id, 1000 * number, len(record), time)
            names = {*text.split(" "), properties.get("UNIQ_KEY", "")} - {""}
            hits += [(name, hit) for name in names]
        self.ends[queue_id] = first + len(records)
        self.commit(self.ends[queue_id], queue_id)
        self.give(first, records, queue_id)
        self.rows += hits

    def give(self, first: int, records: Sequence[bytes], queue_id: int = 0) -> None:
        run = CommittedRun(
            run=run_of(first, records),
            log_offsets=np.arange(first, first + len(records), dtype=np.int64) * 1000,
        )
        self.index.put(TOPIC, self.topic_id, queue_id, run)

    def ask(self, key: str, **window: Any) -> IndexAnswer:
        return self.index.query(TOPIC, self.topic_id, key, **{**ALL, **window})

    def found(self, key: str, **window: Any) -> list[tuple[int, int]]:
        answer = self.ask(key, **window)
        assert answer.complete
        return [(hit.queue_id, hit.log_offset) for hit in answer.hits]

    def scan(self, key: str, begin: int = 0, end: int = INT64_MAX) -> dict[tuple[int, int], int]:
        """The places of messages with the key, and their store times."""
        return {
            (hit.queue_id, hit.log_offset): hit.store_timestamp
            for name, hit in self.rows
            if name == key and begin <= hit.store_timestamp <= end
        }

    def local_files(self) -> list[str]:
        folder = self.folder / "tiered_index_file"
        return sorted(path.name for path in folder.iterdir() if path.name.isdigit())

    def local_path(self) -> Path:
        """The path of the only local file."""
        (name,) = self.local_files()
        return self.folder / "tiered_index_file" / name

    def leave_to_rocketmq(self) -> None:
        """Shut down; leave the only local file as RocketMQ makes it, without hashes beside it."""
        self.index.shutdown()
        path = self.local_path()
        path.with_name(f"{path.name}.keys").unlink()

    def upload_files(self, count: int, *, apart_ms: int = 60_000) -> None:
        """Upload files of one message each."""
        for _ in range(count):
            self.put(["k"])
            self.index.seal()
            self.clock.advance(apart_ms)

    def uploaded_bytes(self) -> bytearray:
        (row,) = self.segments()
        return bytearray(self.provider.open(row.path, row.type, 0).read(0, row.size))

    def replace_uploaded(self, data: bytes, **changes: Any) -> None:
        """Replace the bytes of the only uploaded file, and its row; clear the cache."""
        row = self.segments()[0]
        segment = self.provider.open(row.path, row.type, 0)
        segment.delete()
        segment.write(0, data)
        self.catalogue.put(dataclasses.replace(row, size=len(data), **changes))
        self.index._cache.clear()

    def drop_footer(self, items: int, **changes: Any) -> None:
        """Make the only uploaded file look as if RocketMQ had made it."""
        row = self.segments()[0]
        size = 28 + 8 * self.config.index_slot_count + 28 * items
        data = self.provider.open(row.path, row.type, 0).read(0, size)
        self.replace_uploaded(data, **changes)

    def segments(self) -> list[SegmentRecord]:
        return list(self.catalogue.segments(INDEX_PATH, SegmentType.INDEX))


@contextmanager
def running(*calls: Callable[[], None]) -> Iterator[None]:
    """Run each call in its own thread; they have all ended when the context is left."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def check_like_scan(shop: Shop, key: str, *, count_max: int, begin: int, end: int) -> None:
    """The answer has the newest hits within the window, newest first, each once, up to the limit.

    The index is exact to the second: hits up to two seconds outside are allowed, as a reader checks
    the messages.
    """
    answer = shop.ask(key, count_max=count_max, begin=begin, end=end)
    assert answer.complete
    places = [(hit.queue_id, hit.log_offset) for hit in answer.hits]
    assert len(set(places)) == len(places) <= max(0, count_max)
    times = [hit.store_timestamp for hit in answer.hits]
    assert times == sorted(times, reverse=True)
    same_hash = {name for name, _ in shop.rows if string_hash(name) == string_hash(key)}
    near = {place for name in same_hash for place in shop.scan(name, begin - 1998, end + 1998)}
    assert set(places) <= near
    wanted = shop.scan(key, begin, end)
    if count_max <= 0 or begin > end:
        assert not places
    elif len(places) < count_max:
        assert wanted.keys() <= set(places)
    else:  # no hit is missing that is newer than the oldest one given
        oldest = times[-1] + 1000
        assert {place for place, time in wanted.items() if time > oldest} <= set(places)


def put_again(shop: Shop, queue_id: int = 0) -> int:
    """Put what the index lacks, as the dispatcher does after an open; return how many messages."""
    start = shop.index.indexed_offset(TOPIC, shop.topic_id, queue_id)
    assert start is not None
    keys: dict[int, list[str]] = {}
    for name, hit in shop.rows:
        if hit.queue_id == queue_id and name.startswith("k"):
            keys.setdefault(hit.log_offset // 1000, []).append(name)
    rows, end, shop.ends[queue_id] = shop.rows, shop.ends[queue_id], start
    shop.rows = []
    if start < end:
        shop.put([" ".join(keys.get(number, [])) for number in range(start, end)])
    shop.rows = rows
    return end - start
