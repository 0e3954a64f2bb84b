"""A broker's own message store, with the tier around it.

    python examples/wrap_your_store.py [folder]

`FileStore` stands for the store that your broker already has: one log file, queues in memory. It
implements the protocol `MessageStore`, which docs/wrap-your-store.md explains. Its test is the
suite that ships: tests/examples/test_own_parts.py.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from tieredstore import (
    Boundary,
    GetResult,
    GetStatus,
    Message,
    MessageFilter,
    MessageRun,
    MessageStore,
    PutResult,
    PutStatus,
    QueryResult,
    QueueKey,
    SegmentCorruptError,
    SelectedMessage,
    SelectedRecord,
    StorageLevel,
    StoreClosedError,
    StoreConfig,
    TieredMessageStore,
    tags_code,
)
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import TRANSACTION_PREPARED, property_bytes_of
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, Dispatcher, RetentionGuard
from tieredstore.model.messages import DispatchRequest
from tieredstore.model.values import INT64_MAX, require_place, require_text

RECORD_BYTES_MAX = 4 * 1024 * 1024


class FileStore(MessageStore):
    """All messages in one file, one record after another; queues are lists in memory."""

    def __init__(self, path: Path, clock_ms: Callable[[], int] | None = None) -> None:
        self._path = path
        self._clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)
        self._guard = threading.RLock()  # any thread may call anything
        self._dispatchers: list[Dispatcher] = []
        self._guards: list[RetentionGuard] = []
        self._is_open = False

    # 1. Life

    def load(self) -> None:
        with self._guard:
            if self._is_open:
                return
            self._log: dict[int, SelectedMessage] = {}  # by log offset, in its order
            self._queues: dict[QueueKey, list[SelectedMessage]] = {}
            self._end = self._confirmed = 0
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._read_all()
                for at, last in list(self._log.items())[-1:]:
                    self._write(last.record, at)  # a sync that failed may have dropped it
                os.ftruncate(self._file, self._end)  # cut off half a record after a crash
                os.fsync(self._file)
                _sync_name(self._path)  # a new file whose name is not synced goes as a whole
            except BaseException:
                os.close(self._file)
                raise
            self._confirmed = self._end
            self._is_open = self._takes_puts = True

    def start(self) -> None:
        self._check_open()

    def shutdown(self) -> None:
        with self._guard:
            if self._is_open:
                os.close(self._file)
                self._is_open = False

    def destroy(self) -> None:
        self._path.unlink(missing_ok=True)

    def _append(self, record: bytes) -> None:
        """Make a record durable. If that fails, nobody knows what the disk has, and a second fsync
        would not tell: nothing may be written behind it before `load` has written it again."""
        self._takes_puts = False
        self._write(record, self._end)
        os.fsync(self._file)
        self._takes_puts = True

    def _write(self, record: bytes, at: int) -> None:
        written = 0
        while written < len(record):  # the system may take fewer bytes than asked
            written += os.pwrite(self._file, record[written:], at + written)

    # 2. Puts: RocketMQ's record, its place in the queue and in the log, then the dispatchers

    def put_message(self, message: Message) -> PutResult:
        require_place(message.topic, message.queue_id)
        with self._guard:
            self._check_open()
            queue = self._queues.get(QueueKey(message.topic, message.queue_id), [])
            now = self._clock_ms()
            try:
                if message.sys_flag & TRANSACTION_PREPARED:
                    raise ValueError("a prepared message has no place in a queue")
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
                    property_bytes=property_bytes_of(message),
                    flag=message.flag,
                    sys_flag=message.sys_flag,
                    reconsume_times=message.reconsume_times,
                    prepared_transaction_offset=message.prepared_transaction_offset,
                )
            except (TypeError, ValueError) as error:
                return PutResult(status=PutStatus.MESSAGE_ILLEGAL, reason=str(error))
            if len(record) > RECORD_BYTES_MAX:
                return PutResult(status=PutStatus.MESSAGE_ILLEGAL, reason="it is too large")
            try:
                if not self._takes_puts:
                    raise OSError("an earlier write failed; shut the store down, and load it")
                self._append(record)
            except OSError as error:
                return PutResult(status=PutStatus.SERVICE_NOT_AVAILABLE, reason=str(error))
            selected = self._add(record)
            self._confirmed = self._end  # the tier uploads only what is confirmed
            request = DispatchRequest(
                topic=message.topic,
                queue_id=message.queue_id,
                queue_offset=selected.queue_offset,
                log_offset=selected.log_offset,
                size=len(record),
                tags_code=selected.tags_code,
                store_timestamp=now,
                unique_key=selected.properties.get("UNIQ_KEY"),
                keys=selected.keys,
            )
            for dispatcher in self._dispatchers:
                dispatcher([request])
        return PutResult(
            status=PutStatus.PUT_OK,
            queue_offset=selected.queue_offset,
            log_offset=selected.log_offset,
            size=len(record),
            store_timestamp=now,
        )

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.append(dispatcher)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        self._guards.append(guard)  # this store deletes nothing; yours must ask before it does

    # 3. Reads

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
        queue = self._queue(topic, queue_id, offset, count_max, bytes_max)
        end = next_offset = len(queue)
        found: list[SelectedMessage] = []
        if not queue:
            status = GetStatus.NO_MESSAGE_IN_QUEUE
        elif offset < 0:
            status, next_offset = GetStatus.OFFSET_TOO_SMALL, 0
        elif offset == end:
            status = GetStatus.OFFSET_OVERFLOW_ONE
        elif offset > end:
            status = GetStatus.OFFSET_OVERFLOW_BADLY
        else:
            found = _page(queue, offset, count_max, bytes_max)
            next_offset = offset + len(found)
            if message_filter is not None:
                found = [one for one in found if _is_wanted(message_filter, one)]
            status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(
            status=status, next_offset=next_offset, min_offset=0, max_offset=end, messages=found
        )

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        queue = self._queue(topic, queue_id, offset, count_max, bytes_max)
        found = _page(queue, offset, count_max, bytes_max) if offset >= 0 else []
        sizes = np.array([len(one.record) for one in found], np.int32)
        return MessageRun(
            first_offset=offset,
            log_offsets=np.array([one.log_offset for one in found], np.int64),
            message_bytes=sizes,
            tags_codes=np.array([one.tags_code for one in found], np.int64),
            starts=np.cumsum(sizes, dtype=np.int64) - sizes,
            records=b"".join(one.record for one in found),
        )

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        with self._guard:
            self._check_open()
            found = self._log.get(log_offset)
        return None if found is None or size not in (None, len(found.record)) else found

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
        found: list[SelectedMessage] = []
        for one in reversed(self._all()):  # yours has an index
            message = decode_message(one.record)
            has_key = key in message.keys or key == message.unique_key
            if has_key and message.topic == topic and begin <= message.store_timestamp <= end:
                found.append(one)
        count = max(0, count_max)
        is_cut = len(found) > count
        return QueryResult(messages=found[:count], complete=not is_cut, is_cut=is_cut)

    # 4. Where queues and the log begin and end, and search by time

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        return 0 if self._queue(topic, queue_id) else None

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        return len(self._queue(topic, queue_id)) or None

    def confirmed_offset(self) -> int:
        with self._guard:
            self._check_open()
            return self._confirmed

    def min_log_offset(self) -> int | None:
        return 0 if self._all() else None

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        times = [one.store_timestamp for one in self._queue(topic, queue_id, timestamp)]
        if not times:
            return None
        found = sum(time < timestamp for time in times)
        exact = times.count(timestamp) if boundary is Boundary.UPPER else 0
        return found + max(0, exact - 1)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queue(topic, queue_id, offset)
        return queue[offset].store_timestamp if 0 <= offset < len(queue) else None

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        messages = self._all() if topic is None else self._queue(topic, queue_id)
        return messages[0].store_timestamp if messages else None

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        return 0 <= offset < len(self._queue(topic, queue_id, offset))

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        return self.contains(topic, queue_id, offset)

    # 5. Topics

    def queues(self) -> Iterable[QueueKey]:
        with self._guard:
            self._check_open()
            return list(self._queues)

    def delete_topics(self, topics: Iterable[str]) -> int:
        topics = set(topics)
        require_text("topic", *topics)
        with self._guard:
            self._check_open()
            gone = [key for key in self._queues if key.topic in topics]
            for key in gone:
                for one in self._queues.pop(key):
                    del self._log[one.log_offset]
            return len({key.topic for key in gone})  # the toy forgets this when it is closed

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        return self.delete_topics({key.topic for key in self.queues()}.difference(retained))

    def _read_all(self) -> None:
        """Take in the records of the file, up to the first incomplete one. A damaged one is half
        written only if it is the last: otherwise to cut it off would lose those behind it."""
        with open(self._file, "rb", closefd=False) as file:
            while len(head := file.read(4)) == 4:
                size = int.from_bytes(head)
                record = head + file.read(max(0, min(size, RECORD_BYTES_MAX) - 4))
                if len(record) != size:
                    return
                try:
                    self._add(record)
                except SegmentCorruptError:
                    if file.read(1):
                        raise
                    return

    def _add(self, record: bytes) -> SelectedMessage:
        message = decode_message(record)
        queue = self._queues.setdefault(QueueKey(message.topic, message.queue_id), [])
        selected = SelectedRecord(
            queue_offset=len(queue),
            log_offset=self._end,
            tags_code=tags_code(message.tags),
            record=record,
        )
        queue.append(selected)
        self._log[self._end] = selected
        self._end += len(record)
        return selected

    def _queue(self, topic: str, queue_id: int, *numbers: int) -> list[SelectedMessage]:
        require_place(topic, queue_id, *numbers)
        with self._guard:
            self._check_open()
            return list(self._queues.get(QueueKey(topic, queue_id), ()))

    def _all(self) -> list[SelectedMessage]:
        with self._guard:
            self._check_open()
            return list(self._log.values())

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the store is not open")


def _sync_name(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _page(
    queue: list[SelectedMessage], offset: int, count_max: int, bytes_max: int
) -> list[SelectedMessage]:
    """A page with as many messages as fit, at least one."""
    found: list[SelectedMessage] = []
    left = bytes_max
    for one in queue[offset:][: max(0, count_max)]:
        left -= len(one.record)
        if found and left < 0:
            break
        found.append(one)
    return found


def _is_wanted(message_filter: MessageFilter, one: SelectedMessage) -> bool:
    return message_filter.matches_tags_code(one.tags_code) and message_filter.matches_record(
        one.record
    )


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = StoreConfig(
        broker_name="my-broker",
        provider="posix",  # a folder; without a provider the tier is in memory
        path=str(folder / "tier"),
        store_path=str(folder / "local"),
        storage_level=StorageLevel.FORCE,  # reads ask the tier first, to show that it works
    )
    with TieredMessageStore(FileStore(folder / "messages.log"), config) as store:
        for number in range(10):
            body = f"order {number}".encode()
            properties = {"KEYS": f"order-{number}"}
            store.put_message(Message(topic="orders", queue_id=0, body=body, properties=properties))
        assert store.flush()
        print(store.committed_offset("orders", 0), "messages are in the tier")
        page = store.get_message("orders", 0, 7)
        print("from offset 7 on:", [each.body for each in page.messages])
        print("by key:", [each.body for each in store.query_message("orders", "order-3").messages])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
