"""What is to be done with a queue now: RocketMQ's rules of dispatch, in their order, and ours.

What lives here: `QueueRules`. It decides and does nothing itself but local reads: what takes a
backend or the catalogue is named as a chore, for somebody else's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from tieredstore.access.upload.pending_counts import PendingCounts
from tieredstore.access.upload.queue_chores import QueueChores
from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.topic_filter import TopicFilter
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Clock
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.config import StoreConfig


class Action(Enum):
    """What a queue needs."""

    NOTHING = auto()
    HOLD = auto()  # something waits, but no batch is due
    CHORE = auto()
    COMMIT = auto()  # what was appended before
    UPLOAD = auto()  # the next batch


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    chore: Callable[[], None] | None = None


_NOTHING: Final = Decision(Action.NOTHING)
_HOLD: Final = Decision(Action.HOLD)
_COMMIT: Final = Decision(Action.COMMIT)
_UPLOAD: Final = Decision(Action.UPLOAD)


class QueueRules:
    """The rules in their order; the first that holds decides. The caller has the queue's claim."""

    def __init__(
        self,
        store: MessageStore,
        chores: QueueChores,
        pending: PendingCounts,
        topic_filter: TopicFilter,
        *,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._chores = chores
        self._pending = pending
        self._filter = topic_filter
        self._clock = clock
        self._timeout_ms = config.group_commit_timeout_ms
        self._count = config.group_commit_count
        self._always_due = not config.group_commit_enabled

    def decide(self, work: QueueWork, *, force: bool, target: int | None = None) -> Decision:
        """What to do now; messages from queue offset `target` on are for later."""
        file = work.file
        if self._filter.rejects(work.key.topic):
            return _NOTHING if file is None else _chore(lambda: self._chores.destroy(work))
        if file is not None and work.is_to_resume:
            return _chore(lambda: self._chores.try_to_resume(work, file))
        if file is not None and (work.stopped or file.problem) is not None:
            return _NOTHING
        if file is None or not file.is_started:
            return self._beginning(work)
        if self._can_be_compared(file):
            return _chore(lambda: self._chores.confirm(file))
        if not work.is_index_known:
            return _chore(lambda: self._chores.open_index(work, file))
        if work.rows:
            return _chore(lambda: self._chores.save_rows(work))
        if file.waiting_bytes:
            return _COMMIT
        if file.is_in_doubt:  # its memory was given back
            return _chore(lambda: self._chores.settle(work, file))
        if work.batches or work.index_from is not None:
            return _chore(lambda: self._chores.index(work, file))
        return self._next_batch(work, file, force=force, target=target)

    def _can_be_compared(self, file: FlatMessageFile) -> bool:
        """Not where the local store ends even before what the catalogue named: it lost more."""
        first = file.unconfirmed_from
        if first is None:
            return False
        maximum = self._store.max_offset(*file.key)
        return maximum is not None and maximum >= first

    def _beginning(self, work: QueueWork) -> Decision:
        """A queue begins when there is something to upload, and the tier can hold its name."""
        if work.stopped is not None:
            return _NOTHING
        minimum = self._store.min_offset(*work.key)
        maximum = self._store.max_offset(*work.key)
        if minimum is None or maximum is None or minimum >= maximum:
            return _NOTHING
        low, high = minimum, maximum
        return _chore(lambda: self._chores.begin(work, low, high))

    def _next_batch(
        self, work: QueueWork, file: FlatMessageFile, *, force: bool, target: int | None
    ) -> Decision:
        maximum = self._store.max_offset(*work.key)
        was_gone, work.is_gone_locally = work.is_gone_locally, maximum is None
        if maximum is None:
            return _NOTHING
        current = file.append_offset
        minimum = self._store.min_offset(*work.key) or 0
        if current < minimum:
            return _chore(lambda: self._chores.skip(work, file, minimum))
        # What came back with numbers that the tier has given already is another queue.
        if current > maximum or (was_gone and minimum < current):
            return _chore(lambda: self._chores.stop_ahead(work, file, maximum))
        if not work.is_checked:  # also where nothing waits: retention deletes what the tier has
            return _chore(lambda: self._chores.check(work, file))
        if file.log.is_due_to_roll():
            return _chore(lambda: self._chores.roll(file))
        if current == maximum:
            self._pending.none_wait(work.key)
            return _NOTHING
        if target is not None and current >= target:
            return _NOTHING
        if force or self._always_due or self._is_due(work, current, maximum):
            return _UPLOAD
        return _HOLD

    def _is_due(self, work: QueueWork, current: int, maximum: int) -> bool:
        if maximum - current >= self._count or self._pending.is_full(work.key):
            return True
        known = work.first_waiting
        if known is None or known[0] != current:
            time = self._store.store_time(*work.key, current)
            if time is None:
                return True  # reading it will say what is wrong
            known = work.first_waiting = current, time
        return known[1] + self._timeout_ms < self._clock.now_ms()


def _chore(call: Callable[[], None]) -> Decision:
    return Decision(Action.CHORE, call)
