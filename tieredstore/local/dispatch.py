"""Dispatch of new messages: into queues and index in log order, then to registered dispatchers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Final, NamedTuple

from tieredstore.codec.record import split_keys
from tieredstore.driver.dispatched import DispatchColumns
from tieredstore.driver.message_store import Dispatcher
from tieredstore.local.commit_log import AppendedRun
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.encoder import Record, RecordBatch
from tieredstore.local.index_service import IndexBatch, IndexService, hashes_of_messages
from tieredstore.model.messages import DispatchRequest
from tieredstore.model.printable import log_of

log = log_of(__name__)

PENDING_MAX: Final = 64
WAIT_SECONDS: Final = 1.0
END_WAIT_SECONDS: Final = 30.0

_DISPATCHED: Final = (
    *("topics", "queue_ids", "queue_offsets", "log_offsets", "sizes", "tags_codes"),
    *("store_timestamps", "sys_flags", "unique_keys"),
)

Batch = Callable[[], Sequence[DispatchRequest]]
FAILURES_COUNTED_MAX = 9
_NO_DATA: Final = bytearray()
INDEX_BATCHES: Final = 4  # put into the index together, which halves the time per message
_INDEXED: Final = ["topics", "log_offsets", "store_timestamps", "sys_flags", "unique_keys", "keys"]


class Notifier:
    """Notifies registered dispatchers of messages, a batch at a time.

    * One thread at a time notifies. Another thread leaves its batch to the first and continues. So
      a dispatcher may put, read and delete in the store that calls it, and wait for threads that
      do: the messages that it puts come after its current batch.
    * The failure of a dispatcher is logged and stops nothing.
    * Dispatchers that are slower than puts slow the puts down: see `keep_pace`.
    """

    def __init__(self) -> None:
        self._dispatchers: list[Dispatcher] = []
        self._pending: deque[Batch] = deque()
        self._turn = threading.Lock()
        self._thread = 0  # the thread that holds `_turn`; 0 if none

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.append(dispatcher)

    def add(self, batch: Batch) -> None:
        """Add a batch, in log order: the caller holds the lock that orders batches, and calls
        `notify` later."""
        if self._dispatchers:
            self._pending.append(batch)

    def notify(self) -> None:
        """Pass on all pending batches, unless another thread is doing so already."""
        # Check again after each turn: a batch left to this thread at its very end was missed.
        while self._pending and self._turn.acquire(blocking=False):
            self._notify_all()

    def keep_pace(self) -> None:
        """Wait if too much is pending; only for a limited time, as dispatchers may need this
        thread."""
        if len(self._pending) > PENDING_MAX:
            self._wait(WAIT_SECONDS)

    def finish(self) -> bool:
        """Wait until nothing is pending; returns whether that is so. Always False if called by a
        dispatcher."""
        self._wait(END_WAIT_SECONDS)
        return not self._pending and not self._thread

    def _wait(self, seconds: float) -> None:
        if self._thread != threading.get_ident() and self._turn.acquire(timeout=seconds):
            self._notify_all()

    def _notify_all(self) -> None:
        """Notify of all pending batches. The caller holds `_turn`; this releases it."""
        self._thread = threading.get_ident()
        try:
            while self._pending:
                self._hand_on(self._pending.popleft()())
        finally:
            self._thread = 0
            self._turn.release()

    def _hand_on(self, requests: Sequence[DispatchRequest]) -> None:
        for dispatcher in self._dispatchers:
            try:
                dispatcher(requests)
            except Exception:
                log.exception("a dispatcher failed; the others go on")


@dataclass(slots=True, kw_only=True)
class DispatchRun:
    """Messages of the log, in its order, as columns.

    `in_queue` is False for messages without a queue unit: prepared and rolled-back ones, and Java's
    inner batches, which have queues of another kind. `keys` are the values of KEYS, not split.
    """

    topics: list[str] = field(default_factory=list)
    queue_ids: list[int] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    log_offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    tags_codes: list[int] = field(default_factory=list)
    store_timestamps: list[int] = field(default_factory=list)
    sys_flags: list[int] = field(default_factory=list)
    unique_keys: list[str | None] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    in_queue: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.log_offsets)

    def add_put(
        self, batch: RecordBatch, queue_offsets: Sequence[int], appended: AppendedRun
    ) -> None:
        """Add the records of one append."""
        time = appended.store_timestamp
        self.topics += batch.topics
        self.queue_ids += batch.queue_ids
        self.queue_offsets += queue_offsets
        self.log_offsets += appended.log_offsets
        self.sizes += batch.sizes
        self.tags_codes += batch.tags_codes(time)
        self.store_timestamps += [time] * len(batch)
        self.sys_flags += batch.sys_flags
        self.unique_keys += batch.unique_keys
        self.keys += batch.keys
        self.in_queue += batch.in_queue

    def add_records(self, records: Sequence[Record]) -> None:
        """Add records that were appended one by one."""
        self.topics += [record.topic for record in records]
        self.queue_ids += [record.queue_id for record in records]
        self.queue_offsets += [record.queue_offset for record in records]
        self.log_offsets += [record.log_offset for record in records]
        self.sizes += [record.size for record in records]
        self.tags_codes += [record.tags_code for record in records]
        self.store_timestamps += [record.store_timestamp for record in records]
        self.sys_flags += [record.sys_flag for record in records]
        self.unique_keys += [record.unique_key for record in records]
        self.keys += [record.keys for record in records]
        self.in_queue += [record.in_queue for record in records]

    def add_indexed(self, run: DispatchRun) -> None:
        """Add the columns of another run that `index_batch` needs."""
        for name in _INDEXED:
            column = getattr(self, name)
            column += getattr(run, name)

    def index_batch(self) -> IndexBatch:
        hashes, counts = hashes_of_messages(self.topics, self.unique_keys, self.keys)
        return IndexBatch(
            log_offsets=self.log_offsets,
            store_timestamps=self.store_timestamps,
            sys_flags=self.sys_flags,
            key_counts=counts,
            key_hashes=hashes,
        )

    def requests(self) -> DispatchColumns:
        """The messages visible to consumers, in the form that registered dispatchers get."""
        columns = {name: getattr(self, name) for name in _DISPATCHED}
        texts = self.keys
        if not all(self.in_queue):
            columns = {
                name: list(compress(column, self.in_queue)) for name, column in columns.items()
            }
            texts = list(compress(texts, self.in_queue))
        return DispatchColumns(**columns, keys=lambda: [split_keys(text) for text in texts])

    @property
    def is_of_one_queue(self) -> bool:
        """Whether all messages are consecutive in one queue, as in a producer's batch."""
        count, topics, ids, offsets = len(self), self.topics, self.queue_ids, self.queue_offsets
        return (
            count > 0
            and all(self.in_queue)
            and topics.count(topics[0]) == ids.count(ids[0]) == count
            and offsets == list(range(offsets[0], offsets[0] + count))
        )

    def queue_columns(self) -> list[list[str] | list[int]]:
        """The columns that queues take, without the messages that have no unit."""
        columns: list[list[str] | list[int]] = [
            *(self.topics, self.queue_ids, self.queue_offsets),
            *(self.log_offsets, self.sizes, self.tags_codes),
        ]
        if all(self.in_queue):
            return columns
        rows = [row for row, in_queue in enumerate(self.in_queue) if in_queue]
        return [[column[row] for row in rows] for column in columns]  # type: ignore[misc]


