"""Health of a tier and of its upload, as values for operators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from tieredstore.access.admission import TopicFilter
from tieredstore.access.queue_upload import QueueWork
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metrics import DISPATCH_BEHIND, DISPATCH_LATENCY, Labels, Metrics
from tieredstore.driver.runtime import Clock
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.index.contract import Index
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import QueueKey, StorageLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHealth:
    """One queue of the tier."""

    topic: str
    queue_id: int
    commit_offset: int | None = None
    behind_count: int = 0
    """Messages of the next store that are not in the tier yet."""
    problem: str | None = None
    """Why nothing more is uploaded until an operator has looked."""
    lost_count: int = 0
    """Messages that were lost before they were uploaded: gaps in the queue."""
    last_error: str | None = None
    """Why the last upload or expiry failed; it is tried again."""
    not_indexed_count: int = 0
    """Messages of the tier that the key index still has to take."""

    @property
    def ok(self) -> bool:
        return self.problem is None and self.last_error is None and not self.lost_count


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheHealth:
    """The read cache in figures."""

    held_bytes: int = 0
    extent_count: int = 0
    access_count: int = 0
    hit_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueHealth:
    """The catalogue as readers elsewhere find it."""

    published_count: int = 0
    failure_count: int = 0
    error: str | None = None
    """Why the newest changes are not published, the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDamage:
    """A place of the local store that was not what it must be; `mended` if nothing is missing."""

    path: str
    position: int
    reason: str
    mended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHealth:
    """The whole tier; `ok` where no queue needs a person, fails or has lost something, and the
    local store misses nothing for damage."""

    level: StorageLevel
    queues: tuple[QueueHealth, ...] = ()
    cache: CacheHealth = CacheHealth()
    buffered_bytes: int = 0
    """Bytes that wait for their upload."""
    uploads: int = 0
    """Uploads under way."""
    index_error: str | None = None
    """Why the key index could not be uploaded or expired, the last time."""
    catalogue: CatalogueHealth = CatalogueHealth()
    local_damages: tuple[LocalDamage, ...] = ()
    """What the local store has found damaged since it was opened, if it says so."""

    @property
    def ok(self) -> bool:
        sound = self.index_error is None and self.catalogue.error is None
        sound = sound and all(damage.mended for damage in self.local_damages)
        return sound and all(queue.ok for queue in self.queues)

    @property
    def behind_count(self) -> int:
        return sum(queue.behind_count for queue in self.queues)

    @property
    def lost_count(self) -> int:
        return sum(queue.lost_count for queue in self.queues)

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `json.dumps` takes them."""
        return {
            "ok": self.ok,
            "level": self.level.name,
            "behind_count": self.behind_count,
            "lost_count": self.lost_count,
            "buffered_bytes": self.buffered_bytes,
            "uploads": self.uploads,
            "index_error": self.index_error,
            "queues": [{"ok": queue.ok, **asdict(queue)} for queue in self.queues],
            "cache": asdict(self.cache),
            "catalogue": asdict(self.catalogue),
            "local_damages": [asdict(damage) for damage in self.local_damages],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchHealth:
    """What is wrong with the upload, by queue.

    * `stopped`: nothing is uploaded until an operator looks after it.
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
        except TieredStoreError:  # damaged, or closed: health says so
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
