"""`TieredMessageStore`: a broker's message store with a second tier below it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final, Self

from tieredstore.access.agreement import Agreement, agree, find_fork, unnamed_ends, why_forked
from tieredstore.access.answers import Answers, ReadDecision
from tieredstore.access.dispatcher import Dispatcher
from tieredstore.access.health import TierGauges, TierHealth, health_of
from tieredstore.access.queue_upload import forget_stops, without_mark
from tieredstore.access.tables import BrokerTables, ConsumerOffsets, TopicTable
from tieredstore.access.upkeep import (
    EXPIRED_SIDE_BY_SIDE,
    SEALING_MS,
    Retention,
    SealChore,
    TendChore,
    TierFlush,
    kept_from,
)
from tieredstore.access.wiring import Tier, keeps_catalogue, open_tier
from tieredstore.driver import message_store
from tieredstore.driver.arrivals import Arrival, ArrivalCallback, Arrivals
from tieredstore.driver.message_store import (
    BYTES_MAX,
    COUNT_MAX,
    MessageFilter,
    MessageStore,
    ReadRequest,
    RetentionGuard,
    batches_at_once,
    puts_at_once,
)
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.metrics import Metrics, MetricsOfLives, NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import (
    Deadline,
    InlinePool,
    Runtime,
    Service,
    done_future,
    mapped_future,
)
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.index.contract import Index
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    StoreClosedError,
    refused_by_system,
)
from tieredstore.model.messages import (
    DispatchRequest,
    GetResult,
    Message,
    MessageRun,
    PutResult,
    QueryResult,
    SelectedMessage,
)
from tieredstore.model.printable import log_of
from tieredstore.model.topics import LIGHT_QUEUE_PREFIX, TopicFilter, is_system_topic
from tieredstore.model.values import (
    INT64_MAX,
    Boundary,
    PutStatus,
    QueueKey,
    StorageLevel,
    require_place,
    require_text,
    texts_of,
)

log = log_of(__name__)

FLUSH_SECONDS: Final = 60.0


class TieredMessageStore:
    """Wraps a message store: copies its messages to the tier, and reads them there once the store
    has deleted them.

    * Puts, and all calls about the log, go to the next store. It is loaded first and shut down
      last.
    * `load` makes missing parts from the settings, and `shutdown` releases them. Given parts belong
      to the caller and are not closed.
    * A `load` that fails leaves nothing open and may be tried again; so may a store that was shut
      down.
    * Each `load` takes the tier over before it reads any of it: the previous writer is fenced, for
      good. A provider made from the settings does so at each `load`. A given provider does it once,
      and a later `load` raises FencedError if another writer has taken over.
    * It belongs to the process that loaded it: in a forked process every call raises
      OtherProcessError and touches nothing of the parent.
    """

    def __init__(
        self,
        next_store: MessageStore,
        config: StoreConfig,
        *,
        runtime: Runtime | None = None,
        provider: SegmentProvider | None = None,
        metadata: MetadataStore | None = None,
        index: Index | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.config = config
        self.metrics = metrics or NoMetrics()
        self._next = next_store
        self._next_at_once = puts_at_once(next_store)
        self._next_batch_at_once = batches_at_once(next_store)
        self._open_tier = partial(
            open_tier, config, runtime=runtime, provider=provider, metadata=metadata, index=index
        )
        self._decision = ReadDecision(
            next_store, TopicFilter(config.cluster_name, config.broker_name), config.storage_level
        )
        self._listener = _Listener()
        self._life_guard = threading.RLock()
        self._metrics_of_lives = MetricsOfLives(self.metrics)
        self._open: _Open | None = None
        self._services: list[Service] = []
        self._started = False

    @property
    def topic_filter(self) -> TopicFilter:
        """The topics that stay out of the tier; more can be rejected while the store is loaded."""
        return self._decision.topic_filter

    @property
    def level(self) -> StorageLevel:
        """When a read is served by the tier; may be set at any time."""
        return self._decision.level

    @level.setter
    def level(self, level: StorageLevel) -> None:
        self._decision.level = StorageLevel(level)

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the next store and the tier. Raises what either raises when it cannot be opened."""
        self._refuse_a_fork()
        with self._life_guard, self._refusals("open"):
            if self._open is not None:
                return
            with ExitStack() as undo:
                undo.callback(self._next.shutdown)
                self._next.load()
                tier = self._tier_of_new_life()
                undo.callback(tier.close)
                tier.load()
                opened = _Open(self._next, tier, self._decision, self.config)
                opened.agree()
                # Before anything is deleted.
                self._listener.follow(self._next, opened.dispatcher)
                opened.load_tables()
                chores = opened.retention, opened.sealing
                gauges = TierGauges(tier, opened.dispatcher, *chores, self._next)
                gauges.register(tier.metrics)
                self._open = opened
                undo.pop_all()

    def start(self) -> None:
        """From now on accept puts, upload, and drop expired segments.

        Raises StoreClosedError while the store is not loaded, and what the next store
        raises.
        """
        self._refuse_a_fork()
        with self._life_guard, self._refusals("start"):
            opened = self._loaded()
            if self._started:
                return
            self._next.start()
            opened.tier.index.start()
            opened.dispatcher.start()
            self._services = opened.start_chores(self.config)
            self._started = True

    def shutdown(self, *, drain: bool = True, timeout: float | None = FLUSH_SECONDS) -> None:
        """End everything within the timeout; with `drain` upload everything first, as `flush` does.

        Every part is ended, even if others fail; then the last failure is raised, with the others
        as its context. A part that does not stop in time is abandoned, which is logged.
        """
        self._refuse_a_fork()
        with self._life_guard, self._refusals("shut down"):
            opened = self._open
            if opened is None:
                return
            deadline = Deadline(opened.tier.runtime.clock, timeout)
            self._open = None  # calls from now on raise StoreClosedError
            services, self._services = self._services, []
            started, self._started = self._started, False
            with ExitStack() as ending:  # last in, first out
                ending.callback(self._metrics_of_lives.end)
                ending.callback(self._end_next)
                ending.callback(lambda: opened.tier.close(deadline.left()))
                ending.callback(opened.end_tables, deadline, drain=drain and started)
                ending.callback(_end_chores, services, deadline)
                ending.callback(opened.end_uploads, deadline, drain=drain and started)
                for service in services:
                    ending.callback(service.stop, 0)  # `_end_chores` waits for it
                ending.callback(opened.retention.stop)
                ending.callback(opened.sealing.stop)
                ending.callback(opened.tending.stop)

    def destroy(self) -> None:
        """Delete the data of both tiers; a store that is open is shut down first, undrained.

        Raises what the next store raises, and BackendError where the tier cannot be
        deleted.
        """
        self._refuse_a_fork()
        with self._life_guard, self._refusals("destroy"):
            self.shutdown(drain=False)
            tier = self._tier_of_new_life()
            try:
                topics = [record.topic for record in tier.metadata.topics()]
                paths = {row.path for row in tier.metadata.segments()}
                tier.index.destroy()
                tier.files.delete_topics(topics)
                tier.metrics.forget("topic", topics)
                tier.metrics.forget("path", paths)
                if self.config.tables_enabled:
                    BrokerTables(self.config, tier.metadata, tier.runtime).destroy()
            finally:
                tier.close()
                self._metrics_of_lives.end()
            self._next.destroy()

    def __enter__(self) -> Self:
        self.load()
        try:
            self.start()
        except BaseException:
            self.shutdown(drain=False)
            raise
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        opened = self._open
        if opened is None or not opened.tier.process.is_left_by(kind):
            self.shutdown()

    # -- messages -----------------------------------------------------------------------------

    def put_message(self, message: Message) -> PutResult:
        """Store one message, and say where, or by the status why not.

        Raises StoreClosedError while the store is not loaded, and what the next store
        raises.
        """
        if self._loaded().refusals and (refused := self._refusal(message)) is not None:
            return refused
        return self._next.put_message(message)

    def put_at_once(self, message: Message) -> PutResult | None:
        """Store one message without waiting; None, with nothing done, where that cannot be.

        Raises what `put_message` raises.
        """
        if self._loaded().refusals and (refused := self._refusal(message)) is not None:
            return refused
        put = self._next_at_once
        return None if put is None else put(message)

    def put_messages_at_once(self, messages: Sequence[Message]) -> Sequence[PutResult] | None:
        """Store messages without waiting; None, with nothing done, where that cannot be.

        Raises what `put_messages` raises.
        """
        opened = self._loaded()
        put = self._next_batch_at_once
        if put is None:
            return None
        if not opened.refusals:
            return put(messages)
        taken, refused = self._parted(messages)
        results = put(taken)
        return None if results is None else _merged(results, refused)

    def put_messages(self, messages: Sequence[Message]) -> Sequence[PutResult]:
        """Store messages in this order; each is stored or refused by itself.

        Raises StoreClosedError while the store is not loaded, and what the next store
        raises.
        """
        if not self._loaded().refusals:
            return self._next.put_messages(messages)
        taken, refused = self._parted(messages)
        return _merged(self._next.put_messages(taken), refused)

    def put_message_future(self, message: Message) -> Future[PutResult]:
        """Take one message now; the future is done when it is stored or refused.

        Raises StoreClosedError while the store is not loaded; the next store raises here or
        in the future.
        """
        if self._loaded().refusals and (refused := self._refusal(message)) is not None:
            return done_future(lambda: refused)
        return self._next.put_message_future(message)

    def put_messages_future(self, messages: Sequence[Message]) -> Future[Sequence[PutResult]]:
        """Take messages now; the future is done when all are stored or refused.

        Raises StoreClosedError while the store is not loaded; the next store raises here or
        in the future.
        """
        if not self._loaded().refusals:
            return self._next.put_messages_future(messages)
        taken, refused = self._parted(messages)
        return mapped_future(
            self._next.put_messages_future(taken), lambda results: _merged(results, refused)
        )

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
        """Messages from `offset` on, in order; continue at `next_offset`.

        At most `count_max` messages and about `bytes_max` bytes; where there is a message,
        at least one, however large. An unknown queue, or an offset without a message, is a
        status.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, SegmentCorruptError where the message at `offset` is
        damaged, and BackendError where only the tier has it and cannot be read.
        """
        request = ReadRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        return self._loaded().answers.get(request)

    def get_message_future(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = COUNT_MAX,
        bytes_max: int = BYTES_MAX,
        message_filter: MessageFilter | None = None,
        group: str = "",
    ) -> Future[GetResult]:
        """Already done if the answer is in memory; otherwise a thread of the fetch pool completes
        it.

        While that pool is full the caller's own thread does the work, as everywhere. A closed
        store raises here; every other error is in the future.
        """
        request = ReadRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        return self.read_future(request)

    def get_message_hot(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = COUNT_MAX,
        bytes_max: int = BYTES_MAX,
        message_filter: MessageFilter | None = None,
        group: str = "",
    ) -> GetResult | None:
        """The answer if it is in memory; None if it would have to wait for a backend or a disk.

        For callers that must not wait: `get_message_future` does the work itself while the fetch
        pool is full.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, and for a hot answer what `get_message` raises.
        """
        request = ReadRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        return self.read_hot(request)

    def read_future(self, request: ReadRequest) -> Future[GetResult]:
        """`get_message_future` for an existing request.

        Raises StoreClosedError while the store is not loaded; every other error is in the
        future.
        """
        return self._loaded().answers.get_future(request)

    def read_hot(self, request: ReadRequest) -> GetResult | None:
        """`get_message_hot` for an existing request.

        Raises StoreClosedError while the store is not loaded, and for a hot answer what
        `get_message` raises.
        """
        return self._loaded().answers.get_hot(request)

    # -- where queues begin and end, and what lies at a time or under a key ----------------------

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The oldest queue offset that can be read; None for a queue that is not there.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id)
        return self._loaded().answers.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset; None for a queue that is not there.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, and what the next store raises.
        """
        require_place(topic, queue_id)
        return self._loaded().answers.max_offset(topic, queue_id)

    def committed_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset that is in the tier; None for a queue that is not.

        A broker's own retention may delete below it.

        Raises InvalidArgumentError for an argument of the wrong kind, and StoreClosedError
        while the store is not loaded.
        """
        require_place(topic, queue_id)
        return self._loaded().tier.fetcher.commit_offset(topic, queue_id)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        """The queue offset to start from for a store time; None for a queue that is not there.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id, timestamp)
        return self._loaded().answers.offset_by_time(topic, queue_id, timestamp, boundary)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at this offset was stored, in ms; None where there is none.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id, offset)
        return self._loaded().answers.store_time(topic, queue_id, int(offset))

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        """Store time of a queue's oldest message in either tier, in ms; None where there is none.

        Without a topic it is that of the next store's oldest message, as in RocketMQ.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place("" if topic is None else topic, queue_id)
        return self._loaded().answers.earliest_time(topic, queue_id)

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

        `complete` is False where a hit may be missing, also because the tier cannot be
        reached.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, BackendRefusedError where the tier refuses, and what
        the next store raises.
        """
        require_place(topic, count_max, begin, end)
        require_text("key", key)
        return self._loaded().answers.query_message(
            topic, key, count_max=count_max, begin=begin, end=end
        )

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether there is a message at this queue offset.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id, offset)
        return self._loaded().answers.contains(topic, queue_id, int(offset))

    def queues(self) -> Iterable[QueueKey]:
        """The queues of the next store and those that only the tier still has.

        Raises StoreClosedError while the store is not loaded, and what the next store
        raises.
        """
        files = self._loaded().tier.files.files()
        return {*self._next.queues(), *(file.key for file in files)}

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        """Consecutive messages as columns; empty where there is none, else at least one.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, SegmentCorruptError where the first message is
        damaged, and BackendError where only the tier has it and cannot be read.
        """
        request = ReadRequest(topic, queue_id, offset, count_max, bytes_max)
        return self._loaded().answers.read_range(request)

    # -- answers about the next store's own log and memory ------------------------------------

    def confirmed_offset(self) -> int:
        """Below this log offset messages are durable, and may be uploaded.

        Raises StoreClosedError while the store is not loaded, and what the next store
        raises.
        """
        self._loaded()
        return self._next.confirmed_offset()

    def min_log_offset(self) -> int | None:
        """The oldest log offset; None while the log is empty.

        Raises StoreClosedError while the store is not loaded, and what the next store
        raises.
        """
        self._loaded()
        return self._next.min_log_offset()

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        """The message whose record starts at this offset of the next store's log, if one does.

        Raises StoreClosedError while the store is not loaded, and what the next store
        raises: SegmentCorruptError for a damaged record.
        """
        self._loaded()
        return self._next.message_at(log_offset, size)

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        """Whether these messages can be read without waiting for a disk.

        Raises StoreClosedError while the store is not loaded, and what the next store
        raises.
        """
        self._loaded()
        return self._next.in_memory(topic, queue_id, offset, count)

    # -- looking after it ---------------------------------------------------------------------

    def flush(self, timeout: float | None = FLUSH_SECONDS, *, seal: bool = False) -> bool:
        """Upload everything now; return whether everything that the next store has confirmed is in
        the tier.

        The next store is first asked to make its messages durable and to confirm them: so True
        means that everything put before is in the tier. A store without a method `flush` is not
        asked, and messages that it has not confirmed do not count, as while a replica is behind.
        The answer is also False if either store fails or is late. A queue that fails is tried once.
        Queues with a problem stay behind, and `health` shows them. Queues whose names the tier
        cannot store are ignored, because they would make every answer False. With `seal` every
        segment is sealed, and the key index is uploaded too, as far as it reaches, so that readers
        elsewhere find the keys. In a directory the catalogue is published too, and the answer is
        False if that fails.

        Raises StoreClosedError while the store is not started, and with `seal` what the backend
        raises.
        """
        opened = self._loaded()
        if not self._started:
            raise StoreClosedError("the store is not started")
        deadline = Deadline(opened.tier.runtime.clock, timeout)
        with self._refusals("flush"):
            is_kept = opened.tables is None or opened.tables.stage()
            is_flushed = opened.flushing.flush(deadline.left(), seal=seal)
            if opened.tables is not None:
                is_kept = opened.tables.settle(deadline.left()) and is_kept
            return is_flushed and is_kept

    @property
    def agreement(self) -> Agreement:
        """The result of comparing the next store with the tier when this one was loaded.

        Raises StoreClosedError while the store is not loaded.
        """
        return self._loaded().agreement

    def health(self) -> TierHealth:
        """The health of the tier, without a request to the backend.

        Raises StoreClosedError while the store is not loaded, and what the next store raises.
        """
        opened = self._loaded()
        return health_of(
            opened.tier,
            opened.dispatcher,
            opened.retention,
            opened.sealing,
            self._next,
            level=self.level,
            tables=opened.tables,
            continued=opened.agreement.continued,
            refused=opened.refusals,
        )

    def resume_queue(
        self, topic: str, queue_id: int, *, timeout: float | None = FLUSH_SECONDS
    ) -> str | None:
        """Upload a stopped queue again if the tier and the next store agree; otherwise return why
        not. For a queue that is not stopped, but whose last attempt failed, return why that failed.

        A queue stops if the next store has lost or changed messages that the tier has. This call
        overwrites nothing in the tier; if the next store no longer has a message to compare, the
        queue continues after a gap.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError while the
        store is not loaded, and what the backend raises when it is asked.
        """
        require_place(topic, queue_id)
        opened = self._loaded()
        with self._refusals("resume"):
            seconds = Deadline(opened.tier.runtime.clock, timeout).left()
            reason = opened.dispatcher.resume(QueueKey(topic, queue_id), timeout=seconds)
            if reason is None:
                opened.resumed(QueueKey(topic, queue_id))
            return reason

    # -- topics -------------------------------------------------------------------------------

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete topics from both stores; returns how many of them existed in either.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the store is not loaded, BackendError where an upload does not end or a store
        cannot delete, and what the next store raises.
        """
        topics = texts_of("topics", topics)
        opened = self._loaded()
        with self._refusals("delete topics"):
            return self._delete_topics(opened, set(topics))

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        """Delete every topic but the retained, the system's and light queues; return how many.

        Raises what `delete_topics` raises.
        """
        kept = set(texts_of("retained", retained))
        tier = self._loaded().tier
        local = {key.topic for key in self._next.queues()}
        return self.delete_topics(
            topic
            for topic in (local | _tiered_topics(tier)) - kept
            if not is_system_topic(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX)
        )

    # -- what a broker keeps besides messages -------------------------------------------------

    @property
    def consumer_offsets(self) -> ConsumerOffsets:
        """The offset of each consumer group: kept on disk, with a copy in the tier.

        Raises StoreClosedError while the store is not loaded, and InvalidConfigError where
        `tables_enabled` is off.
        """
        return self._tables().consumer_offsets

    @property
    def topic_table(self) -> TopicTable:
        """The broker's topics and their settings, kept as consumer offsets are.

        Raises StoreClosedError while the store is not loaded, and InvalidConfigError where
        `tables_enabled` is off.
        """
        return self._tables().topic_table

    # -- others -------------------------------------------------------------------------------

    def add_dispatcher(self, dispatcher: message_store.Dispatcher) -> None:
        """Call it with every message that can be read, in log order, in batches.

        Raises what the next store raises.
        """
        self._next.add_dispatcher(dispatcher)

    def on_arrival(self, callback: ArrivalCallback) -> Arrival:
        """Call it with new messages until what this returns is cancelled.

        It may be called before `load`, and holds for every life of the store.

        Raises InvalidArgumentError for what cannot be called.
        """
        return self._listener.arrivals.add(callback)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        """Ask it before deleting: log bytes at or above what it returns are kept.

        Raises what the next store raises.
        """
        self._next.add_retention_guard(guard)

    # -----------------------------------------------------------------------------------------

    def _loaded(self) -> _Open:
        opened = self._open
        if opened is None:
            raise StoreClosedError("the store is not loaded")
        opened.tier.process.require()
        return opened

    def _tables(self) -> BrokerTables:
        tables = self._loaded().tables
        if tables is None:
            raise InvalidConfigError("tables_enabled: it is off, and this store keeps no tables")
        return tables

    def _refuse_a_fork(self) -> None:
        """Called before any lock is taken: a thread of the parent may have held it at the fork."""
        if self._open is not None:
            self._open.tier.process.require()

    def _refusals(self, operation: str) -> AbstractContextManager[None]:
        return refused_by_system(self.config.store_path, operation)

    def _refusal(self, message: Message) -> PutResult | None:
        """The answer to a message whose queue would have two histories; None if it is taken."""
        reason = self._loaded().refusals.get(QueueKey(message.topic, message.queue_id))
        if reason is None:
            return None
        place = f"{message.topic}/{message.queue_id}"
        return PutResult(
            status=PutStatus.SERVICE_NOT_AVAILABLE,
            reason=f"{place} takes no messages: {reason}. Decide by `tieredstore resume --trust`",
        )

    def _parted(self, messages: Sequence[Message]) -> tuple[list[Message], list[PutResult | None]]:
        """The messages that are taken, and for each message its refusal or None."""
        messages = list(messages)
        refused = [self._refusal(message) for message in messages]
        pairs = zip(messages, refused, strict=True)
        return [message for message, reason in pairs if reason is None], refused

    def _tier_of_new_life(self) -> Tier:
        """Open a tier. Its metrics are shown until the next one is opened or the store ends."""
        self._metrics_of_lives.end()
        return self._open_tier(metrics=self._metrics_of_lives)

    def _end_next(self) -> None:
        self._next.shutdown()
        self._listener.leave()  # only now: until here it keeps messages that the tier lacks

    def _delete_topics(self, opened: _Open, wanted: set[str]) -> int:
        """Delete topics from both stores; return how many of them existed in either.

        The tier goes first: after a crash in between the topic is uploaded again, and its tier is
        not ahead of the next store. All uploads of these topics pause, also those of new queues:
        otherwise an upload could write its rows again after the deletion. The catalogue is
        published before the bytes are deleted, and again once the consumer offsets are removed.
        Raises BackendUnavailableError if an upload does not end in time.
        """
        tier, files = opened.tier, opened.tier.files
        keys = {*self._next.queues(), *(file.key for file in files.files())}
        known = {key.topic for key in keys} | _tiered_topics(tier)
        paths = [file.path for file in files.files() if file.key.topic in wanted]
        with opened.dispatcher.alone_with_topics(wanted, timeout=FLUSH_SECONDS) as is_alone:
            if not is_alone:
                names = ", ".join(sorted(wanted))
                raise BackendUnavailableError(names, "delete", "an upload does not end")
            files.delete_topics(wanted)
            self._next.delete_topics(wanted)
            forget_stops(paths, tier.metadata)  # only now: until here they must stay stopped
            opened.forget_refusals(wanted)
            if opened.tables is not None:
                opened.tables.forget_topics(wanted)
            if wanted & known:
                tier.publishing.step()
        tier.metrics.forget("topic", wanted)
        tier.metrics.forget("path", paths)
        return len(wanted & known)


