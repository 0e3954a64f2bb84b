"""Bytes that only tests write or read back: RocketMQ writes them and this project does not."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer, pack_fields, require
from tieredstore.codec.java import INT32_MIN, java_remainder, string_hash, string_hashes
from tieredstore.codec.message import BLANK_MAGIC, CODA_BYTES, StoredMessage, encode_message
from tieredstore.codec.record import INT64, LOG_OFFSET_POSITION, STORE_TIMESTAMP_POSITION
from tieredstore.codec.tiered_index import CompactedItem, CompactedSlot
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX, INT64_MAX, Host

_CODA: Final = Struct(">iIq")
_OFFSET_ID_TAIL: Final = Struct(">iq")
_COMPACTED_SLOT: Final = Struct(">ii")
_COMPACTED_ITEM: Final = Struct(">iiiqii")


def encode_stored(message: StoredMessage) -> bytes:
    """The bytes from which the message was decoded."""
    return encode_message(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        log_offset=message.log_offset,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_timestamp=message.store_timestamp,
        store_host=message.store_host,
        body=message.body,
        property_bytes=message.property_bytes,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        body_crc=message.body_crc,
        version=message.version,
    )


def encode_coda(store_timestamp: int) -> bytes:
    """An end marker, as RocketMQ 5.1.0 to 5.2.0 wrote it."""
    return pack_fields(
        _CODA, ("size", "magic", "store_timestamp"), CODA_BYTES, BLANK_MAGIC, store_timestamp
    )


def decode_coda(data: Buffer, position: int = 0, *, path: str = "") -> int:
    """The largest store timestamp of the segment that the coda closes."""
    require(data, position=position, size=CODA_BYTES, path=path, what="end marker")
    size, magic, store_timestamp = _CODA.unpack_from(data, position)
    if size != CODA_BYTES or magic != BLANK_MAGIC:
        raise SegmentCorruptError(path, "no end marker starts here", position=position)
    return int(store_timestamp)


def rewrite_log_offset(record: Buffer, log_offset: int) -> bytes:
    """A copy of the record with another log offset, which is all that changes on its way."""
    copy = bytearray(record)
    patch_log_offset(copy, log_offset)
    return bytes(copy)


def patch_log_offset(buffer: bytearray | memoryview, log_offset: int, *, position: int = 0) -> None:
    """Overwrite the log offset of the record at `position` in place."""
    if not -INT64_MAX - 1 <= log_offset <= INT64_MAX:
        raise ValueError(f"log_offset: {log_offset} does not fit 64 signed bits")
    at = position + LOG_OFFSET_POSITION
    if position < 0 or at + 8 > len(buffer):
        raise ValueError(f"position: no record of {len(buffer)} bytes has one at {position}")
    INT64.pack_into(buffer, at, log_offset)


def java_store_timestamp(record: bytes) -> int:
    """What Java's tier reads as store timestamp: part of the address if the born host is IPv6."""
    timestamp: int = INT64.unpack_from(record, STORE_TIMESTAMP_POSITION)[0]
    return timestamp


def decode_offset_id(text: str) -> tuple[Host, int]:
    """The store host and the log offset of a message id."""
    raw = bytes.fromhex(text)
    port, log_offset = _OFFSET_ID_TAIL.unpack(raw[-12:])
    return Host(raw[:-12], port), log_offset


def encode_compacted_slot(*, position: int, items_bytes: int) -> bytes:
    return pack_fields(_COMPACTED_SLOT, CompactedSlot._fields, position, items_bytes)


def encode_compacted_item(item: CompactedItem) -> bytes:
    return pack_fields(_COMPACTED_ITEM, CompactedItem._fields, *item)


def tiered_key_hash(text: str) -> int:
    """The hash as the tier's index stores it: negative ones negated, -2^31 stays."""
    value = abs(string_hash(text))
    return INT32_MIN if value == -INT32_MIN else value


def tiered_key_hashes(texts: Sequence[str]) -> NDArray[np.int32]:
    return np.abs(string_hashes(texts))  # numpy's abs keeps -2^31 too


def tiered_masked_hash(text: str) -> int:
    """The hash that later brokers are said to store: the sign bit cleared."""
    return string_hash(text) & INT32_MAX


def tiered_slot(key_hash: int, slot_count: int) -> int:
    """The slot that Java computes: negative for -2^31 unless the slot count divides it."""
    return java_remainder(key_hash, slot_count)
