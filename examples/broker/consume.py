"""Messages to consumers: pulls that wait for messages, tags, and how far each group is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from examples.broker.commands import INT32_MAX, INT64_MAX, Answer, Code, RefusedError, Request
from examples.broker.groups import Groups
from examples.broker.storage import Storage
from examples.broker.tables import READ, Topics, require_group
from tieredstore import (
    ConsumerOffsets,
    GetResult,
    GetStatus,
    InvalidArgumentError,
    MessageFilter,
    QueueKey,
    TopicConfig,
    filter_of,
)

if TYPE_CHECKING:
    from examples.broker.server import Connection

COUNT_MAX: Final = 1_024
WAIT_SECONDS_MAX: Final = 60.0
WAITING_MAX: Final = 100_000
EXPRESSION_CHARACTERS_MAX: Final = 16 << 10

_COMMITS: Final = 1
_WAITS: Final = 2
_SUBSCRIBES: Final = 4

_CODES: Final[Mapping[GetStatus, Code]] = {
    GetStatus.FOUND: Code.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: Code.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: Code.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: Code.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: Code.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: Code.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: Code.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: Code.PULL_OFFSET_MOVED,
}


@lru_cache(maxsize=1_024)  # each pull sends it again
def chosen_by(expression: str, kind: str) -> MessageFilter | None:
    """Tags, or a condition in SQL92; None for all messages."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise RefusedError(Code.SUBSCRIPTION_PARSE_FAILED, "an expression that is too long")
    try:
        return filter_of(expression, kind)
    except InvalidArgumentError as error:
        raise RefusedError(Code.SUBSCRIPTION_PARSE_FAILED, str(error)) from error


