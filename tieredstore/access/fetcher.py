"""Reads of the tier: messages by queue offset, by time and by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import pairwise
from typing import Final, TypeVar

from tieredstore.access.key_lookup import SCAN_BYTES_MAX, KeyLookup
from tieredstore.access.pages import CachedSource, ColdError, ExactSource, HotSource, QueuePages
from tieredstore.access.read_cache import ReadCache
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.message_store import COUNT_MAX, ReadRequest
from tieredstore.driver.metrics import (
    KEYS_INCOMPLETE,
    READ_CACHE_ACCESS,
    READ_CACHE_BYTES,
    READ_CACHE_COUNT,
    READ_CACHE_HIT,
    Labels,
    Metric,
    Metrics,
)
from tieredstore.driver.runtime import Runtime, Service
from tieredstore.flat import times as time_search
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import DIRECT, ByteSource, empty_run, read_run
from tieredstore.flat.times import earliest_time, store_time
from tieredstore.index.contract import Index, IndexAnswer
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError, StoreClosedError
from tieredstore.model.messages import GetResult, MessageRun, QueryResult
from tieredstore.model.values import INT64_MAX, Boundary, QueueKey

T = TypeVar("T")

SWEEP_MS_MIN: Final = 1_000


class Fetcher:
    """Answers reads from the queues of a tier.

    * Absence is a status, None or an empty answer. Anything that prevents an answer is raised, and
      never looks like absence.
    * All reads go through one cache, bounded in bytes and in idle time: bytes that many readers
      want are fetched once. Exact reads use it, and put nothing into it.
    * If a queue expires or is destroyed during a read, the answer shows its new state.
    * Any thread may call anything. After `close` everything raises StoreClosedError.
    """

    def __init__(
        self,
        files: FlatFileStore,
        index: Index,
        config: StoreConfig,
        runtime: Runtime,
        metrics: Metrics,
        scan_bytes_max: int = SCAN_BYTES_MAX,
    ) -> None:
        self._files = files
        self._config = config
        self._runtime = runtime
        self._metrics = metrics
        self._cache: ReadCache | None = None
        self._source: ByteSource = DIRECT
        self._exact: ByteSource = DIRECT
        if config.read_ahead_enabled:
            self._cache = ReadCache(
                bytes_max=config.read_cache_bytes,
                idle_ms=config.read_ahead_ms,
                clock=runtime.clock,
            )
            self._source = CachedSource(self._cache, config)
            self._exact = ExactSource(self._cache)
            observe_cache(metrics, self._cache)
        self._keys = KeyLookup(
            files,
            index,
            runtime,
            source=self._source,
            scan_bytes_max=scan_bytes_max,
            checks_crc=config.checks_pages,
        )
        self._hot = HotSource(self._cache)
        self._pages = QueuePages(files, config)
        self._sweeper: Service | None = None
        self._closed = False

    @property
    def cache(self) -> ReadCache | None:
        """The read cache and its figures; None if reads are not cached."""
        return self._cache

    def start(self) -> None:
        """Begin to drop idle bytes, also while nothing is read; idempotent."""
        if self._cache is not None and self._sweeper is None and not self._closed:
            self._sweeper = self._runtime.service(
                "read-cache",
                self._cache.sweep,
                interval_ms=max(SWEEP_MS_MIN, self._config.read_ahead_ms),
            )

    def close(self) -> None:
        """Free the memory; idempotent. Reads under way may still succeed."""
        self._closed = True
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.stop()
        if self._cache is not None:
            self._cache.clear()

    def forget(self, key: QueueKey) -> None:
        """Free the memory of expired bytes now, before they become idle."""
        file = self._files.get(key)
        if self._cache is not None and file is not None:
            for part in (file.log, file.queue):
                self._cache.forget(part.cache_key, before=part.min_offset)

    # -- messages -----------------------------------------------------------------------------

    def get_message(self, request: ReadRequest) -> GetResult:
        """Messages from the offset on, as a broker's own store answers.

        At least one if there is one and any is wanted, however large; otherwise looks at no more
        than `read_ahead_count` units and returns no more than `read_ahead_bytes`. Raises
        BackendError and SegmentCorruptError.
        """
        self._check_open()
        return self._pages.get(request, self._source)

    def get_message_future(self, request: ReadRequest) -> Future[GetResult]:
        """The same as a future: already done if no backend is needed, otherwise completed by a
        thread of the fetch pool. A closed store raises here; every other error is in the future.
        """
        self._check_open()
        future: Future[GetResult] = Future()
        try:
            future.set_result(self._pages.get(request, self._hot))
        except ColdError:
            return self._runtime.fetch.submit(self._pages.get, request, self._source)
        except Exception as error:  # noqa: BLE001 - it goes into the future
            future.set_exception(error)
        return future

    def get_message_hot(self, request: ReadRequest) -> GetResult | None:
        """The same if no backend is needed; otherwise None."""
        self._check_open()
        try:
            return self._pages.get(request, self._hot)
        except ColdError:
            return None

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        """Consecutive messages as columns, through the cache: the fast way to read many.

        Empty if there is none, else at least one. The run ends at a gap, and at a damaged body if
        bodies are checked.
        """

        def ask(file: FlatMessageFile) -> MessageRun:
            return read_run(
                file,
                offset,
                count_max=count_max,
                bytes_max=bytes_max,
                source=self._source,
                checks_bodies=self._config.checks_bulk_reads,
            )

        run = self._ask(topic, queue_id, ask)
        return empty_run(offset) if run is None else run

    # -- keys ---------------------------------------------------------------------------------

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        """Messages of a topic that have the key, stored within [begin, end], newest first.

        A count of zero or less gives none; a huge one gives all. What cannot be read makes the
        answer incomplete; only an index that cannot be asked raises.
        """
        self._check_open()
        answer = self._keys.query(topic, key, count_max=count_max, begin=begin, end=end)
        if not (answer.complete or answer.lags):
            self._metrics.add(KEYS_INCOMPLETE, 1, {"topic": topic})
        return answer

    def key_hits(
        self, topic: str, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        """Places of messages that may have the key, from the index; no message is read."""
        self._check_open()
        return self._keys.hits(topic, key, count_max=count_max, begin=begin, end=end)

    # -- times --------------------------------------------------------------------------------

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When a message was stored, None if it is not there: two small reads."""

        def ask(file: FlatMessageFile) -> int | None:
            if not _contains(file, offset):
                return None
            return store_time(file, offset, source=self._exact)

        return self._ask(topic, queue_id, ask)

    def earliest_time(self, topic: str, queue_id: int) -> int | None:
        """When the oldest message was stored; None if there is none. From the catalogue; read from
        the message only if the catalogue's time is implausible.
        """

        def ask(file: FlatMessageFile) -> int | None:
            if file.min_offset >= file.commit_offset:
                return None
            return earliest_time(file, source=self._exact)

        return self._ask(topic, queue_id, ask)

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp: int,
        boundary: Boundary = Boundary.LOWER,
    ) -> int | None:
        """The queue offset that belongs to a store time; None for a queue that is not there."""

        def ask(file: FlatMessageFile) -> int | None:
            return time_search.offset_by_time(file, timestamp, boundary, self._exact)

        return self._ask(topic, queue_id, ask)

    # -- offsets ------------------------------------------------------------------------------

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The oldest queue offset, or the next one if none is left; None for an unknown queue."""
        return self._ask(topic, queue_id, lambda file: file.min_offset)

    def commit_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset; None for a queue that is not there."""
        file = self._file(topic, queue_id)
        return None if file is None or not file.is_started else file.commit_offset

    def gaps(self, topic: str, queue_id: int, start: int) -> list[range]:
        """The offsets from `start` on that the queue lacks before others that it has; makes no
        request to the backend."""
        file = self._file(topic, queue_id)
        if file is None or not file.is_started:
            return []
        pairs = pairwise(file.queue.segments)
        gaps = (range(one.end // UNIT_BYTES, two.base // UNIT_BYTES) for one, two in pairs)
        return [range(max(start, gap.start), gap.stop) for gap in gaps if gap.stop > start and gap]

    def queues(self, topic: str) -> list[QueueKey]:
        """The queues of a topic that have messages now; makes no request to the backend."""
        self._check_open()
        keys = [file.key for file in self._files.of_topic(topic)]
        return [key for key in keys if self.has_messages(*key)]

    def has_messages(self, topic: str, queue_id: int) -> bool:
        """Whether the queue has any message now; makes no request to the backend."""
        file = self._file(topic, queue_id)
        return file is not None and file.is_started and file.queue.min_unit < file.commit_offset

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether there is a message at this offset: not in a gap, and not expired."""
        return bool(self._ask(topic, queue_id, lambda file: _contains(file, offset)))

    # -----------------------------------------------------------------------------------------

    def _ask(self, topic: str, queue_id: int, ask: Callable[[FlatMessageFile], T]) -> T | None:
        """A queue's answer, repeated if the queue changed meanwhile; None for an unknown queue."""
        while True:
            file = self._file(topic, queue_id)
            if file is None or not file.is_started:
                return None
            first = file.log.min_offset, file.queue.min_offset
            try:
                return ask(file)
            except (SegmentCorruptError, StoreClosedError, ValueError, FileNotFoundError):
                is_same = (file.log.min_offset, file.queue.min_offset) == first
                if is_same and self._file(topic, queue_id) is file:
                    raise

    def _file(self, topic: str, queue_id: int) -> FlatMessageFile | None:
        self._check_open()
        return self._files.get(QueueKey(topic, queue_id))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the fetcher is closed")


def _contains(file: FlatMessageFile, offset: int) -> bool:
    if not file.queue.min_unit <= offset < file.commit_offset:
        return False
    return file.queue.first_unit_from(offset) == offset and offset >= file.min_offset


def observe_cache(metrics: Metrics, cache: ReadCache) -> None:
    """Export the figures of the cache."""

    def gauge(metric: Metric, read: Callable[[], int]) -> None:
        def measured() -> Iterable[tuple[float, Labels]]:
            yield float(read()), {}

        metrics.observe(metric, measured)

    gauge(READ_CACHE_COUNT, lambda: cache.extent_count)
    gauge(READ_CACHE_BYTES, lambda: cache.held_bytes)
    gauge(READ_CACHE_ACCESS, lambda: cache.access_count)
    gauge(READ_CACHE_HIT, lambda: cache.hit_count)