class _Open:
    """A loaded store's tier, and the parts between it and the next store."""

    def __init__(
        self, next_store: MessageStore, tier: Tier, decision: ReadDecision, config: StoreConfig
    ) -> None:
        files, fetcher, runtime = tier.files, tier.fetcher, tier.runtime
        self._next = next_store
        self._config = config
        self.decision = decision
        self.tier = tier
        self.tables = (
            BrokerTables(config, tier.metadata, runtime) if config.tables_enabled else None
        )
        self.agreement = Agreement()
        self.refusals: dict[QueueKey, str] = {}  # queues that take no puts, and why
        self.dispatcher = Dispatcher(
            next_store,
            files,
            tier.provider,
            tier.metadata,
            tier.index,
            config,
            runtime,
            tier.metrics,
            decision.topic_filter,
        )
        self.retention = Retention(
            files,
            self.dispatcher,
            forget=fetcher.forget,
            metadata=tier.metadata,
            config=config,
            clock=runtime.clock,
            pool=partial(runtime.pool, "expiry", threads=EXPIRED_SIDE_BY_SIDE)
            if tier.provider.shares_rounds
            else InlinePool,
        )
        self.sealing = SealChore(files, self.dispatcher, tier.provider, runtime.clock)
        self.tending = TendChore(tier.provider, config.broker_name)
        self.flushing = TierFlush(
            next_store, self.dispatcher, tier.index, self.sealing, tier.publishing, runtime
        )
        self.answers = Answers(
            next_store,
            fetcher,
            decision,
            runtime=runtime,
            metrics=tier.metrics,
            kept_from=self._kept_from,
            logs_outcomes=config.record_get_message_result,
        )

    def _kept_from(self, topic: str) -> int | None:
        now_ms = self.tier.runtime.clock.now_ms()
        return kept_from(self._config, self.tier.metadata.topic(topic), now_ms)

    def load_tables(self) -> None:
        """Load the tables, and move groups that are beyond the end of their queue back to it: the
        messages there are lost.

        * A queue that neither store has begins at 0 again, and so do its groups.
        * Queues that take no puts are left out: where they end is not decided yet.
        """
        if self.tables is None:
            return
        self.tables.load()
        queues = self.tables.consumer_offsets.queues() - self.refusals.keys()
        self.tables.clamp({key: self.answers.max_offset(*key) or 0 for key in queues})

    def agree(self) -> None:
        """Compare the next store with the tier, before anything is put or uploaded."""
        tier, dispatcher = self.tier, self.dispatcher
        files = tier.files.files()
        unnamed: dict[QueueKey, int] = {}
        if not keeps_catalogue(self._config, tier.provider):  # else it is as new as the bytes
            unnamed = unnamed_ends(tier.provider, tier.metadata, self._config.broker_name)
        self.agreement = agree(
            *(self._next, files, tier.metadata, dispatcher.mark),
            *(dispatcher.topic_filter, tier.runtime, self._give_up, unnamed),
        )
        self.refusals = dict(self.agreement.refused)
        self.decision.forks = dict(self.agreement.forks)
        dispatcher.was_compared(self.agreement.checked)
        dispatcher.tell_conflicts(self._conflict)

    def _give_up(self, key: QueueKey) -> None:
        """Delete the tier's copy of a queue."""
        self.tier.files.destroy(key, *without_mark(key, self.tier.metadata))
        self.tier.fetcher.forget(key)

    def _conflict(self, file: FlatMessageFile) -> None:
        """Handle a conflict that `agree` could not see, and the upload found."""
        fork = find_fork(self._next, file, file.commit_offset - 1)
        self.decision.forks[file.key] = fork
        self.refusals[file.key] = why_forked(fork)

    def resumed(self, key: QueueKey) -> None:
        """End the refusals of a queue that had two histories: where both stores have a message, it
        is now the same.
        """
        if self.decision.forks.pop(key, None) is not None:
            self.refusals.pop(key, None)

    def forget_refusals(self, topics: set[str]) -> None:
        """Forget deleted topics: one that is created again has only one history."""
        for key in [key for key in list(self.refusals) if key.topic in topics]:
            self.decision.forks.pop(key, None)
            self.refusals.pop(key, None)

    def start_chores(self, config: StoreConfig) -> list[Service]:
        """Start the periodic work on the tier, all of it or none; the caller stops it."""
        sealing_ms = config.dispatch_interval_ms
        if self.tier.provider.shares_rounds:  # segments sealed together share one entry
            sealing_ms = max(sealing_ms, SEALING_MS)
        chores: list[tuple[str, Callable[[], object], int]] = [
            ("tier-sealing", self.sealing.step, sealing_ms)
        ]
        if self.tending.is_needed:
            chores.append(("tier-log", self.tending.step, config.dispatch_interval_ms))
        if self.tier.publishing.is_enabled:
            chores.append(("tier-catalogue", self.tier.publish, config.publish_interval_ms))
        if self.tier.copy is not None and config.publish_interval_ms:
            chores.append(("tier-catalogue-copy", self.tier.copy.step, config.publish_interval_ms))
        if self.tables is not None:
            chores.append(("tier-tables", self.tables.step, config.tables_interval_ms))
        if config.expiry_enabled:
            chores.append(("tier-expiry", self.retention.step, config.expiry_interval_ms))
        with ExitStack() as undo:
            services: list[Service] = []
            for name, step, every in chores:
                services.append(self.tier.runtime.service(name, step, interval_ms=every))
                undo.callback(services[-1].stop, 0)
            undo.pop_all()
        return services

    def end_uploads(self, deadline: Deadline, *, drain: bool) -> None:
        """End the uploads; with `drain`, first upload everything, including the tables."""
        try:
            if drain and self.tables is not None:
                self.tables.stage()
            if drain and not self.flushing.make_durable(deadline.left()):
                log.warning("the broker's store did not make its last messages durable")
        finally:
            if not self.dispatcher.shutdown(drain=drain, timeout=deadline.left()):
                log.warning("not everything is uploaded: the rest follows after a restart")

    def end_tables(self, deadline: Deadline, *, drain: bool) -> None:
        """Write the tables to disk, even if the tier fails; with `drain`, also to the tier."""
        if self.tables is None:
            return
        self.tables.close()
        if drain and self.tables.stage():
            self.tables.settle(deadline.left())


