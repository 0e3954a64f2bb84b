"""Batches appended to many queues, handed to the provider together in rounds, and settled."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final

import numpy as np

from tieredstore.access.admission import PendingCounts, UploadBudget
from tieredstore.access.queue_upload import IndexFeed, QueueWork
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore, Put
from tieredstore.driver.metrics import MESSAGES_DISPATCHED, Metrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import CommitAttempt, FlatMessageFile
from tieredstore.index.contract import CommittedRun
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import StoreClosedError, TieredStoreError
from tieredstore.model.messages import MessageRun
from tieredstore.model.printable import log_of

log = log_of(__name__)


@dataclass(slots=True, eq=False)
class _Sent:
    """One queue's part of a round, and how it ended."""

    work: QueueWork
    file: FlatMessageFile
    attempt: CommitAttempt
    error: BaseException | None = None


class Rounds:
    """Sends rounds and settles them.

    * The caller holds the claim and the upload permit of each queue it sends; `ended` is called
      when both may be given back, whatever became of the upload.
    * Outcomes are settled as they come: what has ended together is one change of the catalogue.
      Rows come before the index.
    * Nothing is held while bytes travel but those claims and permits.
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
    ) -> None:
        self._files = files
        self._provider = provider
        self._metadata = metadata
        self._feed = feed
        self._budget = budget
        self._runtime = runtime
        self._metrics = metrics
        self._ended = ended
        self._finished: deque[_Sent] = deque()
        self._settling = threading.Lock()  # only ever tried: another thread settles for all

    def send(self, works: Sequence[QueueWork]) -> None:
        """One round. Queues whose end in the backend is not known are asked first, each in the
        fetch pool, and follow by themselves."""
        ready: list[_Sent] = []
        for work in works:
            if work.file is not None and work.file.knows_its_end:
                ready += self._begun(work)
                continue
            try:
                self._runtime.fetch.submit(self._ask_and_send, work)
            except StoreClosedError as error:
                self._failed(work, error)
        self._send(ready)

    def _ask_and_send(self, work: QueueWork) -> None:
        self._send(self._begun(work))

    def _begun(self, work: QueueWork) -> list[_Sent]:
        """The queue's attempt; none where it cannot be made."""
        file = work.file
        try:
            if file is None:
                raise TieredStoreError(f"{work.key} is gone")
            attempt = file.begin_commit()
            if attempt is None:
                raise TieredStoreError(f"{file.path}: somebody else commits it")
        except Exception as error:  # noqa: BLE001 - one queue never stops the others
            self._failed(work, error)
            return []
        return [_Sent(work, file, attempt)]

    def _send(self, round: Sequence[_Sent]) -> None:
        if not round:
            return
        pairs = [sent.attempt.pair for sent in round]
        if all(pair.log is None and pair.queue is None for pair in pairs):
            futures: Sequence[Future[None]] = [_done() for _ in pairs]  # all had landed
        else:
            try:
                futures = self._provider.write_many(pairs)
            except Exception as error:  # noqa: BLE001
                futures = [_done(error) for _ in pairs]
        # What has ended by now is settled together, behind the last of them.
        alone = self._settling.acquire(blocking=False)
        try:
            for sent, future in zip(round, futures, strict=True):
                future.add_done_callback(partial(self._on_done, sent))
        finally:
            if alone:
                self._settling.release()
        self._settle()

    def _on_done(self, sent: _Sent, future: Future[None]) -> None:
        try:
            future.result()
        except BaseException as error:  # noqa: BLE001 - a cancelled one too
            sent.error = error
        self._finished.append(sent)
        self._settle()

    def _settle(self) -> None:
        """Settle what has ended. One thread at a time: one that comes meanwhile leaves it to it."""
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
        """Both files of each, then the catalogue for all."""
        committed: list[_Sent] = []
        for sent in together:
            try:
                if sent.error is not None:
                    sent.file.fail_commit(sent.error)
                    continue
                rows = sent.file.end_commit(sent.attempt)
                if self._files.get(sent.file.key) is sent.file:  # else it was destroyed meanwhile
                    sent.work.rows += rows
                committed.append(sent)
            except Exception as error:
                log.exception("%s: a commit could not be settled", sent.file.path)
                sent.error = error
        # Rows that came late may be of segments that are gone, or longer since.
        changes = [Put(row) for sent in committed for row in sent.file.current_rows(sent.work.rows)]
        try:
            if changes:
                self._metadata.apply(changes)
        except Exception as error:  # noqa: BLE001 - the rows stay and come again
            for sent in committed:
                sent.error = error
            return
        for sent in committed:
            sent.work.rows = []

    def _conclude(self, sent: _Sent) -> None:
        """The index, and the end of it."""
        work, error = sent.work, sent.error
        try:
            if error is None:
                self._count(sent)
                self._feed.put_batches(work)
                work.failure = None
        except Exception as failure:  # noqa: BLE001
            error = failure
        if error is not None:
            self._failed(work, error)
        else:
            self._ended(work)

    def _count(self, sent: _Sent) -> None:
        topic, queue_id = sent.file.key
        labels = {"topic": topic, "queue_id": str(queue_id), "file_type": "commit_log"}
        self._metrics.add(MESSAGES_DISPATCHED, sent.work.batch_count, labels)

    def _failed(self, work: QueueWork, error: BaseException) -> None:
        log.warning("%s/%s: upload failed: %s", work.key.topic, work.key.queue_id, error)
        work.failed(error)
        self._ended(work)


