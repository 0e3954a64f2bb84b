"""A message as bytes that only lack what the log gives them; and the refusal of what cannot be one.

What lives here: `PendingRecord`, `RecordEncoder` and `PutRefusedError`. Encoding happens before any
lock is taken. The layout is that of `tieredstore.codec.message`, which is also what checks values:
the shorter way here is for the messages that pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct, error
from typing import Final
from zlib import crc32

from tieredstore.codec.checksum import fill_property_crc, reserve_property_crc
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
    NAME_END,
    TAGS,
    UNIQUE_KEY,
    VALUE_END,
    WAIT_STORE_OK,
    decode_properties,
    encode_properties,
    split_keys,
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
    QUEUE_OFFSET_POSITION,
    STORE_HOST_IPV6,
    TRANSACTION_PREPARED,
)
from tieredstore.local.config import LocalConfig
from tieredstore.local.delay_levels import DelayLevels
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.messages import Message
from tieredstore.model.values import INT32_MAX, PutStatus

RECORD_EXTRA_BYTES: Final = 64 * 1024
TOPIC_BYTES_MAX: Final = 255
OFFSETS: Final = Struct(">qq")  # queue offset and log offset lie side by side
STORE_TIMESTAMP: Final = Struct(">q")

_code_of_tags = lru_cache(maxsize=4096)(tags_code)
# By the lengths of both addresses: host bits, fixed part of the record, place of the store time.
_LAYOUTS: Final = {
    (4, 4): (0, FIXED_LAYOUTS[0], 56),
    (16, 4): (BORN_HOST_IPV6, FIXED_LAYOUTS[BORN_HOST_IPV6], 68),
    (4, 16): (STORE_HOST_IPV6, FIXED_LAYOUTS[STORE_HOST_IPV6], 56),
    (16, 16): (HOSTS_IPV6, FIXED_LAYOUTS[HOSTS_IPV6], 68),
}
_length: Final = INT16.pack


class PutRefusedError(TieredStoreError):
    """The message was not stored: nothing was written. `status` and `reason` say why."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class PendingRecord:
    """The bytes of one message before the log adds two offsets, the store time and a CRC.

    Nothing in it changes: a record that was refused by one log can be given to another. What is
    said of it (keys, tags) is what a reader of the bytes would find.
    """

    __slots__ = (
        *("data", "delay_ms", "has_property_crc", "in_queue", "keys_text", "queue_id"),
        *("store_timestamp_position", "sys_flag", "tags_hash", "topic", "unique_key"),
        "waits_for_disk",
    )

    data: bytes
    topic: str
    queue_id: int
    sys_flag: int
    in_queue: bool  # False if prepared or rolled back: such a message has no queue offset
    unique_key: str | None
    waits_for_disk: bool
    delay_ms: int | None
    store_timestamp_position: int
    has_property_crc: bool
    keys_text: str | None  # the single keys with spaces between them
    tags_hash: int

    def __len__(self) -> int:
        return len(self.data)

    @property
    def keys(self) -> tuple[str, ...]:
        return split_keys(self.keys_text)

    def tags_code(self, store_timestamp: int) -> int:
        """What the consume queue stores beside it: a delayed message its delivery time."""
        if self.delay_ms is not None:
            return store_timestamp + self.delay_ms
        return self.tags_hash

    def patched(self, *, queue_offset: int, log_offset: int, store_timestamp: int) -> bytearray:
        """The record as the log holds it."""
        record = bytearray(self.data)
        if not self.in_queue:
            queue_offset = 0
        OFFSETS.pack_into(record, QUEUE_OFFSET_POSITION, queue_offset, log_offset)
        STORE_TIMESTAMP.pack_into(record, self.store_timestamp_position, store_timestamp)
        if self.has_property_crc:
            fill_property_crc(record)
        return record


