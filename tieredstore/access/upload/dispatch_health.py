"""How the upload is doing: facts for who looks after the store, and the gauges.

What lives here: `DispatchHealth`, and how it and the gauges are found out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tieredstore.access.index_protocol import Index
from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.topic_filter import TopicFilter
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metrics import DISPATCH_BEHIND, DISPATCH_LATENCY, Labels, Metrics
from tieredstore.driver.runtime import Clock
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import QueueKey


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchHealth:
    """What is wrong with the upload, by queue.

    * `stopped`: nothing is uploaded until somebody looks after it.
    * `refused`: those of them whose names the tier cannot hold, now or later. No flush waits for
      them.
    * `failing`: the last attempt failed; it is tried again.
    * `lost`: messages that the local store lost before they were uploaded: gaps in the tier.
    * `not_indexed`: committed messages that the key index still has to take, or has lost and takes
      again after a restart.
    """

    stopped: Mapping[QueueKey, str] = field(default_factory=dict)
    refused: Collection[QueueKey] = ()
    failing: Mapping[QueueKey, str] = field(default_factory=dict)
    lost: Mapping[QueueKey, int] = field(default_factory=dict)
    not_indexed: Mapping[QueueKey, int] = field(default_factory=dict)
    buffered_bytes: int = 0
    uploads: int = 0


def upload_health(
    files: FlatFileStore,
    works: Iterable[QueueWork],
    index: Index,
    *,
    buffered_bytes: int,
    uploads: int,
) -> DispatchHealth:
    """As of now, from memory."""
    stopped: dict[QueueKey, str] = {}
    lost: dict[QueueKey, int] = {}
    not_indexed: dict[QueueKey, int] = {}
    for file in files.files():
        if count := not_indexed_count(file, index):
            not_indexed[file.key] = count
        if file.problem is not None:
            stopped[file.key] = file.problem
        if count := lost_count(file):
            lost[file.key] = count
    failing: dict[QueueKey, str] = {}
    for work in works:
        if work.stopped is not None:
            stopped[work.key] = work.stopped
        if work.lost_count > lost.get(work.key, 0):  # where nothing had been uploaded before
            lost[work.key] = work.lost_count
        if work.failure is not None:
            failing[work.key] = work.failure
        if work.file is not None and work.index_from is not None:  # an index may not say it
            waiting = work.file.commit_offset - work.index_from
            not_indexed[work.key] = max(waiting, not_indexed.get(work.key, 0))
    return DispatchHealth(
        stopped=stopped,
        refused=frozenset(key for key in stopped if files.why_refused(key) is not None),
        failing=failing,
        lost=lost,
        not_indexed=not_indexed,
        buffered_bytes=buffered_bytes,
        uploads=uploads,
    )


def lost_count(file: FlatMessageFile) -> int:
    """How many messages are missing in the gaps of a queue."""
    segments = file.queue.segments
    gaps = (after.base - before.end for before, after in pairwise(segments))
    return sum(gaps) // UNIT_BYTES


def not_indexed_count(file: FlatMessageFile, index: Index) -> int:
    """How many committed messages of a queue the index cannot find, as it says itself."""
    if not file.is_started:
        return 0
    known = index.indexed_offset(file.key.topic, file.topic_id, file.key.queue_id)
    if known is None:
        return 0
    return max(0, file.commit_offset - max(known, file.queue.min_unit))


class DispatchGauges:
    """How far the tier is behind the local store, in messages and in time."""

    def __init__(
        self, store: MessageStore, files: FlatFileStore, topic_filter: TopicFilter, clock: Clock
    ) -> None:
        self._store = store
        self._files = files
        self._filter = topic_filter
        self._clock = clock

    def register(self, metrics: Metrics) -> None:
        metrics.observe(DISPATCH_BEHIND, self.behind)
        metrics.observe(DISPATCH_LATENCY, self.latency_ms)

    def behind(self) -> Iterator[tuple[float, Labels]]:
        """Messages of each queue that are not in the tier yet."""
        for file, maximum in self._queues():
            yield max(0, maximum - file.append_offset), _labels(file.key)

    def latency_ms(self) -> Iterator[tuple[float, Labels]]:
        """The age of the oldest of them."""
        now = self._clock.now_ms()
        for file, maximum in self._queues():
            age = 0
            if file.append_offset < maximum:
                age = self._age(file, now)
            yield age, _labels(file.key)

    def _age(self, file: FlatMessageFile, now: int) -> int:
        try:
            time = self._store.store_time(*file.key, file.append_offset)
        except TieredStoreError:  # damaged, or closed: health tells
            return 0
        return 0 if time is None else max(0, now - time)

    def _queues(self) -> Iterator[tuple[FlatMessageFile, int]]:
        for file in self._files.files():
            if not file.is_started or self._filter.rejects(file.key.topic):
                continue
            try:
                maximum = self._store.max_offset(*file.key)
            except TieredStoreError:  # closed: there is nothing to show
                return
            if maximum is not None:
                yield file, maximum


def _labels(key: QueueKey) -> Labels:
    return {"topic": key.topic, "queue_id": str(key.queue_id), "file_type": "consume_queue"}
