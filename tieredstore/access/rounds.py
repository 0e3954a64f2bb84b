"""Batches appended to many queues, handed to the provider together in rounds, and settled."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

import numpy as np

from tieredstore.access.admission import PendingCounts, UploadBudget
from tieredstore.access.log_mark import LogMark
from tieredstore.access.queue_upload import IndexFeed, QueueWork, behind_damaged, behind_lost
from tieredstore.codec.columns import FoundKeys
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore, Put
from tieredstore.driver.metrics import MESSAGES_DISPATCHED, Metrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Clock, Runtime, when_cancelled
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import CommitAttempt, FlatMessageFile
from tieredstore.index.contract import CommittedRun
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError, StoreClosedError, TieredStoreError
from tieredstore.model.messages import MessageRun
from tieredstore.model.printable import log_of

log = log_of(__name__)

ASKING_GROUPS: Final = 16  # of queues whose ends are requested in parallel
FAILURES_LOGGED: Final = 5  # of a shared round: as a rule all of its queues fail for one reason


@dataclass(slots=True, eq=False)
class _Sent:
    """One queue's part of a round, and how it ended."""

    work: QueueWork
    file: FlatMessageFile
    attempt: CommitAttempt
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Shared:
    """A round whose queues are sent, settled and released together."""

    works: Sequence[QueueWork]
    asking: int  # groups of queues that are not ready yet
    sent: list[_Sent] = field(default_factory=list)
    unanswered: int = 0
    guard: threading.Lock = field(default_factory=threading.Lock)


