"""One message as a batch of one record; and the refusal of what cannot be one.

What lives here: `RecordEncoder` and `PutRefusedError`. Encoding happens before any lock is taken.
The layout is that of `tieredstore.codec.message`, which is also what checks values: the shorter way
here is for the messages that pass. Many usual messages at once are for `batch_encoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import error
from typing import Final

from tieredstore.codec.checksum import reserve_property_crc
from tieredstore.codec.crc32 import crc32
from tieredstore.codec.end_marks import BLANK_BYTES
from tieredstore.codec.java import encode_utf8
from tieredstore.codec.message import (
    FIXED_LAYOUTS,
    PROPERTY_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
    encode_message,
)
from tieredstore.codec.properties import (
    DELAY_LEVEL,
    INNER_COUNT,
    KEYS,
    LIGHT_OFFSETS,
    LIGHT_QUEUES,
    NAME_END,
    TAGS,
    UNIQUE_KEY,
    VALUE_END,
    WAIT_STORE_OK,
    decode_properties,
    encode_properties,
    tags_code,
)
from tieredstore.codec.record_fields import (
    BORN_HOST_IPV6,
    HOSTS_IPV6,
    INNER_BATCH,
    INT8,
    INT16,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_HOST_IPV6,
    TRANSACTION_PREPARED,
)
from tieredstore.local.config import LocalConfig
from tieredstore.local.delay_levels import DelayLevels
from tieredstore.local.records.record_batch import RecordBatch
from tieredstore.model.errors import InvalidArgumentError, TieredStoreError
from tieredstore.model.messages import Message
from tieredstore.model.topics import why_no_topic
from tieredstore.model.values import INT32_MAX, PutStatus, require_place, require_whole

RECORD_EXTRA_BYTES: Final = 64 * 1024

code_of_tags = lru_cache(maxsize=4096)(tags_code)
# By the lengths of both addresses: host bits and the fixed part of the record.
LAYOUTS: Final = {
    (4, 4): (0, FIXED_LAYOUTS[0]),
    (16, 4): (BORN_HOST_IPV6, FIXED_LAYOUTS[BORN_HOST_IPV6]),
    (4, 16): (STORE_HOST_IPV6, FIXED_LAYOUTS[STORE_HOST_IPV6]),
    (16, 16): (HOSTS_IPV6, FIXED_LAYOUTS[HOSTS_IPV6]),
}
# What no producer may send: the store would have to write it, and rebuilding queues believes it.
NEVER_SENT: Final = {
    INNER_COUNT: "inner batches are not stored here",
    LIGHT_QUEUES: "light queues are not written here",
    LIGHT_OFFSETS: "only a store can give it",
}
UNUSUAL: Final = frozenset({DELAY_LEVEL, *NEVER_SENT})
_NO_DELAYS: Final[Mapping[int, int]] = {}
_length: Final = INT16.pack


class PutRefusedError(TieredStoreError):
    """The message was not stored: nothing was written. `status` and `reason` say why."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class RecordEncoder:
    """Makes records of messages, or refuses them before anything is written."""

    def __init__(self, config: LocalConfig, *, batch_topics: frozenset[str] = frozenset()) -> None:
        """`batch_topics` have queues of Java's batch kind: a plain queue beside them is no use."""
        self.batch_topics = batch_topics
        self.body_bytes_max = config.message_bytes_max
        self.total_bytes_max = min(
            config.message_bytes_max + RECORD_EXTRA_BYTES,
            config.commit_log_file_bytes - BLANK_BYTES,
        )
        self.never_sent: Mapping[str, str] = NEVER_SENT
        self._property_crc = config.property_crc_enabled
        self._delays = DelayLevels(config.message_delay_levels)

    def encode(self, message: Message) -> RecordBatch:
        """Raises PutRefusedError with the status that RocketMQ would answer."""
        try:
            return self._encoded(message)
        except (AttributeError, TypeError, ValueError) as error:
            raise _wrong_kind(message, error) from error

    def _encoded(self, message: Message) -> RecordBatch:
        properties = message.properties
        property_bytes, plain = _property_string(properties)
        if not plain:
            properties = decode_properties(property_bytes)  # halves of characters became "?"
        if self._property_crc:
            property_bytes = reserve_property_crc(property_bytes)
        if len(property_bytes) > PROPERTY_BYTES_MAX:
            raise PutRefusedError(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                f"properties: {len(property_bytes)} bytes are more than {PROPERTY_BYTES_MAX}",
            )
        if message.topic in self.batch_topics:
            raise _illegal(
                f"topic: {message.topic!r:.80} has batch queues, which are not written here"
            )
        batch = RecordBatch()
        batch.data, sys_flag = self._record(message, property_bytes)
        find = properties.get
        tags = find(TAGS)
        in_queue = not sys_flag & TRANSACTION_PREPARED  # rolled back has this bit too
        batch.sizes = (len(batch.data),)
        batch.topics = (message.topic,)
        batch.queue_ids = (message.queue_id,)
        batch.sys_flags = (sys_flag,)
        batch.in_queue = (in_queue,)
        batch.tags_hashes = (code_of_tags(tags) if tags else 0,)
        batch.unique_keys = (find(UNIQUE_KEY) or None,)
        batch.keys = (find(KEYS),)
        batch.is_of_one_queue = in_queue
        batch.waits_for_disk = waits_for_disk(find(WAIT_STORE_OK))
        batch.has_property_crc = self._property_crc
        batch.delays_ms = _NO_DELAYS
        if not UNUSUAL.isdisjoint(properties):
            batch.delays_ms = self._delays_of(message.topic, properties)
            for name, reason in self.never_sent.items():
                if name in properties:
                    raise _illegal(f"property {name}: {reason}")
        return batch

    def _record(self, message: Message, property_bytes: bytes) -> tuple[bytearray, int]:
        """The bytes, and the flag in them; the layout wants its values in a row."""
        body = message.body
        if type(body) is not bytes:
            body = _bytes_of(body)
        body_bytes = len(body)
        if body_bytes > self.body_bytes_max:
            raise _illegal(f"body: {body_bytes} bytes are more than {self.body_bytes_max}")
        magic, topic_bytes = topic_field(message.topic)
        queue_id = message.queue_id
        sys_flag = message.sys_flag
        if type(queue_id) is not int:
            require_whole(queue_id)
        if queue_id < 0 or sys_flag & INNER_BATCH:
            raise _illegal("a queue id below 0, or an inner batch: not stored here")
        born, born_port = message.born_host
        store, store_port = message.store_host
        property_count = len(property_bytes)
        # fmt: off
        try:
            bits, layout = LAYOUTS[len(born), len(store)]
            sys_flag = sys_flag & ~HOSTS_IPV6 | bits
            total_bytes = layout.size + body_bytes + len(topic_bytes) + 2 + property_count
            if total_bytes > self.total_bytes_max:
                raise _illegal(f"a record of {total_bytes} bytes is more than the "
                               f"{self.total_bytes_max} that a message and a file allow")
            return bytearray().join((
                layout.pack(
                    total_bytes, magic, crc32(body) & INT32_MAX, queue_id, message.flag, 0, 0,
                    sys_flag, message.born_timestamp, born, born_port, 0, store, store_port,
                    message.reconsume_times, message.prepared_transaction_offset, body_bytes,
                ),
                body, topic_bytes, _length(property_count), property_bytes,
            )), sys_flag
        except (KeyError, error) as misfit:
            raise _explained(message) from misfit
        # fmt: on

    def _delays_of(self, topic: str, properties: Mapping[str, str]) -> Mapping[int, int]:
        try:
            delay = self._delays.delay_ms(topic, properties)
        except ValueError as reason:
            raise _illegal(str(reason)) from reason
        return _NO_DELAYS if delay is None else {0: delay}


