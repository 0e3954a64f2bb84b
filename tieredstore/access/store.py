"""`TieredMessageStore`: a broker's message store with a second tier below it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Self

from tieredstore.access.admission import TopicFilter, is_system_topic
from tieredstore.access.answers import (
    MergedReads,
    MessageReads,
    OpenTier,
    ReadDecision,
    TieredReads,
)
from tieredstore.access.dispatcher import Dispatcher
from tieredstore.access.gauges import TierGauges, health_of
from tieredstore.access.health import TierHealth
from tieredstore.access.queue_upload import forget_stops
from tieredstore.access.upkeep import Retention, SealChore, TierFlush
from tieredstore.access.wiring import GivenParts, TierParts, open_tier
from tieredstore.driver import message_store
from tieredstore.driver.message_store import MessageStore, RetentionGuard
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.metrics import Metrics, MetricsOfOneLife, NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Deadline, Runtime, Service
from tieredstore.index.contract import Index
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendUnavailableError, StoreClosedError, refused_by_system
from tieredstore.model.messages import DispatchRequest, Message, PutResult
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey, StorageLevel, require_place, require_text

log = log_of(__name__)


def start_chores(tier: OpenTier, config: StoreConfig) -> list[Service]:
    """Begin them; whoever began stops them."""
    runtime = tier.parts.runtime
    services = [
        runtime.service("tier-sealing", tier.sealing.step, interval_ms=config.dispatch_interval_ms)
    ]
    if tier.parts.publishing.is_enabled:
        publish = tier.parts.publishing.step
        every = config.publish_interval_ms
        services.append(runtime.service("tier-catalogue", publish, interval_ms=every))
    if config.expiry_enabled:
        services.append(
            runtime.service(
                "tier-expiry", tier.retention.step, interval_ms=config.expiry_interval_ms
            )
        )
    return services


def end_uploads(tier: OpenTier, deadline: Deadline, *, drain: bool) -> None:
    """With `drain`, after a last one."""
    if drain and not tier.flushing.make_durable(deadline.left()):
        log.warning("the broker's store did not make durable what it took last")
    if not tier.dispatcher.shutdown(drain=drain, timeout=deadline.left()):
        log.warning("not all that was to be uploaded is in the tier: it follows after a restart")


def end_chores(services: Iterable[Service], deadline: Deadline) -> None:
    """No further step; those that do not end in time are left behind."""
    stopped = [service.stop(deadline.left()) for service in services]
    if not all(stopped):
        log.warning("what the tier does beside uploading did not end in time")


LIGHT_QUEUE_PREFIX = "%LMQ%"


def delete_topics(
    tier: OpenTier, next_store: MessageStore, topics: Iterable[str], *, timeout: float | None
) -> int:
    """How many of them there were in either.

    The tier first: a crash in between leaves a topic that is uploaded again, not one whose tier is
    ahead. Nothing is uploaded meanwhile, but to queues that come just now; so the tier is emptied
    again at the end. Readers elsewhere are told at once: a topic that is made anew reuses names,
    and what an older catalogue says of them would look like damage. Raises BackendUnavailableError
    where an upload does not end in time.
    """
    wanted = set(topics)
    files = tier.parts.files
    keys = {*next_store.queues(), *(file.key for file in files.files())}
    known = {key.topic for key in keys} | tiered_topics(tier)
    paths = [file.path for file in files.files() if file.key.topic in wanted]
    with ExitStack() as alone:
        for key in sorted(key for key in keys if key.topic in wanted):
            if not alone.enter_context(tier.dispatcher.alone_with(key, timeout=timeout)):
                raise BackendUnavailableError(
                    f"{key.topic}/{key.queue_id}", "delete", "its upload does not end"
                )
        files.delete_topics(wanted)
        next_store.delete_topics(wanted)
        files.delete_topics(wanted)
        forget_stops(paths, tier.parts.metadata)  # not before: what is stopped stays so till then
        if wanted & known:
            tier.parts.publishing.step()
    tier.parts.metrics.forget("topic", wanted)
    tier.parts.metrics.forget("path", paths)
    return len(wanted & known)


def unused_topics(tier: OpenTier, retained: set[str]) -> set[str]:
    """Topics of the tier but the retained, the system's and light queues."""
    return {
        topic
        for topic in tiered_topics(tier) - retained
        if not is_system_topic(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX)
    }


def tiered_topics(tier: OpenTier) -> set[str]:
    return {record.topic for record in tier.parts.metadata.topics()}


