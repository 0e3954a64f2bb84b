"""The health of an open tier as values for operators, and the gauges that exporters read.

Everything comes from memory and from the local store, without a request to the backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

from tieredstore.access.agreement import ContinuedQueue
from tieredstore.access.dispatcher import Dispatcher
from tieredstore.access.read_cache import ReadCache
from tieredstore.access.tables import BrokerTables
from tieredstore.access.upkeep import CatalogueHealth, Retention, SealChore
from tieredstore.access.wiring import Tier
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metrics import (
    BUFFERED_BYTES,
    DISPATCH_BEHIND,
    DISPATCH_LATENCY,
    FENCED,
    FOOTER_CACHE_BYTES,
    HELD_LOG_BYTES,
    INDEX_BEHIND,
    INDEX_DAMAGED,
    INDEX_FILES,
    INDEX_PROBLEM,
    JOURNAL_BYTES,
    LOST_MESSAGES,
    PUBLISH_PROBLEM,
    PUBLISHED,
    QUEUE_HELD_LOG_BYTES,
    QUEUE_PROBLEM,
    QUEUES,
    SNAPSHOT_AGE,
    STORAGE_RESERVE_TIME,
    STORAGE_SIZE,
    UPLOADS,
    GaugeRead,
    Labels,
    Metric,
    Metrics,
)
from tieredstore.driver.provider import Fence
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.times import catalogue_times
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import QueueKey, SegmentType, StorageLevel

DAMAGES_SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHealth:
    """One queue of the tier."""

    topic: str
    queue_id: int
    commit_offset: int | None = None
    behind_count: int = 0
    """Messages in the next store that are not in the tier yet."""
    problem: str | None = None
    """Why the upload has stopped until an operator acts."""
    lost_count: int = 0
    """Messages that were lost before they were uploaded: gaps in the queue."""
    last_error: str | None = None
    """Why the last upload, expiry or sealing failed; it is tried again."""
    not_indexed_count: int = 0
    """Messages in the tier that are not in the key index yet."""
    takes_puts: bool = True
    """False if the two stores may hold different messages, until an operator decides."""

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
class LocalDamage:
    """A damaged place of the local store; `mended` if nothing is missing."""

    path: str
    position: int
    reason: str
    mended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHealth:
    """The whole tier; `ok` if no queue needs an operator, fails or has lost something, the local
    store has lost nothing to damage, and no other writer has taken over."""

    level: StorageLevel
    queues: tuple[QueueHealth, ...] = ()
    cache: CacheHealth = CacheHealth()
    buffered_bytes: int = 0
    """Bytes that wait for upload."""
    uploads: int = 0
    """Uploads under way."""
    index_error: str | None = None
    """Why the last upload or expiry of the key index failed."""
    catalogue: CatalogueHealth = field(default_factory=CatalogueHealth)
    tables_error: str | None = None
    """Why the last write or copy of consumer offsets and topics failed."""
    local_damages: tuple[LocalDamage, ...] = ()
    """Damage that the local store has found since it was opened, if it reports any."""
    continued: tuple[ContinuedQueue, ...] = ()
    """Queues that continued at the tier's end when the store was loaded: their local end was
    lost."""
    fence: Fence | None = None
    """The writer that took over, and since when this is known. Uploads have stopped until the store
    is opened again; puts still go into the local store."""

    @property
    def ok(self) -> bool:
        sound = self.index_error is None and self.catalogue.error is None
        sound = sound and self.fence is None and self.tables_error is None
        sound = sound and not any(queue.lost_count for queue in self.continued)
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
            "tables_error": self.tables_error,
            "queues": [{"ok": queue.ok, **asdict(queue)} for queue in self.queues],
            "cache": asdict(self.cache),
            "catalogue": asdict(self.catalogue),
            "local_damages": [asdict(damage) for damage in self.local_damages],
            "continued": [
                {**asdict(queue), "lost_count": queue.lost_count} for queue in self.continued
            ],
            "fence": None if self.fence is None else asdict(self.fence),
        }


def health_of(
    tier: Tier,
    dispatcher: Dispatcher,
    retention: Retention,
    sealing: SealChore,
    next_store: MessageStore,
    *,
    level: StorageLevel,
    tables: BrokerTables | None = None,
    continued: Sequence[ContinuedQueue] = (),
    refused: Mapping[QueueKey, str] | None = None,
) -> TierHealth:
    """The current health, from memory, without a request to the backend."""
    refused = refused or {}
    upload = dispatcher.health()
    damages: Sequence[Any] = getattr(next_store, "damages", ())
    failing = {**sealing.failing, **retention.errors, **upload.failing}
    files = {file.key: file for file in tier.files.files()}
    keys = {*files, *refused, *upload.stopped, *upload.failing, *upload.lost, *upload.not_indexed}
    queues = [
        QueueHealth(
            topic=key.topic,
            queue_id=key.queue_id,
            commit_offset=dispatcher.committed_offset(*key),
            behind_count=_behind(dispatcher, next_store, key),
            problem=refused.get(key) or upload.stopped.get(key),
            takes_puts=key not in refused,
            lost_count=upload.lost.get(key, 0),
            last_error=failing.get(key),
            not_indexed_count=upload.not_indexed.get(key, 0),
        )
        for key in sorted(keys)
    ]
    return TierHealth(
        level=level,
        queues=tuple(queues),
        cache=_cache(tier.fetcher.cache),
        buffered_bytes=upload.buffered_bytes,
        uploads=upload.uploads,
        index_error=tier.index.problem,
        catalogue=tier.publishing.health(),
        fence=tier.fence,
        tables_error=None if tables is None else tables.problem,
        continued=tuple(continued),
        local_damages=tuple(
            LocalDamage(
                path=damage.path,
                position=damage.position,
                reason=damage.reason,
                mended=damage.mended,
            )
            # A broker's store may have `damages`, as this project's does; not all may be shown.
            for damage in sorted(damages, key=lambda each: bool(each.mended))[:DAMAGES_SHOWN_MAX]
        ),
    )


def _cache(cache: ReadCache | None) -> CacheHealth:
    if cache is None:
        return CacheHealth()
    return CacheHealth(
        held_bytes=cache.held_bytes,
        extent_count=cache.extent_count,
        access_count=cache.access_count,
        hit_count=cache.hit_count,
    )


def _behind(dispatcher: Dispatcher, next_store: MessageStore, key: QueueKey) -> int:
    """How many messages of the next store the tier lacks."""
    maximum = next_store.max_offset(*key)
    if maximum is None or dispatcher.topic_filter.rejects(key.topic):
        return 0
    committed = dispatcher.committed_offset(*key)
    return max(0, maximum - max(committed or 0, next_store.min_offset(*key) or 0))


Shown: TypeAlias = Iterator[tuple[float, Labels]]


class TierGauges:
    """The gauges of a store: registered at each load, and read at each export."""

    def __init__(
        self,
        tier: Tier,
        dispatcher: Dispatcher,
        retention: Retention,
        sealing: SealChore,
        next_store: MessageStore,
    ) -> None:
        self._tier = tier
        self._dispatcher = dispatcher
        self._retention = retention
        self._sealing = sealing
        self._next = next_store

    def register(self, metrics: Metrics) -> None:
        reads: dict[Metric, GaugeRead] = {
            STORAGE_SIZE: self.storage_size,
            STORAGE_RESERVE_TIME: self.reserve_time,
            QUEUES: self.queues,
            QUEUE_PROBLEM: self.queue_problems,
            LOST_MESSAGES: self.lost_messages,
            QUEUE_HELD_LOG_BYTES: self.queue_held_log_bytes,
            DISPATCH_BEHIND: self.behind,
            DISPATCH_LATENCY: self.latency_ms,
            INDEX_FILES: self.index_files,
            SNAPSHOT_AGE: self.snapshot_age,
            PUBLISHED: self.published,
            BUFFERED_BYTES: _single(lambda: self._dispatcher.budget.used_bytes),
            UPLOADS: _single(lambda: self._dispatcher.budget.uploads),
            HELD_LOG_BYTES: _single(self._held_log_bytes),
            INDEX_BEHIND: _single(lambda: sum(self._dispatcher.health().not_indexed.values())),
            INDEX_PROBLEM: _single(lambda: self._tier.index.problem is not None),
            INDEX_DAMAGED: _single(lambda: self._tier.index.figures.damaged_count),
            FOOTER_CACHE_BYTES: _single(lambda: self._tier.index.figures.footer_cache_bytes),
            JOURNAL_BYTES: _single(lambda: self._tier.catalogue_upkeep.journal_bytes),
            PUBLISH_PROBLEM: _single(lambda: self._tier.publishing.health().error is not None),
            FENCED: _single(lambda: self._tier.fence is not None),
        }
        for metric, read in reads.items():
            metrics.observe(metric, read)

    # The tier's contents, by the catalogue

    def storage_size(self) -> Shown:
        sizes: Counter[tuple[str, SegmentType]] = Counter()
        for row in self._tier.metadata.segments():
            sizes[row.path, row.type] += row.size
        for (path, kind), size in sizes.items():
            yield size, {"topic": path, "file_type": kind.name.lower()}

    def reserve_time(self) -> Shown:
        """The age of each queue's oldest message, except for queues with implausible times:
        RocketMQ's rows have some.
        """
        now = self._tier.runtime.clock.now_ms()
        oldest: dict[str, int] = {}
        for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE):
            begins: dict[str, int] = {}
            for row in self._tier.metadata.segments(type=kind):
                times = catalogue_times(row, now)
                if times is not None:
                    begins[row.path] = min(times[0], begins.get(row.path, times[0]))
            for path, begin in begins.items():  # one of the two begins with the oldest message
                oldest[path] = max(begin, oldest.get(path, begin))
        for path, time in oldest.items():
            topic, _, queue_id = path.partition("/")[2].rpartition("/")
            yield max(0, now - time), {"topic": topic, "queue_id": queue_id}

    # Queues

    def queues(self) -> Shown:
        problems = self._states()
        states = Counter(problems.values())
        states["ok"] = sum(file.key not in problems for file in self._tier.files.files())
        for state in ("ok", "failing", "stopped"):
            yield states[state], {"state": state}

    def queue_problems(self) -> Shown:
        for key, state in self._states().items():
            yield 1, {**_labels(key), "state": state}

    def lost_messages(self) -> Shown:
        for key, count in self._dispatcher.health().lost.items():
            yield count, _labels(key)

    def queue_held_log_bytes(self) -> Shown:
        end = self._next.confirmed_offset()
        for key, needed in self._dispatcher.needed_by_queue().items():
            yield max(0, end - needed), _labels(key)

    def behind(self) -> Shown:
        """How many messages of each queue are not in the tier yet."""
        for file, maximum in self._followed():
            yield max(0, maximum - file.append_offset), _labels(file.key) | _OF_QUEUES

    def latency_ms(self) -> Shown:
        """The age of each queue's oldest message that is not in the tier yet."""
        now = self._tier.runtime.clock.now_ms()
        for file, maximum in self._followed():
            age = self._age(file, now) if file.append_offset < maximum else 0
            yield age, _labels(file.key) | _OF_QUEUES

    def _age(self, file: FlatMessageFile, now: int) -> int:
        try:
            time = self._next.store_time(*file.key, file.append_offset)
        except TieredStoreError:  # damaged, or closed: `health` says so
            return 0
        return 0 if time is None else max(0, now - time)

    def _followed(self) -> Iterator[tuple[FlatMessageFile, int]]:
        """The queues that are uploaded, and where each ends in the local store."""
        for file in self._tier.files.files():
            if not file.is_started or self._dispatcher.topic_filter.rejects(file.key.topic):
                continue
            try:
                maximum = self._next.max_offset(*file.key)
            except TieredStoreError:  # closed: there is nothing to show
                return
            if maximum is not None:
                yield file, maximum

    def _states(self) -> dict[QueueKey, str]:
        health = self._dispatcher.health()
        keys = [*health.failing, *self._retention.errors, *self._sealing.failing]
        failing = dict.fromkeys(keys, "failing")
        return {**failing, **dict.fromkeys(health.stopped, "stopped")}

    def _held_log_bytes(self) -> int:
        needed = self._dispatcher.needed_from()
        return 0 if needed is None else max(0, self._next.confirmed_offset() - needed)

    # Index and catalogue

    def index_files(self) -> Shown:
        figures = self._tier.index.figures
        yield figures.unsealed_count, {"state": "unsealed"}
        yield figures.sealed_count, {"state": "sealed"}
        yield figures.uploaded_count, {"state": "uploaded"}

    def snapshot_age(self) -> Shown:
        written = self._tier.catalogue_upkeep.snapshot_ms
        if written is not None:
            yield max(0, self._tier.runtime.clock.now_ms() - written) / 1000, {}

    def published(self) -> Shown:
        health = self._tier.publishing.health()
        yield health.published_count, {"success": "true"}
        yield health.failure_count, {"success": "false"}


def _single(read: Callable[[], float]) -> GaugeRead:
    """A gauge without labels."""
    return lambda: [(float(read()), {})]


_OF_QUEUES: Final = {"file_type": "consume_queue"}


def _labels(key: QueueKey) -> dict[str, str]:
    return {"topic": key.topic, "queue_id": str(key.queue_id)}
