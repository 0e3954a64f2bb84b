"""What clients look up: ends of queues, times, keys and single messages."""

from __future__ import annotations

from typing import Final

from examples.broker.commands import INT32_MAX, INT64_MAX, Answer, Code, RefusedError, Request
from examples.broker.storage import Storage
from tieredstore import (
    Boundary,
    InvalidArgumentError,
    QueryResult,
    SegmentCorruptError,
    decode_message,
)
from tieredstore.model.messages import SelectedMessage

COUNT_MAX: Final = 64
ANSWER_BYTES_MAX: Final = 4 << 20


class Queries:
    """Look-ups in both tiers; any of them may have to wait, so each runs in a thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def min_offset(self, request: Request) -> Answer:
        found = await self._storage.call(self._storage.store.min_offset, *_queue(request))
        return Answer(fields={"offset": str(found or 0)})

    async def max_offset(self, request: Request) -> Answer:
        found = await self._storage.call(self._storage.store.max_offset, *_queue(request))
        return Answer(fields={"offset": str(found or 0)})

    async def offset_by_time(self, request: Request) -> Answer:
        upper = request.text("boundaryType", "lower").lower() == "upper"
        found = await self._storage.call(
            self._storage.store.offset_by_time,
            *_queue(request),
            request.number("timestamp", minimum=-INT64_MAX),
            Boundary.UPPER if upper else Boundary.LOWER,
        )
        return Answer(fields={"offset": str(found or 0)})

    async def earliest_time(self, request: Request) -> Answer:
        found = await self._storage.call(self._storage.store.earliest_time, *_queue(request))
        return Answer(fields={"timestamp": str(-1 if found is None else found)})

    async def by_key(self, request: Request) -> Answer:
        """The newest messages with a key, or the one with a unique key."""
        async with request.connection.room():
            found = await self._storage.call(
                self._storage.store.query_message,
                request.text("topic"),
                request.text("key"),
                count_max=min(request.number("maxNum", 32, maximum=INT32_MAX), COUNT_MAX),
                begin=request.number("beginTimestamp", 0, minimum=-INT64_MAX),
                end=request.number("endTimestamp", INT64_MAX, minimum=-INT64_MAX),
            )
        if not found.messages:
            _require_known(found)
            raise RefusedError(Code.QUERY_NOT_FOUND, "no message with this key")
        fields = {
            "indexLastUpdateTimestamp": str(found.indexed_timestamp),
            "indexLastUpdatePhyoffset": str(found.indexed_log_offset),
        }
        records: list[bytes] = []
        size = 0
        for message in found.messages:
            size += len(message.record)
            if records and size > ANSWER_BYTES_MAX:
                break
            records.append(message.record)
        return Answer(fields=fields, body=b"".join(records))

    async def by_id(self, request: Request) -> Answer:
        """The message at a log offset, which is what an id of the broker contains."""
        async with request.connection.room():
            found = await self.find(request.number("offset"), topic=request.text("topic", ""))
        if found is None:
            raise RefusedError(Code.SYSTEM_ERROR, "there is no message at this log offset")
        return Answer(body=found.record)

    async def find(
        self, log_offset: int, *, topic: str = "", unique_key: str = ""
    ) -> SelectedMessage | None:
        """The message at a log offset if it is the named one; else the named one, by its key."""
        store = self._storage.store
        try:
            found = await self._storage.call(store.message_at, log_offset)
        except (SegmentCorruptError, InvalidArgumentError):  # no message begins there
            found = None
        if found is not None:
            stored = decode_message(found.record)
            is_named = not topic or topic in (stored.topic, stored.properties.get("RETRY_TOPIC"))
            has_key = not unique_key or unique_key in (stored.unique_key, stored.offset_id)
            if is_named and has_key:
                return found
        if not (topic and unique_key):
            return None
        by_key = await self._storage.call(store.query_message, topic, unique_key, count_max=1)
        if by_key.messages:
            return by_key.messages[0]
        _require_known(by_key)
        return None


def _require_known(none: QueryResult) -> None:
    """Require certainty that there is no hit: a client that is told so does not ask again."""
    if not (none.complete or none.is_cut):
        raise RefusedError(Code.SYSTEM_BUSY, "there may be one, in what cannot be asked now")


def _queue(request: Request) -> tuple[str, int]:
    return request.text("topic"), request.number("queueId", maximum=INT32_MAX)