class RecordEncoder:
    """Makes records of messages, or refuses them before anything is written."""

    def __init__(self, config: LocalConfig) -> None:
        self._body_bytes_max = config.message_bytes_max
        self._total_bytes_max = min(
            config.message_bytes_max + RECORD_EXTRA_BYTES,
            config.commit_log_file_bytes - BLANK_BYTES,
        )
        self._property_crc = config.property_crc_enabled
        self._delays = DelayLevels(config.message_delay_levels)

    def encode(self, message: Message) -> PendingRecord:
        """Raises PutRefusedError with the status that RocketMQ would answer."""
        record = PendingRecord()
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
        self._fill(record, message, property_bytes)
        find = properties.get
        record.unique_key = find(UNIQUE_KEY) or None
        record.keys_text = find(KEYS)
        tags = find(TAGS)
        record.tags_hash = _code_of_tags(tags) if tags else 0
        wait = find(WAIT_STORE_OK)
        record.waits_for_disk = not wait or wait.lower() == "true"
        record.delay_ms = None
        if DELAY_LEVEL in properties:
            try:
                record.delay_ms = self._delays.delay_ms(message.topic, properties)
            except ValueError as reason:
                raise _illegal(str(reason)) from reason
        if INNER_COUNT in properties:
            raise _illegal("property INNER_NUM: inner batches are not stored here")
        return record

    def _fill(self, record: PendingRecord, message: Message, property_bytes: bytes) -> None:
        """The bytes, and what was found on the way; the layout wants its values in a row."""
        body = message.body
        body_bytes = len(body)
        if body_bytes > self._body_bytes_max:
            raise _illegal(f"body: {body_bytes} bytes are more than {self._body_bytes_max}")
        magic, topic_field = _topic_field(message.topic)
        queue_id = message.queue_id
        sys_flag = message.sys_flag
        if queue_id < 0 or sys_flag & INNER_BATCH:
            raise _illegal("a queue id below 0, or an inner batch: not stored here")
        born, born_port = message.born_host
        store, store_port = message.store_host
        property_count = len(property_bytes)
        # fmt: off
        try:
            bits, layout, time_at = _LAYOUTS[len(born), len(store)]
            sys_flag = sys_flag & ~HOSTS_IPV6 | bits
            total_bytes = layout.size + body_bytes + len(topic_field) + 2 + property_count
            if total_bytes > self._total_bytes_max:
                raise _illegal(f"a record of {total_bytes} bytes is more than the "
                               f"{self._total_bytes_max} that a message and a file allow")
            record.data = b"".join((
                layout.pack(
                    total_bytes, magic, crc32(body) & INT32_MAX, queue_id, message.flag, 0, 0,
                    sys_flag, message.born_timestamp, born, born_port, 0, store, store_port,
                    message.reconsume_times, message.prepared_transaction_offset, body_bytes,
                ),
                body, topic_field, _length(property_count), property_bytes,
            ))
        except (KeyError, error) as misfit:
            raise _explained(message) from misfit
        # fmt: on
        record.topic = message.topic
        record.queue_id = queue_id
        record.sys_flag = sys_flag
        record.in_queue = not sys_flag & TRANSACTION_PREPARED  # rolled back has this bit too
        record.store_timestamp_position = time_at
        record.has_property_crc = self._property_crc


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
def _topic_field(topic: str) -> tuple[int, bytes]:
    """The magic and the bytes of a topic, its length before it."""
    raw = encode_utf8(topic)
    if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or raw != _strict(topic):
        raise _illegal(f"topic: {topic!r:.80} cannot name a directory")
    if len(raw) > TOPIC_BYTES_MAX:
        raise _illegal(f"topic: {len(raw)} bytes are more than {TOPIC_BYTES_MAX}")
    if len(raw) <= TOPIC_BYTES_MAX_V1:
        return MESSAGE_MAGIC_V1, INT8.pack(len(raw)) + raw
    return MESSAGE_MAGIC_V2, INT16.pack(len(raw)) + raw


def _strict(topic: str) -> bytes:
    """UTF-8 that comes back as the same text: two topics never share a directory."""
    return topic.encode("utf-8", "surrogatepass")


def _illegal(reason: str) -> PutRefusedError:
    return PutRefusedError(PutStatus.MESSAGE_ILLEGAL, reason)


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