class Rounds:
    """Sends rounds and settles them.

    * The caller holds the claim and the upload permit of each queue that it sends; `ended` is
      called when both may be released, whatever the outcome of the upload.
    * Outcomes are settled as they arrive: uploads that end together are one change of the
      catalogue. Rows are written before the index.
    * If the provider shares rounds, `send_shared` calls it once for all queues, changes the
      catalogue once, and calls `round_ended` once.
    * Only those claims and permits are held during I/O.
    """

    def __init__(
        self,
        files: FlatFileStore,
        provider: SegmentProvider,
        metadata: MetadataStore,
        feed: IndexFeed,
        budget: UploadBudget,
        *,
        runtime: Runtime,
        metrics: Metrics,
        ended: Callable[[QueueWork], None],
        round_ended: Callable[[Sequence[QueueWork]], None],
    ) -> None:
        self.are_shared = provider.shares_rounds
        self._files = files
        self._provider = provider
        self._metadata = metadata
        self._feed = feed
        self._budget = budget
        self._runtime = runtime
        self._metrics = metrics
        self._ended = ended
        self._round_ended = round_ended
        self._finished: deque[_Sent] = deque()
        self._settling = threading.Lock()  # never waited for: its holder settles for all

    def send(self, works: Sequence[QueueWork]) -> None:
        """Send one round. Queues whose end in the backend is unknown are sent separately: a thread
        of the fetch pool first asks for the end.
        """
        ready: list[_Sent] = []
        for work in works:
            if work.file is not None and work.file.knows_its_end:
                ready += self._begun(work)
                continue
            try:
                asking = self._runtime.fetch.submit(self._ask_and_send, work)
            except StoreClosedError as error:
                self._failed(work, error)
            else:
                when_cancelled(asking, partial(self._failed, work))
        self._send(ready)

    def _ask_and_send(self, work: QueueWork) -> None:
        self._send(self._begun(work))

    def _begun(self, work: QueueWork) -> list[_Sent]:
        """The queue's attempt; an empty list if it cannot be made."""
        try:
            return [_begin(work)]
        except Exception as error:  # noqa: BLE001 - one queue never stops the others
            self._failed(work, error)
            return []

    def _send(self, round: Sequence[_Sent]) -> None:
        if not round:
            return
        futures = self._written(round)
        # Uploads that have ended by now are settled together, after the last of them.
        alone = self._settling.acquire(blocking=False)
        try:
            for sent, future in zip(round, futures, strict=True):
                future.add_done_callback(partial(self._on_done, sent))
        finally:
            if alone:
                self._settling.release()
        self._settle()

    def _written(self, round: Sequence[_Sent]) -> Sequence[Future[None]]:
        pairs = [sent.attempt.pair for sent in round]
        if all(pair.log is None and pair.queue is None for pair in pairs):
            return [_done() for _ in pairs]  # all was written before
        try:
            return self._provider.write_many(pairs)
        except Exception as error:  # noqa: BLE001
            return [_done(error) for _ in pairs]

    def _on_done(self, sent: _Sent, future: Future[None]) -> None:
        try:
            future.result()
        except BaseException as error:  # noqa: BLE001 - a cancelled one too
            sent.error = error
        self._finished.append(sent)
        self._settle()

    def _settle(self) -> None:
        """Settle what has ended. One thread settles at a time; threads that come meanwhile leave
        their outcomes to it.
        """
        while self._finished and self._settling.acquire(blocking=False):
            together: list[_Sent] = []
            try:
                while self._finished:
                    together.append(self._finished.popleft())
                self._settle_files(together)
            finally:
                self._settling.release()
            for sent in together:
                self._conclude(sent)

    def _settle_files(self, together: Sequence[_Sent]) -> None:
        """Settle both files of each queue, then the catalogue for all queues."""
        committed: list[_Sent] = []
        for sent in together:
            try:
                if sent.error is not None:
                    sent.file.fail_commit(sent.error)
                    continue
                rows = sent.file.end_commit(sent.attempt)
                if self._files.get(sent.file.key) is sent.file:  # else destroyed meanwhile
                    sent.work.rows += rows
                committed.append(sent)
            except Exception as error:
                log.exception("%s: a commit could not be settled", sent.file.path)
                sent.error = error
        # Segments of rows that could not be saved before may be gone or longer by now.
        changes = [Put(row) for sent in committed for row in sent.file.current_rows(sent.work.rows)]
        try:
            if changes:
                self._metadata.apply(changes)
        except Exception as error:  # noqa: BLE001 - the rows stay, and are tried again
            for sent in committed:
                sent.error = error
            return
        for sent in committed:
            sent.work.rows = []

    def _conclude(self, sent: _Sent) -> None:
        """Feed the index, and release the queue."""
        error = self._indexed(sent)
        if error is not None:
            self._failed(sent.work, error)
        else:
            self._ended(sent.work)

    def _indexed(self, sent: _Sent) -> BaseException | None:
        """Feed the index if the upload succeeded; return what went wrong with either."""
        if sent.error is None:
            try:
                self._count(sent)
                self._feed.put_batches(sent.work)
                sent.work.failure = None
            except Exception as failure:  # noqa: BLE001
                return failure
        return sent.error

    def _count(self, sent: _Sent) -> None:
        topic, queue_id = sent.file.key
        labels = {"topic": topic, "queue_id": str(queue_id), "file_type": "commit_log"}
        self._metrics.add(MESSAGES_DISPATCHED, sent.work.batch_count, labels)

    def _failed(self, work: QueueWork, error: BaseException) -> None:
        log.warning("%s/%s: upload failed: %s", work.key.topic, work.key.queue_id, error)
        work.failed(error)
        self._ended(work)

    # Rounds of all queues together

    def send_shared(self, works: Sequence[QueueWork]) -> None:
        """Send one round of all these queues, once their ends in the backend are known.

        A queue that fails before that is left out.
        """
        known = [work for work in works if work.file is not None and work.file.knows_its_end]
        others = [work for work in works if work.file is None or not work.file.knows_its_end]
        groups = [others[number::ASKING_GROUPS] for number in range(ASKING_GROUPS)]
        groups = [group for group in groups if group]
        shared = _Shared(works, asking=len(groups) + 1)
        for group in groups:
            try:
                joining = self._runtime.fetch.submit(self._join, shared, group)
            except StoreClosedError as error:
                self._leave_out(shared, group, error)
            else:
                when_cancelled(joining, partial(self._leave_out, shared, group))
        self._join(shared, known)

    def _leave_out(
        self, shared: _Shared, group: Sequence[QueueWork], error: StoreClosedError
    ) -> None:
        """Go on without a group, because the runtime is closed."""
        for work in group:
            work.failed(error)
        self._join(shared, [])

    def _join(self, shared: _Shared, group: Sequence[QueueWork]) -> None:
        """Make the attempts of one group; the last group to join sends all of them."""
        begun: list[_Sent] = []
        for work in group:
            try:
                begun.append(_begin(work))
            except Exception as error:  # noqa: BLE001 - one queue never stops the others
                work.failed(error)
        with shared.guard:
            shared.sent += begun
            shared.asking -= 1
            if shared.asking:
                return
        shared.unanswered = len(shared.sent)
        if not shared.sent:
            self._end(shared)
            return
        for sent, future in zip(shared.sent, self._written(shared.sent), strict=True):
            future.add_done_callback(partial(self._on_answer, shared, sent))

    def _on_answer(self, shared: _Shared, sent: _Sent, future: Future[None]) -> None:
        try:
            future.result()
        except BaseException as error:  # noqa: BLE001 - a cancelled one too
            sent.error = error
        with shared.guard:
            shared.unanswered -= 1
            if shared.unanswered:
                return
        # Not in this thread: the catalogue may wait for it.
        try:
            settling = self._runtime.dispatch.submit(self._settle_shared, shared)
        except StoreClosedError:
            self._settle_shared(shared)
        else:
            when_cancelled(settling, partial(self._abandon, shared))

    def _abandon(self, shared: _Shared, error: StoreClosedError) -> None:
        """Settle a round without the catalogue, for which nobody waits any more."""
        for sent in shared.sent:
            sent.error = sent.error or error
        self._settle_shared(shared)

    def _settle_shared(self, shared: _Shared) -> None:
        try:
            self._settle_files(shared.sent)
            for sent in shared.sent:
                error = self._indexed(sent)
                if error is not None:
                    sent.work.failed(error)
        finally:
            self._end(shared)

    def _end(self, shared: _Shared) -> None:
        failures = Counter(work.failure for work in shared.works if work.failure is not None)
        for failure, count in failures.most_common(FAILURES_LOGGED):
            log.warning("%d of %d queues: upload failed: %s", count, len(shared.works), failure)
        self._round_ended(shared.works)


