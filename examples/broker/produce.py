"""Messages of producers: single, in batches, sent back by consumers; and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from struct import Struct
from typing import Final

from examples.broker.commands import INT32_MAX, INT64_MAX, Answer, Code, RefusedError, Request
from examples.broker.frames import FRAME_BYTES_MAX
from examples.broker.query import Queries
from examples.broker.schedule import Schedule
from examples.broker.storage import Storage, moved
from examples.broker.tables import DEAD, RETRY, SCHEDULE, Topics, require_group
from tieredstore import (
    Host,
    Message,
    PutResult,
    PutStatus,
    decode_message,
)
from tieredstore.codec.message import PROPERTY_BYTES_MAX
from tieredstore.codec.record import (
    DELAY_LEVEL,
    INT16,
    TRANSACTION_MASK,
    WAIT_STORE_OK,
    property_bytes_of,
)
from tieredstore.model.errors import BodyNotPlainError
from tieredstore.model.message_body import COMPRESSED, COMPRESSION_MASK

BATCH_MAX: Final = 4_096
BODY_BYTES_MAX: Final = 4 << 20
BATCHES_BYTES_MAX: Final = 128 << 20  # of all batches that wait for the store
MESSAGE_BYTES: Final = 1 << 10  # that a message takes besides its body and properties
RECONSUME_MAX: Final = 16
RETRY_LEVEL: Final = 3  # the delay of the first retry; each later one waits for the next level

RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
PREPARED: Final = "TRAN_MSG"

# Version 2 of a send names its fields by single letters, to be shorter.
_LETTERS: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
_WORDS: Final = {letter: word for word, letter in _LETTERS.items()}

_CODES: Final[Mapping[PutStatus, Code]] = {
    PutStatus.PUT_OK: Code.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: Code.FLUSH_DISK_TIMEOUT,
    PutStatus.MESSAGE_ILLEGAL: Code.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: Code.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: Code.SERVICE_NOT_AVAILABLE,
}

# One message in the body of a batch: total size, magic, CRC, flag, and then the body's length.
_IN_BATCH: Final = Struct(">iiiii")


class Sends:
    """Answers producers whose messages were stored, and consumers that send one back."""

    def __init__(
        self,
        storage: Storage,
        schedule: Schedule,
        topics: Topics,
        queries: Queries,
        address: Host,
    ) -> None:
        """`address` is the broker's own: clients find it in the ids of messages."""
        self._storage = storage
        self._schedule = schedule
        self._topics = topics
        self._queries = queries
        self._address = address
        self._batches_bytes = 0

    async def send(self, request: Request) -> Answer:
        return await self._store(request, _named(request))

    async def send_short(self, request: Request) -> Answer:
        """A send with fields of one letter."""
        fields = {_WORDS.get(name, name): v for name, v in request.command.fields.items()}
        return await self._store(request, _named(request, fields))

    async def send_back(self, request: Request) -> Answer:
        """Store a message once more, for the group that could not consume it.

        After `maxReconsumeTimes` it becomes a dead letter, for people. Records of a tier have other
        log offsets than the ones sent, so the message found must be the one that is named.
        """
        group = require_group(request.text("group"))
        found = await self._queries.find(
            request.number("offset"),
            topic=request.text("originTopic", ""),
            unique_key=request.text("originMsgId", ""),
        )
        if found is None:
            raise RefusedError(Code.SYSTEM_ERROR, "the message that is sent back is not here")
        stored = decode_message(found.record)
        most = request.number("maxReconsumeTimes", RECONSUME_MAX, minimum=-1, maximum=INT32_MAX)
        level = request.number("delayLevel", 0, minimum=-INT32_MAX, maximum=INT32_MAX)
        properties = dict(stored.properties)
        properties.setdefault(RETRY_TOPIC, stored.topic)
        properties.setdefault(ORIGIN_ID, stored.offset_id)
        properties[WAIT_STORE_OK] = "false"
        is_dead = level < 0 or stored.reconsume_times >= (RECONSUME_MAX if most < 0 else most)
        topic = self._topics.to_write((DEAD if is_dead else RETRY) + group, wanted_queues=1)
        if not is_dead:
            properties[DELAY_LEVEL] = str(level or RETRY_LEVEL + stored.reconsume_times)
        queue_id = random.randrange(topic.write_queue_count)
        message = replace(
            moved(stored, topic.name, queue_id, properties),
            store_host=self._address,
            reconsume_times=stored.reconsume_times + 1,
        )
        await self._topics.keep()
        result = (await self._storage.put([self._schedule.place(message)]))[0]
        return Answer(code=_code(result), remark=result.reason or None)

    # -----------------------------------------------------------------------------------------

    async def _store(self, request: Request, named: Request) -> Answer:
        message = self._message(named, request.connection.host)
        if not named.flag("batch"):
            return await self._put([message], message.queue_id)
        messages = list(_in_batch(message))
        # The server counts the bytes that came: of a packed batch, a thousandth of these.
        size = sum(len(each.body) + len(each.properties_text or b"") for each in messages)
        size += MESSAGE_BYTES * len(messages)
        if self._batches_bytes + size > BATCHES_BYTES_MAX:
            raise RefusedError(Code.SYSTEM_BUSY, "too many bytes of batches wait")
        self._batches_bytes += size
        try:
            return await self._put(messages, message.queue_id)
        finally:
            self._batches_bytes -= size

    async def _put(self, messages: Sequence[Message], queue_id: int) -> Answer:
        messages = [self._schedule.place(each) for each in messages]
        for each in messages:
            check(each)
            if len(messages) > 1 and (reason := self._storage.refused(each)) is not None:
                raise RefusedError(Code.MESSAGE_ILLEGAL, reason)
        await self._topics.keep()  # if it is new
        results = await self._storage.put(messages)
        refused = next((result for result in results if not result.stored), None)
        if refused is not None:
            return Answer(code=_code(refused), remark=refused.reason)
        fields = {
            "msgId": ",".join(result.message_id for result in results),
            "queueId": str(queue_id),
            "queueOffset": str(results[0].queue_offset),
        }
        return Answer(code=_code(results[0]), fields=fields)

    def _message(self, named: Request, born_host: Host) -> Message:
        """The message of a send, or what all messages of a batch share."""
        name = named.text("topic")
        if name == SCHEDULE or name.startswith("rmq_sys_"):
            raise RefusedError(Code.NO_PERMISSION, f"{name!r:.140} is the broker's own topic")
        wanted = named.number("defaultTopicQueueNums", 4, maximum=INT32_MAX)
        reconsumed = named.number("reconsumeTimes", 0, maximum=INT32_MAX)
        most = named.number("maxReconsumeTimes", RECONSUME_MAX, minimum=-1, maximum=INT32_MAX)
        if name.startswith(RETRY) and reconsumed > (RECONSUME_MAX if most < 0 else most):
            name = DEAD + name.removeprefix(RETRY)
        topic = self._topics.to_write(name, wanted_queues=wanted)
        queue_id = named.number("queueId", -1, minimum=-1, maximum=INT32_MAX)
        if queue_id >= topic.write_queue_count and name.startswith(DEAD):
            queue_id = -1
        if queue_id >= topic.write_queue_count:
            raise RefusedError(
                Code.SYSTEM_ERROR, f"{name} has no queue {queue_id}, but {topic.write_queue_count}"
            )
        return Message(
            topic=name,
            queue_id=random.randrange(topic.write_queue_count) if queue_id < 0 else queue_id,
            body=named.body,
            properties_text=named.text("properties", "").encode(errors="replace"),
            flag=named.number("flag", 0, minimum=-INT32_MAX - 1, maximum=INT32_MAX),
            sys_flag=named.number("sysFlag", 0, maximum=INT32_MAX),
            born_timestamp=named.number("bornTimestamp", 0, minimum=-INT64_MAX),
            born_host=born_host,
            store_host=self._address,
            reconsume_times=reconsumed,
        )


