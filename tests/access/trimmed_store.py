"""A local store made of lists that loses both ends of its log: to retention and to a power cut.

What lives here: no tests, and nothing of the tier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from tests.testing.list_store import ListMessageStore
from tieredstore.codec.record import peek_store_timestamp
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, MessageFilter, RetentionGuard
from tieredstore.driver.runtime import Runtime
from tieredstore.model.messages import GetResult, MessageRun, QueryResult, SelectedMessage
from tieredstore.model.values import INT64_MAX, Boundary, GetStatus, QueueKey


class TrimmedStore(ListMessageStore):
    """What lies below `trimmed_to` in the log is gone, from every queue; numbers go on.

    `confirmed` is where its last flush ended; None: whatever is put is confirmed at once.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.trimmed_to = 0
        self.confirmed: int | None = None
        self._guards: list[RetentionGuard] = []

    @property
    def end(self) -> int:
        """Of the log."""
        return self._end

    def restart(self) -> None:
        """The process is another one: nobody listens any more."""
        self._dispatchers.clear()
        self._guards.clear()
        self.shutdown()

    def trim(self, log_offset: int) -> int:
        """What retention does: as far as everybody who is asked allows it."""
        asked = [guard() for guard in self._guards]
        allowed = [needed for needed in asked if needed is not None]
        self.lose_below(min([log_offset, *allowed]))
        return self.trimmed_to

    def lose_below(self, log_offset: int) -> None:
        """Nobody is asked."""
        self.trimmed_to = max(self.trimmed_to, min(log_offset, self._end))

    def lose_from(self, log_offset: int) -> None:
        """What a power cut does."""
        log_offset = max(log_offset, self.trimmed_to)
        self._log = [one for one in self._log if one.log_offset < log_offset]
        for key, queue in self._queues.items():
            self._queues[key] = [one for one in queue if one.log_offset < log_offset]
        self._end = min(self._end, log_offset)
        if self.confirmed is not None:
            self.confirmed = min(self.confirmed, self._end)

    def kept(self, key: QueueKey) -> list[SelectedMessage]:
        return self._queues.get(key, [])[self._first(key) :]

    # What a store says

    def confirmed_offset(self) -> int:
        return super().confirmed_offset() if self.confirmed is None else self.confirmed

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
        queue = self._queue(topic, queue_id)
        first = self._first(QueueKey(topic, queue_id))
        if queue and offset < first:
            return GetResult(
                status=GetStatus.OFFSET_TOO_SMALL,
                next_offset=first,
                min_offset=first,
                max_offset=len(queue),
            )
        return super().get_message(
            topic,
            queue_id,
            offset,
            count_max=count_max,
            bytes_max=bytes_max,
            message_filter=message_filter,
            group=group,
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        queue = self._queue(topic, queue_id)
        return self._first(QueueKey(topic, queue_id)) if queue else None

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        return offset >= self._first(QueueKey(topic, queue_id)) and super().contains(
            topic, queue_id, offset
        )

    def min_log_offset(self) -> int | None:
        at = bisect_left(self._log, self.trimmed_to, key=lambda one: one.log_offset)
        return self._log[at].log_offset if at < len(self._log) else None

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        if not self.contains(topic, queue_id, offset):
            return None
        return super().store_time(topic, queue_id, offset)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        kept = self._kept_log() if topic is None else self.kept(QueueKey(topic, queue_id))
        return peek_store_timestamp(kept[0].record) if kept else None

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        found = super().offset_by_time(topic, queue_id, timestamp, boundary)
        return None if found is None else max(found, self._first(QueueKey(topic, queue_id)))

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        found = super().query_message(topic, key, count_max=INT64_MAX, begin=begin, end=end)
        kept = [one for one in found.messages if one.log_offset >= self.trimmed_to]
        return QueryResult(messages=kept[:count_max])

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        if not self.contains(topic, queue_id, offset):
            count_max = 0
        return super().read_range(topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        self._guards.append(guard)

    def delete_topics(self, topics: Iterable[str]) -> int:
        wanted = set(topics)
        gone = {
            one.log_offset
            for key, queue in self._queues.items()
            if key.topic in wanted
            for one in queue
        }
        self._log = [one for one in self._log if one.log_offset not in gone]
        return super().delete_topics(wanted)

    def _first(self, key: QueueKey) -> int:
        queue = self._queues.get(key, [])
        return bisect_left(queue, self.trimmed_to, key=lambda one: one.log_offset)

    def _kept_log(self) -> list[SelectedMessage]:
        return self._log[bisect_left(self._log, self.trimmed_to, key=lambda one: one.log_offset) :]
