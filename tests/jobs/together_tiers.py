"""Providers whose segments are read together; settings name them to workers.

`TogetherPosix` keeps files and notes how they are read. `LogBucket` is a bucket in memory;
`LogTier` writes to one, round by round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tests.jobs.written_tier import START_MS
from tieredstore.codec.message import encode_message
from tieredstore.codec.queue_unit import UNIT_BYTES, encode_unit
from tieredstore.driver.provider import (
    ProviderWrapper,
    SegmentProvider,
    SegmentRead,
    SegmentWrapper,
    SegmentWrite,
    WritePair,
)
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendUnavailableError, TieredStoreError
from tieredstore.model.values import Host, SegmentRecord, SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.roundlog.layout import ObjectLayout
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE


class TogetherPosix(ProviderWrapper):
    """Files behind the calls for reading together; the newest queue comes first.

    `together` holds the byte count of each call, `single` the paths that were read alone.
    """

    together: ClassVar[list[int]] = []
    single: ClassVar[list[str]] = []
    fails: ClassVar[bool] = False

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.reads_together = True

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        return cls(PosixProvider.from_config(config, runtime), runtime)

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return _Noted(segment)

    def read_together(self, reads: Sequence[SegmentRead]) -> Sequence[bytes | TieredStoreError]:
        if self.fails:
            raise BackendUnavailableError("all of it", "read", "as planned")
        answers = self.inner.read_together(reads)
        self.together.append(sum(len(each) for each in answers if isinstance(each, bytes)))
        return answers

    def reading_order(self, segments: Sequence[SegmentRecord]) -> Sequence[int]:
        return [-int(row.path.rpartition("/")[2]) for row in segments]


class _Noted(SegmentWrapper):
    def read(self, position: int, length: int) -> bytes:
        TogetherPosix.single.append(self.path)
        return super().read(position, length)


class LogBucket(ObjectProvider):
    """A bucket in memory for each path in the settings; clients count their requests."""

    buckets: ClassVar[dict[str, MemoryObjects]] = {}
    clients: ClassVar[list[MemoryObjectClient]] = []

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        client = MemoryObjectClient(cls.buckets[config.path])
        cls.clients.append(client)
        return cls(client, config.cluster_name, runtime)


@dataclass(slots=True)
class _Growing:
    messages: int = 0
    log_bytes: int = 0


class LogTier:
    """Writes a log, and has the catalogue's rows for its segments."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.objects = LogBucket.buckets[config.path] = MemoryObjects()
        self.queues: dict[str, _Growing] = {}
        client = MemoryObjectClient(self.objects)
        self._runtime = Runtime.inline()
        self._writer = ObjectProvider(client, config.cluster_name, self._runtime)
        self._writer.claim(config.broker_name)

    def round(self, topics: Sequence[str], *, body_bytes: int = 1_000) -> None:
        """Add a message to queue 0 of each of these topics, all in one entry."""
        pairs = []
        for topic in topics:
            path = f"{self.config.broker_name}/{topic}/0"
            queue = self.queues.setdefault(path, _Growing())
            record = encode_message(
                topic=topic,
                queue_id=0,
                queue_offset=queue.messages,
                log_offset=queue.log_bytes,
                born_timestamp=START_MS,
                born_host=Host(b"\x0a\x00\x00\x01", 1),
                store_timestamp=START_MS + queue.messages,
                store_host=Host(b"\x0a\x00\x00\x02", 2),
                body=f"{topic} {queue.messages} ".encode().ljust(body_bytes, b"."),
            )
            unit = encode_unit(log_offset=queue.log_bytes, message_bytes=len(record), tags_code=0)
            log, units = (self._writer.open(path, kind, 0) for kind in (LOG, QUEUE))
            pairs.append(
                WritePair(
                    log=SegmentWrite(log, queue.log_bytes, record),
                    queue=SegmentWrite(units, queue.messages * UNIT_BYTES, unit),
                )
            )
            queue.messages += 1
            queue.log_bytes += len(record)
        for future in self._writer.write_many(pairs):
            future.result()

    def tend(self) -> None:
        """Merge until nothing is left to merge."""
        while self._writer.tend(self.config.broker_name):
            pass

    def rows(self) -> list[SegmentRecord]:
        return [
            SegmentRecord(path=path, type=kind, base_offset=0, size=size)
            for path, queue in self.queues.items()
            for kind, size in ((LOG, queue.log_bytes), (QUEUE, queue.messages * UNIT_BYTES))
        ]

    def live_objects(self) -> dict[str, int]:
        """The objects that hold the bytes, and their lengths."""
        log = self._log()
        names = {log.key(name) for chunk in log.state().chunks.values() for name in chunk.used()}
        return {name: len(self.objects.held[name][0]) for name in names}

    def damage(self, path: str, kind: SegmentType, position: int) -> None:
        """Change the byte at this place of a segment."""
        log = self._log()
        (place,) = (
            place
            for place in log.state().places(log.state().numbers[path, kind, 0])
            if 0 <= position - place.position < place.length
        )
        data, facts = self.objects.held[log.key(place.object)]
        changed = bytearray(data)
        changed[place.offset + position - place.position] ^= 0xFF
        self.objects.held[log.key(place.object)] = bytes(changed), facts

    def _log(self) -> BrokerLog:
        """The log as a reader sees it."""
        calls = ObjectCalls(MemoryObjectClient(self.objects), self._runtime, RetryPolicy())
        layout = ObjectLayout(self.config.cluster_name)
        return BrokerLog(calls, layout, self.config.broker_name, self._runtime)