class StoreListener:
    """The one callback and the one retention guard of a store's tier.

    A store has no way to take either back, so it is given them once and not by every dispatcher.
    """

    def __init__(self) -> None:
        self._dispatcher: Dispatcher | None = None
        self._is_registered = False

    def follow(self, store: MessageStore, dispatcher: Dispatcher) -> None:
        """From now on this one is told of messages and asked what is needed of the store."""
        self._dispatcher = dispatcher
        if not self._is_registered:
            self._is_registered = True
            store.add_dispatcher(self._on_messages)
            store.add_retention_guard(self._needed_from)

    def leave(self) -> None:
        """Nobody is, until `follow`: for a store that is shut down and deletes nothing."""
        self._dispatcher = None

    def _on_messages(self, requests: Sequence[DispatchRequest]) -> None:
        if (dispatcher := self._dispatcher) is not None:
            dispatcher.on_messages(requests)

    def _needed_from(self) -> int | None:
        dispatcher = self._dispatcher
        try:
            return None if dispatcher is None else dispatcher.needed_from()
        except StoreClosedError:  # while it ends: all is kept
            return 0


FLUSH_SECONDS = 60.0


class TieredMessageStore(TieredReads):
    """Wraps a message store; what that has is copied to the tier, and read there when it is gone.

    * Puts, and all that is about the log, go to the next store. Its life is part of this one's:
      loaded first, shut down last.
    * What is not given is made from the settings by `load` and released by `shutdown`. What is
      given stays the caller's and is not closed.
    * A `load` that fails leaves nothing open and may be tried again; so may a store that was shut
      down.
    * It belongs to the process that loaded it: in one that is forked off everything raises
      OtherProcessError, and nothing of the parent's is touched.
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
        super().__init__(next_store)
        self.config = config
        self.metrics = metrics or NoMetrics()
        self._life = MetricsOfOneLife(self.metrics)
        self._given = GivenParts(
            runtime=runtime,
            provider=provider,
            metadata=metadata,
            index=index,
            metrics=self.metrics,
        )
        self._decision = ReadDecision(next_store, TopicFilter(config), config.storage_level)
        self._listener = StoreListener()
        self._life_guard = threading.RLock()
        self._services: list[Service] = []
        self._started = False

    @property
    def topic_filter(self) -> TopicFilter:
        """Which topics stay out of the tier; more can be rejected while the store is loaded."""
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
            if self._tier is not None:
                return
            with ExitStack() as undo:
                undo.callback(self._next.shutdown)
                self._next.load()
                parts = self._opened_parts()
                undo.callback(parts.close)
                parts.load()
                tier = self._opened(parts)
                self._listener.follow(self._next, tier.dispatcher)  # before anything is deleted
                TierGauges(tier, self._next).register(parts.metrics)
                self._tier = tier
                undo.pop_all()

    def _opened_parts(self) -> TierParts:
        """They show their figures until the next ones are opened, or the life is over."""
        self._life.end()
        self._life = MetricsOfOneLife(self.metrics)
        return open_tier(self.config, replace(self._given, metrics=self._life))

    def _opened(self, parts: TierParts) -> OpenTier:
        config, runtime, metrics = self.config, parts.runtime, parts.metrics
        dispatcher = Dispatcher(
            self._next,
            parts.files,
            parts.provider,
            parts.metadata,
            parts.index,
            config,
            runtime,
            metrics,
            self._decision.topic_filter,
        )
        sealing = SealChore(parts.files, dispatcher, runtime.clock)
        return OpenTier(
            parts=parts,
            dispatcher=dispatcher,
            retention=Retention(
                parts.files,
                dispatcher,
                forget=parts.fetcher.forget,
                metadata=parts.metadata,
                config=config,
                clock=runtime.clock,
            ),
            sealing=sealing,
            flushing=TierFlush(
                self._next, dispatcher, parts.index, sealing, parts.publishing, runtime
            ),
            messages=MessageReads(
                self._next,
                parts.fetcher,
                self._decision,
                runtime=runtime,
                metrics=metrics,
                logs_outcomes=config.record_get_message_result,
            ),
            merged=MergedReads(
                self._next, parts.fetcher, self._decision, clock=runtime.clock, metrics=metrics
            ),
        )

    def start(self) -> None:
        """Take puts, upload, and drop what is too old from now on."""
        self._refuse_a_fork()
        with self._life_guard, self._refusals("start"):
            tier = self._loaded()
            if self._started:
                return
            self._next.start()
            tier.parts.index.start()
            tier.dispatcher.start()
            self._services = start_chores(tier, self.config)
            self._started = True

    def shutdown(self, *, drain: bool = True, timeout: float | None = FLUSH_SECONDS) -> None:
        """End it all, in so many seconds; with `drain` everything is uploaded first, as by `flush`.

        Every part is ended, whatever becomes of the others; then the first failure is raised.
        Who does not answer in time is left behind, and the log says so.
        """
        self._refuse_a_fork()
        with self._life_guard, self._refusals("shut down"):
            tier = self._tier
            if tier is None:
                return
            self._tier = None  # who calls now is told that the store is closed
            services, self._services = self._services, []
            started, self._started = self._started, False
            deadline = Deadline(tier.parts.runtime.clock, timeout)
            with ExitStack() as ending:  # last in, first out
                ending.callback(self._life.end)
                ending.callback(self._end_next)
                ending.callback(lambda: tier.parts.close(deadline.left()))
                ending.callback(end_chores, services, deadline)
                ending.callback(end_uploads, tier, deadline, drain=drain and started)
                for service in services:
                    ending.callback(service.stop, 0)  # it is waited for later
                ending.callback(tier.retention.stop)
                ending.callback(tier.sealing.stop)

    def _end_next(self) -> None:
        self._next.shutdown()
        self._listener.leave()  # not before: what is not in the tier may not go

    def destroy(self) -> None:
        """Delete the data of both tiers; a store that is open is shut down first, undrained."""
        self._refuse_a_fork()
        with self._life_guard, self._refusals("destroy"):
            self.shutdown(drain=False)
            parts = self._opened_parts()
            try:
                topics = [record.topic for record in parts.metadata.topics()]
                paths = {row.path for row in parts.metadata.segments()}
                parts.index.destroy()
                parts.files.delete_topics(topics)
                parts.metrics.forget("topic", topics)
                parts.metrics.forget("path", paths)
            finally:
                parts.close()
                self._life.end()
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
        tier = self._tier
        if tier is None or not tier.parts.process.is_left_by(kind):
            self.shutdown()

    # -- messages -----------------------------------------------------------------------------

    def put_message(self, message: Message) -> PutResult:
        self._loaded()
        return self._next.put_message(message)

    def flush(self, timeout: float | None = FLUSH_SECONDS, *, seal: bool = False) -> bool:
        """Upload everything, now; whether all that the next store has confirmed is in the tier.

        That store is first asked to make durable, and confirm, what it took: so True means that
        all is in the tier that was put before. One without a method `flush` is not asked, and
        what it has not confirmed does not count, as while a replica is behind. False too where
        either store fails, or is late. A queue that fails is tried once. Queues that
        have a problem stay behind, and `health` names them; those whose names the tier cannot hold
        make no answer False, for they would for ever. With `seal` no segment stays open, and
        the key index is uploaded too, as far as it goes, so that readers elsewhere find the keys;
        raises what the backend raises then.
        """
        tier = self._running()
        with self._refusals("flush"):
            return tier.flushing.flush(timeout, seal=seal)

    def health(self) -> TierHealth:
        """How the tier is doing, without asking the backend."""
        tier = self._loaded()
        return health_of(tier, self._next, self.level)

    def resume_queue(
        self, topic: str, queue_id: int, *, timeout: float | None = FLUSH_SECONDS
    ) -> str | None:
        """Upload a stopped queue again, if the tier and the next store hold the same; else why not.
        Of one that is not stopped, but whose last attempt failed, it says why that failed.

        A queue stops where the next store has lost or changed what the tier has. Nothing in the
        tier is overwritten by this; where the next store no longer has a message to compare, the
        queue goes on behind a gap. Raises what the backend raises when it is asked.
        """
        require_place(topic, queue_id)
        tier = self._loaded()
        with self._refusals("resume"):
            return tier.dispatcher.resume(QueueKey(topic, queue_id), timeout=timeout)

    # -- topics -------------------------------------------------------------------------------

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete topics from both tiers; how many of them there were in either."""
        topics = list(topics)
        require_text("topic", *topics)
        tier = self._loaded()
        with self._refusals("delete topics"):
            return delete_topics(tier, self._next, topics, timeout=FLUSH_SECONDS)

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        """Delete every topic but the retained, the system's and light queues."""
        retained = list(retained)
        require_text("topic", *retained)
        kept = set(retained)
        unused = unused_topics(self._loaded(), kept)
        self.delete_topics(unused)
        return len(unused) + self._next.clean_unused_topics(kept)

    # -- others -------------------------------------------------------------------------------

    def add_dispatcher(self, dispatcher: message_store.Dispatcher) -> None:
        self._next.add_dispatcher(dispatcher)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        self._next.add_retention_guard(guard)

    def _refusals(self, operation: str) -> AbstractContextManager[None]:
        return refused_by_system(self.config.store_path, operation)

    def _running(self) -> OpenTier:
        tier = self._loaded()
        if not self._started:
            raise StoreClosedError("the store is not started")
        return tier
