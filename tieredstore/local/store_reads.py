"""The reading half of a local store: every question of the `MessageStore` protocol.

What lives here: `StoreReads`, which finds the part that knows the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tieredstore.codec.record_fields import peek_queue_offset, peek_store_timestamp, peek_topic
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, MessageFilter
from tieredstore.local.config import LocalConfig
from tieredstore.local.key_query import query_message
from tieredstore.local.store_parts import StoreParts
from tieredstore.model.errors import StoreClosedError, TieredStoreError
from tieredstore.model.messages import GetResult, MessageRun, QueryResult, SelectedMessage
from tieredstore.model.values import INT64_MAX, Boundary, QueueKey

log = logging.getLogger(__name__)


class StoreReads:
    """Reads of a store whose parts are loaded; each sees every put that returned before it."""

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
        return self._up_to_date().reader.run(
            topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        return self._up_to_date().queues.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int | None:
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
        parts = self._up_to_date()
        queue = parts.queues.queue(topic, queue_id)
        if queue is None:
            return None
        return queue.offset_by_time(
            timestamp,
            boundary,
            store_time=parts.store_time_at,
            min_log_offset=parts.log.min_offset or 0,
        )

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        parts = self._up_to_date()
        queue = parts.queues.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        unit = queue.unit(offset)
        return parts.store_time_at(unit.log_offset, unit.message_bytes)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        parts = self._up_to_date()
        if topic is not None:
            offset = parts.queues.min_offset(topic, queue_id)
            return None if offset is None else self.store_time(topic, queue_id, offset)
        minimum = parts.log.min_offset
        record = None if minimum is None else parts.log.message_bytes(minimum)
        return None if record is None else peek_store_timestamp(record)

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        parts = self._up_to_date()
        if parts.index is None:
            return QueryResult()
        return query_message(
            parts.index,
            parts.log,
            topic,
            key,
            count_max=min(count_max, self._config.query_count_max),
            begin=begin,
            end=end,
            tags_code=parts.tags_code,
            log_offset_min=parts.deleted.end_of(topic),
        )

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        parts = self._loaded()
        record = parts.log.message_bytes(log_offset, size)
        if record is None or log_offset < parts.deleted.end_of(peek_topic(record)):
            return None
        return SelectedMessage(
            queue_offset=peek_queue_offset(record),
            log_offset=log_offset,
            tags_code=parts.tags_code(record),
            record=record,
        )

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        return self._log_offset(topic, queue_id, offset) is not None

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        log_offset = self._log_offset(topic, queue_id, offset)
        return log_offset is not None and self._loaded().reader.is_in_memory(log_offset)

    def _log_offset(self, topic: str, queue_id: int, offset: int) -> int | None:
        parts = self._up_to_date()
        queue = parts.queues.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        log_offset = queue.unit(offset).log_offset
        return log_offset if log_offset >= (parts.log.min_offset or 0) else None

    def queues(self) -> Iterable[QueueKey]:
        return self._up_to_date().queues.queues()

    def _up_to_date(self) -> StoreParts:
        """The parts, after every put that returned before has been dispatched.

        Where that fails, a full disk say, reads go on with what was dispatched. Whoever puts next
        is told, and the log has it from the service.
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
        return parts
