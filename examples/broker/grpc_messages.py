"""Messages of RocketMQ's gRPC as the store has them, and back: names, properties, bodies, times."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import zlib
from typing import Any, Final

from examples.broker.commands import Code, RefusedError
from examples.broker.produce import BODY_BYTES_MAX
from examples.broker.receive import DEAD_ID, DEAD_TOPIC, Delivery
from examples.broker.schedule import DELIVER_MS
from tieredstore import Host, Message, TieredStoreError, decode_message
from tieredstore.codec.message import PROPERTY_BYTES_MAX
from tieredstore.codec.record import (
    DELAY_LEVEL,
    INNER_COUNT,
    KEYS,
    LIGHT_OFFSETS,
    LIGHT_QUEUES,
    TAGS,
    UNIQUE_KEY,
    WAIT_STORE_OK,
    encode_properties,
    split_keys,
)

NAME_CHARACTERS_MAX: Final = 255
TEXT_CHARACTERS_MAX: Final = 1_024

_GROUP_KEY: Final = "__SHARDINGKEY"
_TRACE: Final = "TRACE_CONTEXT"
_BORN_HOST: Final = "__BORNHOST"
# Names that RocketMQ itself uses: no user's property may have one.
SYSTEM_NAMES: Final = frozenset(
    {
        *(KEYS, TAGS, UNIQUE_KEY, WAIT_STORE_OK, DELAY_LEVEL, DELIVER_MS, DEAD_TOPIC, DEAD_ID),
        *(_GROUP_KEY, _TRACE, _BORN_HOST, INNER_COUNT, LIGHT_QUEUES, LIGHT_OFFSETS),
        *("RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET"),
        *("MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG"),
        *("MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "EXTEND_UNIQ_INFO"),
        *("MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "INNER_BASE", "DUP_INFO"),
        *("CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__"),
        *("TRANSACTION_CHECK_TIMES", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"),
        *("ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "POP_CK", "POP_CK_OFFSET"),
        *("1ST_POP_TIME", "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "BORN_TIMESTAMP"),
        *("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
        *("TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL"),
        *("__CRC32#",),
    }
)
_FIELDS: Final = {TAGS: "tag", _GROUP_KEY: "message_group", _TRACE: "trace_context"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ENDS: Final = re.compile(r"[\x01\x02]")  # they end names and values in a record
_MS_MAX: Final = 253_402_300_799_999  # the last moment of the year 9999


class GrpcRefusal(RefusedError):
    """A request that is answered with the named code of the protocol."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(Code.SYSTEM_ERROR, reason)
        self.name = name


def full_name(resource: Any) -> str:
    """The name of a topic or a group with its namespace in front, as RocketMQ writes it."""
    space = resource.resource_namespace
    return f"{space}%{resource.name}" if space else str(resource.name)


