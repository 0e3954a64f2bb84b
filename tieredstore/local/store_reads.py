"""The reading half of a local store: every question of the `MessageStore` protocol.

What lives here: `StoreReads`, which finds the part that knows the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from tieredstore.codec.queue_unit import QueueUnit
from tieredstore.codec.record_fields import peek_queue_offset, peek_store_timestamp, peek_topic
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, MessageFilter
from tieredstore.local.config import LocalConfig
from tieredstore.local.keys.key_query import query_message
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.store_parts import StoreParts
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.messages import GetResult, MessageRun, QueryResult, SelectedMessage
from tieredstore.model.printable import log_of
from tieredstore.model.values import (
    INT64_MAX,
    Boundary,
    QueueKey,
    require_place,
    require_text,
    require_whole,
)

log = log_of(__name__)


class StoreReads:
    """Reads of a store whose parts are loaded; each sees every put that returned before it.

    With SYNC_FLUSH a message is seen when it is on disk. A put with WAIT=false does not wait for
    that, so a read that follows at once may not see its messages yet. In a process that was forked
    off everything raises OtherProcessError.
    """

    def __init__(self, config: LocalConfig) -> None:
        self._config = config
        self._parts: StoreParts | None = None

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
        return self._up_to_date().reader.get(
            topic,
            queue_id,
            offset,
            count_max=count_max,
            bytes_max=bytes_max,
            message_filter=message_filter,
        )

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        require_place(topic, queue_id, offset, count_max, bytes_max)
        return self._up_to_date().reader.run(
            topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        require_place(topic, queue_id)
        return self._up_to_date().queues.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        require_place(topic, queue_id)
        return self._up_to_date().queues.max_offset(topic, queue_id)

    def confirmed_offset(self) -> int:
        return self._loaded().log.flushed_offset

    def min_log_offset(self) -> int | None:
        return self._loaded().log.min_offset

    def max_log_offset(self) -> int:
        return self._loaded().log.max_offset

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        require_place(topic, queue_id, timestamp)
        parts = self._up_to_date()
        while (queue := parts.queues.queue(topic, queue_id)) is not None:
            found = queue.offset_by_time(
                timestamp,
                boundary,
                store_time=parts.store_time_at,
                min_log_offset=parts.log.min_offset or 0,
                unit=lambda offset: parts.unit(topic, queue_id, offset),
            )
            if parts.queues.queue(topic, queue_id) is queue:
                return found
        return None  # also where the queue was deleted meanwhile

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        require_place(topic, queue_id, offset)
        parts = self._up_to_date()
        unit = parts.unit(topic, queue_id, offset)
        return None if unit is None else parts.store_time_at(unit.log_offset, unit.message_bytes)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        parts = self._up_to_date()
        if topic is None:
            return _earliest_time(parts.log)
        require_place(topic, queue_id)
        minimum = None
        while (offset := parts.queues.min_offset(topic, queue_id)) != minimum:
            minimum = offset  # look again if it went on meanwhile
            time = None if offset is None else self.store_time(topic, queue_id, offset)
            if time is not None:
                return time
        return None

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
        parts = self._up_to_date()
        if parts.index is None:
            return QueryResult()
        return query_message(
            parts.index,
            parts.log,
            topic,
            key,
            count_max=count_max,
            count_limit=self._config.query_count_max,
            begin=begin,
            end=end,
            tags_code=parts.truth.tags_code,
            is_named=parts.truth.is_named,
            log_offset_min=parts.deleted.end_of(topic),
        )

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        require_whole(log_offset, 0 if size is None else size)
        parts = self._loaded()
        if size is not None and not (0 < size <= parts.log.max_offset - log_offset):
            return None
        record = parts.log.message_bytes(log_offset, size)
        if record is None or log_offset < parts.deleted.end_of(peek_topic(record)):
            return None
        if not parts.truth.is_named(record, log_offset) and not (
            self._up_to_date().truth.is_named(record, log_offset)  # a dispatch was under way
        ):
            raise SegmentCorruptError(
                str(parts.files.commit_log),
                f"the record says it is message {peek_queue_offset(record)} of a queue that has "
                "another one there",
                position=log_offset,
            )
        return SelectedMessage(
            queue_offset=peek_queue_offset(record),
            log_offset=log_offset,
            tags_code=parts.truth.tags_code(record),
            record=record,
        )

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        return self._log_offset(topic, queue_id, offset) is not None

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        # The first of so many is the oldest: where it is in memory, the others are as well.
        require_whole(count)
        log_offset = self._log_offset(topic, queue_id, offset)
        return log_offset is not None and self._loaded().reader.is_in_memory(log_offset)

    def _log_offset(self, topic: str, queue_id: int, offset: int) -> int | None:
        require_place(topic, queue_id, offset)
        parts = self._up_to_date()
        unit = _unit(parts, topic, queue_id, offset)
        if unit is None or unit.log_offset < (parts.log.min_offset or 0):
            return None
        return unit.log_offset

    def queues(self) -> Iterable[QueueKey]:
        return self._up_to_date().queues.queues()

    def _up_to_date(self) -> StoreParts:
        """The parts, after every put that returned before has been dispatched.

        Where that fails, a full disk say, reads go on with what was dispatched. The service tries
        again and logs it; puts are refused while too much waits (`dispatch_behind_max`).
        """
        parts = self._loaded()
        try:
            parts.dispatch.drain()
        except (TieredStoreError, OSError) as error:
            log.debug("reads go on, but nothing new is dispatched: %s", error)
        return parts

    def _loaded(self) -> StoreParts:
        parts = self._parts
        if parts is None:
            raise StoreClosedError("the store is not loaded")
        parts.process.require()
        return parts

    def _refuse_a_fork(self) -> None:
        """Before a lock is asked for, which a thread of the parent may have held at the fork."""
        if self._parts is not None:
            self._parts.process.require()


def _unit(parts: StoreParts, topic: str, queue_id: int, offset: int) -> QueueUnit | None:
    queue = parts.queues.queue(topic, queue_id)
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return None
    try:
        return queue.unit(offset)
    except OffsetOutOfRangeError:  # it went just now
        return None


def _earliest_time(commit_log: CommitLog) -> int | None:
    minimum = None
    while (offset := commit_log.min_offset) is not None and offset != minimum:
        minimum = offset  # look again if its file went meanwhile
        record = commit_log.message_bytes(offset)
        if record is not None:
            return peek_store_timestamp(record)
    return None
