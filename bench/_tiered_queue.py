"""One queue of 1 KB messages in files, and ways to read all of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench._messages import run_of
from tieredstore.access.fetcher import Fetcher
from tieredstore.codec.message import encode_message
from tieredstore.codec.names import segment_name
from tieredstore.codec.record import QUEUE_OFFSET_POSITION
from tieredstore.driver.message_store import ReadRequest
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.provider import ProviderWrapper, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.index.contract import NoIndex
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import GetResult, MessageRun
from tieredstore.model.values import Host
from tieredstore.providers.posix import PosixProvider

TOPIC, CLUSTER, BROKER = "TopicTest", "bench", "broker-a"
HOST = Host(b"\x7f\x00\x00\x01", 10911)
MESSAGES, BATCH = 65_536, 4_096
ALL_BYTES = 1 << 30


class CountedSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, reads: list[tuple[FileSegment, int, int]]) -> None:
        super().__init__(inner)
        self._reads = reads

    def read(self, position: int, length: int) -> bytes:
        self._reads.append((self.inner, position, length))
        return super().read(position, length)


class CountedProvider(ProviderWrapper):
    """Remembers which ranges of which segment were read."""

    def __init__(self, inner: PosixProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.reads: list[tuple[FileSegment, int, int]] = []

    def wrap(self, segment: FileSegment) -> CountedSegment:
        return CountedSegment(segment, self.reads)


class Bench:
    """One queue of 1 KB messages in files."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.runtime = runtime
        self.root = folder / "tiered"
        self.config = StoreConfig(broker_name=BROKER, cluster_name=CLUSTER, store_path=str(folder))
        self.provider = CountedProvider(PosixProvider(self.root, CLUSTER, runtime), runtime)
        metadata = JsonMetadataStore.open(Path(self.config.catalogue_path))
        self.store = FlatFileStore(
            self.config, provider=self.provider, metadata=metadata, runtime=runtime
        )
        self.store.load()
        self.file = self.store.create(TOPIC, 0)
        self.file.start_at(0)
        for first in range(0, MESSAGES, BATCH):
            assert self.file.append(a_run(first)).count == BATCH
            assert self.file.commit()
        metadata.compact()  # Java reads no journal of ours
        self.bytes = self.file.log.commit_offset + self.file.queue.commit_offset

    @contextmanager
    def fetcher(self, *, is_checked: bool = False) -> Iterator[Fetcher]:
        """A fetcher with an empty cache; `is_checked`: it checks the checksums of bodies."""
        config = replace(self.config, crc_check_enabled=is_checked)
        fetcher = Fetcher(self.store, NoIndex(), config, self.runtime, NoMetrics())
        self.provider.reads.clear()
        yield fetcher
        fetcher.close()

    def cold_columns(self, count_max: int, *, is_checked: bool = False) -> tuple[float, int]:
        """Seconds for the whole queue as columns, and how many reads it took."""
        with self.fetcher(is_checked=is_checked) as fetcher:
            started = time.perf_counter()
            at = 0
            while at < MESSAGES:
                run = fetcher.read_range(TOPIC, 0, at, count_max=count_max, bytes_max=ALL_BYTES)
                assert len(run)
                at = run.end_offset
            return time.perf_counter() - started, len(self.provider.reads)

    def cold_messages(self, count_max: int) -> tuple[float, int]:
        """The same, each message an object with its own bytes."""
        return self._cold(count_max, lambda result: len(result.messages[:]))

    def cold_records(self, count_max: int, *, is_checked: bool = False) -> tuple[float, int]:
        """The same, as a broker passes them on: records one after another."""
        return self._cold(count_max, lambda result: len(result.records()), is_checked=is_checked)

    def _cold(
        self, count_max: int, look: Callable[[GetResult], int], *, is_checked: bool = False
    ) -> tuple[float, int]:
        with self.fetcher(is_checked=is_checked) as fetcher:
            started = time.perf_counter()
            at = 0
            while at < MESSAGES:
                result = fetcher.get_message(
                    ReadRequest(TOPIC, 0, at, count_max=count_max, bytes_max=ALL_BYTES)
                )
                assert result.next_offset > at
                assert look(result)
                at = result.next_offset
            return time.perf_counter() - started, len(self.provider.reads)

    def bare(self) -> float:
        """Seconds for the ranges that were read last, with nothing but pread.

        The bytes are kept, as in any reader that serves others.
        """
        files: dict[str, int] = {}
        ranges = []
        for segment, position, length in self.provider.reads:
            name = f"{segment.queue_path}/{segment.type.name}/{segment_name(segment.base)}"
            if name not in files:
                (path,) = self.root.glob(f"*/{name}")
                files[name] = os.open(path, os.O_RDONLY)
            ranges.append((files[name], length, position))
        started = time.perf_counter()
        kept = [os.pread(*each) for each in ranges]
        spent = time.perf_counter() - started
        assert [len(data) for data in kept] == [length for _, length, _ in ranges]
        for handle in files.values():
            os.close(handle)
        return spent


def a_run(first: int) -> MessageRun:
    record = encode_message(
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        log_offset=0,
        born_timestamp=1_700_000_000_000,
        born_host=HOST,
        store_timestamp=1_700_000_000_000,
        store_host=HOST,
        body=bytes(range(250)) * 3 + bytes(140),
        property_bytes=b"KEYS\x01order-00000001\x02TAGS\x01TagA\x02",
    )
    head, tail = record[:QUEUE_OFFSET_POSITION], record[QUEUE_OFFSET_POSITION + 8 :]
    numbers = range(first, first + BATCH)
    return run_of(first, [head + number.to_bytes(8, "big") + tail for number in numbers])