class _AppendedBatch(NamedTuple):
    """The records that one append put into the log."""

    batch: RecordBatch
    queue_offsets: Sequence[int]
    appended: AppendedRun

    @property
    def log_offset(self) -> int:
        return self.appended.log_offsets[0]

    @property
    def end_offset(self) -> int:
        return self.appended.end_offset


class Dispatch:
    """Puts new messages into queues and index, in log order, a batch at a time.

    * One batch at a time is dispatched, by any thread: by a put that fills a batch, by a reader
      that must see earlier puts, or by the store's own service.
    * The index gets several batches at once: when `INDEX_BATCHES` have come, when a caller asks for
      it, or by the service.
    * Nothing beyond `limit()` is dispatched: with sync flush a message is invisible until it is
      on disk.
    * A batch that fails in queues or index stays, is tried again, and blocks later batches:
      repeating it is harmless, skipping it is not. No put fails because of it: its messages are in
      the log. But while it keeps failing and `behind_max` messages wait, `is_stuck` is True.
    * Registered dispatchers are notified afterwards, without holding a lock: see `notifier`.
    """

    def __init__(
        self,
        queues: ConsumeQueues,
        index: IndexService | None,
        *,
        limit: Callable[[], int],
        count_max: int,
        behind_max: int = 100_000,
        interval_ms: int = 1,
    ) -> None:
        self._queues = queues
        self._index = index
        self._limit = limit
        self._count_max = count_max
        self._index_count = INDEX_BATCHES * count_max
        self._behind_max = behind_max
        self._has_service = interval_ms > 0
        self.notifier = Notifier()
        self.failure = ""  # why the last try failed; empty if it did not
        self._waiting: deque[Record | _AppendedBatch] = deque()
        self._waiting_count = 0
        self._unindexed = DispatchRun()
        self._taken = 0
        self._done = 0
        self._looked = -1
        self.turn = threading.Lock()  # held by the thread that dispatches
        self._waiting_guard = threading.Lock()
        self._failures = 0
        self._steps_to_skip = 0
        self.last_store_timestamp = 0

    def submit(self, batch: RecordBatch, queue_offsets: list[int], appended: AppendedRun) -> None:
        """Queue one append, in log order: the caller holds the lock that orders puts."""
        batch.data = bytearray()  # the log has the bytes: do not keep them while the batch waits
        with self._waiting_guard:
            self._waiting.append(_AppendedBatch(batch, queue_offsets, appended))
            self._waiting_count += len(batch)

    def submit_one(self, record: Record) -> None:
        """`submit` for a single record, which knows its place."""
        record.data = _NO_DATA
        with self._waiting_guard:
            self._waiting.append(record)
            self._waiting_count += 1

    def submit_again(
        self, batch: RecordBatch, queue_offsets: list[int], appended: AppendedRun
    ) -> None:
        """`submit` for an append whose own `submit` may have been interrupted anywhere."""
        with self._waiting_guard:
            if not (self._waiting and self._waiting[-1].end_offset >= appended.end_offset):
                self._waiting.append(_AppendedBatch(batch, queue_offsets, appended))
            self._waiting_count = sum(
                1 if isinstance(put, Record) else len(put.batch) for put in self._waiting
            )

    @property
    def must_keep_up(self) -> bool:
        """Whether a put has to dispatch: a batch is full, or no service does it."""
        return self._waiting_count >= self._count_max or not self._has_service

    def keep_up(self) -> None:
        """Dispatch before a put returns, unless it can be left to the service."""
        if self.must_keep_up:
            self.try_drain(indexed=not self._has_service)
            self.notifier.keep_pace()

    @property
    def behind_count(self) -> int:
        return self._waiting_count + len(self._unindexed)

    @property
    def is_stuck(self) -> bool:
        return bool(self.failure) and self.behind_count >= self._behind_max

    @property
    def undispatched_from(self) -> int | None:
        """Where the oldest waiting append begins in the log; None if none waits."""
        with self._waiting_guard:
            if self._unindexed:
                return self._unindexed.log_offsets[0]
            return self._waiting[0].log_offset if self._waiting else None

    def drain(self, *, indexed: bool = True, notify: bool = True) -> None:
        """Dispatch everything that waits and may be seen; waits for a dispatch already begun.

        A caller that does not use the index may leave the last messages out of it (`indexed`). A
        caller that holds a lock must not `notify`; it calls `notifier` afterwards.
        """
        try:
            if self._waiting or (indexed and self._unindexed):
                self._drain(indexed)
        finally:
            if notify:
                self.notifier.notify()

    def try_drain(self, *, indexed: bool = True) -> bool:
        """`drain` for a put, whose messages are stored in any case; returns whether it worked."""
        try:
            self.drain(indexed=indexed)
        except Exception:  # noqa: BLE001 - it is logged, and tried again
            return False
        return True

    def _drain(self, indexed: bool) -> None:
        with self.turn:
            try:
                self._put_into_index(least=self._index_count)  # an earlier failure blocks the rest
                while run := self._next_run():
                    self._put_into_queues(run)
                    self._done_with(run)
                    self._put_into_index(least=self._index_count)
                if indexed or self.failure:
                    self._put_into_index(least=1)
            except BaseException as error:
                if not self.failure:  # otherwise it was logged before
                    log.warning("what was put cannot be dispatched yet", exc_info=True)
                self.failure = str(error) or type(error).__name__
                raise
            self.failure = ""

    def step(self) -> None:
        """Drain if nothing was dispatched since the last step: otherwise other threads drain.

        A put that fills a batch drains it itself. A second thread that takes every other batch
        away from it only makes both wait for each other (measured: a fifth of the puts). After
        each failure in a row it skips twice as many steps, up to about a second.
        """
        if self._steps_to_skip:
            self._steps_to_skip -= 1
            return
        looked, self._looked = self._looked, self._done
        if looked != self._done:
            return
        try:
            self.drain()
        except BaseException:
            self._failures = min(self._failures + 1, FAILURES_COUNTED_MAX)
            self._steps_to_skip = 1 << self._failures
            raise
        self._failures = 0

    def put(self, run: DispatchRun) -> None:
        """Put a run into the queues, then into the index. Repeating it is harmless."""
        self._put_into_queues(run)
        if self._index is not None:
            self._index.put(run.index_batch())

    def _put_into_queues(self, run: DispatchRun) -> None:
        columns = run.queue_columns()
        if run.is_of_one_queue:
            self._queues.put(run.topics[0], run.queue_ids[0], run.queue_offsets[0], *columns[3:])  # type: ignore[arg-type]
        else:
            self._queues.put_batch(*columns)  # type: ignore[arg-type]
        if run.store_timestamps:
            self.last_store_timestamp = run.store_timestamps[-1]

    def _put_into_index(self, *, least: int) -> None:
        """Index what the queues already have, if at least that many messages."""
        if self._index is not None and len(self._unindexed) >= least:
            self._index.put(self._unindexed.index_batch())
            with self._waiting_guard:
                self._unindexed = DispatchRun()

    def _next_run(self) -> DispatchRun | None:
        """The next batch; `_done_with` removes it from the waiting ones once the queues have it."""
        limit = self._limit()
        run = DispatchRun()
        count = taken = 0
        with self._waiting_guard:  # puts go on, and a deque that grows cannot be iterated
            waiting = list(islice(self._waiting, self._count_max))
            if not waiting:
                self._waiting_count = 0  # an interrupt may have left it too high or too low
        records: list[Record] = []
        for put in waiting:
            if put.end_offset > limit or count >= self._count_max:
                break
            if isinstance(put, Record):
                records.append(put)
                count += 1
            else:
                if records:
                    run.add_records(records)
                    records = []
                run.add_put(*put)
                count += len(put.batch)
            taken += 1
        if records:
            run.add_records(records)
        self._taken = taken
        return run if taken else None

    def _done_with(self, run: DispatchRun) -> None:
        with self._waiting_guard:
            # First, and at once: after an interrupt queues and index skip what they know.
            if self._index is not None:
                unindexed = DispatchRun()
                unindexed.add_indexed(self._unindexed)
                unindexed.add_indexed(run)
                self._unindexed = unindexed
            for _ in range(self._taken):
                self._waiting.popleft()
            self._waiting_count -= len(run)
        self._done += self._taken
        self.notifier.add(run.requests)
