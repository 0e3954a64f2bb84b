"""Shared by the tests of the dispatcher: a local store that can lose things, and a tier.

No tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from tieredstore.access.dispatcher import Dispatcher
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import LOG_OFFSET_POSITION, peek_queue_offset
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.metrics import Metrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import read_run
from tieredstore.index.contract import CommittedRun, Index, IndexAnswer, NoIndex
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC

KEY = QueueKey(TOPIC, 0)


class RecordingIndex(NoIndex):
    """Records which messages it was given, as a durable index would; fails on demand."""

    def __init__(self) -> None:
        self.puts: list[tuple[QueueKey, int, int]] = []  # queue, queue offset, log offset
        self.fails = False

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        if self.fails:
            raise OSError("the index is full")
        for row, log_offset in enumerate(run.log_offsets.tolist()):
            record = run.run.record(row)
            assert peek_queue_offset(record) == run.run.first_offset + row
            assert decode_message(bytes(record)).log_offset == log_offset
            self.puts.append((QueueKey(topic, queue_id), run.run.first_offset + row, log_offset))

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        return max((at + 1 for key, at, _ in self.puts if key == (topic, queue_id)), default=0)

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        raise NotImplementedError

    def offsets(self, key: QueueKey = KEY) -> list[int]:
        return [at for found, at, _ in self.puts if found == key]


class Tier:
    """A dispatcher and all that it needs, over a store; the backend and the index outlive it."""

    def __init__(
        self,
        root: Path,
        store: MessageStore,
        *,
        runtime: Runtime,
        provider: SegmentProvider | None = None,
        index: Index | None = None,
        metrics: Metrics | None = None,
        metadata: MetadataStore | None = None,
        **settings: object,
    ) -> None:
        small: dict[str, object] = {"broker_name": "broker-a", "store_path": str(root)}
        self.config = StoreConfig.from_mapping({**small, **settings})
        self.root, self.store, self.runtime = root, store, runtime
        self.provider = provider or MemoryProvider(runtime)
        self.index = index or RecordingIndex()
        self.settings = settings
        self.metadata = metadata or JsonMetadataStore.open(root / "catalogue.json")
        self.files = FlatFileStore(
            self.config, provider=self.provider, metadata=self.metadata, runtime=runtime
        )
        self.files.load()
        self.dispatcher = Dispatcher(
            store,
            self.files,
            self.provider,
            self.metadata,
            self.index,
            self.config,
            runtime,
            metrics,
        )
        store.add_dispatcher(self.dispatcher.on_messages)
        store.add_retention_guard(self.dispatcher.needed_from)

    def reopened(self, **changes: object) -> Self:
        """Another life over the same backend and catalogue."""
        self.close()
        parts: dict[str, object] = {
            "runtime": self.runtime,
            "provider": self.provider,
            "index": self.index,
            **self.settings,
            **changes,
        }
        return type(self)(self.root, parts.pop("store", self.store), **parts)  # type: ignore[arg-type]

    def close(self) -> None:
        self.files.close()
        self.metadata.close()

    def file(self, key: QueueKey = KEY) -> FlatMessageFile:
        file = self.files.get(key)
        assert file is not None
        return file

    def span(self, key: QueueKey = KEY) -> tuple[int, int]:
        """The first queue offset in the tier, and the end."""
        return self.file(key).min_offset, self.file(key).commit_offset

    def later(self, ms: int = 60_000) -> None:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        clock.advance(ms)

    def dispatch(self, *, force: bool = False) -> bool:
        return self.dispatcher.dispatch_once(force=force)

    def flush(self, *, timeout: float | None = None) -> bool:
        """Upload all confirmed messages; return whether all of them are in the tier."""
        done = self.dispatcher.dispatch_once(force=True, timeout=timeout)
        return done and not self.dispatcher.health().stopped

    @property
    def is_sound(self) -> bool:
        """Whether no queue is stopped, fails, has lost messages or has unindexed ones."""
        health = self.dispatcher.health()
        return not (health.stopped or health.failing or health.lost or health.not_indexed)

    def check(self, *keys: QueueKey) -> None:
        """The tier holds the local store's messages, each at its place."""
        for key in keys or [file.key for file in self.files.files()]:
            at, end = self.span(key)
            while at < end:
                tiered = read_run(self.file(key), at, count_max=64, bytes_max=1 << 20)
                local = self.store.read_range(
                    *key, at, count_max=len(tiered), bytes_max=len(tiered.records)
                )
                assert len(tiered) == len(local) > 0
                for row in range(len(local)):
                    assert bare(tiered.record(row)) == bare(local.record(row))
                at = tiered.end_offset


def bare(record: memoryview | bytes) -> bytes:
    """A record without its log offset."""
    return bytes(record[:LOG_OFFSET_POSITION]) + bytes(record[LOG_OFFSET_POSITION + 8 :])


def a_tier(root: Path, **settings: object) -> tuple[ListMessageStore, Tier, RecordingIndex]:
    """Everything in one thread."""
    runtime = Runtime.inline()
    store, index = ListMessageStore.opened(runtime), RecordingIndex()
    return store, Tier(root, store, runtime=runtime, index=index, **settings), index  # type: ignore[arg-type]
