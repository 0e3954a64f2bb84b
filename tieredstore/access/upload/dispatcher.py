"""Uploading: the messages of the broker's store go to the tier.

What lives here: `Dispatcher`: when which queue is looked at, by whom, and how it all ends. What a
queue needs is told in `queue_rules`; sending is in `rounds`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from tieredstore.access.index_protocol import Index
from tieredstore.access.upload.dispatch_health import DispatchGauges, DispatchHealth, upload_health
from tieredstore.access.upload.dispatch_parts import DispatchParts
from tieredstore.access.upload.local_needs import LocalNeeds
from tieredstore.access.upload.queue_walk import Look
from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.topic_filter import TopicFilter
from tieredstore.driver.in_time import in_time
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.metrics import Metrics, NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Deadline, InlinePool, Runtime, Service
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.messages import DispatchRequest
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

log = log_of(__name__)

LOOK_AGAIN_MS: Final = 500  # at queues whose next messages were not confirmed


class Dispatcher:
    """Uploads what is due, queue by queue, within the bounds of the settings.

    * One thread at a time works on a queue, and at most one upload of it is under way.
    * Bytes in memory never exceed `dispatch_buffer_bytes`, but for one larger batch alone; uploads
      under way never exceed a quarter of `pending_count_max`. No queue has a thread of its own.
    * A queue that fails is logged, remembered with its reason and tried again at the next look at
      all queues. It never stops the others.
    * Nothing happens before `start`, but what `dispatch_once` does in its caller's thread.
    * Who makes one has the store call `on_messages`, and ask `needed_from` before it deletes: a
      store has no way to take either back.
    """

    def __init__(
        self,
        store: MessageStore,
        files: FlatFileStore,
        provider: SegmentProvider,
        metadata: MetadataStore,
        index: Index,
        config: StoreConfig,
        runtime: Runtime,
        metrics: Metrics | None = None,
        topic_filter: TopicFilter | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self._index = index
        self._runtime = runtime
        self._metrics = metrics or NoMetrics()
        self._interval_ms = config.dispatch_interval_ms
        self._is_inline = isinstance(runtime.dispatch, InlinePool)
        parts = DispatchParts(
            store,
            files,
            provider,
            metadata,
            index,
            config,
            runtime,
            self._metrics,
            topic_filter=topic_filter,
            ended=self._ended,
        )
        self.topic_filter = parts.filter
        self.budget = parts.budget
        self._claims = parts.claims
        self._pending = parts.pending
        self._walk = parts.walk
        self._needs = LocalNeeds(store, files, parts.filter, parts.walk.work_of)
        self._service: Service | None = None
        self._next_full_look = self._next_look_again = 0.0
        self._unconfirmed: list[QueueKey] = []
        self._recovering = threading.Lock()  # only ever tried
        self._is_measured = False
        self._is_running = False  # between start and shutdown

    # Life

    def start(self) -> None:
        """Upload what there is, and new messages, from now on. Idempotent."""
        self._walk.is_stopped = False
        if self._is_running:
            return
        self._is_running = True
        if not self._is_measured:
            self._is_measured = True
            DispatchGauges(
                self._store, self._files, self.topic_filter, self._runtime.clock
            ).register(self._metrics)
        self._next_full_look = self._runtime.clock.monotonic()
        self._service = self._runtime.service(
            "dispatch", self._step, interval_ms=min(LOOK_AGAIN_MS, self._interval_ms)
        )

    def shutdown(self, *, drain: bool = False, timeout: float | None = 30.0) -> bool:
        """Upload nothing more; with `drain`, what is there first. Idempotent.

        Waits for what is under way, all in all `timeout` seconds at most; whether nothing is left
        behind that a drain or an upload had begun. What the store raises comes when it has ended.
        """
        deadline = Deadline(self._runtime.clock, timeout)
        self._is_running = False
        service, self._service = self._service, None
        ended = service is None or service.stop(deadline.left())
        try:
            if drain and not self._walk.is_stopped:
                ended = self._drain(deadline) and ended
        finally:  # the class of the store is not ours, and may raise anything
            ended = self._end_uploads(deadline) and ended
        return ended

    def _end_uploads(self, deadline: Deadline) -> bool:
        """No more begin; whether those that are under way have ended in time."""
        self._walk.is_stopped = True
        while self._claims.busy_count and not self._is_inline:
            if not self._claims.wait_for_change(self._claims.changes, deadline.left()):
                return not self._claims.busy_count
        return True

    def _drain(self, deadline: Deadline) -> bool:
        """Upload all; in another thread, for with full pools an upload runs in the one that asks
        for it, and a backend may never answer."""

        def drain() -> bool:
            return self.dispatch_once(force=True, timeout=deadline.left())

        draining = in_time(self._runtime, "drain", drain, deadline.left())
        return draining.done() and draining.result()

    # What others ask

    def committed_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset that the tier has; None where it has no queue."""
        file = self._files.get(QueueKey(topic, queue_id))
        return None if file is None or not file.is_started else file.commit_offset

    def needed_from(self) -> int | None:
        """The local log offset from which on the tier still needs messages; None: nothing.

        Before `start` and while it all ends too: what is not in the tier is needed.
        """
        return self._needs.needed_from()

    def needed_by_queue(self) -> dict[QueueKey, int]:
        """The same of each queue of which the tier needs any."""
        return self._needs.by_queue()

    def alone_with(
        self, key: QueueKey, *, timeout: float | None = None
    ) -> AbstractContextManager[bool]:
        """Nothing is appended, committed or rolled meanwhile: for who expires or deletes.

        Gives False, and no such promise, where the queue was busy for the whole time.
        """
        return self._claims.held(key, timeout=timeout)

    def resume(self, key: QueueKey, *, timeout: float | None = None) -> str | None:
        """Go on with a stopped queue, where the tier and the store hold the same; else why not."""
        with self.alone_with(key, timeout=timeout) as is_alone:
            reason = self._walk.resume(key) if is_alone else "something of it is under way"
        if reason is None and self._is_running:
            self._pending.heat(key)
            self._wake_service()
        return reason

    def health(self) -> DispatchHealth:
        return upload_health(
            self._files,
            list(self._walk.works.values()),
            self._index,
            buffered_bytes=self.budget.used_bytes,
            uploads=self.budget.uploads,
        )

    # Looking at queues

    def dispatch_once(self, *, force: bool = False, timeout: float | None = None) -> bool:
        """Look at all queues in this thread until nothing is due of what is there now.

        With `force` everything is due that the local store can no longer lose. A queue that fails
        is left after its first failure. Whether all went well and in time.
        """
        deadline = Deadline(self._runtime.clock, timeout)
        self._retry_recovery()
        targets: dict[QueueKey, int] = {}
        work_of = self._walk.work_of
        todo = self._all_queues()
        failures = {key: work_of(key).failure_count for key in todo}
        while todo and not self._walk.is_stopped:
            seen = self._claims.changes
            look = Look(force=force, targets=targets)
            self._walk.walk(todo, look)
            todo = [*look.under_way, *look.put_off]
            seen += look.given_back
            is_still = not self._claims.busy_count and self._claims.changes == seen
            if todo and not (self._is_inline and look.under_way):
                if self._is_inline or is_still:
                    return False  # nothing will change by itself
                many = min(len(todo), self._claims.busy_count)
                if not self._claims.wait_for_change(seen, deadline.left(), many=many):
                    return False
            todo = [key for key in todo if work_of(key).failure_count == failures[key]]
        return not todo and all(work_of(key).failure_count == failures[key] for key in failures)

    def _step(self) -> None:
        """What the service does: look at hot queues, and from time to time at all."""
        if self._is_inline:
            self.dispatch_once()
            return
        now = self._runtime.clock.monotonic()
        keys = self._pending.take_hot()
        is_full = now >= self._next_full_look
        if is_full:
            self._next_full_look = now + self._interval_ms / 1000
            self._retry_recovery()
            keys = list(dict.fromkeys([*keys, *self._all_queues()]))
        elif now >= self._next_look_again:
            keys += self._unconfirmed
        if now >= self._next_look_again:
            self._unconfirmed = []
            self._next_look_again = now + LOOK_AGAIN_MS / 1000
        look = Look(only_sound=not is_full)
        self._walk.walk(keys, look)
        self._unconfirmed += look.unconfirmed
        for key in look.put_off:
            self._pending.heat(key)

    def _all_queues(self) -> list[QueueKey]:
        """Those of the store and those of the tier; what is kept of others goes."""
        try:
            keys = dict.fromkeys(QueueKey(*key) for key in self._store.queues())
        except StoreClosedError:
            return []
        keys.update(dict.fromkeys(file.key for file in self._files.files()))
        self._pending.keep(keys)
        self._walk.forget_others(keys)
        return list(keys)

    def _retry_recovery(self) -> None:
        """Queues that could not be opened: maybe they can be now."""
        if not self._recovering.acquire(blocking=False):
            return

        def recover() -> None:
            try:
                self._files.retry_recovery(self._claims.held_if_free)
            except Exception as error:  # noqa: BLE001 - it comes again
                log.warning("queues could not be recovered: %s", error)
            finally:
                self._recovering.release()

        try:
            self._runtime.dispatch.submit(recover)
        except StoreClosedError:
            self._recovering.release()

    # When something happens

    def on_messages(self, requests: Sequence[DispatchRequest]) -> None:
        """The store's callback. It counts, and does nothing else in this thread."""
        if self._is_running and self._pending.note(requests):
            self._wake_service()

    def _ended(self, work: QueueWork) -> None:
        """Something of the queue has ended; more may wait."""
        self._claims.give(work.key)
        if self._is_running and work.failure is None:
            self._pending.heat(work.key)
        if self._pending.has_hot:
            self._wake_service()

    def _wake_service(self) -> None:
        """An inline service would run in the thread of whoever wakes it: that one drives it."""
        service = self._service
        if service is not None and not self._is_inline:
            service.wake()