def waits_for_disk(wait: str | None) -> bool:
    """What the property WAIT says: only another word than true does not wait."""
    return not wait or wait.lower() == "true"


def _property_string(properties: Mapping[str, str]) -> tuple[bytes, bool]:
    """The bytes of `encode_properties`, without a look at each name and value if that can be.

    And whether they certainly come back as the same properties.
    """
    count = len(properties)
    if not count:
        return b"", True
    text = VALUE_END.join(map(NAME_END.join, properties.items())) + VALUE_END
    if text.count("\x02") != count or text.count("\x01") != count or "" in properties:
        try:
            return encode_properties(properties), False
        except ValueError as reason:
            raise _illegal(str(reason)) from reason
    return (text.encode(), True) if text.isascii() else (encode_utf8(text), False)


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> tuple[int, bytes]:
    """The magic and the bytes of a topic, its length before it."""
    if reason := why_no_topic(topic):
        raise _illegal(f"topic: {topic!r:.80}: {reason}")
    raw = topic.encode()
    if len(raw) <= TOPIC_BYTES_MAX_V1:
        return MESSAGE_MAGIC_V1, INT8.pack(len(raw)) + raw
    return MESSAGE_MAGIC_V2, INT16.pack(len(raw)) + raw


def _illegal(reason: str) -> PutRefusedError:
    return PutRefusedError(PutStatus.MESSAGE_ILLEGAL, reason)


def _wrong_kind(message: Message, error: Exception) -> PutRefusedError:
    """The refusal of what is no message, or has something in it that no message has."""
    try:
        require_place(message.topic, message.queue_id)
    except (AttributeError, InvalidArgumentError) as reason:
        return _illegal(str(reason))
    return _illegal(f"something in it is of the wrong kind: {error}")


def _bytes_of(body: object) -> bytes:
    """What a view or an array holds: its length may count other things than bytes."""
    try:
        return memoryview(body).tobytes()  # type: ignore[arg-type]
    except TypeError as reason:
        raise _illegal(f"body: {reason}") from reason


def _explained(message: Message) -> PutRefusedError:
    """The refusal that names the field which does not fit."""
    try:
        encode_message(
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=0,
            log_offset=0,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=0,
            store_host=message.store_host,
            flag=message.flag,
            sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
    except ValueError as reason:
        return _illegal(str(reason))
    return _illegal("the message does not fit a record")
