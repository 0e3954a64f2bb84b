"""`TieredReader`: a tier read with no broker beside it.

What lives here: opening a tier read only, what is in it, and messages in bounded memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Self, TypeVar

from tieredstore.access.asked_fresh import asked_fresh
from tieredstore.access.catalogue_choice import check_broker, check_place
from tieredstore.access.copied_rows import amend_problems, refresh_copy
from tieredstore.access.index_protocol import Index
from tieredstore.access.queue_summary import QueueSummary, summary_of
from tieredstore.access.reads.whole_queue import messages_of, next_run
from tieredstore.access.wiring import GivenParts, TierParts, open_tier
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, MessageFilter
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.metrics import Metrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.published import CatalogueFacts
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.index.index_reach import IndexTimes, indexed_offset, indexed_times
from tieredstore.index.watermarks import QueueId
from tieredstore.model.catalogue import SegmentRecord, TopicRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import StoreClosedError, refused_by_system
from tieredstore.model.messages import GetResult, MessageRun, QueryResult, SelectedMessage
from tieredstore.model.values import INT64_MAX, Boundary, QueueKey, require_place, require_text

T = TypeVar("T")

CLOSE_SECONDS: Final = 60.0


class TieredReader:
    """Reads a tier and its catalogue, and changes not one byte of either.

    * It may run beside a writer, in the same process or another: it sees what the catalogue named
      when it was opened, and `refresh` shows what has come since. What has expired or was deleted
      since is no damage: where bytes are missing it looks again by itself.
    * On the broker's host it asks the key index on the broker's disk too, and reads what the index
      lacks; elsewhere an answer by key that may lack something `lags`, and `indexed_offset` says up
      to where the index goes. `is_brokers_host` None: where it opens the broker's own catalogue.
    * What is not given is made from the settings and released by `close`; what is given stays the
      caller's. Absence is None, a status or an empty answer, as everywhere.
    * Any thread may call anything. Before `load` and after `close` everything raises
      StoreClosedError; in a process that is forked off, OtherProcessError: it opens its own.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        runtime: Runtime | None = None,
        provider: SegmentProvider | None = None,
        metadata: MetadataStore | None = None,
        index: Index | None = None,
        metrics: Metrics | None = None,
        is_brokers_host: bool | None = None,
    ) -> None:
        self.config = config
        self._given = GivenParts(
            runtime=runtime,
            provider=provider,
            metadata=metadata,
            index=index,
            metrics=metrics,
            is_brokers_host=is_brokers_host,
        )
        self._parts: TierParts | None = None
        self._life_guard = threading.RLock()

    @classmethod
    def open(cls, config: StoreConfig) -> Self:
        """A reader of the tier that these settings name, open."""
        reader = cls(config)
        reader.load()
        return reader

    def load(self) -> None:
        """Open the catalogue and its queues; idempotent. After an error nothing is open.

        AnotherTierError where the catalogue has other brokers only, or nothing of it lies where
        the settings say.
        """
        self._refuse_a_fork()
        with self._life_guard, refused_by_system(self.config.store_path, "open"):
            if self._parts is not None:
                return
            parts = open_tier(self.config, self._given, read_only=True)
            try:
                check_broker(self.config, parts.metadata)
                parts.load()
                amend_problems(parts.files, parts.metadata, parts.provider)
                if self._given.provider is None and _seems_lost(parts):
                    check_place(self.config, parts.metadata, parts.provider)
            except BaseException:
                parts.close()
                raise
            self._parts = parts

    def refresh(self) -> None:
        """Show what a writer has done since."""
        self._refuse_a_fork()
        with self._life_guard:
            self._freshen()

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Release what was opened, in so many seconds; idempotent. Who does not answer in time is
        left behind, and the log says so."""
        self._refuse_a_fork()
        with self._life_guard:
            parts, self._parts = self._parts, None
        if parts is not None:
            with refused_by_system(self.config.store_path, "close"):
                parts.close(timeout)

    def __enter__(self) -> Self:
        self.load()
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        if self._parts is None or not self._parts.process.is_left_by(kind):
            self.close()

    # -- what there is ------------------------------------------------------------------------

    @property
    def catalogue(self) -> CatalogueFacts:
        """Where all this comes from: the writer's own file, or a copy that lags behind."""
        return self._loaded().metadata.facts

    def topics(self) -> Sequence[TopicRecord]:
        return sorted(self._loaded().metadata.topics(), key=lambda record: record.topic)

    def queues(self, topic: str | None = None) -> list[QueueKey]:
        """By topic and queue id."""
        return [file.key for file in self._files(topic)]

    def summary(self, topic: str, queue_id: int) -> QueueSummary | None:
        """What the tier has of one queue. May take one small read."""
        key = QueueKey(topic, queue_id)

        def ask() -> QueueSummary | None:
            file = self._loaded().files.get(key)
            return None if file is None else summary_of(file)

        return self._asked(key, ask)

    def segments(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> list[SegmentRecord]:
        """The catalogue's rows of these queues, by queue, type and base; sizes as they are."""
        found: list[SegmentRecord] = []
        for file in self._files(topic, queue_id):
            found += [each.record for each in (*file.log.segments, *file.queue.segments)]
        return found

    # -- as a store answers -------------------------------------------------------------------

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = COUNT_MAX,
        bytes_max: int = BYTES_MAX,
        message_filter: MessageFilter | None = None,
        group: str = "",
    ) -> GetResult:
        require_place(topic, queue_id, offset, count_max, bytes_max)
        return self._asked(
            QueueKey(topic, queue_id),
            lambda: self._loaded().fetcher.get_message(
                topic,
                queue_id,
                offset,
                count_max=count_max,
                bytes_max=bytes_max,
                message_filter=message_filter,
                group=group,
            ),
        )

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        require_place(topic, count_max, begin, end)
        require_text("key", key)

        def ask() -> QueryResult:
            return self._loaded().fetcher.query_message(
                topic, key, count_max=count_max, begin=begin, end=end
            )

        result = ask()
        if result.complete or result.lags or not self.config.index_enabled:
            return result
        self._freshen(INDEX_TOPIC, topic)  # what is missing may have expired
        return ask()

    def indexed_offset(self, topic: str, queue_id: int) -> int | None:
        """Below this the uploaded index has every message; None where nobody noted it.

        On the broker's host `query_message` finds what lies behind it too.
        """
        parts = self._loaded()
        file = parts.files.get(QueueKey(topic, queue_id))
        if file is None:
            return None
        queue = QueueId(file.topic_id, queue_id)
        return indexed_offset(parts.metadata, self.config.broker_name, topic, queue)

    def indexed_times(self) -> IndexTimes | None:
        """The store times that `query_message` finds messages of; None where that is not known."""
        parts = self._loaded()
        now = parts.runtime.clock.now_ms()
        return indexed_times(parts.metadata, self.config.broker_name, now)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        require_place(topic, queue_id, timestamp)
        return self._asked(
            QueueKey(topic, queue_id),
            lambda: self._loaded().fetcher.offset_by_time(topic, queue_id, timestamp, boundary),
        )

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        require_place(topic, queue_id, offset)
        return self._asked(
            QueueKey(topic, queue_id),
            lambda: self._loaded().fetcher.store_time(topic, queue_id, offset),
        )

    def earliest_time(self, topic: str, queue_id: int) -> int | None:
        require_place(topic, queue_id)
        return self._asked(
            QueueKey(topic, queue_id), lambda: self._loaded().fetcher.earliest_time(topic, queue_id)
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        require_place(topic, queue_id)
        return self._asked(
            QueueKey(topic, queue_id), lambda: self._loaded().fetcher.min_offset(topic, queue_id)
        )

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset that can be read."""
        require_place(topic, queue_id)
        return self._loaded().fetcher.commit_offset(topic, queue_id)

    # -- all of it ----------------------------------------------------------------------------

    def runs(
        self, topic: str | None = None, queue_id: int | None = None, *, start: int = 0
    ) -> Iterator[tuple[QueueKey, MessageRun]]:
        """Messages from queue offset `start` on, queue after queue, as runs.

        One run is in memory at a time, of `read_ahead_bytes` at most or a single message. Ends
        where each queue ended when its turn came; gaps are stepped over. Damage raises
        SegmentCorruptError when all before it has been given.
        """
        files = self._files(topic, queue_id)
        return ((file.key, run) for file in files for run in self._runs_of(file, start))

    def messages(
        self, topic: str | None = None, queue_id: int | None = None, *, start: int = 0
    ) -> Iterator[SelectedMessage]:
        """The same, one by one."""
        runs = self.runs(topic, queue_id, start=start)
        return (message for _, run in runs for message in messages_of(run))

    def _runs_of(self, file: FlatMessageFile, start: int) -> Iterator[MessageRun]:
        end = file.commit_offset
        offset = start
        while offset < end:
            run = self._asked(file.key, partial(self._run_at, file, offset, end))
            if run is None:
                return
            yield run
            offset = run.end_offset

    def _run_at(self, file: FlatMessageFile, start: int, end: int) -> MessageRun | None:
        """The next run; None where there is none before `end`, or the queue is gone."""
        if self._loaded().files.get(file.key) is not file:
            return None
        return next_run(file, self.config, start, end)

    def _asked(self, key: QueueKey, call: Callable[[], T]) -> T:
        def state() -> object:
            file = self._loaded().files.get(key)
            if file is None:
                return None
            both = file.log, file.queue  # with another cache key, less is there than was
            return file, *((one.is_started, one.min_offset, one.cache_key) for one in both)

        queue = f"{key.topic}/{key.queue_id}"
        return asked_fresh(call, state=state, refresh=lambda: self._freshen(queue))

    def _freshen(self, *places: str) -> None:
        with self._life_guard:
            parts, broker = self._loaded(), self.config.broker_name
            paths = [f"{broker}/{place}" for place in places]
            refresh_copy(parts.files, parts.metadata, parts.provider, *paths)

    def _files(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> list[FlatMessageFile]:
        files = sorted(self._loaded().files.files(), key=lambda file: file.key)
        return [
            file
            for file in files
            if topic in (None, file.key.topic) and queue_id in (None, file.key.queue_id)
        ]

    def _loaded(self) -> TierParts:
        parts = self._parts
        if parts is None:
            raise StoreClosedError("the reader is not open")
        parts.process.require()
        return parts

    def _refuse_a_fork(self) -> None:
        """Before a lock is asked for, which a thread of the parent may have held at the fork."""
        if self._parts is not None:
            self._parts.process.require()


def _seems_lost(parts: TierParts) -> bool:
    """Whether every queue that should have bytes misses some: the wrong place looks so."""
    files = [file for file in parts.files.files() if file.log.is_started or file.queue.is_started]
    return bool(files) and all(file.problem is not None for file in files)