def _named(request: Request, fields: dict[str, str] | None = None) -> Request:
    """The request with the long field names of version 1."""
    if fields is None:
        return request
    return Request(replace(request.command, fields=fields), request.connection)


def check(message: Message) -> None:
    """Refuse what a store would refuse, since a batch is stored as a whole or not at all.

    Check messages in their stored form: the notes in one that waits count too.
    """
    properties = message.properties
    if message.sys_flag & TRANSACTION_MASK or PREPARED in properties:
        raise RefusedError(Code.NO_PERMISSION, "transactions are not supported")
    if not message.body:
        raise RefusedError(Code.MESSAGE_ILLEGAL, "a message without a body")
    if len(message.body) > BODY_BYTES_MAX:
        raise RefusedError(
            Code.MESSAGE_ILLEGAL, f"{len(message.body)} bytes, more than {BODY_BYTES_MAX}"
        )
    size = len(property_bytes_of(message))
    if size > PROPERTY_BYTES_MAX:
        raise RefusedError(
            Code.MESSAGE_ILLEGAL, f"{size} bytes of properties, more than {PROPERTY_BYTES_MAX}"
        )


def _in_batch(batch: Message) -> Iterator[Message]:
    """The messages in the body of a batch, which the C++ client compresses as a whole."""
    try:
        data = batch.body_decompressed(FRAME_BYTES_MAX)
    except BodyNotPlainError as error:
        raise RefusedError(Code.MESSAGE_ILLEGAL, str(error)) from error
    sys_flag = batch.sys_flag & ~(COMPRESSED | COMPRESSION_MASK)
    at = count = 0
    if not data:
        raise RefusedError(Code.MESSAGE_ILLEGAL, "a batch of no messages")
    while at < len(data):
        count += 1
        body_at = at + _IN_BATCH.size
        if count > BATCH_MAX or body_at > len(data):
            raise RefusedError(Code.MESSAGE_ILLEGAL, f"no batch, or of more than {BATCH_MAX}")
        size, _, _, flag, body_bytes = _IN_BATCH.unpack_from(data, at)
        length_at = body_at + body_bytes
        if body_bytes < 0 or length_at + INT16.size > len(data):
            raise RefusedError(Code.MESSAGE_ILLEGAL, "a message of a batch that does not fit it")
        properties_at = length_at + INT16.size
        end = properties_at + INT16.unpack_from(data, length_at)[0]
        if end != at + size or not properties_at <= end <= len(data):
            raise RefusedError(Code.MESSAGE_ILLEGAL, "a message of a batch that does not add up")
        yield replace(
            batch,
            body=data[body_at:length_at],
            properties_text=data[properties_at:end],
            flag=flag,
            sys_flag=sys_flag,
        )
        at = end


def _code(result: PutResult) -> Code:
    return _CODES.get(result.status, Code.SYSTEM_ERROR)