def _done(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


# Beside its record, of one message: its unit, and a row in each of a run's columns.
ROW_BYTES: Final = 64
BATCH_BYTES: Final = 2048  # beside its messages, of one batch: columns, views, attempt, future
LITTLE_PART: Final = 16  # of a whole batch: what a queue may take where a whole one has no room


class BatchOutcome(Enum):
    """What became of the next batch."""

    APPENDED = "it waits for its commit"
    NO_ROOM = "the budget is used up"
    UNCONFIRMED = "the local store may still lose it"


class Batches:
    """Takes batches within the budget.

    A batch may be in memory twice while it is appended, once as it was read and once as it lies
    in the tier; from then on once. Both are in the budget. Room is asked for a whole batch first,
    and where there is none for a little one, if that is all the queue has: so thousands of queues
    with little each share a small buffer, and those with much are not cut into little pieces.
    """

    def __init__(
        self,
        store: MessageStore,
        budget: UploadBudget,
        pending: PendingCounts,
        config: StoreConfig,
    ) -> None:
        self._store = store
        self._budget = budget
        self._pending = pending
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
        """What comes next, within what was taken of the budget; nothing if that is less than
        `all_of` messages."""
        kept = 0
        try:
            confirmed = self._store.confirmed_offset()
            run = self._read(file, bytes_max=min(self._bytes_max, reserved // 2))
            if len(run) < all_of:
                return BatchOutcome.NO_ROOM
            run = run.head(_count_below(run, confirmed))
            if not len(run):
                return BatchOutcome.UNCONFIRMED
            need = 2 * len(run.records) + ROW_BYTES * len(run) + BATCH_BYTES
            if all_of and need > reserved:
                return BatchOutcome.NO_ROOM
            if need > reserved:
                work.wanted_bytes = need
                if not self._budget.take(need, instead_of=reserved):
                    return BatchOutcome.NO_ROOM
                reserved = need
            work.wanted_bytes = 0
            kept = self._append(work, file, run)
            return BatchOutcome.APPENDED
        finally:
            self._budget.give(reserved - kept)
            work.buffered_bytes += kept

    def drop(self, work: QueueWork, file: FlatMessageFile) -> bool:
        """Give back the memory of what could not be committed; it is read again later. False
        while a commit is under way."""
        if not file.discard():
            return False
        for batch in work.batches:
            self._pending.put_back(work.key, len(batch), int(batch.run.message_bytes.sum()))
        self._budget.give(work.buffered_bytes)
        work.batches, work.buffered_bytes = [], 0
        return True

    def _read(self, file: FlatMessageFile, *, bytes_max: int) -> MessageRun:
        """The next messages of the queue; some of them the local store may still lose."""
        run = self._store.read_range(
            *file.key, file.append_offset, count_max=self._count_max, bytes_max=bytes_max
        )
        if not len(run):
            raise TieredStoreError(f"the local store has no message {file.append_offset}")
        return run

    def _append(self, work: QueueWork, file: FlatMessageFile, run: MessageRun) -> int:
        """What is kept in memory of it."""
        appended = file.append(run)
        if not appended.count:
            raise TieredStoreError(f"{file.path} takes no message {run.first_offset}")
        taken = replace(
            run.head(appended.count),
            records=appended.records,
            starts=appended.log_offsets - appended.log_offsets[0],
            log_offsets=appended.log_offsets,
        )
        work.batches.append(CommittedRun(run=taken, log_offsets=appended.log_offsets))
        self._pending.took(work.key, appended.count, len(appended.records))
        return len(appended.records) + ROW_BYTES * appended.count + BATCH_BYTES


def _count_below(run: MessageRun, log_offset: int) -> int:
    """How many of the first rows end at or below a place in the local log."""
    below = run.log_offsets + run.message_bytes <= log_offset
    return len(run) if below.all() else int(np.argmin(below))