class Pulls:
    """Answers pulls at once if there are messages, else when some arrive or time is up."""

    def __init__(
        self,
        storage: Storage,
        topics: Topics,
        offsets: ConsumerOffsets,
        groups: Groups,
    ) -> None:
        self._storage = storage
        self._topics = topics
        self._offsets = offsets
        self._groups = groups
        self._waiting: dict[Connection, set[asyncio.Task[bool]]] = {}
        self._count = 0  # of all these
        self._is_over = False

    @property
    def waiting(self) -> int:
        """How many pulls wait for a message."""
        return self._count

    def end(self) -> None:
        """End all waits: every pull is answered with what there is."""
        self._is_over = True
        for connection in self._waiting:
            self.left(connection)

    def left(self, connection: Connection) -> None:
        """End the waits of a client that is gone: it gets no answer, and others need the room."""
        for coming in self._waiting.get(connection, ()):
            coming.cancel()

    async def pull(self, request: Request) -> Answer:
        group = require_group(request.text("consumerGroup"))
        key = QueueKey(request.text("topic"), request.number("queueId", maximum=INT32_MAX))
        if not self._require_queue(key).perm & READ:
            raise RefusedError(Code.NO_PERMISSION, f"{key.topic}: reading is forbidden")
        flags = request.number("sysFlag", 0, maximum=INT32_MAX)
        chosen = self._filter(request, group, key.topic, given=bool(flags & _SUBSCRIBES))
        if flags & _COMMITS:
            committed = request.number("commitOffset", 0, minimum=-1)
            if committed > 0:
                self._offsets.commit(group, *key, committed)
        offset = request.number("queueOffset", minimum=-INT64_MAX)
        count = request.number("maxMsgNums", 32, maximum=INT32_MAX)
        loop = asyncio.get_running_loop()
        until = loop.time()
        if flags & _WAITS:
            wait_ms = request.number("suspendTimeoutMillis", 15_000, maximum=INT32_MAX)
            until += min(wait_ms / 1000, WAIT_SECONDS_MAX)
        while True:
            # Nothing is read for a client that does not take its answers.
            async with request.connection.room():
                found = await self._storage.get(
                    *key,
                    offset,
                    count_max=max(1, min(count, COUNT_MAX)),
                    message_filter=chosen,
                    group=group,
                )
            code = _code(found, offset)
            # Waiting for an empty place within the queue would be in vain.
            waits = code is Code.PULL_NOT_FOUND and offset >= found.max_offset
            if not waits or not await self._arrival(request, key, offset, until - loop.time()):
                return _answer(code, found)

    def offset_of_group(self, request: Request) -> Answer | None:
        found = self._offsets.get(
            request.text("consumerGroup"),
            request.text("topic"),
            request.number("queueId", maximum=INT32_MAX),
        )
        return None if found is None else Answer(fields={"offset": str(found)})

    async def consumer_offset(self, request: Request) -> Answer:
        """Where a group continues.

        A new group begins at 0 while the queue does and is young; else the client decides. As in
        RocketMQ, a client that wants only the new messages of an old queue does not get all.
        """
        known = self.offset_of_group(request)
        if known is not None:
            return known
        key = request.text("topic"), request.number("queueId", maximum=INT32_MAX)
        if request.flag("setZeroIfNotFound", default=True):
            store = self._storage.store
            if await self._storage.call(store.in_memory, *key, 0):
                return Answer(fields={"offset": "0"})
        raise RefusedError(Code.QUERY_NOT_FOUND, "the group has not consumed this queue")

    def commit(self, request: Request) -> Answer:
        group = require_group(request.text("consumerGroup"))
        key = QueueKey(request.text("topic"), request.number("queueId", maximum=INT32_MAX))
        self._require_queue(key)  # the table has room for only so many, and keeps them
        self._offsets.commit(group, *key, request.number("commitOffset"))
        return Answer()

    def check_filter(self, request: Request) -> Answer:
        """A consumer that filters by more than tags sends this before it starts."""
        subscription = request.json().get("subscriptionData") or {}
        if not isinstance(subscription, dict):
            raise RefusedError(Code.SUBSCRIPTION_PARSE_FAILED, "no subscription")
        kind = subscription.get("expressionType") or "TAG"
        chosen_by(str(subscription.get("subString", "*")), str(kind))
        return Answer()

    # -----------------------------------------------------------------------------------------

    async def _arrival(self, request: Request, key: QueueKey, offset: int, seconds: float) -> bool:
        """Whether a message has come for this pull."""
        is_full = self._is_over or self._count >= WAITING_MAX
        if is_full or seconds <= 0 or not request.connection.is_open:
            return False
        coming = asyncio.create_task(self._storage.arrival(key, offset, seconds))
        waiting = self._waiting.setdefault(request.connection, set())
        waiting.add(coming)
        self._count += 1
        try:
            await asyncio.wait([coming])
            return not coming.cancelled() and coming.result()
        finally:
            self._count -= 1
            waiting.discard(coming)
            if not waiting:
                self._waiting.pop(request.connection, None)
            coming.cancel()

    def _require_queue(self, key: QueueKey) -> TopicConfig:
        topic = self._topics.get(key.topic)
        if topic is None:
            raise RefusedError(Code.TOPIC_NOT_EXIST, f"there is no topic {key.topic!r:.140}")
        if key.queue_id >= topic.read_queue_count:
            raise RefusedError(
                Code.SYSTEM_ERROR,
                f"{key.topic} has no queue {key.queue_id}, but {topic.read_queue_count}",
            )
        return topic

    def _filter(
        self, request: Request, group: str, topic: str, *, given: bool
    ) -> MessageFilter | None:
        """The filter in the pull, or else that of the group's heartbeats."""
        if given:
            return chosen_by(request.text("subscription", "*"), request.text("expressionType", ""))
        known = self._groups.subscription(group, topic)
        if known is None:
            raise RefusedError(
                Code.SUBSCRIPTION_NOT_EXIST, f"{group} has not said what it wants of {topic}"
            )
        return chosen_by(*known)


def _code(found: GetResult, offset: int) -> Code:
    if found.status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        return Code.PULL_NOT_FOUND if offset == found.next_offset else Code.PULL_OFFSET_MOVED
    return _CODES.get(found.status, Code.PULL_NOT_FOUND)


def _answer(code: Code, found: GetResult) -> Answer:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(found.next_offset),
        "minOffset": str(found.min_offset),
        "maxOffset": str(found.max_offset),
    }
    remark = None if code is Code.SUCCESS else found.status.name
    body = found.records()
    return Answer(code=code, fields=fields, body=body, remark=remark)
