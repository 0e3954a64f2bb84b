"""A message store made of lists: the least that fulfils the contract."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import encode_properties, split_keys, tags_code
from tieredstore.driver.message_store import (
    BYTES_MAX,
    COUNT_MAX,
    Dispatcher,
    MessageFilter,
    RetentionGuard,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.messages import (
    DispatchRequest,
    GetResult,
    Message,
    MessageRun,
    PutResult,
    QueryResult,
    SelectedMessage,
)
from tieredstore.model.values import INT64_MAX, Boundary, GetStatus, PutStatus, QueueKey


class ListMessageStore:
    """Everything in memory, in one log and one list of log places for each queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._log: list[SelectedMessage] = []
        self._queues: dict[QueueKey, list[SelectedMessage]] = {}
        self._dispatchers: list[Dispatcher] = []
        self._end = 0
        self._open = False

    def load(self) -> None:
        self._open = True

    def start(self) -> None:
        self._check_open()

    def shutdown(self) -> None:
        self._open = False

    def destroy(self) -> None:
        self._queues.clear()
        self._log.clear()

    def put_message(self, message: Message) -> PutResult:
        self._check_open()
        queue = self._queues.setdefault(QueueKey(message.topic, message.queue_id), [])
        now = self._clock.now_ms()
        record = encode_message(
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=len(queue),
            log_offset=self._end,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=now,
            store_host=message.store_host,
            body=message.body,
            property_bytes=encode_properties(message.properties),
        )
        selected = SelectedMessage(
            queue_offset=len(queue),
            log_offset=self._end,
            tags_code=tags_code(message.properties.get("TAGS")),
            record=record,
        )
        queue.append(selected)
        self._log.append(selected)
        self._end += len(record)
        self._dispatch(message, selected, now)
        return PutResult(
            status=PutStatus.PUT_OK,
            queue_offset=selected.queue_offset,
            log_offset=selected.log_offset,
            size=len(record),
            store_timestamp=now,
        )

    def _dispatch(self, message: Message, selected: SelectedMessage, now: int) -> None:
        request = DispatchRequest(
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=selected.queue_offset,
            log_offset=selected.log_offset,
            size=len(selected.record),
            tags_code=selected.tags_code,
            store_timestamp=now,
            unique_key=message.properties.get("UNIQ_KEY"),
            keys=split_keys(message.properties.get("KEYS")),
        )
        for dispatcher in self._dispatchers:
            dispatcher([request])

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
        end = len(queue)
        found: list[SelectedMessage] = []
        next_offset = offset
        if not queue:
            status, next_offset = GetStatus.NO_MESSAGE_IN_QUEUE, 0
        elif offset < 0:
            status, next_offset = GetStatus.OFFSET_TOO_SMALL, 0
        elif offset == end:
            status = GetStatus.OFFSET_OVERFLOW_ONE
        elif offset > end:
            status, next_offset = GetStatus.OFFSET_OVERFLOW_BADLY, end
        else:
            found = self._window(queue, offset, count_max, bytes_max)
            status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
            next_offset = offset + len(found)
        if message_filter is not None:
            found = [
                one
                for one in found
                if message_filter.matches_tags_code(one.tags_code)
                and message_filter.matches_record(one.record)
            ]
            if status is GetStatus.FOUND and not found:
                status = GetStatus.NO_MATCHED_MESSAGE
        return GetResult(
            status=status, next_offset=next_offset, min_offset=0, max_offset=end, messages=found
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        return 0 if self._queue(topic, queue_id) else None

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        return len(self._queue(topic, queue_id)) or None

    def confirmed_offset(self) -> int:
        return self._end

    def min_log_offset(self) -> int | None:
        return 0 if self._log else None

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        queue = self._queue(topic, queue_id)
        if not queue:
            return None
        times = [decode_message(one.record).store_timestamp for one in queue]
        lower = sum(time < timestamp for time in times)
        same = times.count(timestamp)
        return lower + max(0, same - 1) if boundary is Boundary.UPPER else lower

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queue(topic, queue_id)
        if not 0 <= offset < len(queue):
            return None
        return decode_message(queue[offset].record).store_timestamp

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        messages = self._log if topic is None else self._queue(topic, queue_id)
        return decode_message(messages[0].record).store_timestamp if messages else None

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        self._check_open()
        found = []
        for one in reversed(self._log):
            message = decode_message(one.record)
            has_key = message.unique_key == key or key in message.keys
            if message.topic == topic and has_key and begin <= message.store_timestamp <= end:
                found.append(one)
        return QueryResult(messages=found[:count_max])

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        self._check_open()
        return next((one for one in self._log if one.log_offset == log_offset), None)

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        return 0 <= offset < len(self._queue(topic, queue_id))

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        return self.contains(topic, queue_id, offset)

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        found = self._window(self._queue(topic, queue_id), offset, count_max, bytes_max)
        lengths = np.array([len(one.record) for one in found], dtype=np.int32)
        return MessageRun(
            first_offset=offset,
            log_offsets=np.array([one.log_offset for one in found], dtype=np.int64),
            message_bytes=lengths,
            tags_codes=np.array([one.tags_code for one in found], dtype=np.int64),
            starts=np.cumsum(lengths, dtype=np.int64) - lengths,
            records=b"".join(one.record for one in found),
        )

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.append(dispatcher)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        """Nothing is ever deleted here, so nobody is asked."""

    def queues(self) -> Iterable[QueueKey]:
        return list(self._queues)

    def delete_topics(self, topics: Iterable[str]) -> int:
        wanted = set(topics)
        gone = [key for key in self._queues if key.topic in wanted]
        for key in gone:
            del self._queues[key]
        return len({key.topic for key in gone})

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        kept = set(retained)
        return self.delete_topics({key.topic for key in self._queues} - kept)

    def _queue(self, topic: str, queue_id: int) -> list[SelectedMessage]:
        self._check_open()
        return self._queues.get(QueueKey(topic, queue_id), [])

    def _window(
        self, queue: list[SelectedMessage], offset: int, count_max: int, bytes_max: int
    ) -> list[SelectedMessage]:
        found: list[SelectedMessage] = []
        size = 0
        for one in queue[max(0, offset) :][: max(0, count_max)]:
            size += len(one.record)
            if found and size > bytes_max:
                break
            found.append(one)
        return found

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosedError("the store is not open")
