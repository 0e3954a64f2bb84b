"""A provider in memory that keeps the catalogue with the bytes, as an object store's log does.

A `Bucket` outlives its providers: a second provider on it acts as another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Self

from tieredstore.driver.metadata import LOG, CatalogueFacts, Change, MetadataStore, Put
from tieredstore.driver.provider import (
    Fence,
    Scratch,
    SegmentWrapper,
    StagedObject,
    TakenIn,
    WritePair,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.metadata.memory_store import MemoryMetadataStore
from tieredstore.metadata.tables import Tables
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import FencedError, MetadataError, TieredStoreError
from tieredstore.model.values import SegmentRecord, SegmentType, TopicRecord
from tieredstore.providers.memory import MemoryProvider

DOTTED = "tests.access.log_kit:LogProvider"


class Bucket:
    """The state that all providers of one bucket share; `claims` lists all their claims, in
    order.
    """

    def __init__(self) -> None:
        self.files = MemoryProvider(Runtime.inline())
        self.tables: dict[str, Tables] = {}
        self.epochs: dict[str, int] = {}
        self.claims: list[str] = []
        self.sealed: set[str] = set()
        self.staged: dict[str, bytes] = {}
        self.losses: list[str] = []
        """What is known to be lost, until somebody was told."""
        self.calls: list[str] = []
        """The calls whose order matters."""


BUCKETS: dict[str, Bucket] = {}
"""By the setting `bucket`, for providers made from settings."""


class LogProvider(MemoryProvider):
    """One writer's view. It knows its epoch, and learns from a write that another took over."""

    retries_itself = True
    shares_rounds = True

    def __init__(self, bucket: Bucket, runtime: Runtime, *, joins: bool = False) -> None:
        super().__init__(runtime)
        self._fs, self._guard = bucket.files._fs, bucket.files._guard
        self.bucket = bucket
        self.joins = joins
        self.mine: dict[str, int] = {}
        self.fences: dict[str, Fence] = {}
        self.tended = 0
        self.left_to_tend = 0
        self.sealed_at_once: list[int] = []

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        bucket = BUCKETS.setdefault(config.bucket, Bucket())
        return cls(bucket, runtime, joins=not config.claim_epoch)

    def seal_many(self, segments: Sequence[FileSegment]) -> Sequence[TieredStoreError | None]:
        self.sealed_at_once.append(len(segments))
        return super().seal_many(segments)

    def take_in(self, broker: str) -> TakenIn:
        return TakenIn(losses=tuple(self.bucket.losses), told=self.bucket.losses.clear)

    def claim(self, broker: str) -> None:
        self.bucket.calls.append("claim")
        if broker in self.mine:
            self.require(broker)
            return
        self.bucket.claims.append(broker)
        self.mine[broker] = self.bucket.epochs[broker] = self.bucket.epochs.get(broker, 0) + 1

    def require(self, broker: str) -> None:
        """Raise FencedError, as a write to the log would, if another writer has taken over."""
        newest = self.bucket.epochs.get(broker, 0)
        if self.joins:
            self.mine.setdefault(broker, newest)
        if broker in self.mine and newest != self.mine[broker]:
            self.fences.setdefault(broker, Fence(newest, self._runtime.clock.now_ms()))
            raise FencedError(broker, "write", epoch=newest)

    def fence(self, broker: str) -> Fence | None:
        return self.fences.get(broker)

    def catalogue(self, broker: str, *, read_only: bool) -> MetadataStore | None:
        self.bucket.calls.append("read the catalogue" if read_only else "open the catalogue")
        if read_only and broker not in self.bucket.epochs:
            return None
        tables = self.bucket.tables.setdefault(broker, Tables())
        if read_only:
            return ReadCatalogue(tables, broker)
        return WrittenCatalogue(tables, broker, self, self._runtime.clock.now_ms)

    def tend(self, broker: str) -> bool:
        self.require(broker)
        self.tended += 1
        self.left_to_tend = max(0, self.left_to_tend - 1)
        return bool(self.left_to_tend)

    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:  # type: ignore[override]
        return LogSegment(super().open(path, type, base), self)

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        futures = super().write_many(pairs)
        for pair, future in zip(pairs, futures, strict=True):
            write = pair.log or pair.queue
            if write is not None and not future.exception():
                broker = write.segment.queue_path.partition("/")[0]
                self.bucket.tables[broker].apply([Put(row) for row in pair.rows])
        return futures

    def scratch(self, broker: str) -> Scratch:
        return ScratchInMemory(self.bucket)

    def places(self) -> Sequence[tuple[str, str]] | None:
        return [("DefaultCluster", broker) for broker in self.bucket.tables]


class ScratchInMemory(Scratch):
    def __init__(self, bucket: Bucket) -> None:
        self._held = bucket.staged

    def describe(self) -> str:
        return "memory"

    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        self._held[name] = b"".join(blocks)
        return len(self._held[name])

    def read(self, name: str, position: int, length: int) -> bytes:
        return self._held[name][position : position + length]

    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        return [
            StagedObject(name, len(data))
            for name, data in self._held.items()
            if not folder or name.startswith(f"{folder}/")
        ]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._held.pop(name, None)


class LogSegment(SegmentWrapper):
    """A segment that only the newest writer may write, and that is sealed once."""

    def __init__(self, inner: FileSegment, provider: LogProvider) -> None:
        super().__init__(inner)
        self._provider = provider

    @property
    def wants_seal(self) -> bool:
        return self.inner.path not in self._provider.bucket.sealed

    def write(self, position: int, data: Buffer) -> None:
        self._require()
        self.inner.write(position, data)

    def seal(self) -> None:
        self._require()
        self._provider.bucket.sealed.add(self.inner.path)

    def delete(self) -> None:
        self._require()
        self.inner.delete()

    def _require(self) -> None:
        self._provider.require(self.queue_path.partition("/")[0])


class WrittenCatalogue(MemoryMetadataStore):
    """The writer's catalogue; refuses changes of a fenced writer."""

    def __init__(
        self, tables: Tables, broker: str, provider: LogProvider, clock_ms: Callable[[], int]
    ) -> None:
        super().__init__(place=f"the log of {broker}", clock_ms=clock_ms)
        self._tables = tables
        self._broker = broker
        self._provider = provider

    @property
    def facts(self) -> CatalogueFacts:
        return CatalogueFacts(source=LOG, place=self._name)

    def apply(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        if changes:
            self._provider.require(self._broker)
        super().apply(changes)

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        self._provider.require(self._broker)
        return super().add_topic(topic, reserve_hours=reserve_hours)


class ReadCatalogue(MemoryMetadataStore):
    """A reader's catalogue, as of its opening or last refresh."""

    def __init__(self, tables: Tables, broker: str) -> None:
        super().__init__(place=f"the log of {broker}", clock_ms=lambda: 0)
        self._log = tables
        self._tables = tables.copied()

    @property
    def facts(self) -> CatalogueFacts:
        return CatalogueFacts(source=LOG, place=self._name, copy=True)

    def apply(self, changes: Iterable[Change]) -> None:
        raise MetadataError(self._name, "it was opened read only")

    def amend(self, *, gone: Sequence[SegmentRecord], come: Sequence[SegmentRecord]) -> None:
        MemoryMetadataStore.apply(self, map(Put, come))

    def refresh(self) -> None:
        with self._tables_lock:
            self._tables = self._log.copied()