class Messages:
    """Converts messages between the two forms; `pb` is the module of the definitions."""

    def __init__(self, pb: Any, address: Host) -> None:
        """`address` is the broker's own."""
        self._pb = pb
        self._address = address

    def taken(self, given: Any, topic: str, queue_id: int, born_host: Host) -> Message:
        """The message of a producer. Raises RefusedError."""
        pb, system = self._pb, given.system_properties
        kinds = (pb.MESSAGE_TYPE_UNSPECIFIED, pb.NORMAL, pb.FIFO, pb.DELAY)
        if system.message_type not in kinds:
            raise GrpcRefusal("UNSUPPORTED", "transactions, lite topics and priorities are not")
        properties = self._of_system(system)
        for name, text in given.user_properties.items():
            if name in SYSTEM_NAMES or not _is_plain(name) or _ENDS.search(text):
                raise GrpcRefusal("ILLEGAL_MESSAGE_PROPERTY_KEY", f"the property {name!r:.80}")
            properties[name] = text
        text = encode_properties(properties)
        if len(text) > PROPERTY_BYTES_MAX:
            raise GrpcRefusal(
                "MESSAGE_PROPERTIES_TOO_LARGE", f"{len(text)} bytes, more than {PROPERTY_BYTES_MAX}"
            )
        return Message(
            topic=topic,
            queue_id=queue_id,
            body=self._plain(given),
            properties_text=text,
            born_timestamp=max(0, _ms(system.born_timestamp)),
            born_host=born_host,
            store_host=self._address,
        )

    def given(self, delivery: Delivery, topic: Any, seconds: float) -> Any:
        """The message for a consumer, with its body as its producer made it."""
        pb, stored = self._pb, decode_message(delivery.message.record)
        known = stored.properties
        encoding = pb.IDENTITY
        try:
            body = stored.body_decompressed(BODY_BYTES_MAX * 4)
        except TieredStoreError:  # the consumer will judge it
            body, encoding = stored.body, pb.GZIP
        kind = pb.FIFO if _GROUP_KEY in known else pb.DELAY if DELIVER_MS in known else pb.NORMAL
        message = pb.Message(topic=topic, body=body)
        system = message.system_properties
        system.message_id = known.get(UNIQUE_KEY) or stored.offset_id
        # The only checksum that all clients write alike.
        system.body_digest.type = pb.MD5
        system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
        system.body_encoding = encoding
        system.message_type = kind
        system.born_timestamp.FromMilliseconds(_moment(stored.born_timestamp))
        system.born_host = str(ipaddress.ip_address(stored.born_host.address))
        system.store_timestamp.FromMilliseconds(_moment(stored.store_timestamp))
        system.store_host = f"{ipaddress.ip_address(stored.store_host.address)}"
        system.queue_id = stored.queue_id
        system.queue_offset = delivery.message.queue_offset
        system.receipt_handle = delivery.handle
        system.delivery_attempt = delivery.attempt
        system.invisible_duration.FromNanoseconds(int(seconds * 1e9))
        system.keys.extend(split_keys(known.get(KEYS)))
        for name, field in (
            (TAGS, "tag"),
            (_GROUP_KEY, "message_group"),
            (_TRACE, "trace_context"),
        ):
            if name in known:
                setattr(system, field, known[name])
        deliver_ms = known.get(DELIVER_MS, "")
        if deliver_ms.isascii() and deliver_ms.isdigit() and len(deliver_ms) < 15:
            system.delivery_timestamp.FromMilliseconds(int(deliver_ms))
        if DEAD_TOPIC in known:
            system.dead_letter_queue.topic = known[DEAD_TOPIC]
            system.dead_letter_queue.message_id = known.get(DEAD_ID, "")
        for name, text in known.items():
            if name not in SYSTEM_NAMES:
                message.user_properties[name] = text
        return message

    def _of_system(self, system: Any) -> dict[str, str]:
        """Tag, keys, id, order and time, under RocketMQ's own names."""
        properties = {}
        if not _is_plain(system.message_id):
            raise GrpcRefusal("ILLEGAL_MESSAGE_ID", f"the id {system.message_id!r:.80}")
        properties[UNIQUE_KEY] = system.message_id
        if system.HasField("tag"):
            if not _is_plain(system.tag) or "|" in system.tag:
                raise GrpcRefusal("ILLEGAL_MESSAGE_TAG", f"the tag {system.tag!r:.80}")
            properties[TAGS] = system.tag
        if system.keys:
            if not all(_is_plain(key) for key in system.keys):
                raise GrpcRefusal("ILLEGAL_MESSAGE_KEY", "a key that is empty or has odd letters")
            properties[KEYS] = " ".join(system.keys)
        if system.HasField("message_group"):
            if not _is_plain(system.message_group):
                raise GrpcRefusal("ILLEGAL_MESSAGE_GROUP", f"{system.message_group!r:.80}")
            properties[_GROUP_KEY] = system.message_group
        if system.HasField("trace_context") and _is_plain(system.trace_context):
            properties[_TRACE] = system.trace_context
        if system.HasField("delivery_timestamp"):
            if system.HasField("message_group"):
                raise GrpcRefusal(
                    "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", "a time, and an order with others"
                )
            properties[DELIVER_MS] = str(max(0, _ms(system.delivery_timestamp)))
        return properties

    def _plain(self, given: Any) -> bytes:
        """The body, unpacked if a producer packed it: consumers differ in what they can unpack."""
        body: bytes = given.body
        if given.system_properties.body_encoding == self._pb.GZIP:
            opened = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # of zlib or of gzip
            try:
                body = opened.decompress(body, BODY_BYTES_MAX + 1)
            except zlib.error as error:
                raise GrpcRefusal("MESSAGE_CORRUPTED", f"the packed body: {error}") from error
            if not opened.eof and len(body) <= BODY_BYTES_MAX:
                raise GrpcRefusal("MESSAGE_CORRUPTED", "the packed body ends too early")
        if not body:
            raise GrpcRefusal("MESSAGE_BODY_EMPTY", "a message without a body")
        if len(body) > BODY_BYTES_MAX:
            raise GrpcRefusal("MESSAGE_BODY_TOO_LARGE", f"a body of more than {BODY_BYTES_MAX}")
        return body


def _is_plain(text: str) -> bool:
    return bool(text.strip()) and len(text) <= TEXT_CHARACTERS_MAX and not _CONTROL.search(text)


def _moment(ms: int) -> int:
    return min(max(ms, 0), _MS_MAX)


def _ms(time: Any) -> int:
    return int(time.seconds * 1_000 + time.nanos // 1_000_000)
