"""A tier and a fetcher on it, for tests: every read of the backend is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.access.tiered_kit import ListIndex
from tests.flat.store_kit import Tier
from tests.flat.tiers import run_of
from tieredstore.access.fetcher import Fetcher
from tieredstore.driver.message_store import ReadRequest
from tieredstore.driver.metrics import Metrics, NoMetrics
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.index.contract import CommittedRun, Index
from tieredstore.model.messages import GetResult
from tieredstore.model.values import SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Faults
from tieredstore.testing.samples import TOPIC, a_record

Read = tuple[SegmentType, int, int]


class CountedSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, owner: CountedProvider) -> None:
        super().__init__(inner)
        self._owner = owner

    def read(self, position: int, length: int) -> bytes:
        self._owner.before_read()
        with self._owner.guard:
            self._owner.reads.append((self.type, self.base + position, length))
        return super().read(position, length)


class CountedProvider(ProviderWrapper):
    """Records every read: type, offset in the file, length."""

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.guard = threading.Lock()
        self.reads: list[Read] = []
        self.before_read: Callable[[], object] = lambda: None

    def wrap(self, segment: FileSegment) -> CountedSegment:
        return CountedSegment(segment, self)


class Shelf:
    """A tier in memory, with the store of one process and a fetcher."""

    def __init__(
        self,
        *,
        faults: Faults | None = None,
        index: Index | None = None,
        runtime: Runtime | None = None,
        metrics: Metrics | None = None,
        log_bytes: int = 1 << 30,
        queue_units: int = 1 << 22,
        **settings: Any,
    ) -> None:
        inline = Runtime.inline()
        self.provider = CountedProvider(MemoryProvider(inline), inline)
        self.tier = Tier(
            provider=self.provider, log_bytes=log_bytes, queue_units=queue_units, **settings
        )
        self.faults = faults or Faults()
        self.index = ListIndex() if index is None else index
        self.store = self.tier.open(self.faults)
        self.runtime = runtime or self.tier.runtime
        self.fetcher = Fetcher(
            self.store, self.index, self.tier.config, self.runtime, metrics or NoMetrics()
        )

    def queue(self, queue_id: int = 0, *, start: int = 0, topic: str = TOPIC) -> FlatMessageFile:
        file = self.store.create(topic, queue_id)
        file.start_at(start)
        return file

    def put(
        self, records: Sequence[bytes], *, tags: Sequence[int] = (), queue_id: int = 0, at: int = 0
    ) -> FlatMessageFile:
        """Commit and index records at consecutive offsets of a queue."""
        file = self.queue(queue_id, start=at)
        while records:
            run = run_of(file.append_offset, records, tags)
            taken = file.append(run)
            assert file.commit()
            placed = CommittedRun(
                run=run_of(run.first_offset, records), log_offsets=taken.log_offsets
            )
            self.index.put(file.key.topic, file.topic_id, queue_id, placed)
            records, tags = records[taken.count :], tags[taken.count :]
        self.provider.reads.clear()
        return file

    def get(self, offset: int, count_max: int = 32, queue_id: int = 0, **more: Any) -> GetResult:
        return self.fetcher.get_message(
            ReadRequest(TOPIC, queue_id, offset, count_max=count_max, **more)
        )


def offsets(result: GetResult) -> list[int]:
    return [message.queue_offset for message in result.messages]


def numbered(first: int, count: int, *, body_bytes: int = 40) -> list[bytes]:
    return [a_record(number, body_bytes=body_bytes) for number in range(first, first + count)]


class ByCode:
    """Selects messages by tags code and by a part of the record."""

    def __init__(self, *codes: int, part: bytes = b"") -> None:
        self.codes = frozenset(codes)
        self._part = part
        self.shown = 0

    def matches_tags_code(self, tags_code: int) -> bool:
        low = {code & 0xFFFFFFFF for code in self.codes}
        return tags_code < -(2**31) or tags_code & 0xFFFFFFFF in low

    def matches_record(self, record: bytes) -> bool:
        self.shown += 1
        return self._part in record


class ByNamedCode(ByCode):
    """Also names its codes, so that a store may filter by itself."""

    @property
    def tags_codes(self) -> frozenset[int]:
        return self.codes


def a_hundred(cached: bool = True, *, tags: list[int] | None = None, **settings: Any) -> Shelf:
    """A queue of messages 100 to 199."""
    shelf = Shelf(read_ahead_enabled=cached, **settings)
    shelf.put(numbered(100, 100), at=100, tags=tags or [0] * 100)
    return shelf
