"""Answers that two stores give together: where queues begin and end, times, keys.

What lives here: `MergedReads`. Reading messages by offset is in `message_reads`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tieredstore.access.read_decision import ReadDecision
from tieredstore.access.reads.fetcher import Fetcher
from tieredstore.codec.record_fields import (
    LOG_OFFSET_POSITION,
    SYS_FLAG_POSITION,
    peek_store_timestamp,
)
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metrics import API_LATENCY, GET_MESSAGE_FALLBACK, Metrics
from tieredstore.driver.runtime import Clock
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.messages import QueryResult, SelectedMessage
from tieredstore.model.values import Boundary

T = TypeVar("T")

_TRIES: Final = 8  # of one search by time, while the next store's oldest messages expire


class MergedReads:
    """Merges what the next store and the tier say.

    * What a store does not know never wins over what the other one knows.
    * An answer that leaves out what the tier has is never given as the whole one: where the tier
      cannot be reached and the next store alone does not know, the error comes through, and a
      query by key says that it is not complete.
    """

    def __init__(
        self,
        next_store: MessageStore,
        fetcher: Fetcher,
        decision: ReadDecision,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._next = next_store
        self._fetcher = fetcher
        self._decision = decision
        self._clock = clock
        self._metrics = metrics

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The smaller one; a tier without a message of the queue has no say beside the other."""
        near = self._next.min_offset(topic, queue_id)
        if not self._decision.may_read_tier(topic):
            return near
        far = self._fetcher.min_offset(topic, queue_id)
        if near is None or far is None:
            return far if near is None else near
        end = self._fetcher.commit_offset(topic, queue_id)
        return min(near, far) if end is not None and far < end else near

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        """The next store's: the tier only follows it. The tier's where that has no such queue."""
        near = self._next.max_offset(topic, queue_id)
        if near is not None or not self._decision.may_read_tier(topic):
            return near
        return self._fetcher.commit_offset(topic, queue_id)

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        if self._next.contains(topic, queue_id, offset):
            return True
        if not self._decision.may_read_tier(topic):
            return False
        return self._fetcher.contains(topic, queue_id, offset)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """From the store that a read of this one message would go to."""
        if not self._decision.reads_tier(self._fetcher, topic, queue_id, offset):
            return self._next.store_time(topic, queue_id, offset)
        try:
            time = self._timed(
                "get_time_by_offset",
                topic,
                lambda: self._fetcher.store_time(topic, queue_id, offset),
            )
        except BackendUnavailableError:
            if not self._next.contains(topic, queue_id, offset):
                raise
            labels = {"operation": "get_time_by_offset", "topic": topic, "group": ""}
            self._metrics.add(GET_MESSAGE_FALLBACK, 1, labels)
            time = None
        return self._next.store_time(topic, queue_id, offset) if time is None else time

    def earliest_time(self, topic: str | None, queue_id: int) -> int | None:
        """Of a queue the smaller one. Of the whole store the next store's, as RocketMQ has it."""
        if topic is None:
            return self._next.earliest_time()
        near = self._next.earliest_time(topic, queue_id)
        if not self._decision.may_read_tier(topic):
            return near
        return _smaller(near, self._fetcher.earliest_time(topic, queue_id))

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary
    ) -> int | None:
        """The tier's where something as old may lie there only.

        What the next store has is all stored at `timestamp` or later then, so its oldest message
        is the answer where the tier has none that comes before it.
        """
        near = self._near_by_time(topic, queue_id, timestamp, boundary)
        if near is not None:
            return near
        if not self._decision.may_read_tier(topic):
            return self._first_of_next(topic, queue_id, timestamp, boundary)
        far = self._timed(
            "get_offset_by_time",
            topic,
            lambda: self._fetcher.offset_by_time(topic, queue_id, timestamp, boundary),
        )
        if self._decision.is_forced:
            return far
        if far is None:
            return self._first_of_next(topic, queue_id, timestamp, boundary)
        return _smaller(far, self._next.min_offset(topic, queue_id))

    def _near_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary
    ) -> int | None:
        """The next store's answer, where that is the answer of both; None where it may not be."""
        if self._decision.is_forced or not self._decision.may_read_tier(topic):
            return None
        for _ in range(_TRIES):
            earliest = self._next.earliest_time()
            if earliest is None or timestamp < earliest:
                return None
            near = self._first_of_next(topic, queue_id, timestamp, boundary)
            if near is None:
                return None
            if timestamp == earliest and not self._is_last_of(
                topic, queue_id, near, timestamp, boundary
            ):
                return None
            if self._next.earliest_time() == earliest:
                return near  # else what came before it may have expired meanwhile
        return None

    def _first_of_next(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary
    ) -> int | None:
        """What the next store says, as the tier says it.

        With UPPER and no message of this very time a local store gives the last one before it and
        the tier the first one behind it. So does RocketMQ; its whole store gives the latter.
        """
        near = self._next.offset_by_time(topic, queue_id, timestamp, boundary)
        if near is None or boundary is Boundary.LOWER:
            return near
        time = self._next.store_time(topic, queue_id, near)
        return near if time is None or time >= timestamp else near + 1

    def _is_last_of(
        self, topic: str, queue_id: int, near: int, timestamp: int, boundary: Boundary
    ) -> bool:
        """Whether no message of the very millisecond at which the next store begins, and that only
        the tier still has, can be meant instead."""
        if near == 0:
            return True
        is_upper = boundary is Boundary.UPPER
        return is_upper and self._next.store_time(topic, queue_id, near) == timestamp

    def query_message(
        self, topic: str, key: str, *, count_max: int, begin: int, end: int
    ) -> QueryResult:
        """Newest first, each message once: what the next store does not give from the tier."""
        near = QueryResult()
        if count_max <= 0:
            return near
        if not self._decision.may_read_tier(topic):
            return self._next.query_message(topic, key, count_max=count_max, begin=begin, end=end)
        forced = self._decision.is_forced
        earliest = self._next.earliest_time()
        if not forced and earliest is not None and end >= earliest:
            near = self._all_near(topic, key, count_max, begin, end)
            if len(near.messages) >= count_max or (begin > earliest and near.complete):
                return near
        # What was stored in that very millisecond may be in the one or in the other.
        oldest_end = end if forced or earliest is None else min(end, earliest)
        try:
            far = self._timed(
                "query_message",
                topic,
                lambda: self._fetcher.query_message(
                    topic,
                    key,
                    count_max=count_max,
                    begin=begin,
                    end=oldest_end if near.complete else end,
                ),
            )
        except BackendUnavailableError:
            far = QueryResult(complete=False)
        return QueryResult(
            messages=_newest_first(near.messages, far.messages)[:count_max],
            complete=near.complete and far.complete,
            lags=near.complete and far.lags,
        )

    def _all_near(self, topic: str, key: str, count_max: int, begin: int, end: int) -> QueryResult:
        """What the next store has; asked again for older ones where it gives only some."""
        found: dict[int, SelectedMessage] = {}  # by place in the log: half messages share offsets
        while True:
            answer = self._next.query_message(topic, key, count_max=count_max, begin=begin, end=end)
            before = len(found)
            found.update((one.log_offset, one) for one in answer.messages)
            is_full = len(found) >= count_max
            if is_full or not answer.is_cut or len(found) == before:
                return QueryResult(
                    messages=list(found.values())[:count_max],
                    complete=answer.complete or (is_full and answer.is_cut),
                )
            # Not below that millisecond: the cut may go through messages of the same time.
            end = peek_store_timestamp(answer.messages[-1].record)

    def _timed(self, operation: str, topic: str, call: Callable[[], T]) -> T:
        started = self._clock.monotonic()
        try:
            return call()
        finally:
            spent_ms = (self._clock.monotonic() - started) * 1000
            labels = {"operation": operation, "topic": topic, "group": ""}
            self._metrics.record(API_LATENCY, spent_ms, labels)


def _smaller(near: int | None, far: int | None) -> int | None:
    known = [value for value in (near, far) if value is not None]
    return min(known, default=None)


def _newest_first(
    near: Sequence[SelectedMessage], far: Sequence[SelectedMessage]
) -> list[SelectedMessage]:
    """Of a message that both have that of the next store; of equal times those come first.

    Offsets do not tell messages apart: half messages of a transaction all have offset 0.
    """
    known = {_without_place(one.record) for one in near}
    only_far = [one for one in far if _without_place(one.record) not in known]
    return sorted([*near, *only_far], key=lambda one: -peek_store_timestamp(one.record))


def _without_place(record: bytes) -> bytes:
    """All of a record but its log offset, which is another one in the tier."""
    return record[:LOG_OFFSET_POSITION] + record[SYS_FLAG_POSITION:]
