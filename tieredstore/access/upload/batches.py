"""The next batch of a queue: read from the broker's store, appended to the tier's file.

What lives here: `Batches`. When a batch is due is told in `queue_rules`; sending it, in `rounds`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

import numpy as np

from tieredstore.access.index_protocol import CommittedRun
from tieredstore.access.upload.pending_counts import PendingCounts
from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.upload_budget import UploadBudget
from tieredstore.driver.message_store import MessageStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.messages import MessageRun

# Beside its record, of one message: its unit, and a row in each of a run's columns.
ROW_BYTES: Final = 64
BATCH_BYTES: Final = 2048  # beside its messages, of one batch: columns, views, attempt, future
LITTLE_PART: Final = 16  # of a whole batch: what a queue may take where a whole one has no room


class Taken(Enum):
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

    def take(self, work: QueueWork, file: FlatMessageFile) -> Taken:
        """Append what comes next, as much as one batch and one segment hold."""
        whole = work.wanted_bytes or 2 * self._bytes_max
        if self._budget.take(whole):
            return self._take_within(work, file, whole)
        little = 2 * self._bytes_max // LITTLE_PART
        left = (self._store.max_offset(*work.key) or 0) - file.append_offset
        if left * ROW_BYTES > little or not self._budget.take(little):
            return Taken.NO_ROOM
        return self._take_within(work, file, little, all_of=left)

    def _take_within(
        self, work: QueueWork, file: FlatMessageFile, reserved: int, *, all_of: int = 0
    ) -> Taken:
        """What comes next, within what was taken of the budget; nothing if that is less than
        `all_of` messages."""
        kept = 0
        try:
            confirmed = self._store.confirmed_offset()
            run = self._read(file, bytes_max=min(self._bytes_max, reserved // 2))
            if len(run) < all_of:
                return Taken.NO_ROOM
            run = run.head(_count_below(run, confirmed))
            if not len(run):
                return Taken.UNCONFIRMED
            need = 2 * len(run.records) + ROW_BYTES * len(run) + BATCH_BYTES
            if all_of and need > reserved:
                return Taken.NO_ROOM
            if need > reserved:
                work.wanted_bytes = need
                if not self._budget.take(need, instead_of=reserved):
                    return Taken.NO_ROOM
                reserved = need
            work.wanted_bytes = 0
            kept = self._append(work, file, run)
            return Taken.APPENDED
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
