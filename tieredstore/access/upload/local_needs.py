"""What the broker's store must not delete yet: the messages that the tier has still to take.

What lives here: `LocalNeeds`, the answer to the store's retention.
"""

from __future__ import annotations

from collections.abc import Callable

from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.topic_filter import TopicFilter
from tieredstore.driver.message_store import MessageStore
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.model.errors import SegmentCorruptError, StoreClosedError
from tieredstore.model.values import QueueKey


class LocalNeeds:
    """Finds the smallest local log offset that is still needed.

    Queues that take no uploads need nothing: those of filtered topics, and stopped ones, which
    would keep everything for ever. One that may still be recovered is none of these: it needs what
    the catalogue does not know of. Nor does one whose next local message is
    damaged: once that has expired, the upload goes on behind it.
    """

    def __init__(
        self,
        store: MessageStore,
        files: FlatFileStore,
        topic_filter: TopicFilter,
        work_of: Callable[[QueueKey], QueueWork],
    ) -> None:
        self._store = store
        self._files = files
        self._filter = topic_filter
        self._work_of = work_of

    def needed_from(self) -> int | None:
        """None where everything is in the tier."""
        return min(self.by_queue().values(), default=None)

    def by_queue(self) -> dict[QueueKey, int]:
        """The same of each queue that needs any."""
        keys = [QueueKey(*key) for key in self._store.queues()]
        return {
            key: offset
            for key in keys
            if not self._filter.rejects(key.topic) and (offset := self._needed_of(key)) is not None
        }

    def _needed_of(self, key: QueueKey) -> int | None:
        work, file = self._work_of(key), self._files.get(key)
        has_problem = file is not None and file.problem is not None
        if work.stopped is not None or (has_problem and not self._files.may_recover(key)):
            return None
        minimum, maximum = self._store.min_offset(*key), self._store.max_offset(*key)
        if minimum is None or maximum is None:
            return None
        committed = file.sure_offset if file is not None and file.is_started else minimum
        first = max(committed, minimum)
        if first >= maximum:
            return None
        known = work.needed_from
        if known is None or known[0] != first:
            try:
                run = self._store.read_range(*key, first, count_max=1, bytes_max=1)
            except StoreClosedError:
                raise
            except SegmentCorruptError:
                return None
            if not len(run):
                return None
            known = work.needed_from = first, int(run.log_offsets[0])
        return known[1]