def _begin(work: QueueWork) -> _Sent:
    file = work.file
    if file is None:
        raise TieredStoreError(f"{work.key} is gone")
    attempt = file.begin_commit()
    if attempt is None:
        raise TieredStoreError(f"{file.path}: another thread commits it")
    return _Sent(work, file, attempt)


def _done(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


# What a message takes besides its record: its unit, and a row in each of a run's columns.
ROW_BYTES: Final = 64
BATCH_BYTES: Final = 2048  # what a batch takes besides messages: columns, views, attempt, future
FEW_WAITING: Final = 64  # up to so many are read without checking first if they are confirmed
LITTLE_PART: Final = 16  # a small batch is this fraction of a whole one


class BatchOutcome(Enum):
    """The outcome of the next batch."""

    APPENDED = "it waits for its commit"
    NO_ROOM = "the budget is used up"
    UNCONFIRMED = "the local store may still lose it"
    LOST = "the local store has lost or damaged it for good, but has later messages"


class Batches:
    """Takes batches within the budget.

    A batch may be in memory twice while it is appended, once as it was read and once in the tier's
    form; afterwards once. Both count in the budget. Room for a whole batch is requested first, and
    if there is none, room for a small one if the queue has no more: so thousands of queues with few
    messages share a small buffer, and large queues are not cut into small pieces.
    """

    def __init__(
        self,
        store: MessageStore,
        budget: UploadBudget,
        pending: PendingCounts,
        config: StoreConfig,
        mark: LogMark,
        *,
        clock: Clock,
        is_indexed: bool,
    ) -> None:
        self._store = store
        self._budget = budget
        self._pending = pending
        self._mark = mark
        self._clock = clock
        self._is_indexed = is_indexed
        self._count_max = config.group_commit_count
        self._bytes_max = min(config.group_commit_bytes, max(1, config.dispatch_buffer_bytes // 2))

    def take(self, work: QueueWork, file: FlatMessageFile) -> BatchOutcome:
        """Append what comes next, as much as one batch and one segment hold."""
        whole = work.wanted_bytes or 2 * self._bytes_max
        if self._budget.take(whole):
            return self._take_within(work, file, whole)
        little = 2 * self._bytes_max // LITTLE_PART
        left = (self._store.max_offset(*work.key) or 0) - file.append_offset
        if left * ROW_BYTES > little or not self._budget.take(little):
            return BatchOutcome.NO_ROOM
        return self._take_within(work, file, little, all_of=left)

    def _take_within(
        self, work: QueueWork, file: FlatMessageFile, reserved: int, *, all_of: int = 0
    ) -> BatchOutcome:
        """Append the next messages, within the bytes reserved in the budget; none if fewer than
        `all_of` fit.
        """
        kept = 0
        try:
            confirmed = self._store.confirmed_offset()
            bytes_max = min(self._bytes_max, reserved // 2)
            try:
                run = self._read(file, None if all_of else confirmed, bytes_max=bytes_max)
            except SegmentCorruptError:
                if behind_damaged(self._store, work, now_ms=self._clock.now_ms()) is None:
                    raise
                return BatchOutcome.LOST
            if not len(run):
                return BatchOutcome.LOST
            if len(run) < all_of:
                return BatchOutcome.NO_ROOM
            run = run.head(_count_below(run, confirmed))
            if not len(run):
                return BatchOutcome.UNCONFIRMED
            # Found here, because the reader has just parsed what they are made from.
            keys = FoundKeys.of(file.key.topic, run) if self._is_indexed else None
            need = 2 * len(run.records) + _beside(len(run), keys)
            if all_of and need > reserved:
                return BatchOutcome.NO_ROOM
            if need > reserved:
                work.wanted_bytes = need
                if not self._budget.take(need, instead_of=reserved):
                    return BatchOutcome.NO_ROOM
                reserved = need
            work.wanted_bytes = 0
            self._mark.cover(int(run.log_offsets[-1]) + int(run.message_bytes[-1]))
            kept = self._append(work, file, run, keys)
            return BatchOutcome.APPENDED
        finally:
            self._budget.give(reserved - kept)
            work.buffered_bytes += kept

    def drop(self, work: QueueWork, file: FlatMessageFile) -> bool:
        """Drop the batches that could not be committed; they are read again later. False while a
        commit is under way.
        """
        if not file.discard():
            return False
        for batch in work.batches:
            self._pending.put_back(work.key, len(batch), int(batch.run.message_bytes.sum()))
        self._budget.give(work.buffered_bytes)
        work.batches, work.buffered_bytes = [], 0
        return True

    def _read(self, file: FlatMessageFile, confirmed: int | None, *, bytes_max: int) -> MessageRun:
        """The next messages of the queue, perhaps some that the local store may still lose; none
        if it has lost the first one.

        If many messages wait, the place of the first one limits how much can lie below `confirmed`.
        Otherwise a batch that is not on disk yet would be read and checked at each look, in vain.
        """
        waiting = (self._store.max_offset(*file.key) or 0) - file.append_offset
        if confirmed is not None and waiting > FEW_WAITING:
            first = self._range(file, count_max=1, bytes_max=1)
            if len(first):
                if not _count_below(first, confirmed):
                    return first
                bytes_max = min(bytes_max, confirmed - int(first.log_offsets[0]))
        run = self._range(file, count_max=self._count_max, bytes_max=bytes_max)
        if not len(run) and behind_lost(self._store, file.key, file.append_offset) is None:
            raise TieredStoreError(f"the local store has no message {file.append_offset}")
        return run

    def _range(self, file: FlatMessageFile, *, count_max: int, bytes_max: int) -> MessageRun:
        return self._store.read_range(
            *file.key, file.append_offset, count_max=count_max, bytes_max=bytes_max
        )

    def _append(
        self, work: QueueWork, file: FlatMessageFile, run: MessageRun, keys: FoundKeys | None
    ) -> int:
        """Append the run; return how many bytes of memory it takes."""
        appended = file.append(run)
        count = appended.count
        if not count:
            raise TieredStoreError(f"{file.path} takes no message {run.first_offset}")
        taken = MessageRun(
            first_offset=run.first_offset,
            log_offsets=appended.log_offsets,
            message_bytes=run.message_bytes[:count],
            tags_codes=run.tags_codes[:count],
            starts=appended.log_offsets - appended.log_offsets[0],
            records=appended.records,
        )
        keys = keys if count == len(run) else None
        work.batches.append(CommittedRun(run=taken, log_offsets=appended.log_offsets, keys=keys))
        work.more_waits = file.append_offset < (self._store.max_offset(*work.key) or 0)
        self._pending.took(work.key, count, len(appended.records))
        return len(appended.records) + _beside(count, keys)


def _beside(count: int, keys: FoundKeys | None) -> int:
    """The bytes that a batch of `count` messages takes in addition to their records."""
    found = 0 if keys is None else keys.held_bytes
    return ROW_BYTES * count + BATCH_BYTES + found


def _count_below(run: MessageRun, log_offset: int) -> int:
    """How many messages at the start of the run end at or below this offset of the local log."""
    if len(run) == 1:
        return int(int(run.log_offsets[0]) + int(run.message_bytes[0]) <= log_offset)
    below = run.log_offsets + run.message_bytes <= log_offset
    return len(run) if below.all() else int(np.argmin(below))
