"""The reading half of a tiered store: every question of the `MessageStore` protocol.

What lives here: `TieredReads`, which refuses questions to a closed store and finds who answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from tieredstore.access.care.flush import TierFlush
from tieredstore.access.care.retention import Retention
from tieredstore.access.care.seal_chore import SealChore
from tieredstore.access.merged_reads import MergedReads
from tieredstore.access.message_reads import MessageReads, MessageRequest
from tieredstore.access.upload.dispatcher import Dispatcher
from tieredstore.access.wiring import TierParts
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, MessageFilter, MessageStore
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.messages import GetResult, MessageRun, QueryResult, SelectedMessage
from tieredstore.model.values import (
    INT64_MAX,
    Boundary,
    QueueKey,
    require_place,
    require_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTier:
    """What a loaded store has; all of it goes when the store is shut down."""

    parts: TierParts
    dispatcher: Dispatcher
    retention: Retention
    sealing: SealChore
    flushing: TierFlush
    messages: MessageReads
    merged: MergedReads


class TieredReads:
    """Reads of a loaded store: from the next store, from the tier, or from both."""

    def __init__(self, next_store: MessageStore) -> None:
        self._next = next_store
        self._tier: OpenTier | None = None

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
        return self._loaded().messages.get(
            MessageRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        )

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
        """Already done when the answer is hot; else a thread of the fetch pool gives it.

        While that pool has no place the caller's own thread does the work, as everywhere.
        A closed store raises here; every other error is in the future.
        """
        require_place(topic, queue_id, offset, count_max, bytes_max)
        return self._loaded().messages.get_future(
            MessageRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        )

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
        """The answer where it is hot; None where a backend or a disk has to be waited for.

        For callers that may not wait: `get_message_future` does the work itself while the fetch
        pool has no place.
        """
        require_place(topic, queue_id, offset, count_max, bytes_max)
        return self._loaded().messages.get_hot(
            MessageRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        require_place(topic, queue_id)
        return self._loaded().merged.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        require_place(topic, queue_id)
        return self._loaded().merged.max_offset(topic, queue_id)

    def committed_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset that is in the tier; None for a queue that is not.

        A broker's own retention may delete below it.
        """
        require_place(topic, queue_id)
        return self._loaded().parts.fetcher.commit_offset(topic, queue_id)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        require_place(topic, queue_id, timestamp)
        return self._loaded().merged.offset_by_time(topic, queue_id, timestamp, boundary)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        require_place(topic, queue_id, offset)
        return self._loaded().merged.store_time(topic, queue_id, offset)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        require_place("" if topic is None else topic, queue_id)
        return self._loaded().merged.earliest_time(topic, queue_id)

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
        return self._loaded().merged.query_message(
            topic, key, count_max=count_max, begin=begin, end=end
        )

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        require_place(topic, queue_id, offset)
        return self._loaded().merged.contains(topic, queue_id, offset)

    def queues(self) -> Iterable[QueueKey]:
        """Those of the next store and those that only the tier still has."""
        tier = self._loaded()
        return {*self._next.queues(), *(file.key for file in tier.parts.files.files())}

    # What is about the next store's own log is the next store's to say.

    def confirmed_offset(self) -> int:
        self._loaded()
        return self._next.confirmed_offset()

    def min_log_offset(self) -> int | None:
        self._loaded()
        return self._next.min_log_offset()

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        self._loaded()
        return self._next.message_at(log_offset, size)

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        self._loaded()
        return self._next.in_memory(topic, queue_id, offset, count)

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        self._loaded()
        return self._next.read_range(
            topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max
        )

    def _loaded(self) -> OpenTier:
        tier = self._tier
        if tier is None:
            raise StoreClosedError("the store is not loaded")
        tier.parts.process.require()
        return tier

    def _refuse_a_fork(self) -> None:
        """Before a lock is asked for, which a thread of the parent may have held at the fork."""
        if self._tier is not None:
            self._tier.parts.process.require()