class _Listener:
    """The one callback and the one retention guard of a store's tier.

    A registration with a store cannot be undone, so each store gets only one, whatever the number
    of dispatchers and listeners.
    """

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self._dispatcher: Dispatcher | None = None
        self._is_registered = False

    def follow(self, store: MessageStore, dispatcher: Dispatcher) -> None:
        """From now on this dispatcher is told of messages and says which of them the tier still
        needs."""
        self._dispatcher = dispatcher
        if not self._is_registered:
            self._is_registered = True
            store.add_dispatcher(self._on_messages)
            store.add_retention_guard(self._needed_from)

    def leave(self) -> None:
        """Follow no dispatcher until `follow` is called again. The store must be shut down: what
        the tier lacks is no longer kept.
        """
        self._dispatcher = None

    def _on_messages(self, requests: Sequence[DispatchRequest]) -> None:
        self.arrivals(requests)
        if (dispatcher := self._dispatcher) is not None:
            dispatcher.on_messages(requests)

    def _needed_from(self) -> int | None:
        dispatcher = self._dispatcher
        try:
            return None if dispatcher is None else dispatcher.needed_from()
        except StoreClosedError:  # the store is ending: keep everything
            return 0


def _merged(results: Sequence[PutResult], refused: list[PutResult | None]) -> list[PutResult]:
    """The results of all messages, in their order."""
    taken = iter(results)
    return [next(taken) if reason is None else reason for reason in refused]


def _end_chores(services: Iterable[Service], deadline: Deadline) -> None:
    """Stop the chores; one that does not stop in time is abandoned."""
    stopped = [service.stop(deadline.left()) for service in services]
    if not all(stopped):
        log.warning("the upkeep of the tier did not end in time")


def _tiered_topics(tier: Tier) -> set[str]:
    return {record.topic for record in tier.metadata.topics()}
